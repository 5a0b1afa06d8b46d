"""A client that is to be connected once."""

import anyio

from agentloop import Agent, ToolContext, tool


class Client:
    async def ask(self, question: str) -> str:
        await anyio.sleep(0.1)
        return f"answer to {question}"


class Services:
    def __init__(self) -> None:
        self.connected = 0
        self.client: Client | None = None
        self.lock = anyio.Lock()

    async def connect(self) -> Client:
        await anyio.sleep(0.2)
        self.connected += 1
        return Client()


@tool
async def ask(ctx: ToolContext[Services], question: str) -> str:
    """Ask the service."""
    if ctx.context.client is None:
        ctx.context.client = await ctx.context.connect()
    return await ctx.context.client.ask(question)


@tool(name="ask")
async def ask_once(ctx: ToolContext[Services], question: str) -> str:
    """Ask the service."""
    async with ctx.context.lock:
        if ctx.context.client is None:
            ctx.context.client = await ctx.context.connect()
    return await ctx.context.client.ask(question)


faulty = Agent("asker", tools=[ask])
sound = Agent("asker", tools=[ask_once])
make_context = Services
