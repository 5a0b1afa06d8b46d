"""HTTP over ASGI, as much of it as agents need: a bounded body, a checked request, an answer in JSON, the client's end.

Does not know about runs. A fault of the client is a `HTTPRefusal`: a status and one sentence, never a traceback.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, TypeAlias, TypeVar

import anyio
import attrs
import msgspec
from anyio.lowlevel import checkpoint

from agentloop._common.checks import FIELDS, optional
from agentloop._common.web_names import WebNames
from agentloop.exceptions import UserValueError

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers: TypeAlias = Iterable[tuple[bytes, bytes]]
BodyT = TypeVar("BodyT")


@attrs.frozen(kw_only=True)
class WebLimits:
    """The bounds of what a client may send, and of how long it may keep a request open.

    Attributes:
        max_body: The bytes of a request's body.
        body_timeout: The seconds in which the body must have come.
        send_timeout: The seconds in which a client must take a piece of a stream; a client that takes longer is treated
            as one that has left. None = no limit.
        keep_alive: The seconds of silence after which a stream gets a comment, so that proxies keep it open and a
            client that is gone is noticed.
        max_runs: The runs that are under way at the same time; another one is refused with 503.
        max_shared_state: The bytes of a `SharedState` as JSON, of a client's and after each change.
    """

    max_body: int = attrs.field(default=1_000_000, validator=FIELDS.count())
    body_timeout: float = attrs.field(default=30.0, validator=FIELDS.seconds())
    send_timeout: float | None = attrs.field(default=60.0, validator=optional(FIELDS.seconds()))
    keep_alive: float = attrs.field(default=15.0, validator=FIELDS.seconds())
    max_runs: int = attrs.field(default=1_000, validator=FIELDS.count())
    max_shared_state: int = attrs.field(default=100_000, validator=FIELDS.count())


class HTTPRefusal(Exception):
    """A request that is refused: an HTTP status of 400 to 599, and one sentence for the client.

    `AgentApp` answers it as JSON, `{"error": SENTENCE}`. The application's `admit` may raise it.
    """

    def __init__(self, status: int, sentence: str, **fields: Any) -> None:
        if not 400 <= status <= 599:
            raise UserValueError(f"status: expected an HTTP status from 400 to 599, got {status!r}")
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.fields = fields


class ClientGone(Exception):
    """The client has left, or takes nothing any more. Ends the response, without an answer."""


def find_header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first value of the header *name*, given in lower case, or None."""
    return next((value for key, value in scope.get("headers", ()) if key.lower() == name), None)


def check_names(scope: Scope, names: WebNames) -> None:
    """Check that a request is for this server, and that the page that sends it may do so.

    Raises:
        HTTPRefusal: it is for another `Host` (421), or of a page of another origin (403).
    """
    host, origin = (
        None if value is None else value.decode("latin-1")
        for value in (find_header(scope, b"host"), find_header(scope, b"origin"))
    )
    reached_at = scope.get("server")
    if not names.takes_host(host, reached_at[0] if reached_at else None):
        raise HTTPRefusal(421, "The application isn't served under this Host: AgentApp(hosts=…).")
    if not names.takes_origin(origin, host):
        raise HTTPRefusal(403, "Pages of another origin may send no requests: AgentApp(origins=…).")


async def read_body(scope: Scope, receive: Receive, limits: WebLimits) -> bytes:
    """Return the whole body of a request.

    Raises:
        HTTPRefusal: it is longer than the limit (413), or took longer than the limit (408).
        ClientGone: the client has left before its end.
    """
    too_long = HTTPRefusal(413, f"The body is longer than {limits.max_body} bytes.")
    declared = find_header(scope, b"content-length")
    if declared is not None and (len(declared) > 18 or (declared.isdigit() and int(declared) > limits.max_body)):
        raise too_long
    body = bytearray()
    with anyio.move_on_after(limits.body_timeout):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            body += message.get("body", b"")
            if len(body) > limits.max_body:
                raise too_long
            if not message.get("more_body", False):
                return bytes(body)
    raise HTTPRefusal(408, f"The body has not come within {limits.body_timeout:g} seconds.")


def parse_body(scope: Scope, body: bytes, decoder: msgspec.json.Decoder[BodyT]) -> BodyT:
    """Return the JSON in *body* as *decoder* reads it.

    Raises:
        HTTPRefusal: the content type doesn't say JSON (415), or the body doesn't fit (400); names the place.
    """
    check_json(scope, body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise HTTPRefusal(400, f"The body doesn't fit: {error}.") from None
    except (ValueError, RecursionError):
        raise HTTPRefusal(400, "The body is no JSON text.") from None


def check_json(scope: Scope, body: bytes) -> bytes:
    """Return *body* if the content type says JSON: a form on another site can't send that without being asked.

    Raises:
        HTTPRefusal: it doesn't (415).
    """
    content_type = (find_header(scope, b"content-type") or b"").split(b";")[0].strip().lower()
    if content_type != b"application/json":
        raise HTTPRefusal(415, "Expected the content type application/json.")
    return body


def encode_public(data: Mapping[str, Any]) -> bytes:
    """Return *data* as JSON, with `?` for each half of a character, as at the end of a delta."""
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:
        return msgspec.json.encode(replace_surrogates(data))


def replace_surrogates(value: Any) -> Any:
    """Return a value of JSON with `?` for each half of a character."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {key: replace_surrogates(one) for key, one in value.items()}
    return [replace_surrogates(one) for one in value] if isinstance(value, list | tuple) else value


async def answer_json(send: Send, status: int, data: Any, headers: Headers = ()) -> None:
    """Send *data* as the whole response.

    Raises:
        ClientGone: the client has left.
    """
    body = encode_public(data)
    usual = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await answer(send, status, body, [*usual, *headers])


async def answer(send: Send, status: int, body: bytes = b"", headers: Headers = ()) -> None:
    """Send a whole response, which nothing between here and the client keeps.

    Raises:
        ClientGone: the client has left.
    """
    head = {"type": "http.response.start", "status": status, "headers": [*headers, (b"cache-control", b"no-store")]}
    try:
        await send(head)
        await send({"type": "http.response.body", "body": body})
    except OSError as error:  # how a server says it
        raise ClientGone from error


async def while_connected(receive: Receive, work: Callable[[], Awaitable[None]]) -> None:
    """Do *work* until it ends or the client leaves, which cancels it; return when it has ended.

    Cancellation: *work* is cancelled and awaited.

    Raises:
        Exception: the error of *work*, or of *receive*, bare.
    """
    failure: Exception | None = None
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            nonlocal failure
            try:
                while True:
                    if (await receive())["type"] == "http.disconnect":
                        break
                    await checkpoint()  # it was the rest of a body that the application has not read
            except Exception as error:
                failure = error
            group.cancel_scope.cancel()

        group.start_soon(watch)
        try:
            await work()
        except Exception as error:
            failure = failure or error
        group.cancel_scope.cancel()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure
