"""Crash points: a drawn world writes its journal on a disk that dies, and goes on from what is left of it.

A run without a crash first, then some lives that end at one of its writes; every fourth ends a second time, while it
goes on. Which, and how, depends on the round alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from agentloop import records as r
from agentloop.sessions import MemorySession
from agentloop.testing.invariants import check
from agentloop.testing.invariants._observation import Observation
from agentloop.testing.simulation._crash_invariants import said_raise, sound, unknown
from agentloop.testing.simulation._faults import CancelsCall
from agentloop.testing.simulation._findings import has_its_end
from agentloop.testing.simulation._fixture_agents import CANARIES, FixtureAgents
from agentloop.testing.simulation._generators import Chance, GeneratorConfig, draw_tape, draw_world
from agentloop.testing.simulation._restarts import CrashRun, run_crashing, undisturbed
from agentloop.testing.simulation._timeline import script_as_code
from agentloop.testing.simulation.crashing import WAYS
from agentloop.testing.simulation.disk import MODES, CrashAt
from agentloop.testing.simulation.runs import World, WorldRun

from .counts import SLOW, Counts

EVERY = 7
"""Every so manyth round has crash points."""
POINTS = 8
WITHIN = 12
"""The second life's crash comes within so many operations of its disk."""

AFTER_CRASHES = (
    "recovered to the same end",
    "recovered to the same error",
    "over by a failure in the journal",
    "crashed twice",
    "unknown after a crash",
    "bodies not run again",
)
"""What the crash points of a session have to have come to, each: what the laws of crashes are about."""


def crash_points(chance: Chance, number: int, counts: Counts) -> None:
    """Crash one drawn world at some points, and judge what came of each.

    Raises:
        AssertionError: what doesn't hold, and where the world crashed.
    """
    size = chance.pick([GeneratorConfig(turns=2, calls=2, tools=1, nesting=0), GeneratorConfig(turns=2, calls=3)])
    parts = draw_world(chance, attrs.evolve(size, faults=chance.one_in(2), approvals=number % 3 == 0))
    world = World(**parts, order=chance.pick(["gate", "gate", "passes"]), tape=draw_tape(chance))
    first, then = chance.pick(WAYS)
    streamed = chance.one_in(4)
    whole = undisturbed(world, backend=first, streamed=streamed)
    counts.numbers[f"schedules on {first}"] += 1
    check(whole.run, counts.tally, but=SLOW)
    for _ in range(POINTS):
        crashes = [CrashAt(chance.pick(whole.writes), chance.pick(MODES))]
        if chance.one_in(4):
            crashes.append(CrashAt(chance.whole(1, WITHIN), chance.pick(MODES)))
        seed = chance.whole(0, 1 << 30)
        run = run_crashing(world, whole.run, crashes, [first, then, first], streamed=streamed, seed=seed)
        _count(run, counts)
        try:
            sound(run, same_end=not fickle(run))
            assert not run.left, f"left behind: {', '.join(run.left)}"
            check(evidence_after(run), counts.tally, but=SLOW)
        except AssertionError as error:
            where = f"{list(run.crashes)} on {first}, then {then}, seed={seed}, streamed={streamed}"
            said = [f"script: {script_as_code(world.script or ())}"]
            said += [f"nested {path}: {script_as_code(script)}" for path, script in world.nested.items()]
            raise AssertionError("\n".join([str(error), where, *said, str(world)])) from error


def _count(run: CrashRun, counts: Counts) -> None:
    numbers = counts.numbers
    numbers["crash points"] += len(run.crashes)
    numbers["crashed twice"] += len(run.crashes) > 1
    for life in run.lives:
        counts.note(life)
        numbers[f"schedules on {life.backend}"] += 1
        numbers["lives that crashed or went on"] += 1
    numbers["unknown after a crash"] += len(unknown(run))
    if run.over:
        numbers["over by a failure in the journal"] += not has_its_end(run.records)
        return
    numbers["recovered"] += 1
    held = run.records[: run.kept[-1]]
    numbers["bodies not run again"] += any(isinstance(one, r.BodyEnded) for one in held)
    if fickle(run):
        return
    if run.error is None:
        numbers["recovered to the same end"] += 1
    elif type(run.error) is type(run.whole.error):
        numbers["recovered to the same error"] += 1


def evidence_after(run: CrashRun) -> Observation:
    """Return what a run that crashed left, as far as it isn't a matter of one life alone."""
    cast = run.world.agent
    return Observation(
        records=run.records,
        agent=run.agent,
        config=run.world.options["run_config"],
        result=None if run.over else run.result,
        error=None if run.over else run.error,
        saved=None if run.over or not isinstance(run.session, MemorySession) else run.session._items,
        left=run.left,
        streamed=run.streamed,
        faultless=True,
        canaries=CANARIES if isinstance(cast, FixtureAgents) and cast.secretive else (),
        crashes=run.kept[1:],
    )


def fickle(run: CrashRun) -> bool:
    """Tell whether the run without a crash needn't end as the one with it did.

    So it is where the schedule or what is outside decides: a time that ran out, a call that another one cancels, a
    model that failed (how often it was asked again isn't remembered over a crash), which of two guardrails trips first.
    """
    config: Any = run.world.options["run_config"]
    if said_raise(run) or config.timeout is not None or config.tool_execution.queue_timeout is not None:
        return True
    if any(isinstance(getattr(part, "part", None), CancelsCall) for part in run.world.behaviors.values()):
        return True
    tripped = _first_tripped(run.whole.records)
    if any(tripped.get(where, name) != name for where, name in _first_tripped(run.records).items()):
        return True
    return any(ran_out(one) for one in (run.whole, *run.lives))


def _first_tripped(records: Sequence[r.Record]) -> dict[tuple[tuple[str, ...], str], str]:
    """Return which guardrail was the first to trip, for each run and stage where one did."""
    first: dict[tuple[tuple[str, ...], str], str] = {}
    for one in records:
        if isinstance(one, r.GuardrailSettled) and one.verdict == "tripped":
            first.setdefault((one.path, one.stage), one.guardrail)
    return first


def ran_out(run: WorldRun) -> bool:
    """Tell whether something of *run* took too long, or a model of it failed."""
    return any(
        isinstance(one, r.ModelFailed) or (isinstance(one, r.CallSettled) and _was_cut(one)) for one in run.records
    )


def _was_cut(settled: r.CallSettled) -> bool:
    """Tell whether a call timed out, whatever a guardrail made of that."""
    outcome = settled.outcome
    judged = outcome.status in ("failed", "rejected", "succeeded") and outcome.started_at is not None
    return outcome.status == "timed_out" or (judged and not outcome.body_finished)
