"""The stream: a run as its consumer holds it. A plain run is a stream whose events are not made.

Knows the nursery of a run, its task, its event buffer and the ways to end it; not turns, calls or models.

Theory. A stream is a context manager, never an async generator with a scope inside: another task closes an abandoned
generator, and its nursery with it. The run lives in a child task, also a plain one. On asyncio a native `Task.cancel()`
is delivered once, to one task, at any point where that task waits. Here it hits the holder, which only waits at the end
of the block; the nursery turns it into the cancellation of a scope, which every part of the run sees alike. The nursery
is of the kind of a turn's (`nursery`): on asyncio a bare task in one scope. A run inside a body of another run has
no relay from that run's nurseries: scopes alone lead from that run to this one, so that a shield around it holds.

States: made; running (`__aenter__` has started `_main`); finished (`_is_over`: the last record is appended, the buffer
and the journal's writer are closed); left (`__aexit__` has joined every task of the run).

Order: `__aenter__` starts `_main`, which calls `execute`, stores its error and ends the stream. Meanwhile the consumer
iterates and may call `cancel`, `cancel_call`, `approve` or `reject`. `__aexit__` stops a run that has not finished,
joins its tasks and raises its error if that was not raised before.

Two ends from outside: `_stop` cancels `live.scope`, the outermost scope of the run (by `cancel`, by leaving the block,
by an instrument's BaseException, by an interrupt); the holder's cancellation reaches the run through the nursery. Both
set the cleanup deadline first, since a shielded section under way sees neither.

Facts: `_is_over`, `_error`, `_error_raised`; all else of a run is in `_live`. `_ended` is only a signal, made for the
first task that waits for it.

Invariants: the run's error is a value until it is raised in the consumer's task, bare and once; raised in the child, it
would arrive in a group, and a KeyboardInterrupt would tear down asyncio's loop. A cancellation ends in the run's task,
so that the holder's count of native cancellations is as the holder left it, plus its own one. When the block has been
left, no task of the run is running.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, final

import anyio

from agentloop import events as ev
from agentloop._common.error_text import is_fatal
from agentloop._common.type_parameters import OutputT
from agentloop._concurrency.backend import (
    cancelled_types,
    checkpoint_if_cancelled,
    is_closing,
    own_task,
    scope_left_open,
    unexpected_cancellation,
)
from agentloop._concurrency.interrupts import uninterrupted
from agentloop._concurrency.nursery import Nursery, new_nursery
from agentloop._engine.loop import execute
from agentloop._engine.run_result import result_of
from agentloop._engine.runtime.cancel_source import record_end
from agentloop._engine.runtime.live_run import LiveRun
from agentloop._engine.start import RunSegment
from agentloop.agents import Agent
from agentloop.exceptions import UserError, UserTypeError, UserValueError
from agentloop.items import ApprovalRequest, ToolCall
from agentloop.results import RunResult

if TYPE_CHECKING:
    from agentloop._engine.runtime.event_buffer import EventBuffer
    from agentloop.state import RunState

Start = Callable[[], LiveRun]
"""Makes the run."""


@final
class RunStream(Generic[OutputT]):
    """A run under way: iterate it for its events; leaving the block ends the run and waits for all its tasks.

    Made by `Runner.run_streamed`. One consumer at a time.

    A run's error is raised once: from iteration, after every event made before it, if the consumer iterates; else when
    the block is left. `result` raises it again, `error` gives it. If the block itself raises, that wins, and the run's
    error is its context.
    """

    _start: Start | None
    _entry: RunSegment | None
    _subscribe: bool
    _plain: bool
    _nursery: Nursery | None
    _live: LiveRun | None
    _events: EventBuffer | None
    _is_over: bool
    _ended: anyio.Event | None
    _error: BaseException | None
    _has_begun: bool
    _error_raised: bool
    _cancelled: Literal["immediate", "after_turn"] | None

    __slots__ = ("__weakref__", *__annotations__)

    def __init__(self, start: Start, entry: RunSegment, *, subscribe: bool, plain: bool = False) -> None:
        self._start, self._entry = start, entry
        self._subscribe, self._plain = subscribe, plain
        self._nursery = self._live = self._events = self._ended = self._error = self._cancelled = None
        self._is_over = self._has_begun = self._error_raised = False

    @uninterrupted
    async def __aenter__(self) -> Self:
        if self._start is None:
            raise UserError("a streamed run can be entered once")
        nursery = new_nursery(self, copy_context(), holds=True, bare=self._plain)
        live, self._start = self._start(), None
        if self._subscribe:
            from agentloop._engine.runtime.event_buffer import EventBuffer  # no plain run needs it

            self._events = EventBuffer(live.state, live.settings.config.stream_buffer, live.agent_at)
            live.tree.log.follow(events=self._events)
            live.tree.join_loop()
        self._nursery = await nursery.__aenter__()
        if not nursery.is_group:
            live.nursery = nursery
        self._live, live.scope = live, nursery.new_scope()
        live.tree.log.begin(self._stop)
        live.resources.host = nursery
        nursery.start(self._main, live, f"agentloop run of {live.agent.name}")
        if self._cancelled is not None:
            self.cancel(self._cancelled)
        return self

    @uninterrupted
    async def _main(self, live: LiveRun) -> None:
        """Run the segment in the run's own task; store its error, and close the buffer and the journal's writer."""
        nursery, scope = self._nursery, live.scope
        assert nursery is not None
        assert scope is not None
        task = None if nursery.on_trio else own_task()
        self._has_begun = True
        try:
            scope.__enter__()  # no `with`, for the reason of `run_call`
            try:
                entry, self._entry = self._entry, None
                assert entry is not None
                await execute(live, entry)
            except BaseException as error:  # noqa: ASYNC103 - as `with` does
                if isinstance(error, cancelled_types()):
                    # The cancellation ends here: the holder of the block meets it there anyway. If it continued, anyio
                    # would move the counts of scopes that were cancelled inside (by a sibling, a timeout) to the
                    # holder's task, and take back a native cancellation of that task.
                    scope.shield = True
                    scope.cancel()
                if not scope.__exit__(type(error), error, error.__traceback__):
                    raise
            else:
                scope.__exit__(None, None, None)
        except cancelled_types():
            self._end(live)
            nursery.leave(task, rings=True)
            raise
        except BaseException as error:  # noqa: ASYNC103 - see below; cancellations were raised above
            if is_closing(task):
                raise
            # Carried as a value: the consumer's task raises it, bare. A KeyboardInterrupt raised here would tear down
            # the event loop instead.
            self._error = scope_left_open(error) or error
        self._end(live)
        nursery.leave(task, rings=True)

    def _end(self, live: LiveRun) -> None:
        if live.tree.log.journal is not None:
            live.tree.log.journal.close()
        self._is_over = True
        if self._ended is not None:
            self._ended.set()
        if self._events is not None:
            self._events.close()
        # The reference cycles of the run are broken, so that a finished one doesn't wait for the garbage collector.
        live.tree.log.end()
        live.tree.children.clear()

    def _lose_task(self) -> None:
        """Fail the run: other code has cancelled one of its tasks before its first step."""
        self._error = self._error or unexpected_cancellation()
        if not self._has_begun and self._live is not None:
            self._end(self._live)

    @uninterrupted
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool:
        if self._subscribe and self._nursery is not None and self._nursery.is_elsewhere():
            return await self._leave_elsewhere(exc)  # noqa: ASYNC102 - shielded there
        if exc is not None and isinstance(exc, cancelled_types()):
            # The group's own scope ends the run. Cancelling an inner scope as well would make anyio take back one
            # native cancellation of this task too many (it moves an inner scope's count to the group's, another task).
            self._begin_cleanup()
            self._discard()
            try:
                caught = await self._join(exc, exc_type, tb)  # noqa: ASYNC102 - its tasks are being cancelled
            except cancelled_types():
                self._raise_fatal()
                raise
            if caught:
                # It was the group's own scope: anyio cancels it where a task of the group was cancelled natively.
                raise unexpected_cancellation() if self._error is None else self._error
            self._raise_fatal()
            return False
        if not self._is_over:
            self._stop()
        # The group does not get the block's own exception: it would come back wrapped in a group.
        await self._join(exc)  # noqa: ASYNC102 - as above
        await checkpoint_if_cancelled()  # noqa: ASYNC102 - the holder's own cancellation continues
        error = self._error
        if error is None:
            return False
        if exc is None and not self._error_raised:
            self._error_raised = True
            if self._events is None:
                self._error = None  # a plain run: no caller has the stream, but the frames of its traceback do
            try:
                raise error
            finally:
                del error
        if exc is not None and exc is not error and exc.__context__ is None:
            exc.__context__ = error
        return False

    async def _leave_elsewhere(self, exc: BaseException | None) -> bool:
        """End the run for a task that has not entered the block and so can't leave it. A cancellation continues.

        Raises:
            UserError: says so, and what to write.
        """
        self._stop()
        with anyio.CancelScope(shield=True):
            await self.finished()
        if exc is not None and isinstance(exc, cancelled_types()):
            return False
        raise UserError(
            "the block of a streamed run was left by another task than the one that entered it; the run is cancelled. "
            "Leave the block in the task that entered it. A generator with such a block is closed by another task when "
            "its reader stops early: let a task of your own hold the block, and send the events through a memory stream"
        ) from exc

    def _raise_fatal(self) -> None:
        """Raise the run's error if it outranks the cancellation that leaves: a fatal error of the application."""
        if self._error is not None and is_fatal(self._error):
            self._error_raised = True
            raise self._error

    async def _join(
        self,
        left_by: BaseException | None,
        exc_type: type[BaseException] | None = None,
        tb: TracebackType | None = None,
    ) -> bool:
        """Wait until every task of the run has ended; return True if the group caught the exception it was given.

        Args:
            left_by: The exception that left the block. With *exc_type* it is given to the group.
            exc_type, tb: Of *left_by*, where it is a cancellation.

        Raises:
            KeyboardInterrupt: trio raised it here, bare.
        """
        assert self._nursery is not None
        interrupt: KeyboardInterrupt | None = None
        if self._nursery.on_trio and not self._is_over:
            interrupt = await self._outlast_interrupts(left_by)
        caught: bool | None = False
        try:
            caught = await self._nursery.__aexit__(exc_type, left_by if exc_type is not None else None, tb)
        except BaseExceptionGroup as errors:
            if errors.subgroup(KeyboardInterrupt) is not None:
                interrupt = KeyboardInterrupt()
            else:  # the run's own tasks raise nothing: one of them had its scopes broken
                self._error = scope_left_open(errors)
                if self._error is None:
                    raise
        if interrupt is not None and not isinstance(left_by, KeyboardInterrupt):
            raise interrupt
        return bool(caught)

    async def _outlast_interrupts(self, left_by: BaseException | None) -> KeyboardInterrupt | None:
        """On trio, wait for the end of the run; return the first KeyboardInterrupt that is raised meanwhile.

        The second interrupt sets the cleanup deadline to now. (The nursery's own join would only keep it until later.)
        """
        interrupts = 1 if isinstance(left_by, KeyboardInterrupt) else 0
        first: KeyboardInterrupt | None = None
        with anyio.CancelScope(shield=True):  # noqa: ASYNC912 - trio starts every task, so the run ends
            while not self._is_over:
                try:
                    await self.finished()
                except KeyboardInterrupt as interrupt:
                    first = first or interrupt
                    interrupts += 1
                    self._stop()
                    if interrupts > 1 and self._live is not None:
                        self._live.cleanup.end_by(anyio.current_time())
        return first

    def _stop(self) -> None:
        if self._live is not None and not self._is_over:
            self._live.cleanup.begin()
        if self._live is not None and self._live.scope is not None:
            self._live.scope.cancel()  # first: a task that waits for room must not continue as if there were room
        self._discard()
        self._begin_cleanup()

    def _begin_cleanup(self) -> None:
        """Set the cleanup deadline now: a shielded section under way doesn't see the cancellation by itself."""
        if self._live is not None and not self._is_over:
            record_end(self._live)
            self._live.cleanup.begin()

    def _discard(self) -> None:
        if self._events is not None:
            self._events.discard()

    @uninterrupted
    async def finished(self) -> None:
        """Wait until the run has ended, in any way; events stay unread. Its error is not raised here."""
        if self._ended is None:
            self._ended = anyio.Event()
            if self._is_over:
                self._ended.set()
        await self._ended.wait()

    def _next_ring(self) -> Awaitable[None]:
        """Wait for the next ring in the nursery of a plain run; `is_complete` then tells whether the run has ended.

        For the run's holder, to be awaited at once.
        """
        assert self._nursery is not None
        return self._nursery.wait(math.inf)

    if not TYPE_CHECKING:  # else a type checker would let a stream be awaited

        def __await__(self) -> NoReturn:
            raise UserTypeError("a streamed run can't be awaited: use `async with Runner.run_streamed(…) as stream`")

    def __aiter__(self) -> Self:
        return self

    @uninterrupted
    async def __anext__(self) -> ev.Event:
        if self._events is None:
            raise UserError("iterate a streamed run inside its `async with` block")
        # Mostly an event is there: a second coroutine would then cost as much as the event's stay in the buffer.
        event = self._events.take_nowait() or await self._events.take()
        if event is not None:
            return event
        if self._error is not None and not self._error_raised:
            self._error_raised = True
            raise self._error
        raise StopAsyncIteration

    @property
    def last_event_id(self) -> str | None:
        """The id of the event that iteration has given last: `RECORD.INDEX`, as in `RunState.events`.

        None for an event that no record holds (a piece of an answer, a progress report), and before the first event.
        """
        return self._events.last_event_id() if self._events is not None else None

    # -- control

    @uninterrupted
    def cancel(self, mode: Literal["immediate", "after_turn"] = "immediate") -> None:
        """End the run: at once, or when the turn under way is complete. Idempotent; from any task of the run's loop.

        Never waits: `finished`, or leaving the block, waits for the end. A run that has not begun is cancelled when it
        begins.
        """
        if mode not in ("immediate", "after_turn"):
            raise UserValueError(f"cancel: expected 'immediate' or 'after_turn', got {mode!r}")
        if self._live is None:
            self._cancelled = "immediate" if self._cancelled == "immediate" else mode
            return
        if self._is_over:
            return
        if mode == "immediate":
            self._stop()
        else:
            self._live.stop_after_turn = True

    @uninterrupted
    def cancel_call(
        self, call: str | ToolCall | ev.Event, reason: str | None = None, *, path: tuple[str, ...] = ()
    ) -> bool:
        """Cancel one call while the run continues; return False if it has ended or is unknown. From any task or thread.

        A queued call never starts. One that waits for a verdict settles as cancelled when the run acts on the verdict,
        approved or not, also in a later run segment. The tool's failure policy decides which output the model gets.

        Args:
            call: The id of a call, the call, or an event of it.
            reason: What the output says.
            path: Of an id or a `ToolCall`, the path of its run: the ids of the agent-tool calls around it. An event has
                its own.
        """
        from agentloop._engine.runtime.event_buffer import call_id_of

        where, call_id = call_id_of(call, path)
        return self._live is not None and not self._is_over and self._live.cancel_call(where, call_id, reason)

    def approve(
        self,
        call: ApprovalRequest | str,
        *,
        arguments: str | Mapping[str, Any] | None = None,
        always: bool = False,
        by: str | None = None,
        replace: bool = False,
    ) -> None:
        """Approve a call that waits, while the run is under way: as `RunState.approve`.

        A verdict that comes before the rest of the turn is done saves the pause. It can be replaced until then.
        """
        self._give_verdict(call, approved=True, arguments=arguments, always=always, by=by, replace=replace)

    def reject(
        self,
        call: ApprovalRequest | str,
        *,
        message: str | None = None,
        always: bool = False,
        by: str | None = None,
        replace: bool = False,
    ) -> None:
        """Reject a call that waits, while the run is under way: as `RunState.reject`."""
        self._give_verdict(call, approved=False, message=message, always=always, by=by, replace=replace)

    @uninterrupted
    def _give_verdict(
        self,
        call: ApprovalRequest | str,
        *,
        arguments: str | Mapping[str, Any] | None = None,
        **verdict: Any,
    ) -> None:
        from agentloop._core.gate import admit
        from agentloop.state import as_text, verdict_on

        text = None if arguments is None else as_text(arguments)
        if self._live is None or self._is_over:
            raise UserError("the run is not under way: decide on its state")
        live = self._live
        converter = live.settings.config.converter
        given = verdict_on(
            live.tree.log.state,
            call,
            live.tree.graph,
            live.tree.open_requests,
            acted_on=live.tree.acted_on,
            converter=converter,
            arguments=text,
            **verdict,
        )
        live.tree.log.append(admit(live.tree.log.state, given.replace(at=live.tree.log.wall())))

    # -- the run so far

    @property
    def is_complete(self) -> bool:
        """True once the run has ended, in any way."""
        return self._is_over

    @property
    def error(self) -> BaseException | None:
        """The run's error, or None."""
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
        from agentloop.state import RunState

        live = self._live
        converter = live.settings.config.converter
        return RunState._of(live.tree.graph.root, live.tree.log.state, live.context.context, converter)

    @property
    def result(self) -> RunResult[OutputT]:
        """The result, once the run has ended.

        Raises:
            UserError: before the end.
            BaseException: the run's error.
        """
        if self._error is not None:
            raise self._error
        if self._live is None or not self._is_over:
            raise UserError("the run has not ended yet")
        return result_of(self._live)
