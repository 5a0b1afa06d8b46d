"""Ctrl-C, once and twice: what it ends, and what it leaves."""

import signal
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from kit.watching import Watch

from agentloop import Agent, RunConfig, RunHooks, Runner, ToolContext, ToolExecution, tool
from agentloop import records as r
from agentloop.testing import ScriptedModel, call, say


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    """Have the interpreter's own handler, which the backends look for, before and after."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    """Press Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


class Slow(RunHooks):
    """An end hook that takes an hour."""

    def __init__(self) -> None:
        self.began = anyio.Event()

    async def on_tool_end(self, *given: Any) -> None:
        self.began.set()
        await anyio.sleep(3600)


def run_and_interrupt(backend: str, times: int, watch: Watch) -> str:
    """Interrupt a run whose body cleans up for an hour, and once more when that has begun; return what was reached."""
    reached: list[str] = []

    async def main() -> None:
        cleaning = anyio.Event()
        begun = anyio.Event()

        @tool
        async def tidy(ctx: ToolContext[Any]) -> str:
            begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                with ctx.cleanup():
                    cleaning.set()
                    await anyio.sleep(0.01 if times == 1 else 3600)
                    reached.append("cleaned up")
            return "never"

        async def press() -> None:
            await begun.wait()
            interrupt()
            if times == 2:
                with anyio.CancelScope(shield=True):
                    await cleaning.wait()
                interrupt()

        agent = Agent("a", model=ScriptedModel([call("tidy", call_id="c1"), say("done")]), tools=[tidy])
        config = RunConfig(instruments=(watch,), tool_execution=ToolExecution(cleanup_grace=7200))
        if backend == "trio":
            import trio

            trio.lowlevel.spawn_system_task(press)  # protected: trio then interrupts the program's main task
            await Runner.run(agent, "go", run_config=config)
        else:
            import asyncio

            pressing = asyncio.ensure_future(press())
            pressing.add_done_callback(lambda done: done.cancelled() or done.exception())  # the second one ends it
            await Runner.run(agent, "go", run_config=config)
            await pressing

    with pytest.raises(KeyboardInterrupt):
        anyio.run(main, backend=backend)
    return " ".join(reached)


@pytest.mark.scenario("RP-02")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_interrupt_leaves_bodies_the_cleanup_grace(backend: str) -> None:
    """The work that a body does inside `ctx.cleanup()` is done, and the run ends as a cancelled one."""
    watch = Watch()
    assert run_and_interrupt(backend, 1, watch) == "cleaned up"
    (settled,) = watch.of(r.CallSettled)
    assert (settled.outcome.status, settled.outcome.cancelled_by) == ("cancelled", "parent")
    assert settled.outcome.cleanup == "done"
    assert watch.end == "cancelled"


@pytest.mark.scenario("RP-02")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_second_interrupt_cuts_what_cleans_up(backend: str) -> None:
    """The second interrupt moves the cleanup deadline from two hours ahead to now; the cut bodies are recorded."""
    watch = Watch()
    assert run_and_interrupt(backend, 2, watch) == ""
    assert [cut.section for cut in watch.of(r.CleanupCut)] == ["ctx.cleanup"]
    (settled,) = watch.of(r.CallSettled)
    assert (settled.outcome.status, settled.outcome.cleanup) == ("cancelled", "cut")
    assert watch.end == "cancelled"
