"""The end of a run segment: save the session, close resources, call `on_run_end`, append `RunEnded`, leave the sandbox.

Knows the parts of a run, not the loop: the caller has decided that and how the segment ends.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from agentloop._common.error_text import error_summary, is_fatal
from agentloop._common.values import Value
from agentloop._concurrency.backend import (
    cancelled_types,
    capture,
    wait_out_cancellations,
)
from agentloop._core.history import valid_history
from agentloop._core.machine import AskBehavior, CheckOutput, GiveUp, Prepare, next_action
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


class SegmentEnd(msgspec.Struct, eq=False):
    """The end of one run segment, as the steps of `finish_segment` make it. Owned and mutated by them.

    Attributes:
        given: How the loop has ended.
        turn_ended_at: The wall-clock time of that, where no record says so: a turn with calls has one.
        errors: What the steps before `RunEnded` have failed with, in this order.
        others: Summaries of the errors that aren't raised.
        failed: The error to raise. Known once `RunEnded` is appended, and replaced by a graver one of a later step.
        over: True if no other run segment may follow.
    """

    given: FinishedRun
    turn_ended_at: float | None
    errors: tuple[BaseException, ...] = ()
    others: tuple[str, ...] = ()
    failed: BaseException | None = None
    over: bool = False

    @property
    def ended(self) -> FinishedRun:
        """The end so far: as the loop has ended, or failed by the first error of a step."""
        if self.errors and self.given.error is None:
            return FinishedRun("failed", error=self.errors[0])
        return self.given

    async def attempt(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do *work* and keep its error, so that the other steps of the end are done in any case."""
        error = (await capture(work, outlast=True)).error
        if error is not None:
            self.errors += (error,)

    def fail(self, other: BaseException | None) -> None:
        """Note the failure of a step after `RunEnded`: it is raised if it is the first, or the only fatal one."""
        if other is not None:
            self.failed = _choose_graver(self.failed, other)


async def finish_segment(run: LiveRun, ended: FinishedRun) -> BaseException | None:
    """Save the session, close resources, call `on_run_end`, append `RunEnded`. Returns the error to raise, or None.

    The first failure is returned, with the others as notes; if the run ends by a cancellation, the record's details
    keep them. A BaseException that isn't an Exception outranks both.

    Cancellation: the steps are shielded, up to the cleanup deadline; the journal's writer has its own deadlines.
    """
    end = SegmentEnd(ended, run.tree.log.wall() if run.state.turn and not run.state.batch else None)
    _bound_cleanup(run, ended)
    for step in _STEPS:
        if (work := step(run, end)) is not None:
            await work
    if end.failed is not None:
        for other in end.others:
            end.failed.add_note(f"also failed: {other}")
    return end.failed


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


# Each step returns what has to be awaited for it; None if it has nothing to do, as most have in most runs.


def _save_session(run: LiveRun, end: SegmentEnd) -> Awaitable[None] | None:
    """Write the items that the session lacks, unless the turn's end has done so."""
    if end.given.status == "completed" or run.settings.session is None:
        return None
    return end.attempt(partial(_save_rest, run, run.settings.session, end.given.error))


def _close_resources(run: LiveRun, end: SegmentEnd) -> Awaitable[None] | None:
    run.resources.closed = True
    if not run.resources.held:
        return None

    async def close() -> None:
        end.errors += tuple(await run.resources.close(run.cleanup, run.cut))

    return close()


def _call_end_hooks(run: LiveRun, end: SegmentEnd) -> Awaitable[None] | None:
    if not run.find_hooks("run_end"):
        return None
    ended = end.ended
    error = None if ended.status == "cancelled" else ended.error
    outcome = RunOutcome(status=ended.status, final_output=ended.output, error=error)

    async def call() -> None:
        with run.cleanup.section(on_cut=lambda: run.cut("on_run_end")):
            await run.call_hooks("run_end", outcome)

    return end.attempt(call)


