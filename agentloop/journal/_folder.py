"""Places of journals: the address of a database, or a folder with one in its own file for each run of a batch, by the
position of the run's input."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from agentloop.exceptions import UserError
from agentloop.journal.file import FileJournal

_REQUESTS = "requests.jsonl"
"""The requests that `agentloop run --journal` keeps beside its journals."""


def is_address(given: object) -> bool:
    """Tell whether *given* is the address of a PostgreSQL database."""
    return isinstance(given, str) and given.startswith(("postgresql://", "postgres://"))


def journal_files(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the files of journals in *folder*, in the order of their names: `*.journal`, and `*.jsonl` as in older
    versions.

    Raises:
        OSError: it can't be listed.
    """
    found = (path for path in Path(folder).iterdir() if path.suffix in (".journal", ".jsonl"))
    return sorted(path for path in found if path.name != _REQUESTS)


def journals_in(folder: str | os.PathLike[str]) -> Callable[..., FileJournal]:
    """Return a function that opens the journal of the run with a given index and input in *folder*, at an attempt; the
    newest attempt that there is if none is given.

    It makes the folder where there is none, readable by its owner only, since journals hold private data.

    Raises (when called):
        UserError: if the folder can't be made.
    """

    def open_journal(index: int, _input: Any, attempt: int | None = None) -> FileJournal:
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            place = os.fspath(folder)
            raise UserError(f"journals: {place!r} can't be made a folder: {error.strerror or error}") from error
        if attempt is None:
            attempt = next(number for number in count(1) if not find_path(index, number + 1).exists())
        return FileJournal(find_path(index, attempt))

    def find_path(index: int, attempt: int) -> Path:
        name = f"run-{index:06}" if attempt == 1 else f"run-{index:06}.try-{attempt}"
        return Path(folder, f"{name}.journal")

    return open_journal
