"""The command line in this process and in a child of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agentloop.cli.app import app

AGENTS = str(Path(__file__).with_name("agents.py"))

Invoke = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    """The value of --backend; the event loop is the command line's own, so the matrix of async tests has no part."""
    return str(request.param)


@pytest.fixture
def invoke() -> Invoke:
    """`invoke("run", …, input=…)` runs the command line in this process."""

    def run(*arguments: str, input: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, arguments, input=input, prog_name="agentloop")

    return run


@pytest.fixture
def agent() -> Callable[[str], str]:
    """`agent("name")` is the TARGET of an agent in `agents.py`."""
    return lambda name: f"{AGENTS}:{name}"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """The file in which the agents of a child process note things."""
    return tmp_path / "notes"


@pytest.fixture
def pipe(notes: Path) -> Path:
    """The pipe that the climbing tool waits for."""
    path = Path(f"{notes}.pipe")
    os.mkfifo(path)
    return path


@pytest.fixture
def start(notes: Path) -> Iterator[Start]:
    """`start("run", …)` starts the command line as a child, which is killed at the end of the test."""
    children: list[subprocess.Popen[str]] = []

    def run(
        *arguments: str,
        program: tuple[str, ...] = ("-m", "agentloop.cli"),
        path: str = os.environ["PATH"],
        **options: object,
    ) -> "subprocess.Popen[str]":
        # A test run in the background ignores SIGINT, and a child inherits that.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        child = subprocess.Popen(
            [sys.executable, *program, *arguments],
            text=True,
            # `LANG` is one of the few variables that the model's process inherits: it tells whose process that is.
            env=os.environ | {"AGENTLOOP_TEST_NOTES": str(notes), "LANG": f"C.UTF-8@{notes}", "PATH": path},
            **{**pipes, **options},  # type: ignore[call-overload]
        )
        signal.signal(signal.SIGINT, before)
        children.append(child)
        return child

    yield run
    for child in children:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                stream.close()
