"""Verdicts on calls of a run that is under way: while its questions are asked, and while siblings run."""

from typing import Any

import anyio
import pytest
from kit.agents import make_agent, make_free_tool, make_gated_tool
from kit.ending import Rendezvous
from kit.results import count_records, find_records, read_approval_requests, read_outputs, read_shown_outputs

from agentloop import Agent, Allow, Ask, RunConfig, Runner, StateError, ToolExecution, UserError, tool
from agentloop import events as ev
from agentloop import records as r
from agentloop.guardrails import tool_input_guardrail
from agentloop.items import Item
from agentloop.run._live_effects import LiveEffects
from agentloop.testing import ScriptedModel, call, say


class FixedTime(LiveEffects):
    """The live effects with one time for all records."""

    def wall(self) -> float:
        """Return the fixed time."""
        return 7.0


def deciding(stream: Any, verdict: str) -> None:
    """Decide on c1, by its id: no interruption of it has been shown."""
    if verdict == "approve":
        stream.approve("c1")
    else:
        stream.reject("c1", message="somebody said no")


@pytest.mark.scenario("AP-19")
@pytest.mark.parametrize("verdict", ["approve", "reject"])
@pytest.mark.parametrize("answer", [True, False])
async def test_a_verdict_given_while_needs_approval_is_asked_wins(verdict: str, answer: bool) -> None:
    """The verdict decides whether the call runs, for either answer of the callable, and no approval is requested."""
    ran: list[Any] = []
    asking, go = anyio.Event(), anyio.Event()

    async def needed(ctx: Any, arguments: Any, call_id: str) -> bool:
        asking.set()
        await go.wait()
        return answer

    agent = make_agent([make_gated_tool(ran, needs_approval=needed)], call("gated", {"n": 1}, "c1"))
    async with Runner.run_streamed(agent, "go") as stream, anyio.create_task_group() as group:

        async def decide() -> None:
            await asking.wait()
            deciding(stream, verdict)
            go.set()

        group.start_soon(decide)
        events = [event async for event in stream]
    assert events
    result = stream.result
    assert result.final_output == "done"
    assert read_approval_requests(result) == []
    assert ran == ([("gated", 1)] if verdict == "approve" else [])
    assert read_shown_outputs(agent) == {"c1": "gated 1" if verdict == "approve" else "somebody said no"}


@pytest.mark.scenario("AP-19")
@pytest.mark.parametrize("verdict", ["approve", "reject"])
@pytest.mark.parametrize("needs", [True, "callable"])
async def test_a_verdict_given_while_a_guardrail_judges_before_approval_wins(verdict: str, needs: Any) -> None:
    """The live verdict decides, and no approval is requested any more."""
    ran: list[Any] = []
    asked: list[str] = []
    asking, go = anyio.Event(), anyio.Event()

    @tool_input_guardrail
    async def judge(data: Any) -> Any:
        asking.set()
        await go.wait()
        return Allow()

    def needed(ctx: Any, arguments: Any, call_id: str) -> bool:
        asked.append(call_id)
        return True

    gate = make_gated_tool(ran, needs_approval=needed if needs == "callable" else True, tool_input_guardrails=[judge])
    agent = make_agent([gate], call("gated", {"n": 1}, "c1"))
    config = RunConfig(tool_execution=ToolExecution(pre_approval_tool_input_guardrails=True))
    async with Runner.run_streamed(agent, "go", run_config=config) as stream, anyio.create_task_group() as group:

        async def decide() -> None:
            await asking.wait()
            deciding(stream, verdict)
            go.set()

        group.start_soon(decide)
        events = [event async for event in stream]
    assert events
    result = stream.result
    assert result.final_output == "done"
    assert (read_approval_requests(result), asked) == ([], [])
    assert ran == ([("gated", 1)] if verdict == "approve" else [])


@pytest.mark.scenario("AP-19")
@pytest.mark.parametrize("verdict", ["approve", "reject"])
async def test_a_verdict_given_while_a_policy_is_asked_wins(verdict: str) -> None:
    """The live verdict wins over a policy's `Ask` in the entry after a pause that left the call undecided."""
    ran: list[Any] = []
    asking, go = anyio.Event(), anyio.Event()

    class Slow:
        async def decide(self, pending: Any) -> Any:
            if pending.call.name == "other":
                return Allow()
            asking.set()
            await go.wait()
            return Ask()

    agent = make_agent(
        [make_gated_tool(ran), make_gated_tool(ran, "other")], [call("gated", {"n": 1}, "c1"), call("other", {}, "c2")]
    )
    state = (await Runner.run(agent, "go")).to_state()
    state.approve("c2")
    config = RunConfig(policies=[Slow()])
    async with Runner.run_streamed(agent, state, run_config=config) as stream, anyio.create_task_group() as group:

        async def decide() -> None:
            await asking.wait()
            deciding(stream, verdict)
            go.set()

        group.start_soon(decide)
        await stream.finished()
    assert stream.result.final_output == "done"
    assert sorted(ran) == ([("gated", 1), ("other", 0)] if verdict == "approve" else [("other", 0)])


