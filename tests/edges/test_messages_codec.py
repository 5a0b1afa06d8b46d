"""The Anthropic Messages codec and `AnthropicModel`: what is sent, and what is understood."""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest
from edges.definition import Definition
from edges.messages_fixture import START, WHOLE, begin, end, more, stop, wire

from agentloop.exceptions import (
    ModelBehaviorError,
    ModelTransportError,
    UserError,
    UserTypeError,
    UserValueError,
)
from agentloop.items import (
    AssistantMessage,
    Audio,
    Caller,
    Compaction,
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
from agentloop.models import AnthropicModel
from agentloop.models._codec import encode_json
from agentloop.models._messages.answer import MessagesDecoder
from agentloop.models._messages.items import BLOCK, CITATIONS, RESULT, WIRE_ID
from agentloop.models._messages.request import encode
from agentloop.models._sse import SSEDecoder
from agentloop.settings import CachePolicy, ModelSettings
from agentloop.tools import HostedTool

KEY = "sk-ant-secret-0123456789"


def ask(*items: Item, **fields: Any) -> ModelRequest:
    return ModelRequest(**{"system": None, "items": items or (UserMessage("Hi"),)} | fields)


def as_sent(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return *body* as it is read from its JSON."""
    found: dict[str, Any] = json.loads(encode_json(body))
    return found


def body(*items: Item, **fields: Any) -> dict[str, Any]:
    return as_sent(encode(ask(*items, **fields), "m", max_tokens=9))


def messages(*items: Item) -> list[dict[str, Any]]:
    return body(*items)["messages"]  # type: ignore[no-any-return]


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def thought(text: str, signature: str | None) -> Reasoning:
    return Reasoning(content=(text,), encrypted=signature, provider_data={BLOCK: "thinking"})


# ---------------------------------------------------------------------------------------------- encoding


def test_a_bare_request_sends_model_limit_messages_and_stream_alone() -> None:
    """A setting without a value isn't sent; a limit is required."""
    assert body(system="Be brief.") == {
        "model": "m",
        "max_tokens": 9,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": [said("Hi")]}],
        "stream": True,
    }


def test_blocks_of_one_role_share_a_message_and_results_come_first_in_theirs() -> None:
    """System messages at the beginning join the system's text; empty texts are left out."""
    sent = body(
        SystemMessage("S"),
        UserMessage("Hi"),
        UserMessage([Text(""), Text("there")]),
        thought("hm", "sig"),
        Reasoning(encrypted="xyz", provider_data={BLOCK: "redacted_thinking"}),
        Reasoning(id="rs_1", content=("another provider's",), encrypted="…"),
        AssistantMessage("I look."),
        ToolCall("a", "f", '{"x":1}'),
        HandoffCall("b", "transfer_to_x", ""),
        UserMessage("And?"),
        ToolOutput("a", "1", is_error=True),
        HandoffOutput("b", "moved", "one", "two"),
        SystemMessage("Mind it."),
        AssistantMessage((Refusal("won't"),)),
        system="Be brief.",
    )
    assert sent["system"] == "Be brief.\n\nS"
    assert sent["messages"] == [
        {"role": "user", "content": [said("Hi"), said("there")]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig"},
                {"type": "redacted_thinking", "data": "xyz"},
                said("I look."),
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
                {"type": "tool_use", "id": "b", "name": "transfer_to_x", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "1", "is_error": True},
                {"type": "tool_result", "tool_use_id": "b", "content": "moved"},
                said("And?"),
                said("Mind it."),
            ],
        },
        {"role": "assistant", "content": [said("won't")]},
    ]


def test_arguments_that_are_no_object_are_sent_as_one() -> None:
    """The interface takes objects only, and the refused call is in the history."""
    calls = messages(ToolCall("a", "f", "[1]"), ToolCall("b", "f", "{oops"))[0]["content"]
    assert [call["input"] for call in calls] == [{"arguments": [1]}, {"arguments": "{oops"}]


def test_ids_of_calls_go_back_as_they_came_and_others_in_allowed_characters() -> None:
    """Another provider's ids, and those of nested runs, may have characters that the interface refuses."""
    wire = messages(
        ToolCall("call.1", "f", provider_data={WIRE_ID: "toolu_1"}),
        ToolCall("a.b|c", "f"),
        ToolOutput("call.1", ""),
        ToolOutput("a.b|c", "2"),
    )
    assert [block["id"] for block in wire[0]["content"]] == ["toolu_1", "a_b_c"]
    assert wire[1]["content"] == [
        {"type": "tool_result", "tool_use_id": "toolu_1"},
        {"type": "tool_result", "tool_use_id": "a_b_c", "content": "2"},
    ]


def test_images_and_files_are_sources_by_url_or_in_base64() -> None:
    """A file without a data URL takes its type from its name."""
    parts = [
        Image("data:image/png;base64,AAA="),
        Image("https://h/x.png"),
        File(data="QQ==", filename="a.pdf"),
        File(url="https://h/a.pdf"),
        File(data="data:text/plain;charset=utf-8;base64,QQ=="),
        File(file_id="file_1"),
        Image(data="AAA=", media_type="image/webp"),
    ]
    sources = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAA="}},
        {"type": "image", "source": {"type": "url", "url": "https://h/x.png"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "QQ=="},
            "title": "a.pdf",
        },
        {"type": "document", "source": {"type": "url", "url": "https://h/a.pdf"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A"}},
        {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/webp", "data": "AAA="}},
    ]
    assert messages(UserMessage(parts))[0]["content"] == sources
    assert messages(ToolOutput("c", parts))[0]["content"][0]["content"] == sources


@pytest.mark.parametrize(
    ("item", "named"),
    [
        (Compaction({}), r"items\[0\]: Compaction has no form in Anthropic Messages"),
        (OpaqueItem({"type": "odd"}), "OpaqueItem"),
        (HostedToolCall("web_search", {"type": "web_search_call"}), "HostedToolCall"),
        (AssistantMessage([Image("https://h/x.png")]), r"items\[0\]\.content: Image"),
        (UserMessage([Audio("QQ==")]), r"items\[0\]\.content\[0\]: Audio"),
        (UserMessage([File(data="data:text/plain;base64,/w==")]), r"content\[0\]: the file isn't a text"),
        (UserMessage([Image("data:text/plain,x")]), "base64 only"),
    ],
)
def test_what_has_no_form_is_named_with_its_place(item: Item, named: str) -> None:
    """Nothing is left out silently."""
    with pytest.raises(UserError, match=named):
        body(item)


@pytest.mark.parametrize("field", ["previous_response_id", "conversation_id", "prompt"])
def test_state_on_the_server_is_refused(field: str) -> None:
    """The interface keeps none."""
    with pytest.raises(UserError, match=field):
        body(**{field: "x"})


LOOK = Definition("look")
FORCED = OutputSchema(name="final_output", schema={"type": "object"})


@pytest.mark.parametrize(
    ("choice", "parallel", "sent"),
    [
        (None, None, None),
        ("auto", None, {"type": "auto"}),
        ("required", None, {"type": "any"}),
        ("none", False, {"type": "none"}),
        ("look", None, {"type": "tool", "name": "look"}),
        (
            {"type": "function", "name": "look"},
            True,
            {"type": "tool", "name": "look", "disable_parallel_tool_use": False},
        ),
        ({"type": "any"}, None, {"type": "any"}),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
    ],
)
def test_tool_choice_has_its_form_here(choice: Any, parallel: bool | None, sent: Any) -> None:
    """The words of runs become those of the interface; its own pass."""
    fields = body(tools=[LOOK], tool_choice=choice, settings=ModelSettings(parallel_tool_calls=parallel))
    assert fields["tools"] == [
        {"name": "look", "description": "Does it.", "input_schema": {"type": "object", "properties": {}}}
    ]
    assert fields.get("tool_choice") == sent
    assert "tool_choice" not in body(tool_choice=choice)


@pytest.mark.scenario("WR-06")
def test_a_tool_of_the_provider_is_named_with_its_date() -> None:
    """Other providers' tools, and tools of free text, are refused before the request."""
    hosted = HostedTool("web_search_20250305", {"max_uses": 3})
    assert body(hosted=[hosted])["tools"] == [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]
    served = HostedTool("mcp_toolset", {"mcp_server_name": "s", "default_config": {"enabled": True}})
    assert body(hosted=[served])["tools"] == [{"type": "mcp_toolset", **served.config}]
    for kind in ("web_search", "web_search_preview", "_20250305", "mcp"):
        with pytest.raises(UserError, match="named with a date"):
            body(hosted=[HostedTool(kind)])
    with pytest.raises(UserError, match="custom tool"):
        body(tools=[Definition("sql", kind="custom")])


def test_a_deferred_tool_brings_the_provider_s_search_along() -> None:
    """Unless the agent has a search already. A deferred tool is in no beginning that a cache keeps."""
    late = Definition("late", defer_loading=True, allowed_callers=("code_execution_20250825",))
    search = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
    sent = body(tools=[late, Definition("look")])["tools"]
    assert (sent[0]["defer_loading"], sent[0]["allowed_callers"]) == (True, ["code_execution_20250825"])
    assert sent[1].keys() == {"name", "description", "input_schema"}
    assert sent[2:] == [search]
    own = HostedTool("tool_search_tool_regex_20251119")
    assert [tool["name"] for tool in body(tools=[late], hosted=[own])["tools"]] == ["late", "tool_search_tool_regex"]
    cached = ModelSettings(cache=CachePolicy(breakpoints=["tools"]))
    pinned = HostedTool("tool_search_tool_regex_20251119", {"defer_loading": True})
    marked = body(tools=[Definition("look"), late], hosted=[pinned], settings=cached)["tools"]
    assert ["cache_control" in tool for tool in marked] == [True, False, False]


def test_what_a_search_found_goes_back_as_it_came() -> None:
    """The search and the tools that it found are one item; the call that follows is an ordinary one."""
    found = {
        "type": "tool_search_tool_search_result",
        "tool_references": [{"type": "tool_reference", "tool_name": "f"}],
    }
    searched = {"type": "server_tool_use", "id": "srv_1", "name": "tool_search_tool_bm25", "input": {"query": "f"}}
    result = {"type": "tool_search_tool_result", "tool_use_id": "srv_1", "content": found}
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    events = [START, begin(0, **searched | {"input": {}}), more(0, type="input_json_delta", partial_json='{"query":')]
    events += [more(0, type="input_json_delta", partial_json='"f"}'), stop(0), begin(1, **result), stop(1)]
    done = read([*events, begin(2, **use), stop(2), *end("tool_use")])
    search, call = done.items
    assert isinstance(search, HostedToolCall)
    assert (search.kind, search.status, search.output) == ("tool_search_tool_bm25", "completed", found)
    assert call == ToolCall("toolu_1", "f")
    assert messages(*done.items)[0]["content"] == [searched, result, use]


def test_a_cache_policy_marks_the_ends_of_what_is_worth_keeping() -> None:
    """Instructions in parts are marked after each part but the last, which may change."""
    policy = CachePolicy(ttl="1h", breakpoints=["tools", "instructions", "items"])
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    settings = ModelSettings(cache=policy)
    sent = body(system="A\n\nB", instructions=("A", "B"), tools=[LOOK, Definition("now")], settings=settings)
    assert sent["system"] == [said("A") | mark, said("B")]
    assert ["cache_control" in tool for tool in sent["tools"]] == [False, True]
    assert sent["messages"] == [{"role": "user", "content": [said("Hi") | mark]}]
    short = ModelSettings(cache=CachePolicy(breakpoints=["instructions"]))
    assert body(system="A", settings=short)["system"] == [said("A") | {"cache_control": {"type": "ephemeral"}}]
    assert body(settings=ModelSettings(cache=CachePolicy(key="k"))) == body()


def test_a_request_has_four_marks_at_most() -> None:
    """The last of each place comes first, then the later parts of the instructions; an application's own ones count."""
    parts = tuple("ABCDEF")

    def marked(*hosted: HostedTool, breakpoints: Any = ("tools", "instructions", "items")) -> tuple[str, int, int]:
        settings = ModelSettings(cache=CachePolicy(breakpoints=breakpoints))
        sent = body(system="\n\n".join(parts), instructions=parts, tools=[LOOK], hosted=hosted, settings=settings)
        [message] = sent["messages"]
        in_system = [part["text"] for part in sent["system"] if "cache_control" in part] * (
            "instructions" in breakpoints
        )
        in_tools = sum("cache_control" in tool for tool in sent["tools"])
        return "".join(in_system), in_tools, sum("cache_control" in block for block in message["content"])

    assert marked() == ("DE", 1, 1)
    assert marked(breakpoints=["instructions"]) == ("BCDE", 0, 0)
    own = HostedTool("web_search_20250305", {"cache_control": {"type": "ephemeral"}})
    assert marked(own) == ("DE", 1, 1)  # the last tool is marked by the application
    assert marked(own, own, HostedTool("web_fetch_20250910")) == ("", 3, 1)
    assert marked(*[own] * 4) == ("", 4, 0)
    assert marked(*[own] * 5) == ("", 5, 0)


def test_the_newest_block_that_can_have_a_mark_gets_it() -> None:
    """A thought can't have one, as the interface has it."""
    settings = ModelSettings(cache=CachePolicy(breakpoints=["items"]))
    mark = {"cache_control": {"type": "ephemeral"}}
    hidden = Reasoning(encrypted="cmVk", provider_data={BLOCK: "redacted_thinking"})
    user, model = body(UserMessage("Hi"), thought("h", "s"), hidden, settings=settings)["messages"]
    assert user["content"] == [said("Hi") | mark]
    assert all("cache_control" not in block for block in model["content"])
    [model] = body(thought("h", "s"), settings=settings)["messages"]
    assert "cache_control" not in model["content"][0]
    late = ModelSettings(cache=CachePolicy(breakpoints=["tools"]))
    pinned = HostedTool("tool_search_tool_regex_20251119", {"defer_loading": True})
    assert all("cache_control" not in tool for tool in body(hosted=[pinned], settings=late)["tools"])


def test_a_tool_that_the_interface_lacks_is_refused() -> None:
    """Namespaces and hosted choices have no form."""
    with pytest.raises(UserError, match="namespaces"):
        body(tools=[Definition("look", namespace="n")])
    with pytest.raises(UserError, match="'mcp' has no form in Anthropic"):
        body(tools=[LOOK], tool_choice={"type": "mcp"})


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"temperature": 0.5, "top_p": 0.9, "max_tokens": 5}, {"temperature": 0.5, "top_p": 0.9, "max_tokens": 5}),
        ({"metadata": {"user_id": "u", "x": "y"}}, {"metadata": {"user_id": "u"}}),
        ({"metadata": {"x": "y"}, "store": True, "truncation": "auto", "verbosity": "low"}, {}),
        ({"reasoning": {"effort": "high", "summary": "auto"}}, {"output_config": {"effort": "high"}}),
        ({"reasoning": {"effort": "minimal"}}, {"output_config": {"effort": "low"}}),
        ({"reasoning": {"effort": "none"}}, {"thinking": {"type": "disabled"}}),
        ({"reasoning": {"budget_tokens": 2000}}, {"thinking": {"type": "enabled", "budget_tokens": 2000}}),
        ({"reasoning": {"display": "omitted"}}, {"thinking": {"type": "adaptive", "display": "omitted"}}),
        ({"extra_args": {"top_k": 3}, "extra_body": {"stream": False}}, {"top_k": 3, "stream": False}),
    ],
)
def test_settings_go_to_their_fields(settings: dict[str, Any], fields: dict[str, Any]) -> None:
    """What has no field doesn't change the question, and is left out."""
    assert body(settings=ModelSettings(**settings)) == body() | fields


