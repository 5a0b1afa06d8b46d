"""Limits shared by tools, agents and runs: never exceeded, fully used, and no way to a deadlock."""

import functools
import itertools
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
from kit.agents import Run, configure_run, make_agent
from kit.ending import Rendezvous
from kit.results import find_outcome, find_records, read_shown_outputs, read_statuses
from kit.watching import Flight

from agentloop import (
    Agent,
    Capacity,
    Rate,
    RunConfig,
    RunHooks,
    Runner,
    RunResult,
    ToolCallError,
    ToolContext,
    ToolExecution,
    UserError,
    tool,
)
from agentloop import records as r
from agentloop._engine.runtime.dispatcher import Dispatcher
from agentloop.exceptions import UserTypeError, UserValueError
from agentloop.guardrails import Allow, RejectContent, tool_input_guardrail
from agentloop.journal import MemoryJournal
from agentloop.testing import ScriptedModel, call, say

VIRTUAL = pytest.mark.backends("trio-virtual")


def calls(name: str, count: int, prefix: str = "c") -> list[Any]:
    """Return *count* calls of a tool of one argument `n`, from 0."""
    return [call(name, {"n": n}, f"{prefix}{n}") for n in range(count)]


class Held:
    """A tool `f(n)` under limits, whose bodies meet *meet* at a time; counts what is in flight."""

    def __init__(self, capacity: Any, meet: int = 1, name: str = "f", flight: Flight | None = None) -> None:
        self.flight = flight or Flight()
        self._meet = meet
        self._group = Rendezvous(meet)
        self._come = 0

        @tool(name=name, capacity=capacity)
        async def f(n: int) -> int:
            with self.flight((name, n)):
                await self._wait()
                return n

        self.tool = f

    async def _wait(self) -> None:
        group = self._group
        self._come += 1
        if self._come % self._meet == 0:
            self._group = Rendezvous(self._meet)
        await group.wait()


async def both(*runs: Any) -> list[RunResult[Any]]:
    """Run all at once and return their results in order."""
    results: dict[int, Any] = {}

    async def one(index: int, run: Any) -> None:
        results[index] = await run()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for index, run in enumerate(runs):
                group.start_soon(one, index, run)
    return [results[index] for index in range(len(runs))]


# -- the turn's cap


@pytest.mark.scenario("CO-02")
async def test_two_hundred_calls_under_a_cap_of_seven_peak_at_exactly_seven(run_mode: Run) -> None:
    """All two hundred calls run, and exactly seven of them at the peak."""
    flight = Flight()
    seven = anyio.Event()

    @tool
    async def f(n: int) -> int:
        with flight(n):
            if flight.now == 7:
                seven.set()
            await seven.wait()
            await anyio.lowlevel.checkpoint()
            return n

    agent = make_agent([f], calls("f", 200))
    with anyio.fail_after(30):
        result = await run_mode(agent, "go", run_config=configure_run(max_function_tool_concurrency=7))
    assert flight.peak == 7
    assert sorted(flight.started) == list(range(200))
    assert read_statuses(result) == ["succeeded"] * 200


@VIRTUAL
async def test_a_cap_is_fully_used_all_the_time(run_mode: Run) -> None:
    """A cap of seven lets 200 calls of one second take 29 seconds."""

    @tool
    async def f(n: int) -> int:
        await anyio.sleep(1)
        return n

    agent = make_agent([f], calls("f", 200))
    began = anyio.current_time()
    await run_mode(agent, "go", run_config=configure_run(max_function_tool_concurrency=7))
    assert anyio.current_time() - began == pytest.approx(29)


# -- Capacity


async def test_a_capacity_holds_over_two_runs_at_once(run_mode: Run) -> None:
    """Two runs of two agents have exactly three bodies in flight together."""
    capacity = Capacity(3, "three")
    held = Held(capacity, meet=3)
    agents = [make_agent([held.tool], calls("f", 6)) for _ in range(2)]
    results = await both(*(functools.partial(run_mode, agent, "go") for agent in agents))
    assert held.flight.peak == 3
    assert capacity.statistics().peak == 3
    assert capacity.statistics().tokens_in_use == 0
    for result in results:
        assert read_statuses(result) == ["succeeded"] * 6
    for agent in agents:
        assert read_shown_outputs(agent) == {f"c{n}": str(n) for n in range(6)}


