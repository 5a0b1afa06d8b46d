"""Invariants of model requests: the items shown from turn to turn, the tool choice, the timeout of a request, and the
pieces of an answer that a reader was shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agentloop import events as ev
from agentloop import records as r
from agentloop.config import RunConfig
from agentloop.handoffs import HandoffInputData, target_of
from agentloop.handoffs._history import nest_history
from agentloop.items import (
    AssistantMessage,
    HandoffCall,
    HandoffOutput,
    Item,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.outcomes import SUCCESSES
from agentloop.testing.invariants._ends import AskedRequest, list_requests
from agentloop.testing.invariants._invariant import HELD, Findings, broken, format_path, invariant
from agentloop.testing.invariants._observation import ObservedLog, ObservedRun, ObservedTurn, Path

Key = tuple[str, str]


# ---------------------------------------------------------------------------------------------- tool choice, time


@invariant("accounting")
def a_tool_choice_is_dropped_once_obeyed(log: ObservedLog) -> Findings:
    """An agent's tool choice is sent until a turn of the agent with calls was accepted, and not after it, also if the
    run was resumed in between; an agent that doesn't reset its choice sends it in every turn.
    """
    for run in log.runs.values():
        for turn, n, request, _ in list_requests(log, run):
            agent = log.agent_named(turn.agent)
            if agent is None:
                continue
            wanted = agent.model_settings.resolve(log.config(run.path).model_settings).tool_choice
            if wanted is None:
                continue
            accepted = (one for one in run.turns if one.agent == turn.agent and one.calls)
            if agent.reset_tool_choice and any(at < n for one in accepted for at in one.accepted):
                wanted = None
            if request.tool_choice == wanted:
                yield HELD
            else:
                yield broken(f"turn {turn.number} was asked with the tool choice {request.tool_choice!r}", n)


# ---------------------------------------------------------------------------------------------- shown pieces


_PIECES: dict[Any, str] = {ev.TextDelta: "text", ev.ReasoningDelta: "thoughts"}


@invariant("accounting")
def an_answer_is_what_its_pieces_are(log: ObservedLog) -> Findings:
    """The pieces that a reader was shown in a turn make up its answer, reasoning and arguments included, and the parts
    before it that the provider paused: no other attempt of the turn has shown any.
    """
    whole = log.observation.cancellation is None and not log.observation.left and not log.observation.reader_left
    if log.observation.unread is None or not log.observation.faultless or not whole:
        return
    shown: dict[tuple[Path, int], dict[Key, str]] = {}
    for event in log.observation.events:
        for of, text in _split_event(event):
            _append_text(shown.setdefault((event.path, event.turn), {}), of, text)
    for turn in log.turns:
        again = [one for one in log.turns if (one.path, one.number) == (turn.path, turn.number)]
        if len(again) > 1 or not turn.responded or turn.responded[-1][1].response.paused:
            continue  # several segments, or an answer that isn't whole
        n = turn.responded[-1][0]
        said: dict[Key, str] = {}
        for item in (item for _, record in turn.responded for item in record.response.items):
            for of, text in _split_item(item):
                _append_text(said, of, text)
        pieces = shown.get((turn.path, turn.number), {})
        if said != pieces:
            yield broken(
                f"turn {turn.number} of {format_path(turn.path)} says {said}, and a reader was shown {pieces}", n
            )
        elif said:
            yield HELD


def _append_text(texts: dict[Key, str], of: Key, text: str) -> None:
    if text:
        texts[of] = texts.get(of, "") + text


def _split_event(event: Any) -> Iterator[tuple[Key, str]]:
    if type(event) in _PIECES:
        yield (_PIECES[type(event)], ""), event.text
    elif isinstance(event, ev.ArgumentsDelta):
        yield ("arguments", event.call_id), event.delta


def _split_item(item: Item) -> Iterator[tuple[Key, str]]:
    if isinstance(item, AssistantMessage):
        yield ("text", ""), item.text
    elif isinstance(item, Reasoning):
        yield ("thoughts", ""), "".join(item.summary)
    elif isinstance(item, ToolCall | HandoffCall):
        yield ("arguments", item.call_id), item.arguments


# ---------------------------------------------------------------------------------------------- histories


def _key(item: Item) -> Key:
    """Return a key of *item*: its kind with its call id or its text. Handoffs and tool calls share the kind "call"."""
    match item:
        case ToolCall(call_id=call_id) | HandoffCall(call_id=call_id):
            return "call", call_id
        case HandoffOutput(call_id=call_id):
            return "output", call_id
        case ToolOutput(call_id=call_id, output=output):
            return "output", call_id if item.secret else f"{call_id}: {output}"
        case AssistantMessage(text=text) | UserMessage(text=text) | SystemMessage(text=text):
            return type(item).__name__, "" if item.secret else text
        case _:
            return type(item).__name__, ""


class _UnknownHistory(Exception):
    """The expected items of a request can't be computed."""


