"""Guardrails: functions that judge a run's input and output, or a call's arguments and output; and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, overload

import attrs

from agentloop._common.checks import FIELDS
from agentloop._common.masking import MASK, masked_repr
from agentloop.context import Callback, ToolContext
from agentloop.items import Content, ToolCall


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


@attrs.frozen(kw_only=True, repr=False)
class ToolInputData:
    """What a tool input guardrail is given. `arguments` is None where the model's text doesn't parse."""

    context: ToolContext[Any]
    agent: Any
    tool: Any
    arguments: dict[str, Any] | None

    def __repr__(self) -> str:
        return masked_repr(self, {"arguments": repr(MASK)} if self.tool.secret else {})


@attrs.frozen(kw_only=True, repr=False)
class ToolOutputData:
    """What a tool output guardrail is given: the Python `value`, and the `output` the model would see."""

    context: ToolContext[Any]
    agent: Any
    tool: Any
    arguments: dict[str, Any] | None
    value: Any
    output: Content

    def __repr__(self) -> str:
        masks = {"arguments": repr(MASK)} if self.tool.secret else {}
        if self.tool.secret_output:
            masks |= {"value": repr(MASK), "output": repr(MASK)}
        return masked_repr(self, masks)


def _name_of(fn: Callback) -> str:
    name = getattr(fn, "__name__", None)
    return name if isinstance(name, str) else type(fn).__name__


@attrs.frozen(eq=False)
class InputGuardrail:
    """Judges a run's input: *fn(ctx, agent, input)* gives `GuardrailFunctionOutput`.

    With `run_in_parallel` it runs beside the first model call, whose calls wait for it; else the model call waits.
    """

    fn: Callback = attrs.field(validator=FIELDS.function())
    name: str = attrs.field(
        default=attrs.Factory(lambda self: _name_of(self.fn), takes_self=True), kw_only=True, validator=FIELDS.text()
    )
    run_in_parallel: bool = attrs.field(default=True, kw_only=True, validator=FIELDS.flag())


@attrs.frozen(eq=False)
class OutputGuardrail:
    """Judges a candidate for the final output: *fn(ctx, agent, output)* gives `GuardrailFunctionOutput`."""

    fn: Callback = attrs.field(validator=FIELDS.function())
    name: str = attrs.field(
        default=attrs.Factory(lambda self: _name_of(self.fn), takes_self=True), kw_only=True, validator=FIELDS.text()
    )


@attrs.frozen(eq=False)
class ToolInputGuardrail:
    """Judges a call's arguments right before its body.

    *fn(ToolInputData)* gives `Allow`, `RejectContent`, `RaiseException` or `Rewrite`.
    """

    fn: Callback = attrs.field(validator=FIELDS.function())
    name: str = attrs.field(
        default=attrs.Factory(lambda self: _name_of(self.fn), takes_self=True), kw_only=True, validator=FIELDS.text()
    )


@attrs.frozen(eq=False)
class ToolOutputGuardrail:
    """Judges a call's output before anything accepts it.

    *fn(ToolOutputData)* gives `Allow`, `RejectContent`, `RaiseException` or `ReplaceOutput`.
    """

    fn: Callback = attrs.field(validator=FIELDS.function())
    name: str = attrs.field(
        default=attrs.Factory(lambda self: _name_of(self.fn), takes_self=True), kw_only=True, validator=FIELDS.text()
    )


@overload
def tool_input_guardrail(fn: Callback, *, name: str | None = None) -> ToolInputGuardrail: ...
@overload
def tool_input_guardrail(fn: None = None, *, name: str | None = None) -> Callable[[Callback], ToolInputGuardrail]: ...
def tool_input_guardrail(fn: Callback | None = None, *, name: str | None = None) -> Any:
    """Make a function a tool input guardrail; bare or with a name."""

    def make(function: Callback) -> ToolInputGuardrail:
        return ToolInputGuardrail(function, name=name) if name else ToolInputGuardrail(function)

    return make if fn is None else make(fn)


@overload
def tool_output_guardrail(fn: Callback, *, name: str | None = None) -> ToolOutputGuardrail: ...
@overload
def tool_output_guardrail(fn: None = None, *, name: str | None = None) -> Callable[[Callback], ToolOutputGuardrail]: ...
def tool_output_guardrail(fn: Callback | None = None, *, name: str | None = None) -> Any:
    """Make a function a tool output guardrail; bare or with a name."""

    def make(function: Callback) -> ToolOutputGuardrail:
        return ToolOutputGuardrail(function, name=name) if name else ToolOutputGuardrail(function)

    return make if fn is None else make(fn)


@overload
def input_guardrail(fn: Callback, *, name: str | None = None, run_in_parallel: bool = True) -> InputGuardrail: ...
@overload
def input_guardrail(
    fn: None = None, *, name: str | None = None, run_in_parallel: bool = True
) -> Callable[[Callback], InputGuardrail]: ...
def input_guardrail(fn: Callback | None = None, *, name: str | None = None, run_in_parallel: bool = True) -> Any:
    """Make a function an input guardrail of runs; bare or with options."""

    def make(function: Callback) -> InputGuardrail:
        guardrail = InputGuardrail(function, run_in_parallel=run_in_parallel)
        return attrs.evolve(guardrail, name=name) if name else guardrail

    return make if fn is None else make(fn)


@overload
def output_guardrail(fn: Callback, *, name: str | None = None) -> OutputGuardrail: ...
@overload
def output_guardrail(fn: None = None, *, name: str | None = None) -> Callable[[Callback], OutputGuardrail]: ...
def output_guardrail(fn: Callback | None = None, *, name: str | None = None) -> Any:
    """Make a function an output guardrail of runs; bare or with a name."""

    def make(function: Callback) -> OutputGuardrail:
        return OutputGuardrail(function, name=name) if name else OutputGuardrail(function)

    return make if fn is None else make(fn)
