"""Tools: Python functions that a model may call, with the policies of their calls.

A `FunctionTool` is a value: it holds the tool's description for the model and the rules for its calls. It runs nothing
itself; the engine interprets its `body`. `attrs.evolve(tool, …)` makes a copy with other policies. Does not know about
agents: an agent used as a tool is a body like others (`AgentCall`).
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Generic,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    Unpack,
    cast,
    get_args,
    overload,
    runtime_checkable,
)

import anyio.to_thread
import attrs
from attrs.validators import and_, matches_re

from agentloop._common.checks import FIELDS, Fields, check_count, either, fits, has, is_a, optional, read_timeout_word
from agentloop._common.errors import ModelBehaviorError, UserTypeError, UserValueError
from agentloop._common.failed_tool_text import tell_error
from agentloop._common.masking import ALL_ARGUMENTS, MASK
from agentloop._common.misplaced import raise_misplaced, takes_options
from agentloop._common.naming import TOOL_NAME, TOOL_NAME_NEEDS, qualify_name
from agentloop._common.type_parameters import BodyP, ContextT, ContextT_contra
from agentloop._common.values import ByFields, ReprByFields, Value
from agentloop._schema.json_text import parse_object
from agentloop.context import Callback, RunContext, ToolContext
from agentloop.guardrails import ToolInputGuardrail, ToolOutputGuardrail
from agentloop.items import Content, ToolCall, ToolKind
from agentloop.limits import Capacity, Limit, Rate
from agentloop.settings import Conversation, JsonLimits

if TYPE_CHECKING:
    from agentloop._schema.function_schema import FunctionSchema
    from agentloop._schema.output_schema import TypedOutput

logger: logging.Logger = logging.getLogger("agentloop")

CONTEXT_TYPES = (RunContext, ToolContext)


def default_tool_error_function(ctx: RunContext[Any], error: Exception) -> str:
    """Return the text that the model receives for a failed call: the error's type and its message, all lines of it.

    Secrets are redacted, and the length is bounded. For an exception group the text names every leaf.
    """
    return tell_error(getattr(ctx, "tool_name", "tool"), error)


class PythonBody(Value, frozen=True):
    """A decorated Python function and the schema made from its signature."""

    fn: Callable[..., Any]
    schema: FunctionSchema


class ToolSearch(PythonBody, frozen=True):
    """The body of a search over the agent's deferred tools; made by `tool_search`.

    The engine knows by it which call has found tools, and whether the model's provider searches in its place.
    """

    limit: int | None = 5
    native: bool = True


class RawBody(Value, frozen=True):
    """A function of the call's context and its JSON text. It has to check the text itself, unless *check* does.

    *check* takes the arguments, parsed, and returns a text that says what is wrong with them, or None. It is called
    before any approval, and must be quick and pure.
    """

    fn: Callable[[ToolContext[Any], str], Any | Awaitable[Any]]
    check: Callable[[Mapping[str, Any]], str | None] | None = None


class ExternalBody(RawBody, frozen=True, kw_only=True):
    """No body: the application answers the call (`ExternalTool`, `tool(external=True)`).

    *returns* is the JSON schema of the answer. The engine knows by this class which calls wait; *fn* only refuses.
    """

    returns: Mapping[str, Any]


def _refuse_to_answer(ctx: ToolContext[Any], text: str) -> Any:
    raise UserTypeError(f"tool {ctx.tool_name!r} has no body: the application answers its calls")


@attrs.frozen(eq=False, repr=False, kw_only=True)
class AgentCall(ByFields):
    """Another agent, run as a tool. The engine interprets it, so that the nested run is part of the same log."""

    agent: Any
    schema: FunctionSchema
    typed: TypedOutput | None = None
    input_builder: Callback | None = attrs.field(default=None, validator=optional(FIELDS.function()))
    max_turns: int | None = 10
    run_config: Any = None
    session: Any = attrs.field(
        default=None, validator=optional(FIELDS.needs("expected a Session", has("get_items", "add_items")))
    )
    conversation: Conversation | None = None
    hooks: Any = None
    shows_schema: bool = False
    """True if the nested run is shown the JSON schema of its structured input, too."""
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


def _is_names(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str) and all(isinstance(one, str) for one in value)


# Converters. They let values of a wrong type pass, so that the validator reports them with the field's name.


def _to_tuple(values: Iterable[Any]) -> tuple[Any, ...]:
    given: object = values
    is_sequence = isinstance(given, Iterable) and not isinstance(given, str)
    return tuple(values) if is_sequence else cast("tuple[Any, ...]", given)


def _to_names(names: Iterable[str]) -> tuple[str, ...]:
    return _to_tuple(names)


def _to_examples(examples: Iterable[tuple[str, Mapping[str, Any]]]) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    return _to_tuple(examples)


def _to_error_function(given: Callback | Literal["tell_model", "raise"] | None) -> Callback | None:
    """Return the function that makes the text for the model; None if there is none, because the error ends the run."""
    words: dict[object, Callback | None] = {"tell_model": default_tool_error_function, "raise": None}
    return words.get(given, cast("Callback", given)) if isinstance(given, str) else given


def _to_limits(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, Limit) else _to_tuple(value)


@attrs.frozen(eq=False, repr=False)
class HostedTool(ByFields):
    """A tool that the model's provider runs itself: web search, file search, a code interpreter, image generation, MCP.

    It is in `Agent.tools`, beside the functions. Its calls come back as `HostedToolCall` items. A model whose
    provider doesn't know it raises `UserError` before the first request.

    Attributes:
        kind: The provider's name of the tool: `"web_search"`, `"code_interpreter"`.
        config: Its options, in the provider's own form: `{"container": {"type": "auto"}}`.

    Example:
        from agentloop import Agent, HostedTool

        agent = Agent("a", model="openai:gpt-5", tools=[HostedTool("web_search", {"search_context_size": "low"})])
        print(agent.tools[0].kind)  # web_search
    """

    kind: str = attrs.field(validator=FIELDS.words())
    config: Mapping[str, Any] = attrs.field(factory=dict, validator=FIELDS.mapping())


@attrs.frozen(eq=False, repr=False, kw_only=True)
class FunctionTool(ReprByFields, Generic[ContextT_contra]):
    """One tool. Made by `tool`, `Agent.as_tool`, or by hand with `on_invoke_tool`.

    A tool with a context type fits agents of that context and of its subtypes; a tool that takes no context fits all.
    Calling a tool made by `tool` calls the function. Fields are those of `tool`, plus `params_json_schema` (the schema
    that the model is shown) and `on_invoke_tool(ctx, json_text)`.

    Example:
        from agentloop import Agent, FunctionTool, Runner
        from agentloop.testing import ScriptedModel, call, say

        async def run(ctx, arguments: str) -> str:
            return f"got {arguments}"

        schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
        echo = FunctionTool(name="echo", description="Echo.", params_json_schema=schema, on_invoke_tool=run)
        agent = Agent("a", model=ScriptedModel([call("echo", {"x": 1}), say("ok")]), tools=[echo])
        result = Runner.run_sync(agent, "go")
        print(result.new_items[1].output)  # got {"x": 1}
    """

    name: str = attrs.field(
        validator=and_(
            Fields(lambda tool, _: "tool name").text(),
            Fields(lambda tool, _: f"tool name {tool.name!r}").needs(
                TOOL_NAME_NEEDS, matches_re(TOOL_NAME), quoted=False
            ),
        )
    )
    description: str = attrs.field(default="", validator=FIELDS.text())
    params_json_schema: Mapping[str, Any] = attrs.field(
        factory=dict, repr=False, validator=FIELDS.mapping("expected a JSON schema, as a mapping")
    )
    on_invoke_tool: Callable[[ToolContext[ContextT_contra], str], Any] | None = attrs.field(
        default=None, repr=False, validator=optional(_TOOL.function())
    )
    body: Body | None = attrs.field(
        default=None,
        repr=False,
        validator=optional(FIELDS.needs("expected a body", is_a(PythonBody, RawBody, AgentCall))),
    )
    strict_mode: bool = attrs.field(default=True, repr=False, validator=_TOOL.flag("expected a bool"))
    is_enabled: bool | Callback = attrs.field(default=True, repr=False, validator=_TOOL.flag_or_function("ctx, agent"))
    needs_approval: bool | Callback = attrs.field(
        default=False, repr=False, validator=_TOOL.flag_or_function("ctx, arguments, call_id")
    )
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
    timeout_behavior: Literal["tell_model", "raise"] = attrs.field(
        default="tell_model", converter=read_timeout_word, repr=False, validator=_TOOL.one_of("tell_model", "raise")
    )
    timeout_error_function: Callback | None = attrs.field(
        default=None, repr=False, validator=optional(_TOOL.function("ctx, error"))
    )
    failure_error_function: Callback | None = attrs.field(
        default=default_tool_error_function,
        converter=_to_error_function,
        repr=False,
        validator=optional(_TOOL.function("ctx, error", or_words="'tell_model', 'raise' or ")),
    )
    idempotent: bool = attrs.field(default=False, repr=False, validator=_TOOL.flag("expected a bool"))
    reads_only: bool = attrs.field(default=False, repr=False, validator=_TOOL.flag("expected a bool"))
    in_doubt: InDoubt = attrs.field(
        default="tell_model", repr=False, validator=_TOOL.one_of("tell_model", "rerun", "raise")
    )
    capacity: tuple[Capacity | Rate, ...] = attrs.field(
        default=(), converter=_to_limits, repr=False, validator=_TOOL.each("a Capacity or Rate", is_a(Capacity, Rate))
    )
    serial: str | None = attrs.field(default=None, repr=False, validator=optional(_TOOL.text()))
    exclusive: bool = attrs.field(default=False, repr=False, validator=_TOOL.flag("expected a bool"))
    background: bool = attrs.field(default=False, repr=False, validator=_TOOL.flag("expected a bool"))
    on_end: Literal["wait", "cancel"] = attrs.field(
        default="wait", repr=False, validator=_TOOL.one_of("wait", "cancel")
    )
    abandon_on_cancel: bool = attrs.field(default=False, repr=False, validator=_TOOL.flag("expected a bool"))
    namespace: str | None = attrs.field(default=None, validator=optional(_TOOL.text()))
    namespace_description: str | None = attrs.field(default=None, repr=False, validator=optional(_TOOL.text()))
    defer_loading: bool = attrs.field(default=False, repr=False, validator=_TOOL.flag("expected a bool"))
    kind: ToolKind = attrs.field(default="function", repr=False, validator=_TOOL.one_of(*get_args(ToolKind)))
    format: Mapping[str, Any] | None = attrs.field(default=None, repr=False, validator=optional(_TOOL.mapping()))
    output_schema: Mapping[str, Any] | None = attrs.field(
        default=None, repr=False, validator=optional(_TOOL.mapping("expected a JSON schema, as a mapping"))
    )
    allowed_callers: tuple[str, ...] = attrs.field(
        default=(), converter=_to_names, repr=False, validator=_TOOL.each("a kind of caller", is_a(str))
    )
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
    secret_output: bool = attrs.field(default=False, repr=False, validator=_TOOL.flag("expected a bool"))
    cost: Callback | None = attrs.field(default=None, repr=False, validator=optional(_TOOL.function("arguments")))
    custom_data_extractor: Callback | None = attrs.field(
        default=None, repr=False, validator=optional(_TOOL.function("ctx, value"))
    )

    def __attrs_post_init__(self) -> None:
        if self.body is None:
            if self.on_invoke_tool is None:
                raise UserTypeError(f"tool {self.name!r}: expected on_invoke_tool")
            object.__setattr__(self, "body", RawBody(self.on_invoke_tool))
        elif self.on_invoke_tool is None:
            object.__setattr__(self, "on_invoke_tool", self._invoke)
        if isinstance(self.body, PythonBody) and self.body.schema.extra_parameter in self.secret:
            # The keys of a secret `**kwargs` mix with the names of the other arguments, so all arguments are secret.
            object.__setattr__(self, "secret", (ALL_ARGUMENTS,))
        if self.kind == "custom":
            self._check_custom()
        elif self.kind == "function" and self.format is not None:
            raise UserValueError(f"tool {self.name!r}: format: it is for kind='custom', whose text it describes")
        if self.secret and isinstance(self.body, PythonBody | AgentCall | ExternalBody):
            self._check_secret()
        if self.namespace_description is not None and self.namespace is None:
            raise UserValueError(f"tool {self.name!r}: namespace_description: give the namespace, too")
        if isinstance(self.body, AgentCall) and self.capacity:
            raise UserValueError(
                f"tool {self.name!r}: an agent tool holds a slot of its own turn only; give the capacity to the tools "
                "of its agent"
            )
        if isinstance(self.body, ExternalBody) and (self.idle_timeout is not None or self.kind != "function"):
            field = "kind" if self.idle_timeout is None else "idle_timeout"
            raise UserValueError(f"tool {self.name!r}: {field}: the application answers the calls, no body runs")
        if self.background or self.on_end != "wait":
            self._check_background()
        if self.runs_in_thread:
            self._check_thread()
        elif self.abandon_on_cancel:
            raise UserValueError(f"tool {self.name!r}: abandon_on_cancel is for sync functions")

    def _check_custom(self) -> None:
        parameters = self.params_json_schema.get("properties", {})
        one_text = len(parameters) == 1 and next(iter(parameters.values())).get("type") == "string"
        if isinstance(self.body, AgentCall) or (isinstance(self.body, PythonBody) and not one_text):
            raise UserTypeError(f"tool {self.name!r}: kind='custom' is for a function of one text")
        if self.secret:
            object.__setattr__(self, "secret", (ALL_ARGUMENTS,))  # its text isn't an object with arguments by name
        if self.serial is None:
            object.__setattr__(self, "serial", "custom")

    def _check_secret(self) -> None:
        """Check that each secret argument is one of the tool's: a name with a typo would hide nothing.

        Tools of a source aren't checked: there one list of names may be for several tools.
        """
        known = self.params_json_schema.get("properties", {})
        is_open = self.params_json_schema.get("additionalProperties", False) is not False
        for name in self.secret if known and not is_open else ():
            if name not in known and name != ALL_ARGUMENTS:
                raise UserValueError(f"tool {self.name!r}: secret names {name!r}, and the arguments are {list(known)}")

    def _check_background(self) -> None:
        if not self.background:
            raise UserValueError(f"tool {self.name!r}: on_end: give background=True, too")
        if isinstance(self.body, AgentCall | ExternalBody | ToolSearch):
            raise UserValueError(f"tool {self.name!r}: background: expected a function of your own as the body")
        faults = {
            "exclusive": self.exclusive,
            "serial": self.serial is not None,
            "failure_error_function": self.failure_error_function is None,
            "timeout_behavior": self.timeout_behavior == "raise",
            "in_doubt": self.in_doubt == "raise",
            "tool_output_guardrails": bool(self.tool_output_guardrails),
            "custom_data_extractor": self.custom_data_extractor is not None,
        }
        if wrong := [name for name, is_given in faults.items() if is_given]:
            raise UserValueError(
                f"tool {self.name!r}: {wrong[0]}: a background call has settled when its body ends, so its result can "
                "only be told to the model, as a message"
            )

    def _check_thread(self) -> None:
        for field in ("timeout", "idle_timeout"):
            if getattr(self, field) is not None and not self.abandon_on_cancel:
                raise UserValueError(
                    f"tool {self.name!r}: {field}: a sync function can't be stopped; with abandon_on_cancel=True its "
                    "thread is left to end by itself. Or write the tool as an `async def`"
                )

    @property
    def text_parameter(self) -> str:
        """The name by which guardrails and policies get the free text of a custom tool; `"input"` for a raw body."""
        return next(iter(self.params_json_schema.get("properties", ())), "input")

    def write_arguments(self, arguments: Mapping[str, Any]) -> str:
        """Return *arguments* as the text of a call: JSON, or the free text of a custom tool.

        Raises:
            UserTypeError: if they aren't the one text of a custom tool.
        """
        if self.kind != "custom":
            return json.dumps(arguments, ensure_ascii=False)
        text = arguments.get(self.text_parameter)
        if not isinstance(text, str) or len(arguments) != 1:
            raise UserTypeError(f"tool {self.name!r}: expected {self.text_parameter!r} alone, as text")
        return text

    @property
    def runs_in_thread(self) -> bool:
        """True if the body is a sync function, which runs in a worker thread."""
        return isinstance(self.body, PythonBody) and not self.body.schema.is_async

    @property
    def qualified_name(self) -> str:
        """The name with its namespace: `ns.name`, or the bare name."""
        return qualify_name(self.name, self.namespace)

    @property
    def lookup_key(self) -> str:
        """The key by which a call finds the tool.

        It is `namespace.name`, `deferred:name` for a deferred tool without a namespace, or `name`.
        """
        if self.namespace:
            return f"{self.namespace}.{self.name}"
        return f"deferred:{self.name}" if self.defer_loading else self.name

    @property
    def fn(self) -> Callable[..., Any]:
        """The Python function of the tool: `tool(refund.fn, name="pay_back")` makes another tool of it.

        Raises:
            UserTypeError: if the tool was not made from a Python function.
        """
        if not isinstance(self.body, PythonBody):
            raise UserTypeError(f"tool {self.name!r} has no Python function")
        return self.body.fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the decorated function directly, without the engine.

        Raises:
            UserTypeError: if the tool was not made from a Python function.
        """
        return self.fn(*args, **kwargs)

    async def run_body(
        self, arguments: Mapping[str, Any] | str = "{}", context: object = None, *, call_id: str = "call"
    ) -> Any:
        """Run the body only, outside of any run, and return its value: for tests of a tool and for code that needs it.

        Arguments are read and checked as in a run. Nothing else of a run applies: no guardrail, policy, approval,
        limit, timeout, hook or error function, and nothing is recorded.

        Args:
            arguments: JSON text as a model writes it (any text, for a custom tool), or a mapping of JSON values.
            context: The application's context object.
            call_id: The id of the call in the body's `ToolContext`. Methods of that context that need a run (`report`,
                `cleanup`, `resource`, `cancel_call`, `check_cancelled`) raise UserError.

        Cancellation: the body's own. A sync body runs in a worker thread, which is awaited.

        Raises:
            ModelBehaviorError: the arguments don't fit.
            UserTypeError: the body is a nested run of an agent.
            BaseException: the error of the body, bare.

        Example:
            import anyio
            from agentloop import tool

            @tool
            def add(a: int, b: int) -> int:
                "Add two numbers."
                return a + b

            async def main():
                print(await add.run_body({"a": 2, "b": 3}))  # 5

            anyio.run(main)
        """
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        ctx: ToolContext[Any] = ToolContext(
            context=context,
            tool_name=self.name,
            tool_call_id=call_id,
            tool_arguments=text,
            tool_namespace=self.namespace,
            _secret=self.secret,
        )
        return await self._invoke(ctx, text)

    async def _invoke(self, ctx: ToolContext[Any], json_text: str) -> Any:
        """Run the body only, for the call of *ctx* with these arguments, outside of any run."""
        body = self.body
        if isinstance(body, RawBody):
            value = body.fn(ctx, json_text)
        elif isinstance(body, PythonBody):
            custom = self.kind == "custom"
            parsed = (
                {self.text_parameter: json_text} if custom else parse_object(json_text, JsonLimits(), tool=self.name)
            )
            bound = body.schema.bind(parsed, None if ctx.run_config is None else ctx.run_config.converter)
            if not body.schema.is_async:
                return await anyio.to_thread.run_sync(lambda: bound.call(body.fn, ctx))
            value = bound.call(body.fn, ctx)
        else:
            raise UserTypeError(f"tool {self.name!r} runs only inside a run")
        return await value if inspect.isawaitable(value) else value


