"""The configuration of a run and of the runs nested in it, and the arguments of its callbacks.

Beside it are the parts that a run and its agents are given as a whole: `hooks`, `policies`, `budget`, `_bundling`. This
module may not import agents, because an agent tool may have a configuration. Settings that need no other part are in
`settings`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from agentloop._common.checks import FIELDS, NAMES, fits, has, is_a, optional
from agentloop._common.errors import RunProgress, UserError, UserTypeError
from agentloop._common.misplaced import takes_options
from agentloop._common.values import ByFields, Value
from agentloop.abc import Effects, Instrument, Model, ModelProvider, OutputStore
from agentloop.config.budget import Amount, UsageLimits
from agentloop.config.policies import Policy
from agentloop.context import SandboxProvider
from agentloop.guardrails import BlockedMessage, BlockedOutputArgs, InputGuardrail, OutputGuardrail
from agentloop.handoffs import HandoffInputData, nesting
from agentloop.items import HostedToolCall, Item
from agentloop.limits import Capacity, Limit, Rate, TokenRate, ToolExecution
from agentloop.settings import JsonLimits, ModelSettings, SessionSettings, ToolErrorFormatter
from agentloop.usage import RequestUsage

if TYPE_CHECKING:
    from cattrs import BaseConverter

    from agentloop.config._bundling import Bundle
    from agentloop.config.conditions import Condition, PredicateFunction
    from agentloop.tools import ToolSource
    from agentloop.window.policy import ContextPolicy


class ModelInputData(Value, frozen=True, kw_only=True):
    """The argument and the result of a `call_model_input_filter`: items and instructions for this one model call.

    Example:
        from agentloop import Agent, HistorySettings, ModelInputData, RunConfig, Runner
        from agentloop.testing import FunctionModel, say

        def latest_only(data):
            return ModelInputData(input=data.input[-1:], instructions=data.instructions)

        agent = Agent("a", model=FunctionModel(lambda request: say(str(len(request.items)))))
        config = RunConfig(history=HistorySettings(call_model_input_filter=latest_only))
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
HandoffInputFilter: TypeAlias = Callable[[HandoffInputData], HandoffInputData | Awaitable[HandoffInputData]]
ModelInputFilter: TypeAlias = Callable[[ModelInputData], ModelInputData | Awaitable[ModelInputData]]
HistoryMapper: TypeAlias = Callable[[list[Item]], Sequence[Item] | Awaitable[Sequence[Item]]]
SessionInputCallback: TypeAlias = Callable[[list[Item], list[Item]], Sequence[Item] | Awaitable[Sequence[Item]]]
Price: TypeAlias = Callable[[str, RequestUsage], Amount]
HostedPrice: TypeAlias = Callable[[str, HostedToolCall], Amount]

logger: logging.Logger = logging.getLogger("agentloop")
_HEARS = tuple(name for name in vars(Instrument) if name.startswith("on_"))


def _is_instrument(value: object) -> bool:
    """Return True if *value* has at least one method of `Instrument`; an instrument without the others is valid."""
    return not isinstance(value, type) and any(callable(getattr(value, name, None)) for name in _HEARS)


def _to_limits(given: Any) -> Any:
    return (given,) if isinstance(given, Limit) else given


def _condition(_config: RunConfig, attribute: attrs.Attribute[Any], value: Any) -> None:
    from agentloop.config.conditions import as_condition

    try:
        as_condition(value)
    except UserTypeError as error:
        raise UserTypeError(f"RunConfig.{attribute.name}: {error}") from None


def _check_bundles(config: RunConfig, attribute: attrs.Attribute[Any], value: object) -> None:
    if value != ():
        from agentloop.config._bundling import BUNDLES_OF_RUN  # few configurations have bundles

        BUNDLES_OF_RUN(config, attribute, value)


def is_blocked_message(value: object) -> bool:
    """Tell whether *value* is a `BlockedMessage`: a text that isn't empty, or a function that isn't async."""
    return value != "" if isinstance(value, str) else callable(value) and not inspect.iscoroutinefunction(value)


