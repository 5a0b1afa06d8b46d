"""How many calls run at once, in which order they start, and in which order their outputs appear."""

import threading
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
from kit.agents import Run, configure_run, make_agent
from kit.ending import Rendezvous
from kit.results import find_outcome, find_records, read_outputs, read_requests, read_shown_outputs, read_statuses
from kit.watching import Flight

from agentloop import (
    Agent,
    ModelSettings,
    RunConfig,
    Runner,
    ToolCallError,
    ToolExecution,
    UserError,
    tool,
)
from agentloop import events as ev
from agentloop import records as r
from agentloop.testing import ScriptedModel, call, normal, say


def calls(name: str, count: int) -> list[Any]:
    """Return *count* calls of a tool of one argument `n`, from 0; their ids are `c0 …`."""
    return [call(name, {"n": n}, f"c{n}") for n in range(count)]


def expected(count: int) -> dict[str, str]:
    """Return the outputs of `calls` for a tool that answers with its number."""
    return {f"c{n}": str(n) for n in range(count)}


# -- caps and modes


def capped(cap: int | None) -> RunConfig:
    """Return a configuration with this cap on the calls of a turn."""
    return configure_run(max_function_tool_concurrency=cap)


AT_ONCE = [
    pytest.param(40, 40, {}, capped(None), id="no cap", marks=pytest.mark.scenario("CO-01")),
    pytest.param(4, 2, {}, capped(2), id="cap of 2", marks=pytest.mark.scenario("CO-02")),
    pytest.param(6, 3, {}, capped(3), id="cap of 3", marks=pytest.mark.scenario("CO-02")),
    pytest.param(500, 10, {}, capped(10), id="cap of 10", marks=pytest.mark.scenario("LX-20")),
    pytest.param(3, 3, {}, RunConfig(), id="as it comes", marks=pytest.mark.scenario("LX-01")),
    pytest.param(3, 3, {"tool_execution": "sequential"}, configure_run(mode="concurrent"), id="the run's mode"),
]
ONE_BY_ONE = [
    pytest.param({}, capped(1), id="cap of 1", marks=pytest.mark.scenario("CO-03")),
    pytest.param({}, configure_run(mode="sequential"), id="the run's mode", marks=pytest.mark.scenario("LX-02")),
    pytest.param(
        {"tool_execution": "sequential"}, RunConfig(), id="the agent's mode", marks=pytest.mark.scenario("LX-02")
    ),
]


