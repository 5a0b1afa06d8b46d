"""The state of a run: the fold of its records, and nothing else.

`RunFold.apply` is the only method that changes a run's state. It appends one record and folds it in the same
synchronous step, so log and state never disagree. A running run applies through the engine's log, a stored one through
`RunState`. In both cases the engine calls `machine.next_action` with the fold, so a resumed run needs no code of its
own.

Facts and indices. The root's `records` is the one fact: it alone is stored, and folding it again gives every other
attribute. Those are of two kinds:

* *Contents*, which copy what records said: `run_id`, `agent`, `turn`, `input`, `history`, `new_items`, `responses`,
  `response`, `calls`, `batch`, `guardrails`, `tripped`, `failures`, `meter`, `saved`, `started`, `resumed`, `ended`.
* *Indices*, which a scan of `records` would find too: `nested`, `released_late`, `released`, `sticky`, `handoffs`,
  `receipts`, `settled_tools`, `repeats`, `tool_users`, `found_tools`, `searches`, `input_guards_passed`, `turn_began`,
  the caches `_found` and `_digest`. They exist because a scan in each turn would make the cost of a run quadratic;
  applying a record costs the same at the thousandth turn as at the first.

States of a turn, each left by the record named: the model is due (`turn_open`; `ModelResponded`, unless the provider
has paused the answer), calls are due (`batch_open`; `BatchEnded`), a handoff is due (`handoffs_due`; `HandedOff`),
nothing is due (the machine looks for a final output or begins the next turn; `TurnStarted` or `RunEnded`). A call has
started (`attempt`), has an `outcome`, and is `released`, in this order; a call that is answered without running skips
the first.

No record says that an output is released, since that follows from the records of its call and of the calls before it:
the fold releases outputs in the step of the record that makes it possible.

Invariants: a call id means one tool with one set of arguments for the whole run; outside a batch the history holds an
output for every call in it; outputs enter the history in model order, not in the order in which they settled.

A nested run is a subtree of the same log: records with a longer `path` than this state's are folded by a nested
`RunFold`, found by the call id that started it. Does not know about clocks, tasks, agents' objects or stores.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

from agentloop import records as r
from agentloop._common.digests import digestible
from agentloop._common.error_text import shorten, summary_parts, tool_failure
from agentloop._core.call_identity import same_invocation
from agentloop._core.client_calls import describe_item, find_unanswered, says_nothing
from agentloop._core.failure_choice import Rank, class_of_summary, rank_of_summary
from agentloop._core.secret_marks import OF_CALLS, bring_secrets, has_gaps, mark_record
from agentloop._storage.withholding import WithheldText
from agentloop.items import (
    ApprovalRequest,
    AssistantMessage,
    HandoffCall,
    HandoffOutput,
    Item,
    Reasoning,
    ToolCall,
    ToolOutput,
)
from agentloop.model_events import ModelInfo, ModelResponse
from agentloop.outcomes import FROM_ABOVE, SUCCESSES, CallOutcome
from agentloop.settings import JsonLimits
from agentloop.usage import RequestUsage, Usage

T = TypeVar("T")


class _NoEntries(dict[Any, Any]):
    """An empty dictionary that refuses entries, since many objects share it."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(f"{key!r} can't be put into the empty dictionary that many objects share")


# What few runs have begins as one of these, which all runs share, and is made at its first entry: each container is an
# object that the garbage collector counts and visits for every run that waits.
NO_DICT: dict[Any, Any] = _NoEntries()
"""The empty dictionary, in place of one that is made at its first entry."""
_NO_SET: frozenset[Any] = frozenset()


def append_to(kept: Sequence[T], new: T) -> Sequence[T]:
    """Return *kept* with *new*: the same list, or the first one."""
    if isinstance(kept, list):
        kept.append(new)
        return kept
    return [new]


def _add_name(names: frozenset[str], name: str) -> frozenset[str]:
    """Return *names* with *name*; the same object for all runs where it is the only one."""
    return names | {name} if names else _make_names(name)


@lru_cache(256)
def _make_names(name: str) -> frozenset[str]:
    return frozenset({name})


class CallState:
    """One call that the model requested, with the facts of its start, approval and outcome. Mutated by its fold."""

    __slots__ = (
        "approval",
        "arguments",
        "attempt",
        "body",
        "call",
        "cut",
        "index",
        "item",
        "outcome",
        "released",
        "tool",
        "turn",
        "verdict",
    )

    def __init__(self, call: ToolCall, turn: int, index: int) -> None:
        self.call: ToolCall = call
        self.turn: int = turn
        self.index: int = index
        """Position among the calls of its response, from 0."""
        self.tool: str | None = None
        self.attempt: int = 0
        """Number of starts."""
        self.arguments: str | None = None
        """JSON text of the arguments at its last start."""
        self.body: r.BodyEnded | None = None
        self.outcome: CallOutcome | None = None
        self.cut: CallOutcome | None = None
        """The outcome from an earlier run segment that was cancelled from outside; the call is due again."""
        self.released: bool = False
        self.item: ToolOutput | None = None
        """The output as an item of the run, once it is released."""
        self.approval: r.ApprovalRequested | None = None
        self.verdict: r.VerdictGiven | None = None

    @property
    def value(self) -> Any:
        """The Python value of its outcome, which it has; in a log that was stored and read, that of its body."""
        assert self.outcome is not None
        if self.outcome.value is None and self.outcome.status == "succeeded" and self.body is not None:
            return self.body.value
        return self.outcome.value


