"""The starting point of a run segment: an empty log, or the log of an earlier segment.

Checks whether a stored state can be resumed with the given agents; does not run anything. What is done about each call
of the earlier segment is decided in `_core/planner.py`, and about one in doubt in `_core/call_in_doubt.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from agentloop._core.call_identity import find_called_tool
from agentloop._core.planner import check_shown
from agentloop._core.run_fold import RunFold
from agentloop.agents import Agent
from agentloop.agents._graph import AgentGraph
from agentloop.config import RunConfig
from agentloop.exceptions import StateError, UserError
from agentloop.handoffs import target_of
from agentloop.items import ToolCall
from agentloop.records import Record, TurnStarted
from agentloop.run._starting_point import StartingPoint
from agentloop.settings import Conversation
from agentloop.state import RunState, check_goes_on, check_graph
from agentloop.tools import AgentCall, FunctionTool

logger = logging.getLogger("agentloop")


def resume_from(state: RunState, root: Agent[Any, Any], kept: Conversation | None, config: RunConfig) -> StartingPoint:
    """Return the starting point of a run segment on *state*, which is not changed. *kept*: as the options name it.

    Where *config* or an agent has sources of tools, a missing tool may come from a source: planning finds out.

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
    _check_pending(fold, graph, fold.records, config)
    changed = check_graph(state, fold, graph)
    if changed:
        logger.warning("the run goes on with other agents than it had: %s", "; ".join(changed))
    return StartingPoint(fold, agent, graph, changed)


def _check_pending(fold: RunFold, graph: AgentGraph, records: Sequence[Record], config: RunConfig) -> None:
    """Check that the run of *fold* has the tools and handoffs that its pending calls need, and so the runs in them.

    *config* is the configuration that the run will have, *records* the whole log's.

    Raises:
        StateError: the agent is missing, or lacks one that the model was shown, or has another agent in the place of
            one whose nested run has begun; names it.
    """
    agent = graph.get(fold.agent)
    tools = {tool.lookup_key: tool for tool in agent.functions}
    policy = config.context or agent.context
    sourced = bool(config.toolsets or agent.toolsets)
    for state in fold.due_calls() if fold.batch_open else ():
        tool = find_called_tool(tools, state.call)
        nested = fold.nested.get(state.call.call_id)
        if nested is not None and nested.started is not None:
            body = _check_same_agent(state.call, tool, nested.started.agent, graph)
            _check_pending(nested, graph, records, body.run_config or config)
        elif tool is None and not sourced and not (policy and policy.recall and _is_recall(state.call)):
            check_shown(fold, state.call)
    known = {target_of(entry).name for entry in agent.handoffs}
    for call in fold.handoffs_due:
        if call.name not in known and call.name in _find_shown_handoffs(fold, records):
            raise StateError(
                f"call {call.call_id!r} waits for handoff {call.name!r} of agent {fold.agent!r}, which the model was "
                "shown and the agent here doesn't have: continue with an agent that has it"
            )


def _is_recall(call: ToolCall) -> bool:
    """Tell whether *call* is one of the tool that a policy adds, which is none of the agent's own."""
    from agentloop.window.recall import recall_output  # for such a policy only

    return find_called_tool({recall_output.lookup_key: recall_output}, call) is not None


def _check_same_agent(call: ToolCall, tool: FunctionTool | None, began: str, graph: AgentGraph) -> AgentCall:
    """Return the body that continues the run nested in *call*, which the agent of key *began* began.

    Here, for the whole tree: raised where a nested run plans its own calls, the error would become an output for the
    model of the run around it, whose other calls may have run already.

    Raises:
        StateError: there is none, or it would continue under another agent.
    """
    body = tool.body if tool is not None and isinstance(tool.body, AgentCall) else None
    if body is None or graph.find(began) is not body.agent:
        now = "no agent tool" if body is None else f"one of agent {graph.key(body.agent)!r}"
        raise StateError(
            f"call {call.call_id!r} of tool {call.name!r} has begun a run of agent {began!r}; the tool is now {now}"
        )
    return body


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
