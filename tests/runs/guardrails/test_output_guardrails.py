"""Guardrails of a run's output: what they judge, and what a trip, a failure or a cancellation leaves."""

from typing import Any

import anyio
import attrs
import pytest
from kit.agents import PASSED, TRIPPED, Run, make_output_guard, script_agent
from kit.ending import Fatal, HeldWork, Rendezvous, advance_clock, cancel_when
from kit.results import describe, find_outcome, find_records, read_outputs, read_requests
from kit.watching import RunHookLog

from agentloop import (
    GuardrailFunctionOutput,
    Instrument,
    MaxTurnsExceeded,
    OutputGuardrail,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunContext,
    Runner,
    RunState,
    RunTimeoutError,
    StopAtTools,
    ToolsToFinalOutput,
    output_guardrail,
    tool,
)
from agentloop import events as ev
from agentloop import records as r
from agentloop.config import blocked_text
from agentloop.exceptions import UserTypeError, UserValueError
from agentloop.guardrails import BlockedOutputArgs
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession
from agentloop.testing import call, reason, say

WITHHELD = "Output withheld by an output guardrail."


@tool
async def secret() -> str:
    """Tell the secret."""
    return "sesame"


class Written(MemorySession):
    """A session that keeps its writes one by one, and fails the chosen ones."""

    def __init__(self, *failing: int) -> None:
        super().__init__("s")
        self.writes: list[list[str]] = []
        self.failing = failing

    async def add_items(self, items: Any) -> None:
        self.writes.append(describe(items))
        if len(self.writes) - 1 in self.failing:
            raise OSError("disk full")
        await super().add_items(items)


def withheld(kept: Any) -> bool:
    """Tell whether the secret is nowhere in *kept*."""
    return "sesame" not in repr(kept)


@pytest.mark.scenario("GO-01")
async def test_trip_comes_after_agent_end_hooks_and_keeps_the_message_out_of_the_session(run_mode: Run) -> None:
    """The reasoning before the message is kept out too; what a tool did before is stored."""
    trace = RunHookLog()
    session = MemorySession()

    async def guard(ctx: Any, agent: Any, output: Any) -> Any:
        trace.lines.append("guard")
        return TRIPPED

    agent = script_agent(
        "a",
        [reason("look"), call("secret", call_id="c")],
        [reason("tell"), say("it is sesame")],
        tools=[secret],
        output_guardrails=[output_guardrail(guard)],
    )
    with pytest.raises(OutputGuardrailTripwireTriggered, match="guard") as caught:
        await run_mode(agent, "go", session=session, hooks=trace)
    assert trace.lines[-3:] == ["agent_end a", "guard", "run_end failed"]
    assert describe(await session.get_items()) == ["user:go", "Reasoning", "call:secret#c", "output:sesame#c"]
    assert caught.value.guardrail_result.agent_output == "it is sesame"
    assert caught.value.guardrail_result.agent is agent
    assert caught.value.run_data is not None
    assert [found.output for found in caught.value.run_data.output_guardrail_results] == [TRIPPED]


@pytest.mark.scenario("GO-01")
async def test_completed_tool_items_of_the_tripping_turn_are_stored(run_mode: Run) -> None:
    """If a handler made the output in place of one more turn, nothing of that output is stored."""
    session = MemorySession()
    agent = script_agent(
        "a", call("secret", call_id="c"), tools=[secret], output_guardrails=[make_output_guard("g", TRIPPED)]
    )
    handlers = {"max_turns": lambda data: "I gave up"}
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await run_mode(agent, "go", session=session, max_turns=1, error_handlers=handlers)
    assert describe(await session.get_items()) == ["user:go", "call:secret#c", "output:sesame#c"]


@pytest.mark.scenario("GO-02")
async def test_guardrail_that_raises_leaves_the_final_turn_stored(run_mode: Run) -> None:
    """The guardrail's own error leaves the run, once the session has everything."""
    session = Written()
    error = LookupError("no list")
    agent = script_agent("a", say("done"), output_guardrails=[make_output_guard("g", error)])
    with pytest.raises(LookupError) as caught:
        await run_mode(agent, "go", session=session)
    assert caught.value is error
    assert session.writes == [["user:go", "says:done"]]


