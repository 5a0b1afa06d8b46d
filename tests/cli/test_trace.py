"""`agentloop trace`: a timeline from a journal alone, wherever the journal is and however much of it is whole."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import Result
from kit.secret_cases import ReversingCodec

from agentloop import Agent, Runner, tool
from agentloop.cli.journal_folder import Folder, Order
from agentloop.exceptions import JournalError
from agentloop.journal import FileJournal, SQLiteJournal, read_journal
from agentloop.journal._envelope import START, Seal, write_batch
from agentloop.journal._reading import GrowingJournal, read_lines_of
from agentloop.testing import ScriptedModel, call, say

Invoke = Callable[..., Result]


@tool(secret=("password",))
def login(user: str, password: str) -> str:
    """Log in."""
    return f"{user}\x1b[2J is in"


def make_agent() -> Agent[Any, Any]:
    """Return an agent whose model writes an escape sequence, and whose tool has a secret argument."""
    step = [call("login", {"user": "\x1b]0;evil\x07", "password": "hunter2"})]
    return Agent("\x1b[31mclerk", model=ScriptedModel([step, say("\x1b[2Jdone")]), tools=[login])


async def _write(journal: Any) -> None:
    async with journal:
        await Runner.run(make_agent(), "Log in.", journal=journal)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """The file of a journal of a whole run."""
    path = tmp_path / "run.journal"
    anyio.run(_write, FileJournal(path))
    return path


def test_a_line_for_each_row_and_nothing_of_a_model_controls_the_terminal(invoke: Invoke, journal: Path) -> None:
    """Names are written out where they could be orders; the agent isn't imported."""
    shown = invoke("trace", str(journal), "--width", "120")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "\x1b" not in shown.stdout
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("Run ")
    assert "completed" in lines[0]
    assert any("✓ login" in line and "succeeded" in line for line in lines)
    assert "\\x1b[31mclerk" in shown.stdout
    assert "█ running" in shown.stdout


def test_a_narrow_terminal_gets_no_bars(invoke: Invoke, journal: Path) -> None:
    """Every line keeps the width."""
    shown = invoke("trace", str(journal), "--width", "40")
    assert max(map(len, shown.stdout.splitlines())) <= 40
    assert "█" not in shown.stdout


@pytest.mark.scenario("VI-01")
def test_a_journal_torn_at_any_byte_is_shown_as_far_as_it_is_whole(invoke: Invoke, journal: Path) -> None:
    """Each beginning of the file has a timeline; one without a whole line says that no run has begun."""
    data = journal.read_bytes()
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10]
    counts = []
    for size in sorted({*range(0, len(data), 37), *ends, *(end - 1 for end in ends), len(data)}):
        journal.write_bytes(data[:size])
        shown = invoke("trace", str(journal))
        assert (shown.exit_code, shown.stderr) == (0, ""), size
        counts.append(len(shown.stdout.splitlines()))
    assert counts == sorted(counts)
    journal.write_bytes(b"")
    assert invoke("trace", str(journal)).stdout == "No run has begun in this journal.\n"


@pytest.mark.scenario("VI-01")
def test_a_damaged_middle_is_an_error(invoke: Invoke, journal: Path) -> None:
    """It names the line; so does the function."""
    journal.write_bytes(journal.read_bytes().replace(b"Log in.", b"Log on.", 1))
    shown = invoke("trace", str(journal))
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "JournalError" in shown.stderr
    assert "line 2" in shown.stderr
    with pytest.raises(JournalError, match="line 2"):
        read_journal(journal)


@pytest.mark.scenario("VI-01")
def test_a_journal_of_rows_is_shown(invoke: Invoke, tmp_path: Path) -> None:
    """The only run of a SQLite file needs no name; of several, the error lists them."""
    path = tmp_path / "runs.db"
    anyio.run(_write, SQLiteJournal(path, "one"))
    assert invoke("trace", str(path)).stdout.startswith("Run ")
    assert list(read_journal(path)) == list(read_journal(path, run_id="one"))
    anyio.run(_write, SQLiteJournal(path, "two"))
    assert invoke("trace", str(path), "--run", "two").exit_code == 0
    for options, said in (((), "choose one by --run: one, two"), (("--run", "three"), "no run 'three': one, two")):
        shown = invoke("trace", str(path), *options)
        assert (shown.exit_code, shown.stdout) == (2, "")
        assert said in shown.stderr
    with pytest.raises(JournalError, match="holds 2 runs"):
        read_journal(path)
    with pytest.raises(JournalError, match="no run 'three'"):
        read_journal(path, run_id="three")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM agentloop_journal_lines WHERE n = 3")
    assert "line 4 is damaged or missing" in invoke("trace", str(path), "--run", "one").stderr
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM agentloop_journal_lines")
    assert invoke("trace", str(path)).stdout == "No run has begun in this journal.\n"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DROP TABLE agentloop_journal_lines")
    connection.close()
    assert invoke("trace", str(path)).exit_code == 1


