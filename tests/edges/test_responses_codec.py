"""The Responses codec: what is sent, and what is understood."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import pytest
from edges.definition import Definition
from edges.responses_fixture import (
    CALL,
    COMPACTION,
    CUSTOM,
    MESSAGE,
    OUTPUT,
    REASONING,
    SEARCH,
    USAGE,
    make_response,
    make_stream,
    wire,
)
from hypothesis import given
from hypothesis import strategies as st

from agentloop.exceptions import ModelBehaviorError, ModelTransportError, UserError, UserTypeError, UserValueError
from agentloop.items import (
    ApprovalRequest,
    AssistantMessage,
    Audio,
    Caller,
    Compaction,
    ContainerFileCitation,
    File,
    FileCitation,
    HandoffCall,
    HandoffOutput,
    HostedToolCall,
    Image,
    Item,
    OpaqueItem,
    Reasoning,
    Refusal,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UrlCitation,
    UserMessage,
)
from agentloop.model_events import (
    ArgumentsDelta,
    HostedProgress,
    ItemDone,
    ModelEvent,
    ModelRequest,
    OutputSchema,
    Raw,
    ReasoningDelta,
    ResponseDone,
    ResponseStarted,
    TextDelta,
)
from agentloop.models._codec import encode_json
from agentloop.models._pieces import PieceCache
from agentloop.models._responses.answer import ResponsesDecoder
from agentloop.models._responses.items import note_reasoning, write_items
from agentloop.models._responses.request import encode
from agentloop.models._sse import SSEDecoder
from agentloop.settings import CachePolicy, ModelSettings, Prompt
from agentloop.tools import HostedTool

HI = UserMessage("Hi")


def ask(*items: Item, **fields: Any) -> ModelRequest:
    return ModelRequest(**{"system": None, "items": items or (HI,)} | fields)


def body(*items: Item, **fields: Any) -> dict[str, Any]:
    """Return the body of a request as it is read from its JSON."""
    written: dict[str, Any] = json.loads(encode_json(encode(ask(*items, **fields), "m")))
    return written


def sent(*items: Item) -> list[Any]:
    """Return the input that *items* become."""
    found: list[Any] = body(*items)["input"]
    return found


def settings(**fields: Any) -> dict[str, Any]:
    """Return the body for model settings, without the fields that every body has."""
    made = body(settings=ModelSettings(**fields))
    return {name: value for name, value in made.items() if name not in ("model", "input", "stream")}


def decode(events: Iterable[Mapping[str, Any]], request: ModelRequest | None = None) -> list[ModelEvent]:
    """Return the model events of a whole stream, the provider's own apart."""
    return _shown(_decode_all(events, request))


def _decode_all(events: Iterable[Mapping[str, Any]], request: ModelRequest | None = None) -> list[ModelEvent]:
    decoder = ResponsesDecoder(request or ask())
    found = [event for one in events for event in decoder.feed(json.dumps(one))]
    return [*found, *decoder.finish("req_1")]


def _shown(events: Iterable[ModelEvent]) -> list[ModelEvent]:
    return [event for event in events if not isinstance(event, Raw)]


def done(events: Iterable[Mapping[str, Any]], request: ModelRequest | None = None) -> ResponseDone:
    """Return the last event of a whole stream."""
    last = decode(events, request)[-1]
    assert isinstance(last, ResponseDone)
    return last


# ---------------------------------------------------------------------------------------------- answers

CAME_OF = {"responses_reasoning": "rs_1"}
SAID = AssistantMessage(
    (
        Text(
            "Sunny für now",
            (
                UrlCitation(url="https://x.test", title="X", start=0, end=3),
                FileCitation(file_id="file_1", filename="a.pdf", index=2),
                ContainerFileCitation(container_id="cntr_1", file_id="file_2", filename="b.csv", start=1, end=2),
            ),
        ),
    ),
    id="msg_1",
    provider_data={"responses": {"status": "completed", "phase": "commentary"}},
)
STATUS = {"status": "completed"}
ITEMS = (
    Reasoning("rs_1", ["I search."], ["Hm."], "c2VjcmV0", provider_data={"responses": {"status": "completed"}}),
    HostedToolCall("web_search_call", {"action": SEARCH["action"], **CAME_OF}, "ws_1", "completed"),
    SAID.replace(provider_data={**(SAID.provider_data or {}), **CAME_OF}),
    HostedToolCall(
        "mcp_call",
        {
            "name": "roll",
            "server_label": "dice",
            "arguments": '{"n": 1}',
            "error": None,
            "approval_request_id": None,
            **CAME_OF,
        },
        "mcp_1",
        "completed",
        "4",
    ),
    Compaction(COMPACTION),
    ToolCall(
        "call_1",
        "look",
        '{"where": "här"}',
        "eyes",
        caller=Caller("program", "prog_1"),
        provider_data={"responses": {"id": "fc_1", "status": "completed"}, **CAME_OF},
    ),
    ToolCall(
        "call_2",
        "shout",
        "loud",
        kind="custom",
        provider_data={"responses": {"id": "ctc_1"}, **CAME_OF},
    ),
)


