"""Journals in PostgreSQL, one row for each record. Each append is one statement, which checks the lease as well.

The statement locks the row of the run's lease, so an append and a take-over follow each other: the new holder reads
all that the old one wrote, and the old one writes no more. Since it is one statement, a worker that is stopped in the
middle leaves no transaction open. The rows hold the same lines as a file does; their digests are a chain, by which an
append whose answer was lost finds out whether it was done.

Decisions:

What each layer guarantees. The queue (the application's) delivers a job at least once. The lease gives a run one
holder at a time. The fence lets only the holder append. The log lets a body start at most once, and tells the model
of a call in doubt. The key of an idempotent call lets the far side do a thing once. None of them needs more of the
one before it than that, so a queue may be any, and a lease that is lost costs at most what a crash does.

The fence is in the statement that appends. It locks the lease's row, compares epoch and time, and inserts, in one
round trip; so a take-over comes before or after it, and a worker that is stopped leaves no transaction open for
others to wait at. What is left is a worker that is stopped behind the append of a start. It knows the end of its
lease by its own clock, counted from before the renewal was sent, and the run asks it in the step that starts the body
(`LeasedJournal.check_lease`). Rejected: the check by the application, before each effect. It would be forgotten.

The driver is psycopg's sync side, in threads. Its async side is asyncio's only, as is asyncpg; the one client for
trio is built on a bridge between the loops and has had no release since 2021, and no library that is kept has the
protocol without I/O. The way into a thread and back costs 60 µs of an append's 370 (asyncio, a server on the same
machine that doesn't sync its disk). Rejected: psycopg's generators driven over anyio's sockets. They are its private
parts.

A verdict is a record, not a message; so are answers and added input. Any process appends one while no worker holds the
run. Rejected: a table of verdicts which workers read. It would be a second truth, with its own question about what was
taken once.

Any queue, and no DBOS. What continues a run takes its lease, and needs no more: the jobs of a queue that you have, or
`serve`, whose queue is the rows of the runs (`_queue`). DBOS names the steps of a workflow by the order in which they
begin. Under limits that order is made by how long earlier calls took; in a recovery these return at once, so others
begin first, the names no longer fit, and the model learns that effects failed which had happened. Here a call is
known by its id, in any order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio

from agentloop._common.checks import check_id
from agentloop.abc import Codec
from agentloop.exceptions import StateError, UserTypeError
from agentloop.journal._checks import check_codec, check_records
from agentloop.journal._database import SEALED_AS, SELECT_LINES, as_journal_error, import_driver
from agentloop.journal._envelope import LINE_HEAD, End, Scan, Seal
from agentloop.journal._rows import JournalRows, OtherWriter
from agentloop.postgres._connections import Connection, ResultT
from agentloop.postgres._intents import ADD_INTENTS, RunIntents, columns_of
from agentloop.postgres._lease import FENCE, IS_CANCELLED, Lease, LeaseHeld, RunCancelled, describe_cancelled
from agentloop.postgres._queue import notify
from agentloop.postgres._run_rows import RowSummary
from agentloop.postgres._store import PostgresStore

if TYPE_CHECKING:
    from agentloop.items import Interruption, Item
    from agentloop.state import RunState

_FREE = f"""
SELECT 1 FROM agentloop_leases AS held
WHERE run_id = %(run_id)s AND (ends_at IS NULL OR ends_at <= clock_timestamp()) AND NOT {IS_CANCELLED}
    AND (%(first)s = 0 OR EXISTS (
        SELECT 1 FROM agentloop_journal_lines AS before WHERE before.run_id = %(run_id)s AND before.n = %(first)s - 1
            AND position(%(latest)s::bytea in before.line) = 1
    ))
