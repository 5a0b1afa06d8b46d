"""One agent, three interfaces: the same script gives equal items, streamed and plain, and each carries them back."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from edges.messages_fixture import begin, end, more, stop, wire
from edges.responses_fixture import make_response, make_stream

from agentloop import Agent, FunctionTool, ModelRetrySettings, ModelSettings, Runner, tool
from agentloop.exceptions import ModelTransportError
from agentloop.items import AssistantMessage, Item, Text, ToolCall, ToolOutput, UserMessage
from agentloop.model_events import ModelRequest
from agentloop.models import AnthropicModel, OpenAIChatModel, OpenAIResponsesModel
from agentloop.models._chat import request as chat_request
from agentloop.models._http_model import HttpModel
from agentloop.models._realtime import request as realtime_request
from agentloop.models._responses import request as responses_request

SCRIPT: list[list[Item]] = [
    [AssistantMessage("I look für dich."), ToolCall("c1", "weather", '{"city": "Kyōto"}'), ToolCall("c2", "now")],
    [ToolCall("c3", "weather", '{"city": "Oslo"}')],
    [AssistantMessage("Kyōto.")],
]
"""What the model answers, turn by turn."""


@tool
async def weather(city: str) -> str:
    """Return the weather."""
    return f"{city}: sunny"


@tool
async def now() -> str:
    """Return the time."""
    return "noon"


# ---------------------------------------------------------------------------------------------- the servers


def _chat_message(items: list[Item]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for item in items:
        if isinstance(item, AssistantMessage):
            message["content"] = item.text
        elif isinstance(item, ToolCall):
            function = {"name": item.name, "arguments": item.arguments}
            calls = message.setdefault("tool_calls", [])
            calls.append({"index": len(calls), "id": item.call_id, "type": "function", "function": function})
    return message


def answer_chat(items: list[Item], streamed: bool) -> bytes:
    """Return an answer of Chat Completions."""
    message = _chat_message(items)
    finish = "tool_calls" if "tool_calls" in message else "stop"
    if not streamed:
        return json.dumps({"id": "r", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}).encode()
    deltas: list[dict[str, Any]] = [{"content": piece} for piece in _cut(message["content"] or "")]
    deltas += [{"tool_calls": [call]} for call in message.get("tool_calls", ())]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    return b"".join(b"data: %s\n\n" % json.dumps({"choices": [choice]}).encode() for choice in choices)


def answer_messages(items: list[Item], streamed: bool) -> bytes:
    """Return an answer of Anthropic Messages."""
    reason = "tool_use" if any(isinstance(item, ToolCall) for item in items) else "end_turn"
    blocks = [_block(item) for item in items]
    message = {"id": "r", "type": "message", "role": "assistant", "model": "m", "usage": {"output_tokens": 1}}
    if not streamed:
        return json.dumps(message | {"content": blocks, "stop_reason": reason}).encode()
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message | {"content": []}}]
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            events.append(begin(index, type="text", text=""))
            events += [more(index, type="text_delta", text=piece) for piece in _cut(block["text"])]
        else:
            events.append(begin(index, **block | {"input": {}}))
            written = json.dumps(block["input"], ensure_ascii=False)
            events += [more(index, type="input_json_delta", partial_json=piece) for piece in _cut(written)]
        events.append(stop(index))
    return wire([*events, *end(reason)])


def _block(item: Item) -> dict[str, Any]:
    if isinstance(item, ToolCall):
        return {"type": "tool_use", "id": item.call_id, "name": item.name, "input": json.loads(item.arguments)}
    assert isinstance(item, AssistantMessage)
    return {"type": "text", "text": item.text}


def answer_responses(items: list[Item], streamed: bool) -> bytes:
    """Return an answer of Responses."""
    output = [_output(item, place) for place, item in enumerate(items)]
    if not streamed:
        return json.dumps(make_response(output)).encode()
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in make_stream(output))


def _output(item: Item, place: int) -> dict[str, Any]:
    if isinstance(item, ToolCall):
        call = {"type": "function_call", "id": f"fc_{place}", "call_id": item.call_id, "status": "completed"}
        return call | {"name": item.name, "arguments": item.arguments}
    assert isinstance(item, AssistantMessage)
    text = {"type": "output_text", "text": item.text, "annotations": []}
    return {"type": "message", "id": f"msg_{place}", "role": "assistant", "status": "completed", "content": [text]}


def _cut(text: str) -> Iterator[str]:
    for start in range(0, len(text), 5):
        yield text[start : start + 5]


INTERFACES: dict[type[HttpModel], Callable[[list[Item], bool], bytes]] = {
    OpenAIResponsesModel: answer_responses,
    OpenAIChatModel: answer_chat,
    AnthropicModel: answer_messages,
}


# ---------------------------------------------------------------------------------------------- the runs


def plain(item: Item) -> Item:
    """Return *item* without the marks of its provider, and with its arguments as the value that they mean."""
    match item:
        case AssistantMessage():
            return AssistantMessage([Text(item.text)])
        case ToolCall():
            return ToolCall(item.call_id, item.name, json.dumps(json.loads(item.arguments)))
        case ToolOutput():
            return ToolOutput(item.call_id, item.output)
        case _:
            return item


async def run(kind: Any, streamed: bool) -> tuple[list[Item], list[str]]:
    """Return the items of a run over the interface, and the bodies of its requests."""
    bodies: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.dumps(json.loads(request.content), ensure_ascii=False))
        content = INTERFACES[kind](SCRIPT[len(bodies) - 1], streamed)
        content_type = "text/event-stream" if streamed else "application/json"
        return httpx.Response(200, headers={"content-type": content_type}, content=content)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        model = kind("m", base_url="http://model.test/v1", http_client=client)
        agent = Agent("guide", instructions="Be brief.", model=model, tools=[weather, now])
        result = await Runner.run(agent, "Which city?")
    assert result.final_output == "Kyōto."
    return [plain(item) for item in result.new_items], bodies


@pytest.mark.scenario("WR-01")
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
async def test_one_script_gives_equal_items_over_each_interface(streamed: bool) -> None:
    """Every interface carries the items out and back: the agent doesn't know which one it is."""
    found = {kind: await run(kind, streamed) for kind in INTERFACES}
    expected: list[Item] = [
        *map(plain, SCRIPT[0]),
        ToolOutput("c1", "Kyōto: sunny"),
        ToolOutput("c2", "noon"),
        *map(plain, SCRIPT[1]),
        ToolOutput("c3", "Oslo: sunny"),
        *map(plain, SCRIPT[2]),
    ]
    for kind, (items, bodies) in found.items():
        assert items == expected, kind
        assert len(bodies) == 3
        for said in ("Be brief.", "Which city?", "I look für dich.", "Kyōto: sunny", "noon", "Oslo: sunny"):
            assert bodies[-1].count(said) == 1, (kind, said)
        for call_id in ("c1", "c2", "c3"):
            assert bodies[-1].count(f'"{call_id}"') == 2, (kind, call_id)  # the call and its output


