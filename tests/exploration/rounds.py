"""One round of exploration: a handful of full-stack schedules, cancel points, core worlds and malformed inputs.

A round is a function of the session's seed and its own number: `python -m tests.exploration --seed S --round N`
repeats it alone.
"""

from __future__ import annotations

import logging
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import attrs

from agentloop.exceptions import RunTimeout
from agentloop.testing.clockwork import BACKENDS
from agentloop.testing.drawing import Seeded, Taste, draw_tape, draw_world
from agentloop.testing.invariants import InvariantError, Tally, check
from agentloop.testing.loopfree import CoreRun, check_core, draw_core_world, play
from agentloop.testing.runs import CancelAt, World, WorldRun, run_one
from agentloop.testing.schedules import Tape

from . import crashes
from .malformed_stores import feed

TAPES = 3
CANCELS = 2
CORE_WORLDS = 25
CORE_TAPES = 4
MALFORMED = 20
PATIENCE = 20.0
"""Real seconds that one run may take: they take milliseconds, so a run that takes this long hangs."""


class Hung(BaseException):
    """A run that doesn't end, and isn't waiting either."""


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
    tally: Tally = attrs.field(factory=Tally)
    core: Tally = attrs.field(factory=Tally)
    violations: list[Violation] = attrs.field(factory=list)

    def add(self, other: Counts) -> None:
        """Count what *other* counted."""
        self.numbers.update(other.numbers)
        self.tally.add(other.tally)
        self.core.add(other.core)
        self.violations += other.violations


