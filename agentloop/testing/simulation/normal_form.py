"""The normal form of a log: its records without ids and times, and without the order of calls that ran side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from agentloop import records as r
from agentloop._common.values import field_names

_CHANCE = {
    "at",
    "run_id",
    "traceparent",
    "duration",
    "queued_at",
    "body_ended_at",
    "started_at",
    "ended_at",
    "cancelled_at",
    "first_delta_at",
    "turn_ended_at",
    "waited_for",
    "digest",
    "result",
    "value",
    "error",
}
_DRAW = "random:"
_PHASES: dict[type, int] = {
    r.CallbackReturned: -1,
    r.ApprovalRequested: 0,
    r.VerdictGiven: 1,
    r.GuardrailSettled: 2,
    r.CallStarted: 3,
    r.AnswerRequested: 4,
    r.CallAnswered: 5,
    r.BodyEnded: 6,
    r.CleanupCut: 7,
    r.CallSettled: 8,
}


def normal(records: Iterable[r.Record]) -> list[dict[str, Any]]:
    """Return *records* in normal form: equal for runs that differ only in backend, streaming and timing.

    Ids, times and digests are removed, and the records of requested cancellations and passed deadlines: which part of a
    run notices them first depends on the backend. The records of one batch are sorted by path, call (in model order)
    and phase; guardrail results of one call keep their order.
    """
    records = [record for record in records if not _is_of_timing(record)]
    index: dict[tuple[tuple[str, ...], str], int] = {}
    for record in records:
        if isinstance(record, r.ModelResponded):
            for item in record.response.items:
                call_id = getattr(item, "call_id", None)
                if call_id is not None:
                    index.setdefault((record.path, call_id), len(index))
    return [_plain_record(record) for record in _sort_batches(records, index)]


def _sort_batches(records: list[r.Record], index: Mapping[tuple[tuple[str, ...], str], int]) -> list[r.Record]:
    """Return *records* with each run's batches stable-sorted; the records of nested runs follow their call's start."""
    ordered: list[r.Record] = []
    batch: list[r.Record] = []
    # Callbacks that run at once return in any order.
    records = _sort_callbacks(records)
    for record in records:
        if not record.path and not _of_batch(record):
            ordered.extend(sorted(batch, key=lambda one: _key(one, index)))
            batch.clear()
            ordered.append(record)
        else:
            batch.append(record)
    return [*ordered, *sorted(batch, key=lambda one: _key(one, index))]


def _sort_callbacks(records: Iterable[r.Record]) -> list[r.Record]:
    """Return *records* with each sequence of returned callbacks sorted by callback."""
    done: list[r.Record] = []
    for answers, group in groupby(records, key=lambda record: isinstance(record, r.CallbackReturned)):
        some: list[Any] = list(group)
        if answers:
            some.sort(key=lambda one: (one.path, one.what, one.key))
        done += some
    return done


def _is_of_timing(record: r.Record) -> bool:
    if isinstance(record, r.CallbackReturned):
        return record.what.startswith(_DRAW)
    return isinstance(record, r.CancelRequested | r.DeadlinePassed)


def _of_batch(record: r.Record) -> bool:
    return type(record) in _PHASES


def _key(record: r.Record, index: Mapping[tuple[tuple[str, ...], str], int]) -> tuple[tuple[int, ...], ...]:
    key: list[tuple[int, ...]] = []
    for depth, call_id in enumerate(record.path):
        # Records of a nested run sort between its call's start and its call's end.
        key.append((index.get((record.path[:depth], call_id), -1), _PHASES[r.CallStarted], 1))
    phase = _PHASES.get(type(record))
    if record.path:
        key.append((record.turn, 0, 0))
    if phase is None:
        last = isinstance(record, r.BatchEnded | r.RunEnded)
        key.append((len(index) if last else -1, 9 if last else 0, 0))
    else:
        named: str = getattr(record, "call_id", "") or getattr(record, "key", "")
        key.append((index.get((record.path, named), len(index)), phase, 0))
    return tuple(key)


def _plain_record(record: r.Record) -> dict[str, Any]:
    return {"kind": type(record).__name__, **_plain_value(record)}


def _plain_value(value: Any) -> Any:
    names = field_names(type(value))
    if names is not None:
        return {name: _plain_value(getattr(value, name)) for name in names if name not in _CHANCE}
    if isinstance(value, list | tuple):
        return [_plain_value(member) for member in value]
    if isinstance(value, Mapping):
        return {str(key): _plain_value(member) for key, member in value.items()}
    return value
