"""The starting point of a run segment: an empty log, or the log of an earlier segment.

Checks whether a stored state can be resumed with the given agents; does not run anything. What is done about each call
of the earlier segment is decided in `_core/planner.py`, and about one in doubt in `_core/call_in_doubt.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from agentloop._core.agent_graph import AgentGraph
from agentloop._core.call_identity import find_called_tool
from agentloop._core.planner import check_shown
from agentloop._core.run_fold import RunFold
from agentloop._engine.loop import StartingPoint
from agentloop._engine.runtime.live_run import ServerConversation
from agentloop.agents import Agent
from agentloop.exceptions import StateError
from agentloop.handoffs import target_of
from agentloop.records import GraphChanged, Record, TurnStarted
from agentloop.state import RunState, check_goes_on, check_graph

logger = logging.getLogger("agentloop")


def resume_from(
    state: RunState, root: Agent[Any, Any], kept: ServerConversation | None, *, sourced: bool = False
) -> StartingPoint:
    """Return the starting point of a run segment on *state*, which is not changed.

    With *sourced*, or where an agent has sources of tools, a missing tool may come from a source: planning finds out.

    Raises:
        StateError: the run is over, or *root*'s graph lacks an agent, or has another tool, that pending work needs.
    """
    graph = AgentGraph(root)
    fold = state.folded(state.fold.limits)
    check_goes_on(fold)
    agent = graph.get(fold.agent)
    for pending in _walk_pending(fold):
        _check_pending(pending, graph, fold.records, sourced=sourced)
    changed = check_graph(state, graph)
    logged = next((record.changes for record in reversed(state.records) if isinstance(record, GraphChanged)), ())
    if changed == logged:
        changed = ()
    if changed:
        logger.warning("the run goes on with other agents than it began with: %s", "; ".join(changed))
    return StartingPoint(fold, agent, kept or _restore_conversation(fold), graph, changed, state)


def _walk_pending(fold: RunFold) -> Iterator[RunFold]:
    """Yield the run of *fold* and the nested runs in its pending calls that have begun."""
    yield fold
    for call in fold.due_calls() if fold.batch_open else ():
        nested = fold.nested.get(call.call.call_id)
        if nested is not None and nested.started is not None:
            yield from _walk_pending(nested)


def _check_pending(fold: RunFold, graph: AgentGraph, records: Sequence[Record], *, sourced: bool) -> None:
    """Check that the run's agent has the tools and handoffs that its pending calls need. *records* are the whole log's.

    Raises:
        StateError: the agent is missing, or lacks one that the model was shown; names it.
    """
    agent = graph.get(fold.agent)
    if fold.batch_open and not (sourced or agent.toolsets):
        tools = {tool.lookup_key: tool for tool in agent.functions}
        for state in fold.due_calls():
            if find_called_tool(tools, state.call) is None:
                check_shown(fold, state.call)
    known = {target_of(entry).name for entry in agent.handoffs}
    for call in fold.handoffs_due:
        if call.name not in known and call.name in _find_shown_handoffs(fold, records):
            raise StateError(
                f"call {call.call_id!r} waits for handoff {call.name!r} of agent {fold.agent!r}, which the model was "
                "shown and the agent here doesn't have: continue with an agent that has it"
            )


def _find_shown_handoffs(fold: RunFold, records: Sequence[Record]) -> tuple[str, ...]:
    turns = (record for record in reversed(records) if isinstance(record, TurnStarted))
    return next((record.handoffs for record in turns if record.path == fold.path), ())


def _restore_conversation(fold: RunFold) -> ServerConversation | None:
    started = fold.started
    if started is None or not started.kept:
        return None
    previous = None if started.conversation_id is not None else fold.last_response_id or started.previous_response_id
    return ServerConversation(conversation_id=started.conversation_id, previous_response_id=previous, sent=fold.sent)
