"""Streams of the HTTP interfaces as the vendors' own Python clients read them: a family of generated answers for each.

The same bytes, in other pieces, go to the vendor's client and to the codec; what both found is compared. An answer is a
function of its seed. Needs the extra `vendors`; without a client its tests are skipped.
"""

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from edges.chat_fixture import chat_bytes
from edges.messages_fixture import START, WHOLE, begin, end, more, stop
from edges.messages_fixture import wire as write_messages
from edges.responses_fixture import CALL, COMPACTION, CUSTOM, MCP, MESSAGE, REASONING, SEARCH, SOURCES, make_stream
from edges.responses_fixture import wire as write_responses

from agentloop.items import AssistantMessage, HostedToolCall, Reasoning, Text, ToolCall, UserMessage
from agentloop.model_events import (
    ArgumentsDelta,
    ModelEvent,
    ModelRequest,
    Raw,
    ReasoningDelta,
    ResponseDone,
    TextDelta,
)
from agentloop.models._chat import answer as chat_answer
from agentloop.models._codec import encode_json
from agentloop.models._messages import answer as messages_answer
from agentloop.models._messages import items as messages_items
from agentloop.models._responses import answer as responses_answer
from agentloop.models._responses import request as responses_request
from agentloop.models._sse import SSEDecoder

httpx2 = pytest.importorskip("httpx2")

SEEDS = 300
REQUEST = ModelRequest(system=None, items=(UserMessage("Hi"),))
WORDS = ["Sunny", " für", " now", "\n\n", "東京", " \\ ", '"quoted"', "🦜", "data: x", "<b>", "\u2028", "\t", "0"]

# ---------------------------------------------------------------------------------------------- answers


def _words(rnd: random.Random) -> str:
    return "Say" + "".join(rnd.choices(WORDS, k=rnd.randrange(8)))


def _cut(rnd: random.Random, text: str) -> list[str]:
    """Return *text* in some pieces, none of them empty."""
    places = sorted(rnd.sample(range(1, len(text)), rnd.randrange(min(len(text), 6)))) if text else []
    return [text[start:stop] for start, stop in itertools.pairwise([0, *places, len(text)])]


def _arguments(rnd: random.Random) -> str:
    value = {"where": _words(rnd), "n": [rnd.randrange(9), None, 0.5, {"deep": True}][: rnd.randrange(5)]}
    return (
        json.dumps(value, ensure_ascii=rnd.random() < 0.5, indent=rnd.choice([None, 1])) if rnd.random() < 0.8 else ""
    )


def make_messages(rnd: random.Random) -> bytes:
    """Return an answer of Anthropic Messages: thoughts, texts with citations, calls, and calls of the provider."""
    blocks: list[list[dict[str, Any]]] = []

    def add(start: Mapping[str, Any], *pieces: Mapping[str, Any]) -> None:
        place = len(blocks)
        blocks.append([begin(place, **start), *(more(place, **piece) for piece in pieces), stop(place)])

    def add_text() -> None:
        pieces: list[Any] = [{"type": "text_delta", "text": piece} for piece in _cut(rnd, _words(rnd))]
        if rnd.random() < 0.3:
            place = {"type": "web_search_result_location", "url": "https://x.test", "title": rnd.choice(["X", None])}
            pieces.append({"type": "citations_delta", "citation": place | {"cited_text": "c", "encrypted_index": "e"}})
        add({"type": "text", "text": ""}, *pieces)

    def add_call() -> None:
        pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *_cut(rnd, _arguments(rnd)))]
        add({"type": "tool_use", "id": f"toolu_{len(blocks)}", "name": "look", "input": {}}, *pieces)

    def add_thought() -> None:
        if rnd.random() < 0.3:
            return add({"type": "redacted_thinking", "data": _words(rnd)})
        pieces = [{"type": "thinking_delta", "thinking": piece} for piece in _cut(rnd, _words(rnd))]
        add(
            {"type": "thinking", "thinking": "", "signature": ""},
            *pieces,
            {"type": "signature_delta", "signature": "s"},
        )

    def add_search() -> None:
        used = f"srv_{len(blocks)}"
        pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in _cut(rnd, '{"query": "für x"}')]
        add({"type": "server_tool_use", "id": used, "name": "web_search", "input": {}}, *pieces)
        add({"type": "web_search_tool_result", "tool_use_id": used, "content": []})

    for adding in rnd.choices([add_text, add_text, add_call, add_thought, add_search], k=rnd.randrange(6)):
        adding()
    rnd.choice([add_text, add_call])()  # a thought belongs to what follows it
    called = any(block[0]["content_block"]["type"] == "tool_use" for block in blocks)
    usage = {
        "service_tier": rnd.choice(["standard", "priority"]),
        "input_tokens": rnd.randrange(99),
        "output_tokens": 1,
    }
    usage |= {name: rnd.choice([None, 0, 7]) for name in ("cache_read_input_tokens", "cache_creation_input_tokens")}
    message = START["message"] | {"usage": usage}
    events = [START | {"message": message}, *itertools.chain(*blocks), *end("tool_use" if called else "end_turn")]
    for _ in range(rnd.randrange(3)):
        events.insert(rnd.randrange(1, len(events)), {"type": "ping"})
    return write_messages(events)


