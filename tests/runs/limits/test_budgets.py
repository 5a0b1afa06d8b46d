"""The bounds of a run: its time, its usage, conditions that stop it, and a model that turns in circles."""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from kit.agents import Run, configure_run, make_agent, make_usage, script_agent, script_turns
from kit.ending import Backend, Rendezvous, advance_clock, cancel_when, check_duration
from kit.results import find_records, read_requests, read_shown_outputs, read_statuses
from kit.resuming import BatchJournal
from kit.watching import ToolHookLog, Watch

from agentloop import (
    Agent,
    Allow,
    ErrorHandlerResult,
    MaxTurnsExceeded,
    ModelSettings,
    RunConfig,
    RunHooks,
    Runner,
    RunState,
    RunTimeoutError,
    StateError,
    StopAtTools,
    ToolContext,
    ToolExecution,
    ToolsToFinalOutput,
    UsageLimitExceeded,
    UsageLimits,
    UserError,
    tool,
)
from agentloop import records as r
from agentloop.config.conditions import MaxTurns, TextMention, TokenLimit, ToolCalled
from agentloop.exceptions import ToolLoopDetected, UserTypeError
from agentloop.guardrails import RejectContent, tool_input_guardrail
from agentloop.items import AssistantMessage, HostedToolCall, SystemMessage, ToolCall
from agentloop.testing import ScriptedModel, call, respond, say, wait
from agentloop.usage import RequestUsage


@tool
async def fine(n: int = 0) -> str:
    """Succeed."""
    return f"fine {n}"


@tool
async def other() -> str:
    """Succeed too."""
    return "other"


# ---------------------------------------------------------------------------------------------- time


@pytest.mark.scenario("LX-23")
async def test_run_timeout_ends_running_calls_and_says_what_was_done(anyio_backend: Backend, run_mode: Run) -> None:
    """At 60 s the call ends by the deadline, and `RunTimeoutError` leaves with the results so far."""
    ended: list[str] = []
    beside = anyio.Event()

    class UntilSettled(Watch):
        def on_record(self, record: Any) -> None:
            super().on_record(record)
            if isinstance(record, r.CallSettled) and record.call_id == "c2":
                beside.set()

    @tool
    async def slow() -> str:
        try:
            await beside.wait()
            advance_clock(60)
            await anyio.sleep_forever()
        finally:
            ended.append("slow")
        return "never"

    watch, hooks = UntilSettled(), ToolHookLog()
    agent = make_agent(
        [fine, slow], call("fine", call_id="c1"), [call("fine", call_id="c2"), call("slow", call_id="c3")]
    )
    async with check_duration(anyio_backend, 60):
        with pytest.raises(RunTimeoutError) as raised:
            await run_mode(agent, "go", hooks=hooks, run_config=configure_run(watch, config=RunConfig(timeout=60)))
    assert raised.value.timeout == 60
    data = raised.value.run_data
    assert data is not None
    assert [(one.call.call_id, one.outcome.status, one.outcome.cancelled_by) for one in data.calls] == [
        ("c1", "succeeded", None),
        ("c2", "succeeded", None),
        ("c3", "cancelled", "deadline"),
    ]
    assert ended == ["slow"]
    assert watch.end == "failed"
    assert hooks.run_ends == ["failed"]
    assert data.usage.requests == 2


async def test_a_hook_that_hangs_at_the_end_is_cut_at_the_runs_time_and_grace(
    anyio_backend: Backend, run_mode: Run
) -> None:
    """The run has completed, and stays so; the cut is recorded."""

    class Hangs(RunHooks):
        async def on_run_end(self, ctx: Any, outcome: Any) -> None:  # type: ignore[override]
            advance_clock(60)
            await anyio.sleep_forever()

    config = RunConfig(timeout=60, tool_execution=ToolExecution(cleanup_grace=0.1))
    async with check_duration(anyio_backend, 60.1):
        result = await run_mode(make_agent([], say("done")), "go", hooks=Hangs(), run_config=config)
    assert result.status == "completed"
    assert [cut.section for cut in find_records(result, r.CleanupCut)] == ["on_run_end"]


@pytest.mark.scenario("LX-23")
async def test_callers_cancellation_is_never_the_runs_timeout(run_mode: Run) -> None:
    """The caller's scope has a shorter deadline, so its cancellation leaves, recorded as `parent`."""

    @tool
    async def slow() -> str:
        advance_clock(60)
        await anyio.sleep_forever()
        return "never"

    watch = Watch()
    agent = make_agent([slow], call("slow", call_id="c1"))
    with anyio.move_on_after(60) as scope:
        await run_mode(agent, "go", run_config=configure_run(watch, config=RunConfig(timeout=120)))
    assert scope.cancelled_caught
    assert watch.end == "cancelled"
    assert watch.endings() == {"c1": ("cancelled", "parent")}


async def test_timeout_during_a_model_call_closes_it(run_mode: Run) -> None:
    """The run's timeout leaves, not the model's."""

    def silent(request: Any) -> Any:
        advance_clock(60)
        return wait(anyio.Event())

    watch = Watch()
    with pytest.raises(RunTimeoutError):
        await run_mode(make_agent([], silent), "go", run_config=configure_run(watch, config=RunConfig(timeout=60)))
    assert [record.error for record in watch.of(r.ModelFailed)] == ["cancelled"]


