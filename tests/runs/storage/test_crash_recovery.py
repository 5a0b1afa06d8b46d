"""Crashes, simulated: a run's journal is cut after every record, and the run resumes from there."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from kit.agents import script_turns
from kit.crashes import (
    KINDS,
    LEAVES,
    Ledger,
    Plot,
    WholeRun,
    build_agent,
    check_recovered,
    check_same,
    configure_plot,
    count_lines,
    describe_known,
    read_calls,
    read_kind,
    recover,
    run_to_end,
    run_undisturbed,
)
from kit.ending import Fatal, Rendezvous
from kit.results import check_history, find_outcome, find_records, read_shown_outputs, read_statuses
from kit.resuming import BatchJournal, make_journal
from kit.watching import AtRecord

from agentloop import (
    Agent,
    GuardrailFunctionOutput,
    OutputGuardrailTripwireTriggered,
    Runner,
    ToolCallError,
    ToolContext,
    output_guardrail,
    tool,
)
from agentloop import records as r
from agentloop.exceptions import EarlierFailure
from agentloop.guardrails import RejectContent, ReplaceOutput, tool_output_guardrail
from agentloop.items import UserMessage
from agentloop.sessions import MemorySession
from agentloop.testing import FunctionModel, ScriptedModel, call, say
from agentloop.tools import ToolsToFinalOutput

WORLDS: dict[str, Plot] = {
    "calls of every kind": Plot((("plain", "idem", "rerun"), ("guarded", "fails", "plain")), at_once=2, guarded=True),
    "approvals": Plot((("plain", "asks", "idem"), ("asks", "asks"))),
    "a nested agent": Plot((("sub", "plain"), ("idem",)), inner=("plain", "idem", "asks")),
    "two of one nested agent": Plot((("sub", "sub"),), inner=("asks", "plain")),
    "an approved nested agent": Plot((("asks_sub", "plain"),), inner=("plain", "asks")),
    "a handoff": Plot((("plain",), ("idem", "plain"), ("asks",)), handoff_after=1, guarded=True),
    "a handoff beside calls that wait": Plot((("asks", "plain"), ("idem",)), handoff_after=1),
}


async def cut_everywhere(whole: WholeRun, places: Sequence[int]) -> None:
    """Recover from the journal cut after each of *places* records, and check what came of it."""
    for count in places:
        lines = whole.lines[: 1 + count]
        try:
            recovered = await recover(whole, lines)
            check_recovered(whole, lines, recovered)
        except Exception as error:
            error.add_note(f"crashed after {count} of {len(whole.lines) - 1} records; the last: {lines[-1][:200]!r}")
            raise


@pytest.mark.slow
@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("world", WORLDS)
async def test_a_run_recovers_from_a_crash_after_any_record(world: str) -> None:
    """No finished call runs again, a call in doubt follows its tool's policy, and the end equals the whole run's."""
    whole = await run_undisturbed(WORLDS[world])
    assert set(whole.ledger.count().values()) <= {1, 2}
    await cut_everywhere(whole, range(1, len(whole.lines) - 1))


@pytest.mark.parametrize("world", WORLDS)
async def test_a_run_recovers_from_a_crash_after_any_batch(world: str) -> None:
    """The cuts leave whole batches, as a journal does."""
    whole = await run_undisturbed(WORLDS[world])
    await cut_everywhere(whole, whole.ends_of_batches[:-1])


@pytest.mark.slow
@pytest.mark.backends("asyncio", "trio")
async def test_a_run_recovers_from_crashes_of_its_recoveries() -> None:
    """Each entry may crash as the first one did."""
    whole = await run_undisturbed(WORLDS["a nested agent"])
    total = len(whole.lines) - 1
    for count in range(1, total, 3):
        lines = whole.lines[: 1 + count]
        for more in (1, 2, 4, 7):
            once = (await recover(whole, lines)).lines
            if len(lines) + more >= len(once):
                break
            again = once[: len(lines) + more]
            recovered = await recover(whole, again)
            cut = read_calls(again[1:])
            check_same(describe_known(whole.result.new_items), describe_known(recovered.result.new_items))
            assert recovered.result.final_output == "all is done"
            for name in cut.finished:
                assert name not in read_calls(recovered.lines[len(again) :]).started
            lines = again


@pytest.mark.slow
@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("also", [False, True])
async def test_a_session_gets_each_item_once_over_a_crash(also: bool) -> None:
    """The session is complete in both cases: the write that the crash met was done, or it was not."""
    plot = Plot((("plain", "idem"), ("asks", "guarded"), ("plain",)), session=True, handoff_after=2)
    whole = await run_undisturbed(plot)
    assert whole.session is not None
    wanted = describe_known(await whole.session.get_items())
    faults: list[str] = []
    for count in range(1, len(whole.lines) - 1):
        session = await whole.session.as_of(count, also_at=also)
        recovered = await recover(whole, whole.lines[: 1 + count], session)
        try:
            check_same(sorted(wanted), sorted(describe_known(await session.get_items())))
        except AssertionError:
            faults.append(f"{count}: {whole.lines[count][:100]!r}")
        assert recovered.result.final_output == "all is done"
    assert not faults


async def test_a_session_gets_each_item_once_over_two_crashes_right_after_it_was_written() -> None:
    """The resumed entry writes behind the first one's items, so the session's order differs from the run's."""

    def passing() -> Agent[Any, Any]:
        @tool
        async def look() -> str:
            """Look."""
            return "seen"

        other: Agent[Any, Any] = Agent("other", model=ScriptedModel([say("done")]))
        turn = [call("look", call_id="c"), call("transfer_to_other", call_id="h")]
        return Agent("guide", model=script_turns(turn), tools=[look], handoffs=[other])

    async def session_of(items: Sequence[Any]) -> MemorySession:
        session = MemorySession()
        await session.add_items(items)
        return session

    async def cut_behind(journal: BatchJournal, kind: str) -> BatchJournal:
        lines = await journal.read()
        [place] = [place for place, line in enumerate(lines) if f'"kind":"{kind}"'.encode() in line]
        return await make_journal(lines[: place + 1])

    first, session = BatchJournal(), MemorySession()
    await Runner.run(passing(), "go", journal=first, session=session)
    wanted = await session.get_items()
    assert [type(item).__name__ for item in wanted[:5]] == [
        *("UserMessage", "ToolCall", "ToolOutput", "HandoffCall", "HandoffOutput")
    ]
    second, session = await cut_behind(first, "batch_ended"), await session_of(wanted[:3])
    await Runner.resume(passing(), second, session=session)
    assert await session.get_items() == wanted
    third, session = await cut_behind(second, "handed_off"), await session_of(wanted[:5])
    assert not any(b"session_saved" in line for line in await third.read())
    await Runner.resume(passing(), third, session=session)
    assert await session.get_items() == wanted


