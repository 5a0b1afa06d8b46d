"""Spans of runs, and timelines: both folded from records. What belongs to timelines is imported at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._common.lazy_names import import_at_first_use
from agentloop.spans import RunOpening, Span, Trace, current_span, current_trace, trace
from agentloop.tracing.fold import SpanFold

if TYPE_CHECKING:
    from agentloop.tracing._timeline_fold import TimelineFold, read_timeline
    from agentloop.tracing._timeline_page import TimelineFrame, render_html
    from agentloop.tracing._timeline_text import render_text
    from agentloop.tracing.timeline import Arrow, Ending, Gap, Mark, Phase, Timeline, TimelineRow

__all__ = [
    "RunOpening",
    "Span",
    "SpanFold",
    "Trace",
    "current_span",
    "current_trace",
    "trace",
    "read_timeline",
    "render_html",
    "render_text",
    "Timeline",
    "TimelineFold",
    "TimelineFrame",
    "TimelineRow",
    "Phase",
    "Mark",
    "Ending",
    "Arrow",
    "Gap",
]

_LAZY = {
    **dict.fromkeys(("TimelineFold", "read_timeline"), "_timeline_fold"),
    **dict.fromkeys(("Ending", "TimelineRow", "Arrow", "Mark", "Gap", "Phase", "Timeline"), "timeline"),
    "TimelineFrame": "_timeline_page",
    "render_html": "_timeline_page",
    "render_text": "_timeline_text",
}

if not TYPE_CHECKING:  # a checker reads the imports above, and reports a name that isn't among them
    __getattr__ = import_at_first_use(globals(), _LAZY)


def __dir__() -> list[str]:
    return sorted(__all__)
