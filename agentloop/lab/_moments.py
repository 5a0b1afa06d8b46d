"""A run at one moment: the state of a fold after a record, in words for people. Pure.

history     what the model would be shown next, and what it may call
waiting     what has not ended: requests, calls, verdicts, with what they wait for
limits      who holds which limit, and how much of the run's turns, tokens and cost is spent

A page that shows any moment gets all of them by `list_moments`: after each record only what it changed, because a whole
history for each of ten thousand records would be a hundred million lines.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agentloop import records as r
from agentloop._common.masking import MASK, mask_arguments
from agentloop._common.values import Value
from agentloop._core.run_fold import RunFold
from agentloop._storage.withholding import WithheldText
from agentloop.exceptions import UserValueError
from agentloop.items import (
    AssistantMessage,
    Content,
    HandoffCall,
    Item,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.lab._runs import text_of
from agentloop.settings import JsonLimits
from agentloop.state import apply_checked
from agentloop.tracing._timeline_content import SEALED, show_arguments, show_value


class MomentCall(Value, frozen=True, kw_only=True):
    """A call that hasn't ended at a moment.

    Attributes:
        path, turn, call_id, tool: Its place and its tool.
        arguments: Its JSON text, secret arguments masked.
        state: `"waits for a verdict"`, `"approved"`, `"waits for its turn"` or `"runs"`.
        since: Wall-clock seconds of the record that says so.
    """

    path: tuple[str, ...]
    turn: int
    call_id: str
    tool: str
    arguments: str
    state: str
    since: float


class MomentRun(Value, frozen=True, kw_only=True):
    """One run of the tree at a moment.

    Attributes:
        path: Its place: `()` for the outermost.
        agent, turn, max_turns: The agent at work, the turn, and the limit of turns.
        status: How it ended; None if it hasn't.
        tools, handoffs: What the model may call in this turn.
        history: The items that the model would be shown, a line each.
        requested: True while a model works on its request.
        tokens, cost: What it and the runs nested in it have used.
        calls: The calls that haven't ended.
    """

    path: tuple[str, ...]
    agent: str
    turn: int
    max_turns: int | None
    status: str | None
    tools: tuple[str, ...]
    handoffs: tuple[str, ...]
    history: tuple[str, ...]
    requested: bool
    tokens: int
    cost: str | None
    calls: tuple[MomentCall, ...] = ()


class Moment(Value, frozen=True, kw_only=True):
    """A run after its record number `n`, counted from 1.

    Attributes:
        n, of: The record's number, and how many there are.
        record: The kind of that record, and its call or name.
        at: Its wall-clock seconds.
        runs: The outermost run, then those nested in it that haven't ended.
    """

    n: int
    of: int
    record: str
    at: float
    runs: tuple[MomentRun, ...]

    def __str__(self) -> str:
        return "\n".join(self.describe())

    def describe(self, parts: Sequence[str] = ("request", "waiting", "limits")) -> Iterator[str]:
        """Yield the lines of *parts*: `"request"`, `"history"`, `"waiting"`, `"limits"`."""
        yield f"after record {self.n} of {self.of}: {self.record}"
        for run in self.runs:
            place = f" (in the run of call {'/'.join(run.path)})" if run.path else ""
            state = run.status or "under way"
            yield f"{run.agent}{place}: turn {run.turn}, {state}"
            if "request" in parts:
                yield f"  may call: {', '.join((*run.tools, *run.handoffs)) or 'nothing'}"
            if "request" in parts or "history" in parts:
                yield from (f"  {line}" for line in run.history)
            if "waiting" in parts:
                yield from (f"  {line}" for line in _describe_waiting(run, self.at))
            if "limits" in parts:
                most = "no limit" if run.max_turns is None else f"of {run.max_turns}"
                cost = "" if run.cost is None else f", cost {run.cost}"
                yield f"  spent: {run.turn} turns ({most}), {run.tokens} tokens{cost}"


def _describe_waiting(run: MomentRun, now: float) -> Iterator[str]:
    if run.requested:
        yield "the model works on its request"
    for call in run.calls:
        yield f"{call.call_id} {call.tool} {call.arguments} {call.state}, for {max(0.0, now - call.since):.2f} s"


def moment_at(records: Sequence[r.Record], n: int) -> Moment:
    """Return the run of *records* after record *n*, counted from 1: a fold of that part of the log.

    Raises:
        UserValueError: the log has no such record.
        StateError: a record doesn't fit those before it.

    Example:
        from agentloop import Agent, Runner, lab
        from agentloop.testing import ScriptedModel, say

        result = Runner.run_sync(Agent("a", model=ScriptedModel([say("hello")])), "hi")
        moment = lab.moment_at(result.records, 3)
        print(moment.record, moment.runs[0].requested)  # ModelRequested True
    """
    if not 1 <= n <= len(records):
        raise UserValueError(f"record: expected from 1 to {len(records)}, got {n}")
    fold = RunFold(limits=JsonLimits())
    for record in itertools.islice(records, n):
        fold.apply(record)
    return read_moment(fold, records[:n], of=len(records))


def read_moment(fold: RunFold, records: Sequence[r.Record], *, of: int) -> Moment:
    """Return the moment of *fold*, the state after *records*."""
    last = records[-1]
    index: dict[Any, r.Record] = {}
    for record in records:
        _note(index, record)
    runs = tuple(_read_run(one, index, tuple(map(_describe_item, one.history))) for one in _list_runs(fold))
    return Moment(n=len(records), of=of, record=_name(last), at=last.at, runs=runs)


def list_moments(records: Sequence[r.Record]) -> dict[str, Any]:
    """Return the run of *records* after each of them as JSON values, for `tracing.render_html`; secrets are masked.

    `lines` are the texts, `calls` the calls under way, each once. `steps` has for each record its name, its wall-clock
    seconds, the runs that it has changed by path, and the paths of those that have ended. Of a run it has the fields of
    a `MomentRun` that are new; of its history how many lines stay, and the positions of those that follow.

    Raises:
        StateError: a record doesn't fit those before it.

    Example:
        from agentloop import Agent, Runner, lab
        from agentloop.testing import ScriptedModel, say
        from agentloop.tracing import read_timeline, render_html

        records = Runner.run_sync(Agent("a", model=ScriptedModel([say("hello")])), "hi").records
        page = render_html(read_timeline(records), moments=lab.list_moments(records))
        print("State at a record" in page)  # True
    """
    made = MomentLog()
    for record in records:
        made.add(record)
    return made.since(0, 0, 0)


class MomentLog:
    """The moments of a log that may grow, as `list_moments` has them. Each list is only ever appended to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.calls: list[list[Any]] = []
        self.steps: list[list[Any]] = []
        self._fold, self._index = RunFold(limits=JsonLimits()), dict[Any, r.Record]()
        self._places: dict[str, int] = {}
        self._known_calls: dict[MomentCall, int] = {}
        self._shown: dict[tuple[str, ...], list[Item]] = {}
        self._before: dict[tuple[str, ...], dict[str, Any]] = {}

    def since(self, lines: int, calls: int, steps: int) -> dict[str, Any]:
        """Return the moments without so many of each list."""
        return {"lines": self.lines[lines:], "calls": self.calls[calls:], "steps": self.steps[steps:]}

    def add(self, record: r.Record) -> None:
        """Add the moment after *record*.

        Raises:
            StateError: it doesn't fit those before it.
        """
        apply_checked(self._fold, [record])
        _note(self._index, record)
        changed, now = {}, set()
        for one in _list_runs(self._fold):
            run, items = _read_run(one, self._index), one.history
            now.add(run.path)
            known = self._shown.get(run.path, [])
            keep = _count_kept(known, items, is_new=isinstance(record, r.HistoryReplaced | r.RunResumed))
            added = [self._place(_describe_item(item)) for item in items[keep:]]
            state: dict[str, Any] = {name: getattr(run, name) for name in _PLAIN_FIELDS}
            state["tools"] = self._place(", ".join((*run.tools, *run.handoffs)))
            state["calls"] = list(map(self._place_call, run.calls))
            old = self._before.get(run.path, {})
            new = {name: value for name, value in state.items() if name not in old or old[name] != value}
            if added or keep < len(known):
                new["history"], self._shown[run.path] = [keep, added], items[:]
            if new:
                changed["/".join(run.path)] = new
            self._before[run.path] = state
        gone = [path for path in self._before if path not in now]
        for path in gone:
            del self._before[path]
            self._shown.pop(path, None)
        self.steps.append([_name(record), record.at, changed, ["/".join(path) for path in gone]])

    def _place(self, text: str) -> int:
        place = self._places.setdefault(text, len(self.lines))
        if place == len(self.lines):
            self.lines.append(text)
        return place

    def _place_call(self, call: MomentCall) -> int:
        place = self._known_calls.setdefault(call, len(self.calls))
        if place == len(self.calls):
            self.calls.append([call.call_id, call.tool, self._place(call.arguments), call.state, call.since])
        return place


