"""Journals: logs of runs that outlive a crash. The classes are imported at first use.

Any object with `Journal`'s methods is a journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._common.lazy_names import import_at_first_use
from agentloop.abc import Codec, Journal, LeasedJournal, SealingJournal

if TYPE_CHECKING:
    from agentloop.journal._reading import read_journal
    from agentloop.journal._storage import Storage
    from agentloop.journal.file import FileJournal
    from agentloop.journal.memory import MemoryJournal
    from agentloop.journal.sqlite import SQLiteJournal

__all__ = [
    "Codec",
    "FileJournal",
    "Journal",
    "LeasedJournal",
    "MemoryJournal",
    "SQLiteJournal",
    "SealingJournal",
    "Storage",
    "read_journal",
]

_LAZY = {
    "FileJournal": "file",
    "MemoryJournal": "memory",
    "SQLiteJournal": "sqlite",
    "Storage": "_storage",
    "read_journal": "_reading",
}

if not TYPE_CHECKING:  # a checker reads the imports above, and reports a name that isn't among them
    __getattr__ = import_at_first_use(globals(), _LAZY)


def __dir__() -> list[str]:
    return sorted(__all__)
