"""Runs that resume after a pause: what runs then, what doesn't run again, and what no longer fits."""

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kit.agents import Run, make_agent, make_free_tool, make_gated_tool, script_turns
from kit.results import (
    check_history,
    count_records,
    find_outcome,
    read_approval_requests,
    read_outputs,
    read_requests,
    read_shown_outputs,
    read_statuses,
    read_waiting,
)
from kit.resuming import Pauses, approve, copy_state, decide_nothing, in_every_way, reject

from agentloop import (
    Agent,
    ModelBehaviorError,
    RunConfig,
    RunState,
    StateError,
    UserError,
    tool,
)
from agentloop import records as r
from agentloop.items import ApprovalRequest, HandoffCall, ToolCall
from agentloop.testing import ScriptedModel, call, normal, respond, say

# ---------------------------------------------------------------------------------------------- what runs


@pytest.mark.scenario("AP-03", "LX-70")
@pytest.mark.parametrize("first", ["gated", "free"])
@in_every_way
async def test_the_approved_call_runs_and_the_finished_one_does_not_run_again(
    run_mode: Run, first: str, way: str
) -> None:
    """The model receives the outputs in the order of the calls, in any order of their making."""
    ran: list[Any] = []
    names = [first, "free" if first == "gated" else "gated"]
    agent = make_agent([make_gated_tool(ran), make_free_tool(ran)], [call(name, {"n": 1}, name) for name in names])
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    assert read_outputs(paused.new_items) == {"free": "free 1"}
    result = await pauses.resume(agent, paused, approve())
    assert result.final_output == "done"
    assert ran == [("free", 1), ("gated", 1)]
    assert list(read_shown_outputs(agent).items()) == [(name, f"{name} 1") for name in names]
    check_history(read_requests(agent)[-1].items)
    assert read_outputs(result.new_items) == {"free": "free 1", "gated": "gated 1"}
    assert read_statuses(result) == ["succeeded", "succeeded"]
    assert len(read_requests(agent)) == 2


