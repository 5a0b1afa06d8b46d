"""The loop of a worker that takes rows that are due: runs (`_serve`), or intents of an outbox (`_deliveries`).

Theory. One task takes rows; each row has a task; one task listens for notifications. They meet at one event, which says
that it is worth looking: a notification, a row that is done with here, or the poll. A notification says no more than
that, and a poll finds the same, later.

Each row's task is shielded from the cancellation of the loop, because it has the grace to end in. Nothing else is: the
loop and the listener end at once, and no row is taken after that.

Errors. A database that is away makes the loop wait, longer each time. Any other error of taking a row, or one that a
row has put into `fatal`, ends the loop once the rows under way have ended: bare, and before a cancellation that comes
at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Any, ClassVar, Generic, Never, TypeVar

import anyio
import anyio.to_thread
import attrs
from anyio.abc import TaskGroup, TaskStatus

from agentloop.exceptions import JournalError
from agentloop.journal._database import as_journal_error
from agentloop.postgres._connections import Connection
from agentloop.postgres._store import PostgresStore

LONGEST_PAUSE = 30.0
"""Seconds: pauses after errors of the database, or of one run, double from the poll's length up to this."""

TakenT = TypeVar("TakenT")


@attrs.define(eq=False, kw_only=True)
class TakingLoop(Generic[TakenT]):
    """The state of one loop. A subclass says what is taken, and what is done with it."""

    channel: ClassVar[str]
    """The channel of the notifications."""

    store: PostgresStore
    room: int
    """How many rows may be under way here at a time."""
    grace: float
    """Seconds that rows under way have when the call is cancelled."""
    poll: float
    live: set[Any] = attrs.field(factory=set)
    """The rows under way."""
    worth_looking: anyio.Event = attrs.field(factory=anyio.Event)
    fatal: BaseException | None = None
    """The error that ends the loop."""

    async def claim(self) -> Iterable[TakenT]:
        """Take as many due rows as there is room for.

        Raises:
            JournalError: the database refuses or can't be reached.
        """
        raise NotImplementedError

    def begin(self, group: TaskGroup, taking: anyio.CancelScope, taken: Iterable[TakenT]) -> None:
        """Start a task for each row; one that cancels *taking* ends the loop."""
        raise NotImplementedError

    def drain(self) -> None:
        """Have the rows under way end within the grace."""
        raise NotImplementedError

    def note_absence(self, pause: float, error: JournalError) -> None:
        """Log that the database is away, and is asked again after *pause* seconds."""
        raise NotImplementedError

    async def prepare(self, group: TaskGroup, taking: anyio.CancelScope) -> None:
        """Start what else the loop needs, before it counts as started."""

    async def work(self, task_status: TaskStatus[None]) -> None:
        """Work until the call, or the taking, is cancelled."""
        first = await self.claim()
        try:
            async with anyio.create_task_group() as group:
                taking = anyio.CancelScope()
                try:
                    with taking:
                        self.begin(group, taking, first)
                        await self.prepare(group, taking)
                        group.start_soon(self.listen)
                        task_status.started()
                        await self.take(group, taking)
                finally:
                    self.drain()
                    group.cancel_scope.cancel()
        finally:
            if self.fatal is not None:
                raise self.fatal

    async def take(self, group: TaskGroup, taking: anyio.CancelScope) -> None:
        """Take rows until an error ends it."""
        pause = self.poll
        while True:
            self.worth_looking = anyio.Event()
            try:
                self.begin(group, taking, await self.claim())
                pause = self.poll
            except JournalError as error:
                self.note_absence(pause, error)
                await anyio.sleep(pause)
                pause = self.lengthen(pause)
                continue
            except Exception as error:  # the store is closed, say: no asking again cures it
                self.fatal = self.fatal or error
                return
            with anyio.move_on_after(self.poll):
                await self.worth_looking.wait()

    def look(self) -> None:
        """Say that it is worth looking."""
        self.worth_looking.set()

    async def listen(self) -> Never:
        """Look at each notification, and whenever one may have been missed. A lost connection is opened again."""
        pause = self.poll
        while True:
            try:
                with as_journal_error("the database"):
                    connection = await anyio.to_thread.run_sync(self.open_listener)
                    with closing(connection):
                        pause = self.poll
                        while True:
                            self.look()
                            await anyio.wait_readable(connection.fileno())
                            connection.pgconn.consume_input()
                            while connection.pgconn.notifies() is not None:
                                pass
            except JournalError:  # the task that takes rows says so, and polls meanwhile
                await anyio.sleep(pause)
                pause = self.lengthen(pause)

    def open_listener(self) -> Connection:
        """Return a connection that is notified. Blocks."""
        connection = self.store.connections.open()
        try:
            connection.execute(f"LISTEN {self.channel}")
        except BaseException:
            connection.close()
            raise
        return connection

    def lengthen(self, pause: float) -> float:
        """Return the pause after *pause*."""
        return min(pause * 2, max(self.poll, LONGEST_PAUSE))
