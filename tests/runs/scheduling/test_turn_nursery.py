"""The nursery of a turn's calls: what bodies see of the scopes around the run, and how its owner's end reaches them."""

import asyncio
import math
from contextlib import suppress
from contextvars import copy_context
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from kit.watching import Watch

from agentloop import Agent, RunConfig, Runner, tool
from agentloop import records as r
from agentloop._concurrency import nursery as nursery_module
from agentloop._concurrency.backend import enclosing_cancelled, innermost_nursery
from agentloop._concurrency.nursery import Nursery, find_scope_class, new_nursery
from agentloop.testing import ScriptedModel, call, say


def agent_of(*tools: Any, calls: int = 1) -> Agent[Any, Any]:
    """Return an agent whose model calls each tool *calls* times and is done."""
    asked = [call(one.name, {}, f"{one.name}{n}") for one in tools for n in range(calls)]
    return Agent("a", model=ScriptedModel([asked, say("done")]), tools=list(tools))


async def test_body_sees_the_deadline_around_the_run(run_mode: Any) -> None:
    """A body that plans its work by the time left finds the caller's deadline, in a nested scope too."""
    seen: list[float] = []

    @tool
    async def look() -> str:
        seen.append(anyio.current_effective_deadline())
        with anyio.CancelScope(deadline=anyio.current_time() + 1000):  # noqa: ASYNC100 - only what is seen counts
            seen.append(anyio.current_effective_deadline())
        with anyio.CancelScope(shield=True):  # noqa: ASYNC100 - as above
            seen.append(anyio.current_effective_deadline())
        return "x"

    with anyio.fail_after(50) as scope:
        await run_mode(agent_of(look), "go")
    assert seen == [scope.deadline, scope.deadline, math.inf]


async def test_body_sees_the_earlier_of_its_own_deadline_and_the_one_around(run_mode: Any) -> None:
    """The tool's timeout and the caller's deadline are both shown: the earlier one counts."""
    seen: list[float] = []

    @tool(timeout=10)
    async def look() -> str:
        seen.append(anyio.current_effective_deadline() - anyio.current_time())
        return "x"

    with anyio.fail_after(50):
        await run_mode(agent_of(look), "go")
    with anyio.fail_after(5):
        await run_mode(agent_of(look), "go")
    assert 5 < seen[0] <= 10
    assert 0 < seen[1] <= 5


@pytest.mark.backends("asyncio-virtual", "trio-virtual")
async def test_postponed_deadline_does_not_end_a_body(run_mode: Any) -> None:
    """The caller's scope enforces its deadline, as it is when it passes; what a body was shown before doesn't."""
    scope = anyio.CancelScope(deadline=anyio.current_time() + 2)

    @tool
    async def work() -> str:
        scope.deadline = anyio.current_time() + 1000
        await anyio.sleep(4)
        return "x"

    with scope:
        result = await run_mode(agent_of(work, calls=2), "go")
    assert result.final_output == "done"
    assert not scope.cancelled_caught


@pytest.mark.backends("asyncio-virtual", "trio-virtual")
async def test_call_starts_after_the_deadline_it_was_shown_if_that_was_postponed(run_mode: Any) -> None:
    """The second call begins when the first shown deadline is over."""
    scope = anyio.CancelScope(deadline=anyio.current_time() + 2)
    watch = Watch()

    @tool(serial="one")
    async def work() -> str:
        scope.deadline = anyio.current_time() + 1000
        await anyio.sleep(4)
        return "x"

    with scope:
        await run_mode(agent_of(work, calls=2), "go", run_config=RunConfig(instruments=(watch,)))
    assert [record.outcome.status for record in watch.of(r.CallSettled)] == ["succeeded"] * 2


