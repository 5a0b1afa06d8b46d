"""A pseudo-terminal with the command line at it."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Callable

Start = Callable[..., "subprocess.Popen[str]"]


class Terminal:
    """A terminal with the command line at it: `wait_for` reads what is shown, `type` answers."""

    def __init__(self, start: Start, *arguments: str, columns: int = 80, lines: int = 24, **options: object) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.child = start(*arguments, **{"stdin": theirs, "stdout": theirs, "stderr": theirs, **options})
        os.close(theirs)
        self.shown = ""
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
            return os.read(self._ours, 65_536).decode().replace("\r\n", "\n")
        except OSError:  # how Linux says that the other side is closed
            return ""

    def answer(self, text: str) -> None:
        """Answer the next question about a call."""
        self.wait_for("[l]ater: ")
        self.type(text)

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self._ours, f"{text}\n".encode())

    def finish(self) -> int:
        """Read until the child ends, and return its exit code."""
        while more := self._read():
            self.shown += more
        os.close(self._ours)
        return self.child.wait(timeout=30)
