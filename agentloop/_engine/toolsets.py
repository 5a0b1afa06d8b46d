"""The question to the sources of tools: once per turn, all at once, through the door of effects.

Records what each has given, in short where that hasn't changed. Does not know what becomes of the tools:
`prepare_turn` puts them beside the agent's own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from agentloop._common.error_text import message_of
from agentloop._concurrency.backend import checkpoint_if_cancelled
from agentloop._concurrency.beside import beside
from agentloop._concurrency.interrupts import uninterrupted
from agentloop._engine.runtime.callbacks import call_user
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.agents._sourced_tools import SourcedTools
from agentloop.exceptions import AgentLoopError, ToolSourceError
from agentloop.records import CallbackReturned
from agentloop.tools import ToolSource, source_name


async def ask_toolsets(run: LiveRun) -> list[SourcedTools]:
    """Return what each source of the agent at work, and then of the run's configuration, gives for this turn.

    Raises:
        ToolSourceError: a source raised, or gave no tools; names it. Another run segment may get past it.
        AgentLoopError: a source raised it.
    """
    await checkpoint_if_cancelled()  # the application isn't asked any more in a run that has been cancelled
    sources = (*run.agent.toolsets, *run.settings.config.toolsets)
    try:
        questions = [partial(_ask, run, index, source) for index, source in enumerate(sources)]
        return await beside(questions, "agentloop toolset")
    except ToolSourceError as error:
        run.stopped_by = error
        raise


@uninterrupted
async def _ask(run: LiveRun, index: int, source: ToolSource) -> SourcedTools:
    """Ask one source, and record its answer: None where it is the last one again."""
    place = f"{run.agent_key}:{index}"
    earlier = run.tree.sourced.get((run.path, place))

    async def ask() -> SourcedTools:
        name = source_name(source)
        try:
            given: Any = await call_user(source.tools, run.context, run.agent)
        except AgentLoopError:
            raise
        except Exception as error:
            text = f"tool source {name!r} failed: {type(error).__name__}: {message_of(error)}"
            raise ToolSourceError(text, source=name) from error
        return SourcedTools.of(given, name, earlier, run.agent.functions)

    key = f"{run.state.turn}:{place}"
    found: SourcedTools = await run.call_callback("toolset", key, ask)
    same = earlier is not None and (found is earlier or found.described == earlier.described)
    run.tree.log.append(CallbackReturned(*run.here(), "toolset", key, None if same else found.described))
    run.tree.sourced = run.tree.sourced or {}
    run.tree.sourced[run.path, place] = found
    return found
