"""A client of an ASGI application in the same process: it sends one request, reads frames, and leaves when it likes."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
from anyio.lowlevel import checkpoint

from agentloop.asgi._http import ASGIApp
from agentloop.journal import FileJournal

Data = dict[str, Any]


@attrs.frozen
class Frame:
    """One server-sent event: its kind, its id or None, its data; a comment has the kind `comment`."""

    kind: str
    number: str | None
    data: Any


def parse_frames(text: bytes) -> list[Frame]:
    """Return the frames in *text*, which ends with a whole one."""
    frames = []
    for block in text.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        if "" in fields:
            frames.append(Frame("comment", None, fields[""]))
        else:
            data = json.loads(fields["data"])
            assert data["type"] == fields["event"]
            frames.append(Frame(fields["event"], fields.get("id"), data))
    return frames


@attrs.define(eq=False)
class Exchange:
    """One request and its response so far."""

    _pieces: list[bytes] = attrs.field(factory=list)
    _changed: anyio.Event = attrs.field(factory=anyio.Event)
    status: int | None = None
    headers: dict[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    is_whole: bool = False
    has_returned: bool = False
    left: anyio.Event = attrs.field(factory=anyio.Event)
    stuck: bool = False
    """True to take nothing more: `send` then waits, as that of a server whose client doesn't read."""

    def leave(self) -> None:
        """Close the connection."""
        self.left.set()

    def note(self) -> None:
        """Wake the tasks that wait for a change."""
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def until(self, condition: Any) -> None:
        """Wait until *condition* holds, or the application has returned; then it must hold."""
        while not condition() and not self.has_returned:
            await self._changed.wait()
        assert condition(), (self.status, self.body)

    @property
    def frames(self) -> list[Frame]:
        """The whole frames so far, without comments."""
        return [frame for frame in parse_frames(self.body[: self.body.rfind(b"\n\n") + 2]) if frame.kind != "comment"]

    @property
    def kinds(self) -> list[str]:
        """The kinds of the frames so far."""
        return [frame.kind for frame in self.frames]

    @property
    def json(self) -> Any:
        """The body, a JSON text."""
        return json.loads(self.body)

    async def frame(self, kind: str, count: int = 1) -> Frame:
        """Wait for the *count*th frame of a kind, and return it."""
        await self.until(lambda: self.kinds.count(kind) >= count)
        return [frame for frame in self.frames if frame.kind == kind][count - 1]

    async def end(self) -> "Exchange":
        """Wait until the application has returned."""
        while not self.has_returned:
            await self._changed.wait()
        return self


@asynccontextmanager
async def send_request(
    app: ASGIApp,
    method: str,
    path: str,
    body: Data | bytes | None = None,
    headers: Mapping[str, str] | None = None,
    **scope: Any,
) -> AsyncIterator[Exchange]:
    """Send a request, and yield the exchange; leaving the block closes the connection and waits for the application.

    A body of bytes is sent as it is, with the content type of JSON. *scope* replaces fields of the ASGI scope.
    """
    exchange = Exchange()
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    usual = {"content-type": "application/json", "content-length": str(len(content))}
    pairs = [(name.encode(), value.encode()) for name, value in {**usual, **(headers or {})}.items()]
    whole = {"type": "http", "method": method, "path": path, "root_path": "", "headers": pairs, "query_string": b""}
    sent = False

    async def receive() -> Any:
        nonlocal sent
        if not sent:
            sent = True
            await checkpoint()
            return {"type": "http.request", "body": content, "more_body": False}
        await exchange.left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        await checkpoint()
        if exchange.left.is_set():
            raise OSError("the client has left")
        if exchange.stuck:
            await exchange.left.wait()
            return
        if message["type"] == "http.response.start":
            exchange.status = message["status"]
            exchange.headers = {key.decode(): value.decode() for key, value in message["headers"]}
        else:
            exchange.body += message.get("body", b"")
            exchange.is_whole = not message.get("more_body", False)
        exchange.note()

    async def call() -> None:
        try:
            await app({**whole, **scope}, receive, send)
        finally:
            exchange.has_returned = True
            exchange.note()

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        try:
            yield exchange
        finally:
            exchange.leave()


async def ask(app: ASGIApp, method: str, path: str, body: Data | bytes | None = None, **more: Any) -> Exchange:
    """Send a request, wait for the whole response, and return it."""
    async with send_request(app, method, path, body, **more) as exchange:
        return await exchange.end()


async def cut_journal(path: Path) -> None:
    """Leave the records of a journal up to the first turn's start, as a crash does."""
    async with FileJournal(path) as journal:
        records = await journal.read()
    kinds = [json.loads(record)["kind"] for record in records]
    await anyio.Path(path).unlink()
    async with FileJournal(path) as journal:
        await journal.append(records[: 1 + kinds.index("turn_started")])
