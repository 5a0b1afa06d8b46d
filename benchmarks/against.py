"""A measurement held against a stored one: which rows moved by more than their noise.

Both medians may be off by their spread, and memory differs by as much as a hundredth from one process to the next: a
row moved if its values differ by more than both spreads and `FLOOR` of the stored value together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from benchmarks.report import Row, columns

FLOOR = 0.01


@attrs.frozen
class Comparison:
    """One row now, and the figure stored for it: None where that measurement didn't have the row."""

    row: Row
    stored: float | None
    stored_spread: float = 0.0

    @property
    def noise(self) -> float:
        """By how much the two values may differ though nothing has changed."""
        return self.stored_spread + self.row.spread + FLOOR * abs(self.stored or 0)

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `new`, or empty within the noise. More is better only where an exact figure is due."""
        now, before = self.row.value, self.stored
        if before is None or now is None:
            return "" if now is None else "new"
        if abs(now - before) <= self.noise:
            return ""
        if self.row.target.exact:
            return "better" if now == self.row.must else "worse"
        return "better" if now < before else "worse"


def load(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a stored measurement."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def compare(rows: Sequence[Row], stored: Sequence[dict[str, Any]]) -> list[Comparison]:
    """Return each of *rows* with the figure of that name and backend in *stored*."""
    known = {(line["name"], line["backend"]): line for line in stored}
    pairs = [(row, known.get((row.name, row.backend))) for row in rows]
    return [
        Comparison(row, None) if line is None else Comparison(row, line["value"], line.get("spread", 0.0))
        for row, line in pairs
    ]


def _change(one: Comparison) -> str:
    if one.stored is None or one.row.value is None:
        return "–"
    if one.stored == 0:
        return f"{one.row.value:+g}"
    return f"{one.row.value / one.stored - 1:+.1%}"


def differences(compared: Sequence[Comparison], stored: Sequence[dict[str, Any]], python: str) -> str:
    """Return the rows of *compared* that moved as a table, and a line on the others."""
    moved = [one for one in compared if one.verdict]
    lines = [("row", "backend", "stored", "now", "change", "noise", "")]
    for one in moved:
        values = ("–" if value is None else f"{value:.4g}" for value in (one.stored, one.row.value))
        noise = "–" if one.stored is None else f"±{one.noise:.2g}"
        lines.append((one.row.name, one.row.backend or "–", *values, _change(one), noise, one.verdict))
    still = len(compared) - len(moved)
    texts = [columns(lines)] if moved else []
    texts.append(f"{still} of {len(compared)} rows are within their noise.")
    others = {line["python"] for line in stored} - {python}
    if others:
        texts.append(f"The stored figures are of Python {', '.join(sorted(others))}; these are of {python}.")
    return "\n".join(texts)
