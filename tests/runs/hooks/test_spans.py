"""Spans: the reports that instruments receive about a run's pieces of work."""

import asyncio
from typing import Any

import anyio.lowlevel
import pytest
from kit.watching import SpanWatch

from agentloop import Agent, RunConfig, RunContext, RunOpening, Span, current_span, handoff, tool, trace
from agentloop.exceptions import MaxTurnsExceeded, ToolCallError
from agentloop.items import ToolCall
from agentloop.records import RunResumed
from agentloop.testing import FunctionModel, ScriptedModel, call, respond, say
from agentloop.usage import RequestUsage


def config(watcher: SpanWatch, **more: Any) -> RunConfig:
    return RunConfig(instruments=[watcher], **more)


@pytest.mark.scenario("HS-10")
async def test_a_run_makes_one_trace_and_a_run_in_a_trace_makes_none(run_mode: Any) -> None:
    """The caller's own trace is used and is not ended by the run."""
    alone = SpanWatch()
    await run_mode(Agent("a", model=ScriptedModel([say("x")])), "go", run_config=config(alone, workflow_name="mine"))
    assert [what for what, _ in alone.traces] == ["start", "end"]
    assert alone.traces[0][1] is alone.traces[1][1]
    assert alone.traces[0][1].workflow_name == "mine"
    inside = SpanWatch()
    with trace("outer") as outer:
        for _ in range(2):
            await run_mode(Agent("a", model=ScriptedModel([say("x")])), "go", run_config=config(inside))
    assert inside.traces == []
    assert {span.trace.trace_id for span in inside.started} == {outer.trace_id}
    assert len(inside.spans_of("run")) == 2


@pytest.mark.scenario("HS-11")
async def test_every_call_has_one_span_and_every_activation_one_agent_span(run_mode: Any) -> None:
    """A call that is answered without running has a span too; the agent's span names the tools it could use."""

    @tool
    async def good() -> str:
        return "fine"

    b = Agent("b", model=ScriptedModel([say("done")]))
    script = ScriptedModel([[call("good"), call("missing")], call("transfer_to_b")])
    a = Agent("a", model=script, tools=[good], handoffs=[handoff(b)])
    watcher = SpanWatch()
    await run_mode(a, "go", run_config=config(watcher, tool_not_found_behavior="tell_model"))
    assert sorted((span.name, span.data["status"]) for span in watcher.spans_of("tool")) == [
        ("good", "succeeded"),
        ("missing", "failed"),
    ]
    agents = watcher.spans_of("agent")
    assert [span.name for span in agents] == ["a", "b"]
    assert agents[0].data["tools"] == ("good",)
    assert agents[0].data["handoffs"] == ("transfer_to_b",)
    assert [span.name for span in watcher.spans_of("handoff")] == ["a -> b"]


@pytest.mark.scenario("HS-12")
async def test_turn_spans_carry_the_usage_of_their_turn(run_mode: Any) -> None:
    """The run's span carries the sum."""
    usage = RequestUsage(input_tokens=2, output_tokens=3, total_tokens=5)

    @tool
    async def good() -> str:
        return "fine"

    script = ScriptedModel([respond(ToolCall("c", "good"), usage=usage), say("x", usage=usage)])
    watcher = SpanWatch()
    await run_mode(Agent("a", model=script, tools=[good]), "go", run_config=config(watcher))
    assert [span.data["total_tokens"] for span in watcher.spans_of("turn")] == [5, 5]
    assert [span.data["total_tokens"] for span in watcher.spans_of("run")] == [10]
    off = SpanWatch()
    again = ScriptedModel([say("x")])
    await run_mode(Agent("a", model=again), "go", run_config=config(off, tracing_disabled=True))
    assert off.started == []


@pytest.mark.scenario("HS-13")
async def test_what_goes_wrong_marks_its_span(run_mode: Any) -> None:
    """An exceeded turn limit marks the run and the agent; several handoffs mark the handoff."""
    watcher = SpanWatch()
    with pytest.raises(MaxTurnsExceeded):
        await _one_turn_too_many(run_mode, watcher)
    assert "Max turns" in (watcher.spans_of("run")[0].error or "")
    b = Agent("b", model=ScriptedModel([say("done")]))
    many = ScriptedModel([[call("transfer_to_b"), call("transfer_to_b")]])
    second = SpanWatch()
    await run_mode(Agent("a", model=many, handoffs=[b]), "go", run_config=config(second))
    assert second.spans_of("handoff")[0].error == "Multiple handoffs requested"


async def _one_turn_too_many(run_mode: Any, watcher: SpanWatch) -> None:
    @tool
    async def good() -> str:
        return "fine"

    await run_mode(
        Agent("a", model=ScriptedModel([call("good")]), tools=[good]), "go", max_turns=1, run_config=config(watcher)
    )


@pytest.mark.scenario("HS-14")
async def test_a_failing_instrument_never_replaces_the_run_s_own_error(run_mode: Any) -> None:
    """The instrument's failure doesn't fail a run that succeeds either."""

    class Broken(SpanWatch):
        def on_span_start(self, span: Span) -> None:
            raise RuntimeError("span")

        def on_span_end(self, span: Span) -> None:
            raise RuntimeError("span")

    result = await run_mode(Agent("a", model=ScriptedModel([say("x")])), "go", run_config=config(Broken()))
    assert result.final_output == "x"

    @tool(failure_error_function=None)
    async def bad() -> str:
        raise ValueError("no")

    with pytest.raises(ToolCallError):
        await run_mode(Agent("a", model=ScriptedModel([call("bad")]), tools=[bad]), "go", run_config=config(Broken()))


