"""Standard input and output that don't block the event loop.

An ordinary write to a pipe without an active reader blocks, and so does a read from a terminal without input. Every run
of the process would wait with it, and the signal that should end them. These classes wait for the descriptor in the
event loop instead, where a cancellation can end the wait. Knows bytes and lines, nothing of runs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, TextIO

import anyio
import attrs

MAX_LINE = 1_000_000
_CHUNK = 65_536
_ATOMIC = 4_096  # PIPE_BUF of Linux: as much as a writable pipe takes without waiting
_GONE = (errno.EPIPE, errno.ECONNRESET, errno.EIO)  # the last is what a terminal says that was closed
_PATIENCE = 1.0  # seconds that `write_last` waits for the reader


class OutputClosed(Exception):
    """The reader of the output has closed it."""


def _get_descriptor(stream: TextIO | BinaryIO | None) -> int | None:
    try:
        return stream.fileno() if stream is not None else None
    except (OSError, ValueError):  # a stream in memory, or a closed one
        return None


def _may_wait(descriptor: int) -> bool:
    """Tell whether *descriptor* is a pipe, a socket or a terminal; a file never blocks, and can't be waited for."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


class Output:
    """One of the process's text outputs. Several tasks may write; each text is written completely, in order of calls.

    The rest of a text that a cancellation cut stays pending, and is written before the next text.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._descriptor = _get_descriptor(stream)
        self._waits = self._descriptor is not None and _may_wait(self._descriptor)
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self.is_unicode: bool = self._encoding.lower().replace("-", "") == "utf8"
        self._pending = bytearray()
        self._lock = anyio.Lock()
        self.is_terminal: bool = self._descriptor is not None and os.isatty(self._descriptor)
        if self.is_terminal:
            self._open_terminal()

    def _open_terminal(self) -> None:
        """Open the terminal once more, for writes that never block.

        One that has room for a byte counts as writable, and then blocks a write of two. The standard descriptor can't
        be made non-blocking: other processes share it, the shell for one.
        """
        assert self._descriptor is not None
        with contextlib.suppress(OSError):  # a terminal that this user may not open: its writes may block
            name = os.ttyname(self._descriptor)
            self._descriptor = os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._descriptor)

    def goes_where(self, other: Output) -> bool:
        """Tell whether both outputs lead to the same file, as with `2>&1`."""
        if self._descriptor is None or other._descriptor is None:
            return False
        return os.path.sameopenfile(self._descriptor, other._descriptor)

    async def write(self, text: str, *, encoding: str | None = None) -> None:
        """Write *text*, with backslash escapes for characters that the encoding lacks.

        Cancellation: a checkpoint; the rest of the text stays pending.

        Raises:
            OutputClosed: if the reader has closed the output.
        """
        self._take(text, encoding)
        async with self._lock:
            while self._pending:
                if not self._writable(within=0):
                    assert self._descriptor is not None
                    await anyio.wait_writable(self._descriptor)
                self._write_some()

    def write_last(self, text: str, *, encoding: str | None = None) -> None:
        """Write *text* from outside the event loop. Give up if the reader takes nothing for a second.

        Raises:
            OutputClosed: if the reader has closed the output.
        """
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
        except BlockingIOError:  # another process has made the shared descriptor non-blocking, and the pipe is full
            return
        except OSError as error:
            if error.errno not in _GONE:
                raise
            self._pending.clear()
            raise OutputClosed from None
        del self._pending[:written]


@attrs.frozen
class InputLine:
    """One line of input: its number, counted from 1, and its text. `error` is the reason if the text can't be read."""

    number: int
    text: str
    error: str | None = None


