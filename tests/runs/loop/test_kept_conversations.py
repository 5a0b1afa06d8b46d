"""Conversations that the provider keeps: new items only are sent."""

import logging
from typing import Any

import pytest
from kit.agents import look

from agentloop import Agent, RunConfig, UserError, handoff
from agentloop.items import AssistantMessage, ToolCall, ToolOutput, UserMessage
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, respond


async def test_each_request_goes_on_from_the_response_before(run_mode: Any) -> None:
    """The first request continues the given response; items that the provider has aren't sent again."""
    model = ScriptedModel(
        [respond(ToolCall("c", "look"), response_id="r1"), respond(AssistantMessage("x"), response_id="r2")]
    )
    agent = Agent("a", model=model, tools=[look])
    result = await run_mode(agent, "go", previous_response_id="r0")
    assert [request.previous_response_id for request in model.requests] == ["r0", "r1"]
    assert [list(request.items) for request in model.requests] == [[UserMessage("go")], [ToolOutput("c", "seen")]]
    assert result.last_response_id == "r2"


async def test_a_conversation_goes_by_its_id(run_mode: Any) -> None:
    """The requests have the conversation's id and no response's id."""
    model = ScriptedModel([respond(ToolCall("c", "look"), response_id="r1"), respond(AssistantMessage("x"))])
    await run_mode(Agent("a", model=model, tools=[look]), "go", conversation_id="conv")
    assert [(request.conversation_id, request.previous_response_id) for request in model.requests] == [
        ("conv", None),
        ("conv", None),
    ]
    assert list(model.requests[1].items) == [ToolOutput("c", "seen")]


@pytest.mark.scenario("SE-09")
@pytest.mark.parametrize("kept", [{"conversation_id": "c"}, {"auto_previous_response_id": True}])
async def test_a_session_and_a_kept_conversation_exclude_each_other(run_mode: Any, kept: dict[str, Any]) -> None:
    """The run is refused before the model is asked."""
    model = ScriptedModel([])
    with pytest.raises(UserError, match="session"):
        await run_mode(Agent("a", model=model), "go", session=MemorySession(), **kept)
    assert model.requests == []


async def test_two_ways_to_go_on_exclude_each_other(run_mode: Any) -> None:
    """The run accepts a conversation or a response, not both."""
    with pytest.raises(UserError, match="choose one"):
        await run_mode(Agent("a", model=ScriptedModel([])), "go", conversation_id="c", previous_response_id="r")


@pytest.mark.scenario("HO-10")
async def test_a_kept_conversation_can_not_be_filtered_for_a_handoff(run_mode: Any) -> None:
    """The run is refused without a call of the filter."""
    target = Agent("b", model=ScriptedModel([]))
    model = ScriptedModel([respond(ToolCall("c", "transfer_to_b"))])
    agent = Agent("a", model=model, handoffs=[handoff(target, input_filter=lambda data: pytest.fail("asked"))])
    with pytest.raises(UserError, match="filter"):
        await run_mode(agent, "go", conversation_id="c")


@pytest.mark.scenario("HO-10")
async def test_nesting_is_off_for_a_kept_conversation_with_one_warning(
    run_mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The target of a handoff receives the new items only."""
    c = Agent("c", model=ScriptedModel([respond(AssistantMessage("c"))]))
    b = Agent("b", model=ScriptedModel([respond(ToolCall("h2", "transfer_to_c"))]), handoffs=[c])
    model = ScriptedModel([respond(ToolCall("h1", "transfer_to_b"))])
    with caplog.at_level(logging.WARNING, logger="agentloop"):
        result = await run_mode(
            Agent("a", model=model, handoffs=[b]),
            "go",
            conversation_id="c",
            run_config=RunConfig(nest_handoff_history=True),
        )
    assert result.final_output == "c"
    assert sum("nest_handoff_history" in message for message in caplog.messages) == 1
