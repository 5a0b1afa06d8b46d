"""A run that never waits is still a checkpoint: a cancellation reaches it, and other tasks get their turn."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from kit.agents import Run

from agentloop import Agent, tool
from agentloop.abc import Model
from agentloop.items import AssistantMessage, Item, ToolCall
from agentloop.model_events import ModelRequest, ResponseDone


class Immediate(Model):
    """A model whose calls contain no checkpoint: one call of a tool if *calls*, then an answer."""

    def __init__(self, *, calls: bool) -> None:
        self._calls = calls

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ResponseDone]]:
        """Answer."""
        called = self._calls and request.turn == 1
        yield _answer_at_once(ToolCall("c1", "work", '{"x": 1}') if called else AssistantMessage("done"))


async def _answer_at_once(item: Item) -> AsyncIterator[ResponseDone]:
    yield ResponseDone((item,))


@tool
async def work(x: int) -> str:
    """Work without a checkpoint."""
    return "ok"


@pytest.mark.parametrize("calls", [False, True], ids=["text", "a call"])
async def test_a_run_that_never_waits_is_cancelled(run_mode: Run, calls: bool) -> None:
    """A scope that is cancelled beforehand ends the run; no result comes out of it."""
    agent: Agent[Any, Any] = Agent("immediate", model=Immediate(calls=calls), tools=[work])
    came = False

    with anyio.CancelScope() as scope:
        scope.cancel()
        await run_mode(agent, "go")
        came = True

    assert scope.cancelled_caught
    assert not came


@pytest.mark.parametrize("calls", [False, True], ids=["text", "a call"])
async def test_a_run_that_never_waits_lets_other_tasks_run(run_mode: Run, calls: bool) -> None:
    """A task that was started before the run has run when the run returns."""
    agent: Agent[Any, Any] = Agent("immediate", model=Immediate(calls=calls), tools=[work])
    ran = anyio.Event()

    async def other() -> None:
        ran.set()

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        result = await run_mode(agent, "go")
        assert ran.is_set()

    assert result.final_output == "done"
