"""`Files`: what it finds and reads, and that nothing outside its folder is read or written."""

import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.agents import Run, script_agent
from kit.results import read_outputs
from kit.work import Meter, count_work

from agentloop import Agent, Runner, ToolContext, UserError
from agentloop.bundles import Files
from agentloop.bundles import _files as files_module
from agentloop.bundles._files import path_matches
from agentloop.exceptions import UserValueError
from agentloop.testing import call, say

pytestmark = [pytest.mark.scenario("FI-01"), pytest.mark.real_clock]
SECRET = "planted-word"
NOT_TEXT = "\n[left out: files that aren't UTF-8: 1]"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with files, a folder beside it with a secret, and ways out of it by links."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text(f"{SECRET}\n")
    root = tmp_path / "root"
    for folder in ("src/deep", ".git", "node_modules"):
        (root / folder).mkdir(parents=True)
        (root / folder / "a.py").write_text("red\nBlue line\n")
    (root / "b.txt").write_text("blue\n")
    (root / "data.bin").write_bytes(b"\xff\x00blue")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "link.txt").symlink_to(tmp_path / "outside" / "secret.txt")
    os.mkfifo(root / "pipe")
    return root


async def ask(root: Path, name: str, run: Any = Runner.run, **arguments: Any) -> str:
    """Return the output of one call of a tool of the bundle."""
    agent = script_agent("a", call(name, arguments), say("done"), bundles=[Files(root)])
    (output,) = read_outputs((await run(agent, "go")).new_items).values()
    return str(output)


async def test_tools_list_find_search_and_read(run_mode: Run, root: Path) -> None:
    """Links, pipes, binary files and hidden folders are passed by in a search."""
    assert (await ask(root, "list_files", run_mode)).splitlines() == [
        *(".git/", "b.txt", "data.bin", "link", "link.txt", "node_modules/", "pipe", "src/")
    ]
    assert (await ask(root, "list_files", run_mode, path="src")) == "deep/"
    assert await ask(root, "find_files", run_mode, pattern="**/*.py") == "src/deep/a.py"
    assert await ask(root, "find_files", run_mode, pattern="*.md") == "No file matches."
    assert await ask(root, "search_files", run_mode, text="blue", ignore_case=True) == (
        f"b.txt:1: blue\nsrc/deep/a.py:2: Blue line{NOT_TEXT}"
    )
    assert await ask(root, "find_files", run_mode, pattern="**") == "b.txt\ndata.bin\nsrc/deep/a.py"
    assert await ask(root, "search_files", run_mode, text="blue", pattern="src/**") == "No line has it."
    assert await ask(root, "read_file", run_mode, path="src/deep/a.py") == "1\tred\n2\tBlue line"
    assert await ask(root, "read_file", run_mode, path="src/deep/a.py", first=2, last=9) == "2\tBlue line"
    assert await ask(root, "read_file", run_mode, path="b.txt", first=7) == "There is no such line: the file has 1."


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_file", {"path": path})
        for path in ("link/secret.txt", "link.txt", "../outside/secret.txt", "/etc/passwd", "src/../../x", "pipe", "")
    ]
    + [("list_files", {"path": path}) for path in ("link", "..", "/", "src/..", "b.txt", "none")],
)
async def test_ways_out_of_the_folder_are_refused(root: Path, name: str, arguments: dict[str, Any]) -> None:
    """By links, by `..`, by absolute paths; what is no text file isn't read."""
    output = await ask(root, name, **arguments)
    assert output.startswith(f"Tool {name} failed with: ")
    assert SECRET not in output


