"""A model's arguments on their way to a body, and the text the model receives when they don't fit."""

import contextvars
import functools
import json
from collections.abc import Callable
from typing import Any, Literal

import pytest
import tenacity
from kit.agents import Run, make_agent
from kit.results import find_outcome, find_records, read_requests, read_shown_outputs, read_statuses

from agentloop import Allow, ModelBehaviorError, RunConfig, RunContext, ToolContext, default_tool_error_function, tool
from agentloop import records as r
from agentloop.guardrails import ToolInputData, tool_input_guardrail, tool_output_guardrail
from agentloop.items import Text
from agentloop.settings import JsonLimits
from agentloop.testing import call


def schema_shown(agent: Any, name: str) -> Any:
    """Return the parameters' schemas the model was shown for a tool."""
    [found] = [definition for definition in read_requests(agent)[0].tools if definition.name == name]
    return found.params_json_schema["properties"]


@pytest.mark.scenario("LX-11")
async def test_a_value_of_the_wrong_type_never_reaches_the_body(run_mode: Run) -> None:
    """The model receives the parameter's name and the type it needs, and may try again."""
    ran: list[Any] = []

    @tool
    async def f(x: int) -> str:
        ran.append(x)
        return "ok"

    agent = make_agent([f], call("f", {"x": "abc"}, "a"), call("f", {"x": 3}, "b"))
    result = await run_mode(agent, "go")
    text = str(read_shown_outputs(agent, 1)["a"])
    assert "x" in text
    assert "int" in text
    assert text.startswith("Tool f failed with: ModelBehaviorError(")
    assert ran == [3]
    assert read_statuses(result) == ["failed", "succeeded"]
    outcome = find_outcome(result, "a")
    assert (outcome.started_at, outcome.body_finished) == (None, False)
    assert isinstance(outcome.error, ModelBehaviorError)
    assert [record.call_id for record in find_records(result, r.CallStarted)] == ["b"]


@pytest.mark.scenario("LX-12")
async def test_a_missing_argument_is_named_with_its_tool(run_mode: Run) -> None:
    """The text names the missing argument and its tool, and doesn't name the argument that was given."""

    @tool
    async def copy(source: str, target: str) -> str:
        raise AssertionError

    agent = make_agent([copy], call("copy", {"source": "here"}, "a"))
    await run_mode(agent, "go")
    text = str(read_shown_outputs(agent)["a"])
    assert "copy" in text
    assert "missing: target" in text


@pytest.mark.scenario("LX-13")
async def test_a_literal_is_an_enum_and_nothing_else_passes(run_mode: Run) -> None:
    """The body sees its own words only."""
    modes: list[str] = []

    @tool
    async def open_file(mode: Literal["r", "w"]) -> str:
        modes.append(mode)
        return mode

    agent = make_agent([open_file], [call("open_file", {"mode": "zzz"}, "a"), call("open_file", {"mode": "w"}, "b")])
    result = await run_mode(agent, "go")
    assert schema_shown(agent, "open_file")["mode"]["enum"] == ["r", "w"]
    assert modes == ["w"]
    assert "mode" in str(read_shown_outputs(agent)["a"])
    assert read_statuses(result) == ["failed", "succeeded"]


@pytest.mark.scenario("LX-14")
async def test_an_optional_whole_number_accepts_both(run_mode: Run) -> None:
    """The schema says integer or null, and both reach the body; so does nothing at all."""
    seen: list[Any] = []

    @tool
    async def f(n: int | None = None) -> str:
        seen.append(n)
        return "ok"

    script = [call("f", {"n": 3}, "a"), call("f", {"n": None}, "b"), call("f", {}, "c"), call("f", {"n": "x"}, "d")]
    agent = make_agent([f], script, tool_execution="sequential")
    result = await run_mode(agent, "go")
    assert seen == [3, None, None]
    assert read_statuses(result) == ["succeeded"] * 3 + ["failed"]
    kinds = json.dumps(schema_shown(agent, "f")["n"])
    assert "integer" in kinds
    assert "null" in kinds


@pytest.mark.scenario("LX-15", "FC-02")
async def test_text_that_is_no_json_is_quoted_to_the_model(run_mode: Run) -> None:
    """The quoted text is bounded; the tool doesn't run and the model may try again."""
    ran: list[int] = []

    @tool
    async def f(x: int) -> str:
        ran.append(x)
        return "ok"

    broken = '{"x": 1' + " " * 20
    agent = make_agent([f], [call("f", broken, "a"), call("f", "z" * 5000, "long")], call("f", {"x": 1}, "b"))
    result = await run_mode(agent, "go")
    first = read_shown_outputs(agent, 1)
    assert str(first["a"]).startswith("Arguments of tool f aren't valid JSON: at character 28, ")
    assert str(first["a"]).endswith(f": '{broken}'")
    assert len(first["long"]) < 300
    assert str(first["long"]).startswith("Arguments of tool f aren't valid JSON: at character 1, expecting value: 'zzz")
    assert ran == [1]
    assert read_statuses(result) == ["failed", "failed", "succeeded"]


