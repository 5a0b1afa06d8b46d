"""The later parts of the tutorial, followed to the letter in an empty folder: their files, commands and output."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit.examples import ROOT

FOLDER = ROOT / "docs" / "tutorial"
PAGES = {"crash-safe": ["clerk.py", "test_clerk.py"], "change-a-prompt": ["shop.py", "yesterday.py"]}
"""By page: the files that its reader saves."""
FILE = re.compile(
    r"^Save this as `(?P<name>[\w.]+)`[^\n]*\n\n<!-- no-run -->\n```python\n(?P<text>.*?)^```$", re.M | re.S
)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
VARYING = re.compile(r"\d+ ms|[0-9a-f]{32}|…")


def read_commands(page: str) -> list[tuple[str, list[str]]]:
    """Return each command of *page* with the lines that it is shown to print."""
    found: list[tuple[str, list[str]]] = []
    for block in CONSOLE.findall(page):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def require_lines(shown: list[str], printed: str, command: str) -> None:
    """Fail unless the lines *shown* are in *printed*, in this order, but for times and keys."""
    rest = VARYING.sub("", printed)
    for line in shown:
        _, found, rest = rest.partition(VARYING.sub("", line).strip())
        assert found, f"{command!r} doesn't print {line!r}, but:\n{printed}"


@pytest.mark.slow  # ten processes
@pytest.mark.real_clock
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PAGES)
def test_every_command_does_what_the_page_shows(name: str, tmp_path: Path) -> None:
    """From an empty folder, with the programs of this environment."""
    page = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    commands = read_commands(page)
    assert len(commands) > 8
    files = list(FILE.finditer(page))
    assert [block["name"] for block in files] == PAGES[name]
    for block in files:
        (tmp_path / block["name"]).write_text(block["text"], encoding="utf-8")
    for command, shown in commands:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        require_lines([line for line in shown if line != "Killed"], done.stdout, command)


def test_readme_shows_what_the_tutorial_prints() -> None:
    """Each command that the README shows with its output is one of a page whose commands are run here."""
    shown = CONSOLE.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    pages = "".join((FOLDER / f"{name}.md").read_text(encoding="utf-8") for name in PAGES)
    assert shown
    for block in shown:
        assert block in pages


def test_reader_of_commands() -> None:
    """A page's commands come with their lines, and a line that isn't printed is a failure."""
    assert read_commands("```console\n$ a\nb\n$ c\n```\n") == [("a", ["b"]), ("c", [])]
    require_lines(["✓ pay 16 ms", "done"], "✓ pay 3 ms\ndone\n", "a")
    with pytest.raises(AssertionError, match="'a' doesn't print 'b'"):
        require_lines(["b"], "c\n", "a")
