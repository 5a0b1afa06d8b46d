"""The disk under a journal's file, as the few operations it needs: tests put one there that crashes."""

from __future__ import annotations

import os
import sys
from typing import Protocol


class Storage(Protocol):
    """One file. Every method blocks; they are called one at a time. All but `close` raise OSError."""

    def read(self) -> bytes:
        """Return all that is there, nothing where there is no file. Needs no `open`."""
        ...

    def open(self, *, durable: bool) -> None:
        """Open the file to append to it, and make it where there is none; alone, until `close` or the process's death.

        *durable*: see to it that the file's own entry in its folder survives a power failure.

        Raises:
            BlockingIOError: if somebody else has it open.
        """
        ...

    def write(self, data: bytes) -> None:
        """Append *data*: it outlives the process from here on."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to its first *size* bytes."""
        ...

    def sync(self) -> None:
        """Wait until all of the file outlives a power failure."""
        ...

    def close(self) -> None:
        """Let go of the file. Does nothing where it isn't open."""
        ...


class FileStorage:
    """A file of the operating system, held by an advisory lock while it is open."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None

    def read(self) -> bytes:
        try:
            with open(self._path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""

    def open(self, *, durable: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        descriptor = os.open(self._path, flags, 0o666)
        try:
            _lock(descriptor)
            if durable and os.fstat(descriptor).st_size == 0:
                _sync_folder(os.path.dirname(self._path) or ".")
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        descriptor = self._opened()
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._opened(), size)

    def sync(self) -> None:
        _sync(self._opened())

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _opened(self) -> int:
        if self._descriptor is None:
            raise ValueError("I/O operation on a closed file")
        return self._descriptor


if sys.platform == "win32":  # pragma: no cover - other platforms' ways, not those of the tests
    import msvcrt

    # Far behind any end: this lock keeps others from reading what it covers.
    _LOCKED_AT = 1 << 62

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED_AT, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(*error.args) from None

    def _sync(descriptor: int) -> None:
        os.fsync(descriptor)

    def _sync_folder(path: str) -> None:
        """Do nothing: a folder can't be opened there, and its entries are journaled by the file system."""

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        # Not `lockf`: that lock is the process's, so a second journal in it would get it too, and closing any other
        # descriptor of the file, such as a reader's, would give it up.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    if sys.platform == "darwin":  # pragma: no cover - another platform's way

        def _sync(descriptor: int) -> None:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # fsync leaves the data in the drive's own cache there

    else:

        def _sync(descriptor: int) -> None:
            os.fdatasync(descriptor)  # the size is synced with the data; times needn't be

    def _sync_folder(path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
