"""The inbox of a run: which added input is shown next, and which is refused."""

from contextlib import nullcontext
from typing import Any

import pytest
from core.folding import Writer

from agentloop import records as r
from agentloop._core.inbox import due_input, make_input, make_withdrawal
from agentloop._core.run_fold import RunFold
from agentloop.exceptions import InputRefusedError, UserTypeError, UserValueError
from agentloop.items import AssistantMessage, HandoffCall, ToolCall, ToolOutput, UserMessage


def add(writer: Writer, input_id: str, when: str = "turn") -> None:
    """Add an input."""
    writer.append(r.InputAdded, (UserMessage(input_id),), input_id, when)


def due(state: RunFold, *, ends: bool = False) -> str | None:
    """Return the id of the input that is due."""
    added = due_input(state, ends=ends)
    return None if added is None else added.id


def check_open(state: RunFold, *, live: bool) -> None:
    """Check that the run takes an input."""
    assert make_input(state, "more", "turn", None, None, 1.0, live=live) is not None


@pytest.mark.scenario("PE-01")
def test_the_first_input_that_is_due_is_shown_first() -> None:
    """An idle one waits until the run would end, or until the last turn begins: no later request could show it."""
    writer = Writer().begin(max_turns=3)
    assert due(writer.state, ends=True) is None
    add(writer, "a", "idle")
    assert due(writer.state) is None
    add(writer, "b")
    add(writer, "c")
    assert (due(writer.state), due(writer.state, ends=True)) == ("b", "a")
    writer.turn(AssistantMessage("one"))
    writer.append(r.InputShown, "b")
    writer.append(r.InputShown, "c")
    assert due(writer.state) is None
    writer.turn(AssistantMessage("two"))
    assert due(writer.state) == "a"


@pytest.mark.scenario("PE-01")
def test_no_input_is_due_between_the_parts_of_an_answer() -> None:
    """The provider has paused it, and continues it in the same turn."""
    writer = Writer().begin().turn(AssistantMessage("one"), finish_reason="pause")
    add(writer, "a")
    assert due(writer.state, ends=True) is None
    writer.answer(AssistantMessage("two"))
    assert due(writer.state) == "a"


@pytest.mark.scenario("PE-01")
def test_all_input_is_due_in_the_turn_that_a_limit_has_left() -> None:
    """It has the last request."""
    writer = Writer().begin().turn(AssistantMessage("one"))
    add(writer, "a", "idle")
    assert due(writer.state) is None
    writer.append(r.HistoryReplaced, "usage_limits", 2, (UserMessage("answer now"),), added=True)
    assert due(writer.state) == "a"
    with pytest.raises(InputRefusedError, match="no turn is left"):
        check_open(writer.state, live=True)


@pytest.mark.scenario("PE-01")
def test_input_needs_a_request_that_comes_later() -> None:
    """A run under way has asked in its open turn; a stored run asks again."""
    writer = Writer().begin(max_turns=1)
    check_open(writer.state, live=True)
    writer.state.apply(r.TurnStarted((), 1, 0.0, "guide"))
    check_open(writer.state, live=False)
    with pytest.raises(InputRefusedError, match=r"no turn is left \(max_turns=1\)") as refused:
        check_open(writer.state, live=True)
    assert refused.value.reason == "no_turn_left"
    writer.answer(AssistantMessage("one"))
    with pytest.raises(InputRefusedError):
        check_open(writer.state, live=False)


@pytest.mark.scenario("PE-01")
def test_an_id_names_one_input() -> None:
    """Given again with the same input it adds nothing; without an id the input gets a number that is free."""
    state = Writer().begin().state

    def make(given: Any, input_id: str | None = None) -> r.InputAdded | None:
        record = make_input(state, given, "turn", input_id, None, 1.0, live=True)
        return None if record is None else state.apply(record)  # type: ignore[return-value]

    first = make("a", "input_2")
    assert first == r.InputAdded((), 0, 1.0, (UserMessage("a"),), "input_2")
    assert make("a", "input_2") is None
    with pytest.raises(InputRefusedError) as refused:
        make("b", "input_2")
    assert refused.value.reason == "other_input"
    second = make([UserMessage("b")])
    assert second is not None
    assert second.id == "input_3"


