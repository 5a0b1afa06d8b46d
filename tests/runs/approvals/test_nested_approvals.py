"""Approvals inside agent tools: they surface on the outer run, and verdicts find their way to the innermost owner."""

import gc
import json
import weakref
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from kit.agents import Run, make_agent, make_free_tool, make_gated_tool
from kit.results import (
    check_history,
    count_records,
    read_approval_requests,
    read_outputs,
    read_requests,
    read_shown_outputs,
    read_statuses,
    read_waiting,
)
from kit.resuming import Pauses, approve, decide_nothing, in_every_way, reject
from kit.watching import ToolHookLog

from agentloop import Agent, Allow, FunctionTool, RunConfig, Runner, RunState, StateError, tool
from agentloop import events as ev
from agentloop import records as r
from agentloop.guardrails import tool_input_guardrail, tool_output_guardrail
from agentloop.items import ApprovalRequest, HandoffCall, ToolCall, ToolOutput, UserMessage
from agentloop.model_events import ModelRequest
from agentloop.testing import FunctionModel, ScriptedModel, call, respond, say


def digger(*tools: FunctionTool, name: str = "digger", steps: Any = None) -> Agent[Any, Any]:
    """Return an agent that calls `gated` as `n1` and then says so."""
    return Agent(name, model=ScriptedModel(steps or [call("gated", {"n": 1}, "n1"), say("dug")]), tools=list(tools))


def stateless(
    tools: list[FunctionTool], decide: Callable[[ModelRequest, dict[str, Any]], Any], name: str
) -> Agent[Any, Any]:
    """Return an agent whose model answers from what it is shown alone: any number of runs may use it at once."""

    def answer(request: ModelRequest) -> Any:
        check_history(request.items)
        return decide(request, read_outputs(request.items))

    return Agent(name, model=FunctionModel(answer), tools=tools)


def asked_for(request: ModelRequest) -> str:
    """Return the text of the run's input."""
    [first, *_] = [item for item in request.items if isinstance(item, UserMessage)]
    return first.text


def many_diggers(ran: list[Any]) -> Agent[Any, Any]:
    """Return an agent that any number of calls may use: its own call has one and the same id every time."""

    @tool(needs_approval=True)
    async def dig(place: str) -> str:
        ran.append(place)
        return f"found {place}"

    def decide(request: ModelRequest, outputs: dict[str, Any]) -> Any:
        place = asked_for(request)
        return say(f"{place}: {outputs['n1']}") if "n1" in outputs else call("dig", {"place": place}, "n1")

    return stateless([dig], decide, "digger")


# ---------------------------------------------------------------------------------------------- the pause


@pytest.mark.scenario("NA-03")
async def test_a_nested_pause_surfaces_on_the_outer_run(run_mode: Run) -> None:
    """The interruption has the nested agent's name and path; the outer call has no output, its sibling has one."""
    ran: list[Any] = []
    inner = digger(make_gated_tool(ran))
    agent = make_agent(
        [inner.as_tool("dig"), make_free_tool(ran)], [call("dig", {"input": "x"}, "o1"), call("free", {}, "o2")]
    )
    result = await run_mode(agent, "go")
    assert (result.status, result.final_output) == ("interrupted", None)
    assert result.interruptions == (ApprovalRequest(ToolCall("n1", "gated", '{"n": 1}'), "digger", ("o1",)),)
    assert result.to_state().interruptions == result.interruptions
    assert read_outputs(result.new_items) == {"o2": "free 0"}
    assert read_statuses(result) == ["succeeded"]
    assert ran == [("free", 0)]
    assert (len(read_requests(inner)), len(read_requests(agent))) == (1, 1)


