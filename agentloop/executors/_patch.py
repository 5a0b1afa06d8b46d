"""The V4A patch format: a patch's operations, and the application of a diff to a text. Pure.

A patch lies between `*** Begin Patch` and `*** End Patch` and names files with `*** Add File:`, `*** Update File:` and
`*** Delete File:`. The diff of an update consists of hunks. A hunk may begin with anchors (`@@ line`), lines above the
change that say where it is; then each line is kept (` `), removed (`-`) or added (`+`). There are no line numbers: kept
and removed lines together have to be found in the file, below the anchors and below the hunk before. They are compared
exactly first, then without trailing blanks, then without surrounding blanks, since models copy lines that well.

A model writes both the diff and, often, the file, and a thread that compares lines ends no earlier than it likes. So
the work is bounded. One search is linear (Knuth, Morris and Pratt), and begins only if each of its lines is in the file
at all. All searches of one edit together may take a multiple of what the edit reads (`EditWork`), and every thousand
steps it is asked whether the edit is cancelled.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence

import attrs

from agentloop._common.errors import ModelBehaviorError
from agentloop.executors._protocols import CreateFile, DeleteFile, EditError, EditOperation, UpdateFile

_BEGIN, _END = "*** Begin Patch", "*** End Patch"
_ADD, _UPDATE, _DELETE, _MOVE = "*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: "
_HEADER = re.compile("^" + "|^".join(map(re.escape, (_ADD, _UPDATE, _DELETE))), re.MULTILINE)
_END_OF_FILE = "*** End of File"
_QUOTED = 120
"""The most characters of a line that a message quotes."""
_STEPS_A_UNIT = 50
_STEPS_AT_LEAST = 100_000
_STEPS_BETWEEN_CHECKS = 1_000
_CHARACTERS_A_STEP = 100


def do_nothing() -> None:
    """Never stop."""


class EditWork:
    """Counts the steps of one edit: a step compares or parses one line, or goes over some characters.

    Its bound grows with what the edit reads, so an edit of ten times the size takes at most ten times the steps.
    """

    def __init__(self, check: Callable[[], None] = do_nothing) -> None:
        """Begin at 0. *check* is called every thousand steps and raises to stop."""
        self.steps = 0
        self._check = check
        self._next_check = _STEPS_BETWEEN_CHECKS
        self._most = _STEPS_AT_LEAST

    def allow(self, text: str) -> None:
        """Raise the bound, because *text* is read: a file, or a part of the patch."""
        self._most += _STEPS_A_UNIT * (text.count("\n") + 1 + len(text) // _CHARACTERS_A_STEP)

    def go_over(self, text: str) -> None:
        """Count one look at the whole *text*."""
        self.take(len(text) // _CHARACTERS_A_STEP + 1)

    def take(self, steps: int = 1) -> None:
        """Count *steps*.

        Raises:
            EditError: if they are more than the edit may take.
        """
        self.steps += steps
        if self.steps >= self._next_check:
            self._check()
            self._next_check = self.steps + _STEPS_BETWEEN_CHECKS
        if self.steps > self._most:
            raise EditError(
                "its lines fit too many places almost: make fewer changes in one edit, and copy the lines exactly"
            )


def parse_patch(patch: str) -> tuple[EditOperation, ...]:
    """Return the operations of a *patch*, in order.

    Raises:
        ModelBehaviorError: if it isn't in the format; names the line.

    Example:
        from agentloop.executors import parse_patch

        text = "*** Begin Patch\n*** Delete File: old.txt\n*** End Patch"
        print(parse_patch(text)[0].path)  # old.txt
    """
    text = patch.replace("\r\n", "\n").strip("\n")
    first, _, rest = text.partition("\n")
    if first.strip() != _BEGIN:
        raise ModelBehaviorError(f"A patch begins with {_BEGIN!r}, not {first[:_QUOTED]!r}.")
    content, _, last = rest.rpartition("\n")
    if last.strip() != _END:
        raise ModelBehaviorError(f"A patch ends with {_END!r}, not {(last or first)[:_QUOTED]!r}.")
    found = tuple(_operations(content))
    if not found:
        raise ModelBehaviorError("The patch names no file.")
    return found


def _operations(content: str) -> Iterator[EditOperation]:
    # Searched for by one expression, and not line by line: this runs on the event loop.
    starts = [*(found.start() for found in _HEADER.finditer(content)), len(content) + 1]
    _refuse_lines(content[: starts[0]])
    for start, end in itertools.pairwise(starts):
        line, _, diff = content[start : end - 1].partition("\n")
        if line.startswith(_ADD):
            yield CreateFile(path=line.removeprefix(_ADD).strip(), diff=diff)
        elif line.startswith(_UPDATE):
            move = None
            if diff.startswith(_MOVE):
                target, _, diff = diff.partition("\n")
                move = target.removeprefix(_MOVE).strip()
            yield UpdateFile(path=line.removeprefix(_UPDATE).strip(), diff=diff, move_to=move)
        else:
            _refuse_lines(diff)
            yield DeleteFile(path=line.removeprefix(_DELETE).strip())


def _refuse_lines(text: str) -> None:
    """Refuse lines of a patch that are not blank where no diff can be."""
    if text.strip():
        line = next(filter(str.strip, text.split("\n")))
        raise ModelBehaviorError(f"A line of the patch belongs to no file: {line[:_QUOTED]!r}")


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


def _hunks(diff: str, work: EditWork) -> Iterator[_Hunk]:
    lines = diff.replace("\r\n", "\n").split("\n")
    hunk = _Hunk()
    bare = 0
    for line in lines:
        work.take()
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


class _FileLines:
    """The lines of a file, to find others in."""

    def __init__(self, lines: Sequence[str], work: EditWork) -> None:
        self.lines = lines
        self._work = work
        self._shaped: dict[int, tuple[Sequence[str], dict[str, int]]] = {}

    def __len__(self) -> int:
        return len(self.lines)

    def find(self, wanted: Sequence[str], start: int) -> int | None:
        """Return the first place from *start* on at which *wanted* is; None if it isn't there."""
        for number, shape in enumerate(_COMPARISONS):
            lines, last = self._shape(number)
            pattern = [shape(each) for each in wanted]
            self._work.take(len(pattern))
            if all(last.get(each, -1) >= start for each in pattern):
                found = self._search(lines, pattern, start)
                if found is not None:
                    return found
        return None

    def _shape(self, number: int) -> tuple[Sequence[str], dict[str, int]]:
        """Return the lines as one comparison takes them, and the last place of each."""
        if number not in self._shaped:
            self._work.take(len(self.lines))
            lines = [*map(_COMPARISONS[number], self.lines)]
            self._shaped[number] = lines, {line: at for at, line in enumerate(lines)}
        return self._shaped[number]

    def _search(self, lines: Sequence[str], pattern: Sequence[str], start: int) -> int | None:
        back = self._overlaps(pattern)
        fits = 0
        for at in range(start, len(lines)):
            self._work.take()
            while fits and lines[at] != pattern[fits]:
                fits = back[fits - 1]
                self._work.take()
            fits += lines[at] == pattern[fits]
            if fits == len(pattern):
                return at - fits + 1
        return None

    def _overlaps(self, pattern: Sequence[str]) -> list[int]:
        """Return for each line how long an end of the pattern up to it is also a beginning of the pattern."""
        overlaps = [0] * len(pattern)
        fits = 0
        for at in range(1, len(pattern)):
            self._work.take()
            while fits and pattern[at] != pattern[fits]:
                fits = overlaps[fits - 1]
                self._work.take()
            fits += pattern[at] == pattern[fits]
            overlaps[at] = fits
        return overlaps


