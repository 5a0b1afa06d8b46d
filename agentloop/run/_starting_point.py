"""The starting point of a run segment: an empty log, or the log of an earlier segment, with the agent at work."""

from __future__ import annotations

from typing import Any

import msgspec

from agentloop._core.run_fold import RunFold
from agentloop.agents import Agent
from agentloop.agents._graph import AgentGraph


class StartingPoint(msgspec.Struct, eq=False, frozen=True):
    """The log so far, and the agent at work.

    Made once per run segment. `changed` describes the differences of the agents from those the run had, unless the log
    has them already.
    """

    fold: RunFold
    agent: Agent[Any, Any]
    graph: AgentGraph | None = None
    changed: tuple[str, ...] = ()
