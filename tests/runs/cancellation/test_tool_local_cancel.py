"""A call that cancels itself, or is cancelled alone: the model receives its outcome, and other calls continue."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import attrs
import pytest
from kit.agents import Run, call_each, configure_run, make_agent
from kit.ending import leak_cancellation
from kit.results import read_endings, read_shown_outputs
from kit.watching import ToolHookLog, Watch

from agentloop import Allow, ToolCallError, ToolContext, tool
from agentloop import records as r
from agentloop.exceptions import ToolCancelledError
from agentloop.guardrails import tool_output_guardrail
from agentloop.testing import call


async def raise_native() -> str:
    """Cancel the way a body of asyncio can: by raising it."""
    raise asyncio.CancelledError("had enough")


async def cancel_own_task() -> str:
    """Cancel the task the body runs in, and wait for it to strike."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel("had enough")
    await anyio.sleep(60)
    return "never"


async def cancel_own_task_later() -> str:
    """Cancel the task the body runs in from a callback, a moment later."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel, "had enough")
    await anyio.sleep(60)
    return "never"


async def leak() -> str:
    """Let the cancellation of an inner scope out of it."""
    await leak_cancellation()


async def fine() -> str:
    """Take a little while."""
    await anyio.sleep(0.01)
    return "fine"


NATIVE = [raise_native, cancel_own_task, cancel_own_task_later]


@pytest.mark.scenario("TC-01", "LX-24")
@pytest.mark.backends("asyncio", "asyncio-eager")
@pytest.mark.parametrize("body", NATIVE)
async def test_self_cancelled_tool_becomes_an_error_text_and_siblings_go_on(
    run_mode: Run, body: Callable[[], Awaitable[str]]
) -> None:
    """The model receives the truth, siblings on both sides succeed, and the caller's task has no cancellation left."""
    agent = make_agent([tool(body, name="bad"), tool(fine)], call_each("fine", "bad", "fine"))
    result = await run_mode(agent, "go")
    assert result.final_output == "done"
    assert read_shown_outputs(agent) == {
        "c1": "fine",
        "c2": "Tool bad failed with: ToolCancelledError(had enough)",
        "c3": "fine",
    }
    assert read_endings(result.calls) == [
        ("c1", "succeeded", None),
        ("c2", "cancelled", "tool"),
        ("c3", "succeeded", None),
    ]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.scenario("TC-04")
@pytest.mark.backends("asyncio", "asyncio-eager")
@pytest.mark.parametrize("body", NATIVE)
async def test_self_cancelled_single_call_is_answered_like_one_with_siblings(
    run_mode: Run, body: Callable[[], Awaitable[str]]
) -> None:
    """A single call takes no short cut past the call boundary."""
    agent = make_agent([tool(body, name="bad")], call_each("bad"))
    result = await run_mode(agent, "go")
    assert result.final_output == "done"
    assert read_shown_outputs(agent) == {"c1": "Tool bad failed with: ToolCancelledError(had enough)"}
    assert read_endings(result.calls) == [("c1", "cancelled", "tool")]


@pytest.mark.scenario("LX-24", "TC-04")
@pytest.mark.parametrize("siblings", [0, 2])
async def test_leaked_cancellation_of_an_inner_scope_is_the_tools_own(run_mode: Run, siblings: int) -> None:
    """A backend's cancellation exception that belongs to no cancelled scope ends its call alone, on both backends."""
    agent = make_agent([tool(leak), tool(fine)], call_each("leak", *["fine"] * siblings))
    result = await run_mode(agent, "go")
    assert result.final_output == "done"
    texts = read_shown_outputs(agent)
    assert texts.pop("c1").startswith("Tool leak failed with: ToolCancelledError(")
    assert list(texts.values()) == ["fine"] * siblings
    assert read_endings(result.calls)[0] == ("c1", "cancelled", "tool")


@pytest.mark.scenario("TC-01", "TC-04")
@pytest.mark.parametrize("siblings", [0, 2])
async def test_cancelled_call_becomes_an_error_text_and_siblings_go_on(run_mode: Run, siblings: int) -> None:
    """`cancel_call` from the body itself sends the reason to the model, and the outcome says that the caller did it."""

    @tool
    async def stop(ctx: ToolContext[Any]) -> str:
        assert ctx.cancel_call(ctx.tool_call_id, "not needed any more")
        await anyio.sleep(60)
        return "never"

    agent = make_agent([stop, tool(fine)], call_each("stop", *["fine"] * siblings))
    result = await run_mode(agent, "go")
    assert result.final_output == "done"
    expected = {"c1": "Tool stop failed with: ToolCancelledError(not needed any more)"}
    assert read_shown_outputs(agent) == expected | {f"c{index + 2}": "fine" for index in range(siblings)}
    assert read_endings(result.calls)[0] == ("c1", "cancelled", "caller")


@pytest.mark.scenario("TC-02")
async def test_failure_function_gets_an_ordinary_exception_and_words_the_output(run_mode: Run) -> None:
    """The failure function sees a `ToolCancelledError`, never the cancellation object itself."""
    seen: list[BaseException] = []

    def words(ctx: Any, error: Exception) -> str:
        seen.append(error)
        return f"{ctx.tool_name} stopped"

    agent = make_agent([tool(leak, name="bad", failure_error_function=words), tool(fine)], call_each("bad", "fine"))
    result = await run_mode(agent, "go")
    assert result.final_output == "done"
    assert read_shown_outputs(agent) == {"c1": "bad stopped", "c2": "fine"}
    assert [type(error) for error in seen] == [ToolCancelledError]


