"""Workers that are killed: what has completed is never done again, and what is in doubt is said to be."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")

import anyio
import anyio.to_thread
from temporal_engine.durable_agents import agents, notes
from temporal_engine.worker_processes import Workers
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.worker import Worker

from agentloop import Runner, RunState
from agentloop.temporal import AgentPlugin, AgentRunHandle, ToolActivity, start_run
from agentloop.testing import normal

pytestmark = [
    *(pytest.mark.real_clock, pytest.mark.leaves_threads),
    *(pytest.mark.timeout(180), pytest.mark.backends("asyncio")),
]


async def start(workers: Workers, agent: str) -> AgentRunHandle:
    """Start a run with an id of its own."""
    client = await Client.connect(workers.address, plugins=[AgentPlugin(agents())])
    run_id = f"{agent}-{uuid4().hex}"
    return await start_run(
        client, agent, "go", id=run_id, task_queue=workers.queue, execution_timeout=timedelta(seconds=150)
    )


async def ended(process: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of a worker that kills itself."""
    with anyio.fail_after(60):
        assert await anyio.to_thread.run_sync(process.wait) == -signal.SIGKILL


async def finish(handle: AgentRunHandle) -> list[dict[str, Any]]:
    """Approve the one call that waits, and return the normal form of the run's log at its end."""
    try:
        with anyio.fail_after(120):
            async for record in handle.records(interval=0.4):
                if type(record).__name__ == "RunEnded" and record.status == "interrupted":
                    break
            await handle.approve("c2", by="boss")
            assert (await handle.result()).final_output == "all done"
    except (WorkflowQueryFailedError, TimeoutError):
        print((await handle.workflow.fetch_history()).to_json())  # what the workflow's code didn't do again
        raise
    return normal(RunState.from_string(agents()["everything"], await handle.stored_state()).records)


async def expected() -> list[dict[str, Any]]:
    """Return the normal form of a plain run's log."""
    plain = agents()["everything"]
    state = (await Runner.run(plain, "go")).to_state()
    state.approve("c2", by="boss")
    return normal((await Runner.run(plain, state)).records)


WHOLE = os.environ.get("TEMPORAL_KILLS") == "whole"
"""Kill a worker in every activity, at its beginning and at its end; else in a sample."""
AGAIN = ["model  1", "model  2", "model  3", "model  4", "model c1 1", "model c1 2", "look_up 1 ", "look_up 10 "]
"""The activities that may be done again, by the beginnings of their notes."""
ONCE = {"count 1": "a2", "hang": "a3", "fail 3": "b1", "count 2": "b2", "pay 7": "c2"}
"""The others, with their calls."""
TOGETHER = [{"a1", "a2", "a3"}, {"b1", "b2"}, {"c1", "c2", "i1"}]
"""The calls of each turn: a worker that dies in one of them takes the others with it."""
SAMPLE = ["model  1", "end model c1 1", "end look_up 1 ", "count 1", "end count 2", "end hang", "end pay 7"]


def points(activities: Iterable[str]) -> list[str]:
    """Return where workers are killed: the notes of the beginnings and ends of *activities*."""
    return [point for one in activities for point in (one, f"end {one}") if WHOLE or point in SAMPLE]


async def run_killed(workers: Workers, point: str) -> list[dict[str, Any]]:
    """Run the agent with everything, and kill the worker at *point*, which another one replaces. Return the log."""
    victim = workers.start(point)
    handle = await start(workers, "everything")
    found: list[dict[str, Any]] = []
    async with anyio.create_task_group() as group:

        async def replace() -> None:
            await ended(victim)
            workers.start()

        group.start_soon(replace)
        found += await finish(handle)
    history = await handle.workflow.fetch_history()
    (workers.histories / f"{handle.id}.json").write_text(history.to_json())
    return found


@pytest.mark.scenario("DU-02")
@pytest.mark.slow
@pytest.mark.parametrize("point", points(AGAIN))
async def test_killed_where_it_may_be_done_again(workers: Workers, point: str) -> None:
    """In a model call or an idempotent tool: another worker goes on, and the log is that of a plain run.

    But for the calls in other activities that the dead worker had as well.
    """
    lost = compare(await run_killed(workers, point), await expected(), may_be_lost=set(ONCE.values()) - {"c2"})
    assert_once(workers, lost)


@pytest.mark.scenario("DU-02")
@pytest.mark.slow
@pytest.mark.parametrize("point", points(ONCE))
async def test_killed_where_it_may_not(workers: Workers, point: str) -> None:
    """In another tool: its call is unknown, its body is called once, the model is told; all else is a plain run's."""
    call_id = ONCE[point.removeprefix("end ")]
    (beside,) = (calls for calls in TOGETHER if call_id in calls)
    lost = compare(await run_killed(workers, point), await expected(), may_be_lost=beside & set(ONCE.values()))
    # A body that its timeout has cancelled already has timed out, whatever becomes of its worker.
    assert call_id in lost or point == "end hang"
    assert_once(workers, lost)


