"""The outcome of a tool call, and of an input that was added to a run: frozen values, made as the log tells them."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from agentloop._common.masking import MASK, error_repr
from agentloop._common.values import NotedValue, Value
from agentloop.items import Content, Item

__all__ = [
    "AddedInput",
    "CallOutcome",
    "CancelledBy",
    "FROM_ABOVE",
    "InputStatus",
    "RunStatus",
    "SUCCESSES",
    "Status",
]

Status: TypeAlias = Literal[
    "succeeded", "failed", "timed_out", "cancelled", "rejected", "replayed", "skipped", "unknown"
]
"""How a call ended: `replayed` with the output of an equal earlier call, `unknown` if it may have taken effect."""
CancelledBy: TypeAlias = Literal["tool", "caller", "sibling", "deadline", "parent"]
"""The source of a cancellation: the body itself, a `cancel_call`, a failing call of the batch, a timeout or budget of
the run, or everything else that ends the run."""
SUCCESSES: tuple[Status, ...] = ("succeeded", "replayed")
"""The members whose output is what the tool gave; of the others it says why there is no such output."""
FROM_ABOVE: tuple[CancelledBy, ...] = ("parent", "deadline")
"""The members that cancel a call because its run ends: the call is due again when that run resumes."""

RunStatus: TypeAlias = Literal["completed", "interrupted", "cancelled", "stopped", "failed"]
"""How a run, or a segment of it, ended."""
InputStatus: TypeAlias = Literal["waiting", "shown", "withdrawn", "rejected"]
"""The state of an added input: `withdrawn` by its sender, `rejected` by a guardrail that answered `AskAgain`."""


class AddedInput(Value, frozen=True, gc=False):
    """An input that was added to a run under way, and what has become of it (`RunState.inputs`).

    `reason` is what the guardrail says that has rejected it, and `by` names its giver, in the application's words.
    `call_id` names the background call of which it is the result.
    """

    id: str
    items: tuple[Item, ...]
    when: Literal["turn", "idle"]
    by: str | None = None
    status: InputStatus = "waiting"
    reason: str | None = None
    call_id: str | None = None


class CallOutcome(NotedValue, frozen=True, kw_only=True):
    """The one outcome of a call.

    Attributes:
        status: The kind of outcome.
        output: The text or parts that the model receives; None if it receives none.
        value: The Python object that the body returned; in this process only, no part of equality or JSON.
        error: The exception behind a failure; in this process only, no part of equality or JSON.
        cancelled_by: For `cancelled`: `"tool"` the body itself, `"caller"` `cancel_call`, `"sibling"` another call's
            failure, `"deadline"` the run's time, `"parent"` any other end of the run.
        cancelled_by_call: The id of the call that ended this one: by its failure (`"sibling"`), or through the
            `cancel_call` of its context (`"caller"`); in the same turn's run. None if no call did.
        reason: The reason in words, if one was given.
        body_finished: True if the body came to its own end (returned or raised).
        abandoned: True if a thread was left running, as the tool's `abandon_on_cancel` demands.
        custom_data: The result of the tool's `custom_data_extractor`.
        cleanup: `"done"` if cleanup ran to its end, `"cut"` if it was cut at the deadline, None if none was needed.
        started_at, ended_at: Wall-clock seconds; `started_at` is None for a call whose body never started.
        cancelled_at: Wall-clock seconds at which a cancellation or the tool's timeout reached the call: what came after
            it is cleanup. Given with any status, as a body may finish in spite of it; None if none did, and where the
            body cancelled itself.
        found: For a call of `tool_search`, the names of the tools that it found; None for any other.
        secret: True if no repr, log or span shows `output` and `custom_data`.
    """

    status: Status
    output: Content | None = None
    value: Any = None
    error: BaseException | None = None
    cancelled_by: CancelledBy | None = None
    reason: str | None = None
    body_finished: bool = False
    abandoned: bool = False
    custom_data: Any = None
    cleanup: Literal["done", "cut"] | None = None
    started_at: float | None = None
    ended_at: float | None = None
    secret: bool = False
    cancelled_by_call: str | None = None
    cancelled_at: float | None = None
    found: tuple[str, ...] | None = None

    _notes = frozenset({"value", "error", "custom_data", "secret"})
    _unshown = frozenset({"value", "custom_data", "secret"})

    def __repr__(self) -> str:
        masks = {"error": error_repr(self.error)}
        return self._format({**masks, "output": repr(MASK)} if self.secret else masks)
