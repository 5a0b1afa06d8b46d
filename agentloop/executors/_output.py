"""The output of a command: bytes kept within a bound, and their text.

Memory is bounded: the head is kept, and of all later bytes the last ones. Does not know about processes.
"""

from __future__ import annotations

from collections import deque


class BoundedOutput:
    """Collects the bytes of one stream and keeps *limit* bytes of them: one half from the head, one from the tail."""

    def __init__(self, limit: int) -> None:
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._room = limit - limit // 2
        self._tail_room = limit // 2
        self._in_tail = 0
        self.total = 0
        """Bytes that came."""

    def add(self, chunk: bytes) -> None:
        """Note the next bytes."""
        self.total += len(chunk)
        if room := self._room - len(self._head):
            self._head += chunk[:room]
            chunk = chunk[room:]
        if not chunk:
            return
        self._tail.append(chunk)
        self._in_tail += len(chunk)
        while self._tail and self._in_tail - len(self._tail[0]) >= self._tail_room:
            self._in_tail -= len(self._tail.popleft())

    def text(self, limit: int) -> str:
        """Return the text of at most about *limit* characters, with a note where something was cut.

        Bytes that aren't UTF-8 become replacement characters. A character that a cut divides is left out.
        """
        tail = b"".join(self._tail)
        tail = tail[-self._tail_room :] if self._tail_room else b""
        lost = self.total - len(self._head) - len(tail)
        if not lost:
            return cut_text((bytes(self._head) + tail).decode(errors="replace"), limit)
        head = _whole_end(bytes(self._head)).decode(errors="replace")
        end = _whole_start(tail).decode(errors="replace")
        shown = limit // 2
        return f"{head[: limit - shown]}{_note(self.total, 'bytes')}{end[-shown:] if shown else ''}"


def _note(total: int, unit: str) -> str:
    return f"\n[… the middle of {total:,} {unit} was cut …]\n"


def cut_text(text: str, limit: int) -> str:
    """Return *text* if it has at most *limit* characters, else its head and tail with a note between them."""
    if len(text) <= limit:
        return text
    tail = limit // 2
    return text[: limit - tail] + _note(len(text), "characters") + (text[-tail:] if tail else "")


def _whole_end(data: bytes) -> bytes:
    """Return *data* without the beginning of a character at its end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data if back >= size else data[:-back]
    return data


def _whole_start(data: bytes) -> bytes:
    """Return *data* without the end of a character at its beginning."""
    start = 0
    while start < min(3, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]
