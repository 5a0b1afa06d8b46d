"""Each session of the library keeps what the protocol promises; and the suite finds those that don't."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from anyio.lowlevel import checkpoint, current_token

from agentloop.abc import Session
from agentloop.exceptions import SessionConflict
from agentloop.items import ITEM_TYPES, Item, UserMessage
from agentloop.sessions import MemorySession, SQLiteSession
from agentloop.testing._session_suite import ONE_OF_EACH, messages
from agentloop.testing.conformance import SessionConformance


class TestMemorySession(SessionConformance):
    """In memory, where nothing lasts."""

    lasting = False

    def open_session(self) -> Session:
        """Return an empty session."""
        return MemorySession()

    def open_another(self) -> Session:
        """Return another one."""
        return MemorySession("another")


@pytest.mark.real_clock
class TestSQLiteSession(SessionConformance):
    """In a file which holds another conversation too."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "sessions.db"

    def open_session(self) -> Session:
        """Return a session for the test's file."""
        return SQLiteSession(self.path, "one")

    def open_another(self) -> Session:
        """Return another conversation of it."""
        return SQLiteSession(self.path, "another")


@pytest.mark.real_clock
class TestSQLiteSessionInMemory(SessionConformance):
    """A database that lives as long as its object."""

    lasting = False

    def open_session(self) -> Session:
        """Return an empty session."""
        return SQLiteSession(":memory:")


class WithoutReplace:
    """A session that offers nothing but the least."""

    def __init__(self) -> None:
        session = MemorySession()
        self.get_items, self.add_items = session.get_items, session.add_items
        self.pop_item, self.clear = session.pop_item, session.clear


class TestWithoutReplace(SessionConformance):
    """Tests of `replace` have nothing to look at."""

    lasting = False

    def open_session(self) -> Session:
        """Return an empty session."""
        return WithoutReplace()


# ---------------------------------------------------------------------------------------------- the suite itself


def test_every_kind_of_item_is_given_to_a_session() -> None:
    """The suite's items are those that runs give to a session: verdicts are asked of the caller, not kept."""
    assert {type(item).__name__ for item in ONE_OF_EACH} == {kind.__name__ for kind in ITEM_TYPES} - {"ApprovalRequest"}


class Good:
    """A sound session over a list that others may share; what is derived from it has one fault each."""

    def __init__(self, items: list[Item]) -> None:
        self.items = items

    async def get_items(self, limit: int | None = None) -> list[Item]:
        await checkpoint()
        return self.items[:] if limit is None else self.items[max(len(self.items) - limit, 0) :]

    async def add_items(self, items: Sequence[Item]) -> None:
        items = tuple(items)
        await checkpoint()
        self.items += items

    async def pop_item(self) -> Item | None:
        await checkpoint()
        return self.items.pop() if self.items else None

    async def clear(self) -> None:
        await checkpoint()
        self.items.clear()

    async def replace(self, items: Sequence[Item], *, expect: Sequence[Item]) -> None:
        await checkpoint()
        if self.items != list(expect):
            raise SessionConflict("changed")
        self.items[:] = items


class TestGood(SessionConformance):
    """The session that the faulty ones are derived from has no fault."""

    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        self.items: list[Item] = []

    def open_session(self) -> Session:
        """Return a session over the test's list."""
        return Good(self.items)


class BeginsWithAMessage(Good):
    async def get_items(self, limit: int | None = None) -> list[Item]:
        return await super().get_items(limit) or messages("hi")


class Turns(Good):
    async def add_items(self, items: Sequence[Item]) -> None:
        await super().add_items(items[::-1])


class LosesEqualOnes(Good):
    async def add_items(self, items: Sequence[Item]) -> None:
        await super().add_items([item for index, item in enumerate(items) if item not in items[:index]])


class KeepsTexts(Good):
    async def add_items(self, items: Sequence[Item]) -> None:
        await super().add_items([UserMessage(str(item)[:100_000]) for item in items])


class Caps(Good):
    async def add_items(self, items: Sequence[Item]) -> None:
        await super().add_items(items[:1000])