def apply_diff(text: str, diff: str) -> str:
    """Return *text* with the *diff* of an update applied. Lines that the diff keeps stay exactly as they are.

    Added lines get the line ends of the text. A last line without an end stays without one.

    Raises:
        EditError: if a hunk isn't found, quoting its first line, or if finding it takes too much work.
    """
    work = EditWork()
    work.allow(text)
    work.allow(diff)
    return change_text(text, diff, work)


def change_text(text: str, diff: str, work: EditWork) -> str:
    """Do what `apply_diff` says, as a part of the *work* of an edit."""
    work.go_over(text)
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.split("\n")  # not splitlines: a form feed in a line ends no line of a file
    ended = lines[-1] == ""
    if ended:
        lines.pop()
    bare = _FileLines([line.removesuffix("\r") for line in lines], work)
    made: list[str] = []
    done = 0
    for hunk in _hunks(diff, work):
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


def _locate(lines: _FileLines, hunk: _Hunk, start: int) -> int:
    """Return the place of *hunk* in *lines*, at *start* or below.

    Raises:
        EditError: if it isn't there.
    """
    for anchor in hunk.anchors:
        found = lines.find([anchor], start)
        if found is None:
            raise EditError(f"the line after '@@' is not in the file, or not below the change before: {_quote(anchor)}")
        start = found + 1
    wanted = hunk.before()
    if not wanted:
        return start if hunk.anchors and not hunk.at_end else len(lines)
    if hunk.at_end:
        start = max(start, len(lines) - len(wanted))
    found = lines.find(wanted, start)
    if found is None and hunk.anchors and not hunk.at_end:
        # Some models repeat the anchor as the first line of the hunk.
        found = lines.find(wanted, start - 1)
    if found is None:
        raise EditError(f"these lines are not in the file, or not below the change before: {_quote(*wanted)}")
    return found


def _quote(*lines: str) -> str:
    shown = "\n".join(lines)
    return repr(shown if len(shown) <= _QUOTED else shown[:_QUOTED] + "…")