@pytest.mark.scenario("AP-03")
@in_every_way
async def test_outputs_of_three_entries_stand_in_the_order_of_their_calls(run_mode: Run, way: str) -> None:
    """Outputs keep the order of the calls when the last call is approved first; a free call is between the two."""
    ran: list[Any] = []
    agent = make_agent(
        [make_gated_tool(ran), make_free_tool(ran)],
        [call("gated", {"n": 1}, "c1"), call("free", {"n": 2}, "c2"), call("gated", {"n": 3}, "c3")],
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.resume(agent, await pauses.run(agent), approve("c3"))
    assert set(read_outputs(paused.new_items)) == {"c2", "c3"}
    result = await pauses.resume(agent, paused, approve("c1"))
    assert [n for _, n in ran] == [2, 3, 1]
    assert list(read_shown_outputs(agent)) == ["c1", "c2", "c3"]
    check_history(read_requests(agent)[-1].items)
    assert result.final_output == "done"


@pytest.mark.scenario("AP-14")
@pytest.mark.parametrize("approved", ["c1", "c2"])
@in_every_way
async def test_of_two_that_wait_the_approved_one_runs_and_the_other_goes_on_waiting(
    run_mode: Run, approved: str, way: str
) -> None:
    """The waiting call is asked about once and is one interruption; the model is not asked before it is decided."""
    ran: list[Any] = []
    agent = make_agent([make_gated_tool(ran)], [call("gated", {"n": n}, f"c{n}") for n in (1, 2)])
    pauses = Pauses(run_mode, way)
    paused = await pauses.resume(agent, await pauses.run(agent), approve(approved))
    other = "c2" if approved == "c1" else "c1"
    assert paused.status == "interrupted"
    assert read_waiting(paused) == [other]
    assert read_waiting(await pauses.state(agent, paused)) == [other]
    assert ran == [("gated", int(approved[1:]))]
    assert list(read_outputs(paused.new_items)) == [approved]
    assert len(read_requests(agent)) == 1
    result = await pauses.resume(agent, paused, reject(other, message="no"))
    assert result.final_output == "done"
    assert len(ran) == 1
    assert read_approval_requests(result) == ["c1", "c2"]
    assert read_outputs(result.new_items)[other] == "no"
    check_history(read_requests(agent)[-1].items)


@pytest.mark.scenario("AP-15")
@in_every_way
async def test_a_run_nobody_decided_on_pauses_again_without_asking_the_model(run_mode: Run, way: str) -> None:
    """The run pauses again each time it is resumed, and an extra entry does not change a later verdict."""
    ran: list[Any] = []
    agent = make_agent([make_gated_tool(ran), make_free_tool(ran)], [call("gated", {}, "c1"), call("free", {}, "c2")])
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    for _ in range(2):
        paused = await pauses.resume(agent, paused, decide_nothing)
        assert (paused.status, paused.final_output) == ("interrupted", None)
        assert read_waiting(paused) == ["c1"]
        assert len(read_requests(agent)) == 1
    result = await pauses.resume(agent, paused, approve())
    assert result.final_output == "done"
    assert ran == [("free", 0), ("gated", 0)]
    assert read_approval_requests(result) == ["c1"]


async def test_an_approved_run_is_over_once_and_the_state_it_went_on_from_stays(run_mode: Run) -> None:
    """A resumed state stays as it was, and the state of the completed result can't be run again."""
    ran: list[Any] = []
    agent = make_agent([make_gated_tool(ran)], call("gated", {}, "c1"))
    state = (await run_mode(agent, "go")).to_state()
    state.approve("c1")
    before = list(state.records)
    result = await run_mode(agent, state)
    assert result.final_output == "done"
    assert state.records == before
    with pytest.raises(StateError, match="completed"):
        await run_mode(agent, result.to_state())
    assert ran == [("gated", 0)]


@in_every_way
async def test_of_two_equal_idempotent_calls_the_rejected_one_is_not_answered_by_the_other(
    run_mode: Run, way: str
) -> None:
    """The model gets the reason, not the output of the call that was approved before."""
    ran: list[Any] = []
    agent = make_agent(
        [make_gated_tool(ran, idempotent=True)], [call("gated", {"n": 1}, call_id) for call_id in ("c1", "c2")]
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.resume(agent, await pauses.run(agent), approve("c1"))
    assert read_waiting(paused) == ["c2"]
    result = await pauses.resume(agent, paused, reject("c2", message="once is enough"))
    assert result.final_output == "done"
    assert read_shown_outputs(agent) == {"c1": "gated 1", "c2": "once is enough"}
    assert read_statuses(result) == ["succeeded", "rejected"]
    assert ran == [("gated", 1)]


@in_every_way
async def test_edited_arguments_of_an_equal_idempotent_call_run(run_mode: Run, way: str) -> None:
    """The approver's arguments have no receipt, though the model's have one, so the edited call runs its body."""
    ran: list[Any] = []
    agent = make_agent(
        [make_gated_tool(ran, idempotent=True)], [call("gated", {"n": 1}, call_id) for call_id in ("c1", "c2")]
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.resume(agent, await pauses.run(agent), approve("c1"))
    result = await pauses.resume(agent, paused, approve("c2", arguments={"n": 9}))
    assert read_shown_outputs(agent) == {"c1": "gated 1", "c2": "gated 9"}
    assert read_statuses(result) == ["succeeded", "succeeded"]


@in_every_way
async def test_arguments_edited_to_those_of_an_earlier_call_are_a_hit(run_mode: Run, way: str) -> None:
    """The tool is idempotent, so the edited arguments get the earlier call's output and its body doesn't run again."""
    ran: list[Any] = []
    agent = make_agent(
        [make_gated_tool(ran, idempotent=True)], call("gated", {"n": 1}, "c1"), call("gated", {"n": 2}, "c2")
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.resume(agent, await pauses.run(agent), approve())
    result = await pauses.resume(agent, paused, approve(arguments={"n": 1}))
    assert result.final_output == "done"
    assert ran == [("gated", 1)]
    assert read_statuses(result) == ["succeeded", "replayed"]


@pytest.mark.scenario("LX-40")
@in_every_way
async def test_an_idempotent_call_completed_before_a_pause_is_a_hit_after_it(run_mode: Run, way: str) -> None:
    """The call of the resumed turn has a new id, and it gets the output from before the pause."""
    ran: list[Any] = []
    agent = make_agent(
        [make_gated_tool(ran), make_free_tool(ran, idempotent=True)],
        [call("free", {"n": 1}, "c1"), call("gated", {}, "c2")],
        call("free", {"n": 1}, "c3"),
    )
    pauses = Pauses(run_mode, way)
    result = await pauses.resume(agent, await pauses.run(agent), approve())
    assert read_statuses(result) == ["succeeded", "succeeded", "replayed"]
    assert ran == [("free", 1), ("gated", 0)]
    assert read_shown_outputs(agent)["c3"] == "free 1"


# ---------------------------------------------------------------------------------------------- what no longer fits


@pytest.mark.scenario("AP-16")
@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"arguments": '{"n": 2}'}, id="arguments"),
        pytest.param({"name": "other"}, id="tool"),
        pytest.param({"namespace": "ns"}, id="namespace"),
        pytest.param({"call_id": "c9"}, id="call id"),
    ],
)
@pytest.mark.parametrize("verdict", ["approve", "reject"])
async def test_an_interruption_of_another_call_is_refused(run_mode: Run, changed: dict[str, Any], verdict: str) -> None:
    """A verdict on another call than the one in question decides nothing."""
    ran: list[Any] = []
    agent = make_agent([make_gated_tool(ran), make_gated_tool(ran, "other")], call("gated", {"n": 1}, "c1"))
    pauses = Pauses(run_mode, "json")
    state = await pauses.state(agent, await pauses.run(agent))
    [request] = state.interruptions
    before = len(state.records)
    with pytest.raises(StateError, match=r"c1|c9"):
        getattr(state, verdict)(request.replace(call=request.call.replace(**changed)))
    with pytest.raises(StateError, match="c1"):
        getattr(state, verdict)(request.replace(agent="another"))
    with pytest.raises(StateError, match="c1"):
        getattr(state, verdict)(request.replace(path=("x",)))
    assert len(state.records) == before
    assert (await pauses.run(agent, state)).status == "interrupted"
    assert ran == []


