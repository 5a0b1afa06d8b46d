"""The work of `python -m benchmarks.temporal`, which each library does as a workflow. Imports none of them."""

from __future__ import annotations

import random

CALLS = 2
"""Calls of the tool in each turn."""
INSTRUCTIONS = "You look at things. ".ljust(2000, "x")


def look(at: int, size: int) -> str:
    """Return what the tool `look` returns: *size* characters of their own, which shrink by half at most."""
    return random.Random(at).randbytes(size // 2 + 1).hex()[:size]


def read_task(text: str) -> tuple[int, int]:
    """Return the turns and the characters of an output, which the user's message says."""
    turns, size = text.split()
    return int(turns), int(size)


def next_calls(text: str, turn: int) -> list[tuple[str, dict[str, int]]]:
    """Return the calls of *turn*, counted from 0, as ids and arguments; none if the run has had its turns."""
    turns, size = read_task(text)
    if turn >= turns:
        return []
    return [(f"call_{turn}_{n}", {"at": CALLS * turn + n, "size": size}) for n in range(CALLS)]
