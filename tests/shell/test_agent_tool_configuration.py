"""Limits and instruments of an agent tool's own configuration: for the nested run, beside those of the outer one."""

from decimal import Decimal
from typing import Any

import anyio
import pytest
from shell.kit import Run, agent_with, outcome_of, records_of, requests_of, shown, statuses
from shell.scenario_kit import SpanWatch, Watch

from agentloop import (
    Agent,
    FunctionTool,
    Instrument,
    RunConfig,
    Runner,
    RunState,
    Span,
    UsageLimits,
    current_span,
    tool,
    trace,
)
from agentloop import records as r
from agentloop.exceptions import UsageLimitExceeded, UserTypeError
from agentloop.items import ToolCall
from agentloop.testing import ScriptedModel, call, respond, say
from agentloop.usage import RequestUsage

pytestmark = pytest.mark.anyio


@tool
async def dig(n: int = 0) -> str:
    """Dig."""
    return f"dug {n}"


def digger(times: int, *tools: FunctionTool, **fields: Any) -> Agent[Any, Any]:
    """Return an agent that digs that often, one turn each, and says so."""
    steps: list[Any] = [
        respond(ToolCall(f"n{n}", "dig", "{}"), usage=RequestUsage(total_tokens=10)) for n in range(times)
    ]
    return Agent("digger", model=ScriptedModel([*steps, say("dug")]), tools=tools or [dig], **fields)


def sending(inner: Agent[Any, Any], config: RunConfig | None, times: int = 1, **options: Any) -> Agent[Any, Any]:
    """Return an agent that sends *inner* digging that often."""
    steps = [call("digger", {"input": "dig"}, call_id=f"c{n}") for n in range(1, times + 1)]
    return agent_with([inner.as_tool(run_config=config, **options)], *steps)


def limited(**limits: Any) -> RunConfig:
    """Return a configuration with these limits."""
    return RunConfig(limits=UsageLimits(**limits))


# -- limits


@pytest.mark.parametrize("limits", [{"requests": 2}, {"total_tokens": 20}], ids=["requests", "tokens"])
async def test_limits_of_an_agent_tool_bound_what_its_run_uses(run_mode: Run, limits: dict[str, int]) -> None:
    """What the outer run has used before counts nothing; the outer model is told why the call failed."""
    inner = digger(3)
    outer = sending(inner, limited(**limits))
    result = await run_mode(outer, "go")
    assert statuses(result) == ["failed"]
    ((name, most),) = limits.items()
    why = f"UsageLimitExceeded(Usage limit exceeded: {name} {most} of {most})"
    assert shown(outer) == {"c1": f"Tool digger failed with: {why}"}
    assert len(requests_of(inner)) == 2
    assert result.usage.requests == 4


async def test_each_run_of_an_agent_tool_has_its_limits_to_itself(run_mode: Run) -> None:
    """A second call begins with nothing used."""
    inner = Agent("digger", model=ScriptedModel([call("dig"), say("one"), call("dig"), say("two")]), tools=[dig])
    outer = sending(inner, limited(requests=2, tool_calls=1), times=2)
    result = await run_mode(outer, "go")
    assert [outcome_of(result, call_id).value for call_id in ("c1", "c2")] == ["one", "two"]


async def test_calls_past_an_agent_tools_limit_are_skipped_there_alone(run_mode: Run) -> None:
    """The nested model is told, and may wind up; the outer run's calls go on."""
    inner = Agent("digger", model=ScriptedModel([[call("dig"), call("dig")], say("dug")]), tools=[dig])
    outer = agent_with(
        [inner.as_tool(run_config=limited(tool_calls=1)), dig],
        call("digger", {"input": "dig"}, call_id="c1"),
        [call("dig", call_id="c2"), call("dig", call_id="c3")],
    )
    result = await run_mode(outer, "go")
    assert list(shown(inner).values()) == ["dug 0", "Tool 'dig' was not started: the run's budget is spent."]
    assert statuses(result) == ["succeeded"] * 3


