"""The paths of a memory: which ones there are, and which files can be beside each other.

One rule for the tool, which refuses what a model writes, and for every store, which refuses what an application gives.
So a scope can be moved from one store to any other, and a folder on any file system holds what a database holds.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping

from agentloop._common.errors import UserValueError

MOST_PARTS, MOST_CHARS, MOST_BYTES = 8, 100, 255
"""The most names in a path, and the most characters of a name, and bytes in UTF-8: file systems count these."""
EXPECTED = (
    f"at most {MOST_PARTS} names of at most {MOST_CHARS} printable characters and {MOST_BYTES} bytes, without .. and "
    "hidden ones"
)
_QUOTED = 200
"""The most characters of a path that a message quotes."""


def is_name(part: str) -> bool:
    """Tell whether *part* may be a name in a path: short, printable, not hidden, and no way out on any system."""
    return (
        0 < len(part) <= MOST_CHARS
        and part.isprintable()
        and len(part.encode()) <= MOST_BYTES
        and part[0] != "."
        and not {"/", "\\"} & {*part}
    )


def are_names(parts: list[str]) -> bool:
    """Tell whether *parts* are the names of a path."""
    return 0 < len(parts) <= MOST_PARTS and all(map(is_name, parts))


def fold(path: str) -> str:
    """Return what two paths have in common that some file systems take for one.

    They don't know capitals, have one form of composed letters, and drop dots and spaces at the end of a name.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())
    return "/".join(part.rstrip(" .") for part in folded.split("/"))


def check_memory_change(changes: Mapping[str, str | None], expect: Mapping[str, str]) -> None:
    """Check that *changes* of the files *expect* have paths of a memory, and leave files that can be together.

    Raises:
        UserValueError: if not; names the path.
    """
    for path in changes:
        if not are_names(path.split("/")):
            raise UserValueError(f"changes: {path[:_QUOTED]!r}: expected {EXPECTED}, with / between them")
    new = {path for path, text in changes.items() if text is not None and path not in expect}
    if not new:
        return  # what was there can stay together
    places: dict[str, str] = {}
    for path in [*(path for path in expect if changes.get(path, "") is not None), *sorted(new)]:
        for place in _places(path):
            other = places.setdefault(fold(place.removesuffix("/")), place)
            if other != place and path in new:
                raise UserValueError(
                    f"changes: {path[:_QUOTED]!r} and {other[:_QUOTED]!r}: some file systems take both for one"
                )


def _places(path: str) -> Iterator[str]:
    """Yield the folders of a path, outermost first, each with a / at its end, and the path itself."""
    parts = path.split("/")
    for end in range(1, len(parts)):
        yield "/".join(parts[:end]) + "/"
    yield path
