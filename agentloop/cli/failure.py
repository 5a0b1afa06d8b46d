"""Exit codes, and errors in words for a terminal."""

from __future__ import annotations

import traceback

from agentloop.error_text import bounded, redact
from agentloop.exceptions import UserError

OK = 0
FAILED = 1
USAGE = 2
OUTPUT_CLOSED = 141
"""What a shell reports of a program ended by SIGPIPE."""

_MAX_CHARS = 4_000


def code_of(error: BaseException) -> int:
    """Return the exit code that *error* means: 2 where the user's own set-up is at fault, else 1."""
    return USAGE if isinstance(error, UserError) else FAILED


def message_of(error: BaseException) -> str:
    """Return the error's whole message, without secrets, bounded; the class's name where there is none."""
    try:
        text = str(error)
    except Exception:  # a broken __str__ must not hide the failure it belongs to
        text = "(its message can't be shown)"
    return bounded(redact(text.strip()), _MAX_CHARS) or type(error).__name__


def words_for(error: BaseException, *, with_traceback: bool = False) -> str:
    """Return the lines that tell a user of *error*, ended by a newline."""
    if with_traceback:
        return redact("".join(traceback.format_exception(error)))
    message = message_of(error)
    kind = type(error).__name__
    named = message if isinstance(error, UserError) or message == kind else f"{kind}: {message}"
    notes = [f"  {redact(note)}" for note in getattr(error, "__notes__", ())]
    return "\n".join([f"Error: {named}", *notes]) + "\n"
