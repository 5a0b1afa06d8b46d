"""Sync bodies: worker threads of a bounded number, awaited unless the tool says they may be abandoned."""

import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.from_thread
import pytest
from shell.scenario_kit import (
    Backend,
    Watch,
    agent_that_calls,
    cancelled_at,
    endings,
    lasting,
    shown,
    time_passes,
    watched,
)

from agentloop import Runner, RunResult, ToolContext, open_runtime, tool
from agentloop import records as r

Run = Callable[..., Awaitable[RunResult[Any]]]

pytestmark = pytest.mark.real_clock


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    """An event that blocked threads wait for; set at the test's end, whatever became of it."""
    event = threading.Event()
    yield event
    event.set()


class LateWatch(Watch):
    """A watch whose `told` is set by the *n*-th late result."""

    def __init__(self, n: int = 1) -> None:
        super().__init__()
        self.told = anyio.Event()
        self._left = n

    def on_late_result(self, report: Any) -> None:
        super().on_late_result(report)
        self._left -= 1
        if self._left == 0:
            self.told.set()


@pytest.mark.scenario("CO-08", "LX-17")
async def test_blocking_sync_body_does_not_stall_the_loop(run_mode: Run) -> None:
    """The body blocks until a task of the loop has ticked five times: it could never end otherwise."""
    enough = threading.Event()

    @tool
    def blocks() -> str:
        return "free" if enough.wait(5) else "stalled"

    async def tick() -> None:
        for _ in range(5):
            await anyio.sleep(0.002)
        enough.set()

    agent = agent_that_calls("blocks", tools=[blocks])
    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await run_mode(agent, "go")
    assert shown(agent) == {"c1": "free"}


@pytest.mark.scenario("CO-08")
async def test_sync_bodies_run_at_once_and_beside_async_ones(run_mode: Run) -> None:
    """Three threads meet at a barrier, and one of them waits for an async sibling."""
    barrier, from_async = threading.Barrier(3, timeout=5), threading.Event()

    @tool
    def meets(ctx: ToolContext[Any]) -> str:
        barrier.wait()
        return "met" if from_async.wait(5) else "alone"

    @tool
    async def signals() -> str:
        from_async.set()
        return "signalled"

    agent = agent_that_calls("meets", "meets", "meets", "signals", tools=[meets, signals])
    await run_mode(agent, "go")
    assert list(shown(agent).values()) == ["met", "met", "met", "signalled"]


@pytest.mark.scenario("LX-18")
async def test_context_variables_of_the_caller_are_read_by_sync_and_async_bodies(run_mode: Run) -> None:
    """Set around the run; what a body sets is its own."""
    variable: ContextVar[str] = ContextVar("variable")

    @tool
    def reads() -> str:
        seen = variable.get("missing")
        variable.set("changed in a thread")
        return seen

    @tool
    async def reads_async() -> str:
        seen = variable.get("missing")
        variable.set("changed")
        return seen

    agent = agent_that_calls("reads", "reads_async", "reads", "reads_async", tools=[reads, reads_async])
    token = variable.set("around")
    try:
        await run_mode(agent, "go")
        assert variable.get() == "around"
    finally:
        variable.reset(token)
    assert list(shown(agent).values()) == ["around"] * 4


async def test_sync_body_that_raises_fails_like_an_async_one(run_mode: Run) -> None:
    """The error is the call's, and told to the model."""

    @tool
    def fails() -> str:
        raise ValueError("broken")

    agent = agent_that_calls("fails", tools=[fails])
    result = await run_mode(agent, "go")
    assert shown(agent) == {"c1": "Tool fails failed with: ValueError(broken)"}
    assert endings(result.calls) == [("c1", "failed", None)]


