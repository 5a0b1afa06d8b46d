"""The words of a timeline: of statuses, causes, kinds, times and amounts. The same in text and on the page."""

from __future__ import annotations

from collections.abc import Mapping

from agentloop._common.terminal_text import duration
from agentloop.tracing.timeline import Ending, Timeline, TimelineRow

STATUSES: Mapping[str, str] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "timed_out": "timed out",
    "cancelled": "cancelled",
    "rejected": "rejected",
    "replayed": "replayed",
    "skipped": "skipped",
    "unknown": "unknown",
    "completed": "completed",
    "interrupted": "interrupted",
    "stopped": "stopped",
    "answered": "answered",
    "handed_over": "handed over",
    "ignored": "ignored",
}
"""Words for the statuses of calls and runs; a guardrail's verdict is its own word."""
CAUSES: Mapping[str, str] = {
    "tool": "by itself",
    "caller": "by the caller",
    "sibling": "by the failure of another call",
    "deadline": "at the run's deadline",
    "parent": "from above",
}
"""Words for the members of `CancelledBy`, after the word cancelled."""
PHASES: Mapping[str, str] = {
    "segment": "run segment",
    "pause": "paused",
    "turn": "turn",
    "request": "waiting for the first token",
    "answer": "answering",
    "failed": "failed attempt",
    "guardrail": "guardrail",
    "approval": "waiting for a verdict",
    "queue": "queued",
    "run": "running",
    "cleanup": "cleaning up",
    "after": "after the body",
}
KINDS: Mapping[str, str] = {
    "run": "run",
    "turn": "turn",
    "guardrail": "guardrail",
    "model": "model",
    "hosted": "hosted call",
    "call": "call",
    "handoff": "handoff",
}
OPEN = "no end recorded"
NEVER = "never started"
WAITS = "waits for a verdict"


def describe_open(row: TimelineRow) -> str:
    """Return the words for a row without an end: what it waits for, or that no record tells more."""
    return (
        WAITS if row.kind == "call" and any(phase.kind == "approval" and phase.open for phase in row.phases) else OPEN
    )


def describe_ending(row: TimelineRow, ending: Ending, source: str = "") -> str:
    """Return how a row ended; *source* names the call that cancelled it, if one did."""
    words = [STATUSES.get(ending.status, ending.status)]
    if ending.cancelled_by is not None:
        by = f"by {source}" if source else CAUSES[ending.cancelled_by]
        if source and ending.cancelled_by == "sibling":
            by = f"by the failure of {source}"
        words.append(by)
    shown = " ".join(words)
    details = [ending.reason if row.kind != "model" or ending.reason not in ("", "stop", "tool_calls") else ""]
    details += [ending.error, f"cleanup {ending.cleanup}" if ending.cleanup else ""]
    details.append("a thread was left running" if ending.abandoned else "")
    return ": ".join([shown, *(["; ".join(filter(None, details))] if any(details) else [])])


def describe_amounts(tokens: tuple[int, int] | None, cost: str | None) -> list[str]:
    """Return tokens and cost in words; nothing for what is unknown."""
    found = [] if tokens is None else [f"{tokens[0]:,}→{tokens[1]:,} tokens"]
    return found if cost is None else [*found, f"cost {cost}"]


def summarize(timeline: Timeline) -> list[tuple[str, str]]:
    """Return what is known of the whole run, as names and texts; the name is empty where the text says it."""
    gone = sum(max(gap.end - gap.start, 0) for gap in timeline.gaps)
    if not timeline.rows:
        return []
    found = [("", format_span(max(timeline.end - timeline.start - gone, 0)))]
    found += [("", _count(timeline.turns, "turn")), ("", _count(timeline.calls, "call"))]
    if timeline.gaps:
        found.append(("paused for", format_span(gone)))
    found += [("", text) for text in describe_amounts(timeline.tokens, timeline.cost)]
    found += [("workflow", timeline.workflow)] if timeline.workflow else []
    return found if timeline.has_content else [*found, ("", "without content")]


def describe_run(timeline: Timeline) -> str:
    """Return the run in one line: who, how it ended, how long it took, what it used."""
    if not timeline.rows:
        return "No run has begun in this journal."
    status = OPEN if timeline.status is None else STATUSES.get(timeline.status, timeline.status)
    parts = [f"{name} {text}".strip() for name, text in summarize(timeline)]
    return f"Run {timeline.run_id} of {timeline.agent}: " + " · ".join([status, *parts])


def name_canceller(timeline: Timeline) -> dict[int, list[str]]:
    """Return, by the position of a cancelled row, the names of the calls that cancelled it, in order of its endings.

    A name is empty where no call did.
    """
    found: dict[int, list[str]] = {}
    for arrow in timeline.arrows:
        source = timeline.rows[arrow.source]
        is_call = source.kind == "call" and arrow.source != arrow.target and arrow.cause != "parent"
        found.setdefault(arrow.target, []).append(source.name if is_call else "")
    return found


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def format_span(seconds: float) -> str:
    """Format a time that may be days long."""
    if seconds < 90:
        return duration(seconds)
    minutes, hours, days = round(seconds / 60), seconds / 3600, seconds / 86_400
    if minutes < 90:
        return f"{minutes} min"
    return f"{hours:.1f} h" if hours < 36 else f"{days:.1f} d"
