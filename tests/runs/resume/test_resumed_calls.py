"""Further rules of a resumed entry: guardrails, caps, timeouts, hooks, failures and cancellation."""

from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from kit.agents import (
    PASSED,
    TRIPPED,
    Run,
    configure_run,
    make_agent,
    make_free_tool,
    make_gated_tool,
    make_input_guard,
    make_output_guard,
)
from kit.ending import Backend, advance_clock, check_duration
from kit.results import check_history, read_outputs, read_requests, read_shown_outputs, read_statuses, read_waiting
from kit.resuming import Pauses, approve, copy_state, decide_nothing, in_every_way
from kit.watching import Flight, ToolHookLog

from agentloop import (
    Agent,
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    Runner,
    RunState,
    StateError,
    ToolCallError,
    ToolContext,
    tool,
)
from agentloop import records as r
from agentloop.config.conditions import MaxTurns
from agentloop.items import HandoffCall
from agentloop.journal import MemoryJournal
from agentloop.testing import ScriptedModel, call, respond, say

# ---------------------------------------------------------------------------------------------- runs that are over


@pytest.mark.scenario("PL-22")
@pytest.mark.parametrize("way", ["state", "json", "journal"])
@pytest.mark.parametrize("approved", [False, True])
async def test_a_run_that_a_body_ended_is_not_gone_on_with(run_mode: Run, way: str, approved: bool) -> None:
    """`StateError` names the call and its failure; nothing is executed, the model isn't asked."""
    ran: list[Any] = []

    @tool(failure_error_function=None, needs_approval=approved)
    async def breaks() -> str:
        ran.append("breaks")
        raise ValueError("the disk is full")

    agent = make_agent([breaks, make_free_tool(ran)], [call("free", {}, "c1"), call("breaks", {}, "c2")])
    journal = MemoryJournal()
    given: Any = "go"
    if approved:
        given = (await run_mode(agent, given, journal=journal)).to_state()
        given.approve("c2")
    async with Runner.run_streamed(agent, given, journal=journal) as stream:
        await stream.finished()
        with pytest.raises(ToolCallError):
            _ = stream.result
        with pytest.raises(ToolCallError):
            async for _ in stream:
                pass
    match way:
        case "state":
            state = stream.state
        case "json":
            state = copy_state(stream.state, agent)
        case _:
            state = await RunState.from_journal(agent, journal)
    before, asked = list(ran), len(read_requests(agent))
    with pytest.raises(StateError, match=r"'c2'.*'breaks'.*the disk is full"):
        await run_mode(agent, state)
    assert (ran, len(read_requests(agent))) == (before, asked)
    if way == "journal":
        with pytest.raises(StateError, match=r"'c2'.*'breaks'.*the disk is full"):
            await Runner.resume(agent, journal)
        assert ran == before


class BreaksAt(ToolHookLog):
    """Tool hooks of which the end of one call fails."""

    def __init__(self, call_id: str) -> None:
        super().__init__()
        self.call_id = call_id

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        await super().on_tool_end(ctx, agent, tool, outcome)
        if ctx.tool_call_id == self.call_id:
            raise RuntimeError("the hook broke")


@pytest.mark.scenario("SF-15")
@pytest.mark.parametrize("breaking", ["c1", "c2", "c3"])
@in_every_way
async def test_a_failing_end_hook_of_an_approved_batch_keeps_the_outputs(
    run_mode: Run, breaking: str, way: str
) -> None:
    """The outputs of the other calls are kept in model order, and the next resume runs none of them again."""
    ran: list[Any] = []
    held = {name: anyio.Event() for name in ("c1", "c2", "c3")}

    @tool(needs_approval=True)
    async def work(ctx: ToolContext[Any]) -> str:
        """End in reverse order, the one whose hook breaks last."""
        order = [one for one in ("c3", "c2", "c1") if one != breaking] + [breaking]
        place = order.index(ctx.tool_call_id)
        if place:
            await held[order[place - 1]].wait()
        ran.append(ctx.tool_call_id)
        return f"output {ctx.tool_call_id}"

    class Hooks(BreaksAt):
        async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
            held[ctx.tool_call_id].set()
            await super().on_tool_end(ctx, agent, tool, outcome)

    agent = make_agent([work], [call("work", {}, call_id) for call_id in ("c1", "c2", "c3")])
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    hooks = Hooks(breaking)
    state = await pauses.state(agent, paused)
    approve()(state)
    with pytest.raises(ToolCallError, match="the hook broke") as caught:
        await pauses.run(agent, state, hooks=hooks)
    data = caught.value.run_data
    assert data is not None
    assert list(read_outputs(data.new_items).items()) == [(one, f"output {one}") for one in ("c1", "c2", "c3")]
    assert sorted(ran) == ["c1", "c2", "c3"]
    assert sorted(hooks.seen) == sorted(
        [f"start:{one}" for one in ("c1", "c2", "c3")] + [f"end:{one}:succeeded" for one in ("c1", "c2", "c3")]
    )