def test_a_folder_of_the_command_line_is_shown(invoke: Invoke, tmp_path: Path) -> None:
    """Of many requests a line is chosen."""
    folder = Folder.at(str(tmp_path / "kept"))
    folder.make()
    folder.begin(Order(target="a:b", folder="/", request=None))
    assert "there is no journal" in invoke("trace", str(folder.path)).stderr
    for line in (1, 2):
        anyio.run(_write, FileJournal(folder.journal(line)))
    assert "choose one by --line: 1, 2" in invoke("trace", str(folder.path)).stderr
    assert invoke("trace", str(folder.path), "--line", "2").exit_code == 0
    assert "no journal of line 3" in invoke("trace", str(folder.path), "--line", "3").stderr
    assert "--run is for a SQLite file" in invoke("trace", str(folder.path), "--run", "x").stderr
    folder.journal(2).unlink()
    assert invoke("trace", str(folder.path)).exit_code == 0


def test_a_wrong_path_or_option_is_refused(invoke: Invoke, journal: Path, tmp_path: Path) -> None:
    """The exit code is 2 and the reason is on the error output."""
    for given, said in [
        ((str(tmp_path / "absent"),), "there is no"),
        ((str(journal), "--line", "1"), "is no folder"),
        ((str(journal), "--run", "1"), "is no SQLite file"),
    ]:
        shown = invoke("trace", *given)
        assert (shown.exit_code, shown.stdout) == (2, "")
        assert said in shown.stderr


def test_a_page_is_written(invoke: Invoke, journal: Path, tmp_path: Path) -> None:
    """Nothing is printed; a file that can't be written is an error."""
    page = tmp_path / "run.html"
    written = invoke("trace", str(journal), "--html", str(page))
    assert (written.exit_code, written.output) == (0, "")
    assert "login" in page.read_text(encoding="utf-8")
    assert "hunter2" not in page.read_text(encoding="utf-8")
    refused = invoke("trace", str(journal), "--html", str(tmp_path / "absent" / "run.html"))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "No such file" in refused.stderr


@tool(secret=("sin",), secret_output=True)
def confess(sin: str) -> str:
    """Say it."""
    return f"{sin} is forgiven"


def make_secretive() -> Agent[Any, Any]:
    """Return an agent with a tool whose arguments and output are secret, and one that is run as such a tool."""
    inner = Agent("inner", model=ScriptedModel([say("Fine.")]))
    asking = inner.as_tool("ask", "Ask.", secret=("input",), secret_output=True)
    steps = [[call("confess", {"sin": "canary-pride"}), call("ask", {"input": "canary-question"})], say("Done.")]
    return Agent("priest", model=ScriptedModel(steps), tools=[confess, asking])


@pytest.mark.scenario("VI-01", "VI-05")
@pytest.mark.parametrize("sealed", [True, False])
def test_content_that_is_sealed_is_shown_as_sealed(invoke: Invoke, tmp_path: Path, sealed: bool) -> None:
    """Without a codec a journal has digests, which are secret; no part of either is on the page."""
    path, page = tmp_path / "journal", tmp_path / "page.html"

    async def write() -> None:
        async with FileJournal(path, codec=ReversingCodec() if sealed else None) as journal:
            await Runner.run(make_secretive(), "Confess.", journal=journal)

    anyio.run(write)
    assert invoke("trace", str(path), "--html", str(page)).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "canary" not in text
    assert "canary"[::-1] not in text
    assert ("[sealed]" in text) == sealed
    assert ("[secret]" in text) != sealed
    assert "$digest" not in text
    assert "$sealed" not in text


def test_a_journal_that_was_sealed_for_no_run_is_shown_on_demand(invoke: Invoke, tmp_path: Path) -> None:
    """Of an older version; and one that was renamed with the run's own name."""
    path, key, moved = tmp_path / "a.journal", tmp_path / "key", tmp_path / "b.journal"
    key.write_bytes(b"0123456789abcdef")
    anyio.run(_write, FileJournal(path, key=key.read_bytes()))
    path.rename(moved)
    options = (str(moved), "--key-file", str(key))
    assert "another run than 'b'" in invoke("trace", *options).stderr
    assert invoke("trace", *options, "--run", "a").exit_code == 0
    records = anyio.run(FileJournal(moved, key=key.read_bytes(), run_id="a").read)
    lines, _ = write_batch(records, START, kept=0, now=1.0, seal=Seal(key.read_bytes()))
    moved.write_bytes(b"".join(lines))
    assert "older_seals=True" in invoke("trace", *options).stderr
    assert invoke("trace", *options, "--older-seals").exit_code == 0


