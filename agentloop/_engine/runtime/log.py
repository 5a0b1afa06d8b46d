"""The log of a tree of runs under way: appends records, and passes each to what follows the log.

Followers are the journal, instruments, spans and event buffers. Does not know what a record causes: the loop reads the
state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agentloop._concurrency.backend import cancelled_types
from agentloop._core.run_fold import RunFold
from agentloop.abc import Instrument, SpanSource
from agentloop.records import Record

if TYPE_CHECKING:
    from agentloop._engine.runtime.event_buffer import EventBuffer
    from agentloop._engine.runtime.journal_writer import JournalWriter

logger = logging.getLogger("agentloop")


class Log:
    """The log of one tree of runs. Appending folds: a record is state in the step that appends it.

    Owned by the root run; every run of the tree appends to it, on one event loop.
    """

    state: RunFold
    append: Callable[[Record], object]
    """Append a record: fold it, then pass it to the followers. Never waits, and never raises an instrument's error.

    The fold's own `apply` where nothing follows the log, as in a plain run: a call of a function less for each record.
    Where only a journal does, a function that doesn't ask for other followers.
    """
    events: EventBuffer | None
    listeners: tuple[EventBuffer, ...]
    """Buffers of parts of the tree, for agent tools with `on_stream`. The run never waits for their readers."""
    wall: Callable[[], float]
    expect: Callable[[Record], Record | None] | None
    """The function of a replay that compares a record and returns the one to append in its place, which keeps the
    recorded times; None to append nothing."""
    spans: SpanSource | None
    journal: JournalWriter | None
    instrument_error: BaseException | None
    """A BaseException of an instrument, such as KeyboardInterrupt: the run ends with it."""
    on_instrument_error: Callable[[], None] | None
    """The function that ends the run after an instrument has broken it. Set while the run is under way."""
    is_watched: bool
    """True if code that may cancel the run is called with each record: instruments, or a replay."""
    _instruments: tuple[Instrument, ...]
    _warned: tuple[int, ...]

    __slots__ = tuple(__annotations__)

    def __init__(
        self,
        state: RunFold,
        instruments: tuple[Instrument, ...],
        expect: Callable[[Record], Record | None] | None = None,
    ) -> None:
        self.state, self.wall, self.expect, self._instruments = state, time.time, expect, instruments
        self.events = self.spans = self.journal = self.instrument_error = self.on_instrument_error = None
        self.listeners = self._warned = ()
        self.is_watched = bool(instruments) or expect is not None
        self.append = state.apply  # until `follow`: a log that is never followed doesn't hold itself

    def follow(
        self,
        *,
        journal: JournalWriter | None = None,
        events: EventBuffer | None = None,
        spans: SpanSource | None = None,
    ) -> None:
        """Let the given followers, and the instruments, have each record from now on."""
        if journal is not None:
            self.journal = journal
        if events is not None:
            self.events = events
        if spans is not None:
            self.spans = spans
        self._choose_append()

    def listen(self, listener: EventBuffer) -> None:
        """Let *listener* have each record from now on, beside the others."""
        self.listeners += (listener,)
        self._choose_append()

    def leave_loop(self) -> None:
        """Let neither the journal nor the run's consumer have a further record: their event loop is gone."""
        self.journal = self.events = None
        self._choose_append()

    def _choose_append(self) -> None:
        if self.is_watched or self.spans is not None or self.events is not None or self.listeners:
            self.append = self._append_followed
        else:
            self.append = self.state.apply if self.journal is None else _journaled(self.state.apply, self.journal.add)

    def _append_followed(self, record: Record) -> None:
        # An instrument's error isn't raised, since the caller is in the middle of a step: see `tell`.
        if self.expect is not None:
            expected = self.expect(record)
            if expected is None:
                return
            record = expected
        record = self.state.apply(record)
        if self.journal is not None:
            self.journal.add(record)
        if self._instruments:
            self.tell("on_record", record)
        if self.spans is not None:
            self.spans.record(record)
        if self.events is not None:
            self.events.record(record)
        for listener in self.listeners:
            listener.record(record)

    def buffers(self) -> Sequence[EventBuffer]:
        """Return the buffers that take signals; empty where there are none, so that no signal need be made."""
        return self.listeners if self.events is None else [self.events, *self.listeners]

    def tell(self, method: str, report: object) -> None:
        """Notify every instrument by its *method*.

        An Exception of an instrument, or a cancellation that it raises itself, is logged, once for each instrument. Any
        other BaseException ends the run: it is kept, and raised when all tasks of the run have ended.
        """
        for instrument in self._instruments:
            try:
                notify = getattr(instrument, method, None)  # an instrument may have only some of the methods
                if notify is not None:
                    notify(report)
            except BaseException as error:  # noqa: ASYNC103 - kept, and raised at the end of the run
                if not isinstance(error, (Exception, *cancelled_types())):
                    self.instrument_error = self.instrument_error or error
                    if self.instrument_error is error and self.on_instrument_error is not None:
                        self.on_instrument_error()
                elif id(instrument) not in self._warned:
                    self._warned += (id(instrument),)
                    logger.warning("instrument %r failed in %s", instrument, method, exc_info=True)


def _journaled(apply: Callable[[Record], Record], add: Callable[[Record], None]) -> Callable[[Record], None]:
    def append(record: Record) -> None:
        add(apply(record))

    return append
