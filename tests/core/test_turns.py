"""Long work in parts: other tasks have their turns between them."""

from collections.abc import Iterator
from itertools import pairwise

import anyio
import anyio.lowlevel
import pytest

from agentloop._common.turns import ITEMS_A_TURN, collect_in_turns


@pytest.mark.parametrize("count", [0, 1, ITEMS_A_TURN - 1, ITEMS_A_TURN, 5 * ITEMS_A_TURN + 1])
async def test_another_task_runs_after_every_hundred_items(count: int) -> None:
    """The items come in order, and no more of them are made between two turns; few are made in one."""
    made, seen = 0, [0]

    def make() -> Iterator[int]:
        nonlocal made
        for number in range(count):
            made += 1
            yield number

    async def watch() -> None:
        while True:
            seen.append(made)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        assert await collect_in_turns(make()) == list(range(count))
        before = list(seen)
        group.cancel_scope.cancel()
    # Trio lets the two run in any order at each turn: twice the watching one first, then last.
    assert all(later - earlier <= 2 * ITEMS_A_TURN for earlier, later in pairwise(before))
    assert len(before) >= count // ITEMS_A_TURN


async def test_work_that_is_cancelled_stops_at_its_next_turn() -> None:
    """A log that no one wants any more isn't read to its end."""
    made = 0

    def make() -> Iterator[int]:
        nonlocal made
        while made < 10 * ITEMS_A_TURN:
            made += 1
            yield made

    with anyio.CancelScope() as scope:
        scope.cancel()
        await collect_in_turns(make())
    assert scope.cancelled_caught
    assert made == ITEMS_A_TURN
