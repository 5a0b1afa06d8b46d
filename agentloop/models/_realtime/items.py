"""The items of a realtime session, text only: ours to its JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentloop.exceptions import UserError
from agentloop.items import (
    AssistantMessage,
    HandoffCall,
    HandoffOutput,
    Item,
    Part,
    Reasoning,
    Refusal,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.models._codec import (
    JsonDict,
)
from agentloop.models._common import (
    argument_text,
    earlier_name,
    fit_call_id,
    output_text,
)

INTERFACE = "a realtime session"
_MOST_ID = 32
"""Characters of an id that a session takes."""
WIRE_ID = "realtime_call_id"
"""Key in a call's `provider_data` of the server's own id, if the run uses another id for the call."""


def encode_item(item: Item, wire_ids: dict[str, str]) -> JsonDict:
    """Return *item* as an item of the conversation, without an id.

    *wire_ids* maps the run's id of a call to the server's, where the two differ; calls are added to it.

    Raises:
        UserError: if a realtime session has no such item.
    """
    match item:
        case SystemMessage():
            return _message("system", "input_text", item.content)
        case UserMessage():
            return _message("user", "input_text", item.content)
        case AssistantMessage():
            return _message("assistant", "output_text", item.content)
        case HandoffCall() | ToolCall(kind="function" | "shell" | "apply_patch" | "computer"):
            given = item.provider_data.get(WIRE_ID) if isinstance(item.provider_data, Mapping) else None
            call_id = given if isinstance(given, str) else fit_call_id(item.call_id, _MOST_ID)
            if call_id != item.call_id:
                wire_ids[item.call_id] = call_id
            name, arguments = earlier_name(item.name), argument_text(item.arguments)
            return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
        case HandoffOutput() | ToolOutput(kind="function" | "shell" | "apply_patch" | "computer"):
            return encode_output(wire_ids.get(item.call_id, item.call_id), output_text(item.output))
        case _:
            raise UserError(f"items: {type(item).__name__} has no form in {INTERFACE}.")


def encode_output(call_id: str, text: str) -> JsonDict:
    """Return the output of the call that the server knows as *call_id*."""
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def _message(role: str, kind: str, parts: Iterable[Part]) -> JsonDict:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": _text(part)} for part in parts]}


def _text(part: Part) -> str:
    match part:
        case Text(text):
            return text
        case Refusal(refusal):
            return refusal
        case _:
            raise UserError(f"items: {type(part).__name__} has no form in {INTERFACE}, which is text only.")


def has_form(item: Item) -> bool:
    """Tell whether *item* is sent at all: reasoning of other interfaces isn't."""
    return not isinstance(item, Reasoning)
