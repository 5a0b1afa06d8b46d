"""All errors of the library, split by the side at fault.

The user's configuration (`UserError`), the model's behaviour (`ModelBehaviorError`, `ModelRefusalError`), a tool
(`ToolCallError`), the transport (`ModelTransportError`, `ModelTimeoutError`), a limit the caller set
(`MaxTurnsExceeded`, `RunTimeout`, `UsageLimitExceeded`, `ToolLoopDetected`), a guardrail, or stored state.
They reach the caller bare, never in an exception group; other failures of the same time are attached as notes.
"""

from __future__ import annotations

from agentloop._common.errors import (
    AgentLoopError,
    EarlierFailure,
    GuardrailTripwireTriggered,
    InputGuardrailTripwireTriggered,
    JournalError,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRefusalError,
    ModelTimeoutError,
    ModelTransportError,
    OutcomeUnknown,
    OutputGuardrailTripwireTriggered,
    ReplayDivergence,
    RunTimeout,
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
    "EarlierFailure",
    "GuardrailTripwireTriggered",
    "InputGuardrailTripwireTriggered",
    "JournalError",
    "MaxTurnsExceeded",
    "ModelBehaviorError",
    "ModelRefusalError",
    "ModelTimeoutError",
    "ModelTransportError",
    "OutcomeUnknown",
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
    "ToolSourceError",
    "ToolTimeoutError",
    "UsageLimitExceeded",
    "UserError",
    "UserTypeError",
    "UserValueError",
]


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
