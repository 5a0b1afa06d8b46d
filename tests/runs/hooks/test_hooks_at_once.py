"""Tool hooks that never wait are called as all hooks are; a hook of the base class is no step at all."""

import asyncio
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
from agentloop._engine.runtime.callbacks import find_tool_hooks


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


def test_method_of_the_base_class_is_no_hook() -> None:
    """It does nothing, so it isn't called."""

    class OfModels(RunHooks):
        async def on_llm_start(self, *_: Any) -> None: ...

    only = OnlyEnds()

    assert find_tool_hooks(None, None) == ()
    assert find_tool_hooks(OfModels(), AgentHooks()) == ()
    assert find_tool_hooks(OfModels(), only) == ((None, only.on_tool_end),)
    log = ToolHookLog()
    assert find_tool_hooks(log, only) == ((log.on_tool_start, log.on_tool_end), (None, only.on_tool_end))


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
    """Start hooks of the run come first, end hooks in reverse order; the end of the body is recorded before them."""
    lines: list[str] = []
    watch = Watch()
    agent = make_agent([make()], call_each("fine"), hooks=QuickAgentHooks(lines))

    result = await run_mode(agent, "go", hooks=Quick(lines), run_config=configure_run(watch))

    assert lines == ["run start c1", "agent start c1", "agent end c1 succeeded", "run end c1 succeeded"]
    assert read_endings(result.calls) == [("c1", "succeeded", None)]
    assert len(watch.of(r.BodyEnded)) == 1


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
