"""Agents: a model with instructions, tools, handoffs and guardrails. Definitions only.

Nothing here runs: the engine interprets an agent, and one agent may take part in many runs at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypedDict, TypeVar, Unpack, overload

import attrs
from attrs.validators import in_

from agentloop._common.checks import FIELDS, NAMES, check, check_count, either, fits, has, is_a, is_texts, optional
from agentloop._common.errors import UserError, UserTypeError
from agentloop._common.misplaced import function_takes_options, refuse_attribute, takes_options
from agentloop._common.naming import shorten_name, snake_case
from agentloop._common.type_parameters import ContextT, OutputT
from agentloop.abc import Model, Session
from agentloop.config import RunConfig, check_context_policy, check_run_config
from agentloop.config.hooks import AgentHooks, RunHooks
from agentloop.config.policies import Policy
from agentloop.context import Callback
from agentloop.guardrails import InputGuardrail, OutputGuardrail
from agentloop.handoffs import Handoff, target_of
from agentloop.settings import Conversation, ModelSettings, Prompt
from agentloop.tools import (
    CONTEXT_TYPES,
    AgentCall,
    FunctionTool,
    HostedTool,
    StopAtTools,
    ToolOptions,
    ToolSource,
    ToolUseBehavior,
    source_name,
)

if TYPE_CHECKING:
    from agentloop._schema.function_schema import FunctionSchema
    from agentloop._schema.output_schema import OutputType, TypedOutput
    from agentloop.config._bundling import Bundle
    from agentloop.window.policy import ContextPolicy

OtherT = TypeVar("OtherT")


def _ask(input: str) -> str:  # its docstring is data: the schema that models see is made from it
    """Ask the agent.

    Args:
        input: What the agent is asked to do.
    """
    return input


_NO_SETTINGS = ModelSettings()


_INSTRUCTIONS = FIELDS.needs("expected text, texts or a callable", either(is_a(str, Callable), fits(is_texts)))


def _output_type(_agent: Agent[Any, Any], attribute: attrs.Attribute[Any], value: object) -> None:
    try:
        _read_output_type(value)
    except UserError as error:
        raise UserTypeError(f"Agent.{attribute.name}: {error}") from error


def _read_output_type(output_type: object) -> TypedOutput | None:
    if output_type is None or output_type is str:  # text, which needs no schema
        return None
    from agentloop._schema.output_schema import output_schema

    return output_schema(output_type)


def _read_parameters(parameters: object, name: str) -> TypedOutput:
    from agentloop._schema.output_schema import typed_output

    return typed_output(parameters, what=f"Arguments of tool {name}")


@lru_cache(256)
def _make_tool_schema(name: str) -> FunctionSchema:
    from agentloop._schema.function_schema import function_schema

    return function_schema(_ask, name=name, context_types=CONTEXT_TYPES)


def _check_bundles(agent: Agent[Any, Any], attribute: attrs.Attribute[Any], value: object) -> None:
    if value != ():
        from agentloop.config._bundling import BUNDLES  # few agents have bundles

        BUNDLES(agent, attribute, value)


def implicit_settings(model: object) -> ModelSettings:
    """Return the default settings of *model*; a model string has none."""
    if model is None or isinstance(model, str):
        return _NO_SETTINGS
    return model.default_settings if isinstance(model, Model) else _NO_SETTINGS


def settings_for(agent: Agent[Any, Any], model: object) -> ModelSettings:
    """Return *agent*'s settings for *model*: its own, or *model*'s defaults if it has only those of its own model."""
    return choose_settings(agent.model_settings, agent.model, model)


def choose_settings(own: ModelSettings, of: object, model: object) -> ModelSettings:
    """Return the settings *own* of an agent with the model *of*, or the defaults of *model* if it has those of *of*."""
    return implicit_settings(model) if own == implicit_settings(of) else own


class AgentOptions(TypedDict, total=False):
    """The options of `Agent`, documented there. An option left out has the default of `Agent`.

    `tools` and `output_type` are parameters of their own, because the agent's type follows from them.
    """

    instructions: str | Sequence[str] | Callback | None
    prompt: Prompt | Callback | None
    handoff_description: str | None
    model: str | Model | None
    model_settings: ModelSettings
    handoffs: Sequence[Agent[Any, Any] | Handoff]
    input_guardrails: Sequence[InputGuardrail]
    output_guardrails: Sequence[OutputGuardrail]
    output_retries: int
    output_validator: Callback | None
    hooks: AgentHooks | None
    tool_use_behavior: ToolUseBehavior
    reset_tool_choice: bool
    tool_execution: Literal["concurrent", "sequential"]
    toolsets: Sequence[ToolSource]
    policies: Sequence[Policy]
    context: ContextPolicy | None
    bundles: Sequence[Bundle]


_USUAL_ELSEWHERE = {
    **{name: f"Runner.{name}(agent, …)" for name in ("run", "run_sync")},
    **dict.fromkeys(("run_stream", "iter", "stream", "astream"), "Runner.run_streamed(agent, …)"),
    **dict.fromkeys(("ainvoke", "arun"), "Runner.run(agent, …)"),
    "invoke": "Runner.run_sync(agent, …)",
    **dict.fromkeys(("tool", "tool_plain"), "the decorator agentloop.tool, and Agent(tools=[…])"),
    "system_prompt": "instructions",
}
"""Attributes of other libraries' agents: what is here in place of them."""


