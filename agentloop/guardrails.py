"""Guardrails: functions that check a run's input and output, or a call's arguments and output; and their results.

Definitions and values only: the engine runs the guardrails and applies their verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, overload

import attrs

from agentloop._common.checks import FIELDS
from agentloop._common.masking import MASK
from agentloop._common.values import NotedValue, ReprByFields, Value
from agentloop.context import Callback, RunContext, ToolContext
from agentloop.items import Content, ToolCall

__all__ = [
    "Allow",
    "AskAgain",
    "BlockedOutputArgs",
    "GuardrailFunctionOutput",
    "InputGuardrail",
    "InputGuardrailResult",
    "OutputGuardrail",
    "OutputGuardrailResult",
    "RaiseException",
    "RejectContent",
    "ReplaceOutput",
    "Rewrite",
    "ToolGuardrailResult",
    "ToolInputData",
    "ToolInputGuardrail",
    "ToolOutputData",
    "ToolOutputGuardrail",
    "input_guardrail",
    "output_guardrail",
    "tool_input_guardrail",
    "tool_output_guardrail",
]


class Allow(Value, frozen=True):
    """Allow it: the verdict of a guardrail, or the decision of a policy, without an objection.

    Example:
        from agentloop.guardrails import Allow, tool_input_guardrail

        @tool_input_guardrail
        def log_arguments(data):
            return Allow(output_info=dict(data.arguments))

        print(log_arguments.name)  # log_arguments
    """

    output_info: Any = None


class RejectContent(Value, frozen=True):
    """Reject it: the model receives *message* in place of the tool's output.

    Example:
        from agentloop.guardrails import RejectContent

        print(RejectContent("Not this file.").message)  # Not this file.
    """

    message: str
    output_info: Any = None


class RaiseException(Value, frozen=True):
    """Reject it and end the run with the tripwire error.

    Example:
        from agentloop.guardrails import Allow, RaiseException, tool_input_guardrail

        @tool_input_guardrail
        def never_root(data):
            return RaiseException("as root") if data.arguments.get("user") == "root" else Allow()  # ends the run

        print(never_root.name)  # never_root
    """

    output_info: Any = None


class Rewrite(Value, frozen=True):
    """Run the call with *arguments* instead: a new identity, which policies and later guardrails check again.

    Example:
        from agentloop import Agent, Runner, tool
        from agentloop.guardrails import Rewrite, tool_input_guardrail
        from agentloop.testing import ScriptedModel, call, say

        @tool_input_guardrail
        def lower(data):
            return Rewrite({"city": data.arguments["city"].lower()})

        @tool(tool_input_guardrails=[lower])
        def weather(city: str) -> str:
            "Tell the weather."
            return f"sunny in {city}"

        agent = Agent("a", model=ScriptedModel([call("weather", {"city": "BERN"}), say("ok")]), tools=[weather])
        print(Runner.run_sync(agent, "go").new_items[1].output)  # sunny in bern
    """

    arguments: Mapping[str, Any]
    output_info: Any = None


class ReplaceOutput(Value, frozen=True):
    """Use *value* in place of the tool's own value, everywhere.

    Example:
        from agentloop.guardrails import ReplaceOutput, tool_output_guardrail

        @tool_output_guardrail
        def hide_mail(data):
            return ReplaceOutput(str(data.output).replace("@", " at "))

        print(hide_mail.name)  # hide_mail
    """

    value: Any
    output_info: Any = None


ToolInputVerdict: TypeAlias = Allow | RejectContent | RaiseException | Rewrite
ToolOutputVerdict: TypeAlias = Allow | RejectContent | RaiseException | ReplaceOutput


class ToolGuardrailResult(Value, frozen=True, kw_only=True):
    """One verdict of a tool guardrail. `guardrail` is the guardrail (it has a `name`), `duration` is in seconds."""

    guardrail: Any
    output: ToolInputVerdict | ToolOutputVerdict
    duration: float
    call: ToolCall

    def __repr__(self) -> str:
        hidden = self.call.secret or self.call.secret_output
        return self._format({"output": f"<{type(self.output).__name__}>"} if hidden else {})


class GuardrailFunctionOutput(Value, frozen=True):
    """The answer of an input or output guardrail: any value in `output_info`; `tripwire_triggered` stops the run.

    Example:
        from agentloop import GuardrailFunctionOutput

        found = GuardrailFunctionOutput({"words": 3}, tripwire_triggered=False)
        print(found.output_info)  # {'words': 3}
    """

    output_info: Any = None
    tripwire_triggered: bool = False


class AskAgain(Value, frozen=True):
    """Don't accept the final output, and ask the model for another one: the answer of an output guardrail or validator.

    The model reads *message*, what is wrong with its answer, and answers in another turn; the history keeps both. It
    is asked `Agent.output_retries` times in a row at most, answers that don't fit `output_type` included. After that,
    and for an answer that can't be corrected (one that was cut or refused, the output of an error handler), the
    guardrail trips: `OutputGuardrailTripwireTriggered`.

    Example:
        from agentloop import Agent, AskAgain, GuardrailFunctionOutput, Runner, output_guardrail
        from agentloop.testing import ScriptedModel, say

        @output_guardrail
        def names_a_source(ctx, agent, output):
            return GuardrailFunctionOutput() if "Source:" in output else AskAgain("Name your source.")

        model = ScriptedModel([say("It rains."), say("It rains. Source: my window.")])
        agent = Agent("a", model=model, output_guardrails=[names_a_source])
        print(Runner.run_sync(agent, "Weather?").final_output)  # It rains. Source: my window.
    """

    message: str
    output_info: Any = None

    @property
    def tripwire_triggered(self) -> bool:
        """False: the run continues."""
        return False

    def _refused(self) -> GuardrailFunctionOutput:
        """Return the answer that ends the run in place of this one; its `output_info` is the message at least."""
        info = self.message if self.output_info is None else self.output_info
        return GuardrailFunctionOutput(info, tripwire_triggered=True)


class InputGuardrailResult(NotedValue, frozen=True, kw_only=True):
    """One answer of an input guardrail. `guardrail` is the guardrail (it has a `name`), `duration` is in seconds.

    `secret` is True if the input was secret; then no repr shows `output`.
    """

    guardrail: Any
    output: GuardrailFunctionOutput | AskAgain
    duration: float
    secret: bool = False
    input_id: str | None = None
    """The input added to the run that was judged; None for the run's own input. After `AskAgain` it isn't shown."""

    def __repr__(self) -> str:
        return self._format({"output": f"<{type(self.output).__name__}>"} if self.secret else {})


class OutputGuardrailResult(Value, frozen=True, kw_only=True):
    """One answer of an output guardrail, about the candidate `agent_output` of `agent`."""

    _unshown = frozenset({"agent_output"})

    guardrail: Any
    output: GuardrailFunctionOutput | AskAgain
    duration: float
    agent: Any = None
    agent_output: Any = None


class BlockedOutputArgs(Value, frozen=True, kw_only=True):
    """The argument of a function given as `RunConfig.output_guardrail_blocked_message`.

    It has the name of the output guardrail that tripped, the agent whose output it was, the run's context and the text
    that is used otherwise. The refused output isn't in it, so that no message can repeat it.
    """

    _unshown = frozenset({"context"})

    guardrail: str
    agent: Any
    context: RunContext[Any]
    default: str = "Output withheld by an output guardrail."


BlockedMessage: TypeAlias = str | Callable[[BlockedOutputArgs], str | None]
"""The text in place of a tool's output that an output guardrail refused, or a sync function that writes it."""


