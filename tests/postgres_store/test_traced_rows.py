"""`agentloop trace` of a run in the database: the same lines as from a file, and nothing there is changed."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner, Result
from kit.agents import script_agent
from postgres_store.server import Server

from agentloop import Runner, tool
from agentloop.cli.app import app
from agentloop.cli.trace import _follow_lines
from agentloop.exceptions import UserError
from agentloop.journal import FileJournal, MemoryJournal
from agentloop.journal._database import DatabaseJournals
from agentloop.postgres import PostgresJournal, PostgresStore
from agentloop.testing import call, say

pytestmark = [pytest.mark.timeout(120)]
KEY = b"0123456789abcdef"


@pytest.fixture
def address(conninfo: str, server: Server) -> str:
    """The address of an empty schema, with a password."""
    schema = conninfo.rpartition("=")[2].strip("'")
    return f"postgresql://postgres:hunter2@127.0.0.1:{server.port}/postgres?options=-csearch_path%3D{schema}"


def trace(*arguments: str) -> Result:
    """Run the command."""
    shown = CliRunner().invoke(app, ["trace", *arguments, "--width", "100"], prog_name="agentloop")
    assert "hunter2" not in shown.output
    return shown


def store_run(address: str, copy: Path, run_id: str, key: bytes | None = None) -> None:
    """Run an agent with a journal in the database, and copy its records to a file."""

    @tool
    async def look(path: str) -> str:
        """Look at a file."""
        return f"{path} is old"

    async def run() -> None:
        agent = script_agent("keeper", call("look", {"path": "a.txt"}), say("Old."), tools=[look])
        async with PostgresStore(address) as store, PostgresJournal(store, run_id, key=key) as journal:
            await Runner.run(agent, "Look.", journal=journal)
            async with FileJournal(copy) as other:
                await other.append(await journal.read())

    anyio.run(run)


def count_tables(address: str) -> int:
    """Return the number of tables in the schema of *address*."""
    import psycopg

    with psycopg.connect(address) as connection:
        found = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()").fetchone()
    assert found is not None
    return int(found[0])


def test_run_in_the_database_is_shown_as_one_in_a_file(address: str, tmp_path: Path) -> None:
    """The records are the same, so the text is, and a page is written, too."""
    store_run(address, tmp_path / "copy", "run-1")
    store_run(address, tmp_path / "other", "run-2")
    shown = trace(address, "--run", "run-1")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout == trace(str(tmp_path / "copy")).stdout
    page = tmp_path / "run.html"
    assert trace(address, "--run", "run-2", "--html", str(page)).exit_code == 0
    assert "a.txt is old" in page.read_text()


def test_sealed_run_in_the_database_needs_its_key(address: str, tmp_path: Path) -> None:
    """Without it the error says so."""
    (tmp_path / "key").write_bytes(KEY)
    store_run(address, tmp_path / "copy", "run-1", KEY)
    assert trace(address, "--run", "run-1", "--key-file", str(tmp_path / "key")).exit_code == 0
    refused = trace(address, "--run", "run-1")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "sealed with a key" in refused.stderr


def test_database_is_only_read(address: str, tmp_path: Path) -> None:
    """One without tables would be changed by a store: here it is refused as it is."""
    refused = trace(address, "--run", "run-1")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "the database has no journals of agentloop" in refused.stderr
    assert count_tables(address) == 0
    store_run(address, tmp_path / "copy", "run-1")
    tables = count_tables(address)
    refused = trace(address, "--run", "run-9")
    assert (refused.exit_code, refused.stderr) == (2, "Error: the database holds no run 'run-9'\n")
    assert count_tables(address) == tables > 0


def test_role_that_may_only_read_is_enough(address: str, tmp_path: Path) -> None:
    """Neither a lease nor a table is written."""
    import psycopg

    store_run(address, tmp_path / "copy", "run-1")
    with psycopg.connect(address) as connection:
        connection.execute("CREATE ROLE reader LOGIN")
        schema = connection.execute("SELECT current_schema()").fetchone()
        assert schema is not None
        connection.execute(f"GRANT USAGE ON SCHEMA {schema[0]} TO reader")
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema[0]} TO reader")
    shown = trace(address.replace("postgres:hunter2@", "reader@"), "--run", "run-1")
    assert shown.exit_code == 0
    assert shown.stdout == trace(str(tmp_path / "copy")).stdout


WRONG: list[tuple[Callable[[str], str], list[str], int, str]] = [
    (lambda address: address, [], 2, "a database needs --run"),
    (lambda address: address, ["--run", "r", "--line", "1"], 2, "--line is for a folder"),
    (lambda address: address, ["--run", "r", "--follow"], 2, "the database has no journals of agentloop"),
    (lambda address: address.replace("/postgres?", "/absent?"), ["--run", "r"], 1, 'database "absent" does not exist'),
    (lambda address: "postgres://u:hunter2@[::1/x", ["--run", "r"], 2, "not a PostgreSQL address"),
    (lambda address: "postgres://u:hunter2@127.0.0.1:1/x", ["--run", "r"], 1, "refused"),
]


@pytest.mark.parametrize(("change", "options", "code", "said"), WRONG)
def test_wrong_use_of_a_database_is_refused(
    address: str, change: Callable[[str], str], options: list[str], code: int, said: str
) -> None:
    """The reason is on the error output; the password never is."""
    shown = trace(change(address), *options)
    assert (shown.exit_code, shown.stdout) == (code, "")
    assert said in shown.stderr


def test_trace_is_refused_a_change_of_the_database(address: str) -> None:
    """The connection itself is read-only, and the options of the address still count."""
    import psycopg

    from agentloop.journal._database import make_read_only

    with psycopg.connect(make_read_only(address)) as connection:
        assert connection.execute("SHOW transaction_read_only").fetchone() == ("on",)
        schema = connection.execute("SELECT current_schema()").fetchone()
        assert schema is not None
        assert schema[0].startswith("test")


async def test_a_run_of_the_database_is_followed(conninfo: str, address: str, anyio_backend: Any) -> None:
    """The page's timeline grows with the run; what becomes of the database is said, and nothing is changed there."""
    log = MemoryJournal()
    await Runner.run(script_agent("keeper", say("Old.")), "Look.", journal=log)
    lines = await log.read()
    async with PostgresStore(conninfo) as store, PostgresJournal(store, "run-1") as journal:
        await journal.append(lines[:2])
        with DatabaseJournals(address) as followed:
            read = _follow_lines(partial(followed.read, "run-1"), content=True)
            first = await anyio.to_thread.run_sync(followed.stamp, "run-1")
            timeline, moments = await anyio.to_thread.run_sync(read)
            assert (timeline.status, moments is None) == (None, False)
            assert await anyio.to_thread.run_sync(followed.stamp, "run-1") == first
            await journal.append(lines[2:])
            assert await anyio.to_thread.run_sync(followed.stamp, "run-1") != first
            assert (await anyio.to_thread.run_sync(read))[0].status == "completed"
            await store.connections.run(lambda db: db.execute("DROP TABLE agentloop_journal_lines"))
            assert "does not exist" in str(await anyio.to_thread.run_sync(followed.stamp, "run-1"))
            with pytest.raises(UserError, match="does not exist"):
                await anyio.to_thread.run_sync(read)
