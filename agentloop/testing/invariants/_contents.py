"""Invariants of what a run holds: what its model is shown and streams, what its session gets, what stays secret.

Your model, your session, and your functions that choose what a model is shown can break them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from agentloop import events as ev
from agentloop import records as r
from agentloop._storage.record_codec import encode, record_to_json, record_to_line
from agentloop._storage.withholding import Secrets
from agentloop.exceptions import AgentLoopError
from agentloop.items import (
    AssistantMessage,
    HandoffCall,
    HandoffOutput,
    HostedToolCall,
    Item,
    Reasoning,
    ToolCall,
    ToolOutput,
)
from agentloop.results import RunResult
from agentloop.testing.invariants._invariant import HELD, Findings, broken, invariant
from agentloop.testing.invariants._observation import ObservedLog, Path

CALLS = (ToolCall, HandoffCall)
OUTPUTS = (ToolOutput, HandoffOutput)
_FOLLOWERS = (AssistantMessage, ToolCall, HandoffCall, HostedToolCall, Reasoning)


@invariant("execution")
def models_see_outputs_in_order(log: ObservedLog) -> Findings:
    """Each request shows a model the outputs of one turn in the order of their calls."""
    calls = log.calls
    for path, items in log.observation.shown or ():
        outputs = [item for item in items if isinstance(item, ToolOutput)]
        if len(outputs) < 2:
            continue
        order = [calls.get((path, item.call_id)) for item in outputs]
        known = [(call.turn.n, call.index) for call in order if call is not None]
        if known != sorted(known):
            yield broken(f"the model was shown outputs out of order: {_ids(items)}")
        elif len(known) > 1:
            yield HELD


def _ids(items: Iterable[object]) -> str:
    return ", ".join(item.call_id for item in items if isinstance(item, ToolOutput))


def faults_of_history(items: Sequence[Item]) -> Iterator[str]:
    """Yield one sentence for each reason why no model may be shown *items*."""
    calls: dict[str, int] = {}
    outputs: dict[str, int] = {}
    thoughts: list[int] = []
    for place, item in enumerate(items):
        if isinstance(item, CALLS):
            calls[item.call_id] = place
        elif isinstance(item, Reasoning):
            thoughts.append(place)
        elif isinstance(item, OUTPUTS):
            if item.call_id in outputs and outputs[item.call_id] > calls.get(item.call_id, -1):
                yield f"call {item.call_id} has two outputs"
            if item.call_id not in calls:
                yield f"an output of call {item.call_id} stands before its call, or without it"
            outputs[item.call_id] = place
    for call_id, place in calls.items():
        if outputs.get(call_id, -1) < place:
            yield f"call {call_id} has no output"
    for place in thoughts:
        if place + 1 == len(items) or not isinstance(items[place + 1], _FOLLOWERS):
            yield "reasoning has lost what it led to"


@invariant("accounting")
def history_is_valid(log: ObservedLog) -> Findings:
    """In each request to a model every call has exactly one output after it, and reasoning keeps its follower."""
    for path, items in log.observation.shown or ():
        faults = list(faults_of_history(items))
        if faults:
            yield broken(f"run {'/'.join(path) or '(the root)'} showed its model: {'; '.join(faults)}")
        else:
            yield HELD
    result = log.observation.result
    if isinstance(result, RunResult) and result.status != "interrupted":
        faults = list(faults_of_history(result.to_input_list()))
        if faults:
            yield broken(f"the result's input list: {'; '.join(faults)}")
        else:
            yield HELD


@invariant("accounting")
def sessions_get_each_item_once(log: ObservedLog) -> Findings:
    """A session gets the items that the run added, each once and in order, calls together with their outputs.

    A write may be missing if the timeout of the run and its cleanup grace cut it off. Where a compaction has made the
    history shorter, the session may have the shorter one in the place of its earlier items.
    """
    saved = log.observation.saved
    if saved is None:
        return
    before, data = list(log.observation.saved_before), log.observation.result
    if list(saved[: len(before)]) != before and any(map(_is_compaction, log.records)):
        if faults := list(faults_of_history(saved)):
            yield broken(f"the session holds: {'; '.join(faults)}")
        shown = data.to_input_list() if isinstance(data, RunResult) and data.status == "completed" else []
        if shown and list(map(repr, saved[-len(shown) :])) != list(map(repr, shown)):
            yield broken(
                f"the session ends with {_format_kinds(saved[-len(shown) :])}, not with what the model is shown"
            )
        yield HELD
        return
    if list(saved[: len(before)]) != before:
        yield broken("the session's earlier items have changed")
        return
    fresh = list(saved[len(before) :])
    ids = Counter(
        (type(item).__name__, item.call_id)
        for item in fresh
        if isinstance(item, ToolCall | HandoffCall | ToolOutput | HandoffOutput)
    )
    doubles = [f"{kind} {call_id}" for (kind, call_id), count in ids.items() if count > 1]
    if doubles:
        yield broken(f"the session holds twice: {', '.join(doubles)}")
    faults = list(faults_of_history(fresh))
    if faults:
        yield broken(f"the session holds: {'; '.join(faults)}")
    cut = any(isinstance(one, r.CleanupCut) and one.section == "session save" for one in log.records)
    if isinstance(data, RunResult) and data.status == "completed" and not cut:
        wanted = [*data.input, *data.new_items]
        # A handoff's call is held back until it is answered, so the order may differ from the run's.
        if Counter(map(repr, fresh)) != Counter(map(repr, wanted)):
            yield broken(f"the session got {_format_kinds(fresh)}, the run has {_format_kinds(wanted)}")
    if fresh:
        yield HELD


def _is_compaction(record: r.Record) -> bool:
    return isinstance(record, r.HistoryReplaced) and record.reason == "compaction" and not record.path


def _format_kinds(items: Iterable[Item]) -> str:
    return ", ".join(f"{type(item).__name__} {getattr(item, 'call_id', '')}".strip() for item in items)


@invariant("accounting")
def secrets_stand_nowhere(log: ObservedLog) -> Findings:
    """No secret text appears in an error of the library, a span, the text of an event or a record, or a line of a
    journal. The message of an application's error is not checked.
    """
    canaries = log.observation.canaries
    if not canaries:
        return
    places = list(_list_texts(log))
    for canary in canaries:
        for where, text in places:
            if canary in text:
                yield broken(f"a secret stands in {where}")
    yield HELD


def _list_texts(log: ObservedLog) -> Iterator[tuple[str, str]]:
    codec, error = log.observation.maker.codec, log.observation.error
    while error is not None:
        words = [str(error)] if isinstance(error, AgentLoopError) else []
        yield f"the error {type(error).__name__}", " ".join([*words, *getattr(error, "__notes__", ())])
        error = error.__cause__
    for _, span in log.observation.spans or ():
        yield f"span {span.kind} {span.name}", f"{span.error} {span.data!r}"
    for n, record in enumerate(log.records):
        yield f"record {n}", repr(record)
        yield f"the journal's line of record {n}", record_to_line(record).decode()
        if codec is not None:
            yield f"the sealed line of record {n}", encode(record_to_json(record, Secrets(codec))).decode()
    for place, event in enumerate(log.observation.events):
        yield f"event {place}", repr(event)


@invariant("accounting")
def signals_have_their_place(log: ObservedLog) -> Findings:
    """Reports of a call come between its start and its end; a message equals the text pieces shown before it."""
    running: set[tuple[Path, str]] = set()
    pieces: dict[Path, str] = {}
    for place, event in enumerate(log.observation.events):
        match event:
            case ev.CallStarted(call=call):
                running.add((event.path, call.call_id))
            case ev.CallSettled(call=call):
                running.discard((event.path, call.call_id))
            case ev.CallProgress(call=call) | ev.CustomEvent(call=call):
                if (event.path, call.call_id) in running:
                    yield HELD
                else:
                    yield broken(f"event {place}: a report of call {call.call_id}, which doesn't run")
            case ev.TurnStarted():
                pieces[event.path] = ""
            case ev.TextDelta(text=text):
                pieces[event.path] = pieces.get(event.path, "") + text
            case ev.ItemCreated(item=AssistantMessage(text=text)) if text and log.observation.faultless:
                said = pieces.get(event.path, "")
                if said.startswith(text):
                    pieces[event.path] = said[len(text) :]
                    yield HELD
                else:
                    yield broken(f"event {place}: the message {text!r} came in the pieces {said!r}")
            case _:
                pass
