"""The transition table: every kind of record in every phase of a run and of a call."""

from types import SimpleNamespace
from typing import Any

import pytest

from agentloop import records as r
from agentloop._core.run_fold import RunFold
from agentloop._core.transitions import OF_CALLS, OF_RUNS, check_next
from agentloop.items import AssistantMessage, HandoffCall, ToolCall, UserMessage
from agentloop.model_events import ModelResponse
from agentloop.outcomes import CallOutcome

AT: Any = ((), 1, 0.0)
STARTED = r.RunStarted((), 0, 0.0, "run", "a", (), 10)
TURN = r.TurnStarted(*AT, "a")
CALLED = r.ModelResponded(*AT, ModelResponse((ToolCall("c", "tool", "{}"),)))
BOTH_CALLED = r.ModelResponded(*AT, ModelResponse((ToolCall("b", "tool", "{}"), ToolCall("c", "tool", "{}"))))
HANDED = r.ModelResponded(*AT, ModelResponse((HandoffCall("h", "to_b", "{}"),)))
ASKED = r.ApprovalRequested(*AT, "c", "a", "tool", "digest")
BEGUN = r.CallStarted(*AT, "c", "tool", "{}")
ANSWER_WANTED = r.AnswerRequested(*AT, "c", "a", "tool", {})
RETURNED = r.BodyEnded(*AT, "c")
SETTLED = r.CallSettled(*AT, "c", "tool", CallOutcome(status="succeeded", output="done"))
ENDED = r.RunEnded(*AT, "interrupted", resumable=True)

IN_CALLS = (STARTED, TURN, CALLED)
PHASES: dict[str, tuple[r.Record, ...]] = {
    "unstarted": (),
    "between": (STARTED,),
    "model": (STARTED, TURN),
    "calls": IN_CALLS,
    "handoff": (STARTED, TURN, HANDED),
    "ended": (*IN_CALLS, ENDED),
}
CALL_PHASES: dict[str, tuple[r.Record, ...]] = {
    "new": IN_CALLS,
    "asked": (*IN_CALLS, ASKED),
    "started": (*IN_CALLS, BEGUN),
    "returned": (*IN_CALLS, BEGUN, RETURNED),
    "settled": (STARTED, TURN, BOTH_CALLED, BEGUN, RETURNED, SETTLED),
    "released": (*IN_CALLS, BEGUN, RETURNED, SETTLED),
}
RECORDS: tuple[r.Record, ...] = (
    STARTED,
    r.RunResumed(*AT, "a", 10),
    TURN,
    r.ModelRequested(*AT, "digest"),
    CALLED,
    r.ModelFailed(*AT, "error"),
    r.GuardrailSettled(*AT, "input", "guard", "passed", 0.0),
    ASKED,
    r.VerdictGiven(*AT, "c", "a", "tool", "digest", approved=True),
    BEGUN,
    ANSWER_WANTED,
    r.CallAnswered(*AT, "c", 1),
    RETURNED,
    SETTLED,
    r.BatchEnded(*AT),
    r.HandedOff(*AT, "h", "a", "b"),
    r.HistoryReplaced(*AT, "compaction", 0, ()),
    r.InputAdded(*AT, (), "i"),
    r.InputShown(*AT, "i"),
    r.InputWithdrawn(*AT, "i"),
    r.SandboxOpened(*AT, "box"),
    r.SessionSaved(*AT, 0),
    r.CallbackReturned(*AT, "what", "key"),
    r.CancelRequested(*AT),
    r.DeadlinePassed(*AT),
    r.CleanupCut(*AT, "section"),
    r.GraphChanged(*AT, ()),
    r.RunEnded(*AT, "failed"),
)


def fold_of(*records: r.Record) -> RunFold:
    """Return the fold of *records*, each of which the table allows."""
    fold = RunFold()
    for record in records:
        check_next(fold, record)
        fold.apply(record)
    return fold


def is_allowed(fold: RunFold, record: r.Record) -> bool:
    """Tell whether the table allows *record* next."""
    try:
        check_next(fold, record)
    except ValueError:
        return False
    return True


