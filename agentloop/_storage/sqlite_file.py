"""A SQLite file as sessions and journals use one: opened, in write-ahead mode, changed by transactions with names.

By the standard library's module, so all of it blocks, and belongs into a worker thread.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_PAUSE = 0.01


def opened(path: str, schema: Sequence[str], *, busy_timeout: float, synced: bool = False) -> sqlite3.Connection:
    """Return a connection to the file at *path* in which the statements of *schema* have been executed.

    It may be used by one thread after the other. Nothing is begun by itself: see `transaction`.

    Args:
        path: Where the file is, or `":memory:"`.
        schema: What makes the tables that aren't there.
        busy_timeout: Seconds that a statement waits for other connections.
        synced: Whether a commit outlives a power failure; some builds sync a write-ahead log less by default.

    Raises:
        sqlite3.Error: it can't be opened, isn't a database, or stays locked. Nothing is left open then.
    """
    # Autocommit: transactions are begun and ended by name.
    connection = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None, check_same_thread=False)
    try:
        use_wal(connection, time.monotonic() + busy_timeout)
        if synced:
            connection.execute("PRAGMA synchronous = FULL")
        with transaction(connection):
            for statement in schema:
                connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Make the block one transaction: writers of several processes stand in line; an error leaves nothing of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has already rolled back after some errors, such as a full disk.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def use_wal(connection: sqlite3.Connection, deadline: float) -> None:
    """Turn the file to write-ahead logging, for good. SQLite doesn't wait by itself while another does the same."""
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE)
