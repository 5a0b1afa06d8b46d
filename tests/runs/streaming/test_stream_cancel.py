"""Ending a streamed run early: by `cancel`, by leaving the block, by cancelling its consumer."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import Run, configure_run, fine, make_agent
from kit.ending import Backend, cancel_when, check_duration
from kit.results import find_records, read_requests, read_shown_outputs
from kit.watching import ToolHookLog, Watch

from agentloop import (
    Agent,
    GuardrailFunctionOutput,
    RunConfig,
    Runner,
    ToolContext,
    UserError,
    handoff,
    output_guardrail,
    tool,
)
from agentloop import events as ev
from agentloop import records as r
from agentloop.items import AssistantMessage, ToolCall, ToolOutput
from agentloop.journal import MemoryJournal
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, call, say, wait


class Slow:
    """A tool that waits for ever; `running` is set when its body has begun, `ended` lists what has ended."""

    def __init__(self) -> None:
        self.running = anyio.Event()
        self.ended: list[str] = []

        @tool
        async def slow(ctx: ToolContext[Any]) -> str:
            self.running.set()
            try:
                await anyio.sleep(60)
            finally:
                self.ended.append(ctx.tool_call_id)
            return "never"

        self.tool = slow


async def rest_of(stream: Any) -> list[ev.Event]:
    """Return what is left to iterate."""
    return [event async for event in stream]


# ---------------------------------------------------------------------------------------------- immediate


@pytest.mark.scenario("SC-01", "SC-02", "US-11")
async def test_immediate_cancel_ends_events_and_run() -> None:
    """No event follows the one in hand, a second cancel changes nothing, and the result says `cancelled`."""
    watch, hooks = Watch(), ToolHookLog()
    agent = make_agent([], [say("a text of several chunks, at sixteen each"), wait(60)], done=None)
    after: list[ev.Event] = []
    cancelled = False
    async with Runner.run_streamed(agent, "go", hooks=hooks, run_config=configure_run(watch)) as stream:
        async for event in stream:
            if cancelled:
                after.append(event)
            if isinstance(event, ev.TextDelta):
                stream.cancel()
                stream.cancel("immediate")
                cancelled = True
        assert await rest_of(stream) == []
    assert after == []
    assert await rest_of(stream) == []
    assert stream.is_complete
    assert stream.error is None
    assert stream.result.status == "cancelled"
    assert stream.result.final_output is None
    assert hooks.run_ends == ["cancelled"]
    assert watch.end == "cancelled"


@pytest.mark.scenario("SC-02")
async def test_cancel_after_the_end_changes_nothing() -> None:
    """The run has completed, and neither mode takes that back."""
    async with Runner.run_streamed(make_agent([]), "go") as stream:
        await rest_of(stream)
        stream.cancel()
        stream.cancel("after_turn")
    stream.cancel()
    assert stream.result.status == "completed"
    assert stream.result.final_output == "done"


@pytest.mark.scenario("SC-03")
@pytest.mark.parametrize("mode", ["immediate", "after_turn"])
async def test_cancel_before_the_first_event_asks_no_model(mode: Any) -> None:
    """The immediate mode shows no event at all; `after_turn` finds no turn under way and shows the end alone."""
    agent = make_agent([])
    async with Runner.run_streamed(agent, "go") as stream:
        stream.cancel(mode)
        events = await rest_of(stream)
    assert read_requests(agent) == []
    assert stream.result.status == "cancelled"
    kinds = [type(event).__name__ for event in events]
    assert kinds == ([] if mode == "immediate" else ["AgentUpdated", "RunEnded"])


@pytest.mark.parametrize("mode", ["immediate", "after_turn"])
async def test_cancel_before_the_run_begins_counts_when_it_begins(mode: Any) -> None:
    """No model is asked, and the result says `cancelled`."""
    agent = make_agent([])
    stream = Runner.run_streamed(agent, "go")
    stream.cancel(mode)
    stream.cancel("after_turn")
    async with stream:
        events = await rest_of(stream)
    assert read_requests(agent) == []
    assert stream.result.status == "cancelled"
    assert [type(event).__name__ for event in events] == ([] if mode == "immediate" else ["AgentUpdated", "RunEnded"])


@pytest.mark.parametrize("resumed", [False, True])
async def test_run_cancelled_at_any_of_its_first_steps_has_a_result(resumed: bool) -> None:
    """Also while its journal is read, before the first record of the run segment."""

    @tool(needs_approval=True)
    async def ask() -> str:
        """Ask."""
        return "done"

    found = []
    for steps in range(40):
        journal = MemoryJournal()
        agent = make_agent([ask], [call("ask")], done="done")
        begun: Any = "go"
        if resumed:
            begun = (await Runner.run(agent, "go", journal=journal)).to_state()
            begun.approve("call_1")
        async with Runner.run_streamed(agent, begun, journal=journal) as stream:
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            stream.cancel()
            await rest_of(stream)
        found.append(stream.result.status)
        assert stream.result.to_state().records == stream.state.records
    assert found[0] == "cancelled"
    assert found[-1] == ("completed" if resumed else "interrupted")
    assert len(set(found)) == 2


@pytest.mark.scenario("SC-04", "SC-05")
async def test_cancel_wakes_the_consumer_and_ends_a_blocked_model_call(anyio_backend: Backend) -> None:
    """The consumer waits for an event that won't come, the model for its server: both end at once."""
    watch = Watch()
    agent = make_agent([], [say("so far"), wait(60)], done=None)
    waiting = anyio.Event()
    async with (
        check_duration(anyio_backend, 0.0),
        anyio.create_task_group() as group,
        Runner.run_streamed(agent, "go", run_config=configure_run(watch)) as stream,
    ):

        async def cancel() -> None:
            await waiting.wait()
            stream.cancel()

        group.start_soon(cancel)
        async for event in stream:
            if isinstance(event, ev.TextDelta):
                waiting.set()
    assert stream.result.status == "cancelled"
    [failed] = watch.of(r.ModelFailed)
    assert failed.error == "cancelled"


