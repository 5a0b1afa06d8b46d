"""The failed runs that another entry may resume: those that were stopped by their own loop, and no others."""

from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest
from kit.agents import Run, make_agent, make_input_guard, make_output_guard
from kit.ending import advance_clock
from kit.results import check_history, read_requests
from kit.resuming import copy_state, make_journal

from agentloop import (
    Agent,
    AgentLoopError,
    MaxTurnsExceeded,
    RunConfig,
    RunHooks,
    Runner,
    RunState,
    RunTimeoutError,
    StateError,
    UsageLimitExceeded,
    UsageLimits,
    tool,
)
from agentloop import records as r
from agentloop.exceptions import ModelTimeoutError, ModelTransportError
from agentloop.guardrails import tool_input_guardrail, tool_output_guardrail
from agentloop.journal import MemoryJournal
from agentloop.settings import ModelSettings
from agentloop.testing import ScriptedModel, call, say, wait

ERRORS: dict[str, Callable[[], AgentLoopError]] = {
    "turns": lambda: MaxTurnsExceeded(3),
    "time": lambda: RunTimeoutError(2.0),
    "usage": lambda: UsageLimitExceeded("Usage limit exceeded: requests 1 of 1"),
    "transport": lambda: ModelTransportError("no answer", status=503, should_retry=False),
    "slow model": lambda: ModelTimeoutError(1.0),
}
every_error = pytest.mark.parametrize("error", ERRORS.values(), ids=list(ERRORS))


class Raises:
    """Raises a new error whenever it is called."""

    def __init__(self, error: Callable[[], AgentLoopError]) -> None:
        self.error = error

    def __call__(self, *_: Any) -> Any:
        raise self.error()


class Hook(RunHooks):
    """Run hooks of which one raises."""

    def __init__(self, name: str, raises: Raises) -> None:
        async def hook(*args: Any) -> None:
            raises(*args)

        setattr(self, name, hook)


@attrs.define
class Case:
    """A run whose callback, body or nested run raises: its agent, and how it is run."""

    agent: Agent[Any, Any]
    options: dict[str, Any] = attrs.field(factory=dict)


def _calling(*tools: Any, **fields: Any) -> Agent[Any, Any]:
    return make_agent(tools, [call(one.name, {"input": "x"} if one.name == "ask" else {}) for one in tools], **fields)


def _work(**options: Any) -> Any:
    @tool(**options)
    async def work() -> str:
        return "worked"

    return work


def in_body(raises: Raises) -> Case:
    """Return the usual case: the body itself raises."""

    @tool(failure_error_function=None)
    async def work() -> str:
        raises()
        return "never"

    return Case(_calling(work))


def in_body_beside_another(raises: Raises) -> Case:
    """Return the case in which a body raises whose sibling has succeeded."""
    case = in_body(raises)
    case.agent.tools.append(_work(name="free"))  # type: ignore[attr-defined]
    case.agent.model = ScriptedModel([[call("free"), call("work")], say("done")])
    return case


def in_sync_callback(field: str) -> Callable[[Raises], Case]:
    """Return the case in which a callable of the tool raises."""
    return lambda raises: Case(_calling(_work(**{field: raises})))


def in_error_function(raises: Raises) -> Case:
    """Return the case in which the function that words another error raises."""

    @tool(failure_error_function=lambda ctx, error: raises())
    async def work() -> str:
        raise ValueError("no")

    return Case(_calling(work))


def in_hook(name: str) -> Callable[[Raises], Case]:
    """Return the case in which a hook of the run raises."""
    return lambda raises: Case(_calling(_work()), {"hooks": Hook(name, raises)})


def in_tool_guardrail(raises: Raises) -> Case:
    """Return the case in which a guardrail raises before the body."""
    return Case(_calling(_work(tool_input_guardrails=[tool_input_guardrail(raises)])))


def in_output_tool_guardrail(raises: Raises) -> Case:
    """Return the case in which a guardrail raises after the body."""
    return Case(_calling(_work(tool_output_guardrails=[tool_output_guardrail(raises)])))


def in_input_guardrail(parallel: bool) -> Callable[[Raises], Case]:
    """Return the case in which a guardrail of the input raises."""

    def case(raises: Raises) -> Case:
        return Case(_calling(_work(), input_guardrails=[make_input_guard("g", raises.error(), parallel=parallel)]))

    return case


def in_output_guardrail(raises: Raises) -> Case:
    """Return the case in which a guardrail of the final output raises."""
    return Case(_calling(_work(), output_guardrails=[make_output_guard("g", raises.error())]))


def in_instructions(raises: Raises) -> Case:
    """Return the case in which the agent's instructions raise."""
    return Case(_calling(_work(), instructions=lambda ctx, agent: raises()))


def in_behavior(raises: Raises) -> Case:
    """Return the case in which a callable `tool_use_behavior` raises."""
    return Case(_calling(_work(), tool_use_behavior=raises))


