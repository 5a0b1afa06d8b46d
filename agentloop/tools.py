"""Tools: Python functions a model may call, with the policies of their calls.

A `FunctionTool` is a value: it says what the model is shown and how a call is to be run. It runs nothing itself; the
runtime interprets its `body`. `attrs.evolve(tool, …)` makes a copy with other policies.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, Generic, Literal, Protocol, TypeAlias, TypedDict, Unpack, cast, overload

import attrs
from attrs.validators import and_, matches_re

from agentloop._common.checks import FIELDS, Fields, fits, has, is_a, optional
from agentloop._common.error_text import error_summary, is_redacted
from agentloop._common.errors import ModelBehaviorError, UserTypeError, UserValueError
from agentloop._common.masking import ALL_ARGUMENTS, MASK, masked_repr
from agentloop._common.type_parameters import BodyP, ContextT, ContextT_contra
from agentloop._schema.function_schema import FunctionSchema, function_schema
from agentloop._schema.json_text import parse_object
from agentloop._schema.output_schema import TypedOutput
from agentloop.context import Callback, RunContext, ToolContext
from agentloop.guardrails import ToolInputGuardrail, ToolOutputGuardrail
from agentloop.items import Content, ToolCall
from agentloop.limits import Capacity, Limit, Rate
from agentloop.settings import JsonLimits

logger: logging.Logger = logging.getLogger("agentloop")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
CONTEXT_TYPES = (RunContext, ToolContext)


def default_tool_error_function(ctx: RunContext[Any], error: Exception) -> str:
    """Return what the model is told when a call fails: the error's type and the first line of its message.

    Secrets are redacted, the length is bounded, a group names every leaf.
    """
    name = getattr(ctx, "tool_name", "tool")
    undecodable = f"Arguments of tool {name} aren't valid JSON"
    if isinstance(error, ModelBehaviorError) and str(error).startswith(undecodable):
        return undecodable if is_redacted(error) else str(error)
    return f"Tool {name} failed with: {error_summary(error)}"


@attrs.frozen
class PythonBody:
    """A decorated Python function and what was read off its signature."""

    fn: Callable[..., Any]
    schema: FunctionSchema


@attrs.frozen
class RawBody:
    """A function of the call's context and its JSON text, checked by nobody but itself."""

    fn: Callable[[ToolContext[Any], str], Any | Awaitable[Any]]


@attrs.frozen(kw_only=True)
class AgentCall:
    """Another agent, run as a tool. Interpreted by the runtime, so that a nested run is part of the same log."""

    agent: Any
    schema: FunctionSchema
    typed: TypedOutput | None = None
    input_builder: Callback | None = attrs.field(default=None, validator=optional(FIELDS.function()))
    max_turns: int | None = 10
    run_config: Any = None
    session: Any = attrs.field(
        default=None, validator=optional(FIELDS.needs("a Session is needed", has("get_items", "add_items")))
    )
    on_stream: Callback | None = attrs.field(default=None, validator=optional(FIELDS.function()))
    custom_output_extractor: Callback | None = attrs.field(default=None, validator=optional(FIELDS.function()))


Body: TypeAlias = PythonBody | RawBody | AgentCall
InDoubt: TypeAlias = Literal["tell_model", "rerun", "raise"]


_TOOL = Fields(lambda tool, name: f"tool {tool.name!r}: {name}")


def _is_example(member: Any) -> bool:
    return (
        isinstance(member, tuple | list)
        and len(member) == 2
        and isinstance(member[0], str)
        and isinstance(member[1], Mapping)
    )


# Converters. What isn't what they ask for passes, for the validator to complain of by the field's name.


def _to_tuple(values: Iterable[Any]) -> tuple[Any, ...]:
    given: object = values
    is_sequence = isinstance(given, Iterable) and not isinstance(given, str)
    return tuple(values) if is_sequence else cast("tuple[Any, ...]", given)


def _to_names(names: Iterable[str]) -> tuple[str, ...]:
    return _to_tuple(names)


def _to_examples(examples: Iterable[tuple[str, Mapping[str, Any]]]) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    return _to_tuple(examples)


def _to_limits(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, Limit) else _to_tuple(value)


