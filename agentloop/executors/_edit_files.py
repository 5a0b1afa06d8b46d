"""One edit of the files below a folder: all of its changes or none. Runs in worker threads; awaits nothing.

Theory of operation. An edit holds a lock on the root (`flock`, so other processes are excluded, too, and the death of
the holder frees it). Its working files are in one folder below the root, `.agentloop-edit`:

1. *Prepare.* The operations are applied to texts in memory. Each new content is written to `N.new` and each file that
   will change is linked as `N.old`, which keeps the very file, its owner and its times. A full disk or a refusal shows
   here, before anything has changed. Then `journal` is written: the steps, with the identities of all files.
2. *Commit.* Each step is one system call: a rename over the old file, a link that refuses to replace anything, or an
   unlink. Before it the file must still be the one that was read; if another program has changed it, the edit fails.
3. *Decide.* Removing `journal` makes the edit permanent; `undo` takes the steps back in reverse order. Undoing asks of
   each file whether it is the new one, so it may be cut and repeated.

A process that dies before the decision leaves the journal, and the next edit of the root begins with its undo. The new
journal is durable before the first step, but the decision isn't flushed to the disk: a power cut within the seconds
that the file system takes for it may undo an edit that was reported.

What an edit costs is bounded, because a model writes the operations, and commands in a sandbox write the files: the
names in a path, the files of one edit, the memory of all texts together, and the steps of all searches
(`_patch.EditWork`). The content of a file that is only deleted is never read. A command may also write into the working
folder, so the journal of a process that died is read as a stranger's: a regular file of a bounded size, or an error.

Every path is opened part by part below the root's descriptor without following symbolic links (`O_NOFOLLOW`), and all
further calls go to the descriptor of the folder. So neither `..` nor a link, nor one that is put in place meanwhile,
leads out of the root.

Decisions:

Undo, and not redo. An edit that was cut short by the death of its process is undone by the next use of its root. The
call is in doubt, and the model learns so; a tree as it was before is what it can continue from. Rejected: completing
it. The content might be complete, but other changes may have been made since for a reason the edit didn't know.

The decision about an edit is one step on the event loop. Files are written and renamed in a thread. Then the loop is
asked whether the call was cancelled, and in the same synchronous step the edit is made permanent by one `unlink`, or
undone. A thread that decides could be overtaken by a cancellation before its answer arrives: the log would say
cancelled of an edit that happened.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import attrs
import msgspec

from agentloop._common.values import Value
from agentloop.executors._patch import EditWork, change_text, do_nothing, read_new_text
from agentloop.executors._protocols import (
    CreateFile,
    DeleteFile,
    EditError,
    EditOperation,
    EditResult,
    FileChange,
    InsertText,
    ReplaceText,
    UpdateFile,
    WriteFile,
)

WORK = ".agentloop-edit"
_JOURNAL = "journal"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_MODE = 0o666
_MOST_PARTS = 128
"""The most names in one path: a longer path names no file of a person, and each name costs a system call."""
_MOST_FILES = 1_000
"""The most files of one edit. Their working files are removed on the event loop."""
_MOST_JOURNAL_BYTES = 8_000_000
"""Room for the paths of all files of an edit."""
_QUOTED = 120
"""The most characters of a path that a message quotes."""
_MEMORY_A_FILE = 16
_MEMORY_AT_LEAST = 16_000_000
"""All texts of an edit together may take so many times the memory of its largest file, and at least these bytes."""
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)


class _Identity(Value, frozen=True):
    """Tells whether a file is still the same: its inode, the time of its last change, its size."""

    inode: int
    changed_ns: int
    size: int

    @classmethod
    def of(cls, found: os.stat_result) -> _Identity:
        return cls(found.st_ino, found.st_mtime_ns, found.st_size)


class _EditStep(Value, frozen=True, kw_only=True):
    """One change of one file: its path, and the identities of the file before and after it."""

    path: str
    kind: Literal["create", "replace", "delete"]
    new: _Identity | None = None
    old: _Identity | None = None


class _EditSteps(Value, frozen=True):
    """The content of the journal. `folders` are those that the edit makes, outermost first."""

    steps: tuple[_EditStep, ...]
    folders: tuple[str, ...] = ()


class _Found(NamedTuple):
    """A file as it was read."""

    status: os.stat_result
    data: bytes


@attrs.define
class _ViewedFile:
    """A file in the view of the operations: as it was found, and its text by now. None: there is no such file."""

    status: os.stat_result | None
    before: str | None
    """The text that was found. None also if the file is only deleted: then it isn't read."""
    text: str | None
    moved_from: str | None = None

    @property
    def differs(self) -> bool:
        """True if the file is to be changed, made or removed."""
        return self.before != self.text or (self.text is None and self.status is not None)

    @property
    def memory(self) -> int:
        """The bytes of memory that its texts take."""
        return sum(sys.getsizeof(text) for text in (self.before, self.text) if text is not None)


