"""A streamed run: leaving it ends it, cancelling it ends it as asked, and a slow consumer holds it up gently."""

from typing import Any

import anyio
import pytest
import trio.testing
from kit.agents import call_each, configure_run, fine, make_agent
from kit.ending import Backend, check_duration
from kit.results import read_endings, read_requests
from kit.watching import ToolHookLog, Watch

from agentloop import RunConfig, Runner, ToolContext, UserError, tool
from agentloop import events as ev
from agentloop import records as r
from agentloop.exceptions import UserTypeError
from agentloop.testing import call, say, wait


async def test_a_stream_that_is_awaited_says_how_it_is_used() -> None:
    """A run awaits, a streamed run is a block; type checkers refuse it, too."""
    stream: Any = Runner.run_streamed(make_agent([]), "go")
    with pytest.raises(UserTypeError, match=r"can't be awaited: use `async with Runner\.run_streamed\(…\) as stream`"):
        await stream


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("output", r"use final_output$"),
        ("approve", r"use to_state\(\)\.approve\(…\)$"),
        ("reject", r"use to_state\(\)\.reject\(…\)$"),
        ("absent", r"has no attribute 'absent'$"),
    ],
)
async def test_a_result_names_what_it_has_in_place_of_a_usual_attribute(name: str, used: str) -> None:
    """Attributes of other libraries' results lead to the ones here, before and after the fields were made."""
    result: Any = await Runner.run(make_agent([]), "go")
    for _ in range(2):
        with pytest.raises(AttributeError, match=used):
            getattr(result, name)
    assert not hasattr(result, name)