@pytest.mark.scenario("LX-15", "FC-05")
@pytest.mark.parametrize("text", ["{", "[1]", '{"x": "abc"}', "{}"])
async def test_a_fault_ends_the_run_where_the_policy_is_to_raise(run_mode: Run, text: str) -> None:
    """The run ends with an error of the model, not of the user, and no call starts."""

    @tool(failure_error_function=None)
    async def f(x: int) -> str:
        raise AssertionError

    agent = make_agent([f], call("f", text, "a"))
    with pytest.raises(ModelBehaviorError) as caught:
        await run_mode(agent, "go")
    assert read_statuses(caught.value.run_data) == ["failed"]
    assert find_records(caught.value.run_data, r.CallStarted) == []


@pytest.mark.scenario("FC-03")
@pytest.mark.parametrize("text", ["[1]", '"x"', "3", "null", "true"])
async def test_json_that_is_no_object_goes_to_the_failure_function(run_mode: Run, text: str) -> None:
    """The failure function gets a `ModelBehaviorError`."""
    errors: list[Exception] = []

    def words(ctx: Any, error: Exception) -> str:
        errors.append(error)
        return "an object, please"

    @tool(failure_error_function=words)
    async def f(x: int = 0) -> str:
        raise AssertionError

    agent = make_agent([f], call("f", text, "a"))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"a": "an object, please"}
    assert [type(error) for error in errors] == [ModelBehaviorError]


@pytest.mark.scenario("FC-04")
async def test_a_fault_goes_through_input_guardrails_but_not_output_ones(run_mode: Run) -> None:
    """The input guardrail sees None where the text doesn't parse; the failure's text isn't judged."""
    judged: list[Any] = []

    @tool_input_guardrail
    def before(data: ToolInputData) -> Allow:
        judged.append(data.arguments)
        assert data.context.tool_arguments
        return Allow()

    @tool_output_guardrail
    def after(data: Any) -> Allow:
        raise AssertionError("nothing ran")

    @tool(tool_input_guardrails=[before], tool_output_guardrails=[after])
    async def f(x: int) -> str:
        raise AssertionError

    agent = make_agent([f], [call("f", "{", "a"), call("f", {"x": "no"}, "b")], tool_execution="sequential")
    result = await run_mode(agent, "go")
    assert judged == [None, {"x": "no"}]
    assert read_statuses(result) == ["failed", "failed"]


async def test_limits_on_json_hold_in_a_run(run_mode: Run) -> None:
    """A text past the run's limits is refused like any that doesn't fit."""

    @tool
    async def f(x: int) -> str:
        return "ok"

    agent = make_agent([f], call("f", {"x": 12345}, "a"))
    await run_mode(agent, "go", run_config=RunConfig(json_limits=JsonLimits(max_digits=4)))
    assert "too many digits" in str(read_shown_outputs(agent)["a"])


@pytest.mark.scenario("LX-16")
async def test_what_the_model_sees_of_none_a_mapping_and_text(run_mode: Run) -> None:
    """The model sees a placeholder for None, JSON for a mapping, and text unchanged."""

    @tool
    async def nothing() -> None:
        return None

    @tool
    async def mapping() -> dict[str, Any]:
        return {"a": [1, None], "é": 1.5}

    @tool
    async def text() -> str:
        return '  {"not": "touched"}\n'

    agent = make_agent([nothing, mapping, text], [call("nothing", {}), call("mapping", {}), call("text", {})])
    await run_mode(agent, "go")
    assert list(read_shown_outputs(agent).values()) == [
        "(no output)",
        '{"a": [1, null], "é": 1.5}',
        '  {"not": "touched"}\n',
    ]


@pytest.mark.scenario("LX-18")
@pytest.mark.real_clock
async def test_a_context_variable_set_around_the_run_is_read_by_bodies(run_mode: Run) -> None:
    """Async bodies and sync ones in their threads read the variable; their own changes stay theirs."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    @tool
    async def on_loop() -> str:
        found = variable.get()
        variable.set("loop")
        return found

    @tool
    def in_thread() -> str:
        found = variable.get()
        variable.set("thread")
        return found

    variable.set("caller")
    agent = make_agent([on_loop, in_thread], [call("on_loop", {}, "a"), call("in_thread", {}, "b")])
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"a": "caller", "b": "caller"}
    assert variable.get() == "caller"


@pytest.mark.scenario("LX-19")
async def test_a_context_parameter_is_found_by_its_annotation(run_mode: Run) -> None:
    """The parameter may have any name and place; the model never sees it, and the body gets the run's object."""
    seen: list[Any] = []

    @tool
    async def first(whatever: ToolContext[dict[str, int]], x: int) -> str:
        seen.append((whatever.context, whatever.tool_name, whatever.tool_call_id, whatever.tool_arguments, x))
        return "ok"

    @tool
    async def last(x: int, run: RunContext[Any]) -> str:
        seen.append((run.context, x))
        return "ok"

    application = {"n": 1}
    agent = make_agent([first, last], [call("first", {"x": 1}, "a"), call("last", {"x": 2}, "b")])
    await run_mode(agent, "go", context=application, run_config=RunConfig())
    assert list(schema_shown(agent, "first")) == ["x"]
    assert list(schema_shown(agent, "last")) == ["x"]
    by_length = {len(row): row for row in seen}
    assert by_length[5] == (application, "first", "a", '{"x": 1}', 1)
    assert by_length[2] == (application, 2)
    assert all(row[0] is application for row in seen)


