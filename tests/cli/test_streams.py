"""Reading and writing without holding up the event loop."""

import io
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentloop.cli.streams import InputLine, Lines, Output, OutputClosed, count_lines

pytestmark = pytest.mark.real_clock

PIPE_SIZE = 1 << 20


async def _all(lines: Lines) -> list[InputLine]:
    found = []
    while (line := await lines.next()) is not None:
        found.append(line)
    return found


CASES: dict[bytes, list[tuple[int, str]]] = {
    b"": [],
    b"\n \n\t\r\n": [],
    b"one": [(1, "one")],
    b"one\n": [(1, "one")],
    b"\xef\xbb\xbfone\r\n\r\n  two  \nthree": [(1, "one"), (3, "two"), (4, "three")],
    b"123456789\n1234567890\n": [(1, "123456789"), (2, "1234567890")],
    "größe\n→\n".encode(): [(1, "größe"), (2, "→")],
}


class Trickle(io.RawIOBase):
    """A stream that gives one byte at a time."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        """Give the next byte."""
        return self._data.read(1)


@pytest.mark.anyio
@pytest.mark.parametrize("given", CASES)
async def test_lines_are_the_same_however_the_bytes_arrive(anyio_backend: object, given: bytes) -> None:
    """The lines are the same when the bytes come at once, one by one, or from a pipe."""
    reading, writing = os.pipe()
    os.write(writing, given)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        sources: list[Any] = [io.BytesIO(given), Trickle(given), pipe]
        for source in sources:
            lines = await _all(Lines(source, limit=10))
            assert [(line.number, line.text) for line in lines] == CASES[given]
            assert all(line.error is None for line in lines)


@pytest.mark.anyio
@pytest.mark.parametrize("end", [b"", b"\n", b"\nnext\n"])
@pytest.mark.parametrize("length", [11, 12, 5_000, 200_000])
async def test_a_too_long_line_is_named_and_costs_nothing_else(anyio_backend: object, length: int, end: bytes) -> None:
    """The line is named wherever it ends and however it arrives, and the lines around it are read."""
    given = b"before\n" + b"x" * length + end
    for source in (io.BytesIO(given), Trickle(given)) if length < 10_000 else (io.BytesIO(given),):
        lines = await _all(Lines(source, limit=10))  # type: ignore[arg-type]  # it reads, which is all that is asked
        assert (lines[0].text, lines[0].error) == ("before", None)
        assert lines[1].error == "line 2 is longer than 10 bytes"
        assert [line.text for line in lines[2:]] == (["next"] if b"next" in end else [])


@pytest.mark.anyio
async def test_waiting_for_input_can_be_cancelled(anyio_backend: object) -> None:
    """A read from an empty pipe ends with its scope."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        with anyio.move_on_after(0.01) as scope:
            await Lines(pipe).next()
        assert scope.cancelled_caught
    os.close(writing)


@pytest.mark.anyio
async def test_a_cancelled_write_is_completed_by_the_next(anyio_backend: object) -> None:
    """A line is never cut in the middle of what the reader gets."""
    reading, writing = os.pipe()
    text = "x" * PIPE_SIZE
    received = bytearray()

    async def drain() -> None:
        while len(received) < PIPE_SIZE + 5:
            await anyio.wait_readable(reading)
            received.extend(os.read(reading, 65_536))

    with os.fdopen(writing, "w") as pipe:
        output = Output(pipe)
        with anyio.move_on_after(0.01) as scope:
            await output.write(text)
        assert scope.cancelled_caught
        async with anyio.create_task_group() as group:
            group.start_soon(drain)
            await output.write("\nend\n")
    os.close(reading)
    assert received.decode() == text + "\nend\n"


@pytest.mark.anyio
async def test_texts_of_several_tasks_come_out_whole(anyio_backend: object) -> None:
    """Each text comes out whole, although the pipe is full most of the time."""
    reading, writing = os.pipe()
    texts = [f"{letter * 100_000}\n" for letter in "abc"]
    received = bytearray()
    with os.fdopen(writing, "w") as pipe:
        output = Output(pipe)
        async with anyio.create_task_group() as group:
            for text in texts:
                group.start_soon(output.write, text)
            while len(received) < 300_003:
                await anyio.wait_readable(reading)
                received.extend(os.read(reading, 65_536))
    os.close(reading)
    assert sorted(received.decode().splitlines(keepends=True)) == texts


@pytest.mark.anyio
async def test_a_closed_pipe_is_an_error_of_its_own(anyio_backend: object) -> None:
    """The error has its own type, so that it isn't taken for a tool's broken pipe."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        output = Output(pipe)
        with pytest.raises(OutputClosed):
            await output.write("lost")
        with pytest.raises(OutputClosed):
            output.write_last("lost")


@pytest.mark.slow
def test_last_words_give_up_on_a_reader_that_stands_still() -> None:
    """The process must end, even if its last words are never read."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        Output(pipe).write_last("x" * PIPE_SIZE)
    assert 0 < len(os.read(reading, 2 * PIPE_SIZE)) < PIPE_SIZE
    os.close(reading)


def test_a_full_descriptor_of_the_non_blocking_kind_is_waited_for() -> None:
    """The writer waits, since another process that shares the descriptor may have made it non-blocking."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    while True:
        try:
            os.write(writing, b"x" * 4_096)
        except BlockingIOError:
            break
    with os.fdopen(writing, "w") as pipe:
        output = Output(pipe)
        output._pending += b"y"
        output._write_some()
        assert output._pending == b"y"
        os.read(reading, PIPE_SIZE)
        output.write_last("")
        assert not output._pending
    os.close(reading)


@pytest.mark.anyio
async def test_what_the_encoding_lacks_is_escaped_and_files_and_memory_just_take_it(
    anyio_backend: object, tmp_path: Path
) -> None:
    """No kind of output makes a text fail."""
    with (tmp_path / "out").open("w", encoding="ascii") as file:
        await Output(file).write("→ \ud800\n")
    assert (tmp_path / "out").read_text() == "\\u2192 \\ud800\n"
    memory = io.StringIO()
    await Output(memory).write("text")
    assert memory.getvalue() == "text"
    await Output(None).write("nobody is there")


LONG = b"x" * 70_000 + b"\n \n" + b" " * 70_000 + b"y"


@pytest.mark.parametrize("given", [b"one\n\n  \ntwo\nthree", b"\n", b"", LONG])
def test_lines_of_a_file_are_counted_as_they_are_read(tmp_path: Path, given: bytes) -> None:
    """Blank ones don't count; a line longer than a chunk counts once."""
    file = tmp_path / "lines"
    file.write_bytes(given)
    assert count_lines(str(file)) == sum(bool(line.strip()) for line in given.split(b"\n"))
