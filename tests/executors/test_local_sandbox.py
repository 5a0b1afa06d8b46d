"""`LocalSandboxes`: whose storage it is, who removes it and when, and what its commands can and can't do."""

import fcntl
import json
import logging
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner
from executors import kill_sandboxes
from kit.child_runs import ENVIRONMENT
from kit.processes import processes_with

from agentloop import Agent, RunConfig, Runner, RunState
from agentloop import records as r
from agentloop.cli.app import app
from agentloop.exceptions import StateError, UserTypeError, UserValueError
from agentloop.executors import (
    CreateFile,
    EditError,
    LocalSandbox,
    LocalSandboxes,
    Sandbox,
    SandboxError,
    SandboxProvider,
    ShellRequest,
    WriteFile,
    _local_sandbox,
    _namespaces,
    _storage,
    shell_tool,
)
from agentloop.journal import FileJournal, read_journal
from agentloop.testing import ScriptedModel, call, replay, say

pytestmark = [pytest.mark.real_clock, pytest.mark.scenario("EX-05")]
WHY_NOT = _local_sandbox.why_not_isolated()
isolated = pytest.mark.skipif(WHY_NOT is not None, reason=f"no namespaces here: {WHY_NOT}")


def never(run_id: str, name: str) -> None:
    """Know nothing of any run."""


async def run(sandbox: LocalSandbox, command: str, timeout: float | None = None) -> Any:
    """Return the result of one command in *sandbox*."""
    [result] = (await sandbox.shell.run(ShellRequest(commands=(command,), timeout=timeout))).results
    return result


# ---------------------------------------------------------------------------------------------- storage


async def test_two_runs_never_share_one(tmp_path: Path) -> None:
    """One holder at a time, in this process and others; each run finds its own by name, and nothing else."""
    boxes = LocalSandboxes(tmp_path / "a" / "boxes", isolation="none")
    assert isinstance(boxes, SandboxProvider)
    one, two = await boxes.create("run-1"), await boxes.create("run-2")
    assert isinstance(one, Sandbox)
    assert one.directory != two.directory
    assert stat.S_IMODE(boxes.folder.stat().st_mode) == 0o700
    with pytest.raises(StateError, match="is in use"):
        await boxes.find(one.name, "run-1")
    await one.editor.apply([WriteFile(path="notes", text="mine")])
    await one.release()
    await one.release()
    with pytest.raises(StateError, match="is of another run than run-2"):
        await boxes.find(one.name, "run-2")
    for name in ("0" * 32, "../boxes", "", f"{one.name}/work", ".new-x"):
        with pytest.raises(StateError, match="is gone"):
            await boxes.find(name, "run-1")
    found = await boxes.find(one.name, "run-1")
    assert await found.editor.read("notes") == "mine"
    await found.remove()
    with pytest.raises(StateError, match="is gone"):
        await boxes.find(one.name, "run-1")
    await two.remove()
    assert list(boxes.folder.iterdir()) == []


async def test_storage_that_can_not_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of the disk are errors of the provider, and leave nothing half made or locked."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxError, match=r"no sandbox could be made in .*/file/boxes: Not a directory"):
        await LocalSandboxes(tmp_path / "file" / "boxes").create("run")
    boxes = LocalSandboxes(tmp_path / "boxes", isolation="none")
    box = await boxes.create("run")
    await box.release()
    real = os.fsync
    for at in range(2):
        calls: list[int] = []

        def fail(descriptor: int, at: int = at, calls: list[int] = calls) -> None:
            calls.append(descriptor)
            if len(calls) > at:
                raise OSError(28, "No space left on device")
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(SandboxError, match="No space left on device"):
            await boxes.create("run")
        assert [path.name for path in boxes.folder.iterdir()] == [box.name], at
    monkeypatch.setattr(os, "fsync", real)
    lock = boxes.folder / box.name / "lock"
    lock.unlink()
    lock.symlink_to("about")
    with pytest.raises(SandboxError, match="can't be opened"):
        await boxes.find(box.name, "run")
    lock.unlink()
    lock.write_text("")
    (boxes.folder / box.name / "about").write_text("{}")
    with pytest.raises(StateError, match="another run"):
        await boxes.find(box.name, "run")
    (boxes.folder / box.name / "about").write_text("no JSON")
    [found] = await boxes.prune(never, older_than=0)
    assert (found.removed, found.reason, found.run_id) == (True, "old", None)


