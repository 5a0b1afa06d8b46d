"""Taking figures: paired CPU times in turns, growth, and traced memory."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median, quantiles

import attrs

from benchmarks.bare import Job


def spread(samples: Sequence[float]) -> float:
    """Return half the range that the middle half of *samples* has: what a median may be off by."""
    if len(samples) < 2:
        return 0.0
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return (high - low) / 2


@attrs.frozen
class Paired:
    """The ratios of two sides measured in turns, and each side's median CPU time in seconds."""

    ratios: tuple[float, ...]
    first: float
    second: float

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def spread(self) -> float:
        return spread(self.ratios)


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


async def _cpu(job: Job, times: int, warm_up: Job | None) -> float:
    gc.collect()
    if warm_up is not None:
        await warm_up()
    begin = time.process_time()
    for _ in range(times):
        await job()
    return (time.process_time() - begin) / times


async def paired(
    first: Job,
    second: Job,
    pairs: int,
    times: int = 1,
    *,
    warm_up: tuple[Job | None, Job | None] | None = None,
) -> Paired:
    """Measure *first* and *second* in turns, *times* in a row for one sample; the ratio is the first to the second.

    What a ratio is of was measured within a moment, so a machine that slows down slows both. Each sample begins with a
    garbage collection, after which one run of the side is not timed: a collection clears caches of the interpreter, and
    the first run after it takes three times as long as the next ones.

    Args:
        warm_up: The runs that are not timed, where they are less than *first* and *second*; None for a cold sample.
    """
    before, other = (first, second) if warm_up is None else warm_up
    samples = [(await _cpu(first, times, before), await _cpu(second, times, other)) for _ in range(pairs)]
    firsts, seconds = zip(*samples, strict=True)
    return Paired(tuple(a / b for a, b in samples), median(firsts), median(seconds))


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