class Lines:
    """Reads a binary stream line by line. Blank lines are counted but not returned. Used by one task.

    A line that isn't UTF-8, or has more than *limit* bytes, is returned with an error; the following lines are read as
    usual.
    """

    def __init__(self, stream: BinaryIO, *, limit: int = MAX_LINE) -> None:
        self._stream = stream
        self._descriptor = _get_descriptor(stream)
        self._waits = self._descriptor is not None and _may_wait(self._descriptor)
        self._limit = limit
        self._buffer = bytearray()
        self._searched = 0
        self._cut = False
        self._ended = False
        self._number = 0

    async def next(self) -> InputLine | None:
        """Wait for the next line that isn't blank, and return it; None after the last.

        Cancellation: a checkpoint only while it waits for a pipe or a terminal; no input is lost.
        """
        while (line := self._take_buffered()) is None and not self._ended:
            await self._fill()
        return line

    def _take_buffered(self) -> InputLine | None:
        """Take the next line that isn't blank from the buffer, and return it; None if none is complete."""
        while (raw := self._take_raw()) is not None:
            self._number += 1
            line = self._decode(raw)
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

    def _take_raw(self) -> bytes | None:
        """Take the next raw line from the buffer, blank or not, and return it; None if none is complete.

        Drops the beginning of a line longer than the limit, so that the buffer stays bounded.
        """
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

    def _decode(self, raw: bytes) -> InputLine:
        cut, self._cut = self._cut or len(raw) > self._limit, False
        if cut:
            return InputLine(self._number, "", f"line {self._number} is longer than {self._limit:,} bytes")
        try:
            text = raw.decode("utf-8-sig" if self._number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            at = f"byte {error.start + 1} (0x{raw[error.start]:02x})"
            return InputLine(self._number, "", f"line {self._number} isn't UTF-8 text: {at}")
        return InputLine(self._number, text.strip())


class TypedLines:
    """Lines as a user types them at a terminal; a pipe or a file does as well. Used by one task at a time.

    Ctrl-D ends one reading, not the input: the next reading waits for another line. What was typed ahead is kept.

    Within `edited` keys are taken one by one, and shown by others than the terminal.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._descriptor = _get_descriptor(stream)
        self._waits = self._descriptor is not None and _may_wait(self._descriptor)
        self._typed = bytearray()
        self._draft = b""
        """The line that was not complete when `edited` was left."""
        self._has_ended = False
        self._changed: Callable[[str], None] | None = None
        self._give_back: Callable[[], None] = _nothing
        """Gives the keys back to the terminal, if they were taken."""

    async def next(self, *, cut: bool = False) -> str | None:
        """Wait for a line, and return it without its newline; None at the end of the input (Ctrl-D).

        A line that the end of the input has cut is dropped; with *cut* it is returned, and None at the next reading.

        Cancellation: a checkpoint while it waits for a pipe or a terminal; no input is lost.
        """
        while b"\n" not in self._typed:
            if self._has_ended:
                self._has_ended = False
                return None
            chunk = await self._read()
            if chunk and self._changed is not None:
                self._edit(chunk, self._changed)
                continue
            if not chunk:
                rest = bytes(self._typed)
                self._typed.clear()
                return rest.decode("utf-8", "replace") if cut and rest else None
            self._typed += chunk
        line, _, rest = bytes(self._typed).partition(b"\n")
        self._typed[:] = rest
        return line.decode("utf-8", "replace")

    async def _read(self) -> bytes:
        if self._descriptor is None:
            return self._stream.read(_CHUNK)
        if self._waits:
            await anyio.wait_readable(self._descriptor)
        return os.read(self._descriptor, _CHUNK)

    def put_back(self, lines: Iterable[str], *, ended: bool = False) -> None:
        """Let the next readings return *lines*, before all that was typed since; with *ended*, then None."""
        self._typed[:0] = "".join(f"{line}\n" for line in lines).encode()
        self._has_ended = self._has_ended or ended

    def take_complete(self) -> list[str]:
        """Take the complete lines that were not read yet, also those that are at the terminal. Never waits."""
        while self._waits and self._descriptor is not None and select.select([self._descriptor], (), (), 0)[0]:
            try:
                chunk = os.read(self._descriptor, _CHUNK)
            except OSError:  # the terminal is gone: the next reading tells
                break
            self._typed += chunk
            if not chunk:
                self._has_ended = True
                break
        complete = self._typed[: self._find_begin()]
        self._draft += self._typed[len(complete) :]
        self._typed.clear()
        return complete.decode("utf-8", "replace").split("\n")[:-1]

    def continue_draft(self) -> str:
        """Let the next reading begin with the line that was not complete when `edited` was left, and return it.

        An empty text where the next reading returns another line, which is complete: the draft waits for its turn.
        """
        if b"\n" in self._typed:
            return ""
        draft = self._draft
        self._join_draft()
        return draft.decode("utf-8", "replace")

    def drop_draft(self) -> None:
        """Drop the line that isn't complete, as a terminal does at Ctrl-C."""
        del self._typed[self._find_begin() :]

    def _join_draft(self) -> None:
        self._typed += self._draft
        self._draft = b""

    def _find_begin(self) -> int:
        """Return where the line begins that isn't complete."""
        return self._typed.rfind(b"\n") + 1

    @contextlib.contextmanager
    def edited(self, changed: Callable[[str], None]) -> Iterator[None]:
        """Take keys as they are typed, and call *changed* with the line so far; the terminal echoes nothing meanwhile.

        Backspace, Ctrl-U and Ctrl-D do as usual. What isn't complete at the end is for `continue_draft`. Does nothing
        if this isn't a terminal, except to note what is read.
        """
        self._take_keys()
        self._changed = changed
        self._join_draft()
        if draft := self._typed[self._find_begin() :]:
            changed(draft.decode("utf-8", "replace"))
        try:
            yield
        finally:
            self._changed = None
            self.restore()
            self._give_back = _nothing
            self._draft = bytes(self._typed[self._find_begin() :])
            self.drop_draft()

    def _take_keys(self) -> None:
        terminal = self._descriptor
        if terminal is None or not os.isatty(terminal):
            return
        import termios  # where there is a terminal

        before, keys = (termios.tcgetattr(terminal) for _ in range(2))
        keys[3] &= ~(termios.ICANON | termios.ECHO)
        keys[6][termios.VMIN], keys[6][termios.VTIME] = 1, 0

        def give_back() -> None:
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(terminal, termios.TCSANOW, before)

        self._give_back = give_back
        termios.tcsetattr(terminal, termios.TCSANOW, keys)

    def restore(self) -> None:
        """Give the keys back to the terminal, if `edited` has them. A signal's handler calls it, so it never waits."""
        self._give_back()

    def _edit(self, keys: bytes, changed: Callable[[str], None]) -> None:
        """Change the line as *keys* say."""
        for key in _ESCAPED.sub(b"", keys):
            begin = self._find_begin()
            if key in _ERASE:
                kept = self._typed[begin:].decode("utf-8", "replace")[:-1]
                self._typed[begin:] = kept.encode()
            elif key == _KILL:
                del self._typed[begin:]
            elif key == _END:
                self._has_ended = self._has_ended or begin == len(self._typed)
            elif key >= ord(" ") or key in b"\t\n":
                self._typed.append(key)
        changed(self._typed[self._find_begin() :].decode("utf-8", "replace"))


_ERASE, _KILL, _END = b"\x7f\b", 0x15, 0x04
_ESCAPED = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?", re.DOTALL)
"""Keys without a character, such as arrows."""


def _nothing() -> None:
    pass


def count_lines(path: str) -> int:
    """Return the number of lines of the file that aren't blank. Uses bounded memory; blocks."""
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
