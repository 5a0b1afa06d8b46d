"""A pseudo-terminal with the command line at it."""

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte

Start = Callable[..., "subprocess.Popen[str]"]


@contextmanager
def opened(pipe: Path) -> Iterator[None]:
    """Let every climber come to its end."""
    descriptor = os.open(pipe, os.O_RDWR)
    try:
        yield
    finally:
        os.close(descriptor)


class Terminal:
    """A terminal with the command line at it: `wait_for` reads what is shown, `type` answers.

    `shown` has all bytes, `screen` what they make of the terminal.
    """

    def __init__(self, start: Start, *arguments: str, columns: int = 80, lines: int = 24, **options: object) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.child = start(*arguments, **{"stdin": theirs, "stdout": theirs, "stderr": theirs, **options})
        os.close(theirs)
        self.shown = ""
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._cut = ""
        self._at = 0

    def wait_for(self, text: str) -> None:
        """Wait until *text* is shown, after the text that the last call waited for."""
        while (found := self.shown.find(text, self._at)) < 0:
            more = self._read()
            assert more, f"the child ended without saying {text!r}: {self.shown}"
            self.shown += more
        self._at = found + len(text)

    def _read(self) -> str:
        try:
            read = os.read(self._ours, 65_536)
        except OSError:  # how Linux says that the other side is closed
            return ""
        self._stream.feed(read)
        text = self._cut + self._decoder.decode(read)
        self._cut = "\r" if text.endswith("\r") else ""  # the rest of the line's end may come with the next read
        return text.removesuffix(self._cut).replace("\r\n", "\n") or self._read()

    @property
    def lines(self) -> list[str]:
        """What a user sees: the lines of the screen that aren't empty."""
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def wait_for_line(self, pattern: str) -> str:
        """Wait until a line of the screen matches *pattern*, and return it."""
        while not (found := [line for line in self.lines if re.fullmatch(pattern, line)]):
            more = self._read()
            assert more, f"the child ended without a line {pattern!r}: {self.lines}"
            self.shown += more
        return found[0]

    def close(self) -> None:
        """Close the terminal's window."""
        os.close(self._ours)

    def answer(self, text: str) -> None:
        """Answer the next question about a call."""
        self.wait_for("[l]ater: ")
        self.type(text)

    def type(self, text: str) -> None:
        """Type a line."""
        self.press(f"{text}\n")

    def press(self, keys: str) -> None:
        """Press *keys*, without Enter."""
        os.write(self._ours, keys.encode())

    @property
    def echoes(self) -> bool:
        """True if the terminal shows what is typed by itself, and hands over whole lines."""
        modes = termios.tcgetattr(self._ours)[3]
        return bool(modes & termios.ECHO and modes & termios.ICANON)

    def finish(self) -> int:
        """Read until the child ends, and return its exit code."""
        while more := self._read():
            self.shown += more
        os.close(self._ours)
        return self.child.wait(timeout=30)
