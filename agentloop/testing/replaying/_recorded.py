"""A recorded run with the indices that a replay needs, and the comparison of a recorded with a replayed record.

Pure: knows records and numbers of records, neither tasks nor the clock of a replay.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import attrs

from agentloop import records as r
from agentloop._core.secret_marks import has_gaps
from agentloop._storage.record_codec import record_to_json
from agentloop._storage.withholding import WithheldText, find_missing_secrets
from agentloop.items import ToolCall
from agentloop.outcomes import FROM_ABOVE
from agentloop.testing.replaying._cut_segments import imagine_end
from agentloop.testing.replaying._raised_hooks import find_raising, is_raised, reduce_error, same_error, stop_time

Path: TypeAlias = tuple[str, ...]
Call: TypeAlias = tuple[Path, str]

OF_CALL = (r.CallStarted, r.AnswerRequested, r.BodyEnded, r.CallSettled, r.GuardrailSettled, r.CleanupCut)
"""Kinds of records that a call's own task appends, if they name a call."""
INPUTS = (r.InputAdded, r.InputWithdrawn)
"""Kinds of records that a sender of input appends. The run acts on them at its next look into the inbox."""
GIVEN = (r.VerdictGiven, r.CallAnswered, *INPUTS)
"""Kinds of records of what the caller gives a run, also between two of its segments."""
FROM_OUTSIDE = (*GIVEN, r.GraphChanged, r.CancelRequested, r.DeadlinePassed)
"""Kinds of records that the caller appends, at a moment that doesn't depend on the run."""


def ends_from_outside(record: r.Record) -> bool:
    """Tell whether *record* is a cancellation of a run, or its deadline."""
    return isinstance(record, r.DeadlinePassed) or (isinstance(record, r.CancelRequested) and record.call_id is None)


def call_of(record: r.Record) -> Call | None:
    """Return the call whose own task appended *record*, or None."""
    if isinstance(record, OF_CALL) and record.call_id is not None:
        return record.path, record.call_id
    if isinstance(record, r.CallbackReturned) and record.what == "is_enabled" and ":" not in record.key:
        return record.path, record.key
    return None


@attrs.frozen
class RecordedSegment:
    """One run segment: its records from number `start` (`RunStarted` or `RunResumed`) up to `stop`, excluding it.

    `ended` is True if the last of them is its `RunEnded`. Otherwise a crash cut it off, or the log was read earlier.
    The last `imagined` ones aren't in the log (`_cut_segments`).
    """

    start: int
    stop: int
    ended: bool
    imagined: int = 0


def _rename_error(record: r.Record) -> r.Record:
    """Return *record* with the name that its error has today: an earlier version wrote `RunTimeout`."""
    error = record.error if isinstance(record, r.RunEnded) else None
    if error is None or not error.startswith("RunTimeout("):
        return record
    return record.replace(error=error.replace("RunTimeout", "RunTimeoutError", 1))


