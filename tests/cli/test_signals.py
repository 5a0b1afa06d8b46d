"""Signals and closed pipes, to a child process: each test waits for a line of the child, none for time to pass."""

import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Start = Callable[..., "subprocess.Popen[str]"]
AgentOf = Callable[[str], str]
Invoke = Callable[..., Result]

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


def lines_until(child: "subprocess.Popen[str]", text: str) -> list[str]:
    """Read the child's error output up to the line that has *text* in it."""
    assert child.stderr is not None
    lines = []
    for line in child.stderr:
        lines.append(line)
        if text in line:
            return lines
    pytest.fail(f"the child ended without saying {text!r}: {lines}")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_first_signal_cancels_and_joins(
    start: Start, agent: AgentOf, notes: Path, backend: str, number: int, code: int
) -> None:
    """Every body's clean-up has run when the process ends with the signal's own code."""
    child = start("run", agent("hanging"), "Hang", "--backend", backend)
    for _ in range(3):
        lines_until(child, "→ hang")
    child.send_signal(number)
    out, err = child.communicate(timeout=30)
    assert child.returncode == code, err
    assert notes.read_text() == "cleaned\n" * 3
    assert out == ""
    assert "Cancelling" in err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_second_signal_ends_at_once(
    start: Start, agent: AgentOf, notes: Path, backend: str, number: int, code: int
) -> None:
    """The second signal ends the process also where a body can't be cancelled."""
    child = start("run", agent("resisting"), "Resist", "--backend", backend)
    lines_until(child, "→ resist")
    child.send_signal(number)
    lines_until(child, "Cancelling")
    child.send_signal(number)
    child.communicate(timeout=30)
    assert child.returncode == -number
    assert not notes.exists()


@pytest.mark.slow
def test_a_second_signal_ends_a_blocked_event_loop(start: Start, agent: AgentOf, notes: Path, backend: str) -> None:
    """The second signal needs no event loop: here the loop is blocked and would never run its handler."""
    os.mkfifo(notes)
    child = start("run", agent("blocking"), "Block", "--backend", backend)
    with notes.open() as reader:
        assert reader.readline() == "blocking\n"
    # Two kinds, because a second of one kind may be merged into the first while that is still pending.
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGTERM)
    while child.poll() is None:
        child.send_signal(signal.SIGTERM)
    assert child.returncode == -signal.SIGTERM


@pytest.mark.slow
def test_json_ends_with_a_result_when_cancelled(start: Start, agent: AgentOf, backend: str) -> None:
    """Every line parses, the last one is the result."""
    child = start("run", agent("hanging"), "Hang", "--json", "--backend", backend)
    assert child.stdout is not None
    for line in child.stdout:
        if json.loads(line)["kind"] == "CallStarted":
            break
    child.send_signal(signal.SIGTERM)
    lines = [json.loads(line) for line in child.stdout]
    assert child.wait(timeout=30) == 143
    assert (lines[-1]["kind"], lines[-1]["status"]) == ("RunResult", "cancelled")


@pytest.mark.slow
def test_a_cancelled_batch_keeps_what_it_printed(start: Start, agent: AgentOf, backend: str) -> None:
    """The error output says how far the batch came; a standard input that stays open holds nothing up."""
    child = start("run", agent("hanging_at_two"), "--backend", backend, stdin=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("one\ntwo\n")
    child.stdin.flush()
    assert child.stdout.readline() == "one\n"
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=30) == 130
    assert child.stderr is not None
    assert "Cancelled after 1 answers." in child.stderr.read()


