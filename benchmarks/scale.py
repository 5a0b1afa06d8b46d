"""Whether a unit costs at large sizes what it costs at small ones: `python -m benchmarks.scale`, and a soak.

Each row is the cost of one unit at ten times the size against its cost at the size: CPU time with the garbage
collector off, and traced memory at the peak. The soak runs agents side by side that are cancelled, time out, fail or
are left, and measures what stays: resident memory, tasks, threads, file descriptors. The exit status is 1 if a limit is
exceeded.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import anyio.lowlevel
import attrs

from agentloop import Agent, RunConfig, Runner, tool
from agentloop.exceptions import AgentLoopError
from agentloop.items import AssistantMessage, ToolCall
from agentloop.journal import FileJournal
from benchmarks.bare import LIMITS, Job, Limit
from benchmarks.measure import collector, traced
from benchmarks.ours import ScriptModel, ours
from benchmarks.report import BACKENDS, columns
from benchmarks.script import Script, conversation, working

MOST = 1.1
PAIRS = 3
BUDGET = 900.0
SOAK = 600.0
FLAT = 1.02
WORKERS = 16


@attrs.frozen
class Line:
    """One figure and its limit."""

    name: str
    backend: str
    value: float
    must: float
    note: str = ""

    @property
    def met(self) -> bool:
        return self.value <= self.must


@attrs.frozen
class Size:
    """A kind of unit: the units at the small size, the job of any number of them, the most its CPU time may grow."""

    name: str
    small: int
    job: Callable[[Limit, int], Job]
    must: float = MOST


def _runs(limit: Limit, units: int) -> Job:
    side = ours(conversation(limit.sleep, turns=3, calls=2))
    return lambda: limit.together([side.run] * units)


def _calls(limit: Limit, units: int) -> Job:
    return ours(conversation(limit.sleep, turns=1, calls=units)).run


def _turns(limit: Limit, units: int) -> Job:
    return ours(conversation(limit.sleep, turns=units, calls=1)).run


SIZES = (
    Size("concurrent runs", 1_000, _runs, 1.3),
    Size("calls in one turn", 5_000, _calls),
    Size("turns of one call", 2_000, _turns),
)
"""Concurrent runs share the processor's caches, so their CPU time may grow as much as in W4."""


async def _cpu_of(job: Job) -> float:
    gc.collect()
    with collector(on=False):
        begin = time.process_time()
        await job()
        return time.process_time() - begin


async def _memory_of(job: Job) -> int:
    with traced() as memory, collector(on=False):
        await job()
        return memory.peak


async def grow(limit: Limit, size: Size, part: float, until: float) -> list[Line]:
    """Measure *part* of *size* in pairs, `PAIRS` of them if the clock allows, and return the growth of CPU and memory.

    Args:
        until: The time, by `time.monotonic`, after which no further pair begins.
    """
    few = max(int(size.small * part), 1)
    small, large = size.job(limit, few), size.job(limit, 10 * few)
    await size.job(limit, 1)()
    ratios: list[float] = []
    while not ratios or (len(ratios) < PAIRS and time.monotonic() < until):
        before = await _cpu_of(small)
        ratios.append(await _cpu_of(large) / before / 10)
    memory = await _memory_of(large) / await _memory_of(small) / 10
    name = f"{size.name}, {10 * few:,} against {few:,}"
    return [
        Line(f"{name}: CPU", limit.name, median(ratios), size.must, f"{len(ratios)} pairs"),
        Line(f"{name}: memory", limit.name, memory, MOST),
    ]


# ------------------------------------------------------------------------------------------------ the soak


@tool
async def nap(seconds: float) -> str:
    """Sleep, and clean up."""
    try:
        await anyio.sleep(seconds)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
    return "ok"


@tool
def think(seconds: float) -> str:
    """Work in a thread."""
    time.sleep(min(seconds, 0.002))
    return "ok"


@tool(failure_error_function=None)
async def fail(seconds: float) -> str:
    """Fail, and with it the run."""
    raise ValueError("failed")


def _agent(limit: Limit, draw: random.Random) -> Agent[Any, Any]:
    names = draw.choices(["nap", "think", "fail"], [8, 3, 1], k=4)
    seconds = [draw.choice([0.0, 0.001, 0.01, 5.0]) for _ in names]
    calls = tuple(
        ToolCall(f"c{number}", name, f'{{"seconds": {time}}}')
        for number, (name, time) in enumerate(zip(names, seconds, strict=True))
    )
    script = Script(
        (calls[:3], calls[3:], (AssistantMessage("done"),)), limit.sleep, working(limit.sleep), draw.choice([0, 5])
    )
    return Agent("soaked", model=ScriptModel(script), tools=[nap, think, fail])


