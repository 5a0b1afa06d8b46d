"""The codec of model requests, model events and model errors: to JSON, and the last two back.

A request can only be written: it holds definitions, whose functions are the application's. Items of requests and events
are in the clear, or with secrets hidden, as the caller decides. Does not know about files, transports or cassettes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

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

_EVENTS = {cls.__struct_config__.tag: cls for cls in get_args(m.ModelEvent)}
_GIVEN_BY_SOME = ("item", "kind", "finish_reason", "model", "service_tier", "provider_data")
"""The fields of events that are left out at their default."""
_OWN_KEYS: Mapping[type, str] = {m.HostedProgress: "tool", m.ReasoningDelta: "of"}
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
        **({"namespace_description": about} if (about := tool.namespace_description) is not None else {}),
    }


def model_event_to_json(event: m.ModelEvent, secrets: Secrets | None = None) -> dict[str, Any]:
    """Return the JSON form of *event*. *secrets* hides secret values in items; with None they are in the clear."""
    written: dict[str, Any] = {"kind": event.__struct_config__.tag}
    for key, field in _fields_of(type(event)).items():
        value: Any = getattr(event, field.name)
        if field.name in _GIVEN_BY_SOME and value == field.default:
            continue
        if field.name == "items":
            value = [part_to_json(item, secrets) for item in value]
        elif field.name == "item" and isinstance(event, m.ItemDone):
            value = part_to_json(event.item, secrets)
        elif isinstance(value, RequestUsage):
            value = msgspec.structs.asdict(value)
        written[key] = value_to_json(value, None) if field.name == "data" else value
    return written


def model_event_from_json(data: Mapping[str, Any], *, path: str = "$") -> m.ModelEvent:
    """Return the event that was written as *data*.

    Raises:
        StateError: if an item doesn't fit; names the place below *path*.
        KeyError, TypeError, ValueError: if another part doesn't fit.
    """
    cls = _EVENTS.get(data["kind"])
    if cls is None:
        raise ValueError(f"no event is called {data['kind']!r}")
    fields: dict[str, Any] = {}
    for key, field in _fields_of(cls).items():
        if key not in data and field.name in _GIVEN_BY_SOME:
            continue
        value = fields[field.name] = data[key]
        if field.name == "items":
            fields["items"] = [item_from_json(one, path=f"{path}.items[{at}]") for at, one in enumerate(value)]
        elif cls is m.ItemDone:
            fields["item"] = item_from_json(value, path=f"{path}.item")
        elif field.name == "usage" and value is not None:
            fields["usage"] = RequestUsage(**value)
    event: m.ModelEvent = cls(**fields)
    return event


def _fields_of(cls: type) -> dict[str, msgspec.structs.FieldInfo]:
    """Return the fields of a class of events by their keys: a `kind` beside the event's own has another one."""
    own = _OWN_KEYS.get(cls)
    return {own if own and one.name == "kind" else one.name: one for one in msgspec.structs.fields(cls)}


def model_error_to_json(error: BaseException) -> dict[str, Any]:
    """Return the JSON form of an error of a model: its class, its message, and the fields that a retry depends on."""
    data: dict[str, Any] = {"kind": type(error).__name__, "message": str(error)}
    if isinstance(error, ModelTransportError):
        data |= {name: getattr(error, name) for name in _TRANSPORT_FIELDS}
    elif isinstance(error, ModelTimeoutError):
        data["timeout"] = error.timeout
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
        case "ModelRefusalError" | "ModelBehaviorError" as kind:
            return (ModelRefusalError if kind == "ModelRefusalError" else ModelBehaviorError)(data["message"])
        case kind:
            return AgentLoopError(f"{kind}: {data['message']}")
