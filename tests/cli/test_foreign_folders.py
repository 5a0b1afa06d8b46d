"""Folders and files of the command line that somebody else has made, could change, or could read."""

import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.terminal import Terminal
from click.testing import Result

from agentloop.cli import journal_folder

Invoke = Callable[..., Result]
AgentOf = Callable[[str], str]
JOB_COMMANDS = ("resume", "pending", "approve", "reject", "run")
EVIL = """
from pathlib import Path
from agentloop import Agent
from agentloop.testing import FunctionModel
Path("RAN").write_text("code of the folder ran")
agent = Agent("a", model=FunctionModel(lambda request: "done"))
"""


@pytest.fixture
def job(invoke: Invoke, agent: AgentOf, tmp_path: Path) -> Path:
    """A job whose only call waits."""
    folder = tmp_path / "job"
    made = invoke("run", agent("doubler"), "hi", "--journal", str(folder))
    assert made.exit_code == 0, made.stderr
    return folder


def perform(invoke: Invoke, agent: AgentOf, command: str, folder: Path) -> Result:
    """Use *folder* by one of the commands."""
    more = {"run": (agent("doubler"), "hi", "--journal", str(folder)), "approve": (str(folder), "call_1")}
    return invoke(command, *more.get(command, more["approve"] if command == "reject" else (str(folder),)))