@pytest.mark.scenario("SF-15")
async def test_a_batch_that_a_failing_end_hook_ended_is_not_gone_on_with() -> None:
    """A resume raises the hook's failure before any call starts; the state has the outcome of every call."""
    ran: list[Any] = []
    agent = make_agent([make_gated_tool(ran)], [call("gated", {"n": n}, f"c{n}") for n in (1, 2, 3)])
    state = (await Runner.run(agent, "go")).to_state()
    approve()(state)
    async with Runner.run_streamed(agent, state, hooks=BreaksAt("c2")) as stream:
        with pytest.raises(ToolCallError, match="the hook broke"):
            async for _ in stream:
                pass
    left = stream.state
    assert sorted(one.call_id for one in left.records if isinstance(one, r.CallSettled)) == ["c1", "c2", "c3"]
    before = list(ran)
    for again in (left, copy_state(left, agent)):
        with pytest.raises(StateError, match="the hook broke"):
            await Runner.run(agent, again)
    assert ran == before
    assert sorted(ran) == [("gated", 1), ("gated", 2), ("gated", 3)]


# ---------------------------------------------------------------------------------------------- times and caps


@pytest.mark.scenario("TO-10", "TO-06")
@in_every_way
async def test_an_approved_body_has_its_timeout(run_mode: Run, anyio_backend: Backend, way: str) -> None:
    """The body has its timeout as in a fresh run; the time it waited for approval isn't counted."""

    quickly = anyio.Event()

    @tool(timeout=60, needs_approval=True)
    async def slow() -> str:
        await quickly.wait()
        advance_clock(60)
        await anyio.sleep_forever()
        return "never"

    @tool(timeout=60, needs_approval=True)
    async def quick() -> str:
        quickly.set()
        return "quick"

    agent = make_agent([slow, quick], [call("slow", {}, "c1"), call("quick", {}, "c2")])
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    advance_clock(120)
    async with check_duration(anyio_backend, 60):
        result = await pauses.resume(agent, paused, approve())
    assert result.final_output == "done"
    assert read_shown_outputs(agent) == {"c1": "Tool 'slow' timed out after 60 seconds.", "c2": "quick"}
    assert read_statuses(result) == ["timed_out", "succeeded"]


@pytest.mark.scenario("CO-07")
@pytest.mark.parametrize("cap", [1, 2, None])
@in_every_way
async def test_approved_calls_run_under_the_cap(run_mode: Run, cap: int | None, way: str) -> None:
    """Approved calls obey the cap of the entry that runs them; their outputs are in model order."""
    flight = Flight()

    @tool(needs_approval=True)
    async def f(n: int) -> int:
        with flight(n):
            for _ in range(6 - n):
                await anyio.lowlevel.checkpoint()
            return n

    agent = make_agent([f], [call("f", {"n": n}, f"c{n}") for n in range(5)])
    config = configure_run(max_function_tool_concurrency=cap)
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, run_config=config)
    result = await pauses.resume(agent, paused, approve(), run_config=config)
    assert flight.peak == (5 if cap is None else cap)
    if cap == 1:
        assert flight.started == [0, 1, 2, 3, 4]
    assert list(read_shown_outputs(agent).values()) == ["0", "1", "2", "3", "4"]
    assert result.final_output == "done"


@pytest.mark.scenario("CO-07")
@in_every_way
async def test_approved_calls_of_a_nested_run_are_under_the_cap_it_inherits(run_mode: Run, way: str) -> None:
    """Each turn has its own slots."""
    flight = Flight()

    @tool(needs_approval=True)
    async def f(n: int) -> int:
        with flight(n):
            await anyio.lowlevel.checkpoint()
            return n

    inner: Agent[Any, Any] = Agent(
        "inner", model=ScriptedModel([[call("f", {"n": n}, f"n{n}") for n in range(4)], say("inner done")]), tools=[f]
    )
    agent = make_agent([inner.as_tool()], call("inner", {"input": "go"}, "i"))
    config = configure_run(max_function_tool_concurrency=1)
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, run_config=config)
    assert read_waiting(paused) == ["n0", "n1", "n2", "n3"]
    with anyio.fail_after(20):
        await pauses.resume(agent, paused, approve(), run_config=config)
    assert (flight.peak, flight.started) == (1, [0, 1, 2, 3])
    assert read_shown_outputs(agent) == {"i": "inner done"}


