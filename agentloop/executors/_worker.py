"""Work in a worker thread that has ended, or will never begin, when its caller continues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

ValueT = TypeVar("ValueT")


async def run_to_end(work: Callable[[], ValueT]) -> ValueT:
    """Run *work* in a worker thread and return its value. It has ended, or will never begin, when this returns.

    Cancellation: waits for the end. A native cancellation of an asyncio task passes anyio's own wait for a thread.
    """
    claim, over = threading.Lock(), threading.Event()

    def run() -> ValueT:
        if not claim.acquire(blocking=False):
            raise AssertionError("cancelled before it began: no one reads the result")
        try:
            return work()
        finally:
            over.set()

    try:
        return await anyio.to_thread.run_sync(run)
    except BaseException:
        if not claim.acquire(blocking=False) and not over.is_set():
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(over.wait)
        raise
