"""At most two uploads at once, counted by hand."""

import anyio

from agentloop import Agent, ToolContext, tool


class Server:
    def __init__(self) -> None:
        self.active = 0
        self.files: list[str] = []
        self.slots = anyio.Semaphore(1)

    async def store(self, name: str) -> None:
        self.active += 1
        try:
            if self.active > 1:
                raise RuntimeError("more than one upload at once")
            await anyio.sleep(0.3)
            self.files.append(name)
        finally:
            self.active -= 1


@tool
async def upload(ctx: ToolContext[Server], name: str) -> str:
    """Upload a file."""
    while ctx.context.active >= 1:  # noqa: ASYNC110 - the fault
        await anyio.sleep(0.1)
    await anyio.sleep(0.05)
    await ctx.context.store(name)
    return "stored"


@tool(name="upload")
async def queued_upload(ctx: ToolContext[Server], name: str) -> str:
    """Upload a file."""
    async with ctx.context.slots:
        await ctx.context.store(name)
    return "stored"


faulty = Agent("uploads", tools=[upload])
sound = Agent("uploads", tools=[queued_upload])
make_context = Server