FOR UPDATE
"""
_KNOWN = "INSERT INTO agentloop_leases (run_id) VALUES (%(run_id)s) ON CONFLICT DO NOTHING"
_APPEND = """
WITH fence AS MATERIALIZED ({fence}){row}{intents}
INSERT INTO agentloop_journal_lines (run_id, n, line)
SELECT %(run_id)s, %(first)s + batch.at - 1, batch.line
FROM fence, unnest(%(lines)s::bytea[]) WITH ORDINALITY AS batch(line, at)
"""
# Joined with the fence, so that the row is locked before it is changed: the fence's row is kept while we wait for it.
_ROW = """, noted AS (
    UPDATE agentloop_leases AS held SET status = %(status)s, agent = %(agent)s, waiting = %(waiting)s,
        error = %(error)s, records = %(records)s, began_at = coalesce(held.began_at, clock_timestamp()),
        since = CASE WHEN held.status = %(status)s THEN held.since ELSE clock_timestamp() END
    FROM fence WHERE held.run_id = %(run_id)s
)"""
_CANCELLED_BY = f"""
SELECT coalesce(cancelled_by, '') FROM agentloop_leases AS held WHERE run_id = %(run_id)s AND {IS_CANCELLED}
"""
_ONE = "SELECT line FROM agentloop_journal_lines WHERE run_id = %(run_id)s AND n = %(n)s"


_MOST_RACES = 10
"""How often we try again where another writer was faster. Each time that one's record is read first."""


