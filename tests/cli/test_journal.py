"""`agentloop run --journal DIR` and `agentloop resume DIR`: what was done before a crash isn't done again."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cli import kill_batch
from cli.terminal import Terminal
from click.testing import Result

from agentloop.cli.errors import PastError, code_of, words_for
from agentloop.cli.journal_folder import Folder

Start = Callable[..., "subprocess.Popen[str]"]
Invoke = Callable[..., Result]
OTHER = {"asyncio": "trio", "trio": "asyncio"}


@pytest.fixture
def kept(tmp_path: Path) -> str:
    """DIR, which isn't there yet."""
    return str(tmp_path / "kept")


@pytest.fixture
def agent() -> Callable[[str], str]:
    """`agent("name")` is the TARGET of an agent in `kept_agents.py`."""
    return lambda name: f"{Path(__file__).with_name('kept_agents.py')}:{name}"


AgentOf = Callable[[str], str]


@pytest.fixture
def noted(notes: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Return a function that reads the notes of all tools, those of this process too."""
    monkeypatch.setenv("AGENTLOOP_TEST_NOTES", str(notes))
    return lambda: notes.read_text().splitlines() if notes.exists() else []


Noted = Callable[[], list[str]]


def finished(child: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Return the exit code and both outputs of a child that ends by itself."""
    out, err = child.communicate(timeout=30)
    return child.returncode, out, err


# -- one request


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was_on_the_other_backend(
    start: Start, agent: AgentOf, kept: str, backend: str, noted: Noted
) -> None:
    """The call that had settled isn't run again; the idempotent one that was running when the process died is."""
    code, out, _ = finished(start("run", agent("dying"), "x", "--journal", kept, "--backend", backend))
    assert (code, out) == (-signal.SIGKILL, "")
    assert noted() == ["first x", "second x"]
    code, out, err = finished(start("resume", kept, "--backend", OTHER[backend]))
    assert (code, out) == (0, "first x and second x\n"), err
    assert noted() == ["first x", "second x", "second x"]


@pytest.mark.slow
def test_the_same_command_goes_on_too(start: Start, agent: AgentOf, kept: str, noted: Noted) -> None:
    """A supervisor may repeat the same command: it resumes the run, or prints the answer of a completed one."""
    command = ("run", agent("dying"), "x", "--journal", kept)
    assert finished(start(*command))[0] == -signal.SIGKILL
    for _ in range(2):
        code, out, err = finished(start(*command))
        assert (code, out) == (0, "first x and second x\n"), err
    assert noted() == ["first x", "second x", "second x"]


def test_a_completed_run_is_told_of_as_it_was(invoke: Invoke, agent: AgentOf, kept: str) -> None:
    """The result is printed in words and in JSON, also values that aren't text, without asking the model."""
    first = invoke("run", agent("measuring"), "x", "--journal", kept, "--json")
    again = invoke("resume", kept, "--json")
    assert (first.exit_code, again.exit_code) == (0, 0)
    assert json.loads(again.stdout) == json.loads(first.stdout.splitlines()[-1])
    assert json.loads(again.stdout)["usage"]["requests"] == 1
    assert invoke("resume", kept).stdout == '{"width": 3}\n'


def test_a_run_that_failed_for_good_fails_again_in_the_same_words(
    invoke: Invoke, agent: AgentOf, kept: str, noted: Noted
) -> None:
    """The error is printed again, and no call is run."""
    first = invoke("run", agent("failing"), "bad", "--journal", kept)
    again = invoke("resume", kept)
    assert (first.exit_code, again.exit_code) == (1, 1)
    assert again.stdout == ""
    assert again.stderr.splitlines()[-1] == first.stderr.splitlines()[-1]
    assert "api_key=[redacted]" in again.stderr
    assert noted() == ["explode"]
    told = json.loads(invoke("resume", kept, "--json").stdout)
    assert (told["status"], told["error"]["type"]) == ("failed", "ToolCallError")


def test_errors_of_the_past_are_told_of_like_new_ones() -> None:
    """A past error is shown with the failures beside it; a user's mistake is shown without its class."""
    noted = PastError.of("ValueError(x (y))", {"also_failed": ["KeyError(z)"]})
    assert words_for(noted) == "Error: ValueError: x (y)\n  also failed: KeyError(z)\n"
    assert code_of(noted) == 1
    mistaken = PastError.of("UserError(do this)", None)
    assert (words_for(mistaken), code_of(mistaken)) == ("Error: do this\n", 2)
    assert words_for(PastError.of("KeyError()", None)) == "Error: KeyError\n"


def test_turns_can_be_added_on_resuming(invoke: Invoke, agent: AgentOf, kept: str, noted: Noted) -> None:
    """Without more turns the resumed run fails as before; with them it continues, and no call is repeated."""
    assert invoke("run", agent("endless"), "x", "--journal", kept, "--max-turns", "2").exit_code == 1
    again = invoke("resume", kept)
    assert again.exit_code == 1
    assert "Max turns (2) exceeded" in again.stderr
    enough = invoke("resume", kept, "--max-turns", "5")
    assert (enough.exit_code, enough.stdout) == (0, "enough\n"), enough.stderr
    assert noted() == ["first go"] * 3


@pytest.mark.slow
def test_a_cancelled_run_says_how_to_go_on_and_does(start: Start, agent: AgentOf, kept: str, notes: Path) -> None:
    """The signal ends the entry, not the run."""
    hanging = f"{Path(__file__).with_name('agents.py')}:hanging"
    child = start("run", hanging, "x", "--journal", kept)
    assert child.stderr is not None
    while "→ hang" not in child.stderr.readline():
        pass
    child.send_signal(signal.SIGTERM)
    code, _, err = finished(child)
    assert code == 143
    assert f"To go on: agentloop resume {kept}" in err
    child = start("resume", kept)
    assert child.stderr is not None
    while "→ hang" not in child.stderr.readline():
        pass
    child.send_signal(signal.SIGTERM)
    assert finished(child)[0] == 143


@pytest.mark.slow
def test_resuming_works_in_the_folder_it_began_in(start: Start, kept: str, tmp_path: Path) -> None:
    """Modules are found in that folder, and tools that use paths find their files."""
    (tmp_path / "local.py").write_text(
        "from pathlib import Path\nfrom agentloop import Agent\nfrom agentloop.testing import ScriptedModel, say\n"
        "here = Agent('here', model=ScriptedModel([lambda _: say(str(Path.cwd()))]))\n"
        "late = Agent('late', model='nowhere:model')\n"
    )
    other = tmp_path / "other"
    other.mkdir()
    assert finished(start("run", "local:late", "x", "--journal", "kept", cwd=tmp_path))[0] == 2
    code, _, err = finished(start("resume", "../kept", "--model", "nowhere:else", cwd=other))
    assert code == 2
    assert "'nowhere:else' is no known model string" in err
    assert finished(start("run", "local:here", "x", "--journal", "kept2", cwd=tmp_path))[1] == f"{tmp_path}\n"
    os.truncate(tmp_path / "kept2" / "run.journal", 0)
    assert finished(start("resume", "../kept2", cwd=other))[1] == f"{tmp_path}\n"


# -- what is refused


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("failing", "other"), "its request is 'hello', not 'other'"),
        (("endless", "hello"), "its target is"),
        (("failing", "hello", "--max-turns", "3"), "its max_turns is 10, not 3"),
        (("failing", "hello", "--model", "a:b"), "its model is None, not 'a:b'"),
        (("failing", "-"), "it answers one request, not many"),
    ],
)
def test_a_folder_of_another_job_is_refused(
    invoke: Invoke, agent: AgentOf, kept: str, command: tuple[str, ...], said: str
) -> None:
    """The error says what differs, and how to resume the run in the folder."""
    assert invoke("run", agent("failing"), "hello", "--journal", kept).stdout == "[hello]\n"
    name, request, *options = command
    result = invoke("run", agent(name), request, "--journal", kept, *options, input="one\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert f"agentloop resume {kept}" in result.stderr


def test_a_folder_of_something_else_is_refused(invoke: Invoke, agent: AgentOf, tmp_path: Path) -> None:
    """No file is written into it; a file isn't taken for a folder, nor a folder without a job for one with."""
    (tmp_path / "thesis.tex").touch()
    result = invoke("run", agent("failing"), "hello", "--journal", str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'thesis.tex' for one" in result.stderr
    assert not (tmp_path / "job.json").exists()
    (tmp_path / "file").touch()
    assert "File exists" in invoke("run", agent("failing"), "hi", "--journal", str(tmp_path / "file")).stderr
    for folder in (tmp_path, tmp_path / "absent", tmp_path / "file"):
        for command in ("resume", "pending"):
            result = invoke(command, str(folder))
            assert result.exit_code == 2
            is_journal = command == "pending" and folder.name == "file"  # a program's, that has no record yet
            assert ("nothing whole is in it" if is_journal else "no job is there") in result.stderr


def test_a_wrong_target_leaves_no_folder(invoke: Invoke, kept: str) -> None:
    """No file of the job exists before it could begin."""
    assert invoke("run", "nowhere.py:agent", "hello", "--journal", kept).exit_code == 2
    assert not Path(kept).exists()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "its job.json can't be read"),
        (b'{"version": 9}', "is of version 9; version 1 is known"),
        (b'{"version": 1, "target": 3}', "isn't what `agentloop run` wrote"),
        (b"[]", "isn't what `agentloop run` wrote"),
        (
            b'{"version": 1, "target": 3, "folder": "", "request": null, "model": null, "max_turns": 1}',
            "isn't what `agentloop run` wrote",
        ),
        (
            b'{"version": 1, "target": "a:b", "folder": "/absent", "request": "", "model": null, "max_turns": 1}',
            "the folder it worked in, /absent, is gone",
        ),
    ],
)
def test_a_damaged_job_is_refused(invoke: Invoke, kept: str, data: bytes, said: str) -> None:
    """The error says what is damaged."""
    Path(kept).mkdir()
    (Path(kept) / "job.json").write_bytes(data)
    result = invoke("resume", kept)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_a_folder_in_use_is_refused(invoke: Invoke, agent: AgentOf, kept: str) -> None:
    """Two processes would both run the due calls."""
    assert invoke("run", agent("failing"), "hello", "--journal", kept).exit_code == 0
    with Folder.at(kept).held():
        result = invoke("resume", kept)
    assert result.exit_code == 2
    assert "another agentloop is at work on it" in result.stderr
    assert invoke("resume", kept).exit_code == 0


