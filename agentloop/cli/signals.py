"""SIGINT and SIGTERM cancel once; a second one ends the process at once."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Sequence
from types import FrameType
from typing import Generic, TypeVar

import anyio
import attrs
from anyio.abc import TaskStatus

T = TypeVar("T")

_ENDING = (signal.SIGINT, signal.SIGTERM)


@attrs.define
class Ended(Generic[T]):
    """How supervised work ended: its value, its error, and the signal that cancelled it, each None where not."""

    value: T | None = None
    error: Exception | None = None
    signal: int | None = None


async def supervised(work: Callable[[], Awaitable[T]], announce: Callable[[int], None]) -> Ended[T]:
    """Do *work*, cancelled by the first SIGINT or SIGTERM; *announce* is told of it before.

    Everything the work had started has ended when this returns. A signal this process was told to ignore (as shells do
    for background jobs) stays ignored.
    """
    ended: Ended[T] = Ended()
    scope = anyio.CancelScope()
    async with anyio.create_task_group() as watchers:
        with scope:
            await watchers.start(_cancel_on_signal, scope, ended, announce)
            try:
                ended.value = await work()
            except Exception as error:
                # Carried as a value: the group would wrap it.
                ended.error = error
        watchers.cancel_scope.cancel()
    return ended


async def _cancel_on_signal(
    scope: anyio.CancelScope,
    ended: Ended[T],
    announce: Callable[[int], None],
    *,
    task_status: TaskStatus[None],
) -> None:
    wanted = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    if not wanted:
        task_status.started()
        return
    with anyio.open_signal_receiver(*wanted) as signals:
        _hand_back_after_first(wanted)
        task_status.started()
        async for number in signals:
            ended.signal = int(number)
            announce(int(number))
            scope.cancel()


def _hand_back_after_first(numbers: Sequence[signal.Signals]) -> None:
    """Make the first of the signals give them all back to the system, which then ends the process at the second.

    Not the receiver's own business, which needs a running event loop: a body that blocks the loop must not be able to
    keep the second signal away.
    """
    receivers = {number: signal.getsignal(number) for number in numbers}

    def first(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)
        receiver = receivers[signal.Signals(number)]
        assert callable(receiver)
        receiver(number, frame)

    for number in numbers:
        signal.signal(number, first)