async def test_a_capacity_holds_over_two_tools_of_one_run(run_mode: Run) -> None:
    """Calls of both tools in flight are exactly as many as the capacity."""
    capacity, flight = Capacity(2), Flight()
    one = Held(capacity, name="one", flight=flight)
    two = Held(capacity, name="two", flight=flight)
    meeting = Rendezvous(2)

    async def wait() -> None:
        if flight.started and len(flight.started) <= 2:
            await meeting.wait()

    one._wait = two._wait = wait  # type: ignore[method-assign]
    script = [*calls("one", 4, "a"), *calls("two", 4, "b")]
    agent = make_agent([one.tool, two.tool], script)
    with anyio.fail_after(30):
        result = await run_mode(agent, "go")
    assert flight.peak == 2
    assert read_statuses(result) == ["succeeded"] * 8


@VIRTUAL
async def test_arrival_order_holds_over_runs(run_mode: Run) -> None:
    """The runs share a capacity of one, which serves the first to come first, call by call."""
    capacity = Capacity(1)
    order: list[str] = []

    @tool(capacity=capacity)
    async def f(ctx: ToolContext[str], n: int) -> int:
        order.append(f"{ctx.context}{n}")
        await anyio.sleep(1)
        return n

    async def second() -> Any:
        await anyio.sleep(0.5)
        return await run_mode(make_agent([f], calls("f", 3)), "go", context="b")

    first = functools.partial(run_mode, make_agent([f], calls("f", 3)), "go", context="a")
    began = anyio.current_time()
    await both(first, second)
    assert order == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert anyio.current_time() - began == pytest.approx(6)


async def test_a_call_needs_all_its_limits_at_once(run_mode: Run) -> None:
    """Two tools take two capacities in opposite orders, and neither holds one while it waits for the other."""
    a, b = Capacity(1, "a"), Capacity(1, "b")
    flight = Flight()
    forth = Held([a, b], name="forth", flight=flight)
    back = Held([b, a], name="back", flight=flight)
    script = [one for n in range(5) for one in (call("forth", {"n": n}), call("back", {"n": n}))]
    agents = [make_agent([forth.tool, back.tool], script) for _ in range(2)]
    results = await both(*(functools.partial(run_mode, agent, "go") for agent in agents))
    assert flight.peak == 1
    assert [read_statuses(result) for result in results] == [["succeeded"] * 10] * 2


async def test_a_blocked_call_lets_those_pass_that_want_other_limits(run_mode: Run) -> None:
    """A call under a full capacity doesn't keep a later one from a free slot."""
    capacity = Capacity(1)
    go = anyio.Event()

    @tool(capacity=capacity)
    async def held(n: int) -> int:
        if n == 0:
            await go.wait()
        return n

    @tool
    async def free() -> str:
        go.set()
        return "free"

    agent = make_agent([held, free], [*calls("held", 2), call("free", {}, "f")])
    with anyio.fail_after(30):
        result = await run_mode(agent, "go", run_config=configure_run(max_function_tool_concurrency=2))
    assert read_shown_outputs(agent) == {"c0": "0", "c1": "1", "f": "free"}
    started = {record.call_id: record for record in find_records(result, r.CallStarted)}
    assert list(started)[-1] == "c1"


async def test_a_capacity_can_grow_while_in_use(run_mode: Run) -> None:
    """A larger `total_tokens` starts waiting calls, without the end of a running one."""
    capacity = Capacity(1)
    three = Rendezvous(3)

    @tool(capacity=capacity)
    async def f(n: int) -> int:
        if n == 0:
            capacity.total_tokens = 3
        await three.wait()
        return n

    agent = make_agent([f], calls("f", 3))
    with anyio.fail_after(30):
        await run_mode(agent, "go")
    assert capacity.statistics().peak == 3
    assert capacity.total_tokens == 3


