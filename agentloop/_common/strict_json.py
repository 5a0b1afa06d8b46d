"""The one strict reader of JSON text, for arguments that a model wrote and what the library has stored; and a writer.

No key twice in an object, no number beyond a float, no NaN: readers disagree about what these mean. Callers bound the
size of the text before, and word the error. Does not know who wrote the text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal, Never

import msgspec


class InvalidJson(ValueError):
    """JSON that parses but is refused: for its `reason`, at a key, number or constant with the text `at`."""

    def __init__(self, reason: Literal["repeated", "infinite", "constant"], at: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at


def read_strict(text: str) -> Any:
    """Return the value of JSON text.

    Raises:
        InvalidJson: see the class.
        ValueError: it isn't JSON, or a number has more digits than the interpreter reads.
        RecursionError: it is nested too deeply.
    """
    # msgspec reads a short object without arrays or objects in it, as most arguments are, in 0.5 µs where the decoder
    # takes 2, a twentieth of a whole call. It drops repeated keys silently: fewer commas than keys prove that there are
    # none. What it refuses, the decoder reads or words.
    if len(text) <= SHORT and text.rfind("{") == 0 and "[" not in text:
        try:
            value = _decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError):
            pass
        else:
            if text.count(",") < len(value):
                return value
    return _DECODER.decode(text)


def read_written(text: str) -> Any:
    """Return the value of JSON text that a model wrote: its strings may hold line breaks and tabs as they are.

    So may a byte order mark before it. Both have one meaning only, and models write them often.

    Raises:
        As `read_strict`.
    """
    try:
        return read_strict(text)
    except json.JSONDecodeError:
        unmarked = text.removeprefix("\ufeff")
        if _OTHER_CONTROLS.search(unmarked):
            raise
        return _WRITTEN.decode(unmarked)


STRING = r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)'
"""The regular expression of a string, which the end of the text may cut."""
# Everything up to the next bracket outside of strings, or to the end: a search at any position finds a match at once.
_TO_BRACKET = re.compile(rf'(?:[^"\[\]{{}}]++|{STRING})*+([\[{{]|[\]}}]|\Z)', re.DOTALL)


def is_deeper(text: str, most: int) -> bool:
    """Tell whether arrays and objects in JSON *text* are nested in more than *most* levels, without reading it.

    What reads, stores and sends values goes down into them by recursion, so a text that is too deep ends in a
    `RecursionError` somewhere.
    """
    if text.count("{") + text.count("[") <= most:
        return False  # nearly all texts
    left = most
    for match in _TO_BRACKET.finditer(text):
        left += -1 if match[1] in ("{", "[") else 1
        if left < 0:
            return True
    return False


def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object with these pairs.

    Raises:
        InvalidJson: a key occurs twice.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InvalidJson("repeated", repeated)
    return found


def read_finite(literal: str) -> float:
    """Return a number of JSON; `InvalidJson` if it is too large for a float."""
    number = float(literal)
    if math.isinf(number):
        raise InvalidJson("infinite", literal)
    return number


def reject_constant(literal: str) -> Never:
    """Refuse `NaN` and `Infinity`, which Python takes for JSON."""
    raise InvalidJson("constant", literal)


SHORT = 1_000
"""Characters of an object that is read by msgspec. No number in it has too many digits for the interpreter."""
_decode = msgspec.json.Decoder().decode
_DECODER = json.JSONDecoder(object_pairs_hook=make_object, parse_float=read_finite, parse_constant=reject_constant)
_WRITTEN = json.JSONDecoder(
    object_pairs_hook=make_object, parse_float=read_finite, parse_constant=reject_constant, strict=False
)
_OTHER_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def write_text(value: Any) -> str:
    """Return *value* as JSON text, of ASCII only, without blanks; any `Mapping` in it as an object.

    Raises:
        TypeError, ValueError, RecursionError: it has no JSON form.
    """
    return _WRITER.encode(value)


def _to_dict(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


_WRITER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_to_dict)