async def test_threads_of_a_run_are_never_more_than_max_threads(run_mode: Run) -> None:
    """21 calls under a cap of 3 all run, three at a time."""
    lock, live, peak = threading.Lock(), [0], [0]
    trio_of_them = threading.Barrier(3, timeout=5)

    @tool
    def counts() -> str:
        with lock:
            live[0] += 1
            peak[0] = max(peak[0], live[0])
        trio_of_them.wait()  # never passed by fewer than three at once
        with lock:
            live[0] -= 1
        return "counted"

    agent = agent_that_calls(*["counts"] * 21, tools=[counts])
    result = await run_mode(agent, "go", run_config=watched(Watch(), max_threads=3))
    assert [status for _, status, _ in endings(result.calls)] == ["succeeded"] * 21
    assert peak == [3]


async def test_calls_that_wait_for_a_thread_start_in_model_order(run_mode: Run) -> None:
    """The order of starts is the admission's, not the backend's."""
    started: list[str] = []

    @tool
    def notes(ctx: ToolContext[Any]) -> str:
        started.append(ctx.tool_call_id)
        return "noted"

    watch = Watch()
    agent = agent_that_calls(*["notes"] * 10, tools=[notes])
    await run_mode(agent, "go", run_config=watched(watch, max_threads=1))
    assert started == [f"c{index}" for index in range(1, 11)]
    assert [record.call_id for record in watch.of(r.CallStarted)] == started


@pytest.mark.scenario("LX-49")
async def test_cancel_call_stops_a_polling_thread(run_mode: Run) -> None:
    """`check_cancelled` raises in the thread of the call that was cancelled; the run goes on."""
    started = anyio.Event()

    @tool
    def polls(ctx: ToolContext[Any]) -> str:
        anyio.from_thread.run_sync(started.set)
        for _ in range(5_000):
            ctx.check_cancelled()
            time.sleep(0.001)
        return "never"

    @tool
    async def stops(ctx: ToolContext[Any]) -> str:
        await started.wait()
        assert ctx.cancel_call("c1", "enough")
        return "stopped it"

    agent = agent_that_calls("polls", "stops", tools=[polls, stops])
    result = await run_mode(agent, "go")
    assert result.final_output == "done"
    assert shown(agent) == {"c1": "Tool polls failed with: ToolCancelledError(enough)", "c2": "stopped it"}
    assert endings(result.calls)[0] == ("c1", "cancelled", "caller")


async def test_check_cancelled_of_a_call_that_is_not_cancelled_does_nothing(run_mode: Run) -> None:
    """A body may poll as often as it likes."""

    @tool
    def polls(ctx: ToolContext[Any]) -> str:
        for _ in range(100):
            ctx.check_cancelled()
        return "done it"

    agent = agent_that_calls("polls", tools=[polls])
    await run_mode(agent, "go")
    assert shown(agent) == {"c1": "done it"}


@pytest.mark.leaves_threads
async def test_cancelled_call_of_an_abandonable_tool_is_answered_while_its_thread_runs(
    run_mode: Run, go_on: threading.Event
) -> None:
    """The model is told, the outcome says `abandoned`, and the late value reaches the instruments."""
    started, watch = anyio.Event(), LateWatch()

    @tool(abandon_on_cancel=True)
    def blocks() -> str:
        anyio.from_thread.run_sync(started.set)
        go_on.wait(10)
        return "late"

    @tool
    async def stops(ctx: ToolContext[Any]) -> str:
        await started.wait()
        assert ctx.cancel_call("c1", "enough")
        return "stopped it"

    agent = agent_that_calls("blocks", "stops", tools=[blocks, stops])
    result = await run_mode(agent, "go", run_config=watched(watch))
    assert shown(agent)["c1"] == "Tool blocks failed with: ToolCancelledError(enough)"
    outcome = result.calls[0].outcome
    assert (outcome.status, outcome.cancelled_by, outcome.abandoned) == ("cancelled", "caller", True)
    assert not outcome.body_finished
    assert watch.late == []
    go_on.set()
    with anyio.fail_after(30):
        await watch.told.wait()
    assert [(report.call.call_id, report.value, report.error) for report in watch.late] == [("c1", "late", None)]


