"""`Files`: tools that list, find, search and read the files below one folder, and change them if they may.

Nothing outside the folder is read: every file is opened part by part below the folder's descriptor, as the editor of
`agentloop.executors` does, and a walk (`os.fwalk`) goes from descriptor to descriptor and follows no link.

Decisions:

A search is for a text, not for a regular expression. A model writes it, Python's own matching of some expressions takes
longer than any run, and a thread that does it can't be ended. Rejected: the package `regex`, which has a timeout; one
dependency more for what a model does as well by two searches.

Everything is bounded, because a folder may hold more than a model can read: what is left out is said in the output.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from agentloop._common.checks import NAMES, check
from agentloop._common.errors import UserValueError
from agentloop.config._bundling import Bundle
from agentloop.context import ToolContext
from agentloop.executors import EditError, LocalEditor, editor_tool
from agentloop.executors._edit_files import list_folder, read_file, show_name, to_text
from agentloop.tools import FunctionTool, tool

_MOST_ENTRIES = 20_000
"""The most files and folders that one search looks at."""
_MOST_DEPTH = 100
_MOST_FOUND = 200
_MOST_LINES = 2_000
_MOST_CHARS = 400
"""The most characters of one line."""
_MOST_BYTES = 1_000_000
"""The most bytes of one file."""
_MOST_SEARCHED = 100_000_000
"""The most bytes of the files of one search."""
_SKIPPED = frozenset({"node_modules", "__pycache__"})


class Files(Bundle):
    """Tools for the files below *root*: `list_files`, `find_files`, `search_files`, `read_file`; maybe an editor.

    Nothing outside of the root is read or written: `..` and symbolic links are refused, or passed by in a search.
    Searches pass by folders whose names begin with a dot, `node_modules` and `__pycache__`, and what isn't a regular
    file. What a call costs is bounded: files of at most 1 MB are read, of UTF-8, and 100 MB in one search; an output
    says what it leaves out. A search that is cancelled ends after the file that it is at.

    Args:
        root: The folder, which must exist.
        write: True to add `apply_patch`, the tool of `agentloop.executors.editor_tool`, on a `LocalEditor` of the root.
        needs_approval: False to let a change happen without an approval.
        name: Another name where an agent has two of them. Letters, digits, `-` and `_`; the tools are then called
            `NAME_list_files` and so on.

    Raises:
        UserValueError: if *root* isn't a folder, or *name* can't be part of the name of a tool.

    Example:
        import tempfile
        from pathlib import Path

        from agentloop import Agent, Runner
        from agentloop.bundles import Files
        from agentloop.testing import ScriptedModel, call, say

        with tempfile.TemporaryDirectory() as root:
            Path(root, "a.txt").write_text("red\\nblue\\n")
            model = ScriptedModel([call("search_files", {"text": "blue"}), say("In a.txt.")])
            result = Runner.run_sync(Agent("a", model=model, bundles=[Files(root)]), "Where is blue?")
            print(result.new_items[1].output)  # a.txt:2: blue
    """

    def __init__(
        self, root: str | os.PathLike[str], *, write: bool = False, needs_approval: bool = True, name: str = "files"
    ) -> None:
        check("write", NAMES.flag(), write)
        check("needs_approval", NAMES.flag(), needs_approval)
        check("name", NAMES.words(), name)
        if re.fullmatch("[A-Za-z0-9_-]{1,40}", name) is None:
            raise UserValueError(f"name: expected at most 40 letters, digits, - and _, got {name!r}")
        folder = Path(root).absolute()
        if not folder.is_dir():
            raise UserValueError(f"root: expected a folder that exists, got {os.fspath(root)!r}")
        before = "" if name == "files" else f"{name}_"
        tools = _make_tools(folder, before)
        if write:  # the provider's own tool has one name only
            tool_name, native = f"{before}apply_patch", not before
            editor = LocalEditor(folder)
            tools.append(editor_tool(editor, name=tool_name, native=native, needs_approval=needs_approval))
        about = "Paths are relative, with / between their parts."
        if before:
            about += f" The tools whose names begin with {before} are those of this folder."
        super().__init__(name, instructions=about, tools=tools)


def _make_tools(root: Path, before: str) -> list[FunctionTool[Any]]:
    """Return the tools that read. Their bodies are sync: a run calls them in worker threads."""

    @tool(name=f"{before}list_files", reads_only=True)
    def list_files(path: str = ".") -> str:
        """List the names in a folder; folders end with a slash.

        Args:
            path: The folder.
        """
        with open_root(root) as top:
            names = list_folder(top, path)
        if names is None:
            raise EditError(f"{path}: there is no such folder")
        return _join(names, len(names)) or "The folder is empty."

    @tool(name=f"{before}find_files", reads_only=True)
    def find_files(ctx: ToolContext[Any], pattern: str) -> str:
        """Find files by a pattern of their path: * is any text within a name, ** any folders, as in src/**/*.py.

        Args:
            pattern: The pattern.
        """
        with open_root(root) as top:
            walk = _FileWalk(ctx, top, pattern)
            found = [*islice((path for path, _ in walk.paths()), _MOST_FOUND + 1)]
        return _join(found[:_MOST_FOUND], len(found), walk.note()) or f"No file matches.{walk.note()}"

    @tool(name=f"{before}search_files", reads_only=True)
    def search_files(ctx: ToolContext[Any], text: str, pattern: str = "**", ignore_case: bool = False) -> str:
        """Search files for a text within a line; returns path:line: text of each line.

        Args:
            text: The text, as it is; no regular expression.
            pattern: Files to search, as in find_files.
            ignore_case: True if capitals don't matter.
        """
        with open_root(root) as top:
            walk = _FileWalk(ctx, top, pattern)
            found = [*islice(walk.lines(text, str.casefold if ignore_case else str), _MOST_FOUND + 1)]
        return _join(found[:_MOST_FOUND], len(found), walk.note()) or f"No line has it.{walk.note()}"

    @tool(name=f"{before}read_file", reads_only=True)
    def read_lines(path: str, first: int = 1, last: int | None = None) -> str:
        """Read a text file, or some of its lines, with line numbers.

        Args:
            path: The file.
            first: The first line, from 1.
            last: The last line; the end of the file if left out.
        """
        with open_root(root) as top:
            lines = _split(to_text(read_file(top, path, _MOST_BYTES), path))
        first = max(first, 1)
        until = min(len(lines) if last is None else last, len(lines))
        shown = [f"{n}\t{_cut(lines[n - 1])}" for n in range(first, min(until, first + _MOST_LINES - 1) + 1)]
        if until - first + 1 > _MOST_LINES:
            left, following = until - first + 1 - _MOST_LINES, first + _MOST_LINES
            shown.append(f"[{left:,} more lines: read on from {following}]")
        return "\n".join(shown) or f"There is no such line: the file has {len(lines):,}."

    return [list_files, find_files, search_files, read_lines]


@contextmanager
def open_root(root: Path) -> Iterator[int]:
    """Give the descriptor of a folder, while the block runs."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class _FileWalk:
    """A walk over the regular files below a descriptor that fit a pattern. The caller's cancellation ends it."""

    def __init__(self, ctx: ToolContext[Any], top: int, pattern: str) -> None:
        self._ctx, self._top, self._pattern = ctx, top, pattern
        self._left = Counter[str]()
        self._cut = ""

    def paths(self) -> Iterator[tuple[str, int]]:
        """Yield the path and the size of each file in sorted order of folders."""
        looked = 0
        for folder, folders, files, at in os.fwalk(".", dir_fd=self._top, onerror=self._note_folder):
            for name in sorted(files):
                self._ctx.check_cancelled()
                looked += 1
                if looked > _MOST_ENTRIES:
                    break
                path = f"{folder}/{name}".removeprefix("./")
                if path_matches(path, self._pattern) and (size := _find_size(at, name)) is not None:
                    yield path, size
            self._ctx.check_cancelled()
            below = sorted(name for name in folders if name[0] != "." and name not in _SKIPPED)
            looked += len(below)
            if looked > _MOST_ENTRIES:
                self._cut = f"\n[only {_MOST_ENTRIES:,} files and folders were looked at: use a narrower folder]"
                return
            if folder.count("/") >= _MOST_DEPTH:
                self._left[f"folders below {_MOST_DEPTH} others"] += len(below)
                below = []
            folders[:] = below

    def lines(self, text: str, fold: Callable[[str], str]) -> Iterator[str]:
        """Yield the lines that have *text*, as *fold* makes both equal, with path and number."""
        wanted, searched = fold(text), 0
        for path, size in self.paths():
            if size > _MOST_BYTES:
                self._left[f"files of more than {_MOST_BYTES:,} bytes"] += 1
                continue
            searched += size
            if searched > _MOST_SEARCHED:
                self._cut = f"\n[only {_MOST_SEARCHED:,} bytes were searched: use a narrower pattern]"
                return
            try:
                data = read_file(self._top, path, _MOST_BYTES)
            except EditError:
                self._left["files that can't be read"] += 1
                continue
            try:
                content = to_text(data, path)
            except EditError:
                self._left["files that aren't UTF-8"] += 1
                continue
            if wanted in fold(content):
                for number, line in enumerate(_split(content), 1):
                    if wanted in fold(line):
                        yield f"{path}:{number}: {_cut(line)}"

    def note(self) -> str:
        """Return what was left out, and why; empty if it was nothing."""
        left = "; ".join(f"{what}: {count:,}" for what, count in self._left.items() if count)
        return (f"\n[left out: {left}]" if left else "") + self._cut

    def _note_folder(self, _: OSError) -> None:
        self._left["folders that can't be read"] += 1


