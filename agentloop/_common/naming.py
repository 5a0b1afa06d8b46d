"""Tool names made from other names, numbers for equal names, and a check of a callable's arguments."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable


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


def number_names(names: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Return each of *names* with its position among the equal ones, so that every pair is unique."""
    seen: Counter[str] = Counter()
    keys = []
    for name in names:
        keys.append((name, seen[name]))
        seen[name] += 1
    return tuple(keys)
