"""Agent tools: a run nested in a call, on the same log, with a path one call id longer.

The nested run takes the same loop as its outer run; this module only makes it, and converts its end to a body result.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from agentloop._common.error_text import error_summary, is_fatal
from agentloop._concurrency.backend import Captured, cancelled_types, capture
from agentloop._concurrency.beside import beside
from agentloop._concurrency.interrupts import uninterrupted
from agentloop._core.plan import Arguments
from agentloop._core.run_fold import RunFold
from agentloop._core.secret_marks import mark_items
from agentloop._engine.loop import execute
from agentloop._engine.run_result import result_of
from agentloop._engine.runtime.body_result import Paused
from agentloop._engine.runtime.callbacks import call_user, log_error
from agentloop._engine.runtime.event_buffer import EventBuffer
from agentloop._engine.runtime.live_run import LiveRun, RunSettings
from agentloop._engine.runtime.resources import Resources
from agentloop._engine.runtime.session_progress import SessionProgress
from agentloop._engine.start import RunSegment
from agentloop._storage.incoming import check_items
from agentloop.config import RunConfig
from agentloop.config.budget import Budget
from agentloop.config.conditions import as_condition
from agentloop.context import Callback
from agentloop.exceptions import EarlierFailure, StateError, UserError
from agentloop.items import Item, ToolCall, to_items
from agentloop.tools import AgentCall

logger = logging.getLogger("agentloop")

MOST_UNREAD = 1_024
"""The number of events that wait for an agent tool's `on_stream`, beyond which the nested run waits."""


@uninterrupted
async def run_nested(outer: LiveRun, call: ToolCall, arguments: Arguments, body: AgentCall) -> Any:
    """Run the agent of *body*, for *call* of *outer*, on the call's input; return its final output, or `Paused`.

    Cancellation: the nested run ends with its call, as a run ends with its caller.

    Raises:
        UserError: if agent tools nest deeper than `max_depth`.
        AgentLoopError: the error that ends the nested run.
    """
    if len(outer.path) + 1 > outer.settings.config.max_depth:
        raise UserError(f"agent tools nest deeper than max_depth={outer.settings.config.max_depth}")
    config: RunConfig = body.run_config or outer.settings.config
    run = _make_nested_run(outer, call, body, config)
    run.context.tool_input = None if body.typed is None else arguments.value
    run.context._secret_input = bool(call.secret)
    ended = run.state.ended
    if (failure := _find_earlier_failure(run.state)) is not None:
        raise failure
    if (ended is None or ended.resumable) and await _pauses(run, outer, call, arguments, body):
        return Paused()
    if (extract := body.custom_output_extractor) is not None:
        return await run.call_callback("custom_output_extractor", call.call_id, extract, result_of(run))
    end = run.state.ended
    assert end is not None
    return end.final_output


async def _pauses(run: LiveRun, outer: LiveRun, call: ToolCall, arguments: Arguments, body: AgentCall) -> bool:
    """Run the next segment of *run*, which is nested in *call* of *outer*; tell whether it leaves the call open."""
    resumed = run.state.started is not None
    segment = RunSegment(
        None if resumed else await _make_input(run, call, arguments, body),
        run.state.max_turns if resumed else body.max_turns,
        body.run_config.timeout if body.run_config is not None else None,
        body.conversation,
    )
    work = partial(execute, run, segment)
    try:
        over = await (work() if body.on_stream is None else _run_streamed(run, body.on_stream, work))
    except StateError as error:
        if run.state.ended is None or not run.state.ended.resumable:
            raise
        # The definitions here don't fit, which isn't the model's fault: the call stays open, and once the others of its
        # batch have settled the outer run stops as the nested one did.
        outer.stopped_by = error
        return True
    return bool(over.status == "interrupted")


def _find_earlier_failure(state: RunFold) -> EarlierFailure | None:
    """Return the error that an earlier run segment ended by, or must end by; it ended before the call had settled."""
    ended, error = state.ended, state.unreported_error
    if ended is not None and not ended.resumable and ended.status == "failed":
        error = ended.error or "the run failed"
    if error is None:
        return None
    bodies = (call.body for call in state.calls.values() if call.body is not None)
    return EarlierFailure(error, fatal=any(body.fatal and body.error == error for body in bodies))


