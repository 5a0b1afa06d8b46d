"""The state of a run: the fold of its records, and nothing else.

`RunFold.apply` is the only method that changes a run's state. It appends one record and folds it in the same
synchronous step, so log and state never disagree. A running run applies through the engine's log, a stored one through
`RunState`. In both cases the engine calls `machine.next_action` with the fold, so a resumed run needs no code of its
own.

Facts and indices. The root's `records` is the one fact: only it is stored, and folding it again gives every other
attribute. Those are of two kinds:

* *Contents*, which copy what records said: `run_id`, `agent`, `turn`, `input`, `history`, `new_items`, `responses`,
  `response`, `calls`, `batch`, `guardrails`, `tripped`, `failures`, `meter`, `saved`, `compacted`, `started`,
  `resumed`, `ended`, `inbox`, `inputs`, `background`.
* *Indices*, which a scan of `records` would find too: `nested`, `released_late`, `released`, `sticky`,
  `cancel_requests`, `handoffs`, `receipts`, `settled_tools`, `tool_users`, `found_tools`, `input_guards_passed`,
  `turn_began`, `compactions`, the caches `_digest` and `_repeats`. They exist because a scan in each turn would make
  the cost of a run quadratic; applying a record costs the same at the thousandth turn as at the first.

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

Decisions:

The fold decides which calls wait. A call waits if its approval was requested and not answered, or if the run nested
in it waits. The machine pauses where all due work waits. A waiting call doesn't delay the outputs behind it: these
are released at once, and the history has them in the calls' order when the turn is accepted.

A cancelled call keeps its question. The fold keeps the request to cancel a call, and the next batch that would run
the call settles it as cancelled. One that waits for a verdict continues waiting until the run continues: the pause,
its requests and the people who were asked stay as they are, and no answer can start the call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from operator import attrgetter
from typing import Any, get_args

from agentloop import records as r
from agentloop._common.empty_containers import NO_DICT, NO_SET, append_to
from agentloop._common.error_text import shorten
from agentloop._common.naming import number_names
from agentloop._core.call_identity import same_invocation
from agentloop._core.call_state import CallState, fits
from agentloop._core.client_calls import describe_item, find_unanswered, says_nothing
from agentloop._core.history import leave_out
from agentloop._core.run_facts import RunFacts
from agentloop._core.secret_marks import MAY_HOLD_SECRETS, has_gaps, mark_record
from agentloop._storage.withholding import WithheldText
from agentloop.items import CALLS, AssistantMessage, HandoffCall, Item, ToolCall, ToolOutput
from agentloop.outcomes import FROM_ABOVE, SUCCESSES, AddedInput, InputStatus
from agentloop.usage import RequestUsage

MAX_PAUSES = 10
"""The number of pauses of one answer that are continued. A provider pauses after about ten steps of its own tools, so
this is work of more than a hundred steps in one turn; a provider that pauses again after it makes no progress.
"""


def _run_started(fold: RunFacts, record: r.RunStarted) -> None:
    fold.started = record
    fold.run_id, fold.agent, fold.max_turns = record.run_id, record.agent, record.max_turns
    fold.input = record.input
    _note_secrets(fold, record.input)
    fold.unchecked_input += record.input
    fold.history.extend(record.input if record.shown is None else record.shown)
    fold.kept_length = len(fold.history)


def _note_secrets(fold: RunFacts, items: Iterable[Item]) -> None:
    for item in items:
        if getattr(item, "secret", False):
            fold.secret_input, fold.gaps = True, fold.gaps or has_gaps(item)


def _run_resumed(fold: RunFacts, record: r.RunResumed) -> None:
    fold.resumed, fold.ended, fold.max_turns = record, None, record.max_turns
    fold.tripped = None
    fold.turn_has_effects = True
    if fold.batch_open:
        # Calls that the caller or a deadline cut are due again, in the same batch, so releasing starts again.
        for call in fold.batch:
            if call.outcome is not None and call.outcome.cancelled_by in FROM_ABOVE:
                call.cut, call.outcome, call.released, call.item = call.outcome, None, False, None
        fold.released, fold.released_late = 0, None
    _release(fold)


def _turn_started(fold: RunFacts, record: r.TurnStarted) -> None:
    if record.turn != fold.turn:
        fold.pauses = 0
    if not fold.pauses:  # else the turn continues, with the parts of its answer from an earlier run segment
        fold.turn_began = len(fold.new_items)
    fold.turn, fold.agent = record.turn, record.agent
    fold.response = None
    fold.turn_has_effects, fold.shown_tools = False, record.tools
    fold.input_guards_due = ()
    if record.guardrails:
        fold.input_guards_due = number_names(record.guardrails)
        _accept_if_passed(fold)
    fold.call_without_id = fold.unusable_reason = None
    fold.turn_open = True
    fold.batch, fold.batch_open, fold.released, fold.released_late = (), False, 0, None


def _model_requested(fold: RunFacts, record: r.ModelRequested) -> None:
    fold.model = record.model or fold.model


def _model_responded(fold: RunFacts, record: r.ModelResponded) -> None:
    response = record.response
    fold.turn_open = False
    if record.turn > 1 and not fold.input_accepted:
        _accept(fold)  # only in the first turn may the model answer before the input guardrails have
    fold.meter.add(response.usage, record.cost)
    fold.responses.append(response)
    kept, fold.conflict = drop_repeats(fold, response.items)
    for item in kept:
        if isinstance(item, CALLS):
            _add_call(fold, item)
    fold.response = kept if len(kept) < len(response.items) else response.items
    fold.batch_open = bool(fold.batch)
    if fold.batch or fold.handoffs_due:
        fold.only_repeats = 0
    elif response.finish_reason is not None and response.paused:
        fold.only_repeats = 0
        _check_pause(fold)
    else:
        _check_progress(fold, response.items, kept)
    fold.history.extend(kept)
    fold.new_items.extend(kept)
    if response.response_id is not None or (fold.started is not None and fold.started.conversation_id is not None):
        fold.sent = len(fold.history)  # else nothing names what the provider has: it is sent again


def _add_call(fold: RunFacts, item: ToolCall | HandoffCall) -> None:
    """Make a call of the turn's response due."""
    if not item.call_id:
        fold.call_without_id = fold.call_without_id or item
    elif isinstance(item, ToolCall):
        state = fold.calls[item.call_id] = CallState(item, fold.turn, len(fold.batch))
        fold.batch = append_to(fold.batch, state)
    else:
        fold.handoffs = fold.handoffs or {}
        fold.handoffs[item.call_id] = item
        fold.handoffs_due = append_to(fold.handoffs_due, item)


