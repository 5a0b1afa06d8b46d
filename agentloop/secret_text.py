"""Texts with secrets in them: where in a call's arguments they stand, and how they are kept out of what is shown."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import attrs

MASK = "[secret]"
_BLANK = " \t\n\r"
_PIECE = 8
"""Characters of a secret's beginning or end that give it away where a text was cut."""
_SHORT = 3
"""Fewer characters are no text that could be found again among others."""
_MOST = 100
"""More texts aren't looked for: the message is withheld."""
_ESCAPED = 8
"""Backslashes that one becomes, escaped three times. Bounded, so that no text makes the search slow."""
_UNIT = re.compile(r"\\{1,8}|[^\\]", re.DOTALL)
_ESCAPES = {"\n": "n", "\t": "t", "\r": "r", "\f": "f", "\b": "b"}
_DECODER = json.JSONDecoder()


class Span(NamedTuple):
    """One value in an object's text: under which key, and from where to where."""

    key: str
    start: int
    end: int


def spans_of(text: str) -> list[Span] | None:
    """Return the values of the JSON object that *text* is; None where it isn't one."""
    try:
        return list(_spans(text))
    except (ValueError, IndexError, RecursionError):
        return None


def _spans(text: str) -> Iterator[Span]:
    at = _expect(text, 0, "{")
    if text[at] == "}":
        at += 1
    else:
        while True:
            if text[at] != '"':
                raise ValueError
            key, at = _DECODER.raw_decode(text, at)
            start = _expect(text, at, ":")
            _, end = _DECODER.raw_decode(text, start)
            yield Span(key, start, end)
            at = _skip(text, end)
            if text[at] == "}":
                at += 1
                break
            at = _expect(text, at, ",")
    if text[at:].strip(_BLANK):
        raise ValueError


def _skip(text: str, at: int) -> int:
    while text[at] in _BLANK:
        at += 1
    return at


def _expect(text: str, at: int, char: str) -> int:
    """Return where what follows *char* begins."""
    at = _skip(text, at)
    if text[at] != char:
        raise ValueError
    return _skip(text, at + 1)


def replaced(text: str, spans: Iterable[Span], new: Callable[[str], str]) -> str:
    """Return *text* with the text of each of *spans*, given in order, replaced by what *new* makes of it."""
    pieces, at = [], 0
    for span in spans:
        pieces += [text[at : span.start], new(text[span.start : span.end])]
        at = span.end
    return "".join([*pieces, text[at:]])


def masked_arguments(text: str, names: Collection[str]) -> str:
    """Return a call's JSON text with the values of the arguments *names* masked; all of it where it doesn't parse."""
    if not names or not text.strip():
        return text
    spans = spans_of(text)
    if spans is None:
        return MASK
    return replaced(text, [span for span in spans if span.key in names], lambda _: f'"{MASK}"')


# -- reprs


def masked_repr(value: Any, masks: Mapping[str, str]) -> str:
    """Return the repr of an attrs value as attrs makes it, the fields in *masks* shown as the text given there."""
    cls = type(value)
    fields = (
        f"{field.name}={masks.get(field.name) or _shown(field, value)}" for field in attrs.fields(cls) if field.repr
    )
    return f"{cls.__qualname__.rpartition('>.')[2]}({', '.join(fields)})"


def _shown(field: attrs.Attribute[Any], value: Any) -> str:
    show: Callable[[Any], str] = repr if field.repr is True else field.repr  # type: ignore[assignment]
    return show(getattr(value, field.name))


def error_repr(error: BaseException | None) -> str:
    """Return what a repr shows of a call's error: its words may repeat an argument that is secret."""
    return "None" if error is None else f"<{type(error).__name__}>"


# -- words of errors


def secret_texts(text: str, names: Collection[str]) -> tuple[str, ...]:
    """Return the texts by which an error could give away the arguments *names* of a call, longest first.

    Where the call's JSON *text* doesn't parse, all of it is secret.
    """
    if not names:
        return ()
    spans = spans_of(text)
    found: set[str] = set()
    if spans is None:
        _add_text(text, found)
    else:
        for span in spans:
            if span.key in names:
                _add_value(json.loads(text[span.start : span.end]), found)
    return longest_first(found)


