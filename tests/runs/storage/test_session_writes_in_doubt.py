"""Session writes that were cut: nobody knows whether the session has taken them, so a resumed run compares first."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import configure_run, look, script_turns
from kit.resuming import make_journal

from agentloop import Agent, Runner, RunState, handoff, tool
from agentloop.items import AssistantMessage, Item, ToolCall, UserMessage
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession, Session, SQLiteSession
from agentloop.testing import call, reason, say

EARLIER: list[Item] = [UserMessage("go"), AssistantMessage("let me see")]
"""What the session holds before the run: items that are equal to some of the run's own."""
WRITES = 4
"""The number of the run's writes: after each turn, and of its answer."""
Open = Callable[[], AbstractAsyncContextManager[Session]]


@tool(secret=["token"], secret_output=True)
async def enter(token: str) -> str:
    """Enter."""
    return f"welcome, {token}"


def build() -> Agent[Any, Any]:
    """Return an agent whose run has items of many kinds, equal texts and secrets among them."""
    first = [reason("hm"), say("let me see"), call("enter", {"token": "t-1"}, "c1"), call("look", call_id="c2")]
    turns = [first, [say("let me see"), call("look", call_id="c3")], call("transfer_to_last", call_id="h")]
    last = Agent("last", model=script_turns(*[say("never")] * (WRITES - 1), say("let me see")))
    return Agent("first", model=script_turns(*turns), tools=[enter, look], handoffs=[handoff(last)])


class Cut:
    """A session that does something else at one write; it sets `reached`, so that the run's caller cancels it."""

    def __init__(self, session: Session, number: int, how: str) -> None:
        self.session_id, self._session, self._left, self._how = session.session_id, session, number, how
        self.reached = anyio.Event()
        self.get_items, self.pop_item, self.clear = session.get_items, session.pop_item, session.clear

    async def add_items(self, items: Sequence[Item]) -> None:
        """Write *items*, unless this is the write, and they are lost on the way."""
        self._left -= 1
        if self._left == 0 and self._how == "lost on the way":
            self.reached.set()
            await anyio.sleep_forever()
        await self._session.add_items(items)
        if self._left == 0:
            self.reached.set()
            if self._how == "taken, and the answer lost":
                await anyio.sleep_forever()
            for _ in range(5):  # the caller cancels the run meanwhile: so the error doesn't end it
                await anyio.lowlevel.checkpoint()
            raise ConnectionError("the answer is lost")


def name_items(items: Sequence[Any]) -> list[tuple[str, str]]:
    """Return kind, and id or text, of each item."""
    return [(type(item).__name__, getattr(item, "call_id", None) or getattr(item, "text", "")) for item in items]


@asynccontextmanager
async def in_memory() -> AsyncIterator[Session]:
    """Open a session that lives as long as this block."""
    yield MemorySession()


@pytest.fixture(params=["memory", "SQLite"])
def open_session(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return the function that opens the test's session."""
    return in_memory if request.param == "memory" else lambda: SQLiteSession(tmp_path / "s.db", "one")


async def run_undisturbed() -> list[tuple[str, str]]:
    """Return what a session holds after the run."""
    session = MemorySession()
    await session.add_items(EARLIER)
    await Runner.run(build(), "go", session=session)
    return name_items(await session.get_items())


@pytest.mark.real_clock
@pytest.mark.scenario("SM-07", "RP-13", "CC-24")
@pytest.mark.parametrize("way", ["state", "journal"])
@pytest.mark.parametrize("how", ["taken, and the answer lost", "taken, and failed", "lost on the way"])
@pytest.mark.parametrize("number", range(1, WRITES))  # at the last one the output is accepted: the run has completed
async def test_a_write_that_was_cut_is_there_once_after_the_resume(
    open_session: Open, number: int, how: str, way: str
) -> None:
    """Whether or not the session had taken it, and whatever equal items stand before it."""
    async with open_session() as session:
        await session.add_items(EARLIER)
        cut, journal = Cut(session, number, how), MemoryJournal()
        stream = Runner.run_streamed(
            build(), "go", session=cut, journal=journal, run_config=configure_run(cleanup_grace=0.01)
        )

        async def run(scope: anyio.CancelScope) -> None:
            with scope:
                async with stream:
                    async for _ in stream:
                        pass

        async with anyio.create_task_group() as group:
            scope = anyio.CancelScope()
            group.start_soon(run, scope)
            await cut.reached.wait()
            scope.cancel()
        agent = build()
        if way == "journal":
            result = await Runner.resume(agent, journal, session=session)
        else:
            state = RunState.from_string(agent, (await RunState.from_journal(agent, journal)).to_string())
            result = await Runner.run(agent, state, session=session)
        assert result.status == "completed"
        assert name_items(await session.get_items()) == await run_undisturbed()


@pytest.mark.real_clock
@pytest.mark.scenario("SM-07", "RP-13")
@pytest.mark.parametrize("taken", [True, False], ids=["taken", "lost"])
@pytest.mark.parametrize("number", range(1, WRITES + 1))
async def test_a_write_that_a_crash_cut_is_there_once_after_the_resume(
    open_session: Open, number: int, taken: bool
) -> None:
    """The journal ends before the record of the write; of secrets it has digests only, which are compared."""
    whole, noted = MemoryJournal(), Noted()
    await Runner.run(build(), "go", session=noted, journal=whole)
    lines = list(await whole.read())
    saved = [n for n, line in enumerate(lines) if b'"kind":"session_saved"' in line]
    assert len(saved) == len(noted.writes) == WRITES
    async with open_session() as session:
        await session.add_items(EARLIER)
        for items in noted.writes[: number if taken else number - 1]:
            await session.add_items(items)
        result = await Runner.resume(build(), await make_journal(lines[: saved[number - 1]]), session=session)
        assert result.status == "completed"
        held = await session.get_items()
        assert name_items(held) == await run_undisturbed()
        [entered] = [item for item in held if isinstance(item, ToolCall) and item.name == "enter"]
        assert ("t-1" in entered.arguments) is (taken or number > 1)


class Noted(MemorySession):
    """A session that begins with the earlier items, and keeps what it was given, write by write."""

    def __init__(self) -> None:
        super().__init__()
        self._items += EARLIER
        self.writes: list[list[Item]] = []

    async def add_items(self, items: Sequence[Item]) -> None:
        """Keep *items*."""
        self.writes.append(list(items))
        await super().add_items(items)


@pytest.mark.scenario("SM-07")
async def test_what_a_log_says_is_written_is_not_looked_for() -> None:
    """A run that paused, and was resumed after another run had used the session, writes what it adds."""

    class Reading(MemorySession):
        reads = 0

        async def get_items(self, limit: int | None = None) -> list[Item]:
            self.reads += 1
            return await super().get_items(limit)

    @tool(needs_approval=True)
    async def gated() -> str:
        return "opened"

    session = Reading()
    turns = [[say("first"), call("look", call_id="c1")], call("gated", call_id="c2"), say("first")]
    agent = Agent("a", model=script_turns(*turns), tools=[gated, look])
    paused = await Runner.run(agent, "go", session=session)
    await session.add_items([UserMessage("go"), AssistantMessage("first")])
    state, reads = paused.to_state(), session.reads
    state.approve("c2")
    await Runner.run(agent, state, session=session)
    assert session.reads == reads
    assert [name for _, name in name_items(await session.get_items())] == [
        *("go", "first", "c1", "c1", "go", "first", "c2", "c2", "first")
    ]
