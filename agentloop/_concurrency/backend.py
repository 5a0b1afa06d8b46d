"""The one module that imports asyncio: native cancellation, tasks and wake-ups, where anyio does not cover them.

Theory. A cancellation reaches code by a scope, or natively (`Task.cancel()` on asyncio), and no scope knows of the
native ones. So we keep to three rules:

1. A native cancellation is the code's own unless the work around it is cancelled. For example, a function of the
   application may cancel its own task on asyncio, or raise `CancelledError`, with no scope involved. The task must
   continue afterwards, so we put its count of cancellations back to the value from before. The work is cancelled if a
   scope around the current task is (`enclosing_cancelled`), or if its holder is (`loop_is_left`).
2. The end of the loop is the end of the work. `asyncio.run` ends by cancelling every task of the loop natively, once,
   ours among them. We tell that from a function's own cancellation because the task that holds the work, the owner of
   the outermost nursery, is then cancelled too, in the same step.
3. A task owns its work from its first step on. A task that is cancelled natively before its first step never runs, not
   even its `finally`. So the work belongs to the code that started the task until the first step takes it over, and no
   code may wait for a task that may never have begun.

Each place that calls the application and continues after its error is a `capture`, or awaits `capture_error` in its
handler. A handler that does more between the steps keeps to the same order: `own_task_and_count()` before; then, for a
caught cancellation, `absorb_own_cancel`; if that returns False, `raise_native_cancel` before it continues; for any
other BaseException `is_closing` first, because a coroutine that is being closed may not wait.

Facts: asyncio's count of a task's cancellations, the state of the scopes, and the count that the outermost nursery
found when it was made. We store no other state of a task here.
"""

from __future__ import annotations

import asyncio
import math
import sys
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, final

import anyio
import anyio.lowlevel
import msgspec
from anyio.lowlevel import EventLoopToken

from agentloop._common.error_text import leaves
from agentloop._common.errors import UserError

if TYPE_CHECKING:
    import trio
    from anyio.abc import TaskGroup


Task: TypeAlias = asyncio.Task[Any]
Future: TypeAlias = asyncio.Future[None]
Work: TypeAlias = Callable[[Any], Coroutine[Any, Any, None]]


class Starter(Protocol):
    """Starts tasks in one nursery. Made by `starter`; used by the task that has entered the nursery."""

    def __call__(self, work: Work, on: Any, name: str, context: Context | None = None) -> None:
        """Start a task named *name* that does `work(on)`, in a copy of *context* (None: of the current one)."""
        ...


_ON_ASYNCIO = (asyncio.CancelledError,)


def cancelled_types() -> tuple[type[BaseException], ...]:
    """Return the exception classes of a cancellation: the backend's, and asyncio's, which code may raise by hand."""
    if own_task() is not None:
        return _ON_ASYNCIO  # anyio asks sniffio first, which takes 1 µs
    try:
        native = anyio.get_cancelled_exc_class()  # noqa: ASYNC118 - this module alone distinguishes the classes
    except RuntimeError:  # the loop is gone
        return _ON_ASYNCIO
    return (native, asyncio.CancelledError)


class Around(Protocol):
    """A nursery (`nursery.Nursery`), for code that runs in one of its tasks and asks whether it is cancelled."""

    def relay(self) -> None:
        """Cancel the nursery's members if its owner is cancelled, where no scope around them does that."""
        ...

    def is_leaving(self) -> bool:
        """Tell whether the task of its owner is cancelled natively; if so, cancel the members in this same step."""
        ...


innermost_nursery: ContextVar[Around | None] = ContextVar("agentloop innermost nursery", default=None)
"""The nursery of bare tasks around the current code; None in a group, whose scope is around its tasks."""
outermost_nursery: ContextVar[Around | None] = ContextVar("agentloop outermost nursery", default=None)
"""The nursery whose owner holds the current work; None on trio, which has no native cancellations."""


def on_asyncio(do: Callable[[], None]) -> None:
    """Call *do* in a callback of the event loop, with anyio's questions answered there, too.

    sniffio names the library by the current task, and a callback has none. `anyio.run` names it in a variable that a
    callback inherits, and `asyncio.run` doesn't.
    """
    sniffio = sys.modules.get("sniffio")  # without it, anyio takes the running loop for the answer
    if sniffio is None:
        return do()
    named = sniffio.current_async_library_cvar.set("asyncio")
    try:
        do()
    finally:
        sniffio.current_async_library_cvar.reset(named)


