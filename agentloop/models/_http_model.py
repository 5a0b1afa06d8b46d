"""`HttpModel`: a model behind an HTTP interface that a codec describes.

Joins a codec, the event decoder (`_sse`) and the HTTP driver (`_http`); keys, URLs, timeouts and entering are here,
once for all providers. Does not know about runs or retries.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from agentloop.abc import Model
from agentloop.exceptions import ModelBehaviorError, ModelTransportError, UserError, UserTypeError, UserValueError
from agentloop.limits import Limit
from agentloop.model_events import ModelEvent, ModelFeature, ModelInfo, ModelRequest
from agentloop.models._codec import (
    Decoder,
    EventDecoder,
    HttpCodec,
    Vendor,
    check_key,
    identify,
    parse_object,
    split_url,
)
from agentloop.models._long_json import open_event
from agentloop.models._omitted import advise, choose_features, choose_omitted
from agentloop.models._patience import Pace, Patience
from agentloop.models._refusals import Failure, read_rates, redact_error
from agentloop.models._shared import Shared
from agentloop.models._sse import SSEDecoder
from agentloop.models.timeouts import HttpOptions, ModelTimeouts, choose_limits, choose_timeouts, patience_of

if TYPE_CHECKING:
    from agentloop.models._http import HttpDriver, Reply

_MAX_BODY = 64_000_000
logger = logging.getLogger("agentloop")


class HttpModel(Model):
    """A model behind the HTTP interface that *codec* describes.

    `base_url` is the argument, else that of the environment variable of *vendor*, else the vendor's own. Without
    `api_key` the key in the vendor's environment variable is used, but only for the vendor itself or the server that
    the environment names; other servers get no key. `auth` signs requests in place of a key: an `httpx.Auth`, or a
    function that takes the client's request and returns it with more headers. `http_client` is an `httpx.AsyncClient`
    or an object with its interface (`httpx2`). The caller owns it, it is never closed here, and the model then need not
    be entered.

    Entering opens a connection pool. Several runs may enter one model at once; the last to leave closes the pool.

    `timeouts` says how long it waits for its server: `ModelTimeouts`. An `http_client` with its own timeouts keeps
    those; `ModelTimeouts.total` holds for it, too. An answer has at most 64 MB.

    `limits` of its requests hold in all runs of the event loop that use them: a `Capacity`, a `Rate`, a `TokenRate`, or
    several. A request waits for its place; what the server says with `Retry-After` and in its rate headers slows all.

    `omit` names fields of the request that aren't sent, for a server that refuses them; `features` says what of the
    interface your server has (`Model.features`), where it has less than the vendor's: a run that needs another one is
    refused before its first request.
    """

    holds_resources: bool = True

    def __init__(
        self,
        name: str,
        codec: HttpCodec,
        *,
        vendor: Vendor | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        auth: Any = None,
        http_client: Any = None,
        timeouts: ModelTimeouts | None = None,
        **options: Unpack[HttpOptions],
    ) -> None:
        if not isinstance(name, str):
            raise UserTypeError(f"name: expected text, got {type(name).__name__}")
        if not name:
            raise UserValueError("name: expected the model's name, got an empty string")
        url = base_url if vendor is None else vendor.find_url(base_url)
        if not url:
            raise UserValueError("base_url: expected the URL of the server")
        self.name = name
        self.base_url: str
        self.base_url, self._query = split_url(url)
        self._cached_by = vendor if vendor is not None and vendor.is_at(self.base_url) else None
        self._codec = codec
        self._vendor = vendor
        self._info = identify(vendor, name, self.base_url)
        key = check_key(api_key)
        if key is None and auth is None and vendor is not None:
            key = vendor.find_key(self.base_url)
        self._has_credentials = key is not None or auth is not None
        self._headers = dict(codec.headers(key))
        self._auth = auth
        self._http_client = http_client
        self.holds_resources = http_client is None
        self.timeouts: ModelTimeouts = choose_timeouts(timeouts, options)
        self.limits: tuple[Limit, ...] = choose_limits(options)
        self._features = choose_features(options, codec.features)
        self._refused: set[str] = choose_omitted(options)
        """Fields that aren't sent: those of `omit`, and dispensable ones that the server doesn't know."""
        self._drivers = Shared(self._open, _close)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, base_url={self.base_url!r})"

    @property
    def info(self) -> ModelInfo:
        """Vendor, name and base URL; the host in place of the vendor if another server is asked."""
        return self._info

    @property
    def features(self) -> frozenset[ModelFeature]:
        """Those of the interface, or the `features` given."""
        return self._features

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
            UserError: if the model isn't entered, its key is missing, or its interface can't express the request.
            ModelTransportError: the server wasn't reached, or answered with an error.
            ModelBehaviorError: the response breaks the protocol, or ended before it was complete.
        """
        return self._stream(request)

    @asynccontextmanager
    async def _stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        decoder = self._codec.decoder(request)
        async with AsyncExitStack() as stack:
            reply = await self._post(stack, request)
            yield ReplyEvents(reply, decoder)

    def _encode(self, request: ModelRequest) -> Mapping[str, Any]:
        """Return the body that sends *request*; to the vendor's own server with a key of its cache."""
        body = self._codec.encode(request, self.name)
        return body if self._cached_by is None else self._cached_by.add_cache_key(body, request)

    async def _post(self, stack: AsyncExitStack, request: ModelRequest) -> Reply:
        """Post *request*, and return the answer, which *stack* closes."""
        driver, body = self._driver(), self._encode(request)
        while True:  # noqa: ASYNC913 - each round posts a request
            sent = {name: value for name, value in body.items() if name not in self._refused}
            answer = driver.post(
                self.base_url + self._codec.path,
                body=sent,
                headers=self._headers_of(request),
                query=self._query_of(request),
                patience=self._patience(request),
                auth=self._auth,
            )
            try:
                reply = await stack.enter_async_context(answer)
                if request.note_rates is not None:
                    request.note_rates(read_rates(reply.headers, time.time()))
                return reply
            except ModelTransportError as error:
                unknown = self._find_unknown(error, sent)
                if not unknown:
                    raise advise(error, sent) from error.__cause__
                logger.warning("%s doesn't know %s: it is asked without it", self._info.provider, ", ".join(unknown))
                self._refused |= unknown

    def _find_unknown(self, error: ModelTransportError, sent: Mapping[str, Any]) -> set[str]:
        """Return the dispensable fields of what was *sent* that the server refuses by name."""
        if error.status not in (400, 422):
            return set()
        return {name for name in self._codec.dispensable if name in sent and name in str(error)}

    def _headers_of(self, request: ModelRequest) -> dict[str, str]:
        return self._headers | {name.lower(): value for name, value in (request.settings.extra_headers or {}).items()}

    def _query_of(self, request: ModelRequest) -> dict[str, str]:
        return self._query | dict(request.settings.extra_query or {})

    def _patience(self, request: ModelRequest) -> Patience:
        return patience_of(self.timeouts, request.settings)

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

    def _require_key(self) -> None:
        vendor = self._vendor
        if self._has_credentials or vendor is None or not (vendor.needs_key and vendor.is_at(self.base_url)):
            return
        variable = vendor.key_variable
        raise UserError(f"{self!r}: no API key. Set the environment variable {variable}, or give `api_key`.")


