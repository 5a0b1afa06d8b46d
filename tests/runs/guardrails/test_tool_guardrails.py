"""Guardrails of tools: what judges a call right before its body, and its output before anything accepts it."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
from kit.agents import Run, call_each, configure_run, make_agent
from kit.results import read_endings, read_outputs, read_requests, read_shown_outputs
from kit.watching import ToolHookLog, Watch

from agentloop import Allow, MaxTurnsExceeded, Runner, ToolCallError, ToolContext, tool
from agentloop import events as ev
from agentloop import records as r
from agentloop.exceptions import ToolInputGuardrailTripwireTriggered, ToolOutputGuardrailTripwireTriggered
from agentloop.guardrails import (
    RaiseException,
    RejectContent,
    ReplaceOutput,
    Rewrite,
    tool_input_guardrail,
    tool_output_guardrail,
)
from agentloop.testing import call


def saying(verdict: Any, lines: list[str] | None = None, name: str = "judge") -> Callable[[Any], Any]:
    """Return a guardrail function that answers *verdict* and notes that it was asked."""

    def judge(data: Any) -> Any:
        if lines is not None:
            lines.append(name)
        return verdict

    return judge


def input_guard(verdict: Any, lines: list[str] | None = None, name: str = "judge") -> Any:
    """Return a tool input guardrail that answers *verdict*."""
    return tool_input_guardrail(saying(verdict, lines, name), name=name)


def output_guard(verdict: Any, lines: list[str] | None = None, name: str = "judge") -> Any:
    """Return a tool output guardrail that answers *verdict*."""
    return tool_output_guardrail(saying(verdict, lines, name), name=name)


def worker(ran: list[Any], name: str = "work", **options: Any) -> Any:
    """Return a tool of one number that notes its runs."""

    async def work(n: int = 0) -> str:
        ran.append(n)
        return f"secret {n}"

    return tool(name=name, **options)(work)


# ---------------------------------------------------------------------------------------------- input


@pytest.mark.scenario("GT-01", "LX-57")
async def test_input_rejection_skips_body_and_hooks_and_tells_the_model(run_mode: Run) -> None:
    """The output is the guardrail's message, the status `rejected`, and the run continues."""
    ran: list[int] = []
    hooks = ToolHookLog()
    work = worker(ran, tool_input_guardrails=[input_guard(RejectContent("not this one"))])
    agent = make_agent([work], call_each("work"))
    result = await run_mode(agent, "go", hooks=hooks)
    assert result.final_output == "done"
    assert read_shown_outputs(agent) == {"c1": "not this one"}
    assert read_endings(result.calls) == [("c1", "rejected", None)]
    assert result.calls[0].outcome.started_at is None
    assert (ran, hooks.started, hooks.ended) == ([], [], [])


@pytest.mark.scenario("GT-02")
@pytest.mark.parametrize("siblings", [0, 2])
async def test_input_tripwire_leaves_the_run_unwrapped(run_mode: Run, siblings: int) -> None:
    """`ToolInputGuardrailTripwireTriggered` leaves despite the tool's failure function; siblings are cancelled."""
    ran: list[int] = []
    watch = Watch()

    @tool
    async def slow() -> str:
        await anyio.sleep(60)
        return "never"

    work = worker(
        ran,
        tool_input_guardrails=[input_guard(RaiseException("info"))],
        failure_error_function=lambda ctx, error: "handled",
    )
    agent = make_agent([work, slow], call_each("work", *["slow"] * siblings))
    with pytest.raises(ToolInputGuardrailTripwireTriggered) as caught:
        await run_mode(agent, "go", run_config=configure_run(watch))
    assert ran == []
    assert caught.value.guardrail_result.guardrail.name == "judge"
    assert caught.value.guardrail_result.output == RaiseException("info")
    assert watch.end == "failed"


