"""Tools of an MCP server, and an agent that is an MCP server itself (the extra `mcp`).

    python examples/mcp_notes.py
    python examples/mcp_notes.py openai:gpt-5.5     # a real model in place of the script

Two servers are started as processes: one manages notes, with the official SDK; the other one is an agent that writes
titles, served by `agentloop.mcp.serve`. The secretary uses both. Removing a note needs an approval, which the
application gives here; a search has five seconds. Both processes end with the block.
"""

import sys

import anyio

from agentloop import Agent, FunctionTool, RunConfig, Runner, open_runtime
from agentloop.items import ToolOutput
from agentloop.mcp import MCPServer, serve
from agentloop.model_events import ModelRequest
from agentloop.testing import FunctionModel, call, say

NOTES = {"milk": "buy milk", "rent": "pay the rent", "bread": "buy bread"}


def run_notes() -> None:
    """Be the server of the notes, by stdio."""
    from mcp.server.mcpserver import MCPServer as Server

    server = Server("notes")

    @server.tool()
    async def search(word: str) -> list[str]:
        """Find the names of the notes that hold a word."""
        return [name for name, text in NOTES.items() if word in text]

    @server.tool()
    async def remove(name: str) -> str:
        """Remove a note."""
        return f"removed: {NOTES.pop(name)}" if name in NOTES else f"there is no note {name}"

    server.run("stdio")


titler = Agent(
    "titler",
    instructions="Write a title.",
    handoff_description="Writes a title for a text.",
    model=FunctionModel(lambda request: str(request.items[0].text).title()),
)


def options(tool: FunctionTool) -> dict[str, object]:
    """Return what this application wants of a tool, whatever the server says of it."""
    return {"needs_approval": True} if tool.name == "remove" else {"timeout": 5.0}


def answer(request: ModelRequest) -> object:
    """Play the model: search, then remove what was found and have a title made."""
    outputs = [str(item.output) for item in request.items if isinstance(item, ToolOutput)]
    if not outputs:
        return [call("search", {"word": "milk"})]
    if len(outputs) == 1:
        return [call("remove", {"name": "milk"}), call("titler", {"input": "the milk is bought"})]
    return say("\n".join(outputs))


command = [sys.executable, "-W", "ignore", __file__]
notes = MCPServer(name="notes", command=[*command, "notes"], options=options, connect_timeout=60)
titles = MCPServer(name="titles", command=[*command, "titles"], connect_timeout=60)
secretary = Agent(
    "secretary",
    instructions="Keep the notes of your user.",
    model=FunctionModel(answer),  # or openai:NAME, anthropic:NAME, local:
    toolsets=[notes, titles],
)


async def main(model: str | None = None) -> None:
    """Run the secretary; each call that waits is shown and approved."""
    config = RunConfig(model=model)
    async with open_runtime():  # one connection to each server for all runs of the block
        result = await Runner.run(secretary, "I have the milk.", run_config=config)
        while result.interruptions:
            state = result.to_state()
            for request in state.interruptions:
                print("approved:", request.call.name, request.call.arguments)
                state.approve(request)
            result = await Runner.run(secretary, state, run_config=config)
    for settled in result.calls:
        print(settled.call.name, settled.outcome.status)
    print(result.final_output)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["notes"]:
            run_notes()
        case ["titles"]:
            anyio.run(serve, titler)
        case given:
            anyio.run(main, *given[:1], backend="trio")
