"""Sessions in a SQLite file, by the standard library's module in worker threads.

One connection per object, used by one thread at a time. That needs two locks: a limiter of one, bound to the running
event loop, lets further calls wait without a thread; the lock inside the thread gives the guarantee, since a native
cancellation on asyncio, or a second loop, can get past the limiter. Every change is one transaction that begins by
BEGIN IMMEDIATE, so writers of several processes wait for each other (`busy_timeout`), and a crash leaves a whole batch
or none of it.

A row that can't be read (cut off, written by other software, of a later format) is left out and named once in the log;
it remains in the file until `clear`, and no other row is affected.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio.to_thread
import attrs
from anyio.lowlevel import current_token

from agentloop._common.checks import check_id, check_seconds
from agentloop._common.sqlite_file import ERRORS, KeptConnection, transaction
from agentloop.exceptions import StateError, UserError, UserTypeError
from agentloop.items import Item
from agentloop.sessions._checks import check_limit, conflict
from agentloop.sessions._item_rows import ItemRows, as_stored, write_items

logger: logging.Logger = logging.getLogger("agentloop")

ResultT = TypeVar("ResultT")

_ENDINGS = (".db", ".sqlite", ".sqlite3")
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS agentloop_session_items ("
    "id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, item TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS agentloop_session_items_by_session ON agentloop_session_items (session_id, id)",
)
# The cast gives the bytes of any value, so that no foreign one can fail inside SQLite's own decoding.
_LATEST_FIRST = "SELECT id, CAST(item AS BLOB) FROM agentloop_session_items WHERE session_id = ? ORDER BY id DESC"
_INSERT = "INSERT INTO agentloop_session_items (session_id, item) VALUES (?, ?)"
_DELETE_ROW = "DELETE FROM agentloop_session_items WHERE id = ?"
_DELETE_ALL = "DELETE FROM agentloop_session_items WHERE session_id = ?"


@attrs.frozen
class _Row:
    id: int
    item: Item


class SQLiteSession:
    """A conversation in a SQLite file, which may hold many; `":memory:"` exists as long as this object.

    Close it by `aclose` or use it as `async with`; afterwards it can't be used. Safe to share between tasks, event
    loops, threads and, by other objects for the same file, processes. Works on every file system on which SQLite's WAL
    works.

    Units: busy_timeout is the seconds that a change waits for those of other connections.
    Cancellation: every method is a checkpoint. A call that waits for its turn does nothing; one that has begun is
        awaited and completes.
    Raises (all methods): StateError if the file can't be opened, isn't such a database, or stays locked; UserError
        once closed.

    Example:
        import anyio
        from agentloop import Agent, Runner
        from agentloop.sessions import SQLiteSession
        from agentloop.testing import ScriptedModel, say

        async def main():
            agent = Agent("a", model=ScriptedModel([say("Hello Ada."), say("You are Ada.")]))
            async with SQLiteSession(":memory:", "ada") as session:
                await Runner.run(agent, "I am Ada.", session=session)
                await Runner.run(agent, "Who am I?", session=session)
                print(len(await session.get_items()))  # 4

        anyio.run(main)
    """

    def __init__(self, path: str | os.PathLike[str], session_id: str = "default", *, busy_timeout: float = 5.0) -> None:
        try:
            self._path = os.fsdecode(path)
        except TypeError:
            raise UserTypeError(f"path: expected a path, got {path!r}") from None
        self.session_id: str = check_id("session_id", session_id)
        if session_id.endswith(_ENDINGS) and not self._path.endswith(_ENDINGS):
            logger.warning(
                "SQLiteSession(%r, %r): the path comes first, and then the id of the session; are they swapped?",
                self._path,
                session_id,
            )
        timeout = check_seconds("busy_timeout", busy_timeout, zero=True) or 0.0
        self._in_thread = threading.Lock()
        self._limiter: tuple[Any, anyio.CapacityLimiter] | None = None
        self._connection = KeptConnection(self._path, _SCHEMA, busy_timeout=timeout)
        self._closed = False
        self._items = ItemRows(self.session_id, self._path)

    def __repr__(self) -> str:
        return f"SQLiteSession({self._path!r}, {self.session_id!r})"

    # ------------------------------------------------------------------------------------------ the session

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the latest *limit* readable items in chronological order; None = all of them.

        Raises:
            UserTypeError, UserValueError: if *limit* isn't None or a whole number from 0 on.
        """
        check_limit(limit)
        return await self._run(lambda connection: [row.item for row in self._rows(connection, limit)])

    async def add_items(self, items: Sequence[Item]) -> None:
        """Append *items* next to each other, as one transaction.

        Raises:
            UserTypeError, UserValueError: naming the position of the first value that isn't an item, or has no JSON;
                nothing is added.
        """
        texts = write_items("items", items)

        def add(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                self._insert(connection, texts)

        await self._run(add)

    async def pop_item(self) -> Item | None:
        """Remove the latest readable item and return it; None if there is none."""

        def pop(connection: sqlite3.Connection) -> Item | None:
            with transaction(connection):
                for row in self._rows(connection, 1):
                    connection.execute(_DELETE_ROW, (row.id,))
                    return row.item
                return None

        return await self._run(pop)

    async def clear(self) -> None:
        """Remove all rows of this session, unreadable ones included."""

        def clear(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                connection.execute(_DELETE_ALL, (self.session_id,))

        await self._run(clear)

    async def replace(self, items: Sequence[Item], *, expect: Sequence[Item]) -> None:
        """Replace all readable items by *items*, if they still are *expect* (the result of `get_items()`).

        Raises:
            SessionConflict: if the session has changed since; this then changes nothing.
            UserTypeError, UserValueError: naming the position of the first value that isn't an item, or has no JSON.
        """
        texts = write_items("items", items)
        expected = as_stored("expect", expect)

        def replace(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                rows = self._rows(connection, None)
                if [row.item for row in rows] != expected:
                    raise conflict(self.session_id, len(expected), len(rows))
                connection.executemany(_DELETE_ROW, [(row.id,) for row in rows])
                self._insert(connection, texts)

        await self._run(replace)

    async def aclose(self) -> None:
        """Close the connection after the call in progress. Does nothing the second time."""
        await anyio.to_thread.run_sync(self._close, limiter=self._limiter_here())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):  # bounded by busy_timeout: it waits only for a call in progress
            await self.aclose()

    # ------------------------------------------------------------------------------------------ in the thread

    async def _run(self, work: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        return await anyio.to_thread.run_sync(self._do, work, limiter=self._limiter_here())

    def _limiter_here(self) -> anyio.CapacityLimiter:
        token = current_token().native_token
        if self._limiter is None or self._limiter[0] is not token:
            self._limiter = (token, anyio.CapacityLimiter(1))
        return self._limiter[1]

    def _do(self, work: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        with self._in_thread:
            if self._closed:
                raise UserError(f"{self!r} is closed")
            try:
                return work(self._connection.get())
            except ERRORS as error:
                raise StateError(f"Session {self.session_id!r} in {self._path}: {error}") from error

    def _close(self) -> None:
        with self._in_thread:
            self._closed = True
            self._connection.close()

    def _insert(self, connection: sqlite3.Connection, texts: Iterable[str]) -> None:
        connection.executemany(_INSERT, [(self.session_id, text) for text in texts])

    def _rows(self, connection: sqlite3.Connection, limit: int | None) -> list[_Row]:
        """Return the latest *limit* readable rows, oldest first. Reads no more rows than necessary."""
        if limit == 0:
            return []
        found: list[_Row] = []
        cursor = connection.execute(_LATEST_FIRST, (self.session_id,))
        try:
            for row_id, text in cursor:
                if (item := self._items.read(row_id, text)) is not None:
                    found.append(_Row(row_id, item))
                if len(found) == limit:
                    break
        finally:
            cursor.close()
        found.reverse()
        return found
