"""Sessions: what both kinds do alike, and what a file adds: processes, damage, locks, loops and cancellation."""

import asyncio
import functools
import gc
import logging
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio
import trio.testing
from definitions.item_strategies import ITEMS
from edges.door import Door, until
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop import sessions
from agentloop.abc import ReplaceableSession, Session
from agentloop.exceptions import SessionConflict, StateError, UserError, UserTypeError, UserValueError
from agentloop.items import AssistantMessage, Item, OpaqueItem, ToolCall, ToolOutput, UserMessage
from agentloop.sessions import MemorySession, SQLiteSession

pytestmark = pytest.mark.real_clock  # a file's session works in threads

A, B, C, D = (UserMessage(name) for name in "abcd")
HISTORY: list[Item] = [
    UserMessage("hi"),
    ToolCall("c1", "f", '{"a": 1}', provider_data={"id": "x", "n": [1, None]}),
    ToolOutput("c1", "out"),
    OpaqueItem({"type": "hologram", "\ud800": "\ud800 lone surrogates too"}),
    AssistantMessage("done"),
]


@pytest.fixture(params=["memory", "sqlite", "sqlite-in-memory"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> MemorySession | SQLiteSession:
    """An empty session of each kind. Closed by the collector where a test doesn't."""
    if request.param == "memory":
        return MemorySession("s")
    return SQLiteSession(tmp_path / "s.db" if request.param == "sqlite" else ":memory:", "s")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a session's file will be."""
    return tmp_path / "s.db"


def rows(path: Path) -> list[tuple[int, str]]:
    """Return the rows of the file, past the library."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT id, item FROM agentloop_session_items ORDER BY id").fetchall()


def execute(path: Path, statement: str, *values: Any) -> None:
    """Change the file past the library."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


# ---------------------------------------------------------------------------------------------- what all do alike


async def test_items_come_back_in_order(session: ReplaceableSession, anyio_backend: Any) -> None:
    """Batches follow each other; an empty one changes nothing."""
    assert isinstance(session, Session)
    assert isinstance(session, ReplaceableSession)
    assert await session.get_items() == []
    await session.add_items(HISTORY[:2])
    await session.add_items([])
    await session.add_items(HISTORY[2:])
    assert await session.get_items() == HISTORY
    assert [type(item) for item in await session.get_items()] == [type(item) for item in HISTORY]


async def test_a_limit_gives_the_latest_in_order_of_time(session: ReplaceableSession, anyio_backend: Any) -> None:
    """None gives all, 0 gives none, and more than there are gives all."""
    await session.add_items([A, B, C])
    assert [await session.get_items(limit) for limit in (None, 0, 1, 2, 3, 9)] == [
        [A, B, C],
        [],
        [C],
        [B, C],
        [A, B, C],
        [A, B, C],
    ]


@pytest.mark.parametrize(("limit", "error"), [(-1, UserValueError), (1.5, UserTypeError), (True, UserTypeError)])
async def test_a_wrong_limit_is_refused(
    session: ReplaceableSession, limit: Any, error: type[Exception], anyio_backend: Any
) -> None:
    """The error names the argument, before anything is read."""
    with pytest.raises(error, match="limit"):
        await session.get_items(limit)


async def test_what_is_returned_is_the_callers_own(session: ReplaceableSession, anyio_backend: Any) -> None:
    """Changing the list changes no session."""
    await session.add_items([A])
    (await session.get_items()).clear()
    (await session.get_items(1)).clear()
    assert await session.get_items() == [A]


async def test_the_latest_item_is_popped(session: ReplaceableSession, anyio_backend: Any) -> None:
    """Items are popped one at a time, until there is none."""
    await session.add_items([A, B])
    assert [await session.pop_item() for _ in range(3)] == [B, A, None]
    await session.add_items([C])
    assert await session.get_items() == [C]


async def test_a_cleared_session_is_empty_and_usable(session: ReplaceableSession, anyio_backend: Any) -> None:
    """Clearing twice is clearing once."""
    await session.add_items([A, B])
    await session.clear()
    await session.clear()
    assert await session.get_items() == []
    await session.add_items([C])
    assert await session.get_items() == [C]


async def test_a_replacement_of_what_was_read_takes_its_place(session: ReplaceableSession, anyio_backend: Any) -> None:
    """The replacement may be empty, and so may the expected items."""
    await session.replace([A, B], expect=[])
    assert await session.get_items() == [A, B]
    await session.replace([D], expect=await session.get_items())
    assert await session.get_items() == [D]
    await session.replace([], expect=(D,))
    assert await session.get_items() == []


@pytest.mark.parametrize("expect", [[A], [A, B, C], [B, A], [A, D], []])
async def test_a_replacement_of_something_else_is_a_conflict(
    session: ReplaceableSession, expect: list[Item], anyio_backend: Any
) -> None:
    """The session stays as it is, and the message tells numbers."""
    await session.add_items([A, B])
    with pytest.raises(SessionConflict, match=r"Session 's' has changed since its items were read: .*2"):
        await session.replace([D], expect=expect)
    assert await session.get_items() == [A, B]


async def test_of_two_replacements_of_one_reading_one_is_a_conflict(
    session: ReplaceableSession, anyio_backend: Any
) -> None:
    """Either may be the first; the other gets the conflict."""
    await session.add_items([A])
    conflicts = []

    async def replace(new: Item) -> None:
        try:
            await session.replace([new], expect=[A])
        except SessionConflict as error:
            conflicts.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(replace, B)
        group.start_soon(replace, C)
    assert len(conflicts) == 1
    assert await session.get_items() in ([B], [C])


async def test_expected_items_may_be_written_with_tuples(session: ReplaceableSession, anyio_backend: Any) -> None:
    """An array equals an array, also when a tuple wrote it."""
    item = UserMessage("x", provider_data=MappingProxyType({"a": (1, 2), "b": MappingProxyType({})}))
    await session.add_items([item])
    await session.replace([A], expect=[item])
    assert await session.get_items() == [A]


@pytest.mark.parametrize("items", ["text", A, None, 5, [A, "b"], [A, None]])
async def test_what_is_no_item_is_refused_and_nothing_is_added(
    session: ReplaceableSession, items: Any, anyio_backend: Any
) -> None:
    """The message names the argument, and the position where there is one."""
    where = r"\[1\]" if isinstance(items, list) else ""
    with pytest.raises(UserTypeError, match=f"items{where}: "):
        await session.add_items(items)
    with pytest.raises(UserTypeError, match=f"items{where}: "):
        await session.replace(items, expect=[])
    with pytest.raises(UserTypeError, match=f"expect{where}: "):
        await session.replace([], expect=items)
    assert await session.get_items() == []


async def test_concurrent_batches_stay_together(session: ReplaceableSession, anyio_backend: Any) -> None:
    """Ten tasks add batches at once, though none of them has used the session before."""
    batches = [[UserMessage(f"{batch}.{n}") for n in range(3)] for batch in range(10)]
    async with anyio.create_task_group() as group:
        for batch in batches:
            group.start_soon(session.add_items, batch)
    stored = await session.get_items()
    assert len(stored) == 30
    assert all(batch in [stored[n : n + 3] for n in range(0, 30, 3)] for batch in batches)


@pytest.mark.backends("trio")
async def test_every_method_is_a_checkpoint(session: ReplaceableSession, anyio_backend: Any) -> None:
    """Each method is a checkpoint also where it needn't wait."""
    calls: list[Callable[[], Any]] = [
        functools.partial(session.get_items, 0),
        functools.partial(session.add_items, [A]),
        functools.partial(session.replace, [A], expect=[A]),
        session.pop_item,
        session.clear,
    ]
    for call in calls:
        with trio.testing.assert_checkpoints():
            await call()


async def test_a_call_that_is_cancelled_before_it_begins_does_nothing(
    session: ReplaceableSession, anyio_backend: Any
) -> None:
    """No method changes anything in a cancelled scope."""
    await session.add_items([A])
    calls: list[Callable[[], Any]] = [
        functools.partial(session.add_items, [B]),
        functools.partial(session.replace, [B], expect=[A]),
        session.pop_item,
        session.clear,
    ]
    for call in calls:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await call()
        assert scope.cancelled_caught
    assert await session.get_items() == [A]


OPERATIONS = st.one_of(
    st.tuples(st.just("add"), st.lists(ITEMS, max_size=3)),
    st.tuples(st.just("get"), st.none() | st.integers(0, 4)),
    st.tuples(st.just("pop"), st.none()),
    st.tuples(st.just("clear"), st.none()),
    st.tuples(st.just("replace"), st.lists(ITEMS, max_size=3)),
)


@pytest.mark.backends("asyncio", "trio")
@settings(max_examples=25)
@given(operations=st.lists(OPERATIONS, max_size=8))
async def test_both_kinds_do_the_same(operations: list[tuple[str, Any]], anyio_backend: Any) -> None:
    """Any operations on any items give the same answers."""
    in_memory = MemorySession()
    async with SQLiteSession(":memory:") as on_file:
        for name, value in operations:
            assert await _operate(in_memory, name, value) == await _operate(on_file, name, value)
        assert await in_memory.get_items() == await on_file.get_items()


async def _operate(session: ReplaceableSession, name: str, value: Any) -> Any:
    match name:
        case "add":
            return await session.add_items(value)
        case "get":
            return await session.get_items(value)
        case "pop":
            return await session.pop_item()
        case "clear":
            return await session.clear()
    return await session.replace(value, expect=await session.get_items())


@pytest.mark.parametrize("make", [MemorySession, functools.partial(SQLiteSession, ":memory:")])
def test_a_session_has_an_id(make: Callable[..., Any]) -> None:
    """The id is `default` where none is given; it must be text that can be stored."""
    assert make().session_id == "default"
    assert "'chat'" in repr(make("chat"))
    for wrong, error in ((5, UserTypeError), ("", UserValueError), ("\ud800", UserValueError)):
        with pytest.raises(error, match="session_id"):
            make(wrong)


def test_the_kinds_are_loaded_at_first_use() -> None:
    """The package of sessions costs no sqlite3."""
    program = (
        "import agentloop.sessions as s, sys; a = 'sqlite3' in sys.modules; "
        "s.MemorySession, s.SQLiteSession; print(a, 'sqlite3' in sys.modules)"
    )
    # Without coverage's start-up hook, which imports sqlite3 itself.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE_", "COV_CORE_"))}
    done = subprocess.run([sys.executable, "-c", program], env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
    assert set(dir(sessions)) == set(sessions.__all__)
    with pytest.raises(AttributeError, match="FileSession"):
        sessions.FileSession


# ---------------------------------------------------------------------------------------------- a file


async def test_a_file_outlives_the_object_and_keeps_sessions_apart(path: Path, anyio_backend: Any) -> None:
    """Another object finds the same items later; another id has other items."""
    async with SQLiteSession(path, "one") as one, SQLiteSession(str(path), "two") as two:
        await one.add_items(HISTORY)
        await two.add_items([A, B])
        await two.clear()
        await two.add_items([C])
    async with SQLiteSession(path, "one") as one, SQLiteSession(path, "two") as two:
        assert await one.get_items() == HISTORY
        assert await two.get_items() == [C]
        assert await two.pop_item() == C
        assert await two.pop_item() is None


async def test_the_file_uses_write_ahead_logging(path: Path, anyio_backend: Any) -> None:
    """Readers don't wait for a writer."""
    async with SQLiteSession(path) as session:
        await session.add_items([A])
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            other.execute("BEGIN IMMEDIATE")
            assert await session.get_items() == [A]
            other.execute("ROLLBACK")


async def test_a_batch_that_fails_half_way_leaves_nothing(path: Path, anyio_backend: Any) -> None:
    """The third of four rows is refused by the file itself."""
    async with SQLiteSession(path) as session:
        await session.add_items([A])
        execute(
            path,
            "CREATE TRIGGER refuse BEFORE INSERT ON agentloop_session_items WHEN NEW.item LIKE '%\"d\"%' "
            "BEGIN SELECT RAISE(ABORT, 'no d'); END",
        )
        with pytest.raises(StateError, match=r"Session 'default' in .*s\.db: no d"):
            await session.add_items([B, C, D, A])
        with pytest.raises(StateError, match="no d"):
            await session.replace([B, D], expect=[A])
        assert await session.get_items() == [A]
        await session.add_items([B])
        assert await session.get_items() == [A, B]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"a": b"bytes"}, UserTypeError),
        ({"a": object()}, UserTypeError),
        ({"a": float("nan")}, UserValueError),
        ({(1, 2): 3}, UserTypeError),
    ],
)
async def test_what_json_can_not_hold_is_refused_where_it_is_given(
    path: Path, data: Any, error: type[Exception], anyio_backend: Any
) -> None:
    """The error names the item's position; nothing of the batch is stored."""
    async with SQLiteSession(path) as session:
        with pytest.raises(error, match=r"items\[1\]: "):
            await session.add_items([A, UserMessage("x", provider_data=data)])
        assert await session.get_items() == []


