"""`LocalShell`: commands with nothing inherited, bounded output, and no process that outlives its call."""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from agentloop.exceptions import UserTypeError, UserValueError
from agentloop.executors import CommandResult, LocalShell, Shell, ShellError, ShellRequest, _local_shell, _supervisor
from agentloop.executors._output import BoundedOutput, cut_text

pytestmark = [pytest.mark.real_clock, pytest.mark.scenario("EX-02")]
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="subreapers and /proc are Linux's")


async def run(shell: LocalShell, *commands: str, timeout: float | None = None) -> tuple[CommandResult, ...]:
    """Return the results of *commands*."""
    return (await shell.run(ShellRequest(commands=commands, timeout=timeout))).results


async def run_one(shell: LocalShell, command: str, timeout: float | None = None) -> CommandResult:
    """Return the result of one command."""
    [result] = await run(shell, command, timeout=timeout)
    return result


def is_alive(pid: int) -> bool:
    """Return True if *pid* is a process that has not ended."""
    status = _supervisor._read_status(pid)
    return status is not None and status[1] != "Z"


async def until(fact: Callable[[], object]) -> None:
    """Wait for a fact about other processes, which tell of it by no event."""
    with anyio.fail_after(20):
        while not fact():  # noqa: ASYNC110
            await anyio.sleep(0.01)


def words_in(path: Path) -> list[str]:
    """Return the words of a file; none if it doesn't exist."""
    return path.read_text().split() if path.exists() else []


async def pids_in(path: Path, count: int) -> list[int]:
    """Return the process ids in a file once it holds *count* of them."""
    await until(lambda: len(words_in(path)) >= count)
    return [int(each) for each in words_in(path)]


async def test_the_results_of_commands(tmp_path: Path) -> None:
    """Outputs apart, the status of each, and a failure that doesn't stop the next command."""
    shell = LocalShell(tmp_path)
    assert isinstance(shell, Shell)
    assert await run(shell, "echo out; echo err >&2; exit 3", "pwd", "kill -TERM $$") == (
        CommandResult(
            command="echo out; echo err >&2; exit 3",
            exit_code=3,
            stdout="out\n",
            stderr="err\n",
        ),
        CommandResult(command="pwd", exit_code=0, stdout=f"{tmp_path}\n"),
        CommandResult(command="kill -TERM $$", exit_code=128 + signal.SIGTERM),
    )
    assert await run(shell) == ()


async def test_nothing_is_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable, no input, no terminal, no open file, no ignored signal; its own session and group."""
    monkeypatch.setenv("SECRET_OF_THE_APPLICATION", "s3cret")
    read, write = os.pipe()
    os.set_inheritable(read, True)
    try:
        result = await run_one(LocalShell(tmp_path, env={"MINE": "1", "LANG": "C"}), "env | sort; ls /proc/self/fd")
    finally:
        os.close(read)
        os.close(write)
    lines = result.stdout.split()
    assert [line for line in lines if "=" in line and not line.startswith(("_=", "SHLVL="))] == [
        f"HOME={tmp_path}",
        "LANG=C",
        "MINE=1",
        f"PATH={_local_shell._PATH}",
        f"PWD={tmp_path}",
    ]
    assert [line for line in lines if line.isdigit()] == ["0", "1", "2", "3"]  # the last is that of `ls` itself
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under `nohup`
    try:
        ignored = await run_one(LocalShell(tmp_path), "grep SigIgn /proc/self/status")
    finally:
        signal.signal(signal.SIGHUP, earlier)
    reserved = 0b11 << 31  # signals 32 and 33 belong to the C library: no program can set them, nor set them back
    assert int(ignored.stdout.split()[1], 16) & ~reserved == 0
    told = await run_one(LocalShell(tmp_path), "cat; tty; read x < /dev/tty; echo $?; cut -d' ' -f1,5,6 /proc/$$/stat")
    assert told.stdout.split("\n")[0] == "not a tty"
    pid, group, session = told.stdout.split("\n")[2].split()
    assert pid == group == session


@pytest.mark.slow
async def test_a_time_limit_ends_the_command_and_those_after_it(tmp_path: Path) -> None:
    """The output so far is kept; the shorter of the two limits holds."""
    shell = LocalShell(tmp_path, timeout=60)
    began = time.monotonic()
    results = await run(shell, "true", "echo begun; sleep 60; echo never", "echo no", timeout=3)
    assert [(each.exit_code, each.timed_out, each.stdout) for each in results] == [
        (0, False, ""),
        (None, True, "begun\n"),
    ]
    assert (await run_one(LocalShell(tmp_path, timeout=0.3), "sleep 60", timeout=50)).timed_out
    assert time.monotonic() - began < 50


async def test_a_time_that_is_over_before_the_command_starts_is_a_time_out(tmp_path: Path) -> None:
    """A model chose it: the command has timed out as any other, and the shell isn't broken."""
    (result,) = await run(LocalShell(tmp_path), "touch never", "echo no", timeout=0.0)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, None, "")
    assert not (tmp_path / "never").exists()


