"""The loop of a run: get the next action from the machine, do it, append the result. No other code drives a run.

Knows actions and the order of a run segment; decides nothing about a run's state: `next_action` does, and each step has
a module of its own.

Theory. A run is the fold of its records, and `next_action` reads only that fold and the turn's view. So a fresh, a
resumed and a recovered run take the same path and differ only in the count of records.

A run segment, from a start or resume to the next end or pause, is one call of `execute`, in this order:

    drive          `_enter`, which opens the trace, finds the run's sandbox and opens the journal; then `_begin`
                   (RunStarted, the session's items, a new sandbox, the agent's hooks) or `_resume` (RunResumed, missing
                   guardrails); then one action at a time, until the run has ended, paused or stopped
    finish_segment session, resources, `on_run_end`, RunEnded: always, also when the segment fails or is cancelled

Only an application's callable can decide `AskBehavior`: the loop calls it and continues as if the machine had named the
answer. (Rejected: calling it where a batch settles. A run that begins with its records would not call it.)

Facts: the log, and in `LiveRun` the agent at work, the stop requested by the consumer and the very error that stopped
the loop (`stopped_by`). `run.turn.view` is derived: it holds the definitions of the current turn and is made again
where it is missing.

Invariants: `RunEnded` is the last record of every segment, unless its process dies. A turn's record is durable before
its model call. A check for cancellation follows each shielded section that could have hidden one, and precedes each
end: the step that decides it may have been ready already when the caller cancelled. `execute` raises errors bare, and
lets a cancellation continue only after `finish_segment`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

import anyio
import anyio.lowlevel
import msgspec

from agentloop._common.error_text import is_fatal, leaves
from agentloop._common.values import Value
from agentloop._concurrency.backend import (
    Captured,
    Task,
    cancelled_types,
    capture_error,
    checkpoint_if_cancelled,
    new_scope,
    raise_native_cancel,
)
from agentloop._core.history import HistoryView
from agentloop._core.machine import (
    AskBehavior,
    CheckOutput,
    Finish,
    GiveUp,
    Pause,
    Prepare,
    RequestModel,
    Settle,
    Transfer,
    next_action,
    turn_or_give_up,
)
from agentloop._core.turn_view import TurnView
from agentloop._engine.final_output import accept, ask_behavior, give_up
from agentloop._engine.finish import FinishedRun, finish_segment, save_turn
from agentloop._engine.model_call import call_model
from agentloop._engine.prepare_turn import check_models, prepare_turn
from agentloop._engine.run_result import attach_run_data
from agentloop._engine.runtime.callbacks import find_hook
from agentloop._engine.runtime.cancel_source import record_end
from agentloop._engine.runtime.live_run import LiveEffects, LiveRun, new_id
from agentloop._engine.turn_calls import plan_turn, settle
from agentloop.effects import NewId
from agentloop.exceptions import RunTimeout, StateError
from agentloop.items import Item
from agentloop.records import GraphChanged, RunResumed, RunStarted, TurnStarted
from agentloop.spans import RunOpening, Trace

if TYPE_CHECKING:
    from agentloop._core.agent_graph import AgentGraph
    from agentloop._core.run_fold import RunFold
    from agentloop.agents import Agent
    from agentloop.context import SandboxProvider
    from agentloop.state import RunState


async def drive(run: LiveRun, segment: RunSegment) -> FinishedRun:
    """Begin the segment, and do one action after the other until the run ends, pauses or stops; return how it does.

    Raises:
        BaseException: the error that ends the run early.
    """
    try:
        await _enter(run, segment)
        # In a plain run `_check_turn_end` has nothing to check but for `stop_after_turn`.
        settings, events = run.settings, run.tree.log.events
        stops = settings.stop_when is not None or settings.config.loop_detection is not None or events is not None
        ended: FinishedRun | None = None
        while ended is None:  # noqa: ASYNC913 - every action waits but the last
            action = next_action(run.state, run.turn.view)
            if type(action) is AskBehavior:
                action = await ask_behavior(run) or turn_or_give_up(run.state)
            match action:
                case RequestModel():
                    if run.state.turn_open and run.turn.view is not None:
                        await call_model(run, await _continue_turn(run, run.turn.view), checked=True)
                        continue
                    if stops or run.stop_after_turn:
                        ended = await _check_turn_end(run)
                    if ended is None:
                        view = await _begin_turn(run)
                        if run.state.input_guards_due:
                            await _call_guarded_model(run, view)
                        else:
                            await call_model(run, view, checked=True)
                case Settle():
                    view = run.turn.view or await _ensure_view(run)
                    await settle(run, view, await plan_turn(run, view))
                    if settings.session is not None:
                        await save_turn(run)
                case _:
                    ended = await _act(run, action)
        return ended
    except (Exception, BaseExceptionGroup) as error:
        # A group may hold the cancellation beside errors: on trio, of tasks that an application's code began.
        # A cancellation has precedence over errors of the same pass.
        if all(isinstance(leaf, (Exception, *cancelled_types())) for leaf in leaves(error)):
            await checkpoint_if_cancelled()  # noqa: ASYNC102, ASYNC120 - as said
        raise


async def _act(run: LiveRun, action: Transfer | Prepare | Pause | CheckOutput | GiveUp | Finish) -> FinishedRun | None:
    """Do an action that few turns have; return the end of the run if it is one."""
    match action:
        case CheckOutput():  # the most frequent, first: a class that doesn't fit takes 0.17 µs
            ended = await accept(run, run.turn.view, action)
            if ended is None:
                await save_turn(run)
            return ended
        case Transfer():
            from agentloop._engine.handoff import transfer

            await transfer(run, await _ensure_view(run), action)
            await save_turn(run)
        case Prepare():
            await _ensure_view(run)
        case Pause():
            return FinishedRun("interrupted")
        case GiveUp():
            if action.handler == "max_turns" and (ended := await _check_turn_end(run)) is not None:
                return ended
            return FinishedRun("completed", await give_up(run, action))
        case Finish(end):
            return FinishedRun(end.status, end.final_output)
        case never:
            assert_never(never)
    return None


async def _ensure_view(run: LiveRun) -> TurnView:
    """Return the turn's view; rebuild it where the run resumed mid-turn, the model having answered already."""
    if run.turn.view is None:
        run.turn.view = await prepare_turn(run, answered=True)
    return run.turn.view


