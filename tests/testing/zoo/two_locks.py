"""Two locks, taken in two orders."""

import anyio

from agentloop import Agent, ToolContext, tool


class Desk:
    def __init__(self) -> None:
        self.pen = anyio.Lock()
        self.paper = anyio.Lock()
        self.pages: list[str] = []


@tool
async def write(ctx: ToolContext[Desk], text: str) -> str:
    """Write a page."""
    async with ctx.context.pen:
        await anyio.sleep(0.1)
        async with ctx.context.paper:
            ctx.context.pages.append(text)
    return "written"


@tool
async def draw(ctx: ToolContext[Desk], thing: str) -> str:
    """Draw a page."""
    async with ctx.context.paper:
        await anyio.sleep(0.1)
        async with ctx.context.pen:
            ctx.context.pages.append(thing)
    return "drawn"


@tool(name="draw")
async def ordered_draw(ctx: ToolContext[Desk], thing: str) -> str:
    """Draw a page."""
    async with ctx.context.pen, ctx.context.paper:
        await anyio.sleep(0.1)
        ctx.context.pages.append(thing)
    return "drawn"


faulty = Agent("desk", tools=[write, draw])
sound = Agent("desk", tools=[write, ordered_draw])
make_context = Desk
