"""The operator's work on the runs of a database: list, cancel, try again, delete, and bring rows up to date.

Everything here takes one row's lock, or those of a batch, for one statement or one short transaction. Rows that
another client has locked are left to the next batch, so no worker waits for an operator for longer than a batch takes.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, get_args

from agentloop.exceptions import StateError
from agentloop.journal._database import SELECT_LINES
from agentloop.journal._envelope import Seal, record_of, write_end
from agentloop.journal._rows import scan_rows
from agentloop.postgres import _queue as queue
from agentloop.postgres._connections import Connection
from agentloop.postgres._lease import LeaseHeld
from agentloop.postgres._run_rows import RowSummary, StoredRun, StoredStatus, read_end, read_times, run_of

_FREE = "(ends_at IS NULL OR ends_at <= clock_timestamp())"
_LIST = """
SELECT run_id, status, agent, extract(epoch FROM since)::float8, extract(epoch FROM began_at)::float8, waiting, error,
    worker, application, CASE WHEN ends_at > now() THEN extract(epoch FROM ends_at)::float8 END,
    cancelled_by, cancelled_at IS NOT NULL, owner, priority, coalesce(attempts, 0),
    extract(epoch FROM due_at)::float8, trouble
FROM {rows} WHERE {conditions} ORDER BY since, run_id LIMIT %(limit)s
"""
# The first rows of each status, which the index of status and time has in order: a page reads its own rows only.
_PAGE = """(
    SELECT chosen.* FROM unnest(%(statuses)s::text[]) AS asked (status) CROSS JOIN LATERAL (
        SELECT * FROM agentloop_leases WHERE agentloop_leases.status = asked.status AND {conditions}
        ORDER BY since, run_id LIMIT %(limit)s
    ) AS chosen
) AS page"""
# Only those that are asked for, so that the index of status and time finds the rows, and in their order.
_CONDITIONS = {
    "statuses": "status = ANY (%(statuses)s)",
    "status": "status = %(status)s",
    "agent": "agent = %(agent)s",
    "seconds": "since < now() - %(seconds)s * interval '1 second'",
    "run_id": "run_id = %(run_id)s",
    "waiting": "waiting IS NOT NULL",
    "after": "(since, run_id) > (to_timestamp(%(after)s), %(after_id)s)",
}
_OPEN = """
SELECT status, count(*), extract(epoch FROM clock_timestamp() - min(since))::float8,
    count(waiting)
FROM agentloop_leases WHERE status IN ('queued', 'running', 'interrupted', 'dead') GROUP BY status
"""
_LOCK = f"""
SELECT status, {_FREE}, coalesce(greatest(extract(epoch FROM ends_at - clock_timestamp()), 0), 0)::float8,
    cancelled_at IS NOT NULL
FROM agentloop_leases WHERE run_id = %(run_id)s FOR UPDATE
"""
_CANCEL = f"""
UPDATE agentloop_leases SET cancelled_at = clock_timestamp(), cancelled_by = %(by)s,
    status = CASE WHEN {_FREE} THEN 'cancelled' ELSE status END,
    waiting = CASE WHEN {_FREE} THEN NULL ELSE waiting END,
    since = CASE WHEN {_FREE} THEN clock_timestamp() ELSE since END,
    began_at = coalesce(began_at, clock_timestamp()), agent = coalesce(agent, ''), due_at = NULL
WHERE run_id = %(run_id)s
"""
# A run that was submitted, and hasn't begun, is queued again.
_WRITE = """
UPDATE agentloop_leases SET cancelled_at = NULL, cancelled_by = NULL,
    status = CASE WHEN %(records)s = 0 AND served_as IS NOT NULL THEN 'queued' ELSE %(status)s END,
    agent = CASE WHEN %(records)s = 0 AND served_as IS NOT NULL THEN served_as ELSE %(agent)s END,
    since = CASE WHEN %(records)s = 0 AND served_as IS NOT NULL THEN clock_timestamp() ELSE to_timestamp(%(since)s) END,
    waiting = %(waiting)s, error = %(error)s, records = %(records)s,
    began_at = coalesce(began_at, to_timestamp(%(began_at)s))
