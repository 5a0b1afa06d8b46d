"""What is due next: one pure function of a run's state.

`next_action` is the only control boundary of a run. A fresh run, a resumed one and a recovered one ask it alike; they
differ only in how many records have been folded.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import attrs

from agentloop._core.client_calls import is_call
from agentloop._core.run_fold import CallState, RunFold
from agentloop._core.turn_view import TurnView
from agentloop.agents import StopAtTools
from agentloop.exceptions import AgentLoopError, MaxTurnsExceeded, ModelRefusalError
from agentloop.items import AssistantMessage, HandoffCall
from agentloop.records import RunEnded


@attrs.frozen
class RequestModel:
    """Begin the next turn and ask the model."""


@attrs.frozen
class Settle:
    """The response's calls are due: plan them, run them, accept their outputs."""


@attrs.frozen
class Transfer:
    """The agent hands over by *call*; the *ignored* ones are answered and not taken."""

    call: HandoffCall
    ignored: tuple[HandoffCall, ...]


@attrs.frozen
class CheckOutput:
    """*output* is the candidate for the final output: judge it, then finish with it.

    `made_by` is the call whose output it is; None where the model said it.
    """

    output: Any
    made_by: str | None = None


@attrs.frozen
class AskBehavior:
    """Whether the calls' outputs end the run is the application's to say (a callable `tool_use_behavior`)."""


@attrs.frozen
class Finish:
    """The run is over: *end* says how."""

    end: RunEnded


@attrs.frozen
class GiveUp:
    """The run can't go on. `handler` names the error handler that may give a final output instead."""

    error: AgentLoopError
    handler: Literal["max_turns", "model_refusal"]


@attrs.frozen
class Pause:
    """Calls wait for verdicts, and nothing else of the turn is due."""


@attrs.frozen
class Prepare:
    """The turn's view is due: the response is an earlier entry's."""


Action: TypeAlias = RequestModel | Settle | Transfer | CheckOutput | AskBehavior | Pause | Prepare | Finish | GiveUp


def next_action(state: RunFold, view: TurnView | None) -> Action:
    """Return what is due. *view* is the current turn's, or None before the first turn of this entry."""
    if state.ended is not None:
        return Finish(state.ended)
    if state.conflict is not None or state.unnamed is not None or state.unusable is not None:
        return Settle()
    if state.batch_open:
        due = state.due_calls()
        return Pause() if due and all(state.waits(call) for call in due) else Settle()
    if state.handoffs_due:
        first, *ignored = state.handoffs_due
        return Transfer(first, tuple(ignored))
    if state.response is not None:
        if view is None:
            return Prepare()
        candidate = _candidate(state, view)
        if candidate is not None:
            return candidate
    return turn_or_give_up(state)


def turn_or_give_up(state: RunFold) -> RequestModel | GiveUp:
    """Return the next turn, if there is one left; one that has begun is gone on with."""
    if not state.turn_open and state.max_turns is not None and state.turn >= state.max_turns:
        return GiveUp(MaxTurnsExceeded(state.max_turns), "max_turns")
    return RequestModel()


def _candidate(state: RunFold, view: TurnView) -> CheckOutput | AskBehavior | GiveUp | None:
    if state.batch:
        return _from_tools(state.batch, view.agent.tool_use_behavior, typed=view.output is not None)
    if state.only_repeats:
        return None  # the model asked again for what it has: it gets another turn with the same outputs
    response = state.response or ()
    messages = [item for item in response if isinstance(item, AssistantMessage)]
    if messages:
        return _from_message(messages[-1], typed=view.output is not None)
    if any(map(is_call, response)):
        return None
    return None if view.output is not None else CheckOutput("")


def _from_message(message: AssistantMessage, *, typed: bool) -> CheckOutput | GiveUp | None:
    if message.refusal is not None and not message.text:
        return GiveUp(ModelRefusalError(message.refusal), "model_refusal")
    if typed and not message.text.strip():
        return None
    return CheckOutput(message.text)


def _from_tools(batch: list[CallState], behavior: object, *, typed: bool) -> CheckOutput | AskBehavior | None:
    if behavior == "run_llm_again":
        return None
    if callable(behavior):
        return AskBehavior()
    for call in batch:
        if call.outcome is None or call.outcome.output is None:
            continue
        if isinstance(behavior, StopAtTools) and call.call.name not in behavior.names:
            continue
        return CheckOutput(tool_output(call, typed=typed), made_by=call.call.call_id)
    return None


def tool_output(call: CallState, *, typed: bool = False) -> Any:
    """Return a settled call's output as a final output: the text the model would see, else the Python value.

    A *typed* agent's is the Python value, where there is one.
    """
    assert call.outcome is not None
    output, value = call.outcome.output, call.outcome.value
    if typed and value is not None:
        return value
    return output if isinstance(output, str) else value
