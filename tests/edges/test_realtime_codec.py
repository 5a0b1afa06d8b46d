"""The realtime codec: what has a form and what hasn't, what an answer becomes, and what a server's memory holds."""

from typing import Any

import pytest
from edges.definition import Definition
from edges.realtime_requests import adopt, apart, find_overlap, items, weather
from hypothesis import given
from hypothesis import strategies as st

from agentloop import HostedTool, ModelSettings, Prompt
from agentloop.exceptions import ModelBehaviorError, ModelTransportError, UserError, UserTypeError
from agentloop.items import AssistantMessage, Compaction, Image, Item, Reasoning, Text, ToolCall, UserMessage
from agentloop.model_events import (
    ArgumentsDelta,
    ModelEvent,
    ModelRequest,
    OutputSchema,
    Raw,
    ResponseDone,
    ResponseStarted,
    TextDelta,
)
from agentloop.models._realtime.answer import RealtimeDecoder
from agentloop.models._realtime.conversation import NOT_RUN, RealtimeConversation
from agentloop.models._realtime.items import encode_item
from agentloop.models._realtime.request import encode_session
from agentloop.usage import RequestUsage

REQUEST = ModelRequest(system=None, items=(UserMessage("Hi"),))

# ---------------------------------------------------------------------------------------------- the conversation


@pytest.mark.slow
@given(st.lists(items, max_size=6), st.lists(items, max_size=6))
def test_a_servers_conversation_is_the_history_and_no_more(first: list[Item], second: list[Item]) -> None:
    """Whatever histories come one after the other, the server has the last, each item once, after what is deleted."""
    conversation = RealtimeConversation()
    conversation.begin_session(None)
    server: dict[str, Any] = {}
    for history in (first, second, first, first + second):
        request = ModelRequest(system=None, items=history)
        adopt(conversation, request)
        for event in conversation.take_events(request, encode_session(request)):
            match event:
                case {"type": "conversation.item.create", "item": {"id": id, **wire}}:
                    assert id not in server
                    server[id] = wire
                case {"type": "conversation.item.delete", "item_id": id}:
                    del server[id]
        expected = [encode_item(item, {}) for item in history if not isinstance(item, Reasoning)]
        assert list(server.values()) == expected
        assert find_overlap(conversation, request) == (len(expected) or None)


def test_calls_of_an_answer_that_was_left_get_an_output() -> None:
    """Where the server has the memory: each call is paired by its own id; items without an id can't be deleted."""
    conversation = RealtimeConversation()
    conversation.begin_session("s")
    adopt(conversation, REQUEST)
    conversation.take_events(REQUEST, {})
    conversation.answer("r1", [(AssistantMessage("Hello"), None)], [{"type": "message"}])
    call = {"type": "function_call", "call_id": "c"}
    conversation.leave("r2", [call, {"type": "message", "id": "half"}])
    memory = ModelRequest(system=None, items=[UserMessage("more")], previous_response_id="r1")
    adopt(conversation, memory)
    first, *_ = conversation.take_events(memory, {})
    assert first["item"] == {"id": "item_4", "type": "function_call_output", "call_id": "c", "output": NOT_RUN}
    assert conversation.response_ids == {"r1", "r2"}


# ---------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"conversation_id": "c"}, "conversation_id: has no form"),
        ({"prompt": Prompt("p", variables={"a": Text("b")})}, "prompt: the variable 'a' has no form"),
        ({"hosted": [HostedTool("web_search", {})]}, "hosted tools have no form in a realtime session"),
        ({"output_schema": OutputSchema(name="o", schema={})}, "output_schema: has no form"),
        ({"tools": [apart]}, "has no namespaces"),
        ({"tools": [Definition("f", kind="custom")]}, "'f': a custom tool has no form in a realtime session"),
        ({"tools": [Definition("f", defer_loading=True)]}, "'f': a realtime session has no tool search"),
        (
            {"hosted": [HostedTool("mcp", {"server_label": "dice"})]},
            "no form in a realtime session, and the agent has mcp",
        ),
        ({"tools": [weather], "tool_choice": {"type": "mcp"}}, "'mcp' has no form in a realtime session"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_session_cant_express_is_refused(changes: dict[str, Any], words: str) -> None:
    """A part of the request without a form is a misuse that names it."""
    with pytest.raises(UserError, match=words):
        encode_session(REQUEST.replace(**changes))


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (
            UserMessage(Image("data:image/png;base64,AA==")),
            "Image has no form in a realtime session",
        ),
        (ToolCall("c", "patch", "text", kind="custom"), "ToolCall has no form"),
        (Compaction({}), "Compaction has no form"),
    ],
    ids=["image", "custom", "compaction"],
)
def test_items_without_a_form_are_refused(item: Item, words: str) -> None:
    """So are items, before anything is changed."""
    conversation = RealtimeConversation()
    with pytest.raises(UserError, match=words):
        adopt(conversation, ModelRequest(system=None, items=[UserMessage("Hi"), item]))
    adopt(conversation, REQUEST)
    assert find_overlap(conversation, ModelRequest(system=None, items=[item])) is None


