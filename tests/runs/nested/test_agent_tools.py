"""Agents as tools: a run nested in a call of another run."""

import json
from typing import Any

import anyio
import attrs
import pytest
from kit.agents import Run, configure_run, make_agent, make_gated_tool, make_usage
from kit.ending import Backend, advance_clock, check_duration
from kit.results import find_outcome, find_records, read_outputs, read_requests, read_shown_outputs, read_statuses
from kit.watching import ToolHookLog, Watch

from agentloop import Agent, RunConfig, Runner, RunTimeoutError, ToolCallError, ToolContext, handoff, tool
from agentloop import events as ev
from agentloop import records as r
from agentloop.config.conditions import MaxTurns
from agentloop.exceptions import ModelBehaviorError
from agentloop.items import ToolCall, ToolOutput, UserMessage
from agentloop.sessions import MemorySession
from agentloop.testing import ScriptedModel, call, fail, respond, say, wait


@tool
async def fine(n: int = 0) -> str:
    """Succeed."""
    return f"fine {n}"


def helper(*steps: Any, name: str = "helper", **fields: Any) -> Agent[Any, Any]:
    """Return an agent to be used as a tool."""
    return Agent(name, model=ScriptedModel(steps), **fields)


def asking(*agents: Agent[Any, Any], **options: Any) -> Agent[Any, Any]:
    """Return an agent that calls each of *agents* once, in one turn, with ids `c1 …`."""
    calls = [call(inner.name, {"input": "dig"}, call_id=f"c{place}") for place, inner in enumerate(agents, 1)]
    return make_agent([inner.as_tool(**options) for inner in agents], calls)


# ---------------------------------------------------------------------------------------------- what is shared


@pytest.mark.scenario("NA-01", "US-07", "DE-06")
async def test_nested_run_has_the_callers_object_and_counts_into_one_usage(run_mode: Run) -> None:
    """The application object is one and the same at every depth; each sees what the whole tree has used so far."""
    app = object()
    seen: list[tuple[Any, int, int]] = []

    @tool
    async def look(ctx: ToolContext[Any]) -> str:
        seen.append((ctx.context, ctx.usage.requests, ctx.usage.total_tokens))
        return "seen"

    inner = helper(
        respond(ToolCall("n1", "look", "{}"), usage=make_usage(10)), say("dug", usage=make_usage(20)), tools=[look]
    )
    outer = make_agent(
        [inner.as_tool(), look],
        respond(ToolCall("c1", "helper", '{"input": "dig"}'), usage=make_usage(100)),
        respond(ToolCall("c2", "look", "{}"), usage=make_usage(200)),
    )
    result = await run_mode(outer, "go", context=app)
    assert seen == [(app, 2, 110), (app, 4, 330)]
    assert seen[0][0] is app
    assert result.usage.requests == 5
    assert [entry.total_tokens for entry in result.usage.entries] == [100, 10, 20, 200]
    assert result.usage.total_tokens == 330
    assert read_shown_outputs(outer, 1) == {"c1": "dug"}


@pytest.mark.scenario("NA-12")
async def test_nested_run_goes_by_the_outer_configuration(run_mode: Run) -> None:
    """The nested run inherits the configuration object itself: model, policies, caps; also two levels down."""
    seen: list[Any] = []

    @tool
    async def look(ctx: ToolContext[Any]) -> str:
        seen.append(ctx.run_config)
        return "seen"

    model = ScriptedModel(
        [
            call("middle", {"input": "a"}),
            call("inner", {"input": "b"}),
            [call("look"), call("ghost")],
            say("inner done"),
            say("middle done"),
            say("outer done"),
        ]
    )
    inner = Agent("inner", tools=[look])
    middle = Agent("middle", tools=[inner.as_tool()])
    outer = Agent("outer", tools=[middle.as_tool()])
    config = RunConfig(model=model, tool_not_found_behavior="tell_model")
    result = await run_mode(outer, "go", run_config=config)
    assert result.final_output == "outer done"
    assert seen == [config]
    assert seen[0] is config
    assert [request.path for request in model.requests] == [
        (),
        ("call_1",),
        ("call_1", "call_2"),
        ("call_1", "call_2"),
        ("call_1",),
        (),
    ]
    assert read_outputs(model.requests[3].items) == {"call_3": "seen", "call_4": "Tool 'ghost' not found."}


