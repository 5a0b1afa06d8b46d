"""How to run, for one run and the runs nested in it, and what the callbacks of a configuration are given.

Stands above what a configuration holds (models, guardrails, policies, conditions, limits), and below agents, since an
agent that is made a tool may have one. Settings that know nothing of those are in `settings`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs

from agentloop._common.checks import FIELDS, NAMES, fits, has, is_a, optional
from agentloop._common.errors import RunProgress, UserTypeError
from agentloop._common.misplaced import takes_options
from agentloop.abc import Effects, Instrument, Model, ModelProvider, OutputStore
from agentloop.budget import Amount, UsageLimits
from agentloop.conditions import Condition, PredicateFunction, as_condition
from agentloop.guardrails import InputGuardrail, OutputGuardrail
from agentloop.handoffs import HandoffInputData, nesting
from agentloop.items import Item
from agentloop.policies import Policy
from agentloop.settings import JsonLimits, ModelSettings, SessionSettings, ToolExecution
from agentloop.usage import RequestUsage


@attrs.frozen(kw_only=True)
class ToolErrorArgs:
    """What a `tool_error_formatter` is given: which text is wanted, for which call, and the text it would replace."""

    kind: Literal["tool_not_found", "approval_rejected"]
    tool: str
    call_id: str
    error: BaseException | None
    default: str


@attrs.frozen(kw_only=True)
class ModelInputData:
    """What a `call_model_input_filter` is given and gives back: items and instructions for this one model call."""

    input: tuple[Item, ...]
    instructions: str | None
    agent: Any = None
    context: Any = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class ErrorHandlerData:
    """What an error handler is given: the error, and what the run had achieved."""

    error: Exception
    run_data: RunProgress
    context: Any = attrs.field(default=None, repr=False)


@attrs.frozen
class ErrorHandlerResult:
    """The final output an error handler gives in place of its error, and whether the history keeps it."""

    final_output: Any
    include_in_history: bool = True


ErrorHandler: TypeAlias = Callable[[ErrorHandlerData], Any]
"""Gives a final output, an `ErrorHandlerResult` or None, each at once or awaited."""
ToolErrorFormatter: TypeAlias = Callable[[ToolErrorArgs], str | Awaitable[str | None] | None]
HandoffInputFilter: TypeAlias = Callable[[HandoffInputData], HandoffInputData | Awaitable[HandoffInputData]]
ModelInputFilter: TypeAlias = Callable[[ModelInputData], ModelInputData | Awaitable[ModelInputData]]
SessionInputCallback: TypeAlias = Callable[[list[Item], list[Item]], Sequence[Item] | Awaitable[Sequence[Item]]]
Price: TypeAlias = Callable[[str, RequestUsage], Amount]

_HEARS = tuple(name for name in vars(Instrument) if name.startswith("on_"))


def _is_instrument(value: object) -> bool:
    """Tell whether *value* has a method of an instrument's: who has only some hears only of these."""
    return not isinstance(value, type) and any(callable(getattr(value, name, None)) for name in _HEARS)


def _condition(_config: RunConfig, attribute: attrs.Attribute[Any], value: Any) -> None:
    try:
        as_condition(value)
    except UserTypeError as error:
        raise UserTypeError(f"RunConfig.{attribute.name}: {error}") from None


