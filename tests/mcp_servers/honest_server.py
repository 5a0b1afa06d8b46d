"""A real server for the tests, by stdio (`stdio`) or streamable HTTP (a port): run as a program of its own.

What reaches it is written to the file that `MCP_LOG` names, one line each.
"""

import os
import sys
from typing import Annotated, Any

import anyio
from mcp import types
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, MCPServer, Resolve
from mcp.server.mcpserver.prompts import base
from pydantic import BaseModel, Field

server = MCPServer("honest")


def note(text: str) -> None:
    """Append a line to the log."""
    with open(os.environ["MCP_LOG"], "a") as log:
        log.write(text + "\n")


@server.tool(annotations=types.ToolAnnotations(read_only_hint=True))
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    note(f"add {a} {b}")
    return a + b


@server.tool()
async def slow(seconds: float, ctx: Context) -> str:
    """Take some time, and report it."""
    note("slow begins")
    try:
        for step in range(5):
            await ctx.report_progress(step, 5, f"step {step}")
            await anyio.sleep(seconds / 5)
    except BaseException as error:
        note(f"slow cut by {type(error).__name__}")
        raise
    note("slow ends")
    return "done"


@server.tool()
async def crash() -> str:
    """End the process."""
    note("crash")
    os._exit(3)


@server.tool()
async def fail() -> str:
    """Fail."""
    raise ValueError("no such thing")


@server.tool(annotations=types.ToolAnnotations(destructive_hint=True))
async def remove(path: Annotated[str, Field(max_length=5)]) -> str:
    """Remove a file."""
    note(f"remove {path}")
    return "removed"


@server.tool()
async def key(ctx: Context) -> str:
    """Tell the key that came with the request."""
    meta: Any = ctx.request_context.meta
    found = meta if isinstance(meta, dict) else meta.model_dump(by_alias=True)
    return str(found.get("agentloop/idempotency_key"))


@server.tool()
async def grow(ctx: Context) -> str:
    """Add a tool."""

    async def extra() -> str:
        return "extra!"

    server.add_tool(extra, name="extra", description="Extra.")
    await ctx.notify_tools_changed()
    return "grown"


@server.tool()
async def parts() -> list[Any]:
    """Give something of each kind."""
    return [
        types.TextContent(type="text", text="words"),
        types.ImageContent(type="image", data="aW1n", mime_type="image/png"),
        types.AudioContent(type="audio", data="YXVk", mime_type="audio/wav"),
        types.EmbeddedResource(
            type="resource", resource=types.TextResourceContents(uri="file:///a.txt", text="inside")
        ),
        types.EmbeddedResource(
            type="resource",
            resource=types.BlobResourceContents(uri="file:///a.bin", blob="Ymlu", mime_type="application/x-bin"),
        ),
        types.ResourceLink(type="resource_link", name="b", uri="file:///b.txt"),
    ]


class Amount(BaseModel):
    """What the tool `order` asks for."""

    amount: int


async def ask_amount(what: str) -> Elicit[Amount]:
    """Ask the user, in the way of the client's era."""
    note(f"asks about {what}")
    return Elicit(f"How many {what}?", Amount)


@server.tool()
async def order(what: str, given: Annotated[ElicitationResult[Amount], Resolve(ask_amount)]) -> str:
    """Order as many as the user says."""
    note(f"order {what} {given.action}")
    return f"{given.data.amount} {what}" if given.action == "accept" else f"no {what}: {given.action}"


@server.tool()
async def visit(ctx: Context) -> str:
    """Send the user to a page; for clients with a session."""
    return (await ctx.elicit_url("Please pay.", "https://shop.test/pay", "pay-1")).action


@server.resource("note://today", mime_type="text/plain")
def today() -> str:
    """What is to do today."""
    return "Buy milk."


@server.resource("note://logo", mime_type="image/png")
def logo() -> bytes:
    """A picture."""
    return b"png"


@server.resource("note://of/{day}")
def of_day(day: str) -> str:
    """What is to do on a day."""
    return f"Nothing on {day}."


@server.prompt()
def tidy(folder: str, hard: str = "no") -> list[base.Message]:
    """Tidy a folder."""
    return [base.UserMessage(f"Tidy {folder}, hard: {hard}."), base.AssistantMessage("I begin.")]


if __name__ == "__main__":
    print(f"started as {os.getpid()}", file=sys.stderr)
    note(f"started {os.getpid()}")
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[1]))