class Slow:
    """A tool that waits for ever, and notes that it began and that it ended."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.running = anyio.Event()

        @tool
        async def slow(ctx: ToolContext[Any]) -> str:
            self.lines.append(f"begin {ctx.tool_call_id}")
            self.running.set()
            try:
                await anyio.sleep(60)
            finally:
                with ctx.cleanup():
                    await anyio.sleep(0.01)
                    self.lines.append(f"end {ctx.tool_call_id}")
            return "never"

        self.tool = slow


@pytest.mark.scenario("LX-54", "SC-14")
async def test_break_out_of_the_loop_and_the_block_leaves_nothing_running() -> None:
    """The run is cancelled and joined before the block is left; no side effect starts afterwards."""
    slow, watch, hooks = Slow(), Watch(), ToolHookLog()
    agent = make_agent([slow.tool, fine], call_each("slow", "fine", "slow"))
    config = configure_run(watch, max_function_tool_concurrency=2)
    async with Runner.run_streamed(agent, "go", hooks=hooks, run_config=config) as stream:
        async for event in stream:
            if isinstance(event, ev.CallStarted):
                await slow.running.wait()
                break
    begun = [line.removeprefix("begin ") for line in slow.lines if line.startswith("begin")]
    assert begun
    assert sorted(slow.lines) == sorted([f"begin {name}" for name in begun] + [f"end {name}" for name in begun])
    records = len(watch.records)
    await anyio.lowlevel.checkpoint()
    assert len(watch.records) == records
    assert watch.end == "cancelled"
    assert hooks.run_ends == ["cancelled"]
    assert stream.result.status == "cancelled"
    assert stream.result.final_output is None
    assert stream.error is None
    assert stream.is_complete
    assert len(read_requests(agent)) == 1


@pytest.mark.scenario("SC-14")
async def test_leaving_the_block_at_once_starts_next_to_nothing() -> None:
    """A block without iteration starts no body after it."""
    slow = Slow()
    agent = make_agent([slow.tool], call_each("slow"))
    async with Runner.run_streamed(agent, "go") as stream:
        pass
    assert slow.lines == []
    assert stream.result.status == "cancelled"


@pytest.mark.scenario("SC-14", "LX-54")
async def test_break_while_the_model_answers_closes_the_response() -> None:
    """The model call is ended; the request is counted."""
    agent = make_agent([], [say("a text that is longer than one chunk"), wait(60)], done=None)
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.TextDelta):
                break
    assert stream.result.status == "cancelled"
    assert stream.result.usage.requests == 1


async def test_immediate_cancel_ends_the_run_and_its_iteration() -> None:
    """At most the event in hand is delivered; then the iteration ends, and the result says `cancelled`."""
    slow, watch = Slow(), Watch()
    agent = make_agent([slow.tool], call_each("slow"))
    after: list[Any] = []
    async with Runner.run_streamed(agent, "go", run_config=configure_run(watch)) as stream:
        async for event in stream:
            if isinstance(event, ev.CallStarted):
                await slow.running.wait()
                stream.cancel()
                stream.cancel("immediate")  # once is as good as twice
                break
        async for event in stream:
            after.append(event)
    assert after == []
    assert slow.lines == ["begin c1", "end c1"]
    assert watch.end == "cancelled"
    assert stream.result.status == "cancelled"
    assert [event async for event in stream] == []


async def test_cancel_from_another_task_wakes_a_waiting_consumer(anyio_backend: Backend) -> None:
    """A consumer that waits for an event of a blocked model call continues at once."""
    asked = anyio.Event()

    def step(request: Any) -> Any:
        asked.set()
        return [wait(60), say("never")]

    agent = make_agent([], step, done=None)
    stream = Runner.run_streamed(agent, "go")

    async def cancel() -> None:
        await asked.wait()
        await anyio.lowlevel.checkpoint()
        stream.cancel()

    async with check_duration(anyio_backend, 0), anyio.create_task_group() as group, stream:
        group.start_soon(cancel)
        async for _ in stream:
            pass
    assert stream.result.status == "cancelled"


async def test_cancel_before_the_first_event_gives_none() -> None:
    """Nothing is asked of the model."""
    agent = make_agent([], done="never")
    async with Runner.run_streamed(agent, "go") as stream:
        stream.cancel()
        assert [event async for event in stream] == []
    assert stream.result.status == "cancelled"
    assert read_requests(agent) == []


@pytest.mark.scenario("LX-52")
async def test_cancel_after_the_turn_lets_its_tools_finish_and_asks_no_more() -> None:
    """All events of the turn are delivered, the status is `cancelled`, there is no final output."""
    watch = Watch()
    release = anyio.Event()

    @tool
    async def waits() -> str:
        await release.wait()
        return "waited"

    agent = make_agent([waits, fine], call_each("waits", "fine"))
    events: list[Any] = []
    async with Runner.run_streamed(agent, "go", run_config=configure_run(watch)) as stream:
        async for event in stream:
            events.append(event)
            if isinstance(event, ev.CallStarted) and not release.is_set():
                stream.cancel("after_turn")
                release.set()
    result = stream.result
    assert result.status == "cancelled"
    assert result.final_output is None
    assert read_endings(result.calls) == [("c1", "succeeded", None), ("c2", "succeeded", None)]
    assert len(read_requests(agent)) == 1
    assert [type(event).__name__ for event in events[-2:]] == ["TurnEnded", "RunEnded"]
    assert watch.end == "cancelled"
    assert len(watch.of(r.BatchEnded)) == 1


@pytest.mark.scenario("LX-53")
async def test_cancel_after_the_turn_of_one_run_leaves_another_of_the_same_agent_alone() -> None:
    """One of two streams of one agent object is cancelled, and the other completes."""
    statuses: dict[str, str] = {}
    agent = make_agent([fine], *[call("fine") for _ in range(2)], say("done"))

    async def consume(name: str, cancel: bool) -> None:
        async with Runner.run_streamed(agent, "go") as stream:
            if cancel:
                stream.cancel("after_turn")
            async for _ in stream:
                pass
        statuses[name] = stream.result.status

    async with anyio.create_task_group() as group:
        group.start_soon(consume, "cancelled", True)
        group.start_soon(consume, "other", False)
    assert statuses == {"cancelled": "cancelled", "other": "completed"}


async def test_cancel_after_the_last_turn_is_too_late_to_change_it() -> None:
    """The run completes."""
    agent = make_agent([])
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.ItemCreated):
                stream.cancel("after_turn")
    assert stream.result.status == "completed"
    assert stream.result.final_output == "done"


async def test_immediate_cancel_overrides_after_turn() -> None:
    """The stronger wish wins."""
    slow = Slow()
    agent = make_agent([slow.tool], call_each("slow"))
    with anyio.fail_after(30):
        async with Runner.run_streamed(agent, "go") as stream:
            async for event in stream:
                if isinstance(event, ev.CallStarted):
                    await slow.running.wait()
                    stream.cancel("after_turn")
                    stream.cancel()
    assert stream.result.status == "cancelled"
    assert slow.lines == ["begin c1", "end c1"]


async def test_unknown_mode_of_cancel_is_a_users_error() -> None:
    """The error names the two modes."""
    async with Runner.run_streamed(make_agent([]), "go") as stream:
        with pytest.raises(UserError, match="after_turn"):
            stream.cancel("soon")  # type: ignore[arg-type]
        async for _ in stream:
            pass


async def test_consumers_scope_is_cancelled_while_it_waits_for_an_event(anyio_backend: Backend) -> None:
    """SC-13: the run is cancelled and joined at once."""
    watch = Watch()
    agent = make_agent([], [wait(60), say("never")], done=None)
    async with check_duration(anyio_backend, 0.02):
        with anyio.move_on_after(0.02) as scope:
            async with Runner.run_streamed(agent, "go", run_config=configure_run(watch)) as stream:
                async for _ in stream:
                    pass
    assert scope.cancelled_caught
    assert watch.end == "cancelled"


async def test_first_event_names_the_starting_agent() -> None:
    """SP-02: the first event has the caller's very object."""
    agent = make_agent([])
    async with Runner.run_streamed(agent, "go") as stream:
        events = [event async for event in stream]
    assert isinstance(events[0], ev.AgentUpdated)
    assert events[0].agent is agent
    assert isinstance(events[-1], ev.RunEnded)
    assert events[-1].status == "completed"


