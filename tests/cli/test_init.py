"""`agentloop init`: a first agent and its test."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from agentloop import Agent
from agentloop.cli.target import load_agent

Invoke = Callable[..., Result]


@pytest.mark.slow
def test_the_first_test_passes_as_written(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no model and no settings, and runs on both event loops."""
    monkeypatch.chdir(tmp_path)
    assert invoke("init", "first").exit_code == 0
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "first"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    for words in ("[asyncio] PASSED", "[trio] PASSED", "3 passed"):
        assert words in done.stdout


def test_files_and_next_commands_are_named(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is made; the commands can be copied, also where its name has a space."""
    monkeypatch.chdir(tmp_path)
    assert invoke("init", "my agent", "--model", 'x:"y"\n').stdout == (
        "Wrote my agent/agent.py\nWrote my agent/test_agent.py\nNext:\n"
        "  agentloop run 'my agent/agent.py:agent' \"How many words has 'to be or not to be'?\"\n"
        "  python -m pytest 'my agent'\n"
    )
    agent: Agent[object, str] = load_agent("my agent/agent.py:agent")
    assert agent.model == 'x:"y"\n'


@pytest.mark.parametrize("there", ["agent.py", "test_agent.py"])
def test_nothing_is_overwritten(invoke: Invoke, tmp_path: Path, there: str) -> None:
    """One file that is there, or a link to nowhere, is enough: neither is written."""
    (tmp_path / there).write_text("mine")
    refused = invoke("init", str(tmp_path))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"{tmp_path / there}: there already; nothing was written" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine"
    (tmp_path / there).unlink()
    (tmp_path / there).symlink_to("nowhere")
    assert invoke("init", str(tmp_path)).exit_code == 2


def test_a_folder_that_cannot_be_made_is_named(invoke: Invoke, tmp_path: Path) -> None:
    """The error has the system's reason."""
    (tmp_path / "file").touch()
    refused = invoke("init", str(tmp_path / "file" / "below"))
    assert refused.exit_code == 1
    assert refused.stderr == f"Error: {tmp_path}/file/below: Not a directory\n"
