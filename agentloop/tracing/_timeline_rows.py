"""The rows of a timeline while records are folded: mutable, and frozen at the end. Does not know about records."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, InvalidOperation

import attrs

from agentloop.outcomes import CancelledBy
from agentloop.tracing._timeline_content import clean
from agentloop.tracing.timeline import Ending, Mark, MarkKind, Phase, PhaseKind, RowKind, TimelineRow

MAX_NAME = 200
MAX_DIGITS = 30
"""Of a cost, before and behind the point."""
KEPT_OPEN: frozenset[PhaseKind] = frozenset({"approval"})
"""Phases that outlast a run segment: the verdict may come days later."""


@attrs.define(eq=False)
class GrowingPhase:
    """A phase whose end may not be known yet."""

    kind: PhaseKind
    start: float
    end: float | None = None
    note: str = ""

    def freeze(self, now: float) -> Phase:
        """Return the phase as a value; *now* is the end of an open one. Clocks that go backwards end none early."""
        end = now if self.end is None else self.end
        return Phase(self.kind, self.start, max(self.start, end), self.end is None, self.note)


@attrs.define(eq=False)
class EndedBy:
    """The part of an ending that a arrow is made of: the end's time, and who caused it."""

    at: float
    cause: CancelledBy
    call_id: str | None


@attrs.define(eq=False)
class GrowingRow:
    """A row as the records so far tell it. Mutated by the fold only."""

    kind: RowKind
    name: str
    start: float
    parent: GrowingRow | None = None
    turn: int = 0
    path: tuple[str, ...] = ()
    call_id: str | None = None
    end: float | None = None
    children: list[GrowingRow] = attrs.field(factory=list)
    phases: list[GrowingPhase] = attrs.field(factory=list)
    marks: list[Mark] = attrs.field(factory=list)
    endings: list[Ending] = attrs.field(factory=list)
    ended_by: list[EndedBy] = attrs.field(factory=list)
    facts: dict[str, str] = attrs.field(factory=dict)
    tokens: tuple[int, int] | None = None
    cost: Decimal | None = None

    def add_fact(self, name: str, text: object) -> None:
        """Set a fact, unless *text* is None or empty."""
        if text is not None and text != "":
            self.facts[name] = clean(str(text))

    def begin(self, kind: PhaseKind, at: float, note: str = "") -> GrowingPhase:
        """Begin a phase."""
        phase = GrowingPhase(kind, at, None, clean(note))
        self.phases.append(phase)
        return phase

    def add_phase(self, kind: PhaseKind, start: float, end: float, note: str = "") -> None:
        """Add a phase that is over."""
        self.phases.append(GrowingPhase(kind, start, max(start, end), clean(note)))

    def open_phase(self, kind: PhaseKind) -> GrowingPhase | None:
        """Return the last phase of *kind* if it is open."""
        for phase in reversed(self.phases):
            if phase.kind == kind:
                return phase if phase.end is None else None
        return None

    def close(self, at: float, *, note: str = "") -> None:
        """End its open phases, except for those that outlast a run segment."""
        for phase in self.phases:
            if phase.end is None and phase.kind not in KEPT_OPEN:
                phase.end = max(phase.start, at)
                phase.note = phase.note or note

    def add_mark(self, kind: MarkKind, at: float, note: str = "") -> None:
        """Add a mark."""
        self.marks.append(Mark(kind, at, clean(note)))

    def count(self, tokens: tuple[int, int] | None, cost: str | None) -> None:
        """Add *tokens* and *cost* to this row and those above it."""
        price = _to_decimal(cost)
        row: GrowingRow | None = self
        while row is not None:
            if tokens is not None:
                before = row.tokens or (0, 0)
                row.tokens = (before[0] + tokens[0], before[1] + tokens[1])
            if price is not None:
                row.cost = price + (row.cost or 0)
            row = row.parent

    def above(self) -> Iterator[GrowingRow]:
        """Yield the rows above, the nearest first."""
        row = self.parent
        while row is not None:
            yield row
            row = row.parent

    def freeze(self, depth: int, parent: int | None, now: float) -> TimelineRow:
        """Return the row as a value; *now* is the end of what is open."""
        phases = tuple([each.freeze(now) for each in self.phases])
        is_open = self.end is None
        ends = [phase.end for phase in phases]
        end = max([self.start, now, *ends]) if self.end is None else max([self.start, self.end, *ends])
        return TimelineRow(
            self.kind,
            clean(self.name)[:MAX_NAME],
            depth,
            parent,
            min([self.start, *(phase.start for phase in phases)]),
            end,
            open=is_open,
            turn=self.turn,
            path=self.path,
            call_id=self.call_id,
            phases=phases,
            marks=tuple(self.marks),
            endings=tuple(self.endings),
            tokens=self.tokens,
            cost=None if self.cost is None else format(self.cost.normalize(), "f"),
            facts=tuple(self.facts.items()),
        )


def _to_decimal(text: str | None) -> Decimal | None:
    """Return a cost as a number; None if it is none, or none that could be summed up and written out."""
    try:
        found = None if text is None else Decimal(text)
    except InvalidOperation:
        return None
    return found if found is not None and found.is_finite() and abs(found.adjusted()) <= MAX_DIGITS else None


def flatten(root: GrowingRow) -> Iterator[tuple[GrowingRow, int, int | None]]:
    """Yield *root* and the rows below it, each before its children: row, depth, and position of the row above."""
    positions: dict[int, int] = {}
    left: list[tuple[GrowingRow, int]] = [(root, 0)]
    while left:  # no recursion: agents may be nested deeper than the interpreter's limit
        row, depth = left.pop()
        above = None if row.parent is None else positions[id(row.parent)]
        positions[id(row)] = len(positions)
        yield row, depth, above
        left += [(child, depth + 1) for child in reversed(row.children)]
