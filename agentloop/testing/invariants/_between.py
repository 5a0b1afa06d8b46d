"""Invariants between runs of one simulation case: on the other backend, in the other mode, with the other kind of
cancellation, a second time, and as a replay, the case gives the same log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from agentloop import records as r
from agentloop._storage.value_codec import value_from_json, value_to_json
from agentloop.exceptions import AgentLoopError
from agentloop.state import RunState
from agentloop.testing.invariants._invariant import HELD, Broken, Findings, broken, invariant
from agentloop.testing.invariants._observation import Counterpart, ObservedLog, Relation
from agentloop.testing.simulation.normal_form import normal


@invariant("accounting")
def backends_agree(log: ObservedLog) -> Findings:
    """Under the gate one tape gives one log on trio and on asyncio, and the same end.

    Three exceptions have the order of the backend, and their logs are equal in normal form only: several nested runs
    that one failure cancels together finish side by side; a slow reader and the call that waits for it take their steps
    side by side; and so do a run that continues after its last call, and another run's call that starts as that one
    gives back a shared limit: on trio a run leaves its calls one scheduler pass later.
    """
    yield from _compare_counterparts(log, "backend")


@invariant("accounting")
def streaming_changes_nothing(log: ObservedLog) -> Findings:
    """Under the gate one tape gives one log, with a reader of the run's events that keeps up and without a reader.

    The logs are compared up to a model attempt that failed after a part of it was shown: the streamed run can't retry
    an attempt that its reader has seen; a plain run may.
    """
    yield from _compare_counterparts(log, "mode")


@invariant("cancellation")
def native_and_scope_cancellations_agree(log: ObservedLog) -> Findings:
    """A native cancellation of the caller's task gives the same log as a cancellation of a scope around it, if it is
    given while everything waits at the gate.
    """
    yield from _compare_counterparts(log, "cancellation")


@invariant("accounting")
def worlds_repeat_themselves(log: ObservedLog) -> Findings:
    """The same simulation case on the same backend gives the same log again."""
    yield from _compare_counterparts(log, "again")


@invariant("accounting")
def replays_give_the_log(log: ObservedLog) -> Findings:
    """A strict replay gives the run's records, on the other backend too."""
    yield from _compare_counterparts(log, "replay")


def _compare_counterparts(log: ObservedLog, relation: Relation) -> Findings:
    for counterpart in log.observation.counterparts:
        if counterpart.relation == relation:
            yield _compare_logs(log, counterpart)


def _compare_logs(log: ObservedLog, counterpart: Counterpart) -> Broken | None:
    ours, theirs = log.records, counterpart.records
    places: Sequence[int] = range(len(ours))
    if counterpart.relation not in _EXACT:
        places = [n for n in places if not _is_notice(ours[n])]
        ours, theirs = [ours[n] for n in places], [one for one in theirs if not _is_notice(one)]
    for n, one, other in zip(places, ours, theirs, strict=False):
        if one != other:
            if counterpart.relation == "mode" and _differ_only_in_streamed(one, other):
                return HELD
            loose = _has_several_cancelled_runs(ours) or any(map(_has_wait_for_others, (ours, theirs)))
            if counterpart.relation == "backend" and loose and normal(ours) == normal(theirs):
                break
            return broken(f"record {n} is {one!r}, {counterpart.name} has {other!r}", n)
    if len(ours) != len(theirs):
        return broken(
            f"{len(ours)} records, {counterpart.name} has {len(theirs)}",
            [*places, len(log.records)][min(len(ours), len(theirs))],
        )
    error = log.observation.error
    if counterpart.error is not None and counterpart.error is not type(error):
        return broken(f"it ends with {error!r}, {counterpart.name} with {counterpart.error.__name__}")
    return HELD


_EXACT = ("again", "replay")


def _is_notice(record: r.Record) -> bool:
    """Tell whether *record* tells when an end of the run was noticed, which depends on the backend and its passes."""
    return isinstance(record, r.DeadlinePassed) or (isinstance(record, r.CancelRequested) and record.call_id is None)


def _differ_only_in_streamed(one: r.Record, other: r.Record) -> bool:
    """Tell whether both records are the same failed attempt, and only one of the runs had shown a part of it."""
    if not (isinstance(one, r.ModelFailed) and isinstance(other, r.ModelFailed)) or one.streamed == other.streamed:
        return False
    return one.replace(streamed=other.streamed) == other


def _has_several_cancelled_runs(records: Sequence[r.Record]) -> bool:
    """Tell whether more than one nested run ended as cancelled."""
    return sum(bool(one.path) and isinstance(one, r.RunEnded) and one.status == "cancelled" for one in records) > 1


def _has_wait_for_others(records: Sequence[r.Record]) -> bool:
    """Tell whether a call waited for the reader of the run's events, or until a call of another run had settled."""
    settled: defaultdict[float, set[tuple[str, ...]]] = defaultdict(set)
    for one in records:
        if isinstance(one, r.CallSettled):
            settled[one.at].add(one.path)
    return any(
        "stream_buffer" in one.waited_for or not settled[one.at] <= {one.path}
        for one in records
        if isinstance(one, r.CallStarted) and one.waited_for
    )


# ---------------------------------------------------------------------------------------------- stored and read


@invariant("accounting")
def storing_changes_nothing(log: ObservedLog) -> Findings:
    """Records and states are the same after they were written and read, and a second writing gives the same text."""
    agent = log.observation.agent
    if agent is None or not log.records:
        return
    context: Any = {"context_serializer": lambda _: None}
    try:
        text = RunState(agent, log.records).to_string(**context)
        again = RunState.from_string(agent, text)
    except AgentLoopError as error:
        yield broken(f"it can't be stored and read: {type(error).__name__}: {error}")
        return
    if again.to_string(**context) != text:
        yield broken("the state's text isn't what is written when it was read")
    secret = any(call.secret or call.secret_output for call in (one.call for one in log.calls.values()))
    pairs = enumerate(zip(log.records, again.records, strict=True))
    # Secret values are read back as digests, so records that hold them can't be compared.
    n = None if secret else next((n for n, (one, other) in pairs if _make_plain(one) != other), None)
    if n is not None:
        yield broken(f"stored and read, {log.records[n]!r} is {again.records[n]!r}", n)
    yield HELD


def _make_plain(record: r.Record) -> r.Record:
    """Return *record* as it is read back: a final output of an application's type comes back as plain data."""
    if not isinstance(record, r.RunEnded):
        return record
    return record.replace(final_output=value_from_json(value_to_json(record.final_output)))
