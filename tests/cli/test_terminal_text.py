"""What a model writes can't control a terminal, wherever the command line shows it."""

import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from agentloop._common.terminal_text import format_line, harmless
from agentloop.cli import errors
from agentloop.cli.show import json_line
from agentloop.cli.streams import Output, OutputClosed

Invoke = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[str]"]

HOSTILE = """
from agentloop import Agent, tool
from agentloop.testing import ScriptedModel, call, fail, say

EVIL = "\\x1b]0;title\\x07\\x1b[2J\\x9b31m\\u202eevil"

@tool(failure_error_function=None)
def trip(text: str) -> str:
    "Fail."
    raise ValueError(text)

answering = Agent("answering", model=ScriptedModel([say(EVIL)] * 9))
failing = Agent("failing", model=ScriptedModel([fail(ValueError(EVIL))] * 9))
tripping = Agent("tripping", model=ScriptedModel([call("trip", {"text": EVIL})] * 9), tools=[trip])
"""


def test_controls_are_written_out() -> None:
    """Tabs and newlines stay, and so do the characters that join emoji; a line has neither."""
    assert harmless("a\tb\n\x1b[2J\x9b\u202e\r") == "a\tb\n\\x1b[2J\\x9b\\u202e\\r"
    assert harmless("👩\u200d💻") == "👩\u200d💻"
    assert format_line("a\n\x1bb") == "a \\x1bb"
    assert json_line({"a": "\x1b\x9b\x7f"}) == '{"a": "\\u001b\\u009b\\u007f"}\n'


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--json",), ("--traceback",), ("--input", "requests")])
@pytest.mark.parametrize("name", ["answering", "failing", "tripping"])
def test_no_escape_sequence_of_a_model_reaches_a_terminal(
    start: Start, tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    """Answers, arguments, errors and tracebacks are shown with these characters written out."""
    (tmp_path / "hostile.py").write_text(HOSTILE)
    (tmp_path / "requests").write_text("one\n")
    ours, theirs = pty.openpty()
    request = () if "requests" in options else ("go",)
    child = start("run", "hostile.py:" + name, *request, *options, stdout=theirs, stderr=theirs, cwd=tmp_path)
    os.close(theirs)
    shown = b""
    while True:
        try:
            more = os.read(ours, 65_536)
        except OSError:  # how Linux says that the other side is closed
            break
        shown += more
    os.close(ours)
    assert child.wait(30) == (0 if name == "answering" else 1)
    text = shown.decode()
    assert "evil" in text
    for order in ("\x1b]0;", "\x1b[2J", "\x07", "\x9b", "\u202e"):
        assert order not in text


def test_a_terminal_that_is_gone_is_a_closed_output() -> None:
    """Its other side was closed: the system says that by an error of its own."""
    ours, theirs = pty.openpty()
    os.close(ours)
    with os.fdopen(theirs, "w") as terminal, pytest.raises(OutputClosed):
        Output(terminal).write_last("lost")


def test_an_error_of_a_file_names_it_and_never_the_address_of_a_database() -> None:
    """The address may hold a password."""
    full = OSError(28, "No space left on device")
    assert errors.words_for_file("a\x1b[2J.html", full) == "Error: a\\x1b[2J.html: No space left on device\n"
    told = errors.words_for_file("postgresql://ada:secret@db/runs", full)
    assert told == "Error: the database: No space left on device\n"
    assert errors.words_for_file(Path("x"), OSError("odd")) == "Error: x: odd\n"
