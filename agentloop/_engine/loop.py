"""The loop of a run: get the next action from the machine, do it, append the result. No other code drives a run.

Knows actions and the order of a run segment; decides nothing about a run's state: `next_action` does, and each step has
its own module.

Theory. A run is the fold of its records, and `next_action` reads only that fold and the turn's view. So a fresh, a
resumed and a recovered run take the same path and differ only in the count of records.

A run segment, from a start or resume to the next end or pause, is one call of `execute`, in this order:

    start_segment  opens the trace, finds the run's sandbox, opens the journal; then RunStarted (the session's items, a
                   new sandbox, the agent's hooks) or RunResumed (missing guardrails)
    drive          one action at a time, until the run has ended, paused or stopped
    finish_segment session, resources, `on_run_end`, RunEnded: always, also when the segment fails or is cancelled

Only an application's callable can decide `AskBehavior`: the loop calls it and continues as if the machine had named the
answer. (Rejected: calling it where a batch settles. A run that begins with its records would not call it.)

Facts: the log, and in `LiveRun` the agent at work, the stop requested by the consumer and the very error that stopped
the loop (`stopped_by`). `run.view` is derived: it holds the definitions of the current turn and is made again
where it is missing.

Invariants: `RunEnded` is the last record of every segment, unless its process dies. A turn's record is durable before
its model call. A check for cancellation follows each shielded section that could have hidden one, and precedes each
end: the step that decides it may have been ready already when the caller cancelled. `execute` raises errors bare, and
lets a cancellation continue only after `finish_segment`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Literal, assert_never

import anyio
import anyio.lowlevel

from agentloop._common.error_text import leaves
from agentloop._concurrency.backend import (
    Captured,
    cancelled_types,
    capture_error,
    new_scope,
    own_task_and_count,
    raise_native_cancel,
)
from agentloop._core.next_action import (
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
from agentloop._engine.close_segment import FinishedRun, finish_segment, save_turn
from agentloop._engine.final_output import accept, ask_behavior, continues_with_input, give_up
from agentloop._engine.model_call import call_model, find_price, make_request
from agentloop._engine.prepare_turn import prepare_turn
from agentloop._engine.run_result import run_data_of
from agentloop._engine.runtime.cancel_source import record_end
from agentloop._engine.runtime.live_run import LiveRun
from agentloop._engine.start import RunSegment, start_segment
from agentloop._engine.turn_calls import note_late_calls, plan_turn, run_calls
from agentloop.config.budget import WorstCase
from agentloop.exceptions import AgentLoopError, RunTimeoutError, StateError, UsageLimitExceeded
from agentloop.records import TurnStarted


async def execute(run: LiveRun, segment: RunSegment) -> FinishedRun:
    """Run one segment of *run* in the current task, and return how it ended.

    Cancellation: continues after all parts of the run have ended; `RunEnded` is the last record.

    Raises:
        BaseException: the error that ended the run, bare; with `run_data` if it is the library's own.
    """
    timeout = segment.timeout
    if timeout is not None or segment.open_journal is not None:
        run.limit_scope = new_scope()
    if run.limit_scope is not None and timeout is not None:
        run.limit_scope.deadline = anyio.current_time() + timeout
    task, count = own_task_and_count()
    try:
        work = _run_segment(run, segment)
        del segment  # the collector would visit it as long as the run waits
        ended = await (work if run.limit_scope is None else _run_in_time(run, timeout, run.limit_scope, work))
    except BaseException as error:  # noqa: ASYNC103 - raised again below
        ended = _end_by(await capture_error(error, task, count, outlast=True))  # noqa: ASYNC102 - does not wait
    failed = await finish_segment(run, ended)
    try:
        if failed is None and ended.cancel is not None:
            failed = ended.cancel  # it continues
            await raise_native_cancel(failed)  # does not wait: a cancellation is pending
        if failed is None:
            return ended
        if isinstance(failed, AgentLoopError):
            failed.run_data = run_data_of(run)
        raise failed
    finally:
        del ended, failed  # a frame of its traceback would hold it: the run would wait for the garbage collector


async def _run_segment(run: LiveRun, segment: RunSegment) -> FinishedRun:
    """Start the segment and drive the run; return how it ends.

    Raises:
        BaseException: the error that ends the run early. A cancellation has precedence over errors of the same pass.
    """
    try:
        await start_segment(run, segment)
        del segment  # as above
        ended = await drive(run)
        if run.background is not None or run.state.background or run.state.inbox:
            from agentloop._engine.calls.background import finish_calls  # few runs have one

            await finish_calls(run, completes=ended.status == "completed")
        return ended
    except (Exception, BaseExceptionGroup) as error:
        # A group may hold the cancellation beside errors: on trio, of tasks that an application's code began.
        if all(isinstance(leaf, (Exception, *cancelled_types())) for leaf in leaves(error)):
            await run.checkpoint()  # noqa: ASYNC102, ASYNC120 - as said
        raise


async def _run_in_time(
    run: LiveRun, timeout: float | None, limit: anyio.CancelScope, work: Awaitable[FinishedRun]
) -> FinishedRun:
    """Await *work* within *limit*, the scope that ends the run at its deadline or as its journal fails.

    Raises:
        RunTimeoutError, JournalError: the limit has ended the run.
    """
    with limit:
        return await work
    # The caller's cancellation comes first, if it has come in the same scheduler pass as this end.
    await anyio.lowlevel.cancel_shielded_checkpoint()
    await run.checkpoint()
    if run.tree.log.journal_error is not None:
        raise run.tree.log.journal_error
    assert timeout is not None
    record_end(run)  # a cancellation that comes while the run is cleaned up changes nothing
    run.stopped_by = RunTimeoutError(timeout)
    raise run.stopped_by


def _end_by(captured: Captured) -> FinishedRun:
    """Return the end of a run segment that an error or a cancellation has ended."""
    if captured.outer_cancel is not None:
        return FinishedRun("cancelled", cancel=captured.outer_cancel)
    return FinishedRun("failed", error=captured.error)


async def drive(run: LiveRun) -> FinishedRun:
    """Do one action after the other until the run ends, pauses or stops; return how it does.

    Raises:
        BaseException: the error that ends the run early.
    """
    ended: FinishedRun | None = None
    while ended is None:  # noqa: ASYNC913 - every action waits but the last
        action = next_action(run.state, run.view)
        if type(action) is AskBehavior:
            action = await ask_behavior(run) or turn_or_give_up(run.state)
        match action:
            case RequestModel():
                ended = await _request_model(run)
            case Settle():
                view = await _ensure_view(run)
                await run_calls(run, view, await plan_turn(run, view))
                await save_turn(run)
            case CheckOutput():
                ended = await accept(run, action)
            case Transfer():
                await _transfer(run, action)
            case Prepare():
                await _ensure_view(run)
            case GiveUp():
                ended = await _give_up(run, action)
            case Pause():
                ended = _pause(run)
            case Finish(end):
                ended = FinishedRun(end.status, end.final_output)
            case never:
                assert_never(never)
    return ended


def _pause(run: LiveRun) -> FinishedRun | None:
    """Return the end of a run that waits for verdicts and answers; None if the time of an answer has passed."""
    return None if note_late_calls(run) else FinishedRun("interrupted")


async def _request_model(run: LiveRun) -> FinishedRun | None:
    """Begin the next turn, or continue the open one, and call the model; return the end of the run if it stops here.

    A turn continues where the provider has paused its answer, and is asked for the rest. Definitions stay those of the
    turn, and a request to stop after it, or `stop_when`, waits for the whole answer.

    Raises:
        UsageLimitExceeded: a budget is spent.
        StateError: the run's secret input is not available.
    """
    view, journal = run.view if run.state.turn_open else None, run.tree.log.journal
    if view is None and (ended := await _check_turn_end(run)) is not None:
        return ended
    _check_limits(run)
    if view is None:
        view = await _begin_turn(run)
    if journal is not None:
        await journal.durable()
    if run.state.input_guards_due:
        from agentloop._engine.run_guardrails import guard_model_call

        await guard_model_call(run, partial(call_model, run, view))
    else:
        await call_model(run, view)
    return None


async def _transfer(run: LiveRun, action: Transfer) -> None:
    from agentloop._engine.handoff import transfer

    await transfer(run, await _ensure_view(run), action)
    await save_turn(run)


async def _give_up(run: LiveRun, action: GiveUp) -> FinishedRun | None:
    """Return the end of a run that can't continue: by a handler's output, or stopped at the end of its last turn.

    None if one turn is left for the final output.
    """
    if action.handler == "max_turns":
        if (ended := await _check_turn_end(run)) is not None:
            return ended
        if _answers_at_limit(run, "max_turns"):
            return None
    elif await continues_with_input(run):
        return None
    run.takes_input = False
    return FinishedRun("completed", await give_up(run, action))


async def _ensure_view(run: LiveRun) -> TurnView:
    """Return the turn's view; rebuild it where the run resumed mid-turn, the model having answered already."""
    if run.view is None:
        run.view = await prepare_turn(run, answered=True)
    return run.view


