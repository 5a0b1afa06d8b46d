"""Invariants between runs of one world: other backend, mode or cancellation, another time and a replay agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from agentloop import records as r
from agentloop.exceptions import AgentLoopError
from agentloop.state import RunState
from agentloop.testing.invariants._invariant import HELD, Broken, broken, law
from agentloop.testing.invariants._observation import Counterpart, Reading, Relation
from agentloop.testing.simulation.normal_form import normal

Findings = Iterator[Broken | None]


@law("accounting")
def backends_agree(seen: Reading) -> Findings:
    """Under the gate one tape gives one log on trio and on asyncio, and the same end.

    Nested runs that one failure cuts off together wind up side by side, in the backend's order, and so do a reader who
    is behind and the call that he holds up take their steps: such logs are equal in normal form.
    """
    yield from _as_twins(seen, "backend")


@law("accounting")
def streaming_changes_nothing(seen: Reading) -> Findings:
    """Under the gate one tape gives one log, whether somebody who keeps up reads the run's events or nobody does.

    Up to an attempt of the model that failed after it had shown something: to the reader, who makes it final. A plain
    run may make it again.
    """
    yield from _as_twins(seen, "mode")


@law("cancellation")
def native_and_scope_cancellations_agree(seen: Reading) -> Findings:
    """Given while everything waits at the gate, a native cancellation of the caller's task gives the log that one of a
    scope around it gives.
    """
    yield from _as_twins(seen, "cancellation")


@law("accounting")
def worlds_repeat_themselves(seen: Reading) -> Findings:
    """The same world on the same backend gives the same log again."""
    yield from _as_twins(seen, "again")


@law("accounting")
def replays_give_the_log(seen: Reading) -> Findings:
    """A strict replay gives the run's records, on the other backend too."""
    yield from _as_twins(seen, "replay")


def _as_twins(seen: Reading, relation: Relation) -> Findings:
    for twin in seen.evidence.twins:
        if twin.relation == relation:
            yield _difference(seen, twin)


def _difference(seen: Reading, twin: Counterpart) -> Broken | None:
    ours, theirs = seen.records, twin.records
    for n, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            if twin.relation == "mode" and _differ_in_what_was_shown(one, other):
                return HELD
            loose = _cut_together(ours) or _held_up(ours) or _held_up(theirs)
            if twin.relation == "backend" and loose and normal(ours) == normal(theirs):
                break
            return broken(f"record {n} is {one!r}, {twin.name} has {other!r}", n)
    if len(ours) != len(theirs):
        return broken(f"{len(ours)} records, {twin.name} has {len(theirs)}", min(len(ours), len(theirs)))
    error = seen.evidence.error
    if twin.error is not None and twin.error is not type(error):
        return broken(f"it ends with {error!r}, {twin.name} with {twin.error.__name__}")
    return HELD


def _differ_in_what_was_shown(one: r.Record, other: r.Record) -> bool:
    """Tell whether both are the same failed attempt, of which something was shown in one of the runs alone."""
    if not (isinstance(one, r.ModelFailed) and isinstance(other, r.ModelFailed)) or one.streamed == other.streamed:
        return False
    return attrs.evolve(one, streamed=other.streamed) == other


def _cut_together(records: Sequence[r.Record]) -> bool:
    """Tell whether several nested runs were cut off."""
    return sum(bool(one.path) and isinstance(one, r.RunEnded) and one.status == "cancelled" for one in records) > 1


def _held_up(records: Sequence[r.Record]) -> bool:
    """Tell whether a call waited for who reads the run's events."""
    return any(isinstance(one, r.CallStarted) and "stream_buffer" in one.waited_for for one in records)


# ---------------------------------------------------------------------------------------------- stored and read


@law("accounting")
def storing_changes_nothing(seen: Reading) -> Findings:
    """Records and states are the same after they were written and read: what is written then is what was read."""
    agent = seen.evidence.agent
    if agent is None or not seen.records:
        return
    context: Any = {"context_serializer": lambda _: None}
    try:
        text = RunState(agent, seen.records).to_string(**context)
        again = RunState.from_string(agent, text)
    except AgentLoopError as error:
        yield broken(f"it can't be stored and read: {type(error).__name__}: {error}")
        return
    if again.to_string(**context) != text:
        yield broken("the state's text isn't what is written when it was read")
    secret = any(call.secret or call.secret_output for call in (one.call for one in seen.calls.values()))
    pairs = enumerate(zip(seen.records, again.records, strict=True))
    # What is secret comes back as a digest; everything else as it was.
    n = None if secret else next((n for n, (one, other) in pairs if one != other), None)
    if n is not None:
        yield broken(f"stored and read, {seen.records[n]!r} is {again.records[n]!r}", n)
    yield HELD