def test_extra_args_that_collide_with_a_set_field_are_a_type_error() -> None:
    """A setting is given in one place."""
    with pytest.raises(UserTypeError, match="max_tokens"):
        body(settings=ModelSettings(extra_args={"max_tokens": 3}))


def test_a_typed_output_is_a_format_or_a_forced_tool() -> None:
    """Models without structured outputs get a tool, which they must call; other tools stay open to them."""
    described = body(output_schema=FORCED, settings=ModelSettings(reasoning={"effort": "low"}))
    assert described["output_config"] == {
        "effort": "low",
        "format": {"type": "json_schema", "schema": {"type": "object"}},
    }

    def forced(**fields: Any) -> dict[str, Any]:
        return as_sent(encode(ask(output_schema=FORCED, **fields), "m", max_tokens=9, output_mode="tool"))

    alone, beside = forced(), forced(tools=[LOOK], tool_choice="auto")
    assert [tool["name"] for tool in beside["tools"]] == ["look", "final_output"]
    assert alone["tool_choice"] == {"type": "tool", "name": "final_output"}
    assert beside["tool_choice"] == {"type": "any"}
    assert forced(tools=[LOOK], tool_choice="look")["tool_choice"] == {"type": "tool", "name": "look"}
    assert "output_config" not in alone


