"""A comparison as one HTML page that needs no network: the table, filters, and for each run both histories and times.

The page is made as that of a timeline is (`tracing._html_page`), whose colours it takes. What a run said is shown as
text, cut; secrets are masked as in every timeline.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from agentloop import records as r
from agentloop._common.error_text import shorten
from agentloop._common.terminal_text import exact
from agentloop.lab._diff import find_difference
from agentloop.lab._report import LabReport, row_to_json, spell_surrogates
from agentloop.lab._rows import LabRow
from agentloop.lab._runs import CaseRun, list_steps
from agentloop.tracing import read_timeline
from agentloop.tracing._html_page import PageFiles, embed, fill_page
from agentloop.tracing._timeline_page import read_timeline_files

Entry: TypeAlias = dict[str, Any]
_MOST_CHARS = 600
_SHORTER = (_MOST_CHARS, 200, 60)
_MOST_OF_ALL = 6_000_000
"""Characters of a page's data above which what the runs said is cut shorter."""
_MOST_STEPS = 120
_MOST_BARS = 60
_KEPT = ("turn", "model", "call", "hosted", "guardrail")
"""The rows of a timeline that the small one shows."""


def make_entry(row: LabRow, before: CaseRun | None, after: CaseRun | None) -> Entry:
    """Return what the page shows of a row and its two runs, as JSON."""
    runs = [run for run in (before, after if after is not before else None) if run is not None]
    steps = [list_steps(run)[:_MOST_STEPS] for run in runs]
    return {
        "row": row_to_json(row),
        "input": exact(shorten(runs[0].input if runs else "", _MOST_CHARS)),
        "steps": [[[one.turn, one.kind, _cut(one.text), one.depth] for one in side] for side in steps],
        "differs": find_difference(*steps) if len(steps) == 2 else None,
        "bars": [_list_bars(run.records) for run in runs],
    }


def _cut(text: str) -> str:
    return exact(shorten(text, _MOST_CHARS))


def _list_bars(records: Sequence[r.Record]) -> list[list[Any]]:
    """Return the rows of the run's timeline as `[kind, name, depth, start, end]`, in seconds from its start."""
    timeline = read_timeline(records)
    rows = [row for row in timeline.rows if row.kind in _KEPT][:_MOST_BARS]
    start = timeline.start
    return [
        [row.kind, exact(row.name), row.depth, round(row.start - start, 3), round(row.end - start, 3)] for row in rows
    ]


def render_lab_page(report: LabReport, entries: Iterable[Entry]) -> str:
    """Return the page of *report*, whose rows are shown from *entries*, to be written as UTF-8."""
    shown = sorted(entries, key=lambda one: (one["row"]["name"], one["row"].get("repeat", 0)))
    head, data = {"agent": exact(report.agent), "sums": report.sums()}, ""
    for limit in _SHORTER:
        data = _encode({**head, "rows": [_shorten(entry, limit) for entry in shown]})
        if len(data) <= _MOST_OF_ALL:
            break
    return fill_page(read_page_files("lab"), exact(f"{report.agent}: {len(report.rows)} runs compared"), data)


def _encode(data: Entry) -> str:
    """Return *data* as JSON text that ends no element of a page, and that UTF-8 can write."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return embed(spell_surrogates(text))


def _shorten(entry: Entry, limit: int) -> Entry:
    if limit == _MOST_CHARS:
        return entry
    steps = [[[turn, kind, shorten(text, limit), depth] for turn, kind, text, depth in run] for run in entry["steps"]]
    return {**entry, "steps": steps, "input": shorten(entry["input"], limit)}


@functools.cache
def read_page_files(name: str) -> PageFiles:
    """Return the files of the lab's page *name*, with the colours of a timeline."""
    own = PageFiles.read(Path(__file__).with_name("_page"), name)
    colours, _, _ = read_timeline_files().style.partition(".symbols")
    return own.replace(style=colours + own.style)
