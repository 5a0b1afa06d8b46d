"""Locks of files end with the process that has them, also if a child was forked from it and lives on."""

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentloop._common import lock_files
from agentloop.executors import LocalSandboxes
from agentloop.journal import FileJournal

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="this system doesn't fork"),
    pytest.mark.real_clock,
]

PARENT = """
import os, sys, anyio
from agentloop.executors import LocalSandboxes
from agentloop.journal import FileJournal
async def main():
    journal = FileJournal(sys.argv[1] + "/journal")
    await journal.append([b'{"a":1}'])
    box = await LocalSandboxes(sys.argv[1] + "/boxes").create("run")
    said = box.name
    if child := os.fork():
        os.write(1, f"{child} {said}\\n".encode())  # in one piece: the child writes there, too
        os.kill(os.getpid(), 9)
    try:
        journal._storage.write(b"damage")  # what a child does with its copy reaches no file
    except OSError:
        said = "refused"
    os.write(1, f"{said}\\n".encode())
    os.close(1)
    sys.stdin.read()  # it outlives its parent, until the test is over
    os._exit(0)
anyio.run(main)
"""


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A child whose parent was killed while it had a journal and a sandbox: the sandbox, and what the child said."""
    command = [sys.executable, "-W", "ignore", "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        lines = parent.stdout.read().split("\n")  # ends when the child has closed its side, too
        first = next(line for line in lines if " " in line)
        child, name = first.split()
        try:
            yield name, "\n".join(line for line in lines if line and line != first)
        finally:
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.slow
async def test_a_forked_child_keeps_no_lock_of_its_parent(
    orphan: tuple[str, str], tmp_path: Path, anyio_backend: Any
) -> None:
    """Its parent is dead, so the run can be resumed at once, though the child lives; and it can't write."""
    name, said = orphan
    assert said == "refused"
    async with FileJournal(tmp_path / "journal") as journal:
        await journal.append([b'{"a":2}'])
        assert await journal.read() == [b'{"a":1}', b'{"a":2}']
    box = await LocalSandboxes(tmp_path / "boxes").find(name, "run")
    await box.release()


def test_a_parent_keeps_its_lock_when_a_child_ends(tmp_path: Path) -> None:
    """The child lets go of its copy only; and a file that was closed is nobody's business any more."""
    import fcntl

    path = tmp_path / "lock"
    gone = lock_files.open_lock_file(path, os.O_RDWR | os.O_CREAT)
    lock_files.close_lock_file(gone)
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)  # it gets the number of the closed one
    held = lock_files.open_lock_file(path, os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
    os.waitpid(child, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # idle threads of other tests: the child does nothing that they could hinder
        child = os.fork()
    if not child:
        os._exit(0 if os.write(other, b"x") == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    again = os.open(path, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock_files.close_lock_file(held)
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(again)
    os.close(other)
