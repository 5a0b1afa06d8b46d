"""The effect of Ctrl-C on a run, and the marks by which it never tears our code.

The first one cancels the run: bodies get their cleanup, calls settle as `cancelled`, the log is written, and the
`KeyboardInterrupt` leaves the block. A second one sets the cleanup deadline to now, if the run is in the program's main
task (`_engine/block.py` counts them). The command line has its own handling, also of SIGTERM (`cli/supervision.py`).

On asyncio an interrupt is a cancellation of the main task, and tears nothing. trio raises `KeyboardInterrupt` at once
if the interrupt meets code that isn't protected, between any two instructions, also in the middle of settling a call.
In protected code it waits, and raises it at the next checkpoint of the main task. The nearest marked caller decides. So
each function at which our code begins (a task's first function, a method that an application calls) is marked
`uninterrupted`, and each function that calls into the application is marked `interruptible`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, TypeVar

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_marked: list[tuple[Any, bool]] = []
"""Functions not yet registered with trio, and whether they are protected. Marks cost nothing without trio."""


def uninterrupted(function: FunctionT) -> FunctionT:
    """Mark *function*, and the functions defined in it, as code that no KeyboardInterrupt may tear."""
    _marked.append((function, True))
    return function


def interruptible(function: FunctionT) -> FunctionT:
    """Mark *function*, which calls into the application, as code in which a KeyboardInterrupt may be raised."""
    _marked.append((function, False))
    return function


def protect() -> None:
    """Register with trio all functions marked so far. Called on trio, before the first task is started."""
    if not _marked:
        return
    import trio  # an extra, and here only where it runs

    while _marked:
        function, protected = _marked.pop()
        register = trio.lowlevel.enable_ki_protection if protected else trio.lowlevel.disable_ki_protection
        for code in _iter_codes(function.__code__):
            register(_Coded(code))


class _Coded:
    """An object with a code object, which trio accepts in place of a function."""

    def __init__(self, code: CodeType) -> None:
        self.__code__ = code


def _iter_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield *code* and the code of the functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _iter_codes(constant)
