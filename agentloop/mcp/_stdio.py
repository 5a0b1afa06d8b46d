"""The transport by stdio: a server as a child process, in lines of JSON, with bounds that the SDK's own doesn't have.

The SDK's transport keeps a line of any length, and gives the child our stderr. This one bounds a line, writes stderr to
logging, and ends the process group in bounded time. Knows messages only as the SDK parses and writes them.

Theory. Three tasks serve the pipes: stdout to messages, messages to stdin, stderr to logging. Whichever pipe of the
protocol ends first closes the message stream that the SDK reads: that is how it learns that the connection is lost.
The process is ended in `_stop`, which is shielded and bounded: stdin is closed, which asks a server to exit; then its
process group is terminated, then killed. So leaving the block takes at most the grace and one second, and leaves no
process of the group behind.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import types
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from agentloop.mcp._remarks import Remarks

logger = logging.getLogger("agentloop.mcp")

_BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)
_POLL = 0.01
_AFTER_TERM = 0.5
_AFTER_KILL = 5.0
"""Seconds for a process that was killed: it ends at once, but a machine may be busy."""
_LAST_WORDS = 0.5
"""Seconds for reading what a process that has ended has written to stderr; a child of it may hold that open."""
_LONGEST_STDERR_LINE = 2_000
_MOST_BAD_LINES = 100


@asynccontextmanager
async def open_process(
    name: str,
    command: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: str | None,
    *,
    max_bytes: int,
    grace: float,
    remarks: Remarks,
) -> AsyncIterator[tuple[Any, Any]]:
    """Start *command* and yield the streams of messages from it and to it.

    Args:
        name: The name of the server, for logging.
        command: The program and its arguments.
        env: Variables beside the few that every server gets (`PATH`, `HOME` and their like).
        cwd: The directory of the process.
        max_bytes: The longest message.
        grace: Seconds that the server has to exit by itself once its stdin is closed.
        remarks: The remarks about this opening, which get the lines of stderr and the exit code.

    Cancellation: the process and its group have ended when the block is left.

    Raises:
        OSError: the program can't be started.
    """
    process = await _start(command, env, cwd)
    # Nothing may wait between here and the block that ends the process.
    said_all = anyio.Event()
    to_sdk, from_server = anyio.create_memory_object_stream[Any](0)
    to_server, from_sdk = anyio.create_memory_object_stream[Any](0)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_read, name, process, to_sdk, max_bytes, remarks)
            group.start_soon(_write, process, from_sdk, to_sdk)
            group.start_soon(_log, name, process, remarks, said_all)
            try:
                yield from_server, to_server
            finally:
                with anyio.CancelScope(shield=True):
                    if (code := await _stop(process, grace)) is not None:
                        remarks.exited(code)
                    with anyio.move_on_after(_LAST_WORDS):
                        await said_all.wait()
                group.cancel_scope.cancel()
    finally:
        for stream in (to_sdk, from_server, to_server, from_sdk):
            stream.close()
        _close_transport(process)


async def _start(command: Sequence[str], env: Mapping[str, str] | None, cwd: str | None) -> Process:
    """Start the server. Shielded: a process that has started must have an owner, which ends it."""
    own = get_default_environment() | dict(env or {})
    with anyio.CancelScope(shield=True):
        return await anyio.open_process(list(command), env=own, cwd=cwd, start_new_session=True)
    raise AssertionError("a shielded scope takes no cancellation")


async def _read(
    name: str, process: Process, to_sdk: MemoryObjectSendStream[Any], max_bytes: int, remarks: Remarks
) -> None:
    """Pass each line of stdout on as a message, until it ends or a line is too long."""
    assert process.stdout is not None
    bad, buffer = 0, _LineBuffer()
    with suppress(*_BROKEN):
        async with to_sdk:
            async for chunk in process.stdout:
                for line in buffer.feed(chunk):
                    try:
                        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        bad += 1
                        remarks.add_line(_show(line))
                        if bad == 1:
                            logger.warning("MCP server %r writes lines to stdout that are no messages", name)
                        if bad > _MOST_BAD_LINES:
                            logger.warning("MCP server %r: the connection is closed: too many such lines", name)
                            return
                        continue
                    await to_sdk.send(SessionMessage(message))
                if len(buffer) > max_bytes:
                    logger.warning("MCP server %r: the connection is closed: a message is too long", name)
                    return


class _LineBuffer:
    """Splits bytes into lines, and holds at most one that isn't whole."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def __len__(self) -> int:
        return len(self._buffer)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that *chunk* completes, without empty ones."""
        head, *lines = chunk.split(b"\n")
        self._buffer += head
        if not lines:
            return []
        whole = [bytes(self._buffer), *lines[:-1]]
        self._buffer = bytearray(lines[-1])
        return [line for line in whole if line.strip()]


async def _write(process: Process, from_sdk: MemoryObjectReceiveStream[Any], to_sdk: Any) -> None:
    """Write each message to stdin. If that breaks, the connection is lost although stdout may still be open."""
    assert process.stdin is not None
    try:
        async with from_sdk:
            async for message in from_sdk:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(text.encode() + b"\n")
    except _BROKEN:
        to_sdk.close()


async def _log(name: str, process: Process, remarks: Remarks, said_all: anyio.Event) -> None:
    """Write each line of stderr to logging, cut to a bound; a server that floods it is read without being kept."""
    assert process.stderr is not None
    line = bytearray()
    with suppress(*_BROKEN):
        async for chunk in process.stderr:
            head, *others = chunk.split(b"\n")
            line += head[:_LONGEST_STDERR_LINE]
            for other in others:
                _log_line(name, line, remarks)
                line = bytearray(other[:_LONGEST_STDERR_LINE])
            del line[_LONGEST_STDERR_LINE:]
        _log_line(name, line, remarks)
    said_all.set()


def _log_line(name: str, line: bytearray, remarks: Remarks) -> None:
    if line:
        shown = _show(line)
        remarks.add_line(shown)
        logger.info("MCP server %s: %s", name, shown)


def _show(line: bytes | bytearray) -> str:
    """Return a line of a server's process, bounded, and with nothing that could control a terminal."""
    text = line[:_LONGEST_STDERR_LINE].decode(errors="replace").rstrip()
    return text if text.isprintable() else text.encode("unicode_escape").decode()


async def _stop(process: Process, grace: float) -> int | None:
    """End the process and its group: ask by closing stdin, terminate, kill. Bounded; must be shielded.

    Returns the exit code of a process that has ended by itself.
    """
    if process.stdin is not None:
        with anyio.move_on_after(_AFTER_TERM), suppress(*_BROKEN):
            await process.stdin.aclose()
    code = process.returncode if await _exits(process, grace) else None
    if code is None:
        _signal(process.pid, signal.SIGTERM)
        await _exits(process, _AFTER_TERM)
    # The group may have members whose leader has exited.
    _signal(process.pid, signal.SIGKILL)
    if not await _exits(process, _AFTER_KILL):
        logger.warning("MCP server process %d doesn't end", process.pid)
    return code


async def _exits(process: Process, seconds: float) -> bool:
    """Wait until the process has exited; polled, since `wait` also waits for pipes that a child of it may hold."""
    deadline = anyio.current_time() + seconds
    while process.returncode is None:
        if anyio.current_time() >= deadline:
            return False
        await anyio.sleep(_POLL)
    return True


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _close_transport(process: Process) -> None:
    """Close asyncio's transport of the process, which a surviving child of the server would keep open.

    Nothing public closes it, hence the look-up; there is none on trio.
    """
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        with suppress(PermissionError):
            transport.close()
