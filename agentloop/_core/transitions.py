"""The transition table of a run's log: which records may come next in which phase of a run, and of a call.

A run never appends a record that the table refuses, which the tests check at each append; a log that was damaged or
written by hand may hold one. Restoring (`RunState.folded`) checks every record before it is folded, so the fold itself
(`run_fold`) may trust the order. Knows kinds of records and phases; what a record changes is the fold's.

Phases of a run, each of which follows from the fold:

    unstarted   no `RunStarted` yet
    between     the model has answered, or no turn has begun: a turn, a final output or the end comes next
    model       the turn's model call is due or under way
    calls       the response's calls are due or under way
    handoff     a handoff is due
    ended       `RunEnded` is the last record of the run segment

Phases of a call: `new`, `asked` (a verdict was requested), `started`, `returned` (its body has ended), `settled`,
`released` (settled, like every earlier call). A call that an earlier run segment cut is due again: it has no outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from agentloop import records as r
from agentloop._core.call_state import CallState
from agentloop._core.run_fold import RunFold

RunPhase: TypeAlias = Literal["unstarted", "between", "model", "calls", "handoff", "ended"]
_CallRecord: TypeAlias = (
    r.ApprovalRequested
    | r.VerdictGiven
    | r.AnswerRequested
    | r.CallAnswered
    | r.CallStarted
    | r.BodyEnded
    | r.CallSettled
)
CallPhase: TypeAlias = Literal["new", "asked", "started", "returned", "settled", "released"]

_MODEL: tuple[RunPhase, ...] = ("model",)
_CALLS: tuple[RunPhase, ...] = ("calls",)
_UNDER_WAY: tuple[RunPhase, ...] = ("between", "model", "calls", "handoff")
_STARTED: tuple[RunPhase, ...] = (*_UNDER_WAY, "ended")

OF_RUNS: dict[type, tuple[RunPhase, ...]] = {
    r.RunStarted: ("unstarted",),
    r.RunResumed: _STARTED,
    r.TurnStarted: ("between", "model"),
    r.ModelRequested: _MODEL,
    r.ModelResponded: _MODEL,
    r.ModelFailed: _MODEL,
    r.GuardrailSettled: _UNDER_WAY,
    r.ApprovalRequested: _CALLS,
    r.VerdictGiven: ("calls", "ended"),
    r.AnswerRequested: _CALLS,
    r.CallAnswered: ("calls", "ended"),
    r.CallStarted: _CALLS,
    r.BodyEnded: _CALLS,
    r.CallSettled: _CALLS,
    r.BatchEnded: _CALLS,
    r.HandedOff: ("handoff",),
    r.HistoryReplaced: ("between", "model"),
    r.InputAdded: _STARTED,
    r.InputShown: ("between", "model"),
    r.InputWithdrawn: _STARTED,
    r.SandboxOpened: _UNDER_WAY,
    r.SessionSaved: _UNDER_WAY,
    r.CallbackReturned: _UNDER_WAY,
    r.CancelRequested: _STARTED,  # also of a call that waits within a nested run that has paused
    r.DeadlinePassed: _UNDER_WAY,
    r.CleanupCut: _UNDER_WAY,
    r.GraphChanged: _STARTED,
    r.RunEnded: _UNDER_WAY,
}
"""The phases of a run in which a record of each kind may be appended."""

OF_CALLS: dict[type, tuple[CallPhase, ...]] = {
    r.ApprovalRequested: ("new", "asked"),
    r.VerdictGiven: ("new", "asked"),
    r.AnswerRequested: ("started",),
    r.CallAnswered: ("started",),
    r.CallStarted: ("new", "asked", "started"),
    r.BodyEnded: ("started", "returned"),
    r.CallSettled: ("new", "asked", "started", "returned"),
}
"""The phases of a call in which a record of each kind may be appended to its run's log."""

_MAX_DEPTH = 500
"""The maximum nesting of runs in a log; the interpreter's stack is too small to read much deeper ones."""


def check_next(root: RunFold, record: r.Record) -> None:
    """Check that *record* may be appended to the log of *root*.

    Raises:
        ValueError: it may not; names the phase of the run or the call, and what the record lacks.
    """
    kind, fold = type(record), root
    if record.path != root.path:  # of few
        nested = _find_nested(root, record)
        if nested is None:
            return
        fold = nested
    phase: RunPhase
    if fold.ended is not None:
        phase = "ended"
    elif fold.batch_open:
        phase = "calls"
    elif fold.handoffs_due:
        phase = "handoff"
    elif fold.turn_open:
        phase = "model"
    else:
        phase = "unstarted" if fold.started is None else "between"
    if phase not in OF_RUNS.get(kind, ()):
        raise ValueError(_WRONG_RUN_PHASE[phase])
    if (check := _CHECKS.get(kind)) is not None:
        check(fold, record)


def _find_nested(root: RunFold, record: r.Record) -> RunFold | None:
    """Return the nested run of *record*; None if the record starts it."""
    path = record.path
    if len(path) > _MAX_DEPTH:
        raise ValueError(f"agent tools nest deeper than {_MAX_DEPTH}")
    found = root.at(path)
    if found is None:
        outer = root.at(path[:-1])
        if not isinstance(record, r.RunStarted) or outer is None or outer.started is None:
            raise ValueError("its run has not started")
    return found