def in_filter(raises: Raises) -> Case:
    """Return the case in which the filter of the model's input raises."""
    return Case(_calling(_work()), {"run_config": RunConfig(call_model_input_filter=raises)})


def _asking(inner: Agent[Any, Any], **options: Any) -> Case:
    return Case(_calling(inner.as_tool("ask", "asks", failure_error_function=None, **options)))


def in_body_of_nested_run(raises: Raises) -> Case:
    """Return the case in which a body of a nested run raises."""
    return _asking(in_body(raises).agent)


def in_model_of_nested_run(raises: Raises) -> Case:
    """Return the case in which the nested run's own loop is stopped; the outer run sees the failure of a body."""
    return _asking(Agent("inner", model=ScriptedModel([raises] * 3)))


NOT_ITS_OWN: dict[str, Callable[[Raises], Case]] = {
    "body": in_body,
    "body beside another": in_body_beside_another,
    "error function": in_error_function,
    "is_enabled": in_sync_callback("is_enabled"),
    "needs_approval": in_sync_callback("needs_approval"),
    "tool input guardrail": in_tool_guardrail,
    "tool output guardrail": in_output_tool_guardrail,
    "blocking input guardrail": in_input_guardrail(False),
    "parallel input guardrail": in_input_guardrail(True),
    "output guardrail": in_output_guardrail,
    "instructions": in_instructions,
    "tool_use_behavior": in_behavior,
    "input filter": in_filter,
    "body of a nested run": in_body_of_nested_run,
    "model of a nested run": in_model_of_nested_run,
    **{
        f"hook {name}": in_hook(name)
        for name in ("on_agent_start", "on_llm_start", "on_llm_end", "on_tool_start", "on_tool_end", "on_agent_end")
    },
}


async def failed(run: Run, agent: Any, given: Any = "go", **options: Any) -> tuple[AgentLoopError, RunState]:
    """Run *agent* to its error; return that and the state that is left."""
    with pytest.raises(AgentLoopError) as caught:
        await run(agent, given, **options)
    assert caught.value.run_data is not None
    return caught.value, RunState(agent, caught.value.run_data.records)


def end_of(state: RunState) -> r.RunEnded:
    """Return the last record of the run's own."""
    end = state.records[-1]
    assert isinstance(end, r.RunEnded)
    assert end.path == ()
    return end


@pytest.mark.scenario("RP-06", "PL-22")
@pytest.mark.parametrize("place", NOT_ITS_OWN)
@every_error
async def test_such_an_error_of_anything_else_than_the_loop_ends_the_run_for_good(
    run_mode: Run, error: Callable[[], AgentLoopError], place: str
) -> None:
    """A resume runs nothing and asks no model, and its error says what ended the run."""
    case = NOT_ITS_OWN[place](Raises(error))
    raised, state = await failed(run_mode, case.agent, **case.options)
    assert type(raised) in (type(error()), AgentLoopError) or type(raised.__cause__) is type(error())
    assert not end_of(state).resumable
    before, asked = len(state.records), len(read_requests(case.agent))
    for given in (state, copy_state(state, case.agent)):
        with pytest.raises(StateError, match=type(error()).__name__):
            await run_mode(case.agent, given, max_turns=20)
    assert (len(state.records), len(read_requests(case.agent))) == (before, asked)


@pytest.mark.scenario("RP-06", "PL-22")
@every_error
async def test_the_failed_call_is_named_when_its_run_is_gone_on_with(
    run_mode: Run, error: Callable[[], AgentLoopError]
) -> None:
    """The error names the call's id, its tool, and the failure as it was recorded."""
    case = in_body(Raises(error))
    _, state = await failed(run_mode, case.agent)
    name = type(error()).__name__
    with pytest.raises(StateError, match=rf"'call_1'.*'work'.*{name}"):
        await run_mode(case.agent, state)


@pytest.mark.scenario("RP-06")
@every_error
async def test_such_an_error_of_a_nested_run_is_told_by_the_policy_of_its_tool(
    run_mode: Run, error: Callable[[], AgentLoopError]
) -> None:
    """By default the outer model receives the error as the tool's output, and the outer run continues."""
    for inner in (in_body(Raises(error)).agent, Agent("guide", model=ScriptedModel([Raises(error)] * 3))):
        agent = make_agent([inner.as_tool("ask", "asks")], call("ask", {"input": "x"}, "c1"))
        result = await run_mode(agent, "go")
        assert result.final_output == "done"
        [settled] = result.calls
        assert settled.outcome.status == "failed"
        assert type(error()).__name__ in str(settled.outcome.output)


