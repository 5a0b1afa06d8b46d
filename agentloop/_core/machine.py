"""What is due next: one pure function of a run's state.

`next_action` is the only control boundary of a run. A fresh run, a resumed one and a recovered one ask it alike; they
differ only in how many records have been folded.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

from agentloop._core.state import CallState, RunState
from agentloop._core.turn import TurnView
from agentloop.agents import StopAtTools, ToolUseBehavior
from agentloop.exceptions import AgentLoopError, MaxTurnsExceeded
from agentloop.items import AssistantMessage, HostedToolCall
from agentloop.records import RunEnded


@attrs.frozen
class CallModel:
    """Begin the next turn and ask the model."""


@attrs.frozen
class Settle:
    """The response's calls are due: plan them, run them, accept their outputs."""


@attrs.frozen
class CheckOutput:
    """*output* is the candidate for the final output: judge it, then finish with it."""

    output: Any


@attrs.frozen
class Finish:
    """The run is over: *end* says how."""

    end: RunEnded


@attrs.frozen
class GiveUp:
    """The run can't go on within its limits."""

    error: AgentLoopError


# Transfer (a handoff) and Pause (a pending approval) join this union with the records that make them due.
Action: TypeAlias = CallModel | Settle | CheckOutput | Finish | GiveUp


def next_action(state: RunState, view: TurnView | None) -> Action:
    """Return what is due. *view* is the current turn's, or None before the first turn of this entry."""
    if state.ended is not None:
        return Finish(state.ended)
    if state.batch_open or state.conflict is not None or _has_unnamed_call(state):
        return Settle()
    if state.response is not None and view is not None:
        candidate = final_candidate(state, view.agent.tool_use_behavior)
        if candidate is not None:
            return candidate
    if state.max_turns is not None and state.turn >= state.max_turns:
        return GiveUp(MaxTurnsExceeded(state.max_turns))
    return CallModel()


def _has_unnamed_call(state: RunState) -> bool:
    return state.response is not None and any(getattr(item, "call_id", None) == "" for item in state.response)


def final_candidate(state: RunState, behavior: ToolUseBehavior) -> CheckOutput | None:
    """Return the candidate for the final output that the current turn has made, if any."""
    if state.batch:
        return _from_tools(state.batch, behavior)
    response = state.response or ()
    messages = [item for item in response if isinstance(item, AssistantMessage)]
    if messages:
        return CheckOutput(messages[-1].text)
    if any(isinstance(item, HostedToolCall) for item in response) or _only_repeats(state):
        return None
    return CheckOutput("")


def _only_repeats(state: RunState) -> bool:
    """Tell whether the model only asked again for what it has: it gets another turn with the same outputs."""
    return bool(state.responses and state.responses[-1].items) and not state.response


def _from_tools(batch: list[CallState], behavior: ToolUseBehavior) -> CheckOutput | None:
    if behavior == "run_llm_again":
        return None
    for call in batch:
        if call.outcome is None or call.outcome.output is None:
            continue
        if isinstance(behavior, StopAtTools) and call.call.name not in behavior.names:
            continue
        output = call.outcome.output
        return CheckOutput(output if isinstance(output, str) else call.outcome.value)
    return None
