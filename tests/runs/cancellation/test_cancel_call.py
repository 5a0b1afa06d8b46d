"""`cancel_call` ends one call from outside, by id, call or event, from any task or thread; the run continues."""

from collections.abc import Iterator
from typing import Any, get_args

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
import pytest
from kit.agents import Run, call_each, configure_run, fine, make_agent, script_turns
from kit.ending import endless
from kit.results import read_endings, read_shown_outputs
from kit.watching import ToolHookLog, Watch

from agentloop import Agent, Allow, ExternalTool, RunConfig, Runner, ToolContext, ToolExecution, UserError, tool
from agentloop import events as ev
from agentloop import records as r
from agentloop.exceptions import ToolCancelledError, UserTypeError
from agentloop.guardrails import ToolGuardrailResult, tool_input_guardrail
from agentloop.items import (
    ITEM_TYPES,
    ApprovalRequest,
    CallToAnswer,
    HandoffCall,
    HandoffOutput,
    HostedToolCall,
    ToolCall,
)
from agentloop.outcomes import CallOutcome
from agentloop.testing import ScriptedModel, call, say

ONE_AT_A_TIME = RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=1))


@pytest.mark.scenario("TC-01")
@pytest.mark.parametrize("by", ["id", "call", "event", "item event"])
async def test_stream_cancels_a_running_call_by_id_call_or_event(by: str) -> None:
    """The model receives the reason of the cancellation; siblings are left alone."""
    agent = make_agent([endless, fine], call_each("endless", "fine"))
    items: dict[str, Any] = {}
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.ItemCreated) and getattr(event.item, "call_id", None) == "c1":
                items.setdefault("item event", event)
            if isinstance(event, ev.CallStarted) and event.call.call_id == "c1":
                what = items | {"id": "c1", "call": event.call, "event": event}
                assert stream.cancel_call(what[by], "not needed") is True
    result = stream.result
    assert result.final_output == "done"
    assert read_shown_outputs(agent) == {"c1": "Tool endless failed with: ToolCancelledError(not needed)", "c2": "fine"}
    assert read_endings(result.calls) == [("c1", "cancelled", "caller"), ("c2", "succeeded", None)]
    assert result.calls[0].outcome.reason == "not needed"


async def test_call_is_cancelled_from_another_tool(run_mode: Run) -> None:
    """Any tool of the run may cancel a call."""
    running = anyio.Event()

    @tool
    async def waits() -> str:
        running.set()
        await anyio.sleep(60)
        return "never"

    @tool
    async def stops(ctx: ToolContext[Any]) -> str:
        await running.wait()
        return str(ctx.cancel_call("c1", "by another"))

    agent = make_agent([waits, stops], call_each("waits", "stops"))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": "Tool waits failed with: ToolCancelledError(by another)", "c2": "True"}


@pytest.mark.real_clock
async def test_call_is_cancelled_from_a_thread() -> None:
    """The stream's method works in a worker thread of the application, and its answer is true."""
    agent = make_agent([endless], call_each("endless"))
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.CallStarted):
                assert await anyio.to_thread.run_sync(stream.cancel_call, "c1", "from afar") is True
                assert await anyio.to_thread.run_sync(stream.cancel_call, "c9") is False
    assert read_shown_outputs(agent) == {"c1": "Tool endless failed with: ToolCancelledError(from afar)"}


@pytest.mark.real_clock
async def test_call_is_cancelled_from_a_sync_tool(run_mode: Run) -> None:
    """The context's method works in the thread of a sync body."""
    running = anyio.Event()

    @tool
    async def waits() -> str:
        running.set()
        await anyio.sleep(60)
        return "never"

    @tool
    def stops(ctx: ToolContext[Any]) -> str:
        return str(ctx.cancel_call("c1", "from a thread"))

    agent = make_agent([waits, stops], call_each("waits", "stops"))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {
        "c1": "Tool waits failed with: ToolCancelledError(from a thread)",
        "c2": "True",
    }


