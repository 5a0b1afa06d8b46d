"""Hooks of runs and agents: when they are called, with what, and what their own failure means."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from kit.agents import Run, script_agent
from kit.results import describe, find_records, read_outputs, read_requests
from kit.watching import AgentHookLog, RunHookLog

from agentloop import (
    Agent,
    AgentHooks,
    ModelBehaviorError,
    ModelInputData,
    RunConfig,
    RunContext,
    RunHooks,
    Runner,
    tool,
)
from agentloop import records as r
from agentloop.exceptions import ModelTransportError
from agentloop.guardrails import RejectContent, tool_output_guardrail
from agentloop.items import ToolCall, UserMessage
from agentloop.testing import call, fail, say


def journey(lines: list[str]) -> tuple[Agent[Any, Any], Agent[Any, Any]]:
    """Return two agents: the first calls a tool, hands over, and the second answers; bodies write into *lines*."""

    @tool
    async def look() -> str:
        lines.append("body")
        return "seen"

    second = script_agent("B", say("done"))
    first = script_agent("A", call("look", call_id="c"), call("transfer_to_b", call_id="h"), tools=[look])
    first.handoffs = [second]
    return first, second


JOURNEY = [
    "agent_start A",
    "llm_start A",
    "llm_end A",
    "tool_start look",
    "body",
    "tool_end look",
    "llm_start A",
    "llm_end A",
    "handoff A B",
    "agent_start B",
    "llm_start B",
    "llm_end B",
    "agent_end B",
    "run_end completed",
]


@pytest.mark.scenario("HS-01")
async def test_events_of_a_tool_a_handoff_and_a_message_come_in_order(run_mode: Run) -> None:
    """The events come in order from the agent's start to the run's end."""
    trace = RunHookLog()
    first, _ = journey(trace.lines)
    await run_mode(first, "go", hooks=trace)
    assert trace.lines == JOURNEY
    assert trace.args_of("run_end")[1].final_output == "done"
    assert trace.args_of("run_end")[1].error is None


@pytest.mark.scenario("HS-01")
async def test_start_events_go_to_the_run_first_and_end_events_to_the_agent_first(run_mode: Run) -> None:
    """The hooks run one after the other, for each kind of event."""
    lines: list[str] = []
    trace = RunHookLog(lines, "run ")
    first, second = journey(lines)
    first.hooks, second.hooks = AgentHookLog(lines, "A's "), AgentHookLog(lines, "B's ")
    await run_mode(first, "go", hooks=trace)
    assert lines == [
        "run agent_start A",
        "A's start A",
        "run llm_start A",
        "A's llm_start A",
        "A's llm_end A",
        "run llm_end A",
        "run tool_start look",
        "A's tool_start look",
        "body",
        "A's tool_end look",
        "run tool_end look",
        "run llm_start A",
        "A's llm_start A",
        "A's llm_end A",
        "run llm_end A",
        "run handoff A B",
        "A's out A B",
        "B's in B A",
        "run agent_start B",
        "B's start B",
        "run llm_start B",
        "B's llm_start B",
        "B's llm_end B",
        "run llm_end B",
        "B's end B",
        "run agent_end B",
        "run run_end completed",
    ]


@pytest.mark.scenario("HS-02")
async def test_agent_start_comes_once_per_activation(run_mode: Run) -> None:
    """The hook runs once per activation, not once per turn, and again when an agent is handed to again."""
    trace = RunHookLog()

    @tool
    async def look() -> str:
        return "seen"

    first = script_agent("A", call("look"), call("transfer_to_b"), call("look", call_id="x"), say("done"), tools=[look])
    second = script_agent("B", call("look", call_id="y"), call("transfer_to_a", call_id="z"), tools=[look])
    first.handoffs, second.handoffs = [second], [first]
    await run_mode(first, "go", hooks=trace)
    starts = [line for line in trace.lines if line.startswith("agent_start")]
    assert starts == ["agent_start A", "agent_start B", "agent_start A"]
    assert len([line for line in trace.lines if line.startswith("llm_start")]) == 6


@pytest.mark.scenario("HS-03")
async def test_llm_start_sees_what_the_filter_left(run_mode: Run) -> None:
    """The hook sees system prompt and input as the model receives them."""
    trace = RunHookLog()
    lines: list[Any] = []

    class Look(AgentHooks):
        async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
            lines.append((system, describe(input)))

    def only_this(data: ModelInputData) -> ModelInputData:
        return ModelInputData(input=(UserMessage("only this"),), instructions="filtered")

    agent = script_agent("A", say("done"), instructions="whole", hooks=Look())
    await run_mode(agent, "go", hooks=trace, run_config=RunConfig(call_model_input_filter=only_this))
    _, _, system, given = trace.args_of("llm_start")
    assert (system, describe(given)) == ("filtered", ["user:only this"])
    assert lines == [("filtered", ["user:only this"])]
    assert read_requests(agent)[0].system == "filtered"
    assert tuple(given) == tuple(read_requests(agent)[0].items)


@pytest.mark.scenario("HS-03")
@pytest.mark.parametrize("bad", [call("nothing"), call("look", call_id="")], ids=["unknown-tool", "no-id"])
async def test_llm_end_comes_before_tools_and_also_where_the_response_is_no_good(run_mode: Run, bad: Any) -> None:
    """The hook runs once for each response."""
    trace = RunHookLog()

    @tool
    async def look() -> str:
        trace.lines.append("body")
        return "seen"

    agent = script_agent("A", call("look"), [call("look"), bad], tools=[look])
    with pytest.raises(ModelBehaviorError):
        await run_mode(agent, "go", hooks=trace, run_config=RunConfig(tool_not_found_behavior="raise"))
    assert trace.lines == [
        "agent_start A",
        "llm_start A",
        "llm_end A",
        "tool_start look",
        "body",
        "tool_end look",
        "llm_start A",
        "llm_end A",
        "run_end failed",
    ]


@pytest.mark.scenario("HS-03")
async def test_llm_end_does_not_come_where_a_call_id_is_reused(run_mode: Run) -> None:
    """The response is refused as a whole, without the hook."""
    trace = RunHookLog()

    @tool
    async def look(n: int) -> str:
        return "seen"

    agent = script_agent("A", [call("look", {"n": 1}, "c"), call("look", {"n": 2}, "c")], tools=[look])
    with pytest.raises(ModelBehaviorError):
        await run_mode(agent, "go", hooks=trace)
    assert trace.lines == ["agent_start A", "llm_start A", "run_end failed"]


@pytest.mark.scenario("HS-04")
async def test_error_of_the_model_leaves_llm_start_without_an_end(run_mode: Run) -> None:
    """The hook at the run's end gets the error."""
    lines: list[str] = []
    trace = RunHookLog(lines)
    error = ModelTransportError("gone")
    agent = script_agent("A", fail(error), hooks=AgentHookLog(lines, "A's "))
    with pytest.raises(ModelTransportError):
        await run_mode(agent, "go", hooks=trace)
    assert lines == ["agent_start A", "A's start A", "llm_start A", "A's llm_start A", "run_end failed"]
    assert trace.args_of("run_end")[1].error is error