@pytest.mark.parametrize(
    ("reasoning", "sent"),
    [
        ({"budget_tokens": 2_000}, {"type": "auto"}),
        ({"type": "adaptive"}, {"type": "auto"}),
        ({"effort": "none"}, {"type": "any"}),
        ({"effort": "high"}, {"type": "any"}),
    ],
)
def test_the_output_s_tool_is_not_forced_while_the_model_thinks(reasoning: Any, sent: Any) -> None:
    """The interface refuses a forced choice then; a choice of the application's own is sent as it is."""

    def choice(**fields: Any) -> Any:
        request = ask(output_schema=FORCED, tools=[LOOK], settings=ModelSettings(reasoning=reasoning), **fields)
        made = as_sent(encode(request, "m", max_tokens=9, output_mode="tool"))
        assert [tool["name"] for tool in made["tools"]] == ["look", "final_output"]
        return made["tool_choice"]

    assert choice() == choice(tool_choice="auto") == sent
    assert choice(tool_choice="look") == {"type": "tool", "name": "look"}


# ---------------------------------------------------------------------------------------------- decoding


ITEMS = (
    thought("Let me see.", "c2ln"),
    Reasoning(encrypted="cmVk", provider_data={BLOCK: "redacted_thinking"}),
    AssistantMessage("I look für dich."),
    HostedToolCall(
        "web_search",
        {
            "type": "server_tool_use",
            "id": "srv_1",
            "name": "web_search",
            "input": {"query": "x"},
            RESULT: {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []},
        },
        "srv_1",
        "completed",
        [],
        "srv_1",
    ),
    AssistantMessage("Found."),
    ToolCall("toolu_1", "look", '{"where": "here"}'),
    ToolCall("toolu_2", "now"),
)


