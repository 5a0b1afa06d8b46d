"""Reading a journal as records, without agents, an event loop or the lock of its writer: from a file, or from the rows
of one run in a SQLite file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from agentloop._common.regular_files import open_regular
from agentloop._common.sqlite_file import ERRORS, distrust
from agentloop.abc import Codec
from agentloop.exceptions import JournalError
from agentloop.journal._checks import check_codec, check_path
from agentloop.journal._envelope import Seal, scan
from agentloop.journal._folder import journal_files
from agentloop.journal._rows import scan_rows
from agentloop.journal._storage import FileStorage
from agentloop.journal.file import seal_of_file
from agentloop.journal.sqlite import SEALED_AS, SELECT_LINES, SELECT_RUNS
from agentloop.records import Record

_SQLITE = b"SQLite format 3\0"
_BUSY_SECONDS = 5.0


def read_journal(
    path: str | os.PathLike[str],
    *,
    run_id: str | None = None,
    key: bytes | None = None,
    codec: Codec | None = None,
    older_seals: bool = False,
) -> Iterator[Record]:
    """Return the records in the file of a `FileJournal` or a `SQLiteJournal`, in order. A run may still write it.

    Args:
        path: The file.
        run_id: The run in a SQLite file; needed if it holds several. Of another file the run for which it is sealed;
            the file's name without its ending, if not given.
        key: The key that the journal was sealed with.
        codec: The codec that opens sealed secrets; without it they are placeholders.
        older_seals: True to take also what an older version has sealed; see `FileJournal`.

    Raises:
        JournalError: the file is missing, empty, damaged, or no journal; *key* is not its key; it is sealed for another
            run; or it holds several runs and *run_id* names none of them.
        StateError: a record doesn't fit any schema that the library reads; names its line.

    Example:
        import tempfile
        from pathlib import Path

        import anyio
        from agentloop import Agent, Runner
        from agentloop.journal import FileJournal, read_journal
        from agentloop.testing import ScriptedModel, say

        async def main(path):
            async with FileJournal(path) as journal:
                await Runner.run(Agent("a", model=ScriptedModel([say("hi")])), "go", journal=journal)
            print(type(next(read_journal(path))).__name__)  # RunStarted

        with tempfile.TemporaryDirectory() as folder:
            anyio.run(main, Path(folder, "run.journal"))
    """
    records = read_whole_records(path, run_id=run_id, key=key, codec=codec, older_seals=older_seals)
    if records is None:
        raise JournalError(f"{check_path(path)}: there is no such journal, or nothing whole of one")
    return iter(records)


def read_whole_records(
    path: str | os.PathLike[str],
    *,
    run_id: str | None = None,
    key: bytes | None = None,
    codec: Codec | None = None,
    older_seals: bool = False,
) -> tuple[Record, ...] | None:
    """Return the records that `read_journal` gives; None if nothing whole is there, or no file.

    Raises:
        JournalError, StateError: as `read_journal`.
    """
    from agentloop._storage.state_codec import read_lines

    lines = read_lines_of(check_path(path), run_id, key, older_seals=older_seals)
    check_codec(codec)
    return read_lines(lines, codec).records if lines else None


class GrowingJournal:
    """A journal that is read again and again while a run writes it. *read* returns its lines, all of them checked."""

    def __init__(self, read: Callable[[], list[bytes]]) -> None:
        self._read = read
        self._lines: list[bytes] = []

    def read_new(self) -> tuple[bool, tuple[Record, ...]]:
        """Return the records since the last read; True with them if they are all, as the journal is another one.

        Raises:
            JournalError, StateError: as `read_journal`. The next read continues after the last that raised nothing.
        """
        from agentloop._storage.state_codec import read_lines

        lines = self._read()
        known = len(self._lines)
        # A journal that began in an older schema has another header in its middle, so it is read from its first line.
        grown = known > 0 and lines[:known] == self._lines and read_lines(lines[:1], None).is_current
        if grown:
            records = read_lines([lines[0], *lines[known:]], None).records
        else:
            records = read_lines(lines, None).records if lines else ()
        self._lines = lines
        return not grown, records


def read_lines_of(name: str, run_id: str | None, key: bytes | None, *, older_seals: bool = False) -> list[bytes]:
    """Return the whole lines of the journal at *name*; none if there is no file.

    Raises:
        JournalError: as `read_journal`.
    """
    try:
        data = FileStorage(name).read()
    except OSError as error:
        raise JournalError(f"{name}: {error.strerror or error}") from error
    if data.startswith(_SQLITE):
        return _read_rows(name, run_id, key, older_seals=older_seals)
    return scan(data, seal_of_file(name, run_id, key, older_seals=older_seals), name).records


def find_runs(folder: str | os.PathLike[str]) -> list[tuple[str, Path, str | None]]:
    """Return the runs in the journals of *folder*: a name, the file, and the run's id if the file holds several.

    These are the files of `journal_files`, and those of SQLite that have journals, with any ending.

    Raises:
        OSError: the folder can't be listed.
    """
    files = journal_files(folder)
    found: list[tuple[str, Path, str | None]] = [(path.stem, path, None) for path in files]
    for path in sorted(set(Path(folder).iterdir()) - set(files)):
        try:
            runs = list_runs(path)
        except JournalError:  # no file, or a database of something else
            continue
        found += [(run_id, path, run_id) for run_id in runs or ()]
    return found


def list_runs(path: str | os.PathLike[str]) -> list[str] | None:
    """Return the ids of the runs in a SQLite file of journals, sorted; None if the file isn't one of SQLite.

    Raises:
        JournalError: if the file can't be read, or has no journals.
    """
    name = check_path(path)
    try:
        with open_regular(name) as file:
            if file.read(len(_SQLITE)) != _SQLITE:
                return None
    except OSError as error:
        raise JournalError(f"{name}: {error.strerror or error}") from error
    with _connect(name) as connection:
        return [run_id for (run_id,) in connection.execute(SELECT_RUNS)]


def _read_rows(name: str, run_id: str | None, key: bytes | None, *, older_seals: bool = False) -> list[bytes]:
    with _connect(name) as connection:
        if run_id is None:
            runs = [found for (found,) in connection.execute(SELECT_RUNS)]
            if len(runs) > 1:
                raise JournalError(f"{name} holds {len(runs)} runs: give the run_id of one")
            if not runs:
                return []
            run_id = str(runs[0])
        rows = connection.execute(SELECT_LINES, (run_id,)).fetchall()
    if not rows:
        raise JournalError(f"{name} holds no run {run_id!r}")
    return scan_rows(rows, Seal(key, (SEALED_AS, run_id), older_seals=older_seals), name).records


@contextmanager
def _connect(name: str) -> Iterator[sqlite3.Connection]:
    """Give a connection that can't change the file.

    Raises:
        JournalError: in place of the database's own errors.
    """
    try:
        address = f"file:{quote(os.path.abspath(name))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_SECONDS)) as connection:
            distrust(connection)
            yield connection
    except ERRORS as error:
        raise JournalError(f"{name}: {error}") from error
