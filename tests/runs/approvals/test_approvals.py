"""Approvals up to the pause, and the effect of a verdict: who is asked, about what, and what the model receives."""

from collections.abc import Callable
from typing import Any

import pytest
from kit.agents import Run, make_agent, make_free_tool, make_gated_tool
from kit.results import (
    count_records,
    find_outcome,
    read_approval_requests,
    read_outputs,
    read_requests,
    read_shown_outputs,
    read_statuses,
    read_waiting,
)
from kit.resuming import Pauses, approve, decide_nothing, in_every_way, reject
from kit.watching import ToolHookLog

from agentloop import RunConfig, RunContext, Runner, RunState, ToolErrorArgs, UserError, tool
from agentloop import events as ev
from agentloop import records as r
from agentloop.exceptions import UserTypeError
from agentloop.items import ApprovalRequest, ToolCall, ToolOutput
from agentloop.testing import call

DEFAULT = "Tool 'gated' was not approved."

# ---------------------------------------------------------------------------------------------- the pause


@pytest.mark.scenario("AP-01", "LX-64")
async def test_a_call_that_needs_approval_pauses_the_run_before_any_side_effect(run_mode: Run) -> None:
    """The interruption names tool, arguments, call and agent; there is no final output."""
    ran: list[Any] = []
    agent = make_agent([make_gated_tool(ran)], call("gated", {"n": 7}, "c1"))
    result = await run_mode(agent, "go")
    assert ran == []
    assert (result.status, result.final_output) == ("interrupted", None)
    assert result.interruptions == (ApprovalRequest(ToolCall("c1", "gated", '{"n": 7}'), "guide", ()),)
    assert count_records(result, r.CallStarted) == 0
    assert len(read_requests(agent)) == 1
    assert isinstance(result.records[-1], r.RunEnded)
    assert result.records[-1].status == "interrupted"


@pytest.mark.scenario("AP-02")
@pytest.mark.parametrize("first", ["gated", "free"])
async def test_a_free_call_beside_a_gated_one_runs_and_its_output_is_kept(run_mode: Run, first: str) -> None:
    """The free call runs and keeps its output while the gated one waits, in either order of the two."""
    ran: list[Any] = []
    names = [first, "free" if first == "gated" else "gated"]
    agent = make_agent([make_gated_tool(ran), make_free_tool(ran)], [call(name, {"n": 1}, name) for name in names])
    result = await run_mode(agent, "go")
    assert ran == [("free", 1)]
    assert read_outputs(result.new_items) == {"free": "free 1"}
    assert find_outcome(result, "free").status == "succeeded"
    assert read_waiting(result) == ["gated"]
    assert result.status == "interrupted"


@pytest.mark.scenario("AP-04")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_needs_approval_decides_by_the_arguments(run_mode: Run, kind: str) -> None:
    """`needs_approval` gets the run's context, the parsed arguments and the call id; only its True pauses the call."""
    ran: list[Any] = []
    seen: list[Any] = []
    app = object()

    def large(ctx: RunContext[Any], arguments: dict[str, Any], call_id: str) -> bool:
        seen.append((ctx.context, arguments, call_id))
        return bool(arguments["n"] > 10)

    async def large_async(ctx: RunContext[Any], arguments: dict[str, Any], call_id: str) -> bool:
        return large(ctx, arguments, call_id)

    pay = make_gated_tool(ran, "pay", needs_approval=large if kind == "sync" else large_async)
    agent = make_agent([pay], [call("pay", {"n": n}, f"c{n}") for n in (5, 50, 7)])
    result = await run_mode(agent, "go", context=app)
    assert sorted(ran) == [("pay", 5), ("pay", 7)]
    assert read_waiting(result) == ["c50"]
    assert sorted(seen, key=lambda one: one[2]) == [
        (app, {"n": 5}, "c5"),
        (app, {"n": 50}, "c50"),
        (app, {"n": 7}, "c7"),
    ]