async def test_time_left_is_known_everywhere(run_mode: Run) -> None:
    """Instructions and bodies see the nearest deadline around them; without one there is None."""
    seen: list[float | None] = []

    @tool
    async def look(ctx: ToolContext[Any]) -> str:
        seen.append(ctx.deadline)
        return "seen"

    def instructions(ctx: Any, agent: Any) -> str:
        seen.append(ctx.deadline)
        return "Be brief."

    await run_mode(make_agent([look], call("look"), instructions=instructions), "go")
    assert seen == [None, None, None]
    seen.clear()
    agent = make_agent([look], call("look"), instructions=instructions)
    await run_mode(agent, "go", run_config=RunConfig(timeout=30))
    assert len(seen) == 3
    assert all(left is not None and 25 < left <= 30 for left in seen)
    seen.clear()
    with anyio.fail_after(10):
        await run_mode(make_agent([look], call("look")), "go", run_config=RunConfig(timeout=30))
    assert all(left is not None and 5 < left <= 10 for left in seen)


# ---------------------------------------------------------------------------------------------- usage limits


async def test_requests_are_refused_once_used_up(run_mode: Run) -> None:
    """The limit is checked before a request: running work is never cut, and the error carries the finished calls."""
    agent = make_agent([fine], *[call("fine", {"n": n}) for n in range(5)])
    with pytest.raises(UsageLimitExceeded, match="requests 3 of 3") as raised:
        await run_mode(agent, "go", run_config=RunConfig(limits=UsageLimits(requests=3)))
    assert len(read_requests(agent)) == 3
    assert raised.value.run_data is not None
    assert read_statuses(raised.value.run_data) == ["succeeded"] * 3


@pytest.mark.parametrize("limit", ["input_tokens", "output_tokens", "total_tokens"])
async def test_tokens_may_overshoot_once(run_mode: Run, limit: str) -> None:
    """The request that passes the limit is counted and used; the next isn't made."""
    usage = RequestUsage(input_tokens=6, output_tokens=6, total_tokens=6)
    steps = [respond(ToolCall(f"c{n}", "fine", "{}"), usage=usage) for n in range(4)]
    agent = make_agent([fine], *steps)
    with pytest.raises(UsageLimitExceeded, match=f"{limit} 12 of 10"):
        await run_mode(agent, "go", run_config=RunConfig(limits=UsageLimits(**{limit: 10})))
    assert len(read_requests(agent)) == 2


async def test_limits_hold_for_nested_runs_together(run_mode: Run) -> None:
    """The whole tree has one ledger, so the nested run's request is refused when the tree has spent the limit."""
    inner = Agent("inner", model=ScriptedModel([call("fine"), say("dug")]), tools=[fine])
    agent = make_agent([inner.as_tool()], call("inner", {"input": "x"}, call_id="c1"))
    with pytest.raises(UsageLimitExceeded, match="requests 2 of 2"):
        await run_mode(agent, "go", run_config=RunConfig(limits=UsageLimits(requests=2)))
    assert len(read_requests(inner)) == 1
    assert len(read_requests(agent)) == 1


@pytest.mark.scenario("LX-69")
async def test_cost_is_reserved_atomically(run_mode: Run) -> None:
    """Limit 100, calls of 60, 61 and 62 side by side: one runs, two are refused, and no body of those starts."""
    together: list[int] = []

    @tool(cost=lambda arguments: arguments["amount"])
    async def pay(amount: int) -> str:
        together.append(amount)
        await anyio.lowlevel.checkpoint()
        return f"paid {amount}"

    calls = [call("pay", {"amount": amount}, call_id=f"c{amount}") for amount in (60, 61, 62)]
    agent = make_agent([pay], calls)
    result = await run_mode(agent, "go", run_config=RunConfig(limits=UsageLimits(cost=100)))
    assert len(together) == 1
    assert sorted(read_statuses(result)) == ["skipped", "skipped", "succeeded"]
    outputs = read_shown_outputs(agent)
    assert outputs.pop(f"c{together[0]}") == f"paid {together[0]}"
    assert set(outputs.values()) == {"Tool 'pay' was not started: the run's budget is spent."}
    assert all(one.outcome.started_at is None for one in result.calls if one.outcome.status == "skipped")


@pytest.mark.scenario("LX-69")
async def test_first_in_model_order_gets_the_budget(run_mode: Run) -> None:
    """The calls that run don't depend on the backend's order of tasks."""

    @tool(cost=lambda arguments: arguments["amount"])
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    for _ in range(5):
        calls = [call("pay", {"amount": amount}, call_id=f"c{amount}") for amount in (50, 60, 40, 11)]
        result = await run_mode(make_agent([pay], calls), "go", run_config=RunConfig(limits=UsageLimits(cost=100)))
        assert read_statuses(result) == ["succeeded", "skipped", "succeeded", "skipped"]