async def test_the_outer_run_s_limits_go_on_for_the_whole(run_mode: Run) -> None:
    """A nested run that might use more is stopped by what is left outside, and so is what follows."""
    inner = digger(5)
    outer = sending(inner, limited(requests=4))
    with pytest.raises(UsageLimitExceeded, match="requests 3 of 3") as caught:
        await run_mode(outer, "go", run_config=limited(requests=3))
    assert len(requests_of(inner)) == 2
    assert statuses(caught.value.run_data) == ["failed"]


async def test_a_call_is_paid_from_both_ledgers(run_mode: Run) -> None:
    """Its cost is refused where either has too little, and counts in both."""
    paid: FunctionTool = tool(name="dig", cost=lambda arguments: 2)(_paid)
    inner = Agent("digger", model=ScriptedModel([[call("dig"), call("dig")], say("dug")]), tools=[paid])
    outer = agent_with(
        [inner.as_tool(run_config=limited(cost=3)), paid],
        call("digger", {"input": "dig"}, call_id="c1"),
        [call("dig", call_id="c2"), call("dig", call_id="c3")],
    )
    result = await run_mode(outer, "go", run_config=limited(cost=5))
    skipped = "Tool 'dig' was not started: the run's budget is spent."
    assert list(shown(inner).values()) == ["paid", skipped]
    assert shown(outer) == {"c1": "dug", "c2": "paid", "c3": skipped}
    assert [record.cost for record in records_of(result, r.CallStarted)] == [None, "2", "2"]


async def _paid() -> str:
    return "paid"


@pytest.mark.parametrize("own", [None, Decimal(3)], ids=["the outer one's price", "a price of its own"])
async def test_requests_of_a_nested_run_cost_what_the_nearest_price_says(run_mode: Run, own: Decimal | None) -> None:
    """A configuration without a price doesn't make them free for the outer run."""
    inner = digger(1)
    config = RunConfig(
        limits=UsageLimits(cost=100), price=None if own is None else lambda name, usage: own if usage else 0
    )
    outer = sending(inner, config)
    asked: list[str] = []

    def price(name: str, usage: RequestUsage) -> int:
        asked.append(name)
        return 2

    result = await run_mode(outer, "go", run_config=RunConfig(limits=UsageLimits(cost=100), price=price))
    costs = [record.cost for record in records_of(result, r.ModelResponded) if record.path]
    assert costs[0] == ("2" if own is None else "3")
    assert len(asked) == (1 if own is None else 0)


async def test_a_resumed_nested_run_goes_on_with_what_it_has_used(run_mode: Run) -> None:
    """Its ledger is its part of the log: requests, calls and their cost, not those of the rest."""

    @tool(needs_approval=True, cost=lambda arguments: 2)
    async def dig(n: int = 0) -> str:
        """Dig."""
        return f"dug {n}"

    def asking() -> Agent[Any, Any]:
        steps = [call("dig", call_id="n1"), [call("dig", call_id="n2"), call("dig", call_id="n3")], say("dug")]
        return Agent("digger", model=ScriptedModel(steps), tools=[dig])

    outer = sending(asking(), limited(cost=5, requests=3))
    state = (await run_mode(outer, "go")).to_state()
    inner: Any = outer.tools[0].body
    for call_ids in (("n1",), ("n2", "n3")):
        for call_id in call_ids:
            state.approve(call_id)
        state = RunState.from_string(outer, state.to_string())
        result = await run_mode(outer, state)
        state = result.to_state()
    assert result.status == "completed"
    outputs = shown(inner.agent)
    assert outputs == {"n1": "dug 0", "n2": "dug 0", "n3": "Tool 'dig' was not started: the run's budget is spent."}
    assert statuses(result) == ["succeeded"]