def _check_turn(fold: RunFold, record: r.TurnStarted) -> None:
    if record.turn != fold.turn + (not fold.turn_open):
        raise ValueError(f"turn {record.turn} follows turn {fold.turn}")


def _check_batch(fold: RunFold, _record: r.BatchEnded) -> None:
    if not all(call.released for call in fold.batch):
        raise ValueError("not all calls of the batch have been released")


def _check_replaced(fold: RunFold, record: r.HistoryReplaced) -> None:
    if fold.turn_open and record.reason != "compaction":
        raise ValueError("the turn waits for the model's answer")


def _check_handoff(fold: RunFold, record: r.HandedOff) -> None:
    if all(call.call_id != record.call_id for call in fold.handoffs_due):
        raise ValueError(f"no handoff {record.call_id!r} is due")


_WRONG_RUN_PHASE: dict[RunPhase, str] = {
    "unstarted": "its run has not started",
    "between": "no turn waits for it",
    "model": "the turn waits for the model's answer",
    "calls": "calls of the turn are due",
    "handoff": "a handoff is due",
    "ended": "the run has ended",
}


def _check_call(fold: RunFold, record: _CallRecord) -> CallState:
    """Check the phase of the call of *record*; return the call.

    Raises:
        ValueError: the model has not requested the call, or it is in another phase.
    """
    call = fold.calls.get(record.call_id)
    if call is None:
        raise ValueError(f"the model has requested no call {record.call_id!r}")
    phase: CallPhase
    if call.outcome is not None:
        phase = "released" if call.released else "settled"
    elif call.body is not None:
        phase = "returned"
    elif call.attempt:
        phase = "started"
    else:
        phase = "new" if call.approval is None else "asked"
    if phase not in OF_CALLS[type(record)]:
        raise ValueError(f"call {record.call_id!r} is {phase}")
    return call


def _check_start(fold: RunFold, record: r.CallStarted) -> None:
    call = _check_call(fold, record)
    if record.attempt != call.attempt + 1:
        raise ValueError(f"attempt {record.attempt} of call {record.call_id!r} follows attempt {call.attempt}")


def _check_question(fold: RunFold, record: r.AnswerRequested) -> None:
    if _check_call(fold, record).question is not None:
        raise ValueError(f"call {record.call_id!r} waits for an answer already")


def _check_answer(fold: RunFold, record: r.CallAnswered) -> None:
    call = _check_call(fold, record)
    if call.question is None or call.answer is not None:
        raise ValueError(f"call {record.call_id!r} waits for no answer")


def _check_body_end(fold: RunFold, record: r.BodyEnded) -> None:
    call = _check_call(fold, record)
    if record.attempt != call.attempt:
        raise ValueError(f"attempt {record.attempt} of call {record.call_id!r} ends, not {call.attempt}")


def _check_outcome(fold: RunFold, record: r.CallSettled) -> None:
    call = _check_call(fold, record)
    if record.body_ended_at is not None and not call.attempt:
        raise ValueError(f"the body of call {record.call_id!r} has not begun")


def _check_sandbox(fold: RunFold, _record: r.SandboxOpened) -> None:
    if fold.path or fold.sandbox is not None:
        raise ValueError("a run has one sandbox, which its nested runs share")


def _check_added(fold: RunFold, record: r.InputAdded) -> None:
    if not record.id and (fold.batch_open or fold.handoffs_due):  # of an earlier version, whose fold showed it at once
        raise ValueError("the turn's calls have no outputs yet")
    if record.id in fold.inputs:
        raise ValueError(f"input {record.id!r} was added before")
    if record.call_id is not None and record.call_id not in fold.background:
        raise ValueError(f"no body of call {record.call_id!r} runs in the background")


def _check_waiting(fold: RunFold, record: r.InputShown | r.InputWithdrawn) -> None:
    if record.id not in fold.inbox:
        known = fold.inputs.get(record.id)
        raise ValueError(f"input {record.id!r} doesn't wait: it is {'unknown' if known is None else known.status}")


def _check_shown(fold: RunFold, record: r.InputShown) -> None:
    _check_waiting(fold, record)
    if fold.turn_open and fold.pauses:
        raise ValueError("the provider has paused its answer, and nothing may separate the parts of it")


_CHECKS: dict[type, Callable[[RunFold, Any], object]] = {
    r.TurnStarted: _check_turn,
    r.SandboxOpened: _check_sandbox,
    r.ApprovalRequested: _check_call,
    r.VerdictGiven: _check_call,
    r.AnswerRequested: _check_question,
    r.CallAnswered: _check_answer,
    r.CallStarted: _check_start,
    r.BodyEnded: _check_body_end,
    r.CallSettled: _check_outcome,
    r.BatchEnded: _check_batch,
    r.HandedOff: _check_handoff,
    r.HistoryReplaced: _check_replaced,
    r.InputAdded: _check_added,
    r.InputShown: _check_shown,
    r.InputWithdrawn: _check_waiting,
}
"""By kind: what a record must fit besides the phase of its run."""
