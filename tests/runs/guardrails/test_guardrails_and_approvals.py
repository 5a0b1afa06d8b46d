"""Guardrails of tools that need approval: after it, or before and after it."""

import json
from typing import Any

import pytest
from kit.agents import Run, make_agent, make_free_tool, make_gated_tool
from kit.results import (
    count_records,
    find_records,
    read_approval_requests,
    read_shown_outputs,
    read_statuses,
    read_waiting,
)
from kit.resuming import Pauses, approve, decide_nothing, in_every_way

from agentloop import Allow, RunConfig, ToolExecution
from agentloop import records as r
from agentloop.exceptions import ToolInputGuardrailTripwireTriggered
from agentloop.guardrails import RaiseException, RejectContent, tool_input_guardrail
from agentloop.testing import call


def judging(lines: list[str], verdict: Any = None) -> Any:
    """Return a tool input guardrail that notes what it judged."""

    @tool_input_guardrail
    def judge(data: Any) -> Any:
        lines.append(json.dumps(data.arguments))
        return verdict if verdict is not None else Allow()

    return judge


@pytest.mark.scenario("GT-06")
@in_every_way
async def test_guardrails_of_a_gated_tool_run_after_the_approval_alone(run_mode: Run, way: str) -> None:
    """The guardrails run right before the body, in the entry that runs it, so they can still refuse."""
    ran: list[Any] = []
    lines: list[str] = []
    agent = make_agent([make_gated_tool(ran, tool_input_guardrails=[judging(lines)])], call("gated", {"n": 1}, "c1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    assert (lines, read_waiting(paused)) == ([], ["c1"])
    result = await pauses.resume(agent, paused, approve())
    assert lines == ['{"n": 1}']
    assert ran == [("gated", 1)]
    assert len(result.tool_input_guardrail_results) == 1


@pytest.mark.scenario("GT-06")
@in_every_way
async def test_a_guardrail_refuses_an_approved_call(run_mode: Run, way: str) -> None:
    """The approval doesn't overrule it."""
    ran: list[Any] = []
    lines: list[str] = []
    gate = make_gated_tool(ran, tool_input_guardrails=[judging(lines, RejectContent("still no"))])
    agent = make_agent([gate], call("gated", {"n": 1}, "c1"))
    pauses = Pauses(run_mode, way)
    await pauses.resume(agent, await pauses.run(agent), approve())
    assert (ran, lines) == ([], ['{"n": 1}'])
    assert read_shown_outputs(agent) == {"c1": "still no"}


BEFORE = RunConfig(tool_execution=ToolExecution(pre_approval_tool_input_guardrails=True))


@pytest.mark.scenario("GT-07")
async def test_a_guardrail_before_the_approval_refuses_without_a_pause(run_mode: Run) -> None:
    """A call that a guardrail would refuse requests no approval."""
    ran: list[Any] = []
    lines: list[str] = []
    gate = make_gated_tool(ran, tool_input_guardrails=[judging(lines, RejectContent("no need to ask"))])
    agent = make_agent([gate], call("gated", {"n": 1}, "c1"))
    result = await run_mode(agent, "go", run_config=BEFORE)
    assert result.final_output == "done"
    assert (ran, lines, read_approval_requests(result)) == ([], ['{"n": 1}'], [])
    assert read_shown_outputs(agent) == {"c1": "no need to ask"}
    assert read_statuses(result) == ["rejected"]


@pytest.mark.scenario("GT-07")
async def test_a_guardrail_that_trips_before_the_approval_ends_the_run(run_mode: Run) -> None:
    """The run ends before any call starts, and no approval is requested."""
    ran: list[Any] = []
    gate = make_gated_tool(ran, tool_input_guardrails=[judging([], RaiseException())])
    agent = make_agent([gate, make_free_tool(ran)], [call("free", {}, "c1"), call("gated", {}, "c2")])
    with pytest.raises(ToolInputGuardrailTripwireTriggered) as caught:
        await run_mode(agent, "go", run_config=BEFORE)
    assert ran == []
    data = caught.value.run_data
    assert data is not None
    assert count_records(data, r.ApprovalRequested) == 0


@pytest.mark.scenario("GT-07")
@in_every_way
async def test_guardrails_that_passed_before_the_approval_run_again_after_it(run_mode: Run, way: str) -> None:
    """The guardrail runs once before the pause, not again without a verdict, and once right before the body."""
    ran: list[Any] = []
    lines: list[str] = []
    agent = make_agent([make_gated_tool(ran, tool_input_guardrails=[judging(lines)])], call("gated", {"n": 1}, "c1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, run_config=BEFORE)
    assert (len(lines), read_waiting(paused)) == (1, ["c1"])
    paused = await pauses.resume(agent, paused, decide_nothing, run_config=BEFORE)
    assert (len(lines), read_waiting(paused)) == (1, ["c1"])
    result = await pauses.resume(agent, paused, approve(), run_config=BEFORE)
    assert result.final_output == "done"
    assert lines == ['{"n": 1}', '{"n": 1}']
    assert ran == [("gated", 1)]
    assert len(result.tool_input_guardrail_results) == 2
    assert len(find_records(result, r.GuardrailSettled)) == 2


@pytest.mark.scenario("GT-07")
async def test_a_free_tools_guardrails_run_once_where_those_of_gated_ones_run_before_the_approval(
    run_mode: Run,
) -> None:
    """The guardrails of a free tool run once, because its call has no approval."""
    ran: list[Any] = []
    lines: list[str] = []
    agent = make_agent([make_free_tool(ran, tool_input_guardrails=[judging(lines)])], call("free", {"n": 1}, "c1"))
    await run_mode(agent, "go", run_config=BEFORE)
    assert (lines, ran) == (['{"n": 1}'], [("free", 1)])