@pytest.mark.scenario("TC-03")
@pytest.mark.parametrize("siblings", [0, 2])
async def test_without_a_failure_function_the_cancelled_call_fails_the_run(run_mode: Run, siblings: int) -> None:
    """The run raises a `ToolCancelledError`, as the parent was not cancelled; siblings are cancelled as siblings."""
    watch, cleaned = Watch(), []

    @tool
    async def slow() -> str:
        try:
            await anyio.sleep(60)
        finally:
            cleaned.append("slow")
        return "never"

    agent = make_agent(
        [tool(leak, name="bad", failure_error_function=None), slow], call_each("bad", *["slow"] * siblings)
    )
    with anyio.CancelScope() as scope:
        with pytest.raises(ToolCancelledError) as caught:
            await run_mode(agent, "go", run_config=configure_run(watch))
        await anyio.lowlevel.checkpoint()
    assert not scope.cancelled_caught
    assert isinstance(caught.value, ToolCallError)
    assert caught.value.tool == "bad"
    assert caught.value.call is not None
    assert caught.value.call.call_id == "c1"
    assert watch.endings() == {"c1": ("cancelled", "tool")} | {
        f"c{index + 2}": ("cancelled", "sibling") for index in range(siblings)
    }
    assert cleaned == ["slow"] * siblings
    assert watch.end == "failed"


@pytest.mark.scenario("TC-03")
@pytest.mark.backends("asyncio", "asyncio-eager")
@pytest.mark.parametrize("body", NATIVE)
async def test_native_self_cancellation_never_leaves_the_run_bare(
    run_mode: Run, body: Callable[[], Awaitable[str]]
) -> None:
    """The caller's task sees an ordinary error and no pending cancellation."""
    agent = make_agent([tool(body, name="bad", failure_error_function=None), tool(fine)], call_each("bad", "fine"))
    with pytest.raises(ToolCancelledError, match="had enough"):
        await run_mode(agent, "go")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.scenario("TC-07")
async def test_copied_tools_use_their_own_policy(run_mode: Run) -> None:
    """A copy with another name and another failure function answers in its own words."""
    first = tool(leak, name="first")
    copy = attrs.evolve(first, name="second", failure_error_function=lambda ctx, error: f"{ctx.tool_name} copied")
    agent = make_agent([first, copy], call_each("first", "second"))
    await run_mode(agent, "go")
    texts = read_shown_outputs(agent)
    assert texts["c1"].startswith("Tool first failed with: ToolCancelledError(")
    assert texts["c2"] == "second copied"


async def test_self_cancellation_is_told_again_in_every_turn(run_mode: Run) -> None:
    """Nothing of a self-cancelled call lingers: the next turn's calls run as any other."""
    agent = make_agent(
        [tool(leak), tool(fine)],
        [call("leak", call_id="c1"), call("fine", call_id="c2")],
        [call("leak", call_id="c3"), call("fine", call_id="c4")],
    )
    result = await run_mode(agent, "go")
    assert [status for _, status, _ in read_endings(result.calls)] == ["cancelled", "succeeded"] * 2


async def test_body_that_finishes_in_spite_of_cancel_call_has_succeeded(run_mode: Run) -> None:
    """The scopes say what stopped the work: a body that came to its own end wasn't stopped."""

    @tool
    async def stubborn(ctx: ToolContext[Any]) -> str:
        assert ctx.cancel_call(ctx.tool_call_id)
        return "finished anyway"

    agent = make_agent([stubborn], call_each("stubborn"))
    result = await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"c1": "finished anyway"}
    assert read_endings(result.calls) == [("c1", "succeeded", None)]


@pytest.mark.backends("asyncio", "asyncio-eager")
async def test_self_cancellation_inside_a_group_of_the_body_is_the_tools_own(run_mode: Run) -> None:
    """A native cancellation raised by a child of the body's own task group counts for the call."""

    @tool(name="bad")
    async def grouped() -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 60)
            raise asyncio.CancelledError("had enough")
        return "never"

    agent = make_agent([grouped, tool(fine)], call_each("bad", "fine"))
    result = await run_mode(agent, "go")
    assert result.final_output == "done"
    assert read_endings(result.calls)[1] == ("c2", "succeeded", None)
    assert read_endings(result.calls)[0][1:] == ("cancelled", "tool")


@tool
async def leaves_a_timer() -> str:
    """Return, leaving behind a callback that cancels the task the body ran in."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel, "left behind")
    return "made"


@pytest.mark.backends("asyncio", "asyncio-eager")
@pytest.mark.parametrize("where", ["nowhere", "guardrail", "end hook"])
async def test_native_cancellation_that_strikes_after_its_body_stays_in_its_call(run_mode: Run, where: str) -> None:
    """The call settles once, its end hook is delivered to the end, siblings and the run continue."""

    async def slowly(*_: Any) -> Any:
        await anyio.sleep(0.01)
        return Allow()

    guards = [tool_output_guardrail(slowly)] if where == "guardrail" else []
    hooks, watch = ToolHookLog(at_end=slowly if where == "end hook" else None), Watch()
    late = attrs.evolve(leaves_a_timer, tool_output_guardrails=guards)
    agent = make_agent([late, tool(fine)], call_each("leaves_a_timer", "fine"))
    result = await run_mode(agent, "go", hooks=hooks, run_config=configure_run(watch))
    assert result.final_output == "done"
    assert list(read_shown_outputs(agent)) == ["c1", "c2"]
    assert read_endings(result.calls)[1] == ("c2", "succeeded", None)
    assert len(watch.of(r.CallSettled)) == 2
    assert sorted(call_id for call_id, _, _ in hooks.ended) == ["c1", "c2"]
    assert [one[1:] for one in sorted(hooks.ended)] == [one[1:] for one in read_endings(result.calls)]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
