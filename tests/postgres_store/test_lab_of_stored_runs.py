"""The lab on runs in the database: comparisons, forks, moments and differences; nothing there is changed."""

import json
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner, Result
from postgres_store.server import Server

from agentloop import Agent, Runner, UserError, lab, tool
from agentloop.cli.app import app
from agentloop.postgres import PostgresJournal, PostgresStore
from agentloop.testing import ScriptedModel, call, say

pytestmark = [pytest.mark.timeout(120)]
AGENT = """
from agentloop import Agent
from agentloop.testing import ScriptedModel, call, say

agent = Agent("keeper", model=ScriptedModel([say("new")] * 9))
"""


@pytest.fixture
def address(conninfo: str, server: Server) -> str:
    """The address of a schema with two runs, with a password."""
    schema = conninfo.rpartition("=")[2].strip("'")
    made = f"postgresql://postgres:hunter2@127.0.0.1:{server.port}/postgres?options=-csearch_path%3D{schema}"

    async def run() -> None:
        async with PostgresStore(made) as store:
            for number, text in ((1, "one"), (2, "two")):
                async with PostgresJournal(store, f"run-{number}") as journal:
                    agent = Agent("keeper", model=ScriptedModel([say(text)]))
                    await Runner.run(agent, f"Number {number}.", journal=journal)

    anyio.run(run)
    return made


def command(*arguments: str) -> Result:
    """Run a command."""
    shown = CliRunner().invoke(app, list(arguments), prog_name="agentloop")
    assert "hunter2" not in shown.output
    return shown


def test_runs_of_a_database_are_compared(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, or those of a query; one that can't be read is an error that doesn't show the address."""
    monkeypatch.chdir(tmp_path)
    Path("keeper.py").write_text(AGENT)
    done = command("lab", address, "--agent", "keeper.py:agent", "--report", "lab.json")
    assert done.exit_code == 0, done.output
    rows = json.loads(Path("lab.json").read_text())["rows"]
    assert [(row["name"], row["verdict"]) for row in rows] == [("run-1", "same"), ("run-2", "same")]
    some = command("lab", address, "--agent", "keeper.py:agent", "--report", "one.json", "--where", "name=run-2")
    assert some.exit_code == 0, some.output
    assert [row["name"] for row in json.loads(Path("one.json").read_text())["rows"]] == ["run-2"]
    wrong = command("lab", address.replace("/postgres?", "/absent?"), "--agent", "keeper.py:agent")
    assert wrong.exit_code != 0
    assert "absent" in wrong.output


def test_a_run_of_a_database_is_shown_compared_and_forked(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its id, as in `trace`; a fork is written to a file."""
    monkeypatch.chdir(tmp_path)
    Path("keeper.py").write_text(AGENT)
    shown = command("show", address, "--run", "run-1")
    assert shown.exit_code == 0, shown.output
    assert "model: one" in shown.output
    assert command("show", address).exit_code == 2
    diff = command("diff", address, address, "--run", "run-1", "--run", "run-2")
    assert diff.exit_code == 1, diff.output
    assert "- turn 1, says: one" in diff.output
    assert command("diff", address, address, "--run", "run-1").output == "the runs are the same\n"
    fork = ("fork", address, "--agent", "keeper.py:agent", "--at", "1", "--branch", "seed=1")
    several = command(*fork)
    assert several.exit_code == 2
    assert "expected one run, got 2" in several.output
    made = command(*fork, "--run", "run-2", "--out", "out")
    assert made.exit_code == 0, made.output
    assert "new" in made.output
    assert command("show", "out").exit_code == 0


def test_an_address_is_taken_in_python(address: str) -> None:
    """And an error names no password."""

    async def work() -> None:
        report = await lab.compare(address, Agent("keeper", model=ScriptedModel([])))
        assert [row.verdict for row in report.rows] == ["same", "same"]
        with pytest.raises(UserError) as caught:
            await lab.compare("postgresql://[", Agent("keeper"))
        assert "[" not in str(caught.value)

    anyio.run(work)


@pytest.mark.scenario("LB-19")
def test_unfinished_runs_of_a_database_are_checked(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are over have no row; the one that waits is refused by an agent without its tool."""
    monkeypatch.chdir(tmp_path)
    Path("keeper.py").write_text(AGENT)

    async def wait() -> None:
        model = ScriptedModel([call("pay", call_id="c1")])
        async with PostgresStore(address) as store, PostgresJournal(store, "run-3") as journal:
            await Runner.run(Agent("keeper", model=model, tools=[pay]), "Pay.", journal=journal)

    anyio.run(wait)
    done = command("upgrade-check", address, "--agent", "keeper.py:agent", "--json")
    assert done.exit_code == 1, done.output
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["name"], row["verdict"]) == ("run-3", "refused")
    one = command("upgrade-check", address, "--agent", "keeper.py:agent", "--run", "run-1")
    assert (one.exit_code, one.stdout) == (0, "Unfinished runs, resumed with agent 'keeper': none\n")


@tool(needs_approval=True)
def pay() -> str:
    """Pay."""
    raise NotImplementedError
