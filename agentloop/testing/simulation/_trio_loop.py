"""The deterministic event loop on trio: a virtual clock, and a chooser in place of trio's random generator.

The theory is in `event_loop`. trio shuffles each batch of ready tasks with a private random generator, so a replaced
generator chooses the order of tasks. The private names that this needs are checked below. This module does not know
about the gate or about worlds.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import trio
import trio.testing
from trio._core import _run as internals

from agentloop.testing.simulation._choosing import Choosing
from agentloop.testing.simulation._waiting import REAL_PATIENCE, Deadlock, require
from agentloop.testing.simulation.schedules import Scheduler

_code = internals.unrolled_run.__code__.co_names
_of_deadlines = dir(getattr(internals, "Deadlines", None))
require(
    "trio",
    {
        "_core._run._r": isinstance(getattr(internals, "_r", None), random.Random) and "_r" in _code,
        "_core._run._ALLOW_DETERMINISTIC_SCHEDULING": hasattr(internals, "_ALLOW_DETERMINISTIC_SCHEDULING")
        and "_ALLOW_DETERMINISTIC_SCHEDULING" in _code,
        "_core._run.GLOBAL_RUN_CONTEXT": hasattr(internals, "GLOBAL_RUN_CONTEXT"),
        "Random.shuffle": "shuffle" in _code,
        "Runner.runq": "runq" in _code,
        "Runner.deadlines": "deadlines" in _code,
        "Deadlines._heap": "_heap" in _of_deadlines,
        "Deadlines._active": "_active" in _of_deadlines,
        "Deadlines.add": "add" in _of_deadlines,
        "Deadlines.expire": "expire" in _of_deadlines and "expire" in _code,
        "Deadlines.next_deadline": "next_deadline" in _of_deadlines and "next_deadline" in _code,
        "Task._counter": hasattr(trio.lowlevel.Task, "_counter"),
        "Task._cancel_status": hasattr(trio.lowlevel.Task, "_cancel_status"),
        "CancelStatus._scope": hasattr(internals.CancelStatus, "_scope"),
        "CancelStatus._parent": hasattr(internals.CancelStatus, "_parent"),
    },
)


class _Clock(trio.abc.Clock):
    """A clock that shows exactly the time it was set to: a sum of jumps would miss a deadline by its last digit."""

    def __init__(self) -> None:
        self.now = 0.0

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return 0.0 if deadline <= self.now else math.inf


class _Deadlines(internals.Deadlines):
    """The deadlines of one run. Equal times keep the order in which they were set; trio orders them by address."""

    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self.apart = False
        self._clock = clock
        self._number = 0
        self._late: set[int] = set()

    def add(self, deadline: float, cancel_scope: trio.CancelScope) -> None:
        if deadline <= self._clock.now:
            self._late.add(self._number)
        heapq.heappush(self._heap, (deadline, self._number, cancel_scope))
        self._number += 1
        self._active += 1

    def expire(self, now: float) -> bool:
        """Expire the deadlines that are due: all of them, or (apart) one at a time and only when no task is ready."""
        if not self.apart or self.next_deadline() > now:
            self._late.clear()
            return super().expire(now)
        due = []
        while self.next_deadline() <= now:
            due.append(heapq.heappop(self._heap))
        # A deadline that was past when it was set is not brought by time: on asyncio too it comes in the next pass.
        chosen = [entry for entry in due if entry[1] in self._late]
        if not chosen and not _runner().runq:
            chosen = due[:1]
        self._late.clear()
        later = [*self._heap, *(entry for entry in due if entry not in chosen)]
        self._heap = chosen
        expired = super().expire(now)
        for entry in later:
            heapq.heappush(self._heap, entry)
        return expired


class DeterministicTrio:
    """The clock and the task order of one run; replaces trio's random generator while the run lasts.

    `choose_order` owns it. trio calls `shuffle`; the task of `_let_time_pass` moves the clock.
    """

    def __init__(self, scheduler: Scheduler, order: Literal["passes", "steps"], generator: Any) -> None:
        self.clock = _Clock()
        self._deadlines: _Deadlines
        self._choosing: Choosing[Any] = Choosing(scheduler)
        self._one_at_a_time = order == "steps"
        self._generator = generator
        self.before_step: Callable[[object], None] | None = None
        self._labels: dict[Any, str] = {}
        self._blocked: list[trio.Event] = []
        self._ours: dict[Any, bool] = {}
        self._stuck = False
        self._over = False
        self._abort = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)  # other trio runs of the process use the same generator

    # -- the run

    async def host(self, fn: Callable[[], Awaitable[Any]]) -> Any:
        """Run *fn*, and let time pass when all its tasks wait.

        Raises:
            Deadlock: if they wait for ever. All tasks of *fn* are cancelled first, those in shielded scopes too.
            BaseException: any error of *fn*, without a group around it.
        """
        result: Any = None
        error: BaseException | None = None
        self._ours[trio.lowlevel.current_task()] = True
        _runner().deadlines = self._deadlines = _Deadlines(self.clock)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._let_time_pass, nursery.cancel_scope)
            self._ours.update((child, False) for child in nursery.child_tasks)
            try:
                result = await fn()
            except trio.Cancelled:  # noqa: ASYNC103 - stuck: our own scope's, which the group catches
                if not self._stuck:
                    raise
            except BaseException as raised:  # raised below, bare
                error = raised
            self._over = True
            nursery.cancel_scope.cancel()
        if self._stuck:
            raise Deadlock from error
        if error is not None:
            raise error
        return result

    async def _let_time_pass(self, scope: trio.CancelScope) -> None:
        while not self._stuck:
            await trio.testing.wait_all_tasks_blocked()
            blocked, self._blocked = self._blocked, []
            for event in blocked:
                event.set()
            if blocked:
                continue
            if self.next_timer() is not None:
                self.jump()
                continue
            await trio.testing.wait_all_tasks_blocked(REAL_PATIENCE)
            self._stuck = self.next_timer() is None and not self._blocked
        scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            if not self._over:
                _unshield(self._ours)
                await trio.testing.wait_all_tasks_blocked()
            if not self._over:
                self._abort = True  # a task that still waits swallows cancellations: only ending the loop is left
                await trio.lowlevel.checkpoint()

    def instruments(self, before_step: Callable[[object], None] | None) -> list[trio.abc.Instrument]:
        """Return the instruments that call *before_step* before each step."""
        self.before_step = before_step
        return [] if before_step is None else [_Steps(self)]

    def release_refs(self) -> None:
        """Release the program and its tasks. trio keeps a cycle of a run that is over, and the cycle holds this."""
        self.before_step = None
        for kept in (self._ours, self._labels, self._blocked, self._choosing):
            kept.clear()

    # -- for the code that runs on it (`WaitingTask`)

    @property
    def timers_apart(self) -> bool:
        """True if timers that are due together come one by one."""
        return self._deadlines.apart

    @timers_apart.setter
    def timers_apart(self, apart: bool) -> None:
        self._deadlines.apart = apart

    async def all_blocked(self) -> None:
        """Wait until no other task is ready; no virtual time passes meanwhile."""
        event = trio.Event()
        self._blocked.append(event)
        await event.wait()

    def next_timer(self) -> float | None:
        """Return the seconds until the next timer, or None."""
        seconds = self._deadlines.next_deadline() - self.clock.now
        return max(0.0, seconds) if seconds != math.inf else None

    def jump(self) -> None:
        """Let time pass until the next timer."""
        if self.next_timer() is not None:
            self.clock.now = max(self.clock.now, self._deadlines.next_deadline())

    # -- in which order

    def is_ours(self, task: Any) -> bool:
        """Return True if *task* belongs to the program: neither to trio nor to the letting of time pass."""
        ours = self._ours.get(task)
        if ours is None:
            nursery = task.parent_nursery
            ours = self._ours[task] = nursery is not None and self.is_ours(nursery.parent_task)
        return ours

    def shuffle(self, batch: list[Any]) -> None:
        """Put *batch*, the ready tasks, in order. trio calls this once a pass and runs the last task of it first."""
        runner = _runner()
        if runner.clock is not self.clock:
            self._generator.shuffle(batch)
        elif self._abort:
            raise Deadlock
        elif self._one_at_a_time:
            batch[:] = self._choose_one(batch, runner) if batch else []
        elif len(batch) > 1:
            batch[:] = reversed(self._permute(batch))

    def _permute(self, batch: Sequence[Any]) -> list[Any]:
        steps = sorted(batch, key=_serial)
        others = [task for task in steps if not self.is_ours(task)]
        return others + self._choosing.permute([task for task in steps if self.is_ours(task)], self._label)

    def _choose_one(self, batch: Sequence[Any], runner: Any) -> list[Any]:
        others = [task for task in batch if not self.is_ours(task)]
        if others:
            runner.runq.extend(task for task in batch if self.is_ours(task))
            return sorted(others, key=_serial, reverse=True)
        chosen, waiting = self._choosing.one_of(batch, _serial, self._label)
        runner.runq.extend(waiting)
        return [chosen]

    def _label(self, task: trio.lowlevel.Task) -> str:
        label = self._labels.get(task)
        if label is None:
            label = self._labels[task] = f"{task.name}#{len(self._labels)}"
        return label


class _Steps(trio.abc.Instrument):
    """Calls the run's `before_step` before each step of the program's own tasks."""

    def __init__(self, simulated_loop: DeterministicTrio) -> None:
        self._clockwork = simulated_loop

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        before_step = self._clockwork.before_step
        if before_step is not None and self._clockwork.is_ours(task):
            before_step(task)


def _runner() -> Any:
    """Return trio's runner of the current run."""
    return internals.GLOBAL_RUN_CONTEXT.runner  # pyright: ignore[reportAttributeAccessIssue]