async def test_data_nested_in_itself_is_refused(path: Path, anyio_backend: Any) -> None:
    """Data that holds itself has no JSON form either."""
    loop: dict[str, Any] = {}
    loop["again"] = loop
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    async with SQLiteSession(path) as session:
        for data in (loop, {"deep": deep}):
            with pytest.raises((UserTypeError, UserValueError), match=r"items\[0\]: "):
                await session.add_items([UserMessage("x", provider_data=data)])


# ---------------------------------------------------------------------------------------------- damage

BAD_ROWS = (
    "{cut off",
    b"\xff\xfe not text",
    '{"type": "user_message"}',
    '{"type": "user_message", "content": [], "later_field": 1}',
    '"no object"',
    "[" * 100_000,
    7,
    "",
)


@pytest.mark.parametrize("bad", BAD_ROWS)
async def test_a_row_that_can_not_be_read_is_left_out_and_named_once(
    path: Path, bad: Any, caplog: pytest.LogCaptureFixture, anyio_backend: Any
) -> None:
    """The row's neighbours are unharmed, limits count the readable rows, and the row stays in the file."""
    async with SQLiteSession(path) as session:
        await session.add_items([A, B, C])
        execute(path, "UPDATE agentloop_session_items SET item = ? WHERE id = 2", bad)
        with caplog.at_level(logging.WARNING, "agentloop"):
            assert await session.get_items() == [A, C]
            assert await session.get_items(2) == [A, C]
            assert await session.get_items(1) == [C]
            await session.replace([A, C, D], expect=[A, C])
            assert [await session.pop_item() for _ in range(4)] == [D, C, A, None]
        (record,) = caplog.records
        assert "row 2 of" in record.getMessage()
        assert "cut" not in record.getMessage(), "what stands there may be a secret"
        assert [row[0] for row in rows(path)] == [2]
        await session.clear()
        assert rows(path) == []


