"""The queue of a replay for calls under shared limits: it admits them in the order in which the log shows their starts.

Runs that queue calls in one moment come to the queue in the order in which their tasks happened to run, and no record
tells it. But where it mattered the log tells who came first: of two calls that want the last token, the one that had it
has the earlier record. So `RecordedQueue` is the engine's admission with one more rule: a call without such a record
waits while calls of other runs need the tokens of one of its limits, which have that record and aren't admitted yet.

A rate gets room as time passes, and on a real loop the call that waited for it may have noticed that late. So such a
call waits for its own record. But that there is room is noticed in time (`ReplayLog.come_up`): if another limit is full
then, the call has waited for that one too, which its record says.

The log doesn't tell which of two calls was queued first if both had room, or if neither of them started; nor does it
matter then.

Facts: `_held`, the line of the lanes whose heads wait for the log. All else is in the log and in the admission.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from heapq import heappush
from typing import TYPE_CHECKING, Any, Protocol

from agentloop._core.admission import Admission, Ticket, _LimitQueue
from agentloop.limits import Limit, Rate
from agentloop.testing.replaying._recorded import Call, Path

if TYPE_CHECKING:
    from agentloop._engine.calls.live_call import LiveCall


class Position(Protocol):
    """The part of a position in the log that this module uses (`agentloop.testing.replaying._comparison.ReplayLog`)."""

    cursor: int
    over: bool
    admissions: dict[Call, tuple[int, float | None]]
    """By call, the number of the first record that shows its admission or its end, and when it was queued."""
    live_call: Callable[[Call], LiveCall | None]

    def guarded(self, do: Callable[..., Any], otherwise: Any = None) -> Callable[..., Any]:
        """Return *do*, which returns *otherwise* in place of raising, and ends the replay."""
        ...

    def limits_of(self, path: Path, call_id: str) -> Iterable[Limit]:
        """Return the shared limits of a call that may not have been made yet."""
        ...


class _RecordedOrder(Limit):
    """The limit that a call lacks while the log shows other calls first. No call takes it, and it never has room."""

    name = "recorded order"

    def free(self, now: float) -> float:
        """Return 0."""
        return 0


class RecordedQueue(Admission):
    """The admission of calls under shared limits in a replay. Made by `ReplayLog.enter`, one for each segment."""

    def __init__(self, position: Position) -> None:
        super().__init__()
        self._position = position
        self._order = _RecordedOrder()
        self._late: Collection[Call] = ()
        self._held = self._order.line = _LimitQueue(self._order, self, queue=[])

    @property
    def holds_calls(self) -> bool:
        """True if a call has room, and waits for the log."""
        return self._held.first() is not None

    def admit(self, now: float) -> list[Ticket]:
        """Take the limits of the calls that start at *now*, held ones too, and return them in starting order."""
        found: list[Ticket] = self._position.guarded(self._admit_in_order, [])(now)
        return found

    def _admit_in_order(self, now: float) -> list[Ticket]:
        started: list[Ticket] = []
        while True:
            while (first := self._held.first()) is not None:
                seq, lane = first
                lane.line = None
                heappush(self._agenda, (seq, lane, None))
            more = super().admit(now)
            started += more
            if not more:  # else a held call may have waited for one of them
                return started

    def admit_late(self, late: Collection[Call], rates: Iterable[Rate]) -> None:
        """Let the *late* calls have room in their *rates*: the log shows them admitted as their run was being ended.

        A rate gets room by the clock: on a real loop, in the very moment of the end; and in another process, anew.
        """
        self._late = late
        for rate in rates:
            rate._starts.clear()
            if (line := self._line(rate)) is not None:
                line.mark()

    def _find_lacking(self, ticket: Ticket) -> list[Limit]:
        found: list[Limit] = self._position.guarded(self._find_lacking_in_order, [])(ticket)
        return found

    def _find_lacking_in_order(self, ticket: Ticket) -> list[Limit]:
        lacking = super()._find_lacking(ticket)
        return [self._order] if not lacking and self._is_held(ticket) else lacking

    def _is_held(self, ticket: Ticket) -> bool:
        live: LiveCall = ticket.owner
        position, path = self._position, live.run.state.path
        own, queued = position.admissions.get((path, live.call_id), (math.inf, None))
        for one in ticket.lane.tickets if ticket.lane is not None else ():  # those behind it were admitted after it
            own = min(own, position.admissions.get((one.owner.run.state.path, one.owner.call_id), (own, None))[0])
        if position.over or own <= position.cursor or (path, live.call_id) in self._late:
            return False
        left: dict[Limit, float] = {limit: limit.free(self._now) for limit in live.tool.capacity}
        if any(isinstance(limit, Rate) and limit.name_shown in ticket.waited_for for limit in left):
            return True
        for (of, call_id), (index, at) in position.admissions.items():
            if of == path or not position.cursor <= index < own or _is_later(at, queued):
                continue
            other = position.live_call((of, call_id))
            if other is None or other.phase == "waiting":
                for limit in position.limits_of(of, call_id):
                    if limit in left:
                        left[limit] -= 1
        return any(count <= 0 for count in left.values())


def _is_later(at: float | None, queued: float | None) -> bool:
    """Tell whether a call was queued after another one, as far as the log has both times."""
    return at is not None and queued is not None and at > queued