@pytest.mark.scenario("AP-16")
async def test_an_interruption_that_differs_in_spelling_alone_is_the_same_call(run_mode: Run) -> None:
    """Key order and white space of the arguments make no difference."""
    ran: list[Any] = []
    agent = make_agent([make_gated_tool(ran)], call("gated", '{"n": 1}', "c1"))
    state = (await run_mode(agent, "go")).to_state()
    [request] = state.interruptions
    state.approve(request.replace(call=request.call.replace(arguments='{ "n" : 1 }')))
    await run_mode(agent, state)
    assert ran == [("gated", 1)]


def _calls_within(value: Any) -> list[dict[str, Any]]:
    """Return the stored call items anywhere in JSON values."""
    if isinstance(value, dict):
        own = [value] if value.get("call_id") == "c1" and "arguments" in value and "name" in value else []
        return own + [found for inner in value.values() for found in _calls_within(inner)]
    if isinstance(value, list):
        return [found for inner in value for found in _calls_within(inner)]
    return []


@pytest.mark.scenario("AP-16")
async def test_an_approval_does_not_fit_arguments_changed_in_the_stored_state(run_mode: Run) -> None:
    """The body runs with neither arguments: the call is asked about again, with the arguments that are stored now."""
    ran: list[Any] = []
    agent = make_agent([make_gated_tool(ran)], call("gated", {"n": 1}, "c1"))
    state = (await run_mode(agent, "go")).to_state()
    state.approve("c1")
    data = json.loads(json.dumps(state.to_json()))
    found = _calls_within(data["records"])
    assert found
    for one in found:
        one["arguments"] = '{"n": 2}'
    paused = await run_mode(agent, RunState.from_json(agent, data))
    assert ran == []
    assert [(one.call.call_id, one.call.arguments) for one in paused.interruptions] == [("c1", '{"n": 2}')]
    assert len(read_requests(agent)) == 1


