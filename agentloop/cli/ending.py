"""How a request ended, in this process or in an earlier one, as far as it is shown."""

from __future__ import annotations

from typing import Any

import attrs

from agentloop._common.masking import MASK
from agentloop._core.agent_graph import AgentGraph
from agentloop._storage.withholding import Withheld, WithheldText
from agentloop.cli.failure import PastError
from agentloop.items import ApprovalRequest
from agentloop.results import RunResult
from agentloop.state import RunState
from agentloop.usage import Usage


@attrs.frozen(kw_only=True)
class Ending:
    """What came of a run that raised nothing. `agent` is the name of the last one at work."""

    status: str
    final_output: Any
    stop_reason: str | None
    agent: str
    usage: Usage
    waiting: tuple[ApprovalRequest, ...] = ()


def ending_of(result: RunResult[Any]) -> Ending:
    """Return how the run of *result* ended."""
    return Ending(
        status=result.status,
        final_output=result.final_output,
        stop_reason=result.stop_reason,
        agent=result.last_agent.name,
        usage=result.usage,
        waiting=result.interruptions,
    )


def past_ending(state: RunState) -> Ending | None:
    """Return how the run of *state* ended for good, or None where it can go on.

    Raises:
        PastError: if it failed for good.
    """
    fold = state.fold
    end = fold.ended
    if end is None or end.resumable:
        return None
    if end.status != "completed":
        raise PastError.of(end.error or end.status, end.details)
    output = end.final_output
    agent = AgentGraph(state.agent).find(fold.agent)
    return Ending(
        status=end.status,
        final_output=MASK if isinstance(output, Withheld | WithheldText) else output,
        stop_reason=end.stop_reason,
        agent=fold.agent if agent is None else agent.name,
        usage=fold.usage,
    )
