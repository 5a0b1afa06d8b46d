"""Readers of a streamed run: one task at a time, the same or another; a reader that leaves takes no event along."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import make_agent

from agentloop import Runner, UserError
from agentloop import events as ev
from agentloop.testing import say, wait

TEXT = "some text of several chunks, sixteen characters each"


async def test_of_two_consumers_that_wait_the_second_is_refused() -> None:
    """Both would wait for one event; the first continues undisturbed and gets all that come."""
    go = anyio.Event()
    agent = make_agent([], [wait(go), say(TEXT)], done=None)
    texts: list[str] = []
    refused: list[str] = []

    async def read() -> None:
        try:
            texts.extend([event.text async for event in stream if isinstance(event, ev.TextDelta)])
        except UserError as error:
            refused.append(str(error))
            go.set()

    async with Runner.run_streamed(agent, "go") as stream, anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(read)
    [words] = refused
    assert words.endswith("one consumer at a time")
    assert "".join(texts) == TEXT


@pytest.mark.scenario("SC-09")
@pytest.mark.parametrize("steps", range(4))
async def test_reader_that_is_cancelled_takes_no_event_along(steps: int) -> None:
    """Each event is asked for by a task of its own, and each first asker is cancelled some steps after it began."""

    def agent() -> Any:
        return make_agent([], [say(TEXT), wait(0.001), say(TEXT)], done=None)

    async with Runner.run_streamed(agent(), "go") as stream:
        whole = [event async for event in stream]
    seen: list[Any] = []
    ended = False

    async def take() -> None:
        nonlocal ended
        try:
            seen.append(await stream.__anext__())
        except StopAsyncIteration:
            ended = True

    async with Runner.run_streamed(agent(), "go") as stream:
        while not ended:
            async with anyio.create_task_group() as group:
                group.start_soon(take)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            await take()
    # the agent of the first event is each run's own
    assert [(type(event), getattr(event, "text", None)) for event in seen] == [
        (type(event), getattr(event, "text", None)) for event in whole
    ]