async def test_deadline_that_is_moved_forward_ends_bodies(run_mode: Any) -> None:
    """A deadline that is set while bodies run ends them."""
    watch = Watch()
    with anyio.CancelScope() as scope:

        @tool
        async def work() -> str:
            scope.deadline = anyio.current_time() + 0.01
            await anyio.sleep_forever()
            return "never"

        await run_mode(agent_of(work), "go", run_config=RunConfig(instruments=(watch,)))
    assert scope.cancelled_caught
    (settled,) = watch.of(r.CallSettled)
    assert (settled.outcome.status, settled.outcome.cancelled_by) == ("cancelled", "parent")


@pytest.mark.backends("asyncio")
async def test_run_is_the_same_under_a_task_factory() -> None:
    """A task factory may run a task before it is registered: anyio's own group takes the calls then."""
    made: list[asyncio.Task[Any]] = []

    def factory(loop: Any, coro: Any, **options: Any) -> Any:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        made.append(task)
        return task

    @tool
    async def work() -> str:
        await anyio.lowlevel.checkpoint()
        return "x"

    asyncio.get_running_loop().set_task_factory(factory)
    try:
        result = await Runner.run(agent_of(work, calls=3), "go")
    finally:
        asyncio.get_running_loop().set_task_factory(None)
    assert result.final_output == "done"
    assert len([task for task in made if task.get_name().startswith("agentloop call work")]) == 3


@pytest.mark.backends("asyncio")
async def test_scopes_that_cannot_show_a_deadline_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of anyio that doesn't read the public property gets its own group."""
    find = find_scope_class.__wrapped__
    assert find() is not None
    monkeypatch.setattr(anyio, "current_effective_deadline", lambda: math.inf)
    assert find() is None


# ------------------------------------------------------------------------------------------------ the nursery itself


@pytest.fixture
def _bare_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use bare tasks also where `--anyio-nursery` is given."""
    monkeypatch.setattr(nursery_module, "find_scope_class", find_scope_class)


@attrs.define(eq=False)
class Part:
    """A member that does *work*."""

    work: Any
    scope: Any = None
    caught: bool = False


async def do(part: Part) -> None:
    """Do a member's work in its scope."""
    with part.scope:
        await part.work()
    part.caught = part.scope.cancelled_caught


def start(nursery: Nursery, *parts: Part) -> None:
    """Start members as a batch does."""
    for part in parts:
        part.scope = nursery.new_scope()
        nursery.start(do, part, "part")


@attrs.define(eq=False)
class Calls:
    """The owner of members, none of which may be lost unless that is *told*."""

    told: list[str] | None = None

    def _lose_task(self) -> None:
        assert self.told is not None
        self.told.append("lost")


@pytest.mark.backends("asyncio")
@pytest.mark.usefixtures("_bare_tasks")
async def test_error_of_a_member_cancels_the_others_and_leaves_bare() -> None:
    """Members don't raise; a fault in the engine that makes one raise must not be lost."""

    async def fails() -> None:
        raise ZeroDivisionError

    other = Part(anyio.sleep_forever)
    with pytest.raises(ZeroDivisionError):
        async with new_nursery(Calls()._lose_task, copy_context()) as nursery:
            start(nursery, other, Part(fails))
    assert other.caught


@pytest.mark.backends("trio")
async def test_error_of_a_member_leaves_trios_nursery_in_a_group() -> None:
    """As trio raises it: a group of cancellations alone is raised as one."""

    async def fails() -> None:
        raise ZeroDivisionError

    other = Part(anyio.sleep_forever)
    with pytest.raises(ExceptionGroup) as raised:
        async with new_nursery(Calls()._lose_task, copy_context()) as nursery:
            start(nursery, other, Part(fails))
    assert raised.group_contains(ZeroDivisionError)