@pytest.mark.scenario("LX-69")
async def test_call_that_does_not_start_gives_its_cost_back(run_mode: Run) -> None:
    """A guardrail refuses the call in turn one, so turn two has room for its cost."""
    allow = False

    @tool_input_guardrail
    def gate(data: Any) -> Any:
        return Allow() if allow else RejectContent("not now")

    @tool(cost=lambda arguments: 60, tool_input_guardrails=(gate,))
    async def pay() -> str:
        return "paid"

    def second(request: Any) -> Any:
        nonlocal allow
        allow = True
        return call("pay", call_id="c2")

    agent = make_agent([pay], call("pay", call_id="c1"), second, call("pay", call_id="c3"))
    result = await run_mode(agent, "go", run_config=RunConfig(limits=UsageLimits(cost=100)))
    assert read_statuses(result) == ["rejected", "succeeded", "skipped"]


@pytest.mark.scenario("LX-69")
async def test_call_that_does_not_start_gives_its_cost_back_before_its_slot(run_mode: Run) -> None:
    """With one slot, the next call takes both in one step, and there is room for it."""

    @tool_input_guardrail
    def gate(data: Any) -> Any:
        return RejectContent("not you") if data.arguments["n"] == 0 else Allow()

    @tool(cost=lambda arguments: 60, tool_input_guardrails=(gate,))
    async def pay(n: int) -> str:
        return "paid"

    agent = make_agent([pay], [call("pay", {"n": n}) for n in range(2)])
    one = ToolExecution(max_function_tool_concurrency=1)
    config = RunConfig(limits=UsageLimits(cost=100), tool_execution=one)
    assert read_statuses(await run_mode(agent, "go", run_config=config)) == ["rejected", "succeeded"]


async def test_number_of_calls_is_limited(run_mode: Run) -> None:
    """Calls past the limit are answered and those before it run, side by side or over turns."""
    agent = make_agent([fine], [call("fine", {"n": n}) for n in range(3)], [call("fine", {"n": n}) for n in range(2)])
    result = await run_mode(agent, "go", run_config=RunConfig(limits=UsageLimits(tool_calls=4)))
    assert read_statuses(result) == ["succeeded"] * 4 + ["skipped"]


async def test_requests_and_calls_share_one_cost(run_mode: Run) -> None:
    """The price of requests counts too; a further request past the limit is refused, with the numbers."""
    priced: list[tuple[str, int]] = []

    def price(name: str, usage: RequestUsage) -> Decimal:
        priced.append((name, usage.total_tokens))
        return Decimal(usage.total_tokens)

    @tool(cost=lambda arguments: 50)
    async def pay() -> str:
        return "paid"

    agent = make_agent([pay], respond(ToolCall("c1", "pay", "{}"), usage=make_usage(40)), say("done"), done=None)
    config = RunConfig(limits=UsageLimits(cost=90), price=price)
    with pytest.raises(UsageLimitExceeded, match="cost 90 of 90"):
        await run_mode(agent, "go", run_config=config)
    assert priced == [("ScriptedModel", 40)]


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        (RunConfig(limits=UsageLimits(cost=1), price=lambda name, usage: 1), True),
        (RunConfig(price=lambda name, usage: 1), True),
        (RunConfig(limits=UsageLimits(total_tokens=10)), True),
        (RunConfig(limits=UsageLimits(output_tokens=10)), True),
        (RunConfig(limits=UsageLimits(requests=10)), False),
        (RunConfig(), False),
    ],
)
async def test_a_limit_that_nothing_counts_for_gets_a_line(
    run_mode: Run, caplog: pytest.LogCaptureFixture, config: RunConfig, warned: bool
) -> None:
    """A server that tells no usage would never reach a limit on tokens or cost: one line for each run says so."""
    result = await run_mode(make_agent([fine], call("fine", {"n": 1}), say("done"), done=None), "go", run_config=config)
    assert result.cost is None
    assert [text for text in caplog.messages if "told no usage" in text] == (
        ["model ScriptedModel told no usage, so limits on tokens and cost don't count its requests"] if warned else []
    )


@pytest.mark.scenario("WR-06")
@pytest.mark.parametrize("told", [make_usage(40), None], ids=["with its usage", "without usage"])
async def test_the_providers_fees_for_hosted_calls_count_too(run_mode: Run, told: RequestUsage | None) -> None:
    """Each call has its fee, beside the price of the tokens; the record has their sum. What lists tools has none."""
    asked: list[tuple[str, str]] = []

    def fee(name: str, hosted: HostedToolCall) -> Decimal | float:
        asked.append((name, hosted.kind))
        return Decimal("0.50") if hosted.kind == "web_search_call" else 0.25

    used = [HostedToolCall(kind) for kind in ("mcp_list_tools", "web_search_call", "mcp_call")]
    agent = make_agent([fine], respond(*used, ToolCall("c1", "fine", "{}"), usage=told), say("done"), done=None)
    config = RunConfig(limits=UsageLimits(cost=41), hosted_price=fee, price=lambda name, usage: usage.total_tokens)
    result = await run_mode(agent, "go", run_config=config)
    spent = "0.75" if told is None else "40.75"
    assert [record.cost for record in find_records(result, r.ModelResponded)] == [spent, None]
    assert asked == [("ScriptedModel", "web_search_call"), ("ScriptedModel", "mcp_call")]
    with pytest.raises(UsageLimitExceeded, match=f"cost {spent} of 0.7"):
        again = make_agent([fine], respond(*used, ToolCall("c1", "fine", "{}"), usage=told), say("done"), done=None)
        await run_mode(again, "go", run_config=attrs.evolve(config, limits=UsageLimits(cost=0.7)))


