"""Invariants of a streamed run's events: they are the log in its order, and each signal comes at its right point."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from agentloop import events as ev
from agentloop import records as r
from agentloop.items import AssistantMessage, HandoffCall, HandoffOutput, Item, Reasoning, ToolCall, ToolOutput
from agentloop.testing.invariants._invariant import HELD, Findings, broken, invariant
from agentloop.testing.invariants._observation import ObservedLog, Path

Said = tuple[Any, ...]
_OF_AN_ANSWER = (ev.TextDelta, ev.ReasoningDelta, ev.ArgumentsDelta, ev.HostedProgress, ev.RawModelEvent)
_SIGNALS = (*_OF_AN_ANSWER, ev.CallProgress, ev.CustomEvent, ev.UsageNote)


@invariant("accounting")
def events_are_the_log(log: ObservedLog) -> Findings:
    """The events of a run are its log, complete and in its order; a cancellation may cut off the rest.

    Exception: reasoning that led to a call which the model repeats is in no history, and has no event.
    """
    if log.observation.unread is None or not log.records:
        return
    wanted = list_due(log)
    got = [said for event in log.observation.events if (said := of_event(event)) is not None]
    if log.observation.cancellation is not None or log.observation.left or log.observation.reader_left:
        wanted = wanted[: len(got)]  # leaving the stream's block drops the unread events
    for (n, due), said in zip_longest(wanted, got, fillvalue=(len(log.records) - 1, None)):
        if due != said:
            yield broken(f"the event due is {due}, and what was read is {said}", n)
            return
    if got:
        yield HELD


def list_due(log: ObservedLog, path: Path = ()) -> list[tuple[int, Said]]:
    """Return a tuple for each event of the run at *path* or below, with the number of the record that gave it."""
    outputs, depth = _list_releases(log), len(path)
    return [
        (n, said)
        for n, record in enumerate(log.records)
        if record.path[:depth] == path
        for said in (*_of_record(log, n, record), *outputs.get(n, ()))
        if said[0][:depth] == path  # a run that pauses may release outputs of the run around it
    ]


def _of_record(log: ObservedLog, n: int, record: r.Record) -> Iterator[Said]:
    """Yield a tuple for each event that *record* must give, comparable with `of_event`."""
    where = (record.path, record.turn)
    match record:
        case r.RunStarted(agent=agent):
            yield (*where, "agent", agent)
        case r.HandedOff(call_id=call_id, ignored=ignored, target_agent=agent):
            for answered in (call_id, *ignored):
                yield (*where, "item", "HandoffOutput", answered)
            yield (*where, "agent", agent)
        case r.TurnStarted():
            yield (*where, "turn")
        case r.ModelResponded(response=response):
            for item in response.items:
                if not isinstance(item, Reasoning) and _is_new(log, n, record.path, item):
                    yield (*where, "item", *_describe_item(item))
        case r.HistoryReplaced(
            reason="invalid_final_output" | "max_turns" | "usage_limits" | "turns_left", items=items
        ):
            yield from ((*where, "item", *_describe_item(item)) for item in items)
        case r.CallStarted(call_id=call_id):
            yield (*where, "started", call_id)
        case r.CallSettled(call_id=call_id, outcome=outcome):
            yield (*where, "settled", call_id, outcome.status)
        case r.ApprovalRequested(call_id=call_id) | r.AnswerRequested(call_id=call_id):
            yield (*where, "asked", call_id)
        case r.InputShown():
            yield from ((*where, "item", *_describe_item(item)) for item in log.items_of_input(record))
        case r.GuardrailSettled(guardrail=name):
            yield (*where, "judged", name)
        case r.BatchEnded():
            yield (*where, "turn over")
        case r.RunEnded(status=status):
            yield (*where, "end", status)
        case _:
            return


def _list_releases(log: ObservedLog) -> dict[int, list[Said]]:
    """Return, by the number of the record that releases them, the tuples of the outputs' events in model order."""
    found: dict[int, list[Said]] = {}
    for call in log.calls.values():
        for n in call.released:
            ends = [one.outcome for at, one in call.settled if at <= n]
            if ends and ends[-1].output is not None:
                found.setdefault(n, []).append((call.path, call.turn.number, "item", "ToolOutput", call.call_id))
    return found


def _is_new(log: ObservedLog, n: int, path: Path, item: Item) -> bool:
    """Tell whether *item* of the response in record *n* is new: no repetition of an earlier call of the run."""
    if not isinstance(item, ToolCall | HandoffCall) or not item.call_id:
        return True
    run = log.runs.get(path)
    if run is None or run.known.get(item.call_id) is not item:
        return False
    earlier = (
        at for turn in run.turns for at, one in turn.responded if any(item is each for each in one.response.items)
    )
    return next(earlier, n) == n


def _describe_item(item: Item) -> Said:
    name = type(item).__name__
    if isinstance(item, ToolCall | HandoffCall | ToolOutput | HandoffOutput):
        return (name, item.call_id)
    return (name, item.text) if isinstance(item, AssistantMessage) and not item.secret else (name,)


def of_event(event: Any) -> Said | None:
    """Return *event* as a tuple comparable with `list_due`; None for a signal, and for reasoning."""
    where = (event.path, event.turn)
    match event:
        case ev.AgentUpdated(agent=agent):
            return (*where, "agent", agent.name if agent is not None else None)
        case ev.TurnStarted():
            return (*where, "turn")
        case ev.ItemCreated(item=item):
            return None if isinstance(item, Reasoning) else (*where, "item", *_describe_item(item))
        case ev.CallStarted(call=call):
            return (*where, "started", call.call_id)
        case ev.CallSettled(call=call, outcome=outcome):
            return (*where, "settled", call.call_id, outcome.status)
        case ev.ApprovalRequested(request=request) | ev.AnswerRequested(request=request):
            return (*where, "asked", request.call.call_id)
        case ev.GuardrailSettled(result=result):
            return (*where, "judged", result.guardrail.name)
        case ev.TurnEnded():
            return (*where, "turn over")
        case ev.RunEnded(status=status):
            return (*where, "end", status)
        case _ if isinstance(event, _SIGNALS):
            return None
        case _:
            return (*where, type(event).__name__)


@invariant("guards")
def text_waits_for_its_judges(log: ObservedLog) -> Findings:
    """If text is held until the input is judged, nothing of an answer is shown before every guardrail beside the model
    has settled.
    """
    agent = log.observation.agent
    if log.observation.unread is None or agent is None or not log.observation.config.hold_text_until_guarded:
        return
    guards = [*log.observation.config.input_guardrails, *agent.input_guardrails]
    names = {one.name for one in guards if one.run_in_parallel}
    judged: set[str] = set()
    for place, event in enumerate(log.observation.events):
        if isinstance(event, ev.GuardrailSettled) and not event.path:
            judged.add(event.result.guardrail.name)
        elif isinstance(event, _OF_AN_ANSWER) and not event.path and event.turn == 1 and names:
            if names <= judged:
                yield HELD
            else:
                late = sorted(names - judged)
                yield broken(f"event {place}: a part of the answer was shown before {late} had judged the input")
