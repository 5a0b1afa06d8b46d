"""The two activities of a worker: one model call, and one call of a tool's body.

Errors of models and bodies are results, not failures of the activity: the run decides about them, as it would in one
process. An activity fails if its worker is lost, or if this worker can't do it: its agents don't fit, its model can't
be opened, a key is missing. It is tried again then, on another worker if there is one.

Results are made to fit: a body's value is cut here as the model is shown it, what is too large still is one error, and
what is secret is sealed.
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
from agentloop.agents._graph import describe_tool
from agentloop.context import ToolContext
from agentloop.exceptions import AgentLoopError, ModelBehaviorError, UserError
from agentloop.items import HandoffCall, ToolCall
from agentloop.model_events import ItemDone, ModelRequest, ResponseDone, TextDelta
from agentloop.temporal._conversation import Lacking, read_conversation
from agentloop.temporal._live import ShownText, custom_to_json, progress_to_json
from agentloop.temporal._options import HEARTBEAT_SECONDS, AgentSetup, find_setup
from agentloop.temporal._payloads import (
    PayloadTooLarge,
    check_size,
    error_to_json,
    fit_answer,
    is_secret,
    request_from_json,
    seal,
    unseal,
    value_to_json,
)
from agentloop.tools import FunctionTool

CALL_MODEL = "agentloop.call_model"
CALL_TOOL = "agentloop.call_tool"
KEPT = ("root", "agent", "path", "turn")
"""The parts of a model call's input that one which only keeps items has as well."""
NOT_BEGUN = "NotBegun"
"""The type of an error of an activity whose body has not begun: this worker can't call it, and another may."""


@activity.defn(name=CALL_MODEL)
async def call_model(asked: dict[str, Any]) -> dict[str, Any]:
    """Ask the model for one response. Returns `{"done": event, …}`, `{"error": error}` or `{"too_large": text}`.

    With `keep`, only keep the items: returns `{"kept": True}`. `{"lacks": True}` if the list that the input names
    can't be found here.
    """
    setup, agent = _find_agent(asked)
    async with _heartbeats() as beats, AsyncExitStack() as stack:
        try:
            told = await read_conversation(asked, setup.codec, CALL_MODEL)
            if asked.get("keep"):
                return {"kept": True}
            model = await _open_model(setup, agent, stack)
            asked = {**asked, "items": told.items, "call_ids": told.call_ids}
            request = request_from_json(asked, setup.config, agent, model)
        except Lacking:
            return {"lacks": True}
        except Exception as error:
            raise _unfit(error) from error
        try:
            done = await _read_response(model, request, asked, setup, beats)
        except UserError as error:  # the request couldn't be made here, for example without a key
            raise _unfit(error) from error
        except Exception as error:
            return {"error": model_error_to_json(error)}
        return _write_response(done, request, setup)
    raise AssertionError("the block above returns")  # pragma: no cover


def _unfit(error: Exception) -> ApplicationError:
    return ApplicationError(f"{type(error).__name__}: {error}", type=type(error).__name__)


def _write_response(done: ResponseDone, request: ModelRequest, setup: AgentSetup) -> dict[str, Any]:
    """Return the result of the activity: the response, and what its calls were offered as."""
    offered, secret = _find_offered(done, request)
    written: Any = model_event_to_json(done)
    if secret or is_secret(request.items) or is_secret(done.items):
        written = seal(written, setup.codec)
    answer = {"done": written, **offered}
    try:
        check_size("the model's answer", answer, setup.max_payload)
    except PayloadTooLarge as error:
        return {"too_large": str(error)}
    return answer