@takes_options("Runner.run(…, run_config=RunConfig(OPTION=…))")
@attrs.frozen(kw_only=True)
class RunConfig:
    """How to run, for one run and the runs nested in it.

    Attributes:
        model: Model or model string used in place of the agents' own.
        model_settings: Laid over the agents' own.
        tool_execution: How tool calls are executed.
        timeout: Seconds for the run (each entry of it); past it the run ends with `RunTimeout`.
        tool_error_formatter: `(ToolErrorArgs) -> str | None` words what the model is told; None keeps the default.
        tool_not_found_behavior: Whether a call of an unknown tool ends the run or is answered.
        tool_name_collision_policy: Whether two enabled tools of one name warn (the last wins) or raise `UserError`.
        output_store: Takes outputs past `max_output_chars`: `put(call, data) -> ref`.
        limits: `UsageLimits`: what the run may use in all, nested runs included.
        price: `(model name, RequestUsage) -> Decimal`, what one request cost.
        stop_when: A condition, or a predicate of the run's context, looked at after every turn.
        model_provider: A `ModelProvider` that knows what model strings mean, in place of the built-in ones.
        input_guardrails, output_guardrails: Judge beside the agents' own, first in order.
        handoff_input_filter: Filters every handoff that has no filter of its own.
        nest_handoff_history: Show the next agent a summary of what came before, or do so between these two lines.
        call_model_input_filter: `(ModelInputData) -> ModelInputData`, decides what one model call is shown.
        session_input_callback: `(history, new) -> items`, merges a session's items with the run's input.
        session_settings: How the session is used.
        policies: Asked about every call before it may start; the strictest answer holds.
        loop_detection: Equal calls with equal results, in a row, before the model is warned; the next one ends the run.
        hold_text_until_guarded: Hold back text deltas until the input guardrails have settled.
        json_limits: Bounds on model-made JSON.
        stream_buffer: Unread events above which a streamed run waits for its consumer.
        max_depth: How deep agent tools may nest.
        workflow_name, group_id, trace_metadata: Of the trace that instruments are told of.
        trace_include_sensitive_data: Whether spans hold arguments, outputs and messages of errors.
        tracing_disabled: Whether no spans are made.
        effects: The door of side effects; None is the live one.
        instruments: Watch the run.
    """

    model: str | Model | None = attrs.field(
        default=None, validator=optional(FIELDS.needs("a Model or a model string is needed", is_a(str, Model)))
    )
    model_settings: ModelSettings | None = attrs.field(default=None, validator=optional(FIELDS.a(ModelSettings)))
    tool_execution: ToolExecution = attrs.field(factory=ToolExecution, validator=FIELDS.a(ToolExecution))
    timeout: float | None = attrs.field(default=None, validator=optional(NAMES.seconds()))
    tool_error_formatter: ToolErrorFormatter | None = attrs.field(default=None, validator=optional(FIELDS.function()))
    tool_not_found_behavior: Literal["raise_error", "return_error_to_model"] = attrs.field(
        default="raise_error", validator=FIELDS.one_of("raise_error", "return_error_to_model")
    )
    tool_name_collision_policy: Literal["warn", "error"] = attrs.field(
        default="warn", validator=FIELDS.one_of("warn", "error")
    )
    output_store: OutputStore | None = attrs.field(
        default=None, validator=optional(FIELDS.needs("a store (with `put`) is needed", has("put")))
    )
    limits: UsageLimits | None = attrs.field(default=None, validator=optional(FIELDS.a(UsageLimits)))
    price: Price | None = attrs.field(default=None, validator=optional(FIELDS.function()))
    stop_when: Condition | PredicateFunction | None = attrs.field(default=None, validator=optional(_condition))
    model_provider: ModelProvider | None = attrs.field(
        default=None, validator=optional(FIELDS.needs("a ModelProvider (with `get_model`) is needed", has("get_model")))
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
    stream_buffer: int = attrs.field(default=256, validator=optional(NAMES.count()))
    max_depth: int = attrs.field(default=16, validator=NAMES.count())
    workflow_name: str = attrs.field(default="Agent workflow", validator=FIELDS.text())
    group_id: str | None = attrs.field(default=None, validator=optional(FIELDS.text()))
    trace_metadata: Mapping[str, Any] | None = attrs.field(default=None, validator=optional(FIELDS.mapping()))
    trace_include_sensitive_data: bool = attrs.field(default=True, validator=FIELDS.flag())
    tracing_disabled: bool = attrs.field(default=False, validator=FIELDS.flag())
    effects: Effects | None = attrs.field(
        default=None, validator=optional(FIELDS.needs("Effects (with `perform`) is needed", has("perform")))
    )
    instruments: Sequence[Instrument] = attrs.field(
        default=(), validator=FIELDS.each("an Instrument", fits(_is_instrument))
    )


def check_run_config(config: object) -> RunConfig:
    """Return *config*, a `RunConfig` whose sequences hold what they are for: they may have changed since it was made.

    Raises:
        UserTypeError: naming the field.
    """
    if not isinstance(config, RunConfig):
        raise UserTypeError(f"run_config: a RunConfig is needed, not {config!r}")
    fields: Any = attrs.fields(RunConfig)
    for field in (fields.input_guardrails, fields.output_guardrails, fields.policies, fields.instruments):
        field.validator(config, field, getattr(config, field.name))
    return config
