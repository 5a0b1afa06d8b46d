"""The Chat Completions codec: what is sent, and what is understood."""

import json
from collections.abc import Iterable
from typing import Any

import httpx
import jsonschema
import pytest
from edges.definition import Definition

from agentloop import Agent, Runner, tool
from agentloop.exceptions import ModelBehaviorError, ModelTransportError, UserError, UserTypeError, UserValueError
from agentloop.items import (
    ApprovalRequest,
    AssistantMessage,
    Audio,
    Compaction,
    File,
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
from agentloop.models import OpenAIChatModel
from agentloop.models._chat import request as chat_request
from agentloop.models._chat.answer import _USAGE, ChatDecoder
from agentloop.models._codec import encode_json, read_usage
from agentloop.models._sse import SSEDecoder
from agentloop.settings import CachePolicy, ModelSettings
from agentloop.tools import HostedTool
from agentloop.usage import RequestUsage


def ask(*items: Item, **fields: Any) -> ModelRequest:
    return ModelRequest(**{"system": None, "items": items or (UserMessage("Hi"),)} | fields)


def encode(request: ModelRequest, name: str, **options: Any) -> dict[str, Any]:
    """Return the body of *request* as it is read from its JSON."""
    body: dict[str, Any] = json.loads(encode_json(chat_request.encode(request, name, **options)))
    return body


def messages(*items: Item, **options: Any) -> list[dict[str, Any]]:
    return encode(ask(*items), "m", **options)["messages"]  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------- encoding


def test_a_bare_request_sends_model_messages_and_stream_alone() -> None:
    """A setting without a value isn't sent."""
    assert encode(ask(system="Be brief."), "m") == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert encode(ask(), "m", stream=False).keys() == {"model", "messages"}


def test_calls_that_follow_each_other_share_one_assistant_message_until_an_output() -> None:
    """Text before them joins; empty arguments become an empty object; reasoning is dropped."""
    assert messages(
        UserMessage("Hi"),
        Reasoning(content=("hm",)),
        AssistantMessage("I look."),
        ToolCall("a", "f", '{"x":1}'),
        HandoffCall("b", "transfer_to_x", ""),
        ToolOutput("a", "1"),
        HandoffOutput("b", "moved", "one", "two"),
        ToolCall("c", "f"),
        ToolOutput("c", (Text("p"), Image("http://x"), Refusal("no"))),
        SystemMessage("S"),
        AssistantMessage((Refusal("won't"),)),
    ) == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
                {"id": "b", "type": "function", "function": {"name": "transfer_to_x", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "moved"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "p[image omitted]no"},
        {"role": "system", "content": "S"},
        {"role": "assistant", "content": None, "refusal": "won't"},
    ]


def test_parts_of_a_user_message_keep_their_kind() -> None:
    """Text alone is a string; images and files are parts; a file's bytes become a data URL."""
    assert messages(UserMessage((Text("a"), Text("b"))))[0]["content"] == "ab"
    parts = (Text("a"), Image("u", "low"), Image("v"), File("QQ==", filename="x.pdf"), File("data:text/plain;base64,Q"))
    assert messages(UserMessage(parts))[0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "u", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "v"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,QQ==", "filename": "x.pdf"}},
        {"type": "file", "file": {"file_data": "data:text/plain;base64,Q"}},
    ]
    [content] = messages(UserMessage((File("QQ=="),)))[0]["content"]
    assert content["file"] == {"file_data": "data:application/octet-stream;base64,QQ=="}


def test_media_by_data_and_by_id() -> None:
    """Base64 data gets the media type that it is given; a file may be one that the provider holds."""
    parts = (Image(data="QQ==", media_type="image/webp"), Image(data="QQ=="), File(file_id="f1"))
    assert messages(UserMessage((*parts, Audio("QQ=="), Audio("Qg==", media_type="audio/mpeg"))))[0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/webp;base64,QQ=="}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}},
        {"type": "file", "file": {"file_id": "f1"}},
        {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": "Qg==", "format": "mp3"}},
    ]


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize(
    ("item", "named"),
    [
        (Compaction({}), r"items\[1\]: Compaction"),
        (HostedToolCall("web_search"), r"items\[1\]: HostedToolCall"),
        (OpaqueItem({}), r"items\[1\]: OpaqueItem"),
        (ApprovalRequest(ToolCall("a", "f"), "agent"), r"items\[1\]: ApprovalRequest"),
        (UserMessage((Text("a"), File(url="http://x"))), r"items\[1\]\.content\[1\]: File"),
        (UserMessage(Image(file_id="f1")), r"items\[1\]\.content\[0\]: Image"),
        (UserMessage(Audio(url="http://x")), r"items\[1\]\.content\[0\]: Audio"),
        (UserMessage(Refusal("no")), r"items\[1\]\.content\[0\]: Refusal"),
        (SystemMessage(Image("u")), r"items\[1\]\.content\[0\]: Image"),
    ],
)
def test_what_has_no_form_is_named_with_its_place(item: Item, named: str, constrained: bool) -> None:
    """Such an item raises an error and is never dropped in silence."""
    with pytest.raises(UserError, match=named):
        messages(UserMessage("Hi"), item, constrained=constrained)


def test_an_image_in_an_assistant_message_has_no_form() -> None:
    """The model's own words are text."""
    with pytest.raises(UserError, match=r"items\[0\]\.content\[0\]: Image"):
        messages(AssistantMessage(Image("u")))


def test_probabilities_are_kept_with_the_message_and_not_sent_back() -> None:
    """They come with the chunks of the text, or with a whole answer."""
    told = [{"token": token, "logprob": -0.5, "bytes": None, "top_logprobs": []} for token in ("Hel", "lo")]
    decoder = ChatDecoder(ask())
    for one, end in zip(told, (None, "stop"), strict=True):
        choice = {"index": 0, "delta": {"content": one["token"]}, "logprobs": {"content": [one]}, "finish_reason": end}
        decoder.feed(json.dumps({"choices": [choice]}))
    done = decoder.finish()[-1]
    assert isinstance(done, ResponseDone)
    assert done.items == (AssistantMessage("Hello", provider_data={"chat_logprobs": told}),)
    assert messages(*done.items) == [{"role": "assistant", "content": "Hello"}]


@pytest.mark.parametrize("field", ["previous_response_id", "conversation_id", "prompt"])
def test_state_on_the_server_is_refused(field: str) -> None:
    """The protocol has no id to chain to, and ignoring the setting would lose the conversation."""
    with pytest.raises(UserError, match=field):
        encode(ask(**{field: "x"}), "m")


def test_hosted_and_custom_tools_are_refused() -> None:
    """A model that never hears of a tool can't use it."""
    with pytest.raises(
        UserError,
        match=r"Chat Completions, and the agent has file_search, web_search\.$",
    ):
        encode(ask(hosted=[HostedTool("web_search"), HostedTool("file_search")]), "m")
    with pytest.raises(UserError, match="Tool 'f': a custom tool has no form in Chat Completions"):
        encode(ask(tools=[Definition("f", kind="custom")]), "m")
    with pytest.raises(UserError, match="Tool 'f': Chat Completions has no tool search"):
        encode(ask(tools=[Definition("f", defer_loading=True)]), "m")
    with pytest.raises(UserError, match="Tool 'f': Chat Completions has no callers but the model"):
        encode(ask(tools=[Definition("f", allowed_callers=("programmatic",))]), "m")
    both = Definition("f", allowed_callers=("programmatic", "direct"))
    assert encode(ask(tools=[both]), "m")["tools"] == encode(ask(tools=[Definition("f")]), "m")["tools"]


GRAMMAR = {"definition": "start: WORD", "syntax": "lark"}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (None, {}),
        ({"type": "text"}, {"format": {"type": "text"}}),
        ({"type": "grammar", **GRAMMAR}, {"format": {"type": "grammar", "grammar": GRAMMAR}}),
        ({"type": "grammar", "grammar": GRAMMAR}, {"format": {"type": "grammar", "grammar": GRAMMAR}}),
    ],
)
def test_a_tool_of_free_text_is_sent_where_the_server_knows_it(given: Any, sent: Any) -> None:
    """A grammar in the words of Responses is put into those of this interface; a choice names the tool's kind."""
    shout = Definition("shout", kind="custom", format=given)
    body = encode(ask(tools=[shout, Definition("f")], tool_choice="shout"), "m", custom_tools=True)
    assert body["tools"][0] == {"type": "custom", "custom": {"name": "shout", "description": "Does it."} | sent}
    assert body["tools"][1]["type"] == "function"
    assert body["tool_choice"] == {"type": "custom", "custom": {"name": "shout"}}
    with pytest.raises(UserError, match="custom tool"):
        encode(ask(tools=[shout]), "m", custom_tools=True, constrained=True)


