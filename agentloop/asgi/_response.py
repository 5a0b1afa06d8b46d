"""`RunResponse`: one run whose events are the response to one request, and which ends with it.

The ASGI callable itself holds the run's block; a second task waits for the client's end. So each end of the request
(by the client, a deadline, the server) leaves the block, and the block waits for the whole run.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from agentloop._common.error_text import error_summary
from agentloop.agents import Agent
from agentloop.asgi._http import ClientGone, Headers, Receive, Scope, Send, WebLimits, while_connected
from agentloop.asgi._writer import EventWriter, Numbered, StreamForm
from agentloop.exceptions import UserError
from agentloop.exceptions._public import describe_error
from agentloop.run import Runner, RunOptions

if TYPE_CHECKING:
    from agentloop.items import Item
    from agentloop.run._stream import RunStream
    from agentloop.state import RunState

logger: logging.Logger = logging.getLogger("agentloop")

KeepState = Callable[["RunState"], Awaitable[str]]
"""Keeps the state of an interrupted run, and returns the handle by which a client resumes it."""


if TYPE_CHECKING:

    class _FrameworkResponse:
        background: Callable[[], Awaitable[None]] | None
else:
    try:
        from starlette.responses import Response as _FrameworkResponse
    except ImportError:

        class _FrameworkResponse:
            pass


class RunResponse(_FrameworkResponse):
    """A response that runs *agent* on *input* and streams the events: an ASGI application for one request.

    Where Starlette is installed it is a `Response` of Starlette, so that a route of FastAPI can return it: its headers
    and cookies can be set until it is called, and its background task runs when the run has ended.

    The run begins when the response is called, and has ended when that returns. If the client leaves, the run is
    cancelled. Its error is the last event, `error`; it is logged and not raised.

    Args:
        agent: The agent to start with.
        input: Text, items, or a `RunState` to resume.
        limits: The bounds of the stream; `WebLimits()` if not given.
        keep_state: Called with the `RunState` of a run that is interrupted; returns the handle that the event
            `interrupted` gives to the client. Without it the handle is None.
        headers: Further headers of the response, as pairs of bytes.
        form: The form of the stream; the library's own if not given.
        **options: `RunOptions`, by keyword.

    Raises:
        UserError: as for `Runner.run_streamed`; or the response is called again.
    """

    def __init__(
        self,
        agent: Agent[Any, Any],
        input: str | Iterable[Item] | RunState,
        *,
        limits: WebLimits | None = None,
        keep_state: KeepState | None = None,
        headers: Headers = (),
        form: StreamForm | None = None,
        **options: Unpack[RunOptions[Any]],
    ) -> None:
        self.stream: RunStream[Any] = Runner.run_streamed(agent, input, **options)
        self._limits = limits or WebLimits()
        self._keep_state = keep_state
        self.raw_headers: list[tuple[bytes, bytes]] = list(headers)
        self.status_code = 200
        self.background: Any = None
        self._form = form
        self._called = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run, and send the events; return when the run has ended.

        Cancellation: the run is cancelled and awaited.
        """
        if self._called:
            raise UserError("a RunResponse is one run: make another one for each request")
        self._called = True
        await while_connected(receive, partial(self._serve, EventWriter(send, self._limits, self._form)))
        if self.background is not None:
            await self.background()

    async def _serve(self, writer: EventWriter) -> None:
        try:
            await writer.open(self.raw_headers)
            try:
                await self._run(writer)
            except ClientGone:
                raise
            except Exception as error:
                await writer.write(writer.form.error(log_failure(error)))
            await writer.close()
        except ClientGone:
            pass  # no one reads the rest, and the run has ended

    async def _run(self, writer: EventWriter) -> None:
        last: str | None = None
        async with self.stream as stream:
            last = await writer.pump(partial(take_from, stream))
        # `cancel` makes a stream drop its unread events: they are in the log.
        for number, event in stream.state.events(last):
            await writer.write(writer.form.event(number, event))
        result = stream.result
        if result.interruptions:
            handle = None if self._keep_state is None else await self._keep_state(result.to_state())
            await writer.write(writer.form.pause(result.interruptions, handle))
        else:
            await writer.write(writer.form.end(result))


async def take_from(stream: RunStream[Any]) -> Numbered | None:
    """Return the next event of a stream with its id; None after the last. A cancelled call has lost no event."""
    event = await anext(stream, None)
    return None if event is None else (stream.last_event_id, event)


def log_failure(error: Exception) -> dict[str, str]:
    """Log a run's error for the application, and return its public form."""
    logger.error("a run for a web client has failed: %s", error_summary(error))
    return describe_error(error)
