"""`Memory`: text files that stay when a run ends, which a model reads and changes by one tool.

The tool has the commands of the vendors' memory tools, on paths below `/memories`. Anthropic's models are shown their
provider's own definition of it, others a function; a call has the same arguments either way.

Theory of operation. A store gives all files of a scope at once (`load`), and takes a change only if the files still are
those that it was made for (`change(expect=…)`). So a command is a function of files to changes, and what it checks, the
number of files too, holds when the change is made. If another run was faster, the command is computed anew.

A file is changed or removed only as the run has last seen it. Each output that shows or writes a file names its
version, a digest of its text; the outputs are in the log, so they are there after a resume and a compaction. If the
file has another version by now, the model has to read it again, and the other run's write isn't lost. The same rule
makes a call that a crash left in doubt safe to run again: its change can't be made twice.

Decisions:

The index in the instructions has names and sizes only. What a file says may be a stranger's text that an earlier run
stored; the model reads it as the output of a tool, not as an instruction. It is read once a run, and once more when
it is resumed, so that the beginning of the requests stays the same for the provider's cache.

All files of a scope are read for each call. They are bounded (10 MB at most, unless you say otherwise), and a store of
two methods is easy to write and to get right. Rejected: a method for each command, which every store would have to make
atomic for itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Literal, TypeAlias

from agentloop._common.checks import NAMES, check
from agentloop._common.errors import ModelBehaviorError, UserTypeError, UserValueError
from agentloop._common.memory_paths import EXPECTED, are_names, fold
from agentloop.abc import MemoryStore
from agentloop.bundles._log import has_log, succeeded_calls
from agentloop.config._bundling import Bundle, Opener
from agentloop.context import RunContext, ToolContext
from agentloop.exceptions import MemoryConflict
from agentloop.tools import FunctionTool, tool

ROOT = "/memories"
_MOST_LISTED = 100
"""The most files in the instructions."""
_TRIES = 20
_VERSION = re.compile(r"\(version ([0-9a-f]{12})\)[^()]*$")
_ABOUT = (
    "Files below /memories are your memory: they stay when this conversation ends. Before a task, view with the tool "
    "{tool} what they say about it. Keep in them what later conversations need, and nothing else."
)

Command: TypeAlias = Literal["view", "create", "str_replace", "insert", "delete", "rename"]
Changes: TypeAlias = Mapping[str, str | None]


class MemoryRefusal(ModelBehaviorError):
    """A command that isn't carried out. The text says why."""


