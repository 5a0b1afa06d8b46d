"""Descriptions, and the settings of requests: attributes that spans don't hold, because they are in the definitions.

Read once a run segment, from its agents as they are then. What a run makes later isn't here: tools of a source (such as
an MCP server), and agents that hooks put in another's place. Nested runs may have other settings than the run around
them, so the settings are those of the outermost run's requests only.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from agentloop.agents import Agent, settings_for
from agentloop.agents._graph import AgentGraph
from agentloop.config import RunConfig
from agentloop.spans import RunOpening, Span

_SETTINGS = {
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.max_tokens": "max_tokens",
    "gen_ai.request.frequency_penalty": "frequency_penalty",
    "gen_ai.request.presence_penalty": "presence_penalty",
}
"""The settings that the conventions have an attribute for."""


class RunDefinitions:
    """The agents of one run segment by their names, and what is exported of them and of their tools."""

    def __init__(self, agent: Agent[Any, Any], config: RunConfig) -> None:
        agents = AgentGraph(agent).agents()
        counts = Counter(one.name for one in agents)
        # A span names its agent. Of two agents with one name we don't know which one it means, so we tell nothing.
        self._agents = {one.name: one for one in agents if counts[one.name] == 1}
        self._config = config

    @classmethod
    def of(cls, opening: RunOpening) -> RunDefinitions | None:
        """Return the definitions of the run segment that *opening* tells of; None if it doesn't have them."""
        return None if opening.agent is None or opening.config is None else cls(opening.agent, opening.config)

    def list_facts(self, span: Span) -> dict[str, Any]:
        """Return the attributes of *span* that its agent's definition has."""
        match span.kind:
            case "agent":
                return self._describe_agent(span.name)
            case "tool":
                return self._describe_tool(span)
            case "model" if not span.path:
                return self._list_settings(span.name)
            case _:
                return {}

    def _describe_agent(self, name: str) -> dict[str, Any]:
        agent = self._agents.get(name)
        if agent is None or not agent.handoff_description:
            return {}
        return {"gen_ai.agent.description": agent.handoff_description}

    def _describe_tool(self, span: Span) -> dict[str, Any]:
        above = find_agent(span)
        agent = None if above is None else self._agents.get(above.name)
        tools = () if agent is None else agent.functions
        found = next((tool.description for tool in tools if span.name in (tool.name, tool.lookup_key)), "")
        return {"gen_ai.tool.description": found} if found else {}

    def _list_settings(self, name: str) -> dict[str, Any]:
        agent, config = self._agents.get(name), self._config
        if agent is None:
            return {}
        own = agent.model_settings if config.model is None else settings_for(agent, config.model)
        settings = own.resolve(config.model_settings)
        told = {attribute: getattr(settings, setting) for attribute, setting in _SETTINGS.items()}
        told["gen_ai.output.type"] = None if agent.output_type in (None, str) else "json"  # text is the default
        return {name: value for name, value in told.items() if value is not None}


def find_agent(span: Span) -> Span | None:
    """Return the span of the agent that *span* is below; None if there is none."""
    above = span.parent
    while above is not None and above.kind != "agent":
        above = above.parent
    return above
