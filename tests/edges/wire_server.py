"""A server for tests: real sockets on the loopback interface, answers written by hand, the same on both backends."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
from anyio.abc import SocketAttribute, SocketStream

SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunked(data: bytes) -> bytes:
    """Return *data* as one chunk of a chunked body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@attrs.define(eq=False)
class Exchange:
    """One request as it came, and the connection to answer it on."""

    connection: SocketStream
    connection_number: int
    request: bytes

    async def send(self, data: bytes) -> None:
        await self.connection.send(data)

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        try:
            while await self.connection.receive():
                pass
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass


Answer = Callable[[Exchange], Awaitable[None]]


async def _request(connection: SocketStream) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += await connection.receive()
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        body += await connection.receive()
    return head + b"\r\n\r\n" + body


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """Serve on a free port; each request of a connection is handed to *answer* in turn. Gives the base URL.

    *answer* closes the connection to end it.
    """
    count = 0

    async def serve(connection: SocketStream) -> None:
        nonlocal count
        count += 1
        number = count
        async with connection:
            try:
                while True:
                    await answer(Exchange(connection, number, await _request(connection)))
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass

    listener: Any = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/v1"
        tasks.cancel_scope.cancel()
