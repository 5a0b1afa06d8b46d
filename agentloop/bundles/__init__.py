"""Bundles that are ready: files below a folder, skills, pages of the web, a memory, a list of what is to do.

Each is a `Bundle` for `Agent(bundles=[…])` or `RunConfig(bundles=[…])`. They are imported at first use: pages of the
web need httpx, which takes as long to import as the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._common.lazy_names import import_at_first_use

if TYPE_CHECKING:
    from agentloop.bundles._files import Files
    from agentloop.bundles._memory import Memory
    from agentloop.bundles._memory_stores import FolderMemory, SQLiteMemory
    from agentloop.bundles._skills import Skills
    from agentloop.bundles._todo import Todo, TodoItem
    from agentloop.bundles._web import Web

__all__ = ["Files", "FolderMemory", "Memory", "SQLiteMemory", "Skills", "Todo", "TodoItem", "Web"]

_LAZY = {
    "Files": "_files",
    "Memory": "_memory",
    **dict.fromkeys(("FolderMemory", "SQLiteMemory"), "_memory_stores"),
    "Skills": "_skills",
    **dict.fromkeys(("Todo", "TodoItem"), "_todo"),
    "Web": "_web",
}

if not TYPE_CHECKING:  # a checker reads the imports above, and reports a name that isn't among them
    __getattr__ = import_at_first_use(globals(), _LAZY)


def __dir__() -> list[str]:
    return sorted(__all__)
