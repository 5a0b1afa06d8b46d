"""The conformance suite of journals: subclass `JournalConformance`, define `open_journal`, and pytest runs its tests.

The suites of models, sessions and stores of memory are imported from here too.

```python
@pytest.mark.anyio
class TestOurJournal(JournalConformance):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.path = tmp_path / "journal"

    def open_journal(self):
        return OurJournal(self.path)
```

Nothing here imports pytest. A failed test raises an AssertionError that says what was expected. Every test opens the
journals it needs and closes them.

PYTEST_DONT_REWRITE: each assertion has its own message; pytest would need minutes to show a difference of megabytes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel

from agentloop.abc import Journal
from agentloop.exceptions import JournalError
from agentloop.testing._memory_suite import MemoryConformance
from agentloop.testing._model_suite import ModelConformance
from agentloop.testing._session_suite import SessionConformance

__all__ = ["JournalConformance", "MemoryConformance", "ModelConformance", "SessionConformance"]


def records(*names: str) -> list[bytes]:
    """Return one record for each name."""
    return [json.dumps({"kind": "note", "name": name}, sort_keys=True).encode() for name in names]


async def refused(call: Awaitable[Any], why: str) -> None:
    """Await *call*, and require that it raises JournalError.

    Raises:
        AssertionError: if it returns; *why* says why the journal had to refuse.
    """
    try:
        await call
    except JournalError:
        return
    raise AssertionError(f"JournalError was expected: {why}")


class JournalConformance:
    """Tests of the protocol `Journal`. A subclass defines `open_journal`.

    `lasting` is True if a journal outlives its object, so that `open_journal` returns another object for the same
    journal. Tests that need this pass without a check if it is False.
    """

    lasting = True

    def open_journal(self) -> Journal:
        """Return the journal of the current test: each call in one test gives another object for the same journal."""
        raise NotImplementedError

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Journal]:
        """Open a journal for a block, and close it when the block is left, also by an error or a cancellation."""
        journal = self.open_journal()
        try:
            yield journal
        finally:
            with anyio.CancelScope(shield=True):
                await journal.aclose()

    # ------------------------------------------------------------------------------------------ contents

    async def test_it_is_a_journal(self) -> None:
        """The journal has all methods of the protocol. A missing one is found here, before a run needs it."""
        async with self.opened() as journal:
            assert isinstance(journal, Journal), f"{journal!r} lacks methods of agentloop.abc.Journal"

    async def test_a_new_journal_is_empty(self) -> None:
        """Reading a new journal gives no records, and changes nothing."""
        async with self.opened() as journal:
            await self._check_holds(journal, [])
            await self._check_holds(journal, [])

    async def test_what_was_appended_is_read_in_order(self) -> None:
        """Records come back in the order of appending: within a batch, between batches, and after a read."""
        async with self.opened() as journal:
            await journal.append(records("a"))
            await journal.append(records("b", "c"))
            await self._check_holds(journal, records("a", "b", "c"))
            await journal.append(records("d"))
            await self._check_holds(journal, records("a", "b", "c", "d"))

    async def test_records_come_back_as_they_were_given(self) -> None:
        """Records come back equal to the byte: spaces, escapes, scripts, order of keys, names of envelope fields."""
        given = [
            b'{"b": 1,  "a": [ ] }',
            b"{}",
            b"{}",
            '{"kind":"ü","x":"日本 \U0001f600"}'.encode(),
            b'{"x":"\\u0000 \\ud800 \\" \\n \\\\"}',
            b'{"h":"00","n":7,"prev":null,"t":-1,"last":true,"record":{"record":{}},"key":"k"}',
            b'{"x":"' + b"long " * 50_000 + b'"}',
        ]
        async with self.opened() as journal:
            await journal.append(given)
            await self._check_holds(journal, given)

    async def test_a_batch_may_be_large(self) -> None:
        """A batch may have two thousand records."""
        many = records(*map(str, range(2000)))
        async with self.opened() as journal:
            await journal.append(many)
            await self._check_holds(journal, many)

    async def test_an_empty_batch_changes_nothing(self) -> None:
        """An empty batch adds nothing, neither before the first record nor after it."""
        async with self.opened() as journal:
            await journal.append([])
            await self._check_holds(journal, [])
            await journal.append(records("a"))
            await journal.append([])
            await self._check_holds(journal, records("a"))

    async def test_lists_are_the_callers_own(self) -> None:
        """Changes to an appended list, or to a list that was read, don't change the journal."""
        given = records("a")
        async with self.opened() as journal:
            await journal.append(given)
            given.clear()
            (await journal.read()).clear()
            await self._check_holds(journal, records("a"))

    # ------------------------------------------------------------------------------------------ other objects

    async def test_it_outlives_its_object(self) -> None:
        """Another object for the same journal reads all records, and appends further ones."""
        if not self.lasting:
            return
        for index, batch in enumerate([records("a", "b"), records("c"), records("d", "e")]):
            async with self.opened() as journal:
                if index != 1:  # an object may also append without having read
                    await journal.read()
                await journal.append(batch)
        async with self.opened() as journal:
            await self._check_holds(journal, records("a", "b", "c", "d", "e"))

    async def test_a_writer_that_others_have_overtaken_is_refused(self) -> None:
        """Two objects have read the same records and one appends: an append of the other is refused."""
        if not self.lasting:
            return
        async with self.opened() as first, self.opened() as second:
            await first.append(records("a"))
            await self._check_holds(second, records("a"))
            await first.append(records("b"))
            await refused(second.append(records("x")), "another object appended since this one read")
            await refused(second.append(records("y")), "a journal that failed takes no more")
            await first.append(records("c"))
            await self._check_holds(first, records("a", "b", "c"))

    async def test_that_holds_when_the_other_has_closed(self) -> None:
        """The append of the other object is refused also if the first one has released its lock in between."""
        if not self.lasting:
            return
        async with self.opened() as second:
            await self._check_holds(second, [])
            async with self.opened() as first:
                await first.append(records("a"))
            await refused(second.append(records("x")), "another object appended since this one read")
        async with self.opened() as journal:
            await self._check_holds(journal, records("a"))

    # ------------------------------------------------------------------------------------------ concurrency

    async def test_batches_of_several_tasks_stay_whole(self) -> None:
        """Several tasks append at once: the records of each batch stay together, in any order of batches."""
        batches = [records(*(f"{number}.{part}" for part in range(3))) for number in range(8)]
        async with self.opened() as journal:
            async with anyio.create_task_group() as group:
                for batch in batches:
                    group.start_soon(journal.append, batch)
            found = await journal.read()
        whole = [found[at : at + 3] for at in range(0, len(found), 3)]
        assert sorted(whole) == sorted(batches), f"batches were mixed or lost: {found}"

    async def test_a_cancelled_append_is_whole_or_nothing(self) -> None:
        """An append that is cancelled, before or while it runs, adds its whole batch or nothing.

        If it returned, the batch is in the journal.
        """
        async with self.opened() as journal:
            await journal.append(records("a"))
            returned = await self._append_cancelled(journal, records("b", "c"), at_once=True)
            found = await self._check_one_of(journal, records("a"), records("b", "c"), returned)
            returned = await self._append_cancelled(journal, records("d", "e"), at_once=False)
            await self._check_one_of(journal, found, records("d", "e"), returned)
            await journal.append(records("f"))
            assert (await journal.read())[-1:] == records("f"), "it must go on after a cancelled append"

    def test_it_serves_one_event_loop_after_the_other(self) -> None:
        """The journal works on a second event loop after the first has ended."""
        journal = self.open_journal()
        for name in ("a", "b"):
            anyio.run(journal.append, records(name))
        found = anyio.run(journal.read)
        anyio.run(journal.aclose)
        assert found == records("a", "b"), f"got {found}"

    # ------------------------------------------------------------------------------------------ closing

    async def test_a_closed_journal_takes_nothing(self) -> None:
        """A closed journal refuses an append; closing it again does nothing."""
        journal = self.open_journal()
        await journal.append(records("a"))
        await journal.aclose()
        await journal.aclose()
        await refused(journal.append(records("b")), "the journal is closed")

    async def test_closing_what_was_never_used(self) -> None:
        """Closing an unused journal adds no record to it."""
        await self.open_journal().aclose()
        async with self.opened() as journal:
            await self._check_holds(journal, [])

    # ------------------------------------------------------------------------------------------ parts

    async def _check_holds(self, journal: Journal, expected: list[bytes]) -> None:
        found = await journal.read()
        assert found == expected, f"expected {len(expected)} records, got {len(found)} or others: {str(found)[:500]}"

    async def _check_one_of(
        self, journal: Journal, before: Sequence[bytes], batch: Sequence[bytes], returned: bool
    ) -> list[bytes]:
        found = await journal.read()
        without, with_it = list(before), [*before, *batch]
        allowed = [with_it] if returned else [without, with_it]
        assert found in allowed, f"a cancelled append left {found} after {without}; returned: {returned}"
        return found

    async def _append_cancelled(self, journal: Journal, batch: list[bytes], *, at_once: bool) -> bool:
        """Append *batch* in a scope that is cancelled before it (*at_once*) or while it runs.

        Return True if the append returned.
        """
        returned = False

        async def append() -> None:
            nonlocal returned
            await journal.append(batch)
            returned = True

        async with anyio.create_task_group() as group:
            if at_once:
                group.cancel_scope.cancel()
            group.start_soon(append)
            for _ in range(3):  # enough for the append to have begun on any backend
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        return returned
