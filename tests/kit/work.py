"""Counted work: what a function does, in steps of the interpreter, and what an async one does between two checkpoints.

The counts are the same on every machine. A step of the interpreter stands for some ten nanoseconds. Work in C that
grows with its input (reading JSON, joining text) is added as the tests that meet it say: `Meter.add`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import CodeType
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
        try:
            with _counting_by_monitor(self) if sys.version_info >= (3, 12) else _counting_by_trace(self):
                yield
        finally:
            self.checkpoint()


@contextmanager
def _counting_by_monitor(meter: Meter) -> Iterator[None]:
    """From Python 3.12 on, a trace function isn't told of the opcodes in the first call of a function."""
    monitoring: Any = sys.monitoring
    tool, here = next(one for one in (2, 3, 4, 5) if monitoring.get_tool(one) is None), threading.get_ident()

    def count(code: CodeType, offset: int) -> None:
        meter.total += threading.get_ident() == here

    monitoring.use_tool_id(tool, __name__)
    monitoring.register_callback(tool, monitoring.events.INSTRUCTION, count)
    monitoring.set_events(tool, monitoring.events.INSTRUCTION)
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, monitoring.events.INSTRUCTION, None)
        monitoring.free_tool_id(tool)


@contextmanager
def _counting_by_trace(meter: Meter) -> Iterator[None]:
    before = sys.gettrace()

    def trace(frame: Any, event: str, arg: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        meter.total += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


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
