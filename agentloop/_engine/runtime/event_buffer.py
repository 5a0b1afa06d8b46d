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

Facts: `_unread`, `_taken`, `closed`, `discarding`, `_sources`. `_reports` is an index: the number, counted from the
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
from typing import Any, NamedTuple, get_args

import anyio

from agentloop import events as ev
from agentloop import model_events as m
from agentloop import records as r
from agentloop._common.checks import NAMES, check, fits, is_texts
from agentloop._concurrency.backend import checkpoint_if_cancelled, new_wakeup
from agentloop._core.record_events import events_of
from agentloop._core.run_fold import RunFold
from agentloop.agents import Agent
from agentloop.exceptions import UserError, UserTypeError
from agentloop.items import ToolCall
from agentloop.limits import Limit

_EVENTS_OF_CALL = 3
"""The events of a call without anything of its own: its start, its end, its output."""
_KINDS: frozenset[type] = frozenset(get_args(m.ModelEvent))


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


class _Source(NamedTuple):
    """One record's events: the number of the first one, counted from the run's first event, and how many there are.

    `record` is the position of the record in the log.
    """

    first: int
    events: int
    record: int


class EventBuffer:
    """Unread events of one tree of runs. Owned by the stream; the log puts events in, the consumer takes them out."""

    def __init__(
        self,
        state: RunFold,
        limit: int | None,
        agents: Callable[[tuple[str, ...]], Agent[Any, Any] | None],
        path: tuple[str, ...] = (),
    ) -> None:
        self._state = state
        self._path = path
        self._limit = limit
        self._agents = agents
        self._unread: deque[ev.Event] = deque()
        self._some = new_wakeup()
        self._room = anyio.Event()
        self._taken = 0
        """The count of events that have left the deque, which is the number of the first unread one."""
        self._sources: deque[_Source] = deque()
        """The records behind the unread events and behind the one that was taken last."""
        self._reports: dict[tuple[tuple[str, ...], str], dict[type, int]] = {}
        """Of each call that has not settled, the event number of its last report of each kind."""
        self.on_room: dict[Callable[[], None], None] = {}
        """Functions of batches to call when the consumer has caught up, in this order."""
        self.closed: bool = False
        self.discarding: bool = False

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

    def put(self, event: ev.Event) -> None:
        """Add *event* and wake the consumer. Never waits."""
        if not self.discarding:
            self._unread.append(event)
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
            self._unread[unread] = event
            return
        of_call[type(event)] = self._taken + len(self._unread)
        self.put(event)

    def record(self, record: r.Record) -> None:
        """Add the events that follow from *record*, which must have been folded."""
        if self.discarding or not self.hears(record.path):
            return
        if type(record) is r.CallSettled:
            self._reports.pop((record.path, record.call_id), None)
        made = events_of(record, self._state, self._agents)
        if not made:
            return
        self._drop_read_sources()
        self._sources.append(_Source(self._taken + len(self._unread), len(made), len(self._state.records) - 1))
        for event in made:
            if not self._path or self.hears(event.path):  # the end of a run may release outputs of the run around it
                self.put(event)

    def last_event_id(self) -> str | None:
        """Return the id of the event taken last, `RECORD.INDEX`; None for a signal, and before the first event.

        Of the buffer of a whole tree only.
        """
        self._drop_read_sources()
        index = self._taken - 1 - self._sources[0].first if self._sources else -1
        return f"{self._sources[0].record}.{index}" if 0 <= index < self._sources[0].events else None

    def _drop_read_sources(self) -> None:
        """Forget the records whose events were taken before the last one that was."""
        sources, last = self._sources, self._taken - 1
        while len(sources) > 1 and sources[1].first <= last:
            sources.popleft()

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
        event = unread.popleft()
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


_CALL_PATH = NAMES.needs(
    "expected a tuple of call ids", fits(lambda value: isinstance(value, tuple) and is_texts(value))
)


def call_id_of(call: str | ToolCall | ev.Event, path: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Return path and id of the call that *call* means: an id or a `ToolCall` of the run at *path*, or an event.

    Raises:
        UserTypeError: *call* is none of these, or *path* is not a tuple of texts.
        UserError: a *path* beside an event, which has its own.
    """
    check("path", _CALL_PATH, path)
    if isinstance(call, str):
        return path, call
    if isinstance(call, ToolCall):
        return path, call.call_id
    inner = getattr(call, "call", None)
    if inner is None and isinstance(item := getattr(call, "item", None), ToolCall):
        inner = item
    if not isinstance(inner, ToolCall):
        raise UserTypeError(f"cancel_call: expected a call id, a ToolCall or an event of a call, got {call!r}")
    if path:
        raise UserError("path: an event has its own, so none is given with it")
    return call.path, inner.call_id
