"""Spans from records: a fold that opens a span at the record that begins a piece of work, and closes it at another.

It reads records only, so a streamed run, a resumed one and a replayed log give the same tree. Does not know about
states, tasks or clocks: all times are those of the records.

Decisions:

Spans are a fold of records (`tracing/fold.py`). The fold reads records only, so a streamed run and a plain one give
the same tree. Of the loop only the call of a body knows about spans, for `current_span`. Spans are made only where an
instrument asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs

from agentloop import records as r
from agentloop._common.error_text import error_summary, message_of, summary_parts
from agentloop._common.masking import MASK, mask_arguments
from agentloop.items import HostedToolCall, Item, Text, ToolCall, ToolOutput, find_hosted_calls
from agentloop.model_events import ModelInfo, ModelRequest
from agentloop.spans import Span, SpanKind, Trace

TOOL_ERROR = "Error running tool"
TOOL_ERROR_HANDLED = "Error running tool (non-fatal)"
TOOL_CANCELLED = "Tool execution cancelled"
TRIPPED = "Guardrail tripwire triggered"
_HANDLED = ("failed", "timed_out")
_UNSUCCESSFUL = (*_HANDLED, "cancelled", "unknown")
_BEGINNINGS = (r.RunStarted, r.RunResumed)


@attrs.define(eq=False)
class _Open:
    """The open spans of one run of the tree. Mutated by its `SpanFold` only."""

    run: Span
    agent: Span
    turn: Span | None = None
    model: Span | None = None
    asked: ModelInfo | None = None
    """The model of the last request."""
    calls: dict[str, Span] = attrs.field(factory=dict)
    secretive: bool = False
    """True if no message of the run is shown: the call around it has secret arguments, which they may repeat."""
    secret_calls: set[str] = attrs.field(factory=set)
    """The open calls with secret arguments."""

    def top(self) -> Span:
        return self.turn or self.agent


class SpanFold:
    """Folds the records of one tree of runs into spans; calls *started* and *ended* with each of them.

    With *sensitive* false, spans hold no arguments, outputs, messages of a conversation and messages of errors; they
    never hold values that a tool marks secret. With *turns* false there are no spans for turns. With *requests*, spans
    hold the contents of requests (`note_request`), and those of agents and runs the last answer.

    A run segment that resumes a run leaves out what earlier records told: *run_id* is the id of the outermost run, and
    *find_model* gives the model that the run at a path asked last.
    """

    def __init__(
        self,
        trace: Trace,
        started: Callable[[Span], None],
        ended: Callable[[Span], None],
        *,
        sensitive: bool = True,
        turns: bool = True,
        requests: bool = False,
        run_id: str | None = None,
        find_model: Callable[[tuple[str, ...]], ModelInfo | None] = lambda path: None,
    ) -> None:
        self.trace = trace
        self._started = started
        self._ended = ended
        self._sensitive = sensitive
        self._turns = turns
        self._requests = requests
        self._run_id = run_id
        self._find_model = find_model
        self._runs: dict[tuple[str, ...], _Open] = {}

    def call_span(self, path: tuple[str, ...], call_id: str) -> Span | None:
        """Return the open span of one call, or None."""
        opened = self._runs.get(path)
        return opened.calls.get(call_id) if opened is not None else None

    def note_request(self, path: tuple[str, ...], request: ModelRequest) -> None:
        """Put what *request* holds into its span, which was just opened, and into that of the agent if it is the first.

        The log has the digest of a request only, so this is the one fact of a span that isn't folded from records.
        """
        opened = self._runs.get(path)
        if not (self._requests and self._sensitive) or opened is None or opened.secretive or opened.model is None:
            return
        told = {
            "instructions": request.system,
            "input": _mask_items(request.items),
            "definitions": (*request.tools, *request.handoffs, *request.hosted),
        }
        opened.model.data |= told
        opened.agent.data = told | opened.agent.data

    def record(self, record: r.Record) -> None:
        """Fold one record; records have to come in the order of the log."""
        if isinstance(record, _BEGINNINGS):
            self._begin_run(record)
            return
        found = self._runs.get(record.path)
        if found is not None:
            self._fold(found, record)

    def _begin_run(self, record: r.RunStarted | r.RunResumed) -> None:
        path, parent = record.path, self._find_parent(record.path)
        outer = self._runs.get(path[:-1]) if path else None
        # A call of an earlier run segment isn't known here: its nested run might repeat secret arguments.
        secretive = bool(path) and (
            outer is None or outer.secretive or path[-1] not in outer.calls or path[-1] in outer.secret_calls
        )
        data: dict[str, Any] = {}
        if isinstance(record, r.RunStarted):
            self._run_id = record.run_id
            if record.conversation_id is not None:
                data["conversation_id"] = record.conversation_id
            if self._sensitive and not secretive:
                data["input"] = _mask_items(record.input)
        if self._run_id is not None:
            data["run_id"] = self._run_id
        run = self._open("run", self.trace.workflow_name if parent is None else record.agent, record, parent, data)
        agent = self._open("agent", record.agent, record, run)
        asked = self._find_model(path) if isinstance(record, r.RunResumed) else None
        self._runs[path] = _Open(run, agent, asked=asked, secretive=secretive)

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
            case r.ModelRequested():
                self._begin_model(opened, record)
            case r.ModelResponded():
                self._note_response(opened, record)
                self._end_model(opened, record, None, record.response.usage)
            case r.ModelFailed(error=error, usage=usage):
                if opened.model is not None:
                    opened.model.data["error_type"] = error if error == "cancelled" else _type_of(error)
                    if record.status is not None:
                        opened.model.data["http_status"] = record.status
                self._end_model(opened, record, error if self._sensitive else "The model call failed", usage)
            case r.CallStarted():
                self._begin_call(opened, record)
            case r.CallSettled():
                self._end_call(opened, record)
            case r.GuardrailSettled():
                self._guardrail(opened, record)
            case r.HandedOff():
                self._hand_off(opened, record)
            case r.HistoryReplaced(reason="compaction"):
                data = {"tokens_before": record.tokens_before, "tokens": record.tokens, "steps": list(record.steps)}
                self._close(self._open("compaction", opened.agent.name, record, opened.top(), data), record)
            case r.RunEnded():
                self._end_run(opened, record)
            case _:
                pass

    # -- kinds of records

    def _open(
        self,
        kind: SpanKind,
        name: str,
        record: r.Record,
        parent: Span | None,
        data: dict[str, Any] | None = None,
        at: float | None = None,
    ) -> Span:
        """Open a span that holds *data*: at the time *at*, or at that of *record*."""
        span = Span(
            trace=self.trace,
            kind=kind,
            name=name,
            started_at=record.at if at is None else at,
            parent=parent,
            path=record.path,
            data={} if data is None else data,
        )
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

    def _begin_model(self, opened: _Open, record: r.ModelRequested) -> None:
        asked = opened.asked = record.model or opened.asked
        data: dict[str, Any] = {"attempt": record.attempt, "turn": record.turn}
        if record.queued_at is not None:
            data |= {"queued_at": record.queued_at, "waited_for": list(record.waited_for)}
        if asked is not None:
            data |= {"provider": asked.provider, "model": asked.name}
            if asked.base_url is not None:
                data["base_url"] = asked.base_url
        opened.model = self._open("model", opened.agent.name, record, opened.top(), data)

    def _note_response(self, opened: _Open, record: r.ModelResponded) -> None:
        """Put the facts of an answer into the span of its request, and add the spans of the provider's own calls."""
        response = record.response
        if opened.model is not None:
            told = {
                "first_delta_at": record.first_delta_at,
                "cost": record.cost,
                "response_id": response.response_id,
                "response_model": response.model,
                "finish_reason": response.finish_reason,
                "service_tier": response.service_tier,
            }
            opened.model.data |= {name: value for name, value in told.items() if value is not None}
            if self._sensitive and not opened.secretive:
                output = opened.model.data["output"] = _mask_items(response.items)
                if self._requests:
                    for told_too in (opened.agent, opened.run):
                        told_too.data |= {"output": output, "finish_reason": response.finish_reason}
        for call in find_hosted_calls(response.items):
            self._add_hosted(opened, record, call)

    def _begin_call(self, opened: _Open, record: r.CallStarted) -> None:
        data: dict[str, Any] = {"call_id": record.call_id, "attempt": record.attempt, "turn": record.turn}
        if record.queued_at is not None:
            data["queued_at"] = record.queued_at
        if self._sensitive:
            data["arguments"] = mask_arguments(record.arguments, record.secret)
        if record.secret:
            opened.secret_calls.add(record.call_id)
        opened.calls[record.call_id] = self._open("tool", record.tool, record, opened.top(), data)

    def _add_hosted(self, opened: _Open, record: r.Record, call: HostedToolCall) -> None:
        """Add the span of a call that the provider made while it answered, below the model's and of the same times.

        The log has no others: the provider tells when a call is made only to those who watch the stream.
        """
        data: dict[str, Any] = {"call_id": call.call_id or call.id, "status": call.status}
        if call.status == "failed":
            data["error_type"] = "failed"
        if self._sensitive and not opened.secretive:
            data |= {"data": call.data, "output": call.output}
        at = None if opened.model is None else opened.model.started_at
        span = self._open("hosted_tool", call.kind, record, opened.model or opened.top(), data, at)
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
        span = opened.calls.pop(record.call_id, None)
        if span is None:
            span = self._open("tool", record.tool, record, opened.top(), {"call_id": record.call_id})
        opened.secret_calls.discard(record.call_id)
        span.data["status"] = outcome.status
        if outcome.status in _UNSUCCESSFUL:
            failed = outcome.error if outcome.status == "failed" else None
            span.data["error_type"] = outcome.status if failed is None else _type_of(error_summary(failed))
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
        data: dict[str, Any] = {"stage": record.stage, "verdict": record.verdict}
        tripped = record.verdict in ("tripped", "RaiseException")
        if tripped:
            data["error_type"] = "tripwire"
            opened.top().error = opened.top().error or TRIPPED
        at = record.at - record.duration
        span = self._open("guardrail", record.guardrail, record, parent or opened.top(), data, at)
        self._close(span, record, TRIPPED if tripped else None)

    def _hand_off(self, opened: _Open, record: r.HandedOff) -> None:
        data: dict[str, Any] = {"error_type": "multiple_handoffs"} if record.ignored else {}
        span = self._open("handoff", f"{record.source_agent} -> {record.target_agent}", record, opened.top(), data)
        self._close(span, record, "Multiple handoffs requested" if record.ignored else None)
        self._close(opened.turn, record)
        self._close(opened.agent, record)
        opened.turn = None
        opened.agent = self._open("agent", record.target_agent, record, opened.run)

    def _end_run(self, opened: _Open, record: r.RunEnded) -> None:
        error = record.error if self._sensitive or record.error is None else record.error.partition("(")[0]
        opened.run.data["status"] = record.status
        if record.error is not None:
            kind = _type_of(record.error)
            opened.agent.data["error_type"] = opened.run.data["error_type"] = kind
        for span in (*opened.calls.values(), opened.model):
            self._close(span, record)
        self._close(opened.turn, record, at=record.turn_ended_at)
        self._close(opened.agent, record, error)
        self._close(opened.run, record, error)
        del self._runs[record.path]


def _type_of(summary: str) -> str:
    """Return the name of the error's type in its summary."""
    return summary_parts(summary)[0]


def _mask_items(items: Iterable[Item]) -> tuple[Item, ...]:
    """Return *items* without what is secret in them."""
    return tuple(map(_mask_item, items))


def _mask_item(item: Item) -> Item:
    # A provider's own data may repeat what is masked.
    if isinstance(item, ToolCall):
        if not item.secret:
            return item
        return item.replace(arguments=mask_arguments(item.arguments, item.secret), provider_data=None)
    if not getattr(item, "secret", False):
        return item
    if isinstance(item, ToolOutput):
        return item.replace(output=MASK, provider_data=None)
    return item.replace(content=(Text(MASK),), provider_data=None)
