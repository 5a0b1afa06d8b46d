"""The blocks of Anthropic Messages: our items as its JSON. Pure.

An interface of messages that are made of blocks. A request's items become blocks, and successive blocks of one role
share a message: all results of a turn's calls are in one message of the user, before its other blocks.

An item keeps the parts of a block that have no form for other providers: a thought's signature, a text's citations, the
call and the result of a tool that the provider runs. They go back unchanged, and only to this interface.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentloop.exceptions import UserError
from agentloop.items import (
    AssistantMessage,
    Content,
    File,
    HandoffCall,
    HandoffOutput,
    HostedToolCall,
    Image,
    Item,
    OpaqueItem,
    Part,
    Reasoning,
    Refusal,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.model_events import (
    ModelRequest,
)
from agentloop.models._codec import (
    JsonDict,
    WrittenArray,
    encode_json,
    without_none,
)
from agentloop.models._common import (
    argument_object,
    data_url,
    earlier_name,
    no_form,
)
from agentloop.models._messages import executors
from agentloop.models._pieces import CALL_TYPES, OUTPUT_TYPES, PieceCache

INTERFACE = "Anthropic Messages"
BLOCK = "messages_block"
"""Key in a reasoning item's `provider_data`, and in an opaque item's data, of the type of its block."""
WIRE_ID = "messages_call_id"
"""Key in a call's `provider_data` of the provider's own id, if the run uses another id for the call."""
CITATIONS = "messages_citations"
"""Key in a message's `provider_data` of its texts' citations as they came: a list for each text."""
RESULT = "result"
"""Key in the data of a hosted tool's call of the block with its result."""


class BlockList:
    """Collects messages; successive blocks of one role share one."""

    def __init__(self, pieces: PieceCache) -> None:
        self._pieces = pieces
        self._done: list[tuple[str, list[bytes]]] = []  # the role of each message, and its blocks as JSON
        self._results = 0  # how many results the last message begins with
        self._by_id: dict[str, ToolCall | HandoffCall] = {}

    def add_all(self, request: ModelRequest) -> list[str]:
        """Add the request's items. Return the texts for the system field: the interface has one, at the beginning."""
        system = [request.system] if request.system else []
        for index, item in enumerate(request.items):
            call: ToolCall | HandoffCall | None = None
            if isinstance(item, CALL_TYPES):
                self._by_id[item.call_id] = item
            elif isinstance(item, OUTPUT_TYPES):
                call = self._by_id.get(item.call_id)
            elif isinstance(item, SystemMessage) and not self._done:
                system.append(item.text)
                continue
            piece = self._pieces.find(item, call)
            if piece is None:
                blocks = _item_blocks(item, call, f"items[{index}]")
                piece = self._pieces.keep(item, b",".join(map(encode_json, blocks)), call)
            if piece:
                self._add(item, piece)
        self._strip_end()
        return system

    def _strip_end(self) -> None:
        """Take the blanks from the end of a last text of the model: the interface refuses a request that ends so."""
        if self._done and self._done[-1][0] == "assistant":
            pieces = self._done[-1][1]
            blocks: list[JsonDict] = json.loads(b"[%s]" % pieces[-1])
            text = blocks[-1].get("text")
            if isinstance(text, str) and text != text.rstrip():
                blocks[-1]["text"] = text.rstrip()
                pieces[-1] = b",".join(map(encode_json, blocks))

    def _add(self, item: Item, piece: bytes) -> None:
        role = "user" if isinstance(item, _OF_THE_USER) else "assistant"
        if not self._done or self._done[-1][0] != role:
            self._done.append((role, []))
            self._results = 0
        blocks = self._done[-1][1]
        if isinstance(item, OUTPUT_TYPES):
            blocks.insert(self._results, piece)  # results come before the other blocks of their message
            self._results += 1
        else:
            blocks.append(piece)

    @property
    def is_empty(self) -> bool:
        """True if there is no message."""
        return not self._done

    def mark_newest(self, mark: JsonDict) -> bool:
        """Add the field in *mark* to the last block that can have one. Return False if there is none."""
        for _, pieces in reversed(self._done):
            for place in reversed(range(len(pieces))):
                blocks: list[JsonDict] = json.loads(b"[%s]" % pieces[place])
                markable = [block for block in blocks if block.get("type") not in _UNMARKABLE]
                if markable:
                    markable[-1] |= mark
                    pieces[place] = b",".join(map(encode_json, blocks))
                    return True
        return False

    def write(self) -> WrittenArray:
        """Return the messages."""
        return WrittenArray(
            [b'{"role":"%s","content":[%s]}' % (role.encode(), b",".join(blocks)) for role, blocks in self._done]
        )


_UNMARKABLE = ("thinking", "redacted_thinking")
_OF_THE_USER = (SystemMessage, UserMessage, ToolOutput, HandoffOutput)


def _item_blocks(item: Item, call: ToolCall | HandoffCall | None, place: str) -> list[JsonDict]:
    """Return the blocks of *item*; an output answers *call*."""
    match item:
        case SystemMessage() | UserMessage():
            return _blocks(item.content, f"{place}.content")
        case AssistantMessage():
            return _said_blocks(item, f"{place}.content")
        case ToolCall(kind="approval") | ToolOutput(kind="approval"):
            raise no_form(place, item, INTERFACE)
        case ToolCall() | HandoffCall():
            return [_use_block(item)]
        case ToolOutput() | HandoffOutput():
            return [_result_block(item, call, place)]
        case Reasoning():
            return _thinking_blocks(item)
        case HostedToolCall() if _is_own_block(item.data):
            block = {name: value for name, value in item.data.items() if name != RESULT}
            return [block, *([item.data[RESULT]] if RESULT in item.data else ())]
        case OpaqueItem() if _is_own_block(item.data):
            return [{name: value for name, value in item.data.items() if name != BLOCK}]
        case _:
            raise no_form(place, item, INTERFACE)


