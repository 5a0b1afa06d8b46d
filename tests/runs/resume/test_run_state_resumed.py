"""Runs that resume from a state: added input, changed definitions, sessions, traces, receipts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from kit.agents import PASSED, TRIPPED, Run, look, make_input_guard, script_turns
from kit.ending import cancel_when
from kit.results import (
    describe,
    find_outcome,
    find_records,
    read_outputs,
    read_requests,
    read_shown_outputs,
    read_statuses,
    read_turns,
    read_user_texts,
)
from kit.resuming import BatchJournal, copy_state, make_journal, restore_approved, restore_paused

from agentloop import (
    Agent,
    AgentLoopError,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    RunConfig,
    RunHooks,
    Runner,
    RunState,
    StateError,
    ToolExecution,
    Trace,
    handoff,
    input_guardrail,
    tool,
)
from agentloop import records as r
from agentloop.abc import Instrument
from agentloop.config.policies import Deny
from agentloop.exceptions import JournalError
from agentloop.items import AssistantMessage, ToolOutput, UserMessage
from agentloop.journal import FileJournal, SQLiteJournal
from agentloop.sessions import MemorySession
from agentloop.testing import call, normal, say
from agentloop.usage import RequestUsage


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def stopped_after_a_turn(agent: Agent[Any, Any], **options: Any) -> RunState:
    """Return the state of a run that was told to stop when its first turn is complete."""

    class Stop(RunHooks):
        async def on_llm_start(self, *_: Any) -> None:
            stream.cancel("after_turn")

    async with Runner.run_streamed(agent, "go", hooks=Stop(), **options) as stream:
        async for _ in stream:
            pass
    assert stream.result.status == "cancelled"
    state: RunState = stream.result.to_state()
    return state


# ---------------------------------------------------------------------------------------------- after a soft cancel


@pytest.mark.scenario("SC-07")
async def test_after_a_soft_cancel_usage_is_counted_and_the_run_goes_on(run_mode: Run) -> None:
    """The turn's request counts once, and the next entry continues with the next turn."""
    usage = RequestUsage(input_tokens=3, output_tokens=1, total_tokens=4)
    agent = Agent("guide", tools=[look])
    agent.model = script_turns([call("look", call_id="l"), say("wait", usage)], say("done", usage))
    state = await stopped_after_a_turn(agent)
    assert state._fold.usage.requests == 1
    assert state._fold.usage.total_tokens == 4
    done = await run_mode(agent, copy_state(state))
    assert done.final_output == "done"
    assert done.usage.requests == 2
    assert done.usage.total_tokens == 8
    assert len(find_records(done, r.CallStarted)) == 1


@pytest.mark.scenario("SC-11")
async def test_a_state_after_a_soft_cancel_goes_on_with_the_next_turn(run_mode: Run) -> None:
    """The state has the results of the turn, and no turn is taken twice."""
    agent = Agent("guide", model=script_turns(call("look", call_id="l"), say("done")), tools=[look])
    state = await stopped_after_a_turn(agent)
    assert read_turns(state.records) == [1]
    assert len(read_requests(agent)) == 1
    done = await run_mode(agent, state)
    assert read_turns(done.records) == [1, 2]
    assert read_shown_outputs(agent) == {"l": "seen"}
    assert [record.status for record in find_records(done, r.RunEnded)] == ["cancelled", "completed"]


# ---------------------------------------------------------------------------------------------- added input


@pytest.mark.scenario("RS-13")
async def test_added_input_is_shown_in_order_once_at_the_next_model_call(run_mode: Run) -> None:
    """Added text and items come after the earlier items, and they are among the run's items as input is."""
    agent = Agent("guide", model=script_turns(call("look", call_id="a"), call("look", call_id="b"), say("done")))
    agent.tools = [look]
    state = await stopped_after_a_turn(agent)
    state.add_input("first")
    state.add_input([UserMessage("second"), AssistantMessage("third")])
    state.add_input("fourth")
    done = await run_mode(agent, copy_state(state))
    assert done.final_output == "done"
    added = ["user:first", "user:second", "says:third", "user:fourth"]
    assert describe(read_requests(agent)[1].items) == ["user:go", "call:look#a", "output:seen#a", *added]
    assert [line for line in describe(read_requests(agent)[2].items) if line in added] == added
    assert [line for line in describe(done.new_items) if line in added] == added
    assert [len(record.items) for record in find_records(done, r.InputAdded)] == [1, 2, 1]


