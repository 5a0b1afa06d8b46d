"""Replay of runs that were ended from outside at every moment: by their caller, and by the timeouts around them."""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest

from agentloop import Agent, RunConfig, RunHooks, Runner, RunTimeoutError, ToolExecution, ToolTimeoutError, tool
from agentloop import records as r
from agentloop.abc import Instrument
from agentloop.sessions import MemorySession
from agentloop.testing import FunctionModel, World, call, run_deterministic, run_one, say
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


# ------------------------------------------------------------------------------------------------ the caller


class Cancels(Instrument):
    """An instrument that keeps the records of a run, and cancels the run in the step of the record with a number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.records: list[Any] = []
        self.cancel: Callable[[], object] = lambda: None

    def on_record(self, record: Any) -> None:
        """Keep *record*, and cancel the run if it is the one."""
        self.records.append(record)
        if len(self.records) == self.number + 1:
            self.cancel()


class Waiting(RunHooks):
    """Hooks that let the other tasks run."""

    async def on_agent_start(self, *given: Any) -> None:
        """Wait."""
        await anyio.lowlevel.checkpoint()

    async def on_llm_end(self, *given: Any) -> None:
        """Wait."""
        await anyio.lowlevel.checkpoint()

    async def on_tool_end(self, *given: Any) -> None:
        """Wait."""
        await anyio.lowlevel.checkpoint()


def cancelled_at(number: int, agent: Any, backend: Any, kind: str, *, streamed: bool, options: Any) -> list[Any]:
    """Run *agent* on *backend*, cancelled in the step of record *number*, and return its records."""
    cancels = Cancels(number)
    given = {name: value() if callable(value) else value for name, value in options.items()}
    config: Any = given.pop("run_config", RunConfig())

    async def work() -> None:
        watched = RunConfig(timeout=config.timeout, tool_execution=config.tool_execution, instruments=[cancels])
        if not streamed:
            await Runner.run(agent, "go", run_config=watched, **given)
            return
        async with Runner.run_streamed(agent, "go", run_config=watched, **given) as stream:
            async for _ in stream:
                pass

    async def main() -> None:
        with anyio.CancelScope() as scope:
            cancels.cancel = scope.cancel
            if kind == "scope":
                return await work()
            task = asyncio.ensure_future(work())
            cancels.cancel = task.cancel
            await asyncio.wait([task])
        return None

    with suppress(RunTimeoutError, ToolTimeoutError):
        run_deterministic(main, backend=backend)
    return cancels.records


def simple(request: Any) -> Any:
    """Answer with two calls, then with a text."""
    return [call("quick", call_id="c1"), call("slow", call_id="c2")] if request.turn == 1 else say("done")


def outer(request: Any) -> Any:
    """Answer with a call of an agent beside another one, then with a text."""
    calls = [call("inner", {"input": "x"}, call_id="n"), call("slow", call_id="s")]
    return calls if request.turn == 1 else say("done")


def of_two() -> Any:
    """Return an agent that calls two tools."""
    return Agent("a", tools=[quick, slow], model=FunctionModel(simple))


def of_nested() -> Any:
    """Return an agent that calls an agent."""
    return Agent("a", tools=[of_two().as_tool("inner", "Do."), slow], model=FunctionModel(outer))


@tool(timeout=0.5, timeout_behavior="raise_exception")
async def late() -> str:
    """Take too long."""
    await anyio.sleep_forever()
    return "never"


def of_late() -> Any:
    """Return an agent that calls a tool whose timeout is an error, and then others."""
    calls = [call("late", call_id="c0"), call("slow", call_id="c1"), call("slow", call_id="c2")]
    return Agent("a", tools=[late, slow], model=FunctionModel(lambda _: calls))


ONE_BY_ONE = RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=1))
PROGRAMS: Any = {
    "two": (of_two, {}),
    "session": (of_two, {"session": MemorySession}),
    "hooks": (of_two, {"hooks": Waiting}),
    "hooks and session": (of_two, {"hooks": Waiting, "session": MemorySession}),
    "timeout": (of_two, {"run_config": RunConfig(timeout=0.5)}),
    "failure": (of_late, {"run_config": ONE_BY_ONE}),
    "one by one": (of_two, {"run_config": ONE_BY_ONE}),
    "nested": (of_nested, {}),
    "nested, hooks and session": (of_nested, {"hooks": Waiting, "session": MemorySession}),
}


@pytest.mark.parametrize("session", [None, MemorySession])
@pytest.mark.parametrize(("backend", "kind"), WAYS)
def test_run_that_was_cancelled_in_a_hook_behind_the_answer_of_its_model(backend: Any, kind: str, session: Any) -> None:
    """It ends in the hook, before it plans its calls: none of them is settled, unlike in a run without hooks."""
    options: Any = {"hooks": Waiting, **({} if session is None else {"session": session})}
    records = cancelled_at(3, of_two(), backend, kind, streamed=False, options=options)
    kinds = [type(one).__name__ for one in records if not isinstance(one, r.SessionSaved)]
    assert kinds == ["RunStarted", "TurnStarted", "ModelRequested", "ModelResponded", "CancelRequested", "RunEnded"]
    comes_out_the_same(records, of_two())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("backend", "kind"), WAYS)
def test_cancellation_in_the_step_that_notes_a_deadline(backend: Any, kind: str, streamed: bool) -> None:
    """It has precedence, so the call names the caller, before or after the log has the cancellation."""
    make, options = PROGRAMS["timeout"]
    records = cancelled_at(7, make(), backend, kind, streamed=streamed, options=options)
    assert isinstance(records[7], r.DeadlinePassed)
    settled = [one.outcome.cancelled_by for one in records[7:] if isinstance(one, r.CallSettled)]
    assert settled == ["parent"]
    assert any(isinstance(one, r.CancelRequested) for one in records)
    comes_out_the_same(records, make(), options["run_config"])


@pytest.mark.parametrize("kind", ["scope", "native"])
def test_cancellation_that_is_noticed_between_a_failure_and_the_stop_of_its_batch(kind: str) -> None:
    """The owner of the batch was ready to stop it: the calls that wait name the failed one, in spite of the end."""
    make, options = PROGRAMS["failure"]
    records = cancelled_at(5, make(), "asyncio", kind, streamed=False, options=options)
    assert [type(one).__name__ for one in records[5:7]] == ["CallSettled", "CancelRequested"]
    settled = [one.outcome.cancelled_by for one in records[6:] if isinstance(one, r.CallSettled)]
    assert settled == ["sibling", "sibling"]
    comes_out_the_same(records, make(), options["run_config"])


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("backend", "kind"), WAYS)
def test_cancellation_in_the_step_of_each_record(backend: Any, kind: str, program: str) -> None:
    """Whatever the record is: what the run still does, and what not, is in the log."""
    make, options = PROGRAMS[program]
    count = len(cancelled_at(-1, make(), backend, kind, streamed=False, options=options))
    for number in range(count):
        records = cancelled_at(number, make(), backend, kind, streamed=number % 2 == 1, options=options)
        comes_out_the_same(records, make(), options.get("run_config"), on=[BACKENDS[number // 2 % 2]])


@pytest.mark.parametrize("order", ["passes", "steps"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_nested_run_that_its_calls_timeout_ended_has_no_deadline_of_its_own(backend: Any, order: Any) -> None:
    """Both pass in one moment, as does another nested run's: the log tells which of them ended the run."""
    half = RunConfig(timeout=0.5)

    def make(name: str, body: Any, timeout: float | None) -> Any:
        model = FunctionModel(lambda _: call(body.name, call_id="c"))
        return Agent(name, tools=[body], model=model).as_tool(name, "Do.", run_config=half, timeout=timeout)

    agent: Agent[Any, Any] = Agent("a", tools=[make("late", cleans, 0.5), make("soon", waits, None)])
    turn = [call("late", {"input": "x"}, "c1"), call("soon", {"input": "x"}, "c2")]
    seen = run_one(World(agent=agent, script=[turn, say("done")], order=order), backend=backend)
    ends = {one.path: one.status for one in seen.records if isinstance(one, r.RunEnded)}
    assert ends == {("c1",): "cancelled", ("c2",): "failed", (): "completed"}
    for other in BACKENDS:
        assert replay(seen.records, agent, backend=other).records == seen.records
