"""A decoder of server-sent events: bytes in, events out, every size bounded.

Follows the WHATWG rules (HTML §9.2): lines end with CR, LF or CRLF, one leading byte order mark is dropped, a colon
starts a comment, several `data` lines join with a newline, an event without data is not dispatched, and one that the
stream's end cuts is lost. Any split of the bytes gives the same events. Does not know about sockets or JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

from agentloop.exceptions import ModelBehaviorError

_BOM = b"\xef\xbb\xbf"


@attrs.frozen
class ServerSentEvent:
    """One dispatched event. `id` is the last id the stream gave, as the rules want it."""

    event: str
    data: str
    id: str = ""


class SSEDecoder:
    """Turns the bytes of one response into its events. Owned by the reader of that response.

    Units: `max_line` is bytes of one line, `max_event` bytes of one event's data, `max_total` bytes of the response.
    Without their own bound lines and events may be as long as the response: one event holds an image whole, and
    the last event of an answer all of its images. The decoder holds what has come of a line and of an event as bytes,
    so its memory is a small multiple of the bound, however many lines there are.
    """

    def __init__(
        self, *, max_total: int = 64_000_000, max_line: int | None = None, max_event: int | None = None
    ) -> None:
        self._max_line = max_total if max_line is None else max_line
        self._max_event = max_total if max_event is None else max_event
        self._max_total = max_total
        self._total = 0
        self._line = bytearray()
        self._head: bytes | None = b""  # bytes that may be the beginning of a byte order mark; None once that is known
        self._after_cr = False
        self._event = ""
        self._data = bytearray()  # each line of the event's data with a newline behind it
        self._id = ""

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Return the events that *data* completes.

        Raises:
            ModelBehaviorError: if a bound is exceeded.
        """
        self._total += len(data)
        if self._total > self._max_total:
            raise ModelBehaviorError(f"The response is longer than {self._max_total} bytes.")
        return [event for line in self._lines(self._without_bom(data)) if (event := self._take(line)) is not None]

    def close(self) -> None:
        """End the stream. An event without its final blank line is dropped."""
        self._line.clear()
        self._data.clear()

    def _without_bom(self, data: bytes) -> bytes:
        if self._head is None:
            return data
        self._head += data
        if len(self._head) < len(_BOM) and _BOM.startswith(self._head):
            return b""
        data, self._head = self._head.removeprefix(_BOM), None
        return data

    def _lines(self, data: bytes) -> Iterator[bytes]:
        if self._after_cr and data:
            # A CR has already ended its line; an LF right behind it belongs to it.
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if not data:
            return
        self._after_cr = data.endswith(b"\r")
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._line:
            first, end, data = data.partition(b"\n")
            self._extend(first)
            if not end:
                return
            line = bytes(self._line)
            self._line.clear()
            yield line
            del line
        # A line that is longer than the bound must not be dropped before it is measured.
        if len(data) <= self._max_line:
            data = _drop_noise(data)
        *lines, rest = data.split(b"\n")
        for line in lines:
            if len(line) > self._max_line:
                self._extend(line)  # which raises
            yield line
        self._extend(rest)

    def _extend(self, piece: bytes) -> None:
        self._line += piece
        if len(self._line) > self._max_line:
            raise ModelBehaviorError(f"A line of the event stream is longer than {self._max_line} bytes.")

    def _take(self, line: bytes) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data += value
            self._data += b"\n"
            if len(self._data) > self._max_event:
                raise ModelBehaviorError(f"An event of the stream is longer than {self._max_event} bytes.")
        elif field == b"event":
            self._event = value.decode("utf-8", "replace")
        elif field == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        event, self._event = self._event or "message", ""
        if not self._data:
            return None
        text = self._data.decode("utf-8", "replace")[:-1]
        self._data.clear()
        return ServerSentEvent(event, text, self._id)


# Servers send comments to keep a connection open, and a hostile one could send nothing else. Runs of comments and blank
# lines are found by one match each, without a look at each line: 60 MB of pings take 0.3 s, and line by line 9 s, while
# 60 MB of short events take 3 s. A run with a blank line ends an event, so that one is left.
_NOISE = re.compile(rb"^(?:(?::[^\n]*+)?\n)++", re.MULTILINE)
_BLANK = re.compile(rb"^\n", re.MULTILINE)


def _drop_noise(data: bytes) -> bytes:
    """Return *data*, which begins at the beginning of a line, without comments and repeated blank lines."""
    while b"\n\n\n" in data:
        data = data.replace(b"\n\n\n", b"\n\n")
    if not data.startswith(b":") and b"\n:" not in data:
        return data
    return _NOISE.sub(_keep_blank, data)


def _keep_blank(noise: re.Match[bytes]) -> bytes:
    return b"\n" if _BLANK.search(noise[0]) else b""
