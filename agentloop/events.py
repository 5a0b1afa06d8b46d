"""The events of a streamed run: views of records, and signals that no log keeps.

Every event has `path` (the ids of the enclosing agent-tool calls; empty for the run's own events) and `turn`. Values
only: does not know about streams or buffers.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

from agentloop.items import ApprovalRequest as ApprovalRequestItem
from agentloop.items import Item, ToolCall
from agentloop.outcomes import CallOutcome
from agentloop.records import RunStatus

__all__ = [
    "AgentUpdated",
    "ApprovalRequested",
    "ArgumentsDelta",
    "CallProgress",
    "CallSettled",
    "CallStarted",
    "Event",
    "GuardrailSettled",
    "ItemCreated",
    "RawModelEvent",
    "ReasoningDelta",
    "RunEnded",
    "TextDelta",
    "TurnEnded",
    "TurnStarted",
]


@attrs.frozen
class _Event:
    path: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    turn: int = attrs.field(default=0, kw_only=True)


@attrs.frozen
class AgentUpdated(_Event):
    """Another agent became active. `agent` is the object. The first event of a run has the starting agent."""

    agent: Any


@attrs.frozen
class TurnStarted(_Event):
    """A turn began."""


@attrs.frozen
class TextDelta(_Event):
    """A piece of the answer's text."""

    text: str


@attrs.frozen
class ReasoningDelta(_Event):
    """A piece of the model's reasoning."""

    text: str


@attrs.frozen
class ArgumentsDelta(_Event):
    """A piece of one call's JSON arguments."""

    call_id: str
    delta: str = attrs.field(repr=False)  # may be part of a secret argument: the tool isn't known yet


@attrs.frozen
class RawModelEvent(_Event):
    """A provider's event, unchanged."""

    data: Any = attrs.field(repr=False)


@attrs.frozen
class ItemCreated(_Event):
    """An item entered the run: an item of the response, or a call's output in model order."""

    item: Item


@attrs.frozen
class CallStarted(_Event):
    """A call's body is about to run."""

    call: ToolCall


@attrs.frozen
class CallProgress(_Event):
    """A body reported progress. `total` and `message` are None if it gave none."""

    call: ToolCall
    progress: float
    total: float | None = None
    message: str | None = None


@attrs.frozen
class CallSettled(_Event):
    """A call has settled with *outcome*; sent at once, so events come in the order of settling."""

    call: ToolCall
    outcome: CallOutcome


@attrs.frozen
class ApprovalRequested(_Event):
    """A call waits for a verdict."""

    request: ApprovalRequestItem


@attrs.frozen
class GuardrailSettled(_Event):
    """A guardrail has settled. `result` is its result object."""

    result: Any


@attrs.frozen
class TurnEnded(_Event):
    """A turn is over, its outputs accepted. `finish_reason` is the provider's reason for the end of its answer."""

    finish_reason: str | None = None


@attrs.frozen
class RunEnded(_Event):
    """The run segment is over. `status` is the run's status."""

    status: RunStatus
    finish_reason: str | None = None
    """The provider's reason for the end of the last answer; `"length"` and `"content_filter"` mean that it was cut."""


Event: TypeAlias = (
    AgentUpdated
    | TurnStarted
    | TextDelta
    | ReasoningDelta
    | ArgumentsDelta
    | RawModelEvent
    | ItemCreated
    | CallStarted
    | CallProgress
    | CallSettled
    | ApprovalRequested
    | GuardrailSettled
    | TurnEnded
    | RunEnded
)