@invariant("accounting")
def histories_grow_by_what_was_said(log: ObservedLog) -> Findings:
    """Each request shows the items of the request before, then its answer, then the outputs of its calls in their
    order, and nothing else; after a handoff, the result of its input filter on these items, or a summary.
    """
    for run in log.runs.values():
        if _is_chosen_elsewhere(log, run):
            continue
        requests = list_requests(log, run)
        first: Sequence[Item] = ()
        for place, (turn, n, request, _) in enumerate(requests):
            if place == 0:
                first = request.items
                continue
            before = requests[place - 1]
            if turn is before[0]:  # another attempt, or the request for the rest of an answer that was paused
                wanted = [*before[2].items, *_list_kept_items(turn, before[1], n)]
            else:
                try:
                    wanted, replaced = _predict_items(log, run, requests[:place], first, n)
                except _UnknownHistory:
                    break
                first = request.items if replaced else first
            if [_key(item) for item in request.items] == [_key(item) for item in wanted]:
                yield HELD
            else:
                lists = [[_key(item) for item in items] for items in (request.items, wanted)]
                yield broken(
                    f"{format_path(run.path)}: the model was shown {lists[0]}, and {lists[1]} was due", before[1], n
                )


def _is_chosen_elsewhere(log: ObservedLog, run: ObservedRun) -> bool:
    config, first = log.config(run.path), log.records[run.began[0]]
    kept = isinstance(first, r.RunStarted) and first.kept
    return kept or config.call_model_input_filter is not None or config.handoff_input_filter is not None


def _list_kept_items(turn: ObservedTurn, since: int, until: int) -> list[Item]:
    """Return the items of a turn's answers between two records without repeated calls and the reasoning for these."""
    kept: list[Item] = []
    for at, record in turn.responded:
        if not since < at < until:
            continue
        for item in record.response.items:
            if any(item is one for one in turn.repeats):
                while kept and isinstance(kept[-1], Reasoning):
                    kept.pop()
                continue
            kept.append(item)
    return kept


def _predict_items(
    log: ObservedLog, run: ObservedRun, before: Sequence[AskedRequest], first: Sequence[Item], until: int
) -> tuple[list[Item], bool]:
    """Return the items that the request at record *until* must show, and True if a handoff replaced them.

    *before* are the requests before it; *first* are the items of the run's first request, or of the first request
    after the last handoff that replaced the history.

    Raises:
        _UnknownHistory: if a handoff has a filter that can't be repeated here, or the summary would hold secrets.
    """
    turn, asked, request, _ = before[-1]
    begun = len(next(one.items for other, _, one, _ in before if other.number == turn.number))
    shown = request.items
    items, replaced = [*shown, *_list_kept_items(turn, asked, until)], False
    for n in range(asked, until):
        record = log.records[n]
        if record.path != run.path:
            continue
        if isinstance(record, r.BatchEnded):
            items += _list_outputs(turn, n)
        elif isinstance(record, r.HandedOff):
            answers = _make_handoff_outputs(record)
            filtered = _apply_handoff(log, turn, record, [*items, *answers], begun, len(first))
            items, replaced = [*items, *answers] if filtered is None else filtered, filtered is not None
        elif isinstance(record, r.InputShown):
            items += log.items_of_input(record)
        elif isinstance(record, r.HistoryReplaced) and record.added:
            items += record.items
    return items, replaced


def _list_outputs(turn: ObservedTurn, n: int) -> list[Item]:
    ends = ((call, [one for at, one in call.settled if at < n]) for call in turn.calls)
    last = ((call, ended[-1].outcome) for call, ended in ends if ended)
    return [
        ToolOutput(
            call.call_id,
            outcome.output,
            kind=call.call.kind,
            is_error=outcome.status not in SUCCESSES,
            secret=outcome.secret,
        )
        for call, outcome in last
        if outcome.output is not None
    ]


def _make_handoff_outputs(record: r.HandedOff) -> list[Item]:
    ids = (record.call_id, *record.ignored)
    return [HandoffOutput(call_id, "", record.source_agent, record.target_agent) for call_id in ids]


def _apply_handoff(
    log: ObservedLog, turn: ObservedTurn, record: r.HandedOff, items: list[Item], shown: int, first: int
) -> list[Item] | None:
    """Return the items that the target of a handoff is shown in place of *items*; None if it is shown them as they are.

    The first *shown* of *items* were in the first request of the source agent's last turn, the first *first* are the
    input history.

    Raises:
        _UnknownHistory: as `_predict_items` does.
    """
    agent = log.agent_named(record.source_agent)
    entries = [target_of(entry) for entry in agent.handoffs] if agent is not None else []
    taken = next((one for one in entries if one.agent.name == record.target_agent), None)
    if taken is None:
        raise _UnknownHistory
    if taken.input_filter is not None:
        data = log.observation.maker.filter_handoff(
            taken.input_filter,
            HandoffInputData(
                input_history=tuple(items[:first]),
                pre_handoff_items=tuple(items[first:shown]),
                new_items=tuple(items[shown:]),
            ),
        )
        if data is None:
            raise _UnknownHistory
        if data.input_items is not None:
            return list(data.input_items)
        return [*data.input_history, *data.pre_handoff_items, *data.new_items]
    config: RunConfig = log.config(turn.path)
    nest = taken.nest_handoff_history if taken.nest_handoff_history is not None else config.nest_handoff_history
    if nest is False:
        return None
    if any(isinstance(one, ToolOutput | AssistantMessage | ToolCall) and one.secret for one in items):
        raise _UnknownHistory
    return list(nest_history([*items[: len(items) - 1 - len(record.ignored)], *_make_handoff_answers(record)]))


def _make_handoff_answers(record: r.HandedOff) -> list[Item]:
    source, target = record.source_agent, record.target_agent
    taken = HandoffOutput(record.call_id, f"Handed over to {target}.", source, target)
    ignored = "Multiple handoffs detected, ignoring this one."
    return [taken, *(HandoffOutput(call_id, ignored, source, source) for call_id in record.ignored)]
