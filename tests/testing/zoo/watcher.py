"""A thread that goes on watching."""

import threading

from agentloop import Agent, tool


@tool
async def watch(folder: str) -> str:
    """Watch a folder."""
    stopped = threading.Event()
    threading.Thread(target=stopped.wait, name="watcher", daemon=True).start()
    return f"watching {folder}"


@tool(name="watch")
async def watch_once(folder: str) -> str:
    """Watch a folder."""
    stopped = threading.Event()
    watcher = threading.Thread(target=stopped.wait, name="watcher", daemon=True)
    watcher.start()
    stopped.set()
    watcher.join()
    return f"watched {folder}"


faulty = Agent("watcher", tools=[watch])
sound = Agent("watcher", tools=[watch_once])
make_context = None
