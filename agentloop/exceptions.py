"""Every error the library raises, split by whose fault it is.

The user's configuration (`UserError`), the model's behaviour (`ModelBehaviorError`, `ModelRefusalError`), a tool
(`ToolCallError`), the transport (`ModelTransportError`, `ModelTimeoutError`), a limit the caller set
(`MaxTurnsExceeded`, `RunTimeout`, `UsageLimitExceeded`, `ToolLoopDetected`), a guardrail, or stored state.
They reach the caller bare, never in an exception group; what else failed meanwhile stands on them as notes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = [
    "AgentLoopError",
    "EarlierFailure",
    "GuardrailTripwireTriggered",
    "InputGuardrailTripwireTriggered",
    "JournalError",
    "MaxTurnsExceeded",
    "ModelBehaviorError",
    "ModelRefusalError",
    "ModelTimeoutError",
    "ModelTransportError",
    "OutputGuardrailTripwireTriggered",
    "ReplayDivergence",
    "RunTimeout",
    "SessionConflict",
    "StateError",
    "ToolCallError",
    "ToolCancelledError",
    "ToolInputGuardrailTripwireTriggered",
    "ToolLoopDetected",
    "ToolOutputGuardrailTripwireTriggered",
    "ToolTimeoutError",
    "UsageLimitExceeded",
    "UserError",
    "UserTypeError",
    "UserValueError",
]

if TYPE_CHECKING:
    from agentloop.items import ToolCall
    from agentloop.outcomes import CallOutcome
    from agentloop.results import RunData


class AgentLoopError(Exception):
    """Base of all errors of the library.

    `run_data` holds what the run had achieved when the error left it (`agentloop.RunData`), or None where no run was
    under way.
    """

    run_data: RunData | None = None


class UserError(AgentLoopError):
    """The library was used wrongly: a definition, an argument or a callback's result is not what it must be."""


class UserTypeError(UserError, TypeError):
    """A value of the wrong type, or a callable of the wrong shape."""


class UserValueError(UserError, ValueError):
    """A value of the right type that is out of range."""


class MaxTurnsExceeded(AgentLoopError):
    """The model was due to be asked once more than `max_turns` allows."""

    def __init__(self, max_turns: int) -> None:
        super().__init__(f"Max turns ({max_turns}) exceeded")
        self.max_turns = max_turns


class RunTimeout(AgentLoopError):
    """The run's own `timeout` passed. The caller's cancellation is never reported as this."""

    def __init__(self, timeout: float) -> None:
        super().__init__(f"The run timed out after {timeout:g} seconds.")
        self.timeout = timeout


class UsageLimitExceeded(AgentLoopError):
    """A limit of `UsageLimits` is spent."""


class ToolLoopDetected(AgentLoopError):
    """The model repeats one call with one result, after it was warned."""


class ModelBehaviorError(AgentLoopError):
    """The model's response can't be used: it breaks its own protocol or the definitions it was given."""


class ModelRefusalError(AgentLoopError):
    """The model refused to answer."""

    def __init__(self, refusal: str) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class ModelTimeoutError(AgentLoopError):
    """One attempt of a model request took longer than `ModelSettings.timeout`."""

    def __init__(self, timeout: float) -> None:
        super().__init__(f"The model did not answer within {timeout:g} seconds.")
        self.timeout = timeout


class ModelTransportError(AgentLoopError):
    """The model couldn't be reached, or answered with an error.

    Attributes:
        status: HTTP status, or None where no response came.
        code: The provider's own error code, if it gave one; `silence_timeout` where an answer fell silent.
        retry_after: Seconds the provider asked to wait, clamped to a sane range, or None.
        should_retry: The provider's explicit advice, or None where it gave none.
        request_id: The provider's id of the request, for its support.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        should_retry: bool | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.should_retry = should_retry
        self.request_id = request_id


class ToolCallError(AgentLoopError):
    """A tool call failed and its policy is to raise. The original exception is the cause.

    Attributes: `tool` (name), `call` (the `ToolCall`), `outcome` (its `CallOutcome`).
    """

    def __init__(
        self,
        message: str,
        *,
        tool: str | None = None,
        call: ToolCall | None = None,
        outcome: CallOutcome | None = None,
    ) -> None:
        super().__init__(message)
        self.tool = tool
        self.call = call
        self.outcome = outcome


class ToolTimeoutError(AgentLoopError):
    """A tool's body took longer than its `timeout` (or was silent for its `idle_timeout`)."""

    def __init__(self, tool_name: str, timeout: float) -> None:
        super().__init__(f"Tool '{tool_name}' timed out after {timeout:g} seconds.")
        self.tool_name = tool_name
        self.timeout = timeout


class ToolCancelledError(ToolCallError):
    """One call was cancelled by itself or by `cancel_call`, while the run went on."""


class GuardrailTripwireTriggered(AgentLoopError):
    """Base of the four tripwires. `guardrail_result` is the result that tripped."""

    def __init__(self, message: str, *, guardrail_result: Any = None) -> None:
        super().__init__(message)
        self.guardrail_result = guardrail_result


class InputGuardrailTripwireTriggered(GuardrailTripwireTriggered):
    """An input guardrail of the run tripped."""


class OutputGuardrailTripwireTriggered(GuardrailTripwireTriggered):
    """An output guardrail of the run tripped."""


class ToolInputGuardrailTripwireTriggered(GuardrailTripwireTriggered):
    """A tool input guardrail returned `RaiseException`."""


class ToolOutputGuardrailTripwireTriggered(GuardrailTripwireTriggered):
    """A tool output guardrail returned `RaiseException`."""


class StateError(AgentLoopError):
    """Stored state can't be used: unknown schema, another run's, or it says the run is over."""


class JournalError(AgentLoopError):
    """The journal failed, or does not belong to this run."""


class EarlierFailure(AgentLoopError):
    """A body failed in an earlier entry of the run; the message is all that was kept of its error: `TYPE(MESSAGE)`.

    Attributes:
        fatal: Whether that error was no `Exception`; no policy of a tool answers it.
    """

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal


class SessionConflict(AgentLoopError):
    """The session changed between reading and replacing its items."""


class ReplayDivergence(AgentLoopError):
    """A replay came to another record than the recorded run.

    Attributes:
        n: The record's place in the log, from 0 on.
        wanted: The record there; None where the log ends.
        got: What the replay came to; None where it came to nothing.
        why: What is different, and what that may come from, in words.
    """

    def __init__(self, n: int, wanted: object, got: object, why: str | None = None) -> None:
        super().__init__(f"Replay diverged at record {n}: {why or f'wanted {wanted!r}, got {got!r}'}")
        self.n = n
        self.wanted = wanted
        self.got = got
        self.why = why
