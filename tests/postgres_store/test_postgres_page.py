"""The application of the page about PostgreSQL, run with its own queue, alone and by a fleet that is deployed."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from postgres_store import page_worker

from agentloop import RunState
from agentloop.postgres import PostgresJournal, PostgresStore
from agentloop.testing import Observation, check, replay

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "postgres.md"
RUNS, DEPLOYS = 40, 6
FAR = 150.0
"""Seconds in which all runs must have ended; they need a tenth of it."""


def write_application(folder: Path) -> str:
    """Write the page's application into *folder*, and return what the page says that it prints."""
    pytest.importorskip("procrastinate", reason="needs the queue of the page: nox -s tests-postgres")
    text = PAGE.read_text()
    application, _ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    (folder / "app.py").write_text(application)
    return str(shown)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.scenario("DU-08")
def test_application_of_the_page_prints_what_it_says(tmp_path: Path, conninfo: str) -> None:
    """A run that pauses, a verdict, and the job that continues it."""
    shown = write_application(tmp_path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "app.py"],
        cwd=tmp_path,
        env={**os.environ, "DATABASE": conninfo},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_recipe_of_the_page_under_deploys_loses_no_run(
    tmp_path: Path, conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are shut down under load, and one is killed: each run comes to its end, and no payment is made twice."""
    write_application(tmp_path)
    monkeypatch.setenv("DATABASE", conninfo)
    spec = importlib.util.spec_from_file_location("application_of_the_page", tmp_path / "app.py")
    assert spec is not None
    assert spec.loader is not None
    page: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    workers = []
    try:
        anyio.run(defer, page, 0, 0)
        workers = [start_worker(tmp_path) for _ in range(2)]
        for number in range(DEPLOYS):
            anyio.run(defer, page, RUNS * number // DEPLOYS, RUNS * (number + 1) // DEPLOYS)
            wait_for_effects(tmp_path, 20 * number + 8)
            old = workers[number % 2]
            old.send_signal(signal.SIGKILL if number == DEPLOYS // 2 else signal.SIGTERM)
            workers[number % 2] = start_worker(tmp_path)  # a rolling deploy: the new one comes before the old one goes
            old.wait(60)
        until = time.monotonic() + FAR
        while (left := anyio.run(list_unfinished, conninfo)) and time.monotonic() < until:
            assert [worker.poll() for worker in workers] == [None, None]
            time.sleep(0.5)
        assert left == [], "runs that nobody continues"
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    effects = Counter(line for path in tmp_path.glob("effects-*") for line in path.read_text().splitlines())
    assert {key: count for key, count in effects.items() if key.endswith("charge") and count > 1} == {}
    anyio.run(judge, conninfo)


def start_worker(folder: Path) -> subprocess.Popen[bytes]:
    """Start a worker."""
    with (folder / "workers.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(page_worker.__file__)), str(folder)],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )


def wait_for_effects(folder: Path, count: int) -> None:
    """Return when the workers have had so many effects in all: then they are under load."""
    until = time.monotonic() + FAR
    while sum(len(path.read_text().splitlines()) for path in folder.glob("effects-*")) < count:
        assert time.monotonic() < until, (folder / "workers.log").read_text()[-3000:]
        time.sleep(0.05)


async def defer(page: Any, first: int, last: int) -> None:
    """Put the jobs of the runs *first* to *last* into the queue, which is made before the first one."""
    async with page.app.open_async():
        if not last:
            await page.app.schema_manager.apply_schema_async()
        for number in range(first, last):
            await page.continue_run.defer_async(run_id=f"run-{number}", question="go")


async def load(store: PostgresStore, number: int) -> RunState | None:
    """Return the state of a run; None if it hasn't begun."""
    journal = PostgresJournal(store, f"run-{number}")
    return await RunState.from_journal(page_worker.agent, journal) if await journal.read() else None


async def list_unfinished(conninfo: str) -> list[int]:
    """Return the numbers of the runs that haven't completed."""
    async with PostgresStore(conninfo) as store:
        states = [await load(store, number) for number in range(RUNS)]
    return [number for number, state in enumerate(states) if state is None or state.status != "completed"]


async def judge(conninfo: str) -> None:
    """Check the log of each run, and that its replay comes to the same one."""
    cancelled = 0
    async with PostgresStore(conninfo) as store:
        states = [await load(store, number) for number in range(RUNS)]
    for state in states:
        assert state is not None
        check(Observation(records=tuple(state.records), agent=page_worker.agent))
        again = await anyio.to_thread.run_sync(replay, state, page_worker.agent)
        assert again.records == tuple(state.records)
        cancelled += any(type(record).__name__ == "CancelRequested" for record in state.records)
    assert cancelled, "no deploy met a run"
