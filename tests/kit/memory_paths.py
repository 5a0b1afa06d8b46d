"""Paths that a store of memory may take for another path, and stores that are given the same ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from agentloop.abc import MemoryStore
from agentloop.exceptions import UserValueError

PLAIN = [
    "a",
    "A",
    "a.",
    "a ",
    "b c.md",
    "\u00e9",
    "e\u0301",
    "\u00c9",
    "\ufb01",
    "fi",
    "\u00df",
    "ss",
    "con",
    "NUL.txt",
]
PLAIN += ["x" * 100, "\u65e5" * 85, "50%", "-rf", "~", "*", "a:b"]
"""Names that a path may have. Some of them are one name on some file systems."""
WRONG = ["", ".", "..", "...", ".hidden", "a\\b", "a\0b", "a\nb", "\ud800", "\u202e", "x" * 101, "\u65e5" * 86]
WRONG += ["\U0001f600" * 64, "x" * 5_000, ".agentloop-edit"]
"""Names that no path has: too long in characters or in bytes, hidden, not printable, a way out."""

PATHS = st.lists(st.sampled_from(PLAIN + WRONG), min_size=1, max_size=9).map("/".join)
USUAL = st.lists(st.sampled_from(PLAIN), min_size=1, max_size=3).map("/".join)
STEPS = st.lists(st.dictionaries(USUAL | PATHS, st.sampled_from(["text", None]), min_size=1, max_size=3), max_size=5)


def _change_to(text: str | None, *paths: str) -> dict[str, str | None]:
    return dict.fromkeys(paths, text)


EACH_WRONG = [
    *(_change_to(text, path) for name in WRONG for path in (name, f"a/{name}", f"{name}/a") for text in ("x", None)),
    *(_change_to("x", path) for path in ("/a", "a/", "a//b", "/etc/passwd", "../../a", "a/../../b")),
    _change_to("x", "/".join("abcdefghi")),
    *(_change_to("x", *two) for two in [("a", "A"), ("a", "a/b"), ("A/b", "a/c"), ("\u00e9", "e\u0301")]),
    *(_change_to("x", *two) for two in [("a", "a."), ("a", "a "), ("\u00df", "ss"), ("\ufb01", "fi")]),
]
"""Changes that are refused in an empty scope, each for its own reason."""


async def change_all(
    stores: Sequence[MemoryStore], scope: str, steps: Sequence[Mapping[str, str | None]]
) -> list[UserValueError | None]:
    """Make the changes one after the other in each store, and check that all stores do the same with each.

    Returns what each change was refused by; None if it was made.
    """
    files: dict[str, str] = {}
    answers: list[UserValueError | None] = []
    for step in steps:
        refusals = [await _change(store, scope, step, files) for store in stores]
        assert len({str(refusal) for refusal in refusals}) == 1, (step, files, refusals)
        if refusals[0] is None:
            files = {path: text for path, text in {**files, **step}.items() if text is not None}
        answers.append(refusals[0])
        for store in stores:
            assert await store.load(scope) == files
    return answers


async def _change(store: Any, scope: str, step: Mapping[str, str | None], files: Mapping[str, str]) -> Any:
    try:
        await store.change(scope, step, expect=files)
    except UserValueError as refusal:
        return refusal
    return None