WHERE run_id = %(run_id)s
"""
_LOCK_FREE = f"SELECT 1 FROM agentloop_leases WHERE run_id = %(run_id)s AND {_FREE} FOR UPDATE SKIP LOCKED"
_LATEST = "SELECT line FROM agentloop_journal_lines WHERE run_id = %(run_id)s ORDER BY n DESC LIMIT 1"
_CUT = "DELETE FROM agentloop_journal_lines WHERE run_id = %(run_id)s AND n >= %(first)s"
_INSERT = "INSERT INTO agentloop_journal_lines (run_id, n, line) VALUES (%(run_id)s, %(n)s, %(line)s)"
_DELETE = "DELETE FROM agentloop_leases WHERE run_id = %(run_id)s"
# The lines go first, while the rows of their runs are locked: no other statement has to find lines without a row.
_DELETE_OLD = f"""
WITH old AS MATERIALIZED (
    SELECT run_id FROM agentloop_leases
    WHERE status = ANY (%(statuses)s) AND since < clock_timestamp() - %(seconds)s * interval '1 second' AND {_FREE}
    ORDER BY since LIMIT %(most)s FOR UPDATE SKIP LOCKED
), lines AS (
    DELETE FROM agentloop_journal_lines USING old WHERE agentloop_journal_lines.run_id = old.run_id
)
DELETE FROM agentloop_leases USING old WHERE agentloop_leases.run_id = old.run_id
"""
# Of a page of rows: those that no statement of this version has written, and those that a worker of an older one has
# left behind. A page takes milliseconds, while all rows of a large table at once would take longer than the timeout.
_BEHIND = f"""
WITH held AS MATERIALIZED (
    SELECT run_id, status, records, ends_at, cancelled_at FROM agentloop_leases
    WHERE run_id > %(after)s ORDER BY run_id LIMIT %(most)s
)
SELECT held.run_id, {_FREE} AND cancelled_at IS NULL AND (
    held.records IS NULL OR (latest.n >= held.records AND (
        held.status <> 'running' OR position('"record":{{"kind":"run_ended","path":[],'::bytea in latest.line) > 0)))
FROM held LEFT JOIN LATERAL (
    SELECT n, line FROM agentloop_journal_lines AS lines WHERE lines.run_id = held.run_id ORDER BY n DESC LIMIT 1
) AS latest ON true
ORDER BY held.run_id
"""


def select_runs(connection: Connection, limit: int | None, **chosen: Any) -> list[StoredRun]:
    """Return the runs that *chosen* chooses by names of `_CONDITIONS`, the one that came to its status first in front.

    A value of None chooses nothing. `after` is a pair, of the `since` and the id of the run that is before them.
    """
    given = {name: value for name, value in chosen.items() if value is not None}
    conditions = " AND ".join(["status IS NOT NULL", *(_CONDITIONS[name] for name in given)])
    if "after" in given:
        given["after"], given["after_id"] = given["after"]
    if limit is None or "status" in given:
        asked = _LIST.format(rows="agentloop_leases", conditions=conditions)
    else:
        given.setdefault("statuses", list(get_args(StoredStatus)))
        asked = _LIST.format(rows=_PAGE.format(conditions=conditions), conditions="true")
    found = connection.execute(asked, {**given, "limit": limit}, binary=True).fetchall()  # half the time of text
    return list(map(run_of, found))


def count_open(connection: Connection) -> list[tuple[str, int, float, int]]:
    """Return, of each status of runs that aren't over, how many, the age of the oldest, and how many wait for calls."""
    found: list[tuple[str, int, float, int]] = connection.execute(_OPEN).fetchall()
    return found


def cancel_run(connection: Connection, run_id: str, by: str | None) -> bool:
    """Forbid the run to every worker. True if no worker has it."""
    with _locked(connection, run_id) as (status, is_free, _, _):
        latest = connection.execute(_LATEST, {"run_id": run_id}).fetchone()
        end = None if latest is None else read_end([record_of(latest[0])])
        status = status if end is None else end.status  # a worker of an older version writes no row
        if status in ("completed", "failed"):
            raise StateError(f"run {run_id!r} is over: it has {status}, and can't be cancelled")
        connection.execute(_CANCEL, {"run_id": run_id, "by": by})
        return is_free


