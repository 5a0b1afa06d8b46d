"""Nurseries: tasks that one owner waits for, and that end with their owner.

On trio a nursery is trio's own. On asyncio it is bare tasks, because anyio's group makes a handle, an event, a
coroutine and a scope for each task, which together cost three times as much as the task: 14 µs against 4.5.

Words. The *owner* is the task that enters the nursery and waits in it. A *member* is the object that a task in it works
on. The *holder* is the owner of the outermost nursery of a piece of work that has nurseries within nurseries.

Theory of the bare tasks. anyio cancels a task through the scopes that the task has entered, and a bare task is in none
of its owner's. So each member enters a scope of its own, and we *relay*: we cancel those scopes once the owner is
cancelled, in one of three ways: by a scope around it, by a deadline, or natively. From then on a member can't tell the
difference. Its cancellation is level-triggered, shields hold, and the tasks that it started are cancelled with it.

* The owner learns of its cancellation one scheduler pass late, but its count of cancellations rises at once. So all
  code that asks whether it is cancelled relays first (`backend.enclosing_cancelled`), and gets the same answer in the
  same pass as in another nursery.
* Nurseries are nested: an owner may be a member of another nursery. Relaying passes through all levels in one step.
* The owner does nothing but wait for its members. For example, a block of an application needs a group, whose scope is
  around the block as well: a scope that the block cancels within itself would look like the owner's cancellation.
* A member has one scope at a time: `member.scope`, made by `new_scope` before its start, and by `settling` for the rest
  of its task. The scope is cancelled also between the two.
* A member sees the deadline around the owner as it was when the nursery was made, because its scope shows it. Only the
  owner's own scope enforces it, so that a deadline that is postponed meanwhile doesn't end a member.
* A member's task tells its end in its last step (`leave`), and by a callback if it never came that far: because it
  raised, or because it was cancelled natively before its first step, in which case its work was never begun.

Between `__aenter__` and the end of `__aexit__` each member's task is in `_members`; then there is none. Once `ended` is
true, each scope of a member is cancelled, also one that is made later.

What we do to anyio's scopes at run time is in `find_scope_class`. Where that can't be done, and under a task factory,
which may run a task before it is registered, anyio's own group is the fallback.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from functools import cache, partial
from types import TracebackType
from typing import Any, Protocol, Self, cast, final

import anyio
import anyio.lowlevel

from agentloop._concurrency import backend
from agentloop._concurrency.backend import Task, Work
from agentloop._concurrency.interrupts import protect


class Member(Protocol):
    """The object that a member's task works on."""

    scope: anyio.CancelScope
    """The scope that the member's task is in, or enters first."""


