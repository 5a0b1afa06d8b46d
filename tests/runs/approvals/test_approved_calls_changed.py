"""An approval holds for the whole call it was given for: a call that is changed afterwards is not approved."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from kit.agents import Run, make_agent, make_free_tool, make_gated_tool
from kit.results import read_requests, read_waiting
from kit.resuming import Pauses, approve, in_every_way

from agentloop import Agent, FunctionTool, ModelBehaviorError, RunState, StateError, tool
from agentloop import records as r
from agentloop.items import ToolCall
from agentloop.testing import ScriptedModel, call, say

LONG = "x" * 2_000
"""The common parts that two texts may have before they differ."""

ARGUMENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another number": ({"to": "a", "n": 1}, {"to": "a", "n": 2}),
    "a late difference": ({"to": LONG + "a", "n": 1}, {"to": LONG + "b", "n": 1}),
    "an argument more": ({"to": "a"}, {"to": "a", "n": 1}),
    "an argument less": ({"to": "a", "n": 1}, {"to": "a"}),
    "null": ({"to": "a", "n": 1}, {"to": "a", "n": None}),
    "true for one": ({"to": "a", "n": 1}, {"to": "a", "n": True}),
    "a space": ({"to": "a"}, {"to": "a "}),
    "case": ({"to": "a"}, {"to": "A"}),
}
every_change = pytest.mark.parametrize(("first", "second"), ARGUMENTS.values(), ids=list(ARGUMENTS))


def paying(ran: list[Any], name: str = "pay", **options: Any) -> FunctionTool:
    """Return a tool that has to be approved and notes what it was called with."""

    async def pay(to: str, n: Any = 0) -> str:
        ran.append((name, to, n))
        return "paid"

    return tool(name=name, needs_approval=True, strict_mode=False, **options)(pay)


Builder = Callable[..., tuple[Agent[Any, Any], Agent[Any, Any]]]


def alone(ran: list[Any], *steps: Any) -> tuple[Agent[Any, Any], Agent[Any, Any]]:
    """Return an agent that pays, twice over: the one to run, and the one whose model says *steps*."""
    agent = make_agent([paying(ran), make_free_tool(ran)], *steps)
    return agent, agent


def nested(ran: list[Any], *steps: Any) -> tuple[Agent[Any, Any], Agent[Any, Any]]:
    """Return an agent that asks one that pays."""
    inner = Agent("inner", model=ScriptedModel([*steps, say("in")]), tools=[paying(ran), make_free_tool(ran)])
    asks = inner.as_tool("ask", "asks", failure_error_function=None)
    return make_agent([asks], call("ask", {"input": "x"}, "s1")), inner


in_both = pytest.mark.parametrize("build", [alone, nested])


@pytest.mark.scenario("RP-26", "AP-16")
@every_change
@in_both
@in_every_way
async def test_an_approved_id_that_is_called_again_otherwise_ends_the_run_first(
    run_mode: Run, first: dict[str, Any], second: dict[str, Any], build: Builder, way: str
) -> None:
    """The approved call has run; no call of the response that contradicts it runs, not even a free sibling."""
    ran: list[Any] = []
    agent, asker = build(ran, call("pay", first, "p1"), [call("free", {}, "f1"), call("pay", second, "p1")])
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    with pytest.raises(ModelBehaviorError, match="'p1'") as caught:
        await pauses.resume(agent, paused, approve(always=True))
    assert ran == [("pay", first["to"], first.get("n", 0))]
    assert len(read_requests(asker)) == 2
    assert caught.value.run_data is not None
    started = [one.call_id for one in caught.value.run_data.records if isinstance(one, r.CallStarted)]
    assert started.count("p1") == 1
    assert "f1" not in started


@pytest.mark.scenario("RP-26", "AP-16")
async def test_an_approved_id_under_another_tool_ends_the_run_first(run_mode: Run) -> None:
    """The run ends although the verdict's words, also with `always`, would fit the other tool's call."""
    ran: list[Any] = []
    same = {"to": "a", "n": 1}
    agent = make_agent([paying(ran), paying(ran, "send")], call("pay", same, "p1"), call("send", same, "p1"))
    pauses = Pauses(run_mode, "json")
    with pytest.raises(ModelBehaviorError, match="'p1'"):
        await pauses.resume(agent, await pauses.run(agent), approve(always=True))
    assert ran == [("pay", "a", 1)]


def calls_within(value: Any, call_id: str) -> list[dict[str, Any]]:
    """Return the stored call items of an id, anywhere in JSON values."""
    if isinstance(value, dict):
        own = [value] if value.get("call_id") == call_id and "arguments" in value and "name" in value else []
        return own + [found for one in value.values() for found in calls_within(one, call_id)]
    if isinstance(value, list):
        return [found for one in value for found in calls_within(one, call_id)]
    return []


def with_stored_call(agent: Any, state: RunState, **changes: Any) -> RunState:
    """Return *state* as read from a store in which call p1 was changed."""
    data = json.loads(json.dumps(state.to_json()))
    found = calls_within(data["records"], "p1")
    assert found
    for one in found:
        one.update(changes)
    return RunState.from_json(agent, data)


@pytest.mark.scenario("RP-26", "RS-17")
@every_change
@in_both
async def test_an_approval_whose_stored_arguments_were_changed_is_asked_for_again(
    run_mode: Run, first: dict[str, Any], second: dict[str, Any], build: Builder
) -> None:
    """The run asks about the arguments that are stored now; the call runs with them only after that new approval."""
    ran: list[Any] = []
    agent, asker = build(ran, call("pay", first, "p1"))
    state = (await run_mode(agent, "go")).to_state()
    state.approve("p1")
    changed = json.dumps(second)
    paused = await run_mode(agent, with_stored_call(agent, state, arguments=changed))
    assert ran == []
    assert [(one.call.call_id, one.call.arguments) for one in paused.interruptions] == [("p1", changed)]
    assert len(read_requests(asker)) == 1
    again = paused.to_state()
    again.approve("p1")
    result = await run_mode(agent, again)
    assert result.final_output == "done"
    assert ran == [("pay", second["to"], second.get("n", 0))]


@pytest.mark.scenario("RP-26", "RS-17")
async def test_a_stored_call_that_leads_to_another_tool_is_asked_about_again(run_mode: Run) -> None:
    """The verdict was on the tool that was named before; a sibling that was approved unchanged runs."""
    ran: list[Any] = []
    tools = [paying(ran), paying(ran, "send"), make_gated_tool(ran, "other")]
    agent = make_agent(tools, [call("pay", {"to": "a"}, "p1"), call("other", {}, "o1")])
    state = (await run_mode(agent, "go")).to_state()
    state.approve("p1")
    state.approve("o1")
    paused = await run_mode(agent, with_stored_call(agent, state, name="send"))
    assert ran == [("other", 0)]
    assert read_waiting(paused) == ["p1"]
    assert paused.interruptions[0].call.name == "send"


@pytest.mark.scenario("RP-26", "RS-17")
async def test_a_verdict_that_was_moved_to_a_changed_call_approves_nothing(run_mode: Run) -> None:
    """The run refuses an approval of the earlier interruption, and its record too, because the call has changed."""
    ran: list[Any] = []
    agent = make_agent([paying(ran)], call("pay", {"to": "a"}, "p1"))
    state = (await run_mode(agent, "go")).to_state()
    [request] = state.interruptions
    changed = with_stored_call(agent, state, arguments='{"to": "b"}')
    paused = (await run_mode(agent, changed)).to_state()
    with pytest.raises(StateError, match="'p1'"):
        paused.approve(request)
    assert read_waiting(paused) == ["p1"]
    state.approve("p1")
    verdict = state.records[-1]
    assert isinstance(verdict, r.VerdictGiven)
    moved = RunState(agent, [*paused.records, verdict])
    assert read_waiting(await run_mode(agent, moved)) == ["p1"]
    assert ran == []


@pytest.mark.scenario("RP-26", "RS-17")
async def test_a_call_that_is_spelt_otherwise_is_the_approved_one(run_mode: Run) -> None:
    """Key order and white space make no difference, in the store and in the model's next response."""
    ran: list[Any] = []
    agent = make_agent(
        [paying(ran)], call("pay", '{"to": "a", "n": 1}', "p1"), call("pay", '{ "n":1, "to":"a" }', "p1")
    )
    state = (await run_mode(agent, "go")).to_state()
    state.approve("p1")
    result = await run_mode(agent, with_stored_call(agent, state, arguments='{"n":1,"to":"a"}'))
    assert result.final_output == "done"
    assert ran == [("pay", "a", 1)]
    assert [item.call_id for item in result.new_items if isinstance(item, ToolCall)] == ["p1"]
