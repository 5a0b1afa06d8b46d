"""Bundles that are ready: files below a folder, skills, pages of the web, a list of what is to do.

Each is a `Bundle` for `Agent(bundles=[…])` or `RunConfig(bundles=[…])`.
"""

from agentloop.bundles._files import Files
from agentloop.bundles._skills import Skills
from agentloop.bundles._todo import Todo, TodoItem
from agentloop.bundles._web import Web

__all__ = ["Files", "Skills", "Todo", "TodoItem", "Web"]
