"""One function words the errors of all tools of a run: `ToolExecution(error_formatter=…)`."""

import logging
from typing import Any

import anyio
import pytest
from kit.agents import Run, call_each, make_agent
from kit.results import read_endings, read_shown_outputs

from agentloop import RunConfig, ToolCallError, ToolExecution, tool
from agentloop.exceptions import ToolTimeoutError
from agentloop.testing import replay


def failing(**options: Any) -> Any:
    """Return a tool that raises."""

    @tool(name="fails", **options)
    async def fails() -> str:
        """Fail."""
        raise ConnectionError("no route")

    return fails


def formatting(*given: Any) -> tuple[Any, list[Any]]:
    """Return a configuration whose formatter answers *given*, and the list of what it was asked."""
    asked: list[Any] = []

    async def form(args: Any) -> Any:
        asked.append(args)
        await anyio.lowlevel.checkpoint()
        if isinstance(given[0], Exception):
            raise given[0]
        return given[0]

    return RunConfig(tool_execution=ToolExecution(error_formatter=form)), asked


async def test_the_exception_of_a_tool_is_worded_for_the_whole_run(run_mode: Run) -> None:
    """The formatter knows the kind, the call, the error and the usual text; the outcome has the error."""
    config, asked = formatting("The network is down.")
    agent = make_agent([failing()], call_each("fails"))
    result = await run_mode(agent, "go", run_config=config)
    assert read_shown_outputs(agent) == {"c1": "The network is down."}
    assert read_endings(result.calls) == [("c1", "failed", None)]
    [args] = asked
    assert (args.kind, args.tool, args.call_id) == ("tool_exception", "fails", "c1")
    assert isinstance(args.error, ConnectionError)
    assert args.default == "Tool fails failed with: ConnectionError(no route)"
    again = await anyio.to_thread.run_sync(lambda: replay(result, make_agent([failing()], [])))
    assert again.records == result.records
    assert len(asked) == 1


async def test_none_leaves_the_usual_text(run_mode: Run) -> None:
    """So does a formatter that raises, or returns no text: it is logged."""
    for answer in (None, ValueError("broken"), 3):
        config, asked = formatting(answer)
        agent = make_agent([failing()], call_each("fails"))
        await run_mode(agent, "go", run_config=config)
        assert read_shown_outputs(agent) == {"c1": "Tool fails failed with: ConnectionError(no route)"}
        assert len(asked) == 1


async def test_what_goes_wrong_in_a_formatter_is_logged(run_mode: Run, caplog: Any) -> None:
    """With the kind of what it gave."""
    for answer, line in ((ValueError("broken"), "formatter raised"), (3, "a value of type int, not text")):
        config, _ = formatting(answer)
        with caplog.at_level(logging.WARNING, "agentloop"):
            await run_mode(make_agent([failing()], call_each("fails")), "go", run_config=config)
        assert line in caplog.text


async def test_the_words_of_the_tool_come_first(run_mode: Run) -> None:
    """A tool with a function of its own isn't asked about; one that raises ends the run as before."""
    config, asked = formatting("for all")
    agent = make_agent([failing(failure_error_function=lambda ctx, error: "my own")], call_each("fails"))
    await run_mode(agent, "go", run_config=config)
    assert read_shown_outputs(agent) == {"c1": "my own"}
    with pytest.raises(ToolCallError, match="no route"):
        await run_mode(
            make_agent([failing(failure_error_function="raise")], call_each("fails")), "go", run_config=config
        )
    assert asked == []


async def test_a_timeout_keeps_its_own_text(run_mode: Run) -> None:
    """It isn't an exception of the body."""

    @tool(timeout=0.01)
    async def slow() -> str:
        """Be slow."""
        await anyio.sleep(60)
        return "late"

    config, asked = formatting("for all")
    agent = make_agent([slow], call_each("slow"))
    result = await run_mode(agent, "go", run_config=config)
    assert isinstance(result.calls[0].outcome.error, ToolTimeoutError)
    assert asked == []
    assert "for all" not in read_shown_outputs(agent).values()
