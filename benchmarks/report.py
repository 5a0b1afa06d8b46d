"""Targets, figures, and how they are shown: JSON lines and a table."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version

import attrs

from benchmarks.measure import Paired

BACKENDS = ("asyncio", "trio")


@attrs.frozen
class Target:
    """What a figure is held against, by backend in the order asyncio, trio; None where there is no target."""

    must: tuple[float, float] | None = None
    goal: tuple[float, float] | None = None
    unit: str = "×"
    exact: bool = False

    def of(self, pair: tuple[float, float] | None, backend: str | None) -> float | None:
        """Return *backend*'s value of *pair*; a figure of the process alone takes the first."""
        return None if pair is None else pair[backend == "trio"]


def _same(must: float, goal: float | None, unit: str = "×", *, exact: bool = False) -> Target:
    return Target((must, must), None if goal is None else (goal, goal), unit, exact)


UNTARGETED = Target()

TARGETS: dict[str, Target] = {
    "W1 single text turn": Target((26, 15), (12, 8)),
    "W1 single text turn, ten runs a sample": Target((26, 15), (12, 8)),
    "W2 N=1000 calls in one turn": Target((5, 4), (3.5, 2.5)),
    "W2 N=10": Target((9, 6.5), (5, 3.5)),
    "W2 N=1, whole two-turn run": Target((12, 8), (6, 4)),
    "W2 N=1, ten runs a sample": Target((12, 8), (6, 4)),
    "W2 memory per call, ready at once": _same(4.5, 3, "KiB"),
    "W2 memory per call, all blocked": _same(6, 4.5, "KiB"),
    "W3 200 turns of one call, per turn": Target((7, 5), (4, 2.5)),
    "W3 turn 195 against turn 10": _same(1.1, 1.05),
    "W3 turn 990 against turn 10": _same(1.1, 1.05),
    "W4 concurrent runs, CPU per run": Target((9.5, 6.5), (5, 3)),
    "W4 all runs against a tenth, collector off": _same(1.3, 1.1),
    "W4 all runs against a tenth, collector on": _same(1.9, 1.6),
    "W4 memory per run": Target((34, 36), (22, 25), "KiB"),
    "W4c runs that share a Capacity(10), against unshared": _same(1.5, 1.2),
    "W5 per streamed text delta": _same(3, 1.8),
    "W6 import, CPU": _same(125, 90, "ms"),
    "W6 modules over asyncio": _same(150, None, ""),
    "W7 cancel 100 sleeping tools": Target((4, 2.3), (2, 1.5)),
    "W7 `finally` done of 100": _same(100, None, "", exact=True),
    "W7 tasks left": _same(0, None, "", exact=True),
    "W7 with 50 ms of cleanup, by the clock": _same(57, 54, "ms"),
    "W7 with cleanup, `finally` done of 100": _same(100, None, "", exact=True),
    "W8 N=1000, cap 10": Target((5, 4.2), (2.5, 1.5)),
    "W8 peak of bodies in flight": _same(10, None, "", exact=True),
    "W9 state to JSON": _same(3, 1.5),
    "W9 state from JSON, folded": _same(7, 5),
    "W9 size against the plain items": _same(4, 2.6),
    "Wp1 tool with a timeout, against the bare tool": _same(1.25, 1.1),
    "Wp2 tool with two guardrails that wait": _same(2.5, 1.8),
    "Wp3 start and end hooks that wait": _same(1.6, 1.3),
    "Wp4 body that raises, the model is told": _same(1.8, 1.4),
    "Wp5 sync body, against anyio.to_thread.run_sync": _same(1.6, 1.3),
    "Wp6 FileJournal, against no journal": _same(2, 1.5),
    "Wp7 streamed run, against plain": _same(1.6, 1.3),
    "Wp8 resumed with a verdict, against no pause": _same(1.6, 1.3),
}


BOUNDS: dict[str, float] = {
    "Wp1 tool with a timeout, against the bare tool": 2,
    "Wp3 start and end hooks that wait": 4.5,
    "Wp5 sync body, against anyio.to_thread.run_sync": 3.5,
    "Wp6 FileJournal, against no journal": 8,
    "Wp7 streamed run, against plain": 3,
}
"""What `--check` refuses: about twice what was measured last. So a busy machine passes, and a way that has become twice
as long doesn't. The counts of `benchmarks.guards` see less, and see it exactly."""


