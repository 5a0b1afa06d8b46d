"""Searches over schedules and cancellations: what they find, what they print, and that what is sound is left alone."""

import re
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from testing.till import Till, agent

from agentloop import Agent, ToolContext, UserError, tool
from agentloop import testing as t
from agentloop.testing import call, say
from agentloop.testing.simulation.exploring import owner

DONE = say("done")


def never_pays_twice(r: t.WorldRun) -> None:
    """The check of an application: no more was paid than was owed."""
    assert r.context.paid <= 100, f"paid {r.context.paid} of 100"


# ---------------------------------------------------------------------------------------------- what is found


def test_customer_is_never_paid_twice() -> None:
    """The search finds a race between two tools and shrinks it to two calls, by public names alone."""

    def check(r: t.WorldRun) -> None:
        assert r.context.paid <= 100

    calls = [
        call("look"),
        call("refund", {"amount": 30}),
        call("refund", {"amount": 80}),
        call("credit", {"amount": 90}),
    ]
    with pytest.raises(t.ExplorationFailure) as found:
        t.explore(agent, [calls, [call("look")], say("done")], check, context=Till)
    assert [len(step) for step in found.value.run.world.script[:-1]] == [2]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_bug_that_the_natural_order_hides_is_found_by_leaving_it_once(backend: Any) -> None:
    """The second call must overtake the first one between its two steps."""

    @tool
    async def reserve(ctx: ToolContext[list[str]], name: str) -> str:
        ctx.context.append(f"look {name}")
        await anyio.lowlevel.checkpoint()
        ctx.context.append(f"take {name}")
        return name

    def check(r: t.WorldRun) -> None:
        order = r.context
        assert order.index("take b") > order.index("take a"), "b overtook a"

    script = [[call("reserve", {"name": name}) for name in "cab"], DONE]
    with pytest.raises(t.ExplorationFailure, match="b overtook a") as found:
        t.explore(Agent("inn", tools=[reserve]), script, check, context=list, backends=[backend])
    run = found.value.run
    assert run.backend == backend
    assert sorted(body.arguments for body in run.bodies) == ['{"name": "a"}', '{"name": "b"}']
    assert sum(1 for number in run.tape if number) == 1


def test_failure_prints_script_tape_timeline_and_a_line_that_repeats_it() -> None:
    """A reader of the failure can see what happened, and repeat it."""
    script = [[call("refund", {"amount": 80}), call("look"), call("refund", {"amount": 70})], DONE]
    with pytest.raises(t.ExplorationFailure) as found:
        t.explore(agent, script, never_pays_twice, context=Till)
    text = str(found.value)
    assert "AssertionError: paid 150 of 100" in text
    assert "script:\n    [call('refund', {'amount': 80}), call('refund', {'amount': 70})]\n    say('done')" in text
    assert "tape: []" in text
    assert re.search(r"0\.000  call_1 refund starts .*\n *0\.000  call_2 refund starts", text)
    assert "call_2 refund succeeded: refunded" in text
    line = text.splitlines()[-1].strip()
    again: dict[str, Any] = {
        "agent": agent,
        "never_pays_twice": never_pays_twice,
        "Till": Till,
        "call": call,
        "say": say,
    }
    with pytest.raises(t.ExplorationFailure, match="paid 150 of 100"):
        eval(line, {**again, "explore": t.explore})


def test_cause_of_a_failure_is_what_the_check_raised() -> None:
    """A debugger and pytest show the assertion itself."""
    with pytest.raises(t.ExplorationFailure) as found:
        t.explore(agent, [[call("refund", {"amount": 60})] * 2, DONE], never_pays_twice, context=Till)
    assert isinstance(found.value.__cause__, AssertionError)
    assert str(found.value.__cause__).startswith("paid 120 of 100")


def test_sound_agent_is_explored_to_the_end() -> None:
    """Every schedule on both backends passes: whichever call is first, the other one waits for nothing."""
    script = [[call("safe_refund", {"amount": 80}), call("safe_refund", {"amount": 80})], DONE]
    assert t.explore(agent, script, never_pays_twice, context=Till) == t.Explored(schedules=4, complete=True)


