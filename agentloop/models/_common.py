"""Helpers of several codecs: contents, tool choice, generated call ids.

Pure; does not know about HTTP.
"""

from __future__ import annotations

import json
import mimetypes
import re
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from agentloop._common.naming import TOOL_NAME, shorten_name
from agentloop._common.strict_json import read_written, write_text
from agentloop.exceptions import UserError, UserTypeError
from agentloop.items import Audio, Content, File, HandoffCall, Image, Part, Refusal, Text, ToolCall, ToolOutput
from agentloop.model_events import ModelRequest, ToolDefinition
from agentloop.models._codec import NOT_JSON, JsonDict, parse_json


def no_form(place: str, what: object, interface: str = "Chat Completions") -> UserError:
    """Return the error for *what*, a part of the request at *place* that *interface* can't express."""
    approval = isinstance(what, ToolCall | ToolOutput) and what.kind == "approval"
    name = "the approval of a provider's call" if approval else type(what).__name__
    return UserError(f"{place}: {name} has no form in {interface}.")


def no_message(interface: str = "Chat Completions") -> UserError:
    """Return the error for a request without any message, which servers refuse."""
    return UserError(
        f"input: there is no message to send, and {interface} needs one. Give the run a text with words, or items."
    )


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
        case Image(url, detail) if url is not None or part.data is not None:
            found = url if url is not None else data_url(part)
            return {"type": "image_url", "image_url": {"url": found} | ({"detail": detail} if detail else {})}
        case File(data, _, filename) if data is not None:
            named = {"filename": filename} if filename else {}
            return {"type": "file", "file": {"file_data": data_url(part)} | named}
        case File(file_id=str(file_id)):
            return {"type": "file", "file": {"file_id": file_id}}
        case Audio(str(data)):
            return {"type": "input_audio", "input_audio": {"data": data, "format": audio_format(part)}}
        case _:
            raise no_form(place, part)


def data_url(part: Image | File) -> str:
    """Return the base64 data of *part* as a `data:` URL; data that is one already is returned unchanged."""
    data = part.data or ""
    if data.startswith("data:"):
        return data
    return f"data:{media_type(part)};base64,{data}"


def media_type(part: Image | File) -> str:
    """Return the media type of the data of *part*: the given one, else what the file's name tells."""
    named = part.filename if isinstance(part, File) else None
    usual = "image/png" if isinstance(part, Image) else "application/octet-stream"
    return part.media_type or mimetypes.guess_type(named or "")[0] or usual


def audio_format(part: Audio) -> str:
    """Return the provider's word for the format of a recording: `"mp3"` for `"audio/mpeg"`, else the media type's."""
    kind = (part.media_type or "audio/wav").partition("/")[2].removeprefix("x-")
    return {"mpeg": "mp3", "wave": "wav"}.get(kind, kind)


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
    """Return a tool's output as text. A mark replaces a part that can't be shown, so that the model knows of it."""
    if isinstance(output, str):
        return output
    return "".join(_output_part(part) for part in output)


def _output_part(part: Part) -> str:
    match part:
        case Text(text):
            return text
        case Refusal(refusal):
            return refusal
        case File() if (told := _file_text(part)) is not None:
            return told
        case _:
            return f"[{type(part).__name__.lower()} omitted]"


def earlier_name(name: str) -> str:
    """Return the name of an earlier call in the characters that servers take; a tool's own name always is.

    A model may call `functions.look` or nothing at all. The run tells it so, and the server must read that history.
    """
    return name if TOOL_NAME.fullmatch(name) else shorten_name(_NO_NAME.sub("_", name), name) or "unnamed"


_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")


def fit_call_id(call_id: str, most: int) -> str:
    """Return the id of a call that another server made, in the characters that this one takes: at most *most*.

    The call and its output are in one request, so both get the same. What this server made goes back as it is.
    """
    return shorten_name(call_id, call_id, most)


def argument_object(arguments: str) -> JsonDict:
    """Return the arguments of an earlier call as the object that they have to be, as many servers read the history.

    What isn't a JSON object was refused by the run, and the model sees the error in the call's output. It goes back as
    the one member `arguments`, so that the model also sees what it wrote.
    """
    if not arguments.strip():
        return {}
    value = parse_json(arguments)
    if value is NOT_JSON:
        value = _read_leniently(arguments)
    return value if isinstance(value, dict) else {"arguments": value}


def _read_leniently(arguments: str) -> Any:
    """Return the value of *arguments* as the run reads them, line breaks in strings included; else the text."""
    try:
        value = read_written(arguments)
        write_text(value)
    except (ValueError, RecursionError):
        return arguments
    return value


def argument_text(arguments: str) -> str:
    """Return the arguments of an earlier call as the text of a JSON object: as they are, if they are one."""
    value = parse_json(arguments)
    return arguments if isinstance(value, dict) else json.dumps(argument_object(arguments), ensure_ascii=False)


_TEXTS = ("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml")