def _check_pause(fold: RunFacts) -> None:
    """Keep the turn open for the rest of a paused answer; set `unusable_reason` at a pause too many."""
    fold.pauses += 1
    if fold.pauses > MAX_PAUSES:
        fold.unusable_reason = (
            f"The provider has paused its answer {fold.pauses} times in turn {fold.turn}; at most {MAX_PAUSES} "
            "pauses in a turn are continued"
        )
    else:
        fold.turn_open = fold.conflict is None and fold.call_without_id is None


def _check_progress(fold: RunFacts, items: Iterable[Item], kept: Iterable[Item]) -> None:
    """Set `only_repeats` and `unusable_reason` for a response without a new call or handoff."""
    telling = [item for item in kept if not says_nothing(item)]
    if telling:
        fold.only_repeats = 0
        says_words = any(isinstance(item, AssistantMessage) for item in telling)
        if not says_words and (demand := find_unanswered(kept)) is not None:  # the response only asks for something
            fold.unusable_reason = (
                f"The model's response demands what nobody here gives: the answer to {describe_item(demand)}"
            )
        return
    again = next((item for item in items if isinstance(item, CALLS) and item.call_id), None)
    fold.only_repeats = 0 if again is None else fold.only_repeats + 1
    if again is not None and fold.only_repeats > 1:
        fold.unusable_reason = (
            "The model has asked twice in a row for nothing but calls that are answered already (call id "
            f"{shorten(again.call_id, 80)!r}, tool {shorten(again.name, 80)!r}): it makes no progress"
        )


