"""The example agent's tools do real work, and only where they should."""

import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from kit.examples import load_example

from agentloop import Runner, ToolCallError
from agentloop.testing import ScriptedModel, call


@pytest.fixture
def helper() -> ModuleType:
    """The example as a module."""
    return load_example("repo_helper")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with something outside it."""
    (tmp_path / "secret.txt").write_text("outside")
    inner = tmp_path / "inner"
    (inner / "docs").mkdir(parents=True)
    (inner / "docs" / "page.md").write_text("# Title\nA Nursery here\nnone\n")
    (inner / "link.txt").symlink_to(tmp_path / "secret.txt")
    (inner / ".hidden").touch()
    monkeypatch.chdir(inner)
    return inner


@pytest.mark.usefixtures("folder")
def test_files_are_listed_counted_and_searched(helper: ModuleType) -> None:
    """Hidden files are left out; case plays no part in searching."""
    assert helper.list_files() == "docs/\nlink.txt"
    assert helper.list_files("docs") == "page.md"
    assert helper.count_lines("docs/page.md") == "docs/page.md has 3 lines."
    assert helper.search_text("nursery", "docs/page.md") == "docs/page.md:2: A Nursery here"
    assert helper.search_text("absent", "docs/page.md") == "'absent' isn't in docs/page.md."


def test_long_lists_are_cut_and_say_so(helper: ModuleType, folder: Path) -> None:
    """The tool shows the first entries and counts the rest."""
    for number in range(25):
        (folder / "docs" / f"{number:02}.txt").touch()
    assert helper.list_files("docs").endswith("19.txt\n… and 6 more")
    (folder / "empty").mkdir()
    assert helper.list_files("empty") == "empty is empty."


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("../secret.txt", "outside the current folder"),
        ("/etc/passwd", "outside the current folder"),
        ("link.txt", "outside the current folder"),
        ("docs/../../secret.txt", "outside the current folder"),
        ("absent.txt", "there is no 'absent.txt'"),
        ("docs", "'docs' isn't a file"),
        ("a\0b", "is no path"),
    ],
)
def test_paths_that_are_no_file_of_the_folder_are_refused(helper: ModuleType, path: str, said: str) -> None:
    """The tool refuses such a path in every spelling."""
    with pytest.raises(helper.Refused, match=said):
        helper.count_lines(path)
    with pytest.raises(helper.Refused):
        helper.list_files(path if path != "docs" else "docs/page.md")


def test_a_file_that_is_too_large_is_refused(helper: ModuleType, folder: Path) -> None:
    """The tool refuses the file before it reads it."""
    with (folder / "large.bin").open("wb") as file:
        file.truncate(helper.MAX_FILE + 1)
    with pytest.raises(helper.Refused, match="larger than"):
        helper.count_lines("large.bin")


def test_arithmetic_is_done_by_the_tool(helper: ModuleType) -> None:
    """Whole numbers stay whole."""
    assert helper.calculate(17, "times", 23) == "17 times 23 is 391."
    assert helper.calculate(5, "plus", 9) == "5 plus 9 is 14."
    assert helper.calculate(100, "minus", 58.5) == "100 minus 58.5 is 41.5."
    assert helper.calculate(144, "divided by", 12) == "144 divided by 12 is 12."


@pytest.fixture
def repository(folder: Path) -> None:
    """The current folder as a git repository of two commits."""
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "init", "-q"], check=True)
    for text in ("First", "Second"):
        subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", text], check=True)


@pytest.mark.usefixtures("folder")
@pytest.mark.anyio
@pytest.mark.real_clock
async def test_git_that_fails_is_quoted(anyio_backend: object, helper: ModuleType) -> None:
    """The tool quotes git's error, here that there is no repository."""
    with pytest.raises(helper.Refused, match=r"(?i)git repository"):
        await helper.recent_commits(1)


@pytest.mark.usefixtures("repository")
@pytest.mark.anyio
@pytest.mark.real_clock
async def test_commits_come_from_git(anyio_backend: object, helper: ModuleType) -> None:
    """The tool runs git as a process and lists the newest commit first."""
    assert (await helper.recent_commits(1)).endswith(" Second")
    assert len((await helper.recent_commits(10)).splitlines()) == 2


@pytest.mark.usefixtures("folder")
@pytest.mark.anyio
@pytest.mark.real_clock
async def test_a_refusal_ends_the_run(anyio_backend: object, helper: ModuleType) -> None:
    """A refusal is no answer, so scripts see it by the exit code."""
    agent = helper.agent.clone(model=ScriptedModel([call("count_lines", {"path": "../secret.txt"})]))
    with pytest.raises(ToolCallError, match="outside the current folder"):
        await Runner.run(agent, "How many lines does ../secret.txt have?")
