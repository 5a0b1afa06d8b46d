"""Nurseries: the tasks of one turn's calls, or of one run, which one owner waits for and which end with their owner.

Knows tasks, scopes and their owner; not calls, records or limits. On trio it is trio's own nursery. On asyncio it is
bare tasks: anyio's group makes a handle, an event, a coroutine and a scope for each task, which together cost three
times as much as the task (14 µs against 4.5). Public names of anyio alone are used.

Theory of the bare tasks. anyio cancels a task through the scopes that the task has entered, and a bare task is in none
of its owner's. So each member enters a scope of its own, and *relaying* cancels those scopes once the owner is
cancelled in any way: by a scope around it, by a deadline, or natively. From then on a member can't tell the difference:
its cancellation is level-triggered, shields hold, and its tasks are cancelled with it.

* The owner learns of its cancellation one scheduler pass late. Its count of cancellations rises at once. So all code
  that asks whether the run is cancelled relays first (`backend.enclosing_cancelled`), and gets the same answer in the
  same pass as in a nursery.
* A plain run's task is a member of a nursery of its caller's, and the nurseries of its turns, and of the runs nested in
  its calls, are in members of that one. Relaying passes through all levels in one step.
* The owner does nothing else but wait for its members. So a streamed run, whose block is the application's, is in a
  group of anyio's, whose scope is around the block as well (`new_nursery`).
* A member has one scope at a time: `member.scope`, made by `new_scope` before its start and by `settling` for the rest
  of its task.
* A body sees the deadline around the owner as it was when the nursery was made, by a scope that shows it. The owner
  alone enforces it, so that a deadline that is postponed meanwhile doesn't end a body.

anyio's own group is the fallback: under a task factory, which may run a task before it is registered, and with a
version of anyio whose scopes can't show a deadline (`_find_scope_class` tries that).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from functools import cache, partial
from types import EllipsisType, TracebackType
from typing import Any, Protocol, Self, cast, final

import anyio
import anyio.lowlevel

from agentloop._concurrency.backend import (
    OwnersWakeup,
    Task,
    Work,
    cancelled_types,
    checkpoint_if_cancelled,
    current_holder,
    current_relay,
    enclosing_cancelled,
    is_closing,
    new_wakeup,
    own_task,
    running_loop,
    starter,
    uncancel_to,
    wake,
)
from agentloop._concurrency.interrupts import protect


class Member(Protocol):
    """The object that a member's task works on."""

    scope: anyio.CancelScope
    """The scope that the member's task is in, or enters first."""


