"""Stores of `Memory`: a folder with a folder for each scope, and a SQLite file.

A folder is changed by the edit of `agentloop.executors` (`_edit_files`): under a lock that excludes other processes,
all files of a change or none, opened part by part below the scope's descriptor, undone by the next use if the process
dies. What people put beside the files of a scope (links, hidden files, what isn't UTF-8) is passed by, and never
replaced.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import anyio

from agentloop._common.checks import NAMES, check, check_seconds
from agentloop._common.errors import UserTypeError
from agentloop._common.memory_paths import MOST_PARTS, check_memory_change, is_name
from agentloop._common.sqlite_file import ERRORS, KeptConnection, transaction
from agentloop.exceptions import MemoryConflict, StateError, UserError
from agentloop.executors import DeleteFile, EditError, WriteFile
from agentloop.executors._edit_files import FileEdit, open_parent, read_file, split_path, to_text
from agentloop.executors._local_editor import apply_edit, lock_edit
from agentloop.executors._worker import run_to_end
from agentloop.journal._thread import OneAtATime

ResultT = TypeVar("ResultT")

_MOST_BYTES = 10_000_000
"""The most bytes of a file."""
_MOST_FILES = 10_000
_MOST_NAME = 200
"""The most bytes of the name of a scope's folder; a longer scope is named by its digest."""
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")


def _to_path(path: str | os.PathLike[str]) -> str:
    try:
        return os.fsdecode(path)
    except TypeError:
        raise UserTypeError(f"path: expected a path, got {path!r}") from None


class FolderMemory:
    """A store of `Memory` that keeps files as files: those of each scope in a folder of its own below *root*.

    You may read and edit the files by other programs while no run changes them. Symbolic links, hidden files and what
    isn't UTF-8 are passed by, and are never written to or replaced; a scope whose folder is a link is refused. A change
    of several files is made as a whole, also if the process is killed in the middle. Folders that become empty are
    removed.

    Safe to share between tasks, event loops, threads and processes of one machine. Works where `agentloop.executors`
    works: not on Windows.

    Args:
        root: The folder. It is made with the first file, for its owner only.

    Cancellation: every method is a checkpoint; a cancelled change has changed nothing.
    Raises (all methods): EditError if a file can't be read or written; names it. UserValueError if the scope is
        empty, or a path is none of a memory (see `agentloop.abc.MemoryStore`).

    Example:
        import tempfile
        from pathlib import Path

        import anyio
        from agentloop.bundles import FolderMemory

        async def main(root):
            await FolderMemory(root).change("ada", {"tea.md": "green"}, expect={})
            print(Path(root, "ada", "tea.md").read_text())  # green

        with tempfile.TemporaryDirectory() as root:
            anyio.run(main, root)
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(_to_path(root)).absolute()

    def __repr__(self) -> str:
        return f"FolderMemory({str(self._root)!r})"

    async def load(self, scope: str) -> dict[str, str]:
        """Return the texts of all files of *scope* by their paths."""
        folder = self._root / _folder_name(scope)
        if not await run_to_end(lambda: os.path.lexists(folder)):
            return {}
        async with _locked(folder) as edit:
            return await run_to_end(lambda: dict(_read_files(edit.root)))

    async def change(self, scope: str, changes: Mapping[str, str | None], *, expect: Mapping[str, str]) -> None:
        """Write and remove files, all or none, if the files of *scope* still are *expect*.

        Raises:
            MemoryConflict: if they aren't; nothing has changed.
        """
        folder = self._root / _folder_name(scope)
        check_memory_change(changes, expect)
        await run_to_end(lambda: _make_folders(self._root, folder))
        async with _locked(folder) as edit:
            if await run_to_end(lambda: dict(_read_files(edit.root))) != expect:
                raise _conflict(scope)
            for path in [path for path, text in changes.items() if text is not None and path not in expect]:
                for empty in await run_to_end(lambda at=path: _folders_at(edit.root, at)):  # type: ignore[misc]
                    edit.remove_folder(empty)
            await apply_edit(
                edit,
                [
                    DeleteFile(path=path) if text is None else WriteFile(path=path, text=text)
                    for path, text in changes.items()
                    if text is not None or path in expect
                ],
            )
            # Decided: no further wait, so that a change that is made isn't reported as cancelled.
            for path in (path for path, text in changes.items() if text is None):
                for end in range(path.count("/"), 0, -1):
                    edit.remove_folder("/".join(path.split("/")[:end]))


@asynccontextmanager
async def _locked(folder: Path) -> AsyncIterator[FileEdit]:
    edit = FileEdit(folder, _MOST_BYTES, may_be_link=False)
    try:
        await lock_edit(edit)
        yield edit
    finally:
        edit.close()  # on the event loop, as `LocalEditor` does


def _folder_name(scope: str) -> str:
    """Return the name of a scope's folder. No two scopes have one, whether or not a file system knows capitals."""
    check("scope", NAMES.words(), scope)  # an empty name would be that of the root, with the files of all scopes
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in scope.encode())
    return name if len(name) <= _MOST_NAME else f"%%{hashlib.sha256(scope.encode()).hexdigest()}"


