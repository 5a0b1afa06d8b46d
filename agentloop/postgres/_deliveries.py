"""The dispatcher of an outbox: takes due intents, has each delivered, and writes down what came of it.

Theory. The tasks, their errors and their end are those of every loop that takes rows (`_taking`).

    take     as many due intents as there is room for, until the call is cancelled
    attempt  the handler, within its time; or a function within a transaction that also writes its receipt
    settle   delivered with its receipt; or due again after a pause that grows; or dead, with the reason
    drain    when the call is cancelled: attempts under way have the grace, then they are cancelled and given back

A dispatcher that dies settles nothing: the row is due again when the attempt's time is over, and the attempt counts. So
a handler may be called again for what it has done already; the key is for that. A function's transaction is whole or
didn't happen, and it holds the row's lock from before the function to the commit. So two dispatchers never both apply
an intent, however slow one of them is.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import anyio
import attrs
from anyio.abc import TaskGroup

from agentloop._common.error_text import error_summary
from agentloop._concurrency.backend import checkpoint_if_cancelled, uncancel_to
from agentloop._engine.runtime.callbacks import resolve
from agentloop.exceptions import JournalError, UserError
from agentloop.journal._database import as_journal_error
from agentloop.postgres import _intent_rows as rows
from agentloop.postgres._connections import Connection, ResultT, Work
from agentloop.postgres._intent_rows import Intent, IntentForm
from agentloop.postgres._intents import OUTBOX_CHANNEL
from agentloop.postgres._taking import TakingLoop

logger: logging.Logger = logging.getLogger("agentloop")

Handler: TypeAlias = "Callable[[Intent], Awaitable[Any]] | Callable[[Intent], Any]"
Applying: TypeAlias = Callable[[Intent, Connection], Any]
_LONGEST_WAIT = 300.0
"""Seconds: the pauses between the attempts of one intent double up to this."""
_UNREADABLE = "it is sealed, and the dispatcher's outbox has no codec that opens it"


@attrs.define(eq=False, kw_only=True)
class Deliveries(TakingLoop[tuple[str, Intent]]):
    """The state of one `deliver` or `apply`. An intent is taken together with the holder that it is taken by."""

    channel = OUTBOX_CHANNEL

    form: IntentForm
    handler: Handler | None = None
    applying: Applying | None = None
    """A function that is called within the transaction; given if there is no handler."""
    timeout: float
    """Seconds that a handler has."""
    attempts: int
    pause: float
    live: set[anyio.CancelScope] = attrs.field(factory=set)

    # ------------------------------------------------------------------------------------------ taking intents

    async def claim(self) -> list[tuple[str, Intent]]:
        """Take as many due intents as there is room for.

        Cancellation: what the statement has taken meanwhile is given back.

        Raises:
            JournalError: the database refuses or can't be reached.
        """
        room, holder = self.room - len(self.live), self.store._new_holder()
        if room <= 0:
            return []
        # The receipt is written after the handler's time, which the store's timeout bounds.
        seconds = self.timeout + self.store.connections.timeout
        given = {"outbox": self.form.outbox, "holder": holder, "room": room, "seconds": seconds, "most": self.attempts}
        asked = False

        def take(connection: Connection) -> list[Intent]:
            nonlocal asked
            if asked and (known := rows.find_claimed(connection, self.form, given)):
                return known
            asked = True
            return rows.claim(connection, self.form, given)

        found = await self.ask(take, again=True)
        for intent in found:
            if intent.status == "dead":
                logger.error("outbox %r: %r is dead: its dispatchers have died", self.form.outbox, intent.key)
                self.look()  # it has taken room that others are due for
        try:
            await checkpoint_if_cancelled()
        except anyio.get_cancelled_exc_class():
            back = {**given, "keys": [intent.key for intent in found]}
            with anyio.CancelScope(shield=True), suppress(JournalError, UserError):  # bounded by the store's timeout
                await self.ask(partial(rows.give_back, given=back))
            raise
        return [(holder, intent) for intent in found if intent.status == "due"]

    def begin(self, group: TaskGroup, taking: anyio.CancelScope, taken: Iterable[tuple[str, Intent]]) -> None:
        """Start a task for each intent."""
        for holder, intent in taken:
            scope = anyio.CancelScope(shield=True)
            self.live.add(scope)
            group.start_soon(self.deliver_one, scope, taking, intent, holder, name=f"agentloop intent {intent.key}")

    def drain(self) -> None:
        """Have each attempt cancelled when the grace is over."""
        for scope in self.live:
            scope.deadline = anyio.current_time() + self.grace

    def note_absence(self, pause: float, error: JournalError) -> None:
        """Log it."""
        logger.warning("outbox %r is asked again in %.1f s: %s", self.form.outbox, pause, error_summary(error))

    # ------------------------------------------------------------------------------------------ one intent

    async def deliver_one(
        self, scope: anyio.CancelScope, taking: anyio.CancelScope, intent: Intent, holder: str
    ) -> None:
        """Do one attempt, and write down what came of it. No error leaves this."""
        given = {"outbox": self.form.outbox, "key": intent.key, "holder": holder}
        try:
            with scope:
                settle = await self.attempt(scope, intent, given)
                with anyio.CancelScope(shield=True):  # bounded by the store's timeout
                    await self.settle(intent, settle)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: ASYNC103 - raised once all attempts have ended
            self.fatal = self.fatal or error
            taking.cancel()
        finally:
            self.live.discard(scope)
            self.look()

    async def attempt(self, scope: anyio.CancelScope, intent: Intent, given: dict[str, Any]) -> Work[None] | None:
        """Do one attempt; return what writes down what came of it, None if that is done.

        Raises:
            BaseException: the handler's, where it isn't an Exception; the attempt counts.
        """
        try:
            if not intent.is_readable:
                return self.fail(intent, given, _UNREADABLE)
            if self.handler is None:
                await self.ask(partial(self.apply, intent=intent, given=given))
                return None
            with anyio.move_on_after(self.timeout):
                value = await resolve(self.handler(intent))
                return partial(rows.note_delivered, given={**given, **self.write_receipt(intent, value)})
            return self.fail(intent, given, f"the handler took longer than {self.timeout:g} s")
        except anyio.get_cancelled_exc_class() as cancelled:  # noqa: ASYNC103 - see below
            if not scope.cancel_called:  # asyncio's, which the handler raised by itself: a sibling must not end by it
                uncancel_to(0)
                return self.fail(intent, given, type(cancelled).__name__)  # noqa: ASYNC104
            with anyio.CancelScope(shield=True):  # bounded by the store's timeout
                await self.settle(intent, partial(rows.give_back, given={**given, "keys": [intent.key]}))
            raise
        except Exception as error:
            cause = error.__cause__ if isinstance(error, JournalError) and error.__cause__ is not None else error
            return self.fail(intent, given, self.describe(cause))

    def apply(self, connection: Connection, intent: Intent, given: dict[str, Any]) -> None:
        """Call the function in the transaction that writes its receipt. Blocks."""
        assert self.applying is not None
        with connection.transaction():
            if rows.lock(connection, given):
                value = self.applying(intent, connection)
                rows.note_delivered(connection, {**given, **self.write_receipt(intent, value)})

    def write_receipt(self, intent: Intent, value: Any) -> dict[str, Any]:
        """Return the columns of a delivery. A value that isn't JSON is left out: what is done isn't done again."""
        try:
            text = self.form.write("receipt", value)
            return {"receipt": self.form.seal(intent.key, "receipt", text), "trouble": None}
        except Exception as error:
            logger.warning("outbox %r: %r is delivered, its receipt isn't kept: %s", intent.outbox, intent.key, error)
            return {"receipt": None, "trouble": rows.as_trouble(f"delivered; its receipt isn't kept: {error}")}

    def describe(self, error: BaseException) -> str:
        """Return *error* in words; of a sealed outbox only its type, since a message may repeat the payload."""
        return error_summary(error) if self.form.codec is None else type(error).__name__

    def fail(self, intent: Intent, given: dict[str, Any], trouble: str) -> Work[None]:
        """Log that the attempt has failed; return what writes it down."""
        trouble = rows.as_trouble(trouble)
        said = (intent.outbox, intent.key, intent.attempts, trouble)
        if intent.attempts >= self.attempts:
            logger.error("outbox %r: %r is dead after attempt %d: %s", *said)
        else:
            logger.warning("outbox %r: %r has failed in attempt %d: %s", *said)
        pause = min(self.pause * 2 ** min(intent.attempts - 1, 30), max(self.pause, _LONGEST_WAIT))
        return partial(rows.note_failed, given={**given, "trouble": trouble, "most": self.attempts, "pause": pause})

    async def settle(self, intent: Intent, write: Work[None] | None) -> None:
        """Write down what came of an attempt. Where it fails, the end of the attempt's time makes it due again."""
        if write is not None:
            try:
                await self.ask(write, again=True)
            except (JournalError, UserError) as error:
                logger.warning("outbox %r: %r is tried again: %s", intent.outbox, intent.key, error_summary(error))

    async def ask(self, work: Work[ResultT], *, again: bool = False) -> ResultT:
        """Return `work(connection)`, called in a worker thread; an error of the driver is raised as a JournalError."""
        with as_journal_error(f"outbox {self.form.outbox!r}"):
            return await self.store.connections.run(work, again=again)