class ToolInputData(Value, frozen=True, kw_only=True):
    """The argument of a tool input guardrail. `arguments` is None if the model's text doesn't parse."""

    context: ToolContext[Any]
    agent: Any
    tool: Any
    arguments: dict[str, Any] | None

    def __repr__(self) -> str:
        return self._format({"arguments": repr(MASK)} if self.tool.secret else {})


class ToolOutputData(Value, frozen=True, kw_only=True):
    """The argument of a tool output guardrail: the Python `value`, and the `output` that the model would see."""

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
        return self._format(masks)


def _name_of(fn: Callback) -> str:
    name = getattr(fn, "__name__", None)
    return name if isinstance(name, str) else type(fn).__name__


@attrs.frozen(eq=False, repr=False)
class InputGuardrail(ReprByFields):
    """A check of a run's input: *fn(ctx, agent, input)* returns `GuardrailFunctionOutput`.

    With `run_in_parallel` it runs beside the first model call, and the calls of that response wait for it; without it
    the model call waits. An input that was added to the run (`RunStream.add_input`) is judged by itself before it is
    shown. For such an input it may return `AskAgain`: the run continues without the input, and `RunState.inputs` tells
    its sender why. For the run's own input `AskAgain` trips.

    Example:
        from agentloop import Agent, GuardrailFunctionOutput, InputGuardrail

        def is_short(ctx, agent, input):
            return GuardrailFunctionOutput(tripwire_triggered=len(input) > 1000)

        agent = Agent("a", input_guardrails=[InputGuardrail(is_short, run_in_parallel=False)])
        print(agent.input_guardrails[0].name)  # is_short
    """

    fn: Callback = attrs.field(validator=FIELDS.function())
    name: str = attrs.field(
        default=attrs.Factory(lambda self: _name_of(self.fn), takes_self=True), kw_only=True, validator=FIELDS.text()
    )
    run_in_parallel: bool = attrs.field(default=True, kw_only=True, validator=FIELDS.flag())


