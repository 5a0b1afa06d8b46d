"""Responses over WebSocket: connections that are kept, each with the latest answer in the server's memory.

Theory. A frame asks for an answer with the fields of the HTTP body, and the answer's events are those of HTTP. The
server keeps the latest answer of a connection in memory, whether it is stored or not. So a request that continues it
names it, and sends what is new. Whether it does is decided on the JSON itself: a link knows the members of the input
that its server has, `known`, and a body whose input begins with these is shortened by them.

One link gives one answer at a time. States: free (in the pool; its answer is complete), asked (by one request), closed.
A free link may be dead, too old, or without memory of its answer, which shows before the first event of an answer: then
another takes its place, once, with the whole input. Every other failure, and leaving an answer that isn't over, closes
the link: the interface has no word to stop an answer.

Invariants: no task beside the caller's; every wait is bounded as the request says; a link is in the pool or with one
request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
import attrs

from agentloop.exceptions import ModelTransportError
from agentloop.models._codec import WrittenArray, encode_json, parse_json
from agentloop.models._patience import TOO_LONG, AnswerWait, Patience
from agentloop.models._refusals import SILENT
from agentloop.models._sockets import PROMPT, STALE, Target

if TYPE_CHECKING:
    from agentloop.models._websocket import WebSocket

MAX_MESSAGE = 64_000_000
_MOST_FREE = 8
_MOST_AGE = 3_300.0
"""Seconds after which a link isn't used again: the server ends it after an hour, also in the middle of an answer."""
_FORGOTTEN = ("previous_response_not_found", "websocket_connection_limit_reached")
_SPACES = {10: " ", 13: " "}


@attrs.define(eq=False)
class Link:
    """One connection. `response_id` names its latest answer; a request that continues it begins with `known`."""

    socket: WebSocket
    target: Target
    opened_at: float
    used_at: float = 0.0
    response_id: str | None = None
    known: Sequence[bytes] = ()

    @property
    def is_usable(self) -> bool:
        """True if another request may be sent over it."""
        return self.socket.intact and anyio.current_time() - self.opened_at < _MOST_AGE

    def continues(self, body: Mapping[str, Any]) -> bool:
        """Tell whether *body* continues the latest answer: it names it, or its input begins with what is known."""
        if (named := body.get("previous_response_id")) is not None:
            return bool(named == self.response_id)
        given = body.get("input")
        if not self.known or not isinstance(given, WrittenArray) or "conversation" in body:
            return False
        return len(given.members) > len(self.known) and list(given.members[: len(self.known)]) == list(self.known)

    def shorten(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return *body* without what the server knows, if it continues the latest answer."""
        if "previous_response_id" in body or not self.continues(body):
            return body
        new = WrittenArray(body["input"].members[len(self.known) :])
        return {**body, "input": new, "previous_response_id": self.response_id}


class LinkReply:
    """One answer while it is read. Owned by `LinkPool.post`; the reader sets what it sets over HTTP."""

    content_type: str = "text/event-stream"
    request_id: str | None = None

    def __init__(self, link: Link, patience: Patience) -> None:
        self.link = link
        self.complete = False
        self.wait = AnswerWait(patience, link.socket.place)
        self.redact: Callable[[str], str] = link.socket.redact
        self._first: str | None = None

    async def ask(self, body: Mapping[str, Any]) -> str:
        """Send *body* and return the first event, which `receive` returns again."""
        await self.link.socket.send(encode_json({**body, "type": "response.create"}).decode())
        self._first = await self.wait.next(self.link.socket.receive)
        return self._first

    async def receive(self) -> bytes:
        """Return the next event, as a server-sent one.

        Raises:
            ModelTransportError: if none comes in time, or the connection ends.
            ModelBehaviorError: if the server breaks the protocol.
        """
        text, self._first = self._first, None
        text = await self.wait.next(self.link.socket.receive) if text is None else text
        return b"data: %s\n\n" % text.translate(_SPACES).encode()


class LinkPool:
    """The links of one event loop. The model owns it."""

    def __init__(self, connect: Callable[[Target, float | None], Awaitable[WebSocket]]) -> None:
        self._connect = connect
        self._free: list[Link] = []  # in the order of their last use
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._closed = True
        links, self._free = self._free, []
        await _close_all(links)  # noqa: ASYNC102 - shielded inside

    @asynccontextmanager
    async def post(self, body: Mapping[str, Any], target: Target, patience: Patience) -> AsyncIterator[LinkReply]:
        """Ask for an answer and give it after its first event. Leaving frees the link, or closes it.

        Raises:
            UserError: if *body* can't be written.
            ModelTransportError: if there is no connection, or no event comes in time.
            ModelBehaviorError: if the server breaks the protocol.
        """
        reply = await self._ask(body, target, patience)
        reply.link.response_id, reply.link.known = None, ()
        try:
            yield reply
        finally:
            await self._give_back(reply)  # noqa: ASYNC102 - shielded inside

    async def _ask(self, body: Mapping[str, Any], target: Target, patience: Patience) -> LinkReply:
        link = self._take(body, target)
        if link is not None:
            try:
                return await _begin(link, link.shorten(body), patience, kept=True)
            except ModelTransportError as error:
                if error.code in (SILENT, TOO_LONG):
                    raise
        link = Link(await self._connect(target, patience.connect), target, anyio.current_time())
        return await _begin(link, body, patience, kept=False)

    def _take(self, body: Mapping[str, Any], target: Target) -> Link | None:
        """Take a free link: the one that *body* continues, else the one unused for longest if there are enough."""
        fitting = [one for one in self._free if one.is_usable and one.target == target]
        link = next((one for one in reversed(fitting) if one.continues(body)), None)
        if link is None and len(fitting) >= _MOST_FREE:
            link = fitting[0]
        if link is not None:
            self._free.remove(link)
        return link

    async def _give_back(self, reply: LinkReply) -> None:
        """Keep the link of *reply* if its answer is complete, and close those that are no longer of use."""
        links = [*self._free, reply.link]
        kept = [one for one in links if one.is_usable and (one is not reply.link or reply.complete)]
        self._free = [] if self._closed else kept[-_MOST_FREE:]
        reply.link.used_at = anyio.current_time()
        await _close_all([one for one in links if one not in self._free])


async def _begin(link: Link, body: Mapping[str, Any], patience: Patience, *, kept: bool) -> LinkReply:
    """Ask over *link*, which may have been *kept* since an earlier answer, and wait for the first event."""
    place = link.socket.place
    reply = LinkReply(link, patience)
    try:
        if kept and anyio.current_time() - link.used_at > STALE and not await link.socket.check(PROMPT):
            raise ModelTransportError(f"{place} has fallen silent")
        first = await reply.ask(body)
        if kept and (code := _read_code(first)) in _FORGOTTEN:
            raise ModelTransportError(f"{place} has forgotten the conversation", code=code)
    except BaseException:
        await link.socket.aclose()  # noqa: ASYNC102 - shielded inside
        raise
    return reply


async def _close_all(links: Sequence[Link]) -> None:
    if not links:
        return
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as group:
            for link in links:
                group.start_soon(link.socket.aclose)


def _read_code(text: str) -> str | None:
    """Return the code of the error that an event tells, if it is one."""
    match parse_json(text):
        case {"type": "error", "error": {"code": str(code)}}:
            return code
        case _:
            return None
