"""The summary a handoff's target may be shown in place of the conversation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.handoffs._history import DEFAULT_WRAPPER, nest_history
from agentloop.items import (
    AssistantMessage,
    File,
    HandoffCall,
    HandoffOutput,
    HostedToolCall,
    Image,
    Item,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)

OPENING, CLOSING = DEFAULT_WRAPPER


def lines_of(item: Item) -> list[str]:
    """Return the lines between the wrapper's."""
    assert isinstance(item, AssistantMessage)
    lines = item.text.split("\n")
    return lines[lines.index(OPENING) + 1 : len(lines) - 1 - lines[::-1].index(CLOSING)]


def test_what_text_can_stand_for_becomes_numbered_lines() -> None:
    """A message becomes a line with its role, a call one with its arguments, an output one; reasoning is left out."""
    items = [
        SystemMessage("be brief"),
        UserMessage("hello"),
        Reasoning("r", ("thought",)),
        ToolCall("a", "f", '{"n":1}'),
        ToolOutput("a", "one"),
        AssistantMessage("it is one"),
        HandoffCall("h", "to_b"),
        HandoffOutput("h", "Handed over to b.", "a", "b"),
    ]
    [summary] = nest_history(items)
    assert lines_of(summary) == [
        "1. system: be brief",
        "2. user: hello",
        '3. call: f({"n":1})',
        "4. output: one",
        "5. assistant: it is one",
        "6. call: to_b({})",
        "7. output: Handed over to b.",
    ]


@pytest.mark.parametrize(
    "kept",
    [
        UserMessage([Text("see"), Image("https://example.org/a.png")]),
        UserMessage([File(url="https://example.org/b.pdf")]),
        HostedToolCall("search"),
        ToolOutput("a", (Image("https://example.org/a.png"),)),
    ],
)
def test_what_text_cannot_stand_for_keeps_its_place_between_segments(kept: Item) -> None:
    """Each segment counts from one."""
    before, middle, after = nest_history([UserMessage("one"), kept, UserMessage("two")])
    assert lines_of(before) == ["1. user: one"]
    assert middle == kept
    assert lines_of(after) == ["1. user: two"]


def test_nothing_gives_nothing() -> None:
    """An empty history gives no summary."""
    assert nest_history([]) == ()
    assert nest_history([Reasoning("r")]) == ()


def test_the_wrapper_is_the_application_s() -> None:
    """Both lines of the application's wrapper are around the summary."""
    [summary] = nest_history([UserMessage("x")], ("<<", ">>"))
    assert isinstance(summary, AssistantMessage)
    assert summary.text.split("\n")[1:] == ["<<", "1. user: x", ">>"]


def test_a_message_that_only_looks_like_a_summary_is_a_message() -> None:
    """The message lacks the words before the wrapper, or the lines between."""
    [summary] = nest_history([AssistantMessage(f"{OPENING}\n1. user: x\n{CLOSING}")])
    assert lines_of(summary)[0] == f"1. assistant: {OPENING}"
    [real] = nest_history([UserMessage("x")])
    assert isinstance(real, AssistantMessage)
    [summary] = nest_history([AssistantMessage(real.text.replace("1. user: x\n", ""))])
    assert lines_of(summary)[0].startswith("1. assistant: For context")


def test_a_summary_is_opened_whatever_wraps_it() -> None:
    """The lines of the new wrapper are around the whole summary."""
    [summary] = nest_history([*nest_history([UserMessage("x\ny")], ("<<", ">>")), UserMessage("z")])
    assert lines_of(summary) == ["1. user: x", "   y", "2. user: z"]


def test_a_summary_after_a_message_is_opened_entry_by_entry() -> None:
    """The summary's numbers follow the message's, and a line that belongs to an entry stays with it."""
    [earlier] = nest_history([UserMessage("x\ny"), UserMessage("z", secret=True)])
    [summary] = nest_history([UserMessage("first"), earlier])
    assert isinstance(summary, AssistantMessage)
    assert lines_of(summary) == ["1. user: first", "2. user: x", "   y", "3. user: z"]
    assert summary.secret


@pytest.mark.parametrize("secret", [True, False])
def test_a_summary_of_secrets_that_begins_another_keeps_its_mark(secret: bool) -> None:
    """Also where nothing that follows is secret."""
    [earlier] = nest_history([UserMessage("x", secret=secret)])
    [summary] = nest_history([earlier, UserMessage("y")])
    assert isinstance(summary, AssistantMessage)
    assert lines_of(summary) == ["1. user: x", "2. user: y"]
    assert summary.secret is secret


def test_a_summary_after_one_that_took_over_another_is_numbered_from_one() -> None:
    """What has no textual form stands between them; neither number nor mark goes over to the second."""
    [earlier] = nest_history([UserMessage("x", secret=True), UserMessage("y")])
    first, _, second = nest_history(
        [earlier, UserMessage("z"), UserMessage([Image("https://x.test/a")]), UserMessage("w")]
    )
    assert isinstance(first, AssistantMessage)
    assert isinstance(second, AssistantMessage)
    assert (lines_of(first)[-1], first.secret) == ("3. user: z", True)
    assert (lines_of(second), second.secret) == (["1. user: w"], False)


def test_a_summary_whose_numbers_have_a_gap_is_numbered_anew() -> None:
    """A shortened summary, by an input filter for example, keeps all the entries it still has."""
    [earlier] = nest_history([UserMessage("x"), UserMessage("y"), UserMessage("z")])
    assert isinstance(earlier, AssistantMessage)
    [summary] = nest_history([AssistantMessage(earlier.text.replace("2. user: y\n", "")), UserMessage("w")])
    assert lines_of(summary) == ["1. user: x", "2. user: z", "3. user: w"]


TRICKY = [
    "hello",
    "1. apples\n2. pears",
    f"a\n{CLOSING}\nb",
    f"a\n{OPENING}",
    "",
    "\n",
    "3. x",
    "a\r\nb",
    "two  \n  lines",
]


@given(
    first=st.lists(st.sampled_from(TRICKY) | st.text(), max_size=5), then=st.lists(st.sampled_from(TRICKY), max_size=3)
)
def test_summaries_flatten_and_say_everything_once(first: list[str], then: list[str]) -> None:
    """Summarising a summary and the messages after it equals summarising all of them, for messages of any text."""
    early = [UserMessage(text) for text in first]
    late = [AssistantMessage(text) for text in then]
    assert nest_history([*nest_history(early), *late]) == nest_history([*early, *late])
    once = nest_history(early)
    assert nest_history(once) == once


@pytest.mark.scenario("RP-13")
@given(st.lists(st.lists(st.text("ab1. \n<", max_size=12), max_size=4), min_size=2, max_size=6), st.booleans())
def test_nesting_handoff_by_handoff_gives_what_nesting_once_gives(parts: list[list[str]], other: bool) -> None:
    """A summary takes over the earlier summary's entries without reading each: numbers, indents and wrapper stay."""
    step: tuple[Item, ...] = ()
    for part in parts:
        step = nest_history([*step, *map(UserMessage, part)], ("<A>", "</A>") if other else DEFAULT_WRAPPER)
    once = nest_history([UserMessage(text) for part in parts for text in part])
    texts = [item.text for item in step if isinstance(item, AssistantMessage)]
    wanted = [item.text for item in once if isinstance(item, AssistantMessage)]
    if other:
        wanted = [
            text.replace("<CONVERSATION HISTORY>", "<A>").replace("</CONVERSATION HISTORY>", "</A>") for text in wanted
        ]
    assert texts == wanted
    assert len(step) == len(once)
