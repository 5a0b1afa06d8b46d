"""The caller's cancellation: it reaches every body, waits for all of them, and is never shown to the model."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import attrs
import pytest
from kit.agents import Run, call_each, configure_run, make_agent
from kit.ending import Backend, advance_clock, cancel_natively_when, cancel_when, check_duration
from kit.results import read_requests
from kit.watching import ToolHookLog, Watch

from agentloop import (
    Allow,
    GuardrailFunctionOutput,
    RunConfig,
    RunHooks,
    Runner,
    RunTimeoutError,
    ToolCallError,
    ToolContext,
    ToolExecution,
    input_guardrail,
    tool,
)
from agentloop import records as r
from agentloop._core.run_fold import RunFold
from agentloop.guardrails import RejectContent, tool_output_guardrail
from agentloop.testing import call, say, wait

Canceller = Callable[[anyio.Event, Callable[[], Awaitable[Any]]], Awaitable[None]]


@pytest.fixture(params=["scope", "native"])
def cancelled(request: pytest.FixtureRequest) -> Canceller:
    """Cancel a run by a scope around it, and (on asyncio, see `conftest.py`) by `Task.cancel()`."""
    return cancel_natively_when if request.param == "native" else cancel_when


class Started:
    """Counts bodies that have begun; `all` is set when *n* have."""

    def __init__(self, n: int) -> None:
        self.all = anyio.Event()
        self._left = n

    def one(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.all.set()


@pytest.mark.scenario("PC-01", "LX-46")
async def test_cancelling_the_caller_cancels_every_running_body_at_once(
    run_mode: Run, cancelled: Canceller, anyio_backend: Backend
) -> None:
    """Each body sees the cancellation, all have finished when the run leaves, and the cancellation propagates."""
    started, finished, watch = Started(3), [], Watch()

    @tool
    async def slow(ctx: ToolContext[Any]) -> str:
        started.one()
        try:
            await anyio.sleep(60)
        except anyio.get_cancelled_exc_class():
            finished.append(ctx.tool_call_id)
            raise
        return "never"

    agent = make_agent([slow], call_each("slow", "slow", "slow"))
    async with check_duration(anyio_backend, 0):
        await cancelled(started.all, partial(run_mode, agent, "go", run_config=configure_run(watch)))
    assert sorted(finished) == ["c1", "c2", "c3"]
    assert watch.endings() == dict.fromkeys(("c1", "c2", "c3"), ("cancelled", "parent"))
    assert not watch.of(r.BatchEnded)
    assert watch.end == "cancelled"


@pytest.mark.scenario("PC-01")
async def test_hundred_bodies_have_run_their_finally_when_the_run_leaves(run_mode: Run, cancelled: Canceller) -> None:
    """All 100 bodies of 100 have ended, without a limit on bodies in flight."""
    started, finished, watch = Started(100), [], Watch()

    @tool
    async def slow(ctx: ToolContext[Any]) -> str:
        started.one()
        try:
            await anyio.sleep(60)
        finally:
            finished.append(ctx.tool_call_id)
        return "never"

    agent = make_agent([slow], call_each(*["slow"] * 100))
    config = configure_run(watch, max_function_tool_concurrency=None)
    await cancelled(started.all, partial(run_mode, agent, "go", run_config=config))
    assert len(finished) == 100
    assert set(watch.endings().values()) == {("cancelled", "parent")}
    assert len(watch.of(r.CallSettled)) == 100


@pytest.mark.scenario("PC-02")
async def test_nothing_of_a_cancelled_run_becomes_visible_to_the_model(run_mode: Run, cancelled: Canceller) -> None:
    """No failure function, output guardrail or output comes; the end hooks run once each, shielded."""
    started, asked, watch = Started(2), [], Watch()

    async def slowly(call_id: str, outcome: Any) -> None:
        await anyio.sleep(0.01)

    hooks = ToolHookLog(at_end=slowly)

    def never(*args: Any) -> Any:
        asked.append(args)
        return Allow()

    @tool(failure_error_function=never, tool_output_guardrails=[tool_output_guardrail(never)])
    async def slow() -> str:
        started.one()
        await anyio.sleep(60)
        return "never"

    agent = make_agent([slow], call_each("slow", "slow"))
    await cancelled(started.all, partial(run_mode, agent, "go", hooks=hooks, run_config=configure_run(watch)))
    assert asked == []
    assert sorted(hooks.ended) == [("c1", "cancelled", "parent"), ("c2", "cancelled", "parent")]
    assert [watch.outcome(call_id).output for call_id in ("c1", "c2")] == [None, None]
    assert len(read_requests(agent)) == 1
    assert not watch.of(r.BatchEnded)
    assert watch.end == "cancelled"


@pytest.mark.scenario("LX-47")
async def test_run_end_hook_runs_once_shielded_and_the_last_record_says_cancelled(
    run_mode: Run, cancelled: Canceller
) -> None:
    """`on_run_end` may await although its run is cancelled."""
    started, hooks, watch = Started(1), ToolHookLog(), Watch()

    @tool
    async def slow() -> str:
        started.one()
        await anyio.sleep(60)
        return "never"

    agent = make_agent([slow], call_each("slow"))
    await cancelled(started.all, partial(run_mode, agent, "go", hooks=hooks, run_config=configure_run(watch)))
    assert hooks.run_ends == ["cancelled"]
    assert watch.end == "cancelled"


@pytest.mark.scenario("PC-03", "LX-51")
async def test_unshielded_awaits_in_cleanup_fail_at_once_and_ctx_cleanup_goes_on(
    run_mode: Run, cancelled: Canceller, anyio_backend: Backend
) -> None:
    """The cancellation is level-triggered outside `ctx.cleanup()`, and waits inside of it."""
    started, lines, watch = Started(1), [], Watch()

    @tool
    async def tidy(ctx: ToolContext[Any]) -> str:
        started.one()
        try:
            await anyio.sleep(60)
        finally:
            try:
                await anyio.sleep(60)
            except anyio.get_cancelled_exc_class():
                lines.append("refused")
            with ctx.cleanup():
                await anyio.sleep(0.05)
                lines.append("tidied")
        return "never"

    agent = make_agent([tidy], call_each("tidy"))
    async with check_duration(anyio_backend, 0.05):
        await cancelled(started.all, partial(run_mode, agent, "go", run_config=configure_run(watch)))
    assert lines == ["refused", "tidied"]
    assert watch.outcome("c1").cleanup == "done"
    assert not watch.of(r.CleanupCut)


@pytest.mark.slow
@pytest.mark.backends("asyncio", "trio-virtual")
@pytest.mark.scenario("PC-03")
async def test_ctx_cleanup_is_cut_at_the_one_cleanup_deadline(
    run_mode: Run, cancelled: Canceller, anyio_backend: Backend
) -> None:
    """Bodies that want 2 s of cleanup get the grace of 0.5 s, all of them the same one, and the log says so."""
    started, lines, watch = Started(3), [], Watch()

    @tool
    async def greedy(ctx: ToolContext[Any]) -> str:
        started.one()
        try:
            await anyio.sleep(60)
        finally:
            with ctx.cleanup():
                await anyio.sleep(2)
                lines.append("never")
            with ctx.cleanup():
                await anyio.sleep(2)
                lines.append("never")
        return "never"

    agent = make_agent([greedy], call_each("greedy", "greedy", "greedy"))
    config = configure_run(watch, cleanup_grace=0.5)
    async with check_duration(anyio_backend, 0.5):
        await cancelled(started.all, partial(run_mode, agent, "go", run_config=config))
    assert lines == []
    for call_id in ("c1", "c2", "c3"):
        outcome = watch.outcome(call_id)
        assert (outcome.status, outcome.cancelled_by, outcome.cleanup) == ("cancelled", "parent", "cut")
    assert {record.call_id for record in watch.of(r.CleanupCut)} == {"c1", "c2", "c3"}
    assert watch.end == "cancelled"


@pytest.mark.backends("trio-virtual", "asyncio-virtual")
@pytest.mark.scenario("PC-03", "LX-51")
async def test_body_with_a_shield_of_its_own_is_awaited_and_named(
    run_mode: Run, cancelled: Canceller, anyio_backend: Backend
) -> None:
    """A shielded body can't be cut: the run waits for its end, and reports it once a second after the grace."""
    started, watch, lines = Started(1), Watch(), []

    @tool
    async def stubborn() -> str:
        started.one()
        try:
            await anyio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(2)
                lines.append("ended")
        return "never"

    agent = make_agent([stubborn], call_each("stubborn"))
    config = configure_run(watch, cleanup_grace=0.5)
    async with check_duration(anyio_backend, 2):
        await cancelled(started.all, partial(run_mode, agent, "go", run_config=config))
    assert lines == ["ended"]
    assert len(watch.still) == 2  # at 0.5 s and at 1.5 s
    for report, age in zip(watch.still, (0.5, 1.5), strict=True):
        assert (report.call.call_id, report.call.name, report.path) == ("c1", "stubborn", ())
        assert report.age == pytest.approx(age, abs=0.01)
        assert "stubborn" in report.stack
    assert watch.end == "cancelled"