def test_a_stream_becomes_pieces_items_and_the_answer() -> None:
    """Each item's pieces come before it, with its place; hosted tools show their steps."""
    reasoning, search, message, mcp, compaction, call, custom = ITEMS
    events = decode(make_stream())
    assert events[:-1] == [
        ResponseStarted("resp_1"),
        ReasoningDelta("I s", "summary"),
        ReasoningDelta("earch.", "summary"),
        ReasoningDelta("Hm."),
        ItemDone(reasoning),
        HostedProgress("web_search_call", "in_progress", "ws_1"),
        HostedProgress("web_search_call", "searching", "ws_1"),
        HostedProgress("web_search_call", "completed", "ws_1"),
        ItemDone(search),
        TextDelta("Sunny", 2),
        TextDelta(" für now", 2),
        ItemDone(message),
        HostedProgress("mcp_call", "in_progress", "mcp_1"),
        HostedProgress("mcp_call", "completed", "mcp_1"),
        ItemDone(mcp),
        ItemDone(compaction),
        ArgumentsDelta("call_1", '{"wher'),
        ArgumentsDelta("call_1", 'e": "här"}'),
        ItemDone(call),
        ArgumentsDelta("call_2", "loud"),
        ItemDone(custom),
    ]
    last = events[-1]
    assert isinstance(last, ResponseDone)
    assert last.items == ITEMS
    assert (last.response_id, last.request_id, last.finish_reason) == ("resp_1", "req_1", "tool_calls")
    assert (last.model, last.service_tier, last.provider_data) == ("m-1-today", "flex", {"metadata": {"run": "a"}})
    used = last.usage
    assert used is not None
    assert (used.input_tokens, used.output_tokens, used.total_tokens, used.model) == (10, 7, 17, "m-1-today")
    assert (used.cached_tokens, used.cache_write_tokens, used.reasoning_tokens, used.raw) == (4, 3, 2, USAGE)


def test_every_event_is_passed_on() -> None:
    """Also of kinds that are unknown here, and those have no other meaning."""
    odd = {"type": "response.hologram.turned", "angle": 3}
    events = make_stream([MESSAGE])
    found = _decode_all([*events[:3], odd, *events[3:]])
    assert [event.data["type"] for event in found if isinstance(event, Raw)] == [
        one["type"] for one in [*events[:3], odd, *events[3:]]
    ]
    assert _shown(found) == decode(events)


def test_a_whole_answer_reads_as_its_stream() -> None:
    """A server that doesn't stream gives the same items, with their pieces."""
    decoder = ResponsesDecoder(ask())
    events = [*decoder.feed_answer(make_response()), *decoder.finish("req_1")]
    assert events[-1] == decode(make_stream())[-1]
    assert [event for event in events if isinstance(event, Raw)] == [Raw(make_response())]
    pieces = [event for event in events if isinstance(event, TextDelta | ReasoningDelta | ArgumentsDelta)]
    assert pieces == [
        ReasoningDelta("I search.", "summary"),
        ReasoningDelta("Hm."),
        TextDelta("Sunny für now", 2),
        ArgumentsDelta("call_1", '{"where": "här"}'),
        ArgumentsDelta("call_2", "loud"),
    ]


def test_what_comes_goes_back_as_it_came() -> None:
    """Every item of the answer is sent in the next request with all of its fields."""
    expected = [{**one} for one in OUTPUT]
    [part] = MESSAGE["content"]  # type: ignore[misc]
    expected[2] = MESSAGE | {"content": [{name: value for name, value in part.items() if name != "logprobs"}]}  # type: ignore[attr-defined]
    assert sent(*ITEMS) == expected