BROKEN_OFF: dict[type[HttpModel], tuple[dict[str, Any], int]] = {
    OpenAIResponsesModel: ({"type": "error", "code": "server_error", "message": "full"}, 500),
    OpenAIChatModel: ({"error": {"message": "full", "code": 503}}, 503),
    AnthropicModel: ({"type": "error", "error": {"type": "overloaded_error", "message": "full"}}, 529),
}
"""The event by which each server breaks an answer off, and the status that it would have in place of the answer."""


@pytest.mark.scenario("SP-04")
@pytest.mark.parametrize("kind", INTERFACES)
async def test_an_answer_that_is_broken_off_is_asked_for_again_unless_its_beginning_was_seen(kind: Any) -> None:
    """By the status that the server's error would have before the answer, as after a connection that breaks."""
    event, status = BROKEN_OFF[kind]
    whole = INTERFACES[kind]([AssistantMessage("All of it.")], True)
    begun = whole[: whole.index(b"All o") + 200].rpartition(b"\n\n")[0]
    answers = [begun + b"\n\ndata: %s\n\n" % json.dumps(event).encode(), whole]
    given: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        given.append(answers[len(given)])
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=given[-1])

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        model = kind("m", base_url="http://model.test/v1", http_client=client)
        retry = ModelRetrySettings(max_retries=2, initial_delay=0, policy=lambda context: True)
        agent = Agent("guide", model=model, model_settings=ModelSettings(retry=retry))
        assert (await Runner.run(agent, "go")).final_output == "All of it."
        assert len(given) == 2
        given.clear()
        async with Runner.run_streamed(agent, "go") as stream:
            with pytest.raises(ModelTransportError, match="broke the response off: full") as caught:
                async for _ in stream:
                    pass
    assert caught.value.status == status
    assert len(given) == 1


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        ({"type": "object"}, {"type": "object", "properties": {}}),
        (
            {"type": "object", "additionalProperties": True},
            {"type": "object", "additionalProperties": True, "properties": {}},
        ),
        ({"type": "object", "properties": {"a": {}}}, {"type": "object", "properties": {"a": {}}}),
        ({"anyOf": [{"type": "object"}]}, {"anyOf": [{"type": "object"}]}),
    ],
)
def test_schema_of_an_object_has_properties_on_interfaces_of_openai(schema: Any, sent: Any) -> None:
    """They refuse the whole request for one tool whose schema has none, as those of many MCP servers."""
    bare = FunctionTool(name="f", params_json_schema=schema, on_invoke_tool=lambda ctx, text: text, strict_mode=False)
    request = ModelRequest(system=None, items=(UserMessage("hi"),), tools=(bare,))
    assert chat_request.encode(request, "m")["tools"][0]["function"]["parameters"] == sent
    assert responses_request.encode(request, "m")["tools"][0]["parameters"] == sent
    assert realtime_request.encode_session(request)["tools"][0]["parameters"] == sent
