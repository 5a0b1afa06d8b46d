"""A second verdict on a call: refused with who decided and how, or in the place of the first one."""

import itertools
from pathlib import Path
from typing import Any

import anyio
import pytest
from kit.agents import make_agent, make_gated_tool
from kit.results import read_shown_outputs
from kit.resuming import copy_state

from agentloop import Agent, Allow, RunConfig, Runner, RunState, StateError, UserError, tool
from agentloop.exceptions import JournalError
from agentloop.journal import FileJournal, MemoryJournal
from agentloop.testing import call

VERDICTS: dict[str, dict[str, Any]] = {"approve": {}, "reject": {"message": "no"}, "edit": {"arguments": {"n": 9}}}


def give(decided: Any, verdict: str, **options: Any) -> None:
    """Give one of the `VERDICTS` on c1."""
    method = decided.reject if verdict == "reject" else decided.approve
    method("c1", **VERDICTS[verdict], **options)


async def pause(ran: list[Any]) -> RunState:
    """Return the state of a run in which c1 waits."""
    return (await Runner.run(make_agent([make_gated_tool(ran)], call("gated", {"n": 1}, "c1")), "go")).to_state()


@pytest.mark.scenario("SM-02")
@pytest.mark.parametrize(("first", "second"), list(itertools.product(VERDICTS, VERDICTS)))
async def test_a_verdict_of_somebody_else_is_refused_or_replaces_the_first(first: str, second: str) -> None:
    """The refusal names the first giver and the verdict, and adds nothing; with `replace` the second one counts."""
    ran: list[Any] = []
    state = await pause(ran)
    give(state, first, by="ann")
    elsewhere = copy_state(state)
    before = list(elsewhere.records)
    how = "rejected" if first == "reject" else "approved"
    with pytest.raises(
        StateError, match=rf"no call 'c1' waits for a verdict: it was {how} by 'ann'; with replace=True"
    ):
        give(elsewhere, second, by="bob")
    assert elsewhere.records == before
    give(elsewhere, second, by="bob", replace=True)
    result = await Runner.run(elsewhere.agent, elsewhere)
    assert [one[1] for one in ran] == {"approve": [1], "reject": [], "edit": [9]}[second]
    again = result.to_state()
    with pytest.raises(StateError, match=r"run .* is over"):
        give(again, first, replace=True)


@pytest.mark.scenario("SM-02")
async def test_a_verdict_on_all_calls_goes_with_the_one_that_gave_it() -> None:
    """Replaced by a verdict on one call, it doesn't hold for later calls: they wait."""
    ran: list[Any] = []
    script = [call("gated", {"n": 1}, "c1"), call("gated", {"n": 2}, "c2")]
    state = (await Runner.run(make_agent([make_gated_tool(ran)], *script), "go")).to_state()
    give(state, "approve", always=True, by="ann")
    state = copy_state(state)
    give(state, "approve", replace=True, by="bob")
    result = await Runner.run(state.agent, state)
    assert [one.call.call_id for one in result.interruptions] == ["c2"]
    assert ran == [("gated", 1)]


@pytest.mark.scenario("SM-02")
async def test_a_call_that_a_verdict_on_all_covers_has_its_verdict() -> None:
    """Another process is told that it was decided with another call; `replace` gives the call one of its own."""
    ran: list[Any] = []
    agent = make_agent([make_gated_tool(ran)], [call("gated", {"n": n}, f"c{n}") for n in (1, 2)])
    state = (await Runner.run(agent, "go")).to_state()
    state.approve("c2", always=True, by="ann")
    state = copy_state(state)
    assert state.interruptions == ()
    with pytest.raises(StateError, match="it was approved by 'ann' with call 'c2', for all calls of the tool"):
        give(state, "reject")
    give(state, "reject", replace=True)
    await Runner.run(agent, state)
    assert ran == [("gated", 2)]


# ---------------------------------------------------------------------------------------------- calls that have started


def payer(started: anyio.Event, go: anyio.Event) -> Agent[Any, Any]:
    """Return an agent whose approved call runs until *go*."""

    @tool(needs_approval=True)
    async def pay(n: int) -> str:
        """Pay."""
        started.set()
        await go.wait()
        return "paid"

    return make_agent([pay], call("pay", {"n": 1}, "c1"))


@pytest.mark.scenario("SM-01")
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("verdict", VERDICTS)
async def test_a_call_that_runs_takes_no_verdict(verdict: str, replace: bool) -> None:
    """A second click while the body runs is refused, and the journal is read afterwards."""
    started, go = anyio.Event(), anyio.Event()
    agent, journal = payer(started, go), MemoryJournal()
    state = (await Runner.run(agent, "go", journal=journal)).to_state()
    state.approve("c1", by="ann")
    async with Runner.run_streamed(agent, state, journal=journal) as stream, anyio.create_task_group() as group:
        group.start_soon(stream.finished)
        await started.wait()
        with pytest.raises(StateError, match="it was approved by 'ann', and has started"):
            give(stream, verdict, replace=replace)
        go.set()
    assert stream.result.final_output == "done"
    assert (await RunState.from_journal(agent, journal)).status == "completed"
    with pytest.raises(StateError, match=r"no call 'c1' waits|is over"):
        give(stream.state, verdict, replace=replace)


