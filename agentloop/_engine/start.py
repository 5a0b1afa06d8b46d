"""The start of a run segment: what is opened and recorded before the run's first action, in a new and a resumed run.

Does not act on the state: the loop does, once the log has the segment's first record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agentloop._common.values import Value
from agentloop._core.next_action import Pause, next_action
from agentloop._engine.prepare_turn import check_models
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.abc.effects import NewId
from agentloop.items import Item
from agentloop.records import GraphChanged, RunResumed, RunStarted
from agentloop.settings import Conversation
from agentloop.spans import RunOpening, Trace


class RunSegment(Value, frozen=True):
    """The start of one run segment, a start or a resume."""

    given: tuple[Item, ...] | None
    """The input of a new run; None to resume at the end of the log."""
    max_turns: int | None
    timeout: float | None = None
    """In seconds, for this segment."""
    kept: Conversation | None = None
    """The conversation that a new run continues, if the provider keeps it."""
    graph_changes: tuple[str, ...] = ()
    """The differences of the agents from those the run had, as texts, where the log doesn't have them yet."""
    open_trace: Callable[[LiveRun], Awaitable[Trace]] | None = None
    """The function that begins or continues the run's trace; called before the segment's first record."""
    open_journal: Callable[[LiveRun], Awaitable[None]] | None = None
    """The function that begins or continues the run's journal; called before the segment's first record."""


async def start_segment(run: LiveRun, segment: RunSegment) -> None:
    """Open trace, sandbox and journal, then begin the run or resume it.

    Raises:
        Exception: the error of what couldn't be opened, loaded or called.
    """
    trace = None if segment.open_trace is None else await segment.open_trace(run)
    if run.state.sandbox is not None:
        from agentloop._engine.sandbox import find_sandbox

        await find_sandbox(run, run.state.sandbox)
    if segment.given is None and run.parent is None and not isinstance(next_action(run.state, None), Pause):
        await check_models(run)
    if segment.open_journal is not None:
        await segment.open_journal(run)
    if segment.given is None:
        await _resume(run, segment, trace)
    else:
        await _begin(run, segment, segment.given, trace)


async def _begin(run: LiveRun, segment: RunSegment, given: tuple[Item, ...], trace: Trace | None) -> None:
    """Append `RunStarted`, with the session's items loaded, and call the start hooks of the first agent."""
    if not run.context.run_id:
        run.context.run_id = await run.tree.effects.perform(NewId())
    key = run.tree.graph.key(run.agent)  # here, so that an agent with wrong parts fails the run
    traced: dict[str, Any] = {} if trace is None else _open_trace(run, trace)
    started = RunStarted(*run.here(), run.context.run_id, key, given, segment.max_turns, **traced)
    if run.parent is None and (owner := run.settings.config.owner) is not None:
        started = started.replace(owner=owner)
    if (kept := segment.kept) is not None:
        ids = {"conversation_id": kept.id, "previous_response_id": kept.after}
        started = started.replace(**ids, kept=True)
    try:
        if run.settings.session is not None:
            from agentloop._engine.session_writer import load_session

            own, shown = await load_session(run, run.settings.session, given)
            started = started.replace(input=own, shown=shown)
    finally:
        run.begin(started)  # also if loading the session fails
    await _ensure_sandbox(run)
    if run.find_hooks("agent_start"):
        await run.checkpoint()
        await run.call_hooks("agent_start", run.agent)


def _open_trace(run: LiveRun, trace: Trace) -> dict[str, Any]:
    """Notify instruments of the run segment; return what its first record says of *trace*, by field.

    `traceparent` is the name that an instrument has for its span in another system.
    """
    begun = (run.state.resumed, run.state.started)
    opening = RunOpening(
        trace=trace,
        run_id=run.context.run_id,
        started_at=run.tree.log.wall(),
        earlier=next((record.traceparent for record in begun if record is not None and record.traceparent), None),
        agent=run.agent,
        config=run.settings.config,
    )
    run.tree.log.tell("on_run_open", opening)
    return {"workflow": trace.workflow_name, "trace_id": trace.trace_id, "traceparent": opening.traceparent}


async def _ensure_sandbox(run: LiveRun) -> None:
    """Make the sandbox that the configuration wants, if any, unless an earlier segment or an outer run has one."""
    provider = run.settings.config.sandbox
    if provider is not None and run.sandbox is None and run.parent is None:
        from agentloop._engine.sandbox import create_sandbox

        await create_sandbox(run, provider)


async def _resume(run: LiveRun, segment: RunSegment, trace: Trace | None) -> None:
    """Resume a run whose log has begun: the log's actions are not done again."""
    state, log = run.state, run.tree.log
    if state.ended is not None and state.ended.status == "stopped":
        run.last_stopped_turn = state.turn
    traced: dict[str, Any] = {} if trace is None else _open_trace(run, trace)
    run.begin(RunResumed(*run.here(), run.tree.graph.key(run.agent), segment.max_turns, **traced))
    if segment.graph_changes:
        log.append(GraphChanged(*run.here(), segment.graph_changes, run.tree.graph.describe()))
    await _ensure_sandbox(run)
    await run.checkpoint()
    if state.turn and not state.turn_open and not state.input_added_later:
        from agentloop._engine.run_guardrails import guard_model_call, guards_missing

        if guards_missing(run):  # the model has answered already
            await guard_model_call(run, None)
