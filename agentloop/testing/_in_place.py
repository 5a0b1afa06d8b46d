"""Worker threads that don't start: on a clockwork loop the function runs on the loop, between two checkpoints."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import anyio
import anyio.lowlevel
from anyio._backends import _asyncio

from agentloop.testing._waiting import require

_NAME = "run_sync_in_worker_thread"
_backends: list[type] = [_asyncio.AsyncIOBackend]
if importlib.util.find_spec("trio") is not None:
    from anyio._backends import _trio

    _backends.append(_trio.TrioBackend)

require(
    "anyio",
    {f"{backend.__name__}.{_NAME}": isinstance(vars(backend).get(_NAME), classmethod) for backend in _backends},
)


@contextmanager
def threads_in_place(here: Callable[[], bool]) -> Iterator[None]:
    """Run what anyio would run in worker threads in place, on loops for which *here* says so."""
    before = [vars(backend)[_NAME] for backend in _backends]
    for backend, method in zip(_backends, before, strict=True):
        setattr(backend, _NAME, classmethod(_replacement(method.__func__, here)))
    try:
        yield
    finally:
        for backend, method in zip(_backends, before, strict=True):
            setattr(backend, _NAME, method)


def _replacement(original: Callable[..., Any], here: Callable[[], bool]) -> Callable[..., Any]:
    async def in_place(
        cls: Any, func: Callable[..., Any], args: tuple[Any, ...], abandon_on_cancel: bool = False, limiter: Any = None
    ) -> Any:
        if not _asked(here):
            return await original(cls, func, args, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
        await anyio.lowlevel.checkpoint()
        async with limiter or anyio.to_thread.current_default_thread_limiter():
            try:
                return copy_context().run(func, *args)
            finally:
                # A thread's result comes a step later, whether or not somebody cancels meanwhile.
                await anyio.lowlevel.cancel_shielded_checkpoint()

    return in_place


def _asked(here: Callable[[], bool]) -> bool:
    try:
        return here()
    except RuntimeError:  # no loop of that kind is running
        return False
