"""Many runs at a time: all of them cancelled, and all of them waiting while a worker is killed."""

import os
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")

import anyio
import anyio.to_thread
from temporal_engine.durable_agents import NOTES, agents, notes
from temporal_engine.worker_processes import Workers
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError
from temporalio.worker import Worker

from agentloop.temporal import AgentPlugin, AgentRunHandle, start_run

pytestmark = [
    *(pytest.mark.real_clock, pytest.mark.leaves_threads, pytest.mark.slow),
    *(pytest.mark.timeout(600), pytest.mark.backends("asyncio")),
]

WHOLE = os.environ.get("TEMPORAL_KILLS") == "whole"
CANCELLED, WAITING = (100, 200) if WHOLE else (20, 30)
EVENTS = 60
"""More than the history of a cancelled run has: a workflow whose tasks spin has thousands, or none at all."""


@pytest.mark.scenario("DU-03")
async def test_cancelled_runs_end_in_bounded_steps(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled at drawn moments, with their worker alive: when a workflow has ended, so have its bodies."""
    monkeypatch.setenv(NOTES, str(tmp_path / "notes"))
    drawn = random.Random(1)
    client = await Client.connect(address, plugins=[AgentPlugin({"sleeping": agents()["sleeping"]})])
    queue = f"queue-{uuid4().hex}"

    async def cancel_one(number: int) -> None:
        await anyio.sleep(drawn.uniform(0, CANCELLED / 10))
        handle = await start_run(client, "sleeping", "go", id=f"cancel-{number}-{uuid4().hex}", task_queue=queue)
        await anyio.sleep(drawn.uniform(0, 3))
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        history = await handle.workflow.fetch_history()
        kinds = Counter(event.event_type for event in history.events)
        assert kinds[EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED] == 1
        assert len(history.events) < EVENTS
        scheduled = kinds[EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED]
        over = kinds[EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED] + kinds[EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED]
        assert scheduled == over  # each activity was awaited

    async with Worker(client, task_queue=queue, graceful_shutdown_timeout=timedelta(seconds=5)):
        with anyio.fail_after(300):
            async with anyio.create_task_group() as group:
                for number in range(CANCELLED):
                    group.start_soon(cancel_one, number)
    written = Counter(notes(tmp_path / "notes"))
    assert sum(written[f"wait {n}"] for n in range(3)) > CANCELLED // 4  # the others were cancelled before
    assert [written[f"wait {n}"] for n in range(3)] == [written[f"end wait {n}"] for n in range(3)]


@pytest.mark.scenario("DU-04")
async def test_waiting_runs_cost_two_workers_nothing(workers: Workers) -> None:
    """All wait for a verdict; one of two workers is killed; each verdict is taken and each payment made once."""
    victim, _ = workers.start(), workers.start()
    client = await Client.connect(workers.address, plugins=[AgentPlugin(agents())])
    handles = [
        await start_run(client, "payer", "go", id=f"wait-{uuid4().hex}", task_queue=workers.queue)
        for _ in range(WAITING)
    ]
    with anyio.fail_after(400):
        await for_each(handles, wait_for_question)
        victim.kill()
        await anyio.to_thread.run_sync(victim.wait)
        await for_each(handles, approve_and_finish)
    assert notes(workers.notes).count("pay 1") == WAITING
    lengths = [(await handle.workflow.describe()).history_length for handle in handles]
    print(f"{WAITING} runs that waited for a verdict: {min(lengths)} to {max(lengths)} events each")


async def for_each(handles: list[AgentRunHandle], work: Any) -> None:
    """Do *work* on all handles, twenty at a time."""
    room = anyio.CapacityLimiter(20)

    async def one(handle: AgentRunHandle) -> None:
        async with room:
            await work(handle)

    async with anyio.create_task_group() as group:
        for handle in handles:
            group.start_soon(one, handle)


async def wait_for_question(handle: AgentRunHandle) -> None:
    """Wait until the run is interrupted."""
    async for record in handle.records(interval=0.5):
        if type(record).__name__ == "RunEnded":
            return


async def approve_and_finish(handle: AgentRunHandle) -> None:
    """Approve the one call and wait for the end."""
    await handle.approve("p1", by="boss")
    assert (await handle.result()).final_output == "paid"