async def test_hosted_calls_of_a_nested_run_cost_what_the_nearest_price_says(run_mode: Run) -> None:
    """A configuration without a price for them doesn't make them free for the outer run."""
    search = HostedToolCall("web_search_call")
    for own, expected in ((None, "2"), (lambda name, hosted: 3, "3")):
        inner = script_agent("inner", respond(search, AssistantMessage("found")))
        config = RunConfig(limits=UsageLimits(cost=100), hosted_price=own)
        send = inner.as_tool("send", "Send.", run_config=config)
        outer = make_agent([send], call("send", {"input": "go"}), say("done"), done=None)
        priced = RunConfig(limits=UsageLimits(cost=100), hosted_price=lambda name, hosted: 2)
        result = await run_mode(outer, "go", run_config=priced)
        assert [one.cost for one in find_records(result, r.ModelResponded)] == [None, expected, None]


async def test_limits_of_the_wrong_kind_are_a_users_error() -> None:
    """The limits are checked before the run begins."""
    with pytest.raises(UserTypeError, match=r"RunConfig\.limits"):
        await Runner.run(make_agent([]), "go", run_config=RunConfig(limits={"requests": 3}))


# ---------------------------------------------------------------------------------------------- conditions


@pytest.mark.scenario("LX-72")
async def test_condition_of_two_stops_when_both_hold(run_mode: Run) -> None:
    """The tool is called in turn one; the run stops after turn two, and the reason names both."""
    agent = make_agent([fine, other], call("fine"), call("other"), call("other"))
    config = RunConfig(stop_when=ToolCalled("fine") & MaxTurns(2))
    result = await run_mode(agent, "go", run_config=config)
    assert (result.status, result.final_output) == ("stopped", None)
    assert result.stop_reason == "ToolCalled('fine') & MaxTurns(2)"
    assert len(read_requests(agent)) == 2
    assert read_statuses(result) == ["succeeded", "succeeded"]
    assert find_records(result, r.RunEnded)[-1].stop_reason == result.stop_reason


@pytest.mark.scenario("LX-72")
async def test_condition_of_two_does_not_stop_for_one_alone(run_mode: Run) -> None:
    """The number of turns is reached, but the tool wasn't called, so the run continues."""
    agent = make_agent([fine, other], call("other"), call("other"), call("other"))
    result = await run_mode(agent, "go", run_config=RunConfig(stop_when=ToolCalled("fine") & MaxTurns(2)))
    assert result.status == "completed"


@pytest.mark.scenario("LX-73")
async def test_first_true_branch_stops_the_run_and_names_itself(run_mode: Run) -> None:
    """The first branch to hold is a mention in the text of a turn that also calls, or the number of turns."""
    condition = MaxTurns(2) | TextMention("DONE")
    agent = make_agent([fine], [say("I am DONE now"), call("fine")], call("fine"), call("fine"))
    result = await run_mode(agent, "go", run_config=RunConfig(stop_when=condition))
    assert (result.status, result.stop_reason) == ("stopped", "TextMention('DONE')")
    assert len(read_requests(agent)) == 1
    agent = make_agent([fine], *[call("fine", {"n": n}) for n in range(3)])
    result = await run_mode(agent, "go", run_config=RunConfig(stop_when=condition))
    assert (result.status, result.stop_reason) == ("stopped", "MaxTurns(2)")
    assert len(read_requests(agent)) == 2


@pytest.mark.scenario("LX-73")
async def test_mention_is_looked_for_in_tool_outputs_of_the_turn(run_mode: Run) -> None:
    """The mention is not looked for in the input or in earlier turns."""

    @tool
    async def speak() -> str:
        return "all DONE here"

    agent = make_agent([fine, speak], call("fine"), call("speak"), call("fine"))
    result = await run_mode(agent, "say DONE", run_config=RunConfig(stop_when=TextMention("DONE")))
    assert result.status == "stopped"
    assert len(read_requests(agent)) == 2


async def test_tokens_stop_a_run_with_a_result(run_mode: Run) -> None:
    """A token condition gives a result, unlike a usage limit, which raises an error."""
    steps = [respond(ToolCall(f"c{n}", "fine", "{}"), usage=make_usage(6)) for n in range(4)]
    agent = make_agent([fine], *steps)
    result = await run_mode(agent, "go", run_config=RunConfig(stop_when=TokenLimit(12)))
    assert (result.status, result.stop_reason) == ("stopped", "TokenLimit(12)")
    assert result.usage.total_tokens == 12


