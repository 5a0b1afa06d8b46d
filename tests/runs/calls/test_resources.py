"""`ctx.resource`: one entry per run, on first need, left in reverse order before the run has ended."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import attrs
import pytest
from kit.agents import Run, call_each, configure_run, make_agent
from kit.ending import Backend, advance_clock, cancel_when, check_duration
from kit.results import read_endings, read_shown_outputs
from kit.watching import Watch

from agentloop import Agent, RunConfig, RunContext, Runner, RunTimeoutError, ToolContext, UserError, open_runtime, tool
from agentloop import records as r
from agentloop._concurrency.cleanup import Cleanup
from agentloop._engine.runtime.resources import Resources
from agentloop.testing import ScriptedModel, call, say


@attrs.define
class Tasks:
    """Keeps the work of tasks in place of starting them."""

    kept: list[Callable[[], Awaitable[None]]]

    def host(self, work: Any, on: Any, name: str) -> None:
        self.kept.append(partial(work, on))


class Shelf:
    """Makes resources and writes down how they are entered and left."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @asynccontextmanager
    async def open(self, name: str, pause: float = 0) -> AsyncIterator[str]:
        self.lines.append(f"enter {name}")
        if pause:
            await anyio.sleep(pause)
        try:
            yield f"{name}{len(self.lines)}"
        finally:
            self.lines.append(f"leave {name}")

    def factory(self, name: str, pause: float = 0) -> Callable[[], AbstractAsyncContextManager[str]]:
        """Return a factory; each is its own resource."""
        return partial(self.open, name, pause)


pytestmark = pytest.mark.scenario("DE-08")


async def test_who_hears_late_of_a_failed_entry_does_not_undo_the_next_try(run_mode: Run) -> None:
    """Two calls wait for one entry, and each tries again as soon as it fails: they share the second entry."""
    both, asked, entered, left = anyio.Event(), 0, 0, 0

    @asynccontextmanager
    async def shaky() -> AsyncIterator[str]:
        nonlocal entered, left
        entered += 1
        if entered == 1:
            await both.wait()
            raise ConnectionError("not yet")
        yield f"entry {entered}"
        left += 1

    @tool
    async def use(ctx: ToolContext[Any]) -> str:
        nonlocal asked
        asked += 1
        if asked == 2:
            both.set()
        try:
            return str(await ctx.resource(shaky))
        except ConnectionError:
            return str(await ctx.resource(shaky))

    agent = make_agent([use], call_each("use", "use"))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": "entry 2", "c2": "entry 2"}
    assert (entered, left) == (2, 1)


async def test_what_a_cancelled_entry_raises_is_no_error_of_the_run(run_mode: Run) -> None:
    """Nobody got the resource, so nobody is told: the end of the run is the cancellation, and nothing beside it."""
    entering, watch = anyio.Event(), Watch()

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        entering.set()
        try:
            await anyio.sleep_forever()
        finally:
            raise ConnectionError("cut while entering")
        yield

    @tool
    async def use(ctx: ToolContext[Any]) -> str:
        await ctx.resource(slow)
        return "never"

    agent = make_agent([use], call_each("use"))
    await cancel_when(entering, lambda: run_mode(agent, "go", run_config=configure_run(watch)))
    [ended] = watch.of(r.RunEnded)
    assert (ended.status, ended.error, ended.details) == ("cancelled", None, None)


async def test_resource_is_entered_on_first_need_and_once_per_run(run_mode: Run) -> None:
    """Calls of two turns share it; it is left when the run is over, not before."""
    shelf = Shelf()
    pool = shelf.factory("pool")

    @tool
    async def uses(ctx: ToolContext[Any]) -> str:
        value = await ctx.resource(pool)
        shelf.lines.append("use")
        return value

    @tool
    async def idles() -> str:
        shelf.lines.append("idle")
        return "nothing"

    agent = make_agent(
        [uses, idles], call("idles", call_id="c1"), call("uses", call_id="c2"), call("uses", call_id="c3")
    )
    result = await run_mode(agent, "go")
    assert shelf.lines == ["idle", "enter pool", "use", "use", "leave pool"]
    assert result.calls[1].outcome.value == result.calls[2].outcome.value