@attrs.frozen(eq=False, kw_only=True)
class FunctionTool(Generic[ContextT_contra]):
    """One tool. Made by `tool`, `Agent.as_tool`, or by hand with `on_invoke_tool`.

    A tool of a context serves agents of that context and of its subtypes; one that asks for no context serves all.
    Calling a tool made by `tool` calls the function. Fields are those of `tool`, plus `params_json_schema` (what the
    model is shown) and `on_invoke_tool(ctx, json_text)`.
    """

    name: str = attrs.field(
        validator=and_(
            Fields(lambda tool, _: "tool name").text(),
            Fields(lambda tool, _: f"tool name {tool.name!r}").needs(
                "letters, digits, '_' and '-' are allowed, 1 to 128 of them", matches_re(_NAME), quoted=False
            ),
        )
    )
    description: str = attrs.field(default="", validator=FIELDS.text())
    params_json_schema: Mapping[str, Any] = attrs.field(
        factory=dict, repr=False, validator=FIELDS.mapping("a JSON schema, as a mapping, is needed")
    )
    on_invoke_tool: Callable[[ToolContext[ContextT_contra], str], Any] | None = attrs.field(
        default=None, repr=False, validator=optional(_TOOL.function())
    )
    body: Body | None = attrs.field(
        default=None,
        repr=False,
        validator=optional(FIELDS.needs("a body is needed", is_a(PythonBody, RawBody, AgentCall))),
    )
    strict_mode: bool = attrs.field(default=True, repr=False, validator=_TOOL.flag("a bool is needed"))
    is_enabled: bool | Callback = attrs.field(default=True, repr=False, validator=_TOOL.flag_or_function())
    needs_approval: bool | Callback = attrs.field(default=False, repr=False, validator=_TOOL.flag_or_function())
    tool_input_guardrails: tuple[ToolInputGuardrail, ...] = attrs.field(
        default=(),
        converter=_to_tuple,
        repr=False,
        validator=_TOOL.each("a ToolInputGuardrail", is_a(ToolInputGuardrail)),
    )
    tool_output_guardrails: tuple[ToolOutputGuardrail, ...] = attrs.field(
        default=(),
        converter=_to_tuple,
        repr=False,
        validator=_TOOL.each("a ToolOutputGuardrail", is_a(ToolOutputGuardrail)),
    )
    timeout: float | None = attrs.field(default=None, repr=False, validator=optional(_TOOL.seconds()))
    idle_timeout: float | None = attrs.field(default=None, repr=False, validator=optional(_TOOL.seconds()))
    timeout_behavior: Literal["error_as_result", "raise_exception"] = attrs.field(
        default="error_as_result", repr=False, validator=_TOOL.one_of("error_as_result", "raise_exception")
    )
    timeout_error_function: Callback | None = attrs.field(
        default=None, repr=False, validator=optional(_TOOL.function())
    )
    failure_error_function: Callback | None = attrs.field(
        default=default_tool_error_function, repr=False, validator=optional(_TOOL.function())
    )
    idempotent: bool = attrs.field(default=False, repr=False, validator=_TOOL.flag("a bool is needed"))
    in_doubt: InDoubt = attrs.field(
        default="tell_model", repr=False, validator=_TOOL.one_of("tell_model", "rerun", "raise")
    )
    capacity: tuple[Capacity | Rate, ...] = attrs.field(
        default=(), converter=_to_limits, repr=False, validator=_TOOL.each("a Capacity or Rate", is_a(Capacity, Rate))
    )
    serial: str | None = attrs.field(default=None, repr=False, validator=optional(_TOOL.text()))
    exclusive: bool = attrs.field(default=False, repr=False, validator=_TOOL.flag("a bool is needed"))
    abandon_on_cancel: bool = attrs.field(default=False, repr=False, validator=_TOOL.flag("a bool is needed"))
    namespace: str | None = attrs.field(default=None, validator=optional(_TOOL.text()))
    defer_loading: bool = attrs.field(default=False, repr=False, validator=_TOOL.flag("a bool is needed"))
    examples: tuple[tuple[str, Mapping[str, Any]], ...] = attrs.field(
        default=(),
        converter=_to_examples,
        repr=False,
        validator=_TOOL.each("a pair of a request and arguments", fits(_is_example)),
    )
    secret: tuple[str, ...] = attrs.field(
        default=(),
        converter=_to_names,
        repr=False,
        validator=_TOOL.each("an argument's name", is_a(str)),
    )
    secret_output: bool = attrs.field(default=False, repr=False, validator=_TOOL.flag("a bool is needed"))
    cost: Callback | None = attrs.field(default=None, repr=False, validator=optional(_TOOL.function()))
    custom_data_extractor: Callback | None = attrs.field(default=None, repr=False, validator=optional(_TOOL.function()))

    def __attrs_post_init__(self) -> None:
        if self.body is None:
            if self.on_invoke_tool is None:
                raise UserTypeError(f"tool {self.name!r}: on_invoke_tool is needed")
            object.__setattr__(self, "body", RawBody(self.on_invoke_tool))
        elif self.on_invoke_tool is None:
            object.__setattr__(self, "on_invoke_tool", self._invoke_text)
        if isinstance(self.body, PythonBody) and self.body.schema.extra_parameter in self.secret:
            # The names of what `**kwargs` takes are keys of a secret mapping, among the names of the other arguments.
            object.__setattr__(self, "secret", (ALL_ARGUMENTS,))
        if isinstance(self.body, AgentCall) and self.capacity:
            raise UserValueError(
                f"tool {self.name!r}: an agent tool holds a slot of its own turn only; give the capacity to the tools "
                "of its agent"
            )
        if self.runs_in_thread:
            self._check_thread()
        elif self.abandon_on_cancel:
            raise UserValueError(f"tool {self.name!r}: abandon_on_cancel is for sync functions")

    def _check_thread(self) -> None:
        for field in ("timeout", "idle_timeout"):
            if getattr(self, field) is not None and not self.abandon_on_cancel:
                raise UserValueError(
                    f"tool {self.name!r}: {field}: a sync function can't be stopped; with abandon_on_cancel=True its "
                    "thread is left to end by itself"
                )

    @property
    def runs_in_thread(self) -> bool:
        """Whether the body is a sync function, run in a worker thread."""
        return isinstance(self.body, PythonBody) and not self.body.schema.is_async

    @property
    def qualified_name(self) -> str:
        """The name with its namespace: `ns.name`, or the bare name."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name

    @property
    def lookup_key(self) -> str:
        """What a call finds the tool by: `name`, `namespace.name`, or `deferred:name` for a deferred top-level tool."""
        if self.namespace:
            return f"{self.namespace}.{self.name}"
        return f"deferred:{self.name}" if self.defer_loading else self.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the decorated function."""
        if not isinstance(self.body, PythonBody):
            raise UserTypeError(f"tool {self.name!r} has no Python function to call")
        return self.body.fn(*args, **kwargs)

    async def _invoke_text(self, ctx: ToolContext[Any], json_text: str) -> Any:
        if not isinstance(self.body, PythonBody):
            raise UserTypeError(f"tool {self.name!r} runs only inside a run")
        bound = self.body.schema.bind(parse_object(json_text, JsonLimits(), tool=self.name))
        result = bound.call(self.body.fn, ctx)
        return await result if self.body.schema.is_async else result


