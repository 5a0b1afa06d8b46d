"""Tool names made from other names, numbers for equal names, and a check of a callable's arguments."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Sequence

MOST_NAME = 64
"""Characters of a tool's name that every provider takes. Some take more, but an agent may change its model."""
TOOL_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{MOST_NAME}}}")
TOOL_NAME_NEEDS = f"expected 1 to {MOST_NAME} letters, digits, '_' and '-'"


def snake_case(name: str) -> str:
    """Return *name* as a tool name: letters, digits and underscores, lower case."""
    words = "".join(char if char.isalnum() and char.isascii() else " " for char in name).split()
    return "_".join(words).lower() or "agent"


def qualify_name(name: str, namespace: str | None) -> str:
    """Return the *name* of a tool with its namespace: `ns.name`, or the bare name."""
    return f"{namespace}.{name}" if namespace else name


def shorten_name(made: str, name: str, most: int = MOST_NAME) -> str:
    """Return *made*, which was made of *name*, in at most *most* characters: cut, with a digest of the whole *name*.

    For example, `shorten_name("x" * 70, "x" * 70)` gives 55 times `x`, and `_` with eight digits of the digest.
    """
    if len(made) <= most:
        return made
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{made[: most - 9]}_{digest}"


_UNUSABLE = re.compile(r"[^A-Za-z0-9_-]")


def replace_unusable(name: str) -> str:
    """Return *name* with `_` for each character that the interfaces of models don't allow in the name of a tool."""
    return _UNUSABLE.sub("_", name)


def usable_names(names: Sequence[str], most: int = MOST_NAME) -> list[str | None]:
    """Return the names of others' tools as models may call them, each once; None for one that has none.

    MCP, for example, allows dots and slashes in names, and any length, which the interfaces of models don't. A long
    name is cut, and ends in a digest of the whole. Of names that are the same then, the one that was so from the
    beginning stays, and the others get numbers.
    """
    found = [shorten_name(replace_unusable(name), name, most) for name in names]
    taken = {name for name, made in zip(names, found, strict=True) if name == made}
    usable: list[str | None] = []
    for name, made in zip(names, found, strict=True):
        unique, number = made, 1
        while unique in taken and name != made:
            number += 1
            unique = f"{made[: most - 1 - len(str(number))]}_{number}"
        taken.add(unique)
        usable.append(unique or None)
    return usable


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
