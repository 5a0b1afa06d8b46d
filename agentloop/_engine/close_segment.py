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
from agentloop._concurrency.backend import (
    cancelled_types,
    capture,
    wait_out_cancellations,
)
from agentloop._core.history import valid_history
from agentloop._core.next_action import AskBehavior, CheckOutput, GiveUp, Prepare, next_action
from agentloop._engine.runtime.cancel_source import record_end
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.exceptions import RunTimeoutError
from agentloop.hooks import RunOutcome
from agentloop.items import AssistantMessage, Item, Reasoning
from agentloop.records import RunEnded, RunStatus

if TYPE_CHECKING:
    from agentloop._engine.runtime.session_progress import SessionProgress

UNJUDGED = (AskBehavior, CheckOutput, GiveUp, Prepare)
"""Actions before which the run has a candidate for its final output that isn't accepted, or doesn't know yet."""
GOES_ON = ("interrupted", "cancelled", "stopped")


class FinishedRun(Value, frozen=True):
    """The end of a run segment: its status, with the output or the error."""

    status: RunStatus
    output: Any = None
    error: BaseException | None = None
    stop_reason: str | None = None

    @property
    def failure(self) -> BaseException | None:
        """The error of a segment that has failed; None for any other end."""
        return self.error if self.status == "failed" else None


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


async def _save_rest(run: LiveRun, session: SessionProgress, error: BaseException | None) -> None:
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
        isinstance(error, (*cancelled_types(), RunTimeoutError))
        and isinstance(next_action(run.state, run.view), UNJUDGED)
    ):  # else it was ended from outside before a candidate for the final output was accepted, or even looked for
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
    if run.settings.session is not None and given.status != "completed":  # else the turn's end has saved it
        errors += await _attempt(partial(_save_rest, run, run.settings.session, given.error))
    run.resources.closed = True
    if run.resources.held:
        errors += await run.resources.close(run.cleanup, run.cut)
    if run.find_hooks("run_end"):
        errors += await _attempt(partial(_call_end_hooks, run, _end_so_far(given, errors)))
    ended, others = _choose_end(run, given, errors)
    failed = ended.failure
    if run.has_begun:
        run.tree.log.append(_make_record(run, ended, others, turn_ended_at))
    run.stopped_by = None  # its traceback holds frames that hold the run
    if run.parent is None:
        failed = await _close_tree(run, failed, errors)
    if failed is not None:
        for other in others:
            failed.add_note(f"also failed: {other}")
    return failed


def _make_record(run: LiveRun, ended: FinishedRun, others: list[str], turn_ended_at: float | None) -> RunEnded:
    return RunEnded(
        *run.here(),
        ended.status,
        final_output=ended.output,
        stop_reason=ended.stop_reason,
        error=None if ended.failure is None else error_summary(ended.failure),
        details={"also_failed": others} if others else None,
        resumable=_is_resumable(run, ended),
        turn_ended_at=turn_ended_at,
    )


async def _attempt(work: Callable[[], Awaitable[None]]) -> list[BaseException]:
    """Do *work* and return its error, if any, so that the other steps of the end are done in any case."""
    error = (await capture(work, outlast=True)).error
    return [] if error is None else [error]


def _bound_cleanup(run: LiveRun, ended: FinishedRun) -> None:
    """Set the cleanup deadline, and see to it that the journal has its writer."""
    if ended.error is not None:
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
    outcome = RunOutcome(status=ended.status, final_output=ended.output, error=ended.failure)
    with run.cleanup.section(on_cut=lambda: run.cut("on_run_end")):
        await run.call_hooks("run_end", outcome)


def _end_so_far(given: FinishedRun, errors: list[BaseException]) -> FinishedRun:
    """Return the end as the loop has ended, or failed by the first of *errors*, which are those of steps."""
    return FinishedRun("failed", error=errors[0]) if errors and given.error is None else given


def _choose_end(run: LiveRun, given: FinishedRun, errors: list[BaseException]) -> tuple[FinishedRun, list[str]]:
    """Return how the segment ends, with all *errors* known, and summaries of the errors that aren't raised."""
    if run.parent is None and (broken := run.tree.log.instrument_error) is not None:
        errors.append(broken)
    ended = _prefer_fatal(_end_so_far(given, errors), errors)
    for error in errors if ended.failure is None else (*errors, ended.failure):
        run.redact_error(error)
    return ended, [error_summary(error) for error in errors if error is not ended.failure]


def _prefer_fatal(ended: FinishedRun, errors: list[BaseException]) -> FinishedRun:
    """Return *ended*, or a failure by the first fatal one of *errors*; the error that it replaces joins them."""
    fatal = next(filter(is_fatal, errors), None)
    if fatal is None:
        return ended
    failed = ended.failure
    if failed is not None and is_fatal(failed):
        return ended
    if failed is not None and not any(error is failed for error in errors):
        errors.append(failed)
    return FinishedRun("failed", error=fatal)


async def _close_tree(run: LiveRun, failed: BaseException | None, errors: list[BaseException]) -> BaseException | None:
    """Do what follows the last record of the outermost run; return the error to raise, *failed* or a graver one.

    Wait until the whole log is durable, then give the sandbox back. Its storage goes once the record of the end is
    durable, and stays if that isn't known. An instrument may have broken at the last record.
    """
    log = run.tree.log
    if log.journal is not None:
        with anyio.CancelScope(shield=True):  # the writer has its own deadlines
            failed = _choose_graver(failed, (await capture(partial(wait_out_cancellations, log.journal.durable))).error)
    if run.sandbox is not None:
        from agentloop._engine.sandbox import leave_sandbox

        over = run.has_begun and run.state.ended is not None and not run.state.ended.resumable
        failed = _choose_graver(failed, await leave_sandbox(run, run.sandbox, over=over and log.journal_error is None))
    if not any(error is log.instrument_error for error in errors):
        failed = _choose_graver(failed, log.instrument_error)
    return failed


def _is_resumable(run: LiveRun, ended: FinishedRun) -> bool:
    """Tell whether another run segment may follow: never past a call that failed, however else this one ended."""
    if ended.status == "completed" or run.state.unreported_failure is not None:
        return False
    return ended.status in GOES_ON or (ended.failure is not None and ended.failure is run.stopped_by)


def _choose_graver(failed: BaseException | None, other: BaseException | None) -> BaseException | None:
    """Return the one of two failures to raise: the first, unless only the *other* isn't an Exception."""
    if failed is None or other is None or failed is other:
        return failed if other is None else other
    if is_fatal(other) and not is_fatal(failed):
        failed, other = other, failed
    failed.add_note(f"also failed: {error_summary(other)}")
    return failed
