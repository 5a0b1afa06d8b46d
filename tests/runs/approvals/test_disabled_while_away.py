"""Tools that are disabled while a run waits: only their calls are refused, and other decided calls continue."""

from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest
from kit.agents import Run, configure_run, make_agent, make_free_tool, make_gated_tool, script_turns
from kit.results import find_outcome, read_requests, read_shown_outputs, read_statuses, read_waiting
from kit.resuming import Pauses, approve, decide_nothing, in_every_way, make_journal, reject

from agentloop import Agent, FunctionTool, ModelBehaviorError, RunConfig, RunState
from agentloop import records as r
from agentloop.journal import MemoryJournal
from agentloop.testing import ScriptedModel, call, say

GONE = "Tool 'pay' is no longer available."


class Switch:
    """Says whether a tool is on, sync or async, and how often it was asked."""

    def __init__(self) -> None:
        self.on = True
        self.asked = 0

    def __call__(self, ctx: Any, agent: Any) -> bool:
        self.asked += 1
        return self.on

    async def later(self, ctx: Any, agent: Any) -> bool:
        await anyio.lowlevel.checkpoint()
        return self(ctx, agent)


def turn_off(agent: Agent[Any, Any], switch: Switch) -> None:
    """Turn the tool off by its callable, or for good where it has none."""
    switch.on = False
    for index, one in enumerate(agent.tools):
        if one.name == "pay" and isinstance(one.is_enabled, bool):
            agent.tools[index] = attrs.evolve(one, is_enabled=False)  # type: ignore[index]


SORTS: dict[str, Callable[[Switch], Any]] = {
    "sync": lambda switch: switch,
    "async": lambda switch: switch.later,
    "field": lambda switch: True,
}
every_sort = pytest.mark.parametrize("sort", SORTS)


def two_gated(ran: list[Any], enabled: Any, *more: Any) -> Agent[Any, Any]:
    """Return an agent whose calls p1 of `pay` and o1 of `other` wait."""
    return make_agent(
        [make_gated_tool(ran, "pay", is_enabled=enabled), make_gated_tool(ran, "other"), *more],
        [call("pay", {"n": 1}, "p1"), call("other", {"n": 2}, "o1")],
    )


@pytest.mark.scenario("RP-08", "PL-13")
@every_sort
@pytest.mark.parametrize("policy", ["raise", "tell_model"])
@in_every_way
async def test_an_approved_call_of_a_disabled_tool_is_refused_alone(
    run_mode: Run, sort: str, policy: Any, way: str
) -> None:
    """Only the disabled tool's call is refused, under every unknown-tool policy; its approved sibling runs."""
    ran: list[Any] = []
    switch = Switch()
    agent = two_gated(ran, SORTS[sort](switch))
    config = RunConfig(tool_not_found_behavior=policy)
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, run_config=config)
    turn_off(agent, switch)
    result = await pauses.resume(agent, paused, approve(), run_config=config)
    assert result.final_output == "done"
    assert ran == [("other", 2)]
    assert read_shown_outputs(agent) == {"p1": GONE, "o1": "other 2"}
    refused = find_outcome(result, "p1")
    assert (refused.status, refused.started_at) == ("skipped", None)


@pytest.mark.scenario("RP-08")
@every_sort
@in_every_way
async def test_a_disabled_tool_s_call_waits_for_its_verdict_as_before(run_mode: Run, sort: str, way: str) -> None:
    """The call waits without a verdict, is rejected by one, and runs if the tool is enabled again in time."""
    ran: list[Any] = []
    switch = Switch()
    agent = two_gated(ran, SORTS[sort](switch))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    turn_off(agent, switch)
    paused = await pauses.resume(agent, paused, approve("o1"))
    assert read_waiting(paused) == ["p1"]
    assert ran == [("other", 2)]
    if sort == "field":
        result = await pauses.resume(agent, paused, reject("p1", message="no"))
        assert read_shown_outputs(agent) == {"p1": "no", "o1": "other 2"}
    else:
        switch.on = True
        result = await pauses.resume(agent, paused, approve("p1"))
        assert read_shown_outputs(agent) == {"p1": "pay 1", "o1": "other 2"}
    assert result.final_output == "done"


@pytest.mark.scenario("RP-08")
@pytest.mark.parametrize("asked", [1, 2, 3])
async def test_a_tool_that_goes_off_at_any_question_of_the_resume_is_refused_alone(run_mode: Run, asked: int) -> None:
    """The tool is off from the first, second or third question of the resume on, and no answer ends the run."""
    ran: list[Any] = []
    switch = Switch()

    def enabled(ctx: Any, agent: Any) -> bool:
        return switch(ctx, agent) or switch.asked < asked

    agent = two_gated(ran, enabled)
    paused = await run_mode(agent, "go")
    switch.on, switch.asked = False, 0
    state = paused.to_state()
    approve()(state)
    result = await run_mode(agent, state)
    assert result.final_output == "done"
    assert ("other", 2) in ran
    assert find_outcome(result, "p1").status in ("skipped", "succeeded")
    assert (find_outcome(result, "p1").status == "skipped") == (("pay", 1) not in ran)


