"""The connections to one database, used by worker threads, and the tables that the library makes in it.

psycopg's own async connections are asyncio's only. So its sync ones are used, in worker threads, and both backends
behave the same. A connection belongs to one thread from the beginning of a piece of work to its end.

Theory. Two locks, as for a SQLite file: a limiter of the running event loop lets further calls wait without a thread,
and the slots inside the threads give the guarantee, since a native cancellation on asyncio, or a second loop, can get
past the limiter. A server that restarts costs a wait and no error: work that could not be sent is sent again until
`timeout` is over, and work that may have been done is repeated only if its caller says that it may be (`again`).
"""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import current_token

from agentloop.exceptions import StateError, UserError
from agentloop.journal._database import connect, import_driver

ResultT = TypeVar("ResultT")
Connection: TypeAlias = Any  # psycopg's: without the extra there are no types of it
Work: TypeAlias = Callable[[Connection], ResultT]

_PAUSE = 0.1
"""Seconds between two attempts to reach the server."""

_LOCK = 0x6167_656E_746C_6F6F
"""The number of the advisory lock under which one process makes the tables."""

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE agentloop_leases (
        run_id text PRIMARY KEY,
        epoch bigint NOT NULL DEFAULT 0,
        holder text,
        ends_at timestamptz
    ) WITH (fillfactor = 70);
    CREATE TABLE agentloop_journal_lines (
        run_id text NOT NULL,
        n bigint NOT NULL,
        line bytea NOT NULL,
        PRIMARY KEY (run_id, n)
    );
    CREATE TABLE agentloop_sessions (
        session_id text PRIMARY KEY,
        next bigint NOT NULL
    ) WITH (fillfactor = 70);
    CREATE TABLE agentloop_session_items (
        session_id text NOT NULL,
        n bigint NOT NULL,
        item text NOT NULL,
        PRIMARY KEY (session_id, n)
    );
    """,
    """
    CREATE TABLE agentloop_memory_files (
        scope text NOT NULL,
        path text NOT NULL,
        content text NOT NULL,
        PRIMARY KEY (scope, path)
    );
    """,
    # Columns without a default change the catalogue only, and the index is of rows that don't exist yet: a large table
    # is locked for a moment. `records` is the number of lines that a row was written after; NULL says that it wasn't.
    """
    ALTER TABLE agentloop_leases
        ADD COLUMN status text,
        ADD COLUMN agent text,
        ADD COLUMN since timestamptz,
        ADD COLUMN began_at timestamptz,
        ADD COLUMN waiting text,
        ADD COLUMN error text,
        ADD COLUMN records bigint,
        ADD COLUMN worker text,
        ADD COLUMN application text,
        ADD COLUMN cancelled_at timestamptz,
        ADD COLUMN cancelled_by text,
        ALTER COLUMN records SET DEFAULT 0;
    CREATE INDEX agentloop_leases_status ON agentloop_leases (status, since, run_id) WHERE status IS NOT NULL;
    """,
    # The queue of `serve`: columns without a default again. Neither index names a column that a renewal changes.
    """
    ALTER TABLE agentloop_leases
        ADD COLUMN served_as text,
        ADD COLUMN owner text,
        ADD COLUMN priority integer,
        ADD COLUMN due_at timestamptz,
        ADD COLUMN is_taken boolean,
        ADD COLUMN taken_at timestamptz,
        ADD COLUMN attempts integer,
        ADD COLUMN input text,
        ADD COLUMN trouble text;
    CREATE INDEX agentloop_leases_due ON agentloop_leases (served_as, owner, priority DESC, due_at, run_id)
        WHERE due_at IS NOT NULL AND waiting IS NULL;
    CREATE INDEX agentloop_leases_tried ON agentloop_leases (attempts) WHERE due_at IS NOT NULL AND attempts > 0;
    CREATE INDEX agentloop_leases_taken ON agentloop_leases (owner) WHERE is_taken;
    CREATE INDEX agentloop_leases_latest ON agentloop_leases (owner, taken_at) WHERE taken_at IS NOT NULL;
    """,
    # The outboxes. The indexes are of what is due, and of what an operator lists and deletes.
    """
    CREATE TABLE agentloop_outbox (
        outbox text NOT NULL,
        key text NOT NULL,
        run_id text NOT NULL,
        payload text NOT NULL,
        status text NOT NULL,
        since timestamptz NOT NULL,
        added_at timestamptz NOT NULL,
        due_at timestamptz,
        attempts integer NOT NULL,
        holder text,
        receipt text,
        trouble text,
        PRIMARY KEY (outbox, key)
    );
    CREATE INDEX agentloop_outbox_due ON agentloop_outbox (outbox, due_at) WHERE due_at IS NOT NULL;
    CREATE INDEX agentloop_outbox_status ON agentloop_outbox (outbox, status, since);
    """,
    """
    CREATE TABLE agentloop_limits (
        name text PRIMARY KEY,
        state text NOT NULL
    ) WITH (fillfactor = 50);
    """,
)
"""The statements that lead from each version of the tables to the next one. A released one never changes."""

# Of the commit only `off` is changed: it has to outlive a power failure, and other values promise more than `on`. The
# statements need READ COMMITTED: they wait for each other's rows and then look again. Under a higher isolation, which a
# database may have for its other applications, they would fail there.
_SETTINGS = """
SELECT set_config('default_transaction_isolation', 'read committed', false),
    set_config('statement_timeout', %(limit)s, false), set_config('idle_in_transaction_session_timeout', %(limit)s,
    false), set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
    ELSE current_setting('synchronous_commit') END, false)
