"""A recorded run, indexed by what a replay asks of it, and the comparison of its records with those of a replay."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import attrs

from agentloop import records as r
from agentloop._storage.record_codec import record_to_json
from agentloop._storage.withholding import missing_secrets
from agentloop.items import ToolCall
from agentloop.outcomes import FROM_ABOVE

Path: TypeAlias = tuple[str, ...]
Call: TypeAlias = tuple[Path, str]

OF_CALL = (r.CallStarted, r.BodyEnded, r.CallSettled, r.GuardrailSettled, r.CleanupCut)
"""Records that a call's own task appends, where they name a call."""
FROM_OUTSIDE = (r.VerdictGiven, r.InputAdded, r.GraphChanged)
"""Records that somebody else appends to a run, at a moment of his own."""


def call_of(record: r.Record) -> Call | None:
    """Return the call whose own task appended *record*, or None."""
    if isinstance(record, OF_CALL) and record.call_id is not None:
        return record.path, record.call_id
    if isinstance(record, r.CallbackReturned) and record.what == "is_enabled" and ":" not in record.key:
        return record.path, record.key
    return None


@attrs.frozen
class RecordedSegment:
    """One entry of the run: its records from `start` (`RunStarted` or `RunResumed`) up to, without, `stop`.

    `ended`: whether the last of them is its `RunEnded`. Else it was cut off: by a crash, or where the log was read.
    """

    start: int
    stop: int
    ended: bool