class ToolOptions(TypedDict, total=False):
    """The options that any tool has, made by `tool` or by `Agent.as_tool`; documented at `tool`.

    An option left out has the default of `FunctionTool`.
    """

    is_enabled: bool | Callback
    needs_approval: bool | Callback
    tool_input_guardrails: Sequence[ToolInputGuardrail]
    tool_output_guardrails: Sequence[ToolOutputGuardrail]
    timeout: float | None
    idle_timeout: float | None
    timeout_behavior: Literal["tell_model", "raise", "error_as_result", "raise_exception"]
    timeout_error_function: Callback | None
    failure_error_function: Callback | Literal["tell_model", "raise"] | None
    idempotent: bool
    reads_only: bool
    in_doubt: InDoubt
    serial: str | None
    exclusive: bool
    namespace: str | None
    namespace_description: str | None
    defer_loading: bool
    output_schema: Mapping[str, Any] | None
    allowed_callers: Sequence[str]
    examples: Sequence[tuple[str, Mapping[str, Any]]]
    secret: Sequence[str]
    secret_output: bool
    cost: Callback | None
    custom_data_extractor: Callback | None


class FunctionOptions(ToolOptions, total=False):
    """The options of `tool`, documented there: those of any tool, and those that only a Python function has."""

    name: str | None
    description: str | None
    strict_mode: bool
    capacity: Capacity | Rate | Sequence[Capacity | Rate]
    abandon_on_cancel: bool
    background: bool
    on_end: Literal["wait", "cancel"]
    external: bool
    kind: ToolKind
    format: Mapping[str, Any] | None


