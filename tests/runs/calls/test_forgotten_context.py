"""A body that uses the context of a run that was given none: the developer is told, and the model isn't."""

import logging
from typing import Any

import pytest
from kit.agents import Run, make_agent
from kit.results import read_shown_outputs

from agentloop import ToolCallError, ToolContext, tool
from agentloop.testing import call

HINT = "ctx.context is None in this run: was context=… forgotten at Runner.run?"


class Shop:
    """A context."""

    name = "corner"


async def _name(ctx: ToolContext[Shop]) -> str:
    """Name the shop."""
    return ctx.context.name


async def _add(ctx: ToolContext[Any]) -> str:
    """Add one."""
    return ctx.context + 1


@pytest.mark.parametrize("body", [_name, _add])
async def test_the_log_asks_for_the_context(run_mode: Run, caplog: pytest.LogCaptureFixture, body: Any) -> None:
    """The model's text stays Python's."""
    agent = make_agent([tool(body, name="use")], call("use", call_id="c1"))
    with caplog.at_level(logging.WARNING, logger="agentloop.tools"):
        await run_mode(agent, "go")
    (said,) = [record.getMessage() for record in caplog.records if record.name == "agentloop.tools"]
    assert said.endswith(f"; {HINT}")
    assert "context" not in read_shown_outputs(agent, 1)["c1"]


@pytest.mark.parametrize("body", [_name, _add])
async def test_the_error_of_the_run_asks_for_the_context(run_mode: Run, body: Any) -> None:
    """As a note, which Python shows below the traceback."""
    with pytest.raises(ToolCallError) as caught:
        await run_mode(make_agent([tool(body, name="use", failure_error_function="raise")], call("use")), "go")
    assert HINT in caught.value.__notes__


async def test_other_failures_say_nothing_of_it(run_mode: Run) -> None:
    """With a context, without a context parameter, and with an error of another kind."""

    async def broken(ctx: ToolContext[Any]) -> str:
        raise ValueError("'NoneType' is odd")

    async def alone() -> str:
        nothing: Any = None
        return str(nothing.name)

    async def own(ctx: ToolContext[Shop]) -> str:
        nothing: Any = None
        return str(nothing.name)

    for body, context in ((broken, None), (alone, None), (own, Shop())):
        made = tool(body, name="use", description="x", failure_error_function="raise")
        with pytest.raises(ToolCallError) as caught:
            await run_mode(make_agent([made], call("use")), "go", context=context)
        assert HINT not in getattr(caught.value, "__notes__", [])