def _use_block(item: ToolCall | HandoffCall) -> JsonDict:
    given = argument_object(item.arguments)
    # An executor's call of another interface has another content, and goes as a function's.
    name = (executors.own_name(item) if isinstance(item, ToolCall) else None) or earlier_name(item.name)
    block = {"type": "tool_use", "id": _wire_id(item), "name": name, "input": given}
    if isinstance(item, ToolCall) and item.caller is not None:
        block["caller"] = {"type": item.caller.kind, "tool_id": item.caller.id}
    return block


def _result_block(item: ToolOutput | HandoffOutput, call: ToolCall | HandoffCall | None, place: str) -> JsonDict:
    call_id = _clean_id(item.call_id) if call is None else _wire_id(call)
    block: JsonDict = {"type": "tool_result", "tool_use_id": call_id}
    output = item.output
    if isinstance(call, ToolCall) and call.kind == "shell" and executors.own_name(call) is not None:
        output = executors.shell_text(output)
    if content := _result_content(output, place):
        block["content"] = content
    if isinstance(item, ToolOutput) and item.is_error:
        block["is_error"] = True
    return block


def _wire_id(item: ToolCall | HandoffCall) -> str:
    data = item.provider_data
    given = data.get(WIRE_ID) if isinstance(data, Mapping) else None
    return given if isinstance(given, str) else _clean_id(item.call_id)


def _clean_id(call_id: str) -> str:
    """Return *call_id* in the characters that the interface allows: another provider's may have more."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", call_id)


def _said_blocks(item: AssistantMessage, place: str) -> list[JsonDict]:
    """Return the blocks of a message of the model, each text with the citations that it came with."""
    if foreign := [part for part in item.content if not isinstance(part, Text | Refusal)]:
        raise no_form(place, foreign[0], INTERFACE)
    cited: Sequence[Any] = (item.provider_data or {}).get(CITATIONS) or ()
    if len(cited) != len(item.content):
        return _blocks(item.content, place)
    told = [(part, each) for part, each in zip(item.content, cited, strict=True) if not _is_empty(part)]
    return [_block(part, place) | ({"citations": each} if each else {}) for part, each in told]


def _thinking_blocks(item: Reasoning) -> list[JsonDict]:
    match (item.provider_data or {}).get(BLOCK):
        case "thinking":
            return [{"type": "thinking", "thinking": "".join(item.content), "signature": item.encrypted or ""}]
        case "redacted_thinking":
            return [{"type": "redacted_thinking", "data": item.encrypted or ""}]
        case _:
            return []  # another provider's, whose signature means nothing here


def _is_own_block(data: Mapping[str, Any]) -> bool:
    return BLOCK in data or data.get("type") in HOSTED_CALLS


HOSTED_CALLS = ("server_tool_use", "mcp_tool_use")
"""Types of the calls of tools that this provider runs. Other blocks without a form are marked with their type."""


def _result_content(output: Content, place: str) -> str | list[JsonDict]:
    if isinstance(output, str):
        return output if output.strip() else ""
    return _blocks(output, f"{place}.output")


def _blocks(parts: Iterable[Part], place: str) -> list[JsonDict]:
    """Return the blocks of *parts*. The interface refuses a text of blanks, so there is no block for one."""
    return [_block(part, f"{place}[{index}]") for index, part in enumerate(parts) if not _is_empty(part)]


def _is_empty(part: Part) -> bool:
    return (isinstance(part, Text) and not part.text.strip()) or (
        isinstance(part, Refusal) and not part.refusal.strip()
    )


def _block(part: Part, place: str) -> JsonDict:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Refusal():
            return {"type": "text", "text": part.refusal}
        case Image():
            return {"type": "image", "source": _source(part, place)}
        case File():
            return {"type": "document", "source": _source(part, place)} | without_none({"title": part.filename})
        case _:
            raise no_form(place, part, INTERFACE)


def _source(part: Image | File, place: str) -> JsonDict:
    if part.file_id is not None:
        return {"type": "file", "file_id": part.file_id}
    url = part.url if part.data is None else data_url(part)
    if url is None or not url.startswith("data:"):
        return {"type": "url", "url": url}
    head, _, data = url.removeprefix("data:").partition(",")
    if not head.endswith(";base64"):
        raise UserError(f"{place}: {INTERFACE} takes data URLs in base64 only.")
    kind = head.removesuffix(";base64").partition(";")[0]
    if isinstance(part, File) and kind.startswith("text/"):
        # Documents in base64 are PDFs; a text is sent as text.
        return {"type": "text", "media_type": "text/plain", "data": _decode_text(data, place)}
    return {"type": "base64", "media_type": kind, "data": data}


def _decode_text(data: str, place: str) -> str:
    try:
        return b64decode(data, validate=True).decode()
    except ValueError:
        raise UserError(f"{place}: the file isn't a text in base64 and UTF-8.") from None
