"""The row of a run says of every log, at every record, what the fold of its records says. Needs no database."""

from collections.abc import Callable
from typing import Any

import pytest
from kit.agents import script_agent
from kit.crashes import KINDS, Ledger, Plot, build_agent, configure_plot, run_to_end

from agentloop import Agent, Runner, RunState, ask_user, tool
from agentloop._storage.state_codec import read_lines
from agentloop.journal import MemoryJournal
from agentloop.postgres._run_rows import RowSummary, StoredCall, read_end, read_times
from agentloop.testing import call, say


async def check_rows(agent: Agent[Any, Any], journal: MemoryJournal) -> RowSummary:
    """Check the summary of every prefix of the run's log against the fold; return that of the whole log."""
    lines = await journal.read()
    assert not RowSummary().waiting
    for count in range(2, len(lines) + 1):
        summary = RowSummary().follow(lines[:count])
        assert summary == RowSummary().follow(lines[: count // 2]).follow(lines[count // 2 : count])
        state = RunState(agent, read_lines(lines[:count], None).records)
        waiting = {(one.call.call_id, one.call.name, one.agent, one.path) for one in state.interruptions}
        paused = state.status == "interrupted"
        assert {(one.call_id, one.tool, one.agent, one.path) for one in summary.waiting} == (
            waiting if paused else set()
        )
        assert summary.status == (state.status or "running")
        assert summary.agent == state._fold.agent
        end = read_end(lines[:count])
        assert (None if end is None else end.status) == state.status or (paused and end is None)
    assert read_times(lines)[0] <= read_times(lines)[1]
    return RowSummary().follow(lines)


PLOTS = [
    Plot((KINDS, ("asks", "asks_sub", "fails")), inner=("asks", "guarded", "asks")),
    Plot((("sub", "asks"), ("asks",)), inner=("asks",), handoff_after=1),
    Plot((("asks_sub", "sub", "plain"),), inner=("asks", "asks"), at_once=1, guarded=True),
]


@pytest.mark.parametrize("plot", PLOTS)
async def test_calls_that_wait_are_those_of_the_fold(plot: Plot) -> None:
    """Also of nested runs, and while some have their verdict and others don't."""
    journal = MemoryJournal()
    agent = build_agent(plot, Ledger())
    await run_to_end(agent, "Go.", journal=journal, run_config=configure_plot(plot))
    assert (await check_rows(agent, journal)).status == "completed"


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def approve_always(state: RunState) -> None:
    """Approve every call to `pay` by a verdict on the second one."""
    state.approve("p2", always=True)


def take_back(state: RunState) -> None:
    """Take a verdict for all calls back by one for its own call."""
    state.approve("p1", always=True)
    state.reject("p1")


def decide_on_one(state: RunState) -> None:
    """Decide on one call and answer the question."""
    state.reject("p1", message="Too much.")
    state.answer("q", "Rome")


def fail_the_question(state: RunState) -> None:
    """Answer by an error; the others still wait for their verdicts."""
    state.answer("q", error="Nobody is here.")


@pytest.mark.parametrize("decide", [approve_always, take_back, decide_on_one, fail_the_question])
async def test_verdicts_and_answers_end_the_waiting(decide: Callable[[RunState], None]) -> None:
    """Of the calls that they are for, and of no others."""
    asked = [call("pay", {"amount": n}, call_id=f"p{n}") for n in (1, 2, 3)]
    agent = script_agent(
        "a",
        [*asked, call("ask_user", {"question": "Where?"}, call_id="q")],
        [call("pay", {"amount": 4}, call_id="p4")],
        say("Done."),
        tools=[pay, ask_user()],
    )
    journal = MemoryJournal()
    await Runner.run(agent, "Go.", journal=journal)
    state = await RunState.from_journal(agent, journal)
    decide(state)
    await state.append_to(journal)
    await check_rows(agent, journal)
    await Runner.resume(agent, journal)
    await check_rows(agent, journal)


def test_what_is_no_record_changes_nothing() -> None:
    """Whoever reads the run says what is wrong with it."""
    before = RowSummary(status="running", agent="a")
    for line in (
        b'{"kind":"note"}',
        b'{"kind":"run_ended","status":7}',
        b'{"kind":"run_ended"',
        b"",
        b'{"kind":"run_resumed",x',
    ):
        assert before.follow([line]) == before
    assert read_end([]) is None
    assert read_end([b'{"kind":"run_ended"']) is None
    assert read_times([b'{"kind":"run_ended"']) == (0.0, 0.0)
    asked = b'{"kind":"answer_requested","path":["c"],"turn":1,"at":1.0,"call_id":"q","agent":"b","tool":"ask"}'
    paused = before.follow([asked, b'{"kind":"run_ended","path":[],"status":"interrupted"}'])
    assert paused.waiting == (StoredCall("q", "ask", "b", "answer", ("c",)),)
    cancelled = b'{"kind":"cancel_requested","path":[],"turn":1,"at":1.0,"call_id":"c"}'
    assert paused.follow([cancelled]).waiting == ()
    assert paused.follow([cancelled.replace(b'"c"', b'"d"')]) == paused
    assert paused.follow([cancelled.replace(b',"call_id":"c"', b"")]) == paused
