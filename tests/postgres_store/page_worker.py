"""A worker of the page's application: `python page_worker.py FOLDER`, where the page's `app.py` lies.

The recipe is the page's. Only its agent is another one, and its times are short.
"""

import asyncio
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from agentloop import Agent, ToolContext, tool
from agentloop.testing import FunctionModel, call, say

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
TURNS = 3


async def do(ctx: ToolContext[Any]) -> str:
    """Take a while, have the effect, take another while."""
    await asyncio.sleep(0.05)
    with (FOLDER / f"effects-{os.getpid()}").open("ab", buffering=0) as file:
        file.write(f"{ctx.idempotency_key} {ctx.tool_name}\n".encode())
    await asyncio.sleep(0.05)
    return "done"


@tool
async def charge(ctx: ToolContext[Any], n: int) -> str:
    """Do what may not be done twice."""
    return await do(ctx)


@tool(idempotent=True)
async def look(ctx: ToolContext[Any], n: int) -> str:
    """Do what may be done twice."""
    return await do(ctx)


async def answer(request: Any) -> Any:
    """Call both tools in each turn."""
    await asyncio.sleep(0.05)
    turn = request.turn
    if turn > TURNS:
        return say("over")
    return [call("charge", {"n": turn}, call_id=f"c{turn}"), call("look", {"n": turn}, call_id=f"l{turn}")]


agent: Agent[Any, Any] = Agent("worker", model=FunctionModel(answer), tools=[charge, look])


async def work() -> None:
    """Work until SIGTERM."""
    sys.path.insert(0, str(FOLDER))
    import app as page  # type: ignore[import-not-found]

    page.agent = agent
    page.store.lease = partial(page.store.lease, seconds=3.0)
    page.continue_run.retry_strategy.wait = 1
    async with page.app.open_async(), page.store:
        jobs = page.app.job_manager
        jobs.get_stalled_jobs = partial(jobs.get_stalled_jobs, seconds_since_heartbeat=3.0)

        async def rescue() -> None:
            while True:  # cron has minutes
                await page.rescue(0)
                await asyncio.sleep(1)

        rescuing = asyncio.create_task(rescue())
        await page.app.run_worker_async(
            concurrency=8,
            fetch_job_polling_interval=0.2,
            update_heartbeat_interval=0.5,
            shutdown_graceful_timeout=0.1,
        )
        rescuing.cancel()


if __name__ == "__main__":
    asyncio.run(work())