def test_a_damaged_journal_is_told_of(invoke: Invoke, agent: AgentOf, kept: str) -> None:
    """The command reports the damage and runs no call by guessing."""
    assert invoke("run", agent("failing"), "hello", "--journal", kept).exit_code == 0
    journal = Path(kept) / "run.journal"
    journal.write_bytes(journal.read_bytes().replace(b"hello", b"hallo"))
    for command in ("resume", "pending"):
        result = invoke(command, kept)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "JournalError" in result.stderr


def test_the_folder_is_nobody_elses(invoke: Invoke, agent: AgentOf, kept: str) -> None:
    """The folder can be read by its owner alone, since the input and output of runs may be private."""
    invoke("run", agent("failing"), "hello", "--journal", kept)
    assert Path(kept).stat().st_mode & 0o077 == 0


# -- many requests


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_batch_killed_at_random_keeps_every_promise(tmp_path: Path, seed: int) -> None:
    """Every idempotent effect is there once, every other at most once, and all answers are in order."""
    report = kill_batch.run(8, 3, seed, tmp_path)
    assert any(report.killed_at)
    report.check(8)


def test_complete_lines_are_printed_from_their_journals_in_order(
    invoke: Invoke, agent: AgentOf, kept: str, tmp_path: Path, noted: Noted
) -> None:
    """Failures and lines that are no requests are printed in the same words and places; the file may be gone."""
    file = tmp_path / "requests.txt"
    file.write_bytes(b"one\n\nbad two\n\xff\nfive")
    command = ("run", agent("failing"), "--input", str(file), "--journal", kept)
    first = invoke(*command)
    assert first.exit_code == 1
    assert first.stdout.splitlines()[::3] == ["[one]", "[five]"]
    again = invoke(*command)
    file.unlink()
    resumed = invoke("resume", kept)
    for later in (again, resumed):
        assert (later.exit_code, later.stdout, later.stderr) == (1, first.stdout, first.stderr)
    assert noted() == ["explode"]
    told = [json.loads(line) for line in invoke("resume", kept, "--json").stdout.splitlines()]
    assert [(one["line"], one["status"]) for one in told] == [
        (1, "completed"),
        (3, "failed"),
        (4, "failed"),
        (5, "completed"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one\nthree\n", "line 2 was another one"),
        ("one\n\ntwo\n", "line 2 was another one"),
        ("one\n", "that one has more lines, line 2 for one"),
        ("one\ntwo\nthree\n", "that one ended before line 3"),
    ],
)
@pytest.mark.parametrize("by_file", [True, False])
def test_other_input_is_refused(
    invoke: Invoke, agent: AgentOf, kept: str, tmp_path: Path, text: str, said: str, by_file: bool
) -> None:
    """A file is refused before anything is printed, a stream at the first line that differs."""
    assert invoke("run", agent("failing"), "--journal", kept, input="one\ntwo\n").stdout == "[one]\n[two]\n"
    file = tmp_path / "requests.txt"
    file.write_text(text)
    given = ("--input", str(file)) if by_file else ()
    result = invoke("run", agent("failing"), "--journal", kept, *given, input=text)
    assert result.exit_code == 2
    assert said in result.stderr
    if by_file:
        assert result.stdout == ""
    assert invoke("run", agent("failing"), "--journal", kept, input="one\ntwo\n").exit_code == 0