_undescribed: set[str] = set()
"""Names of functions already warned about: a function made a tool for each request logs one warning only."""


def _warn_of_no_description(fn: Callable[..., Any], name: str) -> None:
    # Logged, not raised: the tool works. But the model chooses among tools by their descriptions, and its bad choices
    # would not show that this one has none. Not a Python warning: those are errors in many test suites.
    known = f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', name)}"
    if known not in _undescribed:
        _undescribed.add(known)
        logger.warning(
            "tool %r has neither a docstring nor a description: the model knows it by its name and parameters alone",
            name,
        )


def _tool_from(fn: Callable[..., Any], options: FunctionOptions) -> FunctionTool[Any]:
    if isinstance(fn, FunctionTool | _ToolMethod):
        made = fn.name if isinstance(fn, FunctionTool) else fn.__name__
        raise UserTypeError(f"{made!r} is a tool already; make a copy with attrs.evolve")
    fields: dict[str, Any] = {**options}
    name, description = fields.pop("name", None), fields.pop("description", None)
    strict, external = fields.get("strict_mode", True), fields.pop("external", False)
    if not isinstance(external, bool):
        raise UserTypeError(f"external: expected a bool, got {external!r}")
    from agentloop._schema.function_schema import function_schema

    schema = function_schema(fn, name=name, description=description, strict=strict, context_types=CONTEXT_TYPES)
    if description is None and not schema.description:
        _warn_of_no_description(fn, schema.name)
    return FunctionTool(
        name=schema.name,
        description=schema.description,
        params_json_schema=schema.params_json_schema,
        body=_external_body(fn, schema) if external else PythonBody(fn, schema),
        **fields,
    )