class Nursery(Protocol):
    """Tasks that one owner waits for. Entered and waited in by the owner's task; any task starts members.

    What is written out here holds for both kinds.
    """

    __slots__ = ("context", "ended", "new_scope", "now", "on_trio", "pending_before", "task")

    is_group: bool = False
    """True if the owner's block is in a scope of the nursery's own as well, so that the block may do anything."""
    on_trio: bool
    task: Task | None
    """The owner's task, until it has left the nursery; None on trio."""
    pending_before: int
    """The native cancellations of the owner's task that were pending when it made the nursery."""
    context: Context
    """The members start in a copy of it."""
    new_scope: Callable[[], anyio.CancelScope]
    """Returns a scope for a member, whose task must enter it first."""
    now: Callable[[], float]
    """Returns the time on the loop's clock."""
    ended: bool
    """True once the members' scopes are cancelled; unknown in a group, so False."""

    def __init__(self, task: Task | None, context: Context, new_scope: Callable[[], anyio.CancelScope]) -> None:
        self.task, self.context, self.new_scope = task, context, new_scope
        self.on_trio, self.ended = task is None, False
        self.pending_before = 0 if task is None else task.cancelling()
        self.now = backend.current_time_on(task)

    # -- the owner

    async def __aenter__(self) -> Self:
        """Enter the nursery. Not a checkpoint."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        """Wait until every member's task has ended. If *error* is leaving, the members are cancelled first.

        Always yields to the scheduler at least once, here or in `wait`.

        Cancellation: the members are cancelled and awaited, then it continues.
        """

    def wait(self, until: float) -> Awaitable[None]:
        """Wait for a ring, at most until the time *until* on the loop's clock. A checkpoint. Await it at once.

        On asyncio it is a bare future where there is no time limit, because a coroutine around the future is one more
        object for the collector for each owner that waits.
        """
        ...

    def is_leaving(self) -> bool:
        """Tell whether the owner's task is cancelled natively, as at the end of its loop; if so, cancel the members."""
        leaving = self.task is not None and self.task.cancelling() > self.pending_before
        if leaving:
            self.cancel()
        return leaving

    def is_elsewhere(self) -> bool:
        """Tell whether the current task is not the one that has entered this nursery and has to leave it.

        On trio always False: its own nurseries say so, in their words, and no error of ours would get past theirs.
        """
        return self.task is not None and backend.running_loop() is not None and backend.own_task() is not self.task

    # -- for the owner, from any task

    def start(
        self, work: Work, member: Any, name: str, context: Context | None = None, *, shielded: bool = False
    ) -> None:
        """Start a task named *name* that does `work(member)`, in a copy of *context*. `member.scope` is set before.

        *context*: the nursery's own, if none is given.
        *shielded*: the task shields itself, and *member* is any object, without a scope.
        """

    def host(self, work: Work, on: Any, name: str) -> None:
        """Start a task as `start` does, of work that shields itself."""
        self.start(work, on, name, shielded=True)

    def cancel(self) -> None:
        """Cancel all members."""

    def ring(self) -> None:
        """Wake the owner, if it waits."""

    def ring_when_empty(self) -> None:
        """Wake the owner, which only needs to leave the nursery: at once, or when the members' tasks have ended."""
        self.ring()

    def relay(self) -> None:
        """Cancel the members if the owner is cancelled. In a group its scope has done it."""
        return

    # -- a member, about itself

    def check_in_time(self) -> Awaitable[None] | None:
        """Return what the current task, a member's that has entered its scope, has to await before its first step.

        It raises the cancellation that is pending, or that a deadline around the owner is about to cause; None if there
        is neither.
        """

    def is_ending(self) -> bool:
        """Tell whether the members are being cancelled as a whole. Asked by a member, also between two scopes."""
        return backend.enclosing_cancelled()

    def uncancel(self) -> None:
        """Take back the native cancellations of the current task, a member's that has left its scope."""

    def settling(self, member: Member) -> AbstractContextManager[object]:
        """Return the scope for the rest of the member's task, once `member.scope` has been left."""
        return nullcontext()

    def leave(self, task: Task | None, *, rings: bool = False) -> None:
        """Let the owner continue without *task*, the current one, a member's, which is in its last step.

        With *rings* the owner is woken for it, else where it waits for the last member's end.
        """
        if rings:  # else the backend's nursery tells its owner
            self.ring()


def new_nursery(on_lost: Callable[[], None], context: Context, *, holds: bool = False, bare: bool = True) -> Nursery:
    """Return a nursery for the current task, which becomes its owner; set it in *context* as the one around members.

    It is within the nursery around it, unless it *holds*: then it is the outermost one, and its owner the holder.
    Without *bare* it is a group: the owner's block may do anything, and the members end with any scope around it.

    *on_lost* is called if other code cancels a member's task natively before its first step, so that its work was never
    begun. The other members are then being cancelled.
    """
    task = backend.own_task()
    if task is None:
        import trio  # an extra, and here only where it runs

        if holds:
            protect()
        # trio's own nursery and scopes: anyio's around them cost 5 µs a nursery, and a third more a scope.
        new_scope = cast(type[anyio.CancelScope], trio.CancelScope)
        return _Group(trio.open_nursery(strict_exception_groups=True), task, context, new_scope)
    nursery: Nursery
    factory = task.get_loop().get_task_factory()
    if not bare or factory is not None or (scope_class := find_scope_class()) is None:
        nursery = _Group(anyio.create_task_group(), task, context, anyio.CancelScope)
        context.run(backend.innermost_nursery.set, None)
    else:
        outer = None if holds else cast("_BareTasks | None", backend.innermost_nursery.get())
        nursery = _BareTasks(task, context, scope_class, outer, on_lost)
        context.run(backend.innermost_nursery.set, nursery)
    if holds:
        context.run(backend.outermost_nursery.set, nursery)
    return nursery


# ------------------------------------------------------------------------------------------------ bare tasks


@cache
def find_scope_class() -> type[Any] | None:
    """Return a class of scopes that show a deadline and don't enforce it; None if anyio's scopes don't allow that.

    What we do to anyio: its `current_effective_deadline()` asks each scope around the task for `deadline`, which is a
    public property, while the timer of a scope reads the attribute behind it. So a subclass that overrides the property
    shows a deadline that no timer knows of. anyio promises neither. If it said "`current_effective_deadline` returns
    the least `CancelScope.deadline` around the task, as a subclass may define it; only the deadline that was assigned
    is enforced", there would be nothing to try here. Until then we try both once, inside a task, at the first use.
    """
    plain: Any = type(anyio.CancelScope())
    read, write = plain.deadline.fget, plain.deadline.fset

    class ShowingScope(plain):  # type: ignore[misc]  # the base is only known at run time
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


