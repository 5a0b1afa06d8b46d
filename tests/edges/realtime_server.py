"""A scripted server of the Realtime interface: real sockets on the loopback interface, in threads, for any event loop.

It is as strict as the vendor's: one response at a time, no output without its call, no call without its output, no id
twice. What it refuses is an error event. What it was sent stays in `Talk.events`.
"""

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import attrs
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response
from websockets.sync.server import ServerConnection, serve

Json = dict[str, Any]


@attrs.frozen
class Say:
    """A message in pieces."""

    pieces: tuple[str, ...]


@attrs.frozen
class Call:
    """A call of a function."""

    name: str
    arguments: str = "{}"
    call_id: str | None = None


@attrs.frozen
class Emit:
    """One event as it is; the response's id is filled in where it is `None`."""

    event: Json


@attrs.frozen
class Frame:
    """Bytes on the socket, as they are."""

    data: bytes


@attrs.frozen
class Text:
    """One message that need not be JSON."""

    data: str | bytes


@attrs.frozen
class Stall:
    """Nothing more is sent until the client cancels or closes."""

    deaf: bool = False
    """Also a cancellation isn't answered."""


@attrs.frozen
class Drop:
    """The connection breaks, with a goodbye of this code or without one."""

    code: int | None = None
    reason: str = ""
    reset: bool = False
    """The peer's next read or write fails, where else it would see the end."""


@attrs.frozen
class End:
    """The response ends with this status."""

    status: str
    details: Json | None = None
    output: bool = True
    """False: the last event's output is empty."""


Step = Say | Call | Emit | Frame | Text | Stall | Drop | End
Script = Callable[["Talk"], Iterable[Step]]


class Cancelled(Exception):
    """The client cancelled the response."""


@attrs.define(eq=False)
class Talk:
    """One connection, and the conversation on it."""

    number: int
    connection: ServerConnection
    server: "RealtimeServer"
    events: list[Json] = attrs.field(factory=list)
    items: dict[str, Json] = attrs.field(factory=dict)
    session: Json = attrs.field(factory=dict)
    responses: int = 0
    """Responses begun on this connection."""
    active: str | None = None
    acknowledge: bool = True

    def kinds(self) -> list[str]:
        """Return the types of the events that came, in order."""
        return [event["type"] for event in self.events]

    def last(self) -> Json:
        """Return the last item of the conversation."""
        return list(self.items.values())[-1]

    def texts(self) -> list[str]:
        """Return what the items say, in order."""
        return [_words(item) for item in self.items.values()]

    def send(self, kind: str, **fields: Any) -> None:
        self.server.sent += 1
        event = {"event_id": f"server_{self.server.sent}", "type": kind, **fields}
        self.connection.send(json.dumps(event))

    def fail(self, code: str, cause: Json, kind: str = "invalid_request_error") -> None:
        error = {"type": kind, "code": code, "message": f"refused: {code}", "event_id": cause.get("event_id")}
        self.send("error", error=error)

    def serve(self) -> None:
        """Answer until the client goes."""
        session_id = self.server.session_id or f"sess_{self.number}"
        self.send("session.created", session={"id": session_id, "type": "realtime", "model": "scripted"})
        while True:
            self.take(json.loads(self.connection.recv()))

    def take(self, event: Json) -> None:
        """Handle one event of the client."""
        self.events.append(event)
        match event["type"]:
            case "session.update":
                self.session |= event["session"]
                self.send("session.updated", session=self.session)
            case "conversation.item.create":
                self.add(event)
            case "conversation.item.delete":
                if self.items.pop(event["item_id"], None) is None:
                    self.fail("item_delete_invalid_item_id", event)
                else:
                    self.send("conversation.item.deleted", item_id=event["item_id"])
            case "response.create":
                self.create(event)
            case "response.cancel":
                if self.active is None:
                    self.fail("response_cancel_not_active", event)
                else:
                    raise Cancelled
            case other:
                self.fail(f"unknown {other}", event)

    def add(self, event: Json) -> None:
        item = event["item"]
        calls = {each["call_id"] for each in self.items.values() if each["type"] == "function_call"}
        if item["id"] in self.items:
            self.fail("item_exists", event)
        elif item["type"] == "function_call_output" and item["call_id"] not in calls:
            self.fail("no_such_call", event)
        else:
            self.items[item["id"]] = item
            if self.acknowledge:
                self.send("conversation.item.added", item=item)
                self.send("conversation.item.done", item=item)

    def unpaired(self) -> list[str]:
        """Return the ids of calls without exactly one output."""
        calls = [item["call_id"] for item in self.items.values() if item["type"] == "function_call"]
        outputs = [item["call_id"] for item in self.items.values() if item["type"] == "function_call_output"]
        return [call for call in calls if outputs.count(call) != 1]

    def create(self, event: Json) -> None:
        if self.active is not None:
            self.fail("conversation_already_has_active_response", event)
            return
        if unpaired := self.unpaired():
            self.fail(f"no_output_for_{unpaired[0]}", event)
            return
        self.responses += 1
        self.server.responses += 1
        respond(self, f"resp_{self.number}_{self.responses}", event)


