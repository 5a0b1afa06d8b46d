"""Worker threads for the blocking work of journals: one function at a time for each journal, with one wake-up of the
event loop for each.

Theory. Journals are *lanes*: each has a queue of jobs, and at most one worker is at it. The workers belong to the
process and serve the lanes that are due, one job at a time, so a thousand runs don't need a thousand threads and one
disk that hangs stops its own journal only (until it has `_MOST` of them). `anyio.to_thread` takes twice the time for
such a hop: a limiter, a shield, a future, a copied context and a queue for each.

A job is waiting, begun or done. Its way: the loop's task adds it and waits; a worker takes it out of the lane, does it,
sets `done`, goes to the idle ones if no lane is due, and only then rings. So the worker is there again when the woken
task adds its next job, and no second thread is started for it.

Who wakes whom:

* *A worker* is woken by the loop that adds a job to a lane without a worker: it waits for a lock, which the loop
  releases. If none is idle and there are fewer than `_MOST`, one is started. Otherwise, and where the system refuses
  one, the lane waits for a worker that ends its job.
* *The task* is woken by a call scheduled on its event loop. It comes after the task has begun to wait, because the
  task doesn't yield between adding the job and waiting; so no ring is lost. A cancelled task withdraws a waiting job,
  and awaits one that has begun. A native cancellation, which no shield holds, leaves the job to the worker: it is done,
  and the jobs behind it in the lane come after it.
* *A loop that has ended* isn't woken, and its job is done nevertheless.
* *Jobs whose workers can't be started* get the system's error from the last worker that was refused: of several loops
  that begin at once each may have counted on another's.
* *A worker without work* ends after `_LINGER` seconds. Nothing ends it earlier: not a loop, because several loops may
  use it, nor a journal that is closed. Workers aren't daemons, so the process ends after the jobs that have begun.
* *A worker doesn't die of a job*: each error that this raises is the caller's.
* *A forked child* has no workers. It forgets those of the parent, and a lane that was being served then begins anew.

Facts, changed under `_lock`, which is never held while anything waits: `_due` (lanes with a job and no worker),
`_idle`, `_count` of workers, and for each lane `_jobs` and `_served_in`.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

import anyio

from agentloop._concurrency.backend import (
    Wakeup,
    cancelled_types,
    checkpoint_if_cancelled,
    enclosing_cancelled,
    new_wakeup,
    scheduler,
)

ResultT = TypeVar("ResultT")

_LINGER = 0.05
"""Seconds for which a worker waits for more. Between two model calls a worker ends, which costs less than it is worth
to talk about; within a turn it stays."""
_MOST = 40

_lock = threading.Lock()
_due: deque[OneAtATime] = deque()
_idle: list[_LaneThread] = []
_count = 0
_process = object()
"""This process, as a lane knows it: another object after a fork."""


class _Job:
    __slots__ = ("begun", "done", "error", "schedule", "value", "wakeup", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work: Callable[[], Any] | None = work
        self.wakeup: Wakeup = new_wakeup()
        self.schedule: Callable[..., object] = scheduler()
        self.begun = self.done = False
        self.value: Any = None
        self.error: BaseException | None = None

    def do(self) -> None:
        """Do the work, in a thread."""
        work, self.work = self.work, None
        assert work is not None
        try:
            self.value = work()
        except BaseException as error:  # noqa: ASYNC103 - of a thread: the task that waits for the job raises it
            self.error = error
        self.done = True

    def ring(self) -> None:
        """Wake the task that waits for this job, from a thread."""
        with suppress(RuntimeError):  # the loop has ended
            self.schedule(self.wakeup.ring)

    def take(self) -> Any:
        """Return what the work has returned, or raise what it has raised."""
        if self.error is None:
            return self.value
        error, self.error = self.error, None
        try:
            raise error
        finally:
            del error  # the traceback holds this frame


class OneAtATime:
    """Runs functions in worker threads, one after the other, in order. Owned by one journal; safe for several loops."""

    def __init__(self) -> None:
        self._jobs: deque[_Job] = deque()
        self._served_in: object | None = None

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """Return `work()`, run in a worker thread without the caller's context variables.

        Cancellation: a checkpoint. Before the thread has begun, *work* doesn't run; after that the thread is awaited
            and its result returned. A native cancellation on asyncio raises at once, and the thread continues.

        Raises:
            RuntimeError: the system has no thread for it, and *work* doesn't run.
        """
        await checkpoint_if_cancelled()
        job = _Job(work)
        self._add(job)
        try:
            await job.wakeup.wait()  # a checkpoint, also where it is done
            while not job.done:
                await job.wakeup.wait()
        except cancelled_types():
            if self._withdraw(job) or not enclosing_cancelled():
                raise
            with anyio.CancelScope(shield=True):  # noqa: ASYNC912 - bounded as *work* is
                while not job.done:
                    await job.wakeup.wait()
        return cast(ResultT, job.take())

    def _add(self, job: _Job) -> None:
        """Put *job* at the end of the queue, and have a worker come if there is none."""
        global _count
        worker = None
        with _lock:
            if self._served_in is _process:
                self._jobs.append(job)
                return
            self._jobs = deque((job,))  # what a fork left was the parent's
            self._served_in = _process
            _due.append(self)
            if _idle:
                worker = _idle.pop()
            elif _count < _MOST:
                _count += 1
                worker = _LaneThread()
        if worker is not None:
            try:
                worker.call()
            except Exception as error:  # the system has no thread for it
                _lose_worker(str(error))

    def give_up(self) -> list[_Job]:
        """Return the jobs that wait, and wait no more: no worker will come. Called with `_lock`."""
        lost, self._jobs = list(self._jobs), deque()
        self._served_in = None
        for job in lost:
            job.begun = True
        return lost

    def _withdraw(self, job: _Job) -> bool:
        """Take *job* out of the queue; False if it has begun."""
        with _lock:
            if not job.begun:
                self._jobs.remove(job)
            return not job.begun

    def serve(self) -> Callable[[], None]:
        """Do the next job, in a worker; return the function that wakes its task."""
        with _lock:
            job = self._jobs.popleft() if self._jobs else None  # None: withdrawn
            if job is not None:
                job.begun = True
        if job is not None:
            job.do()
        with _lock:
            if self._jobs:
                _due.append(self)
            else:
                self._served_in = None
        return _do_nothing if job is None else job.ring


def _lose_worker(reason: str) -> None:
    """Count a worker out whose thread couldn't be started; if it was the last one, fail every job that waits."""
    global _count
    with _lock:
        _count -= 1
        lost = [] if _count else [job for lane in _due for job in lane.give_up()]
        if not _count:
            _due.clear()
    for job in lost:
        job.error = RuntimeError(reason)
        job.done = True
        job.ring()


