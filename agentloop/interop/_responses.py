"""Histories as input items of the Responses interface."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from agentloop._common.errors import UserTypeError, UserValueError
from agentloop.exceptions import ModelBehaviorError
from agentloop.interop._reading import EarlierCalls, JsonDict, Name, check, read_content, read_messages
from agentloop.items import (
    AssistantMessage,
    File,
    Image,
    Item,
    Part,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
    to_items,
)
from agentloop.models._common import CallIds
from agentloop.models._pieces import PieceCache
from agentloop.models._responses.items import note_reasoning, read_item, write_items

# ------------------------------------------------------------------------------------------------- forms


class _InputText(Struct, tag_field="type", tag="input_text"):
    text: str


class _InputImage(Struct, tag_field="type", tag="input_image"):
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class _InputFile(Struct, tag_field="type", tag="input_file"):
    file_data: str | None = None
    file_url: str | None = None
    file_id: str | None = None
    filename: str | None = None


class _OutputText(Struct, tag_field="type", tag="output_text"):
    text: str
    annotations: list[JsonDict] | None = None


class _OutputRefusal(Struct, tag_field="type", tag="refusal"):
    refusal: str


class _InputMessage(Struct):
    role: Literal["user", "system", "developer"]
    content: str | list[_InputText | _InputImage | _InputFile]


class _OutputMessage(Struct):
    content: str | list[_OutputText | _OutputRefusal]
    id: str | None = None


class _CallOutputItem(Struct):
    call_id: Name
    output: str | list[_InputText | _InputImage | _InputFile]


class _ApprovalResponse(Struct):
    approval_request_id: Name
    approve: bool
    reason: str | None = None


class _FunctionCallItem(Struct):
    call_id: Name
    name: Name
    arguments: str


class _CustomCallItem(Struct):
    call_id: Name
    name: Name
    input: str


class _ApprovalItem(Struct):
    id: Name
    name: Name
    server_label: Name
    arguments: str


class _ReasoningText(Struct):
    text: str


class _ReasoningItem(Struct):
    summary: list[_ReasoningText] | None = None
    content: list[_ReasoningText] | None = None
    encrypted_content: str | None = None


_FORMS: dict[str, type[Struct]] = {
    "function_call": _FunctionCallItem,
    "custom_tool_call": _CustomCallItem,
    "mcp_approval_request": _ApprovalItem,
    "reasoning": _ReasoningItem,
}

# ------------------------------------------------------------------------------------------------ in, out


def from_responses(items: Iterable[Any]) -> list[Item]:
    """Return the items of a history that is stored as input items of the Responses interface.

    The input of a run, or what a session begins with: for example what `result.to_input_list()` of openai-agents gave,
    or an input with the `output` of each response. An item is a dict, or an object of a client with `model_dump`.
    Items of tools that the provider ran, and those of kinds unknown here, go back to it unchanged.

    Args:
        items: The input items in their order.

    Raises:
        UserTypeError: a field doesn't fit; names it: `expected str, got int @ items[2].content`.
        UserValueError: an output has no call before it. Names the field.

    Example:
        from agentloop.interop import from_responses

        call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c1", "output": "Sunny."}
        print(from_responses([{"role": "user", "content": "Weather?"}, call, output])[2].output)  # Sunny.
    """
    read = _ItemReader()
    for turn, (place, plain) in enumerate(read_messages(items, "items"), 1):
        read.add(plain, place, turn)
    return read.items


def to_responses(items: str | Iterable[Item]) -> list[JsonDict]:
    """Return *items* as input items of the Responses interface, as a request of `OpenAIResponsesModel` has them.

    Reasoning of other providers is left out, and so is the provider's own if the item that came of it isn't there.

    Args:
        items: The history, for example `result.to_input_list()`.

    Raises:
        UserError: an item or part has no form there; names its place: `items[3].content[0]: Audio has no form …`.

    Example:
        from agentloop.interop import to_responses

        print(to_responses("hi"))  # [{'role': 'user', 'content': 'hi'}]
    """
    return [json.loads(piece) for _, piece in write_items(to_items(items), PieceCache())]


# ------------------------------------------------------------------------------------------------- reading


class _ItemReader:
    """Reads items one by one. `items` are those so far."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._calls = EarlierCalls()
        self._reasoning: str | None = None
        """The id of the reasoning in the answer that the items are of."""

    def add(self, plain: JsonDict, place: str, turn: int) -> None:
        """Read the item *plain*."""
        kind = plain.get("type", "message")
        if not isinstance(kind, str):
            raise UserTypeError(f"expected str, got {type(kind).__name__} @ {place}.type")
        match kind:
            case "message" if plain.get("role") == "assistant":
                said = check(plain, _OutputMessage, place)
                self._add_answer(
                    AssistantMessage(said.content, id=said.id)
                    if isinstance(said.content, str)
                    else self._read(plain, place, turn)
                )
            case "message":
                message = check(plain, _InputMessage, place)
                content = read_content(message.content, _read_part, f"{place}.content")
                self._add_other(UserMessage(content) if message.role == "user" else SystemMessage(content))
            case "function_call_output" | "custom_tool_call_output":
                answer = check(plain, _CallOutputItem, place)
                call = self._calls.find(answer.call_id, f"{place}.call_id")
                output = read_content(answer.output, _read_part, f"{place}.output")
                self._add_other(ToolOutput(call.call_id, output, kind=call.kind))
            case "mcp_approval_response":
                verdict = check(plain, _ApprovalResponse, place)
                call = self._calls.find(verdict.approval_request_id, f"{place}.approval_request_id")
                rejected = not verdict.approve
                self._add_other(ToolOutput(call.call_id, verdict.reason or "", kind="approval", is_error=rejected))
            case _:
                if (form := _FORMS.get(kind)) is not None:
                    check(plain, form, place)
                self._add_answer(self._read(plain, place, turn))

    def _read(self, plain: JsonDict, place: str, turn: int) -> Item:
        ids = CallIds(self._calls.make_request(turn))
        try:
            item = read_item(plain, lambda given: ids.assign(given, 1))
        except ModelBehaviorError as error:
            raise UserValueError(f"{place}: {error}") from None
        if isinstance(item, ToolCall):
            self._calls.add(plain["id"] if item.kind == "approval" else plain["call_id"], item)
        return item

    def _add_answer(self, item: Item) -> None:
        if isinstance(item, Reasoning):
            self._reasoning = item.id or self._reasoning
        elif self._reasoning is not None:
            item = note_reasoning(item, self._reasoning)
        self.items.append(item)

    def _add_other(self, item: Item) -> None:
        self._reasoning = None
        self.items.append(item)


def _read_part(part: _InputText | _InputImage | _InputFile) -> Part:
    match part:
        case _InputText():
            return Text(part.text)
        case _InputImage():
            return Image(part.image_url, part.detail, file_id=part.file_id)
        case _InputFile():
            return File(part.file_data, part.file_url, part.filename, file_id=part.file_id)
