"""JSON that comes in pieces: where its outermost value ends, and whether it is whole. Each piece is read once. Pure."""

from __future__ import annotations

import re

from agentloop.models._codec import is_json

_MARKS = re.compile(r'\\.?|["\[\]{}]', re.DOTALL)
_WORD = 32
"""Characters of the longest number or word that is taken for a whole text."""


class BracketScan:
    """Follows the brackets and quotes of a text that comes in pieces."""

    __slots__ = ("_depth", "_escaped", "_quoted")  # an answer may have thousands of calls

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False  # the next character is, as the last one was a backslash

    @property
    def inside(self) -> bool:
        """True within a bracket or a string."""
        return self._quoted or self._depth > 0

    def find_end(self, piece: str) -> int | None:
        """Return the place in *piece* behind the outermost bracket or quote that closes; None if that isn't in it.

        What follows it isn't looked at.
        """
        start = 1 if self._escaped and piece else 0
        self._escaped = self._escaped and not piece
        for mark in _MARKS.finditer(piece, start):
            if self._closes(mark[0]):
                return mark.end()
        return None

    def _closes(self, mark: str) -> bool:
        if mark[0] == "\\":
            self._escaped = len(mark) == 1
            return False
        if mark == '"':
            self._quoted = not self._quoted
        elif not self._quoted:
            self._depth += 1 if mark in "[{" else -1
        else:
            return False
        return not self._quoted and self._depth <= 0


class PartialJson:
    """A JSON text that comes in pieces, and whether it is whole so far.

    A text becomes whole at one moment: when its outermost bracket or quote closes. Then it is read, once; if more
    than blanks follow, it isn't JSON for good. A number or a word may be whole at any time, and is read as long as it
    is short. `whole` does all of this, for the pieces that are new to it.
    """

    __slots__ = ("_closed", "_pieces", "_scan", "_scanned", "_size")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._scanned = 0
        self._size = 0  # of the pieces that are scanned
        self._scan: BracketScan | None = None
        self._closed: bool | None = None  # whether it is JSON since its outermost bracket or quote closed; None: open

    def feed(self, piece: str) -> None:
        """Add the next piece."""
        self._pieces.append(piece)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    @property
    def whole(self) -> bool:
        """True if the text so far is JSON."""
        scan = self._scan = self._scan or BracketScan()
        for piece in self._pieces[self._scanned :]:
            self._scanned += 1
            self._size += len(piece)
            if self._closed is not None:
                self._closed = self._closed and not piece.strip()
            elif (end := scan.find_end(piece)) is not None:
                head = "".join(self._pieces[: self._scanned])
                self._closed = not piece[end:].strip() and is_json(head)
        if self._closed is None and not scan.inside:
            return self._size <= _WORD and is_json(self.text)
        return self._closed is True
