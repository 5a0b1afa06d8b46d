"""A worker of a fleet: `python fleet.py CONNINFO BACKEND FOLDER`. The queue is a table, the outside world a file.

A worker takes the runs that nobody holds, begins or resumes them, and writes down how they ended, under its lease.
"""

import os
import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import psycopg

from agentloop import Agent, RunContext, Runner, tool
from agentloop.exceptions import JournalError
from agentloop.postgres import Lease, PostgresJournal, PostgresStore
from agentloop.testing import FunctionModel, call, say

TURNS, SLOTS, LEASE = 3, 12, 2.0
ASKED = 7
"""Each run whose number divides by it ends with a call that needs an approval."""
FREE = """
SELECT run_id FROM jobs WHERE status = 'due' AND NOT EXISTS (
    SELECT 1 FROM agentloop_leases AS held WHERE held.run_id = jobs.run_id AND held.ends_at > clock_timestamp())
ORDER BY random() LIMIT %s
"""


class Worker:
    """What a body is given: the lease under which it runs, and the file of effects."""

    def __init__(self, folder: Path, lease: Lease) -> None:
        self.path = folder / f"effects-{os.getpid()}"
        self.lease = lease

    def note(self, tool_name: str, call_id: str, held: bool) -> None:
        """Write down one effect, in one write."""
        with self.path.open("ab", buffering=0) as file:
            file.write(f"{self.lease.run_id} {call_id} {tool_name} {held}\n".encode())


async def do(context: RunContext[Worker], name: str, call_id: str) -> str:
    """Take a while, have the effect, take another while."""
    held = context.context.lease.held  # in the first step of the body
    await anyio.sleep(random.uniform(0, 0.2))
    context.context.note(name, call_id, held)
    await anyio.sleep(random.uniform(0, 0.2))
    return f"{name} is done"


@tool
async def charge(context: RunContext[Worker], n: int) -> str:
    """Do what may not be done twice."""
    return await do(context, "charge", f"c{n}")


@tool(idempotent=True)
async def look(context: RunContext[Worker], n: int) -> str:
    """Do what may be done twice."""
    return await do(context, "look", f"l{n}")


@tool(needs_approval=True)
async def refund(context: RunContext[Worker], n: int) -> str:
    """Do what may not be done twice, and not before a verdict."""
    return await do(context, "refund", f"r{n}")


async def answer(request: Any) -> Any:
    """Call both tools in each turn, then ask if the input says so."""
    await anyio.sleep(0.1)
    turn = request.turn
    if turn <= TURNS:
        return [call("charge", {"n": turn}, call_id=f"c{turn}"), call("look", {"n": turn}, call_id=f"l{turn}")]
    asked = "ask" in str(request.items[0])
    return [call("refund", {"n": 0}, call_id="r0")] if asked and turn == TURNS + 1 else say("over")


agent: Agent[Any, Any] = Agent("worker", model=FunctionModel(answer), tools=[charge, look, refund])


def given(run_id: str) -> str:
    """Return the input of a run."""
    return "ask" if int(run_id) % ASKED == 0 else "go"


async def work(conninfo: str, folder: Path) -> None:
    """Work for ever."""
    async with PostgresStore(conninfo) as store, anyio.create_task_group() as group:
        busy: set[str] = set()
        while True:
            found: list[Any] = []
            with suppress(psycopg.Error):  # a server that restarts
                room = SLOTS - len(busy)
                found = await store.connections.run(lambda db, room=room: db.execute(FREE, (room,)).fetchall())  # type: ignore[misc]
            for (run_id,) in found:
                if run_id not in busy:
                    busy.add(run_id)
                    group.start_soon(one, store, folder, run_id, busy)
            await anyio.sleep(0.1)


async def one(store: PostgresStore, folder: Path, run_id: str, busy: set[str]) -> None:
    """Go on with one run, as far as it comes; what is left is for whoever takes it next."""
    try:
        with suppress(JournalError, psycopg.Error):
            async with store.lease(run_id, seconds=LEASE) as lease:
                journal = PostgresJournal(store, lease)
                context = Worker(folder, lease)
                if await journal.read():
                    result = await Runner.resume(agent, journal, context=context)
                else:
                    result = await Runner.run(agent, given(run_id), journal=journal, context=context)
                status = "waiting" if result.interruptions else "over"
                written = "UPDATE jobs SET status = %s WHERE run_id = %s AND status = 'due'"
                await store.connections.run(lambda db: db.execute(written, (status, run_id)), again=True)
    finally:
        busy.discard(run_id)


if __name__ == "__main__":
    anyio.run(work, sys.argv[1], Path(sys.argv[3]), backend=sys.argv[2])
