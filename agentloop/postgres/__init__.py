"""Runs, sessions and memories in PostgreSQL, for fleets of workers (the extra `postgres`).

`PostgresStore` holds the connections and the tables. `PostgresStore.lease` takes a run over: from then on no other
worker appends to its journal, so none starts a body of it. `PostgresJournal` is the journal of one run,
`PostgresSession` one conversation, and `PostgresMemory` keeps the files of `agentloop.bundles.Memory`.
`PostgresOutbox` has what bodies want done, written with the records of their calls, and delivers it.

`PostgresStore.share` gives limits to all workers together: `SharedRate`, `SharedTokenRate`, `SharedCapacity`.

`serve` is the loop of a worker, for runs that `PostgresStore.submit` has put into the database; with a queue that you
have already, let its jobs take leases. The driver, psycopg, is imported when the first connection opens.
"""

from agentloop.postgres._intent_rows import Intent, IntentStatus
from agentloop.postgres._journal import PostgresJournal
from agentloop.postgres._lease import Lease, LeaseHeld, LeaseLost, RunCancelled
from agentloop.postgres._limits import SharedCapacity, SharedRate, SharedTokenRate
from agentloop.postgres._memory import PostgresMemory
from agentloop.postgres._outbox import PostgresOutbox
from agentloop.postgres._queue import ServedRun
from agentloop.postgres._run_rows import StoredCall, StoredRun, StoredStatus
from agentloop.postgres._serve import serve
from agentloop.postgres._session import PostgresSession
from agentloop.postgres._store import PostgresStore, StoreHealth

__all__ = [
    "Intent",
    "IntentStatus",
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "PostgresJournal",
    "PostgresMemory",
    "PostgresOutbox",
    "PostgresSession",
    "PostgresStore",
    "RunCancelled",
    "ServedRun",
    "SharedCapacity",
    "SharedRate",
    "SharedTokenRate",
    "StoreHealth",
    "StoredCall",
    "StoredRun",
    "StoredStatus",
    "serve",
]
