"""Renewals of leases: those that the tasks of one event loop hold, in one statement.

Each lease has a task that keeps it (`Renewals.keep`), which ends with the lease's block. There is no task of the store,
since it would need an owner. The first task whose lease has to be renewed renews the others with it; the others find
that theirs is under way, and wait for the answer. If the task that does it is cancelled before the statement is sent,
it wakes them, and the next one does it.

A lease is renewed with others once half of its interval has passed. So the leases of one length are renewed together
after two rounds, however their beginnings were spread, and a short lease doesn't renew the long ones each time.

A renewal that fails is tried again after a short pause, until the lease has passed. Rows that another client has locked
(an append of this worker, an operator's open transaction) are left out and tried again as well: a locked row costs no
other lease. The statement has its own time, so that a table that is locked leaves time for another attempt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import anyio
import attrs
from anyio.lowlevel import current_token

from agentloop.journal._database import import_driver
from agentloop.postgres._connections import Connection, Connections
from agentloop.postgres._lease import Lease, read_clock

_RENEW = """
WITH wanted AS MATERIALIZED (
    SELECT * FROM unnest(%(run_ids)s::text[], %(epochs)s::bigint[], %(holders)s::text[], %(seconds)s::float8[])
    AS asked(run_id, epoch, holder, seconds)
), ours AS MATERIALIZED (
    SELECT held.run_id, wanted.seconds FROM wanted
    JOIN agentloop_leases AS held USING (run_id, epoch, holder)
    WHERE held.ends_at > clock_timestamp() FOR UPDATE OF held SKIP LOCKED
), renewed AS (
    UPDATE agentloop_leases AS held SET ends_at = clock_timestamp() + ours.seconds * interval '1 second'
    FROM ours WHERE held.run_id = ours.run_id RETURNING held.run_id
)
SELECT wanted.run_id, wanted.epoch, renewed.run_id IS NOT NULL,
    CASE WHEN held.cancelled_at IS NOT NULL THEN coalesce(held.cancelled_by, '') END
FROM wanted JOIN agentloop_leases AS held USING (run_id, epoch, holder) LEFT JOIN renewed USING (run_id)
WHERE renewed.run_id IS NOT NULL OR held.ends_at > clock_timestamp()
"""
"""Returns run and epoch of each lease that is still held, whether it is renewed (another one's row is locked), and who
has cancelled its run: NULL if it wasn't cancelled."""

_LIMIT = "SELECT set_config('statement_timeout', %(limit)s, false)"
_PAUSE = 1.0
"""Seconds between a renewal that failed and the next attempt; less for a lease of less than six."""


@attrs.define(eq=False)
class _Kept:
    """A lease that a task keeps."""

    lease: Lease
    due_at: float = attrs.field(init=False)
    """The time of the next renewal, by the clock of leases."""
    is_asked: bool = False
    """True while a statement that renews it is under way."""
    answered: anyio.Event = attrs.field(factory=anyio.Event)
    """Set when the next such statement is over, done or not. Then it is replaced."""

    def __attrs_post_init__(self) -> None:
        self.due_at = self.lease.renewed_at + self.interval

    @property
    def interval(self) -> float:
        return self.lease.seconds / 3

    def note(self, begun: float, answer: bool | None) -> None:
        """Note the *answer* to a renewal that was sent at *begun*: True done, False lost, None unknown or locked."""
        if answer is None:
            self.due_at = read_clock() + min(_PAUSE, self.interval / 2)
        elif answer:
            self.lease.extend(begun)
            self.due_at = begun + self.interval
        else:
            self.lease.lose()

    def answer(self) -> None:
        self.is_asked = False
        answered, self.answered = self.answered, anyio.Event()
        answered.set()


class Renewals:
    """Renews the leases of one store. Safe to use from several event loops."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._kept: dict[Any, dict[_Kept, None]] = {}
        """By event loop, each touched by its own loop only."""

    def list_late(self) -> tuple[int, int]:
        """Return how many leases are kept, and how many of them should have been renewed a second ago."""
        kept = [one for ours in list(self._kept.values()) for one in list(ours)]
        return len(kept), sum(one.due_at + _PAUSE < read_clock() for one in kept)

    async def keep(self, lease: Lease, scope: anyio.CancelScope) -> None:
        """Renew *lease* until it is lost, or its run was cancelled; then cancel *scope*.

        Of a run that was cancelled the lease isn't renewed again: what its block has left to do has the time of the
        renewal that told of it.
        """
        loop = current_token().native_token
        ours = self._kept.setdefault(loop, {})
        kept = _Kept(lease)
        ours[kept] = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._renew, kept, ours)
                while lease.held and lease.cancelled is None:
                    with anyio.move_on_after(lease.remaining):
                        await kept.answered.wait()
                if not lease.held:
                    lease.expire()
                scope.cancel()
                group.cancel_scope.cancel()
        finally:
            del ours[kept]
            if not ours:
                self._kept.pop(loop, None)

    async def _renew(self, kept: _Kept, ours: dict[_Kept, None]) -> None:
        """Renew the lease at each third of its time, or see that another task does, until it is lost."""
        while kept.lease.held:
            if kept.is_asked:
                await kept.answered.wait()
            elif (left := kept.due_at - read_clock()) > 0.0:
                await anyio.sleep(left)
            else:
                await self._renew_together(ours)

    async def _renew_together(self, ours: dict[_Kept, None]) -> None:
        """Renew the leases that have to be renewed soon, in one statement. An error leaves them as they are."""
        soon = read_clock()
        batch = [one for one in ours if not one.is_asked and one.lease.held and one.due_at - one.interval / 2 <= soon]
        for one in batch:
            one.is_asked = True
        begun = math.nan
        limit = min([self._connections.timeout, *(one.interval / 2 for one in batch)])

        def renew(connection: Connection) -> dict[tuple[str, int], bool]:
            nonlocal begun
            begun = read_clock()
            return _renew(connection, [one.lease for one in batch], limit, self._connections.timeout)

        held: dict[tuple[str, int], bool] | None = None
        try:
            held = await self._connections.run(renew, again=True, wait=0.0)
        except import_driver().Error:
            pass  # the server may come back in time
        finally:
            for one in batch:
                one.answer()
        for one in batch:
            key = one.lease.run_id, one.lease.epoch
            unknown = held is None or held.get(key) is False
            one.note(begun, None if unknown or held is None else key in held)


def _renew(connection: Connection, leases: Sequence[Lease], limit: float, usual: float) -> dict[tuple[str, int], bool]:
    """Renew *leases* within *limit* seconds. Return those that are held; True where the lease is renewed."""
    given = {
        "run_ids": [lease.run_id for lease in leases],
        "epochs": [lease.epoch for lease in leases],
        "holders": [lease.fence["holder"] for lease in leases],
        "seconds": [lease.seconds for lease in leases],
    }
    connection.execute(_LIMIT, {"limit": str(max(1, round(limit * 1000)))})
    try:
        rows = connection.execute(_RENEW, given).fetchall()
    finally:
        if not connection.closed:
            connection.execute(_LIMIT, {"limit": str(round(usual * 1000))})
    for run_id, epoch, _, cancelled_by in rows:
        if cancelled_by is not None:
            next(one for one in leases if (one.run_id, one.epoch) == (run_id, epoch)).cancel(cancelled_by)
    return {(run_id, epoch): renewed for run_id, epoch, renewed, _ in rows}
