"""What the scenario tests of tool execution share: short ways to build a run, to watch it, and to end it early."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
import trio
import trio.testing

from agentloop import (
    Agent,
    AgentHooks,
    CallOutcome,
    FunctionTool,
    RunConfig,
    RunHooks,
    Span,
    ToolContext,
    ToolExecution,
    Trace,
)
from agentloop import records as r
from agentloop.abc import Instrument, LateResult, StillRunning
from agentloop.items import ToolOutput
from agentloop.testing import ScriptedModel, call, say
from agentloop.testing.simulation._asyncio_loop import ClockworkLoop

Backend = tuple[str, dict[str, Any]]


def agent_that_calls(*names: str, tools: Sequence[FunctionTool], then: str = "done", **fields: Any) -> Agent[Any, Any]:
    """Return an agent whose model calls *names* in one turn, with ids `c1 …`, and then says *then*."""
    calls = [call(name, call_id=f"c{index}") for index, name in enumerate(names, 1)]
    return Agent("tester", model=ScriptedModel([calls, say(then)]), tools=list(tools), **fields)


def script(*steps: Any, tools: Sequence[FunctionTool], **fields: Any) -> Agent[Any, Any]:
    """Return an agent whose model follows *steps*."""
    return Agent("tester", model=ScriptedModel(steps), tools=list(tools), **fields)


def model_of(agent: Agent[Any, Any]) -> ScriptedModel:
    """Return the agent's scripted model."""
    assert isinstance(agent.model, ScriptedModel)
    return agent.model


def outputs(items: Iterable[Any]) -> dict[str, Any]:
    """Return the outputs among *items* by call id, in their order."""
    return {item.call_id: item.output for item in items if isinstance(item, ToolOutput)}


def shown(agent: Agent[Any, Any], request: int = 1) -> dict[str, Any]:
    """Return the tool outputs the model was shown in its *request*-th request (from 0)."""
    return outputs(model_of(agent).requests[request].items)


def endings(calls: Iterable[Any]) -> list[tuple[str, str, str | None]]:
    """Return id, status and canceller of each settled call of a result or of an error's data."""
    return [(settled.call.call_id, settled.outcome.status, settled.outcome.cancelled_by) for settled in calls]


class Watch(Instrument):
    """Keeps all that an instrument is told."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.still: list[StillRunning] = []
        self.late: list[LateResult] = []

    def on_record(self, record: r.Record) -> None:
        self.records.append(record)

    def on_still_running(self, report: StillRunning) -> None:
        self.still.append(report)

    def on_late_result(self, report: LateResult) -> None:
        self.late.append(report)

    def of(self, *kinds: type) -> list[Any]:
        """Return the records of these kinds."""
        return [record for record in self.records if isinstance(record, kinds)]

    def outcome(self, call_id: str) -> CallOutcome:
        """Return the one outcome of a call."""
        [settled] = [record for record in self.of(r.CallSettled) if record.call_id == call_id]
        outcome: CallOutcome = settled.outcome
        return outcome

    def endings(self) -> dict[str, tuple[str, str | None]]:
        """Return status and canceller by call id."""
        return {
            record.call_id: (record.outcome.status, record.outcome.cancelled_by) for record in self.of(r.CallSettled)
        }

    @property
    def end(self) -> str:
        """The status of the one `RunEnded`, which must be the last record."""
        ends = self.of(r.RunEnded)
        assert len(ends) == 1
        assert self.records[-1] is ends[0]
        status: str = ends[0].status
        return status


class SpanWatch(Watch):
    """Keeps spans and traces too, as they start and end."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[Span] = []
        self.ended: list[Span] = []
        self.traces: list[tuple[str, Trace]] = []

    def on_span_start(self, span: Span) -> None:
        self.started.append(span)

    def on_span_end(self, span: Span) -> None:
        self.ended.append(span)

    def on_trace_start(self, trace: Trace) -> None:
        self.traces.append(("start", trace))

    def on_trace_end(self, trace: Trace) -> None:
        self.traces.append(("end", trace))

    def spans_of(self, kind: str) -> list[Span]:
        """Return the ended spans of *kind*, in the order of their start."""
        assert {id(span) for span in self.started} == {id(span) for span in self.ended}
        assert len(self.started) == len(self.ended)
        return [span for span in self.started if span.kind == kind]


def watched(watch: Watch, *, config: RunConfig | None = None, **execution: Any) -> RunConfig:
    """Return a configuration with *watch* as its instrument and *execution* as its tool execution."""
    return attrs.evolve(config or RunConfig(), instruments=(watch,), tool_execution=ToolExecution(**execution))


