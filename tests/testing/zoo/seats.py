"""The last seat is checked for, and then sold."""

import anyio
import attrs

from agentloop import Agent, ToolContext, tool


@attrs.define
class Hall:
    free: list[str] = attrs.field(factory=lambda: ["A1"])
    sold: list[str] = attrs.field(factory=list)


@tool
async def book(ctx: ToolContext[Hall], guest: str) -> str:
    """Book a seat."""
    hall = ctx.context
    if not hall.free:
        return "sold out"
    await anyio.sleep(0.2)
    seat = hall.free[0] if hall.free else "A1"
    hall.free = [one for one in hall.free if one != seat]
    hall.sold.append(f"{guest}: {seat}")
    return "booked"


@tool(name="book")
async def take(ctx: ToolContext[Hall], guest: str) -> str:
    """Book a seat."""
    hall = ctx.context
    if not hall.free:
        return "sold out"
    seat = hall.free.pop()
    await anyio.sleep(0.2)
    hall.sold.append(f"{guest}: {seat}")
    return "booked"


faulty = Agent("hall", tools=[book])
sound = Agent("hall", tools=[take])
make_context = Hall
