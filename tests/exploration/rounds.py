"""One round of exploration: some full-stack schedules, cancel points, core worlds and malformed inputs.

A round is a function of the session's seed and its own number: `python -m tests.exploration --seed S --round N`
repeats it alone. Its fastest parts come first, as they show a fault of the core in a moment.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from types import FrameType
from typing import Any

import attrs

from agentloop._storage.record_codec import record_from_json, record_to_json
from agentloop._storage.withholding import Secrets
from agentloop.testing.invariants._observation import Counterpart, Relation
from agentloop.testing.replaying import replay
from agentloop.testing.simulation._findings import ExplorationFailure, Finding
from agentloop.testing.simulation._shrink import shrunk
from agentloop.testing.simulation.event_loop import BACKENDS, Backend
from agentloop.testing.simulation.generated import draw_tape
from agentloop.testing.simulation.normal_form import normal
from agentloop.testing.simulation.runs import CancelAt, World, WorldRun, run_one

from . import alone, answers, arrivals, crashes, further, rare, segments, surrounded
from .counts import SLOW, Counts, Violation
from .fixture_agents import XOR_CODEC
from .generators import GeneratorConfig, Seeded, draw_world
from .invariants import InvariantError, check, check_counterparts, counterpart_of
from .malformed_stores import feed
from .pure_core import CoreWorld, check_core, draw_core_world, play

MOMENTS = 8
"""The largest number of the moment at which a cancellation comes while everything waits."""
SMALL = GeneratorConfig(turns=1, calls=3, tools=1, nesting=0)
MIDDLE = GeneratorConfig(turns=2, calls=3, tools=2)
LARGE = GeneratorConfig(turns=3, calls=4, tools=3)
"""Generator configs of full-stack worlds. Small ones are most frequent: they show most faults, and many more fit in."""
CORE_WORLDS = 120
CORE_TAPES = 4
"""Schedules of one core world, the natural one and random ones; each counts as a world of its own."""
MALFORMED = 24
REPEATED = 19
REPLAYED = 5
"""Re-run the first world every REPEATED rounds, replay it every REPLAYED rounds."""
OTHER: dict[Backend, Backend] = {"asyncio": "trio", "trio": "asyncio"}
PATIENCE = 20.0
"""Real seconds for one part of a round: runs take milliseconds, so a run that takes this long hangs."""


SHRINKING = 600.0
"""Real seconds for one part of a round in which a finding may be shrunk."""


class Hung(BaseException):
    """A run doesn't end, and doesn't wait either."""


@contextmanager
def patience(seconds: float) -> Iterator[list[str]]:
    """Interrupt the block with `Hung` if it takes longer than *seconds*; the yielded list then has the place."""
    hung: list[str] = []

    def ring(signum: int, frame: FrameType | None) -> None:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "somewhere"
        hung.append(where)
        signal.setitimer(signal.ITIMER_REAL, 1.0)  # again, as the interrupted code may have swallowed the error
        raise Hung(where)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield hung
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@attrs.define
class Chosen:
    """A scheduler that chooses by *chance*; the natural order without one. It counts its calls in `asked`."""

    chance: Seeded | None = None
    asked: int = 0
    numbers: list[int] = attrs.field(factory=list)

    def __call__(self, labels: Sequence[str]) -> int:
        self.asked += 1
        if self.chance is None:
            return 0
        number = self.chance.whole(0, len(labels) - 1)
        self.numbers.append(number)
        return number


class Round:
    """Plays one round, and adds its results to *counts*."""

    def __init__(self, seed: str, number: int, counts: Counts, *, small: bool = False) -> None:
        self.where = f"--seed {seed} --round {number}"
        self.seed = seed
        self.number = number
        self.chance = Seeded(f"{seed}/{number}")
        self.counts = counts
        self.small = small
        """True if a run that breaks an invariant is shrunk before it is reported."""

    def play(self, *, stop: bool = False) -> None:
        """Play all parts, and add violations to the counts. With *stop*, end after the first part that has one."""
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            self._play_parts(stop)
        finally:
            logging.disable(before)

    def _play_parts(self, stop: bool) -> None:
        # The fastest first: a fault of the core shows there in a moment.
        self.judged("alone", self.alone)
        if not (stop and self.counts.violations):
            self.judged("core", self.core)
        if not (stop and self.counts.violations):
            self.judged("malformed", self.malformed)
        if not (stop and self.counts.violations):
            self.full_stack(stop=stop)
        if not (stop and self.counts.violations):
            self.judged("further", self.further)
        for place in range(surrounded.EVERY_ROUND):
            if not (stop and self.counts.violations):
                self.judged(
                    "surrounded", lambda number=self.number * surrounded.EVERY_ROUND + place: self.surrounded(number)
                )  # type: ignore[misc]
        if not (stop and self.counts.violations):
            self.judged("answers", self.answers)
        if not (stop and self.counts.violations):
            self.judged("segments", self.segments)
        if self.number % rare.EVERY == 0 and not (stop and self.counts.violations):
            self.judged("rare", self.rare)
        if self.number % arrivals.EVERY == 1 and not (stop and self.counts.violations):
            self.judged("arrivals", self.arrivals)
        if self.number % crashes.EVERY == 0 and not (stop and self.counts.violations):
            self.judged("crash", lambda: crashes.crash_points(self.chance, self.number, self.counts))

    def judged(self, what: str, work: Callable[[], object]) -> None:
        """Do *work*; each invariant that it breaks, each other error and a hanging run is a violation."""
        hung: list[str] = []
        try:
            with patience(SHRINKING if self.small else PATIENCE) as hung:
                work()
        except InvariantError as error:
            self.broken(error.invariants, f"{what}: {error}")
        except Hung:
            self.broken(("a_run_ends",), f"{what}: hangs at {hung[0]}")
        except AssertionError as error:
            self.broken((type(error).__name__,), f"{what}: {error}")
        except Exception as error:
            self.broken((f"raised {type(error).__name__}",), f"{what}: {error!r}")
        else:
            if hung:
                self.broken(("a_run_ends",), f"{what}: hung at {hung[0]}")

    def broken(self, invariants: tuple[str, ...], words: str) -> None:
        """Add a violation to the counts."""
        self.counts.violations.append(Violation(invariants, words, self.where))

    # -- full stack

    def full_stack(self, *, stop: bool = False) -> None:
        """Run one generated world under several tapes on each backend, then cancelled at some points."""
        chance = self.chance
        size = chance.pick([SMALL, SMALL, MIDDLE, LARGE])
        parts = draw_world(chance, attrs.evolve(size, approvals=self.number % 3 == 0))
        order: Any = chance.pick(["gate", "gate", "gate", "passes", "steps"])
        streamed, backend = chance.one_in(3), BACKENDS[self.number % len(BACKENDS)]
        runs: list[WorldRun] = []
        first = World(**parts, order=order)
        for name in BACKENDS:
            but = frozenset() if name == backend else SLOW
            self.judged(f"{name} {order}", lambda b=name, x=but: self.one(first, b, streamed, runs, but=x))
        world = World(**parts, order=order, tape=draw_tape(chance))
        if order == "gate":
            world = keeping_up(world)
            self.judged("both backends", lambda: self.counterparts(runs, "backend"))
        if runs and self.number % REPEATED == 0:
            self.judged("again", lambda: self.repeated(runs[0]))
        if runs and self.number % REPLAYED == 0:
            self.judged("replay", lambda: self.replayed(runs[0]))
        if stop and self.counts.violations:
            return
        modes: list[WorldRun] = []
        for watched in (False, True):
            self.judged(f"{backend} {order}", lambda s=watched: self.one(world, backend, s, modes))
        if order == "gate":
            self.judged("both modes", lambda: self.counterparts(modes, "mode"))
        steps = max([1, *(run.steps for run in (*runs, *modes))])
        if order == "gate":
            cancel = CancelAt(chance.whole(0, min(steps // 3, MOMENTS)), waiting=True)
            self.cancelled_while_waiting(attrs.evolve(world, cancel=cancel), streamed=chance.one_in(3))
        for name in BACKENDS * (1 if order == "gate" else 2):
            if stop and self.counts.violations:
                return
            cancel = CancelAt(chance.whole(0, steps - 1), chance.pick(["scope", "native"]))
            world = World(**parts, order=order, tape=draw_tape(chance), cancel=cancel)
            watched = chance.one_in(3)
            self.judged(f"{name} {order} {cancel}", lambda w=world, b=name, s=watched: self.one(w, b, s, []))

    def cancelled_while_waiting(self, world: World, *, streamed: bool) -> None:
        """Cancel *world* by a scope on both backends, and natively: all three runs must be equal.

        Parts that finish side by side do so in the order of their backend, so logs of two backends are compared in
        normal form.
        """
        assert world.cancel is not None
        native = attrs.evolve(world, cancel=attrs.evolve(world.cancel, kind="native"))
        runs: list[WorldRun] = []
        for one, name in ((world, "trio"), (world, "asyncio"), (native, "asyncio")):
            self.judged(f"{name} {one.cancel}", lambda w=one, b=name: self.one(w, b, streamed, runs))
        self.judged("both backends, cancelled", lambda: self.alike(runs[:2]))
        self.judged("both cancellations", lambda: self.counterparts(runs[1:], "cancellation"))

    def one(
        self,
        world: World,
        backend: Backend,
        streamed: bool,
        runs: list[WorldRun],
        *,
        but: frozenset[str] = SLOW,
    ) -> None:
        """Run *world* once and judge it."""
        run = run_one(world, backend=backend, streamed=streamed)
        runs.append(run)
        numbers = self.counts.numbers
        numbers[f"schedules on {backend}"] += 1
        numbers["cancel points"] += run.cancelled_at is not None
        numbers["gated"] += world.order == "gate"
        self.counts.note(run)
        try:
            check(run, self.counts.tally, but=but)
        except InvariantError as error:
            raise made_small(run, error) if self.small else error from None

    def counterparts(self, runs: list[WorldRun], relation: Relation) -> None:
        """Check that the two *runs* are equal counterparts; does nothing if one of them is missing."""
        if len(runs) == 2:
            self.counts.numbers["compared"] += 1
            check_counterparts(runs[0], counterpart_of(runs[1], relation), self.counts.tally)

    def alike(self, runs: list[WorldRun]) -> None:
        """Check that the logs of the two *runs* are equal in normal form; does nothing if one of them is missing."""
        if len(runs) == 2:
            self.counts.numbers["compared"] += 1
            ours, theirs = (normal(run.records) for run in runs)
            differ = [(one, other) for one, other in zip_longest(ours, theirs) if one != other]
            assert not differ, f"{differ[0][0]}, and on {runs[1].backend} {differ[0][1]}"

    def repeated(self, first: WorldRun) -> None:
        """Run the world of *first* again, unchanged: everything must be the same."""
        again = run_one(first.world, backend=first.backend, streamed=first.streamed)
        self.counts.numbers["repeated"] += 1
        check_counterparts(first, counterpart_of(again, "again"), self.counts.tally)
        assert again.choices == first.choices, "the same world had other choices the second time"

    def replayed(self, run: WorldRun) -> None:
        """Replay the stored form of *run* on the other backend."""
        if not run.records:
            return
        agent: Any = run.world.agent
        codec = Secrets(XOR_CODEC)
        stored = [record_from_json(record_to_json(one, codec), secrets=codec) for one in run.records]
        config: Any = run.world.options["run_config"]
        other = OTHER[run.backend]
        replayed = replay(stored, agent(), run_config=config, backend=other)
        self.counts.numbers["replayed"] += 1
        counterpart = Counterpart(relation="replay", name=f"its replay on {other}", records=replayed.records)
        check_counterparts(run, counterpart, self.counts.tally)

    # -- parts alone

    def alone(self) -> None:
        """Test parts of the runtime without a world."""
        self.counts.numbers["parts alone"] += 1
        for invariant, words in alone.played(self.seed, self.number):
            self.broken((invariant,), f"alone: {words}")

    def further(self) -> None:
        """Run and judge a world with one feature that the others lack."""
        run = self.beside(further.draw_further(Seeded(f"{self.seed}/{self.number}/further"), self.number))
        check(further.observe_further(run), self.counts.tally, but=SLOW | further.not_judged(run))
        if (words := further.forgotten(run)) is not None:
            self.broken(("what_was_given_is_heard",), f"further: {words}\n{run.world}")

    def rare(self) -> None:
        """Run and judge a small world with a case that the others seldom have."""
        run = self.beside(rare.draw_rare(Seeded(f"{self.seed}/{self.number}/rare"), self.number))
        check(run, self.counts.tally, but=SLOW)

    def arrivals(self) -> None:
        """Judge a world in which the application adds input and answers calls, its replay, and the other backend."""
        drawn = arrivals.draw_arrivals(Seeded(f"{self.seed}/{self.number}/arrivals"))
        run = self.beside(drawn)
        check(run, self.counts.tally, but=SLOW)
        if run.world.order == "gate" and run.world.cancel is None:
            other = run_one(run.world, backend=OTHER[run.backend], streamed=run.streamed)
            self.counterparts([run, other], "backend")
        if run.cancelled_at is None:
            self.replayed(run)

    def surrounded(self, number: int) -> None:
        """Run and judge a world that tests the parts around a run."""
        run = self.beside(surrounded.draw_surrounded(Seeded(f"{self.seed}/{number}/surrounded"), number))
        check(run, self.counts.tally, but=SLOW)
        if surrounded.is_replayed(number):
            self.replayed(run)

    def answers(self) -> None:
        """Judge a world of answers that aren't final yet: plain, streamed and replayed, or cancelled, or crashed."""
        chance, number = Seeded(f"{self.seed}/{self.number}/answers"), self.number
        if number % answers.CRASHED == 0:
            crashes.crash_world(answers.draw_answers(chance, crashes=True), chance, self.counts)
            return
        world = keeping_up(answers.draw_answers(chance))
        backend = BACKENDS[number // 2 % len(BACKENDS)]
        runs: list[WorldRun] = []
        if number % 3 == 0:
            self.one(attrs.evolve(world, cancel=answers.draw_cancel(chance)), backend, chance.one_in(2), runs)
            return
        for streamed in (False, True):
            self.one(world, backend, streamed, runs)
        if world.order == "gate":
            self.counterparts(runs, "mode")
        if number % REPLAYED == 0:
            self.replayed(runs[0])

    def segments(self) -> None:
        """Run a world that is cancelled, cut and resumed, and judge its log after each segment."""
        segments.many_segments(Seeded(f"{self.seed}/{self.number}/segments"), self.counts)

    def beside(self, one: further.Further) -> WorldRun:
        """Run a world that is independent of the round's own."""
        run = run_one(one.world, backend=one.backend, streamed=one.streamed)
        self.counts.numbers[f"schedules on {one.backend}"] += 1
        self.counts.numbers["worlds beside"] += 1
        self.counts.note(run)
        return run

    # -- the core alone

    def core(self) -> None:
        """Play generated core worlds, each under several tapes."""
        chance, played = self.chance, 0
        while played < CORE_WORLDS:
            world = draw_core_world(chance, turns=2 if chance.one_in(3) else 1, calls=4 if chance.one_in(4) else 3)
            for tape in range(min(CORE_TAPES, CORE_WORLDS - played)):
                chosen = Chosen(chance) if tape else Chosen()
                self.core_world(world, chosen)
                played += 1
                if not chosen.asked:
                    break  # the world has no choice, so its other schedules would be the same
        self.counts.numbers["core worlds"] += played

    def core_world(self, world: CoreWorld, chosen: Chosen) -> None:
        """Play one core world once, and judge it."""
        try:
            check_core(play(world, chosen), self.counts.core)
        except InvariantError as error:
            self.broken(error.invariants, f"core: {error}\ntape {chosen.numbers}\n{world}")
        except Exception as error:
            self.broken((f"core raised {type(error).__name__}",), f"core: {error!r}\ntape {chosen.numbers}\n{world}")

    # -- malformed inputs

    def malformed(self) -> None:
        """Feed inputs that no well-behaved peer sends: each must end in a typed error or a value."""
        for _ in range(MALFORMED):
            kind, fault = feed(self.chance)
            self.counts.numbers[f"malformed {kind}"] += 1
            if fault is not None:
                self.broken(("malformed_input_is_refused_by_type",), f"{kind}: {fault}")


def made_small(run: WorldRun, error: InvariantError) -> InvariantError:
    """Return the error of the smallest world found that breaks the first of the invariants that *run* breaks."""
    invariant = error.invariants[0]

    def judge(seen: WorldRun) -> Finding | None:
        try:
            check(seen)
        except InvariantError as breach:
            return Finding(seen, breach, (invariant,)) if invariant in breach.invariants else None
        return None

    smallest, runs = shrunk(Finding(run, error, (invariant,)), judge)
    failure = ExplorationFailure(smallest, found_after=1, shrunk_in=runs)
    found: Any = smallest.error
    return InvariantError(found.findings, "", f"{failure}\n{smallest.run.world}")


def keeping_up(world: World) -> World:
    """Return *world* with a reader of its events that is never behind, as a slow reader delays the run."""
    config: Any = world.options["run_config"]
    options = {**world.options, "run_config": attrs.evolve(config, stream_buffer=100_000)}
    return attrs.evolve(world, options=options, slow_reader=False)
