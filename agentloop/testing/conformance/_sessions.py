"""What any session must do, as a test class: subclass it, say how one is opened, and pytest runs the rest.

```python
@pytest.mark.anyio
class TestOurSession(SessionConformance):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.path = tmp_path / "session"

    def open_session(self):
        return OurSession(self.path, "one")
```

Nothing here imports pytest: what fails is an AssertionError that says what was expected. Every test opens what it needs
and closes it. Tests of `replace` pass without looking where the session has no such method.

PYTEST_DONT_REWRITE: what is asserted has words of its own; a difference of megabytes takes pytest minutes to show.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

import anyio

from agentloop.abc import ReplaceableSession, Session
from agentloop.exceptions import SessionConflict
from agentloop.items import (
    AssistantMessage,
    Compaction,
    File,
    HandoffCall,
    HandoffOutput,
    HostedToolCall,
    Image,
    Item,
    OpaqueItem,
    Reasoning,
    Refusal,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.testing.conformance._parts import STEPS, cancelled_after

Change: TypeAlias = Callable[[], Awaitable[Any]]

ONE_OF_EACH: tuple[Item, ...] = (
    SystemMessage("Be kind."),
    UserMessage([Text("hi"), Image("https://example.test/a.png", "low"), File(data="aGk=", filename="a.txt")]),
    UserMessage("same"),
    UserMessage("same"),
    Reasoning(id="r1", summary=("hm",), content=("so",), encrypted="x=="),
    ToolCall("c1", "f", '{"a": 1,  "b": "\\u00fc"}', "space", provider_data={"id": "x", "n": [1, None, {"k": True}]}),
    ToolOutput("c1", '日本 \U0001f600 \x00 " \\ \n'),
    HandoffCall("c2", "transfer_to_b"),
    HandoffOutput("c2", "There you are.", "a", "b"),
    HostedToolCall("web_search", {"query": "x"}, "h1"),
    Compaction({"summary": "before"}),
    OpaqueItem({"type": "hologram", "depth": 3.5}),
    AssistantMessage([Text("done"), Refusal("not that")], id="m1"),
    UserMessage("long " * 50_000),
)


def messages(*names: str) -> list[Item]:
    """Return a message for each name."""
    return [UserMessage(name) for name in names]


class SessionConformance:
    """Tests of what `Session` and `ReplaceableSession` promise. A subclass gives `open_session`.

    `lasting`: whether a session outlives its object, so that `open_session` gives another object for the same items.
    Tests that need it pass without looking where it is False.
    """

    lasting = True

    def open_session(self) -> Session:
        """Return the session of this test: another object for the same one each time it is called in a test."""
        raise NotImplementedError

    def open_another(self) -> Session | None:
        """Return another conversation in the same place, if a place may hold several."""
        return None

    async def close(self, session: Session) -> None:
        """Close *session*: here by its `aclose`, where it has one."""
        aclose = getattr(session, "aclose", None)
        if aclose is not None:
            await aclose()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Session]:
        """Open the session for a block and close it, however the block is left."""
        session = self.open_session()
        try:
            yield session
        finally:
            with anyio.CancelScope(shield=True):
                await self.close(session)

    # ------------------------------------------------------------------------------------------ what it holds

    async def test_it_is_a_session(self) -> None:
        """It has the methods; one without the others is found before a run is."""
        async with self.opened() as session:
            assert isinstance(session, Session), f"{session!r} lacks methods of agentloop.abc.Session"

    async def test_a_new_session_is_empty(self) -> None:
        """Reading and popping what was never written gives nothing, twice."""
        async with self.opened() as session:
            for _ in range(2):
                await self._holds(session, [])
                assert await session.pop_item() is None, "popping from an empty session gives None"

    async def test_items_are_read_in_order(self) -> None:
        """Within batches, between them, and between readings."""
        async with self.opened() as session:
            await session.add_items(messages("a"))
            await session.add_items(messages("b", "c"))
            await self._holds(session, messages("a", "b", "c"))
            await session.add_items(messages("d"))
            await self._holds(session, messages("a", "b", "c", "d"))

    async def test_items_come_back_as_they_were_given(self) -> None:
        """Of every kind, with what providers put into them; equal ones as often as they were added."""
        async with self.opened() as session:
            await session.add_items(ONE_OF_EACH)
            found = await session.get_items()
        assert len(found) == len(ONE_OF_EACH), f"{len(ONE_OF_EACH)} items were added, and {len(found)} came back"
        for item, given in zip(found, ONE_OF_EACH, strict=True):
            assert item == given, f"{str(given)[:200]} came back as {str(item)[:200]}"

    async def test_a_batch_may_be_large(self) -> None:
        """Two thousand items are one batch like any other."""
        many = messages(*map(str, range(2000)))
        async with self.opened() as session:
            await session.add_items(many)
            await self._holds(session, many)

    async def test_an_empty_batch_changes_nothing(self) -> None:
        """Neither before the first item nor after it."""
        async with self.opened() as session:
            await session.add_items([])
            await self._holds(session, [])
            await session.add_items(messages("a"))
            await session.add_items([])
            await self._holds(session, messages("a"))

    async def test_a_limit_gives_the_latest_in_order_of_time(self) -> None:
        """None is all, 0 is none, more than there are is all; nothing is taken out."""
        abc = messages("a", "b", "c")
        async with self.opened() as session:
            await session.add_items(abc)
            for limit, expected in ((0, []), (1, abc[2:]), (2, abc[1:]), (3, abc), (9, abc), (None, abc)):
                found = await session.get_items(limit)
                assert found == expected, f"get_items({limit}) of a, b, c gave {found}"
            assert await session.get_items(limit=1) == abc[2:], "limit can be given by name"

    async def test_lists_are_the_callers_own(self) -> None:
        """What is done to the list that was given, or to the one that was got, doesn't reach the session."""
        given = messages("a")
        async with self.opened() as session:
            await session.add_items(given)
            given.clear()
            (await session.get_items()).clear()
            (await session.get_items(1)).clear()
            await self._holds(session, messages("a"))

    # ------------------------------------------------------------------------------------------ taking out

    async def test_the_latest_item_is_popped(self) -> None:
        """One at a time, until there is none; then it goes on."""
        async with self.opened() as session:
            await session.add_items(messages("a", "b"))
            found = [await session.pop_item() for _ in range(3)]
            assert found == [*messages("b", "a"), None], f"popping a, b gave {found}"
            await session.add_items(messages("c"))
            await self._holds(session, messages("c"))

    async def test_each_item_is_popped_once(self) -> None:
        """Whoever pops at the same time gets another one."""
        items = messages(*map(str, range(6)))
        found: list[Any] = []

        async def pop() -> None:
            found.append(await session.pop_item())

        async with self.opened() as session:
            await session.add_items(items)
            async with anyio.create_task_group() as group:
                for _ in range(8):
                    group.start_soon(pop)
            await self._holds(session, [])
        assert [item for item in items if found.count(item) != 1] == [], f"8 tasks popped {found} from {items}"
        assert found.count(None) == 2, f"of 8 that popped from 6 items two get None: {found}"

    async def test_a_cleared_session_is_empty_and_usable(self) -> None:
        """Clearing twice is clearing once."""
        async with self.opened() as session:
            await session.add_items(messages("a", "b"))
            for _ in range(2):
                await session.clear()
                await self._holds(session, [])
            await session.add_items(messages("c"))
            await self._holds(session, messages("c"))

    # ------------------------------------------------------------------------------------------ replacing

    async def test_a_replacement_of_what_was_read_takes_its_place(self) -> None:
        """From nothing, by something else, and by nothing."""
        async with self.opened() as session:
            if not isinstance(session, ReplaceableSession):
                return
            await session.replace(messages("a", "b"), expect=[])
            await self._holds(session, messages("a", "b"))
            await session.add_items(ONE_OF_EACH)
            await session.replace(messages("d"), expect=await session.get_items())
            await self._holds(session, messages("d"))
            await session.replace([], expect=messages("d"))
            await self._holds(session, [])

    async def test_a_replacement_of_something_else_is_a_conflict(self) -> None:
        """Fewer, more, others, another order: `SessionConflict`, and the session is left as it is."""
        async with self.opened() as session:
            if not isinstance(session, ReplaceableSession):
                return
            await session.add_items(messages("a", "b"))
            for names in ("", "a", "b", "abc", "ba", "ad"):
                await self._conflicts(session, messages(*names))
                await self._holds(session, messages("a", "b"))

    async def test_of_two_replacements_of_one_reading_one_is_a_conflict(self) -> None:
        """Whichever is first; the other learns of it."""
        conflicts: list[str] = []

        async def replace(session: ReplaceableSession, name: str) -> None:
            try:
                await session.replace(messages(name), expect=messages("a"))
            except SessionConflict:
                conflicts.append(name)

        async with self.opened() as session:
            if not isinstance(session, ReplaceableSession):
                return
            await session.add_items(messages("a"))
            async with anyio.create_task_group() as group:
                for name in "bcd":
                    group.start_soon(replace, session, name)
            assert len(conflicts) == 2, f"of three replacements of one reading {conflicts} are conflicts"
            await self._holds(session, messages(*({*"bcd"} - {*conflicts})))

    # ------------------------------------------------------------------------------------------ other objects

    async def test_it_outlives_its_object(self) -> None:
        """Another object finds everything and goes on."""
        if not self.lasting:
            return
        async with self.opened() as session:
            await session.add_items(ONE_OF_EACH)
        async with self.opened() as session:  # an object may also add without having read
            await session.add_items(messages("a", "b"))
        async with self.opened() as session:
            await session.pop_item()
        async with self.opened() as session:
            await self._holds(session, [*ONE_OF_EACH, *messages("a")])

    async def test_two_objects_are_one_session(self) -> None:
        """Each sees at once what the other did."""
        if not self.lasting:
            return
        async with self.opened() as first, self.opened() as second:
            await first.add_items(messages("a", "b"))
            await self._holds(second, messages("a", "b"))
            assert await second.pop_item() == UserMessage("b")
            await self._holds(first, messages("a"))
            await second.clear()
            await first.add_items(messages("c"))
            await self._holds(second, messages("c"))

    async def test_conversations_are_kept_apart(self) -> None:
        """What is done to one isn't seen in another."""
        another = self.open_another()
        if another is None:
            return
        try:
            async with self.opened() as session:
                await session.add_items(messages("a"))
                await another.add_items(messages("x", "y"))
                await self._holds(session, messages("a"))
                assert await session.pop_item() == UserMessage("a"), "the latest item of one isn't another's"
                await session.clear()
                await self._holds(another, messages("x", "y"))
        finally:
            with anyio.CancelScope(shield=True):
                await self.close(another)

    # ------------------------------------------------------------------------------------------ concurrency

    async def test_batches_of_several_tasks_stay_whole(self) -> None:
        """The first use of a session may be by many at once; the items of one batch stand side by side."""
        batches = [messages(*(f"{number}.{part}" for part in range(3))) for number in range(8)]
        async with self.opened() as session:
            async with anyio.create_task_group() as group:
                for batch in batches:
                    group.start_soon(session.add_items, batch)
            found = await session.get_items()
        whole = [found[at : at + 3] for at in range(0, len(found), 3)]
        missing = [batch for batch in batches if batch not in whole]
        assert not missing, f"batches were mixed or lost: {found}"
        assert len(found) == 24, f"24 items were added, and {len(found)} are there"

    async def test_a_cancelled_call_has_done_all_of_its_work_or_none(self) -> None:
        """Cancelled at any moment; what returned is done, and the session goes on."""
        async with self.opened() as session:
            for steps in STEPS:
                await self._all_or_none(session, steps, partial(session.add_items, messages("x", "y")), "ab", "abxy")
                await self._all_or_none(session, steps, session.pop_item, "ab", "a")
                await self._all_or_none(session, steps, session.clear, "ab", "")
                if isinstance(session, ReplaceableSession):
                    replace = partial(session.replace, messages("x", "y", "z"), expect=messages("a", "b"))
                    await self._all_or_none(session, steps, replace, "ab", "xyz")

    async def test_a_cancelled_scope_lets_no_call_through(self) -> None:
        """Each method is a checkpoint, and nothing is done."""
        async with self.opened() as session:
            await session.add_items(messages("a", "b"))
            calls: list[tuple[str, Change]] = [
                ("get_items", session.get_items),
                ("add_items", partial(session.add_items, messages("x"))),
                ("pop_item", session.pop_item),
                ("clear", session.clear),
            ]
            if isinstance(session, ReplaceableSession):
                calls.append(("replace", partial(session.replace, [], expect=messages("a", "b"))))
            for name, change in calls:
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    await change()
                assert scope.cancelled_caught, f"{name} should be a checkpoint"
            await self._holds(session, messages("a", "b"))

    def test_it_serves_one_event_loop_after_the_other(self) -> None:
        """Nothing of a loop that has ended holds it back."""
        session = self.open_session()
        for name in ("a", "b"):
            anyio.run(session.add_items, messages(name))
        found = anyio.run(session.get_items)
        anyio.run(self.close, session)
        assert found == messages("a", "b"), f"got {found}"

    # ------------------------------------------------------------------------------------------ parts

    async def _holds(self, session: Session, expected: Sequence[Item]) -> None:
        found = await session.get_items()
        assert found == list(expected), (
            f"expected {len(expected)} items, got {len(found)} or others: {str(found)[:500]}"
        )

    async def _conflicts(self, session: ReplaceableSession, expect: Sequence[Item]) -> None:
        try:
            await session.replace(messages("x"), expect=expect)
        except SessionConflict:
            return
        raise AssertionError(f"SessionConflict was expected: a, b isn't {expect}")

    async def _all_or_none(self, session: Session, steps: int, change: Change, before: str, after: str) -> None:
        await session.clear()
        await session.add_items(messages(*before))
        returned = await cancelled_after(steps, change)
        found = await session.get_items()
        allowed = [messages(*after)] if returned else [messages(*before), messages(*after)]
        assert found in allowed, f"{change} cancelled after {steps} steps left {found}; it returned: {returned}"
        if not steps:
            assert found == allowed[0], f"{change} did something in a cancelled scope"


__all__ = ["SessionConformance"]
