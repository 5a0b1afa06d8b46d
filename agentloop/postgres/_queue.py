"""The runs that wait for a worker of `serve`: what puts them there, which comes next, and what becomes of them.

A run is in the queue while its row has `due_at`, the time from which a worker may take it. A worker takes it by its
lease, in the same statement that chooses it, so a run that is taken is one that is held: there is no second truth about
who works on it, and the run of a worker that died is there again when its lease has passed. It leaves the queue when it
is over, stopped, cancelled or dead. A run that waits for a person stays in it, and is passed over until its last
verdict has come (`waiting` is NULL then).

Which comes next: the highest priority; of these the run of the owner that has the fewest runs under way, counting those
that this statement has chosen before it; of these that of the owner from whom none was taken for the longest time; and
of one owner's runs the one that is due for the longest time. An owner with ten thousand runs costs as much as one with
ten: of each owner's runs for each agent, only the first ones are looked at.

`attempts` counts the leases in a row after which the run hadn't come to a pause or its end. Where it has reached what
the workers allow, the run is dead: it is listed, and no worker takes it until `PostgresStore.retry`.

Decisions:

The queue is columns of the run's row, not a table. Rejected: jobs that name runs, of any queue. Each of them may be
lost or come twice, and needs an answer to what it means when its run is held, over or deleted. Here an entry without a
run, or two entries for one, can't be written down. So it can't hold anything but runs, either, and isn't meant to:
schedules, pipelines and other work are for the queue that you have.

A notification (`NOTIFY`) says only that it is worth looking; the poll would find the run as well. So one that is lost
costs a second, and the names of runs don't leave the tables.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from agentloop._common.values import Value
from agentloop._storage.item_codec import item_from_json
from agentloop.exceptions import StateError
from agentloop.items import Item
from agentloop.postgres._connections import Connection
from agentloop.postgres._lease import FENCE, IS_CANCELLED, Lease, describe_cancelled
from agentloop.postgres._run_rows import StoredStatus

CHANNEL = "agentloop_runs"
_NOTIFY = f"SELECT pg_notify('{CHANNEL}', '')"
_SUBMIT = f"""
INSERT INTO agentloop_leases AS held (run_id, status, agent, since, began_at, served_as, owner, priority, due_at,
    attempts, input)
VALUES (%(run_id)s, 'queued', %(agent)s, clock_timestamp(), clock_timestamp(), %(agent)s, %(owner)s, %(priority)s,
    clock_timestamp(), 0, %(input)s)
ON CONFLICT (run_id) DO UPDATE SET served_as = excluded.served_as, owner = excluded.owner, priority = excluded.priority,
    due_at = excluded.due_at, attempts = 0, status = coalesce(held.status, 'queued'),
    agent = coalesce(held.agent, excluded.agent), since = coalesce(held.since, excluded.since),
    began_at = coalesce(held.began_at, excluded.began_at), input = excluded.input
WHERE held.served_as IS NULL AND held.status IS DISTINCT FROM 'completed' AND NOT {IS_CANCELLED}
"""
"""Changes nothing if the run was submitted before, or is over. One that was begun otherwise is put into the queue as it
is. The row is locked in any case."""
_OVER = f"""
SELECT {IS_CANCELLED}, coalesce(cancelled_by, '') FROM agentloop_leases AS held
WHERE run_id = %(run_id)s AND served_as IS NULL
"""
_IN_QUEUE = "due_at IS NOT NULL AND waiting IS NULL"
_DUE = f"""
held.due_at <= clock_timestamp() AND held.waiting IS NULL
    AND (held.ends_at IS NULL OR held.ends_at <= clock_timestamp())
    AND NOT {IS_CANCELLED} AND held.served_as = ANY (%(agents)s::text[])
    AND held.run_id <> ALL (%(passed_over)s::text[])
