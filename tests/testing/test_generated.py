"""Generated worlds of an application's own agent: they fit its tools, keep the invariants, and shrink."""

from typing import Any, Literal

import attrs
import pytest
from anyio.lowlevel import checkpoint
from exploration.generators import GeneratorConfig, Seeded, draw_world
from exploration.invariants import CoverageCounter, check
from hypothesis import Phase, given, settings

from agentloop import Agent, ToolContext, handoff, tool
from agentloop.exceptions import UserTypeError
from agentloop.testing.scripted import CallStep
from agentloop.testing.simulation.generated import (
    approvals,
    cancel_points,
    scripts,
    strategy,
    tool_behaviours,
    worlds,
)
from agentloop.testing.simulation.runs import World, run, run_one


@attrs.define
class Shop:
    """An application with one thing to sell."""

    left: int = 1
    sold: int = 0


def racing() -> Agent[Any, Any]:
    """Return an agent whose tool looks, waits, and then acts."""

    @tool
    async def order(ctx: ToolContext[Shop], item: str) -> str:
        if ctx.context.left:
            await checkpoint()
            ctx.context.left -= 1
        return "sold"

    return Agent("shop", tools=[order])


@attrs.frozen
class Address:
    """A structured argument."""

    street: str
    number: int


def structured() -> Agent[Any, Any]:
    """Return an agent with arguments of many kinds, an agent tool and a handoff."""

    @tool
    async def send(to: Address, parts: list[int], how: Literal["post", "air"], note: str | None = None) -> str:
        return f"{to.street} {sum(parts)} {how} {note}"

    other: Agent[Any, Any] = Agent("other", tools=[send])
    return Agent("main", tools=[send, other.as_tool()], handoffs=[handoff(other)])


@pytest.mark.slow
@worlds(
    structured,
    models=scripts(max_turns=2, malformed=True),
    tools=tool_behaviours(faults=True),
    cancels=cancel_points(60),
    verdicts=approvals(),
    max_examples=25,
)
def test_worlds_of_an_agent_keep_the_invariants(world: World) -> None:
    """The worlds run on both backends, streamed and plain."""
    check(run(world))


@pytest.mark.slow
def test_arguments_fit_the_tools_schemas() -> None:
    """Without malformed calls no call is refused for its arguments."""
    seen: list[Any] = []

    @settings(max_examples=30, database=None, deadline=None, derandomize=True)
    @given(strategy(structured, models=scripts(max_turns=3), orders=["gate"]))
    def none_is_refused(world: World) -> None:
        found = run_one(world)
        assert found.error is None
        assert {one.outcome.status for one in found.calls} <= {"succeeded"}
        seen.extend(found.calls)

    none_is_refused()
    assert len(seen) > 30


@pytest.mark.slow
@pytest.mark.parametrize("type_", [Address, int, list[str]])
def test_answers_fit_the_output_type_unless_they_are_to_be_malformed(type_: Any) -> None:
    """So a run of a typed agent gets to its end; with malformed answers some are corrected first."""
    inner = Agent("inner", output_type=type_)
    agent = Agent("typed", tools=[inner.as_tool()], output_type=type_, output_retries=2)
    tally = CoverageCounter()

    @settings(max_examples=30, deadline=None, database=None)
    @given(strategy(agent, models=scripts()))
    def fit(world: World) -> None:
        run = run_one(world)
        assert run.result is not None
        assert run.result.status == "completed"
        check(run, tally)

    @settings(max_examples=60, deadline=None, database=None)
    @given(strategy(agent, models=scripts(malformed=True)))
    def corrected(world: World) -> None:
        check(run_one(world), tally)

    fit()
    assert not tally.exercised["invalid_outputs_are_corrected_as_often_as_agreed"]
    corrected()
    assert tally.exercised["invalid_outputs_are_corrected_as_often_as_agreed"]


@pytest.mark.slow
def test_a_race_between_two_calls_is_found_and_shrunk() -> None:
    """A check-then-act race comes down to one turn of two calls."""
    found: list[World] = []

    @settings(max_examples=300, database=None, deadline=None, derandomize=True, phases=[Phase.generate, Phase.shrink])
    @given(strategy(racing, models=scripts(max_turns=2), context=Shop, orders=["passes"]))
    def sells_once(world: World) -> None:
        if run_one(world).context.left < 0:
            found.append(world)
            raise AssertionError("sold twice")

    with pytest.raises(AssertionError, match="sold twice"):
        sells_once()
    calls = [piece for step in found[-1].script or () if isinstance(step, list) for piece in step]
    assert sum(isinstance(piece, CallStep) for piece in calls) == 2
    assert found[-1].tape == ()


def test_what_is_no_agent_is_refused() -> None:
    """The error comes at decoration, not at the first run."""
    wrong: Any = "agent"
    with pytest.raises(UserTypeError, match="worlds: expected an Agent"):
        worlds(wrong)


@pytest.mark.slow
def test_drawn_worlds_of_a_cast_keep_the_invariants() -> None:
    """The test plays a few; the sessions of `python -m tests.exploration` play thousands."""
    tally = CoverageCounter()
    for seed in range(25):
        world = World(**draw_world(Seeded(seed), GeneratorConfig()))
        check(run(world), tally)
    assert tally.worlds == 100
    assert len(tally.exercised) > 66
