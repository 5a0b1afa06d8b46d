"""A run at one moment: the state of a fold after a record, in words for people. Pure.

history     what the model would be shown next, and what it may call
waiting     what has not ended: requests, calls, verdicts, with what they wait for
limits      who holds which limit, and how much of the run's turns, tokens and cost is spent
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agentloop import records as r
from agentloop._common.masking import MASK, mask_arguments
from agentloop._common.values import Value
from agentloop._core.run_fold import RunFold
from agentloop.exceptions import UserValueError
from agentloop.items import (
    AssistantMessage,
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
    name = getattr(last, "call_id", None) or getattr(last, "guardrail", None)
    return Moment(
        n=len(records),
        of=of,
        record=" ".join(filter(None, [type(last).__name__, name])),
        at=last.at,
        runs=tuple(_read_runs(fold, _index(records))),
    )


def _index(records: Sequence[r.Record]) -> dict[Any, r.Record]:
    """Return the last record of a kind by place: of turns, requests, and of the starts and verdicts of calls."""
    found: dict[Any, r.Record] = {}
    for record in records:
        match record:
            case r.CallStarted() | r.ApprovalRequested() | r.VerdictGiven():
                found[type(record), record.path, record.call_id] = record
            case r.TurnStarted():
                found[r.TurnStarted, record.path] = record
            case r.ModelRequested() | r.ModelResponded() | r.ModelFailed():
                found[r.ModelRequested, record.path] = record
            case r.RunResumed():  # what had started runs no more
                found = {place: one for place, one in found.items() if place[0] is not r.CallStarted}
            case _:
                pass
    return found


def _read_runs(fold: RunFold, index: dict[Any, r.Record]) -> Iterator[MomentRun]:
    turn: Any = index.get((r.TurnStarted, fold.path))
    usage = fold.meter.total()
    yield MomentRun(
        path=fold.path,
        agent=fold.agent,
        turn=fold.turn,
        max_turns=fold.max_turns,
        status=None if fold.ended is None else fold.ended.status,
        tools=() if turn is None else turn.tools,
        handoffs=() if turn is None else turn.handoffs,
        history=tuple(map(_describe_item, fold.history)),
        requested=isinstance(index.get((r.ModelRequested, fold.path)), r.ModelRequested) and fold.ended is None,
        tokens=usage.input_tokens + usage.output_tokens,
        cost=None if usage.cost is None else f"{usage.cost:f}",
        calls=tuple(_list_calls(fold, index)) if fold.batch_open else (),
    )
    for nested in fold.nested.values():
        if nested.ended is None or nested.ended.resumable:
            yield from _read_runs(nested, index)


def _list_calls(fold: RunFold, index: dict[Any, r.Record]) -> Iterable[MomentCall]:
    turn = index[r.TurnStarted, fold.path]
    for call in fold.batch:
        if call.outcome is not None:
            continue
        call_id = call.call.call_id
        started = index.get((r.CallStarted, fold.path, call_id))
        asked = index.get((r.ApprovalRequested, fold.path, call_id))
        given = index.get((r.VerdictGiven, fold.path, call_id))
        known = started or given or asked
        state = "runs" if started else "approved" if given else "waits for a verdict" if asked else "waits for its turn"
        yield MomentCall(
            path=fold.path,
            turn=fold.turn,
            call_id=call_id,
            tool=call.call.name,
            arguments=mask_arguments(call.arguments or call.call.arguments, call.call.secret),
            state=state,
            since=(known or turn).at,
        )


def _describe_item(item: Item) -> str:
    match item:
        case SystemMessage() | UserMessage() | AssistantMessage():
            who = {SystemMessage: "system", UserMessage: "user", AssistantMessage: "model"}[type(item)]
            return f"{who}: {MASK if item.secret else text_of(item.content)}"
        case ToolCall():
            return f"call {item.call_id}: {item.name} {mask_arguments(item.arguments, item.secret)}"
        case HandoffCall():
            return f"call {item.call_id}: {item.name}"
        case ToolOutput():
            return f"output {item.call_id}: {MASK if item.secret else text_of(item.output)}"
        case Reasoning():
            return "(reasoning)"
        case _:
            return f"({type(item).__name__})"