"""


class StoreCounts:
    """Counts of the work of one store since it was made. Any thread adds to it; read `values`."""

    def __init__(self) -> None:
        self.values: dict[str, int] = dict.fromkeys(COUNTED, 0)
        self._lock = threading.Lock()

    def add(self, name: str, count: int = 1) -> None:
        """Add *count* to what *name* counts."""
        if count:
            with self._lock:
                self.values[name] += count


COUNTED = ("appends", "leases", "take_overs", "leases_lost", "in_doubt")
"""The names of counts: appends; leases that were taken, and of these the ones that another worker hadn't given back;
leases lost; calls with an unknown outcome."""


class Connections:
    """At most *most* connections to the database of *conninfo*, opened as they are needed."""

    def __init__(self, conninfo: str, most: int, timeout: float) -> None:
        self._conninfo = conninfo
        self._most = most
        self.timeout: float = timeout
        self._slots = threading.BoundedSemaphore(most)
        self._idle: list[Connection] = []
        self._working: set[int] = set()  # the threads that have a connection
        self.counts: StoreCounts = StoreCounts()
        self._migrating = threading.Lock()
        self._reached = False  # a server that was never reached is a wrong address, which waiting doesn't cure
        self.closed: bool = False
        self._limiter: tuple[Any, anyio.CapacityLimiter] | None = None

    async def run(self, work: Work[ResultT], *, again: bool = False, wait: float | None = None) -> ResultT:
        """Return `call(work)`, called in a worker thread. Cancellation: as for `in_thread`."""
        return await self.in_thread(lambda: self.call(work, again=again, wait=wait))

    async def in_thread(self, function: Callable[[], ResultT]) -> ResultT:
        """Return `function()`, called in a worker thread; as many at a time as there are connections.

        Cancellation: a checkpoint. Before the thread has begun, *function* isn't called; after that it is awaited.
        """
        return await anyio.to_thread.run_sync(function, limiter=self._limiter_here())

    async def aclose(self) -> None:
        """Close the idle connections now, and those in use when their work is over."""
        await self.in_thread(self.close)

    def call(self, work: Work[ResultT], *, again: bool = False, wait: float | None = None) -> ResultT:
        """Return `work(connection)`. Blocks.

        Args:
            work: Called anew if the server couldn't be reached.
            again: True if *work* may be called anew after it lost its connection, too.
            wait: Seconds after which no further attempt begins; None = the timeout.

        Raises:
            psycopg.Error: the last attempt's.
            UserError: after `aclose`, or if the driver is missing.
            StateError: the tables are those of a later version of the library.
        """
        errors = import_driver()
        until = time.monotonic() + (self.timeout if wait is None else min(wait, self.timeout))
        with self._slots, self._at_work():
            while True:
                connection = None
                try:
                    connection = self._take()
                    return work(connection)
                except errors.OperationalError:
                    if connection is not None and not (again and connection.closed):
                        raise
                    if not self._reached or time.monotonic() >= until:
                        raise
                finally:
                    if connection is not None:
                        self._put_back(connection)
                time.sleep(_PAUSE)

    @property
    def most(self) -> int:
        """The most connections that are open at a time."""
        return self._most

    @property
    def in_use(self) -> int:
        """The number of connections in use."""
        return len(self._working)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        self._working.add(threading.get_ident())
        try:
            yield
        finally:
            self._working.discard(threading.get_ident())

    def _limiter_here(self) -> anyio.CapacityLimiter:
        token = current_token().native_token
        if self._limiter is None or self._limiter[0] is not token:
            self._limiter = (token, anyio.CapacityLimiter(self._most))
        return self._limiter[1]

    def _take(self) -> Connection:
        if self.closed:
            raise UserError("the PostgresStore is closed")
        while self._idle:
            connection = self._idle.pop()
            if not _is_stale(connection):
                return connection
            connection.close()
        return self._connect()

    def _put_back(self, connection: Connection) -> None:
        idle = import_driver().pq.TransactionStatus.IDLE
        if self.closed or connection.closed or connection.info.transaction_status != idle:
            connection.close()
        else:
            self._idle.append(connection)

    def close(self) -> None:
        """Do what `aclose` does, for a caller without an event loop. Does nothing the second time."""
        self.closed = True
        while self._idle:
            self._idle.pop().close()

    def open(self) -> Connection:
        """Return another connection, not counted among the *most*, which the caller closes. Blocks."""
        return self._connect()

    def _connect(self) -> Connection:
        milliseconds = round(self.timeout * 1000)
        connection: Connection = connect(
            self._conninfo, connect_timeout=max(2, round(self.timeout)), tcp_user_timeout=milliseconds
        )
        try:
            connection.execute(_SETTINGS, {"limit": str(milliseconds)})
            with self._migrating:
                if not self._reached:
                    migrate(connection, MIGRATIONS)
                    self._reached = True
        except BaseException:
            connection.close()
            raise
        return connection


def _is_stale(connection: Connection) -> bool:
    """Tell whether an idle connection has something to read: a server that ends says so, and then closes it."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection.fileno(), selectors.EVENT_READ)
        return bool(selector.select(0))