@pytest.mark.scenario("RP-24")
def test_search_over_sync_bodies_that_are_one_step_each_does_not_say_that_it_is_complete() -> None:
    """The search did not try the orders of two threads' lines."""

    @tool
    def count(ctx: ToolContext[list[int]]) -> None:
        n = ctx.context[0] if ctx.context else 0
        ctx.context[:] = [n + 1]

    script = [[call("count"), call("count")], DONE]
    explored = t.explore(Agent("counter", tools=[count]), script, context=list, order="passes")
    assert not explored.complete
    assert "between their lines" in explored.reason
    assert "'passes'" in explored.reason


@pytest.mark.slow
def test_search_stops_at_its_budget_and_says_that_it_is_not_complete() -> None:
    """All kinds of search have had their part by then."""
    script = [[call("safe_refund", {"amount": 20}) for _ in range(4)], DONE]
    explored = t.explore(agent, script, never_pays_twice, context=Till, max_schedules=60)
    assert explored == t.Explored(schedules=60, complete=False)


def test_run_that_raises_is_a_finding_unless_it_may() -> None:
    """An unexpected error is a finding, also when the check doesn't look for it."""

    @tool(failure_error_function=None)
    async def broken() -> str:
        raise ValueError("no")

    one = Agent("broken", tools=[broken])
    with pytest.raises(t.ExplorationFailure, match="ToolCallError: Error running tool broken: ValueError: no"):
        t.explore(one, [call("broken"), DONE])
    assert t.explore(one, [call("broken"), DONE], allow=(Exception,)).complete


def test_agent_that_shares_state_between_runs_is_refused() -> None:
    """A schedule would otherwise mean something else in each run."""
    seen: list[int] = []

    @tool
    async def count() -> int:
        seen.append(1)
        return len(seen)

    with pytest.raises(UserError, match=r"two runs of one schedule differ in record \d+.*anew for each run"):
        t.explore(Agent("counter", tools=[count]), [call("count"), DONE])


def test_function_makes_the_agent_anew_for_each_run() -> None:
    """Tools may close over a state then; models of its own may follow scripts of their own."""

    def make() -> Agent[Any, Any]:
        seen: list[int] = []

        @tool
        async def count() -> int:
            seen.append(1)
            return len(seen)

        return Agent("counter", tools=[count], model=t.ScriptedModel([[call("count"), call("count")], DONE]))

    def check(r: t.WorldRun) -> None:
        assert {one.outcome.value for one in r.calls} == {1, 2}

    assert t.explore(make, None, check, max_schedules=50).schedules <= 50


@pytest.mark.slow
def test_nested_runs_follow_scripts_of_their_own() -> None:
    """A nested run's script is found by the id of the call that began it."""

    @tool
    async def deep(n: int) -> str:
        await anyio.lowlevel.checkpoint()
        return str(n)

    inner = Agent("inner", tools=[deep])
    outer = Agent("outer", tools=[inner.as_tool()])
    script = [[call("inner", {"input": "go"}, call_id="a"), call("inner", {"input": "go"}, call_id="b")], DONE]
    nested = {"a": [call("deep", {"n": 1}), say("one")], "b": [call("deep", {"n": 2}), say("two")]}

    def check(r: t.WorldRun) -> None:
        assert [one.outcome.value for one in r.calls] == ["one", "two"]
        assert r.executions("deep") == 2

    assert t.explore(outer, script, check, nested=nested, max_schedules=40).schedules == 40


def test_check_that_fails_without_any_call_is_refused() -> None:
    """No schedule of calls can be the cause, so nothing is searched."""
    with pytest.raises(UserError, match=r"the run makes no call.*no schedule is the cause.*refunded 0 times"):
        t.explore(agent, [DONE], demands_a_refund, context=Till)


def demands_a_refund(r: t.WorldRun) -> None:
    """A check that a run without calls doesn't pass."""
    assert r.executions("refund") == 1, f"refunded {r.executions('refund')} times"


