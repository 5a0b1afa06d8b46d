"""A waiting call is started, skipped or settled: exactly one of these, and another look always follows."""

from typing import Any

import anyio
import pytest

from agentloop import Agent, Capacity, Rate, RunConfig, Runner, ToolContext, ToolExecution, tool
from agentloop import records as r
from agentloop.testing import ScriptedModel, call, say


@pytest.mark.backends("trio-virtual")
async def test_a_skipped_call_never_runs_though_it_is_next_in_line(run_mode: Any) -> None:
    """In sequential mode all calls are past the queue's limit, and settling one must not start the next."""
    ran: list[int] = []

    @tool(capacity=Rate(1, 60))
    async def limited(n: int) -> int:
        ran.append(n)
        return n

    @tool
    async def free(n: int) -> int:
        ran.append(n)
        return n

    script = ScriptedModel([[call("limited", {"n": 0}), call("limited", {"n": 1}), call("free", {"n": 2})], say("x")])
    execution = ToolExecution(mode="sequential", queue_timeout=0.1)
    result = await run_mode(
        Agent("a", model=script, tools=[limited, free]), "go", run_config=RunConfig(tool_execution=execution)
    )
    assert ran == [0]
    assert [event.outcome.status for event in result.calls] == ["succeeded", "skipped", "skipped"]
    assert sum(isinstance(record, r.CallSettled) for record in result.records) == 3


@pytest.mark.backends("trio-virtual")
async def test_a_call_whose_equal_call_failed_waits_no_longer_than_the_others(run_mode: Any) -> None:
    """It waits for room only from then on: the owner, which slept with no call to skip, must wake for it."""
    desk = Capacity(1)
    elsewhere: list[str] = []

    @tool(capacity=desk)
    async def hold() -> None:
        await anyio.sleep(30)
        elsewhere.append("held")

    @tool(capacity=desk, idempotent=True)
    async def fails(n: int) -> None:
        await anyio.sleep(0.5)
        raise ValueError(n)

    async def other_run() -> None:
        await anyio.sleep(0.1)  # its call is next in line for the desk
        await Runner.run(Agent("other", model=ScriptedModel([call("hold"), say("x")]), tools=[hold]), "go")

    script = ScriptedModel([[call("fails", {"n": 1}), call("fails", {"n": 1})], say("x")])
    config = RunConfig(tool_execution=ToolExecution(queue_timeout=2))
    began = anyio.current_time()
    async with anyio.create_task_group() as group:
        group.start_soon(other_run)
        result = await run_mode(Agent("a", model=script, tools=[fails]), "go", run_config=config)
        assert anyio.current_time() - began == pytest.approx(2)
        group.cancel_scope.cancel()
    assert [event.outcome.status for event in result.calls] == ["failed", "skipped"]
    assert elsewhere == []


async def test_a_capacity_changed_by_a_body_wakes_who_waits_for_it(run_mode: Any) -> None:
    """The change wakes the waiting calls also at a moment when no call holds the capacity."""
    capacity = Capacity(1)
    third = anyio.Event()

    @tool(capacity=capacity)
    async def f(n: int) -> int:
        if n == 1:
            capacity.total_tokens = 2
            await third.wait()
        if n == 2:
            third.set()
        return n

    script = ScriptedModel([[call("f", {"n": n}) for n in range(3)], say("x")])
    with anyio.fail_after(30):
        result = await run_mode(Agent("a", model=script, tools=[f]), "go")
    assert [event.outcome.output for event in result.calls] == ["0", "1", "2"]


@pytest.mark.backends("trio-virtual")
async def test_an_inner_run_lives_on_the_deadline_that_reports_extend(run_mode: Any) -> None:
    """The inner run reads the outer deadline when it needs it, and does not remember an earlier value."""

    @tool
    async def step(ctx: ToolContext[Any], n: int) -> int:
        outer[0].report_nowait(n)
        await anyio.sleep(0.8)
        return n

    outer: list[ToolContext[Any]] = []

    @tool(idle_timeout=1.0)
    async def runs(ctx: ToolContext[Any]) -> str:
        outer.append(ctx)
        steps = ScriptedModel([[call("step", {"n": n}) for n in range(4)], say("inner done")])
        config = RunConfig(tool_execution=ToolExecution(max_function_tool_concurrency=1))
        result = await Runner.run(Agent("inner", model=steps, tools=[step]), "go", run_config=config)
        return str(result.final_output)

    agent = Agent("a", model=ScriptedModel([call("runs"), say("x")]), tools=[runs])
    result = await run_mode(agent, "go")
    assert [event.outcome.output for event in result.calls] == ["inner done"]


@pytest.mark.parametrize("buffer", [1, 2, 3])
async def test_a_batch_that_ends_leaves_the_others_their_place_at_the_consumer(buffer: int) -> None:
    """A nested turn and its outer one wait for the same consumer."""
    capacity = Capacity(1)

    @tool(capacity=capacity)
    async def capped() -> str:
        return "x"

    inner = Agent("inner", model=ScriptedModel([call("capped"), say("deep")]), tools=[capped])
    script = ScriptedModel([[call("inner", {"input": "x"}), call("capped")], say("done")])
    execution = ToolExecution(max_function_tool_concurrency=1)
    config = RunConfig(stream_buffer=buffer, tool_execution=execution)
    agent = Agent("a", model=script, tools=[inner.as_tool(), capped])
    with anyio.fail_after(30):
        async with Runner.run_streamed(agent, "go", run_config=config) as stream:
            events = [event async for event in stream]
    assert stream.result.final_output == "done"
    assert events
