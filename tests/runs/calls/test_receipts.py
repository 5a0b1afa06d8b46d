"""Idempotent tools: what an equal call is answered with, and when its body runs again."""

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from kit.agents import Run, configure_run, make_agent
from kit.ending import Rendezvous, advance_clock
from kit.results import find_outcome, find_records, read_shown_outputs, read_statuses
from kit.watching import Flight

from agentloop import Agent, AgentHooks, Allow, Runner, ToolCallError, ToolContext, tool
from agentloop import events as ev
from agentloop import records as r
from agentloop.guardrails import (
    RejectContent,
    ReplaceOutput,
    Rewrite,
    ToolInputData,
    tool_input_guardrail,
    tool_output_guardrail,
)
from agentloop.testing import ScriptedModel, call, say


class Remembered:
    """An idempotent tool `f(n, unit="m")` that numbers its runs."""

    def __init__(self, **options: Any) -> None:
        self.ran: list[Any] = []

        @tool(idempotent=True, **options)
        async def f(n: int, unit: str = "m") -> str:
            self.ran.append((n, unit))
            await anyio.lowlevel.checkpoint()
            return f"run {len(self.ran)}"

        self.tool = f


# -- hits


@pytest.mark.scenario("LX-31")
async def test_an_equal_call_of_a_later_turn_is_answered_with_the_first_output(run_mode: Run) -> None:
    """Turns 1 and 3 run one body; the second result equals the first and says that it is a replay."""
    f = Remembered()

    @tool
    async def between() -> str:
        return "x"

    agent = make_agent([f.tool, between], call("f", {"n": 1}, "a"), call("between", {}, "b"), call("f", {"n": 1}, "c"))
    result = await run_mode(agent, "go")
    assert f.ran == [(1, "m")]
    assert read_shown_outputs(agent) == {"a": "run 1", "b": "x", "c": "run 1"}
    assert read_statuses(result) == ["succeeded", "succeeded", "replayed"]
    assert find_outcome(result, "c").value == "run 1"
    assert [record.call_id for record in find_records(result, r.CallStarted)] == ["a", "b"]


@pytest.mark.scenario("LX-32")
async def test_equal_calls_of_one_batch_share_one_body(run_mode: Run) -> None:
    """Each of the equal calls has a result with its own id."""
    f = Remembered()
    agent = make_agent([f.tool], [call("f", {"n": 1}, f"c{i}") for i in range(4)])
    result = await run_mode(agent, "go")
    assert f.ran == [(1, "m")]
    assert read_shown_outputs(agent) == {f"c{i}": "run 1" for i in range(4)}
    assert read_statuses(result) == ["succeeded", "replayed", "replayed", "replayed"]
    assert len({record.call_id for record in find_records(result, r.CallSettled)}) == 4


async def test_a_waiting_equal_call_holds_no_slot(run_mode: Run) -> None:
    """With a cap of two, the first and another call meet although an equal one is between them."""
    both = Rendezvous(2)
    ran: list[str] = []

    @tool(idempotent=True)
    async def f(n: int) -> str:
        ran.append("f")
        await both.wait()
        return "f"

    @tool
    async def g() -> str:
        await both.wait()
        return "g"

    agent = make_agent([f, g], [call("f", {"n": 1}, "a"), call("f", {"n": 1}, "b"), call("g", {}, "c")])
    with anyio.fail_after(20):
        await run_mode(agent, "go", run_config=configure_run(max_function_tool_concurrency=2))
    assert ran == ["f"]
    assert read_shown_outputs(agent) == {"a": "f", "b": "f", "c": "g"}


@pytest.mark.scenario("LX-33")
@pytest.mark.parametrize("turns", [1, 2])
async def test_key_order_makes_no_difference(run_mode: Run, turns: int) -> None:
    """Key order makes no difference inside a batch and across turns."""
    f = Remembered()
    pair = [call("f", '{"n":1,"unit":"km"}', "a"), call("f", '{ "unit" : "km", "n" : 1 }', "b")]
    agent = make_agent([f.tool], *([pair] if turns == 1 else pair))
    result = await run_mode(agent, "go")
    assert f.ran == [(1, "km")]
    assert read_statuses(result) == ["succeeded", "replayed"]


@pytest.mark.scenario("LX-34")
@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("default_first", [True, False])
async def test_a_default_omitted_and_one_given_are_equal(run_mode: Run, turns: int, default_first: bool) -> None:
    """The key is made of the bound arguments, inside a batch and across turns."""
    f = Remembered()
    pair = [call("f", {"n": 1}, "a"), call("f", {"n": 1, "unit": "m"}, "b")]
    if not default_first:
        pair.reverse()
    agent = make_agent([f.tool], *([pair] if turns == 1 else pair))
    result = await run_mode(agent, "go")
    assert f.ran == [(1, "m")]
    assert read_statuses(result) == ["succeeded", "replayed"]