@pytest.mark.slow
def test_a_request_is_answered_while_the_input_stays_open(start: Start, agent: AgentOf, backend: str) -> None:
    """Requests are answered one at a time, as in a conversation with another program."""
    child = start("run", agent("echo"), "--backend", backend, stdin=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    for text in ("one", "two"):
        child.stdin.write(f"{text}\n")
        child.stdin.flush()
        assert child.stdout.readline() == f"[{text}]\n"
    child.stdin.close()
    assert child.wait(timeout=30) == 0


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_reader_that_leaves_ends_the_run_quietly(
    start: Start, agent: AgentOf, backend: str, options: tuple[str, ...]
) -> None:
    """A reader such as `head` gets no traceback, and the exit code is a shell's for SIGPIPE."""
    child = start("run", agent("talkative"), "Talk", "--backend", backend, *options)
    assert child.stdout is not None
    child.stdout.close()
    assert child.stderr is not None
    err = child.stderr.read()
    assert child.wait(timeout=30) == 141
    assert "Traceback" not in err
    assert "Exception ignored" not in err


@pytest.mark.slow
def test_a_reader_that_leaves_ends_a_batch_quietly(start: Start, agent: AgentOf, backend: str) -> None:
    """Runs in flight are joined, the rest of the input isn't waited for."""
    child = start("run", agent("echo"), "--backend", backend, stdin=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdin is not None
    child.stdout.close()
    child.stdin.write("one\n")
    child.stdin.flush()
    assert child.wait(timeout=30) == 141
    assert child.stderr is not None
    assert child.stderr.read() == ""


@pytest.mark.slow
def test_a_reader_that_stands_still_does_not_keep_the_signal_away(start: Start, agent: AgentOf, backend: str) -> None:
    """The answer is larger than the pipe: the write waits, and is cancelled like anything else."""
    child = start("run", agent("talkative"), "Talk", "--backend", backend)
    assert child.stdout is not None
    assert child.stderr is not None
    # The text as it came, ended by a newline; the answer on the output is next.
    while not os.read(child.stderr.fileno(), 65_536).endswith(b"\n"):
        pass
    child.stdout.read(1)
    child.send_signal(signal.SIGTERM)
    assert "Cancelling" in child.stderr.read()
    assert child.wait(timeout=30) == 143


def _ignoring(*names: str) -> tuple[str, ...]:
    """Return how to start the command line with these signals ignored, as shells do for background jobs."""
    ignored = "".join(f"signal.signal(signal.{name}, signal.SIG_IGN); " for name in names)
    return ("-c", f"import signal; {ignored}from agentloop.cli import main; main()")


@pytest.mark.slow
def test_an_ignored_signal_stays_ignored(start: Start, agent: AgentOf, backend: str) -> None:
    """The other one still ends the run."""
    child = start("run", agent("hanging"), "Hang", "--backend", backend, program=_ignoring("SIGINT"))
    lines_until(child, "→ hang")
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=30)
    assert child.returncode == 143


@pytest.mark.slow
def test_with_every_signal_ignored_the_run_is_answered_all_the_same(start: Start, agent: AgentOf, backend: str) -> None:
    """The command then has no signal to watch, and answers every request."""
    program = _ignoring("SIGINT", "SIGTERM")
    child = start("run", agent("echo"), "--backend", backend, stdin=subprocess.PIPE, program=program)
    assert child.stdin is not None
    assert child.stdout is not None
    for text in ("one", "two"):
        child.stdin.write(f"{text}\n")
        child.stdin.flush()
        assert child.stdout.readline() == f"[{text}]\n"
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGINT)
    child.stdin.close()
    assert child.wait(timeout=30) == 0


def test_ctrl_c_outside_the_event_loop_ends_with_130(tmp_path: Path, invoke: Invoke) -> None:
    """The interrupt ends the command also while the agent's module is imported."""
    (tmp_path / "slow.py").write_text("raise KeyboardInterrupt")
    result = invoke("run", f"{tmp_path}/slow.py:agent", "Hello")
    assert (result.exit_code, result.output) == (130, "")


@pytest.mark.slow
def test_an_installation_ends_with_its_installer(start: Start, notes: Path, tmp_path: Path) -> None:
    """SIGTERM ends the installer too."""
    os.mkfifo(notes)
    installer = tmp_path / "uv"
    installer.write_text(f'#!/bin/sh\necho $$ > "{notes}"\nexec sleep 1000\n')
    installer.chmod(0o755)
    missing = "import sys; sys.modules['pip'] = sys.modules['xllamacpp'] = None; "
    program = ("-c", f"{missing}from agentloop.cli import main; main()")
    child = start("model", "install", program=program, path=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with notes.open() as reader:
        pid = int(reader.readline())
    child.terminate()
    assert child.wait(timeout=30) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_without_a_request_on_a_terminal_one_is_asked_for(start: Start, agent: AgentOf) -> None:
    """The command ends with a hint, so a user doesn't wait in front of a silent terminal."""
    ours, theirs = pty.openpty()
    child = start("run", agent("echo"), stdin=theirs)
    os.close(theirs)
    _, err = child.communicate(timeout=30)
    os.close(ours)
    assert child.returncode == 2
    assert "Give a REQUEST, --input FILE, or pipe requests in" in err


def _read_all(terminal: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode()


def _on_terminal(start: Start, *arguments: str, **options: object) -> tuple[int, str]:
    """Run with both outputs on one terminal; return the exit code and what appeared there."""
    ours, theirs = pty.openpty()
    child = start(*arguments, stdout=theirs, stderr=theirs, **options)
    os.close(theirs)
    shown = _read_all(ours)
    os.close(ours)
    return child.wait(timeout=30), shown.replace("\r\n", "\n")


@pytest.mark.slow
def test_on_a_terminal_the_answer_stands_there_once(start: Start, agent: AgentOf, backend: str) -> None:
    """The answer appears as the model makes it, and isn't printed again."""
    code, shown = _on_terminal(start, "run", agent("doubler"), "Double 21", "--backend", backend)
    assert code == 0
    assert shown.count("It is 42.\n") == 1
    assert "double" in shown


@pytest.mark.slow
@pytest.mark.parametrize("by_file", [True, False])
def test_on_a_terminal_a_batch_shows_its_progress(
    start: Start, agent: AgentOf, backend: str, tmp_path: Path, by_file: bool
) -> None:
    """The bar counts to the end, each answer in between is printed whole, and the cursor comes back."""
    file = tmp_path / "requests.txt"
    file.write_text("one\n\ntwo\nbad three\n")
    with file.open() as opened:
        source = ("--input", str(file)) if by_file else ()
        code, shown = _on_terminal(start, "run", agent("echo"), "--backend", backend, *source, stdin=opened)
    assert code == 1
    for text in ("[one]\n", "[two]\n", "line 4: Error: ValueError", "3/3"):
        assert text in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
