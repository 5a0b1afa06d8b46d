"""The end of a run segment: save the session, close resources, call `on_run_end`, append `RunEnded`, leave the sandbox.

Knows the parts of a run, not the loop: the caller has decided that and how the segment ends. The agent's end hooks and
the output guardrails come before, in this order: `final_output`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from agentloop._common.error_text import error_summary, is_fatal
from agentloop._common.values import Value
from agentloop._concurrency.backend import capture, wait_out_cancellations
from agentloop._core.history import leave_out, valid_history
from agentloop._core.next_action import AskBehavior, CheckOutput, GiveUp, Prepare, next_action
from agentloop._engine.runtime.cancel_source import record_end
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.config.hooks import RunOutcome
from agentloop.exceptions import RunTimeoutError
from agentloop.items import AssistantMessage, Item
from agentloop.records import RunEnded, RunStatus

if TYPE_CHECKING:
    from agentloop._engine.runtime.session_progress import SessionProgress

UNJUDGED = (AskBehavior, CheckOutput, GiveUp, Prepare)
"""Actions before which the run has a candidate for its final output that isn't accepted, or doesn't know yet."""


class FinishedRun(Value, frozen=True):
    """The end of a run segment: its status, with the output, the error or the cancellation from around it."""

    status: RunStatus
    output: Any = None
    error: BaseException | None = None
    stop_reason: str | None = None
    cancel: BaseException | None = None


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
    if not isinstance(next_action(run.state, run.view), CheckOutput | AskBehavior):
        await save(run)
        await run.checkpoint()  # it is shielded, and may have hidden the end of the run


async def _save_rest(run: LiveRun, session: SessionProgress, given: FinishedRun) -> None:
    """Write the items of a turn that didn't reach its end: complete pairs only, and none that a guardrail refused."""
    if not run.state.run_id or session.failed:
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
        (given.cancel is not None or isinstance(given.error, RunTimeoutError))
        and isinstance(next_action(run.state, run.view), UNJUDGED)
    ):  # else it was ended from outside before a candidate for the final output was accepted, or even looked for
        await save_items(run, session)