@pytest.mark.scenario("LX-43")
async def test_a_hit_has_a_settled_event_and_took_no_time() -> None:
    """A hit has the status `replayed`, and no start event, because it never started."""
    f = Remembered()
    agent = make_agent([f.tool], call("f", {"n": 1}, "a"), call("f", {"n": 1}, "b"))
    async with Runner.run_streamed(agent, "go") as stream:
        events = [event async for event in stream]
    [settled] = [event for event in events if isinstance(event, ev.CallSettled) and event.call.call_id == "b"]
    assert settled.outcome.status == "replayed"
    assert settled.outcome.started_at in (None, settled.outcome.ended_at)
    assert settled.outcome.ended_at is not None
    assert [event.call.call_id for event in events if isinstance(event, ev.CallStarted)] == ["a"]


@pytest.mark.scenario("LX-44")
async def test_a_duplicate_gets_the_truncated_content(run_mode: Run) -> None:
    """The duplicate's content is identical to the first's, inside a batch and in a later turn."""

    @tool(idempotent=True)
    async def f() -> str:
        return "".join(str(n) for n in range(2000))

    agent = make_agent([f], [call("f", {}, "a"), call("f", {}, "b")], call("f", {}, "c"))
    await run_mode(agent, "go", run_config=configure_run(max_output_chars=200))
    found = read_shown_outputs(agent)
    assert found["a"] == found["b"] == found["c"]
    assert len(found["a"]) <= 200
    assert "characters cut" in str(found["a"])


async def test_a_replaced_output_is_what_a_hit_gets(run_mode: Run) -> None:
    """A receipt hit returns the output that a guardrail put in place, not the value that the body returned."""

    @tool_output_guardrail
    def guard(data: Any) -> ReplaceOutput:
        return ReplaceOutput("clean")

    f = Remembered(tool_output_guardrails=[guard])
    agent = make_agent([f.tool], [call("f", {"n": 1}, "a"), call("f", {"n": 1}, "b")], call("f", {"n": 1}, "c"))
    result = await run_mode(agent, "go")
    assert read_shown_outputs(agent) == {"a": "clean", "b": "clean", "c": "clean"}
    assert find_outcome(result, "c").value == "clean"


async def test_nested_runs_and_other_runs_have_receipts_of_their_own(run_mode: Run) -> None:
    """A receipt belongs to one run."""
    f = Remembered()
    inner = Agent("inner", model=ScriptedModel([call("f", {"n": 1}), say("inner")]), tools=[f.tool])
    agent = make_agent([f.tool, inner.as_tool()], call("f", {"n": 1}, "a"), call("inner", {"input": "x"}, "i"))
    await run_mode(agent, "go")
    assert len(f.ran) == 2
    await run_mode(make_agent([f.tool], call("f", {"n": 1}, "a")), "go")
    assert len(f.ran) == 3


# -- misses


@pytest.mark.scenario("LX-36")
async def test_other_arguments_run(run_mode: Run) -> None:
    """Calls with different arguments run once each."""
    f = Remembered()
    agent = make_agent([f.tool], [call("f", {"n": 1}, "a"), call("f", {"n": 2}, "b")], call("f", {"n": 1, "unit": "x"}))
    result = await run_mode(agent, "go")
    assert sorted(f.ran) == [(1, "m"), (1, "x"), (2, "m")]
    assert read_statuses(result) == ["succeeded"] * 3


async def test_an_equal_call_of_another_tool_runs(run_mode: Run) -> None:
    """The key holds the tool's lookup key."""
    f, g = Remembered(), Remembered(namespace="ns")
    agent = make_agent([f.tool, g.tool], [call("f", {"n": 1}, "a"), call("f", {"n": 1}, "b", "ns")])
    result = await run_mode(agent, "go")
    assert (f.ran, g.ran) == ([(1, "m")], [(1, "m")])
    assert read_statuses(result) == ["succeeded", "succeeded"]


@pytest.mark.scenario("LX-37")
async def test_every_call_of_a_tool_that_is_not_idempotent_runs(run_mode: Run) -> None:
    """The tool's calls all run, with equal arguments or not, inside a batch and across turns."""
    ran: list[int] = []

    @tool
    async def f(n: int) -> int:
        ran.append(n)
        return n

    agent = make_agent([f], [call("f", {"n": 1}), call("f", {"n": 1})], call("f", {"n": 1}))
    result = await run_mode(agent, "go")
    assert ran == [1, 1, 1]
    assert read_statuses(result) == ["succeeded"] * 3