def blocked_text(given: BlockedMessage | None, args: BlockedOutputArgs, *, redact: bool) -> str:
    """Return the text of *given*; the default one, with a line in the log, if its function raises or gives no text.

    With *redact* that line has no traceback, because an error may repeat a secret.
    """
    if given is None or isinstance(given, str):
        return given or args.default
    try:
        text: object = given(args)
    except Exception as error:
        said = f"output_guardrail_blocked_message raised {type(error).__name__}; the default text is used"
        logger.warning(said, exc_info=None if redact else error)
        return args.default
    if isinstance(text, str) and text:
        return text
    if inspect.iscoroutine(text):
        text.close()
    if text is not None:
        kind = "an empty text" if text == "" else f"a value of type {type(text).__name__}, not text"
        logger.warning("output_guardrail_blocked_message returned %s; the default text is used", kind)
    return args.default


def check_context_policy(owner: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    """Check that *value*, given for a field of *owner*, is a `ContextPolicy`. Raises UserTypeError."""
    from agentloop.window.policy import ContextPolicy  # few runs have one

    FIELDS.a(ContextPolicy)(owner, attribute, value)


@takes_options("RunConfig(history=HistorySettings(OPTION=…))")
@attrs.frozen(kw_only=True, eq=False, repr=False)
class HistorySettings(ByFields):
    """Settings of the history that models are shown: of a session, of another agent, of the run's own items.

    Attributes:
        handoff_input_filter: The filter of every handoff that doesn't have one.
        nest_handoff_history: True shows the next agent a summary of the conversation so far; two lines of text are put
            before and after that summary.
        handoff_history_mapper: `(items) -> items`, sync or async, chooses what the next agent is shown in place of that
            summary, from the conversation so far with the handoff. Only where `nest_handoff_history` isn't False.
        call_model_input_filter: `(ModelInputData) -> ModelInputData`, decides the input of one model call.
        session_input_callback: `(history, new) -> items`, merges a session's items with the run's input.
        session_settings: Settings of the session's use.

    Example:
        from agentloop import HistorySettings, RunConfig, SessionSettings

        latest = HistorySettings(session_settings=SessionSettings(limit=10))
        print(RunConfig(history=latest).history.session_settings.limit)  # 10
    """

    handoff_input_filter: HandoffInputFilter | None = attrs.field(default=None, validator=optional(FIELDS.function()))
    nest_handoff_history: bool | tuple[str, str] = attrs.field(default=False, validator=nesting(FIELDS))
    handoff_history_mapper: HistoryMapper | None = attrs.field(default=None, validator=optional(FIELDS.function()))
    call_model_input_filter: ModelInputFilter | None = attrs.field(default=None, validator=optional(FIELDS.function()))
    session_input_callback: SessionInputCallback | None = attrs.field(
        default=None, validator=optional(FIELDS.function())
    )
    session_settings: SessionSettings | None = attrs.field(default=None, validator=optional(FIELDS.a(SessionSettings)))


@takes_options("RunConfig(tracing=TracingSettings(OPTION=…))")
@attrs.frozen(kw_only=True, eq=False, repr=False)
class TracingSettings(ByFields):
    """Settings of the trace that instruments receive.

    Attributes:
        workflow_name, group_id, metadata: Fields of the trace.
        include_sensitive_data: True if spans hold arguments, outputs and error messages.
        disabled: True if no spans are made.

    Example:
        from agentloop import RunConfig, TracingSettings

        config = RunConfig(tracing=TracingSettings(group_id="chat-7"))  # the same id for all runs of one chat
        print(config.tracing.group_id)  # chat-7
    """

    workflow_name: str = attrs.field(default="Agent workflow", validator=FIELDS.text())
    group_id: str | None = attrs.field(default=None, validator=optional(FIELDS.text()))
    metadata: Mapping[str, Any] | None = attrs.field(default=None, validator=optional(FIELDS.mapping()))
    include_sensitive_data: bool = attrs.field(default=True, validator=FIELDS.flag())
    disabled: bool = attrs.field(default=False, validator=FIELDS.flag())


_GROUPED = {
    **{
        name: ("history", name)
        for name in (
            *("handoff_input_filter", "nest_handoff_history", "call_model_input_filter"),
            *("session_input_callback", "session_settings"),
        )
    },
    "workflow_name": ("tracing", "workflow_name"),
    "group_id": ("tracing", "group_id"),
    "trace_metadata": ("tracing", "metadata"),
    "trace_include_sensitive_data": ("tracing", "include_sensitive_data"),
    "tracing_disabled": ("tracing", "disabled"),
    "tool_error_formatter": ("tool_execution", "error_formatter"),
    "tool_not_found_behavior": ("tool_execution", "not_found_behavior"),
    "tool_name_collision_policy": ("tool_execution", "name_collision_policy"),
    "loop_detection": ("tool_execution", "loop_detection"),
}
"""Options that were fields of `RunConfig` itself, as they are in other libraries: the group and the name there."""


def _group_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a `RunConfig` with each one of `_GROUPED` as a part of its group.

    Where the group is given, too, as in `attrs.evolve(config, group_id="chat-7")`, only that part of it changes.
    """
    given = {name: value for name, value in options.items() if name not in _GROUPED}
    parts: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        if name in _GROUPED:
            group, part = _GROUPED[name]
            parts.setdefault(group, {})[part] = value
    for group, changes in parts.items():
        kind, whole = _GROUPS[group], given.get(group)
        if whole is None or isinstance(whole, kind):  # else the validator names the group
            given[group] = kind(**changes) if whole is None else attrs.evolve(whole, **changes)
    return given


_GROUPS: Mapping[str, Any] = {
    "history": HistorySettings,
    "tracing": TracingSettings,
    "tool_execution": ToolExecution,
}


@takes_options("Runner.run(…, run_config=RunConfig(OPTION=…))", read=_group_options, also=_GROUPED)
@attrs.frozen(kw_only=True, eq=False, repr=False, init=False)
class RunConfig(ByFields):
    """The configuration of one run and of the runs nested in it. A frozen value; the caller makes it.

    What belongs together is one value: `tool_execution`, `history` and `tracing`. The parts of these three that other
    libraries have as options of the configuration itself are accepted here, too (`RunConfig(group_id="chat-7")`), and
    can be read here.

    Attributes:
        model: A model or model string, used in place of the agents' own.
        model_settings: Settings that override the agents' own, one by one.
        model_provider: The `ModelProvider` that resolves model strings, in place of the built-in ones.
        tool_execution: Settings of tool calls: how many at once, how long, what becomes of unknown names.
        toolsets: Sources of tools for every agent of the run, beside the agents' own.
        policies: Policies that decide on every call before it may start; the strictest decision holds.
        output_store: The store for outputs longer than `max_output_chars`: `put(call, data) -> ref`.
        timeout: Seconds for each run segment (start or resume); after that the run ends with `RunTimeoutError`.
        limits: `UsageLimits` of the run, nested runs included.
        model_limits: Limits of the requests to models, in all runs that share them: `Capacity`, `Rate`, `TokenRate`. A
            request waits until all have room. A model, or the `model_provider`, may have further ones (`limits`).
        price: `(model name, RequestUsage) -> Decimal`, the cost of one request; or `agentloop.models.prices()`, which
            knows the prices of well-known models.
        hosted_price: `(model name, HostedToolCall) -> Decimal`, the provider's fee for one call of a tool that it runs
            itself. The call has been made when it is priced, so a limit refuses the next request and not the call.
        at_limit: What a run does when `max_turns` or a limit of `limits` leaves no further request: `"raise"`, or
            `"answer"`: it makes one request more, without tools and with a note that says so, and that answer is the
            final output. `RunResult.stop_reason` then is `"max_turns"` or `"usage_limits"`. If there is no final output
            in the answer, the error is raised after all.
        nudge_at: The part of `max_turns`, above 0 and below 1, after which the model reads once how many turns are left
            (0.8: before the ninth of ten); before the last turn at the latest. None: never.
        stop_when: A condition, or a predicate of the run's context, checked after every turn.
        max_depth: The maximum nesting depth of agent tools.
        input_guardrails, output_guardrails: Guardrails in addition to the agents' own, before these in order.
        output_guardrail_blocked_message: The text in place of a tool's output that was to be the final output
            (`Agent.tool_use_behavior`) and that an output guardrail has refused: in the session, the new items and the
            guardrails' results. Or a sync function that writes it, of `BlockedOutputArgs`, which don't have the
            output. It is called in the run's own task, so it may not wait; if it raises or gives no text, the usual one
            stays. The run ends with `OutputGuardrailTripwireTriggered` in any case.
        hold_text_until_guarded: True if a streamed run shows nothing of the model's answer until the input guardrails
            have settled: no text, no reasoning, no event of the provider.
        history: Settings of the history that models are shown, of sessions and handoffs too.
        context: The `ContextPolicy` of every agent of the run, in place of the agents' own: what becomes of a history
            that grows too long for the model.
        tracing: Fields of the trace, and whether there is one.
        instruments: Instruments that observe the run.
        json_limits: Bounds on JSON that a model writes, and whether JSON in strings is read.
        converter: The application's own cattrs converter. Its hooks hold for arguments, outputs, final outputs, inputs
            of handoffs and stored values. Register them before the first run; a type that only it knows takes its
            schema from `JsonSchema`.
        stream_buffer: The number of unread events above which a streamed run waits for its consumer.
        effects: The door of side effects; None is the live one.
        bundles: `Bundle`s for every agent of the run, such as those of `agentloop.bundles`.
        owner: Who the run belongs to, in the application's words. The log keeps it from the run's beginning on
            (`RunState.owner`); a later run segment changes nothing in it.
        sandbox: The `SandboxProvider` of the run's sandbox, `RunContext.sandbox`. Runs nested in it share the sandbox.
            Every segment of the run needs it.

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
    model_provider: ModelProvider | None = attrs.field(
        default=None, validator=optional(FIELDS.needs("expected a ModelProvider (with `get_model`)", has("get_model")))
    )
    tool_execution: ToolExecution = attrs.field(factory=ToolExecution, validator=FIELDS.a(ToolExecution))
    toolsets: Sequence[ToolSource] = attrs.field(
        default=(), validator=FIELDS.each("a ToolSource (with `tools`)", has("tools"))
    )
    policies: Sequence[Policy] = attrs.field(
        default=(), validator=FIELDS.each("a Policy (with `decide`)", is_a(Policy))
    )
    output_store: OutputStore | None = attrs.field(
        default=None, validator=optional(FIELDS.needs("expected a store (with `put`)", has("put")))
    )
    timeout: float | None = attrs.field(default=None, validator=optional(NAMES.seconds()))
    limits: UsageLimits | None = attrs.field(default=None, validator=optional(FIELDS.a(UsageLimits)))
    model_limits: Sequence[Limit] = attrs.field(
        default=(),
        converter=_to_limits,
        validator=FIELDS.each("a Capacity, Rate or TokenRate", is_a(Capacity, Rate, TokenRate)),
    )
    price: Price | None = attrs.field(default=None, validator=optional(FIELDS.function()))
    hosted_price: HostedPrice | None = attrs.field(default=None, validator=optional(FIELDS.function()))
    at_limit: Literal["raise", "answer"] = attrs.field(default="raise", validator=FIELDS.one_of("raise", "answer"))
    nudge_at: float | None = attrs.field(default=None, validator=optional(FIELDS.share()))
    stop_when: Condition | PredicateFunction | None = attrs.field(default=None, validator=optional(_condition))
    max_depth: int = attrs.field(default=16, validator=NAMES.count())
    input_guardrails: Sequence[InputGuardrail] = attrs.field(
        default=(), validator=FIELDS.each("an InputGuardrail", is_a(InputGuardrail))
    )
    output_guardrails: Sequence[OutputGuardrail] = attrs.field(
        default=(), validator=FIELDS.each("an OutputGuardrail", is_a(OutputGuardrail))
    )
    output_guardrail_blocked_message: BlockedMessage | None = attrs.field(
        default=None,
        validator=optional(
            FIELDS.needs(
                "expected a text that isn't empty, or a sync function of (BlockedOutputArgs)", fits(is_blocked_message)
            )
        ),
    )
    hold_text_until_guarded: bool = attrs.field(default=False, validator=FIELDS.flag())
    history: HistorySettings = attrs.field(factory=HistorySettings, validator=FIELDS.a(HistorySettings))
    context: ContextPolicy | None = attrs.field(default=None, validator=optional(check_context_policy))
    tracing: TracingSettings = attrs.field(factory=TracingSettings, validator=FIELDS.a(TracingSettings))
    instruments: Sequence[Instrument] = attrs.field(
        default=(), validator=FIELDS.each("an Instrument", fits(_is_instrument))
    )
    json_limits: JsonLimits = attrs.field(factory=JsonLimits, validator=FIELDS.a(JsonLimits))
    converter: BaseConverter | None = attrs.field(
        default=None,
        validator=optional(FIELDS.needs("expected a cattrs converter", has("structure", "unstructure", "copy"))),
    )
    stream_buffer: int = attrs.field(default=256, validator=optional(NAMES.count()))
    effects: Effects | None = attrs.field(
        default=None, validator=optional(FIELDS.needs("expected Effects (with `perform`)", has("perform")))
    )
    bundles: Sequence[Bundle] = attrs.field(default=(), validator=_check_bundles)
    owner: str | None = attrs.field(default=None, validator=optional(FIELDS.text()))
    sandbox: SandboxProvider | None = attrs.field(
        default=None,
        validator=optional(
            FIELDS.needs("expected a SandboxProvider (with `create` and `find`)", has("create", "find"))
        ),
    )

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            model: str | Model | None = ...,
            model_settings: ModelSettings | None = ...,
            model_provider: ModelProvider | None = ...,
            tool_execution: ToolExecution = ...,
            toolsets: Sequence[ToolSource] = ...,
            policies: Sequence[Policy] = ...,
            output_store: OutputStore | None = ...,
            timeout: float | None = ...,
            limits: UsageLimits | None = ...,
            model_limits: Limit | Sequence[Limit] = ...,
            price: Price | None = ...,
            hosted_price: HostedPrice | None = ...,
            at_limit: Literal["raise", "answer"] = ...,
            nudge_at: float | None = ...,
            stop_when: Condition | PredicateFunction | None = ...,
            max_depth: int = ...,
            input_guardrails: Sequence[InputGuardrail] = ...,
            output_guardrails: Sequence[OutputGuardrail] = ...,
            output_guardrail_blocked_message: BlockedMessage | None = ...,
            hold_text_until_guarded: bool = ...,
            history: HistorySettings = ...,
            context: ContextPolicy | None = ...,
            tracing: TracingSettings = ...,
            instruments: Sequence[Instrument] = ...,
            json_limits: JsonLimits = ...,
            converter: BaseConverter | None = ...,
            stream_buffer: int = ...,
            effects: Effects | None = ...,
            bundles: Sequence[Bundle] = ...,
            owner: str | None = ...,
            sandbox: SandboxProvider | None = ...,
            # the parts of groups that are accepted here, too
            handoff_input_filter: HandoffInputFilter | None = ...,
            nest_handoff_history: bool | tuple[str, str] = ...,
            call_model_input_filter: ModelInputFilter | None = ...,
            session_input_callback: SessionInputCallback | None = ...,
            session_settings: SessionSettings | None = ...,
            workflow_name: str = ...,
            group_id: str | None = ...,
            trace_metadata: Mapping[str, Any] | None = ...,
            trace_include_sensitive_data: bool = ...,
            tracing_disabled: bool = ...,
            tool_error_formatter: ToolErrorFormatter | None = ...,
            tool_not_found_behavior: Literal["tell_model", "raise", "return_error_to_model", "raise_error"] = ...,
            tool_name_collision_policy: Literal["tell_model", "raise", "warn", "error"] = ...,
            loop_detection: int | None = ...,
        ) -> None: ...

    else:

        def __getattr__(self, name: str) -> Any:
            """Return a part of a group by the name that it has as an option."""
            if name not in _GROUPED:
                raise AttributeError(f"'RunConfig' object has no attribute {name!r}")
            group, part = _GROUPED[name]
            return getattr(getattr(self, group), part)

    @property
    def is_priced(self) -> bool:
        """True if model requests, or calls of hosted tools, have a price."""
        return self.price is not None or self.hosted_price is not None


