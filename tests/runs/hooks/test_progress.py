"""Progress of running calls: between a call's start and its end, in order, and never at the run's cost."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.agents import Run, call_each, make_agent

from agentloop import Agent, RunConfig, Runner, ToolContext, UserError, tool
from agentloop import events as ev
from agentloop import records as r
from agentloop._core.run_fold import RunFold
from agentloop._engine.runtime.event_buffer import EventBuffer
from agentloop.items import ToolCall
from agentloop.testing import ScriptedModel, call, say


def call_events(events: list[Any], call_id: str) -> list[Any]:
    """Return start, progress and end of one call, in order."""
    kinds = (ev.CallStarted, ev.CallProgress, ev.CallSettled)
    return [event for event in events if isinstance(event, kinds) and event.call.call_id == call_id]


def check_sequence(events: list[Any], wanted: list[tuple[float, float | None, str | None]]) -> None:
    """Check that *events* are one call's: start, the wanted progress in order, end."""
    assert isinstance(events[0], ev.CallStarted)
    assert isinstance(events[-1], ev.CallSettled)
    assert [(event.progress, event.total, event.message) for event in events[1:-1]] == wanted


@tool
async def steps(ctx: ToolContext[Any]) -> str:
    """Report three times."""
    for step in range(3):
        await ctx.report(step, 3, f"{ctx.tool_call_id} at {step}")
    return "done"


@tool
async def steps_nowait(ctx: ToolContext[Any]) -> str:
    """Report three times without a checkpoint."""
    for step in range(3):
        ctx.report_nowait(step)
    return "done"


@tool
def steps_in_a_thread(ctx: ToolContext[Any]) -> str:
    """Report three times from a worker thread."""
    for step in range(3):
        ctx.report_nowait(step, total=3)
    return "done"


@pytest.mark.scenario("LX-84")
async def test_progress_of_async_bodies_stands_between_start_and_end_in_order() -> None:
    """Each of two calls at once has its own sequence of reports."""
    agent = make_agent([steps, steps_nowait], call_each("steps", "steps_nowait"))
    async with Runner.run_streamed(agent, "go") as stream:
        events = [event async for event in stream]
    check_sequence(call_events(events, "c1"), [(step, 3, f"c1 at {step}") for step in range(3)])
    check_sequence(call_events(events, "c2"), [(step, None, None) for step in range(3)])


@pytest.mark.real_clock
@pytest.mark.scenario("LX-84")
async def test_progress_of_sync_bodies_stands_between_start_and_end_in_order() -> None:
    """`report_nowait` works from the body's thread."""
    agent = make_agent([steps_in_a_thread], call_each("steps_in_a_thread", "steps_in_a_thread"))
    async with Runner.run_streamed(agent, "go") as stream:
        events = [event async for event in stream]
    for call_id in ("c1", "c2"):
        check_sequence(call_events(events, call_id), [(step, 3, None) for step in range(3)])


@pytest.mark.scenario("LX-84")
async def test_progress_is_delivered_while_the_body_runs() -> None:
    """The consumer sees a report before the body ends: the body waits for that."""
    seen = anyio.Event()

    @tool
    async def waits(ctx: ToolContext[Any]) -> str:
        await ctx.report(0.5)
        await seen.wait()
        return "done"

    agent = make_agent([waits], call_each("waits"))
    with anyio.fail_after(60):
        async with Runner.run_streamed(agent, "go") as stream:
            async for event in stream:
                if isinstance(event, ev.CallProgress):
                    assert (event.progress, event.path, event.turn) == (0.5, (), 1)
                    seen.set()
    assert stream.result.final_output == "done"


async def test_reports_of_a_plain_run_cost_nothing_and_do_no_harm(run_mode: Run) -> None:
    """A body may report without a listener; a report is no record."""
    agent = make_agent([steps], call_each("steps"))
    result = await run_mode(agent, "go")
    assert result.calls[0].outcome.value == "done"
    assert not any("Progress" in type(record).__name__ for record in result.records)


async def test_report_is_a_checkpoint(run_mode: Run) -> None:
    """A body that only reports can be cancelled."""

    @tool
    async def chats(ctx: ToolContext[Any]) -> str:
        scope.cancel()
        for _ in range(100):
            await ctx.report(0)
        return "never"

    agent = make_agent([chats], call_each("chats"))
    with anyio.CancelScope() as scope:
        await run_mode(agent, "go")
    assert scope.cancelled_caught


async def test_progress_is_coalesced_while_the_consumer_is_behind() -> None:
    """A body that reports 10,000 times is not slowed down, and doesn't fill the memory; the last report is kept."""
    done = anyio.Event()

    @tool
    async def chats(ctx: ToolContext[Any]) -> str:
        for step in range(10_000):
            ctx.report_nowait(step)
        done.set()
        return "done"

    agent = make_agent([chats], call_each("chats"))
    async with Runner.run_streamed(agent, "go", run_config=RunConfig(stream_buffer=16)) as stream:
        events = []
        async for event in stream:
            events.append(event)
            if isinstance(event, ev.ItemCreated) and not done.is_set():
                await done.wait()  # the consumer falls behind until the body has ended
    reports = [event.progress for event in events if isinstance(event, ev.CallProgress)]
    assert reports == sorted(set(reports))
    assert reports[-1] == 9_999
    assert len(reports) <= 17


