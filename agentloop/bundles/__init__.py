"""Bundles that are ready: files below a folder, a list of what is to do.

Each is a `Bundle` for `Agent(bundles=[…])` or `RunConfig(bundles=[…])`.
"""

from agentloop.bundles._files import Files
from agentloop.bundles._todo import Todo, TodoItem

__all__ = ["Files", "Todo", "TodoItem"]
