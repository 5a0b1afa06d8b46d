"""Open files whose locks belong to this process, and to none that is forked from it.

The lock that `flock` takes belongs to the open file, which a forked child shares (`multiprocessing` forks on Linux up
to Python 3.13). Without this module a child that outlives its parent would hold the locks of runs that it knows nothing
of. So right after the fork the child's copies are replaced by an empty file that can't be written: the numbers stay
taken, and what the child does with an inherited journal fails.

Decisions:

Locks are of a process, not of its children. `flock` locks an open file, which a forked child shares. The child of a
worker that died would hold the locks of the worker's runs for as long as it lives. So the files of locks are opened
and closed in one place (`_common/lock_files.py`), and right after a fork the child's copies are replaced by a file
that can't be written. Rejected: closing them in the child. Their numbers would come to belong to other files, and the
child's copy of a journal would write into these.
"""

from __future__ import annotations

import contextlib
import os
import threading

_open: set[int] = set()
_changing = threading.Lock()
"""Held while a file is opened or closed, and while a process forks: a child knows of each file that it got."""


def open_lock_file(path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
    """Return a descriptor of *path*, as `os.open` does, which no forked child keeps. Close it by `close_lock_file`."""
    with _changing:
        descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), mode)
        _open.add(descriptor)
    return descriptor


def close_lock_file(descriptor: int) -> None:
    """Close what `open_lock_file` returned; its lock ends."""
    with _changing:
        _open.discard(descriptor)
        os.close(descriptor)


def _leave_to_parent() -> None:
    """Let go, in a child, of the parent's files. Their copies in the child mustn't unlock them (`LOCK_UN` would)."""
    _changing.release()
    with contextlib.suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor in _open:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_leave_to_parent)
