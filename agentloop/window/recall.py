"""The tool by which a model reads an output again that was cleared from its history."""

from typing import Any

from agentloop.context import ToolContext
from agentloop.tools import tool
from agentloop.window.steps import is_cleared_text


def _say_why(ctx: ToolContext[Any], error: Exception) -> str:
    return str(error)


@tool(failure_error_function=_say_why, in_doubt="rerun", reads_only=True)
async def recall_output(ctx: ToolContext[Any], call_id: str, start: int = 0, chars: int = 4_000) -> str:
    """Read the output of an earlier call again, which was cleared from the conversation.

    Args:
        call_id: The id of the call, as the placeholder names it.
        start: The position of the first character, from 0.
        chars: The number of characters.
    """
    text = ctx._run.find_output(call_id)
    if is_cleared_text(text):  # the session has it so: only the log of the run that made it has the output
        raise LookupError(f"The output of call {call_id!r} was cleared in an earlier run, and can't be read again.")
    if not 0 <= start < max(1, len(text)) or chars < 1:
        raise LookupError(
            f"The output of call {call_id!r} has {len(text):,} characters: start must be a position in it, and chars "
            "at least 1."
        )
    return text[start : start + chars]
