"""The work of `python -m benchmarks.temporal` with agentloop."""

from __future__ import annotations

from typing import Any

from agentloop import Agent, tool
from agentloop.model_events import ModelRequest
from agentloop.temporal import AgentPlugin, start_run
from agentloop.testing import FunctionModel, call, say
from benchmarks import temporal_work


def _answer(request: ModelRequest) -> Any:
    prompt: Any = request.items[0]
    calls = temporal_work.next_calls(prompt.text, request.turn - 1)
    return [call("look", given, call_id=call_id) for call_id, given in calls] or say("done")


@tool(idempotent=True)
async def look(at: int, size: int) -> str:
    """Look at something."""
    return temporal_work.look(at, size)


def make_plugin() -> Any:
    """Return the plugin for the client."""
    model = FunctionModel(_answer)
    agent = Agent("looker", instructions=temporal_work.INSTRUCTIONS, model=model, tools=[look])
    return AgentPlugin({"looker": agent})


WORKER: dict[str, Any] = {}


async def start(client: Any, text: str, **options: Any) -> Any:
    """Start a run, and return the handle of its workflow."""
    return (await start_run(client, "looker", text, max_turns=None, **options)).workflow
