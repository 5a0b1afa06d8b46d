"""Standard input and output without holding up the event loop.

A pipe nobody reads, or a terminal nobody types at, makes an ordinary read or write wait, and with it every run of the
process and the signal that is to end them. Here one waits for the descriptor instead, which a cancellation ends.
"""

from __future__ import annotations

import os
import select
import stat
from typing import BinaryIO, TextIO

import anyio
import attrs

MAX_LINE = 1_000_000
_CHUNK = 65_536
_ATOMIC = 4_096  # PIPE_BUF of Linux: as much as a writable pipe takes without waiting
_PATIENCE = 1.0


class OutputClosed(Exception):
    """Nobody reads the output any more."""


def _descriptor(stream: TextIO | BinaryIO | None) -> int | None:
    try:
        return stream.fileno() if stream is not None else None
    except (OSError, ValueError):  # a stream in memory, or a closed one
        return None


def _may_wait(descriptor: int) -> bool:
    """Tell whether *descriptor* is a pipe, a socket or a terminal; a file never waits, and can't be waited for."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


class Output:
    """One of the process's text outputs. Several tasks may write; each text comes out whole and in order.

    A text cut by a cancellation stays pending, and goes out before the next one.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._descriptor = _descriptor(stream)
        self._waits = self._descriptor is not None and _may_wait(self._descriptor)
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._pending = bytearray()
        self._lock = anyio.Lock()
        self.is_terminal = self._descriptor is not None and os.isatty(self._descriptor)

    def goes_where(self, other: Output) -> bool:
        """Tell whether both outputs lead to one place, as with `2>&1`."""
        if self._descriptor is None or other._descriptor is None:
            return False
        return os.path.sameopenfile(self._descriptor, other._descriptor)

    async def write(self, text: str, *, encoding: str | None = None) -> None:
        """Write *text*; what the encoding lacks goes out as a backslash escape.

        Raises:
            OutputClosed: if nobody reads any more.
        """
        self._take(text, encoding)
        async with self._lock:
            while self._pending:
                if not self._writable(within=0):
                    assert self._descriptor is not None
                    await anyio.wait_writable(self._descriptor)
                self._write_some()

    def write_last(self, text: str, *, encoding: str | None = None) -> None:
        """Write *text* from outside the event loop, giving up when the reader stands still for a second."""
        self._take(text, encoding)
        while self._pending:
            if not self._writable(within=_PATIENCE):
                return
            self._write_some()

    def _writable(self, *, within: float) -> bool:
        assert self._descriptor is not None
        return not self._waits or bool(select.select([], [self._descriptor], [], within)[1])

    def _take(self, text: str, encoding: str | None) -> None:
        if self._descriptor is not None:
            self._pending += text.encode(encoding or self._encoding, "backslashreplace")
        elif self._stream is not None:
            self._stream.write(text)

    def _write_some(self) -> None:
        assert self._descriptor is not None
        try:
            written = os.write(self._descriptor, self._pending[:_ATOMIC])
        except BlockingIOError:  # another process made the shared descriptor a non-blocking one, and it is full
            return
        except (BrokenPipeError, ConnectionResetError):
            self._pending.clear()
            raise OutputClosed from None
        del self._pending[:written]


@attrs.frozen
class InputLine:
    """One line of input: its number, counted from 1, and its text; `error` says why there is no text."""

    number: int
    text: str
    error: str | None = None


class Lines:
    """Reads a binary stream line by line; lines that hold only blanks are left out, but counted.

    A line that isn't UTF-8, or is longer than *limit* bytes, is given as an error, and the next ones as ever.
    """

    def __init__(self, stream: BinaryIO, *, limit: int = MAX_LINE) -> None:
        self._stream = stream
        self._descriptor = _descriptor(stream)
        self._waits = self._descriptor is not None and _may_wait(self._descriptor)
        self._limit = limit
        self._buffer = bytearray()
        self._searched = 0
        self._cut = False
        self._ended = False
        self._number = 0

    async def next(self) -> InputLine | None:
        """Return the next line, or None after the last."""
        while (line := self._buffered()) is None and not self._ended:
            await self._fill()
        return line

    def _buffered(self) -> InputLine | None:
        """Return the next line that says something off the buffer, or None where none is complete."""
        while (raw := self._taken()) is not None:
            self._number += 1
            line = self._line(raw)
            if line.error is not None or line.text:
                return line
        return None

    async def _fill(self) -> None:
        if self._descriptor is None:
            chunk = self._stream.read(_CHUNK)
        else:
            if self._waits:
                await anyio.wait_readable(self._descriptor)
            chunk = os.read(self._descriptor, _CHUNK)
        self._buffer += chunk
        self._ended = not chunk

    def _taken(self) -> bytes | None:
        """Return the next raw line off the buffer, blank or not."""
        end = self._buffer.find(b"\n", self._searched)
        if end < 0 and not (self._ended and (self._buffer or self._cut)):
            self._searched = len(self._buffer)
            if self._searched > self._limit:
                self._cut = True
            if self._cut:
                self._buffer.clear()
                self._searched = 0
            return None
        end = len(self._buffer) if end < 0 else end
        raw = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return raw

    def _line(self, raw: bytes) -> InputLine:
        cut, self._cut = self._cut or len(raw) > self._limit, False
        if cut:
            return InputLine(self._number, "", f"line {self._number} is longer than {self._limit:,} bytes")
        try:
            text = raw.decode("utf-8-sig" if self._number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            at = f"byte {error.start + 1} (0x{raw[error.start]:02x})"
            return InputLine(self._number, "", f"line {self._number} isn't UTF-8 text: {at}")
        return InputLine(self._number, text.strip())


def count_lines(path: str) -> int:
    """Return how many lines of the file hold more than blanks, in bounded memory."""
    count = 0
    filled = False
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            *complete, last = chunk.split(b"\n")
            for part in complete:
                count += filled or bool(part.strip())
                filled = False
            filled = filled or bool(last.strip())
    return count + filled
