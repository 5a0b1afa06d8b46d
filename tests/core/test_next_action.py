"""The machine chooses the next action for every situation a state can be in."""

from typing import Any

import pytest
from core.folding import Writer, called, view_of

from agentloop import records as r
from agentloop._core.next_action import (
    AskBehavior,
    CheckOutput,
    Finish,
    GiveUp,
    Prepare,
    RequestModel,
    Settle,
    Transfer,
    may_ask_again,
    next_action,
    tool_output,
    turn_or_give_up,
)
from agentloop._core.run_fold import MAX_PAUSES
from agentloop.exceptions import MaxTurnsExceeded, ModelRefusalError
from agentloop.items import AssistantMessage, HandoffCall, HostedToolCall, Reasoning, Refusal, Text, UserMessage
from agentloop.tools import StopAtTools

VIEW = view_of()
TYPED = view_of(output=object())


def test_a_fresh_run_asks_the_model() -> None:
    """The model is asked without a view, since there is none before the first turn."""
    assert next_action(Writer().begin().state, None) == RequestModel()


def test_a_response_with_calls_is_settled() -> None:
    """The batch is settled until it is accepted, also when every call has settled; then the model is asked."""
    writer = Writer().begin().turn(called("a"))
    assert next_action(writer.state, VIEW) == Settle()
    writer.settle("a")
    assert next_action(writer.state, VIEW) == Settle()
    writer.accept()
    assert next_action(writer.state, VIEW) == RequestModel()


def test_what_planning_must_refuse_is_brought_to_planning() -> None:
    """A contradicting id and calls without an id go to planning, which refuses them."""
    writer = Writer().begin().turn(called("a")).settle("a").accept().turn(called("a", "g"))
    assert next_action(writer.state, VIEW) == Settle()
    assert next_action(Writer().begin().turn(called("")).state, VIEW) == Settle()
    assert next_action(Writer().begin().turn(HandoffCall("", "h")).state, VIEW) == Settle()


def test_a_handoff_comes_after_the_tools_and_before_any_message() -> None:
    """The first handoff is taken, and the others are named."""
    first, second = HandoffCall("h1", "to_b"), HandoffCall("h2", "to_c")
    writer = Writer().begin().turn(AssistantMessage("bye"), called("a"), first, second)
    assert next_action(writer.state, VIEW) == Settle()
    writer.settle("a").accept()
    assert next_action(writer.state, VIEW) == Transfer(first, (second,))
    writer.append(r.HandedOff, "h1", "guide", "b", ("h2",))
    assert next_action(writer.state, VIEW) == RequestModel()


@pytest.mark.parametrize(
    ("items", "output"),
    [
        ((AssistantMessage("one"),), "one"),
        ((AssistantMessage("one"), AssistantMessage("two")), "two"),
        ((Reasoning("r"), AssistantMessage("")), ""),
        ((HostedToolCall("search"), AssistantMessage("found")), "found"),
        ((AssistantMessage([Text("a"), Refusal("no")]),), "a"),
        ((), ""),
        ((Reasoning("r"),), ""),
    ],
)
def test_a_message_is_the_candidate(items: Any, output: str) -> None:
    """The last message is the candidate; a response without one gives the empty text."""
    assert next_action(Writer().begin().turn(*items).state, VIEW) == CheckOutput(output)


def test_hosted_calls_alone_lead_to_another_turn() -> None:
    """The model is asked again, whether or not the agent has an output type."""
    state = Writer().begin().turn(HostedToolCall("search")).state
    assert next_action(state, VIEW) == RequestModel()
    assert next_action(state, TYPED) == RequestModel()


def test_a_response_of_repeats_alone_leads_to_another_turn() -> None:
    """The model gets the same outputs once more."""
    writer = Writer().begin().turn(called("a")).settle("a").accept().turn(called("a"))
    assert next_action(writer.state, VIEW) == RequestModel()


@pytest.mark.parametrize("items", [(), (AssistantMessage(" \n"),)])
def test_a_typed_agent_without_words_gets_another_turn(items: Any) -> None:
    """An empty text is no value of its type."""
    assert next_action(Writer().begin().turn(*items).state, TYPED) == RequestModel()


def test_a_refusal_gives_up() -> None:
    """The error has the model's words; a handler may give an output instead."""
    action = next_action(Writer().begin().turn(AssistantMessage([Refusal("never")])).state, VIEW)
    assert isinstance(action, GiveUp)
    error = action.make_error()
    assert isinstance(error, ModelRefusalError)
    assert (action.handler, error.refusal) == ("model_refusal", "never")


def test_the_turn_limit_gives_up_when_the_next_turn_is_due() -> None:
    """The run gives up only then: the message of the last turn is still an answer."""
    writer = Writer().begin(max_turns=1).turn(AssistantMessage("done"))
    assert next_action(writer.state, VIEW) == CheckOutput("done")
    writer = Writer().begin(max_turns=1).turn(called("a")).settle("a").accept()
    action = next_action(writer.state, VIEW)
    assert isinstance(action, GiveUp)
    error = action.make_error()
    assert isinstance(error, MaxTurnsExceeded)
    assert (action.handler, str(error)) == ("max_turns", "Max turns (1) exceeded")
    assert turn_or_give_up(Writer().begin(max_turns=2).turn().state) == RequestModel()
    assert turn_or_give_up(Writer().begin().turn().state) == RequestModel()


def _two_calls() -> Writer:
    writer = Writer().begin().turn(called("a", "f"), called("b", "g"))
    return writer.settle("a", "text").settle("b", (Text("part"),), value=[1]).accept()