@attrs.define(eq=False, slots=False)
class RecordedRun:
    """A log, and where in it what stands."""

    records: tuple[r.Record, ...]
    entries: tuple[RecordedSegment, ...] = ()
    paths: dict[Path, list[int]] = attrs.field(factory=dict)
    calls: dict[Call, list[int]] = attrs.field(factory=dict)

    @classmethod
    def of(cls, records: Iterable[r.Record]) -> RecordedRun:
        """Return *records*, indexed."""
        log = cls(tuple(records))
        paths: defaultdict[Path, list[int]] = defaultdict(list)
        calls: defaultdict[Call, list[int]] = defaultdict(list)
        for index, record in enumerate(log.records):
            if not isinstance(record, FROM_OUTSIDE):
                paths[record.path].append(index)
            if (call := call_of(record)) is not None:
                calls[call].append(index)
        log.paths, log.calls = dict(paths), dict(calls)
        log.entries = tuple(_entries(log.records))
        return log

    def first(
        self, indices: Sequence[int] | None, start: int, stop: int, test: Callable[[Any], bool] | None = None
    ) -> int | None:
        """Return the first of *indices* from *start* up to *stop* whose record passes *test*."""
        if indices is None:
            return None
        for place in range(bisect_left(indices, start), len(indices)):
            if indices[place] >= stop:
                return None
            if test is None or test(self.records[indices[place]]):
                return indices[place]
        return None

    @cached_property
    def hidden(self) -> frozenset[str]:
        """Names of tools that were called with secrets of which the log has only a trace."""
        return frozenset(call.name for record in self.records for call in _with_traces(record))

    @cached_property
    def hidden_from(self) -> float:
        """Where the first record stands that has only a trace of what models were shown from there on."""
        found = (
            index
            for index, record in enumerate(self.records)
            if _with_traces(record) or (isinstance(record, r.CallSettled) and record.outcome.secret)
        )
        return next(found, math.inf)

    @cached_property
    def has_session(self) -> bool:
        """Whether the run wrote to a session, or tried to."""
        return any(
            isinstance(self.records[index], r.SessionSaved)
            or getattr(self.records[index], "section", "") == "session save"
            for index in self.paths.get((), ())
        )

    def ended_from_outside(self, entry: RecordedSegment) -> dict[int, str]:
        """Return the first records of *entry* that show that its run's time was over, or that it was cancelled."""
        end = self.records[entry.stop - 1]
        error = end.error or "" if isinstance(end, r.RunEnded) else ""
        found: dict[int, str] = {}
        stop = entry.stop - 1 if entry.ended else entry.stop
        while entry.ended and isinstance(self.records[stop - 1], r.SessionSaved | r.CleanupCut):
            stop -= 1
        for by, is_end in (
            ("deadline", error.startswith("RunTimeout(")),
            ("parent", isinstance(end, r.RunEnded) and end.status == "cancelled"),
        ):
            index = next((index for index in range(entry.start, stop) if self._shows(index, entry, by, is_end)), None)
            first = self.records[entry.start]
            if is_end and isinstance(first, r.RunStarted) and first.shown is None and self.has_session:
                index = entry.start  # while it was being loaded
            if index is None and is_end:
                index = stop
            if index is not None:
                while index > entry.start and isinstance(self.records[index - 1], r.CleanupCut):
                    index -= 1  # nothing is cut before
                found.setdefault(index, by)
        return found

    def bodies_over(self, entry: RecordedSegment) -> dict[Call, int]:
        """Return, for bodies without a record of their end, the first record of *entry* that came after it.

        Their calls say when it was. Where the clock stood still around it that tells nothing, and they are left out.
        """
        found: dict[Call, int] = {}
        for call, places in self.calls.items():
            index = self.first(places, entry.start, entry.stop, lambda one: isinstance(one, r.CallSettled))
            started = self.first(places, entry.start, entry.stop, lambda one: isinstance(one, r.CallStarted))
            if index is None or started is None:
                continue
            over: float | None = self.records[index].body_ended_at  # type: ignore[union-attr]
            if over is None or self.first(places, started, index, lambda one: isinstance(one, r.BodyEnded)) is not None:
                continue
            place = self._after(over, started + 1, index)
            if place is not None:
                found[call] = place
        return found

    def batches_queued(self, entry: RecordedSegment) -> dict[tuple[Path, int], tuple[int, float]]:
        """Return the first records of *entry* after the calls of a turn were queued, and when."""
        found: dict[tuple[Path, int], tuple[int, float]] = {}
        for index in range(entry.start, entry.stop):
            record = self.records[index]
            if not isinstance(record, r.CallStarted) or record.queued_at is None or (record.path, record.turn) in found:
                continue
            # Of records of that very moment nobody knows which came after it; none that is later did before.
            place = bisect_right(self.records, record.queued_at, entry.start + 1, index, key=lambda one: one.at)
            if place < index:
                found[record.path, record.turn] = (place, record.queued_at)
        return found

    def _after(self, at: float, start: int, stop: int) -> int | None:
        """Return the first record from *start* to *stop* after the time *at*; None where another has that very time."""
        place = bisect_left(self.records, at, start, stop, key=lambda one: one.at)
        return place if self.records[place - 1].at < at < self.records[place].at else None

    def calls_ended_from_outside(self, entry: RecordedSegment) -> dict[int, list[Call]]:
        """Return, by the first records of *entry* that show it, calls ended by the caller or by their time limit.

        Of those that ran out of time only agent tools, and those whose bodies are known to have been cut off by then:
        others do so by themselves.
        """
        found: defaultdict[int, list[Call]] = defaultdict(list)
        over = self.bodies_over(entry)
        for (path, call_id), places in self.calls.items():
            nested = (*path, call_id)
            settled = self.first(places, entry.start, entry.stop, lambda one: isinstance(one, r.CallSettled))
            if settled is None:
                continue
            outcome = self.records[settled].outcome  # type: ignore[union-attr]
            known = nested in self.paths or ((path, call_id) in over and not outcome.body_finished)
            cut = outcome.cancelled_by is None and not outcome.body_finished and (path, call_id) in over
            if outcome.cancelled_by != "caller" and not cut and (outcome.status != "timed_out" or not known):
                continue
            if nested in self.paths:
                index = self.first(self.paths[nested], entry.start, settled, _is_cancelled)
            else:
                index = over.get((path, call_id), self._cut_at(places, entry))
            if index is not None:
                found[index].append((path, call_id))
        return dict(found)

    def _cut_at(self, places: Sequence[int], entry: RecordedSegment) -> int | None:
        """Return the first record after the start of the call at *places*; None if its body ended by itself."""
        started = self.first(places, entry.start, entry.stop, lambda one: isinstance(one, r.CallStarted))
        index = None if started is None else self.first(places, started + 1, entry.stop)
        return None if index is None or isinstance(self.records[index], r.BodyEnded | r.CleanupCut) else index

    def _shows(self, index: int, entry: RecordedSegment, by: str, is_end: bool) -> bool:
        """Tell whether record *index* comes of the root run's end *by* somebody; *is_end*: that is how it ended."""
        record = self.records[index]
        if isinstance(record, r.CallSettled):
            shown = record.outcome.cancelled_by == by
        elif isinstance(record, r.BodyEnded) and record.failed:
            around = self.calls.get((record.path, record.call_id))
            settled = self.first(around, index, entry.stop, lambda one: isinstance(one, r.CallSettled))
            outcome: Any = None if settled is None else self.records[settled].outcome  # type: ignore[union-attr]
            # An error of its cleanup.
            if settled is None or outcome.body_finished or outcome.status != "cancelled":
                return False
            return self._shows(settled, entry, by, is_end)
        elif isinstance(record, r.ModelFailed):
            shown = record.error == "cancelled" and (is_end or bool(record.path))
        elif isinstance(record, r.RunEnded):
            shown = record.status == "cancelled" and bool(record.path)
        else:
            return False
        if not shown or not record.path:
            return shown
        # For a nested run the end of the call around it comes from outside, too.
        around = self.calls.get((record.path[:-1], record.path[-1]))
        settled = self.first(around, index, entry.stop, lambda one: isinstance(one, r.CallSettled))
        if settled is None and not entry.ended:
            # The log was cut off before it says why. Whatever goes on beside it speaks against the end of it all.
            beside = (one for one in self.records[index : entry.stop] if one.path[: len(record.path)] != record.path)
            return all(isinstance(one, r.CleanupCut | r.ItemReleased) or _is_from_above(one) for one in beside)
        return settled is not None and self._shows(settled, entry, by, is_end)


