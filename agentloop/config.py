"""The configuration of a run and of the runs nested in it, and the arguments of its callbacks.

Imports the parts that a configuration holds (models, guardrails, policies, conditions, limits). May not import agents,
because an agent tool may have a configuration. Settings that need none of these parts are in `settings`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from agentloop._common.checks import FIELDS, NAMES, fits, has, is_a, optional, read_collision_word, read_not_found_word
from agentloop._common.errors import RunProgress, UserError, UserTypeError
from agentloop._common.misplaced import takes_options
from agentloop._common.values import ByFields, Value
from agentloop.abc import Effects, Instrument, Model, ModelProvider, OutputStore
from agentloop.budget import Amount, UsageLimits
from agentloop.context import SandboxProvider
from agentloop.guardrails import InputGuardrail, OutputGuardrail
from agentloop.handoffs import HandoffInputData, nesting
from agentloop.items import HostedToolCall, Item
from agentloop.policies import Policy
from agentloop.settings import JsonLimits, ModelSettings, SessionSettings, ToolExecution
from agentloop.usage import RequestUsage

if TYPE_CHECKING:
    from cattrs import BaseConverter

    from agentloop.conditions import Condition, PredicateFunction
    from agentloop.tools import ToolSource


class ToolErrorArgs(Value, frozen=True, kw_only=True):
    """The argument of a `tool_error_formatter`: the kind of text, the call, and the text it may replace."""

    kind: Literal["tool_not_found", "approval_rejected"]
    tool: str
    call_id: str
    error: BaseException | None
    default: str


class ModelInputData(Value, frozen=True, kw_only=True):
    """The argument and the result of a `call_model_input_filter`: items and instructions for this one model call.

    Example:
        from agentloop import Agent, ModelInputData, RunConfig, Runner
        from agentloop.testing import FunctionModel, say

        def latest_only(data):
            return ModelInputData(input=data.input[-1:], instructions=data.instructions)

        agent = Agent("a", model=FunctionModel(lambda request: say(str(len(request.items)))))
        config = RunConfig(call_model_input_filter=latest_only)
        print(Runner.run_sync(agent, "go", run_config=config).final_output)  # 1
    """

    _unshown = frozenset({"context"})

    input: tuple[Item, ...]
    instructions: str | None
    agent: Any = None
    context: Any = None


class ErrorHandlerData(Value, frozen=True, kw_only=True):
    """The argument of an error handler: the error, and the run's progress until then."""

    _unshown = frozenset({"context"})

    error: Exception
    run_data: RunProgress
    context: Any = None


class ErrorHandlerResult(Value, frozen=True):
    """An error handler's final output in place of the error; `include_in_history` keeps it in the history.

    Example:
        from agentloop import Agent, ErrorHandlerResult, Runner, tool
        from agentloop.testing import ScriptedModel, call

        @tool
        def look() -> str:
            "Look around."
            return "nothing"

        def give_up(data):
            return ErrorHandlerResult("I didn't find it.", include_in_history=False)

        agent = Agent("a", model=ScriptedModel([call("look")]), tools=[look])
        result = Runner.run_sync(agent, "go", max_turns=1, error_handlers={"max_turns": give_up})
        print(result.final_output)  # I didn't find it.
    """

    final_output: Any
    include_in_history: bool = True


ErrorHandler: TypeAlias = Callable[[ErrorHandlerData], Any]
"""A sync or async callable that returns a final output, an `ErrorHandlerResult` or None."""
ToolErrorFormatter: TypeAlias = Callable[[ToolErrorArgs], str | Awaitable[str | None] | None]
HandoffInputFilter: TypeAlias = Callable[[HandoffInputData], HandoffInputData | Awaitable[HandoffInputData]]
ModelInputFilter: TypeAlias = Callable[[ModelInputData], ModelInputData | Awaitable[ModelInputData]]
SessionInputCallback: TypeAlias = Callable[[list[Item], list[Item]], Sequence[Item] | Awaitable[Sequence[Item]]]
Price: TypeAlias = Callable[[str, RequestUsage], Amount]
HostedPrice: TypeAlias = Callable[[str, HostedToolCall], Amount]

_HEARS = tuple(name for name in vars(Instrument) if name.startswith("on_"))


def _is_instrument(value: object) -> bool:
    """Return True if *value* has at least one method of `Instrument`; an instrument without the others is valid."""
    return not isinstance(value, type) and any(callable(getattr(value, name, None)) for name in _HEARS)


def _condition(_config: RunConfig, attribute: attrs.Attribute[Any], value: Any) -> None:
    from agentloop.conditions import as_condition

    try:
        as_condition(value)
    except UserTypeError as error:
        raise UserTypeError(f"RunConfig.{attribute.name}: {error}") from None


