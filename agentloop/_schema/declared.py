"""Parts of a type that msgspec's schema leaves out: the format of a time, the order of choices, words of a field.

msgspec reads a date and time with or without an offset, so it names no format unless a type demands one; but a model
that knows no format writes what people write. `date-time` and `time` are what providers know. msgspec also sorts the
choices of a `Literal` or an enum; in the order of the declaration (`low, medium, high`) they say more. And it ignores
a plain text beside a type, as in `seats: Annotated[int, "How many seats"]`, which is a description everywhere else.

The schema is walked side by side with msgspec's own description of the type (`msgspec.inspect`), which it was made of.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import inspect as described

from agentloop._schema.json_schema import Schema, ref_name
from agentloop._schema.parameter_hints import words_of

_FORMATS = {described.DateTimeType: "date-time", described.TimeType: "time"}
_Choices = dict[frozenset[tuple[type, Any]], list[Any]]


def add_declared(hints: Sequence[Any], schemas: Sequence[Schema], defs: Mapping[str, Schema]) -> None:
    """Add formats and words to *schemas* and *defs*, which msgspec made of *hints*, and order the choices; in place."""
    walk = _Walk(defs)
    for hint, schema in zip(hints, schemas, strict=True):
        walk.read_choices(hint)
        walk.visit(msgspec.inspect.type_info(hint), schema)


class _Walk:
    def __init__(self, defs: Mapping[str, Schema]) -> None:
        self._defs = defs
        self._seen: set[str] = set()
        self._read: set[Any] = set()
        self._choices: _Choices = {}

    def visit(self, info: described.Type, schema: Any) -> None:
        while isinstance(info, described.Metadata):
            info = info.type
        if not isinstance(schema, dict):
            return
        if name := ref_name(schema):
            if name in self._seen or name not in self._defs:
                return
            self._seen.add(name)
            schema = self._defs[name]
        if form := _FORMATS.get(type(info)):
            # Both formats are of times with an offset. msgspec has its own for a time without one.
            schema.setdefault("format", form if getattr(info, "tz", None) is not False else f"{form}-local")
        elif "enum" in schema:
            self._order(info, schema)
        else:
            for child, within in self._children(info, schema):
                self.visit(child, within)

    def _order(self, info: described.Type, schema: Schema) -> None:
        values = [member.value for member in info.cls] if isinstance(info, described.EnumType) else None
        order = values or self._choices.get(_key(schema["enum"]))
        if order is not None and _key(order) == _key(schema["enum"]):
            schema["enum"] = order

    def _children(self, info: described.Type, schema: Schema) -> Iterable[tuple[described.Type, Any]]:
        match info:
            case described.CollectionType(item_type=item):
                return [(item, schema.get("items"))]
            case described.TupleType(item_types=items):
                return zip(items, schema.get("prefixItems", ()), strict=False)
            case described.DictType(value_type=value):
                return [(value, schema.get("additionalProperties"))]
            case described.UnionType(types=types):
                return _members(types, schema)
        fields: Sequence[described.Field] = getattr(info, "fields", ())
        if not fields:
            return ()
        cls = getattr(info, "cls", None)
        self.read_choices(cls)
        properties = schema.get("properties", {})
        members = schema.get("prefixItems") or [properties.get(field.encode_name) for field in fields]  # a NamedTuple
        hints = _hints_of(cls)
        for field, member in zip(fields, members, strict=False):
            if isinstance(member, dict) and (words := words_of(hints.get(field.name))):
                member.setdefault("description", words)
        return zip((field.type for field in fields), members, strict=False)

    def read_choices(self, hint: Any) -> None:
        """Note the choices of each `Literal` in *hint*, as declared."""
        if typing.get_origin(hint) is typing.Literal:
            values = list(typing.get_args(hint))
            self._choices.setdefault(_key(values), values)
        for argument in typing.get_args(hint):
            self.read_choices(argument)
        if isinstance(hint, type) and hint not in self._read:
            self._read.add(hint)
            for member in _hints_of(hint).values():
                self.read_choices(member)


def _hints_of(cls: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception:  # a name known to msgspec only; then its choices stay sorted, and its fields without words
        return {}


def _members(types: Sequence[described.Type], schema: Schema) -> Iterable[tuple[described.Type, Any]]:
    """Pair the members of a union with their schemas: msgspec writes tagged structs together, and null last."""
    plain = [member for member in types if _bare(member) is not described.NoneType]
    structs = [member for member in plain if _bare(member) is described.StructType]
    others = [member for member in plain if _bare(member) is not described.StructType]
    options = list(schema.get("anyOf", ()))
    if len(structs) < 2:
        return zip(others + structs, options, strict=False)
    tagged: Schema = next((option for option in [schema, *options] if "discriminator" in option), {})
    return [*zip(others, options, strict=False), *zip(structs, tagged.get("anyOf", ()), strict=False)]


def _bare(info: described.Type) -> type[described.Type]:
    while isinstance(info, described.Metadata):
        info = info.type
    return type(info)


def _key(values: Iterable[Any]) -> frozenset[tuple[type, Any]]:
    return frozenset((type(value), value) for value in values)
