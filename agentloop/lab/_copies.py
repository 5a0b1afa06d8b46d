"""Copies of agents for runs that aren't the application's: those of the lab, and replays.

The engine calls bodies, guardrails, callbacks and sessions through the effects, so they may stay in a copy. What it
calls directly has to be replaced: a subclass says by what.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from agentloop._common.values import Value
from agentloop.abc import Model
from agentloop.agents import Agent
from agentloop.config._bundling import Bundle, merge_instructions
from agentloop.config.hooks import AgentHooks
from agentloop.context import Sandbox
from agentloop.exceptions import UserError
from agentloop.handoffs import Handoff
from agentloop.tools import FunctionTool, ToolSource


class ClosedSession:
    """A placeholder for a session, which is neither read nor written: its items come through the effects."""

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Raise UserError."""
        raise UserError("a replay reads no session")

    async def add_items(self, items: Any) -> None:
        """Raise UserError."""
        raise UserError("a replay writes to no session")

    async def pop_item(self) -> Any:
        """Raise UserError."""
        raise UserError("a replay writes to no session")

    async def clear(self) -> None:
        """Raise UserError."""
        raise UserError("a replay writes to no session")


class RecordedSandbox(Value, frozen=True):
    """The sandbox of a run that isn't the application's: its name only. Nothing is run in it, and it has no storage."""

    name: str
    isolation: str = "none"
    shell: Any = None
    editor: Any = None

    async def release(self) -> None:
        """Do nothing."""

    async def remove(self) -> None:
        """Do nothing."""


class ClosedSandboxes:
    """A placeholder for a provider of sandboxes, which is not asked: the log has their names."""

    async def create(self, run_id: str) -> Sandbox:
        """Raise UserError."""
        raise UserError("a replay makes no sandbox")

    async def find(self, name: str, run_id: str) -> Sandbox:
        """Raise UserError."""
        raise UserError("a replay finds no sandbox")


class AgentCopies:
    """Copies of agents, each made once, together with those of all agents that it reaches."""

    hooks: AgentHooks | None = None
    """The hooks of each copy."""

    def __init__(self) -> None:
        self._agents: dict[int, Agent[Any, Any]] = {}
        self._bundles: dict[int, Sequence[Bundle]] = {}

    def copy_model(self, given: Agent[Any, Any]) -> str | Model | None:
        """Return the model of the copy of *given*."""
        raise NotImplementedError

    def copy_tool(self, tool: FunctionTool[Any]) -> FunctionTool[Any]:
        """Return the copy of *tool*."""
        raise NotImplementedError

    def copy_source(self, source: ToolSource) -> ToolSource:
        """Return the copy of a source of tools."""
        return source

    def instruct(self, copy: Agent[Any, Any], instructions: str) -> None:
        """Give *copy* other instructions, beside those of the bundles of the agent that it is made of."""
        copy.instructions = merge_instructions(self._bundles[id(copy)], instructions)

    def copy_agent(self, given: Agent[Any, Any]) -> Agent[Any, Any]:
        """Return the copy of *given*, made at the first call."""
        found = self._agents.get(id(given))
        if found is None:
            original: Any = given
            found = self._agents[id(given)] = attrs.evolve(  # not `clone`: the parts of bundles stay written out
                original,
                bundles=(),
                model=self.copy_model(given),
                model_settings=given.model_settings,
                hooks=self.hooks,
                tools=[],
                handoffs=[],
            )
            found.tools = [self.copy_tool(tool) if isinstance(tool, FunctionTool) else tool for tool in given.tools]
            found.toolsets = [self.copy_source(source) for source in given.toolsets]
            self._bundles[id(found)] = given.bundles
            found.handoffs = [self._copy_handoff(entry) for entry in given.handoffs]
        return found

    def _copy_handoff(self, entry: Agent[Any, Any] | Handoff) -> Agent[Any, Any] | Handoff:
        if isinstance(entry, Agent):
            return self.copy_agent(entry)
        return attrs.evolve(entry, agent=self.copy_agent(entry.agent))