def test_what_a_message_has_beyond_its_parts_goes_back_unless_it_was_changed() -> None:
    """Probabilities and sources of new kinds; but never words that the application has replaced."""
    path = {"type": "file_path", "file_id": "f", "index": 0}
    part = {"type": "output_text", "text": "a", "annotations": [path], "logprobs": [{"token": "a", "logprob": -1.0}]}
    raw = MESSAGE | {"content": [part, {"type": "hologram"}, {"type": "refusal", "refusal": "no"}]}
    [message] = done(make_stream([raw])).items
    assert isinstance(message, AssistantMessage)
    assert (message.content, message.refusal) == ((Text("a"), Refusal("no")), "no")
    assert sent(message) == [raw]
    [changed] = sent(message.replace(content=(Text("b"),)))
    assert changed["content"] == [{"type": "output_text", "text": "b", "annotations": []}]


def test_every_cut_of_the_bytes_is_an_error_and_pieces_of_a_byte_are_the_same() -> None:
    """An answer without its end is never a short answer."""
    data, decoder, sse = wire(make_stream()), ResponsesDecoder(ask()), SSEDecoder()
    events: list[ModelEvent] = []
    for at in range(len(data)):
        assert not decoder.done
        with pytest.raises(ModelBehaviorError, match="ended before it was complete"):
            decoder.finish("req_1")
        events += [event for one in sse.feed(data[at : at + 1]) for event in decoder.feed(one.data)]
    assert [*events, *decoder.finish("req_1")] == _decode_all(make_stream())


@pytest.mark.slow
@given(st.data())
def test_events_of_any_shape_are_an_answer_or_an_error_of_ours(data: st.DataObject) -> None:
    """A field may be missing, null, or of another type."""
    events: list[Any] = json.loads(json.dumps(make_stream()))
    for _ in range(data.draw(st.integers(1, 3))):
        target = events[data.draw(st.integers(0, len(events) - 1))]
        while isinstance(target, dict | list) and target:
            keys = list(target) if isinstance(target, dict) else range(len(target))
            key = data.draw(st.sampled_from(keys))
            if data.draw(st.booleans()) or not isinstance(target[key], dict | list):
                target[key] = data.draw(st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.just([1]))
                break
            target = target[key]
    try:
        decode(events)
    except (ModelBehaviorError, ModelTransportError):
        return


def test_the_list_at_the_end_has_the_last_word() -> None:
    """Some servers leave it empty, and then the items that came one by one are the answer."""
    assert done(make_stream(output=[])).items == ITEMS
    better = MESSAGE | {"content": [{"type": "output_text", "text": "Rainy", "annotations": []}]}
    events = decode(make_stream([MESSAGE], output=[better, CALL]))
    last = events[-1]
    assert isinstance(last, ResponseDone)
    assert [type(item) for item in last.items] == [AssistantMessage, ToolCall]
    assert isinstance(last.items[0], AssistantMessage)
    assert last.items[0].text == "Rainy"
    assert [event.item for event in events if isinstance(event, ItemDone)] == [SAID, last.items[1]]


def test_items_without_pieces_have_theirs_made() -> None:
    """Such as those of a server that sends whole items alone."""
    kinds = ("response.created", "response.output_item.done", "response.completed")
    events = decode(one for one in make_stream() if one["type"] in kinds)
    assert [event for event in events if isinstance(event, TextDelta)] == [TextDelta("Sunny für now", 2)]
    assert [event for event in events if isinstance(event, ArgumentsDelta)] == [
        ArgumentsDelta("call_1", '{"where": "här"}'),
        ArgumentsDelta("call_2", "loud"),
    ]


def test_places_may_be_told_by_ids_alone() -> None:
    """Pieces of calls name their item's id."""
    events: list[Any] = [
        {name: value for name, value in one.items() if name != "output_index" or "item_id" not in one}
        for one in make_stream([MESSAGE, CALL])
    ]
    assert decode(events) == decode(make_stream([MESSAGE, CALL]))
    unknown = {"type": "response.output_text.delta", "delta": "x", "item_id": "nobody"}
    assert TextDelta("x", 0) in decode([unknown, *events])


def test_calls_get_an_id_of_the_run_s() -> None:
    """The server's, unless it is missing or an earlier call has it; the output then goes by the server's own."""
    bare = {name: value for name, value in CALL.items() if name not in ("id", "call_id")}
    [call] = done([{"type": "response.completed", "response": make_response([bare])}]).items
    assert isinstance(call, ToolCall)
    assert call.call_id == "call_1_1"
    [call] = done(make_stream([bare | {"id": "fc_9"}])).items
    assert isinstance(call, ToolCall)
    assert call.call_id == "fc_9"
    assert done(make_stream([CALL | {"id": None}])).items == (ITEMS[5].replace(provider_data={"responses": STATUS}),)
    earlier = ask(HI, ToolCall("call_1", "look"), turn=2)
    events = decode(make_stream([CALL]), earlier)
    last = events[-1]
    assert isinstance(last, ResponseDone)
    [again] = last.items
    assert isinstance(again, ToolCall)
    assert again.call_id == "call_1_2"
    assert {event.call_id for event in events if isinstance(event, ArgumentsDelta)} == {"call_1_2"}
    wired = sent(again, ToolOutput("call_1_2", "seen"))
    assert [one["call_id"] for one in wired] == ["call_1", "call_1"]