class Memory(Bundle):
    """Text files that stay when a run ends: the tool `memory` views, writes, renames and deletes them.

    A file has a path below `/memories`. Each scope, a user for example, has its own files, and sees no others. A change
    is atomic, and is in the log of the run as its call. A run changes or deletes a file only as it has last seen it: if
    another run has changed it since, the model has to view it again, so that no write is lost. In an activity of
    Temporal, where a body has no log, this check is left out.

    Models of Anthropic are shown the provider's own definition of the tool, other models a function.

    Args:
        store: Keeps the files: `FolderMemory`, `SQLiteMemory`, `agentloop.postgres.PostgresMemory`, or your own.
        scope: Whose files they are: a text, or a function of the context that returns one (`lambda ctx:
            ctx.context.user`). A text has at most 1,000 printable characters.
        recall_at_start: True to list the names of the files in the instructions, as they are when a run begins or
            is resumed.
        max_file_bytes: The most bytes of a file, as UTF-8.
        max_files: The most files of a scope.
        name: Another name where an agent has two memories, of letters, digits, `-` and `_`. The tool is then called
            `NAME_memory`, and is a function for every model.

    Raises:
        UserTypeError, UserValueError: if an argument is invalid; names it. A scope that a function returns is checked
            in the run, and ends it.

    Example:
        from agentloop import Agent, Runner
        from agentloop.bundles import Memory, SQLiteMemory
        from agentloop.testing import ScriptedModel, call, say

        note = {"command": "create", "path": "/memories/tea.md", "file_text": "Ada likes green tea."}
        look = {"command": "view", "path": "/memories/tea.md"}
        model = ScriptedModel([call("memory", note), say("I will remember."), call("memory", look), say("Green tea?")])
        agent = Agent("waiter", model=model, bundles=[Memory(SQLiteMemory(":memory:"), scope=lambda ctx: ctx.context)])
        Runner.run_sync(agent, "I like green tea.", context="ada")
        result = Runner.run_sync(agent, "The usual, please.", context="ada")
        print(result.new_items[1].output.splitlines()[-1].split())  # ['1', 'Ada', 'likes', 'green', 'tea.']
    """

    def __init__(
        self,
        store: MemoryStore,
        *,
        scope: str | Callable[[RunContext[Any]], str],
        recall_at_start: bool = False,
        max_file_bytes: int = 100_000,
        max_files: int = 100,
        name: str = "memory",
    ) -> None:
        if not isinstance(store, MemoryStore):
            raise UserTypeError(f"store: expected a MemoryStore (with `load` and `change`), got {store!r}")
        check("recall_at_start", NAMES.flag(), recall_at_start)
        check("max_file_bytes", NAMES.count(), max_file_bytes)
        check("max_files", NAMES.count(), max_files)
        check("name", NAMES.words(), name)
        if re.fullmatch("[A-Za-z0-9_-]{1,40}", name) is None:
            raise UserValueError(f"name: expected at most 40 letters, digits, - and _, got {name!r}")
        if not callable(scope):
            _check_scope(scope)
        files = _ScopedFiles(store, scope, max_file_bytes, max_files)
        made = _make_tool(files, "memory" if name == "memory" else f"{name}_memory", native=name == "memory")
        about = _ABOUT.format(tool=made.name)
        index = _Index(name, files) if recall_at_start else None

        async def show(ctx: RunContext[Any], _agent: Any) -> str:
            files.scope_of(ctx)  # the application's mistake ends the run; the model could only read about it
            return about if index is None else f"{about}\n\n{await index.opened(ctx)}"

        more = [] if index is None else [Opener(index)]
        super().__init__(name, instructions=show if callable(scope) or index else about, tools=[made, *more])


class _Index(Bundle):
    """The list of the files as they are when a run begins or is resumed: loaded once then, and no tool of its own."""

    def __init__(self, name: str, files: _ScopedFiles) -> None:
        super().__init__(name)
        self._files = files

    async def open(self, ctx: RunContext[Any]) -> AbstractAsyncContextManager[str]:
        found = await self._files.load(ctx)
        listed = [f"- {_path(key)} ({_size(found[key])})" for key in sorted(found)[:_MOST_LISTED]]
        if len(found) > len(listed):
            listed.append(f"- and {len(found) - len(listed):,} more")
        return nullcontext("\n".join([_LISTED, *listed] if listed else [_NOTHING]))


_LISTED = "The files when this run began or was resumed:"
_NOTHING = "There was no file when this run began or was resumed."


def _check_scope(scope: Any) -> str:
    if not isinstance(scope, str):
        raise UserTypeError(f"scope: expected text, or a function of (ctx) that returns it, got {scope!r}")
    if not 0 < len(scope) <= 1_000 or not scope.isprintable():
        raise UserValueError(f"scope: expected 1 to 1,000 printable characters, got {scope[:100]!r}")
    return scope