@pytest.mark.scenario("AP-16")
@in_every_way
async def test_a_model_that_uses_an_approved_id_for_other_arguments_fails_the_run(run_mode: Run, way: str) -> None:
    """The run fails before any call of that turn starts."""
    ran: list[Any] = []
    agent = make_agent(
        [make_gated_tool(ran), make_free_tool(ran)],
        call("gated", {"n": 1}, "c1"),
        [call("free", {}, "f"), call("gated", {"n": 2}, "c1")],
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    with pytest.raises(ModelBehaviorError, match="c1"):
        await pauses.resume(agent, paused, approve())
    assert ran == [("gated", 1)]


@pytest.mark.scenario("AP-17")
@in_every_way
async def test_the_tool_that_stands_there_now_is_dispatched(
    run_mode: Run, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The last of two tools under one key runs, as in a fresh turn, with one warning."""
    old: list[Any] = []
    new: list[Any] = []
    newest: list[Any] = []
    agent = make_agent([make_gated_tool(old)], call("gated", {"n": 1}, "c1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    agent.tools[:] = [make_gated_tool(new), make_gated_tool(newest)]  # type: ignore[index]
    with caplog.at_level(logging.WARNING, "agentloop"):
        result = await pauses.resume(agent, paused, approve())
    assert result.final_output == "done"
    assert (old, new, newest) == ([], [], [("gated", 1)])
    assert sum("'gated'" in record.getMessage() and "tools" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.scenario("AP-17", "SM-04")
@pytest.mark.parametrize("policy", ["raise", "tell_model"])
@in_every_way
async def test_an_approved_call_of_a_tool_that_is_gone_waits_for_an_agent_that_has_it(
    run_mode: Run, policy: Any, way: str
) -> None:
    """The model was shown the tool, so the policy for unknown tools isn't asked, and no call of the batch starts."""
    ran: list[Any] = []
    agent = make_agent(
        [make_gated_tool(ran), make_gated_tool(ran, "other")],
        [call("gated", {"n": 1}, "c1"), call("other", {"n": 2}, "c2")],
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    gone = agent.tools.pop(0)  # type: ignore[attr-defined]
    config = RunConfig(tool_not_found_behavior=policy)
    with pytest.raises(StateError, match="call 'c1' waits for tool 'gated' of agent 'guide'"):
        await pauses.resume(agent, paused, approve(), run_config=config)
    assert ran == []
    agent.tools.insert(0, gone)  # type: ignore[attr-defined]
    result = await pauses.resume(agent, paused, approve(), run_config=config)
    assert result.final_output == "done"
    assert sorted(ran) == [("gated", 1), ("other", 2)]


@pytest.mark.scenario("AP-17")
@pytest.mark.parametrize("by", ["another agent", "a function"])
@in_every_way
async def test_a_replaced_agent_tool_fails_before_side_effects(run_mode: Run, by: str, way: str) -> None:
    """A nested run is not resumed under another agent or under a function; nothing of the turn runs."""
    ran: list[Any] = []

    def helper(name: str) -> Agent[Any, Any]:
        return Agent(name, model=ScriptedModel([call("gated", {}, "n1"), say("dug")]), tools=[make_gated_tool(ran)])

    async def dig(input: str) -> str:
        ran.append("function")
        return input

    agent = make_agent(
        [helper("first").as_tool("dig"), make_gated_tool(ran, "other")],
        [call("dig", {"input": "x"}, "c1"), call("other", {}, "c2")],
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    assert read_waiting(paused) == ["n1", "c2"]
    replacement = helper("second").as_tool("dig") if by == "another agent" else tool(dig)
    agent.tools[0] = replacement  # type: ignore[index]
    with pytest.raises(StateError, match=r"'dig'|'first'"):
        await pauses.resume(agent, paused, approve())
    assert ran == []


def build_tower(ran: list[Any], depth: int, *, handed: bool, change: tuple[int, str] | None = None) -> Agent[Any, Any]:
    """Return an agent whose runs nest *depth* levels deep; at each of them a gated call waits beside the nested run.

    *handed*: at each level another agent begins, and hands over. *change* is a level, counted from the outermost, and
    what stands there in the place of the agent tool; the agent that was there can still be reached.
    """
    within = Agent(
        f"level_{depth}", model=script_turns(call("gated", {"n": depth}, "g"), say("dug")), tools=[make_gated_tool(ran)]
    )
    for level in reversed(range(depth)):
        tools, spare = [make_gated_tool(ran, "other"), within.as_tool("dig")], []
        if change is not None and change[0] == level:
            spare = [within]
            tools[1:] = {
                "another agent": [Agent("stranger", model=script_turns(say("strange"))).as_tool("dig")],
                "a function": [make_free_tool(ran, "dig")],
                "nothing": [],
            }[change[1]]
        calls = [call("other", {"n": level}, f"o{level}"), call("dig", {"input": "x"}, f"d{level}")]
        turns = [*([call(f"transfer_to_level_{level}", call_id=f"h{level}")] * handed), calls, say("up")]
        within = Agent(f"level_{level}", model=script_turns(*turns), tools=tools, handoffs=spare)
        if handed:
            within = Agent(f"front_{level}", model=within.model, handoffs=[within])
    return within


@pytest.mark.scenario("SM-08", "AP-17")
@pytest.mark.parametrize("handed", [False, True], ids=["called", "handed over"])
@pytest.mark.parametrize("by", ["another agent", "a function", "nothing"])
@pytest.mark.parametrize(("depth", "level"), [(1, 0), (2, 0), (2, 1), (3, 1), (3, 2)])
@in_every_way
async def test_an_agent_tool_that_is_replaced_at_any_depth_fails_before_side_effects(
    run_mode: Run, depth: int, level: int, by: str, handed: bool, way: str
) -> None:
    """Nothing of the whole tree runs, no model is asked, and the agents that began the run can still resume it."""
    ran: list[Any] = []
    agent = build_tower(ran, depth, handed=handed)
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    assert read_waiting(paused) == [*(f"o{n}" for n in range(depth)), "g"]
    state = await pauses.state(agent, paused)
    approve()(state)
    changed = build_tower(ran, depth, handed=handed, change=(level, by))
    with pytest.raises(StateError, match=f"'d{level}' of tool 'dig' has begun a run of agent"):
        await pauses.run(changed, state)
    assert ran == []
    result = await pauses.run(agent, state)
    assert result.final_output == "up"
    assert sorted(ran) == sorted([("gated", depth), *(("other", n) for n in range(depth))])


# ---------------------------------------------------------------------------------------------- agents


@pytest.mark.scenario("AP-18")
@in_every_way
async def test_a_pause_after_a_handoff_goes_on_with_the_second_agent(run_mode: Run, way: str) -> None:
    """The interruption names the second agent, and the caller passes the agent that the run began with."""
    ran: list[Any] = []
    second: Agent[Any, Any] = Agent(
        "second", model=ScriptedModel([call("gated", {}, "c1"), say("second is done")]), tools=[make_gated_tool(ran)]
    )
    first: Agent[Any, Any] = Agent(
        "first", model=ScriptedModel([respond(HandoffCall("h", "transfer_to_second", "{}"))]), handoffs=[second]
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(first)
    assert paused.interruptions == (ApprovalRequest(ToolCall("c1", "gated", "{}"), "second", ()),)
    assert paused.last_agent is second
    result = await pauses.resume(first, paused, approve())
    assert result.final_output == "second is done"
    assert result.last_agent is second
    assert ran == [("gated", 0)]
    assert len(read_requests(first)) == 1
    assert count_records(result, r.HandedOff) == 1


@pytest.mark.scenario("AP-18")
@in_every_way
async def test_a_verdict_for_good_binds_the_agent_it_was_given_for(run_mode: Run, way: str) -> None:
    """The same tool used by another agent of the run pauses again."""
    ran: list[Any] = []
    shared = make_gated_tool(ran)
    second: Agent[Any, Any] = Agent(
        "second", model=ScriptedModel([call("gated", {"n": 2}, "c2"), say("over")]), tools=[shared]
    )
    first: Agent[Any, Any] = Agent(
        "first",
        model=ScriptedModel([call("gated", {"n": 1}, "c1"), respond(HandoffCall("h", "transfer_to_second", "{}"))]),
        tools=[shared],
        handoffs=[second],
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.resume(first, await pauses.run(first), approve(always=True))
    assert [(one.agent, one.call.call_id) for one in paused.interruptions] == [("second", "c2")]
    result = await pauses.resume(first, paused, reject())
    assert result.final_output == "over"
    assert ran == [("gated", 1)]


@pytest.mark.scenario("AP-21")
@pytest.mark.parametrize("decide", [approve(), reject(message="no")])
@in_every_way
async def test_a_handoff_beside_a_call_that_waits_is_taken_when_that_is_decided(
    run_mode: Run, decide: Callable[[RunState], None], way: str
) -> None:
    """Until the verdict, the handoff's callback doesn't run and the first agent stays the agent."""
    ran: list[Any] = []
    second: Agent[Any, Any] = Agent("second", model=ScriptedModel([say("second is done")]))
    first: Agent[Any, Any] = Agent(
        "first",
        model=ScriptedModel([respond(ToolCall("c1", "gated", "{}"), HandoffCall("h", "transfer_to_second", "{}"))]),
        tools=[make_gated_tool(ran)],
        handoffs=[second],
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(first)
    assert paused.last_agent is first
    paused = await pauses.resume(first, paused, decide_nothing)
    assert paused.last_agent is first
    assert count_records(paused, r.HandedOff) == 0
    result = await pauses.resume(first, paused, decide)
    assert result.final_output == "second is done"
    assert result.last_agent is second
    assert read_outputs(result.new_items) == {"c1": "gated 0" if ran else "no"}
    assert count_records(result, r.HandedOff) == 1
    assert len(read_requests(second)) == 1


@pytest.mark.scenario("AP-23")
@pytest.mark.parametrize("names", [["gated", "free"], ["free", "gated"]])
@in_every_way
async def test_a_tools_output_is_final_when_every_call_is_decided(run_mode: Run, names: list[str], way: str) -> None:
    """The final output is the first tool's in model order, in any order of running; the model is not asked again."""
    ran: list[Any] = []
    agent = make_agent(
        [make_gated_tool(ran), make_free_tool(ran)],
        [call(name, {"n": 1}, name) for name in names],
        done=None,
        tool_use_behavior="stop_on_first_tool",
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    assert (paused.status, paused.final_output) == ("interrupted", None)
    paused = await pauses.resume(agent, paused, decide_nothing)
    assert (paused.status, paused.final_output) == ("interrupted", None)
    result = await pauses.resume(agent, paused, approve())
    assert (result.status, result.final_output) == ("completed", f"{names[0]} 1")
    assert ran == [("free", 1), ("gated", 1)]
    assert len(read_requests(agent)) == 1


# ---------------------------------------------------------------------------------------------- parity


@pytest.mark.parametrize("decide", [approve(), reject()])
async def test_all_ways_to_go_on_leave_one_and_the_same_log(
    run_mode: Callable[..., Awaitable[Any]], decide: Callable[[RunState], None]
) -> None:
    """The logs are equal in normal form, because JSON and journal lose nothing of a pause."""
    logs: list[Any] = []
    for way in ("direct", "json", "journal"):
        ran: list[Any] = []
        agent = make_agent(
            [make_gated_tool(ran), make_free_tool(ran)], [call("gated", {}, "c1"), call("free", {}, "c2")]
        )
        pauses = Pauses(run_mode, way)
        paused = await pauses.run(agent)
        copy_state(paused.to_state(), agent)
        result = await pauses.resume(agent, paused, decide)
        copy_state(result.to_state(), agent)
        assert find_outcome(result, "c2").output == "free 0"
        logs.append(normal(result.records))
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.scenario("RP-21")
@pytest.mark.parametrize("how", ["state", "stored state"])
async def test_edited_arguments_that_do_not_fit_are_refused_and_the_call_waits_on(run_mode: Run, how: str) -> None:
    """The error names every fault, and the approval is not spent."""
    ran: list[Any] = []

    @tool(needs_approval=True)
    async def pay(amount: int, to: str, note: str = "") -> str:
        """Pay."""
        ran.append((amount, to))
        return "paid"

    agent = Agent("a", model=ScriptedModel([call("pay", {"amount": 1, "to": "x"}, "c1"), say("done")]), tools=[pay])
    state = (await run_mode(agent, "go")).to_state()
    if how == "stored state":
        state = RunState.from_string(agent, state.to_string())
    before = list(state.records)
    for bad, faults in (
        ({"amount": "many", "note": 5}, ["amount", "to", "note"]),
        ({"amount": 1, "to": "x", "why": "?"}, ["why"]),
        ("{", ["JSON"]),
        ("[1]", ["object"]),
    ):
        with pytest.raises(UserError, match=r"the arguments given.* don't fit") as caught:
            state.approve("c1", arguments=bad)  # type: ignore[arg-type]
        assert all(fault in str(caught.value) for fault in faults), str(caught.value)
    assert state.records == before
    assert [request.call.call_id for request in state.interruptions] == ["c1"]
    state.approve("c1", arguments={"amount": 2, "to": "y"})
    result = await run_mode(agent, state)
    assert result.final_output == "done"
    assert ran == [(2, "y")]


async def test_a_record_that_takes_the_place_of_another_is_the_one_that_counts(run_mode: Run) -> None:
    """The records are the state: a verdict that gets another time has this time in the run that continues, too."""
    agent = make_agent([make_gated_tool([])], call("gated"))
    state = (await run_mode(agent, "go")).to_state()
    state.approve(state.interruptions[0])
    state.records[-1] = state.records[-1].replace(at=1.5)
    result = await run_mode(agent, state)
    assert [record.at for record in result.to_state().records if isinstance(record, r.VerdictGiven)] == [1.5]
