"""Journals in files: processes and locks, kills, loops and cancellation, damage, and what can't be opened."""

import asyncio
import gc
import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import anyio
import anyio.lowlevel
import pytest
from edges.door import Door, until

from agentloop import journal as package
from agentloop.abc import Journal
from agentloop.exceptions import JournalError, UserTypeError, UserValueError
from agentloop.journal import FileJournal, MemoryJournal, SQLiteJournal, _storage
from agentloop.journal._storage import FileStorage
from agentloop.journal._thread import OneAtATime

pytestmark = pytest.mark.real_clock  # files are written in threads

A, B, C = ([json.dumps({"kind": name}).encode()] for name in "abc")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the journal will be."""
    return tmp_path / "journal"


@pytest.fixture(params=["file", "sqlite"])
def make(request: pytest.FixtureRequest, path: Path) -> Callable[[], FileJournal | SQLiteJournal]:
    """Makes journals for one place, of each kind."""
    return (lambda: FileJournal(path)) if request.param == "file" else (lambda: SQLiteJournal(path, "run"))


# ---------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("records", "error", "place"),
    [
        (b"{}", UserTypeError, "records: expected a sequence of bytes, got bytes"),
        ("{}", UserTypeError, "records: "),
        (None, UserTypeError, "records: "),
        ({b"{}"}, UserTypeError, "records: "),
        ([b"{}", "{}"], UserTypeError, r"records\[1\]: expected bytes, got str"),
        ([bytearray(b"{}")], UserTypeError, r"records\[0\]: "),
        ([b"[]"], UserValueError, r"records\[0\]: expected JSON text of one object, on one line"),
        ([b"{}", b"{"], UserValueError, r"records\[1\]: "),
        ([b'{"a":secret}'], UserValueError, r"records\[0\]: "),
        ([b'{"a":NaN}'], UserValueError, r"records\[0\]: "),
        ([b'{"a":\n1}'], UserValueError, r"records\[0\]: "),
        ([b'{"a":"\xff"}'], UserValueError, r"records\[0\]: "),
        ([b'{"a":"\0"}'], UserValueError, r"records\[0\]: "),
        ([b" {}"], UserValueError, r"records\[0\]: "),
        ([b'{"a":' * 99_999 + b"0" + b"}" * 99_999], UserValueError, r"records\[0\]: "),
    ],
    ids=str,
)
async def test_what_is_no_record_is_refused_and_nothing_written(
    records: Any, error: type[Exception], place: str, make: Callable[[], Journal], anyio_backend: Any
) -> None:
    """Each kind refuses it; the message names the position and quotes nothing; the journal can still be used."""
    for journal in (make(), MemoryJournal()):
        with pytest.raises(error, match=place) as caught:
            await journal.append(records)
        assert "secret" not in str(caught.value)
        await journal.append(A)
        assert await journal.read() == A
        await journal.aclose()


@pytest.mark.parametrize(
    ("wrong", "error", "name"),
    [
        (lambda: FileJournal(5), UserTypeError, "path"),  # type: ignore[arg-type]
        (lambda: FileJournal(""), UserValueError, "path"),
        (lambda: FileJournal("a\0b"), UserValueError, "path"),
        (lambda: FileJournal("x", fsync="sometimes"), UserValueError, "fsync: expected one of always, batch, never"),  # type: ignore[arg-type]
        (lambda: FileJournal("x", key="text"), UserTypeError, "key"),  # type: ignore[arg-type]
        (lambda: FileJournal("x", codec=5), UserTypeError, "codec"),  # type: ignore[arg-type]
        (lambda: MemoryJournal(codec=str), UserTypeError, "codec"),  # type: ignore[arg-type]
        (lambda: SQLiteJournal(5, "r"), UserTypeError, "path"),  # type: ignore[arg-type]
        (lambda: SQLiteJournal("x", 5), UserTypeError, "run_id"),  # type: ignore[arg-type]
        (lambda: SQLiteJournal("x", ""), UserValueError, "run_id"),
        (lambda: SQLiteJournal("x", "\ud800"), UserValueError, "run_id"),
        (lambda: SQLiteJournal("x", "r", busy_timeout=-1), UserValueError, "busy_timeout"),
    ],
)
def test_wrong_arguments_are_named(wrong: Callable[[], Any], error: type[Exception], name: str) -> None:
    """The error comes where the journal is made, before anything is opened."""
    with pytest.raises(error, match=name):
        wrong()


def test_kinds_are_loaded_at_first_use() -> None:
    """The package of journals costs neither sqlite3 nor threads of anyio's."""
    program = (
        "import agentloop.journal as j, sys; before = {'sqlite3', 'agentloop.journal.file'} & set(sys.modules);"
        "j.MemoryJournal, j.FileJournal; between = 'sqlite3' in sys.modules;"
        "j.SQLiteJournal; print(bool(before), between, 'sqlite3' in sys.modules)"
    )
    # Without coverage's start-up hook, which imports sqlite3 itself.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE_", "COV_CORE_"))}
    done = subprocess.run([sys.executable, "-c", program], env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "True"]
    assert set(dir(package)) == set(package.__all__)
    with pytest.raises(AttributeError, match="RedisJournal"):
        package.RedisJournal


