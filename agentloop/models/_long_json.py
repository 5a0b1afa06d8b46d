"""A reader of long JSON texts in short steps, so that no text of a server keeps the event loop from other tasks.

The standard decoder reads a text in one call, during which nothing else runs, in its own thread neither: it keeps
the interpreter. That is fine for a text with few values, however long: a picture is one. `is_long` finds the others,
and `read_in_steps` reads them value by value, some twenty times slower. Both readers take the same texts, up to a
bound: a text of a megabyte can have half a million values, each of which takes fifty times its size in memory.

States of `_Reader`: `at` is the place of the next character; the open containers are a stack, with the key that the
innermost one waits for a value of. A value is either the beginning of a container, which is pushed, or whole: then it
is put into the innermost container, which it may complete, and so on outwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from anyio.lowlevel import checkpoint

from agentloop._common.strict_json import read_finite, reject_constant
from agentloop.exceptions import ModelBehaviorError

SHORT = 20_000
"""Most values of a text that is read in one call, and decoded in another: some ten milliseconds each."""
MOST_VALUES = 2_000_000
"""Most values of a text that is read at all: the probabilities of the tokens of a long answer, with twenty alternatives
for each, are fewer."""
MOST_DEPTH = 200
"""Most levels of a text: what is done with its values later goes down by recursion."""
_STEP = 2_000
"""Values from one step to the next: a millisecond or two."""

decoder = json.JSONDecoder(parse_float=read_finite, parse_constant=reject_constant)
_scan_once: Callable[[str, int], tuple[Any, int]] = decoder.scan_once  # type: ignore[attr-defined]
_BLANKS = re.compile(r"[ \t\n\r]*")


def is_long(text: str) -> bool:
    """Tell whether *text* may have more than `SHORT` values. Commas and brackets within strings count as well."""
    return len(text) > SHORT and text.count(",") + text.count("[") + text.count("{") > SHORT


async def open_event(text: str, what: str) -> Mapping[str, Any] | None:
    """Return the object in a long *text*, read with a checkpoint after each step; None if *text* isn't long.

    Raises:
        ModelBehaviorError: if *text* is long and no JSON object, or too large to be read.
    """
    if not is_long(text):
        return None
    value: Any = None
    try:
        for step in read_in_steps(text):
            value = step
            await checkpoint()
    except ValueError as error:
        raise ModelBehaviorError(f"{what} isn't a JSON object that can be read: {error}.") from None
    if not isinstance(value, Mapping):
        raise ModelBehaviorError(f"{what} isn't a JSON object: {text[:200]!r}")
    return value


def read_in_steps(text: str) -> Iterator[Any]:
    """Yield None after each step, and the value of *text* at the end.

    Raises:
        ValueError: if it isn't JSON, has too many values, or is nested too deeply.
    """
    return _Reader(text).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._open: list[list[Any] | dict[str, Any]] = []
        self._keys: list[str] = []
        self._value: Any = None

    def read(self) -> Iterator[Any]:
        self._skip()
        for count in range(1, MOST_VALUES + 1):
            if not count % _STEP:
                yield None
            whole, value = self._begin_value()
            if whole and self._put(value):
                if self._at != len(self._text):
                    raise self._fault()
                yield self._value
                return
        raise ValueError(f"more than {MOST_VALUES:,} values")

    def _skip(self) -> str:
        """Go to the next character that isn't blank, and return it; empty at the end of the text."""
        blanks = _BLANKS.match(self._text, self._at)
        assert blanks is not None
        self._at = blanks.end()
        return self._text[self._at : self._at + 1]

    def _begin_value(self) -> tuple[bool, Any]:
        """Read a value, or open its container. Return False for a container that has something in it."""
        char = self._text[self._at : self._at + 1]
        if char not in ("[", "{"):
            return True, self._scan()
        self._at += 1
        container: list[Any] | dict[str, Any] = [] if char == "[" else {}
        if self._skip() == ("]" if char == "[" else "}"):
            self._at += 1
            return True, container
        if len(self._open) >= MOST_DEPTH:
            raise ValueError(f"more than {MOST_DEPTH} levels")
        self._open.append(container)
        if isinstance(container, dict):
            self._read_key()
        return False, None

    def _scan(self) -> Any:
        try:
            value, self._at = _scan_once(self._text, self._at)
        except StopIteration:
            raise self._fault() from None
        return value

    def _read_key(self) -> None:
        if self._text[self._at : self._at + 1] != '"':
            raise self._fault()
        self._keys.append(self._scan())
        if self._skip() != ":":
            raise self._fault()
        self._at += 1
        self._skip()

    def _put(self, value: Any) -> bool:
        """Put a whole value where it belongs, and close what it completes. Return True at the end of the text."""
        while self._open:
            container = self._open[-1]
            if isinstance(container, list):
                container.append(value)
            else:
                container[self._keys.pop()] = value
            char = self._skip()
            if char == ",":
                self._at += 1
                self._skip()
                if isinstance(container, dict):
                    self._read_key()
                return False
            if char != ("]" if isinstance(container, list) else "}"):
                raise self._fault()
            self._at += 1
            value = self._open.pop()
        self._value = value
        self._skip()
        return True

    def _fault(self) -> ValueError:
        return ValueError(f"no JSON at character {self._at}")
