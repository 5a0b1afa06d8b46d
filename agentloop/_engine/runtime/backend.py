"""The one module that imports asyncio: what anyio does not say about a natively cancelled task.

On asyncio a body can cancel its own task, or raise `CancelledError`, with no cancel scope involved. Those are the
body's own doing, and the task must go on afterwards: its cancellation count is put back to what it was.

The end of `asyncio.run` cancels every task of the loop natively, once, the tasks of a run among them. A `Holder` tells
that from a body's own cancellation: the task that holds the run is then cancelled too, in the same step. A task that is
cancelled natively before its first step never runs. So whatever a task is to do belongs to the code that started it
until the task's first step takes it over; nothing may wait for a task that may never have begun.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, final

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from anyio.lowlevel import EventLoopToken, checkpoint_if_cancelled

from agentloop._common.error_text import leaves
from agentloop._engine.runtime.interrupts import uninterrupted
from agentloop.exceptions import UserError

if TYPE_CHECKING:
    import trio


Work: TypeAlias = Callable[[Any], Coroutine[Any, Any, None]]


class Starter(Protocol):
    """Starts tasks in one nursery."""

    def __call__(self, work: Work, on: Any, name: str, context: Context | None = None) -> None:
        """Start a task named *name* that does `work(on)`, in a copy of *context* (None: of the current one)."""
        ...


def cancelled_types() -> tuple[type[BaseException], ...]:
    """Return what means cancellation here: the backend's exception, and asyncio's where a body raised it by hand."""
    try:
        native = anyio.get_cancelled_exc_class()  # noqa: ASYNC118 - this module is where the classes are told apart
    except RuntimeError:  # the loop has gone
        return (asyncio.CancelledError,)
    return (native,) if native is asyncio.CancelledError else (native, asyncio.CancelledError)


def enclosing_cancelled() -> bool:
    """Tell whether a scope around the current task is cancelled, so that the next checkpoint will raise."""
    return anyio.current_effective_deadline() == -math.inf


def cancelled_outside(scope: anyio.CancelScope) -> bool:
    """Tell whether a scope around *scope*, which the current task is in, is cancelled too.

    Both backends ask themselves just that when a scope is left; in public neither says it to those still inside.
    """
    try:
        if own_task() is not None:
            return bool(scope._parent_cancellation_is_visible_to_us)  # type: ignore[attr-defined]
        status = scope._CancelScope__original._cancel_status  # type: ignore[attr-defined]
        return bool(status.parent_cancellation_is_visible_to_us)
    except AttributeError:  # pragma: no cover - other internals than those of the versions we know
        return False


def own_task() -> asyncio.Task[object] | None:
    """Return the current task on asyncio; None on trio, and outside of an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # not on asyncio
        return None


def is_closing(task: object) -> bool:
    """Tell whether the code that is running now is not run by *task* (what `own_task` gave it), but being closed.

    A coroutine whose event loop has gone ends by a `GeneratorExit` that is thrown into it. Nothing can be awaited then,
    and a scope of anyio's that is left makes another error of it. A `GeneratorExit` that a body raises comes in its
    own task.
    """
    if task is not None:
        return own_task() is not task
    try:
        anyio.lowlevel.current_token()
    except RuntimeError:
        return True
    return False


class Holder:
    """The task that holds a run: it entered the run's block, and is cancelled natively when the loop is left.

    Known by a context variable to all code of the run. On trio there are no native cancellations, and nothing to ask.
    """

    __slots__ = ("_count", "_scope", "_task")

    def __init__(self, scope: anyio.CancelScope) -> None:
        self._scope = scope
        self._task = own_task()
        self._count = self._task.cancelling() if self._task is not None else 0

    def is_leaving(self) -> bool:
        """Tell whether the holder is cancelled natively. The run's scope is then cancelled, in this very step."""
        if self._task is None or self._task.cancelling() <= self._count:
            return False
        self._scope.cancel()
        return True


current_holder: ContextVar[Holder | None] = ContextVar("agentloop holder", default=None)


def run_is_cancelled() -> bool:
    """Tell whether the run around the current code is being cancelled: by a scope, or natively with its holder."""
    return enclosing_cancelled() or loop_is_left()


def loop_is_left() -> bool:
    """Tell whether the holder of the run around the current code is cancelled natively, as at the end of its loop."""
    holder = current_holder.get()
    return holder is not None and holder.is_leaving()


