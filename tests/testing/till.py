"""An example application with a race in it: two tools that check a balance, wait for a database, and then change it."""

import anyio
import attrs

from agentloop import Agent, ToolContext, tool


@attrs.define
class Till:
    """The shop's debt to a customer, and the payments it has made."""

    owed: int = 100
    paid: int = 0


@tool
async def refund(ctx: ToolContext[Till], amount: int) -> str:
    """Pay back *amount*."""
    if amount > ctx.context.owed:
        return "nothing is owed"
    await anyio.sleep(0.01)  # the bank
    ctx.context.owed -= amount
    ctx.context.paid += amount
    return "refunded"


@tool
async def credit(ctx: ToolContext[Till], amount: int) -> str:
    """Give a voucher for *amount*."""
    owed = ctx.context.owed
    await anyio.lowlevel.checkpoint()  # the database
    if amount > owed:
        return "nothing is owed"
    await anyio.sleep(0.02)
    ctx.context.owed -= amount
    ctx.context.paid += amount
    return "credited"


@tool
async def safe_refund(ctx: ToolContext[Till], amount: int) -> str:
    """Pay back *amount*, having taken it off what is owed before anything else may happen."""
    if amount > ctx.context.owed:
        return "nothing is owed"
    ctx.context.owed -= amount
    await anyio.sleep(0.01)
    ctx.context.paid += amount
    return "refunded"


@tool
async def look(ctx: ToolContext[Till]) -> str:
    """Tell what is owed."""
    await anyio.lowlevel.checkpoint()
    return str(ctx.context.owed)


agent: Agent[Till, str] = Agent("till", tools=[refund, credit, safe_refund, look])
