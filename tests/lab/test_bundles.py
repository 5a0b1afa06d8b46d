"""Agents with bundles in the lab: nothing is opened before a body asks, tools of a run are taken as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kit.agents import script_agent
from kit.results import read_requests

from agentloop import Agent, Bundle, RunConfig, Runner, ToolContext, lab, tool
from agentloop.bundles import Todo
from agentloop.testing import call, say

pytestmark = pytest.mark.real_clock


class Desk(Bundle):
    """Prices that are there while it is open."""

    def __init__(self, opened: list[str]) -> None:
        @tool(reads_only=True)
        async def price(ctx: ToolContext, item: str) -> int:
            """Look up a price."""
            return int((await self.opened(ctx))[item])

        super().__init__("desk", tools=[price], instructions="Ask the desk.")
        self.seen = opened

    async def open(self, ctx: Any) -> Any:
        """Return the block that has the prices."""
        return self._connect()

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[dict[str, int]]:
        self.seen.append("open")
        yield {"pen": 3}
        self.seen.append("left")


def make(where: str, opened: list[str]) -> tuple[Agent[Any, Any], RunConfig | None]:
    """Return an agent with a desk and a list, and the configuration, which may be the one that gives them."""
    steps = [call("price", {"item": "pen"}, "c1"), call("write_todos", {"todos": [{"text": "buy"}]}, "c2")]
    bundles = [Desk(opened), Todo()]
    agent = script_agent(
        "shop", *steps, *(say("3 euros.") for _ in range(5)), bundles=bundles if where == "agent" else []
    )
    return agent, RunConfig(bundles=bundles) if where == "run" else None


@pytest.mark.parametrize("where", ["agent", "run"])
async def test_a_run_with_bundles_is_compared_and_forked_without_opening_them(where: str) -> None:
    """The bundles are the agent's or the run's: what the log answers needs nothing open."""
    opened: list[str] = []
    agent, config = make(where, opened)
    result = await Runner.run(agent, "A pen?", run_config=config)
    assert opened == ["open", "left"]
    assert (await lab.compare(result, agent, run_config=config)).count("same") == 1
    forked = await lab.fork(result, agent, turn=3, branches=[lab.Branch(seed=1)], run_config=config)
    assert (forked.branches[0].answer, forked.branches[0].error) == ("3 euros.", None)
    assert str(read_requests(agent)[-1].system).endswith("- [ ] buy")
    assert opened == ["open", "left"]


@pytest.mark.parametrize("where", ["agent", "run"])
async def test_a_body_that_is_entered_has_what_its_bundle_opens(where: str) -> None:
    """It asks for it, so it is opened for this body, and left."""
    opened: list[str] = []
    agent, config = make(where, opened)
    result = await Runner.run(agent, "A pen?", run_config=config)
    entered = await lab.enter(result, agent, "c1", run_config=config)
    assert (entered.value, entered.error) == (3, None)
    assert opened == ["open", "left"] * 2


async def test_other_sources_beside_a_bundle_are_still_refused() -> None:
    """A server is asked only where that is allowed; the bundle isn't opened then either."""

    class Server:
        name = "server"
        asked = 0

        async def tools(self, ctx: Any, agent: Any) -> list[Any]:
            self.asked += 1
            return []

    opened: list[str] = []
    server = Server()
    for config in (None, RunConfig(toolsets=[server]), RunConfig(bundles=[Bundle("more", tools=[server])])):
        agent = script_agent("a", say("hi"), bundles=[Desk(opened)], toolsets=[] if config else [server])
        result = await Runner.run(agent, "hello", run_config=config)
        opened.clear()
        server.asked = 0
        (row,) = (await lab.compare(result, agent, run_config=config)).rows
        assert (row.verdict, "toolsets=True" in row.why[0], server.asked) == ("error", True, 0)
        assert (await lab.compare(result, agent, run_config=config, toolsets=True)).count("same") == 1
        assert (server.asked, opened) == (1, [])


async def test_other_instructions_of_a_branch_keep_those_of_the_bundles() -> None:
    """Of the agent that is at work at the fork, which may be another than the first, and of the run."""
    target = script_agent("b", say("done"), say("again"), instructions="Own.", bundles=[Bundle("y", instructions="Y.")])
    agent = script_agent("a", call("transfer_to_b"), handoffs=[target], bundles=[Bundle("x", instructions="X.")])
    config = RunConfig(bundles=[Bundle("z", instructions=lambda ctx, agent: f"Z of {agent.name}.")])
    result = await Runner.run(agent, "hello", run_config=config)
    forked = await lab.fork(result, agent, turn=2, branches=[lab.Branch(instructions="New.")], run_config=config)
    assert forked.branches[0].answer == "again"
    assert read_requests(target)[-1].system == "New.\n\n## y\n\nY.\n\n## z\n\nZ of b."
    assert target.instructions == "Own.\n\n## y\n\nY."
