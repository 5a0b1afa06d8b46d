"""A tool that takes a cancellation for a failure."""

import anyio

from agentloop import Agent, tool


@tool
async def fetch(page: str) -> str:
    """Fetch a page."""
    try:
        await anyio.sleep(2)
    except BaseException:
        return "try later"
    return f"text of {page}"


@tool(name="fetch")
async def hearing_fetch(page: str) -> str:
    """Fetch a page."""
    try:
        await anyio.sleep(2)
    except Exception:
        return "try later"
    return f"text of {page}"


faulty = Agent("fetcher", tools=[fetch])
sound = Agent("fetcher", tools=[hearing_fetch])
make_context = None
