"""Limits of an agent tool's own configuration bound the nested run, beside those of the outer one."""

from decimal import Decimal
from typing import Any

import pytest
from kit.agents import Run, make_agent, make_free_tool, make_gated_tool, script_agent
from kit.results import find_outcome, find_records, read_requests, read_shown_outputs, read_statuses
from kit.resuming import Pauses, approve, in_every_way
from kit.watching import Watch

from agentloop import (
    Agent,
    FunctionTool,
    RunConfig,
    Runner,
    RunState,
    UsageLimits,
    tool,
)
from agentloop import records as r
from agentloop.exceptions import UsageLimitExceeded, UserError, UserTypeError
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
    return make_agent([inner.as_tool(run_config=config, **options)], *steps)


def limited(**limits: Any) -> RunConfig:
    """Return a configuration with these limits."""
    return RunConfig(limits=UsageLimits(**limits))


# -- limits


@pytest.mark.parametrize("limits", [{"requests": 2}, {"total_tokens": 20}], ids=["requests", "tokens"])
async def test_limits_of_an_agent_tool_bound_what_its_run_uses(run_mode: Run, limits: dict[str, int]) -> None:
    """The outer run's earlier usage doesn't count; the outer model receives the reason why the call failed."""
    inner = digger(3)
    outer = sending(inner, limited(**limits))
    result = await run_mode(outer, "go")
    assert read_statuses(result) == ["failed"]
    ((name, most),) = limits.items()
    why = f"UsageLimitExceeded(Usage limit exceeded: {name} {most} of {most})"
    assert read_shown_outputs(outer) == {"c1": f"Tool digger failed with: {why}"}
    assert len(read_requests(inner)) == 2
    assert result.usage.requests == 4


async def test_each_run_of_an_agent_tool_has_its_limits_to_itself(run_mode: Run) -> None:
    """A second call of the agent tool begins with nothing used."""
    inner = Agent("digger", model=ScriptedModel([call("dig"), say("one"), call("dig"), say("two")]), tools=[dig])
    outer = sending(inner, limited(requests=2, tool_calls=1), times=2)
    result = await run_mode(outer, "go")
    assert [find_outcome(result, call_id).value for call_id in ("c1", "c2")] == ["one", "two"]


async def test_calls_past_an_agent_tools_limit_are_skipped_there_alone(run_mode: Run) -> None:
    """The nested model receives the refusal and may finish; the outer run's calls continue."""
    inner = Agent("digger", model=ScriptedModel([[call("dig"), call("dig")], say("dug")]), tools=[dig])
    outer = make_agent(
        [inner.as_tool(run_config=limited(tool_calls=1)), dig],
        call("digger", {"input": "dig"}, call_id="c1"),
        [call("dig", call_id="c2"), call("dig", call_id="c3")],
    )
    result = await run_mode(outer, "go")
    assert list(read_shown_outputs(inner).values()) == [
        "dug 0",
        "Tool 'dig' was not started: the run's budget is spent.",
    ]
    assert read_statuses(result) == ["succeeded"] * 3


async def test_the_outer_run_s_limits_go_on_for_the_whole(run_mode: Run) -> None:
    """A nested run that might use more is stopped by what is left outside, and so is what follows."""
    inner = digger(5)
    outer = sending(inner, limited(requests=4))
    with pytest.raises(UsageLimitExceeded, match="requests 3 of 3") as caught:
        await run_mode(outer, "go", run_config=limited(requests=3))
    assert len(read_requests(inner)) == 2
    assert read_statuses(caught.value.run_data) == ["failed"]


