"""The stream: a run as its consumer holds it. A plain run is a stream whose events are not made.

Knows the nursery of a run, its task, its event buffer and the ways to end it; not turns, calls or models.

Theory. The block, its task and what leaves it are in `_engine/block.py`. A plain run's nursery is bare tasks: on
asyncio one task in one scope. A run inside a body of another run has no relay from that run's nurseries: only scopes
lead from that run to this one, so that a shield around it holds.

Order: `__aenter__` starts the run's task, which calls `execute`. Meanwhile the consumer iterates and may call `cancel`,
`cancel_call`, `approve` or `reject`. `__aexit__` stops a run that has not finished, joins its tasks and raises its
error if that was not raised before.

Two ends from outside: `_stop` cancels `live.scope`, the outermost scope of the run (by `cancel`, by leaving the block,
by an instrument's BaseException, by an interrupt); the holder's cancellation reaches the run through the nursery. Both
set the cleanup deadline first, since a shielded section under way sees neither.

Facts: those of the block; all else of a run is in `_live`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, final

import anyio

from agentloop import events as ev
from agentloop._common.checks import NAMES, check, fits, is_texts
from agentloop._common.misplaced import function_takes_options, refuse_attribute
from agentloop._common.type_parameters import OutputT
from agentloop._concurrency.backend import cancelled_types
from agentloop._concurrency.interrupts import uninterrupted
from agentloop._concurrency.nursery import new_nursery
from agentloop._engine.block import Block
from agentloop._engine.loop import execute
from agentloop._engine.run_result import result_of
from agentloop._engine.runtime.cancel_source import record_end
from agentloop._engine.runtime.live_run import LiveRun
from agentloop._engine.start import RunSegment
from agentloop.agents import Agent
from agentloop.exceptions import UserError, UserTypeError, UserValueError
from agentloop.guardrails import ToolGuardrailResult
from agentloop.items import ApprovalRequest, CallToAnswer, Interruption, Item, ToolCall, ToolOutput
from agentloop.results import RunResult

if TYPE_CHECKING:
    from agentloop._engine.runtime.event_buffer import EventBuffer
    from agentloop.state import RunState

_USUAL_ELSEWHERE = {
    "stream_events": "async with Runner.run_streamed(…) as stream, and async for event in stream",
    "stream_text": "the events TextDelta of async for event in stream",
    "new_items": "result.new_items, after the block",
    "final_output": "result.final_output, after the block",
}
"""Attributes of other libraries' streams: what is here in place of them."""


