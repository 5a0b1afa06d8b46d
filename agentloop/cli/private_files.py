"""Files that only their owner can read."""

from __future__ import annotations

import os


def open_private(path: str, flags: int) -> int:
    """Return a descriptor, for `open(..., opener=open_private)`: a file that it makes is readable by its owner only."""
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o600)