@attrs.frozen
class Row:
    """One figure. *backend* is None where the process alone is measured; *ours* and *bare* are what a ratio is of.

    `value` is None where a workload can't be measured yet, with *note* saying why.
    """

    name: str
    backend: str | None
    value: float | None
    ours: float | None = None
    bare: float | None = None
    note: str = ""
    spread: float = 0.0
    """By how much the value may be off, in its unit; 0 where it was measured once."""

    @property
    def workload(self) -> str:
        return self.name.split()[0].rstrip(",")

    @property
    def target(self) -> Target:
        return TARGETS.get(self.name, UNTARGETED)

    @property
    def must(self) -> float | None:
        return self.target.of(self.target.must, self.backend)

    @property
    def goal(self) -> float | None:
        return self.target.of(self.target.goal, self.backend)

    @property
    def verdict(self) -> str:
        """`goal`, `met` or `missed`; empty without a target or a value."""
        if self.value is None or self.must is None:
            return ""
        if self.target.exact:
            return "met" if self.value == self.must else "missed"
        if self.goal is not None and self.value <= self.goal:
            return "goal"
        return "met" if self.value <= self.must else "missed"


def paired_row(name: str, backend: str, found: Paired, runs: int = 1, note: str = "") -> Row:
    """Return the row of a ratio; the times of both sides are per run where a sample holds several *runs*."""
    return Row(name, backend, found.ratio, found.first / runs, found.second / runs, note, found.spread)


def beyond_bounds(rows: Iterable[Row]) -> list[str]:
    """Return a line for each figure that is beyond its bound of `BOUNDS`."""
    return [
        f"{row.name} on {row.backend}: {row.value:.2f} × (at most {BOUNDS[row.name]:g})"
        for row in rows
        if row.name in BOUNDS and row.value is not None and row.value > BOUNDS[row.name]
    ]


def json_line(row: Row, *, quick: bool) -> str:
    """Return *row* as one line of JSON; `ours` and `bare` are seconds of CPU, or bytes where the unit is KiB."""
    verdict = row.verdict
    fields = {
        "workload": row.workload,
        "name": row.name,
        "backend": row.backend,
        "value": row.value,
        "spread": row.spread,
        "unit": row.target.unit,
        "must": row.must,
        "goal": row.goal,
        "met": None if not verdict else verdict != "missed",
        "goal_met": None if row.goal is None or not verdict else verdict == "goal",
        "ours": row.ours,
        "bare": row.bare,
        "note": row.note,
        "quick": quick,
        "python": platform.python_version(),
        "anyio": version("anyio"),
        "trio": version("trio"),
    }
    return json.dumps(fields, ensure_ascii=False)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if unit == "" else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _both(values: Iterable[float | None]) -> str:
    texts = ["–" if value is None else f"{value:g}" for value in values]
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


def _line(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    target = rows[0].target
    values = " / ".join(_number(row.value, target.unit) for row in rows)
    verdicts = [row.verdict for row in rows]
    said = verdicts[0] if len(set(verdicts)) == 1 else " / ".join(verdicts)
    unit = target.unit if any(row.value is not None for row in rows) else ""
    note = next((row.note for row in rows if row.note), "")
    return name, f"{values} {unit}".strip(), _both(r.must for r in rows), _both(r.goal for r in rows), said, note


def table(rows: Sequence[Row], backends: Sequence[str]) -> str:
    """Return the figures in columns, the backends side by side in the order given."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.name, []).append(row)
    head = ("workload", " / ".join(backends), "must", "goal", "met", "")
    # What the process alone decides is measured last; sorting is stable, so names stay in order within a workload.
    in_order = sorted(grouped.items(), key=lambda pair: pair[1][0].workload)
    return columns([head, *(_line(name, same) for name, same in in_order)])


def columns(lines: Sequence[tuple[str, ...]]) -> str:
    """Return *lines* of cells in columns, with a rule below the first line."""
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    texts.insert(1, "-" * max(map(len, texts)))
    return "\n".join(texts)