@pytest.mark.scenario("LX-74")
async def test_predicate_of_the_context_stops_the_run(run_mode: Run) -> None:
    """The predicate, sync or async, alone or composed, sees the application's object and the usage."""

    def enough(ctx: Any) -> bool:
        return bool(ctx.usage.requests >= 2)

    async def wanted(ctx: Any) -> bool:
        await anyio.lowlevel.checkpoint()
        return bool(ctx.context["stop"])

    for condition, reason in ((enough, "Predicate(enough)"), (ToolCalled("fine") & wanted, None)):
        agent = make_agent([fine], *[call("fine", {"n": n}) for n in range(4)])
        config = RunConfig(stop_when=condition)
        result = await run_mode(agent, "go", context={"stop": False}, run_config=config)
        assert result.status == ("stopped" if reason else "completed")
        assert result.stop_reason == reason


async def test_run_that_has_its_answer_completes_whatever_its_condition(run_mode: Run) -> None:
    """The condition is looked at between turns: a final output isn't thrown away."""
    result = await run_mode(make_agent([]), "go", run_config=RunConfig(stop_when=MaxTurns(1)))
    assert (result.status, result.final_output) == ("completed", "done")


async def test_predicate_that_answers_no_bool_is_a_users_error(run_mode: Run) -> None:
    """A truthy object would end a run by mistake."""
    agent = make_agent([fine], call("fine"))
    with pytest.raises(UserTypeError, match="True or False"):
        await run_mode(agent, "go", run_config=RunConfig(stop_when=lambda ctx: "yes"))


# ---------------------------------------------------------------------------------------------- the last turn


@pytest.mark.scenario("LX-75", "MT-04")
@pytest.mark.parametrize("include", [True, False])
async def test_handler_of_max_turns_ends_the_run_with_its_output(run_mode: Run, include: bool) -> None:
    """The handler gets the error and the run's data; its output is the run's, in the history if it says so."""
    given: list[Any] = []

    async def handler(data: Any) -> ErrorHandlerResult:
        given.append(data)
        return ErrorHandlerResult("that is all I have", include_in_history=include)

    agent = make_agent([fine], *[call("fine", {"n": n}) for n in range(4)])
    result = await run_mode(agent, "go", max_turns=2, error_handlers={"max_turns": handler}, context="app")
    assert (result.status, result.final_output) == ("completed", "that is all I have")
    assert len(read_requests(agent)) == 2
    [data] = given
    assert isinstance(data.error, MaxTurnsExceeded)
    assert read_statuses(data.run_data) == ["succeeded", "succeeded"]
    assert data.context == "app"
    texts = [getattr(item, "text", None) for item in result.new_items]
    assert (texts[-1] == "that is all I have") is include


@pytest.mark.scenario("LX-77")
@pytest.mark.parametrize("behavior", ["stop_on_first_tool", StopAtTools("finish")])
async def test_terminal_tool_lets_its_batch_complete_and_asks_no_more(run_mode: Run, behavior: Any) -> None:
    """A slower sibling, before it and after it, comes to its end and its output is kept."""
    meeting = Rendezvous(3)

    @tool
    async def finish() -> str:
        await meeting.wait()
        return "finished"

    @tool
    async def sibling(n: int) -> str:
        await meeting.wait()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        return f"sibling {n}"

    calls = [call("sibling", {"n": 1}), call("finish"), call("sibling", {"n": 2})]
    agent = make_agent([finish, sibling], calls, tool_use_behavior=behavior)
    result = await run_mode(agent, "go")
    assert result.final_output == ("sibling 1" if behavior == "stop_on_first_tool" else "finished")
    assert read_statuses(result) == ["succeeded"] * 3
    assert len(read_requests(agent)) == 1
    assert len([item for item in result.new_items if type(item).__name__ == "ToolOutput"]) == 3


def _decide_nothing(ctx: Any, results: Any) -> ToolsToFinalOutput:
    return ToolsToFinalOutput(is_final=False)


LAST_TURNS: dict[str, Callable[[], Agent[Any, Any]]] = {
    "calls": lambda: make_agent([fine], *[call("fine", {"n": n}) for n in range(3)]),
    "handoff": lambda: script_agent(
        "guide", call("transfer_to_next"), handoffs=[script_agent("next", call("fine"), say("done"), tools=[fine])]
    ),
    "the application's choice": lambda: make_agent(
        [fine], *[call("fine", {"n": n}) for n in range(3)], tool_use_behavior=_decide_nothing
    ),
    "invalid answer": lambda: make_agent(
        [], say("no"), say("no"), done='{"response": 7}', output_type=int, output_retries=3
    ),
}
"""Agents by what their turns are made of: none of the first two has a final output."""