@attrs.define(eq=False, slots=False)
class RecordedRun:
    """A log and its indices: record numbers by run and by call, in order. Made by `of`, never changed."""

    records: tuple[r.Record, ...]
    entries: tuple[RecordedSegment, ...] = ()
    paths: dict[Path, list[int]] = attrs.field(factory=dict)
    calls: dict[Call, list[int]] = attrs.field(factory=dict)

    @classmethod
    def of(cls, records: Iterable[r.Record]) -> RecordedRun:
        """Return the recorded run with *records*, and build its indices."""
        log = cls(tuple(map(_rename_error, records)))
        paths: defaultdict[Path, list[int]] = defaultdict(list)
        calls: defaultdict[Call, list[int]] = defaultdict(list)
        for index, record in enumerate(log.records):
            if not isinstance(record, FROM_OUTSIDE):
                paths[record.path].append(index)
            if (call := call_of(record)) is not None:
                calls[call].append(index)
        log.paths, log.calls = dict(paths), dict(calls)
        log.entries = tuple(_split_segments(log.records))
        return log

    def imagine_end(self, entry: RecordedSegment) -> tuple[RecordedRun, RecordedSegment]:
        """Return the log up to the end of *entry*, and *entry*; with the imagined end of a run that was being ended."""
        known = self.records[: entry.stop]
        more = [] if entry.ended else imagine_end(known, entry.start, has_session=self.has_session)
        if not more:
            return self, entry
        return RecordedRun.of([*known, *more]), attrs.evolve(entry, stop=entry.stop + len(more), imagined=len(more))

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
        """Names of tools that were called with secret arguments of which the log has only digests."""
        return frozenset(call.name for record in self.records for call in _list_calls_without_secrets(record))

    @cached_property
    def entered(self) -> frozenset[str]:
        """Names of tools of which a call began a nested run."""
        calls = {record.path[-1] for record in self.records if isinstance(record, r.RunStarted) and record.path}
        items = (item for one in self.records if isinstance(one, r.ModelResponded) for item in one.response.items)
        return frozenset(item.name for item in items if isinstance(item, ToolCall) and item.call_id in calls)

    def shows(self, tool: str) -> bool:
        """Tell whether some turn showed a tool of this name."""
        return any(isinstance(record, r.TurnStarted) and tool in record.tools for record in self.records)

    @cached_property
    def hidden_from(self) -> float:
        """Number of the first record that hides a part of the history of models; infinity if there is none.

        Digests of later requests can't be compared.
        """
        found = (
            index
            for index, record in enumerate(self.records)
            if _list_calls_without_secrets(record)
            or _lacks_input(record)
            or (isinstance(record, r.CallSettled) and record.outcome.secret)
        )
        return next(found, math.inf)

    @cached_property
    def has_session(self) -> bool:
        """True if the run wrote to a session, or tried to."""
        return any(
            isinstance(self.records[index], r.SessionSaved)
            or getattr(self.records[index], "section", "") == "session save"
            for index in self.paths.get((), ())
        )

    @cached_property
    def tools(self) -> dict[Call, str]:
        """The names of the tools that the models called, by call."""
        return {
            (record.path, item.call_id): item.name
            for record in self.records
            if isinstance(record, r.ModelResponded)
            for item in record.response.items
            if isinstance(item, ToolCall)
        }

    def admissions(self, entry: RecordedSegment, *, asked_before: bool) -> dict[Call, tuple[int, float | None]]:
        """Return by call the number of the first record of *entry* that shows its admission, or the end of its wait.

        With it the time at which the call was queued, if the log has it. *asked_before* is that of `shows_admission`.
        """
        found: dict[Call, tuple[int, float | None]] = {}
        for call, places in self.calls.items():
            first = self.first(
                places,
                entry.start,
                entry.stop,
                lambda one: isinstance(one, r.CallSettled) or shows_admission(one, asked_before=asked_before),
            )
            if first is not None:
                started = self.first(places, first, entry.stop, lambda one: isinstance(one, r.CallStarted))
                found[call] = first, None if started is None else self.records[started].queued_at  # type: ignore[union-attr]
        return found

    def calls_admitted_late(self, entry: RecordedSegment) -> set[Call]:
        """Return the calls of *entry* that had been admitted as its run was being ended, and never began.

        They settled behind later calls of their batch, which still waited: those settle in one step, in model order.
        """
        order = {call: number for number, call in enumerate(self.tools)}
        latest: dict[tuple[Path, int], int] = {}
        found: set[Call] = set()
        for record in self.records[entry.start : entry.stop]:
            if not isinstance(record, r.CallSettled) or record.outcome.started_at is not None:
                continue
            if record.outcome.cancelled_by in FROM_ABOVE:
                number = order.get((record.path, record.call_id), -1)
                if number < latest.get((record.path, record.turn), -1):
                    found.add((record.path, record.call_id))
                latest[record.path, record.turn] = max(number, latest.get((record.path, record.turn), -1))
        return found

    def bodies_over(self, entry: RecordedSegment) -> dict[Call, int]:
        """Return, for each body whose end has no record, the number of the first record of *entry* after that end.

        The settlement of the call has the time of the end. If another record has the same time, their order is unknown,
        and the body is left out. But a body that its run's end didn't cut had ended before that end.
        """
        found: dict[Call, int] = {}
        for call, places in self.calls.items():
            index = self.first(places, entry.start, entry.stop, lambda one: isinstance(one, r.CallSettled))
            started = self.first(places, entry.start, entry.stop, lambda one: isinstance(one, r.CallStarted))
            if index is None or started is None:
                continue
            settled: Any = self.records[index]
            over: float | None = settled.body_ended_at
            if over is None or settled.outcome.status == "succeeded":
                continue  # a body that returned ended at its `BodyEnded`, or else as its call settled
            if self.first(places, started, index, lambda one: isinstance(one, r.BodyEnded)) is not None:
                continue
            place = self._find_first_after(over, started + 1, index)
            if settled.outcome.cancelled_by not in FROM_ABOVE or settled.outcome.body_finished:
                place = _earlier(place, self._find_end(call[0], started + 1, index))
            if place is not None:
                found[call] = place
        return found

    def batches_queued(self, entry: RecordedSegment) -> dict[tuple[Path, int], tuple[int, float]]:
        """Return by turn the number of the first record of *entry* after its calls were queued, and the time of it."""
        found: dict[tuple[Path, int], tuple[int, float]] = {}
        for index in range(entry.start, entry.stop):
            record = self.records[index]
            if not isinstance(record, r.CallStarted) or record.queued_at is None or (record.path, record.turn) in found:
                continue
            # The order of records at this same moment is unknown, so they count as earlier; all later ones came after.
            place = bisect_right(self.records, record.queued_at, entry.start + 1, index, key=lambda one: one.at)
            if place < index:
                found[record.path, record.turn] = (place, record.queued_at)
        return found

    def hooks_raising(self, entry: RecordedSegment) -> dict[Call, str]:
        """Return the calls of *entry* whose end hooks raised, with the text of the error: see `_raised_hooks`."""

        def has(call: Call, kind: type[r.Record]) -> bool:
            return self.first(self.calls.get(call, ()), 0, entry.stop, lambda one: isinstance(one, kind)) is not None

        return find_raising(self.records[entry.start : entry.stop], has, self.tools)

    def batches_stopped(self, entry: RecordedSegment, raising: Collection[Call]) -> dict[Path, tuple[int, int]]:
        """Return, for each run whose batch a call's failure stopped, the numbers of two records of *entry*.

        The first after the failure, and the first after the owner of the batch stopped it, when it next ran: other
        calls may have come further between the two. *raising* are the calls whose end hooks raised.

        A replay can't follow one case. If the end of the run from outside comes between the two, the owner is ready to
        run and has nothing to wait for, and then its next step is the one that stops the batch: no other task is ready,
        and no scheduler can run none. So calls that have records in between are cancelled too early.
        """
        batches: defaultdict[tuple[Path, int], list[int]] = defaultdict(list)
        for index in range(entry.start, entry.stop):
            if isinstance(self.records[index], r.CallSettled):
                batches[self.records[index].path, self.records[index].turn].append(index)
        found: dict[Path, tuple[int, int]] = {}
        for (path, _), settled in batches.items():
            failed = next(
                (
                    place
                    for place, index in enumerate(settled)
                    if is_raised(self.records[index]) or call_of(self.records[index]) in raising
                ),
                None,
            )
            if failed is None or (not (later := settled[failed + 1 :]) and entry.ended):
                continue
            first, times = settled[failed] + 1, self._list_stop_times(later)
            stop = later[-1] + 1 if entry.ended else entry.stop  # if it reached no call, as far as the log goes
            if times:  # of records at this same moment the order is unknown, so they count as earlier
                cut = next((index for index in later if stop_time(self.records[index]) is not None), stop)
                stop = bisect_right(self.records, min(times), first, cut, key=lambda one: one.at)
            found[path] = first, self._find_first_cut(path, later, first, stop)
        return found

    def _find_first_cut(self, path: Path, settled: Sequence[int], start: int, stop: int) -> int:
        """Return the number of the first record in *start* to *stop* that a run nested in one of the *settled* calls
        appended as it was cancelled; else *stop*.
        """
        nested = {(*path, self.records[index].call_id) for index in settled}  # type: ignore[union-attr]
        times = self._list_stop_times(settled)
        end = self._find_end(path, start, stop) if times else None
        if end is not None and self.records[end].at >= min(times):
            stop = end  # it would have cut them otherwise; later, it was the owner's own step that did
        for index in range(start, stop):
            if self.records[index].path[: len(path) + 1] in nested and is_cut_from_outside(self.records[index]):
                return index
        return stop

    def _list_stop_times(self, settled: Iterable[int]) -> list[float]:
        """Return the times at which another call's failure cancelled those of the *settled* calls that it did."""
        return [at for index in settled if (at := stop_time(self.records[index])) is not None]

    def _find_first_after(self, at: float, start: int, stop: int) -> int | None:
        """Return the number of the first record in *start* to *stop* after *at*; None if one has just this time."""
        place = bisect_left(self.records, at, start, stop, key=lambda one: one.at)
        return place if self.records[place - 1].at < at < self.records[place].at else None

    def calls_timed_out(self, entry: RecordedSegment) -> dict[int, list[Call]]:
        """Return the calls that their timeout ended, by number of the first record that shows it.

        Only agent tools, and calls whose bodies are known to have been cut by then: the timeouts of all others run in
        the replay, too.
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
            if not cut and (outcome.status != "timed_out" or not known):
                continue
            if nested in self.paths:
                index = self.first(self.paths[nested], entry.start, settled, is_cut_from_outside)
                index = self._find_after_deadline(nested, entry.start, index)
            else:
                index = over.get((path, call_id))
            if index is not None:
                found[index].append((path, call_id))
        return dict(found)

    def _find_after_deadline(self, path: Path, start: int, cut: int | None) -> int | None:
        """Return *cut*, the number of the first record that shows how the run at *path* was cut, unless a deadline had.

        Then it was cut while it was in its cleanup: before the step after the last of its calls had settled.
        """
        late = [
            index for index in self.paths[path] if start <= index < (cut or 0) and _is_by_deadline(self.records[index])
        ]
        return late[-1] + 1 if late else cut

    def _find_end(self, path: Path, start: int, stop: int) -> int | None:
        """Return the number of the first record in *start* to *stop* that ends the run at *path* from outside."""
        for index in range(start, stop):
            record = self.records[index]
            if ends_from_outside(record) and record.path == path[: len(record.path)]:
                return index
        return None


def _earlier(one: int | None, other: int | None) -> int | None:
    return min((place for place in (one, other) if place is not None), default=None)


def shows_admission(record: r.Record, *, asked_before: bool) -> bool:
    """Tell whether the call of *record* had been admitted: it has started, or its guardrails were asked.

    With *asked_before* they are asked before an approval, and so before an admission.
    """
    if isinstance(record, r.GuardrailSettled):
        return record.stage == "tool_input" and not asked_before
    if isinstance(record, r.CallSettled):  # a call whose arguments don't fit never starts, and was admitted
        return record.outcome.status == "failed" and record.outcome.started_at is None
    return isinstance(record, r.CallStarted)


def is_cut_from_outside(record: r.Record) -> bool:
    """Tell whether *record* is the end of a call, a model attempt or a run that a cancellation of its run ended."""
    match record:
        case r.CallSettled(outcome=outcome):
            return outcome.cancelled_by == "parent"
        case r.ModelFailed(error=error):
            return error == "cancelled"
        case r.RunEnded(status=status):
            return status == "cancelled"
        case _:
            return False


def _is_by_deadline(record: r.Record) -> bool:
    return isinstance(record, r.CallSettled) and record.outcome.cancelled_by == "deadline"


def _list_calls_without_secrets(record: r.Record) -> list[ToolCall]:
    """Return the calls of a response whose secret arguments weren't stored."""
    if not isinstance(record, r.ModelResponded):
        return []
    calls = (item for item in record.response.items if isinstance(item, ToolCall))
    return [call for call in calls if find_missing_secrets(call, call.arguments)]