_PLAIN_FIELDS = ("agent", "turn", "max_turns", "status", "requested", "tokens", "cost")


def _count_kept(known: Sequence[Item], items: Sequence[Item], *, is_new: bool) -> int:
    """Return how many items at the beginning of a history are those known; it only grows unless it *is_new*."""
    if not is_new and len(items) >= len(known):
        return len(known)
    same = itertools.takewhile(lambda pair: pair[0] is pair[1], zip(known, items, strict=False))
    return sum(1 for _ in same)


def _name(record: r.Record) -> str:
    name = getattr(record, "call_id", None) or getattr(record, "guardrail", None)
    return " ".join(filter(None, [type(record).__name__, name]))


def _note(index: dict[Any, r.Record], record: r.Record) -> None:
    """Note *record* in *index*: the last one of a kind by place, of turns, requests, starts and verdicts of calls."""
    match record:
        case r.CallStarted() | r.ApprovalRequested() | r.VerdictGiven():
            index[type(record), record.path, record.call_id] = record
        case r.TurnStarted():
            index[r.TurnStarted, record.path] = record
        case r.ModelRequested() | r.ModelResponded() | r.ModelFailed():
            index[r.ModelRequested, record.path] = record
        case r.RunResumed():  # what had started runs no more
            for place in [place for place in index if place[0] is r.CallStarted]:
                del index[place]
        case _:
            pass