async def test_concurrent_first_uses_share_one_entry(run_mode: Run) -> None:
    """A call that asks for a resource while it is being entered waits for that entry."""
    shelf = Shelf()
    pool = shelf.factory("pool", 0.01)

    @tool
    async def uses(ctx: ToolContext[Any]) -> str:
        return await ctx.resource(pool)

    agent = make_agent([uses], call_each(*["uses"] * 5))
    await run_mode(agent, "go")
    assert shelf.lines == ["enter pool", "leave pool"]
    assert set(read_shown_outputs(agent).values()) == {"pool1"}


async def test_resources_are_left_in_reverse_order(run_mode: Run) -> None:
    """The resource that was entered last is left first."""
    shelf = Shelf()
    one, two, three = (shelf.factory(name) for name in ("one", "two", "three"))

    @tool
    async def uses(ctx: ToolContext[Any]) -> str:
        for factory in (one, two, three):
            await ctx.resource(factory)
        return "used"

    await run_mode(make_agent([uses], call_each("uses")), "go")
    assert shelf.lines[3:] == ["leave three", "leave two", "leave one"]


async def test_each_run_has_its_own_entry(run_mode: Run) -> None:
    """Two runs of one agent at once don't share a resource."""
    shelf = Shelf()
    pool = shelf.factory("pool")
    both = [2]
    met = anyio.Event()

    @tool
    async def uses(ctx: ToolContext[Any]) -> str:
        value = await ctx.resource(pool)
        both[0] -= 1
        if not both[0]:
            met.set()
        await met.wait()
        return value

    async def once() -> None:
        await run_mode(make_agent([uses], call_each("uses")), "go")

    async with anyio.create_task_group() as group:
        group.start_soon(once)
        group.start_soon(once)
    assert sorted(shelf.lines) == ["enter pool"] * 2 + ["leave pool"] * 2
    assert shelf.lines[:2] == ["enter pool"] * 2


async def test_failing_entry_is_seen_by_its_waiters_and_tried_again_by_the_next(run_mode: Run) -> None:
    """Both calls of the first turn see the one failure; the call of the second turn gets the resource."""
    tries: list[int] = []

    @asynccontextmanager
    async def flaky() -> AsyncIterator[str]:
        tries.append(1)
        await anyio.sleep(0.01)
        if len(tries) == 1:
            raise ConnectionError("not yet")
        yield "pool"

    @tool
    async def uses(ctx: ToolContext[Any]) -> str:
        return await ctx.resource(flaky)

    agent = make_agent([uses], [call("uses", call_id="c1"), call("uses", call_id="c2")], call("uses", call_id="c3"))
    result = await run_mode(agent, "go")
    assert len(tries) == 2
    assert [status for _, status, _ in read_endings(result.calls)] == ["failed", "failed", "succeeded"]
    text = "Tool uses failed with: ConnectionError(not yet)"
    assert read_shown_outputs(agent, 1) == {"c1": text, "c2": text}


async def test_resource_is_entered_and_left_in_one_task(run_mode: Run) -> None:
    """A cancel scope held by the resource is legal: structured code may live in it."""

    @asynccontextmanager
    async def structured() -> AsyncIterator[Any]:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            yield group
            group.cancel_scope.cancel()

    @tool
    async def uses(ctx: ToolContext[Any]) -> str:
        await ctx.resource(structured)
        return "used"

    agent = make_agent([uses], call_each("uses", "uses"))
    result = await run_mode(agent, "go")
    assert [status for _, status, _ in read_endings(result.calls)] == ["succeeded", "succeeded"]


