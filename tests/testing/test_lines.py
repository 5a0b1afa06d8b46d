"""A search runs sync bodies line by line: it finds races between them, and reports what can't be ordered."""

import inspect
import math
import os
import sys
import threading
import time
from typing import Any

import anyio
import anyio.from_thread
import attrs
import pytest

import agentloop.bundles
from agentloop import Agent, ToolContext, tool
from agentloop import testing as t
from agentloop.testing import _budget, call, say
from agentloop.testing.simulation import _lines, exploring

DONE = say("done")
needs_monitoring = pytest.mark.skipif(sys.version_info < (3, 12), reason="lines can be monitored from 3.12 on")
both_backends = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@tool
def bump(ctx: ToolContext[list[int]]) -> None:
    """Add one; a lost update, where another thread comes in between."""
    n = ctx.context[0]
    ctx.context[0] = n + 1


@tool
def bump_at_once(ctx: ToolContext[list[int]]) -> None:
    """Add one, in one line."""
    ctx.context[0] += 1


@tool
def look(ctx: ToolContext[list[int]]) -> int:
    """Tell how many there are."""
    return ctx.context[0]


def nothing_is_lost(r: t.WorldRun) -> None:
    """Each call has added one."""
    assert r.context == [r.executions("bump") + r.executions("bump_at_once")], "an update was lost"


def zero() -> list[int]:
    return [0]


counter: Agent[Any, Any] = Agent("counter", tools=[bump, bump_at_once, look])


def explored(agent: Agent[Any, Any], calls: list[Any], check: Any = None, **options: Any) -> t.Explored:
    return t.explore(agent, [calls, DONE], check, context=zero, **options)


# ---------------------------------------------------------------------------------------------- which lines


def test_lines_of_the_library_are_never_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that the library brings is explored where the library is installed, and its package stays as it is."""
    packages = os.path.join(os.path.dirname(os.path.dirname(agentloop.__file__)), "")
    monkeypatch.setattr(_lines, "_INSTALLED", (packages,))
    monitor = _lines._Monitor()
    neighbour = os.path.join(packages, "neighbour", "tools.py")
    library = inspect.getfile(agentloop.bundles.Files)
    monitor.count_as_own([library, neighbour])
    assert monitor._is_of_the_program(neighbour)
    assert not monitor._is_of_the_program(library)
    assert not monitor._is_of_the_program(agentloop.testing.__file__)


# ---------------------------------------------------------------------------------------------- what is found


@needs_monitoring
@pytest.mark.scenario("RP-24")
@both_backends
@pytest.mark.parametrize("order", ["steps", "gate"])
def test_lost_update_of_two_sync_bodies_is_found_and_shrunk(backend: Any, order: Any) -> None:
    """Two calls are left of five; the timeline shows their lines as they ran, and the last line repeats it."""
    calls = [call("look"), call("bump"), call("look"), call("bump"), call("bump")]
    with pytest.raises(t.ExplorationFailure, match="an update was lost") as found:
        explored(counter, calls, nothing_is_lost, backends=[backend], order=order)
    run = found.value.run
    assert run.world.script is not None
    assert [one.name for one in run.world.script[0]] == ["bump", "bump"]
    assert sum(1 for number in run.tape if number) <= 1
    told = str(found.value)
    reads = [told.index(f"body call_{one}: test_lines.py:{line}: n = ctx.context[0]") for one, line in READS]
    writes = [told.index(f"body call_{one}: test_lines.py:{line + 1}: ctx.context[0] = n + 1") for one, line in READS]
    assert max(reads) < min(writes)
    names = {"counter": counter, "nothing_is_lost": nothing_is_lost, "zero": zero, "call": call, "say": say}
    with pytest.raises(t.ExplorationFailure, match="an update was lost"):
        eval(told.splitlines()[-1].strip(), {**names, "agent": counter, "explore": t.explore})


FIRST_LINE = bump.body.fn.__code__.co_firstlineno  # type: ignore[union-attr]
READS = [(1, FIRST_LINE + 3), (2, FIRST_LINE + 3)]


@pytest.mark.slow
@needs_monitoring
@pytest.mark.scenario("RP-24")
@both_backends
def test_what_is_sound_line_by_line_is_explored_to_the_end(backend: Any) -> None:
    """One line is one step; two bodies of one line have as many orders as steps of their calls allow."""
    before = threading.active_count()  # backends keep idle threads of earlier tests for some seconds
    seen = explored(counter, [call("bump_at_once")] * 2, nothing_is_lost, backends=[backend])
    assert seen.complete
    assert not seen.reason
    assert seen.schedules > 4
    assert threading.active_count() <= before


@pytest.mark.slow
@needs_monitoring
@both_backends
def test_every_order_of_lines_is_run(backend: Any) -> None:
    """Two bodies of two lines each: all six orders are seen, in every way that the library's own steps leave them."""

    @tool
    def two(ctx: ToolContext[list[Any]], name: str) -> None:
        ctx.context.append(name)
        ctx.context.append(name)

    orders = set()
    script = [[call("two", {"name": "a"}), call("two", {"name": "b"})], DONE]
    seen = t.explore(
        Agent("two", tools=[two]), script, lambda r: orders.add("".join(r.context)), context=list, backends=[backend]
    )
    assert seen.complete
    assert orders == {"aabb", "abab", "abba", "baab", "baba", "bbaa"}


