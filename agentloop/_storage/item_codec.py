"""Items as JSON, and back: what sessions, stored states and journals hold.

An item is an object with its kind under `type`; parts of content likewise. Fields at their default are left out, so
that a stored item reads the same after the library has learnt a new field. Only the kinds of `agentloop.items` are ever
built. An object of another kind becomes an `OpaqueItem` and is kept whole; a known kind that doesn't fit is a fault.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from agentloop import items as i
from agentloop._storage.json_bytes import decode, encode
from agentloop._storage.typed_codec import (
    CodecError,
    Context,
    TypedCodec,
    class_form,
    fault_text,
    hiding,
    hiding_arguments,
    kind_of,
    many,
    read_object,
    tagged,
)
from agentloop._storage.withholding import WithheldText, is_mark
from agentloop.exceptions import StateError, UserTypeError

_ITEM_KINDS: Mapping[type, str] = {
    i.SystemMessage: "system_message",
    i.UserMessage: "user_message",
    i.AssistantMessage: "assistant_message",
    i.Reasoning: "reasoning",
    i.ToolCall: "tool_call",
    i.ToolOutput: "tool_output",
    i.HandoffCall: "handoff_call",
    i.HandoffOutput: "handoff_output",
    i.HostedToolCall: "hosted_tool_call",
    i.ApprovalRequest: "approval_request",
    i.Compaction: "compaction",
    i.OpaqueItem: "opaque_item",
}
_MESSAGES = (i.SystemMessage, i.UserMessage, i.AssistantMessage)
_PART_KINDS: Mapping[type, str] = {i.Text: "text", i.Image: "image", i.File: "file", i.Refusal: "refusal"}
_PART: Any = i.Part
_PARTS: Any = tuple[i.Part, ...]
_CONTENT: Any = i.Content
_JSON_OBJECT: Any = i.JsonObject
_ITEM: Any = i.Item


def item_to_json(item: i.Item) -> dict[str, Any]:
    """Return *item* as a JSON object, a new one; `provider_data` and `data` stand in it as they are.

    Raises:
        UserTypeError: if *item* is no item.
    """
    if type(item) not in _ITEM_KINDS:
        raise UserTypeError(f"an item is needed, not {type(item).__name__}")
    written: dict[str, Any] = _plain_form().written(item)
    return written


def item_from_json(data: Mapping[str, Any], *, path: str = "$") -> i.Item:
    """Return the item that *data* stands for. `item_from_json(item_to_json(item)) == item`.

    A `type` unknown here gives an `OpaqueItem` that holds *data* whole.

    Raises:
        StateError: naming each place below *path* (a few of them) that doesn't fit: a value of the wrong kind, a field
            that is missing or unknown, no `type`. Values aren't quoted.
    """
    try:
        item: i.Item = _plain_form().read(data, None)
        return item
    except Exception as error:
        raise StateError(f"Malformed item: {fault_text(error, path)}") from None


@functools.cache  # made at first use: who imports the package needn't have it
def _plain_form() -> TypedCodec:
    return item_forms(TypedCodec(read_object, lambda value, _context: dict(value)))[_ITEM]


def item_forms(objects: TypedCodec) -> dict[Any, TypedCodec]:
    """Return the forms of items, parts and content, by their hints; *objects* is that of what a provider sent."""
    known: dict[Any, TypedCodec] = {_JSON_OBJECT: objects}
    parts = {cls: (kind, class_form(cls, known)) for cls, kind in _PART_KINDS.items()}
    known[_PART] = tagged(parts, "type", "an object is needed whose type is text, image, file or refusal")
    known[_PARTS] = _parts_form(many(known[_PART]))
    known[_CONTENT] = _content_form(known[_PARTS])
    items: dict[type, tuple[str, TypedCodec]] = {}
    for cls, kind in _ITEM_KINDS.items():
        known[cls] = _hidden(cls, class_form(cls, known))
        items[cls] = (kind, known[cls])
    known[_ITEM] = _item_form(items)
    return known


def _hidden(cls: type, form: TypedCodec) -> TypedCodec:
    if cls is i.ToolCall:
        return hiding_arguments(form)
    if cls is i.ToolOutput:
        return hiding(form, ("output",))
    return hiding(form, ("content",)) if cls in _MESSAGES else form


def _parts_form(parts: TypedCodec) -> TypedCodec:
    def read(value: Any, context: Context) -> Any:
        if is_mark(value):  # as below
            return (i.Text(WithheldText(encode(value).decode())),)
        return parts.read(value, context)

    def write(value: Any, context: Context) -> Any:
        if len(value) == 1 and isinstance(value[0], i.Text) and isinstance(value[0].text, WithheldText):
            return decode(value[0].text.encode())
        return parts.written(value, context)

    return TypedCodec(read, write)


def _content_form(parts: TypedCodec) -> TypedCodec:
    def read(value: Any, context: Context) -> Any:
        if is_mark(value):  # an output that was hidden and can't be read: its mark stands for it, as text
            return WithheldText(encode(value).decode())
        return value if isinstance(value, str) else parts.read(value, context)

    def write(value: Any, context: Context) -> Any:
        if isinstance(value, WithheldText):
            return decode(value.encode())
        return value if isinstance(value, str) else parts.written(value, context)

    return TypedCodec(read, write)


def _item_form(items: Mapping[type, tuple[str, TypedCodec]]) -> TypedCodec:
    readers = {kind: form.read for kind, form in items.values()}

    def read(value: Any, context: Context) -> i.Item:
        if not isinstance(value, Mapping):
            raise CodecError(f"an object is needed, not {kind_of(value)}")
        fields = dict(value)
        kind = fields.pop("type", None)
        if not isinstance(kind, str):
            raise CodecError("its type is needed, as text", ".type")
        reader = readers.get(kind)
        if reader is None:
            return i.OpaqueItem(dict(value))
        item: i.Item = reader(fields, context)
        return item

    return TypedCodec(read, tagged(items, "type", "").write)
