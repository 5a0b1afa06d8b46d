"""Notifications of the database (`NOTIFY`), which say only that it is worth looking: a poll finds the same, later."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Never

import anyio
import anyio.to_thread

from agentloop.exceptions import JournalError
from agentloop.postgres._connections import Connection, Connections, as_journal_error

LONGEST_PAUSE = 30.0
"""Seconds: pauses after errors of the database, or of one run, double from the poll's length up to this."""


async def listen(connections: Connections, channel: str, heard: Callable[[], None], poll: float) -> Never:
    """Call *heard* at each notification of *channel*, and whenever one may have been missed, for ever.

    A lost connection is opened again, after a pause that begins with *poll* seconds. Who polls says why.
    """
    pause = poll
    while True:
        try:
            with as_journal_error("the database"):
                connection = await anyio.to_thread.run_sync(_open_listener, connections, channel)
                with closing(connection):
                    pause = poll
                    while True:
                        heard()
                        await anyio.wait_readable(connection.fileno())
                        connection.pgconn.consume_input()
                        while connection.pgconn.notifies() is not None:
                            pass
        except JournalError:
            await anyio.sleep(pause)
            pause = min(pause * 2, max(poll, LONGEST_PAUSE))


def _open_listener(connections: Connections, channel: str) -> Connection:
    """Return a connection that is notified. Blocks."""
    connection = connections.open()
    try:
        connection.execute(f"LISTEN {channel}")
    except BaseException:
        connection.close()
        raise
    return connection
