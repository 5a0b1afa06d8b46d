"""A session whose run has made its history shorter: replaced in one step, or kept as it was."""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kit.windows import check_valid, compactions, make_agent, read, reader

from agentloop import (
    Agent,
    ClearToolOutputs,
    ContextPolicy,
    HistorySettings,
    RunConfig,
    Runner,
    Summarize,
    handoff,
    tool,
)
from agentloop import records as r
from agentloop import testing as t
from agentloop.abc import ReplaceableSession, Session
from agentloop.handoffs import HandoffInputData
from agentloop.items import AssistantMessage, Item, ToolOutput, UserMessage
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession, SQLiteSession

WINDOW = 4_000
STEPS: dict[str, Any] = {
    "cleared": lambda: [ClearToolOutputs(keep_last=1)],
    "summarized": lambda: [Summarize(keep_turns=1)],
}
Open = Callable[[], AbstractAsyncContextManager[Any]]


def policy(steps: str = "cleared", **changes: Any) -> ContextPolicy:
    """Return a policy of a small window."""
    return ContextPolicy(window=WINDOW, steps=STEPS[steps](), **changes)


@asynccontextmanager
async def in_memory() -> AsyncIterator[Any]:
    """Open a session that lives as long as this block."""
    yield MemorySession()


@pytest.fixture(params=["memory", "SQLite"])
def open_session(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return the function that opens the test's session."""
    return in_memory if request.param == "memory" else lambda: SQLiteSession(tmp_path / "s.db", "one")


class Plain:
    """A session that can't be replaced."""

    def __init__(self, session: Any) -> None:
        self.session_id = session.session_id
        self.get_items, self.add_items = session.get_items, session.add_items
        self.pop_item, self.clear = session.pop_item, session.clear


@pytest.mark.real_clock
@pytest.mark.parametrize("steps", STEPS)
async def test_a_session_has_what_the_model_is_shown_next(steps: str, run_mode: Any, open_session: Open) -> None:
    """Also the session of a later run, whose first request needs a shorter history."""
    async with open_session() as session:
        for pages in (7, 3, 5):
            earlier = await session.get_items()
            result = await run_mode(make_agent(policy(steps), reader(pages)), "Read.", session=session)
            assert compactions(result.records)
            items = await session.get_items()
            assert items == result.to_input_list()
            assert len(items) <= len(earlier) + len(result.new_items) + 1
            check_valid(items)
        assert [item.text for item in items if isinstance(item, AssistantMessage)][-1] == "done"


@pytest.mark.real_clock
async def test_a_session_that_is_to_keep_all_keeps_all(run_mode: Any, open_session: Open) -> None:
    """`compact_session=False`; so does one that can't be replaced."""
    async with open_session() as session:
        result = await run_mode(make_agent(policy(compact_session=False), reader(7)), "Read.", session=session)
        assert compactions(result.records)
        assert await session.get_items() == [*result.input, *result.new_items]
    plain = Plain(MemorySession())
    assert isinstance(plain, Session)
    assert not isinstance(plain, ReplaceableSession)
    result = await run_mode(make_agent(policy(), reader(7)), "Read.", session=plain)
    assert await plain.get_items() == [*result.input, *result.new_items]


class Busy(MemorySession):
    """A session to which another writer adds an item before each replacement."""

    def __repr__(self) -> str:
        return f"Busy({self.session_id!r})"

    async def replace(self, items: Sequence[Item], *, expect: Sequence[Item]) -> None:
        """Replace, too late."""
        await self.add_items([UserMessage("By the way …")])
        await super().replace(items, expect=expect)


async def test_a_conflict_leaves_the_session_whole_and_is_logged(caplog: Any, run_mode: Any) -> None:
    """What the other has written and what the run has added are there, each once."""
    session = Busy()
    with caplog.at_level(logging.WARNING, "agentloop"):
        result = await run_mode(make_agent(policy(), reader(4)), "Read.", session=session)
    assert len(compactions(result.records)) == 1
    items = await session.get_items()
    assert [one for one in items if one != UserMessage("By the way …")] == [*result.input, *result.new_items]
    assert len(items) == len(result.new_items) + 2
    [line] = [one.getMessage() for one in caplog.records if "isn't made shorter" in one.getMessage()]
    assert line.startswith("Busy('default') isn't made shorter: ")


async def test_a_session_of_which_the_model_was_shown_something_else_stays(caplog: Any, run_mode: Any) -> None:
    """It isn't the history that was made shorter."""
    session = MemorySession()
    await session.add_items([UserMessage("One."), AssistantMessage("Two.")])
    before = await session.get_items()
    history = HistorySettings(session_input_callback=lambda old, new: [*old[:1], *new])
    with caplog.at_level(logging.WARNING, "agentloop"):
        result = await run_mode(
            make_agent(policy(), reader(4)), "Read.", session=session, run_config=RunConfig(history=history)
        )
    assert compactions(result.records)
    assert await session.get_items() == [*before, *result.input, *result.new_items]
    assert "doesn't end with the history of the run" in caplog.text


@pytest.mark.parametrize("nests", [False, True])
async def test_a_session_stays_whole_if_a_handoff_changes_what_is_shown(
    caplog: Any, run_mode: Any, nests: bool
) -> None:
    """By its filter or by nesting, after a compaction that the session doesn't have yet: it is logged."""

    def cut(data: HandoffInputData) -> HandoffInputData:
        return data.replace(input_history=(UserMessage("Only this."),), pre_handoff_items=())

    @tool
    async def look(page: int) -> str:
        """Look at a long page."""
        return f"page {page}: " + "w " * 3_000

    second = Agent("second", model=t.ScriptedModel([t.say("done")]))
    to = handoff(second, nest_handoff_history=True) if nests else handoff(second, input_filter=cut)
    turns = [t.call("look", {"page": 1}), t.call("look", {"page": 2}), t.call("transfer_to_second")]
    first = Agent("first", model=t.ScriptedModel(turns), tools=[look], handoffs=[to])
    session = MemorySession()
    with caplog.at_level(logging.WARNING, "agentloop"):
        result = await run_mode(first, "Read.", session=session, run_config=RunConfig(context=policy()))
    assert compactions(result.records)
    assert await session.get_items() == [*result.input, *result.new_items]
    [line] = [one.getMessage() for one in caplog.records if "isn't made shorter" in one.getMessage()]
    assert line.endswith("the model is shown something else since, as by a handoff")


async def test_what_comes_before_the_items_shown_stays(run_mode: Any) -> None:
    """A limit of the session shows its latest items only."""
    from agentloop import SessionSettings

    session = MemorySession()
    old: list[Item] = [item for n in range(5) for item in (UserMessage(f"Say {n}."), AssistantMessage(str(n)))]
    await session.add_items(old)
    history = HistorySettings(session_settings=SessionSettings(limit=4))
    result = await run_mode(
        make_agent(policy(), reader(4)), "Read.", session=session, run_config=RunConfig(history=history)
    )
    assert compactions(result.records)
    assert await session.get_items() == [*old[:6], *result.to_input_list()]


async def test_secrets_stay_in_the_session(run_mode: Any) -> None:
    """What is kept is what the session had."""

    @tool(secret_output=True, in_doubt="rerun")
    async def read(page: int) -> str:
        """Read a page."""
        return f"page {page}: " + "x" * 3_000

    session = MemorySession()
    await run_mode(make_agent(policy(), reader(4), tools=[read]), "Read.", session=session)
    outputs = [item for item in await session.get_items() if isinstance(item, ToolOutput)]
    assert [str(one.output)[:7] for one in outputs] == ["[The ou"] * 3 + ["page 4:"]


@pytest.mark.scenario("CX-02")
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("replaced", [False, True], ids=["before it was replaced", "after it was replaced"])
async def test_a_crash_around_the_replacement_writes_nothing_twice(steps: str, replaced: bool) -> None:
    """The log doesn't tell whether the session was replaced: the run that goes on looks."""
    whole, session = MemoryJournal(), MemorySession()
    result = await Runner.run(make_agent(policy(steps), reader(6)), "Read.", journal=whole, session=session)
    lines, records = await whole.read(), result.records
    made = next(n for n, one in enumerate(records) if isinstance(one, r.HistoryReplaced))
    saved = next(n for n, one in enumerate(records) if n > made and isinstance(one, r.SessionSaved))
    last = next(n for n in range(made, -1, -1) if isinstance(records[n], r.SessionSaved))
    there: list[Item] = [*result.input, *result.new_items[: records[last].count]]  # type: ignore[union-attr]
    done = Agent("reader", model=reader(0), tools=[read], context=policy(steps))
    if replaced:
        left, other = MemoryJournal(), MemorySession()
        await other.add_items(there)
        await left.append(lines[: len(lines) - len(records) + saved])
        await Runner.resume(done, left, session=other)
        there = (await other.get_items())[:-1]  # without the answer
        assert len(there) < len(result.new_items)
    for cut in range(made + 1, saved + 1):
        left, other = MemoryJournal(), MemorySession()
        await other.add_items(there)
        await left.append(lines[: len(lines) - len(records) + cut])
        again = await Runner.resume(make_agent(policy(steps), reader(6)), left, session=other)
        assert again.final_output == "done"
        items = await other.get_items()
        check_valid(items)
        if not replaced or cut == saved:
            assert items == again.to_input_list()


@pytest.mark.scenario("CX-04")
@pytest.mark.parametrize("steps", STEPS)
def test_a_replay_touches_no_session(steps: str) -> None:
    """It follows the log."""
    session = MemorySession()
    result = Runner.run_sync(make_agent(policy(steps), reader(6)), "Read.", session=session)
    items = list(session._items)
    again = t.replay(result, make_agent(policy(steps), reader(6)))
    assert again.records == result.records
    assert session._items == items


@pytest.mark.slow
@pytest.mark.scenario("CX-02")
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_a_run_cancelled_at_any_step_leaves_its_session_whole(steps: str, streamed: bool) -> None:
    """The invariants look at it."""
    swept = t.kill_sweep(
        lambda: make_agent(policy(steps), reader(5)), options={"session": MemorySession}, streamed=streamed
    )
    assert swept.cancelled > 20


@pytest.mark.slow
@pytest.mark.scenario("CX-02")
@pytest.mark.parametrize("steps", STEPS)
def test_a_run_that_crashes_at_any_write_leaves_its_session_whole(steps: str) -> None:
    """With the old history or the new one, and nothing twice."""

    def check(run: Any) -> None:
        items = run.session._items
        check_valid(items)
        assert len({id(item) for item in items}) == len(items)
        if run.result is not None and run.result.status == "completed":
            assert items == run.result.to_input_list()

    swept = t.crash_sweep(lambda: make_agent(policy(steps), reader(5)), options={"session": MemorySession}, check=check)
    assert swept.points > 20