def _lacks_input(record: r.Record) -> bool:
    """Tell whether *record* brings messages into the history whose secret text wasn't stored."""
    match record:
        case r.RunStarted(input=items, shown=shown):
            return any(map(has_gaps, (*items, *(shown or ()))))
        case r.InputAdded(items=items) | r.HistoryReplaced(items=items):
            return any(map(has_gaps, items))
        case _:
            return False


def _split_segments(records: Sequence[r.Record]) -> Iterator[RecordedSegment]:
    starts = [
        index
        for index, record in enumerate(records)
        if not record.path and isinstance(record, r.RunStarted | r.RunResumed)
    ]
    for start, following in zip(starts, [*starts[1:], len(records)], strict=True):
        ends = (index for index in range(start, following) if _is_root_end(records[index]))
        end = next(ends, None)
        if end is not None:
            yield RecordedSegment(start, end + 1, True)
            continue
        stop = following
        # What was given before the next segment belongs to neither of the two.
        while following < len(records) and isinstance(records[stop - 1], GIVEN):
            stop -= 1
        yield RecordedSegment(start, stop, False)


def _is_root_end(record: r.Record) -> bool:
    return not record.path and isinstance(record, r.RunEnded)


# ------------------------------------------------------------------------------------------------ comparing

_CHANCE = ("at", "duration", "queued_at", "body_ended_at", "first_delta_at", "turn_ended_at", "traceparent", "owner")
_CHANCE_OF_OUTCOMES = ("started_at", "ended_at", "cancelled_at", "abandoned", "cleanup")
"""Fields of outcomes that a replay can't repeat: times, and results of the body itself."""


