"""A research agent: a library by MCP, pages of the web, a memory of what was found (the extra `mcp`).

    python examples/research_agent.py
    python examples/research_agent.py openai:gpt-5.5     # a real model in place of the script
    python examples/research_agent.py local:             # a small one on this machine, which only chooses a tool

The library is a server of the official SDK, in a process of its own. One of its links leads into the private network:
that page isn't read, whoever wrote the link. The second question, another conversation, begins with the names of the
files in the memory, so it needs no search. Another user's memory has none of it.
"""

import sys
import tempfile
from pathlib import Path

import anyio

from agentloop import Agent, ModelSettings, Runner, open_runtime
from agentloop.bundles import Memory, SQLiteMemory, Web
from agentloop.mcp import MCPServer
from agentloop.testing import ScriptedModel, call, say

LIBRARY = {
    "nurseries": "Nurseries were first described in 2018. More: http://127.0.0.1/nurseries",
    "scopes": "A cancel scope is a level, and a native cancellation is an edge.",
}


def run_library() -> None:
    """Be the server of the library, by stdio."""
    from mcp.server.mcpserver import MCPServer as Server

    server = Server("library")

    @server.tool()
    async def search(topic: str) -> str:
        """Search the library for a topic, which is one word."""
        return LIBRARY.get(topic, "Nothing was found.")

    server.run("stdio")


library = MCPServer(
    name="library",
    command=[sys.executable, "-W", "ignore", __file__, "library"],
    options=lambda tool: {"timeout": 30.0},
    connect_timeout=60,
)


def make_agent(model: object, store: SQLiteMemory) -> Agent[str, str]:
    """Return the agent, whose memory is that of the user in the run's context."""
    return Agent(
        "researcher",
        instructions="Look into the memory first, then into the library, then into pages that it names. Keep findings.",
        model=model,
        model_settings=ModelSettings(temperature=0 if model == "local:" else None),
        toolsets=[library],
        bundles=[Web(timeout=10), Memory(store, scope=lambda ctx: ctx.context, recall_at_start=True)],
        # A small model can choose what to do, and not say what came of it.
        tool_use_behavior="stop_on_first_tool" if model == "local:" else "run_llm_again",
    )


# -- the script, and what is asked


FINDING = {"command": "create", "path": "/memories/nurseries.md", "file_text": "Nurseries: 2018, says the library.\n"}
SCRIPT = (
    call("search", {"topic": "nurseries"}),
    call("fetch_page", {"url": "http://127.0.0.1/nurseries"}),
    call("memory", FINDING),
    say("2018, says the library. The page that it names can't be read."),
    call("memory", {"command": "view", "path": "/memories/nurseries.md"}),
    say("2018: I have looked that up before."),
    call("memory", {"command": "view", "path": "/memories/nurseries.md"}),
    say("I don't know yet."),
)
QUESTIONS = (
    ("ada", "When were nurseries described?"),
    ("ada", "When was it, again?"),
    ("bob", "What did Ada ask?"),
)


async def main(model: str | None = None) -> None:
    """Ask each question in a conversation of its own, and show the calls and the answers."""
    with tempfile.TemporaryDirectory() as folder:
        async with SQLiteMemory(Path(folder, "memory.db")) as store, open_runtime():  # one server for all runs
            agent = make_agent(model or ScriptedModel(SCRIPT), store)
            for user, question in QUESTIONS:
                result = await Runner.run(agent, question, context=user)
                print(f"{user}: {question}")
                for settled in result.calls:
                    print(f"  {settled.call.name}: {str(settled.outcome.output).splitlines()[-1].strip()}")
                print(f"  {result.final_output}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["library"]:
            run_library()
        case given:
            anyio.run(main, *given[:1], backend="trio")
