"""Counted work: what a function does, in steps of the interpreter, and what an async one does between two checkpoints.

The counts are the same on every machine. A step of the interpreter stands for some ten nanoseconds. Work in C that
grows with its input (reading JSON, joining text) is added as the tests that meet it say: `Meter.add`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.lowlevel


class Meter:
    """Counts steps while `running`. `longest` is the most that was done between two calls of `checkpoint`."""

    def __init__(self) -> None:
        self.total = 0
        self.longest = 0
        self.checkpoints = 0
        self._since = 0

    def add(self, steps: int) -> None:
        """Count *steps* of work in C."""
        self.total += steps

    def checkpoint(self) -> None:
        """Note a checkpoint: other tasks run here."""
        self.checkpoints += 1
        self.longest = max(self.longest, self.total - self._since)
        self._since = self.total

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count what is done within, in this thread."""
        before = sys.gettrace()

        def trace(frame: Any, event: str, arg: object) -> Any:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self.total += event == "opcode"
            return trace

        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)
            self.checkpoint()


def count_work(function: Callable[[Meter], object]) -> Meter:
    """Return what *function* did. It gets the meter, to add work in C."""
    meter = Meter()
    with meter.running():
        function(meter)
    return meter


class Turns:
    """The turns that another task has got."""

    count = 0


@asynccontextmanager
async def counting_turns() -> AsyncIterator[Turns]:
    """Count how often another task that is always ready runs while the block does."""
    turns = Turns()

    async def take() -> None:
        while True:
            turns.count += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        yield turns
        tasks.cancel_scope.cancel()