def check_run_config(config: object) -> RunConfig:
    """Return *config* if it is a `RunConfig` whose sequences have valid members; its bundles are merged into it.

    The sequences are checked again here, because the caller may have changed them since the configuration was made.

    Raises:
        UserTypeError: if a value is invalid; names the field.
    """
    if not isinstance(config, RunConfig):
        raise UserTypeError(f"run_config: expected a RunConfig, got {config!r}")
    if (
        config.input_guardrails
        or config.output_guardrails
        or config.policies
        or config.instruments
        or config.toolsets
        or config.bundles
    ):  # rarely: a run asks
        fields: Any = attrs.fields(RunConfig)
        guards = (fields.input_guardrails, fields.output_guardrails, fields.policies)
        for field in (*guards, fields.instruments, fields.toolsets, fields.bundles):
            field.validator(config, field, getattr(config, field.name))
    return _merge_bundles(config) if config.bundles else config


def _merge_bundles(config: RunConfig) -> RunConfig:
    """Return *config* with the parts of its bundles written out. What stays is their instructions: each turn adds them.

    So a configuration may be merged twice.
    """
    from agentloop.config import _bundling

    bundles = tuple(config.bundles)
    changes: dict[str, Any] = {
        name: [*(part for bundle in bundles for part in getattr(bundle, name)), *getattr(config, name)]
        for name in ("policies", "input_guardrails", "output_guardrails")
    }
    sources = (source for bundle in bundles for source in _bundling.sources_for_run(bundle))
    changes["toolsets"] = [*sources, *config.toolsets]
    changes["context"] = _bundling.merge_context(bundles, config.context)
    if any(bundle.model_settings is not None for bundle in bundles):
        changes["model_settings"] = _bundling.merge_settings(bundles, config.model_settings or ModelSettings())
    asked = [bundle for bundle in bundles if bundle.instructions is not None]
    rest = [_bundling.Bundle(bundle.name, instructions=bundle.instructions) for bundle in asked]
    return attrs.evolve(config, bundles=rest, **changes)


def check_priced(config: RunConfig, limits: UsageLimits, agents: Iterable[Any]) -> None:
    """Check that a limit on the cost in *limits* can be reached: that something in the run has a price.

    Raises:
        UserError: if there is a limit, and neither a request nor a tool of *agents* has a price. (Of the tools of a
            source we know nothing before it is asked.)
    """
    if limits.cost is None:
        return
    if config.is_priced or config.toolsets:
        return
    for agent in agents:
        if agent.toolsets or any(getattr(tool, "cost", None) is not None for tool in agent.tools):
            return
    raise UserError(
        f"UsageLimits(cost={limits.cost}) would never be reached, because nothing in the run has a price: give "
        "RunConfig(price=…), which prices model requests, or tool(cost=…)"
    )
