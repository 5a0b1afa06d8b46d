"""Effects that happen once: what a body wants done is written with the record of its call, and delivered behind it.

The engine can't make an effect and its record one step: a crash between the two loses or doubles one of them, in
either order. So the body doesn't act. It says what is to be done, an *intent*, with a key; the statement that
appends "the body has returned" to the journal writes the intent, too (`_intents`), and a dispatcher delivers it
(`_deliveries`).

What each part promises:

    run → outbox         exactly once. The intent is there if and only if the log says that the body returned
    equal keys           one intent, of all runs: the first one's. The later ones are answered by it, and its receipt
    outbox → handler     at least once, with the same key. A crash between the handler and its receipt calls it again
    outbox → function    exactly once: it has the connection of the transaction that writes the receipt (`apply`)

No library can do better for a handler: it talks to another machine, and only that knows whether it has acted. Exactly
once there needs a receiver that honours the key, as payment services do. One whose data are in the same database needs
nothing: let it be a function.

Decisions:

The intent waits in memory until the body has returned, and belongs to the record, not to the body. A body that fails,
or is cut by a cancellation or its timeout, leaves none, and one that is called again in a resumed run adds the same
again. Rejected: writing it from the body in another transaction. Then a crash behind it leaves an intent of a call
that the log calls in doubt; the model reads that, and asks for the effect once more, under the key of another call.

The place is the append, a single statement with its fence, into which a run's row and now intents are joined. So a
worker that has lost its lease writes no intent, and one that is stopped leaves no transaction open. Rejected: a
transaction that stays open while the body runs, as a step of DBOS has (its effects must be in the same database, and a
body that waits for an hour would hold its locks and its connection for an hour); two-phase commit, where a coordinator
that dies leaves locks behind until an operator decides, and which no HTTP service speaks; and Temporal's way, an
activity that is repeated until it succeeds: at least once, where each body has to be idempotent by itself.

A dispatcher polls the table and is notified, like `serve`. Rejected: reading the write-ahead log, as Debezium does. It
needs a replication slot, which fills the server's disk while it isn't read, and a connector beside the database, to
gain an order that runs beside each other don't have. Jobs of Oban, River or procrastinate that are inserted in one's
own transaction are the same idea; here the transaction isn't the application's but the journal's, and the handler can
make such a job of an intent.

Order isn't kept: an intent that fails is passed by others. Put what needs an order into one intent.
"""

from __future__ import annotations

from typing import Any

import anyio
from anyio.abc import TaskStatus
from attrs import validators as v

from agentloop._common.checks import NAMES, check, check_count, check_id, fits, optional
from agentloop._engine.runtime.live_run import RunServicesView
from agentloop.abc import Codec
from agentloop.context import ToolContext
from agentloop.exceptions import StateError, UserError, UserTypeError
from agentloop.journal._checks import check_codec
from agentloop.journal._database import as_journal_error
from agentloop.postgres import _intent_rows as rows
from agentloop.postgres._connections import ResultT, Work
from agentloop.postgres._deliveries import Applying, Deliveries, Handler
from agentloop.postgres._intent_rows import Intent, IntentForm, IntentStatus
from agentloop.postgres._intents import WaitingIntent
from agentloop.postgres._store import PostgresStore

_BATCH = 1000
_LONGEST_NAME, _LONGEST_KEY = 100, 500
"""Characters. A row of an index of PostgreSQL has at most 2,704 bytes; an intent that is longer would end its run."""
_STATUSES: tuple[IntentStatus, ...] = ("due", "delivered", "dead")


