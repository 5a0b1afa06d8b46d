"""Timing hypotheses for the moments between two records, and the search for one that replays the whole log.

A record shows that something has happened, not how long before. If two tasks were ready at once, the log may not show
which ran first; of a cancellation it may not show the exact moment. Most often every hypothesis gives the same records.
If one fails, others are tried: first for the whole log, then at the records around the one that wasn't reached.

Knows nothing of effects or records: an attempt is a callback that replays with some hypotheses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import attrs

from agentloop.exceptions import ReplayDivergence

SLACK = 0.005
"""Seconds by which a record caused by a timer may differ from the time of the timer."""
_REACH = 4
"""Number of records before the unreached one at which another hypothesis is tried."""
_MOST_RECORDS = 1_500
"""Maximum number of records that a search replays: if the definitions have changed, no hypothesis leads further."""


@attrs.frozen
class Way:
    """One timing hypothesis: an assumption about the events between two records.

    Attributes:
        calm: An effect whose record comes at most this many seconds after the previous record completes at once; a
            later one completes when every task waits.
        at_once: A cancellation of the run at most this many seconds before the first record that shows it comes right
            after the previous record; an earlier one comes when every task waits.
        delay: If not 0, the cancellation comes after this many steps of tasks after the previous record.
        through_timers: True if timers that were due clearly before the recorded time of an effect ran before it.
        hurry: True if time passes up to the next record as soon as the previous one is appended, although tasks are
            ready: timers that are due by then run before these tasks.
        late: True if the loop was late: time passes up to a record as soon as every task waits, and the timers that are
            due by then run in one pass of the loop, in any order.
        turn: Index of the ready task that runs first among those that have nothing to record; the tasks are ordered by
            their waiting time, longest first.
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
"""Further hypotheses for runs that were ended from outside."""
_LOCAL = tuple(
    Way(calm=calm, turn=turn, through_timers=through)
    for turn in (0, -1, 1, 2)
    for through in (False, True)
    for calm in (-math.inf, math.inf)
)


@attrs.frozen
class Ways:
    """The hypotheses of one attempt: one for the whole log, and others at some of its records."""

    usual: Way
    others: Mapping[int, Way] = attrs.field(factory=dict)

    def at(self, place: int) -> Way:
        """Return the hypothesis for the time from the record before *place* up to record *place*."""
        return self.others.get(place, self.usual)

    def but(self, places: range, way: Way) -> Ways:
        """Return a copy with *way* at the record numbers *places*."""
        return Ways(self.usual, {**self.others, **dict.fromkeys(places, way)})


@attrs.define
class Tried:
    """The hypotheses of a failed attempt, and its divergence. `firm`: no other hypothesis can lead further."""

    ways: Ways
    divergence: ReplayDivergence
    firm: bool


def search(attempt: Callable[[Ways], Tried | None], length: int, *, ended: bool) -> ReplayDivergence | None:
    """Try hypotheses until one replays the whole log. Return None then, or the divergence of the furthest attempt.

    Args:
        attempt: Replays the log with the given hypotheses; returns None if it reached the end.
        length: Number of records of the log.
        ended: True if the run was ended from outside.
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
        for ways in _vary(start, (*usual, *_LOCAL)):
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


def _vary(tried: Tried, ways: tuple[Way, ...]) -> Iterator[Ways]:
    n = tried.divergence.n
    for first in range(n, max(n - _REACH, 0), -1):
        for way in ways:
            if way != tried.ways.at(first):
                yield tried.ways.but(range(first, first + 1), way)
    for first in range(n - 1, max(n - _REACH, 0), -1):
        for way in ways:
            yield tried.ways.but(range(first, n + 1), way)