@pytest.mark.scenario("GT-08")
async def test_input_guardrail_runs_although_the_arguments_are_no_json(run_mode: Run) -> None:
    """The guardrail sees None for arguments and the raw text in the context; its rejection is the output."""
    seen: list[Any] = []

    @tool_input_guardrail
    def judge(data: Any) -> Any:
        seen.append((data.arguments, data.context.tool_arguments, data.context.tool_call_id, data.tool.name))
        return RejectContent("seen it")

    ran: list[int] = []
    agent = make_agent([worker(ran, tool_input_guardrails=[judge])], call("work", "{not json", call_id="c1"))
    await run_mode(agent, "go")
    assert seen == [(None, "{not json", "c1", "work")]
    assert read_shown_outputs(agent) == {"c1": "seen it"}
    assert ran == []


@pytest.mark.scenario("GT-08")
async def test_bad_json_that_a_guardrail_allows_is_told_by_the_failure_policy(run_mode: Run) -> None:
    """Allowing doesn't make the arguments good."""
    lines: list[str] = []
    ran: list[int] = []
    work = worker(ran, tool_input_guardrails=[input_guard(Allow(), lines)])
    agent = make_agent([work], call("work", "{not json", call_id="c1"))
    await run_mode(agent, "go")
    assert lines == ["judge"]
    assert read_shown_outputs(agent)["c1"].startswith("Arguments of tool work aren't valid JSON")
    assert ran == []


@pytest.mark.scenario("LX-58")
async def test_rewritten_arguments_are_what_body_record_and_later_guardrails_get(run_mode: Run) -> None:
    """The first guardrail rewrites; the second judges the new arguments; the call keeps what the model wrote."""
    seen: list[Any] = []

    @tool_input_guardrail
    def second(data: Any) -> Any:
        seen.append(data.arguments)
        return Allow()

    ran: list[int] = []
    watch = Watch()
    work = worker(ran, tool_input_guardrails=[input_guard(Rewrite({"n": 7})), second])
    agent = make_agent([work], call("work", {"n": 1}, call_id="c1"))
    await run_mode(agent, "go", run_config=configure_run(watch))
    assert ran == [7]
    assert seen == [{"n": 7}]
    [started] = watch.of(r.CallStarted)
    assert started.arguments == '{"n": 7}'
    assert read_shown_outputs(agent) == {"c1": "secret 7"}


@pytest.mark.scenario("LX-58")
async def test_rewritten_arguments_make_the_receipt(run_mode: Run) -> None:
    """A later call for the rewritten arguments is a hit; one for the written ones is rewritten too, and a hit."""
    ran: list[int] = []

    @tool_input_guardrail
    def even(data: Any) -> Any:
        n = data.arguments["n"]
        return Allow() if n % 2 == 0 else Rewrite({"n": n + 1})

    work = worker(ran, idempotent=True, tool_input_guardrails=[even])
    agent = make_agent(
        [work],
        call("work", {"n": 1}, call_id="c1"),
        call("work", {"n": 2}, call_id="c2"),
        call("work", {"n": 1}, call_id="c3"),
    )
    result = await run_mode(agent, "go")
    assert ran == [2]
    assert [status for _, status, _ in read_endings(result.calls)] == ["succeeded", "replayed", "replayed"]
    assert read_outputs(result.new_items) == {"c1": "secret 2", "c2": "secret 2", "c3": "secret 2"}


@pytest.mark.scenario("LX-58")
async def test_rewritten_arguments_make_the_receipt_within_a_batch(run_mode: Run) -> None:
    """Two calls that come to the same arguments run one body."""
    ran: list[int] = []
    work = worker(ran, idempotent=True, tool_input_guardrails=[input_guard(Rewrite({"n": 9}))])
    agent = make_agent([work], [call("work", {"n": 1}, call_id="c1"), call("work", {"n": 2}, call_id="c2")])
    result = await run_mode(agent, "go")
    assert ran == [9]
    assert sorted(status for _, status, _ in read_endings(result.calls)) == ["replayed", "succeeded"]
    assert read_outputs(result.new_items) == {"c1": "secret 9", "c2": "secret 9"}


async def test_rewrite_to_arguments_that_do_not_fit_is_an_argument_fault(run_mode: Run) -> None:
    """The new arguments are bound like the model's."""
    ran: list[int] = []
    work = worker(ran, tool_input_guardrails=[input_guard(Rewrite({"n": "many"}))])
    agent = make_agent([work], call("work", {"n": 1}, call_id="c1"))
    result = await run_mode(agent, "go")
    assert ran == []
    assert read_endings(result.calls) == [("c1", "failed", None)]


