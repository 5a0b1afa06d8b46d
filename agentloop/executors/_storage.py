"""The storage of local sandboxes: folders below one folder, each locked by the run that has it. Blocks.

Theory of operation. The storage of sandbox N of folder F is in one of three states, by its name:

    F/.new-N       being made, while its maker has a shared lock on F
    F/N            made; in use while its file `lock` is locked, else kept for a later segment of its run
    F/.removed-N   over; its files are being removed

A rename leads from each state to the next, so that a process that dies at any moment leaves one of them. Locks are the
kernel's (`flock`): they end with their process. `F/N/about` names the run; `F/N/work` and `F/N/tmp` are the command's.

`prune` removes what is left behind: with an exclusive lock on F, every `.new-N` has a dead maker; an `F/N` that it can
lock is in no use and can't come into use meanwhile, so what the run's log says of it holds until it is removed or
unlocked. It removes it only if its caller says that the run is over, or if it is old.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import attrs

from agentloop._common.lock_files import close_lock_file, open_lock_file
from agentloop._common.values import Value
from agentloop.exceptions import StateError

WORK, TEMPORARY = "work", "tmp"
"""The folders below a sandbox's storage in which its commands may write."""
LOCK_SECONDS = 30.0
"""The most seconds that the lock of the folder is waited for. Its holders are makers and prunes: milliseconds."""
_LOCK_PAUSE = 0.02
_NEW, _REMOVED = ".new-", ".removed-"
_LOCK, _ABOUT = "lock", "about"
_NAME = re.compile(r"[0-9a-f]{32}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PrunedSandbox(Value, frozen=True, kw_only=True):
    """One sandbox as a prune has found it.

    Attributes:
        name: The sandbox's name.
        run_id: The id of its run; None if the run never had it, or its storage doesn't say.
        removed: True if its storage was removed, or would be.
        reason: `"in use"`: a run has it. `"unfinished"`: the process died while it made the sandbox, or removed it.
            `"over"`: its run is over. `"old"`: no run has used it for a time. `"kept"`: its run may be resumed.
        idle: Seconds since a run last used it.
    """

    name: str
    run_id: str | None
    removed: bool
    reason: Literal["in use", "unfinished", "over", "old", "kept"]
    idle: float


def _do_nothing() -> None:
    """Never stop."""


@attrs.define
class SandboxStorage:
    """The storage of one sandbox, locked. Owned by the sandbox of one run segment. Use: `create` or `find`, `close`."""

    folder: Path
    name: str
    run_id: str | None
    idle: float
    """Seconds since its last use, before this one."""
    _lock: int | None

    @property
    def path(self) -> Path:
        """The folder of this storage."""
        return self.folder / self.name

    @classmethod
    def create(cls, folder: Path, run_id: str, check: Callable[[], None] = _do_nothing) -> SandboxStorage:
        """Make the storage of a new sandbox, durably. *check* is called while it waits, and raises to stop.

        Raises:
            OSError: the disk refuses, or another program keeps the folder locked; nothing is left.
        """
        name = uuid.uuid4().hex
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = folder / f"{_NEW}{name}"
        lock: int | None = None
        try:
            with _locked(folder, fcntl.LOCK_SH, check) as entries:
                new.mkdir(0o700)
                lock = open_lock_file(new / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                fcntl.flock(lock, fcntl.LOCK_EX)
                for part in (WORK, TEMPORARY):
                    (new / part).mkdir(0o700)
                with (new / _ABOUT).open("x", encoding="utf-8") as about:
                    json.dump({"run_id": run_id}, about)
                    about.flush()
                    os.fsync(about.fileno())
                new.rename(folder / name)
                os.fsync(entries)
        except BaseException:
            if lock is not None:
                close_lock_file(lock)
            for left in (new, folder / name):
                remove_tree(left)
            raise
        return cls(folder, name, run_id, 0.0, lock)

    @classmethod
    def find(cls, folder: Path, name: str) -> SandboxStorage:
        """Lock the storage of sandbox *name*.

        Raises:
            BlockingIOError: it is in use.
            FileNotFoundError: it is gone.
        """
        if _NAME.fullmatch(name) is None:
            raise FileNotFoundError(f"no sandbox has the name {name!r}")
        path = folder / name
        lock = open_lock_file(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (path / WORK).stat()  # it may have been removed since it was opened
            used = os.fstat(lock).st_mtime
            run_id = _read_run_id(path)
        except BaseException:
            close_lock_file(lock)
            raise
        return cls(folder, name, run_id, max(time.time() - used, 0.0), lock)

    def give_to(self, user: int) -> None:
        """Give the folders of the commands to *user*, which is another one than this process is. From root only."""
        for part in (WORK, TEMPORARY):
            os.chown(self.path / part, user, user, follow_symlinks=False)

    def note_use(self) -> None:
        """Note that the sandbox is used now."""
        assert self._lock is not None
        os.utime(self._lock)

    def close(self) -> None:
        """Unlock the storage and keep it. Does nothing the second time."""
        lock, self._lock = self._lock, None
        if lock is not None:
            close_lock_file(lock)

    def remove(self, check: Callable[[], None] = _do_nothing) -> None:
        """Remove the storage. *check* is called often and raises to stop; `prune` then removes the rest.

        Raises:
            OSError: something can't be removed.
        """
        try:
            gone = self.folder / f"{_REMOVED}{self.name}"
            self.path.rename(gone)
            with _locked(self.folder, None) as entries:
                os.fsync(entries)
            remove_tree(gone, check)
        finally:
            self.close()


def _read_run_id(path: Path) -> str | None:
    try:
        about = json.loads((path / _ABOUT).read_bytes())
        return about["run_id"] if isinstance(about["run_id"], str) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


@contextlib.contextmanager
def _locked(folder: Path, how: int | None, check: Callable[[], None] = _do_nothing) -> Iterator[int]:
    """Open *folder*, lock it where *how* says how, and give its descriptor. *check* is called while it waits.

    Raises:
        TimeoutError: another program keeps it locked.
    """
    entries = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if how is not None:
            _lock(entries, how, check)
        yield entries
    finally:
        os.close(entries)


def _lock(entries: int, how: int, check: Callable[[], None]) -> None:
    """Lock a folder. Every program that can read the folder can lock it, so no wait is without an end."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(entries, how | fcntl.LOCK_NB)
        except BlockingIOError:
            check()
            if time.monotonic() >= until:
                why = f"another program has locked the folder for {LOCK_SECONDS:g} seconds"
                raise TimeoutError(errno.ETIMEDOUT, why) from None
            time.sleep(_LOCK_PAUSE)


def prune(
    folder: Path,
    is_over: Callable[[str, str], bool | None],
    *,
    older_than: float | None,
    check: Callable[[], None] = _do_nothing,
    dry: bool = False,
) -> list[PrunedSandbox]:
    """Remove what no run needs any more below *folder*; return what was found, by name.

    Args:
        folder: The folder of the sandboxes; need not exist.
        is_over: Tells of a run id and a sandbox's name whether that run is over or has another sandbox; None if it is
            not known. Called while no run can have the sandbox.
        older_than: Seconds since the last use, after which storage is removed in any case; None = never.
        check: Called often; raises to stop.
        dry: True to remove nothing.

    Raises:
        OSError: something can't be removed, or another program keeps the folder locked.
    """
    found: list[PrunedSandbox] = []
    if not folder.is_dir():
        return found
    with _locked(folder, fcntl.LOCK_EX, check):
        unfinished = [path for path in folder.iterdir() if path.name.startswith((_NEW, _REMOVED))]
        for path in unfinished:
            if path.name.startswith(_NEW) and not dry:
                path.rename(folder / f"{_REMOVED}{path.name.removeprefix(_NEW)}")
    for name in {path.name.partition("-")[2] for path in unfinished}:
        gone = folder / f"{_REMOVED}{name}"
        if not dry:
            remove_tree(gone, check)
        found.append(PrunedSandbox(name=name, run_id=None, removed=True, reason="unfinished", idle=0.0))
    for name in sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)):
        check()
        with contextlib.suppress(FileNotFoundError):  # its run has removed it meanwhile
            found.append(_prune_one(folder, name, is_over, older_than, check, dry))
    return sorted(found, key=lambda one: one.name)


def _prune_one(
    folder: Path,
    name: str,
    is_over: Callable[[str, str], bool | None],
    older_than: float | None,
    check: Callable[[], None],
    dry: bool,
) -> PrunedSandbox:
    try:
        storage = SandboxStorage.find(folder, name)
    except BlockingIOError:
        return PrunedSandbox(name=name, run_id=_read_run_id(folder / name), removed=False, reason="in use", idle=0.0)
    try:
        reason: Literal["over", "old", "kept"] = "kept"
        if storage.run_id is not None and is_over(storage.run_id, name):
            reason = "over"
        elif older_than is not None and storage.idle >= older_than:
            reason = "old"
        removed = reason != "kept"
        if removed and not dry:
            storage.remove(check)
        return PrunedSandbox(name=name, run_id=storage.run_id, removed=removed, reason=reason, idle=storage.idle)
    finally:
        storage.close()


def remove_tree(path: Path, check: Callable[[], None] = _do_nothing) -> None:
    """Remove *path* with all below it, of any modes and any depth. Does nothing if it isn't there.

    A folder's own folders are first moved up, beside it, so that no depth needs more descriptors, memory or length of
    path. Links are removed, not followed. Two removals of one tree may run at once.

    Raises:
        OSError: something can't be removed: it is another user's, or a mount.
    """
    try:
        top = os.open(path, _FOLDER)
    except FileNotFoundError:
        return
    try:
        os.fchmod(top, 0o700)
        while names := os.listdir(top):
            for name in names:
                check()
                with contextlib.suppress(FileNotFoundError):
                    if not _remove_file(top, name):
                        _empty_folder(top, name, check)
                        os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    with contextlib.suppress(FileNotFoundError):
        path.rmdir()


def _remove_file(parent: int, name: str) -> bool:
    """Remove the entry. Return False if it is a folder."""
    if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        return False
    os.unlink(name, dir_fd=parent)
    return True


def _empty_folder(top: int, name: str, check: Callable[[], None]) -> None:
    """Remove the files of a folder in *top*, and move its folders into *top*."""
    os.chmod(name, 0o700, dir_fd=top)  # it may forbid its owner to read it
    folder = os.open(name, _FOLDER, dir_fd=top)
    try:
        for inner in os.listdir(folder):
            check()
            with contextlib.suppress(FileNotFoundError):
                if not _remove_file(folder, inner):
                    os.chmod(inner, 0o700, dir_fd=folder)  # else it can't be moved
                    os.rename(inner, uuid.uuid4().hex, src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)


def check_run(storage: SandboxStorage, run_id: str) -> None:
    """Check that *storage* is of the run *run_id*.

    Raises:
        StateError: it is another run's.
    """
    if storage.run_id != run_id:
        raise StateError(f"sandbox {storage.name} in {storage.folder} is of another run than {run_id}")
