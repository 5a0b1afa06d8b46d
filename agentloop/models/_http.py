"""The HTTP driver: the one module that knows httpx. It posts JSON and returns the bytes of the answer.

Any client with httpx's interface will do (`httpx2` has it), so failures are recognized by the names of their classes,
which the forks share. Does not know what the bytes mean.

One request: `HttpDriver.post` sends it (`_send`, and `_attempt` once or twice), raises the error of an answer without
success, and gives a `Reply` whose head has come. The reader calls `Reply.receive` or `read`, and sets two flags that
only it can know: `wait.begun` once the answer shows output, `complete` once it needs no more bytes. Leaving the block
drains a complete reply, so that its connection can be reused, and closes every reply.

States of a reply: waiting for the first output (each piece may take `Patience.first`), begun (each piece may take
`Patience.silence`), ended. `begun` depends on output and not on bytes, so the reader sets it. An `AnswerWait` bounds
the head and each piece of the body, and all of them together; httpx's own timeouts, which begin anew with each byte,
bound the connection. Only the bound of the whole applies to a client that the caller has given other timeouts.

Invariants: a request is sent a second time only if a reused connection died before any byte of an answer, and only
once; every answer is closed, also when cancelled, within `CLOSE_TIMEOUT`; no message, and no line of the client's log,
holds the value of a secret header or query field; redirects are not followed, since they would get the key; no answer
is longer than `MOST_BYTES`, neither as it came nor unpacked.

Decisions:

A provider is a codec: four pure parts (path, headers, `encode`, `decoder`) that know no transport. One driver speaks
HTTP for all of them, and one module imports the client. So what is hard is written and tested once: when a request is
sent again, that an answer is closed when its call is cancelled, how long a silence may be, that no message holds a
key, and that a body stays bounded, as it comes and after unpacking. A new provider is under eighty lines, which a
test holds. Rejected: the vendors' own clients. Each has its own retries, timeouts and connections under ours, they
run on one backend well and leave generators behind on the other, and three of them make three sets of errors. They
serve as judges instead: their types say whether a request is valid, and the same bytes have to mean the same to them
and to us.

A server's answer is work of a known size. An answer may have 64 MB, so what is quadratic in its parts takes hours,
and what is read in one call keeps every other task from running, a deadline's own included. So a decoder finds what a
piece belongs to in dictionaries, and reads nothing twice; parts, fragments and levels of nesting have bounds; reading
is a checkpoint after so many events. A long JSON text with many values is read value by value (`_long_json`), with a
checkpoint after each two thousand. Rejected: the standard reader in a thread, since it keeps the interpreter for its
whole call, and the loop waits as it would without a thread. Rejected: refusing such texts. The probabilities of a
long answer's tokens are one. The tests count steps of the interpreter, not seconds.
"""

from __future__ import annotations

import functools
import logging
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import anyio
import attrs
import httpx
from anyio.lowlevel import checkpoint

from agentloop._common.version import USER_AGENT
from agentloop.exceptions import ModelBehaviorError, ModelTransportError
from agentloop.models._codec import encode_json
from agentloop.models._patience import AnswerWait, Patience
from agentloop.models._refusals import (
    QUOTED,
    check_headers,
    make_redactor,
    place_of,
    read_error_body,
    redact_error,
    retry_after,
    should_retry,
)

CLOSE_TIMEOUT = 2.0
_WRITE_TIMEOUT = 60.0
_CLIENT_DEFAULT = {"connect": 5.0, "read": 5.0, "write": 5.0, "pool": 5.0}
MOST_BYTES = 64_000_000
"""Most bytes of an answer's body, as it came and unpacked."""
_PIECE = 65_536
_MOST_READ_AHEAD = 1_000
"""Most pieces that are read of a closed answer: a transport of the application may not know that it is closed."""
_SLICE = 4_096
"""Bytes that are unpacked in one step: some two hundred members of a hostile gzip body fit in."""
_ENCODING = "gzip"
"""The encoding that requests ask for: the one that `_make_unpacker` can unpack in bounded steps."""
_ERROR_BODY = 65_536
_REQUEST_IDS = ("x-request-id", "request-id", "opc-request-id")
_LOOPBACK = ("all://127.0.0.1", "all://localhost", "all://[::1]")


# ---------------------------------------------------------------------------------------------- failures


def _is_named(error: BaseException, *names: str) -> bool:
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _is_http_error(error: Exception) -> bool:
    return _is_named(error, "HTTPError", "StreamError", "InvalidURL")