async def _check_turn_end(run: LiveRun) -> FinishedRun | None:
    """Return the end of the run if it stops between two turns, else None. Waits for slow consumers of its events."""
    if not (run.stop_after_turn or run.state.turn_open):  # an open turn's end was checked in an earlier run segment
        condition, limit = run.settings.stop_when, run.settings.config.tool_execution.loop_detection
        if condition is not None and run.state.turn > run.last_stopped_turn:
            from agentloop._engine.turn_end import find_stop_condition

            if (found := await find_stop_condition(run, condition)) is not None:
                await run.checkpoint()
                return FinishedRun("stopped", stop_reason=str(found))
        if limit is not None and run.state.warned_in != run.state.turn:
            from agentloop._engine.turn_end import check_loop

            check_loop(run, limit)
    if not run.stop_after_turn:
        for buffer in run.tree.log.buffers():
            if buffer.hears(run.path):
                await buffer.room()
    # Checked last: the consumer may have requested the stop while the run was waiting for the consumer.
    return FinishedRun("cancelled") if run.stop_after_turn else None


async def _begin_turn(run: LiveRun) -> TurnView:
    """Prepare the turn and append `TurnStarted`; return its view.

    Raises:
        ContextTooLong: the history doesn't fit the model's window, and couldn't be made shorter.
        UsageLimitExceeded: the summary that made it shorter has spent the budget.
        StateError: the run's secret input is not available.
    """
    if run.tree.log.find_state_error is not None:
        run.follow_state_error()
    if run.state.gaps and run.tree.log.expect is None:  # a replay calls nothing: it needs none
        run.stopped_by = StateError(
            f"run {run.context.run_id} needs its secret input, which was stored as digests, or sealed by a codec that "
            "isn't given"
        )
        raise run.stopped_by
    view = run.view = await prepare_turn(run)
    if run.background is not None or run.state.background:
        from agentloop._engine.calls.background import continue_calls  # few runs have one

        continue_calls(run, view)
    await run.checkpoint()  # a shielded section before this may have hidden the end of the run
    view = await _fit_request(run, view)
    if run.state.inbox:
        from agentloop._engine.inbox import show_inputs  # few runs get one

        while await show_inputs(run):  # the last look is in the step of `TurnStarted`
            view = await _fit_request(run, view)
    state, log, judges = run.state, run.tree.log, _name_judges(run)
    turn = state.turn if state.turn_open else state.turn + 1  # open: from an earlier run segment, without an answer
    log.append(TurnStarted(state.path, turn, log.wall(), state.agent, view.tool_names, view.handoff_names, judges))
    return view


