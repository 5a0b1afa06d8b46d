"""What servers refuse and how they end an answer, for each interface: a history that any of them reads, and an end that
is told as what it is."""

import base64
import json
import logging
from collections.abc import Callable
from typing import Any

import attrs
import httpx
import pytest
from edges.definition import Definition
from hypothesis import given
from hypothesis import strategies as st

from agentloop import Agent, ModelSettings, Runner, tool
from agentloop._common.version import __version__
from agentloop.exceptions import ModelBehaviorError, ModelTransportError, UserError, UserTypeError
from agentloop.items import (
    AssistantMessage,
    Audio,
    File,
    HandoffCall,
    HostedToolCall,
    Image,
    Item,
    Reasoning,
    Refusal,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutput,
    UserMessage,
)
from agentloop.model_events import ModelRequest, ResponseDone
from agentloop.models import AnthropicModel, GeminiModel, OpenAIChatModel, OpenAIResponsesModel, WrapperModel
from agentloop.models._codec import encode_json
from agentloop.models._http_model import HttpModel
from agentloop.models._realtime.answer import RealtimeDecoder
from agentloop.models._realtime.items import encode_item
from agentloop.settings import ModelRetrySettings

SSE = {"content-type": "text/event-stream"}
MODELS: dict[str, HttpModel] = {
    "chat": OpenAIChatModel("m", base_url="http://model.test/v1", api_key="k"),
    "constrained": OpenAIChatModel("m", base_url="http://model.test/v1", api_key="k", constrained=True),
    "responses": OpenAIResponsesModel("m", base_url="http://model.test/v1", api_key="k"),
    "messages": AnthropicModel("m", base_url="http://model.test", api_key="k"),
}
LOOK = Definition("look", description="Looks.")


def make_request(*items: Item, **fields: Any) -> ModelRequest:
    return ModelRequest(**{"system": None, "items": items} | fields)


def encode(interface: str, *items: Item, **fields: Any) -> Any:
    """Return the body that *interface* sends, as its server reads it."""
    request = make_request(*items, **fields)
    return json.loads(encode_json(MODELS[interface]._codec.encode(request, "m")))


def chat_stream(*chunks: Any) -> httpx.Response:
    lines = [json.dumps({"choices": [{"index": 0, **chunk}]}) for chunk in chunks]
    return httpx.Response(200, headers=SSE, text="".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]))


def chat_model(answer: Callable[[httpx.Request], httpx.Response], **options: Any) -> OpenAIChatModel:
    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return OpenAIChatModel("m", base_url="http://model.test/v1", http_client=client, **options)


# ---------------------------------------------------------------------------------------------- ends


def finish(reason: str, text: str = "The answer is") -> ResponseDone:
    """Return the end of a chat answer with that finish reason."""
    decoder = MODELS["chat"]._codec.decoder(make_request(UserMessage("Hi")))
    decoder.feed(json.dumps({"choices": [{"index": 0, "delta": {"content": text or None}}]}))
    decoder.feed(json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}))
    done = list(decoder.finish())[-1]
    assert isinstance(done, ResponseDone)
    return done


@pytest.mark.parametrize("reason", ["stop", "eos", "STOP", "COMPLETE", "end_turn", "tool_calls", "function_call"])
def test_a_usual_end_is_no_news(reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever word a server has for it."""
    assert finish(reason).finish_reason == reason
    assert not caplog.records


@pytest.mark.parametrize(
    ("reason", "meant"),
    [("length", "length"), ("MAX_TOKENS", "length"), ("model_length", "length"), ("SAFETY", "content_filter")],
)
def test_a_cut_is_told_by_its_known_reason(reason: str, meant: str) -> None:
    """And with nothing usable it is an error."""
    assert finish(reason).finish_reason == meant
    with pytest.raises(ModelBehaviorError, match=f"was cut \\({meant}\\)"):
        finish(reason, text="")


BROKEN = (
    *("error", "abort", "aborted", "cancelled", "canceled", "failed", "timeout", "network_error"),
    *("insufficient_system_resource", "function_call_filter: MALFORMED_FUNCTION_CALL", "ERROR"),
)


@pytest.mark.parametrize("text", ["The answer is", ""])
@pytest.mark.parametrize("reason", BROKEN)
def test_an_answer_that_the_server_broke_off_is_an_error(reason: str, text: str) -> None:
    """With a beginning or without one: it isn't whole."""
    with pytest.raises(ModelTransportError, match="broke the response off") as caught:
        finish(reason, text)
    assert caught.value.code == reason


async def test_an_answer_that_the_server_broke_off_is_asked_for_again() -> None:
    """As after any error that may be gone the next time."""
    answers = [
        chat_stream({"delta": {"content": "The"}}, {"delta": {}, "finish_reason": "abort"}),
        chat_stream({"delta": {"content": "All"}, "finish_reason": "stop"}),
    ]
    model = chat_model(lambda _: answers.pop(0))
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=1, initial_delay=0))
    assert (await Runner.run(Agent("a", model=model, model_settings=settings), "Hi")).final_output == "All"


