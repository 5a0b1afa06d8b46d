"""Estimates by kind, transcripts and placeholders: what a step of a window sees of each kind of item."""

import struct
from typing import Any

import pytest

from agentloop import ClearToolOutputs, ContextView
from agentloop.items import (
    AssistantMessage,
    Audio,
    File,
    HandoffCall,
    HandoffOutput,
    HostedToolCall,
    Image,
    OpaqueItem,
    Reasoning,
    Refusal,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.window import estimate_tokens
from agentloop.window.measure import FILE_TOKENS, IMAGE_TOKENS, ITEM_TOKENS
from agentloop.window.steps import format_transcript
from agentloop.window.turns import find_fault

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00\x00\x00\rIHDR" + struct.pack(">II", 300, 100)


@pytest.mark.parametrize(
    ("item", "tokens"),
    [
        (UserMessage("x" * 40), 10),
        (SystemMessage("x" * 41), 11),
        (AssistantMessage([Text("x" * 40), Refusal("x" * 8)]), 12),
        (UserMessage("\u65e5" * 40), 30),
        (UserMessage("\ud800"), 1),
        (ToolCall("c", "abc", "x" * 30), 11),
        (HandoffCall("c", "abc", "x" * 30), 11),
        (ToolOutput("c", "x" * 30), 10),
        (ToolOutput("c", [Text("x" * 30), Text("x" * 3)]), 11),
        (HandoffOutput("c", "x" * 30, "a", "b"), 10),
        (Reasoning("r", summary=["x" * 40], content=["x" * 4]), 11),
        (Reasoning("r", summary=["x" * 40], encrypted="x" * 500), 100),
        (UserMessage(Image("http://i")), IMAGE_TOKENS),
        (UserMessage(Image("http://i", detail="low")), 85),
        (UserMessage(Image(data=PNG)), 41),
        (UserMessage(Image(data=PNG[:16] + struct.pack(">II", 9_000, 9_000))), IMAGE_TOKENS),
        (UserMessage(Image(data=PNG[:12])), IMAGE_TOKENS),
        (UserMessage(Image(data=b"JPEG" * 10)), IMAGE_TOKENS),
        (UserMessage(Image(data="no base64!")), IMAGE_TOKENS),
        (UserMessage(File(url="http://f")), FILE_TOKENS),
        (UserMessage(File(data=b"x" * 3_000, media_type="text/plain")), 1_001),
        (UserMessage(File(data=b"x" * 3_000, filename="a.pdf")), 121),
        (UserMessage(Audio(url="http://a")), FILE_TOKENS),
        (UserMessage(Audio(data=b"x" * 3_000)), 2),
    ],
)
def test_an_estimate_is_made_by_kind(item: Any, tokens: int) -> None:
    """Of text by its bytes, of an image by its pixels, of a file by its size, of what isn't here by a usual size."""
    assert estimate_tokens(item) == tokens + ITEM_TOKENS


def test_other_items_are_estimated_by_their_json() -> None:
    """What a provider has made itself."""
    small, large = HostedToolCall("web_search"), HostedToolCall("web_search", {"query": "x" * 300})
    assert estimate_tokens([small, large]) == estimate_tokens(small) + estimate_tokens(large)
    assert estimate_tokens(large) - estimate_tokens(small) > 90


@pytest.mark.parametrize("item", [HostedToolCall("search", {"query": "\ud800"}), OpaqueItem({"text": "\ud800"})])
def test_half_a_character_is_estimated(item: Any) -> None:
    """What a provider has made itself may have a text that UTF-8 doesn't have."""
    assert estimate_tokens(item) > ITEM_TOKENS


def test_a_transcript_names_each_kind() -> None:
    """Reasoning isn't in it, and media are named only."""
    items = [
        SystemMessage("Be kind."),
        UserMessage([Text("Look:"), Image("http://i")]),
        Reasoning("r"),
        AssistantMessage([Refusal("No.")]),
        ToolCall("c", "look", '{"a": 1}'),
        ToolOutput("c", [Text("seen"), File(url="http://f")]),
        HandoffCall("h", "to_b"),
        HandoffOutput("h", "handed", "a", "b"),
        HostedToolCall("web_search"),
    ]
    assert format_transcript(items, 10_000).split("\n\n") == [
        "system: Be kind.",
        "user: Look: [Image]",
        "assistant: No.",
        'assistant calls look (c): {"a": 1}',
        "output (c): seen [File]",
        "assistant calls to_b (h): {}",
        "output (h): handed",
        "[HostedToolCall]",
    ]


def test_a_transcript_that_is_too_long_is_cut_in_the_middle_of_its_longest_items() -> None:
    """Short ones leave them their share."""
    items = [UserMessage("short"), ToolOutput("c", "a" * 5_000 + "b" * 5_000)]
    text = format_transcript(items, 1_000)
    assert text.startswith("user: short\n\noutput (c): aaa")
    assert "characters left out" in text
    assert text.endswith("b")
    assert len(text) < 1_100


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ([Text("x" * 3_000), Image("http://i")], ": 3,008 characters with image.]"),
        ([Refusal("x" * 3_000), File(file_id="f"), Image(data=b"x")], " characters with refusal, file, image.]"),
    ],
)
def test_a_placeholder_of_parts_names_their_kinds(output: Any, said: str) -> None:
    """Their size is that of their data or address. The call may be unknown, of a session's earlier part."""
    [cleared] = ClearToolOutputs(keep_last=0).shorten(ContextView.of([ToolOutput("c", output)], window=100))
    assert isinstance(cleared, ToolOutput)
    assert str(cleared.output).startswith("[The output of call c was cleared")
    assert str(cleared.output).endswith(said)


def test_the_placeholder_of_a_secret_output_has_no_size() -> None:
    """It stays secret."""
    [cleared] = ClearToolOutputs(keep_last=0).shorten(
        ContextView.of([ToolOutput("c", "x" * 9_000, secret=True)], window=100)
    )
    assert isinstance(cleared, ToolOutput)
    assert cleared.output == "[The output of call c was cleared.]"


def test_reasoning_without_its_follower_is_a_fault() -> None:
    """As a function of the application may leave it."""
    given = [UserMessage("go"), Reasoning("r"), ToolCall("c", "look"), ToolOutput("c", "seen")]
    assert find_fault(given, given) is None
    assert find_fault(given, [given[0], given[1], UserMessage("more")]) == "reasoning has lost the item behind it"
