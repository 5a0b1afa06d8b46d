"""What a log doesn't say of the moments between its records, and the search for what it must have been.

A record says that something has happened, not how much before: of two tasks that were ready at once the log may not
tell which went first, or of a cancellation in which moment it came. Most often any way leads to the same records. Where
one doesn't, others are tried: at first for the whole log, then at the places around the record that wasn't reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import attrs

from agentloop.exceptions import ReplayDivergence

SLACK = 0.005
"""Seconds by which the recorded time of what a timer led to may differ from the timer's."""
_REACH = 4
"""How many records before the one that isn't reached may be where it went another way."""
_MOST_RECORDS = 1_500
"""How many records a search replays at most: it ends nowhere where the definitions have changed."""


@attrs.frozen
class Way:
    """What is taken to have happened between two records.

    Attributes:
        calm: What completed within so many seconds after the record before completes at once; else when everything
            waits.
        at_once: How many seconds a cancellation of the run may come before the first record that shows it: it comes
            right after the record before; else when everything waits.
        delay: Steps of tasks after the record before that it comes, if not 0.
        through_timers: Whether what was due before the recorded time of what completed had come before it.
        hurry: Whether time has passed up to a record as soon as the one before is there, whoever could go on: what was
            due by then comes before these.
        late: Whether the loop was late: time passes up to a record as soon as everything waits, and what was due by
            then comes in one pass of the loop, in any order.
        turn: Which of the ready tasks that have nothing to record goes first; those that waited longest stand first.
    """

    calm: float = 0.001
    at_once: float = SLACK
    delay: int = 0
    through_timers: bool = False
    hurry: bool = False
    late: bool = False
    turn: int = 0


_AT_ONCE = (SLACK, -math.inf, math.inf)
USUAL = (
    Way(),
    Way(calm=-math.inf),
    Way(calm=math.inf),
    *(Way(calm=math.inf, at_once=at_once) for at_once in _AT_ONCE[1:]),
    *(Way(calm=math.inf, at_once=at_once, through_timers=True) for at_once in _AT_ONCE),
    *(Way(calm=math.inf, at_once=at_once, turn=-1) for at_once in _AT_ONCE),
    *(Way(calm=math.inf, at_once=at_once, hurry=True, turn=turn) for turn in (0, -1) for at_once in _AT_ONCE),
    Way(calm=math.inf, late=True),
)
DELAYED = tuple(Way(at_once=-math.inf, delay=delay) for delay in range(1, 13))
"""Further ways for runs that were ended from outside."""
_LOCAL = tuple(
    Way(calm=calm, turn=turn, through_timers=through)
    for turn in (0, -1, 1, 2)
    for through in (False, True)
    for calm in (-math.inf, math.inf)
)


@attrs.frozen
class Ways:
    """One way for a whole log, and others at some of its places."""

    usual: Way
    others: Mapping[int, Way] = attrs.field(factory=dict)

    def at(self, place: int) -> Way:
        """Return the way from the record before *place* to it."""
        return self.others.get(place, self.usual)

    def but(self, places: range, way: Way) -> Ways:
        """Return these ways, but for *way* at *places*."""
        return Ways(self.usual, {**self.others, **dict.fromkeys(places, way)})


@attrs.define
class Tried:
    """Some ways, and the divergence that they led to. `firm`: no other way can lead further."""

    ways: Ways
    divergence: ReplayDivergence
    firm: bool


def search(attempt: Callable[[Ways], Tried | None], length: int, *, ended: bool) -> ReplayDivergence | None:
    """Try ways until one leads through the log; return the divergence of the one that led furthest, or None.

    Args:
        attempt: Replays with some ways; returns None where these led through.
        length: How many records the log has.
        ended: Whether the run was ended from outside.
    """
    usual = (*USUAL, *(DELAYED if ended else ()))
    tries: list[Tried] = []
    for way in usual:
        tried = attempt(Ways(way))
        if tried is None:
            return None
        tries.append(tried)
        if tried.firm:
            return tried.divergence
    furthest = max(tries, key=lambda tried: tried.divergence.n)
    left = max(_MOST_RECORDS // max(length, 1), len(usual))
    starts = [tried for tried in tries if tried.divergence.n == furthest.divergence.n]
    while starts:
        start = starts.pop(0)
        for ways in _around(start, (*usual, *_LOCAL)):
            left -= 1
            if left < 0:
                return furthest.divergence
            tried = attempt(ways)
            if tried is None:
                return None
            if tried.divergence.n > furthest.divergence.n:
                furthest = tried
                starts = [] if tried.firm else [tried]
                break
    return furthest.divergence


def _around(tried: Tried, ways: tuple[Way, ...]) -> Iterator[Ways]:
    n = tried.divergence.n
    for first in range(n, max(n - _REACH, 0), -1):
        for way in ways:
            if way != tried.ways.at(first):
                yield tried.ways.but(range(first, first + 1), way)
    for first in range(n - 1, max(n - _REACH, 0), -1):
        for way in ways:
            yield tried.ways.but(range(first, n + 1), way)