class ToolOptions(TypedDict, total=False):
    """The options of `tool`, which says what they mean. Those left out have the defaults of `FunctionTool`."""

    name: str | None
    description: str | None
    strict_mode: bool
    is_enabled: bool | Callback
    needs_approval: bool | Callback
    tool_input_guardrails: Sequence[ToolInputGuardrail]
    tool_output_guardrails: Sequence[ToolOutputGuardrail]
    timeout: float | None
    idle_timeout: float | None
    timeout_behavior: Literal["error_as_result", "raise_exception"]
    timeout_error_function: Callback | None
    failure_error_function: Callback | None
    idempotent: bool
    in_doubt: InDoubt
    capacity: Capacity | Rate | Sequence[Capacity | Rate]
    serial: str | None
    exclusive: bool
    abandon_on_cancel: bool
    namespace: str | None
    defer_loading: bool
    examples: Sequence[tuple[str, Mapping[str, Any]]]
    secret: Sequence[str]
    secret_output: bool
    cost: Callback | None
    custom_data_extractor: Callback | None


_undescribed: set[str] = set()
"""Functions that a warning was logged for: one that is made a tool for each request is warned of once."""


def _warn_of_no_description(fn: Callable[..., Any], name: str) -> None:
    # Logged, not raised: the tool works. But the model chooses among tools by their descriptions, and nobody would see
    # from its bad choices that this one has none. Not a Python warning: those are errors in many test suites.
    known = f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', name)}"
    if known not in _undescribed:
        _undescribed.add(known)
        logger.warning(
            "tool %r has neither a docstring nor a description: the model knows it by its name and parameters alone",
            name,
        )


def _tool_from(fn: Callable[..., Any], options: ToolOptions) -> FunctionTool[Any]:
    if isinstance(fn, FunctionTool):
        raise UserTypeError(f"{fn.name!r} is a tool already; make a copy with attrs.evolve")
    fields: dict[str, Any] = {**options}
    name, description = fields.pop("name", None), fields.pop("description", None)
    strict = fields.get("strict_mode", True)
    schema = function_schema(fn, name=name, description=description, strict=strict, context_types=CONTEXT_TYPES)
    if description is None and not schema.description:
        _warn_of_no_description(fn, schema.name)
    return FunctionTool(
        name=schema.name,
        description=schema.description,
        params_json_schema=schema.params_json_schema,
        body=PythonBody(fn, schema),
        **fields,
    )


class ToolDecorator(Protocol):
    """What `tool` gives where it is called with options alone. Makes a tool of the context that the function takes."""

    # A context in another place than the first is given all the same, but isn't known to type checkers.
    @overload
    def __call__(self, fn: Callable[Concatenate[ToolContext[ContextT], BodyP], Any], /) -> FunctionTool[ContextT]: ...
    @overload
    def __call__(self, fn: Callable[..., Any], /) -> FunctionTool[Any]: ...