@pytest.mark.parametrize("at_home", [True, False])
async def test_the_vendor_alone_knows_tools_of_free_text(at_home: bool) -> None:
    """Its calls are of their kind, and so are their outputs."""
    bodies: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        call = {"index": 0, "id": "c1", "type": "custom", "custom": {"name": "shout", "input": "loud {"}}
        delta = {"tool_calls": [call]} if len(bodies) == 1 else {"content": "Done."}
        chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]}
        content = f"data: {json.dumps(chunk)}\n\n".encode()
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=content)

    @tool(kind="custom")
    async def shout(text: str) -> str:
        """Shout it."""
        return text.upper()

    url = None if at_home else "http://other.test/v1"
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        model = OpenAIChatModel("m", base_url=url, api_key="k", http_client=client)
        agent = Agent("a", model=model, tools=[shout])
        if not at_home:
            with pytest.raises(UserError, match="a custom tool has no form in Chat Completions"):
                await Runner.run(agent, "Hi")
            assert bodies == []
            return
        assert (await Runner.run(agent, "Hi")).final_output == "Done."
    call, output = bodies[1]["messages"][1:]
    assert call["tool_calls"] == [{"id": "c1", "type": "custom", "custom": {"name": "shout", "input": "loud {"}}]
    assert output == {"role": "tool", "tool_call_id": "c1", "content": "LOUD {"}