@needs_monitoring
@both_backends
def test_race_between_a_sync_body_and_an_async_one_is_found(backend: Any) -> None:
    """The loop runs other tasks between two lines of a thread."""

    @tool
    async def clear(ctx: ToolContext[list[int]]) -> None:
        ctx.context.clear()

    agent = Agent("counter", tools=[bump, clear])
    with pytest.raises(t.ExplorationFailure, match=r"IndexError|list assignment"):
        explored(agent, [call("clear"), call("bump")], no_index_error, backends=[backend])


def no_index_error(r: t.WorldRun) -> None:
    """Nothing was taken away between the look and the write."""
    for one in r.calls:
        assert "list assignment" not in (one.outcome.output or ""), "list assignment"


def helper(box: list[int]) -> None:
    n = box[0]
    box[0] = n + 1


@needs_monitoring
def test_lines_of_what_a_body_calls_count_too() -> None:
    """A race in a helper of the program is found like one in the body."""

    @tool
    def bump(ctx: ToolContext[list[int]]) -> None:
        helper(ctx.context)

    with pytest.raises(t.ExplorationFailure, match="an update was lost"):
        explored(Agent("counter", tools=[bump]), [call("bump")] * 2, nothing_is_lost)


@pytest.mark.slow
@needs_monitoring
@both_backends
def test_errors_and_context_variables_of_a_thread_come_out(backend: Any) -> None:
    """Errors and context variables come out as they do of a real thread."""

    @tool
    def broken() -> str:
        first = 1
        return str(first / 0)

    def check(r: t.WorldRun) -> None:
        assert "ZeroDivisionError" in (r.calls[0].outcome.output or "")

    assert explored(Agent("broken", tools=[broken]), [call("broken")] * 2, check, backends=[backend]).complete


@pytest.mark.slow
@needs_monitoring
@both_backends
def test_what_a_thread_asks_of_the_loop_is_one_step(backend: Any) -> None:
    """A call through `anyio.from_thread` is one step, also the library's own for progress and cancellation."""

    async def on_loop(box: list[int]) -> str:
        box[0] += 1
        await anyio.sleep(0.01)
        return "from the loop"

    @tool
    def ask(ctx: ToolContext[list[int]]) -> str:
        ctx.report_nowait(0.5)
        ctx.check_cancelled()
        anyio.from_thread.run_sync(ctx.context.append, 1)
        return anyio.from_thread.run(on_loop, ctx.context)

    def check(r: t.WorldRun) -> None:
        assert [one.outcome.value for one in r.calls] == ["from the loop"] * 2
        assert r.context == [2, 1, 1]

    seen = explored(Agent("asks", tools=[ask]), [call("ask")] * 2, check, backends=[backend], max_schedules=60)
    assert seen.schedules == 60
    assert not seen.dropped


