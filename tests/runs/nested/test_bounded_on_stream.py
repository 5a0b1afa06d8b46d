"""An agent tool's `on_stream` that is slow: the nested run waits for it, and its events are never lost."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from kit.agents import Run, make_agent

from agentloop import Agent, Runner, tool
from agentloop._engine.nested_run import MOST_UNREAD
from agentloop.abc import Model
from agentloop.items import AssistantMessage
from agentloop.model_events import ResponseDone, TextDelta
from agentloop.testing import call

DELTAS = 3 * MOST_UNREAD


class Talker(Model):
    """A model that says *DELTAS* pieces, and counts those that were read."""

    def __init__(self) -> None:
        self.said = 0

    @asynccontextmanager
    async def stream(self, request: Any) -> AsyncIterator[Any]:
        """Say them."""

        async def events() -> AsyncIterator[Any]:
            for _ in range(DELTAS):
                self.said += 1
                yield TextDelta("x", 0)
            yield ResponseDone(items=(AssistantMessage("x" * DELTAS),))

        yield events()


@pytest.mark.scenario("LM-06")
async def test_the_tool_waits_for_a_slow_on_stream(run_mode: Run) -> None:
    """It is at most that many events ahead; once the callable goes on, all of them come, in order."""
    model, heard, behind = Talker(), list[Any](), list[int]()
    texts = 0

    async def on_stream(event: Any) -> None:
        nonlocal texts
        for _ in range(3):
            await anyio.lowlevel.checkpoint()  # slower than the model
        heard.append(event)
        texts += hasattr(event, "text")
        behind.append(model.said - texts)

    inner = Agent("inner", model=model)
    agent = make_agent([inner.as_tool(on_stream=on_stream)], call("inner", {"input": "go"}, call_id="c"))
    result = await run_mode(agent, "go")
    assert result.final_output == "done"
    assert sum(getattr(one, "text", None) == "x" for one in heard) == DELTAS
    assert MOST_UNREAD - 5 <= max(behind) <= MOST_UNREAD + 2
    assert type(heard[-1]).__name__ == "RunEnded"


@pytest.mark.scenario("LM-06")
async def test_a_run_that_waits_for_on_stream_is_cancelled_at_once() -> None:
    """The callable is cancelled with it."""
    model = Talker()

    async def on_stream(event: Any) -> None:
        await anyio.sleep_forever()

    inner = Agent("inner", model=model)
    agent = make_agent([inner.as_tool(on_stream=on_stream)], call("inner", {"input": "go"}, call_id="c"))
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(Runner.run, agent, "go")
            while model.said < MOST_UNREAD - 10:
                await anyio.lowlevel.checkpoint()
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            scope.cancel()
    assert model.said <= MOST_UNREAD + 1


@pytest.mark.scenario("LM-06")
async def test_a_slow_on_stream_delays_no_sibling(run_mode: Run) -> None:
    """Another call of the turn ends while the tool waits."""
    ended, model = anyio.Event(), Talker()

    async def on_stream(event: Any) -> None:
        await ended.wait()

    @tool
    async def quick() -> str:
        """End once the other one waits."""
        while model.said < MOST_UNREAD - 10:
            await anyio.lowlevel.checkpoint()
        ended.set()
        return "ok"

    inner = Agent("inner", model=model)
    calls = [call("inner", {"input": "go"}, call_id="c"), call("quick", call_id="q")]
    result = await run_mode(make_agent([inner.as_tool(on_stream=on_stream), quick], calls), "go")
    assert result.final_output == "done"
