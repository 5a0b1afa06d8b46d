"""The codec of items: to JSON and back, for sessions, stored states and journals.

An item is an object with its kind under `type`; so is a part of content. Fields at their default are left out, so that
a stored item reads the same after a version of the library adds a field. Only the kinds of `agentloop.items` are ever
built. An object of another kind becomes an `OpaqueItem` and is kept whole; a known kind that doesn't fit is a fault.
Does not know about records or stores.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, get_args

from agentloop import items as i
from agentloop._common.errors import StateError, UserTypeError
from agentloop._storage.json_bytes import decode, encode
from agentloop._storage.typed_codec import (
    CodecError,
    Context,
    TypedCodec,
    class_form,
    fault_text,
    hide_call_arguments,
    hide_fields,
    kind_of,
    many,
    read_object,
    union_of,
)
from agentloop._storage.withholding import WithheldText, is_mark

_ITEM_KINDS: Mapping[type, str] = {cls: str(cls.__struct_config__.tag) for cls in get_args(i.Item)}
_MESSAGES = (i.SystemMessage, i.UserMessage, i.AssistantMessage)
_PART_KINDS: Mapping[type, str] = {cls: str(cls.__struct_config__.tag) for cls in get_args(i.Part)}
_ANNOTATION_KINDS: Mapping[type, str] = {cls: str(cls.__struct_config__.tag) for cls in get_args(i.Annotation)}
_ANY: Any = Any
_ANNOTATION: Any = i.Annotation
_PART: Any = i.Part
_PARTS: Any = tuple[i.Part, ...]
_CONTENT: Any = i.Content
_JSON_OBJECT: Any = i.JsonObject
_ITEM: Any = i.Item


def item_to_json(item: i.Item) -> dict[str, Any]:
    """Return *item* as a new JSON object; it holds `provider_data` and `data` unchanged.

    Raises:
        UserTypeError: if *item* is no item.
    """
    if type(item) not in _ITEM_KINDS:
        raise UserTypeError(f"an item is needed, not {type(item).__name__}")
    written: dict[str, Any] = _unhidden_codec().written(item)
    return written


def item_from_json(data: Mapping[str, Any], *, path: str = "$") -> i.Item:
    """Return the item that was written as *data*. `item_from_json(item_to_json(item)) == item`.

    A `type` unknown here gives an `OpaqueItem` that holds *data* whole.

    Raises:
        StateError: naming the first places below *path* that don't fit: a value of the wrong kind, a field that is
            missing or unknown, no `type`. Values aren't quoted.
    """
    try:
        item: i.Item = _unhidden_codec().read(data, None)
        return item
    except Exception as error:
        raise StateError(f"Malformed item: {fault_text(error, path)}") from None


@functools.cache  # made at first use, so that importing the package doesn't pay for it
def _unhidden_codec() -> TypedCodec:
    return item_forms(TypedCodec(read_object, lambda value, _context: dict(value)), AS_IT_IS)[_ITEM]


AS_IT_IS = TypedCodec(lambda value, _context: value)
"""The codec of JSON data that is stored unchanged."""


def item_forms(objects: TypedCodec, values: TypedCodec) -> dict[Any, TypedCodec]:
    """Return the codecs of items, parts and content, by their type hints.

    *objects* is the codec of provider data, *values* that of any other JSON a provider sent.
    """
    known: dict[Any, TypedCodec] = {_JSON_OBJECT: objects, _ANY: values}
    known[i.Caller] = class_form(i.Caller, known)
    annotations = {cls: (kind, class_form(cls, known)) for cls, kind in _ANNOTATION_KINDS.items()}
    known[_ANNOTATION] = union_of(annotations, "type", "an object is needed whose type is that of a citation")
    parts = {cls: (kind, class_form(cls, known)) for cls, kind in _PART_KINDS.items()}
    known[_PART] = union_of(parts, "type", "an object is needed whose type is text, image, audio, file or refusal")
    known[_PARTS] = _parts_codec(many(known[_PART]))
    known[_CONTENT] = _content_codec(known[_PARTS])
    items: dict[type, tuple[str, TypedCodec]] = {}
    for cls, kind in _ITEM_KINDS.items():
        known[cls] = _hide_secrets(cls, class_form(cls, known))
        items[cls] = (kind, known[cls])
    known[_ITEM] = _item_codec(items)
    return known


def _hide_secrets(cls: type, form: TypedCodec) -> TypedCodec:
    if cls is i.ToolCall:
        return hide_call_arguments(form)
    if cls is i.ToolOutput:
        return hide_fields(form, ("output",))
    return hide_fields(form, ("content",)) if cls in _MESSAGES else form


def _parts_codec(parts: TypedCodec) -> TypedCodec:
    def read(value: Any, context: Context) -> Any:
        if is_mark(value):  # hidden content that can't be read: as in `_content_codec`
            return (i.Text(WithheldText(encode(value).decode())),)
        return parts.read(value, context)

    def write(value: Any, context: Context) -> Any:
        if len(value) == 1 and isinstance(value[0], i.Text) and isinstance(value[0].text, WithheldText):
            return decode(value[0].text.encode())
        return parts.written(value, context)

    return TypedCodec(read, write)


def _content_codec(parts: TypedCodec) -> TypedCodec:
    def read(value: Any, context: Context) -> Any:
        if is_mark(value):  # a hidden output that can't be read becomes its mark as text, to be written again as it was
            return WithheldText(encode(value).decode())
        return value if isinstance(value, str) else parts.read(value, context)

    def write(value: Any, context: Context) -> Any:
        if isinstance(value, WithheldText):
            return decode(value.encode())
        return value if isinstance(value, str) else parts.written(value, context)

    return TypedCodec(read, write)


def _item_codec(items: Mapping[type, tuple[str, TypedCodec]]) -> TypedCodec:
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

    return TypedCodec(read, union_of(items, "type", "").write)
