"""Event loops with a virtual clock and a chosen order of tasks, on trio and on asyncio.

`run_deterministic` runs an async function to its end: time passes only when every task waits, and then at once; which
of the ready tasks runs next is a scheduler's choice. So a run is a function of its program and its schedule.

* Between two choices everything is deterministic: tasks that became ready together stand in order of their creation,
  whatever order a set of tasks or a tie of two timers gave.
* Worker threads (anyio's `to_thread`, and through it sync tools) don't start: the function runs in place, on the loop,
  between two checkpoints. It is one step: what happens inside it can't be interleaved with anything, and one that
  waits for another task's doing never ends. Worlds with `switch_lines` do start them: see `_lines`.
* Sockets, subprocesses and threads of the program's own are outside of the clock: nothing waits for them for longer
  than a moment. A program that needs them isn't for this.
* When every task waits, and no timer is set, the run ends with `Deadlock`.

What it relies on of private names of the standard library, anyio and trio is checked when this module is imported, and
each backend orders two tasks as told before it is first used: a release that changed something is an ImportError or a
RuntimeError that names it, never a schedule that isn't the one chosen.
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

from agentloop.exceptions import UserError, UserValueError
from agentloop.testing.simulation._asyncio_loop import ClockworkLoop
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
    """What a clockwork loop tells of itself to code that runs on it."""

    timers_apart: bool
    """Whether timers that are due together come one by one, in the order in which they were set.

    Before each, and before `all_blocked` returns, every task waits. Otherwise all of them come in one pass.
    """

    async def all_blocked(self) -> None:
        """Wait until every other task waits for something else than time."""
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
    """Run *fn* on a loop of its own, with virtual time, and return what it returns.

    Args:
        fn: An async function of *args*.
        backend: Which loop.
        scheduler: Chooses among the tasks that are ready.
        order: `"passes"`: the scheduler permutes the tasks of each pass of the loop, each of which runs once in it:
            what the real loops do. `"steps"`: it takes any ready task as the next, and the others wait on, as tasks
            do whose I/O takes unknown time.
        before_step: Called with the task before each step of a task, from inside the loop; may cancel something, and
            may not raise.

    Raises:
        UserError: if called inside a running event loop, or the backend isn't installed.
        Deadlock: if all tasks wait for ever.
        BaseException: what *fn* raises.
    """
    _check(backend, order)
    _try_out(backend)
    return _run(functools.partial(fn, *args), backend, scheduler, order, before_step)


def waiting() -> WaitingTask:
    """Return what the running clockwork loop tells of itself.

    Raises:
        UserError: on any other loop.
    """
    found: WaitingTask | None = None
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        found = _trio_clockwork.current() if HAS_TRIO else None  # pyright: ignore
    else:
        found = loop if isinstance(loop, ClockworkLoop) else None
    if found is None:
        raise UserError("this is for runs of agentloop.testing alone: the event loop is somebody else's")
    return found


def _check(backend: str, order: str) -> None:
    if backend not in ("asyncio", "trio"):
        raise UserValueError(f"backend: 'asyncio' or 'trio' is needed, not {backend!r}")
    if backend not in BACKENDS:
        raise UserError("backend: trio is not installed (`pip install agentloop[trio]`)")
    if order not in ("passes", "steps"):
        raise UserValueError(f"order: 'passes' or 'steps' is needed, not {order!r}")
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
            loops: list[ClockworkLoop] = []

            def factory() -> ClockworkLoop:
                loops.append(ClockworkLoop(scheduler, order, before_step))
                return loops[0]

            stack.enter_context(threads_in_place(lambda: asyncio.get_running_loop() in loops))
            return anyio.run(fn, backend="asyncio", backend_options={"loop_factory": factory})
        clockwork = stack.enter_context(_trio_clockwork.chosen_order(scheduler, order))  # pyright: ignore
        stack.enter_context(threads_in_place(lambda: _trio_clockwork.current() is clockwork))  # pyright: ignore
        options = {"clock": clockwork.clock, "instruments": clockwork.instruments(before_step)}
        result: ResultT = anyio.run(clockwork.host, fn, backend="trio", backend_options=options)
        return result


@functools.cache
def _try_out(backend: Backend) -> None:
    """Make sure that *backend* orders tasks as told and lets time pass by itself.

    Raises:
        RuntimeError: if it doesn't.
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
    """Return the version of the anyio that is installed."""
    from importlib.metadata import version

    return version("anyio")