@pytest.mark.parametrize("item", [CALL, MESSAGE, REASONING])
def test_what_the_provider_only_tells_does_not_go_back(item: dict[str, Any]) -> None:
    """The field is refused in a request."""
    found = done(make_stream([item | {"created_by": "u"}, MESSAGE])).items
    assert sent(*found)[0] == sent(*done(make_stream([item, MESSAGE])).items)[0]


def test_kinds_of_items_that_are_unknown_here_are_kept_whole() -> None:
    """And go back, but for what the provider only tells."""
    odd = {"type": "hologram", "id": "h1", "angle": 3, "created_by": "u"}
    told = {"type": "message", "id": "m", "role": "user", "content": []}
    found = done(make_stream([odd, told])).items
    assert found == (OpaqueItem(odd), OpaqueItem(told))
    assert sent(*found) == [{"type": "hologram", "id": "h1", "angle": 3}, told]


def test_an_answer_without_calls_stops() -> None:
    """Without usage, model and class of service there are none."""
    last = done(make_stream([MESSAGE], usage=None, model=None, service_tier=None, metadata={}))
    assert (last.finish_reason, last.usage, last.model, last.service_tier, last.provider_data) == ("stop", *[None] * 4)
    used = done(make_stream([MESSAGE], usage={"input_tokens": 3, "input_tokens_details": None})).usage
    assert used is not None
    assert (used.input_tokens, used.output_tokens, used.total_tokens, used.cached_tokens) == (3, 0, 3, 0)


@pytest.mark.parametrize(
    ("why", "reason"),
    [("max_output_tokens", "length"), ("content_filter", "content_filter"), (None, "incomplete")],
)
def test_a_cut_answer_keeps_what_is_whole(why: str | None, reason: str) -> None:
    """The last call may be half: it is left out, and its text is an error."""
    details = {"reason": why} if why else None
    half = CALL | {"status": "incomplete", "arguments": '{"wh'}
    events = make_stream([MESSAGE], "incomplete", output=[MESSAGE, half], incomplete_details=details)
    assert done(events).items == (SAID,)
    assert done(events).finish_reason == reason
    with pytest.raises(ModelBehaviorError, match="within a call of 'look'"):
        decode(make_stream([half], "incomplete", incomplete_details=details))
    with pytest.raises(ModelBehaviorError, match="before anything usable came"):
        decode(make_stream([REASONING], "incomplete", incomplete_details=details))
    whole = make_stream([CUSTOM | {"input": "half a w"}], "incomplete", incomplete_details=details)
    assert [type(item) for item in done(whole).items] == [ToolCall]


FAILURE = {"code": "rate_limit_exceeded", "message": "Slow down."}


def test_a_failure_of_the_server_may_be_tried_again() -> None:
    """And one after it, as far as nobody has seen the output: the status says so for both."""
    begun = make_stream([MESSAGE])
    for last in (
        {"type": "response.failed", "response": make_response([], "failed", error=FAILURE)},
        {"type": "error", **FAILURE, "param": None},
        {"type": "response.error", "error": FAILURE},
        {"error": FAILURE},
    ):
        with pytest.raises(ModelTransportError, match=r"Slow down\.") as caught:
            decode([*begun[:2], last])
        assert (caught.value.code, caught.value.status) == ("rate_limit_exceeded", 429)
        with pytest.raises(ModelTransportError, match=r"off: Slow down\. \(rate_limit_exceeded\)") as caught:
            decode([*begun[:-1], last])
        assert (caught.value.code, caught.value.status) == ("rate_limit_exceeded", 429)
    with pytest.raises(ModelTransportError, match=r"The response failed\."):
        decode([{"type": "response.failed", "response": make_response([], "failed")}])