class UsageMeter:
    """Sums of usage, owned by one fold and grown in place; `total` returns them as a value."""

    __slots__ = (
        "audio_tokens",
        "cache_write_tokens",
        "cached_tokens",
        "entries",
        "input_tokens",
        "output_tokens",
        "reasoning_tokens",
        "requests",
        "total_tokens",
    )

    def __init__(self) -> None:
        self.requests: int = 0
        self.input_tokens: int = 0
        self.output_tokens: int = 0
        self.total_tokens: int = 0
        self.cached_tokens: int = 0
        self.cache_write_tokens: int = 0
        self.reasoning_tokens: int = 0
        self.audio_tokens: int = 0
        self.entries: Sequence[RequestUsage] = ()

    def add(self, usage: RequestUsage | None) -> None:
        """Count one request, or the attempts that *usage* tells. Without *usage* only `requests` grows."""
        if usage is None:
            self.requests += 1
            return
        self.requests += usage.attempts
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.total_tokens += usage.total_tokens
        self.cached_tokens += usage.cached_tokens
        self.cache_write_tokens += usage.cache_write_tokens
        self.reasoning_tokens += usage.reasoning_tokens
        self.audio_tokens += usage.audio_tokens
        if usage.total_tokens or usage.input_tokens or usage.output_tokens or not usage.complete:
            self.entries = append_to(self.entries, usage)

    def total(self) -> Usage:
        """Return the sums as a detached value."""
        return Usage(
            requests=self.requests,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            total_tokens=self.total_tokens,
            cached_tokens=self.cached_tokens,
            cache_write_tokens=self.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens,
            audio_tokens=self.audio_tokens,
            entries=tuple(self.entries),
        )


def fits(verdict: r.VerdictGiven, request: r.ApprovalRequested) -> bool:
    """Tell whether *verdict* was given for exactly this *request*: same path, call, agent, tool and arguments."""
    return (verdict.path, verdict.call_id, verdict.agent, verdict.tool, verdict.digest) == (
        request.path,
        request.call_id,
        request.agent,
        request.tool,
        request.digest,
    )


def make_interruption(call: ToolCall, asked: r.ApprovalRequested) -> ApprovalRequest:
    """Return the interruption for the approval request *asked*: *call* with the arguments it would run with."""
    if asked.arguments is not None:
        call = call.replace(arguments=asked.arguments)
    return ApprovalRequest(call, asked.agent, asked.path, policy=asked.policy, reason=asked.reason)


