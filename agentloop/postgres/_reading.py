"""Reading the journals of a database without changing its database: no tables are made or migrated there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentloop.exceptions import JournalError, StateError, UserError
from agentloop.journal._envelope import Seal
from agentloop.journal._rows import scan_rows
from agentloop.postgres._connections import Connection, Connections, as_journal_error, import_driver
from agentloop.postgres._journal import PostgresJournal
from agentloop.postgres._store import PostgresStore


async def read_stored_lines(
    address: str, run_id: str, *, key: bytes | None = None, older_seals: bool = False
) -> list[bytes]:
    """Return the lines that the database at *address* holds of a run, which may be under way.

    Raises:
        UserError: the extra `postgres` is missing, *address* is none, or the database has no such run.
        JournalError: the database can't be read, or the lines are damaged, or were sealed with another key.
    """
    async with (
        PostgresStore(make_read_only(address), connections=1) as store,
        PostgresJournal(store, run_id, key=key, older_seals=older_seals) as journal,
    ):
        with _tables_of_this_version():
            lines = await journal.read()
    if not lines:
        raise UserError(f"the database holds no run {run_id!r}")
    return lines


async def list_stored_runs(address: str) -> list[str]:
    """Return the ids of the runs that the database at *address* holds, sorted.

    Raises:
        UserError, JournalError: as for `read_stored_lines`.
    """

    def select(connection: Connection) -> list[str]:
        return [run_id for (run_id,) in connection.execute(_RUNS).fetchall()]

    async with PostgresStore(make_read_only(address), connections=1) as store:
        with _tables_of_this_version(), as_journal_error("the database"):
            return await store.connections.run(select, again=True)


class StoredLines:
    """The lines of one run in a database, read again and again in a thread. `close` it.

    Raises (when made): UserError, as for `read_stored_lines`.
    """

    def __init__(self, address: str, run_id: str, *, key: bytes | None = None, older_seals: bool = False) -> None:
        self._connections = Connections(make_read_only(address), 1, _PATIENCE)
        self._run_id = run_id
        self._seal = Seal(key, ("postgres", run_id), older_seals=older_seals)

    def stamp(self) -> object:
        """Return a value that is another one when the run has more lines, or can't be read. Blocks."""
        try:
            return self._select(_LAST)
        except (JournalError, StateError, UserError) as error:
            return str(error)

    def read(self) -> list[bytes]:
        """Return the records of the run. Blocks.

        Raises:
            JournalError: as for `read_stored_lines`.
        """
        return scan_rows(self._select(_LINES), self._seal, f"run {self._run_id!r}").records

    def close(self) -> None:
        """Close the connection."""
        self._connections.close()

    def _select(self, statement: str) -> list[Any]:
        def select(connection: Connection) -> list[Any]:
            found: list[Any] = connection.execute(statement, {"run_id": self._run_id}).fetchall()
            return found

        with as_journal_error("the database"):
            return self._connections.call(select, again=True)


_PATIENCE = 10.0
"""Seconds that a server which restarts is waited for."""
_LINES = "SELECT n, line FROM agentloop_journal_lines WHERE run_id = %(run_id)s ORDER BY n"
_LAST = "SELECT max(n) FROM agentloop_journal_lines WHERE run_id = %(run_id)s"
_RUNS = "SELECT run_id FROM agentloop_journal_lines WHERE n = 0 ORDER BY run_id"


@contextmanager
def _tables_of_this_version() -> Iterator[None]:
    """Raise UserError where the tables would have to be made or changed first."""
    try:
        yield
    except JournalError as error:
        if isinstance(error.__cause__, import_driver().errors.ReadOnlySqlTransaction):
            raise UserError("the database has no journals of this version of agentloop") from error
        raise


def make_read_only(address: str) -> str:
    """Return *address* with an option by which no connection can change the database.

    Raises:
        UserError: the extra `postgres` is missing, or *address* is none; doesn't quote it, as it may hold a password.
    """
    driver = import_driver()
    try:
        known = driver.conninfo.conninfo_to_dict(address).get("options", "")
        made: str = driver.conninfo.make_conninfo(address, options=f"{known} -c default_transaction_read_only=on")
    except driver.Error:
        raise UserError("what is given is no address of PostgreSQL") from None
    return made
