"""A call that nobody answers ends its waiting all the same: by its time or cancelled, at any depth."""

from typing import Any

import anyio
import pytest
from kit.agents import Run, script_turns
from kit.results import find_records
from kit.resuming import copy_state

from agentloop import Agent, ExternalTool, Runner, RunState, StateError, tool
from agentloop import records as r
from agentloop.testing import call, say
from agentloop.testing.invariants import check
from agentloop.testing.invariants._observation import Observation

HOUR = 3600.0


class Nest:
    """Agents, each the tool of the one around it; the innermost calls `room`, which waits, the outermost one more."""

    def __init__(self, depth: int) -> None:
        self.go = anyio.Event()

        @tool(in_doubt="rerun")
        async def hold() -> str:
            """Hold."""
            await self.go.wait()
            return "held"

        @tool(needs_approval=True)
        async def pay() -> str:
            """Pay."""
            return "paid"

        self.path = tuple(f"a{level}" for level in range(depth, 0, -1))
        self.tools = [hold, pay]
        made: Any = ExternalTool("room", "Ask.", {}, timeout=HOUR)
        inner: Any = call("room", {}, "c1")
        for level in range(depth):
            agent: Agent[Any, Any] = Agent("inner", model=script_turns(inner, say("inner done")), tools=[made])
            made, inner = agent.as_tool(f"ask_{level}", "Ask."), call(f"ask_{level}", {"input": "?"}, f"a{level + 1}")
        self.tool, self.call = made, inner

    def agent(self, beside: str) -> Agent[Any, Any]:
        """Return the outermost agent, whose second call is of the tool *beside*."""
        calls = [self.call, call(beside, {}, "b1")]
        return Agent("outer", model=script_turns(calls, say("done")), tools=[self.tool, *self.tools])

    def places(self) -> list[tuple[tuple[str, ...], str]]:
        """Return path and id of the call that waits, and of each call around it."""
        calls = [*self.path, "c1"]
        return [(tuple(calls[:depth]), one) for depth, one in enumerate(calls)]


def move_back(record: r.Record) -> r.Record:
    """Return *record* as if it were an hour older."""
    if isinstance(record, r.AnswerRequested):
        assert record.expires_at is not None
        record = record.replace(expires_at=record.expires_at - HOUR)
    return record.replace(at=record.at - HOUR)


@pytest.mark.scenario("PE-04")
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("verdict", ["before", "after"])
async def test_a_call_whose_time_has_passed_ends_its_waiting(run_mode: Run, depth: int, verdict: str) -> None:
    """The model is told, and the run ends once the call beside it has its verdict, whichever comes first."""
    nest = Nest(depth)
    agent = nest.agent("pay")
    state = (await run_mode(agent, "go")).to_state()
    state = copy_state(RunState(agent, [move_back(record) for record in state.records]), agent)
    waiting = next(one for one in state.interruptions if one.call.call_id == "c1")
    with pytest.raises(StateError, match="its time, 3600 seconds, has passed"):
        state.answer(waiting, "late")
    if verdict == "before":
        state.approve("b1")
    result = await run_mode(agent, state)
    if verdict == "after":
        assert [one.call.call_id for one in result.interruptions] == ["b1"]
        state = result.to_state()
        state.approve("b1")
        result = await run_mode(agent, state)
    assert result.final_output == "done"
    [noted] = find_records(result, r.CallAnswered)
    assert (noted.path, noted.late) == (nest.path, True)
    check(Observation(records=tuple(result.records)))


async def cancel_waiting(nest: Nest, path: tuple[str, ...], call_id: str) -> Any:
    """Run until the call of *nest* waits and the runs around it have paused, cancel one of them, return the result."""
    cancelled = False
    async with Runner.run_streamed(nest.agent("hold"), "go") as stream:
        async for _ in stream:
            fold = stream.state._fold
            outer = fold.calls.get(nest.places()[0][1])
            if not cancelled and outer is not None and fold.waits(outer):
                assert stream.cancel_call(call_id, "enough", path=path)
                assert stream.cancel_call(call_id, "again", path=path)
                cancelled = True
                assert stream.state.interruptions == ()
                nest.go.set()
    assert cancelled
    return stream.result


@pytest.mark.scenario("PE-04")
@pytest.mark.parametrize(("depth", "place"), [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)])
async def test_a_call_that_is_cancelled_while_it_waits_ends_its_waiting(depth: int, place: int) -> None:
    """By its own id or with a call around it; the run doesn't pause, and after a crash at any later record it ends."""
    nest = Nest(depth)
    path, call_id = nest.places()[place]
    result = await cancel_waiting(nest, path, call_id)
    assert result.final_output == "done"
    check_cancelled(result.records, path, call_id)
    agent = nest.agent("hold")
    asked = next(n for n, one in enumerate(result.records) if isinstance(one, r.CancelRequested))
    settled = next(
        n for n, one in enumerate(result.records) if isinstance(one, r.CallSettled) and one.call_id == call_id
    )
    name = "it was cancelled" if (path, call_id) == (nest.path, "c1") else f"around it, '{call_id}', was cancelled"
    for until in range(asked + 1, len(result.records) - 1):
        state = RunState(agent, result.records[:until])
        assert state.interruptions == ()
        if until <= settled:
            with pytest.raises(StateError, match=name):
                state.answer("c1", "too late")
        ended = await Runner.run(agent, state)
        assert ended.final_output == "done"
        check_cancelled(ended.records, path, call_id)


def check_cancelled(records: Any, path: tuple[str, ...], call_id: str) -> None:
    """Check that the call has one outcome, cancelled by the caller with the words of the first request."""
    [one] = {
        (one.path, one.call_id, one.outcome.status, one.outcome.cancelled_by, one.outcome.reason)
        for one in records
        if isinstance(one, r.CallSettled) and one.outcome.status == "cancelled"
    }
    assert one == (path, call_id, "cancelled", "caller", "enough")
    check(Observation(records=tuple(records)))
