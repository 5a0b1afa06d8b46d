"""A door that worker threads stop at, in place of the lock inside of them: who is where is the test's to say."""

from __future__ import annotations

import threading
from collections.abc import Callable

import anyio
import anyio.lowlevel


class Door:
    """A lock in the thread's place: closed until opened; it counts the arrivals and departures."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.opened = threading.Event()
        self.arrived = 0
        self.left = 0

    def __enter__(self) -> None:
        self.arrived += 1
        assert self.opened.wait(20)
        self.lock.acquire()

    def __exit__(self, *_exc: object) -> None:
        self.left += 1  # under the lock: two threads may leave at once
        self.lock.release()


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until *condition* holds, which a thread brings about."""
    with anyio.fail_after(60):
        while not condition():
            await anyio.lowlevel.checkpoint()
