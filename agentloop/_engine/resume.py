"""The starting point of a run segment: an empty log, or the log of an earlier segment.

Checks whether a stored state can be resumed with the given agents; does not run anything. What is done about each call
of the earlier segment is decided in `_core/planner.py`, and about one in doubt in `_core/call_in_doubt.py`.
"""

from __future__ import annotations

import logging
from typing import Any

from agentloop._core.agent_graph import AgentGraph
from agentloop._core.run_fold import RunFold
from agentloop._engine.loop import StartingPoint
from agentloop._engine.runtime.live_run import ServerConversation
from agentloop.agents import Agent
from agentloop.records import GraphChanged
from agentloop.state import RunState, check_goes_on, check_graph

logger = logging.getLogger("agentloop")


def resume_from(state: RunState, root: Agent[Any, Any], kept: ServerConversation | None) -> StartingPoint:
    """Return the starting point of a run segment on *state*, which is not changed.

    Raises:
        StateError: the run is over, or *root*'s graph lacks an agent, or has another tool, that pending work needs.
    """
    graph = AgentGraph(root)
    fold = state.folded(state.fold.limits)
    check_goes_on(fold)
    agent = graph.get(fold.agent)
    changed = check_graph(state, graph)
    logged = next((record.changes for record in reversed(state.records) if isinstance(record, GraphChanged)), ())
    if changed == logged:
        changed = ()
    if changed:
        logger.warning("the run goes on with other agents than it began with: %s", "; ".join(changed))
    return StartingPoint(fold, agent, kept or _restore_conversation(fold), graph, changed, state)


def _restore_conversation(fold: RunFold) -> ServerConversation | None:
    started = fold.started
    if started is None or not started.kept:
        return None
    previous = None if started.conversation_id is not None else fold.last_response_id or started.previous_response_id
    return ServerConversation(conversation_id=started.conversation_id, previous_response_id=previous, sent=fold.sent)