@pytest.mark.scenario("RS-13")
async def test_added_input_is_guarded(run_mode: Run) -> None:
    """The input guardrails judge the added input alone, once, before the model is asked."""
    judged: list[list[str]] = []

    @input_guardrail(name="watch")
    async def watch(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        texts = [given] if isinstance(given, str) else [item.text for item in given]
        judged.append(texts)
        return TRIPPED if "bad" in texts else PASSED

    agent = Agent("guide", model=script_turns(call("look", call_id="a"), call("look", call_id="b"), say("done")))
    agent.tools, agent.input_guardrails = [look], [watch]
    state = await stopped_after_a_turn(agent)
    good, bad = copy_state(state), copy_state(state)
    good.add_input("more")
    bad.add_input("bad")
    await run_mode(agent, good)
    assert judged == [["go"], ["more"]]
    asked = len(read_requests(agent))
    with pytest.raises(InputGuardrailTripwireTriggered):
        await run_mode(agent, bad)
    assert judged[2:] == [["bad"]]
    assert all("bad" not in read_user_texts(agent, place) for place in range(asked))


@pytest.mark.scenario("RS-13")
async def test_a_run_that_is_over_takes_no_input() -> None:
    """A run that has completed, or failed for good, takes no input."""
    agent = Agent("guide", model=script_turns(say("done")))
    state = (await Runner.run(agent, "go")).to_state()
    before = list(state.records)
    with pytest.raises(StateError, match="over"):
        state.add_input("more")
    failing = Agent("guide", model=script_turns(call("none", call_id="x")))
    async with Runner.run_streamed(failing, "go", run_config=RunConfig(tool_not_found_behavior="raise")) as stream:
        with pytest.raises(AgentLoopError):
            await stream.finished()
            stream.result
        failed = stream.state
        with pytest.raises(StateError, match="over"):
            failed.add_input("more")
        with pytest.raises(AgentLoopError):
            async for _ in stream:
                pass
    assert state.records == before


@pytest.mark.scenario("RS-13")
async def test_without_a_turn_left_no_input_is_taken(run_mode: Run) -> None:
    """Input is refused because no turn is left in which the model could receive it."""
    agent = Agent("guide", model=script_turns(call("look", call_id="a"), say("done")), tools=[look])
    with pytest.raises(MaxTurnsExceeded) as caught:
        await run_mode(agent, "go", max_turns=1)
    assert caught.value.run_data is not None
    state = RunState(agent, caught.value.run_data.records)
    with pytest.raises(StateError, match=r"no turn is left \(max_turns=1\)"):
        state.add_input("more")


@pytest.mark.scenario("RS-13")
async def test_input_added_while_calls_wait_is_shown_after_their_outputs(run_mode: Run) -> None:
    """It comes before the verdict or after it."""
    agent = Agent("guide", model=script_turns(call("pay", {"amount": 1}, call_id="p"), say("done")), tools=[pay])
    state = restore_paused(await run_mode(agent, "go"))
    state.add_input("before")
    state.approve("p")
    state.add_input("after")
    done = await run_mode(agent, copy_state(state))
    assert done.final_output == "done"
    shown = ["user:go", "call:pay#p", "output:paid 1#p", "user:before", "user:after"]
    assert describe(read_requests(agent)[1].items) == shown


@pytest.mark.scenario("RS-13")
@pytest.mark.parametrize("ends", ["by a message", "by a tool", "by a handoff"])
async def test_where_what_is_there_may_end_the_run_it_continues_with_the_input(ends: str) -> None:
    """The log is one that a crash cut before an output was judged or before the next agent took over."""
    target = Agent("target", model=script_turns(say("-"), say("more is done")))
    agent = Agent("guide", tools=[look])
    cut: type = r.RunEnded
    if ends == "by a message":
        agent.model = script_turns(say("done"), say("more is done"))
    elif ends == "by a tool":
        agent.model = script_turns(call("look", call_id="l"), say("more is done"))
        agent.tool_use_behavior = "stop_on_first_tool"
    else:
        agent.model, cut = script_turns(call("over", call_id="h")), r.HandedOff
        agent.handoffs = [handoff(target, tool_name="over")]
    records = (await Runner.run(agent, "go")).records
    place = next(place for place, record in enumerate(records) if isinstance(record, cut))
    state = RunState(agent, records[:place])
    state.add_input("more", when="idle" if ends == "by a message" else "turn")
    done = await Runner.run(agent, state)
    assert done.final_output == "more is done"
    asked = read_requests(target if ends == "by a handoff" else agent)
    assert describe(asked[-1].items)[-1] == "user:more"


@pytest.mark.real_clock
@pytest.mark.scenario("PE-01", "PE-02")
@pytest.mark.parametrize("kind", ["file", "sqlite"])
async def test_input_is_added_to_a_journal_without_the_process_of_the_run(
    run_mode: Run, kind: str, tmp_path: Path
) -> None:
    """It waits for the resume. Of two objects that read the same journal one adds to it."""

    def opened() -> Any:
        path = tmp_path / "run.journal"
        return FileJournal(path) if kind == "file" else SQLiteJournal(path, "run")

    agent = Agent("guide", model=script_turns(call("pay", {"amount": 1}, call_id="p"), say("done")), tools=[pay])
    async with opened() as journal:
        await run_mode(agent, "go", journal=journal)
    async with opened() as journal, opened() as other:
        first, late = [await RunState.from_journal(agent, each) for each in (journal, other)]
        await first.append_to(journal)  # nothing was given
        first.add_input("more")
        first.approve("p")
        await first.append_to(journal)
        first.add_input("even more", when="idle")
        first.withdraw(first.add_input("gone"))
        await first.append_to(journal)
        late.add_input("late")
        with pytest.raises(JournalError):
            await late.append_to(other)
    async with opened() as journal:
        state = await RunState.from_journal(agent, journal)
        assert [(one.id, one.status) for one in state.inputs] == [
            ("input_1", "waiting"),
            ("input_2", "waiting"),
            ("input_3", "withdrawn"),
        ]
        done = await run_mode(agent, state, journal=journal, max_turns=2)
    assert done.final_output == "done"
    assert describe(read_requests(agent)[1].items)[-3:] == ["output:paid 1#p", "user:more", "user:even more"]


# ---------------------------------------------------------------------------------------------- changed definitions


def pending_with_a_sibling(ran: list[str], **changes: Any) -> Agent[Any, Any]:
    """Return an agent with two calls that wait; *changes* are the second tool's."""

    @tool(needs_approval=True)
    async def note() -> str:
        """Note."""
        ran.append("note")
        return "noted"

    @tool(name="pay", needs_approval=True)
    async def noted(amount: int) -> str:
        """Pay."""
        ran.append(f"pay {amount}")
        return f"paid {amount}"

    calls = [call("note", call_id="n"), call("pay", {"amount": 1}, call_id="p")]
    return Agent("guide", model=script_turns(calls, say("done")), tools=[note, attrs.evolve(noted, **changes)])


@pytest.mark.scenario("RS-14")
async def test_a_renamed_tool_with_a_pending_call_fails_before_anything_runs(run_mode: Run) -> None:
    """The run fails before anything runs, the approved sibling included."""
    ran: list[str] = []
    state = restore_approved(await run_mode(pending_with_a_sibling(ran), "go"))
    renamed = pending_with_a_sibling(ran, name="pay_now")
    with pytest.raises(AgentLoopError, match="pay"):
        await run_mode(renamed, copy_state(state, renamed), run_config=RunConfig(tool_not_found_behavior="raise"))
    assert ran == []
    done = await run_mode(state.agent, state)
    assert sorted(ran) == ["note", "pay 1"]
    assert done.final_output == "done"


@pytest.mark.scenario("RS-14")
async def test_a_changed_schema_of_a_tool_with_a_pending_call_fails_before_anything_runs(run_mode: Run) -> None:
    """The error names call, tool and agent."""
    ran: list[str] = []
    state = restore_approved(await run_mode(pending_with_a_sibling(ran), "go"))
    schema = {"type": "object", "properties": {"amount": {"type": "string"}}, "required": ["amount"]}
    changed = pending_with_a_sibling(ran, params_json_schema=schema)
    with pytest.raises(StateError, match=r"'p'.*'pay'.*'guide'"):
        await run_mode(changed, copy_state(state, changed))
    assert ran == []


@pytest.mark.scenario("RS-14")
async def test_a_stricter_collision_policy_fails_before_anything_runs(run_mode: Run) -> None:
    """The run began with a warning about two tools of one name, and the stricter policy makes it an error."""
    ran: list[str] = []
    agent = pending_with_a_sibling(ran)
    agent.tools = [agent.tools[1], *agent.tools]
    agent.tools[0] = attrs.evolve(agent.tools[0], description="Another one.")
    state = restore_approved(await run_mode(agent, "go"))
    with pytest.raises(AgentLoopError, match="pay"):
        await run_mode(agent, copy_state(state), run_config=RunConfig(tool_name_collision_policy="raise"))
    assert ran == []


@pytest.mark.scenario("RS-17")
async def test_an_interruption_that_was_changed_approves_nothing(run_mode: Run) -> None:
    """An interruption with other arguments, another tool, agent, run of the tree or id approves nothing."""
    ran: list[str] = []
    state = restore_paused(await run_mode(pending_with_a_sibling(ran), "go"))
    shown_call = state.interruptions[1]
    for changed in (
        shown_call.replace(call=shown_call.call.replace(arguments='{"amount": 100}')),
        shown_call.replace(call=shown_call.call.replace(name="note")),
        shown_call.replace(call=shown_call.call.replace(namespace="bank")),
        shown_call.replace(call=shown_call.call.replace(call_id="q")),
        shown_call.replace(agent="other"),
        shown_call.replace(path=("n",)),
    ):
        with pytest.raises(StateError):
            state.approve(changed)
        with pytest.raises(StateError):
            state.reject(changed)
    assert len(state.interruptions) == 2
    same = shown_call.replace(call=shown_call.call.replace(arguments='{ "amount" :1}'))
    state.approve(same)
    again = await run_mode(state.agent, state)
    assert ran == ["pay 1"]
    assert [waiting.call.call_id for waiting in again.interruptions] == ["n"]


@pytest.mark.scenario("RS-17")
async def test_an_approval_for_a_tool_of_another_key_is_asked_again(run_mode: Run) -> None:
    """The approval is requested again, because the name leads to another tool than the approved one."""
    ran: list[str] = []
    state = restore_approved(await run_mode(pending_with_a_sibling(ran), "go"))
    moved = pending_with_a_sibling(ran, defer_loading=True)
    assert moved.tools[1].lookup_key != state.agent.tools[1].lookup_key
    again = await run_mode(moved, copy_state(state, moved))
    assert again.status == "interrupted"
    assert [waiting.call.call_id for waiting in again.interruptions] == ["p"]
    assert ran == ["note"]
    done = await run_mode(moved, restore_approved(again))
    assert ran == ["note", "pay 1"]
    assert done.final_output == "done"


@pytest.mark.scenario("RS-17")
async def test_approved_arguments_are_judged_again_when_the_run_goes_on(run_mode: Run) -> None:
    """A policy that was added meanwhile denies the approved call, and the verdict is not requested again."""

    class NoPaying:
        def decide(self, pending: Any) -> Any:
            return Deny("Not today.")

    ran: list[str] = []
    state = restore_approved(await run_mode(pending_with_a_sibling(ran), "go"))
    done = await run_mode(state.agent, state, run_config=RunConfig(policies=(NoPaying(),)))
    assert ran == []
    assert read_outputs(done.new_items) == {"n": "Not today.", "p": "Not today."}


@pytest.mark.scenario("RS-15")
async def test_streaming_resume_equals_the_other() -> None:
    """Records in normal form, items, usage and status are equal, for a pause in a nested run and one beside it."""
    inner = Agent("inner", model=script_turns(call("pay", {"amount": 2}, call_id="q"), say("in")), tools=[pay])
    outer = Agent("outer", tools=[look, pay, inner.as_tool("sub", "Sub.")])
    outer.model = script_turns(
        [call("look", call_id="l"), call("sub", {"input": "x"}, call_id="s"), call("pay", {"amount": 1}, call_id="p")],
        say("done"),
    )
    text = (await Runner.run(outer, "go")).to_state().to_string()
    results = []
    for streamed in (False, True):
        state = RunState.from_string(outer, text)
        for waiting in state.interruptions:
            state.approve(waiting)
        if streamed:
            async with Runner.run_streamed(outer, state) as stream:
                events = [event async for event in stream]
            results.append(stream.result)
            assert type(events[-1]).__name__ == "RunEnded"
        else:
            results.append(await Runner.run(outer, state))
    plain, with_events = results
    assert normal(plain.records) == normal(with_events.records)
    assert plain.new_items == with_events.new_items
    assert plain.usage == with_events.usage
    assert read_statuses(plain) == read_statuses(with_events) == ["succeeded"] * 3


# ---------------------------------------------------------------------------------------------- sessions


@pytest.mark.scenario("SE-05")
async def test_an_interruption_saves_what_is_complete_and_a_resume_adds_only_what_is_new(run_mode: Run) -> None:
    """The session gets every item once, with calls before their outputs."""
    session = MemorySession()
    agent = Agent("guide", tools=[look, pay])
    agent.model = script_turns(
        call("look", call_id="a"), [call("look", call_id="b"), call("pay", {"amount": 1}, call_id="p")], say("done")
    )
    first = await run_mode(agent, "go", session=session)
    assert describe(await session.get_items()) == [
        "user:go",
        "call:look#a",
        "output:seen#a",
        "call:look#b",
        "output:seen#b",
    ]
    await run_mode(agent, restore_approved(first), session=session)
    held = describe(await session.get_items())
    assert sorted(held) == sorted(
        [
            "user:go",
            "call:look#a",
            "output:seen#a",
            "call:look#b",
            "output:seen#b",
            "call:pay#p",
            "output:paid 1#p",
            "says:done",
        ]
    )
    assert held[-1] == "says:done"
    assert held.index("call:pay#p") < held.index("output:paid 1#p")


# ---------------------------------------------------------------------------------------------- traces


class Traces(Instrument):
    """Keeps traces as they start and end, and the ids of spans' traces."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str]] = []

    def on_trace_start(self, trace: Trace) -> None:
        self.lines.append(("start", trace.trace_id, trace.workflow_name or ""))

    def on_trace_end(self, trace: Trace) -> None:
        self.lines.append(("end", trace.trace_id, trace.workflow_name or ""))


@pytest.mark.scenario("HS-15")
async def test_a_resumed_run_goes_on_in_its_trace_without_a_second_start(run_mode: Run) -> None:
    """The resumed run keeps its trace in another process too; a run of another workflow begins its own."""
    agent = Agent("guide", model=script_turns(call("pay", {"amount": 1}, call_id="p"), say("done")), tools=[pay])
    before = Traces()
    first = await run_mode(agent, "go", run_config=RunConfig(instruments=[before], workflow_name="buying"))
    [(_, trace_id, _), _] = before.lines
    assert [what for what, _, _ in before.lines] == ["start", "end"]
    state = restore_approved(first)
    after = Traces()
    await run_mode(agent, state, run_config=RunConfig(instruments=[after], workflow_name="buying"))
    assert [line for line in after.lines if line[0] == "start"] == []
    assert {known for _, known, _ in after.lines} == {trace_id}
    other = Traces()
    await run_mode(agent, state, run_config=RunConfig(instruments=[other], workflow_name="selling"))
    assert [(what, name) for what, _, name in other.lines] == [("start", "selling"), ("end", "selling")]
    assert all(known != trace_id for _, known, _ in other.lines)


# ---------------------------------------------------------------------------------------------- receipts and doubt


@pytest.mark.scenario("LX-40")
async def test_what_completed_before_a_pause_is_a_hit_after_it(run_mode: Run) -> None:
    """The idempotent call of the same batch isn't run again when the model repeats it under another id."""
    ran: list[str] = []

    @tool(idempotent=True)
    async def fetch(key: str) -> str:
        """Fetch."""
        ran.append(key)
        return f"value of {key}"

    agent = Agent("guide", tools=[fetch, pay])
    agent.model = script_turns(
        [call("fetch", {"key": "k"}, call_id="f1"), call("pay", {"amount": 1}, call_id="p")],
        call("fetch", {"key": "k"}, call_id="f2"),
        say("done"),
    )
    done = await run_mode(agent, restore_approved(await run_mode(agent, "go")))
    assert ran == ["k"]
    assert read_statuses(done) == ["succeeded", "succeeded", "replayed"]
    assert read_shown_outputs(agent)["f2"] == "value of k"


@pytest.mark.scenario("LX-41")
async def test_what_completed_before_a_cancelled_run_is_a_hit_when_its_journal_goes_on(run_mode: Run) -> None:
    """The model's second call of it finds the receipt in the journal."""
    import anyio

    ran: list[str] = []
    held = anyio.Event()

    @tool(idempotent=True)
    async def fetch(key: str) -> str:
        """Fetch."""
        ran.append(key)
        return f"value of {key}"

    @tool
    async def hold() -> str:
        """Hold."""
        if not held.is_set():
            held.set()
            await anyio.sleep_forever()
        return "held"

    agent = Agent("guide", tools=[fetch, hold])
    agent.model = script_turns(
        call("fetch", {"key": "k"}, call_id="f1"),
        call("hold", call_id="h"),
        call("fetch", {"key": "k"}, call_id="f2"),
        say("done"),
    )
    journal = BatchJournal()
    await cancel_when(held, lambda: run_mode(agent, "go", journal=journal))
    done = await Runner.resume(agent, journal)
    assert ran == ["k"]
    assert done.final_output == "done"
    assert read_statuses(done) == ["succeeded", "unknown", "replayed"]
    assert read_shown_outputs(agent)["f2"] == "value of k"


async def lines_up_to(kind: str, agent: Agent[Any, Any]) -> Sequence[bytes]:
    """Return what the journal of a run of *agent* holds up to its first record of *kind*, that one included."""
    journal = BatchJournal()
    await Runner.run(agent, "go", journal=journal)
    lines = await journal.read()
    place = next(place for place, line in enumerate(lines) if f'"kind":"{kind}"'.encode() in line)
    return lines[: place + 1]


@pytest.mark.scenario("LX-45")
async def test_a_call_in_flight_when_the_process_died_is_told_as_unknown(run_mode: Run) -> None:
    """A call that was in flight isn't run again: the model receives `unknown` as its outcome, and decides."""
    ran: list[int] = []

    @tool(name="pay")
    async def noted(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    agent = Agent("guide", model=script_turns(call("pay", {"amount": 1}, call_id="p"), say("done")), tools=[noted])
    lines = await lines_up_to("call_started", agent)
    ran.clear()
    journal = await make_journal(lines)
    state = await RunState.from_journal(agent, journal)
    done = await run_mode(agent, state, journal=journal)
    assert ran == []
    assert find_outcome(done, "p").status == "unknown"
    text = "Tool 'pay' was interrupted when the run stopped; whether it took effect is unknown."
    assert read_shown_outputs(agent) == {"p": text}
    assert [record.attempt for record in find_records(done, r.CallSettled)] == [2]
    assert done.new_items[1] == ToolOutput("p", text, is_error=True)


@pytest.mark.parametrize("ready", [True, False])
async def test_a_state_that_was_read_midway_is_a_detached_snapshot(ready: bool) -> None:
    """The snapshot stays as it was when it was read, while the run continues."""
    agent = Agent("guide", model=script_turns(call("look", call_id="l"), say("done")), tools=[look])
    config = RunConfig(tool_execution=ToolExecution(cleanup_grace=1.0))
    async with Runner.run_streamed(agent, "go", run_config=config) as stream:
        if ready:
            await stream.finished()
        state = stream.state
        count = len(state.records)
        async for _ in stream:
            pass
    assert len(state.records) == count
    assert (len(stream.result.records) == count) is ready


@pytest.mark.scenario("RS-13", "SE-05")
async def test_added_input_is_saved_to_the_session_once(run_mode: Run) -> None:
    """The added input is in its place among the run's items."""
    session = MemorySession()
    agent = Agent("guide", model=script_turns(call("look", call_id="a"), say("done")), tools=[look])
    agent.input_guardrails = [make_input_guard("g", PASSED)]
    state = await stopped_after_a_turn(agent, session=session)
    state.add_input("more")
    await run_mode(agent, copy_state(state), session=session)
    assert describe(await session.get_items()) == [
        "user:go",
        "call:look#a",
        "output:seen#a",
        "user:more",
        "says:done",
    ]
