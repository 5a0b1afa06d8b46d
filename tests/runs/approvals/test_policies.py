"""Policies: all are asked about every call, the strictest answer holds, and what they deny no approval releases."""

import logging
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from kit.agents import Run, make_agent, make_free_tool, make_gated_tool
from kit.ending import Rendezvous
from kit.results import (
    count_records,
    read_approval_requests,
    read_requests,
    read_shown_outputs,
    read_statuses,
    read_waiting,
)
from kit.resuming import Pauses, approve, decide_nothing, in_every_way, reject
from kit.watching import Flight, ToolHookLog

from agentloop import Agent, Allow, Ask, Deny, PendingCall, RunConfig, Runner, ToolExecution, UserError, tool
from agentloop import events as ev
from agentloop import records as r
from agentloop._storage.record_codec import record_to_json
from agentloop.guardrails import RejectContent, Rewrite, tool_input_guardrail
from agentloop.items import ToolCall
from agentloop.testing import ScriptedModel, call, replay, say

NOT_APPROVED = "Tool 'free' was not approved."


class Saying:
    """A policy that answers by a function of the call, and notes what it was asked about."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.seen: list[PendingCall] = []

    def decide(self, call: PendingCall) -> Any:
        self.seen.append(call)
        answer = self.answer(call) if callable(self.answer) else self.answer
        if isinstance(answer, Exception):
            raise answer
        return answer


class SayingLater(Saying):
    """The same, async."""

    async def decide(self, call: PendingCall) -> Any:
        await anyio.lowlevel.checkpoint()
        return super().decide(call)


def ruled(*policies: Any, **fields: Any) -> RunConfig:
    """Return a configuration with these policies."""
    return RunConfig(policies=policies, **fields)


# ---------------------------------------------------------------------------------------------- the answers


@pytest.mark.parametrize("kind", [Saying, SayingLater])
async def test_a_policy_sees_the_call_and_allows_it(run_mode: Run, kind: type[Saying]) -> None:
    """A policy gets call, tool, agent, parsed arguments and context, once for each call, before any call starts."""
    ran: list[Any] = []
    app = object()
    policy = kind(lambda pending: Allow() if not ran else ValueError("asked too late"))
    one = make_free_tool(ran)
    agent = make_agent([one], [call("free", {"n": 1}, "c1"), call("free", {"n": 2}, "c2")])
    result = await run_mode(agent, "go", run_config=ruled(policy), context=app)
    assert sorted(ran) == [("free", 1), ("free", 2)]
    assert read_statuses(result) == ["succeeded", "succeeded"]
    first, second = sorted(policy.seen, key=lambda pending: pending.call.call_id)
    assert first.call == ToolCall("c1", "free", '{"n": 1}')
    assert first.tool is one
    assert first.agent is agent
    assert (first.arguments, second.arguments) == ({"n": 1}, {"n": 2})
    assert first.context.context is app
    assert first.path == ()


@pytest.mark.parametrize("kind", [Saying, SayingLater])
@pytest.mark.parametrize(("message", "told"), [("too dear", "too dear"), (None, NOT_APPROVED)])
async def test_a_denied_call_never_runs_and_the_model_is_told(
    run_mode: Run, kind: type[Saying], message: str | None, told: str
) -> None:
    """A denied call requests no approval and fires no hook; its siblings run and the run continues."""
    ran: list[Any] = []
    hooks = ToolHookLog()
    policy = kind(lambda pending: Deny(message) if pending.arguments == {"n": 1} else Allow())
    agent = make_agent([make_free_tool(ran)], [call("free", {"n": 1}, "c1"), call("free", {"n": 2}, "c2")])
    result = await run_mode(agent, "go", run_config=ruled(policy), hooks=hooks)
    assert result.final_output == "done"
    assert ran == [("free", 2)]
    assert read_statuses(result) == ["rejected", "succeeded"]
    assert read_shown_outputs(agent) == {"c1": told, "c2": "free 2"}
    assert hooks.seen == ["start:c2", "end:c2:succeeded"]
    assert read_approval_requests(result) == []


@in_every_way
async def test_a_policy_may_ask_about_a_call_of_a_tool_that_needs_no_approval(run_mode: Run, way: str) -> None:
    """The call waits like any other; the approval answers the policy that still asks, and the call runs."""
    ran: list[Any] = []
    policy = Saying(Ask("it is Friday"))
    agent = make_agent([make_free_tool(ran)], call("free", {"n": 1}, "c1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, run_config=ruled(policy))
    assert (paused.status, read_waiting(paused), ran) == ("interrupted", ["c1"], [])
    paused = await pauses.resume(agent, paused, decide_nothing, run_config=ruled(policy))
    assert (paused.status, read_waiting(paused), ran) == ("interrupted", ["c1"], [])
    result = await pauses.resume(agent, paused, approve(), run_config=ruled(policy))
    assert result.final_output == "done"
    assert ran == [("free", 1)]
    assert read_approval_requests(result) == ["c1"]


@in_every_way
async def test_an_approval_for_good_answers_a_policy_that_asks(run_mode: Run, way: str) -> None:
    """Later calls of the approved tool don't pause, although the policy asks."""
    ran: list[Any] = []
    config = ruled(Saying(Ask()))
    agent = make_agent([make_free_tool(ran)], call("free", {"n": 1}, "c1"), call("free", {"n": 2}, "c2"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, run_config=config)
    result = await pauses.resume(agent, paused, approve(always=True), run_config=config)
    assert result.final_output == "done"
    assert ran == [("free", 1), ("free", 2)]


@pytest.mark.parametrize(
    ("answers", "holds"),
    [
        pytest.param([Allow(), Allow()], "runs", id="allow, allow"),
        pytest.param([Allow(), Ask()], "waits", id="allow, ask"),
        pytest.param([Ask(), Allow()], "waits", id="ask, allow"),
        pytest.param([Ask(), Deny("no")], "no", id="ask, deny"),
        pytest.param([Deny("no"), Ask(), Allow()], "no", id="deny, ask, allow"),
        pytest.param([Allow(), Deny("no"), Deny("never")], "no", id="the first denial words it"),
        pytest.param([ValueError("broken"), Allow()], NOT_APPROVED, id="an exception is a denial"),
        pytest.param([Ask(), ValueError("broken")], NOT_APPROVED, id="an exception beats asking"),
        pytest.param([Allow(), None], NOT_APPROVED, id="no answer is a denial"),
        pytest.param([Allow(), True], NOT_APPROVED, id="a bool is a denial"),
    ],
)
async def test_the_strictest_answer_holds_and_every_policy_is_asked(
    run_mode: Run, answers: list[Any], holds: str
) -> None:
    """Deny wins over ask and ask over allow; an exception, or a value that is no answer, denies."""
    ran: list[Any] = []
    policies = [Saying(answer) for answer in answers]
    agent = make_agent([make_free_tool(ran)], call("free", {"n": 1}, "c1"))
    result = await run_mode(agent, "go", run_config=ruled(*policies))
    assert [len(policy.seen) for policy in policies] == [1] * len(policies)
    match holds:
        case "runs":
            assert (result.status, ran) == ("completed", [("free", 1)])
        case "waits":
            assert (result.status, ran, read_waiting(result)) == ("interrupted", [], ["c1"])
        case told:
            assert (result.status, ran) == ("completed", [])
            assert read_statuses(result) == ["rejected"]
            assert read_shown_outputs(agent) == {"c1": told}


async def test_a_policy_that_fails_is_logged_and_its_error_stays_inside(
    run_mode: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged as a denial, and the model does not receive the policy's error."""
    agent = make_agent([make_free_tool([])], call("free", {"n": 1}, "c1"))
    with caplog.at_level(logging.WARNING, "agentloop"):
        await run_mode(agent, "go", run_config=ruled(Saying(ValueError("the table of rules is gone"))))
    assert any("denied" in record.getMessage() for record in caplog.records)
    assert read_shown_outputs(agent) == {"c1": NOT_APPROVED}


async def test_arguments_that_do_not_parse_are_none_for_a_policy(run_mode: Run) -> None:
    """A policy may deny such a call; if it allows the call, the call is answered with its fault."""
    policy = Saying(Allow())
    agent = make_agent([make_free_tool([])], call("free", "{broken", "c1"))
    result = await run_mode(agent, "go", run_config=ruled(policy))
    assert [pending.arguments for pending in policy.seen] == [None]
    assert read_statuses(result) == ["failed"]


@pytest.mark.parametrize("wrong", [object(), Allow(), lambda call: Allow()])
async def test_what_is_no_policy_is_refused_before_the_run(wrong: Any) -> None:
    """The error names the policy's place in the list."""
    with pytest.raises(UserError, match=r"policies\[0\]"):
        await Runner.run(make_agent([]), "go", run_config=ruled(wrong))


async def test_policies_judge_the_calls_of_nested_runs(run_mode: Run) -> None:
    """A policy receives the path of a nested call, and it judges the agent tool's own call too."""
    ran: list[Any] = []
    policy = Saying(lambda pending: Deny("not down there") if pending.path else Allow())
    inner: Agent[Any, Any] = Agent(
        "inner", model=ScriptedModel([call("free", {"n": 1}, "n1"), say("dug")]), tools=[make_free_tool(ran)]
    )
    agent = make_agent(
        [inner.as_tool("dig"), make_free_tool(ran)], [call("dig", {"input": "x"}, "o1"), call("free", {}, "o2")]
    )
    result = await run_mode(agent, "go", run_config=ruled(policy))
    assert result.final_output == "done"
    assert ran == [("free", 0)]
    assert sorted((pending.path, pending.call.call_id) for pending in policy.seen) == [
        ((), "o1"),
        ((), "o2"),
        (("o1",), "n1"),
    ]
    assert read_shown_outputs(inner) == {"n1": "not down there"}


# ---------------------------------------------------------------------------------------------- denial is final


@pytest.mark.scenario("LX-68")
@pytest.mark.parametrize("always", [False, True])
@in_every_way
async def test_no_approval_releases_a_denied_call(run_mode: Run, always: bool, way: str) -> None:
    """An approval from before the denial doesn't release the call, and neither does one for all calls of the tool."""
    ran: list[Any] = []
    agent = make_agent([make_gated_tool(ran)], call("gated", {"n": 1}, "c1"), call("gated", {"n": 2}, "c2"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    config = ruled(Saying(Deny("the law says no")))
    result = await pauses.resume(agent, paused, approve(always=always), run_config=config)
    assert result.final_output == "done"
    assert ran == []
    assert read_shown_outputs(agent) == {"c1": "the law says no", "c2": "the law says no"}
    assert read_statuses(result) == ["rejected", "rejected"]


@pytest.mark.scenario("LX-68")
async def test_a_denied_call_is_not_put_to_anybody(run_mode: Run) -> None:
    """The denied call needs approval, but no approval is requested, because a verdict could not release it."""
    ran: list[Any] = []
    asked: list[str] = []

    def needed(ctx: Any, arguments: Any, call_id: str) -> bool:
        asked.append(call_id)
        return True

    agent = make_agent([make_gated_tool(ran, needs_approval=needed)], call("gated", {"n": 1}, "c1"))
    result = await run_mode(agent, "go", run_config=ruled(Saying(Deny("no"))))
    assert result.final_output == "done"
    assert (ran, asked, read_approval_requests(result)) == ([], [], [])


@pytest.mark.scenario("LX-39")
@pytest.mark.parametrize("turns", [1, 2])
async def test_a_call_that_a_policy_refused_leaves_no_receipt(run_mode: Run, turns: int) -> None:
    """The equal call that the policy permits runs its body."""
    ran: list[Any] = []
    policy = Saying(lambda pending: Deny("not this one") if pending.call.call_id == "c1" else Allow())
    calls = [call("free", {"n": 1}, "c1"), call("free", {"n": 1}, "c2"), call("free", {"n": 1}, "c3")]
    agent = make_agent([make_free_tool(ran, idempotent=True)], *([calls] if turns == 1 else [calls[0], calls[1:]]))
    result = await run_mode(agent, "go", run_config=ruled(policy))
    assert ran == [("free", 1)]
    assert read_statuses(result) == ["rejected", "succeeded", "replayed"]


@pytest.mark.scenario("LX-39")
@in_every_way
async def test_a_rejected_idempotent_call_leaves_no_receipt(run_mode: Run, way: str) -> None:
    """An equal call under another id runs once it is approved."""
    ran: list[Any] = []
    agent = make_agent(
        [make_gated_tool(ran, idempotent=True)], call("gated", {"n": 1}, "c1"), call("gated", {"n": 1}, "c2")
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.resume(agent, await pauses.run(agent), reject())
    assert (ran, read_waiting(paused)) == ([], ["c2"])
    result = await pauses.resume(agent, paused, approve())
    assert read_statuses(result) == ["rejected", "succeeded"]
    assert ran == [("gated", 1)]


# ---------------------------------------------------------------------------------------------- approved arguments


def paying(ran: list[Any]) -> Callable[..., Any]:
    """Return a tool's body that notes its number."""

    async def pay(n: int) -> str:
        ran.append(n)
        return f"paid {n}"

    return pay


@pytest.mark.scenario("LX-65")
@pytest.mark.parametrize("edited", ['{"n": 9}', {"n": 9}])
@in_every_way
async def test_an_approved_call_runs_once_with_the_arguments_that_were_approved(
    run_mode: Run, edited: Any, way: str
) -> None:
    """Body, record and context have the approved arguments; the call item keeps the model's own."""
    ran: list[Any] = []
    texts: list[str] = []

    @tool_input_guardrail
    def judge(data: Any) -> Any:
        texts.append(data.context.tool_arguments)
        assert data.arguments == {"n": 9}
        return Allow()

    pay = tool(needs_approval=True, tool_input_guardrails=[judge])(paying(ran))
    agent = make_agent([pay], call("pay", {"n": 1000}, "c1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    result = await pauses.resume(agent, paused, approve(arguments=edited))
    assert result.final_output == "done"
    assert ran == [9]
    assert texts == ['{"n": 9}']
    [started] = [record for record in result.records if isinstance(record, r.CallStarted)]
    assert started.arguments == '{"n": 9}'
    assert read_shown_outputs(agent) == {"c1": "paid 9"}
    [asked] = [item for item in read_requests(agent)[-1].items if isinstance(item, ToolCall)]
    assert asked.arguments == '{"n": 1000}'


@pytest.mark.scenario("LX-67")
@pytest.mark.parametrize(
    ("n", "ran_with", "told"), [(5, [5], "paid 5"), (500, [], "that is too much"), (50, [50], "paid 50")]
)
@in_every_way
async def test_edited_arguments_are_judged_by_the_policies_again(
    run_mode: Run, n: int, ran_with: list[int], told: str, way: str
) -> None:
    """Policies allow, deny or ask about the edited arguments; the approver who wrote them has answered an `Ask`."""
    ran: list[Any] = []

    def by_sum(pending: PendingCall) -> Any:
        assert pending.arguments is not None
        sum_ = pending.arguments["n"]
        return Deny("that is too much") if sum_ > 100 else Ask() if sum_ > 10 else Allow()

    policy = Saying(by_sum)
    agent = make_agent([tool(paying(ran))], call("pay", {"n": 20}, "c1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, run_config=ruled(policy))
    assert read_waiting(paused) == ["c1"]
    asked = len(policy.seen)
    result = await pauses.resume(agent, paused, approve(arguments={"n": n}), run_config=ruled(policy))
    assert result.final_output == "done"
    assert ran == ran_with
    assert read_shown_outputs(agent) == {"c1": told}
    assert [pending.arguments for pending in policy.seen[asked:]] == [{"n": n}]


@pytest.mark.scenario("LX-67", "RP-21")
@in_every_way
async def test_edited_arguments_that_do_not_fit_the_tool_are_refused_where_they_are_given(
    run_mode: Run, way: str
) -> None:
    """The approver gets an error that names the wrong argument and may give others; the model sees neither."""
    ran: list[Any] = []
    agent = make_agent([make_gated_tool(ran)], call("gated", {"n": 1}, "c1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent)
    with pytest.raises(UserError, match=r"\bn\b"):
        await pauses.resume(agent, paused, approve(arguments={"n": "many"}))
    result = await pauses.resume(agent, paused, approve(arguments={"n": 2}))
    assert ran == [("gated", 2)]
    assert read_statuses(result) == ["succeeded"]


@pytest.mark.scenario("LX-67")
@in_every_way
async def test_an_edited_idempotent_call_has_the_receipt_of_what_ran(run_mode: Run, way: str) -> None:
    """The edited arguments make the receipt: an equal call of them is a hit, and one of the model's own runs."""
    ran: list[Any] = []
    agent = make_agent(
        [make_gated_tool(ran, idempotent=True)],
        call("gated", {"n": 1}, "c1"),
        [call("gated", {"n": 9}, "c2"), call("gated", {"n": 1}, "c3")],
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.resume(agent, await pauses.run(agent), approve(arguments={"n": 9}))
    assert ran == [("gated", 9)]
    assert read_waiting(paused) == ["c3"]
    result = await pauses.resume(agent, paused, approve())
    assert read_statuses(result) == ["succeeded", "replayed", "succeeded"]
    assert ran == [("gated", 9), ("gated", 1)]


@pytest.mark.scenario("LX-58")
async def test_arguments_rewritten_by_a_guardrail_are_judged_by_the_policies(run_mode: Run) -> None:
    """A rewrite right before the body is a new invocation, which doesn't run if the policies deny it."""
    ran: list[Any] = []

    @tool_input_guardrail
    def enlarge(data: Any) -> Any:
        return Rewrite({"n": 500})

    policy = Saying(lambda pending: Deny("that is too much") if pending.arguments["n"] > 100 else Allow())
    agent = make_agent([make_free_tool(ran, tool_input_guardrails=[enlarge])], call("free", {"n": 1}, "c1"))
    result = await run_mode(agent, "go", run_config=ruled(policy))
    assert ran == []
    assert [pending.arguments for pending in policy.seen] == [{"n": 1}, {"n": 500}]
    assert read_statuses(result) == ["rejected"]
    assert read_shown_outputs(agent) == {"c1": "that is too much"}


BEFORE = ToolExecution(pre_approval_tool_input_guardrails=True)


@in_every_way
async def test_arguments_rewritten_before_the_approval_are_those_that_are_asked_about(run_mode: Run, way: str) -> None:
    """The rewritten arguments are judged by the policies, shown to the approver, and given to the body."""
    ran: list[Any] = []

    @tool_input_guardrail
    def halve(data: Any) -> Any:
        return Rewrite({"n": 50})

    policy = Saying(Ask())
    config = ruled(policy, tool_execution=BEFORE)
    agent = make_agent([make_gated_tool(ran, tool_input_guardrails=[halve])], call("gated", {"n": 100}, "c1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, run_config=config)
    [request] = paused.interruptions
    assert request.call.arguments == '{"n": 50}'
    assert [pending.arguments for pending in policy.seen] == [{"n": 100}, {"n": 50}]
    result = await pauses.resume(agent, paused, lambda state: state.approve(request), run_config=config)
    assert result.final_output == "done"
    assert ran == [("gated", 50)]


@in_every_way
async def test_what_was_approved_is_what_runs_whatever_the_guardrail_says_now(run_mode: Run, way: str) -> None:
    """A guardrail that rewrites the arguments once only: the approver has seen the rewritten ones, and they run."""
    ran: list[Any] = []
    answers = [Rewrite({"n": 50})]

    @tool_input_guardrail
    def halve_once(data: Any) -> Any:
        return answers.pop() if answers else Allow()

    config = RunConfig(tool_execution=BEFORE)
    agent = make_agent([make_gated_tool(ran, tool_input_guardrails=[halve_once])], call("gated", {"n": 100}, "c1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, run_config=config)
    [request] = paused.interruptions
    result = await pauses.resume(agent, paused, lambda state: state.approve(request), run_config=config)
    assert request.call.arguments == '{"n": 50}'
    assert (result.final_output, ran) == ("done", [("gated", 50)])


async def test_a_denial_of_rewritten_arguments_comes_before_any_pause(run_mode: Run) -> None:
    """The policy's denial comes before any pause where guardrails run before the approval."""
    ran: list[Any] = []

    @tool_input_guardrail
    def enlarge(data: Any) -> Any:
        return Rewrite({"n": 500})

    policy = Saying(lambda pending: Deny("that is too much") if pending.arguments["n"] > 100 else Ask())
    agent = make_agent([make_gated_tool(ran, tool_input_guardrails=[enlarge])], call("gated", {"n": 1}, "c1"))
    result = await run_mode(agent, "go", run_config=ruled(policy, tool_execution=BEFORE))
    assert result.final_output == "done"
    assert (ran, read_approval_requests(result)) == ([], [])
    assert read_shown_outputs(agent) == {"c1": "that is too much"}


async def test_a_denied_call_is_not_put_to_the_guardrails(run_mode: Run) -> None:
    """The policies judge first, so a denied call reaches no guardrail."""
    judged: list[Any] = []

    @tool_input_guardrail
    def judge(data: Any) -> Any:
        judged.append(data.arguments)
        return RejectContent("no")

    agent = make_agent([make_gated_tool([], tool_input_guardrails=[judge])], call("gated", {"n": 1}, "c1"))
    await run_mode(agent, "go", run_config=ruled(Saying(Deny("denied")), tool_execution=BEFORE))
    assert (judged, read_shown_outputs(agent)) == ([], {"c1": "denied"})


# ---------------------------------------------------------------------------------------------- the pause and siblings


@pytest.mark.scenario("LX-55")
@pytest.mark.parametrize("size", [1, 3])
async def test_no_sibling_is_running_when_a_pause_is_delivered(size: int) -> None:
    """`ApprovalRequested` comes while nothing has started; `RunEnded` when all that ran has ended."""
    flight = Flight()
    together = Rendezvous(size)

    @tool
    async def slow(n: int) -> str:
        with flight(n):
            await together.wait()
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            return "slow"

    calls = [call("slow", {"n": n}, f"s{n}") for n in range(size)]
    agent = make_agent([make_gated_tool([]), slow], [*calls, call("gated", {}, "c1")])
    kinds: list[str] = []
    async with Runner.run_streamed(agent, "go") as stream:
        async for event in stream:
            kinds.append(type(event).__name__)
            if isinstance(event, ev.ApprovalRequested):
                assert event.request.call.call_id == "c1"
            if isinstance(event, ev.RunEnded):
                assert event.status == "interrupted"
                assert (flight.now, len(flight.ended)) == (0, size)
    assert kinds.index("ApprovalRequested") < kinds.index("CallStarted")
    assert kinds[-1] == "RunEnded"
    assert count_records(stream.result, r.CallSettled) == size


@pytest.mark.scenario("LX-70")
@in_every_way
async def test_what_siblings_did_before_the_pause_is_in_the_transcript(run_mode: Run, way: str) -> None:
    """One sibling fails, one is refused, one succeeds; none of them runs again after the pause."""
    ran: list[Any] = []

    @tool
    async def breaks() -> str:
        ran.append("breaks")
        raise ValueError("no luck")

    policy = Saying(lambda pending: Deny("denied") if pending.arguments == {"n": 5} else Allow())
    agent = make_agent(
        [make_gated_tool(ran), make_free_tool(ran), breaks],
        [call("breaks", {}, "c1"), call("gated", {}, "c2"), call("free", {"n": 5}, "c3"), call("free", {}, "c4")],
    )
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, run_config=ruled(policy))
    result = await pauses.resume(agent, paused, approve())
    assert result.final_output == "done"
    assert list(read_shown_outputs(agent).items()) == [
        ("c1", "Tool breaks failed with: ValueError(no luck)"),
        ("c2", "gated 0"),
        ("c3", "denied"),
        ("c4", "free 0"),
    ]
    assert sorted(map(str, ran)) == sorted(map(str, ["breaks", ("free", 0), ("gated", 0)]))


# ---------------------------------------------------------------------------------------------- what is asked, and why


class Dear(Saying):
    """Another policy."""


@in_every_way
async def test_who_asks_and_why_stands_in_the_record_and_on_the_interruption(run_mode: Run, way: str) -> None:
    """The reasons of all policies that ask are kept in order, also in another process, and in the event."""
    policies = [
        Saying(Ask("it is Friday")),
        Saying(Ask()),
        Dear(Ask("it is dear")),
        Saying(Allow()),
    ]
    agent = make_agent([make_free_tool([])], call("free", {"n": 1}, "c1"))
    pauses = Pauses(run_mode, way)
    paused = await pauses.run(agent, run_config=ruled(*policies))
    paused = await pauses.resume(agent, paused, decide_nothing, run_config=ruled(*policies))
    (request,) = paused.interruptions
    assert (request.policy, request.reason) == ("Saying, Dear", "it is Friday; it is dear")
    (asked,) = [record for record in paused.records if isinstance(record, r.ApprovalRequested)]
    assert (asked.policy, asked.reason) == (request.policy, request.reason)


async def test_a_tool_that_asks_by_itself_gives_no_reason(run_mode: Run) -> None:
    """A tool's own request has no reason; a policy without a reason is named all the same."""
    for needs, policies, wanted in (
        (True, [], (None, None)),
        (False, [Dear(Ask())], ("Dear", None)),
        (True, [Dear(Ask("dear"))], ("Dear", "dear")),
    ):
        made = make_gated_tool([], "free", needs_approval=needs)
        paused = await run_mode(make_agent([made], call("free", {"n": 1}, "c1")), "go", run_config=ruled(*policies))
        (request,) = paused.interruptions
        assert (request.policy, request.reason) == wanted


async def test_a_reason_repeats_no_secret_of_the_call(run_mode: Run) -> None:
    """The request and the log's copy of the policy's answer hide the secret; a denial's words are for the model."""

    @tool(secret=("word",))
    async def tell(word: str) -> str:
        """Tell."""
        return "told"

    def decide(pending: PendingCall) -> Ask | Deny:
        assert pending.arguments is not None
        kind = Ask if pending.call.call_id == "c1" else Deny
        return kind(f"he says {pending.arguments['word']}")

    steps = [call("tell", {"word": "opensesame"}, "c1"), call("tell", {"word": "closesesame"}, "c2")]
    paused = await run_mode(make_agent([tell], steps), "go", run_config=ruled(Saying(decide)))
    (request,) = paused.interruptions
    assert request.reason == "[redacted]"
    assert [settled.outcome.output for settled in paused.calls] == ["he says closesesame"]  # for the model alone
    assert "sesame" not in paused.to_state().to_string() + repr(paused.records)


async def test_an_event_asks_for_the_call_as_the_guardrails_have_made_it() -> None:
    """The event shows the rewritten arguments, so a verdict on the event is about the call that would run."""

    @tool_input_guardrail
    async def doubled(data: Any) -> Rewrite:
        return Rewrite({"n": 2})

    config = RunConfig(
        policies=[Dear(Ask("dear"))], tool_execution=ToolExecution(pre_approval_tool_input_guardrails=True)
    )
    ran: list[Any] = []
    agent = make_agent([make_free_tool(ran, tool_input_guardrails=[doubled])], call("free", {"n": 1}, "c1"))
    async with Runner.run_streamed(agent, "go", run_config=config) as stream:
        asked = [event.request async for event in stream if isinstance(event, ev.ApprovalRequested)]
    assert stream.result.interruptions == tuple(asked)
    assert [(request.call.arguments, request.reason) for request in asked] == [('{"n": 2}', "dear")]
    state = stream.state
    state.approve(asked[0])
    result = await Runner.run(agent, state, run_config=config)
    assert result.final_output == "done"
    assert ran == [("free", 2)]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_replay_asks_for_the_same_reason(backend: Any) -> None:
    """The replay requests approval with the same bytes, and doesn't ask the policy again."""
    policy = Dear(Ask("it is dear"))
    agent = make_agent([make_free_tool([])], call("free", {"n": 1}, "c1"))
    config = ruled(policy)
    recorded = Runner.run_sync(agent, "go", run_config=config)
    asked = len(policy.seen)
    replayed = replay(list(recorded.records), agent, run_config=config, backend=backend)
    assert [record_to_json(record) for record in replayed.records] == [
        record_to_json(record) for record in recorded.records
    ]
    assert len(policy.seen) == asked
