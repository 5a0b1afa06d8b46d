"""One logical model call: the request, the response's events, the record."""

from __future__ import annotations

import hashlib

import anyio
import attrs
import msgspec

from agentloop import effects as e
from agentloop import model_events as m
from agentloop._core.turn import TurnView
from agentloop._shell.asking import ask, resolved
from agentloop._shell.live import LiveRun
from agentloop._shell.native import cancelled_types
from agentloop.config import ModelInputData
from agentloop.error_text import error_summary
from agentloop.exceptions import ModelBehaviorError, ModelTimeoutError, UserTypeError
from agentloop.items import HandoffCall, Item, ToolCall, ToolOutput, to_items
from agentloop.model_events import ModelRequest, ModelResponse
from agentloop.records import ModelFailed, ModelRequested, ModelResponded
from agentloop.usage import RequestUsage


async def call_model(run: LiveRun, view: TurnView) -> None:
    """Ask the model for the turn's response and append it.

    Cancellation: the response is closed before the cancellation goes on; the request still counts in the usage.

    Raises:
        ModelBehaviorError, ModelTransportError, ModelTimeoutError: as the model raises them.
    """
    state = run.state
    request = await _filtered(run, _request(run, view))
    run.context.turn_input = request.items
    for hooks in (run.hooks, run.agent.hooks):
        if hooks is not None:
            await resolved(hooks.on_llm_start(run.context, run.agent, request.system, request.items))
    run.append(ModelRequested(*run.here(), _digest(run, request)))
    try:
        response = await run.effects.perform(e.CallModel(run.path, state.turn, 1, lambda: _attempt(run, view, request)))
    except cancelled_types():
        run.append(ModelFailed(*run.here(), "cancelled", usage=RequestUsage(complete=False)))
        raise
    except Exception as error:
        run.append(ModelFailed(*run.here(), error_summary(error)))
        raise
    response = attrs.evolve(response, items=_sorted_out(view, response.items))
    run.append(ModelResponded(*run.here(), response))
    for hooks in (run.agent.hooks, run.hooks):
        if hooks is not None:
            await resolved(hooks.on_llm_end(run.context, run.agent, response))


def _request(run: LiveRun, view: TurnView) -> ModelRequest:
    return ModelRequest(
        system=view.system,
        items=view.input,
        tools=view.tools,
        handoffs=view.handoffs,
        output_schema=view.output.schema if view.output is not None else None,
        settings=view.settings,
        tool_choice=view.settings.tool_choice,
        turn=run.state.turn,
        path=run.path,
    )


async def _filtered(run: LiveRun, request: ModelRequest) -> ModelRequest:
    """Return *request* as the application's filter wants it; of two outputs of one call the latest stays."""
    chosen = run.config.call_model_input_filter
    if chosen is None:
        return request
    data = ModelInputData(
        input=tuple(request.items), instructions=request.system, agent=run.agent, context=run.context.context
    )
    effect = e.Ask(run.path, "call_model_input_filter", str(request.turn), lambda: ask(chosen, data))
    filtered = await run.effects.perform(effect)
    if not isinstance(filtered, ModelInputData):
        raise UserTypeError(f"call_model_input_filter must return ModelInputData, not {filtered!r}")
    return attrs.evolve(request, items=_latest_outputs(to_items(filtered.input)), system=filtered.instructions)


def _latest_outputs(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Return *items* with one output for each call: the latest content, in the place of the first."""
    latest = {item.call_id: item for item in items if isinstance(item, ToolOutput)}
    kept: list[Item] = []
    for item in items:
        if isinstance(item, ToolOutput):
            last = latest.pop(item.call_id, None)
            if last is None:
                continue
            item = last
        kept.append(item)
    return tuple(kept)


def _sorted_out(view: TurnView, items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Return a response's items with calls of handoffs as what they are."""
    names = {handoff.name for handoff in view.handoffs}
    if not names:
        return items
    return tuple(
        HandoffCall(item.call_id, item.name, item.arguments, provider_data=item.provider_data)
        if isinstance(item, ToolCall) and item.namespace is None and item.name in names
        else item
        for item in items
    )


def _digest(run: LiveRun, request: ModelRequest) -> str:
    """Return a digest of all that the model is shown. The history's part is kept up item by item."""
    rest = [
        run.state.history_digest() if run.config.call_model_input_filter is None else list(request.items),
        request.system,
        [[tool.name, tool.namespace, tool.description, tool.params_json_schema] for tool in request.tools],
        [[handoff.name, handoff.description, handoff.params_json_schema] for handoff in request.handoffs],
        request.output_schema,
        request.settings,
    ]
    return hashlib.sha256(msgspec.json.encode(rest, enc_hook=repr, order="deterministic")).hexdigest()[:32]


async def _attempt(run: LiveRun, view: TurnView, request: ModelRequest) -> ModelResponse:
    timeout = request.settings.timeout
    if timeout is None:
        return await _read(run, view, request)
    with anyio.move_on_after(timeout):
        return await _read(run, view, request)
    raise ModelTimeoutError(timeout)


async def _read(run: LiveRun, view: TurnView, request: ModelRequest) -> ModelResponse:
    done: m.ResponseDone | None = None
    events = run.log.events
    async with view.model.stream(request) as stream:
        async for event in stream:
            if done is not None:
                raise ModelBehaviorError(f"The model sent {type(event).__name__} after its response was done")
            if isinstance(event, m.ResponseDone):
                done = event
            elif events is not None:
                events.signal(event, run.path, run.state.turn)
                if events.full:
                    await events.room()
    if done is None:
        raise ModelBehaviorError("The model's response ended without being done")
    return ModelResponse(done.items, done.usage, done.response_id, done.request_id)