@pytest.mark.parametrize(("count", "width", "fields", "config"), AT_ONCE)
async def test_as_many_bodies_run_at_once_as_may_and_never_more(
    run_mode: Run, count: int, width: int, fields: dict[str, Any], config: RunConfig
) -> None:
    """Bodies that meet in groups of the largest size allowed all end, and their outputs are in model order."""
    flight = Flight()
    groups = [Rendezvous(width) for _ in range(count // width)]

    @tool
    async def f(n: int) -> int:
        with flight(n):
            await groups[n // width].wait()
            return n

    agent = make_agent([f], calls("f", count), **fields)
    with anyio.fail_after(40):
        await run_mode(agent, "go", run_config=config)
    assert flight.peak == width
    assert sorted(flight.started) == list(range(count))
    assert list(read_shown_outputs(agent).items()) == list(expected(count).items())


@pytest.mark.parametrize(("fields", "config"), ONE_BY_ONE)
async def test_bodies_that_run_one_by_one_do_so_in_model_order(
    run_mode: Run, fields: dict[str, Any], config: RunConfig
) -> None:
    """No two bodies overlap, although the earlier ones await more often than the later ones."""
    flight = Flight()

    @tool
    async def f(n: int) -> int:
        with flight(n):
            for _ in range(5 - n):
                await anyio.lowlevel.checkpoint()
            return n

    agent = make_agent([f], calls("f", 5), **fields)
    await run_mode(agent, "go", run_config=config)
    assert flight.started == flight.ended == [0, 1, 2, 3, 4]
    assert flight.peak == 1


@pytest.mark.backends("trio-virtual")
@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        pytest.param(RunConfig(), 0.1, id="concurrent", marks=pytest.mark.scenario("LX-01")),
        pytest.param(configure_run(mode="sequential"), 0.3, id="sequential", marks=pytest.mark.scenario("LX-02")),
    ],
)
async def test_a_turn_takes_as_long_as_its_mode_says(run_mode: Run, config: RunConfig, seconds: float) -> None:
    """Three bodies of 100 ms take as long as one when they are concurrent, and three times that one by one."""

    @tool
    async def f(n: int) -> int:
        await anyio.sleep(0.1)
        return n

    agent = make_agent([f], calls("f", 3))
    began = anyio.current_time()
    await run_mode(agent, "go", run_config=config)
    assert anyio.current_time() - began == pytest.approx(seconds)
    assert read_shown_outputs(agent) == expected(3)


@pytest.mark.scenario("CO-04")
async def test_with_a_cap_of_one_nothing_starts_after_a_failure(run_mode: Run) -> None:
    """The queued calls settle unstarted, as cancelled by their sibling."""
    started: list[int] = []

    @tool(failure_error_function=None)
    async def f(n: int) -> int:
        started.append(n)
        await anyio.lowlevel.checkpoint()
        raise ValueError("no")

    agent = make_agent([f], calls("f", 4))
    with pytest.raises(ToolCallError) as caught:
        await run_mode(agent, "go", run_config=configure_run(max_function_tool_concurrency=1))
    assert started == [0]
    data = caught.value.run_data
    assert data is not None
    assert read_statuses(data) == ["failed", "cancelled", "cancelled", "cancelled"]
    for call_id in ("c1", "c2", "c3"):
        outcome = find_outcome(data, call_id)
        assert (outcome.cancelled_by, outcome.started_at) == ("sibling", None)
    assert [record.call_id for record in find_records(data, r.CallStarted)] == ["c0"]


@pytest.mark.scenario("CO-05")
@pytest.mark.parametrize("cap", [0, -1])
def test_a_cap_below_one_is_refused_at_construction(cap: int) -> None:
    """The error names the field; None means no limit."""
    with pytest.raises(ValueError, match="max_function_tool_concurrency"):
        ToolExecution(max_function_tool_concurrency=cap)
    assert ToolExecution(max_function_tool_concurrency=None).max_function_tool_concurrency is None


@pytest.mark.scenario("CO-06")
async def test_a_slow_first_call_does_not_keep_later_ones_from_free_slots(run_mode: Run) -> None:
    """With a cap of two, five calls go through the second slot while the first call waits for the last of them."""
    last = anyio.Event()
    ended: list[int] = []

    @tool
    async def f(n: int) -> int:
        if n == 0:
            await last.wait()
        elif n == 5:
            last.set()
        ended.append(n)
        return n

    agent = make_agent([f], calls("f", 6))
    with anyio.fail_after(20):
        await run_mode(agent, "go", run_config=configure_run(max_function_tool_concurrency=2))
    assert ended == [1, 2, 3, 4, 5, 0]
    assert read_shown_outputs(agent) == expected(6)


@pytest.mark.scenario("CO-07")
async def test_a_nested_agent_inherits_the_cap_for_its_own_turn(run_mode: Run) -> None:
    """Each turn has its own slots: the inner one is sequential too, and the outer call's slot doesn't starve it."""
    flight = Flight()

    @tool
    async def f(n: int) -> int:
        with flight(n):
            await anyio.lowlevel.checkpoint()
            return n

    inner = Agent("inner", model=ScriptedModel([calls("f", 3), say("inner done")]), tools=[f])
    agent = make_agent([inner.as_tool()], call("inner", {"input": "go"}, "i"))
    with anyio.fail_after(20):
        await run_mode(agent, "go", run_config=configure_run(max_function_tool_concurrency=1))
    assert flight.peak == 1
    assert flight.started == [0, 1, 2]
    assert read_shown_outputs(agent) == {"i": "inner done"}


@pytest.mark.scenario("LX-21")
async def test_calls_past_the_call_cap_of_a_turn_are_refused(run_mode: Run) -> None:
    """The first hundred calls run; the model gets the same refusal for each of the others."""
    ran: list[int] = []

    @tool
    async def f(n: int) -> int:
        ran.append(n)
        return n

    agent = make_agent([f], calls("f", 500))
    result = await run_mode(agent, "go", run_config=configure_run(max_calls_per_turn=100))
    assert sorted(ran) == list(range(100))
    found = read_shown_outputs(agent)
    refusal = "Tool 'f' was not started: more than 100 calls in one turn."
    assert list(found.values()) == [str(n) for n in range(100)] + [refusal] * 400
    assert read_statuses(result) == ["succeeded"] * 100 + ["skipped"] * 400
    assert find_outcome(result, "c100").started_at is None


# -- threads


@pytest.mark.scenario("CO-08", "LX-17")
@pytest.mark.real_clock
async def test_a_blocking_sync_tool_runs_beside_async_ones(run_mode: Run) -> None:
    """The sync body blocks its thread until an async sibling has run, while a ticker keeps ticking on the loop."""
    async_ran = threading.Event()
    sync_in = anyio.Event()
    ticks = 0
    three_ticks = threading.Event()

    @tool
    def blocking() -> str:
        anyio.from_thread.run_sync(sync_in.set)
        assert async_ran.wait(20)
        assert three_ticks.wait(20)
        return threading.current_thread().name

    @tool
    async def quick() -> str:
        await sync_in.wait()
        async_ran.set()
        return threading.current_thread().name

    async def ticker() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.001)
            ticks += 1
            if ticks >= 3 and async_ran.is_set():
                three_ticks.set()

    agent = make_agent([blocking, quick], [call("blocking", {}, "s"), call("quick", {}, "a")])
    async with anyio.create_task_group() as group:
        group.start_soon(ticker)
        with anyio.fail_after(20):
            await run_mode(agent, "go")
        group.cancel_scope.cancel()
    found = read_shown_outputs(agent)
    assert found["a"] == threading.current_thread().name
    assert found["s"] != found["a"]


