"""Tool names made from other names, and a check of a callable's arguments: helpers that definitions share."""

from __future__ import annotations

import inspect


def snake_case(name: str) -> str:
    """Return *name* as a tool name: letters, digits and underscores, lower case."""
    words = "".join(char if char.isalnum() and char.isascii() else " " for char in name).split()
    return "_".join(words).lower() or "agent"


def takes(value: object, arguments: int) -> bool:
    """Tell whether *value* can be called with *arguments* positional arguments."""
    try:
        inspect.signature(value).bind(*[None] * arguments)  # type: ignore[arg-type]  # a non-callable raises TypeError
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature: only a call can show it
        return callable(value)
    return True
