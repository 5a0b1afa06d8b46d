"""The codec of any Python value: to JSON, and back as plain data. For tool outputs, final outputs, callbacks' answers.

Nothing is imported by name and nothing is pickled: only JSON's own types, bytes, and the library's own values (items,
parts, verdicts) come back. Objects of the application are written field by field and come back as mappings; an object
without fields is written as its bounded repr and comes back as that text. A value that JSON lacks is an object with one
key that begins with `$`:

    {"$bytes": BASE64}  {"$float": "nan"}  {"$int": "0x…"}  {"$map": [[key, value], …]}  {"$repr": TEXT}
    {"$item": {…}}  {"$part": {…}}  {"$value": {"type": …}}  {"$digest": …}  {"$sealed": …}

A mapping with a key that isn't text, or that begins with `$`, is written as `$map`. Does not know about records.
"""

from __future__ import annotations

import base64
import binascii
import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import functools
import json
import pathlib
import re
import reprlib
import uuid
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import attrs
import msgspec

from agentloop import guardrails as g
from agentloop import items as i
from agentloop._common.error_text import shorten
from agentloop._storage.faults import CodecError, kind_of, read_at, read_whole
from agentloop._storage.stored_forms import ITEMS, Context, read_number, read_part, to_object, to_tree
from agentloop._storage.withholding import DIGESTS, Secrets, Withheld, WithheldText
from agentloop.config import ErrorHandlerResult, ModelInputData
from agentloop.handoffs import HandoffInputData
from agentloop.tools import ToolsToFinalOutput

MAX_DEPTH = 64
"""Levels of nesting that are written; deeper values become a repr."""
MAX_MEMBERS = 1_000_000
"""Most members of all containers together: a small value may hold one list a billion times."""

_REPR_CHARS = 500
_ADDRESS = re.compile(r"(?: at)? 0x[0-9A-Fa-f]{6,}")
_PLAIN = frozenset({type(None), bool, str})
_CONTAINERS = frozenset({dict, list, tuple, set, frozenset})
_TEXTUAL = (decimal.Decimal, uuid.UUID, pathlib.PurePath)
_TIMES = (datetime.date, datetime.time)
_LISTS = (list, tuple, collections.deque)
_SETS = (set, frozenset)
_NOT_SIMPLE: Any = object()
_PART: Any = i.Part


class Shown(str):
    """The repr of an object that couldn't be kept. Its own text type, so that it is written again as a repr."""

    __slots__ = ()


def value_to_json(value: Any, secrets: Secrets | None = DIGESTS) -> Any:
    """Return *value* as JSON. Never fails: a cycle, a value too deep, and one that can't be read become a repr.

    *secrets* hides values marked secret in items (by default as digests); with None they are written in the clear.
    """
    return _Writing(secrets).write(value, 0)


def value_from_json(data: Any, *, path: str = "$", secrets: Secrets | None = DIGESTS) -> Any:
    """Return the value that was written as *data*; `value_to_json` turns it into *data* again.

    Raises:
        StateError: naming the first places below *path* that don't fit. Values aren't quoted.
    """
    return read_whole("value", path, read_value, data, secrets)


# -- writing


