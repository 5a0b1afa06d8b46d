"""The size of a run's history in tokens, and whether it is due to be made shorter. Pure: reads the fold and the view.

The authority is the provider's count: the last response's `input_tokens` and `output_tokens` are the history as far as
that response. The items that came since are estimated. Where a part of the history was replaced
after that response, its count says nothing; a compaction has left its own, all else is estimated anew.
"""

import msgspec

from agentloop._core.run_fold import RunFold
from agentloop._core.turn_view import TurnView
from agentloop.exceptions import UserError
from agentloop.items import Item, UserMessage
from agentloop.model_events import ModelRequest
from agentloop.window.measure import Counted, estimate_tokens, find_count, text_tokens
from agentloop.window.policy import ContextPolicy
from agentloop.window.steps import ContextView

_LEAST_SCALE, _MOST_SCALE = 0.25, 4.0
"""Beyond these it isn't the estimate that is wrong: the request was filtered, or has parts that we don't know."""
_PAUSE = 0.1
"""The part of the window by which a history grows, at least, between two compactions that missed their target."""


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


def make_context_view(state: RunFold, view: TurnView, window: int, target: int) -> ContextView:
    """Return the history of *state* as steps see it, with a measure that fits the last count."""
    fixed = text_tokens(view.shown) + text_tokens(view.system or "")
    items: tuple[Item, ...] = tuple(state.history)
    task = next((item for item in reversed(state.input) if isinstance(item, UserMessage)), None)
    counted = find_counted(state)
    if counted is None:
        return ContextView(items=items, window=window, target=target, task=task, base=float(fixed))
    known, added = estimate_tokens(items[: counted.length]), estimate_tokens(items[counted.length :])
    scale = min(max((counted.tokens - fixed) / known, _LEAST_SCALE), _MOST_SCALE) if known else 1.0
    # So that the whole history measures what was counted, plus the estimate of what came since.
    base = counted.tokens + added - scale * (known + added)
    return ContextView(items=items, window=window, target=target, task=task, base=base, scale=scale)


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


def context_due(state: RunFold, view: TurnView, policy: ContextPolicy) -> ContextView | None:
    """Return the history as the steps of *policy* see it if it is too long for the next request, else None.

    Raises:
        UserError: nothing is known of the model's window, or the provider keeps the history.
    """
    window = find_window(view, policy)
    if find_trigger(view, policy) is not None:
        return None
    if state.kept_by_provider:
        raise UserError(
            f"agent {view.agent!r} has a ContextPolicy, but the provider keeps the conversation, so that no step "
            "can change it: leave out conversation=, or write ContextPolicy(provider=True) for a model whose provider "
            "can shorten it itself"
        )
    limit = policy.start_at * window
    if state.compacted is not None and state.compacted.tokens is not None:
        limit = max(limit, min(state.compacted.tokens + _PAUSE * window, float(window)))
    found = make_context_view(state, view, window, int(policy.target * window))
    return found if found.tokens > limit else None


def estimate_input(state: RunFold, request: ModelRequest) -> int:
    """Return about how many tokens the input of *request* has: as counted last, and an estimate of what came since."""
    if state.kept_by_provider or find_counted(state) is None:
        tools = text_tokens(msgspec.json.encode([tool.params_json_schema for tool in request.tools], enc_hook=repr))
        return estimate_tokens(request.items) + text_tokens(request.system or "") + tools
    return count_context(state)
