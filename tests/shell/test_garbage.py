"""What a run leaves behind: nothing that waits for the garbage collector, or a thousand runs would feed it."""

import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agentloop import Agent, RunConfig, RunHooks, Runner, tool
from agentloop.testing import ScriptedModel, call, say

Job = Callable[[], Awaitable[None]]


@tool
async def work(x: int) -> str:
    """Do some work."""
    await anyio.lowlevel.checkpoint()
    return "ok"


@tool(timeout=0.001)
async def dawdle(x: int) -> str:
    """Take too long."""
    await anyio.sleep(60)
    return "late"


class Quiet(RunHooks):
    """Hears of everything and says nothing."""

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        """Hear of it."""


TURNS: dict[str, list[Any]] = {
    "no call": [],
    "calls": [call("work", {"x": 1}), call("work", {"x": 2}), call("work", {"x": 3})],
    "a timeout": [call("dawdle", {"x": 1})],
    "an agent tool": [call("inner", {"input": "help"})],
}


def _agent(calls: list[Any]) -> Agent[Any, Any]:
    inner: Agent[Any, Any] = Agent("inner", model=ScriptedModel([say("helped")]))
    script = [*([calls] if calls else []), say("done")]
    return Agent("outer", model=ScriptedModel(script), tools=[work, dawdle, inner.as_tool()])


async def _plain(agent: Agent[Any, Any], **options: Any) -> None:
    assert (await Runner.run(agent, "go", **options)).final_output == "done"


async def _streamed(agent: Agent[Any, Any], **options: Any) -> None:
    async with Runner.run_streamed(agent, "go", **options) as stream:
        async for _ in stream:
            pass
    assert stream.result.final_output == "done"


def _garbage(backend: str, job: Job) -> Counter[str]:
    """Return what of *job* only a collection frees, by type."""

    async def main() -> None:
        await job()  # whatever is made once, and kept

        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await job()
            gc.collect()
        finally:
            gc.set_debug(0)
            gc.enable()

    try:
        anyio.run(main, backend=backend)
        return Counter(type(left).__name__ for left in gc.garbage)
    finally:
        gc.garbage.clear()


@pytest.mark.parametrize(
    "options", [{}, {"hooks": Quiet(), "run_config": RunConfig(timeout=60)}], ids=["plain", "usual"]
)
@pytest.mark.parametrize("way", [_plain, _streamed])
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_run_that_is_over_leaves_nothing_to_the_garbage_collector(
    backend: str, turn: str, way: Any, options: dict[str, Any]
) -> None:
    """Its parts don't hold each other once it has ended, so the last to let go of it frees all of it."""
    agents = [_agent(TURNS[turn]) for _ in range(2)]  # which outlive their runs
    left = iter(agents)

    async def job() -> None:
        await way(next(left), **options)

    assert not _garbage(backend, job)