def test_more_fields_are_added_once() -> None:
    """`extra_args` adds fields and `extra_body` replaces them; a field that is set already is a misuse."""
    more = ModelSettings(extra_args={"tracing": "auto"}, extra_body={"max_output_tokens": 3})
    session = encode_session(REQUEST.replace(settings=more))
    assert (session["tracing"], session["max_output_tokens"]) == ("auto", 3)
    with pytest.raises(UserTypeError, match="extra_args: already set"):
        encode_session(REQUEST.replace(settings=ModelSettings(extra_args={"tools": []})))


# ---------------------------------------------------------------------------------------------- answers


def decode(*events: dict[str, Any], request: ModelRequest = REQUEST) -> list[ModelEvent]:
    decoder = RealtimeDecoder(request, model="m")
    found = [made for event in events for made in decoder.feed(event)]
    assert decoder.done
    return [event for event in (*found, *decoder.finish()) if not isinstance(event, Raw)]


def done(*output: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "response.done", "response": {"id": "r", "status": "completed", "output": [*output], **fields}}


def test_an_answer_is_decoded() -> None:
    """Text, calls and tokens, in the order of the server's output."""
    text = {"type": "message", "id": "i", "content": [{"type": "output_text", "text": "Hello"}]}
    call = {"type": "function_call", "id": "j", "call_id": "c", "name": "look", "arguments": ""}
    mcp = {"type": "mcp_call", "id": "k"}
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "input_token_details": {"cached_tokens": 4, "audio_tokens": 1},
        "output_token_details": {"audio_tokens": 2},
    }
    piece = {"response_id": "r", "item_id": "j", "call_id": "c", "delta": "{}"}
    found = decode(
        {"type": "response.created", "response": {"id": "r"}},
        {"type": "response.output_text.delta", "response_id": "r", "output_index": 0, "delta": "Hello"},
        {"type": "response.function_call_arguments.delta", **piece},
        done(text, call, mcp, usage=usage),
    )
    assert found[:3] == [ResponseStarted("r"), TextDelta("Hello"), ArgumentsDelta("c", "{}")]
    assert found[-1] == ResponseDone(
        (AssistantMessage("Hello"), ToolCall("c", "look")),
        RequestUsage(
            input_tokens=10, output_tokens=5, total_tokens=15, cached_tokens=4, audio_tokens=3, model="m", raw=usage
        ),
        "r",
        finish_reason="tool_calls",
        model="m",
    )


def test_an_answer_is_decoded_from_its_last_event_alone() -> None:
    """A server that only tells the end; spoken words are taken by their transcript, an empty message is none."""
    spoken = {"type": "message", "content": [{"type": "output_audio", "transcript": "Hi"}]}
    found = decode(done(spoken, {"type": "message", "content": None}, usage=None))
    assert found[-1] == ResponseDone([AssistantMessage("Hi")], None, "r", finish_reason="stop", model="m")


def test_calls_without_an_id_get_one() -> None:
    """Each call of an answer has an id of its own, the same in its pieces."""
    calls = [{"type": "function_call", "id": f"i{number}", "name": "look"} for number in range(2)]
    piece = {"type": "response.function_call_arguments.delta", "response_id": "r", "item_id": "i1", "delta": "{"}
    found = decode(piece, done(*calls))
    ids = [item.call_id for item in found[-1].items]  # type: ignore[union-attr]
    assert len(set(ids)) == 2
    assert found[0].call_id == ids[1]  # type: ignore[union-attr]


def test_a_half_call_is_never_a_call() -> None:
    """An answer that was cut within a call is an error; one that was cut after it isn't."""
    call = {"type": "function_call", "id": "j", "call_id": "c", "name": "look", "arguments": '{"a": 1}'}
    cut = {"status": "incomplete", "status_details": {"reason": "content_filter"}}
    assert decode(done(call, **cut))[-1].finish_reason == "content_filter"  # type: ignore[union-attr]
    with pytest.raises(ModelBehaviorError, match=r"cut \(content_filter\) within a call of 'look'"):
        decode(done({**call, "arguments": '{"a'}, **cut))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"type": "invalid_request_error", "code": "bad"}, 400),
        ({"type": "tokens", "code": "rate_limit_exceeded"}, 429),
        ({"type": "invalid_request_error", "code": "session_expired"}, None),
        ({"type": "strange"}, None),
        ("only words", None),
    ],
)
def test_an_error_has_the_status_that_it_would_have_over_http(error: Any, status: int | None) -> None:
    """A retry is decided by it; an expired session and unknown errors may be tried again."""
    with pytest.raises(ModelTransportError) as caught:
        list(RealtimeDecoder(REQUEST, model="m").feed({"type": "error", "error": error}))
    assert caught.value.status == status


def test_an_item_id_that_is_no_text_is_none() -> None:
    """Such a call is known by its own id."""
    call = {"type": "function_call", "id": {}, "call_id": "c", "name": "look", "arguments": "{}"}
    assert decode(done(call))[-1].items == (ToolCall("c", "look"),)  # type: ignore[union-attr]