@pytest.mark.scenario("GO-02")
async def test_session_that_fails_takes_precedence_over_a_guardrail_that_raises(run_mode: Run) -> None:
    """The guardrail's error is the context of the session's error."""
    session = Written(0)
    error = LookupError("no list")
    agent = script_agent("a", say("done"), output_guardrails=[make_output_guard("g", error)])
    with pytest.raises(OSError, match="disk full") as caught:
        await run_mode(agent, "go", session=session)
    assert caught.value.__context__ is error
    assert len(session.writes) == 1


@pytest.mark.scenario("GO-03")
async def test_output_guardrails_run_together(run_mode: Run) -> None:
    """Each of the two waits for the other."""
    both = Rendezvous(2)

    async def one(ctx: Any, agent: Any, output: Any) -> Any:
        await both.wait()
        return GuardrailFunctionOutput("one")

    async def two(ctx: Any, agent: Any, output: Any) -> Any:
        await both.wait()
        return GuardrailFunctionOutput("two")

    agent = script_agent("a", say("done"), output_guardrails=[output_guardrail(one)])
    result = await run_mode(agent, "go", run_config=RunConfig(output_guardrails=[output_guardrail(two)]))
    assert [found.output.output_info for found in result.output_guardrail_results] == ["two", "one"]


@pytest.mark.scenario("GO-03")
@pytest.mark.parametrize("cleanup", ["clean", "broken"])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("answer", [TRIPPED, LookupError("no list")], ids=["trips", "raises"])
async def test_first_failure_cancels_and_awaits_the_siblings(
    run_mode: Run, first: int, answer: Any, cleanup: str
) -> None:
    """The sibling is awaited at either place in the list, also when its own cleanup fails."""

    def broken() -> None:
        if cleanup == "broken":
            raise ValueError("no cleanup")

    held = HeldWork(clean_up=broken)

    async def fails(ctx: Any, agent: Any, output: Any) -> Any:
        await held.started.wait()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def waits(ctx: Any, agent: Any, output: Any) -> Any:
        await held()

    guards = [output_guardrail(fails), output_guardrail(waits)]
    agent = script_agent("a", say("done"), output_guardrails=guards[::-1] if first else guards)
    with pytest.raises(LookupError if isinstance(answer, Exception) else OutputGuardrailTripwireTriggered):
        await run_mode(agent, "go")
    assert held.ending == "cleaned up"


@pytest.mark.parametrize("siblings", [0, 1])
async def test_base_exception_of_an_output_guardrail_leaves_bare(run_mode: Run, siblings: int) -> None:
    """The base exception leaves in no group."""

    async def fatal(ctx: Any, agent: Any, output: Any) -> Any:
        raise Fatal

    guards = [output_guardrail(fatal), *[make_output_guard("g")] * siblings]
    with pytest.raises(Fatal):
        await run_mode(script_agent("a", say("done"), output_guardrails=guards), "go")


@attrs.frozen
class Answer:
    number: int


@pytest.mark.scenario("GO-04")
async def test_only_the_last_agent_s_and_the_configuration_s_guardrails_judge_the_typed_output(run_mode: Run) -> None:
    """The guardrails get the last agent and the object, not its JSON."""
    log: list[str] = []
    judged: list[Any] = []

    async def typed(ctx: Any, agent: Any, output: Any) -> Any:
        judged.append((agent, output, ctx.context))
        return PASSED

    second = script_agent("b", say('{"number": 7}'), output_type=Answer, output_guardrails=[output_guardrail(typed)])
    first = script_agent(
        "a", call("transfer_to_b"), handoffs=[second], output_guardrails=[make_output_guard("no", log=log)]
    )
    config = RunConfig(output_guardrails=[make_output_guard("config", log=log)])
    result = await run_mode(first, "go", run_config=config, context="app")
    assert judged == [(second, Answer(7), "app")]
    assert log == ["config"]
    assert [found.guardrail.name for found in result.output_guardrail_results] == ["config", "typed"]
    assert all(found.agent_output == Answer(7) and found.agent is second for found in result.output_guardrail_results)
    assert all(found.duration >= 0 for found in result.output_guardrail_results)


