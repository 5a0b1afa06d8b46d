"""The agents of a graph as cards: what each one has, and which agents it leads to. Draws nothing and runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import attrs

from agentloop.agents import Agent
from agentloop.agents._graph import AgentGraph
from agentloop.cli.target import name_model
from agentloop.guardrails import ToolInputGuardrail, ToolOutputGuardrail
from agentloop.handoffs import target_of
from agentloop.tools import AgentCall, FunctionTool, HostedTool, source_name

PartKind: TypeAlias = Literal["input guardrail", "output guardrail", "tool", "hosted tool", "tool source", "bundle"]
LinkKind: TypeAlias = Literal["hands over", "calls"]


@attrs.frozen
class AgentPart:
    """Something that an agent has: a tool, a source of tools, or a guardrail. `notes` are a few words about it."""

    kind: PartKind
    name: str
    notes: tuple[str, ...] = ()


@attrs.frozen
class AgentLink:
    """A way from one agent to another, by their positions: a handoff, or the agent as a tool. `name` is the tool's."""

    source: int
    target: int
    kind: LinkKind
    name: str
    notes: tuple[str, ...] = ()


@attrs.frozen
class Card:
    """One agent: its name, its model in words (empty if it has none), and its parts."""

    name: str
    model: str
    parts: tuple[AgentPart, ...]


@attrs.frozen
class Cards:
    """The agents that can be reached from the first one, which is the first card, and the ways between them.

    Tools of a source are known only within a run: the source alone is a part.
    """

    cards: tuple[Card, ...]
    links: tuple[AgentLink, ...]

    @classmethod
    def of(cls, root: Agent[Any, Any]) -> Cards:
        """Return the cards of *root* and of every agent that it reaches, in the order of the shortest ways to them."""
        agents = AgentGraph(root).agents()
        places = {id(agent): place for place, agent in enumerate(agents)}
        links = (link for place, agent in enumerate(agents) for link in _find_links(agent, place, places))
        return cls(tuple(map(_make_card, agents)), tuple(links))


def _make_card(agent: Agent[Any, Any]) -> Card:
    model = "" if agent.model is None else name_model(agent.model)
    return Card(agent.name, model, tuple(_find_parts(agent)))


def _find_parts(agent: Agent[Any, Any]) -> Iterator[AgentPart]:
    for guardrail in agent.input_guardrails:
        yield AgentPart("input guardrail", guardrail.name, () if guardrail.run_in_parallel else ("before the model",))
    for tool in agent.tools:
        if isinstance(tool, HostedTool):
            yield AgentPart("hosted tool", tool.kind)
        elif not isinstance(tool.body, AgentCall):
            yield AgentPart("tool", tool.qualified_name, _describe_tool(tool))
    for source in agent.toolsets:
        yield AgentPart("tool source", source_name(source))
    for bundle in agent.bundles:
        yield AgentPart("bundle", bundle.name, tuple(bundle.brings()))
    for check in agent.output_guardrails:
        yield AgentPart("output guardrail", check.name)
    if agent.output_validator is not None:
        yield AgentPart("output guardrail", "output_validator")


def _find_links(agent: Agent[Any, Any], place: int, places: dict[int, int]) -> Iterator[AgentLink]:
    for entry in agent.handoffs:
        given = target_of(entry)
        notes = () if given.is_enabled is True else ("not always",)
        yield AgentLink(place, places[id(given.agent)], "hands over", given.name, notes)
    for tool in agent.functions:
        if isinstance(tool.body, AgentCall):
            target = places[id(tool.body.agent)]
            yield AgentLink(place, target, "calls", tool.qualified_name, _describe_tool(tool))


def _describe_tool(tool: FunctionTool[Any]) -> tuple[str, ...]:
    asks = (
        {True: ["asks"], False: []}.get(tool.needs_approval) if isinstance(tool.needs_approval, bool) else ["may ask"]
    )
    checks: Sequence[ToolInputGuardrail | ToolOutputGuardrail]
    checks = (*tool.tool_input_guardrails, *tool.tool_output_guardrails)
    return (
        *(asks or []),
        *(f"checked by {check.name}" for check in checks),
        *(["found by search"] if tool.defer_loading else []),
        *([] if tool.is_enabled is True else ["not always"]),
    )
