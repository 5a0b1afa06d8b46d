"""Tools as values: what makes one, what is refused by name, and what calling one outside of a run does."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from agentloop import Agent, ExternalTool, tool
from agentloop.context import RunContext, ToolContext
from agentloop.exceptions import AgentLoopError, ModelBehaviorError, UserTypeError, UserValueError
from agentloop.guardrails import Allow, tool_input_guardrail
from agentloop.limits import Capacity, Rate
from agentloop.tools import FunctionOptions, FunctionTool, default_tool_error_function


async def greet(name: str, loud: bool = False) -> str:
    """Greet somebody.

    Args:
        name: Who.
    """
    return f"HELLO {name}" if loud else f"hello {name}"


def add(x: int, y: int) -> int:
    """Add."""
    return x + y


@attrs.frozen
class Shelf:
    """Where something stands."""

    row: int


async def raw(ctx: ToolContext[Any], text: str) -> str:
    """Answer with what came."""
    return f"{ctx.tool_name}: {text}"


@tool_input_guardrail
def fine(data: Any) -> Allow:
    """Allow."""
    return Allow()


def context(name: str = "greet") -> ToolContext[Any]:
    """Return a context of a call that no runtime runs."""
    return ToolContext.from_agent_context(RunContext(context="app"), "c1", tool_name=name)


# ---------------------------------------------------------------------------------------------- making


def test_a_tool_has_the_name_description_and_schema_of_its_function() -> None:
    """The function may be decorated bare, with options, or by a plain call."""
    bare, given = tool(greet), tool(name="hi", description="Say hi.")(greet)
    assert (bare.name, bare.description) == ("greet", "Greet somebody.")
    assert (given.name, given.description) == ("hi", "Say hi.")
    assert bare.params_json_schema["properties"]["name"]["description"] == "Who."
    assert bare.params_json_schema["required"] == ["name", "loud"]
    assert tool(greet, strict_mode=False).params_json_schema["required"] == ["name"]
    assert tool(functools.partial(add, y=1), name="next").params_json_schema["required"] == ["x"]


def test_the_options_of_the_decorator_are_the_fields_of_a_tool() -> None:
    """The decorator takes every field of a tool, except those that the function itself decides."""
    made = {"params_json_schema", "on_invoke_tool", "body"}
    assert {field.name for field in attrs.fields(FunctionTool)} - made == FunctionOptions.__optional_keys__ - {
        "external"
    }  # it makes the body


@pytest.mark.parametrize("option", ["retries", "body", "on_invoke_tool", "params_json_schema"])
def test_an_option_that_isnt_one_is_refused_by_name(option: str) -> None:
    """The option is refused before there is a function."""
    options: Any = {option: None}
    with pytest.raises(UserTypeError, match=f"tool has no option {option!r}"):
        tool(**options)


def test_a_tool_isnt_made_of_a_tool() -> None:
    """`attrs.evolve` makes a copy of a tool with other policies."""
    first = tool(greet)
    with pytest.raises(UserTypeError, match=r"'greet' is a tool already"):
        tool(first, name="other")
    assert attrs.evolve(first, name="other", timeout=2.0).timeout == 2.0
    assert first.timeout is None


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"name": 3}, UserTypeError, "name"),
        ({"name": "no spaces"}, UserValueError, r"tool name 'no spaces'"),
        ({"name": "x" * 65}, UserValueError, "1 to 64"),
        ({"strict_mode": "yes"}, UserTypeError, "strict_mode: expected a bool"),
        ({"is_enabled": "yes"}, UserTypeError, "is_enabled: expected a bool or a callable"),
        ({"needs_approval": None}, UserTypeError, "needs_approval: expected a bool or a callable"),
        ({"tool_input_guardrails": fine}, UserTypeError, "tool_input_guardrails: expected a sequence"),
        (
            {"tool_input_guardrails": [fine, len]},
            UserTypeError,
            r"tool_input_guardrails\[1\]: expected a ToolInputGuardrail",
        ),
        (
            {"tool_output_guardrails": [fine]},
            UserTypeError,
            r"tool_output_guardrails\[0\]: expected a ToolOutputGuardrail",
        ),
        ({"timeout": "soon"}, UserTypeError, "timeout"),
        ({"timeout": -1}, UserValueError, "timeout"),
        ({"idle_timeout": float("nan")}, UserValueError, "idle_timeout"),
        ({"timeout_behavior": "shrug"}, UserValueError, "timeout_behavior: expected one of 'tell_model'"),
        ({"timeout_error_function": "late"}, UserTypeError, "timeout_error_function: expected a callable"),
        (
            {"failure_error_function": "bad"},
            UserTypeError,
            "failure_error_function: expected 'tell_model', 'raise' or a callable",
        ),
        ({"idempotent": 1}, UserTypeError, "idempotent: expected a bool"),
        ({"reads_only": "yes"}, UserTypeError, "reads_only: expected a bool"),
        ({"in_doubt": "guess"}, UserValueError, "in_doubt: expected one of 'tell_model', 'rerun', 'raise'"),
        ({"capacity": 3}, UserTypeError, "capacity: expected a sequence"),
        ({"capacity": [Capacity(1), 3]}, UserTypeError, r"capacity\[1\]: expected a Capacity or Rate"),
        ({"serial": 1}, UserTypeError, "serial: expected text"),
        ({"exclusive": None}, UserTypeError, "exclusive: expected a bool"),
        ({"abandon_on_cancel": True}, UserValueError, "abandon_on_cancel is for sync functions"),
        ({"namespace": 1}, UserTypeError, "namespace: expected text"),
        ({"namespace": "n", "namespace_description": 1}, UserTypeError, "namespace_description: expected text"),
        ({"namespace_description": "x"}, UserValueError, "namespace_description: give the namespace, too"),
        ({"defer_loading": "x"}, UserTypeError, "defer_loading: expected a bool"),
        ({"examples": "go"}, UserTypeError, "examples: expected a sequence"),
        ({"examples": [("go", {}), ("go", "x")]}, UserTypeError, r"examples\[1\]: expected a pair"),
        ({"secret": "name"}, UserTypeError, "secret: expected a sequence"),
        ({"secret": ["name", 3]}, UserTypeError, r"secret\[1\]: expected an argument's name"),
        ({"secret": ["nam"]}, UserValueError, "secret names 'nam', and the arguments are "),
        ({"format": {"type": "grammar"}}, UserValueError, "format: it is for kind='custom'"),
        ({"secret_output": 0}, UserTypeError, "secret_output: expected a bool"),
        ({"cost": 3}, UserTypeError, "cost: expected a callable"),
        ({"custom_data_extractor": 3}, UserTypeError, "custom_data_extractor: expected a callable"),
    ],
)
def test_a_wrong_option_is_refused_at_once_by_its_name(
    options: dict[str, Any], error: type[AgentLoopError], words: str
) -> None:
    """The error has the tool's name, where it has one; a copy is judged like the original."""
    with pytest.raises(error, match=words) as caught:
        tool(greet, **options)  # type: ignore[call-overload]
    if "name" not in options:
        assert "tool 'greet'" in str(caught.value)
        with pytest.raises(error, match=words):
            attrs.evolve(tool(greet), **options)


