"""`RealtimeModel`: a model behind a realtime interface, text only. A conversation stays on the server between requests.

Decides which request uses which line (`_realtime.line`): one conversation and its connection. Does not know about runs;
it recognizes a conversation by the items of a request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

import anyio
import attrs

from agentloop._common.checks import check_count
from agentloop._common.extras import describe_missing
from agentloop.abc import Model
from agentloop.exceptions import UserError, UserTypeError, UserValueError
from agentloop.limits import Limit
from agentloop.model_events import ModelEvent, ModelFeature, ModelInfo, ModelRequest
from agentloop.models._codec import check_key, identify, split_url
from agentloop.models._openai import OPENAI, name_account
from agentloop.models._patience import Patience
from agentloop.models._realtime.conversation import sendable_items
from agentloop.models._realtime.line import MAX_MESSAGE, AnswerEvents, Line
from agentloop.models._realtime.request import encode_session
from agentloop.models._refusals import check_headers
from agentloop.models._shared import Shared
from agentloop.models._sockets import Target
from agentloop.models.timeouts import HttpOptions, ModelTimeouts, choose_limits, choose_timeouts, patience_of

if TYPE_CHECKING:
    from ssl import SSLContext

    from agentloop.models._websocket import WebSocket

_MOST_CONVERSATIONS = 256
_PATH = "/realtime"


class RealtimeModel(Model):
    """A model behind OpenAI's Realtime interface, for conversations in text. Needs the extra `realtime`.

    The server keeps the conversation, over one WebSocket connection. A request sends what the server doesn't have: the
    instructions, tools and settings if they have changed, and the items that are new. A history that doesn't continue
    the conversation of a connection gets a new connection, and so does a request whose conversation is in use: a
    connection gives one answer at a time. `idle_connections` of them are kept for later requests, the latest used.

    Leaving an answer cancels it on the server (`response.cancel`). With its own history (the usual case), the
    next request deletes on the server what the history lacks. A request with `previous_response_id` leaves the memory
    to the server: what the answer had said stays there, and calls in it get an output that says that they weren't run.
    Such a request needs the model to be entered since that response.

    A connection that ends between two requests is replaced by the next, which sends the whole conversation again. An
    error within an answer closes the connection, and is raised as with other models: `ModelRetrySettings` apply.

    `base_url` is the argument, else OPENAI_BASE_URL, else the vendor's; `https:` and `wss:` mean the same. Without
    `api_key` the key in OPENAI_API_KEY is used, but only for the vendor or the server that OPENAI_BASE_URL names.
    `ssl_context` replaces the system's certificates. Proxies are not used.

    Entering opens nothing; connections are opened as requests need them. Several runs may enter one model at once; the
    last to leave closes all connections, within two seconds. No task runs between requests, so a server that dies ends
    nothing but the request that meets it.

    `timeouts` says how long it waits for its server: `ModelTimeouts`, with events as the pieces. `connect` also bounds
    the wait for the session.

    Output types, `conversation_id`, hosted and custom tools, images, files and audio are refused with a `UserError`.
    """

    holds_resources: bool = True

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        organization: str | None = None,
        project: str | None = None,
        ssl_context: SSLContext | None = None,
        timeouts: ModelTimeouts | None = None,
        idle_connections: int = 8,
        **options: Unpack[HttpOptions],
    ) -> None:
        if not isinstance(name, str):
            raise UserTypeError(f"name: expected text, got {type(name).__name__}")
        if not name:
            raise UserValueError("name: expected the model's name, got an empty string")
        self.name = name
        url = OPENAI.find_url(base_url)
        self.base_url: str
        self.base_url, self._query = split_url("http" + url[2:] if url.startswith(("ws:", "wss:")) else url)
        key = check_key(api_key) or OPENAI.find_key(self.base_url)
        self._has_key = key is not None
        self._headers = name_account(key, organization=organization, project=project)
        self._ssl_context = ssl_context
        self.timeouts: ModelTimeouts = choose_timeouts(timeouts, options)
        self.limits: tuple[Limit, ...] = choose_limits(options)
        check_count("idle_connections", idle_connections, least=0)
        self.idle_connections = idle_connections
        self._lines = Shared(self._open, _close)

    def __repr__(self) -> str:
        return f"RealtimeModel({self.name!r}, base_url={self.base_url!r})"

    @property
    def info(self) -> ModelInfo:
        """Vendor, name and base URL; the host in place of the vendor if another server is asked."""
        return identify(OPENAI, self.name, self.base_url)

    @property
    def features(self) -> frozenset[ModelFeature]:
        """Conversations, continued by `previous_response_id` only, and stored prompts."""
        return frozenset({"conversations", "prompts"})

    @property
    def is_entered(self) -> bool:
        """True if the model is entered in the running event loop."""
        return self._lines.current() is not None

    @property
    def is_open(self) -> bool:
        """True if the model can be called now."""
        return self.is_entered

    async def __aenter__(self) -> Self:
        if find_spec("websockets") is None:
            raise UserError(describe_missing(repr(self), "realtime"))
        if not self._has_key and OPENAI.is_at(self.base_url):
            raise UserError(f"{self!r}: no API key. Set the environment variable OPENAI_API_KEY, or give `api_key`.")
        await self._lines.enter()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._lines.leave()  # noqa: ASYNC102 - shielded inside

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Call the model. Entering asks for the answer, leaving cancels an answer that isn't over.

        Cancellation: the connection stays usable, unless a write was cut.

        Raises:
            UserError: if the model isn't entered, the interface can't express the request, or no conversation here
                ended with its `previous_response_id`.
            ModelTransportError: if there is no connection, it breaks, or the server reports an error.
            ModelBehaviorError: if the server breaks the protocol, or breaks an answer off.
        """
        return self._stream(request)

    @asynccontextmanager
    async def _stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        lines = self._lines.current()
        if lines is None:
            raise UserError(f"{self!r} isn't entered: use `async with model:`, or give it to a run, which enters it.")
        session, target = encode_session(request), self._target(request)
        line = lines.take(request)
        answer: AnswerEvents | None = None
        try:
            answer = await line.ask(request, session, target, self._patience(request))
            yield answer
        finally:
            try:
                await line.leave(answer)  # noqa: ASYNC102 - shielded inside
            finally:  # a native cancellation passes through shields
                await lines.give_back(line)  # noqa: ASYNC102 - shielded inside

    def _target(self, request: ModelRequest) -> Target:
        settings = request.settings
        more = {name.lower(): value for name, value in (settings.extra_headers or {}).items()}
        query = {"model": self.name} | self._query | dict(settings.extra_query or {})
        return Target(check_headers(self._headers | more), query)

    def _patience(self, request: ModelRequest) -> Patience:
        return patience_of(self.timeouts, request.settings)

    async def _open(self) -> _LinePool:
        return _LinePool(self)

    async def _open_connection(self, target: Target, timeout: float | None) -> WebSocket:
        """Return a new connection to the server."""
        from agentloop.models._websocket import open_websocket  # which needs the extra

        return await open_websocket(
            self.base_url + _PATH,
            headers=target.headers,
            query=target.query,
            timeout=timeout,
            ssl_context=self._ssl_context,
            max_message=MAX_MESSAGE,
        )