@pytest.mark.backends("asyncio")
@pytest.mark.usefixtures("_bare_tasks")
async def test_error_of_the_owner_cancels_the_members() -> None:
    """The owner's error leaves when every member has ended, in spite of native cancellations meanwhile."""
    ended = []

    async def cleans_up() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                owner.cancel()
                await anyio.sleep(0.01)
                ended.append(True)

    owner: Any = asyncio.current_task()
    part = Part(cleans_up)
    with pytest.raises(ZeroDivisionError):
        async with new_nursery(Calls()._lose_task, copy_context()) as nursery:
            start(nursery, part)
            await anyio.lowlevel.checkpoint()
            raise ZeroDivisionError
    assert ended == [True]
    assert part.caught
    assert owner.uncancel() == 0


@pytest.mark.backends("asyncio")
@pytest.mark.usefixtures("_bare_tasks")
async def test_cancellation_at_the_end_of_the_block_reaches_the_members() -> None:
    """The owner is cancelled while it waits for tasks that have nothing more to tell it."""
    part = Part(anyio.sleep_forever)
    with anyio.CancelScope() as scope:
        async with new_nursery(Calls()._lose_task, copy_context()) as nursery:
            start(nursery, part)
            scope.deadline = anyio.current_time() + 0.01
    assert part.caught
    assert scope.cancelled_caught


@pytest.mark.backends("asyncio")
@pytest.mark.usefixtures("_bare_tasks")
async def test_cancellation_of_the_owner_is_seen_in_the_same_step_on_every_level() -> None:
    """No code of a nested run may take a cancellation of the outer run, which is on its way, for something else."""
    seen: list[bool] = []
    inner = Part(anyio.sleep_forever)
    with anyio.CancelScope() as scope:

        async def nests() -> None:
            async with new_nursery(Calls()._lose_task, copy_context()) as nursery:
                start(nursery, inner)
                await nursery.wait(math.inf)

        async def looks() -> None:
            for _ in range(4):  # until all have begun to wait
                await anyio.lowlevel.checkpoint()
            assert not enclosing_cancelled()
            scope.cancel()
            assert anyio.current_effective_deadline() == math.inf
            seen.append(enclosing_cancelled())
            seen.append(inner.scope.cancel_called)
            with anyio.CancelScope(shield=True):  # noqa: ASYNC100 - as above
                seen.append(enclosing_cancelled())

        outer = Part(nests)
        async with new_nursery(Calls()._lose_task, copy_context()) as nursery:
            start(nursery, outer, Part(looks))
            await nursery.wait(math.inf)
    assert seen == [True, True, False]
    assert outer.caught
    assert inner.caught


@pytest.mark.backends("asyncio")
@pytest.mark.usefixtures("_bare_tasks")
async def test_member_started_late_or_between_two_scopes_is_cancelled_too() -> None:
    """A member of a nursery that is being cancelled finds each of its scopes cancelled."""

    async def starts_another() -> None:
        with suppress(asyncio.CancelledError):
            await anyio.sleep_forever()
        start(nursery, late)
        part = Part(None)
        with nursery.settling(part):
            await anyio.sleep_forever()
        assert part.scope.cancelled_caught

    late = Part(anyio.sleep_forever)
    with anyio.move_on_after(0.01):
        async with new_nursery(Calls()._lose_task, copy_context()) as nursery:
            start(nursery, Part(starts_another))
    assert late.caught
    assert not innermost_nursery.get()


@pytest.mark.backends("asyncio")
@pytest.mark.usefixtures("_bare_tasks")
async def test_member_cancelled_before_its_first_step_is_reported() -> None:
    """Other code of the loop cancels a task that has not begun: the others are cancelled and the owner is told."""
    told: list[str] = []
    with_first_step, without = Part(anyio.sleep_forever), Part(anyio.sleep_forever)
    async with new_nursery(Calls(told)._lose_task, copy_context()) as nursery:
        start(nursery, with_first_step)
        await anyio.lowlevel.checkpoint()
        before = asyncio.all_tasks()
        start(nursery, without)
        for task in asyncio.all_tasks() - before:
            task.cancel()
    assert told == ["lost"]
    assert with_first_step.caught
