"""The cassette: a file with a model's recorded answers, as JSON without secrets, to keep beside the tests that use it.

Converts requests, events and errors to JSON and back, removes secrets, and compares requests. Does not know how a
model is called or replayed (`models`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import msgspec

from agentloop import model_events as m
from agentloop._common.error_text import redact
from agentloop._storage.item_codec import item_from_json, item_to_json
from agentloop.exceptions import (
    AgentLoopError,
    ModelBehaviorError,
    ModelRefusalError,
    ModelTimeoutError,
    ModelTransportError,
    StateError,
    UserValueError,
)
from agentloop.usage import RequestUsage

SCHEMA = "1"
PARTS = ("system", "items", "tools", "handoffs", "hosted", "prompt", "output_schema", "settings", "tool_choice")
_TOLD_IF_GIVEN = ("finish_reason", "model", "service_tier", "provider_data")
REDACTED = "[redacted]"
SHORT = 160

_SECRET_NAME = re.compile(
    r"(?i)(^|[_-])(api[_-]?key|apikey|authorization|cookie|credentials?|passw(or)?d|private[_-]?key|secret|"
    r"(access|auth|bearer|id|refresh|session)[_-]?token|token)$"
)


class Redactor:
    """Removes secrets from JSON values: by the names of their keys, by their form, and the given *secrets*."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = sorted({secret for secret in secrets if secret}, key=len, reverse=True)

    def redacted(self, value: Any) -> Any:
        """Return *value* without secrets."""
        if isinstance(value, Mapping):
            return {
                self.redacted(str(name)): REDACTED
                if _SECRET_NAME.search(str(name)) and isinstance(member, str)
                else self.redacted(member)
                for name, member in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.redacted(member) for member in value]
        if isinstance(value, str):
            for secret in self._secrets:
                value = value.replace(secret, REDACTED)
            return redact(value)
        return value


@attrs.frozen(kw_only=True)
class Take:
    """One request and its answer: events, and the error that ended it, or None."""

    request: Mapping[str, Any]
    events: tuple[m.ModelEvent, ...]
    error: AgentLoopError | None

    @property
    def place(self) -> tuple[tuple[str, ...], int]:
        """The path and turn of the request."""
        return tuple(self.request["path"]), self.request["turn"]


# ---------------------------------------------------------------------------------------------- writing


def take(request: m.ModelRequest, events: Sequence[m.ModelEvent], error: AgentLoopError | None) -> dict[str, Any]:
    """Return the JSON form of one request and its answer."""
    taken: dict[str, Any] = {"request": request_to_json(request), "events": [_event_to_json(one) for one in events]}
    if error is not None:
        taken["error"] = _error_to_json(error)
    return taken