def _transport_error(error: Exception, host: str, redact: Callable[[str], str]) -> ModelTransportError:
    """Return the library's error for the HTTP client's *error*."""
    why = "it took too long" if _is_named(error, "TimeoutException") else str(error) or "the connection broke"
    return ModelTransportError(redact(f"No answer from {host}: {why[:QUOTED]} ({type(error).__name__})"))


@attrs.define(eq=False)
class _TransportTrace:
    """Notes the steps of the connection pool for one request, to distinguish a reused connection from a new one."""

    sent: bool = False
    connected: bool = False
    answered: bool = False

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith("send_request_headers.started"):
            self.sent = True
        elif ".connect_" in event:
            self.connected = True
        elif event.endswith("receive_response_headers.complete"):
            self.answered = True

    def died_on_reuse(self, error: Exception) -> bool:
        """Tell whether *error* means that a kept-alive connection was dead before any byte of an answer."""
        broken = _is_named(error, "RemoteProtocolError", "ReadError", "WriteError", "CloseError")
        return broken and self.sent and not self.connected and not self.answered


# ---------------------------------------------------------------------------------------------- the answer


class _Plain:
    def feed(self, data: bytes) -> Iterable[bytes]:
        return (data,)


class _Gzip:
    """Unpacks in pieces of a bounded size, so that a small body can't become huge in a single step.

    A body may have several members, one behind the other, and zeros behind the last (RFC 1952; gzip's own tools).
    A piece may be empty: the next one is another step, as many empty members fit into few bytes.
    """

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=31)

    def feed(self, data: bytes) -> Iterable[bytes]:
        for start in range(0, len(data), _SLICE):
            yield from self._feed(data[start : start + _SLICE])
            yield b""

    def _feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._inflate.eof:
                data = data.lstrip(b"\0")
                self._inflate = zlib.decompressobj(wbits=31)
            try:
                piece = self._inflate.decompress(data, _PIECE)
            except zlib.error:
                raise ModelBehaviorError("The response's body isn't the gzip it says it is.") from None
            if piece:
                yield piece
            # At the end of a member zlib leaves the other attribute as it was before.
            data = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail


def _make_unpacker(encoding: str) -> _Plain | _Gzip:
    match encoding.strip().lower():
        case "" | "identity":
            return _Plain()
        case "gzip" | "x-gzip":
            return _Gzip()
        case _:
            raise ModelBehaviorError(f"The response is encoded as {encoding[:40]!r}, which wasn't asked for.")


class Reply:
    """One answer while it is read. Owned by `HttpDriver.post`, which closes it; the reader sets the wait's `begun`, and
    `complete`.
    """

    def __init__(self, response: Any, url: str, redact: Callable[[str], str], wait: AnswerWait) -> None:
        self._response = response
        self._host = urlsplit(url).hostname or url
        self.wait = wait
        self.place = place_of(url)
        """Host and path of the request's URL."""
        self.redact = redact
        self._raw: Any = None
        self._unpack: _Plain | _Gzip = _Plain()
        self._unpacked: Iterator[bytes] = iter(())
        self._repeated = False  # whether a piece of the same data was taken before
        self._came = 0
        self._ended = False
        self.complete = False
        """True once the reader needs no more bytes, set by the reader; only then the rest is drained."""
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers
        found = (response.headers.get(name) for name in _REQUEST_IDS)
        self.request_id: str | None = next((redact(id) for id in found if id), None)
        self.content_type: str = response.headers.get("content-type", "").partition(";")[0].strip().lower()

    def explain_page(self) -> str:
        """Return the error message for an answer that is a web page and not a model's response."""
        return f"{self.place} answered with {self.content_type}, not with a model's response.{_hint_v1(self.place)}"

    async def receive(self) -> bytes:
        """Return the next piece of the unpacked body, at most a few tens of kilobytes; `b""` at its end.

        A checkpoint, except for the first piece of data that the connection had ready: a small body that unpacks into a
        huge one must not keep the event loop from other tasks.

        Raises:
            ModelTransportError: if the connection breaks, or no more data comes in time.
            ModelBehaviorError: if the body has another encoding than its header says, or an unknown one, or is longer
                than `MOST_BYTES`.
        """
        while not self._ended:
            piece = next(self._unpacked, None)
            if piece is None:
                self._unpacked = iter(await self._next_raw())
                self._repeated = False
                continue
            if self._repeated:
                await checkpoint()
            self._repeated = True
            if piece:
                return piece
        return b""

    async def _next_raw(self) -> Iterable[bytes]:
        if self._raw is None:
            if self._response.is_stream_consumed:  # the ready answer of a mock transport, already read and unpacked
                self._raw = _once(self._response.content)
            else:
                self._unpack = _make_unpacker(self.headers.get("content-encoding", ""))
                self._raw = self._response.aiter_raw()
        data = await self.wait.next(self._read_raw)
        if data is None:
            self._ended = True
            return ()
        self._came += len(data)
        if self._came > MOST_BYTES:
            raise ModelBehaviorError(f"The response is longer than {MOST_BYTES} bytes.")
        return self._unpack.feed(data)

    async def _read_raw(self) -> bytes | None:
        try:
            data: bytes | None = await anext(self._raw, None)
        except Exception as error:
            if not _is_http_error(error):
                raise
            raise _transport_error(error, self._host, self.redact) from error
        return data

    async def read(self, most: int) -> tuple[bytes, bool]:
        """Return at most *most* bytes of the body, and True if that is the whole body."""
        body = bytearray()
        while piece := await self.receive():
            body += piece
            if len(body) > most:
                return bytes(body[:most]), False
        return bytes(body), True

    async def drain(self) -> None:
        """Read the few bytes after a complete answer, for at most 0.25 s, so that the connection can be reused."""
        with anyio.move_on_after(0.25), suppress(ModelTransportError, ModelBehaviorError):
            await self.read(_PIECE)

    async def aclose(self) -> None:
        """Close the answer, also when cancelled, in a bounded time."""
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True), suppress(Exception):
            try:
                await self._response.aclose()
            finally:
                await self._exhaust()  # noqa: ASYNC102 - inside the shielded scope above

    async def _exhaust(self) -> None:
        # httpx reads through a chain of async generators. Closing the outermost leaves the others to the garbage
        # collector. After the response is closed, one more read fails at once and ends them all; what was read ahead
        # may come before.
        if self._raw is not None:
            with suppress(Exception):
                for _ in range(_MOST_READ_AHEAD):
                    await anext(self._raw)