@overload
def tool(
    fn: Callable[Concatenate[ToolContext[ContextT], BodyP], Any], /, **options: Unpack[ToolOptions]
) -> FunctionTool[ContextT]: ...
@overload
def tool(fn: Callable[..., Any], /, **options: Unpack[ToolOptions]) -> FunctionTool[Any]: ...
@overload
def tool(fn: None = None, /, **options: Unpack[ToolOptions]) -> ToolDecorator: ...
def tool(fn: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Make a function a tool; bare or with options.

    The schema comes from the signature, the descriptions from the docstring. A parameter annotated `ToolContext` or
    `RunContext` is given the context and hidden from the model. Async functions run on the event loop, sync ones in a
    worker thread.

    Args:
        fn: The function: also a wrapped one, a partial, a bound method or a callable object.
        name: What the model calls it by; the function's name if not given.
        description: What the model is told; the docstring's text if not given. Without either a warning is logged.
        strict_mode: Whether the schema is made strict (every parameter required, nothing else allowed).
        is_enabled: Whether the tool is shown and may be called; a callable is asked as `(ctx, agent)`, every turn.
        needs_approval: Whether a call waits for somebody's verdict; a callable is asked as `(ctx, arguments, call_id)`.
        tool_input_guardrails, tool_output_guardrails: Judges of arguments and output, in order.
        timeout: Seconds for the body alone. A sync function needs `abandon_on_cancel=True` for it.
        idle_timeout: Seconds the body may be silent; every `ctx.report` restarts it.
        timeout_behavior: Tell the model (`"error_as_result"`), or end the run (`"raise_exception"`).
        timeout_error_function: `(ctx, ToolTimeoutError) -> str`, the text for the model.
        failure_error_function: `(ctx, error) -> str | None`, the text for the model; None (the function itself, or what
            it returns) lets the error end the run.
        idempotent: Whether an equal call may be answered with the output of an earlier one.
        in_doubt: What a resumed run does about a call that may or may not have taken effect when the run stopped: tell
            the model so (`"tell_model"`), run it again (`"rerun"`; idempotent tools always are), or raise (`"raise"`).
        capacity: A `Capacity`, a `Rate`, or several: limits shared with whatever else holds them.
        serial: A group whose calls never overlap within a turn and start in model order.
        exclusive: Whether a call runs alone in its turn.
        abandon_on_cancel: For sync functions: leave the thread running when its call is cancelled.
        namespace: A name space the tool lives in; the model calls it there.
        defer_loading: Whether the provider shows it only after a search.
        examples: `(request, arguments)` pairs, shown to small models.
        secret: Names of arguments whose values stand in no log, span, repr or error text, and in a journal or state
            only sealed by its codec, or as digests. An error of such a call shows its type alone, `TYPE([redacted])`;
            texts that guardrails, policies and error functions make of it are told to the model and are secret, too.
        secret_output: The same for the output.
        cost: `(arguments) -> number`, what a call costs of the run's cost limit; reserved before it starts.
        custom_data_extractor: `(ctx, value) -> data`, kept beside the output for the application.

    Raises:
        UserTypeError, UserValueError: naming what is wrong, at decoration time.
    """
    if unknown := options.keys() - ToolOptions.__optional_keys__:
        raise UserTypeError(f"tool: unknown option {', '.join(sorted(unknown))}")

    def make(function: Callable[..., Any]) -> FunctionTool[Any]:
        return _tool_from(function, options)

    return make if fn is None else make(fn)


# -- when a tool's output ends the run


def _to_name_or_names(names: str | Iterable[str]) -> tuple[str, ...]:
    given: Any = names
    return (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)


@attrs.frozen
class StopAtTools:
    """Finish with the output of the first called tool that is one of *names*."""

    names: tuple[str, ...] = attrs.field(
        converter=_to_name_or_names, validator=FIELDS.texts("names of tools are needed")
    )


@attrs.frozen(kw_only=True)
class ToolsToFinalOutput:
    """What a callable `tool_use_behavior` answers: whether the tools' outputs end the run, and with what."""

    is_final: bool
    output: Any = None


@attrs.frozen(kw_only=True, repr=False)
class ToolResult:
    """One settled call, as a callable `tool_use_behavior` is given it: the Python `value` and the model's `output`."""

    tool: FunctionTool | None
    call: ToolCall
    value: Any
    output: Content | None

    def __repr__(self) -> str:
        masks = {"value": repr(MASK), "output": repr(MASK)} if self.call.secret_output else {}
        return masked_repr(self, masks)


ToolUseBehavior: TypeAlias = Literal["run_llm_again", "stop_on_first_tool"] | StopAtTools | Callback
