"""`OpenAIResponsesModel`: models behind the Responses interface, of the vendor and of servers that speak it.

Says which codec (`_responses`) and which vendor an `HttpModel` gets, and sends the same over
WebSocket (`_responses.links`) if that is wanted. Does not know about HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self, Unpack

from agentloop._common.extras import describe_missing
from agentloop.exceptions import UserError, UserValueError
from agentloop.model_events import ModelEvent, ModelRequest
from agentloop.models._codec import HttpCodec, WrittenArray
from agentloop.models._http_model import HttpModel, ReplyEvents
from agentloop.models._openai import OPENAI, make_headers
from agentloop.models._pieces import PieceCache
from agentloop.models._refusals import check_headers
from agentloop.models._responses.answer import ResponsesDecoder
from agentloop.models._responses.request import encode
from agentloop.models._sockets import Target
from agentloop.models.timeouts import HttpOptions, ModelTimeouts

if TYPE_CHECKING:
    from agentloop.models._responses.links import Link
    from agentloop.models._websocket import WebSocket


def make_responses_codec(headers: Callable[[str | None], Mapping[str, str]]) -> HttpCodec:
    """Return the codec of Responses."""
    return HttpCodec(
        path="/responses",
        headers=headers,
        encode=partial(encode, pieces=PieceCache()),
        decoder=ResponsesDecoder,
        features=frozenset({"context_management", "conversations", "hosted_tools", "prompts", "tool_search"}),
    )


class OpenAIResponsesModel(HttpModel):
    """A model behind a Responses server.

    It knows hosted tools, custom tools, stored prompts, namespaces, tool search, reasoning that is sent back, and
    conversations that the provider keeps. `base_url` is the argument, else OPENAI_BASE_URL, else the vendor's. Without
    `api_key` the key in OPENAI_API_KEY is used, but only for the vendor or the server that OPENAI_BASE_URL names; other
    servers get no key. Everything else is as in `HttpModel`.

    `websocket=True` sends requests over WebSocket connections, which needs the extra `realtime`. The server keeps the
    latest answer of a connection in memory, also without a store, so a turn sends what is new only, and long
    conversations of many turns start faster. A request that continues no connection's conversation has one of its own;
    eight are kept for later requests, for 55 minutes each. Leaving an answer closes its connection. No `auth` and no
    `http_client` then; proxies are not used.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        auth: Any = None,
        http_client: Any = None,
        organization: str | None = None,
        project: str | None = None,
        websocket: bool = False,
        timeouts: ModelTimeouts | None = None,
        **options: Unpack[HttpOptions],
    ) -> None:
        super().__init__(
            name,
            make_responses_codec(partial(make_headers, organization=organization, project=project)),
            vendor=OPENAI,
            base_url=base_url,
            api_key=api_key,
            auth=auth,
            http_client=http_client,
            timeouts=timeouts,
            **options,
        )
        if websocket and (auth is not None or http_client is not None):
            raise UserValueError("websocket: its connections are the model's own; auth and http_client are for HTTP")
        self.websocket = websocket

    async def __aenter__(self) -> Self:
        if self.websocket and find_spec("websockets") is None:
            raise UserError(describe_missing(repr(self), "realtime"))
        return await super().__aenter__()

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Call the model. Entering sends the request, leaving ends the response, also when cancelled.

        Raises:
            UserError: if the model isn't entered, its key is missing, or its interface can't express the request.
            ModelTransportError: the server wasn't reached, or answered with an error.
            ModelBehaviorError: the response breaks the protocol, or ended before it was complete.
        """
        return self._converse(request) if self.websocket else self._stream(request)

    def _new_driver(self) -> Any:
        if not self.websocket:
            return super()._new_driver()
        from agentloop.models._responses.links import LinkPool

        return LinkPool(self._connect)

    async def _connect(self, target: Target, timeout: float | None) -> WebSocket:
        from agentloop.models._responses.links import MAX_MESSAGE
        from agentloop.models._websocket import open_websocket  # which needs the extra

        return await open_websocket(
            self.base_url + self._codec.path,
            headers=target.headers,
            query=target.query,
            timeout=timeout,
            ssl_context=None,
            max_message=MAX_MESSAGE,
        )

    @asynccontextmanager
    async def _converse(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        pool: Any = self._driver()
        body = {name: value for name, value in self._encode(request).items() if name != "stream"}
        decoder = ResponsesDecoder(request)
        headers = {name: value for name, value in self._headers_of(request).items() if name not in _OF_POSTS}
        target = Target(check_headers(headers), self._query_of(request))
        async with pool.post(body, target, self._patience(request)) as reply:
            try:
                yield ReplyEvents(reply, decoder)
            finally:
                if reply.complete:
                    self._remember(reply.link, request, decoder)

    def _remember(self, link: Link, request: ModelRequest, decoder: ResponsesDecoder) -> None:
        """Note what the server of *link* knows, now that the answer is complete."""
        link.response_id = decoder.response_id
        kept_elsewhere = request.previous_response_id or request.conversation_id
        if link.response_id is not None and kept_elsewhere is None:
            going_on = request.replace(items=(*request.items, *decoder.items))
            known = self._codec.encode(going_on, self.name)["input"]
            if isinstance(known, WrittenArray):  # else `extra_body` replaces it
                link.known = known.members


_OF_POSTS = ("accept", "accept-encoding", "content-type")
"""Headers that say how a body is written."""


def model_by_name(name: str, *, http_client: Any = None) -> OpenAIResponsesModel:
    """Return the model for the model string `openai:NAME`."""
    return OpenAIResponsesModel(name, http_client=http_client)
