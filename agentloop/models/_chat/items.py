"""The messages of Chat Completions: our items as its JSON. Pure.

A message can hold a text and several calls, so successive calls, and the text before them, share one message.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentloop.items import (
    AssistantMessage,
    HandoffCall,
    HandoffOutput,
    Item,
    Part,
    Reasoning,
    Refusal,
    SystemMessage,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.model_events import (
    ModelRequest,
)
from agentloop.models._codec import (
    JsonDict,
    encode_json,
    without_none,
)
from agentloop.models._common import (
    argument_text,
    chat_content,
    earlier_name,
    fit_call_id,
    no_form,
    output_text,
    plain_text,
)
from agentloop.models._pieces import CALL_TYPES, OUTPUT_TYPES, PieceCache

EXTRA = "chat_extra_content"
"""Key in a call's `provider_data` of the field `extra_content` that it came with."""
LOGPROBS = "chat_logprobs"
"""Key in a message's `provider_data` of the probabilities of its tokens, as they came."""
DETAILS = "chat_reasoning_details"
"""Key in a reasoning item's `provider_data` of the field `reasoning_details` that it came with: a router's signatures
of the thoughts, which some providers want back unchanged."""
_MOST_ID = 40
"""Characters of a call's id that the vendor takes; some servers make longer ones."""
WIRE_ID = "chat_call_id"
"""Key in a call's `provider_data` of the server's own id, if the run uses another id for the call."""


class MessageList:
    """Collects messages. Successive calls, and the text before them, share one assistant message."""

    def __init__(self, pieces: PieceCache, extra_content: bool, replay_reasoning: bool) -> None:
        self._pieces = pieces
        self._extra_content = extra_content
        self._replay_reasoning = replay_reasoning
        self._done: list[bytes] = []
        self._thoughts: bytes | None = None  # a field of the next assistant message
        self._by_id: dict[str, ToolCall | HandoffCall] = {}
        self._open: bytes | None = None  # the assistant message to which following calls are added, without those
        self._calls: list[bytes] = []

    def add_all(self, request: ModelRequest) -> list[bytes]:
        """Return the messages of *request*."""
        if request.system:
            self._done.append(encode_json({"role": "system", "content": request.system}))
        for index, item in enumerate(request.items):
            if isinstance(item, CALL_TYPES):
                self._by_id[item.call_id] = item
                self._add_call(item, f"items[{index}]")
            elif isinstance(item, Reasoning):
                if self._replay_reasoning and (fields := _reasoning_fields(item)):
                    self._thoughts = encode_json(fields)[1:-1]
            else:
                self._add(item, f"items[{index}]")
        if self._open is not None:
            self._close()
        return self._done

    def _add(self, item: Item, place: str) -> None:
        if self._open is not None:
            self._close()
        call = self._by_id.get(item.call_id) if isinstance(item, OUTPUT_TYPES) else None
        piece = self._pieces.find(item, call)
        if piece is None:
            piece = self._pieces.keep(item, encode_json(_message(item, call, place)), call)
        if isinstance(item, AssistantMessage):
            self._begin(piece)
        else:
            self._done.append(piece)

    def _add_call(self, item: ToolCall | HandoffCall, place: str) -> None:
        piece = self._pieces.find(item)
        if piece is None:
            piece = self._pieces.keep(item, encode_json(_call(item, self._extra_content, place)))
        if self._open is None:
            self._begin(_ONLY_CALLS)
        self._calls.append(piece)

    def _begin(self, message: bytes) -> None:
        self._open, self._thoughts = _add_fields(message, self._thoughts), None

    def _close(self) -> None:
        assert self._open is not None
        calls = b'"tool_calls":[%s]' % b",".join(self._calls) if self._calls else None
        self._done.append(_add_fields(self._open, calls))
        self._open, self._calls = None, []


def _reasoning_fields(item: Reasoning) -> JsonDict:
    details = (item.provider_data or {}).get(DETAILS)
    return without_none({"reasoning_content": "".join(item.content) or None, "reasoning_details": details or None})


_ONLY_CALLS = encode_json({"role": "assistant", "content": None})


def _add_fields(message: bytes, fields: bytes | None) -> bytes:
    return message if fields is None else b"%s,%s}" % (message[:-1], fields)


def _message(item: Item, call: ToolCall | HandoffCall | None, place: str) -> JsonDict:
    """Return the message of an item that isn't a call; an output answers *call*."""
    match item:
        case SystemMessage():
            return {"role": "system", "content": plain_text(item.content, place)}
        case UserMessage():
            return {"role": "user", "content": chat_content(item.content, place)}
        case AssistantMessage():
            return _assistant(item, place)
        case ToolOutput(kind="approval"):
            raise no_form(place, item)
        case HandoffOutput() | ToolOutput():
            call_id = item.call_id if call is None else _wire_id(call)
            return {"role": "tool", "tool_call_id": call_id, "content": output_text(item.output)}
        case _:
            raise no_form(place, item)


def _call(item: ToolCall | HandoffCall, extra_content: bool, place: str) -> JsonDict:
    if isinstance(item, ToolCall) and item.kind == "approval":
        raise no_form(place, item)
    call: JsonDict = {"id": _wire_id(item), "type": "function"}
    name = earlier_name(item.name)
    if isinstance(item, ToolCall) and item.kind == "custom":
        call |= {"type": "custom", "custom": {"name": name, "input": item.arguments}}
    else:
        call["function"] = {"name": name, "arguments": argument_text(item.arguments)}
    if extra_content and (extra := (item.provider_data or {}).get(EXTRA)):
        call["extra_content"] = extra
    return call


def _wire_id(call: ToolCall | HandoffCall) -> str:
    """Return the server's id of *call*: the run's, if the two don't differ."""
    given = call.provider_data.get(WIRE_ID) if isinstance(call.provider_data, Mapping) else None
    return given if isinstance(given, str) else fit_call_id(call.call_id, _MOST_ID)


def _assistant(item: AssistantMessage, place: str) -> JsonDict:
    words: list[Part] = [part for part in item.content if not isinstance(part, Refusal)]
    refusal = {} if item.refusal is None else {"refusal": item.refusal}
    return {"role": "assistant", "content": plain_text(words, place) or None} | refusal
