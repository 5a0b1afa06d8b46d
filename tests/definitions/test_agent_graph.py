"""The keys of a run's agents: they mean the same agent in another process, and stay when agents join."""

import pytest

from agentloop import Agent
from agentloop.agents._graph import AgentGraph, changes
from agentloop.exceptions import StateError


def test_an_agent_that_joins_later_gets_a_key_and_the_others_keep_theirs() -> None:
    """A tool or a handoff may be added while the run is under way."""
    first, second = Agent("first"), Agent("second")
    graph = AgentGraph(first)
    assert graph.key(first) == "first"
    first.handoffs = [second]
    assert graph.key(second) == "second"
    assert graph.key(first) == "first"
    assert graph.get("second") is second


def test_agents_of_one_name_have_keys_that_tell_them_apart() -> None:
    """The key of each holds a digest of its own parts; equal ones are numbered."""
    alike = [Agent("twin", instructions="a"), Agent("twin", instructions="b"), Agent("twin", instructions="b")]
    graph = AgentGraph(Agent("root", handoffs=alike))
    keys = [graph.key(agent) for agent in alike]
    assert len(set(keys)) == 3
    assert all(key.startswith("twin#") for key in keys)
    assert [graph.get(key) for key in keys] == alike
    assert keys[2] == f"{keys[1]}~2"


def test_a_bare_name_finds_no_agent_where_several_have_it() -> None:
    """A key that was stored when one agent had the name says no longer which is meant."""
    graph = AgentGraph(Agent("root", handoffs=[Agent("twin", instructions="a"), Agent("twin", instructions="b")]))
    assert graph.find("twin") is None
    with pytest.raises(StateError, match=r"agent 'twin' isn't in the graph of agent 'root'"):
        graph.get("twin")


def test_a_key_with_a_digest_finds_the_agent_that_is_alone_with_its_name() -> None:
    """The key was stored when two agents had the name; the digest still says which one is left."""
    kept = Agent("twin", instructions="a")
    both = AgentGraph(Agent("root", handoffs=[kept, Agent("twin", instructions="b")]))
    key = both.key(kept)
    assert AgentGraph(Agent("root", handoffs=[Agent("twin", instructions="a")])).find(key) is not None
    assert AgentGraph(Agent("root", handoffs=[Agent("twin", instructions="c")])).find(key) is None


def test_agents_added_one_after_the_other_keep_their_keys() -> None:
    """Each agent that comes later gets a key of its own, and those given before stay."""
    root = Agent("root")
    graph = AgentGraph(root)
    assert graph.key(root) == "root"
    later = [Agent("later"), Agent("later", instructions="b")]
    keys = [graph.key(agent) for agent in later]
    assert len({*keys, graph.key(root)}) == 3
    assert [graph.key(agent) for agent in (root, *later)] == ["root", *keys]
    assert [graph.find(key) for key in keys] == later


def test_other_handoffs_are_a_change_of_their_agent() -> None:
    """An agent that is gone or new, another first agent, and handoffs of one that stays are named."""
    before = AgentGraph(Agent("a", handoffs=[Agent("b")])).describe()
    after = AgentGraph(Agent("a", handoffs=[Agent("c")])).describe()
    assert changes(before, before) == ()
    assert set(changes(before, after)) == {"agent 'b' is gone", "agent 'c' is new", "agent 'a': other handoffs"}
    assert "first agent: 'a', now 'z'" in changes(before, AgentGraph(Agent("z")).describe())
