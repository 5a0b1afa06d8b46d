"""Agents: who is asked what, with which tools. Definitions only; nothing here runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, Unpack, overload

import attrs
from attrs.validators import in_

from agentloop._common.checks import FIELDS, NAMES, check, check_count, either, fits, is_a, optional
from agentloop._common.errors import UserError, UserTypeError
from agentloop._common.misplaced import takes_options
from agentloop._common.naming import snake_case
from agentloop._common.type_parameters import ContextT, OutputT
from agentloop._schema.function_schema import FunctionSchema, function_schema
from agentloop._schema.output_schema import OutputType, TypedOutput, output_schema, typed_output
from agentloop.abc import Model, Session
from agentloop.config import RunConfig, check_run_config
from agentloop.context import Callback
from agentloop.guardrails import InputGuardrail, OutputGuardrail, ToolInputGuardrail, ToolOutputGuardrail
from agentloop.handoffs import Handoff
from agentloop.hooks import AgentHooks
from agentloop.settings import ModelSettings
from agentloop.tools import (
    CONTEXT_TYPES,
    AgentCall,
    FunctionTool,
    StopAtTools,
    ToolUseBehavior,
    default_tool_error_function,
)

OtherT = TypeVar("OtherT")


def _ask(input: str) -> str:
    """Ask the agent.

    Args:
        input: What the agent is asked to do.
    """
    return input


_NO_SETTINGS = ModelSettings()


def _output_type(_agent: Agent[Any, Any], attribute: attrs.Attribute[Any], value: object) -> None:
    try:
        output_schema(value)
    except UserError as error:
        raise UserTypeError(f"Agent.{attribute.name}: {error}") from error


@lru_cache(256)
def _schema_of_asking(name: str) -> FunctionSchema:
    return function_schema(_ask, name=name, context_types=CONTEXT_TYPES)


def implicit_settings(model: object) -> ModelSettings:
    """Return the settings that come with *model*; a model string has none of its own."""
    if model is None or isinstance(model, str):
        return _NO_SETTINGS
    return model.default_settings if isinstance(model, Model) else _NO_SETTINGS


def settings_for(agent: Agent[Any, Any], model: object) -> ModelSettings:
    """Return *agent*'s settings for *model*: the model's defaults where the agent only has its own model's."""
    own = agent.model_settings
    return implicit_settings(model) if own == implicit_settings(agent.model) else own


class AgentOptions(TypedDict, total=False):
    """The options of `Agent`, which says what they mean. Those left out have its defaults.

    `tools` and `output_type` aren't among them: the agent's own type follows from these.
    """

    instructions: str | Callback | None
    handoff_description: str | None
    model: str | Model | None
    model_settings: ModelSettings
    handoffs: Sequence[Agent[Any, Any] | Handoff]
    input_guardrails: Sequence[InputGuardrail]
    output_guardrails: Sequence[OutputGuardrail]
    hooks: AgentHooks | None
    tool_use_behavior: ToolUseBehavior
    reset_tool_choice: bool
    tool_execution: Literal["concurrent", "sequential"]


