"""The folder of `--journal`: the order and its requests, a lock for the working process, a journal for each request.

Requests are stored before they are answered, so that `agentloop resume` doesn't need their source. This module knows
files; it does not run agents.

A folder names code that `resume` imports, so one that another user has made, or can change, is that user's program. It
is used only if it and its files belong to this user, and no other can write to them. `job.json` also says where the
folder was when the job began: one that was copied, moved or unpacked here is resumed only when the user confirms it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Protocol

import anyio.to_thread
import attrs

from agentloop._common.lock_files import close_lock_file, open_lock_file
from agentloop._common.regular_files import open_regular
from agentloop.cli.private_files import open_private
from agentloop.cli.streams import MAX_LINE, InputLine, Lines
from agentloop.exceptions import UserError
from agentloop.journal._folder import journal_files

_VERSION = 1
_JOB = "job.json"
_NEW_JOB = ".job.json.new"
_LOCK = "lock"
_REQUESTS = "requests.jsonl"
_ONE = "run.journal"
_MOST_JOB_BYTES = 8_000_000
"""Bytes of an order. Its request comes from a command line, which holds at most a megabyte, and may be escaped."""
_MOST_LINE_BYTES = 8 * MAX_LINE
"""Bytes of a line of requests, which may be escaped, too."""
_LINE = re.compile(r"line-(\d{6,18})\.journal")


class FolderError(UserError):
    """The folder can't be used for the command: it is another job's, in use, or no folder of a job."""


@attrs.frozen(kw_only=True)
class Order:
    """The definition of a job: everything that `agentloop resume` needs to continue it.

    `folder` is the working folder, on which tools and imports may rely. `request` is None if the job has many requests;
    these are in their own file. `sandbox` is the folder of its runs' sandboxes, None if they have none. `context`
    names the context of its runs, as `target` names the agent.
    """

    target: str
    folder: str
    request: str | None
    model: str | None = None
    max_turns: int = 10
    sandbox: str | None = None
    context: str | None = None


_OF_PROGRAM = "; a program resumes its own journal: Runner.resume"


@attrs.frozen
class Folder:
    """A job's folder on the disk. `name` is the user's own name for it, quoted for the commands shown to the user."""

    path: Path
    name: str

    @classmethod
    def at(cls, given: str) -> Folder:
        """Return the folder at *given*. Its path is absolute, since this process may change its working folder."""
        return cls(Path(given).absolute(), shlex.quote(given))

    @property
    def requests(self) -> Path:
        """The file of a job's many requests."""
        return self.path / _REQUESTS

    def journal(self, line: int | None = None) -> Path:
        """Return the path of the journal of the only request, or of the request in *line*."""
        return self.path / (_ONE if line is None else f"line-{line:06}.journal")

    def journals(self) -> list[tuple[int | None, Path]]:
        """Return the path of every existing journal with its line number (None for the only one), in order of lines."""
        found = [(int(match[1]), path) for path in self.path.iterdir() if (match := _LINE.fullmatch(path.name))]
        one = [(None, self.journal())] if self.journal().exists() else []
        return [*one, *sorted(found)]

    def holds_job(self) -> bool:
        """Tell whether the folder has the order of a job."""
        return (self.path / _JOB).exists()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder against every other `run` and `resume`, until the block is left or the process dies.

        Raises:
            FolderError: if another process has locked it.
        """
        descriptor = open_lock_file(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                # Not a file with a process id: the kernel releases this lock also if the process is killed.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._refuse("another agentloop is at work on it")
            yield
        finally:
            close_lock_file(descriptor)

    def make(self) -> None:
        """Create the folder if it doesn't exist, readable by its owner only, since journals hold private data.

        Raises:
            FolderError: if the path isn't a folder, or it can't be created.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._refuse(f"it can't be made a folder: {error.strerror or error}")
        self._check_ours()

    def _check_ours(self) -> None:
        """Check that the folder and what it holds belong to this user, and that no other can write to them.

        Raises:
            FolderError: if not; says what to do.
        """
        user = os.geteuid()
        for path in (self.path, *self.path.iterdir()):
            try:
                state = path.stat()
            except OSError:  # a link that leads nowhere: reading it fails, too
                continue
            name = "the folder" if path == self.path else path.name
            if state.st_uid != user:
                self._refuse(
                    f"{name} belongs to another user (id {state.st_uid}), and the code that a job names runs as you. "
                    "Copy the folder if you trust it"
                )
            if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                self._refuse(
                    f"others can write to {name}, and the code that a job names runs as you. "
                    f"If you trust it: chmod -R go-w {self.name}"
                )

    def begin(self, order: Order) -> None:
        """Write *order*, or check that the folder has an equal one. The folder must be locked (`held`).

        Raises:
            FolderError: if the folder has another order (it names the difference), or other files.
        """
        if self.holds_job():
            known = self.read()
            for field in attrs.fields(Order):
                old, new = getattr(known, field.name), getattr(order, field.name)
                if old != new:
                    self._refuse(
                        f"it is another job's: {_describe_difference(field.name, old, new)}. "
                        f"Give another folder, or go on with that job: agentloop resume {self.name}"
                    )
            return
        others = sorted(set(os.listdir(self.path)) - {_LOCK, _NEW_JOB})
        if others:
            self._refuse(f"it is no job's and holds other things, {others[0]!r} for one: give an empty or a new folder")
        self._write(order)

    def begun_here(self) -> bool:
        """Tell whether the job began in this folder: it wasn't copied, moved or unpacked since.

        Raises:
            FolderError: as for `read`.
        """
        return self._load().get("place") == self._place()

    def adopt(self, order: Order) -> None:
        """Note that the job, which may have begun elsewhere, continues in this folder. The folder must be locked."""
        self._write(order)

    def _place(self) -> dict[str, Any]:
        """Return what a folder that comes from elsewhere can't know: where it is here, and its number on the disk."""
        return {"path": os.path.realpath(self.path), "inode": self.path.stat().st_ino}

    def _write(self, order: Order) -> None:
        """Write the order atomically and durably: after a crash the file is complete or missing."""
        new = self.path / _NEW_JOB
        data = {"version": _VERSION, "place": self._place(), **attrs.asdict(order)}
        with open(new, "w", encoding="utf-8", opener=open_private) as file:
            json.dump(data, file, ensure_ascii=True, indent=1)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path / _JOB)
        sync_folder(self.path)
        sync_folder(self.path.parent)

    def read(self) -> Order:
        """Return the order of the job in this folder.

        Raises:
            FolderError: if there is no job, its order can't be read, or others could have written it.
        """
        data = self._load()
        self._check_ours()
        return self._to_order(data)

    def _load(self) -> dict[str, Any]:
        try:
            with open_regular(self.path / _JOB) as file:
                text = file.read(_MOST_JOB_BYTES + 1)
            if len(text) > _MOST_JOB_BYTES:
                self._refuse(f"its {_JOB} is longer than any that `agentloop run` writes")
            data = json.loads(text)
        except NotADirectoryError:
            self._refuse(f"no job is there: expected a folder of `agentloop run --journal`, got a file{_OF_PROGRAM}")
        except FileNotFoundError:
            is_of_program = self.path.is_dir() and journal_files(self.path)
            self._refuse(f"no job is there: `agentloop run --journal` makes one{_OF_PROGRAM if is_of_program else ''}")
        except RecursionError:
            self._refuse(f"its {_JOB} can't be read: it is nested too deeply")
        except (OSError, ValueError) as error:
            self._refuse(f"its {_JOB} can't be read: {getattr(error, 'strerror', None) or error}")
        if not isinstance(data, dict):
            self._refuse(f"its {_JOB} isn't what `agentloop run` wrote")
        if data.get("version") != _VERSION:
            self._refuse(f"its {_JOB} is of version {data.get('version')!r}; version {_VERSION} is known")
        return data

    def _to_order(self, data: dict[str, Any]) -> Order:
        optional = (str, type(None))
        kinds: dict[str, Any] = {"target": str, "folder": str, "request": optional, "model": optional, "max_turns": int}
        kinds["sandbox"] = kinds["context"] = optional
        data = {"sandbox": None, "context": None, "place": None, **data}  # folders of older versions lack these
        if set(data) == {"version", "place", *kinds}:
            wrong = [name for name, kind in kinds.items() if not isinstance(data[name], kind)]
            if not wrong:
                return Order(**{name: data[name] for name in kinds})
        self._refuse(f"its {_JOB} isn't what `agentloop run` wrote")

    def refusal(self, words: str) -> FolderError:
        """Return an error with the path of this folder and *words*."""
        return FolderError(f"{self.path}: {words}")

    def _refuse(self, words: str) -> NoReturn:
        raise self.refusal(words) from None


