"""`python -m benchmarks.peers`: what a run leaves behind, and what it costs, in each library that is installed here.

    python -m benchmarks.peers              # what is left: a row for each library found
    python -m benchmarks.peers --speed      # CPU time against the bare limit, some minutes
    python -m benchmarks.peers --options    # the same with a timeout, hooks, a journal, a stream (Wp10)
    python -m benchmarks.peers --only openai-agents

The probes see what an application would see: at the moment at which the run has ended for its caller, they count the
bodies that still work and the tasks that are still alive. Everything runs on asyncio, in one process, and without a
network. Libraries that don't go together can be measured in environments of their own: this module needs anyio and one
of them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import platform
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from statistics import median

import anyio

from benchmarks.peer_adapters import CAPPED, DISTRIBUTIONS, OPTIONS, PEERS, Maker, Option

CANCELLED, SIBLINGS, FAN_OUT = 100, 10, 20
CLEANUP, WORK, PATIENCE = 0.05, 0.3, 10.0
"""Seconds: the clean-up of a body, the work of a sibling that isn't cancelled, and the longest wait for anything."""


@dataclass
class Bodies:
    """Counts the bodies of one run; `all_started` is set when *wanted* of them have started."""

    wanted: int
    started: int = 0
    cleaned: int = 0
    finished: int = 0
    cut: int = 0
    peak: int = 0
    all_started: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def working(self) -> int:
        """How many have started and not ended in any way."""
        return self.started - self.cleaned - self.finished - self.cut

    async def work(self, seconds: float) -> str:
        """Work for *seconds*; cancelled, clean up under a shield."""
        self.started += 1
        self.peak = max(self.peak, self.working)
        if self.started == self.wanted:
            self.all_started.set()
        try:
            await asyncio.sleep(seconds)
        except BaseException:
            self.cut += 1  # until it is through
            with anyio.CancelScope(shield=True):
                await anyio.sleep(CLEANUP)
            self.cut -= 1
            self.cleaned += 1
            raise
        self.finished += 1
        return "ok"


def _tasks() -> int:
    return len(asyncio.all_tasks())


async def fan_out(make: Maker) -> list[str]:
    """Many calls in one response: how many run at once."""
    bodies = Bodies(FAN_OUT)
    await make(1, FAN_OUT, lambda x: bodies.work(0.02))()
    return [f"{bodies.peak} of {FAN_OUT}"]


async def cancel(make: Maker) -> list[str]:
    """The caller's task is cancelled while all bodies work: which have cleaned up when it has ended, what is left."""
    bodies, before = Bodies(CANCELLED), _tasks()
    task: asyncio.Task[object] = asyncio.create_task(_await(make(1, CANCELLED, lambda x: bodies.work(3600))))
    try:
        async with asyncio.timeout(PATIENCE):
            await bodies.all_started.wait()
    except TimeoutError:
        pass  # it runs fewer at once
    task.cancel()
    await asyncio.wait([task], timeout=PATIENCE)
    seen = [f"{bodies.cleaned} of {bodies.started}", str(_tasks() - before - (not task.done()))]
    return [*seen, "yes" if task.cancelled() else "no"]


async def sibling(make: Maker) -> list[str]:
    """One of several calls raises: what its caller gets, and what the others do at that moment."""
    bodies, before = Bodies(SIBLINGS - 1), _tasks()
    turn = iter(range(SIBLINGS))

    async def body(x: int) -> str:
        if next(turn) > 0:
            return await bodies.work(WORK)
        await bodies.all_started.wait()
        raise LookupError("the first call fails")

    try:
        await asyncio.wait_for(make(1, SIBLINGS, body)(), PATIENCE)
        ended = "an answer"
    except Exception as error:
        ended = type(error).__name__
    parts = {"finished": bodies.finished, "cancelled": bodies.cleaned, "still working": bodies.working}
    parts["in their clean-up" if _tasks() > before else "cut in their clean-up"] = bodies.cut
    return [ended, ", ".join(f"{count} {name}" for name, count in parts.items() if count), str(_tasks() - before)]


async def _await(run: Callable[[], Awaitable[object]]) -> object:
    return await run()


PROBES = {
    "bodies at once": fan_out,
    "cancelled: cleaned up at the end | tasks left | says cancelled": cancel,
    "one call fails: the caller gets | its 9 siblings | tasks left": sibling,
}

# ------------------------------------------------------------------------------------------------ speed

