"""Runs in journal files that cross a deploy: the table of the page about fleets, row by row."""

from pathlib import Path
from typing import Any

import pytest
from kit.deploys import DIRECTIONS, ON_PAGE, ROWS, Direction, cross, cross_again

from agentloop import Runner, RunResult
from agentloop.journal import FileJournal

PAGE = Path(__file__).parents[3] / "docs" / "fleets.md"


def test_each_row_of_the_page_is_shown() -> None:
    """A change that the page promises something about has a test, and none is tested in silence."""
    table = PAGE.read_text(encoding="utf-8").partition("## Deploys")[2].partition("## What costs")[0]
    cells = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")]
    assert cells[1:] == list(ON_PAGE)
    assert {name for names in ON_PAGE.values() for name in names} == ROWS.keys() - {"nothing"}


@pytest.mark.scenario("SM-04")
@pytest.mark.scenario("SM-05")
@pytest.mark.real_clock
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("change", list(ROWS))
async def test_a_deploy_between_two_segments_of_a_run(change: str, direction: Direction, tmp_path: Path) -> None:
    """What goes on has the new code. What can't is refused, with nothing written, and the right worker ends it.

    One direction is run plain, and the other one streamed.
    """
    run = Runner.run if direction == "old to new" else run_streamed
    await cross(ROWS[change], direction, run, lambda: FileJournal(tmp_path / "run.journal", fsync="never"))


@pytest.mark.real_clock
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("back", [False, True])
async def test_a_call_waits_for_the_version_that_made_it(direction: Direction, back: bool, tmp_path: Path) -> None:
    """Not for the version that the run began with: a rolling deploy sends a run to and fro."""
    run = Runner.run if direction == "old to new" else run_streamed
    await cross_again(direction, run, lambda: FileJournal(tmp_path / "run.journal", fsync="never"), back=back)


async def run_streamed(agent: Any, given: Any, **options: Any) -> RunResult[Any]:
    """Run as `Runner.run` does, as a stream whose events are read."""
    async with Runner.run_streamed(agent, given, **options) as stream:
        async for _ in stream:
            pass
    return stream.result