@pytest.mark.scenario("GO-05")
async def test_stream_shows_the_candidate_then_raises() -> None:
    """The stream is not complete before the verdict."""
    held = HeldWork()

    async def guard(ctx: Any, agent: Any, output: Any) -> Any:
        await held()
        return TRIPPED

    agent = script_agent("a", say("done"), output_guardrails=[output_guardrail(guard)])
    seen: list[Any] = []
    async with Runner.run_streamed(agent, "go") as stream:
        with pytest.raises(OutputGuardrailTripwireTriggered):
            async for event in stream:
                seen.append(event)
                if isinstance(event, ev.ItemCreated):
                    await held.started.wait()
                    assert not stream.is_complete
                    held.go.set()
        assert stream.is_complete
    assert [event.text for event in seen if isinstance(event, ev.TextDelta)] == ["done"]
    assert describe(event.item for event in seen if isinstance(event, ev.ItemCreated)) == ["says:done"]
    assert [event.result.output for event in seen if isinstance(event, ev.GuardrailSettled)] == [TRIPPED]


BEHAVIORS = {
    "first": "stop_on_first_tool",
    "named": StopAtTools("secret"),
    "callable": lambda ctx, results: ToolsToFinalOutput(is_final=True, output=f"so: {results[0].value}"),
}


@pytest.mark.scenario("GO-06")
@pytest.mark.parametrize("behavior", BEHAVIORS)
async def test_tripped_output_of_a_tool_is_withheld(run_mode: Run, behavior: str) -> None:
    """Session, new items and results don't have it; the log's own record of the call does."""
    session = Written()

    async def guard(ctx: Any, agent: Any, output: Any) -> Any:
        assert "sesame" in output
        return GuardrailFunctionOutput(f"found {output}", True)

    agent = script_agent(
        "a",
        [say("I look."), call("secret", call_id="c")],
        tools=[secret],
        tool_use_behavior=BEHAVIORS[behavior],
        output_guardrails=[output_guardrail(guard)],
    )
    with pytest.raises(OutputGuardrailTripwireTriggered) as caught:
        await run_mode(agent, "go", session=session)
    data = caught.value.run_data
    assert data is not None
    assert read_outputs(data.new_items) == {"c": WITHHELD}
    assert [write for write in session.writes if not withheld(write)] == []
    assert read_outputs(await session.get_items()) == {"c": WITHHELD}
    [result] = data.output_guardrail_results
    assert result.output == GuardrailFunctionOutput(None, True)
    assert result.agent_output == WITHHELD
    assert caught.value.guardrail_result is result
    assert find_outcome(data, "c").value == "sesame"
    [settled] = find_records(data, r.CallSettled)
    assert settled.outcome.output == "sesame"
    [replaced] = find_records(data, r.HistoryReplaced)
    assert replaced.reason == "output_withheld"
    assert read_outputs(replaced.items) == {"c": WITHHELD}


@pytest.mark.scenario("GO-06")
async def test_withheld_output_is_not_shown_to_a_later_run_s_model(run_mode: Run) -> None:
    """A new run on the session shows the text that replaces the withheld output."""
    session = MemorySession()
    agent = script_agent(
        "a",
        [call("secret", call_id="c"), call("secret", call_id="d")],
        say("done"),
        tools=[secret],
        tool_use_behavior="stop_on_first_tool",
        output_guardrails=[make_output_guard("g", TRIPPED)],
    )
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await run_mode(agent, "go", session=session)
    later = agent.clone(output_guardrails=[])
    await run_mode(later, "again", session=session)
    assert read_outputs(read_requests(agent)[1].items) == {"c": WITHHELD, "d": "sesame"}


