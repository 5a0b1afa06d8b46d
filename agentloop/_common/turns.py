"""Long work in an event loop, cut into short parts between which the other tasks have their turns.

Why not in a worker thread: see the head of `asgi/_hosting.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from anyio.lowlevel import checkpoint

ItemT = TypeVar("ItemT")

ITEMS_A_TURN = 100
"""A hundred records are decoded, folded, or made into events in about a millisecond; a turn costs a hundredth of it."""


async def collect_in_turns(items: Iterable[ItemT]) -> list[ItemT]:
    """Return the items of an iterable that works for each of them; other tasks run after every `ITEMS_A_TURN`.

    Cancellation: a checkpoint after every `ITEMS_A_TURN`, none in fewer.
    """
    found: list[ItemT] = []
    for item in items:
        found.append(item)
        if len(found) % ITEMS_A_TURN == 0:
            await checkpoint()
    return found