class HookLog(RunHooks):
    """Writes down what tool hooks are given; `at_start` and `at_end` are called first, if given."""

    def __init__(
        self,
        *,
        at_start: Callable[[str], Awaitable[None]] | None = None,
        at_end: Callable[[str, CallOutcome], Awaitable[None]] | None = None,
    ) -> None:
        self.at_start, self.at_end = at_start, at_end
        self.started: list[str] = []
        self.ended: list[tuple[str, str, str | None]] = []
        self.outcomes: dict[str, CallOutcome] = {}
        self.run_ends: list[str] = []

    async def on_tool_start(self, ctx: ToolContext[Any], agent: Any, tool: Any) -> None:
        self.started.append(ctx.tool_call_id)
        if self.at_start is not None:
            await self.at_start(ctx.tool_call_id)

    async def on_tool_end(self, ctx: ToolContext[Any], agent: Any, tool: Any, outcome: CallOutcome) -> None:
        if self.at_end is not None:
            await self.at_end(ctx.tool_call_id, outcome)
        self.ended.append((ctx.tool_call_id, outcome.status, outcome.cancelled_by))
        self.outcomes[ctx.tool_call_id] = outcome

    async def on_run_end(self, ctx: Any, outcome: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self.run_ends.append(outcome.status)


class AgentHookLog(AgentHooks):
    """Writes tool hooks of one agent into a list shared with others."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    async def on_tool_start(self, ctx: ToolContext[Any], agent: Any, tool: Any) -> None:
        self.lines.append("agent start")

    async def on_tool_end(self, ctx: ToolContext[Any], agent: Any, tool: Any, outcome: CallOutcome) -> None:
        self.lines.append("agent end")


# ---------------------------------------------------------------------------------------------- time


def time_passes(seconds: float) -> None:
    """Put the running loop's clock forward: what is due by then is due now, on a real clock too.

    So a deadline can be so far away that no pause of the machine reaches it, and comes when what has to be done before
    it is done.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        clock: Any = trio.lowlevel.current_clock()
        if isinstance(clock, trio.testing.MockClock):
            clock.jump(seconds)
        else:
            object.__setattr__(clock, "offset", clock.offset + seconds)  # it is frozen
    else:
        assert not isinstance(loop, ClockworkLoop), "its time is its own"
        until_now = loop.time
        loop.time = lambda: until_now() + seconds  # type: ignore[method-assign]


def is_virtual(backend: Backend) -> bool:
    """Tell whether time jumps on this backend: nothing then takes longer than it says."""
    return "clock" in backend[1] or backend[1].get("loop_factory") is ClockworkLoop


@asynccontextmanager
async def lasting(backend: Backend, seconds: float, slack: float = 5.0) -> AsyncIterator[None]:
    """Check how long the block takes: exactly *seconds* on a virtual clock, up to *slack* more on a real one."""
    start = anyio.current_time()
    yield
    took = anyio.current_time() - start
    if is_virtual(backend):
        assert took == pytest.approx(seconds, abs=1e-6)  # the sum of a few floats, no waiting
    else:
        assert seconds - 0.01 <= took <= seconds + slack


# ---------------------------------------------------------------------------------------------- ending runs early


async def cancelled_at(ready: anyio.Event, run: Callable[[], Awaitable[Any]]) -> None:
    """Await *run* in a scope that is cancelled when *ready* is set; fail unless the cancellation propagates."""
    finished = False
    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:

            async def cancel() -> None:
                await ready.wait()
                scope.cancel()

            group.start_soon(cancel)
            await run()
            finished = True
        assert not finished, "the run returned although its caller was cancelled"
        assert scope.cancelled_caught
        group.cancel_scope.cancel()


async def natively_cancelled_at(ready: anyio.Event, run: Callable[[], Awaitable[Any]]) -> None:
    """Await *run* in an asyncio task that gets `Task.cancel()` when *ready* is set; fail unless that is what leaves."""
    counts: list[int] = []

    async def host() -> None:
        try:
            await run()
        finally:
            task = asyncio.current_task()
            assert task is not None
            counts.append(task.cancelling())

    task = asyncio.create_task(host())
    await ready.wait()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    else:
        raise AssertionError("the run returned although its caller was cancelled")
    assert task.cancelled()
    assert counts == [1], f"cancelling() is {counts}: the one native cancellation is to be left as it came"
