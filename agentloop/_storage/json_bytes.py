"""JSON text as bytes: the one form in which the library stores it, and a strict reader."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from agentloop.exceptions import StateError


class _InvalidJson(ValueError):
    """JSON that parses but is refused; the text says why and quotes nothing."""


def encode(value: Any) -> bytes:
    """Return the one JSON text (UTF-8, sorted keys, no blanks) of a JSON value in JSON's own types.

    Raises:
        StateError: if it isn't a JSON value (NaN and infinities aren't).
    """
    try:
        quick = msgspec.json.encode(value, order="sorted")
        if b"null" not in quick:  # also what msgspec makes of NaN
            return quick
        _text_of(value)
        return quick
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        # A surrogate can only stand inside a string, where the backslash form is JSON's own escape.
        return _text_of(value).encode("utf-8", "backslashreplace")
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(f"Not a value of JSON: {type(error).__name__}") from None


def _text_of(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def decode(data: bytes) -> Any:
    """Return the value of JSON text.

    Raises:
        StateError: if it isn't JSON, repeats a key, or holds a number that is beyond all bounds. Nothing is quoted.
    """
    try:
        value = msgspec.json.decode(data)
        if msgspec.json.encode(value, order="sorted") == data:  # canonical: no key stands twice
            return value
    except (ValueError, RecursionError):
        pass
    try:
        return _STRICT.decode(data.decode("utf-8"))
    except _InvalidJson as refused:
        raise StateError(f"Malformed JSON: {refused}") from None
    except RecursionError:
        raise StateError("Malformed JSON: it is nested too deeply") from None
    except ValueError:
        raise StateError("Malformed JSON") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _InvalidJson("a key stands twice")
    return found


def _finite(literal: str) -> float:
    number = float(literal)
    if number in (float("inf"), float("-inf")):
        raise _InvalidJson("a number is beyond the range of a float")
    return number


def _no_number(literal: str) -> Any:
    raise _InvalidJson(f"{literal} isn't JSON")


_STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_number)
