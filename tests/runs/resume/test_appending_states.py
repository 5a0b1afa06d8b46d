"""`RunState.append_to`: a journal gets what was given on a state once, or what it holds stays as it was."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import make_agent

from agentloop import Agent, ExternalTool, Runner, RunState, tool
from agentloop import events as ev
from agentloop.exceptions import JournalError
from agentloop.journal import FileJournal, MemoryJournal, SQLiteJournal
from agentloop.testing import ScriptedModel, call, say


@tool(needs_approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


def make_waiting() -> Agent[Any, Any]:
    """Return an agent that waits for an answer (c1) and for a verdict (p)."""
    room = ExternalTool("room", "Ask.", {}, returns={"type": "string"})
    return make_agent([room, pay], [call("room", {}, "c1"), call("pay", {}, "p")])


def open_journal(kind: str, folder: Path) -> Any:
    if kind == "memory":
        return MemoryJournal()
    return FileJournal(folder / "run.journal") if kind == "file" else SQLiteJournal(folder / "run.sqlite", "run")


GIVING: dict[str, Callable[[RunState, str], object]] = {
    "answer": lambda state, by: state.answer("c1", "Rome", by=by),
    "verdict": lambda state, by: state.approve("p", by=by),
    "input": lambda state, by: state.add_input("more", by=by),
    "withdrawn input": lambda state, by: state.withdraw(state.add_input("more", id="k", by=by)),
}
every_gift = pytest.mark.parametrize("what", GIVING)


@pytest.mark.real_clock
@pytest.mark.scenario("PE-02", "PE-04")
@pytest.mark.parametrize("kind", ["memory", "file", "sqlite"])
@every_gift
async def test_of_two_states_of_one_journal_one_appends(what: str, kind: str, tmp_path: Path) -> None:
    """The other is refused, whatever both give, one after the other or at once, and reads the journal again."""
    give, agent = GIVING[what], make_waiting()
    async with open_journal(kind, tmp_path) as journal:
        await Runner.run(agent, "go", journal=journal)
        ann, bob, eve = [await RunState.from_journal(agent, journal) for _ in range(3)]
        for state, name in ((ann, "ann"), (bob, "bob"), (eve, "eve")):
            give(state, name)
        refused: list[str] = []

        async def append(state: RunState, name: str) -> None:
            try:
                await state.append_to(journal)
            except JournalError:
                refused.append(name)

        async with anyio.create_task_group() as group:
            group.start_soon(append, ann, "ann")
            group.start_soon(append, bob, "bob")
        await append(eve, "eve")
        assert len(refused) == 2
        assert "eve" in refused
        winner = ann if "bob" in refused else bob
        assert await RunState.from_journal(agent, journal) == winner
        await winner.append_to(journal)  # nothing is left
        again = await RunState.from_journal(agent, journal)
        again.add_input("still taken", id="later")
        await again.append_to(journal)
        assert await RunState.from_journal(agent, journal) == again


@every_gift
async def test_a_state_appends_once_however_many_tasks_ask(what: str) -> None:
    """They wait for each other, and what is given meanwhile is appended by the next."""
    agent, journal = make_waiting(), MemoryJournal()
    await Runner.run(agent, "go", journal=journal)
    state = await RunState.from_journal(agent, journal)
    GIVING[what](state, "ann")
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(state.append_to, journal)
        await anyio.lowlevel.checkpoint()
        state.add_input("meanwhile", id="meanwhile")
        group.start_soon(state.append_to, journal)
    assert await RunState.from_journal(agent, journal) == state


@pytest.mark.parametrize("passes", range(12))
async def test_a_cancelled_append_is_repeated_without_harm(passes: int) -> None:
    """Whether the first one reached the journal or not: the second finds out, and appends what is missing."""

    class Slow(MemoryJournal):
        async def append(self, records: Sequence[bytes]) -> None:
            await super().append(records)
            for _ in range(4):
                await anyio.lowlevel.checkpoint()

    agent, journal = make_waiting(), Slow()
    await Runner.run(agent, "go", journal=journal)
    state = await RunState.from_journal(agent, journal)
    state.answer("c1", "Rome")
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(state.append_to, journal)
            for _ in range(passes):
                await anyio.lowlevel.checkpoint()
            scope.cancel()
    state.add_input("more")
    await state.append_to(journal)
    assert await RunState.from_journal(agent, journal) == state


@pytest.mark.real_clock
@pytest.mark.backends("asyncio", "asyncio-eager")
@pytest.mark.parametrize("passes", range(6))
async def test_an_append_cancelled_natively_is_repeated_without_harm(passes: int, tmp_path: Path) -> None:
    """The file's thread may write on: the repeated call waits for it."""
    agent = make_waiting()
    async with open_journal("file", tmp_path) as journal:
        await Runner.run(agent, "go", journal=journal)
        state = await RunState.from_journal(agent, journal)
        state.answer("c1", "Rome")
        task = asyncio.ensure_future(state.append_to(journal))
        for _ in range(passes):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await state.append_to(journal)
        assert await RunState.from_journal(agent, journal) == state