def _show_deadline(scope_class: type[Any], shown: float) -> anyio.CancelScope:
    """Return a scope that shows the deadline *shown*, of the class that `find_scope_class` found."""
    scope: anyio.CancelScope = scope_class()
    scope.shown = shown  # type: ignore[attr-defined]
    return scope


@final
class _BareTasks(Nursery):
    """Bare tasks on asyncio, each in one scope at a time. The theory is at the module's head."""

    __slots__ = ("_error", "_inner", "_loop", "_members", "_on_lost", "_outer", "_shown", "_wakeup")

    def __init__(
        self,
        task: Task,
        context: Context,
        scope_class: type[Any],
        outer: _BareTasks | None,
        on_lost: Callable[[], None],
    ) -> None:
        shown = anyio.current_effective_deadline()
        # The backend's class itself, where there is no deadline to show: calling `anyio.CancelScope` costs 0.7 µs more.
        plain = cast(type[anyio.CancelScope], scope_class.__base__)
        super().__init__(task, context, plain if shown == math.inf else partial(_show_deadline, scope_class, shown))
        self._shown = shown
        self._loop = task.get_loop()
        self._members: dict[Task, Member | None] = {}
        """Members by task; None for one that shields itself."""
        self._wakeup: backend.Future | None = None
        """The last future that the owner has waited for."""
        self._error: BaseException | None = None
        """The first error that a member raised. Members should raise none."""
        self._on_lost: Callable[[], None] | None = on_lost
        self._outer = outer
        self._inner: dict[_BareTasks, None] | None = None
        """The nurseries of owners in this one's tasks, in the order in which they were entered."""

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
            if error is not None and backend.is_closing(self.task):
                return
            leaving = await self._join(cancelled=error is not None)  # noqa: ASYNC102 - shielded in there
            if self._error is not None:
                raise self._error
            if error is None and leaving is not None:
                raise leaving
        finally:
            self.ended = True  # a copy of the context, in which a member's child asks, may outlive the nursery
            if self._outer is not None:
                (self._outer._inner or {}).pop(self, None)
            self.task = self._on_lost = self._error = self._wakeup = None
            del self.context  # it holds the nursery
            del error, leaving  # else: error, its traceback, this frame, error

    async def _join(self, *, cancelled: bool) -> BaseException | None:
        """Wait for the members' tasks, *cancelled* or not; return the cancellation of the owner that came meanwhile."""
        leaving: BaseException | None = None
        if cancelled:
            self.cancel()
        if not self._members:
            if self._wakeup is None:
                await anyio.lowlevel.cancel_shielded_checkpoint()  # as other nurseries do: the owner always waits once
            return None
        with anyio.CancelScope(shield=cancelled) as scope:  # noqa: ASYNC912 - there is a member to wait for
            while self._members:
                try:
                    await self.wait(math.inf)
                except backend.cancelled_types() as error:  # noqa: ASYNC103 - raised by the caller, once all have ended
                    scope.shield = True
                    self.cancel()
                    leaving = leaving or error
        try:
            return leaving
        finally:
            del leaving  # as above

    def wait(self, until: float) -> Awaitable[None]:
        self._wakeup = wakeup = self._loop.create_future()
        wakeup.add_done_callback(self._owner_wakes, context=self.context)  # without it, in one more copy
        return wakeup if until == math.inf else self._wait_until(wakeup, until)

    async def _wait_until(self, wakeup: backend.Future, until: float) -> None:
        timer = self._loop.call_at(until, self.ring)
        try:
            await wakeup
        finally:
            timer.cancel()

    def _owner_wakes(self, wakeup: backend.Future) -> None:
        """Relay the cancellation of the owner, in the pass in which the owner learns of it."""
        if wakeup.cancelled():
            self.cancel()

    def start(
        self, work: Work, member: Any, name: str, context: Context | None = None, *, shielded: bool = False
    ) -> None:
        if self.ended and not shielded:
            member.scope.cancel()
        context = (self.context if context is None else context).copy()
        task = self._loop.create_task(work(member), name=name, context=context)
        self._members[task] = None if shielded else member
        task.add_done_callback(self._member_ended, context=context)  # as above

    def leave(self, task: Task | None, *, rings: bool = False) -> None:
        # The callback takes a handle and a pass of the loop, 3 µs of each member. It is left to the tasks that don't
        # come to this.
        assert task is not None
        self._members.pop(task, None)
        task.remove_done_callback(self._member_ended)
        if not self._members:
            self.ring()

    def _member_ended(self, task: Task) -> None:
        """Note the end of *task*, which has not left by itself."""
        del self._members[task]
        if not task.cancelled():
            self._error = self._error or task.exception()
            if self._error is not None:
                self.cancel()
        elif not self.ended and self._on_lost is not None:
            self.cancel()
            backend.on_asyncio(self._on_lost)
        if not self._members:
            self.ring()

    def cancel(self) -> None:
        if not self.ended:
            self.ended = True
            for member in list(self._members.values()):
                if member is not None:
                    member.scope.cancel()
            for inner in tuple(self._inner or ()):
                inner.cancel()

    def relay(self) -> None:
        """Cancel the members if the owner is cancelled, or the owner of a nursery around this one."""
        outermost: _BareTasks | None = None
        nursery: _BareTasks | None = self
        while nursery is not None and not nursery.ended:
            if nursery.task is not None and nursery.task.cancelling() > nursery.pending_before:
                outermost = nursery
            nursery = nursery._outer
        if outermost is not None:
            outermost.cancel()

    def ring(self) -> None:
        backend.wake(self._wakeup)

    def ring_when_empty(self) -> None:
        if not self._members:
            self.ring()

    def check_in_time(self) -> Awaitable[None] | None:
        return _check_in_time() if self.is_ending() or self._shown < math.inf else None

    def is_ending(self) -> bool:
        self.relay()
        return self.ended

    def uncancel(self) -> None:
        backend.uncancel_to(0)  # no scope is around a bare task

    def settling(self, member: Member) -> AbstractContextManager[object]:
        member.scope = scope = self.new_scope()
        if self.ended:
            scope.cancel()
        return scope


