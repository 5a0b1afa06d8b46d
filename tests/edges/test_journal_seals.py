"""A sealed journal is read only in its own place: not under the name of another run, nor in another kind of store."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import attrs
import pytest

from agentloop import Agent, Runner, RunState
from agentloop.abc import Journal
from agentloop.exceptions import JournalError
from agentloop.journal import FileJournal, SQLiteJournal, read_journal
from agentloop.journal._envelope import START, Seal, write_batch
from agentloop.testing import ScriptedModel, say

pytestmark = [pytest.mark.real_clock]
KEY = b"a key of the application"
LINES = "agentloop_journal_lines"


class Store(Protocol):
    """A store of several runs, and what somebody who can write to it may do."""

    def open(self, run: str, **options: Any) -> Journal:
        """Return the journal of a run."""
        ...

    def exchange(self, one: str, other: str) -> None:
        """Put the lines of one run into the place of the other's, and the other way round."""
        ...

    def put(self, run: str, lines: list[bytes]) -> None:
        """Put *lines* into the place of a run."""
        ...

    def lines(self, run: str) -> list[bytes]:
        """Return the stored lines of a run."""
        ...


@attrs.frozen
class Files:
    """A folder with a file for each run."""

    folder: Path

    def open(self, run: str, **options: Any) -> FileJournal:
        """See `Store`."""
        return FileJournal(self.folder / f"{run}.journal", **options)

    def exchange(self, one: str, other: str) -> None:
        """See `Store`."""
        first, second = (self.folder / f"{run}.journal" for run in (one, other))
        os.rename(first, self.folder / "aside")
        os.rename(second, first)
        os.rename(self.folder / "aside", second)

    def put(self, run: str, lines: list[bytes]) -> None:
        """See `Store`."""
        (self.folder / f"{run}.journal").write_bytes(b"".join(line + b"\n" for line in lines))

    def lines(self, run: str) -> list[bytes]:
        """See `Store`."""
        return (self.folder / f"{run}.journal").read_bytes().splitlines()


@attrs.frozen
class Rows:
    """A SQLite file with the rows of all runs."""

    path: Path

    def open(self, run: str, **options: Any) -> SQLiteJournal:
        """See `Store`."""
        return SQLiteJournal(self.path, run, **options)

    def _do(self, *statements: tuple[str, Any]) -> list[Any]:
        connection = sqlite3.connect(self.path)
        found: list[Any] = []
        with connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {LINES} (run_id TEXT, n INTEGER, line BLOB)")
            for statement, values in statements:
                found = connection.execute(statement, values).fetchall()
        connection.close()
        return found

    def exchange(self, one: str, other: str) -> None:
        """See `Store`."""
        move = f"UPDATE {LINES} SET run_id = ? WHERE run_id = ?"
        self._do((move, ("aside", one)), (move, (one, other)), (move, (other, "aside")))

    def put(self, run: str, lines: list[bytes]) -> None:
        """See `Store`."""
        insert = f"INSERT INTO {LINES} (run_id, n, line) VALUES (?, ?, ?)"
        self._do(
            (f"DELETE FROM {LINES} WHERE run_id = ?", (run,)), *((insert, (run, n, x)) for n, x in enumerate(lines))
        )

    def lines(self, run: str) -> list[bytes]:
        """See `Store`."""
        return [line for (line,) in self._do((f"SELECT line FROM {LINES} WHERE run_id = ? ORDER BY n", (run,)))]


