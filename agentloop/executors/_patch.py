"""The V4A patch format: a patch's operations, and the application of a diff to a text. Pure.

A patch lies between `*** Begin Patch` and `*** End Patch` and names files with `*** Add File:`, `*** Update File:` and
`*** Delete File:`. The diff of an update consists of hunks. A hunk may begin with anchors (`@@ line`), lines above the
change that say where it is; then each line is kept (` `), removed (`-`) or added (`+`). There are no line numbers: kept
and removed lines together have to be found in the file, below the anchors and below the hunk before. They are compared
exactly first, then without trailing blanks, then without surrounding blanks, since models copy lines that well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from agentloop._common.errors import ModelBehaviorError
from agentloop.executors._protocols import CreateFile, DeleteFile, EditError, EditOperation, UpdateFile

_BEGIN, _END = "*** Begin Patch", "*** End Patch"
_ADD, _UPDATE, _DELETE, _MOVE = "*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: "
_END_OF_FILE = "*** End of File"
_QUOTED = 120
"""The most characters of a line that a message quotes."""


def parse_patch(patch: str) -> tuple[EditOperation, ...]:
    """Return the operations of a *patch*, in order.

    Raises:
        ModelBehaviorError: if it isn't in the format; names the line.
    """
    lines = patch.replace("\r\n", "\n").strip("\n").split("\n")
    if lines[0].strip() != _BEGIN:
        raise ModelBehaviorError(f"A patch begins with {_BEGIN!r}, not {lines[0][:_QUOTED]!r}.")
    if len(lines) < 2 or lines[-1].strip() != _END:
        raise ModelBehaviorError(f"A patch ends with {_END!r}, not {lines[-1][:_QUOTED]!r}.")
    found = list(_operations(lines[1:-1]))
    if not found:
        raise ModelBehaviorError("The patch names no file.")
    return tuple(found)


def _operations(lines: list[str]) -> Iterator[EditOperation]:
    at = 0
    while at < len(lines):
        line, at = lines[at], at + 1
        start = at
        while at < len(lines) and not lines[at].startswith((_ADD, _UPDATE, _DELETE)):
            at += 1
        content = lines[start:at]
        if line.startswith(_ADD):
            yield CreateFile(path=line.removeprefix(_ADD).strip(), diff="\n".join(content))
        elif line.startswith(_UPDATE):
            move = None
            if content and content[0].startswith(_MOVE):
                move, content = content[0].removeprefix(_MOVE).strip(), content[1:]
            yield UpdateFile(path=line.removeprefix(_UPDATE).strip(), diff="\n".join(content), move_to=move)
        elif line.startswith(_DELETE) and not any(map(str.strip, content)):
            yield DeleteFile(path=line.removeprefix(_DELETE).strip())
        elif line.strip() or any(map(str.strip, content)):
            unexpected = line if not line.startswith(_DELETE) else next(filter(str.strip, content))
            raise ModelBehaviorError(f"A line of the patch belongs to no file: {unexpected[:_QUOTED]!r}")


def read_new_text(diff: str) -> str:
    """Return the content of a new file, whose *diff* has a `+` before each line.

    Raises:
        EditError: if a line has none.
    """
    lines = diff.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    for line in lines:
        if not line.startswith("+"):
            raise EditError(f"the diff of a new file has '+' before each line, and not in {line[:_QUOTED]!r}")
    return "".join(f"{line[1:]}\n" for line in lines)


@attrs.define
class _Hunk:
    """One change. `lines` are pairs of ` `, `-` or `+` and the line's text."""

    anchors: list[str] = attrs.field(factory=list)
    lines: list[tuple[str, str]] = attrs.field(factory=list)
    at_end: bool = False

    def trim(self, bare: int) -> _Hunk:
        """Return the hunk without its last *bare* lines, which are empty and unmarked: the end of the text itself."""
        return attrs.evolve(self, lines=self.lines[: len(self.lines) - bare])

    def before(self) -> list[str]:
        """Return the lines that have to be in the file."""
        return [text for sign, text in self.lines if sign != "+"]


def _hunks(diff: str) -> Iterator[_Hunk]:
    lines = diff.replace("\r\n", "\n").split("\n")
    hunk = _Hunk()
    bare = 0
    for line in lines:
        if line.rstrip() == _END_OF_FILE:
            hunk.at_end = True
        elif line.startswith("@@"):
            if hunk.lines:
                yield hunk.trim(bare)
                hunk = _Hunk()
            bare = 0
            if anchor := line[2:].strip():
                hunk.anchors.append(anchor)
        elif line[:1] in ("+", "-", " "):
            hunk.lines.append((line[0], line[1:]))
            bare = 0
        elif not line:
            hunk.lines.append((" ", ""))  # models leave out the blank of an empty line
            bare += 1
        else:
            raise EditError(f"a line of a diff begins with ' ', '+', '-' or '@@', not like {line[:_QUOTED]!r}")
    hunk = hunk.trim(bare)
    if hunk.lines or hunk.anchors:
        yield hunk


_COMPARISONS: tuple[Callable[[str], str], ...] = (str, str.rstrip, str.strip)


def _find(lines: Sequence[str], wanted: Sequence[str], start: int) -> int | None:
    """Return the first place from *start* on at which *wanted* is in *lines*; None if it isn't there."""
    for shape in _COMPARISONS:
        shaped = [shape(each) for each in wanted]
        for at in range(start, len(lines) - len(wanted) + 1):
            if all(shape(lines[at + n]) == each for n, each in enumerate(shaped)):
                return at
    return None


def apply_diff(text: str, diff: str) -> str:
    """Return *text* with the *diff* of an update applied. Lines that the diff keeps stay exactly as they are.

    Added lines get the line ends of the text. A last line without an end stays without one.

    Raises:
        EditError: if a hunk isn't found; quotes its first line.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.split("\n")  # not splitlines: a form feed in a line ends no line of a file
    ended = lines[-1] == ""
    if ended:
        lines.pop()
    bare = [line.removesuffix("\r") for line in lines]
    made: list[str] = []
    done = 0
    for hunk in _hunks(diff):
        at = _locate(bare, hunk, done)
        made += lines[done:at]
        done = at
        for sign, added in hunk.lines:
            if sign == "+":
                made.append(added + newline.removesuffix("\n"))
                continue
            if sign == " ":
                made.append(lines[done])
            done += 1
    made += lines[done:]
    if not made:
        return ""
    return "\n".join(made) + ("\n" if ended or not text else "")


def _locate(lines: Sequence[str], hunk: _Hunk, start: int) -> int:
    """Return the place of *hunk* in *lines*, at *start* or below.

    Raises:
        EditError: if it isn't there.
    """
    for anchor in hunk.anchors:
        found = _find(lines, [anchor], start)
        if found is None:
            raise EditError(f"the line after '@@' is not in the file, or not below the change before: {_quote(anchor)}")
        start = found + 1
    wanted = hunk.before()
    if not wanted:
        return start if hunk.anchors and not hunk.at_end else len(lines)
    if hunk.at_end:
        start = max(start, len(lines) - len(wanted))
    found = _find(lines, wanted, start)
    if found is None and hunk.anchors and not hunk.at_end:
        # Some models repeat the anchor as the first line of the hunk.
        found = _find(lines, wanted, start - 1)
    if found is None:
        raise EditError(f"these lines are not in the file, or not below the change before: {_quote(*wanted)}")
    return found


def _quote(*lines: str) -> str:
    shown = "\n".join(lines)
    return repr(shown if len(shown) <= _QUOTED else shown[:_QUOTED] + "…")
