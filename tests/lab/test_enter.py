"""The body of a recorded call, run again as it was called."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from lab.shop import LEDGER, make_agent, record, state_of

from agentloop import Agent, Runner, ToolContext, UserError, lab, tool
from agentloop.testing import ScriptedModel, call, say

pytestmark = pytest.mark.real_clock

ENTERED: list[Any] = []


@contextmanager
def noting(fn: Any) -> Iterator[None]:
    """Note the function that is entered, and that it was left."""
    ENTERED.append(fn.__name__)
    try:
        yield
    finally:
        ENTERED.append("left")


@tool(timeout=0.05)
async def weigh(ctx: ToolContext[str], item: str) -> str:
    """Weigh something, which takes longer than it may."""
    with anyio.move_on_after(0.2):
        await anyio.sleep_forever()
    await ctx.report(1)
    return f"{ctx.context} {item} {len(ctx.conversation_history)} {bool(ctx.idempotency_key)}"


@tool(abandon_on_cancel=True)
def count(item: str) -> str:
    """Count something, in a thread."""
    LEDGER.append("count")
    return f"5 {item}"


def scales(*steps: Any) -> Agent[Any, Any]:
    """Return an agent with both tools."""
    return Agent("scales", model=ScriptedModel(steps), tools=[weigh, count])


async def test_a_body_runs_with_its_arguments_and_a_context_of_its_call() -> None:
    """Its timeout doesn't hold, the calls beside it are answered from the log, and the run ends behind it."""
    ENTERED.clear()
    made = [call("weigh", {"item": "tea"}, call_id="c1"), call("count", {"item": "tea"}, call_id="c2")]
    agent = scales(made, say("done"))
    result = await Runner.run(agent, "go", context="recorded")
    LEDGER.clear()
    model = scales(say("never"))
    entered = await lab.enter(result, model, "c1", debugger=noting, context=lambda: "again")
    assert entered.value == "again tea 3 True"
    assert entered.error is None
    assert (entered.call.tool, entered.call.status) == ("weigh", "timed_out")
    assert entered.outcome is not None
    assert entered.outcome.status == "timed_out"
    assert ENTERED == ["weigh", "left"]
    assert LEDGER == []
    in_thread = await lab.enter(result, model, "c2", debugger=noting)
    assert in_thread.value == "5 tea"
    assert ENTERED == ["weigh", "left", "count", "left"]
    assert LEDGER == ["count"]
    assert model.model.requests == []  # type: ignore[union-attr]


async def test_calls_of_nested_runs_and_failures_are_entered() -> None:
    """The nested run is continued; an error is the result."""
    records = await record("nested", 3)
    LEDGER.clear()
    entered = await lab.enter(state_of(records), make_agent([]), "ask_helper-3/look_up-3")
    assert entered.value == {"order": "o-3", "paid": 100}
    assert LEDGER == ["look_up o-3"]
    failed = await lab.enter(state_of(await record("failed", 3)), make_agent([]), "break_down-3")
    assert isinstance(failed.error, ValueError)
    assert "no stock for o-3" in str(failed.error)


async def test_what_the_body_does_to_the_world_is_refused(tmp_path: Path) -> None:
    """A file, a connection, a process: with *live* they happen; either way they are told."""
    path = tmp_path / "bank.txt"

    @tool
    async def act(what: str) -> str:
        """Do something."""
        if what == "write":
            path.write_text("paid")
        elif what == "connect":
            with socket.socket() as made:
                made.connect(("127.0.0.1", 9))
        else:
            subprocess.run([sys.executable, "-c", ""], check=True)  # noqa: ASYNC221 - it is refused
        return "did it"

    def make(*steps: Any) -> Agent[Any, Any]:
        return Agent("a", model=ScriptedModel(steps), tools=[act])

    for what, words in {"write": "writes to", "connect": "connects to", "start": "starts"}.items():
        result = await Runner.run(make(call("act", {"what": what}, call_id="c1"), say("x")), "go")
        path.unlink(missing_ok=True)
        entered = await lab.enter(result, make(), "c1")
        assert isinstance(entered.error, PermissionError), what
        assert words in str(entered.error)
        assert words in entered.notes[0]
        assert not path.exists()
    result = await Runner.run(make(call("act", {"what": "write"}, call_id="c1"), say("x")), "go")
    path.unlink()
    entered = await lab.enter(result, make(), "c1", live=True)
    assert entered.value == "did it"
    assert path.read_text() == "paid"
    assert "writes to" in entered.notes[0]


def connect_to_database(place: Path) -> None:
    """Insert a row, if it is allowed."""
    made = sqlite3.connect(place / "base")
    try:
        with made:
            made.execute("create table if not exists t(x)")
    finally:
        made.close()


