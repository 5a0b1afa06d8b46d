"""Agents as an MCP server. Imports nothing of the SDK before it is used: `_agent_server` does."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import anyio
from anyio.abc import TaskStatus

from agentloop._common.checks import NAMES, check, is_a
from agentloop._common.errors import UserError
from agentloop._common.extras import describe_missing
from agentloop.agents import Agent
from agentloop.config import RunConfig


def build_server(
    *agents: Agent[Any, Any],
    name: str = "agentloop",
    run_config: RunConfig | None = None,
    make_context: Callable[[], Any] | None = None,
) -> Any:
    """Return the SDK's `MCPServer` with one tool for each agent, for applications that serve it themselves.

    A call of the tool runs the agent on its `input` and returns the final output. The client hears of each turn and
    call as progress, and its cancellation cancels the run. A call that needs approval becomes a question to the
    client's user (elicitation), with secret arguments masked; a client that can't ask has it rejected. In the era
    without sessions the continuation is the run's state, which the SDK seals for the client to carry; each state is
    resumed once. The client hears of an error by its type and a fixed sentence; the log has the words.

    Args:
        agents: The agents. The tool of each has its name, and its `handoff_description`.
        name: The name of the server.
        run_config: The configuration of every run.
        make_context: Called for each run; returns its context.

    Raises:
        UserError: the extra `mcp` isn't installed, or no agent is given.
    """
    if not agents:
        raise UserError("build_server: expected an agent")
    for agent in agents:
        check("agents", NAMES.needs("expected an Agent", is_a(Agent)), agent)
    try:
        from agentloop.mcp._agent_server import make_server
    except ImportError as error:
        raise UserError(describe_missing("build_server", "mcp")) from error
    return make_server(agents, name, run_config, make_context)


async def serve(
    *agents: Agent[Any, Any],
    name: str = "agentloop",
    run_config: RunConfig | None = None,
    make_context: Callable[[], Any] | None = None,
    transport: Literal["stdio", "streamable-http"] = "stdio",
    host: str = "127.0.0.1",
    port: int = 8000,
) -> None:
    """Serve agents as `build_server` describes, until cancelled, or until the client closes stdin.

    By stdio nothing else may be printed to stdout. By HTTP (asyncio only: its server knows no other event loop) the
    endpoint is `/mcp` at *host* and *port*.

    Cancellation: ends the runs under way.

    Raises:
        UserError: as for `build_server`.
    """
    server = build_server(*agents, name=name, run_config=run_config, make_context=make_context)
    if transport == "stdio":
        async with anyio.create_task_group() as group:
            await group.start(_end_stdin_on_cancel)
            await server.run_stdio_async()
            group.cancel_scope.cancel()
    else:
        await server.run_streamable_http_async(host=host, port=port)


async def _end_stdin_on_cancel(*, task_status: TaskStatus[None]) -> None:
    """Put a pipe in place of stdin, and close it at cancellation.

    The SDK reads stdin in a thread, which no cancellation reaches: without an end of the input the server would keep on
    waiting for a line. A daemon thread copies the real stdin into the pipe.
    """
    real, (ours, pipe) = os.dup(0), os.pipe()
    os.dup2(ours, 0)
    os.close(ours)
    lock = threading.Lock()
    is_open = True

    def close() -> None:
        nonlocal is_open
        with lock:
            if is_open:
                is_open = False
                os.close(pipe)

    def copy() -> None:
        with suppress(OSError):
            while data := os.read(real, 65_536):
                while data:
                    data = data[os.write(pipe, data) :]
        close()

    threading.Thread(target=copy, name="agentloop stdin", daemon=True).start()
    task_status.started()
    try:
        await anyio.sleep_forever()
    finally:
        close()
