"""The user of a run, in a variable of the module."""

from contextvars import ContextVar

import anyio
import attrs

from agentloop import Agent, ToolContext, tool

_user = ""
_own_user: ContextVar[str] = ContextVar("own_user")


@attrs.define
class Request:
    letters: list[str] = attrs.field(factory=list)


async def _greet() -> str:
    await anyio.sleep(0.1)
    return f"Dear {_user}"


async def _greet_own() -> str:
    await anyio.sleep(0.1)
    return f"Dear {_own_user.get()}"


@tool
async def write(ctx: ToolContext[Request], user: str) -> str:
    """Write to somebody."""
    global _user
    _user = user
    ctx.context.letters.append(await _greet())
    return "written"


@tool(name="write")
async def write_own(ctx: ToolContext[Request], user: str) -> str:
    """Write to somebody."""
    _own_user.set(user)
    ctx.context.letters.append(await _greet_own())
    return "written"


faulty = Agent("letters", tools=[write])
sound = Agent("letters", tools=[write_own])
make_context = Request