# ------------------------------------------------------------------------------------------------ backends' nurseries


@final
class _Group(Nursery):
    """A nursery of the backend's, whose scope is around the owner's block too."""

    __slots__ = ("_is_unbounded", "_manager", "_scope", "_start", "_wakeup")

    is_group: bool = True

    def __init__(
        self, manager: Any, task: Task | None, context: Context, new_scope: Callable[[], anyio.CancelScope]
    ) -> None:
        super().__init__(task, context, new_scope)
        self._manager = manager
        self._wakeup = backend.new_wakeup()
        self._is_unbounded = False
        """True once a member has found no deadline around it: a search for one takes 2.4 µs."""

    async def __aenter__(self) -> Self:
        self._scope = (await self._manager.__aenter__()).cancel_scope
        self._start = backend.starter(self._manager)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        try:
            left: bool | None = await self._manager.__aexit__(kind, error, tb)  # noqa: ASYNC102 - cancels before it waits
            return left
        except BaseExceptionGroup as errors:
            if errors.split(backend.cancelled_types())[1] is None:
                await backend.checkpoint_if_cancelled()  # noqa: ASYNC102, ASYNC120 - raises one cancellation in place of a group
            raise
        finally:
            self.task = None
            del self.context  # it holds the nursery
            del error, tb  # else: error, its traceback, this frame, error

    def wait(self, until: float) -> Awaitable[None]:
        return self._wakeup.wait() if until == math.inf else self._wait_until(until)

    async def _wait_until(self, until: float) -> None:
        with anyio.CancelScope(deadline=until):  # noqa: ASYNC912 - the wait below is its cancel point
            await self._wakeup.wait()

    def start(
        self, work: Work, member: Any, name: str, context: Context | None = None, *, shielded: bool = False
    ) -> None:
        self._start(work, member, name, self.context if context is None else context)

    def cancel(self) -> None:
        self._scope.cancel()

    def ring(self) -> None:
        self._wakeup.ring()

    def check_in_time(self) -> Awaitable[None] | None:
        # A deadline that is set later ends the members all the same, a scheduler pass later.
        self._is_unbounded = self._is_unbounded or anyio.current_effective_deadline() == math.inf
        return backend.checkpoint_if_cancelled() if self._is_unbounded else _check_in_time()

    def uncancel(self) -> None:
        if anyio.current_effective_deadline() > -math.inf:  # else the nursery's scope has counted them
            backend.uncancel_to(0)


async def _check_in_time() -> None:
    """Raise the cancellation that is pending already; if the deadline around has passed, wait for the one it causes.

    Code that is started in a cancelled nursery runs up to its first await, so a member checks before its first step. We
    wait a few scheduler passes, which both backends need at most, because a deadline may have been postponed since.
    """
    await backend.checkpoint_if_cancelled()
    if anyio.current_effective_deadline() <= anyio.current_time():
        for _ in range(4):
            await anyio.lowlevel.checkpoint()
            await backend.checkpoint_if_cancelled()