async def test_what_is_left_out_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many files, hits and lines."""
    monkeypatch.setattr(files_module, "_MOST_LINES", 3)
    monkeypatch.setattr(files_module, "_MOST_FOUND", 3)
    (root / "long.txt").write_text("x\n" * 9 + "y" * 500)
    assert await ask(root, "read_file", path="long.txt") == "1\tx\n2\tx\n3\tx\n[7 more lines: read on from 4]"
    assert await ask(root, "read_file", path="long.txt", first=10) == f"10\t{'y' * 400}…"
    found = await ask(root, "search_files", text="x")
    assert found == "long.txt:1: x\nlong.txt:2: x\nlong.txt:3: x\n[there are more: narrow the search]" + NOT_TEXT
    (root / "more.txt").touch()
    assert (await ask(root, "find_files", pattern="**")).endswith("[there are more: narrow the search]")
    assert (await ask(root, "list_files")).endswith("[there are more: narrow the search]")
    monkeypatch.setattr(files_module, "_MOST_ENTRIES", 1)
    note = "\n[only 1 files and folders were looked at: use a narrower folder]"
    assert await ask(root, "find_files", pattern="none") == f"No file matches.{note}"
    assert await ask(root, "find_files", pattern="**") == f"b.txt{note}"
    assert await ask(root, "search_files", text="none") == f"No line has it.{note}"
    empty = root / "empty"
    empty.mkdir()
    assert await ask(empty, "list_files") == "The folder is empty."
    (empty / "a/b").mkdir(parents=True)
    assert await ask(empty, "find_files", pattern="**") == f"No file matches.{note}"


async def test_a_search_says_which_files_it_leaves_out(
    run_mode: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are large, no text, too deep, or can't be read; and where it ends, by the bytes it has read."""
    monkeypatch.setattr(files_module, "_MOST_BYTES", 20)
    monkeypatch.setattr(files_module, "_MOST_DEPTH", 1)
    for name, data in (("a", b"needle"), ("b", b"needle" * 9), ("c", b"needle\xe9"), ("d", b"needle")):
        (tmp_path / f"{name}.txt").write_bytes(data)
    (tmp_path / "x/y/z").mkdir(parents=True)
    (tmp_path / "gone").mkdir()
    read_file, open_file = files_module.read_file, os.open

    def refuse(top: int, path: str, most: int) -> bytes:
        if path == "d.txt":
            raise files_module.EditError("d.txt: Permission denied")
        return read_file(top, path, most)

    monkeypatch.setattr(files_module, "read_file", refuse)

    def refuse_folder(path: Any, *args: Any, **options: Any) -> int:
        if path == "gone":
            raise PermissionError(path)
        return open_file(path, *args, **options)

    monkeypatch.setattr(os, "open", refuse_folder)
    assert await ask(tmp_path, "search_files", run_mode, text="needle") == (
        "a.txt:1: needle\n[left out: files of more than 20 bytes: 1; files that aren't UTF-8: 1; "
        "files that can't be read: 1; folders that can't be read: 1; folders below 1 others: 1]"
    )
    monkeypatch.setattr(files_module, "_MOST_SEARCHED", 12)
    assert await ask(tmp_path, "search_files", run_mode, text="x", pattern="[ac].txt") == (
        "No line has it.\n[only 12 bytes were searched: use a narrower pattern]"
    )


async def test_lines_end_where_editors_end_them(run_mode: Run, tmp_path: Path) -> None:
    """At a line feed, and at no other character that Unicode calls a line's end."""
    (tmp_path / "u.txt").write_text("one\u2028two\x0cthree\x85\r\nfour\n\nfive", newline="")
    assert await ask(tmp_path, "read_file", run_mode, path="u.txt") == (
        "1\tone\u2028two\x0cthree\x85\n2\tfour\n3\t\n4\tfive"
    )
    assert await ask(tmp_path, "search_files", run_mode, text="four") == "u.txt:2: four"


async def test_names_that_are_no_text_are_shown_as_one(run_mode: Run, tmp_path: Path) -> None:
    """By every tool alike: what isn't UTF-8 in them is replaced. A model can't name such a file, so it isn't read."""
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("blue")
    for name, arguments in (("list_files", {}), ("find_files", {"pattern": "*"})):
        assert await ask(tmp_path, name, run_mode, **arguments) == "caf\ufffd.txt"
    left = "\n[left out: files that can't be read: 1]"
    assert await ask(tmp_path, "search_files", run_mode, text="blue") == f"No line has it.{left}"