async def _run_once(limit: Limit, draw: random.Random, folder: Path, number: int) -> None:
    """Run one agent and end the run in one of the ways in which runs end."""
    agent = _agent(limit, draw)
    within = draw.choice([0.001, 0.005, 0.02])
    try:
        match draw.randrange(5):
            case 0:  # cancelled from outside
                with anyio.move_on_after(within):
                    await Runner.run(agent, "go")
            case 1:  # its own time limit
                await Runner.run(agent, "go", run_config=RunConfig(timeout=within))
            case 2:  # a stream that is left
                async with Runner.run_streamed(agent, "go") as stream:
                    with anyio.move_on_after(within):
                        async for _ in stream:
                            pass
            case 3:  # a stream that is cancelled
                async with Runner.run_streamed(agent, "go") as stream:
                    async for _ in stream:
                        stream.cancel()
            case _:  # a journal in a file
                path = folder / f"{number}.jsonl"
                with anyio.move_on_after(within):
                    async with FileJournal(path) as journal:
                        await Runner.run(agent, "go", journal=journal)
                path.unlink(missing_ok=True)
    except (AgentLoopError, ValueError):
        pass


def _resident() -> int:
    """Return the process's resident memory in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@attrs.define(eq=False)
class Soak:
    """Workers that run agents until the time is over, and samples of the memory taken meanwhile."""

    limit: Limit
    seconds: float
    seed: int = 0
    runs: int = 0
    resident: list[int] = attrs.field(factory=list)
    tasks_left: int = 0

    async def run(self) -> None:
        """Run the workers; afterwards `tasks_left` says how many tasks are left."""
        before = self.limit.tasks()
        until = time.monotonic() + self.seconds
        with TemporaryDirectory() as folder:

            async def work(worker: int) -> None:
                draw = random.Random(f"{self.seed}-{worker}")
                while time.monotonic() < until:
                    self.runs += 1
                    await _run_once(self.limit, draw, Path(folder), self.runs)

            async def watch() -> None:
                while time.monotonic() < until:
                    await anyio.sleep(self.seconds / 100)
                    gc.collect()
                    self.resident.append(_resident())

            await self.limit.together([*(partial(work, worker) for worker in range(WORKERS)), watch])
        self.tasks_left = self.limit.tasks() - before

    @property
    def growth(self) -> float:
        """Resident memory in the last fifth of the time against the fifth after the first two fifths."""
        fifth = max(len(self.resident) // 5, 1)
        return median(self.resident[-fifth:]) / median(self.resident[2 * fifth : 3 * fifth] or self.resident)


def soak(backend: str, seconds: float) -> list[Line]:
    """Soak *backend* for *seconds* and return what stays."""
    limit, logger = LIMITS[backend], logging.getLogger("agentloop")
    level = logger.level
    logger.setLevel(logging.ERROR)  # failures of tools are meant
    try:
        anyio.run(Soak(limit, min(seconds / 10, 5)).run, backend=backend)  # what is made once
        _wait_for_threads()
        descriptors, threads = _descriptors(), threading.active_count()
        found = Soak(limit, seconds)
        anyio.run(found.run, backend=backend)
        _wait_for_threads()
    finally:
        logger.setLevel(level)
    note = f"{found.runs:,} runs, {found.resident[-1] / 2**20:.0f} MiB" if found.resident else ""
    return [
        Line("soak: resident memory, growth", backend, found.growth, FLAT, note),
        Line("soak: tasks left", backend, found.tasks_left, 0),
        Line("soak: threads left", backend, threading.active_count() - threads, 0),
        Line("soak: descriptors left", backend, _descriptors() - descriptors, 0),
    ]


def _wait_for_threads() -> None:
    """Wait until idle worker threads have ended; a backend keeps them for up to ten seconds."""
    until = time.monotonic() + 15
    while threading.active_count() > 1 and time.monotonic() < until:
        time.sleep(0.1)


# ------------------------------------------------------------------------------------------------ the command


def measure(backends: Sequence[str], part: float, budget: float) -> list[Line]:
    """Return the growth of each kind of unit on each of *backends*, within about *budget* seconds."""
    kinds = [(backend, size) for backend in backends for size in SIZES]
    begun, lines = time.monotonic(), []
    for position, (backend, size) in enumerate(kinds, 1):
        until = begun + budget * position / len(kinds)
        found = anyio.run(grow, LIMITS[backend], size, part, until, backend=backend)
        print(*(f"{line.name} {line.value:.3g}" for line in found), sep=", ", file=sys.stderr, flush=True)
        lines += found
    return lines


def main(given: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for, print it, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description="Whether costs stay flat.")
    parser.add_argument("--backend", choices=BACKENDS, help="one backend in place of both")
    parser.add_argument("--part", type=float, default=1.0, help="the part of each size, 1 unless given")
    parser.add_argument("--budget", type=float, default=BUDGET, help=f"seconds for all sizes, {BUDGET:g} unless given")
    parser.add_argument(
        "--soak", type=float, default=SOAK, help=f"seconds of the soak, {SOAK:g} unless given; 0 for none"
    )
    arguments = parser.parse_args(given)
    backends = (arguments.backend,) if arguments.backend else BACKENDS
    lines = measure(backends, arguments.part, arguments.budget) if arguments.part else []
    if arguments.soak:
        lines += [line for backend in backends for line in soak(backend, arguments.soak / len(backends))]
    cells = [
        (line.name, line.backend, f"{line.value:.3g}", f"{line.must:g}", "met" if line.met else "missed", line.note)
        for line in lines
    ]
    print(columns([("per unit", "backend", "value", "must", "", ""), *cells]))
    return int(not all(line.met for line in lines))


if __name__ == "__main__":
    sys.exit(main())
