"""`OpenAIChatModel`: models behind the Chat Completions interface, of the vendor and of many other servers.

Joins the codec (`_chat`), the event decoder (`_sse`) and the HTTP driver (`_http`). Does not know about runs or
retries.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from agentloop._common.checks import check_seconds
from agentloop.abc import Model
from agentloop.exceptions import ModelBehaviorError, ModelTransportError, UserError, UserTypeError, UserValueError
from agentloop.model_events import ModelEvent, ModelRequest
from agentloop.models._chat import ChatDecoder, encode
from agentloop.models._common import parse_object
from agentloop.models._shared import Shared
from agentloop.models._sse import SSEDecoder

if TYPE_CHECKING:
    from agentloop.models._http import HttpDriver, Patience, Reply

VENDOR_URL = "https://api.openai.com/v1"
_MAX_BODY = 64_000_000


class OpenAIChatModel(Model):
    """A model behind a Chat Completions server.

    `base_url` is the argument, else OPENAI_BASE_URL, else the vendor's. Without `api_key` the key in OPENAI_API_KEY is
    used, but only for the vendor or the server that OPENAI_BASE_URL names; other servers get no key. `http_client` is
    an `httpx.AsyncClient` or an object with its interface. The caller owns it, it is never closed here, and the model
    then need not be entered. `constrained=True` lets small models call tools: one call per turn, forced into a schema
    (the tool choice `"none"` gives a text answer).

    Entering opens a connection pool. Several runs may enter one model at once; the last to leave closes the pool.

    Timeouts are seconds, None = no limit, and each is counted on its own: `connect_timeout` for a connection,
    `first_output_timeout` until the first output of an answer (not given: 300, or 600 if `ModelSettings.reasoning`
    requests effort), `silence_timeout` between two pieces of an answer that has begun. `ModelSettings.timeout` bounds a
    whole attempt. An `http_client` with timeouts of its own keeps those.
    """

    holds_resources: bool = True

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        http_client: Any = None,
        constrained: bool = False,
        organization: str | None = None,
        project: str | None = None,
        connect_timeout: float | None = 10.0,
        silence_timeout: float | None = 60.0,
        first_output_timeout: float | EllipsisType | None = ...,
    ) -> None:
        if not isinstance(name, str):
            raise UserTypeError(f"name: text is needed, not {type(name).__name__}")
        if not name:
            raise UserValueError("name: the model's name is needed, not an empty string")
        self.name = name
        self.constrained = constrained
        self.base_url: str
        self.base_url, self._query = _split_url(base_url or _env("OPENAI_BASE_URL") or VENDOR_URL)
        self._key = _check_key(api_key) or self._environment_key()
        self._headers = _headers(self._key, organization, project)
        self._http_client = http_client
        self.holds_resources = http_client is None
        self.connect_timeout: float | None = check_seconds("connect_timeout", connect_timeout)
        self.silence_timeout: float | None = check_seconds("silence_timeout", silence_timeout)
        self.first_output_timeout = first_output_timeout
        if first_output_timeout is not ...:
            check_seconds("first_output_timeout", first_output_timeout)
        self._drivers = Shared(self._open, _close)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, base_url={self.base_url!r})"

    @property
    def is_entered(self) -> bool:
        """True if the model is entered in the running event loop."""
        return self._drivers.current() is not None

    @property
    def is_open(self) -> bool:
        """True if the model can be called now: it is entered, or has an HTTP client of the application."""
        return self.is_entered or not self.holds_resources

    async def __aenter__(self) -> Self:
        self._require_key()
        await self._drivers.enter()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._drivers.leave()  # noqa: ASYNC102 - shielded inside

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Call the model. Entering posts the request, leaving closes the response, also when cancelled.

        Raises:
            UserError: if the model isn't entered, its key is missing, or Chat Completions can't express the request.
            ModelTransportError: the server wasn't reached, or answered with an error.
            ModelBehaviorError: the response breaks the protocol, or ended before it was complete.
        """
        return self._stream(request)

    @asynccontextmanager
    async def _stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        driver = self._driver()
        vendor = _is_vendor(self.base_url)
        body = encode(
            request,
            self.name,
            constrained=self.constrained,
            max_tokens_field="max_completion_tokens" if vendor else "max_tokens",
        )
        decoder = ChatDecoder(request, constrained=self.constrained)
        settings = request.settings
        headers = self._headers | {name.lower(): value for name, value in (settings.extra_headers or {}).items()}
        query = self._query | dict(settings.extra_query or {})
        url, patience = f"{self.base_url}/chat/completions", self._patience(request)
        async with driver.post(url, body=body, headers=headers, query=query, patience=patience) as reply:
            yield _Events(reply, decoder)

    def _patience(self, request: ModelRequest) -> Patience:
        from agentloop.models._http import Patience  # imported late, as in `_new_driver`

        first = self.first_output_timeout
        if first is ...:
            first = 600.0 if (request.settings.reasoning or {}).get("effort") else 300.0
        return Patience(self.connect_timeout, first, self.silence_timeout)

    def _driver(self) -> HttpDriver:
        driver = self._drivers.current()
        if driver is not None:
            return driver
        if self._http_client is None:
            raise UserError(f"{self!r} isn't entered: use `async with model:`, or give it to a run, which enters it.")
        self._require_key()
        return self._new_driver()

    def _new_driver(self) -> HttpDriver:
        from agentloop.models._http import HttpDriver  # importing httpx is slow, and most programs need it later

        return HttpDriver(self._http_client)

    async def _open(self) -> HttpDriver:
        return await self._new_driver().__aenter__()

    def _environment_key(self) -> str | None:
        configured = _env("OPENAI_BASE_URL")
        homes = [VENDOR_URL] if configured is None else [VENDOR_URL, configured]
        if urlsplit(self.base_url).netloc not in [urlsplit(home).netloc for home in homes]:
            return None
        return _check_key(_env("OPENAI_API_KEY"))

    def _require_key(self) -> None:
        if self._key is None and _is_vendor(self.base_url):
            raise UserError(f"{self!r}: no API key. Set the environment variable OPENAI_API_KEY, or give `api_key`.")


