"""The size of a run's history in tokens, and of the window it has to fit. Pure: reads the fold and the view.

The authority is the provider's count: the last response's `input_tokens` and `output_tokens` are the history as far as
that response. The items that came since are estimated. Where a part of the history was replaced
after that response, its count says nothing; a compaction has left its own, all else is estimated anew.
"""

import msgspec

from agentloop._core.run_fold import RunFold
from agentloop._core.turn_view import TurnView
from agentloop.exceptions import UserError
from agentloop.model_events import ModelRequest
from agentloop.window.measure import Counted, estimate_tokens, find_count, text_tokens
from agentloop.window.policy import ContextPolicy


def find_counted(state: RunFold) -> Counted | None:
    """Return the last count of the history as it is now; None if there is none."""
    found = find_count(state.history, state.responses, state.kept_length)
    if found is None and state.compacted is not None:
        found = Counted(state.compacted.tokens or 0, state.kept_length)
    return found


def count_context(state: RunFold) -> int:
    """Return the tokens of the history: as counted last, and an estimate of what came since."""
    counted = find_counted(state) or Counted(0, 0)
    return counted.tokens + estimate_tokens(state.history[counted.length :])


def find_window(view: TurnView, policy: ContextPolicy) -> int:
    """Return the tokens of the window of the model of *view*.

    Raises:
        UserError: nothing is known of it.
    """
    window: int | None = policy.window or view.model.info.context_window
    if window is None:
        raise UserError(
            f"agent {view.agent!r} has a ContextPolicy, but how much the window of {view.model!r} holds isn't "
            "known: write ContextPolicy(window=…), in tokens, or give the model's `info` a `context_window`"
        )
    return window


def find_trigger(view: TurnView, policy: ContextPolicy) -> int | None:
    """Return the tokens above which the provider of *view*'s model makes the history shorter itself; None if the run
    does it.
    """
    own = policy.provider and "context_management" in view.model.features
    return int(policy.start_at * find_window(view, policy)) if own else None


def estimate_input(state: RunFold, request: ModelRequest) -> int:
    """Return about how many tokens the input of *request* has: as counted last, and an estimate of what came since."""
    if state.kept_by_provider or find_counted(state) is None:
        tools = text_tokens(msgspec.json.encode([tool.params_json_schema for tool in request.tools], enc_hook=repr))
        return estimate_tokens(request.items) + text_tokens(request.system or "") + tools
    return count_context(state)