class Nursery(Protocol):
    """The tasks of one turn's calls, or of one run. Entered and waited in by its owner's task; any starts members.

    The methods that are written out here are those of a group, whose members are in a scope of its own.
    """

    __slots__ = ()

    on_trio: bool = False
    task: Task | None = None
    """The owner's task, until it has left the nursery; None on trio."""
    is_group: bool = True
    """True if the members are in a scope of the nursery's own, `_scope`."""
    shown: float = -math.inf
    """The deadline around the owner; unknown in a group."""
    context: Context
    """The members start in a copy of it."""
    new_scope: Callable[[], anyio.CancelScope]
    """Returns a scope for a member, whose task must enter it first."""
    ended: bool = False
    """True once the members' scopes are cancelled; unknown in a group, so False."""
    _scope: Any = None
    pending_before: int = 0
    """The native cancellations of the owner's task that were pending when it made the nursery."""

    def now(self) -> float:
        """Return the time on the loop's clock."""
        ...

    def is_leaving(self) -> bool:
        """Tell whether the owner's task is cancelled natively, as `Holder` asks; if so, cancel the members."""
        if self.task is None or self.task.cancelling() <= self.pending_before:
            return False
        self.cancel()
        return True

    async def __aenter__(self) -> Self:
        """Enter the nursery. Not a checkpoint."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        """Wait until every member's task has ended. If *error* is leaving, the members are cancelled first.

        At least one scheduler pass goes by in a nursery.

        Cancellation: the members are cancelled and awaited, then it continues.
        """
        ...

    def start(self, work: Work, member: Any, name: str, *, shielded: bool = False) -> None:
        """Start a task named *name* that does `work(member)`, in a copy of `context`. `member.scope` is set before.

        *shielded*: the task shields itself, and *member* is any object, without a scope.
        """
        ...

    def is_elsewhere(self) -> bool:
        """Tell whether the current task is not the one that has entered this nursery and has to leave it.

        On trio always False: its own nurseries say so, in their words, and no error of ours would get past theirs.
        """
        return self.task is not None and running_loop() is not None and own_task() is not self.task

    def host(self, work: Work, on: Any, name: str) -> None:
        """Start a task as `start` does, of work that shields itself."""
        self.start(work, on, name, shielded=True)

    def settling(self, member: Member) -> AbstractContextManager[object]:
        """Return the scope for the rest of the member's task, once `member.scope` has been left."""
        return nullcontext()

    def cancel(self) -> None:
        """Cancel all members."""
        self._scope.cancel()

    def check_in_time(self) -> Awaitable[None] | None:
        """Return what the current task, a member's that has entered its scope, has to await before its first step.

        It raises the cancellation that is pending, or that a deadline around the owner is about to cause; None if there
        is neither.
        """
        ...

    def uncancel(self) -> None:
        """Take back the native cancellations of the current task, a member's that has left its scope."""
        if anyio.current_effective_deadline() > -math.inf:  # else the nursery's scope has counted them
            uncancel_to(0)

    def is_ending(self) -> bool:
        """Tell whether the members are being cancelled as a whole. Asked by a member, also between two scopes."""
        return enclosing_cancelled()

    def ring(self) -> None:
        """Wake the owner, if it waits."""
        ...

    def leave(self, task: Task | None, *, rings: bool = False) -> None:
        """Let the owner continue without *task*, the current one, a member's, which is in its last step.

        With *rings* the owner is woken for it, else where it waits for the last member's end.
        """
        if rings:  # else the group tells its owner
            self.ring()

    def ring_when_empty(self) -> None:
        """Wake the owner, which only needs to leave the nursery: at once, or when the members' tasks have ended."""
        self.ring()

    def wait(self, until: float) -> Awaitable[None]:
        """Wait for a ring, at most until the time *until* on the loop's clock. A checkpoint. For the owner.

        To be awaited at once. On asyncio it is a bare future where there is no time limit: each waiting run has two of
        them, and a coroutine around one is an object for the collector.
        """
        ...


class Owner(Protocol):
    """The object whose tasks a nursery has: a batch of calls, or a run."""

    def _lose_task(self) -> None:
        """Note that a member was cancelled natively before its first step, so that its work was never begun.

        The other members are then being cancelled.
        """
        ...


def new_nursery(
    owner: Owner,
    context: Context,
    *,
    holds: bool = False,
    bare: bool = True,
    shown: float | None = None,
    task: Task | EllipsisType | None = ...,
) -> Nursery:
    """Return a nursery for the current task, whose relay is set in *context*.

    It is within the nursery around it. But one that *holds* a run, whose holder is the current task, is the outermost
    of that run, and is set in *context* as its holder, too.

    Without *bare* it is a group, whose scope is around the owner's block as well: the owner of a nursery of bare tasks
    may do nothing else but wait for them, since a cancellation of a scope within the owner's own work would look like
    the owner's. And members end with a scope around the owner, also while the owner's own work continues.

    *shown* is the deadline around the current task, if the caller knows it: a search takes 1.4 µs. *task* is the
    current one as `own_task` returns it, if the caller knows it.
    """
    if task is ...:
        task = own_task()
    if task is None:
        if holds:
            protect()
        return _TrioNursery(context)
    nursery: _AnyioNursery | _BareTasks
    factory = task.get_loop().get_task_factory()
    if not bare or factory is not None or (scope_class := find_scope_class()) is None:
        nursery = _AnyioNursery(task, context)
        context.run(current_relay.set, None)
    else:
        outer = None if holds else cast("_BareTasks | None", current_relay.get())
        nursery = _BareTasks(task, scope_class, owner, context, outer, shown)
        context.run(current_relay.set, nursery)
    if holds:
        context.run(current_holder.set, nursery)
    return nursery


