"""Servers that a run can do without: down at the start, in the middle, and back."""

import logging
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from kit.agents import script_agent
from kit.results import read_requests, read_statuses
from mcp_servers.processes import HERE, MARKS, START_SECONDS, Servers, children, free_port

from agentloop import FunctionTool, Runner, tool
from agentloop.mcp import MCPConnectionError, MCPServer
from agentloop.mcp._server import _HeldServer
from agentloop.testing import call, say

pytest.importorskip("mcp", reason="needs the extra mcp: nox -s mcp")
pytestmark = MARKS


class Switch:
    """A server that is down at first, and that two tools of the agent start and stop."""

    def __init__(self, servers: Servers, **options: Any) -> None:
        self.servers = servers
        if servers.kind == "http":
            self.port = free_port()
            where: dict[str, Any] = {"url": f"http://127.0.0.1:{self.port}/mcp"}
        else:
            self.program = servers.folder / "server.py"
            where = {"command": [sys.executable, str(self.program), "stdio"]}
        options = {"required": False, "filter": ["echo", "die"], **where, **options}
        self.source = MCPServer(name="probe", connect_timeout=START_SECONDS, **options)
        self.tools = [self._make(self.start), self._make(self.stop)]

    @staticmethod
    def _make(work: Callable[[], None]) -> FunctionTool[Any]:
        async def body() -> str:
            await anyio.to_thread.run_sync(work)
            return "done"

        return tool(body, name=work.__name__, description="Switch the server.")

    def start(self) -> None:
        """Start the server, or make it possible to."""
        if self.servers.kind == "http":
            self.servers.start("raw_server.py", self.port, {})
        else:
            shutil.copy(HERE / "raw_server.py", self.program)

    def stop(self) -> None:
        """Stop the server; by stdio it can't be started any more, and the tool `die` stops it."""
        if self.servers.kind == "http":
            self.servers.close()
            self.servers.processes.clear()
        else:
            self.program.unlink()


@pytest.mark.scenario("TS-10")
@pytest.mark.parametrize("holder", ["run", "block"])
async def test_optional_server_costs_its_own_calls_alone(
    servers: Servers, holder: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Down at the start, up, down in the middle, and back: the tools come and go, and the run goes on."""
    switch = Switch(servers)
    agent = script_agent(
        "a",
        call("echo", call_id="early"),
        call("start"),
        call("echo", {"text": "one"}),
        call("stop"),
        call("die", call_id="lost"),
        call("echo", call_id="gone"),
        call("start"),
        call("echo", {"text": "two"}),
        say("done"),
        tools=switch.tools,
        toolsets=[switch.source],
    )
    caplog.set_level(logging.INFO, "agentloop.mcp")
    before = children()
    if holder == "block":
        async with switch.source:
            result = await Runner.run(agent, "go")
    else:
        result = await Runner.run(agent, "go")
    assert result.final_output == "done"
    assert read_statuses(result) == [
        *("failed", "succeeded", "succeeded", "succeeded", "unknown"),
        *("failed", "succeeded", "succeeded"),
    ]
    has_echo = ["echo" in {one.name for one in request.tools} for request in read_requests(agent)]
    # Nobody knows that the server is gone before the call of `die`: by stdio it lives until then.
    assert has_echo == [False, False, True, True, True, False, False, True, True]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    gone = [words for words in said if "are left out until it can be reached: MCP server 'probe'" in words]
    assert len(gone) == 2
    assert sum("its tools are back" in record.getMessage() for record in caplog.records) == 2
    assert children() - before <= {process.pid for process in servers.processes}


@pytest.mark.scenario("TS-10")
async def test_those_who_waited_for_an_attempt_share_its_failure() -> None:
    """Their waits don't add up. Who comes later tries anew, and then all have the one connection."""
    go_on, attempts = anyio.Event(), list[bool]()

    @asynccontextmanager
    async def open_tools() -> AsyncIterator[Any]:
        attempts.append(go_on.is_set())
        await go_on.wait()
        if len(attempts) == 1:
            raise MCPConnectionError("no answer")
        yield "tools"

    held, said = _HeldServer(open_tools), list[str]()

    async def enter() -> None:
        try:
            said.append(str(await held.enter()))
        except MCPConnectionError as error:
            said.append(str(error))

    for _ in range(2):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(enter)
            await anyio.wait_all_tasks_blocked()
            go_on.set()
    assert said == [*["no answer"] * 3, *["tools"] * 3]
    assert attempts == [False, True]
    await held.leave()


@pytest.mark.scenario("TS-10")
async def test_required_server_that_is_down_refuses_the_block(servers: Servers) -> None:
    """Entering it raises, and it can be entered later."""
    switch = Switch(servers, required=True)
    with pytest.raises(MCPConnectionError, match="MCP server 'probe' can't be used"):
        await switch.source.__aenter__()
    await anyio.to_thread.run_sync(switch.start)
    async with switch.source:
        agent = script_agent("a", call("echo"), say("done"), toolsets=[switch.source])
        assert read_statuses(await Runner.run(agent, "go")) == ["succeeded"]


@pytest.mark.scenario("TS-10")
async def test_block_that_is_left_while_a_run_opens_the_server_leaves_nothing(stdio: Servers, tmp_path: Path) -> None:
    """The connection closes as soon as it is open; the run ends as it would have."""
    switch = Switch(stdio)
    agent = script_agent("a", say("done"), toolsets=[switch.source])
    before = children()
    async with anyio.create_task_group() as group, switch.source:
        switch.start()
        group.start_soon(Runner.run, agent, "go")
        with anyio.fail_after(START_SECONDS):
            while children() == before:  # noqa: ASYNC110 - another process starts
                await anyio.sleep(0.001)
    assert children() == before