async def test_a_capacity_can_be_unlimited_and_become_limited(run_mode: Run) -> None:
    """Lowering the capacity interrupts no call: the running ones end, then the new number holds."""
    capacity = Capacity(None)
    flight, three = Flight(), Rendezvous(3)
    peak_after: list[int] = []

    @tool(capacity=capacity)
    async def f(n: int) -> int:
        with flight(n):
            if n < 3:
                await three.wait()
                capacity.total_tokens = 1
            else:
                peak_after.append(flight.now)
            await anyio.lowlevel.checkpoint()
            return n

    agent = make_agent([f], calls("f", 6))
    with anyio.fail_after(30):
        await run_mode(agent, "go", run_config=configure_run(max_function_tool_concurrency=3))
    assert flight.peak == 3
    assert peak_after == [1, 1, 1]


async def test_a_failing_or_cancelled_call_gives_its_tokens_back(run_mode: Run) -> None:
    """After a run that ended in an error the capacity is free."""
    capacity = Capacity(2)
    waiting = anyio.Event()

    @tool(capacity=capacity, failure_error_function=None)
    async def f(n: int) -> int:
        if n == 0:
            await waiting.wait()
            raise ValueError("no")
        waiting.set()
        await anyio.sleep_forever()
        return n

    with pytest.raises(ToolCallError) as caught:
        await run_mode(make_agent([f], calls("f", 4)), "go")
    assert read_statuses(caught.value.run_data) == ["failed", "cancelled", "cancelled", "cancelled"]
    assert capacity.statistics().tokens_in_use == 0
    assert capacity.statistics().peak == 2


async def test_a_cancelled_run_leaves_the_queue_of_the_others(run_mode: Run) -> None:
    """The waiting calls of the cancelled run are gone, and the other run gets the tokens that it held."""
    capacity = Capacity(1)
    holding = anyio.Event()
    scope = anyio.CancelScope()
    ran: list[str] = []

    @tool(capacity=capacity)
    async def f(ctx: ToolContext[str], n: int) -> int:
        ran.append(f"{ctx.context}{n}")
        if ctx.context == "a":
            holding.set()
            await anyio.sleep_forever()
        return n

    async def cancelled() -> Any:
        with scope:
            await run_mode(make_agent([f], calls("f", 3)), "go", context="a")

    async def other() -> Any:
        await holding.wait()

        @tool
        async def ready() -> str:
            scope.cancel()
            return "ready"

        return await run_mode(make_agent([f, ready], [*calls("f", 2), call("ready", {})]), "go", context="b")

    _, result = await both(cancelled, other)
    assert ran == ["a0", "b0", "b1"]
    assert read_statuses(result) == ["succeeded"] * 3
    assert capacity.statistics().tokens_in_use == 0


# -- Rate


@VIRTUAL
async def test_a_rate_is_an_exact_sliding_window(run_mode: Run) -> None:
    """A rate of three per ten seconds starts at 0, 0, 0, 10, 10, 10, 20; the bodies' own time plays no part."""
    rate = Rate(3, 10)
    starts: list[float] = []

    @tool(capacity=rate)
    async def f(n: int) -> int:
        starts.append(anyio.current_time() - began)
        await anyio.sleep(25 if n == 0 else 1)
        return n

    agent = make_agent([f], calls("f", 7))
    began = anyio.current_time()
    await run_mode(agent, "go")
    assert starts == [pytest.approx(at) for at in (0, 0, 0, 10, 10, 10, 20)]
    assert read_shown_outputs(agent) == {f"c{n}": str(n) for n in range(7)}


@VIRTUAL
async def test_a_rate_slides_with_each_start(run_mode: Run) -> None:
    """After starts at 0 and 4 under two per ten, the next come at 10 and 14, over two runs."""
    rate = Rate(2, 10)
    starts: list[float] = []

    @tool(capacity=rate)
    async def f(n: int) -> int:
        starts.append(anyio.current_time() - began)
        return n

    async def later() -> Any:
        await anyio.sleep(4)
        return await run_mode(make_agent([f], calls("f", 2)), "go")

    began = anyio.current_time()
    await both(functools.partial(run_mode, make_agent([f], calls("f", 1)), "go"), later)
    await run_mode(make_agent([f], calls("f", 1)), "go")
    assert starts == [pytest.approx(at) for at in (0, 4, 10, 14)]


