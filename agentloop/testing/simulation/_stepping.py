"""Run a program on a deterministic event loop, cancel it at a chosen step, and report the result.

Does not know about agents: a program is any async function without arguments.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any, Literal, TypeAlias

import anyio
import attrs

from agentloop.testing.simulation._asyncio_loop import DeterministicLoop
from agentloop.testing.simulation.event_loop import Backend, Order, run_deterministic
from agentloop.testing.simulation.gate import TASK, Gate
from agentloop.testing.simulation.schedules import Scheduler, first

if importlib.util.find_spec("trio") is not None:
    import trio

Kind: TypeAlias = Literal["scope", "native", "shutdown"]
Program: TypeAlias = Callable[[], Awaitable[Any]]
COMBINATIONS: tuple[tuple[Backend, Kind], ...] = (("asyncio", "scope"), ("asyncio", "native"), ("trio", "scope"))
"""The backends and kinds of a caller's cancellation: trio has scopes only."""
SHUTDOWN: tuple[Backend, Kind] = ("asyncio", "shutdown")
"""Every task of the loop is cancelled natively at once, as `asyncio.run` does after its main task has returned."""


@attrs.define
class Stepped:
    """The result of one run of a program: a value, an error, or its cancellation. `_Stepping` fills it in."""

    steps: int = 0
    """Number of task steps while the program ran."""
    cancelled_at: int | None = None
    """The step before which it was cancelled."""
    value: Any = None
    error: BaseException | None = None
    cancelled: bool = False
    """True if the cancellation came out of the program."""
    mark: int = 0
    """The result of `mark()` at the cancellation; for a native one, when its task first ran again."""
    cancelling: int = 0
    """Native cancellations still pending in the host's task: counted inside its scope if a native one came out of the
    program, after the scope otherwise.
    """
    tasks_left: list[str] = attrs.field(factory=list)
    """Tasks that outlived the program."""
    seconds: float = 0.0
    """Virtual time it took."""

    @property
    def completed(self) -> bool:
        """True if the program returned."""
        return not self.cancelled and self.error is None


def run_stepped(
    program: Program,
    *,
    backend: Backend,
    at: int | None = None,
    kind: Kind = "scope",
    scheduler: Scheduler = first,
    order: Order = "passes",
    mark: Callable[[], int] = lambda: 0,
    gate: Gate | None = None,
    waiting: bool = False,
) -> Stepped:
    """Run *program* on *backend*, cancel it at step *at* (never, if None), and return the result.

    Args:
        program: An async function.
        backend: The kind of loop.
        at: Steps are counted from 0, while the program runs. A program that is over before is not cancelled.
        kind: Cancel the scope around it, or (on asyncio only) its task, or every task of the loop.
        scheduler, order: The choice of the next task, as for `run_deterministic`.
        mark: Called at the moment of the cancellation.
        gate: Entered around the program, outside of the cancelled scope.
        waiting: *at* counts the moments at which everything waits at the gate, in place of steps.

    Raises:
        Deadlock: if it waits for ever.
    """
    stepped = _Stepping(None if waiting else at, kind, mark, at if waiting else None)
    if gate is not None:
        gate.before_choice = stepped.choice

    async def main() -> None:
        async with gate or nullcontext():
            await (stepped.on_asyncio(program) if backend == "asyncio" else stepped.on_trio(program))

    run_deterministic(main, backend=backend, scheduler=scheduler, order=order, before_step=stepped.step)
    return stepped.stepped


@attrs.define
class _Stepping:
    """One run under way: counts steps while the program runs, and cancels at the chosen one. `run_stepped` owns it."""

    at: int | None
    kind: Kind
    mark: Callable[[], int]
    at_choice: int | None
    stepped: Stepped = attrs.field(factory=Stepped)
    inside: bool = False
    scope: anyio.CancelScope | None = None
    task: asyncio.Task[Any] | None = None
    unheard: bool = False
    """True from a native cancellation until its task runs again."""
    before: set[asyncio.Task[Any]] = attrs.field(factory=set)
    """The tasks from before the program: a shutdown does not cancel them."""
    choices: int = 0

    def step(self, task: object) -> None:
        if not self.inside or _name(task) == TASK:
            return  # the gate's own: time may pass in it, before a task could receive the cancellation
        if self.unheard and task is self.task:
            self.unheard, self.stepped.mark = False, self.mark()
        if self.stepped.steps == self.at:
            self._cancel(task)
        self.stepped.steps += 1

    def choice(self) -> bool:
        """Cancel if this is the chosen moment, and return True if so. The gate calls this before each choice."""
        if not self.inside or self.at_choice is None:
            return False
        self.choices += 1
        if self.choices != self.at_choice + 1:
            return False
        self._cancel(None)
        return True

    def _cancel(self, current: object) -> None:
        self.stepped.cancelled_at, self.stepped.mark = self.stepped.steps, self.mark()
        if self.kind == "scope" and self.scope is not None:
            self.scope.cancel()
        elif self.kind == "shutdown":
            loop = asyncio.get_running_loop()
            assert isinstance(loop, DeterministicLoop)
            for task in loop.unfinished_in_order():
                if task not in self.before:
                    task.cancel()
        elif self.task is not None:
            self.task.cancel()
            self.unheard = current is not self.task

    async def host(self, program: Program) -> None:
        """Run *program* in the scope that may be cancelled, and fill in the result."""
        stepped = self.stepped
        began = anyio.current_time()
        with anyio.CancelScope() as self.scope:  # noqa: ASYNC912 - the program's affair
            self.inside = True
            try:
                stepped.value = await program()
            except anyio.get_cancelled_exc_class():
                stepped.cancelled = True
                raise
            except BaseException as error:  # noqa: ASYNC103 - it is the result; cancellations were re-raised above
                stepped.error = error
            finally:
                self.inside = False
                stepped.seconds = anyio.current_time() - began
                if self.kind != "scope" and self.task is not None:
                    stepped.cancelling = self.task.cancelling()
        if self.task is not None:
            stepped.cancelling = self.task.cancelling()

    async def on_asyncio(self, program: Program) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, DeterministicLoop)
        before = self.before = loop.unfinished()
        task = self.task = asyncio.ensure_future(self.host(program))
        with suppress(asyncio.CancelledError):
            await task
        left = sorted(loop.unfinished() - before - {task}, key=asyncio.Task.get_name)
        self.stepped.tasks_left = [f"task {one.get_name()} ({one.get_coro()!r})" for one in left]

    async def on_trio(self, program: Program) -> None:
        before = set(trio_tasks())
        await self.host(program)
        self.stepped.tasks_left = [f"task {task.name}" for task in trio_tasks() if task not in before]


def trio_tasks() -> Iterator[trio.lowlevel.Task]:
    """Yield every task of the running trio loop."""
    unseen = [trio.lowlevel.current_root_task()]  # pyright: ignore[reportPossiblyUnboundVariable]
    while unseen:
        task = unseen.pop()
        if task is not None:
            yield task
            unseen += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


def _name(task: Any) -> str:
    name: str = task.get_name() if isinstance(task, asyncio.Task) else task.name
    return name