class _ScopedFiles:
    """The files of the scope that a context has, within bounds."""

    def __init__(
        self, store: MemoryStore, scope: str | Callable[[RunContext[Any]], str], most_bytes: int, most_files: int
    ) -> None:
        self._store, self._scope = store, scope
        self._most_bytes, self._most_files = most_bytes, most_files

    def scope_of(self, ctx: RunContext[Any]) -> str:
        """Return whose files they are. Raises UserTypeError or UserValueError if the application can't tell."""
        return _check_scope(self._scope(ctx) if callable(self._scope) else self._scope)

    async def load(self, ctx: RunContext[Any]) -> Mapping[str, str]:
        """Return the texts of the files by their paths below the root."""
        return await self._store.load(self.scope_of(ctx))

    async def run(self, ctx: RunContext[Any], seen: Mapping[str, str] | None, command: Command, **given: Any) -> str:
        """Carry out *command*, and return what the model reads of it.

        Raises:
            MemoryRefusal: if it can't be carried out; nothing has changed.
        """
        scope = self.scope_of(ctx)
        for _ in range(_TRIES):
            found = await self._store.load(scope)
            files = _FileSet(found, seen, self._most_bytes)
            output = files.do(command, given)
            if not files.changes:
                return output
            if len(found) < len(files.now) > self._most_files:
                raise MemoryRefusal(f"There would be more than {self._most_files:,} files: delete or join some first.")
            try:
                await self._store.change(scope, files.changes, expect=found)
            except MemoryConflict:
                continue  # the command may be another one for what the files are now
            return output
        raise MemoryRefusal("Other conversations change these files all the time: try again later.")


def _make_tool(files: _ScopedFiles, name: str, *, native: bool) -> FunctionTool[Any]:
    @tool(name=name, kind="memory" if native else "function", serial=name, in_doubt="rerun")
    async def memory(
        ctx: ToolContext[Any],
        command: Command,
        path: str | None = None,
        view_range: list[int] | None = None,
        file_text: str | None = None,
        old_str: str | None = None,
        new_str: str | None = None,
        insert_line: int | None = None,
        insert_text: str | None = None,
        old_path: str | None = None,
        new_path: str | None = None,
    ) -> str:
        """Read and change the files below /memories, which stay when a conversation ends.

        Args:
            command: view (path) shows a file or the files of a folder; create (path, file_text) writes a new file;
                str_replace (path, old_str, new_str) replaces a text that is there once; insert (path, insert_line,
                insert_text) adds lines behind a line; delete (path); rename (old_path, new_path). View a file before
                you change or delete it.
            path: The file or folder, as /memories/notes.md.
            view_range: The first and the last line to view; -1 is the end.
            file_text: The text of the new file.
            old_str: The text to replace, exactly as it is in the file.
            new_str: The text to put in its place.
            insert_line: The line behind which to insert; 0 is the beginning.
            insert_text: The lines to insert.
            old_path: The file or folder to rename.
            new_path: Its new path.
        """
        given = {
            **{"path": path, "view_range": view_range, "file_text": file_text, "old_str": old_str, "new_str": new_str},
            **{"insert_line": insert_line, "insert_text": insert_text, "old_path": old_path, "new_path": new_path},
        }
        return await files.run(ctx, _seen(ctx, memory), command, **given)

    return memory


def _seen(ctx: RunContext[Any], memory: FunctionTool[Any]) -> dict[str, str] | None:
    """Return the versions of files and folders that the run has last seen, by key; None where there is no log."""
    if not has_log(ctx):
        return None
    seen: dict[str, str] = {}
    for values, output in succeeded_calls(ctx, memory):
        key = to_key(values["new_path"] if values["command"] == "rename" else values["path"])
        found = _VERSION.search(output.partition("\n")[0])
        seen.setdefault(key, found[1] if found is not None else "")
    return seen


# ---------------------------------------------------------------------------------------------- paths


def to_key(path: str | None) -> str:
    """Return the path below the root, with `/` between its names; empty for the root itself.

    Raises:
        MemoryRefusal: if it isn't below the root, or a name isn't allowed.
    """
    below = (path or "").removeprefix(ROOT)
    if path is None or below == path or (below and below[0] != "/"):
        raise MemoryRefusal(f"{(path or '')[:200]!r}: expected {ROOT} or a path below it")
    parts = below.strip("/").split("/")
    if parts == [""]:
        return ""
    if not are_names(parts):
        raise MemoryRefusal(f"{path[:200]!r}: expected {EXPECTED}")
    return "/".join(parts)


def _path(key: str) -> str:
    return f"{ROOT}/{key}" if key else ROOT


def _size(text: str) -> str:
    return f"{len(text.encode()):,} bytes"


