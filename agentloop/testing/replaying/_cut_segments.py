"""The end of a run segment that a crash cut off while its run was being ended.

A replay looks ahead in the log for how a run ends, and holds back what the run didn't do any more. If the process died
between a cancellation and the end of the run, the log has no such end. So it is imagined: the calls that were under way
are cancelled, and the runs around them end. What is imagined is never compared. Pure: knows records only.

Decisions:

A log tells by itself where a process died. A segment without an end was cut off, and the next one begins behind the
cut. So `check` needs no word about it, and judges each segment by itself: a turn that was cut before its answer
begins again under its number, and a call that was cancelled from above comes later than those behind it, since their
outputs were released in the segment before. A replay looks ahead for how a run ends, to know what the run didn't do
any more. In a segment that was cut while its run was being cancelled there is no such end, so the replay imagines it
(`testing/replaying/_cut_segments.py`); what is imagined is never compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agentloop import records as r
from agentloop.items import ToolCall
from agentloop.outcomes import FROM_ABOVE, CallOutcome

Path = tuple[str, ...]


def imagine_end(known: Sequence[r.Record], start: int, *, has_session: bool) -> list[r.Record]:
    """Return the records with which the log would have continued; none if no end of its run had been noticed.

    *known* is the log up to the end of the segment that begins at *start*.

    With *has_session*, a first record without items tells that the run was ended while it loaded its session.
    """
    segment = known[start:]
    last = segment[-1]
    for record in segment:
        if isinstance(record, r.DeadlinePassed) or (isinstance(record, r.CancelRequested) and record.call_id is None):
            return list(_end_runs(known, start, record))
    first = segment[0]
    if has_session and first is last and isinstance(first, r.RunStarted) and first.shown is None:
        noticed = r.CancelRequested((), 0, last.at)
        return [noticed, *_end_runs(known, start, noticed)]
    return []


def _end_runs(
    known: Sequence[r.Record], start: int, noticed: r.CancelRequested | r.DeadlinePassed
) -> Iterator[r.Record]:
    """Yield the ends of the runs from the path of *noticed* on inwards, the innermost first."""
    running: dict[Path, None] = {}
    held: set[Path] = set()  # nested runs that wait for a verdict
    for record in known[start:]:
        if isinstance(record, r.RunStarted | r.RunResumed):
            running[record.path] = None
            held.discard(record.path)
        elif isinstance(record, r.RunEnded):
            running.pop(record.path, None)
            if record.status == "interrupted":
                held.add(record.path)
    inner = (path for path in running if path[: len(noticed.path)] == noticed.path)
    for path in sorted(inner, key=len, reverse=True):
        own: list[Any] = [record for record in known if record.path == path]
        turn, at = own[-1].turn, known[-1].at
        if not isinstance(own[-1], r.SessionSaved):  # else its calls, if it had any, were settled before
            waiting = {one[-1] for one in held if one[:-1] == path}
            yield from _cancel_calls(own, waiting, noticed.at, at)
        if isinstance(noticed, r.DeadlinePassed) and path == noticed.path:
            yield r.RunEnded(path, turn, at, "failed", error="RunTimeoutError()")
        else:
            yield r.RunEnded(path, turn, at, "cancelled", resumable=True)


def _cancel_calls(own: Sequence[Any], waiting: set[str], cancelled_at: float, at: float) -> Iterator[r.Record]:
    """Yield a settlement for each call of the last response in *own*, the records of one run, that was to be cancelled.

    A call whose body has ended isn't, nor is one that waits for its verdict, or whose nested run does: the *waiting*.
    """
    calls: list[ToolCall] = []
    held: set[str] = set()  # they wait for a verdict, or are over
    cut: set[str] = set()
    for record in own:
        match record:
            case r.ModelResponded():
                calls = [item for item in record.response.items if isinstance(item, ToolCall)]
            case (
                r.ApprovalRequested(call_id=call_id) | r.AnswerRequested(call_id=call_id) | r.BodyEnded(call_id=call_id)
            ):
                held.add(call_id)
            case r.CallSettled(call_id=call_id, outcome=outcome):
                held.add(call_id)
                if outcome.cancelled_by in FROM_ABOVE:
                    cut.add(call_id)
            case r.VerdictGiven(call_id=call_id) | r.CallAnswered(call_id=call_id):
                held.discard(call_id)
            case r.RunResumed():  # they continue
                held -= cut
                cut = set()
            case r.BatchEnded():
                calls = []
            case _:
                pass
    started = {record.call_id: record.at for record in own if isinstance(record, r.CallStarted)}
    for call in [call for call in calls if call.call_id not in held | waiting]:
        outcome = CallOutcome(
            status="cancelled", cancelled_by="parent", started_at=started.get(call.call_id), cancelled_at=cancelled_at
        )
        yield r.CallSettled(own[-1].path, own[-1].turn, at, call.call_id, call.name, outcome)