OF_NO_KIND = SimpleNamespace(path=())
"""What fits no phase, so that the refusal tells the phase."""
REFUSALS = {
    "unstarted": "its run has not started",
    "between": "no turn waits for it",
    "model": "the turn waits for the model's answer",
    "calls": "calls of the turn are due",
    "handoff": "a handoff is due",
    "ended": "the run has ended",
}
"""What the table says to a record that doesn't fit, by the phase of the run."""


def read_refusal(fold: RunFold, record: Any) -> str:
    """Return the reason why the table refuses *record* now."""
    with pytest.raises(ValueError) as refused:
        check_next(fold, record)
    return str(refused.value)


def test_every_kind_of_record_has_its_phases() -> None:
    """A new kind of record must be entered in the table."""
    kinds = set(r.Record.__args__)  # type: ignore[attr-defined]
    assert set(OF_RUNS) == kinds == {type(record) for record in RECORDS}
    assert set(OF_CALLS) <= kinds


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_allowed_in_the_phases_of_its_run_alone(record: r.Record) -> None:
    """The phase of the run decides; where a call is named, in a phase of the call that allows it."""
    for phase, before in PHASES.items():
        fold = fold_of(*before)
        assert read_refusal(fold, OF_NO_KIND) == REFUSALS[phase]
        if isinstance(record, r.InputShown | r.InputWithdrawn) and phase != "unstarted":
            fold.apply(r.InputAdded(*AT, (), "i"))
        if type(record) not in OF_CALLS and not isinstance(record, r.BatchEnded | r.TurnStarted):
            assert is_allowed(fold, record) == (phase in OF_RUNS[type(record)]), phase
        elif phase not in OF_RUNS[type(record)]:
            assert read_refusal(fold, record) == REFUSALS[phase]


@pytest.mark.parametrize("kind", OF_CALLS, ids=lambda kind: kind.__name__)
def test_a_record_is_allowed_in_the_phases_of_its_call_alone(kind: type) -> None:
    """The phase of the call decides, and the number of the attempt."""
    record: Any = next(record for record in RECORDS if type(record) is kind)
    for phase, before in CALL_PHASES.items():
        fold = fold_of(*before)
        attempt = fold.calls["c"].attempt
        if isinstance(record, r.CallStarted):
            record = record.replace(attempt=attempt + 1)
            assert not is_allowed(fold, record.replace(attempt=attempt + 2))
        elif isinstance(record, r.BodyEnded):
            record = record.replace(attempt=attempt)
            assert not is_allowed(fold, record.replace(attempt=attempt + 1))
        elif isinstance(record, r.CallAnswered) and phase == "started":
            assert read_refusal(fold, record) == "call 'c' waits for no answer"
            fold = fold_of(*before, ANSWER_WANTED)
            assert read_refusal(fold, ANSWER_WANTED) == "call 'c' waits for an answer already"
            assert not is_allowed(fold_of(*before, ANSWER_WANTED, record), record)
        if phase in OF_CALLS[kind]:
            assert is_allowed(fold, record), phase
        else:
            assert read_refusal(fold, record) == f"call 'c' is {phase}"
    assert not is_allowed(fold_of(*IN_CALLS), record.replace(call_id="another"))


def test_a_call_whose_body_ended_has_started() -> None:
    """A call that settles with its body has no record of the body's end: the outcome shows that there was one."""
    ended = SETTLED.replace(body_ended_at=1.0)
    assert not is_allowed(fold_of(*IN_CALLS), ended)
    assert is_allowed(fold_of(*IN_CALLS, BEGUN), ended)


def test_order_of_turns_and_of_the_end_of_a_batch() -> None:
    """Turns are numbered without gaps, and a batch ends when all its calls have been released."""
    assert is_allowed(fold_of(STARTED), TURN)
    assert not is_allowed(fold_of(STARTED), TURN.replace(turn=2))
    assert is_allowed(fold_of(STARTED, TURN), TURN)  # the turn of a run that was resumed before the model had answered
    assert not is_allowed(fold_of(STARTED, TURN), TURN.replace(turn=2))
    assert not is_allowed(fold_of(*CALL_PHASES["settled"]), r.BatchEnded(*AT))
    assert is_allowed(fold_of(*CALL_PHASES["released"]), r.BatchEnded(*AT))


