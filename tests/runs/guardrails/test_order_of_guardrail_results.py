"""The four lists of guardrail results are equal on every backend, in any order of settling."""

from typing import Any

import anyio
import pytest
from kit.agents import Run, make_agent
from kit.resuming import copy_state

from agentloop import Allow, GuardrailFunctionOutput, RunConfig, input_guardrail, output_guardrail, tool
from agentloop.guardrails import tool_input_guardrail, tool_output_guardrail
from agentloop.testing import call

COUNT = 4


class Backwards:
    """Lets its callers continue one after the other: the one with the highest number first."""

    def __init__(self) -> None:
        self.gone = [anyio.Event() for _ in range(COUNT + 1)]
        self.gone[COUNT].set()

    async def __call__(self, number: int) -> None:
        await self.gone[number + 1].wait()
        self.gone[number].set()


def names_of(results: Any) -> list[Any]:
    """Return the part by which the results of a list differ."""
    return [(one.guardrail.name, one.output.output_info) for one in results]


def lists_of(result: Any) -> dict[str, list[Any]]:
    """Return the four lists of a result, in short."""
    stages = ("input", "output", "tool_input", "tool_output")
    return {stage: names_of(getattr(result, f"{stage}_guardrail_results")) for stage in stages}


def judging(kind: Any, stage: str, number: int, order: Backwards) -> Any:
    """Return a guardrail of the run that answers in its turn."""

    async def judge(*_: Any) -> GuardrailFunctionOutput:
        await order(number)
        return GuardrailFunctionOutput(number, False)

    return kind(judge, name=f"{stage} {number}")


def judging_calls(kind: Any, name: str, orders: list[Backwards]) -> Any:
    """Return a guardrail of a tool whose calls of a turn are answered backwards."""

    async def judge(data: Any) -> Any:
        await orders[data.arguments["turn"]](data.arguments["k"])
        return Allow([data.arguments["turn"], data.arguments["k"]])

    return kind(judge, name=name)


@pytest.mark.scenario("RP-23")
@pytest.mark.parametrize("paused", [False, True])
async def test_guardrail_results_stand_in_declaration_and_model_order(run_mode: Run, paused: bool) -> None:
    """The order holds when guardrails settle in another one, over two turns, and in a run that resumed from a pause."""
    runs, calls = [Backwards() for _ in range(2)], [[Backwards() for _ in range(2)] for _ in range(2)]

    @tool(
        needs_approval=paused,
        tool_input_guardrails=[judging_calls(tool_input_guardrail, "in", calls[0])],
        tool_output_guardrails=[judging_calls(tool_output_guardrail, "out", calls[1])],
    )
    async def work(turn: int, k: int) -> str:
        return str(k)

    agent = make_agent(
        [work],
        *[[call("work", {"turn": turn, "k": k}, f"c{turn}{k}") for k in range(COUNT)] for turn in range(2)],
        input_guardrails=[judging(input_guardrail, "input", k, runs[0]) for k in (2, 3)],
        output_guardrails=[judging(output_guardrail, "output", k, runs[1]) for k in (2, 3)],
    )
    config = RunConfig(
        input_guardrails=[judging(input_guardrail, "input", k, runs[0]) for k in (0, 1)],
        output_guardrails=[judging(output_guardrail, "output", k, runs[1]) for k in (0, 1)],
    )
    result = await run_mode(agent, "go", run_config=config)
    while result.status == "interrupted":
        state = copy_state(result.to_state(), agent)
        for waiting in state.interruptions:
            state.approve(waiting)
        result = await run_mode(agent, state, run_config=config)
    assert lists_of(result) == {
        "input": [(f"input {k}", k) for k in range(COUNT)],
        "output": [(f"output {k}", k) for k in range(COUNT)],
        "tool_input": [("in", [turn, k]) for turn in range(2) for k in range(COUNT)],
        "tool_output": [("out", [turn, k]) for turn in range(2) for k in range(COUNT)],
    }


@pytest.mark.scenario("RP-23")
async def test_several_guardrails_of_one_call_stand_together(run_mode: Run) -> None:
    """The results are in the guardrails' own order, at the place of their call."""
    first, second = [Backwards()], [Backwards()]

    @tool(
        tool_input_guardrails=[
            judging_calls(tool_input_guardrail, "first", first),
            judging_calls(tool_input_guardrail, "second", second),
        ]
    )
    async def work(turn: int, k: int) -> str:
        return str(k)

    agent = make_agent([work], [call("work", {"turn": 0, "k": k}, f"c{k}") for k in range(COUNT)])
    result = await run_mode(agent, "go")
    assert lists_of(result)["tool_input"] == [(name, [0, k]) for k in range(COUNT) for name in ("first", "second")]


@pytest.mark.scenario("RP-23")
async def test_the_lists_beside_an_error_stand_in_the_same_order(run_mode: Run) -> None:
    """The results on a failed run's error have the order that a completed run's results have."""
    orders = [Backwards()]

    @tool(
        failure_error_function=None,
        tool_output_guardrails=[judging_calls(tool_output_guardrail, "out", orders)],
    )
    async def work(turn: int, k: int) -> str:
        return str(k)

    agent = make_agent([work], [call("work", {"turn": 0, "k": k}, f"c{k}") for k in range(COUNT)], done=None)
    with pytest.raises(Exception, match="step") as caught:
        await run_mode(agent, "go")
    data = caught.value.run_data  # type: ignore[attr-defined]
    assert lists_of(data)["tool_output"] == [("out", [0, k]) for k in range(COUNT)]