@pytest.mark.scenario("NA-12")
async def test_configuration_given_to_an_agent_tool_is_its_own(run_mode: Run) -> None:
    """The given configuration replaces the outer one for the nested run alone."""
    own = RunConfig(tool_not_found_behavior="tell_model")
    inner = helper(call("ghost", call_id="n1"), say("survived"))
    outer = make_agent([inner.as_tool(run_config=own)], call("helper", {"input": "dig"}, call_id="c1"), call("ghost"))
    with pytest.raises(ModelBehaviorError, match="ghost"):
        await run_mode(outer, "go", run_config=RunConfig(tool_not_found_behavior="raise"))
    assert read_shown_outputs(outer, 1) == {"c1": "survived"}


async def test_condition_of_an_agent_tools_own_configuration_stops_the_nested_run_alone(run_mode: Run) -> None:
    """A stopped nested run has no output; the outer run continues."""
    inner = helper(call("fine"), call("fine"), say("late"), tools=[fine])
    outer = asking(inner, run_config=RunConfig(stop_when=MaxTurns(1)))
    result = await run_mode(outer, "go")
    assert result.status == "completed"
    assert read_shown_outputs(outer) == {"c1": "(no output)"}
    assert len(read_requests(inner)) == 1


async def test_cap_of_the_outer_run_holds_in_nested_ones(run_mode: Run) -> None:
    """The cap is per turn, and a nested run goes by it too."""
    live = peak = 0

    @tool
    async def count() -> str:
        nonlocal live, peak
        live += 1
        peak = max(peak, live)
        await anyio.lowlevel.checkpoint()
        live -= 1
        return ""

    inner = helper([call("count") for _ in range(6)], say("done"), tools=[count])
    await run_mode(asking(inner), "go", run_config=configure_run(max_function_tool_concurrency=2))
    assert peak == 2


# ---------------------------------------------------------------------------------------------- how it ends


@pytest.mark.scenario("NA-09")
async def test_nested_failure_is_told_to_the_model_by_default(run_mode: Run) -> None:
    """The error that ended the nested run is an ordinary failure of the call."""
    inner = helper(fail(ModelBehaviorError("no sense")))
    outer = asking(inner)
    result = await run_mode(outer, "go")
    assert result.final_output == "done"
    assert read_shown_outputs(outer) == {"c1": "Tool helper failed with: ModelBehaviorError(no sense)"}
    assert read_statuses(result) == ["failed"]


@pytest.mark.scenario("NA-09")
async def test_nested_failure_is_raised_where_the_tool_has_no_failure_function(run_mode: Run) -> None:
    """An error of the library keeps its type; another one is the cause of a `ToolCallError`."""
    with pytest.raises(ModelBehaviorError, match="no sense") as raised:
        await run_mode(asking(helper(fail(ModelBehaviorError("no sense"))), failure_error_function=None), "go")
    assert raised.value.run_data is not None
    assert raised.value.run_data.last_agent.name == "guide"
    with pytest.raises(ToolCallError, match="Error running tool helper: OSError: gone") as wrapped:
        await run_mode(asking(helper(fail(OSError("gone"))), failure_error_function=None), "go")
    assert isinstance(wrapped.value.__cause__, OSError)


@pytest.mark.scenario("NA-10")
async def test_nested_run_has_ten_turns_of_its_own(run_mode: Run) -> None:
    """The nested limit is 10, independent of the outer run's remaining turns; the eleventh request isn't made."""
    inner = helper(*[call("fine", {"n": n}) for n in range(12)], tools=[fine])
    outer = asking(inner)
    result = await run_mode(outer, "go", max_turns=2)
    assert result.final_output == "done"
    assert len(read_requests(inner)) == 10
    assert read_shown_outputs(outer) == {"c1": "Tool helper failed with: MaxTurnsExceeded(Max turns (10) exceeded)"}


@pytest.mark.scenario("NA-10")
@pytest.mark.parametrize(("limit", "wanted"), [(3, 3), (None, 13)])
async def test_turns_of_a_nested_run_can_be_set(run_mode: Run, limit: int | None, wanted: int) -> None:
    """The nested limit may be a number or None; the outer run's own limit counts its own turns alone."""
    inner = helper(*[call("fine", {"n": n}) for n in range(12)], say("dug"), tools=[fine])
    outer = asking(inner, max_turns=limit)
    await run_mode(outer, "go", max_turns=2)
    assert len(read_requests(inner)) == wanted
    assert ("dug" in str(read_shown_outputs(outer)["c1"])) is (limit is None)