@pytest.mark.slow
@linux
@pytest.mark.parametrize("way", ["cancel", "timeout"])
async def test_every_process_is_ended(tmp_path: Path, way: str) -> None:
    """Children that ignore SIGTERM, stopped ones, and one that left session and group by `setsid`."""
    shell = LocalShell(tmp_path, grace=0.2)
    command = (
        "trap '' TERM; echo $$ >> pids; "
        "sh -c 'trap \"\" TERM; echo $$ >> pids; while :; do sleep 1; done' & "
        "setsid sh -c 'trap \"\" TERM HUP; echo $$ >> pids; while :; do sleep 1; done' & "
        "(setsid sh -c 'echo $$ >> pids; exec sleep 1000' &) & "
        "sh -c 'echo $$ >> pids; kill -STOP $$' & "
        "wait; sleep 1000"
    )
    results: list[CommandResult] = []

    async def work() -> None:
        results.append(await run_one(shell, command, timeout=1.5 if way == "timeout" else None))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        pids = await pids_in(tmp_path / "pids", 5)
        assert all(map(is_alive, pids))
        if way == "cancel":
            tasks.cancel_scope.cancel()
    assert not any(map(is_alive, pids))
    assert [each.timed_out for each in results] == ([True] if way == "timeout" else [])


@linux
async def test_processes_left_in_the_background_are_ended(tmp_path: Path) -> None:
    """The command's own end is the end of all."""
    result = await run_one(LocalShell(tmp_path), "sleep 1000 & echo $! >> pids; setsid sleep 1000 & echo $! >> pids")
    assert result.exit_code == 0
    assert not any(map(is_alive, await pids_in(tmp_path / "pids", 2)))


@pytest.mark.slow
@linux
async def test_a_fork_bomb_is_ended(tmp_path: Path) -> None:
    """Processes that start others all the time, half of them in sessions of their own."""
    program = (
        "import os, time\n"
        "open('pids', 'a').write(f'{os.getpid()}\\n')\n"
        "end = time.monotonic() + 8\n"
        "while time.monotonic() < end:\n"
        "    if os.fork():\n"
        "        time.sleep(0.005); os._exit(0)\n"  # each lives as long as it takes to start the next
        "    if os.getpid() % 2: os.setsid()\n"
    )
    (tmp_path / "bomb.py").write_text(program)
    shell = LocalShell(tmp_path, grace=0.1)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_one, shell, f"{sys.executable} -I -S bomb.py & " * 5 + "wait; sleep 1000")
            await pids_in(tmp_path / "pids", 5)
            began = time.monotonic()
            scope.cancel()
    assert time.monotonic() - began < 5
    left = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_of(pid, tmp_path)]
    assert left == []


def _is_of(pid: int, folder: Path) -> bool:
    try:
        return Path(os.readlink(f"/proc/{pid}/cwd")) == folder and is_alive(pid)
    except OSError:
        return False


@pytest.mark.slow
@linux
async def test_the_death_of_the_application_ends_its_commands(tmp_path: Path) -> None:
    """It is killed by SIGKILL within a command, and no process is left."""
    program = (
        "import anyio, sys\nfrom agentloop.executors import *\n"
        "anyio.run(LocalShell(sys.argv[1], grace=0.1).run, "
        "ShellRequest(commands=(\"echo $$ >> pids; setsid sh -c 'trap : TERM; echo $$ >> pids; while :; do sleep 1; "
        "done'\",)))"
    )
    async with await anyio.open_process([sys.executable, "-c", program, str(tmp_path)], stdin=None) as application:
        pids = await pids_in(tmp_path / "pids", 2)
        application.kill()
    await until(lambda: not any(map(is_alive, pids)))


