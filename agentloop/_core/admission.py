"""The admission rule, pure: which waiting tickets start at a given moment.

The rule

1. Tickets have one arrival order. A ticket starts when *all* its limits have room at once, and takes them in one step.
   It never holds one limit while it waits for another, so there is no deadlock.
2. A ticket that can't start may be passed by later tickets that want one of its limits, `PATIENCE` times. After that it
   is *spent*, and one token of each of its limits is kept for it: a later ticket takes only what is left beyond the
   kept tokens. So it can't starve, and it holds others back only where a limit is full but for kept tokens.
3. While a spent ticket waits for a limit whose room doesn't come from the end of a call (a `Rate`, a slow consumer of
   the stream), it could start nowhere: only tokens of such limits are kept for it, and everything else goes on as if it
   were not there.
4. Of tickets with the same limits only the first has tokens kept: the others can't start before it.
5. Of an *ordered* limit a token is kept for each ticket that waits, from its arrival: it is taken in arrival order.

How it is computed

A decision does not look at all that wait. Tickets with the same limits form a *lane*, of which only the head may start.
The head waits at one limit that has no room for it, in that limit's *line*, and is looked at again when this limit
reports room: a call gave a token back (`Limit.give`), time passed, a kept token was let go. Heads are looked at in
arrival order, and a line stops being read as soon as its first ticket finds no room. A ticket that is looked at either
starts or moves to the line of another limit.

Passes are counted when they happen: a start goes through the earlier, still patient tickets of its limits. A ticket is
met at most `PATIENCE` times this way, so a start costs a constant number of steps on average, however many wait.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any

import attrs

from agentloop.limits import Limit

PATIENCE = 32


@attrs.define(eq=False)
class Ticket:
    """One wish to start, made by `owner`; `seq` is its place in the arrival order."""

    limits: tuple[Limit, ...]
    owner: Any = None
    seq: int = -1
    waited_for: tuple[str, ...] = ()
    """Names of the limits that had no room when the ticket was looked at."""
    passed: int = 0
    """How many later tickets that want one of its limits have started; counted up to `PATIENCE`."""
    keeps_capacity: bool = False
    """Whether tokens of all its limits are kept for it, not only those of rule 3."""
    waiting: bool = False
    _lane: _Lane | None = attrs.field(default=None, init=False)
    _passed_by: int = attrs.field(default=-1, init=False)


@attrs.define(eq=False)
class _Lane:
    """Waiting tickets with the same limits, in arrival order; those that were withdrawn leave when they come first."""

    tickets: deque[Ticket] = attrs.field(factory=deque)
    line: _LimitQueue | None = None
    """Where the head waits; None while it is about to be looked at."""


@attrs.define(eq=False)
class _LimitQueue:
    """What an admission knows about one limit while tickets that want it wait."""

    limit: Limit
    admission: Admission
    wanted: int = 0
    """How many waiting tickets want the limit."""
    queue: list[tuple[int, _Lane]] = attrs.field(factory=list)
    """A heap of the lanes whose heads wait here, by the heads' `seq`; entries of heads that have left are skipped."""
    patient: OrderedDict[int, Ticket] = attrs.field(factory=OrderedDict)
    """Waiting tickets that want the limit and may be passed, in arrival order."""
    kept: list[tuple[int, Ticket]] = attrs.field(factory=list)
    """Tickets for which a token is kept, in arrival order."""
    due: float = math.inf
    """When the admission looks at the line although nothing was given back."""
    marked: bool = False

    def mark(self) -> None:
        """See that the next admission looks at the line: its limit may have got room."""
        if not self.marked:
            self.marked = True
            self.admission.marked.append(self)

    def first(self) -> tuple[int, _Lane] | None:
        """Return the earliest lane that waits here."""
        queue = self.queue
        while queue:
            seq, lane = queue[0]
            if lane.line is self and lane.tickets[0].seq == seq:
                return queue[0]
            heappop(queue)
        return None


