"""The HTTP client below the SDK's transport by streamable HTTP: bounded answers, the application's headers.

The SDK bounds the events of a stream, but reads an answer of plain JSON whole. Knows nothing of the protocol.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from agentloop.mcp._oauth import with_renewal
from agentloop.mcp._remarks import Remarks
from agentloop.models._http import hide_queries

_CONNECT_SECONDS = 10.0
_END_SECONDS = 1.0
_NO_METHOD, _WRONG_ARGUMENTS = b"-32601", b"-32602"
"""The codes of JSON-RPC."""


class _BoundedStream(httpx2.AsyncByteStream):  # type: ignore[misc]  # as `Any`, see pyproject.toml
    """The body of one answer, which ends with an error at *most* bytes."""

    def __init__(self, inner: Any, most: int) -> None:
        self._inner = inner
        self._chunks = aiter(inner)
        self._most = self._left = most

    def __aiter__(self) -> _BoundedStream:
        return self

    async def __anext__(self) -> bytes:
        chunk: bytes = await anext(self._chunks)
        self._left -= len(chunk)
        if self._left < 0:
            raise httpx2.StreamError(f"the answer has more than {self._most} bytes")
        return chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Client(httpx2.AsyncClient):  # type: ignore[misc]  # likewise
    """Logs no query of the endpoint, which may hold a key."""

    async def send(self, *request: Any, **options: Any) -> Any:
        with hide_queries("httpx2"):
            return await super().send(*request, **options)


class _BoundedTransport(httpx2.AsyncHTTPTransport):  # type: ignore[misc]  # likewise
    """Bounds every answer that isn't a stream of events: those are bounded event by event."""

    def __init__(self, most: int, remarks: Remarks) -> None:
        super().__init__()
        self._most = most
        self._remarks = remarks

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "DELETE":  # the end of a session, which must not wait for a server that is mute
            request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), _END_SECONDS)
        response = await super().handle_async_request(request)
        if request.method == "POST" and response.status_code >= 300:
            self._remarks.answered(response.status_code, httpx2.codes.get_reason_phrase(response.status_code))
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()  # a few bytes may unpack to any number, and we asked for none of it
            raise httpx2.StreamError("the answer is compressed, which was not asked for")
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _BoundedStream(response.stream, self._most)
            if "mcp-session-id" in request.headers and await _is_unknown(response):
                return httpx2.Response(204 if request.method == "DELETE" else 404, request=request)
        return response


async def _is_unknown(response: httpx2.Response) -> bool:
    """Tell whether an answer within a session says that the server doesn't know the session.

    The protocol has 404 for that, which many servers send as 400. The SDK takes an error in the body for the
    answer of the request; only a 404 without one means to it that the session is gone.
    """
    if response.status_code not in (400, 404):
        return False
    body = (await response.aread()).lower()
    if response.status_code == 404:
        return _NO_METHOD not in body
    # An error of the arguments may quote them, and one of them may be a session of the tool's own.
    return b"session" in body and _WRONG_ARGUMENTS not in body


@asynccontextmanager
async def open_http(
    url: str, headers: Mapping[str, str] | None, auth: Any, http_client: Any, *, max_bytes: int, remarks: Remarks
) -> AsyncIterator[tuple[Any, Any]]:
    """Yield the streams of messages from the server at *url* and to it.

    Args:
        url: The endpoint.
        headers: Headers of every request, for keys and tokens.
        auth: An `httpx2.Auth`, for OAuth; None sends none.
        http_client: An `httpx2.AsyncClient` of the application's, used as it is; None makes one.
        max_bytes: The longest answer, and the longest event of a stream.
        remarks: The remarks about this opening, which get the status of an answer that is an error.
    """
    if http_client is not None:
        async with streamable_http_client(url, http_client=http_client, max_sse_event_size=max_bytes) as streams:
            yield streams
        return
    timeout = httpx2.Timeout(_CONNECT_SECONDS, read=None)  # the calls have their own limits
    given = {"accept-encoding": "identity", **(headers or {})}
    async with (
        _Client(
            auth=with_renewal(auth), headers=given, timeout=timeout, transport=_BoundedTransport(max_bytes, remarks)
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=max_bytes) as streams,
    ):
        yield streams
