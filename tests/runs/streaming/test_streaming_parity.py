"""A streamed run is the plain one with a consumer: same result, and events that report it in order."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import httpx
import pytest
from kit.agents import Run, fine, make_agent
from kit.results import read_call_ids
from kit.watching import ToolHookLog

from agentloop import (
    Agent,
    Allow,
    GuardrailFunctionOutput,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    Runner,
    RunResult,
    ToolContext,
    ToolExecution,
    UserError,
    handoff,
    input_guardrail,
    output_guardrail,
    tool,
)
from agentloop import events as ev
from agentloop import model_events as m
from agentloop.abc import Model
from agentloop.exceptions import (
    ModelTransportError,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
)
from agentloop.guardrails import RaiseException, ReplaceOutput, tool_input_guardrail, tool_output_guardrail
from agentloop.items import AssistantMessage, HandoffCall, HandoffOutput, Item, Reasoning, ToolCall, ToolOutput
from agentloop.models import OpenAIChatModel
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, call, fail, normal, reason, say, stream_of, wait
from agentloop.usage import RequestUsage


async def streamed(agent: Agent[Any, Any], **options: Any) -> tuple[list[ev.Event], RunResult[Any]]:
    """Run *agent* and return its events and its result."""
    async with Runner.run_streamed(agent, "go", **options) as stream:
        events = [event async for event in stream]
    return events, stream.result


async def failing(agent: Agent[Any, Any], kind: type[BaseException], **options: Any) -> tuple[list[ev.Event], Any]:
    """Run *agent* and return its events, and the error that iteration raised after them."""
    events: list[ev.Event] = []
    with pytest.raises(kind) as raised:
        async with Runner.run_streamed(agent, "go", **options) as stream:
            async for event in stream:
                events.append(event)
    assert stream.error is raised.value
    return events, raised.value


def items_in(events: list[ev.Event]) -> list[Item]:
    """Return the items that the events created for the run itself."""
    return [event.item for event in events if isinstance(event, ev.ItemCreated) and not event.path]


# ---------------------------------------------------------------------------------------------- the same result


@input_guardrail
async def polite(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    await anyio.lowlevel.checkpoint()
    return GuardrailFunctionOutput("polite")


@input_guardrail(run_in_parallel=False)
def short(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(len(given))


@output_guardrail
async def safe(ctx: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output)


@tool_output_guardrail
def masked(data: Any) -> ReplaceOutput:
    return ReplaceOutput(f"masked {data.value}")


@attrs.frozen
class Report:
    """A structured answer."""

    title: str
    pages: int


class World:
    """A run with handoff, nested agent, session, guardrails and a structured answer; made anew for each run."""

    def __init__(self) -> None:
        self.session = MemorySession("s")
        self.hooks = ToolHookLog()

        @tool(tool_output_guardrails=(masked,))
        async def look(what: str) -> str:
            await anyio.lowlevel.checkpoint()
            return what

        @tool
        async def broken() -> str:
            raise ValueError("no luck")

        use = RequestUsage(input_tokens=3, output_tokens=1, total_tokens=4)
        nested = Agent(
            "nested", model=ScriptedModel([call("look", {"what": "x"}, call_id="n1"), say("dug", use)]), tools=[look]
        )
        self.second = Agent(
            "second",
            model=ScriptedModel(
                [[reason("hm"), call("look", {"what": "y"}, call_id="s1")], say('{"title": "T", "pages": 3}', use)]
            ),
            tools=[look],
            output_type=Report,
            output_guardrails=[safe],
        )
        self.first = Agent(
            "first",
            model=ScriptedModel(
                [
                    [say("Let me see."), call("look", {"what": "a"}), call("broken"), call("nested", {"input": "dig"})],
                    [reason("enough"), call("transfer_to_second")],
                ]
            ),
            tools=[look, broken, nested.as_tool()],
            handoffs=[handoff(self.second)],
            input_guardrails=[polite, short],
        )

    def options(self) -> dict[str, Any]:
        """Return what both ways of running are given."""
        return {"session": self.session, "hooks": self.hooks}


@pytest.mark.scenario("SP-01", "US-02")
async def test_streamed_run_gives_what_the_plain_one_gives() -> None:
    """Output, items, agent, usage, guardrail results, session, hooks and the log itself are equal."""
    plain, watched = World(), World()
    one = await Runner.run(plain.first, "go", **plain.options())
    _events, other = await streamed(watched.first, **watched.options())
    assert one.final_output == other.final_output == Report("T", 3)
    assert one.new_items == other.new_items
    assert other.last_agent is watched.second
    assert one.last_agent is plain.second
    assert one.usage == other.usage
    for stage in ("input", "output", "tool_input", "tool_output"):
        first, second = (getattr(result, f"{stage}_guardrail_results") for result in (one, other))
        assert [(found.guardrail.name, found.output) for found in first] == [
            (found.guardrail.name, found.output) for found in second
        ]
    assert len(one.input_guardrail_results) == 2
    assert len(one.tool_output_guardrail_results) == 2
    assert await plain.session.get_items() == await watched.session.get_items()
    assert sorted(plain.hooks.seen) == sorted(watched.hooks.seen)
    assert one.to_input_list() == other.to_input_list()
    assert normal(one.records) == normal(other.records)
    assert [settled.outcome.status for settled in one.calls] == [settled.outcome.status for settled in other.calls]


@pytest.mark.scenario("SP-12")
async def test_items_of_the_events_are_the_items_of_the_result() -> None:
    """The same items come in the same order; a reasoning item is before the call it led to."""
    world = World()
    events, result = await streamed(world.first, **world.options())
    seen = items_in(events)
    assert tuple(seen) == result.new_items
    places = [type(item) for item in seen]
    assert places.index(Reasoning) + 1 == places.index(HandoffCall)
    assert places.index(HandoffCall) + 1 == places.index(HandoffOutput)


@pytest.mark.scenario("SP-12", "LX-04")
async def test_calls_settle_in_their_order_and_outputs_come_in_the_models() -> None:
    """`CallSettled` comes at once, and `ItemCreated` of the outputs in model order."""
    turn = [anyio.Event() for _ in range(3)]

    @tool
    async def after(n: int, which: int | None = None) -> str:
        if which is not None:
            await turn[which].wait()
        return str(n)

    class Chain(ToolHookLog):
        async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
            await super().on_tool_end(ctx, agent, tool, outcome)
            turn[int(ctx.tool_call_id)].set()

    # 1 is first, then 2, then 0
    calls = [
        call("after", {"n": 0, "which": 2}, call_id="0"),
        call("after", {"n": 1}, call_id="1"),
        call("after", {"n": 2, "which": 1}, call_id="2"),
    ]
    events, _ = await streamed(make_agent([after], calls), hooks=Chain())
    assert [event.call.call_id for event in events if isinstance(event, ev.CallSettled)] == ["1", "2", "0"]
    assert [item.call_id for item in items_in(events) if isinstance(item, ToolOutput)] == ["0", "1", "2"]


@pytest.mark.scenario("GT-09")
@pytest.mark.parametrize("end", ["completed", "max_turns", "handoff", "tripwire"])
async def test_tool_guardrail_results_are_reported_however_the_run_ends(run_mode: Run, end: str) -> None:
    """The result or the error has the guardrail results of every call, in order."""

    @tool_input_guardrail
    async def before(data: Any) -> Any:
        return RaiseException("stop") if data.context.tool_call_id == "trips" else Allow(data.context.tool_call_id)

    @tool(tool_input_guardrails=(before,), tool_output_guardrails=(masked,))
    async def guarded() -> str:
        return "secret"

    second = Agent("second", model=ScriptedModel([say("the end")]))
    last = {
        "completed": say("done"),
        "max_turns": call("guarded", call_id="c2"),
        "handoff": call("transfer_to_second", call_id="h"),
        "tripwire": call("guarded", call_id="trips"),
    }[end]
    agent = make_agent([guarded], call("guarded", call_id="c1"), last, done=None, handoffs=[handoff(second)])
    try:
        data: Any = await run_mode(agent, "go", max_turns=3 if end == "handoff" else 2)
        assert end in ("completed", "handoff")
    except (MaxTurnsExceeded, ToolInputGuardrailTripwireTriggered) as error:
        data = error.run_data
        assert end in ("max_turns", "tripwire")
    found = [(one.call.call_id, one.guardrail.name, one.output) for one in data.tool_input_guardrail_results]
    wanted = [("c1", "before", Allow("c1"))]
    wanted += [("c2", "before", Allow("c2"))] if end == "max_turns" else []
    assert found[: len(wanted)] == wanted
    outputs = [(one.call.call_id, one.output) for one in data.tool_output_guardrail_results]
    assert outputs == [(call_id, ReplaceOutput("masked secret")) for call_id, _, _ in wanted]
    assert all(one.duration >= 0 for one in data.tool_input_guardrail_results)


# ---------------------------------------------------------------------------------------------- events


@pytest.mark.scenario("SP-02")
async def test_first_event_is_the_starting_agent_and_the_last_the_end() -> None:
    """The first event is `AgentUpdated` with the caller's own object; `RunEnded` comes once for the run."""
    agent = make_agent([fine], call("fine"))
    events, _ = await streamed(agent)
    assert isinstance(events[0], ev.AgentUpdated)
    assert events[0].agent is agent
    assert events[-1] == ev.RunEnded("completed", turn=2)
    assert sum(isinstance(event, ev.RunEnded) for event in events) == 1


