"""The examples of `--help`: each command has some, and each is run as it stands."""

import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from agentloop.cli.app import app

Invoke = Callable[..., Result]

PARSED_ONLY = (("model", "install"), ("model", "path"), ("serve",), ("enter",))
"""They install, depend on what is installed, end only with their client, or take the streams of the process."""

AGENT = '''
from agentloop import Agent, ask_user, tool
from agentloop.items import ToolOutput
from agentloop.testing import ScriptedModel, call, say


@tool(needs_approval=True)
async def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


def answer(request):
    outputs = [item.output for item in request.items if isinstance(item, ToolOutput)]
    if request.items[0].text in ("Clean up", "Tidy up") and not outputs:
        return call("delete", {"path": "a.txt"}, call_id="call_1")
    if request.items[0].text == "Ask me" and not outputs:
        return call("ask_user", {"question": "Where?"}, call_id="call_1")
    return say(outputs[0] if outputs else "four")


agent = Agent("agent", model=ScriptedModel([answer] * 100), tools=[delete, ask_user()])
'''


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command of *group* with its words, those of its groups included."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def examples_of(command: click.Command) -> list[str]:
    """Return the examples in the help of *command*."""
    return re.findall(r"^  \$ (.*)$", command.epilog or "", re.MULTILINE)


COMMANDS = dict(commands(app))
EXAMPLES = [example for command in (app, *COMMANDS.values()) for example in examples_of(command)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke) -> Path:
    """A working folder with an agent, three jobs, a journal, and folders of sandboxes and of skills."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-agent").mkdir()
    (tmp_path / "sandboxes").mkdir()
    skill = tmp_path / "skills" / "greeting" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: greeting\ndescription: How to greet.\n---\nSay ahoy.\n")
    for name in ("my-agent/agent.py", "agent.py"):
        (tmp_path / name).write_text(AGENT)
    (tmp_path / "requests.txt").write_text("One?\n")
    assert invoke("run", "agent.py:agent", "How many?", "--journal", "jobs/may").exit_code == 0
    assert invoke("run", "agent.py:agent", "Clean up", "--journal", "jobs/clean").exit_code == 3
    assert invoke("run", "agent.py:agent", "Ask me", "--journal", "jobs/ask").exit_code == 3
    os.link("jobs/may/run.journal", "run.journal")
    return tmp_path


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_examples_of_itself(invoke: Invoke, words: tuple[str, ...]) -> None:
    """They are shown under a heading of their own, each on one line."""
    shown = invoke(*words, "--help").stdout
    found = re.findall(r"^ *\$ (.*)$", shown.partition("Examples:")[2], re.MULTILINE)
    assert found == examples_of(COMMANDS[words])
    assert all(f"agentloop {' '.join(words)}" in example for example in found)
    assert found


def split(example: str) -> tuple[list[str], str | None]:
    """Return the arguments of the command line in *example*, and its input: what `printf` writes to the pipe."""
    typed: str | None = None
    if "|" in example:
        printing, _, example = example.partition("|")
        program, text = shlex.split(printing)
        assert program == "printf"
        typed = text.encode().decode("unicode_escape")
    if within := re.search(r"\$\((.*)\)", example):
        example = within[1]
    words = shlex.split(example.partition(">")[0])
    assert words[0] == "agentloop"
    return words[1:], typed


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_of_the_help_runs(place: Path, invoke: Invoke, example: str) -> None:
    """It ends with 0, or with 3 where a call waits; one that can't be run here is parsed."""
    arguments, typed = split(example)
    if "--follow" in arguments or any(tuple(arguments[: len(words)]) == words for words in PARSED_ONLY):
        name, *rest = arguments
        command: click.Command = app.commands[name]
        while isinstance(command, click.Group):
            command = command.commands[rest.pop(0)]
        command.make_context(name, rest)
        return
    if arguments[0] == "init":
        (place / "agent.py").unlink()
        if len(arguments) > 1:
            (place / "my-agent" / "agent.py").unlink()
    result = CliRunner().invoke(app, arguments, input=typed, prog_name="agentloop")
    assert result.exit_code == (3 if "--approve never" in example else 0), result.output