def decode(*pieces: bytes, request: ModelRequest | None = None, **options: Any) -> list[ModelEvent]:
    decoder, sse = MessagesDecoder(request or ask(), **options), SSEDecoder()
    events = [event for piece in pieces for one in sse.feed(piece) for event in decoder.feed(one.data)]
    return events + decoder.finish("req_1")


def read(events: Sequence[Mapping[str, Any]], **options: Any) -> ResponseDone:
    done = decode(wire(events), **options)[-1]
    assert isinstance(done, ResponseDone)
    return done


def test_blocks_become_items_in_their_order_with_all_that_was_spent() -> None:
    """Deltas come as they arrive; cached tokens are a part of the input, as elsewhere."""
    events = [event for event in decode(wire(WHOLE)) if not isinstance(event, Raw)]
    done = events[-1]
    assert isinstance(done, ResponseDone)
    assert done.items == ITEMS
    assert events[:-1] == [
        ResponseStarted("msg_1"),
        ReasoningDelta("Let me "),
        ReasoningDelta("see."),
        TextDelta("I look ", 2),
        TextDelta("für dich.", 2),
        HostedProgress("web_search", "in_progress", "srv_1"),
        HostedProgress("web_search", "completed", "srv_1"),
        TextDelta("Found.", 5),
        ArgumentsDelta("toolu_1", '{"where":'),
        ArgumentsDelta("toolu_1", ' "here"}'),
        *map(ItemDone, ITEMS),
    ]
    assert (done.response_id, done.request_id, done.finish_reason) == ("msg_1", "req_1", "tool_calls")
    usage = done.usage
    assert usage is not None
    assert (usage.input_tokens, usage.cached_tokens, usage.cache_write_tokens) == (16, 4, 2)
    assert (usage.output_tokens, done.model, done.service_tier) == (20, "claude-x", "priority")
    assert (usage.reasoning_tokens, usage.total_tokens, usage.model) == (7, 36, "claude-x")