def test_tools_and_handoffs_are_sent_as_functions() -> None:
    """Tools come first, then handoffs, each with its strictness."""
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    body = encode(
        ask(tools=[Definition("f", "Adds.", schema)], handoffs=[Definition("transfer_to_b", strict_mode=False)]), "m"
    )
    first, second = body["tools"]
    function = {"name": "f", "description": "Adds.", "parameters": schema, "strict": True}
    assert first == {"type": "function", "function": function}
    assert (second["function"]["name"], "strict" in second["function"]) == ("transfer_to_b", False)
    assert "tool_choice" not in body
    assert "parallel_tool_calls" not in body
    with pytest.raises(UserError, match=r"'f'.*'space'"):
        encode(ask(tools=[Definition("f", namespace="space")]), "m")


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("required", "required"),
        ("none", "none"),
        ("f", {"type": "function", "function": {"name": "f"}}),
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
        ({"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_tool_choice_has_its_form_here(choice: Any, sent: Any) -> None:
    """The request's choice comes before that of its settings; it is sent with tools only, as is parallel_tool_calls."""
    settings = ModelSettings(tool_choice=choice, parallel_tool_calls=False)
    body = encode(ask(tools=[Definition("f")], settings=settings), "m")
    assert (body["tool_choice"], body["parallel_tool_calls"]) == (sent, False)
    assert encode(ask(tools=[Definition("f")], tool_choice=choice), "m")["tool_choice"] == sent
    assert not encode(ask(settings=settings), "m").keys() & {"tool_choice", "parallel_tool_calls"}


ALLOWED: Any = {"type": "function", "name": "f"}, {"type": "custom", "name": "shout"}
NESTED: Any = {"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "shout"}}


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "allowed_tools", "mode": "required", "tools": ALLOWED},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [*NESTED]}},
    ],
    ids=["as Responses writes it", "as it is written here"],
)
def test_a_choice_among_some_tools_has_its_form_here(choice: Any) -> None:
    """Both of the vendor's forms are read, so that one setting serves both interfaces."""
    tools = [Definition("f"), Definition("shout", kind="custom"), Definition("g")]
    body = encode(ask(tools=tools, tool_choice=choice), "m", custom_tools=True)
    expected = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [*NESTED]}}
    assert body["tool_choice"] == expected
    assert len(body["tools"]) == 3


@pytest.mark.parametrize("more", [{}, {"mode": 1, "tools": []}, {"mode": "auto", "tools": ["f"]}, {"allowed_tools": 3}])
def test_a_choice_among_some_tools_without_its_parts_is_refused(more: Any) -> None:
    """It is found before the request, in the words of the setting."""
    with pytest.raises(UserTypeError, match="allowed_tools needs a mode and tools"):
        encode(ask(tools=[Definition("f")], tool_choice={"type": "allowed_tools"} | more), "m")


@pytest.mark.parametrize(("choice", "error"), [({"type": "mcp"}, UserError), ({}, UserTypeError), (3, UserTypeError)])
def test_a_tool_choice_without_a_form_is_refused(choice: Any, error: type[Exception]) -> None:
    """The error names the field."""
    with pytest.raises(error, match="tool_choice"):
        encode(ask(tools=[Definition("f")], tool_choice=choice), "m")


def test_settings_go_to_their_fields() -> None:
    """Each setting has its field, and the output schema goes to the response format."""
    settings = ModelSettings(
        temperature=0.0,
        top_p=0.5,
        frequency_penalty=0.25,
        presence_penalty=-0.5,
        top_logprobs=2,
        service_tier="flex",
        max_tokens=7,
        reasoning={"effort": "low", "summary": "auto"},
        verbosity="low",
        store=False,
        metadata={"a": "b"},
        truncation="auto",
        include=["x"],
        extra_args={"seed": 1},
        extra_body={"temperature": 1, "top_k": 3},
    )
    output = OutputSchema(name="final_output", schema={"type": "object"}, strict=False)
    body = encode(ask(settings=settings, output_schema=output), "m", stream=False, max_tokens_field="most")
    del body["messages"], body["model"]
    assert body == {
        "temperature": 1,
        "top_p": 0.5,
        "frequency_penalty": 0.25,
        "presence_penalty": -0.5,
        "logprobs": True,
        "top_logprobs": 2,
        "service_tier": "flex",
        "most": 7,
        "reasoning_effort": "low",
        "verbosity": "low",
        "store": False,
        "metadata": {"a": "b"},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "final_output", "strict": False, "schema": {"type": "object"}},
        },
        "seed": 1,
        "top_k": 3,
    }


def test_extra_args_that_collide_with_a_set_field_are_a_type_error() -> None:
    """The error names all such fields, and none of their values."""
    settings = ModelSettings(temperature=0.5, extra_args={"stream": 0, "temperature": "s3cret", "seed": 1})
    with pytest.raises(UserTypeError, match=r"stream, temperature$"):
        encode(ask(settings=settings), "m")


# ---------------------------------------------------------------------------------------------- decoding


def chunk(delta: Any = None, *, finish: str | None = None, index: int | None = 0, **fields: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "delta": delta or {}, "finish_reason": finish}
    return {"id": "r1", "object": "chat.completion.chunk", "model": "m-1", "choices": [choice]} | fields


def part(index: int | None = None, id: str | None = None, name: str | None = None, arguments: Any = None) -> Any:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    whole = {"index": index, "id": id, "function": function}
    return {key: value for key, value in whole.items() if value is not None}


def stream_text(*chunks: Any, done: bool = True) -> str:
    return "".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + ("data: [DONE]\n\n" if done else "")


def decode(pieces: Iterable[bytes], request: ModelRequest | None = None, constrained: bool = False) -> list[ModelEvent]:
    lines, decoder = SSEDecoder(), ChatDecoder(request or ask(), constrained=constrained)
    events = [out for piece in pieces for event in lines.feed(piece) for out in decoder.feed(event.data)]
    return events + decoder.finish("req-1")


def answer(*chunks: Any, request: ModelRequest | None = None, constrained: bool = False) -> list[ModelEvent]:
    return decode([stream_text(*chunks).encode()], request, constrained)


def items(*chunks: Any, **options: Any) -> tuple[Item, ...]:
    done = answer(*chunks, **options)[-1]
    assert isinstance(done, ResponseDone)
    return done.items


def calls(*parts: Any) -> list[tuple[str, str, str]]:
    """Return id, name and arguments of the calls that these parts, one a chunk, make."""
    found = items(*(chunk({"tool_calls": [each]}) for each in parts), chunk(finish="tool_calls"))
    return [(call.call_id, call.name, call.arguments) for call in found if isinstance(call, ToolCall)]


