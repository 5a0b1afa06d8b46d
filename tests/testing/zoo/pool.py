"""A connection that is given back only if all went well."""

import anyio

from agentloop import Agent, ToolContext, tool


class Pool:
    def __init__(self) -> None:
        self.in_use = 0

    def acquire(self) -> None:
        self.in_use += 1

    def release(self) -> None:
        self.in_use -= 1


@tool
async def query(ctx: ToolContext[Pool], table: str) -> str:
    """Read a table."""
    ctx.context.acquire()
    await anyio.sleep(0.5)
    ctx.context.release()
    return f"rows of {table}"


@tool(name="query")
async def careful_query(ctx: ToolContext[Pool], table: str) -> str:
    """Read a table."""
    ctx.context.acquire()
    try:
        await anyio.sleep(0.5)
    finally:
        ctx.context.release()
    return f"rows of {table}"


faulty = Agent("reader", tools=[query])
sound = Agent("reader", tools=[careful_query])
make_context = Pool
