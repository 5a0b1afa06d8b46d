"""What a session has done so far, and what came of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs

from agentloop._storage.state_codec import plain_line
from agentloop.testing.invariants import CoverageCounter
from agentloop.testing.simulation.runs import WorldRun

SLOW = frozenset({"storing_changes_nothing"})
"""Invariants that take as long as a run: one run of each world is judged by them."""


@attrs.frozen
class Violation:
    """What a round found: which law, in words, and where it is found again."""

    laws: tuple[str, ...]
    words: str
    where: str


@attrs.define
class Counts:
    """What was done so far, and what came of it."""

    numbers: Counter[str] = attrs.field(factory=Counter)
    tally: CoverageCounter = attrs.field(factory=CoverageCounter)
    core: CoverageCounter = attrs.field(factory=CoverageCounter)
    violations: list[Violation] = attrs.field(factory=list)
    digest: Any = None
    """Takes in each run's log, where one is given."""

    def note(self, run: WorldRun) -> None:
        """Take *run*'s log into the digest."""
        if self.digest is not None:
            self.digest.update(b"\n".join([run.backend.encode(), *map(plain_line, run.records)]))

    def add(self, other: Counts) -> None:
        """Count what *other* counted."""
        self.numbers.update(other.numbers)
        self.tally.add(other.tally)
        self.core.add(other.core)
        self.violations += other.violations
