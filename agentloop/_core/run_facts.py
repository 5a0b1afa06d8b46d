"""The state of a run: the attributes that the fold of its records keeps, and the questions about them.

Only `run_fold` changes them. Its head has the theory: which of them are facts, and which only indices.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Sequence
from decimal import Decimal
from itertools import takewhile
from typing import Any, Self, TypeVar

import msgspec

from agentloop import records as r
from agentloop._common.digests import digestible
from agentloop._common.empty_containers import NO_DICT, NO_SET, append_to
from agentloop._common.error_text import shorten, summary_parts, tool_failure
from agentloop._common.values import Machinery
from agentloop._core.call_identity import arguments_digest
from agentloop._core.call_state import CallState, make_interruption, make_question
from agentloop._core.failure_choice import Rank, class_of_summary, rank_of_summary
from agentloop.items import HandoffCall, Interruption, Item, ToolCall, ToolOutput
from agentloop.model_events import ModelInfo, ModelResponse
from agentloop.outcomes import FROM_ABOVE, AddedInput
from agentloop.settings import JsonLimits
from agentloop.usage import RequestUsage, Usage

_DEFAULT_LIMITS = JsonLimits()
_TOKENS = tuple([name for name in Usage.__struct_fields__ if name.endswith("_tokens")])
"""The counts of tokens, by the names that they have in a request, in the meter and in the sum."""
StructT = TypeVar("StructT", bound=msgspec.Struct)


def _copy_with_containers(one: StructT) -> StructT:
    """Return a copy of *one* that has its own lists and dictionaries, with the same entries.

    Only these: a deque, or a class of your own, would be shared with the copy.
    """
    values = msgspec.structs.astuple(one)
    return type(one)(*[value.copy() if type(value) in _GROWING else value for value in values])


_GROWING = frozenset((list, dict))
"""A set, because each of a fold's 70 fields is looked up in it."""


def sum_costs(costs: Sequence[str]) -> Decimal | None:
    """Return the sum of *costs*; None if there are none, or one of a stored log isn't a number.

    The run's budget refuses such a log when it is resumed.
    """
    try:
        cost = sum(map(Decimal, costs), Decimal(0))
    except ArithmeticError:
        return None
    return cost if costs and cost.is_finite() else None


