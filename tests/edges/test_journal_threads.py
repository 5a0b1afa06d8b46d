"""The worker threads of journals: order, how many there are, their beginning and end, and whom they wake."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from edges.door import Door, until

from agentloop.journal import _thread
from agentloop.journal._thread import OneAtATime

pytestmark = pytest.mark.real_clock  # threads don't wait for a virtual clock


def workers() -> list[threading.Thread]:
    """Return the workers that are alive."""
    return [thread for thread in threading.enumerate() if thread.name == "agentloop journal"]


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Begin and end without a worker."""
    end_workers()
    yield
    end_workers()
    assert (_thread._count, _thread._idle, list(_thread._due)) == (0, [], [])


def end_workers() -> None:
    """Wait until none is left, which takes a moment."""
    for thread in workers():
        thread.join(20)
    assert not workers()


def through(door: Door, work: Callable[[], Any] = lambda: None) -> Callable[[], Any]:
    """Return a job that does *work* behind *door*."""

    def job() -> Any:
        with door:
            return work()

    return job


async def test_jobs_of_a_lane_are_done_in_order_and_one_at_a_time(anyio_backend: Any) -> None:
    """Ten tasks have added a job each before the first one ends."""
    lane, door, seen = OneAtATime(), Door(), list[str]()

    def note(number: int) -> int:
        seen.extend((f"{number} begins", f"{number} ends"))
        return number

    async def one(number: int) -> None:
        assert await lane.run(through(door, partial(note, number))) == number

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(one, number)
            await until(lambda: door.arrived == 1 and len(lane._jobs) == number)  # noqa: B023
        door.opened.set()
    assert seen == [f"{number} {what}" for number in range(10) for what in ("begins", "ends")]


async def test_a_lane_that_hangs_stops_no_other(door: Door, anyio_backend: Any) -> None:
    """Another lane has a worker of its own."""
    async with anyio.create_task_group() as group:
        group.start_soon(OneAtATime().run, through(door))
        await until(lambda: door.arrived == 1)
        assert await OneAtATime().run(lambda: 5) == 5
        door.opened.set()