def make_context(looks: int = 1_000_000) -> Any:
    """Return a context that is cancelled after it was asked that often."""
    ctx: Any = ToolContext(context=None, tool_name="x", tool_call_id="1")
    asked = count(1)

    def check(self: object) -> None:
        if next(asked) > looks:
            raise InterruptedError

    ctx._call = type("Calm", (), {"check_cancelled": check})()
    return ctx


@pytest.mark.parametrize("files", [20, 200])
def test_a_search_ends_at_the_file_where_it_was_cancelled(
    files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one folder, however many files it has."""
    for number in range(files):
        (tmp_path / f"{number:03}.txt").write_text("x\n")
    read, read_file = list[str](), files_module.read_file

    def note(top: int, path: str, most: int) -> bytes:
        read.append(path)
        return read_file(top, path, most)

    monkeypatch.setattr(files_module, "read_file", note)
    tools = {tool.name: tool for tool in Files(tmp_path).tools}  # type: ignore[union-attr]
    for name, argument in (("search_files", "y"), ("find_files", "none")):
        with pytest.raises(InterruptedError):
            tools[name](make_context(5), argument)  # type: ignore[operator]
    assert read == [f"{number:03}.txt" for number in range(5)]


def test_ten_times_the_file_is_ten_times_the_search(tmp_path: Path) -> None:
    """Also of a text that a line almost has at every place, and of lines that all have it."""
    tools = {tool.name: tool for tool in Files(tmp_path).tools}  # type: ignore[union-attr]
    for line, text in (("a" * 40 + "\n", "A" * 39 + "b"), ("\n", ""), ("ab\n", "B")):
        counts = []
        for size in (100, 1_000):
            (tmp_path / "a.txt").write_text(line * size)

            def search(_: Meter, text: str = text) -> None:
                tools["search_files"](make_context(), text, ignore_case=True)  # type: ignore[operator]

            count_work(search)  # Python 3.12 has no events of code that it sees traced for the first time
            counts.append(count_work(search).total)
        assert counts[1] <= 11 * counts[0]


async def test_a_walk_ends_at_a_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of any depth needs no more stack than that."""
    monkeypatch.setattr(files_module, "_MOST_DEPTH", 1)
    (tmp_path / "a/b/c").mkdir(parents=True)
    for folder in ("a", "a/b", "a/b/c"):
        (tmp_path / folder / "f").touch()
    assert await ask(tmp_path, "find_files", pattern="**/f") == "a/f\n[left out: folders below 1 others: 1]"


async def test_writing_is_an_editor_that_asks(run_mode: Run, root: Path) -> None:
    """Without `write` there is no such tool; with it a change waits for a person unless it is said otherwise."""
    patch = "*** Begin Patch\n*** Add File: new.txt\n+text\n*** Add File: {}/x\n+text\n*** End Patch"
    assert [tool.name for tool in Agent("a", bundles=[Files(root)]).tools] == [  # type: ignore[union-attr]
        *("list_files", "find_files", "search_files", "read_file")
    ]
    agent = script_agent("a", call("apply_patch", {"patch": patch}), bundles=[Files(root, write=True)])
    assert (await run_mode(agent, "go")).status == "interrupted"
    for folder in ("link", ".."):
        step = call("apply_patch", {"patch": patch.format(folder)})
        agent = script_agent("a", step, say("done"), bundles=[Files(root, write=True, needs_approval=False)])
        (output,) = read_outputs((await run_mode(agent, "go")).new_items).values()
        assert "symbolic link" in str(output) or "without '..'" in str(output)
    assert not (root / "new.txt").exists()
    assert os.listdir(root.parent / "outside") == ["secret.txt"]


def test_arguments_are_checked(tmp_path: Path) -> None:
    """A folder that doesn't exist, and a flag that is none."""
    with pytest.raises(UserValueError, match="root: expected a folder that exists, got '/nowhere'"):
        Files("/nowhere")
    with pytest.raises(UserError, match="write: expected True or False, got 'yes'"):
        Files(tmp_path, write="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "pattern", "fits"),
    [
        *(("a.py", pattern, True) for pattern in ("*.py", "a.*", "**", "**/*.py", "**/**/a.py", "./a.py", "?.py")),
        *(("x/y/a.py", pattern, True) for pattern in ("**", "x/**", "**/a.py", "x/**/a.py", "x/*/a.py", "**/y/**")),
        *(("x/y/a.py", pattern, False) for pattern in ("*", "*.py", "x/*", "**/b", "x/y", "y/**", "", "x/y/a.py/z")),
    ],
)
def test_patterns_of_paths(path: str, pattern: str, fits: bool) -> None:
    """`*` stays within a name, `**` is any number of folders, or any names at the end."""
    assert path_matches(path, pattern) is fits


async def test_two_folders_have_names_of_their_own(run_mode: Run, tmp_path: Path) -> None:
    """The tools of the second begin with its name, also the editor; the model is told which are whose."""
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text(name)
    patch = {"operation": {"type": "delete_file", "path": "b.txt"}}
    steps = [call("list_files"), call("docs_read_file", {"path": "b.txt"}), call("docs_apply_patch", patch)]
    docs = Files(tmp_path / "b", name="docs", write=True, needs_approval=False)
    agent = script_agent("a", *steps, say("done"), bundles=[Files(tmp_path / "a", write=True), docs])
    outputs = list(map(str, read_outputs((await run_mode(agent, "go")).new_items).values()))
    assert outputs[:2] == ["a.txt", "1\tb"]
    assert (os.listdir(tmp_path / "a"), os.listdir(tmp_path / "b")) == (["a.txt"], [])
    assert "The tools whose names begin with docs_ are those of this folder." in str(agent.instructions)


def test_names_of_folders_are_checked(tmp_path: Path) -> None:
    """They are parts of tools' names, and of two bundles not the same."""
    for wrong, words in (("", "may not be empty"), ("my docs", "expected at most"), ("x" * 41, "expected at most")):
        with pytest.raises(UserValueError, match=f"name: {words}"):
            Files(tmp_path, name=wrong)
    with pytest.raises(UserValueError, match=r"Agent\.bundles: two bundles are named 'files'"):
        Agent("a", bundles=[Files(tmp_path), Files(tmp_path)])


PARTS = st.sampled_from(["..", ".", "link", "link.txt", "secret.txt", "src", "outside", "~", "*", "**", "\0", "", "/"])


@pytest.mark.hypothesis
@settings(deadline=None, max_examples=60)
@given(parts=st.lists(PARTS | st.text(max_size=3), min_size=1, max_size=6))
def test_no_path_and_no_pattern_leaves_the_folder(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    """Whatever a model writes, the planted word outside is in no output."""
    top = tmp_path_factory.mktemp("fuzz")
    (top / "outside").mkdir()
    (top / "outside" / "secret.txt").write_text(SECRET)
    (top / "root" / "src").mkdir(parents=True)
    (top / "root" / "link").symlink_to("../outside")
    (top / "root" / "link.txt").symlink_to("../outside/secret.txt")
    path = "/".join(parts)
    tools = {tool.name: tool for tool in Files(top / "root").tools}  # type: ignore[union-attr]
    ctx = make_context()
    for name, arguments in (
        ("list_files", (path,)),
        ("read_file", (path,)),
        ("find_files", (ctx, path)),
        ("search_files", (ctx, SECRET, path)),
    ):
        try:
            output = tools[name](*arguments)  # type: ignore[operator]
        except files_module.EditError as error:
            output = str(error)
        assert SECRET not in output.replace(repr(path), "")
        assert "secret.txt" not in output or name not in ("find_files", "search_files")
