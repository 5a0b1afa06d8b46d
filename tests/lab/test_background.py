"""Runs with background calls in the lab: their recorded results come when they came, and no body runs."""

from __future__ import annotations

from typing import Any

import anyio
import attrs
import pytest
from lab.shop import read_again, state_of

from agentloop import Agent, Capacity, RunConfig, Runner, StateError, ToolExecution, lab, tool
from agentloop.config.conditions import MaxTurns
from agentloop.records import InputAdded, InputWithdrawn, Record
from agentloop.testing import ScriptedModel, call, say

pytestmark = pytest.mark.real_clock
DUG: list[int] = []


@tool(background=True)
async def dig(depth: int) -> str:
    """Dig."""
    DUG.append(depth)
    for _ in range(20 * depth):
        await anyio.lowlevel.checkpoint()
    return f"{depth} m"


@tool(background=True, on_end="cancel")
async def watch() -> str:
    """Watch."""
    DUG.append(0)
    await anyio.sleep_forever()
    raise AssertionError


@tool(reads_only=True)
async def look() -> str:
    """Look."""
    return "seen"


STEPS: list[Any] = [
    [call("dig", {"depth": 1}, call_id="a"), call("watch", {}, call_id="w"), call("look", {}, call_id="l")],
    call("look", {}, call_id="k"),
    call("dig", {"depth": 9}, call_id="b"),
]


def make_agent(*steps: Any, instructions: str = "Dig.") -> Agent[Any, Any]:
    """Return an agent that plays *steps*."""
    said = [say(f"dug {n}") for n in range(6)]
    return Agent("digger", instructions=instructions, model=ScriptedModel([*steps, *said]), tools=[dig, watch, look])


async def record() -> list[Record]:
    """Return the log of a real run, as another process reads it."""
    records = read_again((await Runner.run(make_agent(*STEPS), "go")).records)
    DUG.clear()
    return records


def results(records: Any) -> list[tuple[str | None, str]]:
    """Return the results in *records*, with their calls."""
    return [(one.call_id, one.items[0].text) for one in records if isinstance(one, InputAdded)]


async def test_the_same_agent_gets_the_recorded_results() -> None:
    """It comes to the same end without a request or a body; also where its model is asked anew."""
    whole = state_of(await record())
    model = make_agent()
    report = await lab.compare(whole, model)
    assert [(row.verdict, row.requests, row.notes) for row in report.rows] == [("same", 0, ())]
    changed = await lab.compare(whole, make_agent(*STEPS, instructions="Dig well."))
    assert [(row.refused, row.notes) for row in changed.rows] == [(0, ())]
    assert DUG == []


async def test_a_fork_at_any_record_has_each_result_once() -> None:
    """Those of the calls that were under way at the fork come from the log, too."""
    records = await record()
    count = 0
    for at in range(1, len(records) + 1):
        try:
            made = await lab.fork(state_of(records), make_agent(), at=at)
        except StateError:
            assert at == len(records)
            continue
        [branch] = made.branches
        assert not branch.error, (at, branch.error)
        assert sorted(results(branch.records), key=str) == sorted(results(records), key=str), at
        # What the end of the run cancelled is withdrawn; a run that was cut off just before that shows it.
        told = any(isinstance(one, InputAdded) and one.call_id == "w" for one in records[:at])
        assert told or [one.id for one in branch.records if isinstance(one, InputWithdrawn)] == ["result_w"], at
        count += 1
    assert DUG == []
    assert count > 20


@pytest.mark.parametrize("unmatched", ["refuse", "live"])
async def test_a_call_that_the_run_has_not_made(unmatched: Any) -> None:
    """It is treated as any such call, and what it gives is its result. One with another id has the recorded one."""
    records = await record()
    steps = [[call("dig", {"depth": 1}, call_id="x"), call("dig", {"depth": 2}, call_id="y")], say("wait")]
    made = await lab.fork(
        state_of(records),
        make_agent(),
        at=1,
        branches=[lab.Branch(agent=make_agent(*steps, instructions="Dig well."))],
        unmatched=unmatched,
    )
    [branch] = made.branches
    head = "Result of the background call {} of tool dig:\n"
    refused = "Tool 'dig' is not available in this replay."
    assert sorted(results(branch.records), key=str) == [
        ("x", head.format("x") + "1 m"),
        ("y", head.format("y") + ("2 m" if unmatched == "live" else refused)),
    ]
    assert ([2] if unmatched == "live" else []) == DUG
    DUG.clear()