def _words(item: Json) -> str:
    if item["type"] == "message":
        return "".join(part["text"] for part in item["content"])
    return str(item.get("output") or item.get("name"))


def respond(talk: Talk, id: str, asked: Json) -> None:
    """Give one response by the script."""
    talk.active = id
    metadata = (asked.get("response") or {}).get("metadata")
    output: list[Json] = []
    end: End | None = None
    try:
        talk.send("response.created", response={"id": id, "status": "in_progress", "output": []})
        for step in talk.server.script(talk):
            for part in emit(talk, id, step, output):
                hear(talk)
                if isinstance(part, dict):
                    talk.send(**part)
            if isinstance(step, End):
                end = step
    except Cancelled:
        end = End("cancelled", {"type": "cancelled", "reason": "client_cancelled"})
    for item in output:
        talk.items[item["id"]] = item
    end = end or End("completed")
    talk.active = None
    talk.server.notify()
    usage = {
        "total_tokens": 15,
        "input_tokens": 10,
        "output_tokens": 5,
        "input_token_details": {"cached_tokens": 4, "text_tokens": 10, "audio_tokens": 0},
        "output_token_details": {"text_tokens": 5, "audio_tokens": 0},
    }
    response = {
        "id": id,
        "object": "realtime.response",
        "status": end.status,
        "status_details": end.details,
        "output": output if end.output else [],
        "usage": usage,
        "metadata": metadata,
    }
    talk.send("response.done", response=response)
    talk.send("rate_limits.updated", rate_limits=[])
    talk.server.after(talk)


def hear(talk: Talk) -> None:
    """Handle what the client has sent meanwhile."""
    with suppress(TimeoutError):
        while True:
            talk.take(json.loads(talk.connection.recv(timeout=0)))


