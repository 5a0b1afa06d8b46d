"""A worker process: `python served_worker.py CONNINFO BACKEND` serves the agent `clerk` until SIGTERM.

Each body that begins writes a line `TOOL RUN` to the output; `drained` is the last line.
"""

import signal
import sys
from typing import Any

import anyio

from agentloop import Agent, ToolContext, tool
from agentloop.postgres import PostgresStore, ServedRun, serve
from agentloop.testing import FunctionModel, call, say

LEASE = 2.0


@tool
async def step(ctx: ToolContext[Any]) -> str:
    """Do one step."""
    print("step", ctx.context, flush=True)
    await anyio.sleep(0.01)
    return "stepped"


@tool(idempotent=True)
async def hang(ctx: ToolContext[Any]) -> str:
    """Never end."""
    print("hang", ctx.context, flush=True)
    await anyio.sleep_forever()
    raise AssertionError


def answer(request: Any) -> Any:
    """Call the tool that the input names, in each turn."""
    return call(request.items[0].text, {}, call_id=f"c{request.turn}")


clerk: Agent[Any, Any] = Agent("clerk", model=FunctionModel(answer), tools=[step, hang])
done: Agent[Any, Any] = Agent("clerk", model=FunctionModel(lambda request: say("done")), tools=[step, hang])
"""The same agent as a later deploy has it: its model ends the run."""


def options(run: ServedRun) -> dict[str, Any]:
    """Return the options of a run, which never ends by itself."""
    return {"context": run.run_id, "max_turns": None}


async def work(conninfo: str) -> None:
    """Serve until SIGTERM."""
    async with PostgresStore(conninfo) as store:
        await serve(store, clerk, options=options, grace=60.0, lease_seconds=LEASE, signals=[signal.SIGTERM])
    print("drained", flush=True)


if __name__ == "__main__":
    anyio.run(work, sys.argv[1], backend=sys.argv[2])
