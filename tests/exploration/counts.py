"""The counts of a session: the work done so far, the invariants exercised, the violations found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs

from agentloop._storage.record_codec import record_to_line
from agentloop.testing.simulation.runs import WorldRun

from .invariants import CoverageCounter

SLOW = frozenset({"storing_changes_nothing"})
"""Invariants that take as long as a run: they judge only one run of each world."""


@attrs.frozen
class Violation:
    """A finding of a round: the broken invariants, a message, and the arguments that repeat the round."""

    invariants: tuple[str, ...]
    words: str
    where: str


@attrs.define
class Counts:
    """The counts of one session. The rounds of a process add to one; a session joins those of its processes."""

    numbers: Counter[str] = attrs.field(factory=Counter)
    tally: CoverageCounter = attrs.field(factory=CoverageCounter)
    core: CoverageCounter = attrs.field(factory=CoverageCounter)
    violations: list[Violation] = attrs.field(factory=list)
    digest: Any = None
    """A hash of all runs' logs; None: no hash is made."""

    def note(self, run: WorldRun) -> None:
        """Add *run*'s log to the digest, if there is one."""
        if self.digest is not None:
            self.digest.update(b"\n".join([run.backend.encode(), *map(record_to_line, run.records)]))

    def add(self, other: Counts) -> None:
        """Add the counts of *other*."""
        self.numbers.update(other.numbers)
        self.tally.add(other.tally)
        self.core.add(other.core)
        self.violations += other.violations