class PostgresJournal:
    """The journal of one run in PostgreSQL.

    With a lease it appends only while the lease is held. Without one it reads, takes verdicts, answers and input, and
    appends while no other worker holds the run. In both cases, of two writers that continue from the same record, the
    first to append continues and the other is refused. An append is committed when it returns, and waits for the disk
    as the server is set up to.

    It holds no resources: the store has the connections. After `aclose` it can't be used.

    Args:
        store: The database.
        run: The run's lease, or its id.
        key: Seals every line by HMAC-SHA256, for this run: without the key no line can be changed unnoticed, nor put
            into the place of another run's. No seal can reveal that whole batches were removed at the end.
        codec: The codec by which the run seals secrets; the journal itself doesn't use it.
        older_seals: True to take also a journal that an older version has sealed. Such a seal doesn't say for which run
            it is, so that two of these journals can be exchanged in their store unnoticed.
    """

    def __init__(
        self,
        store: PostgresStore,
        run: Lease | str,
        *,
        key: bytes | None = None,
        codec: Codec | None = None,
        older_seals: bool = False,
    ) -> None:
        if not isinstance(store, PostgresStore):
            raise UserTypeError(f"store: expected a PostgresStore, got {type(store).__name__}")
        self.lease: Lease | None = run if isinstance(run, Lease) else None
        self.run_id: str = run.run_id if isinstance(run, Lease) else check_id("run", run)
        self.codec: Codec | None = check_codec(codec)
        seal = Seal(key, (SEALED_AS, self.run_id), older_seals=older_seals)
        self._rows = _PostgresRows(repr(self), store, self.run_id, self.lease, seal)
        self._connections = store.connections
        self._in_thread = threading.Lock()

    def __repr__(self) -> str:
        return f"PostgresJournal({self.run_id!r})"

    async def append(self, records: Sequence[bytes]) -> None:
        """Append *records* in one statement. A server that restarts is waited for, as long as the store's timeout.

        Cancellation: a checkpoint. Before the thread has begun, nothing is appended; after that the append completes. A
            native cancellation on asyncio raises at once, and the append continues.

        Raises:
            UserTypeError, UserValueError: naming the position of the first value that isn't a record; nothing is
                appended.
            LeaseLost: if the lease is held no more.
            LeaseHeld: if this journal has no lease, and another worker has.
            RunCancelled: if it has none, and the run was cancelled by `PostgresStore.cancel`.
            JournalError: if the database refuses or can't be reached, another writer has appended, or the rows are
                damaged. After this, and after `LeaseLost`, the journal takes no more records.
        """
        added = check_records(records)
        await self._run(lambda: self._rows.append(added))

    async def read(self) -> list[bytes]:
        """Return every record appended so far. Needs no lease.

        Raises:
            JournalError: naming the line (row *n* is line *n* + 1) that was damaged, changed or removed; or the journal
                was sealed with another key, or the database can't be read.
        """
        return await self._run(self._rows.read)

    def check_lease(self) -> None:
        """Return if a body may start: the lease is still held, or the journal has none. Never waits.

        Raises:
            LeaseLost: if the lease has passed.
        """
        if self.lease is not None:
            self.lease.check()

    async def interruptions(self) -> tuple[Interruption, ...]:
        """Return the calls that wait for a verdict or an answer; none if the run isn't interrupted. Needs no agents."""
        from agentloop.state import RunState

        held = await self.read()
        return (await self._load()).interruptions if held else RunState(_placeholder(), ()).interruptions

    async def approve(
        self,
        call: Interruption | str,
        *,
        arguments: str | Mapping[str, Any] | None = None,
        always: bool = False,
        by: str | None = None,
        replace: bool = False,
    ) -> None:
        """Append an approval of *call*, which the next `Runner.resume` finds. Any process may, without the agents.

        Arguments are those of `RunState.approve`; edited ones are checked when the run is resumed. Of several verdicts
        on one call, from whichever processes, the first one holds; the others are refused.

        Raises:
            StateError: if the call has a verdict already (says which one, and whose) and *replace* is False, or if no
                such call waits. Also if others kept writing to the run at the same moment.
            LeaseHeld: if a worker still has the run, so that it isn't waiting yet: try again when it has paused.
            JournalError: as for `append`.
        """
        await self._decide(
            lambda state: state.approve(call, arguments=arguments, always=always, by=by, replace=replace)
        )

    async def reject(
        self,
        call: Interruption | str,
        *,
        message: str | None = None,
        always: bool = False,
        by: str | None = None,
        replace: bool = False,
    ) -> None:
        """Append a rejection of *call*: it never runs, and the model receives *message*. Otherwise as `approve`."""
        await self._decide(lambda state: state.reject(call, message=message, always=always, by=by, replace=replace))

    async def answer(
        self, call: Interruption | str, value: Any = None, *, error: str | None = None, by: str | None = None
    ) -> None:
        """Append the answer to *call*, which waits for the application; arguments are those of `RunState.answer`.

        Any process may, without the agents: the log has the schema of the answer. The first answer counts.

        Raises:
            UserError: *value* doesn't fit; nothing is appended, and the call still waits.
            StateError, LeaseHeld, JournalError: as for `approve`.
        """
        await self._decide(lambda state: state.answer(call, value, error=error, by=by))

    async def add_input(
        self,
        input: str | Iterable[Item],
        *,
        when: Literal["turn", "idle"] = "turn",
        id: str | None = None,
        by: str | None = None,
    ) -> str:
        """Append input that the model is shown once the run is resumed; return its id, as `RunState.add_input`.

        Any process may, without the agents. Input that the journal has already, by its *id*, isn't appended again.

        Raises:
            InputRefusedError: the run is over or has no turn left, or another input has the id.
            StateError: others kept writing to the run at the same moment.
            LeaseHeld: a worker has the run: give the input to its `RunStream`, or try again when the run has paused.
            JournalError: the journal is empty; or as for `append`.
        """
        return await self._decide(lambda state: state.add_input(input, when=when, id=id, by=by))

    async def withdraw(self, id: str, *, by: str | None = None) -> None:
        """Take the added input *id* back, which the model hasn't been shown, as `RunState.withdraw`.

        Raises:
            InputRefusedError: the run is over, or the input doesn't wait; its `reason` says what has become of it.
            StateError, LeaseHeld, JournalError: as for `add_input`.
        """
        await self._decide(lambda state: state.withdraw(id, by=by))

    async def aclose(self) -> None:
        """Take no more records, once the call in progress is over. Does nothing the second time."""
        await self._run(self._rows.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):  # bounded by the store's timeout: it waits only for a call in progress
            await self.aclose()

    # ------------------------------------------------------------------------------------------ what others give

    async def _load(self) -> RunState:
        """Return the run's state with a placeholder for its agent: what others give needs only the log."""
        from agentloop._storage.state_codec import state_from_journal
        from agentloop.state import RunState

        return RunState(_placeholder(), (await state_from_journal(self)).records)

    async def _decide(self, give: Callable[[RunState], ResultT]) -> ResultT:
        """Append what *give* adds to the run's state, as it is in the database at that moment; return its result."""
        from agentloop._storage.state_codec import line_encoder

        encode = line_encoder(self.codec)
        for _ in range(_MOST_RACES):
            if self.lease is None:  # other processes may have written since this object did
                await self._run(self._rows.forget)
            state = await self._load()
            known = len(state.records)
            result = give(state)
            try:
                if len(state.records) > known:
                    await self.append(list(map(encode, state.records[known:])))
            except OtherWriter:
                if self.lease is not None:
                    raise
                continue  # another writer has decided, or the run has continued: the state says which
            if self.lease is None:  # who only gives something reads what the run does with it
                await self._run(self._rows.take_as_read)
            return result
        raise StateError(f"{self!r}: others have written to the run at the same moment, again and again: read it again")

    async def _run(self, work: Callable[[], ResultT]) -> ResultT:
        """Return `work()`, called in a worker thread, one at a time."""

        def run_alone() -> ResultT:
            with self._in_thread:
                return work()

        return await self._connections.in_thread(run_alone)


