"""The timeline of a growing journal as a page that a browser on this machine keeps up to date.

One task looks for changes of the journal's files, reads the journal whole when there are some, and folds it, in a
worker thread; then it wakes the tasks of the connections. Each of these sends the rows that differ from those it has
sent before, and the moments that have come since, as a server-sent event. Two looks are as far apart as the last read
took, and at least a fifth of a second: a long journal can't take all of a processor.

The server listens at 127.0.0.1 only. Other users of the machine may reach that address, and so may pages of other
sites by a name that leads there: each request must have the secret path that the command has printed, and the server's
own address as its host.

A connection ends with its answer, with its client, or after ten seconds without a whole request; earlier if there are
too many and it is the oldest of these. All of it ends with
the scope around `serve_timeline`.

Decisions:

`trace --follow` reads the journal again at each change, verifies all of its lines, decodes and folds the new ones,
and sends the rows that differ, and the new moments. Rejected: reading only what was appended: a journal that was
damaged or replaced meanwhile would go unseen, and the check of ten thousand lines takes 50 ms. Its server is h11,
which httpx brings along: an ASGI server would be a dependency for two addresses.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import anyio.to_thread
import attrs
import h11

from agentloop._common.json_bytes import encode_shown
from agentloop._common.web_names import WebNames
from agentloop.cli import errors
from agentloop.exceptions import AgentLoopError
from agentloop.tracing import Timeline
from agentloop.tracing._timeline_page import FACT_CHARS, head_to_json, moments_to_json, render_follow_page, row_to_json
from agentloop.tracing._timeline_words import name_canceller

if TYPE_CHECKING:
    from agentloop.lab._moments import MomentLog

HOST = "127.0.0.1"
LEAST_PAUSE = 0.2
"""Seconds between two looks at the journal."""
_PATIENCE = 10.0
"""Seconds that a client has for its request."""
_SIGN_OF_LIFE = 15.0
_CHUNK = 65_536
_MOST_CONNECTIONS = 100
"""Connections at the same time. Each holds a descriptor, and anyone here may connect: so a further one takes the place
of the oldest that has sent no whole request, and is closed if there is none."""
_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, h11.RemoteProtocolError, OSError)
"""Errors of a client that has gone, or speaks something else than HTTP."""
_Rows = list[bytes]
_PARTS = ("lines", "calls", "steps")


@attrs.frozen(eq=False)
class SentMoments:
    """The moments of a journal up to some time: `log` grows, and `counts` says how much of each of its lists counts."""

    log: MomentLog | None = None
    counts: tuple[int, ...] = (0, 0, 0)
    start: float = 0.0

    @classmethod
    def of(cls, log: MomentLog | None, start: float) -> SentMoments:
        """Return what *log* has now; times count from *start*."""
        return cls() if log is None else cls(log, tuple(len(getattr(log, name)) for name in _PARTS), start)

    def since(self, sent: SentMoments) -> bytes:
        """Return JSON text of what has come since *sent*, all of it if that was of another journal; empty if nothing.

        `from` says how many of the steps before stay: all, or none.
        """
        if self.log is None or (self.log is sent.log and self.counts == sent.counts):
            return b""
        known = sent.counts if self.log is sent.log else (0, 0, 0)
        parts = {
            name: getattr(self.log, name)[first:after]
            for name, first, after in zip(_PARTS, known, self.counts, strict=True)
        }
        return encode_shown({"from": known[-1], **moments_to_json(parts, self.start, FACT_CHARS[0])})


@attrs.define(eq=False)
class FollowedJournal:
    """The latest timeline of a journal, for every connection. Its fields are set by `watch` only.

    `rows` has the JSON text of each row, `moments` the state after each record, `head` the JSON text of the rest.
    `damage` says why the journal can't be read, if it can't. `changed` is set, and replaced, at each change.
    """

    stamp: Callable[[], object]
    """Returns a value that is another one when the journal has changed. May block, as `read` may."""
    read: Callable[[], tuple[Timeline, MomentLog | None]]
    rows: _Rows = attrs.field(factory=list)
    moments: SentMoments = attrs.field(factory=SentMoments)
    head: bytes = b""
    damage: str | None = None
    changed: anyio.Event = attrs.field(factory=anyio.Event)
    _encoded: list[tuple[tuple[object, ...], bytes]] = attrs.field(factory=list, init=False)

    async def watch(self) -> None:
        """Keep the timeline up to date, until cancelled."""
        known: object = None
        again = False
        while True:
            started = anyio.current_time()
            stamp = await anyio.to_thread.run_sync(self.stamp)
            changed = stamp != known
            if changed or again:
                known = stamp
                await self._update()
            # A database writes to its files a moment before it shows what it wrote: a look between the two sees only
            # the new stamp. So the look after each change reads once more.
            again = changed
            await anyio.sleep(max(LEAST_PAUSE, anyio.current_time() - started))

    async def _update(self) -> None:
        before = (self.head, self.rows, self.damage)
        try:
            self.head, self.rows, self.moments = await anyio.to_thread.run_sync(self._encode)
            self.damage = None
        except AgentLoopError as error:
            self.damage = errors.message_of(error)
        if before != (self.head, self.rows, self.damage):
            self.changed.set()
            self.changed = anyio.Event()

    def _encode(self) -> tuple[bytes, _Rows, SentMoments]:
        """Read the timeline, and encode it. Blocks. Rows that are as they were aren't encoded again."""
        timeline, moments = self.read()
        cancellers = name_canceller(timeline)
        old = self._encoded
        new: list[tuple[tuple[object, ...], bytes]] = []
        for position, row in enumerate(timeline.rows):
            by = cancellers.get(position, [])
            origin = (timeline.start, by, row)
            if position >= len(old) or old[position][0] != origin:
                text = encode_shown(row_to_json(row, timeline.start, by, FACT_CHARS[0]))
                new.append((origin, text))
            else:
                new.append(old[position])
        self._encoded = new
        head, rows = encode_shown(head_to_json(timeline)), [text for _, text in new]
        return head, rows, SentMoments.of(moments, timeline.start)


