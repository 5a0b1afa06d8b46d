"""How the framework's work grows: counted calls of functions, Python's and C's, never time."""

import functools
import math
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agentloop import Agent, Capacity, Rate, RunConfig, Runner, ToolExecution, tool
from agentloop import events as ev
from agentloop._engine.session_writer import _not_there
from agentloop.items import ToolCall, ToolOutput
from agentloop.testing import ScriptedModel, call, say

pytestmark = [pytest.mark.slow, pytest.mark.real_clock, pytest.mark.scenario("RP-13")]

MOST = 1.2
"""The exponent that no dimension may pass when its size is doubled: n log n stays below it."""


class Work:
    """Counts the calls made in all threads while it is entered."""

    calls = 0

    def _count(self, frame: Any, event: str, arg: Any) -> None:
        if event in ("call", "c_call"):
            self.calls += 1

    def __enter__(self) -> "Work":
        threading.setprofile(self._count)
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None takes it away


def unbounded(**fields: Any) -> RunConfig:
    """Return a configuration that executes any number of calls in a turn."""
    return RunConfig(tool_execution=ToolExecution(max_calls_per_turn=None, **fields))


async def run_together(count: int, one: Any, calls: int = 5) -> None:
    """Run *count* agents at once, each with *calls* calls of the tool *one* in a turn."""
    asked = [call(one.name, {"n": n}, f"c{n}") for n in range(calls)]
    async with anyio.create_task_group() as group:
        for _ in range(count):
            agent = Agent("one", model=ScriptedModel([asked, say("done")]), tools=[one])
            group.start_soon(functools.partial(Runner.run, agent, "go"))


async def runs_that_share_a_capacity(n: int) -> None:
    @tool(capacity=Capacity(3))
    async def shared(n: int) -> str:
        await anyio.lowlevel.checkpoint()
        return "x"

    await run_together(n, shared)


async def runs_that_share_two_capacities_under_caps(n: int) -> None:
    """Each turn has room for one call, so that runs wait for their own cap and for what they share in turns."""

    @tool(capacity=[Capacity(3), Capacity(2)])
    async def shared(n: int) -> str:
        await anyio.lowlevel.checkpoint()
        return "x"

    asked = [call("shared", {"n": n}, f"c{n}") for n in range(4)]
    async with anyio.create_task_group() as group:
        for _ in range(n):
            agent = Agent("one", model=ScriptedModel([asked, say("done")]), tools=[shared])
            config = unbounded(max_function_tool_concurrency=1)
            group.start_soon(functools.partial(Runner.run, agent, "go", run_config=config))


async def runs_that_share_a_rate(n: int) -> None:
    """Ten calls at a time, then a wait: every run waits at each of them."""

    @tool(capacity=Rate(20, 0.004))
    async def shared(n: int) -> str:
        return "x"

    await run_together(n, shared, calls=2)


async def runs_whose_tools_need_threads(n: int) -> None:
    @tool
    def threaded(n: int) -> str:
        return "x"

    await run_together(n, threaded)


async def limits_of_a_turn(n: int) -> None:
    tools = []
    for index in range(n):

        @tool(name=f"t{index}", capacity=Capacity(1))
        async def own() -> str:
            await anyio.lowlevel.checkpoint()
            return "x"

        tools.append(own)
    asked = [call(f"t{index}", {}, f"c{index}-{again}") for again in range(2) for index in range(n)]
    agent = Agent("one", model=ScriptedModel([asked, say("done")]), tools=tools)
    await Runner.run(agent, "go", run_config=unbounded())


async def queued_calls_that_are_cancelled(n: int) -> None:
    go = anyio.Event()

    @tool
    async def waits(n: int) -> str:
        await go.wait()
        return "x"

    asked = [call("waits", {"n": index}, f"c{index}") for index in range(n)]
    agent = Agent("one", model=ScriptedModel([asked, say("done")]), tools=[waits])
    config = unbounded(max_function_tool_concurrency=1)
    async with Runner.run_streamed(agent, "go", run_config=config) as stream:
        async for event in stream:
            if isinstance(event, ev.CallStarted) and not go.is_set():
                for index in range(1, n):
                    assert stream.cancel_call(f"c{index}")
                go.set()


async def verdicts_given_one_by_one(n: int) -> None:
    @tool(needs_approval=True)
    async def pay(n: int) -> str:
        return "x"

    asked = [call("pay", {"n": index}, f"c{index}") for index in range(n)]
    agent = Agent("one", model=ScriptedModel([asked, say("done")]), tools=[pay])
    state = (await Runner.run(agent, "go", run_config=unbounded())).to_state()
    for index in range(n):
        state.approve(f"c{index}")
    result = await Runner.run(agent, state, run_config=unbounded())
    assert result.final_output == "done"


async def _hand_off(n: int, config: RunConfig) -> None:
    agents: list[Agent[Any, Any]] = [Agent(f"a{index}") for index in range(2)]
    for index, agent in enumerate(agents):
        other = agents[1 - index]
        steps: list[Any] = [call(f"transfer_to_{other.name}", {}, f"h{index}-{turn}") for turn in range(n // 2)]
        agent.model = ScriptedModel([*steps, say("done")])
        agent.handoffs.append(other)
    await Runner.run(agents[0], "go", max_turns=None, run_config=config)


async def handoffs_with_a_filter(n: int) -> None:
    await _hand_off(n, RunConfig(handoff_input_filter=lambda data: data))


async def handoffs_with_a_nested_history(n: int) -> None:
    await _hand_off(n, RunConfig(nest_handoff_history=True))


async def items_that_a_session_may_hold(n: int) -> None:
    """The worst case: what the session ends with is there, but for the first item."""
    pairs = [(ToolCall(f"c{index}", "f", "{}"), ToolOutput(f"c{index}", "x")) for index in range(n)]
    items = [item for pair in pairs for item in pair]
    assert _not_there(list(items), [ToolOutput("other", "x"), *items[1:]]) == items[:1]


DIMENSIONS: dict[Callable[[int], Awaitable[None]], int] = {
    runs_that_share_a_capacity: 50,
    runs_that_share_two_capacities_under_caps: 50,
    runs_that_share_a_rate: 50,
    runs_whose_tools_need_threads: 60,
    limits_of_a_turn: 100,
    queued_calls_that_are_cancelled: 200,
    verdicts_given_one_by_one: 100,
    handoffs_with_a_filter: 60,
    handoffs_with_a_nested_history: 60,
    items_that_a_session_may_hold: 200,
}


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("dimension", DIMENSIONS, ids=lambda one: one.__name__)
async def test_counted_work_grows_no_faster_than_n_log_n(dimension: Callable[[int], Awaitable[None]]) -> None:
    """The work is counted from one size to its double, after a run that warms the size up."""
    size = DIMENSIONS[dimension]
    await dimension(size // 4)
    counted = []
    for n in (size, 2 * size):
        with Work() as work, anyio.fail_after(60):
            await dimension(n)
        counted.append(work.calls)
    exponent = math.log2(counted[1] / counted[0])
    assert exponent <= MOST, f"{counted[0]} calls at {size}, {counted[1]} at {2 * size}: exponent {exponent:.2f}"