async def test_each_kind_names_itself_without_its_key(path: Path, anyio_backend: Any) -> None:
    """Errors and logs have the journal's name."""
    assert repr(FileJournal("a.jsonl", key=b"secret")) == "FileJournal('a.jsonl')"
    assert repr(SQLiteJournal("a.db", "run", key=b"secret")) == "SQLiteJournal('a.db', 'run')"
    async with MemoryJournal() as journal:
        pass
    with pytest.raises(JournalError, match=r"MemoryJournal\(\) is closed"):
        await journal.read()


# ---------------------------------------------------------------------------------------------- what can't be opened


async def test_a_place_that_can_not_be_written_is_a_journal_error(tmp_path: Path, anyio_backend: Any) -> None:
    """The place may be a folder, a path into nowhere or a foreign file; the error names the journal."""
    text = tmp_path / "text"
    text.write_text("not a journal, though longer than the hundred bytes that a database's head takes " * 3)
    makers: list[Callable[[Path], Journal]] = [FileJournal, lambda where: SQLiteJournal(where, "run")]
    for make_one in makers:
        for where in (text, tmp_path, tmp_path / "none" / "journal"):
            journal = make_one(where)
            with pytest.raises(JournalError, match="Journal"):
                await journal.append(A)
            with pytest.raises(JournalError, match="takes no more records since it failed"):
                await journal.append(A)
            await journal.aclose()
    assert text.read_text().startswith("not a journal")
    assert not (tmp_path / "none").exists()  # noqa: ASYNC240 - one look
    with pytest.raises(JournalError) as caught:
        await FileJournal(tmp_path).read()
    assert isinstance(caught.value.__cause__, IsADirectoryError)
    async with FileJournal(tmp_path / "none" / "journal") as nowhere:
        with pytest.raises(JournalError, match="No such file or directory; the folder of the file must exist"):
            await nowhere.append(A)


async def test_reading_makes_no_file(path: Path, anyio_backend: Any) -> None:
    """An append of nothing makes no file either, nor does opening and closing."""
    async with FileJournal(path) as journal:
        assert await journal.read() == []
        await journal.append([])
    async with SQLiteJournal(path, "run"):
        pass
    assert not await anyio.Path(path).exists()


async def test_a_file_is_one_line_a_record(path: Path, anyio_backend: Any) -> None:
    """Any tool that reads JSON Lines can read it."""
    async with FileJournal(path) as journal:
        await journal.append(A + B)
        await journal.append(C)
    lines = [json.loads(line) for line in path.read_text().splitlines()]  # noqa: ASYNC240 - one look
    assert [line["record"]["kind"] for line in lines] == ["a", "b", "c"]
    assert [line["n"] for line in lines] == [0, 1, 2]