def format_change(head: bytes, rows: _Rows, sent: _Rows, moments: bytes = b"") -> bytes:
    """Return the server-sent event that turns the rows *sent* into *rows*, with the *moments* that have come since."""
    changed = [b"[%d,%b]" % (index, row) for index, row in enumerate(rows) if index >= len(sent) or sent[index] != row]
    more = b',"moments":%b' % moments if moments else b""
    data = b'{"count":%d,"head":%b,"rows":[%b]%b}' % (len(rows), head, b",".join(changed), more)
    return b"event: change\ndata: %b\n\n" % data


async def serve_timeline(
    stamp: Callable[[], object],
    read: Callable[[], tuple[Timeline, MomentLog | None]],
    *,
    started: Callable[[str], None],
) -> None:
    """Serve the timeline and moments that *read* gives, read again when *stamp* gives another value, until cancelled.

    Calls *started* with the page's address once it can be opened.

    Raises:
        OSError: if no port can be opened.
    """
    token = secrets.token_urlsafe(16)
    followed = FollowedJournal(stamp, read)
    listener = await anyio.create_tcp_listener(local_host=HOST, local_port=0)
    async with listener, anyio.create_task_group() as tasks:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.start_soon(followed.watch)
        started(f"http://{HOST}:{port}/{token}/")
        server = _Server(followed, token, WebNames.of([f"{HOST}:{port}", f"localhost:{port}"], ()))
        await listener.serve(server.handle)