def pool_left_by(error: BaseException) -> Any:
    """Return a resource whose exit raises *error*."""

    @asynccontextmanager
    async def pool() -> AsyncIterator[str]:
        yield "open"
        raise error

    return pool


async def test_run_end_gets_the_error_that_is_raised(run_mode: Run) -> None:
    """The exit of a resource outranks the model's error, of which a note is left, if it isn't an `Exception`."""
    trace, leaving = RunHookLog(), SystemExit("left")
    pool = pool_left_by(leaving)

    @tool
    async def look(ctx: RunContext[Any]) -> str:
        return await ctx.resource(pool)

    agent = script_agent("A", call("look"), fail(ModelTransportError("gone")), tools=[look])
    with pytest.raises(SystemExit) as raised:
        await run_mode(agent, "go", hooks=trace)
    assert trace.args_of("run_end")[1].error is raised.value is leaving
    assert leaving.__notes__ == ["also failed: ModelTransportError(gone)"]


async def test_run_end_of_a_cancelled_run_gets_a_fatal_error_of_its_end(run_mode: Run) -> None:
    """It is what leaves the run, because it outranks the cancellation."""
    trace, leaving, opened = RunHookLog(), SystemExit("left"), anyio.Event()
    pool = pool_left_by(leaving)

    @tool
    async def look(ctx: RunContext[Any]) -> str:
        await ctx.resource(pool)
        opened.set()
        await anyio.sleep_forever()
        return "never"

    async def cancel() -> None:
        await opened.wait()
        scope.cancel()

    agent = script_agent("A", call("look"), tools=[look])
    async with anyio.create_task_group() as group:
        group.start_soon(cancel)
        with anyio.CancelScope() as scope, pytest.raises(SystemExit) as raised:
            await run_mode(agent, "go", hooks=trace)
    ended = trace.args_of("run_end")[1]
    assert (ended.status, ended.error) == ("failed", leaving)
    assert raised.value is leaving