@takes_options("Agent(…, OPTION=…)")
@attrs.define(eq=False, repr=False, init=False)
class Agent(Generic[ContextT, OutputT]):
    """An agent: a definition that the engine reads and never changes.

    An agent equals only itself (identity). It holds sequences by reference: a tool appended to `tools` is offered from
    the next turn on, and `clone` shares the sequences.

    Attributes:
        name: The name of the agent in logs and for other agents.
        instructions: The system prompt; in several texts, where a provider may keep the first ones (`CachePolicy`); or
            a callable of `(ctx, agent)`, called every turn, that returns either.
        prompt: A prompt that the provider has stored, used with the instructions or in place of them; or a callable of
            `(ctx, agent)`, called every turn, that returns one or None.
        model: A model, or a model string such as `"openai-chat:NAME"` or `"local:"`.
        model_settings: Settings of the model's requests; the model's own defaults if not given.
        tools: The tools that the model may call: functions, and tools that its provider runs itself (`HostedTool`).
        handoff_description: The purpose of this agent, for the models of other agents.
        handoffs: Agents, or `Handoff`s, to which the model may give the conversation.
        input_guardrails: Checks of the input of a run that starts with this agent.
        output_guardrails: Checks of the final output, if this agent makes it.
        output_type: The type of the final output; None or `str` is text. With `OutputType(type, strict=False)` the
            schema sent to the model is not strict.
        output_retries: The number of times in a row that the model is asked, each time in its own turn, to correct
            an answer that doesn't fit `output_type`, or for which an output guardrail returns `AskAgain`: a user
            message lists the faults. After that the error handler for `"invalid_final_output"` or `ModelBehaviorError`
            decides, or the guardrail's tripwire. 0: never asked.
        output_validator: `(ctx, output) -> None | AskAgain`: a check of the final output, sync or async, that accepts
            it or says what is wrong. It is the last of the output guardrails, under the name `"output_validator"`.
        hooks: Methods that the run calls while this agent is active.
        reset_tool_choice: True if a demanded tool choice is dropped once this agent has used a tool.
        tool_use_behavior: The step after tool calls: call the model again (`"run_llm_again"`), finish with the output
            of the first call (`"stop_on_first_tool"`), finish at certain tools (`StopAtTools`), or a callable of
            `(ctx, results)` that decides and returns `ToolsToFinalOutput`.
        tool_execution: `"concurrent"`, or `"sequential"` for one call at a time in model order.
        toolsets: Sources of further tools, asked every turn: `ToolSource`s, such as the servers of `agentloop.mcp`.
        policies: Policies that decide on every call of this agent, beside those of `RunConfig`; the strictest decision
            holds.
        context: What becomes of a history that grows too long for the model, where `RunConfig` doesn't say it.
        bundles: `Bundle`s, such as those of `agentloop.bundles`. Their parts become parts of the agent when it is made:
            `tools`, `instructions` and the others have them, and the sequences are then the agent's own lists.

    Example:
        from agentloop import Agent, Runner, tool
        from agentloop.testing import ScriptedModel, call, say

        @tool
        def add(a: int, b: int) -> int:
            "Add two numbers."
            return a + b

        model = ScriptedModel([call("add", {"a": 2, "b": 3}), say("It is 5.")])
        agent = Agent("calculator", model=model, tools=[add])
        print(Runner.run_sync(agent, "What is 2 + 3?").final_output)  # It is 5.
    """

    name: str = attrs.field(validator=FIELDS.words())
    instructions: str | Sequence[str] | Callback | None = attrs.field(
        default=None,
        kw_only=True,
        validator=optional(_INSTRUCTIONS),
    )
    prompt: Prompt | Callback | None = attrs.field(
        default=None,
        kw_only=True,
        validator=optional(FIELDS.needs("expected Prompt(…) or a callable", is_a(Prompt, Callable))),
    )
    handoff_description: str | None = attrs.field(default=None, kw_only=True, validator=optional(FIELDS.text()))
    model: str | Model | None = attrs.field(
        default=None, kw_only=True, validator=optional(FIELDS.needs("expected a model or its name", is_a(str, Model)))
    )
    model_settings: ModelSettings = attrs.field(
        default=attrs.Factory(lambda self: implicit_settings(self.model), takes_self=True),
        kw_only=True,
        validator=FIELDS.a(ModelSettings),
    )
    tools: Sequence[FunctionTool[ContextT] | HostedTool] = attrs.field(
        factory=list,
        kw_only=True,
        validator=FIELDS.each(
            "a tool (made by @tool; agentloop.interop makes one of a tool of LangChain or pydantic-ai)",
            is_a(FunctionTool, HostedTool),
        ),
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
    output_retries: int = attrs.field(default=1, kw_only=True, validator=FIELDS.count(0))
    output_validator: Callback | None = attrs.field(default=None, kw_only=True, validator=optional(FIELDS.function()))
    hooks: AgentHooks | None = attrs.field(
        default=None, kw_only=True, validator=optional(FIELDS.needs("expected AgentHooks", is_a(AgentHooks)))
    )
    tool_use_behavior: ToolUseBehavior = attrs.field(
        default="run_llm_again",
        kw_only=True,
        validator=FIELDS.needs(
            "expected 'run_llm_again', 'stop_on_first_tool', StopAtTools([…]) or a callable",
            either(is_a(StopAtTools, Callable), in_(("run_llm_again", "stop_on_first_tool"))),
        ),
    )
    reset_tool_choice: bool = attrs.field(default=True, kw_only=True, validator=FIELDS.flag())
    tool_execution: Literal["concurrent", "sequential"] = attrs.field(
        default="concurrent", kw_only=True, validator=FIELDS.one_of("concurrent", "sequential")
    )

    toolsets: Sequence[ToolSource] = attrs.field(
        default=(),
        kw_only=True,
        validator=FIELDS.each("a ToolSource (with `tools`)", has("tools")),
    )
    policies: Sequence[Policy] = attrs.field(
        default=(), kw_only=True, validator=FIELDS.each("a Policy (with `decide`)", is_a(Policy))
    )
    context: ContextPolicy | None = attrs.field(default=None, kw_only=True, validator=optional(check_context_policy))
    bundles: Sequence[Bundle] = attrs.field(default=(), kw_only=True, validator=_check_bundles)

    _brought: dict[str, Any] | None = attrs.field(default=None, init=False)
    """Additions of the bundles: to each sequence, and of other fields the own value and the merged one."""
    _typed: tuple[Any, TypedOutput | None] | None = attrs.field(default=None, init=False)
    _prepared: tuple[tuple[object, ...], Any] | None = attrs.field(default=None, init=False)
    """The definitions that the engine resolved for an earlier turn, behind the objects that they were made of."""
    _described: tuple[tuple[object, ...], bytes] | None = attrs.field(default=None, init=False)
    """The description in the journal of an earlier run, behind the objects that it was made of."""

    if not TYPE_CHECKING:  # which know the default of the second parameter; Python knows it from 3.13 on

        def __class_getitem__(cls, parameters: Any) -> Any:
            """Return the agent class with type parameters; `Agent[Customer]` is `Agent[Customer, Any]`."""
            given = parameters if isinstance(parameters, tuple) else (parameters,)
            return super().__class_getitem__((*given, Any) if len(given) == 1 else parameters)

    if TYPE_CHECKING:
        # The constructor that attrs generates, written out to set the agent's type parameters. The context type is that
        # of the tools; a tool that takes no context fits any. The output type is text or the given type. A type that is
        # no class (a union, a `Literal`) must be declared: `agent: Agent[App, int | str] = Agent("x", output_type=int |
        # str)`.
        @overload
        def __init__(
            self: Agent[Any, str], name: str, *, output_type: None = None, **options: Unpack[AgentOptions]
        ) -> None: ...
        @overload
        def __init__(
            self: Agent[ContextT, str],  # pyright: ignore[reportInvalidTypeVarUse]  # `Agent[App, str](tools=…)` needs it
            name: str,
            *,
            tools: Sequence[FunctionTool[ContextT] | FunctionTool[object] | HostedTool],
            output_type: None = None,
            **options: Unpack[AgentOptions],
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            *,
            tools: Sequence[FunctionTool[ContextT] | FunctionTool[object] | HostedTool] = ...,
            output_type: type[OutputT] | OutputType[OutputT],
            **options: Unpack[AgentOptions],
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            *,
            tools: Sequence[FunctionTool[ContextT] | FunctionTool[object] | HostedTool] = ...,
            output_type: object,
            **options: Unpack[AgentOptions],
        ) -> None: ...
        def __init__(self, name: str, **options: Any) -> None: ...

    def __attrs_post_init__(self) -> None:
        if self.bundles:
            self._merge(tuple(self.bundles))

    def _merge(self, bundles: tuple[Bundle, ...]) -> None:
        """Make the parts of *bundles* parts of this agent; `_bundling` says in which order."""
        from agentloop.config import _bundling

        self.bundles = bundles
        self._brought = brought = _bundling.merge_sequences(bundles)
        for name, parts in brought.items():
            setattr(self, name, [*parts, *getattr(self, name)])
        usual = implicit_settings(self.model)
        explicit = self.model_settings != usual
        settings = _bundling.merge_settings(bundles, self.model_settings if explicit else ModelSettings())
        merged = {
            "instructions": _bundling.merge_instructions(bundles, self.instructions),
            "hooks": _bundling.merge_hooks(bundles, self.hooks),
            "context": _bundling.merge_context(bundles, self.context),
            "model_settings": settings if explicit else usual.resolve(settings),
        }
        for name, value in merged.items():
            brought[name] = (getattr(self, name), value)
            setattr(self, name, value)

    def describe(self) -> dict[str, Any]:
        """Return what the agent has, by the names of its fields: for its parts their names, as they are now.

        Of each bundle it says what it brings. Instructions that are asked each turn are `"asked"`. The result is JSON,
        for people and tests; its form may grow.

        Example:
            from agentloop import Agent, Bundle

            agent = Agent("a", instructions="Be brief.", bundles=[Bundle("manners", instructions="Be polite.")])
            print(agent.describe()["bundles"])  # {'manners': ['instructions']}
        """
        return {
            "name": self.name,
            "model": self.model if isinstance(self.model, str) or self.model is None else type(self.model).__name__,
            "instructions": "asked" if callable(self.instructions) else self.instructions,
            "model_settings": {
                field.name: value if isinstance(value, bool | int | float | str) else repr(value)
                for field in attrs.fields(ModelSettings)
                if (value := getattr(self.model_settings, field.name)) is not None
            },
            "tools": [tool.qualified_name if isinstance(tool, FunctionTool) else tool.kind for tool in self.tools],
            "toolsets": [source_name(source) for source in self.toolsets],
            "handoffs": [target_of(entry).agent.name for entry in self.handoffs],
            "input_guardrails": [guardrail.name for guardrail in self.input_guardrails],
            "output_guardrails": [guardrail.name for guardrail in self.output_guardrails],
            "policies": [type(policy).__name__ for policy in self.policies],
            "hooks": None if self.hooks is None else type(self.hooks).__name__,
            "context": None if self.context is None else repr(self.context),
            "bundles": {bundle.name: bundle.brings() for bundle in self.bundles},
        }

    def _own_parts(self) -> dict[str, Any]:
        """Return the fields that bundles have added to, as they are without the bundles."""
        own: dict[str, Any] = {}
        for name, brought in (self._brought or {}).items():
            current = getattr(self, name)
            if isinstance(brought, list):
                theirs = {id(part) for part in brought}
                own[name] = [part for part in current if id(part) not in theirs]
            else:
                own[name] = brought[0] if current is brought[1] else current
        return own

    def __repr__(self) -> str:
        return f"<Agent {self.name!r}>"

    @property
    def functions(self) -> list[FunctionTool[ContextT]]:
        """The tools that a run of this agent runs itself: `tools` without those of the provider."""
        return [tool for tool in self.tools if isinstance(tool, FunctionTool)]

    def _typed_output(self) -> TypedOutput | None:
        """Return the schema and parser of the final output; None for text. Made once for each `output_type`."""
        if self._typed is None or self._typed[0] is not self.output_type:
            self._typed = (self.output_type, _read_output_type(self.output_type))
        return self._typed[1]

    if not TYPE_CHECKING:  # else every name would be an attribute to a type checker

        def __getattr__(self, name: str) -> NoReturn:
            refuse_attribute(self, name, _USUAL_ELSEWHERE)

    @overload
    def clone(self, *, output_type: type[OtherT] | OutputType[OtherT], **changes: Any) -> Agent[ContextT, OtherT]: ...
    @overload
    def clone(self, **changes: Any) -> Agent[ContextT, OutputT]: ...
    def clone(self, **changes: Any) -> Agent[Any, Any]:
        """Return a shallow copy with *changes*; fields not given hold the same objects.

        Bundles are merged anew: *changes* are to be as given to `Agent`, without what the bundles bring.

        If *changes* has another model, settings that equal the old model's defaults become the new model's defaults;
        other settings stay.

        Raises:
            UserTypeError: if *changes* names a field that does not exist.

        Example:
            from agentloop import Agent

            polite = Agent("helper", instructions="Be polite.")
            brief = polite.clone(name="brief helper", instructions="Answer in one sentence.")
            print(brief.name)  # brief helper
        """
        unknown = set(changes) - {field.name for field in attrs.fields(Agent) if field.init}
        if unknown:
            raise UserTypeError(f"Agent.clone: no field {', '.join(sorted(unknown))}")
        own = self._own_parts()
        if "model" in changes and "model_settings" not in changes:
            given = own.get("model_settings", self.model_settings)
            changes["model_settings"] = choose_settings(given, self.model, changes["model"])
        changes = {**own, **changes}
        agent: Any = self  # mypy takes a class whose constructor is overloaded for none of attrs
        return attrs.evolve(agent, **changes)

    @function_takes_options("Agent.as_tool", options=ToolOptions)
    def as_tool(
        self,
        tool_name: str | None = None,
        tool_description: str | None = None,
        *,
        parameters: Any = None,
        include_input_schema: bool = False,
        input_builder: Callback | None = None,
        custom_output_extractor: Callback | None = None,
        on_stream: Callback | None = None,
        hooks: RunHooks | None = None,
        run_config: RunConfig | None = None,
        max_turns: int | None = 10,
        session: Session | None = None,
        conversation: Conversation | None = None,
        **options: Unpack[ToolOptions],
    ) -> FunctionTool[ContextT]:
        """Return a tool that runs this agent in a nested run of the same log and returns its final output.

        The nested run shares the application object, the usage and the budget. It has its own turns and call
        identities. It never outlives its call.

        Args:
            tool_name: The name of the tool for the model; the agent's name in snake case if not given.
            tool_description: The description of the tool for the model; "Ask the agent NAME." if not given.
            parameters: The type of a structured input; without it the one argument is `input: str`.
            include_input_schema: True to show the agent the JSON schema of *parameters*, after the JSON of its input.
            input_builder: `(value)` returns the nested run's input (text or items) for a structured *value*, or for the
                text without *parameters*; the input is the JSON of the value, or that text, if not given.
            custom_output_extractor: `(RunResult)` returns the tool's value in place of the final output.
            on_stream: A callable that receives every event of the nested run, in order, all of them before the call
                ends. While a slow one is 1,024 events behind, the nested run waits for it, and no other run; its errors
                are logged.
            hooks: Methods that the nested run calls and waits for. Those of the outer run aren't called for it.
            run_config: The nested run's configuration; the outer run's if not given. Its `limits` bound only the nested
                run; the limits of the outer run bind the nested run, too. It can't have `instruments`, because the
                instruments of the outer run see nested records by their `path`. `effects`, `owner`, `sandbox`,
                `stream_buffer` and `tracing` are always the outer run's.
            max_turns: Limit on the turns of the nested run; None = no limit.
            session: The session of the nested run.
            conversation: The conversation that the nested run's provider keeps, in place of a session.
            **options: `ToolOptions`, as for any tool. With *secret* arguments all of the nested run's input is secret.
                The text that its model writes is not: if it may repeat the secret, mark the arguments of its tools and
                the output (*secret_output*), too. *idle_timeout* is restarted by `ctx.report` of a body, and a nested
                run makes no report of its own, so give *timeout* here. *in_doubt* is rarely asked, because a
                nested run that was interrupted is resumed.

        Raises:
            UserError: if *run_config* has instruments, or an argument has a wrong type or value.

        Example:
            from agentloop import Agent, Runner
            from agentloop.testing import ScriptedModel, call, say

            translator = Agent("translator", model=ScriptedModel([say("Guten Tag")]))
            ask = translator.as_tool("translate", "Translate a text to German.")
            model = ScriptedModel([call("translate", {"input": "Good day"}), say("Done.")])
            agent = Agent("host", model=model, tools=[ask])
            print(Runner.run_sync(agent, "Greet them in German.").final_output)  # Done.
        """
        check_count("max_turns", max_turns)
        check("tool_name", optional(NAMES.text()), tool_name)
        check("tool_description", optional(NAMES.text()), tool_description)
        check("include_input_schema", NAMES.flag(), include_input_schema)
        check("conversation", optional(NAMES.a(Conversation)), conversation)
        check("hooks", optional(NAMES.needs("expected RunHooks", is_a(RunHooks))), hooks)
        run_config = None if run_config is None else check_run_config(run_config)
        if run_config is not None and run_config.instruments:
            raise UserError(
                "as_tool: the nested run's configuration can't have instruments. "
                "Give them to the outer run: they see nested records by their `path`."
            )
        if session is not None and conversation is not None:
            raise UserError("as_tool: a session and a conversation that the provider keeps can't be used together")
        if include_input_schema and (parameters is None or input_builder is not None):
            raise UserError(
                "as_tool: include_input_schema shows the schema of `parameters` after their JSON. It needs parameters, "
                "and no input_builder: that one writes the whole input"
            )
        name = tool_name or shorten_name(snake_case(self.name), self.name)
        schema = _make_tool_schema(name)
        try:
            typed = None if parameters is None else _read_parameters(parameters, name)
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
                conversation=conversation,
                hooks=hooks,
                shows_schema=include_input_schema,
                on_stream=on_stream,
                custom_output_extractor=custom_output_extractor,
            ),
            **options,
        )
