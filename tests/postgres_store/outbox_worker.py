"""A dispatcher process: `python outbox_worker.py CONNINFO BACKEND HOW` serves the outbox `refunds` until it is killed.

The receiver is the table `received`: each delivery puts a row into it, on a connection of its own (`deliver`) or within
the transaction of the receipt (`apply`).
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio

from agentloop.postgres import Intent, PostgresOutbox, PostgresStore

LONG = 600.0
"""Seconds that an attempt has, and each statement: nothing but the kill ends what waits in the database."""
_RECEIVE = "INSERT INTO received (key, process) VALUES (%s, %s)"


def deliver_to(conninfo: str) -> Callable[[Intent], int]:
    """Return a handler that tells the receiver, which commits."""

    def handler(intent: Intent) -> int:
        import psycopg

        with psycopg.connect(conninfo, autocommit=True) as receiver:
            receiver.execute(_RECEIVE, (intent.key, os.getpid()))
        return os.getpid()

    return handler


def apply(intent: Intent, connection: Any) -> int:
    """Do the same within the transaction."""
    connection.execute(_RECEIVE, (intent.key, os.getpid()))
    return os.getpid()


def dispatch(store: PostgresStore, conninfo: str, how: str) -> Callable[..., Any]:
    """Return the dispatcher, which `TaskGroup.start` starts."""
    outbox = PostgresOutbox(store, "refunds")
    if how == "apply":
        return partial(outbox.apply, apply)
    return partial(outbox.deliver, deliver_to(conninfo), timeout=LONG)


async def work(conninfo: str, how: str) -> None:
    """Dispatch until the process is killed."""
    async with PostgresStore(conninfo, timeout=LONG) as store:
        await dispatch(store, conninfo, how)()


if __name__ == "__main__":
    anyio.run(work, sys.argv[1], sys.argv[3], backend=sys.argv[2])
