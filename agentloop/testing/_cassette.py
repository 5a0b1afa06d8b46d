"""The cassette: a file with a model's recorded answers, as JSON without secrets, to keep beside the tests that use it.

Removes secrets from the JSON of requests, events and errors (`_storage/model_codec`), and compares requests. Does not
know how a model is called or replayed (`models`).
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
from agentloop._storage.model_codec import (
    model_error_from_json,
    model_error_to_json,
    model_event_from_json,
    model_event_to_json,
    request_to_json,
)
from agentloop.exceptions import AgentLoopError, StateError, UserValueError

SCHEMA = "1"
PARTS = ("system", "items", "tools", "handoffs", "hosted", "prompt", "output_schema", "settings", "tool_choice")
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
    taken: dict[str, Any] = {"request": request_to_json(request), "events": list(map(model_event_to_json, events))}
    if error is not None:
        taken["error"] = model_error_to_json(error)
    return taken


def cassette_text(model: Mapping[str, Any], takes: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a cassette of *model*, the JSON form of a `ModelInfo`."""
    data = {"cassette": "agentloop", "schema": SCHEMA, "model": model, "takes": list(takes)}
    return json.dumps(data, ensure_ascii=False, indent=1, sort_keys=True, default=repr) + "\n"


# ---------------------------------------------------------------------------------------------- reading


def read_cassette(path: Path) -> tuple[m.ModelInfo | None, list[Take]]:
    """Return the identity of the model recorded at *path*, None in cassettes of earlier releases, and the takes.

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
    try:
        model = msgspec.convert(data["model"], m.ModelInfo) if "model" in data else None
    except msgspec.ValidationError as fault:
        raise StateError(f"{path}: $.model can't be read: {fault}") from fault
    return model, [_take_from_json(one, f"{path}: $.takes[{index}]") for index, one in enumerate(takes)]


def _take_from_json(data: Any, where: str) -> Take:
    try:
        events = tuple(
            model_event_from_json(event, path=f"{where}.events[{index}]") for index, event in enumerate(data["events"])
        )
        error = model_error_from_json(data["error"]) if "error" in data else None
        request = data["request"]
        if not isinstance(request["path"], list) or not isinstance(request["turn"], int):
            raise TypeError("path and turn of the request")
        return Take(request=request, events=events, error=error)
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise StateError(f"{where} can't be read: {fault!r}") from fault


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


def check_parts(parts: Iterable[str]) -> frozenset[str]:
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