@pytest.mark.scenario("SP-03")
async def test_deltas_come_before_items_and_items_before_bodies() -> None:
    """The pieces of a model call come first, then its items; a body runs after its call's item could be seen."""
    seen = anyio.Event()

    @tool
    async def gated(ctx: ToolContext[list[str]]) -> str:
        await seen.wait()  # waits for ever unless the item can be seen before the body is done
        ctx.context.append("body")
        return "ok"

    lines: list[str] = []
    pieces = [reason("because"), say("text that is longer than a chunk"), call("gated", {}, call_id="c1")]
    agent = make_agent([gated], pieces, done="good bye")
    async with Runner.run_streamed(agent, "go", context=lines) as stream:
        async for event in stream:
            name = type(event).__name__
            if isinstance(event, ev.ItemCreated):
                name = type(event.item).__name__
            lines.append(name)
            if isinstance(event, ev.ItemCreated) and isinstance(event.item, ToolCall):
                seen.set()
    short = [line for at, line in enumerate(lines) if at == 0 or line != lines[at - 1]]
    assert short == [
        "AgentUpdated",
        "TurnStarted",
        "ReasoningDelta",
        "TextDelta",
        "ArgumentsDelta",
        "Reasoning",
        "AssistantMessage",
        "ToolCall",
        *(["CallStarted", "body"] if short[8] == "CallStarted" else ["body", "CallStarted"]),
        "CallSettled",
        "ToolOutput",
        "TurnEnded",
        "TurnStarted",
        "TextDelta",
        "AssistantMessage",
        "RunEnded",
    ]


