"""Sessions and journals share these rules of a SQLite file."""

import random
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from agentloop._common.sqlite_file import connect, transaction, use_wal
from agentloop.exceptions import JournalError, StateError
from agentloop.items import UserMessage
from agentloop.journal import SQLiteJournal, read_journal
from agentloop.journal._reading import list_runs
from agentloop.sessions import SQLiteSession


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


# ---------------------------------------------------------------------------------------------- files of others

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT {} FROM c"
OF_ITEMS = ENDLESS.format("x AS id, 'default' AS session_id, '{}' AS item")
OF_LINES = ENDLESS.format("'r' AS run_id, x - 1 AS n, x'00' AS line")
# The index is there already, so that no statement of ours finds out that the table is a view.
VIEW_OF_ITEMS = (
    "CREATE TABLE other (session_id, id)",
    "CREATE INDEX agentloop_session_items_by_session ON other (session_id, id)",
    f"CREATE VIEW agentloop_session_items AS {OF_ITEMS}",
)
VIEW_OF_LINES = (f"CREATE VIEW Agentloop_Journal_Lines AS {OF_LINES}",)
NOTE = b'{"kind":"note"}'


async def use_session(path: Path) -> None:
    """Read the conversation, and add to it."""
    async with SQLiteSession(path, busy_timeout=0.2) as session:
        await session.get_items()
        await session.add_items([UserMessage("more")])
        await session.pop_item()


async def use_journal(path: Path) -> None:
    """Read the journal, and append to it."""
    async with SQLiteJournal(path, "r", busy_timeout=0.2) as journal:
        await journal.read()
        await journal.append([NOTE])


async def only_read_journal(path: Path) -> None:
    """Read the journal of a run that somebody looks at."""
    list(read_journal(path, run_id="r") or ())


async def only_list_runs(path: Path) -> None:
    """List the runs of a file."""
    list_runs(path)


USES: tuple[Callable[[Path], Awaitable[None]], ...] = (use_session, use_journal, only_read_journal, only_list_runs)


@pytest.mark.real_clock
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("use", "made", "kind"),
    [
        (use_session, VIEW_OF_ITEMS, "view"),
        (use_journal, VIEW_OF_LINES, "view"),
        (only_read_journal, VIEW_OF_LINES, "view"),
        (only_list_runs, VIEW_OF_LINES, "view"),
        (
            use_session,
            ("CREATE VIRTUAL TABLE agentloop_session_items USING fts5(id, session_id, item)",),
            "virtual table",
        ),
    ],
)
async def test_a_view_in_the_place_of_a_table_is_refused(
    tmp_path: Path, use: Callable[[Path], Awaitable[None]], made: tuple[str, ...], kind: str, anyio_backend: Any
) -> None:
    """Its rows may have no end, and a thread that reads them can't be stopped."""
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        if "fts5" in made[0] and ("ENABLE_FTS5",) not in connection.execute("PRAGMA compile_options").fetchall():
            pytest.skip("this build of SQLite has no such module")
        for statement in ("PRAGMA journal_mode = WAL", *made):
            connection.execute(statement)
        connection.commit()
    with pytest.raises((StateError, JournalError), match=f"(?i)agentloop_.* is a {kind}; expected tables only"):
        await use(path)


@pytest.mark.real_clock
async def test_a_trigger_of_somebody_else_changes_nothing(tmp_path: Path, anyio_backend: Any) -> None:
    """What is added is what is kept, or it is refused."""
    path = tmp_path / "x.sqlite"
    await use_session(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TRIGGER t AFTER INSERT ON agentloop_session_items "
            "BEGIN DELETE FROM agentloop_session_items WHERE id = NEW.id; END"
        )
        connection.commit()
    with pytest.raises(StateError, match="t is a trigger; expected tables only"):
        await use_session(path)


@pytest.mark.real_clock
@pytest.mark.parametrize("share", range(4))
async def test_a_damaged_file_gives_typed_errors_only(tmp_path: Path, share: int, anyio_backend: Any) -> None:
    """Random bytes anywhere, also in the names that SQLite's own messages quote; some files are cut."""
    good = tmp_path / "good.sqlite"
    async with SQLiteSession(good) as session, SQLiteJournal(good, "r") as journal:
        await session.add_items([UserMessage("x" * 500) for _ in range(40)])
        for _ in range(20):
            await journal.append([NOTE])
    with closing(sqlite3.connect(good)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = good.read_bytes()
    for seed in range(20 * share, 20 * share + 20):
        chance = random.Random(seed)
        broken = bytearray(data)
        # The first page has the names of all tables.
        reach = len(broken) if chance.random() < 0.5 else 4096
        for _ in range(chance.choice((1, 3, 30, 300))):
            broken[chance.randrange(reach)] = chance.randrange(256)
        if chance.random() < 0.2:
            broken = broken[: chance.randrange(len(broken))]
        for number, use in enumerate(USES):
            path = tmp_path / f"{seed}-{number}.sqlite"
            path.write_bytes(broken)
            with suppress(StateError, JournalError):
                await use(path)