@pytest.mark.scenario("SC-10")
@pytest.mark.parametrize("modes", [("after_turn", "immediate"), ("immediate", "after_turn")], ids=" then ".join)
async def test_immediate_beside_after_turn_is_immediate(modes: tuple[Any, ...]) -> None:
    """The stronger of the two modes wins, in either order."""
    slow = Slow()
    agent = make_agent([slow.tool], call("slow", call_id="c1"))
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.CallStarted):
                await slow.running.wait()
                for mode in modes:
                    stream.cancel(mode)
    assert slow.ended == ["c1"]
    assert stream.result.status == "cancelled"
    assert len(read_requests(agent)) == 1


@pytest.mark.scenario("GO-07")
async def test_immediate_cancel_during_an_output_guardrail_writes_nothing_of_the_final_turn() -> None:
    """The session holds the input and the turn before, and nothing else."""
    judging = anyio.Event()

    @output_guardrail
    async def slow(ctx: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        judging.set()
        await anyio.sleep(60)
        return GuardrailFunctionOutput()

    session = MemorySession()
    agent = make_agent([fine], call("fine", call_id="c1"), output_guardrails=[slow])
    async with Runner.run_streamed(agent, "go", session=session) as stream:
        await judging.wait()
        stream.cancel()
    kinds = [type(item).__name__ for item in await session.get_items()]
    assert kinds == ["UserMessage", "ToolCall", "ToolOutput"]


# ---------------------------------------------------------------------------------------------- after the turn


@pytest.mark.scenario("SC-06", "LX-52")
@pytest.mark.parametrize("moment", [ev.TurnStarted, ev.TextDelta, ev.CallStarted, ev.CallSettled, ev.ItemCreated])
async def test_cancel_after_the_turn_completes_it(moment: type[Any]) -> None:
    """Model call, tools and saves finish, every event is delivered, and the model is not asked again."""
    watch, hooks, session = Watch(), ToolHookLog(), MemorySession()
    agent = make_agent([fine], [say("let me see"), call("fine", call_id="c1"), call("fine", call_id="c2")])
    events = []
    async with Runner.run_streamed(
        agent, "go", hooks=hooks, session=session, run_config=configure_run(watch)
    ) as stream:
        async for event in stream:
            events.append(event)
            if isinstance(event, moment):
                stream.cancel("after_turn")
    result = stream.result
    assert (result.status, result.final_output) == ("cancelled", None)
    assert len(read_requests(agent)) == 1
    items = [event.item for event in events if isinstance(event, ev.ItemCreated)]
    assert [type(item) for item in items] == [AssistantMessage, ToolCall, ToolCall, ToolOutput, ToolOutput]
    assert tuple(items) == result.new_items
    assert [type(event).__name__ for event in events[-2:]] == ["TurnEnded", "RunEnded"]
    assert sorted(line for line in hooks.seen if line.startswith("end")) == ["end:c1:succeeded", "end:c2:succeeded"]
    assert await session.get_items() == [*result.input, *result.new_items]
    assert watch.end == "cancelled"
    assert result.usage.requests == 1


@pytest.mark.scenario("SM-10", "SC-06")
@pytest.mark.parametrize("limit", [1, 2])
async def test_cancel_after_the_last_turn_that_may_be_ends_as_after_any(limit: int) -> None:
    """The run is cancelled, and its limit is no error; with a higher limit it goes on."""
    agent = make_agent([fine], *[call("fine", call_id=f"c{n}") for n in range(limit)])
    seen = 0
    async with Runner.run_streamed(agent, "go", max_turns=limit) as stream:
        async for event in stream:
            seen += isinstance(event, ev.CallStarted)
            if seen == limit:
                stream.cancel("after_turn")
    assert stream.result.status == "cancelled"
    assert len(read_requests(agent)) == limit
    result = await Runner.run(agent, stream.result.to_state(), max_turns=limit + 1)
    assert (result.status, result.final_output) == ("completed", "done")


@pytest.mark.scenario("SC-06")
async def test_cancel_after_the_turn_by_a_reader_whom_the_run_waits_for_begins_no_other_turn() -> None:
    """All of the turn is done and the run waits for room in the buffer, so no turn is under way."""
    agent = make_agent([fine], call("fine", call_id="c1"))
    async with Runner.run_streamed(agent, "go", run_config=RunConfig(stream_buffer=1)) as stream:
        async for event in stream:
            if isinstance(event, ev.ItemCreated) and isinstance(event.item, ToolOutput):
                await anyio.wait_all_tasks_blocked()
                stream.cancel("after_turn")
    assert stream.result.status == "cancelled"
    assert len(read_requests(agent)) == 1


@pytest.mark.scenario("SC-06")
async def test_cancel_after_the_turn_that_answers_changes_nothing() -> None:
    """The turn brings the final output, so the run completes."""
    async with Runner.run_streamed(make_agent([]), "go") as stream:
        async for event in stream:
            if isinstance(event, ev.TextDelta):
                stream.cancel("after_turn")
    assert (stream.result.status, stream.result.final_output) == ("completed", "done")


@pytest.mark.scenario("SC-08")
@pytest.mark.parametrize("with_tool", [False, True])
async def test_cancel_after_a_turn_that_hands_over_stops_before_the_targets_first_call(with_tool: bool) -> None:
    """The handoff is taken, saved and shown; the target's model is never asked."""
    session = MemorySession()
    target = Agent("target", model=ScriptedModel([say("never")]))
    pieces = [call("transfer_to_target", call_id="h1"), *([call("fine", call_id="c1")] if with_tool else [])]
    agent = make_agent([fine], pieces, done=None, handoffs=[handoff(target)])
    events = []
    async with Runner.run_streamed(agent, "go", session=session) as stream:
        async for event in stream:
            events.append(event)
            if isinstance(event, ev.TurnStarted):
                stream.cancel("after_turn")
    assert read_requests(target) == []
    assert stream.result.status == "cancelled"
    assert stream.result.last_agent is target
    assert [event.agent for event in events if isinstance(event, ev.AgentUpdated)] == [agent, target]
    saved = [type(item).__name__ for item in await session.get_items()]
    assert saved.count("HandoffCall") == saved.count("HandoffOutput") == 1
    assert saved.index("HandoffCall") < saved.index("HandoffOutput")
    assert saved.count("ToolOutput") == with_tool


@pytest.mark.scenario("LX-53")
async def test_cancel_after_the_turn_is_one_runs_own() -> None:
    """One of two runs of one agent at once is cancelled, and the other completes."""
    second = anyio.Event()

    def step(request: Any) -> Any:
        return call("wait_for_other") if len(request.items) == 1 else say("done")

    @tool
    async def wait_for_other() -> str:
        await second.wait()
        return "ok"

    agent = Agent("a", model=ScriptedModel([step] * 3), tools=[wait_for_other])
    async with Runner.run_streamed(agent, "one") as one, Runner.run_streamed(agent, "two") as two:
        async for event in one:
            if isinstance(event, ev.CallStarted):
                one.cancel("after_turn")
                second.set()
        await rest_of(two)
    assert one.result.status == "cancelled"
    assert (two.result.status, two.result.final_output) == ("completed", "done")


@pytest.mark.scenario("SC-06")
async def test_cancel_after_the_turn_lets_nested_runs_come_to_their_end() -> None:
    """A nested run is part of the outer turn, so all of its own turns are made."""
    inner = Agent("inner", model=ScriptedModel([call("fine"), call("fine"), say("dug")]), tools=[fine])
    agent = make_agent([inner.as_tool()], call("inner", {"input": "x"}, call_id="c1"))
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.CallStarted) and event.path:
                stream.cancel("after_turn")
    assert stream.result.status == "cancelled"
    assert len(read_requests(inner)) == 3
    assert len(read_requests(agent)) == 1
    assert [settled.outcome.output for settled in stream.result.calls] == ["dug"]


