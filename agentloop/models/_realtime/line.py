"""One realtime conversation over its connection: events are sent and read, and a connection that died is replaced.

Joins `conversation` (what to send), `request`, `items` and `answer` (what it looks like) and `_websocket` (the
connection). Does not know which requests share a line; `models.realtime` decides that.

One request: `ask` makes sure of a connection, sends what the server lacks, waits for the first event, and returns the
`AnswerEvents`, which read the others as they are needed. `leave` ends the exchange: an answer that isn't over is
cancelled by one short write, which doesn't wait for the server; the rest of that answer is read when the line is used
the next time (`_finish_left`).

A connection is replaced within `ask` only, once, and only if it is one from an earlier request that ends before any
event of this one: then nothing of the answer was seen. A new connection has a new session, or the same one if the
server says so; the conversation knows what is to be sent again. Every other failure closes the connection, so that a
line is either in step with its server or without one.

Invariants: one response at a time; no task beside the caller's; every wait for the server is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Self

import anyio
import attrs

from agentloop.exceptions import ModelBehaviorError, ModelTransportError
from agentloop.model_events import ModelEvent, ModelRequest, Raw, ResponseDone
from agentloop.models._codec import JsonDict, encode_json, optional_text, parse_object
from agentloop.models._long_json import open_event
from agentloop.models._patience import TOO_LONG, AnswerWait, Pace, Patience
from agentloop.models._realtime.answer import EXPIRED, RealtimeDecoder, session_error
from agentloop.models._realtime.conversation import RealtimeConversation
from agentloop.models._refusals import SILENT, Failure, redact_error
from agentloop.models._sockets import PROMPT, STALE, Target

if TYPE_CHECKING:
    from agentloop.models._websocket import WebSocket

MAX_MESSAGE = 16_000_000
_MAX_ANSWER = 64_000_000
_EVENT = "An event of the session"
_ACKNOWLEDGEMENTS = ("conversation.item.added", "conversation.item.created", "conversation.item.done")


@attrs.define(eq=False)
class Line:
    """One conversation and its connection. Used by one request at a time; the owner closes it."""

    _connect: Callable[[Target, float | None], Awaitable[WebSocket]]
    model: str
    stale_after: float = STALE
    conversation: RealtimeConversation = attrs.field(factory=RealtimeConversation)
    _socket: WebSocket | None = None
    _target: Target | None = None
    _left: RealtimeDecoder | None = None
    """The decoder of an answer that was cancelled and whose end hasn't been read."""
    _harmless: set[str] = attrs.field(factory=set)
    """The ids of client events that may fail: what they ask for may have happened by itself."""
    _used_at: float = 0.0
    _received: int = 0
    _numbers: Iterator[int] = attrs.field(factory=lambda: count(1))

    @property
    def is_connected(self) -> bool:
        """True if the line has a connection."""
        return self._socket is not None

    async def ask(self, request: ModelRequest, session: JsonDict, target: Target, patience: Patience) -> AnswerEvents:
        """Ask for the answer to *request*, which the conversation has adopted, and return it after its first event.

        Cancellation, and every error: `leave` has to be called without an answer.

        Raises:
            UserError: if the request can't be written as JSON.
            ModelTransportError: if there is no connection, the server reports an error, or is silent for too long.
            ModelBehaviorError: if the server breaks the protocol.
        """
        if target != self._target or not self.conversation.can_tell(session):
            await self.aclose()
        await self._make_sure()
        kept = self._socket is not None
        if not kept:
            await self._open(target, patience.connect)
        wait = AnswerWait(patience, self._place)
        try:
            events = await self._begin(request, session, wait)
        except ModelTransportError as error:
            if not kept or error.code in (SILENT, TOO_LONG):
                raise
            await self.aclose()
            await self._open(target, patience.connect)
            events = await self._begin(request, session, wait)
        decoder = RealtimeDecoder(request, model=self.model, earlier=self.conversation.response_ids)
        answer = AnswerEvents(self, decoder, wait)
        for event in events:
            answer.take_in(event)
        return answer

    async def _make_sure(self) -> None:
        """Bring the connection in step with the server, or close it."""
        if self._socket is None:
            return
        alive = self._socket.intact
        if alive and anyio.current_time() - self._used_at > self.stale_after:
            alive = await self._socket.check(PROMPT)
        if not (alive and await self._finish_left()):
            await self.aclose()

    async def _finish_left(self) -> bool:
        """Read the rest of an answer that was cancelled. Return False if it doesn't end soon."""
        try:
            with anyio.move_on_after(PROMPT):  # noqa: ASYNC912 - reading is a cancel point
                while self._left is not None:
                    for _ in self._left.feed(await self.read_event()):
                        pass
                    if self._left.done:
                        self._drop(self._left)
        except (ModelTransportError, ModelBehaviorError):
            return False
        return self._left is None

    async def _open(self, target: Target, timeout: float | None) -> None:
        self._socket = await self._connect(target, timeout)
        self._target = target
        event = await AnswerWait(Patience(None, timeout, None), self._place).next(self.read_event)
        if event.get("type") == "error":
            raise self.redact_error(session_error(event))
        session = event.get("session")
        if event.get("type") != "session.created" or not isinstance(session, Mapping):
            raise ModelBehaviorError(f"{self._socket.place} doesn't begin with session.created.")
        if isinstance(model := session.get("model"), str):
            self.model = model  # the server may know it by a longer name
        session_id = session.get("id")
        self.conversation.begin_session(optional_text(session_id))

    @property
    def _place(self) -> str:
        assert self._socket is not None
        return self._socket.place

    async def _begin(self, request: ModelRequest, session: JsonDict, wait: AnswerWait) -> list[Mapping[str, Any]]:
        """Send what the server lacks, and return its events up to the first that shows that it answers."""
        assert self._socket is not None
        self._received = 0
        await self._send(self.conversation.take_events(request, session))
        events: list[Mapping[str, Any]] = []
        while True:
            event = await wait.next(self.read_event)
            error = event.get("error")
            if isinstance(error, Mapping) and error.get("code") == EXPIRED:
                raise ModelTransportError(f"{self._socket.place}: the session has expired.", code=EXPIRED)
            events.append(event)
            if str(event.get("type")).startswith("response.") or (error and not self.is_harmless(event)):
                return events

    async def _send(self, events: list[JsonDict]) -> None:
        assert self._socket is not None
        texts = []
        for event in events:
            event_id = f"event_{next(self._numbers)}"
            if event["type"] in ("response.cancel", "conversation.item.delete"):
                self._harmless.add(event_id)
            texts.append(encode_json({**event, "event_id": event_id}).decode())
        await self._socket.send(*texts)

    async def read_event(self) -> Mapping[str, Any]:
        """Return the next event.

        Raises:
            ModelTransportError: if the connection ends.
            ModelBehaviorError: if the server breaks the protocol.
        """
        assert self._socket is not None
        text = await self._socket.receive()
        self._received += len(text)
        if self._received > _MAX_ANSWER:
            raise ModelBehaviorError(f"{self._socket.place} sent more than {_MAX_ANSWER:,} characters for one answer.")
        event = await open_event(text, _EVENT) or parse_object(text, _EVENT)
        if event.get("type") in _ACKNOWLEDGEMENTS and isinstance(item := event.get("item"), Mapping):
            self.conversation.acknowledge(item.get("id"))
        return event

    def is_harmless(self, event: Mapping[str, Any]) -> bool:
        """Tell whether *event* is the error of a client event that may fail."""
        error = event.get("error")
        return isinstance(error, Mapping) and error.get("event_id") in self._harmless

    def redact_error(self, error: Failure) -> Failure:
        """Return *error* without the secrets of the connection in its words."""
        assert self._socket is not None
        return redact_error(error, self._socket.redact)

    async def leave(self, answer: AnswerEvents | None) -> None:
        """End the exchange of *answer*; None: there is none. Cancel an answer that isn't over. Bounded and shielded."""
        self._used_at = anyio.current_time()
        if answer is None or (answer.failed and not answer.decoder.done):
            await self.aclose()
        elif not answer.decoder.done:
            await self._cancel(answer.decoder)
        elif not answer.given:
            self._drop(answer.decoder)

    async def _cancel(self, decoder: RealtimeDecoder) -> None:
        assert self._socket is not None
        self._left = decoder
        with anyio.move_on_after(PROMPT, shield=True), suppress(ModelTransportError, ModelBehaviorError):
            await self._send([{"type": "response.cancel", "response_id": decoder.response_id}])
        if not self._socket.intact:
            await self.aclose()

    def _drop(self, decoder: RealtimeDecoder) -> None:
        """Note an answer that the consumer hasn't received: its items are on the server only."""
        self._left = None
        self.conversation.leave(decoder.response_id, decoder.output)

    async def aclose(self) -> None:
        """Close the connection, if there is one; the conversation stays known. Bounded, and shielded."""
        socket, self._socket = self._socket, None
        self._target = self._left = None
        self._harmless.clear()
        if socket is not None:
            await socket.aclose()