async def test_more_lanes_than_workers_take_turns(
    door: Door, anyio_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane without a worker is served by the first that ends its job, and lanes with more jobs wait behind it."""
    monkeypatch.setattr(_thread, "_MOST", 1)
    first, second, seen = OneAtATime(), OneAtATime(), list[int]()
    async with anyio.create_task_group() as group:
        group.start_soon(first.run, through(door, lambda: seen.append(1)))
        await until(lambda: door.arrived == 1)
        group.start_soon(second.run, lambda: seen.append(2))
        await until(lambda: len(_thread._due) == 1)
        group.start_soon(first.run, lambda: seen.append(3))
        await until(lambda: len(first._jobs) == 1)
        assert len(workers()) == 1
        door.opened.set()
    assert seen == [1, 2, 3]


async def test_a_worker_stays_for_the_next_job_and_ends_without_one(
    anyio_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several journals share it; afterwards no thread is left, and nobody has closed anything."""
    monkeypatch.setattr(_thread, "_LINGER", 60)
    one = await OneAtATime().run(threading.current_thread)
    for _ in range(5):
        assert await OneAtATime().run(threading.current_thread) is one
    monkeypatch.setattr(_thread, "_LINGER", 0.001)
    await OneAtATime().run(lambda: None)
    one.join(20)
    assert not one.is_alive()
    assert await OneAtATime().run(threading.current_thread) is not one


async def test_a_worker_that_is_called_as_it_gives_up_comes(anyio_backend: Any) -> None:
    """It was taken from the idle ones in the moment in which its patience ended."""
    answers = iter([False, True])

    class Late:
        def acquire(self, timeout: float) -> bool:
            assert timeout == _thread._LINGER
            return next(answers)

    worker = _thread._LaneThread()
    worker._called = Late()  # type: ignore[assignment]
    assert worker._wait()
    assert next(answers, None) is None


@pytest.mark.slow
@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_whatever_a_job_raises_is_the_callers(error: type[BaseException], anyio_backend: Any) -> None:
    """The worker lives on, and the error leads to no circle of references."""
    lane = OneAtATime()

    class Mark:
        pass

    async def fail() -> "weakref.ref[Mark]":
        mark = Mark()

        def work() -> None:
            raise error(mark)

        try:
            await lane.run(work)
        except error:
            return weakref.ref(mark)
        raise AssertionError("nothing was raised")

    gc.collect()
    gc.disable()
    try:
        left = await fail()
        assert left() is None
    finally:
        gc.enable()
    assert await lane.run(lambda: 5) == 5


async def test_an_idle_worker_holds_nothing(anyio_backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that nobody has closed can be collected while the worker waits."""
    monkeypatch.setattr(_thread, "_LINGER", 60)
    lane = OneAtATime()
    await lane.run(lambda: None)
    left = weakref.ref(lane)
    del lane
    await until(lambda: left() is None)
    monkeypatch.setattr(_thread, "_LINGER", 0.001)
    await OneAtATime().run(lambda: None)


async def test_a_system_without_threads_is_an_error_and_the_job_does_not_run(
    anyio_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left behind: the same lane works when there are threads again."""
    lane, seen = OneAtATime(), list[int]()
    with monkeypatch.context() as patch:

        def refuse(_: object) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await lane.run(lambda: seen.append(1))
    await lane.run(lambda: seen.append(2))
    assert seen == [2]


def test_two_loops_that_are_refused_a_thread_at_once_both_get_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has counted the other's worker before either is refused."""
    both, start = threading.Barrier(2), threading.Thread.start
    raised: list[BaseException] = []

    def refuse(thread: threading.Thread) -> None:
        if thread.name != "agentloop journal":
            return start(thread)
        both.wait(20)
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        with anyio.fail_after(20):
            await OneAtATime().run(lambda: raised.append(AssertionError("it ran")))

    def loop() -> None:
        try:
            anyio.run(main)
        except BaseException as error:
            raised.append(error)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    loops = [threading.Thread(target=loop) for _ in range(2)]
    for one in loops:
        one.start()
    for one in loops:
        one.join(60)
    assert [repr(error) for error in raised] == [repr(RuntimeError("can't start new thread"))] * 2


async def test_without_a_further_thread_a_lane_waits_for_one_there_is(
    door: Door, anyio_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system refuses a second worker; the first one does the job later."""
    tried = threading.Event()

    def refuse(_: object) -> None:
        tried.set()
        raise RuntimeError("can't start new thread")

    async with anyio.create_task_group() as group:
        group.start_soon(OneAtATime().run, through(door))
        await until(lambda: door.arrived == 1)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            seen = list[int]()
            group.start_soon(OneAtATime().run, lambda: seen.append(1))
            await until(tried.is_set)
        door.opened.set()
    assert seen == [1]


async def test_a_withdrawn_job_leaves_the_others_in_their_order(door: Door, anyio_backend: Any) -> None:
    """The lane's only waiting job is withdrawn, and later ones come."""
    lane, seen = OneAtATime(), list[int]()
    async with anyio.create_task_group() as group:
        group.start_soon(lane.run, through(door, lambda: seen.append(1)))
        await until(lambda: door.arrived == 1)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as inner:
                inner.start_soon(lane.run, lambda: seen.append(2))
                await until(lambda: len(lane._jobs) == 1)
                scope.cancel()
        assert not lane._jobs
        door.opened.set()
    await lane.run(lambda: seen.append(3))
    assert seen == [1, 3]


async def test_a_lane_whose_only_job_is_withdrawn_before_a_worker_comes(
    door: Door, anyio_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All workers are busy; the worker that comes to the lane finds nothing, and goes on."""
    monkeypatch.setattr(_thread, "_MOST", 1)
    lane, seen = OneAtATime(), list[int]()
    async with anyio.create_task_group() as group:
        group.start_soon(OneAtATime().run, through(door))
        await until(lambda: door.arrived == 1)
        async with anyio.create_task_group() as inner:
            inner.start_soon(lane.run, lambda: seen.append(1))
            await until(lambda: len(lane._jobs) == 1)
            inner.cancel_scope.cancel()
        door.opened.set()
    await lane.run(lambda: seen.append(2))
    assert seen == [2]


@pytest.mark.backends("asyncio", "asyncio-eager")
async def test_a_native_cancellation_withdraws_what_has_not_begun(door: Door, anyio_backend: Any) -> None:
    """What has begun continues alone; what hasn't never does."""
    lane, seen = OneAtATime(), list[int]()
    tasks = [asyncio.create_task(lane.run(through(door, partial(seen.append, number)))) for number in (1, 2)]
    await until(lambda: door.arrived == 1)
    await until(lambda: len(lane._jobs) == 1)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    door.opened.set()
    await lane.run(lambda: seen.append(3))
    assert seen == [1, 3]


@pytest.mark.parametrize("again", ["asyncio", "trio"])
def test_a_job_outlives_its_loop_and_the_lane_serves_the_next_one(again: str) -> None:
    """The loop that began it has ended, so nobody is woken; what another loop adds comes after it."""
    lane, door, seen = OneAtATime(), Door(), list[int]()

    async def leave() -> None:
        task = asyncio.create_task(lane.run(through(door, lambda: seen.append(1))))
        await until(lambda: door.arrived == 1)
        task.cancel()  # as `asyncio.run` does at its end
        with pytest.raises(asyncio.CancelledError):
            await task

    async def come() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(lane.run, lambda: seen.append(2))
            await until(lambda: len(lane._jobs) == 1)
            door.opened.set()

    asyncio.run(leave())
    anyio.run(come, backend=again)
    assert seen == [1, 2]


FORKED = """
import os, sys, threading, anyio
from agentloop.journal._thread import OneAtATime
served, idle, held = OneAtATime(), OneAtATime(), threading.Event()
async def main():
    async with anyio.create_task_group() as group:
        begun = threading.Event()
        group.start_soon(served.run, lambda: (begun.set(), held.wait()))
        while not begun.is_set():
            await anyio.lowlevel.checkpoint()
        group.start_soon(served.run, lambda: os.write(1, b"parent only\\n"))
        while not served._jobs:
            await anyio.lowlevel.checkpoint()
        await idle.run(lambda: None)
        if (child := os.fork()) == 0:
            thread = threading.Thread(target=lambda: anyio.run(in_child))  # a loop of its own
            thread.start()
            thread.join()
            os._exit(0)
        os.waitpid(child, 0)
        held.set()
async def in_child():
    for lane in (served, idle):
        await lane.run(lambda: os.write(1, b"child\\n"))
anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system doesn't fork")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_forked_child_begins_anew(backend: str) -> None:
    """It has no workers, and the jobs of its parent aren't its own."""
    command = [sys.executable, "-W", "ignore", "-c", FORKED, backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n") == ["child", "child", "parent only", ""]
