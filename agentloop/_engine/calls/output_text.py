"""Tool values as the model sees them: any Python value as text or parts, bounded in length.

Pure. Does not know about calls, guardrails or secrets.
The text of a call that failed: `default_tool_error_function` in `agentloop/tools.py`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from agentloop._common.empty_containers import NO_DICT
from agentloop._common.error_text import error_summary, shorten
from agentloop._common.errors import UnwritableValue
from agentloop._storage.withholding import WithheldText
from agentloop.items import Annotation, Content, Part, Text

if TYPE_CHECKING:
    from cattrs import BaseConverter

NO_OUTPUT = "(no output)"
_TEXTS = (str, WithheldText)
_warned: set[type] = set()
logger: logging.Logger = logging.getLogger("agentloop")


def render(value: Any, converter: BaseConverter | None = None) -> Content:
    """Return *value* as the content of an output: text as it is, parts as parts, None as a placeholder, else JSON.

    *converter* is the run's own converter of the application's types, if it has one.

    Raises:
        UnwritableValue: its own conversion to text fails, as does that of a number of thousands of digits; or it is a
            coroutine, which is closed.
    """
    try:
        return _render_value(value, converter)
    except Exception as error:
        if isinstance(error, UnwritableValue):
            raise
        raise UnwritableValue(
            f"a value of type {type(value).__name__} can't be written as text: {error_summary(error)}"
        ) from error


def _render_value(value: Any, converter: BaseConverter | None) -> Content:
    if isinstance(value, str):
        # A subclass (an enum's member, a text marked as safe) may have methods that mean or do something else.
        return value if type(value) in _TEXTS else str.__str__(value)
    if value is None:
        return NO_OUTPUT
    if isinstance(value, BaseException):
        return f"{type(value).__name__}({value})"
    from agentloop._schema.output_values import parts_of, to_plain

    value = to_plain(value)
    if parts := parts_of(value):
        return tuple(map(_check_part, parts))
    from agentloop._schema.function_schema import to_json_value

    try:
        if converter is not None:
            value = converter.unstructure(value)
        plain = to_json_value(value)
        # JSON has no NaN, but everyone who reads it knows the word. A number by itself speaks for itself.
        return json.dumps(plain, ensure_ascii=False, allow_nan=not isinstance(plain, float))
    except Exception:  # any error of the value's own conversion: it still has a text form, and the body has run
        return _say(value)


def _say(value: Any) -> str:
    """Return the text form of a value that has no JSON form. Warn once of a type whose text says nothing about it."""
    kind: Any = type(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__ and kind not in _warned:
        _warned.add(kind)
        logger.warning(
            "a tool returned an object of type %s, which has no JSON form: the model is shown %r. Return a "
            "dataclass, a dict or a text",
            kind.__qualname__,
            value,
        )
    return str(value)


def _check_part(part: Part) -> Part:
    """Return *part* if its fields are texts. A tool made it, and no code has checked its fields yet.

    Raises:
        TypeError, ValueError: naming the field.
    """
    for field in msgspec.structs.fields(part):
        value = getattr(part, field.name)
        if field.name == "annotations":
            msgspec.convert(msgspec.to_builtins(value), tuple[Annotation, ...])
            continue
        if not isinstance(value, str) and not (value is None and field.default is None):
            raise TypeError(f"{type(part).__name__}.{field.name}: expected text, got {type(value).__name__}")
    return part


def cut_text(text: str, limit: int | None, reference: str | None = None) -> str:
    """Return *text* within *limit* characters: its head and tail, and between them a note of how much was cut."""
    if limit is None or len(text) <= limit:
        return text
    kept_at = f", all of it at {reference}" if reference is not None else ""
    gone = len(text) - limit

    def notice_of(cut: int) -> str:
        return f"\n[… {cut} of {len(text)} characters cut{kept_at} …]\n"

    # The note takes room itself, and its own length depends on the number in it.
    while (more := len(text) - max(limit - len(notice_of(gone)), 0)) > gone:
        gone = more
    notice = notice_of(gone)
    if len(notice) > limit:
        return shorten(text, limit)  # no room for the note
    room = len(text) - gone
    head = (room + 1) // 2
    tail = room - head
    return text[:head] + notice + (text[-tail:] if tail else "")


def texts_of(output: Content) -> list[str]:
    """Return the texts of *output*: itself, or those of its parts that have one."""
    return [output] if isinstance(output, str) else [part.text for part in output if isinstance(part, Text)]


def cut_output(output: Content | None, limit: int | None, kept_at: Mapping[str, str] = NO_DICT) -> Content | None:
    """Return *output* with each of its texts within *limit* characters; *output* itself where all of them are.

    *kept_at* has references to longer texts that are kept whole elsewhere, by the text.
    """
    if output is None or limit is None or (type(output) is str and len(output) <= limit):
        return output
    if isinstance(output, WithheldText):  # in place of a text that was cut already
        return output
    if isinstance(output, str):
        return cut_text(output, limit, kept_at.get(output))
    return tuple(
        part.replace(text=cut_text(part.text, limit, kept_at.get(part.text))) if isinstance(part, Text) else part
        for part in output
    )