async def test_cancelled_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left, and nothing stays locked."""
    boxes = LocalSandboxes(tmp_path / "boxes", isolation="none")
    kept = await boxes.create("run")
    await kept.release()

    def refuse(*_: Any) -> None:
        raise RuntimeError("too late")

    for do in (boxes.create("run"), boxes.find(kept.name, "run")):
        with monkeypatch.context() as patch:
            patch.setattr(LocalSandboxes, "_open", refuse)
            with pytest.raises(RuntimeError, match="too late"):
                await do
        assert [path.name for path in boxes.folder.iterdir()] == [kept.name]
    await (await boxes.find(kept.name, "run")).remove()
    with anyio.move_on_after(0):
        await boxes.create("run")
    assert list(boxes.folder.iterdir()) == []


async def test_a_folder_that_another_program_keeps_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program that can read it can lock it: a cancellation ends the wait, and no wait is without an end."""
    boxes = LocalSandboxes(tmp_path / "boxes", isolation="none")
    await (await boxes.create("run")).remove()
    with _storage._locked(boxes.folder, fcntl.LOCK_EX):
        pauses: list[float] = []
        for do in (lambda: boxes.create("run"), lambda: boxes.prune(never)):
            with anyio.CancelScope() as scope, monkeypatch.context() as patch:

                def pause(seconds: float, scope: anyio.CancelScope = scope) -> None:
                    pauses.append(seconds)
                    anyio.from_thread.run_sync(scope.cancel)

                patch.setattr(_storage.time, "sleep", pause)
                await do()
            assert scope.cancelled_caught
        assert 2 <= len(pauses) <= 4
        monkeypatch.setattr(_storage, "LOCK_SECONDS", 0)
        with pytest.raises(SandboxError, match="another program has locked the folder"):
            await boxes.create("run")
        with pytest.raises(TimeoutError, match="another program has locked the folder"):
            await boxes.prune(never)
    assert list(boxes.folder.iterdir()) == []


