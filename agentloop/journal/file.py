"""A journal in a file of lines, written by worker threads under a lock on the file.

Three layers: `_envelope` turns records into lines and back, `_storage` is the file, and this module decides when to
open, recover, write and sync. It doesn't know what a record holds.

States: unopened (reads need no lock), opened by the first append (the lock is held, a torn end is cut off), broken by
the first failure of an append or sync, closed. Broken is final: after a failed sync it is unknown which bytes are on
the disk, and the success of a second sync would prove nothing.

Facts, all about the file: `_end` is the chain's end when this object last read or wrote it; another end found later
proves a second writer. `_kept` is the number of records that no crash can lose; every line stores it (see the
envelope). `_unsynced` is True while written bytes are not synced, `_synced_at` the time of the last sync.

An append, in order: check, open and recover if unopened, write one batch in a single call, sync if the policy says so,
then set `_end` and `_kept`. Invariants: `_kept` never exceeds the count of `_end`; `_end` changes only after a read or
a write that succeeded. All of it happens in the thread, under one lock, and a cancelled caller can't interrupt it, so
these attributes and the file never disagree.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self, TypeAlias, get_args

import anyio

from agentloop.abc import Codec
from agentloop.exceptions import JournalError, UserValueError
from agentloop.journal._checks import check_codec, check_path, check_records
from agentloop.journal._envelope import End, Scan, Seal, scan, write_batch
from agentloop.journal._storage import FileStorage, Storage
from agentloop.journal._thread import OneAtATime

logger: logging.Logger = logging.getLogger("agentloop")

Fsync: TypeAlias = Literal["always", "batch", "never"]

_SYNC_EVERY = 0.1  # seconds, under "batch"


def seal_of_file(path: str, run_id: str | None, key: bytes | None, *, older_seals: bool) -> Seal:
    """Return the seal of the lines in the file at *path*: see `FileJournal`."""
    name = os.path.splitext(os.path.basename(path))[0]
    return Seal(key, ("file", name if run_id is None else run_id), older_seals=older_seals)


class FileJournal:
    """A journal in a file of JSON lines. The first append creates the file; its folder must exist.

    Close it by `aclose` or use it as `async with`; afterwards it can't be used. From the first append until it is
    closed or the process ends it holds a lock on the file, so that a second writer, in this process or another, is
    refused; `read` needs no lock. Safe to share between tasks, event loops and threads. The lock is advisory (`flock`)
    and only as reliable as the file system's.

    Args:
        path: The file.
        fsync: The durability that an append waits for. When the process dies, no policy loses an append that returned.
            When the power fails or the operating system crashes, "always" loses none either; "batch" loses the appends
            since the last sync (an append syncs if 0.1 seconds have passed since that, and so does closing); "never"
            loses the bytes that the system had not written, and the file may be refused as damaged.
        key: Seals every line by HMAC-SHA256, for the run of this file: without the key no line can be changed
            unnoticed, and no file can be put into the place of another. No seal can reveal that whole batches were cut
            off at the end.
        codec: The codec by which the run seals secrets; the journal itself doesn't use it.
        storage: Replaces the file, for tests.
        run_id: The id of the run for which the key seals; the name of the file without its ending, if not given. So a
            sealed file that was renamed needs its old name here.
        older_seals: True to take also a journal that an older version has sealed. Such a seal doesn't say for which run
            it is, so that two of these journals can be exchanged in their store unnoticed.

    `read` leaves out a batch that a crash has torn. The next append cuts it off before it writes, with a warning in the
    log; no part of it had ever been reported as durable.

    Example:
        import tempfile
        from pathlib import Path

        import anyio
        from agentloop import Agent, Runner
        from agentloop.journal import FileJournal
        from agentloop.testing import ScriptedModel, say

        async def main(folder):
            async with FileJournal(Path(folder, "run.journal")) as journal:
                result = await Runner.run(Agent("a", model=ScriptedModel([say("hi")])), "hello", journal=journal)
            print(result.final_output, Path(folder, "run.journal").exists())  # hi True

        with tempfile.TemporaryDirectory() as folder:
            anyio.run(main, folder)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: Fsync = "always",
        key: bytes | None = None,
        codec: Codec | None = None,
        storage: Storage | None = None,
        run_id: str | None = None,
        older_seals: bool = False,
    ) -> None:
        if fsync not in get_args(Fsync):
            raise UserValueError(f"fsync: expected one of {', '.join(get_args(Fsync))}, got {fsync!r}")
        self._path = check_path(path)
        self._fsync: Fsync = fsync
        self._seal = seal_of_file(self._path, run_id, key, older_seals=older_seals)
        self.codec: Codec | None = check_codec(codec)
        self._storage = FileStorage(self._path) if storage is None else storage
        self._errors = _Errors(repr(self))
        self._thread = OneAtATime()
        self._end: End | None = None  # when this object last read or wrote; None before that
        self._kept = 0
        self._synced_at = 0.0
        self._unsynced = False
        self._opened = False
        self._broken: str | None = None
        self._closed = False
        # If the application forgets to close it, the lock would be held until the process ends.
        weakref.finalize(self, self._storage.close)

    def __repr__(self) -> str:
        return f"FileJournal({self._path!r})"

    async def append(self, records: Sequence[bytes]) -> None:
        """Append *records* as one batch. When this returns they are as durable as `fsync` says.

        Cancellation: a checkpoint. Before the thread has begun, nothing is appended; after that the write completes. A
            native cancellation on asyncio raises at once, and the write continues.

        Raises:
            UserTypeError, UserValueError: naming the position of the first value that isn't a record; nothing is
                appended.
            JournalError: if the disk refuses, another writer is active or was, or the file is damaged. The journal then
                takes no more records: a failed sync may or may not have written, and the success of a second one would
                prove nothing. Read the file by a new journal.
        """
        added = check_records(records)
        await self._thread.run(lambda: self._append(added))

    async def read(self) -> list[bytes]:
        """Return every record appended so far; none if there is no file.

        Raises:
            JournalError: naming the line that was damaged or changed; or the file was sealed with another key, or it
                can't be read.
        """
        return await self._thread.run(self._read)

    async def try_lock(self) -> bool:
        """Take the lock that the first append takes; False if another journal object or process has it.

        Call it before `read`, so that nothing is written between the two.

        Raises:
            JournalError: as for `append`.
        """
        return await self._thread.run(self._try_lock)

    async def aclose(self) -> None:
        """Sync the rest, unless the policy is "never", and close the file. Does nothing the second time.

        Raises:
            JournalError: if the sync fails; the file is closed nevertheless.
        """
        await self._thread.run(self._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):  # bounded: it waits for a write in progress and one sync
            await self.aclose()

    # ------------------------------------------------------------------------------------------ in the thread

    def _append(self, records: list[bytes]) -> None:
        self._check_usable()
        if self._broken is not None:
            raise JournalError(f"{self!r} takes no more records since it failed: {self._broken}")
        if not records:
            return
        try:
            with self._errors:
                start = self._open()
                lines, end = write_batch(records, start, kept=self._kept, now=time.time(), seal=self._seal)
                self._storage.write(b"".join(lines))
                self._unsynced = True
                if self._is_sync_due():
                    self._sync()
        except BaseException as error:
            self._break(error)
            raise
        self._end = end
        if not self._unsynced or self._fsync == "never":
            self._kept = end.count

    def _try_lock(self) -> bool:
        self._check_usable()
        with self._errors:
            try:
                self._open()
            except BlockingIOError:
                return False
        return True

    def _is_sync_due(self) -> bool:
        if self._fsync == "batch":
            return time.monotonic() - self._synced_at >= _SYNC_EVERY
        return self._fsync == "always"

    def _sync(self) -> None:
        self._storage.sync()
        self._unsynced = False
        self._synced_at = time.monotonic()

    def _open(self) -> End:
        """Return the end to append to. Open the file and recover it first, if that has not been done."""
        if self._opened and self._end is not None:
            return self._end
        try:
            self._storage.open(durable=self._fsync != "never")
            found = self._recover()
        except BaseException:
            self._storage.close()
            raise
        self._end, self._kept, self._opened = found.end, found.end.count, True
        return found.end

    def _recover(self) -> Scan:
        """Cut off a torn end, sync the rest, and return the scan. The lock is held."""
        found = self._scan()
        if self._end is not None and found.end != self._end:
            raise JournalError(
                f"{self!r}: something else has written to it: {self._end.count} records were read, "
                f"it holds {found.end.count}, or others"
            )
        if found.torn:
            logger.warning("%r: %d bytes of a batch that a crash cut off are dropped", self, found.torn)
            self._storage.truncate(found.size)
        # The bytes of a process that died may be in the system's memory only. The cut must be on the disk before new
        # lines follow it, or a crash could leave the new end in the middle of the old one.
        if found.torn or (self._fsync != "never" and found.size):
            self._sync()
        return found

    def _scan(self) -> Scan:
        found = scan(self._storage.read(), self._seal, repr(self))
        self._seal = found.seal
        return found

    def _read(self) -> list[bytes]:
        self._check_usable()
        with self._errors:
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
                with self._errors:
                    self._sync()
        except BaseException as error:
            self._break(error)
            raise
        finally:
            self._storage.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise JournalError(f"{self!r} is closed")

    def _break(self, error: BaseException) -> None:
        self._broken = str(error) or type(error).__name__


class _Errors:
    """The block around what is done with the file of the journal *name*. Not a generator, which takes longer."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise an error of the system as a `JournalError`."""
        if isinstance(error, BlockingIOError):
            raise JournalError(f"{self._name} is being written by another journal object or process") from error
        if isinstance(error, FileNotFoundError):
            raise JournalError(f"{self._name}: {error.strerror}; the folder of the file must exist") from error
        if isinstance(error, OSError):
            raise JournalError(f"{self._name}: {error.strerror or error}") from error  # the path is named already
