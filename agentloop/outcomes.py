"""How one tool call ended."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import attrs

from agentloop._common.masking import MASK, error_repr, masked_repr
from agentloop.items import Content

__all__ = [
    "CallOutcome",
    "CancelledBy",
    "FROM_ABOVE",
    "Status",
]

Status: TypeAlias = Literal[
    "succeeded", "failed", "timed_out", "cancelled", "rejected", "replayed", "skipped", "unknown"
]
CancelledBy: TypeAlias = Literal["tool", "caller", "sibling", "deadline", "parent"]
FROM_ABOVE: tuple[CancelledBy, ...] = ("parent", "deadline")
"""Who cancels a call by ending the run around it: the call is due again when that run goes on."""


@attrs.frozen(kw_only=True, repr=False)
class CallOutcome:
    """The one ending of a call.

    Attributes:
        status: How it ended.
        output: What the model is told, or None where the model is told nothing.
        value: The Python object the body returned; in this process only, no part of equality or JSON.
        error: The exception behind a failure; likewise in this process only.
        cancelled_by: For `cancelled`: `"tool"` the body itself, `"caller"` `cancel_call`, `"sibling"` another call's
            failure, `"deadline"` the run's time or budget, `"parent"` whatever else ended the run.
        reason: Why, in words, where somebody gave any.
        body_finished: Whether the body came to its own end (returned or raised).
        abandoned: Whether a thread was left running by the tool's own wish.
        custom_data: What the tool's `custom_data_extractor` gave.
        cleanup: Whether cleanup ran to its end (`"done"`), was cut at the deadline (`"cut"`), or was not needed (None).
        started_at, ended_at: Wall-clock seconds; `started_at` is None for a call whose body never started.
        secret: Whether `output` and `custom_data` are shown in no repr, log or span.
    """

    status: Status
    output: Content | None = None
    value: Any = attrs.field(default=None, eq=False, repr=False)
    error: BaseException | None = attrs.field(default=None, eq=False, repr=error_repr)
    cancelled_by: CancelledBy | None = None
    reason: str | None = None
    body_finished: bool = False
    abandoned: bool = False
    custom_data: Any = attrs.field(default=None, eq=False, repr=False)
    cleanup: Literal["done", "cut"] | None = None
    started_at: float | None = None
    ended_at: float | None = None
    secret: bool = attrs.field(default=False, eq=False, repr=False)

    def __repr__(self) -> str:
        return masked_repr(self, {"output": repr(MASK)} if self.secret else {})