@pytest.mark.slow
async def test_removal_of_what_resists(tmp_path: Path) -> None:
    """Folders that can't be read, files that can't be written, links, pipes, and a tree deeper than any path."""
    boxes = LocalSandboxes(tmp_path / "boxes", isolation="none")
    box = await boxes.create("run")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    script = f"""
    ln -s {outside} link; ln -s nowhere broken; mkfifo pipe; mkdir -p a/b/c; ln -s / a/b/root
    touch a/b/c/file; chmod 0 a/b/c/file a/b/c a/b a
    mkdir wide; cd wide; seq 300 | xargs touch; cd ..; chmod 500 wide
    """
    assert (await run(box, script)).stderr == ""
    here = os.open(box.directory, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deep", dir_fd=here)
        inner = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    await box.remove()
    assert list(boxes.folder.iterdir()) == []
    assert (outside / "precious").read_text() == "x"


async def test_a_removal_that_is_cut_is_finished_by_a_prune(tmp_path: Path) -> None:
    """What is left has a name of its own, which no run finds."""
    boxes = LocalSandboxes(tmp_path / "boxes", isolation="none")
    box = await boxes.create("run")
    for n in range(50):
        (box.directory / str(n)).write_text("")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await box.remove()
    left = [path.name for path in boxes.folder.iterdir()]
    if left == [box.name]:  # the cancellation came before the thread
        box = await boxes.find(box.name, "run")
        with pytest.raises(KeyError):
            box._storage.remove(lambda: {}["stop"])
        left = [path.name for path in boxes.folder.iterdir()]
    assert left == [f".removed-{box.name}"]
    with pytest.raises(StateError, match="is gone"):
        await boxes.find(box.name, "run")
    [found] = await boxes.prune(never)
    assert (found.name, found.reason, found.removed) == (box.name, "unfinished", True)
    assert list(boxes.folder.iterdir()) == []


# ---------------------------------------------------------------------------------------------- prune


async def test_prune_removes_what_no_run_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never one that is in use or may be resumed; age alone only where it is asked for."""
    boxes = LocalSandboxes(tmp_path / "boxes", isolation="none")
    assert await boxes.prune(never, older_than=0) == ()
    live, over, kept, old = [await boxes.create(run_id) for run_id in ("live", "over", "kept", "old")]
    for box in (over, kept, old):
        await box.release()
    os.utime(boxes.folder / old.name / "lock", (0, 0))
    (boxes.folder / ".new-dead").mkdir()
    (boxes.folder / "a file of another program").write_text("")
    asked: list[str] = []

    def is_over(run_id: str, name: str) -> bool | None:
        asked.append(run_id)
        return True if run_id == "over" else None

    async def prune(**options: Any) -> dict[str, tuple[bool, str]]:
        found = await boxes.prune(is_over, **options)
        return {one.name: (one.removed, one.reason) for one in found}

    expected = {
        live.name: (False, "in use"),
        over.name: (True, "over"),
        kept.name: (False, "kept"),
        old.name: (True, "old"),
        "dead": (True, "unfinished"),
    }
    assert await prune(older_than=3600, dry_run=True) == expected
    assert len(list(boxes.folder.iterdir())) == 6
    assert await prune() == expected | {old.name: (False, "kept")}
    assert await prune(older_than=3600) == {name: expected[name] for name in (live.name, kept.name, old.name)}
    assert "live" not in asked
    assert (await (await boxes.find(kept.name, "kept")).release()) is None
    await live.remove()

    def removed_meanwhile(folder: Path, name: str) -> Any:
        raise FileNotFoundError(name)

    monkeypatch.setattr(_storage.SandboxStorage, "find", removed_meanwhile)
    assert await boxes.prune(is_over) == ()


@pytest.mark.parametrize("ending", ["journal", "jsonl"])
async def test_prune_on_the_command_line(tmp_path: Path, ending: str) -> None:
    """Journals tell whether runs are over, as `run --journal` and the pages name them; what can't be read is told."""
    boxes, folder = LocalSandboxes(tmp_path / "boxes", isolation="none"), tmp_path / "journals"
    folder.mkdir()
    asks = call("shell", {"commands": ["true"], "timeout_ms": None})
    names: list[str] = []
    for number, script in enumerate(([asks], [say("done")], [say("done")])):
        agent = Agent("a", model=ScriptedModel(script), tools=[shell_tool(lambda ctx: ctx.sandbox.shell)])
        async with FileJournal(folder / f"{number}.{ending}") as journal:
            result = await Runner.run(agent, "go", run_config=RunConfig(sandbox=boxes), journal=journal)
        run_id = result.to_state().run_id
        names += [each.name for each in result.records if isinstance(each, r.SandboxOpened)]
        if number == 1:  # as if the process had died before the removal
            made = await boxes.create(run_id)
            await made.release()
            names[1] = made.name
    unknown = await boxes.create("unknown")
    await unknown.release()
    (folder / f"broken.{ending}").write_text("x\n")
    (folder / "requests.jsonl").write_text("{}\n")

    def invoke(*arguments: str) -> list[str]:
        done = CliRunner().invoke(app, ["sandbox", "prune", str(boxes.folder), *arguments])
        assert done.exit_code == 0, done.output
        return done.output.splitlines()

    def lines(*arguments: str) -> set[str]:
        return set(invoke(*arguments))

    def act() -> None:
        journals = ("--journal", str(folder), "--journal", str(folder / f"2.{ending}"))
        found = lines("--dry-run", *journals)
        assert any(line.startswith(f"{names[1]}  would be removed: its run is over") for line in found)
        assert "1 would be removed, 2 kept." in found
        found = lines(*journals)
        assert any(line.startswith(f"{names[0]}  kept: its run may be resumed, run ") for line in found)
        assert any(line.startswith("Left out: ") and f"broken.{ending}" in line for line in found)
        assert "1 removed, 2 kept." in found
        assert not any("requests" in line for line in found)
        (folder / f"0.{ending}").write_text("x\n")
        assert "0 removed, 2 kept." in lines(*journals)
        assert "2 removed, 0 kept." in lines("--older-than", "0s")
        wrong = CliRunner().invoke(app, ["sandbox", "prune", str(boxes.folder), "--older-than", "soon"])
        assert (wrong.exit_code, "'soon' is no span of time" in wrong.output) == (2, True)

    await anyio.to_thread.run_sync(act)


def test_prune_tells_what_it_can_not_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the disk, or a journal that changes meanwhile."""
    from agentloop.cli import sandboxes

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(_storage, "remove_tree", refuse)
    (tmp_path / ".removed-x").mkdir()
    done = CliRunner().invoke(app, ["sandbox", "prune", str(tmp_path)])
    assert (done.exit_code, "Permission denied" in done.output) == (1, True)
    assert sandboxes._is_over(tmp_path / "absent", "x") is None


# ---------------------------------------------------------------------------------------------- killed processes


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_killed_between_any_two_steps(tmp_path: Path) -> None:
    """While a run can be resumed its storage is there, whatever is pruned; when it is over, a prune finds the rest."""
    command = [sys.executable, str(Path(kill_sandboxes.__file__)), str(tmp_path)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps = int(done.stdout)
    assert steps > 30
    seen = {"nothing": 0, "unnamed": 0, "resumed": 0, "over": 0}
    for step in range(steps):
        seen[anyio.run(_judge, tmp_path / str(step))] += 1
    # Whether the first records reach the journal one by one, so that it lacks the name for a moment, is the writer's.
    assert min(seen["nothing"], seen["resumed"], seen["over"]) > 0, seen


async def _judge(place: Path) -> str:
    """Check what a killed process left at *place*, and resume its run."""
    from agentloop.cli.sandboxes import is_over

    boxes, path = kill_sandboxes.sandboxes(place), place / "journal"

    def look(run_id: str, name: str) -> bool | None:
        return is_over(list(read_journal(path)), name) if path.exists() and path.stat().st_size else None

    if not path.exists() or not path.read_bytes():
        # The process had not begun to write: no one knows of the run, and its storage is only found by its age.
        found = await boxes.prune(look, older_than=0)
        assert all(one.removed for one in found)
        assert not boxes.folder.exists() or list(boxes.folder.iterdir()) == []
        return "nothing"
    records = list(read_journal(path))
    names = [each.name for each in records if isinstance(each, r.SandboxOpened)]
    ended = isinstance(records[-1], r.RunEnded)
    found = await boxes.prune(look)
    left = [each.name for each in boxes.folder.iterdir()] if boxes.folder.exists() else []
    assert left == ([] if ended else names)
    if ended:
        return "over"
    settled = [each for each in records if isinstance(each, r.CallSettled)]
    if settled:
        assert (boxes.folder / names[0] / "work/deep/notes.txt").read_text() == "kept\n"
    turns = sum(isinstance(each, r.ModelResponded) for each in records)
    async with FileJournal(path) as journal:
        agent = kill_sandboxes.make_agent(turns)
        result = await Runner.resume(agent, journal, run_config=RunConfig(sandbox=boxes))
    assert result.final_output == "done"
    assert list(boxes.folder.iterdir()) == []
    assert [each.name for each in result.records if isinstance(each, r.SandboxOpened)][: len(names)] == names
    return "resumed" if names else "unnamed"


@pytest.mark.slow
async def test_a_process_that_has_a_sandbox_keeps_it_from_others(tmp_path: Path) -> None:
    """A lock ends with its process, and not before: then the sandbox is found again, and a prune may look at it."""
    boxes = LocalSandboxes(tmp_path / "boxes", isolation="none")
    box = await boxes.create("run")
    await box.release()
    program = f"""
import anyio, sys
from agentloop.executors import LocalSandboxes
async def main():
    box = await LocalSandboxes({str(boxes.folder)!r}, isolation="none").find({box.name!r}, "run")
    print("has it", flush=True)
    await anyio.sleep(600)
anyio.run(main)
"""
    async with await anyio.open_process([sys.executable, "-c", program], env=ENVIRONMENT) as other:
        assert other.stdout is not None
        assert (await other.stdout.receive()).startswith(b"has it")
        with pytest.raises(StateError, match="is in use"):
            await boxes.find(box.name, "run")
        [found] = await boxes.prune(lambda run_id, name: True, older_than=0)
        assert (found.removed, found.reason, found.run_id) == (False, "in use", "run")
        other.send_signal(signal.SIGKILL)
        await other.wait()
    await (await boxes.find(box.name, "run")).remove()


# ---------------------------------------------------------------------------------------------- runs


async def test_a_run_that_pauses_and_goes_on(tmp_path: Path) -> None:
    """The files of the first segment are there in the second one, and its storage is gone after it."""
    boxes = LocalSandboxes(tmp_path / "boxes")
    tool = shell_tool(lambda ctx: ctx.sandbox.shell, needs_approval=lambda ctx, arguments, call_id: call_id == "b")
    model = ScriptedModel(
        [
            call("shell", {"commands": ["echo $HOME > note"], "timeout_ms": None}, call_id="a"),
            call("shell", {"commands": ["cat note"], "timeout_ms": None}, call_id="b"),
            say("done"),
        ]
    )
    agent = Agent("a", model=model, tools=[tool])
    config = RunConfig(sandbox=boxes)
    result = await Runner.run(agent, "go", run_config=config)
    [path] = boxes.folder.iterdir()
    assert (path / "work/note").read_text() == f"{path}/work\n"
    state: RunState = result.to_state()
    state.approve(result.interruptions[0])
    result = await Runner.run(agent, state, run_config=config)
    assert json.loads(str(result.calls[1].outcome.output))["results"][0]["stdout"] == f"{path}/work\n"
    assert list(boxes.folder.iterdir()) == []
    again = await anyio.to_thread.run_sync(lambda: replay(result, agent))
    assert again.result is not None
    assert again.result.final_output == "done"
    with pytest.raises(StateError, match="is gone"):
        await Runner.run(agent, state, run_config=config)


# ---------------------------------------------------------------------------------------------- isolation


async def test_a_system_without_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and each sandbox says it; where namespaces are wanted, none is made or found without them."""
    caplog.set_level(logging.WARNING, "agentloop")
    monkeypatch.setattr(_local_sandbox, "why_not_isolated", lambda: "the system is a test")
    _local_sandbox._warn_once.cache_clear()
    boxes = LocalSandboxes(tmp_path / "boxes")
    first, box = await boxes.create("run"), await boxes.create("run")
    for each in (first, box):
        assert each.isolation == "none"
        assert (await run(each, "pwd")).stdout == f"{each.directory}\n"
        await each.release()
    assert caplog.text.count("their commands plain processes: the system is a test") == 1
    strict = LocalSandboxes(tmp_path / "boxes", isolation="namespaces")
    with pytest.raises(SandboxError, match="allows no namespaces: the system is a test"):
        await strict.create("run")
    with pytest.raises(SandboxError, match="allows no namespaces"):
        await strict.find(box.name, "run")
    await (await boxes.find(box.name, "run")).remove()
    assert len(list(boxes.folder.iterdir())) == 1


def test_the_trial_of_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another system has none, and a trial that fails says why."""
    trial = _local_sandbox.why_not_isolated.__wrapped__
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        assert trial() == "darwin has no namespaces"
    for program, why in (
        (("/bin/sh", "-c", "echo no >&2; exit 125"), "no"),
        (("/bin/sh", "-c", "exit 3"), "the trial ended with status 3"),
        (("/absent",), "No such file"),
    ):
        monkeypatch.setattr(_local_sandbox, "_enter_namespaces", lambda *_, network, program=program: program)
        said = trial()
        assert said is not None
        assert why in said


@pytest.mark.slow
@isolated
async def test_a_command_in_namespaces(tmp_path: Path) -> None:
    """It writes in its own folders alone, sees no process of the machine, has no network, and gains no rights."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    box = await LocalSandboxes(tmp_path / "boxes", isolation="namespaces", env={"MINE": "1"}).create("run")
    assert box.isolation == "namespaces"
    script = f"""
    echo $MINE $HOME $TMPDIR; pwd; touch file "$TMPDIR/file" && echo writes
    for path in {outside}/file ../about ../lock {tmp_path}/boxes/new /tmp/agentloop-outside; do
        touch $path && echo wrote $path
    done
    ls /proc | grep -c '^[0-9]'; kill -9 {os.getpid()}; cat /proc/net/dev | wc -l
    grep -E 'CapEff|NoNewPrivs' /proc/self/status; echo x > /dev/null && echo null; echo x > /dev/stderr && echo error
    """
    result = await run(box, script)
    lines = result.stdout.split("\n")
    assert lines[:3] == [f"1 {box.directory} {box.directory.parent}/tmp", str(box.directory), "writes"]
    assert int(lines[3]) <= 5
    assert lines[4:] == ["3", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "null", "error", ""]
    assert list(outside.iterdir()) == []
    assert "No such process" in result.stderr or "no such process" in result.stderr.lower()
    assert (await run(box, "kill -9 $$")).exit_code == 128 + signal.SIGKILL
    assert (await run(box, "exit 7")).exit_code == 7
    assert (await run(box, "kill -PIPE $$")).exit_code == 128 + signal.SIGPIPE
    await box.remove()


@isolated
async def test_every_mount_of_a_command_is_bare(tmp_path: Path) -> None:
    """Read-only, without devices and setuid, but for its two folders and the few devices that every program needs."""
    box = await LocalSandboxes(tmp_path / "boxes", isolation="namespaces").create("run")
    mounts = (await run(box, "cat /proc/self/mountinfo")).stdout.splitlines()
    own = {str(box.directory), f"{box.directory.parent}/tmp"}
    seen = set()
    for line in mounts:
        _, _, _, _, place, options, *_ = line.split()
        flags = set(options.split(","))
        assert "nosuid" in flags, line
        assert ("rw" in flags) == (place in own), line
        assert "nodev" in flags or place.startswith(("/dev", "/proc/")), line
        seen.add(place)
    assert own < seen
    script = """
    ls /dev | xargs echo; cat /proc/sys/user/max_user_namespaces
    find /proc /sys -path '/proc/[0-9]*' -prune -o -writable -type f -print | while read path; do
        test -c "$path" || echo "$path"
    done
    command -v unshare > /dev/null && unshare -Ur true && echo nested
    echo end
    """
    devices, *rest = (await run(box, script)).stdout.splitlines()
    assert set(devices.split()) <= {*_namespaces._DEVICES, *_namespaces._DEVICE_LINKS}
    assert {"null", "zero", "urandom"} < set(devices.split())
    assert rest == ["0", "end"]
    await box.remove()


@isolated
async def test_commands_have_no_way_to_a_terminal_of_the_machine(tmp_path: Path) -> None:
    """Neither by the name of the device nor by the terminal of their session."""
    box = await LocalSandboxes(tmp_path / "boxes", isolation="namespaces").create("run")
    ours, theirs = os.openpty()
    try:
        name = os.ttyname(theirs)
        os.chmod(name, 0o666)
        result = await run(box, f"echo owned > {name}; echo owned > /dev/tty; ls /dev/pts; echo end")
        assert result.stdout == "end\n"
        os.set_blocking(ours, False)
        with pytest.raises(BlockingIOError):
            os.read(ours, 100)
    finally:
        os.close(ours)
        os.close(theirs)
    await box.remove()


@isolated
async def test_commands_see_no_sandbox_but_their_own(tmp_path: Path) -> None:
    """So they neither read nor lock what other runs keep, nor the folder that all of them share."""
    boxes = LocalSandboxes(tmp_path / "boxes", isolation="namespaces")
    box, other = await boxes.create("run"), await boxes.create("other")
    (other.directory / "secret").write_text("canary")
    (other.directory / "secret").chmod(0o666)
    script = f"ls -A {boxes.folder}; ls -A ..; cat {other.directory}/secret ../lock ../about; echo $?"
    result = await run(box, script)
    assert result.stdout.split() == [box.name, "tmp", "work", "1"]
    await other.release()
    async with anyio.create_task_group() as tasks:
        started = box.directory / "started"
        held = f"exec 9<{boxes.folder}; flock -x 9; exec 8<..; flock -x 8; touch started; sleep 600"
        tasks.start_soon(run, box, held)
        with anyio.fail_after(60):
            while not started.exists():  # noqa: ASYNC110 - of another process
                await anyio.sleep(0.01)
            await (await boxes.create("third")).remove()
            await (await boxes.find(other.name, "other")).remove()
            assert [one.reason for one in await boxes.prune(never)] == ["in use"]
        tasks.cancel_scope.cancel()
    await box.remove()


@isolated
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_commands_of_a_root_are_an_ordinary_user(tmp_path: Path) -> None:
    """Outside of their namespaces, too: what is root's they neither read nor leave; the editor's files are theirs."""
    os.chmod(tmp_path, 0o700)
    boxes = LocalSandboxes(tmp_path / "boxes", isolation="namespaces")
    box = await boxes.create("run")
    (tmp_path / "secret").write_text("canary")
    (tmp_path / "secret").chmod(0o644)
    await box.editor.apply([WriteFile(path="made/by/editor", text="one\n")])
    script = f"""
    cp /bin/true mine; chmod 4755 mine; echo two >> made/by/editor; echo x > made/by/command; rm made/by/editor
    cat {tmp_path}/secret /etc/shadow; id -u; ls -A {tmp_path}
    """
    result = await run(box, script)
    assert "canary" not in result.stdout
    assert result.stdout.split() == [str(_local_sandbox._UNPRIVILEGED_USER), "boxes"]
    made = list(box.directory.rglob("*"))
    assert len(made) == 4
    assert {path.stat().st_uid for path in made} == {_local_sandbox._UNPRIVILEGED_USER}
    await box.editor.apply([WriteFile(path="made/by/command", text="changed\n")])
    assert (await run(box, "echo more >> made/by/command; cat made/by/command")).stdout == "changed\nmore\n"
    await box.release()
    os.chown(box.directory, 0, 0)  # as if the process had died before it gave the folder away
    box = await boxes.find(box.name, "run")
    assert (await run(box, "touch again && echo ok")).stdout == "ok\n"

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(22, "Invalid argument")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "chown", refuse)
        with pytest.raises(SandboxError, match=r"can't be given to user 65533.*Invalid argument"):
            await boxes.create("late")
    await box.remove()
    assert list(boxes.folder.iterdir()) == []