async def _close(driver: HttpDriver) -> None:
    await driver.__aexit__(None, None, None)


class ReplyEvents:
    """The events of one response, read from the reply only as the consumer needs them. Owned by one call.

    Cancellation: the answer can't be read on; the owner closes the reply.
    """

    def __init__(self, reply: Reply, decoder: Decoder) -> None:
        self._reply = reply
        self._decoder = decoder
        self._sse = SSEDecoder(max_total=_MAX_BODY)
        self._texts: deque[str] = deque()  # the data of server-sent events that aren't decoded yet
        self._pending: deque[ModelEvent] = deque()
        self._pace = Pace()
        self._no_more = False  # True once the reply has no more data
        self._ended = False
        self._failure: Failure | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ModelEvent:
        await self._pace.step()
        while not self._pending:
            if self._failure is not None:
                self._ended = True
                failure, self._failure = self._failure, None
                raise failure
            if self._ended:
                raise StopAsyncIteration
            try:
                with self._reply.wait:
                    await self._read_more()
            except (ModelTransportError, ModelBehaviorError) as error:
                # Events from before the error, maybe in the same piece, are returned first.
                self._failure = redact_error(error, self._reply.redact)
        return self._pending.popleft()

    async def _read_more(self) -> None:
        if self._texts:
            await self._decode(self._texts.popleft())
        elif self._no_more:
            await self._finish()
        elif self._reply.content_type == "application/json":
            await self._read_whole()
        elif self._reply.content_type in _PAGES:
            raise ModelBehaviorError(self._reply.explain_page())
        else:
            data = await self._reply.receive()
            self._no_more = not data
            self._texts.extend(event.data for event in self._sse.feed(data))

    async def _read_whole(self) -> None:
        """Read the answer of a server that doesn't stream, although the request says so."""
        body, complete = await self._reply.read(_MAX_BODY)
        words = body.decode("utf-8", "replace") if complete else "(too long)"
        answer = await open_event(words, _WHOLE) or parse_object(words, _WHOLE)
        if isinstance(self._decoder, EventDecoder):
            await self._take_steps(self._decoder.read_answer(answer))
        else:
            self._pending.extend(self._decoder.feed_answer(answer))
        await self._finish()

    async def _decode(self, text: str) -> None:
        await self._pace.step()  # an event may have nothing to give
        event = await open_event(text, EventDecoder.what)
        if event is not None and isinstance(self._decoder, EventDecoder):
            await self._take_steps(self._decoder.read_event(event))
        else:
            self._pending.extend(self._decoder.feed(text))
        self._reply.wait.begun = self._reply.wait.begun or self._decoder.shown
        if self._decoder.done:
            await self._finish()

    async def _finish(self) -> None:
        self._ended = self._reply.complete = True
        if isinstance(self._decoder, EventDecoder):
            await self._take_steps(self._decoder.read_end(self._reply.request_id))
        else:
            self._pending.extend(self._decoder.finish(self._reply.request_id))

    async def _take_steps(self, steps: Iterator[ModelEvent | None]) -> None:
        """Add what a decoder gives in *steps*: all of it, or nothing if it fails."""
        found: list[ModelEvent] = []
        for event in steps:
            if event is not None:
                found.append(event)
            await self._pace.step()
        self._pending.extend(found)


_WHOLE = "The response"
_PAGES = ("text/html", "application/xhtml+xml")
"""Content types of a web page: the answer of a URL without a model server. A stream may have any other type."""
