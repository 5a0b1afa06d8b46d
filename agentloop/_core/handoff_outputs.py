"""The outputs that handoff calls get, in the history of the run and in what the target is shown."""

from __future__ import annotations

from agentloop import records as r
from agentloop.items import HandoffOutput, Item

IGNORED_HANDOFF = "Multiple handoffs detected, ignoring this one."


def handoff_outputs(record: r.HandedOff) -> list[Item]:
    """Return the outputs for the handoff call that was taken and for the ones that were ignored."""
    source, target = record.source_agent, record.target_agent
    taken = HandoffOutput(record.call_id, f"Handed over to {target}.", source, target)
    return [taken, *(HandoffOutput(call_id, IGNORED_HANDOFF, source, source) for call_id in record.ignored)]