def emit(talk: Talk, id: str, step: Step, output: list[Json]) -> Iterator[Json | None]:
    """Yield the events of one step, as arguments of `Talk.send`; do what else it says."""
    index, item_id = len(output), f"{id}_{len(output)}"
    place = {"response_id": id, "item_id": item_id, "output_index": index}
    match step:
        case Say(pieces):
            item: Json = {"id": item_id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
            output.append(item)
            yield {"kind": "response.output_item.added", "response_id": id, "output_index": index, "item": item}
            item["content"].append({"type": "output_text", "text": ""})
            item["status"] = "incomplete"
            for piece in pieces:
                item["content"][0]["text"] += piece
                yield {"kind": "response.output_text.delta", **place, "content_index": 0, "delta": piece}
            item["status"] = "completed"
            yield {"kind": "response.output_item.done", "response_id": id, "output_index": index, "item": item}
        case Call(name, arguments, call_id):
            call_id = call_id or f"call_{id}_{index}"
            item = {"id": item_id, "type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
            output.append(item)
            kind = "response.function_call_arguments"
            yield {"kind": "response.output_item.added", "response_id": id, "output_index": index, "item": item}
            yield {"kind": f"{kind}.delta", **place, "call_id": call_id, "delta": arguments[:3]}
            yield {"kind": f"{kind}.delta", **place, "call_id": call_id, "delta": arguments[3:]}
            yield {"kind": "response.output_item.done", "response_id": id, "output_index": index, "item": item}
        case Emit(event):
            fields = {key: value for key, value in event.items() if key != "type"}
            yield {
                "kind": event["type"],
                **({"response_id": id} if fields.get("response_id", "") is None else {}),
                **{key: value for key, value in fields.items() if value is not None},
            }
        case Frame(data):
            talk.connection.socket.sendall(data)
        case Text(data):
            talk.connection.send(data)
        case Stall(deaf):
            while True:
                event = json.loads(talk.connection.recv())
                if deaf:
                    talk.events.append(event)
                else:
                    talk.take(event)
        case Drop(code, reason, reset):
            if reset:
                reset_connection(talk.connection.socket)
            elif code is None:
                talk.connection.socket.shutdown(socket.SHUT_RDWR)
            else:
                talk.connection.close(code, reason)
            raise ConnectionError
        case End():
            yield None


def reset_connection(connection: socket.socket) -> None:
    """Close without a goodbye of TCP."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def text_frame(event: Json) -> bytes:
    """Return a short event as the bytes of a frame."""
    data = json.dumps(event).encode()
    return bytes([0x81, 126]) + len(data).to_bytes(2, "big") + data


GOODBYE = b"\x88\x02" + (1001).to_bytes(2, "big")
"""The frame of a close."""


@attrs.define(eq=False)
class RealtimeServer:
    """A running server. `script` says each response; `talks` are its connections in order."""

    script: Script
    url: str = ""
    talks: list[Talk] = attrs.field(factory=list)
    refusals: list[Response] = attrs.field(factory=list)
    """Answers to the next handshakes, instead of consent."""
    handshakes: list[Any] = attrs.field(factory=list)
    serve: Callable[[Talk], None] = Talk.serve
    """Serves one connection."""
    after: Callable[[Talk], object] = lambda talk: None
    """Called after each response."""
    session_id: str | None = None
    """The id of every session; None: each connection has its own."""
    sent: int = 0
    responses: int = 0
    open: int = 0
    _changed: threading.Condition = attrs.field(factory=threading.Condition)

    def count(self, difference: int) -> None:
        with self._changed:
            self.open += difference
            self._changed.notify_all()

    def notify(self) -> None:
        """Tell those who wait that a response has ended."""
        with self._changed:
            self._changed.notify_all()

    def wait_idle(self) -> None:
        """Wait until no response is going on."""
        with self._changed:
            idle = self._changed.wait_for(lambda: not any(talk.active for talk in self.talks), timeout=5)
            assert idle, [talk.active for talk in self.talks]

    def wait_closed(self) -> None:
        """Wait until no connection is open."""
        with self._changed:
            assert self._changed.wait_for(lambda: not self.open, timeout=5), f"{self.open} connections are open"

    def handle(self, connection: ServerConnection) -> None:
        self.count(1)
        talk = Talk(len(self.talks) + 1, connection, self)
        self.talks.append(talk)
        try:
            with suppress(ConnectionClosed, ConnectionError, BrokenPipeError):
                self.serve(talk)
        finally:
            talk.active = None
            self.count(-1)

    def process_request(self, connection: ServerConnection, request: Any) -> Response | None:
        self.handshakes.append(request)
        return self.refusals.pop(0) if self.refusals else None

    def every(self, kind: str) -> list[Json]:
        """Return the events of a type that came over any connection."""
        return [event for talk in self.talks for event in talk.events if event["type"] == kind]


@contextmanager
def realtime_server(script: Script, *, tls: ssl.SSLContext | None = None, **options: Any) -> Iterator[RealtimeServer]:
    """Serve on a free port for a block."""
    made = RealtimeServer(script, **options)
    # A client that reads nothing between requests doesn't answer a goodbye then.
    options_of_serving: dict[str, Any] = {"compression": None, "close_timeout": 0.1, "ssl": tls}
    with serve(made.handle, "127.0.0.1", 0, process_request=made.process_request, **options_of_serving) as server:
        made.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.socket.getsockname()[1]}/v1"
        thread = threading.Thread(target=partial(server.serve_forever))
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