def changed_later() -> RunConfig:
    """Return a configuration whose sequence has got a wrong member since it was made, which was looked at then."""
    policies: list[Any] = []
    config = RunConfig(policies=policies)
    policies.append(3)
    return config


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ("fast", "run_config: a RunConfig is needed"),
        (changed_later(), r"RunConfig\.policies\[0\]"),
    ],
    ids=["no configuration", "policies"],
)
async def test_a_configuration_that_can_not_be_is_refused_where_the_tool_is_made(config: Any, wanted: str) -> None:
    """Not in the middle of a run, where a model would be told of it."""
    with pytest.raises(UserTypeError, match=wanted):
        digger(1).as_tool(run_config=config)


# -- instruments


def watched(*instruments: Instrument, **fields: Any) -> RunConfig:
    """Return a configuration with these instruments."""
    return RunConfig(instruments=instruments, **fields)


async def test_instruments_of_an_agent_tool_are_told_of_its_run_alone(run_mode: Run) -> None:
    """Every record of the nested run, in order, and none of the outer one's; the outer run's are told of all."""
    own, all_of_it = Watch(), Watch()
    outer = sending(digger(1), watched(own), times=1)
    result = await run_mode(outer, "go", run_config=watched(all_of_it))
    assert own.records == [record for record in result.records if record.path]
    assert own.records
    assert all_of_it.records == list(result.records)


async def test_an_instrument_that_watches_both_runs_is_told_once(run_mode: Run) -> None:
    """It is told by the outer run."""
    both = SpanWatch()
    result = await run_mode(sending(digger(1), watched(both)), "go", run_config=watched(both))
    assert both.records == list(result.records)
    assert len({id(span) for span in both.started}) == len(both.started)


async def test_runs_deeper_down_are_told_too_and_each_once(run_mode: Run) -> None:
    """Instruments of two levels, the inner one's given twice."""
    middle, deep = Watch(), Watch()
    inner = digger(1)
    between = agent_with([inner.as_tool(run_config=watched(deep, middle))], call("digger", {"input": "dig"}, "m1"))
    outer = agent_with([between.as_tool("between", run_config=watched(middle))], call("between", {"input": "go"}, "c1"))
    result = await run_mode(outer, "go")
    assert middle.records == [record for record in result.records if record.path]
    assert deep.records == [record for record in result.records if len(record.path) == 2]
    assert deep.records


async def test_spans_of_a_nested_run_are_those_the_outer_run_makes(run_mode: Run) -> None:
    """One tree, one trace: the nested instruments are given the part that is theirs."""
    own, all_of_it = SpanWatch(), SpanWatch()
    await run_mode(sending(digger(1), watched(own)), "go", run_config=watched(all_of_it))
    assert own.started == [span for span in all_of_it.started if span.path]
    assert own.ended == [span for span in all_of_it.ended if span.path]
    assert [span.kind for span in own.started] == ["run", "agent", "turn", "model", "tool", "turn", "model"]
    assert own.started[0].parent is not None
    assert own.traces == []


async def test_spans_of_a_nested_run_are_a_tree_of_their_own_where_the_outer_run_makes_none(run_mode: Run) -> None:
    """In a trace of its own; inside a body the span is the current one."""
    seen: list[Span | None] = []

    @tool
    async def dig() -> str:
        """Dig."""
        seen.append(current_span())
        return "dug"

    own, plain = SpanWatch(), Watch()
    outer = sending(digger(1, dig), watched(own, workflow_name="digging"))
    result = await run_mode(outer, "go", run_config=watched(plain))
    assert [span.kind for span in own.started] == ["run", "agent", "turn", "model", "tool", "turn", "model"]
    assert own.started[0].parent is None
    assert {id(span) for span in own.ended} == {id(span) for span in own.started}
    assert seen == [own.started[4]]
    assert [what for what, _ in own.traces] == ["start", "end"]
    assert own.traces[0][1].workflow_name == "digging"
    nested = [record for record in records_of(result, r.RunStarted) if record.path]
    assert [record.trace_id for record in nested] == [own.traces[0][1].trace_id]


