"""Runs a program again and again, ending it at its 0th, 1st, 2nd … task step, on both backends.

A step is one resumption of a task. On trio an instrument counts them; on asyncio a loop of our own does, with a clock
that jumps to the next timer when nothing is ready, so that no sweep waits. `order` picks which of the ready tasks goes
first, so that a sweep can go over task orders too.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import anyio
import attrs
import trio
import trio.testing
from trio._core import _run as trio_run

Kind = Literal["scope", "native"]
Program = Callable[[], Awaitable[Any]]
COMBINATIONS: list[tuple[str, Kind]] = [("asyncio", "scope"), ("asyncio", "native"), ("trio", "scope")]


@attrs.define
class Stepped:
    """What came of one run of a program: a value, an error, or the cancellation it was given."""

    steps: int = 0
    cancelled_at: int | None = None
    value: Any = None
    error: BaseException | None = None
    cancelled: bool = False
    mark: int = 0
    """What `mark()` said when the cancellation was given; of a native one, when its task first ran again."""
    cancelling: int = 0
    """Native cancellations still pending: in the host where it got a native one, after its scope otherwise."""
    tasks_left: list[str] = attrs.field(factory=list)

    @property
    def completed(self) -> bool:
        """Whether the program returned."""
        return not self.cancelled and self.error is None


@attrs.define
class _Sweep:
    """One run under way: counts steps while the program is in, and cancels at the chosen one."""

    at: int | None
    kind: Kind
    mark: Callable[[], int]
    seen: Stepped = attrs.field(factory=Stepped)
    inside: bool = False
    scope: anyio.CancelScope | None = None
    task: asyncio.Task[Any] | None = None
    unheard: bool = False
    """A native cancellation was given, and its task hasn't run since."""

    def step(self, task: object = None) -> None:
        if not self.inside:
            return
        if self.unheard and task is self.task:
            self.unheard, self.seen.mark = False, self.mark()
        if self.seen.steps == self.at:
            self.seen.cancelled_at, self.seen.mark = self.at, self.mark()
            if self.kind == "scope" and self.scope is not None:
                self.scope.cancel()
            elif self.task is not None:
                self.task.cancel()
                self.unheard = task is not self.task
        self.seen.steps += 1

    async def host(self, program: Program) -> None:
        """Run *program* in the scope that may be cancelled, and write down what came of it."""
        seen = self.seen
        with anyio.CancelScope() as self.scope:
            self.inside = True
            try:
                seen.value = await program()
            except anyio.get_cancelled_exc_class():
                seen.cancelled = True
                raise
            except BaseException as error:
                seen.error = error
            finally:
                self.inside = False
                if self.kind == "native" and self.task is not None:
                    seen.cancelling = self.task.cancelling()
        if self.task is not None:
            seen.cancelling = self.task.cancelling()


class SteppingLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own, that tells before each task step and may shuffle ready tasks."""

    def __init__(self, step: Callable[[object], None], seed: int | None = None) -> None:
        self._now = 0.0
        self._step = step
        self._random = random.Random(seed) if seed is not None else None
        super().__init__()

    def time(self) -> float:
        """Return virtual seconds."""
        return self._now

    def _run_once(self) -> None:
        self._jump()
        while self._scheduled and self._scheduled[0]._when <= self._now:
            self._ready.append(heapq.heappop(self._scheduled))
        if self._random is not None:
            self._shuffle(self._random)
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if handle._cancelled:
                continue
            if (task := _task_of(handle)) is not None:
                self._step(task)
            handle._run()

    def _jump(self) -> None:
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
        if self._ready or self._stopping:
            return
        self._process_events(self._selector.select(0))
        if self._ready:
            return
        if not self._scheduled:
            raise RuntimeError("deadlock: no task is ready and no timer is set")
        self._now = max(self._now, self._scheduled[0]._when)

    def _shuffle(self, random: random.Random) -> None:
        # Callbacks keep their places: asyncio promises their order; only task steps change theirs.
        handles = list(self._ready)
        places = [index for index, handle in enumerate(handles) if _task_of(handle) is not None]
        steps = [handles[index] for index in places]
        random.shuffle(steps)
        for index, handle in zip(places, steps, strict=True):
            handles[index] = handle
        self._ready.clear()
        self._ready.extend(handles)

    _ready: Any
    _scheduled: Any
    _stopping: Any
    _selector: Any
    _process_events: Any


def _task_of(handle: Any) -> asyncio.Task[Any] | None:
    owner = getattr(handle._callback, "__self__", None)
    return owner if isinstance(owner, asyncio.Task) else None


class _Steps(trio.abc.Instrument):
    def __init__(self, sweep: _Sweep) -> None:
        self._sweep = sweep

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._sweep.step()


@contextmanager
def _trio_order(seed: int | None) -> Iterator[None]:
    """Make trio's order of ready tasks depend on *seed* alone, the way pytest-trio does."""
    before = trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_run._r.seed(seed or 0)
    try:
        yield
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = before  # type: ignore[misc]


def run_once(
    backend: str,
    program: Program,
    *,
    at: int | None,
    kind: Kind = "scope",
    seed: int | None = None,
    mark: Callable[[], int] = lambda: 0,
) -> Stepped:
    """Run *program* on *backend*, cancelling it at step *at* (never, if None).

    *seed* chooses the order of tasks that are ready together (None: as they came, on asyncio). *mark* is asked at the
    moment of the cancellation.
    """
    sweep = _Sweep(at, kind, mark)

    async def on_asyncio() -> None:
        before = asyncio.all_tasks()
        task = sweep.task = asyncio.ensure_future(sweep.host(program))
        with suppress(asyncio.CancelledError):
            await task
        left = [one for one in asyncio.all_tasks() if one not in before and one is not task]
        sweep.seen.tasks_left = [repr(one) for one in left]

    async def on_trio() -> None:
        before = set(_trio_tasks())
        await sweep.host(program)
        sweep.seen.tasks_left = [task.name for task in _trio_tasks() if task not in before]

    if backend == "trio":
        options: dict[str, Any] = {
            "clock": trio.testing.MockClock(autojump_threshold=0),
            "instruments": [_Steps(sweep)],
        }
        with _trio_order(seed):
            anyio.run(on_trio, backend="trio", backend_options=options)
    else:
        options = {"loop_factory": lambda: SteppingLoop(sweep.step, seed)}
        anyio.run(on_asyncio, backend="asyncio", backend_options=options)
    return sweep.seen


def _trio_tasks() -> Iterator[trio.lowlevel.Task]:
    waiting = [trio.lowlevel.current_root_task()]
    while waiting:
        task = waiting.pop()
        if task is not None:
            yield task
            waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