@pytest.mark.scenario("LX-51")
async def test_body_that_swallows_the_cancellation_is_awaited(
    run_mode: Run, cancelled: Canceller, anyio_backend: Backend
) -> None:
    """The run doesn't return before a body that continues for 0.1 s has ended; its value is not a result."""
    started, watch, lines = Started(1), Watch(), []

    @tool
    async def deaf() -> str:
        started.one()
        try:
            await anyio.sleep(60)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.1)
        lines.append("ended")
        return "late"

    agent = make_agent([deaf], call_each("deaf"))
    async with check_duration(anyio_backend, 0.1):
        await cancelled(started.all, partial(run_mode, agent, "go", run_config=configure_run(watch)))
    assert lines == ["ended"]
    assert len(watch.of(r.CallSettled)) == 1
    assert not watch.of(r.BatchEnded)
    assert len(read_requests(agent)) == 1
    assert watch.end == "cancelled"


@pytest.mark.scenario("PC-04")
async def test_parent_cancel_during_a_drain_after_a_failure_joins_and_propagates(
    run_mode: Run, cancelled: Canceller, anyio_backend: Backend
) -> None:
    """The drain continues under the one deadline, the cancellation leaves the run, and the log has the failure."""
    draining, watch, lines = anyio.Event(), Watch(), []

    @tool(failure_error_function=None)
    async def fails() -> str:
        raise ValueError("broken")

    @tool
    async def tidy(ctx: ToolContext[Any]) -> str:
        try:
            await anyio.sleep(60)
        finally:
            with ctx.cleanup():
                draining.set()
                await anyio.sleep(0.1)
                lines.append("tidied")
        return "never"

    agent = make_agent([tidy, fails], call_each("tidy", "fails"))
    async with check_duration(anyio_backend, 0.1):
        await cancelled(draining, partial(run_mode, agent, "go", run_config=configure_run(watch)))
    assert lines == ["tidied"]
    failed = watch.outcome("c2")
    assert failed.status == "failed"
    assert isinstance(failed.error, ValueError)
    assert watch.outcome("c1").status == "cancelled"
    assert not watch.of(r.BatchEnded)
    assert watch.end == "cancelled"