def enclosing_cancelled() -> bool:
    """Tell whether a scope around the current task is cancelled, so that the next checkpoint will raise."""
    if (nursery := innermost_nursery.get()) is not None:
        nursery.relay()
    return anyio.current_effective_deadline() == -math.inf


def checkpoint_if_cancelled() -> Awaitable[None]:
    """Let a cancellation that is pending continue; else do not wait."""
    if (nursery := innermost_nursery.get()) is not None:
        nursery.relay()
    if asyncio._get_running_loop() is None and (trio := sys.modules.get("trio")) is not None:
        # anyio asks for the backend first, which takes 1 µs.
        checkpoint: Awaitable[None] = trio.lowlevel.checkpoint_if_cancelled()  # noqa: ASYNC105 - returned
        return checkpoint
    return anyio.lowlevel.checkpoint_if_cancelled()


def cancelled_outside(scope: anyio.CancelScope) -> bool:
    """Tell whether a scope around *scope*, which the current task is in, is cancelled too.

    Both backends compute this when a scope is left, and neither has a public function for code still inside the scope.
    """
    try:
        if own_task() is not None:
            return bool(scope._parent_cancellation_is_visible_to_us)  # type: ignore[attr-defined]
        native: Any = getattr(scope, "_CancelScope__original", scope)  # trio's own scopes are used as well as anyio's
        status = native._cancel_status
        return bool(status.parent_cancellation_is_visible_to_us)
    except AttributeError:  # pragma: no cover - a version with other internals than the tested ones
        return False


def new_scope(*, shield: bool = False, deadline: float = math.inf) -> anyio.CancelScope:
    """Return a scope for the current backend: on trio its own, which costs a third less than anyio's around it."""
    if asyncio._get_running_loop() is None and (trio := sys.modules.get("trio")) is not None:
        native: anyio.CancelScope = trio.CancelScope(shield=shield, deadline=deadline)
        return native
    return anyio.CancelScope(shield=shield, deadline=deadline)


def own_task() -> asyncio.Task[object] | None:
    """Return the current task on asyncio; None on trio, and outside of an event loop."""
    # Without a loop `current_task` would raise, which takes 1 µs more on trio.
    return asyncio.current_task() if asyncio._get_running_loop() is not None else None


def current_time_on(task: Task | None) -> Callable[[], float]:
    """Return the function that tells the time on the loop of *task*, the current one; None on trio."""
    if task is not None:
        return task.get_loop().time
    import trio  # an extra, and here only where it runs

    return trio.current_time


def running_loop() -> object | None:
    """Return the running asyncio loop of this thread; None on trio, and outside of an event loop."""
    return asyncio._get_running_loop()


def own_task_and_count() -> tuple[asyncio.Task[object] | None, int]:
    """Return `own_task()` and how many native cancellations of it are pending; 0 on trio."""
    task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
    return task, 0 if task is None else task.cancelling()


def is_closing(task: object) -> bool:
    """Tell whether the current coroutine is being closed, and not run by *task* (its earlier `own_task()`).

    A coroutine whose event loop is gone ends by a `GeneratorExit` that is thrown into it. It can await nothing then,
    and leaving a scope of anyio's turns it into another error. A `GeneratorExit` that the application raises comes in
    the coroutine's own task.
    """
    if task is not None:
        return own_task() is not task
    try:
        anyio.lowlevel.current_token()
    except RuntimeError:
        return True
    return False


def is_cancelled_around() -> bool:
    """Tell whether the work around the current code is being cancelled: by a scope, or natively with its holder."""
    return enclosing_cancelled() or loop_is_left()


def loop_is_left() -> bool:
    """Tell whether the holder of the work around the current code is cancelled natively, as at the end of its loop."""
    nursery = outermost_nursery.get()
    return nursery is not None and nursery.is_leaving()


def uncancel_to(count: int) -> None:
    """Take back native cancellations of the current task down to *count*, because they are the code's own."""
    task = own_task()
    while task is not None and task.cancelling() > count:
        task.uncancel()


def absorb_own_cancel(count: int) -> bool:
    """Tell whether a cancellation just caught is the code's own; if so, take the task's count back to *count*."""
    if is_cancelled_around():
        return False
    uncancel_to(count)
    return True


async def raise_native_cancel(cancelled: BaseException) -> None:
    """Raise the backend's own cancellation, which is pending, where *cancelled* is asyncio's, raised by hand on trio.

    Call this before *cancelled* is raised again: another backend's cancellation is an error to the nurseries that it
    passes, and to the caller. A checkpoint only in that case.
    """
    if not isinstance(cancelled, anyio.get_cancelled_exc_class()):  # noqa: ASYNC118 - as above
        await checkpoint_if_cancelled()


