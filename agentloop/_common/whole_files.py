"""Files that are written whole or not at all: beside their place, and then moved there."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress


def write_whole(path: str | os.PathLike[str], data: bytes, *, is_synced: bool = False) -> None:
    """Write *data* to *path*, in a folder that exists: readers see the file as it was, or all of the new one. Blocks.

    With *is_synced* the data outlive a power failure once this returns, but for the entry of the folder.

    Raises:
        OSError: the file can't be written; then it is as it was, and nothing else is left.
    """
    descriptor, written = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".", suffix=".part")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            if is_synced:
                file.flush()
                os.fsync(file.fileno())
        os.replace(written, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(written)
        raise
