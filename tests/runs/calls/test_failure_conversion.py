"""How a failing call becomes a text for the model, or the error that ends the run."""

from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest
from kit.agents import Run, call_each, configure_run, make_agent
from kit.results import read_endings, read_shown_outputs
from kit.watching import ToolHookLog, Watch

from agentloop import ModelBehaviorError, ToolCallError, UserError, default_tool_error_function, tool
from agentloop.testing import call


def failing(error: Callable[[], BaseException], name: str = "fails", **options: Any) -> Any:
    """Return a tool that raises what *error* makes."""

    async def fails() -> str:
        raise error()

    return tool(name=name, **options)(fails)


@pytest.mark.scenario("FC-01", "LX-07")
async def test_failure_text_names_type_and_message(run_mode: Run) -> None:
    """The model gets `Tool NAME failed with: TYPE(MESSAGE)`, the run continues, one result is an error."""
    agent = make_agent([failing(lambda: ConnectionError("after 30s"))], call_each("fails"))
    result = await run_mode(agent, "go")
    assert result.final_output == "done"
    assert read_shown_outputs(agent) == {"c1": "Tool fails failed with: ConnectionError(after 30s)"}
    assert read_endings(result.calls) == [("c1", "failed", None)]
    assert isinstance(result.calls[0].outcome.error, ConnectionError)


@pytest.mark.scenario("FC-01", "LX-08")
async def test_failure_text_has_every_line_and_no_secret(run_mode: Run) -> None:
    """The text for the model leaves out everything that looks like a key."""
    agent = make_agent([failing(lambda: ValueError("refused api_key=abc\nsecond line"))], call_each("fails"))
    await run_mode(agent, "go")
    [text] = read_shown_outputs(agent).values()
    assert text.startswith("Tool fails failed with: ValueError(refused api_key=")
    assert "abc" not in text
    assert "\nsecond line)" in text


@pytest.mark.scenario("FC-01", "LX-09")
async def test_failure_text_of_a_group_names_every_leaf(run_mode: Run) -> None:
    """The text names the leaves of nested groups too."""

    def group() -> BaseException:
        inner = ExceptionGroup("inner", [KeyError("k"), OSError("disk full")])
        return ExceptionGroup("several", [ValueError("bad value"), inner])

    agent = make_agent([failing(group)], call_each("fails"))
    await run_mode(agent, "go")
    [text] = read_shown_outputs(agent).values()
    for part in ("ValueError(bad value)", "KeyError('k')", "OSError(disk full)"):
        assert part in text


@pytest.mark.scenario("FC-01")
@pytest.mark.timeout(10)
async def test_failure_text_is_bounded(run_mode: Run) -> None:
    """A huge message neither fills the context nor holds up the event loop."""
    agent = make_agent([failing(lambda: ValueError("x" * 200_000))], call_each("fails"))
    await run_mode(agent, "go")
    [text] = read_shown_outputs(agent).values()
    assert len(text) < 5_000


@pytest.mark.scenario("FC-01")
async def test_error_whose_text_fails_is_still_told(run_mode: Run) -> None:
    """A broken `__str__` hides neither the failure nor its type."""

    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    agent = make_agent([failing(Broken)], call_each("fails"))
    result = await run_mode(agent, "go")
    assert "Broken" in read_shown_outputs(agent)["c1"]
    assert read_endings(result.calls) == [("c1", "failed", None)]


def takes_number(ran: list[int], **options: Any) -> Any:
    """Return a tool with one argument, an int, that notes its runs."""

    async def number(n: int) -> str:
        ran.append(n)
        return str(n)

    return tool(**options)(number)


@pytest.mark.scenario("FC-02")
async def test_undecodable_arguments_have_a_text_of_their_own(run_mode: Run) -> None:
    """The raw text is quoted, the body doesn't run, the model may try again."""
    ran: list[int] = []
    agent = make_agent(
        [takes_number(ran)], call("number", '{"n": ', call_id="c1"), call("number", {"n": 3}, call_id="c2")
    )
    result = await run_mode(agent, "go")
    assert str(read_shown_outputs(agent, 1)["c1"]).startswith(
        "Arguments of tool number aren't valid JSON: at character 7"
    )
    assert ran == [3]
    assert read_endings(result.calls) == [("c1", "failed", None), ("c2", "succeeded", None)]
    assert result.calls[0].outcome.started_at is None


@pytest.mark.scenario("FC-03")
@pytest.mark.parametrize("text", ["[1]", "3", '"n"', "null", "true"])
async def test_arguments_that_are_no_object_go_to_the_failure_function(run_mode: Run, text: str) -> None:
    """The failure function gets a `ModelBehaviorError` for valid JSON of the wrong shape."""
    seen: list[Exception] = []

    def words(ctx: Any, error: Exception) -> str:
        seen.append(error)
        return "not an object"

    ran: list[int] = []
    agent = make_agent([takes_number(ran, failure_error_function=words)], call("number", text, call_id="c1"))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": "not an object"}
    assert [type(error) for error in seen] == [ModelBehaviorError]
    assert ran == []