def split_path(path: str) -> tuple[str, ...]:
    """Return the parts of a path below a root.

    Raises:
        EditError: for a path that is absolute, empty, too long, no text, or leads out; names it.
    """
    to_data(path, "the path")
    if not path or "\0" in path or path.startswith("/"):
        raise EditError(f"{path!r}: expected a path below the root, relative to it")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if not parts or ".." in parts:
        raise EditError(f"{path!r}: expected a path below the root, without '..'")
    if len(parts) > _MOST_PARTS:
        raise EditError(f"{path[:_QUOTED]!r}…: expected a path of at most {_MOST_PARTS} names, got {len(parts):,}")
    if parts[0].casefold().startswith(WORK):
        raise EditError(f"{path!r}: the editor keeps its own files there")
    return parts


@contextlib.contextmanager
def _errors_of(path: str) -> Iterator[None]:
    """Raise errors of the system as an `EditError` that names *path*."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise EditError(f"{path}: a part of the path is a symbolic link, or no folder") from error
        raise EditError(f"{path}: {error.strerror or error}") from error


def _open_folder(parent: int, name: str) -> int:
    return os.open(name, _FOLDER, dir_fd=parent)


def _make_folder(parent: int, name: str) -> int:
    """Return a descriptor of a folder, which is made if it is missing, and is then of the owner of its parent."""
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        return _open_folder(parent, name)
    made = _open_folder(parent, name)
    _give(made, os.fstat(parent))
    return made


def _give(descriptor: int, like: os.stat_result) -> bool:
    """Give a new file or folder to the owner of *like*, if that is another user. Return False if it isn't allowed."""
    if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
        try:
            os.fchown(descriptor, like.st_uid, like.st_gid)
        except OSError:
            return False
    return True


def open_parent(root: int, parts: Sequence[str], *, make: bool = False) -> int:
    """Return a descriptor of the folder that holds the last of *parts*, for the caller to close.

    Raises:
        OSError: if a part is missing (unless *make* creates it), is a symbolic link or isn't a folder.
    """
    folder = os.dup(root)
    try:
        for part in parts[:-1]:
            below = _make_folder(folder, part) if make else _open_folder(folder, part)
            os.close(folder)
            folder = below
    except BaseException:
        os.close(folder)
        raise
    return folder


def _status(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def read_file(root: int, path: str, most: int) -> bytes:
    """Return the content of a regular file of at most *most* bytes.

    Raises:
        EditError: if it is none, or can't be read.
    """
    found = _read(root, path, most)
    if found is None:
        raise EditError(f"{path}: there is no such file")
    return found.data


def _read(root: int, path: str, most: int) -> _Found | None:
    with _opened(root, path, most) as file:
        if file is None:
            return None
        with os.fdopen(file, "rb", closefd=False) as opened:
            data = opened.read(most + 1)
        if len(data) > most:  # it has grown meanwhile
            raise EditError(f"{path}: it is larger than {most:,} bytes")
        return _Found(os.fstat(file), data)


@contextlib.contextmanager
def _opened(root: int, path: str, most: int) -> Iterator[int | None]:
    """Give a descriptor of a regular file of at most *most* bytes; None if there is no file.

    Raises:
        EditError: if it is no such file, or can't be opened.
    """
    parts = split_path(path)
    with _errors_of(path):
        file = _open_file(root, parts)
        try:
            if file is not None:
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode):
                    raise EditError(f"{path}: it is no regular file")
                if status.st_size > most:
                    raise EditError(f"{path}: it is larger than {most:,} bytes")
            yield file
        finally:
            if file is not None:
                os.close(file)


def _open_file(root: int, parts: Sequence[str]) -> int | None:
    try:
        folder = open_parent(root, parts)
    except FileNotFoundError:
        return None
    try:
        return os.open(parts[-1], _READ, dir_fd=folder)  # O_NONBLOCK: a pipe without a writer would block
    except FileNotFoundError:
        return None
    finally:
        os.close(folder)


