"""The fold from records to a `Timeline`.

It takes any records: of a log that was torn, of a run under way, of one that was resumed after its process had died.
What the records don't say is not guessed: a row without an end is open, and a call of the model's answer that no
record names afterwards has no phase.

State: for each path, the rows of its run: the run's, the present turn's, the present request's, and those of the calls
by their ids, where the latest call of an id counts. A call has one row in all run segments, though a later segment may
start it again; a span belongs to one segment, and begins when its body does. So this fold isn't made of spans.

The end of a run segment closes what is open in the rows of its run, but for waits for verdicts. A segment that begins
while another has no end tells that the process had died: what was open then ends at the last record before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from agentloop import records as r
from agentloop._common.naming import qualify_name
from agentloop._common.terminal_text import duration
from agentloop.agents._tool_origins import OriginFold
from agentloop.items import HandoffCall, HostedToolCall, ToolCall, find_hosted_calls
from agentloop.model_events import ModelInfo
from agentloop.outcomes import CallOutcome
from agentloop.tracing._timeline_content import (
    clean,
    show_arguments,
    show_error,
    show_messages,
    show_reasoning,
    show_value,
)
from agentloop.tracing._timeline_rows import EndedBy, GrowingRow, flatten
from agentloop.tracing.timeline import Arrow, Ending, Gap, RowKind, Timeline
from agentloop.usage import RequestUsage

_TRIPPED = frozenset({"tripped", "RaiseException"})


def read_timeline(records: Iterable[r.Record], *, content: bool = True) -> Timeline:
    """Return the timeline of a run.

    Args:
        records: Those of one run, from the first on, in order: `read_journal` gives them, and `RunState.records`. They
            may end anywhere. None at all gives an empty timeline.
        content: False leaves out arguments, outputs, messages, reasons and the messages of errors. Values that a tool
            marks secret are masked in any case.
    """
    fold = TimelineFold(content=content)
    for record in records:
        fold.record(record)
    return fold.timeline()


@attrs.define(eq=False)
class _Run:
    """The rows of one run of the tree. Mutated by its `TimelineFold` only."""

    row: GrowingRow
    turn: GrowingRow | None = None
    model: GrowingRow | None = None
    asked: ModelInfo | None = None
    calls: dict[str, GrowingRow] = attrs.field(factory=dict)
    segment_open: bool = True

    def top(self) -> GrowingRow:
        return self.turn or self.row


class TimelineFold:
    """Folds the records of one tree of runs into a timeline, one after the other; see `read_timeline`."""

    def __init__(self, *, content: bool = True) -> None:
        self._content = content
        self._head = Timeline(has_content=content)
        self._runs: dict[tuple[str, ...], _Run] = {}
        self._gaps: list[Gap] = []
        self._origins = OriginFold()
        self._count = 0
        self._calls = 0
        self._first = self._last = 0.0

    def record(self, record: r.Record) -> None:
        """Fold one record; records have to come in the order of the log."""
        if self._count == 0:
            self._first = self._last = record.at
        self._count += 1
        self._origins.record(record)
        if isinstance(record, r.RunStarted | r.RunResumed):
            self._begin_segment(record)
        elif (run := self._runs.get(record.path)) is not None:
            self._fold(run, record)
        self._last = max(self._last, record.at)

    def timeline(self) -> Timeline:
        """Return the timeline of the records so far."""
        root = self._runs.get(())
        if root is None:
            return self._head.replace(records=self._count, start=self._first, end=self._last)
        flat = list(flatten(root.row))
        rows = tuple(row.freeze(depth, parent, self._last) for row, depth, parent in flat)
        whole = rows[0]
        return self._head.replace(
            status=root.row.endings[-1].status if root.row.endings and not root.segment_open else None,
            start=min(self._first, *(row.start for row in rows)),
            end=max(self._last, *(row.end for row in rows)),
            records=self._count,
            turns=sum(row.kind == "turn" and row.depth == 1 for row in rows),
            calls=self._calls,
            tokens=whole.tokens,
            cost=whole.cost,
            gaps=tuple(self._gaps),
            arrows=tuple(self._draw_arrows(flat)),
            rows=rows,
        )

    # -- run segments

    def _begin_segment(self, record: r.RunStarted | r.RunResumed) -> None:
        run = self._runs.get(record.path)
        if run is None:
            run = self._runs[record.path] = self._begin_run(record)
        else:
            self._resume(run, record)
        run.row.begin("segment", record.at)
        run.row.end, run.segment_open = None, True
        if run.turn is not None:  # it had not ended with the segment before
            run.turn.begin("turn", record.at)
            run.turn.end = None
        if isinstance(record, r.RunResumed):
            run.row.add_mark("note", record.at, f"resumed with {record.agent}")
        if not record.path:
            self._name_root(record)

    def _begin_run(self, record: r.RunStarted | r.RunResumed) -> _Run:
        row = GrowingRow("run", record.agent, record.at, self._find_call(record.path), path=record.path)
        if row.parent is not None:
            row.parent.children.append(row)
        if isinstance(record, r.RunStarted) and self._content:
            row.add_fact("input", show_messages(record.input))
        return _Run(row)

    def _find_call(self, path: tuple[str, ...]) -> GrowingRow | None:
        """Return the row of the call around the run at *path*, or the nearest known one; None for the outermost."""
        while path:
            path, call_id = path[:-1], path[-1]
            if (outer := self._runs.get(path)) is not None:
                return outer.calls.get(call_id) or outer.top()
        return None

    def _resume(self, run: _Run, record: r.RunStarted | r.RunResumed) -> None:
        crashed = run.segment_open
        if crashed:
            for path, each in self._runs.items():
                if path[: len(record.path)] == record.path:
                    self._close_run(each, self._last, "cut off: its process died")
        ended = max(
            (phase.end or phase.start for phase in run.row.phases if phase.kind == "segment"), default=self._last
        )
        if record.at > ended:
            run.row.add_phase("pause", ended, record.at, "its process had died" if crashed else "")
        if not record.path:
            self._gaps.append(Gap(ended, max(ended, record.at), crashed))

    def _name_root(self, record: r.RunStarted | r.RunResumed) -> None:
        names: dict[str, Any] = {"workflow": record.workflow, "trace_id": record.trace_id}
        if isinstance(record, r.RunStarted):
            names |= {"run_id": clean(record.run_id), "agent": clean(record.agent)}
        self._head = self._head.replace(**{name: told for name, told in names.items() if told is not None})

    def _close_run(self, run: _Run, at: float, note: str = "") -> None:
        run.segment_open = False
        for row in (run.row, run.turn, run.model, *run.calls.values()):
            if row is not None:
                row.close(at, note=note)
        if run.model is not None and run.model.end is None:
            run.model.end = at

    def _end_run(self, run: _Run, record: r.RunEnded) -> None:
        row = run.row
        self._close_run(run, record.at)
        if run.turn is not None:
            run.turn.end = max(run.turn.start, record.turn_ended_at or record.at)
            run.turn.phases[-1].end = max(run.turn.phases[-1].start, run.turn.end)
        row.end = record.at
        error = "" if record.error is None else show_error(record.error, content=self._content)
        row.endings.append(Ending(record.status, record.at, reason=clean(record.stop_reason or ""), error=error))
        if self._content and record.final_output is not None:
            row.add_fact("final output", show_value(record.final_output, secret=record.secret))

    # -- what happens in a run

    def _fold(self, run: _Run, record: r.Record) -> None:
        match record:
            case r.TurnStarted():
                self._begin_turn(run, record)
            case r.ModelRequested():
                self._request(run, record)
            case r.ModelResponded():
                self._answer(run, record)
            case r.ModelFailed():
                self._fail_request(run, record)
            case r.GuardrailSettled(call_id=None):
                self._judge(run, record)
            case r.GuardrailSettled():
                note = f"{record.stage.replace('_', ' ')} guardrail {record.guardrail}: {record.verdict}"
                self._call(run, record, record.call_id or "").add_phase(
                    "guardrail", record.at - record.duration, record.at, note
                )
            case r.ApprovalRequested():
                self._ask(run, record)
            case r.VerdictGiven():
                self._decide(run, record)
            case r.CallStarted():
                self._start_call(run, record)
            case r.AnswerRequested():
                row = self._call(run, record, record.call_id)
                row.close(record.at)
                row.begin("approval", record.at, "waits for its answer")
            case r.CallAnswered():
                self._take_answer(run, record)
            case r.BodyEnded():
                row = self._call(run, record, record.call_id)
                self._end_body(row, record.at, None)
                row.begin("after", record.at)
            case r.CallSettled():
                self._settle(run, record)
            case r.BatchEnded():
                self._end_turn(run, record.at)
            case r.HandedOff():
                self._hand_off(run, record)
            case r.RunEnded():
                self._end_run(run, record)
            case _:
                self._note(run, record)

    def _note(self, run: _Run, record: r.Record) -> None:
        """Add a mark for a record that isn't a piece of work, to the run or the call that it names."""
        match record:
            case r.CancelRequested(call_id=call_id, by_call=by_call):
                row = run.row if call_id is None else self._call(run, record, call_id)
                by = "the caller" if by_call is None else f"the call {by_call}"
                row.add_mark("cancel_requested", record.at, f"cancellation requested by {by}")
            case r.DeadlinePassed():
                run.row.add_mark("deadline", record.at, "the run's time was over")
            case r.CleanupCut(section=section, call_id=call_id):
                row = run.row if call_id is None else self._call(run, record, call_id)
                row.add_mark("cleanup_cut", record.at, f"cleanup cut at its deadline: {section}")
            case r.InputAdded(call_id=str(call_id)):
                row = self._call(run, record, call_id)
                row.end = max(row.start, record.at)
                row.add_phase(
                    "run",
                    max([row.start, *(one.end or row.start for one in row.phases)]),
                    record.at,
                    "in the background",
                )
                row.add_mark("note", record.at, "the result is there")
            case r.InputAdded(items=items):
                run.row.add_mark("note", record.at, f"input added: {len(items)}")
            case r.InputShown(id=input_id):
                run.row.add_mark("note", record.at, f"input shown: {input_id}")
            case r.InputWithdrawn(id=input_id):
                run.row.add_mark("note", record.at, f"input withdrawn: {input_id}")
            case r.HistoryReplaced(reason="compaction", tokens_before=int(before), tokens=int(after), steps=steps):
                by = f" by {', '.join(steps)}" if steps else ""
                run.row.add_mark("note", record.at, f"history made shorter{by}: {before:,} to {after:,} tokens")
            case r.HistoryReplaced(reason=reason):
                run.row.add_mark("note", record.at, f"history replaced: {reason}")
            case r.GraphChanged(changes=changes):
                run.row.add_mark("note", record.at, f"other definitions: {', '.join(changes)}")
            case r.SandboxOpened(name=name):
                run.row.add_fact("sandbox", name)
            case _:
                pass

    def _begin_turn(self, run: _Run, record: r.TurnStarted) -> None:
        self._end_turn(run, record.at)
        run.turn = turn = self._add("turn", f"Turn {record.turn} · {record.agent}", record, run.row)
        turn.begin("turn", record.at)
        run.model = None

    def _end_turn(self, run: _Run, at: float) -> None:
        if run.turn is not None and run.turn.end is None:
            run.turn.close(at)
            run.turn.end = at
        run.turn = None

    def _hand_off(self, run: _Run, record: r.HandedOff) -> None:
        row = run.calls.get(record.call_id) or self._add("handoff", "", record, run.top())
        row.name = f"{record.source_agent} → {record.target_agent}"
        row.endings.append(Ending("handed_over", record.at))
        row.end = record.at
        for call_id in record.ignored:
            if (ignored := run.calls.get(call_id)) is not None:
                ignored.endings.append(Ending("ignored", record.at, reason="another handoff came first"))
                ignored.end = record.at
        self._end_turn(run, record.at)

    def _judge(self, run: _Run, record: r.GuardrailSettled) -> None:
        top = run.top()
        row = self._add("guardrail", f"{record.guardrail}", record, top, start=record.at - record.duration)
        row.add_phase("guardrail", record.at - record.duration, record.at)
        row.add_fact("stage", record.stage)
        row.end = record.at
        tripped = "the run ends by it" if record.verdict in _TRIPPED else ""
        row.endings.append(Ending(clean(record.verdict), record.at, reason=tripped))
        if record.stage == "input" and run.model in top.children:
            # Above the request that it judges beside.
            top.children.remove(row)
            top.children.insert(top.children.index(run.model), row)

    def _add(
        self, kind: RowKind, name: str, record: r.Record, parent: GrowingRow, *, start: float | None = None
    ) -> GrowingRow:
        at = record.at if start is None else start
        row = GrowingRow(kind, name, at, parent, turn=record.turn, path=record.path)
        parent.children.append(row)
        return row

    # -- the model

    def _request(self, run: _Run, record: r.ModelRequested) -> None:
        run.asked = record.model or run.asked
        if run.model is None:
            name = "model" if run.asked is None else run.asked.name
            run.model = self._add("model", name, record, run.top())
        row = run.model
        row.close(record.at if record.queued_at is None else record.queued_at)
        if record.queued_at is not None and record.queued_at < record.at:
            waited = ", ".join(record.waited_for)
            row.add_phase("queue", record.queued_at, record.at, f"waited for {waited}" if waited else "")
        row.begin("request", record.at, "" if record.attempt == 1 else f"attempt {record.attempt}")
        row.end = None
        if (asked := run.asked) is not None:
            row.add_fact("model", f"{asked.provider}:{asked.name}")
            row.add_fact("server", asked.base_url)

    def _answer(self, run: _Run, record: r.ModelResponded) -> None:
        response = record.response
        row = run.model or self._add("model", "model", record, run.top())
        run.model = row
        phase = row.open_phase("request")
        if phase is not None and record.first_delta_at is not None:
            first = min(max(record.first_delta_at, phase.start), record.at)
            phase.end = first
            row.add_phase("answer", first, record.at)
            row.add_mark("first_token", first, f"first token after {duration(first - phase.start)}")
        row.close(record.at)
        row.end = record.at
        row.endings.append(Ending("answered", record.at, reason=clean(response.finish_reason or "")))
        self._count_usage(row, response.usage, record.cost)
        row.add_fact("answered by", response.model)
        if self._content:
            row.add_fact("text", show_messages(response.items))
            row.add_fact("reasoning", show_reasoning(response.items))
        for hosted in find_hosted_calls(response.items):
            self._add_hosted(row, record, hosted)
        for item in response.items:
            if isinstance(item, ToolCall | HandoffCall):
                self._announce(run, record, item)

    def _count_usage(self, row: GrowingRow, usage: RequestUsage | None, cost: str | None) -> None:
        row.count(None if usage is None else (usage.input_tokens, usage.output_tokens), cost)
        if usage is not None:
            row.add_fact("cached tokens", usage.cached_tokens or None)
            row.add_fact("reasoning tokens", usage.reasoning_tokens or None)

    def _add_hosted(self, model: GrowingRow, record: r.ModelResponded, call: HostedToolCall) -> None:
        row = self._add("hosted", call.kind, record, model, start=model.start)
        row.add_phase("run", model.start, record.at, "made by the provider while it answered")
        row.end = record.at
        row.endings.append(Ending(clean(call.status or "answered"), record.at))
        if self._content:
            row.add_fact("data", show_value(call.data, secret=False) if call.data else None)
            row.add_fact("output", show_value(call.output, secret=False) if call.output is not None else None)

    def _fail_request(self, run: _Run, record: r.ModelFailed) -> None:
        row = run.model or self._add("model", "model", record, run.top())
        run.model = row
        error = show_error(record.error, content=self._content)
        phase = row.open_phase("request") or row.begin("request", record.at)
        phase.kind, phase.note = "failed", f"attempt {record.attempt}: {error}"
        row.close(record.at)
        row.end = record.at
        row.endings.append(Ending("failed", record.at, error=error))
        if record.usage is not None:
            self._count_usage(row, record.usage, None)

    # -- calls

    def _announce(self, run: _Run, record: r.Record, item: ToolCall | HandoffCall) -> None:
        """Add the row of a call that the model has asked for."""
        is_call = isinstance(item, ToolCall)
        self._calls += is_call
        name = qualify_name(item.name, item.namespace if isinstance(item, ToolCall) else None)
        row = run.calls[item.call_id] = self._add("call" if is_call else "handoff", name, record, run.top())
        row.call_id = clean(item.call_id)
        origin = self._origins.origins.get((record.path, item.call_id))
        if is_call and origin is not None:  # of an agent and a function, other rows and the tool's name say it
            row.add_fact("tool of", origin.name)
        if self._content:
            secret = item.secret if isinstance(item, ToolCall) else ()
            row.add_fact("arguments", show_arguments(item.arguments, secret))

    def _call(self, run: _Run, record: r.Record, call_id: str) -> GrowingRow:
        """Return the row of a call; of one that no answer has asked for, a new one."""
        row = run.calls.get(call_id)
        if row is None:
            self._calls += 1
            name = clean(getattr(record, "tool", None) or call_id)
            row = run.calls[call_id] = self._add("call", name, record, run.top())
            row.call_id = clean(call_id)
        return row

    def _ask(self, run: _Run, record: r.ApprovalRequested) -> None:
        row = self._call(run, record, record.call_id)
        row.begin("approval", record.at, "waits for a verdict")
        row.add_fact("asked by policy", record.policy)
        if self._content:
            row.add_fact("asked because", record.reason)

    def _decide(self, run: _Run, record: r.VerdictGiven) -> None:
        row = self._call(run, record, record.call_id)
        word = "approved" if record.approved else "rejected"
        by = f" by {record.by}" if record.by is not None else ""
        if (phase := row.open_phase("approval")) is not None:
            phase.end, phase.note = max(phase.start, record.at), clean(f"{word}{by}")
        row.add_mark("approved" if record.approved else "rejected", record.at, f"{word}{by}")
        row.add_fact("verdict", f"{word}{by}{', for later calls too' if record.always else ''}")
        if self._content:
            row.add_fact("verdict's message", record.message)

    def _take_answer(self, run: _Run, record: r.CallAnswered) -> None:
        row = self._call(run, record, record.call_id)
        by = "nobody answered in time" if record.late else f"answered by {record.by}" if record.by else "answered"
        if (phase := row.open_phase("approval")) is not None:
            phase.end, phase.note = max(phase.start, record.at), clean(by)
        row.add_mark("note", record.at, by)

    def _start_call(self, run: _Run, record: r.CallStarted) -> None:
        row = self._call(run, record, record.call_id)
        row.close(record.at)
        waited = ", ".join(record.waited_for)
        if record.queued_at is not None and record.queued_at < record.at:
            row.add_phase("queue", record.queued_at, record.at, f"waited for {waited}" if waited else "")
        row.begin("run", record.at, "" if record.attempt == 1 else f"attempt {record.attempt}")
        row.end = None
        row.add_fact("waited for", waited)
        row.count(None, record.cost)
        if record.attempt > 1:
            row.add_fact("attempts", record.attempt)
        if self._content:
            row.add_fact("arguments", show_arguments(record.arguments, record.secret))

    def _end_body(self, row: GrowingRow, at: float, outcome: CallOutcome | None) -> None:
        """End the phase of a call's body at *at*; what came after a cancellation is cleanup."""
        phase = row.open_phase("run")
        if phase is None:
            return
        reached = None if outcome is None else outcome.cancelled_at
        if reached is not None and phase.start <= reached <= at:
            phase.end = reached
            row.add_phase("cleanup", reached, at, f"cleanup {outcome.cleanup}" if outcome and outcome.cleanup else "")
        else:
            phase.end = max(phase.start, at)

    def _settle(self, run: _Run, record: r.CallSettled) -> None:
        outcome, row = record.outcome, self._call(run, record, record.call_id)
        body_ended = record.at if record.body_ended_at is None else min(record.body_ended_at, record.at)
        is_body_open = row.open_phase("run") is not None
        self._end_body(row, body_ended, outcome)
        if is_body_open and body_ended < record.at:
            row.add_phase("after", body_ended, record.at)
        if (asked := row.open_phase("approval")) is not None:
            asked.end = max(asked.start, record.at)
        row.close(record.at)
        row.end = record.at
        if outcome.status == "timed_out" and outcome.cancelled_at is not None:
            row.add_mark("timeout", outcome.cancelled_at, "its timeout passed")
        error = "" if record.error is None else show_error(record.error, content=self._content)
        reason = clean(outcome.reason or "") if self._content else ""
        row.endings.append(
            Ending(outcome.status, record.at, outcome.cancelled_by, reason, error, outcome.cleanup, outcome.abandoned)
        )
        if outcome.cancelled_by is not None:
            reached = record.at if outcome.cancelled_at is None else outcome.cancelled_at
            row.ended_by.append(EndedBy(reached, outcome.cancelled_by, outcome.cancelled_by_call))
        self._tell_outcome(row, record)

    def _tell_outcome(self, row: GrowingRow, record: r.CallSettled) -> None:
        outcome = record.outcome
        if outcome.found is not None:
            row.add_fact("found", ", ".join(outcome.found))
        if self._content:
            if record.arguments is not None:
                row.add_fact("arguments", show_arguments(record.arguments, record.secret))
            if outcome.output is not None:
                row.add_fact("output", show_value(outcome.output, secret=outcome.secret))

    # -- who ended whom

    def _draw_arrows(self, flat: list[tuple[GrowingRow, int, int | None]]) -> Iterator[Arrow]:
        positions = {id(row): position for position, (row, _, _) in enumerate(flat)}
        for position, (row, _, _) in enumerate(flat):
            for each in row.ended_by:
                source = self._find_source(row, each)
                yield Arrow(positions[id(source)], position, each.at, each.cause)

    def _find_source(self, row: GrowingRow, each: EndedBy) -> GrowingRow:
        run = self._runs[row.path]
        if each.call_id is not None and (found := run.calls.get(each.call_id)) is not None:
            return found
        if each.cause == "tool":
            return row
        if each.cause == "parent" and run.row.parent is not None:
            return run.row.parent
        if each.cause == "deadline":
            for above in row.above():
                if any(mark.kind == "deadline" for mark in above.marks):
                    return above
        return run.row
