"""The owner of a run: said when it begins, and kept by its log."""

import anyio.to_thread
import pytest
from kit.agents import Run, script_agent

from agentloop import Agent, RunConfig, Runner, RunState, tool
from agentloop.records import RunStarted
from agentloop.testing import ScriptedModel, call, replay, say


@pytest.mark.real_clock
async def test_the_log_says_whose_the_run_is(run_mode: Run) -> None:
    """From its first record on, also in stored text; nothing of a nested run; a replay asks for no owner."""

    @tool(needs_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    inner = script_agent("inner", say("looked"))
    steps = [call("ask", {"input": "x"}), call("pay"), say("Done.")]
    agent = Agent("a", model=ScriptedModel(steps), tools=[pay, inner.as_tool("ask", "Ask.")])
    state = (await run_mode(agent, "go", run_config=RunConfig(owner="ada"))).to_state()
    assert state.owner == RunState.from_string(agent, state.to_string()).owner == "ada"
    assert [record.owner for record in state.records if isinstance(record, RunStarted)] == ["ada", None]
    replayed = await anyio.to_thread.run_sync(lambda: replay(state.records, agent))
    assert list(replayed.records) == state.records
    state.approve(state.interruptions[0])
    later = await Runner.run(agent, state, run_config=RunConfig(owner="bob"))
    assert (later.final_output, later.to_state().owner) == ("Done.", "ada")


async def test_a_run_belongs_to_no_one_unless_it_is_said(run_mode: Run) -> None:
    """The stored record has nothing of it."""
    state = (await run_mode(script_agent("a", say("hi")), "go")).to_state()
    assert state.owner is None
    assert "owner" not in state.to_string()