def list_folder(root: int, path: str) -> list[str] | None:
    """Return the names in a folder, folders with a `/`; None if *path* isn't a folder. `.` is the root.

    Raises:
        EditError: if it can't be read.
    """
    parts = () if path.strip("/") in ("", ".") and not path.startswith("/") else split_path(path)
    with _errors_of(path):
        try:
            folder = open_parent(root, (*parts, "."))
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            with os.scandir(folder) as entries:
                found = [show_name(entry.name) + "/" * entry.is_dir(follow_symlinks=False) for entry in entries]
        finally:
            os.close(folder)
    return sorted(name for name in found if not name.startswith(WORK))


def show_name(name: str) -> str:
    """Return a name as a text: bytes of it that aren't UTF-8 are replaced."""
    return os.fsencode(name).decode(errors="replace")


def to_data(text: str, path: str) -> bytes:
    """Return *text* as bytes.

    Raises:
        EditError: if it holds half a character.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise EditError(f"{path}: it holds half a character, {half!r}, which no file in UTF-8 can hold") from None


def to_text(data: bytes, path: str) -> str:
    """Return *data* as text.

    Raises:
        EditError: if it isn't UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise EditError(f"{path}: it is no text in UTF-8") from None


class _View:
    """The files as the operations leave them, in memory. Reads a file at its first use."""

    def __init__(self, root: int, most: int, work: EditWork) -> None:
        self._root = root
        self._most = most
        self._work = work
        self._memory = 0
        self.files: dict[str, _ViewedFile] = {}

    def _file(self, path: str) -> tuple[str, _ViewedFile]:
        key = "/".join(split_path(path))
        if key not in self.files:
            found = _read(self._root, key, self._most)
            text = None if found is None else to_text(found.data, key)
            self._add(key, _ViewedFile(None if found is None else found.status, text, text))
            self._work.allow(text or "")
        return key, self.files[key]

    def _add(self, key: str, file: _ViewedFile) -> None:
        if len(self.files) >= _MOST_FILES:
            raise EditError(f"{key}: an edit changes at most {_MOST_FILES:,} files; make several")
        self.files[key] = file
        self._count(key, file.memory)

    def _find_existing(self, path: str) -> tuple[str, _ViewedFile, str]:
        key, file = self._file(path)
        if file.text is None:
            raise EditError(f"{path}: there is no such file")
        return key, file, file.text

    def apply(self, operation: EditOperation) -> None:
        """Apply one operation."""
        match operation:
            case CreateFile(path=path, diff=diff):
                _, file = self._file(path)
                if file.text is not None:
                    raise EditError(f"{path}: the file exists")
                with _at(path):
                    self._set(path, file, read_new_text(diff))
            case WriteFile(path=path, text=text):
                self._set(path, self._file(path)[1], text)
            case DeleteFile(path=path):
                self._delete(path)
            case UpdateFile(path=path, diff=diff, move_to=move_to):
                key, file, text = self._find_existing(path)
                self._work.allow(diff)
                with _at(path):
                    self._set(path, file, change_text(text, diff, self._work))
                if move_to is not None and "/".join(split_path(move_to)) != key:
                    self._move(key, file, move_to)
            case ReplaceText(path=path, old=old, new=new):
                _, file, text = self._find_existing(path)
                with _at(path):
                    self._work.go_over(text)
                if (count := text.count(old) if old else 0) != 1:
                    raise EditError(f"{path}: the text to replace is there {count} times, and not once")
                self._set(path, file, text.replace(old, new))
            case InsertText():
                self._insert(operation)

    def _insert(self, operation: InsertText) -> None:
        path, line, added = operation.path, operation.line, operation.text
        _, file, text = self._find_existing(path)
        with _at(path):
            self._work.go_over(text)
        lines = text.splitlines(keepends=True)
        if not 0 <= line <= len(lines):
            raise EditError(f"{path}: it has {len(lines)} lines, and no line {line}")
        if line and not lines[line - 1].endswith("\n"):
            lines[line - 1] += "\n"
        lines.insert(line, added if added.endswith("\n") else f"{added}\n")
        self._set(path, file, "".join(lines))

    def _set(self, path: str, file: _ViewedFile, text: str) -> None:
        if len(to_data(text, path)) > self._most:
            raise EditError(f"{path}: a file of more than {self._most:,} bytes would come of it")
        before = file.memory
        file.text = text
        self._count(path, file.memory - before)

    def _count(self, path: str, more: int) -> None:
        self._memory += more
        if self._memory > (most := max(_MEMORY_A_FILE * self._most, _MEMORY_AT_LEAST)):
            raise EditError(f"{path}: the files of one edit may take {most:,} bytes of memory together; make several")

    def _delete(self, path: str) -> None:
        key = "/".join(split_path(path))
        if key in self.files:
            _, file, _ = self._find_existing(path)
            file.text = None
            return
        with _opened(self._root, key, self._most) as found:
            if found is None:
                raise EditError(f"{path}: there is no such file")
            self._add(key, _ViewedFile(os.fstat(found), None, None))

    def _move(self, key: str, file: _ViewedFile, move_to: str) -> None:
        _, target = self._file(move_to)
        if target.text is not None:
            raise EditError(f"{move_to}: the file exists")
        target.text, file.text = file.text, None
        target.moved_from = key

    def changes(self) -> tuple[FileChange, ...]:
        """Return what becomes of the files."""
        moved = {file.moved_from for file in self.files.values() if file.text is not None}
        made: list[FileChange] = []
        for path, file in self.files.items():
            if file.text is None:
                if file.status is not None and path not in moved:
                    made.append(FileChange(path, "deleted"))
            elif file.moved_from is not None:
                made.append(FileChange(path, "moved", file.moved_from))
            elif file.status is None:
                made.append(FileChange(path, "created"))
            else:
                made.append(FileChange(path, "updated"))
        return tuple(made)


