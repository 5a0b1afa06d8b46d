"""The writer of a run's journal: one task, one batch at a time, and a gate for whoever must not go on before.

A record is state in the step that appends it; here it becomes durable. The writer takes everything appended since its
last write as one batch, so what was appended in one step stands or falls together.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from agentloop._engine.runtime.backend import (
    cancelled_types,
    enclosing_cancelled,
    is_closing,
    own_task,
    uncancel_to,
    wait_out_cancellations,
)
from agentloop._engine.runtime.cleanup import Cleanup
from agentloop._engine.runtime.interrupts import uninterrupted
from agentloop.abc import Journal
from agentloop.exceptions import JournalError
from agentloop.records import Record

Encode = Callable[[Record], bytes]
Header = Callable[[], bytes]


class JournalWriter:
    """Writes records to *journal* as they are appended. Owned by the run; `run` is its task."""

    def __init__(
        self, journal: Journal, encode: Encode, header: Header | None, cleanup: Cleanup, failed: Callable[[], None]
    ) -> None:
        self.journal = journal
        self._cleanup = cleanup
        self._failed = failed
        self.error: BaseException | None = None
        """Why nothing more is written."""
        self._encode = encode
        self._header = header
        self._due: list[Record] = []
        self._added = 0
        self._written = 0
        self._wake = anyio.Event()
        self._progress = anyio.Event()
        self._begun = False
        self._task: object = None
        self._closed = False

    @property
    def begun(self) -> bool:
        """Whether the task has had its first step. One that is cancelled natively before it never has it."""
        return self._begun

    def add(self, record: Record) -> None:
        """Take *record* for the next batch."""
        self._due.append(record)
        self._added += 1
        self._wake.set()

    def close(self) -> None:
        """Let the writer's task end once everything is written."""
        self._closed = True
        self._wake.set()

    async def durable(self) -> None:
        """Wait until all that has been added so far is durable.

        Raises:
            JournalError: it never will be.
            BaseException: what the journal raised, where that is no Exception.
        """
        wanted = self._added
        while self._written < wanted:
            if self.error is not None:
                raise self.error
            await self._progress.wait()

    @uninterrupted
    async def run(self) -> None:
        """Write until closed. When the journal has failed no more is written. A second task of the writer does nothing.

        Cancellation: what has been added is still written, until the run's cleanup deadline. A write that only begins
        after it has the grace once more: what took all the time until there was something else, and the run has ended.
        """
        if self._begun:
            return
        self._begun = True
        self._task = own_task()
        try:
            with anyio.CancelScope(shield=True):  # noqa: ASYNC912 - whoever closes the writer ends its waits
                while self.error is None and not (self._closed and not self._due):
                    if not self._due:
                        self._wake = anyio.Event()
                        await wait_out_cancellations(self._wake.wait)
                        continue
                    with self._cleanup.section(late=True) as scope:
                        await self._write()
                    if scope.cancelled_caught:
                        break
        finally:
            if self.error is None and self._written < self._added:
                self.error = JournalError("the journal was not written to its end before the cleanup deadline")
            self._report_progress()
            if self.error is not None:
                self._failed()

    async def _write(self) -> None:
        due, self._due = self._due, []
        try:
            lines = [self._encode(record) for record in due]
            if self._header is not None:
                lines.insert(0, self._header())
            await self.journal.append(lines)
            self._header = None
        except cancelled_types():
            if enclosing_cancelled():
                raise
            uncancel_to(0)
            self.error = JournalError("a write to the journal was cancelled natively: whether it was done is unknown")
        except JournalError as error:
            self.error = error
        except Exception as error:
            self.error = JournalError(f"the journal failed: {type(error).__name__}: {error}")
            self.error.__cause__ = error
        except BaseException as error:  # noqa: ASYNC103 - raised by `durable`, and by the run: they wait in other tasks
            if is_closing(self._task):
                raise
            self.error = error
        else:
            self._written += len(due)
            self._report_progress()

    def _report_progress(self) -> None:
        progress, self._progress = self._progress, anyio.Event()
        progress.set()