def test_a_root_is_never_put_into_namespaces_as_root() -> None:
    """Also if the orders ask for it: the status is the one of a setup that failed, and the command isn't executed."""
    orders = json.dumps({"folders": [], "hidden": [], "network": False, "user": None})
    program = [sys.executable, "-I", "-S", _local_sandbox._NAMESPACES, orders, "/bin/sh", "-c", "echo ran"]
    if os.geteuid() != 0:
        pytest.skip("needs root")
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (125, "")
    assert "root is not put into namespaces" in done.stderr


@isolated
async def test_no_folder_for_temporary_files_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hardened container has a file system that is read-only but for the folder of the sandboxes."""

    def refuse(*_: Any, **__: Any) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    _local_sandbox.why_not_isolated.cache_clear()
    box = await LocalSandboxes(tmp_path / "boxes", isolation="namespaces").create("run")
    assert (await run(box, "touch $TMPDIR/x && echo ok")).stdout == "ok\n"
    await box.remove()


@isolated
@pytest.mark.slow
async def test_the_ends_of_commands_in_namespaces(tmp_path: Path) -> None:
    """A command may answer SIGTERM within the grace; after it nothing is left, of fork bombs and sessions too."""
    patient = await LocalSandboxes(tmp_path / "patient", isolation="namespaces", grace=60).create("run")
    polite = await run(patient, "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done", timeout=3)
    assert (polite.timed_out, polite.stdout) == (True, "up\nbye\n")
    await patient.remove()
    box = await LocalSandboxes(tmp_path / "boxes", isolation="namespaces", grace=0.5).create("run")
    mark = f"{time.time_ns()}"
    bomb = f"""
    trap '' TERM HUP INT
    for n in $(seq 40); do setsid sh -c 'trap "" TERM; while :; do sleep 100{mark}; done' & done
    while :; do (while :; do sleep 0.01; done) & sleep 0.02; done
    """
    result = await run(box, bomb, timeout=0.7)
    assert (result.timed_out, result.left_running) == (True, ())
    assert processes_with(mark, "cmdline") == []
    with anyio.move_on_after(0.4) as scope:
        await run(box, f"trap '' TERM; while :; do sleep 100{mark}; done")
    assert scope.cancelled_caught
    assert processes_with(mark, "cmdline") == []
    await box.remove()


@isolated
@pytest.mark.slow
async def test_a_gigabyte_of_output_from_namespaces(tmp_path: Path) -> None:
    """The processes between the command and the run keep none of it, and the command has no terminal to ask at."""
    box = await LocalSandboxes(tmp_path / "boxes", isolation="namespaces", max_output=1_000).create("run")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    script = "cat; tty; read x < /dev/tty; echo $?; head -c 1000000000 /dev/zero | tr '\\0' x; echo; echo last"
    result = await run(box, script)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert result.stdout.startswith(("not a tty\n1\nxxx", "not a tty\n2\nxxx"))
    assert result.stdout.endswith("xxx\nlast\n")
    assert "[… the middle of 1,000,000,018 bytes was cut …]" in result.stdout
    assert max(now - then for now, then in zip(after, before, strict=True)) < 50_000  # kilobytes
    await box.remove()


@isolated
async def test_a_command_that_can_not_be_set_apart_is_not_run(tmp_path: Path) -> None:
    """It never falls back to a plain process."""
    box = await LocalSandboxes(tmp_path / "boxes", isolation="namespaces", network=True).create("run")
    (box.directory.parent / "tmp").rmdir()
    result = await run(box, "echo ran")
    assert (result.exit_code, result.stdout) == (125, "")
    assert "the sandbox could not be set up" in result.stderr
    await box.remove()


async def test_the_editor_stays_inside(tmp_path: Path) -> None:
    """Links that a command has made lead its sandbox's editor nowhere."""
    box = await LocalSandboxes(tmp_path / "boxes", isolation="none").create("run")
    assert (await run(box, "ln -s / root; ln -s ../about about")).exit_code == 0
    for path in ("root/etc/x", "../about", "about"):
        with pytest.raises(EditError):
            await box.editor.apply([CreateFile(path=path, diff="+x")])
    await box.remove()


def test_arguments(tmp_path: Path) -> None:
    """Each wrong one is named; the variables, which may be secret, are not shown."""
    with pytest.raises(UserValueError, match=r"LocalSandboxes\.isolation"):
        LocalSandboxes(tmp_path, isolation="strong")  # type: ignore[arg-type]
    with pytest.raises(UserTypeError, match=r"LocalSandboxes\.env"):
        LocalSandboxes(tmp_path, env={"A": 1})  # type: ignore[dict-item]
    assert "s3cret" not in repr(LocalSandboxes(tmp_path, env={"KEY": "s3cret"}))