@cache
def find_scope_class() -> type[Any] | None:
    """Return a class of scopes that show a deadline and don't enforce it; None if anyio's scopes don't allow that.

    It overrides the public property `deadline`. Tried out at first use, inside a task: what the scope shows is what
    `current_effective_deadline` returns, and the time it shows being over does not cancel it.
    """
    plain: Any = type(anyio.CancelScope())
    read, write = plain.deadline.fget, plain.deadline.fset

    class ShowingScope(plain):  # type: ignore[misc]  # the base is known at run time alone
        __slots__ = ("shown",)

        shown: float

        @property
        def deadline(self) -> float:
            """The scope's own deadline, or the one it shows, if that is earlier."""
            return min(cast(float, read(self)), self.shown)

        @deadline.setter
        def deadline(self, value: float) -> None:
            write(self, value)

    past = anyio.current_time() - 1.0
    scope = ShowingScope()
    scope.shown = past
    fits = False
    with anyio.CancelScope(shield=True), scope:  # noqa: ASYNC100 - only what the scope shows is asked
        fits = anyio.current_effective_deadline() == past
    return ShowingScope if fits and not scope.cancel_called else None


@final
class _BareTasks(Nursery):
    """Bare tasks on asyncio, each in one scope at a time."""

    # It is the callback of its members' ends, and the holder of its run, itself: bound methods and objects for these
    # would be four more for the collector in each waiting run and turn.
    __slots__ = (
        "_error",
        "_inner",
        "_loop",
        "_members",
        "_outer",
        "_owner",
        "_wakeup",
        "context",
        "ended",
        "new_scope",
        "pending_before",
        "shown",
        "task",
    )

    is_group: bool = False

    def __init__(
        self,
        task: Task,
        scope_class: type[Any],
        owner: Owner,
        context: Context,
        outer: _BareTasks | None,
        shown: float | None,
    ) -> None:
        self.ended = False
        """True once the members' scopes are cancelled."""
        self._owner: Owner | None = owner
        self.task: Task | None = task
        self._loop = task.get_loop()
        self.pending_before = task.cancelling()
        self.context = context
        self._members: dict[Task, Member | None] = {}
        """Members by task; None for one that shields itself."""
        self._wakeup: OwnersWakeup | None = None
        self._error: BaseException | None = None
        self.shown = shown = anyio.current_effective_deadline() if shown is None else shown
        # The backend's class itself, where there is no deadline to show: calling `anyio.CancelScope` costs 0.7 µs more.
        plain = cast(type[anyio.CancelScope], scope_class.__base__)
        self.new_scope = plain if shown == math.inf else partial(_show_deadline, scope_class, shown)
        self._outer = outer
        self._inner: dict[_BareTasks, None] | None = None

    def now(self) -> float:
        return self._loop.time()

    async def __aenter__(self) -> Self:
        if self._outer is not None:
            self._outer._inner = inner = self._outer._inner or {}
            inner[self] = None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        leaving: BaseException | None = None
        try:
            if error is not None:
                if is_closing(self.task):
                    return
                self.cancel()
            if self._members:
                with anyio.CancelScope(shield=error is not None) as scope:  # noqa: ASYNC912 - there is a member to wait for
                    while self._members:
                        try:
                            await self.wait(math.inf)  # noqa: ASYNC102 - shielded; the members are being cancelled
                        except cancelled_types() as cancelled:  # noqa: ASYNC103 - raised below, once all have ended
                            scope.shield = True
                            self.cancel()
                            leaving = leaving or cancelled
            elif self._wakeup is None:
                await anyio.lowlevel.cancel_shielded_checkpoint()  # as other nurseries do: a turn always waits once
            if self._error is not None:
                raise self._error
            if error is None and leaving is not None:
                raise leaving
        finally:
            self.ended = True  # a copy of the context, in which a member's child asks, may outlive the nursery
            if self._outer is not None:
                (self._outer._inner or {}).pop(self, None)
            self._owner = self.task = self._error = self._wakeup = None
            del self.context  # it holds the nursery
            del error, leaving  # else: error, its traceback, this frame, error

    def start(self, work: Work, member: Any, name: str, *, shielded: bool = False) -> None:
        if self.ended and not shielded:
            member.scope.cancel()
        context = self.context.copy()
        task = self._loop.create_task(work(member), name=name, context=context)
        self._members[task] = None if shielded else member
        task.add_done_callback(self, context=context)  # without it the callback gets one more copy

    def settling(self, member: Member) -> AbstractContextManager[object]:
        member.scope = scope = self.new_scope()
        if self.ended:
            scope.cancel()
        return scope

    def check_in_time(self) -> Awaitable[None] | None:
        self.relay()
        return _check_in_time() if self.ended or self.shown < math.inf else None

    def uncancel(self) -> None:
        uncancel_to(0)  # no scope is around a bare task

    def is_ending(self) -> bool:
        self.relay()
        return self.ended

    def relay(self) -> None:
        """Cancel the members if the owner is cancelled. For all code in a member that asks about cancellation."""
        outermost: _BareTasks | None = None
        nursery: _BareTasks | None = self
        while nursery is not None and not nursery.ended:
            if nursery.task is not None and nursery.task.cancelling() > nursery.pending_before:
                outermost = nursery
            nursery = nursery._outer
        if outermost is not None:
            outermost.cancel()

    def ring(self) -> None:
        wake(self._wakeup)

    def leave(self, task: Task | None, *, rings: bool = False) -> None:
        # The callback of a task's end takes a handle and a pass of the loop: 3 µs of each call, and of a run of one
        # turn. It is left to the tasks that don't come to this, or never begin.
        assert task is not None
        self._members.pop(task, None)
        task.remove_done_callback(self)
        if not self._members:
            wake(self._wakeup)

    def ring_when_empty(self) -> None:
        if not self._members:
            wake(self._wakeup)

    def wait(self, until: float) -> Awaitable[None]:
        self._wakeup = wakeup = OwnersWakeup(loop=self._loop)
        wakeup.nursery = self
        return wakeup if until == math.inf else self._wait_until(wakeup, until)

    async def _wait_until(self, wakeup: OwnersWakeup, until: float) -> None:
        timer = self._loop.call_at(until, self.ring)
        try:
            await wakeup
        finally:
            timer.cancel()

    def cancel(self) -> None:
        if not self.ended:
            self.ended = True
            for member in list(self._members.values()):
                if member is not None:
                    member.scope.cancel()
            for inner in tuple(self._inner or ()):
                inner.cancel()

    def __call__(self, task: Task) -> None:
        """Note the end of *task*, a member's that has not left by itself."""
        del self._members[task]
        if task.cancelled():
            if not self.ended and self._owner is not None:
                self.cancel()
                self._owner._lose_task()
        elif (error := task.exception()) is not None:
            self._error = self._error or error
            self.cancel()
        if not self._members:
            self.ring()


