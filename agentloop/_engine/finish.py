"""The end of a run segment: save the session, close resources, call `on_run_end`, append `RunEnded`, leave the sandbox.

Knows the parts of a run, not the loop: the caller has decided that and how the segment ends.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio

from agentloop._common.error_text import error_summary, is_fatal
from agentloop._common.values import Value
from agentloop._concurrency.backend import (
    cancelled_types,
    capture,
    checkpoint_if_cancelled,
    wait_out_cancellations,
)
from agentloop._core.history import valid_history
from agentloop._core.machine import AskBehavior, CheckOutput, GiveUp, next_action
from agentloop._engine.runtime.callbacks import find_hook, resolve
from agentloop._engine.runtime.cancel_source import record_end
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.context import Callback
from agentloop.exceptions import RunTimeout
from agentloop.hooks import RunOutcome
from agentloop.items import AssistantMessage, Item, Reasoning
from agentloop.records import RunEnded, RunStatus

GOES_ON = ("interrupted", "cancelled", "stopped")


class FinishedRun(Value, frozen=True):
    """The end of a run segment: its status, with the output or the error."""

    status: RunStatus
    output: Any = None
    error: BaseException | None = None
    stop_reason: str | None = None


async def save(run: LiveRun) -> None:
    """Write the items that the run has added to its session, if it has one. Shielded up to the cleanup deadline."""
    if run.settings.session is not None:
        from agentloop._engine.session_writer import save_items

        await save_items(run, run.settings.session)


async def save_turn(run: LiveRun) -> None:
    """Write the turn's items to the run's session, unless guardrails still have to judge them as the final output.

    Cancellation: the write is shielded; a cancellation that it hid is raised afterwards.
    """
    if run.settings.session is None:
        return
    if not isinstance(next_action(run.state, run.turn.view), CheckOutput | AskBehavior):
        await save(run)
        await checkpoint_if_cancelled()  # it is shielded, and may have hidden the end of the run


async def _save_rest(run: LiveRun, error: BaseException | None) -> None:
    """Write the items of a turn that didn't reach its end: complete pairs only, and none that a guardrail refused."""
    session = run.settings.session
    if session is None or not run.state.run_id or session.failed:
        return
    from agentloop._engine.session_writer import save_items

    # Read the log, not the error: a run that is cancelled in the moment in which a guardrail trips ends as cancelled.
    tripped = run.state.tripped.stage if run.state.tripped is not None else None
    if tripped == "input":
        await save_items(run, session, upto=lambda items: ())
    elif tripped == "output":
        await save_items(run, session, upto=_drop_messages)
    elif run.state.unusable_reason is not None:
        refused = {id(item) for item in run.state.response or ()}  # a later run could not continue from them either
        await save_items(
            run, session, upto=lambda items: valid_history(item for item in items if id(item) not in refused)
        )
    elif not (
        isinstance(error, (*cancelled_types(), RunTimeout))
        and isinstance(next_action(run.state, run.turn.view), CheckOutput | GiveUp)
    ):  # else it was ended from outside before a candidate for the final output was accepted
        await save_items(run, session)


