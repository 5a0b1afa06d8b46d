"""Many runs under one cap: a context manager from which its consumer takes the ended runs one by one.

Knows work by index and input, a cap and an order; not agents, journals or events: `Runner.run_many` and the command
line give it the work. Does not know how a run proceeds.

Theory. The block, its task and what leaves it are in `block.py`. That task enters the nursery of the runs in a separate
function, reads the inputs and starts a task for each run. The consumer takes ended runs from `_ready`; no result is
kept after that.

Two limits. `_free` has one permit for each run that may be under way; a run gives it back when it ends. `_room` has one
permit for each run that was started and not yet taken, so that a slow consumer, or a slow run in front of the others
where the order matters, bounds the memory. An input is read when it has both permits, so nothing is read too early.

Facts: those of the block, `_ready` (ended runs that were not taken, by index, in the order of their ends), `_failures`,
`started`, `finished`, `failed`. `_changed` is only a signal: the consumer checks the facts again.

Invariants: `_room` permits taken = runs under way + length of `_ready`. The next run to take in order is always
started, since runs start in order: so an ordered consumer never waits for a run that waits for room.

Decisions:

Many runs are a context manager of ended runs (`run/_batch.py`). A generator that yields inside a nursery would
be closed by another task, so the block holds the nursery and the consumer takes values; a short form awaits it for a
list. One run's failure is its own by default: runs cost time and money, and a list of outcomes loses none of them.
Rejected: cancelling siblings always, as a nursery does; `fail_fast` asks for it. Rejected: a queue of results without
a bound, with which a slow consumer, or a slow first run where the order matters, would hold all of them. The command
line's requests are such a batch too, with its own work for each line, so the cap, the order and the end of a
cancelled batch exist once.

Not `beside`, which judges its errors alike: its pieces are all there when it begins, each has an answer that it keeps,
and each error ends the others. A batch reads its pieces while others run, gives each answer away, and takes a run's
error as an answer unless `fail_fast`. What both have, one pass in which all that fail are known, is two lines of each.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from decimal import Decimal
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar, final

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from agentloop._concurrency.backend import (
    Captured,
    capture,
    checkpoint_if_cancelled,
    own_task,
    unexpected_cancellation,
)
from agentloop._concurrency.interrupts import interruptible, protect, uninterrupted
from agentloop._concurrency.nursery import new_nursery
from agentloop._core.failure_choice import Failure, choose
from agentloop._engine.block import Block
from agentloop.abc import Journal
from agentloop.config.budget import BatchBudget
from agentloop.exceptions import JournalError, UserError, UserTypeError
from agentloop.journal._closing import close_in_time
from agentloop.usage import Usage

ResultT = TypeVar("ResultT")

Work = Callable[[int, Any], Awaitable[ResultT]]
"""Does one run: of an index and an input. Returns its result."""
_Opened: TypeAlias = Journal | Awaitable[Journal]
JournalFactory: TypeAlias = Callable[[int, Any], _Opened] | Callable[[int, Any, int], _Opened]
"""Returns the journal of one run: of an index and an input; where failed runs are tried again, of an attempt, too."""

_AHEAD = 64
"""Ordered runs that may be started and not taken, per run under way: others continue behind a slow one."""
_BUFFERED = 2
"""The same of runs in the order of their ends: as many may wait for the consumer as are under way."""
_END: Any = object()


@final
class BatchedRun(Generic[ResultT]):
    """A run of a batch that has ended, as `RunBatch` gives it.

    Attributes:
        index: The position of its input, counted from 0.
        input: Its input, as it was given.
        error: The error that it ended with, or None.
    """

    __slots__ = ("_result", "error", "index", "input")

    def __init__(self, index: int, input: Any, result: Any = None, error: Exception | None = None) -> None:
        self.index: int = index
        self.input: Any = input
        self.error: Exception | None = error
        self._result = result

    def __repr__(self) -> str:
        end = getattr(self._result, "status", "ended") if self.error is None else repr(self.error)
        return f"<BatchedRun {self.index}: {end}>"

    @property
    def result(self) -> ResultT:
        """The result of the run.

        Raises:
            Exception: the run's error, if it ended with one.
        """
        if self.error is not None:
            raise self.error
        result: ResultT = self._result
        return result


@final
class RunBatch(Block, Generic[ResultT]):
    """Many runs, some of them at once. Made by `Runner.run_many`; nothing runs before it is entered or awaited.

    Enter it, and iterate for each run as it ends. Leaving the block early cancels the other runs and waits for their
    tasks. Or await it for a list of all ended runs, in the order of the inputs. It can be used once, by one consumer.

    A run that fails is given like the others, with its `error`. An error of the batch (of its inputs, or of a run where
    `fail_fast` is set) cancels all runs, and is raised bare and once, after the runs that had ended were taken: from
    iteration, else when the block is left.

    Attributes:
        total: The number of inputs, where they have a length; else None.
        started: The number of runs that have started.
        finished: The number of runs that have ended, in any way but by a cancellation.
        failed: The number of those that ended with an error.
    """

    total: int | None
    started: int
    finished: int
    failed: int
    _budget: BatchBudget | None
    _do: Work[ResultT]
    _inputs: Iterable[Any] | AsyncIterable[Any] | None
    _around: Callable[[], AbstractAsyncContextManager[Any]]
    _ordered: bool
    _fail_fast: bool
    _free: anyio.Semaphore | None
    _room: anyio.Semaphore | None
    _ready: OrderedDict[int, BatchedRun[ResultT]]
    _failures: list[Failure]
    _next: int
    _changed: anyio.Event
    _runs: anyio.CancelScope | None

    __slots__ = ("__weakref__", *__annotations__)

    def __init__(
        self,
        work: Work[ResultT],
        inputs: Iterable[Any] | AsyncIterable[Any],
        *,
        limit: int | None,
        around: Callable[[], AbstractAsyncContextManager[Any]],
        ordered: bool = False,
        fail_fast: bool = False,
        budget: BatchBudget | None = None,
    ) -> None:
        super().__init__()
        self._budget = budget
        self.total = _count_inputs(inputs)
        self.started = self.finished = self.failed = self._next = 0
        self._do, self._inputs, self._around = work, inputs, around
        self._ordered, self._fail_fast = ordered, fail_fast
        self._free = None if limit is None else anyio.Semaphore(limit)
        self._room = None if limit is None else anyio.Semaphore(limit * (_AHEAD if ordered else _BUFFERED))
        self._ready, self._failures, self._changed = OrderedDict(), [], anyio.Event()
        self._runs = None

    @property
    def usage(self) -> Usage | None:
        """The use of all runs so far; None without a budget of the batch."""
        return None if self._budget is None else self._budget.usage

    @property
    def cost(self) -> Decimal | None:
        """The cost of all runs so far, calls included; None without a budget of the batch."""
        return None if self._budget is None else self._budget.ledger.spent

    # -- the consumer

    def __await__(self) -> Generator[Any, None, list[BatchedRun[ResultT]]]:
        return self._collect().__await__()

    async def _collect(self) -> list[BatchedRun[ResultT]]:
        async with self:
            runs = [run async for run in self]
        return sorted(runs, key=lambda run: run.index)

    @uninterrupted
    async def __aenter__(self) -> Self:
        if self._nursery is not None:
            raise UserError("a batch of runs can be entered or awaited once")
        if own_task() is None:
            protect()
        nursery = await new_nursery(self._lose_task, copy_context(), bare=False).__aenter__()
        self.scope: anyio.CancelScope | None = nursery.new_scope()
        self._open(nursery, "agentloop batch of runs")
        return self

    def __aiter__(self) -> Self:
        return self

    @uninterrupted
    async def __anext__(self) -> BatchedRun[ResultT]:
        """Return the next run that has ended.

        Cancellation: a checkpoint; no run is lost by it.

        Raises:
            StopAsyncIteration: when all runs were taken.
            BaseException: the error of the batch.
        """
        if self._nursery is None:
            raise UserError("iterate a batch of runs inside its `async with` block")
        await anyio.lowlevel.checkpoint()
        while (run := self._take()) is None:
            if self._is_over:
                if self._error is not None and not self._error_raised:
                    raise self._take_error(self._error)
                raise StopAsyncIteration
            self._changed = anyio.Event()
            await self._changed.wait()
        return run

    def _take(self) -> BatchedRun[ResultT] | None:
        """Take the run that comes next, and make room for another; None if it has not ended."""
        if self._ordered:
            run = self._ready.pop(self._next, None)
        else:
            run = self._ready.popitem(last=False)[1] if self._ready else None
        if run is not None:
            self._next += 1
            if self._room is not None:
                self._room.release()
        return run

    @uninterrupted
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool:
        return await self._leave(exc)  # noqa: ASYNC102 - its tasks are being cancelled

    # -- the runs

    def _stop(self) -> None:
        if self.scope is not None:
            self.scope.cancel()

    def _end(self) -> None:
        super()._end()
        self._changed.set()

    @uninterrupted
    async def _work(self) -> None:
        inputs, self._inputs = self._inputs, None
        assert inputs is not None
        self._fail(_error_of(await capture(partial(self._run_all, inputs))))

    @uninterrupted
    async def _run_all(self, inputs: Iterable[Any] | AsyncIterable[Any]) -> None:
        try:
            async with self._around(), anyio.create_task_group() as group:
                self._runs = group.cancel_scope
                ended = await capture(partial(self._start_runs, inputs, group))
                if ended.error is not None:
                    self._fail(_error_of(ended))
                    group.cancel_scope.cancel()
        finally:
            if self._failures:
                self._fail(choose(self._failures))
        if self._error is None and self.finished < self.started:
            await checkpoint_if_cancelled()
            # The group has taken the end of a task that other code cancelled before its first step for its own.
            self._fail(unexpected_cancellation())

    @uninterrupted
    async def _start_runs(self, inputs: Iterable[Any] | AsyncIterable[Any], group: TaskGroup) -> None:
        iterator = _begin_reading(inputs)
        while True:
            if self._room is not None and self._free is not None:
                await self._room.acquire()
                await self._free.acquire()
            # Also where inputs come without a wait: those that were started have to begin.
            await anyio.lowlevel.checkpoint()
            given = await _read_next(iterator)
            if given is _END or self._failures:
                return
            group.start_soon(self._run_one, self.started, given, name=f"agentloop run {self.started} of a batch")
            self.started += 1

    @uninterrupted
    async def _run_one(self, index: int, given: Any) -> None:
        ended = await capture(lambda: self._do(index, given))
        error = _error_of(ended)
        self.finished += 1
        self.failed += error is not None
        if error is not None and (self._fail_fast or not isinstance(error, Exception)):
            await self._end_by(Failure(index=index, error=error, phase="body"))
            return
        assert error is None or isinstance(error, Exception)
        if self._free is not None:
            self._free.release()
        self._ready[index] = BatchedRun(index, given, ended.value, error)
        self._changed.set()

    async def _end_by(self, failure: Failure) -> None:
        """Note *failure*; cancel all runs one scheduler pass later, so that every run that fails in this one is known.

        Its permit isn't given back: no other run starts in between.
        """
        self._failures.append(failure)
        assert self._runs is not None
        try:
            await anyio.lowlevel.cancel_shielded_checkpoint()
        finally:
            self._runs.cancel()

    def _fail(self, error: BaseException | None) -> None:
        self._error = self._error or error


@uninterrupted
async def run_with_journal(
    open_journal: JournalFactory,
    given: tuple[Any, ...],
    run: Callable[[Journal], Awaitable[ResultT]],
    grace: float,
) -> ResultT:
    """Do *run* with the journal that *open_journal* makes of *given*, and close the journal.

    Closing has *grace* seconds, also after a cancellation: when the batch has been left, its journals are free.

    Raises:
        JournalError: the run has ended, but its journal didn't close in time, and may still be locked.
    """
    journal = await _call_factory(open_journal, given)
    if not isinstance(journal, Journal):
        raise UserTypeError(f"journals: expected a Journal, got {journal!r}")
    try:
        result = await run(journal)
    finally:
        has_closed = await close_in_time(journal, grace)  # noqa: ASYNC102 - shielded there
    if not has_closed:
        raise JournalError(f"the journal of run {given[0]} of a batch did not close within {grace} s: {journal!r}")
    return result


@interruptible
async def _call_factory(open_journal: Callable[..., object], given: tuple[Any, ...]) -> object:
    journal: object = open_journal(*given)
    return await journal if inspect.isawaitable(journal) else journal


def _error_of(ended: Captured) -> BaseException | None:
    return ended.error if ended.own_cancel is None else unexpected_cancellation()


def _count_inputs(inputs: object) -> int | None:
    try:
        return len(inputs)  # type: ignore[arg-type]  # those without a length raise
    except TypeError:
        return None


@interruptible
def _begin_reading(inputs: Iterable[Any] | AsyncIterable[Any]) -> Iterator[Any] | AsyncIterator[Any]:
    return aiter(inputs) if isinstance(inputs, AsyncIterable) else iter(inputs)


@interruptible
async def _read_next(inputs: Iterator[Any] | AsyncIterator[Any]) -> Any:
    """Return the next input; `_END` after the last."""
    if isinstance(inputs, Iterator):
        return next(inputs, _END)
    return await anext(inputs, _END)  # of which `async for` needs no more than `__anext__`