@pytest.mark.scenario("PC-04")
@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_parent_cancel_does_not_prolong_a_drain_under_way(cancelled: Canceller, anyio_backend: Backend) -> None:
    """The deadline was set when the sibling's failure was seen; the parent's cancel 0.2 s later gets no new one."""
    ready, watch = anyio.Event(), Watch()

    @tool(failure_error_function=None)
    async def fails() -> str:
        raise ValueError("broken")

    @tool
    async def greedy(ctx: ToolContext[Any]) -> str:
        try:
            await anyio.sleep(60)
        finally:
            with ctx.cleanup():
                await anyio.sleep(0.2)
                ready.set()
                await anyio.sleep(60)
        return "never"

    agent = make_agent([greedy, fails], call_each("greedy", "fails"))
    config = configure_run(watch, cleanup_grace=0.5)
    async with check_duration(anyio_backend, 0.5):
        await cancelled(ready, partial(Runner.run, agent, "go", run_config=config))
    assert watch.outcome("c1").cleanup == "cut"
    assert watch.end == "cancelled"


@pytest.mark.scenario("PC-05")
async def test_parent_wins_although_the_result_is_ready_in_that_instant(run_mode: Run) -> None:
    """The body cancels its caller and returns: the effect stays in the log, no batch is accepted, no result comes."""
    watch = Watch()

    @tool
    async def last() -> str:
        scope.cancel()
        return "ready"

    agent = make_agent([last], call_each("last"))
    with anyio.CancelScope() as scope:
        await run_mode(agent, "go", run_config=configure_run(watch))
        pytest.fail("the run returned although its caller was cancelled")
    assert scope.cancelled_caught
    assert watch.outcome("c1").body_finished
    assert len(watch.of(r.CallSettled)) == 1
    assert not watch.of(r.BatchEnded)
    assert len(read_requests(agent)) == 1
    assert watch.end == "cancelled"


