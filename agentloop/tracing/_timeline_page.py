"""A timeline as one HTML page (`_html_page`): the timeline is its data, which the script puts into the page as texts.

Does not know about records.

Decisions:

The page draws only the rows in sight, from data beside its script, with a row's text as text only; its policy names
the digests of its own script and style. Ten thousand records then open as fast as ten. Rejected: SVG made in Python:
five thousand rows of it are 40,000 elements, which take a browser seconds, and each zoom is a new page. Rejected: a
library for charts or traces: it would be a copy in the wheel, larger than all of the page, and none knows
cancellations. From the views that people like come: the overview that is a brush, and rows with the time beside the
bar (Jaeger); keys for zoom and move, details below the picture (Perfetto, Chrome's performance panel); outcome,
tokens and cost in the row of a request (Logfire). None of them shows who ended whom, or squeezes a pause of days:
these are what this page is for. Colour is never only: each status and cause has a word and a shape, each phase a
form, which tests assert in the page.
"""

from __future__ import annotations

import functools
from html import escape
from pathlib import Path
from typing import Any

from agentloop._common.checks import NAMES, check, check_count, is_a
from agentloop._common.error_text import shorten
from agentloop._common.json_bytes import encode_shown
from agentloop._common.strict_json import read_strict
from agentloop._common.terminal_text import exact
from agentloop._common.values import Value
from agentloop.tracing._html_page import PageFiles, embed, fill_page
from agentloop.tracing._timeline_words import (
    CAUSES,
    KINDS,
    NEVER,
    OPEN,
    PHASES,
    STATUSES,
    WAITS,
    describe_amounts,
    describe_ending,
    name_canceller,
    summarize,
)
from agentloop.tracing.timeline import Ending, Timeline, TimelineRow

MOST_CHARS = 2_600_000
"""Characters of a page's data above which facts are cut shorter."""
FACT_CHARS = (2_000, 500, 120, 0)
_TITLE_CHARS = 160
_ARGUMENT_CHARS = 100
_VALUE_CHARS = 26
"""Characters of all values together, so that a name has room for the end of each."""
_FOLDER = Path(__file__).with_name("_page")
_WORDS = {
    "statuses": STATUSES,
    "causes": CAUSES,
    "phases": PHASES,
    "kinds": KINDS,
    "open": OPEN,
    "never": NEVER,
    "waits": WAITS,
}
EMPTY = "No run has begun in this journal."

Json = dict[str, Any]


def render_html(timeline: Timeline, *, moments: Json | None = None) -> str:
    """Return *timeline* as an HTML page, to be written as UTF-8.

    It opens without a network. Facts are cut shorter where the page would exceed some three megabytes. With *moments*,
    which `lab.list_moments` gives for the same records, it has a slider that shows the state after any record.
    """
    head, data, cancellers = head_to_json(timeline), "", name_canceller(timeline)
    for limit in FACT_CHARS:
        rows = [
            row_to_json(row, timeline.start, cancellers.get(position, []), limit)
            for position, row in enumerate(timeline.rows)
        ]
        shown = {} if moments is None else {"moments": moments_to_json(moments, timeline.start, limit)}
        data = _encode({**head, "rows": rows, **shown})
        if len(data) <= MOST_CHARS:
            break
    return _fill(timeline, data)


class TimelineFrame(Value, frozen=True):
    """The page of a timeline inside a notebook: the last value of a cell shows it, *height* pixels high.

    The page is in a frame without any rights in the notebook (no access to its document, its storage and its server),
    so the words of models and tools can't change the document around it. The cell holds all of it, up to three
    megabytes, and needs no network.

    Example:
        from agentloop import Agent, Runner
        from agentloop.testing import ScriptedModel, say
        from agentloop.tracing import TimelineFrame, read_timeline

        result = Runner.run_sync(Agent("a", model=ScriptedModel([say("hi")])), "go")
        frame = TimelineFrame(read_timeline(result.records))  # the last line of a cell
        print(frame._repr_html_().partition(" ")[0])  # <iframe
    """

    timeline: Timeline
    height: int = 600

    def __post_init__(self) -> None:
        check("timeline", NAMES.needs("a Timeline, as read_timeline returns it", is_a(Timeline)), self.timeline)
        check_count("height", self.height)

    def _repr_html_(self) -> str:
        # Scripts, and nothing else: with the notebook's origin the frame could reach its document and its server.
        page, height = escape(render_html(self.timeline)), self.height
        return f'<iframe sandbox="allow-scripts" width="100%" height="{height}" srcdoc="{page}"></iframe>'


def render_follow_page() -> str:
    """Return the page of a timeline that comes as server-sent events from the address `events` beside it."""
    empty = Timeline()
    return _fill(empty, _encode({**head_to_json(empty), "rows": [], "follow": True}), connects=True)


