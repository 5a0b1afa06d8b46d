"""The Messages interface's own tools for executors: an editor, a shell that is a session, a computer. Pure.

The provider's tools have fixed names, and their calls are ordinary `tool_use` blocks whose input is the text of the
arguments of an ordinary `ToolCall`; its kind says that the output goes back as to such a tool. A shell whose commands
each start anew isn't shown as the provider's, which the model knows as a session. A computer is shown as the
provider's only of the version that a beta of the model names, since the provider refuses it without that. Does not know
what the arguments mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentloop.exceptions import UserError
from agentloop.items import Content, ToolCall
from agentloop.model_events import ToolDefinition
from agentloop.models._codec import NOT_JSON, JsonDict, parse_json
from agentloop.models._common import output_text

EDITOR = "str_replace_based_edit_tool"
BASH = "bash"
COMPUTER = "computer"
_NAMES = {"apply_patch": EDITOR, "shell": BASH, "computer": COMPUTER}
"""The provider's names of its own tools, by the kind of ours."""
_WHAT = {"apply_patch": "editors", "shell": "shells", "computer": "computers"}
_EDITOR_TYPE = "text_editor_20250728"
_BASH_TYPE = "bash_20250124"
_COMPUTER_BETA = re.compile(r"computer-use-(\d{4})-(\d\d)-(\d\d)")


def computer_type(betas: Iterable[str]) -> str | None:
    """Return the type of the computer tool that one of *betas* turns on, the newest of several; None without one."""
    found = [f"computer_{''.join(match.groups())}" for beta in betas if (match := _COMPUTER_BETA.fullmatch(beta))]
    return max(found, default=None)


def own_tools(tools: Sequence[ToolDefinition], computer: str | None) -> dict[str, ToolDefinition]:
    """Return those of *tools* that are shown as the provider's own, by the provider's name.

    *computer* is the type of the computer tool that the model has turned on.

    Raises:
        UserError: if there are two of one kind: the provider's tool has one name.
    """
    own: dict[str, ToolDefinition] = {}
    for tool in tools:
        if not is_own(tool, computer):
            continue
        name = _NAMES[tool.kind]
        if name in own:
            raise UserError(
                f"tools: {own[name].name!r} and {tool.name!r} are both {_WHAT[tool.kind]}, of which Anthropic Messages "
                "has one; give one of them native=False."
            )
        own[name] = tool
    return own


def is_own(tool: ToolDefinition, computer: str | None) -> bool:
    """Tell whether *tool* is shown as the provider's own."""
    if tool.kind == "shell":
        return bool((tool.format or {}).get("session"))
    return tool.kind == "apply_patch" or (tool.kind == "computer" and computer is not None)


def write_tool(tool: ToolDefinition, computer: str | None) -> JsonDict:
    """Return the provider's own tool for an executor for which `is_own` holds."""
    if tool.kind == "apply_patch":
        return {"type": _EDITOR_TYPE, "name": EDITOR}
    if tool.kind == "shell":
        return {"type": _BASH_TYPE, "name": BASH}
    display = tool.format or {}
    size = {"display_width_px": display.get("width"), "display_height_px": display.get("height")}
    return {"type": computer, "name": COMPUTER, **size}


def own_name(call: ToolCall) -> str | None:
    """Return the provider's name of the own tool that *call* calls; None for any other, and another interface's."""
    given = parse_json(call.arguments or "{}")
    if call.kind not in _NAMES or given is NOT_JSON or not isinstance(given, dict):
        return None
    if call.kind == "computer":
        own = isinstance(given.get("action"), str)
    elif call.kind == "shell":
        own = isinstance(given.get("command"), str) or given.get("restart") is True
    else:
        own = "command" in given
    return _NAMES[call.kind] if own else None


def shell_text(output: Content) -> Content:
    """Return the output of a session as the provider wants it, the text of its terminal; another output as it is."""
    if not isinstance(output, str):
        return output
    try:
        results = json.loads(output)["results"]
        return "\n".join(map(_result_text, results)) if results else "The shell was restarted."
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return output_text(output)


def _result_text(result: Mapping[str, Any]) -> str:
    code, left = result.get("exit_code"), result.get("left_running") or ()
    notes = [f"(exit code {code})"] if code else []
    notes += ["(timed out)"] if result.get("timed_out") else []
    notes += [f"(still running: {', '.join(left)})"] if left else []
    said = [text.removesuffix("\n") for text in (result.get("stdout", ""), result.get("stderr", "")) if text]
    return "\n".join([*said, *notes]) or "(no output)"