async def test_depth_is_limited(run_mode: Run) -> None:
    """An agent that asks itself receives an error where `max_depth` is reached."""
    deeper = [call("loop", {"input": str(depth)}) for depth in range(3)]
    model = ScriptedModel([*deeper, say("deepest"), say("middle"), say("top")])
    agent: Agent[Any, Any] = Agent("loop", model=model, tools=[])
    agent.tools.append(agent.as_tool())  # type: ignore[attr-defined]
    result = await run_mode(agent, "go", run_config=RunConfig(max_depth=2))
    assert result.final_output == "top"
    assert [len(request.path) for request in model.requests] == [0, 1, 2, 2, 1, 0]
    assert "max_depth=2" in str(read_outputs(model.requests[3].items))


async def test_nested_run_sees_the_outer_deadline_and_ends_with_it(anyio_backend: Backend, run_mode: Run) -> None:
    """`RunConfig.timeout` bounds the whole tree; every call of it ends by the deadline."""
    left: list[float | None] = []

    @tool
    async def hang(ctx: ToolContext[Any]) -> str:
        left.append(ctx.deadline)
        advance_clock(60)
        await anyio.sleep_forever()
        return "never"

    watch = Watch()
    inner = helper(call("hang", call_id="n1"), tools=[hang])
    async with check_duration(anyio_backend, 60):
        with pytest.raises(RunTimeoutError):
            await run_mode(asking(inner), "go", run_config=configure_run(watch, config=RunConfig(timeout=60)))
    assert left[0] is not None
    assert 0 < left[0] <= 60
    assert watch.endings() == {"n1": ("cancelled", "deadline"), "c1": ("cancelled", "deadline")}


async def test_timeout_of_an_agent_tool_ends_the_nested_run_alone(run_mode: Run) -> None:
    """An agent tool has a timeout like any tool; what is nested has ended when the outer model is asked again."""
    ended: list[str] = []

    @tool
    async def hang() -> str:
        try:
            advance_clock(60)
            await anyio.sleep_forever()
        finally:
            ended.append("hang")
        return "never"

    watch = Watch()
    inner = helper(call("hang", call_id="n1"), tools=[hang])
    outer = make_agent(
        [inner.as_tool(timeout=60)],
        call("helper", {"input": "dig"}, call_id="c1"),
        lambda request: say(f"after {ended}"),
        done=None,
    )
    result = await run_mode(outer, "go", run_config=configure_run(watch))
    assert result.final_output == "after ['hang']"
    assert read_shown_outputs(outer) == {"c1": "Tool 'helper' timed out after 60 seconds."}
    ends = [(record.path, record.status) for record in watch.of(r.RunEnded)]
    assert ends == [(("c1",), "cancelled"), ((), "completed")]


async def test_call_inside_a_nested_run_can_be_cancelled_by_its_event() -> None:
    """`cancel_call` takes an event of a nested call, whose id may occur in other runs of the tree too."""
    running = anyio.Event()

    @tool
    async def hang() -> str:
        running.set()
        await anyio.sleep(60)
        return "never"

    inner = helper(call("hang", call_id="c1"), say("went on"), tools=[hang])
    outer = asking(inner)
    async with Runner.run_streamed(outer, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.CallStarted) and event.path:
                await running.wait()
                assert stream.cancel_call(event, "enough")
    assert read_shown_outputs(inner) == {"c1": "Tool hang failed with: ToolCancelledError(enough)"}
    assert read_shown_outputs(outer) == {"c1": "went on"}


async def test_outer_hooks_see_the_agent_tool_and_nothing_below(run_mode: Run) -> None:
    """Run hooks are the outer run's own: one start and one end for the agent tool."""
    hooks = ToolHookLog()
    inner = helper(call("fine", call_id="n1"), say("dug"), tools=[fine])
    await run_mode(asking(inner), "go", hooks=hooks)
    assert hooks.started == ["c1"]
    assert hooks.ended == [("c1", "succeeded", None)]
    assert hooks.run_ends == ["completed"]


# ---------------------------------------------------------------------------------------------- events


