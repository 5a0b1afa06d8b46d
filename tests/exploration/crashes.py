"""Crash points: a drawn world writes its journal on a disk that dies, and goes on from what is left of it.

A run without a crash first, then some lives that end at one of its writes; every fourth ends a second time, while it
goes on. Which, and how, depends on the round alone.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from agentloop import records as r
from agentloop.exceptions import (
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    OutputGuardrailTripwireTriggered,
)
from agentloop.testing._crash_laws import said_raise, sound, unknown
from agentloop.testing._crash_lives import CrashRun, run_crashing, undisturbed
from agentloop.testing.crashing import WAYS
from agentloop.testing.disk import MODES, CrashAt
from agentloop.testing.drawing import Chance, Taste, draw_tape, draw_world
from agentloop.testing.parts import CancelsCall
from agentloop.testing.runs import World, WorldRun

EVERY = 5
"""Every so manyth round has crash points."""
POINTS = 6
WITHIN = 12
"""The second life's crash comes within so many operations of its disk."""
COMES_AGAIN = (
    type(None),
    MaxTurnsExceeded,
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
)
"""Errors that a run ends with again, if it crashed before that was in its journal."""


def crash_points(chance: Chance, number: int, numbers: Counter[str]) -> None:
    """Crash one drawn world at some points, and judge what came of each.

    Raises:
        AssertionError: what doesn't hold, and where the world crashed.
    """
    parts = draw_world(chance, Taste(turns=2, calls=3, faults=chance.one_in(2), approvals=number % 3 == 0))
    world = World(**parts, order=chance.pick(["gate", "gate", "passes"]), tape=draw_tape(chance))
    first, then = chance.pick(WAYS)
    streamed = chance.one_in(4)
    whole = undisturbed(world, backend=first, streamed=streamed)
    for _ in range(POINTS):
        crashes = [CrashAt(chance.pick(whole.writes), chance.pick(MODES))]
        if chance.one_in(4):
            crashes.append(CrashAt(chance.whole(1, WITHIN), chance.pick(MODES)))
        seed = chance.whole(0, 1 << 30)
        run = run_crashing(world, whole.run, crashes, [first, then, first], streamed=streamed, seed=seed)
        numbers["crash points"] += len(run.crashes)
        numbers["recovered"] += not run.over
        numbers["unknown after a crash"] += len(unknown(run))
        same_end = not fickle(run)
        numbers["recovered to the same end"] += same_end and not run.over
        try:
            sound(run, same_end=same_end)
            assert not run.left, f"left behind: {', '.join(run.left)}"
        except AssertionError as error:
            raise AssertionError(f"{error}\n{list(run.crashes)} on {first}, then {then}\n{world}") from error


def fickle(run: CrashRun) -> bool:
    """Tell whether the run without a crash needn't end as the one with it did.

    So it is where a call's error ended it, or where the schedule or what is outside decides: a time that ran out, a
    call that another one cancels, a model that failed.
    """
    config: Any = run.world.options["run_config"]
    if not isinstance(run.whole.error, COMES_AGAIN) or said_raise(run):
        return True
    if config.timeout is not None or config.tool_execution.queue_timeout is not None:
        return True
    if any(isinstance(getattr(part, "part", None), CancelsCall) for part in run.world.behaviors.values()):
        return True
    return any(ran_out(one) for one in (run.whole, *run.lives))


def ran_out(run: WorldRun) -> bool:
    """Tell whether something of *run* took too long, or a model or a nested run of it failed."""
    return any(
        isinstance(one, r.ModelFailed)
        or (isinstance(one, r.RunEnded) and one.path and one.status == "failed")
        or (isinstance(one, r.CallSettled) and one.outcome.status == "timed_out")
        for one in run.records
    )