@pytest.mark.scenario("SP-03")
async def test_deltas_add_up_to_their_items() -> None:
    """Text and arguments come piece by piece and whole."""
    text, arguments = "a text of several chunks, at sixteen each", {"q": "arguments of several chunks"}

    @tool
    async def find(q: str) -> str:
        return q

    events, _ = await streamed(make_agent([find], [say(text), call("find", arguments, call_id="c1")]))
    first = [event for event in events if event.turn == 1]
    assert "".join(event.text for event in first if isinstance(event, ev.TextDelta)) == text
    assert json.loads("".join(event.delta for event in first if isinstance(event, ev.ArgumentsDelta))) == arguments


@pytest.mark.scenario("SP-06")
async def test_items_are_taken_from_their_own_events_where_the_last_event_has_none() -> None:
    """Some servers end a stream with an empty output; what came before it counts."""
    first = [
        m.ResponseStarted(),
        m.ItemDone(Reasoning(summary=("hm",))),
        m.ItemDone(ToolCall("c1", "fine", "{}")),
        m.ResponseDone(()),
    ]
    second = [m.ItemDone(AssistantMessage("all done")), m.ResponseDone((), response_id="r2")]
    for run in ("plain", "streamed"):
        agent = make_agent([fine], stream_of(first), stream_of(second), done=None)
        result = await Runner.run(agent, "go") if run == "plain" else (await streamed(agent))[1]
        assert result.final_output == "all done"
        assert [type(item) for item in result.new_items] == [Reasoning, ToolCall, ToolOutput, AssistantMessage]
        assert result.last_response_id == "r2"