@pytest.mark.scenario("CO-08")
@pytest.mark.real_clock
async def test_sync_tools_run_in_parallel_with_each_other(run_mode: Run) -> None:
    """Three bodies in threads meet at a barrier."""
    barrier = threading.Barrier(3)

    @tool
    def f(n: int) -> int:
        barrier.wait(20)
        return n

    agent = make_agent([f], calls("f", 3))
    await run_mode(agent, "go")
    assert read_shown_outputs(agent) == expected(3)


@pytest.mark.scenario("CO-11")
@pytest.mark.parametrize("parallel", [True, False, None])
@pytest.mark.parametrize("cap", [1, None])
async def test_the_provider_s_parallel_calls_and_the_local_cap_are_independent(
    run_mode: Run, parallel: bool | None, cap: int | None
) -> None:
    """The setting goes to the model unchanged; the cap alone says how many bodies run at once."""
    flight = Flight()
    everyone = Rendezvous(3)

    @tool
    async def f(n: int) -> int:
        with flight(n):
            if cap is None:
                await everyone.wait()
            return n

    agent = make_agent([f], calls("f", 3), model_settings=ModelSettings(parallel_tool_calls=parallel))
    with anyio.fail_after(20):
        await run_mode(agent, "go", run_config=configure_run(max_function_tool_concurrency=cap))
    assert [request.settings.parallel_tool_calls for request in read_requests(agent)] == [parallel, parallel]
    assert flight.peak == (3 if cap is None else 1)


