"""What a model meant by a JSON value that doesn't fit its schema: three habits with one meaning each.

* `5.0` or `1e3` where an integer is wanted: an integral float is an integer in JSON schema.
* `"5"`, `"true"`, `"[1, 2]"` where no string fits: local and routed models often write a value as JSON in a string.
  It is read once.
* `"19:30"`, `"2024-05-01T10:00"`, or a date where a date and a time are wanted: whatever `fromisoformat` reads.

We come here only after a conversion has failed, so that a value that fits costs nothing and keeps its meaning. The
schema decides what a value may be, because msgspec's types and pydantic's both have one. Pure; knows no types.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

from agentloop._common.strict_json import read_strict
from agentloop._schema.json_schema import choices, item_schema, object_schema

_ANYTHING = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def reread(value: Any, schema: Any, defs: Mapping[str, Any], *, strings: bool = True) -> Any:
    """Return *value* as its author meant it by *schema*, or *value* itself where nothing is known to be meant.

    *strings*: True to read JSON in a string where no string fits.
    """
    if isinstance(value, list):
        return [reread(each, item_schema(schema, at, defs), defs, strings=strings) for at, each in enumerate(value)]
    if isinstance(value, dict):
        plain = object_schema(schema, value, defs)
        properties, others = plain.get("properties", {}), plain.get("additionalProperties", True)
        return {key: reread(each, properties.get(key, others), defs, strings=strings) for key, each in value.items()}
    kinds = _kinds_of(schema, defs)
    if isinstance(value, float) and value.is_integer() and "integer" in kinds and "number" not in kinds:
        return int(value)
    if isinstance(value, str):
        if "string" in kinds:
            return _reread_time(value, schema, defs)
        if strings:
            return _read_string(value, schema, defs)
    return value


def _read_string(text: str, schema: Any, defs: Mapping[str, Any]) -> Any:
    try:
        value = read_strict(text)
    except (ValueError, RecursionError):
        return text
    # Only once: a string within a string stays what it is.
    return text if isinstance(value, str) else reread(value, schema, defs)


def _kinds_of(schema: Any, defs: Mapping[str, Any]) -> frozenset[str]:
    """Return the JSON types of the values that fit *schema*."""
    kinds: set[str] = set()
    for choice in choices(schema, defs):
        if not isinstance(choice, dict):
            return _ANYTHING
        if "enum" in choice or "const" in choice:
            kinds |= {_KINDS.get(type(each), "object") for each in choice.get("enum", (choice.get("const"),))}
        elif isinstance(choice.get("type"), str):
            kinds.add(choice["type"])
        else:
            kinds |= frozenset(choice.get("type", _ANYTHING))
    return frozenset(kinds)


def _reread_time(text: str, schema: Any, defs: Mapping[str, Any]) -> str:
    formats = {choice.get("format") for choice in choices(schema, defs) if isinstance(choice, dict)}
    for form in formats & _TIMES.keys():
        try:
            return _TIMES[form](text)
        except ValueError:
            continue
    return text


def _to_date(text: str) -> str:
    moment = datetime.datetime.fromisoformat(text)
    # A midnight is a date; another time of the day would be lost.
    return moment.date().isoformat() if moment.time() == datetime.time() else text


_TIMES: dict[Any, Callable[[str], str]] = {
    "date-time": lambda text: datetime.datetime.fromisoformat(text).isoformat(),
    "time": lambda text: datetime.time.fromisoformat(text).isoformat(),
    "date": _to_date,
}
"""By the format that a schema names: from what `fromisoformat` reads to the form of RFC 3339."""