def drop_repeats(fold: RunFacts, items: Iterable[Item]) -> tuple[tuple[Item, ...], ToolCall | HandoffCall | None]:
    """Return a response's *items* without repeated calls, and the first call that contradicts an earlier one.

    A repeated call is dropped together with the reasoning directly before it. A contradicting call (same id, other tool
    or arguments) is dropped too: planning refuses the whole response.
    """
    fresh: dict[str, ToolCall | HandoffCall] = {}
    conflict: ToolCall | HandoffCall | None = None

    def is_repeat(item: Item) -> bool:
        nonlocal conflict
        if not isinstance(item, CALLS):
            return False
        call_id = item.call_id
        known = fold.calls.get(call_id)
        earlier = fresh.get(call_id) or (fold.handoffs.get(call_id) if known is None else known.call)
        if earlier is None:
            if call_id:
                fresh[call_id] = item
            return False
        if conflict is None and not same_invocation(earlier, item, fold.limits):
            conflict = item
        return True

    return leave_out(items, is_repeat), conflict


def _model_failed(fold: RunFacts, record: r.ModelFailed) -> None:
    if record.counted:
        fold.meter.add(record.usage)


def _guardrail_settled(fold: RunFacts, record: r.GuardrailSettled) -> None:
    fold.guardrails = append_to(fold.guardrails, record)
    if record.input_id is not None and record.verdict != "tripped":
        if record.verdict == "ask_again" and record.input_id in fold.inbox:
            reason = record.detail if isinstance(record.detail, str) else None
            _leave_inbox(fold, record.input_id, "rejected", reason)
    elif record.stage == "input" and record.verdict == "passed":
        fold.input_guards_passed |= {(record.guardrail, record.nth)}
        _accept_if_passed(fold)
    elif record.stage in ("input", "output") and record.verdict == "tripped":
        fold.tripped = record


def _accept_if_passed(fold: RunFacts) -> None:
    if fold.input_guards_due and fold.input_guards_passed.issuperset(fold.input_guards_due):
        _accept(fold)


def _accept(fold: RunFacts) -> None:
    """Note that all input is accepted.

    The engine acts on a response only after that. So any record of a call, a handoff or a pause proves it.
    """
    fold.input_accepted = True
    fold.unchecked_input = ()
    fold.input_guards_passed = NO_SET


def _call_started(fold: RunFacts, record: r.CallStarted) -> None:
    fold.turn_has_effects = True
    if not fold.input_accepted:
        _accept(fold)
    call = fold.calls[record.call_id]
    call.tool, call.attempt, call.arguments, call.agent = record.tool, record.attempt, record.arguments, fold.agent
    call.body = call.cut = None  # of an earlier run segment


def _body_ended(fold: RunFacts, record: r.BodyEnded) -> None:
    fold.calls[record.call_id].body = record


def _approval_requested(fold: RunFacts, record: r.ApprovalRequested) -> None:
    fold.turn_has_effects = True
    if not fold.input_accepted:
        _accept(fold)
    call = fold.calls[record.call_id]
    call.approval = record
    if call.verdict is not None and not fits(call.verdict, record):
        call.verdict = None  # given for another tool, agent or arguments


def _verdict_given(fold: RunFacts, record: r.VerdictGiven) -> None:
    call = fold.calls.get(record.call_id)
    if call is not None and (call.approval is None or fits(record, call.approval)):
        earlier = call.verdict
        if earlier is not None and earlier.always:  # what takes its place holds for later calls only if it says so
            fold.sticky = {key: one for key, one in fold.sticky.items() if one is not earlier}
        call.verdict = record
        if record.always:
            fold.sticky = fold.sticky or {}
            fold.sticky[record.agent, record.tool, record.definition] = record


