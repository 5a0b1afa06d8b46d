"""The storage under a journal's file, as the few operations it needs. Tests replace it by one that crashes.

Does not know about lines or records.
"""

from __future__ import annotations

import os
import sys
from typing import BinaryIO, Protocol

from agentloop._common.lock_files import close_lock_file, open_lock_file
from agentloop._common.regular_files import open_regular

_CHUNK = 1 << 20
_MOST_ZEROS = 64
"""Chunks of nothing but zeros that are read on end: as much of a batch as a crash may have lost."""


def _read_text(file: BinaryIO) -> bytes:
    """Return the bytes of *file*, a part of them if it isn't text of lines, or is one with a hole of any size.

    The text of a journal begins with an object, or with the zeros of a block that a crash has lost.
    """
    parts, zeros = [file.read(_CHUNK)], 0
    if not parts[0].startswith((b"{", b"\0")):
        return parts[0]
    while zeros < _MOST_ZEROS and (part := file.read(_CHUNK)):
        parts.append(part)
        zeros = 0 if part[0] or part[-1] or part.strip(b"\0") else zeros + 1
    return b"".join(parts)


class Storage(Protocol):
    """One file, owned by one journal. Every method blocks; they are called one at a time.

    All but `close` raise OSError.
    """

    def read(self) -> bytes:
        """Return all bytes of the file, none if there is no file. Needs no `open`.

        Of a file that isn't text of lines a part is enough.
        """
        ...

    def open(self, *, durable: bool) -> None:
        """Open the file for appending, create it if missing, and lock it until `close` or the process's death.

        *durable*: the file's own entry in its folder must survive a power failure.

        Raises:
            BlockingIOError: if another object or process has it open.
        """
        ...

    def write(self, data: bytes) -> None:
        """Append *data*. After the return it outlives the process."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to its first *size* bytes."""
        ...

    def sync(self) -> None:
        """Wait until the whole file would outlive a power failure."""
        ...

    def close(self) -> None:
        """Close and unlock the file. Does nothing if it isn't open."""
        ...


class FileStorage:
    """A file of the operating system, under an advisory lock while it is open."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None

    def read(self) -> bytes:
        if self._descriptor is not None and not os.fstat(self._descriptor).st_size:
            return b""  # most journals are new when they are opened
        try:
            with open_regular(self._path) as file:
                return _read_text(file)
        except FileNotFoundError:
            return b""

    def open(self, *, durable: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        descriptor = open_lock_file(self._path, flags, 0o600)  # a journal holds private data
        try:
            _lock(descriptor)
            if durable and os.fstat(descriptor).st_size == 0:
                sync_folder(os.path.dirname(self._path) or ".")
        except BaseException:
            close_lock_file(descriptor)
            raise
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        descriptor = self._require_open()
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._require_open(), size)

    def sync(self) -> None:
        _sync(self._require_open())

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            close_lock_file(descriptor)

    def _require_open(self) -> int:
        if self._descriptor is None:
            raise ValueError("I/O operation on a closed file")
        return self._descriptor


if sys.platform == "win32":  # pragma: no cover - another platform than that of the tests
    import msvcrt

    # Far behind any end of file, since this lock also prevents others from reading the bytes it covers.
    _LOCKED_AT = 1 << 62

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED_AT, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(*error.args) from None

    def _sync(descriptor: int) -> None:
        os.fsync(descriptor)

    def sync_folder(path: str) -> None:
        """Do nothing: Windows can't open a folder, and its file system journals the entries."""

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        # Not `lockf`: that lock belongs to the process, so a second journal in it would get it too, and closing any
        # other descriptor of the file, such as a reader's, would release it.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    if sys.platform == "darwin":  # pragma: no cover - another platform than that of the tests

        def _sync(descriptor: int) -> None:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # fsync leaves the data in the drive's own cache there

    else:

        def _sync(descriptor: int) -> None:
            os.fdatasync(descriptor)  # the size is synced with the data; times needn't be

    def sync_folder(path: str) -> None:
        """Wait until the entries of the folder *path* would outlive a power failure."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
