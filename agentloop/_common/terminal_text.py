"""Texts of models and tools made safe for a terminal, which takes some characters as orders. Does not write them.

A model, or a page that a tool has read, can put escape sequences into names, arguments and answers. Written to a
terminal as they are, they clear it, move its cursor, change its title, or show something else than there is.
"""

from __future__ import annotations

import re
import unicodedata

from agentloop._common.error_text import shorten

_SHOWN_CHARS = 200
# Controls (but for tab and newline), and the characters that change the direction of the text after them: with these a
# name or a path reads as another one.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# Unicode categories of characters that are invisible, or that control a terminal.
_HIDDEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


def harmless(text: str) -> str:
    """Return *text* with escaped characters where they could control the terminal; tabs and newlines stay."""
    return _CONTROL.sub(lambda match: _escape(match[0]), text)


def exact(text: str) -> str:
    """Return *text* on one line, and escape every character that could hide a part of it or control a terminal."""
    return "".join(_escape(char) if unicodedata.category(char) in _HIDDEN else char for char in text)


def format_line(text: str) -> str:
    """Return *text* on one line, harmless for a terminal and of at most 200 characters."""
    return shorten(harmless(" ".join(text.split())), _SHOWN_CHARS)


def duration(seconds: float) -> str:
    """Format a duration given in seconds: below one second in milliseconds."""
    return f"{max(seconds, 0) * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
