"""The log of a tree of runs under way: appends records, and passes each to what follows the log.

Followers are the journal, instruments, spans and event buffers. Does not know what a record causes: the loop reads the
state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from agentloop._common.values import Machinery
from agentloop._concurrency.backend import cancelled_types
from agentloop._core.run_fold import RunFold
from agentloop.abc import Instrument, SpanSource
from agentloop.records import Record

if TYPE_CHECKING:
    from agentloop._engine.runtime.event_buffer import EventBuffer
    from agentloop._engine.runtime.journal_writer import JournalWriter

logger = logging.getLogger("agentloop")


class Log(Machinery, msgspec.Struct, eq=False):
    """The log of one tree of runs. Appending folds: a record is state in the step that appends it.

    Owned by the root run; every run of the tree appends to it, on one event loop.
    """

    state: RunFold
    _instruments: tuple[Instrument, ...]
    events: EventBuffer | None = None
    listeners: tuple[EventBuffer, ...] = ()
    """Buffers of parts of the tree, for agent tools with `on_stream`. The run never waits for their readers."""
    wall: Callable[[], float] = time.time
    expect: Callable[[Record], Record | None] | None = None
    """The function of a replay that compares a record and returns the one to append in its place, which keeps the
    recorded times; None to append nothing."""
    find_state_error: Callable[[tuple[str, ...]], Exception | None] | None = None
    """The function of a replay that returns the StateError by which the recorded run at a path ends next, if one does:
    secrets and definitions that the run lacked aren't part of the log."""
    replays: bool = False
    """True in a strict replay: no body runs in the background, because the results are in the log."""
    spans: SpanSource | None = None
    journal: JournalWriter | None = None
    instrument_error: BaseException | None = None
    """A BaseException of an instrument, such as KeyboardInterrupt: the run ends with it."""
    on_instrument_error: Callable[[], None] | None = None
    """The function that ends the run after an instrument has broken it. Set while the run is under way."""
    _warned: tuple[int, ...] = ()
    _followers: tuple[Callable[[Record], None], ...] = ()
    """The functions that get each record once it is folded: of the journal, instruments, spans, buffers, in order."""

    @property
    def journal_error(self) -> BaseException | None:
        """The reason why the journal gets no further record; None while it works, and where there is none."""
        return None if self.journal is None else self.journal.error

    def append(self, record: Record) -> None:
        """Append *record*: fold it, then pass it to the followers. Never waits.

        An instrument's error isn't raised, because the caller is in the middle of a step: see `tell`.
        """
        if self.expect is not None:
            expected = self.expect(record)
            if expected is None:
                return
            record = expected
        record = self.state.apply(record)
        for follow in self._followers:
            follow(record)

    def begin(self, end: Callable[[], None]) -> None:
        """Let the instruments, if there are any, have each record from now on; *end* ends the run if one breaks it."""
        if self._instruments:
            self.on_instrument_error = end
            self._choose_followers()

    def follow(
        self,
        *,
        journal: JournalWriter | None = None,
        events: EventBuffer | None = None,
        spans: SpanSource | None = None,
    ) -> None:
        """Let the given followers have each record from now on, beside the others."""
        self.journal, self.events, self.spans = journal or self.journal, events or self.events, spans or self.spans
        self._choose_followers()

    def listen(self, listener: EventBuffer) -> None:
        """Let *listener* have each record from now on, beside the others."""
        self.listeners += (listener,)
        self._choose_followers()

    def forget(self, listener: EventBuffer) -> None:
        """Let *listener* have no further record."""
        self.listeners = tuple([other for other in self.listeners if other is not listener])
        self._choose_followers()

    def leave_loop(self) -> None:
        """Let neither the journal nor the run's consumer have a further record, because their event loop is gone."""
        self.journal = self.events = None
        self._choose_followers()

    def end(self) -> None:
        """Forget all followers but the journal, which has been closed: each of them would hold the log, or its run."""
        self.events = self.spans = self.on_instrument_error = None
        self._followers = ()

    def _choose_followers(self) -> None:
        followers: list[Callable[[Record], None]] = [] if self.journal is None else [self.journal.add]
        if self._instruments:
            followers.append(self._tell_record)
        followers += [one.record for one in (self.spans, self.events, *self.listeners) if one is not None]
        self._followers = tuple(followers)

    def _tell_record(self, record: Record) -> None:
        self.tell("on_record", record)

    def buffers(self) -> Sequence[EventBuffer]:
        """Return the buffers that take signals; empty where there are none, so that no signal need be made."""
        return self.listeners if self.events is None else [self.events, *self.listeners]

    def tell(self, method: str, *report: object) -> None:
        """Notify every instrument by its *method*.

        An Exception of an instrument, or a cancellation that it raises itself, is logged, once for each instrument. Any
        other BaseException ends the run: it is kept, and raised when all tasks of the run have ended.
        """
        for instrument in self._instruments:
            try:
                notify = getattr(instrument, method, None)  # an instrument may have only some of the methods
                if notify is not None:
                    notify(*report)
            except BaseException as error:  # noqa: ASYNC103 - kept, and raised at the end of the run
                if not isinstance(error, (Exception, *cancelled_types())):
                    self.instrument_error = self.instrument_error or error
                    if self.instrument_error is error and self.on_instrument_error is not None:
                        self.on_instrument_error()
                elif id(instrument) not in self._warned:
                    self._warned += (id(instrument),)
                    logger.warning("instrument %r failed in %s", instrument, method, exc_info=True)
