"""The requests of a job, kept before they are answered, so that the job can go on without whoever gave them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, Protocol

import anyio.to_thread

from agentloop.cli.folder import Folder, sync_folder
from agentloop.cli.streams import Line, Lines


class Requests(Protocol):
    """Where a batch has its requests from."""

    async def next(self) -> Line | None:
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

    async def next(self) -> Line | None:
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

    async def _check(self, known: Line) -> None:
        if self._given is None:
            return
        line = await self._given.next()
        if line is None:
            raise self._folder.refusal(f"it is another input's: that one has more lines, line {known.number} for one")
        if line != known:
            number = min(line.number, known.number)
            raise self._folder.refusal(f"it is another input's: line {number} was another one")

    def _stored(self) -> Iterator[Line]:
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
                yield Line(data["line"], data["text"], data.get("error"))

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


def _to_json(line: Line) -> dict[str, Any]:
    data: dict[str, Any] = {"line": line.number, "text": line.text}
    return data if line.error is None else {**data, "error": line.error}
