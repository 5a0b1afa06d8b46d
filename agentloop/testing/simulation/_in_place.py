"""Worker threads on a deterministic event loop: the function runs on the loop, between two checkpoints, and no thread
starts. In a run of a world with `switch_lines` a thread does start, and runs line by line (`_lines`).

It replaces methods of anyio's backends, as anyio has no public hook for this. The threads of journals aren't anyio's:
on such a loop their functions are given to anyio.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any
from weakref import WeakKeyDictionary

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio._backends import _asyncio

from agentloop.journal._thread import OneAtATime
from agentloop.run import runs_in_place
from agentloop.testing.simulation._lines import SWITCHING, raise_if_cancelled, run_on_loop, worker_here
from agentloop.testing.simulation._waiting import require

_RUN, _ASYNC, _SYNC, _CHECK = (
    *("run_sync_in_worker_thread", "run_async_from_thread", "run_sync_from_thread"),
    "check_cancelled",
)
_backends: list[type] = [_asyncio.AsyncIOBackend]
if importlib.util.find_spec("trio") is not None:
    from anyio._backends import _trio

    _backends.append(_trio.TrioBackend)

require(
    "anyio",
    {
        f"{backend.__name__}.{name}": isinstance(vars(backend).get(name), classmethod)
        for backend in _backends
        for name in (_RUN, _ASYNC, _SYNC, _CHECK)
    },
)


@contextmanager
def threads_in_place(here: Callable[[], bool]) -> Iterator[None]:
    """Run the functions of worker threads in place, on loops for which *here* returns True."""
    run_lane = OneAtATime.run
    before = [(backend, name, vars(backend)[name]) for backend in _backends for name in (_RUN, _ASYNC, _SYNC, _CHECK)]
    for backend, name, method in before:
        setattr(backend, name, classmethod(_replacement(name, method.__func__, here)))
    OneAtATime.run = _lane_in_place(run_lane, here)  # type: ignore[method-assign]
    try:
        yield
    finally:
        OneAtATime.run = run_lane  # type: ignore[method-assign]
        for backend, name, method in before:
            setattr(backend, name, method)


def _replacement(name: str, original: Callable[..., Any], here: Callable[[], bool]) -> Callable[..., Any]:
    async def in_place(
        cls: Any, func: Callable[..., Any], args: tuple[Any, ...], abandon_on_cancel: bool = False, limiter: Any = None
    ) -> Any:
        if not _is_enabled_here(here):
            return await original(cls, func, args, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
        switching = SWITCHING.get()
        await anyio.lowlevel.checkpoint()
        async with limiter or anyio.to_thread.current_default_thread_limiter():
            try:
                if switching is not None and switching.active:
                    return await switching.run(func, args)
                note_one_step(func)
                context = copy_context()
                context.run(runs_in_place.set, True)
                return context.run(func, *args)
            finally:
                # A thread's result comes a step later, cancelled meanwhile or not.
                await anyio.lowlevel.cancel_shielded_checkpoint()

    def on_loop(cls: Any, func: Callable[..., Any], args: tuple[Any, ...], token: object) -> Any:
        worker = worker_here()
        if worker is None:
            return original(cls, func, args, token)
        return run_on_loop(worker, func, args, is_async=name == _ASYNC)

    def check_cancelled(cls: Any) -> None:
        worker = worker_here()
        if worker is None:
            original(cls)
        else:
            run_on_loop(worker, raise_if_cancelled, (), is_async=True)

    replacements: dict[str, Callable[..., Any]] = {_RUN: in_place, _CHECK: check_cancelled}
    return replacements.get(name, on_loop)


def _lane_in_place(original: Callable[..., Any], here: Callable[[], bool]) -> Callable[..., Any]:
    limiters: WeakKeyDictionary[OneAtATime, anyio.CapacityLimiter] = WeakKeyDictionary()

    async def run(lane: OneAtATime, work: Callable[[], Any]) -> Any:
        if not _is_enabled_here(here):
            return await original(lane, work)
        if lane not in limiters:
            limiters[lane] = anyio.CapacityLimiter(1)
        return await anyio.to_thread.run_sync(work, limiter=limiters[lane])

    return run


def note_one_step(func: Callable[..., Any]) -> None:
    """Note in the current run's switching, if there is one, that *func* runs in place of a thread, as one step."""
    if (switching := SWITCHING.get()) is not None:
        switching.one_step.append(getattr(func, "__qualname__", repr(func)))


def _is_enabled_here(here: Callable[[], bool]) -> bool:
    try:
        return here()
    except RuntimeError:  # no loop of that kind is running
        return False