async def test_resource_is_usable_by_bodies_that_wind_up_and_left_after_them_on_cancel(run_mode: Run) -> None:
    """On a parent's cancel the exit comes after the bodies' cleanup, may await, and the run leaves after it."""
    started, shelf, watch = anyio.Event(), Shelf(), Watch()

    @asynccontextmanager
    async def pool() -> AsyncIterator[str]:
        try:
            yield "pool"
        finally:
            await anyio.sleep(0.01)
            shelf.lines.append("left")

    @tool
    async def uses(ctx: ToolContext[Any]) -> str:
        await ctx.resource(pool)
        started.set()
        try:
            await anyio.sleep(60)
        finally:
            with ctx.cleanup():
                await anyio.sleep(0.01)
                shelf.lines.append(f"cleaned up with {await ctx.resource(pool)}")
        return "never"

    agent = make_agent([uses], call_each("uses"))
    await cancel_when(started, lambda: run_mode(agent, "go", run_config=configure_run(watch)))
    assert shelf.lines == ["cleaned up with pool", "left"]
    assert watch.end == "cancelled"


async def test_resource_is_left_when_the_run_fails(run_mode: Run) -> None:
    """The resource is left before the error reaches the caller."""
    shelf = Shelf()
    pool = shelf.factory("pool")

    @tool(failure_error_function=None)
    async def uses(ctx: ToolContext[Any]) -> str:
        await ctx.resource(pool)
        raise ValueError("broken")

    with pytest.raises(Exception, match="broken"):
        await run_mode(make_agent([uses], call_each("uses")), "go")
    assert shelf.lines == ["enter pool", "leave pool"]


async def test_resource_is_left_when_the_run_times_out(run_mode: Run) -> None:
    """The resource is left although the run's deadline has passed."""
    shelf = Shelf()
    pool = shelf.factory("pool")

    @tool
    async def uses(ctx: ToolContext[Any]) -> str:
        await ctx.resource(pool)
        advance_clock(60)
        await anyio.sleep_forever()
        return "never"

    with pytest.raises(RunTimeoutError):
        await run_mode(make_agent([uses], call_each("uses")), "go", run_config=RunConfig(timeout=60))
    assert shelf.lines == ["enter pool", "leave pool"]


async def test_run_cancelled_while_a_resource_is_entered_gives_it_up(run_mode: Run, anyio_backend: Backend) -> None:
    """An entry that would take for ever is cancelled and awaited; what it had begun is undone."""
    entering, lines = anyio.Event(), []

    @asynccontextmanager
    async def slow() -> AsyncIterator[str]:
        entering.set()
        try:
            await anyio.sleep(60)
        finally:
            lines.append("given up")
        yield "never"

    @tool
    async def uses(ctx: ToolContext[Any]) -> str:
        return await ctx.resource(slow)

    async with check_duration(anyio_backend, 0):
        await cancel_when(entering, lambda: run_mode(make_agent([uses], call_each("uses")), "go"))
    assert lines == ["given up"]


async def test_call_cancelled_while_it_waits_for_an_entry_takes_nothing_from_the_others(run_mode: Run) -> None:
    """The entry is the run's, not the call's: the sibling gets it."""
    shelf = Shelf()
    entered = anyio.Event()

    @asynccontextmanager
    async def pool() -> AsyncIterator[str]:
        shelf.lines.append("enter")
        await entered.wait()
        yield "pool"
        shelf.lines.append("leave")

    @tool(timeout=0.02)
    async def impatient(ctx: ToolContext[Any]) -> str:
        try:
            return await ctx.resource(pool)
        finally:
            entered.set()

    @tool
    async def patient(ctx: ToolContext[Any]) -> str:
        return await ctx.resource(pool)

    agent = make_agent([impatient, patient], call_each("impatient", "patient"))
    result = await run_mode(agent, "go")
    assert [status for _, status, _ in read_endings(result.calls)] == ["timed_out", "succeeded"]
    assert shelf.lines == ["enter", "leave"]


@pytest.mark.scenario("DE-12")
async def test_failing_exit_fails_a_run_that_had_nothing_else_to_raise(run_mode: Run) -> None:
    """The other resources are left all the same; the last record says `failed`."""
    shelf, watch = Shelf(), Watch()
    outer, inner = shelf.factory("outer"), shelf.factory("inner")

    @asynccontextmanager
    async def broken() -> AsyncIterator[str]:
        yield "broken"
        raise ValueError("can't close")

    @tool
    async def uses(ctx: ToolContext[Any]) -> str:
        await ctx.resource(outer)
        await ctx.resource(broken)
        await ctx.resource(inner)
        return "used"

    with pytest.raises(ValueError, match="can't close"):
        await run_mode(make_agent([uses], call_each("uses")), "go", run_config=configure_run(watch))
    assert shelf.lines == ["enter outer", "enter inner", "leave inner", "leave outer"]
    assert watch.end == "failed"


