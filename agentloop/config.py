"""Settings of a run and of a model: frozen values, checked where they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from agentloop.exceptions import UserTypeError, UserValueError


def check_seconds(name: str, value: float | None, *, zero: bool = False) -> float | None:
    """Return *value* if it is None or a finite positive number of seconds (zero allowed if *zero*).

    Raises:
        UserTypeError, UserValueError: naming the field.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserTypeError(f"{name}: seconds as a number are needed, not {value!r}")
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise UserValueError(f"{name}: a finite number of seconds above 0 is needed, not {value!r}")
    return float(value)


def check_count(name: str, value: int | None, *, least: int = 1) -> int | None:
    """Return *value* if it is None (no limit) or a whole number of at least *least*.

    Raises:
        UserTypeError, UserValueError: naming the field.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserTypeError(f"{name}: a whole number is needed, not {value!r}")
    if value < least:
        raise UserValueError(f"{name}: at least {least} is needed, not {value!r}")
    return value


def _seconds(zero: bool = False) -> Any:
    def validate(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        check_seconds(attribute.name, value, zero=zero)

    return validate


def _count(least: int = 1) -> Any:
    def validate(_instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        check_count(attribute.name, value, least=least)

    return validate


@attrs.frozen(kw_only=True)
class JsonLimits:
    """Bounds on JSON that a model writes: bytes, nesting depth, digits of one number."""

    max_bytes: int | None = attrs.field(default=1_000_000, validator=_count())
    max_depth: int | None = attrs.field(default=64, validator=_count())
    max_digits: int | None = attrs.field(default=1_000, validator=_count())


@attrs.frozen(kw_only=True)
class ModelSettings:
    """How to ask a model. None means not given: the next level down decides (run over agent over model)."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = attrs.field(default=None, validator=_count())
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Mapping[str, Any] | None = None
    verbosity: str | None = None
    truncation: str | None = None
    store: bool | None = None
    metadata: Mapping[str, str] | None = None
    include: Sequence[str] | None = None
    timeout: float | None = attrs.field(default=None, validator=_seconds())
    """Seconds for one attempt."""
    extra_headers: Mapping[str, str] | None = attrs.field(default=None, repr=False)
    extra_query: Mapping[str, str] | None = None
    extra_body: Mapping[str, Any] | None = None
    extra_args: Mapping[str, Any] | None = None

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


@attrs.frozen(kw_only=True)
class ToolExecution:
    """How a run executes its tool calls."""

    max_function_tool_concurrency: int | None = attrs.field(default=32, validator=_count())
    """Bodies in flight in one turn; None = no limit."""
    max_calls_per_turn: int | None = attrs.field(default=1000, validator=_count())
    """Calls of one response that may run; the others are answered with a refusal."""
    queue_timeout: float | None = attrs.field(default=None, validator=_seconds())
    """Seconds a call may wait to start before it is skipped."""
    pre_approval_tool_input_guardrails: bool = False
    cleanup_grace: float = attrs.field(default=5.0, validator=_seconds(zero=True))
    """Seconds that cleanup gets, in all, once a run is being cancelled."""
    max_output_chars: int | None = attrs.field(default=32_000, validator=_count())
    max_threads: int = attrs.field(default=32, validator=_count())
    mode: Literal["concurrent", "sequential"] | None = attrs.field(
        default=None, validator=attrs.validators.in_((None, "concurrent", "sequential"))
    )
    """None: the agent's `tool_execution`."""


def _callable_or_none(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not callable(value):
        raise UserTypeError(f"RunConfig.{attribute.name}: a callable is needed, not {value!r}")


@attrs.frozen(kw_only=True)
class ToolErrorArgs:
    """What a `tool_error_formatter` is given: which text is wanted, for which call, and the text it would replace."""

    kind: Literal["tool_not_found", "approval_rejected"]
    tool: str
    call_id: str
    error: BaseException | None
    default: str


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
        json_limits: Bounds on model-made JSON.
        stream_buffer: Unread events above which a streamed run waits for its consumer.
        max_depth: How deep agent tools may nest.
        effects: The door of side effects; None is the live one.
        instruments: Watch the run.
    """

    model: Any = None
    model_settings: ModelSettings | None = None
    tool_execution: ToolExecution = attrs.field(factory=ToolExecution)
    timeout: float | None = attrs.field(default=None, validator=_seconds())
    tool_error_formatter: Any = attrs.field(default=None, validator=_callable_or_none)
    tool_not_found_behavior: Literal["raise_error", "return_error_to_model"] = attrs.field(
        default="raise_error", validator=attrs.validators.in_(("raise_error", "return_error_to_model"))
    )
    tool_name_collision_policy: Literal["warn", "error"] = attrs.field(
        default="warn", validator=attrs.validators.in_(("warn", "error"))
    )
    output_store: Any = None
    json_limits: JsonLimits = attrs.field(factory=JsonLimits)
    stream_buffer: int = attrs.field(default=256, validator=_count())
    max_depth: int = attrs.field(default=16, validator=_count())
    effects: Any = None
    instruments: Sequence[Any] = ()