@attrs.define(eq=False)
class _LinePool:
    """The lines of one event loop. Owned by the model; those that a request uses are not in `_free`."""

    _model: RealtimeModel
    _free: list[Line] = attrs.field(factory=list)
    """In the order of their last use, the latest last."""
    _closed: bool = False

    def take(self, request: ModelRequest) -> Line:
        """Return a line whose conversation has adopted *request*: the free one that it continues furthest, or a new.

        Raises:
            UserError: if an item has no form in this interface, or no conversation ended with the response named.
        """
        items = sendable_items(request)
        found = [(overlap, line) for line in self._free if (overlap := line.conversation.find_overlap(request, items))]
        line = max(found, key=lambda each: each[0])[1] if found else None
        if line is None:
            if request.previous_response_id is not None:
                raise UserError(
                    f"previous_response_id: no free realtime conversation of {self._model!r} ended with that response. "
                    "A conversation lives as long as its model is entered; give the whole history instead."
                )
            line = Line(self._model._open_connection, self._model.name)
        line.conversation.adopt(request, items)
        if line in self._free:
            self._free.remove(line)
        return line

    async def give_back(self, line: Line) -> None:
        """Keep *line* for a later request, and close the connections that are too many."""
        if self._closed:
            await line.aclose()
            return
        self._free.append(line)
        forgotten, self._free = self._free[:-_MOST_CONVERSATIONS], self._free[-_MOST_CONVERSATIONS:]
        connected = [each for each in self._free if each.is_connected]
        too_many = connected[: max(len(connected) - self._model.idle_connections, 0)]
        for each in (*forgotten, *too_many):
            await each.aclose()

    async def aclose(self) -> None:
        """Close all connections at once. Bounded, and shielded."""
        self._closed = True
        lines, self._free = self._free, []
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for line in lines:
                    group.start_soon(line.aclose)


async def _close(lines: _LinePool) -> None:
    await lines.aclose()


def model_by_name(name: str, *, http_client: Any = None) -> RealtimeModel:
    """Return the model for the model string `openai-realtime:NAME`. It opens connections of its own."""
    return RealtimeModel(name)