@pytest.mark.backends("asyncio", "trio")
async def test_an_output_that_is_withheld_after_a_crash_reaches_the_session_once() -> None:
    """The withheld text replaces the output of the first call; that of the second was in the log before the crash."""

    @tool
    async def look(n: int) -> str:
        """Look."""
        return f"seen {n}"

    @output_guardrail
    async def refuse(_: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(tripwire_triggered=True)

    def make() -> Agent[Any, Any]:
        model = script_turns([call("look", {"n": 1}, call_id="c1"), call("look", {"n": 2}, call_id="c2")])
        fields: Any = {"tools": [look], "tool_use_behavior": "stop_on_first_tool", "output_guardrails": [refuse]}
        return Agent("a", model=model, **fields)

    journal, whole = BatchJournal(), MemorySession()
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await Runner.run(make(), "go", journal=journal, session=whole)
    wanted, lines = await whole.get_items(), await journal.read()
    assert [type(item).__name__ for item in wanted] == ["UserMessage", *["ToolCall"] * 2, *["ToolOutput"] * 2]
    [place] = [place for place, line in enumerate(lines) if b'"kind":"batch_ended"' in line]
    session = MemorySession()
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await Runner.resume(make(), await make_journal(lines[: place + 1]), session=session)
    assert await session.get_items() == wanted


def end_with_the_first(_: Any, results: Any) -> ToolsToFinalOutput:
    """Let the first call end the run with its value."""
    return ToolsToFinalOutput(is_final=True, output=results[0].value)


class JournaledSession(MemorySession):
    """Notes for each write how many lines the run's journal had then."""

    def __init__(self, journal: BatchJournal) -> None:
        super().__init__()
        self.journal, self.writes = journal, list[tuple[int, list[Any]]]()

    async def add_items(self, items: Sequence[Any]) -> None:
        """Note and write them."""
        self.writes.append((len(await self.journal.read()), list(items)))
        await super().add_items(items)


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("also", [False, True])
@pytest.mark.parametrize("earlier", [False, True])
async def test_a_session_gets_equal_items_of_several_turns_each_once(earlier: bool, also: bool) -> None:
    """A model that repeats its wrong answer gets the same correction, and a user asks the same again: a crash may come
    before the write of the turn that began, and then the equal items of the turn before it aren't that write.
    """

    def answer(request: Any) -> Any:
        since = max(n for n, item in enumerate(request.items) if item == UserMessage("go"))
        corrected = sum(isinstance(item, UserMessage) for item in request.items[since:])
        return say("no JSON" if corrected < 4 else '{"response": 5}')

    agent: Agent[Any, Any] = Agent("a", model=FunctionModel(answer), output_type=int, output_retries=3)
    journal = BatchJournal()
    session = JournaledSession(journal)
    before: list[Any] = []
    if earlier:
        before = await session_of_a_run(agent)
        await MemorySession.add_items(session, before)
    await Runner.run(agent, "go", journal=journal, session=session)
    lines, wanted = await journal.read(), await session.get_items()
    assert len(wanted) == len(before) + 8
    assert len(session.writes) == 4
    for count in range(2, len(lines)):
        cut = MemorySession()
        await cut.add_items(before)
        for at, items in session.writes:
            if at < count or (also and at == count):
                await cut.add_items(items)
        result = await Runner.resume(agent, await make_journal(lines[:count]), session=cut)
        assert result.final_output == 5
        assert await cut.get_items() == wanted, f"after {count} lines"


async def session_of_a_run(agent: Agent[Any, Any]) -> list[Any]:
    """Return what a session holds after a run of *agent*."""
    session = MemorySession()
    await Runner.run(agent, "go", session=session)
    return await session.get_items()


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("behavior", ["stop_on_first_tool", end_with_the_first])
async def test_a_typed_run_that_a_call_ends_has_its_value_after_a_crash_too(behavior: Any) -> None:
    """The journal holds the value of a body, and the text that a model would see."""

    @tool
    async def count() -> list[int]:
        """Count."""
        return [1, 2]

    def make() -> Agent[Any, Any]:
        model = ScriptedModel([call("count", call_id="c")])
        return Agent("a", model=model, tools=[count], output_type=list[int], tool_use_behavior=behavior)

    journal = BatchJournal()
    whole = await Runner.run(make(), "go", journal=journal)
    assert whole.final_output == [1, 2]
    lines = await journal.read()
    [settled] = [place for place, line in enumerate(lines) if b'"kind":"call_settled"' in line]
    for stop in range(settled + 1, len(lines)):
        result = await Runner.resume(make(), await make_journal(lines[:stop]))
        assert result.final_output == [1, 2], f"after {stop} lines"


@pytest.mark.slow
@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("world", ["calls of every kind", "a nested agent", "a handoff beside calls that wait"])
async def test_a_run_that_is_cancelled_at_any_record_goes_on_from_its_journal(world: str) -> None:
    """No ended body runs again, a cut one only if its tool says so; the end is that of the whole run."""
    plot = attrs.evolve(WORLDS[world], session=True)
    whole = await run_undisturbed(plot)
    assert whole.session is not None
    wanted = sorted(describe_known(await whole.session.get_items()))
    for count in range(1, len(whole.lines) - 2, 2):
        journal, session = BatchJournal(), MemorySession()
        agent = build_agent(plot, Ledger())
        with anyio.CancelScope() as scope:
            config = configure_plot(plot, AtRecord(count, do=scope.cancel))
            await run_to_end(agent, "go", journal=journal, session=session, run_config=config)
        lines = await journal.read()
        if not scope.cancelled_caught or b'"status":"completed"' in lines[-1]:
            continue
        recovered = await recover(whole, lines, session)
        cut, again = read_calls(lines[1:]), read_calls(recovered.lines[len(lines) :]).started
        assert not again & cut.ended
        assert {read_kind(name) for name in again & cut.started} <= {"idem", "rerun", "sub", "asks_sub"}
        assert recovered.result.final_output == "all is done"
        check_history(recovered.result.to_input_list())
        check_same(sorted(describe_known(whole.result.new_items)), sorted(describe_known(recovered.result.new_items)))
        check_same(wanted, sorted(describe_known(await session.get_items())))


# ---------------------------------------------------------------------------------------------- what is in doubt


async def crashed_at(
    kind: str, agent: Agent[Any, Any], count: int = 1, *, raises: type[BaseException] | None = None
) -> BatchJournal:
    """Return the journal of a run of *agent* up to the *count*-th record of *kind*, that one included.

    *raises* is what the run ends with, if anything.
    """
    whole = BatchJournal()
    with pytest.raises(raises) if raises is not None else nullcontext():
        await Runner.run(agent, "go", journal=whole)
    lines = await whole.read()
    places = [place for place, line in enumerate(lines) if f'"kind":"{kind}"'.encode() in line]
    journal = BatchJournal()
    await journal.append(lines[: places[count - 1] + 1])
    return journal


def worker(ran: list[str], then: str = "worked", **options: Any) -> Agent[Any, Any]:
    """Return an agent with one call of a tool with *options*."""

    @tool(**options)
    async def work(ctx: ToolContext[Any]) -> str:
        """Work."""
        ran.append(ctx.idempotency_key)
        return then

    return Agent("guide", model=script_turns(call("work", call_id="w"), say("done")), tools=[work])


@pytest.mark.scenario("LX-45")
async def test_by_default_the_model_is_told_that_nobody_knows() -> None:
    """The body isn't run, no hook hears of a start, and the model receives an unknown outcome."""
    ran: list[str] = []
    journal = await crashed_at("call_started", worker(ran))
    ran.clear()
    agent = worker(ran)
    done = await Runner.resume(agent, journal)
    assert ran == []
    assert read_statuses(done) == ["unknown"]
    assert read_shown_outputs(agent) == {
        "w": "Tool 'work' was interrupted when the run stopped; whether it took effect is unknown."
    }
    [started] = find_records(done, r.CallStarted)
    assert started.attempt == 1


@pytest.mark.parametrize(
    "options",
    [{"in_doubt": "rerun"}, {"reads_only": True}, {"idempotent": True}, {"idempotent": True, "in_doubt": "raise"}],
)
async def test_what_may_be_run_again_is_with_the_same_key(options: Any) -> None:
    """The body runs as attempt two with the same idempotency key."""
    ran: list[str] = []
    journal = await crashed_at("call_started", worker(ran, **options))
    [key] = ran
    done = await Runner.resume(worker(ran, **options), journal)
    assert ran == [key, key]
    assert read_statuses(done) == ["succeeded"]
    run_id = done.to_state().run_id
    assert [(record.attempt, record.idempotency_key(run_id)) for record in find_records(done, r.CallStarted)] == [
        (1, key),
        (2, key),
    ]
    assert [record.attempt for record in find_records(done, r.CallSettled)] == [2]


async def test_a_tool_that_says_raise_raises_before_anything_else_starts() -> None:
    """The error names the call; siblings that had not started stay so."""
    ran: list[str] = []

    @tool(in_doubt="raise")
    async def work() -> str:
        """Work."""
        ran.append("work")
        return "worked"

    @tool
    async def other() -> str:
        """Do something else."""
        ran.append("other")
        return "done"

    agent = Agent("guide", tools=[work, other], tool_execution="sequential")
    agent.model = script_turns([call("work", call_id="w"), call("other", call_id="o")], say("done"))
    journal = await crashed_at("call_started", agent)
    ran.clear()
    with pytest.raises(ToolCallError, match=r"'w' of tool 'work'.*unknown") as caught:
        await Runner.resume(agent, journal)
    assert caught.value.outcome.status == "unknown"
    assert ran == []


async def test_a_body_that_had_ended_is_delivered_and_not_run_again() -> None:
    """The body's value passes the remaining steps; the outcome is that of attempt two."""
    ran: list[str] = []
    options: dict[str, Any] = {"custom_data_extractor": lambda ctx, value: None}  # a step between body and outcome
    journal = await crashed_at("body_ended", worker(ran, **options))
    ran.clear()
    agent = worker(ran, **options)
    done = await Runner.resume(agent, journal)
    assert ran == []
    assert read_statuses(done) == ["succeeded"]
    assert read_shown_outputs(agent) == {"w": "worked"}
    assert [record.attempt for record in find_records(done, r.CallSettled)] == [2]


async def test_a_body_that_had_failed_is_told_as_it_would_have_been() -> None:
    """The tool's failure policy words the failure from the stored part of the error."""

    @tool
    async def work() -> str:
        """Work."""
        raise ValueError("no luck")

    agent = Agent("guide", model=script_turns(call("work", call_id="w"), say("done")), tools=[work])
    journal = await crashed_at("body_ended", agent)
    done = await Runner.resume(agent, journal)
    assert read_statuses(done) == ["failed"]
    assert "ValueError(no luck)" in read_shown_outputs(agent)["w"]


async def test_a_body_that_had_raised_what_nobody_answers_ends_the_run_again() -> None:
    """No policy of the tool is asked about an error that is no `Exception`, before the crash or after it."""

    @tool
    async def work() -> str:
        """Work."""
        raise Fatal("over")

    agent = Agent("guide", model=script_turns(call("work", call_id="w"), say("done")), tools=[work])
    journal = await crashed_at("body_ended", agent, raises=Fatal)
    with pytest.raises(EarlierFailure, match=r"Fatal\(over\)"):
        await Runner.resume(agent, journal)
    assert read_shown_outputs(agent) == {}


async def test_a_body_s_failure_that_is_raised_leaves_after_a_crash_as_it_would_have_before() -> None:
    """A `ToolCallError` with the same words leaves; its cause is the stored part of the error."""

    @tool(failure_error_function=None)
    async def work() -> str:
        """Work."""
        raise ValueError("no luck")

    agent = Agent("guide", model=script_turns(call("work", call_id="w"), say("done")), tools=[work])
    journal = await crashed_at("body_ended", agent, raises=ToolCallError)
    with pytest.raises(ToolCallError, match=r"^Error running tool work: ValueError: no luck$") as caught:
        await Runner.resume(agent, journal)
    assert isinstance(caught.value.__cause__, EarlierFailure)
    assert caught.value.outcome.status == "failed"


def nests(error: BaseException, *, siblings: int = 0) -> Agent[Any, Any]:
    """Return an agent that asks another one, whose call raises *error*; so do *siblings* beside it, each its own.

    They do so together, or the first to raise would cut off those that have hardly begun: in which order they begin is
    the backend's affair.
    """
    together = Rendezvous(siblings + 1)

    @tool(failure_error_function=None)
    async def work(n: int = 0) -> str:
        """Work."""
        await together.wait()
        await anyio.lowlevel.checkpoint()  # who came last hasn't waited
        if n:
            raise ValueError(f"no luck {n}")
        raise error

    calls = [call("work", {"n": n}, call_id=f"w{n}") for n in range(siblings + 1)]
    inner = Agent("helper", model=script_turns(calls, say("done")), tools=[work])
    asks = inner.as_tool("ask", "Ask.")
    return Agent("guide", model=script_turns(call("ask", {"input": "?"}, call_id="a"), say("done")), tools=[asks])


FAILS_NESTED = [("body_ended", 1), ("call_settled", 1), ("run_ended", 1), ("body_ended", 2)]


@pytest.mark.parametrize(("kind", "count"), FAILS_NESTED)
async def test_a_nested_run_s_failure_is_told_as_it_would_have_been_without_the_crash(kind: str, count: int) -> None:
    """The crash may come at any step on the way from the nested body to the outer model."""
    undisturbed_run = nests(ValueError("no luck"))
    await Runner.run(undisturbed_run, "go")
    agent = nests(ValueError("no luck"))
    journal = await crashed_at(kind, agent, count)
    done = await Runner.resume(agent, journal)
    assert read_statuses(done) == ["failed"]
    assert read_shown_outputs(agent) == read_shown_outputs(undisturbed_run)
    assert "ToolCallError(Error running tool work: ValueError: no luck)" in read_shown_outputs(agent)["a"]


@pytest.mark.parametrize(("kind", "count"), FAILS_NESTED)
async def test_what_nobody_answers_ends_the_outer_run_also_after_a_crash_on_its_way(kind: str, count: int) -> None:
    """The fatal error ends the outer run without a question to any policy around the nested run."""
    agent = nests(Fatal("over"))
    journal = await crashed_at(kind, agent, count, raises=Fatal)
    with pytest.raises(EarlierFailure, match=r"Fatal\(over\)") as caught:
        await Runner.resume(agent, journal)
    assert caught.value.fatal
    assert read_shown_outputs(agent) == {}


@pytest.mark.parametrize("error", [ValueError("no luck"), Fatal("over")])
async def test_of_several_failures_that_were_settled_the_same_one_is_raised_after_a_crash(error: BaseException) -> None:
    """The resumed run raises the first failure in model order, and a fatal one before all others."""
    agent = nests(error, siblings=2)
    fatal = isinstance(error, Fatal)
    journal = await crashed_at("call_settled", agent, 3, raises=Fatal if fatal else None)
    told = read_shown_outputs(agent)
    with pytest.raises(EarlierFailure, match="over") if fatal else nullcontext():
        await Runner.resume(agent, journal)
    assert read_shown_outputs(agent) == told


async def test_what_an_output_guardrail_had_not_judged_was_not_kept() -> None:
    """The body isn't run again either: the model learns that the output was not kept."""
    ran: list[str] = []

    @tool_output_guardrail
    def judge(data: Any) -> ReplaceOutput:
        return ReplaceOutput("judged")

    options: dict[str, Any] = {"tool_output_guardrails": [judge], "idempotent": True}
    journal = await crashed_at("body_ended", worker(ran, "canary", **options))
    assert b"canary" not in b"".join(await journal.read())
    ran.clear()
    agent = worker(ran, "canary", **options)
    done = await Runner.resume(agent, journal)
    assert ran == []
    assert read_statuses(done) == ["unknown"]
    assert read_shown_outputs(agent) == {"w": "Tool 'work' finished; its output was not kept."}
    assert find_outcome(done, "w").body_finished


async def test_an_output_that_a_guardrail_replaced_stays_replaced() -> None:
    """The resumed run uses the settled outcome without a new judgement."""

    @tool_output_guardrail
    def judge(data: Any) -> RejectContent:
        judged.append("judged")
        return RejectContent("Hidden.")

    judged: list[str] = []
    ran: list[str] = []
    journal = await crashed_at("call_settled", worker(ran, tool_output_guardrails=[judge]))
    agent = worker(ran, tool_output_guardrails=[judge])
    await Runner.resume(agent, journal)
    assert read_shown_outputs(agent) == {"w": "Hidden."}
    assert judged == ["judged"]
    assert len(ran) == 1


async def test_an_answer_that_is_in_the_journal_is_not_asked_for_again() -> None:
    """The request counts once in the usage; an attempt without an answer is asked again in the same turn."""
    ran: list[str] = []
    answered = await crashed_at("model_responded", worker(ran))
    agent = worker(ran)
    done = await Runner.resume(agent, answered)
    assert len(agent.model.requests) == 1  # type: ignore[union-attr]
    assert done.usage.requests == 2
    asked = await crashed_at("model_requested", worker(ran))
    agent = worker(ran)
    done = await Runner.resume(agent, asked, max_turns=2)
    assert [request.turn for request in agent.model.requests] == [1, 2]  # type: ignore[union-attr]
    assert done.final_output == "done"


async def test_an_approval_that_was_given_before_the_crash_is_not_asked_again() -> None:
    """The approval is durable once the entry that carries it has begun."""
    ran: list[str] = []
    journal = BatchJournal()
    agent = worker(ran, needs_approval=True)
    first = await Runner.run(agent, "go", journal=journal)
    state = first.to_state()
    state.approve("w")
    await Runner.run(agent, state, journal=journal)
    lines = await journal.read()
    place = next(place for place, line in enumerate(lines) if b'"kind":"run_resumed"' in line)
    ran.clear()
    done = await Runner.resume(worker(ran, needs_approval=True), await make_journal(lines[: place + 1]))
    assert done.status == "completed"
    assert len(ran) == 1


# ---------------------------------------------------------------------------------------------- generated runs

_turns = st.lists(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3).map(tuple), min_size=1, max_size=2)
_plots = st.builds(
    Plot,
    turns=_turns.map(tuple),
    inner=st.lists(st.sampled_from(LEAVES), min_size=1, max_size=2).map(tuple),
    handoff_after=st.sampled_from((None, 1)),
    at_once=st.sampled_from((None, 1, 2)),
    guarded=st.booleans(),
)


@pytest.mark.slow
@settings(
    max_examples=20,
    # Explaining a failure traces every line, which takes minutes for a run.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
@given(plot=_plots, data=st.data())
def test_generated_runs_recover_on_either_backend(plot: Plot, data: st.DataObject) -> None:
    """A run begins on one backend and resumes on the other; it is cut after any batch, and again while it recovers."""
    one, other = data.draw(st.permutations(["asyncio", "trio"]))
    whole = anyio.run(run_undisturbed, plot, backend=one)
    length = data.draw(st.sampled_from(count_lines(whole.batches)[:-1]))
    lines = whole.lines[:length]
    recovered = anyio.run(recover, whole, lines, backend=other)
    check_recovered(whole, lines, recovered)
    again = data.draw(st.sampled_from(count_lines(recovered.batches)[:-1]))
    more = recovered.lines[:again]
    twice = anyio.run(recover, whole, more, backend=one)
    assert twice.result.final_output == "all is done"
    check_same(describe_known(whole.result.new_items), describe_known(twice.result.new_items))
    assert not read_calls(twice.lines[again:]).started & read_calls(more[1:]).finished
