"""Memories of processes that are killed at any write, and of two that write one file."""

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from bundles import memory_program

from agentloop.bundles import FolderMemory, SQLiteMemory

pytestmark = [pytest.mark.real_clock, pytest.mark.slow]
TESTS = Path(__file__).parent.parent

BEFORE = {"a.md": "one\n" * 2_000, "folder/b.md": "b\n", "c.md": "c\n"}
CHANGES: dict[str, str | None] = {"a.md": "two\n" * 2_000, "folder/b.md": None, "new/d.md": "d\n" * 2_000, "c.md": None}
AFTER = {path: text for path, text in CHANGES.items() if text is not None}

KILLED_IN_FOLDER = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import anyio, pytest
from bundles import test_memory_processes as here
from executors.test_local_editor import Faults
def die(name): os.kill(os.getpid(), signal.SIGKILL)
for at in map(int, sys.argv[2:]):
    child = os.fork()
    if not child:
        with pytest.MonkeyPatch.context() as patch:
            Faults(patch, at, die)
            anyio.run(here.change, here.FolderMemory(Path(sys.argv[1], str(at))))
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, at
"""

KILLED_IN_DATABASE = """
import os, shutil, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import anyio, pytest
from bundles import test_memory_processes as here
from agentloop._common import sqlite_file
count, real = 0, sqlite_file.connect
def connect(*args, **options):
    def step():
        global count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0
    connection = real(*args, **options)
    connection.set_progress_handler(step, 1)
    return connection
sqlite_file.connect = connect
folder, at = Path(sys.argv[1]), 0
shutil.copy(folder / "before.db", folder / "counted.db")
child = os.fork()
if not child:
    anyio.run(here.change, here.SQLiteMemory(folder / "counted.db"))
    (folder / "total").write_text(str(count))
    os._exit(0)
os.waitpid(child, 0)
total = int((folder / "total").read_text())
for at in [*range(1, total, total // 40), *range(total - 10, total + 2)]:
    path = folder / f"{{at}}.db"
    shutil.copy(folder / "before.db", path)
    child = os.fork()
    if not child:
        anyio.run(here.change, here.SQLiteMemory(path))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == (0 if at > total else signal.SIGKILL), at
"""


async def change(store: Any) -> None:
    """Make the change of these tests."""
    await store.change("ada", CHANGES, expect=BEFORE)


async def fill(store: Any) -> None:
    """Write the files as they are before it."""
    await store.change("ada", BEFORE, expect={})


def run_program(text: str, *args: object) -> None:
    """Run a program of this file in a process of its own, which may fork: it has one thread."""
    subprocess.run([sys.executable, "-c", text.format(tests=str(TESTS)), *map(str, args)], check=True)


@pytest.mark.scenario("ME-02")
def test_killed_at_any_system_call_a_folder_has_whole_files(tmp_path: Path) -> None:
    """The next use finds all of the change or none of it; and at no moment is a file cut short."""
    from executors.test_local_editor import Faults

    anyio.run(fill, FolderMemory(tmp_path / "counted"))
    with pytest.MonkeyPatch.context() as patch:
        faults = Faults(patch, None, lambda name: None)
        anyio.run(change, FolderMemory(tmp_path / "counted"))
    total = faults.count
    assert total > 40
    anyio.run(fill, FolderMemory(tmp_path / "1"))
    for at in range(2, total + 1):
        shutil.copytree(tmp_path / "1", tmp_path / str(at))
    run_program(KILLED_IN_FOLDER, tmp_path, *range(1, total + 1))
    found = []
    for at in range(1, total + 1):
        torn = {
            str(path.relative_to(tmp_path / str(at) / "ada")): path.read_text()
            for path in (tmp_path / str(at) / "ada").rglob("*.md")
        }
        assert all(text in (BEFORE.get(path), AFTER.get(path)) for path, text in torn.items()), at
        left = anyio.run(FolderMemory(tmp_path / str(at)).load, "ada")
        assert left in (BEFORE, AFTER), at
        found.append((left == AFTER, torn == left))
    assert {*found} == {(False, True), (False, False), (True, True)}  # some died between two files


@pytest.mark.scenario("ME-02")
def test_killed_at_any_step_a_database_has_whole_files(tmp_path: Path) -> None:
    """A step is an instruction of SQLite's machine; after the last one the change is made."""

    async def fill_and_close() -> None:
        async with SQLiteMemory(tmp_path / "before.db") as store:
            await fill(store)

    anyio.run(fill_and_close)
    run_program(KILLED_IN_DATABASE, tmp_path)
    found = {path.stem: anyio.run(SQLiteMemory(path).load, "ada") for path in tmp_path.glob("*.db")}
    assert len(found) > 40
    assert all(left in (BEFORE, AFTER) for left in found.values())
    assert [name for name, left in found.items() if left == AFTER]
    assert len([name for name, left in found.items() if left == BEFORE]) > 30


@pytest.mark.scenario("ME-03")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("kind", ["folder", "sqlite"])
def test_two_runs_in_two_processes_lose_no_write(kind: str, backend: str, tmp_path: Path) -> None:
    """Both have viewed the file before either writes: the second is told to read again, and every line is there."""
    path, count = str(tmp_path / "memory"), 8
    store = memory_program.make_store(kind, path)
    anyio.run(partial(store.change, "team", {"shared.md": "end\n"}, expect={}))
    command = [sys.executable, memory_program.__file__, backend, kind, path]
    pipe = subprocess.PIPE
    writers = [
        subprocess.Popen([*command, name, str(count)], stdin=pipe, stdout=pipe, text=True) for name in ("one", "two")
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    said = []
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        said.append(writer.communicate(timeout=60)[0])
        assert writer.returncode == 0
    found = anyio.run(memory_program.make_store(kind, path).load, "team")
    lines = found["shared.md"].splitlines()
    assert sorted(lines) == sorted(["end", *(f"{name}-{n}" for name in ("one", "two") for n in range(count))])
    assert sum(map(int, said)) > 0