def number_names(names: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Return each of *names* with its position among the equal ones, so that every pair is unique."""
    seen: Counter[str] = Counter()
    keys = []
    for name in names:
        keys.append((name, seen[name]))
        seen[name] += 1
    return tuple(keys)


MAX_PAUSES = 10
"""The number of pauses of one answer that are continued. A provider pauses after about ten steps of its own tools, so
this is work of more than a hundred steps in one turn; a provider that pauses again after it makes no progress.
"""
IGNORED_HANDOFF = "Multiple handoffs detected, ignoring this one."


def handoff_outputs(record: r.HandedOff) -> list[Item]:
    """Return the outputs for the handoff call that was taken and for the ones that were ignored."""
    source, target = record.source_agent, record.target_agent
    taken = HandoffOutput(record.call_id, f"Handed over to {target}.", source, target)
    return [taken, *(HandoffOutput(call_id, IGNORED_HANDOFF, source, source) for call_id in record.ignored)]


def drop_repeats(
    items: Iterable[Item], calls: Mapping[str, CallState], handoffs: Mapping[str, HandoffCall], limits: JsonLimits
) -> tuple[list[Item], ToolCall | HandoffCall | None]:
    """Return a response's items without repeated calls, and the first call that contradicts an earlier one.

    *calls* and *handoffs* are those of earlier responses, by id.

    A repeated call is dropped together with the reasoning directly before it. A contradicting call (same id, other tool
    or arguments) is dropped too: planning refuses the whole response.
    """
    kept: list[Item] = []
    fresh: dict[str, ToolCall | HandoffCall] = {}
    conflict: ToolCall | HandoffCall | None = None
    for item in items:
        if not isinstance(item, _CALLS):
            kept.append(item)
            continue
        call_id = item.call_id
        known = calls.get(call_id)
        earlier = fresh.get(call_id) or (handoffs.get(call_id) if known is None else known.call)
        if earlier is None:
            kept.append(item)
            if call_id:
                fresh[call_id] = item
            continue
        if conflict is None and not same_invocation(earlier, item, limits):
            conflict = item
        while kept and isinstance(kept[-1], Reasoning):
            kept.pop()
    return kept, conflict


_DEFAULT_LIMITS = JsonLimits()
_CALLS = (ToolCall, HandoffCall)
_NEVER: tuple[object, int] = (None, 0)
_MAY_HOLD_SECRETS = OF_CALLS | {r.RunEnded}


_MAY_BRING_SECRETS: dict[type, Callable[[Any], Any]] = {
    r.RunStarted: attrgetter("input"),
    r.InputAdded: attrgetter("items"),
    r.ModelResponded: attrgetter("response.items"),
    r.CallSettled: attrgetter("outcome.secret"),
}
"""By class of record: returns the items that it brings, or whether it is secret."""


def is_search(call: CallState) -> bool:
    """Tell whether *call* is a search for deferred tools that has settled."""
    return call.outcome is not None and call.outcome.found is not None


class RunFold:
    """The fold of one run's records. The root fold also holds the records of the whole tree.

    Owned by the engine's log or a `RunState`. Mutated by `apply` alone, from the run's own event loop; not thread-safe.
    """

    __slots__ = (
        "_digest",
        "_digested",
        "_found",
        "agent",
        "batch",
        "batch_open",
        "call_without_id",
        "calls",
        "conflict",
        "ended",
        "failures",
        "first_agent",
        "found_tools",
        "gaps",
        "guardrails",
        "handoffs",
        "handoffs_due",
        "history",
        "holds_secrets",
        "input",
        "input_accepted",
        "input_added_later",
        "input_guards_due",
        "input_guards_passed",
        "invalid_outputs",
        "just_released",
        "kept_length",
        "limits",
        "max_turns",
        "meter",
        "model",
        "nested",
        "new_items",
        "only_repeats",
        "path",
        "pauses",
        "receipts",
        "records",
        "released",
        "released_late",
        "repeats",
        "response",
        "responses",
        "resumed",
        "run_id",
        "sandbox",
        "saved",
        "searches",
        "secret_input",
        "sent",
        "settled_tools",
        "shown_tools",
        "started",
        "sticky",
        "tool_users",
        "tripped",
        "turn",
        "turn_began",
        "turn_has_effects",
        "turn_open",
        "unchecked_input",
        "unusable_reason",
        "warned_in",
    )

    def __init__(self, path: tuple[str, ...] = (), *, limits: JsonLimits = _DEFAULT_LIMITS) -> None:
        self.path: tuple[str, ...] = path
        self.limits: JsonLimits = limits
        self.records: list[r.Record] = []
        self.nested: dict[str, RunFold] = NO_DICT
        self._found: dict[tuple[str, ...], RunFold] = NO_DICT
        """Cache of nested folds by path, so that a deep one is searched for once."""
        self.run_id: str = ""
        self.first_agent: str = ""
        self.agent: str = ""
        """Key of the current agent."""
        self.max_turns: int | None = None
        self.turn: int = 0
        self.input: tuple[Item, ...] = ()
        self.holds_secrets: bool = False
        """True once some item or outcome in the tree was secret; kept by its root. No record needs a mark before."""
        self.secret_input: bool = False
        """True once some input item is secret."""
        self.gaps: bool = False
        """True once some secret input was stored in a form that can't be read back."""
        # Invariant: history holds an output for every call in it, outside a batch. The list only grows, since views of
        # it are kept; what replaces a part of the history makes a new list.
        self.history: list[Item] = []
        self.kept_length: int = 0
        """Length of the part of `history` that the run began with, or that a replacement of the history has left."""
        self.new_items: list[Item] = []
        self.responses: list[ModelResponse] = []
        self.calls: dict[str, CallState] = {}
        self.batch: Sequence[CallState] = ()
        self.batch_open: bool = False
        self.released: int = 0
        """Index into `batch`: every call below it has been released or waits for a verdict."""
        self.released_late: deque[CallState] | None = None
        """Settled calls below `released` that are not released yet: they waited when the index passed them."""
        self.sticky: dict[tuple[str, str], r.VerdictGiven] = NO_DICT
        """Verdicts on all calls of an agent to a tool, by agent and tool."""
        self.conflict: ToolCall | HandoffCall | None = None
        self.turn_has_effects: bool = False
        """True once a call of the current turn started, an approval was requested for one, or the run was resumed.

        A tool that the application disables after that affects its own calls alone, and no longer the whole response.
        """
        self.shown_tools: tuple[str, ...] = ()
        """Names of the tools that the model saw in the current turn."""
        self.call_without_id: ToolCall | HandoffCall | None = None
        """A call of the current turn's response that has no id."""
        self.unusable_reason: str | None = None
        """Text that says why the run can't continue from the current turn's response, or None."""
        self.only_repeats: int = 0
        """Number of responses in a row that requested only calls that already have an answer."""
        self.invalid_outputs: int = 0
        """Number of answers of the current agent that didn't fit its output type, and that the model has to correct."""
        self.pauses: int = 0
        """Number of times that the provider has paused its answer in the current turn, to continue in the same turn."""
        self.handoffs: dict[str, HandoffCall] = NO_DICT
        self.handoffs_due: Sequence[HandoffCall] = ()
        self.tool_users: frozenset[str] = _NO_SET
        """Agents that have used a tool in this run, by key."""
        self.found_tools: dict[str, tuple[str, ...]] = NO_DICT
        """Names of the tools that searches have found in earlier turns, by key of the agent that searched."""
        self.settled_tools: frozenset[str] = _NO_SET
        """Names of the tools with at least one settled call."""
        self.repeats: dict[tuple[str, str], tuple[object, int]] = NO_DICT
        """Last output by tool and arguments, and how many times in a row the tool gave it."""
        self.searches: bool = False
        """True while the current batch has a settled search for deferred tools."""
        self.warned_in: int = 0
        """The last turn after which the history got a warning that the model repeats itself."""
        self.turn_began: int = 0
        """Index into `new_items` of the current turn's first item."""
        self.response: Sequence[Item] | None = None
        """Items of the current turn's last response, without repeated calls; None before it, and once a handoff or a
        request to correct it has followed.
        """
        self.receipts: dict[str, str] = NO_DICT
        self.guardrails: Sequence[r.GuardrailSettled] = ()
        self.tripped: r.GuardrailSettled | None = None
        """The input or output guardrail of the run whose tripwire ends this run segment."""
        self.input_guards_due: tuple[tuple[str, int], ...] = ()
        """Input guardrails that have to pass `unchecked_input`, as the current turn's start names them; often none."""
        self.input_guards_passed: frozenset[tuple[str, int]] = _NO_SET
        """Input guardrails that have passed `unchecked_input`, by name and position among those of that name."""
        self.input_accepted: bool = False
        """True once every input item has been accepted; False again when input is added."""
        self.input_added_later: bool = False
        """True once input was added after the run's own input had been accepted."""
        self.model: ModelInfo | None = None
        """The model of the last request."""
        self.meter: UsageMeter = UsageMeter()
        self.turn_open: bool = False
        """True from the start of a turn until the model has answered in it; a paused answer leaves the turn open."""
        self.unchecked_input: tuple[Item, ...] = ()
        """Input, of the run or added later, that the guardrails have not accepted yet."""
        self.saved: int | None = None
        """Number of the new items that session writes have covered; None before the first write."""
        self.sandbox: str | None = None
        """The name of the run's sandbox, which its provider finds it by; of the outermost run alone."""
        self.sent: int = 0
        """Length of the part of `history` that a provider with a server-side conversation already has."""
        self.started: r.RunStarted | None = None
        self.resumed: r.RunResumed | None = None
        self.ended: r.RunEnded | None = None
        self.failures: Sequence[r.CallSettled] = ()
        """Settled calls whose error was not converted to an output."""
        self.just_released: Sequence[ToolOutput] = ()
        """The outputs released by the last record that may release some: see `_release`."""
        self._digest: Any = None
        """The digest of the first `_digested` items of the history, to be updated; None before the first use."""
        self._digested: int = 0

    # -- queries

    @property
    def usage(self) -> Usage:
        """Usage of this run and its nested runs, as a detached value."""
        return self.meter.total()

    @property
    def last_response_id(self) -> str | None:
        """The provider's id of the last response."""
        return self.responses[-1].response_id if self.responses else None

    def due_calls(self) -> list[CallState]:
        """Return the calls of the current batch that have no outcome yet, in model order."""
        return [call for call in self.batch if call.outcome is None]

    def waits(self, call: CallState) -> bool:
        """Tell whether *call*, which has no outcome, needs a verdict first, on itself or on a call nested in it."""
        nested = self.nested.get(call.call.call_id)
        if nested is not None and nested.started is not None:
            return nested.paused
        return call.approval is not None and self.verdict(call) is None

    def verdict(self, call: CallState) -> r.VerdictGiven | None:
        """Return the verdict on *call*: its own, else the one on all calls of its agent to its tool."""
        if call.verdict is not None:
            return call.verdict
        approval = call.approval
        return None if approval is None else self.sticky.get((approval.agent, approval.tool))

    @property
    def paused(self) -> bool:
        """True if the run was interrupted and every due call still waits for a verdict."""
        if self.ended is None or self.ended.status != "interrupted":
            return False
        return all(self.waits(call) for call in self.due_calls())

    @property
    def ending_failure(self) -> r.CallSettled | None:
        """The call whose failure ended the run or will end it; of several failures, the one that the run raises."""
        return min(self.failures, key=self._rank, default=None)

    def _rank(self, failure: r.CallSettled) -> Rank:
        index = self.calls[failure.call_id].index
        return rank_of_summary(failure.error or "", index, fatal=self._is_fatal(failure))

    def _is_fatal(self, failure: r.CallSettled) -> bool:
        body = self.calls[failure.call_id].body
        return body is not None and body.fatal

    @property
    def unreported_failure(self) -> r.CallSettled | None:
        """The failure that must end the run although no record says so, or None.

        That is so where the log breaks off before the end, or where the run's deadline or its caller's cancellation
        ended the run segment in the moment in which a call failed.
        """
        ended = self.ended
        said = ended is not None and ended.status == "failed" and not ended.resumable
        return self.ending_failure if self.batch_open and not said else None

    @property
    def unreported_error(self) -> str | None:
        """The failure or tripwire that must end the run although no record says so, as `TYPE(MESSAGE)`, or None."""
        if self.unreported_failure is not None:
            error = self.unreported_failure.error or ""
            if class_of_summary(error) is not None or self._is_fatal(self.unreported_failure):
                return error
            tool = self.calls[self.unreported_failure.call_id].call.name
            return shorten(f"ToolCallError({tool_failure(tool, *summary_parts(error))})")
        if self.tripped is None or self.ended is not None:
            return None
        stage = self.tripped.stage.capitalize()
        return f"{stage}GuardrailTripwireTriggered({stage} guardrail {self.tripped.guardrail} tripped)"

    def own_calls(self) -> list[CallState]:
        """Return the calls of the batch that are uses of tools: no searches, and none that the provider runs itself."""
        return [call for call in self.batch if call.call.kind != "approval" and not is_search(call)]

    def interruptions(self) -> list[ApprovalRequest]:
        """Return the calls that wait for a verdict; those of a nested run replace the call that started it."""
        found: list[ApprovalRequest] = []
        for call in self.due_calls() if self.batch_open else ():
            nested = self.nested.get(call.call.call_id)
            if nested is not None:
                found += nested.interruptions()
            elif call.approval is not None and self.verdict(call) is None:
                found.append(make_interruption(call.call, call.approval))
        return found

    def at(self, path: tuple[str, ...]) -> RunFold | None:
        """Return the fold of the run at *path* in the tree below this one, or None."""
        if len(path) == len(self.path):
            return self
        fold = self._found.get(path)
        if fold is None:
            fold = self
            for step in path[len(self.path) :]:
                fold = fold.nested.get(step) if fold is not None else None
            if fold is not None:
                if self._found is NO_DICT:
                    self._found = {}
                self._found[path] = fold
        return fold

    def history_digest(self) -> str:
        """Return a digest of the history. Each item is digested once, so a turn's cost doesn't grow with the run."""
        if self._digest is None:
            self._digest = hashlib.sha256()
        for item in self.history[self._digested :]:
            self._digest.update(digestible((type(item).__name__, item)))
        self._digested = len(self.history)
        text: str = self._digest.hexdigest()
        return text[:32]

    # -- the fold

    def apply(self, record: r.Record) -> r.Record:
        """Append *record* and fold it, in one synchronous step. Return it as appended: with its `secret` flags set."""
        kind, path = type(record), record.path
        if not self.holds_secrets and (get_brought := _MAY_BRING_SECRETS.get(kind)) is not None:
            brought = get_brought(record)
            self.holds_secrets = brought if type(brought) is bool else bring_secrets(brought)
        if self.holds_secrets and kind in _MAY_HOLD_SECRETS:
            record = self._set_secret(record)
        self.records.append(record)
        is_nested = len(path) > len(self.path) if path else False
        target = self._find_nested(record) if is_nested else self
        fold = _FOLDS.get(kind)
        if fold is not None:
            fold(target, record)
        if is_nested and kind is r.RunEnded:
            # An interrupted run no longer blocks the outputs behind that of the call around it.
            outer = self.at(record.path[:-1])
            assert outer is not None  # the run is nested in it
            outer._release()
        return record

    def mark(self, record: r.Record) -> r.Record:
        """Return *record* as `apply` would append it now: with its `secret` flags set."""
        return self._set_secret(record) if self.holds_secrets and type(record) in _MAY_HOLD_SECRETS else record

    def _set_secret(self, record: r.Record) -> r.Record:
        fold = self.at(record.path)
        if fold is None:
            return record
        if isinstance(record, r.RunEnded):
            made_by_tools = [call.outcome for call in fold.batch if call.outcome is not None]
            secret = record.status == "completed" and any(outcome.secret for outcome in made_by_tools)
            return record.replace(secret=True) if secret else record
        call_id: str | None = record.call_id  # type: ignore[union-attr]  # all of them name their call
        state = fold.calls.get(call_id) if call_id is not None else None
        if state is None:
            if isinstance(record, r.GuardrailSettled) and record.stage == "input" and fold.secret_input:
                record = record.replace(secret=True)
            return record
        output = fold.gives_secret(state.call)
        return mark_record(record, state.call, output=output) if output or state.call.secret else record

    def gives_secret(self, call: ToolCall) -> bool:
        """Tell whether the output of *call* is secret: its tool says so, or its nested run's final output is."""
        nested = self.nested.get(call.call_id) if self.nested else None
        return call.secret_output or (nested is not None and nested.ended is not None and nested.ended.secret)

    def _find_nested(self, record: r.Record) -> RunFold:
        """Return the fold of the nested run that *record* belongs to; count its usage for the runs around that."""
        fold = self.at(record.path) or self._open(record.path)
        if isinstance(record, r.ModelResponded):
            self._meter_below(record.path, record.response.usage)
        elif isinstance(record, r.ModelFailed) and record.counted:
            self._meter_below(record.path, record.usage)
        return fold

    def _open(self, path: tuple[str, ...]) -> RunFold:
        """Return the fold of the run at *path* below this one; create it, and those between, if missing."""
        fold = self
        for step in path[len(self.path) :]:
            found = fold.nested.get(step)
            if found is None:
                found = fold.nest(step, fold.limits)
            fold = found
        return fold

    def nest(self, call_id: str, limits: JsonLimits) -> RunFold:
        """Return a new fold of the run nested in a call."""
        self.nested = self.nested or {}
        nested = self.nested[call_id] = RunFold((*self.path, call_id), limits=limits)
        return nested

    def _meter_below(self, path: tuple[str, ...], usage: RequestUsage | None) -> None:
        """Count a request of the run at *path* for this run and those between: a run's usage is its subtree's."""
        fold = self
        for step in path[len(self.path) :]:
            fold.meter.add(usage)
            fold = fold.nested[step]

    def _run_started(self, record: r.RunStarted) -> None:
        self.started = record
        self.run_id, self.first_agent, self.max_turns = record.run_id, record.agent, record.max_turns
        self.agent = record.agent
        self.input = record.input
        if secret := [item for item in record.input if getattr(item, "secret", False)]:
            self._note_secrets(secret)
        self.unchecked_input += record.input
        self.history.extend(record.input if record.shown is None else record.shown)
        self.kept_length = len(self.history)

    def _note_secrets(self, items: Iterable[Item]) -> None:
        for item in items:
            if getattr(item, "secret", False):
                self.secret_input, self.gaps = True, self.gaps or has_gaps(item)

    def _run_resumed(self, record: r.RunResumed) -> None:
        self.resumed, self.ended, self.max_turns = record, None, record.max_turns
        self.tripped = None
        self.turn_has_effects = True
        self.just_released = ()
        if not self.batch_open:
            return
        # Calls that the caller or a deadline cut are due again, in the same batch, so releasing starts again.
        for call in self.batch:
            if call.outcome is not None and call.outcome.cancelled_by in FROM_ABOVE:
                call.cut, call.outcome, call.released, call.item = call.outcome, None, False, None
        self.released, self.released_late = 0, None
        self._release()

    def _turn_started(self, record: r.TurnStarted) -> None:
        if record.turn != self.turn:
            self.pauses = 0
        if not self.pauses:  # else the turn continues, with the parts of its answer from an earlier run segment
            self.turn_began = len(self.new_items)
        self.turn, self.agent = record.turn, record.agent
        self.response = None
        self.turn_has_effects, self.shown_tools = False, record.tools
        self.input_guards_due = ()
        if record.guardrails:
            self.input_guards_due = number_names(record.guardrails)
            self._accept_if_passed()
        self.call_without_id = self.unusable_reason = None
        self.turn_open = True
        self.batch, self.batch_open, self.released, self.released_late = (), False, 0, None

    def _model_requested(self, record: r.ModelRequested) -> None:
        self.model = record.model or self.model

    def _model_responded(self, record: r.ModelResponded) -> None:
        response = record.response
        self.turn_open = False
        if record.turn > 1 and not self.input_accepted:
            self._accept()  # only in the first turn may the model answer before the input guardrails have
        self.meter.add(response.usage)
        self.responses.append(response)
        kept, self.conflict = drop_repeats(response.items, self.calls, self.handoffs, self.limits)
        batch = list(self.batch)
        for item in kept:
            if not isinstance(item, _CALLS):
                continue
            call_id = item.call_id
            if not call_id:
                self.call_without_id = self.call_without_id or item
            elif isinstance(item, ToolCall):
                state = self.calls[call_id] = CallState(item, record.turn, len(batch))
                batch.append(state)
            else:
                if self.handoffs is NO_DICT:
                    self.handoffs = {}
                self.handoffs[call_id] = item
                self.handoffs_due = append_to(self.handoffs_due, item)
        self.response = kept if len(kept) < len(response.items) else response.items
        self.batch, self.batch_open = batch or (), bool(batch)
        if batch or self.handoffs_due:
            self.only_repeats = 0
        elif response.paused:
            self.only_repeats = 0
            self._check_pause()
        else:
            self._check_progress(response.items, kept)
        self.history.extend(kept)
        self.new_items.extend(kept)
        self.sent = len(self.history)

    def _check_pause(self) -> None:
        """Keep the turn open for the rest of a paused answer; set `unusable_reason` at a pause too many."""
        self.pauses += 1
        if self.pauses > MAX_PAUSES:
            self.unusable_reason = (
                f"The provider has paused its answer {self.pauses} times in turn {self.turn}; at most {MAX_PAUSES} "
                "pauses in a turn are continued"
            )
        else:
            self.turn_open = self.conflict is None and self.call_without_id is None

    def _check_progress(self, items: Iterable[Item], kept: list[Item]) -> None:
        """Set `only_repeats` and `unusable_reason` for a response without a new call or handoff."""
        telling = [item for item in kept if not says_nothing(item)]
        if telling:
            self.only_repeats = 0
            said = [item for item in telling if isinstance(item, AssistantMessage)]
            demand = None if said else find_unanswered(kept)
            if demand is not None:
                self.unusable_reason = (
                    f"The model's response demands what nobody here gives: the answer to {describe_item(demand)}"
                )
            return
        again = next((item for item in items if isinstance(item, _CALLS) and item.call_id), None)
        self.only_repeats = 0 if again is None else self.only_repeats + 1
        if again is not None and self.only_repeats > 1:
            self.unusable_reason = (
                "The model has asked twice in a row for nothing but calls that are answered already (call id "
                f"{shorten(again.call_id, 80)!r}, tool {shorten(again.name, 80)!r}): it makes no progress"
            )

    def _model_failed(self, record: r.ModelFailed) -> None:
        if record.counted:
            self.meter.add(record.usage)

    def _guardrail_settled(self, record: r.GuardrailSettled) -> None:
        self.guardrails = append_to(self.guardrails, record)
        if record.stage == "input" and record.verdict == "passed":
            self.input_guards_passed |= {(record.guardrail, record.nth)}
            self._accept_if_passed()
        elif record.stage in ("input", "output") and record.verdict == "tripped":
            self.tripped = record

    def _accept_if_passed(self) -> None:
        if self.input_guards_due and self.input_guards_passed.issuperset(self.input_guards_due):
            self._accept()

    def _accept(self) -> None:
        """Note that all input is accepted.

        The engine acts on a response only after that. So any record of a call, a handoff or a pause proves it.
        """
        self.input_accepted = True
        self.unchecked_input = ()
        self.input_guards_passed = _NO_SET

    def _call_started(self, record: r.CallStarted) -> None:
        self.turn_has_effects = True
        if not self.input_accepted:
            self._accept()
        call = self.calls[record.call_id]
        call.tool, call.attempt, call.arguments = record.tool, record.attempt, record.arguments
        call.body = call.cut = None

    def _body_ended(self, record: r.BodyEnded) -> None:
        self.calls[record.call_id].body = record

    def _approval_requested(self, record: r.ApprovalRequested) -> None:
        self.turn_has_effects = True
        if not self.input_accepted:
            self._accept()
        call = self.calls[record.call_id]
        call.approval = record
        if call.verdict is not None and not fits(call.verdict, record):
            call.verdict = None  # given for another tool, agent or arguments

    def _verdict_given(self, record: r.VerdictGiven) -> None:
        call = self.calls.get(record.call_id)
        if call is not None and (call.approval is None or fits(record, call.approval)):
            call.verdict = record
            if record.always:
                if self.sticky is NO_DICT:
                    self.sticky = {}
                self.sticky[record.agent, record.tool] = record

    def _call_settled(self, record: r.CallSettled) -> None:
        if not self.input_accepted:
            self._accept()
        call, tool, outcome = self.calls[record.call_id], record.tool, record.outcome
        made, output = call.call, outcome.output
        call.tool, call.outcome, call.cut = tool, outcome, None
        if call.index < self.released and not call.released:
            self.released_late = self.released_late or deque()
            self.released_late.append(call)
        if outcome.found is not None:
            self.searches = True
        cut = outcome.cancelled_by is not None and outcome.cancelled_by in FROM_ABOVE
        if record.error is not None and output is None and not cut:
            self.failures = append_to(self.failures, record)
        if record.receipt is not None and outcome.status == "succeeded" and not isinstance(output, WithheldText):
            if self.receipts is NO_DICT:
                self.receipts = {}
            self.receipts.setdefault(record.receipt, record.call_id)  # one stored as a digest can't be an answer
        if made.name not in self.settled_tools and made.kind != "approval":
            self.settled_tools = _add_name(self.settled_tools, made.name)
        if not cut:  # else the call is due again if the run is resumed, so this output is no repeat
            key = (tool, made.arguments)
            last, count = self.repeats.get(key, _NEVER)
            if self.repeats is NO_DICT:
                self.repeats = {}
            self.repeats[key] = (output, count + 1 if last == output else 1)
        self._release()

    def _release(self) -> None:
        """Release the outputs that are next in model order: each is a new item of the run from now on.

        A call that waits for a verdict does not block later outputs. Once its own output comes, it is released late.
        Called when a call has settled, a run nested in one has ended, or the run was resumed.
        """
        released: list[ToolOutput] = []
        self.just_released = released
        while self.released_late:
            self._release_call(self.released_late.popleft(), released)
        batch = self.batch
        while self.released < len(batch):
            call = batch[self.released]
            if not call.released:
                if call.outcome is not None:
                    self._release_call(call, released)
                elif (call.approval is None and not self.nested) or not self.waits(call):
                    return
            self.released += 1

    def _release_call(self, call: CallState, released: list[ToolOutput]) -> None:
        call.released = True
        outcome = call.outcome
        if outcome is not None and (text := outcome.output) is not None:
            made, failed = call.call, outcome.status not in SUCCESSES
            output = ToolOutput(made.call_id, text, kind=made.kind, is_error=failed, secret=outcome.secret)
            call.item = output
            self.new_items.append(output)
            released.append(output)

    def _batch_ended(self, record: r.BatchEnded) -> None:
        for call in self.batch:
            if call.item is not None:
                self.history.append(call.item)
        self.batch_open = False
        if self.searches:
            self._note_found_tools()
        if self.agent not in self.tool_users and not all(map(is_search, self.batch)):
            self.tool_users = _add_name(self.tool_users, self.agent)

    def _note_found_tools(self) -> None:
        """Note what the turn's searches have found. Not before the batch has ended: the turn keeps the tools it has."""
        known = dict.fromkeys(self.found_tools.get(self.agent, ()))
        for call in self.batch:
            known |= dict.fromkeys((call.outcome and call.outcome.found) or ())
        self.found_tools = {**self.found_tools, self.agent: tuple(known)}
        self.searches = False

    def _handed_off(self, record: r.HandedOff) -> None:
        if not self.input_accepted:
            self._accept()
        outputs = handoff_outputs(record)
        self.history.extend(outputs)
        self.new_items.extend(outputs)
        self.invalid_outputs = 0
        self.handoffs_due = ()
        self.response = None
        self.agent = record.target or record.target_agent

    def _history_replaced(self, record: r.HistoryReplaced) -> None:
        if record.keep == len(self.history):
            self.history.extend(record.items)
        else:
            self.history = [*self.history[: record.keep], *record.items]
        if record.reason == "loop_warning":
            self.warned_in = record.turn
        elif record.reason == "invalid_final_output":
            self.invalid_outputs += 1
            self.response = None  # it is no candidate for the final output any more
        if record.added:
            self.new_items.extend(record.items)
        else:
            self.kept_length = len(self.history)
        if record.reason == "output_withheld":
            withheld = {item.call_id: item for item in record.items if isinstance(item, ToolOutput)}
            self.new_items[:] = [
                withheld.get(item.call_id, item) if isinstance(item, ToolOutput) else item for item in self.new_items
            ]
        if record.keep < self._digested:
            self._digest, self._digested = None, 0

    def _input_added(self, record: r.InputAdded) -> None:
        self._note_secrets(record.items)
        self.history.extend(record.items)
        self.new_items.extend(record.items)
        self.input_added_later, self.input_accepted = self.input_added_later or self.input_accepted, False
        self.input_guards_passed = _NO_SET  # a guardrail that passed the earlier input has not seen the new one
        self.unchecked_input += record.items

    def _sandbox_opened(self, record: r.SandboxOpened) -> None:
        self.sandbox = record.name

    def _session_saved(self, record: r.SessionSaved) -> None:
        self.saved = record.count

    def _run_ended(self, record: r.RunEnded) -> None:
        self.ended = record
        if record.status in ("interrupted", "stopped"):
            self._accept()


_FOLDS: dict[type, Callable[[RunFold, Any], None]] = {
    r.RunStarted: RunFold._run_started,
    r.RunResumed: RunFold._run_resumed,
    r.TurnStarted: RunFold._turn_started,
    r.ModelRequested: RunFold._model_requested,
    r.ModelResponded: RunFold._model_responded,
    r.ModelFailed: RunFold._model_failed,
    r.GuardrailSettled: RunFold._guardrail_settled,
    r.ApprovalRequested: RunFold._approval_requested,
    r.VerdictGiven: RunFold._verdict_given,
    r.CallStarted: RunFold._call_started,
    r.BodyEnded: RunFold._body_ended,
    r.CallSettled: RunFold._call_settled,
    r.BatchEnded: RunFold._batch_ended,
    r.HandedOff: RunFold._handed_off,
    r.HistoryReplaced: RunFold._history_replaced,
    r.InputAdded: RunFold._input_added,
    r.SandboxOpened: RunFold._sandbox_opened,
    r.SessionSaved: RunFold._session_saved,
    r.RunEnded: RunFold._run_ended,
}