@attrs.define(eq=False)
class _Server:
    """Answers one connection after the other, each in its own task."""

    followed: FollowedJournal
    token: str
    names: WebNames
    _connections: dict[anyio.CancelScope, bool] = attrs.field(factory=dict, init=False)
    """Of each connection, the oldest first, whether it has sent its request. The scope ends it."""

    async def handle(self, stream: anyio.abc.SocketStream) -> None:
        """Answer the one request of a connection, and close it."""
        async with stream:
            with anyio.CancelScope() as scope, contextlib.suppress(*_GONE):
                if not self._make_room():
                    return
                self._connections[scope] = False
                try:
                    await self._answer(_PageRequest(stream), scope)
                finally:
                    self._connections.pop(scope, None)

    def _make_room(self) -> bool:
        """End the oldest connection without a request if there are too many; False if each has sent one."""
        if len(self._connections) < _MOST_CONNECTIONS:
            return True
        oldest = next((scope for scope, has_asked in self._connections.items() if not has_asked), None)
        if oldest is not None:
            del self._connections[oldest]
            oldest.cancel()
        return oldest is not None

    async def _answer(self, exchange: _PageRequest, scope: anyio.CancelScope) -> None:
        request: h11.Request | None = None
        with anyio.move_on_after(_PATIENCE):
            request = await exchange.receive()
        if request is None or scope.cancel_called:
            return
        self._connections[scope] = True
        headers = {name: value.decode("latin-1") for name, value in request.headers}
        host, origin = headers.get(b"host"), headers.get(b"origin")
        is_ours = self.names.takes_host(host, HOST) and self.names.takes_origin(origin, host)
        if not is_ours or request.method != b"GET":
            await exchange.send_whole(403, b"text/plain", b"This address answers its own page alone.\n")
        elif secrets.compare_digest(request.target, f"/{self.token}/".encode()):
            await exchange.send_whole(200, b"text/html; charset=utf-8", render_follow_page().encode())
        elif secrets.compare_digest(request.target, f"/{self.token}/events".encode()):
            await self._stream(exchange)
        else:
            await exchange.send_whole(404, b"text/plain", b"There is no such page.\n")

    async def _stream(self, exchange: _PageRequest) -> None:
        await exchange.send_head(200, b"text/event-stream")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_with_client, exchange, tasks.cancel_scope)
            with contextlib.suppress(*_GONE):
                await self._send_changes(exchange)
            tasks.cancel_scope.cancel()

    async def _end_with_client(self, exchange: _PageRequest, scope: anyio.CancelScope) -> None:
        await exchange.wait_closed()
        scope.cancel()

    async def _send_changes(self, exchange: _PageRequest) -> None:
        """Send each change as an event, until the client has gone."""
        followed = self.followed
        sent: _Rows = []
        moments = SentMoments()
        head, damage = b"", None
        while True:
            changed = followed.changed  # before the looks, so that no change is missed
            if followed.damage is not None:
                if followed.damage != damage:
                    await exchange.send(b"event: damaged\ndata: %b\n\n" % encode_shown(followed.damage))
            elif followed.head and (followed.head, followed.rows) != (head, sent):
                event = format_change(followed.head, followed.rows, sent, followed.moments.since(moments))
                head, sent, moments = followed.head, followed.rows, followed.moments
                await exchange.send(event)
            damage = followed.damage
            with anyio.move_on_after(_SIGN_OF_LIFE) as waited:
                await changed.wait()
            if waited.cancelled_caught:
                await exchange.send(b": still here\n\n")


@attrs.define(eq=False, init=False)
class _PageRequest:
    """A connection, its one request and the answer."""

    _stream: anyio.abc.SocketStream
    _http: h11.Connection
    _wants_head: bool

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.SERVER)
        self._wants_head = False

    async def receive(self) -> h11.Request | None:
        """Return the request; None if the client closes the connection before.

        Raises:
            h11.RemoteProtocolError: if it is none.
        """
        event: Any = self._http.next_event()
        while event is h11.NEED_DATA:
            try:
                data = await self._stream.receive(_CHUNK)
            except anyio.EndOfStream:
                data = b""
            self._http.receive_data(data)
            event = self._http.next_event()
        if not isinstance(event, h11.Request):
            return None
        self._wants_head = event.method == b"HEAD"
        return event

    async def wait_closed(self) -> None:
        """Wait until the client closes the connection; what it sends meanwhile is dropped."""
        with contextlib.suppress(*_GONE):
            while True:
                await self._stream.receive(_CHUNK)

    async def send_head(self, status: int, kind: bytes, length: int | None = None) -> None:
        """Begin the answer."""
        headers = [
            (b"content-type", kind),
            (b"cache-control", b"no-store"),
            (b"referrer-policy", b"no-referrer"),
            (b"x-content-type-options", b"nosniff"),
            (b"connection", b"close"),
        ]
        headers += [] if length is None else [(b"content-length", b"%d" % length)]
        await self._send(h11.Response(status_code=status, headers=headers))

    async def send(self, data: bytes) -> None:
        """Send a part of the answer."""
        await self._send(h11.Data(data=data))

    async def send_whole(self, status: int, kind: bytes, body: bytes) -> None:
        """Send a whole answer; one to the method HEAD has no body."""
        await self.send_head(status, kind, len(body))
        if not self._wants_head:
            await self.send(body)
        await self._send(h11.EndOfMessage())

    async def _send(self, event: Any) -> None:
        data = self._http.send(event)
        if data:
            await self._stream.send(data)


def stamp_files(path: Path) -> object:
    """Return a value that is another one when the journal at *path* has changed. Blocks."""
    found = []
    for file in (path, path.with_name(f"{path.name}-wal")):  # SQLite writes to one beside it first
        try:
            state = file.stat()
        except OSError:
            continue
        found.append((file.name, state.st_ino, state.st_size, state.st_mtime_ns))
    return found