async def _check_turn_end(run: LiveRun) -> FinishedRun | None:
    """Return the end of the run if it stops between two turns, else None. Waits for a slow consumer of the stream."""
    if not run.stop_after_turn:
        if not run.state.turn_open:  # else it began in an earlier run segment, which has checked the turn before
            condition, limit = run.settings.stop_when, run.settings.config.loop_detection
            if condition is not None and run.state.turn > run.last_stopped_turn:
                from agentloop._engine.turn_end import find_stop_condition

                found = await find_stop_condition(run, condition)
                if found is not None:
                    await checkpoint_if_cancelled()
                    return FinishedRun("stopped", stop_reason=str(found))
            if limit is not None and run.state.warned_in != run.state.turn:
                from agentloop._engine.turn_end import check_loop

                check_loop(run, limit)
        if run.tree.log.events is not None:
            await run.tree.log.events.room()
    # Checked last: the consumer may have requested the stop while the run was waiting for the consumer.
    return FinishedRun("cancelled") if run.stop_after_turn else None


async def _begin_turn(run: LiveRun) -> TurnView:
    """Check budget and secrets, prepare the turn, append `TurnStarted`, wait until it is durable; return its view.

    The last thing done that may wait, or that calls the application, is followed by a checkpoint.

    Raises:
        UsageLimitExceeded: a budget is spent.
        StateError: the run's secret input is not available.
    """
    if run.settings.budget is not None or run.parent is not None:
        run.check_request()
    if run.state.gaps:
        run.stopped_by = StateError(
            f"run {run.context.run_id} needs its secret input, which was stored as digests, or sealed by a codec that "
            "isn't given"
        )
        raise run.stopped_by
    view = run.turn.view = await prepare_turn(run)
    if run.nursery is None or run.may_be_cancelled():
        await checkpoint_if_cancelled()  # a shielded section before this may have hidden the end of the run
    state, log = run.state, run.tree.log
    turn = state.turn if state.turn_open else state.turn + 1  # open: from an earlier run segment, without an answer
    judges: tuple[str, ...] = ()
    if not state.input_accepted and (run.agent.input_guardrails or run.settings.config.input_guardrails):
        from agentloop._engine.run_guardrails import input_guardrails

        judges = tuple([guard.name for guard in input_guardrails(run)])
    log.append(TurnStarted(state.path, turn, log.wall(), run.agent_key, view.tool_names, view.handoff_names, judges))
    if log.journal is not None:
        await log.journal.durable()
    if log.is_watched or (log.journal is not None and not log.journal.immediate):
        await checkpoint_if_cancelled()
    return view


async def _call_guarded_model(run: LiveRun, view: TurnView) -> None:
    """Call the model beside the input guardrails that haven't passed the input yet."""
    from agentloop._engine.run_guardrails import guard_model_call, guards_missing

    if guards := guards_missing(run):
        await guard_model_call(run, guards, partial(call_model, run, view))
    else:
        await call_model(run, view, checked=True)


