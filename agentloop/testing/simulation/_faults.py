"""Fault injectors for the bodies of a world: return late, raise, cancel itself or others, refuse to end, clean up.

A part runs in place of a tool's body (a world's `behaviors`). A part that needs the call's `ToolContext` is passed to
the tool's own body through a context variable; only the bodies of fixture agents (`_fixture_agents`) read it.
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
    """The interface of a part to its body: the call (`path`, `call_id`, `tool`), points of the schedule, time."""

    @property
    def path(self) -> tuple[str, ...]: ...
    @property
    def call_id(self) -> str: ...
    @property
    def tool(self) -> str: ...
    @property
    def real(self) -> Callable[[], Awaitable[Any]]: ...
    async def point(self, label: str = "") -> None:
        """Wait until the schedule lets this body continue."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        ...

    def entered(self) -> int:
        """Return a number for a resource that is being entered, larger than those of earlier ones."""
        ...

    def reporting(self) -> None:
        """Note that the body reports now."""
        ...

    def cleaning(self, section: str, entered: int | None = None) -> AbstractContextManager[None]:
        """Note that the block is cleanup, and whether it was completed; for a resource, with its *entered* number."""
        ...


class Fatal(BaseException):
    """An error that no tool policy may answer."""


@attrs.frozen
class Part:
    """The common beginning of all parts: points of the schedule, then virtual seconds."""

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
    """The body runs unchanged, after its points and seconds."""

    async def __call__(self, stage: Stage) -> Any:
        await self.begin(stage)
        return await stage.real()


@attrs.frozen
class Raises(Part):
    """The body fails: before its work, or after it (`late`). The error's text repeats `tells`, a secret argument."""

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
    """The body raises a cancellation without any cause; on asyncio it may also cancel its own task (`task`)."""

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
            await checkpoint()  # on trio too, where a task can't cancel itself: both backends take the same steps
        raise asyncio.CancelledError(f"{stage.call_id} gave up")


@attrs.frozen
class Swallows(Part):
    """The body swallows its first cancellation and returns a value, after some more time of its own."""

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
            # The two backends' groups have different texts.
            raise ExceptionGroup("tasks of a body", failed.exceptions) from None
        return await stage.real()


# ---------------------------------------------------------------------------------------------- with the call's context


@attrs.frozen
class CancelsCall(Part):
    """The body cancels another call of its run (or itself), and continues."""

    target: str = ""

    async def play(self, stage: Stage, context: ToolContext[Any]) -> Any:
        """Cancel the target, and return a text that says if there was anything to cancel."""
        await self.begin(stage)
        done = context.cancel_call(self.target or stage.call_id, f"{stage.call_id} said so")
        await checkpoint()
        return f"cancelled: {done}"


@attrs.frozen
class Cleans(Part):
    """The body cleans up in `ctx.cleanup()`, for some seconds, after success and failure alike."""

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

        await stage.point()  # entering takes several steps; directly after the gate no other part is under way
        place = stage.entered()
        value = await context.resource(held)
        await self.begin(stage)
        return value


@attrs.frozen
class Reports(Part):
    """The body reports progress at each point, with `pauses` each time after its seconds."""

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
    """Passes a part to the tool's own body, which has the call's context. A body that knows no parts runs unchanged."""

    part: Played

    async def __call__(self, stage: Stage) -> Any:
        token = playing.set((self.part, stage))
        try:
            return await stage.real()
        finally:
            playing.reset(token)
