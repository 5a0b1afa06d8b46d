"""The records of a run: facts in the past tense, appended and never changed.

Every record has a position: `path` (ids of the enclosing agent-tool calls, outermost first), `turn` (0 before the
first) and `at` (wall-clock seconds). The log holds content once: `ModelResponded` holds the model's answer and
`CallSettled` a call's output; other records refer to them by call id. Records name agents by their key in the run's
graph: the name, unless several agents have the same name. Values only: does not know about the fold, codecs or stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

from agentloop._common.digests import idempotency_key
from agentloop._common.masking import mask_arguments
from agentloop._common.values import NotedValue, SharesName, Value
from agentloop.items import Item, JsonObject
from agentloop.model_events import ModelInfo, ModelResponse
from agentloop.outcomes import CallOutcome, RunStatus
from agentloop.usage import RequestUsage

__all__ = [
    "CallbackReturned",
    "AnswerRequested",
    "ApprovalRequested",
    "BatchEnded",
    "BodyEnded",
    "CallAnswered",
    "CallSettled",
    "CallStarted",
    "CancelRequested",
    "CleanupCut",
    "DeadlinePassed",
    "GraphChanged",
    "GuardrailSettled",
    "HandedOff",
    "HistoryReplaced",
    "InputAdded",
    "InputShown",
    "InputWithdrawn",
    "ModelFailed",
    "ModelRequested",
    "ModelResponded",
    "Record",
    "RunEnded",
    "RunResumed",
    "RunStarted",
    "RunStatus",
    "SandboxOpened",
    "SessionSaved",
    "TurnStarted",
    "VerdictGiven",
]


class _Record(Value, frozen=True, tag_field="kind", gc=False):
    path: tuple[str, ...]
    turn: int
    at: float


# A record's `secret` names its secret arguments, or is True if its value is secret. The fold sets it from the call's
# tool. It controls how values are shown and stored, and takes no part in equality.
class _CallRecord(NotedValue, _Record, frozen=True, kw_only=True):
    secret: tuple[str, ...] = ()

    def __repr__(self) -> str:
        text: str | None = self.arguments  # type: ignore[attr-defined]  # each of these records has them
        return self._format({} if text is None else {"arguments": repr(mask_arguments(text, self.secret))})


# Tracked by the collector: the value may be the application's, and refer to what holds the record.
class _ValueRecord(NotedValue, _Record, frozen=True, kw_only=True, gc=True):
    secret: bool = False


class RunStarted(_Record, frozen=True, tag="run_started"):
    """A run began. Of a nested run: `path` ends with the call that started it."""

    run_id: str
    agent: str
    input: tuple[Item, ...]
    max_turns: int | None
    shown: tuple[Item, ...] | None = None
    """The items that the model is shown first, if not `input` only (a session's history precedes it)."""
    workflow: str | None = None
    trace_id: str | None = None
    """The trace of the run; a later run segment of the same workflow continues it."""
    conversation_id: str | None = None
    previous_response_id: str | None = None
    kept: bool = False
    """True if the provider keeps the conversation, so that only new items are sent."""
    schema: str = "2"
    """The schema in which the log began. A log of schema 1 can be resumed; it lacks what a replay needs."""
    traceparent: str | None = None
    """The span of this run segment in a tracing system, as W3C Trace Context writes it, if an instrument told it
    (`RunOpening.identify`). A later run segment links to it."""
    owner: str | None = None
    """The owner of the run, in the application's words (`RunConfig.owner`). Of a nested run it is None."""


class RunResumed(_Record, frozen=True, tag="run_resumed"):
    """Another run segment began on a run's log: after a pause, an early end, or a crash.

    `agent` is the active agent; `max_turns` holds from here on.
    """

    agent: str
    max_turns: int | None
    workflow: str | None = None
    trace_id: str | None = None
    traceparent: str | None = None
    """As in `RunStarted`."""


class TurnStarted(_Record, frozen=True, tag="turn_started", metaclass=SharesName):
    """A turn began: one logical model call and its consequences. `turn` is its number.

    The turn before had ended with its `BatchEnded` or `HandedOff`; a turn without calls that is not the last ends here.

    `tools` and `handoffs` name those that the model is shown and may call in the turn; `guardrails` name those that
    must check input not accepted yet.
    """

    agent: str
    tools: tuple[str, ...] = ()
    handoffs: tuple[str, ...] = ()
    guardrails: tuple[str, ...] = ()


class ModelRequested(_Record, frozen=True, tag="model_requested"):
    """A request was made to the model.

    `digest` covers its whole input. Behind it, with hyphens between, are checksums of its parts (the history, the
    instructions, the definitions), so that a replay which diverges here can name the part. Older logs don't have them.
    """

    digest: str
    attempt: int = 1
    model: ModelInfo | None = None
    """The model that was asked; None if it is the one of the request before, of the same run."""
    queued_at: float | None = None
    """Wall-clock seconds since which the request waited for its limits; None if it has none."""
    waited_for: tuple[str, ...] = ()
    """Names of the limits that had no room for it."""


class ModelResponded(_Record, frozen=True, tag="model_responded"):
    """The model answered; *response* holds the turn's calls and messages."""

    response: ModelResponse
    cost: str | None = None
    """The cost of the request and of the hosted calls in its answer, counted against the run's cost limit, as a decimal
    number."""
    first_delta_at: float | None = None
    """Wall-clock seconds at which the first piece of the answer came: of text, reasoning or arguments; None if the
    model sent whole items only."""

    @property
    def finish_reason(self) -> str | None:
        """The provider's reason for the end of the answer."""
        return self.response.finish_reason


class ModelFailed(_Record, frozen=True, tag="model_failed"):
    """One attempt of the model call failed or was cut."""

    error: str
    attempt: int = 1
    counted: bool = True
    usage: RequestUsage | None = None
    error_kind: Literal["transport", "timeout"] | None = None
    """The kind of error, if it matters for retries. The fields below are the provider's own data."""
    status: int | None = None
    code: str | None = None
    retry_after: float | None = None
    should_retry: bool | None = None
    streamed: bool = False
    """True if a part of the response had been shown."""


class GuardrailSettled(_ValueRecord, frozen=True, tag="guardrail_settled", metaclass=SharesName):
    """A guardrail settled. `stage` is its kind; `call_id` is set for the two tool kinds. `duration` is in seconds."""

    stage: Literal["input", "output", "tool_input", "tool_output"]
    guardrail: str
    verdict: str
    duration: float
    call_id: str | None = None
    index: int = 0
    """The position in declaration order among the guardrails of its stage."""
    nth: int = 0
    """The position among the input or output guardrails of its name. Name and `nth` identify it in a reordered list."""
    info: Any = None
    detail: Any = None
    """The content of a verdict: a tool guardrail's message, arguments or value, or the message of `AskAgain`."""
    input_id: str | None = None
    """The added input that an input guardrail has judged; None for the run's own input. With the verdict `"ask_again"`
    the run doesn't show it."""
    result: Any = None
    """The live result object; in this process only."""

    _notes: ClassVar[frozenset[str]] = frozenset({"info", "detail", "result", "secret"})
    _unshown: ClassVar[frozenset[str]] = _notes


class ApprovalRequested(_CallRecord, frozen=True, tag="approval_requested", metaclass=SharesName):
    """A call waits for a verdict: the call *call_id* of *agent* to the tool *tool* (its lookup key).

    `digest` covers the arguments, so that no verdict fits other ones.
    """

    call_id: str
    agent: str
    tool: str
    digest: str
    arguments: str | None = None
    """JSON text, if a guardrail has rewritten the model's arguments."""
    policy: str | None = None
    """The class names of the policies that require the verdict; None if the tool itself does."""
    reason: str | None = None
    """The policies' reason in words; `[redacted]` for a call with secret arguments."""
    definition: str | None = None
    """For a tool of a source: the digest of the source's name and of what the model is shown of the tool."""


class VerdictGiven(_CallRecord, frozen=True, tag="verdict_given"):
    """A call was approved or rejected. The run never requests the same verdict again.

    It fits only the call that it was given for: the same path, call id, agent, tool and arguments (`digest`). With
    `always` it also holds for later calls of *agent* to *tool*. For a tool of a source both hold as long as the source
    and its *definition* are the same. `arguments` is JSON text that replaces the call's own.
    """

    call_id: str
    agent: str
    tool: str
    digest: str
    approved: bool
    message: str | None = None
    arguments: str | None = None
    always: bool = False
    by: str | None = None
    """The giver of the verdict, in the application's words: a user's id, the name of a rule."""
    definition: str | None = None
    """That of the request."""


class AnswerRequested(_Record, frozen=True, tag="answer_requested", metaclass=SharesName):
    """A call of an external tool has started and waits: the application answers it (`CallAnswered`).

    Attributes:
        returns: The JSON schema of the answer, so that any process can check one without the run's agents.
        expires_at: Wall-clock seconds after which no answer counts; None if the tool has no timeout.
    """

    call_id: str
    agent: str
    tool: str
    returns: JsonObject
    expires_at: float | None = None


class CallAnswered(_ValueRecord, frozen=True, tag="call_answered"):
    """The application answered a call that waits for it; the first answer counts.

    Attributes:
        value: The answer as plain data of JSON, which fits `AnswerRequested.returns`.
        failed: True if the value is the text of an error, which the model gets.
        by: The giver of the answer, in the application's words.
        late: True if no answer came in time; the run itself appends this.
    """

    call_id: str
    value: Any = None
    failed: bool = False
    by: str | None = None
    late: bool = False

    _notes: ClassVar[frozenset[str]] = frozenset({"value", "secret"})
    _unshown: ClassVar[frozenset[str]] = _notes


class CallStarted(_CallRecord, frozen=True, tag="call_started", metaclass=SharesName):
    """A call was admitted and its body is about to run; durable before it does."""

    call_id: str
    tool: str
    arguments: str
    """The JSON text with which the body is called (after a `Rewrite`, the rewritten text)."""
    attempt: int = 1
    queued_at: float | None = None
    waited_for: tuple[str, ...] = ()
    cost: str | None = None
    """The cost of the call, counted against the run's cost limit, as a decimal number."""

    def idempotency_key(self, run_id: str) -> str:
        """Return the key that the body received as `ToolContext.idempotency_key`; *run_id* is that of the whole run.

        It follows from the run, the path and the call, so that it is the same for every attempt; no log stores it.
        """
        return idempotency_key(run_id, self.path, self.call_id)


class BodyEnded(_ValueRecord, frozen=True, tag="body_ended"):
    """A body came to its own end, and more follows before its call settles: a hook, a guardrail, a policy.

    A call whose value is its output at once has `CallSettled` only, unless the value isn't text and may end the run.
    `value` is the body's result, given only if no output guardrail has to check it.
    """

    call_id: str
    failed: bool = False
    value: Any = None
    error: str | None = None
    attempt: int = 1
    kept: bool = False
    """True if `value` is given."""
    fatal: bool = False
    """True if the body raised a `BaseException` that is no `Exception`: no policy of the tool answers such an error."""
    details: str | None = None
    """The error with all lines of its message, where `error`, its summary, has fewer."""

    _notes: ClassVar[frozenset[str]] = frozenset({"value", "secret"})
    _unshown: ClassVar[frozenset[str]] = _notes


class CallSettled(_CallRecord, frozen=True, tag="call_settled", gc=True, metaclass=SharesName):  # as its outcome is
    """A call has settled with its one outcome. `receipt` is the key by which an equal idempotent call finds it.

    The outputs that are next in model order become items of the run in this step: its own, if every earlier call of the
    batch has settled, and those of later calls that were waiting for it.
    """

    call_id: str
    tool: str
    outcome: CallOutcome
    body_ended_at: float | None = None
    receipt: str | None = None
    arguments: str | None = None
    """JSON text, given if the call never started or ran with other arguments than the model's."""
    attempt: int = 1
    error: str | None = None
    """The outcome's `error` in words."""
    background: bool = False
    """True if the body runs on in the background: its result comes as an input (`InputAdded.call_id`)."""


class BatchEnded(_Record, frozen=True, tag="batch_ended"):
    """All calls of the turn have settled and their outputs are accepted: the model may see them."""


class HandedOff(_Record, frozen=True, tag="handed_off"):
    """Another agent took over. `ignored` are the ids of further handoff calls, answered but not performed."""

    call_id: str
    source_agent: str
    target_agent: str
    ignored: tuple[str, ...] = ()
    target: str | None = None
    """The target's key, if several agents have its name."""


class HistoryReplaced(_Record, frozen=True, tag="history_replaced"):
    """The model's history was replaced by its first *keep* items, then *items*. The log keeps all items."""

    reason: str
    keep: int
    items: tuple[Item, ...]
    added: bool = False
    """True if *items* are the run's own and belong to its `new_items`, too."""
    tokens_before: int | None = None
    """Of a compaction: the tokens that a request had with the history before it."""
    tokens: int | None = None
    """Of a compaction: the tokens that it has after it."""
    steps: tuple[str, ...] = ()
    """Of a compaction: the steps that made the history shorter, in their order."""


class InputAdded(_Record, frozen=True, tag="input_added"):
    """The application added input to a run under way: it waits until the run shows it to the model (`InputShown`).

    Or a background call has ended, and the input is its result.
    """

    items: tuple[Item, ...]
    id: str = ""
    """The name of the input, once in a run. Of an older log it is empty: the model was shown the input at once."""
    when: Literal["turn", "idle"] = "turn"
    """The moment to show it: with the next request, or when the run would end otherwise."""
    by: str | None = None
    """The giver of the input, in the application's words."""
    call_id: str | None = None
    """The background call of which this is the result."""


class InputShown(_Record, frozen=True, tag="input_shown"):
    """The run took the added input *id* into the history, after its guardrails: the next request has it."""

    id: str


class InputWithdrawn(_Record, frozen=True, tag="input_withdrawn"):
    """The application took the added input *id* back before the run showed it."""

    id: str
    by: str | None = None
    """As in `InputAdded`."""


class SessionSaved(_Record, frozen=True, tag="session_saved"):
    """The run's session holds its input and the complete items among the first *count* of its new items."""

    count: int


class SandboxOpened(_Record, frozen=True, tag="sandbox_opened"):
    """The run got its own sandbox, by the provider's *name* for it; later run segments find it by that name.

    At most once in a run, and durable before any body uses the sandbox.
    """

    name: str


class CallbackReturned(_ValueRecord, frozen=True, tag="answered"):
    """A callback of the application returned, or a random number was drawn. *what* and *key* identify the call."""

    what: str
    key: str
    answer: Any = None

    _notes: ClassVar[frozenset[str]] = frozenset({"answer", "secret"})
    _unshown: ClassVar[frozenset[str]] = _notes


class CancelRequested(_Record, frozen=True, tag="cancel_requested"):
    """A cancellation from outside was requested: of the call *call_id*, or of the whole run.

    Of a call it is appended as `cancel_call` accepts it, and of a run where a part of the run first notices it: the
    caller cancels a scope or a task around the run, and neither notifies the run. A call that hasn't started then never
    does, with any verdict on it, in this run segment or a later one.
    """

    call_id: str | None = None
    by_call: str | None = None
    """The id of the call whose context requested it, by `ToolContext.cancel_call`; None for any other caller."""
    reason: str | None = None
    """The caller's words about a call, which its output says, also in a later run segment."""


class DeadlinePassed(_Record, frozen=True, tag="deadline_passed"):
    """The run's own timeout (`RunConfig.timeout`) passed, and a part of the run noticed it."""


class CleanupCut(_Record, frozen=True, tag="cleanup_cut"):
    """A section of cleanup was cut at the run's cleanup deadline."""

    section: str
    call_id: str | None = None


class GraphChanged(_Record, frozen=True, tag="graph_changed"):
    """A resumed run continues with other definitions than it had until then; the differences in words.

    `graph` has the definitions from here on, in the form in which a journal's header has those that the run began with:
    the calls that wait were made with the latest ones. Logs of earlier versions don't have it, and tell the differences
    from what the run began with.
    """

    changes: tuple[str, ...]
    graph: Mapping[str, Any] | None = None


class RunEnded(_ValueRecord, frozen=True, tag="run_ended", metaclass=SharesName):
    """One run segment (a start or a resume) is over."""

    status: RunStatus
    final_output: Any = None
    stop_reason: str | None = None
    error: str | None = None
    details: Mapping[str, Any] | None = None
    resumable: bool = False
    """True if another run segment may continue from here."""
    turn_ended_at: float | None = None
    """Wall-clock seconds at which the last turn ended, if it had no calls; what came after it is the end of the run:
    writing to the session, closing resources, `on_run_end`."""

    _unshown: ClassVar[frozenset[str]] = frozenset({"final_output", "secret"})


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
    | AnswerRequested
    | CallAnswered
    | CallStarted
    | BodyEnded
    | CallSettled
    | BatchEnded
    | HandedOff
    | HistoryReplaced
    | InputAdded
    | InputShown
    | InputWithdrawn
    | SandboxOpened
    | SessionSaved
    | CallbackReturned
    | CancelRequested
    | DeadlinePassed
    | CleanupCut
    | GraphChanged
    | RunEnded
)
"""An entry of the log of a run. The union is closed: match it to its end."""
