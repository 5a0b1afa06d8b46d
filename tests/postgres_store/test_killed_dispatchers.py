"""Dispatchers of an outbox that are killed between the delivery and the mark: SIGKILL, and a real database.

A trigger holds the dispatcher's statement up in the database, so the moment is exact. Then the process is killed, and
the database either goes on with what it was told, for nobody, or ends the connection.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import anyio
import pytest
from kit.agents import script_turns
from postgres_store import outbox_worker

from agentloop import Agent, Runner, ToolContext, tool
from agentloop.postgres import PostgresJournal, PostgresOutbox, PostgresStore
from agentloop.testing import call, say

pytestmark = [pytest.mark.slow, pytest.mark.real_clock, pytest.mark.timeout(180)]
HELD_UP = 7
"""The advisory lock that the triggers wait for."""
TABLES = f"""
CREATE TABLE received (key text NOT NULL, process bigint NOT NULL);
CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock({HELD_UP});
    RETURN NULL;
END $$;
"""
TRIGGERS = {
    "delivery": "CREATE TRIGGER hold_up AFTER INSERT ON received FOR EACH ROW EXECUTE FUNCTION hold_up()",
    "mark": (
        "CREATE TRIGGER hold_up AFTER UPDATE ON agentloop_outbox FOR EACH ROW WHEN (new.status = 'delivered') "
        "EXECUTE FUNCTION hold_up()"
    ),
    "commit": (
        "CREATE CONSTRAINT TRIGGER hold_up AFTER INSERT ON received DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        "EXECUTE FUNCTION hold_up()"
    ),
}
WAITING = f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = {HELD_UP} AND NOT granted"
LIVING = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"


class Death(NamedTuple):
    """When a dispatcher dies, whether the database goes on, and how often the receiver is told in the end."""

    how: str
    at: str
    goes_on: bool
    rows: int
    attempts: int


DEATHS = [
    Death("deliver", "delivery", goes_on=True, rows=2, attempts=2),
    Death("deliver", "mark", goes_on=False, rows=2, attempts=2),
    Death("deliver", "mark", goes_on=True, rows=1, attempts=1),
    Death("apply", "mark", goes_on=True, rows=1, attempts=2),
    Death("apply", "commit", goes_on=True, rows=1, attempts=1),
]


async def add_intent(store: PostgresStore) -> None:
    """Have a run add one intent."""
    outbox = PostgresOutbox(store, "refunds")

    @tool(in_doubt="rerun")
    async def refund(ctx: ToolContext[Any]) -> str:
        """Refund."""
        await outbox.add(ctx, {"cents": 500}, key="refund 1")
        return "accepted"

    agent = Agent("clerk", model=script_turns(call("refund"), say("done")), tools=[refund])
    async with store.lease("run") as lease:
        await Runner.run(agent, "go", journal=PostgresJournal(store, lease))


def start(conninfo: str, backend: str, how: str) -> subprocess.Popen[bytes]:
    """Start a dispatcher process."""
    return subprocess.Popen([sys.executable, outbox_worker.__file__, conninfo, backend, how])


async def until(look: Callable[[], Any]) -> None:
    """Return once it is so."""
    while not await anyio.to_thread.run_sync(look):  # noqa: ASYNC110 - it is so in the database
        await anyio.sleep(0.01)


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: f"{death.how}-{death.at}-{death.goes_on}")
@pytest.mark.scenario("DU-08")
async def test_a_dispatcher_killed_between_delivery_and_mark(
    store: PostgresStore, conninfo: str, anyio_backend: Any, death: Death
) -> None:
    """The handler is called at least once, each time with the key; a function of the database counts exactly once."""
    import psycopg

    await add_intent(store)
    backend = anyio_backend if isinstance(anyio_backend, str) else anyio_backend[0]
    with psycopg.connect(conninfo, autocommit=True) as operator:
        operator.execute(TABLES)
        operator.execute(TRIGGERS[death.at])  # type: ignore[arg-type, unused-ignore]
        operator.execute("SELECT pg_advisory_lock(%s)", (HELD_UP,))
        process = start(conninfo, backend, death.how)
        try:
            await until(lambda: process.poll() is not None or operator.execute(WAITING).fetchone())
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()
        waiting = operator.execute(WAITING).fetchone()
        assert waiting is not None
        if not death.goes_on:
            operator.execute("SELECT pg_terminate_backend(%s)", waiting)
            await until(lambda: operator.execute(LIVING, waiting).fetchone() is None)
        operator.execute("SELECT pg_advisory_unlock(%s)", (HELD_UP,))
        await until(lambda: operator.execute(LIVING, waiting).fetchone() is None)
        operator.execute("UPDATE agentloop_outbox SET due_at = clock_timestamp() WHERE due_at IS NOT NULL")

        async with anyio.create_task_group() as group:
            await group.start(outbox_worker.dispatch(store, conninfo, death.how))
            await until(
                lambda: operator.execute("SELECT 1 FROM agentloop_outbox WHERE status = 'delivered'").fetchone()
            )
            group.cancel_scope.cancel()
        rows = operator.execute("SELECT key, process FROM received ORDER BY process = %s", (os.getpid(),)).fetchall()
    (intent,) = await PostgresOutbox(store, "refunds").intents()
    told = [process.pid, os.getpid()]
    counted = told if death.rows == 2 else [told[death.attempts - 1]]
    assert rows == [("refund 1", one) for one in counted]
    assert (intent.status, intent.attempts, intent.receipt) == ("delivered", death.attempts, counted[-1])
