"""A fleet whose workers are killed and stopped, and whose database restarts: every run comes to its end, once."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from postgres_store.server import Server

from agentloop import RunState
from agentloop.exceptions import JournalError
from agentloop.postgres import PostgresJournal, PostgresStore
from agentloop.records import CallSettled
from agentloop.testing import Observation, check, replay

pytest.importorskip("psycopg", reason="needs the extra postgres and a server: nox -s tests-postgres")

WHOLE = os.environ.get("POSTGRES_FLEET") == "whole"
RUNS, KILLS, STALLS, RESTARTS = (1000, 50, 30, 3) if WHOLE else (60, 4, 3, 1)
"""A slice by default; the whole in `nox -s long`."""
HERE = Path(__file__).parent
BACKENDS = ("trio", "asyncio", "asyncio")
SEED = int(os.environ.get("POSTGRES_FLEET_SEED", "1"))


class Fleet:
    """Three processes over one database."""

    def __init__(self, conninfo: str, folder: Path) -> None:
        self.conninfo, self.folder = conninfo, folder
        self.workers = [self.start(backend) for backend in BACKENDS]

    def start(self, backend: str) -> subprocess.Popen[bytes]:
        """Start a worker."""
        command = [sys.executable, str(HERE / "fleet.py"), self.conninfo, backend, str(self.folder)]
        return subprocess.Popen(command)

    def kill(self, index: int) -> None:
        """Kill a worker, and start another one."""
        self.workers[index].kill()
        self.workers[index].wait()
        self.workers[index] = self.start(BACKENDS[index])

    def stall(self, index: int, seconds: float) -> None:
        """Stop a worker until its leases have passed, and let it continue."""
        self.workers[index].send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.workers[index].send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            worker.kill()
            worker.wait()


@pytest.mark.scenario("DU-06")
@pytest.mark.scenario("DU-08")
@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.timeout(3600 if WHOLE else 300)
def test_every_run_of_a_fleet_comes_to_its_end_once(conninfo: str, server: Server, tmp_path: Path) -> None:
    """No effect that isn't idempotent happens twice, each call in doubt is told so, and every journal replays."""
    import psycopg
    from postgres_store import fleet as members

    drawn = random.Random(SEED)
    todo = ["kill"] * KILLS + ["stall"] * STALLS + ["restart"] * RESTARTS
    drawn.shuffle(todo)
    anyio.run(prepare, conninfo)
    fleet = Fleet(conninfo, tmp_path)
    try:
        for number, what in enumerate(todo):
            low, high = (RUNS * at // len(todo) for at in (number, number + 1))
            with psycopg.connect(conninfo, autocommit=True) as db:
                db.cursor().executemany("INSERT INTO jobs (run_id) VALUES (%s)", [(str(n),) for n in range(low, high)])
            time.sleep(drawn.uniform(0.8, 1.6))
            match what:
                case "kill":
                    fleet.kill(drawn.randrange(3))
                case "stall":
                    fleet.stall(drawn.randrange(3), members.LEASE + 0.5)
                case "restart":
                    server.restart(drawn.choice([signal.SIGINT, signal.SIGQUIT]))
            approve_all(conninfo)
        until = time.monotonic() + (1200 if WHOLE else 200)
        while (left := count_left(conninfo)) and time.monotonic() < until:
            approve_all(conninfo)
            assert [worker.poll() for worker in fleet.workers] == [None] * 3
            time.sleep(0.2)
    finally:
        fleet.close()
    assert left == 0
    effects = [line.split() for path in tmp_path.glob("effects-*") for line in path.read_text().splitlines()]
    assert {held for *_, held in effects} == {"True"}  # no body started after its worker's lease
    times = Counter((run_id, call_id) for run_id, call_id, *_ in effects)
    once = {key: count for key, count in times.items() if not key[1].startswith("l")}
    assert set(once.values()) == {1}
    unknown = sum(judge_run(conninfo, members.agent, str(number), once) for number in range(RUNS))
    with psycopg.connect(conninfo) as db:
        epochs = db.execute("SELECT epoch, count(*) FROM agentloop_leases GROUP BY 1 ORDER BY 1").fetchall()
    print(
        f"{RUNS} runs, {KILLS} kills, {STALLS} stalls, {RESTARTS} restarts: {len(effects)} effects, {unknown} calls in"
    )
    print(f"doubt, {sum(count > 1 for count in times.values())} idempotent calls twice, epochs {epochs}")


async def prepare(conninfo: str) -> None:
    """Make the tables."""
    async with PostgresStore(conninfo) as store:
        made = "CREATE TABLE jobs (run_id text PRIMARY KEY, status text NOT NULL DEFAULT 'due')"
        await store.connections.run(lambda db: db.execute(made))


def count_left(conninfo: str) -> int:
    """Return the number of runs that aren't over."""
    import psycopg

    with psycopg.connect(conninfo) as db:
        row = db.execute("SELECT count(*) FROM jobs WHERE status <> 'over'").fetchone()
        return 0 if row is None else int(row[0])


def approve_all(conninfo: str) -> None:
    """Give the verdicts that are waited for, from this process."""
    import psycopg

    with psycopg.connect(conninfo, autocommit=True) as db:
        for (run_id,) in db.execute("SELECT run_id FROM jobs WHERE status = 'waiting'").fetchall():
            if anyio.run(approve, conninfo, run_id):
                db.execute("UPDATE jobs SET status = 'due' WHERE run_id = %s", (run_id,))


async def approve(conninfo: str, run_id: str) -> bool:
    """Approve what a run waits for; False while a worker still has it."""
    async with PostgresStore(conninfo) as store:
        desk = PostgresJournal(store, run_id)
        try:
            for asked in await desk.interruptions():
                await desk.approve(asked, by="the test")
        except JournalError:
            return False
    return True


def judge_run(conninfo: str, agent: Any, run_id: str, once: dict[Any, int]) -> int:
    """Judge the journal of one run, and its calls by their effects. Return the number of calls in doubt."""

    async def load() -> RunState:
        async with PostgresStore(conninfo) as store:
            return await RunState.from_journal(agent, PostgresJournal(store, run_id))

    state = anyio.run(load)
    assert state.status == "completed", run_id
    check(Observation(records=tuple(state.records), agent=agent))
    assert replay(state, agent).records == tuple(state.records), run_id
    unknown = 0
    for record in state.records:
        if isinstance(record, CallSettled) and not record.call_id.startswith("l"):
            status = record.outcome.status
            # A call whose effect is known has succeeded; in doubt it may have had it or not. There is no third.
            assert status == "unknown" or (status == "succeeded" and (run_id, record.call_id) in once), (run_id, record)
            unknown += status == "unknown"
    return unknown
