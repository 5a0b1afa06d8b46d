"""What runs share while a runtime is open: models by name, the HTTP pool, the local model's process, threads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import attrs

from agentloop._common.checks import check_count
from agentloop._engine.runtime.live_run import DEFAULT_MAX_THREADS, loop_state
from agentloop._engine.runtime.threads import Threads
from agentloop.models.registry import Providers


@attrs.frozen(eq=False, kw_only=True)
class Runtime:
    """An open runtime; runs started inside its block use it."""

    providers: Providers
    threads: Threads


_current: ContextVar[Runtime | None] = ContextVar("agentloop_runtime", default=None)


def current_runtime() -> Runtime | None:
    """Return the runtime this task is in, or None."""
    return _current.get()


@asynccontextmanager
async def open_runtime(*, http_client: Any = None, max_threads: int = DEFAULT_MAX_THREADS) -> AsyncIterator[Runtime]:
    """Open what runs share, for the runs inside the block; closed when the block is left.

    Args:
        http_client: An HTTP client to use in place of an own one; it stays the caller's to close.
        max_threads: Worker threads that sync tools of all runs inside may hold at once, abandoned ones counted.
    """
    check_count("max_threads", max_threads)
    async with Providers(http_client=http_client) as providers:
        runtime = Runtime(providers=providers, threads=Threads(max_threads, loop_state().threads))
        token = _current.set(runtime)
        try:
            yield runtime
        finally:
            _current.reset(token)
