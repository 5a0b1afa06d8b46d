"""Taking figures: paired CPU times in turns, growth, and traced memory."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import attrs

from benchmarks.bare import Job


@attrs.frozen
class Paired:
    """The median ratio of two sides measured in turns, and each side's median CPU time in seconds."""

    ratio: float
    first: float
    second: float


@attrs.frozen
class Effort:
    """How long to measure: pairs of samples, and how large what is measured is.

    Attributes:
        pairs: For work of milliseconds.
        few: For work of a tenth of a second.
        least: For work of seconds.
        runs: Concurrent runs of W4, and a tenth of them for its growth.
        part: The part of every other workload's size. Below 1 the figures mean nothing.
    """

    pairs: int
    few: int
    least: int
    runs: int
    part: float = 1

    def of(self, size: int, least: int = 1) -> int:
        """Return what is done of a workload whose full size is *size*, and *least* of it in any case."""
        return max(round(size * self.part), min(size, least))


FULL = Effort(pairs=21, few=9, least=3, runs=1000)
QUICK = Effort(pairs=5, few=3, least=1, runs=100)
SMOKE = Effort(pairs=1, few=1, least=1, runs=4, part=0.01)


async def _cpu(job: Job, times: int) -> float:
    gc.collect()
    begin = time.process_time()
    for _ in range(times):
        await job()
    return (time.process_time() - begin) / times


async def paired(first: Job, second: Job, pairs: int, times: int = 1, *, warm: bool = True) -> Paired:
    """Measure *first* and *second* in turns, *times* in a row for one sample; the ratio is the first to the second.

    What a ratio is of was measured within a moment, so a machine that slows down slows both.
    """
    if warm:
        await first()
        await second()
    samples = [(await _cpu(first, times), await _cpu(second, times)) for _ in range(pairs)]
    firsts, seconds = zip(*samples, strict=True)
    return Paired(median(a / b for a, b in samples), median(firsts), median(seconds))


@contextmanager
def collector(on: bool) -> Iterator[None]:
    """Have the garbage collector on or off within the block."""
    was = gc.isenabled()
    (gc.enable if on else gc.disable)()
    try:
        yield
    finally:
        (gc.enable if was else gc.disable)()


class Memory:
    """Traced memory above that at the start, in bytes: `now`, and `peak` so far."""

    def __init__(self) -> None:
        self._start = tracemalloc.get_traced_memory()[0]

    @property
    def now(self) -> int:
        return tracemalloc.get_traced_memory()[0] - self._start

    @property
    def peak(self) -> int:
        return tracemalloc.get_traced_memory()[1] - self._start


@contextmanager
def traced() -> Iterator[Memory]:
    """Trace allocations within the block."""
    gc.collect()
    tracemalloc.start(1)
    try:
        yield Memory()
    finally:
        tracemalloc.stop()
