"""Events by the ids of their records: a stored log gives the events that its streams have shown."""

from typing import Any

import attrs
import pytest

from agentloop import (
    Agent,
    GuardrailFunctionOutput,
    Runner,
    RunState,
    SealKey,
    ToolContext,
    input_guardrail,
    output_guardrail,
    to_json,
    tool,
)
from agentloop import events as ev
from agentloop.config import RunConfig
from agentloop.config.conditions import MaxTurns
from agentloop.exceptions import UserTypeError, UserValueError
from agentloop.guardrails import Allow, ReplaceOutput, Rewrite, tool_input_guardrail, tool_output_guardrail
from agentloop.journal import MemoryJournal
from agentloop.state import parse_event_id
from agentloop.testing import ScriptedModel, call, reason, say

Shown = list[tuple[str | None, dict[str, Any]]]


@attrs.frozen
class Report:
    """A structured answer."""

    title: str


@input_guardrail
async def short(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    """Pass everything."""
    return GuardrailFunctionOutput({"parts": 1})


@output_guardrail
async def polite(ctx: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
    """Pass everything."""
    return GuardrailFunctionOutput(None)


@tool_input_guardrail
async def trims(data: Any) -> Allow | Rewrite:
    """Rewrite one place."""
    return Rewrite({"place": "Oslo"}) if data.arguments["place"] == " Oslo" else Allow()


@tool_output_guardrail
async def shortens(data: Any) -> ReplaceOutput:
    """Replace every output."""
    return ReplaceOutput("mild", {"length": 4})


@tool(tool_input_guardrails=[trims], tool_output_guardrails=[shortens])
async def weather(ctx: ToolContext[Any], place: str) -> str:
    """The weather of a place."""
    await ctx.report(1, 2, "half")
    return f"sun in {place}"


@tool(needs_approval=True)
async def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


@tool(secret={"token"})
async def login(token: str) -> str:
    """Log in."""
    return "in"


def make_agents() -> Agent[Any, Any]:
    """Two agents with a handoff and a nested one, guardrails of all kinds, a secret and a structured answer."""
    nested = Agent("scout", model=ScriptedModel([call("weather", {"place": "Rome"}), say("Fine.")]), tools=[weather])
    writer = Agent(
        "writer",
        model=ScriptedModel([say("no report"), say('{"title": "All"}')]),
        output_type=Report,
        output_guardrails=[polite],
    )
    front = [
        [call("weather", {"place": " Oslo"}), call("scout", {"input": "Rome?"}), call("login", {"token": "hunter22"})],
        [call("delete", {"path": "a"}), call("delete", {"path": "b"}), call("weather", {"place": "Bonn"})],
        [reason("Enough."), call("transfer_to_writer")],
    ]
    return Agent(
        "front",
        model=ScriptedModel(front),
        tools=[weather, delete, login, nested.as_tool("scout", "Ask the scout.")],
        handoffs=[writer],
        input_guardrails=[short],
    )


async def show(agent: Any, given: Any, **options: Any) -> tuple[Shown, Any]:
    """Return the events of a streamed run with their ids, and its result."""
    shown: Shown = []
    async with Runner.run_streamed(agent, given, **options) as stream:
        assert stream.last_event_id is None
        async for event in stream:
            shown.append((stream.last_event_id, to_json(event)))
    return shown, stream.result


async def run_in_segments(journal: MemoryJournal | None = None) -> tuple[Agent[Any, Any], Shown, Any]:
    """Run the agents over a pause, in which one call is rejected and the other approved; return all events."""
    agent = make_agents()
    shown, result = await show(agent, "Look around.", journal=journal)
    assert len(result.interruptions) == 2
    state = result.to_state()
    state.reject(state.interruptions[0], message="no")
    state.approve(state.interruptions[0])
    more, result = await show(agent, state, journal=journal)
    assert result.final_output == Report("All")
    return agent, shown + more, result.to_state()


@pytest.mark.scenario("VI-07")
async def test_stored_log_gives_the_events_of_its_streams_without_signals() -> None:
    """Events, their ids and their public form are those that the streams have shown, over all run segments."""
    journal = MemoryJournal()
    agent, shown, state = await run_in_segments(journal)
    recorded = [one for one in shown if one[0] is not None]
    signals = {"text_delta", "reasoning_delta", "arguments_delta", "call_progress"}
    assert {one["type"] for number, one in shown if number is None} == signals
    assert {one["type"] for _, one in recorded} > {"guardrail_settled", "agent_updated", "approval_requested"}
    key = SealKey(b"0123456789abcdef")
    stored = RunState.from_string(agent, state.to_string(key=key), key=key)
    for read in (state, stored, await RunState.from_journal(agent, journal)):
        assert [(number, to_json(event)) for number, event in read.events()] == recorded
    assert "hunter22" not in str(recorded)


@pytest.mark.scenario("VI-07")
async def test_events_after_any_id_are_those_that_follow_it() -> None:
    """For every event of a run, what was shown up to it and what is read after it are the whole, each once."""
    _, shown, state = await run_in_segments()
    recorded = [one for one in shown if one[0] is not None]
    for position, (number, _) in enumerate(recorded):
        after = [(later, to_json(event)) for later, event in state.events(after=number)]
        assert recorded[: position + 1] + after == recorded
    numbers = [parse_event_id(number) for number, _ in recorded if number is not None]
    assert numbers == sorted(set(numbers))
    assert any(index for _, index in numbers)  # one record may have several events


async def test_resumed_run_shows_no_output_again() -> None:
    """A run that has stopped between two turns begins its next segment with events of that segment alone."""
    agent = Agent(
        "a", model=ScriptedModel([call("weather", {"place": "Bonn"}), say("Done.")]), tools=[weather], instructions="go"
    )
    shown, result = await show(agent, "hello", run_config=RunConfig(stop_when=MaxTurns(1)))
    assert result.status == "stopped"
    more, result = await show(agent, result.to_state())
    assert [one["type"] for _, one in more if one["type"] != "text_delta"] == [
        *("turn_started", "item_created", "run_ended")
    ]
    assert [number for number, _ in shown + more if number] == [number for number, _ in result.to_state().events()]


async def test_agent_that_the_graph_lacks_is_shown_by_its_key() -> None:
    """A log may name an agent that the application no longer has."""
    _, shown, state = await run_in_segments()
    other = RunState(Agent("other"), state.records)
    named = [event.agent.name for _, event in other.events() if isinstance(event, ev.AgentUpdated)]
    assert named == [one["agent"] for _, one in shown if one["type"] == "agent_updated"]


@pytest.mark.parametrize("given", ["", "1", "1.", "-1.0", "1.0 ", "01.0", "1.0\n", "²2.0", "9" * 19 + ".0"])
async def test_text_that_is_no_event_id_is_refused_at_once(given: str) -> None:
    """`RunState.events` refuses it before the first event is asked for."""
    with pytest.raises(UserValueError, match="event id"):
        RunState(Agent("a"), []).events(after=given)
    with pytest.raises(UserTypeError, match="event id"):
        RunState(Agent("a"), []).events(after=7)  # type: ignore[arg-type]
