"""Where the tools of a run's calls came from, as its log tells it."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from kit.agents import Run, script_agent

from agentloop import Agent, FunctionTool, RunConfig, RunContext, Runner, RunState, ToolOrigin, handoff, tool
from agentloop import records as r
from agentloop.agents._tool_origins import find_tool_origins
from agentloop.items import ToolCall
from agentloop.testing import call, respond, say
from agentloop.testing.replaying import replay
from agentloop.tracing import read_timeline

FUNCTION = ToolOrigin("function")


def one(name: str, **options: Any) -> FunctionTool:
    """Return a tool whose output is its own name."""

    @tool(name=name, **options)
    async def body() -> str:
        """Give the name."""
        return name

    return body


@attrs.define(eq=False)
class Source:
    """A source of tools; its last answer holds for all later turns."""

    name: str
    answers: Sequence[Sequence[FunctionTool]]
    asked: int = 0

    async def tools(self, ctx: RunContext[Any], agent: Agent[Any, Any]) -> Sequence[FunctionTool]:
        """Return the answer of this turn."""
        self.asked += 1
        return self.answers[min(self.asked, len(self.answers)) - 1]


def tell(records: Any) -> dict[str, str]:
    """Return the fact of the timeline's rows that names the source of their tool, by the ids of the calls."""
    rows = read_timeline(records, content=False).rows
    return {row.call_id: dict(row.facts)["tool of"] for row in rows if row.call_id and "tool of" in dict(row.facts)}


async def test_each_call_tells_where_its_tool_came_from(run_mode: Run) -> None:
    """A function, a source (in a namespace too, and in a nested run), an agent; the timeline names the sources."""
    expert = script_agent("expert", call("deep", call_id="n1"), say("42"))
    expert.toolsets = [Source("cellar", [[one("deep")]])]
    shelf = Source("shelf", [[one("far"), one("row", namespace="top")]])
    calls = [
        call("near", call_id="c1"),
        call("far", call_id="c2"),
        call("row", call_id="c3", namespace="top"),
        call("expert", {"input": "?"}, call_id="c4"),
    ]
    agent = script_agent("desk", calls, call("far", call_id="c5"), say("done"), toolsets=[shelf])
    agent.tools = [one("near"), expert.as_tool()]
    result = await run_mode(agent, "go")
    of_shelf = ToolOrigin("source", "shelf")
    origins = {"c1": FUNCTION, "c2": of_shelf, "c3": of_shelf, "c4": ToolOrigin("agent", "expert"), "c5": of_shelf}
    assert result.tool_origins == origins
    written = result.to_json()["tool_origins"]
    assert written["c1"] == {"kind": "function", "name": None}
    assert written["c4"] == {"kind": "agent", "name": "expert"}
    nested = [record for record in result.records if record.path]
    assert find_tool_origins(nested) == {"n1": ToolOrigin("source", "cellar")}
    assert tell(result.records) == {"c2": "shelf", "c3": "shelf", "n1": "cellar", "c5": "shelf"}


async def test_a_tool_that_a_source_no_longer_gives_isn_t_the_source_s(run_mode: Run) -> None:
    """Each turn has the answers of its own; another agent has none of the sources of the one before."""
    other = script_agent("other", call("far", call_id="c3"), say("done"), tools=[one("far")])
    shelf = Source("shelf", [[one("far")], [one("further")]])
    steps = [call("far", call_id="c1")], [call("near", call_id="c2"), call("transfer_to_other", call_id="h")]
    agent = script_agent("desk", *steps, tools=[one("near")], toolsets=[shelf], handoffs=[handoff(other)])
    result = await run_mode(agent, "go")
    assert result.tool_origins == {"c1": ToolOrigin("source", "shelf"), "c2": FUNCTION, "c3": FUNCTION}


@pytest.mark.parametrize("policy", ["tell_model", "warn"])
async def test_a_tool_of_the_agent_stays_its_own_where_a_source_has_the_name(run_mode: Run, policy: Any) -> None:
    """The source's tool is left out, so its calls aren't named after the source."""
    shelf = Source("shelf", [[one("near"), one("far")]])
    steps = [call("near", call_id="c1"), call("far", call_id="c2")], say("done")
    agent = script_agent("desk", *steps, tools=[one("near")], toolsets=[shelf])
    result = await run_mode(agent, "go", run_config=RunConfig(tool_name_collision_policy=policy))
    assert result.tool_origins == {"c1": FUNCTION, "c2": ToolOrigin("source", "shelf")}
    assert tell(result.records) == {"c2": "shelf"}


async def test_a_call_that_waits_tells_its_source_and_else_nothing(run_mode: Run) -> None:
    """The log can't tell an agent from a function before the call begins; a later run segment tells the rest."""
    shelf = Source("shelf", [[one("far", needs_approval=True)]])
    asks = ToolCall("c3", "roll", "{}", "casino", kind="approval")
    turn = respond(ToolCall("c1", "near"), ToolCall("c2", "far"), asks)
    agent = script_agent("desk", turn, say("done"), tools=[one("near", needs_approval=True)], toolsets=[shelf])
    result = await run_mode(agent, "go")
    assert result.status == "interrupted"
    waiting = {"c2": ToolOrigin("source", "shelf"), "c3": ToolOrigin("provider", "casino")}
    assert result.tool_origins == waiting
    state = RunState.from_json(agent, result.to_state().to_json())
    for request in state.interruptions:
        state.approve(request)
    assert (await run_mode(agent, state)).tool_origins == {**waiting, "c1": FUNCTION}
    assert tell(state.records) == {"c2": "shelf", "c3": "casino"}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_replay_tells_the_same_and_asks_no_source(backend: Any) -> None:
    """The names are the log's; a log of a version that didn't name the sources is replayed as it is."""
    shelf = Source("shelf", [[one("far")]])
    agent = script_agent("desk", call("far", call_id="c1"), say("done"), toolsets=[shelf])
    result = Runner.run_sync(agent, "go")
    old = [
        record.replace(answer=[{key: part for key, part in each.items() if key != "source"} for each in record.answer])
        if isinstance(record, r.CallbackReturned) and record.answer
        else record
        for record in result.records
    ]
    asked = shelf.asked
    for records, origin in ((result.records, ToolOrigin("source", "shelf")), (old, FUNCTION)):
        replayed = replay(records, agent, backend=backend)
        assert replayed.result is not None
        assert replayed.result.tool_origins == {"c1": origin}
    assert shelf.asked == asked
