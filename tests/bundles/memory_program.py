"""A process that writes lines into one file of a memory: `memory_program.py BACKEND KIND PATH NAME COUNT`.

It says "ready" when it has viewed the file, and waits for a line before it writes.
"""

import sys
from functools import partial
from typing import Any

import anyio

from agentloop import Agent, Runner
from agentloop.bundles import FolderMemory, Memory, SQLiteMemory
from agentloop.models import ModelRequest
from agentloop.testing import ScriptedModel, call, say

FILE = "/memories/shared.md"


def make_store(kind: str, path: str) -> Any:
    """Return the store in *path*."""
    return FolderMemory(path) if kind == "folder" else SQLiteMemory(path, busy_timeout=60)


async def main(kind: str, path: str, name: str, count: int) -> None:
    """Insert *count* lines, each as last seen, and view the file again whenever the tool says so."""
    refused = 0
    left = [f"{name}-{number}" for number in range(count)]

    def step(request: ModelRequest) -> Any:
        nonlocal refused
        output = str(request.items[-1].output) if len(request.items) > 1 else ""  # type: ignore[union-attr]
        refused += "has changed since" in output
        if not output or "has changed since" in output or "change these files all the time" in output:
            return call("memory", {"command": "view", "path": FILE})
        if "was changed" in output:
            left.pop(0)
        elif len(left) == count and not refused:  # the first view
            print("ready", flush=True)
            sys.stdin.readline()
        if not left:
            return say(str(refused))
        text = {"insert_line": 0, "insert_text": left[0]}
        return call("memory", {"command": "insert", "path": FILE, **text})

    model = ScriptedModel([step] * (20 * count + 20))
    agent = Agent("a", model=model, bundles=[Memory(make_store(kind, path), scope="team")])
    print((await Runner.run(agent, "go", max_turns=20 * count + 20)).final_output, flush=True)


if __name__ == "__main__":
    anyio.run(partial(main, *sys.argv[2:5], int(sys.argv[5])), backend=sys.argv[1])
