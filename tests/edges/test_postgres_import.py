"""Without the extra `postgres` nothing of its driver is needed, or imported, before a connection opens."""

import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from agentloop import UserError
from agentloop.cli.app import app
from agentloop.postgres import PostgresJournal, PostgresSession, PostgresStore


def test_package_imports_nothing_of_the_driver() -> None:
    """A fresh interpreter makes a store without it; and the library itself doesn't import the package."""
    program = (
        "import sys, agentloop; print('agentloop.postgres' in sys.modules); import agentloop.postgres as p; "
        "p.PostgresSession(p.PostgresStore('x')); print('psycopg' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.real_clock
async def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, anyio_backend: Any) -> None:
    """With the sentence that says what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    async with PostgresStore("x") as store:
        for use in (PostgresJournal(store, "run").read, PostgresSession(store).get_items):
            with pytest.raises(UserError, match=r"PostgreSQL needs the extra `postgres`: pip install 'agentloop-anyio"):
                await use()


def test_trace_of_a_database_names_the_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command itself needs no driver; the address, which may hold a password, isn't quoted."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    shown = CliRunner().invoke(app, ["trace", "postgresql://ann:hunter2@db/runs", "--run", "run-1"])
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "PostgreSQL needs the extra `postgres`" in shown.stderr
    assert "hunter2" not in shown.stderr
