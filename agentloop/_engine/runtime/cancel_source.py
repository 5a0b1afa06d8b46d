"""The decision who ended a run that is being cancelled: its deadline, or any other end from outside ("parent").

Asked when a scope around the run's code is cancelled; which of its calls that concerns is decided in `calls/call.py`.
"""

from __future__ import annotations

from typing import Literal

import anyio

from agentloop._concurrency.backend import cancelled_outside, enclosing_cancelled, loop_is_left
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.records import CancelRequested, DeadlinePassed


def cancel_source(run: LiveRun) -> Literal["parent", "deadline"]:
    """Return the source of the cancellation of *run*. The first answer stays.

    The caller has precedence: a deadline that passes at the same time as the caller's cancellation has ended nothing.
    """
    record_end(run)
    if run.ended_by is None:
        scope = _find_cancelled_scope(run)
        by_deadline = scope is not None and not _is_cancelled_outside(scope)
        run.ended_by = "deadline" if by_deadline and run.tree.log.journal_error is None else "parent"
    return run.ended_by


def record_end(run: LiveRun) -> None:
    """Append `CancelRequested` or `DeadlinePassed` for the outermost run, if it was ended from outside and isn't over.

    Every part of a run that notices a cancellation calls this; only the first call appends.
    """
    while run.parent is not None:
        run = run.parent
    if run.end_recorded == "parent" or run.state.started is None or run.state.ended is not None:
        return
    enclosing_cancelled()  # a cancellation of the holder reaches the scopes of bare tasks where it is asked for
    log, scope, limit = run.tree.log, run.scope, run.limit_scope
    if loop_is_left() or (scope is not None and (scope.cancel_called or cancelled_outside(scope))):
        run.end_recorded = "parent"
        log.append(CancelRequested(*run.here()))
    elif run.end_recorded is None and limit is not None and limit.cancel_called and log.journal_error is None:
        run.end_recorded = "deadline"
        log.append(DeadlinePassed(*run.here()))


async def find_cancel_source(run: LiveRun) -> Literal["parent", "deadline"]:
    """Return `cancel_source(run)` after one more scheduler pass where only a deadline shows so far.

    Shielded: a caller's cancellation in the same pass is then known, and has precedence. Every call waits for this
    pass, not only the first that asks: on asyncio the owner of the calls asks before them, on trio a call does, and the
    order of outcomes must not depend on it.
    """
    scope = None if run.ended_by == "parent" else _find_cancelled_scope(run)
    if scope is not None and not _is_cancelled_outside(scope):
        await anyio.lowlevel.cancel_shielded_checkpoint()
    return cancel_source(run)


def _find_cancelled_scope(run: LiveRun) -> anyio.CancelScope | None:
    """Return the outermost cancelled scope among those of *run* and of the runs around it."""
    found: anyio.CancelScope | None = None
    inner: LiveRun | None = run
    while inner is not None:
        if inner.limit_scope is not None and inner.limit_scope.cancel_called:
            found = inner.limit_scope
        inner = inner.parent
    return found


def _is_cancelled_outside(scope: anyio.CancelScope) -> bool:
    """Tell whether a scope around *scope*, or natively the task that holds the run, is cancelled."""
    return cancelled_outside(scope) or loop_is_left()