def send_a_datagram(how: str) -> None:
    """Send to the port that discards."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        if how == "bind":
            made.bind(("127.0.0.1", 0))
        elif how == "sendto":
            made.sendto(b"x", ("127.0.0.1", 9))
        else:
            made.sendmsg([b"x"], [], 0, ("127.0.0.1", 9))


def fork() -> None:
    """Fork, and end the child at once."""
    if os.fork() == 0:
        os._exit(0)


def write_in_a_thread(path: Path) -> None:
    """Let a thread write that has nothing of the context of the caller."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(path.write_text, "paid").result()


REACHES: dict[str, Callable[[Path], Any]] = {
    "writes to": lambda place: (place / "file").write_text("paid"),
    "or what runs beside it writes to": lambda place: write_in_a_thread(place / "file"),
    "removes": lambda place: os.remove(place / "file"),
    "removes ": lambda place: os.rmdir(place / "folder"),
    "renames": lambda place: os.replace(place / "file", place / "other"),
    "makes the folder": lambda place: os.makedirs(place / "a" / "b"),
    "makes the link": lambda place: os.link(place / "file", place / "hard"),
    "makes the link ": lambda place: os.symlink(place / "file", place / "soft"),
    "cuts": lambda place: os.truncate(place / "file", 0),
    "changes": lambda place: os.chmod(place / "file", 0o400),
    "changes ": lambda place: os.chown(place / "file", os.getuid(), os.getgid()),
    "changes  ": lambda place: os.utime(place / "file", (1, 1)),
    "writes to ": lambda place: shutil.copy(place / "file", place / "copy"),
    "moves": lambda place: shutil.move(place / "file", place / "moved"),
    "removes  ": lambda place: shutil.rmtree(place / "folder"),
    "opens the database": connect_to_database,
    "listens at": lambda place: send_a_datagram("bind"),
    "sends to": lambda place: send_a_datagram("sendto"),
    "sends to ": lambda place: send_a_datagram("sendmsg"),
    "looks up": lambda place: socket.getaddrinfo("127.0.0.1", 9),
    "starts": lambda place: os.system("true"),
    "starts ": lambda place: os.execv(place / "no-program", ["x"]),
    "starts  ": lambda place: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0),
    "forks the process": lambda place: fork(),
    "signals the process": lambda place: os.kill(os.getpid(), 0),
    "sets the variable": lambda place: os.environ.update(AGENTLOOP_TEST_REACH="1"),
}
"""What a body may do beyond its process, by the words of the note."""


def make_actor(do: Callable[[], Any]) -> Agent[Any, Any]:
    """Return an agent with tools that do it on the loop and in a thread."""

    @tool
    async def act() -> str:
        """Do something."""
        do()
        return "did it"

    @tool
    def act_in_thread() -> str:
        """Do something, in a thread."""
        do()
        return "did it"

    model = ScriptedModel([[call("act", {}, call_id="c1"), call("act_in_thread", {}, call_id="c2")], say("x")])
    return Agent("a", model=model, tools=[act, act_in_thread])


def look_at(place: Path) -> list[Any]:
    """Return what stands in a folder."""
    found = [(path, path.lstat()) for path in sorted(place.rglob("*"))]
    return [(str(path), one.st_size, one.st_mode, one.st_mtime_ns, one.st_ino) for path, one in found]


async def test_each_reach_out_of_the_process_is_refused(tmp_path: Path) -> None:
    """Files, folders, databases, sockets, processes, the environment; on the loop, in a thread, in another's thread."""
    result = await Runner.run(make_actor(lambda: None), "go")
    (tmp_path / "file").write_text("as it was")
    (tmp_path / "folder").mkdir()
    before = look_at(tmp_path)
    for words, reach in REACHES.items():
        for call_id in ("c1", "c2"):
            entered = await lab.enter(result, make_actor(lambda reach=reach: reach(tmp_path)), call_id)  # type: ignore[misc]
            assert isinstance(entered.error, PermissionError), (words, entered)
            assert words.strip() in entered.notes[0]
            assert look_at(tmp_path) == before, words
    assert "AGENTLOOP_TEST_REACH" not in os.environ
    os.utime(tmp_path / "file", (1, 1))  # all is allowed again behind it


