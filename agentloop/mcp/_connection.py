"""One connection to a server, held in its own task, and made again after it was lost.

Does not know about runs or agents: `_server` makes tools of what is listed here.

Theory. The SDK's client is a stack of task groups, and what breaks a connection breaks these groups: opened in the task
that calls a tool, a dead HTTP server would cancel everything in that task. So one task, `_own`, enters and leaves the
client, and gives it to the calls of any task: they send their requests through it and wait in their own scopes. No
nursery holds that task, so that any task may close what another has opened, and two connections close in any order.

`_own` is in one of these states, and tells the waiting tasks of each change (`_changed`):

    closed → open       a use wants it (`_wanted`); after the pause that follows a failure
    open → closed       it was lost: the client raised, the transport ended, or a call found the session gone
    open → ended        the owner leaves (`_leaving`)

A loss ends the calls in flight: the SDK answers their requests with `CONNECTION_CLOSED`, and calls that still wait
are cancelled by their scopes in `_calls`. Each such call raises `OutcomeUnknown`: its request may have been sent. A
call that finds no connection, and can't open one, has sent nothing and fails with `MCPConnectionError`.

Invariants: only `_own` enters and leaves the client. A call ends within its own cancellation or that of its scope,
never with that of the client's groups. Nothing waits without a bound but the calls themselves, whose tools have limits.

Decisions:

The protocol is the official SDK's. It speaks two eras (a handshake, and since 2026 requests without one), negotiates
between them, and follows the servers there are; a codec of our own would have to be kept up with each of them, and
the errors of servers would be distinguished from ours by no one. What it costs is an extra with its own HTTP client,
imported when the first connection opens.

Its traps, and how they are met (`mcp/_connection.py` has the theory):

Its client is a stack of task groups. A dead HTTP server breaks them in the task that entered it, and cancels anything
that else runs there. So its own task holds each connection. No nursery holds that task: one would bind the server to
the task that opened it, and fixtures, lifespans and exit stacks close in another. Leaving the server waits for it. A
request in flight over a lost connection fails as any other. Here it is in doubt: `OutcomeUnknown`. A request that
can't be sent is a failure that took no effect. Its transport by stdio keeps a line of any length and passes on
stderr. Ours is bounded, logs, and ends the process group: closing stdin, then SIGTERM, then SIGKILL. Its transport by
HTTP reads plain answers whole, and unpacks them: a client of ours bounds both. It follows no reference of a schema
but trusts the server with the arguments: they are checked before any approval. It checks answers by the server's
schema, and a schema is a program: `allOf` that doubles with each reference, or a pattern that backtracks, stops the
process. Its check is taken out. Ours counts steps (`mcp/_schemas.py`), leaves what isn't linear to the server, and
looks through new schemas in a thread. Rejected: the check in a thread or a child with a time limit: a pattern that
backtracks holds the interpreter's lock, a thread can't be ended, and a process for each call costs more than the
call. One tool with a schema that isn't an object's makes it refuse the whole list. The server then can't be used; the
error names it. On trio, generators of its HTTP client are left to the garbage collector, which warns
(`ResourceWarning`).

Who holds a connection: the application's `async with`, else the open runtime, else the outermost run
(`RunContext.shared_resource`). A connection that was lost is opened by the next call; the question for tools, which
every turn asks, answers with what was listed last. So a server that is gone doesn't end the run: the model learns the
truth when it calls.

An agent as a server: where the era has no sessions, the question ends the request, and the client carries the run's
state. The SDK's seal keeps it from being read and changed, but not from being sent twice; so the server has a ticket
for each state, by the means of the web application. Both describe errors by the same sentences, so `mcp` imports
these from `asgi`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from functools import partial
from typing import Any, Literal

import anyio
from anyio.lowlevel import checkpoint

from agentloop._common.error_text import error_summary
from agentloop._common.errors import AnswerError
from agentloop._common.version import __version__
from agentloop._concurrency.backend import start_detached
from agentloop.exceptions import OutcomeUnknown
from agentloop.mcp._remarks import Remarks

logger = logging.getLogger("agentloop.mcp")

Transport = Callable[[], AbstractAsyncContextManager[Any]]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_MOST_LISTED, _MOST_PAGES = 1_000, 100
_SESSION_GONE = "Session terminated"
_METHOD_NOT_FOUND = -32601
_NOBODY = ". The server asks its user, and there is nobody to ask: the application gives no `elicit`"
_LIST_SECONDS = 10.0
_LONGEST_CAUSE = 300


class MCPToolError(AnswerError):
    """A server says that a call failed, in its own words.

    Attributes:
        code: The protocol's error code, if the server refused the request itself; None if the tool failed.
    """

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class MCPConnectionError(Exception):
    """A server can't be reached. Nothing was sent to it: no call took effect."""


