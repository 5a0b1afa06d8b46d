"""A pytest plugin that writes which scenarios of the specification passed, and on which backend.

`@pytest.mark.scenario("PL-01", …)` names what a test shows. At the session's end `build/scenarios.json` under the root
folder holds `{"PL-01": {"passed": ["asyncio", "trio"], "failed": []}, …}`. The backend is read off the test's
`anyio_backend` parameter; a test without one shows its scenario for both. An id has failed on a backend if any of its
tests failed there; a skipped or expected failure says nothing. What a session didn't see stays as the file has it, so
a partial run adds to what is known. The file is locked while it changes: two sessions that end together both add.
"""

import fcntl
import json
from pathlib import Path
from typing import Any

import pytest

REPORT = Path("build", "scenarios.json")
BOTH = ("asyncio", "trio")


def backends_of(item: pytest.Item) -> tuple[str, ...]:
    """Return the event loops a test speaks for; variants such as `trio-virtual` count as their loop."""
    callspec = getattr(item, "callspec", None)
    backend = callspec.params.get("anyio_backend") if callspec is not None else None
    if backend is None:
        return BOTH
    name = backend if isinstance(backend, str) else backend[0]
    return (name.partition("-")[0],)


def scenarios_of(item: pytest.Item) -> set[str]:
    """Return the ids a test is marked with, on itself, its class or its module."""
    return {scenario for mark in item.iter_markers("scenario") for scenario in mark.args}


def merged(known: dict[str, dict[str, list[str]]], seen: dict[tuple[str, str], bool]) -> dict[str, Any]:
    """Return *known* with the verdicts of *seen* (by id and backend) in place of its own."""
    rows = {
        scenario: {name: set(row.get(name, ())) for name in ("passed", "failed")} for scenario, row in known.items()
    }
    for (scenario, backend), good in seen.items():
        row = rows.setdefault(scenario, {"passed": set(), "failed": set()})
        row["passed" if good else "failed"].add(backend)
        row["failed" if good else "passed"].discard(backend)
    return {
        scenario: {name: sorted(row[name]) for name in ("passed", "failed")} for scenario, row in sorted(rows.items())
    }


class ScenarioReport:
    """Collects verdicts over one session and writes them at its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: dict[tuple[str, str], bool] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report: pytest.TestReport = yield
        # A pass is known when the body has run; a failure counts in any phase, set-up and tear-down included.
        if report.failed or (report.when == "call" and report.passed):
            for scenario in scenarios_of(item):
                for backend in backends_of(item):
                    self.seen[scenario, backend] = self.seen.get((scenario, backend), True) and not report.failed
        return report

    def pytest_sessionfinish(self) -> None:
        if not self.seen:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            rows = merged(json.loads(file.read() or "{}"), self.seen)
            file.truncate(0)
            file.write(json.dumps(rows, indent=1) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "scenario(*ids): the behaviours of the specification this test shows")
    config.pluginmanager.register(ScenarioReport(config.rootpath / REPORT), "scenario-report")
