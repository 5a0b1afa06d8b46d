"""Worker threads for blocking work: one function at a time, for any number of event loops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import anyio.to_thread
from anyio.lowlevel import current_token

ResultT = TypeVar("ResultT")


class OneAtATime:
    """Runs functions in worker threads, one after the other. Owned by one journal; safe for several event loops.

    It needs two locks. A limiter of one, bound to the running event loop, lets further calls wait without a thread. The
    lock inside the thread gives the guarantee, since a native cancellation on asyncio, or a second loop, can get past
    the limiter.
    """

    def __init__(self) -> None:
        self._in_thread = threading.Lock()
        self._limiter: tuple[Any, anyio.CapacityLimiter] | None = None

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """Return `work()`, run in a worker thread.

        Cancellation: a checkpoint. Before the thread has begun, *work* doesn't run; after that the thread is awaited
            and its result returned. A native cancellation on asyncio raises at once, and the thread continues alone.
        """
        return await anyio.to_thread.run_sync(self._run_locked, work, limiter=self._limiter_here())

    def _run_locked(self, work: Callable[[], ResultT]) -> ResultT:
        with self._in_thread:
            return work()

    def _limiter_here(self) -> anyio.CapacityLimiter:
        token = current_token().native_token
        if self._limiter is None or self._limiter[0] is not token:
            self._limiter = (token, anyio.CapacityLimiter(1))
        return self._limiter[1]