async def test_spans_go_by_the_nested_configuration(run_mode: Run) -> None:
    """What is sensitive stays out for whoever asked for that, and nobody is told of spans where tracing is off."""
    careful, off, all_of_it = SpanWatch(), SpanWatch(), SpanWatch()
    for config in (watched(careful, trace_include_sensitive_data=False), watched(off, tracing_disabled=True)):
        await run_mode(sending(digger(1), config), "go", run_config=watched(all_of_it))
    assert off.started == []
    assert off.records
    assert [span.data.get("arguments") for span in careful.started if span.kind == "tool"] == [None]
    assert [span.data.get("arguments") for span in all_of_it.started if span.name == "dig"] == ["{}", "{}"]


async def test_two_levels_share_the_tree_of_the_first_that_asks(run_mode: Run) -> None:
    """The inner one's spans stand in the middle one's tree."""
    middle, deep = SpanWatch(), SpanWatch()
    between = agent_with([digger(1).as_tool(run_config=watched(deep))], call("digger", {"input": "dig"}, "m1"))
    outer = agent_with([between.as_tool("between", run_config=watched(middle))], call("between", {"input": "go"}, "c1"))
    await run_mode(outer, "go")
    assert deep.started == [span for span in middle.started if len(span.path) == 2]
    assert deep.started
    assert deep.traces == []


async def test_a_resumed_nested_run_goes_on_in_its_trace(run_mode: Run) -> None:
    """As a run of its own would; the trace starts once."""

    @tool(needs_approval=True)
    async def dig() -> str:
        """Dig."""
        return "dug"

    own = SpanWatch()
    outer = sending(digger(1, dig), watched(own))
    state = (await run_mode(outer, "go")).to_state()
    state.approve("n0")
    await run_mode(outer, RunState.from_string(outer, state.to_string()))
    assert len({made.trace_id for _, made in own.traces}) == 1
    assert [what for what, _ in own.traces].count("start") == 1


async def test_a_trace_around_it_all_holds_the_nested_run_too(run_mode: Run) -> None:
    """It is neither started nor ended by it."""
    own = SpanWatch()
    with trace("night") as opened:
        await run_mode(sending(digger(1), watched(own)), "go")
    assert {span.trace.trace_id for span in own.started} == {opened.trace_id}
    assert own.traces == []


async def test_nobody_is_told_after_the_nested_run_has_ended(run_mode: Run) -> None:
    """What the outer run does next is not theirs, however the nested run ended."""
    own = Watch()

    @tool(failure_error_function=None)
    async def dig() -> str:
        """Dig."""
        raise ValueError("stone")

    outer = agent_with(
        [digger(1, dig).as_tool(run_config=watched(own)), tool(_paid, name="pay")],
        call("digger", {"input": "dig"}, "c1"),
        call("pay", call_id="c2"),
    )
    result = await run_mode(outer, "go")
    assert statuses(result) == ["failed", "succeeded"]
    assert own.records == [record for record in result.records if record.path]


async def test_late_results_of_a_nested_body_reach_its_instruments(run_mode: Run) -> None:
    """A value that comes when the call has its outcome already: both are told."""

    @tool(timeout=0.01)
    async def dig() -> str:
        """Dig."""
        try:
            await anyio.sleep(30)
        except BaseException:
            return "late"
        return "never"

    own, all_of_it = Watch(), Watch()
    await run_mode(sending(digger(1, dig), watched(own)), "go", run_config=watched(all_of_it))
    assert [report.value for report in own.late] == ["late"]
    assert [report.value for report in all_of_it.late] == ["late"]


def test_the_plain_entry_obeys_it_too() -> None:
    """In a loop of its own."""
    own = Watch()
    outer = sending(digger(3), RunConfig(limits=UsageLimits(requests=1), instruments=[own]))
    result = Runner.run_sync(outer, "go")
    assert statuses(result) == ["failed"]
    assert own.records