@pytest.mark.scenario("NA-11")
async def test_on_stream_gets_every_event_of_the_nested_run_in_order() -> None:
    """The handler gets the events that the whole stream shows under the call's path, from the first to `RunEnded`."""
    got: list[ev.Event] = []
    inner = helper([say("thinking"), call("fine", call_id="n1")], say("dug"), tools=[fine])
    outer = asking(inner, on_stream=got.append)
    async with Runner.run_streamed(outer, "go") as stream:
        seen = [event async for event in stream]
    assert got == [event for event in seen if event.path == ("c1",)]
    assert isinstance(got[0], ev.AgentUpdated)
    assert got[0].agent is inner
    assert got[-1] == ev.RunEnded("completed", path=("c1",), turn=2)
    assert any(isinstance(event, ev.TextDelta) for event in got)


@pytest.mark.scenario("NA-11")
async def test_slow_on_stream_delays_nobody_and_gets_all_before_the_call_ends(run_mode: Run) -> None:
    """The nested run continues while the handler waits at its first event; the outer model is asked after the last."""
    body_ran = anyio.Event()
    got: list[ev.Event] = []
    counts: list[int] = []

    @tool
    async def work() -> str:
        body_ran.set()
        return "worked"

    async def handler(event: ev.Event) -> None:
        await body_ran.wait()
        await anyio.lowlevel.checkpoint()
        got.append(event)

    def last(request: Any) -> Any:
        counts.append(len(got))
        return say("done")

    inner = helper(call("work"), say("dug"), tools=[work])
    outer = make_agent([inner.as_tool(on_stream=handler)], call("helper", {"input": "dig"}), last, done=None)
    await run_mode(outer, "go")
    assert counts == [len(got)]
    assert isinstance(got[-1], ev.RunEnded)


@pytest.mark.scenario("NA-11")
async def test_failing_on_stream_is_logged_and_changes_nothing(run_mode: Run, caplog: pytest.LogCaptureFixture) -> None:
    """The handler's error never becomes the run's."""

    def handler(event: ev.Event) -> None:
        raise RuntimeError("handler is broken")

    outer = asking(helper(say("dug")), on_stream=handler)
    result = await run_mode(outer, "go")
    assert result.final_output == "done"
    assert read_shown_outputs(outer) == {"c1": "dug"}
    assert "on_stream failed" in caplog.text


@pytest.mark.scenario("NA-11")
async def test_on_stream_is_told_of_the_agent_that_took_over(run_mode: Run) -> None:
    """A handoff inside the nested run names the new agent, the object."""
    got: list[ev.Event] = []
    second = helper(say("from the second"), name="second")
    inner = helper(call("transfer_to_second"), handoffs=[handoff(second)])
    outer = asking(inner, on_stream=got.append)
    await run_mode(outer, "go")
    agents = [event.agent for event in got if isinstance(event, ev.AgentUpdated)]
    assert agents == [inner, second]
    assert read_shown_outputs(outer) == {"c1": "from the second"}


@pytest.mark.scenario("NA-11")
async def test_on_stream_gets_all_before_a_nested_failure_goes_on(run_mode: Run) -> None:
    """When the failure is converted, the handler has had every event, `RunEnded` last."""
    got: list[ev.Event] = []
    counts: list[int] = []

    async def handler(event: ev.Event) -> None:
        await anyio.lowlevel.checkpoint()
        got.append(event)

    def told(ctx: Any, error: Exception) -> str:
        counts.append(len(got))
        return f"sorry: {error}"

    inner = helper(call("fine"), fail(ModelBehaviorError("no sense")), tools=[fine])
    outer = asking(inner, on_stream=handler, failure_error_function=told)
    await run_mode(outer, "go")
    assert read_shown_outputs(outer) == {"c1": "sorry: no sense"}
    assert counts == [len(got)]
    assert got[-1] == ev.RunEnded("failed", path=("c1",), turn=2)


