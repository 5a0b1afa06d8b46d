"""Notes of a conversation that are kept in the module."""

import attrs

from agentloop import Agent, ToolContext, tool

_notes: list[str] = []


@attrs.define
class Talk:
    notes: list[str] = attrs.field(factory=list)


@tool
async def note(text: str) -> str:
    """Keep a note."""
    _notes.append(text)
    return "noted"


@tool
async def recall() -> str:
    """Tell all notes of this conversation."""
    return "; ".join(_notes) or "nothing"


@tool(name="note")
async def own_note(ctx: ToolContext[Talk], text: str) -> str:
    """Keep a note."""
    ctx.context.notes.append(text)
    return "noted"


@tool(name="recall")
async def own_recall(ctx: ToolContext[Talk]) -> str:
    """Tell all notes of this conversation."""
    return "; ".join(ctx.context.notes) or "nothing"


faulty = Agent("notebook", tools=[note, recall])
sound = Agent("notebook", tools=[own_note, own_recall])
make_context = Talk
