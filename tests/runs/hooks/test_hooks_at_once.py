"""Tool hooks without an `await` run in the step in which they are due; a hook of the base class is no step at all."""

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import Run, call_each, configure_run, fine, make_agent
from kit.ending import Backend
from kit.results import read_endings, read_shown_outputs
from kit.watching import ToolHookLog, Watch

from agentloop import AgentHooks, RunHooks, ToolContext, UserError, tool
from agentloop import records as r
from agentloop._engine.runtime.callbacks import find_tool_hooks, never_waits


class Quick(RunHooks):
    """Hooks that append a line for each event of a call and never wait; *error* is raised by the end hook."""

    def __init__(self, lines: list[str], error: BaseException | None = None) -> None:
        self.lines = lines
        self.error = error

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        self.lines.append(f"run start {ctx.tool_call_id}")

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        self.lines.append(f"run end {ctx.tool_call_id} {outcome.status}")
        if self.error is not None:
            raise self.error


class QuickAgentHooks(AgentHooks):
    """The same of an agent."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        self.lines.append(f"agent start {ctx.tool_call_id}")

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        self.lines.append(f"agent end {ctx.tool_call_id} {outcome.status}")


class OnlyEnds(AgentHooks):
    """A hook on one event."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        self.ended.append(ctx.tool_call_id)


async def quick(*_: Any) -> None:
    """Return."""


async def waits(*_: Any) -> None:
    """Wait."""
    await anyio.lowlevel.checkpoint()


async def makes_one() -> Any:
    """Return an async function that waits, without waiting for it."""

    async def inner() -> None:
        await anyio.lowlevel.checkpoint()

    return inner


async def iterates(values: AsyncIterator[int]) -> None:
    """Wait for each value."""
    async for _ in values:
        pass


async def enters(block: Any) -> None:
    """Wait for a block."""
    async with block:
        pass


async def collects(values: AsyncIterator[int]) -> list[int]:
    """Wait within a comprehension."""
    return [value async for value in values]


async def generates() -> AsyncIterator[int]:
    """Be an async generator."""
    yield 1


def plain() -> None:
    """Be a function that may return anything."""


@functools.wraps(quick)
async def wraps(*args: Any) -> None:
    """Call another function."""
    await quick(*args)


@pytest.mark.parametrize(
    ("function", "verdict"),
    [
        (quick, True),
        (makes_one, True),
        (Quick([]).on_tool_end, True),
        (waits, False),
        (wraps, False),
        (iterates, False),
        (enters, False),
        (collects, False),
        (generates, False),
        (plain, False),
        (functools.partial(quick, 1), False),
        (ToolHookLog().on_tool_end, False),
        (len, False),
    ],
)
def test_async_function_without_await_never_waits(function: Any, verdict: bool) -> None:
    """Its code has no instruction that may suspend; what can't be told that way may wait."""
    assert never_waits(function) is verdict


def test_method_of_the_base_class_is_no_hook() -> None:
    """It does nothing, so it isn't called."""

    class OfModels(RunHooks):
        async def on_llm_start(self, *_: Any) -> None: ...

    only = OnlyEnds()

    assert find_tool_hooks(None, None) is None
    assert find_tool_hooks(OfModels(), AgentHooks()) is None
    found = find_tool_hooks(OfModels(), only)
    assert found is not None
    assert found.pairs == ((None, only.on_tool_end),)
    assert not found.wait
    both = find_tool_hooks(ToolHookLog(), only)
    assert both is not None
    assert both.wait


def in_a_timeout() -> Any:
    """Return a tool with a time limit, so that its call has all steps."""

    @tool(name="fine", timeout=5)
    async def limited() -> str:
        """Return after a step."""
        await anyio.lowlevel.checkpoint()
        return "ok"

    return limited


@tool(name="fine")
async def gives_a_number() -> int:
    """Return a value that has to be converted."""
    await anyio.lowlevel.checkpoint()
    return 1


@pytest.mark.parametrize("make", [lambda: fine, in_a_timeout, lambda: gives_a_number])
async def test_hooks_that_never_wait_are_called_in_order(run_mode: Run, make: Any) -> None:
    """Start hooks of the run come first, end hooks in reverse order; the end of the body is no record of its own."""
    lines: list[str] = []
    watch = Watch()
    agent = make_agent([make()], call_each("fine"), hooks=QuickAgentHooks(lines))

    result = await run_mode(agent, "go", hooks=Quick(lines), run_config=configure_run(watch))

    assert lines == ["run start c1", "agent start c1", "agent end c1 succeeded", "run end c1 succeeded"]
    assert read_endings(result.calls) == [("c1", "succeeded", None)]
    assert not watch.of(r.BodyEnded)


