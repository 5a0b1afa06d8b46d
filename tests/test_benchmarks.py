"""The benchmarks start, and their output has the shape that readers rely on; the figures aren't checked here."""

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BACKENDS = ("asyncio", "trio")
ROOT = Path(__file__).parent.parent
FIELDS = {
    "workload": str,
    "name": str,
    "backend": str | None,
    "value": float | int | None,
    "spread": float | int,
    "unit": str,
    "must": float | int | None,
    "goal": float | int | None,
    "met": bool | None,
    "goal_met": bool | None,
    "ours": float | int | None,
    "bare": float | int | None,
    "note": str,
    "quick": bool,
    "python": str,
    "anyio": str,
    "trio": str,
}
EXACT = {
    "W7 `finally` done of 100": 100,
    "W7 tasks left": 0,
    "W7 with cleanup, `finally` done of 100": 100,
    "W8 peak of bodies in flight": 10,
}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmarks' command, found behind everything else so that an installed package stays the one measured."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    return import_module("benchmarks.__main__")


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(180)  # some ten seconds, on a machine that has nothing else to do
@pytest.mark.real_clock
def test_every_workload_gives_its_figures(
    command: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the smallest size the workload prints a line for each figure and backend, and the table has each figure."""
    file = tmp_path / "figures.jsonl"

    command.main(["--smoke", "--json", str(file)])

    rows = _lines(file)
    for row in rows:
        assert row.keys() == FIELDS.keys()
        assert all(isinstance(row[field], kind) for field, kind in FIELDS.items()), row
        assert row["quick"] is True
        assert (row["met"] is None) == (row["must"] is None or row["value"] is None), row
    report = import_module("benchmarks.report")
    found = {(row["name"], row["backend"]) for row in rows}
    wanted = {(name, None) if name.startswith("W6") else (name, one) for name in report.TARGETS for one in BACKENDS}
    assert found >= wanted
    assert len(found) == len(rows)
    options = {f"Wp{number}" for number in range(1, 9)}
    assert {row["workload"] for row in rows} == {f"W{number}" for number in range(1, 10)} | {"W4c", "Wo"} | options
    exact = {(row["name"], row["backend"]): row["value"] for row in rows if row["name"] in EXACT}
    assert exact == {(name, one): value for name, value in EXACT.items() for one in BACKENDS}
    printed = capsys.readouterr().out
    assert "too small to mean anything" in printed
    assert [name for name in {name for name, _ in found} if name not in printed] == []


@pytest.mark.slow
@pytest.mark.real_clock
def test_one_workload_is_measured_alone_and_held_against_its_targets(
    command: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """W1 gives its ratio with targets and the cold one without, on both backends, as JSON lines and as a table."""
    file = tmp_path / "figures.jsonl"

    command.main(["W1", "--smoke", "--json", str(file)])

    rows = _lines(file)
    warm, cold = "W1 single text turn", "W1 single text turn, cold"
    few = "W1 single text turn, ten runs a sample"
    assert [(row["backend"], row["name"]) for row in rows] == [
        (backend, name) for backend in BACKENDS for name in (warm, few, cold)
    ]
    for row in rows:
        assert row["workload"] == "W1"
        assert min(row["value"], row["ours"], row["bare"]) > 0
        assert (row["met"] is None) == (row["must"] is None) == (row["name"] == cold)
        assert row["met"] is None or row["met"] == (row["value"] <= row["must"])
    assert {row["backend"]: (row["must"], row["goal"]) for row in rows if row["must"]} == {
        "asyncio": (26, 12),
        "trio": (15, 8),
    }
    printed = capsys.readouterr().out
    assert printed.count("single text turn") == 3
    assert "asyncio / trio" in printed


def test_a_workloads_size_is_cut_down_to_a_part_and_never_to_nothing(command: ModuleType) -> None:
    """The size is never below what the workload needs, and a small size isn't raised to that."""
    measure = import_module("benchmarks.measure")

    assert measure.FULL.of(1000) == measure.QUICK.of(1000) == 1000
    assert (measure.SMOKE.of(1000), measure.SMOKE.of(15)) == (10, 1)
    assert (measure.SMOKE.of(195, least=20), measure.SMOKE.of(10, least=20)) == (20, 10)


def test_an_unknown_workload_is_refused_by_name(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is measured for a name that means nothing."""
    with pytest.raises(SystemExit):
        command.main(["W1", "W10"])

    assert "no workload W10" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "backend", "value", "verdict"),
    [
        ("W1 single text turn", "asyncio", 12.0, "goal"),
        ("W1 single text turn", "trio", 12.0, "met"),
        ("W1 single text turn", "trio", 15.1, "missed"),
        ("W6 modules over asyncio", None, 150, "met"),
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


@pytest.mark.parametrize(
    ("samples", "spread"), [([3.0], 0.0), ([1.0, 1.0, 1.0], 0.0), ([1.0, 2.0, 3.0, 4.0, 5.0], 1.0)]
)
def test_a_spread_is_half_of_what_the_middle_half_spans(
    command: ModuleType, samples: list[float], spread: float
) -> None:
    """A single sample has none."""
    assert import_module("benchmarks.measure").spread(samples) == spread


async def test_each_sample_begins_with_a_run_that_is_not_timed(command: ModuleType) -> None:
    """Sides take turns; a cold sample has no such run, and a large one has a small one in its place."""
    paired = import_module("benchmarks.measure").paired
    done: list[str] = []

    def job(name: str) -> Any:
        async def work() -> None:
            done.append(name)

        return work

    found = await paired(job("a"), job("b"), 2, 2)
    assert "".join(done) == "aaabbb" * 2
    assert len(found.ratios) == 2
    done.clear()
    await paired(job("a"), job("b"), 2, warm_up=(None, None))
    assert "".join(done) == "abab"
    done.clear()
    await paired(job("a"), job("b"), 1, warm_up=(job("c"), job("d")))
    assert "".join(done) == "cadb"


@pytest.mark.parametrize(
    ("name", "stored", "now", "verdict"),
    [
        ("W1 single text turn", 20.0, 21.1, ""),
        ("W1 single text turn", 20.0, 21.3, "worse"),
        ("W1 single text turn", 20.0, 18.7, "better"),
        ("W1 single text turn", 20.0, None, ""),
        ("W7 `finally` done of 100", 100, 90, "worse"),
        ("W7 `finally` done of 100", 90, 100, "better"),
        ("W9 state in a colour", None, 1.0, "new"),
    ],
)
def test_a_row_moves_by_more_than_its_noise(
    command: ModuleType, name: str, stored: float | None, now: float | None, verdict: str
) -> None:
    """The noise is the spread of both measurements, half each here, and a hundredth of the stored value."""
    report, against = import_module("benchmarks.report"), import_module("benchmarks.against")
    row = report.Row(name, "trio", now, spread=0.5)
    lines = [] if stored is None else [{"name": name, "backend": "trio", "value": stored, "spread": 0.5}]

    (compared,) = against.compare([row], lines)

    assert compared.verdict == verdict


@pytest.mark.slow
@pytest.mark.real_clock
def test_a_measurement_is_compared_with_a_stored_one(
    command: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows that moved are shown with both values, and another Python is named."""
    file, stored = tmp_path / "figures.jsonl", tmp_path / "stored.jsonl"
    command.main(["W7", "--backend", "asyncio", "--smoke", "--json", str(file)])
    lines = _lines(file)
    for line in lines:
        line["python"] = "3.1"
        if line["name"] == "W7 `finally` done of 100":
            line["value"] = 50
    stored.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    capsys.readouterr()

    command.main(["W7", "--backend", "asyncio", "--smoke", "--json", str(file), "--against", str(stored)])

    said = capsys.readouterr().out.split("Against ")[1]
    (moved,) = [line for line in said.splitlines() if line.startswith("W7 `finally` done of 100")]
    assert moved.split()[-5:] == ["50", "100", "+100.0%", "±0.5", "better"]
    assert "rows are within their noise." in said
    assert "of Python 3.1;" in said


def test_a_figure_beyond_its_bound_is_named(command: ModuleType) -> None:
    """`--check` judges the rows that have a bound, and those only."""
    report = import_module("benchmarks.report")
    name, bound = next(iter(report.BOUNDS.items()))
    rows = [report.Row(name, "trio", bound * 1.01), report.Row(name, "asyncio", bound), report.Row("W1", "trio", 1e9)]
    assert report.beyond_bounds(rows) == [f"{name} on trio: {bound * 1.01:.2f} × (at most {bound:g})"]
    assert report.BOUNDS.keys() <= report.TARGETS.keys()
    assert all(
        bound > report.TARGETS[name].of(report.TARGETS[name].must, "trio") for name, bound in report.BOUNDS.items()
    )