@pytest.mark.slow
@pytest.mark.scenario("WR-02")
def test_a_response_cut_at_any_byte_is_an_error_and_split_at_any_byte_is_whole() -> None:
    """A short answer would look like a whole one."""
    data = wire(WHOLE)
    whole = decode(data)
    for place in range(len(data)):
        assert decode(data[:place], data[place:]) == whole
        if place < len(data) - 1:  # without the blank line at the end, the last event has not come
            with pytest.raises(ModelBehaviorError, match="ended before"):
                decode(data[:place])


@pytest.mark.scenario("WR-04")
def test_items_go_back_as_the_blocks_that_they_were() -> None:
    """Thinking keeps its signature, before the call it belongs to; the provider's own calls and results stay."""
    [message] = messages(*ITEMS)
    assert message["content"] == [
        {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "cmVk"},
        said("I look für dich."),
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []},
        said("Found."),
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"where": "here"}},
        {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
    ]


def test_a_whole_response_reads_like_its_stream() -> None:
    """The server may not stream."""
    [message] = messages(*ITEMS)
    answer = START["message"] | {"content": message["content"], "stop_reason": "tool_use"}
    decoder = MessagesDecoder(ask())
    events = decoder.feed_answer(answer) + decoder.finish()
    done = events[-1]
    assert isinstance(done, ResponseDone)
    assert done.items == ITEMS
    assert ArgumentsDelta("toolu_1", '{"where": "here"}') in events


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "pause"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("of_tomorrow", "of_tomorrow"),
    ],
)
def test_reasons_for_the_end_have_the_words_of_runs(reason: str, finish: str) -> None:
    """A reason of a later version passes."""
    done = read([START, begin(0, type="text", text="Hi"), stop(0), *end(reason)])
    assert (done.items, done.finish_reason) == ((AssistantMessage("Hi"),), finish)


def test_an_answer_cut_at_the_limit_counts_only_if_something_usable_came() -> None:
    """Half a call is an error, and so is thinking alone; a whole call before the cut counts."""
    call = [begin(0, type="tool_use", id="t", name="look"), more(0, type="input_json_delta", partial_json='{"a": 1')]
    with pytest.raises(ModelBehaviorError, match="within a call of 'look'"):
        read([START, *call, *end("max_tokens")])
    with pytest.raises(ModelBehaviorError, match="before anything usable"):
        read([START, begin(0, type="thinking", thinking="h"), begin(1, type="text", text=" "), *end("max_tokens")])
    whole = [*call, more(0, type="input_json_delta", partial_json="}")]
    assert read([START, *whole, *end("max_tokens")]).items == (ToolCall("t", "look", '{"a": 1}'),)


def test_a_hosted_tool_tells_its_steps_and_pieces_name_their_message() -> None:
    """Successive texts share a message and its position. A result whose call isn't in the response is no step."""
    call = {"type": "mcp_tool_use", "id": "m_1", "name": "look", "server_name": "s", "input": {}}
    result = {"type": "mcp_tool_result", "tool_use_id": "m_1", "is_error": True, "content": []}
    error = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    stream = [
        *(START, begin(0, type="text", text="a"), begin(1, type="text", text="b"), begin(2, **call)),
        *(begin(3, **result), begin(4, type="text", text="c")),
        begin(5, type="web_search_tool_result", tool_use_id="srv_0", content=error),
        *(begin(6, type="server_tool_use", id="srv_1", name="web_search"), begin(7, type="text", text="d")),
        begin(8, type="web_search_tool_result", tool_use_id="srv_1", content=error),
        *end("end_turn"),
    ]
    events = decode(wire(stream))
    assert [event for event in events if isinstance(event, TextDelta | HostedProgress)] == [
        *(TextDelta("a", 0), TextDelta("b", 0)),
        *(HostedProgress("look", "in_progress", "m_1"), HostedProgress("look", "failed", "m_1")),
        TextDelta("c", 4),
        HostedProgress("web_search", "in_progress", "srv_1"),
        TextDelta("d", 7),
        HostedProgress("web_search", "failed", "srv_1"),
    ]
    done = events[-1]
    assert isinstance(done, ResponseDone)
    assert [item.status for item in done.items if isinstance(item, HostedToolCall)] == ["failed", "failed"]
    assert [item.content for item in done.items if isinstance(item, AssistantMessage)] == [
        (Text("a"), Text("b")),
        (Text("c"),),
        (Text("d"),),
    ]