@pytest.mark.scenario("GO-06")
async def test_guardrails_that_passed_keep_nothing_of_a_withheld_output(run_mode: Run) -> None:
    """The results of passed guardrails are emptied too, in declaration order; an output that passes stays whole."""
    passed = anyio.Event()

    async def notes(ctx: Any, agent: Any, output: Any) -> Any:
        passed.set()
        return GuardrailFunctionOutput(f"saw {output}")

    async def judges(ctx: Any, agent: Any, output: Any) -> Any:
        await passed.wait()
        return GuardrailFunctionOutput("", agent.name == "strict")

    fields: dict[str, Any] = {
        "tools": [secret],
        "tool_use_behavior": "stop_on_first_tool",
        "output_guardrails": [output_guardrail(judges), output_guardrail(notes)],
    }
    with pytest.raises(OutputGuardrailTripwireTriggered) as caught:
        await run_mode(script_agent("strict", call("secret"), **fields), "go")
    assert caught.value.run_data is not None
    results = caught.value.run_data.output_guardrail_results
    assert [found.guardrail.name for found in results] == ["judges", "notes"]
    assert withheld([(found.output, found.agent_output) for found in results])
    result = await run_mode(script_agent("mild", call("secret"), **fields), "go")
    assert result.output_guardrail_results[1].output.output_info == "saw sesame"
    assert result.final_output == "sesame"


async def test_all_outputs_are_withheld_where_a_callable_made_one_of_them(run_mode: Run) -> None:
    """The runtime does not know from which of the calls the callable took the output."""

    def behavior(ctx: Any, results: Any) -> Any:
        return ToolsToFinalOutput(is_final=True, output=results[1].value)

    agent = script_agent(
        "a",
        [call("secret", call_id="c"), call("secret", call_id="d")],
        tools=[secret],
        tool_use_behavior=behavior,
        output_guardrails=[make_output_guard("g", TRIPPED)],
    )
    with pytest.raises(OutputGuardrailTripwireTriggered) as caught:
        await run_mode(agent, "go")
    assert caught.value.run_data is not None
    assert read_outputs(caught.value.run_data.new_items) == {"c": WITHHELD, "d": WITHHELD}


def names_the_guardrail(args: BlockedOutputArgs) -> str:
    """Write a text of all that the arguments have."""
    return f"{args.agent.name} was refused by {args.guardrail} for {args.context.context}: {args.default}"


@pytest.mark.parametrize(
    ("given", "told"),
    [("Refused.", "Refused."), (names_the_guardrail, f"a was refused by first for Ada: {WITHHELD}")],
    ids=["text", "function"],
)
async def test_the_application_words_what_a_withheld_output_becomes(run_mode: Run, given: Any, told: str) -> None:
    """One text, wherever the usual one would stand; where two trip, of the first. The trip is raised as ever."""
    session = MemorySession()

    async def notes(ctx: Any, agent: Any, output: Any) -> Any:
        return GuardrailFunctionOutput(f"saw {output}")

    guards = [output_guardrail(notes), make_output_guard("first", TRIPPED)]
    agent = script_agent(
        "a",
        call("secret", call_id="c"),
        tools=[secret],
        tool_use_behavior="stop_on_first_tool",
        output_guardrails=guards,
    )
    config = RunConfig(output_guardrail_blocked_message=given)
    with pytest.raises(OutputGuardrailTripwireTriggered) as caught:
        await run_mode(agent, "go", session=session, run_config=config, context="Ada")
    data = caught.value.run_data
    assert data is not None
    assert caught.value.guardrail_result in data.output_guardrail_results
    assert [found.agent_output for found in data.output_guardrail_results] == [told, told]
    assert withheld([found.output for found in data.output_guardrail_results])
    assert read_outputs(data.new_items) == read_outputs(await session.get_items()) == {"c": told}
    [replaced] = find_records(data, r.HistoryReplaced)
    assert read_outputs(replaced.items) == {"c": told}