@attrs.frozen
class Difference:
    """A difference of two records: the path of the field (`place`), its recorded and its replayed JSON value."""

    place: str
    wanted: Any
    got: Any


@attrs.frozen
class Leniency:
    """Fields of a record that aren't compared, since a replay can't know them."""

    digest: bool = False
    final_output: bool = False


STRICT = Leniency()


def compared(
    wanted: r.Record, got: r.Record, marked: r.Record, lenient: Leniency = STRICT
) -> tuple[r.Record, Difference | None]:
    """Return *got* with the recorded times, and its first other difference from *wanted*, or None.

    *marked* is *got* as the log stores it, with its secret flags; it is the one compared.
    """
    if type(wanted) is not type(got):
        return got, Difference("kind", _kind_of(wanted), _kind_of(got))
    changes = _take_recorded_fields(wanted, got, lenient)
    merged = got.replace(**changes)
    old, new = record_to_json(wanted), record_to_json(marked.replace(**_mark_secret_outcome(changes, marked)))
    return merged, difference(old, new)


def _mark_secret_outcome(changes: dict[str, Any], marked: Any) -> dict[str, Any]:
    outcome = changes.get("outcome")
    if outcome is None or not marked.outcome.secret:
        return changes
    return {**changes, "outcome": outcome.replace(secret=True)}