@pytest.mark.scenario("PC-05")
@pytest.mark.backends("asyncio", "asyncio-eager")
async def test_native_cancel_wins_although_the_result_is_ready_in_that_instant(run_mode: Run) -> None:
    """`Task.cancel()` of the caller's task, called from the body, wins over the result too."""
    watch = Watch()
    hosts: list[Any] = []

    @tool
    async def last() -> str:
        hosts[0].cancel()
        return "ready"

    agent = make_agent([last], call_each("last"))

    async def host() -> None:
        hosts.append(asyncio.current_task())
        await run_mode(agent, "go", run_config=configure_run(watch))

    task = asyncio.create_task(host())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert watch.outcome("c1").body_finished
    assert not watch.of(r.BatchEnded)
    assert watch.end == "cancelled"


async def test_parent_cancel_cuts_a_pending_output_guardrail(run_mode: Run, cancelled: Canceller) -> None:
    """The guardrail after the body is cancelled at once: `cancelled` by `parent`, with the body finished."""
    judging, watch, hooks = anyio.Event(), Watch(), ToolHookLog()

    @tool_output_guardrail
    async def judge(data: Any) -> Any:
        judging.set()
        await anyio.sleep(60)
        return RejectContent("no")

    @tool(tool_output_guardrails=[judge])
    async def quick() -> str:
        return "made"

    agent = make_agent([quick], call_each("quick"))
    await cancelled(judging, partial(run_mode, agent, "go", hooks=hooks, run_config=configure_run(watch)))
    outcome = watch.outcome("c1")
    assert (outcome.status, outcome.cancelled_by, outcome.body_finished) == ("cancelled", "parent", True)
    assert outcome.output is None
    assert hooks.ended == [("c1", "cancelled", "parent")]
    assert watch.end == "cancelled"


async def test_end_hook_under_way_when_the_parent_cancels_finishes_with_the_bodys_outcome(
    run_mode: Run, cancelled: Canceller
) -> None:
    """A call that is past its output guardrails settles with the outcome of its body."""
    hooked, watch = anyio.Event(), Watch()

    async def slowly(call_id: str, outcome: Any) -> None:
        hooked.set()
        await anyio.sleep(0.02)

    hooks = ToolHookLog(at_end=slowly)

    @tool
    async def quick() -> str:
        return "made"

    agent = make_agent([quick], call_each("quick"))
    await cancelled(hooked, partial(run_mode, agent, "go", hooks=hooks, run_config=configure_run(watch)))
    assert hooks.ended == [("c1", "succeeded", None)]
    assert watch.outcome("c1").output == "made"
    assert not watch.of(r.BatchEnded)
    assert watch.end == "cancelled"


@pytest.mark.scenario("LX-48")
async def test_sibling_that_had_finished_keeps_its_outcome_in_the_log(run_mode: Run, cancelled: Canceller) -> None:
    """A call that settled before the cancellation keeps its outcome; a call that hadn't started never starts."""
    running, watch, hooks = anyio.Event(), Watch(), ToolHookLog()

    @tool
    async def quick() -> str:
        return "made"

    @tool
    async def slow() -> str:
        running.set()
        await anyio.sleep(60)
        return "never"

    agent = make_agent([quick, slow], call_each("quick", "slow", "quick"))
    config = configure_run(watch, max_function_tool_concurrency=1)
    await cancelled(running, partial(run_mode, agent, "go", hooks=hooks, run_config=config))
    assert watch.outcome("c1").value == "made"
    assert watch.endings() == {
        "c1": ("succeeded", None),
        "c2": ("cancelled", "parent"),
        "c3": ("cancelled", "parent"),
    }
    assert watch.outcome("c3").started_at is None
    assert [record.call_id for record in watch.of(r.CallStarted)] == ["c1", "c2"]
    assert hooks.started == ["c1", "c2"]
    fold = RunFold()
    for record in watch.records:
        fold.apply(record)
    assert fold.calls["c1"].released


