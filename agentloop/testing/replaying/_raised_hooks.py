"""The end hooks of calls that raised, as far as a log shows them. Pure: knows records only.

No record says that a hook raised. After one of a run only the last steps of its run follow (`ReplayEffects.run_hook`).
After one of a call comes the settlement of this call, which has the outcome of the body; the batch is stopped, as it is
by any failure, and the run ends by the error that outranks the others. So a hook raised if a batch was stopped and no
settlement says why, or if the run ended by an error that no settlement has. In a log that was cut before that, a run
that saves to its session behind a batch that wasn't accepted is about to end by an error, too.

A call that was cancelled by a sibling names the one whose failure did it. Where none was, the log doesn't say which
hook raised, and it makes no difference: we choose the last call that may have stopped the batch, since a replay then
does the least between the two; and for an error that came later the first call in model order, which outranks others.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from agentloop import records as r
from agentloop._common.error_text import REDACTED, summary_parts, tool_failure

Path = tuple[str, ...]
Call = tuple[Path, str]
Has: TypeAlias = Callable[[Call, type[r.Record]], bool]

_WRAPPED = "ToolCallError(Error running tool "
_COMPARED = 900
"""Characters of two summaries that are compared: a longer one is cut, and then its wrapped form a little earlier."""


def find_raising(segment: Iterable[r.Record], has: Has, order: Iterable[Call]) -> dict[Call, str]:
    """Return the calls whose end hooks raised in the *segment* with these records, with what they raised.

    The text is the run's own error, or empty if the log doesn't have it. *has* tells whether the log has, up to the
    segment's end, a record of a kind of a call. *order* has all calls in model order.
    """
    batches: defaultdict[tuple[Path, int], list[r.CallSettled]] = defaultdict(list)
    errors: dict[Path, str | None] = {}
    for record in segment:
        match record:
            case r.CallSettled():
                batches[record.path, record.turn].append(record)
            case r.BatchEnded():
                batches.pop((record.path, record.turn), None)
            case r.SessionSaved() if _ended_well(batches.get((record.path, record.turn), ())):
                if not any(call[0] == record.path and _is_open(call, has) for call in order):  # it doesn't pause
                    errors[record.path] = ""
            case r.RunEnded():
                errors[record.path] = _raised_by(record)
            case _:
                pass
    found: dict[Call, str] = {}
    for (path, _), settled in batches.items():
        # Without end hooks a call that succeeds settles in the step in which its body ends, and has no `BodyEnded`.
        shown_by = [r.BodyEnded if one.outcome.status == "succeeded" else r.CallStarted for one in settled]
        hooked = [has((path, one.call_id), kind) for one, kind in zip(settled, shown_by, strict=True)]
        chosen = _choose(settled, hooked, errors.get(path), order)
        found |= {(path, settled[index].call_id): text for index, text in chosen.items()}
    return found


def _choose(
    settled: Sequence[r.CallSettled], hooked: Sequence[bool], error: str | None, order: Iterable[Call]
) -> dict[int, str]:
    """Return, by index in *settled*, what the end hooks raised in a batch whose outputs weren't accepted.

    *error* is the one that its run ended by, if it raised one; *hooked* says which of the calls may have end hooks.
    """
    known = next((index for index, one in enumerate(settled) if is_raised(one)), None)
    left = error if error is not None and not any(_tells(one, error) for one in settled) else None
    cut = next((index for index, one in enumerate(settled) if one.outcome.cancelled_by == "sibling"), len(settled))
    by = settled[cut].outcome.cancelled_by_call if cut < len(settled) else None
    first = next((index for index, one in enumerate(settled) if one.call_id == by), None)
    if first is None and (known is None or known > cut) and (left is not None or cut < len(settled)):
        first = _choose_first(settled[:cut], hooked, left, _find_stop(settled))
    found: dict[int, str] = {}
    if first is not None and not is_raised(settled[first]):
        found[first] = left if left is not None and _fits(settled[first], left) else ""
    known = min((index for index in (known, first) if index is not None), default=0)
    if left is not None and left not in found.values():
        those = [index for index in range(known, len(settled)) if hooked[index] and _fits(settled[index], left)]
        later = {(settled[index].path, settled[index].call_id): index for index in those}
        first = next((later[call] for call in order if call in later), None)
        found |= {} if first is None else {first: left}
    return found


def _find_stop(settled: Sequence[r.CallSettled]) -> float:
    """Return the time at which a failure stopped a batch; infinity if it reached no other call."""
    return min((at for at in map(stop_time, settled) if at is not None), default=math.inf)


def _choose_first(
    settled: Sequence[r.CallSettled], hooked: Sequence[bool], error: str | None, stopped_at: float
) -> int | None:
    """Return the index of the call whose end hook stopped its batch: one of those that had *settled* before."""
    those = [index for index in range(len(settled)) if hooked[index]]
    in_time = [index for index in those if settled[index].at <= stopped_at] or those
    fitting = [index for index in in_time if error is not None and _fits(settled[index], error)] or in_time
    return fitting[-1] if fitting else None


def _raised_by(end: r.RunEnded) -> str | None:
    """Return the error of a run that failed by itself: one that can continue was stopped from outside or by a limit."""
    return end.error if end.status == "failed" and not end.resumable else None


def _is_open(call: Call, has: Has) -> bool:
    """Tell whether a call has begun, or waits for a verdict or an answer, and hasn't settled."""
    begun = (r.CallStarted, r.ApprovalRequested, r.AnswerRequested)
    return not has(call, r.CallSettled) and any(has(call, kind) for kind in begun)