@pytest.mark.scenario("SM-10")
@pytest.mark.parametrize("turns", LAST_TURNS)
@pytest.mark.parametrize("condition", [MaxTurns(1), lambda ctx: ctx.usage.requests == 1], ids=["count", "predicate"])
async def test_condition_is_asked_after_the_last_turn_as_after_any(run_mode: Run, turns: str, condition: Any) -> None:
    """The run stops, whether or not its limit allows another turn; resumed, it goes on from there up to the limit."""
    for limit in (4, 1):
        agent = LAST_TURNS[turns]()
        result = await run_mode(agent, "go", max_turns=limit, run_config=RunConfig(stop_when=condition))
        assert result.status == "stopped"
        assert len(read_requests(agent)) == 1
    with pytest.raises(MaxTurnsExceeded):
        await run_mode(agent, result.to_state(), run_config=RunConfig(stop_when=condition))
    assert len(read_requests(agent)) == 1
    again = await run_mode(agent, result.to_state(), max_turns=9)
    assert again.status == "completed"


@pytest.mark.scenario("SM-10")
async def test_condition_of_a_nested_run_is_asked_after_its_last_turn(run_mode: Run) -> None:
    """The nested run is stopped, and isn't given up."""
    for limit in (4, 1):
        inner = script_agent("inner", call("fine"), say("x"), tools=[fine])
        within = inner.as_tool("inner", max_turns=limit, run_config=RunConfig(stop_when=MaxTurns(1)))
        result = await run_mode(make_agent([within], call("inner", {"input": "go"}, call_id="c1")), "go")
        ends = [record for record in find_records(result, r.RunEnded) if record.path == ("c1",)]
        assert [(end.status, end.stop_reason) for end in ends] == [("stopped", "MaxTurns(1)")]


@pytest.mark.scenario("SM-10")
async def test_handler_of_max_turns_is_not_asked_where_the_condition_stops_the_run(run_mode: Run) -> None:
    """The condition comes first: the limit isn't exceeded by a run that stops."""
    agent, config = LAST_TURNS["calls"](), RunConfig(stop_when=MaxTurns(1))
    handlers = {"max_turns": lambda data: pytest.fail("asked")}
    result = await run_mode(agent, "go", max_turns=1, run_config=config, error_handlers=handlers)
    assert result.status == "stopped"


@pytest.mark.scenario("SM-10")
async def test_circles_are_looked_for_after_the_last_turn(run_mode: Run) -> None:
    """The run ends by the circle, and a warning that is due is in the log of a run that reaches its limit."""
    agent = make_agent([fine], *[call("fine", call_id=f"c{n}") for n in range(5)])
    with pytest.raises(ToolLoopDetected):
        await run_mode(agent, "go", max_turns=3, run_config=CIRCLES)
    agent = make_agent([fine], *[call("fine", call_id=f"c{n}") for n in range(5)])
    with pytest.raises(MaxTurnsExceeded) as raised:
        await run_mode(agent, "go", max_turns=2, run_config=CIRCLES)
    assert raised.value.run_data is not None
    assert len(warnings_in(raised.value.run_data.new_items)) == 1


# ---------------------------------------------------------------------------------------------- circles


CIRCLES = RunConfig(loop_detection=2)


def warnings_in(items: Any) -> list[str]:
    """Return the texts the runtime added to what the model sees."""
    return [item.text for item in items if isinstance(item, SystemMessage)]


@pytest.mark.scenario("LX-76")
async def test_model_that_turns_in_circles_is_warned_once_and_then_stopped(run_mode: Run) -> None:
    """Three equal calls with equal results bring a warning before the fourth request; the next repeat ends the run."""
    agent = make_agent([fine], *[call("fine", {"n": 1}, call_id=f"c{n}") for n in range(6)])
    with pytest.raises(ToolLoopDetected, match="fine") as raised:
        await run_mode(agent, "go", run_config=RunConfig(loop_detection=3))
    requests = read_requests(agent)
    assert len(requests) == 4
    assert [len(warnings_in(request.items)) for request in requests] == [0, 0, 0, 1]
    assert "fine" in warnings_in(requests[3].items)[0]
    assert raised.value.run_data is not None
    assert read_statuses(raised.value.run_data) == ["succeeded"] * 4


@pytest.mark.scenario("LX-76")
async def test_changed_results_are_no_circle(run_mode: Run) -> None:
    """Polling for a result that changes is work, and so is a call with other arguments."""
    count = 0

    @tool
    async def poll() -> str:
        nonlocal count
        count += 1
        return f"{count} percent"

    agent = make_agent([poll, fine], *[[call("poll"), call("fine", {"n": n})] for n in range(5)])
    result = await run_mode(agent, "go", run_config=RunConfig(loop_detection=2))
    assert result.final_output == "done"
    assert not any(warnings_in(request.items) for request in read_requests(agent))


@pytest.mark.scenario("LX-76")
async def test_circles_are_not_looked_for_unless_asked(run_mode: Run) -> None:
    """Loop detection is off by default."""
    agent = make_agent([fine], *[call("fine") for _ in range(8)])
    result = await run_mode(agent, "go")
    assert result.final_output == "done"
    assert not warnings_in(read_requests(agent)[-1].items)


