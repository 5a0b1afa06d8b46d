"""A server that is killed at any moment of its calls: no hang, no orphan, and the truth about each call."""

import os
import random
import signal
import time
from contextlib import suppress
from typing import Any

import anyio
import pytest
from kit.agents import script_agent
from kit.results import read_statuses
from mcp_servers.processes import MARKS, Servers, children

from agentloop import Runner
from agentloop.testing import call, say

pytest.importorskip("mcp", reason="needs the extra mcp: nox -s mcp")
pytestmark = [*MARKS, pytest.mark.scenario("TS-04")]

POINTS = int(os.environ.get("MCP_KILL_POINTS", "12"))
"""Drawn moments: a slice by default, 200 in `nox -s long`."""
LONGEST = 2.0
"""Seconds from the death of the server to the end of the turn."""


@pytest.mark.parametrize("seed", range(0, POINTS, 4))
async def test_server_killed_within_calls(stdio: Servers, seed: int) -> None:
    """Each call has an outcome that the model is told; the next turn uses a new process."""
    for number in range(seed, min(seed + 4, POINTS)):
        drawn = random.Random(number)
        delay, count = drawn.uniform(0, 0.25), drawn.randint(1, 8)
        calls: list[Any] = [call("wait", {"seconds": drawn.uniform(0, 0.3)}, call_id=f"w{n}") for n in range(count)]
        if drawn.random() < 0.3:
            calls.insert(drawn.randrange(len(calls)), call("die", {"how": "half"}, call_id="d"))
        server = stdio.make()
        before = children()
        async with server:
            (pid,) = children() - before
            died: list[float] = []

            async def kill(pid: int = pid, delay: float = delay, died: list[float] = died) -> None:
                await anyio.sleep(delay)
                died.append(time.monotonic())
                with suppress(ProcessLookupError):  # it may have ended itself
                    os.kill(pid, signal.SIGKILL)

            agent = script_agent("a", calls, say("done"), toolsets=[server])
            async with anyio.create_task_group() as group:
                group.start_soon(kill)
                result = await Runner.run(agent, "go")
                ended = time.monotonic()
                group.cancel_scope.cancel()
            statuses = read_statuses(result)
            assert set(statuses) <= {"succeeded", "unknown", "failed"}, statuses
            if died:
                assert ended - died[0] < LONGEST, (number, statuses)
            # Killed at the very end, the server is found dead by the next call alone, whose request has been sent then.
            after = script_agent(
                "a", call("echo", call_id="1"), call("echo", call_id="2"), say("done"), toolsets=[server]
            )
            first, second = read_statuses(await Runner.run(after, "go"))
            assert first in ("succeeded", "unknown"), first
            assert second == "succeeded"
        assert children() == before
