"""A client's WebSocket connection on anyio's streams: whole text messages. The one module that knows `websockets`.

`websockets` does the protocol without I/O (`ClientProtocol`): handshake, masks, fragments, pongs, closing. Here is the
I/O, once for both backends. No task runs beside the owner's: data is read when the owner receives, so a server that
dies can't end anything but the call that notices. Pings of an idle time are answered by the next `receive` or `check`.
Does not know what the messages mean.

Invariants: `intact` is False from the moment at which the connection may be out of step (a cut write, a broken rule,
its end), and such a connection is only closed. A message is bounded in size and in fragments, before it is put
together. Reading is a checkpoint after so many frames, and so many messages, however many come at once. No compression,
so that a small message can't become a large one. No proxies. No text of an error, and no log, holds the value of a
secret header or query field.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from ssl import SSLContext, create_default_context
from urllib.parse import urlencode, urlsplit

import anyio
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, PayloadTooBig
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import WebSocketURI, parse_uri

from agentloop._common.version import USER_AGENT
from agentloop.exceptions import ModelBehaviorError, ModelTransportError
from agentloop.models._patience import Pace
from agentloop.models._refusals import (
    QUOTED,
    make_redactor,
    place_of,
    read_error_body,
    redact_error,
    retry_after,
    should_retry,
)

CLOSE_TIMEOUT = 2.0
_PIECE = 65_536
_SLICE = 4_096
"""Bytes that the protocol reads in one step. Two thousand empty frames fit in, which take some tens of milliseconds."""
MOST_FRAGMENTS = 100_000
"""Most fragments of a message: of the longest one, each may be as short as 640 bytes."""
_FINAL_CODES = frozenset({1002, 1003, 1007, 1008, 1009, 1010, 3000, 3003})
"""Close codes for which a second try ends in the same way: a broken rule, a refused key."""
# At level DEBUG the protocol logs the headers of its handshake, the key among them. This logger has no handler, and no
# level below WARNING, which no setting of the application changes.
_SILENT = logging.Logger("agentloop.models.websocket", logging.WARNING)


class WebSocket:
    """One open connection, made by `open_websocket`. For one task at a time; the owner closes it."""

    def __init__(self, stream: ByteStream, protocol: ClientProtocol, place: str, redact: Callable[[str], str]) -> None:
        self.place = place
        """Host and path of the server."""
        self.redact = redact
        self.intact: bool = protocol.state is State.OPEN  # the server's goodbye may have come with its handshake
        """False once it can only be closed."""
        self._stream = stream
        self._protocol = protocol
        self._messages: deque[str] = deque()
        self._unread = memoryview(b"")  # data that has come, and that the protocol hasn't read
        self._kind: Opcode | None = None  # of the message that has begun to come
        self._text = bytearray()
        self._fragments = 0
        self._fault: str | None = None  # what the server did against our rules, if the protocol allows it
        self._pace = Pace()
        self._pong: bytes | None = None
        self._take_events()  # the server's first message may have come with its handshake

    async def send(self, *messages: str) -> None:
        """Send text *messages* in one write.

        Cancellation: a cancelled call may have sent a part; the connection is no longer `intact`.

        Raises:
            ModelTransportError: if the connection is broken or closed.
        """
        if not self.intact:
            raise self._closed_error()
        for message in messages:
            self._protocol.send_text(message.encode())
        try:
            await self._flush()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise ModelTransportError(f"{self.place} broke the connection ({type(error).__name__})") from error

    async def receive(self) -> str:
        """Return the next message. A checkpoint if it has to wait for the connection, and once per so many messages.

        Cancellation: nothing is lost; the next call continues.

        Raises:
            ModelTransportError: if the connection ends; says the server's reason.
            ModelBehaviorError: if the server breaks the protocol, or sends a message that is too long or no text.
        """
        await self._pace.step()
        while not self._messages:
            await self._read()
        return self._messages.popleft()

    async def check(self, timeout: float | None) -> bool:
        """Tell whether the server answers a ping within *timeout* seconds. Messages that come meanwhile are kept."""
        expected = os.urandom(4)
        faults = (ModelTransportError, ModelBehaviorError, anyio.BrokenResourceError, anyio.ClosedResourceError)
        with suppress(*faults), anyio.move_on_after(timeout):
            self._protocol.send_ping(expected)
            await self._flush()
            while self._pong != expected:
                await self._read()
            return True
        return False

    async def aclose(self) -> None:
        """Say goodbye if the connection is intact, and close it. Bounded, and shielded from cancellation."""
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
            try:
                if self.intact:
                    self._protocol.send_close(1000)
                    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                        await self._flush()
            finally:
                self.intact = False
                await anyio.aclose_forcefully(self._stream)  # noqa: ASYNC102 - inside the shielded scope above

    async def _flush(self) -> None:
        # The empty piece, a half-close, is left out: the owner, who reads the end, closes the whole.
        data = b"".join(self._protocol.data_to_send())
        if data:
            self.intact = False  # until it's written: a cut write would be continued in the middle of a frame
            await self._stream.send(data)
            self.intact = self._protocol.state is State.OPEN

    async def _read(self) -> None:
        if not self.intact:
            raise self._closed_error()
        try:
            if self._unread:
                await checkpoint()
            else:
                self._unread = memoryview(await self._stream.receive(_PIECE))
            piece, self._unread = self._unread[:_SLICE], self._unread[_SLICE:]
            self._protocol.receive_data(bytes(piece))
        except anyio.EndOfStream:
            self._protocol.receive_eof()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            self.intact = False
            raise ModelTransportError(f"{self.place} broke the connection ({type(error).__name__})") from error
        self._take_events()
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the next read says so
            await self._flush()  # pongs, and the answer to a close
        if self._protocol.state is not State.OPEN or self._fault is not None:
            self.intact = False

    def _take_events(self) -> None:
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take_frame(event)

    def _take_frame(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.PONG:
                self._pong = bytes(frame.data)
            case Opcode.TEXT | Opcode.BINARY:
                self._kind, self._fragments = frame.opcode, 0
                self._add_fragment(frame)
            case Opcode.CONT:
                self._add_fragment(frame)

    def _add_fragment(self, frame: Frame) -> None:
        self._fragments += 1
        self._text += frame.data
        if self._kind is not Opcode.TEXT:
            self._fail("expected a text message, got a binary one")
        elif self._fragments > MOST_FRAGMENTS:
            self._fail(f"a message of more than {MOST_FRAGMENTS:,} fragments")
        elif frame.fin and self._fault is None:
            self._end_message()

    def _end_message(self) -> None:
        try:
            self._messages.append(self._text.decode())
        except UnicodeDecodeError:
            self._fail("a message that isn't UTF-8")
        self._text.clear()

    def _fail(self, what: str) -> None:
        self._fault, self.intact = self._fault or what, False
        self._text.clear()

    def _closed_error(self) -> ModelTransportError | ModelBehaviorError:
        if self._fault is not None:
            return ModelBehaviorError(f"{self.place} sent {self._fault}.")
        fault, close = self._protocol.parser_exc, self._protocol.close_rcvd
        if isinstance(fault, PayloadTooBig):
            return ModelBehaviorError(f"{self.place} sent a message that is too long: {fault}")
        if fault is not None and not isinstance(fault, EOFError):
            return ModelBehaviorError(self.redact(f"{self.place} broke the WebSocket protocol: {str(fault)[:QUOTED]}"))
        if close is None:
            return ModelTransportError(f"{self.place} broke the connection")
        said = f": {close.reason[:QUOTED]}" if close.reason else ""
        return ModelTransportError(
            self.redact(f"{self.place} closed the connection, code {close.code}{said}"),
            should_retry=False if close.code in _FINAL_CODES else None,
        )


async def open_websocket(
    url: str,
    *,
    headers: Mapping[str, str],
    query: Mapping[str, str],
    timeout: float | None,
    ssl_context: SSLContext | None,
    max_message: int,
) -> WebSocket:
    """Connect to the server at the HTTP *url*, and return the open connection.

    *timeout* bounds all of it, in seconds. *max_message* is the size of the longest message that is accepted, in bytes.
    Redirects are not followed, since they would get the key.

    Raises:
        ModelTransportError: if there is no connection in time, or the server answers the handshake otherwise.
        ModelBehaviorError: if what answers isn't a WebSocket server.
    """
    uri = parse_uri("ws" + url.removeprefix("http") + (f"?{urlencode(query)}" if query else ""))
    protocol = ClientProtocol(uri, max_size=max_message, logger=_SILENT)
    place, redact = place_of(url), make_redactor({**headers, **query})
    handshake = protocol.connect()
    for name, value in {"user-agent": USER_AGENT, **headers}.items():
        handshake.headers[name] = value
    protocol.send_request(handshake)
    with anyio.move_on_after(timeout):
        try:
            stream = await _open_stream(uri, ssl_context)
        except OSError as error:
            words = redact(f"No connection to {urlsplit(url).hostname}: {str(error)[:QUOTED]} ({type(error).__name__})")
            raise ModelTransportError(words) from error
        try:
            await _shake_hands(stream, protocol, place, redact)
        except BaseException:
            with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
                await anyio.aclose_forcefully(stream)
            raise
        return WebSocket(stream, protocol, place, redact)
    raise ModelTransportError(f"No answer from {urlsplit(url).hostname}: it took too long, {timeout:g} s to connect")


async def _open_stream(uri: WebSocketURI, ssl_context: SSLContext | None) -> ByteStream:
    if not uri.secure:
        return await anyio.connect_tcp(uri.host, uri.port)
    # Not the standard's way of closing: WebSocket has its own, and the server's part of it could take for ever.
    return await anyio.connect_tcp(
        uri.host, uri.port, ssl_context=ssl_context or create_default_context(), tls_standard_compatible=False
    )


async def _shake_hands(stream: ByteStream, protocol: ClientProtocol, place: str, redact: Callable[[str], str]) -> None:
    try:
        await stream.send(b"".join(protocol.data_to_send()))
        while protocol.state is State.CONNECTING and protocol.handshake_exc is None:
            try:
                protocol.receive_data(await stream.receive(_PIECE))
            except anyio.EndOfStream:
                protocol.receive_eof()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
        raise ModelTransportError(f"{place} broke the connection ({type(error).__name__})") from error
    fault = protocol.handshake_exc
    if isinstance(fault, InvalidStatus):
        raise _make_status_error(fault.response, place, redact) from None
    if fault is not None and isinstance(fault.__cause__, EOFError):
        raise ModelTransportError(f"{place} broke the connection during the handshake")
    if fault is not None:
        raise ModelBehaviorError(redact(f"{place} isn't a WebSocket server: {str(fault)[:QUOTED]}"))


def _make_status_error(response: Response, place: str, redact: Callable[[str], str]) -> ModelTransportError:
    """Return the error for an answer to the handshake that isn't the consent to it."""
    headers = {name.lower(): value for name, value in response.headers.raw_items()}
    words, code = read_error_body(bytes(response.body or b""))
    if 300 <= response.status_code < 400:
        words = "sent on to another place, where nothing is sent, as the key would go along"
    error = ModelTransportError(
        f"{place} answered {response.status_code}: {words}",
        status=response.status_code,
        code=code,
        retry_after=retry_after(headers, time.time()),
        should_retry=should_retry(headers),
        request_id=headers.get("x-request-id"),
    )
    redact_error(error, redact)
    return error