async def test_each_bad_row_has_its_own_warning(
    path: Path, caplog: pytest.LogCaptureFixture, anyio_backend: Any
) -> None:
    """Two rows give two warnings, however often they are read."""
    async with SQLiteSession(path) as session:
        await session.add_items([A, B, C])
        execute(path, "UPDATE agentloop_session_items SET item = 'x' WHERE id > 1")
        with caplog.at_level(logging.WARNING, "agentloop"):
            for _ in range(3):
                assert await session.get_items() == [A]
        assert [text.split()[3] for text in sorted(caplog.messages)] == ["2", "3"]


async def test_a_column_without_a_value_is_damage_too(path: Path, anyio_backend: Any) -> None:
    """A table that something else has made may allow what ours doesn't."""
    execute(path, "CREATE TABLE agentloop_session_items (id INTEGER PRIMARY KEY, session_id TEXT, item TEXT)")
    execute(path, "INSERT INTO agentloop_session_items (session_id) VALUES ('default')")
    async with SQLiteSession(path) as session:
        assert await session.get_items() == []


async def test_a_file_that_is_no_database_is_a_state_error(tmp_path: Path, anyio_backend: Any) -> None:
    """A folder and a path into nowhere are refused too; the message names the session and the file."""
    text = tmp_path / "text.db"
    text.write_text("not a database, though longer than the hundred bytes that a database's head takes " * 3)
    for where in (text, tmp_path, tmp_path / "none" / "s.db"):
        async with SQLiteSession(where, "chat") as session:
            for _ in range(2):
                with pytest.raises(StateError, match=r"Session 'chat' in ") as caught:
                    await session.get_items()
                assert isinstance(caught.value.__cause__, sqlite3.Error)