async def test_queued_call_that_is_cancelled_never_starts(run_mode: Run) -> None:
    """No body, no hook and no start record exist: the call is `cancelled` by `caller`, and the model receives why."""
    ran: list[str] = []
    hooks, watch = ToolHookLog(), Watch()

    @tool
    async def first(ctx: ToolContext[Any]) -> str:
        assert ctx.cancel_call("c2", "too late")
        return "first"

    @tool
    async def second() -> str:
        ran.append("second")
        return "never"

    agent = make_agent([first, second], call_each("first", "second"))
    result = await run_mode(agent, "go", hooks=hooks, run_config=configure_run(watch, max_function_tool_concurrency=1))
    assert ran == []
    assert read_shown_outputs(agent) == {"c1": "first", "c2": "Tool second failed with: ToolCancelledError(too late)"}
    assert read_endings(result.calls) == [("c1", "succeeded", None), ("c2", "cancelled", "caller")]
    assert result.calls[1].outcome.started_at is None
    assert hooks.started == ["c1"]
    assert [record.call_id for record in watch.of(r.CallStarted)] == ["c1"]


async def test_cancelled_queued_call_does_not_stop_those_behind_it(run_mode: Run) -> None:
    """With one slot the third call runs after the first."""

    @tool
    async def first(ctx: ToolContext[Any]) -> str:
        assert ctx.cancel_call("c2")
        assert ctx.cancel_call("c3")
        return "first"

    agent = make_agent([first, endless, fine], call_each("first", "endless", "endless", "fine"))
    result = await run_mode(agent, "go", run_config=ONE_AT_A_TIME)
    assert [status for _, status, _ in read_endings(result.calls)] == [
        "succeeded",
        "cancelled",
        "cancelled",
        "succeeded",
    ]


async def test_cancelled_queued_call_of_a_later_segment_never_starts(run_mode: Run) -> None:
    """A call behind an exclusive one isn't queued yet, and still can be cancelled."""
    ran: list[str] = []

    @tool(exclusive=True)
    async def alone(ctx: ToolContext[Any]) -> str:
        assert ctx.cancel_call("c2", "never mind")
        return "alone"

    @tool
    async def later() -> str:
        ran.append("later")
        return "never"

    agent = make_agent([alone, later, fine], call_each("alone", "later", "fine"))
    result = await run_mode(agent, "go")
    assert ran == []
    assert [status for _, status, _ in read_endings(result.calls)] == ["succeeded", "cancelled", "succeeded"]
    assert result.calls[1].outcome.cancelled_by == "caller"


async def test_unknown_and_ended_calls_answer_false() -> None:
    """Nothing happens, nothing is raised."""
    agent = make_agent(
        [fine, endless], [call("fine", call_id="c1"), call("endless", call_id="c2")], call("fine", call_id="c3")
    )
    answers: list[bool] = []
    async with Runner.run_streamed(agent, "go") as stream:
        assert stream.cancel_call("c1") is False  # the model hasn't said anything yet
        async for event in stream:
            if isinstance(event, ev.CallSettled) and event.call.call_id == "c1":
                answers += [stream.cancel_call("c1"), stream.cancel_call(event), stream.cancel_call("unknown")]
                assert stream.cancel_call("c2") is True
            if isinstance(event, ev.CallSettled) and event.call.call_id == "c2":
                answers += [stream.cancel_call("c2")]
    answers += [stream.cancel_call("c3"), stream.cancel_call("c1")]
    assert answers == [False] * 6
    assert stream.result.final_output == "done"


async def test_second_cancel_of_a_running_call_changes_nothing(run_mode: Run) -> None:
    """The first reason stays."""

    @tool
    async def stops(ctx: ToolContext[Any]) -> str:
        ctx.cancel_call(ctx.tool_call_id, "first")
        ctx.cancel_call(ctx.tool_call_id, "second")
        await anyio.sleep(60)
        return "never"

    agent = make_agent([stops], call_each("stops"))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": "Tool stops failed with: ToolCancelledError(first)"}