@pytest.mark.parametrize("unmatched", ["refuse", "live"])
@pytest.mark.parametrize("apart", [False, True])
async def test_a_body_that_waits_for_its_turn_holds_up_no_call(unmatched: Any, apart: bool) -> None:
    """Two bodies of one limit, whose results came in one turn, or in two of which the lab's run makes one."""
    one = attrs.evolve(dig, capacity=Capacity(1))
    first, second = (call("dig", {"depth": depth}, call_id=f"c{depth}") for depth in (1, 2))

    def digger(*steps: Any, instructions: str = "Dig.") -> Agent[Any, Any]:
        said = [say(f"dug {n}") for n in range(6)]
        return Agent("digger", instructions=instructions, model=ScriptedModel([*steps, *said]), tools=[one])

    recorded = await Runner.run(digger(*((first, second) if apart else ([first, second],))), "go")
    records = read_again(recorded.records)
    DUG.clear()
    with anyio.fail_after(20):
        report = await lab.compare(state_of(records), digger(), unmatched=unmatched)
        together = digger([first, second], instructions="Dig well.")
        changed = await lab.compare(state_of(records), together, unmatched=unmatched)
    assert [(row.refused, row.notes) for row in (*report.rows, *changed.rows)] == [(0, ()), (0, ())]
    if unmatched == "refuse":
        assert [row.verdict for row in report.rows] == ["same"]
    assert DUG == []


@pytest.mark.parametrize("threads", [None, 1, 32])
@pytest.mark.parametrize("passes", [0, 2, 40])
@pytest.mark.parametrize("beside", [False, True])
async def test_an_unchanged_agent_is_the_same_however_results_came(
    threads: int | None, passes: int, beside: bool
) -> None:
    """In the turn of their calls or a later one, in any order, of threads or tasks: the model is shown them so again.

    With fewer threads than the recorded run had nothing waits for one, because no body runs.
    """

    async def dig_on_loop(depth: int) -> str:
        DUG.append(depth)
        for _ in range(passes * (3 - depth)):
            await anyio.lowlevel.checkpoint()
        return f"{depth} m"

    def dig_in_thread(depth: int) -> str:
        DUG.append(depth)
        return f"{depth} m"

    digging = tool(dig_on_loop if threads is None else dig_in_thread, name="dig", background=True, description="Dig.")
    calls = [call("dig", {"depth": depth}, call_id=f"c{depth}") for depth in range(3)]

    def digger(*steps: Any) -> Agent[Any, Any]:
        return Agent(
            "digger", model=ScriptedModel([*steps, *(say(f"dug {n}") for n in range(6))]), tools=[digging, look]
        )

    looks = [[*calls, call("look", {}, call_id="l")], call("look", {}, call_id="k")] if beside else [calls]
    config = RunConfig(tool_execution=ToolExecution(max_threads=threads or 32))
    recorded = await Runner.run(digger(*looks), "go", run_config=config)
    DUG.clear()
    for max_threads in (1, 32):
        fewer = RunConfig(tool_execution=ToolExecution(max_threads=max_threads))
        with anyio.fail_after(20):
            report = await lab.compare(state_of(read_again(recorded.records)), digger(), run_config=fewer)
        assert [(row.verdict, row.requests, row.saw) for row in report.rows] == [("same", 0, ())]
    assert DUG == []


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("order", ["result, input", "input, result"])
async def test_added_inputs_and_results_are_shown_in_their_order(order: str, stops: bool) -> None:
    """Of one turn, in which the run also stops, and gets another input before it is resumed."""
    released, streams = anyio.Event(), list[Any]()

    @tool(background=True)
    async def fetch() -> str:
        """Fetch."""
        await released.wait()
        return "fetched"

    @tool
    async def add() -> str:
        """Add an input."""
        if order == "input, result":
            await streams[0].add_input("more")
        released.set()
        while not any(isinstance(one, InputAdded) and one.call_id for one in streams[0].state.records):
            await anyio.lowlevel.checkpoint()
        if order == "result, input":
            await streams[0].add_input("more")
        return "added"

    def fetcher(*steps: Any) -> Agent[Any, Any]:
        return Agent("fetcher", model=ScriptedModel([*steps, say("Here."), say("There.")]), tools=[fetch, add])

    config = RunConfig(stop_when=MaxTurns(1)) if stops else RunConfig()
    steps = [call("fetch", {}, call_id="f"), call("add", {}, call_id="a")]
    async with Runner.run_streamed(fetcher(steps), "go", run_config=config) as stream:
        streams.append(stream)
        await stream.finished()
    result = stream.result
    if stops:
        state = result.to_state()
        state.add_input("and this")
        result = await Runner.run(fetcher(), state, run_config=config)
    added = [one.call_id is not None for one in result.records if isinstance(one, InputAdded)]
    assert added == [order == "result, input", order != "result, input", *([False] if stops else [])]
    report = await lab.compare(result, fetcher(), run_config=config)
    assert [(row.verdict, row.requests, row.saw) for row in report.rows] == [("same", 0, ())]
