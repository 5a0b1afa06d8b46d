"""The agents reachable from one agent, by keys that mean the same agent in another process.

A key is the agent's name. If several agents share a name, it is the name with a digest of the parts that differ, so
that it doesn't depend on the order in which they are found. Does not know about runs.

Decisions:

Agents have keys. A log names agents by name, and where several share a name, by name and a digest of their
definition, not by their position: an application may reorder its agents between two processes.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from agentloop._common.checks import stored_word
from agentloop._common.digests import digestible
from agentloop._common.empty_containers import NO_DICT
from agentloop._common.json_bytes import encode
from agentloop.agents import Agent
from agentloop.exceptions import StateError
from agentloop.handoffs import target_of
from agentloop.tools import AgentCall, FunctionTool


def _find_reachable(root: Agent[Any, Any]) -> list[Agent[Any, Any]]:
    found: dict[int, Agent[Any, Any]] = {id(root): root}
    waiting = [root]
    while waiting:
        agent = waiting.pop(0)
        targets = [target_of(entry).agent for entry in agent.handoffs]
        targets += [tool.body.agent for tool in agent.functions if isinstance(tool.body, AgentCall)]
        for target in targets:
            if id(target) not in found:
                found[id(target)] = target
                waiting.append(target)
    return list(found.values())


def _digest(value: object) -> str:
    return hashlib.sha256(digestible(value)).hexdigest()[:16]


def _digest_of_parts(agent: Agent[Any, Any]) -> str:
    """Return a digest that distinguishes agents of one name: of the parts of a definition that aren't objects."""
    return _digest(
        [
            agent.instructions if isinstance(agent.instructions, str) else None,
            agent.handoff_description,
            agent.model if isinstance(agent.model, str) else None,
            sorted(tool.lookup_key for tool in agent.functions),
            sorted(target_of(entry).name for entry in agent.handoffs),
        ]
    )[:8]


class AgentGraph:
    """The agents a run may reach, found from its first one. Owned by a run; grows when agents are added during it."""

    __slots__ = ("_agents", "_keys", "_lone_key", "root")

    def __init__(self, root: Agent[Any, Any]) -> None:
        self.root: Agent[Any, Any] = root
        self._lone_key: str | None = None
        """The key of the root while only it was asked for, and it reaches no other agent: most runs need no table."""
        self._keys: dict[int, str] = NO_DICT
        self._agents: dict[str, Agent[Any, Any]] = NO_DICT

    def key(self, agent: Agent[Any, Any]) -> str:
        """Return the key of *agent*; it is the same as long as this object exists."""
        if agent is self.root and self._lone_key is not None:
            return self._lone_key
        found = self._keys.get(id(agent))
        if found is None:
            nested = [one for one in agent.tools if isinstance(one, FunctionTool) and isinstance(one.body, AgentCall)]
            if agent is self.root and not (self._keys or agent.handoffs or nested):
                self._lone_key = agent.name
                return agent.name
            self._add_keys(agent)
            found = self._keys[id(agent)]
        return found

    def find(self, key: str) -> Agent[Any, Any] | None:
        """Return the agent with this *key*, or None if there is none or if several agents fit."""
        if self.key(self.root) == key:  # most runs have one agent, and need no table
            return self.root
        if not self._agents:
            self._add_keys(self.root)
        if key in self._agents:
            return self._agents[key]
        # The key was stored when another number of agents had this name: it lacks a digest, or has one too many.
        name, _, looks = key.rpartition("#")
        alike = [agent for agent in self._agents.values() if agent.name == (name if name else key)]
        if name:
            alike = [agent for agent in alike if _digest_of_parts(agent) == looks]
        return alike[0] if len(alike) == 1 else None

    def get(self, key: str) -> Agent[Any, Any]:
        """Return the agent with this *key*.

        Raises:
            StateError: if the graph has no such agent.
        """
        agent = self.find(key)
        if agent is None:
            known = ", ".join(sorted(self._agents)) or "none"
            raise StateError(f"agent {key!r} isn't in the graph of agent {self.root.name!r} (it has: {known})")
        return agent

    def agents(self) -> list[Agent[Any, Any]]:
        """Return every agent reachable now."""
        return _find_reachable(self.root)

    def _add_keys(self, agent: Agent[Any, Any]) -> None:
        if self._keys is NO_DICT:
            self._keys, self._agents = {}, {}
            if self._lone_key is not None:
                self._keys[id(self.root)], self._agents[self._lone_key] = self._lone_key, self.root
        agents = {id(one): one for one in (*_find_reachable(self.root), agent)}
        alike: defaultdict[str, list[Agent[Any, Any]]] = defaultdict(list)
        for one in agents.values():
            alike[one.name].append(one)
        for name, group in alike.items():
            for one in group:
                if id(one) in self._keys:
                    continue
                key = name if len(group) == 1 else f"{name}#{_digest_of_parts(one)}"
                place = 2
                base = key
                while key in self._agents:
                    key = f"{base}~{place}"
                    place += 1
                self._keys[id(one)] = key
                self._agents[key] = one

    def describe(self) -> dict[str, Any]:
        """Return the graph as JSON: agents by key, with digests of their tools' schemas and policies."""
        agents = {self.key(agent): agent for agent in _find_reachable(self.root)}
        return {
            "root": self.key(self.root),
            "agents": {
                key: {
                    "tools": {tool.lookup_key: describe_tool(tool) for tool in agent.functions},
                    "handoffs": {target_of(entry).name: self.key(target_of(entry).agent) for entry in agent.handoffs},
                }
                for key, agent in agents.items()
            },
        }

    def describe_as_text(self) -> bytes:
        """Return `describe` as canonical JSON text.

        That of an agent that reaches no other is kept with it, as long as its name and tools stay: 3 µs of each run
        with a journal.
        """
        root = self.root
        parts = (root.name, *root.tools)
        kept = None if root.handoffs else root._described
        if kept is not None and kept[0] == parts and self.key(root) == root.name:
            return kept[1]
        described = self.describe()
        text = encode(described)
        if list(described["agents"]) == [root.name] and not root.handoffs:
            root._described = (parts, text)
        return text


