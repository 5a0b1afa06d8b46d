"""Invariants of the end of a run: nothing outlives it, and everything keeps to its time.

Your tools, your model and your hooks can break them, for example by a task that is never awaited, or by code that
ignores a cancellation.
"""

from __future__ import annotations

from typing import TypeAlias

from agentloop import records as r
from agentloop.model_events import ModelRequest
from agentloop.testing.invariants._invariant import HELD, Findings, broken, format_path, invariant
from agentloop.testing.invariants._observation import ObservedLog, ObservedRun, ObservedTurn
from agentloop.testing.simulation._simulated_parts import EPOCH

EPSILON = 1e-5
"""Maximum difference in seconds of two measurements of one moment: the times of the log are rounded."""
AskedRequest: TypeAlias = tuple[ObservedTurn, int, ModelRequest, float]
"""A request: its turn, the number of its record, the request itself, and its time on the clock of the loop."""


@invariant("cancellation")
def nothing_outlives_the_run(log: ObservedLog) -> Findings:
    """When a run is over, every body, task, stream, token and nested run of it has ended."""
    for what in log.observation.left or ():
        yield broken(f"left behind: {what}")
    for body in log.observation.bodies or ():
        if body.ended is None:
            yield broken(f"the body of call {body.call_id} is still running", body.began)
        elif body.ended > len(log.records):
            yield broken(f"the body of call {body.call_id} ended after the run", body.began)
        else:
            yield HELD


@invariant("cancellation")
def cancellations_pending_are_left_as_found(log: ObservedLog) -> Findings:
    """At the end the caller's task has exactly the native cancellations that it was given; those that a body requests
    of its own task are taken back before its call settles.
    """
    for path, call_id, pending in log.observation.pending:
        yield broken(f"{pending} native cancellations were counted when call {call_id} of {format_path(path)} settled")
    count = log.observation.cancelling
    if count is None:
        return
    if count:
        yield broken(f"{count} native cancellations too many are pending in the caller's task")
    else:
        yield HELD


def list_requests(log: ObservedLog, run: ObservedRun) -> list[AskedRequest]:
    """Return the requests of *run*: turn, record number, request and time.

    Empty if a recorded request didn't reach the model: records and requests can't be paired then.
    """
    recorded = [(turn, n) for turn in run.turns for n, _ in turn.requested]
    made = [(request, at) for at, request in log.observation.asked or () if request.path == run.path]
    if len(recorded) != len(made):
        return []
    return [(*one, *other) for one, other in zip(recorded, made, strict=True)]


@invariant("execution")
def models_keep_to_their_time(log: ObservedLog) -> Findings:
    """A model attempt ends within its time limit, waits for other tasks included; the limit does not cut it earlier."""
    for run in log.runs.values():
        if log.config(run.path).hold_text_until_guarded:
            continue  # the time of guardrails doesn't count as the model's
        for turn, n, request, began in list_requests(log, run):
            limit = request.settings.timeout
            if limit is None:
                continue
            end = min(
                [(at, one) for at, one in (*turn.responded, *turn.failed) if at > n], default=None, key=_get_number
            )
            if end is None:
                continue
            at, record = end
            took = record.at - EPOCH - began
            if took > limit + EPSILON and not log.observation.reader_takes_time:
                yield broken(f"a model took {took:g} s, and has {limit:g} s", n, at)
            elif isinstance(record, r.ModelFailed) and record.error_kind == "timeout" and took < limit - EPSILON:
                yield broken(f"a model was cut after {took:g} s, and has {limit:g} s", n, at)
            elif isinstance(record, r.ModelFailed) and abs(took - limit) < EPSILON and record.error_kind == "transport":
                yield broken(f"a model was cut after its {limit:g} s, and the log says {record.error}", n, at)
            else:
                yield HELD


def _get_number(pair: tuple[int, object]) -> int:
    return pair[0]
