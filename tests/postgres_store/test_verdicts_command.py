"""`agentloop pending`, `approve`, `reject` and `answer` of a run in a database, by its address."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result
from kit.agents import script_turns
from postgres_store.server import Server

from agentloop import Agent, Runner, ask_user, tool
from agentloop.cli.app import app
from agentloop.items import ToolOutput
from agentloop.journal import FileJournal
from agentloop.postgres import Lease, PostgresJournal, PostgresStore
from agentloop.testing import call, say

pytestmark = [pytest.mark.timeout(120)]


@pytest.fixture
def address(conninfo: str, server: Server) -> str:
    """The address of an empty schema, with a password."""
    schema = conninfo.rpartition("=")[2].strip("'")
    return f"postgresql://postgres:hunter2@127.0.0.1:{server.port}/postgres?options=-csearch_path%3D{schema}"


def agentloop(*arguments: str) -> Result:
    """Run a command."""
    shown = CliRunner().invoke(app, arguments, prog_name="agentloop")
    assert "hunter2" not in shown.output
    return shown


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def _agent() -> Agent[Any, Any]:
    asked = [
        call("pay", {"amount": 1}, call_id="p"),
        call("look", {"input": "x"}, call_id="o"),
        call("ask_user", {"question": "Where?"}, call_id="q"),
    ]
    pays = call("pay", {"amount": 2}, call_id="n")
    looker = Agent("looker", model=script_turns(pays, say("looked")), tools=[pay])
    return Agent(
        "clerk", model=script_turns(asked, say("done")), tools=[pay, looker.as_tool("look", "Look."), ask_user()]
    )


async def _store(address: str, run_id: str, key: bytes | None) -> None:
    async with PostgresStore(address) as store:
        await Runner.run(_agent(), "Pay.", journal=PostgresJournal(store, run_id, key=key))


async def _resume(address: str, run_id: str, key: bytes | None) -> list[str]:
    """Continue the run and return the outputs of its calls."""
    async with PostgresStore(address) as store:
        journal = PostgresJournal(store, run_id, key=key)
        done = await Runner.resume(_agent(), journal)
        return [str(item.output) for item in done.new_items if isinstance(item, ToolOutput)]


@pytest.mark.parametrize("sealed", [False, True])
def test_calls_of_a_run_in_a_database_are_decided(address: str, tmp_path: Path, *, sealed: bool) -> None:
    """Listed with their arguments and by names as those of a job; the next worker of the run finds the verdicts."""
    (tmp_path / "key").write_bytes(b"k" * 32)
    key = b"k" * 32 if sealed else None
    there = ["--run", "run-1", *(["--key-file", str(tmp_path / "key")] if sealed else [])]
    anyio.run(_store, address, "run-1", key)

    listed = agentloop("pending", address, *there)
    assert listed.stdout.splitlines() == [
        'p  clerk  pay {"amount": 1}',
        'o/n  looker  pay {"amount": 2}',
        'q  clerk  ask_user {"question": "Where?"}  (waits for its answer)',
    ]
    shown = map(json.loads, agentloop("pending", address, "--json", *there).stdout.splitlines())
    assert [(one["line"], one["call"]) for one in shown] == [(None, "p"), (None, "o/n"), (None, "q")]

    given = agentloop("approve", address, "p", "--arguments", '{"amount": 3}', "--by", "ann", *there)
    assert given.stdout == "p is approved.\n"
    assert given.stderr == "2 more wait. To go on: give your queue a job for the run\n"
    refused = agentloop("reject", address, "p", "--by", "bob", *there)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "run 'run-1': " in refused.stderr
    assert "it was approved by 'ann'; with --replace another verdict takes its place" in refused.stderr
    assert "(those that wait: o/n, q)" in refused.stderr
    assert agentloop("reject", address, "n", "--message", "Not today.", *there).stdout == "o/n is rejected.\n"
    given = agentloop("reject", address, "p", "--replace", "--message", "Too much.", *there)
    assert given.stderr == "1 more waits. To go on: give your queue a job for the run\n"
    given = agentloop("answer", address, "q", "Rome", "--by", "ann", *there)
    assert given.stderr == "Nothing else waits. To go on: give your queue a job for the run\n"
    assert "it was answered by 'ann'" in agentloop("answer", address, "q", "Paris", *there).stderr
    assert agentloop("pending", address, *there).stderr == "No call waits for approval or an answer.\n"
    assert anyio.run(_resume, address, "run-1", key) == ["Too much.", "looked", "Rome"]
    if sealed:
        unread = agentloop("approve", address, "p", "--run", "run-1")
        assert (unread.exit_code, unread.stdout) == (1, "")
        assert "JournalError" in unread.stderr


JOB = """
from agentloop import Agent, ask_user, tool
from agentloop.testing import ScriptedModel, call

@tool(needs_approval=True)
async def delete(path: str) -> str:
    "Delete a file."
    return "gone"