async def test_on_stream_gets_nothing_of_the_run_around_when_its_own_pauses() -> None:
    """The pause releases outputs of the outer run that waited for it: they are events of that run."""
    got, settled = list[ev.Event](), anyio.Event()
    inner = helper([wait(settled), call("gated")], tools=[make_gated_tool([])])

    @tool
    async def quick() -> str:
        return "quick"

    class Settles(Watch):
        def on_record(self, record: Any) -> None:
            if isinstance(record, r.CallSettled):
                settled.set()

    calls = [call("helper", {"input": "x"}, call_id="c1"), call("quick", call_id="c2")]
    outer = make_agent([inner.as_tool(on_stream=got.append), quick], calls)
    result = await Runner.run(outer, "go", run_config=configure_run(Settles()))
    assert result.status == "interrupted"
    assert [item.call_id for item in result.new_items if isinstance(item, ToolOutput)] == ["c2"]
    assert isinstance(got[-1], ev.RunEnded)
    assert {event.path for event in got} == {("c1",)}


async def test_events_of_agent_tools_side_by_side_are_told_apart() -> None:
    """Two calls of one agent tool in one turn: each handler call has its own path, and nested ids don't collide."""
    got: list[ev.Event] = []
    model = ScriptedModel([[call("fine", call_id="n")], [call("fine", call_id="n")], say("dug"), say("dug")])
    inner: Agent[Any, Any] = Agent("helper", model=model, tools=[fine])
    calls = [call("helper", {"input": name}, call_id=name) for name in ("a", "b")]
    outer = make_agent([inner.as_tool(on_stream=got.append)], calls)
    async with Runner.run_streamed(outer, "go") as stream:
        seen = [event async for event in stream]
    for name in ("a", "b"):
        ours = [event for event in got if event.path == (name,)]
        assert ours == [event for event in seen if event.path == (name,)]
        assert sum(isinstance(event, ev.CallStarted) for event in ours) == 1
        assert isinstance(ours[-1], ev.RunEnded)
    assert read_shown_outputs(outer) == {"a": "dug", "b": "dug"}


# ---------------------------------------------------------------------------------------------- input and output


@attrs.frozen
class Question:
    """The structured input of an agent tool."""

    topic: str
    depth: int = 1


@pytest.mark.scenario("NA-15")
async def test_structured_input_is_seen_by_the_nested_run_as_an_object(run_mode: Run) -> None:
    """`tool_input` is the value, at every place of the nested run; plain agent tools and outer runs have None."""
    seen: dict[str, Any] = {}

    def looking(name: str) -> Any:
        @tool(name="look")
        async def look(ctx: ToolContext[Any]) -> str:
            seen[name] = ctx.tool_input
            return "seen"

        return look

    def instructions(ctx: Any, agent: Any) -> str:
        seen[f"instructions of {agent.name}"] = ctx.tool_input
        return "Be brief."

    plain = helper(call("look"), say("p"), name="plain", tools=[looking("plain")], instructions=instructions)
    typed = helper(call("look"), say("t"), name="typed", tools=[looking("typed")], instructions=instructions)
    outer = make_agent(
        [plain.as_tool(), typed.as_tool(parameters=Question), looking("outer")],
        [
            call("plain", {"input": "x"}, call_id="c1"),
            call("typed", {"topic": "bees", "depth": 2}, call_id="c2"),
            call("look", call_id="c3"),
        ],
    )
    await run_mode(outer, "go")
    question = Question("bees", 2)
    assert seen == {
        "plain": None,
        "typed": question,
        "outer": None,
        "instructions of plain": None,
        "instructions of typed": question,
    }
    assert read_shown_outputs(outer) == {"c1": "p", "c2": "t", "c3": "seen"}


async def test_structured_input_becomes_json_or_what_the_builder_makes(run_mode: Run) -> None:
    """The nested run receives JSON without `input_builder`, and text or items with it."""
    first, second, third = (helper(say("ok"), name=name) for name in ("first", "second", "third"))

    async def build(question: Question) -> list[Any]:
        return [UserMessage("look up"), UserMessage(question.topic)]

    tools = [
        first.as_tool(parameters=Question),
        second.as_tool(parameters=Question, input_builder=lambda question: f"about {question.topic}"),
        third.as_tool(parameters=Question, input_builder=build),
    ]
    arguments = {"topic": "bees", "depth": 3}
    outer = make_agent(tools, [call(name, arguments) for name in ("first", "second", "third")])
    await run_mode(outer, "go")
    assert [json.loads(item.text) for item in read_requests(first)[0].items] == [arguments]
    assert [item.text for item in read_requests(second)[0].items] == ["about bees"]
    assert [item.text for item in read_requests(third)[0].items] == ["look up", "bees"]


