"""Workers that are killed: what has completed is never done again, and what is in doubt is said to be."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")

import anyio
import anyio.to_thread
from temporal_engine.durable_agents import KILL_AT, NOTES, agents, notes
from temporalio.client import Client, WorkflowQueryFailedError

from agentloop import Runner, RunState
from agentloop.temporal import AgentPlugin, AgentRunHandle, start_run
from agentloop.testing import normal

pytestmark = [
    *(pytest.mark.real_clock, pytest.mark.leaves_threads),
    *(pytest.mark.timeout(180), pytest.mark.backends("asyncio")),
]


class Workers:
    """Worker processes of one test, on one queue."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.notes, self.queue = address, folder / "notes", f"queue-{uuid4().hex}"
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, kill_at: str = "") -> "subprocess.Popen[bytes]":
        """Start a worker; the first that writes the note *kill_at* kills itself."""
        environment = {**os.environ, NOTES: str(self.notes), KILL_AT: kill_at}
        command = [sys.executable, "-m", "temporal_engine.durable_agents", self.address, self.queue]
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
        made = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        self._running.append(made)
        return made

    def close(self) -> None:
        """Kill what is left."""
        for process in self._running:
            process.kill()
            process.wait()


@pytest.fixture
def workers(address: str, tmp_path: Path) -> Iterator[Workers]:
    """The workers of one test."""
    made = Workers(address, tmp_path)
    yield made
    made.close()


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
            async for record in handle.records(interval=0.1):
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


def outcomes(log: list[dict[str, Any]]) -> dict[str, str]:
    """Return the status of each call."""
    return {one["call_id"]: one["outcome"]["status"] for one in log if one["kind"] == "CallSettled"}


@pytest.mark.scenario("DU-02")
@pytest.mark.slow
@pytest.mark.parametrize("point", ["model  1", "model  2", "model  3", "model c1 1", "look_up 10"])
async def test_killed_where_it_may_be_done_again(workers: Workers, point: str) -> None:
    """In a model call or an idempotent tool: another worker goes on, and the log is that of a plain run."""
    victim = workers.start(point)
    handle = await start(workers, "everything")
    await ended(victim)
    workers.start()
    found = await finish(handle)
    assert found == await expected()
    written = notes(workers.notes)
    for once in ("count 1", "count 2", "pay 7"):
        assert written.count(once) == 1


@pytest.mark.scenario("DU-02")
@pytest.mark.slow
@pytest.mark.parametrize(("point", "lost"), [("count 1", {"a2", "a3"}), ("count 2", {"b2"})])
async def test_killed_where_it_may_not(workers: Workers, point: str, lost: set[str]) -> None:
    """In another tool: the calls in flight there are unknown, their bodies are called once, the model is told."""
    victim = workers.start(point)
    handle = await start(workers, "everything")
    await ended(victim)
    workers.start()
    found, plain = outcomes(await finish(handle)), outcomes(await expected())
    unknown = {call_id for call_id, status in found.items() if status == "unknown"}
    assert unknown
    assert unknown <= lost
    assert {**found, **dict.fromkeys(lost)} == {**plain, **dict.fromkeys(lost)}
    assert notes(workers.notes).count(point) == 1


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
