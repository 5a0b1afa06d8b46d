"""Searching for a schedule, or a moment of cancellation, that breaks what should hold.

`explore` runs one script over schedules: all of them while they are few, else in order of how little they leave the
natural order, at random, and by random priorities. `kill_sweep` cancels a run before each of its steps. What fails is
made as small as it gets, and raised as `ExplorationFailure`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, zip_longest
from typing import Any, TypeAlias

import attrs

from agentloop.agents import Agent
from agentloop.exceptions import UserError
from agentloop.items import Item
from agentloop.testing import _budget
from agentloop.testing._findings import Check, ExplorationFailure, Finding, Judge, whole
from agentloop.testing._shrink import shrunk, shrunk_in_sweeps
from agentloop.testing.clockwork import BACKENDS, Backend
from agentloop.testing.runs import CancelAt, Order, World, WorldRun, run_one
from agentloop.testing.schedules import Exhaustive, Priorities, Scheduler, Tape
from agentloop.testing.scripted import Step
from agentloop.testing.stepping import COMBINATIONS, Kind

__all__ = ["Check", "ExplorationFailure", "Explored", "Swept", "explore", "explore_world", "kill_sweep"]

WHY = (
    "Something is shared between runs, or left to chance: give a function that makes the agent, and one that makes the "
    "context, anew for each run"
)

AgentOrMaker: TypeAlias = Agent[Any, Any] | Callable[[], Agent[Any, Any]]


@attrs.frozen(kw_only=True)
class Explored:
    """What a search went over without finding anything: `schedules` in all; `complete` if there are no others."""

    schedules: int
    complete: bool


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
        order: What a schedule may choose: see `World`.
        backends: Where to run.
        streamed: Whether somebody reads the runs' events.
        allow: Errors that a run may raise.
        seed: Of what is drawn at random.
        tape: Run this one schedule alone, on each of *backends*.

    Raises:
        ExplorationFailure: with the smallest script and schedule found that fails in the same way.
        UserError: if two runs of one schedule differ: something is shared between runs, or left to chance.
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
    judge = Judge(check, allow)
    if tape is not None:
        for backend in backends:
            world = attrs.evolve(world, tape=tape)
            if (finding := judge(run_one(world, backend=backend, streamed=streamed))) is not None:
                raise ExplorationFailure(finding, found_after=1, shrunk_in=0)
        return Explored(schedules=len(backends), complete=False)
    most = max_schedules if max_schedules is not None else _budget.schedules
    search = _Search(world, judge, most, tuple(backends), streamed, seed)
    for finding in search.findings():
        smallest, runs = shrunk(finding, judge)
        raise ExplorationFailure(smallest, found_after=search.schedules, shrunk_in=runs)
    return Explored(schedules=search.schedules, complete=search.complete)


@attrs.define
class _Search:
    world: World
    judge: Judge
    most: int
    backends: tuple[Backend, ...]
    streamed: bool
    seed: int
    schedules: int = 0
    complete: bool = True

    def findings(self) -> Iterator[Finding]:
        """Yield what is found, as it is found."""
        lengths = {}
        for backend in self.backends:
            lengths[backend] = len(self._same_twice(backend).choices)
        for backend in self.backends:
            yield from self._exhaustively(backend, self.most // (2 * len(self.backends)))
        if self.complete:
            return
        rest = self.most - self.schedules
        for index in range(rest):
            backend = self.backends[index % len(self.backends)]
            number = self.seed * self.most + index
            yield from self._one(backend, self._drawn(index / rest, number, lengths[backend]))

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
            self.schedules += 1
            seen = run_one(self.world, backend=backend, streamed=self.streamed, scheduler=Tape(tape))
            search.ran(seen.choices)
            if (finding := self.judge(seen)) is not None:
                yield finding

    def _one(self, backend: Backend, scheduler: Scheduler) -> Iterator[Finding]:
        self.schedules += 1
        seen = run_one(self.world, backend=backend, streamed=self.streamed, scheduler=scheduler)
        if (finding := self.judge(seen)) is not None:
            yield finding

    def _same_twice(self, backend: Backend) -> WorldRun:
        """Run the natural schedule twice, and make sure that both runs are the same."""
        once, again = (run_one(self.world, backend=backend, streamed=self.streamed) for _ in range(2))
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
class _Sweep:
    """Runs of worlds that are cancelled in one way, once for each moment, or *at* one alone."""

    judge: Judge
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
        sweep = _Sweep(Judge(check, allow, whole(kind)), backend, kind, streamed, waiting, at)
        for seen in sweep.runs(world):
            points += 1
            cancelled += seen.cancelled
            if (finding := sweep.judge(seen)) is not None:
                finding, spent = shrunk_in_sweeps(finding, sweep.findings) if at is None else (finding, 0)
                raise ExplorationFailure(finding, found_after=points, shrunk_in=spent)
    return Swept(points=points, cancelled=cancelled)