TEXT = stream_text(
    chunk({"role": "assistant", "content": None}),
    chunk({"content": "Grüß"}),
    chunk({"content": " dich 🎉"}),
    chunk({"content": ""}, finish="stop"),
    {
        "id": "r1",
        "model": "m-1",
        "choices": [],
        "usage": {
            "prompt_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens": 5,
            "completion_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 15,
        },
    },
)
CALLS = ": OK\r\n\r\n" + stream_text(
    chunk({"role": "assistant", "content": "", "reasoning_content": "two "}),
    chunk({"reasoning": "cities"}),
    chunk({"content": "Looking."}),
    chunk({"tool_calls": [part(0, "c1", "weather", "")]}),
    chunk({"tool_calls": [part(0, arguments='{"city":')]}),
    chunk({"tool_calls": [part(0, arguments='"Kyōto"}'), part(1, "c2", "weather")]}),
    chunk({"tool_calls": [part(1, arguments='{"city":"Oslo"}')]}),
    chunk(finish="tool_calls", usage=None),
    chunk(usage={"prompt_tokens": 3, "completion_tokens": None, "prompt_tokens_details": None}),
    done=False,
).replace("\n", "\r\n")


@pytest.mark.slow
@pytest.mark.parametrize("payload", [TEXT, CALLS])
def test_a_recorded_response_cut_at_every_byte_gives_the_same_events(payload: str) -> None:
    """The events don't depend on how the network cuts the bytes."""
    data = payload.encode()
    whole = decode([data])
    assert decode([bytes([byte]) for byte in data]) == whole
    for cut in range(len(data)):
        assert decode([data[:cut], data[cut:]]) == whole


@pytest.mark.scenario("WR-02")
@pytest.mark.parametrize("payload", [TEXT, CALLS])
def test_a_response_that_ends_at_any_byte_is_whole_or_an_error(payload: str) -> None:
    """Some servers end without their last event; the reason for the end is before it, and an answer needs that."""
    data = payload.encode()
    whole = decode([data])[-1]
    assert isinstance(whole, ResponseDone)
    errors = 0
    for cut in range(len(data)):
        try:
            done = decode([data[:cut]])[-1]
        except ModelBehaviorError:
            errors += 1
        else:
            assert isinstance(done, ResponseDone)
            assert (done.items, done.finish_reason) == (whole.items, whole.finish_reason)
    assert errors > len(data) / 2


def test_text_comes_as_deltas_then_one_message_then_the_end() -> None:
    """The end has the usage of the last chunk, whose choices are empty."""
    events = [event for event in decode([TEXT.encode()]) if not isinstance(event, Raw)]
    message = AssistantMessage("Grüß dich 🎉")
    usage = RequestUsage(
        input_tokens=10, output_tokens=5, total_tokens=15, cached_tokens=4, reasoning_tokens=2, model="m-1"
    )
    assert events == [
        ResponseStarted("r1"),
        TextDelta("Grüß"),
        TextDelta(" dich 🎉"),
        ItemDone(message),
        ResponseDone((message,), usage, "r1", "req-1", "stop", "m-1"),
    ]


def test_calls_come_in_order_after_reasoning_and_text() -> None:
    """Arguments are joined by index; the end is understood without [DONE]."""
    events = [event for event in decode([CALLS.encode()]) if not isinstance(event, Raw)]
    usage = RequestUsage(input_tokens=3, total_tokens=3, model="m-1")
    made: tuple[Item, ...] = (
        Reasoning(content=("two cities",)),
        AssistantMessage("Looking."),
        ToolCall("c1", "weather", '{"city":"Kyōto"}'),
        ToolCall("c2", "weather", '{"city":"Oslo"}'),
    )
    assert events == [
        ResponseStarted("r1"),
        ReasoningDelta("two "),
        ReasoningDelta("cities"),
        TextDelta("Looking."),
        ArgumentsDelta("c1", '{"city":'),
        ArgumentsDelta("c1", '"Kyōto"}'),
        ArgumentsDelta("c2", '{"city":"Oslo"}'),
        *map(ItemDone, made),
        ResponseDone(made, usage, "r1", "req-1", "tool_calls", "m-1"),
    ]


def test_every_chunk_also_comes_raw_and_nothing_after_done_counts() -> None:
    """The decoder ignores every chunk after [DONE]."""
    first, last = chunk({"content": "a"}), chunk(finish="stop")
    events = decode([(stream_text(first, last) + stream_text(chunk({"content": "late"}))).encode()])
    assert [event.data for event in events if isinstance(event, Raw)] == [first, last]
    assert events[-1] == ResponseDone((AssistantMessage("a"),), None, "r1", "req-1", "stop", "m-1")