@pytest.mark.scenario("RP-10")
@pytest.mark.slow
@settings(max_examples=25)
@given(
    buffer=st.integers(1, 20),
    turns=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=2, max_size=7),
    pauses=st.lists(st.integers(0, 6), min_size=1, max_size=12),
)
async def test_no_report_replaces_or_precedes_another_calls(
    buffer: int, turns: list[list[int]], pauses: list[int]
) -> None:
    """Reports keep their calls at any pace and buffer size, over turns, with calls at once, in nested runs too.

    Each call's reports are between its start and its end, rise, and end with the last one.
    """

    @tool
    async def reports(ctx: ToolContext[Any], times: int) -> str:
        for step in range(times):
            await ctx.report(step, times, f"{ctx.tool_call_id} at {step}")
        return "done"

    def model() -> ScriptedModel:
        steps = [
            [call("reports", {"times": times}, f"t{turn}c{place}") for place, times in enumerate(calls)]
            for turn, calls in enumerate(turns)
        ]
        return ScriptedModel([*steps, say("done")])

    inner = Agent("inner", model=model(), tools=[reports])
    both = ScriptedModel([[call("inner", {"input": "go"}, "in"), call("reports", {"times": 3}, "out")], say("done")])
    outer = Agent("outer", model=both, tools=[reports, inner.as_tool()])
    config = RunConfig(stream_buffer=buffer)
    for agent in (Agent("alone", model=model(), tools=[reports]), outer):
        events: list[Any] = []
        async with Runner.run_streamed(agent, "go", run_config=config, max_turns=None) as stream:
            async for event in stream:
                events.append(event)
                for _ in range(pauses[len(events) % len(pauses)]):
                    await anyio.lowlevel.checkpoint()
        kinds = (ev.CallStarted, ev.CallProgress, ev.CallSettled)
        of_calls: dict[Any, list[Any]] = {}
        for event in events:
            if isinstance(event, kinds):
                of_calls.setdefault((event.path, event.call.call_id), []).append(event)
        for (_, call_id), own in of_calls.items():
            assert isinstance(own[0], ev.CallStarted)
            assert isinstance(own[-1], ev.CallSettled)
            seen = own[1:-1]
            if own[0].call.name == "reports":
                assert all(event.message == f"{call_id} at {event.progress}" for event in seen)
                assert [event.progress for event in seen] == sorted({event.progress for event in seen})
                assert seen[-1].progress == seen[-1].total - 1


async def test_a_report_finds_the_unread_one_of_its_call_by_what_the_call_is() -> None:
    """The report is found by its call, not by an object whose memory may be reused, and a call's end forgets it."""
    fold = RunFold()
    buffer = EventBuffer(fold, 1, lambda path: None)

    def report(call_id: str, progress: float, path: tuple[str, ...] = ()) -> None:
        buffer.signal_of_call(ev.CallProgress(ToolCall(call_id, "t", "{}"), progress, path=path, turn=1))

    for call_id, path in (("a", ()), ("b", ()), ("a", ("b",))):
        for progress in (1.0, 2.0):
            report(call_id, progress, path)
    assert buffer.unread == 3
    taken = buffer.take_nowait()
    assert isinstance(taken, ev.CallProgress)
    assert (taken.call.call_id, taken.progress, taken.path) == ("a", 2.0, ())
    report("a", 3)
    report("b", 3)
    rest = [buffer.take_nowait() for _ in range(3)]
    assert [
        (event.call.call_id, event.progress, event.path) for event in rest if isinstance(event, ev.CallProgress)
    ] == [
        ("b", 3, ()),
        ("a", 2.0, ("b",)),
        ("a", 3, ()),
    ]


async def test_a_reader_makes_room_with_the_first_event_that_it_takes() -> None:
    """The run continues then, and not when everything is read; who waits is told once."""
    buffer, told = EventBuffer(RunFold(), 3, lambda path: None), list[int]()
    buffer.on_room[lambda: told.append(buffer.unread)] = None
    for _ in range(5):
        buffer.put(ev.TurnStarted())
    seen = []
    while buffer.take_nowait() is not None:
        seen.append((buffer.full, list(told)))
    assert seen == [(True, []), (True, []), (False, [2]), (False, [2]), (False, [2])]


@tool
async def quiet() -> str:
    """Succeed."""
    return "fine"


async def test_a_reader_that_is_behind_holds_nothing_of_calls_that_have_settled() -> None:
    """The places of their last reports are forgotten, or a long run would keep one for each call."""
    agent = make_agent([quiet], call_each("quiet", "quiet"))
    result, fold = await Runner.run(agent, "go"), RunFold()
    buffer, held = EventBuffer(fold, None, lambda path: agent), []
    for record in result.records:
        fold.apply(record)
        if isinstance(record, r.CallStarted):
            buffer.signal_of_call(ev.CallProgress(fold.calls[record.call_id].call, 1.0, turn=1))
        buffer.record(record)
        held.append(len(buffer._reports))
    assert max(held) > held[-1] == 0


async def test_report_outside_a_run_is_a_users_error() -> None:
    """A context made by hand has no call to report for."""
    context = ToolContext[Any](context=None, tool_name="t", tool_call_id="c1")
    with pytest.raises(UserError, match="report"):
        context.report_nowait(1)
    with pytest.raises(UserError, match="report"):
        await context.report(1)