def test_a_whole_answer_may_be_an_error_or_not_over() -> None:
    """The status decides."""
    for answer in ({"error": FAILURE}, make_response([], "failed", error=FAILURE)):
        with pytest.raises(ModelTransportError, match=r"Slow down\."):
            ResponsesDecoder(ask()).feed_answer(answer)
    for status in ("queued", "in_progress", "cancelled", None):
        with pytest.raises(ModelBehaviorError, match=f"isn't over, its status is '{status}'"):
            ResponsesDecoder(ask()).feed_answer(make_response([], status=status))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ("nonsense", "isn't a JSON object"),
        ({"type": 5}, "type isn't text"),
        ({"type": "response.output_item.done"}, "has no item"),
        ({"type": "response.output_item.done", "item": CALL | {"name": ""}}, "without naming it"),
        ({"type": "response.output_item.done", "item": MESSAGE | {"content": 5}}, "content aren't a list"),
        ({"type": "response.completed", "response": make_response({"a": 1})}, "output aren't a list"),
    ],
)
def test_what_breaks_the_rules_is_an_error(event: Any, message: str) -> None:
    """The message says what is wrong."""
    with pytest.raises(ModelBehaviorError, match=message):
        ResponsesDecoder(ask()).feed(event if isinstance(event, str) else json.dumps(event))


def test_what_follows_the_end_is_not_read() -> None:
    """Some servers close with the mark of another interface."""
    decoder = ResponsesDecoder(ask())
    for one in make_stream([MESSAGE]):
        assert not decoder.done
        decoder.feed(json.dumps(one))
    assert decoder.done
    assert decoder.feed("[DONE]") == decoder.feed("") == decoder.feed(json.dumps({"type": "error"})) == []
    assert ResponsesDecoder(ask()).feed("[DONE]") == []


# ---------------------------------------------------------------------------------------------- requests


def test_a_plain_request_has_only_what_is_needed() -> None:
    """Fields that nobody set are left out."""
    assert body(system="Be brief.") == {
        "model": "m",
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": "Hi"}],
        "stream": True,
    }
    assert "instructions" not in body()


def test_settings_have_their_fields() -> None:
    """By the interface's own names; texts and outputs share one field."""
    assert settings(
        temperature=0.5,
        top_p=0.9,
        max_tokens=9,
        reasoning={"effort": "low", "summary": "auto"},
        verbosity="low",
        truncation="auto",
        store=False,
        metadata={"a": "b"},
        include=["web_search_call.results", "reasoning.encrypted_content"],
        top_logprobs=2,
        context_management=[{"type": "compaction", "compact_threshold": 1_000}],
        service_tier="flex",
        parallel_tool_calls=True,
    ) == {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 9,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low"},
        "truncation": "auto",
        "store": False,
        "metadata": {"a": "b"},
        "include": ["web_search_call.results", "reasoning.encrypted_content", "message.output_text.logprobs"],
        "top_logprobs": 2,
        "context_management": [{"type": "compaction", "compact_threshold": 1_000}],
        "service_tier": "flex",
    }
    assert settings(store=True) == {"store": True}
    assert settings(extra_args={"user": "u"}, extra_body={"stream": False, "model": "x"}) == {"user": "u"}
    with pytest.raises(UserTypeError, match="extra_args: already set by the request: model"):
        settings(extra_args={"model": "x"})


def test_a_typed_output_is_a_format() -> None:
    """With its strictness."""
    schema = {"type": "object", "properties": {}}
    assert body(output_schema=OutputSchema(name="final_output", schema=schema, strict=False))["text"] == {
        "format": {"type": "json_schema", "name": "final_output", "schema": schema, "strict": False}
    }


def test_conversations_and_prompts_of_the_provider_are_named() -> None:
    """Variables of a prompt may be parts."""
    assert body(previous_response_id="resp_0")["previous_response_id"] == "resp_0"
    assert body(conversation_id="conv_1")["conversation"] == "conv_1"
    prompt = Prompt("pmpt_1", version="2", variables={"name": "Ann", "face": Image(file_id="f1")})
    assert body(prompt=prompt)["prompt"] == {
        "id": "pmpt_1",
        "version": "2",
        "variables": {"name": "Ann", "face": {"type": "input_image", "detail": "auto", "file_id": "f1"}},
    }
    assert body(prompt=Prompt("pmpt_1"))["prompt"] == {"id": "pmpt_1"}
    with pytest.raises(UserError, match=r"prompt\.variables\['x'\]: Refusal has no form in the Responses interface"):
        body(prompt=Prompt("pmpt_1", variables={"x": Refusal("no")}))


