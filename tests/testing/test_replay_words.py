"""A divergence names the record, what was wanted, what came, and what has probably changed."""

from typing import Any

import pytest

from agentloop import records as r
from agentloop.outcomes import CallOutcome
from agentloop.testing.replaying._recorded import Difference
from agentloop.testing.replaying._words import explained, named, stuck

TURN = r.TurnStarted((), 2, 0.0, "a", tools=("x", "y"))


def settled(status: Any, **fields: Any) -> r.CallSettled:
    """Return the record of call c1's end."""
    return r.CallSettled((), 1, 0.0, "c1", "pay", CallOutcome(status=status, **fields))


def ended(error: str) -> r.RunEnded:
    """Return the record of a run that failed."""
    return r.RunEnded((), 1, 0.0, "failed", error=error)


STARTED = r.CallStarted((), 1, 0.0, "c1", "pay", "{}")
JUDGED = r.GuardrailSettled((), 1, 0.0, "tool_input", "checks", "Allow", 0.0)
ASKED = r.ApprovalRequested((), 1, 0.0, "c1", "a", "pay", "digest")
ANSWERED = r.CallbackReturned((), 1, 0.0, "is_enabled", "c1", answer=True)
SAVED = r.SessionSaved((), 1, 0.0, 3)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (None, "nothing"),
        (settled("failed"), "CallSettled of call c1 of tool pay (failed)"),
        (JUDGED, "GuardrailSettled of guardrail checks"),
        (ANSWERED, "CallbackReturned to is_enabled c1"),
        (r.HistoryReplaced((), 1, 0.0, "handoff_filter", 0, ()), "HistoryReplaced (handoff_filter)"),
        (ended("ValueError(x)"), "RunEnded (failed: ValueError(x))"),
        (ASKED, "ApprovalRequested of call c1"),
        (r.TurnStarted(("c1",), 1, 0.0, "a"), "TurnStarted in the run of call c1"),
    ],
)
def test_a_record_is_named_in_a_few_words(record: Any, words: str) -> None:
    """The words give its kind, its subject, and the run it is of."""
    assert named(record) == words


@pytest.mark.parametrize(
    ("wanted", "got", "words"),
    [
        (settled("replayed"), STARTED, "answered by the output of an earlier one"),
        (STARTED, settled("skipped"), "A limit has changed: `max_calls_per_turn`"),
        (STARTED, settled("timed_out"), "A time limit (`timeout`, `idle_timeout`) has changed."),
        (STARTED, settled("rejected"), "Policies, guardrails or approvals have changed."),
        (STARTED, settled("failed"), "The tool's policies have changed."),
        (STARTED, ASKED, "Which calls need an approval"),
        (ANSWERED, STARTED, "The application is not asked any more: is_enabled."),
        (STARTED, ANSWERED, "The application is asked what it wasn't: is_enabled."),
        (JUDGED, STARTED, "Guardrail checks is gone"),
        (TURN, JUDGED, "Guardrail checks is new"),
        (TURN, ended("MaxTurnsExceeded(3)"), "(`max_turns`) is a lower one."),
        (ended("MaxTurnsExceeded(3)"), TURN, "(`max_turns`) is a higher one."),
        (TURN, ended("ValueError(x)"), "The run now fails: ValueError(x)"),
        (SAVED, TURN, "writes to its session has changed"),
        (TURN, STARTED, "A call starts that had not started then"),
    ],
)
def test_another_kind_of_record_is_told_with_what_may_have_changed(wanted: Any, got: Any, words: str) -> None:
    """The message names both kinds, and its hint fits the pair."""
    said = explained(wanted, got, Difference("kind", None, None))
    assert f"the log has {named(wanted)}, and the replay came to {named(got)}." in said
    assert words in said


ASKED = r.ModelRequested((), 1, 0.0, "d", 1)


@pytest.mark.parametrize(
    ("wanted", "got", "place", "values", "words"),
    [
        (TURN, r.TurnStarted((), 2, 0.0, "a", tools=("y", "x")), "tools", (["x"], ["y"]), "The same tools in another"),
        (TURN, r.TurnStarted((), 2, 0.0, "a", tools=("y", "z")), "tools[0]", ("x", "y"), "gone: x; new: z"),
        (STARTED, STARTED, "waited_for", ([], ["cap"]), "The call waited for other limits"),
        (STARTED, STARTED, "tool", ("pay", "refund"), "The call goes to another tool."),
        (STARTED, STARTED, "call_id", ("c1", "c2"), "Calls start or end in another order"),
        (STARTED, STARTED, "attempt", (1, 2), "`attempt` was 1 and is now 2."),
        (settled("failed"), settled("failed"), "receipt", ("a", "b"), "Whether equal calls are one"),
        (settled("failed"), settled("failed"), "outcome.output", ("a", "b"), "What the model is told of the call"),
        (settled("failed"), settled("failed"), "outcome.status", ("failed", "skipped"), "A limit has changed"),
        (r.RunStarted((), 0, 0.0, "r", "a", (), 3), None, "max_turns", (3, 4), "The limit of turns"),
        (r.RunStarted((), 0, 0.0, "r", "a", (), 3), None, "agent", ("a", "b"), "Another agent begins."),
        (ASKED, None, "digest", ("d", "e-1-2-3"), "the history before, the instructions and definitions (a"),
        (ASKED, None, "digest", ("d-1-2-3", "e-1-9-3"), "The model is shown something else: the instructions."),
        (ASKED, None, "digest", ("d-1-2-3", "e-9-9-3"), "else: the history before and the instructions."),
    ],
)
def test_another_value_is_told_with_what_may_have_changed(
    wanted: Any, got: Any, place: str, values: tuple[Any, Any], words: str
) -> None:
    """The message has the field, its recorded value and the present one."""
    said = explained(wanted, got, Difference(place, *values))
    assert f"`{place}` was " in said
    assert words in said


@pytest.mark.parametrize(
    ("wanted", "waiting", "words"),
    [
        (JUDGED, (), "Guardrail checks is gone"),
        (STARTED, ("guardrail reads", "the model's answer"), "Guardrail reads is new"),
        (STARTED, (), "The call is held back"),
        (settled("timed_out"), (), "A time limit (`timeout`, `idle_timeout`) has gone."),
        (ended("RunTimeoutError(3)"), (), "isn't given to the replay"),
        (ended("ValueError(x)"), (), "Nothing raises ValueError(x) any more."),
        (TURN, [f"body {n}" for n in range(9)], "The replay waits for body 0, body 1, body 2, body 3, body 4 …."),
    ],
)
def test_a_replay_that_is_stuck_says_what_it_waits_for(wanted: Any, waiting: Any, words: str) -> None:
    """The message also says how the missing record may have come about."""
    said = stuck(wanted, waiting)
    assert f"the log has {named(wanted)}, and the replay comes to no such record." in said
    assert words in said
