"""SQLite files for sessions and journals: opened in write-ahead mode, changed in explicit transactions.

Uses the standard library's module, so every function blocks and belongs in a worker thread. Does not know about tables.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

_PAUSE = 0.01


def connect(path: str, schema: Sequence[str], *, busy_timeout: float, synced: bool = False) -> sqlite3.Connection:
    """Return a connection to the file at *path* in which the statements of *schema* have been executed.

    On Linux, a file that it makes is readable by its owner only; SQLite gives the files beside it the same mode.

    The caller owns it. Several threads may use it, one at a time. It begins no transaction by itself: see
    `transaction`.

    Args:
        path: The file, or `":memory:"`.
        schema: Statements that make the missing tables.
        busy_timeout: Seconds that a statement waits for other connections.
        synced: If true, a commit outlives a power failure; some builds sync a write-ahead log less by default.

    Raises:
        sqlite3.Error: the file can't be opened, isn't a database, or stays locked. Nothing is left open then.
    """
    _make_private(path)
    # Autocommit: `transaction` begins and ends transactions explicitly.
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


def _make_private(path: str) -> None:
    """Make an empty file at *path* if none is there, since SQLite would let others read the one that it makes."""
    if path != ":memory:":
        # Not `os.open`: to close a descriptor of a file gives up the locks that this process has on it.
        with suppress(OSError, AttributeError):  # it is there, or this system can't: then SQLite makes it, or says why
            os.mknod(path, 0o600 | stat.S_IFREG)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Make the block one transaction: writers of other processes wait; an error rolls it back."""
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
    """Switch the file to write-ahead logging, which it keeps. Blocks until *deadline*, in `time.monotonic` seconds.

    SQLite's own busy timeout doesn't apply while another connection switches too, so this retries.
    """
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE)