def _drop_messages(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Return *items* without messages, the reasoning that led to them, and incomplete pairs."""
    kept: list[Item] = []
    for item in items:
        if not isinstance(item, AssistantMessage):
            kept.append(item)
            continue
        while kept and isinstance(kept[-1], Reasoning):
            kept.pop()
    return valid_history(kept)


async def finish_segment(run: LiveRun, ended: FinishedRun) -> BaseException | None:
    """Save the session, close resources, call `on_run_end`, append `RunEnded`. Returns the error to raise, or None.

    The first failure is returned, with the others as notes; if the run ends by a cancellation, the record's details
    keep them. A BaseException that is no Exception outranks both.

    Cancellation: the steps are shielded, up to the cleanup deadline; the journal's writer has deadlines of its own.
    """
    # A turn with calls has a record of its end.
    turn_ended_at = run.tree.log.wall() if run.state.turn and not run.state.batch else None
    journal, host = run.tree.log.journal, run.resources.host
    if ended.error is not None or run.limit_scope is not None:
        _bound_cleanup(run, ended)
    if journal is not None and not journal.begun and host is not None:
        # The first task may have been cancelled before it began.
        host.host(type(journal).run, journal, "agentloop journal")
    errors: list[BaseException] = []
    if ended.status != "completed":
        await _collect_error(errors, partial(_save_rest, run, ended.error))
    run.resources.closed = True
    if run.resources.held:
        errors += await run.resources.close(run.cleanup, run.cut)
    if errors:
        ended = _fail(ended, errors)
    hooks = run.settings.hooks
    if hooks is not None and run.parent is None and (hook := find_hook(hooks, "on_run_end")) is not None:
        await _collect_error(errors, partial(_call_run_end_hook, run, hook, ended))
        if errors:
            ended = _fail(ended, errors)
    broken = run.tree.log.instrument_error if run.parent is None else None
    if broken is not None:
        errors.append(broken)
    if errors:
        ended = _prefer_fatal(ended, errors)
    failed = ended.error if ended.status == "failed" else None
    for error in (*errors, failed):
        if error is not None:
            run.redact_error(error)
    others = [error_summary(error) for error in errors if error is not failed]
    if run.has_begun:
        run.tree.log.append(
            RunEnded(
                run.state.path,
                run.state.turn,
                run.tree.log.wall(),
                ended.status,
                final_output=ended.output if failed is None else None,
                stop_reason=ended.stop_reason,
                error=None if failed is None else error_summary(failed),
                details={"also_failed": others} if others else None,
                resumable=ended.status != "completed" and _is_resumable(run, ended.status, failed),
                turn_ended_at=turn_ended_at,
            )
        )
    over = run.has_begun and run.state.ended is not None and not run.state.ended.resumable
    run.stopped_by = None  # its traceback holds frames that hold the run
    if journal is not None and run.parent is None:
        unwritten = journal.error
        if not journal.immediate:
            with anyio.CancelScope(shield=True):  # the writer has deadlines of its own
                unwritten = (await capture(partial(wait_out_cancellations, journal.durable))).error
        if unwritten is not None:
            failed = _choose_graver(failed, unwritten)
    if run.sandbox is not None:
        from agentloop._engine.sandbox import leave_sandbox

        # The storage goes after the record of the end is durable, and stays where that is unknown.
        fatal = await leave_sandbox(run, run.sandbox, over=over and (journal is None or journal.error is None))
        if fatal is not None:
            failed = _choose_graver(failed, fatal)
    late = run.tree.log.instrument_error if broken is None and run.parent is None else None
    if late is not None:  # an instrument has broken at the last record
        failed = _choose_graver(failed, late)
    if failed is not None:
        for other in others:
            failed.add_note(f"also failed: {other}")
    return failed


def _bound_cleanup(run: LiveRun, ended: FinishedRun) -> None:
    if ended.error is not None:
        record_end(run)
        run.cleanup.begin()
    elif run.limit_scope is not None and run.limit_scope.deadline < math.inf:
        # Nothing was cancelled, and still the run's deadline, plus the grace, bounds the end, too.
        run.cleanup.end_by(run.limit_scope.deadline + run.cleanup.grace)


def _fail(ended: FinishedRun, errors: list[BaseException]) -> FinishedRun:
    """Return *ended*, or a failure by the first of *errors* if the run had no error."""
    return FinishedRun("failed", error=errors[0]) if ended.error is None else ended


def _prefer_fatal(ended: FinishedRun, errors: list[BaseException]) -> FinishedRun:
    """Return *ended*, or a failure by the first of *errors* that is no Exception, if the run has no such error.

    The error that it replaces joins *errors*.
    """
    fatal = next(filter(is_fatal, errors), None)
    failed = ended.error if ended.status == "failed" else None
    if fatal is None or (failed is not None and is_fatal(failed)):
        return ended
    if failed is not None and not any(error is failed for error in errors):
        errors.append(failed)
    return FinishedRun("failed", error=fatal)


def _is_resumable(run: LiveRun, status: RunStatus, failed: BaseException | None) -> bool:
    """Tell whether another run segment may follow: never past a call that failed, however else this one ended."""
    if run.state.unreported_failure is not None:
        return False
    return status in GOES_ON or (failed is not None and failed is run.stopped_by)


def _choose_graver(failed: BaseException | None, other: BaseException) -> BaseException:
    """Return the one of two failures to raise: the first, unless only the *other* is no Exception."""
    if failed is None or failed is other:
        return other
    if is_fatal(other) and not is_fatal(failed):
        failed, other = other, failed
    failed.add_note(f"also failed: {error_summary(other)}")
    return failed


async def _call_run_end_hook(run: LiveRun, hook: Callback, ended: FinishedRun) -> None:
    error = None if ended.status == "cancelled" else ended.error
    outcome = RunOutcome(status=ended.status, final_output=ended.output, error=error)
    with run.cleanup.section(on_cut=lambda: run.cut("on_run_end")):
        await resolve(hook(run.context, outcome))


async def _collect_error(errors: list[BaseException], work: Callable[[], Awaitable[None]]) -> None:
    """Do *work* and append its error to *errors*, so that the other steps of the end are done in any case."""
    error = (await capture(work, outlast=True)).error
    if error is not None:
        errors.append(error)
