"""Sessions: conversations that outlive their runs. The classes are imported at first use.

Any object with `Session`'s methods is a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._common.lazy_names import import_at_first_use
from agentloop.abc import ReplaceableSession, Session

if TYPE_CHECKING:
    from agentloop.sessions.compaction import compact
    from agentloop.sessions.memory import MemorySession
    from agentloop.sessions.sqlite import SQLiteSession

__all__ = ["MemorySession", "ReplaceableSession", "SQLiteSession", "Session", "compact"]

_LAZY = {"MemorySession": "memory", "SQLiteSession": "sqlite", "compact": "compaction"}

if not TYPE_CHECKING:  # a checker reads the imports above, and reports a name that isn't among them
    __getattr__ = import_at_first_use(globals(), _LAZY)


def __dir__() -> list[str]:
    return sorted(__all__)
