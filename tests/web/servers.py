"""Servers in processes of their own: started at a socket that is bound already, stopped, and looked at."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
import httpx
from web.harness import Frame, parse_frames

KINDS = ("uvicorn", "hypercorn-asyncio", "hypercorn-trio")
PROGRAM = Path(__file__).with_name("served.py")
END_SECONDS = 20.0
"""For a server to end; far more than the graces of `served.py`, since the machine may be busy."""


@attrs.define(eq=False)
class Server:
    """A server under way."""

    process: subprocess.Popen[bytes]
    port: int
    errors: Path

    @property
    def url(self) -> str:
        """The address of its root."""
        return f"http://127.0.0.1:{self.port}"

    async def status(self, **wanted: int) -> dict[str, int]:
        """Return what is left in the process; wait until at most *wanted* is, or for ten seconds."""
        async with httpx.AsyncClient(timeout=60) as client:
            deadline = anyio.current_time() + 10
            while True:
                found: dict[str, int] = (await client.get(f"{self.url}/status")).json()
                if all(found[name] <= most for name, most in wanted.items()) or anyio.current_time() > deadline:
                    return found
                await anyio.sleep(0.05)  # another process: nothing tells when its connections are closed

    def terminate(self) -> dict[str, int]:
        """Send SIGTERM, wait for the end, and return the last status; the process must end by itself, without error."""
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=END_SECONDS)
        assert self.process.returncode in (0, -signal.SIGTERM), self.errors.read_text()
        status: dict[str, int] = json.loads(output)
        return status


@contextmanager
def serve(kind: str, folder: Path) -> Iterator[Server]:
    """Start a server, and end it at the end of the block."""
    errors = folder / "errors.txt"
    with socket.socket() as listener, errors.open("wb") as file:
        listener.bind(("127.0.0.1", 0))
        listener.listen(512)
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), kind, str(listener.fileno()), str(folder / "runs")],
            stdout=subprocess.PIPE,
            stderr=file,
            pass_fds=[listener.fileno()],
        )
        server = Server(process, listener.getsockname()[1], errors)
    try:
        yield server
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@asynccontextmanager
async def stream(server: Server, method: str, path: str, **options: Any) -> AsyncIterator["Reading"]:
    """Send a request, and yield its stream; leaving the block closes the connection."""
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream(method, f"{server.url}{path}", **options) as response,
    ):
        assert response.status_code == 200, await response.aread()
        yield Reading(response)


class Reading:
    """The frames of a stream, in order."""

    def __init__(self, response: httpx.Response) -> None:
        self.run = response.headers["agentloop-run"]
        self.frames: list[Frame] = []
        self._bytes = response.aiter_bytes()
        self._rest = b""

    async def until(self, kind: str | None = None) -> list[Frame]:
        """Read until a frame of *kind*, or to the end; return all frames so far, without comments."""
        async for piece in self._bytes:
            text = self._rest + piece
            cut = text.rfind(b"\n\n") + 2 if b"\n\n" in text else 0
            self._rest = text[cut:]
            self.frames += [frame for frame in parse_frames(text[:cut]) if frame.kind != "comment"]
            if kind is not None and any(frame.kind == kind for frame in self.frames):
                return self.frames
        assert kind is None, self.frames
        return self.frames
