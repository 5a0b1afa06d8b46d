"""What the conformance suites share. Knows no pytest; everything here is called inside an event loop.

PYTEST_DONT_REWRITE: what is asserted has words of its own; a difference of megabytes takes pytest minutes to show.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

STEPS = (*range(20), *range(1, 6), *range(1, 6))
"""Points of cancellation that a suite tries: past whatever a call does without waiting for the outside.

The first ones come again: trio takes the tasks of a pass in random order, so that what lasts one pass may be missed.
"""


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
