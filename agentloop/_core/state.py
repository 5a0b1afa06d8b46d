"""The state of a run: the fold of its records, and nothing else.

`RunFold.apply` is the only way a run changes. It is O(1) in the length of the run: whatever a turn needs to know about
the past (ids seen, receipts, unanswered calls, usage) is kept as an index.

A nested run is a subtree of the same log: records whose `path` goes on below this state's are folded by a nested
`RunFold`, found by the call id that started it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import msgspec

from agentloop import records as r
from agentloop._core.identity import same_invocation
from agentloop.config import JsonLimits
from agentloop.items import HandoffCall, HandoffOutput, Item, Reasoning, ToolCall, ToolOutput
from agentloop.model_events import ModelResponse
from agentloop.outcomes import CallOutcome
from agentloop.usage import RequestUsage, Usage


@attrs.define(eq=False)
class CallState:
    """One call of the run: asked for by the model, maybe started, maybe settled."""

    call: ToolCall
    turn: int
    index: int
    """Place in its response's calls, from 0."""
    tool: str | None = None
    attempt: int = 0
    outcome: CallOutcome | None = None
    released: bool = False


@attrs.define(eq=False)
class UsageMeter:
    """Sums of usage, grown in place; `total` makes a value of them."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    entries: list[RequestUsage] = attrs.field(factory=list)

    def add(self, usage: RequestUsage | None) -> None:
        """Count one request."""
        self.requests += 1
        if usage is None:
            return
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.total_tokens += usage.total_tokens
        self.cached_tokens += usage.cached_tokens
        self.reasoning_tokens += usage.reasoning_tokens
        if usage.total_tokens or usage.input_tokens or usage.output_tokens or not usage.complete:
            self.entries.append(usage)

    def total(self) -> Usage:
        """Return the sums as a detached value."""
        return Usage(
            requests=self.requests,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            total_tokens=self.total_tokens,
            cached_tokens=self.cached_tokens,
            reasoning_tokens=self.reasoning_tokens,
            entries=tuple(self.entries),
        )


IGNORED_HANDOFF = "Multiple handoffs detected, ignoring this one."


def drop_repeats(
    items: Iterable[Item], known: Callable[[str], ToolCall | HandoffCall | None], limits: JsonLimits
) -> tuple[list[Item], ToolCall | HandoffCall | None]:
    """Return a response's items without calls made before, and the first call that contradicts an earlier one.

    A repeated call leaves together with the reasoning that led to it. A contradicting call (same id, other tool or
    arguments) is left out too: planning refuses the whole response.
    """
    kept: list[Item] = []
    fresh: dict[str, ToolCall | HandoffCall] = {}
    conflict: ToolCall | HandoffCall | None = None
    for item in items:
        if not isinstance(item, ToolCall | HandoffCall):
            kept.append(item)
            continue
        earlier = fresh.get(item.call_id) or known(item.call_id)
        if earlier is None:
            kept.append(item)
            if item.call_id:
                fresh[item.call_id] = item
            continue
        if conflict is None and not same_invocation(earlier, item, limits):
            conflict = item
        while kept and isinstance(kept[-1], Reasoning):
            kept.pop()
    return kept, conflict


class RunFold:
    """The fold of one run's records. The root state also holds the records of the whole tree.

    Mutated by `apply` alone, from the run's own event loop; not thread-safe.
    """

    def __init__(self, path: tuple[str, ...] = (), *, limits: JsonLimits | None = None) -> None:
        self.path = path
        self.limits = limits or JsonLimits()
        self.records: list[r.Record] = []
        self.nested: dict[str, RunFold] = {}
        self.run_id = ""
        self.agent = ""
        self.max_turns: int | None = None
        self.turn = 0
        self.input: tuple[Item, ...] = ()
        # Invariant: history holds an output for every call in it, outside a batch.
        self.history: list[Item] = []
        self.new_items: list[Item] = []
        self.responses: list[ModelResponse] = []
        self.calls: dict[str, CallState] = {}
        self.batch: list[CallState] = []
        self.batch_open = False
        self.released = 0
        self.conflict: ToolCall | HandoffCall | None = None
        self.handoffs: dict[str, HandoffCall] = {}
        self.handoffs_due: list[HandoffCall] = []
        self.tool_users: set[str] = set()
        """Agents that have used a tool in this run, by name."""
        self.called: set[str] = set()
        """Names of the tools whose calls have settled."""
        self.repeats: dict[tuple[str, str], tuple[object, int]] = {}
        """Last output of a call by tool and arguments, and how often in a row it was that."""
        self.turn_began = 0
        """Where in `new_items` the current turn begins."""
        self.response: list[Item] | None = None
        """Items of the current turn's response; None while the model is due."""
        self.receipts: dict[str, str] = {}
        self.guardrails: list[r.GuardrailSettled] = []
        self.meter = UsageMeter()
        self.ended: r.RunEnded | None = None
        self._digest = hashlib.sha256()
        self._digested = 0

    # -- what others ask

    @property
    def usage(self) -> Usage:
        """What this run and its nested runs have used; a detached value."""
        return self.meter.total()

    @property
    def last_response_id(self) -> str | None:
        """The provider's id of the last response."""
        return self.responses[-1].response_id if self.responses else None

    def due_calls(self) -> list[CallState]:
        """Return the calls of the current batch that have no outcome yet, in model order."""
        return [call for call in self.batch if call.outcome is None]

    def next_release(self) -> CallState | None:
        """Return the call whose output is next in model order, if it has settled."""
        if self.released < len(self.batch) and self.batch[self.released].outcome is not None:
            return self.batch[self.released]
        return None

    def history_digest(self) -> str:
        """Return a digest of the history. Each item is digested once, so a turn's cost doesn't grow with the run."""
        for item in self.history[self._digested :]:
            self._digest.update(msgspec.json.encode([type(item).__name__, item], enc_hook=repr))
        self._digested = len(self.history)
        return self._digest.hexdigest()[:32]

    # -- the fold

    def apply(self, record: r.Record) -> None:
        """Append *record* and fold it, in one step."""
        self.records.append(record)
        self._fold(record)

    def _fold(self, record: r.Record) -> None:
        if len(record.path) > len(self.path):
            key = record.path[len(self.path)]
            if isinstance(record, r.ModelResponded):
                self.meter.add(record.response.usage)
            elif isinstance(record, r.ModelFailed) and record.counted:
                self.meter.add(record.usage)
            nested = self.nested.get(key)
            if nested is None:
                nested = self.nested[key] = RunFold((*self.path, key), limits=self.limits)
            nested._fold(record)
            return
        fold = _FOLDS.get(type(record))
        if fold is not None:
            fold(self, record)

    def _run_started(self, record: r.RunStarted) -> None:
        self.run_id, self.agent, self.max_turns = record.run_id, record.agent, record.max_turns
        self.input = record.input
        self.history.extend(record.input if record.shown is None else record.shown)

    def _turn_started(self, record: r.TurnStarted) -> None:
        self.turn, self.agent = record.turn, record.agent
        self.response = None
        self.batch, self.batch_open, self.released = [], False, 0
        self.turn_began = len(self.new_items)

    def _model_responded(self, record: r.ModelResponded) -> None:
        response = record.response
        self.meter.add(response.usage)
        self.responses.append(response)
        kept, self.conflict = drop_repeats(response.items, self._known, self.limits)
        for item in kept:
            if isinstance(item, ToolCall) and item.call_id:
                state = CallState(item, record.turn, len(self.batch))
                self.calls[item.call_id] = state
                self.batch.append(state)
            elif isinstance(item, HandoffCall) and item.call_id:
                self.handoffs[item.call_id] = item
                self.handoffs_due.append(item)
        self.response = kept
        self.batch_open = bool(self.batch)
        self.history.extend(kept)
        self.new_items.extend(kept)

    def _known(self, call_id: str) -> ToolCall | HandoffCall | None:
        call = self.calls.get(call_id)
        return call.call if call is not None else self.handoffs.get(call_id)

    def _model_failed(self, record: r.ModelFailed) -> None:
        if record.counted:
            self.meter.add(record.usage)

    def _guardrail_settled(self, record: r.GuardrailSettled) -> None:
        self.guardrails.append(record)

    def _call_started(self, record: r.CallStarted) -> None:
        call = self.calls[record.call_id]
        call.tool, call.attempt = record.tool, record.attempt

    def _call_settled(self, record: r.CallSettled) -> None:
        call = self.calls[record.call_id]
        call.tool, call.outcome = record.tool, record.outcome
        if record.receipt is not None and record.outcome.status == "succeeded":
            self.receipts.setdefault(record.receipt, record.call_id)
        self.called.add(call.call.name)
        key = (record.tool, call.call.arguments)
        last, count = self.repeats.get(key, (None, 0))
        self.repeats[key] = (record.outcome.output, count + 1 if last == record.outcome.output else 1)

    def _item_released(self, record: r.ItemReleased) -> None:
        call = self.calls[record.call_id]
        call.released = True
        self.released = call.index + 1
        if call.outcome is not None and call.outcome.output is not None:
            self.new_items.append(ToolOutput(record.call_id, call.outcome.output))

    def _batch_ended(self, record: r.BatchEnded) -> None:
        for call in self.batch:
            if call.outcome is not None and call.outcome.output is not None:
                self.history.append(ToolOutput(call.call.call_id, call.outcome.output))
        self.batch_open = False
        if self.batch:
            self.tool_users.add(self.agent)

    def _handed_off(self, record: r.HandedOff) -> None:
        source, target = record.source_agent, record.target_agent
        outputs: list[Item] = [HandoffOutput(record.call_id, f"Handed over to {target}.", source, target)]
        outputs += [HandoffOutput(call_id, IGNORED_HANDOFF, source, source) for call_id in record.ignored]
        self.history.extend(outputs)
        self.new_items.extend(outputs)
        self.handoffs_due = []
        self.response = None
        self.agent = target

    def _history_replaced(self, record: r.HistoryReplaced) -> None:
        self.history[record.keep :] = record.items
        if record.added:
            self.new_items.extend(record.items)
        elif record.reason == "output_withheld":
            withheld = {item.call_id: item for item in record.items if isinstance(item, ToolOutput)}
            self.new_items[:] = [
                withheld.get(item.call_id, item) if isinstance(item, ToolOutput) else item for item in self.new_items
            ]
        if record.keep < self._digested:
            self._digest, self._digested = hashlib.sha256(), 0

    def _input_added(self, record: r.InputAdded) -> None:
        self.history.extend(record.items)
        self.new_items.extend(record.items)

    def _run_ended(self, record: r.RunEnded) -> None:
        self.ended = record


_FOLDS: dict[type, Callable[[RunFold, Any], None]] = {
    r.RunStarted: RunFold._run_started,
    r.TurnStarted: RunFold._turn_started,
    r.ModelResponded: RunFold._model_responded,
    r.ModelFailed: RunFold._model_failed,
    r.GuardrailSettled: RunFold._guardrail_settled,
    r.CallStarted: RunFold._call_started,
    r.CallSettled: RunFold._call_settled,
    r.ItemReleased: RunFold._item_released,
    r.BatchEnded: RunFold._batch_ended,
    r.HandedOff: RunFold._handed_off,
    r.HistoryReplaced: RunFold._history_replaced,
    r.InputAdded: RunFold._input_added,
    r.RunEnded: RunFold._run_ended,
}
