"""Opens regular files: another thing in their place may have no end."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading. A pipe isn't waited for, and a device isn't read.

    Raises:
        OSError: there is none, or it isn't a regular file.
    """
    # O_NONBLOCK: without it, opening a pipe waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        raise OSError(errno.EINVAL, "it is no regular file")
    return open(descriptor, "rb")
