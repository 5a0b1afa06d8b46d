"""`agentloop chat`: at a pseudo-terminal, and with messages that are piped in."""

import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from cli.terminal import Terminal
from click.testing import Result

Invoke = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[str]"]
AgentOf = Callable[[str], str]


@pytest.mark.slow
def test_conversation_at_a_terminal_remembers_and_ends_with_ctrl_d(start: Start, agent: AgentOf, backend: str) -> None:
    """The text of each answer comes with the messages before it; blank lines are no messages."""
    terminal = Terminal(start, "chat", agent("talker"), "--backend", backend)
    terminal.wait_for("A conversation with talker")
    for typed, answer in (("one", "one\n"), ("", ""), ("two", "one | two\n")):
        terminal.wait_for("> ")
        terminal.type(typed)
        terminal.wait_for(answer)
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.finish() == 0, terminal.shown


@pytest.mark.slow
def test_failed_answer_is_reported_and_the_conversation_continues(start: Start, agent: AgentOf, backend: str) -> None:
    """The error is redacted, and the exit code of the conversation is still 0."""
    terminal = Terminal(start, "chat", agent("talker"), "--backend", backend)
    for typed, answer in (("bad one", "Error: ValueError: can't answer 'bad one': api_key=[redacted]"), ("two", "two")):
        terminal.wait_for("> ")
        terminal.type(typed)
        terminal.wait_for(answer)
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.finish() == 0, terminal.shown


@pytest.mark.slow
def test_ctrl_c_ends_the_answer_and_comes_back_to_the_prompt(
    start: Start, agent: AgentOf, notes: Path, backend: str
) -> None:
    """The body has cleaned up; Ctrl-C at the prompt changes nothing; a second answer can be ended the same way."""
    terminal = Terminal(start, "chat", agent("talker"), "--backend", backend)
    terminal.wait_for("> ")
    terminal.child.send_signal(signal.SIGINT)
    for _ in range(2):
        terminal.wait_for("> ")
        terminal.type("hang")
        terminal.wait_for(" {}")
        terminal.child.send_signal(signal.SIGINT)
        terminal.wait_for("Cancelling; once more ends at once.\n")
        terminal.wait_for("Cancelled.\n")
    terminal.wait_for("> ")
    terminal.type("still here")
    terminal.wait_for("still here\n")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.finish() == 0, terminal.shown
    assert notes.read_text() == "cleaned\n" * 2


@pytest.mark.slow
@pytest.mark.parametrize("at_prompt", [True, False])
def test_sigterm_ends_the_conversation(
    start: Start, agent: AgentOf, notes: Path, backend: str, at_prompt: bool
) -> None:
    """At the prompt, or with an answer under way, which is joined."""
    terminal = Terminal(start, "chat", agent("talker"), "--backend", backend)
    terminal.wait_for("> ")
    if not at_prompt:
        terminal.type("hang")
        terminal.wait_for(" {}")
    terminal.child.send_signal(signal.SIGTERM)
    assert terminal.finish() == 143, terminal.shown
    assert at_prompt or notes.read_text() == "cleaned\n"


@pytest.mark.slow
def test_calls_are_asked_about_in_the_conversation(start: Start, agent: AgentOf, notes: Path, backend: str) -> None:
    """Yes, no and why, and later, after which the conversation continues without the call."""
    terminal = Terminal(start, "chat", agent("talker"), "--backend", backend)
    for name, answer, said in (
        ("a", "y", "a is erased\n"),
        ("b", "n keep it", "keep it\n"),
        ("c", "l", "It is left undecided, and the conversation continues without it.\n"),
    ):
        terminal.wait_for("> ")
        terminal.type(f"erase {name}")
        terminal.answer(answer)
        terminal.wait_for(said)
    terminal.wait_for("> ")
    terminal.type("thanks")
    terminal.wait_for("| thanks\n")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.finish() == 0, terminal.shown
    assert notes.read_text() == "erased a\n"


def test_session_file_keeps_the_conversation(invoke: Invoke, agent: AgentOf, tmp_path: Path, backend: str) -> None:
    """Another process continues where the first one ended."""
    file = str(tmp_path / "talk.sqlite")
    first = invoke("chat", agent("talker"), "--session", file, "--backend", backend, input="one\ntwo\n")
    assert (first.exit_code, first.stdout, first.stderr) == (0, "one\none | two\n", "one\none | two\n")
    again = invoke("chat", agent("talker"), "--session", file, "--backend", backend, input="three")
    assert (again.exit_code, again.stdout) == (0, "one | two | three\n")


def test_piped_messages_give_no_prompt_and_a_failure_gives_1(invoke: Invoke, agent: AgentOf, backend: str) -> None:
    """All messages are answered; the session has those of the failed answer too."""
    result = invoke("chat", agent("talker"), "--backend", backend, input="bad one\ntwo\n")
    assert result.exit_code == 1
    assert result.stdout.endswith("two\n")
    assert "> " not in result.stderr
    assert "api_key=[redacted]" in result.stderr


def test_undecided_call_of_a_pipe_gives_3(
    invoke: Invoke, agent: AgentOf, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no terminal to ask at."""
    monkeypatch.setenv("AGENTLOOP_TEST_NOTES", str(notes))
    result = invoke("chat", agent("talker"), input="erase a\n")
    assert result.exit_code == 3
    assert "1 call waits for approval: call_1 (erase)\nIt is left undecided" in result.stderr
    assert invoke("chat", agent("talker"), "--approve", "always", input="erase a\n").stdout == "a is erased\n"


@pytest.mark.slow
def test_what_is_missing_is_told_before_a_message_is_read(invoke: Invoke, agent: AgentOf, tmp_path: Path) -> None:
    """A target, a model, a terminal to ask at, and a session file that is none."""
    assert invoke("chat", agent("nothing")).exit_code == 2
    assert invoke("chat", agent("nowhere"), input="hi\n").exit_code == 2
    for price, words in (("number", "'number' is of type int, not a function"), ("gone", "no attribute 'gone'")):
        result = invoke("chat", agent("talker"), "--price", agent(price), input="hi\n")
        assert result.exit_code == 2
        assert words in result.stderr
    assert invoke("chat", agent("talker"), "--approve", "ask", input="hi\n").exit_code == 2
    (tmp_path / "text").write_text("no database, but long enough to be seen as one that is broken" * 20)
    result = invoke("chat", agent("talker"), "--session", str(tmp_path / "text"), input="hi\n")
    assert result.exit_code != 0
    assert "Error: " in result.stderr


@pytest.mark.slow
def test_closed_output_ends_the_conversation(start: Start, agent: AgentOf) -> None:
    """As in a pipe to `head`."""
    child = start("chat", agent("talker"), stdin=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.close()
    child.stdin.write("one\n")
    child.stdin.flush()
    assert child.wait(60) == 141


@pytest.mark.slow
def test_ctrl_c_ends_a_conversation_of_piped_messages(start: Start, agent: AgentOf, backend: str) -> None:
    """Nobody is there to go on."""
    child = start("chat", agent("talker"), "--backend", backend, stdin=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stderr is not None
    child.stdin.write("hang\n")
    child.stdin.flush()
    assert "hang" in child.stderr.readline()
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130


def test_session_is_a_sqlite_file(invoke: Invoke, agent: AgentOf, tmp_path: Path) -> None:
    """Any reader of SQLite finds it."""
    file = tmp_path / "talk.sqlite"
    invoke("chat", agent("talker"), "--session", str(file), input="one\n")
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
