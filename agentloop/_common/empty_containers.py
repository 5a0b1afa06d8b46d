"""Containers that few runs fill: all runs share an empty one, and each makes its own at the first entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class _NoEntries(dict[Any, Any]):
    """An empty dictionary that refuses entries, since many objects share it."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(f"{key!r} can't be put into the empty dictionary that many objects share")


# What few runs have begins as one of these, which all runs share, and is made at its first entry. Measured with a
# dictionary for each run in their place: 400 concurrent runs took 158 µs of CPU each instead of 146, because the
# garbage collector counts and visits every container of a run that waits. A run by itself shows no difference.
NO_DICT: dict[Any, Any] = _NoEntries()
"""The empty dictionary, in place of one that is made at its first entry."""
NO_SET: frozenset[Any] = frozenset()


def append_to(kept: Sequence[T], new: T) -> Sequence[T]:
    """Return *kept* with *new*: the same list, or the first one."""
    if isinstance(kept, list):
        kept.append(new)
        return kept
    return [new]
