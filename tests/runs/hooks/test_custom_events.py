"""Events of the application's own: signals of a running body for its consumers, which no log keeps."""

import threading
from typing import Any

import anyio
import pytest
from kit.agents import Run, call_each, make_agent

from agentloop import Agent, RunConfig, Runner, ToolContext, UserError, to_json, tool
from agentloop import events as ev
from agentloop.abc import Instrument
from agentloop.config import TracingSettings
from agentloop.spans import Span
from agentloop.testing import ScriptedModel, call, replay, say


@tool
async def search(ctx: ToolContext[Any]) -> str:
    """Emit two events around a report."""
    ctx.emit({"hits": 1})
    await ctx.report(1)
    ctx.emit({"hits": 2})
    return "done"


@tool
def search_in_a_thread(ctx: ToolContext[Any]) -> str:
    """Emit two events from a worker thread."""
    ctx.emit(["one"])
    ctx.emit(["two"])
    return "done"


@tool(secret_output=True)
async def log_in(ctx: ToolContext[Any]) -> str:
    """Emit what is as secret as the output."""
    ctx.emit({"token": "hush"})
    return "hush"


async def read(agent: Agent[Any, Any], config: RunConfig | None = None) -> list[Any]:
    """Return the custom events and the events of calls of a run."""
    kinds = (ev.CallStarted, ev.CustomEvent, ev.CallProgress, ev.CallSettled)
    events = []
    async with Runner.run_streamed(agent, "go", run_config=config) as stream:
        events += [event async for event in stream if isinstance(event, kinds)]
    return events


async def test_custom_events_stand_between_start_and_end_in_order() -> None:
    """Each has its call, path and turn, and the object that was emitted; reports stay between them."""
    events = await read(make_agent([search], call_each("search")))
    assert [type(event) for event in events] == [
        ev.CallStarted,
        ev.CustomEvent,
        ev.CallProgress,
        ev.CustomEvent,
        ev.CallSettled,
    ]
    first = events[1]
    assert (first.call.call_id, first.value, first.path, first.turn) == ("c1", {"hits": 1}, (), 1)
    assert to_json(events[3])["value"] == {"hits": 2}
    assert to_json(events[3])["type"] == "custom"


@pytest.mark.real_clock
async def test_a_body_in_a_thread_emits() -> None:
    """In order, on the loop of the run."""
    events = await read(make_agent([search_in_a_thread], call_each("search_in_a_thread")))
    assert [event.value for event in events[1:-1]] == [["one"], ["two"]]


@pytest.mark.real_clock
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_thread_that_outlives_the_run_emits_nothing(backend: str) -> None:
    """Nor reports it: its call has an outcome, and its loop has ended. It gets no error."""
    ended, raised, threads = threading.Event(), list[Exception](), list[threading.Thread]()

    @tool
    def leave(ctx: ToolContext[Any]) -> str:
        """Start a thread that outlives the call."""

        def emit() -> None:
            ended.wait()
            for late in (lambda: ctx.emit({"hits": 1}), lambda: ctx.report_nowait(1)):
                try:
                    late()
                except Exception as error:
                    raised.append(error)

        threads.append(threading.Thread(target=emit))
        threads[0].start()
        return "done"

    emitted = Emissions()
    config = RunConfig(instruments=[emitted])
    try:
        Runner.run_sync(make_agent([leave], call_each("leave")), "go", backend=backend, run_config=config)  # type: ignore[arg-type]
    finally:
        ended.set()
    threads[0].join()
    assert raised == []
    assert emitted.got == []


async def test_events_of_a_nested_run_have_its_path() -> None:
    """As all its events have."""
    inner = Agent("inner", model=ScriptedModel([call("search", {}, "c1"), say("done")]), tools=[search])
    outer = make_agent([inner.as_tool()], [call("inner", {"input": "go"}, "in")])
    events = [event for event in await read(outer) if isinstance(event, ev.CustomEvent)]
    assert [(event.path, event.value["hits"]) for event in events] == [(("in",), 1), (("in",), 2)]