@pytest.mark.scenario("SC-09", "SP-08")
@pytest.mark.parametrize("mode", ["immediate", "after_turn"])
async def test_cancel_works_for_a_consumer_that_takes_each_event_in_a_task_of_its_own(mode: Any) -> None:
    """The consumer suspends before it takes the next event, with a buffer of one event."""
    agent = make_agent([fine], [say("some text of several chunks"), *[call("fine") for _ in range(3)]])
    events: list[ev.Event] = []
    over = False

    async def take(stream: Any) -> None:
        nonlocal over
        try:
            event = await anext(stream)
        except StopAsyncIteration:
            over = True
            return
        events.append(event)
        if isinstance(event, ev.TextDelta):
            stream.cancel(mode)
        await anyio.lowlevel.checkpoint()

    with anyio.fail_after(30):
        async with Runner.run_streamed(agent, "go", run_config=RunConfig(stream_buffer=1)) as stream:
            while not over:
                async with anyio.create_task_group() as group:
                    group.start_soon(take, stream)
                await anyio.lowlevel.checkpoint()
    assert stream.result.status == "cancelled"
    if mode == "immediate":
        assert isinstance(events[-1], ev.TextDelta)
    else:
        assert events[-1] == ev.RunEnded("cancelled", turn=1)
        assert sum(isinstance(event, ev.CallSettled) for event in events) == 3