@attrs.frozen(eq=False, repr=False)
class OutputGuardrail(ReprByFields):
    """A check of a candidate for the final output.

    *fn(ctx, agent, output)* returns `GuardrailFunctionOutput`, or `AskAgain` for a better answer of the model.

    Example:
        from agentloop import Agent, GuardrailFunctionOutput, OutputGuardrail

        def is_polite(ctx, agent, output):
            return GuardrailFunctionOutput(tripwire_triggered="stupid" in output)

        print(Agent("a", output_guardrails=[OutputGuardrail(is_polite)]).output_guardrails[0].name)  # is_polite
    """

    fn: Callback = attrs.field(validator=FIELDS.function())
    name: str = attrs.field(
        default=attrs.Factory(lambda self: _name_of(self.fn), takes_self=True), kw_only=True, validator=FIELDS.text()
    )


@attrs.frozen(eq=False, repr=False)
class ToolInputGuardrail(ReprByFields):
    """A check of a call's arguments right before its body.

    *fn(ToolInputData)* returns `Allow`, `RejectContent`, `RaiseException` or `Rewrite`.

    Example:
        from agentloop.guardrails import Allow, ToolInputGuardrail

        print(ToolInputGuardrail(lambda data: Allow(), name="anything goes").name)  # anything goes
    """

    fn: Callback = attrs.field(validator=FIELDS.function())
    name: str = attrs.field(
        default=attrs.Factory(lambda self: _name_of(self.fn), takes_self=True), kw_only=True, validator=FIELDS.text()
    )


