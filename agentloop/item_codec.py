"""Items as JSON, and back: what sessions, stored states and journals hold.

An item is an object with its kind under `type`; parts of content likewise. Fields at their default are left out, so
that a stored item reads the same after the library has learnt a new field. Only the kinds of `agentloop.items` are ever
built. An object of another kind becomes an `OpaqueItem` and is kept whole; a known kind that doesn't fit is a fault.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_args, get_origin

from agentloop import items as i
from agentloop.error_text import bounded
from agentloop.exceptions import StateError, UserTypeError

if TYPE_CHECKING:
    from cattrs import Converter

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
_PART_KINDS: Mapping[type, str] = {i.Text: "text", i.Image: "image", i.File: "file", i.Refusal: "refusal"}
_ITEM_TYPES = {kind: cls for cls, kind in _ITEM_KINDS.items()}
_PART_TYPES = {kind: cls for cls, kind in _PART_KINDS.items()}
_MOST_FAULTS = 3
_JSON_OBJECT: Any = i.JsonObject
_PART: Any = i.Part
_CONTENT: Any = i.Content


class _Fault(ValueError):
    """A value that doesn't fit; its text says what is needed, without quoting the value."""


def item_to_json(item: i.Item) -> dict[str, Any]:
    """Return *item* as a JSON object, a new one; `provider_data` and `data` stand in it as they are.

    Raises:
        UserTypeError: if *item* is no item.
    """
    kind = _ITEM_KINDS.get(type(item))
    if kind is None:
        raise UserTypeError(f"an item is needed, not {type(item).__name__}")
    return {"type": kind, **_converter().unstructure(item)}


def item_from_json(data: Mapping[str, Any], *, path: str = "$") -> i.Item:
    """Return the item that *data* stands for. `item_from_json(item_to_json(item)) == item`.

    A `type` unknown here gives an `OpaqueItem` that holds *data* whole.

    Raises:
        StateError: naming each place below *path* (a few of them) that doesn't fit: a value of the wrong kind, a field
            that is missing or unknown, no `type`. Values aren't quoted.
    """
    if not isinstance(data, Mapping):
        raise StateError(f"Malformed item: an object is needed, not {_kind_of(data)} @ {path}")
    kind = data.get("type")
    if not isinstance(kind, str):
        raise StateError(f"Malformed item: its type is needed, as text @ {path}.type")
    cls = _ITEM_TYPES.get(kind)
    if cls is None:
        return i.OpaqueItem(dict(data))
    fields = {name: value for name, value in data.items() if name != "type"}
    try:
        item: i.Item = _converter().structure(fields, cls)
        return item
    except Exception as error:  # cattrs gathers faults in a group of its own
        raise StateError(f"Malformed item: {_faults(error, path)}") from None


def _faults(error: Exception, path: str) -> str:
    from cattrs import transform_error

    faults = transform_error(error, path, _wording)
    more = [f"{len(faults) - _MOST_FAULTS} more"] if len(faults) > _MOST_FAULTS else []
    return bounded("; ".join([*faults[:_MOST_FAULTS], *more]))


def _wording(error: BaseException, _cls: type | None) -> str:
    from cattrs.errors import ForbiddenExtraKeysError

    match error:
        case KeyError():
            return "a required field is missing"
        case ForbiddenExtraKeysError():
            return f"unknown: {', '.join(sorted(map(repr, error.extra_fields)))}"
        case _Fault():
            return str(error)
    return f"{type(error).__name__}"


@functools.cache  # immutable once made; built at first use because importing cattrs costs more than all of the package
def _converter() -> Converter:
    from cattrs import Converter
    from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn

    made = Converter(forbid_extra_keys=True, omit_if_default=True)
    made.register_structure_hook(str, _structure_text)
    made.register_structure_hook_func(lambda hint: hint == _JSON_OBJECT, _structure_object)
    made.register_unstructure_hook_func(lambda hint: hint == _JSON_OBJECT, dict)
    made.register_structure_hook_factory(_is_tuple, functools.partial(_tuple_structurer, made))
    made.register_unstructure_hook_factory(_is_tuple, functools.partial(_tuple_unstructurer, made))
    made.register_structure_hook_func(lambda hint: hint == _PART, functools.partial(_structure_part, made))
    made.register_unstructure_hook_func(lambda hint: hint == _PART, functools.partial(_unstructure_part, made))
    made.register_structure_hook_func(lambda hint: hint == _CONTENT, functools.partial(_structure_content, made))
    made.register_unstructure_hook_func(lambda hint: hint == _CONTENT, functools.partial(_unstructure_content, made))
    for cls in (*_PART_KINDS, *_ITEM_KINDS):
        made.register_structure_hook(cls, _object_only(make_dict_structure_fn(cls, made)))
        made.register_unstructure_hook(cls, make_dict_unstructure_fn(cls, made, _cattrs_omit_if_default=True))
    return made


def _kind_of(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _structure_text(value: Any, _hint: Any) -> str:
    if not isinstance(value, str):
        raise _Fault(f"text is needed, not {_kind_of(value)}")
    return value


def _structure_object(value: Any, _hint: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _Fault(f"an object is needed, not {_kind_of(value)}")
    return dict(value)


def _object_only(structure: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def checked(value: Any, hint: Any) -> Any:
        return structure(_structure_object(value, hint), hint)

    return checked


def _is_tuple(hint: Any) -> bool:
    return get_origin(hint) is tuple and get_args(hint)[1:] == (...,)


def _tuple_structurer(converter: Converter, hint: Any) -> Callable[[Any, Any], tuple[Any, ...]]:
    as_list: Any = list[get_args(hint)[0]]  # type: ignore[misc]  # a hint made at run time
    structure = converter.get_structure_hook(as_list)

    def structured(value: Any, _hint: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):  # a text is iterable too
            raise _Fault(f"an array is needed, not {_kind_of(value)}")
        return tuple(structure(value, as_list))

    return structured


def _tuple_unstructurer(converter: Converter, hint: Any) -> Callable[[Any], list[Any]]:
    member = get_args(hint)[0]

    def unstructured(value: tuple[Any, ...]) -> list[Any]:
        return [converter.unstructure(each, member) for each in value]

    return unstructured


def _structure_part(converter: Converter, value: Any, hint: Any) -> i.Part:
    fields = _structure_object(value, hint)
    kind = fields.pop("type", None)
    if not isinstance(kind, str) or kind not in _PART_TYPES:
        raise _Fault("an object is needed whose type is text, image, file or refusal")
    part: i.Part = converter.structure(fields, _PART_TYPES[kind])
    return part


def _unstructure_part(converter: Converter, part: i.Part) -> dict[str, Any]:
    return {"type": _PART_KINDS[type(part)], **converter.unstructure(part)}


def _structure_content(converter: Converter, value: Any, _hint: Any) -> i.Content:
    if isinstance(value, str):
        return value
    parts: tuple[i.Part, ...] = converter.structure(value, tuple[_PART, ...])
    return parts


def _unstructure_content(converter: Converter, content: i.Content) -> str | list[Any]:
    if isinstance(content, str):
        return content
    return [_unstructure_part(converter, part) for part in content]
