"""Exit codes, and the texts of errors, which are safe for a terminal. Does not write them."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any, Self

from agentloop import exceptions
from agentloop._common.error_text import chain_of, is_redacted, redact, shorten, traceback_of
from agentloop._common.error_text import message_of as whole_message_of
from agentloop._common.terminal_text import exact, harmless
from agentloop.exceptions import UserError

OK = 0
FAILED = 1
USAGE = 2
PENDING = 3
"""Calls wait for approval or an answer, and nothing has failed."""
OUTPUT_CLOSED = 141
"""The exit code that a shell reports for a program ended by SIGPIPE."""

_MAX_CHARS = 4_000


class PastError(Exception):
    """The error that ended a run in an earlier process, read from its journal. `kind` is the name of its class."""

    kind = "PastError"

    @classmethod
    def of(cls, summary: str, details: Mapping[str, Any] | None) -> Self:
        """Return the error of a `RunEnded` record with the error *summary*, `TYPE(MESSAGE)`, and its *details*."""
        kind, opening, rest = summary.partition("(")
        error = cls(rest.removesuffix(")") if opening else "")
        error.kind = kind
        for other in (details or {}).get("also_failed", ()):
            error.add_note(f"also failed: {other}")
        return error


def kind_of(error: BaseException) -> str:
    """Return the name of the error's class; of a `PastError`, that of the original class."""
    return error.kind if isinstance(error, PastError) else type(error).__name__


def _is_user_error(error: BaseException) -> bool:
    kind = getattr(exceptions, error.kind, None) if isinstance(error, PastError) else type(error)
    return isinstance(kind, type) and issubclass(kind, UserError)


def code_of(error: BaseException) -> int:
    """Return the exit code for *error*: 2 if the user's own set-up is at fault, else 1."""
    return USAGE if _is_user_error(error) else FAILED


def message_of(error: BaseException) -> str:
    """Return the error's message, redacted and bounded to 4,000 characters; the class's name if it has none."""
    text = whole_message_of(error)
    # Texts of a journal were redacted when they were written.
    words = text.strip() if isinstance(error, PastError) else redact(text.strip())
    return shorten(words, _MAX_CHARS) or kind_of(error)


def words_for(error: BaseException, *, with_traceback: bool = False) -> str:
    """Return the lines that report *error* to a user, ended by a newline. What it quotes can't control a terminal."""
    if with_traceback:
        return harmless(_traceback_for(error))
    message = message_of(error)
    kind = kind_of(error)
    named = message if _is_user_error(error) or message == kind else f"{kind}: {message}"
    notes = [f"  {redact(note)}" for note in _notes_of(error)]
    return harmless("\n".join([f"Error: {named}", *notes]) + "\n")


def words_for_file(place: object, error: OSError) -> str:
    """Return the line that reports *error* of the file or folder at *place*, ended by a newline.

    The address of a database isn't quoted: it may hold a password.
    """
    return f"Error: {name_place(place)}: {error.strerror or error}\n"


def name_place(place: object) -> str:
    """Return the name of a journal in messages: its path, or "the database" for an address."""
    from agentloop.journal._folder import is_address  # only such a message needs it

    return "the database" if is_address(place) else exact(str(place))


def _traceback_for(error: BaseException) -> str:
    if any(map(is_redacted, chain_of(error))):  # Python's own traceback would show the messages of all causes
        return f"Traceback:\n{traceback_of(error)}\n"
    return redact("".join(traceback.format_exception(error)))


def _notes_of(error: BaseException) -> list[str]:
    """Return the notes of *error*; if its message is redacted, only the notes that the library has made."""
    notes: list[str] = list(getattr(error, "__notes__", ()))
    return [note for note in notes if note.startswith("also failed: ")] if is_redacted(error) else notes