def _show_deadline(scope_class: type[Any], shown: float) -> anyio.CancelScope:
    """Return a scope that shows the deadline *shown*, of the class that `find_scope_class` found."""
    scope: anyio.CancelScope = scope_class()
    scope.shown = shown  # type: ignore[attr-defined]
    return scope


async def _wait_until(nursery: Nursery, until: float) -> None:
    with anyio.CancelScope(deadline=until):  # noqa: ASYNC912 - the wait below is its cancel point
        await nursery.wait(math.inf)


@final
class _AnyioNursery(Nursery):
    """anyio's own group, on asyncio."""

    def __init__(self, task: Task, context: Context) -> None:
        self.task: Task | None = task
        self.pending_before = task.cancelling()
        self.context = context
        self._group = anyio.create_task_group()
        self.new_scope = anyio.CancelScope
        self._wakeup = new_wakeup()

    def now(self) -> float:
        return anyio.current_time()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._start, self._scope = starter(self._group), self._group.cancel_scope
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        try:
            return await self._group.__aexit__(kind, error, tb)  # noqa: ASYNC102 - it cancels its tasks before it waits
        finally:
            self.task = None
            del self.context  # it holds the nursery
            del error, tb  # else: error, its traceback, this frame, error

    def start(self, work: Work, member: Any, name: str, *, shielded: bool = False) -> None:
        self._start(work, member, name, self.context)

    def ring(self) -> None:
        self._wakeup.ring()

    def wait(self, until: float) -> Awaitable[None]:
        return self._wakeup.wait() if until == math.inf else _wait_until(self, until)

    def check_in_time(self) -> Awaitable[None] | None:
        return _check_in_time() if anyio.current_effective_deadline() < math.inf else None