@pytest.mark.slow
def test_requests_from_a_stream_are_kept_as_far_as_they_were_read(start: Start, agent: AgentOf, kept: str) -> None:
    """Resuming answers the kept ones and says that there were more to come; the whole input completes the job."""
    command = ("run", agent("failing"), "--journal", kept)
    child = start(*command, stdin=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("one\n")
    child.stdin.flush()
    assert child.stdout.readline() == "[one]\n"
    child.kill()
    child.wait()
    code, out, err = finished(start("resume", kept))
    assert (code, out) == (1, "[one]\n")
    assert "The input had not been read to its end: 1 requests are known." in err
    child = start(*command, stdin=subprocess.PIPE)
    out, err = child.communicate("one\ntwo\n", timeout=30)
    assert (child.returncode, out) == (0, "[one]\n[two]\n"), err
    assert finished(start("resume", kept))[:2] == (0, "[one]\n[two]\n")


def test_a_request_torn_by_a_crash_is_asked_for_again(invoke: Invoke, agent: AgentOf, kept: str) -> None:
    """The whole lines of a torn file are kept; a file that is damaged otherwise is refused."""
    command = ("run", agent("failing"), "--journal", kept)
    assert invoke(*command, input="one\ntwo\n").exit_code == 0
    requests = Path(kept) / "requests.jsonl"
    first, *_ = requests.read_bytes().splitlines(keepends=True)
    requests.write_bytes(first + b'{"line": 2, "te')
    assert invoke("resume", kept).exit_code == 1
    assert invoke(*command, input="one\ntwo\n").stdout == "[one]\n[two]\n"
    assert [json.loads(line).get("line") for line in requests.read_bytes().splitlines()] == [1, 2, None]
    assert invoke("resume", kept).stdout == "[one]\n[two]\n"
    for damaged in (b"{}\n", b"]\n", b'{"line": "x", "text": ""}\n'):
        requests.write_bytes(first + damaged)
        result = invoke("resume", kept)
        assert result.exit_code == 2
        assert "its requests.jsonl is damaged" in result.stderr


def test_a_journal_of_another_request_is_refused(invoke: Invoke, agent: AgentOf, kept: str) -> None:
    """The line with the foreign journal fails alone."""
    invoke("run", agent("failing"), "--journal", kept, input="one\ntwo\n")
    folder = Path(kept)
    (folder / "line-000001.journal").replace(folder / "line-000002.journal")
    result = invoke("resume", kept)
    assert result.exit_code == 1
    assert "line 2: Error: " in result.stderr
    assert "is the journal of another request" in result.stderr
    assert result.stdout.startswith("[one]\nError: ")


def test_a_missing_model_ends_a_kept_batch_once(invoke: Invoke, agent: AgentOf, kept: str, tmp_path: Path) -> None:
    """No line is answered; a job whose lines have all ended needs no model."""
    nowhere = f"{Path(__file__).with_name('agents.py')}:nowhere"
    result = invoke("run", nowhere, "--journal", kept, input="one\ntwo\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("'nowhere:model' is no known model string") == 1
    done = str(tmp_path / "done")
    assert invoke("run", agent("failing"), "--journal", done, input="one\n").exit_code == 0
    assert invoke("resume", done, "--model", "nowhere:model").stdout == "[one]\n"


@pytest.mark.slow
def test_bar_of_a_resumed_job_has_its_total(start: Start, invoke: Invoke, agent: AgentOf, kept: str) -> None:
    """The requests were copied, so their number is known, also if the file has gone since."""
    assert invoke("run", agent("failing"), "--journal", kept, input="one\n\ntwo\n").exit_code == 0
    terminal = Terminal(start, "resume", kept)
    terminal.wait_for("/2")
    assert terminal.finish() == 0, terminal.shown
    assert "/?" not in terminal.shown