@pytest.mark.scenario("AP-05")
@pytest.mark.parametrize("text", ["{bad", "[1]", "7", '{"n": NaN}', '{"n": Infinity}', '{"n": -Infinity}'])
async def test_arguments_nobody_can_judge_need_approval(run_mode: Run, text: str) -> None:
    """The callable is not invoked; an approved call is answered with the fault of its arguments, and no body runs."""
    ran: list[Any] = []
    asked: list[str] = []

    def never(ctx: Any, arguments: Any, call_id: str) -> bool:
        asked.append(call_id)
        return False

    agent = make_agent([make_gated_tool(ran, needs_approval=never)], call("gated", text, "c1"))
    pauses = Pauses(run_mode, "json")
    paused = await pauses.run(agent)
    assert read_waiting(paused) == ["c1"]
    result = await pauses.resume(agent, paused, approve())
    assert result.final_output == "done"
    assert read_statuses(result) == ["failed"]
    assert read_shown_outputs(agent)["c1"]
    assert (ran, asked) == ([], [])


@pytest.mark.scenario("AP-22")
async def test_a_call_that_waits_fires_no_hook_and_shows_no_output(run_mode: Run) -> None:
    """Tool hooks of a waiting call run once, in the entry that runs its body."""
    ran: list[Any] = []
    hooks = ToolHookLog()
    agent = make_agent([make_gated_tool(ran), make_free_tool(ran)], [call("gated", {}, "c1"), call("free", {}, "c2")])
    paused = await run_mode(agent, "go", hooks=hooks)
    assert hooks.seen == ["start:c2", "end:c2:succeeded"]
    state = paused.to_state()
    state.approve("c1")
    await run_mode(agent, state, hooks=hooks)
    assert hooks.seen[2:] == ["start:c1", "end:c1:succeeded"]


@pytest.mark.scenario("AP-22")
async def test_the_stream_of_a_pause_shows_the_question_and_no_output_of_what_waits() -> None:
    """The stream shows `ApprovalRequested`; `CallStarted` and the output's `ItemCreated` come with the next entry."""
    agent = make_agent([make_gated_tool([])], call("gated", {"n": 3}, "c1"))
    async with Runner.run_streamed(agent, "go") as stream:
        first = [event async for event in stream]
    [request] = [event.request for event in first if isinstance(event, ev.ApprovalRequested)]
    assert request == stream.result.interruptions[0]
    assert not [event for event in first if isinstance(event, ev.CallStarted | ev.CallSettled)]
    created = [event.item for event in first if isinstance(event, ev.ItemCreated)]
    assert not [item for item in created if isinstance(item, ToolOutput)]
    state = stream.state
    state.approve(request)
    async with Runner.run_streamed(agent, state) as stream:
        second = [event async for event in stream]
    assert [
        event.item.output
        for event in second
        if isinstance(event, ev.ItemCreated) and isinstance(event.item, ToolOutput)
    ] == ["gated 3"]
    assert not [event for event in second if isinstance(event, ev.ApprovalRequested)]


# ---------------------------------------------------------------------------------------------- asked once


