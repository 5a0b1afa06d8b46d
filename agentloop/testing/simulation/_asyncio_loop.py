"""The deterministic event loop on asyncio: a virtual clock, and steps of tasks in a chosen order.

The theory is in `event_loop`. This module changes asyncio's own loop through private names, as there is no public hook
between two callbacks; the names are checked below. It does not know about the gate or about worlds.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from asyncio import base_events, selector_events  # noqa: ASYNC106 - the loop's own parts
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from agentloop.testing.simulation._choosing import Choosing
from agentloop.testing.simulation._in_place import note_one_step
from agentloop.testing.simulation._waiting import REAL_PATIENCE, Deadlock, require
from agentloop.testing.simulation.schedules import Scheduler, first

ResultT = TypeVar("ResultT")

_made = set(base_events.BaseEventLoop.__init__.__code__.co_names)
require(
    "asyncio",
    {
        "BaseEventLoop._run_once": hasattr(base_events.BaseEventLoop, "_run_once"),
        "BaseEventLoop._process_events": hasattr(base_events.BaseEventLoop, "_process_events"),
        "BaseEventLoop._check_closed": hasattr(base_events.BaseEventLoop, "_check_closed"),
        "BaseEventLoop._ready": "_ready" in _made,
        "BaseEventLoop._scheduled": "_scheduled" in _made,
        "BaseEventLoop._stopping": "_stopping" in _made,
        "BaseEventLoop._timer_cancelled_count": "_timer_cancelled_count" in _made,
        "BaseSelectorEventLoop._selector": "_selector"
        in selector_events.BaseSelectorEventLoop.__init__.__code__.co_names,
        "Handle._callback": hasattr(asyncio.Handle, "_callback"),
        "Handle._cancelled": hasattr(asyncio.Handle, "_cancelled"),
        "Handle._run": hasattr(asyncio.Handle, "_run"),
        "TimerHandle._scheduled": hasattr(asyncio.TimerHandle, "_scheduled"),
        "TimerHandle._when": hasattr(asyncio.TimerHandle, "_when"),
    },
)


class _Timer(asyncio.TimerHandle):
    """A timer that sorts behind those set before it for the same time: a heap alone gives no order to equal times."""

    __slots__ = ("_number",)
    _when: float

    def __init__(self, number: int, *given: Any) -> None:
        super().__init__(*given)
        self._number = number

    def __lt__(self, other: object) -> bool:
        if isinstance(other, _Timer):
            return (self._when, self._number) < (other._when, other._number)
        return NotImplemented


class DeterministicLoop(asyncio.SelectorEventLoop):
    """Runs callbacks in the order in which they were given, as asyncio promises, and task steps as *scheduler* says.

    Facts: the time, the ready handles, the timers, the creation number of each task. `_labels` is a cache.
    """

    _ready: Any
    _scheduled: Any
    _stopping: bool
    _selector: Any
    _process_events: Any
    _timer_cancelled_count: int
    _check_closed: Any

    def __init__(
        self,
        scheduler: Scheduler = first,
        order: Literal["passes", "steps"] = "passes",
        before_step: Callable[[object], None] | None = None,
    ) -> None:
        self._now = 0.0
        self._choosing: Choosing[Any] = Choosing(scheduler)
        self._one_at_a_time = order == "steps"
        self._before_step = before_step
        self._serials: dict[asyncio.Task[Any], int] = {}
        self._labels: dict[asyncio.Task[Any], str] = {}
        self._blocked: list[asyncio.Future[None]] = []
        self._timers = 0
        self.timers_apart = False
        """True if timers that are due together come one by one."""
        super().__init__()

    # -- for the code that runs on it (`WaitingTask`)

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._now

    async def all_blocked(self) -> None:
        """Wait until no other task is ready; no virtual time passes meanwhile."""
        blocked = self.create_future()
        self._blocked.append(blocked)
        await blocked

    def next_timer(self) -> float | None:
        """Return the seconds until the next timer, or None."""
        self._drop_cancelled()
        return max(0.0, self._scheduled[0]._when - self._now) if self._scheduled else None

    def jump(self) -> None:
        """Let time pass until the next timer."""
        if self.next_timer() is not None:
            self._now = max(self._now, self._scheduled[0]._when)

    def unfinished(self) -> set[asyncio.Task[Any]]:
        """Return this loop's tasks that aren't done. `asyncio.all_tasks` would search the tasks of every other loop."""
        return set(self.unfinished_in_order())

    def unfinished_in_order(self) -> list[asyncio.Task[Any]]:
        """Return this loop's tasks that aren't done, in the order of their creation."""
        return [task for task in self._serials if not task.done()]

    # -- asyncio's own

    def close(self) -> None:
        """Close the loop, and release its tasks and the step counter, which may hold the whole run."""
        super().close()
        self._before_step = None
        for kept in (self._serials, self._labels, self._choosing):
            kept.clear()

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Make a task, and give it the next number."""
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        self._serials[task] = len(self._serials)
        return task

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Set a timer, and give it the next number.

        A timer at infinity is not kept: with it, an idle loop would jump to infinity in place of raising `Deadlock`.
        """
        self._check_closed()
        self._timers += 1
        timer: Any = _Timer(self._timers, when, callback, args, self, context)
        if when <= self._now:
            self._ready.append(timer)
        elif when != math.inf:
            heapq.heappush(self._scheduled, timer)
            timer._scheduled = True
        return timer  # type: ignore[no-any-return]

    def run_in_executor(self, executor: Any, func: Callable[..., ResultT], *args: Any) -> asyncio.Future[ResultT]:  # type: ignore[override]
        """Call *func* now, in place of starting a thread, and return a future that has its result."""
        done: asyncio.Future[ResultT] = self.create_future()
        note_one_step(func)
        try:
            done.set_result(func(*args))
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: ASYNC103 - a future carries it, as a thread's
            done.set_exception(error)
        return done

    def _run_once(self) -> None:
        self._take_due()  # first: the gate may have let time pass
        if not self._ready and not self._stopping:
            self._handle_idle()
            self._take_due()
        if self._one_at_a_time:
            self._run_one()
        else:
            self._run_pass()

    def _drop_cancelled(self) -> None:
        # asyncio counts the cancelled timers in its heap, and `TimerHandle.cancel` adds to the count.
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
            self._timer_cancelled_count -= 1

    def _take_due(self) -> None:
        self._drop_cancelled()
        while self._scheduled and self._scheduled[0]._when <= self._now:
            if self.timers_apart and self._ready:
                return
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False
            self._ready.append(timer)
            self._drop_cancelled()

    def _handle_idle(self) -> None:
        """Wake the callers of `all_blocked`, as every task waits; if there are none, let time pass.

        Raises:
            Deadlock: if there is no timer, and nothing from outside comes within `REAL_PATIENCE`.
        """
        self._process_events(self._selector.select(0))
        if self._ready:
            return
        blocked, self._blocked = self._blocked, []
        for waiter in blocked:
            if not waiter.done():
                waiter.set_result(None)
        if self._ready:
            return
        if self._scheduled:
            self.jump()
            return
        self._process_events(self._selector.select(REAL_PATIENCE))
        if not self._ready:
            raise Deadlock

    # -- in which order

    def _run_pass(self) -> None:
        if len(self._ready) == 1:
            handle = self._ready.popleft()
            if not handle._cancelled:
                self._run_handle(handle)
            return
        handles = list(self._ready)
        self._ready.clear()
        places = [index for index, handle in enumerate(handles) if not handle._cancelled and _task_of(handle)]
        if len(places) > 1:
            # Callbacks keep their places: asyncio promises their order.
            for index, handle in zip(places, self._permute([handles[index] for index in places]), strict=True):
                handles[index] = handle
        for handle in handles:
            # An earlier step of this pass may have cancelled it.
            if not handle._cancelled:
                self._run_handle(handle)

    def _permute(self, steps: list[Any]) -> list[Any]:
        return self._choosing.permute(sorted(steps, key=self._serial), self._label)

    def _run_one(self) -> None:
        """Run every callback, and one step of one task. The first candidate is the step that has waited longest."""
        handles = [handle for handle in self._ready if not handle._cancelled]
        self._ready.clear()
        called = {handle for handle in handles if _task_of(handle) is None}
        for handle in handles:
            if handle in called and not handle._cancelled:
                handle._run()
        # Steps that the callbacks made ready are candidates as well.
        handles += self._ready
        self._ready.clear()
        ready = [handle for handle in handles if handle not in called and not handle._cancelled]
        steps = [handle for handle in ready if _task_of(handle) is not None]
        self._ready.extend(handle for handle in ready if _task_of(handle) is None)
        if not steps:
            return
        chosen, waiting = self._choosing.one_of(steps, self._serial, self._label)
        self._ready.extend(waiting)
        self._run_handle(chosen)

    def _run_handle(self, handle: Any) -> None:
        if self._before_step is not None and (task := _task_of(handle)) is not None:
            self._before_step(task)
        handle._run()

    def _serial(self, handle: Any) -> int:
        task = _task_of(handle)
        return -1 if task is None else self._serials.get(task, -1)

    def _label(self, handle: Any) -> str:
        task = _task_of(handle)
        assert task is not None
        label = self._labels.get(task)
        if label is None:
            name = task.get_name()
            if name.startswith("Task-"):  # asyncio's own names count through the whole process
                name = getattr(task.get_coro(), "__qualname__", "task")
            label = self._labels[task] = f"{name}#{self._serials.get(task, 0)}"
        return label


def _task_of(handle: Any) -> asyncio.Task[Any] | None:
    owner = getattr(handle._callback, "__self__", None)
    return owner if isinstance(owner, asyncio.Task) else None