def test_finding_is_never_made_small_to_a_script_without_calls() -> None:
    """Without a call, a check that demands one fails for another reason than the one that was found."""
    calls = [call("look"), call("refund", {"amount": 1}), call("refund", {"amount": 2})]

    def refunds_often(r: t.WorldRun) -> None:
        assert r.executions("refund") == 5

    with pytest.raises(t.ExplorationFailure) as found:
        t.explore(agent, [calls, DONE], refunds_often, context=Till)
    assert [len(step) for step in found.value.run.world.script if isinstance(step, list)] == [1]


def test_finding_of_a_schedule_keeps_the_calls_that_race() -> None:
    """A check that counts what the calls did also fails without one of them: that is no smaller case of the race."""

    @tool
    async def count(ctx: ToolContext[list[int]]) -> None:
        before = len(ctx.context)
        await anyio.sleep(1)
        ctx.context[:] = [0] * (before + 1)

    def counted_all(r: t.WorldRun) -> None:
        assert len(r.context) == 3, "lost"

    calls = [[call("count")], [call("count"), call("count")], DONE]
    with pytest.raises(t.ExplorationFailure) as found:
        t.explore(Agent("counter", tools=[count]), calls, counted_all, context=list)
    assert [len(step) for step in found.value.run.world.script if isinstance(step, list)] == [1, 2]


# ---------------------------------------------------------------------------------------------- verdicts


@tool(needs_approval=True)
async def pay(ctx: ToolContext[Till], amount: int) -> str:
    """Pay *amount* back, after a person has approved."""
    left = ctx.context.owed
    await anyio.lowlevel.checkpoint()
    if amount > left:
        return "nothing is owed"
    ctx.context.owed = left - amount
    ctx.context.paid += amount
    return "paid"


payer: Agent[Any, Any] = Agent("payer", tools=[pay])
PAYS = [[call("pay", {"amount": amount}, call_id=f"p{amount}") for amount in (60, 70, 80)], DONE]


def test_without_verdicts_calls_that_wait_for_one_do_not_run() -> None:
    """Without verdicts a search doesn't see a race between such calls."""
    assert t.explore(payer, PAYS, never_pays_twice, context=Till).complete


def test_a_check_that_fails_for_want_of_verdicts_is_told_how_to_give_them() -> None:
    """Such a run is interrupted, and has no final output to check."""

    def answers(r: t.WorldRun) -> None:
        assert r.result is not None
        assert r.result.final_output == "done"

    with pytest.raises(t.ExplorationFailure) as found:
        t.explore(payer, [[call("pay", {"amount": 60}, call_id="p60")], DONE], answers, context=Till)
    assert "to let it go on: verdicts=[Verdict(call_id='p60')]" in str(found.value)
    t.explore(
        payer,
        [[call("pay", {"amount": 60}, call_id="p60")], DONE],
        answers,
        context=Till,
        verdicts=[t.Verdict(call_id="p60")],
    )


def test_calls_that_verdicts_approve_race_and_the_printed_line_repeats_it() -> None:
    """Rejected calls don't run; a verdict that nothing depends on is left out of the small script."""
    verdicts = [t.Verdict(call_id="p60"), t.Verdict(call_id="p70"), t.Verdict(call_id="p80", approved=False)]
    with pytest.raises(t.ExplorationFailure, match="paid 130 of 100") as found:
        t.explore(payer, PAYS, never_pays_twice, context=Till, verdicts=verdicts)
    run = found.value.run
    assert [body.call_id for body in run.bodies] == ["p60", "p70"]
    assert len(run.world.verdicts) == 2
    line = str(found.value).splitlines()[-1].strip()
    names = {
        "payer": payer,
        "never_pays_twice": never_pays_twice,
        "Till": Till,
        "explore": t.explore,
        "Verdict": t.Verdict,
    }
    with pytest.raises(t.ExplorationFailure) as again:
        eval(line, {**names, "call": call, "say": say})
    assert again.value.run.records == run.records


def test_rejected_calls_do_not_race() -> None:
    """One of two calls is approved, and every schedule passes."""
    verdicts = [t.Verdict(call_id="call_1"), t.Verdict(call_id="call_2", approved=False)]
    script = [[call("pay", {"amount": 60}), call("pay", {"amount": 70})], DONE]

    def check(r: t.WorldRun) -> None:
        assert r.context.paid == 60

    assert t.explore(payer, script, check, context=Till, verdicts=verdicts).complete