def _do_nothing() -> None:
    """Ring for a job that was withdrawn."""


class _LaneThread:
    """One thread."""

    def __init__(self) -> None:
        self._called = threading.Lock()
        """Held, but from a call until the worker has noticed it."""
        self._called.acquire()
        self._started = False

    def call(self) -> None:
        """Have the worker look for a lane: start its thread, or wake it."""
        if self._started:
            self._called.release()
            return
        self._started = True
        threading.Thread(target=self._work, name="agentloop journal").start()

    def _work(self) -> None:
        ring = _do_nothing
        while True:
            with _lock:
                lane = _due.popleft() if _due else None
                if lane is None:
                    _idle.append(self)
            ring()
            ring = _do_nothing  # holds no job, and so no journal, while it waits
            if lane is not None:
                ring = lane.serve()
                del lane
            elif not self._wait():
                return

    def _wait(self) -> bool:
        """Wait for a call; False if the thread is to end."""
        global _count
        while not self._called.acquire(timeout=_LINGER):
            with _lock:
                if self in _idle:
                    _idle.remove(self)
                    _count -= 1
                    return False
            # else it was taken from the idle ones in this moment, and is called
        return True


def _forget_workers() -> None:
    """Begin anew, in a forked child."""
    global _count, _process
    _due.clear()
    _idle.clear()
    _count, _process = 0, object()
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget_workers)
