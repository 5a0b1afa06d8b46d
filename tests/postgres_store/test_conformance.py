"""Journals and sessions in PostgreSQL keep what the protocols promise, with a lease and without one."""

import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import pytest
from kit.memory_paths import EACH_WRONG, PLAIN, change_all

from agentloop.abc import Journal, LeasedJournal, MemoryStore, ReplaceableSession, SealingJournal, Session
from agentloop.bundles import FolderMemory, SQLiteMemory
from agentloop.exceptions import JournalError, StateError, UserTypeError, UserValueError
from agentloop.postgres import Lease, PostgresJournal, PostgresMemory, PostgresSession, PostgresStore
from agentloop.testing.conformance import JournalConformance, MemoryConformance, SessionConformance

pytestmark = [pytest.mark.real_clock, pytest.mark.timeout(120)]


@pytest.fixture
def shared(conninfo: str) -> Iterator[PostgresStore]:
    """A store for several event loops: some tests of the suites make their own."""
    store = PostgresStore(conninfo)
    yield store
    run_elsewhere(store.aclose)


def run_elsewhere(function: Callable[[], Awaitable[None]]) -> None:
    """Run *function* in an event loop of another thread: the fixtures of a test share its thread with its own loop."""
    thread = threading.Thread(target=anyio.run, args=(function,))
    thread.start()
    thread.join()


def held(store: PostgresStore) -> Lease:
    """Return a lease of the run that outlasts a test, and that no task renews."""
    lease = Lease(store.connections, "run", "a test", 600.0)
    run_elsewhere(lease.take)
    return lease


class TestPostgresJournal(JournalConformance):
    """Without a lease."""

    @pytest.fixture(autouse=True, params=[None, b"k"], ids=["plain", "keyed"])
    def _place(self, request: pytest.FixtureRequest, shared: PostgresStore) -> None:
        self.store = shared
        self.key = request.param

    def open_journal(self) -> Journal:
        """Return a journal for the test's run."""
        return PostgresJournal(self.store, "run", key=self.key)


class TestLeasedJournal(JournalConformance):
    """With a lease, which all objects of a test share."""

    @pytest.fixture(autouse=True)
    def _place(self, shared: PostgresStore) -> None:
        self.store = shared
        self.lease = held(shared)

    def open_journal(self) -> Journal:
        """Return a journal for the test's run."""
        return PostgresJournal(self.store, self.lease)


class TestPostgresSession(SessionConformance):
    """In a database which holds another conversation too."""

    lease: Lease | None = None

    @pytest.fixture(autouse=True)
    def _place(self, shared: PostgresStore) -> None:
        self.store = shared

    def open_session(self) -> Session:
        """Return a session of the test's store."""
        return PostgresSession(self.store, "one", lease=self.lease)

    def open_another(self) -> Session:
        """Return another conversation."""
        return PostgresSession(self.store, "another")


class TestLeasedSession(TestPostgresSession):
    """Each change checks a lease."""

    @pytest.fixture(autouse=True)
    def _hold(self, _place: None) -> None:
        self.lease = held(self.store)


class TestPostgresMemory(MemoryConformance):
    """In the same database."""

    @pytest.fixture(autouse=True)
    def _place(self, shared: PostgresStore) -> None:
        self.store = shared

    def open_store(self) -> MemoryStore:
        """Return a store of memory in the test's store, which outlives it."""
        return PostgresMemory(self.store)


async def test_a_memory_refuses_the_paths_that_the_other_stores_refuse(store: PostgresStore, tmp_path: Path) -> None:
    """In the same words, and what one of them takes all take."""
    async with SQLiteMemory(":memory:") as rows:
        stores: list[MemoryStore] = [PostgresMemory(store), FolderMemory(tmp_path), rows]
        for number, step in enumerate(EACH_WRONG):
            assert None not in await change_all(stores, f"wrong {number}", [step])
        taken: list[dict[str, str | None]] = [{name: "x"} for name in PLAIN]
        for number, step in enumerate(taken):
            assert await change_all(stores, f"plain {number}", [step, dict.fromkeys(step)]) == [None, None]
        assert {type(answer) for answer in await change_all(stores, "together", taken)} == {type(None), UserValueError}


async def test_a_memory_says_what_the_database_refuses(store: PostgresStore) -> None:
    """A text that PostgreSQL can't hold is an error of the store, and nothing is written."""
    memory = PostgresMemory(store)
    with pytest.raises(StateError, match="PostgresMemory"):
        await memory.change("ada", {"a": "x", "b": "null \0"}, expect={})
    assert await memory.load("ada") == {}
    with pytest.raises(UserTypeError, match="store: expected a PostgresStore, got int"):
        PostgresMemory(3)  # type: ignore[arg-type]
    assert repr(memory) == "PostgresMemory()"


class Codec:
    """Seals by turning round."""

    def seal(self, data: bytes) -> bytes:
        """Return *data* turned round."""
        return data[::-1]

    def open(self, sealed: bytes) -> bytes:
        """Return it turned back."""
        return sealed[::-1]


async def test_they_have_the_wider_protocols(store: PostgresStore) -> None:
    """A run asks for the codec and for the lease by protocol."""
    codec = Codec()
    journal = PostgresJournal(store, "run", codec=codec)
    assert isinstance(journal, SealingJournal)
    assert isinstance(journal, LeasedJournal)
    assert journal.codec is codec
    assert isinstance(PostgresSession(store), ReplaceableSession)


@pytest.mark.scenario("SM-14")
async def test_sealed_rows_that_were_exchanged_are_refused(store: PostgresStore, conninfo: str) -> None:
    """The rows of two runs are whole and sealed with the key, and each is in the other's place."""
    import psycopg

    for run in ("ada", "bob"):
        async with PostgresJournal(store, run, key=b"k") as journal:
            await journal.append([f'{{"kind":"{run}"}}'.encode()])
    move = "UPDATE agentloop_journal_lines SET run_id = %s WHERE run_id = %s"
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for step in (("aside", "ada"), ("ada", "bob"), ("bob", "aside")):
            connection.execute(move, step)
    for run in ("ada", "bob"):
        with pytest.raises(JournalError, match=f"another run than '{run}'"):
            await PostgresJournal(store, run, key=b"k").read()
