"""A tool's own time limits: they cover the body alone, and end it by the tool's policy."""

import math
import threading
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import Run, call_each, configure_run, make_agent
from kit.ending import Backend, advance_clock, check_duration
from kit.results import read_endings, read_shown_outputs
from kit.watching import ToolHookLog, Watch

from agentloop import (
    Allow,
    FunctionTool,
    RunConfig,
    Runner,
    RunTimeoutError,
    ToolContext,
    ToolExecution,
    UserError,
    tool,
)
from agentloop import records as r
from agentloop.exceptions import ToolTimeoutError
from agentloop.guardrails import tool_input_guardrail, tool_output_guardrail


def sleeper(seconds: float = 60, name: str = "slow", **options: Any) -> Any:
    """Return a tool that sleeps."""

    async def slow() -> str:
        await anyio.sleep(seconds)
        return "slept"

    return tool(name=name, **options)(slow)


@tool
async def fine() -> str:
    """Take a moment."""
    await anyio.sleep(0.01)
    return "fine"


@pytest.mark.scenario("TO-01", "LX-22")
async def test_timed_out_call_is_told_to_the_model_and_siblings_go_on(run_mode: Run, anyio_backend: Backend) -> None:
    """At 0.05 s the slow call is answered with the fixed text; the run continues to its final output."""
    agent = make_agent([sleeper(5, timeout=0.05), fine], call_each("fine", "slow", "fine"))
    async with check_duration(anyio_backend, 0.05):
        result = await run_mode(agent, "go")
    assert result.final_output == "done"
    assert read_shown_outputs(agent) == {"c1": "fine", "c2": "Tool 'slow' timed out after 0.05 seconds.", "c3": "fine"}
    assert read_endings(result.calls) == [
        ("c1", "succeeded", None),
        ("c2", "timed_out", None),
        ("c3", "succeeded", None),
    ]


@pytest.mark.backends("trio-virtual")
@pytest.mark.parametrize(("seconds", "text"), [(1, "1"), (2.0, "2"), (0.2, "0.2"), (90.5, "90.5"), (1e6, "1e+06")])
async def test_timeout_text_names_the_seconds_shortly(run_mode: Run, seconds: float, text: str) -> None:
    """The number is written as `%g` does."""
    agent = make_agent([sleeper(1e7, timeout=seconds)], call_each("slow"))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": f"Tool 'slow' timed out after {text} seconds."}


@pytest.mark.scenario("TO-02")
@pytest.mark.parametrize("is_async", [False, True])
async def test_timeout_function_words_the_output(run_mode: Run, is_async: bool) -> None:
    """The timeout function, sync or async, gets the call's context and a `ToolTimeoutError`."""
    seen: list[tuple[str, ToolTimeoutError]] = []

    def words(ctx: ToolContext[Any], error: ToolTimeoutError) -> str:
        seen.append((ctx.tool_call_id, error))
        return f"{error.tool_name} took more than {error.timeout} s"

    async def words_async(ctx: ToolContext[Any], error: ToolTimeoutError) -> str:
        await anyio.lowlevel.checkpoint()
        return words(ctx, error)

    slow = sleeper(timeout=0.02, timeout_error_function=words_async if is_async else words)
    agent = make_agent([slow], call_each("slow"))
    result = await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": "slow took more than 0.02 s"}
    [(call_id, error)] = seen
    assert call_id == "c1"
    assert isinstance(error, ToolTimeoutError)
    assert read_endings(result.calls) == [("c1", "timed_out", None)]


@pytest.mark.scenario("TO-03")
@pytest.mark.parametrize("siblings", [0, 2])
async def test_timeout_that_raises_ends_the_run_with_name_and_seconds(run_mode: Run, siblings: int) -> None:
    """`ToolTimeoutError` leaves bare, siblings are cancelled, no failure function is asked."""
    asked: list[Exception] = []
    watch = Watch()

    def never(ctx: Any, error: Exception) -> str:
        asked.append(error)
        return "no"

    slow = sleeper(timeout=0.02, timeout_behavior="raise", failure_error_function=never)
    other = sleeper(name="other")
    agent = make_agent([slow, other], call_each("slow", *["other"] * siblings))
    with pytest.raises(ToolTimeoutError) as caught:
        await run_mode(agent, "go", run_config=configure_run(watch))
    assert (caught.value.tool_name, caught.value.timeout) == ("slow", 0.02)
    assert asked == []
    assert watch.outcome("c1").status == "timed_out"
    assert [watch.endings()[f"c{index + 2}"] for index in range(siblings)] == [("cancelled", "sibling")] * siblings
    assert caught.value.run_data is not None
    assert watch.end == "failed"