_described: WeakKeyDictionary[FunctionTool, dict[str, str]] = WeakKeyDictionary()


def describe_tool(tool: FunctionTool) -> dict[str, str]:
    """Return the digests of the schema and the policy of *tool*.

    They are kept as long as the tool, which is frozen: 10 µs of each journaled run otherwise. A schema that is changed
    in place isn't noticed here, nor in the definitions of a turn.
    """
    found = _described.get(tool)
    if found is None:
        found = _described[tool] = _digest_tool(tool)
    return found


def _digest_tool(tool: FunctionTool) -> dict[str, str]:
    policy = [
        tool.needs_approval if isinstance(tool.needs_approval, bool) else "asked",
        tool.idempotent,
        tool.in_doubt,
        sorted(tool.secret),
        tool.secret_output,
        tool.timeout,
        stored_word(tool.timeout_behavior),
        len(tool.tool_input_guardrails),
        len(tool.tool_output_guardrails),
        *(["reads_only"] if tool.reads_only else []),  # journals of earlier versions have digests without it
    ]
    return {"schema": _digest(tool.params_json_schema), "policy": _digest(policy)}


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the differences between two graphs in words, one each. Both are as `AgentGraph.describe` returns them."""
    found: list[str] = []
    if before.get("root") != after.get("root"):
        found.append(f"first agent: {before.get('root')!r}, now {after.get('root')!r}")
    lines, both = _compare_keys("agent", _part(before, "agents"), _part(after, "agents"))
    found += lines
    for key, old, new in both:
        found += _find_tool_changes(f"agent {key!r}", _part(old, "tools"), _part(new, "tools"))
        if _part(old, "handoffs") != _part(new, "handoffs"):
            found.append(f"agent {key!r}: other handoffs")
    return tuple(found)


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return of.get(name) or {}


def _compare_keys(
    what: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> tuple[list[str], list[tuple[str, Any, Any]]]:
    """Return lines about the keys that only one of the two has, and the others with both of their values."""
    lines = [f"{what} {key!r} is gone" for key in old if key not in new]
    lines += [f"{what} {key!r} is new" for key in new if key not in old]
    return lines, [(key, old[key], new[key]) for key in old if key in new]


def _find_tool_changes(agent: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    found, both = _compare_keys(f"{agent}: tool", old, new)
    for key, before, now in both:
        if other := [part for part in ("schema", "policy") if before.get(part) != now.get(part)]:
            found.append(f"{agent}: tool {key!r} has another {' and '.join(other)}")
    return found
