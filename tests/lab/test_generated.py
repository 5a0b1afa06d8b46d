"""Generated runs, of everything that worlds may have, followed by the lab: handoffs, nested runs, guardrails, approvals
over several segments, faults, timeouts, and cancellations at any moment; calls in the background, and answers of the
application."""

from __future__ import annotations

from typing import Any

import pytest
from exploration.answers import draw_answers
from exploration.background import draw_background
from exploration.generators import GeneratorConfig, Seeded, draw_world

from agentloop import RunState, lab
from agentloop.records import ModelRequested
from agentloop.testing.simulation.generated import draw_tape
from agentloop.testing.simulation.runs import CancelAt, World, run_one

pytestmark = [pytest.mark.real_clock, pytest.mark.timeout(120)]


def drawn(seed: int) -> World:
    """Return a world with everything but secrets and slow readers."""
    chance = Seeded(seed)
    fields = draw_world(chance, GeneratorConfig(approvals=chance.one_in(3), secrets=False, slow_readers=False))
    order = chance.pick(["gate", "passes", "steps"])
    cancel = CancelAt(chance.whole(0, 60), chance.pick(["scope", "native"])) if chance.one_in(4) else None
    return World(**fields, order=order, cancel=cancel, tape=draw_tape(chance))


def recorded(world: World) -> tuple[RunState, Any] | None:
    """Return a recorded run and its configuration; None if it was cancelled before its first record.

    Its models were those of the simulation, so the log doesn't say which ones the agents have.
    """
    done = run_one(world, backend="asyncio", streamed=False)
    if not done.records:
        return None
    made: Any = world.agent
    records = [one.replace(model=None) if isinstance(one, ModelRequested) else one for one in done.records]
    return RunState(made(), records), world.options.get("run_config")


FIRST = range(0, 100, 10)


@pytest.fixture(scope="module")
def runs() -> dict[int, Any]:
    """The recorded runs by seed, made outside of any event loop."""
    return {seed: found for seed in range(100) if (found := recorded(drawn(seed))) is not None}


FURTHER: dict[str, Any] = {"background": draw_background, "answers": draw_answers}


@pytest.fixture(scope="module")
def further() -> dict[str, list[Any]]:
    """Recorded runs by their source."""
    return {name: [recorded(draw(Seeded(seed))) for seed in range(60)] for name, draw in FURTHER.items()}


@pytest.mark.slow
def test_generated_runs_are_of_many_kinds(runs: dict[int, Any]) -> None:
    """What is compared isn't empty, and ends in each way."""
    assert len(runs) >= 80
    assert {state.status for state, _ in runs.values()} >= {"completed", "failed", "cancelled", "interrupted"}


@pytest.mark.scenario("LB-01", "LB-02")
@pytest.mark.parametrize("first", FIRST)
async def test_a_generated_run_is_the_same_without_a_request(first: int, runs: dict[int, Any]) -> None:
    """The guardrails are the simulation's, so their verdicts come from the log."""
    for seed in range(first, first + 10):
        if seed not in runs:
            continue
        state, config = runs[seed]
        (row,) = (await lab.compare(state, state.agent, run_config=config, recorded_guards=True)).rows
        assert (row.verdict, row.saw, row.requests, row.refused) == ("same", (), 0, 0), f"seed {seed}: {row.why}"


@pytest.mark.parametrize("source", FURTHER)
async def test_results_and_answers_come_as_they_came(source: str, further: dict[str, list[Any]]) -> None:
    """A model is shown the results of background calls in the turns and the order in which it was."""
    for seed, found in enumerate(further[source]):
        if found is None or found[0].status == "failed":  # how far the call beside a failed one came is up to the loop
            continue
        state, config = found
        (row,) = (await lab.compare(state, state.agent, run_config=config, recorded_guards=True)).rows
        assert (row.verdict, row.saw, row.requests, row.refused) == ("same", (), 0, 0), f"seed {seed}: {row.why}"
