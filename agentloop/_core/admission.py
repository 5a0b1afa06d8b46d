"""The admission rule, pure: it selects the waiting tickets that start at a given moment.

Tickets, limits with numbers, and the time go in; the tickets that start come out. Everything is synchronous and on one
event loop, so nothing is locked. Does not know about tasks, calls or threads: `Ticket.owner` is opaque here. Which
calls have a ticket is decided in `_engine/calls/batch.py`: none without limits, none yet in a later segment or behind
an equal call.

The rule

1. Tickets have one arrival order. A ticket starts when *all* its limits have room at once, and takes them in one step.
   It never holds one limit while it waits for another, so there is no deadlock.
2. A ticket that can't start may be passed by later tickets that want one of its limits, `PATIENCE` times. After that it
   is *spent*, and one token of each of its limits is kept for it: a later ticket takes only what is left beyond the
   kept tokens. So it can't starve, and it holds others back only where a limit is full but for kept tokens.
3. While a spent ticket waits for a limit whose room doesn't come from the end of a call (a `Rate`, a slow consumer of
   the stream), no end of a call lets it start: only tokens of such limits are kept for it, and all other limits behave
   as if it were not there. Otherwise a rate of one call an hour would block free calls for an hour.
4. Of tickets with the same limits only the first has tokens kept: the others can't start before it.
   Of a limit that is *weighed* (tokens of models) a ticket takes an amount, and that amount is kept for it.
5. Of an *ordered* limit a token is kept for each ticket that waits, from its arrival: it is taken in arrival order.

How it is computed

A decision does not check every waiting ticket. Tickets with the same limits form a *lane*, of which only the head may
start. The head waits at one limit that has no room for it, in that limit's *line*, and is checked again when this limit
reports room: a call gave a token back (`Limit.give`), time passed, a kept token was released. Heads are checked in
arrival order, and reading a line stops as soon as its first ticket finds no room. A checked ticket either starts or
moves to the line of another limit.

Passes are counted when they happen: a start visits the earlier, still patient tickets of its limits. A ticket is
visited at most `PATIENCE` times this way, so a start costs a constant number of steps on average, however many wait.

Callers: the dispatcher adds and withdraws tickets and calls `admit` after each change; `next_room` gives it the time at
which room appears without a call's end. A limit marks its own line (`_LimitQueue.mark`) when it gets a token back.

State: `Limit` counts its own free tokens, and `Ticket.seq`, `waiting` and `passed` are the facts about a ticket. All
else is an index: `_lanes` by limits, `queue` by the head that waits, `patient` and `kept` by limit, `_due` by time,
`marked` and `_agenda` by what `admit` has yet to check. Entries of the heaps `queue` and `_agenda` are skipped when
their head has changed, as removing from the middle of a heap would cost a scan.

Invariants: a waiting ticket is in exactly one lane; the head of a lane waits in one line or is on the agenda; a ticket
takes all its limits or none.

Decisions:

Overtaking with patience. A ticket without room is passed by later ones 32 times; then one token of each of its limits
is kept for it. Passes inside one decision count, too. Rejected: strict arrival order. One call that waits for a slow
connection leaves the cap of 32 empty. Rejected: overtaking without end. A call that needs two scarce things at once
waits for ever under a stream of calls that need one. Rejected: reserving whole limits. One call that waits stops a
capacity of a hundred.

Waiting for time delays no other call. While a ticket waits for a `Rate`, or for the stream's consumer, tokens of such
limits alone are kept for it. An early version kept tokens of all its limits: a rate of one call an hour blocked the
free calls of its turn and other runs for an hour. When its time comes it is the earliest ticket, and from then on its
other tokens are kept as well.

Lanes. A decision costs the same for any number of waiting tickets. With a check of every lane, two thousand runs
under one capacity cost two thousand checks for each call. Rejected: checking every lane in every decision. This is
the rule in its plain form, and the tests keep it as their model. Rejected: a queue of all tickets at each limit. A
limit that gets room would check all tickets that another limit still stops.

Ordered limits reserve from the start. A serial group is a capacity of one whose waiting head lets no ticket pass.
This gives "one at a time, in model order" without its own rule.

Segments. A sequential turn and an exclusive call aren't limits. The batch is cut into segments: an exclusive call, or
each call of a sequential turn, is one by itself, and a segment is queued when the one before has settled. Rejected: a
lock in the admission rule, shared by ordinary calls and taken only by exclusive ones. Every call of every turn would
take part in it, and an exclusive call would have to reserve against all lanes. Also, the permit is given back when
the body ends, while "earlier calls finish first" means settled, output guardrails included.

One queue per turn, one per event loop for shared limits. Calls of a turn in which no tool has a `Capacity` or `Rate`
concern no other run. Where one has, all runs of the loop share one arrival order. Nothing is locked: admission,
starting and giving back are synchronous, on one loop. This is why a limit belongs to one event loop at a time.

Wake-ups for a rate. Giving back a permit starts the calls that it makes possible, in the same step and in the task
that gives it back. A `Rate` gets room when time passes, so a task must be awake then. Each admission that leaves
calls waiting gives the time of the next one to one owner of a batch in the queue, and this owner wakes up if it would
sleep longer. One owner is enough; when its batch is over, the next one replaces it. This message must follow every
give: without it, a call blocked first by a full capacity and then only by a rate waited for ever.

A rate counts bodies, from the moment at which they begin. A call takes one of the rate's starts when it is admitted,
and the window of this start begins with the body; a call whose body never begins gives it back. Between the two are
the journal, guardrails and hooks. An early version counted at admission: eighty runs whose journals stalled together
began fifty bodies in a second in which ten were allowed. Rejected: taking a second token behind the journal. The call
would hold its other limits while it waits, and two queues would have to agree about the order.

The stream's buffer is one more limit (`_engine/runtime/event_buffer.py`). It has room while fewer than
`stream_buffer` events are unread. So a slow consumer delays calls that wait to start and never one that has started,
and no second mechanism had to agree with the first about order.

The promised order is the order of admission: it is model order, and everything taken at admission (a permit, a thread
slot, room in a rate) is taken in that order. All calls admitted together are started in one step. The scheduler of
the backend decides in which order these tasks first run, and trio shuffles it. Rejected: handing the start from task
to task. A turn of a thousand calls would take a thousand scheduler passes to begin. A tool that needs one call after
the other has `serial` or `exclusive`.

A failure stops its batch first. A failure that will surely be raised stops admission to its batch before its permit
is given back. Otherwise the next call would start in between: under a cap of one a second body ran after the first
had failed.

Budgets are checked at admission. A call reserves its cost in one step before its body, spends it when the body starts
and gives it back if it does not start. Rejected: checking the use so far. Concurrent calls overdraw it. Rejected:
cancelling running calls. Their effects may have happened, and their cost is spent.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import accumulate
from typing import Any

import msgspec

from agentloop.limits import Limit

PATIENCE = 32


class Ticket(msgspec.Struct, eq=False):
    """A request to start, made by `owner`; `seq` is its position in the arrival order. Mutated by its `Admission`."""

    limits: tuple[Limit, ...]
    owner: Any = None
    seq: int = -1
    weight: int = 1
    """The amount that it takes of limits that are weighed follows from it; of the others it takes one."""
    waited_for: tuple[str, ...] = ()
    """Names of the limits that had no room when the ticket was checked."""
    passed: int = 0
    """Number of later tickets that wanted one of its limits and started; counted up to `PATIENCE`."""
    keeps_capacity: bool = False
    """True while tokens of all its limits are kept for it, and not only those of rule 3."""
    waiting: bool = False
    lane: _Lane | None = None
    passed_by: int = -1
    """Position of the ticket that passed it last."""


class _Lane(msgspec.Struct, eq=False):
    """Waiting tickets with the same limits, in arrival order. A withdrawn ticket leaves once it is the first."""

    tickets: deque[Ticket] = msgspec.field(default_factory=deque)
    line: _LimitQueue | None = None
    """The line in which the head waits; None while the head is on the agenda."""


class _LimitQueue(msgspec.Struct, eq=False):
    """The line of one limit. It exists while a waiting ticket wants that limit."""

    limit: Limit
    admission: Admission
    wanted: int = 0
    """Number of waiting tickets that want the limit."""
    queue: list[tuple[int, _Lane]] = []
    """A heap of the lanes whose heads wait here, by the heads' `seq`; pairs of heads that have left are skipped."""
    patient: OrderedDict[int, Ticket] = msgspec.field(default_factory=OrderedDict)
    """Waiting tickets that want the limit and may be passed, in arrival order."""
    kept: list[tuple[int, Ticket]] = []
    """Tickets for which a token is kept, in arrival order."""
    due: float = math.inf
    """Time on the loop's clock at which the line is read although nothing was given back."""

    def mark(self) -> None:
        """Make the next `admit` read the line, as its limit may have got room."""
        self.admission.marked[self] = None

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
    """A queue of tickets and the rule that starts them. Owned by a dispatcher; for one event loop, not thread-safe.

    It takes the tokens of the limits; the code that ends a call gives them back. A limit serves one admission at a
    time.
    """

    def __init__(self) -> None:
        self.marked: dict[_LimitQueue, None] = {}
        """Lines whose limits may have got room since the line was read."""
        self._lanes: dict[tuple[Limit, ...], _Lane] = {}
        self._agenda: list[tuple[int, _Lane, _LimitQueue | None]] = []
        """A heap of the lanes whose heads must be checked, with the line that each was read from."""
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
        lane = self._lanes.get(ticket.limits)
        if lane is None:
            lane = self._lanes[ticket.limits] = _Lane()
            heappush(self._agenda, (ticket.seq, lane, None))
        lane.tickets.append(ticket)
        self._remember(ticket, lane)

    def withdraw(self, tickets: Iterable[Ticket]) -> None:
        """Remove waiting *tickets*; ignore those that have started or were removed before."""
        for ticket in tickets:
            lane = ticket.lane
            if lane is None or not ticket.waiting:
                continue
            ticket.waiting = False
            self._waiting -= 1
            self._forget(ticket, release_kept=True)
            if lane.tickets[0] is ticket:
                self._next_head(lane)

    def admit(self, now: float) -> list[Ticket]:
        """Take the limits of the tickets that start at *now* (on the loop's clock); return these in starting order.

        Of all tickets that may start, the earliest always starts first.
        """
        self._now = now
        started: list[Ticket] = []
        while self._due and self._due[0][0] <= now:
            _, _, line = heappop(self._due)
            line.due = math.inf
            line.mark()
        while True:
            while self.marked:
                self._read(self.marked.popitem()[0])
            if not self._agenda:
                return started
            seq, lane, source = heappop(self._agenda)
            if lane.line is None and lane.tickets and lane.tickets[0].seq == seq:
                self._check_head(lane, started)
            if source is not None:
                self._read(source)

    def next_room(self) -> float:
        """Return the time at which a ticket may start although no token was given back; infinity if there is none.

        As of the last `admit`: at a later time, a limit that got room in between would not count as waited for.
        """
        while self._due:
            when, _, line = self._due[0]
            if line.first() is not None:
                return when
            heappop(self._due)
            line.due = math.inf
        return math.inf

    # -- checking tickets

    def _check_head(self, lane: _Lane, started: list[Ticket]) -> None:
        ticket = lane.tickets[0]
        if lacking := self._find_lacking(ticket):
            self._join_line(lane, ticket, lacking)
        else:
            self._start(lane, ticket, started)

    def _find_lacking(self, ticket: Ticket) -> list[Limit]:
        """Return the limits that have no room for *ticket* beyond the tokens kept for earlier tickets."""
        lacking = []
        for limit in ticket.limits:
            line = self._line(limit)
            earlier = bisect_left(line.kept, (ticket.seq,)) if line is not None and line.kept else 0
            if not self._fits(limit, ticket, earlier):
                lacking.append(limit)
        return lacking

    def _fits(self, limit: Limit, ticket: Ticket, earlier: int = 0) -> bool:
        """Tell whether *limit* has room for *ticket* beyond what is kept for *earlier* tickets."""
        free = limit.free(self._now)
        if not limit.weighed:
            return free > earlier
        kept = sum([limit.amount(other.weight) for _, other in limit.line.kept[:earlier]]) if earlier else 0
        return free - kept >= limit.amount(ticket.weight)

    def _start(self, lane: _Lane, ticket: Ticket, started: list[Ticket]) -> None:
        for limit in ticket.limits:
            if limit.weighed:
                limit.take_amount(limit.amount(ticket.weight))
            else:
                limit.take(self._now)
        ticket.waiting = False
        self._waiting -= 1
        started.append(ticket)
        self._forget(ticket, release_kept=False)
        self._next_head(lane)
        for limit in ticket.limits:
            if (line := self._line(limit)) is not None:
                self._pass(ticket, line)
                if not limit.freed_by_calls:
                    self._check_kept(line)
                    self._wake_at(line)  # a token that was free but kept until now is taken; it comes back with time

    def _join_line(self, lane: _Lane, ticket: Ticket, lacking: list[Limit]) -> None:
        """Put *lane*, with its head *ticket*, into the line of one of the *lacking* limits."""
        for limit in lacking:
            if limit.name_shown not in ticket.waited_for and not self._fits(limit, ticket):
                ticket.waited_for = (*ticket.waited_for, limit.name_shown)
        timed = [limit for limit in lacking if not limit.freed_by_calls]
        spent = ticket.passed >= PATIENCE
        if timed and (spent or len(timed) == len(lacking)):
            # The latest: checked at an earlier one's time, the ticket would only move to the line of the latest.
            limit = max(timed, key=lambda limit: limit.next_room(self._now))
        else:
            limit = next(limit for limit in lacking if limit.freed_by_calls)
        line = limit.line
        if lane.line is not line:
            lane.line = line
            heappush(line.queue, (ticket.seq, lane))
            self._wake_at(line)
        if spent:  # a stream consumer that falls behind after this is noticed at the next check
            self._keep(ticket, capacity=not timed)

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
        """Put the first lane of *line* on the agenda, if the limit has room for its head."""
        first = line.first()
        if first is None:
            return
        if self._fits(line.limit, first[1].tickets[0], bisect_left(line.kept, (first[0],))):
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

    # -- indices of waiting tickets

    def _line(self, limit: Limit) -> _LimitQueue | None:
        """Return the line of *limit* in this admission; None for one left by another, whose event loop is gone."""
        line: _LimitQueue | None = limit.line
        return line if line is not None and line.admission is self else None

    def _remember(self, ticket: Ticket, lane: _Lane) -> None:
        ticket.lane = lane
        for limit in ticket.limits:
            line = self._line(limit)
            if line is None:
                line = limit.line = _LimitQueue(limit, self)
            line.wanted += 1
            line.patient[ticket.seq] = ticket
            if limit.ordered:
                line.kept.append((ticket.seq, ticket))

    def _forget(self, ticket: Ticket, *, release_kept: bool) -> None:
        """Remove *ticket* from the lines of its limits; with *release_kept* other tickets may take its kept tokens."""
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
                    if release_kept:
                        line.mark()

    # -- patience

    def _pass(self, ticket: Ticket, line: _LimitQueue) -> None:
        """Count the start of *ticket* as a pass of each patient ticket of *line* that came earlier."""
        spent = []
        for seq, other in line.patient.items():
            if seq > ticket.seq:
                break
            if other.passed_by != ticket.seq:  # else counted at another limit that both want
                other.passed_by = ticket.seq
                other.passed += 1
                if other.passed >= PATIENCE:
                    spent.append(other)
        for other in spent:
            for limit in other.limits:
                del limit.line.patient[other.seq]
            self._recheck(other)

    def _recheck(self, ticket: Ticket) -> None:
        """Choose the line and the kept tokens of *ticket* again, if it is the waiting head of its lane."""
        lane = ticket.lane
        if lane is None or lane.line is None or lane.tickets[0] is not ticket:
            return
        # No order of starts is known in which it lacks nothing: its line would be marked, and `admit` would check it.
        if lacking := self._find_lacking(ticket):  # pragma: no branch
            self._join_line(lane, ticket, lacking)

    def _keep(self, ticket: Ticket, *, capacity: bool) -> None:
        """Keep one token of each limit for *ticket*; without *capacity* only of limits that calls don't give back."""
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
        """Recheck the ticket that has just lost its kept token of a limit that time refills, if one has.

        Such a ticket waits for time again, so rule 3 takes its tokens of the other limits away.
        """
        free = line.limit.free(self._now)
        if line.limit.weighed:
            sums = accumulate(line.limit.amount(other.weight) for _, other in line.kept)
            free = next((index for index, sum_ in enumerate(sums) if sum_ > free), len(line.kept))
        if free < len(line.kept):
            ticket = line.kept[int(free)][1]
            if ticket.keeps_capacity:
                self._recheck(ticket)