@VIRTUAL
async def test_a_rate_and_a_capacity_together(run_mode: Run) -> None:
    """Both must have room in one moment; a start that the capacity delays isn't spent."""
    rate, capacity = Rate(2, 10), Capacity(1)
    starts: list[float] = []

    @tool(capacity=[rate, capacity])
    async def f(n: int) -> int:
        starts.append(anyio.current_time() - began)
        await anyio.sleep(3)
        return n

    agent = make_agent([f], calls("f", 5))
    began = anyio.current_time()
    await run_mode(agent, "go")
    assert starts == [pytest.approx(at) for at in (0, 3, 10, 13, 20)]


class Stalling(MemoryJournal):
    """A journal whose appends all wait, from 2 s to 6 s, until the disk is there again."""

    async def append(self, records: Sequence[bytes]) -> None:
        """Keep *records*, later."""
        now = anyio.current_time() - STALLS["from"]
        await anyio.sleep(6.0 - now if 2.0 < now < 6.0 else 0.03)
        await super().append(records)


STALLS: dict[str, float] = {}


@pytest.mark.backends("trio-virtual", "asyncio-virtual")
@pytest.mark.scenario("SM-16")
@pytest.mark.parametrize("between", ["journal", "guardrail", "hook"])
async def test_no_window_of_a_rate_has_more_starts_of_bodies_than_it_allows(run_mode: Run, between: str) -> None:
    """Whatever holds admitted calls up before their bodies, and lets them go at once; no start is lost, either."""
    starts: list[float] = []

    async def stall(*_: Any) -> Any:
        now = anyio.current_time() - STALLS["from"]
        if 2.0 < now < 6.0:
            await anyio.sleep(6.0 - now)
        return Allow()

    class Hooks(RunHooks):
        async def on_tool_start(self, *_: Any) -> None:
            await stall()

    @tool(
        capacity=Rate(10, 1.0),
        tool_input_guardrails=[tool_input_guardrail(stall)] if between == "guardrail" else [],
    )
    async def hit(n: int) -> int:
        starts.append(anyio.current_time() - STALLS["from"])
        return n

    async def one(number: int) -> None:
        options = {"journal": Stalling()} if between == "journal" else {"hooks": Hooks()} if between == "hook" else {}
        await run_mode(make_agent([hit], calls("hit", 1)), f"run {number}", **options)

    STALLS["from"] = anyio.current_time()
    async with anyio.create_task_group() as group:
        for number in range(80):
            group.start_soon(one, number)
    assert len(starts) == 80
    assert min(later - first for first, later in zip(starts, starts[10:], strict=False)) >= 1.0
    assert starts[-1] < 13.5, "starts were lost"


@pytest.mark.backends("trio-virtual", "asyncio-virtual")
@pytest.mark.scenario("SM-16")
async def test_a_call_whose_body_never_begins_spends_no_start(run_mode: Run) -> None:
    """A guardrail takes five seconds to reject the first call: the second, which waited for its start, begins then."""
    starts: list[tuple[int, float]] = []

    @tool_input_guardrail
    async def judge(data: Any) -> Any:
        if data.context.tool_arguments == '{"n": 0}':
            await anyio.sleep(5)
            return RejectContent("no")
        return Allow()

    @tool(capacity=Rate(1, 60), tool_input_guardrails=[judge])
    async def hit(n: int) -> int:
        starts.append((n, anyio.current_time() - began))
        return n

    began = anyio.current_time()
    result = await run_mode(make_agent([hit], calls("hit", 3)), "go")
    assert starts == [(1, pytest.approx(5)), (2, pytest.approx(65))]
    assert read_statuses(result) == ["rejected", "succeeded", "succeeded"]