class AnswerEvents:
    """The events of one answer, read from the line only as the consumer needs them. Owned by one request."""

    def __init__(self, line: Line, decoder: RealtimeDecoder, wait: AnswerWait) -> None:
        self.decoder = decoder
        self.given = False
        """True once the consumer has the whole answer."""
        self.failed = False
        """True once the answer can't be completed; the error is raised after the events from before it."""
        self._line = line
        self._wait = wait
        self._pace = Pace()
        self._pending: deque[ModelEvent] = deque()
        self._failure: Failure | None = None

    def take_in(self, event: Mapping[str, Any]) -> None:
        """Add the model events of one event of the server. An error of it is raised after those from before it."""
        if self._line.is_harmless(event):
            self._pending.append(Raw(event))
            return
        try:
            self._pending.extend(self.decoder.feed(event))
            if self.decoder.done:
                self._pending.extend(self.decoder.finish())
        except (ModelTransportError, ModelBehaviorError) as error:
            self._fail(error)

    def _fail(self, error: Failure) -> None:
        self.failed = True
        self._failure = self._line.redact_error(error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        await self._pace.step()
        while not self._pending:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if self.failed or self.decoder.done:
                raise StopAsyncIteration
            try:
                self._wait.begun = self.decoder.shown
                with self._wait:
                    self.take_in(await self._wait.next(self._line.read_event))
            except (ModelTransportError, ModelBehaviorError) as error:
                self._fail(error)
        event = self._pending.popleft()
        if isinstance(event, ResponseDone):
            self._settle()
        return event

    def _settle(self) -> None:
        self.given = True
        self._line.conversation.answer(self.decoder.response_id, self.decoder.items, self.decoder.output)