def blocking(go_on: threading.Event, calls: int, started: list[str] | None = None) -> Any:
    """Return an abandonable sync tool that blocks until *go_on* is set; once *calls* of it do, they time out."""
    ids = [] if started is None else started

    def begun(call_id: str) -> None:
        ids.append(call_id)
        if len(ids) == calls:
            time_passes(60)

    @tool(timeout=60, abandon_on_cancel=True)
    def blocks(ctx: ToolContext[Any]) -> str:
        anyio.from_thread.run_sync(begun, ctx.tool_call_id)
        go_on.wait(10)
        return "late"

    return blocks


@tool
def quick() -> str:
    """Return at once, from a thread."""
    return "quick"


@pytest.mark.leaves_threads
@pytest.mark.scenario("LX-50")
async def test_new_runs_sync_tool_starts_beside_abandoned_threads(
    run_mode: Run, go_on: threading.Event, anyio_backend: Backend
) -> None:
    """Below the cap nobody waits for what an earlier run abandoned."""
    watch = LateWatch(2)
    async with open_runtime(max_threads=3):
        first = agent_that_calls("blocks", "blocks", tools=[blocking(go_on, 2)])
        async with lasting(anyio_backend, 60):
            await run_mode(first, "go", run_config=watched(watch))
        second = agent_that_calls("quick", "quick", tools=[quick])
        with anyio.fail_after(30):
            await run_mode(second, "go")
        assert list(shown(second).values()) == ["quick", "quick"]
        go_on.set()
        with anyio.fail_after(30):
            await watch.told.wait()


@pytest.mark.leaves_threads
@pytest.mark.scenario("LX-50")
async def test_sync_tool_is_refused_when_abandoned_threads_hold_every_place(
    run_mode: Run, go_on: threading.Event
) -> None:
    """At the cap, and nobody awaited: the refusal names the threads and their ages; afterwards there is room again."""
    watch = LateWatch(2)
    async with open_runtime(max_threads=2):
        first = agent_that_calls("blocks", "blocks", tools=[blocking(go_on, 2)])
        await run_mode(first, "go", run_config=watched(watch))
        second = agent_that_calls("quick", tools=[quick])
        with anyio.fail_after(30):
            result = await run_mode(second, "go")
        assert result.calls[0].outcome.status in {"failed", "skipped"}
        assert result.calls[0].outcome.started_at is None
        assert len(re.findall(r"blocks \([6-9]\d\.\d s\)", shown(second)["c1"])) == 2
        go_on.set()
        with anyio.fail_after(30):
            await watch.told.wait()
        third = agent_that_calls("quick", tools=[quick])
        await run_mode(third, "go")
        assert shown(third) == {"c1": "quick"}


@pytest.mark.leaves_threads
@pytest.mark.scenario("LX-50")
async def test_sync_tool_waits_at_the_cap_while_a_thread_is_awaited(run_mode: Run, go_on: threading.Event) -> None:
    """One place abandoned, one awaited: the third call waits for the awaited one, and runs."""
    release, watch = threading.Event(), LateWatch()
    abandoned = anyio.Event()

    @tool
    def awaited() -> str:
        release.wait(10)
        return "awaited"

    @tool
    async def releases() -> str:
        await abandoned.wait()
        release.set()
        return "released"

    class Both(LateWatch):
        def on_record(self, record: Any) -> None:
            super().on_record(record)
            if type(record).__name__ == "CallSettled" and record.call_id == "c1":
                abandoned.set()

    watch = Both()
    async with open_runtime(max_threads=2):
        agent = agent_that_calls(
            "blocks",
            "awaited",
            "quick",
            "releases",
            tools=[blocking(go_on, 1), awaited, quick, releases],
        )
        with anyio.fail_after(60 + 30):
            result = await run_mode(agent, "go", run_config=watched(watch))
        assert [status for _, status, _ in endings(result.calls)] == [
            "timed_out",
            "succeeded",
            "succeeded",
            "succeeded",
        ]
        go_on.set()
        with anyio.fail_after(30):
            await watch.told.wait()