def _is_from_above(record: r.Record) -> bool:
    return isinstance(record, r.CallSettled) and record.outcome.cancelled_by in FROM_ABOVE


def _is_cancelled(record: r.Record) -> bool:
    """Tell whether *record* is of what its run's cancellation ended."""
    match record:
        case r.CallSettled(outcome=outcome):
            return outcome.cancelled_by == "parent"
        case r.ModelFailed(error=error):
            return error == "cancelled"
        case r.RunEnded(status=status):
            return status == "cancelled"
        case _:
            return False


def _with_traces(record: r.Record) -> list[ToolCall]:
    """Return the calls of a response whose secrets weren't stored."""
    if not isinstance(record, r.ModelResponded):
        return []
    calls = (item for item in record.response.items if isinstance(item, ToolCall))
    return [call for call in calls if missing_secrets(call, call.arguments)]


def _entries(records: Sequence[r.Record]) -> Iterator[RecordedSegment]:
    starts = [
        index
        for index, record in enumerate(records)
        if not record.path and isinstance(record, r.RunStarted | r.RunResumed)
    ]
    for start, following in zip(starts, [*starts[1:], len(records)], strict=True):
        ends = (index for index in range(start, following) if _ends(records[index]))
        end = next(ends, None)
        if end is not None:
            yield RecordedSegment(start, end + 1, True)
            continue
        stop = following
        # What was decided before the next entry stands between the two.
        while following < len(records) and isinstance(records[stop - 1], r.VerdictGiven | r.InputAdded):
            stop -= 1
        yield RecordedSegment(start, stop, False)


def _ends(record: r.Record) -> bool:
    return not record.path and isinstance(record, r.RunEnded)


# ------------------------------------------------------------------------------------------------ comparing

_CHANCE = ("at", "duration", "queued_at", "body_ended_at")
_CHANCE_OF_OUTCOMES = ("started_at", "ended_at", "abandoned", "cleanup")
"""Times, and what only the body itself could have made."""
_REDACTED = re.compile(r"\[redacted\]+")
_REDACTED_LEAVES = re.compile(r"\(\w+\(\[redacted\]\).*", re.DOTALL)
_OF_GROUP = re.compile(r"(ToolCallError\(Error running tool \S+: \w*Group: ).*", re.DOTALL)


@attrs.frozen
class Difference:
    """A place in a record, and what stood and stands there (JSON values)."""

    place: str
    wanted: Any
    got: Any


@attrs.frozen
class Leniency:
    """What of a record isn't compared, since a replay can't know it."""

    digest: bool = False
    final_output: bool = False


STRICT = Leniency()


def compared(
    wanted: r.Record, got: r.Record, marked: r.Record, lenient: Leniency = STRICT
) -> tuple[r.Record, Difference | None]:
    """Return *got* with the recorded times, and how it differs from *wanted* otherwise; None where it doesn't.

    *marked* is *got* as the log will have it.
    """
    if type(wanted) is not type(got):
        return got, Difference("kind", _kind(wanted), _kind(got))
    changes = _taken_over(wanted, got, lenient)
    merged = attrs.evolve(got, **changes)
    old, new = record_to_json(wanted), record_to_json(attrs.evolve(marked, **_again(changes, marked)))
    return merged, difference(old, new)


