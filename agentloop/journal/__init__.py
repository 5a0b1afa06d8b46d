"""Journals: logs of runs that outlive a crash. The classes are imported at first use.

Any object with `Journal`'s methods is a journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentloop.abc import Codec, ImmediateJournal, Journal, LeasedJournal, SealingJournal

if TYPE_CHECKING:
    from agentloop.journal._reading import read_journal
    from agentloop.journal.file import FileJournal
    from agentloop.journal.memory import MemoryJournal
    from agentloop.journal.sqlite import SQLiteJournal

__all__ = [
    "Codec",
    "FileJournal",
    "ImmediateJournal",
    "Journal",
    "LeasedJournal",
    "MemoryJournal",
    "SQLiteJournal",
    "SealingJournal",
    "read_journal",
]

_LAZY = {"FileJournal": "file", "MemoryJournal": "memory", "SQLiteJournal": "sqlite", "read_journal": "_reading"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
