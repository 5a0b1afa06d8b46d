"""The loop of a worker: it takes the runs that were submitted, and continues each to its pause or its end.

Theory. The tasks, their errors and their end are those of every loop that takes rows (`_taking`).

    take    as many due runs as there is room for (`_queue.claim`), until the call is cancelled
    begin   under the run's lease: read the journal, begin or continue the run by its agent
    settle  under the same lease: write down what becomes of the run in the queue
    drain   when the block is cancelled: each run is asked to stop behind its turn; after the grace it is cancelled

A run that was taken and hasn't begun when the loop is cancelled is given back.

What an attempt comes to:

    completed, failed for good, stopped   the run leaves the queue
    waits for a person                    it stays there, passed over until the last verdict has come
    drained                               it is due at once, for another worker
    this worker can't continue it         due at once for others, passed over here for a minute; not counted
    another error                         due after a pause that grows; dead once the attempts are used up
    the lease is lost, the run cancelled  the row says all; nothing is written

An error of a run is logged and written to its row, and ends nothing. A BaseException of a body (SystemExit) ends the
loop, as it ends `Runner.run`; the run's attempt counts.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

import anyio
import attrs
from anyio.abc import TaskGroup, TaskStatus

from agentloop._common.checks import NAMES, check, check_seconds, optional
from agentloop._common.error_text import error_summary
from agentloop._engine.runtime.callbacks import resolve
from agentloop.abc import Codec
from agentloop.agents import Agent
from agentloop.exceptions import JournalError, StateError, UserError, UserTypeError, UserValueError
from agentloop.journal._database import as_journal_error
from agentloop.postgres import _queue as queue
from agentloop.postgres._connections import Connection
from agentloop.postgres._journal import PostgresJournal
from agentloop.postgres._lease import Lease, RunCancelled, read_clock
from agentloop.postgres._queue import Claimed, ServedRun, Settled
from agentloop.postgres._run_rows import read_end
from agentloop.postgres._store import PostgresStore
from agentloop.postgres._taking import LONGEST_PAUSE, TakingLoop
from agentloop.results import RunResult
from agentloop.run import Runner
from agentloop.state import RunState

logger: logging.Logger = logging.getLogger("agentloop")

RunOptionsOf: TypeAlias = "Callable[[ServedRun], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]"
_PASSED_OVER = 60.0
"""Seconds for which a worker leaves a run to others that it can't continue."""
_GIVEN_BACK = Settled(0.0, status="queued")
_OVER = Settled(None)
_WAITS = Settled(0.0)


