"""Counts of what a run costs, which don't depend on the machine: Python calls, switches, records, memory blocks.

`python -m benchmarks.guards` prints each count beside the stored one and exits with 1 if one has moved by more than a
tenth. With `--store` it writes them anew. A count that fell has to be stored too: else it could grow back unnoticed.
Counts are guards against growth and never targets: an engine fitted to its counts gets a second, shorter text beside
each general one. Targets are in time (`benchmarks/report.py`).
`tests/test_guards.py` judges by the same table.

Calls are those of functions whose source is in `agentloop/`, without `agentloop/testing`, as the interpreter's profile
hook reports them: a coroutine that is resumed after a wait counts once more, a generated method doesn't count. A switch
is a call from another module than the call before it. Blocks are those of the interpreter's own allocator: objects of
up to 512 bytes.

The interpreter decides a part of each count, so the table is for one version of Python and judges no other.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType

import anyio
import attrs

import agentloop
from agentloop.journal import MemoryJournal
from benchmarks.bare import LIMITS, Limit
from benchmarks.measure import collector
from benchmarks.ours import Ours, ours
from benchmarks.report import BACKENDS, columns
from benchmarks.script import conversation
from benchmarks.workloads import Gate

TABLE = Path(__file__).with_name("guards.json")
TOLERANCE = 0.1
CALLS = 400
CAP = 10
TURNS = 100
HELD = 100

PACKAGE = f"{next(iter(agentloop.__path__))}/"
APART = f"{PACKAGE}testing/"

Counts = dict[str, dict[str, float]]
"""Counts by name and backend."""


@attrs.define(eq=False)
class Profile:
    """The source files of the package's functions that were called, in order."""

    sources: list[str] = attrs.field(factory=list)

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        """Note one event of the interpreter's profile hook."""
        if event != "call":
            return
        source = frame.f_code.co_filename
        if source.startswith(PACKAGE) and not source.startswith(APART):
            self.sources.append(source)

    @property
    def calls(self) -> int:
        return len(self.sources)

    @property
    def modules(self) -> int:
        return len(set(self.sources))

    @property
    def switches(self) -> int:
        return sum(before != after for before, after in pairwise(self.sources))


def _script(limit: Limit, turns: int, calls: int) -> Ours:
    return ours(conversation(limit.sleep, turns=turns, calls=calls))


async def profile(limit: Limit, turns: int, calls: int, cap: int | None = None) -> Profile:
    """Return the profile of a plain run, under a *cap* if one is given; an earlier run has made what all runs share."""
    side = _script(limit, turns, calls)
    if cap is not None:
        side = side.capped(cap)
    await side.run()
    found = Profile()
    sys.setprofile(found)
    try:
        await side.run()
    finally:
        sys.setprofile(None)
    return found


async def records(limit: Limit, turns: int, calls: int) -> int:
    """Return how many records a journal has after a plain run."""
    async with MemoryJournal() as journal:
        await _script(limit, turns, calls).run(journal)
        return len(await journal.read())


async def blocks(limit: Limit, runs: int, calls: int) -> int:
    """Return how many blocks *runs* runs of *calls* calls hold while all bodies wait."""
    gate = Gate(runs * calls)
    job = ours(conversation(limit.sleep, turns=1, calls=calls, body=gate.body)).run
    seen = []

    async def open_when_full() -> None:
        await gate.full.wait()
        seen.append(sys.getallocatedblocks())
        gate.opened.set()

    gc.collect()
    with collector(on=False):
        before = sys.getallocatedblocks()
        await limit.together([*[job] * runs, open_when_full])
    return seen[0] - before


async def _count(limit: Limit) -> dict[str, float]:
    text, call, batch = [await profile(limit, *size) for size in ((0, 0), (1, 1), (1, CALLS))]
    capped = await profile(limit, 1, CALLS, CAP)
    short, long = [await profile(limit, turns, 1) for turns in (TURNS, 2 * TURNS)]
    some, more = [await records(limit, 1, calls) for calls in (CALLS, 2 * CALLS)]
    await blocks(limit, HELD, 1)  # what is made once
    return {
        "calls, one turn of text": text.calls,
        "calls, a run with one tool call": call.calls,
        "modules, a run with one tool call": call.modules,
        "switches between modules, a run with one tool call": call.switches,
        f"calls, each of {CALLS} tool calls": batch.calls / CALLS,
        f"calls, each of {CALLS} tool calls under a cap of {CAP}": capped.calls / CALLS,
        "calls, each turn of one tool call": (long.calls - short.calls) / TURNS,
        "records, one turn of text": await records(limit, 0, 0),
        "records, each tool call": (more - some) / CALLS,
        "blocks, each waiting tool call": await blocks(limit, 1, HELD) / HELD,
        "blocks, each waiting run": await blocks(limit, HELD, 1) / HELD,
    }


def count() -> Counts:
    """Return every count on each backend."""
    found = {backend: anyio.run(partial(_count, LIMITS[backend]), backend=backend) for backend in BACKENDS}
    return {name: {backend: found[backend][name] for backend in BACKENDS} for name in found[BACKENDS[0]]}


def verdict(now: float, stored: float | None) -> str:
    """Return how *now* has moved against *stored*: `grew`, `fell`, `new`, or empty within the tolerance."""
    if stored is None:
        return "new"
    if now > stored * (1 + TOLERANCE):
        return "grew"
    return "fell" if now < stored * (1 - TOLERANCE) else ""


def compare(now: Counts, stored: Counts) -> list[tuple[str, str, float | None, float | None, str]]:
    """Return name, backend, stored count, count now and verdict of each pair; a count that is no more is `gone`."""
    pairs = [(name, backend) for name in {**now, **stored} for backend in BACKENDS]
    lines = []
    for name, backend in pairs:
        before, after = stored.get(name, {}).get(backend), now.get(name, {}).get(backend)
        lines.append((name, backend, before, after, "gone" if after is None else verdict(after, before)))
    return lines


def python() -> str:
    """Return the version of Python to which counts belong."""
    return ".".join(platform.python_version_tuple()[:2])


def load(table: Path = TABLE) -> tuple[str, Counts]:
    """Return the version of Python of the stored counts, and the counts."""
    stored = json.loads(table.read_text(encoding="utf-8"))
    return stored["python"], stored["counts"]


def store(now: Counts, table: Path = TABLE) -> None:
    """Write *now* with the running version of Python, one count a line."""
    rounded = {name: {backend: round(value, 2) for backend, value in pair.items()} for name, pair in now.items()}
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(pair)}" for name, pair in rounded.items())
    table.write_text(f'{{\n  "python": "{python()}",\n  "counts": {{\n{lines}\n  }}\n}}\n', encoding="utf-8")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}".removesuffix(".0")


def main(given: Sequence[str] | None = None, count: Callable[[], Counts] = count, table: Path = TABLE) -> int:
    """Count, print and judge or store; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guards", description="What a run costs, in counts.")
    parser.add_argument("--store", action="store_true", help="store the counts, for this version of Python")
    arguments = parser.parse_args(given)
    now = count()
    version, stored = load(table)
    lines = compare(now, stored)
    texts = [(name, backend, _number(before), _number(after), moved) for name, backend, before, after, moved in lines]
    print(columns([("count", "backend", "stored", "now", "moved"), *texts]))
    if arguments.store:
        store(now, table)
        return 0
    if version != python():
        print(f"\nThe counts are stored for Python {version}; this is {python()}, so nothing is judged.")
        return 0
    return int(any(line[4] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
