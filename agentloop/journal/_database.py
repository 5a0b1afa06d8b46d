"""The journals in a PostgreSQL database, read by a connection that can't change anything there, and its driver.

To read needs no store: no lease, no tables of this version, no pool. So what looks at runs (the lab, the command line)
depends on the journals only, and not on the fleet of workers that writes them (`agentloop.postgres`).

The driver is psycopg, imported when the first connection opens, because it is an extra.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from agentloop._common.extras import describe_missing
from agentloop.exceptions import JournalError, UserError
from agentloop.journal._envelope import Seal
from agentloop.journal._rows import scan_rows

SEALED_AS = "postgres"
"""The kind of place that the seal of a run is bound to, beside the run's id."""
SELECT_LINES = "SELECT n, line FROM agentloop_journal_lines WHERE run_id = %(run_id)s ORDER BY n"

_LAST = "SELECT max(n) FROM agentloop_journal_lines WHERE run_id = %(run_id)s"
_RUNS = "SELECT run_id FROM agentloop_journal_lines WHERE n = 0 ORDER BY run_id"
_SECONDS = 10
"""How long the server may take to answer."""


class DatabaseJournals:
    """The journals of the database at *address*, read again and again. Each method blocks. `close` it.

    The connection is kept. A server that restarts costs one error; the next call connects anew.

    Raises (when made):
        UserError: the extra `postgres` is missing, or *address* isn't a PostgreSQL address.
    """

    def __init__(self, address: str) -> None:
        self._address = make_read_only(address)
        self._connection: Any = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def list_runs(self) -> list[str]:
        """Return the ids of the runs, sorted.

        Raises:
            UserError: the database has no journals.
            JournalError: it can't be read.
        """
        return [run_id for (run_id,) in self._select(_RUNS)]

    def read(self, run_id: str, *, key: bytes | None = None, older_seals: bool = False) -> list[bytes]:
        """Return the lines of a run, which may be under way.

        Raises:
            UserError: the database has no such run, or no journals.
            JournalError: it can't be read, or the lines are damaged, or were sealed with another key.
        """
        rows = self._select(SELECT_LINES, run_id=run_id)
        if not rows:
            raise UserError(f"the database holds no run {run_id!r}")
        return scan_rows(rows, Seal(key, (SEALED_AS, run_id), older_seals=older_seals), f"run {run_id!r}").records

    def stamp(self, run_id: str) -> object:
        """Return a value that is another one when the run has more lines, or can't be read."""
        try:
            return self._select(_LAST, run_id=run_id)
        except (JournalError, UserError) as error:
            return str(error)

    def close(self) -> None:
        """Close the connection. A later call opens another one."""
        with self._lock:
            self._drop()

    def _select(self, statement: str, **parameters: str) -> list[Any]:
        driver = import_driver()
        with self._lock, as_journal_error("the database"):
            try:
                if self._connection is None:
                    self._connection = connect(
                        self._address, connect_timeout=_SECONDS, tcp_user_timeout=_SECONDS * 1000
                    )
                found: list[Any] = self._connection.execute(statement, parameters).fetchall()
            except driver.errors.UndefinedTable as error:
                raise UserError(f"the database has no journals of agentloop ({str(error).splitlines()[0]})") from error
            except driver.OperationalError:
                self._drop()
                raise
        return found

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def make_read_only(address: str) -> str:
    """Return *address* with options by which no connection can change the database, nor wait for long.

    Raises:
        UserError: the extra `postgres` is missing, or *address* is none; doesn't quote it, as it may hold a password.
    """
    driver = import_driver()
    try:
        known = driver.conninfo.conninfo_to_dict(address).get("options", "")
        made: str = driver.conninfo.make_conninfo(
            address,
            options=f"{known} -c default_transaction_read_only=on -c statement_timeout={_SECONDS}s",
        )
    except driver.Error:
        raise UserError("not a PostgreSQL address") from None
    return made


def import_driver() -> Any:
    """Return the module psycopg.

    Raises:
        UserError: if it isn't installed; says how to install it.
    """
    try:
        import psycopg
    except ImportError:
        raise UserError(describe_missing("PostgreSQL", "postgres")) from None
    return psycopg


def connect(conninfo: str, **options: int) -> Any:
    """Return a connection to the database of *conninfo*, in which each statement is a transaction.

    Raises:
        psycopg.Error: the server can't be reached, or refuses; doesn't quote the password of *conninfo*.
        UserError: *conninfo* isn't an address; quotes nothing of it.
    """
    driver = import_driver()
    try:
        password = driver.conninfo.conninfo_to_dict(conninfo).get("password")
    except driver.Error:
        raise UserError(
            "the PostgresStore's address has a mistake (it isn't shown, since it may hold a password): expected "
            "'postgresql://USER@host:5432/name' or 'host=… port=5432 user=… dbname=…'"
        ) from None
    try:
        return driver.connect(conninfo, autocommit=True, application_name="agentloop", **options)
    except driver.Error as error:
        if not password or password not in str(error):
            raise
        raise driver.OperationalError(str(error).replace(password, "…")) from None


@contextmanager
def as_journal_error(what: str) -> Iterator[None]:
    """Raise an error of the driver in the block as a `JournalError` about *what*."""
    try:
        yield
    except import_driver().Error as error:
        raise JournalError(f"{what}: {str(error).strip()}") from error
