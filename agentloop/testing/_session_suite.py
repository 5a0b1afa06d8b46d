"""The conformance suite of sessions: subclass `SessionConformance`, define `open_session`, and pytest runs its tests.

```python
@pytest.mark.anyio
class TestOurSession(SessionConformance):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.path = tmp_path / "session"

    def open_session(self):
        return OurSession(self.path, "one")
```

Nothing here imports pytest. A failed test raises an AssertionError that says what was expected. Every test opens the
sessions it needs and closes them. Tests of `replace` pass without a check if the session has no such method.

PYTEST_DONT_REWRITE: each assertion has its own message; pytest would need minutes to show a difference of megabytes.
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
    Audio,
    Caller,
    Compaction,
    ContainerFileCitation,
    File,
    FileCitation,
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
    UrlCitation,
    UserMessage,
)
from agentloop.testing._suite_parts import STEPS, cancel_after

Change: TypeAlias = Callable[[], Awaitable[Any]]

ONE_OF_EACH: tuple[Item, ...] = (
    SystemMessage("Be kind."),
    UserMessage([Text("hi"), Image("https://example.test/a.png", "low"), File(data="aGk=", filename="a.txt")]),
    UserMessage([Audio("UklGRg==", media_type="audio/wav"), Image(file_id="f1"), Image(data="aGk=")]),
    UserMessage("same"),
    UserMessage("same"),
    Reasoning(id="r1", summary=("hm",), content=("so",), encrypted="x=="),
    ToolCall("c1", "f", '{"a": 1,  "b": "\\u00fc"}', "space", provider_data={"id": "x", "n": [1, None, {"k": True}]}),
    ToolOutput("c1", '日本 \U0001f600 \x00 " \\ \n'),
    ToolCall("c3", "g", "free text", kind="custom", caller=Caller("program", "p1")),
    ToolOutput("c3", (Text("no"),), kind="custom", is_error=True),
    HandoffCall("c2", "transfer_to_b"),
    HandoffOutput("c2", "There you are.", "a", "b"),
    HostedToolCall("web_search", {"query": "x"}, "h1"),
    HostedToolCall("mcp_call", {"name": "n"}, "h2", "completed", {"found": [1, None]}, "k1"),
    Compaction({"summary": "before"}),
    OpaqueItem({"type": "hologram", "depth": 3.5}),
    AssistantMessage([Text("done"), Refusal("not that")], id="m1"),
    AssistantMessage(
        Text(
            "cited",
            (
                UrlCitation(url="https://example.test", title="T", start=0, end=5),
                FileCitation(file_id="f1", index=2),
                ContainerFileCitation(container_id="k1", file_id="f2", filename="b.csv"),
            ),
        )
    ),
    UserMessage("long " * 50_000),
)


def messages(*names: str) -> list[Item]:
    """Return a message for each name."""
    return [UserMessage(name) for name in names]


class SessionConformance:
    """Tests of the protocols `Session` and `ReplaceableSession`. A subclass defines `open_session`.

    `lasting` is True if a session outlives its object, so that `open_session` returns another object for the same
    items. Tests that need this pass without a check if it is False.
    """

    lasting = True

    def open_session(self) -> Session:
        """Return the session of the current test: each call in one test gives another object for the same session."""
        raise NotImplementedError

    def open_another(self) -> Session | None:
        """Return another conversation in the same store; None if a store holds only one."""
        return None

    async def close(self, session: Session) -> None:
        """Close *session* by its `aclose`, if it has one. Override this for another way of closing."""
        aclose = getattr(session, "aclose", None)
        if aclose is not None:
            await aclose()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Session]:
        """Open the session for a block, and close it when the block is left, also by an error or a cancellation."""
        session = self.open_session()
        try:
            yield session
        finally:
            with anyio.CancelScope(shield=True):
                await self.close(session)

    # ------------------------------------------------------------------------------------------ contents

    async def test_it_is_a_session(self) -> None:
        """The session has all methods of the protocol. A missing one is found here, before a run needs it."""
        async with self.opened() as session:
            assert isinstance(session, Session), f"{session!r} lacks methods of agentloop.abc.Session"

    async def test_a_new_session_is_empty(self) -> None:
        """Reading a new session gives no items, popping from it gives None, and neither changes it."""
        async with self.opened() as session:
            for _ in range(2):
                await self._check_holds(session, [])
                assert await session.pop_item() is None, "popping from an empty session gives None"

    async def test_items_are_read_in_order(self) -> None:
        """Items come back in the order of adding: within a batch, between batches, and after a read."""
        async with self.opened() as session:
            await session.add_items(messages("a"))
            await session.add_items(messages("b", "c"))
            await self._check_holds(session, messages("a", "b", "c"))
            await session.add_items(messages("d"))
            await self._check_holds(session, messages("a", "b", "c", "d"))

    async def test_items_come_back_as_they_were_given(self) -> None:
        """Items of every kind come back equal, provider data included; equal items as often as they were added."""
        async with self.opened() as session:
            await session.add_items(ONE_OF_EACH)
            found = await session.get_items()
        assert len(found) == len(ONE_OF_EACH), f"{len(ONE_OF_EACH)} items were added, and {len(found)} came back"
        for item, given in zip(found, ONE_OF_EACH, strict=True):
            assert item == given, f"{str(given)[:200]} came back as {str(item)[:200]}"

    async def test_a_batch_may_be_large(self) -> None:
        """A batch may have two thousand items."""
        many = messages(*map(str, range(2000)))
        async with self.opened() as session:
            await session.add_items(many)
            await self._check_holds(session, many)

    async def test_an_empty_batch_changes_nothing(self) -> None:
        """An empty batch adds nothing, neither before the first item nor after it."""
        async with self.opened() as session:
            await session.add_items([])
            await self._check_holds(session, [])
            await session.add_items(messages("a"))
            await session.add_items([])
            await self._check_holds(session, messages("a"))

    async def test_a_limit_gives_the_latest_in_order_of_time(self) -> None:
        """A limit gives the latest items in order of time; None or a larger limit gives all, 0 gives none."""
        abc = messages("a", "b", "c")
        async with self.opened() as session:
            await session.add_items(abc)
            for limit, expected in ((0, []), (1, abc[2:]), (2, abc[1:]), (3, abc), (9, abc), (None, abc)):
                found = await session.get_items(limit)
                assert found == expected, f"get_items({limit}) of a, b, c gave {found}"
            assert await session.get_items(limit=1) == abc[2:], "limit can be given by name"

    async def test_lists_are_the_callers_own(self) -> None:
        """Changes to an added list, or to a list that was read, don't change the session."""
        given = messages("a")
        async with self.opened() as session:
            await session.add_items(given)
            given.clear()
            (await session.get_items()).clear()
            (await session.get_items(1)).clear()
            await self._check_holds(session, messages("a"))

    # ------------------------------------------------------------------------------------------ taking out

    async def test_the_latest_item_is_popped(self) -> None:
        """Each pop removes and returns the latest item, and None at the end; then the session can be used further."""
        async with self.opened() as session:
            await session.add_items(messages("a", "b"))
            found = [await session.pop_item() for _ in range(3)]
            assert found == [*messages("b", "a"), None], f"popping a, b gave {found}"
            await session.add_items(messages("c"))
            await self._check_holds(session, messages("c"))

    async def test_each_item_is_popped_once(self) -> None:
        """Tasks that pop at the same time get different items."""
        items = messages(*map(str, range(6)))
        found: list[Any] = []

        async def pop() -> None:
            found.append(await session.pop_item())

        async with self.opened() as session:
            await session.add_items(items)
            async with anyio.create_task_group() as group:
                for _ in range(8):
                    group.start_soon(pop)
            await self._check_holds(session, [])
        assert [item for item in items if found.count(item) != 1] == [], f"8 tasks popped {found} from {items}"
        assert found.count(None) == 2, f"of 8 that popped from 6 items two get None: {found}"

    async def test_a_cleared_session_is_empty_and_usable(self) -> None:
        """A cleared session is empty, also if it is cleared twice, and takes new items."""
        async with self.opened() as session:
            await session.add_items(messages("a", "b"))
            for _ in range(2):
                await session.clear()
                await self._check_holds(session, [])
            await session.add_items(messages("c"))
            await self._check_holds(session, messages("c"))

    # ------------------------------------------------------------------------------------------ replacing

    async def test_a_replacement_of_what_was_read_takes_its_place(self) -> None:
        """A replacement with the expected items succeeds: in an empty session, by other items, and by none."""
        async with self.opened() as session:
            if not isinstance(session, ReplaceableSession):
                return
            await session.replace(messages("a", "b"), expect=[])
            await self._check_holds(session, messages("a", "b"))
            await session.add_items(ONE_OF_EACH)
            await session.replace(messages("d"), expect=await session.get_items())
            await self._check_holds(session, messages("d"))
            await session.replace([], expect=messages("d"))
            await self._check_holds(session, [])

    async def test_a_replacement_of_something_else_is_a_conflict(self) -> None:
        """Other expected items (fewer, more, others, another order) raise `SessionConflict` and change nothing."""
        async with self.opened() as session:
            if not isinstance(session, ReplaceableSession):
                return
            await session.add_items(messages("a", "b"))
            for names in ("", "a", "b", "abc", "ba", "ad"):
                await self._check_conflict(session, messages(*names))
                await self._check_holds(session, messages("a", "b"))

    async def test_of_two_replacements_of_one_reading_one_is_a_conflict(self) -> None:
        """Of several replacements of the same items only the first succeeds; the others raise `SessionConflict`."""
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
            await self._check_holds(session, messages(*({*"bcd"} - {*conflicts})))

    # ------------------------------------------------------------------------------------------ other objects

    async def test_it_outlives_its_object(self) -> None:
        """Another object for the same session reads all items, and adds and pops further ones."""
        if not self.lasting:
            return
        async with self.opened() as session:
            await session.add_items(ONE_OF_EACH)
        async with self.opened() as session:  # an object may also add without having read
            await session.add_items(messages("a", "b"))
        async with self.opened() as session:
            await session.pop_item()
        async with self.opened() as session:
            await self._check_holds(session, [*ONE_OF_EACH, *messages("a")])

    async def test_two_objects_are_one_session(self) -> None:
        """Each of two objects for one session sees the changes of the other at once."""
        if not self.lasting:
            return
        async with self.opened() as first, self.opened() as second:
            await first.add_items(messages("a", "b"))
            await self._check_holds(second, messages("a", "b"))
            assert await second.pop_item() == UserMessage("b")
            await self._check_holds(first, messages("a"))
            await second.clear()
            await first.add_items(messages("c"))
            await self._check_holds(second, messages("c"))

    async def test_conversations_are_kept_apart(self) -> None:
        """Changes of one conversation don't appear in another."""
        another = self.open_another()
        if another is None:
            return
        try:
            async with self.opened() as session:
                await session.add_items(messages("a"))
                await another.add_items(messages("x", "y"))
                await self._check_holds(session, messages("a"))
                assert await session.pop_item() == UserMessage("a"), "the latest item of one isn't another's"
                await session.clear()
                await self._check_holds(another, messages("x", "y"))
        finally:
            with anyio.CancelScope(shield=True):
                await self.close(another)

    # ------------------------------------------------------------------------------------------ concurrency

    async def test_batches_of_several_tasks_stay_whole(self) -> None:
        """Many tasks may be the first users of a session at once; the items of each batch stay together."""
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
        """A call that is cancelled at any moment has its whole effect or none, and the session can be used further.

        If the call returned, it has its effect.
        """
        async with self.opened() as session:
            for steps in STEPS:
                await self._check_all_or_none(
                    session, steps, partial(session.add_items, messages("x", "y")), "ab", "abxy"
                )
                await self._check_all_or_none(session, steps, session.pop_item, "ab", "a")
                await self._check_all_or_none(session, steps, session.clear, "ab", "")
                if isinstance(session, ReplaceableSession):
                    replace = partial(session.replace, messages("x", "y", "z"), expect=messages("a", "b"))
                    await self._check_all_or_none(session, steps, replace, "ab", "xyz")

    async def test_a_cancelled_scope_lets_no_call_through(self) -> None:
        """Each method is a checkpoint: in a cancelled scope it raises the cancellation and has no effect."""
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
            await self._check_holds(session, messages("a", "b"))

    def test_it_serves_one_event_loop_after_the_other(self) -> None:
        """The session works on a second event loop after the first has ended."""
        session = self.open_session()
        for name in ("a", "b"):
            anyio.run(session.add_items, messages(name))
        found = anyio.run(session.get_items)
        anyio.run(self.close, session)
        assert found == messages("a", "b"), f"got {found}"

    # ------------------------------------------------------------------------------------------ parts

    async def _check_holds(self, session: Session, expected: Sequence[Item]) -> None:
        found = await session.get_items()
        assert found == list(expected), (
            f"expected {len(expected)} items, got {len(found)} or others: {str(found)[:500]}"
        )

    async def _check_conflict(self, session: ReplaceableSession, expect: Sequence[Item]) -> None:
        try:
            await session.replace(messages("x"), expect=expect)
        except SessionConflict:
            return
        raise AssertionError(f"SessionConflict was expected: a, b isn't {expect}")

    async def _check_all_or_none(self, session: Session, steps: int, change: Change, before: str, after: str) -> None:
        await session.clear()
        await session.add_items(messages(*before))
        returned = await cancel_after(steps, change)
        found = await session.get_items()
        allowed = [messages(*after)] if returned else [messages(*before), messages(*after)]
        assert found in allowed, f"{change} cancelled after {steps} steps left {found}; it returned: {returned}"
        if not steps:
            assert found == allowed[0], f"{change} did something in a cancelled scope"


__all__ = ["SessionConformance"]
