"""All errors of the library, split by the side at fault.

The user's configuration (`UserError`), the model's behaviour (`ModelBehaviorError`, `ModelRefusalError`), a tool
(`ToolCallError`), the transport (`ModelTransportError`, `ModelTimeoutError`), a limit the caller set
(`MaxTurnsExceeded`, `RunTimeoutError`, `UsageLimitExceeded`, `ToolLoopDetected`), a guardrail, or stored state.
They reach the caller bare, never in an exception group; other failures of the same time are attached as notes.

Names end in `Error`, except where what happened has a name that you know from elsewhere, or that says more:
`GuardrailTripwireTriggered` and its four kinds, `MaxTurnsExceeded`, `UsageLimitExceeded`, `ToolLoopDetected`,
`ContextTooLong`, `SessionConflict`, `MemoryConflict`, `OutcomeUnknown`, `ReplayDivergence` and `EarlierFailure`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentloop._common.errors import (
    AgentLoopError,
    ContextTooLong,
    EarlierFailure,
    GuardrailTripwireTriggered,
    InputGuardrailTripwireTriggered,
    InputRefusedError,
    JournalError,
    MaxTurnsExceeded,
    MemoryConflict,
    ModelBehaviorError,
    ModelRefusalError,
    ModelTimeoutError,
    ModelTransportError,
    OutcomeUnknown,
    OutputGuardrailTripwireTriggered,
    ReplayDivergence,
    RunProgress,
    RunTimeoutError,
    SessionConflict,
    StateError,
    ToolInputGuardrailTripwireTriggered,
    ToolLoopDetected,
    ToolOutputGuardrailTripwireTriggered,
    ToolSourceError,
    ToolTimeoutError,
    UsageLimitExceeded,
    UserError,
    UserTypeError,
    UserValueError,
)
from agentloop.items import ToolCall
from agentloop.outcomes import CallOutcome

__all__ = [
    "AgentLoopError",
    "ContextTooLong",
    "EarlierFailure",
    "GuardrailTripwireTriggered",
    "InputGuardrailTripwireTriggered",
    "InputRefusedError",
    "JournalError",
    "MaxTurnsExceeded",
    "MemoryConflict",
    "ModelBehaviorError",
    "ModelRefusalError",
    "ModelTimeoutError",
    "ModelTransportError",
    "OutcomeUnknown",
    "OutputGuardrailTripwireTriggered",
    "ReplayDivergence",
    "RunProgress",
    "RunTimeoutError",
    "SessionConflict",
    "StateError",
    "ToolCallError",
    "ToolCancelledError",
    "ToolInputGuardrailTripwireTriggered",
    "ToolLoopDetected",
    "ToolOutputGuardrailTripwireTriggered",
    "ToolSourceError",
    "ToolTimeoutError",
    "UsageLimitExceeded",
    "UserError",
    "UserTypeError",
    "UserValueError",
]


if not TYPE_CHECKING:  # else a type checker would take every name

    def __getattr__(name: str) -> Any:
        """Return an error by the name that it had before 0.2."""
        if name == "RunTimeout":
            import warnings

            warnings.warn(
                "RunTimeout is now RunTimeoutError; the old name goes in 0.3", DeprecationWarning, stacklevel=2
            )
            return RunTimeoutError
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class ToolCallError(AgentLoopError):
    """A tool call failed, and the policy of its tool is to raise. The original exception is the cause.

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


class ToolCancelledError(ToolCallError):
    """One call was cancelled by its own body or by `cancel_call`, while the run continued."""


for _name in __all__:
    globals()[
        _name
    ].__module__ = __name__  # the public module; `_common.errors` defines most, for modules imported here
