"""The help: every command is described on one line that fits, in the order in which a user needs them."""

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from agentloop.cli.app import app


def groups(command: click.Command = app, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Group]]:
    """Yield every group of commands with its path."""
    if isinstance(command, click.Group):
        yield path, command
        for name, inner in command.commands.items():
            yield from groups(inner, (*path, name))


def show(*path: str, columns: int = 80) -> str:
    """Return the help of a command in a terminal of so many columns."""
    done = CliRunner().invoke(app, [*path, "--help"], terminal_width=columns)
    assert done.exit_code == 0
    return done.output


@pytest.mark.parametrize("path", [path for path, _ in groups()], ids=lambda path: " ".join(path) or "agentloop")
def test_no_line_of_a_list_of_commands_is_cut(path: tuple[str, ...]) -> None:
    """In a terminal of 80 columns each is a whole sentence."""
    listed = show(*path).partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert listed
    for line in listed:
        assert re.fullmatch(r"  [\w-]+ +[A-Z][^.]*\.", re.sub(r"`[^`]*`", "", line)), line
        assert len(line) < 80


def test_commands_come_in_the_order_of_their_use() -> None:
    """First what a beginner needs; each command of the program has its place."""
    listed = re.findall(r"^  ([\w-]+) ", show().partition("Commands:\n")[2], re.MULTILINE)
    assert listed[:3] == ["init", "run", "chat"]
    assert sorted(listed) == sorted(app.commands)
    assert listed.index("resume") < listed.index("approve") < listed.index("model")


@pytest.mark.parametrize("command", ["run", "chat", "serve", "resume"])
def test_commands_that_run_agents_take_a_context(command: str) -> None:
    """Most agents of applications have one."""
    assert re.search(r"--context NAME +module:name or file\.py:name", show(command))