class Admission:
    """A queue of tickets and the rule that starts them.

    It takes the limits' numbers; whoever ends a call gives them back. A limit serves one admission at a time.
    """

    def __init__(self) -> None:
        self.marked: list[_LimitQueue] = []
        """Lines whose limits may have got room since they were read."""
        self._lanes: dict[tuple[Limit, ...], _Lane] = {}
        self._new: deque[Ticket] = deque()
        self._agenda: list[tuple[int, _Lane, _LimitQueue | None]] = []
        """A heap of the lanes whose heads are to be looked at, with the line that each was read from."""
        self._due: list[tuple[float, int, _LimitQueue]] = []
        self._seq = 0
        self._waiting = 0
        self._now = -math.inf

    def __len__(self) -> int:
        return self._waiting

    def add(self, ticket: Ticket) -> None:
        """Put *ticket* at the end of the arrival order."""
        ticket.seq = self._seq
        ticket.waiting = True
        self._seq += 1
        self._waiting += 1
        self._new.append(ticket)

    def withdraw(self, tickets: Iterable[Ticket]) -> None:
        """Take waiting *tickets* out; those that have started or left already are passed by."""
        for ticket in tickets:
            if not ticket.waiting:
                continue
            ticket.waiting = False
            self._waiting -= 1
            lane = ticket._lane
            if lane is not None:
                self._forget(ticket, lets_go=True)
                if lane.tickets[0] is ticket:
                    self._next_head(lane)

    def admit(self, now: float) -> list[Ticket]:
        """Return the tickets that start at *now* (on the loop's clock), in this order; their limits are taken.

        Of all that may start it is always the earliest that does.
        """
        self._now = now
        started: list[Ticket] = []
        while self._due and self._due[0][0] <= now:
            _, _, line = heappop(self._due)
            line.due = math.inf
            line.mark()
        while True:
            while self.marked:
                line = self.marked.pop()
                line.marked = False
                self._read(line)
            if self._agenda:
                seq, lane, source = heappop(self._agenda)
                if lane.line is None and lane.tickets and lane.tickets[0].seq == seq:
                    self._look_at(lane, started)
                if source is not None:
                    self._read(source)
            elif self._new:  # later than all that waited before
                ticket = self._new.popleft()
                if ticket.waiting:
                    self._arrive(ticket, started)
            else:
                return started

    def next_room(self, now: float) -> float:
        """Return when a waiting ticket may start although nobody gave anything back; infinity if never."""
        while self._due:
            when, _, line = self._due[0]
            if line.first() is not None:
                return when
            heappop(self._due)
            line.due = math.inf
        return math.inf

    # -- looking at tickets

    def _arrive(self, ticket: Ticket, started: list[Ticket]) -> None:
        lane = self._lanes.get(ticket.limits)
        if lane is not None:
            lane.tickets.append(ticket)
            self._remember(ticket, lane)
        elif lacking := self._lacking(ticket):
            lane = self._lanes[ticket.limits] = _Lane()
            lane.tickets.append(ticket)
            self._remember(ticket, lane)
            self._stay(lane, ticket, lacking)
        else:
            self._start(ticket, started)

    def _look_at(self, lane: _Lane, started: list[Ticket]) -> None:
        ticket = lane.tickets[0]
        if lacking := self._lacking(ticket):
            self._stay(lane, ticket, lacking)
        else:
            self._start(ticket, started)

    def _lacking(self, ticket: Ticket) -> list[Limit]:
        """Return the limits that have no room for *ticket* beyond what is kept for earlier ones."""
        now = self._now
        lacking = []
        for limit in ticket.limits:
            line = self._line(limit)
            earlier = bisect_left(line.kept, (ticket.seq,)) if line is not None and line.kept else 0
            if limit.free(now) <= earlier:
                lacking.append(limit)
        return lacking

    def _start(self, ticket: Ticket, started: list[Ticket]) -> None:
        for limit in ticket.limits:
            limit.take(self._now)
        ticket.waiting = False
        self._waiting -= 1
        started.append(ticket)
        lane = ticket._lane
        if lane is not None:
            self._forget(ticket, lets_go=False)
            self._next_head(lane)
        for limit in ticket.limits:
            if (line := self._line(limit)) is not None:
                self._pass(ticket, line)
                if not limit.freed_by_calls:
                    self._check_kept(line)
                    self._wake_at(line)  # what was free and kept until now comes back in time

    def _stay(self, lane: _Lane, ticket: Ticket, lacking: list[Limit]) -> None:
        """Let *ticket*, the head of *lane*, wait at one of the limits that it is *lacking*."""
        for limit in lacking:
            if limit.name_shown not in ticket.waited_for and limit.free(self._now) <= 0:
                ticket.waited_for = (*ticket.waited_for, limit.name_shown)
        timed = [limit for limit in lacking if not limit.freed_by_calls]
        spent = ticket.passed >= PATIENCE
        if timed and (spent or len(timed) == len(lacking)):
            # The latest: looked at before, the ticket would only move on to that one.
            limit = max(timed, key=self._when_room)
        else:
            limit = next(limit for limit in lacking if limit.freed_by_calls)
        line = limit.line
        if lane.line is not line:
            lane.line = line
            heappush(line.queue, (ticket.seq, lane))
            self._wake_at(line)
        if spent:  # of a consumer who falls behind after this it is known at the next look
            self._keep(ticket, capacity=not timed)

    def _when_room(self, limit: Limit) -> float:
        return limit.next_room(self._now)

    def _next_head(self, lane: _Lane) -> None:
        tickets = lane.tickets
        limits = tickets[0].limits
        while tickets and not tickets[0].waiting:
            tickets.popleft()
        lane.line = None
        if tickets:
            heappush(self._agenda, (tickets[0].seq, lane, None))
        else:
            del self._lanes[limits]

    # -- reading lines

    def _read(self, line: _LimitQueue) -> None:
        """See that the first ticket of *line* is looked at, if the limit has room for it."""
        first = line.first()
        if first is None:
            return
        if line.limit.free(self._now) > bisect_left(line.kept, (first[0],)):
            heappop(line.queue)
            first[1].line = None
            heappush(self._agenda, (*first, line))
        else:
            self._wake_at(line)

    def _wake_at(self, line: _LimitQueue) -> None:
        when = line.limit.next_room(self._now)
        if when < line.due:
            line.due = when
            heappush(self._due, (when, id(line), line))

    # -- who wants what

    def _line(self, limit: Limit) -> _LimitQueue | None:
        """Return the line of *limit*; not one of another admission, whose event loop is gone."""
        line: _LimitQueue | None = limit.line
        return line if line is not None and line.admission is self else None

    def _remember(self, ticket: Ticket, lane: _Lane) -> None:
        ticket._lane = lane
        for limit in ticket.limits:
            line = self._line(limit)
            if line is None:
                line = limit.line = _LimitQueue(limit, self)
            line.wanted += 1
            line.patient[ticket.seq] = ticket
            if limit.ordered:
                line.kept.append((ticket.seq, ticket))

    def _forget(self, ticket: Ticket, *, lets_go: bool) -> None:
        """Forget that *ticket* waits; with *lets_go* what was kept for it is given to others."""
        for limit in ticket.limits:
            line = self._line(limit)
            if line is None:
                continue
            line.wanted -= 1
            if line.wanted == 0:
                limit.line = None
                continue
            line.patient.pop(ticket.seq, None)
            if line.kept:
                index = bisect_left(line.kept, (ticket.seq,))
                if index < len(line.kept) and line.kept[index][1] is ticket:
                    del line.kept[index]
                    if lets_go:
                        line.mark()

    # -- patience

    def _pass(self, ticket: Ticket, line: _LimitQueue) -> None:
        """Count that *ticket* has started before the patient tickets of *line* that came earlier."""
        spent = []
        for seq, other in line.patient.items():
            if seq > ticket.seq:
                break
            if other._passed_by != ticket.seq:  # else counted at another limit that both want
                other._passed_by = ticket.seq
                other.passed += 1
                if other.passed >= PATIENCE:
                    spent.append(other)
        for other in spent:
            for limit in other.limits:
                del limit.line.patient[other.seq]
            self._look_again(other)

    def _look_again(self, ticket: Ticket) -> None:
        """Decide anew where *ticket* waits and what is kept for it, if it is the head of its lane."""
        lane = ticket._lane
        if lane is None or lane.line is None or lane.tickets[0] is not ticket:
            return
        # No order of starts is known in which it lacks nothing: its line would be marked, and it would be looked at.
        if lacking := self._lacking(ticket):  # pragma: no branch
            self._stay(lane, ticket, lacking)

    def _keep(self, ticket: Ticket, *, capacity: bool) -> None:
        """Keep one token of each limit for *ticket*; without *capacity* of those only that calls don't give back."""
        ticket.keeps_capacity = capacity
        for limit in ticket.limits:
            if limit.ordered:
                continue
            line = limit.line
            index = bisect_left(line.kept, (ticket.seq,))
            kept = index < len(line.kept) and line.kept[index][1] is ticket
            if capacity or not limit.freed_by_calls:
                if not kept:
                    insort(line.kept, (ticket.seq, ticket))
                    if not limit.freed_by_calls:
                        self._check_kept(line)
            elif kept:
                del line.kept[index]
                line.mark()

    def _check_kept(self, line: _LimitQueue) -> None:
        """Look again at the ticket that has just lost its token of a limit that time gives back, if one has."""
        free = line.limit.free(self._now)
        if free < len(line.kept):
            ticket = line.kept[int(free)][1]
            if ticket.keeps_capacity:
                self._look_again(ticket)