# ---------------------------------------------------------------------------------------------- commands

_NEEDS: dict[str, tuple[str, ...]] = {
    "view": ("path",),
    "create": ("path", "file_text"),
    "str_replace": ("path", "old_str"),
    "insert": ("path", "insert_line", "insert_text"),
    "delete": ("path",),
    "rename": ("old_path", "new_path"),
}


class _FileSet:
    """The files of one scope as they were loaded, and the changes that a command makes of them."""

    def __init__(self, files: Mapping[str, str], seen: Mapping[str, str] | None, most_bytes: int) -> None:
        self._files, self._seen, self._most = files, seen, most_bytes
        self.changes: dict[str, str | None] = {}

    @property
    def now(self) -> dict[str, str]:
        """The files with the changes."""
        return {key: text for key, text in {**self._files, **self.changes}.items() if text is not None}

    def do(self, command: Command, given: Mapping[str, Any]) -> str:
        """Carry out one command."""
        missing = [name for name in _NEEDS[command] if given[name] is None]
        if missing:
            raise MemoryRefusal(f"{command} needs {' and '.join(missing)}.")
        keys = [to_key(given[name]) for name in _NEEDS[command] if name.endswith("path")]
        match command:
            case "view":
                return self._view(keys[0], given["view_range"])
            case "create":
                return self._create(keys[0], given["file_text"])
            case "str_replace":
                return self._replace(keys[0], given["old_str"], given["new_str"] or "")
            case "insert":
                return self._insert(keys[0], given["insert_line"], given["insert_text"])
            case "delete":
                return self._delete(keys[0])
            case "rename":
                return self._rename(*keys)

    def _view(self, key: str, bounds: list[int] | None) -> str:
        if key not in self._files:
            below = self._below(key)
            if key and not below:
                raise self._missing(key)
            sizes = [f"{_size(text)}\t{_path(name)}" for name, text in sorted(below.items())]
            return "\n".join([f"The files in {_path(key)} {self._version(key)}:", *(sizes or ["(none)"])])
        lines = _split(self._files[key])
        first, last = (1, -1) if bounds is None else (*bounds, -1, -1)[:2]
        chosen = list(enumerate(lines, 1))[max(first, 1) - 1 : len(lines) if last == -1 else max(last, 0)]
        about = f"The text of {_path(key)} {self._version(key)}, with the numbers of its lines:"
        return "\n".join([about, *(f"{number:6}\t{line.removesuffix(chr(10))}" for number, line in chosen)])

    def _create(self, key: str, text: str) -> str:
        self._check_free(key)
        return self._write(key, text, "was created")

    def _replace(self, key: str, old: str, new: str) -> str:
        text = self._find(key)
        self._check_seen(key)
        if (count := text.count(old) if old else 0) != 1:
            raise MemoryRefusal(f"{_path(key)}: the text to replace is there {count} times, and not once.")
        return self._write(key, text.replace(old, new), "was changed")

    def _insert(self, key: str, line: int, added: str) -> str:
        lines = _split(self._find(key))
        self._check_seen(key)
        if not 0 <= line <= len(lines):
            raise MemoryRefusal(f"{_path(key)}: insert_line: expected 0 to {len(lines)}, got {line}.")
        if line and not lines[line - 1].endswith("\n"):
            lines[line - 1] += "\n"
        if line < len(lines) and not added.endswith("\n"):
            added += "\n"
        return self._write(key, "".join([*lines[:line], added, *lines[line:]]), "was changed")

    def _delete(self, key: str) -> str:
        gone = self._find_all(key)
        if not key:
            raise MemoryRefusal(f"{ROOT} itself can't be deleted: delete files in it.")
        self._check_seen(key)
        self.changes = dict.fromkeys(gone)
        return f"{_path(key)} was deleted."

    def _rename(self, old: str, new: str) -> str:
        moved = self._find_all(old)
        if not old or not new or f"{new}/".startswith(f"{old}/") or old.startswith(f"{new}/"):
            raise MemoryRefusal(f"{_path(old)} can't be renamed to {_path(new)}.")
        # An unseen version isn't named: the new path would count as seen, with what another run has written to it.
        has_seen = self._has_seen(old)
        self.changes = dict.fromkeys(moved)
        self._check_free(new)
        for key, text in moved.items():
            self.changes[to_key(_path(new + key.removeprefix(old)))] = text
        version = f" {self._version(new)}" if has_seen else ""
        return f"{_path(old)} was renamed to {_path(new)}{version}."

    # -- parts

    def _below(self, key: str) -> dict[str, str]:
        """Return the files of a folder, by their whole keys."""
        return {name: text for name, text in self.now.items() if not key or name.startswith(f"{key}/")}

    def _find(self, key: str) -> str:
        if key not in self._files:
            raise self._missing(key)
        return self._files[key]

    def _find_all(self, key: str) -> dict[str, str]:
        """Return the file, or the files of the folder."""
        found = {key: self._files[key]} if key in self._files else self._below(key)
        if not found:
            raise self._missing(key)
        return found

    def _missing(self, key: str) -> MemoryRefusal:
        what = "is a folder, and not a file" if self._below(key) else "doesn't exist"
        return MemoryRefusal(f"{_path(key)} {what}.")

    def _check_free(self, key: str) -> None:
        """Check that a file or folder of that path can be made.

        Raises:
            MemoryRefusal: if there is one, or its folder is a file; also if its name differs in such a manner only that
                a file system may take both for one.
        """
        wanted = fold(key)
        for other in self.now:
            folded = fold(other)
            if wanted == folded or folded.startswith(f"{wanted}/"):
                raise MemoryRefusal(f"{_path(key)} exists already, or differs only in capitals from {_path(other)}.")
            if wanted.startswith(f"{folded}/"):
                raise MemoryRefusal(f"{_path(other)} is a file, and not a folder.")
            if (clash := _other_spelling(key, other)) is not None:
                raise MemoryRefusal(f"{_path(key)}: the folder is written {_path(clash)}.")
        if not key:
            raise MemoryRefusal(f"{ROOT} is the folder of all files: give a path below it.")

    def _check_seen(self, key: str) -> None:
        """Check that the run has seen a file or folder as it is.

        Raises:
            MemoryRefusal: if it hasn't, or it has changed since.
        """
        if self._has_seen(key):
            return
        was_seen = self._seen is not None and self._seen.get(key)
        why = "has changed since you viewed it" if was_seen else "was not viewed in this conversation"
        raise MemoryRefusal(f"{_path(key)} {why}, and nothing was done: view it, and decide again.")

    def _has_seen(self, key: str) -> bool:
        """Tell whether the run has seen a file or folder as it is; True where there is no log."""
        return self._seen is None or self._seen.get(key) == self._digest(key)

    def _write(self, key: str, text: str, done: str) -> str:
        if "\0" in text:
            raise MemoryRefusal(f"{_path(key)}: the text has a null character in it.")
        if (size := len(text.encode())) > self._most:
            raise MemoryRefusal(f"{_path(key)} would have {size:,} bytes, and a file has at most {self._most:,}.")
        self.changes = {key: text}
        return f"{_path(key)} {done} {self._version(key)}."

    def _version(self, key: str) -> str:
        return f"(version {self._digest(key)})"

    def _digest(self, key: str) -> str:
        """Return the version of a file or a folder: a digest of its text, or of all its names and texts."""
        now = self.now
        if key in now:
            return _digest(now[key])
        return _digest("".join(f"{name}\0{_digest(text)}\0" for name, text in sorted(self._below(key).items())))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _split(text: str) -> list[str]:
    """Return the lines of a text with their ends. They end at `\\n` only."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _other_spelling(key: str, other: str) -> str | None:
    """Return the folder of *other* that a folder of *key* differs from in its spelling only; None if none does."""
    for end in range(1, min(key.count("/"), other.count("/")) + 1):
        one, two = ("/".join(path.split("/")[:end]) for path in (key, other))
        if one != two and fold(one) == fold(two):
            return two
    return None