# ---------------------------------------------------------------------------------------------- output


@pytest.mark.scenario("GT-03")
async def test_output_rejection_leaves_nothing_of_the_raw_result(run_mode: Run) -> None:
    """The model and the end hook get the message; the value is in no record, no item and no outcome."""
    ran: list[int] = []
    hooks, watch = ToolHookLog(), Watch()
    work = worker(ran, tool_output_guardrails=[output_guard(RejectContent("withheld"))])
    agent = make_agent([work], call("work", {"n": 1}, call_id="c1"))
    result = await run_mode(agent, "go", hooks=hooks, run_config=configure_run(watch))
    assert ran == [1]
    assert read_shown_outputs(agent) == {"c1": "withheld"}
    assert read_endings(result.calls) == [("c1", "rejected", None)]
    assert hooks.outcomes["c1"].output == "withheld"
    assert hooks.outcomes["c1"].value is None
    everything = [result.new_items, result.calls, watch.records, read_requests(agent), hooks.outcomes]
    assert "secret 1" not in repr(everything)
    assert all(record.outcome.value is None for record in watch.of(r.CallSettled))


@pytest.mark.scenario("GT-03")
async def test_output_rejection_is_all_a_stream_shows() -> None:
    """No event carries the raw result."""
    ran: list[int] = []
    work = worker(ran, tool_output_guardrails=[output_guard(RejectContent("withheld"))])
    agent = make_agent([work], call("work", {"n": 1}, call_id="c1"))
    async with Runner.run_streamed(agent, "go") as stream:
        events = [event async for event in stream]
    assert "secret 1" not in repr(events)
    assert all(event.outcome.value is None for event in events if isinstance(event, ev.CallSettled))


@pytest.mark.scenario("GT-04")
async def test_output_tripwire_leaves_the_run_unwrapped(run_mode: Run) -> None:
    """`ToolOutputGuardrailTripwireTriggered` leaves with the result that tripped."""
    watch, hooks = Watch(), ToolHookLog()
    work = worker([], tool_output_guardrails=[output_guard(RaiseException("info"))])
    agent = make_agent([work], call_each("work"))
    with pytest.raises(ToolOutputGuardrailTripwireTriggered) as caught:
        await run_mode(agent, "go", hooks=hooks, run_config=configure_run(watch))
    assert caught.value.guardrail_result.output == RaiseException("info")
    assert caught.value.guardrail_result.call.call_id == "c1"
    assert "secret" not in repr(watch.records)
    assert [status for _, status, _ in hooks.ended] == ["failed"]
    assert watch.end == "failed"


async def test_waiting_calls_start_until_the_end_hooks_of_a_tripped_call_are_over(run_mode: Run) -> None:
    """The outcome stops the batch, and the call has it only after its end hooks, which hear of it first."""
    ran = anyio.Event()

    @tool
    async def other() -> str:
        ran.set()
        return "ok"

    async def at_end(call_id: str, outcome: Any) -> None:
        if call_id == "c1":
            with anyio.fail_after(60):
                await ran.wait()

    watch, hooks = Watch(), ToolHookLog(at_end=at_end)
    work = worker([], tool_output_guardrails=[output_guard(RaiseException())])
    agent = make_agent([work, other], call_each("work", "other"))
    with pytest.raises(ToolOutputGuardrailTripwireTriggered):
        await run_mode(agent, "go", hooks=hooks, run_config=configure_run(watch, max_function_tool_concurrency=1))
    assert {record.call_id: record.outcome.status for record in watch.of(r.CallSettled)} == {
        "c1": "failed",
        "c2": "succeeded",
    }


@pytest.mark.parametrize("options", [{"secret": ("n",)}, {"secret_output": True}])
async def test_output_tripwire_of_a_tool_with_secrets_is_told_whole(run_mode: Run, options: Any) -> None:
    """Its text is the library's own, and names the guardrail and the tool."""
    watch = Watch()
    work = worker([], tool_output_guardrails=[output_guard(RaiseException())], **options)
    with pytest.raises(ToolOutputGuardrailTripwireTriggered, match="guardrail judge tripped on a call of tool work"):
        await run_mode(make_agent([work], call("work", {"n": 7})), "go", run_config=configure_run(watch))
    (settled,) = watch.of(r.CallSettled)
    assert settled.error == (
        "ToolOutputGuardrailTripwireTriggered(Tool output guardrail judge tripped on a call of tool work)"
    )


