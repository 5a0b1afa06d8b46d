"""The stream of one client: a run's events as server-sent events.

A frame has the event's kind as its `event`, its public JSON form as its `data`, and an `id` if a record holds it. A
frame without an id leaves the client's last event id as it is. So a client that comes back names the last event of a
record, and gets those that follow it.

A client that reads nothing is waited for, by `send` of the server, until the limit has passed; then it counts as gone.
Nothing is buffered here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import anyio
from anyio.lowlevel import checkpoint

from agentloop import events as ev
from agentloop._storage.public_json import to_json
from agentloop.abc import Codec
from agentloop.asgi._http import ClientGone, Headers, Send, WebLimits, encode_public
from agentloop.items import Interruption

if TYPE_CHECKING:
    from agentloop.results import RunResult
    from agentloop.state import RunState

Numbered: TypeAlias = tuple[str | None, ev.Event]
"""An event with its id, None for a signal."""
Take: TypeAlias = Callable[[], Awaitable[Numbered | None]]
"""Waits for the next event; returns None after the last. A cancelled call has lost no event."""

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # else nginx would collect the stream
)
_SILENCE = object()


def format_frame(data: Mapping[str, Any], number: str | None = None) -> bytes:
    """Return *data* as one server-sent event of the kind `data["type"]`, with the id *number*."""
    text = encode_public(data)
    head = b"event: %b\n" % data["type"].encode()
    return (head if number is None else b"%bid: %b\n" % (head, number.encode())) + b"data: %b\n\n" % text


def format_event(number: str | None, event: ev.Event, codec: Codec | None = None) -> bytes:
    """Return *event* as a frame; empty for a provider's own event, which may hold secrets in any form."""
    return b"" if isinstance(event, ev.RawModelEvent) else format_frame(to_json(event, codec=codec), number)


def describe_pause(interruptions: tuple[Interruption, ...], handle: str | None) -> dict[str, Any]:
    """Return the last frame's data of a run that waits: its calls, and the handle to resume it by."""
    return {"type": "interrupted", "handle": handle, "interruptions": [to_json(asked) for asked in interruptions]}


def describe_run(run: str, state: RunState, *, under_way: bool = False) -> dict[str, Any]:
    """Return what a client learns of a run: its status, its calls that wait, and what has become of its inputs.

    The status of a run without an end is `running`, or `detached` if it isn't under way in this process.
    """
    inputs = [
        {
            "id": added.id,
            "when": added.when,
            "status": added.status,
            "items": [to_json(item) for item in added.items],
            **({} if added.reason is None else {"reason": added.reason}),
        }
        for added in state.inputs
    ]
    status = "running" if under_way else state.status or "detached"
    asked = () if under_way else state.interruptions
    return {"run": run, "status": status, "interruptions": [to_json(each) for each in asked], "inputs": inputs}


class StreamForm(Protocol):
    """The form in which a run is streamed: each method returns bytes to send, empty for nothing."""

    def begin(self) -> bytes:
        """Return the first bytes, so that the client has the headers before the first event."""
        ...

    def event(self, number: str | None, event: ev.Event) -> bytes:
        """Return an event; *number* is its id, None for a signal."""
        ...

    def pause(self, interruptions: tuple[Interruption, ...], handle: str | None) -> bytes:
        """Return the end of a run that waits for verdicts or answers: its calls, and the handle to resume it by."""
        ...

    def end(self, result: RunResult[Any]) -> bytes:
        """Return the end of a run that has neither failed nor waits."""
        ...

    def error(self, description: dict[str, str]) -> bytes:
        """Return the end of a run that has failed, of which the client gets a `type` and a `message`."""
        ...


@runtime_checkable
class LiveForm(StreamForm, Protocol):
    """A form that has something to send between two events, too."""

    def waiting(self, scope: anyio.CancelScope) -> AbstractContextManager[None]:
        """Hold *scope*, in which the writer waits for the next event, to cancel it when `between` has something."""
        ...

    def between(self) -> bytes:
        """Return what is to be sent before the next event; empty for nothing."""
        ...


class PublicForm:
    """The library's own form: the public JSON form of events, and its own frames at the end."""

    def begin(self) -> bytes:
        """Return a comment."""
        return b": open\n\n"

    def event(self, number: str | None, event: ev.Event) -> bytes:
        """Return the frame of *event*."""
        return format_event(number, event)

    def pause(self, interruptions: tuple[Interruption, ...], handle: str | None) -> bytes:
        """Return the frame `interrupted`."""
        return format_frame(describe_pause(interruptions, handle))

    def end(self, result: RunResult[Any]) -> bytes:
        """Return nothing: `run_ended` says it."""
        return b""

    def error(self, description: dict[str, str]) -> bytes:
        """Return the frame `error`."""
        return format_frame({"type": "error", "error": description})


class EventWriter:
    """The response of one request. Owned by the request's task."""

    def __init__(self, send: Send, limits: WebLimits, form: StreamForm | None = None) -> None:
        self._send = send
        self._limits = limits
        self.form: StreamForm = PublicForm() if form is None else form

    async def open(self, headers: Headers = ()) -> None:
        """Begin the response. Raises `ClientGone` as every method does."""
        await self._pass({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *headers]})
        await self.write(self.form.begin())

    async def write(self, frame: bytes) -> None:
        """Send one frame; nothing if it is empty.

        Raises:
            ClientGone: the client has left, or has not taken the frame within the limit.
        """
        if frame:
            await self._pass({"type": "http.response.body", "body": frame, "more_body": True})

    async def close(self) -> None:
        """End the response."""
        await self._pass({"type": "http.response.body", "body": b""})

    async def pump(self, take: Take) -> str | None:
        """Send events until *take* returns None; return the id of the last one that has an id.

        While none comes, comments keep the connection open.

        Raises:
            ClientGone: as for `write`.
            BaseException: what *take* raises.
        """
        last: str | None = None
        live = self.form if isinstance(self.form, LiveForm) else None
        while True:
            taken: Any = _SILENCE
            with (
                anyio.move_on_after(self._limits.keep_alive) as scope,
                nullcontext() if live is None else live.waiting(scope),
            ):
                taken = await take()
            if taken is _SILENCE:
                await self.write((b"" if live is None else live.between()) or b": still here\n\n")
            elif taken is None:
                return last
            else:
                number, event = taken
                await self.write(self.form.event(number, event))
                last = number or last

    async def _pass(self, message: dict[str, Any]) -> None:
        with anyio.move_on_after(self._limits.send_timeout) as waiting:
            await checkpoint()  # a server whose client takes everything at once doesn't wait
            try:
                await self._send(message)
            except OSError as error:
                raise ClientGone from error
        if waiting.cancelled_caught:
            raise ClientGone