def test_a_refusal_has_the_providers_words_and_no_calls() -> None:
    """What was said before stays in the message, as it was shown; a call of a refused answer isn't run."""
    call = begin(1, type="tool_use", id="t", name="look")
    words = {"type": "refusal", "explanation": "Not this."}
    done = read([START, begin(0, type="text", text="Well"), call, *end("refusal", stop_details=words)])
    assert done.items == (AssistantMessage([Text("Well"), Refusal("Not this.")]),)
    [message] = read([START, *end("refusal")]).items
    assert isinstance(message, AssistantMessage)
    assert message.refusal


def test_the_forced_tools_input_is_the_final_output() -> None:
    """It streams as text, and other calls stay calls."""
    blocks = [
        begin(0, type="tool_use", id="a", name="final_output"),
        more(0, type="input_json_delta", partial_json='{"x":1}'),
        begin(1, type="tool_use", id="b", name="look"),
    ]
    request = ask(output_schema=FORCED)
    events = decode(wire([START, *blocks, *end("tool_use")]), request=request, output_mode="tool")
    assert TextDelta('{"x":1}') in events
    assert events[-1].items == (AssistantMessage('{"x":1}'), ToolCall("b", "look"))  # type: ignore[union-attr]


def test_words_before_the_output_are_no_part_of_it() -> None:
    """A model that isn't forced to call the tool may speak first."""
    blocks = [
        begin(0, type="text", text="Here:"),
        begin(1, type="tool_use", id="a", name="final_output", input={"x": 1}),
    ]
    request = ask(output_schema=FORCED)
    events = decode(wire([START, *blocks, *end("tool_use")]), request=request, output_mode="tool")
    assert [event for event in events if isinstance(event, TextDelta)] == [TextDelta("Here:"), TextDelta('{"x": 1}', 1)]
    assert events[-1].items == (AssistantMessage("Here:"), AssistantMessage('{"x": 1}'))  # type: ignore[union-attr]


def test_calls_with_used_or_missing_ids_get_ids_of_their_own() -> None:
    """The provider's id goes back to it."""
    events = [START, begin(0, type="tool_use", id="t", name="f"), begin(1, type="tool_use", name="f"), *end("tool_use")]
    done = read(events, request=ask(ToolCall("t", "f"), turn=2))
    assert done.items == (ToolCall("t_2", "f", provider_data={WIRE_ID: "t"}), ToolCall("call_2_2", "f"))


def test_an_unknown_event_or_block_passes() -> None:
    """A later version may have more."""
    events = [START, {"type": "news"}, begin(0, type="odd", x=1), more(0, type="odd_delta"), *end("end_turn")]
    assert Raw({"type": "news"}) in decode(wire(events))
    items = read(events).items
    assert items == (OpaqueItem({"type": "odd", "x": 1, BLOCK: "odd"}),)
    assert messages(*items)[0]["content"] == [{"type": "odd", "x": 1}]
    strange = {"type": "x_tool_result", "tool_use_id": "never"}
    use = begin(0, type="server_tool_use", id="s", name="web_search", input={})
    items = read([START, use, begin(1, **strange), *end("end_turn")]).items
    assert items[1:] == (OpaqueItem(strange | {BLOCK: "x_tool_result"}),)
    assert MessagesDecoder(ask()).feed("  ") == []


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ([1], "JSON object"),
        ({"type": "message_start"}, "message isn't an object"),
        (more(5, type="text_delta", text="x"), "never began"),
        ({"type": "content_block_start", "index": 0, "content_block": 3}, "block isn't an object"),
        (begin(0, type="text", text=3), "text isn't text"),
    ],
)
def test_an_event_of_the_wrong_shape_is_an_error_that_quotes_a_little(event: Any, words: str) -> None:
    """The error is the model's, and typed."""
    with pytest.raises(ModelBehaviorError, match=words):
        decode(b"data: " + json.dumps(event).encode() + b"\n\n")


def test_a_call_that_never_gets_a_name_is_an_error() -> None:
    """There is nothing to run."""
    with pytest.raises(ModelBehaviorError, match="without naming"):
        read([START, begin(0, type="tool_use", id="t"), *end("tool_use")])


