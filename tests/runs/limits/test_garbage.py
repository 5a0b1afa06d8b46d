"""A run leaves nothing that waits for the garbage collector, because a thousand runs would feed it."""

import asyncio
import gc
import threading
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agentloop import Agent, Capacity, Instrument, RunConfig, RunHooks, Runner, tool
from agentloop.exceptions import RunTimeoutError
from agentloop.journal import MemoryJournal
from agentloop.records import CallSettled
from agentloop.testing import ScriptedModel, call, say

Job = Callable[[], Awaitable[None]]


@tool
async def work(x: int) -> str:
    """Do some work."""
    await anyio.lowlevel.checkpoint()
    return "ok"


@tool(timeout=0.001)
async def dawdle(x: int) -> str:
    """Take too long."""
    await anyio.sleep(60)
    return "late"


@tool
async def doze(x: int) -> str:
    """Sleep for long."""
    await anyio.sleep(60)
    return "late"


_CURRENT: ContextVar[Any] = ContextVar("current")


class Quiet(RunHooks):
    """Run hooks that receive everything, and keep what they have received where a tracing library would keep it."""

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        """Hear of it."""
        _CURRENT.set(ctx)

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        """Hear of it."""


class Timing(Instrument):
    """An instrument that receives spans."""

    def on_span_end(self, span: Any) -> None:
        """Hear of one."""


TURNS: dict[str, list[Any]] = {
    "no call": [],
    "calls": [call("work", {"x": 1}), call("work", {"x": 2}), call("work", {"x": 3})],
    "a timeout": [call("dawdle", {"x": 1})],
    "an agent tool": [call("inner", {"input": "help"})],
}


def _agent(calls: list[Any]) -> Agent[Any, Any]:
    inner: Agent[Any, Any] = Agent("inner", model=ScriptedModel([say("helped")]))
    script = [*([calls] if calls else []), say("done")]
    return Agent("outer", model=ScriptedModel(script), tools=[work, dawdle, inner.as_tool()])


async def _plain(agent: Agent[Any, Any], **options: Any) -> None:
    assert (await Runner.run(agent, "go", **options)).final_output == "done"


async def _streamed(agent: Agent[Any, Any], **options: Any) -> None:
    async with Runner.run_streamed(agent, "go", **options) as stream:
        async for _ in stream:
            pass
    assert stream.result.final_output == "done"


def _garbage(backend: str, job: Job) -> Counter[str]:
    """Return the objects of *job* that only a collection frees, by type."""

    async def main() -> None:
        await job()  # the first run creates everything that is made once and kept

        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await job()
            gc.collect()
        finally:
            gc.set_debug(0)
            gc.enable()

    try:
        anyio.run(main, backend=backend)
        return Counter(type(left).__name__ for left in gc.garbage)
    finally:
        gc.garbage.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"hooks": Quiet(), "run_config": RunConfig(timeout=60)}, {"run_config": RunConfig(instruments=[Timing()])}],
    ids=["plain", "usual", "traced"],
)
@pytest.mark.parametrize("way", [_plain, _streamed])
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_run_that_is_over_leaves_nothing_to_the_garbage_collector(
    backend: str, turn: str, way: Any, options: dict[str, Any]
) -> None:
    """The parts of an ended run don't hold each other, so all of it is freed with the last reference to it."""
    agents = [_agent(TURNS[turn]) for _ in range(2)]  # which outlive their runs
    left = iter(agents)

    async def job() -> None:
        await way(next(left), **options)

    assert not _garbage(backend, job)


@tool(failure_error_function=None)
async def broken(x: int) -> str:
    """Fail, and with it the run."""
    raise ValueError("broken")


def _refuse(request: Any) -> Any:
    raise OSError("no answer")


FAILURES: dict[str, list[Any]] = {
    "the model": [_refuse],
    "a body": [call("broken", {"x": 1})],
    "a script that is too short": [],
    "max_turns": [call("work", {"x": 1}), call("work", {"x": 2})],
}


