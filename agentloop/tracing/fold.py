"""Spans from records: a fold that opens a span at the record that begins a piece of work, and closes it at another.

It reads records alone, so a streamed run, a resumed one and a replayed log give the same tree. Does not know about
states, tasks or clocks: all times are those of the records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from agentloop import records as r
from agentloop._common.error_text import message_of
from agentloop._common.masking import MASK, mask_arguments
from agentloop.items import HostedToolCall, find_hosted_calls
from agentloop.model_events import ModelInfo
from agentloop.spans import Span, SpanKind, Trace

TOOL_ERROR = "Error running tool"
TOOL_ERROR_HANDLED = "Error running tool (non-fatal)"
TOOL_CANCELLED = "Tool execution cancelled"
_HANDLED = ("failed", "timed_out")
_BEGINNINGS = (r.RunStarted, r.RunResumed)


@attrs.define(eq=False)
class _Open:
    """The open spans of one run of the tree. Mutated by its `SpanFold` alone."""

    run: Span
    agent: Span
    turn: Span | None = None
    model: Span | None = None
    asked: ModelInfo | None = None
    """The model of the last request."""
    calls: dict[str, Span] = attrs.field(factory=dict)

    def top(self) -> Span:
        return self.turn or self.agent


class SpanFold:
    """Folds the records of one tree of runs into spans; calls *started* and *ended* with each of them.

    With *sensitive* false, spans hold no arguments, outputs and messages of errors; they never hold values that a tool
    marks secret. With *turns* false there are no spans for turns.
    """

    def __init__(
        self,
        trace: Trace,
        started: Callable[[Span], None],
        ended: Callable[[Span], None],
        *,
        sensitive: bool = True,
        turns: bool = True,
    ) -> None:
        self.trace = trace
        self._started = started
        self._ended = ended
        self._sensitive = sensitive
        self._turns = turns
        self._runs: dict[tuple[str, ...], _Open] = {}

    def call_span(self, path: tuple[str, ...], call_id: str) -> Span | None:
        """Return the open span of one call, or None."""
        opened = self._runs.get(path)
        return opened.calls.get(call_id) if opened is not None else None

    def record(self, record: r.Record) -> None:
        """Fold one record; records have to come in the order of the log."""
        if isinstance(record, _BEGINNINGS):
            parent = self._find_parent(record.path)
            run = self._open("run", self.trace.workflow_name if parent is None else record.agent, record, parent)
            self._runs[record.path] = _Open(run, self._open("agent", record.agent, record, run))
            return
        found = self._runs.get(record.path)
        if found is not None:
            self._fold(found, record)

    def _find_parent(self, path: tuple[str, ...]) -> Span | None:
        """Return the parent of the span of the run at *path*; None for the outermost run.

        It is the span of the call, or of the outer run if the call started in an earlier run segment.
        """
        if not path:
            return None
        outer = self._runs.get(path[:-1])
        return self.call_span(path[:-1], path[-1]) or (outer.top() if outer is not None else None)

    def _fold(self, opened: _Open, record: r.Record) -> None:
        match record:
            case r.TurnStarted():
                self._begin_turn(opened, record)
            case r.ModelRequested(attempt=attempt, model=model):
                opened.asked = model or opened.asked
                opened.model = self._open("model", opened.agent.name, record, opened.top())
                opened.model.data["attempt"] = attempt
                if (asked := opened.asked) is not None:
                    opened.model.data |= {"provider": asked.provider, "model": asked.name}
                    if asked.base_url is not None:
                        opened.model.data["base_url"] = asked.base_url
            case r.ModelResponded(response=response):
                if opened.model is not None:
                    for name in ("first_delta_at", "cost"):
                        if (told := getattr(record, name)) is not None:
                            opened.model.data[name] = told
                for call in find_hosted_calls(response.items):
                    self._add_hosted(opened, record, call)
                self._end_model(opened, record, None, response.usage)
            case r.ModelFailed(error=error, usage=usage):
                self._end_model(opened, record, error if self._sensitive else "The model call failed", usage)
            case r.CallStarted(call_id=call_id, tool=tool, arguments=arguments, secret=secret):
                span = opened.calls[call_id] = self._open("tool", tool, record, opened.top())
                if self._sensitive:
                    span.data["arguments"] = mask_arguments(arguments, secret)
            case r.CallSettled():
                self._end_call(opened, record)
            case r.GuardrailSettled():
                self._guardrail(opened, record)
            case r.HandedOff():
                self._hand_off(opened, record)
            case r.RunEnded():
                self._end_run(opened, record)
            case _:
                pass

    # -- kinds of records

    def _open(self, kind: SpanKind, name: str, record: r.Record, parent: Span | None) -> Span:
        span = Span(trace=self.trace, kind=kind, name=name, started_at=record.at, parent=parent, path=record.path)
        self._started(span)
        return span

    def _close(self, span: Span | None, record: r.Record, error: str | None = None, *, at: float | None = None) -> None:
        """Close *span*, if it is open: at the time *at*, or at that of *record*."""
        if span is None or span.ended_at is not None:
            return
        span.ended_at = record.at if at is None else at
        span.error = span.error or error
        self._ended(span)

    def _begin_turn(self, opened: _Open, record: r.TurnStarted) -> None:
        self._close(opened.turn, record)
        opened.agent.data["tools"] = record.tools
        opened.agent.data["handoffs"] = record.handoffs
        opened.turn = self._open("turn", f"turn {record.turn}", record, opened.agent) if self._turns else None

    def _add_hosted(self, opened: _Open, record: r.Record, call: HostedToolCall) -> None:
        """Add the span of a call that the provider made while it answered, below the model's and of the same times.

        The log has no others: the provider tells when a call is made to those alone who watch the stream.
        """
        span = self._open("hosted_tool", call.kind, record, opened.model or opened.top())
        if opened.model is not None:
            span.started_at = opened.model.started_at
        span.data |= {"call_id": call.call_id or call.id, "status": call.status}
        if self._sensitive:
            span.data |= {"data": call.data, "output": call.output}
        self._close(span, record, TOOL_ERROR if call.status == "failed" else None)

    def _end_model(self, opened: _Open, record: r.Record, error: str | None, usage: Any) -> None:
        span, opened.model = opened.model, None
        if span is None:
            return
        if usage is not None:
            span.data["usage"] = usage
            for around in (opened.turn, opened.run):
                if around is not None:
                    around.data["total_tokens"] = around.data.get("total_tokens", 0) + usage.total_tokens
        self._close(span, record, error)

    def _end_call(self, opened: _Open, record: r.CallSettled) -> None:
        outcome = record.outcome
        # A call that never started gets a span too: the model requested it, and it was answered.
        span = opened.calls.pop(record.call_id, None) or self._open("tool", record.tool, record, opened.top())
        span.data["status"] = outcome.status
        for name in ("cancelled_by", "cancelled_by_call", "cancelled_at"):
            if (told := getattr(outcome, name)) is not None:
                span.data[name] = told
        if self._sensitive and outcome.output is not None:
            span.data["output"] = MASK if outcome.secret else outcome.output
        error: str | None = None
        if outcome.status == "cancelled":
            error = TOOL_CANCELLED
        elif outcome.status in _HANDLED:
            error = TOOL_ERROR if outcome.output is None else TOOL_ERROR_HANDLED
        if error is not None and self._sensitive and outcome.error is not None:
            span.data["error"] = message_of(outcome.error)
        self._close(span, record, error)

    def _guardrail(self, opened: _Open, record: r.GuardrailSettled) -> None:
        parent = opened.calls.get(record.call_id) if record.call_id is not None else None
        span = self._open("guardrail", record.guardrail, record, parent or opened.top())
        span.started_at = record.at - record.duration
        span.data["verdict"] = record.verdict
        tripped = record.verdict in ("tripped", "RaiseException")
        if tripped:
            opened.top().error = opened.top().error or "Guardrail tripwire triggered"
        self._close(span, record, "Guardrail tripwire triggered" if tripped else None)

    def _hand_off(self, opened: _Open, record: r.HandedOff) -> None:
        span = self._open("handoff", f"{record.source_agent} -> {record.target_agent}", record, opened.top())
        self._close(span, record, "Multiple handoffs requested" if record.ignored else None)
        self._close(opened.turn, record)
        self._close(opened.agent, record)
        opened.turn = None
        opened.agent = self._open("agent", record.target_agent, record, opened.run)

    def _end_run(self, opened: _Open, record: r.RunEnded) -> None:
        error = record.error if self._sensitive or record.error is None else record.error.partition("(")[0]
        for span in (*opened.calls.values(), opened.model):
            self._close(span, record)
        self._close(opened.turn, record, at=record.turn_ended_at)
        self._close(opened.agent, record, error)
        self._close(opened.run, record, error)
        del self._runs[record.path]
