"""The three queues in which calls wait for room: for nothing, for the cap of their turn, and for any other limits.

A batch has one of them: a `Queue` where there is nothing to wait for, a `CapQueue` where all its calls wait only for
the cap, else a `Dispatcher`, which has an admission. All calls of an event loop that wait for shared limits
are in one dispatcher.

Knows tickets and times, not calls or tasks. Nothing is locked: admission, starting and giving back are synchronous, on
one loop. `ticket.owner.start()` never waits. All tickets that are admitted at once are started before their
consequences are handled: with an eager task factory a body runs inside `start`, and its failure must not keep a call
from starting that was admitted together with it.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

import anyio

from agentloop.limits import Limit

if TYPE_CHECKING:
    from agentloop._core.admission import Admission, Ticket


class QueuedCall(Protocol):
    """A call, as far as its queue knows it."""

    limits: tuple[Limit, ...]
    ticket: Ticket | None

    def start(self) -> None:
        """Start the call, whose limits are taken. Must not wait."""
        ...


class Queue:
    """The queue of a batch, as the batch and its calls know it. This one has no limits: each call starts at once."""

    def enter(self, calls: Iterable[QueuedCall]) -> None:
        """Queue *calls* in this order, and start those that have room. They have tickets if they may have to wait."""
        for call in calls:
            call.start()

    def begin(self, limits: Iterable[Limit]) -> None:
        """Count in *limits* the body of a call, which begins now."""

    def release(self, limits: Iterable[Limit]) -> None:
        """Give back the *limits* of a call that has ended and start all calls that have room."""

    def withdraw(self, tickets: Iterable[Ticket]) -> None:
        """Take *tickets* out of the queue and start the calls that this gives room."""

    def pump(self) -> None:
        """Start all calls that have room now."""


NO_QUEUE = Queue()
"""It has no state, so all batches share it."""


class _TicketQueue(Queue):
    """A queue in which calls may have to wait, each with a ticket."""

    def enter(self, calls: Iterable[QueuedCall]) -> None:
        """Queue *calls* in this order, each with a ticket, and start all calls that have room."""
        from agentloop._core.admission import Ticket  # few runs have limits

        tickets = []
        for call in calls:
            call.ticket = ticket = Ticket(call.limits, call)
            tickets.append(ticket)
        self.add(tickets)

    def add(self, tickets: Iterable[Ticket]) -> None:
        """Queue *tickets* in this order and start all calls that have room."""
        raise NotImplementedError


class Dispatcher(_TicketQueue):
    """An admission and the loop that starts its tickets.

    Owned by a batch, or by the state of the event loop; every code that queues a call or gives back a limit calls it.
    """

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        from agentloop._core.admission import Admission  # few runs have limits

        self.admission: Admission = Admission()
        # Given where the loop's clock may be held: anyio takes 1 µs more, to find the loop.
        self._now = now or anyio.current_time
        self._busy = False
        self.sleepers: OrderedDict[Callable[[float], None], None] = OrderedDict()
        """Wake functions of the owners of waiting calls. The first owner wakes when a call may start by time only."""

    def add(self, tickets: Iterable[Ticket]) -> None:
        """Queue *tickets* in this order and start all calls that have room."""
        for ticket in tickets:
            self.admission.add(ticket)
        self.pump()

    def begin(self, limits: Iterable[Limit]) -> None:
        """Count in *limits* the body of a call, which begins now, and look when they have room again."""
        now = self._now()
        for limit in limits:
            limit.begin(now)
        self.pump()

    def release(self, limits: Iterable[Limit]) -> None:
        """Give back the *limits* of a call that has ended and start all calls that have room."""
        for limit in limits:
            limit.give()
        self.pump()

    def withdraw(self, tickets: Iterable[Ticket]) -> None:
        """Take *tickets* out of the queue and start the calls that this gives room."""
        tickets = list(tickets)
        if tickets:
            self.admission.withdraw(tickets)
            self.pump()

    def pump(self) -> None:
        """Start all calls that have room now."""
        if self._busy:  # within a `start`: the loop below looks again after all of them
            return
        self._busy = True
        try:
            while len(self.admission) and (admitted := self.admission.admit(self._now())):
                for ticket in admitted:  # a call that ends inside of its `start` makes room again
                    ticket.owner.start()
        finally:
            self._busy = False
        self._set_alarm()

    def leave(self, sleeper: Callable[[float], None]) -> None:
        """Take *sleeper* out of the owners; if it was the first, the next one takes its place."""
        if sleeper in self.sleepers:
            del self.sleepers[sleeper]
            self._set_alarm()

    def alarm_of(self, sleeper: Callable[[float], None]) -> float:
        """Return the time at which *sleeper* must be awake for the waiting calls; infinity if another owner must.

        One of all owners is enough.
        """
        return self.admission.next_room() if next(iter(self.sleepers), None) == sleeper else math.inf

    def _set_alarm(self) -> None:
        if self.sleepers and (room := self.admission.next_room()) < math.inf:
            next(iter(self.sleepers))(room)


class CapQueue(_TicketQueue):
    """The calls of one batch that wait for nothing but its cap: they start in arrival order.

    An admission gives the same order, which a property test holds. But it compares calls with different limits, and
    that takes 13 µs of a call that takes 46 under a cap. Where all calls have one limit, a number and a queue do.
    """

    def __init__(self, cap: int, name: str) -> None:
        self._free = cap
        self._names = (name,)
        self._waiting: deque[Ticket] = deque()
        self._busy = False

    def add(self, tickets: Iterable[Ticket]) -> None:
        """Queue *tickets* in this order and start all calls that have room."""
        for ticket in tickets:
            ticket.waiting = True
            self._waiting.append(ticket)
        self.pump()

    def release(self, limits: Iterable[Limit]) -> None:
        """Give back the cap's one token of a call that has ended; the next call starts in this step."""
        self._free += 1
        self.pump()

    def withdraw(self, tickets: Iterable[Ticket]) -> None:
        """Take *tickets* out of the queue."""
        for ticket in tickets:
            ticket.waiting = False
        self.pump()

    def pump(self) -> None:
        """Start all calls that have room now, in the two steps of `Dispatcher.pump`."""
        if self._busy:
            return
        self._busy, waiting = True, self._waiting
        try:
            while True:
                admitted = []
                while waiting and (self._free or not waiting[0].waiting):
                    ticket = waiting.popleft()
                    if ticket.waiting:
                        ticket.waiting = False
                        self._free -= 1
                        admitted.append(ticket)
                if waiting:
                    waiting[0].waited_for = self._names
                for ticket in admitted:
                    ticket.owner.start()
                if not (self._free and waiting):  # else a call has ended inside of its `start`
                    return
        finally:
            self._busy = False