async def test_call_cancelled_during_planning_never_starts() -> None:
    """Between the model's answer and the first start the application is asked things; a cancel then is remembered."""
    ran: list[str] = []
    asked: list[str] = []
    streams: list[Any] = []

    @tool
    async def doomed() -> str:
        ran.append("doomed")
        return "never"

    async def enabled(ctx: Any, agent: Any) -> bool:
        asked.append("enabled")
        if len(asked) == 2:  # the first question is asked before the model is
            assert streams[0].cancel_call("c1", "changed my mind") is True
            await anyio.lowlevel.checkpoint()
        return True

    @tool(is_enabled=enabled)
    async def gated() -> str:
        return "gated"

    agent = make_agent([doomed, gated], call_each("doomed", "gated"))
    async with Runner.run_streamed(agent, "go") as stream:
        streams.append(stream)
        async for _ in stream:
            pass
    assert ran == []
    assert read_shown_outputs(agent) == {
        "c1": "Tool doomed failed with: ToolCancelledError(changed my mind)",
        "c2": "gated",
    }
    assert read_endings(stream.result.calls)[0] == ("c1", "cancelled", "caller")


async def test_call_cancelled_in_its_input_guardrail_never_starts(run_mode: Run) -> None:
    """The guardrail is cut, the body doesn't run, hooks don't fire."""
    hooks = ToolHookLog()
    ran: list[str] = []

    @tool_input_guardrail
    async def judge(data: Any) -> Any:
        data.context.cancel_call(data.context.tool_call_id, "judged")
        await anyio.sleep(60)
        return Allow()

    @tool(tool_input_guardrails=[judge])
    async def work() -> str:
        ran.append("work")
        return "never"

    agent = make_agent([work], call_each("work"))
    result = await run_mode(agent, "go", hooks=hooks)
    assert ran == []
    assert hooks.started == []
    assert read_endings(result.calls) == [("c1", "cancelled", "caller")]
    assert result.calls[0].outcome.started_at is None


async def test_cancel_call_of_an_agent_tool_ends_its_nested_run(run_mode: Run) -> None:
    """The nested bodies are cancelled and awaited; the outer model receives the reason; the outer run continues."""
    lines: list[str] = []
    running = anyio.Event()

    @tool
    async def deep() -> str:
        running.set()
        try:
            await anyio.sleep(60)
        finally:
            lines.append("deep ended")
        return "never"

    @tool
    async def stops(ctx: ToolContext[Any]) -> str:
        await running.wait()
        assert ctx.cancel_call("c1", "enough")
        return "stopped it"

    watch = Watch()
    inner: Agent[Any, Any] = Agent(
        "inner", model=ScriptedModel([call("deep", call_id="d1"), say("never")]), tools=[deep]
    )
    agent = make_agent(
        [inner.as_tool(), stops], [call("inner", {"input": "go"}, call_id="c1"), call("stops", call_id="c2")]
    )
    result = await run_mode(agent, "go", run_config=configure_run(watch))
    assert result.final_output == "done"
    assert lines == ["deep ended"]
    assert read_shown_outputs(agent)["c1"] == "Tool inner failed with: ToolCancelledError(enough)"
    ends = [(record.path, record.status) for record in watch.of(r.RunEnded)]
    assert ends == [(("c1",), "cancelled"), ((), "completed")]


def nest_deep(call_id: str) -> tuple[Agent[Any, Any], ScriptedModel]:
    """Return an agent whose call `c1` runs another agent, and the model of that one, whose call *call_id* sleeps."""

    @tool
    async def deep() -> str:
        await anyio.sleep(60)
        return "never"

    inner_model = ScriptedModel([call("deep", call_id=call_id), say("inner done")])
    inner: Agent[Any, Any] = Agent("inner", model=inner_model, tools=[deep])
    return make_agent([inner.as_tool()], call("inner", {"input": "go"}, call_id="c1")), inner_model


def check_deep_was_cancelled(agent: Agent[Any, Any], inner_model: ScriptedModel) -> None:
    """Check that the sleeping call was cancelled, and that both runs have continued."""
    assert read_shown_outputs(agent) == {"c1": "inner done"}
    assert [item.output for item in inner_model.requests[1].items if hasattr(item, "output")] == [
        "Tool deep failed with: ToolCancelledError(enough)"
    ]