@needs_monitoring
@pytest.mark.parametrize("way", [("asyncio", "scope"), ("asyncio", "native"), ("trio", "scope")])
def test_cancelled_at_any_step_no_thread_is_left(way: Any) -> None:
    """The run is cancelled between two lines, and while a thread waits for an answer of the loop."""

    @tool
    def ask(ctx: ToolContext[list[int]]) -> int:
        n = ctx.context[0]
        anyio.from_thread.run(anyio.sleep, 0.5)
        ctx.context[0] = n + 1
        return n

    backend, kind = way
    agent = Agent("asks", tools=[ask, bump])
    world = t.World(
        agent=agent, script=([call("ask"), call("bump")], DONE), context=zero, order="steps", switch_lines=True
    )
    before, cancelled = threading.active_count(), 0
    for step in range(200):
        seen = t.run_one(attrs.evolve(world, cancel=t.CancelAt(step, kind)), backend=backend)
        assert threading.active_count() <= before, f"step {step}"
        assert not seen.waited_at
        assert not seen.left
        if seen.cancelled_at is None:
            break
        cancelled += seen.cancelled
    else:
        pytest.fail("the run has no end")
    assert cancelled > 10
    assert seen.context[0] in (1, 2)


# ---------------------------------------------------------------------------------------------- what can't be ordered


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give threads little time to come back."""
    monkeypatch.setattr(_lines, "PATIENCE", 0.1)
    monkeypatch.setattr(_lines, "PATIENCE_BESIDE", 0.3)
    monkeypatch.setattr(exploring, "MOST_DROPPED", 5)


@pytest.mark.slow
@needs_monitoring
@pytest.mark.usefixtures("hasty")
@both_backends
def test_process_that_stands_still_for_a_while_drops_no_schedule(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait may end before the thread had a chance to run, however long it was: the thread gets others."""
    wait_for, stopped = threading.Condition.wait_for, list[threading.Condition]()

    def stop_first(self: threading.Condition, predicate: Any, timeout: float | None = None) -> bool:
        if timeout is not None and not any(self is one for one in stopped):
            stopped.append(self)
            return False
        return wait_for(self, predicate, timeout)

    monkeypatch.setattr(threading.Condition, "wait_for", stop_first)
    seen = explored(counter, [call("bump_at_once")] * 2, nothing_is_lost, backends=[backend])
    assert stopped
    assert seen.complete
    assert not seen.dropped


@pytest.mark.slow
@needs_monitoring
@pytest.mark.scenario("RP-24")
@pytest.mark.usefixtures("hasty")
@both_backends
def test_thread_that_waits_for_another_s_lock_is_let_run_and_the_schedule_is_dropped(backend: Any) -> None:
    """The search ends, and names the line; nothing is found, and nothing left."""
    lock = threading.Lock()

    @tool
    def bump(ctx: ToolContext[list[int]]) -> None:
        with lock:
            n = ctx.context[0]
            ctx.context[0] = n + 1

    before = threading.active_count()
    agent = Agent("counter", tools=[bump])
    seen = explored(agent, [call("bump")] * 2, nothing_is_lost, backends=[backend], max_schedules=40)
    assert not seen.complete
    assert seen.dropped == 5
    assert "test_lines.py:" in seen.reason
    assert "with lock:" in seen.reason
    assert "one step each from there on" in seen.reason
    assert threading.active_count() <= before


