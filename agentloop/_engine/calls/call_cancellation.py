"""The cancellation of a call: the decision who cancelled it, where several causes meet once its body has ended.

A call is cancelled by `LiveCall.cancel` (`cancel_call`, a sibling's failure), by its timeout, which is
its scope's deadline, or by a scope around it (`runtime/cancel_source.py`). The graver cause ends the call:
`_core/cancellation.py` has the order, and what becomes of the call by each. But a body that returned a value in time
keeps it, also if a cancellation was requested in the same step.
"""

from __future__ import annotations

import math

from agentloop._concurrency.backend import raised_while_cancelled
from agentloop._engine.calls.live_call import LiveCall
from agentloop._engine.runtime import body_result as end

_COMPLETE = (end.Returned, end.Raised, end.Cancelled)


def decide_end(live: LiveCall, result: end.Ending | None, *, late: bool) -> end.Ending:
    """Return the final body result: *result*, unless the call's own scope, its timeout or the run's end overrules it.

    *late* says whether the timeout had passed when the body ended. A late value or error is reported to instruments.
    (A value that nothing could overrule doesn't come here: `call._end_body` sees that first.)
    """
    ours = live.scope.cancel_called or late  # read before the question below, which may cancel the scope
    ending = (ours or not isinstance(result, end.Returned)) and live.batch.nursery.is_ending()
    body = live.body if live.phase == "body" else None
    if body is not None and body.timer is not None:
        live.scope.deadline = math.inf
    error: BaseException | None = None
    if (ours or ending) and isinstance(result, end.Raised) and _is_cleanup_error(result):
        error, result = result.error, None
        live.report_late(error=error)
    if body is not None:
        body.finished = isinstance(result, _COMPLETE)
    if result is None and ending:
        return end.RunEnding(error)
    if result is None or (ours and isinstance(result, end.Cancelled)):
        return classify_cancel(live, error)
    if late and isinstance(result, end.Returned):
        live.report_late(value=result.value)
        return classify_cancel(live)
    return result


def _is_cleanup_error(result: end.Raised) -> bool:
    """Tell whether *result* is an ordinary error raised while a cancellation was passing through the body."""
    return isinstance(result.error, Exception) and raised_while_cancelled(result.error)


def classify_cancel(live: LiveCall, error: BaseException | None = None) -> end.Ending:
    """Return the body result of a call whose own scope was cancelled, by its cause, or by a timeout without one.

    *error* is that of the body's cleanup, if it had one.
    """
    if live.cause == "sibling":
        return end.Cancelled("sibling", "another call failed", error)
    if live.cause == "caller":
        return end.Cancelled("caller", live.reason or "cancelled by the application")
    body = live.body
    idle, timer = live.tool.idle_timeout, None if body is None else body.timer
    if body is not None and body.started_at is not None and timer is not None:
        live.note_cancelled(body.started_at + timer.ends_at - live.clock)
    if idle is not None and timer is not None and timer.ends_at >= timer.idle_since + idle:
        return end.TimedOut(idle)
    return end.TimedOut(live.tool.timeout or 0.0)
