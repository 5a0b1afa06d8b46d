"""The folder of `--journal`: what its requests are, which process works on it, and a journal for each request.

The requests are kept before they are answered, so that `agentloop resume` needs nobody who gave them.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Protocol

import anyio.to_thread
import attrs

from agentloop.cli.streams import InputLine, Lines
from agentloop.exceptions import UserError

_VERSION = 1
_JOB = "job.json"
_NEW_JOB = ".job.json.new"
_LOCK = "lock"
_REQUESTS = "requests.jsonl"
_ONE = "run.journal"
_LINE = re.compile(r"line-(\d{6,18})\.journal")


class FolderError(UserError):
    """The folder isn't what the command needs: another job's, in use, or not one of ours."""


@attrs.frozen(kw_only=True)
class Order:
    """What a job is: all that `agentloop resume` must know to go on with it.

    `folder` is the folder it works in, which its tools and imports may rely on. `request` is None where the requests
    are many; they stand in a file of their own.
    """

    target: str
    folder: str
    request: str | None
    model: str | None = None
    max_turns: int = 10


@attrs.frozen
class Folder:
    """The folder as it is on the disk. `name` is how the user called it, for the commands he is told of."""

    path: Path
    name: str

    @classmethod
    def at(cls, given: str) -> Folder:
        """Return the folder at *given*, wherever this process will be working later."""
        return cls(Path(given).absolute(), shlex.quote(given))

    @property
    def requests(self) -> Path:
        """The file of a job's many requests."""
        return self.path / _REQUESTS

    def journal(self, line: int | None = None) -> Path:
        """Return where the journal of the one request is, or of the one in *line*."""
        return self.path / (_ONE if line is None else f"line-{line:06}.journal")

    def journals(self) -> list[tuple[int | None, Path]]:
        """Return every journal there is, with its line, in order of lines."""
        found = [(int(match[1]), path) for path in self.path.iterdir() if (match := _LINE.fullmatch(path.name))]
        one = [(None, self.journal())] if self.journal().exists() else []
        return [*one, *sorted(found)]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep every other `run` and `resume` away, until the block is left or the process dies.

        Raises:
            FolderError: if one is at work already.
        """
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._refuse("another agentloop is at work on it")
            yield
        finally:
            os.close(descriptor)

    def make(self) -> None:
        """Make the folder where there is none; what runs keep is nobody else's to read.

        Raises:
            FolderError: if there is something else, or it can't be made.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._refuse(f"it can't be made a folder: {error.strerror or error}")

    def begin(self, order: Order) -> None:
        """Write *order*, or find that the folder holds that very one; the folder must be held.

        Raises:
            FolderError: naming what differs, or that other things are there.
        """
        if (self.path / _JOB).exists():
            known = self.read()
            for field in attrs.fields(Order):
                old, new = getattr(known, field.name), getattr(order, field.name)
                if old != new:
                    self._refuse(
                        f"it is another job's: {_difference(field.name, old, new)}. "
                        f"Give another folder, or go on with that job: agentloop resume {self.name}"
                    )
            return
        others = sorted(set(os.listdir(self.path)) - {_LOCK, _NEW_JOB})
        if others:
            self._refuse(f"it is no job's and holds other things, {others[0]!r} for one: give an empty or a new folder")
        self._write(order)

    def _write(self, order: Order) -> None:
        """Put the order there whole or not at all, and on the disk, before anything of the job happens."""
        new = self.path / _NEW_JOB
        with new.open("w", encoding="utf-8") as file:
            json.dump({"version": _VERSION, **attrs.asdict(order)}, file, ensure_ascii=True, indent=1)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path / _JOB)
        sync_folder(self.path)
        sync_folder(self.path.parent)

    def read(self) -> Order:
        """Return what the job is.

        Raises:
            FolderError: if no job is there, or what is there can't be read.
        """
        try:
            data = json.loads((self.path / _JOB).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            self._refuse("no job is there: `agentloop run --journal` makes one")
        except (OSError, ValueError) as error:
            self._refuse(f"its {_JOB} can't be read: {error}")
        if isinstance(data, dict) and data.get("version") != _VERSION:
            self._refuse(f"its {_JOB} is of version {data.get('version')!r}; version {_VERSION} is known")
        return self._order(data)

    def _order(self, data: Any) -> Order:
        optional = (str, type(None))
        kinds: dict[str, Any] = {"target": str, "folder": str, "request": optional, "model": optional, "max_turns": int}
        if isinstance(data, dict) and set(data) == {"version", *kinds}:
            wrong = [name for name, kind in kinds.items() if not isinstance(data[name], kind)]
            if not wrong:
                return Order(**{name: data[name] for name in kinds})
        self._refuse(f"its {_JOB} isn't what `agentloop run` wrote")

    def refusal(self, words: str) -> FolderError:
        """Return the error that says of this folder what *words* say."""
        return FolderError(f"{self.path}: {words}")

    def _refuse(self, words: str) -> NoReturn:
        raise self.refusal(words) from None


def _difference(name: str, old: object, new: object) -> str:
    if name == "request" and None in (old, new):
        return "it answers one request, not many" if new is None else "it answers many requests, not one"
    return f"its {name} is {old!r}, not {new!r}"


def sync_folder(path: Path) -> None:
    """Wait until the names in the folder outlive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Requests(Protocol):
    """Where a batch has its requests from."""

    async def next(self) -> InputLine | None:
        """Return the next line that says something, or None after the last."""
        ...


class KeptRequests:
    """Requests that stand in a folder's file, as far as they have been read; more are read from *given* and kept.

    What *given* says again must be what stands there. Used by one process at a time, which holds the folder.

    Attributes:
        is_whole: Whether the input has been read to its end, now or by an earlier process.
    """

    def __init__(self, folder: Folder, given: Lines | None) -> None:
        self.is_whole = False
        self._folder = folder
        self._given = given
        self._known = self._stored()
        self._size = 0
        self._count = 0

    async def keep_all(self) -> None:
        """Read all of the input and keep it, or find that it is the one that stands there.

        Raises:
            FolderError: if it is another one.
        """
        while await self.next() is not None:
            pass
        self._given, self._known, self._count = None, self._stored(), 0

    async def next(self) -> InputLine | None:
        """Return the next line, which is durable then.

        Raises:
            FolderError: if the input says something else than it did.
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

    def _stored(self) -> Iterator[InputLine]:
        """Yield the lines that stand in the file. A last one that a crash has torn is left out."""
        try:
            file = self._folder.requests.open("rb")
        except FileNotFoundError:
            return
        with file:
            self._size = 0
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                self._size += len(raw)
                data = self._parsed(raw)
                if "end" in data:
                    self.is_whole = True
                    return
                yield InputLine(data["line"], data["text"], data.get("error"))

    def _parsed(self, raw: bytes) -> dict[str, Any]:
        try:
            data = json.loads(raw)
            if "end" in data or (isinstance(data["line"], int) and isinstance(data["text"], str)):
                return dict(data)
        except (ValueError, TypeError, KeyError):
            pass
        raise self._folder.refusal(f"its {self._folder.requests.name} is damaged")

    def _append(self, data: dict[str, Any]) -> None:
        """Write one line durably, in the place of a torn one."""
        path = self._folder.requests
        is_new = not path.exists()
        text = json.dumps(data).encode() + b"\n"
        with path.open("ab") as file:
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