def compare(found: list[dict[str, Any]], plain: list[dict[str, Any]], *, may_be_lost: set[str]) -> set[str]:
    """Compare the logs; return the calls that are unknown. They must be among *may_be_lost*; all else must be equal."""
    settled = {one["call_id"]: one["outcome"]["status"] for one in found if one["kind"] == "CallSettled"}
    lost = {call_id for call_id, status in settled.items() if status == "unknown"}
    assert lost <= may_be_lost
    ours, theirs = ([one for one in log if one.get("call_id") not in lost] for log in (found, plain))
    for one, other in zip(ours, theirs, strict=False):
        assert one == other
    assert len(ours) == len(theirs)
    return lost


def assert_once(workers: Workers, lost: set[str]) -> None:
    """Check that each body that may not be called again was called once; one of a call that is *lost* at most once."""
    written = notes(workers.notes)
    for body, call_id in ONCE.items():
        assert written.count(body) == 1 or (call_id in lost and not written.count(body))


@pytest.mark.scenario("DU-02")
@pytest.mark.slow
async def test_a_worker_lost_before_its_calls_timeout_is_noticed(workers: Workers) -> None:
    """The timeout and the loss reach the workflow in one step: nobody saw the end of the body, so it is unknown."""
    victim = workers.start("hang longer")
    # The victim answers for the model, too: so it is there before the time of the tool begins.
    apart = ToolActivity(task_queue=workers.queue, heartbeat_timeout=timedelta(seconds=4))
    plugin = AgentPlugin({"hanging": agents()["hanging"]}, tools={"hang_longer": apart}, model=apart)
    client = await Client.connect(workers.address, plugins=[plugin])
    queue = f"{workers.queue}-workflows"
    # The workflow's own worker is away from the start of the body until both have happened.
    async with Worker(client, task_queue=queue):
        handle = await start_run(client, "hanging", "go", id=f"hanging-{uuid4().hex}", task_queue=queue)
        await ended(victim)
    await anyio.sleep(6)
    workers.start()
    async with Worker(client, task_queue=queue, sticky_queue_schedule_to_start_timeout=timedelta(seconds=2)):
        with anyio.fail_after(60):
            result = await handle.result()
    history = await handle.workflow.fetch_history()
    (workers.histories / f"{handle.id}.json").write_text(history.to_json())
    kinds = [event.event_type for event in history.events]
    assert EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED not in kinds  # else they came one after the other
    assert [one["outcome"]["status"] for one in result.data["calls"]] == ["unknown"]


@pytest.mark.scenario("DU-02")
@pytest.mark.slow
async def test_a_query_between_a_timer_and_its_workflow_task(workers: Workers) -> None:
    """It moves nothing: the engine gives its events without a time, and no replay would do again what came of them.

    A query waits two seconds for the dead worker, as a workflow task does. The one sent a second before the tool's
    timeout reaches the other worker a second after it, when the task still waits.
    """
    victim = workers.start("hang longer")
    client = await Client.connect(workers.address, plugins=[AgentPlugin({"hanging": agents()["hanging"]})])
    handle = await start_run(client, "hanging", "go", id=f"hanging-{uuid4().hex}", task_queue=workers.queue)
    await ended(victim)
    events = (await handle.workflow.fetch_history()).events
    (timer,) = (one for one in events if one.event_type == EventType.EVENT_TYPE_TIMER_STARTED)
    async with Worker(client, task_queue=workers.queue):
        await anyio.sleep(max(0.0, timer.event_time.ToMilliseconds() / 1000 + 2.0 - time.time()))
        with anyio.fail_after(60):
            while EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED not in [one.event_type for one in events]:
                await anext(handle.records())
                events = (await handle.workflow.fetch_history()).events
        await handle.workflow.terminate()
    assert [one.event_type for one in events].count(EventType.EVENT_TYPE_TIMER_STARTED) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_histories_of_killed_workers_are_replayed(workers: Workers) -> None:
    """By the engine's own replayer, in processes with ten hash seeds, all histories of this session."""
    if not list(workers.histories.iterdir()):
        await run_killed(workers, "count 1")
    for seed in range(10):
        environment = {**workers.environment(""), "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-W", "ignore", "-m", "temporal_engine.replay_histories", str(workers.histories)]
        replayed = await anyio.run_process(command, env=environment, check=False)
        assert replayed.returncode == 0, f"hash seed {seed}: {replayed.stdout.decode()}"


@pytest.mark.slow
def test_the_example(address: str) -> None:
    """The demo's run survives the kill of a worker. It has a server of its own."""
    command = [sys.executable, "-m", "examples.durable_run"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    victim = re.search(r"worker (\d+) is killed", done.stdout)
    assert victim
    last = re.search(r"counted by worker (\d+)", done.stdout)
    assert last
    assert last[1] != victim[1]