class Fickle:
    """An idempotent tool whose first run ends otherwise than by success."""

    def __init__(self, how: str) -> None:
        self.ran = 0

        @tool_input_guardrail
        def before(data: ToolInputData) -> Any:
            self.asked += 1
            return RejectContent("not now") if how == "refused" and self.asked == 1 else Allow()

        @tool_output_guardrail
        def after(data: Any) -> Any:
            return RejectContent("not that") if how == "rejected" and self.ran == 1 else Allow()

        timeout = 60 if how == "timed out" else None

        @tool(idempotent=True, tool_input_guardrails=[before], tool_output_guardrails=[after], timeout=timeout)
        async def f(ctx: ToolContext[Any], n: int) -> str:
            self.ran += 1
            if self.ran > 1 or how in ("refused", "rejected"):
                return f"run {self.ran}"
            if how == "failed":
                raise ValueError("no")
            if how == "cancelled":
                ctx.cancel_call(ctx.tool_call_id, "gave up")
            if how == "timed out":
                advance_clock(60)
            await anyio.sleep_forever()
            return "never"

        self.asked = 0
        self.tool = f


FIRST_ENDINGS = {"failed": "failed", "timed out": "timed_out", "cancelled": "cancelled", "rejected": "rejected"}


@pytest.mark.scenario("LX-38")
@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("how", FIRST_ENDINGS)
async def test_only_success_leaves_a_receipt(run_mode: Run, how: str, turns: int) -> None:
    """The next equal call after a failure runs, and a third one gets its output."""
    f = Fickle(how)
    calls = [call("f", {"n": 1}, call_id) for call_id in "abc"]
    agent = make_agent([f.tool], *([calls] if turns == 1 else calls))
    result = await run_mode(agent, "go")
    assert f.ran == 2
    assert read_statuses(result) == [FIRST_ENDINGS[how], "succeeded", "replayed"]
    found = read_shown_outputs(agent)
    assert (found["b"], found["c"]) == ("run 2", "run 2")


@pytest.mark.scenario("LX-39")
@pytest.mark.parametrize("turns", [1, 2])
async def test_a_refused_call_leaves_no_receipt(run_mode: Run, turns: int) -> None:
    """A guardrail refuses the first and permits the second: the body runs on the second."""
    f = Fickle("refused")
    calls = [call("f", {"n": 1}, "a"), call("f", {"n": 1}, "b")]
    agent = make_agent([f.tool], *([calls] if turns == 1 else calls))
    result = await run_mode(agent, "go")
    assert f.ran == 1
    assert read_statuses(result) == ["rejected", "succeeded"]
    assert read_shown_outputs(agent) == {"a": "not now", "b": "run 1"}


async def test_of_waiting_equal_calls_one_at_a_time_tries_again(run_mode: Run) -> None:
    """Three of the equal calls fail and one doesn't, and two bodies never run at once."""
    flight = Flight()
    attempts: list[int] = []

    @tool(idempotent=True)
    async def f(n: int) -> str:
        attempts.append(n)
        with flight(n):
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            if len(attempts) < 4:
                raise ValueError("no")
        return "at last"

    agent = make_agent([f], [call("f", {"n": 1}, f"c{i}") for i in range(6)])
    result = await run_mode(agent, "go")
    assert flight.peak == 1
    assert len(attempts) == 4
    assert read_statuses(result) == ["failed"] * 3 + ["succeeded"] + ["replayed"] * 2


async def test_a_first_call_that_ends_the_run_leaves_the_waiting_one_unstarted(run_mode: Run) -> None:
    """The waiting call is cancelled with the batch and doesn't run."""
    ran: list[int] = []

    @tool(idempotent=True, failure_error_function=None)
    async def f(n: int) -> str:
        ran.append(n)
        await anyio.lowlevel.checkpoint()
        raise ValueError("no")

    agent = make_agent([f], [call("f", {"n": 1}, "a"), call("f", {"n": 1}, "b")])
    with pytest.raises(ToolCallError) as caught:
        await run_mode(agent, "go")
    assert ran == [1]
    waiting = find_outcome(caught.value.run_data, "b")
    assert (waiting.status, waiting.cancelled_by, waiting.started_at) == ("cancelled", "sibling", None)


