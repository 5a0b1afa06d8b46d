"""Fault injectors that need the call's context: cancel other calls, clean up, hold resources, report progress.

A part that needs the call's `ToolContext` is passed to the tool's own body through a context variable; only the bodies
of fixture agents read it. The parts that fit any tool are the package's own (`_faults`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import anyio
import attrs
from anyio.lowlevel import checkpoint

from agentloop.context import ToolContext
from agentloop.testing.simulation._faults import Part
from agentloop.testing.simulation.runs import Body


@attrs.frozen
class Hangs(Part):
    """The body never ends by itself."""

    async def __call__(self, stage: Body) -> Any:
        await self.begin(stage)
        await anyio.Event().wait()


@attrs.frozen
class CancelsCall(Part):
    """The body cancels another call of its run (or itself), and continues."""

    target: str = ""

    async def play(self, stage: Body, context: ToolContext[Any]) -> Any:
        """Cancel the target, and return a text that says if there was anything to cancel."""
        await self.begin(stage)
        done = context.cancel_call(self.target or stage.call_id, f"{stage.call_id} said so")
        await checkpoint()
        return f"cancelled: {done}"


@attrs.frozen
class Cleans(Part):
    """The body cleans up in `ctx.cleanup()`, for some seconds, after success and failure alike."""

    cleaning: float = 0.5

    async def play(self, stage: Body, context: ToolContext[Any]) -> Any:
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

    async def play(self, stage: Body, context: ToolContext[Any]) -> Any:
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

    async def play(self, stage: Body, context: ToolContext[Any]) -> Any:
        """Report, step by step."""
        for step in range(self.points):
            await stage.point()
            if self.pauses:
                await stage.sleep(self.seconds)
            stage.reporting()
            await context.report(step + 1, self.points)
        return f"{stage.call_id} reported"


Played: TypeAlias = CancelsCall | Cleans | Holds | Reports
playing: ContextVar[tuple[Played, Body] | None] = ContextVar("agentloop_testing_part", default=None)


@attrs.frozen
class OnStage:
    """Passes a part to the tool's own body, which has the call's context. A body that knows no parts runs unchanged."""

    part: Played

    async def __call__(self, stage: Body) -> Any:
        token = playing.set((self.part, stage))
        try:
            return await stage.real()
        finally:
            playing.reset(token)