def test_a_secret_argument_is_one_of_the_tool_however_it_is_made() -> None:
    """Where the names aren't all known, as with `**kwargs`, any is taken; so is `*`, which means all."""

    async def keep(**words: str) -> str:
        return "kept"

    room = {"type": "object", "properties": {"door": {"type": "string"}}}
    for make in (
        lambda: Agent("a").as_tool(secret=["password"]),
        lambda: Agent("a").as_tool(parameters=Shelf, secret=["password"]),
        lambda: ExternalTool("room", "Ask.", room, secret=["password"]),
    ):
        with pytest.raises(UserValueError, match="secret names 'password', and the arguments are "):
            make()
    assert Agent("a").as_tool(secret=["input"]).secret == ("input",)
    assert Agent("a").as_tool(parameters=Shelf, secret=["row"]).secret == ("row",)
    assert Agent("a").as_tool(parameters=dict[str, str], secret=["password"]).secret == ("password",)
    assert ExternalTool("room", "Ask.", room, secret=["door"]).secret == ("door",)
    assert ExternalTool("room", "Ask.", {}, secret=["door"]).secret == ("door",)
    assert ExternalTool("room", "Ask.", room | {"additionalProperties": True}, secret=["key"]).secret == ("key",)
    assert tool(keep, strict_mode=False, secret=["password"]).secret == ("password",)
    assert tool(greet, secret=["*"]).secret == ("*",)