asked = [*[call("delete", {"path": "a"}, call_id=f"c{n}") for n in range(3)],
    call("ask_user", {"question": "Where?"}, call_id="q")]
agent = Agent("keeper", model=ScriptedModel([asked]), tools=[delete, ask_user()])
"""
COMMANDS = """
pending PLACE
approve PLACE c9
answer PLACE c9 x
approve PLACE q
answer PLACE c1 Rome
approve PLACE c0 --arguments {bad
approve PLACE c0 --arguments []
approve PLACE c0 --by ann
approve PLACE c0
reject PLACE c0 --by bob
reject PLACE c0 --by bob --message 'Not today.' --replace
approve PLACE c0
reject PLACE c1 --always --by eve
approve PLACE c2 --by ann
answer PLACE q --error 'Nobody is there.' --by ann
answer PLACE q Rome
pending PLACE --json
"""


def test_a_run_in_a_database_is_decided_in_the_words_of_a_job(address: str, tmp_path: Path) -> None:
    """The same run in both places takes the same verdicts, and refuses others with the same words and exit codes."""
    (tmp_path / "agents.py").write_text(JOB)
    job = str(tmp_path / "job")
    assert agentloop("run", f"{tmp_path}/agents.py:agent", "Go.", "--journal", job, "--approve", "never").exit_code == 3

    async def copy() -> list[bytes]:
        async with PostgresStore(address) as store:
            records = await FileJournal(tmp_path / "job" / "run.journal").read()
            await PostgresJournal(store, "run-1").append(records)
        return records

    anyio.run(copy)

    def show(command: str, place: list[str], names: str) -> tuple[int, str, str]:
        words = [part for word in shlex.split(command) for part in (place if word == "PLACE" else [word])]
        shown = agentloop(*words)
        follows = re.sub("To go on: .*", "To go on", shown.stderr)
        return shown.exit_code, shown.stdout, follows.replace(names, "PLACE:")

    for command in COMMANDS.strip().splitlines():
        of_job = show(command, [job], f"{job}:")
        assert show(command, [address, "--run", "run-1"], "run 'run-1':") == of_job, command
        assert of_job[0] in (0, 2)


def _say_that_is_cancelled(address: str) -> None:
    async def cancel() -> None:
        async with PostgresStore(address) as store:
            await store.cancel("run-1", by="eve")

    anyio.run(cancel)


def _hold(address: str) -> None:
    async def hold() -> None:
        async with PostgresStore(address) as store:
            await Lease(store.connections, "run-1", "held", 3600.0).take()

    anyio.run(hold)


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (_say_that_is_cancelled, "RunCancelled: run 'run-1' was cancelled by eve"),
        (_hold, "LeaseHeld: PostgresJournal('run-1'): a worker holds the run"),
    ],
)
def test_what_no_one_may_decide_now_is_refused(address: str, prepare: Callable[[str], None], said: str) -> None:
    """With the reason, and nothing is written."""
    anyio.run(_store, address, "run-1", None)
    prepare(address)
    for verdict in (["approve", address, "p"], ["reject", address, "p"], ["answer", address, "q", "Rome"]):
        refused = agentloop(*verdict, "--run", "run-1")
        assert (refused.exit_code, refused.stdout, refused.stderr) == (1, "", f"Error: {said}\n")
    assert len(agentloop("pending", address, "--run", "run-1").stdout.splitlines()) == 3


def test_a_run_that_is_not_there_is_named(address: str) -> None:
    """And an address that is none isn't quoted, nor is that of a server that refuses."""
    anyio.run(_store, address, "run-1", None)
    refusing = address.replace("/postgres?", "/absent?")
    for command in (["pending"], ["approve", "p"], ["reject", "p"], ["answer", "q", "Rome"]):
        first, *rest = command
        absent = agentloop(first, address, *rest, "--run", "run-2")
        assert (absent.exit_code, absent.stdout) == (2, "")
        assert absent.stderr == "Error: the database holds no run 'run-2'\n"
        wrong = agentloop(first, "postgresql://postgres:hunter2@[::1/x", *rest, "--run", "run-1")
        assert (wrong.exit_code, wrong.stderr) == (2, "Error: not a PostgreSQL address\n")
        refused = agentloop(first, refusing, *rest, "--run", "run-1")
        assert refused.exit_code == 1
        assert '"absent" does not exist' in refused.stderr


def test_who_decides_on_a_submitted_run_is_told_who_continues_it(address: str) -> None:
    """A worker of `serve` takes it by itself."""

    async def store() -> None:
        await _store(address, "run-1", None)
        async with PostgresStore(address) as stored:
            assert await stored.submit("run-1", "clerk", "Pay.")

    anyio.run(store)
    given = agentloop("approve", address, "p", "--run", "run-1")
    assert given.stderr == "2 more wait. To go on: a worker that serves its agent takes the run once nothing waits\n"
