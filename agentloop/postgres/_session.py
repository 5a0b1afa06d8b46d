"""Sessions in PostgreSQL, one row for each item.

Every change locks the row of its conversation, so the changes of several processes follow each other, and is one
transaction: a crash leaves a whole batch or none of it. With a lease, the same transaction checks it.

A row that can't be read (cut off, written by other software, of a later format) is left out and named once in the log;
it remains in the table until `clear`, and no other row is affected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import attrs

from agentloop._common.checks import check_id
from agentloop.exceptions import StateError, UserTypeError
from agentloop.items import Item
from agentloop.journal._database import import_driver
from agentloop.postgres._connections import Connection, ResultT, Work
from agentloop.postgres._lease import FENCE, Lease
from agentloop.postgres._store import PostgresStore
from agentloop.sessions._checks import check_limit, conflict
from agentloop.sessions._item_rows import ItemRows, as_stored, write_items

logger: logging.Logger = logging.getLogger("agentloop")

_LOCK = """
INSERT INTO agentloop_sessions (session_id, next) VALUES (%(session_id)s, 0)
ON CONFLICT (session_id) DO UPDATE SET next = agentloop_sessions.next
RETURNING next
"""
_ADD = """
INSERT INTO agentloop_session_items (session_id, n, item)
SELECT %(session_id)s, %(first)s + batch.at - 1, batch.item FROM unnest(%(items)s::text[]) WITH ORDINALITY
AS batch(item, at)
"""
_MOVE = "UPDATE agentloop_sessions SET next = %(next)s WHERE session_id = %(session_id)s"
_LATEST_FIRST = """
SELECT n, item FROM agentloop_session_items WHERE session_id = %(session_id)s AND n < %(before)s
ORDER BY n DESC LIMIT %(most)s
"""
_DELETE = "DELETE FROM agentloop_session_items WHERE session_id = %(session_id)s"
_ALL = 1 << 62


@attrs.frozen
class _StoredItem:
    n: int
    item: Item


class PostgresSession:
    """A conversation in PostgreSQL. It holds no resources: the store has the connections.

    Safe to share between tasks, event loops, threads and, by other objects of the same conversation, processes.

    Args:
        store: The database.
        session_id: The conversation.
        lease: The lease of the run that writes to it. Then a worker whose lease has passed changes nothing any more.

    Cancellation: every method is a checkpoint. A call that waits for its turn does nothing; one that has begun is
        awaited and completes.
    Raises (all methods): StateError if the database refuses or can't be reached, or the connection is lost before the
        answer (then the change may have been made); LeaseLost if the lease is held no more; UserError once the store is
        closed.
    """

    def __init__(self, store: PostgresStore, session_id: str = "default", *, lease: Lease | None = None) -> None:
        if not isinstance(store, PostgresStore):
            raise UserTypeError(f"store: expected a PostgresStore, got {type(store).__name__}")
        if not (lease is None or isinstance(lease, Lease)):
            raise UserTypeError(f"lease: expected a Lease, got {type(lease).__name__}")
        self.session_id: str = check_id("session_id", session_id)
        self._connections = store.connections
        self._lease = lease
        self._items = ItemRows(self.session_id)

    def __repr__(self) -> str:
        return f"PostgresSession({self.session_id!r})"

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the latest *limit* readable items in chronological order; None = all of them.

        Raises:
            UserTypeError, UserValueError: if *limit* isn't None or a whole number from 0 on.
        """
        check_limit(limit)
        return await self._run(lambda connection: [row.item for row in self._rows(connection, limit)], again=True)

    async def add_items(self, items: Sequence[Item]) -> None:
        """Append *items* next to each other, as one transaction.

        Raises:
            UserTypeError, UserValueError: naming the position of the first value that isn't an item, or has no JSON;
                nothing is added.
        """
        texts = write_items("items", items)
        await self._change(lambda connection, first: self._insert(connection, first, texts))

    async def pop_item(self) -> Item | None:
        """Remove the latest readable item and return it; None if there is none."""

        def pop(connection: Connection, _: int) -> Item | None:
            for row in self._rows(connection, 1):
                connection.execute(f"{_DELETE} AND n = %(n)s", {"session_id": self.session_id, "n": row.n})
                return row.item
            return None

        return await self._change(pop)

    async def clear(self) -> None:
        """Remove all rows of this session, unreadable ones included."""
        await self._change(lambda connection, _: connection.execute(_DELETE, {"session_id": self.session_id}))

    async def replace(self, items: Sequence[Item], *, expect: Sequence[Item]) -> None:
        """Replace all readable items by *items*, if they still are *expect* (the result of `get_items()`).

        Raises:
            SessionConflict: if the session has changed since; this then changes nothing.
            UserTypeError, UserValueError: naming the position of the first value that isn't an item, or has no JSON.
        """
        texts = write_items("items", items)
        expected = as_stored("expect", expect)

        def replace(connection: Connection, first: int) -> None:
            rows = self._rows(connection, None)
            if [row.item for row in rows] != expected:
                raise conflict(self.session_id, len(expected), len(rows))
            gone = {"session_id": self.session_id, "gone": [row.n for row in rows]}
            connection.execute(f"{_DELETE} AND n = ANY(%(gone)s::bigint[])", gone)
            self._insert(connection, first, texts)

        await self._change(replace)

    # ------------------------------------------------------------------------------------------ in the thread

    async def _run(self, work: Work[ResultT], *, again: bool = False) -> ResultT:
        try:
            return await self._connections.run(work, again=again)
        except import_driver().Error as error:
            raise StateError(f"Session {self.session_id!r}: {str(error).strip()}") from error

    async def _change(self, change: Callable[[Connection, int], ResultT]) -> ResultT:
        """Return `change(connection, first)`, called in a transaction; the next item gets the number *first*."""

        def work(connection: Connection) -> ResultT:
            with connection.transaction():
                if self._lease is not None and connection.execute(FENCE, self._lease.fence).fetchone() is None:
                    raise self._lease.lose()
                first = connection.execute(_LOCK, {"session_id": self.session_id}).fetchone()[0]
                return change(connection, first)

        return await self._run(work)

    def _insert(self, connection: Connection, first: int, texts: list[str]) -> None:
        if texts:
            connection.execute(_ADD, {"session_id": self.session_id, "first": first, "items": texts})
            connection.execute(_MOVE, {"session_id": self.session_id, "next": first + len(texts)})

    def _rows(self, connection: Connection, limit: int | None) -> list[_StoredItem]:
        """Return the latest *limit* readable rows, oldest first."""
        found: list[_StoredItem] = []
        most, before = _ALL if limit is None else limit, _ALL
        while len(found) < most:
            wanted = most - len(found)
            given = {"session_id": self.session_id, "before": before, "most": wanted}
            rows = connection.execute(_LATEST_FIRST, given).fetchall()
            found += [_StoredItem(n, item) for n, text in rows if (item := self._items.read(n, text)) is not None]
            if len(rows) < wanted:
                break
            before = rows[-1][0]
        found.reverse()
        return found