def cassette_text(takes: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a cassette."""
    data = {"cassette": "agentloop", "schema": SCHEMA, "takes": list(takes)}
    return json.dumps(data, ensure_ascii=False, indent=1, sort_keys=True, default=repr) + "\n"


def request_to_json(request: m.ModelRequest) -> dict[str, Any]:
    """Return the JSON form of *request*: everything that the model gets, and its path and turn in the run.

    Settings for the transport (retry, extra headers, extra query) are left out: they may hold secrets, and the model
    does not see them.
    """
    settings = {
        field.name: value
        for field in attrs.fields(type(request.settings))
        if field.name not in ("retry", "extra_headers", "extra_query")
        and (value := getattr(request.settings, field.name)) is not None
    }
    data = {
        "path": list(request.path),
        "turn": request.turn,
        "system": request.system,
        "items": [item_to_json(item) for item in request.items],
        "tools": [_definition(tool) for tool in request.tools],
        "handoffs": [_definition(handoff) for handoff in request.handoffs],
        "output_schema": None if request.output_schema is None else msgspec.structs.asdict(request.output_schema),
        "settings": settings,
        "tool_choice": request.tool_choice,
    }
    if request.hosted:
        data["hosted"] = [{"kind": tool.kind, "config": tool.config} for tool in request.hosted]
    if request.prompt is not None:
        data["prompt"] = attrs.asdict(request.prompt)
    plain: dict[str, Any] = json.loads(json.dumps(data, default=repr))
    return plain


def _definition(tool: m.ToolDefinition) -> dict[str, Any]:
    return {
        "name": tool.name,
        "namespace": tool.namespace,
        "description": tool.description,
        "schema": tool.params_json_schema,
    }


def _event_to_json(event: m.ModelEvent) -> dict[str, Any]:
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
            return {"kind": "item_done", "item": item_to_json(item)}
        case m.Raw(data):
            return {"kind": "raw", "data": data}
        case m.ResponseDone(items, usage, response_id, request_id):
            more = {name: value for name in _TOLD_IF_GIVEN if (value := getattr(event, name)) is not None}
            return {
                "kind": "response_done",
                "items": [item_to_json(item) for item in items],
                "usage": None if usage is None else msgspec.structs.asdict(usage),
                "response_id": response_id,
                "request_id": request_id,
                **more,
            }


def _error_to_json(error: AgentLoopError) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": type(error).__name__, "message": str(error)}
    match error:
        case ModelTransportError():
            for name in ("status", "code", "retry_after", "should_retry", "request_id"):
                data[name] = getattr(error, name)
        case ModelTimeoutError():
            data["timeout"] = error.timeout
        case _:
            pass
    return data


# ---------------------------------------------------------------------------------------------- reading


def read_cassette(path: Path) -> list[Take]:
    """Return the takes of the cassette at *path*.

    Raises:
        StateError: if it isn't a cassette, or has a schema that this release doesn't know.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StateError(f"there is no cassette at {path}: record one with a RecordingModel") from None
    except ValueError as error:
        raise StateError(f"{path} is no cassette: it isn't JSON ({error})") from error
    if not isinstance(data, dict) or data.get("cassette") != "agentloop":
        raise StateError(f"{path} is no cassette of agentloop")
    if data.get("schema") != SCHEMA:
        raise StateError(f"{path} has schema {data.get('schema')!r}; this release reads {SCHEMA!r}")
    takes = data.get("takes")
    if not isinstance(takes, list):
        raise StateError(f"{path} has no list of takes")
    return [_take_from_json(one, f"{path}: $.takes[{index}]") for index, one in enumerate(takes)]


def _take_from_json(data: Any, where: str) -> Take:
    try:
        events = tuple(
            _event_from_json(event, f"{where}.events[{index}]") for index, event in enumerate(data["events"])
        )
        error = _error_from_json(data["error"]) if "error" in data else None
        request = data["request"]
        if not isinstance(request["path"], list) or not isinstance(request["turn"], int):
            raise TypeError("path and turn of the request")
        return Take(request=request, events=events, error=error)
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise StateError(f"{where} can't be read: {fault!r}") from fault


def _event_from_json(data: Mapping[str, Any], where: str) -> m.ModelEvent:
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
            return m.ItemDone(item_from_json(data["item"], path=f"{where}.item"))
        case "raw":
            return m.Raw(data["data"])
        case "response_done":
            items = [item_from_json(one, path=f"{where}.items[{at}]") for at, one in enumerate(data["items"])]
            usage = None if data["usage"] is None else RequestUsage(**data["usage"])
            more = [data.get(name) for name in _TOLD_IF_GIVEN]
            return m.ResponseDone(items, usage, data["response_id"], data["request_id"], *more)
        case other:
            raise ValueError(f"no event is called {other!r}")


def _error_from_json(data: Mapping[str, Any]) -> AgentLoopError:
    match data["kind"]:
        case "ModelTimeoutError":
            return ModelTimeoutError(data["timeout"])
        case "ModelTransportError":
            fields = {name: data[name] for name in ("status", "code", "retry_after", "should_retry", "request_id")}
            return ModelTransportError(data["message"], **fields)
        case "ModelRefusalError":
            return ModelRefusalError(data["message"])
        case "ModelBehaviorError":
            return ModelBehaviorError(data["message"])
        case _:
            return AgentLoopError(f"{data['kind']}: {data['message']}")


# ---------------------------------------------------------------------------------------------- comparing


def differences(recorded: Any, asked: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each difference of two JSON values: its place, as deep as possible, and both values there."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for name in [*recorded, *(name for name in asked if name not in recorded)]:
            yield from differences(recorded.get(name), asked.get(name), f"{place}.{name}" if place else name)
    elif isinstance(recorded, list) and isinstance(asked, list):
        for index in range(max(len(recorded), len(asked))):
            one = recorded[index] if index < len(recorded) else None
            other = asked[index] if index < len(asked) else None
            yield from differences(one, other, f"{place}[{index}]")
    elif recorded != asked:
        yield place, recorded, asked


def checked_parts(parts: Iterable[str]) -> frozenset[str]:
    """Return *parts* as a set of names of a request's parts.

    Raises:
        UserValueError: if a request has no part of such a name.
    """
    names = frozenset(parts)
    if unknown := sorted(names - set(PARTS)):
        raise UserValueError(f"ReplayModel: ignore: there is no {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return names


def in_words(path: tuple[str, ...], turn: int) -> str:
    """Format the place of a request in its run."""
    return f"turn {turn} of the run inside call {'/'.join(path)}" if path else f"turn {turn}"


def short(value: Any) -> str:
    """Return *value* as JSON, cut to `SHORT` characters."""
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHORT else f"{text[: SHORT - 1]}…"