STORES: dict[str, Callable[[Path], Store]] = {
    "files": lambda path: Files(path),
    "rows": lambda path: Rows(path / "journals.sqlite"),
}


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each kind of store on this machine."""
    return STORES[request.param](tmp_path)


def agent() -> Agent[Any, Any]:
    """Return an agent that answers once."""
    return Agent("a", model=ScriptedModel([say("done")]))


async def write_runs(store: Store, *runs: str, **options: Any) -> None:
    """Let each run write its own name."""
    for run in runs:
        async with store.open(run, **options) as journal:  # type: ignore[attr-defined] # each of the library's has it
            await Runner.run(agent(), f"I am {run}", journal=journal)


@pytest.mark.scenario("SM-14")
async def test_journals_that_were_exchanged_are_refused(store: Store) -> None:
    """Each line is whole and sealed with the key; the place is another one. After an exchange back all is well."""
    await write_runs(store, "ada", "bob", key=KEY)
    store.exchange("ada", "bob")
    for run in ("ada", "bob"):
        with pytest.raises(JournalError, match=f"line 1 was changed .* or it was sealed for another run than '{run}'"):
            await store.open(run, key=KEY).read()
        with pytest.raises(JournalError, match="another run"):
            await store.open(run, key=KEY).append([b"{}"])
        with pytest.raises(JournalError, match="another run"):
            await RunState.from_journal(agent(), store.open(run, key=KEY))
    store.exchange("ada", "bob")
    state = await RunState.from_journal(agent(), store.open("bob", key=KEY))
    assert "I am bob" in str(state.records[0])


@pytest.mark.scenario("SM-14")
async def test_lines_of_another_kind_of_store_are_refused(tmp_path: Path) -> None:
    """Also those of a run with the same name: a development file is no row of production."""
    files, rows = Files(tmp_path), Rows(tmp_path / "rows")
    await write_runs(files, "ada", key=KEY)
    await write_runs(rows, "ada", key=KEY)
    in_file, in_rows = files.lines("ada"), rows.lines("ada")
    files.put("ada", in_rows)
    rows.put("ada", in_file)
    for store in (files, rows):
        with pytest.raises(JournalError, match="line 1 was changed"):
            await store.open("ada", key=KEY).read()


async def test_readers_without_a_loop_compare_the_place_too(tmp_path: Path) -> None:
    """`read_journal` takes a file's name for its run, as its writer does, unless it is told another one."""
    files, rows = Files(tmp_path), Rows(tmp_path / "rows")
    for store in (files, rows):
        await write_runs(store, "ada", "bob", key=KEY)
    os.rename(tmp_path / "ada.journal", tmp_path / "archived.journal")
    assert len(list(read_journal(tmp_path / "archived.journal", run_id="ada", key=KEY))) > 1
    with pytest.raises(JournalError, match="another run than 'archived'"):
        read_journal(tmp_path / "archived.journal", key=KEY)
    rows.exchange("ada", "bob")
    with pytest.raises(JournalError, match="another run than 'ada'"):
        read_journal(tmp_path / "rows", run_id="ada", key=KEY)


async def test_name_of_a_sealed_run_may_be_given(tmp_path: Path) -> None:
    """Then the file may have any name."""
    async with FileJournal(tmp_path / "x.1", key=KEY, run_id="ada") as journal:
        await journal.append([b'{"kind":"a"}'])
    assert await FileJournal(tmp_path / "x.1", key=KEY, run_id="ada").read() == [b'{"kind":"a"}']
    with pytest.raises(JournalError, match="another run than 'x'"):
        await FileJournal(tmp_path / "x.1", key=KEY).read()


async def test_files_without_a_key_may_be_renamed(tmp_path: Path) -> None:
    """Their digests show accidents only."""
    await write_runs(files := Files(tmp_path), "ada")
    os.rename(tmp_path / "ada.journal", tmp_path / "bob.journal")
    assert await files.open("bob").read()


@pytest.mark.scenario("SM-14")
async def test_seals_of_older_versions_are_read_where_that_is_wanted(store: Store) -> None:
    """Such a seal holds for every place, so nobody could tell an exchange: it must be asked for. It is continued."""
    records = [b'{"kind":"a"}', b'{"kind":"b"}']
    lines, _ = write_batch(records, START, kept=0, now=1.0, seal=Seal(KEY))
    store.put("ada", [line[:-1] for line in lines])
    with pytest.raises(JournalError, match=r"an older version sealed it.*older_seals=True"):
        await store.open("ada", key=KEY).read()
    with pytest.raises(JournalError, match="not the one given"):
        await store.open("ada", key=b"another", older_seals=True).read()
    async with store.open("ada", key=KEY, older_seals=True) as journal:  # type: ignore[attr-defined] # as above
        assert await journal.read() == records
        await journal.append([b'{"kind":"c"}'])
    assert await store.open("ada", key=KEY, older_seals=True).read() == [*records, b'{"kind":"c"}']
    await write_runs(store, "bob", key=KEY, older_seals=True)  # a new journal has the new seal
    assert await store.open("bob", key=KEY).read()


def test_the_repr_of_a_seal_shows_no_key() -> None:
    """Nor what it derives from it."""
    assert "application" not in repr(Seal(KEY, ("file", "ada")))
