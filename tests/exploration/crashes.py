"""Crash points: a generated world writes its journal on a disk that dies, and is resumed from the rest.

First comes a run without a crash, then some runs that crash at one of its writes; about every fourth of them crashes a
second time while it is resumed. The choices depend on the round alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from agentloop import records as r
from agentloop.sessions import MemorySession
from agentloop.testing.invariants._observation import Observation
from agentloop.testing.simulation._case_maker import maker_of
from agentloop.testing.simulation._crash_invariants import said_raise, sound, unknown
from agentloop.testing.simulation._findings import has_its_end
from agentloop.testing.simulation._restarts import CrashRun, run_crashing, run_undisturbed
from agentloop.testing.simulation._timeline import script_as_code
from agentloop.testing.simulation.crashing import BACKEND_PAIRS
from agentloop.testing.simulation.disk import MODES, CrashAt
from agentloop.testing.simulation.generated import Chance, draw_tape
from agentloop.testing.simulation.runs import World, WorldRun

from .counts import SLOW, Counts
from .faults import CancelsCall
from .fixture_agents import CANARIES, FixtureAgents
from .generators import GeneratorConfig, draw_world
from .invariants import check

EVERY = 7
"""Crash in every EVERY-th round."""
POINTS = 8
WITHIN = 12
"""The largest operation number of a second crash, within its own process."""

AFTER_CRASHES = (
    "recovered to the same end",
    "recovered to the same error",
    "over by a failure in the journal",
    "crashed twice",
    "unknown after a crash",
    "bodies not run again",
)
"""Counts that must all be positive after a session: without them, the invariants of crashes were not exercised."""


def crash_points(chance: Chance, number: int, counts: Counts) -> None:
    """Crash one generated world at some points, and judge each run.

    Raises:
        AssertionError: as `crash_world` does.
    """
    size = chance.pick([GeneratorConfig(turns=2, calls=2, tools=1, nesting=0), GeneratorConfig(turns=2, calls=3)])
    parts = draw_world(chance, attrs.evolve(size, faults=chance.one_in(2), approvals=number % 3 == 0))
    world = World(**parts, order=chance.pick(["gate", "gate", "passes"]), tape=draw_tape(chance))
    crash_world(world, chance, counts)


def crash_world(world: World, chance: Chance, counts: Counts) -> None:
    """Crash *world* at some points, and judge each run.

    Raises:
        AssertionError: for a broken invariant; its text names the crashes and the world.
    """
    first, then = chance.pick(BACKEND_PAIRS)
    streamed = chance.one_in(4)
    whole = run_undisturbed(world, backend=first, streamed=streamed)
    counts.numbers[f"schedules on {first}"] += 1
    check(whole.run, counts.tally, but=SLOW)
    for _ in range(POINTS):
        crashes = [CrashAt(chance.pick(whole.writes), chance.pick(MODES))]
        if chance.one_in(4):
            crashes.append(CrashAt(chance.whole(1, WITHIN), chance.pick(MODES)))
        seed = chance.whole(0, 1 << 30)
        run = run_crashing(world, whole.run, crashes, [first, then, first], streamed=streamed, seed=seed)
        _count_run(run, counts)
        try:
            sound(run, same_end=not fickle(run))
            assert not run.left, f"left behind: {', '.join(run.left)}"
            check(observe_crash(run), counts.tally, but=SLOW)
        except AssertionError as error:
            where = f"{list(run.crashes)} on {first}, then {then}, seed={seed}, streamed={streamed}"
            said = [f"script: {script_as_code(world.script or ())}"]
            said += [f"nested {path}: {script_as_code(script)}" for path, script in world.nested.items()]
            raise AssertionError("\n".join([str(error), where, *said, str(world)])) from error


def _count_run(run: CrashRun, counts: Counts) -> None:
    numbers = counts.numbers
    numbers["crash points"] += len(run.crashes)
    numbers["crashed twice"] += len(run.crashes) > 1
    for life in run.processes:
        counts.note(life)
        numbers[f"schedules on {life.backend}"] += 1
        numbers["processes that crashed or resumed"] += 1
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


def observe_crash(run: CrashRun) -> Observation:
    """Return the observation of a run that crashed: the parts that don't belong to one process alone."""
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
        maker=maker_of(cast),
    )


def fickle(run: CrashRun) -> bool:
    """Return True if the run may end in another way than the run without a crash.

    It may if the schedule or the outside decides the end: a timeout, a call that another one cancels, a model that
    failed (a crash forgets the number of its retries), or another one of two guardrails that trips first.
    """
    config: Any = run.world.options["run_config"]
    if said_raise(run) or config.timeout is not None or config.tool_execution.queue_timeout is not None:
        return True
    if any(isinstance(getattr(part, "part", None), CancelsCall) for part in run.world.behaviors.values()):
        return True
    tripped = _first_tripped(run.whole.records)
    if any(tripped.get(where, name) != name for where, name in _first_tripped(run.records).items()):
        return True
    return any(ran_out(one) for one in (run.whole, *run.processes))


def _first_tripped(records: Sequence[r.Record]) -> dict[tuple[tuple[str, ...], str], str]:
    """Return the first guardrail that tripped, for each run and stage that has one."""
    first: dict[tuple[tuple[str, ...], str], str] = {}
    for one in records:
        if isinstance(one, r.GuardrailSettled) and one.verdict == "tripped":
            first.setdefault((one.path, one.stage), one.guardrail)
    return first


def ran_out(run: WorldRun) -> bool:
    """Return True if a call of *run* timed out, or a model of it failed."""
    return any(
        isinstance(one, r.ModelFailed) or (isinstance(one, r.CallSettled) and _was_cut(one)) for one in run.records
    )


def _was_cut(settled: r.CallSettled) -> bool:
    """Return True if a call timed out, also if a guardrail replaced its outcome."""
    outcome = settled.outcome
    judged = outcome.status in ("failed", "rejected", "succeeded") and outcome.started_at is not None
    return outcome.status == "timed_out" or (judged and not outcome.body_finished)