@pytest.mark.parametrize("command", JOB_COMMANDS)
@pytest.mark.parametrize("changed", [".", "job.json", "run.journal"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_folder_that_others_can_write_to_is_refused(
    invoke: Invoke, agent: AgentOf, job: Path, command: str, changed: str, mode: int
) -> None:
    """Also if it is one of its files; the message says how to mend it, and then the folder is used."""
    path = job / changed
    before = stat.S_IMODE(path.stat().st_mode)
    path.chmod(before | mode)
    refused = perform(invoke, agent, command, job)
    assert refused.exit_code == 2
    name = "the folder" if changed == "." else changed
    assert f"others can write to {name}," in refused.stderr
    assert f"chmod -R go-w {job}" in refused.stderr
    path.chmod(before)
    assert "others can write" not in perform(invoke, agent, command, job).stderr


@pytest.mark.parametrize("command", JOB_COMMANDS)
def test_folder_of_another_user_is_refused(
    invoke: Invoke, agent: AgentOf, job: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's own commands are no exception."""
    owner = os.geteuid()
    monkeypatch.setattr(journal_folder.os, "geteuid", lambda: owner + 1)
    refused = perform(invoke, agent, command, job)
    assert refused.exit_code == 2
    assert f"the folder belongs to another user (id {owner})" in refused.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_file_of_another_user_is_refused(invoke: Invoke, agent: AgentOf, job: Path) -> None:
    """In a folder of one's own, too, and behind a link."""
    os.chown(job / "run.journal", 12_345, -1)
    assert "run.journal belongs to another user (id 12345)" in perform(invoke, agent, "resume", job).stderr
    (job / "run.journal").rename(job.parent / "aside")
    (job / "run.journal").symlink_to(job.parent / "aside")
    assert "run.journal belongs to another user" in perform(invoke, agent, "resume", job).stderr


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that somebody has sent, unpacked in the current one: its order names its own code."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "sent"
    folder.mkdir()
    (folder / "evil.py").write_text(EVIL.replace("RAN", str(tmp_path / "ran")))
    order = {"target": f"{folder}/evil.py:agent", "folder": str(folder), "request": "x", "model": None, "max_turns": 1}
    place = {"path": str(folder), "inode": 1}
    text = json.dumps({"version": 1, "place": place, **order, "sandbox": str(tmp_path / "made")})
    (folder / "job.json").write_text(text)
    return folder


def test_code_of_a_folder_from_elsewhere_needs_a_word(invoke: Invoke, foreign: Path) -> None:
    """Nothing of it is imported or made without; the message shows what would be, and how to say it."""
    target = f"{foreign}/evil.py:agent"
    for command in (("resume", "sent"), ("pending", "sent"), ("trace", "sent"), ("resume", "sent", "--target", "x:y")):
        refused = invoke(*command)
        assert not (foreign.parent / "ran").exists()
        assert not (foreign.parent / "made").exists()
    assert "not x:y" in refused.stderr
    refused = invoke("resume", "sent")
    assert (refused.exit_code, refused.stdout) == (2, "")
    for shown in (target, f"in {foreign}", str(foreign.parent / "made"), f"agentloop resume sent --target {target}"):
        assert shown in refused.stderr
    assert invoke("resume", "sent", "--target", "sent/evil.py:agent").stdout == "done\n"
    assert (foreign.parent / "ran").exists()
    assert invoke("resume", "sent").stdout == "done\n"  # it goes on here now


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "code"), [("n\n", 2), ("y\n", 0)])
def test_code_of_a_folder_from_elsewhere_is_asked_for_at_a_terminal(
    start: Any, foreign: Path, typed: str, code: int
) -> None:
    """The question shows the target; only yes runs it."""
    terminal = Terminal(start, "resume", "sent", columns=400, cwd=foreign.parent)
    terminal.wait_for("Go on? [y/N]: ")
    terminal.type(typed)
    assert terminal.finish() == code, terminal.shown
    assert f"{foreign}/evil.py:agent" in terminal.shown
    assert (foreign.parent / "ran").exists() is (code == 0)


def test_question_can_not_control_the_terminal(invoke: Invoke, foreign: Path) -> None:
    """A target may have any characters."""
    data = json.loads((foreign / "job.json").read_text())
    (foreign / "job.json").write_text(json.dumps({**data, "target": "a\x1b[2J\u202e:agent"}))
    refused = invoke("resume", "sent")
    assert "\x1b" not in refused.stderr
    assert "\u202e" not in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("change", ["copied", "moved", "as an older version wrote it"])
def test_folder_that_is_elsewhere_now_needs_a_word(invoke: Invoke, agent: AgentOf, job: Path, change: str) -> None:
    """The job is one's own, but nothing shows that any more."""
    there = job.parent / "there"
    if change == "copied":
        shutil.copytree(job, there)
    elif change == "moved":
        job.rename(there)
    else:
        there = job
        data = json.loads((job / "job.json").read_text())
        del data["place"]
        (job / "job.json").write_text(json.dumps(data))
    refused = invoke("resume", str(there))
    assert refused.exit_code == 2
    assert f"--target {agent('doubler')}" in refused.stderr
    assert invoke("pending", str(there)).exit_code == 0
    assert invoke("run", agent("doubler"), "hi", "--journal", str(there)).exit_code == 0  # names it, too
    assert invoke("resume", str(there), "--target", agent("doubler")).exit_code == 0
    assert invoke("resume", str(there)).exit_code == 0


ODD_ORDERS: dict[str, Callable[[Path], Any]] = {
    "deep": lambda path: path.write_text("[" * 200_000),
    "no object": lambda path: path.write_text("1"),
    "a number of many digits": lambda path: path.write_text('{"version":' + "9" * 5_000 + "}"),
    "another version": lambda path: path.write_text('{"version": 2}'),
    "too long": lambda path: path.write_text(" " * 8_000_001),
    "no text": lambda path: path.write_bytes(b"\xff\xfe"),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": lambda path: os.mkfifo(path),
    "a folder": lambda path: path.mkdir(),
    "a hole": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
}


@pytest.mark.timeout(30)  # a reader of the pipe, or of the device, would never return
@pytest.mark.parametrize("odd", list(ODD_ORDERS))
@pytest.mark.parametrize("command", ["resume", "pending"])
def test_odd_order_is_refused_in_words(invoke: Invoke, agent: AgentOf, job: Path, command: str, odd: str) -> None:
    """Whatever somebody has put in its place, and in bounded memory."""
    (job / "job.json").unlink()
    ODD_ORDERS[odd](job / "job.json")
    refused = perform(invoke, agent, command, job)
    assert refused.exit_code == 2, refused.output
    assert str(job) in refused.stderr
    assert "Errno" not in refused.stderr


ODD_JOURNALS: dict[str, Callable[[Path], Any]] = {
    name: ODD_ORDERS[name] for name in ("deep", "no object", "no text", "a device", "a pipe", "a folder", "a hole")
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("odd", list(ODD_JOURNALS))
@pytest.mark.parametrize("command", ["trace", "pending", "prune", "file"])
def test_odd_journal_is_read_in_bounded_time_and_memory(invoke: Invoke, job: Path, command: str, odd: str) -> None:
    """An error in words, or nothing to show: a file of zeros is what a crash may leave."""
    (job / "run.journal").unlink()
    ODD_JOURNALS[odd](job / "run.journal")
    words = {
        "trace": ("trace", str(job)),
        "pending": ("pending", str(job)),
        "prune": ("sandbox", "prune", str(job.parent), "--dry-run", "--journal", str(job)),
        "file": ("trace", str(job / "run.journal")),
    }[command]
    result = invoke(*words)
    assert result.exit_code in (0, 1, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output


# -- what others may read


@pytest.fixture
def _usual_umask() -> Any:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_usual_umask")
def test_files_of_the_command_line_are_the_owner_s(
    invoke: Invoke, agent: AgentOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Journals, requests and orders in a folder that others may enter, a session, a page."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requests").write_text("one\ntwo\n")
    for name in ("one", "many"):
        (tmp_path / name).mkdir(mode=0o755)
    assert invoke("run", agent("doubler"), "hi", "--journal", "one").exit_code == 0
    assert invoke("run", agent("doubler"), "--input", "requests", "--journal", "many").exit_code == 0
    assert invoke("trace", "one", "--html", "page.html").exit_code == 0
    assert invoke("chat", agent("doubler"), "--session", "talk.sqlite", input="hi\n").exit_code == 0
    written = [*(tmp_path / "one").iterdir(), *(tmp_path / "many").iterdir(), tmp_path / "page.html"]
    written += tmp_path.glob("talk.sqlite*")
    assert len(written) >= 9
    assert {path.name: oct(path.stat().st_mode & 0o077) for path in written if path.stat().st_mode & 0o077} == {}


@pytest.mark.usefixtures("_usual_umask")
def test_mode_of_a_file_that_is_there_stays(invoke: Invoke, agent: AgentOf, job: Path, tmp_path: Path) -> None:
    """It is the user's choice: a page that a server shows, a session that a group shares."""
    page, session = tmp_path / "page.html", tmp_path / "talk.sqlite"
    page.write_text("old")
    sqlite3.connect(session).close()
    session.touch(0o644)
    assert invoke("trace", str(job), "--html", str(page)).exit_code == 0
    assert invoke("chat", agent("doubler"), "--session", str(session), input="hi\n").exit_code == 0
    assert [oct(path.stat().st_mode & 0o777) for path in (page, session)] == ["0o644"] * 2


def test_waiting_calls_in_json_can_not_control_the_terminal(invoke: Invoke, agent: AgentOf, tmp_path: Path) -> None:
    """Names, ids and arguments with controls and changes of direction are escaped; the JSON means the same."""
    folder = str(tmp_path / "job")
    assert invoke("run", agent("odd_call"), "x", "--journal", folder, "--approve", "never").exit_code == 3
    shown = invoke("pending", folder, "--json")
    assert shown.exit_code == 0
    assert not any(character in shown.stdout for character in "\x1b\x9b\u202e\u2066\x07")
    assert json.loads(shown.stdout)["call"] == "c\x9b2J\u202e"