async def test_a_torn_file_is_cut_and_written_on(path: Path, anyio_backend: Any) -> None:
    """The writer continues after the last whole batch; a reader without the lock leaves the file as it is."""
    async with FileJournal(path) as journal:
        await journal.append(A)
        await journal.append(B + C)
    whole = path.read_bytes()  # noqa: ASYNC240 - one look
    path.write_bytes(whole[:-7])  # noqa: ASYNC240
    async with FileJournal(path) as reader, FileJournal(path) as writer:
        assert await reader.read() == A
        await writer.append(C)
        assert await writer.read() == A + C
    lines = path.read_bytes().splitlines()  # noqa: ASYNC240
    assert [json.loads(line)["record"] for line in lines] == [{"kind": "a"}, {"kind": "c"}]


async def test_a_file_shorter_than_what_was_read_is_refused(path: Path, anyio_backend: Any) -> None:
    """The records that this journal continues from are gone."""
    async with FileJournal(path) as journal:
        await journal.append(A)
        await journal.append(B)
    async with FileJournal(path) as journal:
        assert await journal.read() == A + B
        path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])  # noqa: ASYNC240
        with pytest.raises(JournalError, match="2 records were read, it holds 1"):
            await journal.append(C)


def test_a_file_that_is_not_open_can_not_be_written(path: Path) -> None:
    """The lock comes first; and closing twice is closing once."""
    storage = FileStorage(str(path))
    with pytest.raises(ValueError, match="closed file"):
        storage.write(b"x")
    storage.open(durable=True)
    storage.write(b"x" * 100_000)
    storage.close()
    storage.close()
    assert storage.read() == b"x" * 100_000


@pytest.mark.slow
def test_a_hole_of_any_size_is_not_read_whole(path: Path) -> None:
    """A few lines before it are found, and it counts as what a crash has lost; so an append cuts it off."""
    storage = FileStorage(str(path))
    storage.open(durable=True)
    storage.write(b'{"x":1}\n')
    storage.close()
    os.truncate(path, 1 << 40)
    found = storage.read()
    assert found.startswith(b'{"x":1}\n\0')
    assert len(found) <= (_storage._MOST_ZEROS + 1) * _storage._CHUNK
    for size in (0, 1, _storage._CHUNK, 3 * _storage._CHUNK + 1):
        whole = b'{"x":1}\n' + bytes(size) + b'{"x":2}\n'
        path.write_bytes(whole)
        assert storage.read() == whole


def test_a_file_of_another_kind_is_read_in_part(path: Path) -> None:
    """Its first bytes show that it is no text of lines."""
    path.write_bytes(b"SQLite" * _storage._CHUNK)
    assert len(FileStorage(str(path)).read()) == _storage._CHUNK


@pytest.mark.timeout(30)  # the opening of a pipe waits for a writer
@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder"])
async def test_what_is_no_file_is_an_error(path: Path, kind: str) -> None:
    """Nothing is waited for, and nothing is read without end."""
    if kind == "a device":
        os.symlink("/dev/zero", path)
    else:
        (os.mkfifo if kind == "a pipe" else os.mkdir)(path)
    async with FileJournal(path) as journal:
        with pytest.raises(JournalError, match=r"no regular file|Is a directory"):
            await journal.read()
        with pytest.raises(JournalError):
            await journal.append(A)
    with pytest.raises(JournalError, match=r"no regular file|Is a directory"):
        package.read_journal(path)


# ---------------------------------------------------------------------------------------------- locks and processes

HOLDER = """
import sys, anyio
from agentloop.journal import FileJournal

async def main(path):
    async with FileJournal(path) as journal:
        await journal.append([b'{"kind":"theirs"}'])
        print("held", flush=True)
        sys.stdin.read(1)

anyio.run(main, *sys.argv[1:])
"""
# Batches of one to four records, from the first that isn't there, each told when its append has returned.
WRITER = """
import sys, anyio, json
from agentloop.journal import FileJournal, SQLiteJournal

async def main(path, kind):
    journal = SQLiteJournal(path, "run") if kind == "sqlite" else FileJournal(path, fsync=kind)
    async with journal:
        found = await journal.read()
        batch = json.loads(found[-1])["batch"] + 1 if found else 0
        print("ready", flush=True)
        while True:
            size = batch % 4 + 1
            await journal.append(
                [json.dumps({"batch": batch, "part": part, "pad": "x" * 3000}).encode() for part in range(size)]
            )
            print(batch, flush=True)
            batch += 1

anyio.run(main, *sys.argv[1:])
"""