def _choose_end(run: LiveRun, end: SegmentEnd) -> FinishedRun:
    """Return how the segment ends, with all errors known; note which one is to be raised."""
    if run.parent is None and (broken := run.tree.log.instrument_error) is not None:
        end.errors += (broken,)
    ended = _prefer_fatal(end) if end.errors else end.given
    end.failed = ended.error if ended.status == "failed" else None
    for error in end.errors if end.failed is None else (*end.errors, end.failed):
        run.redact_error(error)
    end.others = tuple([error_summary(error) for error in end.errors if error is not end.failed])
    return ended


def _append_end(run: LiveRun, end: SegmentEnd) -> None:
    """Append `RunEnded`, if the segment has begun."""
    ended, failed = _choose_end(run, end), end.failed
    if run.has_begun:
        record = RunEnded(
            *run.here(),
            ended.status,
            final_output=ended.output if failed is None else None,
            stop_reason=ended.stop_reason,
            error=None if failed is None else error_summary(failed),
            details={"also_failed": list(end.others)} if end.others else None,
            resumable=ended.status != "completed" and _is_resumable(run, ended.status, failed),
            turn_ended_at=end.turn_ended_at,
        )
        run.tree.log.append(record)
        end.over = run.state.ended is not None and not run.state.ended.resumable
    run.stopped_by = None  # its traceback holds frames that hold the run


def _write_journal(run: LiveRun, end: SegmentEnd) -> Awaitable[None] | None:
    """Wait until the whole log is durable."""
    journal = run.tree.log.journal
    if journal is None or run.parent is not None:
        return None

    async def write() -> None:
        with anyio.CancelScope(shield=True):  # the writer has its own deadlines
            end.fail((await capture(partial(wait_out_cancellations, journal.durable))).error)

    return write()


def _leave_sandbox(run: LiveRun, end: SegmentEnd) -> Awaitable[None] | None:
    """Give the sandbox back. Its storage goes once the record of the end is durable, and stays if that isn't known."""
    sandbox, journal = run.sandbox, run.tree.log.journal
    if sandbox is None:
        return None
    from agentloop._engine.sandbox import leave_sandbox

    async def leave() -> None:
        durable = journal is None or journal.error is None
        end.fail(await leave_sandbox(run, sandbox, over=end.over and durable))

    return leave()


def _raise_late_error(run: LiveRun, end: SegmentEnd) -> None:
    """Raise the error of an instrument that has broken at the last record."""
    late = run.tree.log.instrument_error if run.parent is None else None
    if late is not None and not any(error is late for error in end.errors):
        end.fail(late)


_STEPS: tuple[Callable[[LiveRun, SegmentEnd], Awaitable[None] | None], ...] = (
    *(_save_session, _close_resources, _call_end_hooks, _append_end),
    *(_write_journal, _leave_sandbox, _raise_late_error),
)


def _prefer_fatal(end: SegmentEnd) -> FinishedRun:
    """Return how the segment has ended, or a failure by the first fatal error, if the run has no such error.

    The error that it replaces joins the others.
    """
    ended = end.ended
    fatal = next(filter(is_fatal, end.errors), None)
    failed = ended.error if ended.status == "failed" else None
    if fatal is None or (failed is not None and is_fatal(failed)):
        return ended
    if failed is not None and not any(error is failed for error in end.errors):
        end.errors += (failed,)
    return FinishedRun("failed", error=fatal)


def _is_resumable(run: LiveRun, status: RunStatus, failed: BaseException | None) -> bool:
    """Tell whether another run segment may follow: never past a call that failed, however else this one ended."""
    if run.state.unreported_failure is not None:
        return False
    return status in GOES_ON or (failed is not None and failed is run.stopped_by)


def _choose_graver(failed: BaseException | None, other: BaseException) -> BaseException:
    """Return the one of two failures to raise: the first, unless only the *other* isn't an Exception."""
    if failed is None or failed is other:
        return other
    if is_fatal(other) and not is_fatal(failed):
        failed, other = other, failed
    failed.add_note(f"also failed: {error_summary(other)}")
    return failed
