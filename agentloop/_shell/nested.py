"""Agent tools: a run nested in a call, on the same log, one path further down."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from agentloop._core.state import RunFold
from agentloop._shell.asking import ask
from agentloop._shell.cleanup import Cleanup
from agentloop._shell.drive import Entry, execute
from agentloop._shell.endings import Paused
from agentloop._shell.keep import Keeper
from agentloop._shell.live import LiveRun
from agentloop._shell.native import cancelled_types, cancelling, taken_back
from agentloop._shell.outcome_of_run import result_of
from agentloop._shell.resources import Resources
from agentloop._shell.schedule import LiveCall
from agentloop._shell.stream import EventBuffer
from agentloop._shell.threads import Threads
from agentloop.conditions import as_condition
from agentloop.config import RunConfig
from agentloop.context import Callback, RunContext
from agentloop.exceptions import EarlierFailure, UserError
from agentloop.items import Item, to_items
from agentloop.tools import AgentCall

logger = logging.getLogger("agentloop")


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
    config: RunConfig = body.run_config or outer.config
    run = _nested(live, body, config)
    run.context.tool_input = None if body.typed is None else live.arguments.value
    ended = run.state.ended
    if (failure := run.state.broken_by) is not None:
        raise EarlierFailure(failure)
    if ended is not None and not ended.resumable:
        # It came to its end in an earlier entry of the run, which ended before the call had settled.
        if ended.status == "failed":
            raise EarlierFailure(ended.error or "the run failed")
    else:
        resumed = run.state.started is not None
        entry = Entry(
            None if resumed else await _input(run, live, body),
            run.state.max_turns if resumed else body.max_turns,
            body.run_config.timeout if body.run_config is not None else None,
        )
        work = partial(execute, run, entry)
        over = await (work() if body.on_stream is None else _streamed(run, body.on_stream, work))
        if over.status == "interrupted":
            return Paused()
    if body.custom_output_extractor is not None:
        extract = body.custom_output_extractor
        return await run.question(
            "custom_output_extractor", live.call_id, lambda: ask(extract, result_of(run)), told=False
        )
    end = run.state.ended
    assert end is not None
    return end.final_output


async def _input(run: LiveRun, live: LiveCall, body: AgentCall) -> tuple[Item, ...]:
    """Return the nested run's input."""
    arguments = live.arguments
    if body.typed is None:
        assert arguments.bound is not None
        return to_items(arguments.bound.values["input"])
    if body.input_builder is None:
        return to_items(body.typed.dump(arguments.value))
    build = body.input_builder
    built = await run.question("input_builder", live.call_id, lambda: ask(build, arguments.value), told=False)
    return to_items(built)


async def _streamed(run: LiveRun, on_stream: Callback, work: Callable[[], Awaitable[Any]]) -> Any:
    """Do *work* and hand every event of the nested run to *on_stream*; all of them before this returns or raises."""
    log = run.log
    buffer = EventBuffer(
        log.state, None, lambda path: run.children[path].agent if path in run.children else None, run.path
    )
    log.listeners.append(buffer)
    output: Any = None
    failure: BaseException | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(_hand_on, buffer, on_stream)
        try:
            output = await work()
        except cancelled_types():
            buffer.discard()
            raise
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: ASYNC103 - raised again below, outside of the group
            failure = error
        finally:
            log.listeners.remove(buffer)
            buffer.close()
    await checkpoint_if_cancelled()
    if failure is not None:
        raise failure
    return output


async def _hand_on(buffer: EventBuffer, on_stream: Callback) -> None:
    while (event := await buffer.take()) is not None:
        count = cancelling()
        try:
            await ask(on_stream, event)
        except cancelled_types() as error:
            if not taken_back(count):
                raise
            logger.warning("on_stream cancelled itself: %r", error)
        except Exception:
            logger.warning("on_stream failed for %s", type(event).__name__, exc_info=True)


def _nested(live: LiveCall, body: AgentCall, config: RunConfig) -> LiveRun:
    outer, call_id = live.run, live.call_id
    state = outer.state.nested.get(call_id)
    if state is None:
        state = outer.state.nested[call_id] = RunFold((*outer.path, call_id), limits=config.json_limits)
    agent = body.agent if state.started is None else outer.graph.get(state.agent)
    threads = outer.threads
    if config is not outer.config:
        threads = Threads(config.tool_execution.max_threads, outer.threads)
    # An inherited condition is the outer run's: it is looked at between that run's turns.
    stop_when = config.stop_when if body.run_config is not None else None
    run = LiveRun(
        agent=agent,
        graph=outer.graph,
        config=config,
        state=state,
        log=outer.log,
        context=RunContext(context=outer.context.context, run_id=f"{outer.context.run_id}/{call_id}", run=outer),
        effects=outer.effects,
        hooks=None,
        keeper=Keeper.of(body.session, state) if body.session is not None else None,
        cleanup=Cleanup(config.tool_execution.cleanup_grace, outer.cleanup),
        shared=outer.shared,
        threads=threads,
        resources=Resources(outer.resources.spawn),
        budget=outer.budget,
        stop_when=as_condition(stop_when) if stop_when is not None else None,
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
