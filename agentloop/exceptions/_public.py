"""The public form of a run's error: its type, and words that hold nothing of the application.

The message of an error may quote a path, an address or a credential: of a tool, of a provider, of a store. So only
errors whose words are the library's own about a limit, and the model's refusal, keep them.
"""

from __future__ import annotations

from agentloop import exceptions
from agentloop._common.error_text import redact, shorten, summary_parts
from agentloop.exceptions import AgentLoopError

_OPEN = frozenset(
    {"MaxTurnsExceeded", "ModelRefusalError", "ModelTimeoutError", "RunTimeoutError", "ToolLoopDetected"}
    | {"UsageLimitExceeded"}
)
"""Errors whose own message the client gets."""
_SENTENCES = {
    "GuardrailTripwireTriggered": "A guardrail has ended the run.",
    "InputGuardrailTripwireTriggered": "A guardrail has refused the input.",
    "OutputGuardrailTripwireTriggered": "A guardrail has refused the output.",
    "ToolInputGuardrailTripwireTriggered": "A guardrail has refused a call.",
    "ToolOutputGuardrailTripwireTriggered": "A guardrail has refused the output of a call.",
    "JournalError": "The store of the run has failed.",
    "SessionConflict": "The conversation has been changed at the same time.",
    "ModelBehaviorError": "The model's answer can't be used.",
    "ModelTransportError": "The model could not be reached, or has answered with an error.",
    "StateError": "The stored run can't be used.",
    "ToolCallError": "A call of a tool has failed.",
    "ToolCancelledError": "A call of a tool was cancelled.",
    "ToolTimeoutError": "A call of a tool took too long.",
}
_OTHER = "The run has failed."
_NAMES = frozenset(exceptions.__all__)


def describe_failure(name: str, message: str) -> dict[str, str]:
    """Return the public form of an error of the class *name*: its `type` and a `message`."""
    if name not in _NAMES:
        return {"type": "InternalError", "message": _OTHER}
    if name in _OPEN:
        return {"type": name, "message": redact(shorten(message))}
    return {"type": name, "message": _SENTENCES.get(name, _OTHER)}


def describe_error(error: BaseException) -> dict[str, str]:
    """Return the public form of a run's error; one that is not the library's is an `InternalError`."""
    return describe_failure(type(error).__name__ if isinstance(error, AgentLoopError) else "", str(error))


def describe_summary(summary: str) -> dict[str, str]:
    """Return the public form of an error of which a log has the summary, `TYPE(MESSAGE)`."""
    return describe_failure(*summary_parts(summary))