_DOES_NOTHING = frozenset(
    {"CACHE", "CALL_INTRINSIC_1", "COPY_FREE_VARS", "LOAD_CONST", "MAKE_CELL", "NOP", "POP_TOP"}
    | {"RERAISE", "RESUME", "RETURN_CONST", "RETURN_GENERATOR", "RETURN_VALUE"}
)
"""The instructions of a function without a body."""


def _external_body(fn: Callable[..., Any], schema: FunctionSchema) -> ExternalBody:
    """Return the body of an external tool: *fn* says by its annotations what the tool takes and is answered by.

    Raises:
        UserTypeError: if it does something, takes a context, or says nothing about the answer.
    """
    import dis

    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None or any(one.opname not in _DOES_NOTHING for one in dis.get_instructions(code)):
        raise UserTypeError(f"tool {schema.name!r}: external=True is for a function without a body, which never runs")
    if schema.context_parameter is not None:
        raise UserTypeError(f"tool {schema.name!r}: an external tool has no body that could take a context")
    if schema.returns is None:
        raise UserTypeError(f"tool {schema.name!r}: annotate the answer: def {schema.name}(...) -> str: ...")
    from agentloop._schema.function_schema import schema_of
    from agentloop._schema.json_check import check_schema

    what = f"tool {schema.name!r}: the answer"
    answers = check_schema(what, schema_of(what, schema.returns))

    def check(given: Mapping[str, Any]) -> str | None:
        try:
            schema.bind(dict(given))
        except ModelBehaviorError as error:
            return str(error).partition(" don't fit: ")[2] or str(error)
        return None

    return ExternalBody(_refuse_to_answer, check, returns=answers)