def _answer_requested(fold: RunFacts, record: r.AnswerRequested) -> None:
    fold.calls[record.call_id].question = record
    _release(fold)


def _call_answered(fold: RunFacts, record: r.CallAnswered) -> None:
    fold.calls[record.call_id].answer = record


def _cancel_requested(fold: RunFacts, record: r.CancelRequested) -> None:
    if record.call_id in fold.calls:
        fold.cancel_requests = fold.cancel_requests or {}
        fold.cancel_requests.setdefault(record.call_id, record)


def _call_settled(fold: RunFacts, record: r.CallSettled) -> None:
    if not fold.input_accepted:
        _accept(fold)
    call, tool, outcome = fold.calls[record.call_id], record.tool, record.outcome
    made, output = call.call, outcome.output
    call.tool, call.outcome, call.cut, call.is_background = tool, outcome, None, record.background
    if call.index < fold.released and not call.released:
        fold.released_late = fold.released_late or deque()
        fold.released_late.append(call)
    if record.error is not None and output is None and outcome.cancelled_by not in FROM_ABOVE:
        fold.failures = append_to(fold.failures, record)
    if record.background:
        fold.background += (record.call_id,)
    elif record.receipt is not None:
        _note_receipt(fold, record, record.receipt)
    if made.name not in fold.settled_tools and made.kind != "approval":
        fold.settled_tools |= {made.name}
    _release(fold)


def _note_receipt(fold: RunFacts, record: r.CallSettled, receipt: str) -> None:
    """Note that equal calls get the output of this call, if it succeeded, unless it was stored as a digest."""
    if record.outcome.status == "succeeded" and not isinstance(record.outcome.output, WithheldText):
        fold.receipts = fold.receipts or {}
        fold.receipts.setdefault(receipt, record.call_id)


def _release(fold: RunFacts) -> None:
    """Release the outputs that are next in model order: each is a new item of the run from now on.

    A call that waits for a verdict does not block later outputs. Once its own output comes, it is released late.
    Called when a call has settled, a run nested in one has ended, or the run was resumed.
    """
    released: list[ToolOutput] = []
    fold.just_released = released
    while fold.released_late:
        _release_call(fold, fold.released_late.popleft(), released)
    batch, index = fold.batch, fold.released
    while index < len(batch):
        call = batch[index]
        if not call.released:
            if call.outcome is not None:
                _release_call(fold, call, released)
            elif (call.approval is None and call.question is None and not fold.nested) or not fold.waits(call):
                break
        index += 1
    fold.released = index


def _release_call(fold: RunFacts, call: CallState, released: list[ToolOutput]) -> None:
    call.released = True
    outcome = call.outcome
    if outcome is not None and (text := outcome.output) is not None:
        made, failed = call.call, outcome.status not in SUCCESSES
        output = ToolOutput(made.call_id, text, kind=made.kind, is_error=failed, secret=outcome.secret)
        call.item = output
        fold.new_items.append(output)
        released.append(output)


def _batch_ended(fold: RunFacts, record: r.BatchEnded) -> None:
    for call in fold.batch:
        if call.item is not None:
            fold.history.append(call.item)
    fold.batch_open = False
    found = [call.outcome.found for call in fold.batch if call.outcome is not None and call.outcome.found is not None]
    if found:  # noted only now, because the turn keeps the tools that it has
        known = dict.fromkeys(chain(fold.found_tools.get(fold.agent, ()), *found))
        fold.found_tools = {**fold.found_tools, fold.agent: tuple(known)}
    if len(found) < len(fold.batch):  # one at least isn't a search
        fold.tool_users |= {fold.agent}


def _handed_off(fold: RunFacts, record: r.HandedOff) -> None:
    from agentloop._core.handoff_outputs import handoff_outputs  # few runs hand over

    if not fold.input_accepted:
        _accept(fold)
    outputs = handoff_outputs(record)
    fold.history.extend(outputs)
    fold.new_items.extend(outputs)
    fold.invalid_outputs = 0
    fold.handoffs_due = ()
    fold.response = None
    fold.agent = record.target or record.target_agent