POINT = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def test_a_cache_policy_has_fields_and_points() -> None:
    """Points stand after every part of the instructions but the last, and after the newest message of the user."""
    assert settings(cache=CachePolicy(key="k", ttl="30m", retention="24h")) == {
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {"ttl": "30m"},
    }
    assert settings(cache=CachePolicy(breakpoints=["tools"])) == {}
    policy = CachePolicy(breakpoints=["instructions", "items"])
    made = body(
        UserMessage("old"),
        UserMessage((Text("a"), Text("b"))),
        AssistantMessage("c"),
        system="x\n\ny",
        instructions=("x", "y"),
        settings=ModelSettings(cache=policy),
    )
    assert "instructions" not in made
    assert made["prompt_cache_options"] == {"mode": "explicit"}
    assert made["input"] == [
        {
            "role": "developer",
            "content": [{"type": "input_text", "text": "x"} | POINT, {"type": "input_text", "text": "y"}],
        },
        {"role": "user", "content": "old"},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"} | POINT],
        },
        {"role": "assistant", "content": "c"},
    ]
    none = body(UserMessage(()), AssistantMessage("c"), settings=ModelSettings(cache=policy))
    assert none["input"][0] == {"role": "user", "content": []}
    assert "prompt_cache_options" not in none  # explicit without a point would keep nothing


def test_instructions_of_one_text_have_a_point_too() -> None:
    """In a message; in a conversation that the provider keeps they stay in their field, or they would come twice."""
    settings = ModelSettings(cache=CachePolicy(breakpoints=["instructions"]))
    message = {"role": "developer", "content": [{"type": "input_text", "text": "x"} | POINT]}
    for parts in ((), ("x",)):
        one = body(system="x", instructions=parts, settings=settings)
        assert one["input"] == [message, {"role": "user", "content": "Hi"}]
        assert one["prompt_cache_options"] == {"mode": "explicit"}
        assert "instructions" not in one
    for kept in ({"previous_response_id": "r"}, {"conversation_id": "c"}):
        one = body(system="x\n\ny", instructions=("x", "y"), settings=settings, **kept)
        assert (one["instructions"], one["input"]) == ("x\n\ny", [{"role": "user", "content": "Hi"}])
        assert "prompt_cache_options" not in one
    assert "prompt_cache_options" not in body(settings=settings)


def test_a_request_has_four_points_at_most() -> None:
    """The newest item's first, then those after the later parts of the instructions."""

    def marked(*breakpoints: Any) -> list[str]:
        settings = ModelSettings(cache=CachePolicy(breakpoints=breakpoints))
        made = body(system="", instructions=tuple("ABCDEF"), settings=settings)
        parts = [part for item in made["input"] if isinstance(item["content"], list) for part in item["content"]]
        return [part["text"] for part in parts if "prompt_cache_breakpoint" in part]

    assert marked("instructions") == ["B", "C", "D", "E"]
    assert marked("instructions", "items") == ["C", "D", "E", "Hi"]


