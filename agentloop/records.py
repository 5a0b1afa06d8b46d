"""The records a run consists of: facts in the past tense, appended and never changed.

Every record says where it stands: `path` (ids of the enclosing agent-tool calls, outermost first), `turn` (0 before the
first) and `at` (wall-clock seconds). Content stands in the log once: `ModelResponded` holds what the model said,
`CallSettled` what a call gave; the others refer to them by call id. Agents stand in records by their key in the run's
graph (`agentloop._core.agent_graph`): the name, unless several agents are called alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import attrs

from agentloop._common.masking import masked_arguments, masked_repr
from agentloop.items import Item
from agentloop.model_events import ModelResponse
from agentloop.outcomes import CallOutcome
from agentloop.usage import RequestUsage

__all__ = [
    "CallbackReturned",
    "ApprovalRequested",
    "BatchEnded",
    "BodyEnded",
    "CallSettled",
    "CallStarted",
    "CleanupCut",
    "GraphChanged",
    "GuardrailSettled",
    "HandedOff",
    "HistoryReplaced",
    "InputAdded",
    "ItemReleased",
    "ModelFailed",
    "ModelRequested",
    "ModelResponded",
    "Record",
    "RunEnded",
    "RunResumed",
    "RunStarted",
    "RunStatus",
    "SessionSaved",
    "TurnStarted",
    "VerdictGiven",
]

RunStatus: TypeAlias = Literal["completed", "interrupted", "cancelled", "stopped", "failed"]


@attrs.frozen
class _Record:
    path: tuple[str, ...]
    turn: int
    at: float


def _masked(record: ApprovalRequested | VerdictGiven | CallStarted | CallSettled) -> str:
    """Return the repr of a record with a call's arguments, those that are secret masked."""
    text = record.arguments
    return masked_repr(record, {} if text is None else {"arguments": repr(masked_arguments(text, record.secret))})


# A record's `secret` names the arguments that are secret, or says of a value that it is. The fold sets it, as the
# call's tool says; it decides what is shown and stored, and takes no part in equality.
def _secret_names() -> Any:
    return attrs.field(default=(), kw_only=True, eq=False, repr=False)


def _secret() -> Any:
    return attrs.field(default=False, kw_only=True, eq=False, repr=False)


@attrs.frozen
class RunStarted(_Record):
    """A run began. Of a nested run: `path` ends with the call that started it."""

    run_id: str
    agent: str
    input: tuple[Item, ...]
    max_turns: int | None
    shown: tuple[Item, ...] | None = None
    """What the model is shown first, where that is not `input` alone (a session's history before it)."""
    workflow: str | None = None
    trace_id: str | None = None
    """The trace the run belongs to; an entry of the same workflow goes on in it."""
    conversation_id: str | None = None
    previous_response_id: str | None = None
    kept: bool = False
    """Whether the provider keeps the conversation, so that only what is new is sent."""


@attrs.frozen
class RunResumed(_Record):
    """Another entry began on a run's log: after a pause, an early end, or a crash.

    `agent` is at work; `max_turns` holds from here on.
    """

    agent: str
    max_turns: int | None
    workflow: str | None = None
    trace_id: str | None = None


@attrs.frozen
class TurnStarted(_Record):
    """A turn began: one logical model call and its consequences. `turn` is its number.

    `tools` and `handoffs` name what the model is shown and may call in it, `guardrails` what is to judge input that has
    not been accepted yet.
    """

    agent: str
    tools: tuple[str, ...] = ()
    handoffs: tuple[str, ...] = ()
    guardrails: tuple[str, ...] = ()


@attrs.frozen
class ModelRequested(_Record):
    """The model was asked. `digest` covers all that it was shown."""

    digest: str
    attempt: int = 1


@attrs.frozen
class ModelResponded(_Record):
    """The model answered, and the turn's calls and messages are these."""

    response: ModelResponse
    cost: str | None = None
    """What the request took of the run's cost limit, as a decimal number."""

    @property
    def finish_reason(self) -> str | None:
        """The provider's word for why the answer ended."""
        return self.response.finish_reason


@attrs.frozen
class ModelFailed(_Record):
    """One attempt of the model call failed or was cut."""

    error: str
    attempt: int = 1
    counted: bool = True
    usage: RequestUsage | None = None
    error_kind: Literal["transport", "timeout"] | None = None
    """What sort of error it was, where that says whether to ask again; the rest is what the provider said."""
    status: int | None = None
    code: str | None = None
    retry_after: float | None = None
    should_retry: bool | None = None
    streamed: bool = False
    """Whether something of the response had been shown."""


@attrs.frozen
class GuardrailSettled(_Record):
    """A guardrail answered. `stage` tells which kind; `call_id` is given for the two tool kinds."""

    stage: Literal["input", "output", "tool_input", "tool_output"]
    guardrail: str
    verdict: str
    duration: float
    call_id: str | None = None
    index: int = 0
    """Place in declaration order among the guardrails of its stage."""
    nth: int = 0
    """Place among those of the run's input or output that have its name: it is known by both, wherever it stands."""
    info: Any = attrs.field(default=None, eq=False, repr=False)
    detail: Any = attrs.field(default=None, eq=False, repr=False)
    """What a tool guardrail answered with: a message, arguments, or a value."""
    result: Any = attrs.field(default=None, eq=False, repr=False)
    """The live result object; in this process only."""
    secret: bool = _secret()


