"""The meaning of a JSON value that doesn't fit its schema: three habits with one meaning each.

* `5.0` or `1e3` where an integer is wanted: an integral float is an integer in JSON schema.
* `"5"`, `"true"`, `"[1, 2]"` where no string fits: local and routed models often write a value as JSON in a string.
  It is read once. `"True"` and `"None"`, as Python writes them, are such values too. Where only some strings fit (a
  choice, a date), the others are read: `"5"` for `int | Literal["auto"]`, `"null"` for `date | None`.
* `"19:30"`, `"2024-05-01T10:00"`, or a date where a date and a time are wanted: all that `fromisoformat` reads.

We come here only after a conversion has failed, so that a value that fits costs nothing and keeps its meaning. The
schema decides what a value may be, because msgspec's types and pydantic's both have one. Pure; knows no types.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Mapping
from typing import Any

from agentloop._common.strict_json import read_strict
from agentloop._schema.json_schema import choices, item_schema, object_schema

_ANYTHING = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_WORDS = {"true": True, "false": False, "null": None, "none": None}
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
        if _may_be_text(value, schema, defs):
            return _reread_time(value, schema, defs)
        if strings:
            return _read_string(value, schema, defs)
    return value


def _may_be_text(text: str, schema: Any, defs: Mapping[str, Any]) -> bool:
    return any(_admits(text, choice) for choice in choices(schema, defs))


def _admits(text: str, choice: Any) -> bool:
    """Tell whether *text* may be meant by a schema without a union: the conversion has the last word."""
    if not isinstance(choice, dict):
        return True
    if "enum" in choice or "const" in choice:
        return text in choice.get("enum", (choice.get("const"),))
    # A text with a format isn't a word for nothing, in any format.
    return "string" in choice.get("type", _ANYTHING) and ("format" not in choice or _word(text) is not None)


def _word(text: str) -> Any:
    return _WORDS.get(text.strip().lower(), text)


def _read_string(text: str, schema: Any, defs: Mapping[str, Any]) -> Any:
    try:
        value = read_strict(text)
    except (ValueError, RecursionError):
        return _word(text)
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
    for form, read in _TIMES.items():
        if form in formats:
            with contextlib.suppress(ValueError):
                return read(text)
    return text


def _to_moment(text: str) -> str:
    return datetime.datetime.fromisoformat(text).isoformat()


def _to_time(text: str) -> str:
    return datetime.time.fromisoformat(text).isoformat()


def _to_date(text: str) -> str:
    moment = datetime.datetime.fromisoformat(text)
    if moment.time() != datetime.time():
        raise ValueError("a time of the day, which would be lost")
    return moment.date().isoformat()


_TIMES: dict[str, Callable[[str], str]] = {
    "date": _to_date,  # first: a midnight, where both a date and a moment fit, is a date
    "date-time": _to_moment,
    "date-time-local": _to_moment,
    "time": _to_time,
    "partial-time": _to_time,  # msgspec's name for a time without an offset
}
"""By the format that a schema names: from what `fromisoformat` reads to the form of RFC 3339."""
