"""The services of a running call behind its `ToolContext`: progress, bounded cleanup, resources, cancellation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from agentloop._common.values import Value
from agentloop._concurrency.interrupts import uninterrupted
from agentloop._engine.calls.live_call import LiveCall
from agentloop._engine.runtime.live_run import LiveRun
from agentloop.context import ToolContext
from agentloop.events import CallProgress, CustomEvent
from agentloop.items import ToolCall
from agentloop.tools import FunctionTool


class ToolContextServices(Value, frozen=True, eq=False):
    """The services of one call (`agentloop.context.CallServices`). Held by the call's context; used by its body."""

    live: LiveCall

    @uninterrupted
    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Report progress, then let other tasks run. A checkpoint; if cancelled there, the report was made."""
        self._report(progress, total, message)
        await checkpoint()

    @uninterrupted
    def report_nowait(self, progress: float, total: float | None, message: str | None) -> None:
        """Report progress, from the loop or from the body's thread (which waits for the loop)."""
        self._on_loop(self._report, progress, total, message)

    @uninterrupted
    def emit(self, value: Any) -> None:
        """Pass *value* to the consumers and the instruments, from the loop or from a thread (which waits for it)."""
        self._on_loop(self._emit, value)

    def _on_loop(self, work: Callable[..., None], *args: Any) -> None:
        shared = self.live.run.tree.shared
        if shared.is_current():
            work(*args)
        elif self.live.phase == "body":  # else an abandoned thread, whose loop may have ended
            with suppress(anyio.RunFinishedError):  # it has ended since
                anyio.from_thread.run_sync(work, *args, token=shared.token())

    def _report(self, progress: float, total: float | None, message: str | None) -> None:
        live = self.live
        if live.phase != "body" or live.body is None:
            return  # an abandoned thread: its call has an outcome already
        limits, body = live.steps.limits, live.body
        if limits is not None and body.ends_at < math.inf:
            body.idle_since = anyio.current_time()
            body.ends_at = live.scope.deadline = limits.end(body.began, body.idle_since)
        run = live.run
        for buffer in run.tree.log.buffers():
            event = CallProgress(live.call, progress, total, message, path=run.path, turn=run.state.turn)
            buffer.signal_of_call(event)

    def _emit(self, value: Any) -> None:
        live, log = self.live, self.live.run.tree.log
        if live.phase != "body" or live.body is None:
            return  # as in `_report`
        event = CustomEvent(live.call, value, path=live.run.path, turn=live.run.state.turn)
        for buffer in log.buffers():
            buffer.signal_of_call(event)
        log.tell("on_custom_event", event, None if log.spans is None else log.spans.call_span(event.path, live.call_id))

    @contextmanager
    @uninterrupted
    def cleanup(self, seconds: float | None) -> Iterator[Any]:
        """Shield the block until the run's cleanup deadline, or for the grace if none is set; at most *seconds*."""
        live = self.live
        cleanup = live.run.cleanup
        most = cleanup.grace if cleanup.deadline is None else math.inf

        def cut() -> None:
            live.cleanup = "cut"
            live.run.cut("ctx.cleanup", live.call_id)

        with cleanup.section(seconds=min(most, math.inf if seconds is None else seconds), on_cut=cut) as scope:
            yield scope
        if live.cleanup is None:
            live.cleanup = "done"

    @uninterrupted
    async def resource(self, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> Any:
        """Return the run's one value of *factory*, entered at first use."""
        return await self.live.run.resources.get(factory)

    @uninterrupted
    def cancel_call(self, call_id: str, reason: str | None) -> bool:
        """Cancel a call of the same run; return False if it has ended or is unknown."""
        return self.live.run.cancel_call(self.live.run.path, call_id, reason, by_call=self.live.call_id)

    def search_tools(self, query: str, limit: int | None) -> list[dict[str, str]]:
        """Return the names and descriptions of the turn's deferred tools that fit *query* best, at most *limit*."""
        from agentloop.agents._tool_search import rank  # few agents search

        view = self.live.run.view
        found = rank(query, () if view is None else view.searchable, limit)
        return [{"name": tool.qualified_name, "description": tool.description} for tool in found]

    def check_cancelled(self) -> None:
        """Raise the backend's cancellation in a worker thread whose call is being cancelled."""
        anyio.from_thread.check_cancelled()


def call_context(live: LiveCall) -> ToolContext[Any]:
    """Return the context of a running call, with its services; it is made at first use, as few bodies take one."""
    if live.context is None:
        services = ToolContextServices(live)
        live.context = tool_context(live.run, live.call, live.tool, live.arguments.text, services)
    return live.context


def tool_context(
    run: LiveRun, call: ToolCall, tool: FunctionTool, text: str, services: ToolContextServices | None = None
) -> ToolContext[Any]:
    """Return the context of one call with the arguments in *text*; without *services* for one that isn't running."""
    return ToolContext.from_agent_context(
        run.context,
        call.call_id,
        tool_name=tool.name,
        tool_arguments=text,
        tool_namespace=call.namespace,
        agent=run.agent,
        run_config=run.settings.config,
        conversation_history=run.conversation,
        call=services,
        secret=tool.secret,
    )