@pytest.mark.parametrize(
    ("parts", "made"),
    [
        # ids and names repeated in every part
        ([part(0, "a", "f", '{"x"'), part(0, "a", "f", ":1}")], [("a", "f", '{"x":1}')]),
        # no index: told apart by id
        (
            [part(id="a", name="f", arguments="{}"), part(id="b", name="f", arguments="{}")],
            [("a", "f", "{}"), ("b", "f", "{}")],
        ),
        ([part(id="a", name="f"), part(arguments='{"x"'), part(arguments=":1}")], [("a", "f", '{"x":1}')]),
        (
            [part(id="a", name="f"), part(id="b", name="g"), part(id="a", arguments="[]")],
            [("a", "f", "[]"), ("b", "g", "{}")],
        ),
        # neither index nor id: a new name, or a name after whole arguments, begins a call
        (
            [part(name="f", arguments="{}"), part(name="f", arguments="{}")],
            [("call_1_1", "f", "{}"), ("call_1_2", "f", "{}")],
        ),
        ([part(name="f", arguments='{"x"'), part(name="f", arguments=":1}")], [("call_1_1", "f", '{"x":1}')]),
        ([part(name="f"), part(name="g")], [("call_1_1", "f", "{}"), ("call_1_2", "g", "{}")]),
        # one index for all parallel calls
        ([part(0, "a", "f", "{}"), part(0, "b", "f", "{}")], [("a", "f", "{}"), ("b", "f", "{}")]),
        # an id that comes late, and one that never comes
        ([part(0, name="f"), part(0, "a", arguments="{}")], [("a", "f", "{}")]),
        ([part(0, name="f", arguments="{}"), part(0, "a")], [("call_1_1", "f", "{}")]),
        # the name comes late
        ([part(0, "a"), part(0, name="f", arguments="{}")], [("a", "f", "{}")]),
        # arguments as an object
        ([part(0, "a", "f", {"x": [1]})], [("a", "f", '{"x": [1]}')]),
    ],
)
def test_calls_are_put_together_from_what_real_servers_send(parts: list[Any], made: list[tuple[str, str, str]]) -> None:
    """Missing indexes, repeated ids and arguments as an object are understood."""
    assert calls(*parts) == made


def test_made_up_call_ids_are_new_to_the_conversation_and_equal_for_equal_requests() -> None:
    """The ids hold turn and path, and avoid those that an earlier run left in the history."""
    said = (chunk({"tool_calls": [part(name="f")]}), chunk(finish="stop"))
    request = ask(UserMessage("Hi"), ToolCall("p.call_3_1", "f"), ToolOutput("p.call_3_1", ""), turn=3, path=("p",))
    [call] = items(*said, request=request)
    assert isinstance(call, ToolCall)
    assert call.call_id == "p.call_3_1.2"
    assert items(*said, request=request) == (call,)


def test_only_the_first_choice_counts() -> None:
    """A choice without an index counts as the first."""
    assert items(chunk({"content": "a"}, index=None), chunk({"content": "b"}, index=1), chunk(finish="stop")) == (
        AssistantMessage("a"),
    )


def test_content_as_a_list_of_parts_and_a_refusal_are_understood() -> None:
    """Both become parts of one message."""
    said = chunk({"content": [{"type": "text", "text": "a"}, {"type": "x"}], "refusal": "no"})
    assert items(said, chunk(finish="stop")) == (AssistantMessage((Text("a"), Refusal("no"))),)


def test_a_complete_response_without_anything_has_no_items() -> None:
    """Reasoning without a follower isn't kept; blank text that was streamed is."""
    assert items(chunk({"reasoning": "hm"}), chunk(finish="stop")) == ()
    assert items(chunk({"content": " "}), chunk(finish="stop")) == (AssistantMessage(" "),)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_cut_response_counts_only_if_something_usable_came(reason: str) -> None:
    """Text does; blanks, reasoning and half a call don't."""
    assert items(chunk({"content": "Once"}), chunk(finish=reason)) == (AssistantMessage("Once"),)
    assert calls(part(0, "a", "f", "{}")) == [("a", "f", "{}")]
    for delta in ({}, {"content": " \n"}, {"reasoning": "hm"}):
        with pytest.raises(ModelBehaviorError, match=f"{reason}.*usable"):
            items(chunk(delta), chunk(finish=reason))
    for arguments in (None, '{"x":'):
        with pytest.raises(ModelBehaviorError, match=f"{reason}.*'f'"):
            items(chunk({"tool_calls": [part(0, "a", "f", arguments)]}), chunk(finish=reason))


@pytest.mark.parametrize("done", [True, False])
def test_a_stream_without_a_finish_reason_is_an_error_never_a_short_answer(done: bool) -> None:
    """The stream fails after any content, with or without [DONE]."""
    with pytest.raises(ModelBehaviorError, match="ended before"):
        decode([stream_text(chunk({"content": "Once"}), done=done).encode()])


@pytest.mark.parametrize(
    "data",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"choices": {}}',
        '{"choices": [1]}',
        '{"choices": [{"delta": []  , "message": [1]}]}',
        '{"choices": [{"delta": {"content": 1}}]}',
        '{"choices": [{"delta": {"tool_calls": {}}}]}',
        '{"choices": [{"delta": {"tool_calls": [{"function": 1}]}}]}',
        '{"choices": [{"delta": {"tool_calls": [{"function": {"arguments": 1}}]}}]}',
    ],
)
def test_a_chunk_of_the_wrong_shape_is_an_error_that_quotes_a_little(data: str) -> None:
    """The error quotes at most 200 characters."""
    with pytest.raises(ModelBehaviorError) as caught:
        ChatDecoder(ask()).feed(data)
    assert len(str(caught.value)) < 300


def test_a_call_that_never_gets_a_name_is_an_error() -> None:
    """A call without a name names no tool."""
    with pytest.raises(ModelBehaviorError, match="without naming"):
        calls(part(0, "a", arguments="{}"))


SERVER_ERRORS: list[tuple[Any, int | None, str | None, str]] = [
    ({"error": {"message": "full", "type": "overloaded", "code": 503}}, 503, "overloaded", "full"),
    ({"error": {"message": "full", "code": "too_long"}}, None, "too_long", "full"),
    ({"error": "just words"}, None, None, "just words"),
    ({"object": "error", "message": "bad", "code": 400}, 400, None, "bad"),
    ({"error": {"code": True}}, None, None, "no reason"),
    ({"error": {"message": "full", "code": "503"}}, 503, "503", "full"),
    ({"error": {"message": "bad", "type": "invalid_request_error", "code": None}}, 400, "invalid_request_error", "bad"),
    ({"error": {"message": "bad", "code": "invalid_image_url"}}, 400, "invalid_image_url", "bad"),
    ({"error": {"message": "busy", "type": "server_error", "code": 1301}}, 500, "server_error", "busy"),
]