async def _continue_turn(run: LiveRun, view: TurnView) -> TurnView:
    """Return *view*, the open turn's, with the items so far: the provider has paused its answer, and is asked again.

    Waits as `_begin_turn` does before its request. Definitions stay those of the turn, and the turn continues: a
    request to stop after it, or `stop_when`, waits for the whole answer.

    Raises:
        UsageLimitExceeded: a budget is spent.
    """
    if run.settings.budget is not None or run.parent is not None:
        run.check_request()
    view = run.turn.view = msgspec.structs.replace(view, input=HistoryView(run.state.history))
    if run.tree.log.journal is not None:
        await run.tree.log.journal.durable()
    await checkpoint_if_cancelled()
    return view


class StartingPoint(msgspec.Struct, eq=False, frozen=True):
    """The log so far, and the agent at work.

    Made once per run segment. `changed` describes the differences of the agents from those the run began with, unless
    the log has them already.
    """

    fold: RunFold
    agent: Agent[Any, Any]
    graph: AgentGraph | None = None
    changed: tuple[str, ...] = ()
    state: RunState | None = None


class KeptConversation(Value, frozen=True):
    """The conversation that the provider keeps, as the application named it: by its id, or by a response of it.

    With neither, it begins at the run's first response. `RunStarted` has it from then on.
    """

    conversation_id: str | None = None
    previous_response_id: str | None = None


class RunSegment(Value, frozen=True):
    """The start of one run segment, a start or a resume."""

    given: tuple[Item, ...] | None
    """The input of a new run; None to resume at the end of the log."""
    max_turns: int | None
    timeout: float | None = None
    """In seconds, for this segment."""
    kept: KeptConversation | None = None
    """The conversation that a new run continues, if the provider keeps it."""
    graph_changes: tuple[str, ...] = ()
    """The differences of the agents from those the run began with, as texts, where the log doesn't have them yet."""
    open_trace: Callable[[LiveRun], Awaitable[Trace]] | None = None
    """The function that begins or continues the run's trace; called before the segment's first record."""
    open_journal: Callable[[LiveRun], Awaitable[None]] | None = None
    """The function that begins or continues the run's journal; called before the segment's first record."""


async def execute(run: LiveRun, segment: RunSegment, task: Task | None) -> FinishedRun:
    """Run one segment of *run* in *task*, the current one as `own_task` returns it, and return how it ended.

    Cancellation: continues after all parts of the run have ended; `RunEnded` is the last record.

    Raises:
        BaseException: the error that ended the run, bare; with `run_data` if it is the library's own.
    """
    if segment.timeout is not None or segment.open_journal is not None:
        run.limit_scope = new_scope()
    if run.limit_scope is not None and segment.timeout is not None:
        run.limit_scope.deadline = anyio.current_time() + segment.timeout
    run.task, count = task, 0 if task is None else task.cancelling()
    ended: FinishedRun | None = None
    try:
        if run.limit_scope is None:
            ended = await drive(run, segment)
        else:
            with run.limit_scope:
                ended = await drive(run, segment)
        if ended is None:
            # The caller's cancellation comes first, if it has come in the same scheduler pass as this end.
            await anyio.lowlevel.cancel_shielded_checkpoint()
            await checkpoint_if_cancelled()
            raise _find_cut_reason(run, segment)
    except BaseException as error:  # noqa: ASYNC103 - raised again below
        ended = _end_by(await capture_error(error, task, count, outlast=True))  # noqa: ASYNC102 - does not wait
    failed = await finish_segment(run, ended)
    try:
        if ended.error is not None and ended.status == "cancelled" and not (failed is not None and is_fatal(failed)):
            failed = ended.error  # the cancellation continues
            await raise_native_cancel(failed)  # does not wait: a cancellation is pending
        if failed is None:
            return ended
        raise attach_run_data(run, failed)
    finally:
        del ended, failed  # a frame of its traceback would hold it: the run would wait for the garbage collector


def _end_by(captured: Captured) -> FinishedRun:
    """Return the end of a run segment that an error or a cancellation has ended."""
    if captured.run_cancel is not None:
        return FinishedRun("cancelled", error=captured.run_cancel)
    return FinishedRun("failed", error=captured.error)


def _find_cut_reason(run: LiveRun, segment: RunSegment) -> BaseException:
    """Return the error for a cancellation of the run's own scope: the journal's, or the timeout."""
    journal = run.tree.log.journal
    if journal is not None and journal.error is not None:
        return journal.error
    assert segment.timeout is not None
    record_end(run)  # a cancellation that comes while the run is cleaned up changes nothing
    run.stopped_by = RunTimeout(segment.timeout)
    return run.stopped_by


