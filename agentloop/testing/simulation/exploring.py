"""Search for a schedule, or for a moment of cancellation, that breaks a check.

`explore` runs one script under many schedules. `kill_sweep` cancels a run before each of its steps. A failing run is
shrunk and raised as `ExplorationFailure`. This module does not know how a loop orders its tasks (`event_loop`), how a
run is judged (`_findings`) or shrunk (`_shrink`).

A search has one budget of runs, `most`, and passes these states in order:

1. *Natural*: each backend runs the natural schedule twice. Both runs must have equal records and equal choices.
   Otherwise no tape repeats a run, and every finding would be worthless, so the search raises UserError. These two
   runs are not counted as schedules.
2. *Exhaustive*: each backend has an equal share of half the budget. `Exhaustive` gives tapes, those with the fewest
   departures from the natural order first. If all backends finish within their shares, the search is complete.
3. *Drawn*: the rest of the budget alternates between the backends: half random tapes, a quarter random priorities of
   depth 2, a quarter of depth 3. The schedules are a function of `seed` and the budget.

The generator `_Search.findings` drives these states and yields findings; `_explore` shrinks and raises the first one.

A run in which a thread did not come back from a line in time followed no schedule. It is dropped: counted, but not
judged, as nothing could repeat it. After `MOST_DROPPED` drops, `MOST_WAITED` real seconds or one thread that never
ended, the search gives up on lines: functions in threads are one step each in all later runs.

Facts of a search: `schedules`, `dropped`, `waited`, `waited_at`, `one_step`, `gave_up`, and `complete`, which turns
False once the exhaustive state runs out of budget. There is no index; `explored` derives the report from the facts.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, zip_longest
from typing import Unpack

import attrs

from agentloop._common.error_text import first_line
from agentloop._common.misplaced import function_takes_options
from agentloop.exceptions import UserError
from agentloop.testing import _budget
from agentloop.testing.scripted import Step
from agentloop.testing.simulation._findings import Check, ExplorationFailure, Finding, FindingJudge, makes_calls, whole
from agentloop.testing.simulation._lines import CAN_MONITOR, monitor_lines
from agentloop.testing.simulation._shrink import shrunk, shrunk_in_sweeps
from agentloop.testing.simulation._stepping import COMBINATIONS, Kind
from agentloop.testing.simulation.event_loop import BACKENDS, Backend
from agentloop.testing.simulation.runs import CancelAt, Verdict, World, WorldRun, run_one
from agentloop.testing.simulation.schedules import Exhaustive, Priorities, Scheduler, Tape
from agentloop.testing.simulation.world import AgentOrMaker, WorldOptions, make_world

__all__ = ["Check", "ExplorationFailure", "Explored", "Swept", "explore", "explore_world", "kill_sweep"]

WHY = (
    "Something is shared between runs, or left to chance: give a function that makes the agent, and one that makes the "
    "context, anew for each run"
)

logger: logging.Logger = logging.getLogger("agentloop")

MOST_DROPPED = 100
"""Limit of dropped schedules, after which functions in threads are one step each."""
MOST_WAITED = 10.0
"""Limit of the real seconds that dropped schedules take, with the same consequence."""


@attrs.frozen(kw_only=True)
class Explored:
    """The extent of a search that found nothing.

    Attributes:
        schedules: The number of schedules that ran.
        complete: True if there are no other schedules.
        dropped: The number of schedules that were dropped, as a thread waited for something else than its turn. No
            check judges them.
        reason: The reason why the search isn't complete, as a sentence; empty if it is.
    """

    schedules: int
    complete: bool
    dropped: int = 0
    reason: str = attrs.field(default="", eq=False)


@attrs.frozen(kw_only=True)
class Swept:
    """The extent of a sweep that found nothing: `points` of cancellation, `cancelled` runs that ended by it."""

    points: int
    cancelled: int


@function_takes_options("explore", options=WorldOptions)
def explore(
    agent: AgentOrMaker,
    script: Sequence[Step] | None = None,
    check: Check | None = None,
    *,
    max_schedules: int | None = None,
    verdicts: Sequence[Verdict] = (),
    backends: Sequence[Backend] = BACKENDS,
    streamed: bool = False,
    allow: tuple[type[BaseException], ...] = (),
    seed: int = 0,
    tape: Sequence[int] | None = None,
    **world: Unpack[WorldOptions],
) -> Explored:
    """Run *agent* under many schedules of *script*, and *check* each run.

    Args:
        agent: The agent, or a function that makes it anew for each run. Give a function if tools share a state that a
            run changes, or put that state into *context*.
        script: The model's responses; None uses the agents' own models, made anew by *agent*.
        check: Called with each `WorldRun`; an error that it raises is the finding. A run that raises, or leaves
            something behind, is a finding without it.
        max_schedules: The limit of runs; None means pytest's `--agentloop-schedules`, or 5000.
        verdicts: Decisions on calls that wait for one. Once a run is interrupted, the fitting ones are given and the
            run resumes, until none fits. Without them it stays interrupted.
        backends: The backends to run on.
        streamed: True to run streamed and read the runs' events.
        allow: Errors that a run may raise.
        seed: The seed of all random choices.
        tape: Run this one schedule only, on each of *backends*.
        **world: `WorldOptions`, by keyword.

    Raises:
        ExplorationFailure: with the smallest script and schedule found that fails in the same way.
        UserError: if two runs of one schedule differ: the runs share something, or something is left to chance. Also
            if *check* fails for a run in which the script makes no call.

    Example:
        from agentloop import Agent, tool
        from agentloop.testing import call, explore, say

        @tool
        async def add(a: int, b: int) -> int:
            "Add two numbers."
            return a + b

        steps = [[call("add", {"a": 1, "b": 2}), call("add", {"a": 3, "b": 4})], say("ok")]
        explored = explore(lambda: Agent("a", tools=[add]), steps, max_schedules=20)
        print(explored.schedules > 0)  # True
    """
    __tracebackhide__ = True
    return explore_world(
        make_world(agent, script, world, verdicts=tuple(verdicts), order="steps"),
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
    """Run *world* under many schedules in place of its tape. Arguments and errors are those of `explore`."""
    __tracebackhide__ = True
    judge = FindingJudge(check, allow)
    world = attrs.evolve(world, switch_lines=True)
    with monitor_lines():
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
    """One search under way (states and facts: see the module). `_explore` owns it; only its own methods change it."""

    world: World
    judge: FindingJudge
    most: int
    backends: tuple[Backend, ...]
    streamed: bool
    seed: int
    schedules: int = 0
    complete: bool = True
    """True until the exhaustive state leaves out a schedule of the world's order."""
    dropped: int = 0
    waited: float = 0.0
    """Real seconds that dropped schedules took."""
    waited_at: dict[str, None] = attrs.field(factory=dict)
    """The lines at which threads waited for something else than their turns; a dict, as sets have no order."""
    gave_up: bool = False
    """True once functions in threads are one step each, as too many schedules were dropped."""
    one_step: dict[str, None] = attrs.field(factory=dict)
    """The functions that ran in place of a thread, as one step each."""

    def explored(self) -> Explored:
        """Return the extent of the search."""
        reasons = [] if self.complete else [f"there are more than {self.schedules} schedules"]
        if self.dropped:
            lines = "; ".join(self.waited_at)
            reasons.append(f"{self.dropped} schedules were dropped, as a thread didn't come back in time from {lines}")
        if self.gave_up:
            reasons.append("so many that functions in threads were one step each from there on")
        elif self.one_step:
            reasons.append(
                f"functions in threads were one step each ({', '.join(self.one_step)}), and what may happen between "
                f"their lines wasn't explored{self._explain_one_step()}"
            )
        self._tell_of_blindness()
        return Explored(schedules=self.schedules, complete=not reasons, dropped=self.dropped, reason="; ".join(reasons))

    def _tell_of_blindness(self) -> None:
        """Say aloud that this Python can't look into threads: a search that finds nothing there looks like a proof."""
        if not self.one_step or CAN_MONITOR:
            return
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        sentence = (
            f"explore couldn't look between the lines of {', '.join(self.one_step)}, because Python {version} can't "
            "tell it when a line begins. With Python 3.12 or later it finds a race there too"
        )
        if _budget.unseen is None:
            logger.warning("%s", sentence)
        else:
            _budget.unseen.append(sentence)

    def _explain_one_step(self) -> str:
        if self.world.order == "passes":
            return ": in the order 'passes' threads don't go on line by line"
        return "" if CAN_MONITOR else ": lines can be monitored from Python 3.12 on"

    def findings(self) -> Iterator[Finding]:
        """Run the search's states in order, and yield each finding at once: the reader may stop after the first."""
        lengths = {}
        for backend in self.backends:
            natural = self._run_natural_twice(backend)
            self._refuse_without_calls(natural)
            lengths[backend] = len(natural.choices)
        for backend in self.backends:
            yield from self._search_exhaustively(backend, self.most // (2 * len(self.backends)))
        if self.complete:
            return
        rest = self.most - self.schedules
        for index in range(rest):
            backend = self.backends[index % len(self.backends)]
            # Numbers of two seeds never overlap, so another seed gives other schedules.
            number = self.seed * self.most + index
            yield from self._run_and_judge(backend, self._draw_scheduler(index / rest, number, lengths[backend]))

    def _refuse_without_calls(self, natural: WorldRun) -> None:
        """Raise UserError if the check fails for a run without any call: no schedule of calls is the cause."""
        finding = None if makes_calls(natural) else self.judge(natural)
        if finding is not None and finding.is_of_a_check:
            raise UserError(
                "explore: the check fails although the run makes no call, so no schedule is the cause: "
                f"{first_line(str(finding.error)) or type(finding.error).__name__}. Let the script make the calls "
                "that the check is about"
            ) from finding.error

    def _draw_scheduler(self, part: float, number: int, length: int) -> Scheduler:
        """Return the scheduler after *part* (0 to 1) of the remaining budget: half tapes, a quarter each depth."""
        if part < 0.5:
            return Tape(seed=number)
        return Priorities(number, depth=2 if part < 0.75 else 3, length=length, owner=owner)

    def _search_exhaustively(self, backend: Backend, most: int) -> Iterator[Finding]:
        """Run schedules in the order of `Exhaustive`; `complete` turns False if *most* runs don't reach the end."""
        search = Exhaustive()
        for tape in search:
            if most <= 0:
                self.complete = False
                return
            most -= 1
            run = self._run(backend, Tape(tape))
            search.ran(run.choices)
            if (finding := self.judge(run)) is not None:
                yield finding

    def _run_and_judge(self, backend: Backend, scheduler: Scheduler) -> Iterator[Finding]:
        run = self._run(backend, scheduler)
        if (finding := self.judge(run)) is not None:
            yield finding

    def _run(self, backend: Backend, scheduler: Scheduler) -> WorldRun:
        self.schedules += 1
        return self._run_and_note(backend, scheduler)

    def _run_and_note(self, backend: Backend, scheduler: Scheduler | None = None) -> WorldRun:
        """Run the world once, and note the threads that keep the search from being complete."""
        began = time.monotonic()
        run = run_one(self.world, backend=backend, streamed=self.streamed, scheduler=scheduler)
        self.one_step.update(dict.fromkeys(run.one_step))
        if run.waited_at:
            self.dropped += 1
            self.waited += time.monotonic() - began
            self.waited_at.update(dict.fromkeys(run.waited_at))
            if run.stuck_at or self.dropped >= MOST_DROPPED or self.waited > MOST_WAITED:
                self.gave_up = True
                self.world = attrs.evolve(self.world, switch_lines=False)
        return run

    def _run_natural_twice(self, backend: Backend) -> WorldRun:
        """Run the natural schedule twice, and return the first run.

        Raises:
            UserError: if the runs' records or choices differ.
        """
        once, again = (self._run_and_note(backend) for _ in range(2))
        if once.waited_at or again.waited_at:
            return once  # neither followed a schedule
        for index, (one, other) in enumerate(zip_longest(once.records, again.records)):
            if repr(one) != repr(other):
                raise UserError(f"two runs of one schedule differ in record {index}: {one!r}, then {other!r}. {WHY}")
        if once.choices != again.choices:
            raise UserError(f"two runs of one schedule have {once.choices} and {again.choices} to choose among. {WHY}")
        return once


def owner(label: str) -> str:
    """Return the owner of *label*: all points at which one body waits at the gate belong to that body."""
    head, body, rest = label.partition("body ")
    return f"{head}{body}{rest.split(' ')[0]}" if body else label


@attrs.frozen
class _CancelSweep:
    """The runs of a world under one kind of cancellation: one run for each moment, or one for the moment *at*."""

    judge: FindingJudge
    backend: Backend
    kind: Kind
    streamed: bool
    waiting: bool
    at: int | None

    def runs(self, world: World) -> Iterator[WorldRun]:
        for step in count() if self.at is None else (self.at,):
            cancel = CancelAt(step, self.kind, self.waiting)
            run = run_one(attrs.evolve(world, cancel=cancel), backend=self.backend, streamed=self.streamed)
            yield run
            if run.cancelled_at is None:
                return

    def findings(self, world: World) -> Iterator[Finding | None]:
        return map(self.judge, self.runs(world))


@function_takes_options("kill_sweep", options=WorldOptions)
def kill_sweep(
    agent: AgentOrMaker,
    script: Sequence[Step] | None = None,
    check: Check | None = None,
    *,
    combinations: Iterable[tuple[Backend, Kind]] = COMBINATIONS,
    streamed: bool = False,
    allow: tuple[type[BaseException], ...] = (),
    tape: Sequence[int] = (),
    waiting: bool = False,
    at: int | None = None,
    **world: Unpack[WorldOptions],
) -> Swept:
    """Cancel a run of *agent* before each of its steps: by its scope and natively, on both backends.

    At every step these must hold: nothing outlives the run, every body that began has ended, the log is whole, nothing
    new began after the cancellation, and the caller's task still counts the native cancellations that it got. Then
    *check* is called. The script of a failing run is shrunk.

    Args:
        agent, script, check, streamed, allow: As for `explore`.
        combinations: Pairs of a backend and a kind of cancellation on it.
        tape: The order of tasks that are ready together, as in a `World`.
        waiting: Cancel at each moment at which everything waits, in place of steps; needs `order="gate"`.
        at: Cancel before this step, or at this moment, only; counted from 0.
        **world: `WorldOptions`, by keyword.

    Raises:
        ExplorationFailure: for the first step that fails.
        UserValueError: `waiting` without the gate.
    """
    __tracebackhide__ = True
    swept = make_world(agent, script, world, tape=tape, order="passes")
    points = cancelled = 0
    for backend, kind in combinations:
        if backend not in BACKENDS:
            continue
        sweep = _CancelSweep(FindingJudge(check, allow, whole(kind)), backend, kind, streamed, waiting, at)
        for run in sweep.runs(swept):
            points += 1
            cancelled += run.cancelled
            if (finding := sweep.judge(run)) is not None:
                finding, spent = shrunk_in_sweeps(finding, sweep.findings) if at is None else (finding, 0)
                raise ExplorationFailure(finding, found_after=points, shrunk_in=spent)
    return Swept(points=points, cancelled=cancelled)