# ---------------------------------------------------------------------------------------------- back-pressure


@pytest.mark.backends("trio", "trio-virtual")
@pytest.mark.scenario("SP-08")
async def test_model_is_not_read_ahead_of_a_consumer_that_sleeps() -> None:
    """With room for four events the run stops reading the model's text at about four, and continues when read."""
    text = "x" * 16 * 50
    agent = make_agent([], done=text)
    async with Runner.run_streamed(agent, "go", run_config=RunConfig(stream_buffer=4)) as stream:
        await trio.testing.wait_all_tasks_blocked()
        state = stream._events
        assert state is not None
        assert len(state._unread) <= 5
        events = [event async for event in stream]
    assert "".join(event.text for event in events if isinstance(event, ev.TextDelta)) == text
    assert stream.result.final_output == text


@pytest.mark.scenario("SP-08")
@pytest.mark.parametrize("buffer", [1, 2, 3, 5, 16])
async def test_small_buffers_lose_nothing_and_stop_nothing(buffer: int) -> None:
    """Every event arrives in order with any size of the buffer; records never wait."""

    def agent() -> Any:
        return make_agent(
            [fine],
            [say("thinking about it"), *[call("fine", call_id=f"c{index}") for index in range(10)]],
            call("fine", call_id="c10"),
        )

    async def kinds(size: int) -> list[str]:
        async with Runner.run_streamed(agent(), "go", run_config=RunConfig(stream_buffer=size)) as stream:
            names = [type(event).__name__ async for event in stream]
        assert stream.result.final_output == "done"
        return names

    with anyio.fail_after(30):
        small, large = await kinds(buffer), await kinds(10_000)
    assert sorted(small) == sorted(large)


@pytest.mark.backends("trio", "trio-virtual")
@pytest.mark.scenario("SP-08")
async def test_calls_are_not_admitted_while_the_consumer_is_behind_and_running_ones_go_on() -> None:
    """The consumer reads nothing: the bodies that run end and settle, the queued ones wait outside every permit."""
    started: list[str] = []
    release = anyio.Event()
    watch = Watch()

    @tool
    async def work(ctx: ToolContext[Any]) -> str:
        started.append(ctx.tool_call_id)
        await release.wait()
        return "worked"

    agent = make_agent([work], call_each(*["work"] * 20))
    config = configure_run(watch, config=RunConfig(stream_buffer=30), max_function_tool_concurrency=2)
    async with Runner.run_streamed(agent, "go", run_config=config) as stream:
        async for event in stream:
            if isinstance(event, ev.CallStarted):
                break
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(started) == ["c1", "c2"]
        release.set()
        await trio.testing.wait_all_tasks_blocked()
        held = len(started)
        assert 2 <= held < 20
        assert len(watch.of(r.CallSettled)) == held  # the calls that had started have settled without a reader
        async for _ in stream:
            pass
    assert len(started) == 20
    assert stream.result.final_output == "done"


@pytest.mark.scenario("SP-08")
async def test_break_while_the_run_waits_for_its_consumer_ends_it() -> None:
    """A run that is held up by a full buffer can be left."""
    agent = make_agent([], done="x" * 16 * 50)
    with anyio.fail_after(30):
        async with Runner.run_streamed(agent, "go", run_config=RunConfig(stream_buffer=1)) as stream:
            async for event in stream:
                if isinstance(event, ev.TextDelta):
                    break
    assert stream.result.status == "cancelled"


async def test_stream_is_entered_once() -> None:
    """A second `async with` is a user's error, not a second run."""
    stream = Runner.run_streamed(make_agent([]), "go")
    async with stream:
        async for _ in stream:
            pass
    with pytest.raises(UserError):
        async with stream:
            pass


async def test_iterating_without_the_block_is_a_users_error() -> None:
    """The message says what to do."""
    stream = Runner.run_streamed(make_agent([]), "go")
    with pytest.raises(UserError, match="async with"):
        async for _ in stream:
            pass
