"""Bodies that cancel themselves in every way there is, while the caller is cancelled at every step.

Either the turn is accepted with exactly the outcomes that its bodies deserve, or the caller's cancellation propagates
and nothing is accepted. There is no third way.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import configure_run
from kit.watching import Watch
from sweeps.stepping import COMBINATIONS, Kind, Program, Stepped, run_once

from agentloop import Agent, Runner, ToolContext, tool
from agentloop import records as r
from agentloop.testing import ScriptedModel, call, say

NAMES = ("raises", "own_task", "leaks", "inner", "fine")
ACCEPTED = {
    "raises": ("cancelled", "tool"),
    "own_task": ("cancelled", "tool"),
    "leaks": ("cancelled", "tool"),
    "inner": ("succeeded", None),
    "fine": ("succeeded", None),
}


def _native_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


async def raises() -> str:
    """Raise asyncio's cancellation by hand: on trio an exception like any other that means one."""
    await anyio.sleep(0.02)
    raise asyncio.CancelledError("by hand")


async def own_task() -> str:
    """Cancel the task the body runs in."""
    await anyio.sleep(0.01)
    task = _native_task()
    if task is None:
        raise asyncio.CancelledError("there is no such thing on trio")
    task.cancel()
    await anyio.sleep(1)
    return "never"


async def leaks() -> str:
    """Let the cancellation of an inner scope out."""
    await anyio.sleep(0.01)
    kept: BaseException | None = None
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.sleep(1)
        except BaseException as error:
            kept = error
            raise
    assert kept is not None
    raise kept


async def inner() -> str:
    """Use a scope of the body's own, as anyone may."""
    with anyio.move_on_after(0.005):
        await anyio.sleep(1)
    await anyio.sleep(0.01)
    return "inner"


async def fine() -> str:
    """Succeed."""
    await anyio.sleep(0.02)
    await anyio.lowlevel.checkpoint()
    return "fine"


BODIES: dict[str, Callable[[], Awaitable[str]]] = {
    "raises": raises,
    "own_task": own_task,
    "leaks": leaks,
    "inner": inner,
    "fine": fine,
}


def prepared(names: tuple[str, ...], watch: Watch, cap: int | None) -> Program:
    """Return a run whose first turn calls *names* and whose second says something."""
    model = ScriptedModel([[call(name, call_id=name) for name in names], say("done")])
    agent: Agent[Any, Any] = Agent("swept", model=model, tools=[tool(name=name)(body) for name, body in BODIES.items()])
    config = configure_run(watch, max_function_tool_concurrency=cap)

    async def program() -> Any:
        return await Runner.run(agent, "go", run_config=config)

    return program


def check(seen: Stepped, watch: Watch, names: tuple[str, ...], native: bool = False) -> None:
    """Accept the turn with what its bodies deserve, or a cancellation that propagated; nothing else."""
    where = f"cancelled at {seen.cancelled_at}"
    assert seen.error is None, f"{where}: {seen.error!r}"
    assert seen.tasks_left == [], where
    assert not seen.cancelled or seen.cancelled_at is not None, "cancelled although nobody asked for it"
    assert seen.cancelling == int(native and seen.cancelled), where
    accepted = bool(watch.of(r.BatchEnded))
    if seen.completed:
        assert accepted, where
    if accepted:
        assert watch.endings() == {name: ACCEPTED[name] for name in names}, where
    else:
        assert seen.cancelled, f"{where}: neither a result nor a cancellation"
    started = [record.call_id for record in watch.of(r.CallStarted)]
    settled = [record.call_id for record in watch.of(r.CallSettled)]
    assert len(set(started)) == len(started), where
    assert len(set(settled)) == len(settled), where
    assert set(started) <= set(settled), where


@pytest.mark.slow
@pytest.mark.scenario("TC-01", "TC-04", "LX-24")
@pytest.mark.parametrize(("backend", "kind"), COMBINATIONS)
@pytest.mark.parametrize("cap", [None, 3])
def test_a_turn_is_accepted_as_its_bodies_deserve_or_the_cancellation_propagates(
    backend: str, kind: Kind, cap: int | None
) -> None:
    """All bodies are in one turn, and the caller is cancelled at every step, in several task orders."""
    cancelled = 0
    for seed in (None, 1, 2, 3):
        at = 0
        while True:
            watch = Watch()
            seen = run_once(backend, prepared(NAMES, watch, cap), at=at, kind=kind, seed=seed)
            check(seen, watch, NAMES, kind == "native")
            if seen.cancelled_at is None:
                break
            cancelled += seen.cancelled
            at += 1
    assert cancelled > 60


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "kind"), COMBINATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_a_single_call_is_classified_as_one_among_siblings(backend: str, kind: Kind, name: str) -> None:
    """The classes are the same with one call in the turn."""
    at = 0
    while True:
        watch = Watch()
        seen = run_once(backend, prepared((name,), watch, None), at=at, kind=kind)
        check(seen, watch, (name,), kind == "native")
        if seen.cancelled_at is None:
            assert seen.completed
            return
        at += 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("seed", range(10))
def test_self_cancelling_bodies_have_the_same_outcomes_in_every_task_order(backend: str, seed: int) -> None:
    """Without a parent's cancel no outcome depends on the order of the tasks."""
    for order in (NAMES, NAMES[::-1], ("fine", "own_task", "raises", "inner", "leaks")):
        watch = Watch()
        seen = run_once(backend, prepared(order, watch, 2 if seed % 2 else None), at=None, seed=seed)
        assert seen.completed
        check(seen, watch, order)


async def test_cancel_call_and_parent_in_one_pass_end_as_the_parents(anyio_backend: Any) -> None:
    """Both scopes are cancelled before the body runs again: precedence decides, not chance."""
    for first in ("call", "parent"):
        watch = Watch()

        @tool
        async def torn(ctx: ToolContext[Any], first: str = first) -> str:
            steps: list[Callable[[], Any]] = [lambda: ctx.cancel_call(ctx.tool_call_id), scope.cancel]
            for step in steps if first == "call" else steps[::-1]:
                step()
            await anyio.sleep(1)
            return "never"

        agent: Agent[Any, Any] = Agent(
            "swept", model=ScriptedModel([call("torn", call_id="c1"), say("done")]), tools=[torn]
        )
        with anyio.CancelScope() as scope:
            await Runner.run(agent, "go", run_config=configure_run(watch))
        assert watch.endings() == {"c1": ("cancelled", "parent")}
