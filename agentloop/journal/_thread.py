"""Worker threads for what blocks: one piece of work at a time, whichever event loop asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import anyio.to_thread
from anyio.lowlevel import current_token

ResultT = TypeVar("ResultT")


class OneAtATime:
    """Runs functions in worker threads, one after the other.

    Two locks see to that: a limiter of one, bound to the event loop that is running, lets further calls wait without a
    thread; the lock inside the thread is what counts, since a native cancellation on asyncio, or a second loop, can get
    past the first.
    """

    def __init__(self) -> None:
        self._in_thread = threading.Lock()
        self._limiter: tuple[Any, anyio.CapacityLimiter] | None = None

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """Return `work()`.

        Cancellation: before the thread has begun nothing is done; then it is awaited, and its result is given.
            Cancelled natively on asyncio this raises at once, and the thread goes on by itself.
        """
        return await anyio.to_thread.run_sync(self._alone, work, limiter=self._limiter_here())

    def _alone(self, work: Callable[[], ResultT]) -> ResultT:
        with self._in_thread:
            return work()

    def _limiter_here(self) -> anyio.CapacityLimiter:
        token = current_token().native_token
        if self._limiter is None or self._limiter[0] is not token:
            self._limiter = (token, anyio.CapacityLimiter(1))
        return self._limiter[1]