@pytest.mark.scenario("HS-05")
async def test_tool_hooks_get_the_call_s_context(run_mode: Run) -> None:
    """The hooks of run and agent get the call's id, name and arguments."""
    seen: list[Any] = []

    class OfAgent(AgentHooks):
        async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
            seen.append(("agent start", ctx.tool_call_id, ctx.tool_name, ctx.tool_arguments, ctx.context))

        async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
            seen.append(("agent end", ctx.tool_call_id, ctx.tool_name, ctx.tool_arguments, ctx.context))

    class HooksOfRun(RunHooks):
        async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
            seen.append(("start", ctx.tool_call_id, ctx.tool_name, ctx.tool_arguments, ctx.context))

        async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
            seen.append(("end", ctx.tool_call_id, ctx.tool_name, ctx.tool_arguments, ctx.context))

    @tool
    async def look(n: int) -> str:
        return "seen"

    agent = script_agent("A", call("look", '{"n":1}', "c"), say("done"), tools=[look], hooks=OfAgent())
    await run_mode(agent, "go", hooks=HooksOfRun(), context="app")
    call_s = ("c", "look", '{"n":1}', "app")
    assert seen == [("start", *call_s), ("agent start", *call_s), ("agent end", *call_s), ("end", *call_s)]


@pytest.mark.scenario("HS-06")
async def test_tool_end_gets_the_value_and_what_the_model_sees(run_mode: Run) -> None:
    """The hook gets the Python object itself; after a rejected output it gets none."""
    trace = RunHookLog()
    value = {"n": [1, 2]}

    @tool
    async def give() -> Any:
        return value

    @tool_output_guardrail
    async def refuse(data: Any) -> Any:
        return RejectContent("not for you")

    hidden = tool(lambda: "secret", name="hidden", description="x", tool_output_guardrails=[refuse])
    agent = script_agent("A", [call("give"), call("hidden")], say("done"), tools=[give, hidden])
    await run_mode(agent, "go", hooks=trace)
    given = trace.args_of("tool_end give")[3]
    assert given.value is value
    assert given.output == '{"n": [1, 2]}'
    refused = trace.args_of("tool_end hidden")[3]
    assert (refused.value, refused.output) == (None, "not for you")


EVENTS = [
    "on_agent_start",
    "on_llm_start",
    "on_llm_end",
    "on_tool_start",
    "on_tool_end",
    "on_handoff",
    "on_agent_end",
    "on_run_end",
]


@pytest.mark.scenario("HS-07")
@pytest.mark.parametrize("event", EVENTS)
async def test_hook_that_raises_fails_the_run(run_mode: Run, event: str) -> None:
    """After the error only the run's end hook runs, and the end hook of a tool that was to start."""
    error = LookupError("hook")
    trace = RunHookLog()

    async def broken(*args: Any) -> None:
        trace.lines.append("broken")
        raise error

    setattr(trace, event, broken)
    first, _ = journey(trace.lines)
    first.hooks = AgentHookLog([])
    with pytest.raises(Exception) as caught:
        await run_mode(first, "go", hooks=trace)
    assert error in (caught.value, caught.value.__cause__)
    index = next(place for place, line in enumerate(JOURNEY) if line.startswith(event.removeprefix("on_")))
    after = {"on_run_end": [], "on_tool_start": ["tool_end look", "run_end failed"]}.get(event, ["run_end failed"])
    assert trace.lines == [*JOURNEY[:index], "broken", *after]


