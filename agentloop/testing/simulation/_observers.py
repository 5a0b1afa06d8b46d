"""What a generated world is watched with: hooks, listeners, a session and a journal that write down what they are told.

Each entry has a stamp, as have the run's records and its bodies: a later one's is larger, whoever gave it. So it can be
said afterwards what came before what.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from agentloop.hooks import AgentHooks, RunHooks
from agentloop.items import Item
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession

_stamps = itertools.count(1)
Told: TypeAlias = tuple[str, tuple[str, ...], str]
"""An event, the path it is of, and the call's id or the agent's name."""


def stamp() -> int:
    """Return a number that is larger than all that were given before."""
    return next(_stamps)


class WatcherFailed(LookupError):
    """A hook, a listener or a session that fails because its world says so."""


class _ObservedLog:
    """What hooks are told: `told`, and the stamp of each in `stamps`."""

    def __init__(self, fails_at: str | None = None) -> None:
        self.told: list[Told] = []
        self.stamps: list[int] = []
        self.fails_at = fails_at
        """The event that it fails at, the first time it is told of it."""
        self.failed: list[Told] = []

    def add(self, event: str, ctx: Any, name: str) -> None:
        """Write down an event, and fail if this is the one to fail at.

        Raises:
            WatcherFailed: it is.
        """
        # A nested run's id is its caller's, a slash, and the call it runs in.
        path = tuple(ctx.run_id.split("/")[1:]) if ctx.run_id else ()
        self.told.append((event, path, name))
        self.stamps.append(stamp())
        if event == self.fails_at and not self.failed:
            self.failed.append(self.told[-1])
            raise WatcherFailed(f"hooks that fail at {event}")


class HookLog(_ObservedLog, RunHooks):
    """Hooks of a run that write down what they are told, and may fail at one event."""

    async def on_run_end(self, ctx: Any, outcome: Any) -> None:
        self.add("run_end", ctx, outcome.status)

    async def on_agent_start(self, ctx: Any, agent: Any) -> None:
        self.add("agent_start", ctx, agent.name)

    async def on_agent_end(self, ctx: Any, agent: Any, output: Any) -> None:
        self.add("agent_end", ctx, agent.name)

    async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
        await checkpoint()
        self.add("llm_start", ctx, agent.name)

    async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
        self.add("llm_end", ctx, agent.name)

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        self.add("tool_start", ctx, ctx.tool_call_id)
        await checkpoint()

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        self.add("tool_end", ctx, ctx.tool_call_id)
        await checkpoint()

    async def on_handoff(self, ctx: Any, from_agent: Any, to_agent: Any) -> None:
        self.add("handoff", ctx, to_agent.name)


class AgentHookLog(_ObservedLog, AgentHooks):
    """The same of one agent."""

    async def on_start(self, ctx: Any, agent: Any) -> None:
        self.add("agent_start", ctx, agent.name)

    async def on_end(self, ctx: Any, agent: Any, output: Any) -> None:
        self.add("agent_end", ctx, agent.name)

    async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
        await checkpoint()
        self.add("llm_start", ctx, agent.name)

    async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
        self.add("llm_end", ctx, agent.name)

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        self.add("tool_start", ctx, ctx.tool_call_id)
        await checkpoint()

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        self.add("tool_end", ctx, ctx.tool_call_id)
        await checkpoint()

    async def on_handoff_out(self, ctx: Any, agent: Any, to_agent: Any) -> None:
        self.add("handoff_out", ctx, to_agent.name)

    async def on_handoff_in(self, ctx: Any, agent: Any, from_agent: Any) -> None:
        self.add("handoff_in", ctx, from_agent.name)


class Listener:
    """An `on_stream` of an agent tool: `heard` has every event with its stamp. It takes *seconds* for each, and fails
    at every so manyth.
    """

    def __init__(self, seconds: float = 0.0, fails: int = 0) -> None:
        self.heard: list[tuple[int, Any]] = []
        self._seconds = seconds
        self._fails = fails

    async def __call__(self, event: Any) -> None:
        self.heard.append((stamp(), event))
        if self._seconds:
            await anyio.sleep(self._seconds)
        if self._fails and len(self.heard) % self._fails == 0:
            raise WatcherFailed("a listener that fails")


class SessionLog(MemorySession):
    """A session that writes down each write: its stamp, its items, and whether it failed.

    The write number *fails_at*, counted from 1, fails: with *kept* after it has written.
    """

    def __init__(self, before: Sequence[Item] = (), *, fails_at: int = 0, kept: bool = False) -> None:
        super().__init__()
        self._items += before
        self.before = tuple(before)
        self.writes: list[tuple[int, tuple[Item, ...], bool]] = []
        self._fails_at = fails_at
        self._kept = kept

    async def add_items(self, items: Sequence[Item]) -> None:
        """Add them, or fail."""
        fails = len(self.writes) + 1 == self._fails_at
        self.writes.append((stamp(), tuple(items), fails))
        if self._kept or not fails:
            await super().add_items(items)
        if fails:
            raise WatcherFailed("a session that fails")


class JournalLog(MemoryJournal):
    """A journal that takes its time, and writes down with a stamp how many records it has got.

    It fails when it is first given a record of the kind *fails_at*.
    """

    def __init__(self, seconds: float = 0.05, fails_at: str | None = None) -> None:
        super().__init__()
        self._seconds = seconds
        self._fails_at = fails_at
        self.failed = False
        self.got: list[tuple[int, int]] = []

    async def append(self, records: Sequence[bytes]) -> None:
        """Append them, after a while."""
        await anyio.sleep(self._seconds)
        if self._fails_at is not None and any(json.loads(one).get("kind") == self._fails_at for one in records):
            self.failed = True
            raise WatcherFailed(f"a journal that fails at {self._fails_at}")
        await super().append(records)
        self.got.append((stamp(), len(self._records) - 1))  # the first line is the header