@VIRTUAL
@pytest.mark.scenario("RP-14")
async def test_a_call_that_waits_for_a_rate_holds_back_no_free_call_of_its_turn(run_mode: Run) -> None:
    """A hundred later calls under a cap of four start as if the waiting one were not there."""
    starts: dict[str, float] = {}

    @tool(capacity=Rate(1, 3))
    async def limited(n: int) -> int:
        starts[f"l{n}"] = anyio.current_time() - began
        return n

    @tool
    async def free(n: int) -> int:
        starts[f"f{n}"] = anyio.current_time() - began
        await anyio.sleep(0.01)
        return n

    agent = make_agent([limited, free], [*calls("limited", 2, "l"), *calls("free", 100, "f")])
    began = anyio.current_time()
    await run_mode(agent, "go", run_config=configure_run(max_function_tool_concurrency=4, max_calls_per_turn=None))
    assert starts.pop("l0") == 0
    assert starts.pop("l1") == pytest.approx(3)
    assert max(starts.values()) == pytest.approx(0.24)  # 25 rounds of four


@VIRTUAL
@pytest.mark.scenario("RP-14")
async def test_a_call_that_waits_for_a_rate_holds_back_no_other_run(run_mode: Run) -> None:
    """A shared capacity, of which nothing is in use, stays open; when its time comes the waiting call is first."""
    capacity, order = Capacity(1), list[tuple[str, float]]()

    @tool(capacity=[Rate(1, 3), capacity])
    async def limited(n: int) -> int:
        order.append((f"limited{n}", anyio.current_time() - began))
        return n

    @tool(capacity=capacity)
    async def free(n: int) -> int:
        order.append(("free", anyio.current_time() - began))
        await anyio.sleep(0.03)
        return n

    async def second() -> Any:
        await anyio.sleep(1)
        return await run_mode(
            make_agent([free], calls("free", 100)), "go", run_config=configure_run(max_calls_per_turn=None)
        )

    began = anyio.current_time()
    await both(functools.partial(run_mode, make_agent([limited], calls("limited", 2)), "go"), second)
    names = [name for name, _ in order]
    assert names.index("limited1") == 68  # the call that is in flight at 3 s ends, then it is its turn
    assert dict(order)["limited1"] == pytest.approx(3.01)
    gaps = [later - earlier for (_, earlier), (_, later) in itertools.pairwise(order[1:])]
    assert max(gaps) <= 0.0301


@pytest.mark.scenario("RP-14")
@pytest.mark.parametrize("buffer", range(2, 14))
async def test_a_run_whose_consumer_is_behind_holds_back_no_other_run(buffer: int) -> None:
    """Waiting for a consumer is no more reason to keep a shared capacity from others than waiting for time.

    The test runs with several buffer sizes, so that in some of them the calls are queued when the buffer is full.
    """
    capacity = Capacity(1)

    @tool(capacity=capacity)
    async def shared(n: int) -> int:
        return n

    slow = make_agent([shared], calls("shared", 4))
    with anyio.fail_after(30):
        async with Runner.run_streamed(slow, "go", run_config=RunConfig(stream_buffer=buffer)) as stream:
            for _ in range(2):
                result = await Runner.run(make_agent([shared], calls("shared", 60)), "go")
                assert read_statuses(result) == ["succeeded"] * 60
            async for _ in stream:
                pass
        assert read_statuses(stream.result) == ["succeeded"] * 4


async def test_a_rate_with_room_makes_nobody_wait(run_mode: Run) -> None:
    """All calls start at once while the rate has room, and its statistics count them."""
    rate = Rate(5, 1000)
    held = Held(rate, meet=5)
    agent = make_agent([held.tool], calls("f", 5))
    with anyio.fail_after(30):
        await run_mode(agent, "go")
    assert held.flight.peak == 5
    assert rate.statistics().started_in_window == 5


# -- queue_timeout


