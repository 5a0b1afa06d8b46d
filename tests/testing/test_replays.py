"""The search for replays with another log (`python -m tests.exploration.replays`): a part of it, and its report."""

import subprocess
import sys
from pathlib import Path

import pytest
from exploration.replays import SOURCES, WAYS, Divergence, play_all, report

FOUND: dict[str, tuple[int, ...]] = {
    "a call that an instrument cancels": (13, 14, 299, 747, 1043, 1048, 1160, 1388, 1459, 1524, 1537),
    "a run that an instrument stops": (295, 725, 774, 1001),
    "a fatal error of a background body": (156, 334),
    "sources that give one tool": (92, 258, 578, 1450, 1827, 1953, 1987),
    "a rate that admits a call as its run is being ended": (633, 1071, 5739),
    "calls that wait for a rate behind another one": (2611, 4335, 4380),
    "a deadline and a cancellation while the session is loaded": (1994,),
    "a call that was answered, and is left open": (2002,),
    "a call that cost nothing, as a guardrail refused it": (2079, 2319, 3742),
    "a body that reported, and ran out of its whole time": (207, 5812),
    "a hook that raised beside a secret": (125, 529, 1474, 4879),
    "a run that lacks a secret, which the log has as a digest": (250, 5768),
}
"""What diverged, and the seeds that showed it."""


@pytest.mark.parametrize("kind", FOUND)
def test_seeds_that_diverged(kind: str) -> None:
    """Each log comes out the same."""
    _, found = play_all(FOUND[kind])
    assert not found, "\n".join(map(str, found))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(300, 500, 20))
def test_drawn_seeds(first: int) -> None:
    """So do those of a part of the search."""
    logs, found = play_all(range(first, first + 20))
    assert logs > 20
    assert not found, "\n".join(map(str, found))


def test_worlds_and_ends_are_of_all_kinds() -> None:
    """Generators of every kind, and ends of every way."""
    assert len(SOURCES) == 7
    assert {way.partition(" ")[0] for way in WAYS} >= {"scope", "native", "shutdown", "stop", "turn", "call", "leaves"}


def test_report_tells_the_kinds_and_seeds() -> None:
    """The most frequent kind comes first, and each seed once."""
    words = ("diverged at record 3", "diverged at record 12", "another log")
    backends = "trio replayed on trio"
    found = [Divergence(seed, "rare", "scope", backends, one) for seed, one in zip((1, 2, 2), words, strict=True)]
    lines = "\n".join(report(range(9), 12, found))
    assert lines.startswith("9 seeds, 12 logs")
    assert "seeds that diverged: 2\nknown: 0; new: [1, 2]; mended: []\n2: diverged at record \n" in lines
    assert "--first 1 --count 1  # rare, scope, trio replayed on trio" in lines


@pytest.mark.slow
def test_command_line_repeats_a_seed() -> None:
    """Its exit status tells whether a replay diverged."""
    command = [sys.executable, "-m", "tests.exploration.replays", "--first", "13", "--count", "1", "--jobs", "1"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("1 seeds, ")