@pytest.mark.scenario("TC-05")
async def test_the_span_of_a_call_that_cancels_itself_says_so(run_mode: Any) -> None:
    """Details stay out where sensitive data may not be traced."""

    @tool
    async def gone() -> str:
        await anyio.lowlevel.checkpoint()
        raise asyncio.CancelledError("the reason")

    for sensitive in (True, False):
        watcher = SpanWatch()
        agent = Agent("a", model=ScriptedModel([call("gone"), say("x")]), tools=[gone])
        await run_mode(agent, "go", run_config=config(watcher, trace_include_sensitive_data=sensitive))
        [span] = watcher.spans_of("tool")
        assert span.error == "Tool execution cancelled"
        assert ("the reason" in str(span.data)) is sensitive


@pytest.mark.scenario("FC-10")
async def test_the_span_of_a_failed_call_tells_whether_it_was_handled(run_mode: Any) -> None:
    """The span says `(non-fatal)` where the model received the failure, and has details on demand."""

    @tool
    async def told() -> str:
        raise ValueError("secret detail")

    for sensitive in (True, False):
        watcher = SpanWatch()
        agent = Agent("a", model=ScriptedModel([call("told"), say("x")]), tools=[told])
        await run_mode(agent, "go", run_config=config(watcher, trace_include_sensitive_data=sensitive))
        [span] = watcher.spans_of("tool")
        assert span.error == "Error running tool (non-fatal)"
        assert ("secret detail" in str(span.data)) is sensitive

    @tool(failure_error_function=None)
    async def raised() -> str:
        raise ValueError("secret detail")

    watcher = SpanWatch()
    with pytest.raises(ToolCallError):
        await run_mode(
            Agent("a", model=ScriptedModel([call("raised")]), tools=[raised]),
            "go",
            run_config=config(watcher, trace_include_sensitive_data=False),
        )
    assert watcher.spans_of("tool")[0].error == "Error running tool"
    assert "secret detail" not in str([(span.error, span.data) for span in watcher.ended])


async def test_a_body_runs_in_its_own_call_s_span(run_mode: Any) -> None:
    """Nested runs hang below the call; outside of bodies there is no current span."""
    seen: dict[str, Span | None] = {}

    @tool
    async def inner(ctx: RunContext[Any]) -> str:
        seen["inner"] = current_span()
        return "x"

    nested = Agent("nested", model=ScriptedModel([call("inner"), say("n")]), tools=[inner])
    agent = Agent("a", model=ScriptedModel([call("nested", {"input": "hi"}), say("x")]), tools=[nested.as_tool()])
    watcher = SpanWatch()
    await run_mode(agent, "go", run_config=config(watcher))
    span = seen["inner"]
    assert span is not None
    names = []
    while span is not None:
        names.append(f"{span.kind} {span.name}")
        span = span.parent
    assert names == [
        "tool inner",
        "turn turn 1",
        "agent nested",
        "run nested",
        "tool nested",
        "turn turn 1",
        "agent a",
        "run Agent workflow",
    ]
    assert current_span() is None


# ---------------------------------------------------------------------------------------------- other systems' spans


class Naming(SpanWatch):
    """Names the span of each run segment; keeps what it is told of the segments."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.openings: list[RunOpening] = []

    def on_run_open(self, opening: RunOpening) -> None:
        self.openings.append(opening)
        opening.identify(self.name)


def _traceparent(digit: str) -> str:
    return f"00-{digit * 32}-{digit * 16}-01"


@tool(needs_approval=True)
async def gated() -> str:
    """Be allowed."""
    return "allowed"


def _paused() -> Agent[Any, Any]:
    return Agent("a", model=FunctionModel(lambda request: [call("gated"), say("x")][request.turn - 1]), tools=[gated])


async def test_the_log_keeps_the_name_of_each_run_segments_span(run_mode: Any) -> None:
    """A later segment is told the last name; a segment without such an instrument changes nothing."""
    first, last = Naming(_traceparent("a")), Naming(_traceparent("b"))
    paused = await run_mode(_paused(), "go", run_config=config(first))
    [opening] = first.openings
    assert (opening.earlier, opening.trace) == (None, first.traces[0][1])
    assert (opening.run_id, paused.records[0].traceparent) == (paused.records[0].run_id, _traceparent("a"))
    again = await run_mode(_paused(), paused.to_state())
    state = again.to_state()
    state.approve(state.interruptions[0])
    done = await run_mode(_paused(), state, run_config=config(last))
    assert done.final_output == "x"
    assert [(one.earlier, one.run_id) for one in last.openings] == [(_traceparent("a"), opening.run_id)]
    resumed = [record for record in done.records if isinstance(record, RunResumed)]
    assert [record.traceparent for record in resumed] == [None, _traceparent("b")]
    [asked] = last.spans_of("model")
    assert (asked.data["provider"], asked.data["model"]) == ("FunctionModel", "FunctionModel")
    assert last.spans_of("run")[0].data["run_id"] == opening.run_id


@pytest.mark.parametrize("name", ["mine", "00-abc-def-01", _traceparent("A"), f"{_traceparent('a')}\n"])
async def test_a_name_that_is_none_is_refused_and_fails_no_run(
    run_mode: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As other errors of an instrument: it is logged, and the log of the run has no name."""
    result = await run_mode(Agent("a", model=ScriptedModel([say("x")])), "go", run_config=config(Naming(name)))
    assert result.records[0].traceparent is None
    [line] = [record for record in caplog.records if "on_run_open" in record.getMessage()]
    assert line.exc_info is not None
    assert "traceparent: not as W3C Trace Context writes it" in str(line.exc_info[1])
