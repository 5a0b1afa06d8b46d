"""A fleet of `serve` whose workers are killed, stopped, drained and deployed anew, and whose database restarts.

At the end the log of each run, the table of effects and the table of takes are judged together.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import anyio
import attrs
import pytest
from postgres_store.server import Server

from agentloop import RunConfig, RunState
from agentloop.exceptions import JournalError
from agentloop.postgres import PostgresJournal, PostgresStore, StoredRun
from agentloop.records import CallSettled, CallStarted, Record
from agentloop.testing import Observation, check
from agentloop.testing.replaying._driver import Replaying
from agentloop.testing.replaying._recorded import RecordedRun
from agentloop.testing.replaying._recorded_agents import RecordedAgents

pytest.importorskip("psycopg", reason="needs the extra postgres and a server: nox -s tests-postgres")

WHOLE = os.environ.get("POSTGRES_FLEET") == "whole"
RUNS, KILLS, STALLS, RESTARTS, DRAINS = (1000, 50, 30, 3, 12) if WHOLE else (40, 3, 2, 1, 1)
"""A slice by default; the whole in `nox -s long -- fleet`."""
PROGRAM = Path(__file__).with_name("served_fleet.py")
BACKENDS = ("trio", "asyncio", "asyncio")
SEED = int(os.environ.get("POSTGRES_FLEET_SEED", "1"))
TICK = 0.2
HELD = "SELECT run_id, epoch FROM agentloop_leases WHERE worker = %s AND is_taken AND ends_at > clock_timestamp()"
Rows: TypeAlias = list[tuple[Any, ...]]


@attrs.frozen
class Event:
    """What was done to a worker, or to the database, and from when to when, as seconds since the epoch."""

    what: str
    worker: str | None
    begun: float
    ended: float


class Fleet:
    """Three worker processes over one database."""

    def __init__(self, conninfo: str, folder: Path) -> None:
        self.conninfo, self.folder = conninfo, folder
        self.deploy = 1
        self.events: list[Event] = []
        self.held: list[tuple[float, Rows]] = []
        """For each kill its time, and the runs that the worker had, with their epochs."""
        self.started = 0
        self.names: dict[int, str] = {}
        self.deploys: dict[str, int] = {}
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        for index in range(len(BACKENDS)):
            self.start(index)

    def start(self, index: int, deploy: int | None = None) -> None:
        """Start a worker of the deploy."""
        self.started += 1
        self.names[index] = name = f"worker-{self.started}"
        self.deploys[name] = deploy or self.deploy
        command = [sys.executable, str(PROGRAM), self.conninfo, BACKENDS[index % 3], name, str(self.deploys[name])]
        with (self.folder / name).open("wb") as output:
            self.workers[index] = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def pick(self, drawn: random.Random) -> int:
        """Return one of the workers that have runs, once there is one."""
        found: list[int] = []

        def look() -> bool:
            found[:] = [index for index in range(3) if ask(self.conninfo, HELD, self.names[index])]
            return bool(found)

        until(self, look)
        return drawn.choice(found)

    def kill(self, index: int) -> None:
        """Kill a worker, and start another one."""
        begun = time.time()
        self.workers[index].kill()
        self.workers[index].wait()
        had = (
            "SELECT run_id, epoch FROM agentloop_leases WHERE worker = %s AND is_taken AND ends_at > clock_timestamp()"
        )
        self.held.append((begun, ask(self.conninfo, had, self.names[index])))
        self.note("kill", index, begun)
        self.start(index)

    def stall(self, index: int, seconds: float) -> None:
        """Stop a worker until its leases have passed, and let it continue."""
        begun = time.time()
        self.workers[index].send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.workers[index].send_signal(signal.SIGCONT)
        self.note("stall", index, begun)

    def drain(self, index: int) -> None:
        """End a worker as an orchestrator does, and start one of the deploy in its place."""
        until(self, lambda: self.is_serving(index))  # a signal before has its usual effect
        begun = time.time()
        self.workers[index].send_signal(signal.SIGTERM)
        assert self.workers[index].wait(120) == 0, self.read(index)
        assert self.read(index).endswith("drained\n")
        self.note("drain", index, begun)
        self.start(index)

    def note(self, what: str, index: int, begun: float) -> None:
        """Note what was done to a worker."""
        self.events.append(Event(what, self.names[index], begun, time.time()))

    def read(self, index: int) -> str:
        """Return what a worker has written."""
        return (self.folder / self.names[index]).read_text()

    def restart(self, server: Server, how: signal.Signals) -> None:
        """Restart the database under workers that have reached it: one that never did ends, as at a wrong address."""
        until(self, lambda: all(map(self.is_serving, self.workers)))
        begun = time.time()
        server.restart(how)
        self.events.append(Event("restart", None, begun, time.time()))

    def is_serving(self, index: int) -> bool:
        """True once a worker takes runs."""
        return self.read(index).startswith("serving\n")

    def check_alive(self) -> None:
        """No worker ends by itself."""
        for index, worker in self.workers.items():
            assert worker.poll() is None, self.read(index)

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers.values():
            worker.kill()
            worker.wait()


def ask(conninfo: str, asked: str, *given: Any) -> Rows:
    """Return the rows of a statement."""
    import psycopg

    with psycopg.connect(conninfo, autocommit=True) as db:
        return db.execute(asked, given).fetchall()  # type: ignore[arg-type]


async def _prepare(conninfo: str) -> None:
    from postgres_store import served_fleet

    async with PostgresStore(conninfo) as store:
        await store.migrate()
        await store.connections.run(lambda db: db.execute(served_fleet.TABLES))


async def _submit(conninfo: str, numbers: Sequence[int]) -> None:
    from postgres_store import served_fleet

    async with PostgresStore(conninfo) as store:
        for number in numbers:
            owner = f"owner-{number % 5}"
            assert await store.submit(str(number), "clerk", served_fleet.given(number), owner=owner)


async def _list(conninfo: str) -> list[StoredRun]:
    async with PostgresStore(conninfo) as store:
        return await store.runs()


async def _approve(conninfo: str, kept_back: Sequence[str]) -> set[str]:
    """Approve what waits, but not the calls of the tools *kept_back*; return the tools whose calls wait."""
    async with PostgresStore(conninfo) as store:
        waiting = [(run.run_id, call) for run in await store.waiting() for call in run.waiting]
        for run_id, call in waiting:
            if call.tool not in kept_back:
                with suppress(JournalError):  # its worker has it still
                    await PostgresJournal(store, run_id).approve(call.call_id, by="the test")
        return {call.tool for _, call in waiting}


def until(fleet: Fleet, fits: Callable[[], bool], seconds: float = 1200 if WHOLE else 200) -> None:
    """Wait until it is so."""
    end = time.monotonic() + seconds
    while not fits():
        fleet.check_alive()
        assert time.monotonic() < end, Counter((run.status, run.trouble) for run in anyio.run(_list, fleet.conninfo))
        time.sleep(TICK)


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.timeout(3600 if WHOLE else 400)
def test_every_run_that_is_served_comes_to_its_end_once(conninfo: str, server: Server, tmp_path: Path) -> None:
    """Over kills, stalls, restarts, drains and a rolling deploy; what the new deploy can't continue says why."""
    from postgres_store import served_fleet

    drawn = random.Random(SEED)
    todo = ["kill"] * KILLS + ["stall"] * STALLS + ["restart"] * RESTARTS + ["drain"] * DRAINS
    drawn.shuffle(todo)
    middle = len(todo) // 2
    todo[middle:middle] = ["meet", "deploy", todo[middle - 1], "deploy", todo[middle - 2], "deploy"]
    del todo[middle - 2 : middle]
    anyio.run(_prepare, conninfo)
    kept_back = ["legacy", "ship"]
    fleet = Fleet(conninfo, tmp_path)
    deployed = iter(range(len(BACKENDS)))
    approve = partial(anyio.run, _approve, conninfo, kept_back)
    try:
        for number, what in enumerate(todo):
            anyio.run(_submit, conninfo, range(*(RUNS * at // len(todo) for at in (number, number + 1))))
            time.sleep(drawn.uniform(0.2, 1.0))
            match what:
                case "kill":
                    fleet.kill(fleet.pick(drawn))
                case "stall":
                    fleet.stall(fleet.pick(drawn), served_fleet.LEASE + 0.5)
                case "drain":
                    fleet.drain(drawn.randrange(3))
                case "restart":
                    fleet.restart(server, drawn.choice([signal.SIGINT, signal.SIGQUIT]))
                case "meet":  # calls of the first deploy wait when the second one comes
                    until(fleet, lambda: approve() >= set(kept_back))
                case "deploy":
                    fleet.deploy = 2
                    fleet.drain(next(deployed))
            approve()
            fleet.check_alive()
        kept_back.clear()
        until(fleet, lambda: approve() == set() and not _find_moving(conninfo))
        stuck = _judge_rows(anyio.run(_list, conninfo))
        fleet.start(3, deploy=1)  # an old worker, for the runs that no new one can continue
        until(fleet, lambda: {run.status for run in anyio.run(_list, conninfo)} == {"completed"})
    finally:
        fleet.close()
    assert stuck
    assert len(anyio.run(_list, conninfo)) == RUNS
    effects = ask(conninfo, "SELECT key, tool, held, count(*) FROM effects GROUP BY key, tool, held")
    assert {held for *_, held, _ in effects} == {True}  # no body started after its worker's lease
    times = {key: count for key, _, _, count in effects}
    assert {count for key, tool, _, count in effects if tool != "look"} == {1}
    assert fleet.held
    assert all(held for _, held in fleet.held)
    takes = _find_takes(conninfo)
    reasons: Counter[str] = Counter()
    for number in range(RUNS):
        deploys = [(at, fleet.deploys[worker]) for _, worker, at in takes[str(number)]]
        for call in anyio.run(_judge_run, conninfo, number, times, deploys):
            reason = _find_reason(fleet.events, takes[str(number)], call.at)
            reasons[reason] += 1
            print(f"run {number}: {call.tool} ({call.call_id}) is in doubt: {reason}")
    taken = [(begun, _find_taken(takes[run_id], epoch)) for begun, held in fleet.held for run_id, epoch in held]
    over = [at - begun for begun, at in taken if at is not None]
    assert over
    print(f"{RUNS} runs, {KILLS} kills, {STALLS} stalls, {RESTARTS} restarts, {DRAINS} drains, a deploy, seed {SEED}:")
    again = sum(count > 1 for count in times.values())
    print(f"{sum(times.values())} bodies, {again} idempotent calls again; in doubt: {dict(reasons)};")
    print(f"runs for an old worker: {len(stuck)}; {sum(map(len, takes.values()))} takes;")
    print(f"{len(over)} runs of killed workers were taken over after {median(over):.2f} s, at most {max(over):.2f} s")
    if WHOLE:
        assert median(over) <= served_fleet.LEASE + 1.0


def _find_moving(conninfo: str) -> list[StoredRun]:
    """Return the runs that aren't over and that no worker has refused."""
    return [run for run in anyio.run(_list, conninfo) if run.status != "completed" and not _is_refused(run)]


def _is_refused(run: StoredRun) -> bool:
    return run.status == "queued" and (run.trouble or "").startswith("StateError(")


def _judge_rows(runs: list[StoredRun]) -> list[str]:
    """Every run is over, or its row says why not. Return those that are not."""
    left = [run for run in runs if run.status != "completed"]
    for run in left:
        assert _is_refused(run), run
        assert "legacy" in str(run.trouble) or "ship" in str(run.trouble), run
        assert run.due_at is not None, run
    return [run.run_id for run in left]


def _find_takes(conninfo: str) -> dict[str, list[tuple[int, str, float]]]:
    """Return of each run the epochs in which workers had it, with the worker and the time from which on."""
    found: dict[str, list[tuple[int, str, float]]] = defaultdict(list)
    asked = "SELECT run_id, epoch, worker, extract(epoch FROM at)::float8 FROM takes ORDER BY run_id, epoch"
    for run_id, epoch, worker, at in ask(conninfo, asked):
        found[run_id].append((epoch, worker, at))
    return found


def _find_taken(takes: list[tuple[int, str, float]], epoch: int) -> float | None:
    """Return when the next worker took a run that one had in *epoch*.

    None if that worker had ended it: between our look at what it has, and its death. For every run is over.
    """
    return min((at for later, _, at in takes if later > epoch), default=None)


def _find_reason(events: list[Event], takes: list[tuple[int, str, float]], at: float) -> str:
    """Return what was done to the worker that began a call at the time *at*, before the run was taken again."""
    _, worker, _ = max(take for take in takes if take[2] <= at)
    again = min((taken for _, _, taken in takes if taken > at), default=None)
    assert again is not None, "a worker that has its run knows what has become of its calls"
    for event in events:
        if event.worker in (None, worker) and event.begun <= again and event.ended >= at:
            return event.what
    return "the lease has passed"


class _ReplayOverDeploys(Replaying):
    """A replay in which each run segment has the agent of the deploy that it ran on; *deploys* are those, from when."""

    def __init__(self, state: RunState, deploys: list[tuple[float, int]]) -> None:
        from postgres_store import served_fleet

        self.agents = {1: served_fleet.make_agent(1), 2: served_fleet.make_agent(2)}
        self.deploys = deploys
        super().__init__(RecordedRun.of(state.records), self.agents[1], RunConfig())

    def _open_stream(self, agent: Any, config: RunConfig, entry: Any, effects: Any) -> Any:
        begun = self.recorded.records[entry.start].at
        _, deploy = max(one for one in self.deploys if one[0] <= begun)
        copied = RecordedAgents(effects).copy_agent(self.agents[deploy])
        return super()._open_stream(copied, config, entry, effects)

    def give_records(self) -> tuple[Record, ...]:
        """Return the records that the replay makes, which have to be those of the log."""
        return tuple(self.run("asyncio", lambda: False).appended)


async def _judge_run(
    conninfo: str, number: int, times: dict[str, int], deploys: list[tuple[float, int]]
) -> list[CallStarted]:
    """Judge the journal of one run, and its calls by their effects. Return those that are in doubt."""
    from postgres_store import served_fleet

    agent = served_fleet.make_agent(1, served_fleet.audit)
    async with PostgresStore(conninfo, connections=1) as store:
        state = await RunState.from_journal(agent, PostgresJournal(store, str(number)))
    records = tuple(state.records)
    assert state.status == "completed", number
    check(Observation(records=records, agent=agent))
    assert await anyio.to_thread.run_sync(_ReplayOverDeploys(state, deploys).give_records) == records, number
    started = {(one.path, one.call_id): one for one in records if isinstance(one, CallStarted)}
    in_doubt: list[CallStarted] = []
    for one in records:
        if isinstance(one, CallSettled) and one.tool != "helper":
            begun = started[one.path, one.call_id]
            # A call whose effect is known has succeeded; in doubt it may have had it or not. There is no third.
            if one.outcome.status == "unknown":
                assert one.tool != "look", (number, one)
                in_doubt.append(begun)
            else:
                assert one.outcome.status == "succeeded", (number, one)
                assert begun.idempotency_key(state.run_id) in times, (number, one)
    return in_doubt
