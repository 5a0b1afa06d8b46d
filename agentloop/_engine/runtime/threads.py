"""Worker threads for sync bodies, under limits of our own.

The backends give a limiter's token back as soon as an abandoned thread's *task* ends, so a limit of theirs does not
bound live threads. Here a thread holds its slot until its function has ended, awaited or abandoned. Does not know about
calls: only their names, their order and their slots.

Decisions:

Sync bodies run in worker threads under limits of the library's own (`_engine/runtime/threads.py`). On asyncio the
backend takes back the token of an abandoned thread at once, which lets far more threads live than the limit says:
measured 183 to 200 with a limit of 4. A thread slot is held until the function has ended, also by an abandoned
thread.

The function is wrapped to return an outcome, as an exception from a thread would replace a cancellation under way.
Calls join the queue for thread slots when they are admitted, synchronously, and so in model order. Taken in the
call's task, slots were given in the order in which trio shuffled the tasks. When abandoned functions hold every slot,
a call is refused: the slots may never become free. Only this call is answered, with the names and ages of the
functions that hold the slots; the run continues. Context variables that a sync body sets are seen by the guardrails
and hooks of its call, as an async body's are.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from operator import attrgetter
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from agentloop._concurrency.backend import cancelled_types, checkpoint_if_cancelled, scheduler, wait_out_cancellations
from agentloop._core.admission import Ticket
from agentloop._engine.runtime.dispatcher import Dispatcher
from agentloop.limits import Capacity, Limit

logger = logging.getLogger("agentloop")

_UNSET = object()


class ThreadSlot(msgspec.Struct, eq=False):
    """One thread's slot under the limits. `ident` is the thread's, once it runs.

    Owned by the call that took it, until it is given back; mutated on the loop and in the thread, under a lock.
    """

    name: str
    since: float
    abandoned: bool = False
    ident: int | None = None
    waiters: set[_Waiter] = set()
    """Calls that wait for a slot and are part of the function that runs in this one."""
    _lock: Any = msgspec.field(default_factory=threading.Lock)
    _state: str = "waiting"

    def claim(self) -> bool:
        """Mark the slot as running, in its thread; return False if the call was given up before."""
        with self._lock:
            if self._state == "given_up":
                return False
            self._state, self.ident = "running", threading.get_ident()
            return True

    def finish(self) -> bool:
        """Mark the slot as done, in its thread, when the function has ended; return True if it was abandoned."""
        with self._lock:
            self._state = "done"
            return self.abandoned

    def abandon(self) -> bool:
        """Give the thread up, on the loop, when its call was cancelled; return True if a thread is left running."""
        with self._lock:
            if self._state == "running":
                self.abandoned = True
            elif self._state == "waiting":
                self._state = "given_up"
            return self.abandoned


class _Waiter(msgspec.Struct, eq=False):
    """A call that waits for its turn and then for a slot; the dispatcher starts it when every level has room."""

    threads: Threads
    call: object
    name: str
    inside: tuple[ThreadSlot, ...]
    """The slots of the sync bodies that this call is part of, outermost first."""
    ticket: Ticket | None = None
    """Made when its turn has come."""
    woken: anyio.Event | None = None
    """Set with the answer, once the call waits; most calls get their slot at once."""
    answer: ThreadSlot | str | None = None
    """The slot, or a refusal in words; None while there is neither."""

    def start(self) -> None:
        """Take the slot, wake the call, and let the next one have its turn. Called by the dispatcher."""
        self.give(self.threads._take(self.name))
        self.threads.leave(self.call)

    def give(self, answer: ThreadSlot | str) -> None:
        """Let the call continue with *answer*."""
        self.answer = answer
        self.threads._forget(self)
        if self.woken is not None:
            self.woken.set()


_inside: ContextVar[tuple[ThreadSlot, ...]] = ContextVar("agentloop_threads", default=())
"""The slots of the sync bodies around the code that runs."""


class Threads:
    """A bounded set of live worker threads. *outer* bounds them too (a run's threads, within its loop's).

    Owned by a run, or by the state of the event loop; used on that loop only.

    Calls of one `Threads` get their slots in the order in which they joined the queue. Of several `Threads` within one
    *outer*, those whose first call waited longer come first.

    A sync body may run an agent whose tools need threads in turn. If every slot is held by such a body, or by an
    abandoned one, waiting would have no end: the call that would complete the circle is refused.
    """

    def __init__(self, limit: int, outer: Threads | None = None) -> None:
        self.limit = limit
        self._live: set[ThreadSlot] = set()
        self._queue: OrderedDict[object, _Waiter | None] = OrderedDict()
        """Calls in the order in which they get slots; with a waiter, if they have come so far as to need theirs."""
        self._around: tuple[Threads, ...] = () if outer is None else (outer, *outer._around)
        self._capacity = Capacity(limit)
        self._limits: tuple[Limit, ...] = (self._capacity, *(() if outer is None else outer._limits))
        self._pump: Dispatcher = Dispatcher() if outer is None else outer._pump
        self._waiters: dict[_Waiter, Ticket] = {} if outer is None else outer._waiters
        """The calls of all levels that wait for room, in the order in which their turns came."""
        self._no_limit: anyio.CapacityLimiter | None = None
        """The limiter that anyio gets in place of its own, which would hold our threads back; made at first use."""

    def __len__(self) -> int:
        return len(self._live)

    @property
    def _levels(self) -> tuple[Threads, ...]:
        """This `Threads` and those around it. Not stored: a reference to itself would need the garbage collector."""
        return (self, *self._around)

    def join(self, call: object) -> None:
        """Add *call* at the end of the queue for slots; synchronous, so that the order is the caller's."""
        self._queue[call] = None

    def leave(self, call: object) -> None:
        """Take *call* out of the queue, if it is in it."""
        if call in self._queue:
            del self._queue[call]
            self._advance()

    def _advance(self) -> None:
        """Let the first call of the queue wait for room, if it needs its slot already; the others wait for their turn.

        Synchronous, and a call that gets its slot advances the queue in turn: slots that come free together are given
        in one step. Had each call to wake to let the next one have its turn, each would take a pass of the loop.
        """
        waiter = next(iter(self._queue.values()), None)
        if waiter is None or waiter.ticket is not None:
            return
        waiter.ticket = self._waiters[waiter] = ticket = Ticket(self._limits, waiter)
        for around in waiter.inside:
            around.waiters.add(waiter)
        self._pump.add([ticket])
        if waiter.answer is None:
            self._refuse_endless_waits(self)

    async def place(self, call: object, name: str) -> ThreadSlot | str:
        """Wait for *call*'s turn and a slot, and take the slot.

        Cancellation: the call leaves the queue, and a slot taken in the same step is given back.

        Returns:
            The slot; or, if none would ever be given back, a refusal that names the holders and since when they hold.
        """
        waiter = self._queue[call] = _Waiter(self, call, name, _inside.get())
        try:
            self._advance()
            if waiter.answer is None:
                waiter.woken = anyio.Event()
                await waiter.woken.wait()
                # The end of the run may have freed the slot, and the cancellation may not have reached this call yet.
                await checkpoint_if_cancelled()
        except BaseException:
            if isinstance(place := waiter.answer, ThreadSlot):  # given in the step that cancelled the call
                self.give_back(place)
            raise
        finally:
            self._forget(waiter)
            self.leave(call)
        assert waiter.answer is not None
        return waiter.answer

    def _forget(self, waiter: _Waiter) -> None:
        if (ticket := self._waiters.pop(waiter, None)) is None:
            return
        for place in waiter.inside:
            place.waiters.discard(waiter)
        if not isinstance(waiter.answer, ThreadSlot):  # else the dispatcher has taken it out
            self._pump.withdraw([ticket])

    def _take(self, name: str) -> ThreadSlot:
        place = ThreadSlot(name, anyio.current_time())
        for level in self._levels:
            level._live.add(place)
        return place

    def give_back(self, place: ThreadSlot) -> None:
        """Free *place*, so that the next call can take it. Does nothing if it was given back already."""
        if place not in self._live:
            return
        for level in self._levels:
            level._live.discard(place)
            level._capacity.give()
        self._pump.pump()

    # -- waits without end

    def _refuse_endless_waits(self, threads: Threads) -> None:
        """Refuse calls, the latest first, until no level of *threads* is held by bodies that wait for one of them."""
        for level in threads._levels:
            while level._is_stuck({}):
                latest = next((one for one in reversed(self._waiters) if level in one.threads._levels), None)
                if latest is None:
                    break
                text = level._format_refusal(latest.name)
                logger.warning("%s", text)
                latest.give(text)

    def _is_stuck(self, seen: dict[Threads, bool]) -> bool:
        """Tell whether no slot of this level can be given back before a waiting call gets one.

        *seen* holds the answers for other levels; a level under examination counts as stuck, as in a circle.
        """
        if self not in seen:
            seen[self] = True
            seen[self] = len(self._live) >= self.limit and all(
                place.abandoned or any(level._is_stuck(seen) for one in place.waiters for level in one.threads._levels)
                for place in self._live
            )
        return seen[self]

    def _format_refusal(self, name: str) -> str:
        now = anyio.current_time()
        held = ", ".join(
            f"{place.name} ({now - place.since:.1f} s)" for place in sorted(self._live, key=attrgetter("since"))
        )
        waiting = any(not place.abandoned for place in self._live)
        by = "calls that wait for another one" if waiting else "abandoned calls"
        return f"Tool '{name}' was not started: no worker thread is free, all {self.limit} are held by {by}: {held}"

    async def run(
        self,
        place: ThreadSlot,
        fn: Callable[[], Any],
        *,
        abandon: bool,
        late: Callable[[Any, BaseException | None], None],
    ) -> Any:
        """Run *fn* in a worker thread that holds *place* and return its result.

        Context variables that *fn* set are set here afterwards.

        Cancellation: without *abandon* the thread is awaited first. With it the call leaves at once; the thread keeps
        its slot until it ends, and `late(value, error)` is then called on the loop.

        Raises:
            BaseException: the error of *fn*.
        """
        schedule = scheduler()
        if self._no_limit is None:
            self._no_limit = anyio.CapacityLimiter(math.inf)
        over: anyio.Event | None = None  # made where an abandoned function is awaited, set once it has ended

        def ended(value: Any, error: BaseException | None) -> None:
            self.give_back(place)
            if over is not None:
                over.set()
            late(value, error)

        changes: dict[ContextVar[Any], Any] = {}

        def work() -> tuple[Any, BaseException | None]:
            if not place.claim():
                return None, None
            value, error = None, None
            _inside.set((*_inside.get(), place))
            before = copy_context()
            try:
                value = fn()
            except BaseException as raised:  # noqa: ASYNC103 - an outcome, so that it never replaces a cancellation
                error = raised
            changes.update((var, new) for var, new in copy_context().items() if before.get(var, _UNSET) is not new)
            if place.finish():
                try:
                    schedule(ended, value, error)  # the loop may have stopped running: not waited for
                except RuntimeError:  # the loop is gone, and with it all receivers
                    how = "returned" if error is None else f"raised {type(error).__name__}"
                    logger.warning("%s, abandoned, %s after its event loop", place.name, how)
            return value, error

        work.__qualname__ = place.name  # what a search calls it that can't look into it
        try:
            value, error = await anyio.to_thread.run_sync(
                work,
                abandon_on_cancel=abandon,
                limiter=self._no_limit,  # ours is the only limit
            )
        except BaseException as cut:
            if not place.abandon():
                self.give_back(place)
            elif abandon or not isinstance(cut, cancelled_types()):
                self._refuse_endless_waits(self)
            else:  # cancelled natively: anyio's shield holds against scopes only
                over = anyio.Event()  # `ended` runs on this loop, so it can't have run since `abandon`
                with anyio.CancelScope(shield=True):
                    await wait_out_cancellations(over.wait)
                place.abandoned = False
            raise
        self.give_back(place)
        for var, new in changes.items():  # as if the body had run in the caller's own context
            var.set(new)
        if error is not None:
            try:
                raise error
            finally:
                del error
        return value
