"""A fleet of workers on PostgreSQL (the extra `postgres`): a run survives the worker that began it.

    python examples/fleet.py "host=127.0.0.1 user=postgres dbname=postgres"

Each run is under a lease. Two workers are started as processes, and one is killed in the middle of its calls. When its
leases have passed, the other one continues its runs. The payments are in a table of the same database; a payment that
is made again has the same idempotency key, so none is made twice. The queue is a list here: docs/how-to/postgres.md has
a real one.
"""

import os
import subprocess
import sys
import time

import anyio
import psycopg

from agentloop import Agent, Runner, ToolContext, tool
from agentloop.items import ToolOutput
from agentloop.model_events import ModelRequest
from agentloop.postgres import LeaseHeld, PostgresJournal, PostgresStore
from agentloop.testing import FunctionModel, call, say

RUNS = tuple(f"run-{number}" for number in range(1, 7))
LEASE = 3.0
"""Seconds: the time that the runs of a dead worker wait."""
TABLE = "CREATE TABLE IF NOT EXISTS payments (key text PRIMARY KEY, invoice text, worker int)"
PAY = "INSERT INTO payments VALUES (%s, %s, %s) ON CONFLICT (key) DO NOTHING"


@tool(idempotent=True)
def pay(ctx: ToolContext[str], invoice: str) -> str:
    """Pay an invoice.

    Args:
        invoice: Its number.
    """
    print(f"{os.getpid()} pays {invoice}\n", end="", flush=True)  # in one piece: other threads write here, too
    time.sleep(0.3)  # the bank takes a while
    with psycopg.connect(ctx.context, autocommit=True) as connection:
        connection.execute(PAY, (ctx.idempotency_key, invoice, os.getpid()))
    return f"{invoice} is paid"


def answer(request: ModelRequest) -> object:
    """Play the model: pay the two invoices of this run, one after the other."""
    paid = sum(isinstance(item, ToolOutput) for item in request.items)
    name = str(request.items[0].text).partition(" ")[2]
    return [call("pay", {"invoice": f"{name}/{paid + 1}"})] if paid < 2 else say(f"{name} is done.")


agent = Agent("clerk", instructions="Pay what you are given.", model=FunctionModel(answer), tools=[pay])


async def work_on(store: PostgresStore, address: str, run_id: str, room: anyio.CapacityLimiter) -> None:
    """Bring one run to its end, here or by waiting for the worker that holds it."""
    while True:
        try:
            async with room, store.lease(run_id, seconds=LEASE) as lease:
                journal = PostgresJournal(store, lease)
                await Runner.run_or_resume(agent, f"Pay {run_id}", journal=journal, context=address)
                return
        except LeaseHeld:
            await anyio.sleep(0.2)


async def work(address: str) -> None:
    """Be a worker, with room for three runs at a time."""
    async with PostgresStore(address) as store, anyio.create_task_group() as group:
        room = anyio.CapacityLimiter(3)
        for run_id in RUNS:
            group.start_soon(work_on, store, address, run_id, room)


def main(address: str, backend: str = "trio") -> None:
    """Start two workers, kill the first one that pays, wait for the other and show what was paid."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(TABLE)
    command = [sys.executable, __file__, "work", address, backend]
    output, given = os.pipe()
    started = [subprocess.Popen(command, stdout=given) for _ in range(2)]
    os.close(given)
    workers = {worker.pid: worker for worker in started}
    try:
        with open(output, encoding="utf-8") as lines:
            victim = workers.pop(int(next(lines).split()[0]))
            victim.kill()
            print("one worker is killed while it pays")
            for _ in lines:  # until the other one has ended
                pass
        print("the other one has ended with", next(iter(workers.values())).wait(60))
    finally:
        for worker in started:
            worker.kill()
            worker.wait()
    with psycopg.connect(address) as connection:
        paid = [row[0] for row in connection.execute("SELECT invoice FROM payments ORDER BY invoice")]
    print(len(RUNS), "runs,", len(paid), "payments,", len(set(paid)), "invoices")


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        anyio.run(work, sys.argv[2], backend=sys.argv[3])
    else:
        main(*sys.argv[1:2])