# ---------------------------------------------------------------------------------------------- locks and processes


async def test_a_lock_that_does_not_go_away_is_a_state_error(path: Path, anyio_backend: Any) -> None:
    """The error comes after `busy_timeout`; once the lock is gone the session works."""
    async with SQLiteSession(path, busy_timeout=0) as session:
        await session.add_items([A])
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StateError, match="locked"):
                await session.add_items([B])
            other.execute("ROLLBACK")
        await session.add_items([C])
        assert await session.get_items() == [A, C]


async def test_first_use_of_a_locked_file_fails_in_time_and_can_be_repeated(path: Path, anyio_backend: Any) -> None:
    """Turning to write-ahead logging is tried until `busy_timeout` while another connection holds the whole file."""
    async with SQLiteSession(path, busy_timeout=0.05) as session:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("CREATE TABLE other (x)")
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(StateError, match="locked"):
                await session.get_items()
            other.execute("ROLLBACK")
        assert await session.get_items() == []


WRITER = """
import sys, anyio
from agentloop.items import UserMessage
from agentloop.sessions import SQLiteSession

async def main(path, name):
    sys.stdin.read(1)
    async with SQLiteSession(path, busy_timeout=30) as session:
        for n in range(20):
            await session.add_items([UserMessage(f"{name} {n} {part}") for part in range(3)])

anyio.run(main, *sys.argv[1:])
"""


