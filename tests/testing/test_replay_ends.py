"""Replay of runs that were ended from outside at every moment: by their caller, and by the timeouts around them."""

import itertools
from functools import partial
from typing import Any

import anyio
import pytest

from agentloop import Agent, RunConfig, tool
from agentloop import records as r
from agentloop.testing import FunctionModel, World, call, run_one, say
from agentloop.testing.replaying import replay

BACKENDS: Any = ("asyncio", "trio")
WAYS: Any = (("asyncio", "scope"), ("asyncio", "native"), ("trio", "scope"))
"""Backends and kinds of a caller's cancellation: trio has scopes only."""


@tool
async def quick() -> str:
    """Answer."""
    return "ok"


@tool
async def slow() -> str:
    """Answer later."""
    await anyio.sleep(1)
    return "ok"


@tool
async def waits() -> str:
    """Wait to be ended."""
    await anyio.sleep_forever()
    return "never"


@tool
async def cleans() -> str:
    """Wait to be ended, and take some time for it."""
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.1)
    return "never"


def comes_out_the_same(records: Any, agent: Any, config: RunConfig | None = None, on: Any = BACKENDS) -> None:
    """Replay *records* on the backends *on*."""
    for backend in on:
        assert replay(records, agent, run_config=config or RunConfig(), backend=backend).records == tuple(records)


# ------------------------------------------------------------------------------------------------ timeouts

TIMES: Any = {"own": (0.5, None), "late": (0.5, 0.55), "early": (0.55, 0.5)}
"""The timeouts of a nested run and of its call: a body that ends late lets both of them pass."""


def ask_once(name: str, request: Any) -> Any:
    """Answer with a call of the tool *name*, then with a text."""
    return call(name, call_id="b") if request.turn == 1 else say("x")


def nest(kinds: Any, bodies: Any) -> World:
    """Return a world whose agent calls several agents, each with timeouts of a kind and the call of one body."""
    tools: list[Any] = []
    turn: list[Any] = []
    for number, (kind, body) in enumerate(zip(kinds, bodies, strict=True)):
        timeout, around = TIMES[kind]
        model = FunctionModel(partial(ask_once, body.name))
        inner: Any = Agent(f"in{number}", tools=[body], model=model)
        tools.append(inner.as_tool(f"in{number}", "Do.", run_config=RunConfig(timeout=timeout), timeout=around))
        turn.append(call(f"in{number}", {"input": "x"}, call_id=f"n{number}"))
    return World(agent=Agent("a", tools=tools), script=[turn, say("done")])


def ends_the_same(kinds: Any, bodies: Any, backend: Any, order: Any, chosen: int, on: Any = BACKENDS) -> Any:
    """Record that world on *backend*, replay it on the backends *on*, and return the records."""
    world = nest(kinds, bodies)
    world = World(agent=world.agent, script=world.script, order=order)
    records = run_one(world, backend=backend, scheduler=lambda labels: chosen % len(labels)).records
    comes_out_the_same(records, world.agent, on=on)
    return records


@pytest.mark.parametrize("kinds", [["late"], ["own", "late"], ["late", "late"]])
@pytest.mark.parametrize("backend", BACKENDS)
def test_timeout_of_a_call_that_passes_while_its_nested_run_ends_by_its_own(backend: Any, kinds: Any) -> None:
    """The calls of the nested run were ended by its deadline, and the run itself by its call, while it cleaned up."""
    records = ends_the_same(kinds, [cleans] * len(kinds), backend, "steps", 0)
    path = (f"n{len(kinds) - 1}",)
    settled = next(one for one in records if isinstance(one, r.CallSettled) and one.path == path)
    ended = next(one for one in records if isinstance(one, r.RunEnded) and one.path == path)
    assert (settled.outcome.cancelled_by, ended.status) == ("deadline", "cancelled")


@pytest.mark.slow
@pytest.mark.parametrize("order", ["passes", "steps"])
@pytest.mark.parametrize("chosen", [0, -1])
def test_timeouts_of_nested_runs_and_of_their_calls(chosen: int, order: Any) -> None:
    """In each order of the two, with bodies that end at once or late, alone and beside another one."""
    for count in (1, 2):
        drawn = itertools.product(
            itertools.product(TIMES, repeat=count), itertools.product((waits, cleans), repeat=count)
        )
        for number, (kinds, bodies) in enumerate(drawn):
            backend, other = BACKENDS[number % 2], BACKENDS[number // 2 % 2]
            ends_the_same(kinds, bodies, backend, order, chosen, on=[other])
