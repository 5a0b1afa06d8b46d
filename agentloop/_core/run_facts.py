"""The state of a run: the attributes that the fold of its records keeps, and the questions about them.

`run_fold` alone changes them. Its head has the theory: which of them are facts, and which only indices.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Self

from agentloop import records as r
from agentloop._common.digests import digestible
from agentloop._common.error_text import shorten, summary_parts, tool_failure
from agentloop._core.call_identity import arguments_digest
from agentloop._core.call_state import CallState, is_search, make_interruption
from agentloop._core.empty_containers import NO_DICT, NO_SET, append_to
from agentloop._core.failure_choice import Rank, class_of_summary, rank_of_summary
from agentloop.items import ApprovalRequest, HandoffCall, Item, ToolCall, ToolOutput
from agentloop.model_events import ModelInfo, ModelResponse
from agentloop.outcomes import FROM_ABOVE
from agentloop.settings import JsonLimits
from agentloop.usage import RequestUsage, Usage

_DEFAULT_LIMITS = JsonLimits()


class UsageMeter:
    """Sums of usage, owned by one fold and grown in place; `total` returns them as a value."""

    requests: int
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    audio_tokens: int
    entries: Sequence[RequestUsage]

    __slots__ = tuple(__annotations__)

    def __init__(self) -> None:
        self.requests = self.input_tokens = self.output_tokens = self.total_tokens = 0
        self.cached_tokens = self.cache_write_tokens = self.reasoning_tokens = self.audio_tokens = 0
        self.entries = ()

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


class RunFacts:
    """The state of one run, as far as its records tell it. `RunFold` is the class of the objects."""

    path: tuple[str, ...]
    limits: JsonLimits
    records: list[r.Record]
    nested: dict[str, Self]
    _found: dict[tuple[str, ...], Self]
    """Cache of nested folds by path, so that a deep one is searched for once."""
    run_id: str
    agent: str
    """Key of the current agent."""
    max_turns: int | None
    turn: int
    input: tuple[Item, ...]
    holds_secrets: bool
    """True once some item or outcome in the tree was secret; kept by its root. No record needs a mark before."""
    secret_input: bool
    """True once some input item is secret."""
    gaps: bool
    """True once some secret input was stored in a form that can't be read back."""
    # Invariant: history holds an output for every call in it, outside a batch. The list only grows, since views of
    # it are kept; what replaces a part of the history makes a new list.
    history: list[Item]
    kept_length: int
    """Length of the part of `history` that the run began with, or that a replacement of the history has left."""
    new_items: list[Item]
    responses: list[ModelResponse]
    calls: dict[str, CallState]
    batch: Sequence[CallState]
    batch_open: bool
    released: int
    """Index into `batch`: every call below it has been released or waits for a verdict."""
    released_late: deque[CallState] | None
    """Settled calls below `released` that are not released yet: they waited when the index passed them."""
    sticky: dict[tuple[str, str, str | None], r.VerdictGiven]
    """Verdicts on all calls of an agent to a tool, by agent and tool."""
    cancel_requests: dict[str, r.CancelRequested]
    """The first request to cancel just one call, by the call's id: it never starts after that, approved or not."""
    conflict: ToolCall | HandoffCall | None
    turn_has_effects: bool
    """True once a call of the current turn started, an approval was requested for one, or the run was resumed.

    A tool that the application disables after that affects its own calls alone, and no longer the whole response.
    """
    shown_tools: tuple[str, ...]
    """Names of the tools that the model saw in the current turn."""
    call_without_id: ToolCall | HandoffCall | None
    """A call of the current turn's response that has no id."""
    unusable_reason: str | None
    """Text that says why the run can't continue from the current turn's response, or None."""
    only_repeats: int
    """Number of responses in a row that requested only calls that already have an answer."""
    invalid_outputs: int
    """Number of answers of the current agent that didn't fit its output type, and that the model has to correct."""
    pauses: int
    """Number of times that the provider has paused its answer in the current turn, to continue in the same turn."""
    handoffs: dict[str, HandoffCall]
    handoffs_due: Sequence[HandoffCall]
    tool_users: frozenset[str]
    """Agents that have used a tool in this run, by key."""
    found_tools: dict[str, tuple[str, ...]]
    """Names of the tools that searches have found in earlier turns, by key of the agent that searched."""
    settled_tools: frozenset[str]
    """Names of the tools with at least one settled call."""
    searches: bool
    """True while the current batch has a settled search for deferred tools."""
    warned_in: int
    """The last turn after which the history got a warning that the model repeats itself."""
    turn_began: int
    """Index into `new_items` of the current turn's first item."""
    response: Sequence[Item] | None
    """Items of the current turn's last response, without repeated calls; None before it, and once a handoff or a
    request to correct it has followed.
    """
    receipts: dict[str, str]
    guardrails: Sequence[r.GuardrailSettled]
    tripped: r.GuardrailSettled | None
    """The input or output guardrail of the run whose tripwire ends this run segment."""
    input_guards_due: tuple[tuple[str, int], ...]
    """Input guardrails that have to pass `unchecked_input`, as the current turn's start names them; often none."""
    input_guards_passed: frozenset[tuple[str, int]]
    """Input guardrails that have passed `unchecked_input`, by name and position among those of that name."""
    input_accepted: bool
    """True once every input item has been accepted; False again when input is added."""
    input_added_later: bool
    """True once input was added after the run's own input had been accepted."""
    model: ModelInfo | None
    """The model of the last request."""
    meter: UsageMeter
    turn_open: bool
    """True from the start of a turn until the model has answered in it; a paused answer leaves the turn open."""
    unchecked_input: tuple[Item, ...]
    """Input, of the run or added later, that the guardrails have not accepted yet."""
    saved: int | None
    """Number of the new items that session writes have covered; None before the first write."""
    sandbox: str | None
    """The name of the run's sandbox, which its provider finds it by; of the outermost run alone."""
    sent: int
    """Length of the part of `history` that a provider which keeps the conversation has acknowledged."""
    started: r.RunStarted | None
    resumed: r.RunResumed | None
    ended: r.RunEnded | None
    failures: Sequence[r.CallSettled]
    """Settled calls whose error was not converted to an output."""
    just_released: Sequence[ToolOutput]
    """The outputs released by the last record that may release some: see `run_fold._release`."""
    _digest: Any
    """The digest of the first `_digested` items of the history, to be updated; None before the first use."""
    _digested: int
    _repeats: dict[tuple[str, str], tuple[object, int]]
    """Last output by tool and digest of the arguments, and how many times in a row the tool gave it."""
    _counted: int
    """The last turn whose calls are in `_repeats`."""

    __slots__ = tuple(__annotations__)

    def __init__(self, path: tuple[str, ...] = (), *, limits: JsonLimits = _DEFAULT_LIMITS) -> None:
        self.path, self.limits = path, limits
        self.run_id = self.agent = ""
        self.records, self.history, self.new_items, self.responses = [], [], [], []
        self.calls, self.meter = {}, UsageMeter()
        self.nested = self._found = self.sticky = self.handoffs = self.cancel_requests = NO_DICT
        self.found_tools = self._repeats = self.receipts = NO_DICT
        self.tool_users = self.settled_tools = self.input_guards_passed = NO_SET
        self.input = self.unchecked_input = self.shown_tools = self.input_guards_due = ()
        self.batch = self.handoffs_due = self.guardrails = self.failures = self.just_released = ()
        self.turn = self.kept_length = self.released = self.turn_began = self.sent = self._digested = self._counted = 0
        self.only_repeats = self.invalid_outputs = self.pauses = self.warned_in = 0
        self.holds_secrets = self.secret_input = self.gaps = self.searches = self.turn_has_effects = False
        self.batch_open = self.turn_open = self.input_accepted = self.input_added_later = False
        self.max_turns = self.released_late = self.conflict = self.call_without_id = self.unusable_reason = None
        self.response = self.tripped = self.model = self.saved = self.sandbox = self._digest = None
        self.started = self.resumed = self.ended = None

    @property
    def usage(self) -> Usage:
        """Usage of this run and its nested runs, as a detached value."""
        return self.meter.total()

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
        """The id of the response from which the next request continues a kept conversation without an id of its own."""
        started = self.started
        if started is None or not started.kept or started.conversation_id is not None:
            return None
        known = (response.response_id for response in reversed(self.responses) if response.response_id is not None)
        return next(known, started.previous_response_id)

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

    def gives_secret(self, call: ToolCall) -> bool:
        """Tell whether the output of *call* is secret: its tool says so, or its nested run's final output is."""
        nested = self.nested.get(call.call_id) if self.nested else None
        return call.secret_output or (nested is not None and nested.ended is not None and nested.ended.secret)

    def at(self, path: tuple[str, ...]) -> Self | None:
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
