"""`agentloop runs` of a database: what it lists, and what it does with runs."""

import json
import re
from functools import partial

import anyio
import pytest
from click.testing import CliRunner, Result
from kit.agents import script_agent
from postgres_store.server import Server

from agentloop import Runner, tool
from agentloop.cli.app import app
from agentloop.postgres import Lease, PostgresJournal, PostgresStore
from agentloop.postgres import _queue as queue
from agentloop.testing import call

pytestmark = [pytest.mark.timeout(120)]


@pytest.fixture
def address(conninfo: str, server: Server) -> str:
    """The address of an empty schema, with a password."""
    schema = conninfo.rpartition("=")[2].strip("'")
    return f"postgresql://postgres:hunter2@127.0.0.1:{server.port}/postgres?options=-csearch_path%3D{schema}"


def runs(*arguments: str) -> Result:
    """Run the command."""
    shown = CliRunner().invoke(app, ["runs", *arguments], prog_name="agentloop")
    assert "hunter2" not in shown.output
    return shown


def store_runs(address: str) -> None:
    """Store a run that waits, and one that a worker of the last hour has."""

    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    async def run() -> None:
        async with PostgresStore(address, worker="w1") as store:
            agent = script_agent("clerk", call("pay", {}, call_id="p"), tools=[pay])
            await Runner.run(agent, "Pay.", journal=PostgresJournal(store, "run-1"))
            lease = Lease(store.connections, "run-2", "held", 3600.0, worker="w1")
            await lease.take()
            started = b'{"kind":"run_started","path":[],"agent":"clerk","at":1.0}'
            await PostgresJournal(store, lease).append([started])

    anyio.run(run)


def test_runs_of_a_database_are_looked_after(address: str) -> None:
    """Listed, cancelled, tried again and deleted."""
    assert runs(address, "migrate").stdout == "The tables are up to date. Rows of runs that were written: 0.\n"
    assert runs(address).stderr == "There is no such run.\n"
    store_runs(address)
    first, second = runs(address).stdout.splitlines()
    assert first.endswith("clerk  pay (p) waits for its approval")
    assert second.endswith("clerk  held by w1")
    [run] = map(json.loads, runs(address, "--json", "--status", "interrupted", "--agent", "clerk").stdout.splitlines())
    assert run["waiting"] == [{"call_id": "p", "tool": "pay", "agent": "clerk", "asks": "approval"}]

    shown = runs(address, "cancel", "run-1", "run-2", "--by", "ann")
    assert shown.stdout.splitlines() == [
        "run-1 is cancelled.",
        "run-2 will be cancelled by its worker, at the next renewal of its lease.",
    ]
    assert runs(address, "list", "run-1").stdout.endswith("cancelled by ann\n")
    assert runs(address, "retry", "run-1").stdout == "run-1 may be continued: give your queue a job for it.\n"
    health = runs(address, "health").stdout
    assert "interrupted: 1, the oldest for" in health
    assert "waiting for a person: 1" in health
    assert json.loads(runs(address, "health", "--json").stdout)["runs"] == {"interrupted": 1, "running": 1}

    page = runs(address, "--limit", "1")
    assert page.stdout.startswith("run-1  interrupted")
    [cursor] = re.findall(r"^For the next ones: --after (.*)$", page.stderr, re.MULTILINE)
    assert runs(address, "--after", cursor).stdout.startswith("run-2  running")
    for wrong in ([".", "--after", cursor], [address, "list", "run-1", "--after", cursor]):
        assert "--after is for a database, without RUN." in runs(*wrong).stderr

    assert runs(address, "list", "run-2", "--limit", "1").stdout.startswith("run-2  running")
    absent = runs(address, "list", "run-2", "run-3")
    assert (absent.exit_code, absent.stderr) == (1, "Error: StateError: there is no run 'run-3'\n")

    refused = runs(address, "delete", "run-2")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "LeaseHeld: run 'run-2': a worker holds it" in refused.stderr
    assert runs(address, "delete", "--older-than", "0s").stdout == "Runs deleted: 0.\n"
    assert runs(address, "delete", "--older-than", "0s", "--status", "interrupted").stdout == "Runs deleted: 1.\n"
    refused = runs(address, "delete", "run-1")
    assert (refused.exit_code, refused.stderr) == (1, "Error: StateError: the database holds no run 'run-1'\n")


def test_what_waits_for_a_worker_and_what_is_dead_is_listed(address: str) -> None:
    """With its owner, its attempts and its trouble; a retry makes it due."""

    async def submit(*, dies: bool) -> None:
        async with PostgresStore(address) as store:
            if not dies:
                await store.submit("run-1", "clerk", "Pay.", owner="acme")
                return
            spent = "UPDATE agentloop_leases SET attempts = 3, trouble = 'ConnectionError'"
            await store.connections.run(lambda db: db.execute(spent))
            due = {**queue.due_of(["clerk"], []), "most": 3}
            assert await store.connections.run(lambda db: queue.bury(db, due)) == ["run-1"]

    anyio.run(partial(submit, dies=False))
    assert re.fullmatch(r"run-1  queued  \d+ s  clerk  of acme\n", runs(address, "--status", "queued").stdout)
    assert runs(address, "cancel", "run-1").stdout == "run-1 is cancelled.\n"
    again = "run-1 is due: a worker that serves its agent takes it.\n"
    assert runs(address, "retry", "run-1").stdout == again
    anyio.run(partial(submit, dies=True))
    shown = runs(address, "--status", "dead").stdout
    assert re.fullmatch(r"run-1  dead  \d+ s  clerk  of acme  attempts: 3  ConnectionError\n", shown)
    assert "dead: 1, the oldest for" in runs(address, "health").stdout
    assert runs(address, "retry", "run-1").stdout == again
    [run] = map(json.loads, runs(address, "--json").stdout.splitlines())
    assert (run["status"], run["owner"], run["priority"]) == ("queued", "acme", 0)
    assert "due_at" in run


OPTIONS = {
    "--status": ["completed"],
    "--agent": ["clerk"],
    "--older-than": ["0s"],
    "--limit": ["1"],
    "--after": ["1.0:run-1"],
    "--json": [],
    "--by": ["ann"],
    "--key-file": ["-"],
}


@pytest.mark.parametrize(
    ("action", "taken"),
    [
        (["list"], {"--status", "--agent", "--older-than", "--limit", "--after", "--json", "--key-file"}),
        (["health"], {"--json"}),
        (["cancel", "run-1"], {"--by"}),
        (["retry", "run-1"], {"--key-file"}),
        (["delete", "run-1"], set()),
        (["delete", "--older-than", "0s"], {"--older-than", "--status"}),
        (["migrate"], set()),
    ],
)
def test_an_option_that_an_action_takes_not_is_wrong_use(action: list[str], taken: set[str]) -> None:
    """It would be left unheeded, and a deletion go further than it was meant to. No server is asked."""
    for option in OPTIONS.keys() - taken:
        refused = runs("postgresql://u@[::1/x", *action, option, *OPTIONS[option])
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert f"takes no {option}." in refused.stderr
    if action[0] in ("health", "migrate"):
        assert f"{action[0]} takes no RUN." in runs("postgresql://u@[::1/x", *action, "run-1").stderr


def test_a_database_that_refuses_is_said(address: str) -> None:
    """Without its password."""
    away = address.replace("/postgres?", "/absent?")
    for action in ("list", "health"):
        refused = runs(away, action)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert 'database "absent" does not exist' in refused.stderr
    refused = runs("postgresql://u:hunter2@[::1/x")
    assert refused.exit_code == 2
    assert "the PostgresStore's address has a mistake" in refused.stderr
