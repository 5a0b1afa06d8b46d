"""Sync bodies: worker threads of a bounded number, awaited unless the tool says they may be abandoned."""

import re
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
from kit.agents import Run, call_each, configure_run, make_agent
from kit.ending import Backend, advance_clock, cancel_when, check_duration
from kit.results import read_endings, read_shown_outputs
from kit.watching import Watch

from agentloop import Agent, Allow, Runner, RunResult, ToolContext, open_runtime, tool
from agentloop import records as r
from agentloop._engine.runtime.threads import Threads, ThreadSlot
from agentloop.guardrails import tool_input_guardrail

pytestmark = pytest.mark.real_clock


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    """An event that blocked threads wait for; it is set at the test's end, also when the test fails."""
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

    agent = make_agent([blocks], call_each("blocks"))
    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": "free"}


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

    agent = make_agent([meets, signals], call_each("meets", "meets", "meets", "signals"))
    await run_mode(agent, "go")
    assert list(read_shown_outputs(agent).values()) == ["met", "met", "met", "signalled"]


@pytest.mark.scenario("LX-18")
async def test_context_variables_of_the_caller_are_read_by_sync_and_async_bodies(run_mode: Run) -> None:
    """Bodies read the variables that are set around the run; a variable that a body sets is its own."""
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

    agent = make_agent([reads, reads_async], call_each("reads", "reads_async", "reads", "reads_async"))
    token = variable.set("around")
    try:
        await run_mode(agent, "go")
        assert variable.get() == "around"
    finally:
        variable.reset(token)
    assert list(read_shown_outputs(agent).values()) == ["around"] * 4


async def test_sync_body_that_raises_fails_like_an_async_one(run_mode: Run) -> None:
    """The error is the call's failure, and the model receives it."""

    @tool
    def fails() -> str:
        raise ValueError("broken")

    agent = make_agent([fails], call_each("fails"))
    result = await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": "Tool fails failed with: ValueError(broken)"}
    assert read_endings(result.calls) == [("c1", "failed", None)]


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

    agent = make_agent([counts], call_each(*["counts"] * 21))
    result = await run_mode(agent, "go", run_config=configure_run(Watch(), max_threads=3))
    assert [status for _, status, _ in read_endings(result.calls)] == ["succeeded"] * 21
    assert peak == [3]


async def test_calls_that_wait_for_a_thread_start_in_model_order(run_mode: Run) -> None:
    """The order of starts is the admission's, not the backend's."""
    started: list[str] = []

    @tool
    def notes(ctx: ToolContext[Any]) -> str:
        started.append(ctx.tool_call_id)
        return "noted"

    watch = Watch()
    agent = make_agent([notes], call_each(*["notes"] * 10))
    await run_mode(agent, "go", run_config=configure_run(watch, max_threads=1))
    assert started == [f"c{index}" for index in range(1, 11)]
    assert [record.call_id for record in watch.of(r.CallStarted)] == started


@pytest.mark.scenario("LX-49")
async def test_cancel_call_stops_a_polling_thread(run_mode: Run) -> None:
    """`check_cancelled` raises in the thread of the call that was cancelled; the run continues."""
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

    agent = make_agent([polls, stops], call_each("polls", "stops"))
    result = await run_mode(agent, "go")
    assert result.final_output == "done"
    assert read_shown_outputs(agent) == {"c1": "Tool polls failed with: ToolCancelledError(enough)", "c2": "stopped it"}
    assert read_endings(result.calls)[0] == ("c1", "cancelled", "caller")


async def test_check_cancelled_of_a_call_that_is_not_cancelled_does_nothing(run_mode: Run) -> None:
    """A body may poll as often as it likes."""

    @tool
    def polls(ctx: ToolContext[Any]) -> str:
        for _ in range(100):
            ctx.check_cancelled()
        return "done it"

    agent = make_agent([polls], call_each("polls"))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": "done it"}


@pytest.mark.leaves_threads
async def test_cancelled_call_of_an_abandonable_tool_is_answered_while_its_thread_runs(
    run_mode: Run, go_on: threading.Event
) -> None:
    """The model receives an answer, the outcome says `abandoned`, and the late value reaches the instruments."""
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

    agent = make_agent([blocks, stops], call_each("blocks", "stops"))
    result = await run_mode(agent, "go", run_config=configure_run(watch))
    assert read_shown_outputs(agent)["c1"] == "Tool blocks failed with: ToolCancelledError(enough)"
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
            advance_clock(60)

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
    """Below the cap, a new call does not wait for the threads that an earlier run abandoned."""
    watch = LateWatch(2)
    async with open_runtime(max_threads=3):
        first = make_agent([blocking(go_on, 2)], call_each("blocks", "blocks"))
        async with check_duration(anyio_backend, 60):
            await run_mode(first, "go", run_config=configure_run(watch))
        second = make_agent([quick], call_each("quick", "quick"))
        with anyio.fail_after(30):
            await run_mode(second, "go")
        assert list(read_shown_outputs(second).values()) == ["quick", "quick"]
        go_on.set()
        with anyio.fail_after(30):
            await watch.told.wait()