def ExternalTool(
    name: str,
    description: str,
    schema: Mapping[str, Any],
    *,
    returns: Mapping[str, Any] | None = None,
    **options: Unpack[ToolOptions],
) -> FunctionTool[Any]:
    """Make a tool whose calls the application answers: a person, a front end, a service that calls back.

    A call is planned, judged and approved as any other; then it starts, and waits. It never blocks the calls beside
    it. While these run, `RunStream.answer` answers it. When only such calls are left, the run pauses, as for an
    approval: `RunResult.interruptions` holds a `CallToAnswer`. `RunState.answer`, in this process or in another,
    gives the answer, and the run continues with it. The answer then passes the output guardrails and bounds of the
    tool. The first answer counts.

    With `timeout`, an answer that comes later than so many seconds after the start is refused, and the model receives
    the text of a timeout. The time counts in a pause, too. Cancellation: as for a call that waits for approval.

    Args:
        name, description: As the model is shown them.
        schema: The JSON schema of the arguments, an object.
        returns: The JSON schema of the answer; None if any value of JSON will do.
        options: Those of `tool` for any tool. `idle_timeout` and `in_doubt` have no meaning here.

    Raises:
        UserTypeError, UserValueError: if an argument is invalid; also for a keyword in *schema* or *returns* that the
            check of answers doesn't know.

    Example:
        from agentloop import Agent, ExternalTool, Runner
        from agentloop.testing import ScriptedModel, call, say

        place = ExternalTool("place", "Ask where the user is.", {}, returns={"type": "string"})
        agent = Agent("a", model=ScriptedModel([call("place"), say("Hello, Rome.")]), tools=[place])
        state = Runner.run_sync(agent, "Where am I?").to_state()
        state.answer(state.interruptions[0], "Rome")
        print(Runner.run_sync(agent, state).final_output)  # Hello, Rome.
    """
    from agentloop._schema.json_check import check_schema, find_violation

    if unknown := options.keys() - ToolOptions.__optional_keys__:
        raise_misplaced(ToolOptions.__optional_keys__, "ExternalTool", min(unknown))
    params = {"type": "object", "properties": {}} | dict(check_schema(f"tool {name!r}: schema", schema))
    answers = check_schema(f"tool {name!r}: returns", {} if returns is None else returns)
    fields: dict[str, Any] = {**options}
    return FunctionTool(
        name=name,
        description=description,
        params_json_schema=params,
        strict_mode=False,
        body=ExternalBody(_refuse_to_answer, functools.partial(find_violation, schema=params), returns=answers),
        **fields,
    )


_ASKS = "Ask the user one question, and wait for the answer. Ask only for what you can't find out yourself."


def ask_user(
    *,
    options: Sequence[str] | None = None,
    name: str = "ask_user",
    description: str = _ASKS,
    **tool: Unpack[ToolOptions],
) -> FunctionTool[Any]:
    """Make a tool by which the model asks the user: an `ExternalTool` that takes a question.

    `agentloop run` and `chat` ask at the terminal; anywhere else the application shows the question, and answers the
    call. The arguments of the call are `{"question": TEXT}`.

    Args:
        options: The answers to choose from; None for any text.
        name, description: As the model is shown them.
        tool: The options of any tool: `timeout`, for example.

    Raises:
        UserTypeError, UserValueError: if an argument is invalid.

    Example:
        from agentloop import Agent, Runner, ask_user
        from agentloop.testing import ScriptedModel, call, say

        model = ScriptedModel([call("ask_user", {"question": "Which size?"}), say("A large one.")])
        agent = Agent("a", model=model, tools=[ask_user(options=["small", "large"])])
        state = Runner.run_sync(agent, "A coffee.").to_state()
        print(state.interruptions[0].call.arguments)  # {"question": "Which size?"}
        state.answer(state.interruptions[0], "large")
        print(Runner.run_sync(agent, state).final_output)  # A large one.
    """
    returns: dict[str, Any] = {"type": "string"}
    if options is not None:
        choices = _to_names(options)
        if not choices or not all(isinstance(one, str) for one in choices):
            raise UserTypeError(f"options: expected texts to choose from, got {options!r}")
        returns["enum"] = list(choices)
    schema = {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}
    return ExternalTool(name, description, schema, returns=returns, **tool)


class ToolDecorator(Protocol):
    """The result of `tool` called with options only. Makes a tool of the context type that the function takes."""

    # A context parameter in another position than the first works, too, but type checkers don't see its type.
    @overload
    def __call__(self, fn: Callable[Concatenate[ToolContext[ContextT], BodyP], Any], /) -> FunctionTool[ContextT]: ...
    @overload
    def __call__(self, fn: Callable[..., Any], /) -> FunctionTool[Any]: ...


