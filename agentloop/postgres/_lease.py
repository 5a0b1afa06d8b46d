"""Leases: the right of one worker to continue one run, for a time.

A lease is a row: the run's epoch, which grows with every holder, and the time at which the lease ends, by the
database's clock. A worker that appends proves in the same statement that the epoch is still its own and the time isn't
over (`FENCE`). A worker that takes a run over has to wait until the time is over, and raises the epoch. Both lock the
row, so one comes before the other.

The worker counts the time as well, from before each renewal was sent, so its own end is never later than the
database's. That closes the gap behind an append: a worker that was stopped after it, and wakes when the lease has
passed, finds out without a question (`Lease.check`).
"""

from __future__ import annotations

import sys
import time
from typing import Any

from agentloop.exceptions import AgentLoopError, JournalError
from agentloop.journal._database import as_journal_error, import_driver
from agentloop.postgres._connections import Connection, Connections

IS_CANCELLED = "(held.cancelled_at IS NOT NULL AND coalesce(held.status, '') NOT IN ('completed', 'failed'))"
"""Of a row `held`: `PostgresStore.cancel` has marked its run, which wasn't over by then."""
_END = "clock_timestamp() + %(seconds)s * interval '1 second'"
# A holder that asks twice, since the first answer was lost, gets the run again. `earlier` sees the row as it was.
_TAKE = f"""
INSERT INTO agentloop_leases AS held (run_id, epoch, holder, ends_at, worker, application)
VALUES (%(run_id)s, 1, %(holder)s, {_END}, %(worker)s, %(application)s)
ON CONFLICT (run_id) DO UPDATE SET epoch = held.epoch + 1, holder = excluded.holder, ends_at = {_END},
    worker = excluded.worker, application = excluded.application
WHERE (held.ends_at IS NULL OR held.ends_at <= clock_timestamp() OR held.holder = excluded.holder)
    AND NOT {IS_CANCELLED}
RETURNING epoch, (SELECT earlier.holder FROM agentloop_leases AS earlier WHERE earlier.run_id = held.run_id)
"""
_OTHER = f"""
SELECT greatest(extract(epoch FROM ends_at - clock_timestamp()), 0)::float8, {IS_CANCELLED}, cancelled_by
FROM agentloop_leases AS held WHERE run_id = %(run_id)s
"""
# A worker that died can't say that its run was cancelled: the next one that asks for it does.
_NOTE_CANCELLED = """
UPDATE agentloop_leases SET status = 'cancelled', since = clock_timestamp(), waiting = NULL
WHERE run_id = %(run_id)s AND status IS DISTINCT FROM 'cancelled' AND cancelled_at IS NOT NULL
    AND (ends_at IS NULL OR ends_at <= clock_timestamp())
"""
_RELEASE = """
UPDATE agentloop_leases SET ends_at = NULL, holder = NULL, is_taken = NULL
WHERE run_id = %(run_id)s AND epoch = %(epoch)s AND holder = %(holder)s
"""
# Two steps: a condition beside `FOR UPDATE` is judged before the row's lock is waited for, and again only if the row
# has changed by then. Time that passes changes no row. The holder is asked for, too: the epochs of a run that was
# deleted, and then begun again, count from one.
FENCE = """
WITH held AS MATERIALIZED (
    SELECT ends_at FROM agentloop_leases WHERE run_id = %(run_id)s AND epoch = %(epoch)s AND holder = %(holder)s
    FOR UPDATE
)
SELECT 1 FROM held WHERE ends_at > clock_timestamp()
"""
"""Returns a row, locked until the transaction ends, if the lease is still held once the row is locked."""

if sys.platform == "linux":

    def read_clock() -> float:
        """Return the seconds since the machine started. A machine that sleeps continues to count."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # pragma: no cover - another platform than that of the tests
    read_clock = time.monotonic


class LeaseLost(JournalError):
    """The lease of a run has passed, or another worker has taken the run over. Nothing was appended."""


class LeaseHeld(JournalError):
    """Another worker holds the run. `seconds` is the time until its lease ends, unless it is renewed."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class RunCancelled(AgentLoopError):
    """The run was cancelled by `PostgresStore.cancel`: no worker may continue it until `retry` allows it again.

    It isn't a `JournalError`, so that a queue which tries these again gives the run up.
    """


