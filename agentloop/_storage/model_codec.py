"""The codec of model requests, model events and model errors: to JSON, and the last two back.

A request can only be written: it holds definitions, whose functions are the application's. Items of requests and events
are in the clear, or with secrets hidden, as the caller decides. Does not know about files, transports or cassettes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import msgspec

from agentloop import model_events as m
from agentloop._storage.item_codec import item_from_json
from agentloop._storage.record_codec import part_to_json
from agentloop._storage.value_codec import value_to_json
from agentloop._storage.withholding import Secrets
from agentloop.exceptions import (
    AgentLoopError,
    ModelBehaviorError,
    ModelRefusalError,
    ModelTimeoutError,
    ModelTransportError,
)
from agentloop.usage import RequestUsage

_GIVEN_BY_SOME = ("finish_reason", "model", "service_tier", "provider_data")
_OF_TRANSPORT = ("retry", "extra_headers", "extra_query")
_TRANSPORT_FIELDS = ("status", "code", "retry_after", "should_retry", "request_id")


def request_to_json(request: m.ModelRequest, secrets: Secrets | None = None) -> dict[str, Any]:
    """Return the JSON form of *request*: everything that the model gets, and its path and turn in the run.

    Settings for the transport (retry, extra headers, extra query) are left out: they may hold secrets, and the model
    does not see them. *secrets* hides secret values in items; with None they are written in the clear.
    """
    settings = {
        field.name: value_to_json(value, None)
        for field in attrs.fields(type(request.settings))
        if field.name not in _OF_TRANSPORT and (value := getattr(request.settings, field.name)) is not None
    }
    schema = request.output_schema
    written = {
        "path": list(request.path),
        "turn": request.turn,
        "system": request.system,
        "items": [part_to_json(item, secrets) for item in request.items],
        "tools": [_definition_to_json(tool) for tool in request.tools],
        "handoffs": [_definition_to_json(handoff) for handoff in request.handoffs],
        "output_schema": None if schema is None else value_to_json(msgspec.structs.asdict(schema), None),
        "settings": settings,
        "tool_choice": value_to_json(request.tool_choice, None),
    }
    if request.hosted:
        written["hosted"] = [{"kind": tool.kind, "config": value_to_json(tool.config, None)} for tool in request.hosted]
    if request.prompt is not None:
        written["prompt"] = value_to_json(attrs.asdict(request.prompt), None)
    return written


def _definition_to_json(tool: m.ToolDefinition) -> dict[str, Any]:
    return {
        "name": tool.name,
        "namespace": tool.namespace,
        "description": tool.description,
        "schema": value_to_json(tool.params_json_schema, None),
    }


def model_event_to_json(event: m.ModelEvent, secrets: Secrets | None = None) -> dict[str, Any]:
    """Return the JSON form of *event*. *secrets* hides secret values in items; with None they are in the clear."""
    match event:
        case m.ResponseStarted(response_id):
            return {"kind": "response_started", "response_id": response_id}
        case m.TextDelta(text, item):
            return {"kind": "text_delta", "text": text, **({"item": item} if item else {})}
        case m.ReasoningDelta(text, of):
            return {"kind": "reasoning_delta", "text": text, **({"of": of} if of != "text" else {})}
        case m.HostedProgress(tool, status, own):
            return {"kind": "hosted_progress", "tool": tool, "status": status, "id": own}
        case m.ArgumentsDelta(call_id, delta):
            return {"kind": "arguments_delta", "call_id": call_id, "delta": delta}
        case m.ItemDone(item):
            return {"kind": "item_done", "item": part_to_json(item, secrets)}
        case m.Raw(data):
            return {"kind": "raw", "data": value_to_json(data, None)}
        case m.ResponseDone(items, usage, response_id, request_id):
            more = {name: value for name in _GIVEN_BY_SOME if (value := getattr(event, name)) is not None}
            return {
                "kind": "response_done",
                "items": [part_to_json(item, secrets) for item in items],
                "usage": None if usage is None else msgspec.structs.asdict(usage),
                "response_id": response_id,
                "request_id": request_id,
                **more,
            }


def model_event_from_json(data: Mapping[str, Any], *, path: str = "$") -> m.ModelEvent:
    """Return the event that was written as *data*.

    Raises:
        StateError: if an item doesn't fit; names the place below *path*.
        KeyError, TypeError, ValueError: if another part doesn't fit.
    """
    match data["kind"]:
        case "response_started":
            return m.ResponseStarted(data["response_id"])
        case "text_delta":
            return m.TextDelta(data["text"], data.get("item", 0))
        case "reasoning_delta":
            return m.ReasoningDelta(data["text"], data.get("of", "text"))
        case "hosted_progress":
            return m.HostedProgress(data["tool"], data["status"], data["id"])
        case "arguments_delta":
            return m.ArgumentsDelta(data["call_id"], data["delta"])
        case "item_done":
            return m.ItemDone(item_from_json(data["item"], path=f"{path}.item"))
        case "raw":
            return m.Raw(data["data"])
        case "response_done":
            items = [item_from_json(one, path=f"{path}.items[{at}]") for at, one in enumerate(data["items"])]
            usage = None if data["usage"] is None else RequestUsage(**data["usage"])
            more = [data.get(name) for name in _GIVEN_BY_SOME]
            return m.ResponseDone(items, usage, data["response_id"], data["request_id"], *more)
        case other:
            raise ValueError(f"no event is called {other!r}")


def model_error_to_json(error: BaseException) -> dict[str, Any]:
    """Return the JSON form of an error of a model: its class, its message, and the fields that a retry depends on."""
    data: dict[str, Any] = {"kind": type(error).__name__, "message": str(error)}
    match error:
        case ModelTransportError():
            data |= {name: getattr(error, name) for name in _TRANSPORT_FIELDS}
        case ModelTimeoutError():
            data["timeout"] = error.timeout
        case _:
            pass
    return data


def model_error_from_json(data: Mapping[str, Any]) -> AgentLoopError:
    """Return the error that was written as *data*; of a class that models don't raise, an `AgentLoopError` names it.

    Raises:
        KeyError, TypeError: if a part is missing or doesn't fit.
    """
    match data["kind"]:
        case "ModelTimeoutError":
            return ModelTimeoutError(data["timeout"])
        case "ModelTransportError":
            return ModelTransportError(data["message"], **{name: data[name] for name in _TRANSPORT_FIELDS})
        case "ModelRefusalError":
            return ModelRefusalError(data["message"])
        case "ModelBehaviorError":
            return ModelBehaviorError(data["message"])
        case _:
            return AgentLoopError(f"{data['kind']}: {data['message']}")
