"""Sync functions in their own threads that run line by line, each line when the schedule chooses their task.

A *switching* belongs to one run of a world. Its functions run in threads. At most one of them runs at a time, while the
event loop waits for it, up to the next line of the program (`sys.monitoring`, Python 3.12 and later). There the thread
waits, and its task gives way; so the scheduler that orders tasks orders lines too. One step is: a line with all C code
that it calls; code of the standard library, of installed packages and of agentloop; a function that
`anyio.from_thread` runs.

A worker is in one of four states: `"runs"`, `"waits"` before a line, `"asks"` for a function on the loop, `"ended"`.
The thread sets the last three and notifies; the loop's thread answers by setting `"runs"`. So exactly one side acts at
a time, until the worker is set free.

A thread that doesn't come back from a line in time waits for another thread, or for the outside. It is then set free
and runs beside the others. That is no schedule any more, so the switching notes the line in `dropped`.
"""

from __future__ import annotations

import inspect
import linecache
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from types import CodeType
from typing import Any

import anyio
import anyio.lowlevel
import attrs
from anyio._core._eventloop import threadlocals

_monitoring: Any = getattr(sys, "monitoring", None)
CAN_MONITOR = _monitoring is not None
PATIENCE = 1.0
"""Real seconds that a line may take, without those in which the process was stopped."""
IMPATIENCE = 0.02
"""Real seconds for a line from which some thread didn't come back in time before."""
PATIENCE_BESIDE = 5.0
"""Real seconds that a thread has to end once it runs beside the others."""
_ONE_WAIT = 0.01
"""Real seconds of one wait for a thread. Waits are counted, because a busy machine may stop the process for seconds."""
MOST_LINES = 2000
"""Limit of lines for one function; one that needs more runs beside the others from there on."""
_NAME = "agentloop.testing"
_TOOL_IDS = (4, 3, 5)
"""The ids of `sys.monitoring` to try, in this order: no debugger, coverage tool or profiler has them."""
_GENERATED = ("<frozen ", "<attrs generated ")
_INSTALLED = tuple({os.path.join(sysconfig.get_path(name), "") for name in ("purelib", "platlib")})
_LIBRARY = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "")
"""The folder of agentloop, which may be an installed package itself."""
_NOT_THE_PROGRAM = (
    *(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib")),
    *_INSTALLED,
    _LIBRARY,
)

SWITCHING: ContextVar[Switching | None] = ContextVar("SWITCHING", default=None)
"""The switching of the current run; None outside of a world."""
LABEL: ContextVar[str] = ContextVar("LABEL", default="")
"""The label of the part of the run that requests a thread."""


# ---------------------------------------------------------------------------------------------- which lines


@attrs.define(eq=False)
class _Monitor:
    """The process's one monitor of lines: ids of `sys.monitoring` are few, and its events are global."""

    tool_id: int | None = None
    users: int = 0
    workers: dict[int, Worker] = attrs.field(factory=dict)
    """Workers by the idents of their threads."""
    own: set[str] = attrs.field(factory=set)
    """Path prefixes of installed code whose lines count as the program's."""
    slow: set[str] = attrs.field(factory=set)
    """Lines from which some thread didn't come back in time."""
    _known: dict[str, bool] = attrs.field(factory=dict)
    """A cache of `_is_of_the_program` by file."""

    def begin(self) -> None:
        """Add a user; the first one switches the reports of lines on."""
        self.users += 1
        if self.users > 1 or not CAN_MONITOR:
            return
        self.tool_id = next((one for one in _TOOL_IDS if _monitoring.get_tool(one) is None), None)
        if self.tool_id is not None:
            _monitoring.use_tool_id(self.tool_id, _NAME)
            _monitoring.register_callback(self.tool_id, _monitoring.events.LINE, self._on_line)
            _monitoring.set_events(self.tool_id, _monitoring.events.LINE)
            _monitoring.restart_events()

    def end(self) -> None:
        """Remove a user; the last one switches the reports off."""
        self.users -= 1
        if self.users or self.tool_id is None:
            return
        _monitoring.set_events(self.tool_id, 0)
        _monitoring.register_callback(self.tool_id, _monitoring.events.LINE, None)
        _monitoring.free_tool_id(self.tool_id)
        self.tool_id = None
        self.slow.clear()

    def count_as_own(self, files: Iterable[str]) -> None:
        """Count the lines of *files*, and of the packages that they belong to, as the program's.

        A tool that agentloop brings stays one step, because its package has the run's own code, too.
        """
        installed = [file for file in files if file.startswith(_INSTALLED) and not file.startswith(_LIBRARY)]
        new = {_package_of(file) for file in installed} - self.own
        if new:
            self.own |= new
            self._known.clear()
            if self.tool_id is not None:
                _monitoring.restart_events()

    def _on_line(self, code: CodeType, line: int) -> Any:
        file = code.co_filename
        counts = self._known.get(file)
        if counts is None:
            counts = self._known[file] = self._is_of_the_program(file)
        if not counts:
            return _monitoring.DISABLE
        worker = self.workers.get(threading.get_ident())
        if worker is not None:
            worker.reach(file, line)
        return None

    def _is_of_the_program(self, file: str) -> bool:
        if file.startswith(tuple(self.own)):
            return True
        return not file.startswith((*_GENERATED, *_NOT_THE_PROGRAM))


def _package_of(file: str) -> str:
    """Return the path of the installed package, or of the module, that *file* belongs to."""
    folder = next(one for one in _INSTALLED if file.startswith(one))
    first, separator, _ = file[len(folder) :].partition(os.sep)
    return folder + first + separator


_monitor = _Monitor()


def count_as_own(functions: Iterable[Callable[..., Any]]) -> None:
    """Count lines of *functions*, and of the installed packages that they belong to, as the program's."""
    codes = [getattr(inspect.unwrap(one), "__code__", None) for one in functions]
    _monitor.count_as_own([code.co_filename for code in codes if code is not None])


@contextmanager
def monitor_lines() -> Iterator[None]:
    """Report lines within the block. Switching reports on is slow, so a search holds one block for all its runs."""
    _monitor.begin()
    try:
        yield
    finally:
        _monitor.end()


# ---------------------------------------------------------------------------------------------- one run


@attrs.define(eq=False)
class Switching:
    """The threads of one run of a world, and notes about them. The run owns it; its workers write the notes."""

    wanted: bool
    """True if functions run line by line; otherwise each is one step."""
    give_way: Callable[[str], Awaitable[None]] | None = None
    """Gives way to other tasks, under a label; None: a checkpoint of the loop does."""
    mark: Callable[[], int] = lambda: 0
    """Returns the number of records so far."""
    one_step: list[str] = attrs.field(factory=list)
    """Functions that were one step each."""
    switched: int = 0
    """Number of functions that ran line by line."""
    dropped: list[str] = attrs.field(factory=list)
    """Lines from which a thread didn't come back in time."""
    stuck: list[str] = attrs.field(factory=list)
    """The last known lines of threads that didn't end at all."""
    trace: list[tuple[int, str]] = attrs.field(factory=list)
    """The lines that ran, in order, each with the result of `mark()` before it."""
    workers: list[Worker] = attrs.field(factory=list)
    """The workers whose threads may still run."""

    @property
    def active(self) -> bool:
        """True if functions run line by line: that is wanted, and lines are reported."""
        return self.wanted and _monitor.tool_id is not None

    def close(self) -> None:
        """Let threads whose tasks no longer wait run to their ends, and wait a bounded real time for them."""
        for worker in self.workers:
            worker.leave(IMPATIENCE if self.stuck else PATIENCE)
        self.workers.clear()

    async def run(self, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run *func* in a thread, line by line, and return its value or raise its error.

        If the waiting task is cancelled, the thread is set free and runs to its end; requests to the loop fail in it.
        """
        self.switched += 1
        worker = Worker(self, LABEL.get() or getattr(func, "__qualname__", "a function"), func, args)
        self.workers.append(worker)
        try:
            await worker.run_to_its_end()
        except BaseException:
            worker.leave(IMPATIENCE if self.stuck else PATIENCE)
            raise
        self.workers.remove(worker)
        if worker.error is not None:
            try:
                raise worker.error
            finally:
                worker.error = None
        return worker.value


class Worker:
    """One function in a thread (states: see the module). Either the loop's thread runs or this one, until it is free.

    `_changed` guards all fields that both sides write.
    """

    def __init__(self, switching: Switching, label: str, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._switching = switching
        self._label = label
        self._changed = threading.Condition()
        self._state = "runs"
        """`"runs"`, `"waits"` before a line, `"asks"` for a function on the loop, or `"ended"`."""
        self._free = False
        self._left = False
        self._line: tuple[str, int] | None = None
        self._lines = 0
        self._request: Callable[[], Awaitable[None]] | None = None
        context, token = copy_context(), anyio.lowlevel.current_token()
        self.thread = threading.Thread(target=self._work, args=(context, token, func, args), name=_NAME, daemon=True)

    # -- in the thread

    def _work(self, context: Context, token: Any, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        threadlocals.current_token = token  # as anyio does: `from_thread` reads it
        ident = threading.get_ident()
        _monitor.workers[ident] = self
        try:
            self.value = context.run(func, *args)
        except BaseException as error:  # noqa: ASYNC103 - raised by the task that waits for the thread
            self.error = error
        finally:
            del _monitor.workers[ident]
            with self._changed:
                self._state = "ended"
                self._changed.notify_all()

    def reach(self, file: str, line: int) -> None:
        """Wait before a line until the loop lets it run."""
        with self._changed:
            if self._free:
                self._line = (file, line)
                return
            self._lines += 1
            self._line = (file, line)
            self._wait_as("waits")

    def ask(self, request: Callable[[], Awaitable[None]]) -> None:
        """Wait until the loop has run *request*."""
        with self._changed:
            self._request = request
            if not self._left:
                self._wait_as("asks")
            if self._left:
                raise RuntimeError("no task waits for this thread any more")

    def _wait_as(self, state: str) -> None:
        self._state = state
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._state == "runs")

    # -- on the loop

    def set_free(self) -> None:
        """Let the thread run beside the others from here on."""
        with self._changed:
            self._free = True
            if self._state == "waits":
                self._state = "runs"
                self._changed.notify_all()

    def leave(self, seconds: float) -> None:
        """Let the thread run to its end, and wait at most *seconds* for it; its later requests are refused."""
        with self._changed:
            self._free = self._left = True
            if self._state != "ended":
                self._state = "runs"
            self._changed.notify_all()
        if self.thread.ident is not None:
            self.thread.join(seconds)

    def place(self) -> str:
        """Return the thread's current line as text: file, number, source."""
        if self._line is None:
            return self._label
        file, line = self._line
        return f"{os.path.basename(file)}:{line}: {linecache.getline(file, line).strip()}".removesuffix(": ")

    async def run_to_its_end(self) -> None:
        """Run the thread line by line, and give way after each line."""
        self.thread.start()
        if not self._came_back(PATIENCE):
            await self._run_beside()
        while self._state != "ended":
            if self._state == "asks":
                await self._answer()
                back = self._came_back(PATIENCE)
            else:
                back = self._go_on()
            if not back:
                await self._run_beside()
            elif self._state == "waits":
                await self._give_way()
        self.thread.join()

    def _go_on(self) -> bool:
        """Let the thread run its line; return whether it came back in time."""
        switching, place = self._switching, self.place()
        if switching.dropped or self._lines > MOST_LINES:
            self.set_free()
        else:
            switching.trace.append((switching.mark(), f"{self._label}: {place}"))
            with self._changed:
                self._state = "runs"
                self._changed.notify_all()
        if self._lines > MOST_LINES:
            return False
        return self._came_back(IMPATIENCE if place in _monitor.slow else PATIENCE)

    def _came_back(self, seconds: float) -> bool:
        waits = max(round(seconds / _ONE_WAIT), 1)
        with self._changed:
            return any(self._changed.wait_for(lambda: self._state != "runs", seconds / waits) for _ in range(waits))

    async def _give_way(self) -> None:
        give_way = self._switching.give_way
        if give_way is None:
            await anyio.lowlevel.cancel_shielded_checkpoint()
        else:
            with anyio.CancelScope(shield=True):
                await give_way(self._label)

    async def _answer(self) -> None:
        request, self._request = self._request, None
        assert request is not None
        await request()
        with self._changed:
            self._state = "runs"
            self._changed.notify_all()

    async def _run_beside(self) -> None:
        """Wait in real time until the thread ends. Virtual time passes meanwhile, as the thread may wait for a timer.

        Raises:
            RuntimeError: if it doesn't end within `PATIENCE_BESIDE` real seconds.
        """
        place = self.place()
        _monitor.slow.add(place)
        self._switching.dropped.append(place)
        self.set_free()
        until = time.monotonic() + PATIENCE_BESIDE
        while self._state != "ended":
            if self._state == "asks":
                await self._answer()
            elif time.monotonic() > until:
                self._switching.stuck.append(self.place())
                raise RuntimeError(f"{self._label} did not come back from {self.place()}")
            elif not self._came_back(0.001):
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.001)


# ---------------------------------------------------------------------------------------------- from the thread


def worker_here() -> Worker | None:
    """Return the worker of the running thread, or None."""
    return _monitor.workers.get(threading.get_ident())


def run_on_loop(worker: Worker, func: Callable[..., Any], args: tuple[Any, ...], *, is_async: bool) -> Any:
    """Run *func* on the event loop, while *worker*'s thread waits; it is one step of the thread."""
    context = copy_context()
    value: Any = None
    failed: BaseException | None = None

    async def request() -> None:
        nonlocal value, failed
        try:
            value = await func(*args) if is_async else context.run(func, *args)
        except BaseException as error:  # noqa: ASYNC103 - raised in the thread that asked
            failed = error

    worker.ask(request)
    if failed is not None:
        try:
            raise failed
        finally:
            failed = None
    return value


async def raise_if_cancelled() -> None:
    """Raise the cancellation of the scopes around the running task, if there is one. Otherwise no other task runs."""
    if anyio.current_effective_deadline() == float("-inf"):
        await anyio.lowlevel.checkpoint_if_cancelled()


__all__ = [
    "CAN_MONITOR",
    "LABEL",
    "SWITCHING",
    "Switching",
    "Worker",
    "count_as_own",
    "monitor_lines",
    "raise_if_cancelled",
    "run_on_loop",
    "worker_here",
]
