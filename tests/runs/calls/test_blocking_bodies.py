"""An async body that blocks the event loop: one line of the log names tool and call, and says what to do.

The clock of the steps is the test's, so no test depends on how fast the machine is.
"""

import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import Run, make_agent
from kit.results import read_shown_outputs

from agentloop import FunctionTool, ToolContext, tool
from agentloop._engine.calls import steps as call_steps
from agentloop.testing import call, say


class Steps:
    """A clock that a body moves when it "blocks"."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def block(self, seconds: float = 1.3) -> None:
        """Pretend to have computed for some seconds."""
        self.now += seconds


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Return the clock by which the steps of bodies are measured."""
    clock = Steps()
    monkeypatch.setattr(call_steps, "clock", clock)
    return clock


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function that returns the lines about blocked loops."""
    caplog.set_level(logging.WARNING, logger="agentloop")
    return lambda: [text for text in map(logging.LogRecord.getMessage, caplog.records) if "blocked the event" in text]


async def _at_once(steps: Steps) -> str:
    steps.block()
    return "done"


async def _after_a_wait(steps: Steps) -> str:
    await anyio.lowlevel.checkpoint()
    steps.block()
    await anyio.lowlevel.checkpoint()
    return "done"


async def _and_raises(steps: Steps) -> str:
    steps.block()
    raise ValueError("no")


async def _in_its_cleanup(steps: Steps) -> str:
    try:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.sleep_forever()
    finally:
        steps.block()
    return "done"


async def _when_it_is_cut(steps: Steps) -> str:
    try:
        await anyio.sleep_forever()
    finally:
        steps.block()
    return "never"


def _on_the_loop(steps: Steps) -> str:
    steps.block()
    return "done"


def _raw(body: Callable[[Steps], Any], steps: Steps) -> FunctionTool[Any]:
    """Return a tool that does its own reading of arguments; its function runs on the loop, async or not."""

    def invoke(ctx: ToolContext[Any], text: str) -> Any:
        return body(steps)

    return FunctionTool(name="work", description="Work.", params_json_schema={}, on_invoke_tool=invoke)


def _plain(body: Callable[[Steps], Awaitable[str]], steps: Steps, **options: Any) -> FunctionTool[Any]:
    async def work() -> str:
        """Work."""
        return await body(steps)

    return tool(work, **options)


@pytest.mark.parametrize("body", [_at_once, _after_a_wait, _and_raises, _in_its_cleanup])
@pytest.mark.parametrize("make", [_plain, _raw])
async def test_a_step_that_blocks_is_told(
    run_mode: Run, steps: Steps, said: Callable[[], list[str]], body: Any, make: Any
) -> None:
    """Whichever step it is, and however the body ends."""
    await run_mode(make_agent([make(body, steps)], call("work", call_id="c1")), "go")
    (line,) = said()
    assert line.startswith("call c1 of tool 'work' blocked the event loop for 1.3 s: ")
    assert "Make the tool a plain def, it then runs in a thread" in line


async def test_a_raw_function_without_waits_is_told(run_mode: Run, steps: Steps, said: Callable[[], list[str]]) -> None:
    """It runs on the loop although it is a plain def."""
    await run_mode(make_agent([_raw(_on_the_loop, steps)], call("work")), "go")
    assert len(said()) == 1


async def test_a_body_that_blocks_while_it_is_cut_is_told(
    run_mode: Run, steps: Steps, said: Callable[[], list[str]]
) -> None:
    """Its cleanup runs on the loop as well."""
    agent = make_agent([_plain(_when_it_is_cut, steps, timeout=0.01)], call("work"))
    await run_mode(agent, "go")
    assert len(said()) == 1


async def test_waits_and_short_steps_are_not_told(run_mode: Run, steps: Steps, said: Callable[[], list[str]]) -> None:
    """What other tasks do meanwhile isn't the body's, and steps aren't added up."""
    resting = anyio.Event()

    async def first() -> str:
        """Wait for the other."""
        for _ in range(5):
            steps.block(0.19)
            await anyio.lowlevel.checkpoint()
        await resting.wait()
        return "done"

    def second() -> str:
        """Block in a thread."""
        steps.block()
        anyio.from_thread.run_sync(resting.set)
        return "done"

    agent = make_agent([tool(first), tool(second)], [call("first"), call("second")])
    await run_mode(agent, "go")
    assert said() == []


async def test_once_for_each_tool_and_run(run_mode: Run, steps: Steps, said: Callable[[], list[str]]) -> None:
    """A tool that blocks in each of a thousand calls makes one line."""

    async def work() -> str:
        """Work."""
        return await _at_once(steps)

    tools = [tool(work, name=name) for name in ("one", "two")]
    script = [[call("one"), call("one"), call("two")], call("one"), say("done")]
    await run_mode(make_agent(tools, *script), "go")
    assert sorted("'one'" in line for line in said()) == [False, True]  # in any order: both are in one turn
    await run_mode(make_agent(tools, *script), "go")
    assert len(said()) == 4


async def test_the_body_is_awaited_as_if_nothing_were_around_it(run_mode: Run) -> None:
    """An error that is thrown into the body has no trace of the watch, and is no later error's context."""
    seen: list[BaseException] = []

    async def work() -> str:
        """Work."""
        with anyio.CancelScope() as scope:
            scope.cancel()
            try:
                await anyio.sleep_forever()
            except BaseException as error:
                seen.append(error)
                raise
        try:
            raise ValueError("later")
        except ValueError as error:
            seen.append(error)
        return "done"

    agent = make_agent([tool(work)], call("work", call_id="c1"))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent, 1) == {"c1": "done"}
    thrown, later = seen
    assert later.__context__ is None
    assert call_steps.__file__ not in {frame.filename for frame in traceback.extract_tb(thrown.__traceback__)}


async def test_a_body_that_is_closed_is_closed_at_its_wait() -> None:
    """As at the end of an event loop that goes away under a run."""
    ended: list[str] = []

    async def body() -> None:
        try:
            await anyio.lowlevel.checkpoint()
        except GeneratorExit:
            ended.append("closed")
            raise

    coroutine = body()
    around = call_steps._watch(SimpleNamespace(coro=None), coroutine)  # type: ignore[arg-type]
    around.send(None)
    around.close()
    assert ended == ["closed"]
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