@pytest.mark.scenario("LX-59")
async def test_replaced_output_is_what_model_log_and_events_carry() -> None:
    """The replacement takes the place of the value everywhere; later guardrails judge it."""
    seen: list[Any] = []

    @tool_output_guardrail
    def second(data: Any) -> Any:
        seen.append((data.value, data.output))
        return Allow()

    hooks, watch = ToolHookLog(), Watch()
    work = worker([], tool_output_guardrails=[output_guard(ReplaceOutput("public")), second])
    agent = make_agent([work], call("work", {"n": 1}, call_id="c1"))
    async with Runner.run_streamed(agent, "go", hooks=hooks, run_config=configure_run(watch)) as stream:
        events = [event async for event in stream]
    assert read_shown_outputs(agent) == {"c1": "public"}
    assert seen == [("public", "public")]
    assert watch.outcome("c1").output == "public"
    assert watch.outcome("c1").value == "public"
    assert watch.outcome("c1").status == "succeeded"
    assert hooks.outcomes["c1"].output == "public"
    assert "secret 1" not in repr((events, watch.records, stream.result.new_items))


# ---------------------------------------------------------------------------------------------- order and results


@pytest.mark.scenario("GT-05")
@pytest.mark.parametrize("stop", [RejectContent("no"), RaiseException()])
@pytest.mark.parametrize("stage", ["input", "output"])
async def test_guardrails_run_in_list_order_and_the_first_refusal_ends_the_list(
    run_mode: Run, stop: Any, stage: str
) -> None:
    """Results are recorded up to and including it."""
    lines: list[str] = []
    make = input_guard if stage == "input" else output_guard
    guards = [make(Allow(1), lines, "first"), make(stop, lines, "second"), make(Allow(), lines, "third")]
    options: dict[str, Any] = {f"tool_{stage}_guardrails": guards}
    work = worker([], **options)
    agent = make_agent([work], call_each("work"))
    data: Any
    if isinstance(stop, RaiseException):
        with pytest.raises((ToolInputGuardrailTripwireTriggered, ToolOutputGuardrailTripwireTriggered)) as caught:
            await run_mode(agent, "go")
        data = caught.value.run_data
    else:
        data = await run_mode(agent, "go")
    assert lines == ["first", "second"]
    results = getattr(data, f"tool_{stage}_guardrail_results")
    assert [(result.guardrail.name, result.output) for result in results] == [("first", Allow(1)), ("second", stop)]
    assert all(result.duration >= 0 and result.call.call_id == "c1" for result in results)


@pytest.mark.scenario("GT-09")
async def test_guardrail_results_are_reported_on_success(run_mode: Run) -> None:
    """The result has the guardrail results of every turn, with inputs and outputs apart."""
    work = worker([], tool_input_guardrails=[input_guard(Allow("in"))], tool_output_guardrails=[output_guard(Allow(2))])
    agent = make_agent([work], call("work", call_id="c1"), call("work", {"n": 2}, call_id="c2"))
    result = await run_mode(agent, "go")
    assert [(one.call.call_id, one.output) for one in result.tool_input_guardrail_results] == [
        ("c1", Allow("in")),
        ("c2", Allow("in")),
    ]
    assert [one.call.call_id for one in result.tool_output_guardrail_results] == ["c1", "c2"]


@pytest.mark.scenario("GT-09")
async def test_guardrail_results_are_reported_when_turns_run_out(run_mode: Run) -> None:
    """The error's data has the guardrail results."""
    work = worker([], tool_input_guardrails=[input_guard(Allow("in"))])
    agent = make_agent([work], call("work", call_id="c1"), call("work", call_id="c2"), done=None)
    with pytest.raises(MaxTurnsExceeded) as caught:
        await run_mode(agent, "go", max_turns=1)
    assert caught.value.run_data is not None
    assert [one.call.call_id for one in caught.value.run_data.tool_input_guardrail_results] == ["c1"]