@pytest.mark.scenario("DE-12")
async def test_failing_exit_is_secondary_to_another_error(run_mode: Run) -> None:
    """The run's own error leaves, the exit's error is a note on it."""

    @asynccontextmanager
    async def broken() -> AsyncIterator[str]:
        yield "broken"
        raise ValueError("can't close")

    @tool(failure_error_function=None)
    async def uses(ctx: ToolContext[Any]) -> str:
        await ctx.resource(broken)
        raise LookupError("first")

    with pytest.raises(Exception, match="first") as caught:
        await run_mode(make_agent([uses], call_each("uses")), "go")
    assert any("can't close" in note for note in caught.value.__notes__)


@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_exit_is_cut_at_the_cleanup_deadline_and_the_next_one_still_entered(
    run_mode: Run, anyio_backend: Backend
) -> None:
    """One deadline holds for all exits; the cut is recorded."""
    started, watch = anyio.Event(), Watch()

    @asynccontextmanager
    async def slow() -> AsyncIterator[str]:
        try:
            yield "slow"
        finally:
            await anyio.sleep(60)

    @tool
    async def uses(ctx: ToolContext[Any]) -> str:
        await ctx.resource(slow)
        started.set()
        await anyio.sleep(60)
        return "never"

    agent = make_agent([uses], call_each("uses"))
    async with check_duration(anyio_backend, 0.2):
        await cancel_when(started, lambda: run_mode(agent, "go", run_config=configure_run(watch, cleanup_grace=0.2)))
    assert [record.section for record in watch.of(r.CleanupCut)] == ["resource exit"]
    assert watch.end == "cancelled"


async def test_nested_run_uses_its_own_entry_and_leaves_it_with_its_call(run_mode: Run) -> None:
    """The resource is entered once for the outer run and once for the nested one, which is left first."""
    shelf = Shelf()

    @asynccontextmanager
    async def pool() -> AsyncIterator[str]:
        shelf.lines.append("enter")
        try:
            yield "pool"
        finally:
            shelf.lines.append("leave")

    @tool
    async def uses(ctx: ToolContext[Any]) -> str:
        shelf.lines.append("use")
        return await ctx.resource(pool)

    inner: Agent[Any, Any] = Agent("inner", model=ScriptedModel([call("uses"), say("inner done")]), tools=[uses])
    agent = make_agent(
        [uses, inner.as_tool()],
        call("uses", call_id="c1"),
        call("inner", {"input": "go"}, call_id="c2"),
        call("uses", call_id="c3"),
    )
    await run_mode(agent, "go")
    assert shelf.lines == ["use", "enter", "use", "enter", "leave", "use", "leave"]


async def test_resource_that_ends_by_itself_is_not_handed_out_any_more() -> None:
    """A base exception of a resource's own leaves the run bare, not as a group."""
    watch = Watch()

    @asynccontextmanager
    async def fatal() -> AsyncIterator[str]:
        if watch.records:
            raise SystemExit(3)
        yield "never"

    @tool
    async def uses(ctx: ToolContext[Any]) -> str:
        return await ctx.resource(fatal)

    with pytest.raises(SystemExit):
        await Runner.run(make_agent([uses], call_each("uses")), "go", run_config=configure_run(watch))