@takes_options("Agent(…, OPTION=…)")
@attrs.define(eq=False, repr=False, init=False)
class Agent(Generic[ContextT, OutputT]):
    """An agent. An identity object: two agents are equal only if they are one.

    Sequences are held by reference: what is appended to `tools` shows at the next turn, and `clone` shares them.

    Attributes:
        name: Names the agent in logs and to other agents.
        instructions: The system prompt, or a callable of `(ctx, agent)` asked every turn.
        model: A model, or a model string such as `"openai-chat:NAME"` or `"local:"`.
        model_settings: How to ask it; the model's own defaults if not given.
        tools: What the model may call.
        handoff_description: Tells other agents' models what this one is for.
        handoffs: Agents, or `Handoff`s, the model may give the conversation to.
        input_guardrails: Judge the input of a run that starts with this agent.
        output_guardrails: Judge the final output, when this agent makes it.
        output_type: The type of the final output; None or `str` is text. `OutputType(type, strict=False)` asks the
            model without a strict schema.
        hooks: Called while this agent is at work.
        reset_tool_choice: Whether a demanded tool choice is dropped once this agent has used a tool.
        tool_use_behavior: What follows tool calls: ask the model again, finish with the first call's output
            (`"stop_on_first_tool"`), finish at certain tools (`StopAtTools`), or as a callable of `(ctx, results)`
            says (`ToolsToFinalOutput`).
        tool_execution: `"concurrent"`, or `"sequential"` for one call at a time in model order.
    """

    name: str = attrs.field(validator=FIELDS.words())
    instructions: str | Callback | None = attrs.field(
        default=None,
        kw_only=True,
        validator=optional(FIELDS.needs("text or a callable is needed", is_a(str, Callable))),
    )
    handoff_description: str | None = attrs.field(default=None, kw_only=True, validator=optional(FIELDS.text()))
    model: str | Model | None = attrs.field(
        default=None, kw_only=True, validator=optional(FIELDS.needs("a model or its name is needed", is_a(str, Model)))
    )
    model_settings: ModelSettings = attrs.field(
        default=attrs.Factory(lambda self: implicit_settings(self.model), takes_self=True),
        kw_only=True,
        validator=FIELDS.a(ModelSettings),
    )
    tools: Sequence[FunctionTool[ContextT]] = attrs.field(
        factory=list, kw_only=True, validator=FIELDS.each("a tool (made by @tool)", is_a(FunctionTool))
    )
    handoffs: Sequence[Agent[Any, Any] | Handoff] = attrs.field(
        factory=list,
        kw_only=True,
        validator=FIELDS.each("an agent or a handoff", fits(lambda member: isinstance(member, Agent | Handoff))),
    )
    input_guardrails: Sequence[InputGuardrail] = attrs.field(
        factory=list,
        kw_only=True,
        validator=FIELDS.each("an input guardrail (made by @input_guardrail)", is_a(InputGuardrail)),
    )
    output_guardrails: Sequence[OutputGuardrail] = attrs.field(
        factory=list,
        kw_only=True,
        validator=FIELDS.each("an output guardrail (made by @output_guardrail)", is_a(OutputGuardrail)),
    )
    output_type: Any = attrs.field(default=None, kw_only=True, validator=_output_type)
    hooks: AgentHooks | None = attrs.field(
        default=None, kw_only=True, validator=optional(FIELDS.needs("AgentHooks are needed", is_a(AgentHooks)))
    )
    tool_use_behavior: ToolUseBehavior = attrs.field(
        default="run_llm_again",
        kw_only=True,
        validator=FIELDS.needs(
            "'run_llm_again', 'stop_on_first_tool', StopAtTools or a callable is needed",
            either(is_a(StopAtTools, Callable), in_(("run_llm_again", "stop_on_first_tool"))),
        ),
    )
    reset_tool_choice: bool = attrs.field(default=True, kw_only=True, validator=FIELDS.flag())
    tool_execution: Literal["concurrent", "sequential"] = attrs.field(
        default="concurrent", kw_only=True, validator=FIELDS.one_of("concurrent", "sequential")
    )

    _typed: tuple[Any, TypedOutput | None] | None = attrs.field(default=None, init=False)

    if TYPE_CHECKING:
        # What attrs makes of the fields, by the agent's type. Its context is that of its tools, of which those that ask
        # for none serve any. Its output is text, or of the type given; one that is no class (a union, a `Literal`) is
        # known from a declaration alone: `agent: Agent[App, int | str] = Agent("x", output_type=int | str)`.
        @overload
        def __init__(
            self: Agent[Any, str], name: str, *, output_type: None = None, **options: Unpack[AgentOptions]
        ) -> None: ...
        @overload
        def __init__(
            self: Agent[ContextT, str],  # pyright: ignore[reportInvalidTypeVarUse]  # `Agent[App, str](tools=…)` needs it
            name: str,
            *,
            tools: Sequence[FunctionTool[ContextT] | FunctionTool[object]],
            output_type: None = None,
            **options: Unpack[AgentOptions],
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            *,
            tools: Sequence[FunctionTool[ContextT] | FunctionTool[object]] = ...,
            output_type: type[OutputT] | OutputType[OutputT],
            **options: Unpack[AgentOptions],
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            *,
            tools: Sequence[FunctionTool[ContextT] | FunctionTool[object]] = ...,
            output_type: object,
            **options: Unpack[AgentOptions],
        ) -> None: ...
        def __init__(self, name: str, **options: Any) -> None: ...

    def __repr__(self) -> str:
        return f"<Agent {self.name!r}>"

    def typed_output(self) -> TypedOutput | None:
        """Return how the final output is asked for and read; None for text. Made once for each `output_type`."""
        if self._typed is None or self._typed[0] is not self.output_type:
            self._typed = (self.output_type, output_schema(self.output_type))
        return self._typed[1]

    @overload
    def clone(self, *, output_type: type[OtherT] | OutputType[OtherT], **changes: Any) -> Agent[ContextT, OtherT]: ...
    @overload
    def clone(self, **changes: Any) -> Agent[ContextT, OutputT]: ...
    def clone(self, **changes: Any) -> Agent[Any, Any]:
        """Return a shallow copy with *changes*; members not given are the same objects.

        With another model, settings that still equal the old model's defaults become the new one's; settings made by
        hand stay.

        Raises:
            UserTypeError: for a field there is none of.
        """
        unknown = set(changes) - {field.name for field in attrs.fields(Agent) if field.init}
        if unknown:
            raise UserTypeError(f"Agent.clone: no field {', '.join(sorted(unknown))}")
        if "model" in changes and "model_settings" not in changes:
            changes["model_settings"] = settings_for(self, changes["model"])
        agent: Any = self  # mypy takes a class whose constructor is overloaded for none of attrs
        return attrs.evolve(agent, **changes)

    def as_tool(
        self,
        tool_name: str | None = None,
        tool_description: str | None = None,
        *,
        parameters: Any = None,
        input_builder: Callback | None = None,
        custom_output_extractor: Callback | None = None,
        on_stream: Callback | None = None,
        run_config: RunConfig | None = None,
        max_turns: int | None = 10,
        session: Session | None = None,
        needs_approval: bool | Callback = False,
        is_enabled: bool | Callback = True,
        failure_error_function: Callback | None = default_tool_error_function,
        tool_input_guardrails: Sequence[ToolInputGuardrail] = (),
        tool_output_guardrails: Sequence[ToolOutputGuardrail] = (),
        timeout: float | None = None,
        timeout_behavior: Literal["error_as_result", "raise_exception"] = "error_as_result",
        timeout_error_function: Callback | None = None,
        secret: Sequence[str] = (),
        secret_output: bool = False,
    ) -> FunctionTool[ContextT]:
        """Return a tool that runs this agent in a nested run of the same log, and gives its final output.

        The nested run shares the application object, the usage and the budget, has its own turns and its own call
        identities, and ends with its call.

        Args:
            tool_name: What the model calls; the agent's name in snake case if not given.
            tool_description: What the model is told.
            parameters: The type of a structured input; without it the one argument is `input: str`.
            input_builder: `(value)` gives the nested run's input (text or items) for a structured one; its JSON if not
                given.
            custom_output_extractor: `(RunResult)` gives the tool's value in place of the final output.
            on_stream: Called with every event of the nested run, in order; all are delivered before the call ends. A
                slow one delays nobody else; an error of its is logged.
            run_config: The nested run's configuration; the outer run's if not given. Its `limits` bound what the nested
                run may use, beside those of the outer run, which go on for the whole. It can't have `instruments`:
                those of the outer run see nested records by their `path`. `effects` are always the outer run's.
            max_turns: Turns of the nested run.
            session: A session of the nested run.
            needs_approval, is_enabled, failure_error_function, tool_input_guardrails, tool_output_guardrails, timeout,
                timeout_behavior, timeout_error_function, secret_output: As for any tool.
            secret: As for any tool; all of the nested run's input is secret then. What its model makes of it is not:
                where that may repeat it, its tools' arguments and the output (*secret_output*) have to be marked too.

        Raises:
            UserError: *run_config* has instruments, or an argument is not what it must be.
        """
        check_count("max_turns", max_turns)
        check("tool_name", optional(NAMES.text()), tool_name)
        check("tool_description", optional(NAMES.text()), tool_description)
        if run_config is not None and check_run_config(run_config).instruments:
            raise UserError(
                "as_tool: the nested run's configuration can't have instruments. "
                "Give them to the outer run: they see nested records by their `path`."
            )
        name = tool_name or snake_case(self.name)
        schema = _schema_of_asking(name)
        try:
            typed = None if parameters is None else typed_output(parameters, what=f"Arguments of tool {name}")
        except UserError as error:
            raise UserTypeError(f"parameters of tool {name!r}: {error}") from error
        return FunctionTool(
            name=name,
            description=tool_description if tool_description is not None else f"Ask the agent {self.name}.",
            params_json_schema=schema.params_json_schema if typed is None else typed.schema.schema,
            strict_mode=typed is None or typed.schema.strict,
            body=AgentCall(
                agent=self,
                schema=schema,
                typed=typed,
                input_builder=input_builder,
                max_turns=max_turns,
                run_config=run_config,
                session=session,
                on_stream=on_stream,
                custom_output_extractor=custom_output_extractor,
            ),
            needs_approval=needs_approval,
            is_enabled=is_enabled,
            failure_error_function=failure_error_function,
            tool_input_guardrails=tool_input_guardrails,
            tool_output_guardrails=tool_output_guardrails,
            timeout=timeout,
            timeout_behavior=timeout_behavior,
            timeout_error_function=timeout_error_function,
            secret=secret,
            secret_output=secret_output,
        )
