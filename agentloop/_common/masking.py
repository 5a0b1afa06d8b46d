"""Secret arguments in a call's JSON text: their positions, and masks for reprs.

For texts that people read. `_core/secret_marks` says which values are secret and where each of them is hidden.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import attrs

MASK = "[secret]"
ALL_ARGUMENTS = "*"
"""The name, among a call's secret arguments, that means all of them, their names included."""
_BLANK = " \t\n\r"
_DECODER = json.JSONDecoder()


class TextSpan(NamedTuple):
    """One value in an object's text: its key, its first index, and the index after its last."""

    key: str
    start: int
    end: int


def spans_of(text: str) -> list[TextSpan] | None:
    """Return the positions of the values in *text*, a JSON object; None if *text* isn't one."""
    try:
        return list(_spans(text))
    except (ValueError, IndexError, RecursionError):
        return None


def _spans(text: str) -> Iterator[TextSpan]:
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
            yield TextSpan(key, start, end)
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
    """Return the index of the first character, other than a blank, after *char*, which must come next."""
    at = _skip(text, at)
    if text[at] != char:
        raise ValueError
    return _skip(text, at + 1)


def replace_spans(text: str, spans: Iterable[TextSpan], new: Callable[[str], str]) -> str:
    """Return *text* with the text of each of *spans*, given in order, replaced by the result of *new* for it."""
    pieces, at = [], 0
    for span in spans:
        pieces += [text[at : span.start], new(text[span.start : span.end])]
        at = span.end
    return "".join([*pieces, text[at:]])


def replace_arguments(text: str, names: Collection[str], new: Callable[[str], str], whole: Callable[[str], str]) -> str:
    """Return a call's JSON text with the text of the arguments *names* replaced by the result of *new* for it.

    If all of them are named, or the text isn't an object, the result is that of *whole* for the text.
    """
    if not names or not text.strip():
        return text
    spans = None if ALL_ARGUMENTS in names else spans_of(text)
    return whole(text) if spans is None else replace_spans(text, select_spans(spans, names), new)


def select_spans(spans: Iterable[TextSpan], names: Collection[str]) -> list[TextSpan]:
    """Return those of *spans* whose keys are among *names*."""
    return [span for span in spans if span.key in names]


def mask_arguments(text: str, names: Collection[str]) -> str:
    """Return a call's JSON text with the values of the arguments *names* masked; the mask only if it doesn't parse."""
    return replace_arguments(text, names, lambda _: f'"{MASK}"', lambda _: MASK)


# -- reprs


def make_masked_repr(value: Any, masks: Mapping[str, str]) -> str:
    """Return the repr of an attrs value as attrs makes it, but with the texts in *masks* for the fields named there."""
    cls = type(value)
    fields = (
        f"{field.name}={masks.get(field.name) or _repr_field(field, value)}"
        for field in attrs.fields(cls)
        if field.repr
    )
    return f"{cls.__qualname__.rpartition('>.')[2]}({', '.join(fields)})"


def _repr_field(field: attrs.Attribute[Any], value: Any) -> str:
    show: Callable[[Any], str] = repr if field.repr is True else field.repr  # type: ignore[assignment]
    return show(getattr(value, field.name))


def error_repr(error: BaseException | None) -> str:
    """Return the type of a call's error, for a repr: its message may repeat a secret argument."""
    return "None" if error is None else f"<{type(error).__name__}>"