async def test_nothing_is_appended_to_the_journal_of_a_run_under_way() -> None:
    """Nor to that of a run that has continued since, and an old state that adds nothing is no error."""
    asked, journal = anyio.Event(), MemoryJournal()

    @tool
    async def slow() -> str:
        """Wait for the answer."""
        await asked.wait()
        return "ok"

    room = ExternalTool("room", "Ask.", {}, returns={"type": "string"})
    agent = make_agent([room, slow], [call("room", {}, "c1"), call("slow", {}, "s")])
    async with Runner.run_streamed(agent, "go", journal=journal) as stream:
        async for event in stream:
            if isinstance(event, ev.AnswerRequested):
                await stream.add_input("durable, and so is what was before")
                old = await RunState.from_journal(agent, journal)
                idle = await RunState.from_journal(agent, journal)
                old.add_input("from elsewhere")
                with pytest.raises(JournalError, match="another run of this process is writing to the journal"):
                    await old.append_to(journal)
                asked.set()
    with pytest.raises(JournalError, match=r"append_to: the state was made from .* read the state from the journal"):
        await old.append_to(journal)
    await idle.append_to(journal)
    assert await RunState.from_journal(agent, journal) == stream.state


@pytest.mark.parametrize("held", ["nothing", "another run"])
async def test_another_journal_is_refused(held: str) -> None:
    """It isn't the one that the state was read from."""
    agent, journal, other = make_waiting(), MemoryJournal(), MemoryJournal()
    await Runner.run(agent, "go", journal=journal)
    if held == "another run":
        await Runner.run(make_waiting(), "go", journal=other)
    before = await other.read()
    state = await RunState.from_journal(agent, journal)
    state.add_input("more")
    with pytest.raises(JournalError, match="append_to"):
        await state.append_to(other)
    assert await other.read() == before
    await state.append_to(journal)


async def test_a_run_that_opens_during_an_append_is_refused() -> None:
    """Both would write. It can be started again."""
    begun, goes_on = anyio.Event(), anyio.Event()

    class Held(MemoryJournal):
        held = False

        async def append(self, records: Sequence[bytes]) -> None:
            if self.held:
                begun.set()
                await goes_on.wait()
            await super().append(records)

    journal = Held()
    agent = Agent("a", model=ScriptedModel([call("pay", {}, call_id="p"), say("done")]), tools=[pay])
    await Runner.run(agent, "go", journal=journal)
    state = await RunState.from_journal(agent, journal)
    state.approve("p")
    journal.held = True
    async with anyio.create_task_group() as group:
        group.start_soon(state.append_to, journal)
        await begun.wait()
        with pytest.raises(JournalError, match=r"or `RunState\.append_to` is"):
            await Runner.resume(agent, journal)
        goes_on.set()
    assert (await Runner.resume(agent, journal)).final_output == "done"
