"""Any history, made shorter by any steps: a model can be shown it, what is kept is in it, and it comes to an end."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.items import (
    AssistantMessage,
    HandoffCall,
    HandoffOutput,
    HostedToolCall,
    Item,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.window import ClearToolOutputs, ContextView, DropOldest, Summarize, estimate_tokens
from agentloop.window.steps import format_transcript
from agentloop.window.turns import find_fault, find_kept, split_turns

pytestmark = pytest.mark.scenario("CX-03")

WORDS = st.integers(0, 900).map(lambda count: "x" * count)


@st.composite
def turns(draw: st.DrawFn, number: int) -> list[Item]:
    """Draw one turn of a model: what it says, the calls it makes, and the outputs in the calls' order."""
    said: list[Item] = []
    answers: list[Item] = []
    if draw(st.booleans()):
        said.append(AssistantMessage(draw(WORDS)))
    for index in range(draw(st.integers(0, 3))):
        call_id = f"{number}_{index}" if draw(st.integers(0, 9)) else "again"
        if draw(st.booleans()):
            said.append(Reasoning(f"r{number}_{index}"))
        if draw(st.integers(0, 5)):
            said.append(ToolCall(call_id, "look"))
            answers.append(ToolOutput(call_id, draw(WORDS), secret=draw(st.booleans())))
        else:
            said.append(HandoffCall(call_id, "to_b"))
            answers.append(HandoffOutput(call_id, "{}", "a", "b"))
    if not said:
        said = [Reasoning(f"r{number}"), HostedToolCall("web_search")]
    if draw(st.booleans()) and answers and not isinstance(said[0], Reasoning):
        answers = [*answers, SystemMessage("You repeat yourself.")]
    return [*said, *answers]


@st.composite
def histories(draw: st.DrawFn) -> list[Item]:
    """Draw a conversation: messages of the user, some of them pinned, and turns."""
    items: list[Item] = []
    for number in range(draw(st.integers(0, 8))):
        if draw(st.booleans()):
            items.append(UserMessage(draw(WORDS), pinned=draw(st.booleans())))
        # An id is taken again by a later run of a session; within a turn each is a call of its own.
        made = draw(turns(number))
        ids = [item.call_id for item in made if isinstance(item, ToolCall | HandoffCall)]
        if len(set(ids)) == len(ids):
            items += made
    return items


STEPS: st.SearchStrategy[Any] = st.one_of(
    st.builds(ClearToolOutputs, keep_last=st.integers(0, 4), min_chars=st.integers(0, 1_000)),
    st.builds(DropOldest, keep_turns=st.integers(0, 4)),
    st.builds(Summarize, keep_turns=st.integers(0, 4)),
)


def shorten(step: Any, view: ContextView) -> Sequence[Item]:
    """Return what *step* makes of *view*; a summary is a short text."""
    if not isinstance(step, Summarize):
        made: Sequence[Item] = step.shorten(view)
        return made
    return step.replace_older(view, "They talked.") if step.find_older(view) else view.items


@pytest.mark.slow
@given(histories(), st.lists(STEPS, max_size=4), st.integers(0, 2_000))
def test_a_compacted_history_is_valid(history: list[Item], steps: list[Any], target: int) -> None:
    """After each step every call has its output, reasoning its follower, and all that is kept is there, in order."""
    view = ContextView.of(history, window=4_000, target=target)
    must = find_kept(history)
    kept = [item for item in history if id(item) in must]
    for step in steps:
        items = tuple(shorten(step, view))
        assert find_fault(history, items) is None
        assert [item for item in items if any(item is one for one in kept)] == kept
        view = view.replace(items=items)


@given(histories(), STEPS, st.integers(0, 2_000))
def test_a_step_takes_no_more_than_it_needs(history: list[Item], step: Any, target: int) -> None:
    """A history that is short enough stays the same object for object; a step that is repeated changes nothing more."""
    view = ContextView.of(history, window=4_000, target=target)
    if isinstance(step, Summarize):
        return
    items = shorten(step, view)
    assert estimate_tokens(items) <= estimate_tokens(history) + 30 * len(history)
    if view.tokens <= target:
        assert list(map(id, items)) == list(map(id, history))
    again = shorten(step, view.replace(items=tuple(items)))
    assert list(again) == list(items)


@given(histories())
def test_the_turns_of_a_history_are_the_history(history: list[Item]) -> None:
    """Nothing is lost between them, and each is whole."""
    parts = split_turns(history) if history else []
    assert [item for part in parts for item in part] == history
    for part in parts:
        assert find_fault(part, part) is None or not isinstance(part[-1], ToolOutput | HandoffOutput)


@given(histories(), st.integers(100, 5_000))
def test_a_transcript_is_as_long_as_it_may_be(history: list[Item], most: int) -> None:
    """Each item has its share, and none is hidden but for reasoning; a secret output isn't shown."""
    text = format_transcript(history, most)
    assert len(text) <= most + 400 * len(history)
    for item in history:
        if isinstance(item, ToolOutput):
            assert f"output ({item.call_id})" in text
