"""A scripted server of Responses over WebSocket: real sockets on the loopback interface, in threads, for any loop.

As the vendor's does, it remembers the latest answer of each connection, and refuses a request that names another one.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import attrs
from edges.responses_fixture import make_stream
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

Json = dict[str, Any]
STALL = "stall"
"""Nothing more is sent until the client closes."""
DROP = "drop"
"""The connection breaks."""
Script = Callable[["SocketServer"], Sequence[Json | str]]


def message(text: str) -> Json:
    """Return a message of the model."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


def says(*output: Json) -> Callable[["SocketServer"], list[Json | str]]:
    """Return a script of an answer with *output*."""
    return lambda server: [*make_stream(output, id=f"resp_{len(server.frames)}")]


@attrs.define(eq=False)
class SocketServer:
    """The server: what it was sent, by connection, and how it answers."""

    script: Script
    url: str = ""
    frames: list[tuple[int, Json]] = attrs.field(factory=list)
    """The number of the connection, from 1, and the frame."""
    headers: list[dict[str, str]] = attrs.field(factory=list)
    connections: list[ServerConnection] = attrs.field(factory=list)
    forgets: bool = False
    """True if it remembers no answer."""
    lock: Any = attrs.field(factory=threading.Lock)
    changed: Any = attrs.field(factory=threading.Condition)
    answering: int = 0
    closed: threading.Event = attrs.field(factory=threading.Event)
    """Set when a client has closed a connection."""

    def inputs(self) -> list[int]:
        """Return how many items each frame sent."""
        return [len(frame["input"]) for _, frame in self.frames]

    def connection_numbers(self) -> list[int]:
        """Return the connection of each frame."""
        return [number for number, _ in self.frames]

    def wait_idle(self) -> None:
        """Wait until no answer is under way."""
        with self.changed:
            assert self.changed.wait_for(lambda: not self.answering, 10)

    @contextmanager
    def _answers(self) -> Iterator[None]:
        with self.changed:
            self.answering += 1
        try:
            yield
        finally:
            with self.changed:
                self.answering -= 1
                self.changed.notify_all()

    def serve(self, connection: ServerConnection) -> None:
        """Answer until the client goes."""
        with self.lock:
            self.connections.append(connection)
            number = len(self.connections)
        assert connection.request is not None
        self.headers.append({name.lower(): value for name, value in connection.request.headers.raw_items()})
        latest = None
        with suppress(ConnectionClosed):
            for text in connection:
                frame = json.loads(text)
                self.frames.append((number, frame))
                named = frame.get("previous_response_id")
                if named is not None and (named != latest or self.forgets):
                    error = {"type": "invalid_request_error", "code": "previous_response_not_found", "message": "no"}
                    connection.send(json.dumps({"type": "error", "status": 400, "error": error}))
                    continue
                events = self.script(self)
                with self._answers():
                    for event in events:
                        if event == DROP:
                            connection.socket.shutdown(socket.SHUT_RDWR)
                        elif event == STALL:
                            connection.recv()
                        else:
                            connection.send(json.dumps(event, indent=1))
                last = events[-1]
                latest = last.get("response", {}).get("id") if isinstance(last, dict) else None
        self.closed.set()


@contextmanager
def socket_server(script: Script) -> Iterator[SocketServer]:
    """Serve on a free port until the block is left."""
    server = SocketServer(script)
    # A client that reads nothing at the moment doesn't answer a close frame: the server's own patience is 10 s.
    with serve(server.serve, "127.0.0.1", 0, close_timeout=0.1) as listening:
        server.url = f"http://127.0.0.1:{listening.socket.getsockname()[1]}/v1"
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