@pytest.mark.leaves_threads
@pytest.mark.scenario("LX-50")
async def test_sync_tool_is_refused_when_abandoned_threads_hold_every_place(
    run_mode: Run, go_on: threading.Event
) -> None:
    """The refusal at the cap names the abandoned threads and their ages; afterwards there is room again."""
    watch = LateWatch(2)
    async with open_runtime(max_threads=2):
        first = make_agent([blocking(go_on, 2)], call_each("blocks", "blocks"))
        await run_mode(first, "go", run_config=configure_run(watch))
        second = make_agent([quick], call_each("quick"))
        with anyio.fail_after(30):
            result = await run_mode(second, "go")
        assert result.calls[0].outcome.status in {"failed", "skipped"}
        assert result.calls[0].outcome.started_at is None
        assert len(re.findall(r"blocks \([6-9]\d\.\d s\)", read_shown_outputs(second)["c1"])) == 2
        go_on.set()
        with anyio.fail_after(30):
            await watch.told.wait()
        third = make_agent([quick], call_each("quick"))
        await run_mode(third, "go")
        assert read_shown_outputs(third) == {"c1": "quick"}


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
        agent = make_agent(
            [blocking(go_on, 1), awaited, quick, releases], call_each("blocks", "awaited", "quick", "releases")
        )
        with anyio.fail_after(60 + 30):
            result = await run_mode(agent, "go", run_config=configure_run(watch))
        assert [status for _, status, _ in read_endings(result.calls)] == [
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
    """The tool waits while the holder is awaited; when that is abandoned, no place can come free, and it is refused."""
    started: list[str] = []
    watch = LateWatch()
    agent = make_agent([blocking(go_on, 1, started), quick], call_each("blocks", "quick"))
    with anyio.fail_after(60 + 30):
        result = await run_mode(agent, "go", run_config=configure_run(watch, max_threads=1))
    assert started == ["c1"]
    assert result.calls[0].outcome.status == "timed_out"
    assert result.calls[1].outcome.status in {"failed", "skipped"}
    assert re.search(r"blocks \([6-9]\d\.\d s\)", read_shown_outputs(agent)["c2"])
    go_on.set()
    with anyio.fail_after(30):
        await watch.told.wait()


@pytest.mark.leaves_threads
async def test_call_cancelled_while_it_waits_for_a_thread_never_starts(run_mode: Run, go_on: threading.Event) -> None:
    """The cancelled call's body doesn't run later either."""
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

    agent = make_agent([holds, waits, stops], call_each("holds", "waits", "stops"))
    result = await run_mode(agent, "go", run_config=configure_run(Watch(), max_threads=1))
    assert ran == []
    assert read_endings(result.calls) == [
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

    agent = make_agent([holds], call_each("holds", "holds"))
    await cancel_when(started, lambda: Runner.run(agent, "go", run_config=configure_run(watch, max_threads=1)))
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

    agent = make_agent([blocks_for_a_while], call_each("blocks_for_a_while"))
    await cancel_when(started, lambda: Runner.run(agent, "go", run_config=configure_run(watch, cleanup_grace=0.05)))
    report = watch.still[-1]
    assert report.call.name == "blocks_for_a_while"
    assert "blocks_for_a_while" in report.stack
    assert watch.end == "cancelled"


def nesting(depth: int, calls: int) -> Agent[Any, Any]:
    """Return an agent with *calls* calls of a sync tool that runs such an agent in turn, *depth* times."""
    if depth == 0:
        return make_agent([quick], call_each(*["quick"] * calls))

    @tool
    def runs_an_agent() -> str:
        inner = nesting(depth - 1, calls)
        result = anyio.from_thread.run(Runner.run, inner, "go")
        return ",".join(settled.outcome.status for settled in result.calls)

    return make_agent([runs_an_agent], call_each(*["runs_an_agent"] * calls))


@pytest.mark.parametrize("places", [1, 2, 3, 5])
@pytest.mark.parametrize("depth", [1, 2])
async def test_sync_tools_that_run_agents_with_sync_tools_never_wait_for_themselves(
    run_mode: Run, places: int, depth: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that only its own end could give a place is skipped with a warning, for any number of threads."""
    agent = nesting(depth, 3)
    async with open_runtime(max_threads=places):
        with anyio.fail_after(30):
            result = await run_mode(agent, "go")
    assert [settled.outcome.status for settled in result.calls] == ["succeeded"] * 3
    said = "".join(str(text) for text in read_shown_outputs(agent).values())
    assert ("skipped" in said) <= ("are held by calls that wait for another one: " in caplog.text)
    if places == 1:
        assert "skipped" in said
        assert re.search(
            r"'(quick|runs_an_agent)' was not started: .* all 1 are held by .*: runs_an_agent \(\d", caplog.text
        )
    if places == 5 and depth == 1:
        assert "skipped" not in said


async def test_a_nested_sync_tool_waits_for_a_place_that_will_come_free(run_mode: Run) -> None:
    """One of two places is held by the body around it, the other by a body that ends: nothing is refused."""
    waits = threading.Event()

    @tool
    def ends() -> str:
        waits.wait(10)
        return "ended"

    @tool
    def runs_an_agent() -> str:
        inner = make_agent([quick, lets_go], call_each("quick", "lets_go"))
        return str(shown_of(anyio.from_thread.run(Runner.run, inner, "go")))

    @tool
    async def lets_go() -> str:
        waits.set()
        return "let go"

    def shown_of(result: RunResult[Any]) -> list[str]:
        return [settled.outcome.status for settled in result.calls]

    agent = make_agent([ends, runs_an_agent], call_each("ends", "runs_an_agent"))
    async with open_runtime(max_threads=2):
        with anyio.fail_after(30):
            await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": "ended", "c2": "['succeeded', 'succeeded']"}


async def test_a_run_with_one_thread_of_its_own_inside_a_sync_tool_takes_its_turns(run_mode: Run) -> None:
    """The outer run's only place is held by who waits for the inner run, whose only place is held by who ends."""

    @tool
    def runs_an_agent() -> str:
        inner = make_agent([quick], call_each(*["quick"] * 4))
        result = anyio.from_thread.run(run_inner, inner)
        return ",".join(settled.outcome.status for settled in result.calls)

    async def run_inner(inner: Agent[Any, Any]) -> RunResult[Any]:
        return await Runner.run(inner, "go", run_config=configure_run(Watch(), max_threads=1))

    agent = make_agent([runs_an_agent], call_each("runs_an_agent", "runs_an_agent"))
    with anyio.fail_after(30):
        await run_mode(agent, "go", run_config=configure_run(Watch(), max_threads=1))
    assert read_shown_outputs(agent) == {"c1": ",".join(["succeeded"] * 4), "c2": ",".join(["succeeded"] * 4)}


async def test_a_call_that_never_began_is_reported_with_the_age_of_what_did() -> None:
    """A guardrail before the body can't be cut: the report says since when the call is under way, not the clock."""

    class UntilReported(Watch):
        def on_still_running(self, report: Any) -> None:
            super().on_still_running(report)
            reported.set()

    started, reported, watch = anyio.Event(), anyio.Event(), UntilReported()

    @tool_input_guardrail
    async def holds(data: Any) -> Allow:
        with anyio.CancelScope(shield=True):
            started.set()
            await reported.wait()
        await anyio.lowlevel.checkpoint()
        return Allow()

    @tool(tool_input_guardrails=[holds])
    async def never() -> str:
        return "never"

    agent = make_agent([never], call_each("never"))
    began = anyio.current_time()
    await cancel_when(started, lambda: Runner.run(agent, "go", run_config=configure_run(watch, cleanup_grace=0.05)))
    assert 0.05 <= watch.still[0].age <= anyio.current_time() - began
    assert watch.outcome("c1").started_at is None


async def _place(threads: Threads, name: str, got: list[object]) -> None:
    """Join the queue, and note what the place was."""
    threads.join(name)
    got.append(await threads.place(name, name))


async def test_who_waits_for_a_thread_gets_none_that_the_end_of_the_run_has_freed() -> None:
    """The place comes free in the very step in which both are cancelled: nothing begins while a run is being ended."""
    threads = Threads(1)
    threads.join("first")
    held = await threads.place("first", "first")
    assert isinstance(held, ThreadSlot)
    got: list[object] = []

    async with anyio.create_task_group() as group:
        group.start_soon(_place, threads, "second", got)
        await anyio.wait_all_tasks_blocked()
        threads.give_back(held)
        group.cancel_scope.cancel()
    assert got == []
    assert len(threads) == 0
    threads.join("third")
    assert isinstance(await threads.place("third", "third"), ThreadSlot)  # the queue is empty


async def test_who_waits_for_its_turn_takes_no_thread_once_the_run_has_ended() -> None:
    """The call before it takes its thread in the very step in which both are cancelled."""
    threads = Threads(2)
    threads.join("first")
    got: list[object] = []

    async with anyio.create_task_group() as group:
        group.start_soon(_place, threads, "second", got)
        await anyio.wait_all_tasks_blocked()
        got.append(await threads.place("first", "first"))
        group.cancel_scope.cancel()
    assert len(got) == len(threads) == 1


async def test_threads_that_come_free_together_go_to_all_who_wait_in_the_same_step() -> None:
    """Nobody has to wake to let the next one have its turn: each would take a pass of the event loop."""
    threads, got, held = Threads(2), list[object](), list[object]()
    for name in ("first", "second"):
        await _place(threads, name, held)
    async with anyio.create_task_group() as group:
        for name in ("third", "fourth"):
            group.start_soon(_place, threads, name, got)
        await anyio.wait_all_tasks_blocked()
        for place in held:
            assert isinstance(place, ThreadSlot)
            threads.give_back(place)
        assert len(threads) == 2
    assert len(got) == 2