@VIRTUAL
async def test_a_call_that_waits_too_long_is_skipped(run_mode: Run) -> None:
    """The call is skipped at exactly `queue_timeout`, with a text that says so; running calls are unaffected."""
    settled: list[float] = []

    class Clock:
        def on_record(self, record: r.Record) -> None:
            if isinstance(record, r.CallSettled) and record.outcome.status == "skipped":
                settled.append(anyio.current_time() - began)

        def on_still_running(self, report: Any) -> None: ...

        def on_late_result(self, report: Any) -> None: ...

    @tool
    async def f(n: int) -> int:
        await anyio.sleep(3)
        return n

    agent = make_agent([f], calls("f", 4))
    config = RunConfig(
        tool_execution=ToolExecution(max_function_tool_concurrency=1, queue_timeout=4.5), instruments=[Clock()]
    )
    began = anyio.current_time()
    result = await run_mode(agent, "go", run_config=config)
    assert anyio.current_time() - began == pytest.approx(6)
    assert read_statuses(result) == ["succeeded", "succeeded", "skipped", "skipped"]
    assert settled == [pytest.approx(4.5)] * 2
    text = "Tool 'f' was not started: no capacity within 4.5 seconds."
    assert read_shown_outputs(agent) == {"c0": "0", "c1": "1", "c2": text, "c3": text}
    assert find_outcome(result, "c2").started_at is None


@VIRTUAL
async def test_queueing_takes_nothing_of_a_tool_s_timeout(run_mode: Run) -> None:
    """Three bodies of two seconds under a cap of one succeed, each with a timeout of three."""

    @tool(timeout=3)
    async def f(n: int) -> int:
        await anyio.sleep(2)
        return n

    agent = make_agent([f], calls("f", 3))
    result = await run_mode(agent, "go", run_config=configure_run(max_function_tool_concurrency=1))
    assert read_statuses(result) == ["succeeded"] * 3


@VIRTUAL
async def test_a_rate_that_opens_after_the_queue_timeout_skips(run_mode: Run) -> None:
    """Waiting for a window counts as waiting."""

    @tool(capacity=Rate(1, 10))
    async def f(n: int) -> int:
        return n

    agent = make_agent([f], calls("f", 2))
    began = anyio.current_time()
    result = await run_mode(agent, "go", run_config=configure_run(queue_timeout=4))
    assert read_statuses(result) == ["succeeded", "skipped"]
    assert anyio.current_time() - began == pytest.approx(4)


@VIRTUAL
async def test_a_call_whose_run_ends_while_it_waits_never_starts(run_mode: Run) -> None:
    """The run's deadline bounds queueing: at the deadline the queue is empty, and no call starts late."""
    ran: list[int] = []

    @tool
    async def f(n: int) -> int:
        ran.append(n)
        await anyio.sleep(2)
        return n

    agent = make_agent([f], calls("f", 3))
    config = RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=1), timeout=2)
    began = anyio.current_time()
    with pytest.raises(Exception, match="timed out after 2 seconds") as caught:
        await run_mode(agent, "go", run_config=config)
    assert anyio.current_time() - began == pytest.approx(2)
    assert ran == [0]
    data = caught.value.run_data  # type: ignore[attr-defined]
    assert find_outcome(data, "c1").status == find_outcome(data, "c2").status == "cancelled"
    assert find_outcome(data, "c1").cancelled_by == "deadline"


# -- serial, exclusive, sequential beside limits


async def test_a_serial_group_and_a_capacity_together(run_mode: Run) -> None:
    """The group keeps model order even where the limit would let another first."""
    capacity = Capacity(1)
    order: list[str] = []

    @tool(serial="s", capacity=capacity)
    async def narrow(n: int) -> int:
        order.append(f"narrow{n}")
        await anyio.lowlevel.checkpoint()
        return n

    @tool(serial="s")
    async def wide(n: int) -> int:
        order.append(f"wide{n}")
        await anyio.lowlevel.checkpoint()
        return n

    @tool(capacity=capacity)
    async def holder() -> str:
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        order.append("holder")
        return "h"

    script = [call("holder", {}), call("narrow", {"n": 0}), call("wide", {"n": 1}), call("narrow", {"n": 2})]
    agent = make_agent([narrow, wide, holder], script)
    with anyio.fail_after(30):
        await run_mode(agent, "go")
    assert order == ["holder", "narrow0", "wide1", "narrow2"]


