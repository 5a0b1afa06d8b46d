"""uvloop's event loop with a clock that a test can put forward, as `advance_clock` does with the other loops."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

import uvloop


class _Timer:
    """A callback that is due at a time of the loop's clock; armed anew when the clock is put forward."""

    def __init__(self, loop: UvLoop, when: float, run: Callable[[], object], context: Context) -> None:
        self._loop, self._when, self._run, self._context = loop, when, run, context
        self._handle: Any = None
        self.arm()

    def arm(self) -> None:
        """Let libuv count the time that is left."""
        if self._handle is not None:
            self._handle.cancel()
        left = max(0.0, self._when - self._loop.time())
        self._handle = super(UvLoop, self._loop).call_later(left, self._fire, context=self._context)

    def _fire(self) -> None:
        self._loop.timers.pop(self, None)
        self._run()

    def cancel(self) -> None:
        """Take the callback back."""
        self._handle.cancel()
        self._loop.timers.pop(self, None)

    def cancelled(self) -> bool:
        """Tell whether the callback was taken back."""
        return bool(self._handle.cancelled())

    def when(self) -> float:
        """Return the time at which the callback is due."""
        return self._when


class UvLoop(uvloop.Loop):
    """uvloop's own timers count real time, so that a loop whose `time` alone is put forward never notices."""

    def __init__(self) -> None:
        self.timers: dict[_Timer, None] = {}
        self._ahead = 0.0

    def time(self) -> float:
        """Return the seconds of the loop's clock."""
        return float(super().time() + self._ahead)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        """Call *callback* in *delay* seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        """Call *callback* at the time *when*."""
        timer = _Timer(self, when, lambda: callback(*args), context or copy_context())
        self.timers[timer] = None
        return timer

    def advance(self, seconds: float) -> None:
        """Put the clock forward."""
        self._ahead += seconds
        for timer in list(self.timers):
            timer.arm()
