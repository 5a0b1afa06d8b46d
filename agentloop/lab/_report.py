"""The report of a comparison: rows and sums, as a text table, as a file that reads well in a diff, and as JUnit XML."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

import attrs

from agentloop._common import notebook
from agentloop._common.terminal_text import exact
from agentloop.exceptions import StateError
from agentloop.lab._checks import Score
from agentloop.lab._rows import RANKS, Figures, LabRow

_SCHEMA = 1
_Z = 1.96
"""Of a confidence interval of 95 %."""


@attrs.frozen
class LabReport:
    """The result of a comparison: a row for each recorded run.

    `rows` is sorted by name and repetition. Its text is a table.

    Example:
        import anyio
        from agentloop import Agent, Runner, lab
        from agentloop.testing import ScriptedModel, say

        async def main():
            agent = Agent("a", model=ScriptedModel([say("hello")]))
            report = await lab.compare(await Runner.run(agent, "hi"), agent)
            print(report.count("same"), report.exit_code())  # 1 0

        anyio.run(main)
    """

    agent: str
    rows: tuple[LabRow, ...]

    def count(self, verdict: str) -> int:
        """Return the number of rows of *verdict*."""
        return sum(row.verdict == verdict for row in self.rows)

    @property
    def requests(self) -> int:
        """How many model requests the runs had made, or had answered by the cache."""
        return sum(row.requests for row in self.rows)

    @property
    def failed(self) -> tuple[LabRow, ...]:
        """The rows whose run doesn't pass all checks."""
        return tuple(row for row in self.rows if row.failed)

    def find_worse(self, against: LabReport) -> dict[tuple[str, int], tuple[str, ...]]:
        """Return in words what became worse than in *against*, by name and repetition; rows it lacks aren't judged."""
        base = {(row.name, row.repeat): row for row in against.rows}
        found: dict[tuple[str, int], tuple[str, ...]] = {}
        for row in self.rows:
            then = base.get((row.name, row.repeat))
            if then is not None and (worse := row.find_worsening(then)):
                found[row.name, row.repeat] = worse
        return found

    def exit_code(self, against: LabReport | None = None) -> int:
        """Return 0; 1 if something is worse than in *against*, or without it if a check failed; 2 if nothing could be
        compared."""
        if not self.rows or self.count("not comparable") == len(self.rows):
            return 2
        return int(bool(self.failed if against is None else self.find_worse(against)))

    def check(self, against: LabReport | None = None) -> None:
        """Raise unless `exit_code` is 0.

        Raises:
            AssertionError: with the table, and what became worse.
        """
        if self.exit_code(against):
            worse = {} if against is None else self.find_worse(against)
            lines = [f"{name}: {'; '.join(what)}" for (name, _), what in worse.items()]
            raise AssertionError("\n".join([str(self), *lines]))

    # -- sums

    def sums(self) -> dict[str, Any]:
        """Return the counts of verdicts, and the totals of turns, tokens, cost and seconds, before and after.

        Where runs were repeated, the share of those that are the same has its confidence interval of 95 % (Wilson).
        """
        counts = Counter[str](row.verdict for row in self.rows)
        made: dict[str, Any] = {"runs": len(self.rows), "verdicts": {one: counts[one] for one in RANKS if counts[one]}}
        pairs = [(row.before, row.after) for row in self.rows if row.before is not None and row.after is not None]
        for name in ("turns", "tokens", "cost", "seconds"):
            made[name] = [_total([getattr(pair[side], name) for pair in pairs]) for side in (0, 1)]
        if any(row.repeat for row in self.rows):
            made["same"] = list(wilson(counts["same"], len(self.rows)))
        names = dict.fromkeys(name for row in self.rows for name in row.scores)
        for name in names:
            values = [row.scores[name].value for row in self.rows if name in row.scores]
            made.setdefault("scores", {})[name] = [round(one, 4) for one in mean_of(values)]
        return made

    # -- as text

    def __str__(self) -> str:
        shown = [row for row in self.rows if row.verdict != "same" or row.failed or row.saw]
        lines = [_describe(self), *_table(shown)] if shown else [_describe(self)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the report."""
        return notebook.page("LabReport", pieces=[notebook.block(str(self))])

    # -- as files

    def to_json(self, *, made: str | None = None) -> str:
        """Return the report as JSON text, sorted, a field a line. *made* is a date to put into it, in your words."""
        data = {
            "agentloop lab": _SCHEMA,
            "agent": self.agent,
            **({} if made is None else {"made": made}),
            "sums": self.sums(),
            "rows": [row_to_json(row) for row in self.rows],
        }
        return spell_surrogates(json.dumps(data, ensure_ascii=False, indent=1)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> LabReport:
        """Return the report that `to_json` wrote.

        Raises:
            StateError: not a report of a schema that this version reads.
        """
        try:
            data = json.loads(text)
            if data["agentloop lab"] != _SCHEMA:
                raise StateError(f"it is a report of schema {data['agentloop lab']!r}: this version reads {_SCHEMA}")
            return cls(data["agent"], tuple(map(row_from_json, data["rows"])))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StateError(f"not a report of the lab: {error!r}") from error

    def to_junit(self) -> str:
        """Return the report as JUnit XML: a test for each row; one that couldn't be compared is skipped."""
        suite = xml.Element("testsuite", name=exact(f"agentloop lab: {self.agent}"), tests=str(len(self.rows)))
        suite.set("failures", str(len(self.failed)))
        suite.set("skipped", str(self.count("not comparable")))
        for row in self.rows:
            case = xml.SubElement(suite, "testcase", classname=exact(self.agent), name=exact(_title(row)))
            if row.failed:
                text = "\n".join(f"{name}: {row.checks[name]}" for name in row.failed)
                xml.SubElement(case, "failure", message=exact(row.verdict)).text = exact(text)
            elif row.verdict == "not comparable":
                xml.SubElement(case, "skipped", message=exact("; ".join(row.why)))
            xml.SubElement(case, "system-out").text = exact("\n".join([row.verdict, *row.why, *row.saw]))
        return f'<?xml version="1.0" encoding="utf-8"?>\n{xml.tostring(suite, encoding="unicode")}\n'


def read_report(path: str | os.PathLike[str]) -> LabReport:
    """Return the report in the file *path*, to compare against.

    Raises:
        StateError: it is none, or can't be read; names the file.
    """
    try:
        return LabReport.from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, StateError) as error:
        raise StateError(f"{os.fspath(path)}: {getattr(error, 'strerror', None) or error}") from error