@contextlib.contextmanager
def _at(path: str) -> Iterator[None]:
    """Name *path* in an error of its diff."""
    try:
        yield
    except EditError as error:
        raise EditError(f"{path}: {error}") from None


class FileEdit:
    """One edit. Use: `lock` until it is True, `apply`, then `keep` or `undo`, and `close` at the end in every case."""

    def __init__(self, root: Path, most: int, *, may_be_link: bool = True) -> None:
        self._path = root
        self._most = most
        self._follow = 0 if may_be_link else os.O_NOFOLLOW
        self._root: int | None = None
        self._work: int | None = None
        self._made: list[str] = []
        self.is_decided = True
        """False while `keep` or `undo` is due."""

    def lock(self, check: Callable[[], None] = do_nothing) -> bool:
        """Open and lock the root, and undo what a process that died has left. Return False if another edit has it.

        *check* is called in the undo and raises to stop; the next edit continues it.

        Raises:
            EditError: if the root can't be opened, or an earlier edit can't be undone.
        """
        if self._root is None:
            with _errors_of(str(self._path)):
                self._root = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | self._follow)
        try:
            fcntl.flock(self._root, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        with _errors_of(WORK):
            found = _status(self._root, WORK)
            if found is not None:
                # Only what this user made, as an edit makes it: a repository may bring a folder of that name.
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                    raise EditError(f"{WORK}: it is no folder of an editor; remove it")
                self._work = _open_folder(self._root, WORK)
                self.is_decided = False
        if not self.is_decided:
            self.undo(check)
        return True

    @property
    def root(self) -> int:
        """The descriptor of the root, once it is open."""
        assert self._root is not None
        return self._root

    def apply(self, operations: Sequence[EditOperation], check: Callable[[], None]) -> EditResult:
        """Prepare and commit. *check* is called often and raises to abort; then, as after any error, `undo` is due.

        Raises:
            EditError: if an operation is refused, a file is changed by another program meanwhile, or a write fails.
        """
        assert self._root is not None
        view = _View(self._root, self._most, EditWork(check))
        for operation in operations:
            check()
            view.apply(operation)
        changed = {path: file for path, file in view.files.items() if file.differs}
        if changed:
            self.is_decided = False
            journal = self._prepare(changed, check)
            for number, step in enumerate(journal.steps):
                check()
                with _errors_of(step.path):
                    self._commit(number, step)
        return EditResult(changes=view.changes())

    def read(self, path: str) -> str:
        """Return the text of a file, or the names in a folder, one a line.

        Raises:
            EditError: if there is no such file, or it isn't text.
        """
        assert self._root is not None
        names = list_folder(self._root, path)
        return to_text(read_file(self._root, path, self._most), path) if names is None else "\n".join(names)

    # -- prepare

    def _prepare(self, files: dict[str, _ViewedFile], check: Callable[[], None]) -> _EditSteps:
        assert self._root is not None
        with _errors_of(WORK):
            os.mkdir(WORK, 0o700, dir_fd=self._root)
            self._work = _open_folder(self._root, WORK)
        steps: list[_EditStep] = []
        folders: dict[str, None] = {}
        for number, (path, file) in enumerate(files.items()):
            check()
            with _errors_of(path):
                folders |= dict.fromkeys(self._missing_folders(path))
                steps.append(self._write(number, path, file))
        journal = _EditSteps(tuple(steps), tuple(folders))
        encoded = msgspec.json.encode(journal)
        if len(encoded) > _MOST_JOURNAL_BYTES:
            raise EditError("the paths of one edit are too long together; make several edits")
        with _errors_of(WORK):
            self._write_file(f"{_JOURNAL}.new", encoded, 0o600)
            os.rename(f"{_JOURNAL}.new", _JOURNAL, src_dir_fd=self._work, dst_dir_fd=self._work)
            os.fsync(self._work)
            os.fsync(self._root)
        return journal

    def _missing_folders(self, path: str) -> Iterator[str]:
        assert self._root is not None
        parts = split_path(path)[:-1]
        folder = os.dup(self._root)
        try:
            for number, part in enumerate(parts):
                try:
                    below = _open_folder(folder, part)
                except FileNotFoundError:
                    yield from ("/".join(parts[: end + 1]) for end in range(number, len(parts)))
                    return
                os.close(folder)
                folder = below
        finally:
            os.close(folder)

    def _write(self, number: int, path: str, file: _ViewedFile) -> _EditStep:
        assert self._root is not None
        assert self._work is not None
        old = None
        if file.status is not None:
            old = _Identity.of(file.status)
            folder = open_parent(self._root, parts := split_path(path))
            try:
                self._keep_old(number, folder, parts[-1], path, file.status)
            finally:
                os.close(folder)
        if file.text is None:
            return _EditStep(path=path, kind="delete", old=old)
        new = self._write_file(f"{number}.new", to_data(file.text, path), file.status)
        return _EditStep(path=path, kind="create" if old is None else "replace", new=new, old=old)

    def _keep_old(self, number: int, folder: int, name: str, path: str, status: os.stat_result) -> None:
        """Link the file as `N.old`; where links aren't allowed, copy it."""
        assert self._root is not None
        kept = f"{number}.old"
        self._made.append(kept)
        try:
            os.link(name, kept, src_dir_fd=folder, dst_dir_fd=self._work, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            found = _read(self._root, path, self._most)
            if found is None or _Identity.of(found.status) != _Identity.of(status):
                raise EditError(f"{path}: another program changed it meanwhile") from None
            self._write_file(kept, found.data, found.status)

    def _write_file(self, name: str, data: bytes, like: os.stat_result | int | None) -> _Identity:
        """Write a working file, with the mode and, where it is allowed, the owner of *like*; None = of the root."""
        assert self._root is not None
        self._made.append(name)
        file = os.open(name, _WRITE, _NEW_MODE, dir_fd=self._work)
        with os.fdopen(file, "wb") as opened:
            opened.write(data)
            opened.flush()
            if like is None:
                _give(file, os.fstat(self._root))
            elif isinstance(like, int):
                os.fchmod(file, like)
            else:  # a program that acts as its owner is not to act as another one
                given = _give(file, like)
                os.fchmod(file, stat.S_IMODE(like.st_mode) if given else stat.S_IMODE(like.st_mode) & 0o777)
            os.fsync(file)
            return _Identity.of(os.fstat(file))

    # -- commit

    def _commit(self, number: int, step: _EditStep) -> None:
        assert self._root is not None
        parts = split_path(step.path)
        folder = open_parent(self._root, parts, make=step.kind == "create")
        try:
            name, new = parts[-1], f"{number}.new"
            if step.kind == "create":
                self._place(new, folder, name)
            else:
                self._check_unchanged(folder, name, step)
                if step.kind == "replace":
                    os.rename(new, name, src_dir_fd=self._work, dst_dir_fd=folder)
                else:
                    os.unlink(name, dir_fd=folder)
            os.fsync(folder)
        finally:
            os.close(folder)

    def _place(self, new: str, folder: int, name: str) -> None:
        """Give a new file its name. A link never replaces a file that has appeared meanwhile."""
        try:
            os.link(new, name, src_dir_fd=self._work, dst_dir_fd=folder)
        except OSError as error:
            if error.errno not in _NO_LINKS or _status(folder, name) is not None:
                raise
            os.rename(new, name, src_dir_fd=self._work, dst_dir_fd=folder)

    def _check_unchanged(self, folder: int, name: str, step: _EditStep) -> None:
        found = _status(folder, name)
        if found is None or _Identity.of(found) != step.old:
            raise EditError(f"{step.path}: another program changed it meanwhile")

    # -- decide

    def keep(self) -> None:
        """Make the edit permanent. One system call, so it can be made on an event loop."""
        if not self.is_decided:
            os.unlink(_JOURNAL, dir_fd=self._work)
            self.is_decided = True

    def undo(self, check: Callable[[], None] = do_nothing) -> None:
        """Take back every step that was made, in reverse order. May be cut by *check*, and repeated.

        Raises:
            EditError: naming the files that another program has changed since; their former contents are kept.
        """
        if self._work is not None:
            with _errors_of(WORK):
                journal = self._read_journal()
            refused = []
            for number, step in reversed([*enumerate(journal.steps)]):
                check()
                if not self._undo_step(number, step):
                    refused.append(step.path)
            for path in reversed(journal.folders):
                check()
                self.remove_folder(path)
            with _errors_of(WORK):
                if refused:
                    raise EditError(f"{', '.join(refused)}: changed since; former contents are in {self._set_aside()}")
                # The journal goes first: without it what is left means nothing.
                self._remove_work(sorted(os.listdir(self._work), key=lambda name: name != _JOURNAL), check)
        self.is_decided = True

    def _read_journal(self) -> _EditSteps:
        try:
            file = os.open(_JOURNAL, _READ, dir_fd=self._work)
        except FileNotFoundError:
            return _EditSteps(())
        try:
            status = os.fstat(file)
            if stat.S_ISREG(status.st_mode) and status.st_size <= _MOST_JOURNAL_BYTES:
                with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
                    return msgspec.json.decode(os.read(file, status.st_size), type=_EditSteps)
        finally:
            os.close(file)
        raise EditError(f"{WORK}: its journal is not one that an editor has written; remove the folder")

    def _undo_step(self, number: int, step: _EditStep) -> bool:
        """Take back one step. Return False if the file is neither the new nor the old one."""
        with _errors_of(step.path):
            return self._undo(number, step)

    def _undo(self, number: int, step: _EditStep) -> bool:
        assert self._root is not None
        parts = split_path(step.path)
        try:
            folder = open_parent(self._root, parts)
        except FileNotFoundError:
            return step.kind == "create"  # its folder was not made yet
        try:
            name, kept = parts[-1], f"{number}.old"
            status = _status(folder, name)
            found = None if status is None else _Identity.of(status)
            if found == step.old:  # not made yet, or taken back
                return True
            if found != step.new:
                return False
            if step.kind == "create":
                os.unlink(name, dir_fd=folder)
            else:
                os.rename(kept, name, src_dir_fd=self._work, dst_dir_fd=folder)
            os.fsync(folder)
            return True
        finally:
            os.close(folder)

    def remove_folder(self, path: str) -> None:
        """Remove a folder below the root if it is empty."""
        assert self._root is not None
        parts = split_path(path)
        with contextlib.suppress(OSError):  # it isn't empty, or was not made
            folder = open_parent(self._root, parts)
            try:
                os.rmdir(parts[-1], dir_fd=folder)
            finally:
                os.close(folder)

    def _set_aside(self) -> str:
        assert self._root is not None
        assert self._work is not None
        name = f"{WORK}-{os.fstat(self._work).st_ino}"
        os.rename(WORK, name, src_dir_fd=self._root, dst_dir_fd=self._root)
        os.close(self._work)
        self._work = None
        self.is_decided = True
        return name

    def _remove_work(self, names: Sequence[str], check: Callable[[], None] = do_nothing) -> None:
        assert self._root is not None
        assert self._work is not None
        for name in names:
            check()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._work)
        os.close(self._work)
        self._work = None
        os.rmdir(WORK, dir_fd=self._root)

    def close(self) -> None:
        """Remove the working files of a decided edit, and give the lock back. Some system calls for each file."""
        try:
            if self.is_decided and self._work is not None:
                with contextlib.suppress(OSError):  # the next edit removes them, and what another program has added
                    self._remove_work(self._made)
        finally:
            for held in (self._work, self._root):
                if held is not None:
                    os.close(held)
            self._work = self._root = None