@pytest.mark.scenario("LX-76")
async def test_equal_calls_of_one_turn_warn_before_they_stop(run_mode: Run) -> None:
    """The model is warned once for all equal calls of a batch, and stopped only when it calls again."""
    pair = [call("fine"), call("fine"), call("fine")]
    agent = make_agent([fine], pair)
    result = await run_mode(agent, "go", run_config=RunConfig(loop_detection=2))
    assert result.final_output == "done"
    assert len(warnings_in(read_requests(agent)[1].items)) == 1
    agent = make_agent([fine], pair, call("fine"))
    with pytest.raises(ToolLoopDetected):
        await run_mode(agent, "go", run_config=RunConfig(loop_detection=2))


@pytest.mark.scenario("LX-76")
async def test_model_that_heeds_the_warning_goes_on(run_mode: Run) -> None:
    """Another call, then the same again with another result, starts the count from one."""
    results = iter(["same", "same", "new", "same"])

    @tool
    async def look() -> str:
        return next(results)

    agent = make_agent([look, other], call("look"), call("look"), call("other"), call("look"), call("look"))
    result = await run_mode(agent, "go", run_config=RunConfig(loop_detection=2))
    assert result.final_output == "done"
    assert len(warnings_in(read_requests(agent)[-1].items)) == 1


@pytest.mark.scenario("LX-76")
async def test_a_result_that_changes_within_a_turn_begins_a_new_circle(run_mode: Run) -> None:
    """The first two calls of the new kind get a warning of their own."""
    results = iter(["old", "old", "new", "new", "new"])

    @tool
    async def look() -> str:
        return next(results)

    agent = make_agent([look], call("look"), call("look"), [call("look"), call("look")], call("look"))
    with pytest.raises(ToolLoopDetected, match="3 times"):
        await run_mode(agent, "go", run_config=RunConfig(loop_detection=2))
    assert [len(warnings_in(request.items)) for request in read_requests(agent)] == [0, 0, 1, 2]


EQUAL_ARGUMENTS = ['{"n": 1, "m": [2]}', '{"m":[2],"n":1}', ' {"n" : 1, "m": [ 2 ]}', '{"\\u006e": 1, "m": [2]}']


@pytest.mark.scenario("LX-76", "PL-07")
async def test_circles_are_found_however_the_arguments_are_written(run_mode: Run) -> None:
    """Arguments are equal as JSON: order of keys, spaces and escapes don't matter; another number does."""

    @tool
    async def plain(n: int, m: list[int]) -> str:
        return "same"

    same = [call("plain", text, call_id=f"c{n}") for n, text in enumerate(EQUAL_ARGUMENTS)]
    with pytest.raises(ToolLoopDetected, match="4 times"):
        await run_mode(make_agent([plain], *same), "go", run_config=RunConfig(loop_detection=3))
    different = [call("plain", {"n": n, "m": [2]}, call_id=f"c{n}") for n in range(5)]
    result = await run_mode(make_agent([plain], *different), "go", run_config=CIRCLES)
    assert result.final_output == "done"


@pytest.mark.scenario("LX-76")
async def test_circles_of_arguments_that_are_no_json_are_found(run_mode: Run) -> None:
    """Their text counts as it is; the tool's answer about the fault is the equal result."""
    agent = make_agent([fine], *[call("fine", "{n: 1", call_id=f"c{n}") for n in range(5)])
    with pytest.raises(ToolLoopDetected, match="3 times"):
        await run_mode(agent, "go", run_config=CIRCLES)


@pytest.mark.scenario("LX-76")
@pytest.mark.parametrize("kept", range(1, 10))
async def test_who_goes_on_with_a_run_knows_what_its_model_was_told(kept: int) -> None:
    """The run is cut after any record of its second turn: one warning comes in all, and the next repeat ends it."""

    def build() -> Agent[Any, Any]:
        return Agent("guide", model=script_turns(*[call("fine") for _ in range(6)]), tools=[again])

    @tool(name="fine", in_doubt="rerun")
    async def again() -> str:
        return "fine"

    whole = BatchJournal()
    with pytest.raises(ToolLoopDetected) as undisturbed:
        await Runner.run(build(), "go", journal=whole, run_config=CIRCLES)
    lines = await whole.read()
    second = next(place for place, line in enumerate(lines) if b'"kind":"turn_started"' in line and b'"turn":2' in line)
    journal, agent = BatchJournal(), build()
    await journal.append(lines[: second + kept])
    with pytest.raises(ToolLoopDetected) as raised:
        await Runner.resume(agent, journal, run_config=CIRCLES)
    assert str(raised.value) == str(undisturbed.value)
    assert len(warnings_in(read_requests(agent)[-1].items)) == 1
    assert raised.value.run_data is not None
    assert read_statuses(raised.value.run_data) == ["succeeded"] * 3


@pytest.mark.scenario("LX-76")
async def test_a_call_that_is_cut_and_made_again_is_no_other_result(run_mode: Run) -> None:
    """The output for the cut call doesn't count as a result; the output of its second run does."""
    journal, started = BatchJournal(), anyio.Event()
    turn = 0

    @tool(name="fine", in_doubt="rerun")
    async def second_hangs() -> str:
        nonlocal turn
        turn += 1
        if turn == 2:
            started.set()
            await anyio.sleep_forever()
        return "fine"

    agent = Agent("guide", model=script_turns(*[call("fine") for _ in range(4)]), tools=[second_hangs])
    await cancel_when(started, lambda: run_mode(agent, "go", journal=journal, run_config=CIRCLES))
    with pytest.raises(ToolLoopDetected, match="3 times") as raised:
        await Runner.resume(agent, journal, run_config=CIRCLES)
    assert len(warnings_in(read_requests(agent)[-1].items)) == 1
    assert raised.value.run_data is not None
    assert read_statuses(raised.value.run_data) == ["succeeded"] * 3


