"""SQLite files for sessions and journals: opened in write-ahead mode, changed in explicit transactions.

Uses the standard library's module, so every function blocks and belongs in a worker thread. Of tables it knows that
their names begin with `agentloop_`.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""The errors of a file: where one is damaged, the message of SQLite's own error may quote a name that isn't text."""
_PAUSE = 0.01
# Only what has its own pages holds rows: views, triggers and virtual tables have none.
_NO_TABLES = (
    "SELECT type, name FROM sqlite_master WHERE lower(tbl_name) GLOB 'agentloop_*' AND NOT coalesce(rootpage, 0)"
)


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
        sqlite3.Error, UnicodeDecodeError: the file can't be opened, isn't a database, has something else in the place
            of a table, or stays locked. Nothing is left open then.
    """
    _make_private(path)
    # Autocommit: `transaction` begins and ends transactions explicitly.
    connection = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None, check_same_thread=False)
    try:
        distrust(connection)
        use_wal(connection, time.monotonic() + busy_timeout)
        if synced:
            connection.execute("PRAGMA synchronous = FULL")
        with transaction(connection):
            distrust(connection)  # another connection may have changed the file before the lock was taken
            for statement in schema:
                connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


class KeptConnection:
    """A connection to the file at *path*, made by `connect` at its first use. One thread at a time uses it."""

    def __init__(self, path: str, schema: Sequence[str], *, busy_timeout: float, synced: bool = False) -> None:
        self._open = partial(connect, path, schema, busy_timeout=busy_timeout, synced=synced)
        self._connection: sqlite3.Connection | None = None
        self._finalizer: weakref.finalize[..., object] | None = None

    def get(self) -> sqlite3.Connection:
        """Return the connection.

        Raises:
            sqlite3.Error, UnicodeDecodeError: as `connect`.
        """
        if self._connection is None:
            self._connection = made = self._open()
            # If the application forgets to close it, Python warns when it collects an open connection.
            self._finalizer = weakref.finalize(self, made.close)
        return self._connection

    def close(self) -> None:
        """Close the connection, if there is one. The next use makes another."""
        if self._finalizer is not None:
            self._finalizer()
        self._connection = self._finalizer = None


def distrust(connection: sqlite3.Connection) -> None:
    """Let nothing run that another program has put into the file: a view may have no end, and a trigger changes rows.

    Raises:
        sqlite3.DatabaseError: a view, a virtual table or a trigger has the place of a table, or is one of it.
    """
    connection.execute("PRAGMA trusted_schema = OFF")  # no function that a schema calls has a side effect
    found = connection.execute(_NO_TABLES).fetchone()
    if found is not None:
        kind = "virtual table" if found[0] == "table" else found[0]
        raise sqlite3.DatabaseError(f"{found[1]} is a {kind}; expected tables only")


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