def test_a_journal_with_a_key_is_shown_to_those_who_have_it(invoke: Invoke, tmp_path: Path) -> None:
    """Without it, or with another one, the error says so."""
    path, key, other = tmp_path / "journal", tmp_path / "key", tmp_path / "other"
    key.write_bytes(b"0123456789abcdef")
    other.write_bytes(b"another one")
    anyio.run(_write, FileJournal(path, key=key.read_bytes()))
    assert invoke("trace", str(path), "--key-file", str(key)).exit_code == 0
    for options in ((), ("--key-file", str(other))):
        refused = invoke("trace", str(path), *options)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "sealed with a key" in refused.stderr


def test_a_growing_journal_is_read_as_far_as_it_is_new(tmp_path: Path) -> None:
    """A journal of an older schema, and one that is another than before, are read whole again."""
    path = tmp_path / "journal"
    reader = GrowingJournal(partial(read_lines_of, str(path), None, None))
    assert reader.read_new() == (True, ())
    anyio.run(_write, FileJournal(path))
    whole = tuple(read_journal(path))
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:6]))
    is_another, first = reader.read_new()
    assert is_another
    path.write_bytes(data)
    assert reader.read_new() == (False, whole[len(first) :])
    assert reader.read_new() == (False, ())
    path.write_bytes(data.replace(b"Log in.", b"Log on.", 1))
    with pytest.raises(JournalError):
        reader.read_new()
    anyio.run(_write, FileJournal(tmp_path / "second"))
    path.write_bytes((tmp_path / "second").read_bytes())
    assert reader.read_new() == (True, tuple(read_journal(tmp_path / "second")))
    folder = GrowingJournal(partial(read_lines_of, str(tmp_path), None, None))
    with pytest.raises(JournalError, match="directory"):
        folder.read_new()


@pytest.mark.scenario("VI-05")
def test_secrets_are_in_no_line(invoke: Invoke, journal: Path) -> None:
    """With or without content."""
    for options in ((), ("--no-content",)):
        assert "hunter2" not in invoke("trace", str(journal), "--width", "400", *options).output


def test_a_folder_with_one_journal_is_shown_without_a_job(invoke: Invoke, tmp_path: Path) -> None:
    """Whatever its ending: of a file, or of SQLite; `show` and `diff` take it, too."""

    async def write() -> None:
        agent = Agent("a", model=ScriptedModel([say("one"), say("one")]))
        (tmp_path / "file").mkdir()
        (tmp_path / "rows").mkdir()
        async with FileJournal(tmp_path / "file" / "run-000001.jsonl") as journal:
            await Runner.run(agent, "hi", journal=journal)
        async with SQLiteJournal(tmp_path / "rows" / "runs.sqlite", "run-1") as rows:
            await Runner.run(agent, "hi", journal=rows)

    anyio.run(write)
    places = [str(tmp_path / name) for name in ("file", "rows")]
    for place in places:
        assert "one" in invoke("show", place).output
        assert invoke("trace", place).exit_code == 0
    assert invoke("diff", *places).output == "the runs are the same\n"


def test_runs_of_one_file_are_chosen_by_their_ids(invoke: Invoke, tmp_path: Path) -> None:
    """`diff` takes one id for each place, or one for both; `fork` one."""
    path = tmp_path / "runs.sqlite"

    async def write() -> None:
        for run_id in ("one", "two"):
            async with SQLiteJournal(path, run_id) as journal:
                await Runner.run(Agent("a", model=ScriptedModel([say(run_id)])), "hi", journal=journal)

    anyio.run(write)
    place = str(path)
    assert "- turn 1, says: one" in invoke("diff", place, place, "--run", "one", "--run", "two").output
    assert invoke("diff", place, place, "--run", "two").exit_code == 0
    assert invoke("diff", place, place, *("--run", "x") * 3).exit_code == 2
    source = "from agentloop import Agent\nfrom agentloop.testing import ScriptedModel\n"
    (tmp_path / "a.py").write_text(f"{source}agent = Agent('a', model=ScriptedModel([]))\n")
    fork = ("fork", place, "--agent", f"{tmp_path}/a.py:agent", "--at", "1")
    assert "expected one run, got 2" in invoke(*fork).output
    assert invoke(*fork, "--run", "two").exit_code == 0
    assert "holds no run 'x'" in invoke(*fork, "--run", "x").output
