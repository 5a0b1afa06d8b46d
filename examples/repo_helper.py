"""An agent that answers questions about the current folder with a model small enough to run anywhere.

    agentloop run examples/repo_helper.py:agent "How many lines does README.md have?"

The model only chooses a tool and its arguments; the tool's output is the answer, and a tool's failure ends the run,
for what failed is no answer (`failure_error_function="raise"`). Each tool's `examples` show the model
how, and the ones it sees last weigh most: the first of each tool, then the second of each, six in all.
"""

from pathlib import Path
from typing import Literal

import anyio

from agentloop import Agent, ModelSettings, tool

MAX_SHOWN = 20
MAX_FILE = 10_000_000


class Refused(Exception):
    """The question is about something outside the current folder, or something that isn't there."""


def inside(path: str) -> Path:
    """Return *path* if it is in the current folder, links followed."""
    root = Path.cwd().resolve()
    try:
        found = (root / path.strip()).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise Refused(f"{path!r} is no path: {error}") from None
    if not found.is_relative_to(root):
        raise Refused(f"{path!r} is outside the current folder")
    if not found.exists():
        raise Refused(f"there is no {path!r}")
    return found


def text_of(path: str) -> str:
    """Return the text of a file in the current folder."""
    found = inside(path)
    if not found.is_file():
        raise Refused(f"{path!r} isn't a file")
    if found.stat().st_size > MAX_FILE:
        raise Refused(f"{path!r} is larger than {MAX_FILE:,} bytes")
    return found.read_text(encoding="utf-8", errors="replace")


def listed(lines: list[str], nothing: str) -> str:
    """Return the first lines, and how many more there are."""
    more = len(lines) - MAX_SHOWN
    return "\n".join(lines[:MAX_SHOWN] + ([f"… and {more} more"] if more > 0 else [])) or nothing


@tool(
    failure_error_function="raise",
    examples=[
        ("How many lines does setup.cfg have?", {"path": "setup.cfg"}),
        ("Count the lines of src/main.py", {"path": "src/main.py"}),
    ],
)
def count_lines(path: str) -> str:
    """Count the lines of a file.

    Args:
        path: The file.
    """
    return f"{path} has {len(text_of(path).splitlines())} lines."


@tool(failure_error_function="raise", examples=[("Which files are in the tests folder?", {"folder": "tests"})])
def list_files(folder: str = ".") -> str:
    """List the files in a folder.

    Args:
        folder: The folder; "." is the current one.
    """
    found = inside(folder)
    if not found.is_dir():
        raise Refused(f"{folder!r} isn't a folder")
    names = sorted(entry.name + "/" * entry.is_dir() for entry in found.iterdir() if not entry.name.startswith("."))
    return listed(names, f"{folder} is empty.")


@tool(
    failure_error_function="raise",
    examples=[("Search for the word timeout in src/main.py", {"word": "timeout", "path": "src/main.py"})],
)
def search_text(word: str, path: str) -> str:
    """Find the lines of a file that contain a word.

    Args:
        word: The text to find, in upper or lower case.
        path: The file.
    """
    lines = enumerate(text_of(path).splitlines(), 1)
    hits = [f"{path}:{number}: {line.strip()}" for number, line in lines if word.casefold() in line.casefold()]
    return listed(hits, f"{word!r} isn't in {path}.")


@tool(timeout=20, failure_error_function="raise", examples=[("Show the last 5 commits", {"count": 5})])
async def recent_commits(count: int = 5) -> str:
    """Show the most recent git commits.

    Args:
        count: How many.
    """
    command = ["git", "log", f"--max-count={min(max(count, 1), MAX_SHOWN)}", "--format=%h %as %s"]
    done = await anyio.run_process(command, check=False)
    if done.returncode:
        raise Refused(done.stderr.decode(errors="replace").strip() or "git failed")
    return done.stdout.decode(errors="replace").strip() or "There is no commit yet."


@tool(
    failure_error_function="raise",
    examples=[("What is 84 divided by 7?", {"a": 84, "operation": "divided by", "b": 7})],
)
def calculate(a: float, operation: Literal["plus", "minus", "times", "divided by"], b: float) -> str:
    """Calculate with two numbers.

    Args:
        a: The first number.
        operation: What to do with them.
        b: The second number.
    """
    match operation:
        case "plus":
            value = a + b
        case "minus":
            value = a - b
        case "times":
            value = a * b
        case _:
            value = a / b
    return f"{a:.15g} {operation} {b:.15g} is {value:.15g}."


agent = Agent(
    "repo helper",
    instructions="You answer questions about the files of a project, and about numbers.",
    model="local:",
    model_settings=ModelSettings(temperature=0),
    tools=[count_lines, list_files, search_text, recent_commits, calculate],
    tool_use_behavior="stop_on_first_tool",
)