def _make_folders(root: Path, folder: Path) -> None:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def _read_files(top: int) -> Iterator[tuple[str, str]]:
    """Yield the paths and texts of the files below a descriptor that a memory can have."""
    count = 0
    for folder, folders, names, _ in os.fwalk(".", dir_fd=top):
        place = folder.removeprefix(".").removeprefix("/")
        folders[:] = [name for name in folders if is_name(name)] if place.count("/") < MOST_PARTS - 2 else []
        for name in filter(is_name, names):
            path = f"{place}/{name}" if place else name
            count += 1
            if count > _MOST_FILES:
                raise EditError(f"there are more than {_MOST_FILES:,} files")
            try:
                text = to_text(read_file(top, path, _MOST_BYTES), path)
            except EditError:
                continue  # a link, a pipe, a file of another kind: not of the memory
            yield path, text


def _folders_at(top: int, path: str) -> list[str]:
    """Return the folders at and below *path*, the deepest first: a process that was killed may leave empty ones."""
    try:
        folder = open_parent(top, (*split_path(path), "."))
    except OSError:
        return []
    try:
        places = [place for place, *_ in os.fwalk(".", topdown=False, dir_fd=folder)]
    finally:
        os.close(folder)
    return [f"{path}/{place}".removesuffix("/.").replace("/./", "/") for place in places]


def _conflict(scope: str) -> MemoryConflict:
    return MemoryConflict(f"the files of {scope!r} have changed since they were loaded")


# ---------------------------------------------------------------------------------------------- SQLite

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS agentloop_memory_files ("
    "scope TEXT NOT NULL, path TEXT NOT NULL, content TEXT NOT NULL, PRIMARY KEY (scope, path))",
)
_SELECT = "SELECT path, content FROM agentloop_memory_files WHERE scope = ?"
_DELETE = "DELETE FROM agentloop_memory_files WHERE scope = ? AND path = ?"
_WRITE = "INSERT OR REPLACE INTO agentloop_memory_files (scope, path, content) VALUES (?, ?, ?)"


class SQLiteMemory:
    """A store of `Memory` in a SQLite file, which may hold sessions and journals, too.

    Close it by `aclose` or use it as `async with`; afterwards it can't be used. Safe to share between tasks, event
    loops, threads and, by other objects for the same file, processes.

    Args:
        path: The file; `":memory:"` exists as long as this object.
        busy_timeout: Seconds that a change waits for those of other connections.

    Cancellation: every method is a checkpoint. A call that waits for its turn does nothing; one that has begun is
        awaited and completes.
    Raises (all methods): StateError if the file can't be opened, isn't such a database, or stays locked; UserError
        once closed, and UserValueError if the scope is empty, or a path is none of a memory (see
        `agentloop.abc.MemoryStore`).

    Example:
        import anyio
        from agentloop.bundles import SQLiteMemory

        async def main():
            async with SQLiteMemory(":memory:") as store:
                await store.change("ada", {"tea.md": "green"}, expect={})
                print(await store.load("ada"))  # {'tea.md': 'green'}

        anyio.run(main)
    """

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout: float = 5.0) -> None:
        self._path = _to_path(path)
        timeout = check_seconds("busy_timeout", busy_timeout, zero=True) or 0.0
        self._thread = OneAtATime()
        self._connection = KeptConnection(self._path, _SCHEMA, busy_timeout=timeout, synced=True)
        self._closed = False

    def __repr__(self) -> str:
        return f"SQLiteMemory({self._path!r})"

    async def load(self, scope: str) -> dict[str, str]:
        """Return the texts of all files of *scope* by their paths."""
        check("scope", NAMES.words(), scope)
        return await self._run(lambda connection: _select(connection, scope))

    async def change(self, scope: str, changes: Mapping[str, str | None], *, expect: Mapping[str, str]) -> None:
        """Write and remove files in one transaction, if the files of *scope* still are *expect*.

        Raises:
            MemoryConflict: if they aren't; nothing has changed.
        """
        check("scope", NAMES.words(), scope)
        check_memory_change(changes, expect)

        def change(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                if _select(connection, scope) != expect:
                    raise _conflict(scope)
                for path, text in changes.items():
                    if text is None:
                        connection.execute(_DELETE, (scope, path))
                    else:
                        connection.execute(_WRITE, (scope, path, text))

        await self._run(change)

    async def aclose(self) -> None:
        """Close the connection after the call in progress. Does nothing the second time."""
        await self._thread.run(self._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):  # bounded by busy_timeout: it waits only for a call in progress
            await self.aclose()

    # -- in the thread

    async def _run(self, work: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        def do() -> ResultT:
            if self._closed:
                raise UserError(f"{self!r} is closed")
            try:
                return work(self._connection.get())
            except ERRORS as error:
                raise StateError(f"{self!r}: {error}") from error

        return await self._thread.run(do)

    def _close(self) -> None:
        self._closed = True
        self._connection.close()


def _select(connection: sqlite3.Connection, scope: str) -> dict[str, str]:
    return dict(connection.execute(_SELECT, (scope,)).fetchall())