@pytest.mark.scenario("AP-19")
@pytest.mark.parametrize("when", ["at once", "after a sibling"])
async def test_a_verdict_on_a_call_that_waits_saves_the_pause_while_siblings_run(when: str) -> None:
    """The run continues with the call without a new entry, also where a later output has been shown by then."""
    ran: list[Any] = []
    both = Rendezvous(2)

    @tool
    async def slow() -> str:
        await both.wait()
        return "slow"

    agent = make_agent(
        [make_gated_tool(ran), make_free_tool(ran), slow],
        [call("gated", {"n": 1}, "c1"), call("free", {}, "c2"), call("slow", {}, "c3")],
    )
    created: list[Item] = []
    approved = False
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.ItemCreated):
                created.append(event.item)
            now = (
                "c2" in read_outputs(created) if when == "after a sibling" else isinstance(event, ev.ApprovalRequested)
            )
            if now and not approved:
                approved = True
                stream.approve("c1", by="ann")
                await both.wait()
    result = stream.result
    assert result.final_output == "done"
    assert sorted(ran) == [("free", 0), ("gated", 1)]
    assert list(read_shown_outputs(agent).items()) == [("c1", "gated 1"), ("c2", "free 0"), ("c3", "slow")]
    assert read_outputs(created) == {"c1": "gated 1", "c2": "free 0", "c3": "slow"}
    assert read_outputs(result.new_items) == read_outputs(created)
    assert count_records(result, r.RunEnded) == 1
    assert [record.by for record in result.records if isinstance(record, r.VerdictGiven)] == ["ann"]
    with pytest.raises(UserError):
        stream.approve("c1")


@pytest.mark.scenario("AP-19")
@pytest.mark.parametrize("verdict", ["approve", "reject"])
async def test_a_verdict_on_a_nested_call_saves_the_pause_while_outer_siblings_run(verdict: str) -> None:
    """The nested run has paused and the outer one hasn't, so the outer run resumes it after the verdict."""
    ran: list[Any] = []
    both = Rendezvous(2)

    @tool
    async def slow() -> str:
        await both.wait()
        return "slow"

    inner: Agent[Any, Any] = Agent(
        "inner", model=ScriptedModel([call("gated", {"n": 1}, "n1"), say("dug")]), tools=[make_gated_tool(ran)]
    )
    agent = make_agent([inner.as_tool("dig"), slow], [call("dig", {"input": "x"}, "c1"), call("slow", {}, "c2")])
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.RunEnded) and event.path == ("c1",) and event.status == "interrupted":
                [request] = stream.state.interruptions
                getattr(stream, verdict)(request)
                await both.wait()
    result = stream.result
    assert result.final_output == "done"
    assert ran == ([("gated", 1)] if verdict == "approve" else [])
    assert list(read_shown_outputs(agent).items()) == [("c1", "dug"), ("c2", "slow")]
    assert [one.status for one in find_records(result, r.RunEnded) if not one.path] == ["completed"]
    assert (count_records(result, r.CallStarted, "c1"), count_records(result, r.CallSettled, "c1")) == (1, 1)


async def test_a_live_verdict_on_a_call_that_does_not_wait_is_refused() -> None:
    """A verdict is refused for an unknown id, and for an ended call that never asked for approval."""
    ran: list[Any] = []
    agent = make_agent([make_free_tool(ran)], call("free", {}, "c1"))
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.CallSettled):
                for call_id in ("c1", "unknown"):
                    with pytest.raises(StateError, match=call_id):
                        stream.reject(call_id)
    assert stream.result.final_output == "done"
    assert ran == [("free", 0)]


async def test_a_live_verdict_has_the_time_of_the_run_s_effects() -> None:
    """As each record of the run has: an engine that does a run again must get the same record again."""
    decided = anyio.Event()

    @tool
    async def other() -> str:
        """Keep the run from pausing before the verdict."""
        await decided.wait()
        return "ok"

    agent = make_agent([make_gated_tool([]), other], [call("gated", {"n": 1}, "c1"), call("other", {}, "c2")])
    async with Runner.run_streamed(agent, "go", run_config=RunConfig(effects=FixedTime())) as stream:
        async for event in stream:
            if isinstance(event, ev.ApprovalRequested):
                stream.approve("c1")
                decided.set()
    assert count_records(stream.result, r.VerdictGiven, "c1") == 1
    assert {record.at for record in stream.result.records} == {7.0}