class PostgresOutbox:
    """Intents with one name in a database: bodies of tools add them, and a dispatcher delivers them.

    It holds no resources: the store has the connections. Safe to share between tasks, event loops and threads.

    Args:
        store: The database; that of the run's `PostgresJournal`, too.
        name: The outbox, such as `"refunds"`; at most 100 characters.
        codec: Seals payloads and receipts. Without one they are stored readably.

    Raises (all methods): JournalError if the database refuses or can't be reached, and UserError once the store is
        closed, or for a wrong argument.

    Example:
        import anyio
        from agentloop import Agent, Runner, ToolContext, tool
        from agentloop.postgres import PostgresJournal, PostgresOutbox, PostgresStore
        from agentloop.testing import ScriptedModel, call, say

        store = PostgresStore("postgresql://localhost/shop")
        refunds = PostgresOutbox(store, "refunds")

        @tool(in_doubt="rerun")
        async def refund(ctx: ToolContext, order: str, cents: int) -> str:
            "Refund an order."
            earlier = await refunds.add(ctx, {"order": order, "cents": cents}, key=f"refund {order}")
            return "The refund is on its way." if earlier is None else "It was refunded before."

        model = ScriptedModel([call("refund", {"order": "7", "cents": 500}), say("It is refunded.")])
        agent = Agent("clerk", model=model, tools=[refund])

        async def main():
            async with store, store.lease("run-1") as lease:
                await Runner.run(agent, "Refund order 7.", journal=PostgresJournal(store, lease))

        # anyio.run(main)  # needs a server
    """

    def __init__(self, store: PostgresStore, name: str, *, codec: Codec | None = None) -> None:
        if not isinstance(store, PostgresStore):
            raise UserTypeError(f"store: expected a PostgresStore, got {type(store).__name__}")
        self.name: str = _check_short("name", name, _LONGEST_NAME)
        self.codec: Codec | None = check_codec(codec)
        self._store = store
        self._form = IntentForm(self.name, self.codec)

    def __repr__(self) -> str:
        return f"PostgresOutbox({self.name!r})"

    # ------------------------------------------------------------------------------------------ in a body

    async def add(self, ctx: ToolContext[Any], payload: Any, *, key: str | None = None) -> Intent | None:
        """Add an intent in the body of a call. It is written with the record that says that the body has returned.

        So it is written if and only if the body returns a value: one that raises, or that a cancellation or its timeout
        cuts, leaves none. Give the tool `in_doubt="rerun"` (or `idempotent=True`): a body that a crash cuts off has
        done nothing yet, and a resumed run calls it again.

        Returns None if the intent is a new one. If the database has one with this key, of whichever run, that one is
        returned, with its receipt once it is delivered, and nothing is added: compare its payload if keys may be
        chosen wrongly. Of two runs that add an equal key at the same moment, the first to return writes it.

        Args:
            ctx: The context of the call.
            payload: A JSON value.
            key: The intent's key in this outbox, of your own words: a second refund of `"order 7"` is the first one. At
                most 500 characters: take a digest of what may be longer.
                Without it, `ctx.idempotency_key`, the key of the call: each call then has another. A call that adds
                several intents to one outbox has to give keys.

        Cancellation: a checkpoint, at which nothing is added.

        Raises:
            UserTypeError, UserValueError: the payload isn't a JSON value; the key is empty or too long; or the call has
                added another payload with this key.
            UserError: the run has no `PostgresJournal` of this store; the call has secret arguments, which may be in
                the payload, and the outbox has no codec; or the body has ended, as for a task that it has left behind.
            StateError: the codec fails.
        """
        check("ctx", NAMES.needs("expected the ToolContext of a call", fits(_is_of_call)), ctx)
        run = ctx._run
        assert isinstance(run, RunServicesView)
        waiting = self._store._intents.find(run.fold.run_id)
        if waiting is None:
            raise UserError(
                f"{self!r}.add: an intent is written with the run's journal: give the run a PostgresJournal of the "
                "same PostgresStore"
            )
        if ctx._secret and self.codec is None:
            raise UserError(
                f"{self!r}.add: the call has secret arguments, and the payload would be stored readably: give the "
                "PostgresOutbox a codec"
            )
        text = self._form.write("payload", payload)
        chosen = ctx.idempotency_key if key is None else _check_short("key", key, _LONGEST_KEY)
        stored = self._form.seal(chosen, "payload", text)
        earlier = await self.find(chosen)
        if earlier is None:
            if _has_ended(run, ctx.tool_call_id):
                raise UserError(
                    f"{self!r}.add: the body of call {ctx.tool_call_id!r} has ended, so nothing would write the "
                    "intent: add it before the body returns"
                )
            waiting.add(run.idempotency_key(ctx.tool_call_id), WaitingIntent(self.name, chosen, text, stored))
        return earlier

    # ------------------------------------------------------------------------------------------ delivering

    async def deliver(  # noqa: ASYNC128 - `TakingLoop.work` calls it
        self,
        handler: Handler,
        *,
        concurrency: int = 10,
        timeout: float = 30.0,
        attempts: int = 10,
        pause: float = 1.0,
        grace: float = 10.0,
        poll: float = 1.0,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Have *handler* deliver the intents of this outbox, until the call is cancelled.

        As many processes as you like share an outbox; each intent is with one of them at a time. The handler is called
        at least once for each, always with the same key, and again if it fails, takes too long, or its process dies
        before its return is written down. So pass `intent.key` on to a receiver that does nothing twice for one key.
        What it returns is the intent's receipt. One that has failed *attempts* times is dead: `intents("dead")` lists
        it with the reason, and `retry` puts it back. A database that is away is waited for.

        Args:
            handler: Called with an `Intent`, on the event loop; sync or async.
            concurrency: How many intents are delivered at a time.
            timeout: Seconds that an attempt may take; then it is cancelled, and has failed.
            attempts: How many attempts an intent has.
            pause: Seconds before the second attempt. Each later pause is twice as long, up to five minutes.
            grace: Seconds that attempts under way have when the call is cancelled.
            poll: Seconds after which it looks for due intents if no notification came.
            task_status: For `TaskGroup.start`.

        Cancellation: no further intent is taken. An attempt that hasn't ended when *grace* seconds are over is
            cancelled; its intent is given back, and the attempt doesn't count.

        Raises:
            JournalError: the database refuses or can't be reached when it begins.
            BaseException: what a handler raises that isn't an Exception ends the call.
        """
        check("handler", NAMES.function("intent"), handler)
        check("timeout", NAMES.seconds(), timeout)
        await self._work(task_status, concurrency, attempts, pause, grace, poll, handler=handler, timeout=timeout)

    async def apply(  # noqa: ASYNC128 - as for `deliver`
        self,
        function: Applying,
        *,
        concurrency: int = 2,
        attempts: int = 10,
        pause: float = 1.0,
        poll: float = 1.0,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Have *function* do what the intents of this outbox ask for in the same database: exactly once.

        Otherwise as `deliver`. The function is called with an `Intent` and the psycopg connection of a transaction,
        which also writes down what it returns as the receipt. What it does by that connection is committed with the
        receipt, or not at all: if it raises, if its process dies, if the server restarts. It doesn't commit by itself.

        It is called in a worker thread, with one of the store's connections, and the store's `timeout` bounds each of
        its statements and the time between two: give a busy one another store. The transaction is READ COMMITTED.

        Cancellation: no further intent is taken. Functions under way are awaited.

        Raises:
            JournalError, BaseException: as for `deliver`.
        """
        check("function", NAMES.function("intent, connection"), function)
        timeout = self._store.connections.timeout
        await self._work(task_status, concurrency, attempts, pause, 0.0, poll, applying=function, timeout=timeout)

    async def _work(  # noqa: ASYNC128 - as for `deliver`
        self,
        task_status: TaskStatus[None],
        concurrency: int,
        attempts: int,
        pause: float,
        grace: float,
        poll: float,
        **how: Any,
    ) -> None:
        check_count("concurrency", concurrency)
        check_count("attempts", attempts)
        check("pause", NAMES.seconds(), pause)
        check("grace", NAMES.seconds(zero=True), grace)
        check("poll", NAMES.seconds(), poll)
        loop = Deliveries(
            store=self._store,
            form=self._form,
            room=concurrency,
            attempts=attempts,
            pause=pause,
            grace=grace,
            poll=poll,
            **how,
        )
        await loop.work(task_status)

    # ------------------------------------------------------------------------------------------ the operator's side

    async def find(self, key: str) -> Intent | None:
        """Return the intent with this key; None if it wasn't written, or was deleted."""
        check_id("key", key)
        return await self._ask(lambda db: rows.find_intent(db, self._form, key), again=True)

    async def intents(self, status: IntentStatus | None = None, *, limit: int | None = None) -> list[Intent]:
        """Return the intents of *status*, or all: the one that has its status for the longest time in front.

        `intents("dead")` are those that couldn't be delivered, each with its `trouble`.
        """
        check("status", optional(NAMES.one_of(*_STATUSES)), status)
        check_count("limit", limit)
        return await self._ask(lambda db: rows.list_intents(db, self._form, status, limit), again=True)

    async def retry(self, key: str) -> None:
        """Put a dead intent back: it is due now, and has all its attempts again.

        Raises:
            StateError: there is none with this key, or it isn't dead.
        """
        given = {"outbox": self.name, "key": check_id("key", key)}
        if not await self._ask(lambda db: rows.put_back(db, given)):
            found = await self.find(key)
            how = "the database holds no such intent" if found is None else f"it is {found.status}"
            raise StateError(f"{self!r}: {key!r} can't be put back, since {how}: only dead ones can")

    async def delete_older(self, older_than: float, *, status: IntentStatus = "delivered") -> int:
        """Delete the intents that came to *status* more than *older_than* seconds ago; return how many.

        With a delivered one its key is forgotten: a run that adds it later has it done again.

        Args:
            older_than: Seconds. `90 * 86400` keeps three months.
            status: `"delivered"`, or `"dead"`.

        Cancellation: a checkpoint in front of each batch; a batch that has begun completes.
        """
        check("older_than", NAMES.seconds(zero=True), older_than)
        check("status", NAMES.one_of("delivered", "dead"), status)
        given = {"outbox": self.name, "status": status, "seconds": older_than, "batch": _BATCH}
        total = 0
        while deleted := await self._ask(lambda db: rows.delete_batch(db, given)):
            total += deleted
        return total

    async def _ask(self, work: Work[ResultT], *, again: bool = False) -> ResultT:
        with as_journal_error(repr(self)):
            return await self._store.connections.run(work, again=again)


def _check_short(name: str, value: str, most: int) -> str:
    """Return *value* if it is an id of at most *most* characters.

    Raises:
        UserTypeError, UserValueError: naming the argument.
    """
    check_id(name, value)
    check(name, NAMES.needs(f"expected at most {most} characters", v.max_len(most), quoted=False), value)
    return value


def _has_ended(run: RunServicesView, call_id: str) -> bool:
    """Tell whether the log says how the body of the call has ended, so that nothing would write its intents."""
    own = run.fold.at(run.path)
    call = None if own is None else own.calls.get(call_id)
    return call is not None and (call.body is not None or call.outcome is not None)


def _is_of_call(ctx: object) -> bool:
    """Tell whether *ctx* is the context of a call of a run whose log is in this process."""
    return isinstance(ctx, ToolContext) and isinstance(ctx._run, RunServicesView)
