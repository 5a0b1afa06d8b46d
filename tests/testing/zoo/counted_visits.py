"""A counter that is read, waited for, and written."""

import anyio
import attrs

from agentloop import Agent, ToolContext, tool


@attrs.define
class Site:
    visits: int = 0
    lock: anyio.Lock = attrs.field(factory=anyio.Lock)


@tool
async def visit(ctx: ToolContext[Site], page: str) -> str:
    """Count a visit."""
    seen = ctx.context.visits
    await anyio.sleep(0.1)
    ctx.context.visits = seen + 1
    return f"{page}: welcome"


@tool(name="visit")
async def locked_visit(ctx: ToolContext[Site], page: str) -> str:
    """Count a visit."""
    async with ctx.context.lock:
        seen = ctx.context.visits
        await anyio.sleep(0.1)
        ctx.context.visits = seen + 1
    return f"{page}: welcome"


faulty = Agent("site", tools=[visit])
sound = Agent("site", tools=[locked_visit])
make_context = Site
