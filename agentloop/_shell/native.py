"""The one module that imports asyncio: what anyio does not say about a natively cancelled task.

On asyncio a body can cancel its own task, or raise `CancelledError`, with no cancel scope involved. Those are the
body's own doing, and the task must go on afterwards: its cancellation count is put back to what it was.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, final

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import EventLoopToken, checkpoint_if_cancelled

from agentloop.exceptions import UserError

if TYPE_CHECKING:
    import trio


Starter: TypeAlias = Callable[[Callable[[Any], Coroutine[Any, Any, None]], Any, str, Context], None]
"""Starts a task: what it does, on what, under which name, and in a copy of which context."""


def cancelled_types() -> tuple[type[BaseException], ...]:
    """Return what means cancellation here: the backend's exception, and asyncio's where a body raised it by hand."""
    native = anyio.get_cancelled_exc_class()  # noqa: ASYNC118 - this module is where the classes are told apart
    return (native,) if native is asyncio.CancelledError else (native, asyncio.CancelledError)


def enclosing_cancelled() -> bool:
    """Tell whether a scope around the current task is cancelled, so that the next checkpoint will raise."""
    return anyio.current_effective_deadline() == -math.inf


def _task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # not on asyncio
        return None


def cancelling() -> int:
    """Return how many native cancellations of the current task are pending; 0 on trio."""
    task = _task()
    return task.cancelling() if task is not None else 0


def uncancel_to(count: int) -> None:
    """Take back native cancellations of the current task down to *count*: the body's own, which its outcome tells."""
    task = _task()
    while task is not None and task.cancelling() > count:
        task.uncancel()


def taken_back(count: int) -> bool:
    """Tell whether a cancellation just caught is nobody's but the code's own, and if so take it back to *count*."""
    if enclosing_cancelled():
        return False
    uncancel_to(count)
    return True


async def outrank(cancelled: BaseException) -> None:
    """Raise the backend's own cancellation, which is under way, where *cancelled* is asyncio's, raised by hand on trio.

    To be called before *cancelled* is raised again: a stranger's is an error to the nurseries that it passes, and to
    the caller.
    """
    if not isinstance(cancelled, anyio.get_cancelled_exc_class()):  # noqa: ASYNC118 - as above
        await checkpoint_if_cancelled()


def starter(group: TaskGroup) -> Starter:
    """Return what starts tasks in *group*, which the current task has just entered.

    On trio that is the nursery itself: each task that anyio's group makes has a handle with a scope and an event of its
    own around it, which cost more than the task, and nobody here has a use for them.
    """
    if _task() is not None:
        # Backends copy the context. An eager task runs before it is made, and may start others, inside of the context.
        eager = asyncio.get_running_loop().get_task_factory() is not None

        def in_group(work: Callable[[Any], Coroutine[Any, Any, None]], on: Any, name: str, context: Context) -> None:
            group.create_task(work(on), name=name, context=context.copy() if eager else context)

        return in_group
    import trio  # an extra, and here only where it runs

    nursery = trio.lowlevel.current_task().child_nurseries[-1]

    def in_nursery(work: Callable[[Any], Coroutine[Any, Any, None]], on: Any, name: str, context: Context) -> None:
        context.run(lambda: nursery.start_soon(work, on, name=name))

    return in_nursery


async def in_own_task(work: Callable[[], Awaitable[None]]) -> None:
    """Do *work* where a native cancellation of the current task doesn't reach it; scopes around it do.

    For what must run to its end although a body may have left a `Task.cancel()` of its own task behind. What *work*
    raises is raised here, bare; a cancellation that it makes up by itself is a `UserError`.
    """
    count = cancelling()
    done = anyio.Event()
    failure: BaseException | None = None

    async def run() -> None:
        nonlocal failure
        try:
            await work()
        except cancelled_types() as error:
            if not taken_back(0):
                await outrank(error)  # noqa: ASYNC120 - waits for nothing: a cancellation is there
                raise
            failure = self_cancelled(error)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: ASYNC103 - carried to the task that waits
            failure = error
        finally:
            done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        while not done.is_set():
            try:
                await done.wait()
            except asyncio.CancelledError:  # noqa: ASYNC103 - a stray one: only a scope's goes on
                if not taken_back(count):
                    raise
    if failure is not None:
        raise failure


def self_cancelled(error: BaseException) -> UserError:
    """Return the error that stands for a callback's own cancellation: nobody else asked for it."""
    failure = UserError(f"a callback cancelled itself: {type(error).__name__}({error})")
    failure.__cause__ = error
    return failure


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
            native.run_sync_soon(_nothing)  # type: ignore[attr-defined]  # a trio token; trio is an extra
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


def _nothing() -> None:
    """Run on the loop to learn that it runs."""


class Bell(Protocol):
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


def new_bell() -> Bell:
    """Return a bell for the running event loop."""
    return _TrioBell() if _task() is None else _AsyncioBell()


@final
class _AsyncioBell:
    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    @property
    def awaited(self) -> bool:
        return self._future is not None and not self._future.done()

    def ring(self) -> None:
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    async def wait(self) -> None:
        self._future = asyncio.get_running_loop().create_future()
        await self._future


@final
class _TrioBell:
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
