"""The core without an event loop: every order of small worlds, drawn worlds, and what a tape decides."""

from math import factorial

import attrs
import pytest
from exploration.generators import Seeded
from exploration.invariants import CoverageCounter
from exploration.pure_core import (
    OF_THE_CORE,
    CoreCall,
    CoreTurn,
    CoreWorld,
    check_core,
    draw_core_world,
    every_schedule,
    every_world,
    play,
)

from agentloop.testing.simulation.schedules import Tape


def _turn(*tools: str, first: int = 0) -> CoreTurn:
    return CoreTurn(calls=tuple(CoreCall(f"c{place}", tool) for place, tool in enumerate(tools, first)))


@pytest.mark.parametrize(("cap", "orders"), [(1, 1), (4, factorial(4)), (None, factorial(4))])
def test_every_order_of_a_batch_is_gone_through(cap: int | None, orders: int) -> None:
    """A cap of one allows one order; without a cap there are as many as the calls have."""
    runs = list(every_schedule(CoreWorld(turns=(_turn(*["plain"] * 4),), cap=cap)))
    assert len(runs) == orders
    ordered = [sorted(run.observation.bodies or (), key=lambda body: body.ended_at) for run in runs]
    ends = {tuple(body.call_id for body in bodies) for bodies in ordered}
    assert len(ends) == orders


def test_every_end_of_a_small_world_keeps_the_invariants() -> None:
    """All orders of two turns, cut at every moment, break nothing, and most invariants are exercised."""
    world = CoreWorld(
        turns=(
            CoreTurn(
                calls=(
                    CoreCall("c1", "once"),
                    CoreCall("c2", "once"),
                    CoreCall("c3", "raising", end="fail"),
                    CoreCall("c4", "line"),
                ),
                reasons=True,
                flaky=1,
            ),
            _turn("plain", first=5),
        ),
        cap=2,
    )
    tally = CoverageCounter()
    count = 0
    for variant in (world, attrs.evolve(world, turns=(_turn("line", "line", "shared"), *world.turns[1:]))):
        for run in every_world(variant):
            check_core(run, tally)
            count += 1
    assert count > 40
    assert tally.exercised["starts_follow_model_order"] > 5
    assert tally.exercised["an_end_from_above_is_not_told"] > 5


@pytest.mark.slow
def test_drawn_worlds_keep_the_invariants_and_exercise_all_of_the_core() -> None:
    """The same seed gives the same world and the same log."""
    tally = CoverageCounter()
    for seed in range(600):
        world = draw_core_world(Seeded(seed))
        run = play(world, Tape((), seed=seed))
        check_core(run, tally)
    again = play(world, Tape((), seed=seed))
    assert list(again.observation.records) == list(run.observation.records)
    assert again.choices == run.choices
    assert [name for name in OF_THE_CORE if not tally.exercised[name]] == []


def test_a_tape_repeats_a_run_of_the_core() -> None:
    """The choices of a run, played as a tape, give the same log."""
    world = CoreWorld(turns=(_turn("plain", "line", "line", "shared"), _turn("plain", "plain", first=4)))
    first = play(world, Tape((), seed=3))
    again = play(world, Tape(chosen for _, chosen in first.choices))
    assert list(again.observation.records) == list(first.observation.records)