def moments_to_json(moments: Json, start: float, limit: int) -> Json:
    """Return *moments* as the page has them, with lines of at most *limit* characters, and times from *start*.

    No line is cut shorter than 60 characters: it would say nothing more.
    """
    steps = [
        [exact(name), _seconds(at, start), {path: _show_run(run) for path, run in changed.items()}, gone]
        for name, at, changed, gone in moments["steps"]
    ]
    lines = [exact(shorten(line, max(limit, 60))) for line in moments["lines"]]
    calls = [[exact(id), exact(tool), *rest, _seconds(since, start)] for id, tool, *rest, since in moments["calls"]]
    return {"lines": lines, "calls": calls, "steps": steps}


def _show_run(run: Json) -> Json:
    return {**run, "agent": exact(run["agent"])} if "agent" in run else run


def _fill(timeline: Timeline, data: str, *, connects: bool = False) -> str:
    """Return the page with *data*. *connects* allows it to ask its own server."""
    return fill_page(read_timeline_files(), _title(timeline), data, connects=connects)


@functools.cache
def read_timeline_files() -> PageFiles:
    """Return the files of the page."""
    return PageFiles.read(_FOLDER, "timeline")


def _title(timeline: Timeline) -> str:
    """Return who was asked what."""
    if not timeline.rows:
        return "No run yet"
    asked = " ".join(dict(timeline.rows[0].facts).get("input", "").split())
    return exact(f"{timeline.agent}: {shorten(asked, _TITLE_CHARS)}" if asked else timeline.agent)


def _cut_middle(text: str, most: int) -> str:
    """Return *text* with an ellipsis in its middle if it is longer than *most*: calls often differ in its end."""
    return text if len(text) <= most else f"{text[: most // 3]}…{text[most // 3 - most + 1 :]}"


def _name_arguments(row: TimelineRow) -> str:
    """Return the arguments of a call as the end of its name: `path="a.txt", lines=3`; empty if it has none."""
    text = dict(row.facts).get("arguments", "")
    try:
        found = read_strict(text)
    except (ValueError, RecursionError):  # cut, or not JSON as the model wrote it
        found = None
    if isinstance(found, dict):
        most = max(_VALUE_CHARS // max(len(found), 1), 12)
        shown = {name: _cut_middle(encode_shown(value).decode(), most) for name, value in found.items()}
        text = ", ".join(f"{name}={value}" for name, value in shown.items())
    return exact(shorten(" ".join(text.split()), _ARGUMENT_CHARS))


# -- data


def _encode(data: Json) -> str:
    """Return *data* as JSON text that ends no element of a page."""
    return embed(encode_shown(data).decode())


def head_to_json(timeline: Timeline) -> Json:
    """Return everything but the rows, in the form that the page's script reads."""
    start = timeline.start
    return {
        "title": _title(timeline),
        "run": exact(timeline.run_id),
        "summary": summarize(timeline),
        "status": timeline.status or ("open" if timeline.rows else None),
        "records": timeline.records,
        "start": start,
        "end": _seconds(timeline.end, start),
        "gaps": [[_seconds(gap.start, start), _seconds(gap.end, start), gap.crashed] for gap in timeline.gaps],
        "arrows": [[each.source, each.target, _seconds(each.at, start), each.cause] for each in timeline.arrows],
        "words": _WORDS,
        "empty": EMPTY,
    }


def row_to_json(row: TimelineRow, start: float, cancellers: list[str], limit: int) -> Json:
    """Return a row in the form that the page's script reads, with facts of at most *limit* characters.

    *start* is the time of the timeline's start, and *cancellers* what `name_canceller` says of the row.
    """
    left = list(cancellers)
    return {
        "k": row.kind,
        "n": exact(row.name),
        "a": _name_arguments(row) if limit else "",
        "d": row.depth,
        "p": row.parent,
        "s": _seconds(row.start, start),
        "e": _seconds(row.end, start),
        "o": row.open,
        "t": row.turn,
        "i": row.call_id,
        "ph": [
            [phase.kind, _seconds(phase.start, start), _seconds(phase.end, start), phase.open, phase.note]
            for phase in row.phases
        ],
        "m": [[mark.kind, _seconds(mark.at, start), mark.note] for mark in row.marks],
        "en": [_ending_to_json(row, each, start, left) for each in row.endings],
        "u": " · ".join(describe_amounts(row.tokens, row.cost)),
        "f": [[name, shorten(text, limit)] for name, text in row.facts] if limit else [],
    }


def _ending_to_json(row: TimelineRow, ending: Ending, start: float, cancellers: list[str]) -> Json:
    source = cancellers.pop(0) if ending.cancelled_by is not None and cancellers else ""
    found: Json = {"s": ending.status, "at": _seconds(ending.at, start), "w": describe_ending(row, ending, source)}
    if ending.cancelled_by is not None:
        found |= {"by": ending.cancelled_by, "who": source and f"by {exact(source)}"}
    if more := ending.error or (ending.reason if row.kind != "model" else ""):
        found["m"] = shorten(more, 200)
    return found


def _seconds(at: float, start: float) -> float:
    return round(at - start, 6)
