"""Faults of stored data and their places: the one error of all readers, and its text.

An error names the place and what the place should hold. It never quotes a value, because values may be secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from agentloop._common.error_text import shorten
from agentloop._common.errors import StateError

T = TypeVar("T")
_PLACED = re.compile(r"(?s)(.*) - at `(?:key` in `)?\$(.*)`")
_QUOTING = re.compile(r"(?s)Invalid (?:enum )?value .*")


class CodecError(ValueError):
    """JSON that doesn't fit: *text* says what is wrong, *place* is the path to it below the value that was read."""

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.place = place


def read_at(place: str, read: Callable[..., T], *arguments: Any) -> T:
    """Return `read(*arguments)`; if that finds a fault, the fault's path begins with *place*."""
    try:
        return read(*arguments)
    except Exception as error:
        text, inner = _describe(error)
        raise CodecError(text, place + inner) from None


def read_whole(what: str, path: str, read: Callable[..., Any], *arguments: Any) -> Any:
    """Return `read(*arguments)`, which reads a whole *what*, the value at *path*.

    Raises:
        StateError: naming the first place below *path* that doesn't fit. Values aren't quoted.
    """
    try:
        return read(*arguments)
    except Exception as error:
        raise StateError(f"Malformed {what}: {fault_text(error, path)}") from None


def fault_text(error: Exception, path: str) -> str:
    """Return what is wrong and its place below *path*: `expected str, got int @ $.call_id`."""
    text, place = _describe(error)
    return f"{shorten(text, 200)} @ {path}{shorten(place, 300)}"


def _describe(error: Exception) -> tuple[str, str]:
    """Return the text of a reader's error, and the place. Of an error that may quote values, only the type."""
    if isinstance(error, CodecError):
        return error.text, error.place
    if isinstance(error, StateError):  # from opening a sealed value
        return str(error), ""
    if isinstance(error, RecursionError):
        return "it is nested too deeply", ""
    if not isinstance(error, msgspec.ValidationError):
        return type(error).__name__, ""
    found = _PLACED.fullmatch(str(error))
    text, place = found.groups() if found is not None else (str(error), "")
    if _QUOTING.fullmatch(text):
        return "expected another value: this one isn't known here", place
    text = text.replace("`", "").replace("Expected", "expected").removeprefix("Object ").removeprefix("contains ")
    return text.encode("ascii", "backslashreplace").decode(), place


def kind_of(value: object) -> str:
    """Return the name of *value*'s type, as errors use it."""
    return "null" if value is None else type(value).__name__