@overload
def tool(
    fn: Callable[Concatenate[ToolContext[ContextT], BodyP], Any], /, **options: Unpack[FunctionOptions]
) -> FunctionTool[ContextT]: ...
@overload
def tool(fn: Callable[..., Any], /, **options: Unpack[FunctionOptions]) -> FunctionTool[Any]: ...
@overload
def tool(fn: None = None, /, **options: Unpack[FunctionOptions]) -> ToolDecorator: ...
def tool(fn: Callable[..., Any] | None = None, /, **options: Unpack[FunctionOptions]) -> Any:
    """Make a tool from a function. A decorator, used bare or with options.

    The schema comes from the signature, the descriptions from the docstring. A parameter annotated `ToolContext` or
    `RunContext` receives the context and is hidden from the model. Async functions run on the event loop, sync
    functions in a worker thread.

    Args:
        fn: The function; a wrapped function, a partial, a bound method or a callable object also works. On a method in
            the body of a class: `Shelf("A").find` is then a tool.
        name: The name of the tool for the model; the function's name if not given.
        description: The description for the model; the docstring's text if not given. Without either a warning is
            logged.
        strict_mode: True to make the schema strict (all parameters required, no others allowed).
        is_enabled: True if the tool is shown and may be called; a callable of `(ctx, agent)`, called every turn,
            decides.
        needs_approval: True if a call waits for a verdict; a callable of `(ctx, arguments, call_id)` decides.
        tool_input_guardrails, tool_output_guardrails: Checks of arguments and output, in order.
        timeout: Seconds for the body only; None = no limit. A sync function needs `abandon_on_cancel=True` for it.
        idle_timeout: Seconds that the body may be silent; every `ctx.report` restarts them. None = no limit. A sync
            function needs `abandon_on_cancel=True` for it.
        timeout_behavior: The body ran out of time: give the model an error text (`"tell_model"`), or end the run with
            `ToolTimeoutError` (`"raise"`).
        timeout_error_function: `(ctx, ToolTimeoutError) -> str`, the text for the model.
        failure_error_function: The body raised: give the model the usual text (`"tell_model"`), end the run with
            `ToolCallError` (`"raise"`; None means the same), or `(ctx, error) -> str | None`, which makes the text. The
            error ends the run if the function returns None.
        idempotent: True if an equal call may receive the output of an earlier one.
        reads_only: True if a call only reads and changes nothing, here or elsewhere. In a resumed run a call in doubt
            runs again, and `agentloop.lab`, where no other body runs, runs it.
        in_doubt: The treatment, in a resumed run, of a call that may or may not have taken effect when the run stopped:
            inform the model (`"tell_model"`), run it again (`"rerun"`; calls of tools that are idempotent or only read
            always are), or raise (`"raise"`).
        capacity: A `Capacity`, a `Rate`, or several: limits shared with all other users of the same objects.
        serial: The name of a group whose calls never overlap within a turn and start in model order. Custom tools are
            in the group `"custom"` unless another is given.
        exclusive: True if no other call may run beside a call.
        abandon_on_cancel: For sync functions: True to leave the thread running when its call is cancelled.
        background: True if the call settles once its body has started: the model gets "started" at once, and the
            result as a message when it is there. See `docs/how-to/background.md`.
        on_end: A run that would end waits for its background calls and shows the model their results (`"wait"`), or
            cancels them (`"cancel"`).
        external: True if the application answers the calls, as of an `ExternalTool`: the function has no body, and its
            annotations say what the tool takes and what the answer is.
        namespace: The namespace of the tool; the model calls it as a member of that namespace.
        namespace_description: What the tools of the namespace are for, for the model. Of several tools in it the first
            that says so counts.
        defer_loading: True if the model is shown the tool only once a search has found it: the provider's own search,
            or that of `tool_search`.
        kind: `"custom"` for a tool that takes free text in place of JSON: a function of one `str`. `"shell"`,
            `"apply_patch"` and `"computer"` are set by the tools of `agentloop.executors`: a provider that has an item
            for these calls is shown its own tool, others a function. `"memory"` is set by `agentloop.bundles.Memory`.
        format: The grammar of a custom tool's text, in the provider's form; None = any text. For a computer, its
            display: `{"width": 1280, "height": 800, "environment": "browser"}`.
        output_schema: The JSON schema of the output's JSON, for providers that run programs over outputs.
        allowed_callers: Who may call, in the provider's words (`"direct"`, `"programmatic"`); empty: the model only.
        examples: `(request, arguments)` pairs, shown to small models.
        secret: Names of arguments whose values appear in no log, span, repr or error text, and in a journal or state
            only sealed by its codec, or as digests. An error of such a call shows its type only, `TYPE([redacted])`.
            Texts that guardrails, policies and error functions make from the call reach the model and are secret, too.
        secret_output: True to treat the output in the same manner.
        cost: `(arguments) -> number`, the cost of a call, counted against the run's cost limit; reserved before the
            call starts.
        custom_data_extractor: `(ctx, value) -> data`, kept beside the output for the application.

    Raises:
        UserTypeError, UserValueError: at decoration time, if an argument is invalid; names it.

    Example:
        from agentloop import tool

        @tool(timeout=10)
        async def weather(city: str, days: int = 1) -> str:
            "Tell the weather of a city."
            return f"{city}: sunny for {days} days"

        print(weather.name, weather.params_json_schema["required"])  # weather ['city', 'days']
    """
    if unknown := options.keys() - FunctionOptions.__optional_keys__:
        raise_misplaced(FunctionOptions.__optional_keys__, "tool", min(unknown))

    def make(function: Callable[..., Any]) -> Any:
        if isinstance(function, staticmethod) and not isinstance(function, _ToolMethod):
            function = function.__func__
        return _ToolMethod(function, options) if _is_method(function) else _tool_from(function, options)

    return make if fn is None else make(fn)


def _is_method(fn: Any) -> bool:
    """Tell whether *fn* is a function in the body of a class, whose first parameter is the instance or the class.

    Raises:
        UserTypeError: if the first parameter looks like another word for it.
    """
    if isinstance(fn, classmethod | functools.partialmethod):
        return True
    if not inspect.isfunction(fn) or "." not in fn.__qualname__.rpartition("<locals>.")[2]:
        return False
    first = next(iter(inspect.signature(fn).parameters.values()), None)
    if first is not None and first.name != "self" and first.annotation is first.empty:
        raise UserTypeError(
            f"Tool {fn.__name__}: parameter {first.name} has no annotation. In a method the instance is called self, "
            "and @tool stands above @classmethod"
        )
    return first is not None and first.name == "self"


