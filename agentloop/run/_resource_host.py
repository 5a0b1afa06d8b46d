"""The resources of an open runtime: they outlive each of its runs, and end with its block."""

from __future__ import annotations

import logging
from typing import Any

import anyio

from agentloop._common.error_text import error_summary
from agentloop._concurrency.backend import Work, starter
from agentloop._concurrency.cleanup import Cleanup
from agentloop._engine.runtime.resources import Resources

logger = logging.getLogger("agentloop")

_GRACE = 5.0
"""Seconds for the exits of all resources of a runtime."""


class ResourceHost:
    """Holds the tasks of resources that no run owns: those of an open runtime. Entered and left in one task.

    A resource that fails ends no other and not the block around: its error goes to the tasks that wait for it. What the
    block raises leaves it bare, not in a group.
    """

    def __init__(self) -> None:
        self._resources = Resources()
        self._group = anyio.create_task_group()

    async def __aenter__(self) -> Resources:
        await self._group.__aenter__()
        self._start = starter(self._group)
        self._resources.host = self
        return self._resources

    def host(self, work: Work, on: Any, name: str) -> None:
        """Start a task named *name* that does `work(on)`."""
        self._start(work, on, name)

    async def __aexit__(self, *_: object) -> None:
        cleanup = Cleanup(_GRACE)
        cleanup.begin()
        for error in await self._resources.close(cleanup, lambda section: None):  # noqa: ASYNC102 - within `cleanup`
            logger.warning("a resource of the runtime failed in its exit: %s", error_summary(error))
        self._resources.host = None  # each would hold the other
        await self._group.__aexit__(None, None, None)  # noqa: ASYNC102 - its tasks have ended
