"""The text that the model receives of a tool that failed, unless the application writes another.

It may do so by a tool's own `failure_error_function`, or for all other tools by `ToolExecution.error_formatter`.

`tools.default_tool_error_function` is this function for the application. A call that never ran has its text where it is
refused (`_engine/calls/approval.py`, `steps.py`), and one that was cancelled in `_core/cancellation.py`.
"""

from agentloop._common.error_text import error_details, is_redacted
from agentloop._common.errors import ModelBehaviorError


def tell_error(name: str, error: Exception) -> str:
    """Return the text for the tool *name*: the error's type and message, redacted and bounded."""
    undecodable = f"Arguments of tool {name} aren't valid JSON"
    if isinstance(error, ModelBehaviorError) and str(error).startswith(undecodable):
        return undecodable if is_redacted(error) else str(error)
    return f"Tool {name} failed with: {error_details(error)}"
