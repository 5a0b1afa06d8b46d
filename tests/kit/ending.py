"""Meeting points, clocks, and ways to end a run early."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import anyio
import anyio.lowlevel
import attrs
import pytest
import trio
import trio.testing

from agentloop import tool
from agentloop.testing.simulation._asyncio_loop import DeterministicLoop

Backend = tuple[str, dict[str, Any]]
"""The type of the `anyio_backend` fixture's value."""


class Fatal(BaseException):
    """Neither an `Exception` nor a cancellation: no policy answers it, and nothing may swallow it."""


# ---------------------------------------------------------------------------------------------- meeting points


class Rendezvous:
    """Lets everyone go once *count* have come."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._all = anyio.Event()

    async def wait(self) -> None:
        """Come, and wait for the others."""
        self._left -= 1
        if self._left == 0:
            self._all.set()
        await self._all.wait()


@attrs.define
class HeldWork:
    """Work that sets `started`, waits for `go`, and notes in `ending` how it ended."""

    started: anyio.Event = attrs.field(factory=anyio.Event)
    go: anyio.Event = attrs.field(factory=anyio.Event)
    ending: str = ""
    clean_up: Callable[[], None] = lambda: None

    async def __call__(self) -> None:
        """Wait for `go`; a cancellation takes some steps of cleaning up before it leaves."""
        self.started.set()
        try:
            await self.go.wait()
            self.ending = "returned"
        except BaseException:
            self.ending = "cancelled"
            with anyio.CancelScope(shield=True):
                for _ in range(3):
                    await anyio.lowlevel.checkpoint()
            self.ending = "cleaned up"
            self.clean_up()
            raise


@tool
async def endless() -> str:
    """Wait to be ended."""
    await anyio.sleep(60)
    return "never"


# ---------------------------------------------------------------------------------------------- clocks


def _time_on(loop: Any) -> float:
    """Return the time of an asyncio loop, with the seconds by which it was put forward."""
    seconds: float = time.monotonic() + getattr(loop, "advanced", 0.0)
    return seconds


# Of the class, since the engine holds a loop's bound method while it runs a batch.
asyncio.BaseEventLoop.time = _time_on  # type: ignore[method-assign,assignment]


def advance_clock(seconds: float) -> None:
    """Put the running loop's clock forward: what is due by then is due now, on a real clock too.

    So a deadline can be so far away that no pause of the machine reaches it, and comes when what has to be done before
    it is done.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        clock: Any = trio.lowlevel.current_clock()
        if isinstance(clock, trio.testing.MockClock):
            clock.jump(seconds)
        else:
            object.__setattr__(clock, "offset", clock.offset + seconds)  # it is frozen
    else:
        assert not isinstance(loop, DeterministicLoop), "its time is its own"
        if (advance := getattr(loop, "advance", None)) is not None:  # uvloop's
            advance(seconds)
            return
        changed: Any = loop
        changed.advanced = getattr(loop, "advanced", 0.0) + seconds


def is_virtual(backend: Backend) -> bool:
    """Tell whether time jumps on this backend: nothing then takes longer than it says."""
    return "clock" in backend[1] or backend[1].get("loop_factory") is DeterministicLoop


@asynccontextmanager
async def check_duration(backend: Backend, seconds: float, slack: float = 5.0) -> AsyncIterator[None]:
    """Check how long the block takes: exactly *seconds* on a virtual clock, up to *slack* more on a real one."""
    start = anyio.current_time()
    yield
    took = anyio.current_time() - start
    if is_virtual(backend):
        assert took == pytest.approx(seconds, abs=1e-6)  # the sum of a few floats, no waiting
    else:
        assert seconds - 0.01 <= took <= seconds + slack


# ---------------------------------------------------------------------------------------------- cancellation


async def cancel_when(ready: anyio.Event, run: Callable[[], Awaitable[Any]]) -> None:
    """Await *run* in a scope that is cancelled when *ready* is set; fail unless the cancellation propagates."""
    finished = False
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:

            async def cancel() -> None:
                await ready.wait()
                scope.cancel()

            group.start_soon(cancel)
            await run()
            finished = True
        assert not finished, "the run returned although its caller was cancelled"
        assert scope.cancelled_caught
        group.cancel_scope.cancel()


async def cancel_natively_when(ready: anyio.Event, run: Callable[[], Awaitable[Any]]) -> None:
    """Await *run* in an asyncio task that gets `Task.cancel()` when *ready* is set; fail unless that is what leaves."""
    counts: list[int] = []

    async def host() -> None:
        try:
            await run()
        finally:
            task = asyncio.current_task()
            assert task is not None
            counts.append(task.cancelling())

    task = asyncio.create_task(host())
    await ready.wait()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    else:
        raise AssertionError("the run returned although its caller was cancelled")
    assert task.cancelled()
    assert counts == [1], f"cancelling() is {counts}: the one native cancellation is to be left as it came"


async def leak_cancellation() -> NoReturn:
    """Let the cancellation of an inner scope out of it, which both backends allow."""
    kept: BaseException | None = None
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.sleep(60)
        except BaseException as error:
            kept = error
            raise
    assert kept is not None
    raise kept
