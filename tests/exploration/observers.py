"""Observers of a generated world: hooks, listeners, a session and a journal that note everything they receive.

Each note has a stamp, like the run's records and bodies. Stamps grow across all observers, so a check can compare the
times of any two notes. Observers judge nothing; some fail on purpose, if their world says so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from agentloop.config.hooks import AgentHooks, RunHooks
from agentloop.items import Item
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession
from agentloop.testing.simulation._simulated_parts import stamp

Noted: TypeAlias = tuple[str, tuple[str, ...], str]
"""An event, the path it is of, and the call's id or the agent's name."""


class WatcherFailed(LookupError):
    """The error of a hook, a listener or a session that fails because its world says so."""


class _ObservedLog:
    """The notes of hooks: events in `noted`, and the stamp of each in `stamps`."""

    def __init__(self, fails_at: str | None = None) -> None:
        self.noted: list[Noted] = []
        self.stamps: list[int] = []
        self.fails_at = fails_at
        """The event at whose first occurrence it fails; None: never."""
        self.failed: list[Noted] = []

    def add(self, event: str, ctx: Any, name: str) -> None:
        """Note an event, and fail if its turn to fail has come.

        Raises:
            WatcherFailed: at the first event `fails_at`.
        """
        # A nested run's id is its caller's, a slash, and the call it runs in.
        path = tuple(ctx.run_id.split("/")[1:]) if ctx.run_id else ()
        self.noted.append((event, path, name))
        self.stamps.append(stamp())
        if event == self.fails_at and not self.failed:
            self.failed.append(self.noted[-1])
            raise WatcherFailed(f"hooks that fail at {event}")


class _CallHookLog(_ObservedLog):
    """The hooks that runs and agents have alike: of model requests and of tool calls."""

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


class HookLog(_CallHookLog, RunHooks):
    """Hooks of a run that note each event, and may fail at one."""

    async def on_run_end(self, ctx: Any, outcome: Any) -> None:
        self.add("run_end", ctx, outcome.status)

    async def on_agent_start(self, ctx: Any, agent: Any) -> None:
        self.add("agent_start", ctx, agent.name)

    async def on_agent_end(self, ctx: Any, agent: Any, output: Any) -> None:
        self.add("agent_end", ctx, agent.name)

    async def on_handoff(self, ctx: Any, from_agent: Any, to_agent: Any) -> None:
        self.add("handoff", ctx, to_agent.name)


class AgentHookLog(_CallHookLog, AgentHooks):
    """Hooks of one agent that note each event, and may fail at one."""

    async def on_start(self, ctx: Any, agent: Any) -> None:
        self.add("agent_start", ctx, agent.name)

    async def on_end(self, ctx: Any, agent: Any, output: Any) -> None:
        self.add("agent_end", ctx, agent.name)

    async def on_handoff_out(self, ctx: Any, agent: Any, to_agent: Any) -> None:
        self.add("handoff_out", ctx, to_agent.name)

    async def on_handoff_in(self, ctx: Any, agent: Any, from_agent: Any) -> None:
        self.add("handoff_in", ctx, from_agent.name)


class Listener:
    """An `on_stream` of an agent tool: `heard` has every event with its stamp. It takes *seconds* for each, and fails
    at every *fails*-th event; 0: never.
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
    """A session that notes each write: its stamp, its items, and True if it failed.

    The write number *fails_at*, counted from 1, fails: with *kept* after its items were stored, otherwise before.
    """

    def __init__(self, before: Sequence[Item] = (), *, fails_at: int = 0, kept: bool = False) -> None:
        super().__init__()
        self._items += before
        self.before = tuple(before)
        self.writes: list[tuple[int, tuple[Item, ...], bool]] = []
        self._fails_at = fails_at
        self._kept = kept

    async def add_items(self, items: Sequence[Item]) -> None:
        """Add *items*, or fail."""
        fails = len(self.writes) + 1 == self._fails_at
        self.writes.append((stamp(), tuple(items), fails))
        if self._kept or not fails:
            await super().add_items(items)
        if fails:
            raise WatcherFailed("a session that fails")


class JournalLog(MemoryJournal):
    """A slow journal that notes, with a stamp, the number of its records after each append.

    It fails at each append with a record of the kind *fails_at*.
    """

    def __init__(self, seconds: float = 0.05, fails_at: str | None = None) -> None:
        super().__init__()
        self._seconds = seconds
        self._fails_at = fails_at
        self.failed = False
        self.got: list[tuple[int, int]] = []

    async def append(self, records: Sequence[bytes]) -> None:
        """Append *records*, after a while."""
        await anyio.sleep(self._seconds)
        if self._fails_at is not None and any(json.loads(one).get("kind") == self._fails_at for one in records):
            self.failed = True
            raise WatcherFailed(f"a journal that fails at {self._fails_at}")
        await super().append(records)
        self.got.append((stamp(), len(self._records) - 1))  # the first line is the header