def make_chat(rnd: random.Random) -> bytes:
    """Return an answer of Chat Completions: text or a refusal, and calls whose pieces come in order or mixed."""
    said = [{rnd.choice(["content", "content", "refusal"]): piece} for piece in _cut(rnd, _words(rnd))]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *(said if rnd.random() < 0.7 else [])]
    calls: list[list[dict[str, Any]]] = []
    for index in range(rnd.randrange(4)):
        first = {"index": index, "id": f"c{index}", "type": "function", "function": {"name": "look", "arguments": ""}}
        rest = [{"index": index, "function": {"arguments": piece}} for piece in _cut(rnd, _arguments(rnd) or "{}")]
        calls.append([first, *rest])
    begun = 0  # calls begin in their order: the vendor's client lets no index out
    while any(calls):
        parts = [call.pop(0) for call in calls[: begun + 1] if call and rnd.random() < 0.6]
        begun = max([begun, *(part["index"] + 1 for part in parts)])
        if parts:
            deltas.append({"tool_calls": parts})
    called = any("tool_calls" in delta for delta in deltas)
    if not called and len(deltas) == 1:
        deltas.append({"content": "Hi"})
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls" if called else "stop"})
    base = {"id": "r", "object": "chat.completion.chunk", "created": 1, "model": "gpt-x"}
    chunks: list[dict[str, Any]] = [base | {"choices": [choice]} for choice in choices]
    if rnd.random() < 0.8:
        prompt, made = rnd.randrange(99), rnd.randrange(99)
        usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}
        if rnd.random() < 0.7:
            usage["prompt_tokens_details"] = {"cached_tokens": rnd.choice([None, 4])}
            usage["completion_tokens_details"] = {"reasoning_tokens": rnd.choice([None, 2])}
        chunks.append(base | {"choices": [], "usage": usage})
    written = (b"data: " + json.dumps(chunk, ensure_ascii=rnd.random() < 0.5).encode() for chunk in chunks)
    return b"".join(one + b"\n\n" for one in (*written, b"data: [DONE]"))


def make_responses(rnd: random.Random) -> bytes:
    """Return an answer of Responses: items of every kind in any order, each text in other pieces."""
    items: list[dict[str, Any]] = []
    kinds: list[dict[str, Any]] = rnd.choices([REASONING, SEARCH, MESSAGE, MCP, CALL, CUSTOM], k=rnd.randrange(1, 6))
    if rnd.random() < 0.3:
        kinds.insert(0, COMPACTION)  # of what came before: a thought isn't sent back without what came of it
    items += (_item(rnd, place, kind) for place, kind in enumerate(kinds))
    items.append(_item(rnd, len(items), rnd.choice([MESSAGE, CALL, CUSTOM])))  # what comes of the last thought
    asked, made = rnd.randrange(99), rnd.randrange(99)
    usage: dict[str, Any] = {"input_tokens": asked, "output_tokens": made, "total_tokens": asked + made}
    usage["input_tokens_details"] = {"cached_tokens": rnd.randrange(9), "cache_write_tokens": rnd.randrange(9)}
    usage["output_tokens_details"] = {"reasoning_tokens": rnd.randrange(9)}
    events = make_stream(items, usage=usage, service_tier=rnd.choice(["flex", "default", None]))
    split: list[dict[str, Any]] = []
    for event in events:
        pieces = _cut(rnd, event["delta"]) if event["type"].endswith(".delta") and event["delta"] else [None]
        split += (event if piece is None else event | {"delta": piece} for piece in pieces)
    return write_responses({**event, "sequence_number": number} for number, event in enumerate(split))


