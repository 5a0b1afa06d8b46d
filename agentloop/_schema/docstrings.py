"""The description and the parameters in a docstring, in Google, NumPy or Sphinx style.

Pure text work: does not know about functions. A docstring in no known style is all description; nothing here ever
fails.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from agentloop._common.values import Value

_PARAMETERS = {"args", "arguments", "parameters", "params", "other parameters", "keyword args", "keyword arguments"}
_SECTIONS = _PARAMETERS | {
    "attributes", "example", "examples", "note", "notes", "raises", "references", "return", "returns", "see also",
    "todo", "warning", "warnings", "warns", "yield", "yields",
}  # fmt: skip

_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\)|\[[^\]]*\])?\s*:\s*(.*)", re.DOTALL)
_NUMPY_NAMES = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
_SPHINX_FIELD = re.compile(r":(\w+)\b([^:]*):\s*(.*)")
_SPHINX_PARAMETER = {"param", "parameter", "arg", "argument", "key", "keyword", "kwarg"}


class Documented(Value, frozen=True):
    """The content of a docstring.

    `description` is the text outside of sections. `parameters` maps a name (without stars) to its text on one line.
    """

    description: str
    parameters: Mapping[str, str]


def read_docstring(text: str | None) -> Documented:
    """Return the content of docstring *text*; empty if there is none."""
    lines = inspect.cleandoc(text or "").splitlines()
    description: list[str] = []
    parameters: dict[str, str] = {}
    start = 0
    while start < len(lines):
        if field := _SPHINX_FIELD.fullmatch(lines[start]):
            body = _read_indented(lines, start + 1)
            parameters.update(_read_sphinx_field(field, body))
            start += 1 + len(body)
        elif section := _read_section(lines, start):
            title, body, start = section
            if title in _PARAMETERS:
                parameters.update(_read_entries(body))
        else:
            description.append(lines[start])
            start += 1
    return Documented("\n".join(description).strip(), parameters)


def _read_section(lines: Sequence[str], start: int) -> tuple[str, list[str], int] | None:
    """Return (title, body, index after it) of the section that begins at *start*, if one does."""
    title = lines[start].strip().lower()
    following = lines[start + 1].strip() if start + 1 < len(lines) else ""
    if title in _SECTIONS and len(following) >= 3 and set(following) <= {"-", "="}:
        body = list(_until_next_heading(lines, start + 2))
        return title, body, start + 2 + len(body)
    if title.endswith(":") and title[:-1] in _SECTIONS:
        body = _read_indented(lines, start + 1)
        return (title[:-1], body, start + 1 + len(body)) if any(body) else None
    return None


def _until_next_heading(lines: Sequence[str], start: int) -> Iterator[str]:
    for index in range(start, len(lines)):
        underline = lines[index + 1].strip() if index + 1 < len(lines) else ""
        if lines[index].strip() and len(underline) >= 3 and set(underline) <= {"-", "="}:
            return
        yield lines[index]


def _read_indented(lines: Sequence[str], start: int) -> list[str]:
    end = start
    while end < len(lines) and (not lines[end].strip() or lines[end][0].isspace()):
        end += 1
    return list(lines[start:end])


def _read_entries(body: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of a section's entries. A head has the least indentation; its text is deeper."""
    dedented = inspect.cleandoc("\n" + "\n".join(body)).splitlines()
    for head, rest in _groups(dedented):
        if google := _GOOGLE_ENTRY.fullmatch(head):
            name, first = google.groups()
            # `name : type` is a NumPy head, with its text below. A Google entry has its text on the head's line.
            if not rest or not re.match(r"\*{0,2}\w+\s+:", head):
                yield name, _join([first, *rest])
                continue
        if names := _NUMPY_NAMES.fullmatch(head):
            for name in names.group(1).split(","):
                yield name.strip().lstrip("*"), _join(rest)


def _groups(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    start = 0
    while start < len(lines):
        rest = _read_indented(lines, start + 1)
        yield lines[start], rest
        start += 1 + len(rest)


def _read_sphinx_field(field: re.Match[str], body: Sequence[str]) -> Iterator[tuple[str, str]]:
    kind, about, first = field.groups()
    if kind in _SPHINX_PARAMETER and about.strip():
        yield about.split()[-1].lstrip("*\\"), _join([first, *body])


def _join(lines: Iterable[str]) -> str:
    return " ".join(" ".join(lines).split())