class NeedsSome(Good):
    async def add_items(self, items: Sequence[Item]) -> None:
        await super().add_items([items[0], *items[1:]])


class Oldest(Good):
    async def get_items(self, limit: int | None = None) -> list[Item]:
        return (await super().get_items())[:limit]


class ZeroIsAll(Good):
    async def get_items(self, limit: int | None = None) -> list[Item]:
        return await super().get_items(limit or None)


class Lends(Good):
    async def get_items(self, limit: int | None = None) -> list[Item]:
        return self.items if limit is None else await super().get_items(limit)


class PopsTheOldest(Good):
    async def pop_item(self) -> Item | None:
        await checkpoint()
        return self.items.pop(0) if self.items else None


class RaisesWhereThereIsNone(Good):
    async def pop_item(self) -> Item | None:
        await checkpoint()
        return self.items.pop()


class LooksThenPops(Good):
    async def pop_item(self) -> Item | None:
        await checkpoint()
        latest = self.items[-1] if self.items else None
        await checkpoint()
        self.items[-1:] = []
        return latest


class ClearsForGood(Good):
    async def clear(self) -> None:
        await checkpoint()
        self.items.clear()
        self.items = []


class ClearsOnce(Good):
    async def clear(self) -> None:
        await checkpoint()
        self.items[:] = self.items[1:]


class NeverReplaces(Good):
    async def replace(self, items: Sequence[Item], *, expect: Sequence[Item]) -> None:
        await checkpoint()
        raise SessionConflict("changed")


class ReplacesAnything(Good):
    async def replace(self, items: Sequence[Item], *, expect: Sequence[Item]) -> None:
        await checkpoint()
        self.items[:] = items


class ComparesLengths(Good):
    async def replace(self, items: Sequence[Item], *, expect: Sequence[Item]) -> None:
        await super().replace(items, expect=self.items[:] if len(expect) == len(self.items) else expect)


class ClearsThenCompares(Good):
    async def replace(self, items: Sequence[Item], *, expect: Sequence[Item]) -> None:
        before = self.items[:]
        self.items.clear()
        await checkpoint()
        if before != list(expect):
            raise SessionConflict("changed")
        self.items[:] = items


class ComparesThenReplaces(Good):
    async def replace(self, items: Sequence[Item], *, expect: Sequence[Item]) -> None:
        if self.items != list(expect):
            raise SessionConflict("changed")
        await checkpoint()
        self.items[:] = items


class Forgets(Good):
    def __init__(self, items: list[Item]) -> None:
        super().__init__([])


class ReadsOnce(Good):
    """Each object keeps what it once read."""

    def __init__(self, items: list[Item]) -> None:
        super().__init__(items[:])
        self.shared = items

    async def add_items(self, items: Sequence[Item]) -> None:
        await super().add_items(items)
        self.shared += items


class OneByOne(Good):
    async def add_items(self, items: Sequence[Item]) -> None:
        for item in items:
            for _ in range(3):  # as long as that, so that a cancellation finds it in any order of trio's tasks
                await checkpoint()
            self.items.append(item)


class FirstUseLoses(Good):
    """Is made anew by each task that finds it new, and each takes longer than the one before."""

    makers = 0

    async def add_items(self, items: Sequence[Item]) -> None:
        if not self.items:
            self.makers += 1
            for _ in range(self.makers):
                await checkpoint()
            self.items.clear()
        await super().add_items(items)


class PopsThenWaits(Good):
    async def pop_item(self) -> Item | None:
        found = self.items.pop() if self.items else None
        await checkpoint()
        return found


class ClearsInSteps(Good):
    async def clear(self) -> None:
        while self.items:
            self.items.pop()
            await checkpoint()


class NoCheckpoint(Good):
    async def add_items(self, items: Sequence[Item]) -> None:
        self.items += items


class ReadsWithoutCheckpoint(Good):
    async def get_items(self, limit: int | None = None) -> list[Item]:
        return self.items[:] if limit is None else self.items[max(len(self.items) - limit, 0) :]


class OneLoop(Good):
    loop: Any = None

    async def add_items(self, items: Sequence[Item]) -> None:
        self.loop = self.loop or current_token()
        assert self.loop == current_token(), "made for another loop"
        await super().add_items(items)


