"""The rows of a journal in a database, one for each line of a file: reading, appending, and which writer continues.

A database appends a batch whole or not at all, so no end is ever torn, and the key of the rows (run, number) lets only
the first of two writers continue from the same record. A subclass says how rows are selected and inserted.

Facts: `_end` is the chain's end when this object last read or wrote it, None before that; `_writing` is True from the
first append. `_broken` says why an append failed; it is final, since it may be unknown whether the rows are there.
Invariant: after an append, another end found by a read proves a second writer. Every method blocks, and they are called
one at a time.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager

from agentloop.exceptions import JournalError
from agentloop.journal._envelope import End, Scan, Seal, scan, write_batch


class OtherWriter(JournalError):
    """Another writer has appended since the journal was last read or written here: this one appended nothing."""


class JournalRows(ABC):
    """The rows of one run.

    Args:
        name: The journal's, for errors.
        seal: The seal of every line.
        harmless: Errors of an `insert` that tried nothing, so that the journal is as good as before.
    """

    def __init__(self, name: str, seal: Seal, *, harmless: tuple[type[Exception], ...] = ()) -> None:
        self.name = name
        self._seal = seal
        self._harmless = harmless
        self._end: End | None = None
        self._writing = False
        self._broken: str | None = None
        self._closed = False

    @abstractmethod
    def select(self) -> Iterable[tuple[int, object]]:
        """Return the run's rows in order: number, line without its line feed."""

    @abstractmethod
    def insert(self, end: End, lines: list[bytes], records: list[bytes]) -> None:
        """Insert *lines*, those of *records*, as rows behind the chain's *end*, all or none.

        Raises:
            JournalError: `other_writer`, if a row of such a number is there.
        """

    @abstractmethod
    def as_journal_error(self) -> AbstractContextManager[None]:
        """Return a context that raises the database's own errors as `JournalError`."""

    def append(self, records: list[bytes]) -> None:
        """Append *records* as one batch.

        Raises:
            JournalError: the rows couldn't be read or inserted, or an append had failed before, or `close` was called.
        """
        self._check_open()
        if self._broken is not None:
            raise JournalError(f"{self.name} takes no more records since it failed: {self._broken}")
        if not records:
            return
        try:
            with self.as_journal_error():
                start = self._end if self._end is not None else self._scan().end
                lines, end = write_batch(records, start, kept=start.count, now=time.time(), seal=self._seal)
                self.insert(start, [line[:-1] for line in lines], records)
        except self._harmless:
            raise
        except BaseException as error:
            self._broken = str(error) or type(error).__name__
            raise
        self._end, self._writing = end, True

    def read(self) -> list[bytes]:
        """Return every record.

        Raises:
            JournalError: the rows can't be read, or are damaged; names the line.
        """
        self._check_open()
        with self.as_journal_error():
            found = self._scan()
        if not self._writing:
            self._end = found.end
        elif self._broken is None and found.end != self._end:
            raise self.other_writer()
        return found.records

    def forget(self) -> None:
        """Forget what was read and written here: the next append continues from what the next read finds."""
        self._end, self._writing, self._broken = None, False, None

    def take_as_read(self) -> None:
        """Take what was appended here as if it had been read: others may have written when it is read again."""
        self._writing = False

    def close(self) -> None:
        """Refuse every later call."""
        self._closed = True

    def other_writer(self) -> JournalError:
        """Return the error for rows that came from elsewhere."""
        return OtherWriter(f"{self.name}: something else has written to it since it was last read or written here")

    def _scan(self) -> Scan:
        found = scan_rows(self.select(), self._seal, self.name)
        self._seal = found.seal
        return found

    def _check_open(self) -> None:
        if self._closed:
            raise JournalError(f"{self.name} is closed")


def scan_rows(rows: Iterable[tuple[int, object]], seal: Seal, name: str) -> Scan:
    """Return the scan of a run's rows in order: number, line without its line feed.

    Raises:
        JournalError: naming *name* and the line: the rows are damaged, or sealed with another key.
    """
    lines = []
    for index, (n, line) in enumerate(rows):
        if n != index or not isinstance(line, bytes) or b"\n" in line:
            raise JournalError(f"{name}: line {index + 1} is damaged or missing")
        lines.append(line + b"\n")
    found = scan(b"".join(lines), seal, name)
    if found.torn:  # a batch is inserted whole, so the rows were changed
        raise JournalError(f"{name}: the batch that begins at line {found.end.count + 1} isn't whole")
    return found
