"""Calls in a response that this library doesn't run: hosted tools, and requests to the client.

A provider runs some tools itself; such an item is complete when it arrives. Other items request an action of the client
(a computer call, a call of a kind that is unknown here): the provider refuses the next request unless it holds their
output. Reads items only; does not know about tools or runs.
"""

from __future__ import annotations

from collections.abc import Iterable

from agentloop._common.error_text import shorten
from agentloop.items import (
    ApprovalRequest,
    AssistantMessage,
    HostedToolCall,
    Item,
    OpaqueItem,
    Reasoning,
    Refusal,
    Text,
)

_OF_THE_CLIENT = frozenset({"computer_call", "local_shell_call", "shell_call", "apply_patch_call", "custom_tool_call"})
"""Kinds that the client answers, even if an item of the kind has no id to answer it under."""
_OUTPUTS = ("_output", "_result", "_response")
_CALLS = ("_call", "_use", "_request")
_ANSWERS = ("output", "outputs", "result", "results")
"""Fields of an item that hold its own answer."""
_IDS = ("call_id", "tool_use_id", "approval_request_id")
"""Fields of an output that name the call it answers."""
_NAME_CHARS = 80


def says_nothing(item: Item) -> bool:
    """Tell whether *item* is neither an answer nor a request: reasoning, or a message without words."""
    if not isinstance(item, AssistantMessage):
        return isinstance(item, Reasoning)
    words = [one for one in item.content if isinstance(one, Refusal) or (isinstance(one, Text) and one.text.strip())]
    return not words


def is_call(item: Item) -> bool:
    """Tell whether *item* is a call that this library doesn't run."""
    if not isinstance(item, OpaqueItem):
        return isinstance(item, HostedToolCall)
    kind = _kind(item)
    return not kind.endswith(_OUTPUTS) and (kind.endswith(_CALLS) or isinstance(item.data.get("call_id"), str))


def find_unanswered(items: Iterable[Item]) -> Item | None:
    """Return the first of a response's *items* whose answer neither this library nor the provider gives, or None."""
    items = tuple(items)
    answered = {
        answered_id
        for item in items
        if isinstance(item, OpaqueItem | HostedToolCall) and _kind(item).endswith(_OUTPUTS)
        for answered_id in (_call_id(item), *map(item.data.get, _IDS))
        if isinstance(answered_id, str)
    }
    for item in items:
        if isinstance(item, ApprovalRequest):
            return item
        if isinstance(item, OpaqueItem | HostedToolCall) and _needs_answer(item) and _id(item) not in answered:
            return item
    return None


def describe_item(item: Item) -> str:
    """Return the kind of *item* and its id, in words."""
    if not isinstance(item, OpaqueItem | HostedToolCall):
        return type(item).__name__
    found = _id(item)
    return repr(shorten(_kind(item), _NAME_CHARS)) + (f" with id {shorten(found, _NAME_CHARS)!r}" if found else "")


def _kind(item: OpaqueItem | HostedToolCall) -> str:
    kind = item.kind if isinstance(item, HostedToolCall) else item.data.get("type")
    return kind if isinstance(kind, str) else ""


def _id(item: OpaqueItem | HostedToolCall) -> str | None:
    """Return the id that an output has to name: of two ids, the call's, and not the item's own."""
    own = item.id if isinstance(item, HostedToolCall) else None
    given = _call_id(item) or item.data.get("call_id") or item.data.get("id") or own
    return given if isinstance(given, str) else None


def _call_id(item: OpaqueItem | HostedToolCall) -> str | None:
    return item.call_id if isinstance(item, HostedToolCall) else None


def _needs_answer(item: OpaqueItem | HostedToolCall) -> bool:
    kind, data = _kind(item), item.data
    if kind.endswith(_OUTPUTS) or any(data.get(key) is not None for key in _ANSWERS):
        return False
    if isinstance(item, HostedToolCall) and item.output is not None:
        return False
    if kind in _OF_THE_CLIENT or kind.endswith("_request") or isinstance(data.get("call_id"), str):
        return True
    if data.get("execution") == "client":  # the provider's tool search, run where the tools are
        return True
    # A provider that runs a call itself says that it is done, and gives no id to answer it under.
    return isinstance(item, OpaqueItem) and kind.endswith(_CALLS) and data.get("status") != "completed"
