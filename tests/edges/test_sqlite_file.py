"""Sessions and journals share these rules of a SQLite file."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from agentloop._storage.sqlite_file import connect, transaction, use_wal


class _BusyOnce:
    """A connection that fails twice, as if another were turning the file to write-ahead logging."""

    def __init__(self) -> None:
        self.asked = 0

    def execute(self, statement: str) -> Any:
        self.asked += 1
        if self.asked < 3:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        return self

    def fetchone(self) -> None:
        """Return nothing anybody reads."""


def test_write_ahead_logging_is_tried_again_while_another_connection_turns_it_on() -> None:
    """SQLite itself doesn't wait there."""
    connection: Any = _BusyOnce()
    use_wal(connection, deadline=float("inf"))
    assert connection.asked == 3


def test_a_transaction_that_sqlite_has_already_rolled_back_is_not_rolled_back_again() -> None:
    """The first error stays the error."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        with pytest.raises(KeyError, match="mine"), transaction(connection):
            connection.execute("ROLLBACK")
            raise KeyError("mine")
        with pytest.raises(KeyError, match="mine"), transaction(connection):
            raise KeyError("mine")
        assert not connection.in_transaction


def test_a_file_that_can_not_be_used_is_not_left_open(tmp_path: Any) -> None:
    """A connection the collector finds open would be a warning."""
    path = tmp_path / "x.db"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        connect(str(path), ("CREATE TABLE t (x)",), busy_timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="syntax"):
        connect(":memory:", ("CREATE NOTHING",), busy_timeout=0)


@pytest.mark.parametrize(("synced", "level"), [(True, 2), (False, None)])
def test_a_synced_file_is_synced_at_each_commit(tmp_path: Any, synced: bool, level: int | None) -> None:
    """The level doesn't depend on the build's default; the statements are executed; the file is in write-ahead mode."""
    path = str(tmp_path / "x.db")
    with closing(connect(path, ("CREATE TABLE t (x)",), busy_timeout=1, synced=synced)) as connection:
        (found,) = connection.execute("PRAGMA synchronous").fetchone()
        assert level in (None, found)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        with transaction(connection):
            connection.execute("INSERT INTO t VALUES (1)")
        assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]