@pytest.mark.scenario("TO-04")
@pytest.mark.parametrize("timeout", [None, 60.0])
async def test_tools_own_timeout_error_is_an_ordinary_failure(run_mode: Run, timeout: float | None) -> None:
    """A `TimeoutError` that the body raises is not the tool's timeout, whether it has one or not."""

    @tool(timeout=timeout, timeout_error_function=lambda ctx, error: "wrong")
    async def inner() -> str:
        with anyio.fail_after(0.01):
            await anyio.sleep(60)
        return "never"

    agent = make_agent([inner], call_each("inner"))
    result = await run_mode(agent, "go")
    assert read_shown_outputs(agent)["c1"].startswith("Tool inner failed with: TimeoutError(")
    assert read_endings(result.calls) == [("c1", "failed", None)]


@pytest.mark.scenario("TO-05")
@pytest.mark.parametrize("field", ["timeout", "idle_timeout"])
@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, True, "1"])
def test_impossible_timeouts_are_refused_at_construction(field: str, value: Any) -> None:
    """The error names the field; it is a `TypeError` or a `ValueError` too."""
    with pytest.raises(UserError, match=field) as caught:
        sleeper(**{field: value})
    assert isinstance(caught.value, TypeError if isinstance(value, bool | str) else ValueError)


@pytest.mark.scenario("TO-05")
@pytest.mark.parametrize("field", ["timeout", "idle_timeout"])
def test_timeout_on_a_sync_tool_needs_abandon_on_cancel(field: str) -> None:
    """A thread can't be stopped, so construction fails without the opt-in, and the error says what is missing."""

    def blocks() -> str:
        return "never called"

    options: dict[str, Any] = {field: 1.0}
    with pytest.raises(UserError, match="abandon_on_cancel=True"):
        tool(**options)(blocks)
    assert getattr(tool(abandon_on_cancel=True, **options)(blocks), field) == 1.0


@pytest.mark.scenario("TO-06")
@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_timeout_covers_neither_queueing_nor_guardrails_nor_hooks(run_mode: Run, anyio_backend: Backend) -> None:
    """Each of them alone takes longer than the timeout; the bodies take less, and succeed."""

    async def judge(data: Any) -> Any:
        await anyio.sleep(0.2)
        return Allow()

    async def slowly(*_: Any) -> None:
        await anyio.sleep(0.2)

    work = sleeper(
        0.05,
        name="work",
        timeout=0.15,
        tool_input_guardrails=[tool_input_guardrail(judge)],
        tool_output_guardrails=[tool_output_guardrail(judge)],
    )
    agent = make_agent([work], call_each("work", "work"))
    config = RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=1))
    hooks = ToolHookLog(at_start=slowly, at_end=slowly)
    # Guardrail, start hook and body hold the only slot (0.45 s each); the second call's later steps come on top.
    async with check_duration(anyio_backend, 1.3):
        result = await run_mode(agent, "go", hooks=hooks, run_config=config)
    assert read_endings(result.calls) == [("c1", "succeeded", None), ("c2", "succeeded", None)]


@pytest.mark.scenario("TO-07")
async def test_timeout_text_passes_output_guardrails_and_the_end_hook(run_mode: Run) -> None:
    """The guardrail judges the text; the hook gets what came of it."""
    judged: list[Any] = []

    @tool_output_guardrail
    def judge(data: Any) -> Any:
        judged.append((data.value, data.output))
        return Allow()

    hooks = ToolHookLog()
    agent = make_agent([sleeper(timeout=0.02, tool_output_guardrails=[judge])], call_each("slow"))
    await run_mode(agent, "go", hooks=hooks)
    text = "Tool 'slow' timed out after 0.02 seconds."
    assert judged == [(None, text)]
    assert hooks.ended == [("c1", "timed_out", None)]
    assert hooks.outcomes["c1"].output == text


def _deaf(timeout: float, value: str) -> FunctionTool[Any]:
    """Return a tool whose body swallows its first cancellation, and then returns *value*."""

    @tool(timeout=timeout)
    async def deaf() -> str:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            pass
        return value

    return deaf


@pytest.mark.scenario("TO-08")
async def test_body_that_swallows_its_timeout_and_returns_late_has_timed_out(run_mode: Run) -> None:
    """The late value goes to instruments, not to the model."""
    watch = Watch()

    agent = make_agent([_deaf(0.02, "late")], call_each("deaf"))
    result = await run_mode(agent, "go", run_config=configure_run(watch))
    assert read_shown_outputs(agent) == {"c1": "Tool 'deaf' timed out after 0.02 seconds."}
    assert read_endings(result.calls) == [("c1", "timed_out", None)]
    assert result.calls[0].outcome.value is None
    assert [(report.call.call_id, report.value) for report in watch.late] == [("c1", "late")]


