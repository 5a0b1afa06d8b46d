"""Reading the journal of one run without changing its database: no tables are made or migrated there."""

from __future__ import annotations

from agentloop.exceptions import JournalError, UserError
from agentloop.postgres._connections import import_driver
from agentloop.postgres._journal import PostgresJournal
from agentloop.postgres._store import PostgresStore


async def read_stored_lines(
    address: str, run_id: str, *, key: bytes | None = None, older_seals: bool = False
) -> list[bytes]:
    """Return the lines that the database at *address* holds of a run, which may be under way.

    Raises:
        UserError: the extra `postgres` is missing, *address* is none, or the database has no such run.
        JournalError: the database can't be read, or the lines are damaged, or were sealed with another key.
    """
    async with (
        PostgresStore(make_read_only(address), connections=1) as store,
        PostgresJournal(store, run_id, key=key, older_seals=older_seals) as journal,
    ):
        try:
            lines = await journal.read()
        except JournalError as error:
            if isinstance(error.__cause__, import_driver().errors.ReadOnlySqlTransaction):
                raise UserError("the database has no journals of this version of agentloop") from error
            raise
    if not lines:
        raise UserError(f"the database holds no run {run_id!r}")
    return lines


def make_read_only(address: str) -> str:
    """Return *address* with an option by which no connection can change the database.

    Raises:
        UserError: the extra `postgres` is missing, or *address* is none; doesn't quote it, as it may hold a password.
    """
    driver = import_driver()
    try:
        known = driver.conninfo.conninfo_to_dict(address).get("options", "")
        made: str = driver.conninfo.make_conninfo(address, options=f"{known} -c default_transaction_read_only=on")
    except driver.Error:
        raise UserError("what is given is no address of PostgreSQL") from None
    return made
