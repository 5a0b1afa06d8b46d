"""What bodies do in a generated world: return late, raise, cancel themselves or others, refuse to end, clean up.

A part is played in the place of a tool's body (a world's `behaviors`). One that needs the call's `ToolContext` is
handed to the tool's own body, if that is an actor's (`_fixture_agents`): it finds it in a context variable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias

import anyio
import attrs
from anyio.lowlevel import checkpoint

from agentloop.context import ToolContext


class Stage(Protocol):
    """What a part is played on: where it is (`path`, `call_id`, `tool`), points of the schedule, virtual time."""

    @property
    def path(self) -> tuple[str, ...]: ...
    @property
    def call_id(self) -> str: ...
    @property
    def tool(self) -> str: ...
    @property
    def real(self) -> Callable[[], Awaitable[Any]]: ...
    async def point(self, label: str = "") -> None:
        """Wait until the schedule lets this body go on."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        ...

    def entered(self) -> int:
        """Return a number for a resource that is being entered: a later one's is larger."""
        ...

    def reporting(self) -> None:
        """Note that the body reports now."""
        ...

    def cleaning(self, section: str, entered: int | None = None) -> AbstractContextManager[None]:
        """Note that the block is cleanup, and whether it came to its end; of a resource, when that was *entered*."""
        ...


class Fatal(BaseException):
    """An error that no tool policy may answer."""


@attrs.frozen
class Part:
    """What comes first in every part: points of the schedule, then virtual seconds."""

    points: int = 0
    seconds: float = 0.0

    async def begin(self, stage: Stage) -> None:
        """Pass the points, then the time."""
        for _ in range(self.points):
            await stage.point()
        if self.seconds:
            await stage.sleep(self.seconds)


@attrs.frozen
class Returns(Part):
    """The body runs as it is, after its points and seconds."""

    async def __call__(self, stage: Stage) -> Any:
        await self.begin(stage)
        return await stage.real()


@attrs.frozen
class Raises(Part):
    """The body fails: before it has done anything, or after it has (`late`). Its error repeats what it `tells`."""

    late: bool = False
    fatal: bool = False
    tells: str = ""

    async def __call__(self, stage: Stage) -> Any:
        await self.begin(stage)
        if self.late:
            await stage.real()
        words = f"{stage.tool} {stage.call_id} failed{self.tells and f' with {self.tells}'}"
        raise Fatal(words) if self.fatal else ValueError(words)


@attrs.frozen
class Hangs(Part):
    """The body never ends by itself."""

    async def __call__(self, stage: Stage) -> Any:
        await self.begin(stage)
        await anyio.Event().wait()


@attrs.frozen
class CancelsItself(Part):
    """The body raises a cancellation that nobody gave it; on asyncio it may also ask its own task for one (`task`)."""

    task: bool = False

    async def __call__(self, stage: Stage) -> Any:
        await self.begin(stage)
        if self.task:
            try:
                own = asyncio.current_task()
            except RuntimeError:
                own = None
            if own is not None:
                own.cancel(f"{stage.call_id} gave up")
            await checkpoint()  # where nobody can be asked, too: it takes the same steps
        raise asyncio.CancelledError(f"{stage.call_id} gave up")


@attrs.frozen
class Swallows(Part):
    """The body answers its first cancellation with a value, after some more time of its own."""

    more: int = 1

    async def __call__(self, stage: Stage) -> Any:
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

    async def __call__(self, stage: Stage) -> Any:
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

    async def __call__(self, stage: Stage) -> Any:
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
            # Each backend has words of its own for a group.
            raise ExceptionGroup("tasks of a body", failed.exceptions) from None
        return await stage.real()


# ---------------------------------------------------------------------------------------------- with the call's context


@attrs.frozen
class CancelsCall(Part):
    """The body cancels another call of its run (or itself), and goes on."""

    target: str = ""

    async def play(self, stage: Stage, context: ToolContext[Any]) -> Any:
        """Cancel, and return whether there was anything to cancel."""
        await self.begin(stage)
        done = context.cancel_call(self.target or stage.call_id, f"{stage.call_id} said so")
        await checkpoint()
        return f"cancelled: {done}"


@attrs.frozen
class Cleans(Part):
    """The body cleans up in `ctx.cleanup()`, for some seconds, however it ends."""

    cleaning: float = 0.5

    async def play(self, stage: Stage, context: ToolContext[Any]) -> Any:
        """Work, then clean up."""
        try:
            await self.begin(stage)
            await stage.sleep(0.5)
        finally:
            with context.cleanup(), stage.cleaning("ctx.cleanup"):
                await stage.sleep(self.cleaning)  # noqa: ASYNC102 - shielded, and bounded, by `cleanup`
        return f"{stage.call_id} cleaned up"


@attrs.frozen
class Holds(Part):
    """The body uses a resource of its run, whose exit takes some seconds."""

    leaving: float = 0.5

    async def play(self, stage: Stage, context: ToolContext[Any]) -> Any:
        """Enter it, then work."""

        @asynccontextmanager
        async def held() -> AsyncIterator[str]:
            try:
                yield f"what {stage.call_id} holds"
            finally:
                with stage.cleaning("resource exit", place):
                    await stage.sleep(self.leaving)  # noqa: ASYNC102 - the run leaves its resources under its deadline

        await stage.point()  # entering takes steps of its own: nobody else is under way then
        place = stage.entered()
        value = await context.resource(held)
        await self.begin(stage)
        return value


@attrs.frozen
class Reports(Part):
    """The body reports progress at each point, each time after its seconds if there are to be `pauses`."""

    pauses: bool = False

    async def play(self, stage: Stage, context: ToolContext[Any]) -> Any:
        """Report, step by step."""
        for step in range(self.points):
            await stage.point()
            if self.pauses:
                await stage.sleep(self.seconds)
            stage.reporting()
            await context.report(step + 1, self.points)
        return f"{stage.call_id} reported"


Played: TypeAlias = CancelsCall | Cleans | Holds | Reports
playing: ContextVar[tuple[Played, Stage] | None] = ContextVar("agentloop_testing_part", default=None)


@attrs.frozen
class OnStage:
    """Hands a part to the tool's own body, which has the call's context. Of a tool that knows no parts, the body runs
    as it is."""

    part: Played

    async def __call__(self, stage: Stage) -> Any:
        token = playing.set((self.part, stage))
        try:
            return await stage.real()
        finally:
            playing.reset(token)