def spell_surrogates(text: str) -> str:
    """Return the JSON *text* with half characters, which UTF-8 doesn't have, as escapes of JSON."""
    return text.encode("utf-8", "backslashreplace").decode()


# -- rows as JSON


def row_to_json(row: LabRow) -> dict[str, Any]:
    """Return *row* as JSON, without what is empty."""
    data = attrs.asdict(row, recurse=False)
    for side in ("before", "after"):
        data[side] = None if data[side] is None else attrs.asdict(data[side])
    data["scores"] = {name: {"value": one.value, "reason": one.reason} for name, one in row.scores.items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in data.items() if value}


def row_from_json(data: Mapping[str, Any]) -> LabRow:
    """Return the row that was written as *data*.

    Raises:
        TypeError, KeyError, ValueError: it doesn't fit.
    """
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    if fields["verdict"] not in RANKS:
        raise ValueError(f"no verdict is called {fields['verdict']!r}")
    for side in ("before", "after"):
        if (given := fields.get(side)) is not None:
            fields[side] = Figures(**given)
    fields["scores"] = {name: Score(**one) for name, one in fields.get("scores", {}).items()}
    return LabRow(**fields)


# -- text


def _describe(report: LabReport) -> str:
    sums = report.sums()
    parts = [f"{count} {verdict}" for verdict, count in sums["verdicts"].items()]
    head = f"{len(report.rows)} runs of {report.agent}: {', '.join(parts) or 'none'}"
    if "same" in sums:
        low, high = sums["same"]
        head += f" (same: {low:.0%} to {high:.0%})"
    figures = [f"{name} {sums[name][0]} → {sums[name][1]}" for name in ("turns", "tokens", "cost") if sums[name][1]]
    scores = [f"{name}: {mean:.2f} ± {half:.2f}" for name, (mean, half) in sums.get("scores", {}).items()]
    failed = [f"{len(report.failed)} fail a check"] * bool(report.failed)
    return "\n".join([exact(head), exact(", ".join([*figures, *scores, *failed]))]).strip()


_WIDTHS = (28, 14, 96)


def _table(rows: Sequence[LabRow]) -> list[str]:
    lines = [_line(("run", "verdict", "why"))]
    for row in rows:
        failed = [f"✗ {name}: {row.checks[name]}" for name in row.failed]
        scores = [f"{name}: {one.value:g} {one.reason}".strip() for name, one in row.scores.items()]
        saw = [f"the model saw other parts, {one}" for one in row.saw]
        texts = [*failed, *row.why, *saw, *scores, *row.notes] or [""]
        lines.append(_line((_title(row), row.verdict, texts[0])))
        lines += [_line(("", "", text)) for text in texts[1:]]
    return lines


def _line(cells: Sequence[str]) -> str:
    shown = [_cut(exact(" ".join(cell.split())), width) for cell, width in zip(cells, _WIDTHS, strict=True)]
    return "  ".join([shown[0].ljust(_WIDTHS[0]), shown[1].ljust(_WIDTHS[1]), shown[2]]).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _title(row: LabRow) -> str:
    return row.name if not row.repeat else f"{row.name} #{row.repeat + 1}"


# -- figures


def _total(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if any(isinstance(value, str) for value in known):
        return f"{sum(map(Decimal, known)):f}"
    total = sum(known) if known else None
    return round(total, 3) if isinstance(total, float) else total


def wilson(hits: int, tries: int) -> tuple[float, float]:
    """Return the bounds of a share's confidence interval of 95 %: sound for few tries, and for shares of 0 and 1."""
    if not tries:
        return 0.0, 1.0
    share, square = hits / tries, _Z * _Z
    middle = (share + square / (2 * tries)) / (1 + square / tries)
    half = _Z / (1 + square / tries) * (share * (1 - share) / tries + square / (4 * tries * tries)) ** 0.5
    return round(max(0.0, middle - half), 4), round(min(1.0, middle + half), 4)


def mean_of(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of *values* and half the width of its confidence interval of 95 %."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, float(_Z * (variance / len(values)) ** 0.5)
