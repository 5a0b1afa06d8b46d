"""Servers that break the rules: typed outcomes, bounded memory, bounded waits."""

import logging
import time
from typing import Any

import anyio
import pytest
from kit.agents import script_agent
from kit.results import read_outputs, read_requests, read_statuses
from mcp_servers.processes import MARKS, Servers

from agentloop import Runner
from agentloop.exceptions import ToolSourceError
from agentloop.mcp import MCPConnectionError
from agentloop.testing import call, say

pytest.importorskip("mcp", reason="needs the extra mcp: nox -s mcp")
pytestmark = [*MARKS, pytest.mark.scenario("TS-07")]


async def one_call(servers: Servers, name: str, arguments: Any = None, **options: Any) -> tuple[Any, Any]:
    """Return the status and the output of one call in a run of its own."""
    agent = script_agent("a", call(name, arguments or {}), say("done"), toolsets=[servers.make(**options)])
    result = await Runner.run(agent, "go")
    return read_statuses(result)[0], next(iter(read_outputs(result.new_items).values()))


@pytest.mark.parametrize("arguments", [{"n": "no number"}, {"n": 5}], ids=["wrong", "right"])
async def test_structured_content_must_fit_the_schema(servers: Servers, arguments: Any) -> None:
    """The model sees that the server's answer isn't what it promised."""
    status, output = await one_call(servers, "structured", arguments)
    if arguments["n"] == 5:
        assert (status, output) == ("succeeded", '{"n": 5}')
    else:
        assert status == "failed"
        assert "MCPToolError(the answer isn't what the server has promised: n: 'no number' is not" in output


async def test_answer_that_is_none_of_the_protocol(servers: Servers) -> None:
    """A typed failure; the connection holds."""
    server = servers.make()
    steps = [call("nonsense", call_id="1"), call("refuse", call_id="2"), call("echo", call_id="3")]
    agent = script_agent("a", *steps, say("done"), toolsets=[server])
    result = await Runner.run(agent, "go")
    assert read_statuses(result) == ["failed", "failed", "succeeded"]
    first, second, _ = read_outputs(result.new_items).values()
    assert "MCPToolError(the server's answer is none of the protocol)" in first
    assert "MCPToolError(these arguments are refused)" in second


async def test_ids_that_are_used_again(servers: Servers) -> None:
    """The first answer counts; others are dropped."""
    assert await one_call(servers, "twice") == ("succeeded", "first")


async def test_message_that_is_too_long(servers: Servers) -> None:
    """By stdio the connection is closed; by HTTP that request alone has failed. Memory stays bounded."""
    status, output = await one_call(servers, "huge", {"bytes": 3_000_000}, max_message_bytes=500_000)
    assert status == ("unknown" if servers.kind == "stdio" else "failed")
    assert len(output) < 1_000


async def test_packed_answer_is_refused(http: Servers) -> None:
    """A few bytes may unpack to any number."""
    status, _ = await one_call(http, "huge", {"bytes": 1_000, "packed": True})
    assert status in ("failed", "unknown")


async def test_long_text_is_bounded_for_the_model(servers: Servers) -> None:
    """As any tool's output."""
    status, output = await one_call(servers, "huge", {"bytes": 300_000})
    assert status == "succeeded"
    assert len(output) <= 32_000


@pytest.mark.parametrize("name", ["flood", "never"])
async def test_call_that_is_never_answered_ends_at_its_timeout(servers: Servers, name: str) -> None:
    """Also where the server never answers the cancellation, or floods the client with progress."""
    server = servers.make(timeout=0.5, grace=0.2)
    async with server:
        agent = script_agent("a", call(name), say("done"), toolsets=[server])
        began = time.monotonic()
        result = await Runner.run(agent, "go")
        took = time.monotonic() - began
        closing = time.monotonic()
    assert read_statuses(result) == ["timed_out"]
    assert took < 0.5 + 3
    assert time.monotonic() - closing < 4


