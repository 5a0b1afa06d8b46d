"""The fold: what a state knows after each kind of record."""

from typing import Any

import pytest
from core.folding import Writer, called, ids
from hypothesis import given
from hypothesis import strategies as st

from agentloop import records as r
from agentloop._common.empty_containers import NO_DICT
from agentloop._core.handoff_outputs import IGNORED_HANDOFF
from agentloop._core.run_facts import UsageMeter
from agentloop._core.run_fold import RunFold, drop_repeats
from agentloop._storage.withholding import WithheldText
from agentloop.items import (
    AssistantMessage,
    HandoffCall,
    HandoffOutput,
    Item,
    Reasoning,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.model_events import ModelResponse
from agentloop.outcomes import AddedInput, CallOutcome
from agentloop.settings import JsonLimits
from agentloop.usage import RequestUsage, Usage

LIMITS = JsonLimits()
USAGE = RequestUsage(
    input_tokens=3,
    output_tokens=4,
    total_tokens=7,
    cached_tokens=1,
    cache_write_tokens=2,
    reasoning_tokens=2,
    audio_tokens=1,
)


# -- beginning and turns


def test_a_run_begins_with_its_input() -> None:
    """The model is shown the input, unless the record says that other items come before it."""
    state = Writer().begin(max_turns=3).state
    assert (state.run_id, state.agent, state.max_turns, state.turn) == ("run", "guide", 3, 0)
    assert state.input == tuple(state.history) == (UserMessage("go"),)
    assert state.new_items == []
    shown = (UserMessage("before"), UserMessage("go"))
    state = Writer().begin(shown=shown).state
    assert tuple(state.history) == shown
    assert state.input == (UserMessage("go"),)


def test_a_turn_forgets_the_last_one_s_response() -> None:
    """The batch, its releases and the response are the turn's own; calls, items and history are the run's."""
    writer = Writer().begin().turn(called("a")).settle("a").accept()
    assert (writer.state.released, len(writer.state.batch)) == (1, 1)
    writer.state.apply(r.TurnStarted((), 2, 0.0, "guide"))
    state = writer.state
    assert (state.turn, state.response, state.batch, state.released, state.batch_open) == (2, None, (), 0, False)
    assert state.turn_began == len(state.new_items) == 2
    assert list(state.calls) == ["a"]


def test_a_log_that_breaks_off_after_a_failure_says_what_ends_its_run() -> None:
    """A failure that the model isn't told of ends it; once the end is in the log, nothing is broken."""
    writer = Writer().begin().turn(called("a"))
    assert writer.state.unreported_error is None
    failed = CallOutcome(status="failed")
    writer.state.apply(r.CallSettled((), 1, 0.0, "a", "f", failed, error="ValueError(no luck)"))
    words = "ToolCallError(Error running tool f: ValueError: no luck)"
    assert writer.state.unreported_error == words
    writer.state.apply(r.RunEnded((), 1, 0.0, "failed", error=words))
    assert writer.state.unreported_error is None


@pytest.mark.parametrize("stage", ["input", "output"])
def test_a_log_that_breaks_off_after_a_tripwire_says_what_ends_its_run(stage: Any) -> None:
    """Once the end is in the log, the tripwire ends nothing any more."""
    writer = Writer().begin()
    writer.append(r.GuardrailSettled, stage, "polite", "tripped", 0.0)
    words = f"{stage.capitalize()}GuardrailTripwireTriggered({stage.capitalize()} guardrail polite tripped)"
    assert writer.state.unreported_error == words
    writer.append(r.RunEnded, "failed", error=words)
    assert writer.state.unreported_error is None


def test_a_response_opens_its_batch() -> None:
    """Its calls are due in model order; a response without calls opens none."""
    writer = Writer().begin().turn(Reasoning("r"), called("a"), called("b", "g"), response_id="resp")
    state = writer.state
    assert [(call.call.call_id, call.index, call.turn) for call in state.due_calls()] == [("a", 0, 1), ("b", 1, 1)]
    assert state.batch_open
    assert ids(state.history) == ["UserMessage", "Reasoning", "ToolCall:a", "ToolCall:b"]
    assert state.last_response_id == "resp"
    writer = Writer().begin()
    assert writer.state.last_response_id is None
    writer.turn(AssistantMessage("hi"))
    assert not writer.state.batch_open
    assert writer.state.due_calls() == []


# -- settling, releasing, accepting


def test_outputs_are_released_in_model_order_whatever_settles_first() -> None:
    """Nothing before the prefix has settled; the model's history waits for the batch's end."""
    writer = Writer().begin().turn(called("a"), called("b"), called("c"))
    state = writer.state
    writer.settle("b")
    assert not state.just_released
    assert ids(state.new_items) == ["ToolCall:a", "ToolCall:b", "ToolCall:c"]
    writer.settle("a")
    assert ids(state.new_items)[3:] == ids(state.just_released) == ["ToolOutput:a", "ToolOutput:b"]
    assert [call.released for call in state.batch] == [True, True, False]
    assert [call.call.call_id for call in state.due_calls()] == ["c"]
    writer.settle("c")
    assert "ToolOutput:a" not in ids(state.history)
    assert state.batch_open
    writer.accept()
    assert ids(state.history)[-3:] == ["ToolOutput:a", "ToolOutput:b", "ToolOutput:c"]
    assert not state.batch_open
    assert state.tool_users == {"guide"}


def test_a_call_without_an_output_leaves_no_item() -> None:
    """A call that the run's end cancelled leaves no output among the items or in the history."""
    writer = Writer().begin().turn(called("a"), called("b"))
    writer.settle("a", None, "cancelled").settle("b").accept()
    assert ids(writer.state.new_items)[2:] == ["ToolOutput:b"]
    assert ids(writer.state.history)[3:] == ["ToolOutput:b"]


def test_a_started_call_knows_its_tool_and_attempt() -> None:
    """The start record gives tool and attempt; the body's end, requests and cuts don't change them."""
    writer = Writer().begin().turn(called("a"))
    writer.append(r.CallStarted, "a", "f", "{}", attempt=2)
    writer.append(r.BodyEnded, "a")
    writer.append(r.CleanupCut, "hooks", "a")
    call = writer.state.calls["a"]
    assert (call.tool, call.attempt, call.outcome) == ("f", 2, None)


def test_only_the_first_success_is_a_receipt() -> None:
    """A failure leaves no receipt, and a key belongs to the first successful call."""
    writer = Writer().begin().turn(*(called(one) for one in "abcd"))
    writer.settle("a", "no", "failed", receipt="k").settle("b", receipt="k").settle("c", receipt="k").settle("d")
    assert writer.state.receipts == {"k": "b"}


def test_an_output_that_was_stored_as_a_digest_is_no_receipt() -> None:
    """Nobody has its text any more, so an equal call runs by itself."""
    writer = Writer().begin().turn(called("a"), called("b"))
    writer.settle("a", WithheldText("digest"), receipt="k").settle("b", receipt="k")
    assert writer.state.receipts == {"k": "b"}


def test_repeats_count_equal_outcomes_in_a_row() -> None:
    """Calls of one tool with equal arguments count together, in model order; another output starts the count anew."""
    writer = Writer().begin().turn(called("a"), called("b"), called("c", "f", " {}"))
    writer.settle("c", "x").settle("b", "x").settle("a", "y").accept()
    assert writer.state.count_repeats() == [("f", 2, 3)]
    assert writer.state.count_repeats() == []  # each turn is counted once
    writer.turn(called("d"), called("e", "f", '{"n": 1}')).settle("d", "x").settle("e", "x").accept()
    assert writer.state.count_repeats() == [("f", 3, 1), ("f", 1, 1)]


def test_repeats_of_turns_that_nobody_asked_about_are_counted_later() -> None:
    """So a resumed run counts what its earlier segments did; only the calls of the last turn are reported."""
    other = called("b", "f", '{"n": 1}')
    writer = Writer().begin().turn(called("a"), other).settle("a", "x").settle("b", "x").accept()
    writer.turn(called("c")).settle("c", "x").accept()
    assert writer.state.count_repeats() == [("f", 2, 1)]


def test_a_batch_of_nothing_makes_nobody_a_user_of_tools() -> None:
    """A batch without calls adds no agent to the users of tools."""
    assert Writer().begin().turn(AssistantMessage("hi")).accept().state.tool_users == set()


# -- repeats within and between responses


def test_a_repeated_call_leaves_with_its_reasoning() -> None:
    """The repeated call is no call of the batch, and its reasoning leaves the response with it."""
    writer = Writer().begin().turn(called("a")).settle("a").accept()
    writer.turn(AssistantMessage("hm"), Reasoning("r1"), Reasoning("r2"), called("a"), Reasoning("r3"), called("b"))
    state = writer.state
    assert ids(state.response or []) == ["AssistantMessage", "Reasoning", "ToolCall:b"]
    assert [call.call.call_id for call in state.batch] == ["b"]
    assert state.conflict is None


@pytest.mark.parametrize(
    "again",
    [called("a", "g"), called("a", "f", '{"n": 2}'), called("a", "f", "{}", "ns"), HandoffCall("a", "f")],
)
def test_a_contradicting_call_is_a_conflict(again: Item) -> None:
    """The call may be of a later response or of the same one; the first contradiction is kept."""
    writer = Writer().begin().turn(called("a")).settle("a").accept().turn(again, called("a", "third"))
    assert writer.state.conflict is again
    writer = Writer().begin().turn(called("a"), again)
    assert writer.state.conflict is again
    assert ids(writer.state.response or []) == ["ToolCall:a"]


def test_calls_without_an_id_are_kept_apart() -> None:
    """Such calls make no call of the batch: planning refuses the response."""
    state = Writer().begin().turn(called(""), called(""), HandoffCall("", "h")).state
    assert ids(state.response or []) == ["ToolCall", "ToolCall", "HandoffCall"]
    assert (state.batch, state.calls, state.handoffs_due, state.conflict) == ((), {}, (), None)


ARGUMENTS = st.sampled_from(["{}", '{"a":1}', '{ "a": 1 }', '{"a":1.0}', "nonsense"])
CALLS = st.builds(ToolCall, st.sampled_from(["a", "b", "c"]), st.sampled_from(["f", "g"]), ARGUMENTS)


@given(items=st.lists(CALLS | st.just(Reasoning("r")) | st.just(AssistantMessage("m")), max_size=8))
def test_what_is_kept_has_each_id_once(items: list[Item]) -> None:
    """A conflict is found exactly if two calls of an id ask for different things; messages always stay."""
    kept, conflict = drop_repeats(RunFold(limits=LIMITS), items)
    made = [item for item in items if isinstance(item, ToolCall)]
    assert [item.call_id for item in kept if isinstance(item, ToolCall)] == list(
        dict.fromkeys(item.call_id for item in made)
    )
    assert kept.count(AssistantMessage("m")) == items.count(AssistantMessage("m"))
    meaning = {(call.call_id, call.name, call.arguments.replace(" ", "")) for call in made}
    assert (conflict is None) == (len(meaning) == len({call.call_id for call in made}))


# -- handoffs, replaced history, added input


def test_a_handoff_answers_all_and_changes_the_agent() -> None:
    """The output of the taken handoff names its agent, and those of the others say that they were ignored."""
    writer = Writer().begin().turn(HandoffCall("h1", "to_b"), HandoffCall("h2", "to_c"))
    state = writer.state
    assert [call.call_id for call in state.handoffs_due] == ["h1", "h2"]
    writer.append(r.HandedOff, "h1", "guide", "b", ("h2",))
    outputs = [item for item in state.new_items if isinstance(item, HandoffOutput)]
    assert [(item.call_id, item.output) for item in outputs] == [
        ("h1", "Handed over to b."),
        ("h2", IGNORED_HANDOFF),
    ]
    assert state.history[-2:] == outputs
    assert (state.agent, state.response, state.handoffs_due) == ("b", None, ())
    writer.turn(HandoffCall("h1", "to_b"))
    assert state.handoffs_due == ()
    assert state.conflict is None


def test_replaced_history_is_what_the_model_sees_next() -> None:
    """The run's items stay, unless the items are its own."""
    writer = Writer().begin().turn(AssistantMessage("one"))
    state = writer.state
    before = state.history_digest()
    writer.append(r.HistoryReplaced, "compaction", 0, (UserMessage("summary"),))
    assert state.history == [UserMessage("summary")]
    assert state.new_items == [AssistantMessage("one")]
    assert state.history_digest() != before
    writer.append(r.HistoryReplaced, "handler", 1, (AssistantMessage("two"),), added=True)
    assert state.history == [UserMessage("summary"), AssistantMessage("two")]
    assert state.new_items == [AssistantMessage("one"), AssistantMessage("two")]


def test_a_withheld_output_is_withheld_everywhere_but_in_the_log() -> None:
    """The output is replaced in history and items; other outputs and items stay."""
    writer = Writer().begin().turn(called("a"), called("b")).settle("a", "secret").settle("b").accept()
    state = writer.state
    keep = state.history.index(ToolOutput("a", "secret"))
    replaced = (ToolOutput("a", "withheld"), ToolOutput("b", "ok"))
    writer.append(r.HistoryReplaced, "output_withheld", keep, replaced)
    assert tuple(state.history[keep:]) == replaced
    assert [item for item in state.new_items if isinstance(item, ToolOutput)] == list(replaced)
    outcome = state.calls["a"].outcome
    assert outcome is not None
    assert outcome.output == "secret"


def test_added_input_of_an_older_log_stands_in_history_and_items() -> None:
    """The input is the last of the history and of the run's items: it was shown at once."""
    writer = Writer().begin()
    writer.append(r.InputAdded, (UserMessage("more"),))
    assert writer.state.history == [UserMessage("go"), UserMessage("more")]
    assert writer.state.new_items == [UserMessage("more")]


@pytest.mark.scenario("PE-01")
def test_added_input_enters_the_history_as_it_is_shown() -> None:
    """Until then it waits; then it is the last of the history and of the run's items, and no answer is a candidate."""
    writer = Writer().begin().turn(AssistantMessage("hi"))
    writer.append(r.InputAdded, (UserMessage("more"),), "i", "idle", "ann")
    writer.append(r.InputAdded, (UserMessage("even more"),), "j")
    state = writer.state
    assert state.history == [UserMessage("go"), AssistantMessage("hi")]
    assert list(state.inbox) == list(state.inputs) == ["i", "j"]
    before = state.detached()
    writer.append(r.InputShown, "i")
    assert state.history[2:] == [UserMessage("more")] == state.new_items[1:]
    assert (state.response, list(state.inbox)) == (None, ["j"])
    assert state.inputs["i"] == AddedInput("i", (UserMessage("more"),), "idle", "ann", "shown")
    writer.append(r.InputWithdrawn, "j")
    assert (state.inbox, state.inputs["j"].status) == ({}, "withdrawn")
    assert [list(before.inbox), before.inputs["i"].status] == [["i", "j"], "waiting"]
    assert len(state.history) == 3


@pytest.mark.scenario("PE-03")
def test_a_guardrail_judges_an_added_input_by_itself() -> None:
    """It rejects the input alone; a pass says nothing about the run's own input; a tripwire ends the run."""
    writer = Writer().begin()
    writer.append(r.InputAdded, (UserMessage("more"),), "i")
    settled = {"index": 0, "input_id": "i"}
    writer.append(r.GuardrailSettled, "input", "g", "passed", 0.0, **settled)
    assert (writer.state.input_guards_passed, list(writer.state.inbox)) == (frozenset(), ["i"])
    for _ in range(2):  # of two guardrails that reject it, the first one's words are kept
        writer.append(r.GuardrailSettled, "input", "g", "ask_again", 0.0, detail="No.", **settled)
    rejected = writer.state.inputs["i"]
    assert (rejected.status, rejected.reason, list(writer.state.inbox)) == ("rejected", "No.", [])
    writer.append(r.InputAdded, (UserMessage("secret"),), "j")
    writer.append(r.GuardrailSettled, "input", "g", "ask_again", 0.0, detail=None, input_id="j")
    assert writer.state.inputs["j"].reason is None
    writer.append(r.InputAdded, (UserMessage("bad"),), "k")
    writer.append(r.GuardrailSettled, "input", "g", "tripped", 0.0, input_id="k")
    assert writer.state.tripped is not None


def test_the_digest_is_of_the_history_alone() -> None:
    """Equal histories made differently have one digest; it can be asked at any time."""
    eager, late = Writer().begin(), Writer().begin()
    for writer in (eager, late):
        writer.turn(called("a"))
        if writer is eager:
            writer.state.history_digest()
        writer.settle("a").accept()
    assert eager.state.history_digest() == late.state.history_digest()
    replaced = Writer().begin()
    replaced.state.history_digest()
    replaced.append(r.HistoryReplaced, "all", 0, tuple(eager.state.history))
    assert replaced.state.history_digest() == eager.state.history_digest()
    late.turn(AssistantMessage("more"))
    assert eager.state.history_digest() != late.state.history_digest()


# -- the end, usage, guardrails, nesting


def test_the_end_is_kept() -> None:
    """The state keeps the end's record itself."""
    writer = Writer().begin()
    assert writer.state.ended is None
    writer.append(r.RunEnded, "completed", "x")
    assert writer.state.ended is writer.state.records[-1]


def test_guardrail_results_are_kept_in_order() -> None:
    """The state keeps the guardrails' records."""
    writer = Writer().begin()
    writer.append(r.GuardrailSettled, "tool_input", "one", "Allow", 0.1)
    writer.append(r.GuardrailSettled, "tool_output", "two", "Allow", 0.1)
    assert [record.guardrail for record in writer.state.guardrails] == ["one", "two"]


def test_usage_counts_each_request_once() -> None:
    """Responses, counted failures and requests without numbers count; a request without usage has no entry."""
    writer = Writer().begin().turn(usage=USAGE)
    writer.append(r.ModelFailed, "cut", usage=RequestUsage(complete=False))
    writer.append(r.ModelFailed, "never sent", counted=False, usage=USAGE)
    writer.turn(usage=RequestUsage()).turn()
    usage = writer.state.usage
    assert (usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens) == (4, 3, 4, 7)
    assert (usage.cached_tokens, usage.cache_write_tokens, usage.reasoning_tokens, usage.audio_tokens) == (1, 2, 2, 1)
    assert usage + usage == Usage(
        requests=8,
        input_tokens=6,
        output_tokens=8,
        total_tokens=14,
        cached_tokens=2,
        cache_write_tokens=4,
        reasoning_tokens=4,
        audio_tokens=2,
        entries=usage.entries * 2,
    )
    assert usage.entries == (USAGE, RequestUsage(complete=False))


@given(st.lists(st.builds(RequestUsage, input_tokens=st.integers(0, 9), output_tokens=st.integers(0, 9))))
def test_the_meter_and_the_sum_of_values_agree(entries: list[RequestUsage]) -> None:
    """`total` is detached: what comes later doesn't change it."""
    meter = UsageMeter()
    for entry in entries:
        meter.add(entry)
    total = meter.total()
    assert total.requests == len(entries)
    assert total.input_tokens == sum(entry.input_tokens for entry in entries)
    assert total.output_tokens == sum(entry.output_tokens for entry in entries)
    meter.add(None)
    assert total.requests == len(entries)
    assert isinstance(total, Usage)


def test_a_nested_run_is_folded_below_its_call() -> None:
    """Its records are in the root's log, its usage counts for the root, its items are its own."""
    writer = Writer().begin().turn(called("a"))
    root = writer.state
    path = ("a",)
    root.apply(r.RunStarted(path, 0, 0.0, "run/a", "inner", (UserMessage("in"),), 10))
    root.apply(r.TurnStarted(path, 1, 0.0, "inner"))
    root.apply(r.ModelFailed(path, 1, 0.0, "no", usage=USAGE))
    root.apply(r.ModelFailed(path, 1, 0.0, "no", counted=False))
    root.apply(r.ModelResponded(path, 1, 0.0, ModelResponse((called("a"),), USAGE)))
    deep = ("a", "a")
    root.apply(r.RunStarted(deep, 0, 0.0, "run/a/a", "innermost", (), 10))
    root.apply(r.ModelResponded(deep, 1, 0.0, ModelResponse((), USAGE)))
    inner = root.nested["a"]
    innermost = inner.nested["a"]
    assert (root.agent, inner.agent, innermost.agent) == ("guide", "inner", "innermost")
    assert (root.path, inner.path, innermost.path) == ((), path, deep)
    assert (root.usage.requests, inner.usage.requests, innermost.usage.requests) == (4, 3, 1)
    assert ids(root.new_items) == ["ToolCall:a"]
    assert inner.records == innermost.records == []
    assert len(root.records) == 11


def test_a_prepared_nested_state_is_used() -> None:
    """The fold takes the one that is there."""
    root = Writer().begin().turn(called("a")).state
    inner = root.nest("a", JsonLimits())
    root.apply(r.TurnStarted(("a",), 1, 0.0, "inner"))
    assert inner.turn == 1


def test_a_nested_run_may_begin_with_any_record() -> None:
    """Nothing is known yet of what is secret in it, so that the record is kept as it came."""
    root = Writer().begin().turn(called("a")).state
    ended = r.RunEnded(("a",), 0, 0.0, "failed", error="ValueError(no luck)")
    assert root.apply(ended) is ended
    assert root.nested["a"].ended is ended


def test_records_without_a_meaning_for_the_state_are_kept() -> None:
    """The log keeps a record that changes nothing else in the state."""
    writer = Writer().begin()
    writer.append(r.GraphChanged, ("x",))
    assert isinstance(writer.state.records[-1], r.GraphChanged)


@given(order=st.permutations(range(5)), without=st.sets(st.integers(0, 4)))
def test_history_pairs_every_call_whatever_order_they_settle_in(order: list[int], without: set[int]) -> None:
    """Released outputs are in model order; folding the same records again gives the same state."""
    writer = Writer().begin().turn(*(called(f"c{n}") for n in range(5)))
    for n in order:
        writer.settle(f"c{n}", None if n in without else f"o{n}")
    writer.accept()
    wanted = [f"ToolOutput:c{n}" for n in range(5) if n not in without]
    assert ids(writer.state.new_items)[5:] == wanted
    assert ids(writer.state.history)[6:] == wanted
    again = RunFold()
    for record in writer.state.records:
        again.apply(record)
    assert (again.history, again.new_items) == (writer.state.history, writer.state.new_items)
    assert again.history_digest() == writer.state.history_digest()


def test_a_detached_fold_goes_its_own_way() -> None:
    """A run that continues a state changes a copy of its fold, which shares nothing that either could change."""
    usage = RequestUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    writer = Writer().begin().turn(called("a"), called("b"), called("c"), usage=usage).settle("a", receipt="key")
    writer.append(r.ApprovalRequested, "b", "guide", "f", "digest")
    writer.append(r.CallStarted, "c", "f", "{}")
    state = writer.state
    state.apply(r.RunStarted(("c",), 0, 0.0, "run/c", "inner", (), None))
    other_fold = state.detached()
    assert other_fold.nested["c"].run_id == "run/c"
    assert other_fold.nested["c"] is not state.nested["c"]
    assert other_fold.batch == [other_fold.calls["a"], other_fold.calls["b"], other_fold.calls["c"]]

    other = Writer(other_fold).settle("c").settle("b", receipt="other").accept().turn(usage=usage)
    other.append(r.VerdictGiven, "b", "guide", "f", "digest", True, always=True)

    assert (state.turn, len(state.records), len(state.history)) == (1, 8, 4)
    assert [call.outcome is None for call in state.batch] == [False, True, True]
    assert (state.receipts, state.sticky, state.released_late) == ({"key": "a"}, {}, None)
    assert (state.usage.requests, other_fold.usage.requests, len(state.usage.entries)) == (1, 2, 1)
    assert other_fold.detached().history_digest() == other_fold.history_digest()


def test_a_state_may_have_its_own_limits_on_json() -> None:
    """Arguments beyond the limits are compared as text."""
    deep: Any = '{"a":[[1]]}'
    strict, loose = RunFold(limits=JsonLimits(max_depth=1)), RunFold()
    for state in (strict, loose):
        writer = Writer(state).begin().turn(called("a", "f", deep)).settle("a").accept()
        writer.turn(called("a", "f", deep.replace(":", ": ")))
    assert strict.conflict is not None
    assert loose.conflict is None
    assert strict.calls["a"].outcome == CallOutcome(status="succeeded", output="ok")


# -- what is shared


def test_the_shared_empty_dictionary_takes_no_entry() -> None:
    """All runs begin with it: an entry would be in each of them."""
    with pytest.raises(TypeError, match="'call' can't be put into the empty dictionary"):
        NO_DICT["call"] = 1
    assert NO_DICT == {}


def test_a_fold_shows_nothing_of_its_log() -> None:
    """What a debugger or an error prints of it may not repeat a secret of a record."""
    writer = Writer().begin().turn(called("a", arguments='{"key": "s3cret"}'))
    assert "s3cret" not in repr(writer.state)


def test_a_detached_fold_has_its_own_late_outputs() -> None:
    """A call that settles behind one that waits is released late, in both folds by itself."""
    writer = Writer().begin().turn(called("a"), called("b"))
    writer.append(r.ApprovalRequested, "a", "guide", "f", "digest")
    writer.settle("b").settle("a")
    assert writer.state.released_late is not None
    detached = writer.state.detached()
    assert detached.released_late is not writer.state.released_late
    assert list(detached.released_late or ()) == []
    assert [call.released for call in detached.calls.values()] == [True, True]


def test_a_detached_fold_has_no_nested_run_that_never_began() -> None:
    """A running call makes the fold of its nested run before the first record, which an error may prevent."""
    state = Writer().begin().turn(called("a")).state
    state.nest("a", state.limits)
    assert "a" in state.nested
    assert state.detached().nested == {}


@pytest.mark.parametrize(("cost", "total"), [("many", None), ("NaN", None), ("0.5", 0.75), (None, 0.25)])
def test_usage_has_the_cost_of_its_requests(cost: str | None, total: float | None) -> None:
    """One of a stored log that isn't a number makes the sum unknown: its run can't be resumed either."""
    writer = Writer().begin().turn(called("a"))
    for one in ("0.25", cost):
        writer.append(r.ModelResponded, ModelResponse(()), cost=one)
    assert writer.state.usage.cost == total