async def ended_while_entering(
    factory: Callable[[], AbstractAsyncContextManager[Any]], *, begun: bool, then: Callable[[], None] = lambda: None
) -> list[str]:
    """End a run while a resource is being entered, or before the task for that has *begun*; return what was cut."""
    tasks: list[Callable[[], Awaitable[None]]] = []
    cut: list[str] = []
    resources = Resources()
    resources.host = Tasks(tasks)

    async def use() -> None:
        with pytest.raises(RuntimeError, match="the run ended while a resource was being entered"):
            await resources.get(factory)

    async def end() -> None:
        assert await resources.close(Cleanup(5), cut.append) == []

    async with anyio.create_task_group() as group:
        group.start_soon(use)
        await anyio.wait_all_tasks_blocked()
        (host,) = tasks
        for step in (host, end) if begun else (end, host):
            group.start_soon(step)
            await anyio.wait_all_tasks_blocked()
        then()
    return cut


async def test_resource_whose_task_has_not_begun_when_the_run_ends_is_not_entered() -> None:
    """The run has ended and needs the resource no more, and a resource that was not entered needn't be left."""
    shelf = Shelf()
    cut = await ended_while_entering(shelf.factory("pool"), begun=False)
    assert (shelf.lines, cut) == ([], [])


async def test_resource_that_is_entered_although_it_is_given_up_is_said_to_be_cut() -> None:
    """The resource's entry can't be interrupted, so the resource is left, but with no time for that."""
    entered, left = anyio.Event(), []

    @asynccontextmanager
    async def stubborn() -> AsyncIterator[str]:
        with anyio.CancelScope(shield=True):
            await entered.wait()
        try:
            yield "nobody's"
        finally:
            left.append("begins to leave")
            await anyio.sleep(1)
            left.append("left")

    cut = await ended_while_entering(stubborn, begun=True, then=entered.set)
    assert left == ["begins to leave"]
    assert cut == ["resource exit"]


# ------------------------------------------------------------------------------------------ shared resources


def sharing(shelf: Shelf, factory: Any) -> Agent[Any, Any]:
    """Return an agent whose instructions, and whose nested agent's, use a shared resource."""

    async def instructions(ctx: RunContext[Any], agent: Any) -> str:
        return str(await ctx.shared_resource(factory))

    inner = Agent("inner", model=ScriptedModel([say("in")]), instructions=instructions)
    script = ScriptedModel([call("inner", {"input": "x"}), say("out")])
    return Agent("outer", model=script, instructions=instructions, tools=[inner.as_tool()])


async def test_shared_resource_is_one_for_a_run_and_its_nested_ones(run_mode: Run) -> None:
    """The outermost run leaves it at its end."""
    shelf = Shelf()
    pool = shelf.factory("pool")
    for _ in range(2):
        await run_mode(sharing(shelf, pool), "go")
    assert shelf.lines == ["enter pool", "leave pool"] * 2


async def test_shared_resource_of_a_runtime_outlives_its_runs(run_mode: Run) -> None:
    """The runtime leaves it at the end of its block; an error of the block leaves it bare."""
    shelf = Shelf()
    pool = shelf.factory("pool")
    with pytest.raises(ZeroDivisionError):
        async with open_runtime():
            for _ in range(2):
                await run_mode(sharing(shelf, pool), "go")
            assert shelf.lines == ["enter pool"]
            raise ZeroDivisionError
    assert shelf.lines == ["enter pool", "leave pool"]


async def test_shared_resource_that_fails_in_its_exit_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """There is no run whose error it could be."""

    @asynccontextmanager
    async def broken() -> AsyncIterator[int]:
        yield 1
        raise ValueError("no exit")

    async with open_runtime():
        await Runner.run(sharing(Shelf(), broken), "go")
    assert "a resource of the runtime failed in its exit: ValueError(no exit)" in caplog.text


async def test_cancelled_block_of_a_runtime_leaves_its_resources() -> None:
    """Shielded; the cancellation goes on."""
    shelf = Shelf()
    pool = shelf.factory("pool")
    with anyio.CancelScope() as scope:
        async with open_runtime():
            await Runner.run(sharing(shelf, pool), "go")
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert shelf.lines == ["enter pool", "leave pool"]


async def test_shared_resource_needs_a_run() -> None:
    """A context made by hand has nobody to hold it."""
    with pytest.raises(UserError, match="works only inside a run"):
        await RunContext(context=None).shared_resource(Shelf().factory("pool"))