def raised_while_cancelled(error: BaseException) -> bool:
    """Tell whether *error* was raised while a cancellation was passing through its code: an error in cleanup."""
    cancelled, seen, context = cancelled_types(), {id(error)}, error.__context__
    while context is not None and id(context) not in seen:
        if isinstance(context, cancelled):
            return True
        seen.add(id(context))
        context = context.__context__
    return False


class Captured(msgspec.Struct, eq=False):
    """How awaited code ended: with `value`, or with `error`, an `Exception` or a graver one.

    After a cancellation of the code's own, which no scope and no caller requested, `own_cancel` is that cancellation;
    after one from around it, which only `outlast` captures, `outer_cancel`. `error` is then the error that replaces it.
    """

    value: Any = None
    error: BaseException | None = None
    own_cancel: BaseException | None = None
    outer_cancel: BaseException | None = None


async def capture(work: Callable[[], Awaitable[object]], *, outlast: bool = False) -> Captured:
    """Await `work()` and return how it ended. For every place where an error is carried on as a value.

    With *outlast* a cancellation from around is a value, too: for a step of an end that is followed by others.

    Cancellation: one from around is raised, as the backend's class. So is the end of a coroutine that is being closed.
    """
    task, count = own_task_and_count()
    try:
        return Captured(await work())
    except BaseException as error:  # noqa: ASYNC103 - carried as a value, or raised by this call
        return await capture_error(error, task, count, outlast=outlast)  # noqa: ASYNC102, ASYNC104 - as said


async def capture_error(error: BaseException, task: object, count: int, *, outlast: bool = False) -> Captured:
    """Return what *error*, just caught, means, as `capture` would; or raise it again, as `capture` would.

    For a handler whose code isn't a function, which would take one more coroutine. *task* and
    *count* are `own_task_and_count()` from before that code. The handler keeps the result in no variable, since the
    error's traceback holds its frame.
    """
    if isinstance(error, cancelled_types()):
        if absorb_own_cancel(count):
            return Captured(error=self_cancelled(error), own_cancel=error)
        if outlast:
            return Captured(error=self_cancelled(error), outer_cancel=error)
        await raise_native_cancel(error)  # does not wait: a cancellation is pending
        raise error
    if is_closing(task):
        raise error
    return Captured(error=error)


@Coroutine.register  # pyright: ignore[reportAttributeAccessIssue]  # a class of `abc`, which it doesn't know of
@final
class _LazyCoroutine:
    """`work(on)`, called when its task first runs: a task that never runs leaves no unawaited coroutine."""

    __slots__ = ("_on", "_work")

    def __init__(self, work: Work, on: Any) -> None:
        self._work = work
        self._on = on

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work(self._on).__await__()

    def close(self) -> None:
        """Do nothing: nothing has begun."""


def starter(group: TaskGroup) -> Starter:
    """Return a function that starts tasks in *group*, which the current task has just entered.

    On trio it uses the nursery itself: each task that anyio's group makes has a handle with a scope and an event of its
    own around it, which cost more than the task, and which an interrupt could tear.
    """
    if own_task() is not None:
        # Backends copy the context. An eager task runs before it is made, and may start others, inside of the context.
        eager = asyncio.get_running_loop().get_task_factory() is not None

        def start_in_group(work: Work, on: Any, name: str, context: Context | None = None) -> None:
            context = context.copy() if eager and context is not None else context
            group.create_task(cast(Coroutine[Any, Any, None], _LazyCoroutine(work, on)), name=name, context=context)

        return start_in_group
    import trio  # an extra, and here only where it runs

    nursery = trio.lowlevel.current_task().child_nurseries[-1]

    def start_in_nursery(work: Work, on: Any, name: str, context: Context | None = None) -> None:
        if context is None:
            nursery.start_soon(work, on, name=name)
        else:
            context.run(cast(Any, nursery.start_soon), work, on, name=name)

    return start_in_nursery


_detached: set[asyncio.Task[None]] = set()
"""Tasks without a nursery: asyncio itself holds none of its tasks."""


def start_detached(work: Callable[[], Coroutine[Any, Any, None]], name: str, context: Context) -> None:
    """Start a task that does *work* in *context*, and that no nursery holds.

    For a resource that one task opens and another may close, which nurseries don't allow. Who starts it has to end it
    and to wait for its end; else it is cancelled when the event loop ends. *work* must raise nothing but a
    cancellation.
    """
    if own_task() is not None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work(), name=name, context=context)
        _detached.add(task)
        task.add_done_callback(_detached.discard)
        return
    import trio  # as in `starter`

    trio.lowlevel.spawn_system_task(work, name=name, context=context)


