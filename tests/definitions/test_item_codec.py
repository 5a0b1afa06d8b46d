"""Items as JSON: every kind survives, unknown kinds too, and what doesn't fit is named with its place."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from definitions.item_strategies import BY_TYPE, ITEMS
from hypothesis import given

from agentloop._storage.item_codec import item_from_json, item_to_json
from agentloop.exceptions import StateError, UserTypeError
from agentloop.items import (
    ITEM_TYPES,
    AssistantMessage,
    Audio,
    File,
    HostedToolCall,
    Image,
    Item,
    OpaqueItem,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)


def refusal(data: Any, **options: Any) -> str:
    """Return the message that refuses *data*."""
    with pytest.raises(StateError) as caught:
        item_from_json(data, **options)
    return str(caught.value)


@given(ITEMS)
def test_an_item_survives_json_text(item: Item) -> None:
    """Writing and reading gives an equal item of the same type, through text as well."""
    back = item_from_json(json.loads(json.dumps(item_to_json(item))))
    assert back == item
    assert type(back) is type(item)
    assert item_to_json(back) == item_to_json(item)


def test_the_strategies_know_every_kind() -> None:
    """A new kind of item can't escape the round trip."""
    assert set(BY_TYPE) == set(ITEM_TYPES)


def test_the_form_is_an_object_with_its_kind_and_what_differs_from_defaults() -> None:
    """The written form is fixed: sessions and states outlive a version."""
    message = AssistantMessage([Text("a"), Image("u")], id="m1", provider_data={"phase": 1})
    assert item_to_json(message) == {
        "type": "assistant_message",
        "content": [{"type": "text", "text": "a"}, {"type": "image", "url": "u"}],
        "id": "m1",
        "provider_data": {"phase": 1},
    }
    called = {"type": "tool_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    assert item_to_json(ToolCall("c1", "f")) == called
    assert item_to_json(ToolOutput("c1", "done")) == {"type": "tool_output", "call_id": "c1", "output": "done"}
    assert item_to_json(HostedToolCall("web")) == {"type": "hosted_tool_call", "kind": "web"}
    assert item_to_json(OpaqueItem({"type": "tool_call"})) == {"type": "opaque_item", "data": {"type": "tool_call"}}


def test_parts_of_a_recording_an_image_or_a_file_need_a_source() -> None:
    """A URL, data or the id of a file that the provider holds."""
    for kind in (Image, Audio, File):
        with pytest.raises(UserTypeError, match=f"^{kind.__name__}: expected one of url, data and file_id$"):
            kind(media_type="image/png")
        assert kind(file_id="f1").file_id == "f1"
    with pytest.raises(StateError, match="Malformed item"):
        item_from_json({"type": "user_message", "content": [{"type": "image", "detail": "low"}]})


def test_an_unknown_kind_is_kept_whole() -> None:
    """An item of a later version or a provider comes back unchanged, also when it is written again."""
    data = {"type": "hologram", "angle": 3, "parts": [{"type": "text"}]}
    item = item_from_json(data)
    assert item == OpaqueItem(data)
    assert item_from_json(json.loads(json.dumps(item_to_json(item)))) == item


def test_only_known_kinds_are_built() -> None:
    """A name of any other class is data, not a class to make."""
    for name in ("ToolCall", "agentloop.items.ToolCall", "builtins.object"):
        assert item_from_json({"type": name}) == OpaqueItem({"type": name})


def test_provider_data_is_passed_as_it_is() -> None:
    """The data is the caller's to write, so it may hold what JSON can't."""
    item = UserMessage("x", provider_data={"raw": b"\x00", "what": object})
    assert item_from_json(item_to_json(item)) == item


def test_any_mapping_will_do() -> None:
    """Data needn't be a dict."""
    data = MappingProxyType({"type": "user_message", "content": (MappingProxyType({"type": "text", "text": "a"}),)})
    assert item_from_json(data) == UserMessage("a")


def test_a_value_that_is_no_item_is_refused() -> None:
    """A wrong value is a fault of the caller's, named by its type."""

    class Custom(ToolCall):
        pass

    for value in ("text", None, Custom("c", "f")):
        with pytest.raises(UserTypeError, match=f"expected an item, got {type(value).__name__}"):
            item_to_json(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "expected object, got int @ $"),
        (None, "expected object, got null @ $"),
        ({}, "missing @ $.type"),
        ({"type": 5}, "expected str, got int @ $.type"),
        ({"type": "tool_call", "name": "f"}, "missing required field call_id @ $"),
        ({"type": "tool_call", "call_id": 5, "name": "f"}, "expected str, got int @ $.call_id"),
        ({"type": "tool_call", "call_id": "c", "name": "f", "nmae": 1}, "unknown field nmae @ $"),
        (
            {"type": "tool_call", "call_id": "c", "name": "f", "namespace": 1},
            "str | null, got int @ $.namespace",
        ),
        ({"type": "user_message", "content": "abc"}, "expected array, got str @ $.content"),
        ({"type": "user_message", "content": [3]}, "expected object, got int @ $.content[0]"),
        ({"type": "user_message", "content": [{"type": "text"}]}, "missing required field text @ $.content[0]"),
        ({"type": "user_message", "content": [{"type": "x"}]}, "isn't known here @ $.content[0].type"),
        ({"type": "user_message", "content": [{"type": []}]}, "expected str, got list @ $.content[0].type"),
        ({"type": "reasoning", "summary": ["a", None]}, "expected str, got null @ $.summary[1]"),
        ({"type": "reasoning", "summary": {}}, "expected array, got object @ $.summary"),
        ({"type": "tool_output", "call_id": "c", "output": 5}, "expected str | array, got int @ $.output"),
        ({"type": "approval_request", "agent": "a", "call": {"call_id": "c"}}, "missing required field name @ $.call"),
        ({"type": "approval_request", "agent": "a", "call": []}, "expected object, got list @ $.call"),
        ({"type": "compaction", "data": "x"}, "expected object, got str @ $.data"),
        (
            {"type": "user_message", "content": [], "provider_data": []},
            "got array @ $.provider_data",
        ),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(data: Any, message: str) -> None:
    """The message tells where, and never quotes the value."""
    assert refusal(data).endswith(message)


def test_the_path_begins_where_the_caller_says() -> None:
    """A state can say in which of its items the fault is."""
    assert refusal({"type": "compaction"}, path="$.items[3]").endswith("field data @ $.items[3]")
    assert refusal([], path="$.items[3]").endswith("@ $.items[3]")
    assert refusal({}, path="$.items[3]").endswith("@ $.items[3].type")


def test_the_first_of_many_faults_is_named() -> None:
    """A hostile item makes no long message, and its texts stay out of it."""
    text = refusal({"type": "user_message", "content": [{"type": "text", "text": 5}] * 50})
    assert text == "Malformed item: expected str, got int @ $.content[0].text"
    assert len(refusal({"type": "compaction", "data": {}, "x" * 9_000: 1})) <= 600


class Broken(Mapping[str, Any]):
    """A mapping that fails when it is read."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("secret")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("secret")

    def __len__(self) -> int:
        return 1


def test_a_mapping_that_fails_is_a_fault_like_any_other() -> None:
    """An error raised inside the mapping is named by its type alone."""
    assert len(Broken()) == 1
    with pytest.raises(RuntimeError):
        Broken()["x"]
    assert refusal({"type": "compaction", "data": Broken()}) == "Malformed item: RuntimeError @ $"


@pytest.mark.slow
def test_the_codecs_are_not_imported_before_they_are_needed() -> None:
    """The codecs cost nothing until an item is written or read."""
    program = "import agentloop, sys; print('agentloop._storage.stored_forms' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