# ---------------------------------------------------------------------------------------------- how it is found


def order_of_bodies(scheduler: Any, steps: int = 3) -> list[str]:
    """Return which body took a step when, of eight that take three each, ordered by *scheduler*."""
    taken: list[str] = []

    async def program() -> None:
        async def body(name: str) -> None:
            for step in range(steps):
                await gate.point(f"body {name}")
                taken.append(f"{name}{step}")

        gate = t.Gate(scheduler)
        async with gate, anyio.create_task_group() as group:
            for name in "abcdefgh":
                group.start_soon(body, name)

    t.run_deterministic(program, backend="asyncio")
    return taken


def needs_two_orderings(taken: list[str]) -> bool:
    """Tell whether one body is over before another begins, and that one before a third does."""
    return taken.index("a2") < taken.index("h0") and taken.index("h2") < taken.index("b0")


@pytest.mark.slow
def test_random_priorities_find_an_ordering_bug_that_uniform_choice_hardly_does() -> None:
    """Random priorities find it at least ten times as often: orderings have to hold over many choices."""
    runs = 300
    uniform = sum(needs_two_orderings(order_of_bodies(t.Tape(seed=seed))) for seed in range(runs))
    pct = sum(
        needs_two_orderings(order_of_bodies(t.Priorities(seed, depth=2, length=24, owner=owner)))
        for seed in range(runs)
    )
    assert pct > 20
    assert pct > 10 * uniform, f"{pct} and {uniform} of {runs}"


def test_every_schedule_of_a_small_program_is_run_once() -> None:
    """Three bodies of two steps have 6! / 2!³ = 90 orders."""
    search, seen = t.Exhaustive(), []

    async def program(scheduler: Any) -> None:
        async def body(name: str) -> None:
            for _ in range(2):
                await gate.point(name)
                taken.append(name)

        taken: list[str] = []
        gate = t.Gate(scheduler)
        async with gate, anyio.create_task_group() as group:
            for name in "abc":
                group.start_soon(body, name)
        seen.append("".join(taken))

    from agentloop.testing.simulation.schedules import Recorder

    for tape in search:
        recorder = Recorder(t.Tape(tape))
        t.run_deterministic(program, recorder)
        search.ran(recorder.choices)
    assert search.complete
    assert len(seen) == len(set(seen)) == 90


# ---------------------------------------------------------------------------------------------- cancellation


@attrs.define
class Desk:
    """Things that are taken and must be put back."""

    taken: int = 0
    out: list[str] = attrs.field(factory=list)


def using(put_back: Callable[[ToolContext[Desk]], Any]) -> Agent[Desk, str]:
    """Return an agent whose tool takes something and puts it back by *put_back*."""

    @tool
    async def use(ctx: ToolContext[Desk]) -> str:
        ctx.context.taken += 1
        try:
            await anyio.sleep(0.01)
        finally:
            await put_back(ctx)
        return "used"

    return Agent("desk", tools=[use])


async def in_cleanup(ctx: ToolContext[Desk]) -> None:
    """As it should be."""
    with ctx.cleanup():
        await anyio.sleep(0.01)
        ctx.context.taken -= 1


async def unshielded(ctx: ToolContext[Desk]) -> None:
    """A planted leak: cancelled, the await raises before the thing is put back."""
    await anyio.sleep(0.01)
    ctx.context.taken -= 1


def all_back(r: t.WorldRun) -> None:
    """Nothing is taken any more."""
    assert r.context.taken == 0, f"{r.context.taken} things were not put back"


USES = [[call("use"), call("use")], DONE]


@pytest.mark.slow
def test_clean_agent_survives_cancellation_at_every_step() -> None:
    """The caller cancels by scope on both backends, and natively on asyncio; streamed runs pass too."""
    for streamed in (False, True):
        swept = t.kill_sweep(using(in_cleanup), USES, all_back, context=Desk, streamed=streamed)
        assert swept.cancelled > 30
        assert swept.points > swept.cancelled


