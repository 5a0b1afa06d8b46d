"""Answers that a model's length limit or a content filter cut off: every consumer can see that they are cut."""

import logging
from typing import Any

import attrs
import pytest
from kit.watching import Watch

from agentloop import Agent, ModelBehaviorError, RunConfig, Runner, RunState, tool
from agentloop import events as ev
from agentloop import records as r
from agentloop.exceptions import UserTypeError
from agentloop.items import AssistantMessage, HostedToolCall, Reasoning, ToolCall, ToolOutput
from agentloop.model_events import HostedProgress, ReasoningDelta, ResponseDone, TextDelta
from agentloop.testing import ScriptedModel, respond, say, stream_of
from agentloop.usage import Usage

CUT = ("length", "content_filter")


@tool
async def look(n: int = 0) -> str:
    """Look."""
    return "seen"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the library's warnings."""
    return [one.message for one in caplog.records if one.levelno == logging.WARNING and one.name == "agentloop"]


@pytest.mark.scenario("RP-19")
@pytest.mark.parametrize("reason", [*CUT, "stop", None])
async def test_finish_reason_stands_in_response_record_event_and_result(
    run_mode: Any, caplog: pytest.LogCaptureFixture, reason: str | None
) -> None:
    """A cut answer differs from a whole one everywhere, also in the stored state."""
    watch = Watch()
    steps = [
        respond(ToolCall("c1", "look"), finish_reason="tool_calls"),
        respond(AssistantMessage("So far"), finish_reason=reason),
    ]
    agent = Agent("a", model=ScriptedModel(steps), tools=[look])
    result = await run_mode(agent, "go", run_config=RunConfig(instruments=(watch,)))
    assert result.final_output == "So far"
    assert result.finish_reason == reason
    assert [response.finish_reason for response in result.raw_responses] == ["tool_calls", reason]
    assert [record.finish_reason for record in watch.of(r.ModelResponded)] == ["tool_calls", reason]
    restored = RunState.from_json(agent, result.to_state().to_json())
    assert restored == result.to_state()
    assert bool(warnings_of(caplog)) is (reason in CUT)
    assert all(reason in text for text in warnings_of(caplog) if reason is not None)


@pytest.mark.scenario("RP-19")
async def test_events_carry_the_finish_reason() -> None:
    """The end of a turn with calls has its reason, and the end of the run has the last answer's."""
    steps = [
        respond(ToolCall("c1", "look"), finish_reason="tool_calls"),
        respond(AssistantMessage("So far"), finish_reason="length"),
    ]
    async with Runner.run_streamed(Agent("a", model=ScriptedModel(steps), tools=[look]), "go") as stream:
        events = [event async for event in stream]
    assert [event.finish_reason for event in events if isinstance(event, ev.TurnEnded)] == ["tool_calls"]
    assert [event.finish_reason for event in events if isinstance(event, ev.RunEnded)] == ["length"]


async def test_what_an_answer_says_of_itself_stands_in_the_log(run_mode: Any) -> None:
    """The model that answered, its class of service, and what else the provider says; also in the stored state."""
    said, steps = AssistantMessage("Done"), ("r1", None, "stop", "m-1-today", "flex", {"verbosity": "low"})
    agent = Agent("a", model=ScriptedModel([stream_of([ResponseDone((said,), None, *steps)])]))
    result = await run_mode(agent, "go")
    [response] = result.raw_responses
    assert (response.model, response.service_tier, response.provider_data) == (
        "m-1-today",
        "flex",
        {"verbosity": "low"},
    )
    assert RunState.from_string(agent, result.to_state().to_string()) == result.to_state()


