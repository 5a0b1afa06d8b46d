"""The benchmarks start, and what they write has the shape their readers rely on; figures are nobody's business here."""

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
FIELDS = {
    "workload": str,
    "name": str,
    "backend": str,
    "value": float,
    "unit": str,
    "must": float | int | None,
    "goal": float | int | None,
    "met": bool | None,
    "goal_met": bool | None,
    "ours": float,
    "bare": float,
    "note": str,
    "quick": bool,
    "python": str,
    "anyio": str,
    "trio": str,
}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmarks' command, found behind everything else so that an installed package stays the one measured."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    return import_module("benchmarks.__main__")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.real_clock
def test_a_quick_look_writes_a_line_for_each_figure_and_backend(
    command: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """W1 gives its ratio with targets and the one without, on both backends, as JSON lines and as a table."""
    file = tmp_path / "figures.jsonl"

    command.main(["W1", "--quick", "--json", str(file)])

    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    plain, usual = "W1 single text turn", "W1 single text turn, default cap and one hook"
    assert [(row["backend"], row["name"]) for row in rows] == [
        (backend, name) for backend in ("asyncio", "trio") for name in (plain, usual)
    ]
    for row in rows:
        assert row.keys() == FIELDS.keys()
        assert all(isinstance(row[field], kind) for field, kind in FIELDS.items()), row
        assert row["workload"] == "W1"
        assert row["quick"] is True
        assert min(row["value"], row["ours"], row["bare"]) > 0
        assert (row["met"] is None) == (row["must"] is None) == (row["name"] == usual)
        assert row["met"] is None or row["met"] == (row["value"] <= row["must"])
    assert {row["backend"]: (row["must"], row["goal"]) for row in rows if row["must"]} == {
        "asyncio": (15, 8),
        "trio": (15, 6),
    }
    printed = capsys.readouterr().out
    assert printed.count("single text turn") == 2
    assert "asyncio / trio" in printed


def test_an_unknown_workload_is_refused_by_name(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is measured for a name that means nothing."""
    with pytest.raises(SystemExit):
        command.main(["W1", "W10"])

    assert "no workload W10" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "backend", "value", "verdict"),
    [
        ("W1 single text turn", "asyncio", 8.0, "goal"),
        ("W1 single text turn", "trio", 8.0, "met"),
        ("W1 single text turn", "trio", 15.1, "missed"),
        ("W6 modules over asyncio", None, 200, "met"),
        ("W8 peak of bodies in flight", "asyncio", 9, "missed"),
        ("W8 peak of bodies in flight", "asyncio", 10, "met"),
        ("W9 state to and from JSON", "asyncio", None, ""),
    ],
)
def test_a_figure_is_held_against_its_backends_target(
    command: ModuleType, name: str, backend: str | None, value: float | None, verdict: str
) -> None:
    """Below the goal, below the must or above it; an exact target allows no less either."""
    report = import_module("benchmarks.report")

    assert report.Row(name, backend, value).verdict == verdict
