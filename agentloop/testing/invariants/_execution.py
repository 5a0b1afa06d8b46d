"""The invariant of execution that your journal can break: what has run, runs once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from agentloop.outcomes import FROM_ABOVE
from agentloop.testing.invariants._invariant import HELD, Findings, broken, invariant
from agentloop.testing.invariants._observation import ObservedCall, ObservedLog, Path


@invariant("execution")
def an_invocation_runs_once(log: ObservedLog) -> Findings:
    """An invocation starts once and its body runs once; again only as a further attempt of a call that was in doubt."""
    for call in log.calls.values():
        if len(call.started) > 1:
            yield from _check_restarts(log, call)
        if call.started:
            yield HELD
    for (_, call_id), bodies in log.bodies.items():
        asked_for = log.calls.get((bodies[0].path, call_id))
        if asked_for is not None and asked_for.questions:
            continue  # no code of the application runs: the call waits for its answer, in each run segment anew
        starts = len(asked_for.started) if asked_for is not None else 0
        nested = log.runs.get((*bodies[0].path, call_id))
        # An agent tool that was interrupted resumes without another start.
        starts += sum(one.status == "interrupted" for _, one in nested.ended) if nested is not None else 0
        if len(bodies) > starts:
            yield broken(f"the body of call {call_id} ran {len(bodies)} times for {starts} starts")


def _check_restarts(log: ObservedLog, call: ObservedCall) -> Findings:
    attempts = [record.attempt for _, record in call.started]
    if len(set(attempts)) != len(attempts):
        yield broken(f"call {call.call_id} started twice", *(n for n, _ in call.started))
    for before, (n, record) in itertools.pairwise(call.started):
        if not _in_doubt(log, call, before[0], n):
            yield broken(f"call {call.call_id} started again (attempt {record.attempt})", before[0], n)


def _in_doubt(log: ObservedLog, call: ObservedCall, before: int, again: int) -> bool:
    """Tell whether an end from above, or a crash, allows a second start: the call was in doubt."""
    if not any(before < began < again for began in _run_beginnings(log, call.path)):
        return False
    endings = [record.outcome for n, record in call.settled if before < n < again]
    return all(one.status == "unknown" or one.cancelled_by in FROM_ABOVE for one in endings)


def _run_beginnings(log: ObservedLog, path: Path) -> Iterator[int]:
    for depth in range(len(path) + 1):
        run = log.runs.get(path[:depth])
        if run is not None:
            yield from run.began
