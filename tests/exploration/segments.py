"""Runs of many segments: a generated run is cancelled, cut at any record, and resumed, several times.

A journal may be cut between any two records, since a crash keeps what was durable. After each segment the log is judged
as somebody judges it who has only the log: `check` and a replay on each backend must accept it. Each round of an
exploration has one such run. The choices depend on the seed only.
"""

from __future__ import annotations

from typing import Any

import attrs

from agentloop.journal import MemoryJournal
from agentloop.testing.invariants._observation import Observation
from agentloop.testing.replaying import replay
from agentloop.testing.simulation._restarts import _Restarts
from agentloop.testing.simulation.disk import SimulatedDisk
from agentloop.testing.simulation.event_loop import BACKENDS, Backend
from agentloop.testing.simulation.generated import Chance, draw_tape
from agentloop.testing.simulation.runs import CancelAt, World

from .counts import SLOW, Counts
from .generators import PLAIN, GeneratorConfig, draw_world
from .invariants import check

NESTED = attrs.evolve(PLAIN, nesting=1, turns=2, calls=3)
SIZES = (
    NESTED,
    attrs.evolve(NESTED, guards=True, handoffs=True, sessions=True, limits=True),
    attrs.evolve(NESTED, approvals=True, guards=True),
    GeneratorConfig(turns=2, calls=3, secrets=False),
)
MOMENTS = 60
"""A cancellation comes before one of this many steps of a process."""


class Segments(_Restarts):
    """The processes of one run on one journal, whose lines outlive them."""

    def __init__(self, world: World, streamed: bool) -> None:
        super().__init__(world, SimulatedDisk(), streamed)
        self.lines: list[bytes] = []
        self._journal = MemoryJournal()

    def _open_journal(self) -> Any:
        self._journal = MemoryJournal(codec=self.codec)
        self._journal._records = list(self.lines)
        return self._journal

    def run_segment(self, backend: Backend, cancel: CancelAt | None, counts: Counts) -> int:
        """Run one process, cancelled at *cancel*; return how many records the log has then."""
        self.world = attrs.evolve(self.world, cancel=cancel)
        counts.note(self.run_process(backend))
        counts.numbers["segments"] += 1
        self.lines = self._journal._records
        self.cut(len(self.lines))
        return len(self.held)

    def cut(self, count: int) -> None:
        """Keep the first *count* records (the header isn't one)."""
        self.lines = self.lines[: count + 1]
        self.over = False
        self.read_records(self.lines)


def many_segments(chance: Chance, counts: Counts | None = None) -> int:
    """Run one generated world in several segments, judge the log after each, and return their number.

    Adds them to *counts*, if it is given.

    Raises:
        AssertionError: for a broken invariant, or a replay with another log.
        ReplayDivergence: for a replay that comes to other records.
    """
    world = World(
        **draw_world(chance, chance.pick(SIZES)), order=chance.pick(["gate", "passes"]), tape=draw_tape(chance)
    )
    run, counts = Segments(world, chance.one_in(4)), counts or Counts()
    for number in range(chance.whole(2, 5)):
        before = len(run.held)
        cancel = CancelAt(chance.whole(0, MOMENTS), "scope") if chance.one_in(2) else None
        count = run.run_segment(chance.pick(BACKENDS), cancel, counts)
        if chance.one_in(2) and count > max(before, 1):
            run.cut(chance.whole(max(before, 1), count - 1))
        if not run.held:
            return number
        judge(run)
        if run.over:
            return number + 1
    return len(run.runs)


def judge(run: Segments) -> None:
    """Judge the log of *run* by itself: nobody says how its processes ended."""
    config: Any = run.world.options["run_config"]
    check(Observation(records=run.held, agent=run.runs[-1].agent, config=config, faultless=True), but=SLOW)
    definitions: Any = run.world.agent
    for backend in BACKENDS:
        again = replay(run.held, definitions(), run_config=config, backend=backend)
        assert again.records == run.held, f"its replay on {backend} has another log"