@pytest.mark.scenario("CO-12")
async def test_a_run_has_one_log_whatever_starts_its_tasks(run_mode: Run) -> None:
    """Bodies with and without a first await, one of them failing, leave the same log on every backend."""

    @tool
    async def at_once(n: int) -> int:
        return n

    @tool
    async def later(n: int) -> int:
        await anyio.lowlevel.checkpoint()
        return n

    @tool
    async def failing(n: int) -> int:
        raise ValueError(f"no {n}")

    script = [
        call(name, {"n": n}, f"c{n}") for n, name in enumerate(["later", "at_once", "failing", "later", "at_once"])
    ]
    agent = make_agent([at_once, later, failing], script)
    result = await run_mode(agent, "go", run_config=configure_run(max_function_tool_concurrency=2))
    kinds = [(record["kind"], record.get("call_id")) for record in normal(result.records)]
    failed = {("BodyEnded", "c2")}  # a policy answers its error, so the call doesn't settle with its body
    per_call = [
        (kind, f"c{n}")
        for n in range(5)
        for kind in ("CallStarted", "BodyEnded", "CallSettled")
        if kind != "BodyEnded" or (kind, f"c{n}") in failed
    ]
    batch = [row for row in kinds if row[1] is not None]
    assert batch == per_call
    assert read_statuses(result) == ["succeeded", "succeeded", "failed", "succeeded", "succeeded"]


@pytest.mark.scenario("CO-12")
async def test_a_failure_at_once_keeps_no_admitted_sibling_from_starting(run_mode: Run) -> None:
    """Calls admitted together all start, even if a body runs while its task is made; the first failure is raised."""
    started: list[int] = []

    @tool(failure_error_function=None)
    async def f(n: int) -> int:
        started.append(n)
        raise ValueError(f"no {n}")

    agent = make_agent([f], calls("f", 3))
    with pytest.raises(ToolCallError, match="no 0") as caught:
        await run_mode(agent, "go")
    assert sorted(started) == [0, 1, 2]
    assert caught.value.run_data is not None
    assert read_statuses(caught.value.run_data) == ["failed", "failed", "failed"]


# -- order of outputs and events


async def _events(agent: Agent[Any, Any]) -> list[Any]:
    async with Runner.run_streamed(agent, "go") as stream:
        return [event async for event in stream]


@pytest.mark.scenario("LX-03", "LX-04")
async def test_settled_events_come_at_once_and_outputs_in_model_order() -> None:
    """Calls that finish in the order 2, 3, 1 settle in that order; outputs and records are in the order 1, 2, 3."""
    done = [anyio.Event() for _ in range(3)]
    after = {0: 2, 2: 1}

    @tool
    async def f(n: int) -> int:
        if n in after:
            await done[after[n]].wait()
        return n

    class _Sets:
        def on_record(self, record: r.Record) -> None:
            if isinstance(record, r.CallSettled):
                done[int(record.call_id[1:])].set()

        def on_still_running(self, report: Any) -> None: ...

        def on_late_result(self, report: Any) -> None: ...

    agent = make_agent([f], calls("f", 3))
    async with Runner.run_streamed(agent, "go", run_config=RunConfig(instruments=[_Sets()])) as stream:
        events = [event async for event in stream]
    settled = [event.call.call_id for event in events if isinstance(event, ev.CallSettled)]
    outputs = read_outputs(event.item for event in events if isinstance(event, ev.ItemCreated))
    assert settled == ["c1", "c2", "c0"]
    assert list(outputs.items()) == list(expected(3).items())
    assert [one.call.call_id for one in stream.result.calls] == ["c0", "c1", "c2"]
    assert list(read_outputs(stream.result.new_items)) == ["c0", "c1", "c2"]


@pytest.mark.scenario("LX-05")
async def test_an_early_output_is_delivered_before_a_slow_later_call_finishes() -> None:
    """The second body ends only when the consumer has seen the first body's output."""
    seen = anyio.Event()

    @tool
    async def f(n: int) -> int:
        if n == 1:
            await seen.wait()
        return n

    agent = make_agent([f], calls("f", 2))
    with anyio.fail_after(20):
        async with Runner.run_streamed(agent, "go") as stream:
            async for event in stream:
                if isinstance(event, ev.ItemCreated) and read_outputs([event.item]) == {"c0": "0"}:
                    assert not stream.is_complete
                    seen.set()
    assert read_shown_outputs(agent) == expected(2)


# -- serial, exclusive


