"""The questions of one server to its user (elicitation), asked of the application within the call that they belong to.

Knows connections only as far as they call `answer`, in a task of the SDK's.

Theory. In the era without sessions a question is the end of a request, and is asked in the task of the call. In the era
with them it comes over the connection, while the request waits, and says by HTTP alone which request that is. So a
question belongs to the call whose context it is asked in; else to the only call under way; else to all that are. It
ends with the last of the calls it belongs to. As long as it is open, these calls aren't silent: the person is, not the
server. We report progress for them, which restarts their `idle_timeout`.

Decisions:

A question doesn't pause the run. With a session the server waits in the middle of a request, which ends with the
process that sent it; a run that was resumed elsewhere could only call anew. Without one the server's state could be
carried, sealed, but only this server knows whether it may be used twice, which a crash after the answer would do. So
the run waits in the process, for as long as the call may take. What a crash leaves is a call in doubt, as any other.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

import anyio
import attrs

from agentloop._common.error_text import error_summary
from agentloop._common.errors import UserTypeError, UserValueError
from agentloop._engine.runtime.callbacks import resolve
from agentloop.context import ToolContext
from agentloop.mcp._schemas import Meter, make_check

logger = logging.getLogger("agentloop.mcp")

_LONGEST_SILENCE = 2.0
_REFUSAL = "The client couldn't ask its user."


@attrs.frozen(kw_only=True)
class Elicitation:
    """A question that a server asks its user within a call, for `MCPServer(elicit=…)`.

    All of it is the server's word: show the user which server asks.

    Attributes:
        server: The name of the `MCPServer`.
        message: The question.
        schema: The JSON schema of the answer, an object with fields of text, numbers and booleans; None for a `url`.
        url: An address that the user is to visit, for what the client mustn't see. Show it, and open it only if the
            user wants that.
        call: The context of the call, for `emit`, for example. None if the server asks outside of a call, or if it
            doesn't say within which of several.
    """

    server: str
    message: str
    schema: Mapping[str, Any] | None = None
    url: str | None = None
    call: ToolContext[Any] | None = None


ElicitationAnswer: TypeAlias = Mapping[str, Any] | Literal["accept", "decline", "cancel"]
Elicit: TypeAlias = Callable[[Elicitation], ElicitationAnswer | Awaitable[ElicitationAnswer]]


@attrs.define(eq=False)
class _AskedCall:
    """A call under way, and its last progress."""

    context: ToolContext[Any]
    progress: tuple[float, float | None] = (0.0, None)

    async def report(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Pass the server's progress on."""
        self.progress = progress, total
        await self.context.report(progress, total, message)


@attrs.define(eq=False)
class _OpenQuestion:
    calls: set[_AskedCall]
    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)


_current: ContextVar[_AskedCall | None] = ContextVar("agentloop_mcp_call", default=None)


class UserQuestions:
    """The calls under way of one connection, and the questions asked meanwhile."""

    def __init__(self, server: str, elicit: Elicit, idle_timeout: float | None) -> None:
        self._server = server
        self._elicit = elicit
        self._period = min(_LONGEST_SILENCE, (idle_timeout or _LONGEST_SILENCE) / 4)
        self._calls: list[_AskedCall] = []
        self._open: set[_OpenQuestion] = set()

    @contextmanager
    def during(self, context: ToolContext[Any]) -> Iterator[Callable[..., Awaitable[None]]]:
        """Tell that a call is under way in the block; yield what takes its progress. Its questions end with it."""
        call = _AskedCall(context)
        self._calls.append(call)
        token = _current.set(call)
        try:
            yield call.report
        finally:
            _current.reset(token)
            self._calls.remove(call)
            for question in self._open:
                if question.calls == {call}:
                    question.scope.cancel()
                question.calls.discard(call)

    async def answer(self, context: Any, params: Any) -> Any:
        """Return the SDK's result for a question: the application's answer, or that it couldn't be asked."""
        from mcp.types import ElicitResult

        calls = self._find_calls()
        question = _OpenQuestion(set(calls))
        self._open.add(question)
        try:
            with question.scope:
                return await self._ask(params, calls)
            return ElicitResult(action="cancel")
        finally:
            self._open.discard(question)

    def _find_calls(self) -> list[_AskedCall]:
        current = _current.get()
        return [current] if current in self._calls else list(self._calls)

    async def _ask(self, params: Any, calls: list[_AskedCall]) -> Any:
        from mcp.types import INTERNAL_ERROR, ErrorData

        asked = Elicitation(
            server=self._server,
            message=params.message,
            schema=getattr(params, "requested_schema", None),
            url=getattr(params, "url", None),
            call=calls[0].context if len(calls) == 1 else None,
        )
        result: Any = None
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(self._keep_awake, call)
            try:
                result = _read_answer(asked, await resolve(self._elicit(asked)))
            except Exception as error:
                logger.error("MCP server %r: its question got no answer: %s", self._server, error_summary(error))
                result = ErrorData(code=INTERNAL_ERROR, message=_REFUSAL)
            group.cancel_scope.cancel()
        return result

    async def _keep_awake(self, call: _AskedCall) -> None:
        while True:
            call.context.report_nowait(*call.progress, f"MCP server {self._server} asks its user")
            await anyio.sleep(self._period)


def _read_answer(asked: Elicitation, answer: object) -> Any:
    """Return the SDK's result for the application's answer.

    Raises:
        UserTypeError, UserValueError: it is none, or doesn't fit the schema.
    """
    from mcp.types import ElicitResult

    if answer in ("decline", "cancel") or (answer == "accept" and asked.schema is None):
        action: Any = answer
        return ElicitResult(action=action)
    if not isinstance(answer, Mapping) or asked.schema is None:
        accept = "a mapping with the fields of the schema" if asked.schema is not None else "'accept'"
        # The value may be what the user typed, and this goes to a log.
        raise UserTypeError(f"elicit: expected {accept}, 'decline' or 'cancel', got a {type(answer).__name__}")
    try:
        check = make_check(asked.schema, Meter(), secret=True)
    except ValueError:
        check = None  # the server judges what it asked for
    if check is not None and (wrong := check(answer)) is not None:
        raise UserValueError(f"elicit: the answer doesn't fit the schema: {wrong}")
    return ElicitResult(action="accept", content=dict(answer))
