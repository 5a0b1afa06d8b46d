"""The events that follow from records: what a stream shows of a log, the same for a run under way and a stored one.

`events_of` is the only place where a record becomes events. A stream calls it as each record is appended;
`RunState.events` folds a stored log and calls it for each record again, so that a consumer who has lost the connection
gets what it missed. Signals (pieces of an answer, progress) follow from no record and are not made here.

An event's id is `RECORD.INDEX`: the position of its record in the log, and its position among the events of that
record, both from 0. Ids grow along the log, over all run segments, and mean the same event in a live run as in the log
that is read later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from agentloop import events as ev
from agentloop import records as r
from agentloop._core.call_state import make_interruption, make_question, with_arguments
from agentloop._core.guardrail_results import restore_result
from agentloop._core.run_fold import RunFold
from agentloop.agents import Agent
from agentloop.items import Item
from agentloop.model_events import ModelInfo, ModelResponse
from agentloop.usage import RequestUsage

FindAgent: TypeAlias = Callable[[tuple[str, ...]], Agent[Any, Any] | None]
"""Returns the agent at work in the run at a path."""


def _finish_reason(state: RunFold) -> str | None:
    return state.responses[-1].finish_reason if state.responses else None


def _created(items: Iterable[Item], at: r.Record | RunFold) -> list[ev.Event]:
    return [ev.ItemCreated(item, path=at.path, turn=at.turn) for item in items]


def events_of(record: r.Record, root: RunFold, find_agent: FindAgent) -> list[ev.Event]:
    """Return the events that follow from *record*, in order; most records have one, or none.

    Args:
        record: A record of *root*'s tree, which must be the last one that has been folded.
        root: The fold of the outermost run.
        find_agent: Called for a record that makes an agent active.
    """
    state = root.at(record.path)
    assert state is not None  # the record has been folded
    where: Any = {"path": record.path, "turn": record.turn}
    match record:
        case r.RunStarted():
            return [ev.AgentUpdated(find_agent(record.path), **where)]
        case r.HandedOff(ignored=ignored):
            items = state.new_items[-1 - len(set(ignored)) :]
            return [*_created(items, record), ev.AgentUpdated(find_agent(record.path), **where)]
        case r.TurnStarted():
            return [ev.TurnStarted(**where)]
        case r.ModelResponded():
            return [*_created(state.response or (), record), *_note_usage(root.records, state)]
        case r.InputShown(id=input_id):
            return _created(state.inputs[input_id].items, record)
        case r.HistoryReplaced(reason=reason, items=items) if reason in _SAID:
            return _created(items, record)
        case r.BatchEnded():
            return [ev.TurnEnded(_finish_reason(state), **where)]
        case r.RunResumed():
            return _created(state.just_released, state)
        case r.RunEnded(status=status):
            return [ev.RunEnded(status, _finish_reason(state), **where), *_released_around(record, root)]
        case _:
            return _events_of_calls(record, state, find_agent, where)


def _released_around(record: r.RunEnded, root: RunFold) -> list[ev.Event]:
    """Return the items of the run around a nested one, which its end has released."""
    outer = root.at(record.path[:-1]) if record.path else None
    return [] if outer is None else _created(outer.just_released, outer)


def _events_of_calls(record: r.Record, state: RunFold, find_agent: FindAgent, where: Any) -> list[ev.Event]:
    match record:
        case r.CallStarted(call_id=call_id):
            call = state.calls[call_id]
            return [ev.CallStarted(with_arguments(call.call, call.arguments), **where)]
        case r.CallSettled(call_id=call_id, outcome=outcome):
            return [ev.CallSettled(state.calls[call_id].call, outcome, **where), *_created(state.just_released, state)]
        case r.ApprovalRequested(call_id=call_id):
            return [ev.ApprovalRequested(make_interruption(state.calls[call_id].call, record), **where)]
        case r.AnswerRequested(call_id=call_id):
            asked = ev.AnswerRequested(make_question(state.calls[call_id], record), **where)
            return [asked, *_created(state.just_released, state)]
        case r.GuardrailSettled(result=result):
            if result is None:  # the log was stored: it holds no objects
                result = restore_result(record, state, find_agent(record.path))
            return [ev.GuardrailSettled(result, **where)]
        case _:
            return []


def _note_usage(records: Sequence[r.Record], state: RunFold) -> Iterator[ev.UsageNote]:
    """Yield the note on the last answer of *state*, if there is one to make. Nearly always two numbers tell."""
    now, size = _cached(state.responses[-1]), len(state.responses)
    back = next((n for n in range(2, size + 1) if _cached(state.responses[-n]) >= 0), 0) if now >= 0 else 0
    if back and is_bust(_cached(state.responses[-back]), now):
        own = [record for record in records if record.path == state.path]
        answers = [at for at, record in enumerate(own) if isinstance(record, r.ModelResponded)]
        yield from find_usage_notes(own[answers[-back] :])


def _cached(response: ModelResponse) -> int:
    """Return the tokens that were read from the cache for *response*; -1 without complete usage: they aren't known."""
    return response.usage.cached_tokens if response.usage is not None and response.usage.complete else -1


def is_bust(before: int, now: int) -> bool:
    """Tell whether tokens read from a cache have fallen by more than half."""
    return 2 * now < before


def find_usage_notes(records: Iterable[r.Record]) -> Iterator[ev.UsageNote]:
    """Yield a note on each answer in *records* for which the provider's cache held much less than for the one before.

    An answer without complete usage says nothing of the cache, and is passed over. Where the run itself has changed the
    history in between, by a compaction or a handoff, or another model has answered, nothing is said.
    """
    read: dict[tuple[str, ...], RequestUsage] = {}
    for record in records:
        match record:
            case r.ModelResponded(path=path, response=ModelResponse(usage=RequestUsage(complete=True) as now)):
                before, read[path] = read.get(path, now), now
                if before.model == now.model and is_bust(before.cached_tokens, now.cached_tokens):
                    yield ev.UsageNote(before.cached_tokens, now.cached_tokens, path=path, turn=record.turn)
            case r.HandedOff() | r.HistoryReplaced(added=False) | r.ModelRequested(model=ModelInfo()):
                read.pop(record.path, None)
            case _:
                pass


_SAID = frozenset({"invalid_final_output", "max_turns", "usage_limits", "turns_left"})
"""Reasons for which the library itself says something to the model, between two of its answers."""