# ---------------------------------------------------------------------------------------------- the consumer goes


@pytest.mark.scenario("SC-12", "SC-13")
async def test_consumer_cancelled_while_it_waits_ends_the_run_promptly(anyio_backend: Backend) -> None:
    """Running tools are cancelled and awaited, the block is left, and the cancellation propagates."""
    slow, watch, hooks = Slow(), Watch(), ToolHookLog()
    agent = make_agent([slow.tool], call("slow", call_id="c1"))

    async def consume() -> None:
        async with Runner.run_streamed(agent, "go", hooks=hooks, run_config=configure_run(watch)) as stream:
            await rest_of(stream)

    async with check_duration(anyio_backend, 0.0):
        await cancel_when(slow.running, consume)
    assert slow.ended == ["c1"]
    assert hooks.run_ends == ["cancelled"]
    assert watch.end == "cancelled"
    assert watch.endings() == {"c1": ("cancelled", "parent")}


@pytest.mark.scenario("SC-12")
@pytest.mark.parametrize("at", range(14))
@pytest.mark.parametrize("goes_by", ["break", "scope", "error"])
async def test_consumer_may_go_at_every_event(goes_by: str, at: int) -> None:
    """A consumer that leaves, is cancelled or fails at any event leaves nothing running and never waits for ever."""
    watch = Watch()
    inner = Agent("inner", model=ScriptedModel([call("fine"), say("dug")]), tools=[fine])
    agent = make_agent([fine, inner.as_tool()], [say("text"), call("fine"), call("inner", {"input": "x"})])
    seen = 0
    config = configure_run(watch, config=RunConfig(stream_buffer=2))
    with anyio.fail_after(30):
        with suppress(KeyError), anyio.CancelScope() as scope:
            async with Runner.run_streamed(agent, "go", run_config=config) as stream:
                async for _ in stream:
                    seen += 1
                    if seen <= at:
                        continue
                    if goes_by == "break":
                        break
                    if goes_by == "error":
                        raise KeyError(at)
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()
    if goes_by == "scope":
        assert scope.cancelled_caught
    else:
        assert stream.result.status == "cancelled"
    assert seen == at + 1
    assert watch.of(r.RunEnded)
    assert watch.records[-1].path == ()
    assert isinstance(watch.records[-1], r.RunEnded)
    started = {(record.path, record.call_id) for record in watch.of(r.CallStarted)}
    settled = {(record.path, record.call_id) for record in watch.of(r.CallSettled)}
    assert started <= settled