@pytest.mark.scenario("PE-05")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_custom_events_are_no_records(backend: str) -> None:
    """A plain run takes them, too; a strict replay emits none, and its log is equal."""
    emitted = Emissions()
    config = RunConfig(instruments=[emitted])
    agent = make_agent([search], call_each("search"))
    result = anyio.run(lambda: Runner.run(agent, "go", run_config=config), backend=backend)
    assert not any("custom" in type(record).__name__.lower() for record in result.records)
    assert len(emitted.got) == 2
    assert replay(result.records, make_agent([search], call_each("search"))).records == result.records


class Emissions(Instrument):
    """Keeps custom events with the spans that it got."""

    def __init__(self) -> None:
        self.got: list[tuple[ev.CustomEvent, Span | None]] = []

    def on_custom_event(self, event: ev.CustomEvent, span: Span | None) -> None:
        self.got.append((event, span))


class SpannedEmissions(Emissions):
    """Follows spans, too."""

    def on_span_start(self, span: Span) -> None: ...


@pytest.mark.parametrize("traced", [True, False])
async def test_instruments_get_custom_events_with_their_calls_span(run_mode: Run, traced: bool) -> None:
    """In plain runs, too; where tracing is disabled there is none."""
    seen = SpannedEmissions()
    config = RunConfig(instruments=[seen], tracing=TracingSettings(disabled=not traced))
    await run_mode(make_agent([search], call_each("search")), "go", run_config=config)
    assert [event.value for event, _ in seen.got] == [{"hits": 1}, {"hits": 2}]
    spans = [None if span is None else (span.kind, span.data["call_id"]) for _, span in seen.got]
    assert spans == [("tool", "c1") if traced else None] * 2


async def test_values_of_a_secret_output_are_hidden_in_the_web_form() -> None:
    """The consumer in the process gets the object; neither a text nor the JSON form shows it."""
    _, event, _ = await read(make_agent([log_in], call_each("log_in")))
    assert event.value == {"token": "hush"}
    assert "hush" not in repr(event)
    assert list(to_json(event)["value"]) == ["$digest"]


async def test_the_last_event_is_kept_while_the_consumer_is_behind() -> None:
    """A body that emits 10,000 events is not slowed down, and doesn't fill the memory; progress is kept beside."""
    done = anyio.Event()

    @tool
    async def chats(ctx: ToolContext[Any]) -> str:
        for step in range(10_000):
            ctx.emit(step)
            ctx.report_nowait(step)
        done.set()
        return "done"

    events = []
    config = RunConfig(stream_buffer=16)
    async with Runner.run_streamed(make_agent([chats], call_each("chats")), "go", run_config=config) as stream:
        async for event in stream:
            events.append(event)
            if isinstance(event, ev.ItemCreated) and not done.is_set():
                await done.wait()  # the consumer falls behind until the body has ended
    emitted = [event.value for event in events if isinstance(event, ev.CustomEvent)]
    assert emitted == sorted(set(emitted))
    assert emitted[-1] == 9_999
    assert len(emitted) <= 17
    assert [event.progress for event in events if isinstance(event, ev.CallProgress)][-1] == 9_999


@pytest.mark.real_clock
async def test_an_abandoned_thread_emits_nothing() -> None:
    """Its call has an outcome already, as for reports."""
    left, over = threading.Event(), threading.Event()
    emitted = Emissions()

    @tool(timeout=0.01, abandon_on_cancel=True)
    def stays(ctx: ToolContext[Any]) -> str:
        left.wait(30)
        ctx.emit("late")
        over.set()
        return "late"

    @tool
    async def waits() -> str:
        await anyio.to_thread.run_sync(over.wait, 30)
        return "seen"

    @tool
    async def frees_it() -> str:
        left.set()
        return "freed"

    agent = Agent(
        "a",
        model=ScriptedModel([call("stays"), call("frees_it"), call("waits"), say("done")]),
        tools=[stays, frees_it, waits],
    )
    events = await read(agent, RunConfig(instruments=[emitted]))
    assert not emitted.got
    assert not any(isinstance(event, ev.CustomEvent) for event in events)


async def test_emit_outside_a_run_is_a_users_error() -> None:
    """A context made by hand has no call to emit for."""
    with pytest.raises(UserError, match="emit"):
        ToolContext[Any](context=None, tool_name="t", tool_call_id="c1").emit(1)
