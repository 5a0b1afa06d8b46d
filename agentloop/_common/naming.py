"""Tool names made from other names, numbers for equal names, and a check of a callable's arguments."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections import Counter
from collections.abc import Iterable

MOST_NAME = 64
"""Characters of a tool's name that every provider takes. Some take more, but an agent may change its model."""
TOOL_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{MOST_NAME}}}")
TOOL_NAME_NEEDS = f"expected 1 to {MOST_NAME} letters, digits, '_' and '-'"


def snake_case(name: str) -> str:
    """Return *name* as a tool name: letters, digits and underscores, lower case."""
    words = "".join(char if char.isalnum() and char.isascii() else " " for char in name).split()
    return "_".join(words).lower() or "agent"


def shorten_name(made: str, name: str, most: int = MOST_NAME) -> str:
    """Return *made*, which was made of *name*, in at most *most* characters: cut, with a digest of the whole *name*.

    For example, `shorten_name("x" * 70, "x" * 70)` gives 55 times `x`, and `_` with eight digits of the digest.
    """
    if len(made) <= most:
        return made
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{made[: most - 9]}_{digest}"


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