@pytest.mark.parametrize(
    ("kind", "status"),
    [("overloaded_error", 529), ("rate_limit_error", 429), ("invalid_request_error", 400), ("x", None)],
)
def test_an_error_in_place_of_an_answer_has_the_status_it_would_have_had(kind: str, status: int | None) -> None:
    """So a retry is decided as for an answer with that status."""
    report = {"type": "error", "error": {"type": kind, "message": "Overloaded"}, "request_id": "req_9"}
    with pytest.raises(ModelTransportError, match="Overloaded") as caught:
        decode(wire([START, report]))
    assert (caught.value.status, caught.value.code, caught.value.request_id) == (status, kind, "req_9")
    with pytest.raises(ModelTransportError, match="no reason given"):
        decode(wire([{"type": "error", "error": {}}]))
    with pytest.raises(ModelTransportError, match="Overloaded"):
        MessagesDecoder(ask()).feed_answer(report)


def test_an_error_within_an_answer_is_the_transports_too() -> None:
    """With the same status: the engine knows whether anybody has seen the beginning."""
    report = {"type": "error", "error": {"type": "overloaded_error", "message": "oops"}, "request_id": "req_9"}
    with pytest.raises(ModelTransportError, match=r"broke the response off: oops \(overloaded_error\)") as caught:
        decode(wire([START, begin(0, type="text", text="Hi"), report]))
    assert (caught.value.status, caught.value.request_id) == (529, "req_9")


@pytest.mark.scenario("WR-15")
def test_citations_are_annotations_and_go_back_as_they_came() -> None:
    """Pages and files have a form for every provider; other citations are kept beside them."""
    page = {"type": "web_search_result_location", "url": "https://h", "title": "H", "cited_text": "x"}
    place = {"type": "char_location", "file_id": "f", "document_title": "D", "start_char_index": 0}
    other = {"type": "page_location", "file_id": None, "document_index": 1}
    events = [begin(0, type="text", text="A", citations=[page]), more(0, type="citations_delta", citation=place)]
    events += [more(0, type="citations_delta", citation=other), begin(1, type="text", text="B")]
    [message] = read([START, *events, *end("end_turn")]).items
    assert isinstance(message, AssistantMessage)
    web = UrlCitation(url="https://h", title="H", start=0, end=1)
    assert message.content == (Text("A", (web, FileCitation(file_id="f", filename="D"))), Text("B"))
    assert message.provider_data == {CITATIONS: [[page, place, other], []]}
    assert messages(message)[0]["content"] == [said("A") | {"citations": [page, place, other]}, said("B")]
    # An edited message has other texts than those that were cited.
    edited = message.replace(content=(Text("C"),))
    assert messages(edited)[0]["content"] == [said("C")]


def test_a_call_of_a_program_goes_back_with_its_caller() -> None:
    """A hosted tool may call functions; the model's own calls have no caller."""
    caller = {"type": "code_execution_20250825", "tool_id": "srv_1"}
    call = begin(0, type="tool_use", id="t", name="f", caller=caller)
    own = begin(1, type="tool_use", id="u", name="f", caller={"type": "direct"})
    items = read([START, call, own, *end("tool_use")]).items
    assert items == (ToolCall("t", "f", caller=Caller("code_execution_20250825", "srv_1")), ToolCall("u", "f"))
    assert [block.get("caller") for block in messages(*items)[0]["content"]] == [caller, None]


def test_a_hosted_tool_that_failed_says_so() -> None:
    """The result holds an error in place of a list."""
    use = begin(0, type="server_tool_use", id="s", name="web_search", input={})
    failed = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    result = begin(1, type="web_search_tool_result", tool_use_id="s", content=failed)
    [item] = read([START, use, result, *end("end_turn")]).items
    assert isinstance(item, HostedToolCall)
    assert (item.status, item.output) == ("failed", failed)


def test_nothing_after_the_end_counts() -> None:
    """The answer is whole."""
    events = [START, begin(0, type="text", text="Hi"), *end("end_turn")]
    assert decode(wire(events), b"data: [nonsense\n\n") == decode(wire(events))


# ---------------------------------------------------------------------------------------------- the model


def model(answer: httpx.Response | None = None, **options: Any) -> tuple[AnthropicModel, list[httpx.Request]]:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        sse = {"content-type": "text/event-stream", "request-id": "req_1"}
        return answer or httpx.Response(200, headers=sse, content=wire(WHOLE))

    client = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    return AnthropicModel("claude-x", http_client=client, **options), seen


async def test_a_request_has_the_headers_of_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key has its own header, and the version is named."""
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    asked, seen = model(betas=("one", "two"), max_tokens=7)
    async with asked.stream(ask()) as events:
        done = [event async for event in events][-1]
    assert isinstance(done, ResponseDone)
    assert (done.items, done.request_id) == (ITEMS, "req_1")
    [request] = seen
    newer, later = model(version="2026-10-21")
    async with newer.stream(ask()):
        assert later[0].headers["anthropic-version"] == "2026-10-21"
    assert str(request.url) == "https://api.anthropic.com/v1/messages"
    wanted = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "anthropic-beta": "one,two"}
    assert {name: request.headers[name] for name in wanted} == wanted
    assert "authorization" not in request.headers
    assert json.loads(request.content)["max_tokens"] == 7


async def test_an_overloaded_provider_is_a_transport_error_with_its_advice() -> None:
    """Status 529 is the provider's own."""
    report = {"type": "error", "error": {"type": "overloaded_error", "message": f"Overloaded, {KEY}"}}
    headers = {"retry-after": "3", "request-id": "req_2"}
    asked, _ = model(httpx.Response(529, json=report, headers=headers), base_url="http://h", api_key=KEY)
    with pytest.raises(ModelTransportError) as caught:
        async with asked.stream(ask()):
            pass
    error = caught.value
    assert str(error) == "h answered 529: Overloaded, ***"
    assert (error.status, error.code, error.retry_after, error.request_id) == (529, "overloaded_error", 3.0, "req_2")


