"""`LocalEditor`: files below one folder of this machine, changed in worker threads.

`_edit_files` says how an edit is all or nothing. This module decides: an edit that was committed is kept unless the
call was cancelled meanwhile. The question and the decision are one synchronous step on the event loop, after which the
value is returned without a further wait; so a call that is reported as cancelled or timed out has changed no file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.lowlevel
import attrs

from agentloop._common.checks import FIELDS
from agentloop._common.errors import UserTypeError
from agentloop.executors._edit_files import FileEdit
from agentloop.executors._protocols import EditOperation, EditResult
from agentloop.executors._worker import run_to_end

_LOCK_PAUSE = 0.02
"""Seconds between two questions for the lock of a root. Only another edit of the same root is waited for."""


def _to_root(path: str | os.PathLike[str]) -> Path:
    return Path(path).absolute()


@attrs.frozen
class LocalEditor:
    """An `Editor` of the files below *root*. The operations of one call are applied together or not at all.

    Paths are relative to the root. Nothing outside of it is read or changed: `..` and symbolic links are refused, at
    the end of a path and within it. Files are texts in UTF-8; their line ends, modes and, where it is allowed, owners
    stay. Edits of one root exclude each other, also those of other processes; a change by another program in the middle
    of an edit makes the edit fail. Working files are in `.agentloop-edit` below the root, only while an edit runs. If
    the process dies within one, the next use of an editor of the root undoes it.

    What a call costs is bounded: at most 1,000 files of `max_file_bytes`, whose texts together take at most 16 times
    that size (and at least 16 MB) of memory, paths of at most 128 names, and a search that grows with the size of the
    files and the patch, and not faster. What is above a bound is refused. A new file belongs to the owner of the root.

    Args:
        root: The folder. The path may lead over symbolic links.
        max_file_bytes: The largest file that is read, written or deleted.

    Raises:
        UserTypeError, UserValueError: if an argument is invalid; names it.

    Example:
        import tempfile
        from pathlib import Path

        import anyio
        from agentloop.executors import LocalEditor, ReplaceText, WriteFile

        async def main(root):
            editor = LocalEditor(root)
            await editor.apply([WriteFile(path="a.txt", text="red\n")])
            await editor.apply([ReplaceText(path="a.txt", old="red", new="blue")])
            print(Path(root, "a.txt").read_text().strip())  # blue

        with tempfile.TemporaryDirectory() as root:
            anyio.run(main, root)
    """

    root: Path = attrs.field(converter=_to_root)
    max_file_bytes: int = attrs.field(default=10_000_000, kw_only=True, validator=FIELDS.count())

    async def apply(self, operations: Sequence[EditOperation]) -> EditResult:
        """Apply all *operations*, in order, or none.

        Cancellation: every file is as before; a change that was made already is undone.

        Raises:
            EditError: if an operation is refused, a write fails (a full disk), or another program changes a file
                meanwhile. Every file is as before, unless the message names one that another program has changed since.
        """
        operations = tuple(operations)
        for operation in operations:
            if not isinstance(operation, EditOperation):
                raise UserTypeError(f"operations: expected an edit operation, got {type(operation).__name__}")
        edit = FileEdit(self.root, self.max_file_bytes)
        try:
            await lock_edit(edit)
            return await apply_edit(edit, operations)
        finally:
            edit.close()  # on the event loop: a thread would be waited for, and the call be cancelled meanwhile

    async def read(self, path: str) -> str:
        """Return the text of a file, or of a folder the names in it, one a line, folders with a `/` at the end.

        Raises:
            EditError: if there is no such file, or it isn't text.
        """
        edit = FileEdit(self.root, self.max_file_bytes)
        try:
            await lock_edit(edit)
            return await run_to_end(lambda: edit.read(path))
        finally:
            edit.close()


async def apply_edit(edit: FileEdit, operations: Sequence[EditOperation]) -> EditResult:
    """Apply *operations* by an edit that has its lock, and make them permanent, or undo them if that fails.

    Cancellation: every file is as before.

    Raises:
        EditError: as of `LocalEditor.apply`.
    """
    try:
        result = await run_to_end(lambda: edit.apply(operations, anyio.from_thread.check_cancelled))
        await anyio.lowlevel.checkpoint_if_cancelled()
        edit.keep()
        return result
    finally:
        if not edit.is_decided:
            with anyio.CancelScope(shield=True):
                await run_to_end(edit.undo)


async def lock_edit(edit: FileEdit) -> None:
    """Wait until *edit* has the lock of its root. Raises EditError as `FileEdit.lock` does."""
    check = anyio.from_thread.check_cancelled
    while not await run_to_end(lambda: edit.lock(check)):  # noqa: ASYNC110 - another process may have it
        await anyio.sleep(_LOCK_PAUSE)