@pytest.mark.scenario("NA-03", "AP-15")
@in_every_way
async def test_a_nested_pause_nobody_decided_on_asks_no_model(run_mode: Run, way: str) -> None:
    """The same interruption comes back, once, and no model is asked."""
    ran: list[Any] = []
    inner = digger(make_gated_tool(ran))
    agent = make_agent([inner.as_tool("dig")], call("dig", {"input": "x"}, "o1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    for _ in range(2):
        paused = await pauses.resume(agent, paused, decide_nothing)
        assert read_waiting(paused) == ["n1"]
    assert (len(read_requests(inner)), len(read_requests(agent))) == (1, 1)
    result = await pauses.resume(agent, paused, approve())
    assert result.final_output == "done"
    assert ran == [("gated", 1)]
    assert read_approval_requests(result) == ["n1"]


# ---------------------------------------------------------------------------------------------- the verdict


@pytest.mark.scenario("NA-04")
@pytest.mark.parametrize("by", ["interruption", "id"])
@in_every_way
async def test_a_nested_call_approved_on_the_outer_state_runs_once(run_mode: Run, by: str, way: str) -> None:
    """The nested run resumes where it was and answers the outer call; the first entry's result isn't needed."""
    ran: list[Any] = []
    inner = digger(make_gated_tool(ran))
    agent = make_agent([inner.as_tool("dig")], call("dig", {"input": "x"}, "o1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    state = await pauses.state(agent, paused)
    if way != "direct":
        gone = weakref.ref(paused)
        del paused
        gc.collect()
        assert gone() is None
    state.approve(state.interruptions[0] if by == "interruption" else "n1")
    result = await pauses.run(agent, state)
    assert result.final_output == "done"
    assert ran == [("gated", 1)]
    assert read_shown_outputs(inner) == {"n1": "gated 1"}
    assert read_shown_outputs(agent) == {"o1": "dug"}
    assert (len(read_requests(inner)), len(read_requests(agent))) == (2, 2)
    assert result.usage.requests == 4
    assert read_statuses(result) == ["succeeded"]


@pytest.mark.scenario("NA-05")
@pytest.mark.parametrize(("message", "told"), [("not there", "not there"), (None, "Tool 'gated' was not approved.")])
@in_every_way
async def test_a_nested_call_rejected_on_the_outer_state_tells_the_nested_model(
    run_mode: Run, message: str | None, told: str, way: str
) -> None:
    """The nested run continues after the rejection, and the outer model receives its answer."""
    ran: list[Any] = []
    inner = digger(make_gated_tool(ran))
    agent = make_agent([inner.as_tool("dig")], call("dig", {"input": "x"}, "o1"))
    pauses = Pauses(run_mode, way)
    result = await pauses.resume(agent, await pauses.run(agent), reject(message=message))
    assert result.final_output == "done"
    assert ran == []
    assert read_shown_outputs(inner) == {"n1": told}
    assert read_shown_outputs(agent) == {"o1": "dug"}


@pytest.mark.scenario("NA-02")
@pytest.mark.parametrize("sticky", ["outer", "nested"])
@in_every_way
async def test_verdicts_for_good_hold_for_their_own_run(run_mode: Run, sticky: str, way: str) -> None:
    """A verdict on all calls of a tool in one agent's run does not hold for the same tool in the other agent's run."""
    ran: list[Any] = []
    shared = make_gated_tool(ran)
    inner = digger(shared, steps=[call("gated", {"n": 1}, "n1"), call("gated", {"n": 2}, "n2"), say("dug")])
    agent = make_agent(
        [inner.as_tool("dig"), shared],
        [call("gated", {"n": 10}, "o1"), call("dig", {"input": "x"}, "o2")],
        call("gated", {"n": 20}, "o3"),
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    assert read_waiting(paused) == ["o1", "n1"]

    def decide(state: RunState) -> None:
        first, second = state.interruptions
        state.approve(first, always=sticky == "outer")
        state.approve(second, always=sticky == "nested")

    paused = await pauses.resume(agent, paused, decide)
    assert read_waiting(paused) == (["n2"] if sticky == "outer" else ["o3"])
    result = await pauses.resume(agent, paused, approve())
    assert result.final_output == "done"
    assert sorted(ran) == [("gated", n) for n in (1, 2, 10, 20)]


@pytest.mark.scenario("NA-02")
@in_every_way
async def test_a_nested_verdict_for_good_ends_with_its_run(run_mode: Run, way: str) -> None:
    """The next call of the agent tool is another run, and pauses again."""
    ran: list[Any] = []
    inner = many_diggers(ran)
    agent = make_agent(
        [inner.as_tool("dig")], call("dig", {"input": "east"}, "o1"), call("dig", {"input": "west"}, "o2")
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.resume(agent, await pauses.run(agent), approve(always=True))
    assert ran == ["east"]
    assert [request.path for request in paused.interruptions] == [("o2",)]
    result = await pauses.resume(agent, paused, reject(message="no"))
    assert result.final_output == "done"
    assert ran == ["east"]
    assert read_shown_outputs(agent) == {"o1": "east: found east", "o2": "west: no"}


# ---------------------------------------------------------------------------------------------- many at once


@pytest.mark.scenario("NA-06")
@pytest.mark.parametrize("first", ["o1", "o2"])
@in_every_way
async def test_two_calls_of_one_agent_tool_have_a_state_each(run_mode: Run, first: str, way: str) -> None:
    """The calls of both nested runs have equal ids: the interruption tells them apart, and the bare id doesn't."""
    ran: list[Any] = []
    inner = many_diggers(ran)
    agent = make_agent(
        [inner.as_tool("dig")], [call("dig", {"input": "east"}, "o1"), call("dig", {"input": "west"}, "o2")]
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    assert [(one.path, one.call.call_id, json.loads(one.call.arguments)) for one in paused.interruptions] == [
        (("o1",), "n1", {"place": "east"}),
        (("o2",), "n1", {"place": "west"}),
    ]
    state = await pauses.state(agent, paused)
    with pytest.raises(StateError, match="n1"):
        state.approve("n1")
    by_path = {one.path[0]: one for one in state.interruptions}
    state.approve(by_path.pop(first))
    paused = await pauses.run(agent, state)
    place = {"o1": "east", "o2": "west"}
    assert ran == [place[first]]
    [(other, _)] = by_path.items()
    assert [one.path for one in paused.interruptions] == [(other,)]
    assert list(read_outputs(paused.new_items)) == [first]
    result = await pauses.resume(agent, paused, reject(message="no"))
    assert result.final_output == "done"
    assert ran == [place[first]]
    assert list(read_shown_outputs(agent).items()) == [
        (outer, f"{place[outer]}: found {place[outer]}" if outer == first else f"{place[outer]}: no")
        for outer in ("o1", "o2")
    ]


def outer_of(inner: Agent[Any, Any]) -> Agent[Any, Any]:
    """Return an agent any number of runs may use, which calls *inner* once."""

    def decide(request: ModelRequest, outputs: dict[str, Any]) -> Any:
        return say(f"so {outputs['o1']}") if "o1" in outputs else call("dig", {"input": asked_for(request)}, "o1")

    return stateless([inner.as_tool("dig")], decide, "outer")


@pytest.mark.scenario("NA-07")
async def test_two_restored_copies_of_a_state_do_not_interfere(run_mode: Run) -> None:
    """Each copy resumes by its own verdict, in either order of deciding and running; the text stays as it was."""
    ran: list[Any] = []
    agent = outer_of(many_diggers(ran))
    text = (await run_mode(agent, "east")).to_state().to_string()
    one, other = RunState.from_string(agent, text), RunState.from_string(agent, text)
    one.approve("n1")
    assert read_waiting(other) == ["n1"]
    other.reject("n1", message="no")
    rejected = await run_mode(agent, other)
    assert (rejected.final_output, ran) == ("so east: no", [])
    approved = await run_mode(agent, one)
    assert (approved.final_output, ran) == ("so east: found east", ["east"])
    third = RunState.from_string(agent, text)
    assert read_waiting(third) == ["n1"]
    assert (await run_mode(agent, third)).status == "interrupted"
    assert ran == ["east"]


@pytest.mark.scenario("NA-07", "NA-08")
async def test_copies_and_fresh_runs_go_on_side_by_side(run_mode: Run) -> None:
    """All copies and fresh runs use equal ids at the same time."""
    ran: list[Any] = []
    agent = outer_of(many_diggers(ran))
    text = (await run_mode(agent, "east")).to_state().to_string()
    approved, rejected = RunState.from_string(agent, text), RunState.from_string(agent, text)
    approved.approve("n1")
    rejected.reject("n1", message="no")
    results: dict[str, Any] = {}

    async def run(name: str, given: Any) -> None:
        results[name] = await run_mode(agent, given)

    async with anyio.create_task_group() as group:
        group.start_soon(run, "approved", approved)
        group.start_soon(run, "fresh", "west")
        group.start_soon(run, "rejected", rejected)
    assert results["approved"].final_output == "so east: found east"
    assert results["rejected"].final_output == "so east: no"
    assert results["fresh"].status == "interrupted"
    assert ran == ["east"]


@pytest.mark.scenario("NA-08")
async def test_a_fresh_run_does_not_see_what_another_one_waits_for(run_mode: Run) -> None:
    """Verdict, pause and nested state belong to one run, also with the same objects and the same ids of calls."""
    ran: list[Any] = []
    agent = outer_of(many_diggers(ran))
    first = (await run_mode(agent, "east")).to_state()
    first.approve("n1", always=True)
    second = await run_mode(agent, "west")
    assert second.status == "interrupted"
    assert [json.loads(one.call.arguments) for one in second.interruptions] == [{"place": "west"}]
    assert ran == []
    assert (await run_mode(agent, first)).final_output == "so east: found east"
    state = second.to_state()
    assert read_waiting(state) == ["n1"]
    state.approve("n1")
    assert (await run_mode(agent, state)).final_output == "so west: found west"
    assert ran == ["east", "west"]


# ---------------------------------------------------------------------------------------------- depth


@pytest.mark.scenario("NA-13")
@pytest.mark.parametrize("decide", [approve(), reject(message="no")])
@in_every_way
async def test_a_verdict_two_runs_deep_reaches_its_owner(
    run_mode: Run, decide: Callable[[RunState], None], way: str
) -> None:
    """Every run between the outer run and the owner of the call resumes where it was, once."""
    ran: list[Any] = []
    innermost = digger(make_gated_tool(ran), name="innermost")
    middle: Agent[Any, Any] = Agent(
        "middle",
        model=ScriptedModel([[call("down", {"input": "y"}, "m1"), call("free", {}, "m2")], say("middle done")]),
        tools=[innermost.as_tool("down"), make_free_tool(ran)],
    )
    agent = make_agent([middle.as_tool("down")], call("down", {"input": "x"}, "o1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    assert [(one.path, one.agent, one.call.call_id) for one in paused.interruptions] == [
        (("o1", "m1"), "innermost", "n1")
    ]
    assert ran == [("free", 0)]
    paused = await pauses.resume(agent, paused, decide_nothing)
    assert read_waiting(paused) == ["n1"]
    result = await pauses.resume(agent, paused, decide)
    assert result.final_output == "done"
    approved = ("gated", 1) in ran
    assert ran == ([("free", 0), ("gated", 1)] if approved else [("free", 0)])
    assert read_shown_outputs(innermost) == {"n1": "gated 1" if approved else "no"}
    assert read_shown_outputs(middle) == {"m1": "dug", "m2": "free 0"}
    assert read_shown_outputs(agent) == {"o1": "middle done"}
    assert [len(read_requests(one)) for one in (agent, middle, innermost)] == [2, 2, 2]
    for one in (agent, middle, innermost):
        check_history(read_requests(one)[-1].items)


@pytest.mark.scenario("NA-13")
@in_every_way
async def test_calls_of_every_depth_wait_side_by_side(run_mode: Run, way: str) -> None:
    """The interruptions are in the order of the calls' places in the tree, and may be decided on in any order."""
    ran: list[Any] = []
    innermost = digger(make_gated_tool(ran, "gated"), name="innermost")
    middle: Agent[Any, Any] = Agent(
        "middle",
        model=ScriptedModel([[call("down", {"input": "y"}, "m1"), call("mid", {}, "m2")], say("middle done")]),
        tools=[innermost.as_tool("down"), make_gated_tool(ran, "mid")],
    )
    agent = make_agent(
        [middle.as_tool("down"), make_gated_tool(ran, "top")],
        [call("top", {}, "o1"), call("down", {"input": "x"}, "o2")],
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    assert read_waiting(paused) == ["o1", "n1", "m2"]
    paused = await pauses.resume(agent, paused, approve("m2"))
    assert (ran, read_waiting(paused)) == ([("mid", 0)], ["o1", "n1"])
    gone_on = [record.path for record in paused.records if isinstance(record, r.RunResumed)]
    assert gone_on == [(), ("o2",)], "a run in which nothing was decided isn't entered"
    paused = await pauses.resume(agent, paused, reject("o1"))
    assert (ran, read_waiting(paused)) == ([("mid", 0)], ["n1"])
    result = await pauses.resume(agent, paused, approve("n1"))
    assert result.final_output == "done"
    assert ran == [("mid", 0), ("gated", 1)]
    assert list(read_shown_outputs(agent)) == ["o1", "o2"]
    assert list(read_shown_outputs(middle)) == ["m1", "m2"]


@pytest.mark.scenario("NA-13", "AP-18")
@in_every_way
async def test_a_nested_run_that_paused_after_a_handoff_goes_on_with_its_second_agent(run_mode: Run, way: str) -> None:
    """A nested run resumes with the agent it was handed to, as the caller's own run does."""
    ran: list[Any] = []
    second = digger(make_gated_tool(ran), name="second")
    first: Agent[Any, Any] = Agent(
        "first", model=ScriptedModel([respond(HandoffCall("h", "transfer_to_second", "{}"))]), handoffs=[second]
    )
    agent = make_agent([first.as_tool("dig")], call("dig", {"input": "x"}, "o1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    assert [(one.agent, one.path) for one in paused.interruptions] == [("second", ("o1",))]
    result = await pauses.resume(agent, paused, approve())
    assert result.final_output == "done"
    assert ran == [("gated", 1)]
    assert read_shown_outputs(agent) == {"o1": "dug"}
    assert (len(read_requests(first)), len(read_requests(second))) == (1, 2)


# ---------------------------------------------------------------------------------------------- hooks


@pytest.mark.scenario("NA-14")
@in_every_way
async def test_the_outer_calls_hooks_fire_once_over_a_pause(run_mode: Run, way: str) -> None:
    """The outer call's start hook runs when it begins and its end hook when it ends; both have one record."""
    hooks = ToolHookLog()
    inner = digger(
        make_gated_tool([]), steps=[call("gated", {"n": 1}, "n1"), call("gated", {"n": 2}, "n2"), say("dug")]
    )
    agent = make_agent([inner.as_tool("dig")], call("dig", {"input": "x"}, "o1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, hooks=hooks)
    assert hooks.seen == ["start:o1"]
    paused = await pauses.resume(agent, paused, decide_nothing, hooks=hooks)
    paused = await pauses.resume(agent, paused, approve(), hooks=hooks)
    assert (hooks.seen, read_waiting(paused)) == (["start:o1"], ["n2"])
    result = await pauses.resume(agent, paused, approve(), hooks=hooks)
    assert result.final_output == "done"
    assert hooks.seen == ["start:o1", "end:o1:succeeded"]
    assert (count_records(result, r.CallStarted, "o1"), count_records(result, r.CallSettled, "o1")) == (1, 1)


@in_every_way
async def test_the_outer_calls_guardrails_judge_once_over_a_pause(run_mode: Run, way: str) -> None:
    """The input guardrail judges before the nested run begins, the output guardrail when that run has ended."""
    judged: list[Any] = []

    @tool_input_guardrail
    def before(data: Any) -> Any:
        judged.append(data.arguments)
        return Allow()

    @tool_output_guardrail
    def after(data: Any) -> Any:
        judged.append(data.output)
        return Allow()

    dig = digger(make_gated_tool([])).as_tool("dig", tool_input_guardrails=[before], tool_output_guardrails=[after])
    agent = make_agent([dig], call("dig", {"input": "x"}, "o1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    assert judged == [{"input": "x"}]
    result = await pauses.resume(agent, paused, approve())
    assert result.final_output == "done"
    assert judged == [{"input": "x"}, "dug"]


@pytest.mark.scenario("NA-14")
async def test_a_resumed_outer_call_makes_no_second_start_event() -> None:
    """The call's output item comes in the entry that settles it, without a second start event."""
    inner = digger(make_gated_tool([]))
    agent = make_agent([inner.as_tool("dig")], call("dig", {"input": "x"}, "o1"))
    seen: list[list[str]] = []
    given: Any = "go"
    for _ in range(2):
        lines: list[str] = []
        async with Runner.run_streamed(agent, given) as stream:
            async for event in stream:
                match event:
                    case ev.CallStarted(call=one) | ev.CallSettled(call=one):
                        lines.append(f"{type(event).__name__} {one.call_id}")
                    case ev.ItemCreated(item=ToolOutput() as item):
                        lines.append(f"output {item.call_id}")
        seen.append(lines)
        given = stream.state
        approve()(given)
    assert seen == [
        ["CallStarted o1"],
        ["CallStarted n1", "CallSettled n1", "output n1", "CallSettled o1", "output o1"],
    ]


# ---------------------------------------------------------------------------------------------- approval of agent tools


@in_every_way
async def test_an_agent_tool_that_needs_approval_does_not_begin_its_run(run_mode: Run, way: str) -> None:
    """The approved agent tool begins its run, whose own pauses come later; its approval is not requested again."""
    ran: list[Any] = []
    hooks = ToolHookLog()
    inner = digger(make_gated_tool(ran))
    agent = make_agent([inner.as_tool("dig", needs_approval=True)], call("dig", {"input": "x"}, "o1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, hooks=hooks)
    assert paused.interruptions == (ApprovalRequest(ToolCall("o1", "dig", '{"input": "x"}'), "guide", ()),)
    assert (read_requests(inner), hooks.seen) == ([], [])
    paused = await pauses.resume(agent, paused, approve(), hooks=hooks)
    assert [(one.path, one.call.call_id) for one in paused.interruptions] == [(("o1",), "n1")]
    result = await pauses.resume(agent, paused, approve(), hooks=hooks)
    assert result.final_output == "done"
    assert ran == [("gated", 1)]
    assert hooks.seen == ["start:o1", "end:o1:succeeded"]
    assert read_approval_requests(result) == ["o1", "n1"]


@in_every_way
async def test_a_rejected_agent_tool_never_begins_its_run(run_mode: Run, way: str) -> None:
    """A rejected agent tool asks its nested model nothing, and the outer model receives the rejection."""
    inner = digger(make_gated_tool([]))
    agent = make_agent([inner.as_tool("dig", needs_approval=True)], call("dig", {"input": "x"}, "o1"))
    pauses = Pauses(run_mode, way)
    result = await pauses.resume(agent, await pauses.run(agent), reject())
    assert result.final_output == "done"
    assert read_shown_outputs(agent) == {"o1": "Tool 'dig' was not approved."}
    assert read_requests(inner) == []


@in_every_way
async def test_an_agent_tool_runs_on_the_input_that_was_approved(run_mode: Run, way: str) -> None:
    """The nested run starts on the input that the approver edited, and keeps it over a pause of its own."""
    ran: list[Any] = []
    inner = many_diggers(ran)
    agent = make_agent([inner.as_tool("dig", needs_approval=True)], call("dig", {"input": "east"}, "o1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.resume(agent, await pauses.run(agent), approve(arguments={"input": "west"}))
    assert [json.loads(one.call.arguments) for one in paused.interruptions] == [{"place": "west"}]
    result = await pauses.resume(agent, paused, approve())
    assert result.final_output == "done"
    assert ran == ["west"]
    assert read_shown_outputs(agent) == {"o1": "west: found west"}


async def test_needs_approval_of_an_agent_tool_judges_its_input(run_mode: Run) -> None:
    """`needs_approval` gets the agent tool's parsed arguments, as for any tool, and only its True pauses the call."""
    seen: list[Any] = []
    ran: list[Any] = []

    async def far(ctx: Any, arguments: dict[str, Any], call_id: str) -> bool:
        seen.append((arguments, call_id))
        return bool(arguments["input"] == "west")

    inner = stateless([make_free_tool(ran)], lambda request, outputs: say(f"dug {asked_for(request)}"), "digger")
    agent = make_agent(
        [inner.as_tool("dig", needs_approval=far)],
        [call("dig", {"input": "east"}, "o1"), call("dig", {"input": "west"}, "o2")],
    )
    result = await run_mode(agent, "go")
    assert read_waiting(result) == ["o2"]
    assert read_outputs(result.new_items) == {"o1": "dug east"}
    assert sorted(seen, key=str) == [({"input": "east"}, "o1"), ({"input": "west"}, "o2")]


@in_every_way
async def test_a_nested_run_words_rejections_by_its_own_configuration(run_mode: Run, way: str) -> None:
    """The nested run uses its agent tool's own configuration for the words, also in the entry after the pause."""
    inner = digger(make_gated_tool([]))
    own = RunConfig(tool_error_formatter=lambda args: "the nested words")
    agent = make_agent([inner.as_tool("dig", run_config=own)], call("dig", {"input": "x"}, "o1"))
    outer = RunConfig(tool_error_formatter=lambda args: "the outer words")
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, run_config=outer)
    await pauses.resume(agent, paused, reject(), run_config=outer)
    assert read_shown_outputs(inner) == {"n1": "the nested words"}