class Scoped:
    """A context variable, and what guardrail and end hook saw of it."""

    def __init__(self) -> None:
        self.variable: ContextVar[str] = ContextVar("variable", default="unset")
        self.judged: list[str] = []
        self.hooked: list[str] = []

    async def judge(self, data: Any) -> Any:
        self.judged.append(f"{data.context.tool_call_id} {self.variable.get()}")
        return Allow()

    async def at_end(self, call_id: str, outcome: Any) -> None:
        self.hooked.append(f"{call_id} {self.variable.get()}")

    async def check(self, run_mode: Run, sets: Any) -> None:
        """Run two calls of *sets*, which sets the variable to its call's id and returns it."""
        agent = make_agent([sets], call_each("sets", "sets"))
        await run_mode(agent, "go", hooks=ToolHookLog(at_end=self.at_end))
        assert read_shown_outputs(agent) == {"c1": "c1", "c2": "c2"}
        assert sorted(self.judged) == ["c1 c1", "c2 c2"]
        assert sorted(self.hooked) == ["c1 c1", "c2 c2"]
        assert self.variable.get() == "unset"


@pytest.mark.scenario("GT-10")
async def test_context_variables_set_in_a_body_are_seen_by_its_guardrails_and_end_hook_alone(run_mode: Run) -> None:
    """The variables are seen neither by a sibling nor by the caller."""
    scoped, both = Scoped(), anyio.Event()

    @tool(tool_output_guardrails=[tool_output_guardrail(scoped.judge)])
    async def sets(ctx: ToolContext[Any]) -> str:
        scoped.variable.set(ctx.tool_call_id)
        if ctx.tool_call_id == "c2":
            both.set()
        await both.wait()
        return scoped.variable.get()

    await scoped.check(run_mode, sets)


@pytest.mark.real_clock
@pytest.mark.scenario("GT-10")
async def test_context_variables_set_in_a_sync_body_are_seen_by_its_guardrails_and_end_hook(run_mode: Run) -> None:
    """A thread makes no difference to what a body leaves behind for its own call."""
    scoped = Scoped()

    @tool(tool_output_guardrails=[tool_output_guardrail(scoped.judge)])
    def sets(ctx: ToolContext[Any]) -> str:
        scoped.variable.set(ctx.tool_call_id)
        return scoped.variable.get()

    await scoped.check(run_mode, sets)


@pytest.mark.scenario("GT-11")
@pytest.mark.parametrize("first", [True, False])
async def test_output_guardrail_that_trips_while_a_failure_is_drained_wins(run_mode: Run, first: bool) -> None:
    """The guardrail finishes in the grace; of two errors of one class the later phase's is raised, the other noted."""
    judging, drained = anyio.Event(), anyio.Event()

    @tool_output_guardrail
    async def judge(data: Any) -> Any:
        judging.set()
        await drained.wait()
        return RaiseException()

    @tool(tool_output_guardrails=[judge])
    async def judged() -> str:
        return "made"

    @tool(failure_error_function=None)
    async def fails() -> str:
        await judging.wait()
        raise ValueError("broken")

    @tool
    async def victim() -> str:
        try:
            await anyio.sleep(60)
        finally:
            drained.set()
        return "never"

    names = ["judged", "fails"] if first else ["fails", "judged"]
    agent = make_agent([judged, fails, victim], call_each(*names, "victim"))
    with pytest.raises(ToolOutputGuardrailTripwireTriggered) as caught:
        await run_mode(agent, "go")
    assert any("broken" in note for note in caught.value.__notes__)


