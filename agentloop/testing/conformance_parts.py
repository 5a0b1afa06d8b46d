"""What the conformance suites share. Knows no pytest; everything here is called inside an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

STEPS = 20
"""How many points of cancellation a suite tries: enough to pass whatever a call does without waiting for the outside."""


async def cancelled_after(steps: int, work: Callable[[], Awaitable[Any]]) -> bool:
    """Run *work* in a scope that is cancelled after *steps* passes of the loop; return whether it returned.

    With 0 the scope is cancelled before *work* begins.
    """
    returned = False

    async def run() -> None:
        nonlocal returned
        await work()
        returned = True

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        if not steps:
            group.cancel_scope.cancel()
        for _ in range(steps):
            await checkpoint()
        group.cancel_scope.cancel()
    return returned


@contextmanager
def within(seconds: float, what: str) -> Iterator[None]:
    """Raise AssertionError where the block takes longer than *seconds*; *what* says what should have happened."""
    with anyio.move_on_after(seconds) as scope:
        yield
    assert not scope.cancelled_caught, f"within {seconds:g} s {what}"