@pytest.mark.parametrize(
    ("behavior", "action"),
    [
        ("run_llm_again", RequestModel()),
        ("stop_on_first_tool", CheckOutput("text", made_by="a")),
        (StopAtTools("f"), CheckOutput("text", made_by="a")),
        (StopAtTools(["h", "g"]), CheckOutput([1], made_by="b")),
        (StopAtTools("h"), RequestModel()),
        (lambda ctx, results: None, AskBehavior()),
    ],
)
def test_tools_may_make_the_final_output(behavior: Any, action: Any) -> None:
    """The agent's behaviour chooses the output: text as it is, anything else as the value."""
    assert next_action(_two_calls().state, view_of(tool_use_behavior=behavior)) == action


def test_a_call_without_an_output_makes_no_final_output() -> None:
    """The next call with an output makes it; if none has one, the model is asked."""
    first = view_of(tool_use_behavior="stop_on_first_tool")
    writer = Writer().begin().turn(called("a"), called("b")).settle("a", None, "cancelled").settle("b").accept()
    assert next_action(writer.state, first) == CheckOutput("ok", made_by="b")
    writer = Writer().begin().turn(called("a")).settle("a", None, "cancelled").accept()
    assert next_action(writer.state, first) == RequestModel()


def test_a_settled_call_s_output_is_text_or_its_value() -> None:
    """A behaviour gets the text of an output, or its value if the output isn't text."""
    a, b = _two_calls().state.batch
    assert (tool_output(a), tool_output(b)) == ("text", [1])


def test_without_a_view_one_is_prepared_before_a_candidate_is_judged() -> None:
    """A resumed run has no view yet."""
    assert next_action(Writer().begin().turn(AssistantMessage("done")).state, None) == Prepare()


# -- answers that aren't final


def test_a_paused_answer_leaves_its_turn_open() -> None:
    """With and without a view: the model is asked in the same turn, also at the limit of turns."""
    writer = Writer().begin(max_turns=1).turn(AssistantMessage("so far"), finish_reason="pause")
    assert (writer.state.turn_open, writer.state.pauses) == (True, 1)
    assert next_action(writer.state, VIEW) == next_action(writer.state, None) == RequestModel()
    writer.answer(AssistantMessage("done"))
    assert next_action(writer.state, VIEW) == CheckOutput("done")
    assert writer.state.history[1:] == [AssistantMessage("so far"), AssistantMessage("done")]


@pytest.mark.parametrize("call", [called("a"), HandoffCall("h", "to_b"), called("")])
def test_a_pause_beside_a_call_ends_the_model_s_part_of_the_turn(call: Any) -> None:
    """The calls are due first."""
    writer = Writer().begin().turn(call, finish_reason="pause")
    assert (writer.state.turn_open, writer.state.pauses) == (False, call.call_id == "")


def test_a_pause_with_a_call_that_contradicts_goes_to_planning() -> None:
    """It is refused there, and isn't continued."""
    writer = Writer().begin().turn(called("a")).settle("a").accept().turn(called("a", "g"), finish_reason="pause")
    assert not writer.state.turn_open
    assert next_action(writer.state, VIEW) == Settle()


def test_one_pause_too_many_goes_to_planning() -> None:
    """The bound is one of a turn, over all its run segments; the next turn counts anew."""
    writer = Writer().begin().turn(finish_reason="pause")
    for _ in range(MAX_PAUSES - 1):
        writer.answer(finish_reason="pause")
    writer.append(r.RunEnded, "failed")
    writer.append(r.RunResumed, "guide", None)
    writer.append(r.TurnStarted, "guide")
    assert next_action(writer.state, None) == RequestModel()
    writer.answer(finish_reason="pause")
    assert next_action(writer.state, VIEW) == Settle()
    assert "at most 10 pauses in a turn" in (writer.state.unusable_reason or "")
    again = Writer().begin().turn(finish_reason="pause").answer(called("a")).settle("a").accept()
    assert again.turn(finish_reason="pause").state.pauses == 1


def test_a_misfit_is_corrected_as_often_as_the_agent_says() -> None:
    """The record of the correction takes the candidate away; a handoff begins the count again."""
    writer = Writer().begin().turn(AssistantMessage("misfit"))
    state = writer.state
    assert [may_ask_again(state, retries) for retries in (0, 1, 2)] == [False, True, True]
    writer.append(r.HistoryReplaced, "invalid_final_output", 2, (UserMessage("no"),), added=True)
    assert next_action(state, TYPED) == RequestModel()
    assert state.new_items == [AssistantMessage("misfit"), UserMessage("no")]
    writer.turn(AssistantMessage("misfit"))
    assert [may_ask_again(state, retries) for retries in (0, 1, 2)] == [False, False, True]
    writer.turn(HandoffCall("h", "to_b"))
    writer.append(r.HandedOff, "h", "guide", "b")
    assert state.invalid_outputs == 0


def test_neither_a_cut_answer_nor_one_with_a_refusal_is_corrected() -> None:
    """A refusal in any message of the answer."""
    assert not may_ask_again(Writer().begin().turn(AssistantMessage("x"), finish_reason="length").state, 1)
    refused = AssistantMessage((Text("x"), Refusal("no")))
    assert not may_ask_again(Writer().begin().turn(refused, AssistantMessage("x")).state, 1)


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_an_ended_run_is_finished(status: Any) -> None:
    """A run that has ended is finished, even if other actions are due."""
    writer = Writer().begin().turn(called("a"))
    writer.append(r.RunEnded, status, "x")
    action = next_action(writer.state, VIEW)
    assert action == Finish(writer.state.records[-1])  # type: ignore[arg-type]
