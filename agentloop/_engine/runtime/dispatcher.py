"""Starts what an admission admits. One pump per turn; one per event loop for calls that wait for shared limits."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable

import anyio

from agentloop._core.admission import Admission, Ticket


class Dispatcher:
    """An admission and the loop that starts its tickets. `ticket.owner.start()` must not wait."""

    def __init__(self) -> None:
        self.admission = Admission()
        self._busy = False
        self._again = False
        self._looked_at = 0.0
        self.sleepers: OrderedDict[Callable[[float], None], None] = OrderedDict()
        """Owners of waiting calls. The first is awake when a call may start by the mere passing of time."""

    def add(self, tickets: Iterable[Ticket]) -> None:
        """Queue *tickets* in this order and start what may start."""
        for ticket in tickets:
            self.admission.add(ticket)
        self.pump()

    def withdraw(self, tickets: Iterable[Ticket]) -> None:
        """Take *tickets* out and start what that makes possible."""
        tickets = list(tickets)
        if tickets:
            self.admission.withdraw(tickets)
            self.pump()

    def pump(self) -> None:
        """Start all that may start now.

        Everything admitted at once is started before anything it causes is looked at: with an eager task factory a
        body runs inside `start`, and its failure must not keep an already admitted sibling from starting.
        """
        if self._busy:
            self._again = True
            return
        self._busy = True
        try:
            while len(self.admission):
                self._again = False
                self._looked_at = anyio.current_time()
                for ticket in self.admission.admit(self._looked_at):
                    ticket.owner.start()
                if not self._again:
                    break
        finally:
            self._busy = False
        self._set_alarm()

    def leave(self, sleeper: Callable[[float], None]) -> None:
        """Take *sleeper* out of the owners; if it was the first, the next one takes its place."""
        if sleeper in self.sleepers:
            del self.sleepers[sleeper]
            self._set_alarm()

    def alarm_of(self, sleeper: Callable[[float], None]) -> float:
        """Return when *sleeper* has to be awake for the calls that wait: one of all owners is enough."""
        return self.next_room() if next(iter(self.sleepers), None) == sleeper else math.inf

    def _set_alarm(self) -> None:
        if self.sleepers and (room := self.next_room()) < math.inf:
            next(iter(self.sleepers))(room)

    def next_room(self) -> float:
        """Return when to pump again although nothing was given back; infinity if never.

        As of the last look: asked of a later moment, a limit that got room in between would not be waited for, and
        nobody would look again.
        """
        return self.admission.next_room(self._looked_at) if len(self.admission) else math.inf
