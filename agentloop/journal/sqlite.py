"""Journals in a SQLite file, one row for each record, by the standard library's module in worker threads.

A batch is one transaction, so no batch is ever torn; each commit is synced. The rows hold the same lines as a file
does: their digests reveal a changed one, and a key seals them. Does not know what a record holds.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import anyio

from agentloop._common.checks import check_id, check_seconds
from agentloop._common.sqlite_file import ERRORS, KeptConnection, transaction
from agentloop.abc import Codec
from agentloop.exceptions import JournalError
from agentloop.journal._checks import check_codec, check_path, check_records
from agentloop.journal._envelope import End, Seal
from agentloop.journal._rows import JournalRows
from agentloop.journal._thread import OneAtATime

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS agentloop_journal_lines ("
    "run_id TEXT NOT NULL, n INTEGER NOT NULL, line BLOB NOT NULL, PRIMARY KEY (run_id, n))",
)
SEALED_AS = "sqlite"
"""The kind of store for which the lines are sealed."""
SELECT_LINES = "SELECT n, line FROM agentloop_journal_lines WHERE run_id = ? ORDER BY n"
SELECT_RUNS = "SELECT DISTINCT run_id FROM agentloop_journal_lines ORDER BY run_id"
_INSERT = "INSERT INTO agentloop_journal_lines (run_id, n, line) VALUES (?, ?, ?)"


class SQLiteJournal:
    """The journal of one run in a SQLite file, which may hold many; `":memory:"` exists as long as this object.

    Close it by `aclose` or use it as `async with`; afterwards it can't be used. Each append is one transaction, synced
    when it returns: neither the death of the process nor a power failure loses one. Safe to share between tasks, event
    loops and threads. Works on every file system on which SQLite's write-ahead log works.

    No lock is held between appends. If two writers of one run continue from the same record, the first to append
    continues and the other is refused: a process that resumes the run takes it over, and the earlier process can't
    append any more.

    Args:
        path: The database; created if missing.
        run_id: The id of the journal's run.
        key: Seals every line by HMAC-SHA256, for this run: without the key no line can be changed unnoticed, nor put
            into the place of another run's. No seal can reveal that whole batches were removed at the end.
        codec: The codec by which the run seals secrets; the journal itself doesn't use it.
        busy_timeout: Seconds that an append waits for those of other connections.
        older_seals: True to take also a journal that an older version has sealed. Such a seal doesn't say for which run
            it is, so that two of these journals can be exchanged in their store unnoticed.

    Example:
        import tempfile
        from pathlib import Path

        import anyio
        from agentloop import Agent, Runner
        from agentloop.journal import SQLiteJournal
        from agentloop.testing import ScriptedModel, say

        async def main(path):
            agent = Agent("a", model=ScriptedModel([say("hi")]))
            async with SQLiteJournal(path, "run-1") as journal:  # one database may hold many runs
                print((await Runner.run(agent, "go", journal=journal)).final_output)  # hi

        with tempfile.TemporaryDirectory() as folder:
            anyio.run(main, Path(folder, "runs.sqlite"))
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        run_id: str,
        *,
        key: bytes | None = None,
        codec: Codec | None = None,
        busy_timeout: float = 5.0,
        older_seals: bool = False,
    ) -> None:
        self._path = check_path(path)
        self.run_id: str = check_id("run_id", run_id)
        self.codec: Codec | None = check_codec(codec)
        seconds = check_seconds("busy_timeout", busy_timeout, zero=True) or 0.0
        seal = Seal(key, (SEALED_AS, run_id), older_seals=older_seals)
        self._rows = _SQLiteRows(repr(self), self._path, run_id, seal, seconds)
        self._thread = OneAtATime()

    def __repr__(self) -> str:
        return f"SQLiteJournal({self._path!r}, {self.run_id!r})"

    async def append(self, records: Sequence[bytes]) -> None:
        """Append *records* as one transaction.

        Cancellation: a checkpoint. Before the thread has begun, nothing is appended; after that the transaction
            completes. A native cancellation on asyncio raises at once, and the transaction continues.

        Raises:
            UserTypeError, UserValueError: naming the position of the first value that isn't a record; nothing is
                appended.
            JournalError: if the database refuses or stays locked, another writer has appended, or the rows are damaged.
                The journal then takes no more records: read the database by a new one.
        """
        added = check_records(records)
        await self._thread.run(lambda: self._rows.append(added))

    async def read(self) -> list[bytes]:
        """Return every record appended so far.

        Raises:
            JournalError: naming the line (row *n* is line *n* + 1) that was damaged, changed or removed; or the journal
                was sealed with another key, or the database can't be read.
        """
        return await self._thread.run(self._rows.read)

    async def aclose(self) -> None:
        """Close the connection. Does nothing the second time."""
        await self._thread.run(self._rows.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):  # bounded by busy_timeout: it waits only for a call in progress
            await self.aclose()


class _SQLiteRows(JournalRows):
    """The rows of *run_id* in the file *path*."""

    def __init__(self, name: str, path: str, run_id: str, seal: Seal, busy_timeout: float) -> None:
        super().__init__(name, seal)
        self._run_id = run_id
        self._connection = KeptConnection(path, _SCHEMA, busy_timeout=busy_timeout, synced=True)

    def select(self) -> Iterable[tuple[int, object]]:
        return self._connection.get().execute(SELECT_LINES, (self._run_id,)).fetchall()

    def insert(self, end: End, lines: list[bytes], records: list[bytes]) -> None:
        connection = self._connection.get()
        try:
            with transaction(connection):
                connection.executemany(_INSERT, [(self._run_id, n, line) for n, line in enumerate(lines, end.count)])
        except sqlite3.IntegrityError as error:
            raise self.other_writer() from error

    @contextmanager
    def as_journal_error(self) -> Iterator[None]:
        try:
            yield
        except ERRORS as error:
            raise JournalError(f"{self.name}: {error}") from error

    def close(self) -> None:
        super().close()
        self._connection.close()