@pytest.mark.parametrize(("data", "status", "code", "words"), SERVER_ERRORS)
@pytest.mark.parametrize("begun", [[], [chunk({"role": "assistant", "content": ""})]])
def test_an_error_in_place_of_an_answer_is_the_transports(
    begun: list[Any], data: Any, status: int | None, code: str | None, words: str
) -> None:
    """The error has the server's words and code, also if the server had begun an answer without content."""
    with pytest.raises(ModelTransportError, match=f"answered with an error: {words}") as caught:
        answer(*begun, data)
    assert (caught.value.status, caught.value.code) == (status, code)


@pytest.mark.scenario("SP-04")
@pytest.mark.parametrize(("data", "status", "code", "words"), SERVER_ERRORS)
@pytest.mark.parametrize(
    "shown",
    [{"content": "a"}, {"reasoning": "a"}, {"tool_calls": [part(0, "c", "f", "{")]}],
    ids=["text", "reasoning", "arguments"],
)
def test_an_error_within_an_answer_is_the_transports(
    shown: Any, data: Any, status: int | None, code: str | None, words: str
) -> None:
    """It is what the same error would be before the answer: the engine knows whether anybody has seen the beginning."""
    with pytest.raises(ModelTransportError, match=f"broke the response off: {words}") as caught:
        answer(chunk(shown), data)
    assert (caught.value.status, caught.value.code) == (status, code)
    known = code or status
    assert known is None or str(caught.value).endswith(f"({known})")


def test_an_empty_event_and_a_chunk_of_an_unknown_kind_pass() -> None:
    """Keep-alives and news are no errors; nonsense in the usage counts as nothing."""
    decoder = ChatDecoder(ask())
    assert decoder.feed("  ") == []
    news = {"object": "news", "usage": {"prompt_tokens": -1, "completion_tokens": True, "total_tokens": "9"}}
    assert decoder.feed(json.dumps(news)) == [ResponseStarted(None), Raw(news)]
    decoder.feed(json.dumps(chunk({"content": "a"}, finish="stop")))
    assert decoder.finish()[-1] == ResponseDone(
        (AssistantMessage("a"),), RequestUsage(model="m-1"), "r1", finish_reason="stop", model="m-1"
    )


def test_a_whole_response_reads_like_a_stream_of_one_chunk() -> None:
    """A server that doesn't stream is read by the same code."""
    message = {"role": "assistant", "content": "a", "tool_calls": [part(id="c", name="f", arguments="{}")]}
    whole = {"id": "r", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    assert items(whole) == (AssistantMessage("a"), ToolCall("c", "f", "{}"))


# ---------------------------------------------------------------------------------------------- constrained mode

COLOUR = {"enum": ["red", "blue"]}
PAINT = Definition(
    "paint",
    "Paints.",
    {
        "type": "object",
        "properties": {"colour": {"$ref": "#/$defs/Colour"}, "$ref": {"const": {"$ref": "#/$defs/Colour"}}},
        "required": ["colour"],
        "additionalProperties": False,
        "$defs": {"Colour": COLOUR},
    },
    examples=[("Make it red", {"colour": "red"}), ("Blue!", {"colour": "blue"})],
)
TREE = Definition(
    "plant",
    "Plants.",
    {
        "type": "object",
        "properties": {
            "colour": {"$ref": "#/definitions/Colour"},
            "children": {"type": "array", "items": {"$ref": "#"}},
            "again": {"$ref": "#/properties/colour"},
            "web": {"$ref": "https://example.org/schema"},
        },
        "required": ["colour"],
        "additionalProperties": False,
        "definitions": {"Colour": {"const": "green"}},
    },
    examples=[("Plant one", {"colour": "green"})],
)


def constrained_schema(*tools: Definition, **fields: Any) -> Any:
    body = encode(ask(tools=tools, **fields), "m", constrained=True)
    assert body["response_format"]["type"] == "json_schema"
    assert "tools" not in body
    return body["response_format"]["json_schema"]["schema"]


def test_constrained_mode_holds_the_answer_to_one_call_of_one_tool() -> None:
    """References still resolve where each tool's definitions have moved, also two of one name and one to the root."""
    check = jsonschema.Draft202012Validator(constrained_schema(PAINT, TREE)).is_valid
    assert check({"name": "paint", "arguments": {"colour": "red"}})
    assert not check({"name": "paint", "arguments": {"colour": "green"}})
    assert check({"name": "plant", "arguments": {"colour": "green", "again": "green"}})
    assert check({"name": "plant", "arguments": {"colour": "green", "children": [{"colour": "green"}]}})
    assert not check({"name": "plant", "arguments": {"colour": "green", "children": [{"colour": "red"}]}})
    assert not check({"name": "plant", "arguments": {"colour": "green", "again": "red"}})
    assert not check({"name": "paint"})
    assert not check({"name": "other", "arguments": {}})
    assert not check({"name": "paint", "arguments": {"colour": "red"}, "more": 1})
    assert constrained_schema(PAINT)["anyOf"][0]["properties"]["arguments"]["properties"]["$ref"] == {
        "const": {"$ref": "#/$defs/Colour"}
    }
    assert "$defs" not in constrained_schema(Definition("f"))


def test_constrained_mode_shows_the_tools_and_at_most_six_worked_examples() -> None:
    """The prompt shows the first example of each tool, then the second of each; temperature is 0 unless set."""
    busy = Definition("busy", examples=[(f"q{n}", {"n": n}) for n in range(9)])
    body = encode(ask(system="Be quick.", tools=[PAINT], handoffs=[TREE, busy]), "m", constrained=True)
    system, *turns, last = body["messages"]
    assert system == {
        "role": "system",
        "content": "Be quick.\n\nChoose the function to call.\n- paint: Paints.\n- plant: Plants.\n- busy: Does it.",
    }
    assert [turn["content"] for turn in turns[::2]] == ["Make it red", "Plant one", "q0", "Blue!", "q1", "q2"]
    assert turns[1] == {"role": "assistant", "content": '{"name": "paint", "arguments": {"colour": "red"}}'}
    assert last == {"role": "user", "content": "Hi"}
    assert body["temperature"] == 0
    warm = ask(tools=[PAINT], settings=ModelSettings(temperature=0.5))
    assert encode(warm, "m", constrained=True)["temperature"] == 0.5


def test_constrained_history_needs_no_tool_protocol() -> None:
    """Calls are the model's JSON, outputs the user's words, neighbours of one role are joined."""
    image = UserMessage(Image("u"))
    assert messages(
        SystemMessage("S"),
        UserMessage("Paint"),
        Reasoning(content=("hm",)),
        ToolCall("a", "paint", '{"colour":"red"}'),
        HandoffCall("b", "go", "{"),
        ToolOutput("a", "done"),
        HandoffOutput("b", "gone", "x", "y"),
        ToolOutput("lost", "late"),
        AssistantMessage("Well."),
        AssistantMessage((Refusal("no"),)),
        image,
        image,
        constrained=True,
    ) == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Paint"},
        {
            "role": "assistant",
            "content": '{"name": "paint", "arguments": {"colour": "red"}}\n'
            '{"name": "go", "arguments": {"arguments": "{"}}',
        },
        {"role": "user", "content": "paint returned: done\ngo returned: gone\nThe function returned: late"},
        {"role": "assistant", "content": "Well.\nno"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
    ]


def test_constrained_mode_minds_the_tool_choice() -> None:
    """`none` asks for text, a name leaves that tool alone, an unknown name is refused."""
    output = OutputSchema(name="final_output", schema={"type": "object"})
    body = encode(ask(tools=[PAINT], tool_choice="none", output_schema=output), "m", constrained=True)
    assert body["messages"] == [{"role": "user", "content": "Hi"}]
    assert body["response_format"]["json_schema"]["name"] == "final_output"
    assert "temperature" not in body
    assert len(constrained_schema(PAINT, TREE, tool_choice="plant")["anyOf"]) == 1
    with pytest.raises(UserValueError, match="'zoom'"):
        encode(ask(tools=[PAINT], tool_choice="zoom"), "m", constrained=True)
    some: Any = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "plant"}]}
    assert constrained_schema(PAINT, TREE, tool_choice=some) == constrained_schema(PAINT, TREE, tool_choice="plant")
    with pytest.raises(UserValueError, match="'plant'"):
        encode(ask(tools=[PAINT], tool_choice=some), "m", constrained=True)


