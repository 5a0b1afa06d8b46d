"""Reading a journal's file as records, without agents, an event loop or the lock of its writer."""

from __future__ import annotations

import os
from collections.abc import Iterator

from agentloop.abc import Codec
from agentloop.exceptions import JournalError
from agentloop.journal._checks import check_codec, check_path
from agentloop.journal._envelope import Seal, scan
from agentloop.journal._storage import FileStorage
from agentloop.records import Record


def read_journal(
    path: str | os.PathLike[str], *, key: bytes | None = None, codec: Codec | None = None
) -> Iterator[Record]:
    """Return the records in the file of a `FileJournal`, in order. The file may be one that a run still writes.

    Args:
        path: The file.
        key: The key that the journal was sealed with.
        codec: The codec that opens sealed secrets; without it they are placeholders.

    Raises:
        JournalError: the file is missing, empty, damaged, or no journal; or *key* is not its key.
        StateError: a record doesn't fit any schema that the library reads; names its line.
    """
    from agentloop._storage.state_codec import read_lines

    name = check_path(path)
    check_codec(codec)
    lines = scan(FileStorage(name).read(), Seal(key), name).records
    if not lines:
        raise JournalError(f"{name}: there is no such journal, or nothing whole of one")
    return iter(read_lines(lines, codec).records)