@attrs.frozen(eq=False, repr=False)
class ToolOutputGuardrail(ReprByFields):
    """A check of a call's output before the output is used.

    *fn(ToolOutputData)* returns `Allow`, `RejectContent`, `RaiseException` or `ReplaceOutput`.

    Example:
        from agentloop.guardrails import Allow, ToolOutputGuardrail

        print(ToolOutputGuardrail(lambda data: Allow(), name="anything goes").name)  # anything goes
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
    """Make a tool input guardrail from a function. A decorator, used bare or with a name.

    Example:
        from agentloop import Agent, Runner, tool
        from agentloop.guardrails import Allow, RejectContent, tool_input_guardrail
        from agentloop.testing import ScriptedModel, call, say

        @tool_input_guardrail
        def only_reports(data):
            return Allow() if data.arguments["path"].startswith("reports/") else RejectContent("Only reports, please.")

        @tool(tool_input_guardrails=[only_reports])
        def read(path: str) -> str:
            "Read a file."
            return "text"

        agent = Agent("a", model=ScriptedModel([call("read", {"path": "/etc/passwd"}), say("ok")]), tools=[read])
        print(Runner.run_sync(agent, "go").new_items[1].output)  # Only reports, please.
    """

    def make(function: Callback) -> ToolInputGuardrail:
        return ToolInputGuardrail(function, name=name) if name else ToolInputGuardrail(function)

    return make if fn is None else make(fn)


@overload
def tool_output_guardrail(fn: Callback, *, name: str | None = None) -> ToolOutputGuardrail: ...
@overload
def tool_output_guardrail(fn: None = None, *, name: str | None = None) -> Callable[[Callback], ToolOutputGuardrail]: ...
def tool_output_guardrail(fn: Callback | None = None, *, name: str | None = None) -> Any:
    """Make a tool output guardrail from a function. A decorator, used bare or with a name.

    Example:
        from agentloop import Agent, Runner, tool
        from agentloop.guardrails import ReplaceOutput, tool_output_guardrail
        from agentloop.testing import ScriptedModel, call, say

        @tool_output_guardrail
        def shorten(data):
            return ReplaceOutput(data.output[:5])

        @tool(tool_output_guardrails=[shorten])
        def read() -> str:
            "Read the file."
            return "a very long text"

        agent = Agent("a", model=ScriptedModel([call("read"), say("ok")]), tools=[read])
        print(Runner.run_sync(agent, "go").new_items[1].output)  # a ver
    """

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
    """Make an input guardrail of runs from a function. A decorator, used bare or with options.

    Example:
        from agentloop import Agent, GuardrailFunctionOutput, InputGuardrailTripwireTriggered, Runner, input_guardrail
        from agentloop.testing import ScriptedModel, say

        @input_guardrail
        async def no_secrets(ctx, agent, input):
            return GuardrailFunctionOutput(tripwire_triggered="password" in str(input))

        agent = Agent("a", model=ScriptedModel([say("hi")]), input_guardrails=[no_secrets])
        try:
            Runner.run_sync(agent, "my password is x")
        except InputGuardrailTripwireTriggered:
            print("refused")  # refused
    """

    def make(function: Callback) -> InputGuardrail:
        guardrail = InputGuardrail(function, run_in_parallel=run_in_parallel)
        return attrs.evolve(guardrail, name=name) if name else guardrail

    return make if fn is None else make(fn)


@overload
def output_guardrail(fn: Callback, *, name: str | None = None) -> OutputGuardrail: ...
@overload
def output_guardrail(fn: None = None, *, name: str | None = None) -> Callable[[Callback], OutputGuardrail]: ...
def output_guardrail(fn: Callback | None = None, *, name: str | None = None) -> Any:
    """Make an output guardrail of runs from a function. A decorator, used bare or with a name.

    Example:
        from agentloop import Agent, GuardrailFunctionOutput, OutputGuardrailTripwireTriggered, Runner, output_guardrail
        from agentloop.testing import ScriptedModel, say

        @output_guardrail
        async def is_short(ctx, agent, output):
            return GuardrailFunctionOutput(tripwire_triggered=len(output) > 10)

        agent = Agent("a", model=ScriptedModel([say("far too long an answer")]), output_guardrails=[is_short])
        try:
            Runner.run_sync(agent, "go")
        except OutputGuardrailTripwireTriggered as error:
            print(error.guardrail_result.guardrail.name)  # is_short
    """

    def make(function: Callback) -> OutputGuardrail:
        return OutputGuardrail(function, name=name) if name else OutputGuardrail(function)

    return make if fn is None else make(fn)