@pytest.mark.parametrize(
    ("given", "options", "error"),
    [
        ([], {}, UserValueError),
        (5, {}, UserTypeError),
        ("a", {"when": "now"}, UserValueError),
        ("a", {"input_id": ""}, UserValueError),
        ("a", {"input_id": 5}, UserTypeError),
    ],
)
def test_what_is_no_input_is_refused(given: Any, options: dict[str, Any], error: type[Exception]) -> None:
    """The error says what was expected."""
    values: dict[str, Any] = {"when": "turn", "input_id": None, **options}
    with pytest.raises(error, match="expected"):
        make_input(Writer().begin().state, given, **values, by=None, at=0.0, live=True)


@pytest.mark.scenario("PE-01")
@pytest.mark.parametrize("over", ["", "it is over"])
@pytest.mark.parametrize("became", ["waiting", "shown", "withdrawn", "rejected"])
def test_an_input_that_is_given_again_is_told_what_became_of_the_first(became: str, over: str) -> None:
    """Whether the run goes on or not, and has a turn left or not: the sender asks whether it arrived."""
    writer = Writer().begin(max_turns=1)
    add(writer, "a")
    if became == "shown":
        writer.append(r.InputShown, "a")
    elif became == "withdrawn":
        writer.append(r.InputWithdrawn, "a", None)
    elif became == "rejected":
        writer.append(r.GuardrailSettled, "input", "g", "ask_again", 0.0, input_id="a")
    writer.turn(AssistantMessage("one"))

    def give(text: str, input_id: str) -> r.InputAdded | None:
        return make_input(writer.state, text, "turn", input_id, None, 1.0, live=True, over=over)

    if became in ("waiting", "shown"):
        assert give("a", "a") is None
    else:
        with pytest.raises(InputRefusedError, match=f"the input 'a' was added before, and is {became}") as refused:
            give("a", "a")
        assert refused.value.reason == became
    for text, input_id, reason in (("b", "a", "other_input"), ("b", "b", "over" if over else "no_turn_left")):
        with pytest.raises(InputRefusedError) as refused:
            give(text, input_id)
        assert refused.value.reason == reason


CALL, OUTPUT = ToolCall("c", "look", "{}"), ToolOutput("c", "seen")


@pytest.mark.scenario("PE-01")
@pytest.mark.parametrize(
    ("items", "fault"),
    [
        ([CALL], "call 'c' has no output after it"),
        ([OUTPUT], "the output of call 'c' has no call before it"),
        ([OUTPUT, CALL], "the output of call 'c' has no call before it"),
        ([CALL, OUTPUT, OUTPUT], "the output of call 'c' has no call before it"),
        ([UserMessage("a"), CALL, ToolCall("d", "look", "{}"), OUTPUT], "call 'd' has no output after it"),
        ([HandoffCall("h", "to_b", "{}")], "call 'h' has no output after it"),
        ([CALL, OUTPUT], None),
        ([CALL, ToolCall("d", "look", "{}"), ToolOutput("d", "seen"), UserMessage("a"), OUTPUT], None),
    ],
)
def test_an_input_has_an_output_for_each_call_and_a_call_for_each_output(items: list[Any], fault: str | None) -> None:
    """Providers refuse a history that hasn't, and the run would fail with the next request."""
    with pytest.raises(UserValueError, match=fault) if fault else nullcontext():
        make_input(Writer().begin().state, items, "turn", None, None, 0.0, live=True)


@pytest.mark.scenario("PE-01")
@pytest.mark.parametrize("status", ["shown", "withdrawn", "unknown"])
def test_only_what_waits_can_be_withdrawn(status: str) -> None:
    """The error says what has become of it."""
    writer = Writer().begin()
    if status != "unknown":
        add(writer, "a")
        withdrawn = make_withdrawal(writer.state, "a", "ann", 2.0)
        assert withdrawn == r.InputWithdrawn((), 0, 2.0, "a", "ann")
        writer.state.apply(withdrawn if status == "withdrawn" else r.InputShown((), 0, 2.0, "a"))
    with pytest.raises(InputRefusedError, match=f"it is {status}") as refused:
        make_withdrawal(writer.state, "a", None, 2.0)
    assert refused.value.reason == status
