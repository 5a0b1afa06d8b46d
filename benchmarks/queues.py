"""`python -m benchmarks.queues`: runs that `serve` takes, beside runs that are jobs of procrastinate.

    python -m benchmarks.queues                 # about a minute
    python -m benchmarks.queues --runs 200 --rounds 5

It needs the extra `test-postgres` and starts a server of its own, which syncs each commit. Both do the same runs, of
three turns of two calls, with the same store, as many at once, in one process and in turns: `serve`, and the recipe of
`docs/how-to/postgres.md`. A ratio is the median of the ratios of neighbouring samples.

Two figures: how long so many runs take that are in the queue when the worker starts; and how long a run waits from the
call that submits it to its first request to the model, at a worker that has nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from procrastinate import App, PsycopgConnector, RetryStrategy

from agentloop import Agent, Runner, tool
from agentloop.exceptions import JournalError, StateError
from agentloop.postgres import PostgresJournal, PostgresStore, serve
from agentloop.testing import FunctionModel, call, say

AT_ONCE, TURNS, CALLS = 16, 3, 2


class Seen:
    """When the runs of a sample have begun, and how many are through."""

    def __init__(self) -> None:
        self.begun = asyncio.Queue[float]()
        self.left = 0
        self.over = asyncio.Event()

    def expect(self, runs: int) -> None:
        """Wait for so many from now on."""
        self.left = runs
        self.over.clear()

    def answer(self, request: Any) -> Any:
        """Answer as the model of the agent."""
        if request.turn == 1:
            self.begun.put_nowait(time.perf_counter())
        if request.turn <= TURNS:
            return [call("work", {"x": n}, call_id=f"c{request.turn}_{n}") for n in range(CALLS)]
        self.left -= 1
        if self.left == 0:
            self.over.set()
        return say("done")


@tool
async def work(x: int) -> str:
    """Work."""
    await asyncio.sleep(0)
    return "ok"


class Queue(NamedTuple):
    """A queue: what submits a run, and a block in which a worker works."""

    name: str
    submit: Callable[[str], Awaitable[Any]]
    working: Callable[[], Any]


def serving(store: PostgresStore, agent: Agent[Any, Any]) -> Queue:
    """Return the queue of `serve`."""

    @asynccontextmanager
    async def working() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(serve(store, agent, concurrency=AT_ONCE))
            yield
            task.cancel()

    return Queue("serve", lambda run_id: store.submit(run_id, agent.name, "go"), working)


def by_jobs(store: PostgresStore, agent: Agent[Any, Any], app: App) -> Queue:
    """Return the queue of the page's recipe."""
    again = [JournalError, StateError, asyncio.CancelledError]

    @app.task(name="continue", retry=RetryStrategy(max_attempts=1000, wait=30, retry_exceptions=again))
    async def continue_run(run_id: str, question: str) -> None:
        async with store.lease(run_id) as lease:
            journal = PostgresJournal(store, lease)
            if await journal.read():
                await Runner.resume(agent, journal)
            else:
                await Runner.run(agent, question, journal=journal)

    @asynccontextmanager
    async def working() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(
                app.run_worker_async(concurrency=AT_ONCE, install_signal_handlers=False, shutdown_graceful_timeout=30)
            )
            yield
            task.cancel()

    return Queue("procrastinate", lambda run_id: continue_run.defer_async(run_id=run_id, question="go"), working)


async def measure_speed(queue: Queue, seen: Seen, runs: int, name: str) -> float:
    """Return the seconds that each of *runs* queued runs takes."""
    for number in range(runs):
        await queue.submit(f"{queue.name}-{name}-{number}")
    seen.expect(runs)
    start = time.perf_counter()
    async with queue.working():
        await seen.over.wait()
        took = time.perf_counter() - start
    return took / runs


async def measure_waits(queue: Queue, seen: Seen, runs: int, name: str) -> list[float]:
    """Return, of *runs* runs that are submitted one after the other, the seconds from the submission to the begin."""
    waits = []
    async with queue.working():
        for number in range(runs + 1):
            while not seen.begun.empty():
                seen.begun.get_nowait()
            seen.expect(1)
            start = time.perf_counter()
            await queue.submit(f"{queue.name}-waits-{name}-{number}")
            begun = await seen.begun.get()
            await seen.over.wait()
            if number:  # the first one waits for the worker's start, too
                waits.append(begun - start)
    return waits


async def compare(conninfo: str, arguments: argparse.Namespace) -> None:
    """Measure, and print a table in Markdown."""
    seen = Seen()
    agent = Agent("benchmark", model=FunctionModel(seen.answer), tools=[work])
    app = App(connector=PsycopgConnector(conninfo=conninfo))
    speeds: list[dict[str, float]] = []
    waits: list[dict[str, list[float]]] = []
    async with PostgresStore(conninfo) as store, app.open_async():
        await store.migrate()
        await app.schema_manager.apply_schema_async()
        queues = [serving(store, agent), by_jobs(store, agent, app)]
        for queue in queues:
            await measure_speed(queue, seen, 3, "warm")
        for number in range(arguments.rounds):
            order = queues if number % 2 == 0 else queues[::-1]
            speeds.append({one.name: await measure_speed(one, seen, arguments.runs, f"{number}") for one in order})
            waits.append({one.name: await measure_waits(one, seen, arguments.waits, f"{number}") for one in order})
    print(f"{arguments.rounds} rounds of {arguments.runs} runs, {AT_ONCE} at once; load {os.getloadavg()[0]:.0f}\n")
    print("| queue | runs/s | times serve's time | submission to begin: median, 95 % | times serve's median |")
    print("|---" * 5 + "|")
    for name in (queue.name for queue in queues):
        slower = median(one[name] / one["serve"] for one in speeds)
        later = median(median(one[name]) / median(one["serve"]) for one in waits)
        all_waits = [wait * 1000 for one in waits for wait in one[name]]
        most = quantiles(all_waits, n=20)[-1]
        print(
            f"| {name} | {1 / median(one[name] for one in speeds):.1f} | {slower:.2f} | "
            f"{median(all_waits):.1f} ms, {most:.1f} ms | {later:.2f} |"
        )


def main(given: Sequence[str] | None = None) -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queues", description="A served run beside a job.")
    parser.add_argument("--runs", type=int, default=100, help="in a sample")
    parser.add_argument("--waits", type=int, default=20, help="runs of a sample that are submitted one by one")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(given)
    sys.path.append(str(Path(__file__).parent.parent / "tests"))
    from postgres_store.server import Server

    server: Any = Server(durable=True)
    try:
        server.start()
        asyncio.run(compare(server.conninfo, arguments))
    finally:
        server.close()


if __name__ == "__main__":
    main()
