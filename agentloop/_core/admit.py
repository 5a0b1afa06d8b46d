"""Who may start now: the admission rule, pure.

Waiting tickets stand in one arrival order. A ticket starts when *all* its limits have room at once, so nobody holds one
limit while waiting for another and there is no deadlock. One that can't start may be passed over by later tickets that
want one of its limits, at most `PATIENCE` times; then it reserves: nobody later takes any of its limits before it. So
limits are fully used and nobody starves. A ticket that waits for an *ordered* limit reserves from the start.

Tickets with the same set of limits can only start in arrival order among themselves; they share a lane, and a decision
looks at the heads of lanes only.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable
from typing import Any

import attrs

from agentloop.limits import Limit

PATIENCE = 32


@attrs.define(eq=False)
class Ticket:
    """One wish to start. `owner` is whoever asked; `seq` its place in the arrival order."""

    limits: tuple[Limit, ...]
    owner: Any = None
    seq: int = -1
    waited_for: tuple[str, ...] = ()
    """Names of the limits that had no room when it was looked at."""


@attrs.define(eq=False)
class _Lane:
    limits: frozenset[Limit]
    tickets: deque[Ticket] = attrs.field(factory=deque)
    overtakers: list[int] = attrs.field(factory=list)

    def passed(self, ticket: Ticket) -> int:
        return sum(1 for seq in self.overtakers if seq > ticket.seq)

    def started(self) -> None:
        if self.tickets:
            head = self.tickets[0].seq
            self.overtakers = [seq for seq in self.overtakers if seq > head]


class Admission:
    """A queue of tickets and the rule that starts them. Takes and gives the limits' numbers; does nothing else."""

    def __init__(self) -> None:
        self._lanes: dict[frozenset[Limit], _Lane] = {}
        self._seq = 0
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def add(self, ticket: Ticket) -> None:
        """Put *ticket* at the end of the arrival order."""
        ticket.seq = self._seq
        self._seq += 1
        key = frozenset(ticket.limits)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key)
        lane.tickets.append(ticket)
        self._waiting += 1

    def withdraw(self, tickets: Iterable[Ticket]) -> None:
        """Take waiting *tickets* out; those that have started or left already are passed by."""
        gone = {id(ticket) for ticket in tickets}
        for key in {frozenset(ticket.limits) for ticket in tickets}:
            lane = self._lanes.get(key)
            if lane is None:
                continue
            left = deque(ticket for ticket in lane.tickets if id(ticket) not in gone)
            self._waiting -= len(lane.tickets) - len(left)
            lane.tickets = left
            lane.started()
            if not left:
                del self._lanes[key]

    def admit(self, now: float) -> list[Ticket]:
        """Return the tickets that start at *now* (on the loop's clock), in arrival order; their limits are taken."""
        if not self._waiting:
            return []
        heads = [(lane.tickets[0].seq, lane) for lane in self._lanes.values()]
        heapq.heapify(heads)
        started: list[Ticket] = []
        blocked: list[_Lane] = []
        reserved: set[Limit] = set()
        while heads:
            seq, lane = heapq.heappop(heads)
            ticket = lane.tickets[0]
            full = [limit for limit in ticket.limits if not limit.room(now)]
            if full or not reserved.isdisjoint(lane.limits):
                self._note_wait(ticket, full)
                blocked.append(lane)
                reserved.update(self._reserves(lane, ticket))
                continue
            for limit in ticket.limits:
                limit.take(now)
            lane.tickets.popleft()
            lane.started()
            self._waiting -= 1
            started.append(ticket)
            for waiting in blocked:
                if not waiting.limits.isdisjoint(lane.limits):
                    waiting.overtakers.append(seq)
                    reserved.update(self._reserves(waiting, waiting.tickets[0]))
            if lane.tickets:
                heapq.heappush(heads, (lane.tickets[0].seq, lane))
            else:
                del self._lanes[lane.limits]
        return started

    def next_room(self, now: float) -> float:
        """Return when a waiting ticket may start although nobody gave anything back; infinity if never."""
        return min((self._ready_at(lane.tickets[0], now) for lane in self._lanes.values()), default=math.inf)

    @staticmethod
    def _ready_at(ticket: Ticket, now: float) -> float:
        # A ticket that also waits for a capacity is looked at again when that is given back.
        return max((limit.next_room(now) for limit in ticket.limits if not limit.room(now)), default=math.inf)

    @staticmethod
    def _note_wait(ticket: Ticket, full: list[Limit]) -> None:
        for limit in full:
            name = limit.name or type(limit).__name__
            if name not in ticket.waited_for:
                ticket.waited_for = (*ticket.waited_for, name)

    @staticmethod
    def _reserves(lane: _Lane, ticket: Ticket) -> Iterable[Limit]:
        if lane.passed(ticket) >= PATIENCE:
            return ticket.limits
        return [limit for limit in ticket.limits if limit.ordered]
