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

from agentloop.exceptions import ToolCallError

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
    """A bounded set of live worker threads. *outer* bounds them too (a run's threads, within its loop's)."""

    def __init__(self, limit: int, outer: Threads | None = None) -> None:
        self.limit = limit
        self._outer = outer
        self._live: set[Place] = set()
        self._freed = anyio.Event()

    def __len__(self) -> int:
        return len(self._live)

    async def place(self, name: str) -> Place:
        """Wait for a place and take it.

        Raises:
            ToolCallError: if every place is held by an abandoned thread; names them and their ages.
        """
        place = await self._outer.place(name) if self._outer is not None else Place(name, anyio.current_time())
        try:
            while len(self._live) >= self.limit:
                if all(held.abandoned for held in self._live):
                    raise ToolCallError(self._refusal(name), tool=name)
                await self._freed.wait()
        except BaseException:
            if self._outer is not None:
                self._outer.give_back(place)
            raise
        self._live.add(place)
        return place

    def _refusal(self, name: str) -> str:
        now = anyio.current_time()
        held = ", ".join(f"{place.name} ({now - place.since:.1f} s)" for place in sorted(self._live, key=_since))
        return f"no worker thread is free for {name}: all {self.limit} are held by abandoned calls: {held}"

    def give_back(self, place: Place) -> None:
        """Free *place*; waiting calls look again. A place that was given back already is passed by."""
        if self._outer is not None:
            self._outer.give_back(place)
        if place in self._live:
            self._live.discard(place)
            self.look_again()

    def look_again(self) -> None:
        """Wake who waits for a place: one was freed, or its holder was abandoned."""
        freed, self._freed = self._freed, anyio.Event()
        freed.set()
        if self._outer is not None:
            self._outer.look_again()

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
                    anyio.from_thread.run_sync(ended, value, error, token=token)
                except RuntimeError:  # the loop is gone, and with it everybody who could be told
                    logger.warning("%s, abandoned, ended after its event loop: %r", place.name, error or value)
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
