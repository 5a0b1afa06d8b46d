"""The errors that values raise themselves: all of `agentloop.exceptions` that holds no value of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class RunProgress(Protocol):
    """What a run had achieved, as an error knows it: the fields of `agentloop.RunData`, which is above the errors."""

    @property
    def input(self) -> tuple[Any, ...]: ...
    @property
    def new_items(self) -> tuple[Any, ...]: ...
    @property
    def raw_responses(self) -> tuple[Any, ...]: ...
    @property
    def last_agent(self) -> Any: ...
    @property
    def usage(self) -> Any: ...
    @property
    def context(self) -> Any: ...
    @property
    def calls(self) -> tuple[Any, ...]: ...
    @property
    def records(self) -> Sequence[Any]: ...


class AgentLoopError(Exception):
    """Base of all errors of the library.

    `run_data` holds what the run had achieved when the error left it (`agentloop.RunData`), or None where no run was
    under way.
    """

    run_data: RunProgress | None = None


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


class ToolTimeoutError(AgentLoopError):
    """A tool's body took longer than its `timeout` (or was silent for its `idle_timeout`)."""

    def __init__(self, tool_name: str, timeout: float) -> None:
        super().__init__(f"Tool '{tool_name}' timed out after {timeout:g} seconds.")
        self.tool_name = tool_name
        self.timeout = timeout


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