async def test_serial_groups_hold_within_one_run_only(run_mode: Run) -> None:
    """Two runs of one serial tool overlap; a `Capacity(1)` is for across."""
    meeting = Rendezvous(2)

    @tool(serial="s")
    async def f(n: int) -> int:
        await meeting.wait()
        return n

    agents = [make_agent([f], calls("f", 1)) for _ in range(2)]
    results = await both(*(functools.partial(run_mode, agent, "go") for agent in agents))
    assert [read_statuses(result) for result in results] == [["succeeded"]] * 2


async def test_a_sequential_run_and_a_shared_capacity(run_mode: Run) -> None:
    """One at a time in model order, while another run takes turns under the same capacity."""
    capacity = Capacity(1)
    held = Held(capacity)
    agents = [make_agent([held.tool], calls("f", 5)) for _ in range(2)]
    config = configure_run(mode="sequential")
    results = await both(*(functools.partial(run_mode, agent, "go", run_config=config) for agent in agents))
    assert held.flight.peak == 1
    assert [read_statuses(result) for result in results] == [["succeeded"] * 5] * 2


# -- nesting


def nested(depth: int, leaf: Any, width: int = 2) -> Agent[Any, Any]:
    """Return an agent whose calls are agents, *depth* deep, with *width* calls each."""
    agent: Agent[Any, Any] = Agent(
        "leaf", model=ScriptedModel([calls("f", width), say("leaf")] * width**depth), tools=[leaf]
    )
    for level in range(depth):
        uses = [call("deeper", {"input": "go"}, f"d{n}") for n in range(width)]
        script = [step for _ in range(width ** (depth - level - 1)) for step in (uses, say(f"level {level}"))]
        agent = Agent(f"level {level}", model=ScriptedModel(script), tools=[agent.as_tool("deeper")])
    return agent


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_nested_agents_under_caps_of_one_do_not_deadlock(run_mode: Run, depth: int) -> None:
    """Every turn has a cap of one and the leaves share a capacity of one; two such trees run at once."""
    held = Held(Capacity(1))
    trees = [nested(depth, held.tool) for _ in range(2)]
    config = configure_run(max_function_tool_concurrency=1)
    results = await both(*(functools.partial(run_mode, tree, "go", run_config=config) for tree in trees))
    assert held.flight.peak == 1
    assert len(held.flight.started) == 2 * 2 ** (depth + 1)
    assert [result.final_output for result in results] == [f"level {depth - 1}"] * 2


async def test_a_tool_may_run_an_agent_of_its_own_under_the_same_capacity(run_mode: Run) -> None:
    """A body that calls `Runner.run` holds its slot of a cap, not of what its inner run waits for."""
    held = Held(Capacity(1))

    @tool
    async def delegate(n: int) -> str:
        result = await Runner.run(make_agent([held.tool], calls("f", 2)), "go")
        return str(result.final_output)

    agent = make_agent([delegate], calls("delegate", 3))
    with anyio.fail_after(30):
        await run_mode(agent, "go", run_config=configure_run(max_function_tool_concurrency=1))
    assert held.flight.peak == 1
    assert read_shown_outputs(agent) == {"c0": "done", "c1": "done", "c2": "done"}


@pytest.mark.parametrize("limit", [Capacity(1), Rate(1, 1)], ids=["capacity", "rate"])
def test_a_limit_on_an_agent_tool_is_refused(limit: Any) -> None:
    """The agent tool would hold the limit while its own tools wait for it; the error says where to put it."""
    import attrs

    agent_tool = Agent("inner", model=ScriptedModel([])).as_tool()
    with pytest.raises(UserError, match="inner"):
        attrs.evolve(agent_tool, capacity=(limit,))


# -- misuse


