"""The decoder of server-sent events."""

import tracemalloc
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.exceptions import ModelBehaviorError
from agentloop.models._sse import ServerSentEvent, SSEDecoder


def decode(pieces: Iterable[bytes], **bounds: int) -> list[ServerSentEvent]:
    decoder = SSEDecoder(**bounds)
    events = [event for piece in pieces for event in decoder.feed(piece)]
    decoder.close()
    return events


def event(data: str, event: str = "message", id: str = "") -> ServerSentEvent:
    return ServerSentEvent(event, data, id)


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [event("a")]),
        (b"data: a\r\r", [event("a")]),
        (b"data: a\r\n\r\n", [event("a")]),
        (b"data: a\n\rdata: b\r\n\n", [event("a"), event("b")]),
        (b"\xef\xbb\xbfdata: a\n\n", [event("a")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
        (b": hello\ndata: a\n:\n\n", [event("a")]),
        (b"data: a\ndata:b\ndata\ndata:  c\n\n", [event("a\nb\n\n c")]),
        (b"event: x\ndata: a\n\ndata: b\n\n", [event("a", "x"), event("b")]),
        (b"event: x\n\ndata: b\n\n", [event("b")]),
        (b"id: 7\ndata: a\n\ndata: b\n\nid\ndata: c\n\n", [event("a", id="7"), event("b", id="7"), event("c")]),
        (b"id: 7\nid: 8\x009\ndata: a\n\n", [event("a", id="7")]),
        (b"retry: 10\nsurprise: 1\ndata: a\n\n", [event("a")]),
        (b"data: a\n\ndata: cut", [event("a")]),
        (b"data: a\n\ndata: cut\n", [event("a")]),
        (b"data: \xff\xc3\n\n", [event("�" * 2)]),
        (b"data: a\xe2\x80\xa8b\x0bc\n\n", [event("a\u2028b\x0bc")]),
        (b"data:\n\n", [event("")]),
        (b"", []),
        (b"\xef\xbb", []),
    ],
)
def test_a_stream_gives_the_events_the_rules_say_however_it_is_cut(
    stream: bytes, events: list[ServerSentEvent]
) -> None:
    """The stream may come whole, byte by byte, or cut in two at any place."""
    assert decode([stream]) == events
    assert decode([bytes([byte]) for byte in stream]) == events
    for cut in range(len(stream)):
        assert decode([stream[:cut], b"", stream[cut:]]) == events


@given(
    st.lists(
        st.sampled_from([b"data", b"event", b"id", b":", b": ", b"\n", b"\r", b"\r\n", b"\xef\xbb\xbf", "ü".encode()])
        | st.binary(max_size=3)
    ),
    st.lists(st.integers(0, 200)),
)
def test_any_split_of_any_bytes_gives_the_same_events(parts: list[bytes], cuts: list[int]) -> None:
    """The decoder knows nothing of where a read ended."""
    stream = b"".join(parts)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    assert decode(pieces) == decode([stream])


@pytest.mark.parametrize(
    ("stream", "bound"),
    [
        (b"data: " + b"a" * 100 + b"\n\n", "max_line"),
        (b"data: " + b"a" * 100, "max_line"),
        (b"data: aaaaaaaaa\n" * 12 + b"\n", "max_event"),
        (b"data\n" * 101 + b"\n", "max_event"),
        (b":\n" * 51, "max_total"),
    ],
)
def test_what_exceeds_a_bound_is_an_error(stream: bytes, bound: str) -> None:
    """The bound holds for a stream that comes whole or byte by byte, and the error gives the bound."""
    with pytest.raises(ModelBehaviorError, match="100 bytes"):
        decode([stream], **{bound: 100})
    with pytest.raises(ModelBehaviorError, match="100 bytes"):
        decode([bytes([byte]) for byte in stream], **{bound: 100})
    decode([stream], **{bound: 1000})


def test_bounds_count_one_event_at_a_time() -> None:
    """Many small events pass a bound that one large one would exceed."""
    assert len(decode([b"data: aaaaaaaaa\n\n" * 50], max_event=20, max_line=20)) == 50


def test_a_line_and_an_event_may_be_as_long_as_the_stream() -> None:
    """Unless they have bounds of their own; the longest line is what the response's bound leaves."""
    assert decode([b"data: " + b"a" * 92 + b"\n\n"], max_total=100) == [event("a" * 92)]
    with pytest.raises(ModelBehaviorError, match="response is longer than 100 bytes"):
        decode([b"data: " + b"a" * 93 + b"\n\n"], max_total=100)


@pytest.mark.slow
@pytest.mark.parametrize("line", [b"data: " + b"a" * 2_000_000 + b"\n", b"data\n", b"data:ab\n", b"data: \xc3\n"])
def test_memory_is_a_small_multiple_of_the_longest_event(line: bytes) -> None:
    """Also if the event has many short lines: what has come of it is kept as bytes."""
    stream = line * (2_000_000 // len(line) or 1) + b"\n"
    decoder = SSEDecoder()
    pieces = [stream[start : start + 65_536] for start in range(0, len(stream), 65_536)]
    tracemalloc.start()
    try:
        [found] = [event for piece in pieces for event in decoder.feed(piece)]
        assert tracemalloc.get_traced_memory()[1] < 6 * len(stream)
    finally:
        tracemalloc.stop()
    assert found.data == "\n".join(
        each.removeprefix(b"data").removeprefix(b":").removeprefix(b" ").decode("utf-8", "replace")
        for each in stream.splitlines()[:-1]
    )


@pytest.mark.parametrize("noise", [b": ping\n", b":\n", b"\n", b"\r", b": ping\n\n", b":" + b"x" * 900 + b"\n"])
def test_noise_costs_no_more_than_events(noise: bytes) -> None:
    """A stream of comments and blank lines takes no more steps than one of short events of the same size."""
    assert _count_lines(noise) < _count_lines(b'data: {"choices": [{"delta": {"content": "hello"}}]}\n\n') / 10


def _count_lines(block: bytes) -> int:
    """Return the number of lines that the decoder looks at one by one in a stream of *block*s."""
    seen = 0

    class Counting(SSEDecoder):
        def _take(self, line: bytes) -> ServerSentEvent | None:
            nonlocal seen
            seen += 1
            return super()._take(line)

    decoder = Counting()
    stream = block * (2_000_000 // len(block))
    for start in range(0, len(stream), 65_536):
        decoder.feed(stream[start : start + 65_536])
    return seen


def test_a_comment_longer_than_a_line_may_be_is_an_error_too() -> None:
    """Comments are dropped together, but not before they are measured."""
    for stream in (b":" * 101 + b"\n", b"data: a\n\n:" + b"x" * 100 + b"\n\n", b"\n" * 90 + b":" * 102 + b"\n"):
        with pytest.raises(ModelBehaviorError, match="100 bytes"):
            decode([stream], max_line=100)
        with pytest.raises(ModelBehaviorError, match="100 bytes"):
            decode([bytes([byte]) for byte in stream], max_line=100)
