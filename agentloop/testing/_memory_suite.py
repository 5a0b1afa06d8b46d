"""The conformance suite of stores of memory: subclass `MemoryConformance`, define `open_store`, and pytest runs it.

```python
@pytest.mark.anyio
class TestOurStore(MemoryConformance):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.path = tmp_path / "memory"

    def open_store(self):
        return OurStore(self.path)
```

Nothing here imports pytest. A failed test raises an AssertionError that says what was expected. Every test opens the
stores it needs and closes them.

PYTEST_DONT_REWRITE: each assertion has its own message.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio

from agentloop.abc import MemoryStore
from agentloop.exceptions import MemoryConflict
from agentloop.testing._suite_parts import STEPS, cancel_after

TEXTS: dict[str, str] = {
    "a.md": "one\ntwo",
    "empty": "",
    "ends.txt": "a\r\nb\rc\n\n",
    "folder/deep/er.md": "日本 \U0001f600 \t \" ' \\ %s ? $1 \u00e9 e\u0301",
    "folder/b c.md": "x" * 99_000,
    "50% & more; DROP TABLE": "--",
}
SCOPES = (
    "ada",
    "Ada",
    "ada/bob",
    "ada%2fbob",
    "..",
    ".",
    "/",
    "a b",
    "日本",
    "x" * 300,
    "x" * 301,
    "'; --",
    "\\",
    "\u00e9",
    "e\u0301",
)
"""Scopes that a store may take for one, for a path or for a statement."""


class MemoryConformance:
    """Tests of the protocol `MemoryStore`. A subclass defines `open_store`.

    `lasting` is True if the files outlive the object, so that `open_store` returns another object for the same files.
    Tests that need this pass without a check if it is False.
    """

    lasting = True

    def open_store(self) -> MemoryStore:
        """Return the store of the current test: each call in one test gives another object for the same files."""
        raise NotImplementedError

    async def close(self, store: MemoryStore) -> None:
        """Close *store* by its `aclose`, if it has one. Override this for another way of closing."""
        aclose = getattr(store, "aclose", None)
        if aclose is not None:
            await aclose()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[MemoryStore]:
        """Open the store for a block, and close it when the block is left, also by an error or a cancellation."""
        store = self.open_store()
        try:
            yield store
        finally:
            with anyio.CancelScope(shield=True):
                await self.close(store)

    async def test_it_is_a_store(self) -> None:
        """The store has all methods of the protocol. A missing one is found here, before a run needs it."""
        async with self.opened() as store:
            assert isinstance(store, MemoryStore), f"{store!r} lacks methods of agentloop.abc.MemoryStore"

    async def test_a_new_scope_is_empty(self) -> None:
        """Loading a new scope gives no files, and changes nothing."""
        async with self.opened() as store:
            for _ in range(2):
                await self._check_holds(store, {})

    async def test_texts_come_back_as_they_were_given(self) -> None:
        """Texts come back equal: ends of lines, scripts, empty texts, long ones; paths with spaces and folders."""
        async with self.opened() as store:
            await store.change("ada", TEXTS, expect={})
            await self._check_holds(store, TEXTS)

    async def test_files_are_written_replaced_and_removed(self) -> None:
        """One change may do all three; a folder that has become empty gives its name free for a file."""
        async with self.opened() as store:
            await store.change("ada", {"a": "1", "b": "2", "c/d": "3"}, expect={})
            await store.change("ada", {"a": None, "b": "two", "e": "4"}, expect={"a": "1", "b": "2", "c/d": "3"})
            await self._check_holds(store, {"b": "two", "c/d": "3", "e": "4"})
            await store.change("ada", {"b": None, "c/d": None, "e": None}, expect={"b": "two", "c/d": "3", "e": "4"})
            await self._check_holds(store, {})
            await store.change("ada", {"c": "a file"}, expect={})
            await self._check_holds(store, {"c": "a file"})

    async def test_a_change_of_other_files_is_a_conflict(self) -> None:
        """Other expected files (fewer, more, another text) raise `MemoryConflict`, and change nothing."""
        async with self.opened() as store:
            await store.change("ada", {"a": "1", "b": "2"}, expect={})
            wrong: list[dict[str, str]] = [{}, {"a": "1"}, {"a": "1", "b": "x"}, {"a": "1", "b": "2", "c": "3"}]
            for expect in wrong:
                try:
                    await store.change("ada", {"a": None, "new": "x"}, expect=expect)
                except MemoryConflict:
                    await self._check_holds(store, {"a": "1", "b": "2"})
                else:
                    raise AssertionError(f"MemoryConflict was expected: a, b isn't {expect}")

    async def test_scopes_are_kept_apart(self) -> None:
        """Each scope has its own files, also if its name is much like another's, or looks like a path."""
        async with self.opened() as store:
            for number, scope in enumerate(SCOPES):
                await store.change(scope, {"a.md": f"of {number}"}, expect={})
            for number, scope in enumerate(SCOPES):
                await self._check_holds(store, {"a.md": f"of {number}"}, scope)
                await store.change(scope, {"a.md": None}, expect={"a.md": f"of {number}"})
            await self._check_holds(store, {})

    async def test_the_empty_scope_has_no_files(self) -> None:
        """The empty text is no scope: a store refuses it by a ValueError, or has no files for it."""
        async with self.opened() as store:
            await store.change("ada", {"a.md": "x"}, expect={})
            try:
                found = await store.load("")
            except ValueError:
                return
            assert found == {}, f"no files were expected of the scope '', got {str(found)[:300]}"

    async def test_no_write_of_several_tasks_is_lost(self) -> None:
        """Tasks that change one scope at once, and load it again after a conflict, each find all that they wrote."""

        async def write(name: str) -> None:
            while True:
                found = await store.load("ada")
                try:
                    await store.change("ada", {name: name, "all": found.get("all", "") + name}, expect=found)
                except MemoryConflict:
                    continue
                return

        async with self.opened() as store:
            async with anyio.create_task_group() as group:
                for name in "abcdef":
                    group.start_soon(write, name)
            found = dict(await store.load("ada"))
        assert sorted(found.pop("all", "")) == [*"abcdef"], f"a change was lost: {found}"
        assert found == {name: name for name in "abcdef"}, f"a file was lost: {found}"

    async def test_a_cancelled_change_is_whole_or_nothing(self) -> None:
        """A change that is cancelled, before or while it runs, is made as a whole or not at all."""
        async with self.opened() as store:
            found: Mapping[str, str] = {}
            for number, steps in enumerate(STEPS):
                new = {"a": str(number), f"folder/{number}": "x"}
                change = {**new, **{path: None for path in found if path not in new}}

                async def make(change: Mapping[str, str | None] = change, found: Mapping[str, str] = found) -> None:
                    await store.change("ada", change, expect=found)

                returned = await cancel_after(steps, make)
                left = await store.load("ada")
                allowed = [new] if returned else [found, new]
                assert left in allowed, f"a change cancelled after {steps} steps left {left}; it returned: {returned}"
                assert steps or left == found, "a change did something in a cancelled scope"
                found = left

    async def test_it_outlives_its_object(self) -> None:
        """Another object for the same files reads and changes them."""
        if not self.lasting:
            return
        async with self.opened() as store:
            await store.change("ada", TEXTS, expect={})
        async with self.opened() as store, self.opened() as other:
            await store.change("ada", {"a.md": None}, expect=TEXTS)
            await self._check_holds(other, {path: text for path, text in TEXTS.items() if path != "a.md"})

    def test_it_serves_one_event_loop_after_the_other(self) -> None:
        """The store works on a second event loop after the first has ended."""
        store = self.open_store()

        async def write() -> None:
            await store.change("ada", {"a": "1"}, expect={})

        async def read() -> Mapping[str, str]:
            try:
                return await store.load("ada")
            finally:
                await self.close(store)  # noqa: ASYNC102 - nothing cancels this loop

        anyio.run(write)
        found = anyio.run(read)
        assert found == {"a": "1"}, f"got {found}"

    async def _check_holds(self, store: MemoryStore, expected: Mapping[str, str], scope: str = "ada") -> None:
        found = await store.load(scope)
        assert found == expected, f"expected the files {str(expected)[:300]} of {scope!r}, got {str(found)[:300]}"
