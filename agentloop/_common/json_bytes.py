"""JSON text as bytes: the canonical form in which the library stores it, and a strict reader.

Canonical are UTF-8, no blanks, one notation of each number, and an order of keys: sorted, or of a record's line the one
in which its fields are declared, its kind first. That order is read a fifth faster: a reader that knows the kind looks
at each field once, and finds it where it expects it.

msgspec does the usual case; the standard library decides where msgspec is too strict (lone surrogates, numbers of any
size) or too lax (NaN, repeated keys). Does not know what is stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

from agentloop._common.errors import StateError
from agentloop._common.strict_json import InvalidJson, read_strict

Order: TypeAlias = Literal["sorted"] | None
"""The order of an object's keys in its text: sorted, or as they are."""

_REFUSALS = {
    "repeated": "a key stands twice",
    "infinite": "a number is beyond the range of a float",
    "constant": "{} isn't JSON",
}


class ObjectLine(bytes):
    """The canonical JSON text of one object, on one line, as this library has written it.

    A journal that gets one need not read it again to know that it is one: that costs 3 µs of each record, as much as
    writing it.
    """

    __slots__ = ()


def encode(value: Any, order: Order = "sorted") -> bytes:
    """Return the canonical JSON text of a value of JSON's own types, its keys in *order*.

    Raises:
        StateError: if it isn't a JSON value (NaN and infinities aren't).
    """
    try:
        quick = msgspec.json.encode(value, order=order)
        if b"null" not in quick:  # msgspec writes NaN as null too
            return quick
        _text_of(value, order)
        return quick
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        # A surrogate can only be inside a string, where the backslash form is JSON's own escape.
        return _text_of(value, order).encode("utf-8", "backslashreplace")
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(f"Not a value of JSON: {type(error).__name__}") from None


def encode_shown(value: Any, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    """Return JSON text of *value* to be shown or measured, in which half of a surrogate pair is an escape.

    Names, ids and texts of models and tools may have one, and UTF-8 doesn't. What is stored is the work of `encode`.
    """
    try:
        return msgspec.json.encode(value, enc_hook=enc_hook)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, enc_hook=enc_hook), separators=(",", ":")).encode()


def _text_of(value: Any, order: Order) -> str:
    sort = order is not None
    return json.dumps(value, sort_keys=sort, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def decode(data: bytes) -> Any:
    """Return the value of JSON text.

    Raises:
        StateError: if it isn't JSON, repeats a key, or holds a number beyond the range of a float. Values aren't
            quoted.
    """
    try:
        value = msgspec.json.decode(data)
        if msgspec.json.encode(value) == data:  # canonical in some order, so no key is repeated
            return value
    except (ValueError, RecursionError):
        pass
    try:
        return read_strict(data.decode("utf-8"))
    except InvalidJson as refused:
        raise StateError(f"Malformed JSON: {_REFUSALS[refused.reason].format(refused.at)}") from None
    except RecursionError:
        raise StateError("Malformed JSON: it is nested too deeply") from None
    except ValueError:
        raise StateError("Malformed JSON") from None