async def test_hook_that_never_waits_knows_that_an_output_is_secret(run_mode: Run) -> None:
    """No text made of the outcome shows it."""

    @tool(secret_output=True)
    async def reads() -> str:
        """Read a secret."""
        return "hush"

    shown: list[str] = []

    class Shows(RunHooks):
        async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
            shown.append(repr(outcome))

    await run_mode(make_agent([reads], call_each("reads")), "go", hooks=Shows())

    assert len(shown) == 1
    assert "hush" not in shown[0]


async def test_a_hook_that_waits_makes_all_of_them_wait(run_mode: Run) -> None:
    """The end of the body is recorded before hooks that may take time."""
    lines: list[str] = []
    watch, log = Watch(), ToolHookLog()
    agent = make_agent([fine], call_each("fine"), hooks=QuickAgentHooks(lines))

    await run_mode(agent, "go", hooks=log, run_config=configure_run(watch))

    assert lines == ["agent start c1", "agent end c1 succeeded"]
    assert log.seen == ["start:c1", "end:c1:succeeded"]
    assert len(watch.of(r.BodyEnded)) == 1


@pytest.mark.parametrize("make", [lambda: fine, in_a_timeout, lambda: gives_a_number])
async def test_end_hook_that_raises_at_once_fails_the_run(run_mode: Run, make: Any) -> None:
    """The body's end is recorded then, and the call settles with its output; later hooks aren't called."""
    lines: list[str] = []
    watch = Watch()
    agent = make_agent([make()], call_each("fine"), hooks=QuickAgentHooks(lines))
    hooks = Quick(lines, UserError("broken hook"))

    with pytest.raises(UserError, match="broken hook"):
        await run_mode(agent, "go", hooks=hooks, run_config=configure_run(watch))

    assert lines[-2:] == ["agent end c1 succeeded", "run end c1 succeeded"]
    [ended], [settled] = watch.of(r.BodyEnded), watch.of(r.CallSettled)
    assert not ended.failed
    assert settled.outcome.status == "succeeded"


async def test_end_hook_that_cancels_itself_at_once_fails_the_run(run_mode: Run, anyio_backend_name: Backend) -> None:
    """A cancellation that no scope and no caller requested is an error of the hook."""
    agent = make_agent([fine], call_each("fine"))

    with pytest.raises(UserError, match="a callback cancelled itself"):
        await run_mode(agent, "go", hooks=Quick([], asyncio.CancelledError("by hand")))


async def test_start_hook_that_raises_at_once_fails_its_call(run_mode: Run) -> None:
    """The body doesn't run, and the call's end hook hears of it."""

    class Broken(Quick):
        async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
            raise UserError("broken start")

    lines: list[str] = []
    with pytest.raises(UserError, match="broken start"):
        await run_mode(make_agent([fine], call_each("fine")), "go", hooks=Broken(lines))
    assert lines == ["run end c1 failed"]


async def test_hooks_that_never_wait_hear_of_calls_that_fail_or_are_cancelled(run_mode: Run) -> None:
    """Each start has one end, whatever the call comes to."""

    @tool
    async def fails() -> str:
        """Fail."""
        raise ValueError("broken")

    @tool
    async def stops(ctx: ToolContext[Any]) -> str:
        """Cancel the own call."""
        ctx.cancel_call(ctx.tool_call_id)
        await anyio.sleep(60)
        return "never"

    lines: list[str] = []
    agent = make_agent([fails, stops, fine], call_each("fails", "stops", "fine"))
    await run_mode(agent, "go", hooks=Quick(lines))

    assert sorted(line for line in lines if " end " in line) == [
        "run end c1 failed",
        "run end c2 cancelled",
        "run end c3 succeeded",
    ]
    assert read_shown_outputs(agent)["c3"] == "fine"


@pytest.mark.backends("asyncio", "asyncio-eager")
@pytest.mark.parametrize("hooked", [True, False])
async def test_native_cancellation_left_behind_ends_no_more_than_its_task(run_mode: Run, hooked: bool) -> None:
    """The call settles, and its hook is called, in the step in which the body returns; the run continues."""

    @tool
    async def leaves_a_cancellation() -> str:
        """Cancel the own task, and return."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel("left behind")
        return "made"

    lines: list[str] = []
    watch = Watch()
    agent = make_agent([leaves_a_cancellation, fine], call_each("leaves_a_cancellation", "fine"))
    hooks = Quick(lines) if hooked else None
    result = await run_mode(agent, "go", hooks=hooks, run_config=configure_run(watch))

    assert result.final_output == "done"
    assert sum(line.startswith("run end") for line in lines) == (2 if hooked else 0)
    assert len(watch.of(r.CallSettled)) == 2