class _Writing:
    """State of writing one value: the number of members it may still have, and the ids of the objects around it."""

    __slots__ = ("convert", "inside", "left", "secrets")

    def __init__(self, secrets: Secrets | None) -> None:
        self.secrets = secrets
        converter = None if secrets is None else secrets.converter
        self.convert = None if converter is None else converter.unstructure
        self.left = MAX_MEMBERS
        self.inside: set[int] = set()

    def write(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is int:
            return _write_whole(value)
        if kind is float:
            return _write_number(value)
        try:
            if self.convert is not None and kind not in _CONTAINERS and not _is_ours(kind):
                plain = self.convert(value)
                if type(plain) is not kind:  # else the application has no hook for it
                    return self.write(plain, depth + 1)
            simple = _NOT_SIMPLE if kind is dict or kind is list else _write_simple(value)
            return self._write_bounded(value, kind, depth) if simple is _NOT_SIMPLE else simple
        except Exception:  # a mapping, a model or a property of the application's that fails; no stack left
            return _as_repr(value)

    def _write_bounded(self, value: Any, kind: type, depth: int) -> Any:
        """Write a value that has members, or a repr if it is too deep, too large, or inside itself."""
        key = id(value)
        if depth >= MAX_DEPTH or key in self.inside or self.left <= 0:
            return _as_repr(value)
        self.inside.add(key)
        try:
            return self._write_compound(value, kind, depth + 1)
        finally:
            self.inside.discard(key)

    def _write_compound(self, value: Any, kind: type, depth: int) -> Any:
        if kind is dict:
            return self._mapping(value, depth)
        if kind is list:
            return self._list(value, depth)
        if isinstance(value, enum.Enum):
            return self.write(value.value, depth)
        if _is_ours(kind):
            return self._write_own(value, depth)
        fields = _fields_of(value)
        if fields is not None:
            return self._mapping(fields, depth)
        if isinstance(value, Mapping):
            return self._mapping(dict(value), depth)
        if isinstance(value, _LISTS):
            return self._list(value, depth)
        if isinstance(value, _SETS):
            return sorted(self._list(value, depth), key=functools.partial(json.dumps, sort_keys=True))
        return _as_repr(value)

    def _list(self, values: Any, depth: int) -> list[Any]:
        self.left -= len(values)
        write = self.write
        return [write(member, depth) for member in values]

    def _mapping(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        self.left -= len(value)
        write = self.write
        written: dict[str, Any] = {}
        for key, member in value.items():
            if type(key) is not str or key[:1] == "$":
                return self._pairs(value, depth)
            written[key] = write(member, depth)
        return _sort(written)

    def _pairs(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        """Write a mapping with keys that JSON can't hold unchanged; of equal keys the last one is written."""
        pairs: dict[Any, list[Any]] = {}
        for key, member in value.items():
            written = self._key(key, depth)
            pairs[_make_hashable(read_value(written, None))] = [written, self.write(member, depth)]
        if all(isinstance(key, str) and key[:1] != "$" for key, _ in pairs.values()):  # dates, members of an enum …
            return _sort(dict(pairs.values()))
        return {"$map": list(pairs.values())}

    def _key(self, key: Any, depth: int) -> Any:
        written = self.write(key, depth)
        try:
            hash(_make_hashable(read_value(written, None)))
        except Exception:  # an object with fields may be a key, a mapping can't
            return _as_repr(key)
        return written

    def _write_own(self, value: Any, depth: int) -> dict[str, Any]:
        """Write one of the library's values; one that couldn't be read again becomes a repr."""
        if isinstance(value, Withheld):
            return {value.mark: value.text}
        marked = _own_to_object(value, self.secrets)
        if marked is None:
            return _as_repr(value)
        ((mark, data),) = marked.items()
        written = {mark: self._mapping(data, depth)}
        read_value(written, None)  # fails if a member became a repr where only an object fits
        return written


def _write_whole(value: int) -> Any:
    """Return a whole number as JSON. Beyond 64 bits, where readers disagree, it is marked and in base 16."""
    return value if -(2**63) <= value < 2**64 else {"$int": hex(value)}


def _write_number(value: float) -> Any:
    return value if isfinite(value) else {"$float": str(value)}


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "agentloop"


def _write_simple(value: Any) -> Any:
    """Return a value without members as JSON, or `_NOT_SIMPLE`."""
    if isinstance(value, enum.Enum):
        return _NOT_SIMPLE
    if isinstance(value, Shown):
        return {"$repr": str.__str__(value)}
    if isinstance(value, WithheldText) and (mark := value.mark()) is not None:
        return mark
    if isinstance(value, str):
        return str.__str__(value)  # of a subclass: the text itself, not what its `__str__` returns
    if isinstance(value, int):
        return _write_whole(int.__int__(value))
    if isinstance(value, float):
        return _write_number(float.__float__(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, _TIMES):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, _TEXTUAL):
        return str(value)
    return _NOT_SIMPLE


def _sort(written: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping of the application with its keys sorted, so that equal ones have equal texts."""
    return {key: written[key] for key in sorted(written)} if len(written) > 1 else written


def _fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of an object whose class declares them (pydantic, attrs, dataclass, msgspec), else None."""
    kind = type(value)
    serializer = getattr(kind, "__pydantic_serializer__", None)
    if serializer is not None:
        found = serializer.to_python(value, warnings=False)
        return found if isinstance(found, dict) else {"root": found}
    if attrs.has(kind):
        return {field.name: getattr(value, field.name) for field in attrs.fields(kind)}
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    if isinstance(names := getattr(kind, "__struct_fields__", None), tuple):
        return {name: getattr(value, name) for name in names}
    return None


class _Repr(reprlib.Repr):
    """Reprs that are cheap for any value: a few members, a few levels."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, _REPR_CHARS, _REPR_CHARS


_SHORT = _Repr()


def _as_repr(value: Any) -> dict[str, str]:
    kind = type(value)
    text = f"<{kind.__name__}>"
    if not _is_ours(kind):  # a repr of definitions or contexts would show data that may never be stored
        with contextlib.suppress(Exception):  # a broken __repr__ must not break the run
            text = shorten(_ADDRESS.sub("", _SHORT.repr(value)), _REPR_CHARS)
    return {"$repr": text}


# -- reading


def read_value(data: Any, secrets: Context) -> Any:
    """Return the value that was written as *data*; raises `CodecError`."""
    kind = type(data)
    if kind in _PLAIN or kind is int:
        return data
    if kind is float and isfinite(data):
        return data
    if kind is list or kind is tuple:
        return [read_at(f"[{n}]", read_value, member, secrets) for n, member in enumerate(data)]
    if isinstance(data, Mapping):
        return _read_mapping(dict(data), secrets)
    raise CodecError(f"expected a value of JSON, got {'a number beyond all' if kind is float else kind_of(data)}")


def _read_mapping(data: dict[Any, Any], secrets: Context) -> Any:
    values = {}
    for key, member in data.items():
        if not isinstance(key, str):
            raise CodecError(f"expected text as a key, got {kind_of(key)}")
        if key[:1] == "$":
            return _read_marked(data, secrets)
        values[key] = read_at(_path_of_key(key), read_value, member, secrets)
    return values


def _path_of_key(key: str) -> str:
    return f".{key}" if key.isidentifier() and len(key) <= 40 else f"[{shorten(ascii(key), 40)}]"


def _read_marked(data: dict[Any, Any], secrets: Context) -> Any:
    mark = next(iter(data))
    if len(data) != 1:
        raise CodecError("a key that begins with $ must be the only one")
    reader = _MARKS.get(mark)
    if reader is None:
        raise CodecError("unknown key that begins with $")
    return read_at(f".{mark}", reader, mark, data[mark], secrets)


def _read_pairs(_mark: str, pairs: Any, secrets: Context) -> dict[Any, Any]:
    if not isinstance(pairs, list | tuple) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs
    ):
        raise CodecError("expected pairs of a key and a value")
    try:
        found = {_make_hashable(read_value(key, secrets)): read_value(value, secrets) for key, value in pairs}
    except TypeError:
        raise CodecError("a key can't be an object") from None
    if len(found) != len(pairs):
        raise CodecError("a key stands twice")
    return found


def _make_hashable(key: Any) -> Any:
    return tuple(map(_make_hashable, key)) if isinstance(key, list) else key


def _read_text(_mark: str, data: Any, _secrets: Context) -> str:
    if not isinstance(data, str):
        raise CodecError(f"expected str, got {kind_of(data)}")
    return data


def _read_bytes(mark: str, data: Any, secrets: Context) -> bytes:
    try:
        return base64.b64decode(_read_text(mark, data, secrets), validate=True)
    except binascii.Error:
        raise CodecError("expected base64") from None


def _read_number(mark: str, data: Any, _secrets: Context) -> Any:
    number = read_number({mark: data})
    if isinstance(number, dict):
        raise CodecError(f"expected a number, got {kind_of(data)}")
    return number


# -- the library's own values

_OWN: Mapping[type, str] = {
    g.Allow: "allow",
    g.RejectContent: "reject_content",
    g.RaiseException: "raise_exception",
    g.Rewrite: "rewrite",
    g.ReplaceOutput: "replace_output",
    g.GuardrailFunctionOutput: "guardrail_output",
    ToolsToFinalOutput: "tools_to_final_output",
    ErrorHandlerResult: "error_handler_result",
    ModelInputData: "model_input",
    HandoffInputData: "handoff_input",
}
_BY_NAME = {name: cls for cls, name in _OWN.items()}
_LIVE = frozenset({"agent", "context"})
"""The fields of them that exist in this process only."""


def _own_to_object(value: Any, secrets: Context) -> dict[str, Any] | None:
    """Return a value of the library's own under its mark; the members in it are still values. None of any other."""
    kind = type(value)
    if kind in i.ITEM_TYPES:
        return {"$item": to_object(value, secrets)}
    if isinstance(value, i.Part):
        return {"$part": to_tree(value)}
    if kind not in _OWN:
        return None
    fields = {field.name: field.default for field in msgspec.structs.fields(kind) if field.name not in _LIVE}
    members = {name: getattr(value, name) for name, default in fields.items() if getattr(value, name) is not default}
    return {"$value": {"type": _OWN[kind], **members}}


def _read_own(mark: str, data: Any, secrets: Context) -> Any:
    data = _read_mapping(dict(data), secrets) if isinstance(data, Mapping) else data
    if mark == "$item":
        return read_part(ITEMS, data, secrets, lambda value, _secrets: value)
    if mark == "$part":
        return msgspec.convert(data, _PART)
    cls = _BY_NAME.get(data.pop("type", None)) if isinstance(data, dict) else None
    if cls is None or not _LIVE.isdisjoint(data):
        raise CodecError("expected an object of a known type")
    return msgspec.convert(data, cls)


_MARKS: Mapping[str, Callable[[str, Any, Context], Any]] = {
    "$bytes": _read_bytes,
    "$float": _read_number,
    "$int": _read_number,
    "$map": _read_pairs,
    "$repr": lambda mark, data, secrets: Shown(_read_text(mark, data, secrets)),
    "$digest": lambda mark, data, secrets: Withheld("$digest", _read_text(mark, data, secrets)),
    "$sealed": lambda mark, data, secrets: Withheld("$sealed", _read_text(mark, data, secrets)),
    "$item": _read_own,
    "$part": _read_own,
    "$value": _read_own,
}
