"""A call that is cancelled while it waits for its verdict never runs: in this process, after a pause, after a crash."""

from typing import Any

import anyio
import pytest
from kit.agents import make_agent, make_free_tool, make_gated_tool
from kit.resuming import copy_state

from agentloop import Agent, Runner, RunState, ToolContext, tool
from agentloop import events as ev
from agentloop import records as r
from agentloop.exceptions import StateError, UserTypeError
from agentloop.journal import MemoryJournal
from agentloop.model_events import ModelRequest
from agentloop.testing import FunctionModel, call, say
from agentloop.testing.invariants import check
from agentloop.testing.invariants._observation import Observation

WAYS = ["in the same run", "from the state", "from its text", "from the journal", "after a crash"]
GATED = call("gated", {"n": 1}, "c1")


@tool
async def cancels(ctx: ToolContext[Any]) -> str:
    """Cancel the call that waits."""
    return str(ctx.cancel_call("c1", "enough"))


def make(ran: list[Any], by: str) -> Agent[Any, Any]:
    """Return an agent whose call c1 waits for a verdict while another one runs, which cancels it if *by* says so."""
    other = cancels if by == "context" else make_free_tool(ran)
    return make_agent([make_gated_tool(ran), other], [GATED, call(other.name, {}, "c2")])


async def cancel_it(agent: Agent[Any, Any], by: str, journal: MemoryJournal, *, approve: bool = False) -> Any:
    """Run until c1 waits, cancel it, and return the result."""
    async with Runner.run_streamed(agent, "go", journal=journal) as stream:
        async for event in stream:
            if isinstance(event, ev.ApprovalRequested) and by == "stream":
                assert stream.cancel_call("c1", "enough") is True
                assert stream.cancel_call("c1", "again") is True
            if isinstance(event, ev.ApprovalRequested) and approve:
                stream.approve("c1")
    return stream.result