def migrate(connection: Connection, migrations: tuple[str, ...]) -> None:
    """Bring the tables to the version that *migrations* lead to. One process does; others wait for it.

    A database whose tables are up to date is only read, so a worker needs no right to make tables.

    Raises:
        StateError: the tables are of a later version; or they have to be made or changed, and the role may not.
    """
    made = connection.execute("SELECT to_regclass('agentloop_schema')").fetchone()[0]
    if made is not None and _read_version(connection, len(migrations)) == len(migrations):
        return
    try:
        with connection.transaction():
            _migrate(connection, migrations)
    except import_driver().errors.InsufficientPrivilege as error:
        raise StateError(
            f"the database needs the tables of version {len(migrations)}, and this role may not make them: "
            f"run `agentloop runs ADDRESS migrate` with a role that may ({str(error).strip()})"
        ) from error


def _migrate(connection: Connection, migrations: tuple[str, ...]) -> None:
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    connection.execute("CREATE TABLE IF NOT EXISTS agentloop_schema (version integer NOT NULL)")
    version = _read_version(connection, len(migrations))
    for statements in migrations[version:]:
        connection.execute(statements)
    connection.execute("DELETE FROM agentloop_schema")
    connection.execute("INSERT INTO agentloop_schema (version) VALUES (%s)", (len(migrations),))


def _read_version(connection: Connection, known: int) -> int:
    row = connection.execute("SELECT version FROM agentloop_schema").fetchone()
    version: int = 0 if row is None else row[0]
    if version > known:  # said to a role that may not change tables, too: a migration by another wouldn't help
        raise StateError(f"the database has tables of version {version}, of a later agentloop; this one knows {known}")
    return version