def _ended_well(settled: Sequence[r.CallSettled]) -> bool:
    """Tell whether a batch has calls, and none of them says why it wasn't accepted."""
    return bool(settled) and not any(is_raised(one) or one.outcome.cancelled_by is not None for one in settled)


def _fits(settled: r.CallSettled, error: str) -> bool:
    """Tell whether a hook of this call may have raised *error*: most errors name the tool."""
    return not error.startswith(_WRAPPED) or error.startswith(f"{_WRAPPED}{settled.tool}: ")


def _tells(settled: r.CallSettled, error: str) -> bool:
    """Tell whether the settlement of a call says why its run ended by *error*."""
    if settled.outcome.output is not None or settled.error is None:
        return False
    wrapped = f"ToolCallError({tool_failure(settled.tool, *summary_parts(settled.error))})"
    return reduce_error(error)[:_COMPARED] in [reduce_error(one)[:_COMPARED] for one in (settled.error, wrapped)]


def is_raised(record: r.Record) -> bool:
    """Tell whether the run raises what *record*, the settlement of a call, says."""
    outcome = record.outcome  # type: ignore[union-attr]  # as its kind says
    cancelled = outcome.status == "cancelled" and outcome.cancelled_by in ("tool", "caller")
    return outcome.output is None and (cancelled or outcome.status in ("failed", "timed_out"))


def stop_time(record: r.Record) -> float | None:
    """Return the time at which another call's failure cancelled the call that *record* settles, if one did."""
    outcome = record.outcome  # type: ignore[union-attr]  # as its kind says
    by_other = outcome.cancelled_by in (None, "sibling") and outcome.status != "timed_out"
    return outcome.cancelled_at if by_other else None


def reduce_error(error: str) -> str:
    """Return the part of an error's text that a replay can repeat."""
    # Redacted text is redacted a second time. The redacted leaves of a group come back as one error. Of a group that is
    # a cause only the leaves are known.
    return _OF_GROUP.sub(r"\1", _REDACTED.sub("", _REDACTED_LEAVES.sub("()", error)))


def same_error(wanted: str, got: str) -> bool:
    """Tell whether an error with the summary *wanted* has the summary *got* in a replay.

    An error with a part that was redacted is wholly redacted there, where a call with a secret raises it again.
    """
    hidden = REDACTED in wanted and got == f"{summary_parts(wanted)[0]}({REDACTED})"
    return hidden or reduce_error(wanted) == reduce_error(got)


_REDACTED = re.compile(r"\[redacted\]+")
_REDACTED_LEAVES = re.compile(r"\(\w+\(\[redacted\]\).*", re.DOTALL)
_OF_GROUP = re.compile(r"(ToolCallError\(Error running tool \S+: \w*Group: ).*", re.DOTALL)
