"""The machine of a run: one pure function from its state to the next action, `next_action`.

`next_action` is the only control boundary of a run. The engine's loop calls it, performs the action, appends the
records of the result, and calls it again until it returns `Finish`. A fresh run, a resumed one and a recovered one call
it alike; they differ only in how many records have been folded.

The order of the checks is the order of a turn: an ended run, a response that planning must refuse, open calls,
handoffs, a candidate for the final output, the next turn. Actions are a closed union, so a new one fails type checking
in each place that must decide about it. Does not know about clocks, tasks, models or stores. It may not wait, so the
answer of an application's callable is its own action (`AskBehavior`).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, final

from agentloop._common.values import Value
from agentloop._core.call_state import CallState
from agentloop._core.client_calls import is_call
from agentloop._core.run_fold import RunFold
from agentloop._core.turn_view import TurnView
from agentloop.exceptions import MaxTurnsExceeded, ModelRefusalError
from agentloop.items import AssistantMessage, HandoffCall
from agentloop.records import RunEnded
from agentloop.tools import StopAtTools


class RequestModel(Value, frozen=True):
    """Begin the next turn, unless it has begun already, and call the model.

    The turn has begun where an earlier run segment ended before the model's answer, and where the provider has paused
    its answer: it is asked for the rest in the same turn.
    """


class Settle(Value, frozen=True):
    """Plan the response's due calls, run them, accept their outputs."""


class Transfer(Value, frozen=True):
    """Perform the handoff *call*; the *ignored* ones get an answer and no effect."""

    call: HandoffCall
    ignored: tuple[HandoffCall, ...]


class CheckOutput(Value, frozen=True):
    """Check *output*, the candidate for the final output, then finish with it.

    `made_by` is the id of the call that gave it; None if it is the model's message.
    """

    output: Any
    made_by: str | None = None


@final
class AskBehavior(Value, frozen=True):
    """Call the application's `tool_use_behavior`, which decides whether the calls' outputs end the run."""


class Finish(Value, frozen=True):
    """Return from the run with the outcome in *end*."""

    end: RunEnded


class GiveUp(Value, frozen=True):
    """End the run with an error. `handler` names the error handler that may give a final output instead.

    The action doesn't hold the error: the error's traceback holds frames that hold the action.
    """

    handler: Literal["max_turns", "model_refusal"]
    cause: Any
    """The first argument of the error: the number of turns that `max_turns` allows, or the model's refusal."""

    def make_error(self) -> MaxTurnsExceeded | ModelRefusalError:
        """Return a new error."""
        return (MaxTurnsExceeded if self.handler == "max_turns" else ModelRefusalError)(self.cause)


class Pause(Value, frozen=True):
    """Pause the run: every due call waits for a verdict."""


class Prepare(Value, frozen=True):
    """Rebuild the turn view of a run resumed in the middle of a turn: the model has already answered."""


Action: TypeAlias = RequestModel | Settle | Transfer | CheckOutput | AskBehavior | Pause | Prepare | Finish | GiveUp


def next_action(state: RunFold, view: TurnView | None) -> Action:
    """Return the next action. *view* is the current turn's, or None before the first turn of this run segment."""
    if state.ended is not None:
        return Finish(state.ended)
    if state.conflict is not None or state.call_without_id is not None or state.unusable_reason is not None:
        return Settle()  # planning raises the error that says why
    if state.batch_open:
        due = state.due_calls()
        return Pause() if due and all(map(state.waits, due)) else Settle()
    if state.handoffs_due:
        first, *ignored = state.handoffs_due
        return Transfer(first, tuple(ignored))
    if state.response is not None and not state.turn_open:  # an answer that the provider has paused isn't complete
        if view is None:
            return Prepare()
        candidate = _find_candidate(state, view)
        if candidate is not None:
            return candidate
    return turn_or_give_up(state)


def turn_or_give_up(state: RunFold) -> RequestModel | GiveUp:
    """Return the request of the next turn, or of the open one; `GiveUp` if `max_turns` leaves no further turn.

    A limit may have left one turn more, for the final output (`state.closing`); none follows that.
    """
    used_up = state.max_turns is not None and state.turn >= max(state.max_turns, state.closing)
    if not state.turn_open and used_up:
        return GiveUp("max_turns", state.max_turns)
    return RequestModel()


def _find_candidate(state: RunFold, view: TurnView) -> CheckOutput | AskBehavior | GiveUp | None:
    if state.batch:
        return _candidate_from_tools(state, view.tool_use_behavior, typed=view.output is not None)
    if state.only_repeats:
        return None  # the model repeated calls that have outputs: it gets another turn with the same outputs
    response = state.response or ()
    messages = [item for item in response if isinstance(item, AssistantMessage)]
    if messages:
        text = messages[-1].text
        if not text and (refusal := messages[-1].refusal) is not None:
            return GiveUp("model_refusal", refusal)
        return None if view.output is not None and not text.strip() else CheckOutput(text)
    if any(map(is_call, response)):
        return None
    return None if view.output is not None else CheckOutput("")


def _candidate_from_tools(state: RunFold, behavior: object, *, typed: bool) -> CheckOutput | AskBehavior | None:
    if behavior == "run_llm_again":
        return None
    own = state.own_calls()
    if callable(behavior):
        return AskBehavior() if own else None  # after verdicts the provider runs the calls itself
    for call in own:
        if call.outcome is None or call.outcome.output is None or call.is_background:
            continue
        if isinstance(behavior, StopAtTools) and call.call.name not in behavior.names:
            continue
        return CheckOutput(tool_output(call, typed=typed), made_by=call.call.call_id)
    return None


def may_ask_again(state: RunFold, retries: int) -> bool:
    """Tell whether the model is asked to correct its last answer, which doesn't fit the output type.

    *retries* is the number of such answers of an agent that are corrected in this way. Turns with calls don't begin
    the count again, so that a model can't alternate calls with wrong answers forever. A cut answer would be cut again,
    and an answer with a refusal in it is what the model wants to say: neither is corrected. After the turn that a limit
    has left for the final output there is none.
    """
    if state.turn == state.closing:
        return False
    refused = [item for item in state.response or () if isinstance(item, AssistantMessage) and item.refusal is not None]
    return state.invalid_outputs < retries and not state.responses[-1].cut and not refused


def tool_output(call: CallState, *, typed: bool = False) -> Any:
    """Return a settled call's output as a final output: the text the model would see, else the Python value.

    For a *typed* agent it is the Python value, if there is one.
    """
    assert call.outcome is not None
    output, value = call.outcome.output, call.value
    if typed and value is not None:
        return value
    return output if isinstance(output, str) else value
