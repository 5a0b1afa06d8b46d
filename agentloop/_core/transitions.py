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

from typing import Literal, TypeAlias

from agentloop import records as r
from agentloop._core.run_fold import CallState, RunFold

RunPhase: TypeAlias = Literal["unstarted", "between", "model", "calls", "handoff", "ended"]
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
    r.CallStarted: _CALLS,
    r.BodyEnded: _CALLS,
    r.CallSettled: _CALLS,
    r.BatchEnded: _CALLS,
    r.HandedOff: ("handoff",),
    r.HistoryReplaced: ("between",),
    r.InputAdded: ("between", "model", "ended"),
    r.SessionSaved: _UNDER_WAY,
    r.CallbackReturned: _UNDER_WAY,
    r.CleanupCut: _UNDER_WAY,
    r.GraphChanged: _STARTED,
    r.RunEnded: _UNDER_WAY,
}
"""The phases of a run in which a record of each kind may be appended."""

OF_CALLS: dict[type, tuple[CallPhase, ...]] = {
    r.ApprovalRequested: ("new", "asked"),
    r.VerdictGiven: ("new", "asked"),
    r.CallStarted: ("new", "asked", "started"),
    r.BodyEnded: ("started", "returned"),
    r.CallSettled: ("new", "asked", "started", "returned"),
}
"""The phases of a call in which a record of each kind may be appended to its run's log."""

_MAX_DEPTH = 500
"""The maximum nesting of runs in a log; the interpreter's stack is too small to read much deeper ones."""


def run_phase(fold: RunFold) -> RunPhase:
    """Return the phase of the run of *fold*."""
    if fold.started is None:
        return "unstarted"
    if fold.ended is not None:
        return "ended"
    if fold.batch_open:
        return "calls"
    if fold.handoffs_due:
        return "handoff"
    return "model" if fold.turn_open else "between"


def call_phase(call: CallState) -> CallPhase:
    """Return the phase of *call*."""
    if call.outcome is not None:
        return "released" if call.released else "settled"
    if call.body is not None:
        return "returned"
    if call.attempt:
        return "started"
    return "new" if call.approval is None else "asked"


def check_next(root: RunFold, record: r.Record) -> None:
    """Check that *record* may be appended to the log of *root*.

    Raises:
        ValueError: it may not; names the phase of the run or the call, and what the record lacks.
    """
    if len(record.path) > _MAX_DEPTH:
        raise ValueError(f"agent tools nest deeper than {_MAX_DEPTH}")
    fold = root.at(record.path)
    if fold is None:
        outer = root.at(record.path[:-1])
        if not isinstance(record, r.RunStarted) or outer is None or outer.started is None:
            raise ValueError("its run has not started")
        return
    kind, phase = type(record), run_phase(fold)
    if phase not in OF_RUNS[kind]:
        raise ValueError(_WRONG_RUN_PHASE[phase])
    if kind in OF_CALLS:
        _check_call(fold, record)
    elif isinstance(record, r.TurnStarted):
        if record.turn != fold.turn + (not fold.turn_open):
            raise ValueError(f"turn {record.turn} follows turn {fold.turn}")
    elif isinstance(record, r.BatchEnded):
        if not all(call.released for call in fold.batch):
            raise ValueError("not all calls of the batch have been released")
    elif isinstance(record, r.HandedOff) and all(call.call_id != record.call_id for call in fold.handoffs_due):
        raise ValueError(f"no handoff {record.call_id!r} is due")


_WRONG_RUN_PHASE: dict[RunPhase, str] = {
    "unstarted": "its run has not started",
    "between": "no turn waits for it",
    "model": "the turn waits for the model's answer",
    "calls": "calls of the turn are due",
    "handoff": "a handoff is due",
    "ended": "the run has ended",
}


def _check_call(fold: RunFold, record: r.Record) -> None:
    """Check a record of a call against the call's phase, and the number of its attempt.

    Raises:
        ValueError: it doesn't fit.
    """
    call_id: str = record.call_id  # type: ignore[union-attr,assignment]  # all kinds of `OF_CALLS` name their call
    call = fold.calls.get(call_id)
    if call is None:
        raise ValueError(f"the model has requested no call {call_id!r}")
    phase = call_phase(call)
    if phase not in OF_CALLS[type(record)]:
        raise ValueError(f"call {call_id!r} is {phase}")
    if isinstance(record, r.CallSettled) and record.body_ended_at is not None and not call.attempt:
        raise ValueError(f"the body of call {call_id!r} has not begun")
    if isinstance(record, r.BodyEnded) and record.attempt != call.attempt:
        raise ValueError(f"attempt {record.attempt} of call {call_id!r} ends, not {call.attempt}")
    if isinstance(record, r.CallStarted) and record.attempt != call.attempt + 1:
        raise ValueError(f"attempt {record.attempt} of call {call_id!r} follows attempt {call.attempt}")
