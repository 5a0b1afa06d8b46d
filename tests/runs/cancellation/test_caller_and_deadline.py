"""The caller's cancellation and the run's deadline at once: the caller comes first, on both backends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import Run, make_agent
from kit.ending import advance_clock
from kit.watching import Watch

from agentloop import (
    Agent,
    GuardrailFunctionOutput,
    RunConfig,
    RunHooks,
    RunTimeoutError,
    ToolExecution,
    input_guardrail,
    tool,
)
from agentloop import records as r
from agentloop._concurrency.backend import cancelled_outside
from agentloop.items import Item
from agentloop.sessions import MemorySession
from agentloop.testing import FunctionModel, ScriptedModel, call, say

LIMIT = 30.0


class World:
    """An agent whose calls run and wait in a queue, nested or not, until the caller or a deadline ends them."""

    def __init__(self, levels: int = 0, *, inner_timeout: float | None = None) -> None:
        self.running = anyio.Event()
        self.watch = Watch()

        @tool
        async def slow() -> str:
            self.running.set()
            await anyio.sleep_forever()
            return "never"

        calls = [call("slow", {}, f"c{n}") for n in range(3)]
        agent = make_agent([slow], calls)
        for level in range(levels):
            own = RunConfig(timeout=inner_timeout, tool_execution=CAPPED) if inner_timeout is not None else None
            asks = agent.as_tool("ask", "asks", run_config=own)
            agent = Agent("outer", model=ScriptedModel([call("ask", {"input": "x"}, f"s{level}"), say("no")]))
            agent.tools = [asks]
        self.agent = agent

    def config(self, timeout: float | None = LIMIT) -> RunConfig:
        """Return a configuration in which two calls run and one waits."""
        return RunConfig(timeout=timeout, instruments=[self.watch], tool_execution=CAPPED)

    def causes(self) -> set[Any]:
        """Return what the calls are said to have been cancelled by."""
        settled = self.watch.of(r.CallSettled)
        assert len(settled) >= 3
        return {one.outcome.cancelled_by for one in settled}

    def statuses(self) -> set[str]:
        """Return how the runs of the tree ended."""
        return {one.status for one in self.watch.of(r.RunEnded)}


CAPPED = ToolExecution(max_function_tool_concurrency=2)


async def cancelled_by(end: Callable[[anyio.CancelScope], Awaitable[None]], world: World, run: Awaitable[Any]) -> None:
    """Await *run* in a scope that *end* cancels once the calls run."""

    async def ending() -> None:
        await world.running.wait()
        await anyio.wait_all_tasks_blocked()
        await end(scope)

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(ending)
            await run
    assert scope.cancelled_caught


async def caller_first(scope: anyio.CancelScope) -> None:
    """Cancel the scope, and let the time run out before the run can react."""
    scope.cancel()
    advance_clock(LIMIT + 10)


async def deadline_first(scope: anyio.CancelScope) -> None:
    """Let the time run out, and cancel the scope before the run can react."""
    advance_clock(LIMIT + 10)
    scope.cancel()


def caller_at_the_time() -> Callable[[anyio.CancelScope], Awaitable[None]]:
    """Return a caller who wakes by the clock as the deadline of a run that begins now passes, and cancels."""
    until = anyio.current_time() + LIMIT

    async def cancel(scope: anyio.CancelScope) -> None:
        await anyio.sleep_until(until)
        scope.cancel()

    return cancel


ORDERS = {"caller first": caller_first, "deadline first": deadline_first}


@pytest.mark.scenario("RP-16")
@pytest.mark.parametrize("order", ORDERS.values(), ids=list(ORDERS))
@pytest.mark.parametrize(
    ("levels", "inner_timeout", "timeout"),
    [(0, None, LIMIT), (1, None, LIMIT), (2, None, LIMIT), (2, LIMIT, None)],
    ids=["alone", "nested", "nested twice", "nested twice with deadlines of their own"],
)
async def test_the_caller_outranks_the_deadline(
    run_mode: Run, levels: int, inner_timeout: float | None, timeout: float | None, order: Any
) -> None:
    """Running calls, waiting calls and calls of nested runs all say `parent`, and every run was cancelled."""
    world = World(levels, inner_timeout=inner_timeout)
    await cancelled_by(order, world, run_mode(world.agent, "go", run_config=world.config(timeout)))
    assert (world.causes(), world.statuses()) == ({"parent"}, {"cancelled"})


def _waiting_in(place: str, wait: Callable[[], Awaitable[Any]]) -> tuple[Agent[Any, Any], dict[str, Any]]:
    """Return an agent whose run awaits *wait* in *place*, and the options of the run."""

    async def instructions(context: Any, agent: Any) -> str:
        await wait()
        return ""

    async def answer(request: Any) -> Any:
        await wait()
        return say("never")

    async def guard(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        await wait()
        return GuardrailFunctionOutput()

    class Loading(MemorySession):
        async def get_items(self, limit: int | None = None) -> list[Item]:
            await wait()
            return []

    class Starting(RunHooks):
        async def on_agent_start(self, context: Any, agent: Any) -> None:
            await wait()

    agent = Agent("waiting", model=FunctionModel(answer) if place == "model" else ScriptedModel([say("never")]))
    if place == "instructions":
        agent.instructions = instructions
    if place == "guardrail":
        agent.input_guardrails = [input_guardrail(guard)]
    options: dict[str, Any] = {"session": Loading()} if place == "session" else {}
    if place == "hook":
        options["hooks"] = Starting()
    return agent, options


@pytest.mark.scenario("RP-16")
@pytest.mark.parametrize("order", ORDERS.values(), ids=list(ORDERS))
@pytest.mark.parametrize("place", ["session", "hook", "instructions", "guardrail", "model"])
async def test_the_caller_outranks_the_deadline_wherever_the_run_waits(run_mode: Run, place: str, order: Any) -> None:
    """Also where no call runs: the run is cancelled, and its log says the same."""
    world = World()

    async def wait() -> None:
        world.running.set()
        await anyio.sleep_forever()

    agent, options = _waiting_in(place, wait)
    await cancelled_by(order, world, run_mode(agent, "go", run_config=world.config(), **options))
    assert world.statuses() == {"cancelled"}
    assert len(world.watch.of(r.CancelRequested)) == 1
    assert not world.watch.of(r.DeadlinePassed)


@pytest.mark.scenario("RP-16")
@pytest.mark.backends("trio-virtual", "asyncio-virtual")
@pytest.mark.parametrize("place", ["session", "hook", "instructions", "guardrail", "model"])
async def test_the_caller_outranks_a_deadline_of_the_same_moment_wherever_the_run_waits(
    run_mode: Run, place: str
) -> None:
    """The caller wakes by the clock as the deadline passes, in any order in which the backend wakes its tasks."""
    for _ in range(10):
        world = World()

        async def wait(world: World = world) -> None:
            world.running.set()
            await anyio.sleep_forever()

        agent, options = _waiting_in(place, wait)
        await cancelled_by(caller_at_the_time(), world, run_mode(agent, "go", run_config=world.config(), **options))
        assert world.statuses() == {"cancelled"}
        assert isinstance(world.watch.of(r.CancelRequested, r.DeadlinePassed)[-1], r.CancelRequested)


@pytest.mark.scenario("RP-16")
@pytest.mark.backends("trio-virtual", "asyncio-virtual")
@pytest.mark.parametrize("levels", [0, 1])
async def test_the_caller_outranks_a_deadline_of_the_same_moment(run_mode: Run, levels: int) -> None:
    """The caller wakes by the clock as the deadline passes, in any order in which the backend wakes its tasks."""
    for _ in range(10):
        world = World(levels)
        await cancelled_by(caller_at_the_time(), world, run_mode(world.agent, "go", run_config=world.config()))
        assert (world.causes(), world.statuses()) == ({"parent"}, {"cancelled"})


@pytest.mark.scenario("RP-16")
@pytest.mark.backends("trio-virtual", "asyncio-virtual")
@pytest.mark.parametrize("slack", [0.0, -1.0], ids=["same moment", "a second before"])
async def test_the_caller_s_own_deadline_is_his_cancellation(run_mode: Run, slack: float) -> None:
    """The caller's deadline outranks the run's at the same moment, and comes before it when it is earlier."""
    world = World(1)
    with anyio.move_on_after(LIMIT + slack) as scope:
        await run_mode(world.agent, "go", run_config=world.config())
    assert scope.cancelled_caught
    assert (world.causes(), world.statuses()) == ({"parent"}, {"cancelled"})


@pytest.mark.scenario("RP-16")
@pytest.mark.parametrize(
    ("levels", "inner_timeout"),
    [(0, None), (1, None), (1, LIMIT)],
    ids=["alone", "nested", "nested with a deadline of its own"],
)
async def test_a_deadline_alone_is_a_deadline(run_mode: Run, levels: int, inner_timeout: float | None) -> None:
    """The calls say `deadline`, and the outer run is out of time, even if a nested run is at the same moment."""
    world = World(levels, inner_timeout=inner_timeout)

    async def pass_the_deadline() -> None:
        await world.running.wait()
        await anyio.wait_all_tasks_blocked()
        advance_clock(LIMIT + 10)

    async with anyio.create_task_group() as group:
        group.start_soon(pass_the_deadline)
        with pytest.raises(RunTimeoutError):
            await run_mode(world.agent, "go", run_config=world.config())
    assert world.causes() == {"deadline"}


@pytest.mark.scenario("RP-16")
@pytest.mark.backends("asyncio", "asyncio-eager")
@pytest.mark.parametrize("caller_is_first", [True, False])
async def test_a_native_cancellation_is_the_caller_s_too(run_mode: Run, caller_is_first: bool) -> None:
    """`Task.cancel()` of the task that awaits the run outranks the deadline, before it and after it."""
    world = World(1)
    task = asyncio.create_task(run_mode(world.agent, "go", run_config=world.config()))  # type: ignore[arg-type]
    await world.running.wait()
    await anyio.wait_all_tasks_blocked()
    if caller_is_first:
        task.cancel()
    advance_clock(LIMIT + 10)
    if not caller_is_first:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (world.causes(), world.statuses()) == ({"parent"}, {"cancelled"})


async def test_a_scope_tells_whether_one_around_it_is_cancelled() -> None:
    """A cancelled scope around it is seen, unless a shield is between them."""
    with anyio.CancelScope() as outer:
        await anyio.lowlevel.checkpoint()
        with anyio.CancelScope() as shield, anyio.CancelScope() as scope:
            await anyio.lowlevel.checkpoint()
            assert not cancelled_outside(scope)
            scope.cancel()
            assert not cancelled_outside(scope)
            shield.shield = True
            outer.cancel()
            assert not cancelled_outside(scope)
            shield.shield = False
            assert cancelled_outside(scope)
            assert not cancelled_outside(outer)
