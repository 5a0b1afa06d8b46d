"""What the Chat Completions codec and its constrained mode share: contents, tool choice, made-up call ids. Pure."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Iterable, Mapping
from typing import Any

from agentloop.exceptions import ModelBehaviorError, UserError, UserTypeError
from agentloop.items import Content, File, HandoffCall, Image, Part, Refusal, Text, ToolCall
from agentloop.model_events import ModelRequest

JsonDict = dict[str, Any]
QUOTED = 200
"""Characters of a model's or server's words that a message quotes at most."""


def no_form(place: str, what: object) -> UserError:
    """Return the error for *what* standing at *place*, which Chat Completions can't express."""
    return UserError(f"{place}: {type(what).__name__} has no form in Chat Completions.")


def chat_content(parts: Iterable[Part], place: str) -> str | list[JsonDict]:
    """Return a user's parts as message content: a string if all are text.

    Raises:
        UserError: for a part that has no form here.
    """
    parts = tuple(parts)
    if all(isinstance(part, Text) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, Text))
    return [_chat_part(part, f"{place}.content[{index}]") for index, part in enumerate(parts)]


def _chat_part(part: Part, place: str) -> JsonDict:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Image(url, detail):
            return {"type": "image_url", "image_url": {"url": url} | ({"detail": detail} if detail else {})}
        case File(data, _, filename) if data is not None:
            if not data.startswith("data:"):
                kind = mimetypes.guess_type(filename or "")[0] or "application/octet-stream"
                data = f"data:{kind};base64,{data}"
            return {"type": "file", "file": {"file_data": data} | ({"filename": filename} if filename else {})}
        case _:
            raise no_form(place, part)


def plain_text(parts: Iterable[Part], place: str) -> str:
    """Return parts that must all be text as one string.

    Raises:
        UserError: for any other part.
    """
    pieces = []
    for index, part in enumerate(parts):
        if not isinstance(part, Text):
            raise no_form(f"{place}.content[{index}]", part)
        pieces.append(part.text)
    return "".join(pieces)


def output_text(output: Content) -> str:
    """Return a tool's output as text. A part that can't be shown leaves its mark, so that the model knows of it."""
    if isinstance(output, str):
        return output
    return "".join(_output_part(part) for part in output)


def _output_part(part: Part) -> str:
    match part:
        case Text(text):
            return text
        case Refusal(refusal):
            return refusal
        case _:
            return f"[{type(part).__name__.lower()} omitted]"


def tool_choice(request: ModelRequest) -> str | Mapping[str, Any] | None:
    """Return the request's tool choice, else its settings'."""
    return request.tool_choice if request.tool_choice is not None else request.settings.tool_choice


def chosen_name(choice: str | Mapping[str, Any] | None) -> str | None:
    """Return the name of the function that *choice* forces, or None where it forces none.

    Raises:
        UserTypeError: if *choice* is of no known shape.
        UserError: if it names something other than a function.
    """
    match choice:
        case None | "auto" | "required" | "none":
            return None
        case str():
            return choice
        case {"type": "function", "name": str(name)} | {"type": "function", "function": {"name": str(name)}}:
            return name
        case {"type": kind}:
            raise UserError(f"tool_choice: {kind!r} has no form in Chat Completions.")
        case _:
            raise UserTypeError(f"tool_choice: a string or a mapping with a type is needed, not {choice!r}")


def made_call_id(request: ModelRequest, prefix: str, number: int = 0) -> str:
    """Return an id for a call that came without one: the same for equal requests, and not yet in the conversation.

    The turn makes it unique in a run, the path among nested runs; items of earlier runs may hold it already.
    """
    base = f"{prefix}_{request.turn}" + (f"_{number}" if number else "")
    return _untaken(request, base, taken_call_ids(request))


def renamed_call_id(request: ModelRequest, given: str, taken: frozenset[str]) -> str:
    """Return another id for a call whose id the server has *given* to another call of the run before."""
    return _untaken(request, f"{given}_{request.turn}", taken)


def _untaken(request: ModelRequest, made: str, taken: frozenset[str]) -> str:
    base = "".join(f"{call}." for call in request.path) + made
    made, again = base, 1
    while made in taken:
        again += 1
        made = f"{base}.{again}"
    return made


def taken_call_ids(request: ModelRequest) -> frozenset[str]:
    """Return the ids of calls of the run, and of those in the request's items, which earlier runs may have made."""
    shown = (item.call_id for item in request.items if isinstance(item, ToolCall | HandoffCall))
    return frozenset((*shown, *request.call_ids))


def parse_object(text: str, what: str) -> JsonDict:
    """Return the JSON object that *text* is.

    Raises:
        ModelBehaviorError: if it isn't one; quotes its beginning.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise ModelBehaviorError(f"{what} isn't a JSON object: {text[:QUOTED]!r}")
    return data
