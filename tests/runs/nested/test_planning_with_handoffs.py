"""Planning where a response may hold handoffs beside tools: identities, unknown names, names that both have."""

import logging
from typing import Any

import pytest
from kit.agents import Run, script_agent
from kit.results import find_records, read_requests
from kit.watching import RunHookLog

from agentloop import Agent, ModelBehaviorError, RunConfig, UserError, handoff, tool
from agentloop import records as r
from agentloop.testing import ScriptedModel, call, say


class Both:
    """A tool `f(n)` and a handoff to `b`; what happens is kept in `log`."""

    def __init__(self, **handoff_fields: Any) -> None:
        self.log: list[str] = []

        @tool
        async def f(n: int = 0) -> str:
            self.log.append(f"f{n}")
            return f"f{n}"

        self.f = f
        self.second = script_agent("b", say("done"))
        self.handoff = handoff(self.second, on_handoff=lambda ctx: self.log.append("handoff"), **handoff_fields)


@pytest.mark.scenario("PL-09")
@pytest.mark.parametrize("order", ["tool-first", "handoff-first"])
async def test_one_id_for_a_tool_and_a_handoff_fails_before_execution(run_mode: Run, order: str) -> None:
    """Neither the tool nor the handoff of that id runs, and no sibling does."""
    both = Both()
    calls = [call("f", {}, "c"), call("transfer_to_b", {}, "c")]
    agent = script_agent(
        "a",
        [call("f", {"n": 9}, "x"), *(calls if order == "tool-first" else calls[::-1])],
        tools=[both.f],
        handoffs=[both.handoff],
    )
    with pytest.raises(ModelBehaviorError, match="'c'") as caught:
        await run_mode(agent, "go")
    assert both.log == []
    assert caught.value.run_data is not None
    assert find_records(caught.value.run_data, r.CallStarted) == []
    assert caught.value.run_data.last_agent is agent


@pytest.mark.scenario("PL-09")
async def test_id_of_an_earlier_turn_s_tool_is_not_a_handoff_s(run_mode: Run) -> None:
    """An id names the tool call for the whole run."""
    both = Both()
    agent = script_agent(
        "a", call("f", {}, "c"), call("transfer_to_b", {}, "c"), tools=[both.f], handoffs=[both.handoff]
    )
    with pytest.raises(ModelBehaviorError, match="'c'"):
        await run_mode(agent, "go")
    assert both.log == ["f0"]


@pytest.mark.scenario("PL-10")
@pytest.mark.parametrize("name", ["g", "transfer_to_c"])
async def test_unknown_name_fails_the_run_before_its_siblings(run_mode: Run, name: str) -> None:
    """The model call's end hook has run, but no tool or handoff starts."""
    both = Both()
    trace = RunHookLog()
    agent = script_agent(
        "a",
        [call("f", {}, "x"), call("transfer_to_b", {}, "h"), call(name, {}, "c")],
        tools=[both.f],
        handoffs=[both.handoff],
    )
    with pytest.raises(ModelBehaviorError, match=f"'{name}' not found") as caught:
        await run_mode(agent, "go", hooks=trace, run_config=RunConfig(tool_not_found_behavior="raise"))
    assert both.log == []
    assert trace.lines == ["agent_start a", "llm_start a", "llm_end a", "run_end failed"]
    assert caught.value.run_data is not None
    assert find_records(caught.value.run_data, r.CallStarted) == []
    assert read_requests(both.second) == []


@pytest.mark.scenario("PL-16")
async def test_handoff_wins_over_a_tool_of_its_name(run_mode: Run, caplog: pytest.LogCaptureFixture) -> None:
    """The handoff wins in the model's list and in the meaning of its call; one warning comes for the run."""
    both = Both(tool_name="f")

    @tool
    async def other() -> str:
        both.log.append("other")
        return "other"

    agent = script_agent("a", call("other"), call("f", {}, "c"), tools=[both.f, other], handoffs=[both.handoff])
    with caplog.at_level(logging.WARNING, "agentloop"):
        result = await run_mode(agent, "go")
    assert result.last_agent is both.second
    assert both.log == ["other", "handoff"]
    for request in read_requests(agent):
        assert [one.name for one in request.tools] == ["other"]
        assert [one.name for one in request.handoffs] == ["f"]
    assert len([record for record in caplog.records if "tool and a handoff named 'f'" in record.message]) == 1


@pytest.mark.scenario("PL-16")
async def test_disabled_handoff_does_not_take_a_tool_s_name(run_mode: Run) -> None:
    """The disabled handoff isn't there in that turn."""
    both = Both(tool_name="f", is_enabled=False)
    agent = script_agent("a", call("f", {}, "c"), say("done"), tools=[both.f], handoffs=[both.handoff])
    result = await run_mode(agent, "go")
    assert both.log == ["f0"]
    assert result.last_agent is agent


async def test_collision_of_a_tool_and_a_handoff_may_be_an_error(run_mode: Run) -> None:
    """The run's policy makes the collision an error before the model is asked."""
    both = Both(tool_name="f")
    agent = script_agent("a", say("never"), tools=[both.f], handoffs=[both.handoff])
    with pytest.raises(UserError, match="a tool and a handoff named 'f'"):
        await run_mode(agent, "go", run_config=RunConfig(tool_name_collision_policy="raise"))
    assert read_requests(agent) == []


@pytest.mark.scenario("PL-17")
@pytest.mark.parametrize("policy", ["tell_model", "raise"])
async def test_tool_of_a_namespace_is_no_handoff_s_rival(run_mode: Run, policy: Any) -> None:
    """A call with the namespace runs the tool, and a call of the bare name takes the handoff."""
    both = Both(tool_name="f")

    @tool(name="f", namespace="ns")
    async def namespaced() -> str:
        both.log.append("ns.f")
        return "ns"

    agent = script_agent("a", call("f", {}, "c", "ns"), call("f", {}, "d"), tools=[namespaced], handoffs=[both.handoff])
    result = await run_mode(agent, "go", run_config=RunConfig(tool_name_collision_policy=policy))
    assert both.log == ["ns.f", "handoff"]
    assert result.last_agent is both.second
    assert len(read_requests(agent)) == 2
    assert read_requests(agent)[0].tools == (namespaced,)


async def test_a_handoff_whose_input_does_not_fit_is_refused_before_any_tool_of_its_response_starts(
    run_mode: Any,
) -> None:
    """The plan is complete before the first side effect."""
    started: list[str] = []

    @tool
    async def effect() -> str:
        started.append("effect")
        return "done"

    def take(ctx: Any, given: int) -> None:
        started.append("handoff")

    target = Agent("b", model=ScriptedModel([say("b")]))
    to_b = handoff(target, on_handoff=take, input_type=int)
    script = ScriptedModel([[call("effect"), call("transfer_to_b", {"response": "no number"})]])
    agent = Agent("a", model=script, tools=[effect], handoffs=[to_b])
    with pytest.raises(ModelBehaviorError):
        await run_mode(agent, "go")
    assert started == []