def _drop_messages(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Return *items* without messages, the reasoning that led to them, and incomplete pairs."""
    return valid_history(leave_out(items, lambda item: isinstance(item, AssistantMessage)))


async def finish_segment(run: LiveRun, given: FinishedRun) -> BaseException | None:
    """Save the session, close resources, call `on_run_end`, append `RunEnded`. Returns the error to raise, or None.

    *given* is how the loop has ended. The first failure is returned, with the others as notes; if the run ends by a
    cancellation, the record's details keep them. A BaseException that isn't an Exception outranks both.

    Cancellation: the steps are shielded, up to the cleanup deadline; the journal's writer has its own deadlines.
    """
    turn_ended_at = run.tree.log.wall() if run.state.turn and not run.state.batch else None  # else a record says so
    errors: list[BaseException] = []
    run.take_no_input()
    _bound_cleanup(run, given)
    if run.background is not None:
        await run.background.cut()
    if run.settings.session is not None and given.status != "completed":  # else the turn's end has saved it
        await _attempt(partial(_save_rest, run, run.settings.session, given), errors)
    run.resources.closed = True
    if run.resources.held:
        errors += await run.resources.close(run.cleanup, run.cut)
    if run.find_hooks("run_end"):
        await _attempt(partial(_call_end_hooks, run, _choose_end(given, errors)), errors)
    if run.parent is None:
        _add(errors, run.tree.log.instrument_error)
    _add(errors, given.error)
    for error in errors:
        run.redact_error(error)
    ended = _choose_end(given, errors)
    if run.has_begun:
        run.tree.log.append(_make_record(run, ended, _summarize_others(errors, ended.error), turn_ended_at))
    run.stopped_by = None  # its traceback holds frames that hold the run
    if run.parent is None:
        await _close_tree(run, errors)
    return _note_others(_choose_end(given, errors).error, errors)


def _make_record(run: LiveRun, ended: FinishedRun, others: list[str], turn_ended_at: float | None) -> RunEnded:
    return RunEnded(
        *run.here(),
        ended.status,
        final_output=ended.output,
        stop_reason=ended.stop_reason,
        error=None if ended.error is None else error_summary(ended.error),
        details={"also_failed": others} if others else None,
        resumable=_is_resumable(run, ended),
        turn_ended_at=turn_ended_at,
    )


async def _attempt(work: Callable[[], Awaitable[None]], errors: list[BaseException]) -> None:
    """Do *work* and add its error, if any, to *errors*, so that the other steps of the end are done in any case."""
    _add(errors, (await capture(work, outlast=True)).error)


def _bound_cleanup(run: LiveRun, ended: FinishedRun) -> None:
    """Set the cleanup deadline, and see to it that the journal has its writer."""
    if ended.error is not None or ended.cancel is not None:
        record_end(run)
        run.cleanup.begin()
    elif run.limit_scope is not None and run.limit_scope.deadline < math.inf:
        # Nothing was cancelled, and still the run's deadline, plus the grace, bounds the end, too.
        run.cleanup.end_by(run.limit_scope.deadline + run.cleanup.grace)
    journal, host = run.tree.log.journal, run.resources.host
    if journal is not None and not journal.begun and host is not None:
        # The first task may have been cancelled before it began.
        host.host(type(journal).run, journal, "agentloop journal")


async def _call_end_hooks(run: LiveRun, ended: FinishedRun) -> None:
    outcome = RunOutcome(status=ended.status, final_output=ended.output, error=ended.error)
    with run.cleanup.section(on_cut=lambda: run.cut("on_run_end")):
        await run.call_hooks("run_end", outcome)


def _choose_end(given: FinishedRun, errors: list[BaseException]) -> FinishedRun:
    """Return how the segment ends: as *given*, unless one of *errors*, those of its last steps, outranks that.

    A fatal error outranks a cancellation, which outranks any other error; of equals the earliest wins.
    """
    known = errors if given.error is None else [given.error, *errors]
    usual = None if given.cancel is not None else next(iter(known), None)
    chosen = next(filter(is_fatal, known), usual)
    # None is None where nothing failed.
    return given if chosen is given.error else FinishedRun("failed", error=chosen)


def _summarize_others(errors: list[BaseException], failed: BaseException | None) -> list[str]:
    """Return summaries of *errors* but for *failed*, which is raised."""
    return [error_summary(error) for error in errors if error is not failed]


def _note_others(failed: BaseException | None, errors: list[BaseException]) -> BaseException | None:
    """Return *failed*, the error to raise, if there is one, with a note of each other one of *errors*."""
    if failed is not None:
        for other in _summarize_others(errors, failed):
            failed.add_note(f"also failed: {other}")
    return failed


async def _close_tree(run: LiveRun, errors: list[BaseException]) -> None:
    """Do what follows the last record of the outermost run, and add what fails to *errors*.

    Wait until the whole log is durable, then give the sandbox back. Its storage goes once the record of the end is
    durable, and stays if that isn't known. An instrument may have broken at the last record.
    """
    log = run.tree.log
    if log.journal is not None:
        with anyio.CancelScope(shield=True):  # the writer has its own deadlines
            _add(errors, (await capture(partial(wait_out_cancellations, log.journal.durable))).error)
    if run.sandbox is not None:
        from agentloop._engine.sandbox import leave_sandbox

        over = run.has_begun and run.state.ended is not None and not run.state.ended.resumable
        _add(errors, await leave_sandbox(run, run.sandbox, over=over and log.journal_error is None))
    _add(errors, log.instrument_error)


def _add(errors: list[BaseException], error: BaseException | None) -> None:
    """Add *error*, if there is one, to *errors*, unless it is among them."""
    if error is not None and not any(known is error for known in errors):
        errors.append(error)


def _is_resumable(run: LiveRun, ended: FinishedRun) -> bool:
    """Tell whether another run segment may follow: never past a call that failed, however else this one ended."""
    if ended.status == "completed" or run.state.unreported_failure is not None:
        return False
    return ended.status != "failed" or (ended.error is not None and ended.error is run.stopped_by)
