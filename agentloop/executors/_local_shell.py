"""`LocalShell`: commands on this machine, each under its own supervisor.

The supervisor (`_supervisor`) is a small process that starts the command and ends all of its processes. This module
starts supervisors, reads the output, and stops them: on a time limit and on cancellation by the end of their input, so
that the command is also stopped if this process dies. A supervisor takes 25 ms to start.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import msgspec
from anyio.abc import ByteReceiveStream, Process

from agentloop._common.checks import FIELDS, fits, optional
from agentloop._common.values import Value
from agentloop.executors._output import BoundedOutput
from agentloop.executors._protocols import CommandResult, ShellError, ShellRequest, ShellResult

_SUPERVISOR = str(Path(__file__).with_name("_supervisor.py"))
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BYTES_A_CHAR = 4
_QUOTED = 300
_KILL_SECONDS = 5.0
"""Seconds beyond the grace that a supervisor has to end all processes; it gives up by itself after 3."""
_DRAIN_SECONDS = 2.0
"""Seconds for the rest of the output after the end of all processes; a process that was left running needs them."""


def _to_directory(path: str | os.PathLike[str]) -> Path:
    return Path(path).absolute()


def _to_words(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(words)


def to_env(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return a copy of *env*; what isn't a mapping is left to the validator."""
    given: object = env
    return dict(env) if isinstance(given, Mapping) else env


def is_env(env: object) -> bool:
    """Tell whether *env* maps texts to texts."""
    return isinstance(env, dict) and all(isinstance(text, str) for pair in env.items() for text in pair)


@attrs.frozen
class LocalShell:
    """A `Shell` on this machine: each command in its own process group, ended with all of its processes.

    A command has no input and no terminal, and no variable of this process: `env` is added to a `PATH` of the system's
    folders, `LANG=C.UTF-8` and `HOME`, the directory. When it has ended, what it left in the background is ended, too.
    It runs with all rights of this process: use a sandbox for commands without approval.

    On Linux a process that left the group (`setsid`) is found and ended. On other systems it isn't found.

    Args:
        directory: The folder in which each command starts.
        env: Further environment variables; they replace those above.
        timeout: The most seconds for the commands of one request; None = no limit.
        max_output: The most characters of output kept of each command. More is read and dropped.
        grace: Seconds between SIGTERM and SIGKILL.
        shell: The program, by an absolute path, and its arguments before the command's text.

    Raises:
        UserTypeError, UserValueError: if an argument is invalid; names it.

    Example:
        import sys
        import anyio
        from agentloop.executors import LocalShell, ShellRequest

        async def main():
            result = await LocalShell(".").run(ShellRequest(commands=("echo hello",)))
            print(result.results[0].stdout.strip())  # hello

        if sys.platform != "win32":
            anyio.run(main)
    """

    directory: Path = attrs.field(converter=_to_directory)
    env: Mapping[str, str] = attrs.field(
        factory=dict,
        converter=to_env,
        kw_only=True,
        repr=False,
        validator=FIELDS.needs("expected a mapping of texts", fits(is_env)),
    )
    timeout: float | None = attrs.field(default=300.0, kw_only=True, validator=optional(FIELDS.seconds()))
    max_output: int = attrs.field(default=16_000, kw_only=True, validator=FIELDS.count())
    grace: float = attrs.field(default=1.0, kw_only=True, validator=FIELDS.seconds())
    shell: tuple[str, ...] = attrs.field(default=("/bin/sh", "-c"), converter=_to_words, kw_only=True)

    async def run(self, request: ShellRequest) -> ShellResult:
        """Run the commands of *request* one after the other, until one is ended by the time limit.

        Cancellation: SIGTERM to all processes, `grace` seconds, SIGKILL; it returns when none is left.

        Raises:
            ShellError: if a command can't be started, or if one was cancelled and a process could not be ended.
        """
        limits = [limit for limit in (self.timeout, request.timeout) if limit is not None]
        until = anyio.current_time() + min(limits, default=math.inf)
        most = self.max_output if request.max_output is None else min(self.max_output, request.max_output)
        results: list[CommandResult] = []
        for command in request.commands:
            results.append(await self._run_command(command, until, most))
            if results[-1].timed_out:
                break
        return ShellResult(results=tuple(results))

    async def _run_command(self, command: str, until: float, most: int) -> CommandResult:
        if "\0" in command:
            raise ShellError("a command may not hold a NUL character")
        supervised = await _SupervisedCommand.start(self._orders(command), self.grace, most * _BYTES_A_CHAR)
        cancelled = True
        try:
            with anyio.CancelScope(deadline=until) as limit:
                await supervised.attend()
            cancelled = False
        finally:
            with anyio.CancelScope(shield=True):
                await supervised.stop()
            report = supervised.report
            if cancelled and report.left:
                # There is no result to say so. The engine records this error with the outcome of the cancelled call.
                raise ShellError(f"processes of the command were left running: {', '.join(report.left)}")
        timed_out = limit.cancelled_caught
        if report.error is not None and not timed_out:  # the time may be over before the command has started
            said = supervised.stderr.text(_QUOTED).strip()
            raise ShellError(f"the command could not be started: {report.error}{': ' * bool(said)}{said}")
        stdout, stderr = _share(supervised.stdout, supervised.stderr, most)
        return CommandResult(
            command=command,
            exit_code=None if timed_out else report.exit,
            stdout=stdout,
            stderr=stderr,
            timed_out=timed_out,
            left_running=report.left,
        )

    def _orders(self, command: str) -> dict[str, Any]:
        env = {"PATH": _PATH, "LANG": "C.UTF-8", "HOME": str(self.directory), **self.env}
        words = [*self.shell, command]
        return {"command": words, "env": env, "directory": str(self.directory), "grace": self.grace}