def retry_run(connection: Connection, run_id: str, seal: Seal) -> None:
    """Allow the run again: take its cancellation or death back, and its failure out of its journal."""
    from agentloop.postgres._retries import count_before_failure  # only a retry folds a run

    name = f"run {run_id!r}"
    with _locked(connection, run_id) as (status, is_free, seconds, was_cancelled):
        _check_free(run_id, is_free, seconds)
        rows = connection.execute(SELECT_LINES, {"run_id": run_id}).fetchall()
        found = scan_rows(rows, seal, name)
        kept = found.records
        end = read_end(kept)
        if end is not None and end.status == "failed" and not end.resumable:
            kept = kept[: count_before_failure(kept, name)]
            at = len(kept) - 1
            last = write_end([line for _, line in rows[:at]], kept[at], now=time.time(), seal=found.seal)
            connection.execute(_CUT, {"run_id": run_id, "first": at})
            connection.execute(_INSERT, {"run_id": run_id, "n": at, "line": last[:-1]})
        elif not was_cancelled and status != "dead":
            how = "it hasn't ended" if end is None else f"it is {end.status}"
            raise StateError(f"{name} needs no retry, since {how}: a worker can resume it, or has its result")
        _write_row(connection, run_id, kept)
        queue.queue_again(connection, run_id)


def delete_run(connection: Connection, run_id: str) -> None:
    """Delete the run's lines and its row."""
    with _locked(connection, run_id) as (_, is_free, seconds, _):
        _check_free(run_id, is_free, seconds)
        connection.execute(_CUT, {"run_id": run_id, "first": 0})
        connection.execute(_DELETE, {"run_id": run_id})


def delete_batch(connection: Connection, statuses: Collection[str], seconds: float, most: int) -> int:
    """Delete at most *most* runs that came to one of *statuses* that long ago; return how many."""
    given = {"statuses": list(statuses), "seconds": seconds, "most": most}
    deleted: int = connection.execute(_DELETE_OLD, given).rowcount
    return deleted


def update_batch(connection: Connection, after: str, most: int) -> tuple[str | None, int]:
    """Look at the rows of the first *most* runs that follow *after*, and bring those up to date that are behind.

    Returns the last of these runs, None if there are no more, and how many rows were behind. Each is written in its own
    transaction. A run that a worker takes meanwhile is left to its appends.
    """
    page = connection.execute(_BEHIND, {"after": after, "most": most}).fetchall()
    behind = [run_id for run_id, is_behind in page if is_behind]
    for run_id in behind:
        with connection.transaction():
            row = connection.execute(_LOCK_FREE, {"run_id": run_id}).fetchone()
            if row is not None:
                lines = connection.execute(SELECT_LINES, {"run_id": run_id}).fetchall()
                # A row needs no check of the lines: who reads the run checks them, and has the key.
                _write_row(connection, run_id, [record_of(line) for _, line in lines])
    return page[-1][0] if page else None, len(behind)


@contextmanager
def _locked(connection: Connection, run_id: str) -> Iterator[tuple[str | None, bool, float, bool]]:
    """Lock the row of the run for the block, one transaction.

    Gives its status, whether no worker has it, for how long one has it still, and whether it was cancelled.

    Raises:
        StateError: the database holds no such run.
    """
    with connection.transaction():
        row = connection.execute(_LOCK, {"run_id": run_id}).fetchone()
        if row is None:
            raise StateError(f"the database holds no run {run_id!r}")
        yield row


def _check_free(run_id: str, is_free: bool, seconds: float) -> None:
    if not is_free:
        raise LeaseHeld(f"run {run_id!r}: a worker holds it, for {seconds:.1f} s more: cancel it first", seconds)


def _write_row(connection: Connection, run_id: str, records: list[bytes]) -> None:
    summary = RowSummary().follow(records)
    times = read_times(records)
    columns = {**summary.columns(len(records)), "began_at": times[0], "since": times[1]}
    connection.execute(_WRITE, {"run_id": run_id, **columns})