@contextmanager
def patience(seconds: float) -> Iterator[list[str]]:
    """Interrupt the block if it takes longer than *seconds*; what is yielded is not empty then."""
    hung: list[str] = []

    def ring(signum: int, frame: FrameType | None) -> None:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "somewhere"
        hung.append(where)
        signal.setitimer(signal.ITIMER_REAL, 1.0)  # again, should whoever was interrupted have taken it for its own
        raise Hung(where)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield hung
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Round:
    """Plays one round and counts into *counts*."""

    def __init__(self, seed: str, number: int, counts: Counts) -> None:
        self.where = f"--seed {seed} --round {number}"
        self.number = number
        self.chance = Seeded(f"{seed}/{number}")
        self.counts = counts

    def play(self, *, stop: bool = False) -> None:
        """Play all of it; what is broken is kept in the counts. With *stop*, only until something is."""
        logging.disable(logging.CRITICAL)
        # The quickest first: what the core alone shows, it shows in a moment.
        self.judged("core", self.core)
        if not (stop and self.counts.violations):
            self.judged("malformed", self.malformed)
        if not (stop and self.counts.violations):
            self.full_stack(stop=stop)
        if self.number % crashes.EVERY == 0 and not (stop and self.counts.violations):
            self.judged("crash", lambda: crashes.crash_points(self.chance, self.number, self.counts.numbers))

    def judged(self, what: str, work: Callable[[], object]) -> None:
        """Do *work*; what it breaks is a violation."""
        hung: list[str] = []
        try:
            with patience(PATIENCE) as hung:
                work()
        except InvariantError as error:
            self.broken(error.laws, f"{what}: {error}")
        except Hung:
            self.broken(("a_run_ends",), f"{what}: hangs at {hung[0]}")
        except AssertionError as error:
            self.broken((type(error).__name__,), f"{what}: {error}")
        except Exception as error:
            self.broken((f"raised {type(error).__name__}",), f"{what}: {error!r}")
        else:
            if hung:
                self.broken(("a_run_ends",), f"{what}: hung at {hung[0]}")

    def broken(self, laws: tuple[str, ...], words: str) -> None:
        """Keep a violation."""
        self.counts.violations.append(Violation(laws, words, self.where))

    # -- full stack

    def full_stack(self, *, stop: bool = False) -> None:
        """One drawn world under several tapes on each backend, then cancelled at some points."""
        chance = self.chance
        taste = Taste(approvals=self.number % 3 == 0)
        parts = draw_world(chance, taste)
        order: Any = chance.pick(["gate", "gate", "gate", "passes", "steps"])
        steps = 1
        for place in range(TAPES):
            world = World(**parts, order=order, tape=() if not place else draw_tape(chance))
            runs: list[WorldRun] = []
            streamed = chance.one_in(3)
            for backend in BACKENDS:
                self.judged(f"{backend} {order}", lambda w=world, b=backend, s=streamed, r=runs: self.one(w, b, s, r))
            if order == "gate" and len(runs) == len(BACKENDS):
                self.judged("both backends", lambda r=runs: equal(r))
                self.counts.numbers["compared"] += 1
            if runs and self.number % 20 == 0 and not place:
                self.judged("repeated", lambda r=runs, w=world: self.repeated(r[0], w))
            if stop and self.counts.violations:
                return
            steps = max([steps, *(run.steps for run in runs)])
        for backend in BACKENDS * CANCELS:
            cancel = CancelAt(chance.whole(0, steps), chance.pick(["scope", "native"]))
            world = World(**parts, order=order, tape=draw_tape(chance), cancel=cancel)
            self.judged(f"{backend} {order} {cancel}", lambda w=world, b=backend: self.one(w, b, chance.one_in(3), []))

    def one(self, world: World, backend: Any, streamed: bool, runs: list[WorldRun]) -> None:
        """Run *world* once and judge it."""
        run = run_one(world, backend=backend, streamed=streamed)
        runs.append(run)
        self.counts.numbers[f"schedules on {backend}"] += 1
        if run.cancelled_at is not None:
            self.counts.numbers["cancel points"] += 1
        if world.order == "gate":
            self.counts.numbers["gated"] += 1
        check(run, self.counts.tally)

    def repeated(self, first: WorldRun, world: World) -> None:
        """Run *world* again as *first* was: everything must be the same."""
        again = run_one(world, backend=first.backend, streamed=first.streamed)
        self.counts.numbers["repeated"] += 1
        if again.records != first.records or again.choices != first.choices:
            raise AssertionError("the same world ran differently the second time")

    # -- the core alone

    def core(self) -> None:
        """Drawn worlds of the core, each under several tapes and ends."""
        for _ in range(CORE_WORLDS):
            world = draw_core_world(self.chance, turns=2, calls=4)
            for tape in range(CORE_TAPES):
                scheduler = Tape((), seed=self.chance.whole(0, 1 << 30)) if tape else Tape(())

                def run(world: Any = world, scheduler: Any = scheduler) -> None:
                    found: CoreRun = play(world, scheduler)
                    check_core(found, self.counts.core)

                try:
                    run()
                except InvariantError as error:
                    self.broken(error.laws, f"core: {error}\n{world}")
                except Exception as error:
                    self.broken((f"core raised {type(error).__name__}",), f"core: {error!r}\n{world}")
                self.counts.numbers["core worlds"] += 1

    # -- malformed inputs

    def malformed(self) -> None:
        """Inputs that no well-behaved peer sends: each ends in a typed error or a value, never in anything else."""
        for _ in range(MALFORMED):
            kind, fault = feed(self.chance)
            self.counts.numbers[f"malformed {kind}"] += 1
            if fault is not None:
                self.broken(("malformed_input_is_refused_by_type",), f"{kind}: {fault}")


def equal(runs: list[WorldRun]) -> None:
    """Assert that one gated schedule gave one log on all backends."""
    first, *others = runs
    if any(isinstance(run.error, RunTimeout) for run in runs):
        return  # of a deadline and what else is due at that very moment either may come first
    for other in others:
        if other.records == first.records and type(other.error) is type(first.error):
            continue
        pairs = zip(first.records, other.records, strict=False)
        n = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first.records), len(other.records)))
        one = first.records[n] if n < len(first.records) else "nothing more"
        two = other.records[n] if n < len(other.records) else "nothing more"
        raise SchedulesDiffer(f"record {n}: {first.backend} {one!r}, {other.backend} {two!r}")


class SchedulesDiffer(AssertionError):
    """A law about several runs: the same schedule, the same log."""