@pytest.mark.parametrize(
    ("output", "parts"),
    [
        ("sunny", [{"type": "input_text", "text": "sunny"} | POINT]),
        ((Text("a"), Text("b")), [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"} | POINT]),
    ],
)
def test_the_newest_item_that_can_hold_a_point_gets_it(output: Any, parts: Any) -> None:
    """A request may have outputs of tools only. Empty ones, executors' and the model's own items hold none."""
    settings = ModelSettings(cache=CachePolicy(breakpoints=["items"]))
    for kind in ("function", "custom"):
        call = ToolCall("c1", "f", kind=kind)
        made = body(call, ToolOutput("c1", output, kind=kind), AssistantMessage("c"), settings=settings)["input"]
        assert made[1]["output"] == parts
    empty = body(ToolCall("c1", "f"), ToolOutput("c1", output), ToolOutput("c2", ""), settings=settings)["input"]
    assert (empty[1]["output"], empty[2]["output"]) == (parts, "")
    verdict = ToolOutput("a", "no", kind="approval", is_error=True)
    judged = body(SystemMessage("x"), ToolCall("a", "f", kind="approval"), verdict, settings=settings)["input"]
    assert judged[0] == {"role": "system", "content": [{"type": "input_text", "text": "x"} | POINT]}
    assert judged[2]["reason"] == "no"


def test_reasoning_goes_back_without_its_id_where_that_is_set() -> None:
    """Only the id of the reasoning: what came of it is known by its own, and isn't taken for an orphan."""
    thought = Reasoning("rs_1", ["I look."], encrypted="c2Vj", provider_data={"responses": {"status": "completed"}})
    found = note_reasoning(ToolCall("c1", "look", provider_data={"responses": {"id": "fc_1"}}), "rs_1")
    items, pieces = (thought, found, ToolOutput("c1", "seen")), PieceCache()
    whole, bare, again = (
        json.loads(b"[%b]" % b",".join(piece for _, piece in write_items(items, pieces, reasoning_ids=ids)))
        for ids in (True, False, True)
    )
    assert whole == again
    assert whole[0]["id"] == "rs_1"
    assert bare == [{name: value for name, value in whole[0].items() if name != "id"}, *whole[1:]]
    assert body(*items, settings=ModelSettings(reasoning_item_ids="omit"))["input"] == bare
    assert body(*items, settings=ModelSettings(reasoning_item_ids="keep"))["input"] == whole
    with pytest.raises(UserValueError, match="reasoning_item_ids: expected one of None, 'keep', 'omit'"):
        ModelSettings(reasoning_item_ids="drop")  # type: ignore[arg-type]


LOOK = Definition("look")
SHOUT = Definition("shout", kind="custom", format={"type": "text"})


def test_tools_of_every_kind() -> None:
    """Those of one namespace stand together, at the place of the first; deferred ones need a search."""
    late = Definition("late", namespace="n", defer_loading=True, output_schema={"type": "string"}, strict_mode=False)
    shared = Definition("also", namespace="n", allowed_callers=("direct", "programmatic"))
    hosted = HostedTool("code_interpreter", {"container": {"type": "auto"}})
    tools = body(tools=[late, LOOK, shared, SHOUT], handoffs=[Definition("move")], hosted=[hosted])["tools"]
    parameters = {"type": "object", "properties": {}}
    function = {"type": "function", "description": "Does it.", "parameters": parameters, "strict": True}
    assert tools == [
        {
            "type": "namespace",
            "name": "n",
            "description": "Tools of n.",
            "tools": [
                function
                | {"name": "late", "strict": False, "defer_loading": True, "output_schema": {"type": "string"}},
                function | {"name": "also", "allowed_callers": ["direct", "programmatic"]},
            ],
        },
        function | {"name": "look"},
        {"type": "custom", "name": "shout", "description": "Does it.", "format": {"type": "text"}},
        function | {"name": "move"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "tool_search"},
    ]
    about = [attrs.evolve(one, namespace_description=said) for one, said in ((shared, "First."), (shared, "Second."))]
    assert body(tools=[late, *about])["tools"][0]["description"] == "First."
    searched = body(tools=[late], hosted=[HostedTool("tool_search", {"execution": "client"})])["tools"]
    assert searched[1:] == [{"type": "tool_search", "execution": "client"}]


DICE: Any = {"type": "mcp", "server_label": "dice", "name": "roll"}
FLAT: Any = [{"type": "function", "name": "look"}, {"type": "custom", "name": "shout"}, DICE]
NESTED: Any = [
    {"type": "function", "function": {"name": "look"}},
    {"type": "custom", "custom": {"name": "shout"}},
    DICE,
]
SOME: Any = {"type": "allowed_tools", "mode": "auto", "tools": FLAT}


@pytest.mark.parametrize(
    ("choice", "written"),
    [
        ("auto", "auto"),
        ("required", "required"),
        ("none", "none"),
        ("look", {"type": "function", "name": "look"}),
        ("shout", {"type": "custom", "name": "shout"}),
        ("web_search", {"type": "web_search"}),
        ("move", {"type": "function", "name": "move"}),
        ({"type": "function", "function": {"name": "look"}}, {"type": "function", "name": "look"}),
        ({"type": "mcp", "server_label": "dice"}, {"type": "mcp", "server_label": "dice"}),
        (SOME, SOME),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": NESTED}}, SOME),
        (None, None),
    ],
)
def test_the_tool_choice_is_by_kind(choice: Any, written: Any) -> None:
    """A name may be of a function, a custom tool or a hosted one."""
    asked = {"hosted": [HostedTool("web_search"), HostedTool("move")], "handoffs": [Definition("move")]}
    made = body(tools=[LOOK, SHOUT], tool_choice=choice, settings=ModelSettings(parallel_tool_calls=False), **asked)
    assert made.get("tool_choice") == written
    assert made["parallel_tool_calls"] is False


def test_without_tools_there_is_no_choice() -> None:
    """The interface refuses one."""
    made = body(tool_choice="auto", settings=ModelSettings(parallel_tool_calls=True))
    assert made.keys() == {"model", "input", "stream"}
    with pytest.raises(UserTypeError, match="tool_choice: expected a string or a mapping with a type"):
        body(tools=[LOOK], tool_choice={"name": "look"})


def test_parts_of_the_user() -> None:
    """Texts, images and files by URL, by data and by id."""
    parts = (
        Text("a"),
        Image("u", "low"),
        Image(data="QQ==", media_type="image/webp"),
        File("QQ==", filename="x.pdf"),
        File(url="https://x.test/a.pdf"),
        File(file_id="f1"),
    )
    assert sent(UserMessage(parts), SystemMessage("s")) == [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "a"},
                {"type": "input_image", "detail": "low", "image_url": "u"},
                {"type": "input_image", "detail": "auto", "image_url": "data:image/webp;base64,QQ=="},
                {"type": "input_file", "file_data": "data:application/pdf;base64,QQ==", "filename": "x.pdf"},
                {"type": "input_file", "file_url": "https://x.test/a.pdf"},
                {"type": "input_file", "file_id": "f1"},
            ],
        },
        {"role": "system", "content": "s"},
    ]