class Lease:
    """The right to continue one run. Made by `PostgresStore.lease`; safe to read from any thread.

    Attributes:
        run_id: The run.
        epoch: The number of times that the run was taken over, this one included.
        seconds: How long the lease lasts after each renewal.
    """

    def __init__(
        self,
        connections: Connections,
        run_id: str,
        holder: str,
        seconds: float,
        *,
        worker: str | None = None,
        application: str | None = None,
    ) -> None:
        self.run_id = run_id
        self.epoch: int = 0
        self.seconds = seconds
        self._connections = connections
        self._holder = holder
        self._named = {"worker": worker, "application": application}
        self._cancelled: str | None = None
        self._until = 0.0
        self._lost: str | None = "it was never taken"

    def __repr__(self) -> str:
        return f"<Lease of {self.run_id!r}, epoch {self.epoch}, {'held' if self.held else 'lost'}>"

    @property
    def held(self) -> bool:
        """True until the lease has passed or was given back. No question to the database; never true for too long."""
        return self.remaining > 0.0

    @property
    def remaining(self) -> float:
        """The seconds until the lease passes unless it is renewed; 0 if it is lost."""
        return max(self._until - read_clock(), 0.0) if self._lost is None else 0.0

    @property
    def fence(self) -> dict[str, Any]:
        """The parameters of `FENCE`."""
        return {"run_id": self.run_id, "epoch": self.epoch, "holder": self._holder}

    def check(self) -> None:
        """Return if the lease is still held. Never waits.

        Raises:
            LeaseLost: if it has passed.
        """
        if not self.held:
            raise self.lost()

    def lose(self) -> LeaseLost:
        """Note that the database says the lease is held no more. Return the error."""
        if self._lost is None:
            self._lost = "another worker has taken it over, or its lease has passed"
            self._connections.counts.add("leases_lost")
        return self.lost()

    def lost(self) -> LeaseLost:
        """Return the error of a lease that is held no more."""
        return LeaseLost(f"run {self.run_id!r}, epoch {self.epoch}: {self._lost or 'its lease has passed'}")

    @property
    def cancelled(self) -> RunCancelled | None:
        """The error for a run that was cancelled while this worker has it; None if it wasn't."""
        return None if self._cancelled is None else describe_cancelled(self.run_id, self._cancelled)

    # ------------------------------------------------------------------------------------------ the holder's side

    async def take(self) -> None:
        """Take the run over.

        Raises:
            LeaseHeld: if another worker holds it.
            RunCancelled: if it was cancelled.
            JournalError: if the database refuses or can't be reached.
        """
        parameters = {"run_id": self.run_id, "holder": self._holder, "seconds": self.seconds, **self._named}

        def take(connection: Connection) -> tuple[int, float]:
            begun = read_clock()
            row = connection.execute(_TAKE, parameters).fetchone()
            if row is not None:
                self._connections.counts.add("leases")
                self._connections.counts.add("take_overs", row[1] not in (None, self._holder))
                return row[0], begun
            seconds, cancelled, by = connection.execute(_OTHER, parameters).fetchone() or (None, False, None)
            if cancelled:
                connection.execute(_NOTE_CANCELLED, parameters)
                raise describe_cancelled(self.run_id, by or "")
            left = seconds or 0.0
            raise LeaseHeld(f"run {self.run_id!r}: another worker holds it, for {left:.1f} s more", left)

        with as_journal_error(f"run {self.run_id!r}"):
            epoch, begun = await self._connections.run(take, again=True)
        self.adopt(epoch, begun)

    def adopt(self, epoch: int, begun: float) -> None:
        """Note that the database has given this holder the run, by a statement that was sent at the time *begun*."""
        self.epoch = epoch
        self.extend(begun)
        self._lost = None

    @property
    def renewed_at(self) -> float:
        """The time, by `read_clock`, at which the latest take or renewal that was answered was sent."""
        return self._until - self.seconds

    def extend(self, begun: float) -> None:
        """Note that the database has renewed the lease, by a statement that was sent at the time *begun*."""
        self._until = begun + self.seconds

    def expire(self) -> None:
        """Note that the lease has passed, if it isn't lost already."""
        if self._lost is None:
            self._lost = "its lease has passed"
            self._connections.counts.add("leases_lost")

    def cancel(self, by: str) -> None:
        """Note that the run was cancelled, by the one named *by*; the lease is still held."""
        self._cancelled = by

    async def give_back(self) -> None:
        """End the lease now, so that another worker needn't wait for its end. An error is of no consequence."""
        self._lost = self._lost or "it was given back"
        try:
            await self._connections.run(lambda connection: connection.execute(_RELEASE, self.fence), wait=0.0)
        except import_driver().Error:
            return  # it passes by itself


def describe_cancelled(run_id: str, by: str) -> RunCancelled:
    """Return the error for a run that the one named *by* has cancelled; an empty text if no one was named."""
    return RunCancelled(f"run {run_id!r} was cancelled{f' by {by}' if by else ''}")