async def test_a_waiting_equal_call_can_be_cancelled_alone(run_mode: Run) -> None:
    """The cancelled equal call never starts, and the call it waited for continues."""
    f_running = anyio.Event()
    go = anyio.Event()

    @tool(idempotent=True)
    async def f(n: int) -> str:
        f_running.set()
        await go.wait()
        return "f"

    @tool
    async def canceller(ctx: ToolContext[Any]) -> str:
        await f_running.wait()
        assert ctx.cancel_call("b", "not needed")
        go.set()
        return "c"

    agent = make_agent([f, canceller], [call("f", {"n": 1}, "a"), call("f", {"n": 1}, "b"), call("canceller", {}, "c")])
    with anyio.fail_after(20):
        result = await run_mode(agent, "go")
    assert read_statuses(result) == ["succeeded", "cancelled", "succeeded"]
    cancelled = find_outcome(result, "b")
    assert (cancelled.cancelled_by, cancelled.started_at) == ("caller", None)
    assert read_shown_outputs(agent)["b"] == "Tool f failed with: ToolCancelledError(not needed)"


# -- rewritten arguments


def _rewriting(to: dict[str, Any]) -> Any:
    @tool_input_guardrail
    def rewrite(data: ToolInputData) -> Rewrite:
        return Rewrite(to)

    return rewrite


@pytest.mark.scenario("LX-58")
async def test_the_receipt_of_a_rewritten_call_is_for_what_ran(run_mode: Run) -> None:
    """Calls rewritten to the same arguments run once; the record says with which."""
    f = Remembered(tool_input_guardrails=[_rewriting({"n": 7})])
    agent = make_agent([f.tool], [call("f", {"n": 1}, "a"), call("f", {"n": 2}, "b")], call("f", {"n": 3}, "c"))
    result = await run_mode(agent, "go")
    assert f.ran == [(7, "m")]
    assert read_shown_outputs(agent) == {"a": "run 1", "b": "run 1", "c": "run 1"}
    assert read_statuses(result).count("succeeded") == 1
    assert read_statuses(result).count("replayed") == 2
    [started] = find_records(result, r.CallStarted)
    assert started.arguments == '{"n": 7}'


async def test_the_idempotency_key_is_one_call_s_own(run_mode: Run) -> None:
    """The key differs for each call, and the record tells the one in the body's context."""
    keys: dict[str, str] = {}

    @tool
    async def f(ctx: ToolContext[Any], n: int) -> str:
        keys[ctx.tool_call_id] = ctx.idempotency_key
        return "ok"

    agent = make_agent([f], [call("f", {"n": 1}, "a"), call("f", {"n": 1}, "b")])
    result = await run_mode(agent, "go")
    assert len(set(keys.values())) == 2
    assert all(keys.values())
    run_id = result.to_state().run_id
    assert {record.call_id: record.idempotency_key(run_id) for record in find_records(result, r.CallStarted)} == keys


async def test_a_key_that_is_read_when_the_run_is_over_is_the_call_s(run_mode: Run) -> None:
    """A context tells the key whenever it is read: of a hook, of a nested run, with or without a body that takes it."""
    kept: dict[tuple[tuple[str, ...], str], ToolContext[Any]] = {}

    class Keeping(AgentHooks):
        async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
            kept[("o",) if agent is inner else (), ctx.tool_call_id] = ctx

    @tool
    async def dig() -> str:
        """Dig."""
        return "gold"

    inner = Agent("inner", model=ScriptedModel([call("dig", call_id="d"), say("dug")]), tools=[dig], hooks=Keeping())
    ask = inner.as_tool("ask")
    agent = make_agent([ask, dig], [call("ask", {"input": "dig"}, "o"), call("dig", call_id="d")])
    agent.hooks = Keeping()
    result = await run_mode(agent, "go")
    run_id = result.to_state().run_id
    recorded = {
        (record.path, record.call_id): record.idempotency_key(run_id) for record in find_records(result, r.CallStarted)
    }
    assert len(set(recorded.values())) == 3
    assert {place: ctx.idempotency_key for place, ctx in kept.items()} == {
        place: recorded[place] for place in [((), "o"), ((), "d"), (("o",), "d")]
    }


async def test_sequential_mode_answers_equal_calls_too(run_mode: Run) -> None:
    """The second of two is a replay by the time its turn comes."""
    f = Remembered()
    agent = make_agent([f.tool], [call("f", {"n": 1}, "a"), call("f", {"n": 1}, "b"), call("f", {"n": 2}, "c")])
    result = await run_mode(agent, "go", run_config=configure_run(mode="sequential"))
    assert f.ran == [(1, "m"), (2, "m")]
    assert read_statuses(result) == ["succeeded", "replayed", "succeeded"]
