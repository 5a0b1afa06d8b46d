"""Behaviors for the bodies of a world that misbehave: return late, raise, cancel themselves, refuse to end.

A part runs in place of a tool's body (a world's `behaviors`). It knows nothing about the tool, so it fits any of them.
"""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import attrs
from anyio.lowlevel import checkpoint

from agentloop.testing.simulation._simulated_parts import Body


class Fatal(BaseException):
    """An error that no tool policy may answer."""


@attrs.frozen
class Part:
    """The common beginning of all parts: points of the schedule, then virtual seconds."""

    points: int = 0
    seconds: float = 0.0

    async def begin(self, stage: Body) -> None:
        """Pass the points, then the time."""
        for _ in range(self.points):
            await stage.point()
        if self.seconds:
            await stage.sleep(self.seconds)


@attrs.frozen
class Returns(Part):
    """The body runs unchanged, after its points and seconds."""

    async def __call__(self, stage: Body) -> Any:
        await self.begin(stage)
        return await stage.real()


@attrs.frozen
class Raises(Part):
    """The body fails: before its work, or after it (`late`). The error's text repeats `tells`, a secret argument."""

    late: bool = False
    fatal: bool = False
    tells: str = ""

    async def __call__(self, stage: Body) -> Any:
        await self.begin(stage)
        if self.late:
            await stage.real()
        words = f"{stage.tool} {stage.call_id} failed{self.tells and f' with {self.tells}'}"
        raise Fatal(words) if self.fatal else ValueError(words)


@attrs.frozen
class CancelsItself(Part):
    """The body raises a cancellation without any cause; on asyncio it may also cancel its own task (`task`)."""

    task: bool = False

    async def __call__(self, stage: Body) -> Any:
        await self.begin(stage)
        if self.task:
            try:
                own = asyncio.current_task()
            except RuntimeError:
                own = None
            if own is not None:
                own.cancel(f"{stage.call_id} gave up")
            await checkpoint()  # on trio too, where a task can't cancel itself: both backends take the same steps
        raise asyncio.CancelledError(f"{stage.call_id} gave up")


@attrs.frozen
class Swallows(Part):
    """The body swallows its first cancellation and returns a value, after some more time of its own."""

    more: int = 1

    async def __call__(self, stage: Body) -> Any:
        try:
            await self.begin(stage)
            await stage.sleep(1.0)
        except anyio.get_cancelled_exc_class():  # noqa: ASYNC103 - swallowing it is the part
            with anyio.CancelScope(shield=True):
                await stage.sleep(0.05 * self.more)
            return f"{stage.call_id} went on"  # noqa: ASYNC104
        return await stage.real()


@attrs.frozen
class FailsInCleanup(Part):
    """The body raises an ordinary error when it is cancelled."""

    async def __call__(self, stage: Body) -> Any:
        try:
            await self.begin(stage)
            await stage.sleep(1.0)
        except anyio.get_cancelled_exc_class():
            raise LookupError(f"{stage.call_id} broke while cleaning up") from None  # noqa: ASYNC104 - the part
        return await stage.real()


@attrs.frozen
class Nests(Part):
    """The body runs tasks of its own, one of which may fail."""

    tasks: int = 2
    fails: bool = False

    async def __call__(self, stage: Body) -> Any:
        async def child(number: int) -> None:
            for _ in range(number):
                await stage.point(f"child {number}")
            if self.fails and number == self.tasks:
                raise ValueError(f"child {number} of {stage.call_id} failed")

        try:
            async with anyio.create_task_group() as group:
                for number in range(1, self.tasks + 1):
                    group.start_soon(child, number)
                await self.begin(stage)
        except ExceptionGroup as failed:
            # The two backends' groups have different texts.
            raise ExceptionGroup("tasks of a body", failed.exceptions) from None
        return await stage.real()
