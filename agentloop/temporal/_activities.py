"""The two activities of a worker: one model call, and one call of a tool's body.

Errors of models and bodies are results, not failures of the activity: the run decides about them, as it would in one
process. An activity fails only if its worker is lost, or if its input doesn't fit this worker's agents.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
from temporalio import activity
from temporalio.exceptions import ApplicationError

from agentloop._core.call_identity import find_tool
from agentloop._storage.model_codec import model_error_to_json, model_event_to_json
from agentloop.abc import Model
from agentloop.agents import Agent
from agentloop.context import ToolContext
from agentloop.exceptions import AgentLoopError, ModelBehaviorError, UserError
from agentloop.model_events import ItemDone, ResponseDone, TextDelta
from agentloop.temporal._live import ShownText, progress_to_json
from agentloop.temporal._options import HEARTBEAT_SECONDS, AgentSetup, find_setup
from agentloop.temporal._payloads import error_to_json, request_from_json, value_to_json
from agentloop.tools import FunctionTool

CALL_MODEL = "agentloop.call_model"
CALL_TOOL = "agentloop.call_tool"


@activity.defn(name=CALL_MODEL)
async def call_model(asked: dict[str, Any]) -> dict[str, Any]:
    """Ask the model for one response. Returns `{"done": event}` or `{"error": error}`."""
    setup, agent = _find_agent(asked)
    async with _heartbeats() as beats, AsyncExitStack() as stack:
        try:
            model = await _open_model(setup, agent, stack)
            return {"done": model_event_to_json(await _read_response(model, asked, setup, agent, beats))}
        except Exception as error:
            return {"error": model_error_to_json(error)}
    raise AssertionError("the block above returns")  # pragma: no cover


async def _open_model(setup: AgentSetup, agent: Agent[Any, Any], stack: AsyncExitStack) -> Model:
    given = agent.model if setup.config.model is None else setup.config.model
    if isinstance(given, str) and setup.config.model_provider is not None:
        given = setup.config.model_provider.get_model(given)
    if isinstance(given, str):
        assert setup.providers is not None  # set while a worker runs
        return await setup.providers.open(given)
    assert given is not None  # the workflow has found a model
    if not given.is_open:
        await stack.enter_async_context(given)
    return given


async def _read_response(
    model: Model, asked: dict[str, Any], setup: AgentSetup, agent: Agent[Any, Any], beats: _Beats
) -> ResponseDone:
    done: ResponseDone | None = None
    items = []
    shown = ShownText(asked["path"], asked["turn"], activity.info().attempt)
    async with model.stream(request_from_json(asked, setup.config, agent, model)) as events:
        async for event in events:
            if done is not None:
                raise ModelBehaviorError(f"The model sent {type(event).__name__} after its response was done")
            if isinstance(event, ResponseDone):
                done = event
            elif isinstance(event, ItemDone):
                items.append(event.item)
            elif isinstance(event, TextDelta):
                shown.add(event.text)
                beats.details = (shown.to_json(),)
    if done is None:
        raise ModelBehaviorError("The model's response ended without being done")
    return done if done.items else done.replace(items=tuple(items))


@activity.defn(name=CALL_TOOL)
async def call_tool(asked: dict[str, Any]) -> dict[str, Any]:
    """Call a tool's body once. Returns `{"value": …}` or `{"error": …}`.

    Cancellation: that of the body; the activity ends when the body has ended.
    """
    setup, agent = _find_agent(asked)
    tool = _find_tool(agent, asked)
    async with _heartbeats() as beats, AsyncExitStack() as resources:
        context: ToolContext[Any] = ToolContext(
            context=setup.restore_context(asked["context"]),
            run_id=asked["run_id"],
            tool_name=asked["tool"],
            tool_call_id=asked["call_id"],
            tool_arguments=asked["arguments"],
            tool_namespace=asked["namespace"],
            agent=agent,
            run_config=setup.config,
            idempotency_key=asked["key"],
            _call=_ActivityCall(resources, setup.config.tool_execution.cleanup_grace, asked["call_id"], beats),
            _secret=tool.secret,
        )
        try:
            return {"value": value_to_json(await tool._run_with(context), setup.config.converter)}
        except Exception as error:
            return {"error": error_to_json(error)}
    raise AssertionError("the block above returns")  # pragma: no cover


def _find_agent(asked: dict[str, Any]) -> tuple[AgentSetup, Agent[Any, Any]]:
    try:
        setup = find_setup(asked["root"])
        return setup, setup.graph.get(asked["agent"])
    except AgentLoopError as error:
        # Another worker of the queue may know the agent, one of a newer version for example: so it is tried again.
        raise ApplicationError(str(error), type=type(error).__name__) from error


def _find_tool(agent: Agent[Any, Any], asked: dict[str, Any]) -> FunctionTool[Any]:
    found = find_tool({tool.lookup_key: tool for tool in agent.functions}, asked["tool"], asked["namespace"])
    if found is None:
        raise ApplicationError(f"agent {asked['agent']!r} of this worker has no tool {asked['tool']!r}", type="NoTool")
    return found


class _Beats:
    """The details that the next heartbeats of an activity carry: what `AgentRunHandle.watch` shows of it."""

    def __init__(self) -> None:
        self.details: tuple[Any, ...] = ()

    def send(self) -> None:
        activity.heartbeat(*self.details)


@asynccontextmanager
async def _heartbeats() -> AsyncIterator[_Beats]:
    """Send heartbeats while the block runs: with them the engine learns that the worker lives, and cancels."""
    beats = _Beats()
    async with anyio.create_task_group() as group:
        group.start_soon(_beat, beats)
        try:
            yield beats
        finally:
            group.cancel_scope.cancel()


async def _beat(beats: _Beats) -> None:
    while True:
        beats.send()
        await anyio.sleep(HEARTBEAT_SECONDS)


class _ActivityCall:
    """The services of a call whose body runs in an activity."""

    def __init__(self, resources: AsyncExitStack, grace: float, call_id: str, beats: _Beats) -> None:
        self._resources, self._grace, self._call_id, self._beats = resources, grace, call_id, beats
        self._opened: dict[Any, Any] = {}

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        self.report_nowait(progress, total, message)
        await anyio.lowlevel.checkpoint()

    def report_nowait(self, progress: float, total: float | None, message: str | None) -> None:
        self._beats.details = (progress_to_json(self._call_id, progress, total, message),)
        self._beats.send()

    def cleanup(self, seconds: float | None) -> anyio.CancelScope:
        within = self._grace if seconds is None else min(seconds, self._grace)
        return anyio.move_on_after(within, shield=True)  # noqa: ASYNC122 - the body enters it at once

    async def resource(self, factory: Callable[[], AbstractAsyncContextManager[Any]]) -> Any:
        if factory not in self._opened:
            self._opened[factory] = await self._resources.enter_async_context(factory())
        return self._opened[factory]

    def cancel_call(self, call_id: str, reason: str | None) -> bool:
        raise UserError("ToolContext.cancel_call works only in the workflow, not in an activity")

    def search_tools(self, query: str, limit: int | None) -> list[dict[str, str]]:
        raise AssertionError("a search for tools runs in the workflow")  # pragma: no cover

    def check_cancelled(self) -> None:
        anyio.from_thread.check_cancelled()