async def test_a_builder_without_parameters_is_given_the_text(run_mode: Run) -> None:
    """It makes text or items of it, of a secret text secret ones."""
    first, second = helper(say("ok"), name="first"), helper(say("ok"), name="second")

    async def build(text: str) -> list[Any]:
        return [UserMessage("look up"), UserMessage(text)]

    tools = [
        first.as_tool(input_builder=lambda text: f"about {text}"),
        second.as_tool(input_builder=build, secret=("input",)),
    ]
    outer = make_agent(tools, [call(name, {"input": "bees"}) for name in ("first", "second")])
    await run_mode(outer, "go")
    assert [item.text for item in read_requests(first)[0].items] == ["about bees"]
    assert [(item.text, item.secret) for item in read_requests(second)[0].items] == [("look up", True), ("bees", True)]


async def test_structured_input_that_does_not_fit_is_told_to_the_model(run_mode: Run) -> None:
    """The nested run doesn't begin, and the outer model receives the fault."""
    inner = helper(say("never"))
    tools = [inner.as_tool(parameters=Question)]
    outer = make_agent(tools, call("helper", {"topic": "bees", "depth": "deep"}, call_id="c1"))
    result = await run_mode(outer, "go")
    assert read_requests(inner) == []
    assert read_statuses(result) == ["failed"]
    assert "depth" in str(read_shown_outputs(outer)["c1"])


async def test_extractor_decides_what_the_tool_gives(run_mode: Run) -> None:
    """The extractor gets the nested run's result, and its value is the call's."""
    inner = helper(call("fine", call_id="n1"), say("dug"), tools=[fine])

    async def extract(result: Any) -> dict[str, Any]:
        return {"said": result.final_output, "calls": len(result.calls), "agent": result.last_agent.name}

    outer = asking(inner, custom_output_extractor=extract)
    result = await run_mode(outer, "go")
    assert find_outcome(result, "c1").value == {"said": "dug", "calls": 1, "agent": "helper"}


async def test_nested_run_keeps_a_session_of_its_own(run_mode: Run) -> None:
    """The second of two nested runs sees the first one's items in their own session, not in the outer one."""
    inner_session, outer_session = MemorySession("inner"), MemorySession("outer")
    inner = helper(say("first"), say("second"))
    outer = make_agent(
        [inner.as_tool(session=inner_session)],
        call("helper", {"input": "one"}, call_id="c1"),
        call("helper", {"input": "two"}, call_id="c2"),
    )
    result = await run_mode(outer, "go", session=outer_session)
    assert [item.text for item in read_requests(inner)[1].items] == ["one", "first", "two"]  # type: ignore[union-attr]
    assert [item.text for item in await inner_session.get_items()] == ["one", "first", "two", "second"]  # type: ignore[union-attr]
    assert await outer_session.get_items() == [*result.input, *result.new_items]


async def test_records_of_the_tree_stand_in_one_log(run_mode: Run) -> None:
    """A nested run's records carry its call's id; it begins after its call and ends before it."""
    inner = helper(call("fine", call_id="c1"), say("dug"), tools=[fine])
    result = await run_mode(asking(inner), "go")
    kinds = [(type(record).__name__, record.path) for record in result.records]
    started, ended = kinds.index(("RunStarted", ("c1",))), kinds.index(("RunEnded", ("c1",)))
    assert kinds.index(("CallStarted", ())) < started < kinds.index(("CallSettled", ("c1",))) < ended
    assert ended < kinds.index(("CallSettled", ()))
    assert len({record.run_id for record in find_records(result, r.RunStarted)}) == 2


async def test_model_of_a_nested_run_under_way_is_closed_when_the_call_is_cancelled() -> None:
    """A nested run that waits for its model ends with its call, and the outer run continues."""
    inner = helper(wait(60))
    outer = asking(inner)
    async with Runner.run_streamed(outer, "go") as stream:
        async for event in stream:
            if isinstance(event, ev.TurnStarted) and event.path:
                assert stream.cancel_call("c1", "enough")
    assert stream.result.final_output == "done"
    assert read_shown_outputs(outer) == {"c1": "Tool helper failed with: ToolCancelledError(enough)"}
    ends = [(record.path, record.status) for record in find_records(stream.result, r.RunEnded)]
    assert ends == [(("c1",), "cancelled"), ((), "completed")]
