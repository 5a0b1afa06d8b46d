"""Runs in PostgreSQL that cross a deploy: the table of the page about fleets, each worker with a lease."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kit.deploys import DIRECTIONS, ROWS, Direction, OpenJournal, cross, cross_again

from agentloop import Runner
from agentloop.abc import Journal
from agentloop.postgres import PostgresJournal, PostgresStore


@pytest.mark.scenario("SM-04")
@pytest.mark.scenario("SM-05")
@pytest.mark.real_clock
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("change", list(ROWS))
async def test_a_deploy_between_two_workers_of_a_run(store: PostgresStore, change: str, direction: Direction) -> None:
    """As in a file; a worker that can't continue the run gives its lease back."""
    await cross(ROWS[change], direction, Runner.run, _opening(store))


@pytest.mark.real_clock
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("back", [False, True])
async def test_a_call_waits_for_the_version_that_made_it(
    store: PostgresStore, direction: Direction, back: bool
) -> None:
    """As in a file."""
    await cross_again(direction, Runner.run, _opening(store), back=back)


def _opening(store: PostgresStore) -> OpenJournal:
    @asynccontextmanager
    async def open_journal() -> AsyncIterator[Journal]:
        async with store.lease("run") as lease:
            yield PostgresJournal(store, lease)

    return open_journal