@pytest.mark.scenario("SP-06")
async def test_items_of_the_last_event_count_where_it_has_some() -> None:
    """The last event has the whole answer, and no item is taken twice."""
    message = AssistantMessage("all done")
    agent = make_agent([], stream_of([m.ItemDone(message), m.ResponseDone((message,))]), done=None)
    _, result = await streamed(agent)
    assert result.new_items == (message,)


@pytest.mark.scenario("SP-13")
async def test_raw_responses_carry_their_request_ids() -> None:
    """The id a provider's support asks for is next to the response's own, plain and streamed."""

    def steps() -> list[Any]:
        return [
            stream_of([m.ResponseDone((ToolCall("c1", "fine", "{}"),), response_id="r1", request_id="req_1")]),
            stream_of([m.ResponseDone((AssistantMessage("x"),), response_id="r2", request_id="req_2")]),
        ]

    _, result = await streamed(make_agent([fine], *steps(), done=None))
    plain = await Runner.run(make_agent([fine], *steps(), done=None), "go")
    for one in (result, plain):
        assert [(got.response_id, got.request_id) for got in one.raw_responses] == [("r1", "req_1"), ("r2", "req_2")]


@pytest.mark.scenario("SP-14")
async def test_iterating_again_after_the_end_gives_nothing() -> None:
    """A second iteration inside the block or after it gives no event."""
    async with Runner.run_streamed(make_agent([fine], call("fine")), "go") as stream:
        assert [event async for event in stream]
        assert [event async for event in stream] == []
    assert [event async for event in stream] == []


# ---------------------------------------------------------------------------------------------- errors


def chat_model(*chunks: Any) -> OpenAIChatModel:
    """Return a model whose server streams these chunks."""
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=body)

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return OpenAIChatModel("m", base_url="http://example.invalid/v1", http_client=client)