@pytest.mark.scenario("CO-07")
@pytest.mark.backends("trio-virtual")
@in_every_way
async def test_a_call_that_started_before_a_pause_is_not_skipped_after_it(run_mode: Run, way: str) -> None:
    """The call waits for a slot longer than `queue_timeout`, but it must not be reported as never begun."""

    @tool(needs_approval=True)
    async def slow() -> str:
        await anyio.sleep(3)
        return "slow done"

    @tool(needs_approval=True)
    async def asked() -> str:
        return "asked"

    inner: Agent[Any, Any] = Agent("inner", model=ScriptedModel([call("asked"), say("inner done")]), tools=[asked])
    agent = make_agent([slow, inner.as_tool()], [call("slow", call_id="c1"), call("inner", {"input": "go"}, "c2")])
    config = configure_run(max_function_tool_concurrency=1, queue_timeout=1)
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, run_config=config)
    result = await pauses.resume(agent, paused, approve(), run_config=config)
    assert read_shown_outputs(agent) == {"c1": "slow done", "c2": "inner done"}
    assert result.final_output == "done"


# ---------------------------------------------------------------------------------------------- guardrails of runs


@pytest.mark.scenario("GI-10")
@in_every_way
async def test_a_run_that_goes_on_does_not_ask_its_input_guardrails_again(run_mode: Run, way: str) -> None:
    """No input guardrail is asked again, the agent's or the configuration's, blocking or not; the results stay."""
    asked: list[str] = []
    ran: list[Any] = []
    agent = make_agent(
        [make_gated_tool(ran)],
        call("gated", {}, "c1"),
        input_guardrails=[
            make_input_guard("blocking", log=asked, parallel=False),
            make_input_guard("parallel", log=asked),
        ],
    )
    config = RunConfig(input_guardrails=[make_input_guard("of the run", log=asked)])
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, run_config=config)
    assert sorted(asked) == ["blocking", "of the run", "parallel"]
    result = await pauses.resume(agent, paused, approve(), run_config=config)
    assert result.final_output == "done"
    assert len(asked) == 3
    assert [one.guardrail.name for one in result.input_guardrail_results] == ["of the run", "blocking", "parallel"]


def two_agents(asked: list[str], judged: list[Any], verdict: Any) -> Agent[Any, Any]:
    """Return an agent that hands over to one whose guardrail notes what it judges."""
    from agentloop import input_guardrail

    async def judge(ctx: Any, agent: Any, given: Any) -> Any:
        asked.append("second")
        judged.append(given)
        return verdict

    second: Agent[Any, Any] = Agent(
        "second",
        model=ScriptedModel([call("free", {}, "c1"), say("second is done")]),
        tools=[make_free_tool([])],
        input_guardrails=[input_guardrail(judge, name="second")],
    )
    return Agent(
        "first",
        model=ScriptedModel([respond(HandoffCall("h", "transfer_to_second", "{}"))]),
        handoffs=[second],
        input_guardrails=[make_input_guard("first", log=asked)],
    )


@pytest.mark.scenario("GI-10")
@in_every_way
async def test_input_added_to_a_run_is_judged_by_the_agent_at_work(run_mode: Run, way: str) -> None:
    """The guardrails of the agent at work and of the run configuration judge the added input alone, once."""
    asked: list[str] = []
    judged: list[Any] = []
    agent = two_agents(asked, judged, PASSED)
    config = RunConfig(input_guardrails=[make_input_guard("of the run", log=asked)])
    pauses = Pauses(run_mode, way)
    stopped = await pauses.run(agent, run_config=attrs.evolve(config, stop_when=MaxTurns(2)))
    assert stopped.status == "stopped"
    assert sorted(asked) == ["first", "of the run"]
    result = await pauses.resume(agent, stopped, lambda state: state.add_input("more"), run_config=config)
    assert result.final_output == "second is done"
    assert sorted(asked) == ["first", "of the run", "of the run", "second"]
    assert [[item.text for item in given] if not isinstance(given, str) else [given] for given in judged] == [["more"]]


@pytest.mark.scenario("GI-10")
@in_every_way
async def test_input_added_to_a_run_that_trips_is_not_shown_to_the_model(run_mode: Run, way: str) -> None:
    """The tripwire of the agent at work ends the entry before its model is asked."""
    asked: list[str] = []
    agent = two_agents(asked, [], TRIPPED)
    pauses = Pauses(run_mode, way)
    stopped = await pauses.run(agent, run_config=RunConfig(stop_when=MaxTurns(2)))
    [second] = agent.handoffs
    assert isinstance(second, Agent)
    before = len(read_requests(second))
    with pytest.raises(InputGuardrailTripwireTriggered):
        await pauses.resume(agent, stopped, lambda state: state.add_input("more"))
    assert all("more" not in str(request.items) for request in read_requests(second)[before:])
    assert asked == ["first", "second"]


