"""What the model sees of a tool's value: any Python value as text or parts, bounded."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from agentloop.items import Content, File, Image, Refusal, Text
from agentloop.schema import to_json_value

Put: TypeAlias = Callable[[str], Awaitable[Any]]
"""Takes a text that is too long and gives a reference to it."""

NO_OUTPUT = "(no output)"
_PARTS = (Text, Image, File, Refusal)


def render(value: Any) -> Content:
    """Return *value* as the content of an output: text as it is, parts as parts, None as a placeholder, else JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return NO_OUTPUT
    if isinstance(value, _PARTS):
        return (value,)
    if isinstance(value, list | tuple) and value and all(isinstance(part, _PARTS) for part in value):
        return tuple(value)
    if isinstance(value, BaseException):
        return f"{type(value).__name__}({value})"
    try:
        return json.dumps(to_json_value(value), ensure_ascii=False, allow_nan=False)
    except Exception:  # whatever a value's own conversion raises: it has a repr, and the body has run
        return str(value)


def cut_text(text: str, limit: int | None, reference: str | None = None) -> str:
    """Return *text* within *limit* characters: head and tail kept, and how much was cut stated between them."""
    if limit is None or len(text) <= limit:
        return text
    kept_at = f", all of it at {reference}" if reference is not None else ""
    gone = len(text) - limit

    def notice_of(cut: int) -> str:
        return f"\n[… {cut} of {len(text)} characters cut{kept_at} …]\n"

    # The statement takes room itself, and its own length depends on the number in it.
    while (more := len(text) - max(limit - len(notice_of(gone)), 0)) > gone:
        gone = more
    notice = notice_of(gone)
    room = len(text) - gone
    head = (room + 1) // 2
    tail = room - head
    return text[:head] + notice + (text[-tail:] if tail else "")


async def bounded_output(output: Content, limit: int | None, put: Put | None) -> Content:
    """Return *output* within *limit* characters of text; what is longer goes to *put* first, if there is one."""
    if limit is None:
        return output
    if isinstance(output, str):
        return await _bounded_text(output, limit, put)
    parts = []
    for part in output:
        parts.append(Text(await _bounded_text(part.text, limit, put)) if isinstance(part, Text) else part)
    return tuple(parts)


async def _bounded_text(text: str, limit: int, put: Put | None) -> str:
    if len(text) <= limit:
        return text
    reference = None if put is None else str(await put(text))
    return cut_text(text, limit, reference)
