"""Histories as messages of Anthropic Messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from agentloop._common.errors import UserValueError
from agentloop.interop._reading import (
    EarlierCalls,
    JsonDict,
    Name,
    check,
    read_answer,
    read_content,
    read_messages,
    to_plain,
)
from agentloop.items import (
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
from agentloop.models._messages.answer import MessagesDecoder
from agentloop.models._messages.items import BlockList
from agentloop.models._pieces import PieceCache

# ------------------------------------------------------------------------------------------------- forms


class _Base64Source(Struct, tag_field="type", tag="base64"):
    media_type: str
    data: str


class _TextSource(Struct, tag_field="type", tag="text"):
    data: str


class _URLSource(Struct, tag_field="type", tag="url"):
    url: str


class _FileIdSource(Struct, tag_field="type", tag="file"):
    file_id: str


class _TextBlock(Struct, tag_field="type", tag="text"):
    text: str
    citations: list[JsonDict] | None = None


class _ImageBlock(Struct, tag_field="type", tag="image"):
    source: _Base64Source | _URLSource | _FileIdSource


class _DocumentBlock(Struct, tag_field="type", tag="document"):
    source: _Base64Source | _TextSource | _URLSource | _FileIdSource
    title: str | None = None


class _ResultBlock(Struct, tag_field="type", tag="tool_result"):
    tool_use_id: Name
    content: str | list[_TextBlock | _ImageBlock | _DocumentBlock] | None = None
    is_error: bool | None = None


class _UseBlock(Struct, tag_field="type", tag="tool_use"):
    id: Name
    name: Name
    input: JsonDict


class _ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class _RedactedBlock(Struct, tag_field="type", tag="redacted_thinking"):
    data: str


class _UserTurn(Struct, tag_field="role", tag="user"):
    content: str | list[_TextBlock | _ImageBlock | _DocumentBlock | _ResultBlock]


class _AssistantTurn(Struct, tag_field="role", tag="assistant"):
    content: str | list[JsonDict]


class _AnyBlock(Struct):
    type: Name


_FORMS: dict[object, type[Struct]] = {
    "text": _TextBlock,
    "thinking": _ThinkingBlock,
    "redacted_thinking": _RedactedBlock,
    "tool_use": _UseBlock,
}

# ------------------------------------------------------------------------------------------------ in, out


def from_anthropic(messages: Iterable[Any], system: str | Iterable[Any] | None = None) -> list[Item]:
    """Return the items of a history that is stored as messages of Anthropic Messages.

    The input of a run, or what a session begins with. A message is a dict, or an object of a client with `model_dump`;
    so is a block. Thoughts go back with their signatures, and blocks of tools that the provider runs, unchanged. Marks
    of the cache are left out: a run sets its own.

    Args:
        messages: The messages in their order.
        system: The field of that name in the request: a text, or blocks of texts. It becomes a `SystemMessage`;
            leave it out if the agent's instructions say the same.

    Raises:
        UserTypeError: a field doesn't fit; names it: `expected str, got int @ messages[2].content[0].text`.
        UserValueError: a result has no call before it, or two calls of a message have one id. Names the field.

    Example:
        from agentloop.interop import from_anthropic

        use = {"type": "tool_use", "id": "t1", "name": "look", "input": {"city": "Rome"}}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": "Sunny."}
        stored = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": [use]}]
        items = from_anthropic([*stored, {"role": "user", "content": [result]}])
        print(items[1].name, items[2].output)  # look Sunny.
    """
    items: list[Item] = []
    given: str | list[_TextBlock] | None = check(to_plain(system), str | list[_TextBlock] | None, "system")
    if isinstance(given, str):
        items.append(SystemMessage(given))
    else:
        items += [SystemMessage(block.text) for block in given or ()]
    calls = EarlierCalls()
    for turn, (place, plain) in enumerate(read_messages(messages, "messages"), 1):
        message: _UserTurn | _AssistantTurn = check(plain, _UserTurn | _AssistantTurn, place)
        if isinstance(message, _AssistantTurn):
            items += _read_assistant(message.content, place, calls, turn)
        elif isinstance(message.content, str):
            items.append(UserMessage(message.content))
        else:
            items += _read_user(message.content, place, calls)
    return items


def to_anthropic(items: str | Iterable[Item]) -> JsonDict:
    """Return *items* as the fields `messages` and `system` of Anthropic Messages, as a request of `AnthropicModel`
    has them.

    There is no `system` if no system message begins the history; later ones are messages of the user, since the
    interface has no other place for them. Reasoning of other providers is left out.

    Args:
        items: The history, for example `result.to_input_list()`.

    Raises:
        UserError: an item or part has no form there; names its place: `items[3].content[0]: Audio has no form …`.

    Example:
        from agentloop.interop import to_anthropic

        print(to_anthropic("hi"))  # {'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 'hi'}]}]}
    """
    blocks = BlockList(PieceCache())
    system = "\n\n".join(blocks.add_all(ModelRequest(system=None, items=to_items(items))))
    messages = [json.loads(message) for message in blocks.write().members]
    return ({"system": system} if system.strip() else {}) | {"messages": messages}


# ------------------------------------------------------------------------------------------------- reading


def _read_user(
    blocks: Iterable[_TextBlock | _ImageBlock | _DocumentBlock | _ResultBlock], place: str, calls: EarlierCalls
) -> Iterator[Item]:
    """Yield the outputs of a message, and then its other blocks as one message: the interface wants this order."""
    parts: list[Part] = []
    for n, block in enumerate(blocks):
        if not isinstance(block, _ResultBlock):
            parts.append(_read_part(block))
            continue
        call = calls.find(block.tool_use_id, f"{place}.content[{n}].tool_use_id")
        output = read_content(block.content or "", _read_part, f"{place}.content[{n}].content")
        yield ToolOutput(call.call_id, output, is_error=bool(block.is_error))
    if parts:
        yield UserMessage(parts)


def _read_part(block: _TextBlock | _ImageBlock | _DocumentBlock) -> Part:
    match block:
        case _TextBlock():
            return Text(block.text)
        case _ImageBlock():
            return _read_image(block.source)
        case _DocumentBlock():
            return _read_document(block.source, block.title)


def _read_image(source: _Base64Source | _URLSource | _FileIdSource) -> Image:
    match source:
        case _Base64Source():
            return Image(data=source.data, media_type=source.media_type)
        case _URLSource():
            return Image(source.url)
        case _FileIdSource():
            return Image(file_id=source.file_id)


def _read_document(source: _Base64Source | _TextSource | _URLSource | _FileIdSource, title: str | None) -> File:
    match source:
        case _Base64Source():
            return File(source.data, filename=title, media_type=source.media_type)
        case _TextSource():
            return File(source.data.encode(errors="replace"), filename=title, media_type="text/plain")
        case _URLSource():
            return File(url=source.url, filename=title)
        case _FileIdSource():
            return File(file_id=source.file_id, filename=title)


def _read_assistant(content: str | list[JsonDict], place: str, calls: EarlierCalls, turn: int) -> tuple[Item, ...]:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    given_ids: list[str] = []
    for n, plain in enumerate(blocks):
        where = f"{place}.content[{n}]"
        kind = plain.get("type")
        block = check(plain, _FORMS.get(kind, _AnyBlock) if isinstance(kind, str) else _AnyBlock, where)
        if isinstance(block, _UseBlock):
            if block.id in given_ids:
                raise UserValueError(f"{where}.id: another call of the message has the id {block.id!r}, too")
            given_ids.append(block.id)
    answer = {"type": "message", "content": blocks, "stop_reason": "end_turn"}
    items = read_answer(MessagesDecoder(calls.make_request(turn)), answer, place)
    made = (item for item in items if isinstance(item, ToolCall))
    for given_id, call in zip(given_ids, made, strict=True):
        calls.add(given_id, call)
    return items