@pytest.mark.scenario("LX-35")
async def test_true_is_no_whole_number_and_one_is_a_float(run_mode: Run) -> None:
    """`true` for an int is a fault, `1` and `1.0` for a float are one call, inside a batch and across turns."""
    ran: list[Any] = []

    @tool(idempotent=True)
    async def whole(n: int) -> int:
        ran.append(n)
        return n

    @tool(idempotent=True)
    async def real(x: float) -> float:
        ran.append(x)
        return x

    batch = [call("whole", '{"n": 1}', "w1"), call("whole", '{"n": true}', "w2")]
    batch += [call("real", '{"x": 1}', "r1"), call("real", '{"x": 1.0}', "r2")]
    later = [call("whole", '{"n": true}', "w3"), call("real", '{"x": 1.0}', "r3"), call("real", '{"x": 1}', "r4")]
    agent = make_agent([whole, real], batch, later)
    result = await run_mode(agent, "go")
    assert len(ran) == 2
    assert {type(value) for value in ran} == {int, float}
    assert read_statuses(result) == ["succeeded", "failed", "succeeded", "replayed", "failed", "replayed", "replayed"]
    assert "int" in str(read_shown_outputs(agent)["w2"])
    assert read_shown_outputs(agent)["r1"] == read_shown_outputs(agent)["r2"] == read_shown_outputs(agent)["r3"]


# -- functions that aren't plain


def _logged(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return f"<{await fn(*args, **kwargs)}>"

    return wrapper


class Bound:
    """Something with a method and a call."""

    def __init__(self, word: str) -> None:
        self.word = word

    async def method(self, n: int) -> str:
        """Say the word."""
        return self.word * n

    async def __call__(self, n: int) -> str:
        """Say the word twice as often."""
        return self.word * 2 * n


def _decorated() -> list[Any]:
    attempts: list[int] = []

    @tool
    @_logged
    async def wrapped(n: int, ctx: ToolContext[Any]) -> str:
        return f"{ctx.tool_name}{n}"

    @tool
    @tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_none())
    async def retried(n: int) -> str:
        attempts.append(n)
        if len(attempts) < 3:
            raise OSError("not yet")
        return f"after {len(attempts)}"

    async def two(word: str, n: int) -> str:
        return word * n

    return [
        wrapped,
        retried,
        tool(name="partial")(functools.partial(two, "p")),
        tool(Bound("m").method),
        tool(name="object")(Bound("o")),
    ]


@pytest.mark.scenario("DE-09")
async def test_wrapped_partial_bound_and_callable_objects_run_as_tools(run_mode: Run) -> None:
    """The model is shown the inner signature; the outer function is what is called."""
    tools = _decorated()
    names = ["wrapped", "retried", "partial", "method", "object"]
    agent = make_agent(tools, [call(name, {"n": 2}, name) for name in names])
    await run_mode(agent, "go")
    assert all(list(schema_shown(agent, name)) == ["n"] for name in names)
    assert read_shown_outputs(agent) == {
        "wrapped": "<wrapped2>",
        "retried": "after 3",
        "partial": "pp",
        "method": "mm",
        "object": "oooo",
    }


@pytest.mark.scenario("DE-09")
@pytest.mark.real_clock
async def test_sync_or_async_is_told_by_the_outer_function(run_mode: Run) -> None:
    """A sync wrapper around an async function gives an awaitable from its thread, and that is awaited."""

    async def inner(n: int) -> str:
        return f"inner {n}"

    @tool
    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    @tool
    @functools.lru_cache
    def cached(n: int) -> str:
        return f"cached {n}"

    agent = make_agent([outer, cached], [call("inner", {"n": 1}, "a"), call("cached", {"n": 2}, "b")])
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"a": "inner 1", "b": "cached 2"}


@pytest.mark.scenario("FC-01")
async def test_the_default_failure_text_can_be_extended(run_mode: Run) -> None:
    """A failure function may call the default one; parts of a body's output stay parts."""

    def words(ctx: RunContext[Any], error: Exception) -> str:
        return default_tool_error_function(ctx, error) + " Sorry."

    @tool(failure_error_function=words)
    async def f() -> list[Text]:
        raise ValueError("no")

    agent = make_agent([f], call("f", {}, "a"))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"a": "Tool f failed with: ValueError(no) Sorry."}