@final
class RunStream(Block, Generic[OutputT]):
    """A run under way: iterate it for its events; leaving the block ends the run and waits for all its tasks.

    Made by `Runner.run_streamed`. One consumer at a time.

    A run's error is raised once: from iteration, after every event made before it, if the consumer iterates; else when
    the block is left. `result` raises it again, `error` gives it. If the block itself raises, that wins, and the run's
    error is its context.
    """

    _live: LiveRun
    _entry: RunSegment | None
    """The segment to run, until it has begun."""
    _subscribe: bool
    _plain: bool
    _events: EventBuffer | None
    _cancelled: Literal["immediate", "after_turn"] | None
    """The cancellation that came before the block was entered."""

    __slots__ = ("__weakref__", *__annotations__)

    def __init__(self, live: LiveRun, segment: RunSegment, *, subscribe: bool, plain: bool = False) -> None:
        super().__init__()
        self._live, self._entry = live, segment
        self._subscribe, self._plain = subscribe, plain
        self._events = self._cancelled = None

    @uninterrupted
    async def __aenter__(self) -> Self:
        if self._nursery is not None:
            raise UserError("a streamed run can be entered once")
        live, nursery = self._live, new_nursery(self._lose_task, copy_context(), holds=True, bare=self._plain)
        if self._subscribe:
            from agentloop._engine.runtime.event_buffer import EventBuffer  # no plain run needs it

            self._events = EventBuffer(live.state, live.settings.config.stream_buffer, live.agent_at)
            live.tree.log.follow(events=self._events)
            live.tree.join_loop()
        await nursery.__aenter__()
        if not nursery.is_group:
            live.nursery = nursery
        live.scope = nursery.new_scope()
        self.scope: anyio.CancelScope | None = live.scope  # said again for type checkers: it is the base class's
        live.tree.log.begin(self._stop)
        live.resources.host = nursery
        self._open(nursery, f"agentloop run of {live.agent.name}")
        if self._cancelled is not None:
            self.cancel(self._cancelled)
        return self

    def _work(self) -> Awaitable[object]:
        segment, self._entry = self._entry, None
        assert segment is not None
        return execute(self._live, segment)

    def _end(self) -> None:
        """Close the buffer and the journal's writer: the last record is appended."""
        live = self._live
        if live.tree.log.journal is not None:
            live.tree.log.journal.close()
        super()._end()
        if self._events is not None:
            self._events.close()
        # The reference cycles of the run are broken, so that a finished one doesn't wait for the garbage collector.
        live.tree.log.end()
        live.tree.children.clear()

    @uninterrupted
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool:
        if self._subscribe and self._nursery is not None and self._nursery.is_elsewhere():
            return await self._leave_elsewhere(exc)  # noqa: ASYNC102 - shielded there
        return await self._leave(exc)  # noqa: ASYNC102 - its tasks are being cancelled

    async def _leave_elsewhere(self, exc: BaseException | None) -> bool:
        """End the run for a task that has not entered the block and so can't leave it. A cancellation continues.

        Raises:
            UserError: says so, and what to write.
        """
        self._stop()
        with anyio.CancelScope(shield=True):
            await self._finished()
        if exc is not None and isinstance(exc, cancelled_types()):
            return False
        raise UserError(
            "the block of a streamed run was left by another task than the one that entered it; the run is cancelled. "
            "Leave the block in the task that entered it. A generator with such a block is closed by another task when "
            "its reader stops early: let a task of your own hold the block, and send the events through a memory stream"
        ) from exc

    def _take_error(self, error: BaseException) -> BaseException:
        if self._events is None:
            self._error = None  # a plain run: no caller has the stream, but the frames of its traceback do
        return super()._take_error(error)

    def _prepare_cancelled(self) -> None:
        self._begin_cleanup()
        self._discard()

    def _hurry(self) -> None:
        self._live.cleanup.end_by(anyio.current_time())

    def _stop(self) -> None:
        if not self._is_over:
            self._live.cleanup.begin()
        if self.scope is not None:
            self.scope.cancel()  # first: a task that waits for room must not continue as if there were room
        self._discard()
        self._begin_cleanup()

    def _begin_cleanup(self) -> None:
        """Set the cleanup deadline now: a shielded section under way doesn't see the cancellation by itself."""
        if not self._is_over:
            record_end(self._live)
            self._live.cleanup.begin()

    def _discard(self) -> None:
        if self._events is not None:
            self._events.discard()

    @uninterrupted
    async def finished(self) -> None:
        """Wait until the run has ended, in any way; events stay unread. Its error is not raised here."""
        await self._finished()

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
            raise self._take_error(self._error)
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
        if self._nursery is None:
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
        self, call: str | ToolCall | Interruption | ev.Event, reason: str | None = None, *, path: tuple[str, ...] = ()
    ) -> bool:
        """Cancel one call while the run continues; return False if it has ended or is unknown. From any task or thread.

        A queued call never starts. One that waits for a verdict settles as cancelled when the run acts on the verdict,
        approved or not, also in a later run segment. One that waits for its answer, or whose nested run waits, settles
        once the calls beside it have ended. The tool's failure policy decides which output the model gets.

        A run that has paused can't cancel a call, because nothing of it runs any more: reject the call instead.

        Args:
            call: The id of a call, the call, an interruption, or an event of the call.
            reason: What the output says.
            path: Of an id or a `ToolCall`, the path of its run: the ids of the agent-tool calls around it. An event and
                an interruption have their own.

        Raises:
            UserTypeError: *call* is none of these, as an event of no call.
            StateError: the run has paused, and the call waits for a verdict.
        """
        where, call_id = _find_call_id(call, path)
        if self._nursery is None:
            return False
        if self._is_over:
            self.state._refuse_cancel(where, call_id)
            return False
        return self._live.cancel_call(where, call_id, reason)

    if not TYPE_CHECKING:  # else every name would be an attribute to a type checker

        def __getattr__(self, name: str) -> NoReturn:
            refuse_attribute(self, name, _USUAL_ELSEWHERE)

    @function_takes_options("RunStream.approve")
    def approve(
        self,
        call: Interruption | str,
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

    @function_takes_options("RunStream.reject")
    def reject(
        self,
        call: Interruption | str,
        *,
        message: str | None = None,
        always: bool = False,
        by: str | None = None,
        replace: bool = False,
    ) -> None:
        """Reject a call that waits, while the run is under way: as `RunState.reject`."""
        self._give_verdict(call, approved=False, message=message, always=always, by=by, replace=replace)

    @uninterrupted
    async def add_input(
        self,
        input: str | Iterable[Item],
        *,
        when: Literal["turn", "idle"] = "turn",
        id: str | None = None,
        by: str | None = None,
    ) -> str:
        """Add input to the run under way; return its id once it is durable.

        The model is shown it once: at the end of the turn under way, before the next request, or, with
        `when="idle"`, when the run would end, which then continues. The input guardrails judge it first. If the run
        pauses, fails or is cancelled before that, the input waits in its log for the next run segment.

        From any task, also of another event loop. A thread without one writes `anyio.run(stream.add_input, "text")`.

        Cancellation: a checkpoint. If it is cancelled, the input may be in the log: ask again with the same *id*.

        Args:
            input: Text or items.
            when: `"turn"` or `"idle"`.
            id: The id of the input, which you choose; a second call with it and the same input adds nothing, also when
                the run is over, so that you can repeat a call of which you don't know whether it arrived.
            by: Who gives the input, in the application's words; the log keeps it (`InputAdded.by`).

        Raises:
            InputRefusedError: the run is over or ends, or has no turn left, another input has the id, or the one that
                has it was withdrawn or rejected.
            UserError: the run has not started, or a call in the input has no output behind it.
            JournalError: the journal has failed, or the run's event loop ends; the run ends, and the input may be lost.

        Example:
            import anyio
            from agentloop import Agent, Runner, tool
            from agentloop.testing import ScriptedModel, call, say

            @tool
            async def look() -> str:
                "Look."
                return "a cat"

            async def main():
                agent = Agent("a", model=ScriptedModel([call("look"), say("Un chat.")]), tools=[look])
                async with Runner.run_streamed(agent, "What is it?") as stream:
                    await stream.add_input("Answer in French.")
                    async for event in stream:
                        pass
                print(stream.state.inputs[0].status)  # shown

            anyio.run(main)
        """
        from agentloop.run._inbox import give, put_input

        live = self._get_entered()
        return await give(live, partial(put_input, live, input, when, id, by))

    @uninterrupted
    async def withdraw(self, id: str, *, by: str | None = None) -> None:
        """Take back the added input *id*, which the model hasn't been shown. As `add_input`.

        Raises:
            InputRefusedError: it doesn't wait; its `reason` says what has become of it.
            JournalError: the journal has failed.
        """
        from agentloop.run._inbox import give, withdraw_input

        live = self._get_entered()
        await give(live, partial(withdraw_input, live, id, by))

    @uninterrupted
    async def answer(
        self, call: Interruption | str, value: Any = None, *, error: str | None = None, by: str | None = None
    ) -> None:
        """Answer a call that waits for the application, while the run is under way; return once the answer is durable.

        As `RunState.answer`. An answer that comes before the rest of the turn is done saves the pause. From any task,
        also of another event loop, as `add_input`.

        Cancellation: a checkpoint. If it is cancelled, the answer may be in the log: a second one is then refused.

        Raises:
            UserError: the run is not under way, or the answer doesn't fit.
            StateError: as `RunState.answer`.
            JournalError: the journal has failed, or the run's event loop ends; the run ends, and the answer may be
                lost.

        Example:
            import anyio
            from agentloop import Agent, Runner, ask_user, events, tool
            from agentloop.testing import ScriptedModel, call, say

            asked = anyio.Event()

            @tool
            async def brew() -> str:
                "Brew."
                await asked.wait()
                return "brewed"

            async def main():
                model = ScriptedModel([[call("ask_user", {"question": "Sugar?"}), call("brew")], say("Here you are.")])
                agent = Agent("barista", model=model, tools=[ask_user(), brew])
                async with Runner.run_streamed(agent, "A coffee.") as stream:
                    async for event in stream:
                        if isinstance(event, events.AnswerRequested):
                            await stream.answer(event.request, "yes, two")
                            asked.set()
                print(stream.result.final_output)  # Here you are.

            anyio.run(main)
        """
        await self._give(lambda: self._put_answer(call, value, error=error, by=by))

    async def _give(self, put: Callable[[], None]) -> None:
        """Call *put* on the run's event loop, and return once the records that it appends are durable, as `answer`."""
        from agentloop.run._inbox import give

        self._check_under_way("answer by its state")
        await give(self._live, put)

    def _put_answer(self, call: Interruption | str, value: Any, *, error: str | None, by: str | None) -> None:
        """Append an answer, on the run's event loop. Never waits."""
        from agentloop._core.gate import admit
        from agentloop.state import answer_to

        self._check_under_way("answer by its state")
        log = self._live.tree.log
        log.append(admit(log.state, answer_to(log.state, call, value, log.wall(), error=error, by=by)))

    def _check_under_way(self, otherwise: str) -> None:
        shared = self._live.tree.shared
        if self._nursery is None or self._is_over or not (shared.is_current() or shared.loop_lives()):
            raise UserError(f"the run is not under way: {otherwise}")

    @uninterrupted
    def _give_verdict(
        self,
        call: Interruption | str,
        *,
        arguments: str | Mapping[str, Any] | None = None,
        **verdict: Any,
    ) -> None:
        from agentloop._core.gate import admit
        from agentloop.state import as_text, verdict_on

        text = None if arguments is None else as_text(arguments)
        self._check_under_way("decide on its state")
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

    def _get_entered(self) -> LiveRun:
        """Return the run, which has begun.

        Raises:
            UserError: it hasn't.
        """
        if self._nursery is None:
            raise UserError("the run has not started: enter the block first")
        return self._live

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
        return self._get_entered().agent

    @property
    def current_turn(self) -> int:
        """The turn under way; 0 before the first."""
        return self._live.state.turn if self._nursery is not None else 0

    @property
    def state(self) -> RunState:
        """The run as a detached state, of the time it is read.

        Raises:
            UserError: before the run has started.
        """
        from agentloop.state import RunState

        live = self._get_entered()
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
        if not self._is_over:
            raise UserError("the run has not ended yet")
        return result_of(self._live)


_CALL_PATH = NAMES.needs(
    "expected a tuple of call ids", fits(lambda value: isinstance(value, tuple) and is_texts(value))
)


def _find_call_id(call: str | ToolCall | Interruption | ev.Event, path: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Return path and id of the call *call* means: an id or a `ToolCall` of the run at *path*, or what is about one.

    Raises:
        UserTypeError: *call* is none of these, or *path* is not a tuple of texts.
        UserError: a *path* beside an event or an interruption, which has its own.
    """
    check("path", _CALL_PATH, path)
    if isinstance(call, str):
        return path, call
    if isinstance(call, ToolCall):
        return path, call.call_id
    call_id = _call_id_in(call)
    if call_id is None:
        raise UserTypeError(
            f"cancel_call: expected a call id, a ToolCall, an interruption or an event of a call, got {call!r}"
        )
    if path:
        raise UserError("path: an event has its own, as an interruption has, so none is given with it")
    return call.path, call_id


def _call_id_in(told: Interruption | ev.Event) -> str | None:
    """Return the id of the call that *told* is about; None if it is about none."""
    match told:
        case ev.ItemCreated(item=held) | ev.GuardrailSettled(result=held):
            pass
        case ev.ApprovalRequested(request=held) | ev.AnswerRequested(request=held):
            pass
        case _:
            held = told
    match held:
        case ev.ArgumentsDelta() | ToolCall() | ToolOutput():
            return held.call_id
        case ev.CallStarted() | ev.CallProgress() | ev.CustomEvent() | ev.CallSettled():
            return held.call.call_id
        case ApprovalRequest() | CallToAnswer() | ToolGuardrailResult():
            return held.call.call_id
        case _:
            return None
