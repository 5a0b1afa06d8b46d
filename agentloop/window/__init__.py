"""The window: what becomes of a history that grows too long for its model.

A `ContextPolicy` says when a run's history is made shorter and how: by steps, tried in order until the history is
short enough. Steps and measures are pure functions of items; the engine decides when a step is due, asks the model for
a summary and appends the result as one record. So a step can be tried, and tested, without a run:

    view = ContextView.of(items, window=32_000)
    shorter = ClearToolOutputs(keep_last=2).shorten(view)
"""

from agentloop.window.measure import estimate_tokens
from agentloop.window.policy import ContextPolicy
from agentloop.window.steps import ClearToolOutputs, ContextStep, ContextView, DropOldest, Summarize

__all__ = [
    "ClearToolOutputs",
    "ContextPolicy",
    "ContextStep",
    "ContextView",
    "DropOldest",
    "Summarize",
    "estimate_tokens",
]