async def test_nested_call_is_cancelled_by_its_event() -> None:
    """An event of a nested call carries its path; the nested run continues."""
    agent, inner_model = nest_deep("d1")
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.CallStarted) and event.path == ("c1",):
                assert stream.cancel_call("d1") is False  # an id alone means the run's own calls
                assert stream.cancel_call(event, "enough") is True
    check_deep_was_cancelled(agent, inner_model)


async def test_nested_call_is_cancelled_by_its_path_and_id() -> None:
    """The path tells it from a call of the outer run that has the same id; an unknown path is False."""
    agent, inner_model = nest_deep("c1")
    async with Runner.run_streamed(agent, "go") as stream:
        assert stream.cancel_call("c1", path=("c1",)) is False  # not begun
        async for event in stream:
            if isinstance(event, ev.CallStarted) and event.path == ("c1",):
                assert stream.cancel_call("c1", path=("c9",)) is False
                assert stream.cancel_call("c1", path=("c1", "c1")) is False
                assert stream.cancel_call("c1", "enough", path=event.path) is True
    check_deep_was_cancelled(agent, inner_model)


@pytest.mark.parametrize("wrong", ["c1", ["c1"], (1,), None])
async def test_wrong_path_of_a_call_is_refused(wrong: Any) -> None:
    """Also before the run has begun; an event has a path of its own."""
    stream = Runner.run_streamed(make_agent([fine], call_each("fine")), "go")
    with pytest.raises(UserTypeError, match="path: expected a tuple of call ids"):
        stream.cancel_call("c1", path=wrong)
    async with stream:
        async for event in stream:
            if isinstance(event, ev.CallStarted):
                with pytest.raises(UserError, match="path: an event has its own"):
                    stream.cancel_call(event, path=("c1",))


async def test_cancelled_call_under_policy_raise_fails_the_run(run_mode: Run) -> None:
    """`cancel_call` of a tool without failure function ends the run: the tool's policy, not the caller's."""

    @tool(failure_error_function=None)
    async def strict(ctx: ToolContext[Any]) -> str:
        ctx.cancel_call(ctx.tool_call_id, "enough")
        await anyio.sleep(60)
        return "never"

    with pytest.raises(ToolCancelledError, match="enough"):
        await run_mode(make_agent([strict], call_each("strict")), "go")


@pytest.mark.backends("asyncio", "asyncio-eager")  # trio begins the calls in any order
@pytest.mark.parametrize("cap", [None, 2])
async def test_call_that_another_of_its_admission_cancels_at_once_never_begins(run_mode: Run, cap: int | None) -> None:
    """With eager tasks a body runs while the calls beside it are still being started; it may cancel one of them."""
    begun: list[str] = []

    @tool
    async def stops(ctx: ToolContext[Any]) -> str:
        return str(ctx.cancel_call("c2", "not needed"))

    @tool
    async def begins(ctx: ToolContext[Any]) -> str:
        begun.append(ctx.tool_call_id)
        await anyio.lowlevel.checkpoint()
        return "begun"

    watch = Watch()
    agent = make_agent([stops, begins], call_each("stops", "begins", "begins"))
    result = await run_mode(agent, "go", run_config=configure_run(watch, max_function_tool_concurrency=cap))
    assert result.final_output == "done"
    assert read_endings(result.calls)[1] == ("c2", "cancelled", "caller")
    assert [settled.call_id for settled in watch.of(r.CallSettled)].count("c2") == 1
    assert begun == ["c3"]


CALL = ToolCall("c1", "endless")
SAMPLES: dict[str, Any] = {
    **{"call": CALL, "call_id": "c1", "path": (), "turn": 1, "agent": "a", "duration": 0.0, "guardrail": fine},
    **{"outcome": CallOutcome(status="succeeded"), "status": "completed", "progress": 1.0, "returns": {}, "data": {}},
    **{"cached": 1, "cached_before": 2},
}
"""Values of required fields, by name."""