@pytest.mark.leaves_threads
@pytest.mark.scenario("LX-50")
async def test_waiting_sync_tool_is_refused_once_every_place_has_been_abandoned(
    run_mode: Run, go_on: threading.Event
) -> None:
    """It began to wait while the holder was still awaited; when that is abandoned there is nothing to wait for."""
    started: list[str] = []
    watch = LateWatch()
    agent = agent_that_calls("blocks", "quick", tools=[blocking(go_on, 1, started), quick])
    with anyio.fail_after(60 + 30):
        result = await run_mode(agent, "go", run_config=watched(watch, max_threads=1))
    assert started == ["c1"]
    assert result.calls[0].outcome.status == "timed_out"
    assert result.calls[1].outcome.status in {"failed", "skipped"}
    assert re.search(r"blocks \([6-9]\d\.\d s\)", shown(agent)["c2"])
    go_on.set()
    with anyio.fail_after(30):
        await watch.told.wait()


@pytest.mark.leaves_threads
async def test_call_cancelled_while_it_waits_for_a_thread_never_starts(run_mode: Run, go_on: threading.Event) -> None:
    """Its body doesn't run later either."""
    release = threading.Event()
    ran: list[str] = []

    @tool
    def holds() -> str:
        release.wait(10)
        return "held"

    @tool
    def waits(ctx: ToolContext[Any]) -> str:
        ran.append(ctx.tool_call_id)
        return "never"

    @tool
    async def stops(ctx: ToolContext[Any]) -> str:
        assert ctx.cancel_call("c2", "enough")
        release.set()
        return "stopped it"

    agent = agent_that_calls("holds", "waits", "stops", tools=[holds, waits, stops])
    result = await run_mode(agent, "go", run_config=watched(Watch(), max_threads=1))
    assert ran == []
    assert endings(result.calls) == [
        ("c1", "succeeded", None),
        ("c2", "cancelled", "caller"),
        ("c3", "succeeded", None),
    ]
    assert result.calls[1].outcome.started_at is None


async def test_run_cancelled_while_a_call_waits_for_a_thread_starts_no_body(go_on: threading.Event) -> None:
    """The waiting call settles as cancelled by the parent; the awaited thread is joined."""
    started, ran, watch, release = anyio.Event(), [], Watch(), threading.Event()

    @tool
    def holds(ctx: ToolContext[Any]) -> str:
        ran.append(ctx.tool_call_id)
        anyio.from_thread.run_sync(started.set)
        release.wait(0.05)
        return "held"

    agent = agent_that_calls("holds", "holds", tools=[holds])
    await cancelled_at(started, lambda: Runner.run(agent, "go", run_config=watched(watch, max_threads=1)))
    assert ran == ["c1"]
    assert watch.outcome("c2").status == "cancelled"
    assert watch.outcome("c2").cancelled_by == "parent"
    assert watch.end == "cancelled"


@pytest.mark.scenario("LX-50")
async def test_blocked_thread_is_named_by_still_running(go_on: threading.Event) -> None:
    """A thread that can't be stopped outlives the cleanup deadline visibly: call, age and stack."""

    class UntilNamed(Watch):
        def on_still_running(self, report: Any) -> None:
            super().on_still_running(report)
            if "go_on.wait" in report.stack:  # the thread may still be on its way there at first
                go_on.set()

    started, watch = anyio.Event(), UntilNamed()

    @tool
    def blocks_for_a_while() -> str:
        anyio.from_thread.run_sync(started.set)
        go_on.wait(10)
        return "late"

    agent = agent_that_calls("blocks_for_a_while", tools=[blocks_for_a_while])
    await cancelled_at(started, lambda: Runner.run(agent, "go", run_config=watched(watch, cleanup_grace=0.05)))
    report = watch.still[-1]
    assert report.call.name == "blocks_for_a_while"
    assert "blocks_for_a_while" in report.stack
    assert watch.end == "cancelled"