def test_a_handoff_is_one_that_is_due() -> None:
    """The call of a handoff must be one of the response's."""
    assert not is_allowed(fold_of(*PHASES["handoff"]), r.HandedOff(*AT, "another", "a", "b"))


def test_records_of_nested_runs_follow_their_start() -> None:
    """A nested run starts under a run that has started; no run nests deeper than the table reads."""
    inner: Any = (("c",), 0, 0.0)
    begin = r.RunStarted(*inner, "run/c", "b", (), 10)
    assert not is_allowed(fold_of(*IN_CALLS), r.TurnStarted(("c",), 1, 0.0, "b"))
    assert not is_allowed(fold_of(), begin)
    assert not is_allowed(fold_of(STARTED), begin.replace(path=("c", "d")))
    nested = fold_of(*IN_CALLS, BEGUN, begin)
    assert is_allowed(nested, r.TurnStarted(("c",), 1, 0.0, "b"))
    assert not is_allowed(nested, begin)
    assert not is_allowed(nested, begin.replace(path=("c",) * 501))


def test_a_record_of_an_unknown_run_is_marked_by_nothing() -> None:
    """The marks of secrets come from the run's own calls; a run that the log doesn't have has none."""
    secret = ToolCall("c", "tool", "{}", secret=frozenset({"password"}))
    fold = fold_of(STARTED, TURN, r.ModelResponded(*AT, ModelResponse((secret,))))
    assert fold.holds_secrets
    ended = r.RunEnded(("nobody",), 0, 0.0, "failed")
    assert fold.mark(ended) is ended


ADDED = r.InputAdded(*AT, (UserMessage("more"),), "i")


@pytest.mark.scenario("PE-01")
def test_an_input_waits_once_and_is_shown_or_withdrawn_once() -> None:
    """An id names one input of the run; what doesn't wait can't be shown or taken back."""
    shown, withdrawn = r.InputShown(*AT, "i"), r.InputWithdrawn(*AT, "i")
    waiting = fold_of(STARTED, ADDED)
    assert not is_allowed(waiting, ADDED)
    assert "it is unknown" in read_refusal(waiting, shown.replace(id="j"))
    for last, status in ((shown, "shown"), (withdrawn, "withdrawn")):
        over = fold_of(STARTED, ADDED, last)
        assert not is_allowed(over, ADDED)
        for again in (shown, withdrawn):
            assert read_refusal(over, again) == f"input 'i' doesn't wait: it is {status}"


@pytest.mark.scenario("PE-01")
def test_no_input_separates_a_call_and_its_output_or_the_parts_of_an_answer() -> None:
    """It is taken at any time, and shown where the history is whole. An input of an older log was shown at once."""
    paused = r.ModelResponded(*AT, ModelResponse((AssistantMessage("a"),), finish_reason="pause"))
    for records in (IN_CALLS, PHASES["handoff"], (STARTED, TURN, paused)):
        fold = fold_of(*records, ADDED)
        assert not is_allowed(fold, r.InputShown(*AT, "i"))
    assert not is_allowed(fold_of(*IN_CALLS), r.InputAdded(*AT, ()))
    assert not is_allowed(fold_of(*PHASES["handoff"]), r.InputAdded(*AT, ()))
    assert is_allowed(fold_of(STARTED, TURN), r.InputAdded(*AT, ()))


def test_a_run_has_one_sandbox_which_nested_runs_share() -> None:
    """A second one, or one of a nested run, is refused."""
    opened = r.SandboxOpened(*AT, "box")
    assert fold_of(STARTED, opened).sandbox == "box"
    assert not is_allowed(fold_of(STARTED, opened), opened)
    nested = r.RunStarted(("c",), 0, 0.0, "run/c", "b", (), 10)
    assert not is_allowed(fold_of(*IN_CALLS, BEGUN, nested), opened.replace(path=("c",)))


def test_only_a_compaction_may_replace_the_history_within_a_turn() -> None:
    """The provider has refused the turn's request as too long; nothing else changes what the model is answering."""
    fold = RunFold()
    for record in PHASES["model"]:
        fold.apply(record)
    check_next(fold, r.HistoryReplaced(*AT, "compaction", 0, ()))
    with pytest.raises(ValueError, match="waits for the model's answer"):
        check_next(fold, r.HistoryReplaced(*AT, "handoff_filter", 0, ()))