@pytest.mark.parametrize("interface", ["chat", "responses", "messages", "realtime"])
def test_an_unknown_end_is_at_least_a_line_in_the_log(interface: str, caplog: pytest.LogCaptureFixture) -> None:
    """The answer may be whole, and it may not."""
    request, said = make_request(UserMessage("Hi")), {"type": "output_text", "text": "Hi", "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "content": [said]}
    incomplete = {
        "id": "r",
        "status": "incomplete",
        "output": [message],
        "incomplete_details": {"reason": "moonrise"},
        "status_details": {"reason": "moonrise"},
    }
    decoder: Any = RealtimeDecoder(request, model="m")
    if interface in MODELS:
        decoder = MODELS[interface]._codec.decoder(request)
    match interface:
        case "chat":
            list(decoder.read_event({"choices": [{"delta": {"content": "Hi"}, "finish_reason": "moonrise"}]}))
        case "responses":
            list(decoder.read_event({"type": "response.incomplete", "response": incomplete}))
        case "messages":
            end = {"content": [{"type": "text", "text": "Hi"}], "stop_reason": "moonrise"}
            decoder.feed_answer(end)
        case _:
            list(decoder.feed({"type": "response.done", "response": incomplete}))
    done = list(decoder.finish())[-1]
    assert done.finish_reason == "moonrise"
    assert ["unknown reason 'moonrise'" in record.message for record in caplog.records] == [True]


async def test_an_answer_without_a_word_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The output of a text agent is then empty, which is a success without a word."""
    model = chat_model(lambda _: chat_stream({"delta": {"content": ""}, "finish_reason": "stop"}))
    with caplog.at_level(logging.WARNING):
        result = await Runner.run(Agent("a", model=model), "Hi")
    assert (result.status, result.final_output) == ("completed", "")
    assert "the model's answer in turn 1 says nothing: the final output is empty" in caplog.messages


# ---------------------------------------------------------------------------------------------- arguments that go back

MALFORMED = (
    *('{"path": "a", "text": "He said "no""}', '{"path": "a", "te', '{"path": "C:\\Users"}', "null", "[1]", "12"),
    *("  ", "", "not json", '{"a": NaN}', '{"a": 1e999}', "{" * 5_000, '"text"', "\ud800"),
)


def arguments_of(interface: str, call: ToolCall | HandoffCall) -> Any:
    """Return the arguments of *call* as *interface* sends them."""
    items = (UserMessage("Hi"), call, ToolOutput(call.call_id, "no", is_error=True))
    match interface:
        case "chat":
            return json.loads(encode(interface, *items)["messages"][1]["tool_calls"][0]["function"]["arguments"])
        case "constrained":
            turns = encode(interface, *items, tools=(LOOK,))["messages"]
            return json.loads(next(turn for turn in turns if turn["role"] == "assistant")["content"])["arguments"]
        case "responses":
            return json.loads(encode(interface, *items)["input"][1]["arguments"])
        case "messages":
            return encode(interface, *items)["messages"][1]["content"][0]["input"]
        case _:
            return json.loads(encode_item(call, {})["arguments"])


@pytest.mark.parametrize("interface", [*MODELS, "realtime"])
@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_arguments_go_back_as_an_object(text: str, interface: str) -> None:
    """Many servers parse the history: with another text they would refuse it, and the model could correct nothing."""
    for call in (ToolCall("c", "look", text), HandoffCall("c", "look", text)):
        sent = arguments_of(interface, call)
        assert isinstance(sent, dict)
        assert list(sent) == (["arguments"] if text.strip() else [])


@pytest.mark.parametrize("interface", [*MODELS, "realtime"])
@pytest.mark.parametrize("text", ["{}", '{"a": [1, {"b": null}]}', '{"path": "a\nb"}', '{"ü": 1.50}'])
def test_an_object_goes_back_as_it_is(text: str, interface: str) -> None:
    """A line break in a string as well, which the run reads and a strict server doesn't."""
    assert arguments_of(interface, ToolCall("c", "look", text)) == json.loads(text, strict=False)


# ---------------------------------------------------------------------------------------------- blank texts


@pytest.mark.parametrize("blank", ["", " ", "\n\n", "\t", "\u00a0"])
def test_no_blank_text_goes_to_claude(blank: str) -> None:
    """It refuses the whole request: not as a block, as the output of a tool, or as a part of the instructions."""
    body = encode(
        "messages",
        SystemMessage(blank),
        UserMessage(blank),
        AssistantMessage(blank),
        UserMessage([Text(blank), Text("Hi")]),
        AssistantMessage([Text(blank), Refusal("no")], provider_data={"messages_citations": [["a"], []]}),
        AssistantMessage(
            [Text(blank), Text("said")], provider_data={"messages_citations": [[{"type": "x"}], [{"type": "y"}]]}
        ),
        ToolCall("c", "look"),
        ToolOutput("c", blank),
        system=blank or None,
        instructions=(blank, "Be brief."),
        settings=ModelSettings(),
    )
    assert "system" not in body or body["system"].strip()
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    blocks = [block for message in body["messages"] for block in message["content"]]
    assert [block.get("text") for block in blocks] == ["Hi", "no", "said", None, None]
    assert blocks[2]["citations"] == [{"type": "y"}]
    assert "content" not in blocks[-1]


@pytest.mark.parametrize("interface", ["chat", "responses", "messages"])
def test_a_request_without_a_message_is_refused_before_it_is_made(interface: str) -> None:
    """Blanks are none to Claude; what the provider keeps is one to Responses."""
    with pytest.raises(UserError, match="there is no message to send"):
        encode(interface)
    if interface == "messages":
        with pytest.raises(UserError, match="there is no message to send"):
            encode(interface, UserMessage("  "), system="Be brief.")
    if interface == "responses":
        assert encode(interface, previous_response_id="r")["input"] == []
    if interface == "chat":
        assert encode(interface, system="Be brief.")["messages"] == [{"role": "system", "content": "Be brief."}]


# ---------------------------------------------------------------------------------------------- reasoning


def answer_of_responses(number: int) -> tuple[Item, ...]:
    """Return the items of an answer with reasoning before a search, a message and two calls."""
    call = {"type": "function_call", "name": "look", "arguments": "{}", "status": "completed"}
    said = {"type": "output_text", "text": "Hm.", "annotations": []}
    output = [
        {"type": "reasoning", "id": f"rs_{number}", "summary": []},
        {"type": "web_search_call", "id": f"ws_{number}", "status": "completed"},
        {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": [said]},
        {**call, "id": f"fc_{number}a", "call_id": f"c{number}a"},
        {**call, "id": f"fc_{number}b", "call_id": f"c{number}b"},
    ]
    decoder = MODELS["responses"]._codec.decoder(make_request(UserMessage("Hi")))
    list(
        decoder.read_event(
            {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": output}}
        )
    )
    done = list(decoder.finish())[-1]
    assert isinstance(done, ResponseDone)
    return done.items


HISTORY: tuple[Item, ...] = tuple(
    item
    for number in (1, 2)
    for item in (
        UserMessage("Hi"),
        *answer_of_responses(number),
        ToolOutput(f"c{number}a", "seen"),
        ToolOutput(f"c{number}b", "seen"),
    )
)


@given(st.sets(st.integers(0, len(HISTORY) - 1)))
def test_no_item_goes_to_responses_with_an_id_and_without_its_reasoning(left_out: set[int]) -> None:
    """Whichever items a session's limit or the application leaves out. Whole, the history goes back as it came."""
    history = [item for at, item in enumerate(HISTORY) if at not in left_out]
    sent = encode("responses", *history, UserMessage("And now?"))["input"]
    ids = [item["id"] for item in sent if "id" in item]
    for id in ids:
        number = id.partition("_")[2][:1]
        assert f"rs_{number}" in ids[: ids.index(id) + 1]
    assert all("responses_reasoning" not in item for item in sent)
    if not left_out:
        assert len(ids) == 10
    texts = [item for item in sent if item.get("role") == "assistant"]
    assert len(texts) == sum(isinstance(item, AssistantMessage) for item in history)


@pytest.mark.parametrize("kept", [True, False])
def test_the_details_of_reasoning_go_back_as_they_came(kept: bool) -> None:
    """Pieces of one part are joined; a part without a text of thoughts counts as well."""
    pieces = [
        [{"type": "reasoning.text", "text": "I th", "index": 0, "format": "f", "signature": None}],
        [
            {"type": "reasoning.text", "text": "ink", "index": 0},
            {"type": "reasoning.summary", "summary": "S", "index": 0},
        ],
        [{"type": "reasoning.text", "signature": "sig", "index": 0}],
        [{"type": "reasoning.encrypted", "data": "ENC", "id": "r1", "index": 1}],
    ]
    model = OpenAIChatModel("m", base_url="http://model.test/v1", replay_reasoning=kept)
    request = make_request(UserMessage("Hi"))
    decoder = model._codec.decoder(request)
    for piece in pieces:
        decoder.feed(json.dumps({"choices": [{"delta": {"reasoning_details": piece}}]}))
    call = {"index": 0, "id": "c", "function": {"name": "look", "arguments": "{}"}}
    decoder.feed(json.dumps({"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}))
    done = list(decoder.finish())[-1]
    assert isinstance(done, ResponseDone)
    assert [type(item) for item in done.items] == [Reasoning, ToolCall]
    going_on = make_request(UserMessage("Hi"), *done.items, ToolOutput("c", "seen"))
    message = json.loads(encode_json(model._codec.encode(going_on, "m")))["messages"][1]
    assert message.get("reasoning_details") == (
        [
            {"type": "reasoning.text", "text": "I think", "index": 0, "format": "f", "signature": "sig"},
            {"type": "reasoning.summary", "summary": "S", "index": 0},
            {"type": "reasoning.encrypted", "data": "ENC", "id": "r1", "index": 1},
        ]
        if kept
        else None
    )


# ---------------------------------------------------------------------------------------------- fields


@pytest.mark.parametrize("interface", ["chat", "responses", "messages"])
def test_none_in_extra_body_removes_a_field(interface: str) -> None:
    """Also one that `extra_args` adds; other values override."""
    settings = ModelSettings(
        temperature=0.5, extra_args={"a": 1}, extra_body={"stream": None, "temperature": None, "b": 2}
    )
    body = encode(interface, UserMessage("Hi"), settings=settings)
    assert not {"stream", "temperature"} & set(body)
    assert (body["a"], body["b"]) == (1, 2)


def test_strict_is_sent_where_it_says_something() -> None:
    """Left out, it means False in Chat Completions, and some servers refuse tools that have the field."""
    tools = [attrs.evolve(LOOK, strict_mode=strict) for strict in (True, False)]
    sent = encode("chat", UserMessage("Hi"), tools=tools)["tools"]
    assert [each["function"].get("strict") for each in sent] == [True, None]
    assert "strict" not in sent[1]["function"]


@pytest.mark.parametrize("kind", [OpenAIChatModel, GeminiModel])
def test_a_stream_need_not_be_asked_for_its_use(kind: type[OpenAIChatModel]) -> None:
    """For servers that refuse the field without naming it."""
    for wanted in (True, False):
        model = kind("m", base_url="http://model.test/v1", stream_usage=wanted)
        assert ("stream_options" in model._codec.encode(make_request(UserMessage("Hi")), "m")) == wanted


@pytest.mark.parametrize("status", [400, 422])
async def test_a_field_that_a_server_refuses_by_name_is_left_out_from_then_on(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One request more, once, and a line in the log; any other refusal is an error at once."""
    bodies: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        if "stream_options" in bodies[-1]:
            return httpx.Response(status, json={"detail": [{"loc": ["body", "stream_options"], "type": "extra"}]})
        return chat_stream({"delta": {"content": "Hi"}, "finish_reason": "stop"})

    agent = Agent("a", model=chat_model(answer))
    for _ in range(2):
        assert (await Runner.run(agent, "Hi")).final_output == "Hi"
    assert ["stream_options" in body for body in bodies] == [True, False, False]
    assert caplog.messages == ["model.test doesn't know stream_options: it is asked without it"]
    bodies.clear()
    refused = chat_model(lambda _: httpx.Response(status, json={"error": {"message": "unknown model m"}}))
    with pytest.raises(ModelTransportError, match="unknown model m"):
        await Runner.run(Agent("a", model=refused), "Hi")


@pytest.mark.parametrize(
    ("named", "shown"),
    [(None, "agentloop/"), ("python-httpx/1", "agentloop/"), ("mine/2", "mine/2")],
)
async def test_requests_say_who_sends_them(named: str | None, shown: str) -> None:
    """A vendor's support can ask for it. What the application says has the last word."""
    shown = f"agentloop/{__version__}" if shown == "agentloop/" else shown
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["user-agent"])
        return chat_stream({"delta": {"content": "Hi"}, "finish_reason": "stop"})

    headers = {"user-agent": named} if named else {}
    client = httpx.AsyncClient(transport=httpx.MockTransport(answer), headers=headers)
    model = OpenAIChatModel("m", base_url="http://model.test/v1", http_client=client)
    await Runner.run(Agent("a", model=model), "Hi")
    settings = ModelSettings(extra_headers={"User-Agent": "own/3"})
    await Runner.run(Agent("a", model=model, model_settings=settings), "Hi")
    assert seen == [shown, "own/3"]


# ---------------------------------------------------------------------------------------------- media

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
BASE64 = base64.b64encode(PNG).decode()


@pytest.mark.parametrize("interface", ["chat", "responses", "messages"])
@pytest.mark.parametrize("given_as", [bytes, bytearray, memoryview])
def test_bytes_are_sent_as_base64(interface: str, given_as: Callable[[bytes], Any]) -> None:
    """Of an image and of a file, in a message and in a tool's output."""
    parts = (Image(data=given_as(PNG)), File(data=given_as(PNG), filename="a.pdf"))
    said = json.dumps(encode(interface, UserMessage(parts)))
    assert said.count(BASE64) == 2
    if interface != "chat":
        shown = encode(interface, UserMessage("Hi"), ToolCall("c", "look"), ToolOutput("c", parts))
        assert json.dumps(shown).count(BASE64) == 2
    assert parts[0] == Image(data=BASE64)
    assert Audio(data=given_as(PNG)) == Audio(data=BASE64)


@pytest.mark.parametrize("kind", [Image, File, Audio])
@pytest.mark.parametrize("fields", [{"url": b"http://x"}, {"data": 3}, {"file_id": b"f"}, {"data": [1]}])
def test_a_source_that_is_no_text_is_refused_where_it_is_made(kind: Any, fields: dict[str, Any]) -> None:
    """And not deep in a request."""
    [name] = fields
    with pytest.raises(UserTypeError, match=f"{kind.__name__}: {name}: expected text, got "):
        kind(**fields)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (File(data=b"nonce 4711", media_type="text/plain"), "nonce 4711"),
        (File(data=b'{"a": 1}', media_type="application/json; charset=utf-8"), '{"a": 1}'),
        (File(data="für".encode(), filename="a.csv"), "für"),
        (File(data=b"<a/>", media_type="image/svg+xml"), "<a/>"),
        (File(data="data:text/plain;base64," + base64.b64encode(b"hi").decode()), "[file omitted]"),
        (File(data=b"\xff", media_type="text/plain"), "[file omitted]"),
        (File(data="no base64!", media_type="text/plain"), "[file omitted]"),
        (File(data=PNG, media_type="application/pdf"), "[file omitted]"),
        (File(file_id="f", media_type="text/plain"), "[file omitted]"),
    ],
)
def test_a_text_file_that_a_tool_gave_is_shown_as_text(file: File, text: str) -> None:
    """Where an output is text only: the model can read it."""
    body = encode("chat", UserMessage("Hi"), ToolCall("c", "look"), ToolOutput("c", (Text("It says: "), file)))
    assert body["messages"][-1]["content"] == f"It says: {text}"


# ---------------------------------------------------------------------------------------------- wrappers


class Loud(WrapperModel):
    """Notes what it is asked."""

    def __init__(self, wrapped: Any) -> None:
        super().__init__(wrapped)
        self.asked: list[ModelRequest] = []

    def stream(self, request: ModelRequest) -> Any:
        self.asked.append(request)
        return super().stream(request)


@tool
def look() -> str:
    """Look."""
    return "seen"


async def test_a_wrapper_is_the_model_that_it_wraps() -> None:
    """In a run, in logs and prices, and in how it is entered and left."""
    model = OpenAIResponsesModel("m", base_url="http://model.test/v1", api_key="k")
    loud = Loud(model)
    assert (loud.name, loud.info, loud.features, loud.default_settings) == (
        "m",
        model.info,
        model.features,
        model.default_settings,
    )
    assert (loud.holds_resources, loud.is_open) == (True, False)
    assert repr(loud) == f"Loud({model!r})"
    async with loud, loud:
        assert model.is_entered
        assert loud.is_open
    assert not model.is_entered
    calls = {"index": 0, "id": "c", "function": {"name": "look", "arguments": "{}"}}
    answers = [
        chat_stream({"delta": {"tool_calls": [calls]}, "finish_reason": "tool_calls"}),
        chat_stream({"delta": {"content": "Hi"}, "finish_reason": "stop"}),
    ]
    asked = Loud(chat_model(lambda _: answers.pop(0)))
    result = await Runner.run(Agent("a", model=asked, tools=[look]), "Hi")
    assert (result.final_output, len(asked.asked)) == ("Hi", 2)
    with pytest.raises(UserTypeError, match="wrapped: expected a model, got str"):
        Loud("openai:gpt")


def test_hosted_calls_keep_what_the_provider_said() -> None:
    """The note of the reasoning goes to no other interface, and isn't sent."""
    [search] = [item for item in HISTORY[:4] if isinstance(item, HostedToolCall)]
    assert search.data["responses_reasoning"] == "rs_1"
    whole = encode("responses", *HISTORY[:3])["input"]
    assert whole[2] == {"type": "web_search_call", "id": "ws_1", "status": "completed"}


# ------------------------------------------------------------------------------------- names and texts of earlier turns


INVENTED = {
    "functions.look": "functions_look",
    "look it up": "look_it_up",
    "größe": "gr__e",
    "": "unnamed",
    "工具": "__",
    "a/" * 50: ("a_" * 50)[:55] + "_27823f2e",  # a digest, so that two long names stay two
    "look": "look",
    "l" * 64: "l" * 64,
}


@pytest.mark.parametrize("kind", ["function", "custom"])
@pytest.mark.parametrize("interface", ["chat", "responses", "messages"])
@pytest.mark.parametrize("name", INVENTED)
def test_an_invented_name_goes_back_in_characters_that_servers_take(name: str, interface: str, kind: Any) -> None:
    """The model made the name up and is told so: the server must not refuse the history in which that stands."""
    call = ToolCall("c", name, "{}", kind=kind)
    body = json.dumps(encode(interface, UserMessage("hi"), call, ToolOutput("c", "no such tool")))
    assert f'"name": "{INVENTED[name]}"' in body
    assert name == INVENTED[name] or not name or json.dumps(name) not in body


@pytest.mark.parametrize("interface", MODELS)
@given(text=st.text(st.sampled_from(["\ud83d", "\ude00", "\\", "u", "d", "8", "a", "\U0001f600"]), max_size=12))
def test_no_half_of_a_surrogate_pair_is_sent(text: str, interface: str) -> None:
    """Servers refuse the whole request, and so does every later one of the session. Whole pairs stay."""
    body = encode(interface, UserMessage("q" + text), ToolCall("c", "look", "{}"), ToolOutput("c", text))
    sent = json.dumps(body, ensure_ascii=False)
    sent.encode()
    wanted = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert json.dumps("q" + wanted, ensure_ascii=False)[1:-1] in sent
