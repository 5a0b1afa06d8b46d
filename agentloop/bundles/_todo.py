"""`Todo`: a list that the model keeps for itself.

The list is in no file and no variable: it is the arguments of the last call of `write_todos` that succeeded, in the log
of the run. So it is there again in a resumed run, and after a compaction that has dropped that call from the history.
"""

from __future__ import annotations

from typing import Any, Literal

import attrs

from agentloop._common.errors import ModelBehaviorError
from agentloop.bundles._log import succeeded_calls
from agentloop.config._bundling import Bundle
from agentloop.context import RunContext
from agentloop.tools import tool

_MOST_ITEMS, _MOST_CHARS = 100, 500
_MARKS = {"open": "[ ]", "doing": "[>]", "done": "[x]"}
_ABOUT = (
    "Keep a list of what is to do with write_todos when a task has several steps: write it before you begin, and again "
    "whenever a step begins or is done. Each call replaces the whole list."
)


@attrs.frozen
class TodoItem:
    """One step of a list: what is to do, and whether it is `"open"`, being done (`"doing"`) or `"done"`."""

    text: str
    status: Literal["open", "doing", "done"] = "open"


@tool(reads_only=True, serial="write_todos")
async def write_todos(todos: list[TodoItem]) -> str:
    """Replace the list of what is to do.

    Args:
        todos: All steps, in order, with their states.
    """
    if len(todos) > _MOST_ITEMS or any(len(item.text) > _MOST_CHARS for item in todos):
        raise ModelBehaviorError(f"A list has at most {_MOST_ITEMS} items of at most {_MOST_CHARS} characters.")
    done = sum(item.status == "done" for item in todos)
    return f"{done} of {len(todos)} done."


def _show(ctx: RunContext[Any], _agent: Any) -> str:
    """Return the instructions with the list as it is now."""
    values, _ = next(succeeded_calls(ctx, write_todos), ({"todos": ()}, ""))
    lines = [f"- {_MARKS[item.status]} {' '.join(item.text.split())}" for item in values["todos"]]
    return "\n".join([_ABOUT, *(["", "The list now:", *lines] if lines else [])])


class Todo(Bundle):
    """A list of what is to do, which the model keeps by the tool `write_todos` and is shown in every turn.

    It belongs to one run, and is there again when the run is resumed, or when its history was made shorter. Calls of
    the tool are in the log, and so in `agentloop show` and in a timeline.

    Example:
        from agentloop import Agent, Runner
        from agentloop.bundles import Todo
        from agentloop.testing import ScriptedModel, call, say

        todos = [{"text": "read", "status": "done"}, {"text": "write", "status": "doing"}]
        model = ScriptedModel([call("write_todos", {"todos": todos}), say("Half done.")])
        result = Runner.run_sync(Agent("a", model=model, bundles=[Todo()]), "Read and write.")
        print(result.new_items[1].output)  # 1 of 2 done.
        print(model.requests[-1].system.splitlines()[-1])  # - [>] write
    """

    def __init__(self) -> None:
        super().__init__("todo", instructions=_show, tools=[write_todos])
