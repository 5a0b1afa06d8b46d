"""The gate that a record from outside passes before it is appended, and what counts as a repeated call."""

from typing import Any

import pytest

from agentloop import records as r
from agentloop._core.gate import admit
from agentloop._core.run_fold import RunFold
from agentloop.exceptions import StateError
from agentloop.items import ToolCall
from agentloop.model_events import ModelResponse
from agentloop.outcomes import CallOutcome

AT: Any = ((), 1, 0.0)
BEGUN: tuple[r.Record, ...] = (
    r.RunStarted((), 0, 0.0, "run", "a", (), 10),
    r.TurnStarted(*AT, "a"),
    r.ModelRequested(*AT, "digest"),
    r.ModelResponded(*AT, ModelResponse((ToolCall("c", "f", "{}"),))),
)


def fold_of(*records: r.Record) -> RunFold:
    fold = RunFold()
    for record in records:
        fold.apply(record)
    return fold


@pytest.mark.scenario("SM-01")
def test_what_the_table_takes_and_can_be_read_is_admitted() -> None:
    """It is returned as it is."""
    record = r.CancelRequested(*AT, "c")
    assert admit(fold_of(*BEGUN), record) is record


@pytest.mark.scenario("SM-01")
def test_what_the_table_refuses_is_not_admitted() -> None:
    """A verdict on a run that hasn't begun; the text names the kind of record."""
    with pytest.raises(StateError, match="the log takes no VerdictGiven now: "):
        admit(RunFold(), r.VerdictGiven(*AT, "c", "a", "f", "digest", approved=True))


@pytest.mark.scenario("SM-01")
def test_what_could_not_be_read_again_is_not_admitted() -> None:
    """A value of another type than its field's could be written, and then nobody could read the log."""
    odd: Any = 5
    with pytest.raises(StateError, match="the log takes no CancelRequested that can't be read again: "):
        admit(fold_of(*BEGUN), r.CancelRequested(*AT, "c", None, odd))


@pytest.mark.parametrize(("by", "repeats"), [("parent", []), ("deadline", []), (None, [("f", 1, 1)])])
def test_a_call_that_was_cancelled_from_above_repeats_nothing(by: Any, repeats: list[Any]) -> None:
    """Its output says nothing about the tool."""
    status: Any = "succeeded" if by is None else "cancelled"
    outcome = CallOutcome(status=status, output="x", cancelled_by=by)
    fold = fold_of(*BEGUN, r.CallStarted(*AT, "c", "f", "{}"), r.CallSettled(*AT, "c", "f", outcome))
    assert fold.count_repeats() == repeats