def _describe_difference(name: str, old: object, new: object) -> str:
    if name == "request" and None in (old, new):
        return "it answers one request, not many" if new is None else "it answers many requests, not one"
    return f"its {name} is {old!r}, not {new!r}"


def sync_folder(path: Path) -> None:
    """Flush the file names of a folder to the disk, so that they survive a power failure. Blocks."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Requests(Protocol):
    """A source of requests for a batch."""

    async def next(self) -> InputLine | None:
        """Wait for the next line that isn't blank, and return it; None after the last."""
        ...


class KeptRequests:
    """Requests of a job: first those in the folder's file, then further ones from *given*, which it stores in the file.

    *given* must begin with the stored requests. Used by one process at a time, which has locked the folder.

    Attributes:
        is_whole: True once the input was read to its end, in this or an earlier process.
    """

    def __init__(self, folder: Folder, given: Lines | None) -> None:
        self.is_whole: bool = False
        self._folder = folder
        self._given = given
        self._known = self._read_stored()
        self._size = 0
        self._count = 0

    def count_stored(self) -> int:
        """Return how many requests the folder has. Call it before the first `next`. Reads the file; blocks.

        Raises:
            FolderError: the file is damaged.
        """
        return sum(1 for _ in self._read_stored())

    async def keep_all(self) -> None:
        """Read and store the whole input, or check that the stored one is equal; then start again with the first line.

        Raises:
            FolderError: if the input differs from the stored one.
        """
        while await self.next() is not None:
            pass
        self._given, self._known, self._count = None, self._read_stored(), 0

    async def next(self) -> InputLine | None:
        """Wait for the next line, store it durably, and return it; None after the last.

        Raises:
            FolderError: if the input differs from the stored one.
        """
        known = next(self._known, None)
        if known is not None:
            self._count += 1
            await self._check(known)
            return known
        if self._given is None:
            return None
        line = await self._given.next()
        if self.is_whole:
            if line is not None:
                raise self._folder.refusal(f"it is another input's: that one ended before line {line.number}")
            return None
        if line is None:
            await anyio.to_thread.run_sync(self._append, {"end": self._count})
            self.is_whole = True
            return None
        self._count += 1
        await anyio.to_thread.run_sync(self._append, _to_json(line))
        return line

    async def _check(self, known: InputLine) -> None:
        if self._given is None:
            return
        line = await self._given.next()
        if line is None:
            raise self._folder.refusal(f"it is another input's: that one has more lines, line {known.number} for one")
        if line != known:
            number = min(line.number, known.number)
            raise self._folder.refusal(f"it is another input's: line {number} was another one")

    def _read_stored(self) -> Iterator[InputLine]:
        """Yield the stored lines, and set `_size` to their bytes. A last line that a crash has torn is dropped."""
        try:
            file = open_regular(self._folder.requests)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._folder.refusal(f"its {_REQUESTS} can't be read: {error.strerror}") from error
        with file:
            self._size = 0
            while raw := file.readline(_MOST_LINE_BYTES):
                if not raw.endswith(b"\n"):
                    return
                self._size += len(raw)
                data = self._parse(raw)
                if "end" in data:
                    self.is_whole = True
                    return
                yield InputLine(data["line"], data["text"], data.get("error"))

    def _parse(self, raw: bytes) -> dict[str, Any]:
        try:
            data = json.loads(raw)
            if "end" in data or (isinstance(data["line"], int) and isinstance(data["text"], str)):
                return dict(data)
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        raise self._folder.refusal(f"its {self._folder.requests.name} is damaged")

    def _append(self, data: dict[str, Any]) -> None:
        """Append one line durably, over a torn last line if there is one. Blocks: call it in a thread."""
        path = self._folder.requests
        is_new = not path.exists()
        text = json.dumps(data).encode() + b"\n"
        with open(path, "ab", opener=open_private) as file:
            file.truncate(self._size)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(path.parent)
        self._size += len(text)


def _to_json(line: InputLine) -> dict[str, Any]:
    data: dict[str, Any] = {"line": line.number, "text": line.text}
    return data if line.error is None else {**data, "error": line.error}