# ---------------------------------------------------------------------------------------------- side by side


@pytest.mark.scenario("CO-10", "TR-06", "DY-04")
async def test_runs_of_one_agent_share_neither_choice_nor_tools(run_mode: Run) -> None:
    """Tool choice and enabled tools of two runs at once belong to each run, from its first turn to its last."""
    meeting = Rendezvous(2)
    seen: dict[str, list[tuple[Any, list[str]]]] = {"rich": [], "poor": []}

    @tool
    async def meet() -> str:
        await meeting.wait()
        return "met"

    @tool(is_enabled=lambda ctx, agent: ctx.context == "rich")
    async def luxury() -> str:
        return "nice"

    def step(request: Any) -> Any:
        who = request.items[0].text
        seen[who].append((request.tool_choice, [one.name for one in request.tools]))
        return call("meet") if len(request.items) == 1 and who == "rich" else say(who)

    agent = Agent(
        "a",
        model=ScriptedModel([step] * 3),
        tools=[meet, luxury],
        model_settings=ModelSettings(tool_choice="required"),
    )

    async def poor() -> None:
        await run_mode(agent, "poor", context="poor")
        await meeting.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(poor)
        await run_mode(agent, "rich", context="rich")
    assert seen == {
        "rich": [("required", ["meet", "luxury"]), (None, ["meet", "luxury"])],
        "poor": [("required", ["meet"])],
    }
    assert agent.model_settings.tool_choice == "required"


@pytest.mark.parametrize("cost", ["many", "NaN", "-1", "Infinity", "1e9999999999999999999"])
async def test_stored_cost_that_is_no_amount_is_refused(cost: str) -> None:
    """A run whose log was changed isn't resumed with limits on what it costs."""

    @tool(needs_approval=True)
    async def ask() -> str:
        """Ask."""
        return "asked"

    agent = script_agent("a", call("ask"), tools=[ask])
    limits = RunConfig(limits=UsageLimits(cost=1), price=lambda name, usage: Decimal(0))
    state = (await Runner.run(agent, "go", run_config=limits)).to_state()
    stored = json.loads(state.to_string())
    [answer] = [record for record in stored["records"] if record["kind"] == "model_responded"]
    answer["cost"] = cost
    with pytest.raises(StateError, match="has a cost that is no amount"):
        await Runner.run(agent, RunState.from_json(agent, stored), run_config=limits)


# ------------------------------------------------------------------------------------------- a price and the sum


def five(name: str, usage: Any) -> int:
    return 5


async def test_a_price_counts_without_limits(run_mode: Run) -> None:
    """Somebody who gives a price wants to know the cost; the result has the sum of requests and calls."""

    @tool(cost=lambda arguments: Decimal("0.5"))
    async def pay() -> str:
        return "paid"

    steps = [respond(ToolCall("c", "pay", "{}"), usage=make_usage(2)), say("ok", usage=make_usage(2))]
    agent = Agent("guide", model=ScriptedModel(steps), tools=[pay])
    result = await run_mode(agent, "go", run_config=RunConfig(price=five))
    assert result.cost == Decimal("10.5")
    assert result.to_json()["cost"] == "10.5"
    assert (await run_mode(make_agent([pay]), "go")).cost is None


async def test_the_price_of_an_agent_tool_counts_without_limits(run_mode: Run) -> None:
    """Its own configuration has a price, and the run around it has none."""
    inner = Agent("inner", model=ScriptedModel([say("in", usage=make_usage(2))]))
    asked = inner.as_tool("ask", "Ask.", run_config=RunConfig(price=five))
    agent = make_agent([asked], call("ask", {"input": "x"}, call_id="c"))
    assert (await run_mode(agent, "go")).cost == 5


@pytest.mark.parametrize(
    ("config", "tools", "refused"),
    [
        ({}, [], True),
        ({"price": five}, [], False),
        ({"hosted_price": five}, [], False),
        ({}, [tool(name="f", cost=lambda arguments: 1)(lambda: "x")], False),
    ],
    ids=["nothing", "price", "hosted_price", "tool"],
)
async def test_a_limit_of_money_without_a_price_is_refused_before_the_first_request(
    run_mode: Run, config: dict[str, Any], tools: list[Any], refused: bool
) -> None:
    """It would never be reached, and nobody would notice before the bill."""
    agent = make_agent(tools)
    run = run_mode(agent, "go", run_config=RunConfig(limits=UsageLimits(cost=100), **config))
    if not refused:
        await run
        return
    with pytest.raises(UserError, match=r"cost=100\) would never be reached.*RunConfig\(price="):
        await run
    assert read_requests(agent) == []