@pytest.mark.slow
@linux
async def test_a_forked_child_of_the_application_keeps_no_command_alive(tmp_path: Path) -> None:
    """The child has the pipe that tells the supervisor to go on; the supervisor looks at its parent as well."""
    program = (
        "import anyio, os, signal, sys, threading, time\nfrom agentloop.executors import *\n"
        "def fork():\n"
        "    while not os.path.exists(sys.argv[1] + '/pids'): time.sleep(0.01)\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        while not os.path.exists(sys.argv[1] + '/over'): time.sleep(0.01)\n"
        "        os._exit(0)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "threading.Thread(target=fork).start()\n"
        "anyio.run(LocalShell(sys.argv[1], grace=0.1).run, "
        'ShellRequest(commands=("setsid sleep 1000 & echo $! >> pids; echo $$ >> pids; sleep 1000",)))'
    )
    command = [sys.executable, "-W", "ignore", "-c", program, str(tmp_path)]
    async with await anyio.open_process(command, stdin=None, stdout=None) as application:
        try:
            pids = await pids_in(tmp_path / "pids", 2)
            assert await application.wait() == -signal.SIGKILL
            await until(lambda: not any(map(is_alive, pids)))
        finally:
            (tmp_path / "over").touch()


@pytest.mark.slow
@linux
@pytest.mark.parametrize("order", ["", '{"command": '])
async def test_a_supervisor_without_orders_ends_with_the_application(tmp_path: Path, order: str) -> None:
    """Also if the pipe of its orders stays open."""
    orders, keep = os.pipe()
    os.write(keep, order.encode())
    program = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-I', '-S', sys.argv[1], '1', str(os.getpid())], stdin=0)\n"
        "print(child.pid, flush=True)"
    )
    command = [sys.executable, "-c", program, _local_shell._SUPERVISOR]
    try:
        async with await anyio.open_process(command, stdin=orders) as application:
            assert application.stdout is not None
            pid = int(await application.stdout.receive())
            await until(lambda: not is_alive(pid))
    finally:
        os.close(orders)
        os.close(keep)


@linux
async def test_a_command_that_kills_its_supervisor(tmp_path: Path) -> None:
    """It is killed with it, and dies soon; the result says that what left the group may be running."""
    result = await run_one(LocalShell(tmp_path), "echo $$ > pids; kill -9 $PPID; sleep 1000")
    assert result.exit_code is None
    assert "its supervisor was killed" in result.left_running[0]
    pids = await pids_in(tmp_path / "pids", 1)
    await until(lambda: not any(map(is_alive, pids)))


