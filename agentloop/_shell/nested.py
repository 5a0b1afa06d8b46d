"""Agent tools: a run nested in a call, on the same log, one path further down."""

from __future__ import annotations

from typing import Any

from agentloop._core.state import RunState
from agentloop._shell.asking import ask
from agentloop._shell.cleanup import Cleanup
from agentloop._shell.drive import execute
from agentloop._shell.live import LiveRun
from agentloop._shell.outcome_of_run import result_of
from agentloop._shell.resources import Resources
from agentloop._shell.schedule import LiveCall
from agentloop._shell.threads import Threads
from agentloop.config import RunConfig
from agentloop.context import RunContext
from agentloop.exceptions import UserError
from agentloop.items import to_items
from agentloop.tools import AgentCall


async def run_agent_tool(live: LiveCall, body: AgentCall) -> Any:
    """Run the agent of *body* on the call's input and return its final output.

    Cancellation: the nested run ends with its call, as a run ends with its caller.

    Raises:
        UserError: if agent tools nest deeper than `max_depth`.
        AgentLoopError: what ends the nested run.
    """
    outer = live.run
    if outer.depth + 1 > outer.config.max_depth:
        raise UserError(f"agent tools nest deeper than max_depth={outer.config.max_depth}")
    bound = live.arguments.bound
    assert bound is not None
    config: RunConfig = body.run_config or outer.config
    run = _nested(live, body, config)
    timeout = body.run_config.timeout if body.run_config is not None else None
    output = await execute(run, to_items(bound.values["input"]), body.max_turns, timeout)
    if body.custom_output_extractor is not None:
        return await ask(body.custom_output_extractor, result_of(run))
    return output


def _nested(live: LiveCall, body: AgentCall, config: RunConfig) -> LiveRun:
    outer, call_id = live.run, live.call_id
    state = RunState((*outer.path, call_id), limits=config.json_limits)
    outer.state.nested[call_id] = state
    threads = outer.threads
    if config is not outer.config:
        threads = Threads(config.tool_execution.max_threads, outer.threads)
    run = LiveRun(
        agent=body.agent,
        config=config,
        state=state,
        log=outer.log,
        context=RunContext(context=outer.context.context, run_id=f"{outer.context.run_id}/{call_id}", run=outer),
        effects=outer.effects,
        hooks=None,
        cleanup=Cleanup(config.tool_execution.cleanup_grace, outer.cleanup),
        shared=outer.shared,
        threads=threads,
        resources=Resources(outer.resources.spawn),
        spawn_context=outer.spawn_context,
        resolve_model=outer.resolve_model,
        nest=outer.nest,
        parent=outer,
        calls=outer.calls,
        cancel_requests=outer.cancel_requests,
        children=outer.children,
    )
    run.context._run = run
    outer.children[run.path] = run
    return run