@pytest.mark.scenario("SC-12")
async def test_block_left_by_one_task_ends_the_iteration_of_another() -> None:
    """The stream is entered in one task and read in another, whose iteration ends and does not wait for ever."""
    slow = Slow()
    agent = make_agent([slow.tool], call("slow", call_id="c1"))
    events: list[ev.Event] = []
    ended = anyio.Event()

    async def read(stream: Any) -> None:
        events.extend(await rest_of(stream))
        ended.set()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            async with Runner.run_streamed(agent, "go") as stream:
                group.start_soon(read, stream)
                await slow.running.wait()
            await ended.wait()
    assert slow.ended == ["c1"]
    assert stream.result.status == "cancelled"


@pytest.mark.scenario("SC-12")
async def test_reader_in_another_task_may_be_cancelled_and_another_go_on() -> None:
    """The run continues, as its block belongs to another task, and no event is lost."""
    gate = anyio.Event()

    @tool
    async def gated() -> str:
        await gate.wait()
        return "ok"

    agent = make_agent([gated], call("gated", call_id="c1"))
    events: list[ev.Event] = []

    async def read(stream: Any) -> None:
        async for event in stream:
            events.append(event)
            if isinstance(event, ev.CallStarted):
                begun.set()

    begun = anyio.Event()
    with anyio.fail_after(30):
        async with Runner.run_streamed(agent, "go") as stream:
            async with anyio.create_task_group() as group:
                group.start_soon(read, stream)
                await begun.wait()
                group.cancel_scope.cancel()
            gate.set()
            events += await rest_of(stream)
    assert stream.result.final_output == "done"
    assert sum(isinstance(event, ev.CallSettled) for event in events) == 1
    assert [type(event).__name__ for event in events].count("TurnStarted") == 2
    assert events[-1] == ev.RunEnded("completed", turn=2)


