"""One database with runs and sessions: its connections, its tables, and the leases of its runs."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import anyio

from agentloop._common.checks import NAMES, check, check_id, check_seconds
from agentloop.postgres._connections import Connections
from agentloop.postgres._lease import Lease
from agentloop.postgres._renewals import Renewals


class PostgresStore:
    """The runs and sessions in one PostgreSQL database. Nothing is opened before its first use.

    The tables, whose names begin with `agentloop_`, are made and migrated then. Close it by `aclose`, or use it as
    `async with`. Safe to share between tasks, event loops and threads.

    Args:
        conninfo: The address in libpq's form: `"host=… dbname=…"` or `"postgresql://…"`. A proxy that gives each
            transaction another connection can't be used.
        connections: The most connections that are open at a time. Runs share them; each append takes one for a moment.
        timeout: Seconds that a statement may take, and that it waits for a server which restarts.
    """

    def __init__(self, conninfo: str, *, connections: int = 4, timeout: float = 10.0) -> None:
        check("conninfo", NAMES.text(), conninfo)
        check("connections", NAMES.count(), connections)
        check("timeout", NAMES.seconds(), timeout)
        self.connections: Connections = Connections(conninfo, connections, timeout)
        self._most = connections
        self._renewals = Renewals(self.connections)

    def __repr__(self) -> str:
        return f"PostgresStore(connections={self._most})"  # the address may hold a password

    @asynccontextmanager
    async def lease(self, run_id: str, *, seconds: float = 30.0) -> AsyncIterator[Lease]:
        """Take a run over, hold it for a block, and give it back. A run that hasn't begun can be taken, too.

        The lease is renewed at each third of *seconds*, in one statement with the others that this store holds in the
        same event loop. Within it no other worker can take the run, so a run of a worker that died is free when
        *seconds* are over. A block that stops the event loop for longer loses it.

        Cancellation: if the lease is lost, the block is cancelled. The lease is given back after every other
            cancellation, as after an error.

        Raises:
            LeaseHeld: if another worker holds the run; the block isn't entered.
            LeaseLost: if the lease was lost, and the block raised no error.
            JournalError: if the database refuses or can't be reached.
        """
        check_id("run_id", run_id)
        check_seconds("seconds", seconds)
        lease = Lease(self.connections, run_id, f"{os.getpid()}-{secrets.token_hex(8)}", seconds)
        raised: BaseException | None = None
        held = False
        await lease.take()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._renewals.keep, lease, group.cancel_scope)
                try:
                    yield lease
                except (anyio.get_cancelled_exc_class(), GeneratorExit):
                    raise
                except BaseException as error:  # noqa: ASYNC103 - raised below, where the group doesn't wrap it
                    raised = error
                held = lease.held
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):  # bounded: one attempt, by the timeout
                await lease.give_back()
        if raised is not None:
            raise raised
        if not held:
            raise lease.lost()

    async def aclose(self) -> None:
        """Close the connections. Does nothing the second time."""
        await self.connections.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):  # bounded by the timeout: it waits only for work in progress
            await self.aclose()
