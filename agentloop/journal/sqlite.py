"""Journals in a SQLite file, one row for each record, by the standard library's module in worker threads.

A batch is one transaction, so no batch is ever torn; each commit is synced. The rows hold the same lines as a file
does: their digests reveal a changed one, and a key seals them. Does not know what a record holds.
"""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import anyio

from agentloop._common.checks import check_id, check_seconds
from agentloop._storage.sqlite_file import connect, transaction
from agentloop.abc import Codec
from agentloop.exceptions import JournalError
from agentloop.journal._checks import check_codec, check_path, check_records
from agentloop.journal._envelope import End, Scan, Seal, scan, write_batch
from agentloop.journal._thread import OneAtATime

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS agentloop_journal_lines ("
    "run_id TEXT NOT NULL, n INTEGER NOT NULL, line BLOB NOT NULL, PRIMARY KEY (run_id, n))",
)
_READ = "SELECT n, line FROM agentloop_journal_lines WHERE run_id = ? ORDER BY n"
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
        key: Seals every line by HMAC-SHA256, so that a line can't be changed unnoticed without the key. No seal can
            reveal that whole batches were removed at the end.
        codec: The codec by which the run seals secrets; the journal itself doesn't use it.
        busy_timeout: Seconds that an append waits for those of other connections.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        run_id: str,
        *,
        key: bytes | None = None,
        codec: Codec | None = None,
        busy_timeout: float = 5.0,
    ) -> None:
        self._path = check_path(path)
        self.run_id: str = check_id("run_id", run_id)
        self._seal = Seal(key)
        self.codec: Codec | None = check_codec(codec)
        self._busy_timeout = check_seconds("busy_timeout", busy_timeout, zero=True) or 0.0
        self._thread = OneAtATime()
        self._connection: sqlite3.Connection | None = None
        self._finalizer: weakref.finalize[..., object] | None = None
        self._end: End | None = None  # when this object last read or wrote; None before that
        self._writing = False
        self._broken: str | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"SQLiteJournal({self._path!r}, {self.run_id!r})"

    async def append(self, records: Sequence[bytes]) -> None:
        """Append *records* as one transaction.

        Cancellation: a checkpoint. Before the thread has begun, nothing is appended; after that the transaction
            completes. A native cancellation on asyncio raises at once, and the transaction continues.

        Raises:
            UserTypeError, UserValueError: naming the position of the first value that is no record; nothing is
                appended.
            JournalError: if the database refuses or stays locked, another writer has appended, or the rows are damaged.
                The journal then takes no more records: read the database by a new one.
        """
        added = check_records(records)
        await self._thread.run(lambda: self._append(added))

    async def read(self) -> list[bytes]:
        """Return every record appended so far.

        Raises:
            JournalError: naming the line (row *n* is line *n* + 1) that was damaged, changed or removed; or the journal
                was sealed with another key, or the database can't be read.
        """
        return await self._thread.run(self._read)

    async def aclose(self) -> None:
        """Close the connection. Does nothing the second time."""
        await self._thread.run(self._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):  # bounded by busy_timeout: it waits only for a call in progress
            await self.aclose()

    # ------------------------------------------------------------------------------------------ in the thread

    def _append(self, records: list[bytes]) -> None:
        self._check_usable()
        if self._broken is not None:
            raise JournalError(f"{self!r} takes no more records since it failed: {self._broken}")
        if not records:
            return
        try:
            with self._as_journal_error():
                connection = self._connect()
                with transaction(connection):
                    end = self._insert(connection, records)
        except BaseException as error:
            self._broken = str(error) or type(error).__name__
            raise
        self._end, self._writing = end, True

    def _insert(self, connection: sqlite3.Connection, records: list[bytes]) -> End:
        start = self._end
        if start is None or not self._writing:
            found = self._scan(connection)
            if start is not None and found.end != start:
                raise self._other_writer()
            start = found.end
        lines, end = write_batch(records, start, kept=start.count, now=time.time(), seal=self._seal)
        rows = [(self.run_id, start.count + index, line[:-1]) for index, line in enumerate(lines)]
        try:
            connection.executemany(_INSERT, rows)
        except sqlite3.IntegrityError as error:
            raise self._other_writer() from error
        return end

    def _scan(self, connection: sqlite3.Connection) -> Scan:
        lines = []
        for index, (n, line) in enumerate(connection.execute(_READ, (self.run_id,)).fetchall()):
            if n != index or not isinstance(line, bytes) or b"\n" in line:
                raise JournalError(f"{self!r}: line {index + 1} is damaged or missing")
            lines.append(line + b"\n")
        found = scan(b"".join(lines), self._seal, repr(self))
        if found.torn:  # a transaction is never torn, so the rows were changed
            raise JournalError(f"{self!r}: the batch that begins at line {found.end.count + 1} isn't whole")
        return found

    def _read(self) -> list[bytes]:
        self._check_usable()
        with self._as_journal_error():
            found = self._scan(self._connect())
        if self._writing and self._broken is None and found.end != self._end:
            raise self._other_writer()
        if not self._writing:
            self._end = found.end
        return found.records

    def _close(self) -> None:
        self._closed = True
        if self._finalizer is not None:
            self._finalizer()
        self._connection = None

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connection = connect(self._path, _SCHEMA, busy_timeout=self._busy_timeout, synced=True)
            # If the application forgets to close it, Python warns when it collects an open connection.
            self._finalizer = weakref.finalize(self, connection.close)
        return self._connection

    def _check_usable(self) -> None:
        if self._closed:
            raise JournalError(f"{self!r} is closed")

    def _other_writer(self) -> JournalError:
        return JournalError(f"{self!r}: something else has written to it since it was last read or written here")

    @contextmanager
    def _as_journal_error(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise JournalError(f"{self!r}: {error}") from error
