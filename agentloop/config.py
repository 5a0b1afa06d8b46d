"""Settings of a run and of a model: frozen values, checked where they are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs
from attrs.validators import and_, ge

from agentloop._common.checks import FIELDS, NAMES, either, is_a, is_finite, optional
from agentloop._common.misplaced import takes_options


@attrs.frozen(kw_only=True)
class JsonLimits:
    """Bounds on JSON that a model writes: bytes, nesting depth, digits of one number."""

    max_bytes: int | None = attrs.field(default=1_000_000, validator=optional(NAMES.count()))
    max_depth: int | None = attrs.field(default=64, validator=optional(NAMES.count()))
    max_digits: int | None = attrs.field(default=1_000, validator=optional(NAMES.count()))


@attrs.frozen(kw_only=True)
class RetryAdvice:
    """What a failed model request says about making it again.

    Attributes:
        retryable: Whether asking again may help and does no harm.
        retry_after: Seconds the provider asks to wait, clamped to a sane range; None where it doesn't.
        reason: Why, in a few words.
    """

    retryable: bool
    retry_after: float | None = None
    reason: str = ""


@attrs.frozen(kw_only=True)
class RetryContext:
    """What a retry policy is asked with: the error of attempt number *attempt* (from 1), and what it says itself."""

    error: BaseException
    attempt: int
    advice: RetryAdvice


RetryPolicy: TypeAlias = Callable[[RetryContext], bool | Awaitable[bool]]


@attrs.frozen
class ModelRetrySettings:
    """When a failed model request is made again, within its turn.

    The wait before retry n is `initial_delay * multiplier ** (n - 1)` seconds, at most `max_delay`, with *jitter*
    between half and all of that; never less than the provider's Retry-After. Nothing is retried once a part of the
    response was shown to the consumer of a stream (a plain run shows none), nor a cancellation.

    Attributes:
        max_retries: Attempts after the first.
        policy: `(RetryContext) -> bool`, sync or async, decides in the place of `RetryContext.advice`; None leaves it
            to that: no answer, timeouts and status 408, 409, 429 and from 500 on, unless the provider says otherwise
            or the account's quota is spent.
    """

    max_retries: int = attrs.field(validator=NAMES.count(0))
    initial_delay: float = attrs.field(default=0.25, validator=NAMES.seconds(zero=True))
    max_delay: float = attrs.field(default=2.0, validator=NAMES.seconds(zero=True))
    multiplier: float = attrs.field(
        default=2.0,
        validator=and_(NAMES.number(), NAMES.needs("a finite number of at least 1 is needed", ge(1), is_finite)),
    )
    jitter: bool = attrs.field(default=True, validator=NAMES.flag())
    policy: RetryPolicy | None = attrs.field(default=None, validator=optional(FIELDS.function()))


@takes_options("Agent(…, model_settings=ModelSettings(OPTION=…))")
@attrs.frozen(kw_only=True)
class ModelSettings:
    """How to ask a model. None means not given: the next level down decides (run over agent over model)."""

    temperature: float | None = attrs.field(default=None, validator=optional(FIELDS.number()))
    top_p: float | None = attrs.field(default=None, validator=optional(FIELDS.number()))
    max_tokens: int | None = attrs.field(default=None, validator=optional(NAMES.count()))
    tool_choice: str | Mapping[str, Any] | None = attrs.field(
        default=None,
        validator=optional(FIELDS.needs("text or a mapping is needed", either(is_a(str), FIELDS.mapping()))),
    )
    parallel_tool_calls: bool | None = attrs.field(default=None, validator=optional(FIELDS.flag()))
    reasoning: Mapping[str, Any] | None = attrs.field(default=None, validator=optional(FIELDS.mapping()))
    verbosity: str | None = attrs.field(default=None, validator=optional(FIELDS.text()))
    truncation: str | None = attrs.field(default=None, validator=optional(FIELDS.text()))
    store: bool | None = attrs.field(default=None, validator=optional(FIELDS.flag()))
    metadata: Mapping[str, str] | None = attrs.field(default=None, validator=optional(FIELDS.mapping()))
    include: Sequence[str] | None = attrs.field(default=None, validator=optional(FIELDS.texts()))
    timeout: float | None = attrs.field(default=None, validator=optional(NAMES.seconds()))
    """Seconds for one attempt."""
    retry: ModelRetrySettings | None = attrs.field(default=None, validator=optional(FIELDS.a(ModelRetrySettings)))
    """None: two retries where the error speaks for them, of an answer that fell silent one, of `timeout` none.
    `ModelRetrySettings(max_retries=0)`: none."""
    extra_headers: Mapping[str, str] | None = attrs.field(
        default=None, repr=False, validator=optional(FIELDS.mapping())
    )
    extra_query: Mapping[str, str] | None = attrs.field(default=None, validator=optional(FIELDS.mapping()))
    extra_body: Mapping[str, Any] | None = attrs.field(default=None, validator=optional(FIELDS.mapping()))
    extra_args: Mapping[str, Any] | None = attrs.field(default=None, validator=optional(FIELDS.mapping()))

    def resolve(self, override: ModelSettings | None) -> ModelSettings:
        """Return these settings with every value that *override* gives laid over them."""
        if override is None:
            return self
        changes = {
            field.name: value
            for field in attrs.fields(ModelSettings)
            if (value := getattr(override, field.name)) is not None
        }
        return attrs.evolve(self, **changes) if changes else self


@takes_options("RunConfig(tool_execution=ToolExecution(OPTION=…))")
@attrs.frozen(kw_only=True)
class ToolExecution:
    """How a run executes its tool calls."""

    max_function_tool_concurrency: int | None = attrs.field(default=32, validator=optional(NAMES.count()))
    """Bodies in flight in one turn; None = no limit."""
    max_calls_per_turn: int | None = attrs.field(default=1000, validator=optional(NAMES.count()))
    """Calls of one response that may run; the others are answered with a refusal."""
    queue_timeout: float | None = attrs.field(default=None, validator=optional(NAMES.seconds()))
    """Seconds a call may wait to start before it is skipped."""
    pre_approval_tool_input_guardrails: bool = attrs.field(default=False, validator=FIELDS.flag())
    cleanup_grace: float = attrs.field(default=5.0, validator=NAMES.seconds(zero=True))
    """Seconds that cleanup gets, in all, once a run is being cancelled."""
    max_output_chars: int | None = attrs.field(default=32_000, validator=optional(NAMES.count()))
    max_threads: int = attrs.field(default=32, validator=NAMES.count())
    mode: Literal["concurrent", "sequential"] | None = attrs.field(
        default=None, validator=FIELDS.one_of(None, "concurrent", "sequential")
    )
    """None: the agent's `tool_execution`."""