def texts_of(value: Any) -> set[str]:
    """Return the texts by which *value* could show in a message."""
    found: set[str] = set()
    _add_value(value, found)
    if value is not None and not isinstance(value, bool | str | int | float | list | dict):
        with contextlib.suppress(Exception):  # whatever a value's own conversion raises: then it shows in no message
            found |= {str(value), repr(value)}
    return found


def longest_first(texts: Iterable[str]) -> tuple[str, ...]:
    """Return *texts* as `scrubbed` wants them."""
    return tuple(sorted({*texts} - {""}, key=len, reverse=True))


def _add_value(value: Any, found: set[str]) -> None:
    if isinstance(value, str):
        _add_text(value, found)
    elif isinstance(value, dict | list):
        for member in value.values() if isinstance(value, dict) else value:
            _add_value(member, found)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found.add(repr(value))


def _add_text(text: str, found: set[str]) -> None:
    found |= {text, text.strip(), *(line.strip() for line in text.splitlines() if len(line) >= _PIECE)}


def scrubbed(text: str, secrets: Collection[str]) -> str:
    """Return *text* without any of *secrets*, given longest first.

    However often they were escaped on the way, and also where a message shows only their beginning or end.
    """
    if len(secrets) > _MOST:
        return MASK
    for secret in secrets:
        if len(secret) < _SHORT:
            if secret in text:
                return MASK  # too short to be replaced without making nonsense of the rest
            continue
        units = _UNIT.findall(secret)
        text = _without(text, units, MASK, backwards=False)
        if len(units) > _PIECE:
            text = _without(text[::-1], units[::-1], MASK[::-1], backwards=True)[::-1]
        if "…" in text or "..." in text:
            text = _without_stumps(text, units)
    return text


def _without(text: str, units: list[str], mask: str, *, backwards: bool) -> str:
    """Replace what begins like *units*, each time as far as it goes on like them."""
    head = re.compile("".join(_pattern(unit, backwards) for unit in units[:_PIECE]))
    done: list[str] = []
    at = 0
    while (found := head.search(text, at)) is not None:
        end = found.end()
        for unit in units[_PIECE:]:
            more = re.compile(_pattern(unit, backwards)).match(text, end)
            if more is None:
                break
            end = more.end()
        done += [text[at : found.start()], mask]
        at = end
    return "".join([*done, text[at:]])


def _without_stumps(text: str, units: list[str]) -> str:
    """Replace a beginning of *units* that is shorter than a piece, where an ellipsis follows it."""
    for size in range(min(_PIECE, len(units)) - 1, _SHORT - 1, -1):
        stump = "".join(_pattern(unit, False) for unit in units[:size])
        text = re.sub(rf"{stump}(?=[\"']?(?:…|\.\.\.))", MASK, text)
    return text


@functools.lru_cache(maxsize=1_000)
def _pattern(unit: str, backwards: bool) -> str:
    """Return what matches *unit* as it is, or escaped by Python or JSON, up to three times."""
    if unit[0] == "\\":
        return rf"\\{{{len(unit)},{_ESCAPED * len(unit)}}}"
    ways = [re.escape(unit)]
    for codes in _codes(unit):
        parts = [re.escape(code[::-1] if backwards else code) for code in codes]
        escape = rf"\\{{0,{_ESCAPED}}}"
        ways.append("".join(f"{part}{escape}" for part in parts[::-1]) if backwards else escape + escape.join(parts))
    return f"(?:{'|'.join(ways)})"


def _codes(char: str) -> Iterator[tuple[str, ...]]:
    """Give what may stand for *char* after a backslash; outside the first plane also as two codes."""
    if char in "\"'":
        yield (char,)
    if char in _ESCAPES:
        yield (_ESCAPES[char],)
    if " " <= char <= "~":
        return
    number = ord(char)
    if number < 0x100:
        yield (f"x{number:02x}",)
    if number < 0x10000:
        yield (f"u{number:04x}",)
    else:
        yield (f"U{number:08x}",)
        yield tuple(f"u{half:04x}" for half in (0xD800 + (number - 0x10000 >> 10), 0xDC00 + (number & 0x3FF)))