def test_a_definition_that_cannot_work_is_refused() -> None:
    """By the argument's name."""
    with pytest.raises(UserValueError, match="output_mode"):
        AnthropicModel("m", output_mode="odd")  # type: ignore[arg-type,unused-ignore]
    with pytest.raises(UserValueError, match="max_tokens"):
        AnthropicModel("m", max_tokens=0)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_arguments_with_a_number_that_json_lacks_go_back_as_text(number: str) -> None:
    """Python reads them, and no server does."""
    arguments = '{"n": %s}' % number  # noqa: UP031 - it has braces
    [use] = messages(ToolCall("c", "look", arguments))[0]["content"]
    assert use["input"] == {"arguments": arguments}
    with pytest.raises(ModelBehaviorError, match="isn't a JSON object"):
        decode(f"data: {arguments}\n\n".encode())


# ---------------------------------------------------------------------------------------------- anything at all


STRANGE: list[Any] = [None, True, 0, -1, 0.5, "", "a", "\ud800", [], {}, [1], [{}], {"type": "text"}, 1 << 70]


class Chaos:
    """Answers whose parts are right four times of five."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def maybe(self, value: Any) -> Any:
        return value if self.random.random() < 0.8 else self.random.choice(STRANGE)

    def block(self) -> Any:
        kinds = ["text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "web_search_tool_result", "x"]
        fields = {"type": self.random.choice(kinds), "text": "t", "thinking": "t", "signature": "s", "id": "i"}
        page = {"type": "web_search_result_location", "url": self.maybe("u"), "title": self.maybe("t")}
        fields |= {"name": "n", "input": {"a": 1}, "citations": [page], "tool_use_id": "i", "content": [], "data": "d"}
        fields |= {"caller": {"type": "c", "tool_id": "s"}}
        return {name: self.maybe(value) for name, value in fields.items()}

    def event(self) -> Any:
        kinds = ["message_start", "content_block_start", "content_block_delta", "message_delta", "ping", "x", "error"]
        deltas = ["text_delta", "input_json_delta", "thinking_delta", "signature_delta", "citations_delta"]
        delta = {"type": self.random.choice(deltas), "text": "t", "partial_json": '{"a', "thinking": "t"}
        delta |= {"signature": "s", "citation": {}, "stop_reason": "end_turn", "stop_details": {}}
        usage = {name: self.maybe(3) for name in ("input_tokens", "output_tokens", "service_tier")}
        fields = {
            "type": self.random.choices(kinds, [3, 6, 6, 2, 1, 1, 0.1])[0],
            "index": self.random.randrange(2),
            "message": {"id": self.maybe("m"), "model": self.maybe("x"), "usage": self.maybe(usage)},
            "content_block": self.block(),
            "delta": {name: self.maybe(value) for name, value in delta.items()},
            "usage": usage,
            "error": {"type": "overloaded_error", "message": self.maybe("m")},
        }
        return {name: self.maybe(value) for name, value in fields.items()}


@pytest.mark.slow
def test_whatever_comes_is_an_answer_that_goes_back_or_a_typed_error() -> None:
    """Four thousand answers of right and wrong parts, streamed and plain, in both modes."""
    whole = 0
    for seed in range(4_000):
        chaos = Chaos(seed)
        mode = chaos.random.choice(["format", "tool"])
        schema = OutputSchema(name="n", schema={}) if chaos.random.random() < 0.3 else None
        decoder = MessagesDecoder(ask(output_schema=schema), output_mode=mode)
        try:
            if seed % 5:
                for _ in range(chaos.random.randrange(8)):
                    decoder.feed(json.dumps(chaos.event()))
                for event in end(chaos.random.choice(["end_turn", "max_tokens", "refusal"])):
                    decoder.feed(json.dumps(event))
            else:
                blocks = [chaos.maybe(chaos.block()) for _ in range(chaos.random.randrange(3))]
                decoder.feed_answer(chaos.event() | {"content": chaos.maybe(blocks), "stop_reason": "end_turn"})
            done = decoder.finish()[-1]
        except (ModelBehaviorError, ModelTransportError):
            continue
        assert isinstance(done, ResponseDone)
        whole += 1
        json.dumps(body(*done.items), default=dict)
    assert whole > 500