class UsageMeter(msgspec.Struct, eq=False):
    """Sums of usage, owned by one fold and grown in place; `total` returns them as a value."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    entries: Sequence[RequestUsage] = ()
    costs: Sequence[str] = ()
    """The costs of requests, as decimal numbers."""

    def add(self, usage: RequestUsage | None, cost: str | None = None) -> None:
        """Count one request, or the attempts that *usage* tells. Without *usage* only `requests` grows."""
        if cost is not None:
            self.costs = append_to(self.costs, cost)
        if usage is None:
            self.requests += 1
            return
        self.requests += usage.attempts
        for name in _TOKENS:
            setattr(self, name, getattr(self, name) + getattr(usage, name))
        if usage.total_tokens or usage.input_tokens or usage.output_tokens or not usage.complete:
            self.entries = append_to(self.entries, usage)

    def total(self) -> Usage:
        """Return the sums as a detached value."""
        tokens = {name: getattr(self, name) for name in _TOKENS}
        return Usage(requests=self.requests, **tokens, entries=tuple(self.entries), cost=sum_costs(self.costs))


class RunFacts(Machinery, msgspec.Struct, eq=False):
    """The state of one run, as far as its records tell it. `RunFold` is the class of the objects.

    The attributes are grouped by what they are about. A container that few runs fill begins as one that all runs share,
    and is made at its first entry.
    """

    # -- the run and its log. Of the root's `records` everything else follows; a nested run has none of its own.

    path: tuple[str, ...] = ()
    limits: JsonLimits = _DEFAULT_LIMITS
    records: list[r.Record] = []
    nested: dict[str, Self] = NO_DICT
    """The nested runs, by the id of the call that began each."""
    run_id: str = ""
    max_turns: int | None = None
    started: r.RunStarted | None = None
    resumed: r.RunResumed | None = None
    ended: r.RunEnded | None = None
    """The end of the last run segment; None while one is under way, or its process died."""
    meter: UsageMeter = msgspec.field(default_factory=UsageMeter)
    """The usage of the run and of the runs nested in it: each request counts once."""
    model: ModelInfo | None = None
    """The model of the last request."""
    sandbox: str | None = None
    """The name of the run's sandbox, which its provider finds it by. Only of the outermost run."""
    saved: int | None = None
    """Number of the new items that session writes have covered; None before the first write."""

    # -- its secrets. Each flag only rises.

    holds_secrets: bool = False
    """True once some item or outcome in the tree was secret; kept by its root. No record needs a mark before."""
    secret_input: bool = False
    """True once some input item is secret."""
    gaps: bool = False
    """True once some secret input was stored in a form that can't be read back."""

    # -- its input, and the guardrails that judge it. While `input_accepted` is True, nothing is unchecked.

    input: tuple[Item, ...] = ()
    unchecked_input: tuple[Item, ...] = ()
    """Input, of the run or added later, that the guardrails have not accepted yet."""
    input_accepted: bool = False
    """True once every input item has been accepted; False again when input is added."""
    input_added_later: bool = False
    """True once input was added after the run's own input had been accepted."""
    input_guards_due: tuple[tuple[str, int], ...] = ()
    """Input guardrails that have to pass `unchecked_input`, as the current turn's start names them; often none."""
    input_guards_passed: frozenset[tuple[str, int]] = NO_SET
    """Input guardrails that have passed `unchecked_input`, by name and position among those of that name."""
    inbox: dict[str, AddedInput] = NO_DICT
    """The inputs that were added and wait, by id, in the order in which they came."""
    inputs: dict[str, AddedInput] = NO_DICT
    """All inputs that were added, by id."""
    background: tuple[str, ...] = ()
    """The ids of the background calls without a result."""
    guardrails: Sequence[r.GuardrailSettled] = ()
    tripped: r.GuardrailSettled | None = None
    """The input or output guardrail of the run whose tripwire ends this run segment."""

    # -- its history. Outside a batch it holds an output for every call in it, in model order. The list only grows,
    # because views of it are kept; what replaces a part of the history makes a new list.

    history: list[Item] = []
    kept_length: int = 0
    """Length of the part of `history` that the run began with, or that a replacement of the history has left."""
    compacted: r.HistoryReplaced | None = None
    """The compaction that left the first `kept_length` items; None if something else did."""
    compactions: int = 0
    """Number of compactions so far."""
    sent: int = 0
    """Length of the part of `history` that a provider which keeps the conversation has acknowledged."""
    new_items: list[Item] = []
    responses: list[ModelResponse] = []
    just_released: Sequence[ToolOutput] = ()
    """The outputs released by the last record that may release some: see `run_fold._release`."""
    _digest: Any = None
    """The digest of the first `_digested` items of the history, to be updated; None before the first use."""
    _digested: int = 0

    # -- the current turn. One of these is due: the model (`turn_open`), calls (`batch_open`), a handoff, or nothing.

    turn: int = 0
    agent: str = ""
    """Key of the current agent."""
    turn_open: bool = False
    """True from the start of a turn until the model has answered in it; a paused answer leaves the turn open."""
    turn_began: int = 0
    """Index into `new_items` of the current turn's first item."""
    turn_has_effects: bool = False
    """True once a call of the current turn started, an approval was requested for one, or the run was resumed.

    A tool that the application disables after that affects its own calls only, and no longer the whole response.
    """
    shown_tools: tuple[str, ...] = ()
    """Names of the tools that the model saw in the current turn."""
    nudged: bool = False
    """True once the history has a note of how many turns are left."""
    closing: int = 0
    """The number of the turn that a limit has left for the final output alone, without tools; 0 if none has."""
    closed_by: str = ""
    """The limit that has done so: `"max_turns"` or `"usage_limits"`."""
    warned_in: int = 0
    """The last turn after which the history got a warning that the model repeats itself."""

    # -- the turn's response, and what is wrong with it. A turn with one of the three faults is never planned.

    response: Sequence[Item] | None = None
    """Items of the current turn's last response, without repeated calls; None before it, and once a handoff or a
    request to correct it has followed.
    """
    conflict: ToolCall | HandoffCall | None = None
    """A call that uses the id of an earlier call for another invocation."""
    call_without_id: ToolCall | HandoffCall | None = None
    """A call of the current turn's response that has no id."""
    unusable_reason: str | None = None
    """Text that says why the run can't continue from the current turn's response, or None."""
    only_repeats: int = 0
    """Number of responses in a row that requested only calls that already have an answer."""
    invalid_outputs: int = 0
    """Number of answers of the current agent that didn't fit its output type, and that the model has to correct."""
    pauses: int = 0
    """Number of times that the provider has paused its answer in the current turn, to continue in the same turn."""

    # -- its calls. An id means one tool with one set of arguments for the whole run.

    calls: dict[str, CallState] = {}
    batch: Sequence[CallState] = ()
    """The calls of the current turn, in model order: the very objects of `calls`."""
    batch_open: bool = False
    released: int = 0
    """Index into `batch`: every call below it has been released or waits for a verdict."""
    released_late: deque[CallState] | None = None
    """Settled calls below `released` that are not released yet: they waited when the index passed them."""
    receipts: dict[str, str] = NO_DICT
    """By receipt: the id of the first call that succeeded, whose output equal calls get."""
    cancel_requests: dict[str, r.CancelRequested] = NO_DICT
    """The first request to cancel just one call, by the call's id: it never starts after that, approved or not."""
    failures: Sequence[r.CallSettled] = ()
    """Settled calls whose error was not converted to an output."""
    sticky: dict[tuple[str, str, str | None], r.VerdictGiven] = NO_DICT
    """Verdicts on all calls of an agent to a tool, by agent and tool."""
    _repeats: dict[tuple[str, str], tuple[object, int]] = NO_DICT
    """Last output by tool and digest of the arguments, and how many times in a row the tool gave it."""
    _counted: int = 0
    """The last turn whose calls are in `_repeats`."""

    # -- its tools and handoffs.

    handoffs: dict[str, HandoffCall] = NO_DICT
    handoffs_due: Sequence[HandoffCall] = ()
    tool_users: frozenset[str] = NO_SET
    """Agents that have used a tool in this run, by key."""
    settled_tools: frozenset[str] = NO_SET
    """Names of the tools with at least one settled call."""
    found_tools: dict[str, tuple[str, ...]] = NO_DICT
    """Names of the tools that searches have found in earlier turns, by key of the agent that searched."""

    def detached(self) -> Self:
        """Return a fold of the same records that shares nothing with this one that either could change.

        For the state of a run. Folding the log again would give an equal fold: so a nested run without a record, whose
        start has failed, isn't in it.
        """
        fold = _copy_with_containers(self)
        fold.meter = _copy_with_containers(self.meter)
        fold.calls = {call_id: msgspec.structs.replace(call) for call_id, call in self.calls.items()}
        fold.batch = [fold.calls[call.call.call_id] for call in self.batch] or ()
        if self.released_late is not None:
            fold.released_late = deque([fold.calls[call.call.call_id] for call in self.released_late])
        fold._digest, fold._digested = None, 0
        fold.nested = {call_id: inner.detached() for call_id, inner in self.nested.items() if inner.started}
        return fold

    @property
    def usage(self) -> Usage:
        """Usage of this run and its nested runs, as a detached value."""
        return self.meter.total()

    @property
    def is_closing(self) -> bool:
        """True while the turn that is due, or open, is the one that a limit has left for the final output."""
        return self.closing == self.turn + (not self.turn_open)

    @property
    def last_response_id(self) -> str | None:
        """The provider's id of the last response."""
        return self.responses[-1].response_id if self.responses else None

    @property
    def kept_by_provider(self) -> bool:
        """True if the provider keeps the conversation, so that only new items are sent."""
        return self.started is not None and self.started.kept

    @property
    def continued_response_id(self) -> str | None:
        """The id of the response from which the next request continues a kept conversation without its own id."""
        started = self.started
        if started is None or not started.kept or started.conversation_id is not None:
            return None
        known = (response.response_id for response in reversed(self.responses) if response.response_id is not None)
        return next(known, started.previous_response_id)

    def due_calls(self) -> list[CallState]:
        """Return the calls of the current batch that have no outcome yet, in model order."""
        return [call for call in self.batch if call.outcome is None]

    def waits(self, call: CallState) -> bool:
        """Tell whether *call*, which has no outcome, needs a verdict or an answer first, on itself or within.

        One whose cancellation was requested waits for neither answers nor a nested run, only for its own verdict.
        """
        nested = self.nested.get(call.call.call_id)
        if nested is not None and nested.started is not None:
            return nested.paused and call.call.call_id not in self.cancel_requests
        if call.question is not None:
            return call.answer is None and call.call.call_id not in self.cancel_requests
        return call.approval is not None and self.verdict(call) is None

    def verdict(self, call: CallState) -> r.VerdictGiven | None:
        """Return the verdict on *call*: its own, else the one on all calls of its agent to its tool."""
        if call.verdict is not None:
            return call.verdict
        approval = call.approval
        if approval is None:
            return None
        return self.sticky.get((approval.agent, approval.tool, approval.definition))

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
        return self.ending_failure if self.failures and self.batch_open and not said else None

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
        used = [call for call in self.batch if call.call.kind != "approval"]
        return [call for call in used if call.outcome is None or call.outcome.found is None]

    def interruptions(self, *, questions: bool = False) -> list[Interruption]:
        """Return what waits for a verdict or an answer; the calls of a nested run replace the one that started it.

        With *questions*, only what waits for an answer.
        """
        found: list[Interruption] = []
        for call in self.due_calls() if self.batch_open else ():
            nested = self.nested.get(call.call.call_id)
            if nested is not None:
                found += [] if call.call.call_id in self.cancel_requests else nested.interruptions(questions=questions)
            elif call.question is not None:
                found += [make_question(call, call.question)] if self.waits(call) else []
            elif not questions and call.approval is not None and self.verdict(call) is None:
                found.append(make_interruption(call.call, call.approval))
        return found

    def gives_secret(self, call: ToolCall) -> bool:
        """Tell whether the output of *call* is secret: its tool says so, or its nested run's final output is."""
        nested = self.nested.get(call.call_id) if self.nested else None
        return call.secret_output or (nested is not None and nested.ended is not None and nested.ended.secret)

    def at(self, path: tuple[str, ...]) -> Self | None:
        """Return the fold of the run at *path* in the tree below this one, or None."""
        fold: Self | None = self
        for step in path[len(self.path) :]:
            fold = fold.nested.get(step) if fold is not None else None
        return fold

    def nest(self, call_id: str, limits: JsonLimits) -> Self:
        """Return a new fold of the run nested in a call."""
        self.nested = self.nested or {}
        nested = self.nested[call_id] = type(self)((*self.path, call_id), limits=limits)
        return nested

    def history_digest(self) -> str:
        """Return a digest of the history. Each item is digested once, so a turn's cost doesn't grow with the run."""
        if self._digest is None:
            self._digest = hashlib.sha256()
        new = self.history[self._digested :]
        self._digest.update(b"".join([digestible((type(item).__name__, item)) for item in new]))
        self._digested = len(self.history)
        text: str = self._digest.hexdigest()
        return text[:32]

    def count_repeats(self) -> list[tuple[str, int, int]]:
        """Return, for each different call of the current turn, which is over: its tool, how many times in a row it gave
        the same output for equal arguments, and how many of these calls are of this turn.

        Arguments are equal as JSON. Each call is counted once, and only if this is asked for: a run that doesn't look
        for loops reads no arguments again.
        """
        here: Counter[tuple[str, str]] = Counter()
        new = list(takewhile(lambda call: call.turn > self._counted, reversed(self.calls.values())))
        self._counted, self._repeats = self.turn, self._repeats or {}
        for call in reversed(new):
            outcome = call.outcome
            if outcome is None or outcome.cancelled_by in FROM_ABOVE:
                continue
            key = (call.tool or call.call.name, arguments_digest(call.call.arguments, self.limits))
            last, count = self._repeats.get(key, (None, 0))
            self._repeats[key] = (outcome.output, count + 1 if last == outcome.output else 1)
            here[key] += call.turn == self.turn
        return [(key[0], self._repeats[key][1], count) for key, count in here.items() if count]

    def forget_digest(self, keep: int) -> None:
        """Note that of the history only the first *keep* items are as they were."""
        if keep < self._digested:
            self._digest, self._digested = None, 0