async def _close(driver: HttpDriver) -> None:
    await driver.__aexit__(None, None, None)


_Failure: TypeAlias = ModelTransportError | ModelBehaviorError


class _Events:
    """The events of one response, read from the reply only as the consumer needs them. Owned by one `_stream`."""

    def __init__(self, reply: Reply, decoder: ChatDecoder) -> None:
        self._reply = reply
        self._decoder = decoder
        self._sse = SSEDecoder(max_total=_MAX_BODY)
        self._pending: deque[ModelEvent] = deque()
        self._ended = False
        self._failure: _Failure | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        while not self._pending:
            if self._failure is not None:
                self._ended = True
                failure, self._failure = self._failure, None
                raise failure
            if self._ended:
                raise StopAsyncIteration
            try:
                await self._read_more()
            except (ModelTransportError, ModelBehaviorError) as error:
                # Events from before the error, maybe in the same piece, are returned first.
                self._failure = self._redact_error(error)
        return self._pending.popleft()

    def _redact_error(self, error: _Failure) -> _Failure:
        error.args = (self._reply.redact(str(error)),)
        if isinstance(error, ModelTransportError) and error.code is not None:
            error.code = self._reply.redact(error.code)
        return error

    async def _read_more(self) -> None:
        if self._reply.content_type == "application/json":
            # The server doesn't stream, although the request says so.
            body, complete = await self._reply.read(_MAX_BODY)
            words = body.decode("utf-8", "replace") if complete else "(too long)"
            self._pending.extend(self._decoder.feed_chunk(parse_object(words, "The response")))
            self._finish()
            return
        if self._reply.content_type in _PAGES:
            raise ModelBehaviorError(self._reply.redact(self._reply.told_as_page()))
        data = await self._reply.receive()
        for event in self._sse.feed(data):
            self._pending.extend(self._decoder.feed(event.data))
        self._reply.begun = self._reply.begun or self._decoder.shown
        if self._decoder.done or not data:
            self._finish()

    def _finish(self) -> None:
        self._ended = self._reply.complete = True
        self._pending.extend(self._decoder.finish(self._reply.request_id))


_PAGES = ("text/html", "application/xhtml+xml")
"""Content types of a web page: the answer of a URL without a model server. A stream may have any other type."""


def _env(name: str) -> str | None:
    return os.environ.get(name, "").strip() or None


def _is_vendor(url: str) -> bool:
    return urlsplit(url).netloc == urlsplit(VENDOR_URL).netloc


def _split_url(url: str) -> tuple[str, dict[str, str]]:
    """Return *url* without its query and trailing slash, and the query, which every request repeats."""
    if "@" in url:  # the part before it may be a password, so the URL isn't quoted
        raise UserValueError("base_url: credentials don't belong in the URL; give `api_key`")
    parts = _http_parts(url)
    if parts is None:
        raise UserValueError(f"base_url: an http or https URL is needed, not {url!r}")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")), dict(parse_qsl(parts.query))


def _http_parts(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


def _check_key(key: str | None) -> str | None:
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise UserValueError("api_key holds characters that no key has.")
    return key or None


def _headers(key: str | None, organization: str | None, project: str | None) -> dict[str, str]:
    given: Mapping[str, str | None] = {
        "accept": "text/event-stream",
        "accept-encoding": "gzip",
        "content-type": "application/json",
        "authorization": f"Bearer {key}" if key else None,
        "openai-organization": organization,
        "openai-project": project,
    }
    return {name: value for name, value in given.items() if value}


def model_by_name(name: str, *, http_client: Any = None) -> OpenAIChatModel:
    """Return the model for the model string `openai-chat:NAME`."""
    return OpenAIChatModel(name, http_client=http_client)