@takes_options("Runner.run(…, run_config=RunConfig(OPTION=…))")
@attrs.frozen(kw_only=True, eq=False, repr=False)
class RunConfig(ByFields):
    """The configuration of one run and of the runs nested in it. A frozen value; the caller makes it.

    Attributes:
        model: A model or model string, used in place of the agents' own.
        model_settings: Settings that override the agents' own, one by one.
        tool_execution: Settings of the execution of tool calls.
        timeout: Seconds for each run segment (start or resume); after that the run ends with `RunTimeoutError`.
        tool_error_formatter: `(ToolErrorArgs) -> str | None`, the text for the model; None keeps the default.
        tool_not_found_behavior: The model calls a tool that doesn't exist: tell it, with the name that it may have
            meant (`"tell_model"`), or end the run (`"raise"`).
        tool_name_collision_policy: Two enabled tools have one name: tell the model of the last one and log a warning
            (`"tell_model"`), or raise `UserError` (`"raise"`). A tool of a source never wins over a tool of the agent:
            with `"tell_model"` it is left out. Two sources with tools of one name are a `UserError` either way.
        output_store: The store for outputs longer than `max_output_chars`: `put(call, data) -> ref`.
        limits: `UsageLimits` of the run, nested runs included.
        price: `(model name, RequestUsage) -> Decimal`, the cost of one request.
        hosted_price: `(model name, HostedToolCall) -> Decimal`, the provider's fee for one call of a tool that it runs
            itself. The call has been made when it is priced, so a limit refuses the next request and not the call.
        stop_when: A condition, or a predicate of the run's context, checked after every turn.
        model_provider: The `ModelProvider` that resolves model strings, in place of the built-in ones.
        input_guardrails, output_guardrails: Guardrails in addition to the agents' own, before these in order.
        handoff_input_filter: The filter of every handoff that has no filter of its own.
        nest_handoff_history: True shows the next agent a summary of the conversation so far; two lines of text are put
            before and after that summary.
        call_model_input_filter: `(ModelInputData) -> ModelInputData`, decides the input of one model call.
        session_input_callback: `(history, new) -> items`, merges a session's items with the run's input.
        session_settings: Settings of the session's use.
        policies: Policies that decide on every call before it may start; the strictest decision holds.
        loop_detection: The number of equal calls with equal results, in a row, after which the model receives a
            warning; the next one ends the run. None = no detection.
        hold_text_until_guarded: True if a streamed run shows nothing of the model's answer until the input guardrails
            have settled: no text, no reasoning, no event of the provider.
        json_limits: Bounds on JSON that a model writes, and whether JSON in strings is read.
        converter: The application's own cattrs converter. Its hooks hold for arguments, outputs, final outputs, inputs
            of handoffs and stored values. Register them before the first run; a type that it alone knows takes its
            schema from `JsonSchema`.
        stream_buffer: The number of unread events above which a streamed run waits for its consumer.
        max_depth: The maximum nesting depth of agent tools.
        workflow_name, group_id, trace_metadata: Fields of the trace that instruments receive.
        trace_include_sensitive_data: True if spans hold arguments, outputs and error messages.
        tracing_disabled: True if no spans are made.
        effects: The door of side effects; None is the live one.
        instruments: Instruments that observe the run.
        sandbox: The `SandboxProvider` of the run's sandbox, `RunContext.sandbox`. Runs nested in it share the sandbox.
            Every segment of the run needs it.
        toolsets: Sources of tools for every agent of the run, beside the agents' own.

    Example:
        from agentloop import Agent, RunConfig, Runner
        from agentloop.testing import ScriptedModel, say

        config = RunConfig(timeout=60, model=ScriptedModel([say("from the config")]))
        agent = Agent("a", model="openai:gpt-5")
        print(Runner.run_sync(agent, "go", run_config=config).final_output)  # from the config
    """

    model: str | Model | None = attrs.field(
        default=None, validator=optional(FIELDS.needs("expected a Model or a model string", is_a(str, Model)))
    )
    model_settings: ModelSettings | None = attrs.field(default=None, validator=optional(FIELDS.a(ModelSettings)))
    tool_execution: ToolExecution = attrs.field(factory=ToolExecution, validator=FIELDS.a(ToolExecution))
    timeout: float | None = attrs.field(default=None, validator=optional(NAMES.seconds()))
    tool_error_formatter: ToolErrorFormatter | None = attrs.field(default=None, validator=optional(FIELDS.function()))
    tool_not_found_behavior: Literal["tell_model", "raise"] = attrs.field(
        default="tell_model", converter=read_not_found_word, validator=FIELDS.one_of("tell_model", "raise")
    )
    tool_name_collision_policy: Literal["tell_model", "raise"] = attrs.field(
        default="tell_model", converter=read_collision_word, validator=FIELDS.one_of("tell_model", "raise")
    )
    output_store: OutputStore | None = attrs.field(
        default=None, validator=optional(FIELDS.needs("expected a store (with `put`)", has("put")))
    )
    limits: UsageLimits | None = attrs.field(default=None, validator=optional(FIELDS.a(UsageLimits)))
    price: Price | None = attrs.field(default=None, validator=optional(FIELDS.function()))
    hosted_price: HostedPrice | None = attrs.field(default=None, validator=optional(FIELDS.function()))
    stop_when: Condition | PredicateFunction | None = attrs.field(default=None, validator=optional(_condition))
    model_provider: ModelProvider | None = attrs.field(
        default=None, validator=optional(FIELDS.needs("expected a ModelProvider (with `get_model`)", has("get_model")))
    )
    input_guardrails: Sequence[InputGuardrail] = attrs.field(
        default=(), validator=FIELDS.each("an InputGuardrail", is_a(InputGuardrail))
    )
    output_guardrails: Sequence[OutputGuardrail] = attrs.field(
        default=(), validator=FIELDS.each("an OutputGuardrail", is_a(OutputGuardrail))
    )
    handoff_input_filter: HandoffInputFilter | None = attrs.field(default=None, validator=optional(FIELDS.function()))
    nest_handoff_history: bool | tuple[str, str] = attrs.field(default=False, validator=nesting(FIELDS))
    call_model_input_filter: ModelInputFilter | None = attrs.field(default=None, validator=optional(FIELDS.function()))
    session_input_callback: SessionInputCallback | None = attrs.field(
        default=None, validator=optional(FIELDS.function())
    )
    session_settings: SessionSettings | None = attrs.field(default=None, validator=optional(FIELDS.a(SessionSettings)))
    loop_detection: int | None = attrs.field(default=None, validator=optional(NAMES.count(2)))
    policies: Sequence[Policy] = attrs.field(
        default=(), validator=FIELDS.each("a Policy (with `decide`)", is_a(Policy))
    )
    hold_text_until_guarded: bool = attrs.field(default=False, validator=FIELDS.flag())
    json_limits: JsonLimits = attrs.field(factory=JsonLimits, validator=FIELDS.a(JsonLimits))
    converter: BaseConverter | None = attrs.field(
        default=None,
        validator=optional(FIELDS.needs("expected a cattrs converter", has("structure", "unstructure", "copy"))),
    )
    stream_buffer: int = attrs.field(default=256, validator=optional(NAMES.count()))
    max_depth: int = attrs.field(default=16, validator=NAMES.count())
    workflow_name: str = attrs.field(default="Agent workflow", validator=FIELDS.text())
    group_id: str | None = attrs.field(default=None, validator=optional(FIELDS.text()))
    trace_metadata: Mapping[str, Any] | None = attrs.field(default=None, validator=optional(FIELDS.mapping()))
    trace_include_sensitive_data: bool = attrs.field(default=True, validator=FIELDS.flag())
    tracing_disabled: bool = attrs.field(default=False, validator=FIELDS.flag())
    effects: Effects | None = attrs.field(
        default=None, validator=optional(FIELDS.needs("expected Effects (with `perform`)", has("perform")))
    )
    instruments: Sequence[Instrument] = attrs.field(
        default=(), validator=FIELDS.each("an Instrument", fits(_is_instrument))
    )
    sandbox: SandboxProvider | None = attrs.field(
        default=None,
        validator=optional(
            FIELDS.needs("expected a SandboxProvider (with `create` and `find`)", has("create", "find"))
        ),
    )
    toolsets: Sequence[ToolSource] = attrs.field(
        default=(), validator=FIELDS.each("a ToolSource (with `tools`)", has("tools"))
    )

    @property
    def is_priced(self) -> bool:
        """True if model requests, or calls of hosted tools, have a price."""
        return self.price is not None or self.hosted_price is not None