def _file_text(part: File) -> str | None:
    """Return the text in a file that holds its data; None if it isn't text."""
    kind = media_type(part).partition(";")[0].strip().lower()
    if part.data is None or not (kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+json", "+xml"))):
        return None
    try:
        return b64decode(data_url(part).partition(",")[2], validate=True).decode()
    except ValueError:
        return None


def with_properties(schema: Mapping[str, Any]) -> JsonDict:
    """Return the schema of a tool's arguments with `properties`: OpenAI refuses one of an object that has none."""
    return (
        {**schema, "properties": {}} if "properties" not in schema and schema.get("type") == "object" else dict(schema)
    )


def tool_choice(request: ModelRequest) -> str | Mapping[str, Any] | None:
    """Return the tool choice of the request, else of its settings."""
    return request.tool_choice if request.tool_choice is not None else request.settings.tool_choice


def find_forced_name(choice: str | Mapping[str, Any] | None, interface: str = "Chat Completions") -> str | None:
    """Return the name of the function that *choice* forces, or None if it forces none.

    Raises:
        UserTypeError: if *choice* has no known form.
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
            raise UserError(f"tool_choice: {kind!r} has no form in {interface}.")
        case _:
            raise UserTypeError(f"tool_choice: expected a string or a mapping with a type, got {choice!r}")


def find_allowed_tools(choice: str | Mapping[str, Any] | None) -> tuple[str, Sequence[Mapping[str, Any]]] | None:
    """Return the mode and the tools of a *choice* among some of the tools; None for any other choice.

    The vendor's two interfaces write it differently, and either form is read.

    Raises:
        UserTypeError: if *choice* has no known form.
    """
    if not isinstance(choice, Mapping) or choice.get("type") != "allowed_tools":
        return None
    match choice.get("allowed_tools", choice):
        case {"mode": str(mode), "tools": [*tools]} if all(isinstance(tool, Mapping) for tool in tools):
            return mode, tools
        case _:
            raise UserTypeError(f"tool_choice: allowed_tools needs a mode and tools, in {choice!r}")


def find_allowed_name(tool: Mapping[str, Any]) -> str | None:
    """Return the name of the function or custom tool that one of the allowed *tools* refers to; None for another."""
    found = tool.get("name") or next(
        (inner.get("name") for inner in map(tool.get, ("function", "custom")) if isinstance(inner, Mapping)), None
    )
    return found if isinstance(found, str) else None


def refuse_tools(request: ModelRequest, interface: str, *, custom: bool = False) -> None:
    """Refuse the kinds of tools that *interface* doesn't have: all but functions that the model calls, and knows.

    With *custom*, it has tools of free text.

    Raises:
        UserError: naming them.
    """
    if request.hosted:
        kinds = ", ".join(sorted({tool.kind for tool in request.hosted}))
        raise UserError(f"tools: hosted tools have no form in {interface}, and the agent has {kinds}.")
    for tool in request.tools:
        if not custom:
            refuse_custom(tool, interface)
        if tool.namespace is not None:
            raise UserError(f"Tool {tool.name!r}: {interface} has no namespaces, and it is in {tool.namespace!r}.")
        if tool.defer_loading:
            raise UserError(
                f"Tool {tool.name!r}: {interface} has no tool search, which would find a deferred tool; "
                "agentloop.tool_search() finds it here."
            )
        if tool.allowed_callers and "direct" not in tool.allowed_callers:
            raise UserError(f"Tool {tool.name!r}: {interface} has no callers but the model, and it is for others.")


def refuse_custom(tool: ToolDefinition, interface: str) -> None:
    """Refuse a tool of free text, which *interface* doesn't have.

    Raises:
        UserError: naming it.
    """
    if tool.kind == "custom":
        raise UserError(f"Tool {tool.name!r}: a custom tool has no form in {interface}.")


def make_call_id(request: ModelRequest, prefix: str, number: int = 0) -> str:
    """Return an id for a call without one: the same for equal requests, and not yet in the conversation.

    The turn makes it unique in a run, the path makes it unique among nested runs. Items of earlier runs may hold such
    an id already, so those are skipped.
    """
    return _make_call_id(request, prefix, number, list_call_ids(request))


def _make_call_id(request: ModelRequest, prefix: str, number: int, taken: frozenset[str]) -> str:
    base = f"{prefix}_{request.turn}" + (f"_{number}" if number else "")
    return _find_free_id(request, base, taken)


def rename_call_id(request: ModelRequest, given: str, taken: frozenset[str]) -> str:
    """Return a new id for a call, because the server has *given* its id to an earlier call of the run."""
    return _find_free_id(request, f"{given}_{request.turn}", taken)


def _find_free_id(request: ModelRequest, made: str, taken: frozenset[str]) -> str:
    base = "".join(f"{call}." for call in request.path) + made
    made, again = base, 1
    while made in taken:
        again += 1
        made = f"{base}.{again}"
    return made


class CallIds:
    """The run's ids for the calls of one response: the provider's, or generated where that is missing or used already.

    Some servers number the calls of each response from the same start. Owned by one decoder.
    """

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self._known: dict[int, tuple[str, str]] = {}

    @cached_property
    def _taken(self) -> frozenset[str]:
        return list_call_ids(self._request)  # most responses have no call

    def assign(self, given: str | None, number: int) -> tuple[str, str]:
        """Return the run's id and the provider's id for call *number* of the response, the same whenever asked."""
        if number not in self._known:
            if given is None:
                made = _make_call_id(self._request, "call", number, self._taken)
                self._known[number] = made, made
            elif given in self._taken:
                self._known[number] = rename_call_id(self._request, given, self._taken), given
            else:
                self._known[number] = given, given
        return self._known[number]


def list_call_ids(request: ModelRequest) -> frozenset[str]:
    """Return the ids of the run's calls, and of the calls in the request's items, which may be of earlier runs."""
    shown = (item.call_id for item in request.items if isinstance(item, ToolCall | HandoffCall))
    return frozenset((*shown, *request.call_ids))
