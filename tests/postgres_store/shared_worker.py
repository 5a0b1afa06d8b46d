"""A worker that calls under shared limits for ever: `python shared_worker.py CONNINFO BACKEND FOLDER RUNS`."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import anyio

from agentloop import Agent, RunConfig, Runner, tool
from agentloop.postgres import PostgresStore, SharedCapacity, SharedRate
from agentloop.testing import FunctionModel, call, say

COUNT, PER, PLACES, LEASE = 40, 2.0, 4, 2.0


async def work(conninfo: str, folder: Path, runs: int) -> None:
    """Ask a model and call a tool, in so many runs at once, and write down each request's time and each call's."""
    requests, calls = SharedRate(COUNT, PER, "requests"), SharedCapacity(PLACES, "calls")
    with (folder / f"{os.getpid()}").open("ab", buffering=0) as file:

        @tool(capacity=calls)
        async def look() -> str:
            """Take a while."""
            file.write(f"begin {time.monotonic()}\n".encode())
            await anyio.sleep(0.02)
            file.write(f"end {time.monotonic()}\n".encode())
            return "seen"

        async def answer(request: Any) -> Any:
            file.write(f"request {time.monotonic()}\n".encode())
            return call("look", {}, call_id="l") if request.turn == 1 else say("over")

        agent: Agent[Any, Any] = Agent("worker", model=FunctionModel(answer), tools=[look])

        async def one() -> None:
            while True:
                await Runner.run(agent, "go", run_config=RunConfig(model_limits=[requests]))

        async with (
            PostgresStore(conninfo) as store,
            store.share(requests, calls, seconds=LEASE),
            anyio.create_task_group() as group,
        ):
            for _ in range(runs):
                group.start_soon(one)


if __name__ == "__main__":
    anyio.run(work, sys.argv[1], Path(sys.argv[3]), int(sys.argv[4]), backend=sys.argv[2])