def cancelling() -> int:
    """Return how many native cancellations of the current task are pending; 0 on trio."""
    task = own_task()
    return task.cancelling() if task is not None else 0


def uncancel_to(count: int) -> None:
    """Take back native cancellations of the current task down to *count*: the body's own, which its outcome tells."""
    task = own_task()
    while task is not None and task.cancelling() > count:
        task.uncancel()


def absorb_own_cancel(count: int) -> bool:
    """Tell whether a cancellation just caught is nobody's but the code's own, and if so take it back to *count*."""
    if run_is_cancelled():
        return False
    uncancel_to(count)
    return True


async def raise_native_cancel(cancelled: BaseException) -> None:
    """Raise the backend's own cancellation, which is under way, where *cancelled* is asyncio's, raised by hand on trio.

    To be called before *cancelled* is raised again: a stranger's is an error to the nurseries that it passes, and to
    the caller.
    """
    if not isinstance(cancelled, anyio.get_cancelled_exc_class()):  # noqa: ASYNC118 - as above
        await checkpoint_if_cancelled()


@final
class _LazyCoroutine(Coroutine[Any, Any, None]):
    """`work(on)`, called when its task first runs: a task that never does leaves no coroutine that nobody awaited."""

    __slots__ = ("_on", "_work")

    def __init__(self, work: Work, on: Any) -> None:
        self._work = work
        self._on = on

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work(self._on).__await__()

    def send(self, value: Any) -> Any:  # pragma: no cover - a Coroutine has these; it is awaited, never stepped
        raise RuntimeError("only to be awaited")

    def throw(self, *error: Any) -> Any:  # pragma: no cover - as above
        raise RuntimeError("only to be awaited")

    def close(self) -> None:
        """Do nothing: nothing has begun."""


def starter(group: TaskGroup) -> Starter:
    """Return what starts tasks in *group*, which the current task has just entered.

    On trio that is the nursery itself: each task that anyio's group makes has a handle with a scope and an event of its
    own around it, which cost more than the task, and which an interrupt could tear.
    """
    if own_task() is not None:
        # Backends copy the context. An eager task runs before it is made, and may start others, inside of the context.
        eager = asyncio.get_running_loop().get_task_factory() is not None

        def start_in_group(work: Work, on: Any, name: str, context: Context | None = None) -> None:
            group.create_task(
                _LazyCoroutine(work, on),
                name=name,
                context=context.copy() if eager and context is not None else context,
            )

        return start_in_group
    import trio  # an extra, and here only where it runs

    nursery = trio.lowlevel.current_task().child_nurseries[-1]

    def start_in_nursery(work: Work, on: Any, name: str, context: Context | None = None) -> None:
        if context is None:
            nursery.start_soon(work, on, name=name)
        else:
            context.run(lambda: nursery.start_soon(work, on, name=name))

    return start_in_nursery


@uninterrupted
async def in_own_task(work: Callable[[], Awaitable[None]]) -> None:
    """Do *work* where a native cancellation of the current task doesn't reach it; scopes around it do.

    For what must run to its end although a body may have left a `Task.cancel()` of its own task behind. What *work*
    raises is raised here, bare; a cancellation that it makes up by itself is a `UserError`.
    """
    count = cancelling()
    job = _OwnTask(work)
    while not job.begun:  # a task that is cancelled natively before its first step does nothing: start it again
        async with anyio.create_task_group() as group:
            starter(group)(_run_own_task, job, "agentloop own task")
            while not job.done.is_set():
                try:
                    await job.done.wait()
                except asyncio.CancelledError:  # noqa: ASYNC103 - a stray one: only a scope's goes on
                    if enclosing_cancelled():
                        raise
                    uncancel_to(count)
        await checkpoint_if_cancelled()
    if job.failure is not None:
        raise job.failure


async def wait_out_cancellations(wait: Callable[[], Awaitable[object]]) -> None:
    """Await `wait()` in a task of the library's own, again each time that a native cancellation has ended it.

    Cancellation: scopes around it end it.
    """
    while True:  # noqa: ASYNC913 - what it awaits has its own
        try:
            await wait()
        except asyncio.CancelledError:  # noqa: ASYNC103 - a native one: only a scope's goes on
            if enclosing_cancelled():
                raise
            uncancel_to(0)
        else:
            return


@final
class _OwnTask:
    """Work for a task of its own, and what came of it."""

    __slots__ = ("begun", "done", "failure", "work")

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self.work = work
        self.begun = False
        self.done = anyio.Event()
        self.failure: BaseException | None = None


