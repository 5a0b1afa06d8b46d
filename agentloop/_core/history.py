"""The part of a conversation that a model may see: no call without its output."""

from __future__ import annotations

from collections.abc import Iterable

from agentloop.items import HandoffCall, HandoffOutput, Item, Reasoning, ToolCall, ToolOutput

_CALLS = (ToolCall, HandoffCall)
_OUTPUTS = (ToolOutput, HandoffOutput)


def valid_history(items: Iterable[Item]) -> tuple[Item, ...]:
    """Return *items* without calls that have no output, and without the reasoning directly before those."""
    items = tuple(items)
    answered = {item.call_id for item in items if isinstance(item, _OUTPUTS)}
    if all(item.call_id in answered for item in items if isinstance(item, _CALLS)):
        return items
    kept: list[Item] = []
    for item in items:
        if isinstance(item, ToolCall | HandoffCall) and item.call_id not in answered:
            while kept and isinstance(kept[-1], Reasoning):
                kept.pop()
            continue
        kept.append(item)
    return tuple(kept)