@attrs.frozen(repr=False)
class ApprovalRequested(_Record):
    """A call waits for a verdict: the call *call_id* of *agent* to the tool *tool* (its lookup key).

    `digest` covers the arguments, so that no verdict fits other ones.
    """

    call_id: str
    agent: str
    tool: str
    digest: str
    arguments: str | None = None
    """JSON text, where a guardrail has rewritten what the model wrote."""
    policy: str | None = None
    """The policies that ask, by the names of their classes; None where the tool itself does."""
    reason: str | None = None
    """Why, in the policies' words; `[redacted]` for a call with secret arguments."""
    secret: tuple[str, ...] = _secret_names()

    def __repr__(self) -> str:
        return _masked(self)


@attrs.frozen(repr=False)
class VerdictGiven(_Record):
    """Somebody approved or rejected a call. Once given it is never asked for again.

    It fits only the call it was given for: the same path, call id, agent, tool and arguments (`digest`). With `always`
    it also holds for later calls of *agent* to *tool*. `arguments`: JSON text to run the call with instead.
    """

    call_id: str
    agent: str
    tool: str
    digest: str
    approved: bool
    message: str | None = None
    arguments: str | None = None
    always: bool = False
    secret: tuple[str, ...] = _secret_names()

    def __repr__(self) -> str:
        return _masked(self)


@attrs.frozen(repr=False)
class CallStarted(_Record):
    """A call was admitted and its body is about to run; durable before it does."""

    call_id: str
    tool: str
    arguments: str
    """JSON text the body is called with (after a `Rewrite`, the rewritten one)."""
    attempt: int = 1
    queued_at: float | None = None
    waited_for: tuple[str, ...] = ()
    idempotency_key: str | None = None
    cost: str | None = None
    """What it takes of the run's cost limit, as a decimal number."""
    secret: tuple[str, ...] = _secret_names()

    def __repr__(self) -> str:
        return _masked(self)


@attrs.frozen
class BodyEnded(_Record):
    """A body came to its own end. `value` is what it returned, given only where no output guardrail has to judge it."""

    call_id: str
    failed: bool = False
    value: Any = attrs.field(default=None, eq=False, repr=False)
    error: str | None = None
    attempt: int = 1
    kept: bool = False
    """Whether `value` is given."""
    fatal: bool = False
    """Whether what it raised was no `Exception`: such an error is answered by no policy of the tool."""
    secret: bool = _secret()


@attrs.frozen(repr=False)
class CallSettled(_Record):
    """A call has its one outcome. `receipt` is the key under which an equal idempotent call finds it."""

    call_id: str
    tool: str
    outcome: CallOutcome
    body_ended_at: float | None = None
    receipt: str | None = None
    arguments: str | None = None
    """Given where the call never started, or ran with other arguments than the model wrote."""
    attempt: int = 1
    error: str | None = None
    """In words, what the outcome's `error` was."""
    secret: tuple[str, ...] = _secret_names()

    def __repr__(self) -> str:
        return _masked(self)


@attrs.frozen
class ItemReleased(_Record):
    """A call's output took its place in model order: every earlier call of the batch has settled."""

    call_id: str


@attrs.frozen
class BatchEnded(_Record):
    """All calls of the turn have settled and their outputs are accepted: the model may see them."""


@attrs.frozen
class HandedOff(_Record):
    """Another agent took over. `ignored`: further handoffs of the response, answered and not taken."""

    call_id: str
    source_agent: str
    target_agent: str
    ignored: tuple[str, ...] = ()
    target: str | None = None
    """The target's key, where its name alone doesn't tell it from others."""


@attrs.frozen
class HistoryReplaced(_Record):
    """What the model sees next: the first *keep* items of its history, then *items*. The log keeps everything."""

    reason: str
    keep: int
    items: tuple[Item, ...]
    added: bool = False
    """Whether *items* are the run's own and stand in its `new_items` too."""


@attrs.frozen
class InputAdded(_Record):
    """The application added input to a run under way."""

    items: tuple[Item, ...]


@attrs.frozen
class SessionSaved(_Record):
    """The run's session holds its input and what the first *count* of its new items make complete."""

    count: int


@attrs.frozen
class CallbackReturned(_Record):
    """The application answered a question of the run's: a callback, by *what* it is and *key*, or a draw of chance."""

    what: str
    key: str
    answer: Any = attrs.field(default=None, eq=False, repr=False)
    secret: bool = _secret()


@attrs.frozen
class CleanupCut(_Record):
    """A section of cleanup was cut at the run's cleanup deadline."""

    section: str
    call_id: str | None = None


@attrs.frozen
class GraphChanged(_Record):
    """A resumed run goes on with other definitions than it began with."""

    changes: tuple[str, ...]


@attrs.frozen
class RunEnded(_Record):
    """One entry of the run (a start or a resume) is over."""

    status: RunStatus
    final_output: Any = attrs.field(default=None, repr=False)
    stop_reason: str | None = None
    error: str | None = None
    details: Mapping[str, Any] | None = None
    resumable: bool = False
    """Whether another entry may go on from here."""
    secret: bool = _secret()


Record: TypeAlias = (
    RunStarted
    | RunResumed
    | TurnStarted
    | ModelRequested
    | ModelResponded
    | ModelFailed
    | GuardrailSettled
    | ApprovalRequested
    | VerdictGiven
    | CallStarted
    | BodyEnded
    | CallSettled
    | ItemReleased
    | BatchEnded
    | HandedOff
    | HistoryReplaced
    | InputAdded
    | SessionSaved
    | CallbackReturned
    | CleanupCut
    | GraphChanged
    | RunEnded
)