def _item(rnd: random.Random, place: int, kind: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item of *kind* with ids and texts of its own."""
    item = {**kind, "id": f"{kind['id']}_{place}"}
    match kind["type"]:
        case "message":
            part = kind["content"][0] | {"text": _words(rnd), "annotations": rnd.sample(SOURCES, rnd.randrange(4))}
            item["content"] = [part]
        case "reasoning":
            item["summary"] = [{"type": "summary_text", "text": _words(rnd)}]
            item["content"] = [{"type": "reasoning_text", "text": _words(rnd)}]
        case "function_call":
            item |= {"call_id": f"call_{place}", "arguments": _arguments(rnd) or "{}"}
            for name in rnd.sample(["namespace", "caller"], rnd.randrange(3)):
                del item[name]
        case "custom_tool_call":
            item |= {"call_id": f"call_{place}", "input": _words(rnd)}
    return item


def _disturb(rnd: random.Random, stream: bytes) -> bytes:
    """Return *stream* with comments between its events and other ends of lines, which mean nothing."""
    events = stream.split(b"\n\n")
    for _ in range(rnd.randrange(4)):
        events.insert(rnd.randrange(len(events)), b": comment")
    return b"\n\n".join(events).replace(b"\n", rnd.choice([b"\n", b"\r\n"]))


def _pieces(rnd: random.Random, data: bytes) -> Iterator[bytes]:
    """Yield *data* in pieces of any size: cut within lines, characters and ends of lines."""
    start = 0
    while start < len(data):
        size = rnd.choice([1, 2, 7, 60, 500, 5_000])
        yield data[start : start + size]
        start += size


# ---------------------------------------------------------------------------------------------- the two readers


class Wire:
    """A transport that answers each request with the next answer, in the pieces that it is given."""

    def __init__(self) -> None:
        self.answer: Iterable[bytes] = ()
        transport = httpx2.MockTransport(self._answer)
        self.client = httpx2.Client(transport=transport)

    def _answer(self, request: Any) -> Any:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=iter(list(self.answer)))


def read(decoder: Any, pieces: Iterable[bytes]) -> list[ModelEvent]:
    """Return the events that the codec's *decoder* makes of a stream."""
    sse = SSEDecoder()
    events = [event for piece in pieces for one in sse.feed(piece) for event in decoder.feed(one.data)]
    return [*events, *decoder.finish()]


def _done(events: Sequence[ModelEvent]) -> ResponseDone:
    assert isinstance(events[-1], ResponseDone)
    return events[-1]


def compare_messages(wire: Wire, client: Any, pieces: Iterable[bytes]) -> None:
    """Require that the vendor's client and the codec find the same blocks in the same order, usage and end."""
    with client.messages.stream(model="m", max_tokens=9, messages=[]) as stream:
        theirs = stream.get_final_message()
    events = read(messages_answer.MessagesDecoder(REQUEST), pieces)
    done = _done(events)
    expected: list[Any] = []
    for block in theirs.content:
        match block.type:
            case "text":
                cited = [one.model_dump(exclude_unset=True) for one in block.citations or ()]
                if not (expected and expected[-1][0] == "text"):
                    expected.append(("text", []))
                expected[-1][1].append((block.text, cited))
            case "thinking":
                expected.append((block.type, block.thinking, block.signature))
            case "redacted_thinking":
                expected.append((block.type, block.data))
            case "tool_use":  # an input that the server leaves out is an empty one
                expected.append((block.type, block.id, block.name, block.input or {}))
            case "server_tool_use":
                expected.append((block.type, block.id, block.name, block.input))
            case kind:
                expected.append((kind, block.tool_use_id))
    assert list(_describe_messages(done)) == expected
    words = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert words == "".join(block.text for block in theirs.content if block.type == "text")
    thoughts = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    assert thoughts == "".join(block.thinking for block in theirs.content if block.type == "thinking")
    assert done.usage is not None
    assert done.usage.output_tokens == theirs.usage.output_tokens
    assert done.usage.cached_tokens == (theirs.usage.cache_read_input_tokens or 0)
    assert done.usage.cache_write_tokens == (theirs.usage.cache_creation_input_tokens or 0)
    whole = theirs.usage.input_tokens + done.usage.cached_tokens + done.usage.cache_write_tokens
    assert done.usage.input_tokens == whole
    reason = {"tool_use": "tool_calls", "end_turn": "stop"}[theirs.stop_reason]
    assert (done.response_id, done.model, done.finish_reason) == (theirs.id, theirs.model, reason)
    # The whole message, as a server would send it that doesn't stream, holds the same.
    plain = messages_answer.MessagesDecoder(REQUEST)
    plain.feed_answer(theirs.model_dump(mode="json", exclude_unset=True))
    assert list(_describe_messages(_done(plain.finish()))) == expected


def _describe_messages(done: ResponseDone) -> Iterator[Any]:
    """Yield what a list of blocks would say of the items."""
    for item in done.items:
        match item:
            case AssistantMessage():
                cited = (item.provider_data or {}).get(messages_items.CITATIONS) or [[] for _ in item.content]
                texts = [part.text for part in item.content if isinstance(part, Text)]
                yield "text", list(zip(texts, cited, strict=True))
            case Reasoning() if (item.provider_data or {})[messages_items.BLOCK] == "thinking":
                yield "thinking", "".join(item.content), item.encrypted
            case Reasoning():
                yield "redacted_thinking", item.encrypted
            case ToolCall():
                yield "tool_use", item.call_id, item.name, json.loads(item.arguments)
            case HostedToolCall():
                yield "server_tool_use", item.id, item.kind, item.data["input"]
                yield item.data[messages_items.RESULT]["type"], item.data[messages_items.RESULT]["tool_use_id"]
            case other:
                raise AssertionError(other)


def compare_chat(wire: Wire, client: Any, pieces: Iterable[bytes]) -> None:
    """Require that the vendor's client and the codec find the same text, refusal, calls, usage and end."""
    with client.chat.completions.stream(model="m", messages=[], stream_options={"include_usage": True}) as stream:
        theirs = stream.get_final_completion()
    events = read(chat_answer.ChatDecoder(REQUEST), pieces)
    done = _done(events)
    [choice] = theirs.choices
    said = [item for item in done.items if isinstance(item, AssistantMessage)]
    assert "".join(item.text for item in said) == (choice.message.content or "")
    assert next((item.refusal for item in said if item.refusal), None) == choice.message.refusal
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == (choice.message.content or "")
    calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    assert [(item.call_id, item.name, item.arguments) for item in done.items if isinstance(item, ToolCall)] == calls
    for call_id, _, arguments in calls:
        deltas = [event.delta for event in events if isinstance(event, ArgumentsDelta) and event.call_id == call_id]
        assert "".join(deltas) == arguments
    assert (done.response_id, done.model, done.finish_reason) == (theirs.id, theirs.model, choice.finish_reason)
    assert (done.usage is None) == (theirs.usage is None)
    if done.usage is not None:
        prompt, made = theirs.usage.prompt_tokens_details, theirs.usage.completion_tokens_details
        assert done.usage.input_tokens == theirs.usage.prompt_tokens
        assert done.usage.output_tokens == theirs.usage.completion_tokens
        assert done.usage.total_tokens == theirs.usage.total_tokens
        assert done.usage.cached_tokens == ((prompt and prompt.cached_tokens) or 0)
        assert done.usage.reasoning_tokens == ((made and made.reasoning_tokens) or 0)
    plain = chat_answer.ChatDecoder(REQUEST)
    plain.feed_answer(theirs.model_dump(mode="json", exclude_unset=True))
    assert _done(plain.finish()).items == done.items


def compare_responses(wire: Wire, client: Any, pieces: Iterable[bytes]) -> None:
    """Require that the vendor's client and the codec find the same events, pieces, items, usage and end."""
    with client.responses.create(model="m", input="Hi", stream=True) as stream:
        events = list(stream)
    theirs = events[-1].response
    ours = read(responses_answer.ResponsesDecoder(REQUEST), pieces)
    done = _done(ours)
    assert [event.data["type"] for event in ours if isinstance(event, Raw)] == [event.type for event in events]
    texts = [event.delta for event in events if event.type == "response.output_text.delta" and event.delta]
    assert [event.text for event in ours if isinstance(event, TextDelta)] == texts
    assert "".join(texts) == theirs.output_text
    inputs = ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta")
    arguments = [event.delta for event in events if event.type in inputs and event.delta]
    assert [event.delta for event in ours if isinstance(event, ArgumentsDelta)] == arguments
    # Each item goes back as the client would send it back: without what it only tells.
    body = responses_request.encode(REQUEST.replace(items=done.items), "m")
    sent = json.loads(encode_json(body))["input"]
    for item, one in zip(theirs.output, sent, strict=True):
        dumped = item.model_dump(mode="json", by_alias=True, exclude_unset=True)
        for part in dumped.get("content") or ():
            part.pop("logprobs", None)
        assert one == dumped
    assert done.usage is not None
    assert done.usage.input_tokens == theirs.usage.input_tokens
    assert done.usage.output_tokens == theirs.usage.output_tokens
    assert done.usage.total_tokens == theirs.usage.total_tokens
    assert done.usage.cached_tokens == theirs.usage.input_tokens_details.cached_tokens
    assert done.usage.cache_write_tokens == theirs.usage.input_tokens_details.cache_write_tokens
    assert done.usage.reasoning_tokens == theirs.usage.output_tokens_details.reasoning_tokens
    assert (done.response_id, done.model, done.service_tier) == (theirs.id, theirs.model, theirs.service_tier)
    plain = responses_answer.ResponsesDecoder(REQUEST)
    plain.feed_answer(theirs.model_dump(mode="json", by_alias=True, exclude_unset=True))
    assert _done(plain.finish()).items == done.items


def _open_anthropic(client: Any) -> Any:
    return pytest.importorskip("anthropic").Anthropic(api_key="k", http_client=client)


def _open_openai(client: Any) -> Any:
    return pytest.importorskip("openai").OpenAI(api_key="k", http_client=client)


Compare = Callable[[Wire, Any, Iterable[bytes]], None]
INTERFACES: Mapping[str, tuple[Any, Compare, Callable[[random.Random], bytes], bytes]] = {
    "responses": (_open_openai, compare_responses, make_responses, write_responses(make_stream())),
    "chat": (_open_openai, compare_chat, make_chat, chat_bytes()),
    "messages": (_open_anthropic, compare_messages, make_messages, write_messages(WHOLE)),
}


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_stream_reads_as_the_vendors_client_reads_it(interface: str) -> None:
    """The answer with every kind of item that a run makes use of, in one piece."""
    open_client, compare, _, whole = INTERFACES[interface]
    wire = Wire()
    wire.answer = [whole]
    with open_client(wire.client) as client:
        compare(wire, client, [whole])


@pytest.mark.slow
@pytest.mark.scenario("WR-01")
@pytest.mark.parametrize("interface", INTERFACES)
def test_generated_streams_read_as_the_vendors_client_reads_them(interface: str) -> None:
    """Other items in another order, texts in other pieces, comments, ends of lines; the bytes cut for each reader."""
    open_client, compare, make, _ = INTERFACES[interface]
    wire, different = Wire(), set()
    with open_client(wire.client) as client:
        for seed in range(SEEDS):
            rnd = random.Random(f"{interface} {seed}")
            stream = _disturb(rnd, make(rnd))
            different.add(stream)
            wire.answer = _pieces(rnd, stream)
            try:
                compare(wire, client, _pieces(rnd, stream))
            except BaseException as error:
                error.add_note(f"the answer of seed {seed}")
                raise
    assert len(different) > SEEDS * 0.95
