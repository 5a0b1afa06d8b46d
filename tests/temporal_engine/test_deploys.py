"""Deploys that change agents while runs wait: what a replay of their histories allows, and what it refuses."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")

from temporal_engine.durable_agents import look_up, pay, scripted
from temporalio.client import Client
from temporalio.worker import Replayer, Worker

from agentloop import Agent, tool
from agentloop.records import RunEnded
from agentloop.temporal import AgentPlugin, start_run
from agentloop.testing import call, say

pytestmark = [
    *(pytest.mark.real_clock, pytest.mark.leaves_threads),
    *(pytest.mark.timeout(120), pytest.mark.backends("asyncio")),
]

STEPS = [[call("look_up", {"n": 1}, call_id="a")], [call("pay", {"amount": 1}, call_id="b")], say("done")]


def clerk(**changes: Any) -> Agent[Any, Any]:
    """Return the agent of the waiting run, as a later version of the application has it."""
    return Agent(**({"name": "clerk", "model": scripted(*STEPS), "tools": [look_up, pay]} | changes))


@tool
async def more(n: int) -> str:
    """A tool that came later."""
    return ""


@tool(name="look_up", idempotent=True, timeout=60.0)
async def look_up_in_time(n: int) -> str:
    """Look something up, in time."""
    return f"found {n}"


@tool(name="look_up", idempotent=True)
async def look_up_here(n: int) -> str:
    """Look something up, in another way and with another description."""
    return f"seen {n}"


ALLOWED = {
    "nothing": clerk(),
    "instructions": clerk(instructions="Be brief."),
    "the model": clerk(model="mine:other"),
    "one tool more": clerk(tools=[more, look_up, pay]),
    "a tool's body and description": clerk(tools=[look_up_here, pay]),
}
REFUSED = {
    "a tool that was called is gone": clerk(tools=[pay]),
    "a tool that was called has a timeout now": clerk(tools=[look_up_in_time, pay]),
}


async def test_changed_agents_and_waiting_runs(address: str) -> None:
    """What the next turn uses may change; what happened already must happen again."""
    client = await Client.connect(address, plugins=[AgentPlugin({"clerk": clerk()})])
    queue = f"queue-{uuid4().hex}"
    async with Worker(client, task_queue=queue, graceful_shutdown_timeout=timedelta(seconds=5)):
        handle = await start_run(client, "clerk", "go", id=f"deploy-{uuid4().hex}", task_queue=queue)
        async for record in handle.records(interval=0.1):
            if isinstance(record, RunEnded):
                break
        history = await handle.workflow.fetch_history()
    await handle.workflow.terminate()
    refused = {}
    for change, agent in {**ALLOWED, **REFUSED}.items():
        replayer = Replayer(workflows=[], plugins=[AgentPlugin({"clerk": agent})])
        refused[change] = (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure
    assert [change for change in ALLOWED if refused[change]] == []
    assert [change for change in REFUSED if not refused[change]] == []
