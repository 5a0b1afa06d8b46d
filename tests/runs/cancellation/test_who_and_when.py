"""An outcome names the call that ended another one, and tells when a cancellation reached a call."""

import asyncio
from typing import Any

import anyio
import pytest
from kit.agents import Run, call_each, make_agent, script_agent
from kit.ending import Rendezvous

from agentloop import Agent, RunConfig, Runner, ToolContext, ToolExecution, tool
from agentloop import records as r
from agentloop.run._live_effects import LiveEffects
from agentloop.testing import ScriptedModel, call, say
from agentloop.testing.simulation.normal_form import normal


class OneClock(LiveEffects):
    """The live effects with the loop's clock for the log's times, so that a virtual clock gives exact ones."""

    def wall(self) -> float:
        """Return the time of the loop."""
        return anyio.current_time()


def configure_exactly(**fields: Any) -> RunConfig:
    """Return a configuration of which the log has the loop's own times."""
    return RunConfig(effects=OneClock(), **fields)


class Records:
    """An instrument that keeps the records."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def on_record(self, record: Any) -> None:
        """Keep *record*."""
        self.records.append(record)

    @property
    def outcomes(self) -> dict[str, Any]:
        """The outcome of each call, by id."""
        return {one.call_id: one.outcome for one in self.records if isinstance(one, r.CallSettled)}


@tool
async def cleans_up(ctx: ToolContext[Any]) -> str:
    """Wait to be cancelled, then clean up for a second."""
    try:
        await anyio.sleep(60)
    finally:
        with ctx.cleanup():
            await anyio.sleep(1)
    return "never"


@tool(failure_error_function=None)
async def breaks() -> str:
    """Fail after two seconds."""
    await anyio.sleep(2)
    raise ValueError("broken")


@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_siblings_name_the_call_whose_failure_ended_them(run_mode: Run) -> None:
    """Those that run and those that wait; what came after the failure was cleanup."""
    kept = Records()
    agent = make_agent([breaks, cleans_up], call_each("cleans_up", "breaks", "cleans_up"))
    limits = ToolExecution(max_function_tool_concurrency=2)
    with pytest.raises(Exception, match="broken"):
        await run_mode(agent, "go", run_config=configure_exactly(tool_execution=limits, instruments=(kept,)))
    one, failed, waiting = (kept.outcomes[f"c{n}"] for n in (1, 2, 3))
    assert (one.cancelled_by, one.cancelled_by_call) == ("sibling", "c2")
    assert (waiting.cancelled_by, waiting.cancelled_by_call) == ("sibling", "c2")
    assert (failed.cancelled_by_call, failed.cancelled_at) == (None, None)
    assert one.cancelled_at - one.started_at == pytest.approx(2)
    assert one.ended_at - one.cancelled_at == pytest.approx(1)
    assert waiting.started_at is None
    assert waiting.cancelled_at == one.cancelled_at


@pytest.mark.slow
async def test_of_failures_in_one_pass_the_raised_one_is_named(run_mode: Run) -> None:
    """The first in model order, whichever came first."""
    kept, meeting = Records(), Rendezvous(2)

    @tool(failure_error_function=None)
    async def fails_together() -> str:
        await meeting.wait()
        raise ValueError("broken")

    agent = make_agent([fails_together, cleans_up], call_each("cleans_up", "fails_together", "fails_together"))
    with pytest.raises(Exception, match="broken"):
        await run_mode(agent, "go", run_config=RunConfig(instruments=(kept,)))
    assert kept.outcomes["c1"].cancelled_by_call == "c2"


@pytest.mark.parametrize("queued", [False, True])
async def test_a_call_that_another_cancels_names_it(run_mode: Run, queued: bool) -> None:
    """The record of the request does, too; running and queued calls alike."""
    kept, running = Records(), anyio.Event()

    @tool
    async def waits() -> str:
        running.set()
        await anyio.sleep(60)
        return "never"

    @tool
    async def stops(ctx: ToolContext[Any]) -> str:
        if not queued:
            await running.wait()
        return str(ctx.cancel_call("c2", "not needed"))

    agent = make_agent([waits, stops], call_each("stops", "waits"))
    limits = ToolExecution(max_function_tool_concurrency=1 if queued else None)
    await run_mode(agent, "go", run_config=RunConfig(instruments=(kept,), tool_execution=limits))
    outcome = kept.outcomes["c2"]
    assert (outcome.cancelled_by, outcome.cancelled_by_call, outcome.reason) == ("caller", "c1", "not needed")
    assert outcome.cancelled_at <= outcome.ended_at
    [request] = [one for one in kept.records if isinstance(one, r.CancelRequested)]
    assert (request.call_id, request.by_call) == ("c2", "c1")
    [settled] = [one for one in normal(kept.records) if one["kind"] == "CallSettled" and one["call_id"] == "c2"]
    assert settled["outcome"]["cancelled_by_call"] == "c1"
    assert "cancelled_at" not in settled["outcome"]


async def test_a_call_that_is_cancelled_before_its_turn_is_queued_names_the_caller_too() -> None:
    """Its response has come, and no call of it has started."""
    kept = Records()

    async def asks(ctx: Any, arguments: Any, call_id: str) -> bool:
        assert stream.cancel_call("c1") is True
        return False

    @tool(needs_approval=asks)
    async def waits() -> str:
        return "never"

    agent = Agent("a", tools=[waits], model=ScriptedModel([call("waits", call_id="c1"), say("done")]))
    async with Runner.run_streamed(agent, "go", run_config=RunConfig(instruments=(kept,))) as stream:
        async for _ in stream:
            pass
    assert kept.outcomes["c1"].cancelled_by == "caller"
    assert kept.outcomes["c1"].cancelled_by_call is None


@pytest.mark.backends("trio-virtual", "asyncio-virtual")
async def test_a_timeout_reaches_a_call_when_its_time_is_over(run_mode: Run) -> None:
    """The rest of the call is cleanup."""
    kept = Records()
    limited = tool(cleans_up.body.fn, name="cleans_up", timeout=3)  # type: ignore[union-attr]  # it has a Python body
    agent = make_agent([limited], call_each("cleans_up"))
    await run_mode(agent, "go", run_config=configure_exactly(instruments=(kept,)))
    outcome = kept.outcomes["c1"]
    assert (outcome.status, outcome.cancelled_by_call) == ("timed_out", None)
    assert outcome.cancelled_at - outcome.started_at == pytest.approx(3)
    assert outcome.ended_at - outcome.cancelled_at == pytest.approx(1)


@pytest.mark.backends("trio-virtual", "asyncio-virtual")
@pytest.mark.parametrize("by", ["parent", "deadline"])
async def test_the_end_of_the_run_reaches_its_calls_at_once(run_mode: Run, by: str) -> None:
    """Also those of a nested run, and those whose bodies finish in spite of it."""
    kept = Records()

    @tool
    async def finishes() -> str:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(4)
        return "done"

    inner = script_agent("inner", call_each("cleans_up"), tools=[cleans_up])
    turn = [call("finishes", {}, "c1"), call("inner", {"input": "x"}, "c2")]
    agent = make_agent([finishes, inner.as_tool()], turn)
    config = configure_exactly(instruments=(kept,), timeout=3 if by == "deadline" else None)
    with pytest.raises(TimeoutError) if by == "parent" else pytest.raises(Exception, match="3 seconds"):
        with anyio.fail_after(3 if by == "parent" else None):
            await run_mode(agent, "go", run_config=config)
    begun = kept.records[0].at
    settled = [one for one in kept.records if isinstance(one, r.CallSettled)]
    found = {one.call_id: (one.outcome.status, one.outcome.cancelled_by) for one in settled if not one.path}
    assert found == {"c1": ("succeeded", None), "c2": ("cancelled", by)}
    assert [one.outcome.cancelled_at - begun for one in settled] == [pytest.approx(3)] * 3
    assert {one.path: round(one.outcome.ended_at - begun, 3) for one in settled} == {("c2",): 4, (): 4}


async def test_a_body_that_cancels_itself_has_no_time_of_a_cancellation(run_mode: Run) -> None:
    """Nothing reached it from outside."""
    kept = Records()

    @tool
    async def gives_up() -> str:
        raise asyncio.CancelledError("enough")

    agent = make_agent([gives_up], call_each("gives_up"))
    await run_mode(agent, "go", run_config=RunConfig(instruments=(kept,)))
    outcome = kept.outcomes["c1"]
    assert (outcome.cancelled_by, outcome.cancelled_by_call, outcome.cancelled_at) == ("tool", None, None)