def _find_offered(done: ResponseDone, request: ModelRequest) -> tuple[dict[str, Any], bool]:
    """Return which of the calls are of tools and handoffs that the model was shown, and whether one has secrets.

    The workflow may be taken over by a worker that lacks such a tool, or has it with another schema. It knows then that
    the model isn't at fault.
    """
    tools = {tool.lookup_key: tool for tool in request.tools if isinstance(tool, FunctionTool)}
    handoffs = {handoff.name for handoff in request.handoffs}
    offered: dict[str, Any] = {}
    secret = False
    for item in done.items:
        if isinstance(item, HandoffCall) and item.name in handoffs:
            offered[item.call_id] = [item.name]
        elif isinstance(item, ToolCall) and (tool := find_tool(tools, item.name, item.namespace)) is not None:
            offered[item.call_id] = [tool.qualified_name, describe_tool(tool)["schema"]]
            secret = secret or bool(tool.secret)
    return ({"offered": offered} if offered else {}), secret


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
    model: Model, request: ModelRequest, asked: dict[str, Any], setup: AgentSetup, beats: _Beats
) -> ResponseDone:
    done: ResponseDone | None = None
    items = []
    shown = ShownText(asked["path"], asked["turn"], activity.info().attempt, is_held=setup.holds_text)
    async with model.stream(request) as events:
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
    try:
        arguments = unseal(asked["arguments"], setup.codec)
        given = setup.restore_context(asked["context"])
    except Exception as error:
        raise ApplicationError(f"{type(error).__name__}: {error}", type=NOT_BEGUN) from error
    async with _heartbeats() as beats, AsyncExitStack() as resources:
        context: ToolContext[Any] = ToolContext(
            context=given,
            run_id=asked["run_id"],
            tool_name=asked["tool"],
            tool_call_id=asked["call_id"],
            tool_arguments=arguments,
            tool_namespace=asked["namespace"],
            agent=agent,
            run_config=setup.config,
            _call=_ActivityCall(resources, setup.config.tool_execution.cleanup_grace, asked["call_id"], beats),
            _secret=tool.secret,
            _key=asked["key"],
        )
        try:
            value = await tool._invoke(context, arguments)
            answer = {"value": value_to_json(value, setup.config.converter, _find_limit(setup, agent, tool))}
            answer = fit_answer("the tool's value", answer, setup.max_payload)
        except Exception as error:
            answer = {"error": error_to_json(error)}
        return seal(answer, setup.codec) if tool.secret or tool.secret_output else answer
    raise AssertionError("the block above returns")  # pragma: no cover


def _find_limit(setup: AgentSetup, agent: Agent[Any, Any], tool: FunctionTool[Any]) -> int | None:
    """Return the number of characters at which the tool's value is cut; None where the run needs the value itself."""
    if tool.custom_data_extractor is not None or agent.tool_use_behavior != "run_llm_again":
        return None
    return setup.config.tool_execution.max_output_chars


def _find_agent(asked: dict[str, Any]) -> tuple[AgentSetup, Agent[Any, Any]]:
    try:
        setup = find_setup(asked["root"])
        return setup, setup.graph.get(asked["agent"])
    except AgentLoopError as error:
        # Another worker of the queue may know the agent, one of a newer version for example: so it is tried again.
        raise ApplicationError(str(error), type=NOT_BEGUN) from error


def _find_tool(agent: Agent[Any, Any], asked: dict[str, Any]) -> FunctionTool[Any]:
    found = find_tool({tool.lookup_key: tool for tool in agent.functions}, asked["tool"], asked["namespace"])
    if found is None:
        raise ApplicationError(f"agent {asked['agent']!r} of this worker has no tool {asked['tool']!r}", type=NOT_BEGUN)
    return found


class _Beats:
    """The details that the next heartbeats of an activity carry: what `AgentRunHandle.watch` shows of it."""

    def __init__(self) -> None:
        self.details: tuple[Any, ...] = ()

    def send(self) -> None:
        activity.heartbeat(*self.details)


@asynccontextmanager
async def _heartbeats() -> AsyncIterator[_Beats]:
    """Send heartbeats while the block runs: with them the engine learns that the worker lives, and cancels.

    An error of the block is raised bare, so that the engine gets its type.
    """
    beats, failed = _Beats(), None
    async with anyio.create_task_group() as group:
        group.start_soon(_beat, beats)
        try:
            yield beats
        except Exception as error:
            failed = error
        finally:
            group.cancel_scope.cancel()
    if failed is not None:
        raise failed


async def _beat(beats: _Beats) -> None:
    while True:
        await anyio.sleep(HEARTBEAT_SECONDS)  # the engine knows that it has begun: a short one needs no heartbeat
        beats.send()


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

    def emit(self, value: Any) -> None:
        self._beats.details = (custom_to_json(self._call_id, value),)
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