def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a child process."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )


@pytest.mark.slow
def test_a_second_process_is_refused_until_the_first_has_gone(path: Path) -> None:
    """The second process may read meanwhile. A lock ends with its process, also with a killed one."""

    async def second() -> None:
        journal = FileJournal(path)
        assert await journal.read() == [b'{"kind":"theirs"}']
        with pytest.raises(JournalError, match=r"journal'\) is being written by another journal object or process"):
            await journal.append(A)
        await journal.aclose()

    async def third() -> None:
        async with FileJournal(path) as journal:
            await journal.append(A)
            assert await journal.read() == [b'{"kind":"theirs"}', *A]

    with start(HOLDER, str(path)) as holder:
        assert _line(holder.stdout) == b"held"
        anyio.run(second)
        holder.kill()
    anyio.run(third)


def _line(stream: IO[bytes] | None) -> bytes:
    assert stream is not None
    return stream.readline().strip()


async def test_the_lock_can_be_asked_for_before_anything_is_written(path: Path, anyio_backend: Any) -> None:
    """One object has it until it is closed; the other one is told so and still works when its turn comes."""
    async with FileJournal(path) as first, FileJournal(path) as second:
        await first.append(A)
        assert await first.try_lock()
        assert not await second.try_lock()
        await first.append(B)
        await first.aclose()
        with pytest.raises(JournalError, match="is closed"):
            await first.try_lock()
        assert await second.try_lock()
        await second.append(C)
        assert await second.read() == [*A, *B, *C]


async def test_a_second_object_of_the_same_process_is_refused_too(path: Path, anyio_backend: Any) -> None:
    """Reading, which opens and closes the file beside it, doesn't give the lock up."""
    async with FileJournal(path) as first, FileJournal(path) as second, FileJournal(path) as third:
        await first.append(A)
        assert await second.read() == A
        with pytest.raises(JournalError, match="is being written by another"):
            await second.append(B)
        with pytest.raises(JournalError, match="is being written by another"):
            await third.append(B)
        await first.append(C)
        assert await second.read() == A + C


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["always", "batch", "never", "sqlite"])
def test_a_killed_writer_leaves_whole_batches_and_each_that_was_appended(path: Path, kind: str) -> None:
    """The writer is killed at five random moments, after some appends each; every restart continues the same file."""
    told = -1
    for life in range(5):
        with start(WRITER, str(path), kind) as writer:
            assert _line(writer.stdout) == b"ready"
            for _ in range(7 * life):
                told = int(_line(writer.stdout))
            writer.kill()
            assert writer.stdout is not None
            rest = writer.stdout.read().split(b"\n")[:-1]  # the last one may be torn as well
        told = int(rest[-1]) if rest else told
        found = [json.loads(record) for record in anyio.run(_read, path, kind)]
        there = [(record["batch"], record["part"]) for record in found]
        batches = max((batch for batch, _ in there), default=-1) + 1
        assert there == [(batch, part) for batch in range(batches) for part in range(batch % 4 + 1)]
        assert told < batches <= told + 2


async def _read(path: Path, kind: str) -> list[bytes]:
    async with SQLiteJournal(path, "run") if kind == "sqlite" else FileJournal(path) as journal:
        return await journal.read()


# ---------------------------------------------------------------------------------------------- loops and cancellation


@pytest.fixture
def held(
    make: Callable[[], FileJournal | SQLiteJournal], door: Door, monkeypatch: pytest.MonkeyPatch
) -> FileJournal | SQLiteJournal:
    """A journal whose threads stop at the door."""
    journal, run = make(), OneAtATime.run

    def through_door(lane: OneAtATime, work: Callable[[], Any]) -> Any:
        def enter() -> Any:
            with door:
                return work()

        return run(lane, enter)

    monkeypatch.setattr(OneAtATime, "run", through_door)
    return journal


async def test_an_append_that_has_begun_is_finished_and_says_so(
    held: FileJournal | SQLiteJournal, door: Door, anyio_backend: Any
) -> None:
    """A cancelled scope waits for it; it returns, and the cancellation shows at the next checkpoint."""
    steps = []

    async def append() -> None:
        await held.append(A + B)
        steps.append("returned")
        await anyio.lowlevel.checkpoint()
        steps.append("never")

    async with anyio.create_task_group() as group:
        group.start_soon(append)
        await until(lambda: door.arrived == 1)
        group.cancel_scope.cancel()
        door.opened.set()
    assert steps == ["returned"]
    assert await held.read() == A + B
    await held.aclose()