@pytest.mark.real_clock
@pytest.mark.parametrize("limit", [Capacity, Rate], ids=["capacity", "rate"])
async def test_a_limit_used_from_a_second_live_loop_is_refused(run_mode: Run, limit: type[Any]) -> None:
    """The limit is refused while the first loop's call is in flight; the first run is unharmed."""
    shared: Any = Capacity(5) if limit is Capacity else Rate(5, 1000)
    running, stop = threading.Event(), threading.Event()
    outcome: list[Any] = []

    @tool(capacity=shared)
    def f(n: int) -> int:
        running.set()
        assert stop.wait(20)
        return n

    def elsewhere() -> None:
        try:
            outcome.append(Runner.run_sync(make_agent([f], calls("f", 1)), "go"))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    try:
        assert await anyio.to_thread.run_sync(running.wait, 20)
        with pytest.raises(UserError, match="event loop"):
            await run_mode(make_agent([f], calls("f", 1)), "go")
    finally:
        stop.set()
        await anyio.to_thread.run_sync(thread.join, 20)
    assert [type(found) for found in outcome] == [RunResult]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_limit_may_be_used_from_one_loop_after_another(backend: Any) -> None:
    """The limit works when the first loop is gone; a rate's old starts have no meaning on a new clock."""
    capacity, rate = Capacity(1), Rate(1, 0.001)

    @tool(capacity=[capacity, rate])
    async def f(n: int) -> int:
        return n

    for _ in range(3):
        agent = make_agent([f], calls("f", 2))
        result = Runner.run_sync(agent, "go", backend=backend)
        assert read_statuses(result) == ["succeeded", "succeeded"]


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: Capacity(0), UserValueError),
        (lambda: Capacity(-1), UserValueError),
        (lambda: Capacity(True), UserTypeError),
        (lambda: Capacity("2"), UserTypeError),  # type: ignore[arg-type]
        (lambda: Rate(0, 1), UserValueError),
        (lambda: Rate(1, 0), UserValueError),
        (lambda: Rate(1, float("inf")), UserValueError),
        (lambda: Rate(1, None), UserTypeError),  # type: ignore[arg-type]
        (lambda: Rate(None, 1), UserTypeError),  # type: ignore[arg-type]
        (lambda: tool(capacity=[3])(lambda: None), UserTypeError),  # type: ignore[list-item]
    ],
)
def test_limits_are_checked_where_they_are_made(make: Any, kind: type[Exception]) -> None:
    """Counts are whole and at least one, windows finite and above zero."""
    with pytest.raises(kind):
        make()


def test_changing_a_capacity_is_checked() -> None:
    """A wrong number is refused, and the repr shows a changed one."""
    capacity = Capacity(2, "db")
    assert repr(capacity) == "Capacity(2, name='db')"
    with pytest.raises(UserValueError, match="total_tokens"):
        capacity.total_tokens = 0
    capacity.total_tokens = None
    assert repr(capacity) == "Capacity(None, name='db')"
    assert repr(Rate(3, 0.5)) == "Rate(3, 0.5)"


@pytest.mark.backends("trio-virtual")
async def test_two_turns_that_wait_for_one_rate_sleep_until_it_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outer and a nested turn share the rate, and neither may wake the other before there is room."""
    looks = 0
    pump = Dispatcher.pump

    def counted(self: Dispatcher) -> None:
        nonlocal looks
        looks += 1
        assert looks < 1000
        pump(self)

    monkeypatch.setattr(Dispatcher, "pump", counted)

    @tool(capacity=Rate(1, 60))
    async def rated() -> str:
        return "done"

    inner = Agent("inner", tools=[rated], model=ScriptedModel([call("rated"), say("in")]))
    script = [[call("rated"), call("inner", {"input": "x"})], say("out")]
    outer = Agent("outer", tools=[rated, inner.as_tool()], model=ScriptedModel(script))
    result = await Runner.run(outer, "go")
    assert result.final_output == "out"


def test_of_two_loops_that_take_over_a_limit_at_once_one_gets_it() -> None:
    """Two threads compete when the owning loop has ended; otherwise calls of one loop would wait for the other."""
    from agentloop.limits import LoopBinding

    meeting = threading.Barrier(2)

    def has_ended() -> bool:
        with suppress(threading.BrokenBarrierError):
            meeting.wait(0.2)  # both come here only if both may ask at once
        return False

    binding = LoopBinding(loop="before", alive=has_ended)
    refused: list[str] = []

    def take_over(name: str) -> None:
        try:
            binding.bind("it", name, lambda: True, lambda: None)
        except UserError:
            refused.append(name)

    threads = [threading.Thread(target=take_over, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted([*refused, binding.loop]) == ["one", "other"]