@pytest.mark.scenario("LX-30")
async def test_calls_of_a_serial_tool_never_overlap_while_others_do(run_mode: Run) -> None:
    """Two free calls meet during the first serial call; the serial calls run in model order."""
    flight, free = Flight(), Rendezvous(3)

    @tool(serial="disk")
    async def s(n: int) -> int:
        with flight(n):
            if n == 0:
                await free.wait()
            await anyio.lowlevel.checkpoint()
            return n

    @tool
    async def f(n: int) -> int:
        await free.wait()
        return n

    script = [call(name, {"n": n}, f"c{n}") for n, name in enumerate("sfsfs")]
    agent = make_agent([s, f], script)
    with anyio.fail_after(20):
        await run_mode(agent, "go")
    assert flight.peak == 1
    assert flight.started == [0, 2, 4]
    assert read_shown_outputs(agent) == expected(5)


async def test_two_tools_of_one_serial_group_exclude_each_other_and_two_groups_do_not(run_mode: Run) -> None:
    """The group is what `serial` names, not the tool."""
    flight, both = Flight(), Rendezvous(2)

    @tool(serial="a")
    async def one(n: int) -> int:
        with flight(n):
            if n == 0:
                await both.wait()
            await anyio.lowlevel.checkpoint()
            return n

    @tool(serial="a")
    async def two(n: int) -> int:
        with flight(n):
            return n

    @tool(serial="b")
    async def three(n: int) -> int:
        await both.wait()
        return n

    script = [call(name, {"n": n}, f"c{n}") for n, name in enumerate(["one", "two", "one", "three"])]
    agent = make_agent([one, two, three], script)
    with anyio.fail_after(20):
        await run_mode(agent, "go")
    assert (flight.peak, flight.started) == (1, [0, 1, 2])


async def test_an_exclusive_call_waits_for_earlier_ones_and_holds_back_later_ones(run_mode: Run) -> None:
    """The two calls before it overlap, it runs alone, and the two calls after it overlap."""
    flight = Flight()
    pairs = [Rendezvous(2), Rendezvous(2)]

    @tool
    async def f(n: int) -> int:
        with flight(n):
            await pairs[n // 3].wait()
            return n

    @tool(exclusive=True)
    async def alone(n: int) -> int:
        assert flight.now == 0
        assert sorted(flight.ended) == [0, 1]
        with flight(n):
            await anyio.lowlevel.checkpoint()
            assert flight.now == 1
        return n

    script = [call("alone" if n == 2 else "f", {"n": n}, f"c{n}") for n in range(5)]
    agent = make_agent([f, alone], script)
    with anyio.fail_after(20):
        await run_mode(agent, "go")
    assert read_shown_outputs(agent) == expected(5)
    assert flight.started[2] == flight.ended[2] == 2


async def test_an_exclusive_call_that_fails_lets_the_later_ones_run(run_mode: Run) -> None:
    """The model receives the failure, and the calls behind the exclusive one run."""

    @tool(exclusive=True)
    async def alone(n: int) -> int:
        raise ValueError("no")

    @tool
    async def f(n: int) -> int:
        return n

    script = [call(name, {"n": n}, f"c{n}") for n, name in enumerate(["alone", "f", "alone"])]
    agent = make_agent([alone, f], script)
    result = await run_mode(agent, "go")
    assert read_statuses(result) == ["failed", "succeeded", "failed"]


# -- a turn's calls one by one in the log


async def test_the_log_says_what_a_call_waited_for(run_mode: Run) -> None:
    """`CallStarted` names the limits that were full, and the time at which the call was queued."""

    @tool(serial="disk")
    async def s(n: int) -> int:
        await anyio.lowlevel.checkpoint()
        return n

    agent = make_agent([s], calls("s", 2))
    result = await run_mode(agent, "go")
    first, second = find_records(result, r.CallStarted)
    assert first.waited_for == ()
    assert second.waited_for == ("serial:disk",)
    assert first.queued_at is not None
    assert first.queued_at <= first.at


async def test_an_agent_of_another_category_is_refused() -> None:
    """An agent takes one of two words as its mode, and no other."""
    with pytest.raises(UserError, match="tool_execution"):
        Agent("guide", tool_execution="parallel")  # type: ignore[arg-type]