"""
_BURY = f"""
UPDATE agentloop_leases SET status = 'dead', since = clock_timestamp(), due_at = NULL, is_taken = NULL
WHERE run_id IN (
    SELECT run_id FROM agentloop_leases AS held
    WHERE attempts > 0 AND attempts >= %(most)s AND status IS DISTINCT FROM 'completed' AND {_DUE}
    FOR UPDATE SKIP LOCKED
)
RETURNING run_id
"""
"""A run whose last worker has completed it, and died before the queue knew, is taken once more: that finds its end."""
# No worker takes a cancelled run, so that of a worker that died would be listed as running.
_NOTE_CANCELLED = f"""
UPDATE agentloop_leases SET status = 'cancelled', since = clock_timestamp(), waiting = NULL, is_taken = NULL
WHERE run_id IN (
    SELECT run_id FROM agentloop_leases AS held
    WHERE is_taken AND ends_at <= clock_timestamp() AND {IS_CANCELLED} FOR UPDATE SKIP LOCKED
)
"""
# `LIMIT` is above the locks, so a row that another worker is taking costs this one nothing. What a row had become
# by the time it is locked is judged again.
_CLAIM = f"""
WITH RECURSIVE queues(served_as, owner) AS (
    (SELECT served_as, owner FROM agentloop_leases WHERE {_IN_QUEUE} ORDER BY served_as, owner LIMIT 1)
    UNION ALL
    SELECT later.served_as, later.owner FROM queues CROSS JOIN LATERAL (
        SELECT served_as, owner FROM agentloop_leases
        WHERE {_IN_QUEUE} AND (served_as, owner) > (queues.served_as, queues.owner)
        ORDER BY served_as, owner LIMIT 1
    ) AS later
), busy AS (
    SELECT owner, count(*) AS runs FROM agentloop_leases
    WHERE is_taken AND ends_at > clock_timestamp() GROUP BY owner
), ranked AS (
    SELECT owned.run_id, owned.priority, owned.due_at, latest.taken_at, coalesce(busy.runs, 0)
        + row_number() OVER (PARTITION BY queues.owner ORDER BY owned.priority DESC, owned.due_at, owned.run_id) AS turn
    FROM queues CROSS JOIN LATERAL (
        SELECT held.run_id, held.priority, held.due_at FROM agentloop_leases AS held
        WHERE held.served_as = queues.served_as AND held.owner = queues.owner AND {_DUE}
        ORDER BY held.priority DESC, held.due_at, held.run_id LIMIT %(looked_at)s
    ) AS owned CROSS JOIN LATERAL (
        SELECT max(before.taken_at) AS taken_at FROM agentloop_leases AS before
        WHERE before.owner = queues.owner AND before.taken_at IS NOT NULL
    ) AS latest LEFT JOIN busy ON busy.owner = queues.owner
    WHERE queues.served_as = ANY (%(agents)s::text[])
), chosen AS MATERIALIZED (
    SELECT held.run_id, held.holder AS earlier, row_number() OVER () AS place FROM (
        SELECT held.run_id, held.holder FROM agentloop_leases AS held JOIN ranked ON ranked.run_id = held.run_id
        WHERE {_DUE}
        ORDER BY ranked.priority DESC, ranked.turn, ranked.taken_at NULLS FIRST, ranked.due_at, held.run_id
        LIMIT %(room)s FOR UPDATE OF held SKIP LOCKED
    ) AS held
), taken AS (
    UPDATE agentloop_leases AS held SET epoch = held.epoch + 1, holder = %(holder)s,
        ends_at = clock_timestamp() + %(seconds)s * interval '1 second', is_taken = true, taken_at = clock_timestamp(),
        worker = %(worker)s, application = %(application)s, attempts = held.attempts + 1
    FROM chosen WHERE held.run_id = chosen.run_id
    RETURNING held.*
)
SELECT taken.run_id, taken.served_as, taken.owner, taken.priority, taken.attempts, taken.input, taken.epoch,
    chosen.earlier IS NOT NULL
FROM taken JOIN chosen USING (run_id) ORDER BY chosen.place
"""
_CLAIMED = """
SELECT run_id, served_as, owner, priority, attempts, input, epoch, false FROM agentloop_leases
WHERE is_taken AND holder = %(holder)s AND ends_at > clock_timestamp() ORDER BY taken_at, run_id
"""
# What a run that has ended or pauses leaves in the queue. A cancellation that came meanwhile has taken it out.
_SETTLE = f"""
WITH fence AS MATERIALIZED ({FENCE})
UPDATE agentloop_leases AS held SET attempts = coalesce(%(attempts)s::integer, attempts),
    due_at = CASE WHEN %(after)s::float8 IS NULL OR cancelled_at IS NOT NULL THEN NULL
        ELSE clock_timestamp() + %(after)s::float8 * interval '1 second' END,
    status = CASE WHEN cancelled_at IS NULL THEN coalesce(%(status)s, status) WHEN status = 'queued' THEN 'cancelled'
        ELSE status END,
    since = CASE WHEN cancelled_at IS NULL AND status <> %(status)s::text THEN clock_timestamp() ELSE since END,
    trouble = %(trouble)s