async def test_cancelling_a_turn_of_queued_calls_starts_none_of_them(run_mode: Run, cancelled: Canceller) -> None:
    """Only one body of 50 calls with one slot ever runs."""
    started, watch, bodies = Started(1), Watch(), []

    @tool
    async def slow(ctx: ToolContext[Any]) -> str:
        bodies.append(ctx.tool_call_id)
        started.one()
        await anyio.sleep(60)
        return "never"

    agent = make_agent([slow], call_each(*["slow"] * 50))
    config = configure_run(watch, max_function_tool_concurrency=1)
    await cancelled(started.all, partial(run_mode, agent, "go", run_config=config))
    assert bodies == ["c1"]
    assert len(watch.of(r.CallSettled)) == 50
    assert set(watch.endings().values()) == {("cancelled", "parent")}


async def test_error_in_cleanup_does_not_replace_the_cancellation(run_mode: Run, cancelled: Canceller) -> None:
    """A body whose `finally` raises is still `cancelled` by its parent; instruments receive the error."""
    started, watch = Started(1), Watch()

    @tool(failure_error_function=None)
    async def clumsy() -> str:
        started.one()
        try:
            await anyio.sleep(60)
        finally:
            raise ValueError("in cleanup")

    agent = make_agent([clumsy], call_each("clumsy"))
    await cancelled(started.all, partial(run_mode, agent, "go", run_config=configure_run(watch)))
    assert watch.endings() == {"c1": ("cancelled", "parent")}
    assert [str(report.error) for report in watch.late] == ["in cleanup"]
    assert watch.end == "cancelled"


async def test_parent_outranks_a_cancel_call_of_the_same_step(run_mode: Run) -> None:
    """The parent's cancellation is recorded although both hold at once, and nothing is shown to the model."""
    watch = Watch()

    @tool
    async def torn(ctx: ToolContext[Any]) -> str:
        ctx.cancel_call(ctx.tool_call_id)
        scope.cancel()
        await anyio.sleep(60)
        return "never"

    agent = make_agent([torn], call_each("torn"))
    with anyio.CancelScope() as scope:
        await run_mode(agent, "go", run_config=configure_run(watch))
        pytest.fail("the run returned although its caller was cancelled")
    assert watch.endings() == {"c1": ("cancelled", "parent")}
    assert watch.end == "cancelled"


@pytest.mark.scenario("LX-23")
async def test_run_timeout_ends_calls_by_deadline_and_raises_with_data(run_mode: Run, anyio_backend: Backend) -> None:
    """At 60 s the running and the queued call are `cancelled` by `deadline`, and `RunTimeoutError` leaves."""
    watch, hooks = Watch(), ToolHookLog()

    @tool
    async def slow() -> str:
        advance_clock(60)
        await anyio.sleep_forever()
        return "never"

    agent = make_agent([slow], call_each("slow", "slow"))
    config = configure_run(watch, config=RunConfig(timeout=60), max_function_tool_concurrency=1)
    async with check_duration(anyio_backend, 60):
        with pytest.raises(RunTimeoutError) as caught:
            await run_mode(agent, "go", hooks=hooks, run_config=config)
    assert watch.endings() == {"c1": ("cancelled", "deadline"), "c2": ("cancelled", "deadline")}
    assert watch.outcome("c2").started_at is None
    assert hooks.ended == [("c1", "cancelled", "deadline")]
    assert caught.value.run_data is not None
    assert [settled.call.call_id for settled in caught.value.run_data.calls] == ["c1", "c2"]
    assert watch.end == "failed"


