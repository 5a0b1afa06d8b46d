"""The writer of a run's journal: one task, one batch at a time, and a gate for code that must wait until it is durable.

Knows records, an encoder and a journal; not the state, calls or models. Which records wait is decided by the callers.

Theory. A record is state in the step that appends it; here it becomes durable. The log calls `add`, which never waits.
The writer's task takes all records added since its last write as one batch, and a journal keeps a batch whole or not at
all; so records appended in one step are kept together or lost together. A body waits (`durable`) for the batch with its
`CallStarted`; the next model call, the session and the return of the run wait for all earlier records; no other code
waits. So a turn with calls has two writes, one before the model call and one before the bodies. Records that nothing
waits for, such as the outcome of the first of two calls, are written too, as soon as the run has had `_PASSES` passes
to add what belongs to them: a crash must not lose a finished call because another one takes an hour.

States: not begun (records are collected; the run may start another task, see `begun`); waiting for records; writing;
failed (`error` is set: no more is written, and every waiting task raises it); ended (closed, and all is written).

Facts: `_due` (records of the next batch), `_added` and `_written` (counts since the start), `_awaited` (a task waits
for the next batch), `error`, `_closed`. `_wake` and `_waiting` (the tasks at gates) are only signals: each waiting
task checks the facts again.

Invariants: `_written` grows only when the journal has accepted a batch. A write that was cut or cancelled natively sets
`error`, since it is unknown whether it was done, and no write follows it. The task is shielded: its waits end by
`add` or `close`, its writes by the cleanup deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from anyio.lowlevel import checkpoint

from agentloop._common.error_text import is_fatal
from agentloop._common.json_bytes import ObjectLine
from agentloop._common.values import Machinery
from agentloop._concurrency.backend import (
    Wakeup,
    capture,
    checkpoint_if_cancelled,
    new_wakeup,
    uncancel_to,
    wait_out_cancellations,
)
from agentloop._concurrency.cleanup import Cleanup
from agentloop._concurrency.interrupts import uninterrupted
from agentloop.abc import Journal
from agentloop.exceptions import JournalError
from agentloop.records import CancelRequested, DeadlinePassed, Record

_CARRIED = (CancelRequested, DeadlinePassed)
"""Kinds of records that wait for the next one: a write that begins as the run is cancelled has the grace only, and a
body that blocks the loop in its cleanup would use it up."""

_PASSES = 6
"""The passes of the scheduler for which records that no task waits for are gathered. What belongs to one batch comes
within three; without any, a turn of two calls was four writes."""
_NOT_WRITTEN = "the journal was not written to its end before the cleanup deadline"


class JournalWriter(Machinery, msgspec.Struct, eq=False):
    """Writes records to `journal` as they are appended. Owned by the run; the log adds records, `run` writes them."""

    journal: Journal
    _encode: Callable[[Sequence[Record]], list[bytes]]
    _header: Callable[[], bytes] | None
    """Makes the line before the first one that the journal gets; None once it has that."""
    _cleanup: Cleanup
    _call_failed: Callable[[], None]
    """Ends the run, once `error` is set."""
    _call_closed: Callable[[], None]
    error: BaseException | None = None
    """The reason why no more is written; None while the journal works."""
    begun: bool = False
    """True once the task has taken its first step; a task cancelled natively before that never does."""
    _due: list[Record] = []
    _added: int = 0
    _written: int = 0
    _wake: Wakeup = msgspec.field(default_factory=new_wakeup)
    _waiting: list[Wakeup] = []
    _awaited: bool = False
    _closed: bool = False

    def check(self) -> None:
        """Return if a body may start, once the record of its start is durable. Never waits.

        Raises:
            BaseException: the journal's error, or the error of a lease that has passed since; then no more is written.
        """
        check_lease = getattr(self.journal, "check_lease", None)  # of a `LeasedJournal`
        if check_lease is not None and self.error is None:
            try:
                check_lease()
            except Exception as error:
                self.error = _as_journal_error(error)
                self._call_failed()
        if self.error is not None:
            raise self.error

    def add(self, record: Record) -> None:
        """Add *record* to the next batch. Never waits and never raises: see `error`."""
        self._added += 1
        self._due.append(record)
        if type(record) not in _CARRIED:
            self._wake.ring()

    def close(self) -> None:
        """Let the writer's task end once all records are written: no record comes any more."""
        self._closed = True
        self._call_closed()
        self._wake.ring()

    async def durable(self) -> None:
        """Wait until all records added so far are durable. Not a checkpoint if they are already.

        Raises:
            JournalError: they never will be.
            BaseException: the journal's error, where it isn't an Exception.
        """
        wanted = self._added
        while self._written < wanted:
            if self.error is not None:
                raise self.error
            self._awaited = True
            self._wake.ring()
            wakeup = new_wakeup()
            self._waiting.append(wakeup)
            await wakeup.wait()

    @uninterrupted
    async def run(self) -> None:
        """Write until closed, or until the journal has failed. A second task of the writer does nothing.

        Cancellation: records added so far are still written, until the run's cleanup deadline. A write that begins only
        after the deadline gets the grace once more: other work took the time until then, and the run has ended.
        """
        if self.begun:
            return
        self.begun = True
        try:
            while self.error is None and not (self._closed and not self._due):
                await self._write_on()
        finally:
            if self.error is None and self._written < self._added:
                self.error = JournalError(_NOT_WRITTEN)
            self._report_progress()
            if self.error is not None:
                self._call_failed()

    async def _write_on(self) -> None:
        """Write until closed or failed, or until the cleanup deadline has come in the step that ended a write."""
        with (section := self._cleanup.section(late=True)) as scope:
            while self.error is None and not scope.cancel_called:
                section.pause()
                await wait_out_cancellations(self._gather)
                if not self._due or self.error is not None:
                    return  # closed, or a lease has passed
                section.resume()
                await self._write()

    async def _gather(self) -> None:
        """Wait for records; then give the run some passes to add what belongs to the batch, unless a task waits for it.

        To be called again after a native cancellation, which may have come in the pass of the ring and taken it away.
        """
        while not self._due and not self._closed:
            await self._wake.wait()
        for _ in range(_PASSES):
            if self._awaited or self._closed:
                return
            await checkpoint()

    async def _write(self) -> None:
        """Append one batch of all records due; on failure set `error`.

        Cancellation: raised if by a scope; a native one sets `error`.
        """
        due, self._due, self._awaited = self._due, [], False
        written = await capture(lambda: self.journal.append(self._make_lines(due)), outlast=True)
        if written.own_cancel is not None or written.outer_cancel is not None:
            self.error = JournalError(_NOT_WRITTEN)
            await checkpoint_if_cancelled()  # if a scope's, it continues
            uncancel_to(0)
            self.error = JournalError("a write to the journal was cancelled natively: whether it was done is unknown")
        elif written.error is not None:
            self.error = _as_journal_error(written.error)
        else:
            self._written += len(due)
            self._report_progress()

    def _make_lines(self, records: Sequence[Record]) -> list[bytes]:
        """Return *records* as lines, with the journal's header before the first one that it gets."""
        lines = self._encode(records)
        if self._header is not None:
            lines.insert(0, self._header())
            self._header = None  # a batch that fails is the last one
        return list(map(ObjectLine, lines))

    def _report_progress(self) -> None:
        waiting, self._waiting = self._waiting, []
        for wakeup in waiting:
            wakeup.ring()


def _as_journal_error(error: BaseException) -> BaseException:
    """Return *error* as a `JournalError` that it caused, unless it is one, or isn't an Exception."""
    if isinstance(error, JournalError) or is_fatal(error):
        return error
    failed = JournalError(f"the journal failed: {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
