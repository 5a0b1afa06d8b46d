"""Sessions: conversations that outlive their runs. The classes are imported at first use.

Any object with `Session`'s methods is a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentloop.abc import ReplaceableSession, Session

if TYPE_CHECKING:
    from agentloop.sessions.compaction import compact
    from agentloop.sessions.memory import MemorySession
    from agentloop.sessions.sqlite import SQLiteSession

__all__ = ["MemorySession", "ReplaceableSession", "SQLiteSession", "Session", "compact"]

_LAZY = {"MemorySession": "memory", "SQLiteSession": "sqlite", "compact": "compaction"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