async def test_run_called_in_a_cancelled_scope_starts_nothing(run_mode: Run) -> None:
    """No hook, model call or body starts; the cancellation propagates."""
    ran = []

    @tool
    async def quick() -> str:
        ran.append("body")
        return "made"

    agent = make_agent([quick], call_each("quick"))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await run_mode(agent, "go")
        pytest.fail("the run returned although its caller was cancelled")
    assert ran == []
    assert read_requests(agent) == []


async def test_cancel_while_the_model_answers_counts_the_request_and_ends_the_run(
    run_mode: Run, cancelled: Canceller
) -> None:
    """A cancelled model call leaves no turn half accepted."""
    asked, watch = anyio.Event(), Watch()

    def step(request: Any) -> Any:
        asked.set()
        return [wait(60), say("never")]

    agent = make_agent([], step, done=None)
    await cancelled(asked, partial(run_mode, agent, "go", run_config=configure_run(watch)))
    assert not watch.of(r.ModelResponded)
    assert watch.end == "cancelled"


# ---------------------------------------------------------------------------------------------- sync bodies


@contextmanager
def released(event: threading.Event) -> Iterator[None]:
    """Let the threads of a test end, also when the test fails."""
    try:
        yield
    finally:
        event.set()


@pytest.mark.real_clock
@pytest.mark.scenario("PC-08", "LX-49")
async def test_sync_body_that_polls_is_stopped_and_its_thread_awaited(run_mode: Run, cancelled: Canceller) -> None:
    """`check_cancelled()` raises in the thread; the run leaves after the thread's `finally`."""
    started, lines, watch = anyio.Event(), [], Watch()

    @tool
    def polls(ctx: ToolContext[Any]) -> str:
        anyio.from_thread.run_sync(started.set)
        try:
            pause = threading.Event()
            while not pause.wait(0.005):
                ctx.check_cancelled()
        finally:
            lines.append("left")
        return "never"

    agent = make_agent([polls], call_each("polls"))
    await cancelled(started, partial(run_mode, agent, "go", run_config=configure_run(watch)))
    assert lines == ["left"]
    assert watch.endings() == {"c1": ("cancelled", "parent")}
    assert not watch.outcome("c1").abandoned
    assert watch.end == "cancelled"


@pytest.mark.real_clock
@pytest.mark.scenario("PC-08", "LX-49")
async def test_sync_body_that_does_not_poll_is_awaited(run_mode: Run, cancelled: Canceller) -> None:
    """The run doesn't leave while the thread runs; what it returned is no result."""
    started, lines, watch = anyio.Event(), [], Watch()

    @tool
    def blocks() -> str:
        anyio.from_thread.run_sync(started.set)
        threading.Event().wait(0.1)
        lines.append("ended")
        return "late"

    agent = make_agent([blocks], call_each("blocks"))
    await cancelled(started, partial(run_mode, agent, "go", run_config=configure_run(watch)))
    assert lines == ["ended"]
    assert len(watch.of(r.CallSettled)) == 1
    assert not watch.of(r.BatchEnded)
    assert watch.end == "cancelled"


@pytest.mark.real_clock
@pytest.mark.leaves_threads  # the thread tells of its end while it is still inside the library
@pytest.mark.scenario("PC-08", "LX-49")
@pytest.mark.parametrize("fails", [False, True])
async def test_abandoned_thread_is_left_and_its_late_outcome_reaches_the_instruments(
    run_mode: Run, cancelled: Canceller, fails: bool
) -> None:
    """With `abandon_on_cancel` the run leaves at once; the outcome says so, and nothing of the thread is lost."""
    started, watch, go_on, told = anyio.Event(), Watch(), threading.Event(), anyio.Event()

    class Told(Watch):
        def on_late_result(self, report: Any) -> None:
            super().on_late_result(report)
            told.set()

    watch = Told()

    @tool(abandon_on_cancel=True)
    def blocks() -> str:
        anyio.from_thread.run_sync(started.set)
        go_on.wait(10)
        if fails:
            raise ValueError("late error")
        return "late value"

    agent = make_agent([blocks], call_each("blocks"))
    with released(go_on):
        await cancelled(started, partial(run_mode, agent, "go", run_config=configure_run(watch)))
        outcome = watch.outcome("c1")
        assert (outcome.status, outcome.cancelled_by, outcome.abandoned) == ("cancelled", "parent", True)
        assert watch.end == "cancelled"
        assert watch.late == []
        go_on.set()
        with anyio.fail_after(60):
            await told.wait()
    [report] = watch.late
    assert report.call.call_id == "c1"
    if fails:
        assert isinstance(report.error, ValueError)
        assert report.value is None
    else:
        assert (report.value, report.error) == ("late value", None)


