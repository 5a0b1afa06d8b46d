"""The event loop of a command, its signals, and the exit code that follows from its end.

The first SIGINT or SIGTERM cancels the work and waits for its end; the second one ends the process at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from types import FrameType
from typing import Generic, TypeVar

import anyio
import attrs
from anyio.abc import TaskStatus

from agentloop._common.extras import describe_install
from agentloop.cli import errors
from agentloop.cli.run_options import CliOptions
from agentloop.cli.streams import Output, OutputClosed
from agentloop.exceptions import UserError

T = TypeVar("T")

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@attrs.define
class Supervised(Generic[T]):
    """The end of supervised work: its value, its error, and the signal that cancelled it; each may be None.

    Made and filled by `supervise`.
    """

    value: T | None = None
    error: Exception | None = None
    signal: int | None = None


async def supervise(
    work: Callable[[], Awaitable[T]], announce: Callable[[int], None], at_once: Callable[[], None] = lambda: None
) -> Supervised[T]:
    """Do *work*, and cancel it at the first SIGINT or SIGTERM, after calling *announce* with the signal.

    *at_once* is called by the handler of that signal, also while a body blocks the event loop: the next signal ends the
    process.

    When this returns, all tasks that the work had started have ended. A signal that this process ignores (as shells set
    up for background jobs) stays ignored. An error of the work is returned, not raised.
    """
    ended: Supervised[T] = Supervised()
    scope = anyio.CancelScope()
    async with anyio.create_task_group() as watchers:
        with scope:
            await watchers.start(_cancel_on_signal, scope, ended, announce, at_once)
            try:
                ended.value = await work()
            except Exception as error:
                # Returned as a value: the task group would wrap a raised error in a group.
                ended.error = error
        watchers.cancel_scope.cancel()
    return ended


async def _cancel_on_signal(
    scope: anyio.CancelScope,
    ended: Supervised[T],
    announce: Callable[[int], None],
    at_once: Callable[[], None],
    *,
    task_status: TaskStatus[None],
) -> None:
    wanted = [number for number in _ENDING_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    if not wanted:
        task_status.started()
        return
    with anyio.open_signal_receiver(*wanted) as signals:
        _hand_back_after_first(wanted, at_once)
        task_status.started()
        async for number in signals:
            ended.signal = int(number)
            announce(int(number))
            scope.cancel()


def _hand_back_after_first(numbers: Sequence[signal.Signals], at_once: Callable[[], None]) -> None:
    """Make the first signal restore the default handlers, so that the second one ends the process; call *at_once* then.

    The receiver of anyio could do this only while the event loop runs: a body that blocks the loop would then delay the
    second signal.
    """
    receivers = {number: signal.getsignal(number) for number in numbers}

    def first(number: int, frame: FrameType | None) -> None:
        at_once()
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)
        receiver = receivers[signal.Signals(number)]
        assert callable(receiver)
        receiver(number, frame)

    for number in numbers:
        signal.signal(number, first)


def check_backend(backend: str) -> None:
    """Return if the package of the event loop is installed.

    Raises:
        UserError: if it isn't.
    """
    if find_spec(backend) is None:
        raise UserError(f"--backend {backend} needs {backend}, which isn't installed: {describe_install('trio')}")


def perform(
    job: CliOptions, work: Callable[[], Awaitable[int]], announce: Callable[[int], None], cancelled: Callable[[], None]
) -> int:
    """Run *work* in an event loop, supervised for signals, report its error, and return the exit code."""
    ended = anyio.run(supervise, work, announce, backend=job.backend)
    if isinstance(ended.error, OutputClosed):
        give_up_output()
        return errors.OUTPUT_CLOSED
    if ended.error is not None:
        write_message(job.err, errors.words_for(ended.error, with_traceback=job.traceback))
    if ended.signal is not None:
        with contextlib.suppress(OutputClosed):
            cancelled()
        return 128 + ended.signal
    if ended.error is not None:
        return errors.code_of(ended.error)
    assert ended.value is not None
    return ended.value


def run_supervised(work: Callable[[], Awaitable[T]], backend: str) -> Supervised[T]:
    """Do *work* in an event loop, supervised for signals without a word at the first one; return its end.

    Raises:
        Exception: the work's error.
    """
    ended: Supervised[T] = anyio.run(supervise, work, lambda number: None, backend=backend)
    if ended.error is not None:
        raise ended.error
    return ended


def write_message(err: Output, text: str) -> None:
    """Write *text* from outside the event loop; an output that is closed isn't an error."""
    with contextlib.suppress(OutputClosed):
        err.write_last(text)


def announce_cancellation(err: Output) -> None:
    """Tell the user that the first signal has come, and what the next one does."""
    write_message(err, "Cancelling; once more ends at once.\n")


def give_up_output() -> None:
    """Redirect standard output to the null device: the interpreter flushes it at exit, and the pipe is closed."""
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
