"""The difference of two JSON values as a JSON patch (RFC 6902): the operations `add`, `remove` and `replace`.

Members of an object are compared by name. Of two lists the equal items at the beginning and at the end are left out;
the rest is compared by position. So an item that is added to a list, or taken out of it, is one operation, and several
that have moved are written again. Pure; the work grows as the text of the values times their depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec


def find_patch(old: Any, new: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """Yield the operations that make *new* of *old*, two values of JSON at *path*; none if they are equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _patch_object(old, new, path)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _patch_list(old, new, path)
    elif type(old) is not type(new) or old != new:  # 1, 1.0 and true are equal to Python
        yield {"op": "replace", "path": path, "value": new}


def _patch_object(old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[dict[str, Any]]:
    for name in old:
        if name in new:
            yield from find_patch(old[name], new[name], _join(path, name))
        else:
            yield {"op": "remove", "path": _join(path, name)}
    for name in new:
        if name not in old:
            yield {"op": "add", "path": _join(path, name), "value": new[name]}


def _join(path: str, name: str) -> str:
    escaped = name.replace("~", "~0").replace("/", "~1")
    return f"{path}/{escaped}"


def _patch_list(old: list[Any], new: list[Any], path: str) -> Iterator[dict[str, Any]]:
    before, after = _texts(old), _texts(new)
    begin = _count_equal(zip(before, after, strict=False))
    end = _count_equal(zip(reversed(before[begin:]), reversed(after[begin:]), strict=False))
    last_old, last_new = len(old) - end, len(new) - end
    for at in range(begin, min(last_old, last_new)):
        yield from find_patch(old[at], new[at], f"{path}/{at}")
    for at in reversed(range(last_new, last_old)):
        yield {"op": "remove", "path": f"{path}/{at}"}
    for at in range(last_old, last_new):
        yield {"op": "add", "path": f"{path}/{at}", "value": new[at]}


def _texts(items: list[Any]) -> list[bytes]:
    return [msgspec.json.encode(item) for item in items]


def _count_equal(pairs: Iterable[tuple[bytes, bytes]]) -> int:
    """Return how many of *pairs* are equal before the first that isn't."""
    count = 0
    for one, other in pairs:
        if one != other:
            break
        count += 1
    return count