def _find_size(folder: int, name: str) -> int | None:
    """Return the size of a file; None if it's a link, another thing than a regular file, or gone."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _split(text: str) -> list[str]:
    """Return the lines of a text. They end at `\\n` only, as editors count; a `\\r` before it isn't shown."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def _cut(line: str) -> str:
    return line if len(line) <= _MOST_CHARS else f"{line[:_MOST_CHARS]}…"


def _join(lines: list[str], count: int, cut: str = "") -> str:
    """Return *lines*, of *count*, with a note of what is left out; empty if there is none."""
    if not lines:
        return ""
    kept = lines[:_MOST_LINES]
    more = "\n[there are more: narrow the search]" if count > len(kept) else ""
    return "\n".join(map(show_name, kept)) + more + cut


def path_matches(path: str, pattern: str) -> bool:
    """Tell whether *path* fits *pattern*, in which `**` is any number of folders or, at the end, of any names.

    Its time grows with both lengths for any pattern.
    """
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    places = _skip_stars({0}, parts)
    for name in path.split("/"):
        places = _skip_stars(
            {
                place if parts[place] == "**" else place + 1
                for place in places
                if place < len(parts) and (parts[place] == "**" or fnmatch.fnmatchcase(name, parts[place]))
            },
            parts,
        )
    return len(parts) in places


def _skip_stars(places: set[int], parts: list[str]) -> set[int]:
    """Add to *places* those behind a `**`, which may be no folder at all."""
    found = set(places)
    for place in sorted(places):
        while place < len(parts) and parts[place] == "**":
            place += 1
            found.add(place)
    return found