SPEED = {
    "W1 one turn of text": (0, 0, 1, 20),
    "W2 10 calls in one turn": (1, 10, 1, 10),
    "W2 1000 calls in one turn": (1, 1000, 1, 1),
    "W3 200 turns of one call": (200, 1, 1, 1),
    "W4 100 concurrent runs, 3 turns of 2 calls": (3, 2, 100, 1),
}
"""By row: turns, calls in each, concurrent runs, repetitions in one sample."""
CAPPED_ROW = "W8 1000 calls, 10 at once"
OPTION_ROWS: dict[Option, tuple[str, int, int, int, int]] = {
    "timeout": ("a tool's timeout", 1, 10, 1, 10),
    "hooks": ("hooks before and after each call, which wait", 1, 10, 1, 10),
    "journal": ("kept in memory, 3 turns of 2 calls", 3, 2, 1, 10),
    "stream": ("a stream, 3 turns of 2 calls", 3, 2, 1, 10),
}
"""By option, what its row is called, and as in `SPEED`."""


async def _together(run: Callable[[], Awaitable[object]], runs: int) -> None:
    if runs == 1:
        await run()
        return
    async with asyncio.TaskGroup() as group:
        for _ in range(runs):
            group.create_task(_await(run))


async def _quick(x: int) -> str:
    await asyncio.sleep(0)
    return "ok"


def _bare(turns: int, calls: int) -> Callable[[], Awaitable[object]]:
    async def run() -> None:
        for turn in range(turns + 1):
            async with asyncio.TaskGroup() as group:
                await asyncio.sleep(0)
                for _ in range(calls if turn < turns else 0):
                    group.create_task(_quick(1))

    return run


async def ratio_of(make: Maker, row: str, seconds: float = 12.0) -> float:
    """Return the CPU time of a row to that of the bare limit: the median of samples taken in turns."""
    shapes = SPEED | {name: tuple(shape) for name, *shape in OPTION_ROWS.values()}  # type: ignore[misc]
    turns, calls, runs, times = shapes.get(row, SPEED["W2 1000 calls in one turn"])
    sides = [make(turns, calls, _quick), _bare(turns, calls)]
    begun, ratios = time.perf_counter(), []
    while len(ratios) < 3 or (len(ratios) < 11 and time.perf_counter() - begun < seconds):
        cpu = []
        for side in sides:
            gc.collect()
            await side()  # the first run after a collection is cold
            start = time.process_time()
            for _ in range(times):
                await _together(side, runs)
            cpu.append(time.process_time() - start)
        ratios.append(cpu[0] / cpu[1])
        if time.perf_counter() - begun > 4 * seconds:
            break
    return median(ratios)


# ------------------------------------------------------------------------------------------------ table


def found(only: str | None) -> list[str]:
    """Return the names of the libraries that are installed here."""
    return [name for name, (module, _) in PEERS.items() if only in (None, name) and _has(module)]


def _has(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def row_of(name: str, *, speed: bool, options: bool = False) -> str:
    """Measure one library, and return its row of the table."""
    make = PEERS[name][1]
    cells = [f"{name} {version(DISTRIBUTIONS.get(name, name))}"]
    if options:
        cells += [_option_cell(name, option, row) for option, (row, *_) in OPTION_ROWS.items()]
    elif speed:
        cells += [f"{asyncio.run(ratio_of(make, row)):.1f}" for row in SPEED]
        cells += [f"{asyncio.run(ratio_of(CAPPED[name], CAPPED_ROW)):.1f}" if name in CAPPED else "–"]
    else:
        cells += [cell for probe in PROBES.values() for cell in asyncio.run(probe(make))]
    return "| " + " | ".join(cells) + " |"


def _option_cell(name: str, option: Option, row: str) -> str:
    if option not in OPTIONS.get(name, ()):
        return "–"
    return f"{asyncio.run(ratio_of(partial(PEERS[name][1], option=option), row)):.1f}"  # type: ignore[call-arg]


def main(given: Sequence[str] | None = None) -> None:
    """Measure what is installed, and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="agentloop beside its peers.")
    parser.add_argument(
        "--speed", action="store_true", help="CPU time against the bare limit, in place of what is left"
    )
    parser.add_argument(
        "--options", action="store_true", help="CPU time with what people use: a timeout, hooks, a journal, a stream"
    )
    parser.add_argument("--only", choices=PEERS, help="one library")
    arguments = parser.parse_args(given)
    names = [name for name in found(arguments.only) if name in OPTIONS or not arguments.options]
    if not names:
        parser.error(f"none of {', '.join(PEERS)} is installed")
    heads = ["library", *((*SPEED, CAPPED_ROW) if arguments.speed else " | ".join(PROBES).split(" | "))]
    if arguments.options:
        heads[1:] = [row for row, *_ in OPTION_ROWS.values()]
    print(f"CPython {platform.python_version()}, {sys.platform}\n")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for name in names:
        print(row_of(name, speed=arguments.speed, options=arguments.options), flush=True)


if __name__ == "__main__":
    main()
