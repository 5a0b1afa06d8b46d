"""Somebody at a desk, who has no agents: `python desk.py CONNINFO RUN CALL VALUE NAME` answers a call of a run.

Prints `taken`, or why the answer was refused.
"""

import json
import sys

import anyio

from agentloop.exceptions import AgentLoopError
from agentloop.postgres import PostgresJournal, PostgresStore


async def answer(conninfo: str, run_id: str, call_id: str, value: str, name: str) -> None:
    """Answer, as *name*."""
    async with PostgresStore(conninfo) as store:
        try:
            await PostgresJournal(store, run_id).answer(call_id, json.loads(value), by=name)
        except AgentLoopError as error:
            print(f"{type(error).__name__}: {error}")
        else:
            print("taken")


if __name__ == "__main__":
    anyio.run(answer, *sys.argv[1:])
