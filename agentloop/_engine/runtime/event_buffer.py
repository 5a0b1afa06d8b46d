"""The buffer of a run's events between the log and the consumer: a deque and a wakeup.

Makes events from model events; those of records are made by `_core/record_events.py`. Does not know about tasks,
models, journals or how the run continues.

Theory. The log puts, in the step that appends a record; the consumer takes. Putting never waits, at any speed of the
consumer. A wakeup only makes the consumer look; an event stays in the deque until it is taken, so no cancellation can
lose one. (Rejected: a memory channel. It loses an item given to a receiver that is cancelled natively in the same tick,
and a full one would make the log wait for its reader.)

Above the limit of unread events the buffer is *full*, and three things wait for room, outside every permit: reading the
next model event and starting the next turn (`room`), admitting the next call (the gate). So a slow consumer delays
calls that wait to start, and never one that has started.

States: open; closed (`close`: the run has ended, unread events can still be taken); discarding (`discard`: nothing is
kept any more). `take` returns None when closed and empty, or when discarding.

Facts: `_unread`, `_taken`, `_last`, `closed`, `discarding`. `_reports` is an index: the number, counted from the
run's first event, of each call's last report (of its progress, or a custom event), from which its position in the deque
follows.

Invariants: events are taken in the order of putting. `_announce_room` runs in the step in which the buffer stops being
full: it wakes the waiting tasks and runs the dispatchers in `on_room`.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias, get_args

import anyio
import msgspec

from agentloop import events as ev
from agentloop import model_events as m
from agentloop import records as r
from agentloop._common.values import Machinery
from agentloop._concurrency.backend import Wakeup, checkpoint_if_cancelled, new_wakeup
from agentloop._core.record_events import events_of
from agentloop._core.run_fold import RunFold
from agentloop.agents import Agent
from agentloop.exceptions import UserError
from agentloop.limits import Limit

_EVENTS_OF_CALL = 3
"""The events of a call without anything of its own: its start, its end, its output."""
_KINDS: frozenset[type] = frozenset(get_args(m.ModelEvent))
_Place: TypeAlias = tuple[int, int] | None
"""The place of an event in the log: the position of its record, and its own among that one's events; None for a signal,
which no record holds."""


class _ConsumerGate(Limit):
    """A limit that admits no calls of one turn while the consumer is behind. Owned by the turn's batch.

    It holds the buffer weakly: the parts of a finished run must not hold each other.
    """

    name = "stream_buffer"
    freed_by_calls = False

    def __init__(self, buffer: EventBuffer) -> None:
        self._buffer = weakref.ref(buffer)

    def free(self, now: float) -> float:
        """Return how many calls may start: none while the consumer is behind."""
        buffer = self._buffer()
        return math.inf if buffer is None or not buffer.full else 0

    def take(self, now: float) -> None:
        """Do nothing: events fill the buffer, not calls."""

    def give(self) -> None:
        """Do nothing: a call frees no room in the buffer."""


class EventBuffer(Machinery, msgspec.Struct, eq=False, weakref=True):
    """Unread events of one tree of runs. Owned by the stream; the log puts events in, the consumer takes them out."""

    _state: RunFold
    _limit: int | None
    _agents: Callable[[tuple[str, ...]], Agent[Any, Any] | None]
    _path: tuple[str, ...] = ()
    """The part of the tree whose events it has."""
    on_room: dict[Callable[[], None], None] = {}
    """Functions of batches to call when the consumer has caught up, in this order."""
    closed: bool = False
    discarding: bool = False
    _unread: deque[tuple[ev.Event, _Place]] = msgspec.field(default_factory=deque)
    _some: Wakeup = msgspec.field(default_factory=new_wakeup)
    _room: anyio.Event = msgspec.field(default_factory=anyio.Event)
    _taken: int = 0
    """The count of events that have left the deque, which is the number of the first unread one."""
    _last: _Place = None
    """The place of the event that was taken last."""
    _reports: dict[tuple[tuple[str, ...], str], dict[type, int]] = {}
    """Of each call that has not settled, the event number of its last report of each kind."""

    def new_gate(self) -> Limit | None:
        """Return a limit that keeps a turn's calls from starting while the consumer is behind."""
        return _ConsumerGate(self)

    def has_room_for(self, calls: int) -> bool:
        """Tell whether the buffer stays below its limit if as many *calls* begin, end and have an output."""
        return self._limit is None or len(self._unread) + _EVENTS_OF_CALL * calls < self._limit or self.discarding

    @property
    def full(self) -> bool:
        """True while the run should wait for its consumer."""
        return self._limit is not None and len(self._unread) >= self._limit and not self.discarding

    @property
    def unread(self) -> int:
        """The count of events that the consumer has not taken."""
        return len(self._unread)

    def put(self, event: ev.Event, place: _Place = None) -> None:
        """Add *event*, with its *place* in the log, and wake the consumer. Never waits."""
        if not self.discarding:
            self._unread.append((event, place))
            self._some.ring()

    def hears(self, path: tuple[str, ...]) -> bool:
        """Tell whether events of the run at *path* belong in this buffer: its part of the tree or below."""
        return path[: len(self._path)] == self._path

    def signal(self, event: Any, path: tuple[str, ...], turn: int) -> None:
        """Add *event*, a `ModelEvent` that no record holds, of a run that this buffer `hears`."""
        # Neither `match` nor `isinstance`: for a class that doesn't fit they cost more than the event they would make.
        kind: type = type(event)
        if kind not in _KINDS:  # a model's own class
            kind = next((one for one in _KINDS if isinstance(event, one)), kind)
        if kind is m.TextDelta:
            self.put(ev.TextDelta(event.text, event.item, path=path, turn=turn))
        elif kind is m.ReasoningDelta:
            self.put(ev.ReasoningDelta(event.text, event.kind, path=path, turn=turn))
        elif kind is m.ArgumentsDelta:
            self.put(ev.ArgumentsDelta(event.call_id, event.delta, path=path, turn=turn))
        elif kind is m.HostedProgress:
            self.put(ev.HostedProgress(event.kind, event.status, event.id, path=path, turn=turn))
        elif kind is m.Raw:
            self.put(ev.RawModelEvent(event.data, path=path, turn=turn))

    def signal_of_call(self, event: ev.CallProgress | ev.CustomEvent) -> None:
        """Add a body's report; while the consumer is behind, it replaces the unread last one of its call and kind."""
        if self.discarding or not self.hears(event.path):
            return
        of_call = self._reports.setdefault((event.path, event.call.call_id), {})
        unread = of_call.get(type(event), -1) - self._taken
        if self.full and unread >= 0:
            self._unread[unread] = event, None
            return
        of_call[type(event)] = self._taken + len(self._unread)
        self.put(event)

    def record(self, record: r.Record) -> None:
        """Add the events that follow from *record*, which must have been folded."""
        if self.discarding or not self.hears(record.path):
            return
        if type(record) is r.CallSettled:
            self._reports.pop((record.path, record.call_id), None)
        for index, event in enumerate(events_of(record, self._state, self._agents)):
            if not self._path or self.hears(event.path):  # the end of a run may release outputs of the run around it
                self.put(event, (len(self._state.records) - 1, index))

    def last_event_id(self) -> str | None:
        """Return the id of the event taken last, `RECORD.INDEX`; None for a signal, and before the first event."""
        return None if self._last is None else f"{self._last[0]}.{self._last[1]}"

    async def room(self) -> None:
        """Wait until the consumer has caught up. Raises a pending cancellation even if there is room."""
        while self.full:
            await self._room.wait()
        await checkpoint_if_cancelled()

    def close(self) -> None:
        """Note that no event will follow; unread events can still be taken."""
        self.closed = True
        self._some.ring()

    def discard(self) -> None:
        """Drop the unread events and all later ones, since no consumer will read them; waiting tasks continue."""
        self.discarding = True
        self._unread.clear()
        self._reports.clear()
        self._announce_room()
        self._some.ring()

    def take_nowait(self) -> ev.Event | None:
        """Return the next event, or None if there is none now. Never waits."""
        unread = self._unread
        if not unread:
            return None
        event, self._last = unread.popleft()
        self._taken += 1
        if self._limit is not None and len(unread) == self._limit - 1:
            self._announce_room()
        return event

    async def take(self) -> ev.Event | None:
        """Wait for the next event and return it; None when there will be none.

        Not a checkpoint if an event is there. Cancellation: no event is lost, since it stays in the deque until taken.

        Raises:
            UserError: another task waits for the next event.
        """
        while (event := self.take_nowait()) is None:
            if self.closed or self.discarding:
                return None
            if self._some.awaited:
                raise UserError("another task is waiting for this stream's next event: one consumer at a time")
            await self._some.wait()
        return event

    def _announce_room(self) -> None:
        room, self._room = self._room, anyio.Event()
        room.set()
        for pump in tuple(self.on_room):
            pump()