def make_samples(cls: Any) -> Iterator[Any]:
    """Yield values of *cls*, one for each kind of thing that it can hold: each is about call `c1` if it can be."""
    inner: dict[str, tuple[Any, ...]] = {
        "item": ITEM_TYPES,
        "request": (CallToAnswer,) if cls is ev.AnswerRequested else (ApprovalRequest,),
        "result": (ToolGuardrailResult,),
    }
    required = [one.name for one in msgspec.structs.fields(cls) if one.required]
    held = next((name for name in required if name in inner), None)
    filled = {name: SAMPLES.get(name, "text") for name in required}
    if held is None:
        yield cls(**filled)
    else:
        yield from (cls(**filled | {held: one}) for kind in inner[held] for one in make_samples(kind))


EVENTS = [one for kind in get_args(ev.Event) for one in make_samples(kind)]
NOT_BODIES = (HandoffCall, HandoffOutput, HostedToolCall)
"""Handoffs, and what the provider runs itself: they have a `call_id`, but are no calls of a tool of the run."""


def is_of_the_call(event: Any) -> bool:
    """Tell whether the id of the call is anywhere in *event*."""
    return not isinstance(getattr(event, "item", None), NOT_BODIES) and "'c1'" in repr(event)


def name_kinds(event: Any) -> str:
    return f"{type(event).__name__} {type(getattr(event, 'item', 0)).__name__}"


@pytest.mark.parametrize("event", EVENTS, ids=name_kinds)
async def test_each_event_of_a_call_cancels_it(event: Any) -> None:
    """Whatever an event holds the call in; an event of no call is refused, by name."""
    agent = make_agent([endless], call_each("endless"))
    async with Runner.run_streamed(agent, "go") as stream:
        async for one in stream:
            if not isinstance(one, ev.CallStarted):
                continue
            if is_of_the_call(event):
                assert stream.cancel_call(event, "not needed") is True
                continue
            with pytest.raises(UserTypeError, match=r"^cancel_call: expected a call id, a ToolCall, .*, got "):
                stream.cancel_call(event)
            assert stream.cancel_call("c1", "not needed") is True
    assert read_endings(stream.result.calls) == [("c1", "cancelled", "caller")]


@pytest.mark.parametrize("given", ["event", "interruption"])
@pytest.mark.parametrize("waiting", ["verdict", "answer"])
async def test_a_call_of_a_nested_run_is_cancelled_by_what_says_that_it_waits(given: str, waiting: str) -> None:
    """The event and the interruption know the path; the outermost run has a call of the same id."""

    @tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    asking: Any = pay if waiting == "verdict" else ExternalTool("pay", "Pay.", {})
    inner: Agent[Any, Any] = Agent("inner", model=script_turns(call("pay", {}, "c1"), say("ok")), tools=[asking])
    beside = [call("ask", {"input": "?"}, "a1"), call("endless", {}, "c1")]
    agent = Agent("outer", model=script_turns(beside, say("done")), tools=[inner.as_tool("ask", "Ask."), endless])
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.ApprovalRequested | ev.AnswerRequested):
                about = event if given == "event" else event.request
                with pytest.raises(UserError, match=r"^path: "):
                    stream.cancel_call(about, path=("a1",))
                assert stream.cancel_call(about, "not needed") is True
                assert stream.cancel_call("c1", "nor this") is True
    assert [(one.path, one.call_id) for one in stream.state.records if isinstance(one, r.CancelRequested)] == [
        (("a1",), "c1"),
        ((), "c1"),
    ]


@pytest.mark.parametrize("wrong", [CALL, 1, None, ["c1"], {}])
async def test_a_context_takes_the_id_of_a_call_only(run_mode: Run, wrong: Any) -> None:
    """Anything else is refused: False would say that the call has ended."""

    @tool
    async def stops(ctx: ToolContext[Any]) -> str:
        with pytest.raises(UserTypeError, match=r"^call_id: expected text, got "):
            ctx.cancel_call(wrong)
        return "refused"

    agent = make_agent([stops], call_each("stops"))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": "refused"}
