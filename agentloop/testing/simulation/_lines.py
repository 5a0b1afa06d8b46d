"""Sync functions in threads of their own that go on line by line, each when its task is let go on.

A *switching* belongs to one run of a world. Its functions run in threads, of which at most one runs at a time while the
event loop waits for it: up to the next line of the program (`sys.monitoring`, Python 3.12 and later). There the thread
waits, and its task gives way; so the scheduler that orders tasks orders lines too. What is one step: a line, whatever
C code it calls; code of the standard library, of installed packages and of agentloop; what `anyio.from_thread` runs.

A thread that doesn't come back from a line in time waits for another thread, or for the world outside. It is let run
beside the others then, which is no schedule any more: the switching notes the line in `dropped`.
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
"""Real seconds that a line may take."""
IMPATIENCE = 0.02
"""The same, for a line that some thread didn't come back from in time before."""
PATIENCE_BESIDE = 5.0
"""Real seconds that a thread has to end once it runs beside the others."""
MOST_LINES = 2000
"""Lines that one function may run; one that needs more runs beside the others from there on."""
_NAME = "agentloop.testing"
_TOOL_IDS = (4, 3, 5)
"""The ids that no kind of tool has of its own."""
_GENERATED = ("<frozen ", "<attrs generated ")
_INSTALLED = tuple({os.path.join(sysconfig.get_path(name), "") for name in ("purelib", "platlib")})
_NOT_THE_PROGRAM = (
    *(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib")),
    *_INSTALLED,
    os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), ""),
)

SWITCHING: ContextVar[Switching | None] = ContextVar("SWITCHING", default=None)
"""The run whose functions in threads are asked for here, if it wants to know."""
LABEL: ContextVar[str] = ContextVar("LABEL", default="")
"""What the part of the run that asks for a thread is called."""


# ---------------------------------------------------------------------------------------------- which lines


@attrs.define(eq=False)
class _Monitor:
    """The process's one watch over lines."""

    tool_id: int | None = None
    users: int = 0
    workers: dict[int, Worker] = attrs.field(factory=dict)
    """By the idents of their threads."""
    own: set[str] = attrs.field(factory=set)
    """Where installed code begins whose lines count all the same."""
    slow: set[str] = attrs.field(factory=set)
    """Lines that some thread didn't come back from in time."""
    _known: dict[str, bool] = attrs.field(factory=dict)

    def begin(self) -> None:
        """Have every line reported, from the first user on."""
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
        """Have nothing reported any more, once the last user has left."""
        self.users -= 1
        if self.users or self.tool_id is None:
            return
        _monitoring.set_events(self.tool_id, 0)
        _monitoring.register_callback(self.tool_id, _monitoring.events.LINE, None)
        _monitoring.free_tool_id(self.tool_id)
        self.tool_id = None
        self.slow.clear()

    def count_as_own(self, files: Iterable[str]) -> None:
        """Count the lines of *files*, and of what was installed with them, as the program's."""
        new = {_package_of(file) for file in files if file.startswith(_INSTALLED)} - self.own
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
    """Count lines of *functions*, and of what was installed with them, as the program's wherever they are."""
    codes = [getattr(inspect.unwrap(one), "__code__", None) for one in functions]
    _monitor.count_as_own([code.co_filename for code in codes if code is not None])


@contextmanager
def monitored() -> Iterator[None]:
    """Have lines reported within the block. It takes a while to begin, so a search holds one block for all its runs."""
    _monitor.begin()
    try:
        yield
    finally:
        _monitor.end()


# ---------------------------------------------------------------------------------------------- one run


@attrs.define(eq=False)
class Switching:
    """Threads of one run of a world, and what became of them."""

    wanted: bool
    """Whether functions go on line by line; each is one step otherwise."""
    give_way: Callable[[str], Awaitable[None]] | None = None
    """Lets others go on; a checkpoint of the loop if there is none."""
    mark: Callable[[], int] = lambda: 0
    one_step: list[str] = attrs.field(factory=list)
    """Functions that were one step each."""
    switched: int = 0
    """Functions that went on line by line."""
    dropped: list[str] = attrs.field(factory=list)
    """Lines that a thread didn't come back from in time."""
    stuck: list[str] = attrs.field(factory=list)
    """Lines at which threads were last seen that didn't end at all."""
    trace: list[tuple[int, str]] = attrs.field(factory=list)
    """The lines that ran, in order, each with what `mark()` said before."""
    workers: list[Worker] = attrs.field(factory=list)

    @property
    def active(self) -> bool:
        """Whether functions go on line by line here."""
        return self.wanted and _monitor.tool_id is not None

    def close(self) -> None:
        """Let threads that no task waits for any more run to their ends."""
        for worker in self.workers:
            worker.leave(IMPATIENCE if self.stuck else PATIENCE)
        self.workers.clear()

    async def run(self, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run *func* in a thread, line by line."""
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
    """One function in a thread. Either the loop's thread runs or this one, until it is set free."""

    def __init__(self, switching: Switching, label: str, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._switching = switching
        self._label = label
        self._changed = threading.Condition()
        self._state = "runs"
        """`"runs"`, `"waits"` before a line, `"asks"` for something of the loop, or `"ended"`."""
        self._free = False
        self._left = False
        self._line: tuple[str, int] | None = None
        self._lines = 0
        self._request: Callable[[], Awaitable[None]] | None = None
        context, token = copy_context(), anyio.lowlevel.current_token()
        self.thread = threading.Thread(target=self._work, args=(context, token, func, args), name=_NAME, daemon=True)

    # -- in the thread

    def _work(self, context: Context, token: Any, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        threadlocals.current_token = token  # as anyio does: `from_thread` looks there
        ident = threading.get_ident()
        _monitor.workers[ident] = self
        try:
            self.value = context.run(func, *args)
        except BaseException as error:  # noqa: ASYNC103 - raised where the thread is waited for
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
        """Let the thread run to its end, and wait for that for *seconds* at most; what it asks for is refused."""
        with self._changed:
            self._free = self._left = True
            if self._state != "ended":
                self._state = "runs"
            self._changed.notify_all()
        if self.thread.ident is not None:
            self.thread.join(seconds)

    def place(self) -> str:
        """Return the line that the thread is at, in words."""
        if self._line is None:
            return self._label
        file, line = self._line
        return f"{os.path.basename(file)}:{line}: {linecache.getline(file, line).strip()}".removesuffix(": ")

    async def run_to_its_end(self) -> None:
        """Let the thread go on, line after line, giving way after each."""
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
        with self._changed:
            return self._changed.wait_for(lambda: self._state != "runs", seconds)

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
        """Wait in real time until the thread ends. Virtual time passes meanwhile, as somebody may wait for that."""
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
    """Return what the running thread works for, if it is one of these."""
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
    """Raise the cancellation of the scopes around the running task, if there is one; let nobody else go on."""
    if anyio.current_effective_deadline() == float("-inf"):
        await anyio.lowlevel.checkpoint_if_cancelled()


__all__ = [
    "CAN_MONITOR",
    "LABEL",
    "SWITCHING",
    "Switching",
    "Worker",
    "count_as_own",
    "monitored",
    "raise_if_cancelled",
    "run_on_loop",
    "worker_here",
]