async def test_the_words_for_a_withheld_output_are_asked_for_once(run_mode: Run) -> None:
    """Two guardrails that refuse it at once leave one text."""
    asked: list[str] = []
    meet = Rendezvous(2)

    async def refuse(ctx: Any, agent: Any, output: Any) -> Any:
        await meet.wait()
        return TRIPPED

    def words(args: BlockedOutputArgs) -> str:
        asked.append(args.guardrail)
        return args.guardrail

    agent = script_agent(
        "a",
        call("secret", call_id="c"),
        tools=[secret],
        tool_use_behavior="stop_on_first_tool",
        output_guardrails=[output_guardrail(refuse, name=name) for name in ("one", "two")],
    )
    with pytest.raises(OutputGuardrailTripwireTriggered) as caught:
        await run_mode(agent, "go", run_config=RunConfig(output_guardrail_blocked_message=words))
    assert caught.value.run_data is not None
    assert [found.agent_output for found in caught.value.run_data.output_guardrail_results] == asked * 2
    assert read_outputs(caught.value.run_data.new_items) == {"c": asked[0]}


async def _words_too_late() -> str:
    raise AssertionError("nobody waits for it")


def _breaks(args: BlockedOutputArgs) -> str:
    raise LookupError("no words")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (_breaks, "raised LookupError"),
        (lambda args: None, ""),
        (lambda args: "", "returned an empty text"),
        (lambda args: 7, "returned a value of type int, not text"),
        (lambda args: _words_too_late(), "returned a value of type coroutine, not text"),
    ],
    ids=["raises", "none", "empty", "number", "async"],
)
async def test_a_message_that_fails_leaves_the_usual_one(
    run_mode: Run, given: Any, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The output is withheld all the same, and there is a line in the log."""
    agent = script_agent(
        "a",
        call("secret", call_id="c"),
        tools=[secret],
        tool_use_behavior="stop_on_first_tool",
        output_guardrails=[make_output_guard("g", TRIPPED)],
    )
    config = RunConfig(output_guardrail_blocked_message=given)
    with pytest.raises(OutputGuardrailTripwireTriggered) as caught:
        await run_mode(agent, "go", run_config=config)
    assert caught.value.run_data is not None
    assert read_outputs(caught.value.run_data.new_items) == {"c": WITHHELD}
    said = [f"output_guardrail_blocked_message {line}; the default text is used"] if line else []
    assert [record.getMessage() for record in caplog.records] == said
    assert ("no words" in caplog.text) is (given is _breaks)


def test_an_error_that_may_repeat_a_secret_is_logged_by_its_type(caplog: pytest.LogCaptureFixture) -> None:
    """As the errors of other callbacks within a secret call."""
    args = BlockedOutputArgs(guardrail="g", agent=None, context=RunContext(context=None))
    assert blocked_text(_breaks, args, redact=True) == WITHHELD
    assert "LookupError" in caplog.text
    assert "no words" not in caplog.text


async def _never_asked(args: BlockedOutputArgs) -> str:
    return ""


@pytest.mark.parametrize("given", ["", 7, _never_asked], ids=["empty", "number", "async"])
def test_a_message_that_could_not_be_used_is_refused_before_the_run(given: Any) -> None:
    """An async function would leave the output in place while it is awaited."""
    with pytest.raises((UserTypeError, UserValueError), match="output_guardrail_blocked_message: expected a text that"):
        RunConfig(output_guardrail_blocked_message=given)


@pytest.mark.parametrize("others", [0, 1])
async def test_a_run_that_is_cancelled_as_a_guardrail_trips_keeps_nothing_of_the_output(others: int) -> None:
    """The error is the cancellation then, so that the records have to say what is withheld."""
    journal, scope = MemoryJournal(), anyio.CancelScope()

    def judge(ctx: Any, agent: Any, output: Any) -> Any:
        scope.cancel()
        return GuardrailFunctionOutput(f"found {output}", True)

    agent = script_agent(
        "a",
        call("secret", call_id="c"),
        tools=[secret],
        tool_use_behavior="stop_on_first_tool",
        output_guardrails=[output_guardrail(judge), *[make_output_guard("g", PASSED)] * others],
    )
    config = RunConfig(output_guardrail_blocked_message="Refused.")
    with scope:
        await Runner.run(agent, "go", run_config=config, journal=journal)
    assert scope.cancelled_caught
    state = await RunState.from_journal(agent, journal)
    verdicts = [one for one in state.records if isinstance(one, r.GuardrailSettled)]
    assert "tripped" in [one.verdict for one in verdicts]
    assert withheld([one.info for one in verdicts])
    [replaced] = [one for one in state.records if isinstance(one, r.HistoryReplaced)]
    assert read_outputs(replaced.items) == {"c": "Refused."}


async def test_turn_that_a_callable_does_not_end_is_stored_before_the_next(run_mode: Run) -> None:
    """A turn that the callable does not end is stored as any turn is."""
    session = Written()
    agent = script_agent(
        "a",
        call("secret", call_id="c"),
        say("done"),
        tools=[secret],
        tool_use_behavior=lambda ctx, results: ToolsToFinalOutput(is_final=False),
    )
    await run_mode(agent, "go", session=session)
    assert session.writes == [["user:go", "call:secret#c", "output:sesame#c"], ["says:done"]]


async def test_final_output_of_a_tool_is_stored_once_it_is_accepted(run_mode: Run) -> None:
    """The output is stored in one write with its call."""
    session = Written()
    agent = script_agent("a", call("secret", call_id="c"), tools=[secret], tool_use_behavior="stop_on_first_tool")
    result = await run_mode(agent, "go", session=session)
    assert result.final_output == "sesame"
    assert session.writes == [["user:go", "call:secret#c", "output:sesame#c"]]


SECRET_TURN = ["user:go", "call:secret#c", "output:sesame#c"]
CANDIDATES = {
    "the model": ([say("done")], {}, []),
    "the model in its second turn": ([call("secret", call_id="c"), say("done")], {"max_turns": 2}, [SECRET_TURN]),
    "a tool": ([call("secret", call_id="c")], {"tool_use_behavior": "stop_on_first_tool"}, []),
    "a handler": ([call("secret", call_id="c")], {}, [SECRET_TURN]),
}
"""The source of the judged candidate: the model's steps, options, and the content of the session by then."""
made_by_each = pytest.mark.parametrize("made_by", CANDIDATES)


class Judged:
    """A run whose output guardrail waits, and its session."""

    def __init__(self, made_by: str) -> None:
        steps, options, self.writes = CANDIDATES[made_by]
        self.held, self.session = HeldWork(), Written()

        async def guard(ctx: Any, agent: Any, output: Any) -> Any:
            await self.held()
            return PASSED

        behavior = options.get("tool_use_behavior", "run_llm_again")
        guards = [output_guardrail(guard)]
        self.agent = script_agent("a", *steps, tools=[secret], tool_use_behavior=behavior, output_guardrails=guards)
        handlers = {"max_turns": lambda data: "I gave up"}
        self.options = {"session": self.session, "max_turns": options.get("max_turns", 1), "error_handlers": handlers}

    def check(self) -> None:
        """Check that the guardrail was awaited, and that nothing of the final turn was written."""
        assert self.held.ending == "cleaned up"
        assert self.session.writes == self.writes


@pytest.mark.scenario("GO-07")
@pytest.mark.parametrize("cancel_source", ["cancel", "break"])
@made_by_each
async def test_stream_that_is_ended_during_an_output_guardrail_writes_no_final_turn(
    made_by: str, cancel_source: str
) -> None:
    """The session keeps what earlier turns wrote, and that alone."""
    judged = Judged(made_by)
    async with Runner.run_streamed(judged.agent, "go", **judged.options) as stream:
        await judged.held.started.wait()
        if cancel_source == "cancel":
            stream.cancel()
            await stream.finished()
    assert stream.result.status == "cancelled"
    judged.check()


@pytest.mark.scenario("GO-07")
@made_by_each
async def test_caller_s_cancellation_during_an_output_guardrail_writes_no_final_turn(
    run_mode: Run, made_by: str
) -> None:
    """The session keeps what earlier turns wrote, and that alone."""
    judged = Judged(made_by)
    await cancel_when(judged.held.started, lambda: run_mode(judged.agent, "go", **judged.options))
    judged.check()


@made_by_each
async def test_run_s_timeout_during_an_output_guardrail_writes_no_final_turn(run_mode: Run, made_by: str) -> None:
    """The candidate isn't accepted: the next run on the session would judge it."""
    judged = Judged(made_by)

    async def pass_the_deadline() -> None:
        await judged.held.started.wait()
        advance_clock(60)

    async with anyio.create_task_group() as group:
        group.start_soon(pass_the_deadline)
        with pytest.raises(RunTimeoutError):
            await run_mode(judged.agent, "go", run_config=RunConfig(timeout=60), **judged.options)
    judged.check()


async def test_a_run_that_is_cancelled_while_it_asks_whether_an_output_is_final_writes_no_turn(run_mode: Run) -> None:
    """The output of a tool may become the final one, which a guardrail would have to judge."""
    held, session = HeldWork(), Written()

    async def ask(ctx: Any, results: Any) -> Any:
        await held()

    agent = script_agent("a", call("secret", call_id="c"), tools=[secret], tool_use_behavior=ask)
    await cancel_when(held.started, lambda: run_mode(agent, "go", session=session))
    assert session.writes == []


@made_by_each
async def test_a_resumed_run_that_is_cancelled_at_once_writes_no_final_turn(run_mode: Run, made_by: str) -> None:
    """It hasn't seen yet that it has a candidate, and what isn't judged isn't written."""
    judged, journal = Judged(made_by), MemoryJournal()
    options = {**judged.options, "journal": journal}
    await cancel_when(judged.held.started, lambda: run_mode(judged.agent, "go", **options))
    with anyio.CancelScope() as scope:

        class Cancels(Instrument):
            def on_record(self, record: r.Record) -> None:
                if isinstance(record, r.RunResumed):
                    scope.cancel()

        state = await RunState.from_journal(judged.agent, journal)
        await run_mode(judged.agent, state, run_config=RunConfig(instruments=[Cancels()]), **options)
    assert scope.cancelled_caught
    judged.check()


@pytest.mark.scenario("GO-08")
async def test_handler_s_output_passes_output_guardrails(run_mode: Run) -> None:
    """The handler's output is judged as the model's output is."""
    judged: list[Any] = []

    async def guard(ctx: Any, agent: Any, output: Any) -> Any:
        judged.append(output)
        return GuardrailFunctionOutput(None, output == "bad")

    async def run(output: str) -> Any:
        agent = script_agent("a", call("secret"), tools=[secret], output_guardrails=[output_guardrail(guard)])
        return await run_mode(agent, "go", max_turns=1, error_handlers={"max_turns": lambda data: output})

    assert (await run("good")).final_output == "good"
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await run("bad")
    assert judged == ["good", "bad"]


async def test_output_guardrails_do_not_judge_a_run_without_an_output(run_mode: Run) -> None:
    """A run that gives up has no output to judge."""
    log: list[str] = []
    agent = script_agent("a", call("secret"), tools=[secret], output_guardrails=[make_output_guard("g", log=log)])
    with pytest.raises(MaxTurnsExceeded):
        await run_mode(agent, "go", max_turns=1)
    assert log == []


async def test_output_guardrail_that_answers_nothing_is_an_error_of_the_application(run_mode: Run) -> None:
    """The error names the guardrail."""
    with pytest.raises(UserTypeError, match="'odd'"):
        await run_mode(script_agent("a", say("done"), output_guardrails=[make_output_guard("odd", None)]), "go")


def test_what_is_not_callable_is_no_output_guardrail() -> None:
    """The value is refused at construction, and the error names the field."""
    with pytest.raises(UserTypeError, match=r"OutputGuardrail\.fn"):
        OutputGuardrail(5)  # type: ignore[arg-type]