ANSWERS = [
    ('{"name": "paint", "arguments": {"colour": "r}\\"{ed", "deep": [{"a": {}}]} }\n', None),
    ('\n{\n"name" :"paint" , "arguments"  :  {"colour" : 1.50}}', None),
    ('{"name":"paint","arguments":{}}', None),
    ('{"arguments": {"colour": "red"}, "name": "paint"}', '{"colour": "red"}'),
    ('{"more": "' + "x" * 2000 + '", "name": "paint", "arguments": {}}', "{}"),
    ('{"name": "first", "arguments": {"a":1}, "name": "paint"}', '{"a": 1}'),
]


@pytest.mark.parametrize(("text", "arguments"), ANSWERS)
def test_a_constrained_answer_is_one_call_however_it_is_cut(text: str, arguments: str | None) -> None:
    """The arguments stream in the model's own words if name and arguments come in that order."""
    request = ask(tools=[PAINT], turn=4)
    for size in (1, 7, len(text)):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        events = answer(
            *(chunk({"content": p}) for p in pieces), chunk(finish="stop"), request=request, constrained=True
        )
        done = events[-1]
        assert isinstance(done, ResponseDone)
        [call] = done.items
        assert isinstance(call, ToolCall)
        assert (call.call_id, call.name) == ("local_4", "paint")
        assert json.loads(call.arguments) == json.loads(text)["arguments"]
        streamed = "".join(event.delta for event in events if isinstance(event, ArgumentsDelta))
        if arguments is None:
            assert call.arguments == streamed
        else:
            assert call.arguments == arguments
        assert not any(isinstance(event, TextDelta) for event in events)


def test_constrained_call_ids_step_aside_for_those_in_the_history() -> None:
    """A session may hold the same turn of an earlier run."""
    request = ask(ToolCall("local_1", "paint"), ToolOutput("local_1", ""), UserMessage("Again"), tools=[PAINT])
    said = chunk({"content": '{"name": "paint", "arguments": {}}'}, finish="stop")
    assert items(said, request=request, constrained=True) == (ToolCall("local_1.2", "paint", "{}"),)


@pytest.mark.parametrize(
    "text",
    ["", "I will paint.", '{"name": "paint"}', '{"name": 1, "arguments": {}}', '{"name": "p", "arguments": [1]}'],
)
def test_a_constrained_answer_that_is_no_call_is_an_error(text: str) -> None:
    """The error says so, since the server ignored the schema."""
    with pytest.raises(ModelBehaviorError, match="constrained answer"):
        items(chunk({"content": text}, finish="stop"), request=ask(tools=[PAINT]), constrained=True)