@pytest.mark.scenario("TO-08")
@pytest.mark.backends("asyncio-virtual", "trio-virtual")  # the run's time may not pass before the body has begun
async def test_a_body_that_swallows_the_runs_deadline_has_not_timed_out(run_mode: Run) -> None:
    """Its own timeout is later: it has returned, and the run is out of time."""
    watch = Watch()

    agent = make_agent([_deaf(60.0, "in time")], call_each("deaf"))
    with pytest.raises(RunTimeoutError):
        await run_mode(agent, "go", run_config=RunConfig(timeout=0.02, instruments=[watch]))
    (settled,) = watch.of(r.CallSettled)
    assert (settled.outcome.status, settled.outcome.output) == ("succeeded", "in time")
    assert watch.late == []


@pytest.mark.scenario("TO-08")
async def test_each_further_await_of_a_body_past_its_timeout_fails(run_mode: Run, anyio_backend: Backend) -> None:
    """The cancellation is level-triggered: a body that keeps swallowing it can't wait any longer."""
    refused: list[int] = []

    @tool(timeout=0.02)
    async def deaf() -> str:
        for attempt in range(4):
            try:
                await anyio.sleep(60)
            except anyio.get_cancelled_exc_class():
                refused.append(attempt)
        return "late"

    agent = make_agent([deaf], call_each("deaf"))
    async with check_duration(anyio_backend, 0.02):
        result = await run_mode(agent, "go")
    assert refused == [0, 1, 2, 3]
    assert read_endings(result.calls) == [("c1", "timed_out", None)]


async def test_error_in_the_cleanup_of_a_timed_out_body_is_a_late_one(run_mode: Run) -> None:
    """A `finally` that raises while the timeout passes through doesn't change the outcome."""
    watch = Watch()

    @tool(timeout=0.02)
    async def clumsy() -> str:
        try:
            await anyio.sleep(60)
        finally:
            raise ValueError("in cleanup")

    agent = make_agent([clumsy], call_each("clumsy"))
    result = await run_mode(agent, "go", run_config=configure_run(watch))
    assert read_shown_outputs(agent) == {"c1": "Tool 'clumsy' timed out after 0.02 seconds."}
    assert read_endings(result.calls) == [("c1", "timed_out", None)]
    assert [str(report.error) for report in watch.late] == ["in cleanup"]


async def test_timed_out_body_may_clean_up_and_is_awaited(run_mode: Run, anyio_backend: Backend) -> None:
    """`ctx.cleanup()` shields the body from its own timeout; the model gets the answer when the cleanup is over."""
    lines: list[str] = []

    @tool(timeout=0.02)
    async def tidy(ctx: ToolContext[Any]) -> str:
        try:
            await anyio.sleep(60)
        finally:
            with ctx.cleanup():
                await anyio.sleep(0.05)
                lines.append("tidied")
        return "never"

    agent = make_agent([tidy], call_each("tidy"))
    async with check_duration(anyio_backend, 0.07):
        result = await run_mode(agent, "go")
    assert lines == ["tidied"]
    assert read_endings(result.calls) == [("c1", "timed_out", None)]
    assert result.calls[0].outcome.cleanup == "done"


@pytest.mark.backends("asyncio-virtual", "trio-virtual")
@pytest.mark.parametrize("asked", [None, 1.5, 60.0])
async def test_cleanup_of_a_call_that_nobody_cancels_ends_by_itself(
    run_mode: Run, anyio_backend: Backend, asked: float | None
) -> None:
    """The section has the grace, or less if it asks for less: no cleanup holds a run for ever."""

    @tool
    async def tidy(ctx: ToolContext[Any]) -> str:
        with ctx.cleanup(asked):
            await anyio.sleep(3600)
        return "went on"

    agent, watch = make_agent([tidy], call_each("tidy")), Watch()
    async with check_duration(anyio_backend, min(2.0, asked or 2.0)):
        result = await run_mode(agent, "go", run_config=configure_run(watch, cleanup_grace=2.0))
    assert result.calls[0].outcome.output == "went on"
    assert result.calls[0].outcome.cleanup == "cut"
    assert [record.section for record in watch.of(r.CleanupCut)] == ["ctx.cleanup"]


async def test_body_that_ends_at_its_deadline_is_told_truthfully(run_mode: Run) -> None:
    """The call has one outcome, in either order: a value with `succeeded`, or the text with `timed_out`."""
    agent = make_agent([sleeper(0.02, timeout=0.02)], call_each("slow"))
    result = await run_mode(agent, "go")
    [settled] = result.calls
    assert (settled.outcome.status, settled.outcome.value) in {("succeeded", "slept"), ("timed_out", None)}