def check_run_config(config: object) -> RunConfig:
    """Return *config* if it is a `RunConfig` whose sequences have valid members.

    The sequences are checked again here, because the caller may have changed them since the configuration was made.

    Raises:
        UserTypeError: if a value is invalid; names the field.
    """
    if not isinstance(config, RunConfig):
        raise UserTypeError(f"run_config: expected a RunConfig, got {config!r}")
    if (
        config.input_guardrails or config.output_guardrails or config.policies or config.instruments or config.toolsets
    ):  # rarely: a run asks
        fields: Any = attrs.fields(RunConfig)
        guards = (fields.input_guardrails, fields.output_guardrails, fields.policies)
        for field in (*guards, fields.instruments, fields.toolsets):
            field.validator(config, field, getattr(config, field.name))
    return config


def check_priced(config: RunConfig, agents: Iterable[Any]) -> None:
    """Check that a limit on the cost can be reached: that something in the run has a price.

    Raises:
        UserError: if there is a limit, and neither a request nor a tool of *agents* has a price. (Of the tools of a
            source we know nothing before it is asked.)
    """
    if config.limits is None or config.limits.cost is None:
        return
    if config.is_priced or config.toolsets:
        return
    for agent in agents:
        if agent.toolsets or any(getattr(tool, "cost", None) is not None for tool in agent.tools):
            return
    raise UserError(
        f"UsageLimits(cost={config.limits.cost}) would never be reached, because nothing in the run has a price: give "
        "RunConfig(price=…), which prices model requests, or tool(cost=…)"
    )