class _ToolMethod(staticmethod):  # type: ignore[type-arg]
    """A method under `@tool`: `Shelf("A").find` is then a tool of that shelf.

    A method becomes a tool only with its instance, so this is a descriptor, as functions are. Each access makes a tool
    anew: give an agent the one that you took.

    As a kind of `staticmethod` it is left alone by what looks for the fields of a class, as pydantic's models do; it
    stays abstract if the method is; and `Shelf.find(shelf, …)` calls the function.
    """

    # Else it could not be set, as `@abstractmethod` above `@tool` does.
    __isabstractmethod__: Any = False  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]

    def __init__(self, fn: Any, options: FunctionOptions) -> None:
        super().__init__(fn)
        self.__isabstractmethod__ = getattr(fn, "__isabstractmethod__", False)
        self._fn = fn
        self._options: FunctionOptions = options

    def __set_name__(self, owner: type, name: str) -> None:
        if isinstance(self._fn, functools.partialmethod):  # several of one function have its name
            self._options = {"name": name, **self._options}

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None and not isinstance(self._fn, classmethod):
            return self
        return _tool_from(self._fn.__get__(instance, owner), self._options)

    def __repr__(self) -> str:
        fn = self._fn.func if isinstance(self._fn, functools.partialmethod) else self._fn
        cls, _, name = fn.__qualname__.rpartition(".")
        return f"the method {cls}.{name}, which is a tool only of an instance: {cls}(…).{name}"


def may_run_again(tool: FunctionTool[Any]) -> bool:
    """Tell whether a call of *tool* that may have taken effect is run again."""
    return tool.idempotent or tool.reads_only or tool.in_doubt == "rerun"


# -- search of tools


_ABOUT_SEARCH = "Find further tools by words that say what they do. What is found can be called from your next step on."
_NOTHING_FOUND = "No tool fits. Try other words for what the tool should do."
_ABOUT_QUERY = "Words for what the tool should do."


def tool_search(*, limit: int | None = 5, native: bool = True, **options: Unpack[FunctionOptions]) -> FunctionTool[Any]:
    """Return a tool by which a model finds the agent's deferred tools (`defer_loading=True`).

    With it, deferred tools are hidden until a search has found them: they cost no tokens, and small models choose among
    fewer. The model gives words; it receives the names and descriptions of the tools that fit best, and is offered
    these from its next turn on, in the rest of the run. `CallSettled.outcome.found` has the names, so a resumed or
    replayed run offers the same. A search is an ordinary call, but no use of a tool: it is never the final output, and
    a demanded tool choice stays until another tool was called.

    A tool that `tool_choice` names is shown without a search. A call of a tool that is still hidden is answered by the
    advice to search for it.

    Args:
        limit: The most tools that one search finds; None = all that fit.
        native: True to leave the search to the model's provider, if its interface has one; False to search here always.
        options: Those of `tool`, but for `kind`, `format` and `defer_loading`. The name is `"tool_search"` if not
            given.

    Raises:
        UserTypeError, UserValueError: if an argument is invalid; names it.

    Example:
        from agentloop import Agent, tool, tool_search

        @tool(defer_loading=True)
        def refund(order: str) -> str:
            "Pay an order back."
            return "done"

        agent = Agent("a", tools=[refund, tool_search()])  # the model sees `refund` after it has searched for it
        print([one.name for one in agent.tools])  # ['refund', 'tool_search']
    """
    check_count("tool_search: limit", limit)
    if not isinstance(native, bool):
        raise UserTypeError(f"tool_search: native: expected a bool, got {native!r}")
    if fixed := [name for name in ("kind", "format", "defer_loading") if name in options]:
        raise UserTypeError(f"tool_search: {fixed[0]}: it is fixed")

    async def search(ctx: ToolContext[Any], query: Annotated[str, _ABOUT_QUERY]) -> dict[str, Any]:
        found = ctx._require_services("search_tools").search_tools(query, limit)
        return {"found": found} if found else {"found": [], "note": _NOTHING_FOUND}

    given: FunctionOptions = {"name": "tool_search", "description": _ABOUT_SEARCH, "in_doubt": "rerun"}
    made = _tool_from(search, {**given, **options})
    assert isinstance(made.body, PythonBody)
    body = ToolSearch(fn=made.body.fn, schema=made.body.schema, limit=limit, native=native)
    return attrs.evolve(made, body=body, on_invoke_tool=None)


# -- sources of tools


@runtime_checkable
class ToolSource(Protocol):
    """A source of tools that are known only within a run: a server, a registry, the rights of a user.

    It is in `Agent.toolsets` or `RunConfig.toolsets`. A run asks each source once per turn, all at once; what a source
    gives holds for the whole turn, so a call planned before keeps its tool. A run that is resumed asks anew.

    The log has the names, the policies and a digest of the schemas, so a strict replay asks no source. A source may
    have a `name`, by which errors call it; else they use its class.

    Example:
        from agentloop import Agent, Runner, tool
        from agentloop.testing import ScriptedModel, call, say

        @tool
        def ping() -> str:
            "Answer."
            return "pong"

        class Plugins:
            name = "plugins"

            async def tools(self, ctx, agent):
                return [ping]

        agent = Agent("a", model=ScriptedModel([call("ping"), say("ok")]), toolsets=[Plugins()])
        print(Runner.run_sync(agent, "go").new_items[1].output)  # pong
    """

    async def tools(self, ctx: RunContext[Any], agent: Any) -> Sequence[FunctionTool[Any]]:
        """Return the tools that *agent* has in the turn that begins.

        A tool that hasn't changed should be the same object as before: the run then keeps what it made of it. Agents
        as tools can't come from a source: a run has to know its agents before it begins.

        Cancellation: the run's; it must pass.

        Raises:
            Exception: ends the run with `ToolSourceError`, which can be resumed; the library's own errors stay as they
                are.
        """
        ...


class ToolOrigin(Value, frozen=True):
    """Where the tool of a call came from (`RunResult.tool_origins`).

    Attributes:
        kind: `"function"` for a function or another tool of the agent's own; `"source"` for a tool of a `ToolSource`,
            such as an MCP server; `"agent"` for an agent as a tool; `"provider"` for a call that the provider runs
            itself, once it is approved.
        name: The name of the source or of the agent; of the server that the provider asks. None for a function.

    Example:
        from agentloop import Agent, Runner
        from agentloop.testing import ScriptedModel, call, say

        expert = Agent("expert", model=ScriptedModel([say("42")])).as_tool()
        agent = Agent("a", model=ScriptedModel([call("expert", {"input": "?"}, "c1"), say("42")]), tools=[expert])
        print(Runner.run_sync(agent, "go").tool_origins["c1"])  # ToolOrigin(kind='agent', name='expert')
    """

    kind: Literal["function", "source", "agent", "provider"]
    name: str | None = None


