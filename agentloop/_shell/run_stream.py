"""A streamed run as its consumer holds it. A plain run is one whose events nobody reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, final

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled

from agentloop import events as ev
from agentloop._shell.drive import Entry, execute
from agentloop._shell.live import LiveRun
from agentloop._shell.native import cancelled_types, starter
from agentloop._shell.outcome_of_run import result_of
from agentloop._shell.stream import EventBuffer, call_id_of
from agentloop.agents import Agent
from agentloop.exceptions import UserError, UserValueError
from agentloop.items import ApprovalRequest, ToolCall
from agentloop.results import RunResult
from agentloop.run_state import RunState, as_text, verdict_on

OutputT = TypeVar("OutputT")

Start = Callable[["RunStream[Any]", TaskGroup, Context], LiveRun]


@final
class RunStream(Generic[OutputT]):
    """A run under way: iterate it for its events; leaving the block ends it and joins it.

    Made by `Runner.run_streamed`. One consumer at a time.

    A run's error is raised once: from iteration, after every event made before it, if the consumer iterates; else when
    the block is left. `result` raises it again, `error` gives it. If the block itself raises, that wins, and the run's
    error is its context.
    """

    def __init__(self, start: Start, entry: Entry, *, subscribe: bool) -> None:
        self._start = start
        self._entry = entry
        self._subscribe = subscribe
        self._group: TaskGroup | None = None
        self._live: LiveRun | None = None
        self._events: EventBuffer | None = None
        self._scope = anyio.CancelScope()
        self._finished = anyio.Event()
        self._error: BaseException | None = None
        self._error_raised = False

    async def __aenter__(self) -> Self:
        if self._live is not None:
            raise UserError("a streamed run can be entered once")
        context = copy_context()
        group = anyio.create_task_group()
        live = self._start(self, group, context)
        if self._subscribe:
            self._events = EventBuffer(live.state, live.config.stream_buffer, live.agent_at)
            live.log.events = self._events
        self._live = live
        self._group = await group.__aenter__()
        starter(group)(self._main, live, f"agentloop run of {live.agent.name}", copy_context())
        return self

    async def _main(self, live: LiveRun) -> None:
        try:
            with self._scope:
                try:
                    await execute(live, self._entry)
                except cancelled_types():
                    # The cancellation ends here: whoever holds the block meets it there anyway. Left to go on, it would
                    # make anyio move the counts of scopes that were cancelled inside (by a sibling, a timeout) to the
                    # holder's task, and take back a native cancellation of his.
                    self._scope.shield = True
                    self._scope.cancel()
                    raise
        except cancelled_types():
            raise
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: ASYNC103 - see below; cancellations have gone on above
            # Carried as a value: it leaves in the consumer's task, bare. A KeyboardInterrupt raised here would tear
            # down the event loop instead.
            self._error = error
        finally:
            if live.log.journal is not None:
                live.log.journal.close()
            self._finished.set()
            if self._events is not None:
                self._events.close()
            live.let_go()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool:
        assert self._group is not None
        if exc is not None and isinstance(exc, cancelled_types()):
            # The group's own scope ends the run. Cancelling an inner scope as well would make anyio take back one
            # native cancellation of this task too many (it moves an inner scope's count to the group's, another task).
            self._begin_cleanup()
            self._discard()
            await self._group.__aexit__(exc_type, exc, tb)  # noqa: ASYNC102 - joins; its tasks are being cancelled
            return False
        if not self._finished.is_set():
            self._stop()
        # The block's own exception is not the group's business: passed on, it would come back wrapped.
        await self._group.__aexit__(None, None, None)  # noqa: ASYNC102 - as above
        await checkpoint_if_cancelled()  # noqa: ASYNC102 - the holder's own cancellation goes on, if there is one
        error = self._error
        if error is None:
            return False
        if exc is None and not self._error_raised:
            self._error_raised = True
            raise error
        if exc is not None and exc is not error and exc.__context__ is None:
            exc.__context__ = error
        return False

    def _stop(self) -> None:
        self._begin_cleanup()
        self._scope.cancel()  # first: what waits for room must not go on as if there were some
        self._discard()

    def _begin_cleanup(self) -> None:
        """Set the cleanup deadline now: a shielded section under way doesn't see the cancellation by itself."""
        if self._live is not None and not self._finished.is_set():
            self._live.cleanup.begin()

    def _discard(self) -> None:
        if self._events is not None:
            self._events.discard()

    async def finished(self) -> None:
        """Wait until the run has ended, however it ended; events stay unread."""
        await self._finished.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ev.Event:
        if self._events is None:
            raise UserError("iterate a streamed run inside its `async with` block")
        # Mostly there is one: then a second coroutine would cost as much as the event's way through the buffer.
        event = self._events.take_nowait() or await self._events.take()
        if event is not None:
            return event
        if self._error is not None and not self._error_raised:
            self._error_raised = True
            raise self._error
        raise StopAsyncIteration

    # -- control

    def cancel(self, mode: Literal["immediate", "after_turn"] = "immediate") -> None:
        """End the run: at once, or when the turn under way is complete. Idempotent; from any task of the run's loop."""
        if mode not in ("immediate", "after_turn"):
            raise UserValueError(f"cancel: 'immediate' or 'after_turn' is needed, not {mode!r}")
        if self._live is None or self._finished.is_set():
            return
        if mode == "immediate":
            self._stop()
        else:
            self._live.stop_after_turn = True

    def cancel_call(self, call: str | ToolCall | ev.Event, reason: str | None = None) -> bool:
        """Cancel one call while the run goes on; False if it has ended or is unknown. From any task or thread.

        A queued call never starts. What the model is told is the tool's failure policy's affair.
        """
        if self._live is None or self._finished.is_set():
            return False
        path, call_id = call_id_of(call)
        return self._live.cancel_call(path, call_id, reason)

    def approve(
        self, call: ApprovalRequest | str, *, arguments: str | Mapping[str, Any] | None = None, always: bool = False
    ) -> None:
        """Let a call that waits run, while the run is under way: as `RunState.approve`.

        A verdict that comes before the rest of the turn is done saves the pause.
        """
        self._decide(call, approved=True, arguments=None if arguments is None else as_text(arguments), always=always)

    def reject(self, call: ApprovalRequest | str, *, message: str | None = None, always: bool = False) -> None:
        """Don't let a call that waits run, while the run is under way: as `RunState.reject`."""
        self._decide(call, approved=False, message=message, always=always)

    def _decide(self, call: ApprovalRequest | str, **verdict: Any) -> None:
        if self._live is None or self._finished.is_set():
            raise UserError("the run is not under way: decide on its state")
        self._live.append(verdict_on(self._live.log.state, call, self._live.asking, **verdict))

    # -- what is known

    @property
    def is_complete(self) -> bool:
        """Whether the run has ended, however it ended."""
        return self._finished.is_set()

    @property
    def error(self) -> BaseException | None:
        """What the run raised, or None."""
        return self._error

    @property
    def current_agent(self) -> Agent[Any, Any]:
        """The agent at work."""
        if self._live is None:
            raise UserError("the run has not started")
        return self._live.agent

    @property
    def current_turn(self) -> int:
        """The turn under way; 0 before the first."""
        return self._live.state.turn if self._live is not None else 0

    @property
    def state(self) -> RunState:
        """The run as a detached state, of the time it is read.

        Raises:
            UserError: before the run has started.
        """
        if self._live is None:
            raise UserError("the run has not started")
        return RunState.of(self._live.graph.root, self._live.log.state, self._live.context.context)

    @property
    def result(self) -> RunResult[OutputT]:
        """The result, once the run has ended.

        Raises:
            UserError: before the end.
            BaseException: the run's error.
        """
        if self._error is not None:
            raise self._error
        if self._live is None or not self._finished.is_set() or self._live.state.ended is None:
            raise UserError("the run has not ended yet")
        return result_of(self._live)