@pytest.mark.slow
def test_two_processes_may_use_a_new_file_at_once(path: Path) -> None:
    """The processes start together; each batch of each is there, whole and in its writer's order."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, name], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        for name in ("left", "right")
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"!")
        writer.stdin.flush()
    for writer in writers:
        _, complaints = writer.communicate(timeout=50)
        assert writer.returncode == 0, complaints.decode()

    async def read() -> list[Item]:
        async with SQLiteSession(path) as session:
            return await session.get_items()

    texts = [item.text for item in anyio.run(read) if isinstance(item, UserMessage)]
    batches = [texts[n : n + 3] for n in range(0, len(texts), 3)]
    for name in ("left", "right"):
        own = [batch for batch in batches if batch[0].startswith(name)]
        assert own == [[f"{name} {n} {part}" for part in range(3)] for n in range(20)]
    assert len(texts) == 120


async def test_first_use_by_many_objects_at_once(path: Path, anyio_backend: Any) -> None:
    """Eight connections make the file together."""
    objects = [SQLiteSession(path, busy_timeout=30) for _ in range(8)]
    async with anyio.create_task_group() as group:
        for number, each in enumerate(objects):
            group.start_soon(each.add_items, [UserMessage(f"{number}"), UserMessage(f"{number}")])
    stored = await objects[0].get_items()
    assert len(stored) == 16
    assert stored[::2] == stored[1::2]
    for each in objects:
        await each.aclose()


# ---------------------------------------------------------------------------------------------- loops and cancellation


def test_one_object_serves_one_loop_after_the_other(path: Path) -> None:
    """Nothing of a loop that has ended holds it back."""
    session = SQLiteSession(path)
    for backend in ("asyncio", "trio", "asyncio"):
        anyio.run(session.add_items, [UserMessage(backend)], backend=backend)
    stored = anyio.run(session.get_items)
    assert stored == [UserMessage(name) for name in ("asyncio", "trio", "asyncio")]
    anyio.run(session.aclose)


def test_one_object_serves_two_loops_at_once(path: Path) -> None:
    """The calls of both loops take turns in the thread."""
    session = SQLiteSession(path)

    async def add() -> None:
        for n in range(20):
            await session.add_items([UserMessage(f"{n}")] * 2)

    threads = [
        threading.Thread(target=anyio.run, args=(add,), kwargs={"backend": name}) for name in ("trio", "asyncio")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = anyio.run(session.get_items)
    assert len(stored) == 80
    assert stored[::2] == stored[1::2]
    anyio.run(session.aclose)


@pytest.fixture
def held(path: Path, door: Door) -> SQLiteSession:
    """A session whose threads stop at the door."""
    session = SQLiteSession(path)
    session._in_thread = door  # type: ignore[assignment]
    return session


async def test_a_call_that_has_begun_completes_and_a_waiting_one_never_begins(
    held: SQLiteSession, door: Door, anyio_backend: Any
) -> None:
    """A call that has begun is done whole, and a waiting one not at all."""
    limiter = held._limiter_here()
    async with anyio.create_task_group() as group:
        group.start_soon(held.add_items, [A, B])
        await until(lambda: door.arrived == 1)
        group.start_soon(held.add_items, [C])
        await until(lambda: limiter.statistics().tasks_waiting == 1)
        group.cancel_scope.cancel()
        door.opened.set()
    assert await held.get_items() == [A, B]
    await held.aclose()


@pytest.mark.backends("asyncio", "asyncio-eager")
async def test_a_native_cancellation_leaves_the_session_consistent(
    held: SQLiteSession, door: Door, anyio_backend: Any
) -> None:
    """asyncio lets go of a thread that has begun; what follows waits for it inside the thread."""
    adding = asyncio.create_task(held.add_items([A, B]))
    await until(lambda: door.arrived == 1)
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    reading = asyncio.create_task(held.get_items())
    await until(lambda: door.arrived == 2)
    door.opened.set()
    assert await reading in ([], [A, B])
    await until(lambda: door.left == 2)
    assert await held.get_items() == [A, B]
    await held.aclose()


# ---------------------------------------------------------------------------------------------- closing


async def test_a_closed_session_can_not_be_used(path: Path, anyio_backend: Any) -> None:
    """Closing twice is closing once; what was stored stays."""
    async with SQLiteSession(path) as session:
        await session.add_items([A])
    await session.aclose()
    with pytest.raises(UserError, match=r"SQLiteSession\('.*s\.db', 'default'\) is closed"):
        await session.get_items()
    assert len(rows(path)) == 1
    assert not path.with_name("s.db-wal").exists(), "the last connection is closed"


async def test_a_session_that_was_never_used_makes_no_file(path: Path, anyio_backend: Any) -> None:
    """Nothing is opened before the first call."""
    async with SQLiteSession(path):
        pass
    assert not await anyio.Path(path).exists()


async def test_a_session_is_closed_in_a_cancelled_scope_too(path: Path, anyio_backend: Any) -> None:
    """The file is closed however the block is left."""
    with anyio.CancelScope() as scope:
        async with SQLiteSession(path) as session:
            await session.add_items([A])
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert not path.with_name("s.db-wal").exists()


@pytest.mark.slow
async def test_a_forgotten_session_is_closed_by_the_collector(path: Path, anyio_backend: Any) -> None:
    """The collector closes a forgotten session without a warning about an open connection."""
    session = SQLiteSession(path)
    await session.add_items([A])
    connection = session._connection.get()
    del session
    gc.collect()
    # The worker thread may be the last that lets go of the session, and may be closing it still.
    with anyio.fail_after(60):
        while path.with_name("s.db-wal").exists():  # noqa: ASYNC110 - a file tells of no event
            await anyio.sleep(0.001)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


@pytest.mark.parametrize(
    ("make", "error", "name"),
    [
        (lambda: SQLiteSession(5), UserTypeError, "path"),  # type: ignore[arg-type]
        (lambda: SQLiteSession(None), UserTypeError, "path"),  # type: ignore[arg-type]
        (lambda: SQLiteSession("x", busy_timeout=-1), UserValueError, "busy_timeout"),
        (lambda: SQLiteSession("x", busy_timeout="1"), UserTypeError, "busy_timeout"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_argument_is_refused_by_name(make: Callable[[], Any], error: type[Exception], name: str) -> None:
    """The error comes when the session is made."""
    with pytest.raises(error, match=name):
        make()
