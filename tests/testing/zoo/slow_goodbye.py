"""A shielded goodbye that takes longer than the run has for it."""

import anyio

from agentloop import Agent, tool


async def _talk(goodbye: float) -> None:
    try:
        await anyio.sleep(3)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(goodbye)


@tool
async def chat(text: str) -> str:
    """Talk to a server."""
    await _talk(60)
    return text


@tool(name="chat")
async def short_chat(text: str) -> str:
    """Talk to a server."""
    await _talk(1)
    return text


faulty = Agent("talker", tools=[chat])
sound = Agent("talker", tools=[short_chat])
make_context = None
