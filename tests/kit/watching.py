"""Instruments and hooks that keep everything they receive."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import attrs

from agentloop import AgentHooks, RunHooks, Span, ToolContext, Trace
from agentloop import records as r
from agentloop.abc import Instrument, LateResult, StillRunning
from agentloop.outcomes import CallOutcome

# ---------------------------------------------------------------------------------------------- instruments


class AtRecord(Instrument):
    """Sets `come` once *count* records of *kind* are in the log, and calls *do* in that step."""

    def __init__(self, count: int = 1, kind: type = object, do: Callable[[], object] | None = None) -> None:
        self.come = anyio.Event()
        self._left, self._kind, self._do = count, kind, do

    def on_record(self, record: r.Record) -> None:
        if not isinstance(record, self._kind):
            return
        self._left -= 1
        if self._left == 0:
            self.come.set()
            if self._do is not None:
                self._do()


class Watch(Instrument):
    """Keeps the records of a run and the reports on its calls."""

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
        """Return the one outcome of a call; fail if it settled twice or never."""
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
        """Return the ended spans of *kind*, in the order of their start; fail if a span has not ended."""
        assert {id(span) for span in self.started} == {id(span) for span in self.ended}
        assert len(self.started) == len(self.ended)
        return [span for span in self.started if span.kind == kind]


# ---------------------------------------------------------------------------------------------- hooks


class ToolHookLog(RunHooks):
    """Keeps everything that the tool hooks of a run receive, by call id.

    `at_start` and `at_end` are awaited before the event is kept; what they raise leaves the hook.
    """

    def __init__(
        self,
        *,
        at_start: Callable[[str], Awaitable[None]] | None = None,
        at_end: Callable[[str, CallOutcome], Awaitable[None]] | None = None,
    ) -> None:
        self.at_start, self.at_end = at_start, at_end
        self.seen: list[str] = []
        """One line for each event: `start:ID`, `end:ID:STATUS`."""
        self.started: list[str] = []
        self.ended: list[tuple[str, str, str | None]] = []
        self.outcomes: dict[str, CallOutcome] = {}
        self.run_ends: list[str] = []

    async def on_tool_start(self, ctx: ToolContext[Any], agent: Any, tool: Any) -> None:
        self.started.append(ctx.tool_call_id)
        self.seen.append(f"start:{ctx.tool_call_id}")
        if self.at_start is not None:
            await self.at_start(ctx.tool_call_id)

    async def on_tool_end(self, ctx: ToolContext[Any], agent: Any, tool: Any, outcome: CallOutcome) -> None:
        assert ctx.tool_call_id not in self.outcomes
        if self.at_end is not None:
            await self.at_end(ctx.tool_call_id, outcome)
        self.ended.append((ctx.tool_call_id, outcome.status, outcome.cancelled_by))
        self.seen.append(f"end:{ctx.tool_call_id}:{outcome.status}")
        self.outcomes[ctx.tool_call_id] = outcome

    async def on_run_end(self, ctx: Any, outcome: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self.run_ends.append(outcome.status)


class RunHookLog(RunHooks):
    """Appends a line for every event of a run to *lines*, after *mark*, and keeps the arguments of each event."""

    def __init__(self, lines: list[str] | None = None, mark: str = "") -> None:
        self.lines = [] if lines is None else lines
        self.mark = mark
        self.seen: list[tuple[str, tuple[Any, ...]]] = []

    def _add(self, line: str, *args: Any) -> None:
        self.lines.append(self.mark + line)
        self.seen.append((line, args))

    async def on_run_end(self, ctx: Any, outcome: Any) -> None:
        self._add(f"run_end {outcome.status}", ctx, outcome)

    async def on_agent_start(self, ctx: Any, agent: Any) -> None:
        self._add(f"agent_start {agent.name}", ctx, agent)

    async def on_agent_end(self, ctx: Any, agent: Any, output: Any) -> None:
        self._add(f"agent_end {agent.name}", ctx, agent, output)

    async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
        self._add(f"llm_start {agent.name}", ctx, agent, system, input)

    async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
        self._add(f"llm_end {agent.name}", ctx, agent, response)

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        self._add(f"tool_start {tool.name}", ctx, agent, tool)

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        self._add(f"tool_end {tool.name}", ctx, agent, tool, outcome)

    async def on_handoff(self, ctx: Any, from_agent: Any, to_agent: Any) -> None:
        self._add(f"handoff {from_agent.name} {to_agent.name}", ctx, from_agent, to_agent)

    def args_of(self, start: str) -> tuple[Any, ...]:
        """Return the arguments of the first event whose line begins with *start*."""
        return next(args for line, args in self.seen if line.startswith(start))


class AgentHookLog(AgentHooks):
    """Appends a line for every event of an agent to *lines*, after *mark*."""

    def __init__(self, lines: list[str], mark: str = "") -> None:
        self.lines, self.mark = lines, mark

    async def on_start(self, ctx: Any, agent: Any) -> None:
        self.lines.append(f"{self.mark}start {agent.name}")

    async def on_end(self, ctx: Any, agent: Any, output: Any) -> None:
        self.lines.append(f"{self.mark}end {agent.name}")

    async def on_handoff_out(self, ctx: Any, agent: Any, to_agent: Any) -> None:
        self.lines.append(f"{self.mark}out {agent.name} {to_agent.name}")

    async def on_handoff_in(self, ctx: Any, agent: Any, from_agent: Any) -> None:
        self.lines.append(f"{self.mark}in {agent.name} {from_agent.name}")

    async def on_llm_start(self, ctx: Any, agent: Any, system: Any, input: Any) -> None:
        self.lines.append(f"{self.mark}llm_start {agent.name}")

    async def on_llm_end(self, ctx: Any, agent: Any, response: Any) -> None:
        self.lines.append(f"{self.mark}llm_end {agent.name}")

    async def on_tool_start(self, ctx: Any, agent: Any, tool: Any) -> None:
        self.lines.append(f"{self.mark}tool_start {tool.name}")

    async def on_tool_end(self, ctx: Any, agent: Any, tool: Any, outcome: Any) -> None:
        self.lines.append(f"{self.mark}tool_end {tool.name}")


# ---------------------------------------------------------------------------------------------- bodies


@attrs.define
class Flight:
    """Counts how many bodies are in flight at once, and keeps the order of their starts and ends.

    A body enters `with flight(NAME):` for as long as it is in flight.
    """

    now: int = 0
    peak: int = 0
    started: list[Any] = attrs.field(factory=list)
    ended: list[Any] = attrs.field(factory=list)

    def __call__(self, name: Any) -> "_Seat":
        return _Seat(self, name)


@attrs.define
class _Seat:
    flight: Flight
    name: Any

    def __enter__(self) -> None:
        self.flight.now += 1
        self.flight.peak = max(self.flight.peak, self.flight.now)
        self.flight.started.append(self.name)

    def __exit__(self, *_: object) -> None:
        self.flight.now -= 1
        self.flight.ended.append(self.name)
