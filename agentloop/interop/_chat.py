"""Histories as messages of Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from agentloop._common.errors import UserValueError
from agentloop.interop._reading import EarlierCalls, JsonDict, Name, check, read_answer, read_content, read_messages
from agentloop.items import (
    Audio,
    File,
    Image,
    Item,
    Part,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
    to_items,
)
from agentloop.model_events import ModelRequest
from agentloop.models._chat.answer import ChatDecoder
from agentloop.models._chat.items import MessageList
from agentloop.models._pieces import PieceCache

# ------------------------------------------------------------------------------------------------- forms


class _ChatText(Struct, tag_field="type", tag="text"):
    text: str


class _ChatRefusal(Struct, tag_field="type", tag="refusal"):
    refusal: str


class _ChatImageURL(Struct):
    url: str
    detail: str | None = None


class _ChatImage(Struct, tag_field="type", tag="image_url"):
    image_url: _ChatImageURL


class _ChatRecording(Struct):
    data: str
    format: str


class _ChatAudio(Struct, tag_field="type", tag="input_audio"):
    input_audio: _ChatRecording


class _ChatFileSource(Struct):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class _ChatFile(Struct, tag_field="type", tag="file"):
    file: _ChatFileSource


class _ChatSystem(Struct, tag_field="role", tag="system"):
    content: str | list[_ChatText]


class _ChatDeveloper(Struct, tag_field="role", tag="developer"):
    content: str | list[_ChatText]


class _ChatUser(Struct, tag_field="role", tag="user"):
    content: str | list[_ChatText | _ChatImage | _ChatAudio | _ChatFile]


class _ChatOutput(Struct, tag_field="role", tag="tool"):
    tool_call_id: Name
    content: str | list[_ChatText]


class _ChatFunction(Struct):
    name: Name
    arguments: str | JsonDict = ""


class _ChatCustom(Struct):
    name: Name
    input: str = ""


class _ChatFunctionCall(Struct):
    id: Name
    function: _ChatFunction
    type: Literal["function"] = "function"


class _ChatCustomCall(Struct):
    id: Name
    custom: _ChatCustom


class _ChatAnswer(Struct, tag_field="role", tag="assistant"):
    content: str | list[_ChatText | _ChatRefusal] | None = None
    refusal: str | None = None
    tool_calls: list[JsonDict] | None = None
    function_call: None = None  # the form of 2023, without ids
    audio: None = None  # refers to what only the provider has


_ChatMessage: TypeAlias = _ChatSystem | _ChatDeveloper | _ChatUser | _ChatOutput | _ChatAnswer

# ------------------------------------------------------------------------------------------------ in, out


def from_chat(messages: Iterable[Any]) -> list[Item]:
    """Return the items of a history that is stored as messages of Chat Completions.

    The input of a run, or what a session begins with. A message is a dict, or an object of a client with
    `model_dump`. Fields without a form here, as the `name` of a user, are left out, and
    so are answers of the model without any content. A call whose id was used before in the history gets a new one, as
    runs need different ids, and `to_chat` writes the old one.

    Args:
        messages: The messages in their order: of the roles system, developer, user, assistant and tool.

    Raises:
        UserTypeError: a field doesn't fit; names it: `expected str, got int @ messages[2].content`.
        UserValueError: an output has no call before it, or two calls of a message have one id. Names the field.

    Example:
        from agentloop import Agent, Runner
        from agentloop.interop import from_chat
        from agentloop.items import UserMessage
        from agentloop.testing import ScriptedModel, say

        stored = [{"role": "user", "content": "I am Ada."}, {"role": "assistant", "content": "Hello, Ada."}]
        agent = Agent("a", model=ScriptedModel([say("Ada.")]))
        result = Runner.run_sync(agent, [*from_chat(stored), UserMessage("Who am I?")])
        print(result.final_output)  # Ada.
    """
    items: list[Item] = []
    calls = EarlierCalls()
    for turn, (place, plain) in enumerate(read_messages(messages, "messages"), 1):
        message: _ChatMessage = check(plain, _ChatMessage, place)
        match message:
            case _ChatSystem() | _ChatDeveloper():
                items.append(SystemMessage(read_content(message.content, _read_part, f"{place}.content")))
            case _ChatUser():
                items.append(UserMessage(read_content(message.content, _read_part, f"{place}.content")))
            case _ChatOutput():
                call = calls.find(message.tool_call_id, f"{place}.tool_call_id")
                items.append(
                    ToolOutput(
                        call.call_id, read_content(message.content, _read_part, f"{place}.content"), kind=call.kind
                    )
                )
            case _ChatAnswer():
                items += _read_assistant(message, plain, place, calls, turn)
    return items


def to_chat(items: str | Iterable[Item], *, vendor_fields: bool = False) -> list[JsonDict]:
    """Return *items* as messages of Chat Completions, as a request of `OpenAIChatModel` has them.

    What the interface can't hold is left out of what the model is to see: reasoning, the mark that an output is an
    error, and images among outputs, which a text in brackets replaces.

    Args:
        items: The history, for example `result.to_input_list()`.
        vendor_fields: True to write fields that some servers added to the interface: `reasoning_content`,
            `reasoning_details` and `extra_content`. Others refuse them.

    Raises:
        UserError: an item or part has no form there; names its place: `items[3]: HostedToolCall has no form …`.

    Example:
        from agentloop.interop import to_chat

        print(to_chat("hi"))  # [{'role': 'user', 'content': 'hi'}]
    """
    messages = MessageList(PieceCache(), extra_content=vendor_fields, replay_reasoning=vendor_fields)
    return [json.loads(message) for message in messages.add_all(ModelRequest(system=None, items=to_items(items)))]


# ------------------------------------------------------------------------------------------------- reading


def _read_part(part: _ChatText | _ChatImage | _ChatAudio | _ChatFile) -> Part:
    match part:
        case _ChatText():
            return Text(part.text)
        case _ChatImage():
            return Image(part.image_url.url, part.image_url.detail)
        case _ChatAudio():
            kind = part.input_audio.format
            return Audio(part.input_audio.data, media_type="audio/mpeg" if kind == "mp3" else f"audio/{kind}")
        case _ChatFile():
            return File(part.file.file_data, filename=part.file.filename, file_id=part.file.file_id)


def _read_assistant(
    message: _ChatAnswer, plain: JsonDict, place: str, calls: EarlierCalls, turn: int
) -> tuple[Item, ...]:
    given_ids = _check_calls(message.tool_calls or (), place)
    told = dict(plain)
    if isinstance(message.content, list):
        told["content"] = "".join(part.text for part in message.content if isinstance(part, _ChatText))
        said = "".join(part.refusal for part in message.content if isinstance(part, _ChatRefusal))
        told["refusal"] = said or message.refusal
    if message.tool_calls is not None:  # a stored call has no index, by which a stream tells calls apart
        told["tool_calls"] = [{**call, "index": n} for n, call in enumerate(message.tool_calls)]
    decoder = ChatDecoder(calls.make_request(turn))
    items = read_answer(decoder, {"choices": [{"message": told, "finish_reason": "stop"}]}, place)
    made = (item for item in items if isinstance(item, ToolCall))
    for given_id, call in zip(given_ids, made, strict=True):
        calls.add(given_id, call)
    return items


def _check_calls(given: Iterable[JsonDict], place: str) -> list[str]:
    ids: list[str] = []
    for n, each in enumerate(given):
        where = f"{place}.tool_calls[{n}]"
        call: _ChatCustomCall | _ChatFunctionCall = check(
            each, _ChatCustomCall if "custom" in each else _ChatFunctionCall, where
        )
        if call.id in ids:
            raise UserValueError(f"{where}.id: another call of the message has the id {call.id!r}, too")
        ids.append(call.id)
    return ids