@attrs.frozen(kw_only=True)
class ToolErrorArgs:
    """What a `tool_error_formatter` is given: which text is wanted, for which call, and the text it would replace."""

    kind: Literal["tool_not_found", "approval_rejected"]
    tool: str
    call_id: str
    error: BaseException | None
    default: str


@attrs.frozen(kw_only=True)
class SessionSettings:
    """How a session is used: `limit` is how many of its latest items a run is shown; None = all."""

    limit: int | None = attrs.field(default=None, validator=optional(NAMES.count(0)))


@attrs.frozen(kw_only=True)
class ModelInputData:
    """What a `call_model_input_filter` is given and gives back: items and instructions for this one model call."""

    input: tuple[Any, ...]
    instructions: str | None
    agent: Any = None
    context: Any = attrs.field(default=None, repr=False)


@attrs.frozen(kw_only=True)
class ErrorHandlerData:
    """What an error handler is given: the error, and what the run had achieved."""

    error: Exception
    run_data: Any
    context: Any = attrs.field(default=None, repr=False)


@attrs.frozen
class ErrorHandlerResult:
    """The final output an error handler gives in place of its error, and whether the history keeps it."""

    final_output: Any
    include_in_history: bool = True


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

    model: Any = None
    model_settings: ModelSettings | None = attrs.field(default=None, validator=optional(FIELDS.a(ModelSettings)))
    tool_execution: ToolExecution = attrs.field(factory=ToolExecution, validator=FIELDS.a(ToolExecution))
    timeout: float | None = attrs.field(default=None, validator=optional(NAMES.seconds()))
    tool_error_formatter: Any = attrs.field(default=None, validator=optional(FIELDS.function()))
    tool_not_found_behavior: Literal["raise_error", "return_error_to_model"] = attrs.field(
        default="raise_error", validator=FIELDS.one_of("raise_error", "return_error_to_model")
    )
    tool_name_collision_policy: Literal["warn", "error"] = attrs.field(
        default="warn", validator=FIELDS.one_of("warn", "error")
    )
    output_store: Any = None
    limits: Any = None
    price: Any = attrs.field(default=None, validator=optional(FIELDS.function()))
    stop_when: Any = None
    model_provider: Any = None
    input_guardrails: Sequence[Any] = ()
    output_guardrails: Sequence[Any] = ()
    handoff_input_filter: Any = attrs.field(default=None, validator=optional(FIELDS.function()))
    nest_handoff_history: bool | tuple[str, str] = attrs.field(default=False, validator=FIELDS.two_lines_or_flag())
    call_model_input_filter: Any = attrs.field(default=None, validator=optional(FIELDS.function()))
    session_input_callback: Any = attrs.field(default=None, validator=optional(FIELDS.function()))
    session_settings: SessionSettings | None = attrs.field(default=None, validator=optional(FIELDS.a(SessionSettings)))
    loop_detection: int | None = attrs.field(default=None, validator=optional(NAMES.count(2)))
    policies: Sequence[Any] = ()
    hold_text_until_guarded: bool = attrs.field(default=False, validator=FIELDS.flag())
    json_limits: JsonLimits = attrs.field(factory=JsonLimits, validator=FIELDS.a(JsonLimits))
    stream_buffer: int = attrs.field(default=256, validator=optional(NAMES.count()))
    max_depth: int = attrs.field(default=16, validator=NAMES.count())
    workflow_name: str = attrs.field(default="Agent workflow", validator=FIELDS.text())
    group_id: str | None = attrs.field(default=None, validator=optional(FIELDS.text()))
    trace_metadata: Mapping[str, Any] | None = attrs.field(default=None, validator=optional(FIELDS.mapping()))
    trace_include_sensitive_data: bool = attrs.field(default=True, validator=FIELDS.flag())
    tracing_disabled: bool = attrs.field(default=False, validator=FIELDS.flag())
    effects: Any = None
    instruments: Sequence[Any] = ()

    def __attrs_post_init__(self) -> None:
        for look_at in run_config_checks:
            look_at(self)


run_config_checks: list[Callable[[RunConfig], object]] = []
"""Asked about each configuration that is made: what looks at fields whose values this module doesn't know."""
