"""The bare limit: what the event loop alone asks for the same work, one native task group per turn.

No arguments are decoded, no outputs kept, no errors classified: the least any runtime can cost.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import anyio
import attrs
import trio

from agentloop.items import ToolCall
from benchmarks.script import Script, Sleep

Job = Callable[[], Coroutine[Any, Any, object]]


@attrs.frozen
class Ended:
    """How long a cancelled job took to end, in seconds of CPU and by the clock, and how many tasks it left."""

    cpu: float
    wall: float
    tasks_left: int


class Limit(ABC):
    """One backend, by its own means."""

    name: str
    sleep: Sleep

    @abstractmethod
    async def run(self, script: Script) -> None:
        """Go through *script*: in each turn one group, in which the model is awaited and the bodies are started."""

    @abstractmethod
    async def together(self, jobs: Sequence[Job]) -> None:
        """Run *jobs* side by side."""

    @abstractmethod
    async def cancel(self, job: Job, ready: anyio.Event) -> Ended:
        """Start *job*, wait until it sets *ready*, cancel it and wait for its end."""

    @abstractmethod
    def tasks(self) -> int:
        """Return how many tasks of the running event loop are alive."""

    async def read(self, script: Script) -> None:
        """Read the events of the script's only answer."""
        async for _ in script.stream(0):
            pass


class AsyncioLimit(Limit):
    """asyncio's own task groups."""

    name = "asyncio"
    sleep = staticmethod(asyncio.sleep)

    async def run(self, script: Script) -> None:
        work = script.body
        for turn in range(len(script.answers)):
            async with asyncio.TaskGroup() as group:
                for item in await script.answer(turn):
                    if isinstance(item, ToolCall):
                        group.create_task(work(1))

    async def together(self, jobs: Sequence[Job]) -> None:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job())

    async def cancel(self, job: Job, ready: anyio.Event) -> Ended:
        before = self.tasks()
        task: asyncio.Task[object] = asyncio.create_task(job())
        await ready.wait()
        cpu, wall = time.process_time(), time.perf_counter()
        task.cancel()
        await asyncio.wait([task])
        ended = Ended(time.process_time() - cpu, time.perf_counter() - wall, self.tasks() - before)
        if not task.cancelled():
            raise RuntimeError(f"the job was cancelled and gave {task.result()!r}")
        return ended

    def tasks(self) -> int:
        return len(asyncio.all_tasks())


class TrioLimit(Limit):
    """trio's nurseries."""

    name = "trio"
    sleep = staticmethod(trio.sleep)

    async def run(self, script: Script) -> None:
        work = script.body
        for turn in range(len(script.answers)):
            async with trio.open_nursery() as nursery:
                for item in await script.answer(turn):
                    if isinstance(item, ToolCall):
                        nursery.start_soon(work, 1)

    async def together(self, jobs: Sequence[Job]) -> None:
        async with trio.open_nursery() as nursery:
            for job in jobs:
                nursery.start_soon(job)

    async def cancel(self, job: Job, ready: anyio.Event) -> Ended:
        before = self.tasks()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job)
            await ready.wait()
            cpu, wall = time.process_time(), time.perf_counter()
            nursery.cancel_scope.cancel()
        if not nursery.cancel_scope.cancelled_caught:
            raise RuntimeError("the job was cancelled and ended as if it weren't")
        return Ended(time.process_time() - cpu, time.perf_counter() - wall, self.tasks() - before)

    def tasks(self) -> int:
        return trio.lowlevel.current_statistics().tasks_living


LIMITS: dict[str, Limit] = {"asyncio": AsyncioLimit(), "trio": TrioLimit()}