async def test_a_cancelled_call_names_what_it_could_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error takes the place of the cancellation, for there is no result to say it."""
    read = _local_shell._SupervisedCommand._read_report

    def report(command: _local_shell._SupervisedCommand) -> object:
        return read(command).replace(left=("7 (stuck)",))

    monkeypatch.setattr(_local_shell._SupervisedCommand, "_read_report", report)
    assert (await run_one(LocalShell(tmp_path), "true")).left_running == ("7 (stuck)",)

    async def work() -> None:
        with pytest.raises(ShellError, match=r"left running: 7 \(stuck\)"):
            await run_one(LocalShell(tmp_path, grace=0.1), "touch begun; sleep 100")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await until((tmp_path / "begun").exists)
        tasks.cancel_scope.cancel()


async def test_cancelled_at_many_moments(tmp_path: Path) -> None:
    """Before the supervisor has started, while it starts, and while the command runs: nothing is left."""
    shell = LocalShell(tmp_path, grace=0.1)
    for after in (0.0, 0.002, 0.01, 0.03, 0.06, 0.1):
        with anyio.move_on_after(after) as scope:
            await run_one(shell, "echo $$ >> pids; setsid sleep 1000 & exec sleep 1000")
        assert scope.cancelled_caught
    left = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_of(pid, tmp_path)]
    assert left == []


@pytest.mark.slow
async def test_a_gigabyte_of_output_takes_bounded_memory(tmp_path: Path) -> None:
    """The head and the tail are kept, with a note of what was cut; the command isn't stopped for it."""
    shell = LocalShell(tmp_path, max_output=1_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await run_one(shell, "echo first; head -c 1000000000 /dev/zero | tr '\\0' x; echo; echo last")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert result.exit_code == 0
    assert result.stdout.startswith("first\nxxx")
    assert result.stdout.endswith("xxx\nlast\n")
    assert "[… the middle of 1,000,000,012 bytes was cut …]" in result.stdout
    assert len(result.stdout) < 1_100
    assert grown < 50_000  # kilobytes


async def test_the_limit_is_shared_by_both_outputs(tmp_path: Path) -> None:
    """One that is short leaves its share to the other; a request may ask for less than the shell allows."""
    shell = LocalShell(tmp_path, max_output=1_000)
    result = await run_one(shell, "head -c 2000 /dev/zero | tr '\\0' o; echo short >&2")
    assert (len(result.stdout) > 990, result.stderr) == (True, "short\n")
    result = await run_one(shell, "head -c 900 /dev/zero | tr '\\0' o; head -c 900 /dev/zero | tr '\\0' e >&2")
    assert 500 <= len(result.stdout) < 600
    assert 500 <= len(result.stderr) < 600
    [result] = (await shell.run(ShellRequest(commands=["echo long enough"], max_output=4))).results
    assert result.stdout.startswith("lo\n[…")
    [result] = (await shell.run(ShellRequest(commands=["echo no output wanted"], max_output=0))).results
    assert "no output" not in result.stdout


async def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """Are replaced, and a character divided by a cut is left out."""
    result = await run_one(LocalShell(tmp_path), "printf 'a\\377b\\303'")
    assert result.stdout == "a\ufffdb\ufffd"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("text", ["ä" * 50, "€" * 50, "😀" * 50, "x" * 50, "aä€😀" * 20])
def test_any_chunks_give_whole_characters(text: str, size: int) -> None:
    """Whatever the chunks and the limit are, the text is a head and a tail of the whole."""
    data = text.encode()
    for limit in range(40):
        output = BoundedOutput(limit)
        for at in range(0, len(data), size):
            output.add(data[at : at + size])
        shown = output.text(1_000)
        head, _, rest = shown.partition("\n[…")
        tail = rest.partition("…]\n")[2]
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head.encode()) + len(tail.encode()) <= limit
        assert "\ufffd" not in shown
    assert cut_text(text, 1_000) == text


async def test_commands_that_can_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says why."""
    with pytest.raises(ShellError, match="could not be started: FileNotFoundError"):
        await run_one(LocalShell(tmp_path / "none"), "true")
    with pytest.raises(ShellError, match="could not be started: FileNotFoundError"):
        await run_one(LocalShell(tmp_path, shell=["/bin/none"]), "true")
    with pytest.raises(ShellError, match="could not be started: PermissionError"):
        await run_one(LocalShell(tmp_path, shell=[str(tmp_path)]), "true")
    with pytest.raises(ShellError, match="NUL"):
        await run_one(LocalShell(tmp_path), "echo \0")
    with pytest.raises(ShellError, match="Argument list too long"):
        await run_one(LocalShell(tmp_path), "true " + "x" * 3_000_000)
    monkeypatch.setattr(_local_shell, "_SUPERVISOR", str(tmp_path / "none.py"))
    with pytest.raises(ShellError, match=r"supervisor ended with 2: .*none\.py"):
        await run_one(LocalShell(tmp_path), "true")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(ShellError, match="supervisor of the command could not be started"):
        await run_one(LocalShell(tmp_path), "true")


def test_wrong_values_are_refused(tmp_path: Path) -> None:
    """The message names the argument."""
    for options, message in (
        ({"timeout": 0}, "timeout"),
        ({"max_output": 0}, "max_output"),
        ({"grace": -1}, "grace"),
    ):
        with pytest.raises(UserValueError, match=message):
            LocalShell(tmp_path, **options)  # type: ignore[arg-type]
    with pytest.raises(UserTypeError, match="env"):
        LocalShell(tmp_path, env={"A": 1})  # type: ignore[dict-item]
    assert LocalShell("relative").directory.is_absolute()


def test_other_systems_have_no_subreaper(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the group alone is ended."""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not _supervisor._prctl(_supervisor._SET_SUBREAPER, 1)
    monkeypatch.setattr(os, "listdir", lambda path: (_ for _ in ()).throw(FileNotFoundError(path)))
    assert _supervisor.find_descendants(1) == []