def _kind_of(record: r.Record) -> str:
    kind: str = record_to_json(record)["kind"]
    return kind


def _take_recorded_fields(wanted: Any, got: Any, lenient: Leniency) -> dict[str, Any]:
    """Return the fields of *got* to replace by recorded values, since a replay can't repeat them."""
    changes = {name: getattr(wanted, name) for name in _CHANCE if hasattr(wanted, name)}
    match wanted:
        case r.CallSettled():
            changes["outcome"] = _take_outcome(wanted, got)
            changes |= _take_error(wanted, got)
        case r.BodyEnded() | r.RunEnded() | r.ModelFailed():
            changes |= _take_error(wanted, got)
            if isinstance(wanted, r.BodyEnded):  # a replay raises what the summary says
                changes["details"] = wanted.details
            if isinstance(wanted, r.RunEnded) and [*map(reduce_error, list_errors(wanted))] == [
                *map(reduce_error, list_errors(got))
            ]:
                changes["details"] = wanted.details
            if isinstance(wanted, r.ModelFailed):
                changes["should_retry"] = wanted.should_retry
        case r.ApprovalRequested() if lenient.digest:  # of arguments that the log may not have; they are its own
            changes["digest"] = wanted.digest
        case r.CallStarted() if _waits_fit(wanted, got):
            changes["waited_for"] = wanted.waited_for
        case r.TurnStarted():  # the verdicts show the guardrails, and older logs don't have this field
            changes["guardrails"] = wanted.guardrails
        case r.CancelRequested(reason=None):  # older logs don't have it
            changes["reason"] = None
        case r.GuardrailSettled():  # follows from position and name, which are compared
            changes["nth"] = wanted.nth
        case r.HistoryReplaced(reason="invalid_final_output", items=items) if len(items) == len(got.items):
            changes["items"] = tuple([one if has_gaps(one) else new for one, new in zip(items, got.items, strict=True)])
        case r.ModelRequested():  # no model is asked, so any may be given to the replay
            changes["model"] = wanted.model
            changes["waited_for"] = wanted.waited_for
            if lenient.digest or got.digest.partition("-")[0] == wanted.digest:  # of an older log, without the parts
                changes["digest"] = wanted.digest
        case _:
            pass
    if (
        isinstance(wanted, r.CallStarted | r.ApprovalRequested)
        and isinstance(wanted.arguments, WithheldText)
        and isinstance(got.arguments, WithheldText)
    ):  # each time that a codec seals a text, it may give another one
        changes["arguments"] = wanted.arguments
    if isinstance(wanted, r.BodyEnded) and isinstance(got.value, Standin):
        changes["value"] = wanted.value
    if isinstance(wanted, r.RunEnded) and lenient.final_output and wanted.status == got.status:
        changes["final_output"] = wanted.final_output
    return changes


