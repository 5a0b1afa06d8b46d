"""What a run costs in counts stays within a tenth of `benchmarks/guards.json`; a count that falls is stored anew."""

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentloop._engine.runtime.log import Log

ROOT = Path(__file__).parent.parent
ADVICE = "`python -m benchmarks.guards --store` stores the counts if that is meant"
BEFORE = {"calls": {"asyncio": 100, "trio": 50}}


@pytest.fixture
def guards(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the counts, found behind everything else so that an installed package stays the one measured."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    return import_module("benchmarks.guards")


@pytest.mark.slow
def test_counts_stay_within_a_tenth_of_the_stored_ones(guards: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither calls nor records nor memory blocks have moved, on either backend."""
    checked: Any = Log.append
    monkeypatch.setattr(Log, "append", checked.__wrapped__)  # without the tests' own check
    version, stored = guards.load()
    if version != guards.python():
        pytest.skip(f"the counts are stored for Python {version}")

    moved = [line for line in guards.compare(guards.count(), stored) if line[-1]]
    if sys.gettrace() is not None:  # coverage is measured: its tracer keeps a block for each waiting frame
        moved = [line for line in moved if not line[0].startswith("blocks")]

    assert not moved, ADVICE


@pytest.mark.parametrize(
    ("asyncio", "trio", "verdicts"),
    [(100, 50, ["", ""]), (110, 45, ["", ""]), (111, 44, ["grew", "fell"]), (89, 56, ["fell", "grew"])],
)
def test_a_count_moves_by_more_than_a_tenth(
    guards: ModuleType, asyncio: float, trio: float, verdicts: list[str]
) -> None:
    """A count that fell is reported like one that grew, because the stored one would let it grow back."""
    lines = guards.compare({"calls": {"asyncio": asyncio, "trio": trio}}, BEFORE)

    assert [line[-1] for line in lines] == verdicts


def test_a_count_that_is_new_or_gone_is_reported(guards: ModuleType) -> None:
    """The table has exactly the counts that are taken."""
    lines = guards.compare({"records": {"asyncio": 4, "trio": 4}}, BEFORE)

    assert [(line[0], line[-1]) for line in lines] == [("records", "new")] * 2 + [("calls", "gone")] * 2


def test_counts_are_stored_and_then_hold(
    guards: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command fails on a count that moved, stores it when told to, and passes from then on."""
    table = tmp_path / "guards.json"
    guards.store(BEFORE, table)
    now = {"calls": {"asyncio": 80, "trio": 50.004}}

    assert guards.main([], lambda: now, table) == 1
    assert guards.main(["--store"], lambda: now, table) == 0
    assert guards.main([], lambda: now, table) == 0
    assert guards.load(table) == (guards.python(), {"calls": {"asyncio": 80, "trio": 50.0}})
    assert capsys.readouterr().out.count("fell") == 2


def test_counts_of_another_python_judge_nothing(
    guards: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The interpreter decides a part of each count."""
    table = tmp_path / "guards.json"
    table.write_text(json.dumps({"python": "3.1", "counts": BEFORE}), encoding="utf-8")

    assert guards.main([], lambda: {"calls": {"asyncio": 500, "trio": 500}}, table) == 0
    assert "stored for Python 3.1;" in capsys.readouterr().out