async def _enter(run: LiveRun, segment: RunSegment) -> None:
    trace = None if segment.open_trace is None else await segment.open_trace(run)
    if run.state.sandbox is not None:
        from agentloop._engine.sandbox import find_sandbox

        await find_sandbox(run, run.state.sandbox)
    if segment.given is None and run.parent is None and not isinstance(next_action(run.state, None), Pause):
        await check_models(run)
    if segment.open_journal is not None:
        await segment.open_journal(run)
    if segment.given is None:
        await _resume(run, segment, trace)
    else:
        await _begin(run, segment, segment.given, trace)


async def _begin(run: LiveRun, segment: RunSegment, given: tuple[Item, ...], trace: Trace | None) -> None:
    """Append `RunStarted`, with the session's items loaded, and call the start hooks of the first agent."""
    if not run.context.run_id:
        effects = run.tree.effects
        run.context.run_id = new_id() if type(effects) is LiveEffects else await effects.perform(NewId())
    run.agent_key = run.tree.graph.key(run.agent)  # here, so that an agent with wrong parts fails the run
    kept = segment.kept
    traceparent = None if trace is None else _open_segment(run, trace)
    started = RunStarted(
        run.state.path,
        0,
        run.tree.log.wall(),
        run.context.run_id,
        run.agent_key,
        given,
        segment.max_turns,
        workflow=trace.workflow_name if trace is not None else None,
        trace_id=trace.trace_id if trace is not None else None,
        traceparent=traceparent,
        conversation_id=kept.conversation_id if kept is not None else None,
        previous_response_id=kept.previous_response_id if kept is not None else None,
        kept=kept is not None,
    )
    try:
        if run.settings.session is not None:
            from agentloop._engine.session_writer import load_session

            own, shown = await load_session(run, run.settings.session, given)
            started = started.replace(input=own, shown=shown)
    finally:
        run.tree.log.append(started)  # the first record, also if loading the session fails
        run.has_begun = True
    if run.settings.config.sandbox is not None:
        await _ensure_sandbox(run, run.settings.config.sandbox)
    hooks, agent_hooks = run.settings.hooks, run.agent.hooks
    if (hooks is not None and find_hook(hooks, "on_agent_start")) or (
        agent_hooks is not None and find_hook(agent_hooks, "on_start")
    ):
        from agentloop._engine.handoff import begin_agent

        await checkpoint_if_cancelled()
        await begin_agent(run)


def _open_segment(run: LiveRun, trace: Trace) -> str | None:
    """Notify instruments of the run segment; return the name that one of them has for its span in another system."""
    begun = (run.state.resumed, run.state.started)
    opening = RunOpening(
        trace=trace,
        run_id=run.context.run_id,
        started_at=run.tree.log.wall(),
        earlier=next((record.traceparent for record in begun if record is not None and record.traceparent), None),
        agent=run.agent,
        config=run.settings.config,
    )
    run.tree.log.tell("on_run_open", opening)
    return opening.traceparent


async def _ensure_sandbox(run: LiveRun, provider: SandboxProvider) -> None:
    """Make the sandbox that the run's configuration wants, unless an earlier segment or an outer run has one."""
    if run.sandbox is None and run.parent is None:
        from agentloop._engine.sandbox import create_sandbox

        await create_sandbox(run, provider)


async def _resume(run: LiveRun, segment: RunSegment, trace: Trace | None) -> None:
    """Resume a run whose log has begun: the log's actions are not done again."""
    state = run.state
    if state.ended is not None and state.ended.status == "stopped":
        run.last_stopped_turn = state.turn
    traceparent = None if trace is None else _open_segment(run, trace)
    run.agent_key = run.tree.graph.key(run.agent)
    resumed = RunResumed(*run.here(), run.agent_key, segment.max_turns)
    if trace is not None:
        resumed = resumed.replace(workflow=trace.workflow_name, trace_id=trace.trace_id, traceparent=traceparent)
    run.tree.log.append(resumed)
    run.has_begun = True
    if segment.graph_changes:
        run.tree.log.append(GraphChanged(*run.here(), segment.graph_changes))
    if run.settings.config.sandbox is not None:
        await _ensure_sandbox(run, run.settings.config.sandbox)
    await checkpoint_if_cancelled()
    if state.turn and not state.turn_open and not state.input_added_later:
        from agentloop._engine.run_guardrails import guard_model_call, guards_missing

        await guard_model_call(
            run, guards_missing(run), _do_nothing
        )  # the model has answered, but not every guardrail had


async def _do_nothing() -> None:
    """No-op body for `guard_model_call` when the model has already answered."""
