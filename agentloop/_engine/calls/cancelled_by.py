"""The decision who cancelled a call, where several causes meet: the rules behind `CallOutcome.cancelled_by`.

    cause                        before the body      in the body          after the body
    the body itself              -                    "tool"               - (taken back: the body left it behind)
    `cancel_call`                "caller"             "caller"             refused: the body has had its effect
    a sibling's failure          "sibling"            "sibling"            "sibling", if its settling is cut
    the tool's own timeout       -                    status "timed_out"   -
    the run's deadline           "deadline"           "deadline"           "deadline", if its settling is cut
    any other end of the run     "parent"             "parent"             "parent", if its settling is cut

Precedence: the end of the run, then a sibling's failure, then `cancel_call`, then the timeout, then the body. But a
body that returned a value in time keeps it, also if a cancellation was requested in the same step.

Where each is noticed: a body's own cancellation in `runtime/body_result.py` (`classify`); `cancel_call` and siblings
in `scheduler.py` (`LiveCall.cancel` keeps the graver cause, `Batch.stop` settles calls that never started); the
deadline or another end of the run in `runtime/cancel_source.py`. This module chooses among them once the body has
ended.
"""

from __future__ import annotations

import math

from agentloop._engine.calls.scheduler import LiveCall
from agentloop._engine.runtime import body_result as end

_COMPLETE = (end.Returned, end.Raised, end.Cancelled)


def decide_end(live: LiveCall, result: end.Ending | None, *, late: bool) -> end.Ending:
    """Return the final body result: *result*, unless the call's own scope, its timeout or the run's end overrules it.

    *late* says whether the timeout had passed when the body ended. A late value or error is reported to instruments.
    """
    ours = live.scope.cancel_called or late  # read before the question below, which may cancel the scope
    ending = (ours or not isinstance(result, end.Returned)) and live.batch.nursery.is_ending()
    if live.timeout_at < math.inf:
        live.scope.deadline = math.inf
    if isinstance(result, end.Raised) and (ours or ending) and _is_cleanup_error(result):
        live.error = result.error
        live.report_late(error=result.error)
        result = None
    live.body_finished = live.phase == "body" and isinstance(result, _COMPLETE)
    if result is None and ending:
        return end.RunEnding()
    if result is None or (isinstance(result, end.Cancelled) and ours):
        return cancelled_result(live)
    if isinstance(result, end.Returned) and late:
        live.report_late(value=result.value)
        return cancelled_result(live)
    return result


def _is_cleanup_error(result: end.Raised) -> bool:
    """Tell whether *result* is an ordinary error raised while a cancellation was passing through the body."""
    return isinstance(result.error, Exception) and end.raised_while_cancelled(result.error)


def cancelled_result(live: LiveCall) -> end.Ending:
    """Return the body result of a call whose own scope was cancelled, by its cause, or by a timeout without one."""
    if live.cause == "sibling":
        return end.Cancelled("sibling", "another call failed")
    if live.cause == "caller":
        return end.Cancelled("caller", live.reason or "cancelled by the application")
    tool = live.tool
    idle = tool.idle_timeout is not None and live.timeout_at >= live.idle_since + tool.idle_timeout
    return end.TimedOut(tool.idle_timeout if idle and tool.idle_timeout is not None else tool.timeout or 0.0)