@final
class _TrioNursery(Nursery):
    """trio's own nursery and scopes; anyio's around them cost 5 µs a nursery, and a third more a scope."""

    # It is its owner's wakeup itself, for the reason of `_BareTasks`.
    __slots__ = ("_clock", "_manager", "_nursery", "_owner", "_scope", "_trio", "_unbounded", "context", "new_scope")

    on_trio: bool = True

    def __init__(self, context: Context) -> None:
        import trio  # an extra, and here only where it runs

        self._trio = trio
        self.context = context
        self.new_scope = cast(type[anyio.CancelScope], trio.CancelScope)
        self._nursery: Any
        self._owner: Any = None
        """The owner's task, while it waits."""
        self._clock: Any = None
        """The loop's clock, once a member has asked it: `trio.current_time` goes to it through two functions."""
        self._unbounded = False
        """True once a member has found no deadline around it."""
        self._manager = trio.open_nursery(strict_exception_groups=True)

    async def __aenter__(self) -> Self:
        self._nursery = nursery = await self._manager.__aenter__()
        self._scope = nursery.cancel_scope
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        try:
            return await self._manager.__aexit__(kind, error, tb)  # noqa: ASYNC102 - it cancels its tasks before it waits
        except BaseExceptionGroup as errors:
            if errors.split(self._trio.Cancelled)[1] is None:
                await checkpoint_if_cancelled()  # noqa: ASYNC102, ASYNC120 - raises one cancellation in place of a group
            raise
        finally:
            del error, tb  # else: error, its traceback, this frame, error

    def start(self, work: Work, member: Any, name: str, *, shielded: bool = False) -> None:
        self.context.run(self._nursery.start_soon, work, member, name=name)

    def ring(self) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            self._trio.lowlevel.reschedule(owner)

    ring_when_empty = ring

    def wait(self, until: float) -> Awaitable[None]:
        if until < math.inf:
            return _wait_until(self, until)
        self._owner = self._trio.lowlevel.current_task()
        return self._trio.lowlevel.wait_task_rescheduled(self)

    def __call__(self, _: object) -> Any:
        """Let a cancellation of the owner's wait pass: for trio."""
        self._owner = None
        return self._trio.lowlevel.Abort.SUCCEEDED

    def now(self) -> float:
        if self._clock is None:
            self._clock = self._trio.lowlevel.current_clock()
        now: float = self._clock.current_time()
        return now

    def check_in_time(self) -> Awaitable[None] | None:
        # The search for a deadline goes through all scopes around the run, for 1.5 µs: one for all members. A deadline
        # that is set later ends them all the same, a pass of the loop later.
        if self._unbounded or self._find_unbounded():
            checkpoint: Awaitable[None] = self._trio.lowlevel.checkpoint_if_cancelled()
            return checkpoint
        return _check_in_time()

    def _find_unbounded(self) -> bool:
        self._unbounded = self._trio.current_effective_deadline() == math.inf
        return self._unbounded


_PASSES_TO_DEADLINE = 4


async def _check_in_time() -> None:
    """Raise the cancellation that is pending already; if the deadline around has passed, wait for the one it causes.

    Code spawned into a cancelled nursery runs up to its first await, so a member checks before its first step. The
    wait is of some scheduler passes, which both backends need at most: a deadline may have been postponed since.
    """
    await checkpoint_if_cancelled()
    if anyio.current_effective_deadline() <= anyio.current_time():
        for _ in range(_PASSES_TO_DEADLINE):
            await anyio.lowlevel.checkpoint()
            await checkpoint_if_cancelled()