async def _once(content: bytes) -> AsyncIterator[bytes]:  # noqa: ASYNC900 - holds no scope; httpx wants an async iterable
    yield content


# ---------------------------------------------------------------------------------------------- the driver


@attrs.frozen
class _Outgoing:
    """One request as it is sent, maybe twice."""

    url: str
    content: bytes
    headers: Mapping[str, str]
    query: Mapping[str, str] | None
    auth: Any


class HttpDriver:
    """Posts JSON over one client. For one event loop.

    The caller owns a client that it gives: it is never closed here. Without one the driver makes a client when entered,
    and closes it when left.
    """

    def __init__(self, client: Any = None) -> None:
        self._client: Any = client
        self._given = client is not None

    async def __aenter__(self) -> Self:
        if not self._given:
            # A proxy from the environment must not handle requests to this machine itself.
            self._client = httpx.AsyncClient(mounts=dict.fromkeys(_LOOPBACK))
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if not self._given:
            client, self._client = self._client, None
            with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
                await client.aclose()

    @asynccontextmanager
    async def post(
        self,
        url: str,
        *,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        query: Mapping[str, str] | None = None,
        patience: Patience,
        auth: Any = None,
    ) -> AsyncIterator[Reply]:
        """Post *body* as JSON and give the answer after its head; leaving closes it, also when cancelled.

        Without an `accept-encoding` in *headers* the request asks for gzip, which is unpacked here in bounded steps.
        *auth* signs the request, each time it is sent; None: the client's own, if it has any.

        If a kept-alive connection proves dead before any byte of an answer, the request is sent once more. No message
        holds the value of a header or query field whose name marks a secret.

        Raises:
            UserTypeError, UserValueError: if *body* or *headers* can't be sent.
            ModelTransportError: if no answer comes, or one without success.
        """
        host = urlsplit(url).hostname or url
        sent = check_headers(headers)
        names = {name.lower() for name in sent}
        if "accept-encoding" not in names:
            sent["accept-encoding"] = _ENCODING  # else the client asks for all that it can unpack itself
        if "user-agent" not in names and not self._names_itself():
            sent["user-agent"] = USER_AGENT
        outgoing = _Outgoing(url, encode_json(body), sent, dict(query) if query else None, auth)
        redact = make_redactor({**headers, **(query or {})})
        # A client with httpx's default timeouts has five seconds, less than most models need, so they are replaced.
        # Other timeouts are the application's choice and remain; no client has one for the whole answer.
        chosen = not self._default_timeouts()
        wait = AnswerWait(Patience(None, None, None, patience.answer) if chosen else patience, host)
        response = await wait.next(lambda: self._send(outgoing, host, redact, None if chosen else patience))
        # What was sent has more than *headers*: the signature, and what the application's client adds.
        redact = make_redactor({**headers, **(query or {}), **response.request.headers})
        reply = Reply(response, url, redact, wait)
        try:
            if not 200 <= reply.status < 300:
                raise await _read_failed_answer(reply, host)
            yield reply
            if reply.complete:
                await reply.drain()
        finally:
            await reply.aclose()

    async def _send(
        self, outgoing: _Outgoing, host: str, redact: Callable[[str], str], patience: Patience | None
    ) -> Any:
        trace = _TransportTrace()
        try:
            try:
                return await self._attempt(outgoing, trace, patience)
            except Exception as error:
                if not trace.died_on_reuse(error):
                    raise
            return await self._attempt(outgoing, _TransportTrace(), patience)
        except Exception as error:
            if not _is_http_error(error):
                raise
            raise _transport_error(error, host, redact) from error

    async def _attempt(self, outgoing: _Outgoing, trace: _TransportTrace, patience: Patience | None) -> Any:
        given: dict[str, Any] = {}
        if patience is not None:  # connect, read, write, pool
            given["timeout"] = (patience.connect, None, _WRITE_TIMEOUT, None)
        content = outgoing.content
        request = self._client.build_request(
            "POST",
            outgoing.url,
            content=content,
            headers=outgoing.headers,
            params=outgoing.query,
            extensions={"trace": trace},
            **given,
        )
        body: Any = type(request.stream)
        request.stream = _in_one_piece(body)(content)
        signed = {} if outgoing.auth is None else {"auth": outgoing.auth}
        with hide_queries(str(self._client.build_request.__module__).partition(".")[0]):
            return await self._client.send(request, stream=True, follow_redirects=False, **signed)

    def _names_itself(self) -> bool:
        """Tell whether the application's client has its own name, which vendors and gateways are to see."""
        named = self._client.headers.get("user-agent", "") if self._given else ""
        return bool(named) and not named.startswith("python-httpx")

    def _default_timeouts(self) -> bool:
        return not self._given or self._client.timeout.as_dict() == _CLIENT_DEFAULT