async def drop_native_cancel() -> None:
    """Take back a native cancellation of the current task that is pending, because the task's own code left it behind.

    It strikes here. One of a scope around the task comes again.
    """
    try:
        await anyio.lowlevel.cancel_shielded_checkpoint()
    except asyncio.CancelledError:  # noqa: ASYNC103 - as said
        if not enclosing_cancelled():
            uncancel_to(0)


async def wait_out_cancellations(wait: Callable[[], Awaitable[object]], count: int = 0) -> None:
    """Await `wait()`, again each time that a native cancellation has ended it, and take that back, down to *count*.

    Only in a task of the library's own, or where the task's own code has left the cancellation behind.

    Cancellation: scopes around it end it, native cancellations don't.
    """
    while True:  # noqa: ASYNC913 - `wait` has its own
        try:
            await wait()
        except asyncio.CancelledError:  # noqa: ASYNC103 - a native one: only a scope's continues
            if enclosing_cancelled():
                raise
            uncancel_to(count)
        else:
            return


def self_cancelled(error: BaseException) -> UserError:
    """Return the error that replaces a callback's own cancellation, which no other code requested."""
    failure = UserError(f"a callback cancelled itself: {type(error).__name__}({error})")
    failure.__cause__ = error
    return failure


def scope_left_open(error: BaseException) -> UserError | None:
    """Return the error that reports broken scopes, if *error* is a backend's complaint about them.

    Both backends raise a RuntimeError wherever an outer scope is left while an inner one is still open; the nursery
    whose task ends so raises a group.
    """
    for leaf in leaves(error):
        if isinstance(leaf, RuntimeError) and "cancel scope" in str(leaf).lower():
            failure = UserError("a cancel scope was entered by a callback and not left in the same task")
            failure.__cause__ = leaf
            return failure
    return None


def unexpected_cancellation() -> UserError:
    """Return the error for a task of ours that other code has cancelled natively, while the work continues."""
    return UserError("a task of this run was cancelled by other code of the event loop")


def liveness(token: EventLoopToken) -> Callable[[], bool]:
    """Return a function that tells whether the event loop of *token* has not ended yet. It does not hold the loop."""
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


def token_again(token: EventLoopToken) -> Callable[[], EventLoopToken]:
    """Return a function that returns *token* as long as its event loop lives. It does not hold the loop."""
    backend, loop = token.backend_class, weakref.ref(token.native_token)
    return lambda: EventLoopToken(backend, loop())


def scheduler() -> Callable[..., object]:
    """Return a function that schedules `fn(*args)` on the current event loop, from any thread, and doesn't wait for it.

    It raises RuntimeError once the loop is closed.
    """
    if (loop := asyncio._get_running_loop()) is not None:
        return loop.call_soon_threadsafe
    import trio  # an extra, and here only where it runs

    return trio.lowlevel.current_trio_token().run_sync_soon


def _do_nothing() -> None:
    """Do nothing. trio accepts it only while its loop runs."""


def new_wakeup() -> Wakeup:
    """Return a wakeup for the current task, which is the only one that may wait for it.

    Any code of the event loop may ring. Ringing without a waiting task has no effect, so check your condition before
    you wait. For example, the consumer of a stream waits for each delta, where an `anyio.Event` for each wait would
    cost more than the delta's whole way to the consumer.
    """
    return _TrioWakeup() if own_task() is None else _AsyncioWakeup()


def wake(future: asyncio.Future[None] | None) -> None:
    """Wake the task that waits for *future*, if one does; after the end of its event loop none does any more."""
    # A loop isn't asked whether it is closed: that of a durable engine's workflow can't say it. An interrupt may cancel
    # the future between the question and the answer.
    if future is not None and not future.done():
        try:  # noqa: SIM105 - `suppress` is an object and three calls more, twice in each run of text
            future.set_result(None)
        except (RuntimeError, asyncio.InvalidStateError):
            pass


@final
class _AsyncioWakeup:
    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    @property
    def awaited(self) -> bool:
        """Tell whether a task waits and has not been woken."""
        return self._future is not None and not self._future.done()

    def ring(self) -> None:
        """Wake the waiting task, if there is one. Only in that task's event loop."""
        wake(self._future)

    async def wait(self) -> None:
        """Wait for the next ring. A checkpoint."""
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


Wakeup: TypeAlias = _AsyncioWakeup | _TrioWakeup
"""Wakes the one task that waits for it. Made by `new_wakeup`."""