@pytest.mark.slow
@needs_monitoring
@pytest.mark.scenario("RP-24")
@pytest.mark.usefixtures("hasty")
def test_race_beside_a_lock_is_found_in_schedules_that_are_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread reads without the lock: the schedules in which no thread waits for it are judged."""
    monkeypatch.setattr(exploring, "MOST_DROPPED", 1000)
    monkeypatch.setattr(exploring, "MOST_WAITED", math.inf)  # a busy machine waits longer for each of them
    lock = threading.Lock()

    @tool
    def move(ctx: ToolContext[list[int]]) -> None:
        with lock:
            ctx.context[0] -= 1
            ctx.context[0] += 1

    @tool
    def bare_look(ctx: ToolContext[list[int]]) -> int:
        return ctx.context[0]

    def check(r: t.WorldRun) -> None:
        assert all(one.outcome.value in (None, 0) for one in r.calls), "saw it half way"

    with pytest.raises(t.ExplorationFailure, match="saw it half way"):
        explored(Agent("mover", tools=[move, bare_look]), [call("move"), call("move"), call("bare_look")], check)


@pytest.mark.slow
@needs_monitoring
@pytest.mark.usefixtures("hasty")
def test_body_that_sleeps_in_real_time_is_let_run() -> None:
    """The body waits for some kind of I/O; the work done meanwhile follows no schedule."""

    @tool
    def slow() -> str:
        time.sleep(0.15)
        return "slept"

    seen = explored(Agent("slow", tools=[slow]), [call("slow")] * 2, max_schedules=8, backends=["asyncio"])
    assert not seen.complete
    assert seen.dropped
    assert "time.sleep(0.15)" in seen.reason


@pytest.mark.slow
@needs_monitoring
@pytest.mark.usefixtures("hasty")
@both_backends
def test_threads_that_wait_for_each_other_do_not_keep_the_search(backend: Any) -> None:
    """The search gives these threads up, names the line, and tries no such schedule again."""
    never, released = threading.Event(), threading.Event()

    @tool
    def wait() -> str:
        never.wait()
        released.set()
        return "over"

    agent = Agent("waits", tools=[wait])
    try:
        # One step each, they would keep the loop for ever: the body itself ends it.
        timer = threading.Timer(1.0, never.set)
        timer.start()
        seen = explored(agent, [call("wait")], backends=[backend], max_schedules=4)
    finally:
        never.set()
        timer.join()
    assert not seen.complete
    assert "never.wait()" in seen.reason
    assert released.wait(5)


@needs_monitoring
@pytest.mark.usefixtures("hasty")
def test_body_of_very_many_lines_is_let_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are counted, so that a loop in a body doesn't keep the search."""
    monkeypatch.setattr(_lines, "MOST_LINES", 50)

    @tool
    def count() -> int:
        n = 0
        while n < 1000:
            n += 1
        return n

    seen = explored(Agent("counts", tools=[count]), [call("count")] * 2, max_schedules=8, backends=["asyncio"])
    assert not seen.complete
    assert seen.dropped


# ---------------------------------------------------------------------------------------------- where it can't be had


@pytest.mark.slow
@pytest.mark.scenario("RP-24")
def test_without_monitoring_the_search_says_why_it_is_not_complete(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On Python 3.11 the search gives the missing monitoring as its reason, and logs it where no session reads it."""
    monkeypatch.setattr(_budget, "unseen", None)
    monkeypatch.setattr(_lines, "_TOOL_IDS", ())
    monkeypatch.setattr(exploring, "CAN_MONITOR", False)
    seen = explored(counter, [call("bump")] * 2)
    assert not seen.complete
    assert "one step each" in seen.reason
    assert "3.12" in seen.reason
    assert "couldn't look between the lines of bump" in caplog.text


def test_a_thread_of_asyncio_s_own_keeps_a_search_from_being_complete() -> None:
    """`asyncio.to_thread` is one step, wherever it is called."""
    import asyncio

    @tool
    async def elsewhere(ctx: ToolContext[list[int]]) -> None:
        await asyncio.to_thread(ctx.context.append, 1)

    seen = explored(Agent("else", tools=[elsewhere]), [call("elsewhere")], backends=["asyncio"])
    assert not seen.complete
    assert "one step each" in seen.reason


@needs_monitoring
def test_nothing_is_monitored_after_a_search() -> None:
    """The tool's id is given back."""
    explored(counter, [call("look")])
    assert sys.monitoring.get_tool(4) is None
    assert not _lines._monitor.workers
