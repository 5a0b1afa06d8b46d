"""Servers for the tests of MCP: real processes, by stdio and by HTTP, and what runs of them."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest

from agentloop.mcp import MCPServer

Kind = Literal["stdio", "http"]
HERE = Path(__file__).parent
START_SECONDS = 30.0
MARKS = [
    pytest.mark.real_clock,
    pytest.mark.timeout(120),
    # The SDK leaves the loop over a stream of events once it has its answer; trio warns of each generator below it.
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning"),
]
"""Marks of every test with a real server."""


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@attrs.define
class Servers:
    """Makes `MCPServer`s of one transport, and holds the processes of those by HTTP."""

    kind: Kind
    folder: Path
    processes: list[subprocess.Popen[bytes]] = attrs.field(factory=list)

    @property
    def log(self) -> Path:
        """The file in which the honest server writes what reaches it."""
        return self.folder / "server.log"

    def lines(self) -> list[str]:
        """Return what has reached the honest server."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def make(self, program: str = "raw_server.py", env: dict[str, str] | None = None, **options: Any) -> MCPServer:
        """Return a source of the tools of *program*; by HTTP it is started now."""
        env = {"MCP_LOG": str(self.log), **(env or {})}
        options = {"name": "probe", "connect_timeout": START_SECONDS, **options}
        if self.kind == "stdio":
            return MCPServer(command=[sys.executable, str(HERE / program), "stdio"], env=env, **options)
        port = free_port()
        self.start(program, port, env)
        return MCPServer(url=f"http://127.0.0.1:{port}/mcp", **options)

    def start(self, program: str, port: int, env: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start *program* at *port* and wait until it listens."""
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = [sys.executable, str(HERE / program), str(port)]
        process = subprocess.Popen(command, env={**os.environ, **env}, **quiet)  # type: ignore[call-overload]
        self.processes.append(process)
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return process  # type: ignore[no-any-return]
            assert process.poll() is None, "the server has ended"
            time.sleep(0.02)
        raise AssertionError("the server doesn't listen")

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
            process.wait()


def children() -> set[int]:
    """Return the ids of the processes below this one that aren't zombies."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid() and fields[0] != "Z":
                found.add(int(entry.name))
    return found


def is_running(pid: int) -> bool:
    """Tell whether a process runs, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