async def test_a_call_is_paid_from_both_ledgers(run_mode: Run) -> None:
    """The call's cost is refused where either ledger has too little, and counts in both."""
    paid: FunctionTool = tool(name="dig", cost=lambda arguments: 2)(_paid)
    inner = Agent("digger", model=ScriptedModel([[call("dig"), call("dig")], say("dug")]), tools=[paid])
    outer = make_agent(
        [inner.as_tool(run_config=limited(cost=3)), paid],
        call("digger", {"input": "dig"}, call_id="c1"),
        [call("dig", call_id="c2"), call("dig", call_id="c3")],
    )
    result = await run_mode(outer, "go", run_config=limited(cost=5))
    skipped = "Tool 'dig' was not started: the run's budget is spent."
    assert list(read_shown_outputs(inner).values()) == ["paid", skipped]
    assert read_shown_outputs(outer) == {"c1": "dug", "c2": "paid", "c3": skipped}
    assert [record.cost for record in find_records(result, r.CallStarted)] == [None, "2", "2"]


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
    costs = [record.cost for record in find_records(result, r.ModelResponded) if record.path]
    assert costs[0] == ("2" if own is None else "3")
    assert len(asked) == (1 if own is None else 0)


async def test_a_resumed_nested_run_goes_on_with_what_it_has_used(run_mode: Run) -> None:
    """The nested ledger restores requests, calls and their cost from its own part of the log."""

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
    outputs = read_shown_outputs(inner.agent)
    assert outputs == {"n1": "dug 0", "n2": "dug 0", "n3": "Tool 'dig' was not started: the run's budget is spent."}
    assert read_statuses(result) == ["succeeded"]


def changed_later() -> RunConfig:
    """Return a configuration whose sequence has got a wrong member since it was made, which was looked at then."""
    policies: list[Any] = []
    config = RunConfig(policies=policies)
    policies.append(3)
    return config


@pytest.mark.parametrize(("limit", "most"), [("requests", 4), ("cost", 4), ("tool_calls", 3)])
@in_every_way
async def test_limits_of_a_run_in_the_middle_count_what_the_one_within_used_before_a_pause(
    run_mode: Run, limit: str, most: int, way: str
) -> None:
    """Each of the two runs asks once before the pause and once after it; one call of the inner run is over before."""
    ran: list[Any] = []
    usage = RequestUsage(total_tokens=1)
    for given in (most, most - 1):
        calls = respond(ToolCall("f", "free"), ToolCall("g", "gated"), usage=usage)
        steps = [
            [calls, say("dug", usage)],
            [respond(ToolCall("m", "inner", '{"input": "x"}'), usage=usage), say("up", usage)],
        ]
        inner = script_agent("inner", *steps[0], tools=[make_free_tool(ran), make_gated_tool(ran)])
        middle = script_agent("middle", *steps[1], tools=[inner.as_tool()])
        config = RunConfig(limits=UsageLimits(**{limit: given}), price=lambda name, usage: 1)
        outer = make_agent([middle.as_tool(run_config=config)], call("middle", {"input": "x"}, "o"))
        pauses = Pauses(run_mode, way)
        paused = await pauses.run(outer)
        assert ran.pop() == ("free", 0)
        result = await pauses.resume(outer, paused, approve())
        refuses_run, refuses_call = given < most and limit != "tool_calls", given < most and limit == "tool_calls"
        assert read_statuses(result) == ["failed" if refuses_run else "succeeded"]
        assert ran == ([] if refuses_call else [("gated", 0)])
        ran.clear()


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ("fast", "run_config: expected a RunConfig"),
        (changed_later(), r"RunConfig\.policies\[0\]"),
    ],
    ids=["no configuration", "policies"],
)
async def test_a_configuration_that_can_not_be_is_refused_where_the_tool_is_made(config: Any, wanted: str) -> None:
    """The error comes at construction, and not in the middle of a run, where a model would receive it."""
    with pytest.raises(UserTypeError, match=wanted):
        digger(1).as_tool(run_config=config)


def test_instruments_of_a_nested_run_are_refused_where_the_tool_is_made() -> None:
    """The outer run's instruments see nested records by their path, so they are given there only."""
    with pytest.raises(UserError, match="Give them to the outer run"):
        digger(1).as_tool(run_config=RunConfig(instruments=[Watch()]))


def test_the_plain_entry_obeys_it_too() -> None:
    """The limits hold in the plain entry `run_sync` too."""
    outer = sending(digger(3), RunConfig(limits=UsageLimits(requests=1)))
    result = Runner.run_sync(outer, "go")
    assert read_statuses(result) == ["failed"]
