"""The effect of a failing call on the others of its batch, and the failure that leaves the run."""

from collections import Counter
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import Run, configure_run, make_agent
from kit.ending import Fatal, Rendezvous
from kit.results import find_outcome, find_records, read_outputs, read_shown_outputs, read_statuses
from kit.watching import ToolHookLog

from agentloop import AgentLoopError, Allow, RunConfig, RunHooks, Runner, ToolCallError, ToolContext, UserError, tool
from agentloop import records as r
from agentloop.abc import Instrument, LateResult, StillRunning
from agentloop.exceptions import ToolCancelledError
from agentloop.guardrails import tool_output_guardrail
from agentloop.items import Reasoning
from agentloop.testing import call, reason

SIBLING_TEXT = "Tool 'NAME' was cancelled because another call failed; it did not fail itself."


#  the model receives the failure


@pytest.mark.scenario("SF-01", "LX-06")
async def test_one_failing_call_leaves_its_siblings_outputs_alone(run_mode: Run) -> None:
    """By default the model receives the failure, and exactly one result is an error."""

    @tool
    async def good(n: int) -> int:
        await anyio.lowlevel.checkpoint()
        return n

    @tool
    async def bad() -> str:
        raise ValueError("no luck")

    agent = make_agent([good, bad], [call("good", {"n": 1}, "a"), call("bad", {}, "b"), call("good", {"n": 2}, "c")])
    result = await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"a": "1", "b": "Tool bad failed with: ValueError(no luck)", "c": "2"}
    assert read_statuses(result) == ["succeeded", "failed", "succeeded"]
    assert result.final_output == "done"
    failed = find_outcome(result, "b")
    assert isinstance(failed.error, ValueError)
    assert failed.body_finished


@pytest.mark.scenario("LX-07")
async def test_the_text_of_a_failure_names_type_and_message(run_mode: Run) -> None:
    """The text names the type also of an error whose message says little by itself."""

    @tool
    async def fetch() -> str:
        raise ConnectionError("after 30s")

    agent = make_agent([fetch], call("fetch", {}, "a"))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"a": "Tool fetch failed with: ConnectionError(after 30s)"}