async def test_an_append_that_waits_for_its_turn_does_nothing_when_cancelled(
    held: FileJournal | SQLiteJournal, door: Door, anyio_backend: Any
) -> None:
    """The append waits behind another one, without a thread."""
    async with anyio.create_task_group() as group:
        group.start_soon(held.append, A)
        await until(lambda: door.arrived == 1)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await held.append(B)
        assert scope.cancelled_caught
        door.opened.set()
    assert await held.read() == A
    await held.aclose()


@pytest.mark.backends("asyncio", "asyncio-eager")
async def test_a_native_cancellation_lets_the_append_finish_by_itself(
    held: FileJournal | SQLiteJournal, door: Door, anyio_backend: Any
) -> None:
    """asyncio lets go of a thread that has begun; what follows comes after it."""
    appending = asyncio.create_task(held.append(A + B))
    await until(lambda: door.arrived == 1)
    appending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await appending
    following = asyncio.create_task(held.append(C))
    await anyio.lowlevel.checkpoint()
    door.opened.set()
    await following
    assert door.left == 2
    assert await held.read() == A + B + C
    await held.aclose()


def test_one_object_serves_two_loops_at_once(make: Callable[[], Journal]) -> None:
    """The appends of both loops take turns in the thread."""
    journal = make()

    async def append() -> None:
        for _ in range(10):
            await journal.append(A + B)

    threads = [
        threading.Thread(target=anyio.run, args=(append,), kwargs={"backend": name}) for name in ("trio", "asyncio")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert anyio.run(journal.read) == (A + B) * 20
    anyio.run(journal.aclose)


def test_a_journal_goes_on_with_the_other_backend(make: Callable[[], Journal]) -> None:
    """One backend writes the journal, the other reads it and writes further records."""

    async def add(records: list[bytes]) -> list[bytes]:
        journal = make()
        before = await journal.read()
        await journal.append(records)
        await journal.aclose()
        return before

    assert anyio.run(add, A, backend="trio") == []
    assert anyio.run(add, B, backend="asyncio") == A
    assert anyio.run(add, C, backend="trio") == A + B


async def test_a_journal_is_closed_in_a_cancelled_scope_too(
    make: Callable[[], FileJournal | SQLiteJournal], anyio_backend: Any
) -> None:
    """The lock is given back however the block is left."""
    with anyio.CancelScope() as scope:
        async with make() as journal:
            await journal.append(A)
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    async with make() as journal:
        await journal.append(B)
        assert await journal.read() == A + B


@pytest.mark.slow
async def test_a_forgotten_journal_is_let_go_by_the_collector(make: Callable[[], Journal], anyio_backend: Any) -> None:
    """The collector gives its lock back too, without a warning about an open connection."""
    journal = make()
    await journal.append(A)
    del journal
    gc.collect()
    again = make()
    await again.append(B)
    assert await again.read() == A + B
    await again.aclose()


# ---------------------------------------------------------------------------------------------- in a database


def rows(path: Path) -> list[tuple[str, int, bytes]]:
    """Return the rows of the database, past the library."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT run_id, n, line FROM agentloop_journal_lines ORDER BY run_id, n").fetchall()


def execute(path: Path, statement: str, *values: Any) -> None:
    """Change the database past the library."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


async def test_a_database_holds_many_runs(path: Path, anyio_backend: Any) -> None:
    """The runs are written side by side, and none sees another."""
    async with SQLiteJournal(path, "one") as one, SQLiteJournal(path, "two", key=b"k") as two:
        await one.append(A)
        await two.append(B + C)
        await one.append(C)
        assert await one.read() == A + C
        assert await two.read() == B + C
    assert [(run, n) for run, n, _ in rows(path)] == [("one", 0), ("one", 1), ("two", 0), ("two", 1)]


async def test_a_database_syncs_each_commit(path: Path, anyio_backend: Any) -> None:
    """The database has a write-ahead log, synced in full."""
    async with SQLiteJournal(path, "run") as journal:
        await journal.append(A)
        connection = journal._rows._connection.get()
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_who_goes_on_elsewhere_takes_the_run_over(path: Path, anyio_backend: Any) -> None:
    """The earlier writer collides with the first record of the later one, and writes nothing of its batch."""
    async with SQLiteJournal(path, "run") as before, SQLiteJournal(path, "run") as after:
        await before.append(A)
        await after.append(B)
        with pytest.raises(JournalError, match="something else has written to it") as caught:
            await before.append(C + C)
        assert isinstance(caught.value.__cause__, sqlite3.IntegrityError)
        await after.append(C)
        assert await after.read() == A + B + C


@pytest.mark.parametrize("others", [1, 2])
async def test_a_file_in_the_place_of_an_open_journal_is_not_read_as_its_own(
    path: Path, others: int, anyio_backend: Any
) -> None:
    """Also one of as many records, all valid: they aren't what this journal has written."""
    async with FileJournal(path) as journal:
        await journal.append([b'{"n":1}'])
        elsewhere = path.with_name("elsewhere")
        async with FileJournal(elsewhere) as another:
            await another.append([b'{"n":2}'] * others)
        elsewhere.replace(path)
        with pytest.raises(JournalError, match="it isn't what was written: something else has changed it"):
            await journal.read()
        with pytest.raises(JournalError, match="it isn't what was written"):
            await journal.read()


async def test_a_writer_that_reads_what_another_wrote_is_told(path: Path, anyio_backend: Any) -> None:
    """The other writer's batch can't be what this journal continues from."""
    async with SQLiteJournal(path, "run") as before, SQLiteJournal(path, "run") as after:
        await before.append(A)
        await after.append(B)
        with pytest.raises(JournalError, match="something else has written to it"):
            await before.read()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("SET line = replace(CAST(line AS TEXT), 'b', 'x') WHERE n = 1", "line 2 is damaged"),
        ("SET line = CAST(replace(line, 'kind', 'kund') AS BLOB) WHERE n = 1", "line 2 was changed"),
        ("SET line = x'00' WHERE n = 2", "the batch that begins at line 2 isn't whole"),
        ("SET line = line || x'0a' WHERE n = 2", "line 3 is damaged"),
        ("SET n = 7 WHERE n = 2", "line 3 is damaged or missing"),
        ("SET run_id = 'other' WHERE n = 0", "line 1 is damaged or missing"),
        ("SET run_id = 'other' WHERE n = 1", "line 2 is damaged or missing"),
        ("SET run_id = 'other' WHERE n = 2", "the batch that begins at line 2 isn't whole"),
    ],
)
async def test_a_changed_row_is_an_error_naming_its_line(
    path: Path, change: str, complaint: str, anyio_backend: Any
) -> None:
    """No row is ever torn, so none is cut off."""
    async with SQLiteJournal(path, "run") as journal:
        await journal.append(A)
        await journal.append(B + C)
    execute(path, f"UPDATE agentloop_journal_lines {change}")
    async with SQLiteJournal(path, "run") as journal:
        with pytest.raises(JournalError, match=complaint):
            await journal.read()
        with pytest.raises(JournalError, match=complaint):
            await journal.append(A)


async def test_the_key_of_a_database_is_asked_for(path: Path, anyio_backend: Any) -> None:
    """A database is opened with its key, as a file is."""
    async with SQLiteJournal(path, "run", key=b"k") as journal:
        await journal.append(A)
    async with SQLiteJournal(path, "run", key=b"other") as journal:
        with pytest.raises(JournalError, match="not the one given"):
            await journal.read()


async def test_a_database_that_stays_locked_is_a_journal_error(path: Path, anyio_backend: Any) -> None:
    """The error comes after `busy_timeout`."""
    async with SQLiteJournal(path, "run", busy_timeout=0) as journal:
        await journal.append(A)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(JournalError, match="locked") as caught:
                await journal.append(B)
            other.execute("ROLLBACK")
        assert isinstance(caught.value.__cause__, sqlite3.Error)
        assert await journal.read() == A
