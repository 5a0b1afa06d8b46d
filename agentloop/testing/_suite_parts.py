"""Helpers of the conformance suites. Does not know pytest; every function is called inside an event loop.

PYTEST_DONT_REWRITE: each assertion has its own message; pytest would need minutes to show a difference of megabytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

STEPS = (*range(20), *range(1, 6), *range(1, 6))
"""Points of cancellation that a suite tries, in passes of the loop: beyond all steps that need no outside event.

The first ones are repeated: trio runs the tasks of a pass in random order, so one try may miss a state that lasts a
single pass.
"""


async def cancel_after(steps: int, work: Callable[[], Awaitable[Any]]) -> bool:
    """Run *work* in a scope that is cancelled after *steps* passes of the loop. Return True if *work* returned.

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
    """Cancel the block after *seconds*, and raise AssertionError then; *what* names the expected event."""
    with anyio.move_on_after(seconds) as scope:
        yield
    assert not scope.cancelled_caught, f"within {seconds:g} s {what}"
