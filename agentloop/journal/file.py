"""A journal in a file of lines, written by worker threads and held by a lock.

Two things are known at any time: where the chain stood when this object last read or wrote it, and how much of it is
past losing. The first sees a second writer that came and went, the second stands in every line (see the envelope). All
work happens in the thread, under one lock, so a cancelled caller never leaves the two and the file apart.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, Self, TypeAlias, get_args

import anyio

from agentloop.abc import Codec
from agentloop.exceptions import JournalError, UserValueError
from agentloop.journal._checks import check_codec, check_path, check_records
from agentloop.journal._envelope import End, Scan, Seal, scan, write_batch
from agentloop.journal._storage import FileStorage, Storage
from agentloop.journal._thread import OneAtATime

logger = logging.getLogger("agentloop")

Fsync: TypeAlias = Literal["always", "batch", "never"]

_SYNC_EVERY = 0.1  # seconds, under "batch"


class FileJournal:
    """A journal in a file of JSON lines; the file is made at the first append, its folder must exist.

    Close it by `aclose` or use it as `async with`; afterwards it can't be used. From the first append until it is
    closed or the process ends it holds a lock on the file, so that a second writer, in this process or another, is
    refused; `read` needs no lock. Safe to share between tasks, event loops and threads. The lock is advisory (`flock`),
    and as good as the file system's.

    Args:
        path: The file.
        fsync: What an append waits for. When the process dies, no policy loses an append that returned. When the power
            fails or the operating system crashes, "always" loses none either; "batch" loses what was appended since the
            last sync (an append syncs if 0.1 seconds have passed since that, and so does closing); "never" loses
            whatever the system held back, and the file may be refused as damaged.
        key: Seals every line by HMAC-SHA256, so that whoever hasn't got it can't change one unseen. Cutting off whole
            batches at the end can't be seen by any seal.
        codec: What the run seals secrets with; the journal itself doesn't use it.
        storage: What to keep the bytes on in the place of the file, for tests.

    A batch that a crash has torn is left out by `read`. The next append cuts it off before it writes, with a warning in
    the log; nothing of it had ever been reported as durable.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: Fsync = "always",
        key: bytes | None = None,
        codec: Codec | None = None,
        storage: Storage | None = None,
    ) -> None:
        if fsync not in get_args(Fsync):
            raise UserValueError(f"fsync: one of {', '.join(get_args(Fsync))} is needed, not {fsync!r}")
        self._path = check_path(path)
        self._fsync: Fsync = fsync
        self._seal = Seal(key)
        self.codec = check_codec(codec)
        self._storage = FileStorage(self._path) if storage is None else storage
        self._thread = OneAtATime()
        self._end: End | None = None  # as last read or written
        self._kept = 0
        self._synced_at = 0.0
        self._unsynced = False
        self._opened = False
        self._broken: str | None = None
        self._closed = False
        # For who forgets to close; the lock would be held until the process ends.
        weakref.finalize(self, self._storage.close)

    def __repr__(self) -> str:
        return f"FileJournal({self._path!r})"

    async def append(self, records: Sequence[bytes]) -> None:
        """Append *records* as one batch, durable as `fsync` says when this returns.

        Raises:
            UserTypeError, UserValueError: naming the position of what is no record; nothing is appended.
            JournalError: if the disk refuses, another writer is there or has been, or what stands there is damaged.
                The journal takes no more then: whether a sync that failed took place is open, and a second one would
                get a yes that means nothing. Read what is there by a new one.
        """
        added = check_records(records)
        await self._thread.run(lambda: self._append(added))

    async def read(self) -> list[bytes]:
        """Return every record appended so far; none where there is no file.

        Raises:
            JournalError: naming the line that was damaged or changed; or the key isn't the one it was sealed with, or
                the file can't be read.
        """
        return await self._thread.run(self._read)

    async def aclose(self) -> None:
        """Sync what isn't, unless the policy is "never", and let go of the file. Does nothing the second time.

        Raises:
            JournalError: if the sync fails; the file is closed nevertheless.
        """
        await self._thread.run(self._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):  # a write in progress and one sync are all it waits for
            await self.aclose()

    # ------------------------------------------------------------------------------------------ in the thread

    def _append(self, records: list[bytes]) -> None:
        self._check_usable()
        if self._broken is not None:
            raise JournalError(f"{self!r} takes no more records since it failed: {self._broken}")
        if not records:
            return
        with self._or_broken():
            start = self._open()
            lines, end = write_batch(records, start, kept=self._kept, now=time.time(), seal=self._seal)
            self._storage.write(b"".join(lines))
            self._unsynced = True
            if self._is_sync_due():
                self._sync()
        self._end = end
        if not self._unsynced or self._fsync == "never":
            self._kept = end.count

    def _is_sync_due(self) -> bool:
        if self._fsync == "batch":
            return time.monotonic() - self._synced_at >= _SYNC_EVERY
        return self._fsync == "always"

    def _sync(self) -> None:
        self._storage.sync()
        self._unsynced = False
        self._synced_at = time.monotonic()

    def _open(self) -> End:
        """Return where to go on writing; open the file first where it isn't."""
        if self._opened and self._end is not None:
            return self._end
        try:
            self._storage.open(durable=self._fsync != "never")
            found = self._recovered()
        except BaseException:
            self._storage.close()
            raise
        self._end, self._kept, self._opened = found.end, found.end.count, True
        return found.end

    def _recovered(self) -> Scan:
        found = self._scan()
        if self._end is not None and found.end != self._end:
            raise JournalError(
                f"{self!r}: something else has written to it: {self._end.count} records were read, "
                f"it holds {found.end.count}, or others"
            )
        if found.torn:
            logger.warning("%r: %d bytes of a batch that a crash cut off are dropped", self, found.torn)
            self._storage.truncate(found.size)
        # What a process wrote and died over may be in the system's memory alone. The cut must be on the disk before
        # anything follows it, or a crash could leave the new end in the middle of the old one.
        if found.torn or (self._fsync != "never" and found.size):
            self._sync()
        return found

    def _scan(self) -> Scan:
        return scan(self._storage.read(), self._seal, repr(self))

    def _read(self) -> list[bytes]:
        self._check_usable()
        with self._as_journal_error():
            found = self._scan()
        if not self._opened:
            self._end = found.end
        elif self._broken is None and found.end != self._end:
            raise JournalError(f"{self!r}: it isn't what was written: something else has changed it")
        return found.records

    def _close(self) -> None:
        self._closed = True
        try:
            if self._unsynced and self._fsync != "never" and self._broken is None:
                with self._or_broken():
                    self._sync()
        finally:
            self._storage.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise JournalError(f"{self!r} is closed")

    @contextmanager
    def _or_broken(self) -> Iterator[None]:
        try:
            with self._as_journal_error():
                yield
        except BaseException as error:
            self._broken = str(error) or type(error).__name__
            raise

    @contextmanager
    def _as_journal_error(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError as error:
            raise JournalError(f"{self!r} is being written by another journal object or process") from error
        except OSError as error:
            raise JournalError(f"{self!r}: {error.strerror or error}") from error  # the path is named already