def test_items_from_elsewhere_go_without_their_ids() -> None:
    """Reasoning of another provider isn't sent; words of refusal are words."""
    assert sent(
        Reasoning("r", content=["hm"], encrypted="x"),
        AssistantMessage((Text("a"), Refusal("no")), id="made-up"),
        ToolCall("c1", "look", "", "eyes"),
        ToolCall("c2", "shout", "x", kind="custom"),
        HandoffCall("c3", "move"),
        ToolOutput("c1", "seen"),
        ToolOutput("c2", (Text("a"), Image("u"), Refusal("no"), Audio("QQ==")), kind="custom"),
        HandoffOutput("c3", "moved", "a", "b"),
    ) == [
        {"role": "assistant", "content": "ano"},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}", "namespace": "eyes"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "shout", "input": "x"},
        {"type": "function_call", "call_id": "c3", "name": "move", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
        {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [
                {"type": "input_text", "text": "a"},
                {"type": "input_image", "detail": "auto", "image_url": "u"},
                {"type": "input_text", "text": "no"},
                {"type": "input_text", "text": "[audio omitted]"},
            ],
        },
        {"type": "function_call_output", "call_id": "c3", "output": "moved"},
    ]


def test_reasoning_is_sent_with_what_came_of_it_or_not_at_all() -> None:
    """The provider refuses it alone."""
    reasoning, message, call = ITEMS[0], ITEMS[2], ITEMS[5]
    assert sent(HI, reasoning, reasoning, message)[1:3] == [REASONING, REASONING]
    assert sent(HI, reasoning, HI) == sent(HI, HI)
    assert sent(HI, reasoning) == sent(HI)
    bare = Reasoning(provider_data={"responses": {}})
    assert sent(bare, call)[0] == {"type": "reasoning", "summary": []}


def test_the_output_of_a_program_s_call_names_its_caller() -> None:
    """As the call did."""
    assert sent(ITEMS[5], ToolOutput("call_1", "x"))[1] == {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": "x",
        "caller": {"type": "program", "caller_id": "prog_1"},
    }
    direct = ToolCall("c", "look", caller=Caller("direct"))
    assert sent(direct)[0]["caller"] == {"type": "direct"}


@pytest.mark.parametrize(
    ("item", "named"),
    [
        (Compaction({}), r"items\[1\]: Compaction"),
        (OpaqueItem({}), r"items\[1\]: OpaqueItem"),
        (HostedToolCall("server_tool_use"), r"items\[1\]: HostedToolCall"),
        (ApprovalRequest(ToolCall("a", "f"), "agent"), r"items\[1\]: ApprovalRequest"),
        (UserMessage(Refusal("no")), r"items\[1\]\.content\[0\]: Refusal"),
        (UserMessage((Text("a"), Audio("QQ=="))), r"items\[1\]\.content\[1\]: Audio"),
        (AssistantMessage(Image("u")), r"items\[1\]: Image"),
        (SAID.replace(content=(Image("u"),)), r"items\[1\]\.content\[0\]: Image"),
    ],
)
def test_what_has_no_form_is_named_with_its_place(item: Item, named: str) -> None:
    """Such an item raises an error and is never dropped in silence."""
    with pytest.raises(UserError, match=named):
        sent(HI, item)


@pytest.mark.parametrize("kind", [None, 3, {}])
def test_an_item_without_a_type_is_refused(kind: Any) -> None:
    """It could not go back, so the error comes at once, and not with the next request."""
    with pytest.raises(ModelBehaviorError, match="an item without a type"):
        done(make_stream([{"id": "x", "type": kind}]))