async def test_failing_end_hook_does_not_replace_the_cancellation(run_mode: Run, cancelled: Canceller) -> None:
    """DE-12: an end hook that fails while something else leaves is secondary."""
    started, watch = Started(1), Watch()

    async def broken(call_id: str, outcome: Any) -> None:
        raise ValueError("hook")

    @tool
    async def slow() -> str:
        started.one()
        await anyio.sleep(60)
        return "never"

    agent = make_agent([slow], call_each("slow"))
    await cancelled(
        started.all, partial(run_mode, agent, "go", hooks=ToolHookLog(at_end=broken), run_config=configure_run(watch))
    )
    assert watch.endings() == {"c1": ("cancelled", "parent")}
    assert watch.end == "cancelled"


async def test_caller_can_go_on_after_it_caught_the_cancellation(run_mode: Run) -> None:
    """A scope that caught the cancellation leaves nothing behind: the same agent runs again."""
    started = anyio.Event()

    @tool
    async def slow(ctx: ToolContext[Any]) -> str:
        if not started.is_set():
            started.set()
            await anyio.sleep(60)
        return "made"

    agent = make_agent([slow], call("slow", call_id="c1"), call("slow", call_id="c1"))
    await cancel_when(started, partial(run_mode, agent, "go"))
    result = await run_mode(agent, "again")
    assert result.final_output == "done"


@pytest.mark.scenario("PC-04")
async def test_sibling_failure_then_join_raises_the_failure_only_after_cleanup(
    run_mode: Run, anyio_backend: Backend
) -> None:
    """Without a parent's cancel the failure is raised after the join, the cleanup having had its time."""
    lines = []

    @tool(failure_error_function=None)
    async def fails() -> str:
        raise ValueError("broken")

    @tool
    async def tidy(ctx: ToolContext[Any]) -> str:
        try:
            await anyio.sleep(60)
        finally:
            with ctx.cleanup():
                await anyio.sleep(0.05)
                lines.append("tidied")
        return "never"

    agent = make_agent([tidy, fails], call_each("tidy", "fails"))
    async with check_duration(anyio_backend, 0.05):
        with pytest.raises(ToolCallError, match="Error running tool fails: ValueError: broken"):
            await run_mode(agent, "go", run_config=RunConfig(tool_execution=ToolExecution(cleanup_grace=30)))
    assert lines == ["tidied"]


@pytest.mark.parametrize("where", ["body", "guardrail", "hook"])
async def test_a_cancellation_raised_by_hand_beside_the_callers_leaves_the_run_cancelled(
    run_mode: Run, where: str
) -> None:
    """In the step in which the caller cancels, code raises asyncio's cancellation: the caller's wins.

    The code runs in the task of a call, in one beside the model's, and in the run's own; on trio it is foreign.
    """
    scope, watch = anyio.CancelScope(), Watch()

    def give_up() -> Any:
        scope.cancel()
        raise asyncio.CancelledError("given up")

    class Hooks(RunHooks):
        async def on_llm_start(self, *_: Any) -> None:
            if where == "hook":
                give_up()

    @tool
    async def gives_up() -> str:
        return str(give_up())

    async def judges(*_: Any) -> GuardrailFunctionOutput:
        return give_up() if where == "guardrail" else GuardrailFunctionOutput(None)

    agent = attrs.evolve(make_agent([gives_up], call_each("gives_up")), input_guardrails=[input_guardrail(judges)])
    with scope:
        await run_mode(agent, "go", run_config=configure_run(watch), hooks=Hooks())
    assert scope.cancelled_caught
    assert watch.records[-1].status == "cancelled"
