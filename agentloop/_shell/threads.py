"""Worker threads for sync bodies, under limits of our own.

The backends give a limiter's token back as soon as an abandoned thread's *task* ends, so a limit of theirs does not
bound live threads. Here a thread holds its place until its function has ended, awaited or abandoned.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import attrs

from agentloop._shell.native import tell

logger = logging.getLogger("agentloop")

_UNSET = object()


@attrs.define(eq=False)
class Place:
    """One thread's place under the limits. `ident` is the thread's, once it runs."""

    name: str
    since: float
    abandoned: bool = False
    ident: int | None = None
    _lock: Any = attrs.field(factory=threading.Lock)
    _state: str = "waiting"

    def claim(self) -> bool:
        """Called in the thread: False if the call was given up before the thread came to it."""
        with self._lock:
            if self._state == "given_up":
                return False
            self._state, self.ident = "running", threading.get_ident()
            return True

    def finish(self) -> bool:
        """Called in the thread when the function has ended: True if nobody waits for it any more."""
        with self._lock:
            self._state = "done"
            return self.abandoned

    def abandon(self) -> bool:
        """Called on the loop when the awaiting call was cancelled: True if a thread is left running."""
        with self._lock:
            if self._state == "running":
                self.abandoned = True
            elif self._state == "waiting":
                self._state = "given_up"
            return self.abandoned


class Threads:
    """A bounded set of live worker threads. *outer* bounds them too (a run's threads, within its loop's).

    Calls of one `Threads` get their places in the order in which they joined the queue.
    """

    def __init__(self, limit: int, outer: Threads | None = None) -> None:
        self.limit = limit
        self._outer = outer
        self._live: set[Place] = set()
        self._queue: dict[object, None] = {}
        self._freed: anyio.Event | None = None
        """Set when somebody waiting may look again; made when somebody waits, as most runs have no threads."""

    def __len__(self) -> int:
        return len(self._live)

    def join(self, call: object) -> None:
        """Put *call* at the end of the queue for places; synchronous, so that the order is the caller's."""
        self._queue[call] = None

    def leave(self, call: object) -> None:
        """Take *call* out of the queue, if it is in it."""
        if call in self._queue:
            del self._queue[call]
            self.look_again()

    async def place(self, call: object, name: str) -> Place | str:
        """Wait for *call*'s turn and a place, and take it.

        Returns:
            The place; or, where every place is held by an abandoned thread, a refusal that names them and their ages.
        """
        try:
            while next(iter(self._queue)) is not call or not self._has_room():
                if (refusal := self._refusal(name)) is not None:
                    return refusal
                await self._root._next_freed().wait()
        finally:
            self.leave(call)
        place = Place(name, anyio.current_time())
        threads: Threads | None = self
        while threads is not None:
            threads._live.add(place)
            threads = threads._outer
        return place

    @property
    def _root(self) -> Threads:
        return self if self._outer is None else self._outer._root

    def _next_freed(self) -> anyio.Event:
        if self._freed is None:
            self._freed = anyio.Event()
        return self._freed

    def _has_room(self) -> bool:
        return len(self._live) < self.limit and (self._outer is None or self._outer._has_room())

    def _refusal(self, name: str) -> str | None:
        if len(self._live) < self.limit or not all(held.abandoned for held in self._live):
            return None if self._outer is None else self._outer._refusal(name)
        now = anyio.current_time()
        held = ", ".join(f"{place.name} ({now - place.since:.1f} s)" for place in sorted(self._live, key=_since))
        return (
            f"Tool '{name}' was not started: no worker thread is free, all {self.limit} are held by abandoned calls: "
            f"{held}"
        )

    def give_back(self, place: Place) -> None:
        """Free *place*; waiting calls look again. A place that was given back already is passed by."""
        threads: Threads | None = self
        while threads is not None:
            threads._live.discard(place)
            threads = threads._outer
        self.look_again()

    def look_again(self) -> None:
        """Wake who waits for a place: one was freed, or its holder was abandoned."""
        root = self._root
        freed, root._freed = root._freed, None
        if freed is not None:
            freed.set()

    async def run(
        self, place: Place, fn: Callable[[], Any], *, abandon: bool, late: Callable[[Any, BaseException | None], None]
    ) -> Any:
        """Run *fn* in a worker thread that holds *place* and return what it returns.

        Context variables that *fn* set are set here afterwards.

        Cancellation: without *abandon* the thread is awaited first. With it the call leaves at once; the thread keeps
        its place until it ends, and *late(value, error)* is then called on the loop.
        """
        token = anyio.lowlevel.current_token()

        def ended(value: Any, error: BaseException | None) -> None:
            self.give_back(place)
            late(value, error)

        changes: dict[ContextVar[Any], Any] = {}

        def work() -> tuple[Any, BaseException | None]:
            if not place.claim():
                return None, None
            value, error = None, None
            before = copy_context()
            try:
                value = fn()
            except BaseException as raised:  # noqa: ASYNC103 - an outcome, so that it never replaces a cancellation
                error = raised
            changes.update((var, new) for var, new in copy_context().items() if before.get(var, _UNSET) is not new)
            if place.finish():
                try:
                    tell(token, ended, value, error)  # nobody may run the loop any more: not waited for
                except RuntimeError:  # the loop is gone, and with it everybody who could be told
                    how = "returned" if error is None else f"raised {type(error).__name__}"
                    logger.warning("%s, abandoned, %s after its event loop", place.name, how)
            return value, error

        try:
            value, error = await anyio.to_thread.run_sync(
                work, abandon_on_cancel=abandon, limiter=anyio.CapacityLimiter(math.inf)
            )
        except BaseException:
            if place.abandon():
                self.look_again()
            else:
                self.give_back(place)
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


def _since(place: Place) -> float:
    return place.since