@pytest.mark.scenario("SM-03")
@pytest.mark.parametrize("by", ["stream", "context"])
@pytest.mark.parametrize("verdict", ["approve", "reject", "edit"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_was_cancelled_while_it_waited_never_runs(by: str, verdict: str, way: str) -> None:
    """Whatever the verdict, it settles as cancelled with the caller's words, or as rejected; nothing of it starts."""
    ran: list[Any] = []
    agent, journal = make(ran, by), MemoryJournal()
    result = await cancel_it(agent, by, journal, approve=way == "in the same run" and verdict == "approve")
    while result.status == "interrupted":
        state = result.to_state()
        if way == "from its text":
            state = copy_state(state)
        elif way in ("from the journal", "after a crash"):
            if way == "after a crash":
                lines = [line for line in await journal.read() if b'"run_ended"' not in line]
                journal = MemoryJournal()
                await journal.append(lines)
            state = await RunState.from_journal(agent, journal)
        for request in state.interruptions:
            match verdict:
                case "approve":
                    state.approve(request)
                case "edit":
                    state.approve(request, arguments={"n": 9})
                case _:
                    state.reject(request, message="no")
        result = await Runner.run(agent, state, journal=journal)
    assert result.final_output == "done"
    assert [one for one in ran if one[0] == "gated"] == []
    records = result.to_state().records
    [settled] = [one for one in records if isinstance(one, r.CallSettled) and one.call_id == "c1"]
    assert settled.outcome.started_at is None
    assert (settled.outcome.status, settled.outcome.cancelled_by) == ("cancelled", "caller")
    assert settled.outcome.reason == "enough"
    [asked] = [one for one in records if isinstance(one, r.CancelRequested)]
    assert (asked.call_id, asked.reason) == ("c1", "enough")
    if way != "after a crash":
        check(Observation(records=tuple(records)))


class Nested:
    """An agent whose agent tool has a call that waits, beside a call of its own."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        inner: Agent[Any, Any] = Agent("inner", model=FunctionModel(self._inner), tools=[make_gated_tool(self.ran)])
        self.paused, self.go = anyio.Event(), anyio.Event()

        @tool
        async def holds() -> str:
            """Hold."""
            await self.go.wait()
            return "held"

        self.agent: Agent[Any, Any] = Agent(
            "outer", model=FunctionModel(self._outer), tools=[holds, inner.as_tool("dig")]
        )

    def _outer(self, request: ModelRequest) -> Any:
        return say("done") if request.turn > 1 else [call("dig", {"input": "go"}, "h"), call("holds", {}, "c2")]

    def _inner(self, request: ModelRequest) -> Any:
        return say("dug") if request.turn > 1 else GATED


PLACES: dict[str, tuple[tuple[str, ...], str]] = {"the call": (("h",), "c1"), "the call around it": ((), "h")}


@pytest.mark.scenario("SM-03")
@pytest.mark.parametrize("what", ["the call", "the call around it"])
@pytest.mark.parametrize("way", ["from the state", "from its text"])
async def test_a_waiting_call_of_a_nested_run_is_cancelled_too(what: str, way: str) -> None:
    """By its own path, or with the call of the agent tool: its run has paused, and the outer one goes on meanwhile."""
    case = Nested()
    cancelled = False
    async with Runner.run_streamed(case.agent, "go") as stream:
        async for _ in stream:
            inner = stream.state._fold.nested.get("h")
            if not cancelled and inner is not None and inner.paused:
                path, call_id = PLACES[what]
                cancelled = stream.cancel_call(call_id, path=path)
                assert cancelled
                case.go.set()
    result = stream.result
    assert cancelled
    while result.status == "interrupted":
        state = result.to_state() if way == "from the state" else copy_state(result.to_state())
        for request in state.interruptions:
            state.approve(request)
        result = await Runner.run(case.agent, state)
    assert result.final_output == "done"
    assert case.ran == []
    check(Observation(records=tuple(result.to_state().records)))


@pytest.mark.scenario("SM-01")
async def test_a_reason_that_is_no_text_is_refused() -> None:
    """It would be written, and never read again. Nothing is cancelled."""
    ran: list[Any] = []
    agent = make(ran, "stream")
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.ApprovalRequested):
                with pytest.raises(UserTypeError, match="reason: expected text"):
                    stream.cancel_call("c1", 5)  # type: ignore[arg-type]
    assert stream.result.status == "interrupted"


async def test_the_reason_of_a_call_with_secrets_is_not_stored() -> None:
    """It may repeat them."""

    @tool(needs_approval=True, secret=("password",))
    async def opens(password: str) -> str:
        """Open."""
        return "open"

    calls = [call("opens", {"password": "hunter2"}, "c1"), call("free", {}, "c2")]
    agent = make_agent([opens, make_free_tool([])], calls)
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.ApprovalRequested):
                assert stream.cancel_call("c1", "not with hunter2")
    assert "hunter2" not in stream.result.to_state().to_string()


async def test_a_paused_run_says_that_its_calls_are_rejected_instead() -> None:
    """Nothing of it runs any more, so `False` ("it has ended or is unknown") would be untrue of a call that waits."""
    ran: list[Any] = []
    inner = make_agent([make_gated_tool(ran)], [GATED])
    outer = make_agent(
        [make_agent([make_gated_tool(ran)], [GATED]).as_tool(tool_name="ask")], [call("ask", {"input": "x"}, "c0")]
    )
    for agent, path in ((inner, ()), (outer, ("c0",))):
        async with Runner.run_streamed(agent, "go") as stream:
            async for _ in stream:
                pass
        assert stream.result.status == "interrupted"
        with pytest.raises(StateError, match=r"'c1' waits for a verdict, and the run has paused.*reject the call"):
            stream.cancel_call("c1", "enough", path=path)
        assert stream.cancel_call("c9") is False
        state = stream.result.to_state()
        state.reject("c1", message="enough")
        assert state.interruptions == ()
        with pytest.raises(AttributeError, match=r"use to_state\(\)\.reject"):
            stream.result.cancel_call("c1")  # type: ignore[attr-defined]
    assert ran == []