def source_name(source: object) -> str:
    """Return the name by which errors call a source of tools."""
    name = getattr(source, "name", None)
    return name if isinstance(name, str) and name else type(source).__name__


@attrs.define(eq=False, repr=False, kw_only=True)
class ToolSelection(ReprByFields):
    """A `ToolSource`: some tools of another source, under other names, with other options.

    Attributes:
        source: The source that is asked, or tools.
        filter: The names of the tools to take, or a predicate of a tool; None takes all.
        prefix: A text put before every name.
        namespace: The namespace of all tools; None leaves their own.
        options: `(tool) -> options of @tool`, for the tool as the source gave it; they replace the tool's own. None
            changes nothing.

    Raises:
        UserTypeError: from `tools`, if `options` gives something else than options.

    Example:
        from agentloop import Agent, ToolSelection, tool

        @tool
        def read(path: str) -> str:
            "Read a file."
            return "text"

        @tool
        def remove(path: str) -> str:
            "Remove a file."
            return "gone"

        agent = Agent("a", toolsets=[ToolSelection(source=[read, remove], filter=["read"])])
        print(len(agent.toolsets))  # 1
    """

    source: ToolSource | Sequence[FunctionTool[Any]] = attrs.field(
        validator=FIELDS.needs(
            "expected a source of tools (with `tools`) or tools", either(has("tools"), is_a(Sequence))
        )
    )
    filter: Collection[str] | Callable[[FunctionTool[Any]], bool] | None = attrs.field(
        default=None,
        validator=optional(FIELDS.needs("expected names or a predicate", either(is_a(Callable), fits(_is_names)))),
    )
    prefix: str = attrs.field(default="", validator=FIELDS.text())
    namespace: str | None = attrs.field(default=None, validator=optional(FIELDS.text()))
    options: Callable[[FunctionTool[Any]], Mapping[str, Any] | None] | None = attrs.field(
        default=None, validator=optional(FIELDS.function())
    )
    _made: dict[FunctionTool[Any], FunctionTool[Any]] = attrs.field(factory=dict, init=False, repr=False)
    """By tool of the source, the tool made of it, so that a tool that hasn't changed stays the same object."""

    @property
    def name(self) -> str:
        """The name of the source."""
        return source_name(self.source)

    async def tools(self, ctx: RunContext[Any], agent: Any) -> Sequence[FunctionTool[Any]]:
        """Return the selected tools of the source."""
        given = self.source if isinstance(self.source, Sequence) else await self.source.tools(ctx, agent)
        made = {tool: self._made.get(tool) or self._change(tool) for tool in given if self._takes(tool)}
        self._made = made
        return tuple(made.values())

    def _takes(self, tool: FunctionTool[Any]) -> bool:
        if self.filter is None:
            return True
        return self.filter(tool) if callable(self.filter) else tool.name in self.filter

    def _change(self, tool: FunctionTool[Any]) -> FunctionTool[Any]:
        given: object = None if self.options is None else self.options(tool)
        changes = given or {}
        if not isinstance(changes, Mapping) or changes.keys() - FunctionOptions.__optional_keys__:
            raise UserTypeError(f"ToolSelection.options: expected options of @tool for {tool.name!r}, got {changes!r}")
        names = {"name": f"{self.prefix}{tool.name}", "namespace": self.namespace or tool.namespace}
        made = attrs.evolve(tool, **{**names, **changes})
        if isinstance(made.body, PythonBody):  # its errors name the tool
            schema = attrs.evolve(made.body.schema, name=made.name)
            made = attrs.evolve(made, body=made.body.replace(schema=schema), on_invoke_tool=None)
        return made


# -- tool outputs that end the run


def _to_name_or_names(names: str | Iterable[str]) -> tuple[str, ...]:
    given: Any = names
    return (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)


@takes_options("Agent(tool_use_behavior=StopAtTools(OPTION=…))")
@attrs.frozen(eq=False, repr=False)
class StopAtTools(ByFields):
    """A `tool_use_behavior`: finish with the output of the first called tool that is one of *names*.

    Example:
        from agentloop import Agent, Runner, StopAtTools, tool
        from agentloop.testing import ScriptedModel, call

        @tool
        def look_up(word: str) -> str:
            "Look a word up."
            return f"{word}: a noun"

        agent = Agent(
            "a", model=ScriptedModel([call("look_up", {"word": "log"})]), tools=[look_up],
            tool_use_behavior=StopAtTools("look_up"),
        )
        print(Runner.run_sync(agent, "log?").final_output)  # log: a noun
    """

    names: tuple[str, ...] = attrs.field(converter=_to_name_or_names, validator=FIELDS.texts("expected names of tools"))


class ToolsToFinalOutput(Value, frozen=True, kw_only=True):
    """The result of a callable `tool_use_behavior`: if `is_final`, the run ends with `output`.

    Example:
        from agentloop import Agent, Runner, ToolsToFinalOutput, tool
        from agentloop.testing import ScriptedModel, call

        @tool
        def roll() -> int:
            "Roll a die."
            return 4

        def first_value(ctx, results):
            return ToolsToFinalOutput(is_final=True, output=results[0].value)

        agent = Agent("a", model=ScriptedModel([call("roll")]), tools=[roll], tool_use_behavior=first_value)
        print(Runner.run_sync(agent, "Roll.").final_output)  # 4
    """

    is_final: bool
    output: Any = None


class ToolResult(Value, frozen=True, kw_only=True):
    """One settled call in the `results` of a callable `tool_use_behavior`: Python `value` and the model's `output`."""

    tool: FunctionTool | None
    call: ToolCall
    value: Any
    output: Content | None

    def __repr__(self) -> str:
        masks = {"value": repr(MASK), "output": repr(MASK)} if self.call.secret_output else {}
        return self._format(masks)


ToolUseBehavior: TypeAlias = Literal["run_llm_again", "stop_on_first_tool"] | StopAtTools | Callback