async def test_end_of_the_session_waits_for_no_server(http: Servers) -> None:
    """A server that doesn't answer to it is left."""
    server = http.make(env={"RAW_MUTE": "1"})
    async with server:
        closing = time.monotonic()
    assert time.monotonic() - closing < 4


async def test_server_that_dies_again_and_again_is_started_with_growing_pauses(stdio: Servers) -> None:
    """Each call is in doubt; an answer ends the pauses."""
    server = stdio.make()
    calls = [call("die", call_id=f"{n}") for n in range(4)]
    agent = script_agent("a", *calls, call("echo", call_id="e"), say("done"), toolsets=[server])
    began = time.monotonic()
    result = await Runner.run(agent, "go")
    assert read_statuses(result) == ["unknown"] * 4 + ["succeeded"]
    assert time.monotonic() - began > 0.1 + 0.2 + 0.4 + 0.8


async def test_silence_is_bounded_by_default(servers: Servers) -> None:
    """`idle_timeout` is set; a report of progress would restart it."""
    status, output = await one_call(servers, "never", idle_timeout=0.3)
    assert (status, output) == ("timed_out", "Tool 'never' timed out after 0.3 seconds.")


@pytest.mark.parametrize(("lines", "status"), [(5, "succeeded"), (1_000, "unknown")])
async def test_lines_that_are_no_messages(
    stdio: Servers, caplog: pytest.LogCaptureFixture, lines: int, status: str
) -> None:
    """A few are a common mistake and warned of once; many end the connection."""
    found, _ = await one_call(stdio, "garbage", {"lines": lines})
    assert found == status
    assert caplog.text.count("writes lines to stdout that are no messages") == 1


@pytest.mark.parametrize("pages", [False, True])
async def test_too_many_tools(stdio: Servers, caplog: pytest.LogCaptureFixture, pages: bool) -> None:
    """A bounded number is taken, from a bounded number of pages."""
    env = {"RAW_PAGES": "1", "RAW_TOOLS": "10"} if pages else {"RAW_TOOLS": "3000"}
    agent = script_agent("a", say("done"), toolsets=[stdio.make(env=env)])
    await Runner.run(agent, "go")
    assert len(read_requests(agent)[0].tools) <= 1_000
    assert "lists more than 1000 tools" in caplog.text


async def test_schema_that_refers_elsewhere_fetches_nothing(stdio: Servers) -> None:
    """The arguments are refused, with the reason."""
    status, output = await one_call(stdio, "remote_reference", {"a": 1})
    assert status == "failed"
    assert "the server's schema can't be used" in output


async def test_tools_that_no_model_could_call_are_left_out(stdio: Servers, caplog: pytest.LogCaptureFixture) -> None:
    """Names without a usable form, schemas that are none, tools that only a task may call; each is logged."""
    with caplog.at_level(logging.WARNING, "agentloop.mcp"):
        agent = script_agent("a", say("done"), toolsets=[stdio.make()])
        await Runner.run(agent, "go")
    names = {tool.name for tool in read_requests(agent)[0].tools}
    assert {"", "no_schema", "as_task"} & names == set()
    assert "maybe_task" in names
    assert caplog.text.count("is left out") == 3


async def test_list_that_is_none_of_the_protocol(stdio: Servers) -> None:
    """The SDK refuses the whole of it; the run ends with an error that names the server."""
    agent = script_agent("a", say("done"), toolsets=[stdio.make(env={"RAW_NO_OBJECT": "1"})])
    with pytest.raises(ToolSourceError, match="MCP server 'probe' can't be used: ValidationError: 1 validation error"):
        await Runner.run(agent, "go")


async def test_closed_connection_is_not_opened_again(stdio: Servers) -> None:
    """A tool that outlives its server says so."""
    server = stdio.make()
    async with server:
        (echo,) = [tool for tool in await server.tools(None, None) if tool.name == "echo"]  # type: ignore[arg-type]
        assert await echo.run_body({"a": 1}) == '{"a": 1}'
    with pytest.raises(MCPConnectionError, match="is closed"):
        await echo.run_body({"a": 1})
    await anyio.lowlevel.checkpoint()
