"""Long runs: what a turn costs must not grow with the turns before it."""

import gc
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from agentloop import RunConfig, Runner, UsageLimits, tool
from agentloop import events as ev
from agentloop.abc import Model
from agentloop.agents import Agent
from agentloop.items import AssistantMessage, ToolCall
from agentloop.model_events import ModelRequest, ResponseDone
from agentloop.sessions import MemorySession
from agentloop.usage import RequestUsage

TURNS = 1_000
WINDOW = 200
"""Turns whose cheap ones represent one end of the run.

What else the machine does makes turns dearer for as long as it takes, never cheaper: a median follows it.
"""


class Endless(Model):
    """A model that calls one tool a turn, TURNS times, and notes the CPU time at each request.

    The request is looked at for nothing but its existence: what a transport would do with it is not the run's cost.
    """

    def __init__(self, turns: int = TURNS, note: Any = time.process_time) -> None:
        self.turns = turns
        self.note = note
        self.times: list[float] = []

    def stream(self, request: ModelRequest) -> Any:
        return _Answer(self)


class _Answer:
    def __init__(self, model: Endless) -> None:
        self._model = model
        self._events: Iterator[ResponseDone] = iter(())

    async def __aenter__(self) -> "_Answer":
        model = self._model
        model.times.append(model.note())
        number = len(model.times)
        item = (
            ToolCall(f"c{number}", "step", f'{{"n":{number}}}') if number <= model.turns else AssistantMessage("done")
        )
        usage = RequestUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        self._events = iter((ResponseDone((item,), usage),))
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def __aiter__(self) -> "_Answer":
        return self

    async def __anext__(self) -> ResponseDone:
        for event in self._events:
            return event
        raise StopAsyncIteration


@tool
async def step(n: int) -> str:
    """Take a step."""
    return f"step {n}"


async def run_for(model: Endless, *, streamed: bool, **options: Any) -> None:
    """Run an agent on *model* to its end."""
    agent: Agent[Any, Any] = Agent("walker", model=model, tools=[step])
    if not streamed:
        result = await Runner.run(agent, "go", max_turns=None, **options)
    else:
        async with Runner.run_streamed(agent, "go", max_turns=None, **options) as stream:
            async for event in stream:
                assert isinstance(event, ev.AgentUpdated) or event.turn <= TURNS + 1
        result = stream.result
    assert result.final_output == "done"
    assert len(result.calls) == model.turns


def ends(times: list[float]) -> tuple[float, float]:
    """Return what a turn costs near the start and near the end: the lowest decile of a window each."""
    costs = [later - earlier for earlier, later in itertools.pairwise(times)]
    windows = costs[5 : 5 + WINDOW], costs[-WINDOW:]
    start, end = (statistics.quantiles(window, n=10)[0] for window in windows)
    return start, end


@pytest.mark.slow
@pytest.mark.backends("asyncio-eager", "trio", "asyncio")
@pytest.mark.parametrize("way", ["plain", "streamed", "session", "limits"])
async def test_turn_one_thousand_costs_what_turn_ten_does(way: str, anyio_backend: Any) -> None:
    """CPU time per turn is measured in one process, without garbage collection, whose passes come at any time."""
    options: dict[str, Any] = {}
    if way == "limits":
        options["run_config"] = RunConfig(
            limits=UsageLimits(requests=10**6, total_tokens=10**9, tool_calls=10**6),
            stop_when=lambda ctx: False,
            loop_detection=3,
        )
    starts: list[float] = []
    finishes: list[float] = []
    for _ in range(6):  # another process may disturb either end of some of them
        if way == "session":
            options["session"] = MemorySession()
        gc.collect()
        gc.disable()
        try:
            model = Endless()
            await run_for(model, streamed=way == "streamed", **options)
        finally:
            gc.enable()
        start, finish = ends(model.times)
        starts.append(start)
        finishes.append(finish)
        if min(finishes) <= 1.3 * min(starts):
            break
    assert min(finishes) <= 1.3 * min(starts), f"a turn's cost grows from {starts} to {finishes} seconds"


def _counted_steps(turns: int) -> list[int]:
    """Return how many Python calls of the library each turn makes, in a run of *turns* turns."""
    count = 0

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        if event == "call" and "agentloop" in frame.f_code.co_filename:
            count += 1

    model = Endless(turns, note=lambda: float(count))

    async def main() -> None:
        await run_for(model, streamed=False)

    sys.setprofile(profile)
    try:
        anyio.run(main)
    finally:
        sys.setprofile(None)
    return [int(later - earlier) for earlier, later in zip(model.times, model.times[1:], strict=False)]


def test_each_turn_makes_as_many_steps_as_any_other() -> None:
    """Calls of Python functions per turn are counted, which is exact, so the clock leaves no doubt."""
    steps = _counted_steps(120)
    assert statistics.median(steps[-20:]) <= statistics.median(steps[5:25]) * 1.02
