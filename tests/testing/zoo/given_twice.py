"""A slot that is given back although it was never taken."""

import anyio

from agentloop import Agent, ToolContext, tool


class Printer:
    def __init__(self) -> None:
        self.slots = anyio.Semaphore(1)
        self.pages: list[str] = []


@tool
async def print_page(ctx: ToolContext[Printer], text: str) -> str:
    """Print a page."""
    try:
        await ctx.context.slots.acquire()
        await anyio.sleep(0.2)
        ctx.context.pages.append(text)
    finally:
        ctx.context.slots.release()
    return "printed"


@tool(name="print_page")
async def print_tidily(ctx: ToolContext[Printer], text: str) -> str:
    """Print a page."""
    await ctx.context.slots.acquire()
    try:
        await anyio.sleep(0.2)
        ctx.context.pages.append(text)
    finally:
        ctx.context.slots.release()
    return "printed"


faulty = Agent("printer", tools=[print_page])
sound = Agent("printer", tools=[print_tidily])
make_context = Printer
