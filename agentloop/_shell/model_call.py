"""One logical model call: the request, the response's events, the record."""

from __future__ import annotations

import hashlib

import anyio
import msgspec

from agentloop import effects as e
from agentloop import model_events as m
from agentloop._core.turn import TurnView
from agentloop._shell.asking import resolved
from agentloop._shell.live import LiveRun
from agentloop._shell.native import cancelled_types
from agentloop.error_text import error_summary
from agentloop.exceptions import ModelBehaviorError, ModelTimeoutError
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
    request = ModelRequest(
        system=view.system,
        items=view.input,
        tools=view.tools,
        settings=view.settings,
        tool_choice=view.settings.tool_choice,
        turn=state.turn,
        path=run.path,
    )
    for hooks in (run.hooks, run.agent.hooks):
        if hooks is not None:
            await resolved(hooks.on_llm_start(run.context, run.agent, view.system, view.input))
    run.append(ModelRequested(*run.here(), _digest(run, request)))
    try:
        response = await run.effects.perform(e.CallModel(run.path, state.turn, 1, lambda: _attempt(run, view, request)))
    except cancelled_types():
        run.append(ModelFailed(*run.here(), "cancelled", usage=RequestUsage(complete=False)))
        raise
    except Exception as error:
        run.append(ModelFailed(*run.here(), error_summary(error)))
        raise
    run.append(ModelResponded(*run.here(), response))
    for hooks in (run.agent.hooks, run.hooks):
        if hooks is not None:
            await resolved(hooks.on_llm_end(run.context, run.agent, response))


def _digest(run: LiveRun, request: ModelRequest) -> str:
    """Return a digest of all that the model is shown. The history's part is kept up item by item."""
    rest = [
        run.state.history_digest(),
        request.system,
        [[tool.name, tool.namespace, tool.description, tool.params_json_schema] for tool in request.tools],
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