@pytest.mark.scenario("RP-06")
@every_error
async def test_a_nested_run_that_a_body_ended_is_not_entered_again_after_a_crash(
    run_mode: Run, error: Callable[[], AgentLoopError]
) -> None:
    """The log breaks off at every record; wherever it does, no nested model is shown a call without an output."""
    inner = in_body(Raises(error)).agent
    agent = make_agent([inner.as_tool("ask", "asks")], call("ask", {"input": "x"}, "c1"))
    journal = MemoryJournal()
    await run_mode(agent, "go", journal=journal)
    lines = await journal.read()
    for kept in range(2, len(lines)):
        for one in (agent, inner):
            one.model = ScriptedModel([_by_history(one is inner)] * 5)
        state = await RunState.from_journal(agent, await make_journal(lines[:kept]))
        if state._fold.ended is not None:
            continue
        result = await run_mode(agent, state)
        assert result.final_output == "done"
        for request in read_requests(inner):
            check_history(request.items)


def _by_history(nested: bool) -> Callable[[Any], Any]:
    def answer(request: Any) -> Any:
        if len(request.items) > 1:
            return say("done")
        return call("work") if nested else call("ask", {"input": "x"}, "c1")

    return answer


@pytest.mark.scenario("RP-06", "PL-22")
@pytest.mark.parametrize("by", ["deadline", "caller"])
@pytest.mark.parametrize("nested", [False, True])
async def test_a_call_that_failed_as_the_run_was_ended_is_not_gone_past(by: str, nested: bool) -> None:
    """The entry ends by the cause that came first; no resumed run continues without an output of that call."""
    scope = anyio.CancelScope()

    @tool(failure_error_function=None)
    async def work() -> str:
        if by == "deadline":
            advance_clock(40)
        else:
            scope.cancel()
        raise ValueError("the disk is full")

    agent = make_agent([work], call("work", {}, "c1"))
    if nested:
        agent = make_agent([agent.as_tool("ask", "asks", failure_error_function=None)], call("ask", {"input": "x"}))
    journal = MemoryJournal()
    config = RunConfig(timeout=30) if by == "deadline" else None
    with scope:
        with pytest.raises((AgentLoopError, anyio.get_cancelled_exc_class())) as caught:
            await Runner.run(agent, "go", journal=journal, run_config=config)
        if not isinstance(caught.value, Exception):
            raise caught.value
    agent.model = ScriptedModel([say("no")])
    state = await RunState.from_journal(agent, journal)
    if nested and end_of(state).resumable:
        # The outer call has no outcome: it fails now, by what its nested run has left.
        _, state = await failed(Runner.run, agent, state)
    with pytest.raises(StateError, match="failed"):
        await Runner.run(agent, state)
    assert read_requests(agent) == []


# ---------------------------------------------------------------------------------------------- the loop's own


@pytest.mark.scenario("RP-06")
@pytest.mark.parametrize("error", ["transport", "slow model"])
async def test_a_run_whose_own_model_failed_goes_on(run_mode: Run, error: str) -> None:
    """The run resumes and asks the same turn again, in the first turn or a later one."""
    for place in (0, 1):
        steps: list[Any] = [call("work"), say("done")]
        steps.insert(place, Raises(ERRORS[error]))
        agent = make_agent([_work()], *steps, done=None)
        raised, state = await failed(run_mode, agent)
        assert type(raised) is type(ERRORS[error]())
        assert end_of(state).resumable
        assert (await run_mode(agent, copy_state(state, agent))).final_output == "done"


@pytest.mark.scenario("RP-06")
async def test_a_run_out_of_turns_or_of_its_budget_goes_on(run_mode: Run) -> None:
    """The run resumes when it gets more turns or a larger budget."""
    for options, again in (
        ({"max_turns": 1}, {"max_turns": 3}),
        ({"run_config": RunConfig(limits=UsageLimits(requests=1))}, {}),
    ):
        agent = make_agent([_work()], call("work"))
        _, state = await failed(run_mode, agent, **options)
        assert end_of(state).resumable
        assert (await run_mode(agent, copy_state(state, agent), **again)).final_output == "done"


def for_ever(request: Any) -> Any:
    """The model thinks until long after every limit."""
    advance_clock(40)
    return wait(anyio.Event())


@pytest.mark.scenario("RP-06")
async def test_a_run_out_of_time_goes_on(run_mode: Run) -> None:
    """A run that timed out in the model or in a body resumes; the call in the body is reported as interrupted."""
    timed = RunConfig(timeout=30)

    @tool
    async def work() -> str:
        advance_clock(40)
        await anyio.sleep_forever()
        return "never"

    for first in (call("work"), for_ever):
        agent = make_agent([work], first)
        raised, state = await failed(run_mode, agent, run_config=timed)
        assert type(raised) is RunTimeoutError
        assert end_of(state).resumable
        agent.model = ScriptedModel([say("done")])
        assert (await run_mode(agent, copy_state(state, agent))).final_output == "done"


@pytest.mark.scenario("RP-06")
async def test_a_model_that_is_too_slow_by_its_settings_stops_the_loop(run_mode: Run) -> None:
    """The settings' own time limit stops the loop as a model's own limit does."""

    agent = make_agent([], for_ever, model_settings=ModelSettings(timeout=20))
    raised, state = await failed(run_mode, agent)
    assert type(raised) is ModelTimeoutError
    assert end_of(state).resumable
    assert (await run_mode(agent, state)).final_output == "done"
