"""Small pieces of HTML for what a notebook shows last in a cell, as `_repr_html_` returns them.

Everything that is shown may be the words of a model or of a page that a tool has read, so all of it is hostile: each
text is bounded, made of visible characters, escaped, and put into `<code>` or `<pre>`, where notebooks typeset no
formulas. There are no scripts, links, pictures, styles and ids, so a cell can't change the page around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from agentloop._common.error_text import shorten
from agentloop._common.masking import MASK, mask_arguments
from agentloop._common.terminal_text import duration, exact, harmless

MOST_ROWS = 40
"""The number of rows, or of lines of a text, that a cell shows."""
_MOST_CHARS = 4_000
_MOST_IN_CELL = 200


def line(text: str) -> str:
    """Return *text* as one line of code, of at most 200 characters."""
    return f"<code>{_write(exact(shorten(' '.join(text[: 4 * _MOST_IN_CELL].split()), _MOST_IN_CELL)))}</code>"


def block(text: str) -> str:
    """Return *text* as it is written, with its lines: at most 40 of them, and 4,000 characters."""
    lines = shorten(text, _MOST_CHARS).splitlines()
    if len(lines) > MOST_ROWS:
        lines = [*lines[: MOST_ROWS - 1], "…"]
    return f"<pre>{_write(harmless(chr(10).join(lines)))}</pre>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts, of at most 40 rows; nothing without rows."""
    shown = list(rows)
    if not shown:
        return ""
    hidden = len(shown) - MOST_ROWS
    more = f"<p>… and {hidden} more</p>" if hidden > 0 else ""
    written = [f"<tr>{''.join(f'<td>{line(text)}</td>' for text in row)}</tr>" for row in shown[:MOST_ROWS]]
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(written)}</tbody></table>{more}"


def page(title: str, *facts: str, pieces: Iterable[str] = ()) -> str:
    """Return a cell: a title, facts in a few words each (those that are empty are left out), and *pieces* of HTML."""
    told = " · ".join(escape(exact(fact)) for fact in facts if fact)
    return f"<div><p><b>{line(title)}</b> {told}</p>{''.join(pieces)}</div>"


def run_cell(
    agent: str,
    *facts: str,
    answer: Any,
    is_secret: bool,
    calls: Iterable[tuple[Any, Any]],
    waiting: Iterable[Any],
) -> str:
    """Return a cell about a run: its answer, the calls that wait for a verdict, and those that have settled.

    *answer* is the final output, None if there is none; *calls* are pairs of a `ToolCall` and its `CallOutcome`, and
    *waiting* are `ApprovalRequest`s. What a tool marks secret is hidden, as in the reprs of these.
    """
    rows = [*map(_show_waiting, waiting), *(_show_settled(call, outcome) for call, outcome in calls)]
    answers = [] if answer is None else [block(MASK if is_secret else _show(answer))]
    return page(agent, *facts, pieces=[*answers, table(("call", "arguments", "outcome", "took", "output"), rows)])


def _show_waiting(request: Any) -> tuple[str, ...]:
    reason = "" if request.reason is None else f": {request.reason}"
    call = request.call
    return (call.name, mask_arguments(call.arguments, call.secret), f"waits for a verdict{reason}", "", "")


def _show_settled(call: Any, outcome: Any) -> tuple[str, ...]:
    took = ""
    if outcome.started_at is not None and outcome.ended_at is not None:
        took = duration(outcome.ended_at - outcome.started_at)
    output = "" if outcome.output is None else MASK if outcome.secret else _show(outcome.output)
    arguments = mask_arguments(call.arguments, call.secret)
    return (call.name, arguments, outcome.status.replace("_", " "), took, output)


def _show(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def count(number: int, word: str) -> str:
    """Return *number* of *word* in words: `1 call`, `2 calls`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _write(text: str) -> str:
    return escape(text.encode(errors="replace").decode())