@pytest.mark.scenario("RP-08")
@every_sort
async def test_a_call_in_a_queue_is_refused_alone_after_a_crash(run_mode: Run, sort: str) -> None:
    """The log breaks off at every record of the batch; the sibling has one output, and the run completes."""
    for kept in range(1, 30):
        ran: list[Any] = []
        switch = Switch()
        agent = Agent(
            "guide",
            model=script_turns([call("other", {"n": 2}, "o1"), call("pay", {"n": 1}, "p1")], say("done")),
            tools=[make_free_tool(ran, "other"), make_free_tool(ran, "pay", is_enabled=SORTS[sort](switch))],
        )
        journal = MemoryJournal()
        config = configure_run(mode="sequential")
        await run_mode(agent, "go", journal=journal, run_config=config)
        state = await RunState.from_journal(agent, await make_journal((await journal.read())[:kept]))
        if state._fold.response is None or state._fold.ended is not None or state._fold.turn > 1:
            continue  # the model is asked about other tools, or the batch is over
        settled = {one.call_id for one in state.records if isinstance(one, r.CallSettled)}
        started = {one.call_id for one in state.records if isinstance(one, r.CallStarted)}
        turn_off(agent, switch)
        result = await run_mode(agent, state, run_config=config)
        assert result.final_output == "done"
        if "p1" not in settled | started:
            assert find_outcome(result, "p1").output == GONE
        elif "p1" not in settled:
            assert find_outcome(result, "p1").status in ("unknown", "succeeded")


@pytest.mark.scenario("RP-08")
@pytest.mark.parametrize(
    "options",
    [{"idempotent": True}, {"in_doubt": "rerun"}, {"reads_only": True}, {}],
    ids=["idempotent", "rerun", "reads", "no"],
)
async def test_a_started_call_of_a_disabled_tool_is_in_doubt(run_mode: Run, options: dict[str, Any]) -> None:
    """The call isn't run again and isn't reported as refused, because it may have taken effect."""
    ran: list[Any] = []
    switch = Switch()
    agent = Agent(
        "guide",
        model=script_turns(call("pay", {"n": 1}, "p1"), say("done")),
        tools=[make_free_tool(ran, "pay", is_enabled=switch, **options)],
    )
    journal = MemoryJournal()
    await run_mode(agent, "go", journal=journal)
    lines = await journal.read()
    places = [n for n, line in enumerate(lines) if b'"call_started"' in line]
    state = await RunState.from_journal(agent, await make_journal(lines[: places[0] + 1]))
    turn_off(agent, switch)
    result = await run_mode(agent, state)
    assert ran == [("pay", 1)]
    assert read_statuses(result) == ["unknown"]
    assert "was interrupted" in str(find_outcome(result, "p1").output)


@pytest.mark.scenario("RP-08")
@in_every_way
async def test_a_disabled_tool_of_a_nested_run_is_refused_alone(run_mode: Run, way: str) -> None:
    """The nested run refuses its disabled tool alone; an agent tool that is disabled meanwhile ends its begun run."""
    ran: list[Any] = []
    inner_switch, outer_switch = Switch(), Switch()
    inner = Agent(
        "inner",
        model=ScriptedModel([[call("pay", {"n": 1}, "p1"), call("other", {"n": 2}, "o1")], say("inner done")]),
        tools=[make_gated_tool(ran, "pay", is_enabled=inner_switch), make_gated_tool(ran, "other")],
    )
    asks: FunctionTool = inner.as_tool("ask", "asks", is_enabled=outer_switch)
    agent = make_agent([asks], call("ask", {"input": "x"}, "c1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    assert read_waiting(paused) == ["p1", "o1"]
    inner_switch.on = outer_switch.on = False
    result = await pauses.resume(agent, paused, approve())
    assert result.final_output == "done"
    assert read_shown_outputs(inner) == {"p1": GONE, "o1": "other 2"}
    assert read_shown_outputs(agent) == {"c1": "inner done"}


@pytest.mark.scenario("RP-08", "PL-13")
async def test_a_tool_that_was_off_when_the_model_was_asked_is_unknown_afterwards_too(run_mode: Run) -> None:
    """The model never saw the disabled tool, so the missing-tool policy applies in the resumed run too."""
    ran: list[Any] = []
    switch = Switch()
    switch.on = False
    agent = Agent(
        "guide",
        model=script_turns([call("pay", {"n": 1}, "p1"), call("other", {"n": 2}, "o1")], say("done")),
        tools=[make_gated_tool(ran, "pay", is_enabled=switch), make_gated_tool(ran, "other")],
    )
    journal = MemoryJournal()
    with pytest.raises(ModelBehaviorError, match=r"'pay' not found"):
        await run_mode(agent, "go", journal=journal, run_config=RunConfig(tool_not_found_behavior="raise"))
    lines = await journal.read()
    state = await RunState.from_journal(agent, await make_journal(lines[:-1]))
    with pytest.raises(ModelBehaviorError, match=r"'pay' not found"):
        await run_mode(agent, state, run_config=RunConfig(tool_not_found_behavior="raise"))
    assert ran == []
    assert len(read_requests(agent)) == 1


@pytest.mark.scenario("RP-08")
async def test_an_entry_that_decides_nothing_leaves_a_disabled_tool_s_call_waiting(run_mode: Run) -> None:
    """AP-15 holds: the model isn't asked, and nothing is refused."""
    ran: list[Any] = []
    switch = Switch()
    agent = two_gated(ran, switch)
    pauses = Pauses(run_mode, "json")
    paused = await pauses.run(agent)
    switch.on = False
    paused = await pauses.resume(agent, paused, decide_nothing)
    assert read_waiting(paused) == ["p1", "o1"]
    assert len(read_requests(agent)) == 1
