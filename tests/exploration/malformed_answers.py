"""Malformed answers of models: streams of every interface with faults in them.

A stream is a good one whose events are dropped, repeated, moved and spoiled at any depth. The codec may read it, or
refuse it with an error of the library's own; what it reads must go back in the next request. `python -m
tests.exploration.malformed_answers --count N --seed S` feeds N streams to each interface.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agentloop.exceptions import AgentLoopError
from agentloop.items import AssistantMessage, HandoffCall, Item, ToolCall, ToolOutput, UserMessage
from agentloop.model_events import ModelRequest, OutputSchema, ResponseDone
from agentloop.models._chat import answer as chat_answer
from agentloop.models._chat import request as chat_request
from agentloop.models._codec import Decoder, encode_json
from agentloop.models._messages import answer as messages_answer
from agentloop.models._messages import request as messages_request
from agentloop.models._realtime import answer as realtime_answer
from agentloop.models._realtime import items as realtime_items
from agentloop.models._responses import answer as responses_answer
from agentloop.models._responses import request as responses_request
from agentloop.models._sse import SSEDecoder
from agentloop.testing.simulation.generated import Chance

from .generators import Seeded
from .malformed import PIECES, spoil, text_of

HISTORY: tuple[Item, ...] = (UserMessage("Hi"), ToolCall("c1", "f"), ToolOutput("c1", "found"))
OUTPUT = OutputSchema(name="final_output", schema={"type": "object"})
Json = dict[str, Any]


# ---------------------------------------------------------------------------------------------- good streams


def _draw_arguments(chance: Chance) -> str:
    return chance.pick(('{"n": 1}', "", "{}", '{"n": NaN}', "[1]", "free text", text_of(chance)))


def _draw_id(chance: Chance) -> str:
    return chance.pick(("c1", "c2", "c3", ""))


def _chat_stream(chance: Chance) -> list[Json]:
    deltas: list[Json] = [{"role": "assistant", "content": ""}, {"reasoning_content": "hm"}, {"content": "Hi"}]
    for index in range(chance.whole(0, 2)):
        function = {"name": "f", "arguments": _draw_arguments(chance)}
        call: Json = {"index": index, "id": _draw_id(chance), "type": "function", "function": function}
        if chance.one_in(4):
            call |= {"type": "custom", "custom": {"name": "f", "input": text_of(chance)}, "function": None}
        deltas += [{"tool_calls": [call]}, {"tool_calls": [{"index": index, "function": {"arguments": " "}}]}]
    deltas += [{"annotations": [{"type": "url_citation", "url_citation": {"url": "u", "start_index": 0}}]}]
    deltas += [{"refusal": "no"}] if chance.one_in(4) else []
    choices: list[Json] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": chance.pick(("stop", "length", "tool_calls"))})
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
    base = {"id": "r", "object": "chat.completion.chunk", "model": "m"}
    return [*(base | {"choices": [choice]} for choice in choices), base | {"choices": [], "usage": usage}]


_BLOCKS: tuple[Json, ...] = (
    {"type": "text", "text": ""},
    {"type": "thinking", "thinking": "", "signature": ""},
    {"type": "redacted_thinking", "data": "ZA"},
    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
    {"type": "mcp_tool_use", "id": "s2", "name": "roll", "server_name": "dice", "input": {}},
    {"type": "mcp_tool_result", "tool_use_id": "s2", "is_error": False, "content": "4"},
    {"type": "container_upload", "file_id": "f"},
)
_DELTAS: Mapping[str, Json] = {
    "text": {"type": "text_delta", "text": "Hi"},
    "thinking": {"type": "thinking_delta", "thinking": "hm"},
    "server_tool_use": {"type": "input_json_delta", "partial_json": '{"query": "x"}'},
}


def _messages_stream(chance: Chance) -> list[Json]:
    message = {"id": "m", "role": "assistant", "model": "m", "content": [], "usage": {"input_tokens": 1}}
    events: list[Json] = [{"type": "message_start", "message": message}, {"type": "ping"}]
    for index in range(chance.whole(1, 6)):
        block, delta = chance.pick(_BLOCKS), None
        if chance.one_in(3):
            block = {
                "type": "tool_use",
                "id": _draw_id(chance),
                "name": chance.pick(("f", "final_output")),
                "input": {},
            }
            delta = {"type": "input_json_delta", "partial_json": _draw_arguments(chance)}
        if (delta := delta or _DELTAS.get(block["type"])) is not None:
            deltas = [delta, {"type": "signature_delta", "signature": "c2ln"}]
            deltas += [{"type": "citations_delta", "citation": {"type": "web_search_result_location", "url": "u"}}]
            pieces = [{"type": "content_block_delta", "index": index, "delta": each} for each in deltas]
        else:
            pieces = []
        begun = {"type": "content_block_start", "index": index, "content_block": dict(block)}
        events += [begun, *pieces, {"type": "content_block_stop", "index": index}]
    reason = chance.pick(("end_turn", "tool_use", "max_tokens", "pause_turn", "refusal", "stop_sequence"))
    ended = {"stop_reason": reason, "stop_sequence": None, "stop_details": {"explanation": "no"}}
    events.append({"type": "message_delta", "delta": ended, "usage": {"output_tokens": 2}})
    return [*events, {"type": "message_stop"}]


_OUTPUTS: tuple[Json, ...] = (
    {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "ZQ"},
    {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "mcp_approval_request", "id": "ar", "name": "roll", "server_label": "dice", "arguments": "{}"},
    {"type": "tool_search_call", "id": "ts", "call_id": None, "execution": "server", "arguments": {}},
    {"type": "tool_search_output", "id": "to", "call_id": None, "execution": "server", "tools": []},
    {"type": "code_interpreter_call", "id": "ci", "code": "1", "container_id": "k", "outputs": [], "status": "failed"},
    {"type": "compaction", "id": "cm", "encrypted_content": "ZQ"},
    {"type": "hologram", "id": "h"},
)
_SOURCES = [{"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}]


def _draw_output(chance: Chance) -> Json:
    kind = chance.whole(0, 5)
    if kind == 0:
        part = {"type": "output_text", "text": "Hi", "annotations": _SOURCES, "logprobs": []}
        refusal = {"type": "refusal", "refusal": "no"}
        return {"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": [part, refusal]}
    if kind == 1:
        call: Json = {"type": "function_call", "id": "fc", "call_id": _draw_id(chance), "name": "f"}
        return call | {"arguments": _draw_arguments(chance), "caller": {"type": "program", "caller_id": "p"}}
    if kind == 2:
        return {"type": "custom_tool_call", "id": "ct", "call_id": _draw_id(chance), "name": "f", "input": "x"}
    return dict(chance.pick(_OUTPUTS))


def _responses_stream(chance: Chance) -> list[Json]:
    output = [_draw_output(chance) for _ in range(chance.whole(0, 4))]
    events: list[Json] = [{"type": "response.created", "response": {"id": "r", "model": "m"}}]
    for place, item in enumerate(output):
        at: Json = {"output_index": place, "item_id": item["id"]}
        events.append({"type": "response.output_item.added", "output_index": place, "item": item})
        for kind in ("output_text", "function_call_arguments", "custom_tool_call_input", "reasoning_summary_text"):
            if chance.one_in(4):
                events.append({"type": f"response.{kind}.delta", **at, "delta": chance.pick(PIECES)})
        if chance.one_in(4):
            events.append({"type": f"response.{item['type']}.in_progress", **at})
        events.append({"type": "response.output_item.done", "output_index": place, "item": item})
    end = chance.pick(("completed", "completed", "incomplete", "failed"))
    usage = {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 2}
    response = {"id": "r", "status": end, "output": chance.pick(([], output)), "usage": usage, "error": None}
    details = {"incomplete_details": {"reason": chance.pick(("max_output_tokens", "content_filter"))}}
    return [*events, {"type": f"response.{end}", "response": response | details}]


def _realtime_stream(chance: Chance) -> list[Json]:
    part = {"type": "output_text", "text": "Hi"}
    items: tuple[Json, ...] = (
        {"type": "message", "id": "m", "role": "assistant", "content": [part]},
        {"type": "function_call", "id": "fc", "call_id": _draw_id(chance), "name": "f", "arguments": "{}"},
    )
    output = [dict(chance.pick(items)) for _ in range(chance.whole(0, 3))]
    events: list[Json] = [{"type": "response.created", "response": {"id": "r"}}]
    for place, item in enumerate(output):
        at: Json = {"response_id": "r", "item_id": item["id"], "output_index": place}
        events.append({"type": "response.output_text.delta", **at, "delta": "Hi"})
        events.append({"type": "response.function_call_arguments.delta", **at, "delta": "{", "call_id": "c1"})
        events.append({"type": "response.output_item.done", **at, "item": item})
    status = chance.pick(("completed", "completed", "incomplete", "failed", "cancelled"))
    details = {"reason": "max_output_tokens", "error": {"code": "x", "message": "no"}}
    ended = {"id": "r", "status": status, "status_details": details, "output": output, "usage": {"input_tokens": 1}}
    return [*events, {"type": "response.done", "response": ended}]


# ---------------------------------------------------------------------------------------------- faults


def _spoil_stream(chance: Chance, events: list[Json]) -> list[Any]:
    """Return *events* with up to three faults."""
    spoiled: list[Any] = json.loads(json.dumps(events))
    for _ in range(chance.whole(0, 3)):
        if not spoiled:
            break
        place, other = chance.whole(0, len(spoiled) - 1), chance.whole(0, len(spoiled) - 1)
        kind = chance.whole(0, 7)
        if kind == 0:
            del spoiled[place]
        elif kind == 1:
            spoiled.insert(other, spoiled[place])
        elif kind == 2:
            spoiled[place], spoiled[other] = spoiled[other], spoiled[place]
        elif kind == 3:
            spoiled.insert(place, {"type": "error", "error": {"type": "overloaded_error", "message": "no"}})
        else:
            spoiled[place] = json.loads(json.dumps(spoiled[place]))
            spoil(chance, spoiled[place] if isinstance(spoiled[place], dict) else {})
    return spoiled


def _write(chance: Chance, event: Any) -> str:
    text = json.dumps(event)
    return text_of(chance) if chance.one_in(60) else text[: chance.whole(0, len(text))] if chance.one_in(60) else text


def _read_stream(chance: Chance, decoder: Decoder, events: Sequence[Any]) -> ResponseDone:
    """Return the end of the answer that *decoder* reads from the bytes of *events*."""
    data = b"".join(b"data: %s\n\n" % _write(chance, event).encode("utf-8", "surrogatepass") for event in events)
    if chance.one_in(4):
        data += b"data: [DONE]\n\n"
    for event in SSEDecoder().feed(data):
        list(decoder.feed(event.data))
    return _last(decoder.finish("req"))


def _last(events: Iterable[object]) -> ResponseDone:
    *_, done = events
    assert isinstance(done, ResponseDone), "an answer ended without ResponseDone"
    return done


def _check_items(items: Sequence[Item], encode: Callable[[ModelRequest], Mapping[str, Any]]) -> None:
    """Send *items* back, with an output for each call. They came from this interface, so it has a form for them."""
    answered = [item for item in items if isinstance(item, ToolCall | HandoffCall)]
    outputs = [
        ToolOutput(call.call_id, "found", kind=call.kind if isinstance(call, ToolCall) else "function")
        for call in answered
    ]
    history = (*HISTORY, *items, *outputs, AssistantMessage("So."))
    try:
        encode_json(encode(ModelRequest(system="Be brief.", items=history)))
    except AgentLoopError as error:
        raise AssertionError(f"what an answer held can't go back: {error}") from error


def _feed_chat(chance: Chance) -> None:
    decoder = chat_answer.ChatDecoder(ModelRequest(system=None, items=HISTORY))
    items = _read_stream(chance, decoder, _spoil_stream(chance, _chat_stream(chance))).items
    _check_items(items, lambda request: chat_request.encode(request, "m", extra_content=True, replay_reasoning=True))


def _feed_messages(chance: Chance) -> None:
    mode: Any = chance.pick(("format", "tool"))
    request = ModelRequest(system=None, items=HISTORY, output_schema=OUTPUT if chance.one_in(3) else None)
    decoder = messages_answer.MessagesDecoder(request, output_mode=mode)
    items = _read_stream(chance, decoder, _spoil_stream(chance, _messages_stream(chance))).items
    _check_items(items, lambda request: messages_request.encode(request, "m", max_tokens=9))


def _feed_responses(chance: Chance) -> None:
    decoder = responses_answer.ResponsesDecoder(ModelRequest(system=None, items=HISTORY))
    items = _read_stream(chance, decoder, _spoil_stream(chance, _responses_stream(chance))).items
    _check_items(items, lambda request: responses_request.encode(request, "m"))


def _feed_realtime(chance: Chance) -> None:
    decoder = realtime_answer.RealtimeDecoder(ModelRequest(system=None, items=HISTORY), model="m")
    for event in _spoil_stream(chance, _realtime_stream(chance)):
        if isinstance(event, dict) and not decoder.done:
            list(decoder.feed(event))
    if not decoder.done:
        return
    items = _last(decoder.finish()).items
    ids: dict[str, str] = {}
    _check_items(items, lambda request: {"items": [realtime_items.encode_item(one, ids) for one in request.items]})


ANSWERS: tuple[tuple[str, Callable[[Chance], None]], ...] = (
    ("answers of chat completions", _feed_chat),
    ("answers of messages", _feed_messages),
    ("answers of responses", _feed_responses),
    ("answers of realtime sessions", _feed_realtime),
)


def main(arguments: list[str]) -> int:
    """Feed streams by the command line; return the exit status: 1 if one had an outcome that no codec may have."""
    parser = argparse.ArgumentParser(prog="python -m tests.exploration.malformed_answers", description=__doc__)
    parser.add_argument("--count", type=int, default=200_000, help="streams for each interface")
    parser.add_argument("--first", type=int, default=0, help="begin with this stream")
    parser.add_argument("--seed", default="0")
    given = parser.parse_args(arguments)
    faults: Counter[str] = Counter()
    for kind, meet in ANSWERS:
        refused = 0
        for number in range(given.first, given.first + given.count):
            try:
                meet(Seeded(f"{given.seed}/{number}"))
            except AgentLoopError:
                refused += 1
            except Exception as error:
                faults[kind] += 1
                if faults[kind] <= 3:
                    print(f"{kind}, --seed {given.seed} --first {number}: {type(error).__name__}: {error}")
        print(f"{kind}: {given.count}, refused {refused}, faults {faults[kind]}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
