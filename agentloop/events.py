"""The events of a streamed run: views of records, and signals that no log keeps.

Every event has `path` (the ids of the enclosing agent-tool calls; empty for the run's own events) and `turn`. Values
only: does not know about streams or buffers.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from agentloop._common.values import SharesName, Value
from agentloop.items import ApprovalRequest as ApprovalRequestItem
from agentloop.items import CallToAnswer, Item, ToolCall
from agentloop.outcomes import CallOutcome, RunStatus

__all__ = [
    "AgentUpdated",
    "AnswerRequested",
    "ApprovalRequested",
    "ArgumentsDelta",
    "CallProgress",
    "CallSettled",
    "CallStarted",
    "CustomEvent",
    "Event",
    "GuardrailSettled",
    "HostedProgress",
    "ItemCreated",
    "RawModelEvent",
    "ReasoningDelta",
    "RunEnded",
    "TextDelta",
    "TurnEnded",
    "TurnStarted",
    "UsageNote",
]


# Tracked by the collector, unlike the events made of texts and items only: an agent, a result or an exception may
# hold objects of the application that refer to the event again.
class _Event(Value, frozen=True, kw_only=True, tag_field="type"):
    path: tuple[str, ...] = ()
    turn: int = 0


class AgentUpdated(_Event, frozen=True, tag="agent_updated"):
    """Another agent became active. `agent` is the object. The first event of a run has the starting agent."""

    agent: Any


class TurnStarted(_Event, frozen=True, tag="turn_started", gc=False, metaclass=SharesName):
    """A turn began."""


class TextDelta(_Event, frozen=True, tag="text_delta", gc=False, metaclass=SharesName):
    """A piece of the answer's text. `item` is the position of its message in the answer, 0 where unknown."""

    text: str
    item: int = 0


class ReasoningDelta(_Event, frozen=True, tag="reasoning_delta", gc=False, metaclass=SharesName):
    """A piece of the model's reasoning (`kind` is `"text"`), or of a summary of it (`"summary"`)."""

    text: str
    kind: Literal["text", "summary"] = "text"


class ArgumentsDelta(_Event, frozen=True, tag="arguments_delta", gc=False, metaclass=SharesName):
    """A piece of one call's JSON arguments."""

    call_id: str
    delta: str

    _unshown = frozenset({"delta"})  # it may be part of a secret argument: the tool isn't known yet


class HostedProgress(_Event, frozen=True, tag="hosted_progress", gc=False, metaclass=SharesName):
    """A step of a tool that the provider runs itself. `kind` is the tool's, `status` the provider's word for the step.

    `id` is the id of the `HostedToolCall` that the answer will hold.
    """

    kind: str
    status: str
    id: str | None = None


class RawModelEvent(_Event, frozen=True, tag="raw_model_event"):
    """A provider's event, unchanged."""

    data: Any

    _unshown = frozenset({"data"})


class ItemCreated(_Event, frozen=True, tag="item_created", gc=False):
    """An item entered the run: an item of the response, or a call's output in model order.

    Or a `UserMessage` of the library, which asks the model to correct a final output that doesn't fit its type.
    """

    item: Item


class CallStarted(_Event, frozen=True, tag="call_started", gc=False, metaclass=SharesName):
    """A call's body is about to run."""

    call: ToolCall


class CallProgress(_Event, frozen=True, tag="call_progress", gc=False):
    """A body reported progress. `total` and `message` are None if it gave none."""

    call: ToolCall
    progress: float
    total: float | None = None
    message: str | None = None


class CustomEvent(_Event, frozen=True, tag="custom"):
    """A body emitted *value*, by `ToolContext.emit`: an event of the application's own.

    In the web form `value` is written as a tool's value is; if the tool's output is secret, it is hidden there, too.
    """

    call: ToolCall
    value: Any

    _unshown = frozenset({"value"})


class CallSettled(_Event, frozen=True, tag="call_settled", metaclass=SharesName):
    """A call has settled with *outcome*; sent at once, so events come in the order of settling."""

    call: ToolCall
    outcome: CallOutcome


class ApprovalRequested(_Event, frozen=True, tag="approval_requested", gc=False, metaclass=SharesName):
    """A call waits for a verdict."""

    request: ApprovalRequestItem


class AnswerRequested(_Event, frozen=True, tag="answer_requested", gc=False, metaclass=SharesName):
    """A call waits for the application's answer: `RunStream.answer` gives it, or `RunState.answer` once it paused."""

    request: CallToAnswer


class GuardrailSettled(_Event, frozen=True, tag="guardrail_settled", metaclass=SharesName):
    """A guardrail has settled. `result` is its result object."""

    result: Any


class UsageNote(_Event, frozen=True, tag="usage_note", gc=False, metaclass=SharesName):
    """The provider has read less than half as many tokens from its cache as for the turn before.

    So the beginning of the request has changed, or the provider has forgotten it. There is no note where the run itself
    has changed the history, after a compaction or a handoff, nor where another model has answered. An answer of which
    the provider has told no complete usage is passed over. `RunResult.usage_notes` has the notes of a run.

    Attributes:
        cached_before, cached: The tokens that were read from the cache, for the turn before and for this one.
    """

    cached_before: int
    cached: int


class TurnEnded(_Event, frozen=True, tag="turn_ended", gc=False):
    """A turn is over, its outputs accepted. `finish_reason` is the provider's reason for the end of its answer."""

    finish_reason: str | None = None


class RunEnded(_Event, frozen=True, tag="run_ended", gc=False, metaclass=SharesName):
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
    | HostedProgress
    | RawModelEvent
    | ItemCreated
    | CallStarted
    | CallProgress
    | CustomEvent
    | CallSettled
    | ApprovalRequested
    | AnswerRequested
    | GuardrailSettled
    | UsageNote
    | TurnEnded
    | RunEnded
)
"""An event of a stream. The union is closed: match it to its end."""
