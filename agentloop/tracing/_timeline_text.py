"""A timeline as text for a terminal: a line for each row, with a bar where the width allows one.

Each phase has its own character, and each ending is in words. Nothing that a model or a tool has written reaches
the terminal as an order: such characters are written out. Pauses between run segments take three columns, however long
they were.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from math import ceil

from agentloop._common.terminal_text import duration, exact
from agentloop.tracing._timeline_words import (
    NEVER,
    PHASES,
    describe_amounts,
    describe_ending,
    describe_open,
    describe_run,
    format_span,
    name_canceller,
)
from agentloop.tracing.timeline import Timeline, TimelineRow

LEAST_WIDTH = 20
_NO_BARS_BELOW = 72
_PAUSE_COLUMNS = 3
_MOST_NAME = 40
_TIME = 9
_NO_BREAK = "\u00a0"
"""Keeps a sign and its words on one line of the legend, until the lines are made."""
_BARS = {
    "segment": "─",
    "turn": "─",
    "pause": "┆",
    "request": "░",
    "answer": "▓",
    "failed": "x",
    "guardrail": "=",
    "approval": "?",
    "queue": "·",
    "run": "█",
    "cleanup": "▒",
    "after": "▁",
}
_SYMBOLS = {
    "succeeded": "✓",
    "completed": "✓",
    "failed": "✗",
    "timed_out": "◷",
    "cancelled": "⊘",
    "rejected": "⊖",
    "replayed": "↻",
    "skipped": "↷",
    "unknown": "?",
    "interrupted": "‖",
    "stopped": "■",
    "handed_over": "⇒",
}
_TOLD = frozenset({"approval", "queue", "failed"})
_SUMMED = frozenset({"run", "turn"})


def render_text(timeline: Timeline, *, width: int = 100) -> str:
    """Return *timeline* as lines of text, each of at most *width* columns and ended by a newline.

    Bars need 72 columns; below these a line has names, times and words only. Less than 20 columns are taken as 20.
    """
    width = max(width, LEAST_WIDTH)
    head = list(_wrap(exact(describe_run(timeline)), width))
    if not timeline.rows:
        return "".join(f"{line}\n" for line in head)
    labels = [_label(row) for row in timeline.rows]
    name_width = min(max(map(_columns, labels)), _MOST_NAME, max(width * 2 // 5, 12))
    bar_width = 0 if width < _NO_BARS_BELOW else max((width - name_width - _TIME - 3) * 3 // 5, 10)
    axis = _Axis(timeline, bar_width)
    lines = [*head, *([_ruler(axis, name_width)] if bar_width else [])]
    sources = name_canceller(timeline)
    for position, (row, label) in enumerate(zip(timeline.rows, labels, strict=True)):
        bar = f" {axis.draw(row)}" if bar_width else ""
        took = format_span(row.end - row.start) if row.phases else ""
        words = exact("; ".join(_describe(row, sources.get(position, ()))))
        line = f"{_fit(label, name_width)}{bar} {took:>{_TIME - 1}} "
        lines.append((line + _cut(words, width - _columns(line))).rstrip())
    if bar_width:
        lines += ["", *(line.replace(_NO_BREAK, " ") for line in _wrap(_legend(timeline), width))]
    return "".join(f"{_cut(line, width)}\n" for line in lines)


def _label(row: TimelineRow) -> str:
    ending = row.ending
    if row.kind in ("call", "run", "hosted"):
        symbol = "…" if ending is None or row.open else _SYMBOLS.get(ending.status, "•")
        name = f"{symbol} {row.name}"
    elif row.kind == "guardrail":
        name = f"◇ {row.name}"
    elif row.kind == "handoff":
        name = f"⇒ {row.name}"
    else:
        name = f"◆ {row.name}" if row.kind == "model" else row.name
    return "  " * min(row.depth, 10) + exact(name)


def _describe(row: TimelineRow, sources: Sequence[str]) -> Iterator[str]:
    left = list(sources)
    for ending in row.endings:
        source = left.pop(0) if ending.cancelled_by is not None and left else ""
        if row.kind != "model" or ending is row.ending:
            yield describe_ending(row, ending, source)
    if row.kind in ("call", "handoff") and not row.phases and not row.endings:
        yield NEVER
    elif row.open:
        yield describe_open(row)
    for phase in row.phases:
        if phase.kind in _TOLD and phase.note:
            took = format_span(phase.end - phase.start)
            yield phase.note if phase.kind == "failed" else f"{phase.note} after {took}"
    if row.kind == "model":
        yield from (mark.note for mark in row.marks if mark.kind == "first_token")
    yield from (mark.note for mark in row.marks if mark.kind in ("deadline", "cancel_requested", "cleanup_cut"))
    if row.kind in _SUMMED or row.kind == "model":
        yield from describe_amounts(row.tokens, row.cost)


class _Axis:
    """Maps times to columns; each pause has the same width."""

    def __init__(self, timeline: Timeline, width: int) -> None:
        self.width = width
        self._start = timeline.start
        self._gaps = [(max(pause.start, timeline.start), pause.end) for pause in timeline.gaps]
        shares = min(_PAUSE_COLUMNS * len(self._gaps), width // 2)
        self._share = shares / len(self._gaps) if self._gaps else 0.0
        self.seconds: float = max(timeline.end - timeline.start - sum(end - start for start, end in self._gaps), 0.0)
        self._scale = (width - shares) / self.seconds if self.seconds > 0 else 0.0

    def column(self, at: float) -> float:
        """Return the column of a time, from 0 to the width."""
        worked, paused = at - self._start, 0.0
        for start, end in self._gaps:
            inside = min(max(at, start), end) - start
            worked -= inside
            paused += self._share * (inside / (end - start)) if end > start else (self._share if at >= end else 0)
        return min(max(worked * self._scale + paused, 0.0), float(self.width))

    def draw(self, row: TimelineRow) -> str:
        """Return the bar of *row*. A cell shows the phase that takes the most of its time."""
        taken, most, used = [" "] * self.width, [-1.0] * self.width, set[int]()
        for phase in row.phases:
            start, end = self.column(phase.start), self.column(phase.end)
            first = min(int(start), self.width - 1)
            used.update(range(first, max(first + 1, round(end))))
            for cell in range(first, max(first + 1, ceil(end))):
                share = max(min(end, cell + 1) - max(start, cell), 0.0)
                if share > most[cell]:
                    taken[cell], most[cell] = _BARS[phase.kind], share
        cells = [sign if cell in used else " " for cell, sign in enumerate(taken)]
        for ending in row.endings if not row.phases else ():
            cells[min(int(self.column(ending.at)), self.width - 1)] = _SYMBOLS.get(ending.status, "•")
        return "".join(cells)


def _ruler(axis: _Axis, name_width: int) -> str:
    left, right = "0 s", duration(axis.seconds)
    return f"{' ' * name_width} {left}{right:>{axis.width - len(left)}}"


def _legend(timeline: Timeline) -> str:
    used = {phase.kind for row in timeline.rows for phase in row.phases}
    parts = [f"{_BARS[kind]} {words}" for kind, words in PHASES.items() if kind in used]
    return "   ".join(part.replace(" ", _NO_BREAK) for part in parts)


# -- columns


def _columns(text: str) -> int:
    """Return the columns that *text* takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_column(char) for char in text)


def _column(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _cut(text: str, width: int) -> str:
    """Return the beginning of *text* that fits in *width* columns, with an ellipsis as the last one if it was cut."""
    if _columns(text) <= width:
        return text
    taken, kept = 0, 0
    for char in text:
        taken += _column(char)
        if taken > width - 1:
            break
        kept += 1
    return f"{text[:kept]}…" if width > 0 else ""


def _fit(text: str, width: int) -> str:
    """Return *text*, cut or filled to *width* columns."""
    text = _cut(text, width)
    return text + " " * (width - _columns(text))


def _wrap(text: str, width: int) -> Iterator[str]:
    """Yield *text* in lines of *width* columns, parted at blanks where there are some."""
    line = ""
    for word in text.split(" "):
        if line and _columns(line) + 1 + _columns(word) > width:
            yield line.rstrip()
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield _cut(line, width)