@pytest.mark.scenario("AP-06")
@pytest.mark.parametrize("decide", [approve(), reject()])
@in_every_way
async def test_needs_approval_is_asked_once_for_a_call(run_mode: Run, decide: Any, way: str) -> None:
    """`needs_approval` is not asked again when the run resumes, without a verdict or with either one."""
    asked: list[str] = []

    def needed(ctx: Any, arguments: Any, call_id: str) -> bool:
        asked.append(call_id)
        return True

    agent = make_agent([make_gated_tool([], needs_approval=needed)], call("gated", {}, "c1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    assert asked == ["c1"]
    paused = await pauses.resume(agent, paused, decide_nothing)
    assert paused.status == "interrupted"
    result = await pauses.resume(agent, paused, decide)
    assert result.final_output == "done"
    assert asked == ["c1"]


@pytest.mark.scenario("AP-06")
@pytest.mark.parametrize("decide", [approve(always=True), reject(always=True)])
@in_every_way
async def test_needs_approval_is_not_asked_where_a_verdict_on_all_calls_is_known(
    run_mode: Run, decide: Any, way: str
) -> None:
    """A fresh call of a tool that already has a verdict on all its calls does not ask `needs_approval`."""
    asked: list[str] = []

    def needed(ctx: Any, arguments: Any, call_id: str) -> bool:
        asked.append(call_id)
        return True

    tool_ = make_gated_tool([], needs_approval=needed)
    agent = make_agent([tool_], call("gated", {"n": 1}, "c1"), call("gated", {"n": 2}, "c2"))
    pauses = Pauses(run_mode, way)
    result = await pauses.resume(agent, await pauses.run(agent), decide)
    assert result.final_output == "done"
    assert asked == ["c1"]
    assert len(result.calls) == 2


# --------------------------------------------------------------------------------------------- what the model receives


@pytest.mark.scenario("AP-07")
@in_every_way
async def test_a_rejected_call_never_runs_and_the_model_is_told(run_mode: Run, way: str) -> None:
    """A rejected call gives the model the standard text: no body and no tool hook runs, and the run continues."""
    ran: list[Any] = []
    hooks = ToolHookLog()
    agent = make_agent([make_gated_tool(ran)], call("gated", {}, "c1"))
    pauses = Pauses(run_mode, way)
    result = await pauses.resume(agent, await pauses.run(agent, hooks=hooks), reject(), hooks=hooks)
    assert result.final_output == "done"
    assert read_shown_outputs(agent) == {"c1": DEFAULT}
    assert read_statuses(result) == ["rejected"]
    assert result.calls[0].outcome.started_at is None
    assert (ran, hooks.seen) == ([], [])


@pytest.mark.parametrize("approved", [True, False])
async def test_the_log_keeps_who_gave_a_verdict(run_mode: Run, approved: bool) -> None:
    """A verdict names who gave it in the application's words, also after the state was stored."""
    agent = make_agent([make_gated_tool([])], call("gated", {}, "c1"))
    state = (await run_mode(agent, "go")).to_state()
    decide = state.approve if approved else state.reject
    with pytest.raises(UserTypeError, match="by: expected text, got 7"):
        decide("c1", by=7)  # type: ignore[arg-type]
    decide("c1", by="ann")
    result = await run_mode(agent, RunState.from_json(agent, state.to_json()))
    assert [record.by for record in result.records if isinstance(record, r.VerdictGiven)] == ["ann"]


def formatted(args: ToolErrorArgs) -> str:
    assert (args.kind, args.tool, args.call_id, args.default) == ("approval_rejected", "gated", "c1", DEFAULT)
    return "the formatter's"


async def formatted_async(args: ToolErrorArgs) -> str:
    return formatted(args)


def raises(args: ToolErrorArgs) -> str:
    raise ValueError("no words")


@pytest.mark.scenario("AP-08", "AP-09", "LX-65")
@pytest.mark.parametrize(
    ("message", "formatter", "told"),
    [
        pytest.param("not today", formatted, "not today", id="message"),
        pytest.param("", formatted, "", id="empty message"),
        pytest.param(None, formatted, "the formatter's", id="formatter"),
        pytest.param(None, formatted_async, "the formatter's", id="async formatter"),
        pytest.param(None, None, DEFAULT, id="default"),
        pytest.param(None, raises, DEFAULT, id="raises"),
        pytest.param(None, lambda args: None, DEFAULT, id="None"),
        pytest.param(None, lambda args: 7, DEFAULT, id="no text"),
    ],
)
async def test_who_words_a_rejection(
    run_mode: Run, message: str | None, formatter: Callable[[ToolErrorArgs], Any] | None, told: str
) -> None:
    """A rejection has the verdict's own message, else the run's formatter's text, else the standard text."""
    ran: list[Any] = []
    agent = make_agent([make_gated_tool(ran)], call("gated", {}, "c1"))
    config = RunConfig(tool_error_formatter=formatter)
    pauses = Pauses(run_mode, "json")
    paused = await pauses.run(agent, run_config=config)
    await pauses.resume(agent, paused, reject(message=message), run_config=config)
    assert read_shown_outputs(agent) == {"c1": told}
    assert ran == []


# ---------------------------------------------------------------------------------------------- for good


@pytest.mark.scenario("AP-10")
@in_every_way
async def test_a_tool_approved_for_good_does_not_pause_again(run_mode: Run, way: str) -> None:
    """Later calls of the tool run under new ids; another tool still pauses, and the verdict outlives that pause."""
    ran: list[Any] = []
    agent = make_agent(
        [make_gated_tool(ran), make_gated_tool(ran, "other")],
        call("gated", {"n": 1}, "c1"),
        [call("gated", {"n": 2}, "c2"), call("other", {"n": 3}, "o1")],
        call("gated", {"n": 4}, "c3"),
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.resume(agent, await pauses.run(agent), approve(always=True))
    assert read_waiting(paused) == ["o1"]
    assert ran == [("gated", 1), ("gated", 2)]
    result = await pauses.resume(agent, paused, approve())
    assert result.final_output == "done"
    assert ran == [("gated", 1), ("gated", 2), ("other", 3), ("gated", 4)]
    assert read_approval_requests(result) == ["c1", "o1"]


@pytest.mark.scenario("AP-10")
@in_every_way
async def test_an_approval_for_good_releases_the_calls_that_wait_beside_it(run_mode: Run, way: str) -> None:
    """The verdict on one call holds for all calls of its tool, and also for those of the same turn."""
    ran: list[Any] = []
    agent = make_agent([make_gated_tool(ran)], [call("gated", {"n": n}, f"c{n}") for n in (1, 2)])
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    state = await pauses.state(agent, paused)
    state.approve("c1", always=True)
    assert read_waiting(state) == []
    result = await pauses.run(agent, state)
    assert result.final_output == "done"
    assert sorted(ran) == [("gated", 1), ("gated", 2)]


@pytest.mark.scenario("AP-11")
@in_every_way
async def test_a_tool_rejected_for_good_is_rejected_with_the_same_words(run_mode: Run, way: str) -> None:
    """Later calls of the rejected tool don't pause and don't run."""
    ran: list[Any] = []
    agent = make_agent([make_gated_tool(ran)], call("gated", {"n": 1}, "c1"), call("gated", {"n": 2}, "c2"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    result = await pauses.resume(agent, paused, reject(always=True, message="never do that"))
    assert result.final_output == "done"
    assert read_shown_outputs(agent) == {"c1": "never do that", "c2": "never do that"}
    assert read_statuses(result) == ["rejected", "rejected"]
    assert ran == []


@pytest.mark.scenario("AP-12")
@pytest.mark.parametrize("sticky_first", [True, False])
@pytest.mark.parametrize("reverse", [False, True])
@in_every_way
async def test_a_verdict_on_one_call_beats_the_one_on_all(
    run_mode: Run, sticky_first: bool, reverse: bool, way: str
) -> None:
    """The exact verdict wins in either order of the two; calls without one of their own follow the verdict on all."""
    ran: list[Any] = []
    agent = make_agent(
        [make_gated_tool(ran)],
        [call("gated", {"n": n}, f"c{n}") for n in (1, 2)],
        call("gated", {"n": 3}, "c3"),
    )

    def decide(state: Any) -> None:
        exact, sticky = (state.approve, state.reject) if reverse else (state.reject, state.approve)
        first, second = state.interruptions
        if sticky_first:
            sticky(second, always=True)
        exact(first)
        if not sticky_first:
            sticky(second, always=True)

    pauses = Pauses(run_mode, way)
    result = await pauses.resume(agent, await pauses.run(agent), decide)
    assert result.final_output == "done"
    assert ran == ([("gated", 1)] if reverse else [("gated", 2), ("gated", 3)])
    exact, sticky = ("succeeded", "rejected") if reverse else ("rejected", "succeeded")
    assert read_statuses(result) == [exact, sticky, sticky]


@pytest.mark.scenario("AP-13")
@pytest.mark.parametrize("decide", [approve(), reject()])
@in_every_way
async def test_a_verdict_on_one_call_says_nothing_of_the_next(run_mode: Run, decide: Any, way: str) -> None:
    """A call of the same tool with the same arguments and another id pauses again."""
    ran: list[Any] = []
    agent = make_agent([make_gated_tool(ran)], call("gated", {"n": 1}, "c1"), call("gated", {"n": 1}, "c2"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.resume(agent, await pauses.run(agent), decide)
    assert paused.status == "interrupted"
    assert read_waiting(paused) == ["c2"]
    before = list(ran)
    result = await pauses.resume(agent, paused, approve())
    assert result.final_output == "done"
    assert ran == [*before, ("gated", 1)]


@pytest.mark.scenario("AP-20")
@pytest.mark.parametrize("namespaced_first", [True, False])
@in_every_way
async def test_namespaced_and_bare_tools_of_one_name_are_decided_on_apart(
    run_mode: Run, namespaced_first: bool, way: str
) -> None:
    """A verdict for good on one of the two tools leaves the other pausing."""
    ran: list[Any] = []

    @tool(name="send", namespace="mail", needs_approval=True)
    async def in_mail(n: int = 0) -> str:
        ran.append("mail.send")
        return "mailed"

    @tool(name="send", needs_approval=True)
    async def bare(n: int = 0) -> str:
        ran.append("send")
        return "sent"

    calls = [call("send", {}, "m", namespace="mail"), call("send", {}, "b")]
    first, second = calls if namespaced_first else calls[::-1]
    agent = make_agent([in_mail, bare], first, second)
    pauses = Pauses(run_mode, way)
    paused = await pauses.resume(agent, await pauses.run(agent), approve(always=True))
    names = ["mail.send", "send"] if namespaced_first else ["send", "mail.send"]
    assert ran == names[:1]
    assert read_waiting(paused) == [second.call_id]
    result = await pauses.resume(agent, paused, approve(always=True))
    assert result.final_output == "done"
    assert ran == names


@pytest.mark.scenario("AP-24")
@pytest.mark.parametrize(
    ("verdicts", "told"),
    [
        pytest.param([("approve", {}), ("reject", {})], DEFAULT, id="approve, reject"),
        pytest.param([("approve", {}), ("reject", {"message": "no"})], "no", id="approve, reject with words"),
        pytest.param([("reject", {"message": "no"}), ("approve", {})], "gated 1", id="reject with words, approve"),
        pytest.param([("reject", {"message": "no"}), ("reject", {})], DEFAULT, id="reject with words, reject"),
        pytest.param([("reject", {}), ("approve", {}), ("reject", {"message": "b"})], "b", id="three"),
        pytest.param([("approve", {"arguments": {"n": 9}}), ("approve", {})], "gated 1", id="edited, as it is"),
        pytest.param([("approve", {}), ("approve", {"arguments": {"n": 9}})], "gated 9", id="as it is, edited"),
        pytest.param([("approve", {"arguments": {"n": 9}}), ("reject", {})], DEFAULT, id="edited, reject"),
    ],
)
async def test_the_last_verdict_before_the_run_goes_on_holds(
    run_mode: Run, verdicts: list[tuple[str, dict[str, Any]]], told: str
) -> None:
    """The last verdict replaces the earlier one, with its message and its arguments."""
    ran: list[Any] = []

    def decide(state: Any) -> None:
        for verdict, options in verdicts:
            getattr(state, verdict)("c1", **options)

    agent = make_agent([make_gated_tool(ran)], call("gated", {"n": 1}, "c1"))
    pauses = Pauses(run_mode, "json")
    result = await pauses.resume(agent, await pauses.run(agent), decide)
    assert result.final_output == "done"
    assert read_shown_outputs(agent) == {"c1": told}
    assert len(ran) == told.startswith("gated")


@in_every_way
async def test_edited_arguments_are_those_of_one_call_also_where_the_approval_is_for_good(
    run_mode: Run, way: str
) -> None:
    """Other calls of the tool, beside the edited one and later, run with their own arguments."""
    ran: list[Any] = []
    agent = make_agent(
        [make_gated_tool(ran)], [call("gated", {"n": n}, f"c{n}") for n in (1, 2)], call("gated", {"n": 3}, "c3")
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    result = await pauses.resume(agent, paused, approve("c1", arguments={"n": 9}, always=True))
    assert result.final_output == "done"
    assert read_shown_outputs(agent) == {"c1": "gated 9", "c2": "gated 2", "c3": "gated 3"}
    assert sorted(ran) == [("gated", 2), ("gated", 3), ("gated", 9)]


@in_every_way
async def test_an_approver_may_mend_arguments_that_do_not_parse(run_mode: Run, way: str) -> None:
    """The body runs with the approver's arguments when the model's own don't parse."""
    ran: list[Any] = []
    agent = make_agent([make_gated_tool(ran)], call("gated", "{bad", "c1"))
    pauses = Pauses(run_mode, way)
    result = await pauses.resume(agent, await pauses.run(agent), approve(arguments={"n": 4}))
    assert read_statuses(result) == ["succeeded"]
    assert ran == [("gated", 4)]


async def test_a_needs_approval_that_raises_fails_the_run_before_anything_starts(run_mode: Run) -> None:
    """The run fails with the callable's own error, and the sibling's body has not run."""
    ran: list[Any] = []

    def broken(ctx: Any, arguments: Any, call_id: str) -> bool:
        raise LookupError("no such rule")

    agent = make_agent(
        [make_gated_tool(ran, needs_approval=broken), make_free_tool(ran)],
        [call("free", {}, "c1"), call("gated", {}, "c2")],
    )
    with pytest.raises(LookupError, match="no such rule"):
        await run_mode(agent, "go")
    assert ran == []


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_call_that_waits_holds_up_nobody_in_sequential_mode(run_mode: Run, place: int) -> None:
    """The free calls run in model order, then the run pauses; the released outputs don't wait either."""
    ran: list[Any] = []
    calls = [call("free", {"n": n}, f"c{n}") for n in (1, 2)]
    calls.insert(place, call("gated", {}, "g"))
    agent = make_agent([make_gated_tool(ran), make_free_tool(ran)], calls, tool_execution="sequential")
    result = await run_mode(agent, "go")
    assert ran == [("free", 1), ("free", 2)]
    assert list(read_outputs(result.new_items)) == ["c1", "c2"]
    assert read_waiting(result) == ["g"]


@pytest.mark.parametrize("bad", [7, None, object()])
async def test_what_is_no_call_and_no_verdict_is_refused(run_mode: Run, bad: Any) -> None:
    """The error names the argument, and no call is decided."""
    agent = make_agent([make_gated_tool([])], call("gated", {}, "c1"))
    state = (await run_mode(agent, "go")).to_state()
    with pytest.raises(UserError, match="call"):
        state.approve(bad)
    if bad is not None:
        with pytest.raises(UserError, match="message"):
            state.reject("c1", message=bad)
        with pytest.raises(UserError, match="arguments"):
            state.approve("c1", arguments=bad)
    assert read_waiting(state) == ["c1"]
