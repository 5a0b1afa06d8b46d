"""Deterministic event loops: a virtual clock and a chosen order of tasks, on trio and on asyncio.

`run_deterministic` runs an async function to its end. Time passes only when every task waits, and then at once. A
scheduler chooses which of the ready tasks runs next. So a run is a function of its program and its schedule. This
module does not know about agents, runs or worlds.

A loop repeats these states:

1. *Timers*: timers that are due make their tasks ready: all of them, or, with `timers_apart`, one at a time and only
   when no task is ready.
2. *Ready*: the scheduler chooses. In the order `"passes"` it permutes the tasks of one pass of the loop, each of which
   then runs once. In the order `"steps"` it takes one task, and the others wait.
3. *Idle*: every task waits. The loop first wakes the callers of `all_blocked`. If there are none, it jumps to the next
   timer. If there is no timer, it waits `REAL_PATIENCE` real seconds for the outside, then ends with `Deadlock`.

Who calls what: `run_deterministic` checks its arguments, tries out the backend once per process (`_try_out`), and
calls `_run`. On asyncio, `_run` gives anyio a factory of `ClockworkLoop`, which replaces `_run_once` and `time`. On
trio, a `TrioClockwork` replaces trio's random generator, whose `shuffle` trio calls with each batch of ready tasks,
and a task beside the program lets time pass. Both leave the choice to `Choosing`, which calls the scheduler.

Facts: the time, the creation number of each task, the ready tasks, the timers with the order in which they were set.
Labels are derived from tasks and only cached.

Invariants, and their limits:

* Between two choices everything is deterministic. Tasks that became ready together are sorted by creation, so neither
  the order of a set nor a tie of two timers decides.
* Worker threads (anyio's `to_thread`, and through it sync tools) don't start. The function runs in place, on the loop,
  between two checkpoints. It is one step: nothing interleaves with it, a function that waits for another task never
  ends, and one that begins a loop (`Runner.run_sync`, `anyio.run`) fails. Worlds with `switch_lines` do start
  threads: see `_lines`.
* Sockets, subprocesses and the program's own threads are outside of the clock: the loop waits only a moment for them.
  A program that needs them can't run here.
* When every task waits, and no timer is set, the run ends with `Deadlock`.

The loops need private names of the standard library, anyio and trio. The import of this module checks them, and each
backend must order two tasks as chosen before its first use. So a release that changed something causes an ImportError
or a RuntimeError with its name, never a schedule other than the chosen one.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import anyio
import anyio.lowlevel

from agentloop._common.extras import describe_missing
from agentloop.exceptions import UserError, UserValueError
from agentloop.testing.simulation._asyncio_loop import DeterministicLoop
from agentloop.testing.simulation._in_place import threads_in_place
from agentloop.testing.simulation._waiting import Deadlock
from agentloop.testing.simulation.schedules import Scheduler, first

HAS_TRIO = importlib.util.find_spec("trio") is not None
if HAS_TRIO:
    from agentloop.testing.simulation import _trio_loop as _trio_clockwork

__all__ = ["BACKENDS", "Backend", "Deadlock", "Order", "run_deterministic"]

Backend: TypeAlias = Literal["asyncio", "trio"]
Order: TypeAlias = Literal["passes", "steps"]
ResultT = TypeVar("ResultT")
BACKENDS: tuple[Backend, ...] = ("asyncio", "trio") if HAS_TRIO else ("asyncio",)


class WaitingTask(Protocol):
    """The interface of a deterministic event loop for the code that runs on it. The gate is its user."""

    timers_apart: bool
    """True if timers that are due together come one by one, in the order in which they were set.

    Before each, and before `all_blocked` returns, every task waits. Otherwise all of them come in one pass.
    """

    async def all_blocked(self) -> None:
        """Wait until every other task waits. No virtual time passes meanwhile."""
        ...

    def next_timer(self) -> float | None:
        """Return the seconds until the next timer, or None."""
        ...

    def jump(self) -> None:
        """Let time pass until the next timer."""
        ...


def run_deterministic(
    fn: Callable[..., Awaitable[ResultT]],
    *args: Any,
    backend: Backend = "asyncio",
    scheduler: Scheduler = first,
    order: Order = "passes",
    before_step: Callable[[object], None] | None = None,
) -> ResultT:
    """Run *fn* on its own loop, with virtual time, and return its result.

    Args:
        fn: An async function of *args*.
        backend: The kind of loop.
        scheduler: Chooses among the tasks that are ready.
        order: `"passes"`: the scheduler permutes the tasks of each pass of the loop, each of which runs once in it, as
            on the real loops. `"steps"`: it takes any ready task as the next, and the others keep waiting, as if
            their I/O took unknown time.
        before_step: Called with the task before each step of a task, from inside the loop; may cancel something, and
            may not raise.

    Raises:
        UserError: if called inside a running event loop, or the backend isn't installed.
        Deadlock: if all tasks wait for ever.
        BaseException: any error of *fn*.

    Example:
        import anyio
        from agentloop.testing import run_deterministic

        async def main():
            begin = anyio.current_time()
            await anyio.sleep(3600)  # no time passes outside
            return anyio.current_time() - begin

        print(run_deterministic(main))  # 3600.0
    """
    _check(backend, order)
    _try_out(backend)
    return _run(functools.partial(fn, *args), backend, scheduler, order, before_step)


def waiting() -> WaitingTask:
    """Return the running deterministic event loop.

    Raises:
        UserError: on any other loop.
    """
    found: WaitingTask | None = None
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        found = _trio_clockwork.current() if HAS_TRIO else None  # pyright: ignore
    else:
        found = loop if isinstance(loop, DeterministicLoop) else None
    if found is None:
        raise UserError("this is for runs of agentloop.testing alone: the event loop is somebody else's")
    return found


def _check(backend: str, order: str) -> None:
    if backend not in ("asyncio", "trio"):
        raise UserValueError(f"backend: expected 'asyncio' or 'trio', got {backend!r}")
    if backend not in BACKENDS:
        raise UserError(describe_missing("backend: trio", "trio"))
    if order not in ("passes", "steps"):
        raise UserValueError(f"order: expected 'passes' or 'steps', got {order!r}")
    try:
        anyio.lowlevel.current_token()
    except RuntimeError:
        return
    raise UserError(
        "a run with virtual time was begun inside a running event loop: begin it from sync code (a `def` test)"
    )


def _run(
    fn: Callable[[], Awaitable[ResultT]],
    backend: Backend,
    scheduler: Scheduler,
    order: Order,
    before_step: Callable[[object], None] | None,
) -> ResultT:
    with ExitStack() as stack:
        if backend == "asyncio":
            loops: list[DeterministicLoop] = []

            def factory() -> DeterministicLoop:
                loops.append(DeterministicLoop(scheduler, order, before_step))
                return loops[0]

            stack.enter_context(threads_in_place(lambda: asyncio.get_running_loop() in loops))
            return anyio.run(fn, backend="asyncio", backend_options={"loop_factory": factory})
        simulated_loop = stack.enter_context(_trio_clockwork.choose_order(scheduler, order))  # pyright: ignore
        stack.enter_context(threads_in_place(lambda: _trio_clockwork.current() is simulated_loop))  # pyright: ignore
        options = {"clock": simulated_loop.clock, "instruments": simulated_loop.instruments(before_step)}
        result: ResultT = anyio.run(simulated_loop.host, fn, backend="trio", backend_options=options)
        return result


@functools.cache
def _try_out(backend: Backend) -> None:
    """Check once per process that *backend* orders tasks as chosen, and that its time passes by itself.

    Raises:
        RuntimeError: if it doesn't: a release of anyio or of the backend works differently.
    """
    for order in ("passes", "steps"):
        seen: list[str] = []

        async def program(seen: list[str] = seen) -> None:
            async def step(name: str) -> None:
                seen.append(name)
                await anyio.lowlevel.checkpoint()
                seen.append(name)

            async with anyio.create_task_group() as group:
                for name in "ab":
                    group.start_soon(step, name)
            await anyio.sleep(3600)
            seen.append(str(round(anyio.current_time())))

        _run(program, backend, lambda labels: len(labels) - 1, order, None)
        wanted = {"passes": ["b", "a", "b", "a", "3600"], "steps": ["b", "b", "a", "a", "3600"]}[order]
        if seen != wanted:
            versions = f"anyio {anyio_version()}, backend {backend}"
            raise RuntimeError(
                f"agentloop.testing can't choose the order of tasks with these releases ({versions}): two tasks ran as "
                f"{seen}, and were told to run as {wanted}"
            )


def anyio_version() -> str:
    """Return the version of the installed anyio."""
    from importlib.metadata import version

    return version("anyio")