class _PostgresRows(JournalRows):
    """The rows of *run_id*; with a lease they are inserted only while it is held."""

    def __init__(self, name: str, store: PostgresStore, run_id: str, lease: Lease | None, seal: Seal) -> None:
        super().__init__(name, seal, harmless=(LeaseHeld, RunCancelled))
        self._summary = RowSummary()  # of what was read and written here
        # What this object has written to the run's row. The first append writes it in any case: an older version
        # of the library has no row, and its workers write none.
        self._row: object = None
        self._connections = store.connections
        self._run_id = run_id
        self._lease = lease
        self._open_intents = store._intents.open
        self._intents: RunIntents | None = None  # once the run's id in its log is known

    def select(self) -> Iterable[tuple[int, object]]:
        def read(connection: Connection) -> list[Any]:
            found: list[Any] = connection.execute(SELECT_LINES, {"run_id": self._run_id}).fetchall()
            return found

        return self._connections.call(read, again=True)

    def insert(self, end: End, lines: list[bytes], records: list[bytes]) -> None:
        lease, before, first = self._lease, self._summary, end.count
        summary = before.follow(records)
        row = summary.status is not None and summary.row != self._row
        latest = LINE_HEAD % end.digest  # a retry may have written the line of this number anew
        fence, given = (_FREE, {"run_id": self._run_id, "latest": latest}) if lease is None else (FENCE, lease.fence)
        if self._intents is None and summary.run_id:
            self._intents = self._open_intents(summary.run_id)
        intents, over = ([], []) if self._intents is None else self._intents.decide(records)
        statement = _APPEND.format(fence=fence, row=_ROW if row else "", intents=ADD_INTENTS if intents else "")
        parameters = {**given, "first": first, "lines": lines, **(summary.columns(first + len(lines)) if row else {})}
        parameters |= columns_of(intents) if intents else {}
        sent = False

        def insert(connection: Connection) -> None:
            nonlocal sent
            if sent:  # the connection was lost before the answer came
                last = {"run_id": self._run_id, "n": first + len(lines) - 1}
                found = connection.execute(_ONE, last).fetchone()
                if found is not None and found[0] == lines[-1]:  # the chain's digest is in it: the batch is this one
                    return
            if lease is None:
                connection.execute(_KNOWN, {"run_id": self._run_id})
            else:
                lease.check()
            sent = True
            try:
                added = connection.execute(statement, parameters)
            except import_driver().errors.UniqueViolation as error:
                raise self.other_writer() from error
            if added.rowcount == 0:
                raise self._refusal(connection, end) if lease is None else lease.lose()
            if row and lease is None and summary.status == "interrupted" and not summary.waiting:
                notify(connection)  # the last verdict has come

        self._connections.call(insert, again=True, wait=None if lease is None else lease.remaining)
        self._summary, self._row = summary, summary.row if row else self._row
        if self._intents is not None and over:
            self._intents.forget(over)
        self._connections.counts.add("appends")
        self._connections.counts.add("in_doubt", summary.in_doubt - before.in_doubt)

    def _refusal(self, connection: Connection, end: End) -> Exception:
        """Return the error of an append without a lease that the rows of the run forbid."""
        cancelled = connection.execute(_CANCELLED_BY, {"run_id": self._run_id}).fetchone()
        if cancelled is not None:
            return describe_cancelled(self._run_id, cancelled[0])
        latest = connection.execute(_ONE, {"run_id": self._run_id, "n": end.count - 1}).fetchone()
        # Deleted, or tried again, since it was read.
        if end.count and (latest is None or not latest[0].startswith(LINE_HEAD % end.digest)):
            return self.other_writer()
        return LeaseHeld(f"{self.name}: a worker holds the run", 0.0)

    def _scan(self) -> Scan:
        found = super()._scan()
        self._summary, self._row = RowSummary().follow(found.records), None
        return found

    def as_journal_error(self) -> AbstractContextManager[None]:
        return as_journal_error(self.name)


def _placeholder() -> Any:
    from agentloop.agents import Agent

    return Agent("undecided")