@pytest.mark.scenario("SC-14", "LX-54")
async def test_break_after_the_first_delta_leaves_no_side_effect() -> None:
    """The call that the model was about to make never starts."""
    bodies: list[str] = []

    @tool
    async def effect(ctx: ToolContext[Any]) -> str:
        bodies.append(ctx.tool_call_id)
        return "done"

    watch = Watch()
    agent = make_agent([effect], [say("a text of several chunks, at sixteen each"), call("effect")])
    config = configure_run(watch, config=RunConfig(stream_buffer=1))
    async with Runner.run_streamed(agent, "go", run_config=config) as stream:
        async for event in stream:
            if isinstance(event, ev.TextDelta):
                break
    records = len(watch.records)
    for _ in range(5):
        await anyio.lowlevel.checkpoint()
    assert bodies == []
    assert len(watch.records) == records
    assert watch.of(r.CallStarted) == []
    assert stream.result.status == "cancelled"


@pytest.mark.scenario("LX-47", "SC-12")
async def test_cancelled_run_ends_with_its_last_record_and_one_shielded_hook(run_mode: Run) -> None:
    """`RunEnded(cancelled)` is the last record, and `on_run_end` runs once and may await."""
    slow, watch, hooks = Slow(), Watch(), ToolHookLog()
    agent = make_agent([slow.tool], call("slow", call_id="c1"))
    config = configure_run(watch)
    await cancel_when(slow.running, lambda: run_mode(agent, "go", hooks=hooks, run_config=config))
    assert watch.end == "cancelled"
    assert hooks.run_ends == ["cancelled"]
    assert slow.ended == ["c1"]


async def test_cancelled_run_keeps_what_it_completed() -> None:
    """Session and result have the turn before; of the cut turn the session has complete pairs alone."""
    slow, session = Slow(), MemorySession()
    agent = make_agent([fine, slow.tool], call("fine", call_id="c1"), [call("fine", call_id="c2"), call("slow")])
    async with Runner.run_streamed(agent, "go", session=session) as stream:
        async for event in stream:
            if isinstance(event, ev.ItemCreated) and isinstance(event.item, ToolOutput) and event.item.call_id == "c2":
                await slow.running.wait()
                stream.cancel()
    assert list(read_shown_outputs(agent)) == ["c1"]
    saved = [item for item in await session.get_items() if isinstance(item, ToolCall | ToolOutput)]
    assert [item.call_id for item in saved] == ["c1", "c1", "c2", "c2"]
    assert [record.status for record in find_records(stream.result, r.RunEnded)] == ["cancelled"]


@pytest.mark.scenario("SC-12")
@pytest.mark.backends("asyncio")
@pytest.mark.real_clock
@pytest.mark.parametrize("how", ["closed", "collected", "stepped"])
async def test_stream_left_by_another_task_says_what_to_write(how: str) -> None:
    """A generator around the block is closed by a task that hasn't entered it: the run ends, and the error is ours."""
    slow, before = Slow(), asyncio.all_tasks()
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context.get("exception")))

    async def events() -> AsyncIterator[ev.Event]:
        async with Runner.run_streamed(make_agent([slow.tool], call("slow", call_id="c1")), "go") as stream:
            async for event in stream:
                yield event

    async def work() -> None:
        made: Any = events()
        step = (lambda: asyncio.create_task(anext(made))) if how == "stepped" else (lambda: anext(made))
        while not isinstance(await step(), ev.CallStarted):
            pass
        if how == "collected":
            del made, step
            gc.collect()
            while not reported:  # noqa: ASYNC110 - the loop's own task closes it
                gc.collect()
                await asyncio.sleep(0.01)
        else:
            await asyncio.create_task(made.aclose())

    owner = asyncio.create_task(work())
    error = (await asyncio.gather(owner, return_exceptions=True))[0] or reported[0]
    assert isinstance(error, UserError)
    assert "Leave the block in the task that entered it" in str(error)
    assert slow.ended == ["c1"]
    assert asyncio.all_tasks() == before