def _history_replaced(fold: RunFacts, record: r.HistoryReplaced) -> None:
    if record.keep == len(fold.history):
        fold.history.extend(record.items)
    else:
        fold.history = [*fold.history[: record.keep], *record.items]
    if record.reason == "loop_warning":
        fold.warned_in = record.turn
    elif record.reason == "invalid_final_output":
        fold.invalid_outputs += 1
        fold.response = None  # it isn't a candidate for the final output any more
    elif record.reason in ("max_turns", "usage_limits"):
        fold.closing, fold.closed_by = record.turn + 1, record.reason
        fold.response = None  # the application isn't asked again what its calls are worth
    elif record.reason == "turns_left":
        fold.nudged = True
    if record.added:
        fold.new_items.extend(record.items)
    else:
        fold.kept_length = len(fold.history)
        fold.compacted = record if record.reason == "compaction" else None
        fold.compactions += record.reason == "compaction"
    if record.reason == "output_withheld":
        withheld = {item.call_id: item for item in record.items if isinstance(item, ToolOutput)}
        fold.new_items[:] = [
            withheld.get(item.call_id, item) if isinstance(item, ToolOutput) else item for item in fold.new_items
        ]
    fold.forget_digest(record.keep)


def _input_added(fold: RunFacts, record: r.InputAdded) -> None:
    _note_secrets(fold, record.items)
    if record.id:
        if fold.inputs is NO_DICT:
            fold.inbox, fold.inputs = {}, {}
        added = AddedInput(record.id, record.items, record.when, record.by, call_id=record.call_id)
        fold.background = tuple([one for one in fold.background if one != record.call_id])
        fold.inbox[record.id] = fold.inputs[record.id] = added
        return
    # A log of an earlier version: the run showed the input at once, and its guardrails judged it in the next turn.
    fold.history.extend(record.items)
    fold.new_items.extend(record.items)
    fold.input_added_later, fold.input_accepted = fold.input_added_later or fold.input_accepted, False
    fold.input_guards_passed = NO_SET  # a guardrail that passed the earlier input has not seen the new one
    fold.unchecked_input += record.items


def _leave_inbox(fold: RunFacts, input_id: str, status: InputStatus, reason: str | None = None) -> AddedInput:
    added = fold.inbox.pop(input_id)
    fold.inputs[input_id] = added.replace(status=status, reason=reason)
    return added


def _input_shown(fold: RunFacts, record: r.InputShown) -> None:
    added = _leave_inbox(fold, record.id, "shown")
    fold.history.extend(added.items)
    fold.new_items.extend(added.items)
    fold.response = None  # it isn't a candidate for the final output any more


def _input_withdrawn(fold: RunFacts, record: r.InputWithdrawn) -> None:
    _leave_inbox(fold, record.id, "withdrawn")


def _sandbox_opened(fold: RunFacts, record: r.SandboxOpened) -> None:
    fold.sandbox = record.name


def _session_saved(fold: RunFacts, record: r.SessionSaved) -> None:
    fold.saved = record.count


def _run_ended(fold: RunFacts, record: r.RunEnded) -> None:
    fold.ended = record
    if record.status in ("interrupted", "stopped"):
        _accept(fold)