def _list_runs(fold: RunFold) -> Iterator[RunFold]:
    """Yield the run of *fold*, and the nested ones under way."""
    yield fold
    for nested in fold.nested.values():
        if nested.ended is None or nested.ended.resumable:
            yield from _list_runs(nested)


def _read_run(fold: RunFold, index: dict[Any, r.Record], history: tuple[str, ...] = ()) -> MomentRun:
    turn: Any = index.get((r.TurnStarted, fold.path))
    usage = fold.meter.total()
    return MomentRun(
        path=fold.path,
        agent=fold.agent,
        turn=fold.turn,
        max_turns=fold.max_turns,
        status=None if fold.ended is None else fold.ended.status,
        tools=() if turn is None else turn.tools,
        handoffs=() if turn is None else turn.handoffs,
        history=history,
        requested=isinstance(index.get((r.ModelRequested, fold.path)), r.ModelRequested) and fold.ended is None,
        tokens=usage.input_tokens + usage.output_tokens,
        cost=None if usage.cost is None else f"{usage.cost:f}",
        calls=tuple(_list_calls(fold, index)) if fold.batch_open else (),
    )


def _list_calls(fold: RunFold, index: dict[Any, r.Record]) -> Iterable[MomentCall]:
    turn = index[r.TurnStarted, fold.path]
    for call in fold.batch:
        if call.outcome is not None:
            continue
        call_id = call.call.call_id
        started = index.get((r.CallStarted, fold.path, call_id))
        asked = index.get((r.ApprovalRequested, fold.path, call_id))
        given = index.get((r.VerdictGiven, fold.path, call_id))
        known: r.Record
        if call.question is not None and call.answer is None:
            state, known = "waits for its answer", call.question
        elif started:
            state, known = "runs", started
        elif given:
            state, known = "approved", given
        elif asked:
            state, known = "waits for a verdict", asked
        else:
            state, known = "waits for its turn", turn
        yield MomentCall(
            path=fold.path,
            turn=fold.turn,
            call_id=call_id,
            tool=call.call.name,
            arguments=_show_arguments(call.arguments or call.call.arguments, call.call.secret),
            state=state,
            since=known.at,
        )


def _show(content: Content, *, secret: bool) -> str:
    hidden = show_value(content, secret=secret)
    return hidden if hidden in (MASK, SEALED) else text_of(content)


def _show_arguments(text: str, secret: Sequence[str]) -> str:
    return show_arguments(text, secret) if isinstance(text, WithheldText) else mask_arguments(text, tuple(secret))


def _describe_item(item: Item) -> str:
    match item:
        case SystemMessage() | UserMessage() | AssistantMessage():
            who = {SystemMessage: "system", UserMessage: "user", AssistantMessage: "model"}[type(item)]
            return f"{who}: {_show(item.content, secret=item.secret)}"
        case ToolCall():
            return f"call {item.call_id}: {item.name} {_show_arguments(item.arguments, item.secret)}"
        case HandoffCall():
            return f"call {item.call_id}: {item.name}"
        case ToolOutput():
            return f"output {item.call_id}: {_show(item.output, secret=item.secret)}"
        case Reasoning():
            return "(reasoning)"
        case _:
            return f"({type(item).__name__})"