async def _make_input(run: LiveRun, call: ToolCall, arguments: Arguments, body: AgentCall) -> tuple[Item, ...]:
    """Return the nested run's input. Made from secret arguments it is secret, too, with any input builder."""
    given: Any = arguments.value
    if body.typed is None:
        assert arguments.bound is not None
        given = arguments.bound.values["input"]
    if body.input_builder is not None:
        given = await run.call_callback("input_builder", call.call_id, body.input_builder, given)
    elif body.typed is not None:
        given = body.typed.using(run.settings.config.converter).dump(given)
        if body.shows_schema:
            given += f"\n\nThe input fits this JSON schema:\n{json.dumps(body.typed.schema.schema, ensure_ascii=False)}"
    items = to_items(given)
    if not isinstance(given, str):
        items = check_items("input_builder", items)
    return mark_items(items) if call.secret else items


async def _run_streamed(run: LiveRun, on_stream: Callback, work: Callable[[], Awaitable[Any]]) -> Any:
    """Do *work* and pass every event of the nested run to *on_stream*; all of them before this returns or raises.

    Cancellation: unread events are dropped. While *on_stream* is `MOST_UNREAD` events behind, the run waits: for the
    model's next event, and before the next turn.
    """
    log = run.tree.log
    buffer = EventBuffer(log.state, MOST_UNREAD, run.agent_at, run.path)
    log.listen(buffer)
    ended = Captured()

    async def do_work() -> None:
        nonlocal ended
        try:
            ended = await capture(work)  # an error is raised below, once every event is delivered
        except cancelled_types():
            buffer.discard()
            raise
        finally:
            log.forget(buffer)
            buffer.close()

    try:
        await beside([partial(_deliver_events, run, buffer, on_stream)], "agentloop on_stream", here=do_work)
    except BaseException:  # noqa: ASYNC103 - the nested run's own fatal error, raised below, outranks it
        if ended.error is None or not is_fatal(ended.error):
            raise
    if ended.error is not None:
        raise ended.error
    return ended.value


@uninterrupted
async def _deliver_events(run: LiveRun, buffer: EventBuffer, on_stream: Callback) -> None:
    """Pass every event to *on_stream*; its Exceptions are logged, any other BaseException ends the nested run."""
    while (event := await buffer.take()) is not None:
        captured = await capture(partial(call_user, on_stream, event))
        error = captured.error
        if error is None:
            continue
        if not isinstance(error, Exception):
            raise error
        own_cancel = captured.own_cancel
        run.redact_error(own_cancel or error)
        if own_cancel is not None:
            logger.warning("on_stream cancelled itself: %s", error_summary(own_cancel))
        else:
            log_error(error, "on_stream failed for %s", type(event).__name__, redact=run.settings.redacts_errors)


def _make_budget(config: RunConfig, outer: LiveRun, state: RunFold) -> Budget | None:
    """Return the budget of a nested run: one with its own limits also takes from the outer run's."""
    depth = len(state.path)
    begun = outer.tree.log.state.records if state.started is not None else ()
    own = (each for each in begun if each.path[:depth] == state.path)
    return Budget.for_run(config.limits, own, outer.settings.budget, priced=config.is_priced)


def _make_nested_run(outer: LiveRun, call: ToolCall, body: AgentCall, config: RunConfig) -> LiveRun:
    """Return the nested run of *call*: it shares the log and the effects of *outer*, and has its own state."""
    state = outer.state.nested.get(call.call_id) or outer.state.nest(call.call_id, config.json_limits)
    agent = body.agent if state.started is None else outer.tree.graph.get(state.agent)
    # An inherited condition is the outer run's: it is checked between that run's turns.
    stop_when = config.stop_when if body.run_config is not None else None
    settings = RunSettings(
        config=config,
        around=outer.settings,
        hooks=body.hooks,
        session=SessionProgress.of(body.session, state) if body.session is not None else None,
        budget=_make_budget(config, outer, state) if body.run_config is not None else outer.settings.budget,
        stop_when=as_condition(stop_when) if stop_when is not None else None,
        redacts_errors=outer.redacts_errors_of(call),
    )
    return outer.make_nested(state, settings, agent, Resources(outer.resources.host))