@pytest.mark.scenario("HS-07")
@pytest.mark.parametrize("event", ["agent_start", "llm_start", "llm_end", "tool_start", "tool_end", "agent_end"])
async def test_later_hooks_of_a_failed_event_are_not_started(run_mode: Run, event: str) -> None:
    """The agent's hook comes second at start events and the run's at end events; a failure leaves the second out."""
    lines: list[str] = []

    @tool
    async def look() -> str:
        return "seen"

    async def broken(*args: Any) -> None:
        lines.append("broken")
        raise LookupError("hook")

    async def later(*args: Any) -> None:
        lines.append("later")

    of_run, of_agent = RunHooks(), AgentHooks()
    agent_s = event.removeprefix("agent_") if event.startswith("agent_") else event
    starts = event.endswith("start")
    setattr(of_run, f"on_{event}", broken if starts else later)
    setattr(of_agent, f"on_{agent_s}", later if starts else broken)
    agent = script_agent("A", call("look") if "tool" in event else say("done"), tools=[look], hooks=of_agent)
    with pytest.raises(Exception, match="hook"):
        await run_mode(agent, "go", hooks=of_run)
    assert lines == ["broken"]


@pytest.mark.scenario("HS-07")
async def test_what_happened_before_a_failing_hook_is_kept(run_mode: Run) -> None:
    """The tool's output is in the error's data."""

    class Broken(RunHooks):
        async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
            if read_outputs(input):
                raise ModelBehaviorError("enough")

    first, _ = journey([])
    with pytest.raises(ModelBehaviorError, match="enough") as caught:
        await run_mode(first, "go", hooks=Broken())
    data = caught.value.run_data
    assert data is not None
    assert read_outputs(data.new_items) == {"c": "seen"}
    assert [record.status for record in find_records(data, r.RunEnded)] == ["failed"]


@pytest.mark.scenario("HS-08")
async def test_agent_hooks_in_the_place_of_run_hooks_are_refused(run_mode: Run) -> None:
    """A `TypeError` comes before anything starts, also for run hooks in the place of agent hooks."""
    agent = script_agent("A", say("never"))
    with pytest.raises(TypeError, match=r"give them to Agent\.hooks"):
        await run_mode(agent, "go", hooks=AgentHooks())
    with pytest.raises(TypeError, match="expected RunHooks"):
        Runner.run_streamed(agent, "go", hooks=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Agent\.hooks"):
        Agent("A", hooks=RunHooks())  # type: ignore[arg-type]
    assert read_requests(agent) == []


@pytest.mark.scenario("HS-09")
async def test_turn_input_is_visible_in_hooks(run_mode: Run) -> None:
    """Hooks see the items that the model receives in this turn; a tool's context has them too."""
    seen: dict[str, list[Any]] = {}

    class Look(RunHooks):
        async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
            seen.setdefault("llm_start", []).append(describe(ctx.turn_input))

        async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
            seen.setdefault("llm_end", []).append(describe(ctx.turn_input))

        async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
            seen.setdefault("tool_start", []).append(describe(ctx.turn_input))

        async def on_agent_end(self, ctx: Any, agent: Any, output: Any) -> None:
            seen.setdefault("agent_end", []).append(describe(ctx.turn_input))

    @tool
    async def look() -> str:
        return "seen"

    agent = script_agent("A", call("look", call_id="c"), say("done"), tools=[look])
    await run_mode(agent, "go", hooks=Look())
    first, second = ["user:go"], ["user:go", "call:look#c", "output:seen#c"]
    assert seen == {
        "llm_start": [first, second],
        "llm_end": [first, second],
        "tool_start": [first],
        "agent_end": [second],
    }


async def test_hooks_may_be_sync(run_mode: Run) -> None:
    """Hooks of runs and of agents may be sync."""
    lines: list[str] = []

    class HooksOfRun(RunHooks):
        def on_agent_start(self, ctx: Any, agent: Any) -> None:  # type: ignore[override]
            lines.append("run")

        def on_run_end(self, ctx: Any, outcome: Any) -> None:  # type: ignore[override]
            lines.append("end")

    class OfAgent(AgentHooks):
        def on_start(self, ctx: Any, agent: Any) -> None:  # type: ignore[override]
            lines.append("agent")

    await run_mode(script_agent("A", say("done"), hooks=OfAgent()), "go", hooks=HooksOfRun())
    assert lines == ["run", "agent", "end"]


async def test_llm_end_gets_the_response(run_mode: Run) -> None:
    """The hook gets the response's items and usage."""
    trace = RunHookLog()
    first, _ = journey([])
    await run_mode(first, "go", hooks=trace)
    assert trace.args_of("llm_end")[2].items == (ToolCall("c", "look", "{}"),)