def _share(stdout: BoundedOutput, stderr: BoundedOutput, most: int) -> tuple[str, str]:
    """Return the two texts, of *most* characters together. Room that one doesn't need is the other's."""
    half = most // 2
    return stdout.text(max(half, most - stderr.total)), stderr.text(max(half, most - stdout.total))


class _Report(Value, frozen=True):
    """The supervisor's words. `exit` is None if the command did not end by itself, or the supervisor was killed."""

    pid: int | None = None
    exit: int | None = None
    left: tuple[str, ...] = ()
    error: str | None = None
    over: bool = False
    """True if the supervisor reported the end of its work."""


@attrs.define
class _SupervisedCommand:
    """One command under its supervisor. Use: `start`, `attend`, then `stop` in every case."""

    process: Process
    orders: bytes
    status: int
    grace: float
    stdout: BoundedOutput
    stderr: BoundedOutput
    report: _Report = attrs.field(factory=_Report)
    is_over: bool = False

    @classmethod
    async def start(cls, orders: Mapping[str, Any], grace: float, most_bytes: int) -> _SupervisedCommand:
        """Start the supervisor.

        Cancellation: not within: a process that has started must have an owner.

        Raises:
            ShellError: if it can't be started.
        """
        await anyio.lowlevel.checkpoint()
        status_read, status_write = os.pipe()
        process: Process | None = None
        program = [sys.executable, "-I", "-S", _SUPERVISOR, str(status_write), str(os.getpid())]
        try:
            with anyio.CancelScope(shield=True):
                process = await anyio.open_process(
                    program, cwd="/", env={}, start_new_session=True, pass_fds=(status_write,)
                )
        except OSError as error:
            os.close(status_read)
            raise ShellError(f"the supervisor of the command could not be started: {error}") from error
        finally:
            os.close(status_write)
        assert process is not None  # the scope above is never cancelled itself
        line = json.dumps(orders).encode() + b"\n"
        return cls(process, line, status_read, grace, BoundedOutput(most_bytes), BoundedOutput(most_bytes))

    async def attend(self) -> None:
        """Give the orders, and collect the output until the command has ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self.process.stdin.send(self.orders)  # if the supervisor has ended, its report says why
        await self._finish()

    async def stop(self) -> None:
        """End the command if it runs, and the supervisor. To be called in a shielded scope; bounded in time."""
        process = self.process
        assert process.stdin is not None
        await process.stdin.aclose()
        if not self.is_over:
            with anyio.move_on_after(self.grace + _KILL_SECONDS):
                await self._finish()
        if process.returncode is None:
            process.kill()
        await process.aclose()
        if not self.is_over:
            self._take_report()
        os.close(self.status)

    async def _finish(self) -> None:
        """Wait for the end of the supervisor and of the output."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._collect)  # a process that waits for room in its output could not end
            await self.process.wait()
            self._take_report()
            # All processes have ended, so the output ends, unless one was left running.
            tasks.cancel_scope.deadline = anyio.current_time() + _DRAIN_SECONDS

    def _take_report(self) -> None:
        """Read the report. If it has no end, the supervisor was killed, and the command's group is ended here."""
        self.is_over = True
        report = self._read_report()
        if not report.over and report.error is None:
            if report.pid is None:  # it was stopped before it had read its orders, or could not begin at all
                report = report.replace(error=f"its supervisor ended with {self.process.returncode}")
            else:  # the kernel has killed the command with its parent, but not the command's own children
                with contextlib.suppress(OSError):
                    os.killpg(report.pid, signal.SIGKILL)
                left = "processes that left the command's group: its supervisor was killed"
                report = report.replace(left=(left,))
        self.report = report

    async def _collect(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read_all, self.process.stdout, self.stdout)
            tasks.start_soon(_read_all, self.process.stderr, self.stderr)

    def _read_report(self) -> _Report:
        os.set_blocking(self.status, False)
        try:
            text = os.read(self.status, 65536)
        except BlockingIOError:  # another process holds the pipe, and nothing was written
            text = b""
        fields: dict[str, Any] = {}
        for line in text.splitlines():
            fields |= json.loads(line)
        return msgspec.convert(fields, _Report)


async def _read_all(stream: ByteReceiveStream, output: BoundedOutput) -> None:
    with contextlib.suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
        while True:
            output.add(await stream.receive())
