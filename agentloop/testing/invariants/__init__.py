"""`check`: tests whether a run kept every built-in invariant of the library.

The invariants are a table (`INVARIANTS`): each has a name, a promise in words, and a function that looks for its
premise and its breach in an `Observation`. A simulation case in which the premise of an invariant never occurs says
nothing about this invariant. A `CoverageCounter` counts the cases that exercised each invariant, so that a test session
can fail when an invariant was never exercised.

Here are the invariants that *your* code can break: a tool that leaves a task behind, a filter that drops an output, a
session that stores an item twice, a body that asks the real clock. What only a fault of the engine can break is tested
where the engine is: `tests/exploration/invariants` of the repository enters about a hundred more into the same table.

This package depends on `testing.simulation`; the runtime does not know about either.
"""

from __future__ import annotations

from typing import TypeAlias

from agentloop._common.error_text import is_fatal
from agentloop.config import RunConfig
from agentloop.sessions import MemorySession
from agentloop.testing.invariants import _between, _contents, _ends, _execution
from agentloop.testing.invariants._invariant import (
    INVARIANTS,
    Breach,
    CoverageCounter,
    Invariant,
    InvariantError,
    format_records,
    judge,
)
from agentloop.testing.invariants._observation import (
    Cancellation,
    Counterpart,
    Observation,
    ObservedBody,
    ObservedLog,
    Relation,
)
from agentloop.testing.simulation._case_maker import CaseMaker, maker_of
from agentloop.testing.simulation.event_loop import Deadlock
from agentloop.testing.simulation.runs import WorldRun, WorldRuns

__all__ = [
    "INVARIANTS",
    "Cancellation",
    "CaseMaker",
    "ObservedBody",
    "Observation",
    "Breach",
    "Counterpart",
    "InvariantError",
    "Invariant",
    "CoverageCounter",
    "check",
    "check_counterparts",
    "observe_run",
    "findings_of",
    "judge",
    "format_records",
    "counterpart_of",
]

# The decorator enters each invariant at import. The tuple uses the imports, so that no linter removes them.
_TABLES = (_execution, _ends, _contents, _between)

Judged: TypeAlias = Observation | WorldRun | WorldRuns
"""An input of `check`: one run of a simulation case, all its runs, or an observation that was built by hand."""


def observe_run(run: WorldRun) -> Observation:
    """Return the observation of *run*: its log, its result, and the reports of every fixture that watched it."""
    data = run.result if run.result is not None else run.run_data
    session, maker = run.session, maker_of(run.world.agent)
    given = run.cancelled_at is not None
    at = run.cancelled_at_time
    stuck = isinstance(run.error, Deadlock)
    native = run.backend == "asyncio" and run.world.cancel is not None and run.world.cancel.kind == "native"
    # The task that requested a native cancellation takes it back (`uncancel`), also where a fatal error is raised
    # instead of the cancellation.
    outranked = run.error is not None and is_fatal(run.error) and run.cancelling > 0
    return Observation(
        records=run.records,
        agent=run.agent,
        config=run.world.options.get("run_config") or RunConfig(),
        result=data,
        error=run.error,
        cancellation=(Cancellation(mark=run.mark, at=at, came_out=run.cancelled) if given else None),
        bodies=[
            ObservedBody(
                path=body.path,
                call_id=body.call_id,
                tool=body.tool,
                began=body.began,
                ended=body.ended,
                ending=body.ending,
                began_at=body.began_at,
                ended_at=body.ended_at,
                stamps=body.stamps,
                reports=body.reports,
            )
            for body in run.bodies
        ],
        cleanups=run.cleanups,
        shown=[(request.path, request.items) for request in run.requests],
        acknowledged=run.acknowledged,
        asked=list(zip(run.asked_at, run.requests, strict=True)),
        reader_takes_time=run.world.slow_reader and run.world.order == "gate",
        stamps=run.stamps,
        pending=run.pending,
        spans=run.spans,
        saved=session._items if isinstance(session, MemorySession) else None,
        late=[(report.path, report.call.call_id) for report in run.late],
        still_running=[(report.path, report.call.call_id) for report in run.still_running],
        left=("the run itself: nothing can go on",) if stuck else run.left,
        ended_at=run.ended_at,
        cancelling=run.cancelling - (native and (run.cancelled or outranked)),
        streamed=run.streamed,
        reader_left=run.streamed and run.world.reader_leaves in {type(event).__name__ for event in run.events},
        to_end_after=run.to_end_after,
        events=run.events,
        unread=run.unread if run.streamed else None,
        crashes=(),
        maker=maker,
        **maker.observe(run.agent, run.hooks, session, run.journal),
    )


def counterpart_of(run: WorldRun, relation: Relation) -> Counterpart:
    """Return *run* in the form in which another run of its simulation case is compared with it."""
    name = f"the {relation} on {run.backend}, {'streamed' if run.streamed else 'plain'},"
    return Counterpart(relation=relation, name=name, records=run.records, error=type(run.error))


def check_counterparts(run: WorldRun, counterpart: Counterpart, tally: CoverageCounter | None = None) -> None:
    """Compare *run* with its *counterpart* by the invariants between runs only, and count them in *tally*.

    Raises:
        InvariantError: as `check` does.
    """
    observation = Observation(records=run.records, error=run.error, counterparts=(counterpart,))
    # `worlds=0`: `check` of this run has counted its simulation case already.
    if findings := judge(ObservedLog(observation), tally, _BETWEEN, worlds=0):
        raise InvariantError(tuple(findings), f" on {run.backend}", format_records(tuple(run.records), findings))


_BETWEEN = tuple(
    INVARIANTS[name]
    for name in (
        "backends_agree",
        "streaming_changes_nothing",
        "native_and_scope_cancellations_agree",
        "worlds_repeat_themselves",
        "replays_give_the_log",
    )
)


def _observe_runs(judged: Judged) -> list[tuple[str, Observation]]:
    if isinstance(judged, Observation):
        return [("", judged)]
    runs = judged.runs if isinstance(judged, WorldRuns) else (judged,)
    return [(f" on {one.backend}, {'streamed' if one.streamed else 'plain'}", observe_run(one)) for one in runs]


def findings_of(judged: Judged, tally: CoverageCounter | None = None) -> list[Breach]:
    """Return the breaches of *judged* in the table's order. Counts breaches and exercised invariants in *tally*."""
    return [finding for _, observation in _observe_runs(judged) for finding in judge(ObservedLog(observation), tally)]


def check(judged: Judged, tally: CoverageCounter | None = None, *, but: frozenset[str] = frozenset()) -> None:
    """Judge a finished run by every built-in invariant, and count in *tally* the invariants that it exercised.

    Args:
        judged: A run of a simulation case, all its runs, or an observation.
        tally: The coverage counter, which this function changes.
        but: Names of invariants to leave out.

    Raises:
        InvariantError: naming each broken invariant, what it promises, and the records that show the breach.

    Example:
        from agentloop import Agent
        from agentloop.testing import World, check, run, say

        world = World(agent=lambda: Agent("a"), script=[say("hi")])
        check(run(world))  # raises InvariantError if a run broke a promise
    """
    selected = [one for one in INVARIANTS.values() if one.name not in but] if but else None
    for where, observation in _observe_runs(judged):
        log = ObservedLog(observation)
        findings = judge(log, tally, selected)
        log.forget()
        if findings:
            raise InvariantError(tuple(findings), where, format_records(tuple(observation.records), findings))
