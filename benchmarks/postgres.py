"""`python -m benchmarks.postgres`: the row Wp9, runs with a journal in PostgreSQL against the database's own commits.

    python -m benchmarks.postgres               # both backends, about half a minute

It needs the extra `test-postgres` and starts a server of its own, which syncs each commit. One worker holds the leases
of sixteen runs at a time, of three turns of two calls each, and the store has its usual four connections. Four threads
that do nothing but insert a line and commit are the other side: the most that as many connections can do. Both sides
are measured by the clock and in turns, so a disk that is busy slows both.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import anyio

from agentloop.postgres import PostgresJournal, PostgresStore
from benchmarks.bare import LIMITS, Limit
from benchmarks.ours import ours
from benchmarks.report import BACKENDS
from benchmarks.script import conversation

CONNECTIONS, AT_ONCE = 4, 16
TURNS, CALLS = 3, 2
LINE = b"x" * 700
"""About as long as the lines of one batch."""


def commits(conninfo: str, seconds: float) -> float:
    """Return how many lines a second `CONNECTIONS` threads insert, each in a transaction of its own."""
    import psycopg

    until, counts = time.perf_counter() + seconds, [0] * CONNECTIONS

    def insert(number: int) -> None:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            while time.perf_counter() < until:
                connection.execute("INSERT INTO bench_lines (line) VALUES (%s)", (LINE,))
                counts[number] += 1

    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS bench_lines (n bigserial PRIMARY KEY, line bytea NOT NULL)")
    threads = [threading.Thread(target=insert, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


class Counted(PostgresJournal):
    """Counts its appends, each of which is a commit."""

    appends = 0

    async def append(self, records: Sequence[bytes]) -> None:
        """Append, and count."""
        await super().append(records)
        Counted.appends += 1


async def runs(limit: Limit, conninfo: str, seconds: float, numbers: itertools.count[int]) -> tuple[float, float]:
    """Return how many runs a second one worker does, and how many batches a second they append."""
    side = ours(conversation(limit.sleep, turns=TURNS, calls=CALLS))
    until, done, before = time.perf_counter() + seconds, 0, Counted.appends

    async def work(store: PostgresStore) -> None:
        nonlocal done
        while time.perf_counter() < until:
            run_id = f"{limit.name}-{next(numbers)}"
            async with store.lease(run_id) as lease:
                await side.run(Counted(store, lease))
            done += 1

    start = time.perf_counter()
    async with PostgresStore(conninfo, connections=CONNECTIONS) as store, anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(work, store)
    took = time.perf_counter() - start
    return done / took, (Counted.appends - before) / took


def measure(backend: str, conninfo: str, seconds: float, pairs: int) -> str:
    """Return the line of *backend*."""
    numbers = itertools.count()
    found: list[tuple[float, float, float]] = []
    for number in range(pairs + 1):
        job = partial(runs, LIMITS[backend], conninfo, seconds, numbers)
        ran, appended = anyio.run(job, backend=backend)
        own = commits(conninfo, seconds)
        if number:  # the first pair makes the tables, and warms up
            found.append((ran, appended, own))
    ran, appended, own = (median(column) for column in zip(*found, strict=True))
    share = median(appended / own for _, appended, own in found)
    return (
        f"| {backend} | {ran:.0f} | {appended / ran:.1f} | {appended:.0f} | {own:.0f} | {share:.2f} | {ran / own:.3f} |"
    )


def main(given: Sequence[str] | None = None) -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.postgres", description="Runs against commits.")
    parser.add_argument("--seconds", type=float, default=2.0, help="for one sample of one side")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--backend", choices=BACKENDS)
    arguments = parser.parse_args(given)
    sys.path.append(str(Path(__file__).parent.parent / "tests"))
    from postgres_store.server import Server

    server: Any = Server(durable=True)
    try:
        server.start()
        print("| backend | runs/s | batches a run | batches/s | the database's own commits/s | share | runs a commit |")
        print("|---" * 7 + "|")
        for backend in (arguments.backend,) if arguments.backend else BACKENDS:
            print(measure(backend, server.conninfo, arguments.seconds, arguments.pairs), flush=True)
    finally:
        server.close()


if __name__ == "__main__":
    main()