@pytest.mark.scenario("LX-08")
async def test_the_text_of_a_failure_has_all_lines_and_no_secret(
    run_mode: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """The model needs every line to mend its call. The log has one line, and the key is in neither."""

    @tool
    async def fetch() -> str:
        raise RuntimeError("refused with api_key=abc123\nstack: line 7")

    agent = make_agent([fetch], call("fetch", {}, "a"))
    await run_mode(agent, "go")
    text = str(read_shown_outputs(agent)["a"])
    assert text.startswith("Tool fetch failed with: RuntimeError(refused with api_key=")
    assert "abc123" not in text
    assert text.endswith("\nstack: line 7)")
    assert not [line for line in caplog.messages if "abc123" in line or "\n" in line]


@pytest.mark.scenario("LX-09")
async def test_the_text_of_a_group_names_every_leaf(run_mode: Run) -> None:
    """The text names the leaves of nested groups too."""

    @tool
    async def fetch() -> str:
        inner = ExceptionGroup("inner", [KeyError("k"), OSError("disk")])
        raise ExceptionGroup("several", [ValueError("one"), inner])

    agent = make_agent([fetch], call("fetch", {}, "a"))
    await run_mode(agent, "go")
    text = str(read_shown_outputs(agent)["a"])
    for leaf in ("ValueError(one)", "KeyError('k')", "OSError(disk)"):
        assert leaf in text


@pytest.mark.scenario("SF-13")
async def test_a_returned_exception_object_is_an_ordinary_output(run_mode: Run) -> None:
    """The call raises nothing and counts as succeeded."""
    error = ValueError("a value")

    @tool(failure_error_function=None)
    async def f() -> Exception:
        return error

    agent = make_agent([f], call("f", {}, "a"))
    result = await run_mode(agent, "go")
    assert read_statuses(result) == ["succeeded"]
    assert find_outcome(result, "a").value is error
    assert "a value" in str(read_shown_outputs(agent)["a"])


# -- the run ends


@pytest.mark.scenario("SF-02")
async def test_a_failure_without_a_failure_function_ends_the_run(run_mode: Run) -> None:
    """A bare `ToolCallError` leaves the run, with the original as its cause."""
    original = LookupError("no luck")

    @tool(failure_error_function=None)
    async def bad() -> str:
        raise original

    agent = make_agent([bad], call("bad", {}, "b"))
    with pytest.raises(ToolCallError) as caught:
        await run_mode(agent, "go")
    error = caught.value
    assert str(error) == "Error running tool bad: LookupError: no luck"
    assert error.__cause__ is original
    assert (error.tool, error.call.call_id if error.call else None) == ("bad", "b")
    assert error.outcome is not None
    assert error.outcome.status == "failed"
    assert error.run_data is not None
    assert read_statuses(error.run_data) == ["failed"]
    ended = error.run_data.records[-1]
    assert isinstance(ended, r.RunEnded)
    assert ended.status == "failed"


@pytest.mark.scenario("SF-03")
async def test_running_siblings_are_cancelled_and_only_their_end_hook_runs(run_mode: Run) -> None:
    """No failure function or output guardrail runs, and the one end hook gets `cancelled` by sibling."""
    waiting = anyio.Event()
    touched: list[str] = []

    def words(ctx: Any, error: Exception) -> str:
        touched.append("failure function")
        return "x"

    @tool_output_guardrail
    def guard(data: Any) -> Allow:
        touched.append("guardrail")
        return Allow()

    @tool(failure_error_function=words, tool_output_guardrails=[guard])
    async def slow() -> str:
        waiting.set()
        await anyio.sleep_forever()
        return "never"

    @tool(failure_error_function=None)
    async def bad() -> str:
        await waiting.wait()
        raise ValueError("no")

    hooks = ToolHookLog()
    agent = make_agent([slow, bad], [call("slow", {}, "s"), call("bad", {}, "b")])
    with pytest.raises(ToolCallError, match="bad") as caught:
        await run_mode(agent, "go", hooks=hooks)
    assert touched == []
    assert [seen for seen in hooks.seen if seen.startswith("end:s")] == ["end:s:cancelled"]
    outcome = find_outcome(caught.value.run_data, "s")
    assert outcome == hooks.outcomes["s"]
    assert (outcome.status, outcome.cancelled_by, outcome.body_finished) == ("cancelled", "sibling", False)
    assert outcome.output == SIBLING_TEXT.replace("NAME", "slow")


@pytest.mark.scenario("SF-04")
async def test_a_sibling_past_its_body_finishes_its_guardrails_and_hooks(run_mode: Run) -> None:
    """The sibling's guardrail is at work when the other call fails, and it continues after the run's reaction."""
    judging, acted = anyio.Event(), anyio.Event()

    @tool_output_guardrail
    async def guard(data: Any) -> Allow:
        judging.set()
        await acted.wait()
        return Allow()

    @tool(tool_output_guardrails=[guard])
    async def finished() -> str:
        return "kept"

    @tool(failure_error_function=None)
    async def bad() -> str:
        await judging.wait()
        raise ValueError("no")

    @tool
    async def witness() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            acted.set()
        return "never"

    hooks = ToolHookLog()
    agent = make_agent(
        [finished, bad, witness], [call("finished", {}, "f"), call("bad", {}, "b"), call("witness", {}, "w")]
    )
    with anyio.fail_after(20), pytest.raises(ToolCallError, match="bad") as caught:
        await run_mode(agent, "go", hooks=hooks)
    data = caught.value.run_data
    assert read_statuses(data) == ["succeeded", "failed", "cancelled"]
    assert find_outcome(data, "f").output == "kept"
    assert hooks.outcomes["f"].status == "succeeded"
    assert read_outputs(data.new_items if data else ())["f"] == "kept"
    assert not any(isinstance(record, r.CleanupCut) for record in find_records(data, object))


@pytest.mark.scenario("SF-04")
@pytest.mark.backends("trio-virtual")
async def test_what_follows_a_sibling_s_body_is_cut_at_the_cleanup_deadline(run_mode: Run) -> None:
    """A guardrail that needs longer than the grace is cut there, and the cut is recorded."""
    judging = anyio.Event()

    @tool_output_guardrail
    async def guard(data: Any) -> Allow:
        judging.set()
        await anyio.sleep(100)
        return Allow()

    @tool(tool_output_guardrails=[guard])
    async def finished() -> str:
        return "lost"

    @tool(failure_error_function=None)
    async def bad() -> str:
        await judging.wait()
        raise ValueError("no")

    agent = make_agent([finished, bad], [call("finished", {}, "f"), call("bad", {}, "b")])
    began = anyio.current_time()
    with pytest.raises(ToolCallError, match="bad") as caught:
        await run_mode(agent, "go", run_config=configure_run(cleanup_grace=0.5))
    assert anyio.current_time() - began == pytest.approx(0.5)
    outcome = find_outcome(caught.value.run_data, "f")
    assert (outcome.status, outcome.cancelled_by, outcome.body_finished) == ("cancelled", "sibling", True)
    assert outcome.cleanup == "cut"
    [cut] = find_records(caught.value.run_data, r.CleanupCut)
    assert cut.call_id == "f"
    assert "lost" not in str(caught.value.run_data.new_items if caught.value.run_data else "lost")


@pytest.mark.scenario("SF-05")
async def test_a_sibling_s_cleanup_is_awaited_before_the_failure_is_raised(run_mode: Run) -> None:
    """Unshielded awaits in the cleanup fail at once, and `ctx.cleanup()` works."""
    waiting = anyio.Event()
    steps: list[str] = []

    @tool
    async def slow(ctx: ToolContext[Any]) -> str:
        waiting.set()
        try:
            await anyio.sleep_forever()
        finally:
            try:
                await anyio.sleep(100)
            except anyio.get_cancelled_exc_class():
                steps.append("unshielded await failed")
            with ctx.cleanup():
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
                steps.append("cleaned up")
        return "never"

    @tool(failure_error_function=None)
    async def bad() -> str:
        await waiting.wait()
        raise ValueError("no")

    agent = make_agent([slow, bad], [call("slow", {}, "s"), call("bad", {}, "b")])
    with pytest.raises(ToolCallError, match="bad") as caught:
        await run_mode(agent, "go")
    assert steps == ["unshielded await failed", "cleaned up"]
    outcome = find_outcome(caught.value.run_data, "s")
    assert (outcome.status, outcome.cancelled_by, outcome.cleanup) == ("cancelled", "sibling", "done")


class Watching(Instrument):
    """Keeps what outlived its time."""

    def __init__(self) -> None:
        self.running: list[StillRunning] = []
        self.late: list[LateResult] = []

    def on_still_running(self, report: StillRunning) -> None:
        self.running.append(report)

    def on_late_result(self, report: LateResult) -> None:
        self.late.append(report)


@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_a_body_that_goes_on_is_reported_once_a_second_whatever_ends_beside_it(run_mode: Run) -> None:
    """One that fails past the deadline, and wakes who reports, adds nothing."""
    waiting = Rendezvous(4)
    watching = Watching()

    @tool
    async def stubborn(seconds: float) -> str:
        try:
            await waiting.wait()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(seconds)
            if seconds < 1:
                raise Fatal(f"after {seconds}")
        return "never"

    @tool(failure_error_function=None)
    async def bad() -> str:
        await waiting.wait()
        raise ValueError("no")

    calls = [call("stubborn", {"seconds": seconds}, call_id=f"{seconds}") for seconds in (2.75, 0.8, 1.1)]
    agent = make_agent([stubborn, bad], [*calls, call("bad", {}, "b")])
    config = RunConfig(tool_execution=configure_run(cleanup_grace=0.5).tool_execution, instruments=[watching])
    with pytest.raises(Fatal):
        await run_mode(agent, "go", run_config=config)
    reported = Counter(report.call.call_id for report in watching.running)
    assert reported == {"2.75": 3, "0.8": 1, "1.1": 1}
    ages = [report.age for report in watching.running if report.call.call_id == "2.75"]
    assert ages == [pytest.approx(age, abs=0.01) for age in (0.5, 1.5, 2.5)]


@pytest.mark.scenario("SF-05")
@pytest.mark.backends("trio-virtual")
async def test_a_sibling_s_bounded_cleanup_is_cut_and_its_own_shield_is_awaited(run_mode: Run) -> None:
    """`ctx.cleanup()` ends at the deadline; a shield of its own is named once a second until it ends."""
    waiting = Rendezvous(3)
    watching = Watching()
    ended: dict[str, float] = {}

    @tool
    async def polite(ctx: ToolContext[Any]) -> str:
        try:
            await waiting.wait()
            await anyio.sleep_forever()
        finally:
            with ctx.cleanup():
                await anyio.sleep(2)
            ended["polite"] = anyio.current_time() - began
        return "never"

    @tool
    async def stubborn() -> str:
        try:
            await waiting.wait()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(2.75)
            ended["stubborn"] = anyio.current_time() - began
        return "never"

    @tool(failure_error_function=None)
    async def bad() -> str:
        await waiting.wait()
        raise ValueError("no")

    agent = make_agent(
        [polite, stubborn, bad], [call("polite", {}, "p"), call("stubborn", {}, "s"), call("bad", {}, "b")]
    )
    config = RunConfig(tool_execution=configure_run(cleanup_grace=0.5).tool_execution, instruments=[watching])
    began = anyio.current_time()
    with pytest.raises(ToolCallError, match="bad") as caught:
        await run_mode(agent, "go", run_config=config)
    assert anyio.current_time() - began == pytest.approx(2.75)
    assert ended == {"polite": pytest.approx(0.5), "stubborn": pytest.approx(2.75)}
    data = caught.value.run_data
    assert find_outcome(data, "p").cleanup == "cut"
    assert [record.call_id for record in find_records(data, r.CleanupCut)] == ["p"]
    assert {report.call.call_id for report in watching.running} == {"s"}
    assert [report.age for report in watching.running] == [pytest.approx(at) for at in (0.5, 1.5, 2.5)]
    assert all("stubborn" in report.stack for report in watching.running)


# -- which failure is raised


async def _pass_by_sleep_zero(n: int) -> None:
    await anyio.lowlevel.checkpoint()


async def _pass_by_equal_sleeps(n: int) -> None:
    await anyio.sleep(1.5)


REPEATS = 200


async def _fail_together(run_mode: Run, wait: Any) -> None:
    """Six calls that fail after *wait*: the first in model order is raised, the others are its notes."""

    @tool(failure_error_function=None)
    async def f(n: int) -> int:
        await wait(n)
        raise ValueError(f"no {n}")

    agent = make_agent([f], [call("f", {"n": n}, f"c{n}") for n in range(6)])
    with pytest.raises(ToolCallError, match="ValueError: no 0") as caught:
        await run_mode(agent, "go")
    notes = caught.value.__notes__
    assert len(notes) == 5
    for n, note in enumerate(notes, 1):
        assert f"no {n}" in note
    assert read_statuses(caught.value.run_data) == ["failed"] * 6


@pytest.mark.slow
@pytest.mark.scenario("SF-06", "SF-09")
async def test_of_failures_after_one_checkpoint_the_first_in_model_order_is_raised(run_mode: Run) -> None:
    """The same failure is raised each time, with five notes."""
    for _ in range(REPEATS):
        await _fail_together(run_mode, _pass_by_sleep_zero)


@pytest.mark.slow
@pytest.mark.scenario("SF-06")
async def test_of_failures_after_one_event_the_first_in_model_order_is_raised(run_mode: Run) -> None:
    """The same failure is raised each time, with five notes."""
    for _ in range(REPEATS):
        everyone = Rendezvous(6)

        async def together(n: int, everyone: Rendezvous = everyone) -> None:
            await everyone.wait()
            # Who came last hasn't waited: one more checkpoint brings all into one pass.
            await anyio.lowlevel.checkpoint()

        await _fail_together(run_mode, together)


@pytest.mark.slow
@pytest.mark.scenario("SF-06")
async def test_of_failures_set_off_from_outside_the_first_in_model_order_is_raised(run_mode: Run) -> None:
    """A task that is no call sets the one event that all of the bodies wait for."""
    for _ in range(REPEATS // 4):
        come, go = Rendezvous(7), anyio.Event()

        async def together(n: int, come: Rendezvous = come, go: anyio.Event = go) -> None:
            await come.wait()
            await go.wait()

        async def outside(come: Rendezvous = come, go: anyio.Event = go) -> None:
            await come.wait()
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            go.set()

        async with anyio.create_task_group() as group:
            group.start_soon(outside)
            await _fail_together(run_mode, together)


@pytest.mark.slow
@pytest.mark.scenario("SF-06")
@pytest.mark.backends("trio-virtual")
async def test_of_failures_after_equal_sleeps_the_first_in_model_order_is_raised(run_mode: Run) -> None:
    """The same failure is raised each time, with five notes."""
    for _ in range(REPEATS):
        await _fail_together(run_mode, _pass_by_equal_sleeps)


class Together:
    """Tools that end in one pass: by an error, a fatal one, or by cancelling themselves."""

    def __init__(self, count: int) -> None:
        self._everyone = Rendezvous(count)

        @tool(failure_error_function=None)
        async def wrong(n: int) -> str:
            await self._pass()
            raise ValueError(f"wrong {n}")

        @tool(failure_error_function=None)
        async def fatal(n: int) -> str:
            await self._pass()
            raise Fatal(f"fatal {n}")

        @tool(failure_error_function=None)
        async def cancelled(ctx: ToolContext[Any], n: int) -> str:
            await self._pass()
            ctx.cancel_call(ctx.tool_call_id, f"gave up {n}")
            await anyio.lowlevel.checkpoint()
            return "never"

        self.tools = [wrong, fatal, cancelled]

    async def _pass(self) -> None:
        await self._everyone.wait()
        await anyio.lowlevel.checkpoint()


def _script(*names: str) -> list[Any]:
    return [call(name, {"n": n}, f"c{n}") for n, name in enumerate(names)]


@pytest.mark.scenario("SF-07")
async def test_a_fatal_error_wins_over_ordinary_ones(run_mode: Run) -> None:
    """The first fatal error leaves the run bare, from any place; the others are its notes."""
    names = ("wrong", "cancelled", "fatal", "wrong", "fatal")
    agent = make_agent(Together(5).tools, _script(*names))
    with pytest.raises(Fatal, match="fatal 2") as caught:
        await run_mode(agent, "go")
    assert type(caught.value) is Fatal
    notes = "\n".join(caught.value.__notes__)
    for other in ("wrong 0", "wrong 3", "fatal 4"):
        assert other in notes


@pytest.mark.scenario("SF-07")
async def test_an_ordinary_error_wins_over_a_cancellation(run_mode: Run) -> None:
    """The ordinary error wins although a call that was cancelled alone is before it in model order."""
    finishing = anyio.Event()

    @tool(failure_error_function=None)
    async def gives_up(ctx: ToolContext[Any]) -> str:
        ctx.cancel_call(ctx.tool_call_id, "gave up")
        await anyio.lowlevel.checkpoint()
        return "never"

    @tool_output_guardrail
    async def broken(data: Any) -> Allow:
        finishing.set()
        await cancelled.wait()
        raise ValueError("guardrail broke")

    @tool(tool_output_guardrails=[broken])
    async def finished() -> str:
        return "x"

    @tool
    async def witness() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()
        return "never"

    cancelled = anyio.Event()
    agent = make_agent(
        [gives_up, finished, witness], [call("gives_up", {}, "g"), call("finished", {}, "f"), call("witness", {}, "w")]
    )
    with anyio.fail_after(20), pytest.raises(ToolCallError, match="guardrail broke") as caught:
        await run_mode(agent, "go")
    assert not isinstance(caught.value, ToolCancelledError)
    assert any("gave up" in note for note in caught.value.__notes__)


@pytest.mark.scenario("SF-08")
async def test_an_error_of_a_cancelled_sibling_s_cleanup_is_secondary(run_mode: Run) -> None:
    """The cleanup's error is earlier in model order and still doesn't replace the first failure; it is observed."""
    waiting = anyio.Event()
    watching = Watching()

    @tool(failure_error_function=None)
    async def untidy() -> str:
        try:
            waiting.set()
            await anyio.sleep_forever()
        finally:
            raise RuntimeError("cleanup broke")
        return "never"

    @tool(failure_error_function=None)
    async def bad() -> str:
        await waiting.wait()
        raise ValueError("no")

    agent = make_agent([untidy, bad], [call("untidy", {}, "u"), call("bad", {}, "b")])
    with pytest.raises(ToolCallError, match="ValueError: no") as caught:
        await run_mode(agent, "go", run_config=RunConfig(instruments=[watching]))
    outcome = find_outcome(caught.value.run_data, "u")
    assert (outcome.status, outcome.cancelled_by) == ("cancelled", "sibling")
    assert isinstance(outcome.error, RuntimeError)
    assert [str(late.error) for late in watching.late] == ["cleanup broke"]


@pytest.mark.scenario("SF-08")
async def test_a_fatal_error_of_a_cancelled_sibling_s_cleanup_replaces_the_failure(run_mode: Run) -> None:
    """The earlier failure becomes a note of the fatal error."""
    waiting = anyio.Event()

    @tool(failure_error_function=None)
    async def untidy() -> str:
        try:
            waiting.set()
            await anyio.sleep_forever()
        finally:
            raise Fatal("cleanup died")
        return "never"

    @tool(failure_error_function=None)
    async def bad() -> str:
        await waiting.wait()
        raise ValueError("no")

    agent = make_agent([bad, untidy], [call("bad", {}, "b"), call("untidy", {}, "u")])
    with pytest.raises(Fatal, match="cleanup died") as caught:
        await run_mode(agent, "go")
    assert any("ValueError" in note for note in caught.value.__notes__)


@pytest.mark.scenario("SF-09")
async def test_secondary_failures_stand_in_the_calls(run_mode: Run) -> None:
    """Each call's outcome has its own error."""

    @tool(failure_error_function=None)
    async def f(n: int) -> int:
        await anyio.lowlevel.checkpoint()
        raise ValueError(f"no {n}")

    agent = make_agent([f], [call("f", {"n": n}, f"c{n}") for n in range(3)])
    with pytest.raises(ToolCallError) as caught:
        await run_mode(agent, "go")
    data = caught.value.run_data
    assert [str(find_outcome(data, f"c{n}").error) for n in range(3)] == ["no 0", "no 1", "no 2"]


@pytest.mark.scenario("SF-10")
@pytest.mark.parametrize("part", ["hook", "guardrail"])
async def test_what_fails_after_a_body_beats_a_sibling_s_cancellation(run_mode: Run, part: str) -> None:
    """The hook or guardrail of the second call fails while the first call's own cancellation ends the batch."""
    after_body, acted = anyio.Event(), anyio.Event()

    async def fail_late() -> None:
        after_body.set()
        await acted.wait()
        raise ValueError("too late")

    class Hooks(RunHooks):
        async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
            if ctx.tool_call_id == "f":
                await fail_late()

    @tool_output_guardrail
    async def guard(data: Any) -> Allow:
        await fail_late()
        return Allow()

    @tool(failure_error_function=None)
    async def gives_up(ctx: ToolContext[Any]) -> str:
        await after_body.wait()
        ctx.cancel_call(ctx.tool_call_id, "gave up")
        await anyio.lowlevel.checkpoint()
        return "never"

    @tool(tool_output_guardrails=[guard] if part == "guardrail" else [])
    async def finished() -> str:
        return "x"

    @tool
    async def witness() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            acted.set()
        return "never"

    agent = make_agent(
        [gives_up, finished, witness], [call("gives_up", {}, "g"), call("finished", {}, "f"), call("witness", {}, "w")]
    )
    hooks = Hooks() if part == "hook" else None
    with anyio.fail_after(20), pytest.raises(AgentLoopError) as caught:
        await run_mode(agent, "go", hooks=hooks)
    assert "too late" in str(caught.value)
    assert not isinstance(caught.value, ToolCancelledError)


@pytest.mark.scenario("SF-11")
async def test_what_completed_before_the_failure_is_in_the_error_s_items(run_mode: Run) -> None:
    """The items have complete pairs only: a call without an output is left out with the reasoning before it."""
    first = anyio.Event()

    @tool
    async def good() -> str:
        first.set()
        return "kept"

    @tool(failure_error_function=None)
    async def bad() -> str:
        await first.wait()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        raise ValueError("no")

    agent = make_agent(
        [good, bad],
        call("good", {}, "t1"),
        [reason("kept thought"), call("good", {}, "g"), reason("lost thought"), call("bad", {}, "b")],
    )
    with pytest.raises(ToolCallError) as caught:
        await run_mode(agent, "go")
    data = caught.value.run_data
    assert data is not None
    assert read_outputs(data.new_items) == {"t1": "kept", "g": "kept"}
    assert [item.summary for item in data.new_items if isinstance(item, Reasoning)] == [("kept thought",)]
    assert find_records(data, r.BatchEnded)[-1].turn == 1


@pytest.mark.scenario("SF-14")
async def test_an_error_of_the_library_keeps_its_type(run_mode: Run) -> None:
    """An error of the library that a body raises itself isn't wrapped."""

    class Ours(AgentLoopError):
        pass

    @tool(failure_error_function=None)
    async def bad(which: str) -> str:
        raise Ours("own") if which == "own" else UserError("misused")

    with pytest.raises(Ours, match="own") as caught:
        await run_mode(make_agent([bad], call("bad", {"which": "own"}, "b")), "go")
    assert type(caught.value) is Ours
    assert caught.value.run_data is not None
    with pytest.raises(UserError, match="misused"):
        await run_mode(make_agent([bad], call("bad", {"which": "user"}, "b")), "go")


async def test_a_failure_is_raised_bare_from_a_stream_after_its_events() -> None:
    """The stream delivers every event of the earlier records first."""

    @tool
    async def good() -> str:
        return "kept"

    @tool(failure_error_function=None)
    async def bad() -> str:
        raise ValueError("no")

    agent = make_agent([good, bad], [call("good", {}, "g"), call("bad", {}, "b")])
    seen: list[str] = []
    async with Runner.run_streamed(agent, "go") as stream:
        with pytest.raises(ToolCallError):
            async for event in stream:
                seen.append(type(event).__name__)
        assert isinstance(stream.error, ToolCallError)
    assert seen.count("CallSettled") == 2
    assert seen[-1] == "RunEnded"
