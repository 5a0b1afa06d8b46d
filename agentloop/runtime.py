"""The runtime: resources that runs share while its block is open.

They are models by name, the HTTP pool, the local model's process, worker threads, and resources that contexts share.
Does not know about runs: a run finds the open runtime by a context variable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

from agentloop._common.checks import check_count
from agentloop._engine.runtime.live_run import DEFAULT_MAX_THREADS, loop_state
from agentloop._engine.runtime.resources import ResourceHost, Resources

if TYPE_CHECKING:
    from agentloop._engine.runtime.threads import Threads
    from agentloop.models.registry import Providers


class Runtime(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """An open runtime. `open_runtime` owns it; runs started inside the block use it."""

    providers: Providers
    threads: Threads
    resources: Resources


_current: ContextVar[Runtime | None] = ContextVar("agentloop_runtime", default=None)


def current_runtime() -> Runtime | None:
    """Return the runtime whose block encloses this task, or None."""
    return _current.get()


@asynccontextmanager
async def open_runtime(*, http_client: Any = None, max_threads: int = DEFAULT_MAX_THREADS) -> AsyncIterator[Runtime]:
    """Open a runtime for the runs inside the block; leaving the block closes it.

    Args:
        http_client: An HTTP client to use in place of one that the runtime makes; the caller closes it.
        max_threads: The number of worker threads that the sync tools of all runs inside may hold at once, abandoned
            threads counted.
    """
    from agentloop._engine.runtime.threads import Threads
    from agentloop.models.registry import Providers  # most runs have models of the application's

    check_count("max_threads", max_threads)
    async with Providers(http_client=http_client) as providers, ResourceHost() as resources:
        threads = Threads(max_threads, loop_state().threads)
        runtime = Runtime(providers=providers, threads=threads, resources=resources)
        token = _current.set(runtime)
        try:
            yield runtime
        finally:
            _current.reset(token)