class Connection:
    """The connection to one server. Entered, left and used by any task of the same event loop.

    *transport* opens a new transport each time, and gives *remarks* what it sees of the server. *mode* is the SDK's:
    `"auto"`, `"legacy"` or a version. *context* is that of the code which wants the connection: the requests that open
    it belong to its trace. *answer* answers the server's questions to its user; without it the
    client says that it can't ask.
    """

    def __init__(
        self,
        name: str,
        transport: Transport,
        *,
        connect_timeout: float,
        mode: str,
        remarks: Remarks,
        context: Context,
        answer: Callable[[Any, Any], Awaitable[Any]] | None = None,
    ) -> None:
        self.name = name
        self._remarks = remarks
        self._context = context
        self._transport = transport
        self._connect_timeout = connect_timeout
        self._mode = mode
        self._answer: Any = answer
        self.tools: list[Any] | None = None
        """The tools that the server listed last."""
        self.is_stale = True
        """True if the server may have other tools than it listed last."""
        self._client: Any = None
        self._error: BaseException | None = None
        self._failures = 0
        """Losses and failed openings since the last answer: the pause before the next opening grows with them."""
        self._refusals = 0
        """Openings that failed: a waiting call that sees one more of them gives up."""
        self._calls: set[anyio.CancelScope] = set()
        self._wanted = anyio.Event()
        self._changed = anyio.Event()
        self._lost = anyio.Event()
        self._leaving = anyio.Event()
        self._listing = anyio.Lock()
        self._scope = anyio.CancelScope()
        self._began = anyio.Event()
        """Set once the connection is open for the first time, or can't be opened."""
        self._ended = anyio.Event()
        self._failure: BaseException | None = None
        """Why it could not be opened for the first time."""

    async def __aenter__(self) -> Connection:
        """Open the connection and list the tools.

        Raises:
            MCPConnectionError: the server can't be reached, or doesn't speak the protocol.
        """
        self._wanted.set()
        start_detached(self._own, f"MCP server {self.name}", self._context)
        try:
            await self._began.wait()
            if self._failure is not None:
                raise self._failure
        except BaseException:
            await self.__aexit__()  # noqa: ASYNC102 - as below
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leaving.set()
        self._lost.set()
        self._wanted.set()
        if self._client is None:
            self._scope.cancel()  # it may be about to open
        with anyio.CancelScope(shield=True):  # bounded by the transport's own exit
            await self._ended.wait()

    # -- the owner

    async def _own(self) -> None:
        """Hold the connection, again and again as it is wanted, until the owner leaves. Raises only a cancellation."""
        try:
            with self._scope:
                await self._hold()
        except Exception as error:
            self._failure = error
        finally:
            self._leaving.set()  # no call waits for an owner that was cancelled
            self._set(None, self._error)
            self._failure = self._failure or self._closed()
            self._began.set()
            self._ended.set()

    async def _hold(self) -> None:
        while not self._leaving.is_set():
            await self._wanted.wait()
            if self._failures:
                with anyio.move_on_after(min(_FIRST_PAUSE * 2 ** (self._failures - 1), _LONGEST_PAUSE)):
                    await self._leaving.wait()
            if self._leaving.is_set():
                return
            self._wanted, self._lost = anyio.Event(), anyio.Event()
            opened = False
            try:
                async with self._open() as client:
                    opened = True
                    self._set(client, None)
                    self._began.set()
                    await self._lost.wait()
            except (Exception, BaseExceptionGroup) as error:
                cause = _first_leaf(error)
                if not isinstance(cause, Exception):
                    raise
                if not opened:
                    self._refusals += 1
                logger.info("MCP server %r: connection lost: %s", self.name, error_summary(cause))
                self._set(None, cause)
                if not self._began.is_set():
                    raise self._unreachable(cause) from None
            finally:
                self._failures += 1
                self._close()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        """Yield a client that has shaken hands and listed the tools, within the time for that."""
        from mcp import Client
        from mcp.types import Implementation

        with anyio.CancelScope() as scope:
            scope.deadline = anyio.current_time() + self._connect_timeout
            async with (
                Client(
                    self._open_transport(),
                    message_handler=self._hear,
                    elicitation_callback=self._answer,
                    mode=self._mode,
                    cache=None,
                    client_info=Implementation(name="agentloop", version=__version__),
                ) as client,
                anyio.create_task_group() as group,
            ):
                client.session.validate_tool_result = _leave_unchecked
                self.tools = await self._list(client)
                self.is_stale = False
                scope.deadline = float("inf")
                group.start_soon(self._watch, client)
                try:
                    yield client
                finally:
                    group.cancel_scope.cancel()
        if scope.cancelled_caught:
            raise TimeoutError(f"no answer within {self._connect_timeout:g} seconds")

    @asynccontextmanager
    async def _open_transport(self) -> AsyncIterator[Any]:
        """Open the transport; when the stream of its messages ends, the connection is lost."""
        lost = self._lost

        def end() -> None:
            if self._lost is lost:  # else another connection has been opened since
                self._client = None
            lost.set()

        self._remarks.begin()
        async with self._transport() as (read, write):
            yield _MessageStream(read, end), write

    def _set(self, client: Any, error: BaseException | None) -> None:
        self._client, self._error = client, error
        self._changed.set()
        self._changed = anyio.Event()

    def _close(self) -> None:
        """Forget the client, and end what still waits for it."""
        self.is_stale = True
        for scope in list(self._calls):
            scope.cancel()
        self._set(None, self._error)

    # -- changes

    async def _hear(self, message: Any) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self.is_stale = True

    async def _watch(self, client: Any) -> None:
        """Subscribe to changes of the tools, where the server's era has subscriptions; older ones just notify."""
        from mcp.client.subscriptions import ListenNotSupportedError

        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return
        try:
            while True:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self.is_stale = True
                self.is_stale = True  # what changed between two subscriptions is not known
                await anyio.sleep(_LONGEST_PAUSE)
        except ListenNotSupportedError:
            return
        except Exception as error:  # a server without changes is still a server
            self.is_stale = True
            logger.info("MCP server %r: no changes of tools will be heard of: %s", self.name, error_summary(error))

    # -- uses

    async def list_tools(self) -> list[Any]:
        """Return the tools of the server, asked again if they may have changed.

        While the connection is lost, those that were listed last: a call opens it again, a question doesn't.
        """
        async with self._listing:
            client = self._client
            if client is not None and self.is_stale:
                self.is_stale = False
                try:
                    self.tools = await self._request(partial(self._list, client))
                except (OutcomeUnknown, MCPToolError, TimeoutError) as error:
                    self.is_stale = True
                    logger.warning("MCP server %r couldn't list its tools: %s", self.name, error_summary(error))
            return self.tools or []

    async def _list(self, client: Any, what: str = "tools") -> list[Any]:
        """Return every page of the server's *what*, as far as the bounds allow."""
        found: list[Any] = []
        cursor: str | None = None
        with anyio.fail_after(_LIST_SECONDS):  # noqa: ASYNC912 - there is a first page
            for _ in range(_MOST_PAGES):
                page = await getattr(client, f"list_{what}")(cursor=cursor)
                found += getattr(page, what)
                cursor = page.next_cursor
                if not cursor or len(found) > _MOST_LISTED:
                    break
        if len(found) > _MOST_LISTED or cursor:
            words = what.replace("_", " ")
            logger.warning(
                "MCP server %r lists more than %d %s: the others are left out", self.name, _MOST_LISTED, words
            )
        return found[:_MOST_LISTED]

    async def call_tool(self, name: str, arguments: dict[str, Any], report: Any, meta: dict[str, Any]) -> Any:
        """Call a tool and return the SDK's result.

        Cancellation: a notice goes to the server first, for which one that doesn't read any more has a bounded time.

        Raises:
            MCPConnectionError: the server can't be reached; nothing was sent.
            OutcomeUnknown: the connection was lost within the call.
            MCPToolError: the server refused the request, or its answer isn't one.
        """

        async def call(client: Any) -> Any:
            return await client.call_tool(name, arguments, progress_callback=report, meta=meta)

        return await self._ask(call)

    async def list_all(self, what: Literal["resources", "resource_templates", "prompts"]) -> list[Any]:
        """Return what the server lists; nothing if it has no such thing. As `call_tool`.

        Raises:
            TimeoutError: it doesn't answer.
        """
        try:
            found: list[Any] = await self._ask(partial(self._list, what=what))
            return found
        except MCPToolError as error:
            if error.code == _METHOD_NOT_FOUND:
                return []
            raise

    async def read_resource(self, uri: str) -> Any:
        """Read a resource, as `call_tool`."""
        return await self._ask(lambda client: client.read_resource(uri))

    async def get_prompt(self, name: str, arguments: dict[str, str]) -> Any:
        """Get a prompt, as `call_tool`."""
        return await self._ask(lambda client: client.get_prompt(name, arguments))

    async def recover(self) -> None:
        """Open the connection again if it was lost, within the time for that.

        Raises:
            MCPConnectionError: it can't be opened.
        """
        with anyio.move_on_after(self._connect_timeout):
            await self._ensure_connected()
        if self._client is None:
            raise self._unreachable(self._error)

    async def _ask(self, request: Callable[[Any], Awaitable[Any]]) -> Any:
        """Send a request by the client, and once more if the server was started anew and didn't know the session."""
        for last in (False, True):
            client = await self._ensure_connected()
            try:
                return await self._request(partial(request, client))
            except MCPToolError as error:
                if last or str(error) != _SESSION_GONE:
                    raise
                self._lose(client)  # the server was started anew, and knew nothing of the request
        raise AssertionError  # pragma: no cover - the loop returns or raises

    async def _ensure_connected(self) -> Any:
        """Return the client; open the connection if it was lost.

        Raises:
            MCPConnectionError: it can't be opened.
        """
        while self._client is None:
            if self._leaving.is_set():
                raise self._closed()
            changed = self._changed
            refusals = self._refusals
            self._wanted.set()
            await changed.wait()
            if self._refusals > refusals:
                raise self._unreachable(self._error)
        return self._client

    def _lose(self, client: Any) -> None:
        if self._client is client:
            self._client = None
            self._lost.set()

    async def _request(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        from mcp import types
        from mcp.shared.exceptions import MCPError
        from pydantic import ValidationError

        with anyio.CancelScope() as scope:  # noqa: ASYNC912 - every request waits for its answer
            self._calls.add(scope)
            try:
                result = await ask()
            except MCPError as error:
                if error.code != types.CONNECTION_CLOSED:
                    hint = _NOBODY if self._answer is None and "elicitation" in error.message.lower() else ""
                    raise MCPToolError(error.message + hint, code=error.code) from error
                raise self._unknown() from error
            except ValidationError as error:
                raise MCPToolError("the server's answer is none of the protocol") from error
            except RuntimeError as error:  # the SDK's, of an answer that it doesn't expect here
                raise MCPToolError(str(error)) from error
            finally:
                self._calls.discard(scope)
            self._failures = 0
            return result
        raise self._unknown()

    def _unknown(self) -> OutcomeUnknown:
        return OutcomeUnknown(f"the connection to MCP server {self.name!r} was lost during the call")

    def _closed(self) -> MCPConnectionError:
        return MCPConnectionError(f"the connection to MCP server {self.name!r} is closed")

    def _unreachable(self, cause: BaseException | None) -> MCPConnectionError:
        words = str(cause).partition("\n")[0][:_LONGEST_CAUSE]
        return MCPConnectionError(
            f"MCP server {self.name!r} can't be used: {type(cause).__name__}: {words}{self._remarks}"
        )


async def _leave_unchecked(name: str, result: Any) -> None:
    """Check no answer, in place of the SDK, whose check isn't bounded: `_server` makes it."""
    await checkpoint()


class _MessageStream:
    """A stream of messages that calls *ended* once it has no more of them."""

    def __init__(self, inner: Any, ended: Callable[[], None]) -> None:
        self._inner = inner
        self._ended = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # the context in which each message was sent, where the stream knows it

    def __aiter__(self) -> _MessageStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._inner.__anext__()
        except BaseException:
            self._ended()
            raise

    async def receive(self) -> Any:
        return await self.__anext__()

    async def aclose(self) -> None:
        self._ended()
        await self._inner.aclose()

    async def __aenter__(self) -> _MessageStream:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        with contextlib.suppress(anyio.ClosedResourceError):
            await self._inner.__aexit__(*error)  # noqa: ASYNC102 - doesn't wait
        self._ended()


def _first_leaf(error: BaseException) -> BaseException:
    """Return the error itself, or of a group the first error in it that isn't a cancellation."""
    while isinstance(error, BaseExceptionGroup):
        errors, _ = error.split(lambda leaf: isinstance(leaf, Exception) and not isinstance(leaf, BaseExceptionGroup))
        error = (errors or error).exceptions[0]
    return error
