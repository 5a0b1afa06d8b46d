"""A model or callback that enters a cancel scope in the run's own task and leaves it open: a UserError, bare."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agentloop import Agent, RunHooks, UserError
from agentloop.testing import ScriptedModel, say


class Leaking(ScriptedModel):
    """Leaves a scope open as it is asked, or as it answers."""

    def __init__(self, where: str) -> None:
        super().__init__([say("done")])
        self.where = where

    @asynccontextmanager
    async def _around(self, stream: Any) -> AsyncIterator[Any]:
        if self.where == "enter":
            anyio.CancelScope().__enter__()
        async with stream as events:
            yield self._between(events) if self.where == "event" else events

    async def _between(self, events: Any) -> AsyncIterator[Any]:
        anyio.CancelScope().__enter__()
        async for event in events:
            yield event

    def stream(self, request: Any) -> Any:
        return self._around(super().stream(request))


class LeakingHooks(RunHooks):
    """The same in a hook."""

    async def on_llm_start(self, *args: Any) -> None:
        anyio.CancelScope().__enter__()


@pytest.mark.parametrize("where", ["enter", "event", "hook"])
async def test_scope_that_is_left_open_is_a_user_error(run_mode: Any, where: str) -> None:
    """The error is no group, and the caller's own scopes still work."""
    hooks = LeakingHooks() if where == "hook" else None
    with anyio.fail_after(10) as around:
        with pytest.raises(UserError, match="cancel scope was entered by a callback"):
            await run_mode(Agent("a", model=Leaking(where)), "go", hooks=hooks)
        await anyio.lowlevel.checkpoint()
    assert not around.cancelled_caught