@uninterrupted
async def _run_own_task(job: _OwnTask) -> None:
    job.begun = True
    task = own_task()
    try:
        await job.work()
    except cancelled_types() as error:
        if not absorb_own_cancel(0):
            await raise_native_cancel(error)  # noqa: ASYNC120 - waits for nothing: a cancellation is there
            raise
        job.failure = self_cancelled(error)
    except BaseException as error:  # noqa: ASYNC103 - carried to the task that waits
        if is_closing(task):
            raise
        job.failure = error
    finally:
        job.done.set()


def self_cancelled(error: BaseException) -> UserError:
    """Return the error that stands for a callback's own cancellation: nobody else asked for it."""
    failure = UserError(f"a callback cancelled itself: {type(error).__name__}({error})")
    failure.__cause__ = error
    return failure


def scope_left_open(error: BaseException) -> UserError | None:
    """Return the error that says what broke the scopes of the run, if *error* is a backend's complaint of that.

    Both backends raise a RuntimeError wherever an outer scope is left while an inner one is still open; the nursery
    whose task ends so raises a group.
    """
    for leaf in leaves(error):
        if isinstance(leaf, RuntimeError) and "cancel scope" in str(leaf).lower():
            failure = UserError(
                "a cancel scope was entered by a model, a hook or a callback of the run, and not left in the same task"
            )
            failure.__cause__ = leaf
            return failure
    return None


def unexpected_cancellation() -> UserError:
    """Return the error for a task of a run that other code has cancelled natively, while the run goes on."""
    return UserError("a task of this run was cancelled by other code of the event loop")


def liveness(token: EventLoopToken) -> Callable[[], bool]:
    """Return what tells whether the event loop of *token* has not ended yet, and doesn't hold it meanwhile."""
    loop = weakref.ref(token.native_token)

    def lives() -> bool:
        native = loop()
        if native is None:
            return False
        if isinstance(native, asyncio.AbstractEventLoop):
            return not native.is_closed()
        try:
            native.run_sync_soon(_do_nothing)  # type: ignore[attr-defined]  # a trio token; trio is an extra
        except RuntimeError:  # trio.RunFinishedError
            return False
        return True

    return lives


def tell(token: EventLoopToken, fn: Callable[..., object], *args: object) -> None:
    """Have *fn* called on the event loop of *token*, from any thread, without waiting for it.

    Raises:
        RuntimeError: if the loop is closed.
    """
    native = token.native_token
    if isinstance(native, asyncio.AbstractEventLoop):
        native.call_soon_threadsafe(fn, *args)
    else:
        native.run_sync_soon(fn, *args)  # type: ignore[attr-defined]  # a trio token; trio is an extra


def _do_nothing() -> None:
    """Run on the loop to learn that it runs."""


class Wakeup(Protocol):
    """Wakes the one task that waits for it. Ringing with nobody there is nothing: who waits looks before it waits.

    For the hand-over that happens for every delta of a stream, where an `anyio.Event` for each wait would cost more
    than the delta's event and its way through the buffer together.
    """

    @property
    def awaited(self) -> bool:
        """Whether a task waits and has not been woken."""
        ...

    def ring(self) -> None:
        """Wake who waits. Only in the event loop of whoever waits."""
        ...

    async def wait(self) -> None:
        """Wait for the next ring. Only if nobody else does."""
        ...


def new_wakeup() -> Wakeup:
    """Return a bell for the running event loop."""
    return _TrioWakeup() if own_task() is None else _AsyncioWakeup()


@final
class _AsyncioWakeup:
    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    @property
    def awaited(self) -> bool:
        return self._future is not None and not self._future.done()

    def ring(self) -> None:
        future = self._future
        if future is not None and not future.done() and not future.get_loop().is_closed():
            future.set_result(None)

    async def wait(self) -> None:
        self._future = asyncio.get_running_loop().create_future()
        await self._future


@final
class _TrioWakeup:
    __slots__ = ("_lowlevel", "_task")

    def __init__(self) -> None:
        import trio  # an extra, and here only where it runs

        self._lowlevel = trio.lowlevel
        self._task: trio.lowlevel.Task | None = None

    @property
    def awaited(self) -> bool:
        return self._task is not None

    def ring(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            self._lowlevel.reschedule(task)

    async def wait(self) -> None:
        self._task = self._lowlevel.current_task()
        await self._lowlevel.wait_task_rescheduled(self._forget)

    def _forget(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return self._lowlevel.Abort.SUCCEEDED
