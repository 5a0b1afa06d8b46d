"""One budget over the runs of a batch, and limits of the requests of all of them."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pytest
from kit.agents import make_usage

from agentloop import Agent, Capacity, RunConfig, Runner, UsageLimitExceeded, UsageLimits, UserError, tool
from agentloop.exceptions import UserTypeError
from agentloop.testing import FunctionModel, call, respond, say

TEN = make_usage(10)


def answering() -> Agent[Any, Any]:
    """Return an agent whose every request takes ten tokens."""
    return Agent("a", model=FunctionModel(lambda request: say("done", TEN)))


def price(name: str, usage: Any) -> int:
    """Return the price of a request: its tokens."""
    return int(usage.total_tokens)


@pytest.mark.parametrize(
    "budget", [{"requests": 3}, {"total_tokens": 30}, {"input_tokens": 27}, {"output_tokens": 3}, {"cost": 30}], ids=str
)
@pytest.mark.parametrize("own", [None, UsageLimits(requests=5)], ids=["no own limits", "own limits"])
@pytest.mark.scenario("LM-05")
async def test_no_run_asks_once_the_budget_is_spent(budget: Any, own: Any) -> None:
    """Each run for itself would be within it; the sums are those of all runs."""
    config = RunConfig(price=price, limits=own)
    batch = Runner.run_many(answering(), ["x"] * 5, limit=1, budget=UsageLimits(**budget), run_config=config)
    runs = await batch
    assert [run.error is None for run in runs] == [True, True, True, False, False]
    assert all(isinstance(run.error, UsageLimitExceeded) for run in runs[3:])
    assert batch.usage is not None
    assert (batch.usage.requests, batch.usage.total_tokens, batch.cost) == (3, 30, Decimal(30))


async def test_calls_and_nested_runs_take_from_it() -> None:
    """A call for which nothing is left is skipped, in whichever run it is."""

    @tool(cost=lambda arguments: 4)
    async def pay() -> str:
        """Pay."""
        return "paid"

    def answer(request: Any) -> Any:
        return say("done") if request.turn > 1 else call("pay")

    inner = Agent("inner", model=FunctionModel(answer), tools=[pay])
    outer = Agent(
        "outer",
        model=FunctionModel(lambda request: say("done") if request.turn > 1 else call("inner", {"input": "x"})),
        tools=[inner.as_tool()],
    )
    config = RunConfig(price=lambda name, usage: 0)
    batch = Runner.run_many(outer, ["x"] * 3, limit=1, budget=UsageLimits(cost=11, tool_calls=9), run_config=config)
    runs = await batch
    paid = [
        [one.outcome.status for one in run.result.records if type(one).__name__ == "CallSettled" and one.path]
        for run in runs
    ]
    assert paid == [["succeeded"], ["succeeded"], ["skipped"]]
    assert batch.cost == 8


async def test_a_run_that_a_tool_begins_is_not_of_the_batch() -> None:
    """It is the application's own."""

    @tool
    async def other() -> str:
        """Run another agent."""
        return str((await Runner.run(answering(), "go")).final_output)

    agent = Agent(
        "a",
        model=FunctionModel(lambda request: say("done", TEN) if request.turn > 1 else respond_with_call()),
        tools=[other],
    )

    def respond_with_call() -> Any:
        from agentloop.items import ToolCall

        return respond(ToolCall("c", "other", "{}"), usage=TEN)

    batch = Runner.run_many(agent, ["x"], budget=UsageLimits(requests=2))
    [run] = await batch
    assert run.result.final_output == "done"
    assert batch.usage is not None
    assert batch.usage.requests == 2


@pytest.mark.real_clock
async def test_what_a_journal_has_is_in_the_sum(tmp_path: Path) -> None:
    """A batch that is done again after a crash has spent what it had spent before."""
    options: Any = {"journals": tmp_path / "runs", "run_config": RunConfig(price=price)}
    first = Runner.run_many(answering(), ["x"] * 3, budget=UsageLimits(cost=100), **options)
    await first
    again = Runner.run_many(answering(), ["x"] * 5, limit=1, budget=UsageLimits(cost=40), **options)
    runs = await again
    assert [run.error is None for run in runs] == [True, True, True, True, False]
    assert (first.cost, again.cost) == (30, 40)
    assert again.usage is not None
    assert again.usage.requests == 4


@pytest.mark.scenario("LM-05")
async def test_limits_of_requests_hold_over_the_batch() -> None:
    """Beside those of the configuration."""
    busy = most = 0

    async def answer(request: Any) -> Any:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await anyio.lowlevel.checkpoint()
        busy -= 1
        return say("done")

    agent, own, given = Agent("a", model=FunctionModel(answer)), Capacity(3), Capacity(2)
    await Runner.run_many(agent, ["x"] * 9, model_limits=given, run_config=RunConfig(model_limits=own))
    assert most <= 2
    assert (own.statistics().peak, given.statistics().peak) == (2, 2)
    await Runner.run_many(agent, ["x"] * 9, model_limits=[given])


async def test_wrong_budgets_are_named() -> None:
    """As everywhere; without one there are no sums."""
    with pytest.raises(UserTypeError, match="budget: expected UsageLimits"):
        Runner.run_many(answering(), ["x"], budget=3)  # type: ignore[arg-type]
    with pytest.raises(UserTypeError, match="model_limits"):
        Runner.run_many(answering(), ["x"], model_limits=[3])  # type: ignore[list-item]
    [run] = await Runner.run_many(answering(), ["x"], budget=UsageLimits(cost=3))
    assert isinstance(run.error, UserError)
    assert "would never be reached" in str(run.error)
    batch = Runner.run_many(answering(), ["x"])
    await batch
    assert (batch.usage, batch.cost) == (None, None)