def test_a_constrained_answer_that_was_cut_says_so() -> None:
    """The error names the cut within the call, or before it began; a whole call counts."""
    request = ask(tools=[PAINT])
    with pytest.raises(ModelBehaviorError, match="max_tokens"):
        items(chunk({"content": '{"name": "pa'}, finish="length"), request=request, constrained=True)
    with pytest.raises(ModelBehaviorError, match="usable"):
        items(chunk({"content": " "}, finish="length"), request=request, constrained=True)
    whole = chunk({"content": '{"name": "paint", "arguments": {}}'}, finish="length")
    assert items(whole, request=request, constrained=True) == (ToolCall("local_1", "paint", "{}"),)


def test_constrained_mode_takes_refusals_real_calls_and_plain_text_as_they_come() -> None:
    """A server with a tool protocol may use it; a request without tools asks for text."""
    tools = ask(tools=[PAINT])
    refusal = items(chunk({"refusal": "no"}, finish="stop"), request=tools, constrained=True)
    assert refusal == (AssistantMessage((Refusal("no"),)),)
    real = items(chunk({"tool_calls": [part(0, "a", "paint", "{}")]}, finish="stop"), request=tools, constrained=True)
    assert real == (ToolCall("a", "paint", "{}"),)
    assert items(chunk({"content": "Hi."}, finish="stop"), constrained=True) == (AssistantMessage("Hi."),)


@pytest.mark.scenario("US-13")
def test_a_cache_policy_has_its_fields() -> None:
    """Breakpoints have none here."""
    policy = CachePolicy(key="k", ttl="30m", retention="24h", breakpoints=["tools"])
    sent = encode(ask(settings=ModelSettings(cache=policy)), "m")
    assert sent == encode(ask(), "m") | {
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {"ttl": "30m"},
    }
    assert encode(ask(settings=ModelSettings(cache=CachePolicy())), "m") == encode(ask(), "m")


# ---------------------------------------------------------------------------------------------- what some servers add


def whole(message: dict[str, Any], finish: str = "stop", **fields: Any) -> ResponseDone:
    """Return the end of a response that was not streamed."""
    decoder = ChatDecoder(ask())
    decoder.feed_answer({"choices": [{"index": 0, "message": message, "finish_reason": finish}]} | fields)
    done = decoder.finish()[-1]
    assert isinstance(done, ResponseDone)
    return done


@pytest.mark.scenario("WR-15")
def test_citations_tier_and_model_of_a_response_are_kept() -> None:
    """Kinds of citations that have no form here stay in the raw event."""
    cited = {"url": "https://h", "title": "H", "start_index": 0, "end_index": 2}
    annotations = [{"type": "url_citation", "url_citation": cited}, {"type": "odd"}]
    usage = {
        "prompt_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 2, "audio_tokens": 1},
        "completion_tokens_details": {"audio_tokens": 4},
    }
    done = whole({"content": "Hi", "annotations": annotations}, model="gpt-x", service_tier="flex", usage=usage)
    citation = UrlCitation(url="https://h", title="H", start=0, end=2)
    assert done.items == (AssistantMessage([Text("Hi", (citation,))]),)
    assert (done.model, done.service_tier) == ("gpt-x", "flex")
    assert done.usage is not None
    assert (done.usage.cached_tokens, done.usage.cache_write_tokens, done.usage.audio_tokens) == (1, 2, 5)


@pytest.mark.scenario("WR-08")
def test_a_call_in_free_text_is_kept_as_it_is() -> None:
    """Its text is no JSON, and goes back as it came."""
    call = {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}
    [item] = whole({"tool_calls": [call]}, "tool_calls").items
    assert item == ToolCall("c", "sql", "SELECT 1", kind="custom")
    assert messages(item)[0]["tool_calls"] == [call]
    with pytest.raises(ModelBehaviorError, match="within a call of 'sql'"):
        whole({"tool_calls": [call]}, "length")


@pytest.mark.scenario("WR-04")
def test_a_thoughts_signature_goes_back_with_its_call_to_the_vendor_that_made_it() -> None:
    """Other servers would refuse the field."""
    extra = {"google": {"thought_signature": "c2ln"}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": extra}
    [item] = whole({"tool_calls": [call]}, "tool_calls").items
    assert messages(item, extra_content=True)[0]["tool_calls"] == [call]
    assert "extra_content" not in messages(item)[0]["tool_calls"][0]


@pytest.mark.scenario("WR-04")
def test_reasoning_goes_back_where_the_server_wants_it() -> None:
    """It belongs to the message, or the calls, after it."""
    items = [
        UserMessage("Hi"),
        Reasoning(content=("hm", "!")),
        ToolCall("a", "f"),
        ToolOutput("a", "1"),
        Reasoning(content=("so",)),
        AssistantMessage("1"),
        AssistantMessage("2"),
    ]
    sent = messages(*items, replay_reasoning=True)
    assert [message.get("reasoning_content") for message in sent] == [None, "hm!", None, "so", None]
    assert all("reasoning_content" not in message for message in messages(*items))


def test_usage_keeps_a_detached_copy_of_what_the_server_said() -> None:
    """A field that the server left out is absent in the copy; the counts say 0."""
    said: dict[str, Any] = {"prompt_tokens": 3, "completion_tokens_details": {"x": 1}}
    usage = read_usage(said, "m", _USAGE)
    said["completion_tokens_details"]["x"] = 2
    assert usage.raw == {"prompt_tokens": 3, "completion_tokens_details": {"x": 1}}
    assert (usage.input_tokens, usage.cached_tokens) == (3, 0)