@pytest.mark.scenario("FC-04")
@pytest.mark.parametrize("arguments", [{"n": "abc"}, {}, {"n": 1, "m": 2}])
async def test_arguments_that_do_not_fit_take_the_same_path(run_mode: Run, arguments: dict[str, Any]) -> None:
    """A wrong type, a missing and an unknown argument go through the tool's failure policy; no hook fires."""
    ran: list[int] = []
    hooks = ToolHookLog()
    agent = make_agent([takes_number(ran)], call("number", arguments, call_id="c1"))
    result = await run_mode(agent, "go", hooks=hooks)
    text = read_shown_outputs(agent)["c1"]
    assert text.startswith("Tool number failed with: ModelBehaviorError(")
    assert ran == []
    assert read_endings(result.calls) == [("c1", "failed", None)]
    assert (hooks.started, hooks.ended) == ([], [])


@pytest.mark.scenario("FC-05")
@pytest.mark.parametrize("text", ['{"n": ', "[]", '{"n": "abc"}'])
async def test_bad_arguments_without_a_failure_function_are_the_models_fault(run_mode: Run, text: str) -> None:
    """A `ModelBehaviorError` leaves the run, because the fault is neither the user's nor the tool's."""
    ran: list[int] = []
    agent = make_agent([takes_number(ran, failure_error_function=None)], call("number", text, call_id="c1"))
    with pytest.raises(ModelBehaviorError) as caught:
        await run_mode(agent, "go")
    assert not isinstance(caught.value, UserError)
    assert ran == []
    assert caught.value.run_data is not None


@pytest.mark.scenario("FC-06")
async def test_async_failure_function_is_awaited(run_mode: Run) -> None:
    """An async failure function may take its time."""

    async def words(ctx: Any, error: Exception) -> str:
        await anyio.sleep(0.01)
        return f"{ctx.tool_name}: {error}"

    agent = make_agent([failing(lambda: ValueError("broken"), failure_error_function=words)], call_each("fails"))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": "fails: broken"}


@pytest.mark.scenario("FC-07")
async def test_failure_function_that_raises_fails_the_run_with_a_wrapped_error(run_mode: Run) -> None:
    """The run raises a `ToolCallError` whose cause is the function's own error."""

    def words(ctx: Any, error: Exception) -> str:
        raise LookupError("no words")

    watch = Watch()
    agent = make_agent([failing(lambda: ValueError("broken"), failure_error_function=words)], call_each("fails"))
    with pytest.raises(ToolCallError, match="Error running tool fails: LookupError: no words") as caught:
        await run_mode(agent, "go", run_config=configure_run(watch))
    assert isinstance(caught.value.__cause__, LookupError)
    assert watch.outcome("c1").status == "failed"
    assert watch.end == "failed"


@pytest.mark.scenario("FC-08")
@pytest.mark.parametrize("function", [None, lambda ctx, error: None])
async def test_unhandled_failure_raises_the_original(run_mode: Run, function: Any) -> None:
    """A missing function, or one that answers None, gives a `ToolCallError` with call, outcome and original cause."""
    original = ValueError("broken")
    watch = Watch()
    agent = make_agent([failing(lambda: original, failure_error_function=function)], call_each("fails"))
    with pytest.raises(ToolCallError) as caught:
        await run_mode(agent, "go", run_config=configure_run(watch))
    assert str(caught.value) == "Error running tool fails: ValueError: broken"
    assert caught.value.__cause__ is original
    assert caught.value.tool == "fails"
    assert caught.value.call is not None
    assert caught.value.call.call_id == "c1"
    assert caught.value.outcome is not None
    assert caught.value.outcome.status == "failed"
    assert watch.end == "failed"


@pytest.mark.scenario("FC-09")
async def test_copy_of_a_tool_uses_its_own_name_and_policy(run_mode: Run) -> None:
    """A copied tool words its failure with its own name and its own policy."""
    first = failing(lambda: ValueError("broken"), name="first")
    second = attrs.evolve(first, name="second")
    third = attrs.evolve(first, name="third", failure_error_function=lambda ctx, error: f"{ctx.tool_name}'s words")
    agent = make_agent([first, second, third], call_each("first", "second", "third"))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {
        "c1": "Tool first failed with: ValueError(broken)",
        "c2": "Tool second failed with: ValueError(broken)",
        "c3": "third's words",
    }


async def test_default_function_may_be_called_by_ones_own(run_mode: Run) -> None:
    """`default_tool_error_function` is public: a policy may add to it."""

    def words(ctx: Any, error: Exception) -> str:
        return default_tool_error_function(ctx, error) + " Try later."

    agent = make_agent([failing(lambda: ValueError("broken"), failure_error_function=words)], call_each("fails"))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": "Tool fails failed with: ValueError(broken) Try later."}


async def test_failure_function_that_returns_something_else_is_a_users_error(run_mode: Run) -> None:
    """A value that is neither text nor None is refused with an error that names tool and field."""
    agent = make_agent(
        [failing(lambda: ValueError("broken"), failure_error_function=lambda ctx, error: 3)], call_each("fails")
    )
    with pytest.raises(UserError, match="failure_error_function"):
        await run_mode(agent, "go")
