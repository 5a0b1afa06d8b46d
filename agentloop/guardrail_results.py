"""What guardrails answer, and what a run keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs

from agentloop._common.masking import masked_repr
from agentloop.items import ToolCall


@attrs.frozen
class Allow:
    """Go on. A guardrail or a policy that has nothing against the call."""

    output_info: Any = None


@attrs.frozen
class RejectContent:
    """Don't; the model is told *message* in place of the tool's output."""

    message: str
    output_info: Any = None


@attrs.frozen
class RaiseException:
    """Don't, and end the run with the tripwire error."""

    output_info: Any = None


@attrs.frozen
class Rewrite:
    """Run the call with these arguments instead: a new identity, which policies and later guardrails judge again."""

    arguments: Mapping[str, Any]
    output_info: Any = None


@attrs.frozen
class ReplaceOutput:
    """Use *value* in place of what the tool returned, everywhere."""

    value: Any
    output_info: Any = None


ToolInputVerdict: TypeAlias = Allow | RejectContent | RaiseException | Rewrite
ToolOutputVerdict: TypeAlias = Allow | RejectContent | RaiseException | ReplaceOutput


@attrs.frozen(kw_only=True, repr=False)
class ToolGuardrailResult:
    """One answer of a tool guardrail. `guardrail` is the guardrail (it has a `name`), `duration` is in seconds."""

    guardrail: Any
    output: ToolInputVerdict | ToolOutputVerdict
    duration: float
    call: ToolCall

    def __repr__(self) -> str:
        hidden = self.call.secret or self.call.secret_output
        return masked_repr(self, {"output": f"<{type(self.output).__name__}>"} if hidden else {})


@attrs.frozen
class GuardrailFunctionOutput:
    """What a guardrail of the run answers: anything in `output_info`, and whether the run is to be stopped."""

    output_info: Any = None
    tripwire_triggered: bool = False


@attrs.frozen(kw_only=True, repr=False)
class InputGuardrailResult:
    """One answer of an input guardrail. `guardrail` is the guardrail (it has a `name`), `duration` is in seconds.

    `secret` says that the input was: what the guardrail says of it shows in no repr.
    """

    guardrail: Any
    output: GuardrailFunctionOutput
    duration: float
    secret: bool = attrs.field(default=False, eq=False, repr=False)

    def __repr__(self) -> str:
        return masked_repr(self, {"output": f"<{type(self.output).__name__}>"} if self.secret else {})


@attrs.frozen(kw_only=True)
class OutputGuardrailResult:
    """One answer of an output guardrail, about the candidate `agent_output` of `agent`."""

    guardrail: Any
    output: GuardrailFunctionOutput
    duration: float
    agent: Any = None
    agent_output: Any = attrs.field(default=None, repr=False)