async def _fit_request(run: LiveRun, view: TurnView) -> TurnView:
    """See to it that the request fits the model's window and the budgets; return the view, which may have changed.

    Raises:
        ContextTooLong, UsageLimitExceeded: as `_begin_turn`.
    """
    if (policy := run.settings.config.context or run.agent.context) is not None:
        from agentloop._compacting import keep_in_window

        requests, view = run.state.meter.requests, await keep_in_window(run, view, policy, call_model)
        # A summary may have spent the budget, and a note changes what the model is shown.
        if run.state.meter.requests > requests and _check_limits(run):
            view = run.view = await prepare_turn(run)
    if run.settings.budget is not None and run.settings.budget.counts_worst_case and not run.state.is_closing:
        from agentloop._engine.worst_case import find_worst_case

        worst = find_worst_case(run, view.model, make_request(run, view), find_price(run, view.model))
        if _check_limits(run, worst):
            view = run.view = await prepare_turn(run)
    return view


def _check_limits(run: LiveRun, worst: WorstCase | None = None) -> bool:
    """Check that the run's budgets allow one more turn, or that it is left for the final output; say what is left.

    *worst*: the worst case of the turn's request. Returns True if there is something new for the model to read.

    Raises:
        UsageLimitExceeded: a budget is spent, or has no room for the worst case.
    """
    length = len(run.state.history)
    try:
        run.check_request(worst)
    except UsageLimitExceeded:
        if run.state.turn_open or not _answers_at_limit(run, "usage_limits"):
            raise
    if run.settings.config.nudge_at is not None and not run.state.turn_open:
        from agentloop._engine.turn_end import nudge

        nudge(run, run.settings.config.nudge_at)
    return len(run.state.history) > length


def _answers_at_limit(run: LiveRun, limit: Literal["max_turns", "usage_limits"]) -> bool:
    """Tell whether the run has one more turn for its final output, and tell the model so."""
    if run.settings.config.at_limit == "raise":
        return False
    from agentloop._engine.turn_end import answer_at_limit

    return answer_at_limit(run, limit)


def _name_judges(run: LiveRun) -> tuple[str, ...]:
    """Return the names of the guardrails that judge the input in the turn that begins; none once it is accepted."""
    if run.state.input_accepted or not (run.agent.input_guardrails or run.settings.config.input_guardrails):
        return ()
    from agentloop._engine.run_guardrails import input_guardrails

    return tuple([guard.name for guard in input_guardrails(run)])