async def test_what_is_no_reach_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading, databases in memory or only read, a module that Python compiles, a debugger's own work and threads."""
    connect_to_database(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "compiled_for_a_body.py").write_text("VALUE = 3")
    found: list[Any] = []

    def look() -> None:
        for name in (":memory:", f"file:{tmp_path / 'base'}?mode=ro", "file:x?mode=memory"):
            made = sqlite3.connect(name, uri=True)
            found.append(made.execute("select 1").fetchone())
            made.close()
        sys.path.insert(0, str(tmp_path))
        try:
            import compiled_for_a_body  # type: ignore[import-not-found]
        finally:
            sys.path.remove(str(tmp_path))
            sys.modules.pop("compiled_for_a_body", None)
        os.fdopen(os.dup(1), "w").close()
        found.append(compiled_for_a_body.VALUE)
        with open(os.devnull, "w") as nowhere:
            nowhere.write("x")
        ours = threading.Thread(target=lambda: (tmp_path / "breakpoints").write_text("1"))
        ours.is_pydev_daemon_thread = True  # type: ignore[attr-defined]  # as debuggers mark theirs
        ours.start()
        ours.join()

    @contextmanager
    def writing(fn: Any) -> Iterator[None]:
        (tmp_path / "begun").write_text("1")
        yield
        (tmp_path / "ended").write_text("1")

    result = await Runner.run(make_actor(lambda: None), "go")
    for call_id in ("c1", "c2"):
        entered = await lab.enter(result, make_actor(look), call_id, debugger=writing)
        assert (entered.value, entered.notes) == ("did it", ())
    assert found == [(1,), (1,), (1,), 3] * 2
    assert {"begun", "ended", "breakpoints"} <= set(os.listdir(tmp_path))


async def test_work_that_is_given_to_another_task_is_refused(anyio_backend_name: str, tmp_path: Path) -> None:
    """A task that was there before has another context, and so has an executor of the loop."""
    path, wanted, done = tmp_path / "file", anyio.Event(), anyio.Event()
    raised: list[Exception] = []

    async def work() -> None:
        await wanted.wait()
        try:
            path.write_text("paid")
        except PermissionError as error:
            raised.append(error)
        done.set()

    @tool
    async def act() -> str:
        """Let others do it."""
        if not do:
            return "nothing"
        wanted.set()
        await done.wait()
        if anyio_backend_name == "asyncio":
            await asyncio.get_running_loop().run_in_executor(None, path.write_text, "paid")
        return "did it"

    do = False
    agent = Agent("a", model=ScriptedModel([call("act", {}, call_id="c1"), say("x")]), tools=[act])
    result = await Runner.run(agent, "go")
    do = True
    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await anyio.lowlevel.checkpoint()
        entered = await lab.enter(result, agent, "c1")
    assert len(raised) == 1
    assert isinstance(entered.error, PermissionError) == (anyio_backend_name == "asyncio")
    assert "act or what runs beside it writes to" in entered.notes[0]
    assert not path.exists()


async def test_what_can_not_be_entered_is_named() -> None:
    """No such call, one that never started, one that is a run, an agent whose guardrail ends the run."""
    nested, rejected = await record("nested", 3), await record("rejected", 3)
    agent = make_agent([])
    with pytest.raises(UserError, match="has made no such call"):
        await lab.enter(state_of(nested), agent, "c9")
    with pytest.raises(UserError, match="'ask_helper-3' is a run of an agent: enter one of its calls, ask_helper-3/ID"):
        await lab.enter(state_of(nested), agent, "ask_helper-3")
    with pytest.raises(UserError, match="'pay-3' never started: it was rejected"):
        await lab.enter(state_of(rejected), agent, "pay-3")
    with pytest.raises(UserError, match="expected an Agent"):
        await lab.enter(state_of(rejected), 3, "pay-3")  # type: ignore[arg-type]
    result = await Runner.run(scales(call("weigh", {"item": "tea"}, call_id="c1"), say("done")), "go")
    without = Agent("scales", model=ScriptedModel([]), tools=[count])
    with pytest.raises(UserError, match="the run doesn't come to it with this agent: StateError"):
        await lab.enter(result, without, "c1")


async def test_only_what_the_lab_repeats_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A failure of a tool is no news while a recorded run is compared, forked or entered; after that it is again."""

    @tool
    async def spill(item: str) -> str:
        """Spill it."""
        raise ValueError("spilt")

    def agent() -> Agent[Any, Any]:
        return Agent("a", model=ScriptedModel([call("spill", {"item": "x"}, call_id="c1"), say("Oh.")]), tools=[spill])

    result = await Runner.run(agent(), "go")
    caplog.clear()
    await lab.compare(result, agent())
    await lab.fork(result, agent(), at=2)
    await lab.enter(result, agent(), "c1")
    assert caplog.messages == []
    await Runner.run(agent(), "go")
    assert "spilt" in caplog.text