@pytest.mark.parametrize("capacity", [Capacity(2), [Capacity(2), Rate(3, per=1.0)], iter([Capacity(2)]), ()])
def test_limits_are_one_or_several(capacity: Any) -> None:
    """A single limit becomes a sequence of one."""
    limits = tool(greet, capacity=capacity).capacity
    assert isinstance(limits, tuple)
    assert all(isinstance(limit, Capacity | Rate) for limit in limits)
    assert len(limits) == (1 if not isinstance(capacity, list | tuple) else len(capacity))


@pytest.mark.parametrize("field", ["timeout", "idle_timeout"])
def test_a_sync_function_is_timed_only_where_its_thread_may_be_left(field: str) -> None:
    """A sync function can't be stopped, so its thread must be left."""
    options: Any = {field: 1.0}
    with pytest.raises(UserValueError, match=f"tool 'add': {field}: a sync function can't be stopped"):
        tool(add, **options)
    assert getattr(tool(add, abandon_on_cancel=True, **options), field) == 1.0


def test_a_tool_by_hand_needs_a_function_of_context_and_text() -> None:
    """The application gives the tool's schema itself, since there is no Python function to read."""
    with pytest.raises(UserTypeError, match=r"tool 'echo': expected on_invoke_tool"):
        FunctionTool(name="echo")
    with pytest.raises(UserTypeError, match=r"on_invoke_tool: expected a callable"):
        FunctionTool(name="echo", on_invoke_tool="raw")  # type: ignore[arg-type]
    echo = FunctionTool(name="echo", on_invoke_tool=raw)
    assert not echo.runs_in_thread
    assert echo.params_json_schema == {}
    with pytest.raises(UserTypeError, match=r"'echo' has no Python function"):
        echo("x")


def test_an_agents_tool_holds_no_capacity() -> None:
    """The agent tool would wait for a limit that its own agent's tools hold."""
    asked = Agent("helper").as_tool()
    with pytest.raises(UserValueError, match=r"tool 'helper': an agent tool holds a slot of its own turn only"):
        attrs.evolve(asked, capacity=[Capacity(1)])


# ---------------------------------------------------------------------------------------------- naming


@pytest.mark.parametrize(
    ("options", "qualified", "key"),
    [
        ({}, "greet", "greet"),
        ({"namespace": "ns"}, "ns.greet", "ns.greet"),
        ({"defer_loading": True}, "greet", "deferred:greet"),
        ({"defer_loading": True, "namespace": "ns"}, "ns.greet", "ns.greet"),
    ],
)
def test_a_tool_is_found_by_its_key(options: Any, qualified: str, key: str) -> None:
    """A name space tells two tools of one name apart, and so does being deferred at the top level."""
    made = tool(greet, **options)
    assert (made.qualified_name, made.lookup_key) == (qualified, key)


# ---------------------------------------------------------------------------------------------- calling


async def test_calling_a_tool_calls_its_function() -> None:
    """A tool is called like its undecorated function."""
    assert tool(add)(1, y=2) == 3
    assert await tool(greet)("you") == "hello you"