@pytest.mark.parametrize("way", [("asyncio", "scope"), ("asyncio", "native"), ("trio", "scope")])
def test_planted_leak_is_found_whatever_cancels(way: Any) -> None:
    """The error has the step, and the line that repeats it."""
    with pytest.raises(t.ExplorationFailure, match=r"[12] things were not put back") as found:
        t.kill_sweep(using(unshielded), USES, all_back, context=Desk, combinations=[way])
    text = str(found.value)
    at = found.value.run.cancelled_at
    assert f"the caller cancels (step {at})" in text
    assert f"at={at})" in text.splitlines()[-1]
    with pytest.raises(t.ExplorationFailure):
        t.kill_sweep(using(unshielded), USES, all_back, context=Desk, combinations=[way], at=at)


def test_cancelled_while_everything_waits_a_leak_is_found_and_its_line_repeats_it() -> None:
    """The line names the same moment, the gate included: what it says is run here."""
    agent, options = using(unshielded), {"order": "gate", "waiting": True}
    with pytest.raises(t.ExplorationFailure, match="were not put back") as found:
        t.kill_sweep(agent, USES, all_back, context=Desk, combinations=[("asyncio", "native")], **options)
    line = str(found.value).splitlines()[-1].strip()
    assert "order='gate', waiting=True" in line
    names = {"agent": agent, "all_back": all_back, "Desk": Desk, "kill_sweep": t.kill_sweep, "call": call, "say": say}
    with pytest.raises(t.ExplorationFailure) as again:
        eval(line, names)
    assert again.value.run.records == found.value.run.records


@pytest.mark.slow
def test_moments_at_which_everything_waits_are_fewer_than_steps() -> None:
    """Without the gate there is no such moment."""
    agent = using(in_cleanup)
    steps = t.kill_sweep(agent, USES, all_back, context=Desk, order="gate")
    moments = t.kill_sweep(agent, USES, all_back, context=Desk, order="gate", waiting=True)
    assert 3 < moments.cancelled < steps.cancelled
    with pytest.raises(UserError, match="nothing waits at a gate"):
        t.kill_sweep(agent, USES, all_back, context=Desk, waiting=True)


@pytest.mark.parametrize("way", [("asyncio", "scope"), ("asyncio", "native"), ("trio", "scope")])
def test_a_leak_under_cancellation_is_made_small(way: Any) -> None:
    """Calls and turns that have nothing to do with it leave the script; the moment moves with it."""

    @tool
    async def look() -> str:
        await anyio.sleep(0.01)
        return "seen"

    leaky = using(unshielded)
    leaky.tools.append(look)
    script = [[call("look"), call("look")], [call("look"), call("use"), call("use")], call("look"), DONE]
    with pytest.raises(t.ExplorationFailure, match="1 things were not put back") as found:
        t.kill_sweep(leaky, script, all_back, context=Desk, combinations=[way])
    small = found.value.run.world.script
    assert small is not None
    assert [[one.name for one in step] for step in small if isinstance(step, list)] == [["use"]]
    assert "made small in" in str(found.value)
    with pytest.raises(t.ExplorationFailure, match="1 things were not put back"):
        t.kill_sweep(leaky, small, all_back, context=Desk, combinations=[way], at=found.value.run.cancelled_at)


def test_task_that_outlives_its_run_is_found() -> None:
    """The tool begins a task and doesn't wait for it."""
    import asyncio

    kept: list[Any] = []

    @tool
    async def forget() -> str:
        async def later() -> None:
            await anyio.sleep(1)

        kept.append(asyncio.ensure_future(later()))
        return "begun"

    with pytest.raises(t.ExplorationFailure, match=r"left behind: task .*later"):
        t.kill_sweep(Agent("forgetful", tools=[forget]), [call("forget"), DONE], combinations=[("asyncio", "scope")])


def test_capacity_that_is_never_given_back_is_found() -> None:
    """A capacity that a run doesn't give back is a finding without any check."""
    from agentloop import Capacity

    def make() -> Agent[Any, Any]:
        capacity = Capacity(2, "desk")

        @tool(capacity=capacity)
        async def hold() -> str:
            capacity.take(0.0)
            return "held"

        return Agent("holder", tools=[hold])

    with pytest.raises(t.ExplorationFailure, match=r"left behind: 1 tokens of Capacity\(2, name='desk'\)"):
        t.explore(make, [call("hold"), DONE])