@pytest.mark.scenario("GT-11")
async def test_output_guardrail_that_passes_while_a_failure_is_drained_keeps_the_output(run_mode: Run) -> None:
    """The judged call's output is kept in the error's data; the sibling's failure is raised."""
    judging, drained = anyio.Event(), anyio.Event()

    @tool_output_guardrail
    async def judge(data: Any) -> Any:
        judging.set()
        await drained.wait()
        return Allow()

    @tool(tool_output_guardrails=[judge])
    async def judged() -> str:
        return "made"

    @tool(failure_error_function=None)
    async def fails() -> str:
        await judging.wait()
        raise ValueError("broken")

    @tool
    async def victim() -> str:
        try:
            await anyio.sleep(60)
        finally:
            drained.set()
        return "never"

    agent = make_agent([judged, fails, victim], call_each("judged", "fails", "victim"))
    with pytest.raises(ToolCallError, match="broken") as caught:
        await run_mode(agent, "go")
    assert caught.value.run_data is not None
    assert read_endings(caught.value.run_data.calls) == [
        ("c1", "succeeded", None),
        ("c2", "failed", None),
        ("c3", "cancelled", "sibling"),
    ]
    assert read_outputs(caught.value.run_data.new_items)["c1"] == "made"


@pytest.mark.scenario("GT-11")
@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_output_guardrail_is_cut_at_the_cleanup_deadline_while_a_failure_is_drained(run_mode: Run) -> None:
    """The guardrail is cut at the deadline, the cut is recorded, and the failure is raised."""
    judging, watch = anyio.Event(), Watch()

    @tool_output_guardrail
    async def judge(data: Any) -> Any:
        judging.set()
        await anyio.sleep(60)
        return Allow()

    @tool(tool_output_guardrails=[judge])
    async def judged() -> str:
        return "made"

    @tool(failure_error_function=None)
    async def fails() -> str:
        await judging.wait()
        raise ValueError("broken")

    agent = make_agent([judged, fails], call_each("judged", "fails"))
    start = anyio.current_time()
    with pytest.raises(ToolCallError, match="broken"):
        await run_mode(agent, "go", run_config=configure_run(watch, cleanup_grace=0.2))
    assert anyio.current_time() - start == pytest.approx(0.2)
    assert [record.call_id for record in watch.of(r.CleanupCut)] == ["c1"]
    outcome = watch.outcome("c1")
    assert (outcome.status, outcome.body_finished, outcome.cleanup) == ("cancelled", True, "cut")
    assert "made" not in repr(watch.records)


@pytest.mark.parametrize("stage", ["input", "output"])
async def test_guardrail_that_raises_fails_the_run(run_mode: Run, stage: str) -> None:
    """A guardrail's error is no verdict and no failure of the body, so it isn't made a text for the model."""

    def broken(data: Any) -> Any:
        raise LookupError("no verdict")

    ran: list[int] = []
    guards = [(tool_input_guardrail if stage == "input" else tool_output_guardrail)(broken)]
    options: dict[str, Any] = {f"tool_{stage}_guardrails": guards}
    work = worker(ran, **options)
    agent = make_agent([work], call_each("work"))
    with pytest.raises(ToolCallError, match="LookupError: no verdict"):
        await run_mode(agent, "go")
    assert ran == ([] if stage == "input" else [0])


async def test_async_guardrails_are_awaited(run_mode: Run) -> None:
    """Sync and async functions behave the same."""

    async def judge(data: Any) -> Any:
        await anyio.sleep(0.01)
        return Allow()

    work = worker(
        [], tool_input_guardrails=[tool_input_guardrail(judge)], tool_output_guardrails=[tool_output_guardrail(judge)]
    )
    agent = make_agent([work], call_each("work"))
    result = await run_mode(agent, "go")
    assert read_endings(result.calls) == [("c1", "succeeded", None)]
    assert all(one.duration >= 0.009 for one in result.tool_input_guardrail_results)


async def test_input_guardrails_are_asked_right_before_the_body_while_holding_the_slot(run_mode: Run) -> None:
    """Step 9 follows admission: the second call's guardrail waits for the first call's body."""
    lines: list[str] = []

    @tool_input_guardrail
    def judge(data: Any) -> Any:
        lines.append(f"judge {data.context.tool_call_id}")
        return Allow()

    @tool(serial="one", tool_input_guardrails=[judge])
    async def work(ctx: ToolContext[Any]) -> str:
        lines.append(f"body {ctx.tool_call_id}")
        await anyio.sleep(0.01)
        return "made"

    agent = make_agent([work], call_each("work", "work"))
    await run_mode(agent, "go")
    assert lines == ["judge c1", "body c1", "judge c2", "body c2"]