_FOLDS: dict[type, Callable[[RunFacts, Any], None]] = {
    r.RunStarted: _run_started,
    r.RunResumed: _run_resumed,
    r.TurnStarted: _turn_started,
    r.ModelRequested: _model_requested,
    r.ModelResponded: _model_responded,
    r.ModelFailed: _model_failed,
    r.GuardrailSettled: _guardrail_settled,
    r.ApprovalRequested: _approval_requested,
    r.VerdictGiven: _verdict_given,
    r.AnswerRequested: _answer_requested,
    r.CallAnswered: _call_answered,
    r.CallStarted: _call_started,
    r.BodyEnded: _body_ended,
    r.CallSettled: _call_settled,
    r.BatchEnded: _batch_ended,
    r.HandedOff: _handed_off,
    r.HistoryReplaced: _history_replaced,
    r.InputAdded: _input_added,
    r.InputShown: _input_shown,
    r.InputWithdrawn: _input_withdrawn,
    r.SandboxOpened: _sandbox_opened,
    r.SessionSaved: _session_saved,
    r.CancelRequested: _cancel_requested,
    r.RunEnded: _run_ended,
}

_MAY_BRING_SECRETS: dict[type, Callable[[Any], Any]] = {
    r.RunStarted: attrgetter("input"),
    r.InputAdded: attrgetter("items"),
    r.ModelResponded: attrgetter("response.items"),
    r.CallSettled: attrgetter("outcome.secret"),
}
"""By class of record: returns the items that it brings, or whether it is secret."""
_STEPS: dict[type, tuple[Callable[[RunFacts, Any], None] | None, Callable[[Any], Any] | None]] = {
    kind: (_FOLDS.get(kind), _MAY_BRING_SECRETS.get(kind)) for kind in get_args(r.Record)
}
"""Both in one table, which is read for each record."""


class RunFold(RunFacts, eq=False):
    """The fold of one run's records. The root fold also holds the records of the whole tree.

    Owned by the engine's log or a `RunState`. Mutated by `apply` only, from the run's own event loop; not thread-safe.
    """

    def apply(self, record: r.Record) -> r.Record:
        """Append *record* and fold it, in one synchronous step. Return it as appended: with its `secret` flags set."""
        fold, get_brought = _STEPS[type(record)]
        if get_brought is not None and not self.holds_secrets and (brought := get_brought(record)):
            # An item is secret wholly or in part, or is a call whose output is.
            holds: bool = brought is True or bool(
                [one for one in brought if getattr(one, "secret", False) or getattr(one, "secret_output", False)]
            )
            self.holds_secrets = holds
        if self.holds_secrets:
            record = self.mark(record)
        self.records.append(record)
        if record.path and len(record.path) > len(self.path):
            self._apply_nested(record, fold)
        elif fold is not None:
            fold(self, record)
        return record

    def _apply_nested(self, record: r.Record, fold: Callable[[RunFacts, Any], None] | None) -> None:
        """Fold *record*, which is of a nested run, by *fold*."""
        target = self._find_nested(record)
        if fold is not None:
            fold(target, record)
        if type(record) is r.RunEnded:
            # An interrupted run no longer blocks the outputs behind that of the call around it.
            outer = self.at(record.path[:-1])
            assert outer is not None  # the run is nested in it
            _release(outer)

    def mark(self, record: r.Record) -> r.Record:
        """Return *record* as `apply` would append it now: with its `secret` flags set."""
        return mark_record(record, self) if self.holds_secrets and type(record) in MAY_HOLD_SECRETS else record

    def _find_nested(self, record: r.Record) -> RunFold:
        """Return the fold of the nested run that *record* belongs to; count its usage for the runs around that."""
        fold = self.at(record.path)
        if fold is None:
            outer = self.at(record.path[:-1])
            assert outer is not None  # a nested run's first record follows those of the run around it
            fold = outer.nest(record.path[-1], outer.limits)
        if isinstance(record, r.ModelResponded):
            self._meter_below(record.path, record.response.usage, record.cost)
        elif isinstance(record, r.ModelFailed) and record.counted:
            self._meter_below(record.path, record.usage)
        return fold

    def _meter_below(self, path: tuple[str, ...], usage: RequestUsage | None, cost: str | None = None) -> None:
        """Count a request of the run at *path* for this run and those between: a run's usage is its subtree's."""
        fold = self
        for step in path[len(self.path) :]:
            fold.meter.add(usage, cost)
            fold = fold.nested[step]