def _again(changes: dict[str, Any], marked: Any) -> dict[str, Any]:
    outcome = changes.get("outcome")
    if outcome is None or not marked.outcome.secret:
        return changes
    return {**changes, "outcome": attrs.evolve(outcome, secret=True)}


def _kind(record: r.Record) -> str:
    kind: str = record_to_json(record)["kind"]
    return kind


def _taken_over(wanted: Any, got: Any, lenient: Leniency) -> dict[str, Any]:
    """Return the fields of *got* that take the recorded values."""
    changes = {name: getattr(wanted, name) for name in _CHANCE if hasattr(wanted, name)}
    match wanted:
        case r.CallSettled():
            changes["outcome"] = _outcome(wanted, got)
            changes |= _error(wanted, got)
        case r.BodyEnded() | r.RunEnded() | r.ModelFailed():
            changes |= _error(wanted, got)
            if isinstance(wanted, r.ModelFailed):
                changes["should_retry"] = wanted.should_retry
        case r.CallStarted() if _own_waits(wanted) == _own_waits(got):
            changes["waited_for"] = wanted.waited_for
        case r.TurnStarted():  # who is to judge shows where they do, and older logs don't say so
            changes["guardrails"] = wanted.guardrails
        case r.GuardrailSettled():  # follows from its place and name, which are compared
            changes["nth"] = wanted.nth
        case r.ModelRequested() if lenient.digest:
            changes["digest"] = wanted.digest
        case _:
            pass
    if isinstance(wanted, r.BodyEnded) and isinstance(got.value, Standin):
        changes["value"] = wanted.value
    if isinstance(wanted, r.RunEnded) and lenient.final_output and wanted.status == got.status:
        changes["final_output"] = wanted.final_output
    return changes


def _own_waits(started: r.CallStarted) -> list[str]:
    """Return which limits of its own run a call waited for: others' were held by whoever else there was."""
    own = (name for name in started.waited_for if name == "max_function_tool_concurrency" or name.startswith("serial:"))
    return sorted(own)


def _error(wanted: Any, got: Any) -> dict[str, Any]:
    if wanted.error is None or got.error is None:
        return {}
    return {"error": wanted.error} if _words(wanted.error) == _words(got.error) else {}


def _words(error: str) -> str:
    """Return what of an error's text can be made again."""
    # What was redacted is redacted a second time, be it the leaves of a group, which comes back as one error; and of a
    # group that is a cause only its leaves are known.
    return _OF_GROUP.sub(r"\1", _REDACTED.sub("", _REDACTED_LEAVES.sub("()", error)))


def _outcome(wanted: r.CallSettled, got: r.CallSettled) -> Any:
    then, now = wanted.outcome, got.outcome
    changes: dict[str, Any] = {name: getattr(then, name) for name in _CHANCE_OF_OUTCOMES}
    if then.status == now.status and same_output(then.output, now.output):
        changes["output"] = then.output
    return attrs.evolve(now, **changes)


def same_output(then: Any, now: Any) -> bool:
    """Tell whether two outputs may be of one value: a value comes back from a log as plain data, its keys sorted."""
    if now is None or then is None:
        return then is now
    if isinstance(now, Standin):
        return True
    if isinstance(then, str) and isinstance(now, str):
        try:
            return bool(json.loads(then) == json.loads(now))
        except ValueError:
            return then == now
    return bool(then == now)


class Standin(str):
    """Stands for a value that the log doesn't hold."""

    __slots__ = ()


_MISSING = "(nothing)"


def difference(old: Any, new: Any, place: str = "") -> Difference | None:
    """Return the first place where two JSON values differ, or None."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            where = f"{place}.{name}" if place else name
            found = difference(old.get(name, _MISSING), new.get(name, _MISSING), where)
            if found is not None:
                return found
        return None
    if isinstance(old, list) and isinstance(new, list) and old and new:
        for index in range(max(len(old), len(new))):
            a = old[index] if index < len(old) else _MISSING
            b = new[index] if index < len(new) else _MISSING
            if (found := difference(a, b, f"{place}[{index}]")) is not None:
                return found
        return None
    same = type(old) is type(new) and old == new
    return None if same else Difference(place, old, new)
