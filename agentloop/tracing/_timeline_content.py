"""Texts of a timeline's facts: contents of items and values, masked, bounded, and fit for UTF-8.

A value marked secret is `[secret]`; one that was stored in a form that can't be read here is `[sealed]` if a codec has
sealed it. Does not know about rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from agentloop._common.error_text import REDACTED, shorten
from agentloop._common.json_bytes import encode
from agentloop._common.masking import MASK, mask_arguments
from agentloop._storage.value_codec import value_to_json
from agentloop._storage.withholding import DIGESTS, MARKS, Withheld, WithheldText
from agentloop.items import AssistantMessage, Item, Reasoning, Refusal, SystemMessage, Text, UserMessage

SEALED = "[sealed]"
MAX_CHARS = 2_000
"""Characters of the longest fact."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_STORED_MARK = re.compile(r'\{"\$(?:digest|sealed)": ?"[^"]*"\}')
_KIND = re.compile(r"\w+")


def clean(text: str) -> str:
    """Return *text* cut to `MAX_CHARS`, with the replacement character for each half of a surrogate pair."""
    return _SURROGATE.sub("\ufffd", shorten(str.__str__(text), MAX_CHARS))


def show_arguments(text: str, secret: Iterable[str]) -> str:
    """Return a call's arguments with secret ones masked."""
    masked = mask_arguments(str.__str__(text), tuple(secret))
    if isinstance(text, WithheldText):
        sealed = "$sealed" in text
        if masked.startswith(tuple(f"{mark}:" for mark in MARKS)):  # stored whole, and not marked here
            masked = MASK
        masked = _STORED_MARK.sub(f'"{MASK}"', masked)
        masked = masked.replace(MASK, SEALED) if sealed else masked
    return clean(masked)


def show_value(value: Any, *, secret: bool) -> str:
    """Return a value of the application: text as it is, parts by their text, anything else as JSON."""
    withheld = _find_withheld(value)
    if withheld is not None:
        return SEALED if "$sealed" in withheld else MASK
    if secret:
        return MASK
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, tuple) and value and all(hasattr(part, "__struct_config__") for part in value):
        return clean("".join(map(_show_part, value)))
    return clean(encode(value_to_json(value, DIGESTS)).decode())


def _find_withheld(value: Any) -> str | None:
    """Return the mark of a value that can't be read, alone or the text of a message; None if it can."""
    if isinstance(value, Withheld):
        return value.mark
    if isinstance(value, WithheldText):
        return str.__str__(value)
    if isinstance(value, tuple):
        return next((found for part in value if (found := _find_withheld(getattr(part, "text", None)))), None)
    return None


def _show_part(part: Any) -> str:
    if isinstance(part, Text):
        return show_value(part.text, secret=False)
    return show_value(part.refusal, secret=False) if isinstance(part, Refusal) else f"[{type(part).__name__}]"


def show_messages(items: Iterable[Item]) -> str:
    """Return the texts of the messages among *items*, a blank line between them."""
    shown = [
        show_value(item.content, secret=item.secret)
        for item in items
        if isinstance(item, SystemMessage | UserMessage | AssistantMessage)
    ]
    return clean("\n\n".join(text for text in shown if text))


def show_reasoning(items: Iterable[Item]) -> str:
    """Return the reasoning among *items*, or the summary of it."""
    pieces = [piece for item in items if isinstance(item, Reasoning) for piece in item.summary or item.content]
    return clean("\n\n".join(pieces))


def show_error(summary: str, *, content: bool) -> str:
    """Return the error *summary*, `TYPE(MESSAGE)`; without *content* its type only."""
    if content:
        return clean(summary)
    kind = _KIND.match(summary)
    return f"{kind[0] if kind else 'Error'}({REDACTED})"
