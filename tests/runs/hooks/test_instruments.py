"""Instruments: they see every record, in order, and can't harm a run."""

from typing import Any

import pytest
from kit.agents import Run, fine, make_agent
from kit.results import read_requests
from kit.watching import ToolHookLog, Watch

from agentloop import Agent, RunConfig, RunHooks, Runner, ToolCallError, tool
from agentloop import records as r
from agentloop.abc import Instrument
from agentloop.exceptions import ModelTransportError
from agentloop.testing import ScriptedModel, call, fail, say


class Broken(Instrument):
    """An instrument that raises at every record, and counts them."""

    def __init__(self) -> None:
        self.asked = 0

    def on_record(self, record: r.Record) -> None:
        """Fail."""
        self.asked += 1
        raise RuntimeError("instrument is broken")


@pytest.mark.scenario("LX-62")
async def test_raising_instrument_is_logged_once_and_changes_nothing(
    run_mode: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """The run continues, the other instruments receive all records, and one warning names the broken instrument."""
    broken, watch = Broken(), Watch()
    agent = make_agent([fine], call("fine"), call("fine"))
    result = await run_mode(agent, "go", run_config=RunConfig(instruments=(broken, watch)))
    assert result.final_output == "done"
    assert watch.records == list(result.records)
    assert broken.asked == len(watch.records)
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "Broken" in warnings[0].getMessage()
    assert "on_record" in warnings[0].getMessage()
    assert warnings[0].exc_info is not None


@pytest.mark.scenario("LX-62")
async def test_each_broken_instrument_gets_one_warning_a_run(run_mode: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Two instruments in two runs get four warnings."""
    instruments = (Broken(), Broken())
    for _ in range(2):
        await run_mode(make_agent([fine], call("fine")), "go", run_config=RunConfig(instruments=instruments))
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 4


@pytest.mark.scenario("LX-62", "HS-07")
async def test_raising_hook_fails_the_run(run_mode: Run) -> None:
    """Hooks are the application's part of the run; what happened before is kept."""

    class Hooks(RunHooks):
        async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
            raise RuntimeError("hook is broken")

    watch = Watch()
    agent = make_agent([fine], call("fine", call_id="c1"))
    with pytest.raises(ToolCallError, match="hook is broken") as raised:
        await run_mode(agent, "go", hooks=Hooks(), run_config=RunConfig(instruments=(watch,)))
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert len(read_requests(agent)) == 1
    assert "c1" in watch.endings()
    assert watch.end == "failed"


async def test_failing_instrument_never_replaces_the_runs_own_error(run_mode: Run) -> None:
    """The run fails with its own error, as without instruments."""
    agent = make_agent([], fail(ModelTransportError("gone", status=400)))  # which isn't asked again
    with pytest.raises(ModelTransportError, match="gone"):
        await run_mode(agent, "go", run_config=RunConfig(instruments=(Broken(),)))


async def test_instrument_sees_a_record_when_it_is_a_fact(run_mode: Run) -> None:
    """The instrument is called in the step that appends the record, before anything that follows from it."""
    lines: list[str] = []

    class Noting(Instrument):
        def on_record(self, record: r.Record) -> None:
            lines.append(type(record).__name__)

    @tool
    async def body() -> str:
        lines.append("body")
        return "ok"

    await run_mode(make_agent([body], call("body")), "go", run_config=RunConfig(instruments=(Noting(),)))
    assert lines == [
        "RunStarted",
        "TurnStarted",
        "ModelRequested",
        "ModelResponded",
        "CallStarted",
        "body",
        "CallSettled",
        "BatchEnded",
        "TurnStarted",
        "ModelRequested",
        "ModelResponded",
        "RunEnded",
    ]


async def test_instrument_sees_the_whole_tree_and_each_run_ends_once(run_mode: Run) -> None:
    """Records of nested runs come too, under their path; the last record is the run's own end."""
    watch, hooks = Watch(), ToolHookLog()
    inner = Agent("inner", model=ScriptedModel([call("fine"), say("dug")]), tools=[fine])
    agent = make_agent([inner.as_tool()], call("inner", {"input": "x"}, call_id="c1"))
    result = await run_mode(agent, "go", hooks=hooks, run_config=RunConfig(instruments=(watch,)))
    assert watch.records == list(result.records)
    assert [(record.path, record.status) for record in watch.of(r.RunEnded)] == [
        (("c1",), "completed"),
        ((), "completed"),
    ]
    assert watch.records[-1].path == ()


async def test_consumer_sees_no_event_before_the_instruments_know() -> None:
    """An event never reaches the consumer before its record reaches the instruments."""
    watch = Watch()
    agent = make_agent([fine], call("fine"))
    async with Runner.run_streamed(agent, "go", run_config=RunConfig(instruments=(watch,))) as stream:
        async for event in stream:
            if type(event).__name__ in ("CallStarted", "CallSettled", "TurnStarted", "RunEnded"):
                assert any(type(record).__name__ == type(event).__name__ for record in watch.records)
