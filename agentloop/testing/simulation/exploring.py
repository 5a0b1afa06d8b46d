"""Searching for a schedule, or a moment of cancellation, that breaks what should hold.

`explore` runs one script over schedules: all of them while they are few, else in order of how little they leave the
natural order, at random, and by random priorities. `kill_sweep` cancels a run before each of its steps. What fails is
made as small as it gets, and raised as `ExplorationFailure`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, zip_longest
from typing import Any, TypeAlias

import attrs

from agentloop._common.error_text import first_line
from agentloop.agents import Agent
from agentloop.exceptions import UserError
from agentloop.items import Item
from agentloop.testing import _budget
from agentloop.testing.scripted import Step
from agentloop.testing.simulation._findings import Check, ExplorationFailure, Finding, FindingJudge, makes_calls, whole
from agentloop.testing.simulation._lines import CAN_MONITOR, monitored
from agentloop.testing.simulation._shrink import shrunk, shrunk_in_sweeps
from agentloop.testing.simulation._stepping import COMBINATIONS, Kind
from agentloop.testing.simulation.event_loop import BACKENDS, Backend
from agentloop.testing.simulation.runs import CancelAt, Order, Verdict, World, WorldRun, run_one
from agentloop.testing.simulation.schedules import Exhaustive, Priorities, Scheduler, Tape

__all__ = ["Check", "ExplorationFailure", "Explored", "Swept", "explore", "explore_world", "kill_sweep"]

WHY = (
    "Something is shared between runs, or left to chance: give a function that makes the agent, and one that makes the "
    "context, anew for each run"
)

MOST_DROPPED = 100
"""Schedules that may be dropped before functions in threads are taken for one step each."""
MOST_WAITED = 10.0
"""Real seconds that dropped schedules may take before."""

AgentOrMaker: TypeAlias = Agent[Any, Any] | Callable[[], Agent[Any, Any]]


@attrs.frozen(kw_only=True)
class Explored:
    """What a search went over without finding anything.

    Attributes:
        schedules: How many there were in all.
        complete: Whether there are no others.
        dropped: How many of them were given up, as a thread waited for something else than its turn: they are judged
            by nothing.
        reason: Why the search isn't complete, in words; empty where it is.
    """

    schedules: int
    complete: bool
    dropped: int = 0
    reason: str = attrs.field(default="", eq=False)


@attrs.frozen(kw_only=True)
class Swept:
    """What a sweep went over without finding anything: `points` of cancellation, `cancelled` runs that ended by it."""

    points: int
    cancelled: int


def explore(
    agent: AgentOrMaker,
    script: Sequence[Step] | None = None,
    check: Check | None = None,
    *,
    max_schedules: int | None = None,
    nested: Mapping[str, Sequence[Step]] | None = None,
    input: str | tuple[Item, ...] = "go",
    context: Callable[[], Any] | None = None,
    options: Mapping[str, Any] | None = None,
    verdicts: Sequence[Verdict] = (),
    order: Order = "steps",
    backends: Sequence[Backend] = BACKENDS,
    streamed: bool = False,
    allow: tuple[type[BaseException], ...] = (),
    seed: int = 0,
    tape: Sequence[int] | None = None,
) -> Explored:
    """Run *agent* over many schedules of *script*, and *check* what comes of each.

    Args:
        agent: The agent, or a function that makes it anew for each run: give one where tools share a state that a run
            changes, or put that state into *context*.
        script: What the model says; None asks the agents' own models, made anew by *agent*.
        check: Called with each `WorldRun`; what it raises is the finding. A run that raises, or leaves something
            behind, is one anyway.
        max_schedules: At most so many runs; None is pytest's `--agentloop-schedules`, or 5000.
        nested: Scripts of nested runs, by call ids.
        input: The run's input.
        context: Makes the application's object, once per run.
        options: Further arguments of `Runner.run`.
        verdicts: Decisions on calls that wait for one: once a run is interrupted, those that fit are given, and it goes
            on, until none fits. Without them it stays interrupted.
        order: What a schedule may choose: see `World`.
        backends: Where to run.
        streamed: Whether somebody reads the runs' events.
        allow: Errors that a run may raise.
        seed: Of what is drawn at random.
        tape: Run this one schedule alone, on each of *backends*.

    Raises:
        ExplorationFailure: with the smallest script and schedule found that fails in the same way.
        UserError: if two runs of one schedule differ: something is shared between runs, or left to chance. Or *check*
            fails of a run in which the script makes no call.
    """
    __tracebackhide__ = True
    world = World(
        agent=agent,
        script=script,
        nested=nested or {},
        input=input,
        context=context,
        options=options or {},
        verdicts=tuple(verdicts),
        order=order,
    )
    return explore_world(
        world,
        check,
        max_schedules=max_schedules,
        backends=backends,
        streamed=streamed,
        allow=allow,
        seed=seed,
        tape=tape,
    )


def explore_world(
    world: World,
    check: Check | None = None,
    *,
    max_schedules: int | None = None,
    backends: Sequence[Backend] = BACKENDS,
    streamed: bool = False,
    allow: tuple[type[BaseException], ...] = (),
    seed: int = 0,
    tape: Sequence[int] | None = None,
) -> Explored:
    """Run *world* over many schedules in the place of its tape. Arguments and errors are those of `explore`."""
    __tracebackhide__ = True
    judge = FindingJudge(check, allow)
    world = attrs.evolve(world, switch_lines=True)
    with monitored():
        return _explore(world, judge, max_schedules, tuple(backends), streamed, seed, tape)


def _explore(
    world: World,
    judge: FindingJudge,
    max_schedules: int | None,
    backends: tuple[Backend, ...],
    streamed: bool,
    seed: int,
    tape: Sequence[int] | None,
) -> Explored:
    __tracebackhide__ = True
    if tape is not None:
        for backend in backends:
            world = attrs.evolve(world, tape=tape)
            if (finding := judge(run_one(world, backend=backend, streamed=streamed))) is not None:
                raise ExplorationFailure(finding, found_after=1, shrunk_in=0)
        return Explored(schedules=len(backends), complete=False, reason="only the schedule of the tape was run")
    most = max_schedules if max_schedules is not None else _budget.schedules
    search = _Search(world, judge, most, backends, streamed, seed)
    for finding in search.findings():
        smallest, runs = shrunk(finding, judge)
        raise ExplorationFailure(smallest, found_after=search.schedules, shrunk_in=runs)
    return search.explored()


@attrs.define
class _Search:
    world: World
    judge: FindingJudge
    most: int
    backends: tuple[Backend, ...]
    streamed: bool
    seed: int
    schedules: int = 0
    complete: bool = True
    """Whether there is no schedule left of those that the world's order has."""
    dropped: int = 0
    waited: float = 0.0
    """Real seconds that dropped schedules took."""
    waited_at: dict[str, None] = attrs.field(factory=dict)
    """The lines at which threads waited for something else than their turns."""
    gave_up: bool = False
    """Whether functions in threads are one step each from here on, as too many schedules were dropped."""
    one_step: dict[str, None] = attrs.field(factory=dict)

    def explored(self) -> Explored:
        """Return what the search went over."""
        reasons = [] if self.complete else [f"there are more than {self.schedules} schedules"]
        if self.dropped:
            lines = "; ".join(self.waited_at)
            reasons.append(f"{self.dropped} schedules were dropped, as a thread didn't come back in time from {lines}")
        if self.gave_up:
            reasons.append("so many that functions in threads were one step each from there on")
        elif self.one_step:
            reasons.append(
                f"functions in threads were one step each ({', '.join(self.one_step)}), and what may happen between "
                f"their lines wasn't explored{self._why_one_step()}"
            )
        return Explored(schedules=self.schedules, complete=not reasons, dropped=self.dropped, reason="; ".join(reasons))

    def _why_one_step(self) -> str:
        if self.world.order == "passes":
            return ": in the order 'passes' threads don't go on line by line"
        return "" if CAN_MONITOR else ": lines can be monitored from Python 3.12 on"

    def findings(self) -> Iterator[Finding]:
        """Yield what is found, as it is found."""
        lengths = {}
        for backend in self.backends:
            natural = self._same_twice(backend)
            self._refuse_without_calls(natural)
            lengths[backend] = len(natural.choices)
        for backend in self.backends:
            yield from self._exhaustively(backend, self.most // (2 * len(self.backends)))
        if self.complete:
            return
        rest = self.most - self.schedules
        for index in range(rest):
            backend = self.backends[index % len(self.backends)]
            number = self.seed * self.most + index
            yield from self._one(backend, self._drawn(index / rest, number, lengths[backend]))

    def _refuse_without_calls(self, natural: WorldRun) -> None:
        """Refuse a check that fails of a run without any call: no schedule of calls is the cause."""
        finding = None if makes_calls(natural) else self.judge(natural)
        if finding is not None and finding.is_of_a_check:
            raise UserError(
                "explore: the check fails although the run makes no call, so no schedule is the cause: "
                f"{first_line(str(finding.error)) or type(finding.error).__name__}. Let the script make the calls "
                "that the check is about"
            ) from finding.error

    def _drawn(self, part: float, number: int, length: int) -> Scheduler:
        """Return a scheduler for the *part* of the rest that is reached: half tapes, a quarter each depth."""
        if part < 0.5:
            return Tape(seed=number)
        return Priorities(number, depth=2 if part < 0.75 else 3, length=length, owner=owner)

    def _exhaustively(self, backend: Backend, most: int) -> Iterator[Finding]:
        search = Exhaustive()
        for tape in search:
            if most <= 0:
                self.complete = False
                return
            most -= 1
            seen = self._run(backend, Tape(tape))
            search.ran(seen.choices)
            if (finding := self.judge(seen)) is not None:
                yield finding

    def _one(self, backend: Backend, scheduler: Scheduler) -> Iterator[Finding]:
        seen = self._run(backend, scheduler)
        if (finding := self.judge(seen)) is not None:
            yield finding

    def _run(self, backend: Backend, scheduler: Scheduler) -> WorldRun:
        self.schedules += 1
        return self._noted(backend, scheduler)

    def _noted(self, backend: Backend, scheduler: Scheduler | None = None) -> WorldRun:
        """Run the world once, and note what of its threads keeps the search from being complete."""
        began = time.monotonic()
        seen = run_one(self.world, backend=backend, streamed=self.streamed, scheduler=scheduler)
        self.one_step.update(dict.fromkeys(seen.one_step))
        if seen.waited_at:
            self.dropped += 1
            self.waited += time.monotonic() - began
            self.waited_at.update(dict.fromkeys(seen.waited_at))
            if seen.stuck_at or self.dropped >= MOST_DROPPED or self.waited > MOST_WAITED:
                self.gave_up = True
                self.world = attrs.evolve(self.world, switch_lines=False)
        return seen

    def _same_twice(self, backend: Backend) -> WorldRun:
        """Run the natural schedule twice, and make sure that both runs are the same."""
        once, again = (self._noted(backend) for _ in range(2))
        if once.waited_at or again.waited_at:
            return once  # neither followed a schedule
        for index, (one, other) in enumerate(zip_longest(once.records, again.records)):
            if repr(one) != repr(other):
                raise UserError(f"two runs of one schedule differ in record {index}: {one!r}, then {other!r}. {WHY}")
        if once.choices != again.choices:
            raise UserError(f"two runs of one schedule have {once.choices} and {again.choices} to choose among. {WHY}")
        return once


def owner(label: str) -> str:
    """Return whose *label* it is: all places where one body waits at the gate are that body's."""
    head, body, rest = label.partition("body ")
    return f"{head}{body}{rest.split(' ')[0]}" if body else label


@attrs.frozen
class _CancelSweep:
    """Runs of worlds that are cancelled in one way, once for each moment, or *at* one alone."""

    judge: FindingJudge
    backend: Backend
    kind: Kind
    streamed: bool
    waiting: bool
    at: int | None

    def runs(self, world: World) -> Iterator[WorldRun]:
        for step in count() if self.at is None else (self.at,):
            there = CancelAt(step, self.kind, self.waiting)
            seen = run_one(attrs.evolve(world, cancel=there), backend=self.backend, streamed=self.streamed)
            yield seen
            if seen.cancelled_at is None:
                return

    def findings(self, world: World) -> Iterator[Finding | None]:
        return map(self.judge, self.runs(world))


def kill_sweep(
    agent: AgentOrMaker,
    script: Sequence[Step] | None = None,
    check: Check | None = None,
    *,
    nested: Mapping[str, Sequence[Step]] | None = None,
    input: str | tuple[Item, ...] = "go",
    context: Callable[[], Any] | None = None,
    options: Mapping[str, Any] | None = None,
    ways: Iterable[tuple[Backend, Kind]] = COMBINATIONS,
    streamed: bool = False,
    allow: tuple[type[BaseException], ...] = (),
    order: Order = "passes",
    tape: Sequence[int] = (),
    waiting: bool = False,
    at: int | None = None,
) -> Swept:
    """Cancel a run of *agent* before each of its steps: by its scope and natively, on both backends.

    Whatever the step, nothing is left, every body that began has ended, the log is whole, nothing new was begun after
    the cancellation, and the caller's task has the cancellations that it was given; then *check* is called. The script
    of what fails is made small.

    Args:
        agent, script, check, nested, input, context, options, streamed, allow: As for `explore`.
        ways: Backends, and the kinds of cancellation there.
        order, tape: Order the tasks that are ready together, as in a `World`.
        waiting: Cancel at each moment at which everything waits, in place of steps; needs `order="gate"`.
        at: Cancel before this step, or at this moment, alone; counted from 0.

    Raises:
        ExplorationFailure: for the first step that fails.
        UserValueError: `waiting` without the gate.
    """
    __tracebackhide__ = True
    world = World(
        agent=agent,
        script=script,
        nested=nested or {},
        input=input,
        context=context,
        options=options or {},
        order=order,
        tape=tape,
    )
    points = cancelled = 0
    for backend, kind in ways:
        if backend not in BACKENDS:
            continue
        sweep = _CancelSweep(FindingJudge(check, allow, whole(kind)), backend, kind, streamed, waiting, at)
        for seen in sweep.runs(world):
            points += 1
            cancelled += seen.cancelled
            if (finding := sweep.judge(seen)) is not None:
                finding, spent = shrunk_in_sweeps(finding, sweep.findings) if at is None else (finding, 0)
                raise ExplorationFailure(finding, found_after=points, shrunk_in=spent)
    return Swept(points=points, cancelled=cancelled)
