"""The tool choice an agent demands, and when it is dropped."""

from typing import Any

import pytest
from kit.agents import Run, look, script_agent
from kit.results import read_requests

from agentloop import Agent, HostedTool, ModelSettings, RunConfig, tool
from agentloop.items import HostedToolCall
from agentloop.testing import call, respond, say


def choices(agent: Agent[Any, Any]) -> list[Any]:
    """Return the tool choice of each request, which is equal in the request and in its settings."""
    requests = read_requests(agent)
    assert [request.settings.tool_choice for request in requests] == [request.tool_choice for request in requests]
    return [request.tool_choice for request in requests]


def choosing(choice: Any, *steps: Any, name: str = "a", **fields: Any) -> Agent[Any, Any]:
    """Return an agent that demands *choice*."""
    return script_agent(name, *steps, tools=[look], model_settings=ModelSettings(tool_choice=choice), **fields)


@pytest.mark.scenario("TR-01")
async def test_required_choice_is_dropped_once_a_tool_was_used(run_mode: Run) -> None:
    """The choice is dropped for this run's later requests; the agent's declaration stays."""
    agent = choosing("required", call("look"), call("look", call_id="x"), say("done"))
    settings = agent.model_settings
    await run_mode(agent, "go")
    assert choices(agent) == ["required", None, None]
    assert agent.model_settings is settings
    assert settings.tool_choice == "required"


@pytest.mark.scenario("TR-02")
@pytest.mark.parametrize("choice", ["look", "auto", {"type": "function", "function": {"name": "look"}}])
async def test_named_choice_and_auto_are_dropped_likewise(run_mode: Run, choice: Any) -> None:
    """A named choice and `auto` are dropped after the first request, in every form."""
    agent = choosing(choice, call("look"), say("done"))
    await run_mode(agent, "go")
    assert choices(agent) == [choice, None]


@pytest.mark.scenario("TR-01")
async def test_choice_of_the_run_s_configuration_is_dropped_too(run_mode: Run) -> None:
    """The configuration's choice replaces the agent's, and is dropped like it."""
    agent = choosing("auto", call("look"), say("done"))
    config = RunConfig(model_settings=ModelSettings(tool_choice="required", temperature=0.5))
    await run_mode(agent, "go", run_config=config)
    assert choices(agent) == ["required", None]
    assert [request.settings.temperature for request in read_requests(agent)] == [0.5, 0.5]


@tool
async def tool_search(words: str) -> str:
    """Search the application's own tools."""
    return "none"


@pytest.mark.scenario("TR-08")
async def test_the_provider_s_search_for_tools_is_no_use_of_a_tool(run_mode: Run) -> None:
    """The choice stays after it; a function of that name counts like any other."""
    searched = respond(HostedToolCall("tool_search_call", {"execution": "server"}, "ts1", "completed"))
    used = call("tool_search", {"words": "x"})
    settings = ModelSettings(tool_choice="required")
    tools = [look, tool_search, HostedTool("tool_search")]
    agent = script_agent("a", searched, used, say("done"), tools=tools, model_settings=settings)
    await run_mode(agent, "go")
    assert choices(agent) == ["required", "required", None]


@pytest.mark.scenario("TR-03")
async def test_choice_stays_while_no_tool_was_used(run_mode: Run) -> None:
    """A turn without a call changes nothing: here a typed agent that said nothing."""
    agent = choosing("required", say(""), call("look"), say('{"response": 5}'), output_type=int)
    await run_mode(agent, "go")
    assert choices(agent) == ["required", "required", None]


@pytest.mark.scenario("TR-04")
async def test_another_agent_s_use_does_not_count(run_mode: Run) -> None:
    """The second agent's own choice must still be obeyed after another agent's tool use or a handoff."""
    second = choosing("required", call("look", call_id="y"), say("done"), name="b")
    first = choosing("required", call("look", call_id="x"), call("transfer_to_b"), handoffs=[second])
    await run_mode(first, "go")
    assert choices(first) == ["required", None]
    assert choices(second) == ["required", None]


@pytest.mark.scenario("TR-04")
async def test_handing_over_is_no_use_of_a_tool(run_mode: Run) -> None:
    """An agent that is handed back to still has its choice."""
    first = choosing("required", call("transfer_to_b"), say("done"))
    second = script_agent("b", call("look", call_id="x"), call("transfer_to_a", call_id="y"), tools=[look])
    first.handoffs, second.handoffs = [second], [first]
    await run_mode(first, "go")
    assert choices(first) == ["required", "required"]


@pytest.mark.scenario("TR-05")
async def test_choice_stays_where_the_agent_says_so(run_mode: Run) -> None:
    """`reset_tool_choice=False` keeps the choice."""
    agent = choosing("required", call("look"), call("look", call_id="x"), say("done"), reset_tool_choice=False)
    await run_mode(agent, "go")
    assert choices(agent) == ["required", "required", "required"]


@pytest.mark.scenario("TR-06")
async def test_new_run_starts_with_the_declared_choice(run_mode: Run) -> None:
    """The new run has the declared choice, also with the first run's items as its input."""
    agent = choosing("required", call("look"), say("one"), call("look", call_id="x"), say("two"))
    result = await run_mode(agent, "go")
    await run_mode(agent, result.to_input_list())
    assert choices(agent) == ["required", None, "required", None]


@pytest.mark.scenario("TR-09")
@pytest.mark.parametrize("choice", ["look", None])
async def test_after_a_handoff_the_target_s_own_choice_applies(run_mode: Run, choice: Any) -> None:
    """The target's own choice applies, not the first agent's, dropped or not."""
    second = choosing(choice, say("done"), name="b")
    first = choosing("required", call("transfer_to_b"), handoffs=[second])
    await run_mode(first, "go")
    assert choices(first) == ["required"]
    assert choices(second) == [choice]
