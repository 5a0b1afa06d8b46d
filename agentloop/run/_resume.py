"""The starting point of a run segment: an empty log, or the log of an earlier segment.

Checks whether a stored state can be resumed with the given agents; does not run anything. What is done about each call
of the earlier segment is decided in `_core/planner.py`, and about one in doubt in `_core/call_in_doubt.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from agentloop._core.call_identity import find_called_tool
from agentloop._core.planner import check_shown
from agentloop._core.run_fold import RunFold
from agentloop._engine.start import StartingPoint
from agentloop.agents import Agent
from agentloop.agents._graph import AgentGraph
from agentloop.exceptions import StateError, UserError
from agentloop.handoffs import target_of
from agentloop.items import ToolCall
from agentloop.records import Record, TurnStarted
from agentloop.settings import Conversation
from agentloop.state import RunState, check_goes_on, check_graph
from agentloop.tools import AgentCall, FunctionTool

logger = logging.getLogger("agentloop")


def resume_from(
    state: RunState, root: Agent[Any, Any], kept: Conversation | None, *, sourced: bool = False
) -> StartingPoint:
    """Return the starting point of a run segment on *state*, which is not changed. *kept*: as the options name it.

    With *sourced*, or where an agent has sources of tools, a missing tool may come from a source: planning finds out.

    Raises:
        UserError: *kept* is another conversation than the log's.
        StateError: the run is over, or *root*'s graph lacks an agent, or has another agent or tool, that pending work
            needs, at any depth.
    """
    graph = AgentGraph(root)
    fold = state._give_fold()
    check_goes_on(fold)
    if kept is not None:
        check_kept(fold, kept)
    agent = graph.get(fold.agent)
    for pending in _walk_pending(fold):
        _check_pending(pending, graph, fold.records, sourced=sourced)
    changed = check_graph(state, fold, graph)
    if changed:
        logger.warning("the run goes on with other agents than it had: %s", "; ".join(changed))
    return StartingPoint(fold, agent, graph, changed, state)


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
        StateError: the agent is missing, or lacks one that the model was shown, or has another agent in the place of
            one whose nested run has begun; names it.
    """
    agent = graph.get(fold.agent)
    tools = {tool.lookup_key: tool for tool in agent.functions}
    for state in fold.due_calls() if fold.batch_open else ():
        tool = find_called_tool(tools, state.call)
        nested = fold.nested.get(state.call.call_id)
        if nested is not None and nested.started is not None:
            _check_same_agent(state.call, tool, nested.started.agent, graph)
        elif tool is None and not (sourced or agent.toolsets):
            check_shown(fold, state.call)
    known = {target_of(entry).name for entry in agent.handoffs}
    for call in fold.handoffs_due:
        if call.name not in known and call.name in _find_shown_handoffs(fold, records):
            raise StateError(
                f"call {call.call_id!r} waits for handoff {call.name!r} of agent {fold.agent!r}, which the model was "
                "shown and the agent here doesn't have: continue with an agent that has it"
            )


def _check_same_agent(call: ToolCall, tool: FunctionTool | None, began: str, graph: AgentGraph) -> None:
    """Check that the run nested in *call*, which the agent of key *began* began, would continue under that agent.

    Here, for the whole tree: raised where a nested run plans its own calls, the error would become an output for the
    model of the run around it, whose other calls may have run already.

    Raises:
        StateError: it wouldn't.
    """
    found = tool.body.agent if tool is not None and isinstance(tool.body, AgentCall) else None
    if found is None or graph.find(began) is not found:
        now = "no agent tool" if found is None else f"one of agent {graph.key(found)!r}"
        raise StateError(
            f"call {call.call_id!r} of tool {call.name!r} has begun a run of agent {began!r}; the tool is now {now}"
        )


def _find_shown_handoffs(fold: RunFold, records: Sequence[Record]) -> tuple[str, ...]:
    turns = (record for record in reversed(records) if isinstance(record, TurnStarted))
    return next((record.handoffs for record in turns if record.path == fold.path), ())


def check_kept(fold: RunFold, kept: Conversation) -> None:
    """Check that *kept*, given for a run that has begun, is the conversation that its log says.

    The log also says what the provider has acknowledged there, and this holds: nothing of it is sent again.

    Raises:
        UserError: it is another one. The log doesn't say what of the run another conversation has.
    """
    started = fold.started
    assert started is not None  # `check_goes_on`, or the run has completed
    known = (None, started.previous_response_id, fold.continued_response_id)
    if started.kept and kept.id == started.conversation_id and kept.after in known:
        return
    begun = None
    if started.kept:
        ident, after = started.conversation_id, fold.continued_response_id
        begun = Conversation(id=ident) if ident is not None else Conversation(after=after, auto=True)
    raise UserError(
        f"run {fold.run_id} continues {_describe(begun)}, and the options continue {_describe(kept)}: leave out "
        "`conversation`, or give the one of the run's first call"
    )


def _describe(kept: Conversation | None) -> str:
    if kept is None:
        return "no conversation that the provider keeps"
    if kept.id is not None:
        return f"conversation {kept.id!r}"
    return "each response in turn" if kept.after is None else f"response {kept.after!r}"
