"""Files of `agentloop.bundles.Memory` in PostgreSQL, one row for each.

A change takes the lock of its scope (an advisory one, until the end of the transaction), compares the files with those
that the caller has read, and writes: so the changes of several processes follow each other.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentloop._common.checks import NAMES, check
from agentloop._common.memory_paths import check_memory_change
from agentloop.exceptions import MemoryConflict, StateError, UserTypeError
from agentloop.journal._database import import_driver
from agentloop.postgres._connections import Connection, ResultT, Work
from agentloop.postgres._store import PostgresStore

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%(scope)s, 7))"
_SELECT = "SELECT path, content FROM agentloop_memory_files WHERE scope = %(scope)s"
_DELETE = "DELETE FROM agentloop_memory_files WHERE scope = %(scope)s AND path = ANY(%(gone)s::text[])"
_WRITE = """
INSERT INTO agentloop_memory_files (scope, path, content)
SELECT %(scope)s, file.path, file.content FROM unnest(%(paths)s::text[], %(texts)s::text[]) AS file(path, content)
ON CONFLICT (scope, path) DO UPDATE SET content = excluded.content
"""


class PostgresMemory:
    """A store of `agentloop.bundles.Memory` in PostgreSQL. It has no resources of its own: *store* has them.

    Safe to share between tasks, event loops and threads; other objects and processes may use the same database.

    Cancellation: every method is a checkpoint. A call that waits for its turn does nothing; one that has begun is
        awaited and completes.
    Raises (all methods): StateError if the database refuses or can't be reached, or the connection is lost before the
        answer (then the change may have been made); UserError once the store is closed, and UserValueError if the scope
        is empty, or a path is none of a memory (see `agentloop.abc.MemoryStore`).
    """

    def __init__(self, store: PostgresStore) -> None:
        if not isinstance(store, PostgresStore):
            raise UserTypeError(f"store: expected a PostgresStore, got {type(store).__name__}")
        self._connections = store.connections

    def __repr__(self) -> str:
        return "PostgresMemory()"

    async def load(self, scope: str) -> dict[str, str]:
        """Return the texts of all files of *scope* by their paths."""
        check("scope", NAMES.plain_words(), scope)
        return await self._run(lambda connection: _select(connection, scope), again=True)

    async def change(self, scope: str, changes: Mapping[str, str | None], *, expect: Mapping[str, str]) -> None:
        """Write and remove files in one transaction, if the files of *scope* still are *expect*.

        Raises:
            MemoryConflict: if they aren't; nothing has changed.
        """
        check("scope", NAMES.plain_words(), scope)
        check_memory_change(changes, expect)
        written = {path: text for path, text in changes.items() if text is not None}
        gone = [path for path, text in changes.items() if text is None]

        def change(connection: Connection) -> None:
            with connection.transaction():
                connection.execute(_LOCK, {"scope": scope})
                if _select(connection, scope) != expect:
                    raise MemoryConflict(f"the files of {scope!r} have changed since they were loaded")
                connection.execute(_DELETE, {"scope": scope, "gone": gone})
                connection.execute(_WRITE, {"scope": scope, "paths": [*written], "texts": [*written.values()]})

        await self._run(change)

    async def _run(self, work: Work[ResultT], *, again: bool = False) -> ResultT:
        try:
            return await self._connections.run(work, again=again)
        except import_driver().Error as error:
            raise StateError(f"PostgresMemory: {str(error).strip()}") from error


def _select(connection: Connection, scope: str) -> dict[str, str]:
    return dict(connection.execute(_SELECT, {"scope": scope}).fetchall())
