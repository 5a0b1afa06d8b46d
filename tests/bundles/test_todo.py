"""`Todo`: a list in the log of the run, which every turn shows."""

import json
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.agents import Run, script_agent
from kit.results import read_outputs, read_requests

from agentloop import Agent, ContextPolicy, DropOldest, RunContext, Runner, RunState, tool
from agentloop.bundles import Todo
from agentloop.testing import call, say

pytestmark = pytest.mark.scenario("TD-01")
FIRST = {"todos": [{"text": "read\nall", "status": "doing"}, {"text": "write"}]}
SECOND = {"todos": [{"text": "read all", "status": "done"}, {"text": "write", "status": "doing"}]}


def lists_in(agent: Agent[Any, Any]) -> list[str]:
    """Return the list as each request showed it."""
    systems = [request.system or "" for request in read_requests(agent)]
    return [system.partition("The list now:\n")[2] for system in systems]


async def test_each_turn_shows_the_list_as_it_is(run_mode: Run) -> None:
    """A call replaces all of it; one that fails changes nothing; some models write JSON in strings."""
    texts = {"todos": '[{"text": "one", "status": "open"}]'}
    wrong = {"todos": [{"text": "x", "status": "never"}]}
    long = {"todos": [{"text": "x" * 501}]}
    steps = [call("write_todos", given) for given in (FIRST, wrong, long, SECOND, texts, {"todos": []})]
    agent = script_agent("a", *steps, say("done"), bundles=[Todo()])
    result = await run_mode(agent, "go")
    outputs = list(read_outputs(result.new_items).values())
    assert (outputs[0], outputs[3]) == ("0 of 2 done.", "1 of 2 done.")
    assert "at most 100 items of at most 500 characters" in str(outputs[2])
    first, second = "- [>] read all\n- [ ] write", "- [x] read all\n- [>] write"
    assert lists_in(agent) == ["", first, first, first, second, "- [ ] one", ""]


async def test_the_list_survives_compaction_and_resume() -> None:
    """The calls that wrote it are dropped from the history, and the run is stored, read and resumed."""

    @tool(needs_approval=True)
    async def look() -> str:
        """Look."""
        return "x" * 2000

    policy = ContextPolicy(window=1600, start_at=0.6, target=0.5, steps=[DropOldest(keep_turns=1)])
    steps = [call("write_todos", SECOND), call("look"), call("look"), say("done")]
    agent = script_agent("a", *steps, tools=[look], bundles=[Todo()], context=policy)
    result = await Runner.run(agent, "go")
    for _ in range(2):
        state = RunState.from_json(agent, result.to_state().to_json())
        state.approve(state.interruptions[0])
        result = await Runner.run(agent, state)
    assert result.final_output == "done"
    last = read_requests(agent)[-1]
    assert not any(getattr(item, "name", None) == "write_todos" for item in last.items)
    assert lists_in(agent)[1:] == ["- [x] read all\n- [>] write"] * 3


async def test_each_run_has_its_own_list() -> None:
    """A second run of the agent begins without one."""
    todo = Todo()
    for expected in (["", "- [>] read all\n- [ ] write"], ["", "- [>] read all\n- [ ] write"]):
        agent = script_agent("a", call("write_todos", FIRST), say("done"), bundles=[todo])
        await Runner.run(agent, "go")
        assert lists_in(agent) == expected


async def test_outside_of_a_run_the_list_is_empty() -> None:
    """For an application that shows what its agent is told."""
    (bundle,) = Agent("a", bundles=[Todo()]).bundles
    assert callable(bundle.instructions)
    assert "The list now" not in bundle.instructions(RunContext(context=None), None)


TEXTS = st.sampled_from(["a", "", "open", "done", "doing", "\ud800", "[]", "null", '{"text": "b"}', "text", "status"])
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 1) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
ITEM = st.fixed_dictionaries({}, optional={"text": TEXTS | ANY, "status": TEXTS | ANY})
LIKELY = st.lists(ITEM | ITEM.map(json.dumps) | ANY, max_size=3)
ARGUMENTS = st.fixed_dictionaries({"todos": LIKELY | LIKELY.map(json.dumps) | ANY}, optional={"more": ANY}) | ANY


@pytest.mark.slow
@pytest.mark.hypothesis
@settings(deadline=None, max_examples=80)
@given(sent=ARGUMENTS | ARGUMENTS.map(json.dumps), backend=st.sampled_from(["asyncio", "trio"]))
@example(sent={"todos": [{"text": "a", "status": None}]}, backend="asyncio")
@example(sent={"todos": [{"text": "a", "status": None}]}, backend="trio")
@example(sent={"todos": []}, backend="trio")
def test_any_arguments_are_a_list_or_an_output(sent: Any, backend: str) -> None:
    """The run goes on, and what the call has accepted is shown as the tool understood it."""

    async def main() -> None:
        steps = [call("write_todos", FIRST), call("write_todos", json.dumps(sent)), say("done")]
        agent = script_agent("a", *steps, bundles=[Todo()])
        result = await Runner.run(agent, "go")
        output = str(list(read_outputs(result.new_items).values())[-1])
        assert result.final_output == "done"
        _, before, after = lists_in(agent)
        if output.startswith("Tool write_todos failed with: "):
            assert after == before
        else:
            done, count = output.removesuffix(" done.").split(" of ")
            marks = [line[:5] for line in after.splitlines()]
            assert (len(marks), marks.count("- [x]")) == (int(count), int(done))

    anyio.run(main, backend=backend)