@pytest.mark.scenario("GO-08")
@pytest.mark.parametrize("behavior", ["run_llm_again", "stop_on_first_tool"])
@pytest.mark.parametrize("trips", [True, False])
@in_every_way
async def test_the_final_output_of_a_run_that_went_on_is_judged(
    run_mode: Run, behavior: str, trips: bool, way: str
) -> None:
    """The output guardrails judge the model's message, and an output that an approved tool made."""
    asked: list[str] = []
    ran: list[Any] = []
    agent = make_agent(
        [make_gated_tool(ran)],
        call("gated", {"n": 1}, "c1"),
        tool_use_behavior=behavior,
        output_guardrails=[make_output_guard("judge", TRIPPED if trips else PASSED, log=asked)],
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    assert asked == []
    if trips:
        with pytest.raises(OutputGuardrailTripwireTriggered):
            await pauses.resume(agent, paused, approve())
    else:
        result = await pauses.resume(agent, paused, approve())
        assert result.final_output == ("done" if behavior == "run_llm_again" else "gated 1")
    assert asked == ["judge"]
    assert ran == [("gated", 1)]


# ---------------------------------------------------------------------------------------------- cancellation


class HeldFormatter:
    """A formatter that never comes to an answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.waiting = anyio.Event()

    async def __call__(self, args: Any) -> str:
        self.asked.append((args.kind, args.call_id))
        self.waiting.set()
        await anyio.sleep_forever()
        return "never"


async def cancelled_in(formatter: HeldFormatter, agent: Any, given: Any, journal: Any, config: RunConfig) -> RunState:
    """Run until the formatter waits, cancel, and return the state that is left."""
    async with Runner.run_streamed(agent, given, journal=journal, run_config=config) as stream:
        with anyio.fail_after(30):
            await formatter.waiting.wait()
    assert stream.result.status == "cancelled"
    return stream.state


@pytest.mark.scenario("PC-06")
@pytest.mark.parametrize("nested", [False, True])
@in_every_way
async def test_a_run_cancelled_while_a_rejection_is_worded_can_be_stored_and_run_on(
    run_mode: Run, nested: bool, way: str
) -> None:
    """The rejected call is settled by the default text; the approved sibling runs once, and nothing runs again."""
    ran: list[Any] = []
    inner = make_agent(
        [make_free_tool(ran), make_gated_tool(ran), make_gated_tool(ran, "other")],
        [call("free", {}, "c1"), call("gated", {}, "c2"), call("other", {}, "c3")],
    )
    agent = make_agent([inner.as_tool("dig")], call("dig", {"input": "x"}, "o1")) if nested else inner
    formatter = HeldFormatter()
    config = RunConfig(tool_error_formatter=formatter)
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, run_config=config)
    assert ran == [("free", 0)]
    state = await pauses.state(agent, paused)
    state.reject("c2")
    state.approve("c3")
    left = await cancelled_in(formatter, agent, state, pauses.journal, config)
    copy_state(left, agent)
    assert ran == [("free", 0)]
    result = await pauses.resume(agent, left, decide_nothing, run_config=config)
    assert result.final_output == "done"
    assert ran == [("free", 0), ("other", 0)]
    assert read_shown_outputs(inner) == {"c1": "free 0", "c2": "Tool 'gated' was not approved.", "c3": "other 0"}
    assert formatter.asked == [("approval_rejected", "c2")]
    check_history(read_requests(inner)[-1].items)
    check_history(read_requests(agent)[-1].items)


@pytest.mark.scenario("PC-06")
@in_every_way
async def test_a_run_cancelled_while_a_missing_tool_is_worded_can_be_stored_and_run_on(run_mode: Run, way: str) -> None:
    """The missing call is settled by the default text; its sibling had not started, and runs once."""
    ran: list[Any] = []
    agent = make_agent([make_free_tool(ran)], [call("free", {}, "c1"), call("nowhere", {}, "c2")])
    formatter = HeldFormatter()
    config = RunConfig(tool_error_formatter=formatter, tool_not_found_behavior="tell_model")
    pauses = Pauses(run_mode, way)
    left = await cancelled_in(formatter, agent, "go", pauses.journal, config)
    copy_state(left, agent)
    assert ran == []
    result = await pauses.resume(agent, left, decide_nothing, run_config=config)
    assert result.final_output == "done"
    assert ran == [("free", 0)]
    assert read_shown_outputs(agent) == {"c1": "free 0", "c2": "Tool 'nowhere' not found."}
    assert formatter.asked == [("tool_not_found", "c2")]
    check_history(read_requests(agent)[-1].items)
