"""A journal in memory: for tests, and to pause and resume within one process."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from anyio.lowlevel import checkpoint

from agentloop.abc import Codec, Journal
from agentloop.exceptions import JournalError
from agentloop.journal._checks import check_codec, check_records


class MemoryJournal(Journal):  # by inheritance: `isinstance` with a protocol asks for each method
    """A journal that exists as long as its object. For one event loop at a time; not thread-safe.

    Nothing is durable here: the records are lost with the process.

    Example:
        import anyio
        from agentloop import Agent, Runner
        from agentloop.journal import MemoryJournal
        from agentloop.testing import ScriptedModel, say

        async def main():
            journal = MemoryJournal()
            await Runner.run(Agent("a", model=ScriptedModel([say("hi")])), "hello", journal=journal)
            print(len(await journal.read()) > 0)  # True

        anyio.run(main)
    """

    def __init__(self, *, codec: Codec | None = None) -> None:
        self.codec: Codec | None = check_codec(codec)
        self._records: list[bytes] = []
        self._closed = False

    def __repr__(self) -> str:
        return "MemoryJournal()"

    async def append(self, records: Sequence[bytes]) -> None:
        """Append *records*. A checkpoint; a cancelled call has appended nothing.

        Raises:
            UserTypeError, UserValueError: naming the position of the first value that isn't a record; nothing is
                appended.
            JournalError: if the journal is closed.
        """
        added = check_records(records)
        await checkpoint()
        self._check_open()
        self._records += added

    async def read(self) -> list[bytes]:
        """Return every record appended so far.

        Raises:
            JournalError: if the journal is closed.
        """
        await checkpoint()
        self._check_open()
        return self._records[:]

    async def aclose(self) -> None:
        """Release the records. Does nothing the second time."""
        self._closed = True
        self._records.clear()
        await checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def _check_open(self) -> None:
        if self._closed:
            raise JournalError(f"{self!r} is closed")
