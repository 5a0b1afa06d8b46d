"""A run as a picture of its time: rows, their phases, and who ended whom. Values only, made from records.

A row is one piece of work: a run, a turn, a request to the model, a guardrail, a call. The rows of a timeline are a
tree, listed from the root down: each row follows its parent, and a row's `depth` counts those above it. A run below a
call is a nested one. Each row has:

    phases    what it did from when to when: a call waits for its turn (`queue`), runs, cleans up, is judged
    marks     what happened to it at one moment: the first token, a verdict, a deadline
    endings   how it ended; several only of a call that a later run segment has started again

An `Arrow` leads from the row that ended another one to that row. A `Gap` is a time in which no run segment was alive:
calls wait for verdicts, or the process had died; it may last for days.

All times are the records' own, in wall-clock seconds. They may go backwards, where a run was resumed on another
machine: no phase ends before it starts. Made by `read_timeline`, drawn by `render_html` and `render_text`.

Decisions:

A timeline is its own fold, beside that of spans. A span belongs to one run segment and begins when a body does. The
picture of a run needs what came before and between: the wait for a limit or for a verdict, the days between two
segments, the try that a crash cut off, all in the one row of the call. Rejected: making it from spans. They would
have to carry each of these facts to every exporter, and rows would have to be put together again from spans of
several segments. What both folds share (hosted calls, masks) is shared.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from agentloop._common.terminal_text import duration
from agentloop._common.values import Value
from agentloop.outcomes import CancelledBy

RowKind: TypeAlias = Literal["run", "turn", "guardrail", "model", "hosted", "call", "handoff"]
PhaseKind: TypeAlias = Literal[
    "segment",
    "pause",
    "turn",
    "request",
    "answer",
    "failed",
    "guardrail",
    "approval",
    "queue",
    "run",
    "cleanup",
    "after",
]
MarkKind: TypeAlias = Literal[
    "first_token", "approved", "rejected", "cancel_requested", "deadline", "timeout", "cleanup_cut", "note"
]


class Phase(Value, frozen=True, gc=False):
    """A part of a row's time.

    Attributes:
        kind: Of a run: `segment`, `pause`. Of a turn: `turn`. Of the model: `request` until the first token, `answer`
            after it, `failed` for an attempt without an answer. Of a guardrail, and within a call: `guardrail`. Of a
            call: `approval` until the verdict, `queue` until a limit had room, `run` its body, `cleanup` after a
            cancellation had reached it, `after` its body (hooks, guardrails, policies).
        start, end: Wall-clock seconds.
        open: True if no record tells its end; `end` is then the time of the last record.
        note: More of it in words, such as the limits that a call waited for.
    """

    kind: PhaseKind
    start: float
    end: float
    open: bool = False
    note: str = ""


class Mark(Value, frozen=True, gc=False):
    """An event of one moment in a row. `note` says more in words."""

    kind: MarkKind
    at: float
    note: str = ""


class Ending(Value, frozen=True, gc=False):
    """How a row ended.

    Attributes:
        status: Of a call that of its outcome, of a run that of its `RunEnded`; of a request to the model `answered` or
            `failed`; of a handoff `handed_over`, or `ignored` where another one came first; of a guardrail its verdict.
        at: Wall-clock seconds.
        cancelled_by: Who cancelled a call.
        reason: Why, in words; empty if none was given.
        error: The error's type and message; empty if there is none.
        cleanup: `"done"` or `"cut"`, if the call had to clean up.
        abandoned: True if a thread of the call was left running.
    """

    status: str
    at: float
    cancelled_by: CancelledBy | None = None
    reason: str = ""
    error: str = ""
    cleanup: Literal["done", "cut"] | None = None
    abandoned: bool = False


class TimelineRow(Value, frozen=True, gc=False):
    """One piece of work.

    Attributes:
        kind: What it is; a `hosted` call is one that the provider made itself while it answered.
        name: A tool's, agent's, model's or guardrail's name; of a turn its number and agent.
        depth: The number of rows above it.
        parent: The position of the row above it; None for the outermost run.
        start, end: Wall-clock seconds; `end` is the time of the last record if it is `open`.
        open: True if no record tells its end: it is under way, or its process has died.
        turn, path: The position in the run, as in records. `call_id` is given for calls.
        tokens: Input and output tokens of the requests in it; None if no provider has reported any.
        cost: The cost of its requests and calls, as a decimal number; None if no prices are known.
        facts: Names and texts of what else is known: arguments, outputs, messages, models. Secrets are masked.
    """

    kind: RowKind
    name: str
    depth: int
    parent: int | None
    start: float
    end: float
    open: bool = False
    turn: int = 0
    path: tuple[str, ...] = ()
    call_id: str | None = None
    phases: tuple[Phase, ...] = ()
    marks: tuple[Mark, ...] = ()
    endings: tuple[Ending, ...] = ()
    tokens: tuple[int, int] | None = None
    cost: str | None = None
    facts: tuple[tuple[str, str], ...] = ()

    @property
    def ending(self) -> Ending | None:
        """Its last ending."""
        return self.endings[-1] if self.endings else None


class Arrow(Value, frozen=True, gc=False):
    """A cancellation: the row *source* ended the row *target*, both by position.

    The source is the call that did it, by its failure or by `cancel_call`; otherwise the call around the nested run, or
    the run whose time was over or which the caller cancelled; the call itself if it cancelled itself.
    """

    source: int
    target: int
    at: float
    cause: CancelledBy


class Gap(Value, frozen=True, gc=False):
    """A time between two run segments. `crashed` is True if the first of them has no end: its process died."""

    start: float
    end: float
    crashed: bool = False


class Timeline(Value, frozen=True):
    """A run as a picture of its time; see the head of this module.

    `status` is that of the outermost run: a `RunStatus`, or None if no record tells its end. `records` counts the
    records behind the picture. `has_content` is False if arguments, outputs, messages and reasons were left out.
    """

    run_id: str = ""
    agent: str = ""
    status: str | None = None
    start: float = 0.0
    end: float = 0.0
    records: int = 0
    turns: int = 0
    calls: int = 0
    tokens: tuple[int, int] | None = None
    cost: str | None = None
    workflow: str | None = None
    trace_id: str | None = None
    has_content: bool = True
    gaps: tuple[Gap, ...] = ()
    arrows: tuple[Arrow, ...] = ()
    rows: tuple[TimelineRow, ...] = ()

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the status, and its first rows. `render_html` gives the whole page."""
        from agentloop._common import notebook  # only notebooks need it

        rows = [
            (
                "· " * row.depth + row.name,
                duration(row.end - row.start),
                "; ".join(filter(None, (ending.status.replace("_", " "), ending.reason, ending.error))),
            )
            for row in self.rows
            for ending in (row.ending or Ending("under way" if row.open else "", row.end),)
        ]
        facts = ("under way" if self.status is None else self.status, f"run {self.run_id}")
        return notebook.page(self.agent, *facts, pieces=[notebook.table(("", "took", "ending"), rows)])