async def test_a_stream_shows_steps_of_hosted_tools_and_which_message_a_text_belongs_to() -> None:
    """A text's message and the kind of reasoning come along, as the model tells them."""
    said = (AssistantMessage("a"), HostedToolCall("web_search_call", {}, "ws1", "completed"), AssistantMessage("b"))
    pieces = [ReasoningDelta("hm", "summary"), TextDelta("a"), HostedProgress("web_search_call", "searching", "ws1")]
    answer = stream_of([*pieces, TextDelta("b", 2), ResponseDone(said)])
    async with Runner.run_streamed(Agent("a", model=ScriptedModel([answer])), "go") as stream:
        events = [event async for event in stream]
    assert [event for event in events if isinstance(event, ev.TextDelta | ev.ReasoningDelta | ev.HostedProgress)] == [
        ev.ReasoningDelta("hm", "summary", turn=1),
        ev.TextDelta("a", turn=1),
        ev.HostedProgress("web_search_call", "searching", "ws1", turn=1),
        ev.TextDelta("b", 2, turn=1),
    ]


async def test_the_output_of_a_call_that_did_not_succeed_is_an_error(run_mode: Any) -> None:
    """The model is told in the item, too, and not by its text alone."""

    @tool
    async def fail_at(n: int) -> str:
        """Fail."""
        raise ValueError(str(n))

    steps = [respond(ToolCall("c1", "look"), ToolCall("c2", "fail_at", '{"n": 1}')), say("done")]
    agent = Agent("a", model=ScriptedModel(steps), tools=[look, fail_at])
    result = await run_mode(agent, "go")
    outputs = [item for item in result.new_items if isinstance(item, ToolOutput)]
    assert [(item.call_id, item.is_error) for item in outputs] == [("c1", False), ("c2", True)]
    assert outputs == [item for item in agent.model.requests[1].items if isinstance(item, ToolOutput)]


@attrs.frozen
class Answer:
    """A typed final output."""

    text: str
    number: int


@pytest.mark.scenario("RP-19")
@pytest.mark.parametrize("reason", CUT)
async def test_error_names_why_a_cut_text_does_not_fit_the_output_type(run_mode: Any, reason: str) -> None:
    """The JSON is broken off in the middle, and the error says that the answer was cut."""
    half = respond(AssistantMessage('{"text": "hel'), finish_reason=reason)
    with pytest.raises(ModelBehaviorError, match=rf"cut \({reason}\)"):
        await run_mode(Agent("a", model=ScriptedModel([half]), output_type=Answer), "go")


@pytest.mark.scenario("RP-19")
async def test_cut_text_that_fits_its_type_is_the_output(run_mode: Any) -> None:
    """A cut text that is complete for its type is the final output."""
    whole = respond(AssistantMessage('{"text": "hello", "number": 1}'), finish_reason="length")
    result = await run_mode(Agent("a", model=ScriptedModel([whole]), output_type=Answer), "go")
    assert result.final_output == Answer("hello", 1)


NOTHING = [(), (Reasoning(summary=("hm",)),), (AssistantMessage(""),), (AssistantMessage(" \n"),)]


@pytest.mark.scenario("OS-01")
@pytest.mark.parametrize("reason", CUT)
@pytest.mark.parametrize("items", NOTHING)
async def test_cut_answer_of_which_nothing_can_be_used_is_an_error(run_mode: Any, reason: str, items: Any) -> None:
    """Any model's cut answer is an error, not only that of a model on the network."""
    agent = Agent("a", model=ScriptedModel([respond(*items, finish_reason=reason)]))
    with pytest.raises(ModelBehaviorError, match=rf"cut \({reason}\) before anything usable"):
        await run_mode(agent, "go")


async def test_a_runs_usage_in_the_place_of_a_requests_is_refused_at_once() -> None:
    """A `Usage` is refused at once, because its wrong fields would otherwise show much later in the accounts."""
    with pytest.raises(UserTypeError, match="expected one request's RequestUsage, got a Usage"):
        ResponseDone((AssistantMessage("x"),), Usage())  # type: ignore[arg-type]
    with pytest.raises(UserTypeError, match="RequestUsage"):
        await Runner.run(Agent("a", model=ScriptedModel([say("x", usage=Usage())])), "go")  # type: ignore[arg-type]