# ---------------------------------------------------------------------------------------------- idle_timeout


@pytest.mark.scenario("TO-01")
async def test_silent_body_is_ended_by_its_idle_timeout(run_mode: Run, anyio_backend: Backend) -> None:
    """Without a report the idle timeout works as a timeout does."""
    agent = make_agent([sleeper(idle_timeout=0.05)], call_each("slow"))
    async with check_duration(anyio_backend, 0.05):
        result = await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": "Tool 'slow' timed out after 0.05 seconds."}
    assert read_endings(result.calls) == [("c1", "timed_out", None)]


@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_each_report_restarts_the_idle_timeout(run_mode: Run, anyio_backend: Backend) -> None:
    """A body that reports often enough may take many times its idle timeout."""

    @tool(idle_timeout=0.1)
    async def busy(ctx: ToolContext[Any]) -> str:
        for step in range(4):
            await anyio.sleep(0.0625)
            await ctx.report(step, 4)
        return "done it"

    agent = make_agent([busy], call_each("busy"))
    async with check_duration(anyio_backend, 0.25):
        result = await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": "done it"}
    assert read_endings(result.calls) == [("c1", "succeeded", None)]


@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_body_that_falls_silent_is_ended_after_its_last_report(run_mode: Run, anyio_backend: Backend) -> None:
    """The clock runs from the last report."""

    @tool(idle_timeout=0.125)
    async def stalls(ctx: ToolContext[Any]) -> str:
        await anyio.sleep(0.0625)
        await ctx.report(1)
        await anyio.sleep(60)
        return "never"

    agent = make_agent([stalls], call_each("stalls"))
    async with check_duration(anyio_backend, 0.1875):
        await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": "Tool 'stalls' timed out after 0.125 seconds."}


@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_reports_do_not_extend_the_timeout_of_the_whole_body(run_mode: Run, anyio_backend: Backend) -> None:
    """With both limits a talkative body still ends at `timeout`, and the text names that."""

    @tool(idle_timeout=0.125, timeout=0.25)
    async def chats(ctx: ToolContext[Any]) -> str:
        while True:
            await anyio.sleep(0.0625)
            await ctx.report(0)

    agent = make_agent([chats], call_each("chats"))
    async with check_duration(anyio_backend, 0.25):
        await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": "Tool 'chats' timed out after 0.25 seconds."}


@pytest.mark.real_clock
@pytest.mark.leaves_threads
async def test_timeout_of_a_sync_tool_leaves_its_thread_and_says_so(run_mode: Run, anyio_backend: Backend) -> None:
    """With `abandon_on_cancel` the model gets its answer at once; the late value reaches the instruments."""
    go_on, told = threading.Event(), anyio.Event()

    class Told(Watch):
        def on_late_result(self, report: Any) -> None:
            super().on_late_result(report)
            told.set()

    watch = Told()

    @tool(timeout=60, abandon_on_cancel=True)
    def blocks() -> str:
        anyio.from_thread.run_sync(advance_clock, 60)
        go_on.wait(10)
        return "late"

    agent = make_agent([blocks], call_each("blocks"))
    try:
        async with check_duration(anyio_backend, 60):
            result = await run_mode(agent, "go", run_config=configure_run(watch))
    finally:
        go_on.set()
    assert read_shown_outputs(agent) == {"c1": "Tool 'blocks' timed out after 60 seconds."}
    assert read_endings(result.calls) == [("c1", "timed_out", None)]
    assert result.calls[0].outcome.abandoned
    with anyio.fail_after(60):
        await told.wait()
    assert [report.value for report in watch.late] == ["late"]


async def test_parent_outranks_a_timeout_under_way() -> None:
    """A parent's cancel while a timed-out body cleans up gives `cancelled` by `parent`, and nothing for the model."""
    watch = Watch()

    @tool(timeout=0.02)
    async def tidy(ctx: ToolContext[Any]) -> str:
        try:
            await anyio.sleep(60)
        finally:
            with ctx.cleanup():
                scope.cancel()
                await anyio.lowlevel.checkpoint()
        return "never"

    agent = make_agent([tidy], call_each("tidy"))
    with anyio.CancelScope() as scope:
        await Runner.run(agent, "go", run_config=configure_run(watch))
        pytest.fail("the run returned although its caller was cancelled")
    assert watch.endings() == {"c1": ("cancelled", "parent")}
    assert not watch.of(r.BatchEnded)
    assert watch.end == "cancelled"
