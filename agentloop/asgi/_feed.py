"""The feed of a run that continues without its clients: one list of events, and any number of readers anywhere in it.

Theory. The run's task puts events in and never waits for a reader. Events that records hold stay in `_recorded` as long
as the run is under way (their items are the log's own, so that is little memory), and a reader is a position in that
list. A reader that begins late, or comes back, begins at another position, and there is nothing else to resuming.

Signals (pieces of an answer, progress) go only to the readers of that moment, each into its own bounded queue. A
reader that is too far behind loses signals, never recorded events: the item that follows holds the whole text.

Facts: `_recorded`, `_closed`, `final`; of a reader its position and its unread signals, each with the position before
which it belongs and its size. `_wake` of a reader is only a signal: the reader looks at the facts again.

Invariants: ids in `_recorded` grow. A closed feed gets nothing more, and each reader gets all of it before its end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import Any

import anyio

from agentloop import events as ev
from agentloop.asgi._http import HTTPRefusal
from agentloop.asgi._writer import Numbered, format_event
from agentloop.exceptions import UserError
from agentloop.state import parse_event_id

MOST_SIGNALS = 1_000
MOST_SIGNAL_BYTES = 256 * 1024
"""Signals that wait for one reader, and the bytes that their frames have; above that all of them are dropped."""


class Feed:
    """The events of one run for its clients. Owned by the run's task, which adds; readers only look."""

    def __init__(self, recorded: Iterable[tuple[str, ev.Event]] = ()) -> None:
        self._recorded: list[tuple[str, ev.Event]] = list(recorded)
        self._readers: set[FeedReader] = set()
        self._closed = False
        self.final: tuple[dict[str, Any], ...] = ()
        """The data of the frames that follow the last event, once the feed is closed."""

    @property
    def last_id(self) -> str | None:
        """The id of the last recorded event; None if there is none."""
        return self._recorded[-1][0] if self._recorded else None

    def add(self, number: str | None, event: ev.Event) -> None:
        """Add an event with its id; None for a signal. Never waits."""
        if number is not None:
            self._recorded.append((number, event))
        # A signal without a frame, such as a provider's own event, would be held for nothing.
        size = len(format_event(None, event)) if number is None and self._readers else 0
        for reader in self._readers:
            if size:
                reader.add_signal(len(self._recorded), event, size)
            reader.wake()

    def close(self, final: tuple[dict[str, Any], ...]) -> None:
        """Note that no event will follow, and what the clients get at the end."""
        self._closed, self.final = True, final
        for reader in self._readers:
            reader.wake()

    def find_position(self, after: str | None) -> int:
        """Return the position of the first event after the one with the id *after*.

        Raises:
            HTTPRefusal: there is no such event (409), or it isn't an id (400).
        """
        return 0 if after is None else position_after(self._recorded, after)

    def read(self, position: int) -> Numbered | None:
        """Return the recorded event at *position*, or None if there is none yet."""
        return self._recorded[position] if position < len(self._recorded) else None

    @property
    def is_closed(self) -> bool:
        """True once no event will follow."""
        return self._closed

    def attach(self, reader: FeedReader) -> None:
        """Let *reader* have the signals from now on."""
        self._readers.add(reader)

    def detach(self, reader: FeedReader) -> None:
        """Let *reader* have no more signals."""
        self._readers.discard(reader)


class FeedReader:
    """One client's reading of a feed, within `with`. Owned by the task of its response."""

    def __init__(self, feed: Feed, after: str | None) -> None:
        self._feed = feed
        self._position = feed.find_position(after)
        self._signals: deque[tuple[int, ev.Event, int]] = deque()
        self._signal_bytes = 0
        self._wake = anyio.Event()

    def __enter__(self) -> FeedReader:
        self._feed.attach(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._feed.detach(self)

    def add_signal(self, position: int, event: ev.Event, size: int) -> None:
        """Add a signal that belongs before the recorded event at *position*; *size* is the bytes of its frame."""
        if len(self._signals) >= MOST_SIGNALS or self._signal_bytes + size > MOST_SIGNAL_BYTES:
            self._signals.clear()
            self._signal_bytes = 0
        self._signals.append((position, event, size))
        self._signal_bytes += size

    def wake(self) -> None:
        """Let `take` look again."""
        self._wake.set()

    async def take(self) -> Numbered | None:
        """Wait for the next event; None once the feed is closed and read to its end. Loses none when cancelled."""
        while True:
            if self._signals and self._signals[0][0] <= self._position:
                _, signal, size = self._signals.popleft()
                self._signal_bytes -= size
                return None, signal
            found = self._feed.read(self._position)
            if found is not None:
                self._position += 1
                return found
            if self._feed.is_closed:
                return None
            self._wake = anyio.Event()
            await self._wake.wait()


def position_after(recorded: list[tuple[str, ev.Event]], after: str) -> int:
    """Return the position in *recorded* of the first event after the one with the id *after*.

    Raises:
        HTTPRefusal: there is no such event (409), or it isn't an id (400).
    """
    try:
        wanted = parse_event_id(after)
    except UserError:
        raise HTTPRefusal(400, "The last event id is not one of a run.") from None
    position = bisect_left(recorded, wanted, key=lambda one: parse_event_id(one[0]))
    if position == len(recorded) or parse_event_id(recorded[position][0]) != wanted:
        raise HTTPRefusal(409, f"The run has no event {after}: read it from its beginning.")
    return position + 1
