"""The Responses interface's items for executors: calls of shells, editors and computers, and their outputs. Pure.

The content of a call's item is the text of the arguments of an ordinary `ToolCall`; its kind says by which item the
output goes back. An item becomes such a call only if the request shows a tool of its kind: the provider runs shells of
its own, too. Does not know what the arguments mean, but for the limits that an output's item has to repeat.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentloop.exceptions import UserError
from agentloop.items import CallKind, Content, Image, ToolCall, ToolOutput
from agentloop.model_events import ToolDefinition
from agentloop.models._codec import JsonDict
from agentloop.models._common import data_url, output_text

CONTENTS: dict[str, tuple[CallKind, tuple[str, ...]]] = {
    "shell_call": ("shell", ("action",)),
    "local_shell_call": ("shell", ("action",)),
    "apply_patch_call": ("apply_patch", ("operation",)),
    "computer_call": ("computer", ("action", "actions", "pending_safety_checks")),
}
"""Types of the items that call an executor, each with the kind of its tool and the fields with the call's content."""
_SPREAD = ("shell_call", "local_shell_call")
"""Types whose one field is an object that holds the arguments."""
_NO_SCREENSHOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
"""A picture of one pixel: the interface takes a screenshot as the output of a computer, also if there is none."""
TYPE = "type"
"""Key of the item's type in the provider data of a call, where the kind has items of more than one type."""


def names_by_kind(tools: Sequence[ToolDefinition]) -> dict[str, str]:
    """Return the names of the executors' tools among *tools*, by kind.

    Raises:
        UserError: if two tools have one kind: the provider's tool has no name to tell them apart.
    """
    names: dict[str, str] = {}
    for tool in tools:
        if tool.kind in ("function", "custom", "memory"):
            continue
        if tool.kind in names:
            raise UserError(
                f"tools: {names[tool.kind]!r} and {tool.name!r} are both of the kind {tool.kind!r}, of which the "
                "Responses interface has one; give one of them native=False."
            )
        names[tool.kind] = tool.name
    return names


def write_tool(tool: ToolDefinition, model_name: str) -> JsonDict:
    """Return the provider's own tool for an executor. Older models know an older form of some."""
    if tool.kind == "shell":
        if model_name.startswith("codex-mini"):
            return {"type": "local_shell"}
        described: JsonDict = {"type": "shell", "environment": {"type": "local"}}
    elif tool.kind == "computer":
        shape = tool.format or {}
        if not model_name.startswith("computer-use-preview"):
            return {"type": "computer"}
        size = {"display_width": shape.get("width"), "display_height": shape.get("height")}
        return {"type": "computer_use_preview", **size, "environment": shape.get("environment")}
    else:
        described = {"type": "apply_patch"}
    return described | ({"allowed_callers": list(tool.allowed_callers)} if tool.allowed_callers else {})


def read_arguments(data: Mapping[str, Any]) -> str:
    """Return the content of a call's item as the text of arguments."""
    kind = data["type"]
    fields = {name: data[name] for name in CONTENTS[kind][1] if data.get(name)}
    if kind in _SPREAD:
        action = fields.get("action")
        fields = dict(action) if isinstance(action, Mapping) else {"action": action}
        fields.pop("type", None)
    return json.dumps(fields, ensure_ascii=False)


def has_item(item: ToolCall) -> bool:
    """Tell whether *item* is a call of an executor that has an item here: another interface's content has none."""
    if item.kind in ("function", "custom", "approval"):
        return False
    content = _content_of(item)
    if item.kind == "shell":
        return "commands" in content or isinstance(content.get("command"), list)
    if item.kind == "apply_patch":
        return "operation" in content
    return "actions" in content or isinstance(content.get("action"), Mapping)


def write_call(item: ToolCall, call_id: object, wire: Mapping[str, Any]) -> JsonDict:
    """Return the item of a call."""
    arguments = dict(_content_of(item))
    kind = wire.get(TYPE) or next(name for name, (of, _) in CONTENTS.items() if of == item.kind)
    if kind in _SPREAD:
        arguments = {"action": {**({"type": "exec"} if kind == "local_shell_call" else {}), **arguments}}
    checks: JsonDict = {"pending_safety_checks": []} if item.kind == "computer" else {}
    return {"status": "completed", **wire, **checks, **arguments, "type": kind, "call_id": call_id}


def write_output(item: ToolOutput, call: ToolCall, call_id: object, wire: Mapping[str, Any]) -> JsonDict:
    """Return the item that answers *call*. For a computer `write_missing_screenshot` may follow it."""
    if item.kind == "computer":
        return _screenshot(item, call, call_id)
    if item.kind == "apply_patch":
        text, status = output_text(item.output), "failed" if item.is_error else "completed"
        return {"type": "apply_patch_call_output", "call_id": call_id, "status": status, "output": text}
    if wire.get(TYPE) == "local_shell_call":
        return {"type": "local_shell_call_output", "id": call_id, "output": output_text(item.output)}
    limit = _content_of(call).get("max_output_length")
    sent = {"type": "shell_call_output", "call_id": call_id, "output": list(_shell_outputs(item.output))}
    return sent | ({"max_output_length": limit} if isinstance(limit, int) else {})


def write_missing_screenshot(item: ToolOutput) -> JsonDict | None:
    """Return the message that says why the output of a computer has no screenshot; None if it has one."""
    if _image_in(item) is not None:
        return None
    return {"role": "developer", "content": f"The computer gave no screenshot: {output_text(item.output)}"}


def _content_of(call: ToolCall) -> Mapping[str, Any]:
    try:
        found = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _shell_outputs(output: Content) -> Iterator[JsonDict]:
    """Yield the results of a shell's commands. An output that holds none says why no command has run: an error."""
    text = output_text(output)
    try:
        results = json.loads(text)["results"]
        found = [_shell_output(result) for result in results]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        found = [{"stdout": "", "stderr": text, "outcome": {"type": "exit", "exit_code": 1}}]
    yield from found


def _shell_output(result: Mapping[str, Any]) -> JsonDict:
    code, left = result.get("exit_code"), result.get("left_running") or ()
    timed_out = bool(result.get("timed_out"))
    outcome: JsonDict = {"type": "timeout"} if timed_out else {"type": "exit", "exit_code": 1 if code is None else code}
    warning = f"\nstill running: {', '.join(left)}" if left else ""
    return {"stdout": result.get("stdout", ""), "stderr": result.get("stderr", "") + warning, "outcome": outcome}


def _image_in(item: ToolOutput) -> Image | None:
    parts = () if isinstance(item.output, str) else item.output
    return next((part for part in parts if isinstance(part, Image)), None)


def _screenshot(item: ToolOutput, call: ToolCall, call_id: object) -> JsonDict:
    image = _image_in(item)
    if image is None:
        shown: JsonDict = {"image_url": _NO_SCREENSHOT}
    elif image.file_id is not None:
        shown = {"file_id": image.file_id}
    else:
        shown = {"image_url": image.url if image.url is not None else data_url(image)}
    output = {"type": "computer_screenshot", **shown}
    sent: JsonDict = {"type": "computer_call_output", "call_id": call_id, "output": output}
    checks = _content_of(call).get("pending_safety_checks")
    if checks and not item.is_error:  # the call has run, so a person or the application has approved it
        sent["acknowledged_safety_checks"] = checks
    return sent