@pytest.mark.slow
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_plain_run_that_failed_is_freed_with_its_error(backend: str, failure: str) -> None:
    """The frames of the error's traceback hold the run, so no part of the run holds the error."""
    agents = [Agent("outer", model=ScriptedModel(FAILURES[failure]), tools=[work, broken]) for _ in range(2)]
    left = iter(agents)

    async def job() -> None:
        with pytest.raises(Exception):  # noqa: B017 - each failure has its own
            await Runner.run(next(left), "go", max_turns=1)

    assert not _garbage(backend, job)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_plain_run_that_timed_out_is_freed_with_its_error(backend: str) -> None:
    """Neither the timeout nor the cancellations that it causes are held by a part of the run."""
    agents = [Agent("outer", model=ScriptedModel([call("doze", {"x": 1})]), tools=[doze]) for _ in range(2)]
    left = iter(agents)

    async def job() -> None:
        with pytest.raises(RunTimeoutError):
            await Runner.run(next(left), "go", run_config=RunConfig(timeout=0.001))

    assert not _garbage(backend, job)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_result_of_a_run_that_was_over_leaves_nothing(backend: str) -> None:
    """It is made of a log that no run follows, also where there is an instrument."""
    journal = MemoryJournal()

    async def job() -> None:
        agent: Agent[Any, Any] = Agent("outer", model=ScriptedModel([say("done")]))
        await Runner.run_or_resume(agent, "go", journal=journal, run_config=RunConfig(instruments=[Timing()]))

    assert not _garbage(backend, job)


SHARED = Capacity(2)


@tool(capacity=SHARED)
async def share(x: int) -> str:
    """Work under a limit that outlives each loop."""
    await anyio.lowlevel.checkpoint()
    return "ok"


@tool
def sync(x: int) -> str:
    """Work in a thread."""
    return "ok"


def test_a_loop_that_is_over_is_let_go() -> None:
    """The shared state of a loop's runs is freed with the loop; tools and their limits stay for the next loop."""

    async def main() -> asyncio.AbstractEventLoop:
        calls = [call("share", {"x": 1}), call("share", {"x": 2}), call("sync", {"x": 3})]
        agent: Agent[Any, Any] = Agent("outer", model=ScriptedModel([calls, say("done")]), tools=[share, sync])
        await _plain(agent)
        return asyncio.get_running_loop()

    def loops() -> list[weakref.ref[asyncio.AbstractEventLoop]]:
        return [weakref.ref(anyio.run(main, backend="asyncio")) for _ in range(2)]

    def wait_for_threads() -> None:  # a function, so that no name of ours holds the last thread
        for thread in threading.enumerate():
            if thread.name == "AnyIO worker thread":  # it knows its loop, and ends some moments after it
                thread.join(60)

    gone = loops()
    wait_for_threads()
    gc.collect()
    assert [loop() for loop in gone] == [None, None]


def test_a_trio_run_that_is_over_is_let_go() -> None:
    """The token of a trio run is freed too when the run is over."""

    async def main() -> object:
        agent: Agent[Any, Any] = Agent(
            "outer", model=ScriptedModel([[call("share", {"x": 1})], say("done")]), tools=[share]
        )
        await _plain(agent)
        return anyio.lowlevel.current_token().native_token

    gone = [weakref.ref(anyio.run(main, backend="trio")) for _ in range(2)]
    gc.collect()
    assert [token() for token in gone] == [None, None]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_what_an_error_reaches_is_freed_by_a_collection(backend: str) -> None:
    """A record's outcome holds the error, whose frames hold the result and its records: a circle, and no leak.

    So the values that can hold an object of the application are tracked by the collector.
    """

    class Marker:
        pass

    @tool
    async def fails() -> str:
        """Fail."""
        raise ValueError("no")

    async def main() -> weakref.ref[Marker]:
        agent: Agent[Any, Any] = Agent("a", model=ScriptedModel([call("fails"), say("done")]), tools=[fails])
        marker = Marker()
        result = await Runner.run(agent, "go", context=marker)
        (outcome,) = (one.outcome for one in result.records if isinstance(one, CallSettled))
        try:
            raise outcome.error or LookupError
        except ValueError:  # its traceback holds this frame, and so the result, the marker and the outcome
            return weakref.ref(marker)

    left = anyio.run(main, backend=backend)
    gc.collect()
    assert left() is None
