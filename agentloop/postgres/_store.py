"""One database with runs and sessions: its connections, its tables, the leases of its runs, and what an operator does.

Decisions:

A run is listed from its row, which the append that changes it has written (`_run_rows`). Rejected: reading the
journals, of which ten thousand take minutes; and a table that a task of the library fills, which would lag, and need an
owner.

Cancelling is a mark in the row, not a record. A record needs the run's key and codec, and its fold, while an operator
has the database only; and the mark holds for a worker that doesn't come back as well as for one that does. The one that
has the run learns of it by its next renewal, cancels its block, and writes the cancelled end itself.

A retry takes the end of a failed run out of its journal, so that the run is as a crash before that end had left it, a
state that every resume can continue. Nothing else is taken back: what has settled has settled. Rejected: beginning at
an earlier turn, which would do effects again; a fork does that, as another run.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Self, get_args

import anyio

from agentloop._common.checks import NAMES, check, check_count, check_id, check_seconds, fits, is_texts, optional
from agentloop._common.values import Value
from agentloop.exceptions import JournalError, StateError, UserError, UserValueError
from agentloop.items import Item, to_items
from agentloop.journal._database import SEALED_AS, as_journal_error
from agentloop.journal._envelope import Seal
from agentloop.postgres import _operating as operating
from agentloop.postgres import _queue as queue
from agentloop.postgres._blocks import with_task
from agentloop.postgres._connections import Connections, ResultT, Work
from agentloop.postgres._intents import StoreIntents
from agentloop.postgres._lease import Lease, read_clock
from agentloop.postgres._limits import SharedLimit, asking, sharing
from agentloop.postgres._renewals import Renewals
from agentloop.postgres._run_rows import OVER, StoredRun, StoredStatus, read_cursor
from agentloop.sessions._item_rows import write_items

_MOST_PRIORITY = 1000
_BATCH = 200
"""Runs of a batch: of thirty lines each they are deleted in about 30 ms."""


class StoreHealth(Value, frozen=True):
    """How a store and its database do, as `PostgresStore.health` found it.

    Attributes:
        error: Why the database can't be used; None if it can.
        seconds: How long it took to answer.
        leases: The leases that this store holds.
        late: Those of them whose renewal is more than a second late: the event loop is blocked, or the database slow.
        connections_in_use: The connections that were in use at that moment.
        connections: The most that the store opens. As many in use as this again and again: appends wait for each other.
        runs: How many runs of the database are `"queued"`, `"running"`, `"interrupted"` and `"dead"`.
        oldest: The seconds since the oldest of these came to its status.
        waiting: How many runs have calls that wait for a person.
    """

    error: str | None
    seconds: float
    leases: int
    late: int
    connections_in_use: int
    connections: int
    runs: Mapping[str, int]
    oldest: Mapping[str, float]
    waiting: int


class PostgresStore:
    """The runs and sessions in one PostgreSQL database. Nothing is opened before its first use.

    The tables, whose names begin with `agentloop_`, are made and migrated then. Close it by `aclose`, or use it as
    `async with`. Safe to share between tasks, event loops and threads.

    Args:
        conninfo: The address in libpq's form: `"host=… dbname=…"` or `"postgresql://…"`. A proxy that gives each
            transaction another connection can't be used.
        connections: The most connections that are open at a time. Runs share them; each append takes one for a moment.
        timeout: Seconds that a statement may take, and that it waits for a server which restarts.
        application: Your application's version. The row of a run says which one had it last.
        worker: What the row calls this worker; the machine's name and the process's number, if it isn't given.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        connections: int = 4,
        timeout: float = 10.0,
        application: str | None = None,
        worker: str | None = None,
    ) -> None:
        check("conninfo", NAMES.plain_text(quoted=False), conninfo)  # it may hold a password
        check("connections", NAMES.count(), connections)
        check("timeout", NAMES.seconds(), timeout)
        self.connections: Connections = Connections(conninfo, connections, timeout)
        self._most = connections
        for name, given in {"application": application, "worker": worker}.items():
            check(name, optional(NAMES.plain_words()), given)
        self._named = {"application": application, "worker": worker or f"{socket.gethostname()}-{os.getpid()}"}
        self._renewals = Renewals(self.connections)
        self._intents = StoreIntents()

    def __repr__(self) -> str:
        return f"PostgresStore(connections={self._most})"  # the address may hold a password

    @asynccontextmanager
    async def lease(self, run_id: str, *, seconds: float = 30.0) -> AsyncIterator[Lease]:
        """Take a run over, hold it for a block, and give it back. A run that hasn't begun can be taken, too.

        The lease is renewed at each third of *seconds*, in one statement with the others that this store holds in the
        same event loop. Within it no other worker can take the run, so a run of a worker that died is free when
        *seconds* are over. A block that stops the event loop for longer loses it.

        Cancellation: if the lease is lost, or the run cancelled by `cancel`, the block is cancelled. The lease is given
            back after every other cancellation, as after an error.

        Raises:
            LeaseHeld: if another worker holds the run; the block isn't entered.
            RunCancelled: if the run was cancelled before, so that the block isn't entered, or meanwhile.
            LeaseLost: if the lease was lost, and the block raised no error.
            JournalError: if the database refuses or can't be reached.
        """
        check_id("run_id", run_id)
        check_seconds("seconds", seconds)
        lease = self._new_lease(run_id, self._new_holder(), seconds)
        await lease.take()
        async with self._hold(lease):
            yield lease

    def _new_holder(self) -> str:
        return f"{os.getpid()}-{secrets.token_hex(8)}"

    def _new_lease(self, run_id: str, holder: str, seconds: float) -> Lease:
        return Lease(self.connections, run_id, holder, seconds, **self._named)

    @asynccontextmanager
    async def _hold(self, lease: Lease) -> AsyncIterator[None]:
        """Hold *lease*, which was taken, for a block: the part of `lease` behind its beginning."""
        held = False
        try:
            async with with_task(partial(self._renewals.keep, lease)):
                yield
                held = lease.held
        finally:
            with anyio.CancelScope(shield=True):  # bounded: one attempt, by the timeout
                await lease.give_back()
        if not held:
            raise lease.cancelled or lease.lost()

    def share(self, *limits: SharedLimit, seconds: float = 30.0) -> AbstractAsyncContextManager[None]:
        """Share *limits* with all workers that do the same, for a block; the runs that use them belong within it.

        Within the block the limits hold what this worker's calls need, leased from the database. What a worker held
        that has died is free when *seconds* are over; of a rate it counts as used then. One task asks for all limits
        of the block, so limits that one call takes together belong into one block. Limits that are in use with other
        numbers by other workers are refused; when none uses them any more, they take the numbers of the next one.

        While the database is away, what this worker holds may be used until its lease ends, and nothing else starts:
        the calls wait. A warning says so.

        Args:
            limits: Each a `SharedRate`, `SharedTokenRate` or `SharedCapacity`. An object is shared by one block at a
                time; objects of the same name in several blocks, event loops and processes are one limit.
            seconds: How long the lease of this worker lasts after each renewal, at each third of it.

        Cancellation: what the worker holds is given back. Where the database is away, that takes up to the store's
            `timeout`. The runs that use the limits belong to the cancelled block; a call of another one waits until
            the limit is shared again, or its run is cancelled.

        Raises:
            UserError: a limit has other numbers in other workers (named are both), at the beginning or, if it came to
                that while this one's lease had passed, later: the block is cancelled then. Or the block has ended
                while calls wait for a limit: they would never be admitted. Or an argument is wrong.
            JournalError: the database refuses or can't be reached when the block begins.

        Example:
            from agentloop import RunConfig, Runner
            from agentloop.postgres import PostgresStore, SharedRate, SharedTokenRate

            account = [SharedRate(60, 60, "requests"), SharedTokenRate(100_000, 60, "tokens")]

            async def work(agent, question):  # needs a server
                async with PostgresStore("postgresql://localhost/shop") as store, store.share(*account):
                    return await Runner.run(agent, question, run_config=RunConfig(model_limits=account))
        """
        check_seconds("seconds", seconds)
        return sharing(limits, asking(self._ask), seconds, read_clock)

    # ------------------------------------------------------------------------------------------ runs for `serve`

    async def submit(
        self, run_id: str, agent: str, input: str | Iterable[Item], *, owner: str = "", priority: int = 0
    ) -> bool:
        """Give a run to the workers that `serve` the agent. Returns once it is in the database, not when it has begun.

        May be repeated, by an id that your application chooses: an order's number, say. True if the run is in the queue
        now, False if it was submitted before; then nothing is changed, also if the run is over. A run that was begun
        without `serve`, or that waits for its verdicts, is continued from where it is, and *input* isn't used.

        Args:
            run_id: The run.
            agent: The name of the agent that begins it.
            input: Text or items. It is stored as it is, so no message in it may be `secret`.
            owner: Whose run it is, such as a customer's name: each owner gets a fair share of the workers.
            priority: From -1000 to 1000. Runs of a higher number come first, of all owners.

        Raises:
            RunCancelled: the run wasn't submitted before, and was cancelled by `cancel`. `retry` takes that back.
            StateError: the run wasn't submitted before, and has completed.
            UserError: an argument is wrong.
            JournalError: the database refuses or can't be reached. Whether the run is in the queue isn't known:
                submit it again.

        Example:
            import anyio
            from agentloop.postgres import PostgresStore

            async def main():
                async with PostgresStore("postgresql://localhost/shop") as store:
                    await store.submit("order-7", "clerk", "Refund order 7.", owner="acme")

            # anyio.run(main)  # needs a server
        """
        check_id("run_id", run_id)
        check_id("agent", agent)
        check("owner", NAMES.plain_text(), owner)
        check("priority", NAMES.count(-_MOST_PRIORITY), priority)
        at_most = fits(lambda given: given <= _MOST_PRIORITY)
        check("priority", NAMES.needs(f"expected at most {_MOST_PRIORITY}", at_most, error=UserValueError), priority)
        items = to_items(input)
        if any(getattr(item, "secret", False) for item in items):
            raise UserValueError("input: a secret item would be stored readably: begin the run with a sealed journal")
        given = {"run_id": run_id, "agent": agent, "owner": owner, "priority": priority}
        given["input"] = f"[{','.join(write_items('input', items))}]"
        return await self._ask(lambda db: queue.submit_run(db, given), again=True)

    # ------------------------------------------------------------------------------------------ the operator's side

    async def runs(
        self,
        *,
        status: StoredStatus | Collection[StoredStatus] | None = None,
        agent: str | None = None,
        older_than: float | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> list[StoredRun]:
        """Return the runs of the database by their rows, the one that has had its status for the longest time in front.

        Each has a row, which the append that changes it has written. No journal is read, so ten thousand runs take a
        twentieth of a second. Runs that an earlier version of the library has written are listed after `migrate`.

        Args:
            status: Only runs of this status, or of one of these.
            agent: Only runs that are in the agent of this name.
            older_than: Only runs that came to their status more than so many seconds ago.
            limit: The most runs to return; None for all.
            after: Only runs that come after the one of this `StoredRun.cursor`: that of the last run gives the next
                page. A page reads its own rows, however many are before it. A run that comes to another status between
                two pages has a later place from then on, so it may be on both.

        Raises:
            UserError: an argument is wrong.
            JournalError: the database refuses or can't be reached.
        """
        return await self._list(_check_statuses(status), agent, older_than, limit, after, waiting=False)

    async def waiting(
        self,
        *,
        agent: str | None = None,
        older_than: float | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> list[StoredRun]:
        """Return the runs with calls that wait for a verdict or an answer, which `StoredRun.waiting` names.

        The row has no arguments: `PostgresJournal(store, run.run_id).interruptions()` has, and decides. Otherwise as
        `runs`.
        """
        return await self._list(["interrupted"], agent, older_than, limit, after, waiting=True)

    async def find(self, run_id: str) -> StoredRun | None:
        """Return the row of one run; None if the database has no such run, or it hasn't begun.

        Raises:
            UserError, JournalError: as for `runs`.
        """
        check_id("run_id", run_id)
        found = await self._ask(lambda db: operating.select_runs(db, None, run_id=run_id), again=True)
        return found[0] if found else None

    async def cancel(self, run_id: str, *, by: str | None = None) -> bool:
        """Cancel a run: no worker may take it from now on, and the one that has it stops.

        True if no worker has it, so that it is cancelled now. False if one has: it learns of it when it renews its
        lease, in a third of the lease's `seconds` at most. It cancels the block of the lease, which raises
        `RunCancelled`, and the run ends as one that was cancelled. If that worker has died, its lease passes first.

        Verdicts and input are refused from then on, by `RunCancelled`. `retry` takes it back. It needs no key, and
        writes nothing to the journal. May be repeated.

        Raises:
            StateError: there is no such run, or it has completed or failed.
            UserError, JournalError: as for `runs`.
        """
        check_id("run_id", run_id)
        check("by", optional(NAMES.plain_words()), by)
        return await self._ask(lambda db: operating.cancel_run(db, run_id, by))

    async def retry(self, run_id: str, *, key: bytes | None = None, older_seals: bool = False) -> None:
        """Let workers continue a run that has failed, was cancelled, or is dead.

        Those of `serve` take it if it was submitted; otherwise give your queue a job for it.

        The end of a failed run is taken out of its journal, so the run continues as after a crash before that end: it
        asks the model again if the model had failed. What the log has isn't done again: a call that has failed and
        ends the run for it will end it again (fork the run in front of it), and a call in doubt is judged by the tool.

        Args:
            run_id: The run.
            key: The key that the journal is sealed with; it changes the journal's end.
            older_seals: As for `PostgresJournal`.

        Raises:
            StateError: there is no such run; or it needs no retry, because any worker can resume it, or it completed.
            LeaseHeld: a worker has it.
            UserError, JournalError: as for `runs`; or the journal is damaged, or sealed with another key.
        """
        seal = Seal(key, (SEALED_AS, check_id("run_id", run_id)), older_seals=older_seals)
        await self._ask(lambda db: operating.retry_run(db, run_id, seal))

    async def delete(self, run_id: str) -> None:
        """Delete a run: its journal and its row. Sessions stay.

        Raises:
            StateError: there is no such run.
            LeaseHeld: a worker has it: cancel it first.
            UserError, JournalError: as for `runs`.
        """
        check_id("run_id", run_id)
        await self._ask(lambda db: operating.delete_run(db, run_id))

    async def delete_older(
        self, older_than: float, *, status: StoredStatus | Collection[StoredStatus] | None = None, batch: int = _BATCH
    ) -> int:
        """Delete the runs that came to their status more than *older_than* seconds ago; return how many.

        They are deleted in batches, each in its own transaction. A batch locks only the rows of its runs, and
        leaves out those that another client has locked or that a worker has, so no worker waits for it.

        Args:
            older_than: Seconds. `30 * 86400` keeps a month.
            status: The statuses of runs to delete; those that completed, failed or were cancelled, if it isn't given.
            batch: How many runs a transaction deletes at most.

        Cancellation: a checkpoint in front of each batch; a batch that has begun completes.

        Raises:
            UserError, JournalError: as for `runs`. What was deleted before stays deleted.
        """
        check("older_than", NAMES.seconds(zero=True), older_than)
        check_count("batch", batch)
        statuses = _check_statuses(status) or list(OVER)
        total = 0
        while True:
            deleted = await self._ask(lambda db: operating.delete_batch(db, statuses, older_than, batch))
            total += deleted
            if not deleted:
                return total

    async def migrate(self, *, batch: int = _BATCH) -> int:
        """Bring the tables to this version of the library, and then the rows of all runs up to date.

        Returns how many rows it has written. Every store makes and changes the tables at its first use, if its role
        may; call this in a deploy, with a role that may, if your workers' role may not. It writes the rows of runs that
        an earlier version of the library began, and of those that a worker of an earlier version still continued after
        the tables were changed: call it again once these workers have ended. It reads each such run's journal, needs no
        key, and may be cut off and repeated.

        Args:
            batch: How many rows a statement looks at.

        Raises:
            StateError: the tables are of a later version, or the role may not change them.
            JournalError: the database refuses or can't be reached.
        """
        check_count("batch", batch)
        after: str | None = ""
        total = 0
        while after is not None:
            after, written = await self._ask(partial(operating.update_batch, after=after, most=batch))
            total += written
        return total

    async def health(self) -> StoreHealth:
        """Return how this store and its database do. An error of the database is in the answer, and not raised.

        Use it for your worker's health check, with your own limits: a worker whose `late` stays above 0 loses its runs.
        """
        return await self.connections.in_thread(self.ask_health)

    def ask_health(self) -> StoreHealth:
        """Return what `health` returns, to a caller without an event loop. Blocks as long as the timeout."""
        begun = time.monotonic()
        rows: list[tuple[str, int, float, int]] = []
        error: str | None = None
        in_use = self.connections.in_use
        try:
            with as_journal_error("the database"):
                rows = self.connections.call(operating.count_open, again=True)
        except (JournalError, StateError, UserError) as failure:
            error = str(failure)
        leases, late = self._renewals.list_late()
        return StoreHealth(
            error,
            time.monotonic() - begun,
            leases,
            late,
            in_use,
            self._most,
            {status: count for status, count, _, _ in rows},
            {status: oldest for status, _, oldest, _ in rows},
            sum(waiting for _, _, _, waiting in rows),
        )

    def count_leases(self) -> int:
        """Return how many leases this store holds. Never waits."""
        return self._renewals.list_late()[0]

    async def _list(
        self,
        statuses: list[str] | None,
        agent: str | None,
        older_than: float | None,
        limit: int | None,
        after: str | None,
        *,
        waiting: bool,
    ) -> list[StoredRun]:
        check("agent", optional(NAMES.plain_text()), agent)
        seconds = check_seconds("older_than", older_than, zero=True)
        check_count("limit", limit)
        one = statuses[0] if statuses is not None and len(statuses) == 1 else None
        some = statuses if one is None else None
        chosen: dict[str, object] = {
            "status": one,
            "statuses": some,
            "agent": agent,
            "seconds": seconds,
            "waiting": waiting or None,
            "after": None if after is None else read_cursor(after),
        }
        return await self._ask(lambda db: operating.select_runs(db, limit, **chosen), again=True)

    async def _ask(self, work: Work[ResultT], *, again: bool = False) -> ResultT:
        """Return `work(connection)`, called in a worker thread; an error of the driver is raised as a JournalError."""
        with as_journal_error("the database"):
            return await self.connections.run(work, again=again)

    # ------------------------------------------------------------------------------------------ its end

    async def aclose(self) -> None:
        """Close the connections. Does nothing the second time."""
        await self.connections.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):  # bounded by the timeout: it waits only for work in progress
            await self.aclose()


def _check_statuses(given: StoredStatus | Collection[StoredStatus] | None) -> list[str] | None:
    """Return *given* as a list; None for all.

    Raises:
        UserValueError: it isn't a status, or a collection of some.
    """
    if given is None:
        return None
    known = get_args(StoredStatus)
    statuses: list[str] = [given] if isinstance(given, str) else list(given)
    if not statuses or not is_texts(statuses) or not set(statuses) <= set(known):
        raise UserValueError(f"status: expected one of {', '.join(map(repr, known))}, or some of them, got {given!r}")
    return list(dict.fromkeys(statuses))