_sending: ContextVar[bool] = ContextVar("agentloop_sending", default=False)
"""True while a request is sent here: then the client's log gets no query."""


@contextmanager
def hide_queries(client: str) -> Iterator[None]:
    """Keep the queries of requests that are sent in the block out of the log of *client*, a package for HTTP."""
    _filter_log(client)
    token = _sending.set(True)
    try:
        yield
    finally:
        _sending.reset(token)


@functools.cache
def _filter_log(client: str) -> None:
    """Add the filter to the logger of the package *client*, whose line at INFO has the whole URL of a request."""
    logging.getLogger(client).addFilter(_hide_query)


def _hide_query(record: logging.LogRecord) -> bool:
    if _sending.get() and isinstance(record.args, tuple):
        record.args = tuple(_without_query(arg) for arg in record.args)
    return True


def _without_query(arg: object) -> object:
    text = str(arg)
    return text.partition("?")[0] if "://" in text and "?" in text else arg


@functools.cache
def _in_one_piece(stream: Any) -> Any:
    """Return a subclass of the client's class for request bodies, iterated without a generator.

    The garbage collector closes a generator that a cancellation leaves unfinished, and trio warns about that.
    """

    class InOnePiece(stream):  # type: ignore[misc]  # the client's own, whichever client it is
        def __init__(self, content: bytes) -> None:
            super().__init__(content)
            self._content = content

        def __aiter__(self) -> _Pieces:
            return _Pieces([self._content])

    return InOnePiece


class _Pieces:
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if not self._pieces:
            raise StopAsyncIteration
        return self._pieces.pop()


async def _read_failed_answer(reply: Reply, host: str) -> ModelTransportError:
    """Return the error for an answer without success, with the message and code in its body."""
    body = b""
    # The status is the main fact; a body that comes slowly or breaks must not delay it.
    with anyio.move_on_after(5.0), suppress(ModelTransportError, ModelBehaviorError):
        body, _ = await reply.read(_ERROR_BODY)
    words, code = read_error_body(body)
    if 300 <= reply.status < 400:
        place = place_of(reply.headers.get("location", ""), f"//{reply.place}")
        said = f"{reply.content_type}, " if reply.content_type else ""
        words = f"{said}sent on from {reply.place} to {place}, where nothing is sent, as the key would go along"
        words = f"{words}.{_hint_v1(reply.place)}"
    error = ModelTransportError(
        f"{host} answered {reply.status}: {words}",
        status=reply.status,
        code=code,
        retry_after=retry_after(reply.headers, time.time()),
        should_retry=should_retry(reply.headers),
        request_id=reply.request_id,
    )
    redact_error(error, reply.redact)
    return error


def _hint_v1(place: str) -> str:
    return "" if "/v1/" in place else " The base URL may lack /v1."