async def serve(  # noqa: ASYNC128 - `TakingLoop.work` calls it
    store: PostgresStore,
    agents: Agent[Any, Any] | Iterable[Agent[Any, Any]],
    *,
    concurrency: int = 10,
    options: RunOptionsOf | None = None,
    grace: float = 10.0,
    attempts: int = 5,
    lease_seconds: float = 30.0,
    poll: float = 1.0,
    signals: Collection[signal.Signals] = (),
    key: bytes | None = None,
    codec: Codec | None = None,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Continue the runs that were submitted to *store* for *agents*, until the call is cancelled.

    A worker process calls it once; as many processes as you like share the runs of one database. Each run is taken by
    one worker at a time, under a lease. A run is due from `PostgresStore.submit` on; again when the last of its
    verdicts and answers has come; and, where its worker has died, when that one's lease has passed. The worker is
    notified, and looks every *poll* seconds beside that. It takes the runs of the highest priority first, and among
    these those of the owner that has the fewest runs under way.

    A worker that can't continue a run (an agent, a tool or a key is missing, or a schema is another one) writes nothing
    and leaves it to others. Errors of a run never end the loop. A run that *attempts* workers in a row have taken
    without bringing it to a pause or its end, because they died or failed, is dead: `store.runs(status="dead")` lists
    it, and `store.retry` puts it back. A database that is away is waited for.

    As a task it has taken its first runs when `await group.start(partial(serve, store, agents))` returns.

    Args:
        store: The database.
        agents: The agents that runs are submitted for, by their names. Agents that they hand over to needn't be given.
        concurrency: How many runs this worker has at a time.
        options: Called for each run that is taken: returns the options of `Runner.run` (`context`, `session`, `hooks`,
            `run_config` …) without the journal, or an awaitable of them. An error of it counts as an attempt.
        grace: Seconds that the turns under way have when the call is cancelled.
        attempts: How many workers in a row may take a run without success, before it is dead.
        lease_seconds: How long the runs of a worker that dies wait for another one: `PostgresStore.lease` says more.
        poll: Seconds after which it looks for due runs if no notification came.
        signals: The signals at which it returns, as if it were cancelled; on the main thread only. A second one has its
            usual effect: it ends the process.
        key: Seals the journals, as for `PostgresJournal`.
        codec: Seals secrets in them.
        task_status: For `TaskGroup.start`.

    Cancellation: no further run is taken. Each run under way is asked to end behind its turn, and is cancelled when
        *grace* seconds are over. Its lease is given back, and another worker continues it at once. The call is left
        when all of them have ended.

    Raises:
        UserError: an argument is wrong.
        JournalError: the database refuses or can't be reached when it begins.
        StateError: its tables are those of a later version, or have to be made by another role.

    Example:
        import signal

        import anyio
        from agentloop import Agent
        from agentloop.postgres import PostgresStore, serve

        clerk = Agent("clerk", model="openai:gpt-5", instructions="You refund orders.")

        async def main():
            async with PostgresStore("postgresql://localhost/shop") as store:
                await serve(store, clerk, concurrency=20, signals=[signal.SIGTERM])

        # anyio.run(main)  # needs a server
    """
    check("store", NAMES.a(PostgresStore), store)
    check("concurrency", NAMES.count(), concurrency)
    check("options", optional(NAMES.function("run")), options)
    check_seconds("grace", grace, zero=True)
    check("attempts", NAMES.count(), attempts)
    check_seconds("lease_seconds", lease_seconds)
    check_seconds("poll", poll)
    worker = _RunServer(
        store=store,
        agents=_by_name(agents),
        room=concurrency,
        options=options,
        grace=grace,
        attempts=attempts,
        seconds=lease_seconds,
        poll=poll,
        signals=signals,
        open_journal=partial(PostgresJournal, store, key=key, codec=codec),
    )
    worker.open_journal("checked")  # a wrong key or codec is said before a run is taken
    await worker.work(task_status)


def _by_name(agents: object) -> dict[str, Agent[Any, Any]]:
    """Return the agents by their names.

    Raises:
        UserError: there are none, two have a name, or what is given isn't an agent.
    """
    given = [agents] if isinstance(agents, Agent) else list(agents) if isinstance(agents, Iterable) else None
    if not given or not all(isinstance(agent, Agent) for agent in given):
        raise UserTypeError(f"agents: expected an Agent, or some, got {agents!r}")
    names = [agent.name for agent in given]
    if len(set(names)) < len(names):
        raise UserValueError(f"agents: expected a name for each, got {names}")
    return dict(zip(names, given, strict=True))


@attrs.define(eq=False)
class _ServedNow:
    """A run that this worker has."""

    scope: anyio.CancelScope
    stop: Callable[[], None] | None = None
    """Asks the run to end behind its turn; None until it has begun."""
    is_asking: bool = False
    """True while `options` is asked: its errors count, of any type."""


@attrs.define(eq=False, kw_only=True)
class _RunServer(TakingLoop[Claimed]):
    """The state of one `serve`."""

    channel = queue.CHANNEL

    agents: dict[str, Agent[Any, Any]]
    options: RunOptionsOf | None
    attempts: int
    seconds: float
    signals: Collection[signal.Signals]
    open_journal: Callable[..., PostgresJournal]
    live: set[_ServedNow] = attrs.field(factory=set)
    draining: bool = False
    passed_over: dict[str, float] = attrs.field(factory=dict)
    """The runs that are left to other workers, and until when, by the clock of the event loop."""

    async def prepare(self, group: TaskGroup, taking: anyio.CancelScope) -> None:
        """Have the signals end the loop."""
        if self.signals:
            await group.start(_stop_at, self.signals, taking)

    # ------------------------------------------------------------------------------------------ taking runs

    async def claim(self) -> list[Claimed]:
        """Take as many due runs as there is room for.

        Raises:
            JournalError: the database refuses or can't be reached.
        """
        room = self.room - len(self.live)
        if room <= 0:
            return []
        now = anyio.current_time()
        self.passed_over = {run_id: until for run_id, until in self.passed_over.items() if until > now}
        due = queue.due_of(self.agents, self.passed_over)
        holder = self.store._new_holder()
        given = {**due, "room": room, "holder": holder, "seconds": self.seconds, **self.store._named}
        asked: list[float] = []

        def take(connection: Connection) -> tuple[list[str], list[Any], float]:
            asked.append(read_clock())
            if len(asked) > 1 and (known := queue.find_claimed(connection, holder)):  # an earlier answer was lost
                return [], known, asked[0]
            dead = queue.bury(connection, {**due, "most": self.attempts})
            return dead, queue.claim(connection, given), asked[-1]

        with as_journal_error("the queue"):
            dead, rows, begun = await self.store.connections.run(take, again=True)
        for run_id in dead:
            logger.error("run %r is dead: %d workers in a row have taken it in vain", run_id, self.attempts)
        return [self.read_row(holder, row, begun) for row in rows]

    def read_row(self, holder: str, row: Any, begun: float) -> Claimed:
        """Return the run of a row of `_queue.claim`, with its lease, which was asked for at the time *begun*."""
        run_id, agent, owner, priority, attempt, given, epoch, taken_over = row
        lease = self.store._new_lease(run_id, holder, self.seconds)
        lease.adopt(epoch, begun)
        self.store.connections.counts.add("leases")
        self.store.connections.counts.add("take_overs", taken_over)
        return Claimed(ServedRun(run_id, agent, owner, priority, attempt, lease), given)

    def begin(self, group: TaskGroup, taking: anyio.CancelScope, taken: Iterable[Claimed]) -> None:
        """Start a task for each run."""
        for one in taken:
            live = _ServedNow(anyio.CancelScope(shield=True))
            self.live.add(live)
            group.start_soon(self.serve_one, live, one, taking, name=f"agentloop run {one.run.run_id}")

    def drain(self) -> None:
        """Ask each run to end behind its turn, and have it cancelled when the grace is over."""
        self.draining = True
        for live in self.live:
            live.scope.deadline = anyio.current_time() + self.grace
            if live.stop is not None:
                live.stop()

    def note_absence(self, pause: float, error: JournalError) -> None:
        """Log it."""
        logger.warning("a worker can't take runs, and tries again in %.1f s: %s", pause, error_summary(error))

    # ------------------------------------------------------------------------------------------ one run

    async def serve_one(self, live: _ServedNow, claimed: Claimed, taking: anyio.CancelScope) -> None:
        """Continue one run under its lease, and write down what becomes of it. No error leaves this."""
        run = claimed.run
        settled, written = _GIVEN_BACK, False
        try:
            with live.scope:
                async with self.store._hold(run.lease):
                    try:
                        settled = await self.attempt(live, claimed)
                    except anyio.get_cancelled_exc_class():
                        with anyio.CancelScope(shield=True):  # bounded by the store's timeout
                            settled = await self.judge_cut(run.lease)
                        raise
                    except BaseException as error:
                        settled = self.judge(live, run, error)
                        raise
                    finally:
                        with anyio.CancelScope(shield=True):  # bounded by the store's timeout
                            written = await self.settle(run.lease, settled)
        except anyio.get_cancelled_exc_class():
            raise
        except (JournalError, RunCancelled) as error:  # the lease is lost, or the journal can't be read
            logger.warning("run %r is left: %s", run.run_id, error_summary(error))
        except BaseException as error:  # noqa: ASYNC103 - raised once all runs have ended
            self.fatal = self.fatal or error
            taking.cancel()
        finally:
            self.live.discard(live)
            self.look()
        if written and settled.after == 0.0 and settled.status == "queued":  # its lease is given back by now
            with anyio.CancelScope(shield=True):  # bounded by the store's timeout; a loop that ends tells them, too
                await self.tell_others()

    async def attempt(self, live: _ServedNow, claimed: Claimed) -> Settled:
        """Begin or continue the run, and return what becomes of it.

        Raises:
            JournalError: the database can't be read.
        """
        run = claimed.run
        try:
            return await self.go_on(live, claimed)
        except Exception as error:
            logger.warning("run %r has failed in attempt %d: %s", run.run_id, run.attempt, error_summary(error))
            return _find_end(await self.open_journal(run.lease).read()) or self.judge(live, run, error)

    async def go_on(self, live: _ServedNow, claimed: Claimed) -> Settled:
        """Do what `attempt` does; an error of the run, or of what it needs, is raised."""
        run, agent = claimed.run, self.agents[claimed.run.agent]
        journal = self.open_journal(run.lease)
        state = await RunState._find_in(agent, journal)
        if state is not None and state._is_over:
            # Its worker died before it had written so into the queue.
            return Settled(None, status=state.status)
        live.is_asking = True
        options = {} if self.options is None else await resolve(self.options(run))
        live.is_asking = False
        given: Any = claimed.read_input() if state is None else state
        if self.draining:
            return _GIVEN_BACK
        stream = Runner.run_streamed(agent, given, journal=journal, **options)
        live.stop = partial(stream.cancel, "after_turn")
        async with stream:
            async for _ in stream:
                pass
        return self.settled_of(stream.result)

    def settled_of(self, result: RunResult[Any]) -> Settled:
        """Return what becomes of a run that has ended so."""
        if result.status == "interrupted":
            return _WAITS
        return _GIVEN_BACK if result.status == "cancelled" and self.draining else _OVER

    def judge(self, live: _ServedNow, run: ServedRun, error: BaseException) -> Settled:
        """Return what becomes of a run that isn't over, and whose attempt has raised *error*."""
        if isinstance(error, StateError | UserError) and not live.is_asking:
            self.passed_over[run.run_id] = anyio.current_time() + _PASSED_OVER
            return Settled(0.0, run.attempt - 1, "queued", error_summary(error))
        trouble = type(error).__name__
        if run.attempt >= self.attempts:
            return Settled(None, None, "dead", trouble)
        return Settled(min(self.poll * 2**run.attempt, LONGEST_PAUSE), None, "queued", trouble)

    async def judge_cut(self, lease: Lease) -> Settled:
        """Return what becomes of a run that was cancelled, which may have ended before the cancellation reached it."""
        if lease.held and lease.cancelled is None:
            try:
                return _find_end(await self.open_journal(lease).read()) or _GIVEN_BACK
            except JournalError as error:  # the next worker finds the end
                logger.warning("run %r: its journal can't be read: %s", lease.run_id, error_summary(error))
        return _GIVEN_BACK

    async def settle(self, lease: Lease, settled: Settled) -> bool:
        """Write down what becomes of the run, if its lease is held; tell whether that is done.

        Where it fails, the lease's end does the same.
        """
        if lease.held and lease.cancelled is None:
            try:
                with as_journal_error("the queue"):
                    work = partial(queue.settle, lease=lease, settled=settled)
                    await self.store.connections.run(work, again=True, wait=lease.remaining)
                return True
            except JournalError as error:
                logger.warning("run %r: what has become of it isn't written: %s", lease.run_id, error_summary(error))
        return False

    async def tell_others(self) -> None:
        """Notify the workers; they poll, too."""
        try:
            with as_journal_error("the queue"):
                await self.store.connections.run(queue.notify, wait=0.0)
        except JournalError:
            return


def _find_end(lines: list[bytes]) -> Settled | None:
    """Return what becomes of a run that has completed, or failed for good; None if its journal has no such end.

    The row may say something else: a worker that couldn't read the journal has given the run back.
    """
    end = read_end(lines)
    if end is None or not (end.status == "completed" or (end.status == "failed" and not end.resumable)):
        return None
    return Settled(None, status=end.status)


async def _stop_at(
    signals: Collection[signal.Signals], taking: anyio.CancelScope, *, task_status: TaskStatus[None]
) -> None:
    """Cancel *taking* at the first of *signals*. The next one has its usual effect."""
    with anyio.open_signal_receiver(*signals) as received:
        task_status.started()
        async for _ in received:
            taking.cancel()
            return
