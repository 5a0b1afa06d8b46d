"""Remarks of a transport about a server that it opens: for the error that says why the server can't be used.

Knows neither transports nor the protocol. The SDK says "Connection closed" of a program that has written its reason to
stderr and exited, and "error response" of an answer by HTTP whose status says it all.
"""

from __future__ import annotations

from collections import deque

from agentloop._common.error_text import redact, shorten

_MOST_LINES, _MOST_CHARACTERS = 10, 300
_ADVICE = {
    401: " (is a key missing in `headers`, or does it want a login: `auth`?)",
    403: " (does the key in `headers` allow it?)",
    404: " (is it the endpoint of streamable HTTP? The older transport, SSE, isn't supported)",
    405: " (is it the endpoint of streamable HTTP? The older transport, SSE, isn't supported)",
}


class Remarks:
    """The remarks about one opening of a connection: written by its transport, read when the opening has failed."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._end = ""

    def begin(self) -> None:
        """Forget what was seen: the transport opens anew."""
        self._lines.clear()
        self._end = ""

    def add_line(self, line: str) -> None:
        """Note a line that the server's process has written to stderr, or to stdout where it isn't a message."""
        self._lines.append(redact(shorten(line, _MOST_CHARACTERS)))

    def exited(self, code: int) -> None:
        """Note that the server's process has ended by itself."""
        self._end = f"its process ended with exit code {code}"

    def answered(self, status: int, words: str) -> None:
        """Note the status of an answer that is an error."""
        self._end = f"it answered {status} {words}".rstrip() + _ADVICE.get(status, "")

    def __str__(self) -> str:
        wrote = "".join(f"\n    {line}" for line in self._lines)
        return "".join([f"; {self._end}" if self._end else "", f". It wrote:{wrote}" if wrote else ""])
