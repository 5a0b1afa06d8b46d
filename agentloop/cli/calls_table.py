"""The table at the end of a run: its calls with outcome, times of waiting and work, and what the run has used.

Made of the run's timeline, so of its records only. For terminals.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text as Styled

from agentloop._common.terminal_text import duration, exact
from agentloop.records import Record
from agentloop.tracing import Timeline, read_timeline
from agentloop.tracing.timeline import PhaseKind, TimelineRow

_MOST_ROWS = 20
_LEAST_SECONDS = 0.0005
"""Less is shown as nothing: a call that needn't wait is queued for microseconds."""


def render_summary(records: Sequence[Record], width: int, *, calls: bool = True) -> str:
    """Return the table of the calls in *records*, where *calls* is True and there are any, and a line of the usage."""
    timeline = read_timeline(records, content=False)
    console = Console(stderr=True, highlight=False, width=width)
    with console.capture() as captured:
        rows = [row for row in timeline.rows if row.kind == "call"]
        if calls and rows:
            console.print(_make_table(rows))
        console.print(Styled(describe_usage(timeline), "dim"))
    return captured.get()


def describe_usage(timeline: Timeline) -> str:
    """Return requests, tokens, cost and time of a run in words."""
    requests = sum(row.kind == "model" for row in timeline.rows)
    words = [f"{requests} request{'' if requests == 1 else 's'}"]
    if timeline.tokens is not None and any(timeline.tokens):
        words.append("{:,} tokens in, {:,} out".format(*timeline.tokens))
    if timeline.cost is not None:
        words.append(f"cost {timeline.cost}")
    words.append(duration(timeline.end - timeline.start))
    return " · ".join(words)


def _make_table(rows: Sequence[TimelineRow]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("call", overflow="ellipsis", no_wrap=True)
    table.add_column("outcome", overflow="ellipsis", no_wrap=True)
    table.add_column("queue", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    least = min(row.depth for row in rows)
    for row in rows[:_MOST_ROWS]:
        outcome = "under way" if row.ending is None else row.ending.status.replace("_", " ")
        style = {"succeeded": "green", "replayed": "green", "cancelled": "yellow"}.get(outcome, "red")
        name = "  " * ((row.depth - least) // 3) + exact(row.name)
        table.add_row(Styled(name), Styled(outcome, style), _sum_time(row, "queue"), _sum_time(row, "run"))
    if len(rows) > _MOST_ROWS:
        table.add_row(f"… and {len(rows) - _MOST_ROWS} more")
    return table


def _sum_time(row: TimelineRow, kind: PhaseKind) -> str:
    total = sum(phase.end - phase.start for phase in row.phases if phase.kind == kind)
    return duration(total) if total >= _LEAST_SECONDS else ""