@pytest.mark.scenario("SM-01")
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("verdict", VERDICTS)
async def test_a_call_in_which_the_process_died_takes_no_verdict(verdict: str, replace: bool) -> None:
    """What became of it is for the next run segment to find out. The log stays readable, and the run goes on."""
    started, go = anyio.Event(), anyio.Event()
    agent, journal = payer(started, go), MemoryJournal()
    state = (await Runner.run(agent, "go", journal=journal)).to_state()
    state.approve("c1", by="ann")
    go.set()
    await Runner.run(agent, state, journal=journal)
    lines = await journal.read()
    at = next(n for n, line in enumerate(lines) if b'"call_started"' in line)
    died = MemoryJournal()
    await died.append(lines[: at + 1])
    left = await RunState.from_journal(agent, died)
    with pytest.raises(StateError, match="it was approved by 'ann', and has started"):
        give(left, verdict, replace=replace)
    assert len(left.records) == at
    assert (await Runner.resume(payer(started, go), died)).calls[0].outcome.status == "unknown"


@pytest.mark.scenario("SM-01")
async def test_a_verdict_that_the_run_acts_on_cannot_be_replaced() -> None:
    """From the moment in which the run has read it until the call starts: else a rejected call would run."""
    ran: list[Any] = []
    asking, go = anyio.Event(), anyio.Event()

    class Slow:
        async def decide(self, pending: Any) -> Any:
            if pending.call.name == "other":
                asking.set()
                await go.wait()
            return Allow()

    tools = [make_gated_tool(ran), make_gated_tool(ran, "other")]
    agent = make_agent(tools, [call("gated", {"n": 1}, "c1"), call("other", {}, "c2")])
    state = (await Runner.run(agent, "go")).to_state()
    state.approve("c1", by="ann")
    state.approve("c2")
    config = RunConfig(policies=[Slow()])
    async with Runner.run_streamed(agent, state, run_config=config) as stream, anyio.create_task_group() as group:
        group.start_soon(stream.finished)
        await asking.wait()
        with pytest.raises(StateError, match="it was approved by 'ann', and the run acts on it already"):
            stream.reject("c1", replace=True)
        go.set()
    assert stream.result.final_output == "done"
    assert sorted(ran) == [("gated", 1), ("other", 0)]


@pytest.mark.scenario("SM-02")
async def test_a_live_verdict_is_replaced_until_the_run_acts_on_it() -> None:
    """While a sibling runs the call isn't looked at again: a verdict may be changed on purpose, and no other way."""
    ran: list[Any] = []
    holding, go = anyio.Event(), anyio.Event()

    @tool
    async def holds() -> str:
        """Hold."""
        holding.set()
        await go.wait()
        return "held"

    agent = make_agent([make_gated_tool(ran), holds], [call("gated", {"n": 1}, "c1"), call("holds", {}, "c2")])
    async with Runner.run_streamed(agent, "go") as stream, anyio.create_task_group() as group:
        group.start_soon(stream.finished)
        await holding.wait()
        stream.approve("c1", by="ann")
        with pytest.raises(StateError, match="it was approved by 'ann'; with replace=True"):
            stream.reject("c1", by="bob")
        stream.reject("c1", message="no", by="bob", replace=True)
        go.set()
    assert read_shown_outputs(agent) == {"c1": "no", "c2": "held"}
    assert ran == []


@pytest.mark.scenario("SM-01")
@pytest.mark.parametrize(
    "options", [{"by": 5}, {"always": "yes"}, {"always": 1}, {"replace": 1}, {"message": 5}, {"arguments": 5}]
)
async def test_a_verdict_of_wrong_types_is_refused(options: dict[str, Any]) -> None:
    """It would be written, and never read again."""
    state = await pause([])
    before = list(state.records)
    with pytest.raises(UserError):
        (state.reject if "message" in options else state.approve)("c1", **options)
    assert state.records == before


async def test_a_run_that_is_over_takes_no_verdict() -> None:
    """It failed while a call waited: the reason says so."""
    broken = tool(failure_error_function=None, name="breaks")(_break)
    agent = make_agent([make_gated_tool([]), broken], [call("gated", {"n": 1}, "c1"), call("breaks", {}, "c2")])
    with pytest.raises(Exception, match="no luck") as caught:
        await Runner.run(agent, "go")
    state = RunState(agent, caught.value.run_data.records)  # type: ignore[attr-defined]
    with pytest.raises(StateError, match="is over: "):
        give(state, "approve")


async def _break() -> str:
    """Break."""
    raise ValueError("no luck")


# ---------------------------------------------------------------------------------------------- races over a journal


@pytest.mark.real_clock
@pytest.mark.scenario("SM-02")
@pytest.mark.parametrize("own", [None, "approve", "reject"])
async def test_a_state_that_lost_the_race_is_told_who_decided(tmp_path: Path, own: str | None) -> None:
    """Two people have read one pause. The second one's run doesn't go on, and its error says why in words."""
    ran: list[Any] = []
    agent = make_agent([make_gated_tool(ran)], call("gated", {"n": 1}, "c1"))
    path = tmp_path / "run"
    async with FileJournal(path) as journal:
        result = await Runner.run(agent, "go", journal=journal)
    first, second = result.to_state(), result.to_state()
    give(first, "reject", by="ann")
    await append(path, first, len(second.records))
    if own is not None:
        give(second, own, by="bob")
    async with FileJournal(path) as journal:
        with pytest.raises(JournalError, match="somebody else has decided, and call 'c1' was rejected by 'ann'"):
            await Runner.run(agent, second, journal=journal)
    assert ran == []


async def append(path: Path, state: RunState, known: int) -> None:
    """Append the records of *state* from *known* on."""
    from agentloop._storage.state_codec import line_encoder

    async with FileJournal(path) as journal:
        await journal.append(list(map(line_encoder(None), state.records[known:])))