def _waits_fit(wanted: r.CallStarted, got: r.CallStarted) -> bool:
    """Tell whether two starts of a call may have waited for the same limits of their run."""
    # A call that waits for the consumer of the stream takes no other limit: it doesn't show whether they had room.
    return "stream_buffer" in wanted.waited_for or _list_own_waits(wanted) == _list_own_waits(got)


def _list_own_waits(started: r.CallStarted) -> list[str]:
    """Return the limits of its own run that a call waited for: shared limits may have been held by other runs."""
    own = (name for name in started.waited_for if name == "max_function_tool_concurrency" or name.startswith("serial:"))
    return sorted(own)


def _take_error(wanted: Any, got: Any) -> dict[str, Any]:
    if wanted.error is None or got.error is None:
        return {}
    return {"error": wanted.error} if same_error(wanted.error, got.error) else {}


def list_errors(end: r.Record) -> list[str]:
    """Return what *end*, the end of a run, says of errors: of the one that it raised, and of those beside it."""
    assert isinstance(end, r.RunEnded)
    others = (end.details or {}).get("also_failed") or ()
    return [*([end.error] if end.error is not None else []), *others]


def _take_outcome(wanted: r.CallSettled, got: r.CallSettled) -> Any:
    then, now = wanted.outcome, got.outcome
    changes: dict[str, Any] = {name: getattr(then, name) for name in _CHANCE_OF_OUTCOMES}
    if then.status == now.status and same_output(then.output, now.output):
        changes["output"] = then.output
    return now.replace(**changes)


def same_output(then: Any, now: Any) -> bool:
    """Tell whether two outputs may come from one value: a log returns a value as plain data with sorted keys."""
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
    """A placeholder for a value that the log doesn't hold."""

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
