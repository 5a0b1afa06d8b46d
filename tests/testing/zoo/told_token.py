"""A token in the text of an error."""

import anyio
import attrs

from agentloop import Agent, ToolContext, tool


@attrs.define
class Login:
    api_token: str = "tk-5512-aa9c"
    folders: dict[str, str] = attrs.field(factory=lambda: {"inbox": "3 mails"})


@tool
async def look(ctx: ToolContext[Login], folder: str) -> str:
    """Look into a folder."""
    await anyio.sleep(0.1)
    if folder not in ctx.context.folders:
        raise PermissionError(f"token {ctx.context.api_token} has no right to {folder}")
    return ctx.context.folders[folder]


@tool(name="look")
async def silent_look(ctx: ToolContext[Login], folder: str) -> str:
    """Look into a folder."""
    await anyio.sleep(0.1)
    if folder not in ctx.context.folders:
        raise PermissionError(f"the token has no right to {folder}")
    return ctx.context.folders[folder]


faulty = Agent("mailbox", tools=[look])
sound = Agent("mailbox", tools=[silent_look])
make_context = Login