class Incomplete:
    """Has no `pop_item`."""

    def __init__(self, items: list[Item]) -> None:
        session = Good(items)
        self.get_items, self.add_items, self.clear = session.get_items, session.add_items, session.clear


ORDER = "test_items_are_read_in_order"
LIMIT = "test_a_limit_gives_the_latest_in_order_of_time"
POPPED = "test_the_latest_item_is_popped"
CLEARED = "test_a_cleared_session_is_empty_and_usable"
CONFLICT = "test_a_replacement_of_something_else_is_a_conflict"
WHOLE = "test_batches_of_several_tasks_stay_whole"
CANCELLED = "test_a_cancelled_call_has_done_all_of_its_work_or_none"
CHECKPOINTS = "test_a_cancelled_scope_lets_no_call_through"
LOOPS = "test_it_serves_one_event_loop_after_the_other"
FAULTS: list[tuple[type[Any], str]] = [
    (Incomplete, "test_it_is_a_session"),
    (BeginsWithAMessage, "test_a_new_session_is_empty"),
    (RaisesWhereThereIsNone, "test_a_new_session_is_empty"),
    (Turns, ORDER),
    (KeepsTexts, "test_items_come_back_as_they_were_given"),
    (LosesEqualOnes, "test_items_come_back_as_they_were_given"),
    (Caps, "test_a_batch_may_be_large"),
    (NeedsSome, "test_an_empty_batch_changes_nothing"),
    (Oldest, LIMIT),
    (ZeroIsAll, LIMIT),
    (Lends, "test_lists_are_the_callers_own"),
    (PopsTheOldest, POPPED),
    (LooksThenPops, "test_each_item_is_popped_once"),
    (ClearsOnce, CLEARED),
    (NeverReplaces, "test_a_replacement_of_what_was_read_takes_its_place"),
    (ReplacesAnything, CONFLICT),
    (ComparesLengths, CONFLICT),
    (ClearsThenCompares, CONFLICT),
    (ComparesThenReplaces, "test_of_two_replacements_of_one_reading_one_is_a_conflict"),
    (Forgets, "test_it_outlives_its_object"),
    (ReadsOnce, "test_two_objects_are_one_session"),
    (ClearsForGood, "test_two_objects_are_one_session"),
    (Good, "test_conversations_are_kept_apart"),
    (OneByOne, WHOLE),
    (FirstUseLoses, WHOLE),
    (OneByOne, CANCELLED),
    (PopsThenWaits, CANCELLED),
    (ClearsInSteps, CANCELLED),
    (ClearsThenCompares, CANCELLED),
    (NoCheckpoint, CHECKPOINTS),
    (ReadsWithoutCheckpoint, CHECKPOINTS),
]


def suite_of(kind: type[Any]) -> SessionConformance:
    """Return the suite of a kind of session that keeps all conversations in one list."""
    items: list[Item] = []

    class Suite(SessionConformance):
        def open_session(self) -> Session:
            session: Session = kind(items)
            return session

        open_another = open_session

    return Suite()


@pytest.mark.parametrize(("kind", "test"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.backends("asyncio", "trio-virtual")
async def test_the_suite_finds_a_faulty_session(kind: type[Any], test: str, anyio_backend: Any) -> None:
    """Each planted fault fails the test that is there for it, by an assertion or with the session's own error."""
    with pytest.raises((AssertionError, IndexError, SessionConflict)):
        await getattr(suite_of(kind), test)()


def test_the_suite_finds_a_session_made_for_one_loop() -> None:
    """Such a session serves the first loop and not the second."""
    with pytest.raises(AssertionError, match="another loop"):
        getattr(suite_of(OneLoop), LOOPS)()


def test_each_rule_has_a_double_that_breaks_it() -> None:
    """A rule that no session breaks may be no rule at all."""
    rules = {name for name in vars(SessionConformance) if name.startswith("test_")}
    assert {test for _, test in FAULTS} == rules - {LOOPS}
    with pytest.raises(NotImplementedError):
        SessionConformance().open_session()