async def test_a_tool_can_be_invoked_with_the_text_of_its_arguments() -> None:
    """Code that has a context can invoke a tool: arguments are checked, sync functions run in place."""
    invoke = _invoke_of(tool(greet))
    assert await invoke(context(), '{"name": "you", "loud": true}') == "HELLO you"
    assert await _invoke_of(tool(add))(context("add"), '{"x": 1, "y": 2}') == 3
    assert await _invoke_of(FunctionTool(name="echo", on_invoke_tool=raw))(context("echo"), "any text") == (
        "echo: any text"
    )
    with pytest.raises(AgentLoopError, match="loud"):
        await invoke(context(), '{"name": "you", "loud": "very"}')
    with pytest.raises(ModelBehaviorError, match="aren't valid JSON"):
        await invoke(context(), "{")


async def test_an_agents_tool_cant_be_invoked_outside_of_a_run() -> None:
    """A nested run is part of the run around it."""
    with pytest.raises(UserTypeError, match=r"tool 'helper' runs only inside a run"):
        await _invoke_of(Agent("helper").as_tool())(context("helper"), '{"input": "x"}')


async def test_a_body_runs_outside_of_a_run() -> None:
    """The arguments are checked as in a run; the body gets the application's object, and a call id."""
    assert await tool(greet).run_body({"name": "you", "loud": True}) == "HELLO you"
    assert await tool(greet).run_body('{"name": "you"}') == "hello you"
    assert await FunctionTool(name="echo", on_invoke_tool=raw).run_body("any text") == "echo: any text"
    assert await FunctionTool(name="now", on_invoke_tool=lambda ctx, text: text).run_body({"a": 1}) == '{"a": 1}'

    @tool
    async def buy(ctx: ToolContext[dict[str, int]], item: str) -> tuple[str, int, str]:
        """Buy."""
        return ctx.tool_call_id, ctx.context[item], ctx.tool_arguments

    found = await buy.run_body({"item": "tea"}, {"tea": 3}, call_id="c7")
    assert found == ("c7", 3, '{"item": "tea"}')


async def test_a_sync_body_outside_of_a_run_has_a_thread() -> None:
    """It may block, as in a run."""
    where = tool(lambda: threading.get_ident(), name="where")
    assert await where.run_body() != threading.get_ident()


async def test_errors_of_a_body_outside_of_a_run_are_bare() -> None:
    """No policy of the tool answers them, and arguments that don't fit never reach the body."""

    @tool(failure_error_function=lambda ctx, error: "told")
    async def breaks(n: int) -> int:
        """Break."""
        raise LookupError(n)

    with pytest.raises(LookupError, match="4"):
        await breaks.run_body({"n": 4})
    with pytest.raises(ModelBehaviorError, match="n"):
        await breaks.run_body({"n": "four"})
    with pytest.raises(UserTypeError, match=r"tool 'helper' runs only inside a run"):
        await Agent("helper").as_tool().run_body({"input": "x"})


def _invoke_of(made: FunctionTool) -> Callable[..., Any]:
    assert made.on_invoke_tool is not None
    return made.on_invoke_tool


# ---------------------------------------------------------------------------------------------- failing


def test_the_model_is_told_type_and_message_of_an_error() -> None:
    """The words have every leaf of a group; arguments that aren't JSON have words of their own."""
    words = default_tool_error_function(context(), ValueError("no luck\nat all"))
    assert words == "Tool greet failed with: ValueError(no luck\nat all)"
    group = ExceptionGroup("two", [ValueError("a"), KeyError("b")])
    said = default_tool_error_function(context(), group)
    assert "ValueError(a)" in said
    assert "KeyError('b')" in said
    bad = ModelBehaviorError("Arguments of tool greet aren't valid JSON: '{'")
    assert default_tool_error_function(context(), bad) == str(bad)
    assert (
        default_tool_error_function(RunContext(context=None), ValueError("x")) == "Tool tool failed with: ValueError(x)"
    )