FROM fence WHERE held.run_id = %(run_id)s
"""
_AGAIN = """
UPDATE agentloop_leases SET attempts = 0, due_at = clock_timestamp(), trouble = NULL
WHERE run_id = %(run_id)s AND served_as IS NOT NULL
"""
_MORE_LOOKED_AT = 8
"""How many runs of each owner are looked at beyond the room there is: others may be taking the first ones."""


class ServedRun(Value, frozen=True):
    """A run that a worker of `serve` has taken, as its `options` are given it.

    Attributes:
        run_id: The run.
        agent: The name of the agent that it was submitted for.
        owner: Whose run it is, as given to `submit`; an empty text if it has no owner.
        priority: Its priority.
        attempt: 1 for the first worker since the run began, or last came to a pause; n after n - 1 that died, or whose
            attempt failed without ending the run.
        lease: The lease under which it runs: `PostgresSession(store, "customer-7", lease=run.lease)`.
    """

    run_id: str
    agent: str
    owner: str
    priority: int
    attempt: int
    lease: Lease


class Claimed(Value, frozen=True):
    """A run that was taken, and the text of its input."""

    run: ServedRun
    input: str

    def read_input(self) -> list[Item]:
        """Return the input with which the run begins, if its journal is empty."""
        return list(map(item_from_json, json.loads(self.input)))


class Settled(Value, frozen=True):
    """The place in the queue of a run that a worker has finished with.

    `after` are the seconds after which a worker may take it again, None for never; `attempts` is how many count from
    then on, None for as many as now; `status` is what its row says, None for what the journal has written there. It may
    be written twice, where the first answer was lost.
    """

    after: float | None
    attempts: int | None = 0
    status: StoredStatus | None = None
    trouble: str | None = None


def submit_run(connection: Connection, given: dict[str, Any]) -> bool:
    """Put the run into the queue; False if it was submitted before.

    Raises:
        RunCancelled, StateError: it wasn't, and is over.
    """
    with connection.transaction():
        added: bool = connection.execute(_SUBMIT, given).rowcount > 0
        over = None if added else connection.execute(_OVER, given).fetchone()
    if over is not None and over[0]:
        raise describe_cancelled(given["run_id"], over[1])
    if over is not None:
        raise StateError(f"run {given['run_id']!r} is over: it has completed")
    notify(connection)
    return added


def notify(connection: Connection) -> None:
    """Tell all workers that it is worth looking for a run."""
    connection.execute(_NOTIFY)


def queue_again(connection: Connection, run_id: str) -> None:
    """Put a run that was submitted once into the queue again."""
    connection.execute(_AGAIN, {"run_id": run_id})
    notify(connection)


def bury(connection: Connection, given: dict[str, Any]) -> list[str]:
    """Take the runs out of the queue whose attempts are used up; return them. Note those that were cancelled."""
    connection.execute(_NOTE_CANCELLED)
    return [run_id for (run_id,) in connection.execute(_BURY, given).fetchall()]


def claim(connection: Connection, given: dict[str, Any]) -> list[Sequence[Any]]:
    """Take the runs that come next, as many as there is room for; return their rows."""
    most = {"looked_at": given["room"] + _MORE_LOOKED_AT}
    found: list[Sequence[Any]] = connection.execute(_CLAIM, {**given, **most}).fetchall()
    return found


def find_claimed(connection: Connection, holder: str) -> list[Sequence[Any]]:
    """Return the rows of what *holder* has taken by a statement whose answer was lost."""
    found: list[Sequence[Any]] = connection.execute(_CLAIMED, {"holder": holder}).fetchall()
    return found


def settle(connection: Connection, lease: Lease, settled: Settled) -> None:
    """Write down what becomes of the run, if its lease is still held."""
    given = {"after": settled.after, "attempts": settled.attempts, "status": settled.status, "trouble": settled.trouble}
    connection.execute(_SETTLE, {**lease.fence, **given})


def due_of(agents: Collection[str], passed_over: Collection[str]) -> dict[str, Any]:
    """Return the parameters that say which runs a worker may take."""
    return {"agents": list(agents), "passed_over": list(passed_over)}
