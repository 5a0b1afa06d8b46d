"""Runs, sessions and memories in PostgreSQL, for fleets of workers that have their own queue (the extra `postgres`).

`PostgresStore` holds the connections and the tables. `PostgresStore.lease` takes a run over: from then on no other
worker appends to its journal, so none starts a body of it. `PostgresJournal` is the journal of one run,
`PostgresSession` one conversation, and `PostgresMemory` keeps the files of `agentloop.bundles.Memory`. The driver,
psycopg, is imported when the first connection opens.
"""

from agentloop.postgres._journal import PostgresJournal
from agentloop.postgres._lease import Lease, LeaseHeld, LeaseLost, RunCancelled
from agentloop.postgres._memory import PostgresMemory
from agentloop.postgres._run_rows import StoredCall, StoredRun, StoredStatus
from agentloop.postgres._session import PostgresSession
from agentloop.postgres._store import PostgresStore, StoreHealth

__all__ = [
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "PostgresJournal",
    "PostgresMemory",
    "PostgresSession",
    "PostgresStore",
    "RunCancelled",
    "StoreHealth",
    "StoredCall",
    "StoredRun",
    "StoredStatus",
]