def _serial(task: Any) -> int:
    number: int = task._counter
    return number


def _unshield(tasks: Iterable[Any]) -> None:
    """Remove the shields of all scopes around *tasks*, so that a cancellation reaches them."""
    for task in [task for task in tasks if task is not trio.lowlevel.current_task()]:
        status = task._cancel_status
        while status is not None:
            status._scope.shield = False
            status = status._parent


@contextmanager
def choose_order(scheduler: Scheduler, order: Literal["passes", "steps"]) -> Iterator[DeterministicTrio]:
    """Order the tasks of a run that begins within the block, with the yielded clock, as *scheduler* says.

    Raises:
        Deadlock: in place of trio's internal error, which a `Deadlock` raised in its scheduler becomes.
    """
    before = internals._r, internals._ALLOW_DETERMINISTIC_SCHEDULING
    simulated_loop = DeterministicTrio(scheduler, order, before[0])
    internals._r, internals._ALLOW_DETERMINISTIC_SCHEDULING = simulated_loop, True  # type: ignore[misc,assignment]
    try:
        yield simulated_loop
    except trio.TrioInternalError as error:
        if isinstance(error.__cause__, Deadlock):
            raise error.__cause__ from None
        raise
    finally:
        internals._r, internals._ALLOW_DETERMINISTIC_SCHEDULING = before  # type: ignore[misc]
        simulated_loop.release_refs()


def current() -> DeterministicTrio | None:
    """Return the deterministic event loop that orders the current trio run, or None."""
    chooser: object = internals._r
    if not isinstance(chooser, DeterministicTrio):
        return None
    try:
        return chooser if trio.lowlevel.current_clock() is chooser.clock else None
    except RuntimeError:
        return None
