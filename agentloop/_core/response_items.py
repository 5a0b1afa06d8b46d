"""The items of a response without repeated calls, and the outputs of its handoff calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentloop import records as r
from agentloop._core.call_identity import same_invocation
from agentloop._core.call_state import CallState
from agentloop.items import HandoffCall, HandoffOutput, Item, Reasoning, ToolCall
from agentloop.settings import JsonLimits

IGNORED_HANDOFF = "Multiple handoffs detected, ignoring this one."
CALLS = (ToolCall, HandoffCall)


def drop_repeats(
    items: Iterable[Item], calls: Mapping[str, CallState], handoffs: Mapping[str, HandoffCall], limits: JsonLimits
) -> tuple[list[Item], ToolCall | HandoffCall | None]:
    """Return a response's items without repeated calls, and the first call that contradicts an earlier one.

    *calls* and *handoffs* are those of earlier responses, by id.

    A repeated call is dropped together with the reasoning directly before it. A contradicting call (same id, other tool
    or arguments) is dropped too: planning refuses the whole response.
    """
    kept: list[Item] = []
    fresh: dict[str, ToolCall | HandoffCall] = {}
    conflict: ToolCall | HandoffCall | None = None
    for item in items:
        if not isinstance(item, CALLS):
            kept.append(item)
            continue
        call_id = item.call_id
        known = calls.get(call_id)
        earlier = fresh.get(call_id) or (handoffs.get(call_id) if known is None else known.call)
        if earlier is None:
            kept.append(item)
            if call_id:
                fresh[call_id] = item
            continue
        if conflict is None and not same_invocation(earlier, item, limits):
            conflict = item
        while kept and isinstance(kept[-1], Reasoning):
            kept.pop()
    return kept, conflict


def handoff_outputs(record: r.HandedOff) -> list[Item]:
    """Return the outputs for the handoff call that was taken and for the ones that were ignored."""
    source, target = record.source_agent, record.target_agent
    taken = HandoffOutput(record.call_id, f"Handed over to {target}.", source, target)
    return [taken, *(HandoffOutput(call_id, IGNORED_HANDOFF, source, source) for call_id in record.ignored)]
