"""The event loop is left at every step of a run: the run ends all the same, and its log is whole.

`asyncio.run` ends by cancelling every task of its loop natively, the tasks of a run among them, some of which have not
begun. A trio program ends by cancelling its system tasks. In neither case may anything wait for a task that never runs.
"""

import asyncio
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
import trio
from sweeps.stepping import run_once
from sweeps.test_cancel_sweep import SCENARIOS, PairedHooks, Scenario, World, check_log
from trio.testing import MockClock

from agentloop import (
    Agent,
    GuardrailFunctionOutput,
    Runner,
    ToolContext,
    input_guardrail,
    output_guardrail,
    tool,
)
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, call, say
from agentloop.testing.simulation._stepping import SHUTDOWN, Stepped


@input_guardrail
async def slow_guardrail(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    """Pass, after a while."""
    await anyio.sleep(0.01)
    return GuardrailFunctionOutput(None, False)


@input_guardrail(name="other")
async def other_guardrail(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    """Pass, after a longer while."""
    await anyio.sleep(0.02)
    return GuardrailFunctionOutput(None, False)


@output_guardrail
async def judge_output(ctx: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
    """Pass, after a while."""
    await anyio.sleep(0.01)
    return GuardrailFunctionOutput(None, False)


@output_guardrail(name="other")
async def judge_again(ctx: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
    """Pass, after a step."""
    await anyio.lowlevel.checkpoint()
    return GuardrailFunctionOutput(None, False)


async def guarded(world: World) -> Any:
    """Guardrails beside the model call, and several over the output."""
    agent = Agent(
        "guarded",
        model=ScriptedModel([call("work", {"n": 1}, call_id="c0"), say("done")]),
        tools=[world.body("work")],
        input_guardrails=[slow_guardrail, other_guardrail],
        output_guardrails=[judge_output, judge_again],
    )
    return await Runner.run(agent, "go", hooks=PairedHooks(world), run_config=world.config())


async def kept(world: World) -> Any:
    """A journal, a session, and a resource of the run."""

    @tool
    async def uses(ctx: ToolContext[Any], n: int = 0) -> str:
        return await ctx.resource(shared) + str(n)

    def shared() -> Any:
        return world.open("shared")

    agent = Agent(
        "kept",
        model=ScriptedModel([[call("uses", {"n": n}, call_id=f"c{n}") for n in range(3)], say("done")]),
        tools=[uses],
    )
    return await Runner.run(
        agent, "go", journal=MemoryJournal(), session=MemorySession(), run_config=world.config(cleanup_grace=1.0)
    )


async def enabled(world: World) -> Any:
    """Several callables are asked at once, and a reader follows the events of an agent tool."""

    async def ask(ctx: Any, agent: Any) -> bool:
        await anyio.lowlevel.checkpoint()
        return True

    async def read(event: Any) -> None:
        await anyio.lowlevel.checkpoint()

    tools = [world.body(name, is_enabled=ask) for name in ("one", "two")]
    inner = Agent("inner", model=ScriptedModel([call("one", {"n": 1}, call_id="d0"), say("a")]), tools=tools)
    agent = Agent(
        "asks",
        model=ScriptedModel([[call("inner", {"input": "go"}, call_id="c0"), call("two", {"n": 2})], say("done")]),
        tools=[inner.as_tool(on_stream=read), *tools],
    )
    return await Runner.run(agent, "go", run_config=world.config())


ALL: list[Scenario] = [*SCENARIOS, guarded, kept, enabled]


def check_shutdown(seen: Stepped, world: World) -> None:
    """Assert the promises that need no shield: application code may be cut at any point."""
    where = f"the loop was left at step {seen.cancelled_at} of {seen.steps}"
    assert seen.tasks_left == [], where
    assert world.capacity.statistics().tokens_in_use == 0, where
    check_log(seen, world.watch.records, where)


@pytest.mark.slow
@pytest.mark.scenario("RP-01")
@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.__name__)
def test_run_ends_whole_wherever_its_asyncio_loop_is_left(scenario: Scenario) -> None:
    """Every task of the loop is cancelled at step k, for every k, in several orders of tasks."""
    backend, kind = SHUTDOWN
    cancelled = 0
    for seed in (None, 1, 2):
        at = 0
        while True:
            world = World()
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # a coroutine that was never awaited, too
                seen = run_once(
                    backend, partial(scenario, world), at=at, kind=kind, seed=seed, mark=world.watch.records.__len__
                )
            check_shutdown(seen, world)
            cancelled += seen.cancelled
            if seen.cancelled_at is None:
                break
            at += 1
    assert cancelled > 5


@pytest.mark.slow
@pytest.mark.scenario("RP-01")
@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.__name__)
def test_run_ends_whole_wherever_its_trio_loop_is_left(scenario: Scenario) -> None:
    """The run is a system task; the program's main task returns after k steps, for every k."""
    cut = steps = 0
    while True:
        world = World()
        ended = leave_trio(partial(scenario, world), steps)
        seen = Stepped(cancelled=isinstance(ended, trio.Cancelled), mark=len(world.watch.records))
        check_log(attrs.evolve(seen, error=_error_of(ended)), world.watch.records, f"left after {steps} steps")
        assert world.capacity.statistics().tokens_in_use == 0
        assert world.begun == world.ended - type(world.ended)({"run end hook": world.ended["run end hook"]})
        cut += seen.cancelled
        if not seen.cancelled:
            break
        steps += 1
    assert cut > 5


def _error_of(ended: BaseException | None) -> BaseException | None:
    return None if isinstance(ended, trio.Cancelled) else ended


def leave_trio(program: Callable[[], Any], steps: int) -> BaseException | None:
    """Run *program* as a system task and leave the loop after *steps* checkpoints; return what the program raised."""
    raised: list[BaseException | None] = [None]

    async def job(over: trio.Event) -> None:
        try:
            await program()
        except BaseException as error:
            raised[0] = error
            if isinstance(error, (trio.Cancelled, pytest.fail.Exception)):  # the latter of a test that takes too long
                raise
        finally:
            over.set()

    async def main() -> None:
        over = trio.Event()
        trio.lowlevel.spawn_system_task(job, over)
        for _ in range(steps):
            await trio.sleep(0.0005)  # virtual time
            if over.is_set():
                return

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return raised[0]


@pytest.mark.scenario("RP-01")
@pytest.mark.parametrize("how", ["all", "own"])
def test_stock_loop_left_after_k_passes_ends(how: str) -> None:
    """`asyncio.run` itself, on its own loop, is left with runs under way, and with one task cancelled."""
    started: list[int] = []

    @tool
    async def work(n: int = 0) -> str:
        started.append(n)
        await asyncio.sleep(0)
        return "x"

    @tool
    def blocks(n: int = 0) -> str:
        return "y"

    async def main(passes: int) -> None:
        names = ("work", "work", "blocks")
        turns = [[call(name, {"n": n}, call_id=f"{turn}{n}") for n, name in enumerate(names)] for turn in range(2)]
        agent = Agent("a", model=ScriptedModel([*turns, say("done")]), tools=[work, blocks])
        task = asyncio.create_task(Runner.run(agent, "hi"))
        for _ in range(passes):
            await asyncio.sleep(0)
        if how == "own":
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    for passes in range(60):
        asyncio.run(main(passes))  # the suite's time limit ends a hang, and its filters a coroutine never awaited
    assert started