def chunk(delta: Any, finish: str | None = None) -> Any:
    """Return one chunk of a chat completion."""
    return {"id": "r", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


@pytest.mark.scenario("SP-04", "SP-07")
async def test_incomplete_response_is_raised_after_what_it_had_streamed() -> None:
    """The events come first, then the error, from iteration; a plain run raises the same."""

    def agent() -> Agent[Any, Any]:
        calling = {"index": 0, "id": "c1", "type": "function", "function": {"name": "fine", "arguments": "{"}}
        model = chat_model(chunk({"content": "Let me"}), chunk({"tool_calls": [calling]}), chunk({}, "length"))
        return Agent("a", model=model, tools=[fine])

    events, error = await failing(agent(), ModelBehaviorError)
    assert [event.text for event in events if isinstance(event, ev.TextDelta)] == ["Let me"]
    assert events[-1] == ev.RunEnded("failed", turn=1)
    with pytest.raises(ModelBehaviorError) as raised:
        await Runner.run(agent(), "go")
    assert str(raised.value) == str(error)
    assert "length" in str(error)


@pytest.mark.scenario("SP-04")
async def test_failed_response_is_raised_after_what_it_had_streamed() -> None:
    """A model that reports failure at the end has streamed for nothing, but what it streamed was seen."""
    pieces = [say("so far"), fail(ModelBehaviorError("response failed: server_error"))]
    events, error = await failing(make_agent([], pieces, done=None), ModelBehaviorError)
    assert str(error) == "response failed: server_error"
    assert [type(event).__name__ for event in events] == ["AgentUpdated", "TurnStarted", "TextDelta", "RunEnded"]


@pytest.mark.scenario("SP-04", "SP-07")
async def test_servers_error_within_a_response_is_raised_after_what_it_had_streamed() -> None:
    """The error comes as an event of the stream, in one piece with the text before it."""

    def agent() -> Agent[Any, Any]:
        return Agent("a", model=chat_model(chunk({"content": "so far"}), {"error": {"message": "full", "code": 503}}))

    events, error = await failing(agent(), ModelTransportError)
    assert [type(event).__name__ for event in events if not isinstance(event, ev.RawModelEvent)] == [
        "AgentUpdated",
        "TurnStarted",
        "TextDelta",
        "RunEnded",
    ]
    assert "full (503)" in str(error)
    with pytest.raises(ModelTransportError) as raised:
        await Runner.run(agent(), "go")
    assert str(raised.value) == str(error)


@pytest.mark.scenario("SP-05")
async def test_response_that_just_ends_is_the_models_error() -> None:
    """A stream without its last event isn't an answer, with any content; the same holds for a provider's chunks."""
    cut = stream_of([m.TextDelta("half"), m.ItemDone(AssistantMessage("half"))])
    events, error = await failing(make_agent([], cut, done=None), ModelBehaviorError)
    assert any(isinstance(event, ev.TextDelta) for event in events)
    assert error.run_data.new_items == ()
    with pytest.raises(ModelBehaviorError):
        await Runner.run(make_agent([], cut, done=None), "go")
    await failing(Agent("a", model=chat_model(chunk({"content": "half"}))), ModelBehaviorError)


@pytest.mark.scenario("SP-04")
async def test_events_after_the_last_one_are_the_models_error() -> None:
    """Nothing may follow `ResponseDone`."""
    late = stream_of([m.ResponseDone((AssistantMessage("x"),)), m.TextDelta("late")])
    await failing(make_agent([], late, done=None), ModelBehaviorError)


@pytest.mark.scenario("SP-07", "MT-06")
@pytest.mark.parametrize("kind", ["max_turns", "tool", "guardrail", "transport", "hook"])
async def test_every_event_before_an_error_is_delivered_first(kind: str) -> None:
    """One rule for every error: the consumer has seen every record's event when iteration raises."""

    @tool(failure_error_function=None)
    async def broken() -> str:
        raise ValueError("no luck")

    @output_guardrail
    def tripping(ctx: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(None, tripwire_triggered=True)

    class Hooks(ToolHookLog):
        async def on_agent_end(self, ctx: Any, agent: Any, output: Any) -> None:
            if kind == "hook":
                raise RuntimeError("hook is broken")

    steps: dict[str, list[Any]] = {
        "max_turns": [call("fine", call_id="c1"), call("fine", call_id="c2")],
        "tool": [call("fine", call_id="c1"), call("broken", call_id="c2")],
        "guardrail": [call("fine", call_id="c1"), say("answer")],
        "transport": [call("fine", call_id="c1"), fail(ModelTransportError("gone"))],
        "hook": [call("fine", call_id="c1"), say("answer")],
    }
    agent = make_agent(
        [fine, broken], *steps[kind], done=None, output_guardrails=[tripping] if kind == "guardrail" else []
    )
    once = ModelSettings(retry=ModelRetrySettings(max_retries=0))  # the consumer leaves virtual time no chance to pass
    options: dict[str, Any] = {"hooks": Hooks(), "max_turns": 2, "run_config": RunConfig(model_settings=once)}
    events: list[ev.Event] = []
    with pytest.raises(Exception) as raised:
        async with Runner.run_streamed(agent, "go", **options) as stream:
            await anyio.lowlevel.checkpoint()
            while not stream.is_complete:  # the run is over before the consumer takes its first event
                await anyio.lowlevel.checkpoint()
            async for event in stream:
                events.append(event)
    assert events[-1] == ev.RunEnded("failed", turn=2)
    assert "c1" in read_call_ids(items_in(events))
    assert any(isinstance(item, ToolOutput) and item.call_id == "c1" for item in items_in(events))
    if kind == "max_turns":
        assert [item.call_id for item in items_in(events) if isinstance(item, ToolOutput)] == ["c1", "c2"]
    if kind == "guardrail":
        assert isinstance(raised.value, OutputGuardrailTripwireTriggered)
    # raised once: the block was left by it, iteration gives no more, `result` raises it again
    assert [event async for event in stream] == []
    with pytest.raises(type(raised.value)):
        stream.result


@pytest.mark.scenario("SP-09")
async def test_error_before_the_first_model_event_is_raised_from_iteration() -> None:
    """The block is entered as ever; iteration raises."""
    events, _error = await failing(make_agent([], fail(ModelTransportError("gone")), done=None), ModelTransportError)
    assert [type(event).__name__ for event in events] == ["AgentUpdated", "TurnStarted", "RunEnded"]


@pytest.mark.scenario("SP-09")
async def test_error_before_the_first_turn_is_raised_from_iteration() -> None:
    """Preparation fails: not even a turn has begun."""

    def instructions(ctx: Any, agent: Any) -> str:
        raise RuntimeError("no instructions")

    events, _ = await failing(make_agent([], instructions=instructions), RuntimeError)
    assert isinstance(events[0], ev.AgentUpdated)
    assert events[-1] == ev.RunEnded("failed")


class Closing(Model):
    """A model that notes when its response was closed."""

    def __init__(self, *events: m.ModelEvent, then: Any = None) -> None:
        self.events = events
        self.then = then
        self.closed = 0

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[AsyncIterator[m.ModelEvent]]:
        async def play() -> AsyncIterator[m.ModelEvent]:
            for event in self.events:
                yield event
            if isinstance(self.then, BaseException):
                raise self.then
            await anyio.sleep(60)

        events = play()
        try:
            yield events
        finally:
            self.closed += 1
            await events.aclose()  # type: ignore[attr-defined]

    def stream(self, request: m.ModelRequest) -> Any:
        return self._open()


@pytest.mark.scenario("SP-10")
@pytest.mark.parametrize("kind", ["model", "guardrail", "protocol", "consumer"])
async def test_models_response_is_closed_when_something_fails(kind: str) -> None:
    """The response is closed when the model, a guardrail beside it, the protocol, or the consumer's own code fails."""

    @input_guardrail
    async def broken(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        await anyio.lowlevel.checkpoint()
        raise RuntimeError("guardrail is broken")

    events: dict[str, tuple[m.ModelEvent, ...]] = {
        "protocol": (m.ResponseDone((AssistantMessage("x"),)), m.TextDelta("late"))
    }
    model = Closing(*events.get(kind, (m.TextDelta("so far"),)), then=OSError("gone") if kind == "model" else None)
    agent = Agent("a", model=model, input_guardrails=[broken] if kind == "guardrail" else [])
    wanted = {"model": OSError, "protocol": ModelBehaviorError, "guardrail": RuntimeError, "consumer": KeyError}[kind]
    with pytest.raises(wanted):
        async with Runner.run_streamed(agent, "go") as stream:
            async for event in stream:
                if kind == "consumer" and isinstance(event, ev.TextDelta):
                    raise KeyError("mine")
    assert model.closed == 1


class BrokenSession(MemorySession):
    """A session that can be read but not written."""

    async def add_items(self, items: Any) -> None:
        """Fail."""
        raise OSError("disk full")


@pytest.mark.scenario("SP-11", "DE-12")
async def test_failing_session_write_surfaces() -> None:
    """The error is raised from iteration after the events, and by a plain run; the events include the settled call."""
    agent = make_agent([fine], call("fine", call_id="c1"))
    events, error = await failing(agent, OSError, session=BrokenSession())
    assert str(error) == "disk full"
    assert any(isinstance(event, ev.CallSettled) for event in events)
    with pytest.raises(OSError, match="disk full"):
        await Runner.run(make_agent([fine], call("fine", call_id="c1")), "go", session=BrokenSession())


@pytest.mark.scenario("SP-11")
async def test_session_write_that_never_returns_is_cut_when_the_block_is_left() -> None:
    """A hanging session can't hold the consumer for longer than the cleanup grace."""
    writing = anyio.Event()

    class Hanging(MemorySession):
        async def add_items(self, items: Any) -> None:
            writing.set()
            await anyio.sleep(60)

    config = RunConfig(tool_execution=ToolExecution(cleanup_grace=0.05))
    with anyio.fail_after(30):
        async with Runner.run_streamed(make_agent([]), "go", session=Hanging(), run_config=config):
            await writing.wait()


@pytest.mark.slow
@pytest.mark.scenario("SP-07")
async def test_error_is_raised_at_block_exit_where_nobody_iterates() -> None:
    """The error is raised once; an error that was caught isn't raised again."""
    agent = make_agent([], fail(ModelTransportError("gone")), done=None)
    with pytest.raises(ModelTransportError):
        async with Runner.run_streamed(agent, "go") as stream:
            await stream.finished()
    agent = make_agent([], fail(ModelTransportError("gone")), done=None)
    async with Runner.run_streamed(agent, "go") as stream:
        with pytest.raises(ModelTransportError):
            async for _ in stream:
                pass
    assert isinstance(stream.error, ModelTransportError)
    with pytest.raises(ModelTransportError):
        stream.result


async def test_consumers_own_error_wins_and_the_runs_is_its_context() -> None:
    """Both failed: the consumer's leaves, the run's error isn't lost."""
    agent = make_agent([], fail(ModelTransportError("gone")), done=None)
    with pytest.raises(KeyError) as raised:
        async with Runner.run_streamed(agent, "go") as stream:
            await stream.finished()
            raise KeyError("mine")
    assert isinstance(raised.value.__context__, ModelTransportError)


async def test_result_before_the_end_is_a_users_error() -> None:
    """The run has no result before its end."""
    async with Runner.run_streamed(make_agent([], wait(60)), "go") as stream:
        with pytest.raises(UserError):
            stream.result
        assert not stream.is_complete
    assert stream.is_complete
    assert stream.result.status == "cancelled"


@pytest.mark.scenario("SP-12")
async def test_raw_events_of_a_provider_pass_through_in_place() -> None:
    """A provider's event outside the common ones comes through at its own place."""
    events = [m.Raw({"type": "a"}), m.TextDelta("x"), m.Raw({"type": "b"}), m.ResponseDone((AssistantMessage("x"),))]
    seen, _ = await streamed(make_agent([], stream_of(events), done=None))
    streamed_events = [event for event in seen if isinstance(event, ev.RawModelEvent | ev.TextDelta)]
    assert streamed_events == [
        ev.RawModelEvent({"type": "a"}, turn=1),
        ev.TextDelta("x", turn=1),
        ev.RawModelEvent({"type": "b"}, turn=1),
    ]


async def test_repeated_call_makes_no_second_event() -> None:
    """A call the model repeats by its id is answered from before: no event tells of it (PL-06)."""
    steps = [[reason("a"), call("fine", call_id="c1")], [reason("b"), call("fine", call_id="c1")]]
    events, result = await streamed(make_agent([fine], *steps))
    assert tuple(items_in(events)) == result.new_items
    assert sum(isinstance(item, Reasoning) for item in items_in(events)) == 1
