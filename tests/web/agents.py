"""Agents for web clients, and what their tools have seen."""

from collections.abc import Sequence
from typing import Any

import anyio
import attrs

from agentloop import Agent, ToolContext, tool
from agentloop.testing import ScriptedModel, call, say


@attrs.define(eq=False)
class Watched:
    """What the bodies of one agent have done; made within an event loop."""

    started: anyio.Event = attrs.field(factory=anyio.Event)
    free: anyio.Event = attrs.field(factory=anyio.Event)
    """Lets the body of `hold` return."""
    ended: list[str] = attrs.field(factory=list)
    deleted: list[str] = attrs.field(factory=list)

    def agent(self, steps: Sequence[Any], **options: Any) -> Agent[Any, Any]:
        """Return an agent whose model answers with *steps*."""

        @tool
        async def look(path: str) -> str:
            """Look at a file."""
            return f"{path} is old"

        @tool
        async def hold(ctx: ToolContext[Any]) -> str:
            """Work until freed."""
            await ctx.report(1, 2, "begun")
            self.started.set()
            try:
                await self.free.wait()
            finally:
                self.ended.append("hold")
            return "held"

        @tool(needs_approval=True)
        async def delete(path: str) -> str:
            """Delete a file."""
            self.deleted.append(path)
            return f"{path} is gone"

        return Agent("keeper", model=ScriptedModel(list(steps)), tools=[look, hold, delete], **options)


def looking() -> list[Any]:
    """Steps: two calls at once, then an answer."""
    return [[call("look", {"path": "a"}), call("look", {"path": "b"})], say("Both are old.")]


def holding() -> list[Any]:
    """Steps: a call that works until it is freed, then an answer."""
    return [[call("hold"), call("look", {"path": "a"})], say("Done.")]


def deleting() -> list[Any]:
    """Steps: two calls that need approval, then an answer."""
    return [[call("delete", {"path": "a"}), call("delete", {"path": "b"})], say("Done what I could.")]
